"""Cancel while something acts outside, and stopping at a safe boundary (§6.5, §10.12, §10.13)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from holdfast import Absent, Context, Graph, Happened, Runtime, State, Unknown, append, flow
from holdfast.core import events as ev
from holdfast.core.commands import Cancel, Decide, Signal
from holdfast.core.commit import Commit, InboxItem, Tip
from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance import signal
from tests.inside import lower


class Trail(State):
    said: Annotated[list[str], append]


class Act:
    """An act outside that says when it has begun and ends when it is told to; in a thread, or cooperatively."""

    def __init__(self) -> None:
        self.begun, self.both = asyncio.Event(), asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.go = threading.Event()
        self.done: list[str] = []
        self.over = asyncio.Event()

    def in_thread(self) -> str:
        self.loop.call_soon_threadsafe(self.begun.set)
        assert self.go.wait(20)
        self.done.append("thread")
        return "receipt"

    async def cooperative(self) -> str:
        if self.begun.is_set():
            self.both.set()
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.done.append("cut")
        return "never"


@asynccontextmanager
async def begun(act: Act, *skills: Any, grace: float = 0.0) -> AsyncIterator[tuple[Runtime, str, asyncio.Future[Any]]]:
    """A runtime that drives the first skill, up to where the act is under way."""
    async with Runtime(MemoryStore(), skills=skills) as rt:
        lower(rt, grace=grace)
        driving = asyncio.ensure_future(rt.invoke(skills[0], {}, thread_id="t"))
        await asyncio.wait_for(act.begun.wait(), 10)
        yield rt, (await rt.runs(thread_id="t"))[0].run_id, driving


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


async def said(rt: Runtime, run_id: str, text: str) -> None:
    """Until a note with this text is on record."""
    async with asyncio.timeout(60):
        async for event in rt.events(run_id, follow=True):
            if event.type == "note.added" and text in str(event.payload["text"]):
                return


# -- cancel -----------------------------------------------------------------------------------------


async def test_a_thread_that_acts_is_waited_for_beyond_the_grace() -> None:
    """§6.5, T-89: nothing can end a thread, so the run is not canceled before it has ended; its result is recorded."""
    act = Act()

    @flow("f")
    async def f(ctx: Context) -> None:
        await ctx.effect(act.in_thread)
        act.done.append("went on")

    async with begun(act, f) as (rt, run_id, driving):
        await rt.cancel(run_id, actor="ada")
        await said(rt, run_id, "cancelling: waiting for in_thread in a thread")
        left = await rt.get(run_id)
        assert left.status == "running" and left.record.cancel_requested_at is not None and not driving.done()
        act.go.set()
        run = await asyncio.wait_for(driving, 10)
        assert (run.status, run.condition, run.stop_reason) == ("canceled", "cancelled", "canceled")
        assert act.done == ["thread"], "the node went no further"
        assert [e.status for e in await rt.effects(run_id)] == ["recorded"]
        found = await kinds(rt, run_id)
        assert found.index("run.cancel_requested") < found.index("side_effect.recorded") < found.index("run.canceled")


async def test_a_thread_that_outlives_its_timeout_is_waited_for_too() -> None:
    """§6.5, L-16: the timeout fires and the act is unknown; the run ends only when the thread has."""
    act = Act()

    @flow("f")
    async def f(ctx: Context) -> None:
        await ctx.effect(act.in_thread, timeout=0.01)

    async with begun(act, f) as (rt, run_id, driving):
        run = await asyncio.wait_for(driving, 10)
        assert run.status == "waiting_for_human" and run.waits[0].kind == "effect"
        assert [e.status for e in await rt.effects(run_id)] == ["unknown"]
        act.go.set()


@pytest.mark.parametrize(
    ("answer", "status"), [(None, "unknown"), (Unknown(), "unknown"), (Happened("seen"), "recorded"), (Absent(), "abandoned")], ids=str
)
async def test_a_cooperative_act_is_cut_off_after_the_grace(answer: Any, status: str) -> None:
    """§10.12: cancelled in the middle, its outcome is what ``verify`` says, else unknown; it is listed and not asked about."""
    act = Act()

    @flow("f")
    async def f(ctx: Context) -> None:
        await ctx.effect(act.cooperative, verify=None if answer is None else lambda key: answer)

    async with begun(act, f) as (rt, run_id, driving):
        await rt.cancel(run_id)
        run = await asyncio.wait_for(driving, 10)
        assert run.status == "canceled" and run.waits == () and act.done == ["cut"]
        (effect,) = await rt.effects(run_id)
        assert (effect.status == status and effect.closed is True) or effect.status == "recorded"
        found = await kinds(rt, run_id)
        assert "step.failed" not in found
        told = [k.removeprefix("side_effect.") for k in found if k.startswith("side_effect.")]
        assert told == list(dict.fromkeys(["attempted", "unknown", status])), "it is settled once, and not taken up again"


async def test_parallel_acts_are_each_treated_as_they_are() -> None:
    """§4.6, §10.12: of two siblings the cooperative one is cut off, the thread's result is recorded."""
    act = Act()
    graph = Graph("g", Trail)

    @graph.node(start=True)
    async def one(state: Trail, ctx: Context) -> None:
        await ctx.effect(act.in_thread)

    @graph.node(start=True)
    async def two(state: Trail, ctx: Context) -> None:
        await act.begun.wait()  # the thread acts by now
        await ctx.effect(act.cooperative)

    async with begun(act, graph) as (rt, run_id, driving):
        await act.both.wait()
        await rt.cancel(run_id)
        await said(rt, run_id, "waiting for in_thread")
        act.go.set()
        run = await asyncio.wait_for(driving, 10)
        assert run.status == "canceled" and sorted(act.done) == ["cut", "thread"]
        assert {e.capability: str(e.status) for e in await rt.effects(run_id)} == {"in_thread": "recorded", "cooperative": "unknown"}


