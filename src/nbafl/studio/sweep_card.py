"""A sweep as one item of the list: how many runs it holds, its settings with mean and deviation, the best one marked."""

from __future__ import annotations

from typing import Any

from nbafl.studio.run_folders import Entry
from nbafl.studio.wording import SCROLL, escape, short

PRIVACY = ("real_epsilon", "delta", "against", "unit", "premise")
MEASURED = ("test_accuracy", "test_loss", "train_loss")


def draw(entry: Entry) -> str:
    """The card's content as HTML."""
    made = entry.made or {}
    settings = [each for each in made.get("settings") or [] if isinstance(each, dict)]
    if not settings:
        return (
            '<p class="soft">This sweep is not finished: its table is written with the last run. Its runs lie in '
            f"<code>{escape(entry.path / 'runs')}</code>.</p>"
        )
    axes = [
        name for name in settings[0] if name not in (*PRIVACY, "seeds", "best") and _plain(settings[0][name])
    ]
    measures = [name for name in MEASURED if any(_mean(each, name) is not None for each in settings)]
    heads = ["", *axes, "seeds", *measures, "real ε", "against", "δ", "unit"]
    cells = "".join(f'<th scope="col">{escape(head.replace("_", " "))}</th>' for head in heads)
    rows = "".join(_row(each, axes, measures) for each in settings)
    return (
        f"<p>{len(made.get('runs') or [])} runs over {len(settings)} settings; scored on {escape(made.get('score_on'))}.</p>"
        f'{SCROLL}<table class="compare overview"><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></div>'
        '<p class="caption">★ the best mean. Trying many settings on private data costs privacy too: see the sweep’s own '
        "page.</p>"
    )


def _row(setting: dict[str, Any], axes: list[str], measures: list[str]) -> str:
    values = [
        "★" if setting.get("best") else "",
        *(_shown(setting[name]) for name in axes),
        _shown(setting.get("seeds")),
        *(_measured(setting, name) for name in measures),
        f"{_shown(setting.get('real_epsilon'))} {setting.get('premise') or ''}".strip(),
        *(_shown(setting.get(name)) for name in ("against", "delta", "unit")),
    ]
    return "<tr>" + "".join(f"<td>{escape(value)}</td>" for value in values) + "</tr>"


def _measured(setting: dict[str, Any], name: str) -> str:
    mean, deviation = _mean(setting, name), setting[name].get("deviation")
    if mean is None:
        return "–"
    if not name.endswith("accuracy"):
        return short(mean)
    return f"{mean:.1%}" + (f" ± {deviation:.1%}" if isinstance(deviation, int | float) else "")


def _mean(setting: dict[str, Any], name: str) -> float | None:
    found = setting.get(name)
    return found.get("mean") if isinstance(found, dict) else None


def _plain(value: object) -> bool:
    return not isinstance(value, dict)


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return short(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
