"""What a journal says of its run: without a run, and while plain steps go along the fused line."""

from __future__ import annotations

import asyncio
import gc
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from holdfast import Graph, State
from holdfast.core import canon, starts
from holdfast.core import events as ev
from holdfast.core.checkpoint import INPUT_TASK, TaskResult, empty
from holdfast.core.commit import Commit, Step, Tip
from holdfast.core.errors import InboxUnread, LeaseLost
from holdfast.core.fused import Line
from holdfast.core.progress import Progress
from holdfast.engine.base.begun import Rest
from holdfast.engine.base.journal import Draft, Journal
from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance import TTL, Script


class Row(State):
    n: int = 0


def row() -> Graph[Row]:
    graph = Graph("row", Row, version="1")

    async def node(state: Row) -> dict[str, Any]:
        return {"n": state.n + 1}

    for name, after in (("a", None), ("b", "a"), ("c", "b")):
        graph.node(name, start=after is None, after=after)(node)
    return graph


async def test_a_command_is_decided_once_the_step_that_is_with_the_store_is_durable() -> None:
    """And no further step of the line comes in between."""
    store = MemoryStore()
    journal, line, step = await on_a_line(store)
    decided: list[int] = []
    journal.stepping = True
    asking = asyncio.create_task(journal.command(lambda run: decided.append(run.version), "ada"))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not decided and not asking.done()
    assert not journal.end_step(line, await store.step(step)), "the line is over"
    await asking
    assert decided == [step.version]
    await store.close()


async def on_a_line(store: MemoryStore) -> tuple[Journal, Line, Step]:
    """The journal of a run that has begun, its line, and the first step of that, which is not written yet."""
    await store.open()
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    program = row().program
    progress = Progress("r1")
    given = TaskResult(INPUT_TASK, writes=canon.encode(canon.FrozenDict({"n": 0})))
    _, progress.checkpoint = starts.first(program, empty("r1"), given, None)
    journal = Journal(store, script.run, script.tip, script.fence, progress)
    line = journal.line(program)
    assert line is not None and line.task is not None and journal.goes_along(line)
    step = line.decide(line.task, {"n": 1}, canon.encode(canon.FrozenDict({"n": 1})), store.now())
    assert step is not None
    return journal, line, step


async def test_whoever_looks_at_a_line_finds_its_newest_step() -> None:
    """Where the log ends is where its last step has left it, whichever is looked at first; and the look ends the line."""
    store = MemoryStore()
    journal, line, step = await on_a_line(store)
    await journal.step(store.step, line, step)
    loaded = await store.load("r1")
    assert loaded is not None and journal.goes_along(line) and journal.due is None
    assert journal.tip == loaded.tip != step.after
    assert not journal.goes_along(line) and journal.run.version == loaded.run.version
    await store.close()


class Slow(MemoryStore):
    """A commit that ends a run waits until it is let go; then somebody has put something into its inbox, if so told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.unread = False

    async def commit(self, commit: Commit) -> Tip:
        if commit.run.terminal:
            self.asked.set()
            await self.go.wait()
            if self.unread:
                raise InboxUnread("r1 has been told something")
        return await super().commit(commit)


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("unread", [False, True])
async def test_whoever_looks_while_the_end_is_with_the_store_finds_the_last_step(looks: bool, unread: bool) -> None:
    """The run has ended once that is durable, and not before; where it is refused, it stands where its last step has left it."""
    store = Slow()
    journal, line, step = await on_a_line(store)
    store.unread = unread
    await journal.step(store.step, line, step)
    while True:
        assert line.task is not None
        made = line.decide(line.task, {"n": 1}, canon.encode(canon.FrozenDict({"n": 1})), store.now(), ends=True)
        if isinstance(made, Commit):
            break
        assert made is not None
        await journal.step(store.step, line, made)
    before = line.run
    ending = asyncio.ensure_future(journal.end(line, made))
    await store.asked.wait()
    if looks:
        assert journal.run == before and journal.progress.checkpoint == line.checkpoint
    store.go.set()
    if unread:
        with pytest.raises(InboxUnread):
            await ending
        assert journal.run == before and journal.tip == line.tip and journal.progress.checkpoint == line.checkpoint
    else:
        await ending
        loaded = await store.load("r1")
        assert loaded is not None and journal.run == loaded.run == made.run and journal.tip == loaded.tip and journal.progress.checkpoint == made.checkpoint
    assert not journal.goes_along(line)
    await store.close()


class Failing(MemoryStore):
    """Its next commit waits until it is let go, and then loses the lease."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def commit(self, commit: Commit) -> Tip:
        self.asked.set()
        await self.go.wait()
        raise LeaseLost("another has it")


