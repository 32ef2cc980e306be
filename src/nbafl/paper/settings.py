"""Under which numbers the figures are made, in one place.

The paper does not state m, C, L, mu or the local iterations. These are the values under which its figures come out
(math.md, section 13): 100 records a client, C = 10, L = 1, five full-batch steps of 0.1, mu = 0. Figures 8 and 9 need
lambda_2 < 0 and use a mu of their own, the same for the bound and for the experiment beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nbafl.plan import Plan
from nbafl.presets import PRESETS

CALIBRATIONS = ("paper", "exact")


@dataclass(frozen=True)
class Settings:
    """The paper's numbers, ours where it gives none, and the grids of T and K (chosen once)."""

    clients: int = 50
    samples: int = 100
    rounds: int = 25
    per_round: int = 20
    delta: float = 0.01
    exposures: int = 1
    clip: float = 10.0
    local_steps: int = 5
    lr: float = 0.1
    mu: float = 0.0
    mu_bound: float = (
        6.0  # figures 8 and 9: the smallest whole mu where both forms of the bound have a domain
    )
    epsilons: tuple[float, ...] = (50.0, 60.0, 100.0)  # figures 2 to 5 and 8
    epsilon_clients: float = 60.0  # figures 6 and 7
    epsilons_bound: tuple[float, ...] = (60.0, 100.0)  # figure 9
    epsilons_rounds: tuple[float, ...] = (60.0, 80.0)  # figure 10
    epsilons_drawn: tuple[float, ...] = (
        50.0,
        60.0,
        80.0,
        100.0,
    )  # figure 11: the text's 80 and the caption's 100
    client_grid: tuple[int, ...] = (50, 60, 80, 100)
    round_grid: tuple[int, ...] = (5, 10, 15, 20, 25, 30, 40, 60, 100)
    drawn_grid: tuple[int, ...] = (5, 10, 20, 30, 40, 45, 50)
    bound_rounds: int = 600  # figure 8 draws the bound up to here

    def plan(
        self,
        calibration: str,
        epsilon: float | None,
        *,
        clients: int | None = None,
        per_round: int | None = None,
        rounds: int | None = None,
        mu: float | None = None,
        seed: int = 0,
    ) -> Plan:
        """One training of the paper as a Plan; epsilon None is the non-private run (clipping stays)."""
        own: dict[str, Any] = {
            "clients": clients or self.clients,
            "per_round": per_round,
            "rounds": rounds or self.rounds,
            "samples": self.samples,
            "epsilon": epsilon or 1.0,
            "noise": epsilon is not None,
            "delta": self.delta,
            "exposures": self.exposures,
            "calibration": calibration,
            "clip": self.clip,
            "local_steps": self.local_steps,
            "lr": self.lr,
            "mu": self.mu if mu is None else mu,
            "seed": seed,
        }
        return Plan(**{**PRESETS["paper"], **own})


def describe(settings: Settings) -> str:
    """The setting in one sentence, for captions and pages."""
    return (
        f"MLP 784-256-10 on MNIST, {settings.samples} records a client, C={settings.clip:g}, L={settings.exposures}, "
        f"{settings.local_steps} full-batch local steps of {settings.lr:g}, mu={settings.mu:g} "
        f"(figures 8 and 9: mu={settings.mu_bound:g}), delta={settings.delta:g}"
    )
