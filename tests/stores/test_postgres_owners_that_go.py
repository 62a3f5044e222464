"""An owner ends, or is let go of, while something is being taken for it (§10.4, §10.16): what it takes in that moment is handed back with all else.

A trigger has every row of a run that ``w`` takes wait for a lock of the test, in the middle of the transaction that writes it. No row may be left that names
an owner whom the store does not know: no worker finds such a run, so that nobody would go on with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
from tests.postgres.server import shared

from holdfast.core import events as ev
from holdfast.core.lease import Take
from holdfast.core.limits import Limit
from holdfast.ports import Loaded
from holdfast.stores import PostgresStore
from holdfast.testing.conformance import TTL, Script

GATE = 1
GATED = f"""CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock({GATE}); RETURN NEW; END';
CREATE TRIGGER gate BEFORE INSERT OR UPDATE ON holdfast.run FOR EACH ROW WHEN (NEW.owner = 'w') EXECUTE FUNCTION gate()"""
UNGATED = "DROP TRIGGER IF EXISTS gate ON holdfast.run; DROP FUNCTION IF EXISTS gate"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'owners' AND wait_event_type = 'Lock'"
LET_GO = 3_600_000_000  # so long after its end a lease is forgotten


class Gate:
    """Stands in the middle of whatever is taken for ``w``. The stores of a test are opened through it; ``clock`` moves their time, once it is set."""

    def __init__(self, db: psycopg.Connection[Any], url: str) -> None:
        self._db = db
        self._url = url
        self.clock = 0
        self.stores: list[PostgresStore] = []

    async def store(self) -> PostgresStore:
        store = PostgresStore(self._url, now=(lambda: self.clock) if self.clock else None)
        self.stores.append(store)
        await store.open()
        return store

    def shut(self) -> None:
        self._db.execute(GATED.encode())
        self._db.execute(f"SELECT pg_advisory_lock({GATE})".encode())

    def open(self) -> None:
        self._db.execute("SELECT pg_advisory_unlock_all()")

    async def until_waiting(self, count: int, last: asyncio.Future[Any]) -> None:
        """Returns once so many wait for a lock, or the last of them has not had to."""
        while not last.done() and (await asyncio.to_thread(lambda: self._db.execute(WAITING).fetchone()))[0] < count:  # type: ignore[index]
            pass


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    url = shared().fresh("owners")
    with shared().admin("owners") as db:
        gate = Gate(db, url)
        try:
            yield gate
        finally:
            gate.open()
            for store in gate.stores:
                await store.close()
            db.execute(UNGATED)


async def claim_what_is_due(store: PostgresStore) -> object:
    await Script(store, "r1").submit()
    return store.claim("w", ("default",), None, limit=5)


async def claim_by_name(store: PostgresStore) -> object:
    await Script(store, "r1").submit()
    return store.claim("w", (), None, limit=1, run_id="r1")


async def claim_within_limits(store: PostgresStore) -> object:
    await Script(store, "r1").submit()
    return store.claim("w", (), None, limit=5, limits={"worker": Limit(in_flight=3)})


async def take_by_a_first_commit(store: PostgresStore) -> object:
    script = await Script(store, "r1").submit()
    assert isinstance(await store.claim_or_load("w", (), None, limit=5), Loaded)
    script.fence += 1
    return store.commit(script.commit(ev.RunClaimed("w", 2), ev.RunStarted(), lease=Take("w", found=True)))


async def take_by_a_commit(store: PostgresStore) -> object:
    script = await Script(store, "r1").submit()
    return store.commit(script.taking("w", ev.RunClaimed("w", 2), ev.RunStarted()))


async def be_born(store: PostgresStore) -> object:
    script = Script(store, "r1")
    return store.commit(script.first(ev.RunClaimed("w", 1), ev.RunStarted(), lease=Take("w")))


WAYS = (claim_what_is_due, claim_by_name, claim_within_limits, take_by_a_first_commit, take_by_a_commit, be_born)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_an_owner_that_ends_hands_back_what_it_takes_meanwhile(gate: Gate, way: Callable[[PostgresStore], Awaitable[Any]]) -> None:
    store = await gate.store()
    await store.register("w", TTL)
    taken = await way(store)
    gate.shut()
    taking = asyncio.ensure_future(taken)
    await gate.until_waiting(1, taking)
    assert not taking.done()
    ending = asyncio.ensure_future(store.retire("w"))
    await gate.until_waiting(2, ending)
    gate.open()
    await asyncio.gather(taking, ending)
    assert await store.workers() == []
    found = await store.get("r1")
    assert found is not None and found[1].owner is None
    await store.register("v", TTL)
    assert [c.run_id for c in await store.claim("v", (), None, limit=5)] == ["r1"], "and whoever comes next goes on with it"


async def test_an_owner_that_takes_something_is_not_let_go_of(gate: Gate) -> None:
    """It was held still for so long that its lease is forgotten, and goes on at the moment in which another looks whom to let go of."""
    gate.clock = 1_800_000_000_000_000
    store, other = await gate.store(), await gate.store()
    await store.register("w", TTL)
    await store.register("gone", TTL)
    await Script(store, "r1").submit()
    gate.clock += TTL + LET_GO
    await other.register("v", TTL)
    gate.shut()
    taking = asyncio.ensure_future(store.claim("w", (), None, limit=1, run_id="r1"))
    await gate.until_waiting(1, taking)
    store.abandon("gone")
    letting_go = asyncio.ensure_future(other.claim("v", (), None, limit=5))
    await gate.until_waiting(2, letting_go)
    gate.open()
    assert [c.run_id for c in await taking] == ["r1"]
    await letting_go
    assert "gone" not in [w.owner for w in await other.workers()]
    assert [c.run_id for c in await other.claim("v", (), None, limit=5)] == ["r1"], "it is taken over: its owner is known, and its lease has run out"