async def test_within_its_grace_an_act_ends_by_itself() -> None:
    """§10.12: a cancel does not cut off what is about to end; the work is recorded and nothing is unknown."""
    act = Act()
    ends = asyncio.Event()

    async def quick() -> str:
        act.begun.set()
        await ends.wait()
        return "receipt"

    @flow("f")
    async def f(ctx: Context) -> None:
        await ctx.effect(quick)
        await asyncio.Event().wait()

    async with begun(act, f, grace=20) as (rt, run_id, driving):
        await rt.cancel(run_id)
        ends.set()
        run = await asyncio.wait_for(driving, 10)
        assert run.status == "canceled" and [e.status for e in await rt.effects(run_id)] == ["recorded"]


async def test_a_child_that_rests_ends_with_a_parent_that_is_driven() -> None:
    """§10.12, §4.14: the parent acts in one branch while its child waits for a person in another; both end, no worker needed."""
    act = Act()

    @flow("child")
    async def child(ctx: Context) -> None:
        await ctx.approve("go?")

    @flow("kept")
    async def kept(ctx: Context) -> None:
        await ctx.approve("go?")

    @flow("parent")
    async def parent(ctx: Context) -> None:
        await ctx.gather(ctx.child(child), ctx.child(kept, on_parent_end="keep"), ctx.step(act.cooperative))

    async with begun(act, parent, child, kept) as (rt, run_id, driving):
        children = {w.prompt: w.name for w in (await rt.get(run_id)).record.waits}
        await rt.cancel(run_id)
        assert (await asyncio.wait_for(driving, 10)).status == "canceled"
        assert (await rt.get(children["child"])).status == "canceled"
        assert (await rt.get(children["kept"])).status == "pending"


# -- draining ---------------------------------------------------------------------------------------


async def test_a_drained_run_stops_before_its_next_node() -> None:
    """§10.13: the node under way comes to its end and is recorded; the run is handed back and goes on elsewhere."""
    act = Act()
    ends = asyncio.Event()
    graph = Graph("g", Trail)

    @graph.node(start=True)
    async def one(state: Trail) -> dict[str, Any]:
        act.begun.set()
        await ends.wait()
        return {"said": ["one"]}

    @graph.node(after="one")
    async def two(state: Trail) -> dict[str, Any]:
        return {"said": ["two"]}

    async with begun(act, graph) as (rt, run_id, driving):
        rt.drain()
        assert rt.driving == (run_id,)
        ends.set()
        run = await asyncio.wait_for(driving, 10)
        assert (run.condition, run.lease.owner, run.state.said, rt.left) == ("queued", None, ["one"], (run_id,))
        async with Runtime(rt.store, skills=[graph]) as other:
            assert (await other.resume(run_id)).state.said == ["one", "two"]


async def test_a_drained_flow_stops_before_its_next_call() -> None:
    """§10.13: a call under way is recorded, the next is not begun, and what was done is not done again."""
    act = Act()
    ends = asyncio.Event()

    async def first() -> str:
        act.begun.set()
        await ends.wait()
        act.done.append("first")
        return "first"

    async def other(word: str) -> str:
        act.done.append(word)
        return word

    @flow("f")
    async def f(ctx: Context) -> list[str]:
        return [await ctx.step(first), await ctx.step(other, "second"), await ctx.effect(other, "third")]

    async with begun(act, f) as (rt, run_id, driving):
        rt.drain()
        ends.set()
        run = await asyncio.wait_for(driving, 10)
        assert run.condition == "queued" and act.done == ["first"]
        assert (await kinds(rt, run_id))[-1] == "run.handed_back"
        async with Runtime(rt.store, skills=[f]) as again:
            assert (await again.resume(run_id)).result == ["first", "second", "third"]
        assert act.done == ["first", "second", "third"]


