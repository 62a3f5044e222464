"""Plans over PostgreSQL that are made while nobody waits (stores/postgres/ahead.py, decision 101)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from tests.postgres.server import shared

from holdfast.ports import Claims
from holdfast.stores import PostgresStore
from holdfast.stores.postgres import connection
from holdfast.stores.postgres.ahead import FORCED, LEFT_ALONE, Ahead
from holdfast.stores.postgres.connection import Connections, Held, connect, place
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.wire import GREATEST_AGE, Connection, Plans, Rows, Statement
from holdfast.testing.conformance import TTL, Script, signal

ASKED = ("SELECT %s::int", (1,))
PLANS = "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement = 'SELECT $1::int'"
ROWS = "SELECT r::text FROM holdfast.run r UNION ALL SELECT d::text FROM holdfast.doc d UNION ALL SELECT l::text FROM holdfast.log l UNION ALL SELECT i::text FROM holdfast.inbox i ORDER BY 1"


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        for _ in iter(so, True):
            await asyncio.sleep(0)


def test_a_plan_is_lacking_until_it_lasts_and_once_more_after_it_was_let_go_of() -> None:
    clock = Clock()
    plans = Plans(clock)
    assert (plans.count_lacking("a", FORCED), plans.count_lacking("a", LEFT_ALONE)) == (1, 6)
    for left in (5, 4, 3, 2, 1, 0, 0):
        plans.use("a")
        assert (plans.count_lacking("a", FORCED), plans.count_lacking("a", LEFT_ALONE)) == (0, left)
    plans.use("b")
    clock.now = GREATEST_AGE
    assert plans.count_lacking("a", LEFT_ALONE) == 1, "it is made anew with the next use"
    plans.let_go()
    assert [plans.count_lacking(text, LEFT_ALONE) for text in "abc"] == [1, 5, 6]
    plans.use("a")
    plans.use("b")
    assert [plans.count_lacking(text, LEFT_ALONE) for text in "abc"] == [0, 4, 6]
    assert [plans.count_lacking(text, FORCED) for text in "abc"] == [0, 0, 1]


@pytest.fixture
def at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection counts as being at rest at once."""
    monkeypatch.setattr(connection, "AT_REST", 0.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Watched(Connections):
    """A pool of two connections that counts what it sends by itself or is asked at once, and how much of that is not answered."""

    def __init__(self, clock: Clock) -> None:
        async def check(db: Connection) -> None:
            self.made.append(db)

        super().__init__(place(shared().fresh("ahead")), check=check, clock=clock)
        self.made: list[Connection] = []
        self.sent: list[Sequence[Statement]] = []
        self.waiting = 0

    def send(self, held: Held, asked: Sequence[Statement], seconds: float, over: Callable[[list[Rows] | BaseException], None]) -> None:
        def answered(found: list[Rows] | BaseException) -> None:
            self.waiting -= 1
            over(found)

        self.sent.append(asked)
        self.waiting += 1
        super().send(held, asked, seconds, answered)

    def count_lacking(self, uses: int) -> list[int]:
        return [db.plans.count_lacking(ASKED[0], uses) for db in self.made]

    async def rest(self) -> None:
        """Waits until there is nothing left to do."""
        await until(lambda: self.waiting == 0 and not any(self.count_lacking(FORCED)))

    async def plans(self) -> list[tuple[int, int]]:
        """How often each connection has planned the statement for one use, and for any."""
        found = [await db.ask((PLANS, None)) for db in self.made]
        return [rows[0] if rows else (0, 0) for (rows,) in found]


@pytest.fixture
async def pool(clock: Clock, at_rest: None) -> AsyncIterator[Watched]:
    made = Watched(clock)
    async with made.hold(), made.hold():
        pass
    assert len(made.made) == 2
    yield made
    await made.close()


async def test_each_connection_at_rest_has_the_plans_of_what_was_read(pool: Watched, clock: Clock) -> None:
    pool.expect([ASKED], LEFT_ALONE)
    await until(lambda: pool.waiting == 0 and not any(pool.count_lacking(LEFT_ALONE)))
    assert await pool.plans() == [(5, 1), (5, 1)]
    clock.now = 1.5
    pool.expect([ASKED], LEFT_ALONE)
    await pool.rest()
    assert await pool.plans() == [(5, 2), (5, 2)], "once more, as the plans were let go of"
    sent = len(pool.sent)
    pool.expect([ASKED], LEFT_ALONE)
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(pool.sent) == sent, "they have them"


async def test_what_is_in_use_is_left_alone_and_so_is_a_pool_that_others_ask(pool: Watched) -> None:
    async with pool.hold(), pool.hold():
        pool.expect([ASKED], FORCED)
        for _ in range(50):
            await asyncio.sleep(0)
        assert pool.sent == []
    asking = pool.at_once([("SELECT pg_sleep(0.01)", None)])
    assert asking is not None
    pool.expect([ASKED], FORCED)
    while not asking.done():
        assert len(pool.sent) == 1, "whoever asks is not to wait for it"
        await asyncio.sleep(0)
    await pool.rest()
    assert len(pool.sent) > 2


async def test_what_was_not_read_for_a_minute_is_forgotten(clock: Clock) -> None:
    db = await connect(place(shared().fresh("ahead")), clock=clock)
    ahead = Ahead(clock)
    ahead.expect([("BEGIN", None), ASKED], 2)
    assert ahead.list_lacking(db) == [("BEGIN", None), ASKED] * 2
    db.prepares = False
    assert ahead.list_lacking(db) == [], "behind a pooler nothing is kept"
    db.prepares = True
    assert ahead.expects()
    clock.now = GREATEST_AGE + 1
    assert not ahead.expects() and ahead.list_lacking(db) == []
    await db.close()


async def test_a_read_that_fails_is_not_asked_for_ever(pool: Watched) -> None:
    fails = ("SELECT 1 / %s::int", (0,))
    pool.expect([fails], FORCED)
    await until(lambda: len(pool.sent) >= 2 and pool.waiting == 0)
    for _ in range(200):
        await asyncio.sleep(0)
    assert 2 <= len(pool.sent) <= 6 and pool.waiting == 0
    answer = pool.at_once([ASKED])
    assert answer is not None and await answer == [[(1,)]], "its connection is at rest again"


async def test_a_pool_that_is_closed_asks_nothing_more(pool: Watched) -> None:
    pool.expect([ASKED], FORCED)
    await pool.close()
    for _ in range(50):
        await asyncio.sleep(0)
    assert pool.sent == []


async def test_a_crowded_server_is_asked_nothing_ahead(pool: Watched) -> None:
    pool.crowded = True
    pool.expect([ASKED], FORCED)
    for _ in range(50):
        await asyncio.sleep(0)
    assert pool.sent == []


async def test_what_is_read_ahead_changes_nothing(at_rest: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among it is a claim: it takes nothing, though runs are due."""
    ahead: list[str] = []
    listed = Ahead.list_lacking

    def noted(self: Ahead, db: Connection) -> list[Statement]:
        found = listed(self, db)
        ahead.extend(text for text, _ in found)
        return found

    monkeypatch.setattr(Ahead, "list_lacking", noted)
    monkeypatch.setattr(Plans, "count_lacking", lambda self, text, uses: 1)
    store = PostgresStore(shared().fresh("ahead") + "&listen=", clock=lambda: 0.0)
    await store.open()
    await store.register("w", TTL)
    for _ in range(3):
        assert await store.claim_or_load("w", (), None, limit=5) == Claims()
    for name in ("r1", "r2", "r3"):
        await Script(store, name).submit()
    await store.put(signal("r1", "k", store.now()))
    await store.load_if_ended("r1")
    assert len(await store.claim("w", (), None, limit=1)) == 1
    with shared().admin("ahead") as db:
        before = db.execute(ROWS).fetchall()
        assert len(before) == 10, "three runs, each in two rows and with a row of its log, and what is in an inbox"
        for _ in range(3):
            ahead.clear()
            await store.load_if_ended("r1")
            await until(lambda: {Q.lone, Q.claim_single, Q.ended} <= set(ahead))
        await store.load_if_ended("r1")
        assert db.execute(ROWS).fetchall() == before
    assert len(await store.claim("w", (), None, limit=5)) == 2
    await store.close()
