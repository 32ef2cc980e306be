"""Before anything is sent an owner sees what a plan promises and what its uploads are worth to the server itself."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from tests.paper_setting import Plan

from nbafl.cli import join as join_verb
from nbafl.cli import run_command
from nbafl.errors import UsageError
from nbafl.evaluation import Evaluation
from nbafl.flower import limits
from nbafl.flower.keys import make_client_key
from nbafl.flower.limits import Promise, Wanted, agree
from nbafl.flower.release import Releaser
from nbafl.flower.secure_member import SecureReleaser
from nbafl.privacy.adversary import standard
from nbafl.privacy.gaussian import gdp_epsilon, gdp_mu
from nbafl.privacy.ledger import BudgetSpent, Ledger, Limits, Request
from nbafl.privacy.release import Earlier
from nbafl.privacy.units import Account

PLAN = Plan(
    clients=4, rounds=3, sensitivity="client", clip=1.0, epsilon=8.0, delta=1e-5, adversary="broadcast"
)


def releaser(folder: Path, plan: Plan = PLAN) -> Releaser:
    return Releaser(plan, Ledger(folder / "ledger.sqlite", anchors=folder / "anchors"))


def test_a_server_may_promise_one_and_take_thousands(tmp_path: Path) -> None:
    """Limit epsilon = 1, plan against broadcast with 10^6 clients, 25 rounds: worth 37,068 to the server."""
    plan = Plan(
        clients=10**6,
        rounds=25,
        sensitivity="client",
        clip=1.0,
        epsilon=1.0,
        delta=1e-5,
        adversary="broadcast",
    )
    out = releaser(tmp_path, plan)
    found = Promise.of(out)
    assert found.epsilon == pytest.approx(1.0, rel=1e-6)
    assert found.epsilon_uploads == pytest.approx(37_068, rel=1e-3)
    assert found.epsilon_uploads > found.epsilon_upload > 1_000
    told = limits.sentences(out)
    assert (
        "promised to a client (this client's data replaced): epsilon 1 at delta 1e-05 against broadcast"
        in told[0]
    )
    assert "worth to the server itself, which sees every upload: epsilon 37067.9 at delta 1e-05" in told[1]


def test_without_a_limit_nothing_is_agreed(tmp_path: Path) -> None:
    out = releaser(tmp_path)
    with pytest.raises(
        UsageError, match=r"epsilon must be given: this client's own limit for a client.*got None"
    ):
        agree(out, Wanted(delta=1e-6, releases=4))
    assert out.ledger.limits() == []
    agreed = agree(out, Wanted(), ask=lambda _: Wanted(3.0, 1e-6, None, 20.0))
    assert agreed == Limits(3.0, 1e-6, None, Account.CLIENT, 20.0)
    assert agree(out, Wanted()) == agreed, "the ledger remembers"


def test_the_owners_word_only_ever_tightens(tmp_path: Path) -> None:
    out = releaser(tmp_path)
    assert agree(out, Wanted(epsilon=5.0)) == Limits(5.0, 1e-5, None, Account.CLIENT)
    assert agree(out, Wanted(epsilon=9.0, releases=7)) == Limits(5.0, 1e-5, 7, Account.CLIENT)
    assert agree(out, Wanted(epsilon_uploads=4.0)) == Limits(4.0, 1e-5, 7, Account.CLIENT, 4.0)
    assert agree(out, Wanted(epsilon=2.0, delta=1e-7)) == Limits(2.0, 1e-7, 7, Account.CLIENT, 4.0)
    other = releaser(tmp_path, Plan(clients=4, rounds=3, sensitivity="gradient"))
    with pytest.raises(UsageError, match="own limit for a record"):
        agree(other, Wanted())


@pytest.mark.parametrize(
    "asked", [Wanted(epsilon=0.0), Wanted(epsilon=1.0, delta=0.0), Wanted(epsilon_uploads=0.0)]
)
def test_a_limit_of_nothing_is_never_read_as_no_limit(tmp_path: Path, asked: Wanted) -> None:
    out = releaser(tmp_path)
    with pytest.raises(UsageError, match="must be a"):
        agree(out, asked)
    assert out.ledger.limits() == []


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`nbafl join` with everything but a limit, at an address where nobody listens."""
    monkeypatch.setenv("NBAFL_ANCHORS", str(tmp_path / "anchors"))
    (tmp_path / "plan.toml").write_text(PLAN.to_toml())
    (tmp_path / "ca.crt").write_text("no certificate: nothing may be sent")
    make_client_key("me", tmp_path)
    files = ["--plan", tmp_path / "plan.toml", "--certificate", tmp_path / "ca.crt", "--key", tmp_path / "me"]
    given = [*files, "--state", tmp_path / "state", "--data", "mnist:0/4", "--patience", "0"]
    return ["join", "127.0.0.1:9", *map(str, given)]


def test_join_without_a_terminal_and_without_a_limit_is_bad_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(arguments) == 2
    assert "the plan is the server's word, not a limit" in capsys.readouterr().err


