"""A newcomer's path on nine tables: nothing given but data, target, epsilon and adversary, beside a grid search.

    python benchmarks/newcomer.py [--seeds 20] [--out newcomer.md]

Every table goes the way of `nbafl data schema` and `nbafl run`: a drafted schema, records by the schema, a Plan whose
rounds, lr, record clip and momentum are left out. Beside it stands the winner of 24 settings of (T, lr, G), chosen on
other seeds. Both are then trained on the same fresh seeds. Thousands of trainings need a trainer of their own: it does
exactly what the `gradient` rule does for many settings and seeds at once, and `check` compares it with the product.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas
import torch
from sklearn import datasets

import nbafl
from nbafl.data import tabular
from nbafl.data.inference import Wanted
from nbafl.data.tables import from_frame

EPSILONS = (1.0, 3.0, 8.0)
ADVERSARIES = ("eavesdropper", "curious-server")
GRID = list(itertools.product((30, 100, 200), (0.1, 0.4, 1.6, 6.4), (0.3, 1.0)))
CHOOSING = range(1000, 1008)
DELTA = 1e-5


@dataclass(frozen=True)
class Case:
    """A table as the product reads it: records by a drafted schema, and how many clients share it how unequally."""

    name: str
    x: np.ndarray
    y: np.ndarray
    schema: tabular.Schema
    shares: tuple[float, ...]
    shifted: bool = False
    """Whether clients hold other classes than each other: records are dealt in the order of their classes."""

    def sizes(self, records: int) -> tuple[int, ...]:
        ends = np.rint(np.cumsum(self.shares) / sum(self.shares) * records).astype(int)
        return tuple(np.diff(ends, prepend=0).tolist())

    def split(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        order = np.random.default_rng([seed, 11]).permutation(len(self.y))
        return order[len(order) // 5 :], order[: len(order) // 5]

    def federation(self, seed: int) -> nbafl.Federation:
        """The training records of a seed, dealt to the clients as the product wants them."""
        kept, _ = self.split(seed)
        kept = kept[np.argsort(self.y[kept], kind="stable")] if self.shifted else kept
        parts = np.split(kept, np.cumsum(self.sizes(len(kept)))[:-1])
        return nbafl.Federation.from_arrays(
            [(self.x[rows], self.y[rows]) for rows in parts],
            task=self.schema.task,
            outputs=self.schema.outputs,
        )


def cases() -> list[Case]:
    """scikit-learn's four, and made ones: missing values, identifier, imbalance, unequal clients, numbers, label shift."""
    found = [
        _case("breast cancer", datasets.load_breast_cancer(as_frame=True).frame, 4),
        _case("wine", datasets.load_wine(as_frame=True).frame, 3),
        _case("digits", datasets.load_digits(as_frame=True).frame, 10),
        _case("diabetes", datasets.load_diabetes(as_frame=True, scaled=False).frame, 3, "regression"),
    ]
    rng = np.random.default_rng(7)
    x = rng.normal(size=(1200, 8)) * [1, 5, 10, 0.1, 1, 1, 1, 1] + [50, 0, 3, 1, 0, 0, 0, 0]
    ill = (x[:, 0] - 50) + x[:, 1] / 5 - 5 * (x[:, 3] - 1) + 0.5 * rng.normal(size=1200) > 0
    x[rng.random(x.shape) < 0.1] = np.nan
    found.append(_case("missing, identifier", _frame(x, np.where(ill, "ill", "well"), identifier=True), 5))
    x = rng.normal(size=(3000, 6))
    rare = x @ [1, -1, 0.5, 0, 0, 0] + 0.7 * rng.normal(size=3000) > 2
    found.append(_case("imbalance", _frame(x, rare.astype(int)), 6))
    x = rng.normal(size=(1500, 5))
    scores = x @ rng.normal(size=(5, 4)) + rng.normal(size=(1500, 4))
    found.append(
        _case("unequal clients", _frame(x, np.array(list("abcd"))[scores.argmax(1)]), (8, 4, 2, 1, 1))
    )
    x = rng.uniform(size=(1000, 6)) * 100
    found.append(_case("numbers", _frame(x, x @ [1, 0.5, -0.7, 0, 0, 0.2] + 10 * rng.normal(size=1000)), 4))
    x = rng.normal(size=(1200, 6))
    scores = x @ rng.normal(size=(6, 3)) + rng.normal(size=(1200, 3))
    shift = _case("label shift", _frame(x, np.array(list("abc"))[scores.argmax(1)]), 8)
    return [*found, replace(shift, shifted=True)]


def _frame(x: np.ndarray, y: np.ndarray, identifier: bool = False) -> pandas.DataFrame:
    frame = pandas.DataFrame(x, columns=[f"c{i}" for i in range(x.shape[1])])
    if identifier:
        frame["patient"] = [f"p{i}" for i in range(len(x))]
    return frame.assign(target=y)


def _case(
    name: str, frame: pandas.DataFrame, clients: int | tuple[int, ...], task: str | None = None
) -> Case:
    table = from_frame(frame, name)
    schema = tabular.draft_schema([table], Wanted("target", task))
    shares = (1,) * clients if isinstance(clients, int) else clients
    return Case(name, schema.encode(table), schema.targets(table), schema, shares)


def plan_of(case: Case, records: int, epsilon: float, adversary: str, **settings: float) -> nbafl.Plan:
    """The plan `nbafl run` makes for such a folder; `settings` are what a newcomer leaves out."""
    return nbafl.Plan(
        sizes=case.sizes(records), sensitivity="gradient", features="raw", model="softmax", epsilon=epsilon, delta=DELTA,
        adversary=adversary, task=case.schema.task, feature_norm=case.schema.norm_bound, **settings,
    )  # fmt: skip


