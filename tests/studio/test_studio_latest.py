"""However fast questions come, only the newest is answered, and nothing piles up."""

from __future__ import annotations

import asyncio

from nicegui import Client, background_tasks, core, ui
from starlette.requests import Request

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


class Asked:
    """Work that waits at a gate and answers with the question; what came through is delivered."""

    def __init__(self, client: Client | None = None) -> None:
        self.delivered: list[int] = []
        self.gate = asyncio.Event()
        self.latest = Latest(client, self._work, lambda question, _: self.delivered.append(question))

    async def _work(self, question: int) -> int:
        await self.gate.wait()
        return question

    async def ask_first(self) -> None:
        self.latest.ask(1)
        await asyncio.sleep(0)


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

        latest = Latest(None, work, lambda *_: None, pause=1.0)
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
        while latest._busy:
            await asyncio.sleep(0.001)
        latest.ask(1)
        while not delivered:
            await asyncio.sleep(0.001)
        assert delivered == [1]

    _in_a_loop(scenario)


def test_nobody_works_for_a_page_that_was_closed_until_it_comes_back() -> None:
    async def scenario() -> None:
        asked = Asked()
        latest = asked.latest
        await asked.ask_first()
        assert latest.wanted
        latest.leave()
        assert not latest.wanted
        asked.gate.set()
        latest.ask(2)
        await asyncio.sleep(0.02)
        assert asked.delivered == []
        latest.come_back()
        while not asked.delivered:
            await asyncio.sleep(0.001)
        assert asked.delivered == [2]

    _in_a_loop(scenario)


def test_a_page_that_came_back_before_its_old_connection_was_missed_is_answered() -> None:
    """A busy machine notices a broken connection late: the end of the old one is told after the beginning of the new."""

    async def scenario() -> None:
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        client = Client(ui.page("/came-back", reconnect_timeout=60.0), request=Request(scope))
        asked = Asked(client)
        await client.handle_handshake("old", "tab", None, "document", None)
        await client.handle_handshake("new", "tab", None, "document", None)
        client.handle_disconnect("old")
        await asked.ask_first()
        asked.gate.set()
        async with asyncio.timeout(60):
            while not asked.delivered:
                await asyncio.sleep(0.001)
        assert asked.delivered == [1]
        client.handle_disconnect("new")
        assert not asked.latest.wanted
        client.delete()

    _in_a_loop(scenario)


def test_a_page_that_never_connected_is_not_answered_once_it_is_given_up() -> None:
    """A browser that fetched the page and went away leaves a page that is deleted after a while, work or no work."""

    async def scenario() -> None:
        client = Client(ui.page("/never-connected"), request=None)
        asked = Asked(client)
        await asked.ask_first()
        client.delete()
        asked.gate.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert asked.delivered == []
        assert not asked.latest.wanted

    _in_a_loop(scenario)


def test_an_error_in_one_answer_does_not_lose_the_question_asked_meanwhile() -> None:
    async def scenario() -> None:
        asked = Asked()
        broken = asyncio.Event()

        async def work(question: int) -> int:
            if question == 1:
                await broken.wait()
                raise OSError("the first one fails")
            return question

        asked.latest._work = work
        await asked.ask_first()
        asked.latest.ask(2)
        broken.set()
        async with asyncio.timeout(60):
            while not asked.delivered:
                await asyncio.sleep(0.001)
        assert asked.delivered == [2]

    _in_a_loop(scenario)


def test_nothing_is_asked_again_once_the_studio_ends() -> None:
    async def scenario() -> None:
        asked = Asked()
        await asked.ask_first()
        asked.latest.ask(2)
        cancelled = list(background_tasks.running_tasks)
        for task in cancelled:
            task.cancel()
        await asyncio.wait(cancelled, timeout=60)
        await asyncio.sleep(0)
        assert not [task for task in background_tasks.running_tasks if not task.done()]

    _in_a_loop(scenario)
