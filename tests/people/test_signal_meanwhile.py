"""A signal that is taken while its step decides to rest is not lost (§5.11)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core import events as ev
from holdfast.core.commit import Commit, Tip
from holdfast.stores import MemoryStore


class Slow(MemoryStore):
    """The commit of a signal takes so long that whatever else can go on meanwhile does."""

    def __init__(self) -> None:
        super().__init__()
        self.taking = asyncio.Event()

    async def commit(self, commit: Commit) -> Tip:
        if any(isinstance(e.fact, ev.SignalReceived) for e in commit.events):
            self.taking.set()
            for _ in range(200):
                await asyncio.sleep(0)
        return await super().commit(commit)


class Got(State):
    value: int = 0
    other: int = 0


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
async def test_a_signal_taken_while_its_step_comes_to_rest_ends_the_wait(beside: bool) -> None:
    store = Slow()
    graph, begun = Graph("asks", Got), asyncio.Event()

    @graph.node(start=True)
    async def ask(state: Got, ctx: Context) -> dict[str, Any]:
        begun.set()
        await store.taking.wait()
        return {"value": await ctx.wait("go")}

    if beside:

        @graph.node(start=True)
        async def other(state: Got, ctx: Context) -> dict[str, Any]:
            await ctx.wait("never", timeout=3600)
            return {"other": 1}

    async with asyncio.timeout(60), Runtime(store, skills=[graph]) as rt:
        run = await rt.submit(graph)
        driving = asyncio.ensure_future(rt.resume(run.run_id))
        await begun.wait()
        await rt.signal(run.run_id, "go", 7, key="k")
        done = await driving
        assert done.state.value == 7 if not beside else done.status == "waiting_for_signal"
        events = [e.type for e in await rt.events(run.run_id)]
        assert events.count("signal.received") == 1 and events.count("wait.decided") == 1
        assert [w.name for w in done.waits] == (["never"] if beside else [])
