"""What is done between a commit and its sending over PostgreSQL, and between a question and its answer: counted in turns and timers of the loop, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest
from tests.postgres.proxy import Proxy
from tests.postgres.server import shared

from holdfast.stores import PostgresStore
from holdfast.stores.postgres import connection, news
from holdfast.stores.postgres.commits import Committer
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


async def test_a_commit_is_put_off_only_where_others_may_join_it(monkeypatch: pytest.MonkeyPatch, sent: list[int]) -> None:
    """Where nothing else is to be done in this turn of the loop, nobody comes before the next one."""
    store = PostgresStore(f"{shared().fresh()}&listen=")
    await store.open()
    await store.register("w", TTL)
    loop, put_off = asyncio.get_running_loop(), 0
    call_soon = loop.call_soon

    def noted(callback: Callable[..., Any], *given: Any, **more: Any) -> asyncio.Handle:
        nonlocal put_off
        put_off += getattr(callback, "__func__", None) is Committer._flush
        return call_soon(callback, *given, **more)

    monkeypatch.setattr(loop, "call_soon", noted)
    sent.clear()
    await asyncio.sleep(0)  # what the registration has left to be done
    script = await Script(store, "r0").begin("w")
    await script.steps(2)
    await script.wait()
    assert (put_off, len(sent)) == (0, 4)
    sent.clear()
    await asyncio.gather(*[Script(store, f"r{n}").begin("w") for n in range(1, 20)])
    assert (put_off, len(sent)) == (1, 1), "births of one turn still go together"
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
