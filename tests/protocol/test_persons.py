"""A person, not a row: the mean gradient of a person's rows is clipped, so a person moves an upload by at most 2 eta G/P."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.paper_setting import Plan

import nbafl
from nbafl.errors import UsageError
from nbafl.protocol import Training, flatten
from nbafl.protocol.local import record_losses
from nbafl.protocol.vector import unflatten
from nbafl.rules import upload


def training(clip: float = 0.3, lr: float = 0.7) -> Training:
    return Training(rule="gradient", steps=1, lr=lr, record_clip=clip)


def models(seed: int) -> list[torch.nn.Module]:
    torch.manual_seed(seed)
    softmax = torch.nn.Sequential(torch.nn.Linear(4, 3))
    deep = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    return [softmax.double(), deep.double()]


def by_loop(model, x, y, start, rule, rows) -> torch.Tensor:
    """The definition, person by person, with autograd on the person's mean loss."""
    total, first = torch.zeros_like(start), 0
    for count in rows:
        point = start.clone().requires_grad_(True)
        output = torch.func.functional_call(model, unflatten(point, model), (x[first : first + count],))
        record_losses(output, y[first : first + count], rule.loss).mean().backward()
        total += point.grad * min(1.0, rule.record_clip / float(point.grad.norm()))
        first += count
    return start - rule.lr * total / len(rows)


@pytest.mark.parametrize("seed", range(3))
def test_the_upload_is_that_of_a_loop_over_persons(seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(1, 6, size=7)
    x = torch.from_numpy(rng.normal(size=(rows.sum(), 4)))
    y = torch.from_numpy(rng.integers(0, 3, rows.sum()))
    for model in models(seed):
        for clip in (0.05, 100.0):
            start = flatten(model)
            found = upload(model, x, y, start, training(clip), persons=rows)
            torch.testing.assert_close(
                found, by_loop(model, x, y, start, training(clip), rows), rtol=1e-8, atol=1e-10
            )


def test_one_row_each_is_the_rule_for_records():
    rng = np.random.default_rng(1)
    x, y = torch.from_numpy(rng.normal(size=(9, 4))), torch.from_numpy(rng.integers(0, 3, 9))
    for model in models(1):
        start = flatten(model)
        single = upload(model, x, y, start, training(), persons=np.ones(9, dtype=int))
        torch.testing.assert_close(single, upload(model, x, y, start, training()), rtol=1e-9, atol=1e-12)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    rows=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    which=st.integers(0, 4),
    seed=st.integers(0, 10**6),
    size=st.sampled_from([0.01, 1.0, 1e3, 1e8]),
)
def test_replacing_all_rows_of_a_person_never_moves_an_upload_beyond_its_bound(rows, which, seed, size):
    rng = np.random.default_rng(seed)
    which, counts = which % len(rows), np.array(rows)
    x = rng.normal(size=(counts.sum(), 4)) * size
    y = rng.integers(0, 3, counts.sum())
    first = counts[:which].sum()
    other, labels = x.copy(), y.copy()
    other[first : first + counts[which]] = rng.normal(size=(counts[which], 4)) * 10.0 ** rng.integers(-3, 9)
    labels[first : first + counts[which]] = rng.integers(0, 3, counts[which])
    for model in models(seed % 7):
        start, rule = flatten(model), training()
        one = upload(model, torch.from_numpy(x), torch.from_numpy(y), start, rule, persons=counts)
        two = upload(model, torch.from_numpy(other), torch.from_numpy(labels), start, rule, persons=counts)
        assert float((one - two).norm()) <= 2 * rule.lr * rule.record_clip / len(counts)


