"""A store that fails under a driver, and a lease that is not safe for a while: the run goes on all the same (X-09, L-04, T-79)."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from tests.crash.worlds import acting, asked, fan, journey, line, stage

from holdfast import Context, Graph, State
from holdfast.core.errors import StoreError
from holdfast.testing import Fault, World


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.APPLIED])
@pytest.mark.parametrize("make", [line, fan, asked, journey, lambda: acting(idempotent=True)], ids=["line", "fan", "asked", "flow", "effect"])
def test_the_same_worker_takes_the_run_up_again(make: Any, fault: Fault) -> None:
    """A worker whose commit fails keeps the lease; nobody else can have the run, so it must go on itself, wherever it was."""
    for number in range(1, 9):
        world = World()
        stage.enter(world)
        commits = 0

        def plan(n: int, verb: str, number: int = number) -> Fault | None:
            nonlocal commits
            commits += verb == "commit"
            return fault if verb == "commit" and commits == number + 1 else None

        async def story(world: World = world, plan: Any = plan) -> Any:
            skill = make()
            host = await world.host(skill, plan=plan)
            run = await host.do(host.rt.submit(skill, {"name": "Ada"}))
            host.start(host.rt.worker())
            for _ in range(100):
                await world.clock.sleep(3)
                now = await host.do(host.rt.get(run.run_id))
                if now.status == "completed":
                    break
                for wait in now.waits:
                    if "approve" in wait.available_actions:
                        with contextlib.suppress(StoreError):  # then it is approved in the next round
                            await host.do(host.rt.decide(run.run_id, "approve", wait_id=wait.wait_id))
            await world.assert_whole()
            return now

        assert world.run(story()).status == "completed", number


def test_a_call_that_failed_in_the_store_can_be_resumed(holdfast_world: World) -> None:
    """X-09: `invoke` raises; the run is held by this very process, and `resume` goes on with it at once."""
    stage.enter(holdfast_world)

    async def story() -> Any:
        host = await holdfast_world.host(line(), plan=lambda n, verb: Fault.LOST if n == 4 else None)
        with pytest.raises(Exception, match="the connection broke"):
            await host.do(host.rt.invoke(line(), {"name": "Ada"}, thread_id="t"))
        left = (await host.do(host.rt.runs(thread_id="t")))[0]
        assert left.status == "running"
        before = holdfast_world.clock.elapsed
        run = await host.do(host.rt.resume(left.run_id))
        assert holdfast_world.clock.elapsed - before < 1
        return run

    assert holdfast_world.run(story()).status == "completed"


def test_a_lost_lease_is_no_failure_of_the_step(each_world: World) -> None:
    """T-79: a worker that could not renew begins no effect; that it did not is never recorded as what came of the call."""
    graph = Graph("two", State)
    world = each_world

    async def slow() -> None:
        await world.clock.sleep(1)

    async def act() -> str:
        world.outside.act("act")
        return "done"

    @graph.node(start=True)
    async def both(state: Any, ctx: Context) -> None:
        await ctx.gather(slow(), ctx.step(slow))
        await ctx.gather(ctx.effect(act), asyncio.sleep(0))

    async def story() -> Any:
        await world.store.open()
        host = await world.host(graph)
        run = await host.do(host.rt.submit(graph, {}))
        host.start(host.rt.worker())
        await world.clock.sleep(0.5)
        host.process.freeze()
        await world.clock.sleep(25)
        host.process.thaw()
        await world.clock.sleep(60)
        return await host.do(host.rt.get(run.run_id))

    assert world.run(story()).status == "completed"
    assert world.outside.acts == {"act": 1}
