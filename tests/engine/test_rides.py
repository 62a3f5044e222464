"""Runs that ride along the fused line beside each other (``engine/drive/fused``): what their nodes see is what they would see alone."""

from __future__ import annotations

import asyncio
import contextvars
import pathlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, Send, State, append
from holdfast.core.commit import Step, Tip
from holdfast.core.errors import LeaseLost, StoreError
from holdfast.core.fused import Line
from holdfast.engine.base import loopwatch
from holdfast.engine.base.journal import Journal
from holdfast.ports import Seat
from holdfast.stores import PostgresStore
from holdfast.stores.postgres import commits
from holdfast.stores.sqlite import writer
from holdfast.stores.sqlite.anchor import Anchor
from holdfast.stores.sqlite.store import SqliteStore
from tests.postgres.server import shared

STEPS = 12
MANY = 5
Node = Callable[["Row"], Awaitable[Any]]


class Row(State):
    n: int = 0
    seen: str = ""


async def counts(state: Row) -> dict[str, Any]:
    return {"n": state.n + 1}


def row(odd: Node = counts, at: int = 6, steps: int = STEPS, timeout: float | None = None) -> Graph[Row]:
    """A line of nodes that count, one of which does something else."""
    graph: Graph[Row] = Graph("row", Row, version="1")
    for i in range(steps):
        graph.node(f"n{i}", start=i == 0, after=None if i == 0 else f"n{i - 1}", timeout=timeout if i == at else None)(odd if i == at else counts)
    return graph


class Fan(State):
    found: Annotated[list[str], append]


class Counting(SqliteStore):
    """Counts the steps that were handed over by runs that ride."""

    told = 0

    @property
    def gathers(self) -> bool:
        return super().gathers

    async def commit(self, commit: Any) -> Any:
        return await super().commit(commit)

    async def step(self, step: Step) -> Any:
        return await super().step(step)

    def step_at_once(self, step: Step) -> Tip | None:
        return super().step_at_once(step)

    def join(self, step: Step, seat: Seat) -> None:
        super().join(step, Noted(self, seat))


class Noted:
    def __init__(self, store: Counting, seat: Seat) -> None:
        self.store, self.seat = store, seat

    @property
    def waits(self) -> bool:
        return self.seat.waits

    def tell(self, tip: Any) -> Step | None:
        self.store.told += 1
        return self.seat.tell(tip)

    def refuse(self, error: BaseException) -> None:
        self.seat.refuse(error)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SLOW", float("inf"))


async def crowd(store: SqliteStore, graph: Graph[Row], many: int = MANY) -> list[Any]:
    async with Runtime(store) as rt:
        return await asyncio.gather(*[rt.invoke(graph, {}) for _ in range(many)])


async def test_runs_beside_each_other_ride_and_a_run_alone_does_not(tmp_path: pathlib.Path) -> None:
    store = Counting(tmp_path / "a.db")
    async with Runtime(store) as rt:
        alone = await rt.invoke(row(), {})
        assert (alone.state.n, store.told) == (STEPS, 0)
        runs = await asyncio.gather(*[rt.invoke(row(), {}) for _ in range(MANY)])
    assert [r.state.n for r in runs] == [STEPS] * MANY
    assert store.told == MANY * (STEPS - 1), "all but the last of each, which ends it"


tag: contextvars.ContextVar[str] = contextvars.ContextVar("tag", default="")


async def test_a_node_goes_on_in_the_context_and_the_task_that_it_was_begun_in(tmp_path: pathlib.Path) -> None:
    """A token of a context variable is good in no other context, and a timeout in no other task."""
    store, tasks = Counting(tmp_path / "a.db"), set()

    async def waits(state: Row) -> dict[str, Any]:
        before, token, task = tag.get(), tag.set("inside"), asyncio.current_task()
        async with asyncio.timeout(20):
            await asyncio.sleep(0)
        assert asyncio.current_task() is task and tag.get() == "inside"
        tag.reset(token)
        tasks.add(task)
        return {"n": state.n + 1, "seen": before}

    async def one(rt: Runtime, number: int) -> Any:
        tag.set(f"run {number}")
        run = await rt.invoke(row(waits), {})
        assert tag.get() == f"run {number}"
        return run

    async with Runtime(store) as rt:
        runs = await asyncio.gather(*[one(rt, n) for n in range(MANY)])
    assert [r.state.seen for r in runs] == [f"run {n}" for n in range(MANY)]
    assert len(tasks) == MANY and store.told > MANY * (STEPS - 3)


