"""The questions that NIST SP 800-226 asks of a differential privacy claim, answered from plan, facts and statement."""

from __future__ import annotations

from typing import Any

from nbafl.folders.facts import Facts
from nbafl.privacy import adversary, badges

Answer = dict[str, str]


def answers(facts: Facts | None, statement: dict[str, Any]) -> list[Answer]:
    """Question and answer, the claim first, then what it rests on."""
    return [
        {"question": question, "answer": answer}
        for question, answer in (
            ("What is claimed?", _claim(statement)),
            ("What is the unit of privacy?", statement["sentences"][0]),
            ("Which data sets are neighbours (adjacency)?", _adjacency(statement)),
            ("Who is trusted, and against whom does it hold?", _trust(statement)),
            ("How is the loss accounted for?", _accounting(statement)),
            ("Which mechanism, and how far can one unit move its input?", _mechanism(statement)),
            ("What could an attacker still do?", _attack(statement)),
            ("Which hazards does the implementation have?", _hazards(facts)),
            ("Was anything chosen by looking at the private data?", _choices(statement)),
            ("What is not covered?", _sentence("; ".join(statement["not_covered"])) + "."),
            ("What does it rest on?", " ".join(statement["assumptions"])),
        )
    ]


def _claim(statement: dict[str, Any]) -> str:
    claimed = statement["claimed"]
    if claimed["epsilon"] is None:
        return "Nothing: the run added no noise."
    kept = "It is kept" if statement["delivers_claim"] else "It is NOT kept"
    worth = "no finite epsilon" if statement["epsilon"] is None else f"epsilon {statement['epsilon']:.6g}"
    condition = "" if statement["sensitivity"]["verified"] else ", on an unproved premise"
    return (
        f"(epsilon, delta)-differential privacy with epsilon {claimed['epsilon']:g} at delta {claimed['delta']:g} against "
        f"{claimed['adversary']}, per {statement['unit']}. {kept}: the noise is worth {worth}{condition}."
    )


def _adjacency(statement: dict[str, Any]) -> str:
    unit = statement["unit"]
    if statement["adjacency"] == "drop":
        return f"Those in which one {unit}'s data are there or left out."
    return f"Those in which one {unit} is replaced by any other; how many there are is public."


def _trust(statement: dict[str, Any]) -> str:
    worth = ", ".join(
        f"{adversary.name_of(name)}: {'nothing holds' if each['epsilon'] is None else format(each['epsilon'], '.6g')}"
        for name, each in sorted(statement["guarantee"].items())
    )
    return f"{statement['sentences'][1]} Epsilon at delta {statement['delta']:g} for each adversary: {worth}."


def _sentence(text: str) -> str:
    """With a large first letter, the others as they are."""
    return text[:1].upper() + text[1:]


def _accounting(statement: dict[str, Any]) -> str:
    return f"{_sentence(statement['accountant'])}; over all {covered(statement)} together."


def covered(statement: dict[str, Any]) -> str:
    """What an epsilon covers, in words: rounds, those of the runs that this one continues among them, and noisy scores."""
    own, before = (
        statement["mechanism"]["rounds"],
        sum(each["rounds"] for each in statement.get("continues", ())),
    )
    rounds = f"{own + before} rounds" + (f" ({before} of them of the runs before)" if before else "")
    scores = statement.get("evaluation")
    return rounds + (f" and {scores['counts']} noisy scores of each client" if scores else "")


def _mechanism(statement: dict[str, Any]) -> str:
    mechanism, sensitivity = statement["mechanism"], statement["sensitivity"]
    return (
        f"{mechanism['name']} noise ({mechanism['calibration']} calibration, {mechanism['aggregation']} aggregation), of "
        f"standard deviation {mechanism['sigma_aggregate']:.6g} in each broadcast. One unit moves an upload by at most "
        f"{sensitivity['uplink']:.6g} ({sensitivity['model']}: {sensitivity['premise']})"
    )


def _attack(statement: dict[str, Any]) -> str:
    if statement["epsilon"] is None:
        return "Everything: no finite epsilon holds."
    tests = "; ".join(
        f"at {100 * each['false_positive_rate']:g}% false alarms it detects at most "
        f"{badges.percent(each['true_positive_rate'])}"
        for each in statement["attack"]
    )
    return f"The best test against one {statement['unit']}, by the adversary named above: {tests}."


def _hazards(facts: Facts | None) -> str:
    if facts is not None and facts.where == "federation":
        return (
            "Floating point: noise is drawn by an integer sampler on a grid and uploads are clipped again in float64. "
            "Randomness: the operating system's. Repetition: every upload is on the client's ledger before it leaves, and "
            "the same request gets the same bytes. Timing, message sizes and memory are not hidden."
        )
    return (
        "This was a simulation: its noise is floating-point and follows from the seed in the plan, so anyone who "
        "knows the seed can subtract it. It shows what a federation of this plan would give; it does not protect "
        "a model that is given away."
    )


def _choices(statement: dict[str, Any]) -> str:
    read = [
        each
        for each in statement["not_covered"]
        if each.endswith("read from the private records before training")
    ]
    known = "; ".join(read) if read else "Nothing that this run's folder tells of"
    return f"{_sentence(known)}. Choices made before the run by looking at private data leave no trace here."
