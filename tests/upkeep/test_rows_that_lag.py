"""A run's row is a cache of its log (§1.4): one that does not fit the log is neither shown nor written upon, and the log stays as it is (§1.9, T-92)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core import events as ev
from holdfast.core.codec import Row, open_row
from holdfast.core.errors import HoldfastError, StoreCorrupt
from holdfast.core.run import fold_all
from holdfast.engine.keep.check import Checker
from holdfast.engine.keep.repair import Repairer
from holdfast.stores import PostgresStore, SqliteStore
from holdfast.testing.conformance import TTL, Clock, Script
from holdfast.workers.worker import Report
from tests.postgres.server import shared

KINDS = ("sqlite", "postgres")


class Place:
    """Where a store of one kind lies, and what can be done to it past the store. A run's row is one row of SQLite, and two of PostgreSQL."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.path, self.clock = kind, folder / "s.db", Clock()
        self.url = f"sqlite:///{self.path}" if kind == "sqlite" else shared().fresh()
        self._kept: dict[str, dict[str, list[Any]]] = {}

    def store(self) -> Any:
        return SqliteStore(self.path, now=self.clock) if self.kind == "sqlite" else PostgresStore(self.url, now=self.clock)

    def run(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        if self.kind == "sqlite":
            with closing(apsw.Connection(str(self.path))) as db:
                return db.execute(statement, values).fetchall()
        with shared().admin("holdfast") as db:
            found = db.execute(b"SET search_path = holdfast", prepare=False) and db.execute(statement.replace("?", "%s").encode(), values or None)
            return found.fetchall() if found.description else []

    def keep(self, name: str) -> None:
        self._kept[name] = {table: self.run(f"SELECT * FROM {table}") for table in (("run",) if self.kind == "sqlite" else ("run", "doc"))}

    def put_back(self, name: str) -> None:
        for table, rows in self._kept[name].items():
            self.run(f"DELETE FROM {table}")
            for row in rows:
                self.run(f"INSERT INTO {table} {'OVERRIDING SYSTEM VALUE ' if self.kind == 'postgres' else ''}VALUES ({', '.join('?' * len(row))})", tuple(row))

    def log(self) -> list[Any]:
        return self.run("SELECT * FROM log ORDER BY 1, 2, 3")

    def lose(self, count: int) -> None:
        """The newest rows of the log."""
        number = "id" if self.kind == "sqlite" else "n"
        for _ in range(count):
            self.run(f"DELETE FROM log WHERE {number} = (SELECT max({number}) FROM log)")


async def born(script: Script, store: Any) -> None:
    await store.register("w", 10**6 * TTL)
    await script.begin("w")


async def stepped(script: Script, store: Any) -> None:
    await script.steps(3)


async def asked(script: Script, store: Any) -> None:
    await script.wait()


async def decided(script: Script, store: Any) -> None:
    await script.write(script.touching(ev.NoteAdded("somebody looked at it")))


async def ended(script: Script, store: Any) -> None:
    await script.write(script.touching(ev.RunResumed(cause="operator"), ev.RunCompleted()))


LIFE: tuple[Callable[[Script, Any], Awaitable[None]], ...] = (born, stepped, asked, decided, ended)
NAMES = [stage.__name__ for stage in LIFE]


async def lived(place: Place, last: str) -> list[Row]:
    """A run that has come so far, with its row kept as each stage left it. The log."""
    store = place.store()
    await store.open()
    script = Script(store, "r1")
    for stage in LIFE:
        await stage(script, store)
        place.keep(stage.__name__)
        if stage.__name__ == last:
            break
    rows: list[Row] = await store.rows("r1")
    await store.close()
    return rows


PAIRS = list(combinations(NAMES, 2))
CASES = [
    (kind, older, newest) for kind in KINDS for older, newest in PAIRS
    if (kind, older, newest) != ("postgres", "born", "stepped")  # plain steps leave the row there as it is
]
DRIFT = {"snapshot_field_drift", "snapshot_status_drift", "terminal_event_without_terminal_snapshot"}
"""What is healed by the fold (§12.3)."""


async def opened(place: Place) -> Any:
    """The store as a new process opens it, once its workers are gone."""
    place.clock.forward(10**7 * TTL)
    store = place.store()
    await store.open()
    return store


def events(rows: Sequence[Row]) -> list[ev.Event]:
    return [event for row in rows for event in open_row(row).events]


@pytest.mark.parametrize(("kind", "older", "newest"), CASES, ids=["-".join(case) for case in CASES])
async def test_a_row_that_lags_behind_its_log_is_told_and_healed(kind: str, older: str, newest: str, tmp_path: Path) -> None:
    """§1.4, §12.3: the row was put back from an older copy. It is not loaded, nothing is appended after it, every check names it with the way out, and the
    repair makes it the fold of the whole log."""
    place = Place(kind, tmp_path)
    rows = await lived(place, newest)
    sound = place.log()
    place.put_back(older)
    store = await opened(place)
    with pytest.raises(StoreCorrupt) as error:
        await store.load("r1")
    assert error.value.code == "snapshot_field_drift"
    assert "repair-state r1" in error.value.hint
    for found in (await Checker(store).run("r1"), await Checker(store).all()):
        told = [p for p in found if p.severity == "error"]
        assert told
        assert {p.code for p in told} <= DRIFT, [p.message for p in told]
        assert all("repair-state r1" in p.repair_hint for p in told)
    assert place.log() == sound
    report = await Repairer(store).repair("r1", apply=True)
    assert report.applied, report
    after = await store.rows("r1")
    assert after[: len(rows)] == rows, "what was there stays"
    loaded = await store.load("r1")
    assert loaded.run == fold_all(None, events(after))
    assert not [p for p in await Checker(store).all() if p.severity == "error"]
    assert not (await Repairer(store).repair("r1", apply=True)).applied
    await store.close()


@pytest.mark.parametrize(("older", "newest"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
async def test_nothing_is_appended_after_a_row_that_lags(older: str, newest: str, tmp_path: Path) -> None:
    """T-92: also by whoever has the old state in hand, and comes with the fence and the tip that the row names."""
    place = Place("sqlite", tmp_path)
    store = place.store()
    await store.open()
    script, stands = Script(store, "r1"), {}
    for stage in LIFE:
        await stage(script, store)
        stands[stage.__name__] = (script.run, script.tip, script.fence)
        place.keep(stage.__name__)
        if stage.__name__ == newest:
            break
    await store.close()
    sound = place.log()
    place.put_back(older)
    store = await opened(place)
    late = Script(store, "r1")
    late.run, late.tip, late.fence = stands[older]
    if newest != "stepped":
        with pytest.raises(HoldfastError):
            await late.write(late.touching(ev.RunCanceled("ada")))
        assert place.log() == sound
    assert not await store.claim("w", (), None, limit=10) or newest == "stepped"
    await store.close()


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("newest", ["asked", "decided", "ended"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_row_whose_log_has_lost_its_end_is_told(kind: str, newest: str, lost: int, tmp_path: Path) -> None:
    """§1.9: nothing can be appended where the tail was lost. No repair makes up what was there."""
    place = Place(kind, tmp_path)
    await lived(place, newest)
    place.lose(lost)
    left = place.log()
    store = await opened(place)
    with pytest.raises(StoreCorrupt):
        await store.load("r1")
    found = await Checker(store).run("r1")
    assert {p.code for p in found if p.severity == "error"} & {"log_rolled_back", "event_seq_gap"}
    assert not (await Repairer(store).repair("r1", apply=True, rebuild=True)).applied
    assert place.log() == left
    await store.close()


class Asked(State):
    n: int = 0


asking = Graph("asking", Asked, version="1")


@asking.node(start=True)
async def first(state: Asked) -> dict[str, int]:
    return {"n": 1}


@asking.node(after="first")
async def then(state: Asked, ctx: Context) -> dict[str, int]:
    await ctx.approve("go on?")
    return {"n": 2}


VERBS: dict[str, Callable[[Runtime, str], Awaitable[Any]]] = {
    "get": lambda rt, run: rt.get(run),
    "approve": lambda rt, run: rt.approve(run, actor="ada"),
    "resume": lambda rt, run: rt.resume(run),
    "cancel": lambda rt, run: rt.cancel(run),
    "events": lambda rt, run: rt.events(run),
    "fork": lambda rt, run: rt.fork(run),
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_worker_holds_no_run_whose_row_does_not_fit(kind: str, tmp_path: Path) -> None:
    """§1.4, §3.6: it tells of it once and lets it go, goes on with the others, and whoever heals the run need not end the worker first (§12.3)."""
    place = Place(kind, tmp_path)
    async with Runtime(place.url, skills=[asking]) as rt:
        run = await rt.submit(asking, {})
        place.keep("asked")
        await rt.invoke(asking, None, thread_id=run.thread_id)
        await rt.approve(run.run_id, actor="ada")
    place.put_back("asked")
    left, told, stop, rested = place.log(), [], asyncio.Event(), asyncio.Event()

    def report(report: Report) -> None:
        told.append((report.run_id, None if report.error is None else getattr(report.error, "code", "")))
        if report.run is not None:
            rested.set()

    async with Runtime(place.url, skills=[asking]) as rt, asyncio.timeout(60):
        work = asyncio.ensure_future(rt.worker(stop=stop, on_report=report))
        for _ in range(2):
            rested.clear()
            other = await rt.submit(asking, {})
            await rested.wait()
        assert told.count((run.run_id, "snapshot_field_drift")) == (1 if kind == "postgres" else 0), told
        assert (other.run_id, None) in told and all(row in place.log() for row in left)
        async with Runtime(place.url, skills=[asking]) as desk:
            assert (await desk.repair_run_state(run.run_id, True)).applied
            assert (await desk.get(run.run_id)).status == "completed"
        stop.set()
        await work


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("kind", "damage"), [("sqlite", "older"), ("postgres", "older"), ("postgres", "shorter")]  # a shorter log of SQLite is told of when it is opened
)
async def test_a_row_that_does_not_fit_is_not_served(kind: str, damage: str, verb: str, tmp_path: Path) -> None:
    """§1.4, §1.9: by no verb, in a process that knows nothing of the run, and the log is as it was."""
    place = Place(kind, tmp_path)
    async with Runtime(place.url, skills=[asking]) as rt:
        run = await rt.invoke(asking, {})
        place.keep("asked")
        if damage == "older":
            await rt.approve(run.run_id, actor="ada")
    if damage == "older":
        place.put_back("asked")
    else:
        place.lose(1)
    left = place.log()
    async with Runtime(place.url, skills=[asking]) as rt:
        with pytest.raises(HoldfastError) as error:
            await VERBS[verb](rt, run.run_id)
        assert isinstance(error.value, StoreCorrupt), error.value
        await rt.worker(until_idle=True)
        assert any(p.severity == "error" for p in await rt.check(run.run_id))
    assert place.log() == left
    if damage == "older":
        async with Runtime(place.url, skills=[asking]) as rt:
            assert (await rt.repair_run_state(run.run_id, True)).applied
            healed = await rt.get(run.run_id)
            assert (healed.status, healed.values["n"]) == ("completed", 2)
            assert await rt.check() == []


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_is_written_over_a_status_that_the_log_did_not_give(kind: str, tmp_path: Path) -> None:
    """T-92: the column was changed by hand, and the record beside it says otherwise."""
    place = Place(kind, tmp_path)
    async with Runtime(place.url, skills=[asking]) as rt:
        run = await rt.invoke(asking, {})
        await rt.approve(run.run_id, actor="ada")
    left = place.log()
    place.run("UPDATE run SET status = 'waiting_for_human'")
    async with Runtime(place.url, skills=[asking]) as rt:
        with pytest.raises(StoreCorrupt, match="does not fit its log"):
            await rt.cancel(run.run_id)
        assert place.log() == left
        assert (await rt.repair_run_state(run.run_id, True)).applied
        assert (await rt.get(run.run_id)).status == "completed"


async def test_what_is_written_while_a_run_is_looked_at_is_no_misfit(tmp_path: Path) -> None:
    """§12.1: over PostgreSQL the row and the log are read one after another. A commit in between belongs to the next look, for the checker and for whoever loads."""
    place = Place("postgres", tmp_path)

    class Busy(PostgresStore):
        async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
            """What was committed before the log was read."""
            if busy:
                for _ in range(2):
                    await script.write(script.commit(ev.NoteAdded("meanwhile")))
            return await super().rows(run_id, after, limit)

    busy = False
    writer, reader = place.store(), Busy(place.url, now=place.clock)
    await writer.open()
    await reader.open()
    script = Script(writer, "r1")
    await born(script, writer)
    await script.steps(40)
    busy = True
    for _ in range(3):
        evidence = await reader.evidence("r1")
        assert evidence is not None and evidence.problems == ()
        assert await reader.load("r1") is not None
    busy = False
    await writer.close()
    await reader.close()