@pytest.mark.parametrize("way", ["alone", "together", "attempt"])
async def test_a_commit_that_its_callers_have_left_reports_to_whoever_writes_next(way: str) -> None:
    """A cancelled caller leaves its commit under way; how it fails is in the journal, and the loop complains of no error that nobody fetched."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    healthy = MemoryStore()
    await healthy.open()
    await healthy.register("w", TTL)
    script = await Script(healthy, "r1").begin("w")
    store = Failing()
    journal = Journal(store, script.run, script.tip, script.fence, Progress("r1"))
    write = journal.attempt if way == "attempt" else journal.save
    callers = [asyncio.ensure_future(write(Draft(facts=[ev.RunHandedBack("w")]))) for _ in range(3 if way == "together" else 1)]
    await store.asked.wait()
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    store.go.set()
    with pytest.raises(LeaseLost):
        await journal.save(Draft(facts=[ev.RunHandedBack("w")]))
    del callers, journal, script
    for _ in range(3):
        await asyncio.sleep(0)
        gc.collect()
    assert complaints == []
    await healthy.close()


class Paused(MemoryStore):
    """Notes when it is asked, and answers in a later turn of the loop."""

    def __init__(self, turns: int) -> None:
        super().__init__()
        self.turns = turns
        self.asked: list[int] = []
        self.turn = 0

    def count(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self.count)

    async def commit(self, commit: Commit) -> Tip:
        self.asked.append(self.turn)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return await super().commit(commit)


@pytest.mark.parametrize("way", ["save", "attempt"])
@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_commit_is_handed_to_the_store_in_the_turn_in_which_it_is_asked_for(way: str, turns: int) -> None:
    """No task has to begin for it, and none is made where the store has it written at once; in either case it is durable when the call returns. What a call
    has saved lets others have their turn, so that calls of one scope that run at once meet; an act follows its attempt, and is waited for."""
    store = Paused(turns)
    await store.open()
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    journal = Journal(store, script.run, script.tip, script.fence, Progress("r1"))
    write = journal.attempt if way == "attempt" else journal.save
    store.asked.clear()
    store.count()
    for _ in range(2):
        before, tasks = store.turn, len(asyncio.all_tasks())
        call = write(Draft(facts=[ev.NoteAdded("so")]))
        if turns:
            await call
        else:
            steps = call.__await__()
            pauses = sum(1 for _ in steps)
            assert pauses == (1 if way == "save" else 0) and len(asyncio.all_tasks()) == tasks
        assert store.asked.pop() == before
        found = await store.load("r1")
        assert found is not None and found.tip == journal.tip
    await store.close()


async def test_what_is_left_of_a_coroutine_ends_with_it() -> None:
    """Thrown away, it closes the coroutine, in the context in which that has gone on, also where the coroutine was closed before; and it hands on what it gives,
    and what is thrown into it."""
    where, context = ContextVar("where", default="outside"), copy_context()
    told: list[str] = []

    async def work() -> str:
        where.set("inside")
        try:
            await asyncio.Event().wait()
        except TimeoutError:
            return where.get()
        finally:
            told.append(where.get())
        return "never"

    for closed_before in (False, True):
        coroutine = work()
        steps = Rest(coroutine, context.run(coroutine.send, None), context).__await__()
        next(steps)
        if closed_before:
            context.run(coroutine.close)
        steps.close()
        assert coroutine.cr_frame is None and told.pop() == "inside" and not told
    coroutine = work()
    steps = Rest(coroutine, context.run(coroutine.send, None), context).__await__()
    next(steps)
    with pytest.raises(StopIteration) as end:
        steps.throw(TimeoutError())
    assert end.value.value == "inside" and where.get() == "outside"


async def test_a_task_cancelled_before_its_first_step_cancels_what_was_begun() -> None:
    """What the coroutine holds is free then, though whoever began it is still known of, as by the traceback of an error."""
    lock, never = asyncio.Lock(), asyncio.get_running_loop().create_future()

    async def work() -> None:
        async with lock:
            await never

    begun = work()
    rest = Rest(begun, begun.send(None))
    assert lock.locked()
    task = asyncio.ensure_future(rest)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled() and not lock.locked() and begun.cr_frame is None


@pytest.mark.parametrize("entered", [False, True])
async def test_what_is_left_can_be_closed(entered: bool) -> None:
    closed: list[str] = []

    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append("closed")

    begun = work()
    rest = Rest(begun, begun.send(None))
    if entered:
        rest.send(None)
    rest.close()
    assert closed == ["closed"]


def test_without_a_run_nothing_falls_due() -> None:
    """The run is written with the first commit; whoever attends to it is asked before."""
    journal = Journal(MemoryStore(), None, None, 1, Progress("r1"))
    assert (journal.due, journal.tip, journal.stored) == (None, None, 0)