def train(case: Case, seeds: list[int], plans: list[nbafl.Plan]) -> tuple[np.ndarray, torch.Tensor]:
    """(scores (seeds, plans), final weights): one clipped mean gradient and Gaussian noise a round, all at once."""
    train_rows, test_rows = (
        np.stack(part) for part in zip(*(case.split(seed) for seed in seeds), strict=True)
    )
    x = np.concatenate([case.x, np.ones((len(case.x), 1), np.float32)], axis=1)
    x, y, z, t = (
        torch.from_numpy(a) for a in (x[train_rows], case.y[train_rows], x[test_rows], case.y[test_rows])
    )
    task, outputs = case.schema.task, case.schema.outputs
    count, records, width = x.shape
    truth = {
        "regression": lambda: y[:, :, None, None],
        "binary": lambda: y.float()[:, :, None, None],
        "classification": lambda: torch.nn.functional.one_hot(y, outputs).float()[:, :, None],
    }[task]()
    answer = {
        "regression": lambda out: 2 * out,
        "binary": torch.sigmoid,
        "classification": lambda out: out.softmax(3),
    }
    scale = 2 if task == "regression" else 1
    lr, clip, sigma = (
        torch.tensor(each, dtype=torch.float32)
        for each in (
            [plan.lr for plan in plans],
            [plan.record_clip for plan in plans],
            [plan.noise_scales().aggregate(plan.release()) for plan in plans],
        )
    )
    rounds = torch.tensor([plan.rounds for plan in plans])
    w = torch.zeros(count, len(plans), outputs, width)
    norms = x.norm(dim=2)[:, :, None]
    draw = torch.Generator().manual_seed(int(seeds[0]) * 7919 + plans[0].rounds)
    for number in range(int(rounds.max())):
        out = torch.bmm(x, w.flatten(1, 2).transpose(1, 2)).view(count, records, len(plans), outputs)
        slope = answer[task](out) - scale * truth
        slope = (
            slope * ((clip / (slope.norm(dim=3) * norms).clamp(min=1e-12)).clamp(max=1) / records)[..., None]
        )
        step = torch.bmm(slope.flatten(2).transpose(1, 2), x).view_as(w)
        noise = torch.randn(w.shape, generator=draw) * sigma[:, None, None]
        w = w + (rounds > number)[:, None, None] * (noise - lr[:, None, None] * step)
    out = torch.bmm(z, w.flatten(1, 2).transpose(1, 2)).view(count, -1, len(plans), outputs)
    if task == "regression":
        error = ((out[..., 0] - t[..., None]) ** 2).mean(1)
        return (1 - error / t.var(1, unbiased=False)[:, None]).numpy(), w
    chosen = (out[..., 0] > 0).long() if task == "binary" else out.argmax(3)
    return (chosen == t[..., None]).double().mean(1).numpy(), w


def constant_score(case: Case, seeds: list[int]) -> np.ndarray:
    """Of always answering the commonest class, or the mean."""
    if case.schema.classes is None:
        return np.zeros(len(seeds))
    rows = [case.split(seed) for seed in seeds]
    return np.array([(case.y[test] == np.bincount(case.y[kept]).argmax()).mean() for kept, test in rows])


def check(case: Case) -> None:
    """The trainer and the product agree without noise."""
    kept, _ = case.split(0)
    plan = plan_of(case, len(kept), 1.0, "eavesdropper", rounds=20, lr=0.7, record_clip=0.3).with_fields(
        noise=False
    )
    with tempfile.TemporaryDirectory() as folder:
        run = nbafl.simulate(plan, case.federation(0), out=Path(folder) / "run", report=False)
        weight, bias = run.model().state_dict().values()
    mine = train(case, [0], [plan])[1][0, 0]
    torch.testing.assert_close(mine, torch.cat([weight, bias[:, None]], 1), rtol=1e-3, atol=1e-4)


def compare(case: Case, epsilon: float, adversary: str, fresh: list[int]) -> dict[str, float]:
    records = len(case.split(0)[0])
    grid = [plan_of(case, records, epsilon, adversary, rounds=t, lr=lr, record_clip=g) for t, lr, g in GRID]
    winner = int(train(case, list(CHOOSING), grid)[0].mean(0).argmax())
    scores, _ = train(case, fresh, [plan_of(case, records, epsilon, adversary), grid[winner]])
    constant = constant_score(case, fresh)
    gap = scores[:, 0] - constant
    error = float(gap.std(ddof=1) / np.sqrt(len(fresh)))
    return {
        "ours": float(scores[:, 0].mean()),
        "winner": float(scores[:, 1].mean()),
        "constant": float(constant.mean()),
        "below_constant": float(gap.mean()) < -2 * error,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tables", nargs="*")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    fresh = list(range(2000, 2000 + asked.seeds))
    lines = [
        "| table | adversary | ε | newcomer | grid's winner | constant |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    gaps, below = [], 0
    for case in cases():
        if asked.tables and case.name not in asked.tables:
            continue
        check(case)
        for adversary, epsilon in itertools.product(ADVERSARIES, EPSILONS):
            found = compare(case, epsilon, adversary, fresh)
            gaps.append(found["winner"] - found["ours"])
            below += found["below_constant"]
            cells = " | ".join(f"{100 * found[name]:.1f}" for name in ("ours", "winner", "constant"))
            lines.append(f"| {case.name} | {adversary} | {epsilon:g} | {cells} |")
            print(lines[-1], flush=True)
    lines.append(
        f"\nPoints behind the winner, mean over all {len(gaps)}: {100 * np.mean(gaps):.2f} (largest "
        f"{100 * max(gaps):.1f}); below the constant predictor by more than two standard errors: {below} of {len(gaps)}."
    )
    print(lines[-1])
    if asked.out:
        asked.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
