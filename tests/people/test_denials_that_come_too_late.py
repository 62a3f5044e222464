"""A denial whose question a race has settled before the step could be ended does not end the run (§5.4, §5.6, §10.12)."""

from __future__ import annotations

import asyncio

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import WaitNotFound
from tests.engine.support import World
from tests.people.test_between import Interposed


class Nothing(State):
    pass


async def take_turns(number: int) -> str:
    for _ in range(number):
        await asyncio.sleep(0)
    return "done"


graph: Graph[Nothing] = Graph("late-denial", Nothing)


@graph.node(start=True)
async def acts(state: Nothing, ctx: Context) -> None:
    await ctx.approve("Go?")
    await ctx.effect(take_turns, 200)  # while it acts, the run is not ended


@graph.node(start=True)
async def races(state: Nothing, ctx: Context) -> None:
    async def hear() -> None:
        await ctx.wait("came")
        await ctx.step(take_turns, 100)

    await ctx.first_of(ctx.ask("What?"), hear())


async def test_a_denial_that_comes_too_late_is_refused_and_the_run_goes_on() -> None:
    world = World()
    async with world.runtime(graph) as people:
        run = await people.submit(graph, {})

        async def deny() -> None:
            [asked] = [w for w in (await people.get(run.run_id)).waits if w.kind == "input"]
            await people.deny(run.run_id, wait_id=asked.wait_id, reason="no", drive=False)

        async with Runtime(world.store, skills=[graph], clock=world.clock) as first:
            await first.worker(until_idle=True)
        [asked] = [w for w in (await people.get(run.run_id)).waits if w.kind == "approval"]
        await people.approve(run.run_id, wait_id=asked.wait_id, drive=False)
        await people.signal(run.run_id, "came")
        store = Interposed(world.store, "commit", 1, "before", deny)
        async with Runtime(store, skills=[graph], clock=world.clock) as rt:  # type: ignore[arg-type]
            await rt.worker(until_idle=True)
        assert store.reached and (await people.get(run.run_id)).status == "completed"
        assert WaitNotFound.code in [e.payload.get("code") for e in await people.events(run.run_id) if e.type == "note.added"]
