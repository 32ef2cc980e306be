"""Plans in the paper's setting with exact noise, as 0.1.0 had them by default: small, and quick to train.

Tests of mechanisms start here; tests of the defaults use `nbafl.plan.Plan`.
"""

from __future__ import annotations

from typing import Any

import nbafl.plan
from nbafl.plan_file import FOLLOWS
from nbafl.presets import FIRST_RELEASE

SETTING = {name: value for name, value in FIRST_RELEASE.items() if name not in FOLLOWS and value is not None}
OPTIONS = ("--preset", "paper", "--calibration", "exact", "--mu", "0.01")
"""The same on the command line."""


class Plan(nbafl.plan.Plan):
    """A plan whose unset fields are the paper's."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{**SETTING, **fields})
