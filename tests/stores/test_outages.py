"""PostgreSQL goes away and comes back: nobody is told of what is not durable, nothing is lost or doubled, and workers go on by themselves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server, shared

from holdfast import Graph, Runtime, State
from holdfast.core.errors import LeaseLost, StoreRefused, StoreUnavailable
from holdfast.core.lease import COUNTER_BITS
from holdfast.engine.keep.check import Checker
from holdfast.ports import RunFilter
from holdfast.stores import PostgresStore
from holdfast.stores.postgres.connection import one_of
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.wire import Connection
from holdfast.testing.conformance import TTL, Clock, Script, signal


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server of its own, which keeps what it acknowledged."""
    server = Server(settings={"synchronous_commit": "on", "full_page_writes": "on"}).create()
    yield server
    server.remove()


async def test_commits_outlast_a_crash(server: Server) -> None:
    """X-09: crashes in the middle of commits of many runs: each is told the truth, and goes on."""
    store = PostgresStore(server.fresh(), now=Clock())
    await store.open()
    await store.register("w", TTL)
    scripts = [await Script(store, f"r{i}").begin("w") for i in range(5)]
    crashed = asyncio.Event()

    async def drive(script: Script) -> None:
        while not crashed.is_set():
            await script.steps(1)
        await script.complete()

    async def crash() -> None:
        for _ in range(2):
            server.crash()
            server.start()
            await asyncio.sleep(0)
        crashed.set()

    await asyncio.gather(crash(), *map(drive, scripts))
    for script in scripts:
        found = await store.get(script.run_id)
        assert found is not None and found[0] == script.run
        assert script.tip is not None and len(await store.rows(script.run_id)) == script.tip.row
    assert await store.verify() == []
    await store.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("verb", ["step", "steps", "rest", "birth", "put", "claim", "register", "retire"])
async def test_a_connection_that_is_cut(verb: str, after: bool) -> None:
    """X-09: the connection is cut before the message is handed on, or after it took effect: sent again, the verb is answered as if
    nothing had been, and nothing is there twice."""
    url = shared().fresh()
    async with Proxy(shared().folder) as proxy:
        assert url != proxy.url
        store = PostgresStore(proxy.url, now=Clock())
        await store.open()
        await store.register("w", TTL)
        script = await (await Script(store, "r1").begin("w")).steps(2)
        second = await Script(store, "r2").begin("w")
        await Script(store, "r3").submit()
        needle = {"claim": b"claim.holds", "register": b"INSERT INTO holdfast.worker", "retire": b"DELETE FROM holdfast.worker"}
        # What is prepared already is named by number: the message is told by what it carries.
        carried = {"step": b"2:xxx", "steps": b"2:xxx", "rest": b"r1.w", "birth": b"r4", "put": b"signal:go:k"}
        proxy.cut(carried.get(verb) or needle[verb].replace(b"claim.holds", b"\x00\x00\x00\x01w"), after=after)
        await _done(verb, store, script, second)
        assert proxy.cuts == 1
        for s in (script, second):
            assert s.tip is not None and len(await store.rows(s.run_id)) == s.tip.row
        assert await store.verify() == []
        await store.close()


async def _done(verb: str, store: PostgresStore, script: Script, second: Script) -> None:
    match verb:
        case "step":
            await script.steps(1)
        case "steps":
            await asyncio.gather(script.steps(1), second.steps(3))
        case "rest":
            await script.wait()
        case "birth":
            await Script(store, "r4").begin("w")
        case "put":
            item = signal("r1", "k", store.now())
            assert await store.put(item) == item
            assert await store.inbox("r1") == [item]
        case "claim":
            assert [c.run_id for c in await store.claim("w", (), None, limit=5)] == ["r3"]
            found = await store.get("r3")
            assert found is not None and found[1].owner == "w"
        case "register":
            await store.register("v", TTL)
            assert sorted(w.owner for w in await store.workers()) == ["v", "w"]
        case "retire":
            await store.retire("w")
            assert await store.workers() == []


