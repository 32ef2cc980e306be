"""However fast questions come, only the newest is answered, and nothing piles up."""

from __future__ import annotations

import asyncio

from nicegui import Client, background_tasks, core, ui

from nbafl.studio.latest import Latest


def _in_a_loop(scenario) -> None:
    async def main() -> None:
        core.loop = asyncio.get_running_loop()
        try:
            await scenario()
        finally:
            core.loop = None
            background_tasks.running_tasks.clear()

    asyncio.run(main())


def test_questions_that_were_overtaken_are_not_answered() -> None:
    async def scenario() -> None:
        worked, delivered = [], []
        gate = asyncio.Event()

        async def work(question: int) -> int:
            worked.append(question)
            await gate.wait()
            return question * 10

        latest = Latest(None, work, lambda question, reply: delivered.append((question, reply)))
        for question in range(50):
            latest.ask(question)
            await asyncio.sleep(0)
        assert worked == [0]
        gate.set()
        while len(delivered) < 2:
            await asyncio.sleep(0.001)
        assert delivered == [(0, 0), (49, 490)]

    _in_a_loop(scenario)


def test_with_a_pause_work_waits_until_questions_stop() -> None:
    async def scenario() -> None:
        worked = []

        async def work(question: int) -> None:
            worked.append(question)

        latest = Latest(None, work, lambda *_: None, pause=0.3)
        for question in range(10):
            latest.ask(question)
            await asyncio.sleep(0)
        assert worked == []
        while not worked:
            await asyncio.sleep(0.01)
        assert worked == [9]

    _in_a_loop(scenario)


def test_work_that_fails_does_not_end_the_answering() -> None:
    async def scenario() -> None:
        delivered = []

        async def work(question: int) -> int:
            if question == 0:
                raise ValueError("on purpose")
            return question

        latest = Latest(None, work, lambda question, _: delivered.append(question))
        latest.ask(0)
        await asyncio.sleep(0.02)
        latest.ask(1)
        await asyncio.sleep(0.02)
        assert delivered == [1]

    _in_a_loop(scenario)


def test_nobody_works_for_a_page_that_was_closed_until_it_comes_back() -> None:
    async def scenario() -> None:
        delivered = []
        gate = asyncio.Event()

        async def work(question: int) -> int:
            await gate.wait()
            return question

        latest = Latest(None, work, lambda question, _: delivered.append(question))
        latest.ask(1)
        await asyncio.sleep(0)
        assert latest.wanted
        latest.leave()
        assert not latest.wanted
        gate.set()
        latest.ask(2)
        await asyncio.sleep(0.02)
        assert delivered == []
        latest.come_back()
        while not delivered:
            await asyncio.sleep(0.001)
        assert delivered == [2]

    _in_a_loop(scenario)


def test_a_page_that_never_connected_is_not_answered_once_it_is_given_up() -> None:
    """A browser that fetched the page and went away leaves a page that is deleted after a while, work or no work."""

    async def scenario() -> None:
        delivered = []
        gate = asyncio.Event()

        async def work(question: int) -> int:
            await gate.wait()
            return question

        client = Client(ui.page("/never-connected"), request=None)
        latest = Latest(client, work, lambda question, _: delivered.append(question))
        latest.ask(1)
        await asyncio.sleep(0)
        client.delete()
        gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert delivered == []
        assert not latest.wanted

    _in_a_loop(scenario)
