"""A run that is held for a person (``recovery="hold"``, its owner dead) is told what it is told, and goes on when a named actor resumes it,
not before (§2.9, §5.4, §10.6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.commands import LateResult
from holdfast.core.commit import InboxItem
from holdfast.handle import Run
from holdfast.testing import VirtualClock, World


class Paper(State):
    name: str = ""
    said: str = ""
    news: str = ""


def paper(clock: VirtualClock) -> Graph[Paper]:
    graph = Graph("paper", Paper)

    @graph.node(start=True)
    async def asks(state: Paper, ctx: Context) -> dict[str, str]:
        return {"said": (await ctx.approve("Print?", on_deny="deliver")).action}

    @graph.node(start=True)
    async def works(state: Paper, ctx: Context) -> None:
        await clock.sleep(50)

    @graph.node(on=["news"])
    async def hears(state: Paper) -> dict[str, str]:
        return {"name": f"heard {state.news}"}

    return graph


async def approves(rt: Runtime, run: Run[Any]) -> None:
    await rt.decide(run.run_id, "approve", wait_id=run.waits[0].wait_id, actor="ada")


async def denies(rt: Runtime, run: Run[Any]) -> None:
    await rt.deny(run.run_id, reason="no", actor="ada", drive=False)


async def signals(rt: Runtime, run: Run[Any]) -> None:
    await rt.signal(run.run_id, "news", "rain", key="k")


async def is_late(rt: Runtime, run: Run[Any]) -> None:
    await rt.store.put(InboxItem(run.run_id, "late:x", LateResult("x", "it gave 3"), rt.store.now()))


async def cancels(rt: Runtime, run: Run[Any]) -> None:
    await rt.cancel(run.run_id, actor="ada")


@pytest.mark.parametrize("when", ["before its owner dies", "after", "once it is held"])
@pytest.mark.parametrize(
    ("tell", "kind"), [(approves, "wait.decided"), (denies, "wait.decided"), (signals, "signal.received"), (is_late, "note.added"), (cancels, "run.canceled")]
)
def test_it_is_told_and_stays(holdfast_world: World, tell: Callable[[Runtime, Run[Any]], Awaitable[None]], kind: str, when: str) -> None:
    skill = paper(holdfast_world.clock)

    async def story() -> None:
        one = await holdfast_world.host(skill)
        one.start(one.rt.invoke(skill, recovery="hold"))
        await holdfast_world.clock.sleep(5)
        (run,) = await one.rt.runs()
        two = await holdfast_world.host(skill)
        if when == "before its owner dies":
            one.process.freeze()
            await two.do(tell(two.rt, run))  # type: ignore[arg-type]
        one.kill()
        if when == "after":
            await two.do(tell(two.rt, run))  # type: ignore[arg-type]
        two.start(two.rt.worker())
        await holdfast_world.clock.sleep(60)
        if when == "once it is held":
            assert (await two.rt.get(run.run_id)).condition == "interrupted"
            await two.do(tell(two.rt, run))  # type: ignore[arg-type]
        await holdfast_world.clock.sleep(60)
        held = await two.rt.get(run.run_id)
        kinds = [e.type for e in await two.rt.events(run.run_id)]
        if tell is cancels:
            assert held.condition == "cancelled", kinds
            return
        assert held.condition == "interrupted" and held.lease.owner is None and "run.recovered" not in kinds, kinds
        if tell is not is_late:
            assert kind in kinds and await two.rt.store.inbox(run.run_id) == [], kinds
        three = await holdfast_world.host(skill)
        resumed: Run[Paper] = await three.do(three.rt.resume(run.run_id, actor="ada"))
        if tell not in (approves, denies):
            resumed = await three.do(three.rt.approve(run.run_id, actor="ada"))
        assert resumed.status == "completed", resumed.error
        assert (resumed.values["said"], resumed.values["name"]) == ("deny" if tell is denies else "approve", "heard rain" if tell is signals else "")

    holdfast_world.run(story())
