"""What is done between a commit and its sending over PostgreSQL, and between a question and its answer: counted in turns and timers of the loop, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from tests.postgres.proxy import Proxy
from tests.postgres.server import shared

from holdfast.engine.base.begun import Rest
from holdfast.stores import PostgresStore
from holdfast.stores.postgres import connection, news
from holdfast.stores.postgres.connection import _Room
from holdfast.stores.postgres.wire import Connection, Exchange, Statement
from holdfast.testing.conformance import TTL, Script


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many statements went together, for each time that anything was sent."""
    found: list[int] = []
    begin = Connection.begin

    def noted(self: Connection, asked: Sequence[Statement], over: Callable[[], None]) -> Exchange:
        found.append(len(asked))
        return begin(self, asked, over)

    monkeypatch.setattr(Connection, "begin", noted)
    return found


async def test_the_first_commit_of_a_turn_is_sent_in_it_while_they_come_one_by_one(sent: list[int]) -> None:
    """Those that come with it go together at the end of the turn, and from then on all of a turn do, until one comes alone again."""
    store = PostgresStore(f"{shared().fresh()}&listen=")
    await store.open()
    await store.register("w", TTL)

    async def at_once(name: str) -> int:
        """How many statements are sent before the loop has had a turn."""
        sent.clear()
        begins = Script(store, name).begin("w")
        waiting = begins.send(None)
        count = len(sent)
        await Rest(begins, waiting)
        return count

    async def crowd(name: str) -> int:
        """How many statements the births of one turn are."""
        sent.clear()
        await asyncio.gather(*[Script(store, f"{name}{n}").begin("w") for n in range(20)])
        return len(sent)

    assert (await at_once("alone"), await at_once("again")) == (1, 1)
    assert await crowd("a") > 1, "the first, and those that came with it over another connection"
    assert (await crowd("b"), await crowd("c")) == (1, 1)
    assert (await at_once("after"), await at_once("then"), await at_once("on")) == (0, 1, 1)
    await store.close()


async def test_questions_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is answered long before it would be too late; one that is not is left all the same, also behind one that had more time."""
    async with Proxy(shared().folder) as proxy:
        shared().fresh()
        store = PostgresStore(f"{proxy.url}&listen=")
        await store.open()
        await store.shelve("cups", {"a": b"1"})
        assert await store.find_shelved("cups", "a") == b"1"
        loop, timers = asyncio.get_running_loop(), 0
        call_at = loop.call_at

        def noted(*given: Any, **more: Any) -> asyncio.TimerHandle:
            nonlocal timers
            timers += 1
            return call_at(*given, **more)

        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_at", noted)
            for _ in range(10):
                assert await store.find_shelved("cups", "a") == b"1"
            assert timers == 0, "that of the first is still there"
        before = proxy.served
        monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.2)
        proxy.stall()
        asking = asyncio.ensure_future(store.find_shelved("cups", "a"))
        await asyncio.wait([asking], timeout=0.3)
        proxy.heal()
        assert await asking == b"1"
        assert proxy.served > before, "over another connection"
        await store.close()


async def test_others_are_told_by_the_first_transaction_and_then_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes within the quiet after it is told together when that is over; to be quiet takes no task."""
    monkeypatch.setattr(news, "QUIET", 0.5)
    store = PostgresStore(shared().fresh())
    await store.open()
    await store.register("w", TTL)
    with psycopg.connect(shared().dsn(), autocommit=True) as listening:
        listening.execute("LISTEN holdfast_news")
        assert store._news._saying is None
        tasks = asyncio.all_tasks()
        await Script(store, "r0").submit()
        assert asyncio.all_tasks() == tasks
        for n in range(1, 5):
            await Script(store, f"r{n}").submit()
        heard = await asyncio.to_thread(lambda: list(listening.notifies(timeout=1.5)))
    assert [told.payload.split()[0] for told in heard] == ["3", "3"]
    await store.close()


async def test_whoever_has_waited_longest_has_the_room_that_becomes_free() -> None:
    room = _Room(1)
    await room.enter()
    assert not room.enter_now()
    first, second, third = (asyncio.ensure_future(room.enter()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    room.leave()
    second.cancel()  # it has the room, and goes before it knows
    await asyncio.wait([second])
    await asyncio.wait_for(third, 5)
    assert not room.enter_now()
    room.leave()
    assert room.enter_now()
