"""Who comes first: an answer or its deadline, a cancel or the end, one resolver or another (§5.6, §5.10, §10.12)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast import Context, Runtime, flow
from holdfast.core import events as ev
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import AlreadyTerminal, DecisionConflict, HoldfastError, LeaseLost, NotDecidable
from holdfast.handle import Run
from tests.engine.support import World

SOON = 10


@flow("asks")
async def asks(ctx: Context, on_timeout: str = "deliver") -> str:
    return (await ctx.approve("ok?", timeout=SOON, on_timeout=on_timeout)).action


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


async def due(world: World, rt: Runtime, **inputs: Any) -> Run[Any]:
    """A run whose question's deadline has passed, and which nobody has told so."""
    run = await rt.invoke(asks, inputs)
    world.clock.at += (SOON + 1) * 1_000_000
    return run


async def outcome(act: Awaitable[Any]) -> Any:
    try:
        return await act
    except HoldfastError as e:
        return e


# -- an answer and its deadline (T-35) --------------------------------------------------------------


@pytest.mark.parametrize("on_timeout", ["deliver", "halt"])
async def test_an_answer_races_its_deadline(on_timeout: str) -> None:
    """T-35, T-34: both at once, from two processes, the one or the other a little later: one is on record, the other is told; one resume."""
    assert {await race(late, on_timeout) for late in range(0, 33, 4)} == {True, False}, "each came first at times"


async def race(late: int, on_timeout: str) -> bool:
    """An answer ``late`` turns after the start, and a sweep the other way round; whether the answer won."""
    world = World()
    async with world.runtime(asks) as one, world.runtime(asks) as two:
        run = await due(world, one, on_timeout=on_timeout)

        async def after(steps: int, act: Callable[[], Awaitable[Any]]) -> Any:
            for _ in range(steps):
                await asyncio.sleep(0)
            return await outcome(act())

        wait_id = run.waits[0].wait_id
        said, _ = await asyncio.gather(
            after(late, lambda: one.decide(run.run_id, "approve", wait_id=wait_id)), after(32 - late, lambda: two.worker(until_idle=True))
        )
        await two.worker(until_idle=True)
        end = await one.get(run.run_id)
        found = await kinds(one, run.run_id)
        answered = not isinstance(said, HoldfastError)
        assert found.count("wait.decided") + found.count("wait.timed_out") == 1
        assert found.count("wait.decided") == (1 if answered else 0)
        if answered:
            assert (end.status, end.result) == ("completed", "approve")
        else:
            assert isinstance(said, DecisionConflict | AlreadyTerminal | NotDecidable), said
            assert (end.status, end.result) == (("completed", "timeout") if on_timeout == "deliver" else ("canceled", None))
        assert found.count("run.resumed") == (0 if end.status == "canceled" else 1)
        return answered


async def test_an_answer_before_the_sweep_is_not_overruled() -> None:
    """T-35: nobody had fired the deadline, so the answer stands however late it is; the sweep finds nothing to do."""
    world = World()
    async with world.runtime(asks) as rt:
        run = await due(world, rt, on_timeout="halt")
        await rt.decide(run.run_id, "approve")
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).result == "approve" and "wait.timed_out" not in await kinds(rt, run.run_id)


async def test_an_answer_after_the_sweep_is_told_what_was_first() -> None:
    """T-35, §5.10: a late answer is a conflict, and enters nothing."""
    world = World()
    async with world.runtime(asks) as rt:
        run = await due(world, rt)
        wait_id = run.waits[0].wait_id
        await rt.worker(until_idle=True)
        before = await kinds(rt, run.run_id)
        with pytest.raises(DecisionConflict, match="it timed out"):
            await rt.decide(run.run_id, "approve", wait_id=wait_id)
        assert await kinds(rt, run.run_id) == before


# -- two resolvers (T-97) ---------------------------------------------------------------------------


async def test_two_resolvers_and_one_action() -> None:
    """T-97: approve and deny in parallel, from two processes: one wins, the other is told who; one decision row, one action."""
    assert {await resolved(late, 32 - late) for late in range(0, 33, 4)} == {"completed", "canceled"}, "each came first at times"