def test_the_bound_is_attained_however_many_rows_a_person_has():
    """All rows of one person point one way in one world and the other way in the other."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 2, bias=False)).double()
    start = torch.zeros(2, dtype=torch.float64)
    counts, rule = np.array([5, 2]), training(clip=0.3, lr=1.0)
    x, y = torch.full((7, 1), 100.0, dtype=torch.float64), torch.zeros(7, dtype=torch.int64)
    other = y.clone()
    other[:5] = 1
    moved = upload(model, x, y, start, rule, persons=counts) - upload(
        model, x, other, start, rule, persons=counts
    )
    assert float(moved.norm()) == pytest.approx(2 * 0.3 / 2, rel=1e-6)


def federation(seed: int = 0) -> nbafl.Federation:
    rng = np.random.default_rng(seed)
    clients, groups = [], []
    for persons in (20, 30):
        codes = rng.permutation(np.repeat(np.arange(persons), rng.integers(1, 4, persons)))
        x = rng.normal(size=(len(codes), 4)).astype(np.float32)
        clients.append((x, (x[:, 0] > 0).astype(int)))
        groups.append(codes)
    return nbafl.Federation.from_arrays(clients, groups=groups)


def plan(**fields) -> nbafl.Plan:
    return Plan(
        **{
            "sizes": (20, 30),
            "person": "patient",
            "sensitivity": "gradient",
            "model": "softmax",
            "rounds": 3,
            "lr": 0.5,
            **fields,
        }
    )


def test_sizes_statement_and_report_speak_of_persons(tmp_path):
    given = federation()
    assert given.units.tolist() == [20, 30]
    assert (given.sizes > given.units).all()
    run = nbafl.simulate(plan(epsilon=3, delta=1e-5), given, out=tmp_path / "run")
    said = run.privacy
    assert said["unit"] == "person"
    assert said["sensitivity"]["uplink"] == pytest.approx(2 * 0.5 * run.plan.record_clip / 20)
    assert "each person of each client, with all of their rows" in said["sentences"][0]
    assert "50 persons" in (run.path / "report.html").read_text()
    assert run.privacy["epsilon"] == pytest.approx(3, abs=1e-5)


def test_the_simulation_trains_as_the_protocol_says():
    from nbafl.simulation.models import build
    from nbafl.simulation.simulator import Simulator

    given, quiet = federation(), plan(noise=False, record_clip=0.1)
    model = build("softmax", given.shape, given.outputs, 0)
    simulator = Simulator(given, model, quiet.job(), device="cpu")
    start = flatten(model)
    expected = torch.zeros_like(start)
    for client, weight in enumerate((0.4, 0.6)):
        x, y = (torch.from_numpy(part) for part in given.client(client))
        expected += weight * upload(model, x, y, start, quiet.training(), persons=given.persons[client])
    simulator.step()
    torch.testing.assert_close(simulator.vector, expected, rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_persons_is_refused(tmp_path):
    with pytest.raises(UsageError, match="person must be unset under sensitivity client"):
        Plan(person="patient", sensitivity="client")
    with pytest.raises(UsageError, match="person must be given exactly where the data say"):
        nbafl.simulate(plan(person=None), federation(), out=tmp_path / "run")
    with pytest.raises(UsageError, match="holdout"):
        federation().holdout(0.2)
    with pytest.raises(UsageError, match="persons must be"):
        upload(
            models(0)[0],
            torch.zeros(3, 4).double(),
            torch.zeros(3).long(),
            torch.zeros(15).double(),
            training(),
            None,
            np.array([2]),
        )


def test_a_persons_column_never_becomes_a_feature(tmp_path):
    rows = "".join(f"p{i % 25},{i % 7},{'yes' if i % 3 else 'no'}\n" for i in range(60))
    (tmp_path / "a.csv").write_text("patient,age,t\n" + rows)
    read = nbafl.Federation.from_csv(tmp_path, target="t", person="patient")
    assert read.shape == (1,)
    assert read.units.tolist() == [25]
    plain = nbafl.Federation.from_csv(tmp_path, target="t", ignore=["patient"])
    assert any("--person patient" in remark for remark in plain.remarks)
