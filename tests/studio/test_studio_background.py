"""Computations beside the web process: given up when nobody waits or when they take too long, and never a dead end."""

from __future__ import annotations

import asyncio
import time

import pytest

from nbafl.studio.background import Background, Declined
from nbafl.studio.draft import Draft


def _in_the_background(scenario) -> None:
    async def main() -> None:
        background = Background(2)
        try:
            await scenario(background)
        finally:
            background.close()

    asyncio.run(main())


def test_long_work_is_given_up_and_the_next_question_is_answered() -> None:
    async def scenario(background: Background) -> None:
        with pytest.raises(Declined, match=r"longer than 0\.2 s"):
            await background.make(time.sleep, 3600, limit=0.2)
        assert await background.make(sum, [1, 2]) == 3
        wanted = [True]
        asyncio.get_running_loop().call_later(0.1, wanted.clear)
        assert await background.make(time.sleep, 3600, wanted=lambda: bool(wanted)) is None
        with pytest.raises(Declined) as refusal:
            await background.make(Draft.from_query({"epsilon": "1e300"}).plan)
        assert refusal.value.field == "epsilon"

    _in_the_background(scenario)


def test_one_page_does_not_wait_for_another() -> None:
    async def scenario(background: Background) -> None:
        slow = asyncio.create_task(background.make(time.sleep, 3600))
        await asyncio.sleep(0)
        assert await background.make(sum, [1, 2]) == 3
        assert not slow.done()
        slow.cancel()

    _in_the_background(scenario)