async def test_an_owner_finds_what_it_holds_again() -> None:
    """X-09: a claim that nobody was told of is given to its owner by the next look, and listed by a filter."""
    store = PostgresStore(shared().fresh(), now=Clock())
    await store.open()
    await store.register("w", TTL)
    await Script(store, "r1").submit()
    (claim,) = await store.claim("w", (), None, limit=5)
    from_filter = await store.runs(RunFilter(owner="w"))
    assert [r.run_id for r, _ in from_filter] == ["r1"] and claim.run_id == "r1"
    await store.close()


@pytest.mark.parametrize("altered", ["previous = NULL", "previous = 'u'", "cause = 'owner_dead'", "cause = NULL", "previous = NULL, cause = NULL", ""])
async def test_whom_a_run_was_taken_over_from_is_vouched_for(altered: str) -> None:
    """§12.1: a claim whose answer was lost is found again by what the run's row says of the owner before: altered, it is named and not served."""
    clock = Clock()
    store = PostgresStore(shared().fresh(), now=clock)
    await store.open()
    await store.register("w", TTL)
    await Script(store, "r1").begin("w")
    clock.forward(2 * TTL)
    await store.register("v", TTL)
    (claim,) = await store.claim("v", (), None, limit=5)
    assert (claim.previous_owner, claim.cause) == ("w", "expired")
    assert "snapshot_field_drift" not in {p.code for p in await Checker(store).all()}
    if altered:
        with contextlib.closing(shared().admin("holdfast")) as db:
            db.execute(f"UPDATE holdfast.run SET {altered} WHERE run_id = 'r1'".encode())
        assert "snapshot_field_drift" in {p.code for p in await Checker(store).all()}
    async with Proxy(shared().folder) as proxy:
        again = PostgresStore(proxy.url, now=clock)
        await again.open()
        proxy.cut(b"\x00\x00\x00\x01v", after=True)
        (found,) = await again.claim("v", (), None, limit=5)
        assert proxy.cuts == 1 and found.fence == claim.fence
        assert (found.previous_owner, found.cause) == ("" if altered else "w", "expired")
        await again.close()
    await store.close()


async def test_a_server_that_is_away_is_said_so(server: Server) -> None:
    """What passes has an error of its own, after the patience that was asked for; and the store goes on when it is back."""
    store = PostgresStore(server.fresh(), now=Clock(), patience=0.2)
    await store.open()
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    server.stop()
    with pytest.raises(StoreUnavailable):
        await store.get("r1")
    with pytest.raises(StoreUnavailable):
        await store.renew("w", TTL)
    server.start()
    assert await store.renew("w", TTL) == store.now() + TTL
    await script.steps(1)
    await store.close()


SHUT = {
    "is missing": (["ALTER DATABASE holdfast RENAME TO aside"], ["ALTER DATABASE aside RENAME TO holdfast"]),
    "is empty": (
        ["ALTER DATABASE holdfast RENAME TO aside", "CREATE DATABASE holdfast OWNER holdfast"],
        ["DROP DATABASE holdfast WITH (FORCE)", "ALTER DATABASE aside RENAME TO holdfast"],
    ),
    "is closed": (["REVOKE CONNECT ON DATABASE holdfast FROM PUBLIC, holdfast"], ["GRANT CONNECT ON DATABASE holdfast TO PUBLIC, holdfast"]),
    "lets no role in": (["ALTER ROLE holdfast NOLOGIN"], ["ALTER ROLE holdfast LOGIN"]),
}