async def test_siblings_are_drained_together() -> None:
    """§10.13, §4.6: one stands at its next call, the other is let come to its end, a third is not begun."""
    act = Act()
    asked, ends = asyncio.Event(), asyncio.Event()
    graph = Graph("g", Trail)
    calls: list[str] = []

    async def call(word: str) -> str:
        calls.append(word)
        return word

    @graph.node(start=True)
    async def steps(state: Trail, ctx: Context) -> dict[str, Any]:
        await ctx.step(call, "a")
        await asked.wait()
        return {"said": [await ctx.step(call, "b")]}

    @graph.node(start=True)
    async def plain(state: Trail) -> dict[str, Any]:
        act.begun.set()
        await ends.wait()
        calls.append("plain")
        return {"said": ["plain"]}

    @graph.node(start=True)
    async def third(state: Trail) -> dict[str, Any]:
        calls.append("third")
        return {"said": ["third"]}

    async with Runtime(MemoryStore(), skills=[graph]) as rt:
        lower(rt, parallel=2)
        driving = asyncio.ensure_future(rt.invoke(graph, {}, thread_id="t"))
        await asyncio.wait_for(act.begun.wait(), 10)
        rt.drain()
        asked.set()
        await asyncio.sleep(0)
        ends.set()
        run = await asyncio.wait_for(driving, 10)
        assert run.condition == "queued" and calls == ["a", "plain"]
        async with Runtime(rt.store, skills=[graph]) as again:
            assert (await again.resume(run.run_id)).state.said == ["b", "plain", "third"]
        assert sorted(calls) == ["a", "b", "plain", "third"]


async def test_a_node_that_stands_at_a_boundary_does_not_time_out() -> None:
    """§10.13: whoever is told to stop waits for its siblings, and its time may be up meanwhile; the run is handed back, not failed."""
    act, ends, stood = Act(), asyncio.Event(), asyncio.Event()
    graph = Graph("g", Trail)

    async def call(word: str) -> str:
        act.done.append(word)
        return word

    @graph.node(start=True, timeout=0.05)
    async def steps(state: Trail, ctx: Context) -> dict[str, Any]:
        if not act.done:
            act.begun.set()
            await stood.wait()
        try:
            return {"said": [await ctx.step(call, "a")]}
        except asyncio.CancelledError:
            ends.set()  # its timer has struck: only now may its sibling end
            raise

    @graph.node(start=True)
    async def plain(state: Trail) -> dict[str, Any]:
        await ends.wait()
        return {"said": ["plain"]}

    async with begun(act, graph) as (rt, run_id, driving):
        rt.drain()
        stood.set()
        run = await asyncio.wait_for(driving, 10)
        assert (run.status, run.condition, act.done) == ("running", "queued", [])
        assert "step.failed" not in await kinds(rt, run_id)
        act.done.append("again")
        async with Runtime(rt.store, skills=[graph]) as again:
            assert (await again.resume(run_id)).state.said == ["a", "plain"]


# -- timeouts on what blocks ------------------------------------------------------------------------


async def test_a_timeout_fires_on_a_node_that_blocks() -> None:
    """L-16, §10.10: a plain node that sits in a call of its own is given up in time; what it returns late is fenced off, and so is
    whatever the attempt before the last one says."""
    entered: list[int] = []
    go, left = threading.Event(), threading.Semaphore(0)
    graph = Graph("g", Trail)

    @graph.node(start=True, timeout=0.05, retry=2)
    def blocks(state: Trail, ctx: Context) -> dict[str, Any]:
        entered.append(ctx.attempt)
        if ctx.attempt == 1:
            assert go.wait(20)
            left.release()
            return {"said": ["late"]}
        return {"said": ["in time"]}

    @graph.node(after="blocks")
    async def after(state: Trail) -> dict[str, Any]:
        go.set()  # only now may the first attempt go on: the timeout has fired, or we would not be here
        await asyncio.to_thread(left.acquire)
        return {"said": ["after"]}

    async with Runtime(MemoryStore(), skills=[graph]) as rt:
        run = await asyncio.wait_for(rt.invoke(graph), 20)
        assert (run.status, run.state.said, entered) == ("completed", ["in time", "after"], [1, 2])
        told = [e.payload["error"]["code"] for e in await rt.events(run.run_id) if e.type == "step.retry_scheduled"]
        assert told == ["step_timeout"]
        assert (await rt.get(run.run_id)).record.version == run.record.version, "nothing came after the end"