async def test_what_a_node_sets_the_next_one_finds(tmp_path: pathlib.Path) -> None:
    async def sets(state: Row) -> dict[str, Any]:
        tag.set(f"{tag.get()}+")
        return {"n": state.n + 1, "seen": tag.get()}

    graph: Graph[Row] = Graph("sets", Row, version="1")
    for i in range(4):
        graph.node(f"n{i}", start=i == 0, after=None if i == 0 else f"n{i - 1}")(sets)
    runs = await crowd(Counting(tmp_path / "a.db"), graph)
    assert [r.state.seen for r in runs] == ["++++"] * MANY


async def test_runs_that_a_node_of_a_fan_out_begins_stay_in_its_context(tmp_path: pathlib.Path) -> None:
    """The nodes of a fan-out share tasks of the loop, each in a context of its own: there a run's task goes on by itself."""
    store = Counting(tmp_path / "a.db")

    async def reads(state: Row) -> dict[str, Any]:
        return {"n": state.n + 1, "seen": tag.get()}

    async with Runtime(store) as rt:

        async def begins(state: Fan, ctx: Context) -> dict[str, Any]:
            tag.set(f"piece {ctx.payload}")
            run = await rt.invoke(row(reads), {})
            assert tag.get() == f"piece {ctx.payload}"
            return {"found": [f"{ctx.payload}: {run.state.seen}"]}

        async def sends(state: Fan) -> list[Send]:
            return [Send("begins", n) for n in range(MANY)]

        graph: Graph[Fan] = Graph("fan", Fan, version="1")
        graph.node("sends", start=True)(sends)
        graph.node("begins")(begins)
        run = await rt.invoke(graph, {})
    assert sorted(run.state.found) == [f"{n}: piece {n}" for n in range(MANY)]


