"""The look ahead draws what `nbafl plan --bounds` says, and says what it assumes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

import pytest
from tests.paper_setting import Plan

import nbafl
from nbafl.errors import DataError, Refused
from nbafl.studio import predictions
from nbafl.studio.background import Background
from nbafl.studio.predictions import Source, known_sources, nearest
from nbafl.theory.planning import plan_bounds


@pytest.fixture(scope="module")
def source() -> Source:
    return known_sources(None)[1]


@pytest.fixture(scope="module")
def found(source: Source) -> dict:
    return predictions.look_ahead(Plan().model_dump(), source.knowledge)


def test_the_curves_are_those_of_plan_bounds(source: Source, found: dict) -> None:
    assert found == plan_bounds(Plan(), source.knowledge)
    for over, now in (("rounds", 25), ("per_round", 50)):
        swept = found["curves"][over]["empirical"]
        line, best = predictions.curve(found, "empirical", over, now)["data"]
        assert (line["x"], line["y"]) == (swept["candidates"], swept["values"])
        assert (best["x"], best["y"]) == ([swept["at"]], [min(line["y"])])
        assert best["text"] == [f"best {'T' if over == 'rounds' else 'K'} = {swept['at']}"]


def test_the_valley_is_in_sight(found: dict) -> None:
    for over in ("rounds", "per_round"):
        drawn = predictions.curve(found, "empirical", over, 25)
        low, high = drawn["layout"]["yaxis"]["range"]
        assert low < drawn["data"][1]["y"][0] < high


def test_a_form_without_a_value_has_no_curve_but_a_reason(found: dict) -> None:
    assert found["best"]["printed"] is None
    assert predictions.curve(found, "printed", "rounds", 25) is None
    assert "lambda_2" in predictions.reason(found, "printed")
    assert predictions.here(found, "printed") == "no value for this plan"
    assert "best T = " in predictions.here(found, "empirical")


def test_the_best_t_moves_with_the_claim_and_names_who_it_is_against(found: dict) -> None:
    said = predictions.moves(found, Plan(), "empirical")
    assert "δ = 0.01, eavesdropper" in said
    assert "ε = 100" in said
    assert predictions.moves(found, Plan(), "printed") == ""
    assert predictions.moves(found, Plan(noise=False), "empirical") == ""


def test_what_is_assumed_is_said(source: Source) -> None:
    assert "public MNIST" in predictions.caption(source, Plan())
    assert "differs" not in predictions.caption(source, Plan(epsilon=3, rounds=7, per_round=9))
    assert "differs from that pilot in clients and model" in predictions.caption(
        source, Plan(clients=20, model="softmax")
    )


def test_the_default_plan_and_the_papers_setting_have_a_pilot_each(source: Source) -> None:
    shipped = known_sources(None)
    assert [each.differs(plan) for each, plan in zip(shipped, (nbafl.Plan(), Plan()), strict=True)] == [
        [],
        [],
    ]
    assert nearest(shipped, nbafl.Plan(epsilon=1.1)) is shipped[0]
    assert nearest(shipped, Plan(clients=20)).about == source.about


def test_a_file_of_constants_is_used_and_a_broken_one_refused(tmp_path, source: Source) -> None:
    kept = tmp_path / "constants.json"
    source.knowledge.save(kept)
    (own,) = known_sources(str(kept))
    assert own.knowledge == source.knowledge
    assert str(kept) in predictions.caption(own, Plan())
    assert own.differs(Plan(clients=7)) == ["clients"]
    kept.write_text(json.dumps({"rho": 1}))
    with pytest.raises(DataError, match="constants"):
        known_sources(str(kept))


async def _in_the_workshop() -> None:
    background = Background()
    try:
        assert await background.make(sum, [1, 2]) == 3
        process = await background.make(os.getpid)
        assert process != os.getpid()
        assert await background.make(os.getpid, wanted=lambda: False) is None
        with pytest.raises(Refused, match="epsilon must be at least 0"):
            await background.make(predictions.measure, {"epsilon": -1.0})
        with pytest.raises(Refused, match="ended by the system"):
            await background.make(os.kill, process, signal.SIGKILL)
        again = await background.make(os.getpid)
        assert again not in (process, os.getpid())
    finally:
        background.close()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            os.kill(again, 0)
        except ProcessLookupError:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the background's process outlived it")


def test_the_workshop_computes_elsewhere_refuses_in_sentences_and_recovers() -> None:
    asyncio.run(_in_the_workshop())
