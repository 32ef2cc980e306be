"""The first thing on the Plan page: what this is, in one sentence, and three goals to start from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nicegui import ui

from nbafl.presets import PRESETS
from nbafl.studio import layout

SENTENCE = (
    "Several parties train one model together and add noise to what they send: plan here how much, and read at once what "
    "that protects, against whom, and what it costs."
)
STRONG = 3.0
Start = Callable[[dict[str, Any]], None]


def build(start: Start, own_data: Callable[[], None]) -> None:
    """Lay out the sentence and the goals; `start` begins from fields, `own_data` asks for a folder."""
    with layout.card("goals"):
        layout.markup(SENTENCE, tag="p")
        with ui.element("div").classes("goal-row").props('role="group" aria-label="Start from a goal"'):
            _goal(
                f"I need ε ≤ {STRONG:g}",
                "a guarantee that holds, on MNIST",
                "epsilon",
                lambda: start({**PRESETS["private"], "epsilon": STRONG}),
            )
            _goal(
                "Reproduce the paper",
                "its setting and its own noise",
                "paper",
                lambda: start(PRESETS["paper"]),
            )
            _goal("My own data", "a folder with a table per party", "own-data", own_data)


def _goal(title: str, about: str, name: str, act: Callable[[], None]) -> None:
    with ui.button(on_click=act).props(f"outline no-caps data-goal={name}").classes("goal"):
        layout.markup(f"<b>{title}</b><small>{about}</small>", tag="span")