def test_join_asks_at_a_terminal_after_showing_what_is_at_stake(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def prompt(question: str, **_: object) -> object:
        shown.append(capsys.readouterr().out)
        return {"This": 2.0, "At w": 1e-6, "And ": "30"}[question[:4]]

    monkeypatch.setattr("typer.prompt", prompt)
    monkeypatch.setattr(join_verb.sys.stdin, "isatty", lambda: True, raising=False)
    assert run_command(arguments) == 2  # the certificate is none
    assert "worth to the server itself, which sees every upload: epsilon" in shown[0]
    found = Ledger(tmp_path / "state" / "ledger.sqlite").limits_of(Account.CLIENT)
    assert found == Limits(2.0, 1e-6, None, Account.CLIENT, 30.0)


def test_a_limit_over_plans_with_different_adversaries_names_no_single_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Limit 1.2, a plan against broadcast and one against eavesdropper: the refusal named the eavesdropper alone."""
    first, second = PLAN, PLAN.with_fields(adversary="eavesdropper", epsilon=1.0)
    out = releaser(tmp_path, first)
    out.ledger.set_limits(Limits(8.5, 1e-5))
    join_verb._print_agreement(out)
    assert "epsilon 8.5 against broadcast at delta 1e-05, over all plans:" in capsys.readouterr().out
    for number in range(1, 4):
        out.ledger.record(Request(first.digest(), number, "w"), b"upload", out.price(0))
    later = Releaser(second, out.ledger)
    whom = (
        f"against somebody who is broadcast in plan {first.digest()[:12]}… and eavesdropper in plan "
        f"{second.digest()[:12]}…"
    )
    out.ledger.set_limits(Limits(8.0, 1e-5))
    join_verb._print_agreement(later)
    assert f"epsilon 8 {whom} at delta 1e-05, over all plans: 0 more" in capsys.readouterr().out
    with pytest.raises(BudgetSpent, match=re.escape(f"{whom}, above this client's limit 8")):
        out.ledger.record(Request(second.digest(), 1, "w"), b"upload", later.price(0))


def test_under_secure_aggregation_the_limit_counts_what_the_server_and_its_accomplices_see(
    tmp_path: Path,
) -> None:
    """Independent of the code: mu^2 = A^2/((M - k) s^2 - 4) a round, A^2/(s^2 - 4) for an upload that was opened."""
    plan = Plan(
        clients=10, rounds=4, samples=50, sensitivity="gradient", lr=0.5, epsilon=4.0, delta=1e-5, model="softmax",
        features="raw", aggregation="secure", adversary="broadcast", min_answers=8,
    )  # fmt: skip
    out = SecureReleaser(plan, Ledger(tmp_path / "ledger.sqlite", anchors=tmp_path / "anchors"))
    sums = out.sums
    step, spread, dimension = sums.grid.step, sums.grid.spread, 7850
    moved = 2 * 0.5 * 1.0 / 50 / step + math.sqrt(dimension) * (1 + 2 * 2.0**-33 / step)
    cost_sum, cost_one = moved**2 / (8 * spread**2 - 4), moved**2 / (spread**2 - 4)
    assert out.price(0).upload == pytest.approx(cost_sum, rel=1e-9)
    found = Promise.of(out)
    assert found.epsilon == pytest.approx(plan.epsilon, rel=1e-3)
    assert found.epsilon_uploads == pytest.approx(gdp_epsilon(math.sqrt(4 * cost_sum), 1e-5), rel=1e-3)
    assert found.epsilon_upload == pytest.approx(gdp_epsilon(math.sqrt(cost_one), 1e-5), rel=1e-3)
    assert found.epsilon_upload > found.epsilon_uploads, "one upload tells more than four sums"
    told = " ".join(limits.sentences(out))
    assert (
        f"without accomplices, which sees sums of at least 8 uploads: epsilon {found.epsilon_uploads:.6g}"
        in told
    )
    assert (
        f"a server with more than 0 accomplices or by broken cryptography: epsilon {found.epsilon_upload:.6g}"
        in told
    )
    agree(out, Wanted(epsilon=100.0, epsilon_uploads=found.epsilon_uploads * 0.99))
    assert out.ledger.affordable(plan.digest(), out.price(0)) == 3


def test_scores_on_held_out_records_are_part_of_what_is_promised(tmp_path: Path) -> None:
    """Ten counts with noise 0.5 cost epsilon 46 beside a training of epsilon 1: `join` named the 1."""
    plan = Plan(
        clients=5, rounds=10, sensitivity="client", clip=1.0, epsilon=1.0, delta=1e-5, adversary="curious-server"
    )  # fmt: skip
    out = releaser(tmp_path, plan)
    assert Promise.of(out).epsilon == pytest.approx(1.0, rel=1e-6)
    out.evaluation = Evaluation(1, 0.5)
    both = gdp_epsilon(math.sqrt(gdp_mu(1.0, 1e-5) ** 2 + 10 / 0.25), 1e-5)
    found = Promise.of(out)
    assert found.epsilon == pytest.approx(both, rel=1e-6)
    assert found.epsilon_uploads == pytest.approx(both, rel=1e-6)
    told = limits.sentences(out)
    assert "epsilon 46.27" in told[0]
    assert all("with 10 noisy scores on held-out records" in each for each in told)


def test_runs_that_a_plan_goes_on_with_are_part_of_what_is_promised(tmp_path: Path) -> None:
    before = {"broadcast": 0.3, "curious-server": 2.0}
    plan = PLAN.with_fields(init="model.safetensors", init_sha256="ab" * 32, continues=(
        Earlier("cd" * 32, "ab" * 32, 7, 1, {**dict.fromkeys((each.name for each in standard()), 2.0), **before}),
    ))  # fmt: skip
    out = releaser(tmp_path, plan)
    found = Promise.of(out)
    assert found.epsilon == pytest.approx(plan.guarantees()["broadcast"], rel=1e-6)
    assert found.epsilon_uploads == pytest.approx(plan.guarantees()["curious_server"], rel=1e-6)
    assert "with the 7 rounds of the runs it continues" in limits.sentences(out)[0]