async def resolved(late: int, later: int) -> str:
    """How a run ends that is denied after so many turns and approved after so many others."""
    acted: list[str] = []

    @flow("acts")
    async def acts(ctx: Context) -> str:
        decision = await ctx.approve("act?")
        await ctx.effect(acted.append, decision.action)
        return decision.action

    world = World()
    async with world.runtime(acts) as one, world.runtime(acts) as two:
        run = await one.invoke(acts)

        async def after(turns: int, act: Callable[[], Awaitable[Any]]) -> Any:
            for _ in range(turns):
                await asyncio.sleep(0)
            return await outcome(act())

        wait_id = run.waits[0].wait_id
        both = await asyncio.gather(
            after(later, lambda: one.approve(run.run_id, wait_id=wait_id)), after(late, lambda: two.deny(run.run_id, reason="no", wait_id=wait_id))
        )
        end = await one.get(run.run_id)
        lost = [b for b in both if isinstance(b, HoldfastError)]
        assert len(lost) == 1 and isinstance(lost[0], DecisionConflict | AlreadyTerminal), both
        assert (await kinds(one, run.run_id)).count("wait.decided") == 1
        assert acted == (["approve"] if end.status == "completed" else []) and end.status in ("completed", "canceled")
        return end.status.value


# -- a cancel and the end (T-90, T-92) --------------------------------------------------------------


class Between:
    """One process's way to a store; ``then`` happens just before, or just after, the commit that completes a run."""

    def __init__(self, store: Any, then: Callable[[str], Awaitable[None]], *, after: bool) -> None:
        self._store = store
        self._then = then
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Commit) -> Tip:
        completes = any(isinstance(e.fact, ev.RunCompleted) for e in commit.events)
        if completes and not self._after:
            await self._then(commit.run.run_id)
        tip: Tip = await self._store.commit(commit)
        if completes and self._after:
            await self._then(commit.run.run_id)
        return tip


@flow("quick")
async def quick(ctx: Context) -> str:
    return await ctx.step(str, "done")


@pytest.mark.parametrize("after", [False, True])
async def test_a_cancel_meets_the_last_commit(after: bool) -> None:
    """T-92, X-19: what is durable first holds: a cancel that comes just before the completion ends the run; after it, it is refused."""
    world, said = World(), []

    async def cancel(run_id: str) -> None:
        async with world.runtime() as other:
            said.append(await outcome(other.cancel(run_id)))

    async with Runtime(Between(world.store, cancel, after=after), skills=[quick], clock=world.clock) as rt:  # type: ignore[arg-type]
        run = await rt.invoke(quick)
        assert run.status == ("completed" if after else "canceled")
        assert isinstance(said[0], AlreadyTerminal) is after
        with pytest.raises(AlreadyTerminal):
            await rt.cancel(run.run_id)
        found = await kinds(rt, run.run_id)
        assert found.count("run.completed") + found.count("run.canceled") == 1, "never both"


async def test_a_cancel_in_mid_step_comes_before_the_end() -> None:
    """T-92: asked for while the step runs, it ends the run canceled, and nothing completes it afterwards."""
    world, begun = World(), asyncio.Event()

    @flow("slow")
    async def slow(ctx: Context) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with world.runtime(slow) as owner, world.runtime() as other:
        driving = asyncio.ensure_future(owner.invoke(slow))
        await begun.wait()
        run_id = (await other.runs())[0].run_id
        await other.cancel(run_id)
        run = await driving
        found = await kinds(other, run_id)
        assert run.status == "canceled" and "run.completed" not in found and found.count("run.canceled") == 1


async def test_a_run_whose_lease_has_expired_is_canceled_at_once() -> None:
    """T-90: nobody waits for an owner that has been silent for too long; when it wakes it can change nothing (§10.2)."""
    world, begun, go = World(), asyncio.Event(), asyncio.Event()

    @flow("frozen")
    async def frozen(ctx: Context) -> str:
        begun.set()
        await go.wait()
        return await ctx.step(str, "too late")

    async with world.runtime(frozen) as owner, world.runtime() as other:
        driving = asyncio.ensure_future(owner.invoke(frozen))
        await begun.wait()
        run_id = (await other.runs())[0].run_id
        world.clock.at += 31_000_000
        run = await other.cancel(run_id, actor="ada")
        assert (run.status, run.stop_reason) == ("canceled", "canceled")
        go.set()
        with pytest.raises(LeaseLost):
            await driving
        found = await kinds(other, run_id)
        assert found.count("run.canceled") == 1 and "step.completed" not in found
        assert (await other.get(run_id)).status == "canceled"
