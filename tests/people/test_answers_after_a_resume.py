"""What comes after a run has been entered again and before its first commit is heard like anything else (§5.2, §5.11, §10.12)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, flow
from holdfast.handle import Run
from holdfast.machine import SystemClock
from holdfast.stores import MemoryStore


class Told(State):
    told: Annotated[list[str], append]


class Clock(SystemClock):
    """A wall clock that stands still until somebody moves it."""

    def __init__(self) -> None:
        self.at = 1_800_000_000_000_000

    def now(self) -> int:
        return self.at


@flow("kid")
async def kid(ctx: Context) -> str:
    return (await ctx.approve("Kid?")).action


def find(run: Run[Any], kind: str) -> str:
    return next(w.wait_id for w in run.waits if w.kind == kind)


async def answer(rt: Runtime, run: Run[Any], clock: Clock) -> None:
    await rt.decide(run.run_id, "approve", wait_id=find(run, "approval"))


async def send(rt: Runtime, run: Run[Any], clock: Clock) -> None:
    await rt.signal(run.run_id, "go", "sent")


async def end_the_child(rt: Runtime, run: Run[Any], clock: Clock) -> None:
    [child] = [r for r in await rt.runs() if r.parent_run_id == run.run_id]
    await rt.approve(child.run_id)


async def let_time_pass(rt: Runtime, run: Run[Any], clock: Clock) -> None:
    clock.at += 6_000_000
    await rt.signal(run.run_id, "anything")


Comes = Callable[[Runtime, Run[Any], Clock], Awaitable[None]]
ASKED: dict[str, tuple[Callable[[Context], Awaitable[Any]], Comes, str]] = {
    "answer": (lambda ctx: ctx.approve("Two?"), answer, "approve"),
    "signal": (lambda ctx: ctx.wait("go"), send, "sent"),
    "child": (lambda ctx: ctx.child(kid), end_the_child, "approve"),
    "deadline": (lambda ctx: ctx.approve("Two?", timeout=5, on_timeout="deliver"), let_time_pass, "timeout"),
}


@pytest.mark.parametrize("fails", [False, True], ids=["fine", "fails"])
@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("heard", [True, False], ids=["heard", "unheard"])
async def test_what_comes_while_an_answered_step_works_is_not_lost(what: str, fails: bool, heard: bool) -> None:
    """The step that was entered again commits nothing for a while, and may fail, by which the run ends. ``unheard``: nobody tells its process, which
    finds it when it is about to end the run."""
    asks, comes, told = ASKED[what]
    clock, graph = Clock(), Graph("two", Told)
    store = MemoryStore(now=clock.now)
    runs: list[Run[Any]] = []
    failing = [fails]

    @graph.node(start=True)
    async def one(state: Told, ctx: Context) -> dict[str, Any]:
        given = await ctx.ask("One?", str)
        if runs:
            await comes(rt if heard else other, runs.pop(), clock)
        for _ in range(200):
            await asyncio.sleep(0)
        if failing.pop():
            failing.append(False)
            raise ConnectionError("lost")
        return {"told": [given]}

    @graph.node(start=True)
    async def two(state: Told, ctx: Context) -> dict[str, Any]:
        given = await asks(ctx)
        return {"told": [getattr(given, "action", given)]}

    async with asyncio.timeout(60), Runtime(store, skills=[graph, kid], clock=clock) as rt, Runtime(store, skills=[kid], clock=clock) as other:
        run = await rt.invoke(graph)
        runs.append(run)
        await rt.decide(run.run_id, "answer", wait_id=find(run, "input"), payload="one")
        run = await rt.resume(run.run_id)
        if fails:
            assert (run.status, [w.kind for w in run.waits]) == ("failed", [])
            run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
        assert (run.status, run.waits, run.state.told) == ("completed", (), ["one", told])
        assert [e.type for e in await rt.events(run.run_id)].count("wait.requested") == 2


async def test_a_cancel_while_an_answered_step_works_ends_it() -> None:
    """§10.12: also before the resume is durable."""
    begun = asyncio.Event()

    @flow("long")
    async def long(ctx: Context) -> str:
        await ctx.approve("Begin?")
        begun.set()
        await asyncio.Event().wait()
        return "done"

    async with asyncio.timeout(60), Runtime("memory:", skills=[long]) as rt:
        run = await rt.invoke(long)
        working = asyncio.ensure_future(rt.approve(run.run_id))
        await begun.wait()
        await rt.cancel(run.run_id)
        assert (await working).status == "canceled"
        events = [e.type for e in await rt.events(run.run_id)]
        assert events.index("run.resumed") < events.index("run.cancel_requested") < events.index("run.canceled")
        assert list(await rt.check(run.run_id)) == []