@pytest.mark.parametrize("state", SHUT)
async def test_a_database_that_somebody_puts_back_is_away_for_a_while(server: Server, state: str) -> None:
    """A dump is put back, or everybody is kept out meanwhile: whoever was let in before is told that it passes, so that a worker waits. Who comes anew is refused."""
    url = server.fresh()
    store = PostgresStore(url, now=Clock(), patience=0.2)
    await store.open()
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    closing, opening = SHUT[state]
    with server.admin() as db:
        db.execute("ALTER DATABASE holdfast ALLOW_CONNECTIONS false")
        while db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'holdfast'").fetchall():
            pass  # a database in which somebody works is not renamed
        try:
            for statement in closing:
                db.execute(statement.encode())
            db.execute("UPDATE pg_database SET datallowconn = true WHERE datname IN ('holdfast', 'aside')")
            with pytest.raises(StoreUnavailable) as told:
                await store.get("r1")
            assert told.value.passing
            with pytest.raises(StoreUnavailable) as told:
                await store.renew("w", TTL)
            assert told.value.passing
            if state != "is empty":
                with pytest.raises(StoreRefused):
                    await PostgresStore(url).open()
        finally:
            for statement in opening:
                db.execute(statement.encode())
    assert await store.renew("w", TTL) == store.now() + TTL
    await script.steps(1)
    await store.close()


@pytest.mark.parametrize("back", ["a promoted standby", "an older state"])
async def test_a_server_that_lost_the_tail_is_another_incarnation(server: Server, back: str) -> None:
    """X-02, §1.9: after a failover that lost the tail nothing is appended where it was lost, the lost run is named, and all go on. A server that
    comes back as an older state of its own has the same name and the same timeline."""
    clock = Clock()
    store = PostgresStore(server.fresh(), now=clock)
    await store.open()
    await store.register("w", TTL)
    script = await (await Script(store, "r1").begin("w")).steps(2)
    standby = server.clone(follows=back == "a promoted standby")  # an asynchronous one that gets no further
    await script.steps(2)
    server.stop()
    standby.start()
    if back == "a promoted standby":
        standby.promote()
    old = store.incarnation
    server_folder = server.folder
    server.folder.joinpath(".s.PGSQL.5432").unlink(missing_ok=True)
    server.folder.joinpath(".s.PGSQL.5432").symlink_to(standby.folder / ".s.PGSQL.5432")
    try:
        with pytest.raises(LeaseLost):
            await script.steps(1)
        assert store.incarnation != old
        loaded = await store.load("r1")
        assert loaded is not None and loaded.lease.owner is None and loaded.lease.fence >> COUNTER_BITS == store.incarnation
        assert [p.code for p in await store.verify()] == ["log_rolled_back"]
        tail = store.take_tail()
        assert tail is not None and tail.run_id == "r1" and store.take_tail() is None
        assert await store.claim("w", (), None, limit=5) == [], "who lost commits is taken by nobody who does not ask for it by name"
        (claim,) = await store.claim("w", (), None, limit=5, run_id="r1")
        await Script.of(store, loaded, claim.fence).steps(1)
    finally:
        await store.close()
        server_folder.joinpath(".s.PGSQL.5432").unlink()
        standby.remove()
        server.start()


async def test_whoever_lost_nothing_waits_for_whoever_did(server: Server) -> None:
    """§1.9: of a server that comes back as an older state every process hears, also one that had written nothing; it takes no run before the others have held
    what they remember against what is there."""
    driver, other = PostgresStore(server.fresh()), PostgresStore(server.fresh())
    for store, owner in ((driver, "w"), (other, "v")):
        await store.open()
        await store.register(owner, TTL)
    script = await (await Script(driver, "r1").begin("w")).steps(2)
    older = server.clone(follows=False)
    await script.steps(2)
    await other.renew("v", TTL)
    server.stop()
    older.start()
    server.folder.joinpath(".s.PGSQL.5432").unlink(missing_ok=True)
    server.folder.joinpath(".s.PGSQL.5432").symlink_to(older.folder / ".s.PGSQL.5432")
    before = driver.incarnation
    try:
        assert await other.claim("v", (), None, limit=5) == [] and other.incarnation != before
        assert await other.claim("v", (), None, limit=5) == []
        await driver.renew("w", TTL)
        assert driver.incarnation == other.incarnation, "one of them makes the new one"
        tail = driver.take_tail()
        assert tail is not None and tail.run_id == "r1"
        assert await other.claim("v", (), None, limit=5) == []
        (claim,) = await other.claim("v", (), None, limit=5, run_id="r1")
        assert claim.run_id == "r1"
    finally:
        await driver.close()
        await other.close()
        server.folder.joinpath(".s.PGSQL.5432").unlink()
        older.remove()
        server.start()


