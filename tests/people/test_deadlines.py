"""Deadlines: found by whoever sweeps, injected once, and never kept anywhere but in the paused checkpoint (§5.1, §5.10)."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import apsw
import pytest

from holdfast import Context, Graph, Runtime, State, append, flow
from holdfast.core.commands import FireTimeout
from holdfast.core.commit import InboxItem
from holdfast.core.errors import DecisionConflict
from holdfast.machine import SystemClock
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.testing import violations

SECOND = 1_000_000


class Trail(State):
    said: Annotated[list[str], append]


class Clock(SystemClock):
    """A wall clock that tests move; it stands still otherwise."""

    def __init__(self) -> None:
        self.at = 1_800_000_000 * SECOND

    def now(self) -> int:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += int(seconds * SECOND)


def asking(**options: Any) -> Graph[Trail]:
    """Asks, and writes down what it was told."""
    graph = Graph("asking", Trail)

    @graph.node(start=True)
    async def ask(state: Trail, ctx: Context) -> dict[str, Any]:
        decision = await ctx.approve("go?", timeout=1, **options)
        return {"said": [f"{decision.action} {decision.payload}"]}

    return graph


def processes(kind: str, folder: Path, clock: Clock, count: int) -> list[Any]:
    """The stores of so many processes over one house."""
    if kind == "memory":
        return [MemoryStore(now=clock.now)] * count
    return [SqliteStore(folder / "runs.db", now=clock.now) for _ in range(count)]


async def kinds(rt: Runtime, run_id: str) -> Counter[str]:
    return Counter(e.type for e in await rt.events(run_id))


# -- where a wait is --------------------------------------------------------------------------------


@pytest.mark.one_store("it reads the schema of a SQLite file")
def test_the_schema_has_no_registry_of_waits(tmp_path: Path) -> None:
    """T-33, §5.1: a wait is a paused checkpoint; no table and no column holds one."""

    async def make() -> None:
        async with Runtime(f"sqlite:///{tmp_path}/runs.db"):
            pass

    asyncio.run(make())
    db = apsw.Connection(str(tmp_path / "runs.db"))
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    assert "run" in tables and not [t for t in tables if "wait" in t or "approval" in t or "deadline" in t]
    # A link to a wait names it; that is no register of open ones (§5.9).
    columns = {(t, c[1]) for t in tables for c in db.execute(f"PRAGMA table_info({t})") if "wait" in c[1] or "deadline" in c[1]}
    assert columns == {("token", "wait_id")}


@pytest.mark.parametrize("wiped", ["due = NULL", "due = NULL, doc = zeroblob(3)", "due = NULL, status = 'pending'"])
async def test_wiped_hints_are_found_again(wiped: str, tmp_path: Path) -> None:
    """T-33: the row's due time and its document are caches. ``check`` names what is gone, ``doctor --rebuild`` folds it
    anew, and the next sweep injects the timeout."""
    graph, path = asking(on_timeout="deliver"), tmp_path / "runs.db"
    clock = Clock()
    async with Runtime(SqliteStore(path, now=clock.now), skills=[graph], clock=clock) as rt:
        run = await rt.invoke(graph)
        assert run.lease.due == clock.now() + SECOND
    db = apsw.Connection(str(path))
    db.execute(f"UPDATE run SET {wiped}")
    db.close()
    clock.forward(60)
    async with Runtime(SqliteStore(path, now=clock.now), skills=[graph], clock=clock) as rt:
        assert not (await rt.check(run.run_id)).ok
        done = await rt.repair_run_state(run.run_id, apply=True, rebuild=True)
        assert done.applied, done
        assert list(await rt.check(run.run_id)) == []
        await rt.worker(until_idle=True)
        after = await rt.get(run.run_id)
        assert (after.status, after.state.said) == ("completed", ["timeout None"])
        assert (await kinds(rt, run.run_id))["wait.timed_out"] == 1


@pytest.mark.one_store("it alters a row of a SQLite file")
async def test_a_wiped_answer_is_found_again(tmp_path: Path) -> None:
    """§10.16: an answer on record has queued a resume, which a lost wake-up does not undo."""
    graph, path = asking(), tmp_path / "runs.db"
    async with Runtime(f"sqlite:///{path}", skills=[graph]) as rt:
        run = await rt.invoke(graph)
        await rt.decide(run.run_id, "approve")
    db = apsw.Connection(str(path))
    db.execute("UPDATE run SET due = NULL")
    db.close()
    async with Runtime(f"sqlite:///{path}", skills=[graph]) as rt:
        assert (await rt.repair_run_state(run.run_id, apply=True)).applied
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).state.said == ["approve None"]


# -- injected once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_timeout_is_a_deterministic_injection(kind: str, tmp_path: Path) -> None:
    """T-34: the clock stands; swept twice, by two workers at once, and injected by hand besides: one event, the same values."""
    graph, clock = asking(on_timeout="default", default={"x": 1}), Clock()
    values = []
    for n in range(2):
        stores = processes(kind, tmp_path, clock, 2)
        async with Runtime(stores[0], skills=[graph], clock=clock) as one, Runtime(stores[1], skills=[graph], clock=clock) as two:
            run = await one.invoke(graph, {}, thread_id=str(n))
            await one.worker(until_idle=True)
            assert (await kinds(one, run.run_id))["wait.timed_out"] == 0, "its time has not come"
            clock.forward(1)
            if n:
                command = FireTimeout(run.waits[0].wait_id, clock.now())
                item = InboxItem(run_id=run.run_id, key=command.key, command=command, put_at=clock.now())
                assert (await one.store.put(item)).put_at == (await two.store.put(item)).put_at
            await asyncio.gather(one.worker(until_idle=True), two.worker(until_idle=True))
            await asyncio.gather(one.worker(until_idle=True), two.worker(until_idle=True))
            found = await one.get(run.run_id)
            assert found.status == "completed"
            assert (await kinds(one, run.run_id))["wait.timed_out"] == 1
            assert list(await violations(one.store)) == []
            # Rebuilt from the log, channel for channel.
            head = (await one.checkpoints(run.run_id))[-1]
            values.append((dict(found.state), dict(await one.state(run.run_id, head.checkpoint_id))))
    assert values[0] == values[1] and values[0][0] == values[0][1]
    assert values[0][0]["said"] == ["timeout FrozenDict({'x': 1})"] or "x" in values[0][0]["said"][0]


@pytest.mark.parametrize(("kind", "many"), [("memory", 200), ("sqlite", 200), pytest.param("sqlite", 1_000, marks=pytest.mark.heavy)])
async def test_three_sweepers_and_a_thousand_deadlines(kind: str, many: int, tmp_path: Path) -> None:
    """Issue 4, must show 3: a thousand deadlines of one second; three workers sweep, and each is injected exactly once."""
    graph, clock = asking(on_timeout="deliver"), Clock()
    stores = processes(kind, tmp_path, clock, 3)
    runtimes = [Runtime(s, skills=[graph], clock=clock) for s in stores]
    for rt in runtimes:
        await rt.__aenter__()
    try:
        ids = [r.run_id for r in await asyncio.gather(*(runtimes[0].invoke(graph) for _ in range(many)))]
        assert {(await runtimes[1].get(ids[0])).status} == {"waiting_for_human"}
        clock.forward(1)
        reports: list[list[Any]] = [[], [], []]
        await asyncio.gather(*(rt.worker(until_idle=True, concurrency=50, on_report=r.append) for rt, r in zip(runtimes, reports, strict=True)))
        assert sum(map(len, reports)) >= many and [r.error for rs in reports for r in rs if r.error is not None] == []
        assert kind == "memory" or all(reports), "each of them swept some"
        for run_id in ids:
            found = await kinds(runtimes[2], run_id)
            assert (found["wait.timed_out"], found["run.completed"], found["run.resumed"]) == (1, 1, 1)
    finally:
        for rt in runtimes:
            await rt.close()


async def test_a_late_answer_is_told(tmp_path: Path) -> None:
    """§5.10, T-35: the timeout came first; the person is told, and the log has one resolution."""
    graph, clock = asking(on_timeout="deliver"), Clock()
    async with Runtime(MemoryStore(now=clock.now), skills=[graph], clock=clock) as rt:
        run = await rt.invoke(graph)
        clock.forward(1)
        await rt.worker(until_idle=True)
        with pytest.raises(DecisionConflict, match="timed out"):
            await rt.decide(run.run_id, "approve", wait_id=run.waits[0].wait_id)
        assert (await rt.get(run.run_id)).state.said == ["timeout None"]


class Broken(MemoryStore):
    """Breaks where a timeout is injected."""

    async def put(self, item: InboxItem) -> InboxItem:
        if isinstance(item.command, FireTimeout):
            raise RuntimeError("the sweep is broken")
        return await super().put(item)


async def test_a_sweep_that_fails_ends_the_worker() -> None:
    """X-14: an exception where timeouts are injected is no silence: it is reported, the run is set aside with its reason, and the
    question stays open."""
    graph, clock = asking(on_timeout="deliver"), Clock()
    async with Runtime(Broken(now=clock.now), skills=[graph], clock=clock) as rt:
        run = await rt.invoke(graph)
        clock.forward(1)
        reports: list[Any] = []
        await rt.worker(until_idle=True, on_report=reports.append)
        assert [type(r.error) for r in reports] == [RuntimeError]
        left = await rt.get(run.run_id)
        assert left.status == "waiting_for_human" and len(left.waits) == 1
        assert "the sweep is broken" in str([e.payload for e in await rt.events(run.run_id)])


# -- at rest ----------------------------------------------------------------------------------------


async def test_five_hundred_waiting_runs_hold_nothing() -> None:
    """L-22: no thread, no task, no driver; and every one of them goes on when it is answered."""

    @flow("waits")
    async def waits(ctx: Context) -> str:
        return (await ctx.approve("go?")).actor

    async with Runtime(MemoryStore(), skills=[waits]) as rt:
        await rt.invoke(waits)
        await asyncio.sleep(0)
        tasks, threads = len(asyncio.all_tasks()), set(threading.enumerate())
        runs = await asyncio.gather(*(rt.invoke(waits) for _ in range(500)))
        assert {r.status for r in runs} == {"waiting_for_human"}
        await asyncio.sleep(0)
        begun = set(threading.enumerate()) - threads  # one that a test before left behind may end meanwhile
        assert (len(asyncio.all_tasks()), begun, rt.driving) == (tasks, set(), ())
        for run in runs:
            await rt.decide(run.run_id, "approve", actor="ada")
        await rt.worker(until_idle=True)
        assert {(await rt.get(r.run_id)).result for r in runs} == {"ada"}


@dataclasses.dataclass(frozen=True)
class Choice:
    name: str
    weight: float = 1.0


@pytest.mark.parametrize("how", ["ask", "approve"])
@pytest.mark.parametrize(("schema", "default", "fits"), [(int, "x", False), (Choice, {"nam": "a"}, False), (int, 3, True), (Choice, Choice("a"), True), (float, 1, True), (None, "x", True), (int, None, True)])
async def test_what_stands_in_for_an_answer_has_its_type(how: str, schema: Any, default: Any, fits: bool) -> None:
    """§3.7, §5.10: refused before anybody is asked, not given to the node as the answer that it is not."""

    @flow("f")
    async def f(ctx: Context) -> Any:
        options: dict[str, Any] = {"schema": schema, "default": default, "on_timeout": "default", "timeout": 1}
        return await ctx.ask("what?", **options) if how == "ask" else (await ctx.approve("what?", **options)).payload

    clock = Clock()
    async with Runtime(MemoryStore(now=clock.now), skills=[f], clock=clock) as rt:
        run = await rt.invoke(f)
        if not fits:
            assert run.stop_reason == "invalid_input" and run.error is not None and "default" in run.error.message
            return
        assert run.status == "waiting_for_human", run.error
        clock.forward(2)
        run = (await rt.recover())[0]
        assert run.result == default, run.error