async def test_a_caller_that_goes_takes_its_run_alone_with_it(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it stands: the others end, and what it left is gone on with. What became of the step that was with the store is not known to it."""
    lost: list[BaseException] = []
    ends = Journal.end_step

    def end_step(journal: Journal, line: Line, tip: Tip | None, error: BaseException | None = None) -> bool:
        if error is not None:
            lost.append(error)
        return ends(journal, line, tip, error)

    monkeypatch.setattr(Journal, "end_step", end_step)
    for after in range(1, 9):
        store = SqliteStore(tmp_path / f"{after}.db")
        async with Runtime(store) as rt:
            tasks = [asyncio.create_task(rt.invoke(row(), {})) for _ in range(MANY)]
            for _ in range(after):
                await asyncio.sleep(0)
            tasks[0].cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(ended[0], asyncio.CancelledError)
            others = [r for r in ended[1:] if not isinstance(r, BaseException)]
            assert [r.state.n for r in others] == [STEPS] * (MANY - 1)
            left = {r.run_id for r in await rt.runs()} - {r.run_id for r in others}
            for run_id in left:
                assert (await rt.resume(run_id)).state.n == STEPS
            assert not await rt.check()
    assert lost and all(isinstance(e, asyncio.CancelledError) for e in lost)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_node_that_cancels_its_own_task_hurts_nobody(tmp_path: pathlib.Path, waits: bool) -> None:
    struck: list[bool] = []

    async def cancels(state: Row) -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                struck.append(True)
                raise
        return {"n": state.n + 1}

    async with Runtime(Counting(tmp_path / "a.db")) as one:
        expected = await one.invoke(row(cancels), {})
    runs = await crowd(Counting(tmp_path / "b.db"), row(cancels))
    assert {(str(r.status), r.values.get("n")) for r in runs} == {(str(expected.status), expected.values.get("n"))}
    assert len(struck) == waits * (MANY + 1), "it strikes where the node waits"


async def test_a_step_that_is_refused_ends_the_ride_and_no_other(tmp_path: pathlib.Path) -> None:
    class Refuses(Counting):
        refused = 0

        async def commit(self, commit: Any) -> Any:
            return await super().commit(commit)

        async def step(self, step: Step) -> Any:
            return await super().step(step)

        def join(self, step: Step, seat: Seat) -> None:
            if self.refused == 0:
                self.refused += 1
                asyncio.get_running_loop().call_soon(seat.refuse, LeaseLost("it was taken over"))
            elif self.refused == 1:
                self.refused += 1
                raise StoreError("the disk is gone", code="store_gone")
            else:
                super().join(step, seat)

    store = Refuses(tmp_path / "a.db")
    async with Runtime(store) as rt:
        ended = await asyncio.gather(*[rt.invoke(row(), {}) for _ in range(MANY)], return_exceptions=True)
    whole = [r for r in ended if not isinstance(r, BaseException) and r.terminal]
    assert store.refused == 2 and [r.state.n for r in whole] == [STEPS] * (MANY - 2)


async def test_a_store_that_writes_a_half_crowd_at_once_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that completes a group is sent in the very call that hands it over: its run must count as waiting by then. Else it was left out as one whose task
    had been cancelled, and its caller waited for ever."""
    monkeypatch.setattr(commits, "HALVED", 2)
    async with Runtime(f"{shared().fresh()}&listen=") as rt, asyncio.timeout(60):
        for _ in range(4):
            runs = await asyncio.gather(*[rt.invoke(row(), {}) for _ in range(9)])
            assert {run.state.n for run in runs} == {STEPS}


async def test_a_ride_ends_where_nothing_may_be_written_any_more(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the anchor could not follow is the last that is acknowledged."""
    store, left = Counting(tmp_path / "a.db"), 20
    raises = Anchor.raise_row

    def raise_row(anchor: Anchor, incarnation: int, number: int, digest: bytes) -> bool:
        nonlocal left
        left -= 1
        if left < 16:
            raise OSError(28, "no space left on device")
        return raises(anchor, incarnation, number, digest)

    async with Runtime(store) as rt:
        await rt.invoke(row(steps=1), {})
        left = 20
        with monkeypatch.context() as patch:
            patch.setattr(Anchor, "raise_row", raise_row)
            ended = await asyncio.gather(*[rt.invoke(row(steps=40), {}) for _ in range(MANY)], return_exceptions=True)
        assert all(isinstance(e, StoreError) for e in ended) and store.suspect is not None
        assert store.told < MANY * 20
        store.suspect = None


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_that_no_longer_knows_itself_takes_no_further_step(tmp_path: pathlib.Path, kind: str) -> None:
    store = SqliteStore(tmp_path / "a.db") if kind == "sqlite" else PostgresStore(shared().fresh("rides"))
    began: list[int] = []

    async def suspects(state: Row) -> dict[str, Any]:
        began.append(state.n)
        store.suspect = StoreError("it may be another store", code="store_other")
        return {"n": state.n + 1}

    async with Runtime(store) as rt:
        ended = await asyncio.gather(*[rt.invoke(row(suspects), {}) for _ in range(MANY)], return_exceptions=True)
        assert {getattr(e, "code", None) for e in ended} == {"store_other"} and began and set(began) == {6}
        store.suspect = None
        assert max([(await rt.get(r.run_id)).values.get("n", 0) for r in await rt.runs()]) == 6, "nothing of it is on record, and nothing after it"


async def test_a_node_that_holds_the_loop_is_ended_by_its_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(loopwatch, "TICK_SECONDS", 0.02)
    held: list[int] = []

    async def holds(state: Row) -> dict[str, Any]:
        if not held:
            held.append(1)
            while True:
                pass
        return {"n": state.n + 1}

    runs = await crowd(Counting(tmp_path / "a.db"), row(holds, timeout=0.1))
    assert sorted(str(r.status) for r in runs) == ["completed"] * (MANY - 1) + ["failed"]
    failed = next(r for r in runs if str(r.status) == "failed")
    assert "took longer than 0.1 s" in str(failed.error) and f"{failed.run_id}.7.n6" in caplog.text