async def test_what_a_server_said_before_is_not_held_against_what_was_seen_of_it_meanwhile(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """§1.9: it would look like an older state, and a sound store would void its fences again and again."""
    ask = one_of
    late = False

    async def answer_late(db: Connection, text: str, values: Any = None) -> tuple[Any, ...]:
        """What the server says, after others have written and this store has heard of it."""
        nonlocal late
        said = await ask(db, text, values)
        if late and text == Q.server:
            late = False
            await script.steps(1)
            await store.renew("v", TTL)
        return said

    store, writer = PostgresStore(server.fresh()), PostgresStore(server.fresh())
    await store.open()
    await store.register("v", TTL)
    await store.renew("v", TTL)
    with server.admin("holdfast") as db:
        there = "SELECT pid FROM pg_stat_activity WHERE datname = 'holdfast' AND application_name = 'holdfast'"
        mine = [pid for (pid,) in db.execute(there).fetchall()]
        await writer.open()
        await writer.register("w", TTL)
        script = await Script(writer, "r1").begin("w")
        monkeypatch.setattr("holdfast.stores.postgres.server.one_of", answer_late)
        before, late = store.incarnation, True
        for pid in mine:
            db.execute("SELECT pg_terminate_backend(%s)", (pid,))
        assert await store.get("r1") is not None
    assert not late and store.incarnation == before
    for each in (store, writer):
        await each.close()


async def test_whoever_waits_notices_tables_that_were_put_back_from_a_dump(server: Server) -> None:
    """§1.9: no connection has to be made anew for that. Nobody takes a run on what its owner knew before the others have spoken."""
    driver, other = PostgresStore(server.fresh()), PostgresStore(server.fresh())
    for store, owner in ((driver, "w"), (other, "v")):
        await store.open()
        await store.register(owner, TTL)
    script = await Script(driver, "r1").begin("w")
    with server.admin("holdfast") as db:
        kept = db.execute("SELECT key, value FROM holdfast.meta").fetchall()
        await script.steps(2)
        await other.wait_for_change(0.2)
        before = other.incarnation
        db.execute("ALTER TABLE holdfast.meta RENAME TO dropped")
        db.execute("CREATE TABLE holdfast.meta (LIKE holdfast.dropped INCLUDING ALL)")
        db.execute("ALTER TABLE holdfast.meta OWNER TO holdfast")
        for key, value in kept:
            db.execute("INSERT INTO holdfast.meta VALUES (%s, %s)", (key, value))
        db.execute("DROP TABLE holdfast.dropped")
        async with asyncio.timeout(60):
            while other.incarnation == before:
                await other.wait_for_change(1.0)
        db.execute("ALTER INDEX IF EXISTS holdfast.dropped_pkey RENAME TO meta_pkey")
    assert await other.claim("v", (), None, limit=5) == []
    with pytest.raises(LeaseLost):
        await script.steps(1)
    for store in (driver, other):
        await store.close()


class Line(State):
    n: int = 0


async def test_a_worker_outlasts_a_crash(server: Server) -> None:
    """X-09: a worker lives through crashes of the server; every run ends, and no takeover is counted."""
    graph = Graph("line", Line)
    for i in range(4):

        async def node(state: Line) -> dict[str, Any]:
            await asyncio.sleep(0)
            return {"n": state.n + 1}

        graph.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")(node)
    async with Runtime(server.fresh(), skills=[graph]) as rt:
        runs = [await rt.submit(graph, {}) for _ in range(20)]
        working = asyncio.ensure_future(rt.worker(concurrency=5))
        for _ in range(2):
            server.crash()
            server.start()
            await asyncio.sleep(0)
        for run in runs:
            assert await rt.result(run.run_id, timeout=60)
            found = await rt.get(run.run_id)
            assert found.status == "completed" and found.record.takeovers == 0
        assert not working.done()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