class Late(MemoryStore):
    """A store into which somebody puts a signal for a run just before its end is written."""

    late = False

    async def commit(self, commit: Commit) -> Tip:
        if not self.late and any(isinstance(e.fact, ev.RunCanceled) for e in commit.events):
            self.late = True
            await self.put(signal(commit.run.run_id, "late", self.now()))
        return await super().commit(commit)


async def test_what_comes_while_a_run_is_ended_comes_too_late() -> None:
    """§10.12: the run ends all the same; what was put is taken, and the log says that it was refused."""
    began = asyncio.Event()

    @flow("f")
    async def f(ctx: Context) -> None:
        began.set()
        await asyncio.Event().wait()

    store = Late()
    async with Runtime(store, skills=[f]) as rt:
        driving = asyncio.ensure_future(rt.invoke(f, {}, thread_id="t"))
        await began.wait()
        [run] = await rt.runs(thread_id="t")
        await rt.cancel(run.run_id)
        assert (await asyncio.wait_for(driving, 10)).status == "canceled" and store.late
        assert await store.inbox(run.run_id) == []
        [item] = [i for i in await store.inbox(run.run_id, taken=True) if isinstance(i.command, Signal)]
        assert item.taken_seq is not None
        refused = [e for e in await rt.events(run.run_id) if e.type == "note.added" and f"{item.key} was refused" in str(e.payload)]
        assert len(refused) == 1


@pytest.mark.parametrize("ends", ["cancel", "deny"])
@pytest.mark.parametrize("who", ["at_rest", "worker"])
async def test_an_answer_outlives_the_end_of_its_run(who: str, ends: str) -> None:
    """§5.6: whoever has answered before a run was ended is not asked again when it is resumed, also if a process that came to go on ends it."""

    @flow("asks")
    async def asks(ctx: Context) -> list[str]:
        first, _ = await ctx.gather(ctx.ask("which?", schema=str), ctx.approve("go?", on_deny="halt"))
        return [first]

    async with Runtime(MemoryStore(), skills=[asks]) as rt:
        run = await rt.invoke(asks, {})
        which, go = sorted(run.waits, key=lambda w: w.kind, reverse=True)
        assert (which.prompt, go.prompt) == ("which?", "go?")
        await rt.decide(run.run_id, "answer", wait_id=which.wait_id, payload="the blue one", actor="ada")
        command: Any = Cancel("bob") if ends == "cancel" else Decide(go.wait_id, "deny", "bob")
        if who == "worker":
            await rt.store.put(InboxItem(run_id=run.run_id, key=command.key, command=command, put_at=rt.store.now()))
            await rt.worker(until_idle=True)
        else:
            await (rt.cancel(run.run_id) if ends == "cancel" else rt.decide(run.run_id, "deny", wait_id=go.wait_id, actor="bob"))
        run = await rt.get(run.run_id)
        assert run.status == "canceled"
        if ends == "cancel":
            run = await rt.resume(run.run_id, acknowledge="canceled")
            assert [w.prompt for w in run.waits] == ["go?"]
            run = await rt.approve(run.run_id, actor="bob")
            assert (run.status, run.result) == ("completed", ["the blue one"])


@pytest.mark.parametrize("undoes", [True, False])
@pytest.mark.parametrize("plain", [True, False])
async def test_a_cancel_that_comes_with_the_last_commit_ends_the_run(plain: bool, undoes: bool) -> None:
    """§10.12: the commit that would complete the run is refused for it. What that commit had prepared is not taken for another one's."""

    class Late(MemoryStore):
        come = False

        async def commit(self, commit: Commit) -> Tip:
            if commit.run.status == "completed" and not self.come:
                self.come = True
                await self.put(InboxItem(run_id=commit.run.run_id, key="cancel", command=Cancel("ada"), put_at=self.now()))
            return await super().commit(commit)

    undone: list[str] = []
    graph = Graph("two", Trail)

    @graph.node(start=True)
    async def books(state: Trail, ctx: Context) -> None:
        await ctx.effect(str, "flight", undo=(lambda receipt: undone.append(receipt)) if undoes else None)

    if plain:

        @graph.node(after="books")
        async def last(state: Trail) -> dict[str, Any]:
            return {"said": ["done"]}

    else:

        @graph.node(after="books")
        async def last_with_context(state: Trail, ctx: Context) -> dict[str, Any]:
            return {"said": [str(ctx.feedback)]}

    async with Runtime(Late(), skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, undone) == ("canceled", ["flight"] * undoes)
        assert await rt.check(run.run_id) == []
