"""What ε means for one unit, in words a data owner can check: how often could the best guess be right?

The picture behind it: somebody knows every other record of the federation, has two candidates for the last one, both
equally likely, and names one after seeing what the adversary sees. A coin is right half of the time.
"""

from __future__ import annotations

import math

from nbafl.privacy.badges import percent
from nbafl.studio.answer import Answer
from nbafl.studio.wording import escape, short

SUBJECTS = {"client": "all data of one client", "person": "all records of one person"}
VERDICTS = (
    (0.52, "hardly better than a coin"),
    (0.60, "a little better than a coin"),
    (0.75, "clearly better than a coin"),
    (0.90, "right most of the time"),
    (0.99, "nearly always right"),
    (1.01, "practically always right"),
)


def verdict(guess: float) -> str:
    """The best guess in words."""
    return next(words for limit, words in VERDICTS if guess <= limit)


def heading(answer: Answer) -> str:
    """What the card is about."""
    return f"What it means for one {_thing(answer)}"


def draw(answer: Answer) -> str:
    """A gauge from coin to certainty, and three sentences."""
    guess = answer.guess
    position = max(0.0, min(100.0, 200 * (guess - 0.5)))
    return (
        f'<p class="big" data-guess="{guess!r}">{percent(guess)}</p>'
        f'<p class="big-label">is how often the best guess about one {_thing(answer)} can be right: '
        f"<b>{verdict(guess)}</b></p>"
        f'<div class="gauge" aria-hidden="true"><i style="left:{position:.2f}%"></i></div>'
        '<div class="gauge-ends" aria-hidden="true"><span>coin, 50%</span><span>certainty, 100%</span></div>'
        + "".join(f"<p>{sentence}</p>" for sentence in sentences(answer))
    )


def sentences(answer: Answer) -> list[str]:
    """What the number says, what ε and δ say, and what it all rests on."""
    found = [_picture(answer), *([] if answer.epsilon is None else [_definition(answer, answer.epsilon)])]
    if answer.summary["conditional"]:
        found.append(
            f"<b>Only{escape(answer.plan.rule.if_it_holds)}</b>, which it does not for general models. With clipping "
            "alone the "
            "numbers are far worse: see the bars."
        )
    return found


def _picture(answer: Answer) -> str:
    subject = SUBJECTS.get(_thing(answer), f"one {_thing(answer)}")
    return (
        f"Imagine somebody who knows everything in the federation except {subject}, for which there are two "
        f"candidates, and who sees {escape(answer.adversary.sees)}. They name the right candidate at most "
        f"{percent(answer.guess)} of the time."
    )


def _definition(answer: Answer, epsilon: float) -> str:
    """(ε, δ) as defined, not as beliefs: that odds grow by more than e^ε has a chance that may be many times δ."""
    factor, delta = (
        short(math.exp(epsilon), 3) if epsilon < 700 else f"e<sup>{short(epsilon)}</sup>",
        answer.plan.delta,
    )
    return (
        f"What ε and δ say: the chance of any conclusion they may draw is at most e<sup>ε</sup> = {factor} times what it "
        f"would be with another {_thing(answer)}, plus δ = {short(delta)}. A test that raises a false alarm in 1 case of "
        f"100 detects at most {percent(answer.detected)} (ε = {short(epsilon)} against "
        f"{escape(answer.adversary.name)})."
    )


def _thing(answer: Answer) -> str:
    """The unit that the claim protects."""
    return str(answer.summary["claimed"]["unit"])
