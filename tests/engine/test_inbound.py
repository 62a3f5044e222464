"""§9.8, §3.5: what comes in twice under one key happens once. §9.2, T-68: what is to be sent keeps its key through crash and recovery."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from holdfast import Context, Runtime, flow
from holdfast.core.errors import InvalidInput, RequestConflict
from holdfast.testing import VirtualClock, World
from holdfast.testing.crash import Fault, at_write
from tests.outbox.test_recomputed import KEYS, letters

WEEK = dt.timedelta(days=7).total_seconds()


@flow("hears")
async def hears(ctx: Context, n: int = 0) -> Any:
    return await ctx.wait("go")


async def test_a_message_that_comes_twice_advances_nothing() -> None:
    """§9.8: the same key again, before the answer and after the end: the same run, no event more."""
    async with Runtime("memory:", skills=[hears]) as rt:
        run = await rt.submit("hears", {"n": 1}, key="m1")
        before = await rt.events(run.run_id)
        again = await rt.submit("hears", {"n": 1}, key="m1")
        assert (again.run_id, again.deduplicated) == (run.run_id, True)
        assert await rt.events(run.run_id) == before
        with pytest.raises(RequestConflict):
            await rt.submit("hears", {"n": 2}, key="m1")
        await rt.invoke("hears", {"n": 1}, key="m1")
        for _ in range(3):
            await rt.signal(run.run_id, "go", "once", key="s1")
        run = await rt.resume(run.run_id)
        assert run.result == "once"
        after = await rt.events(run.run_id)
        assert [e.type for e in after].count("signal.received") <= 1
        assert (await rt.submit("hears", {"n": 1}, key="m1")).run_id == run.run_id
        assert await rt.events(run.run_id) == after and len(await rt.runs()) == 1


async def test_a_key_is_kept_for_a_week() -> None:
    """§9.8, §3.5: seven days after the run was created."""
    clock = VirtualClock()
    async with Runtime("memory:", skills=[hears], clock=clock) as rt:
        ended = await rt.submit("hears", key="ended")
        await rt.cancel(ended.run_id)
        clock.advance(WEEK - 1)
        assert (await rt.submit("hears", key="ended")).run_id == ended.run_id
        clock.advance(2)
        assert (await rt.submit("hears", key="ended")).run_id != ended.run_id


@pytest.mark.parametrize("rests", ["pending", "waiting"])
async def test_a_key_is_kept_for_as_long_as_its_run_is_open(rests: str) -> None:
    """§3.5: also after the week; what repeats the request gets that run, another input is refused, a fork's key likewise."""
    clock = VirtualClock()
    async with Runtime("memory:", skills=[hears], clock=clock) as rt:
        run = await (rt.submit if rests == "pending" else rt.invoke)("hears", {"n": 1}, key="k")
        fork = None if rests == "pending" else await rt.fork(run.run_id, key="f", reason="try")
        clock.advance(2 * WEEK)
        again = await rt.submit("hears", {"n": 1}, key="k")
        assert (again.run_id, again.deduplicated) == (run.run_id, True)
        with pytest.raises(RequestConflict):
            await rt.submit("hears", {"n": 2}, key="k")
        if fork is not None:
            assert (await rt.fork(run.run_id, key="f", reason="try")).run_id == fork.run_id
        await rt.cancel(run.run_id)
        assert (await rt.submit("hears", {"n": 1}, key="k")).run_id != run.run_id


@pytest.mark.parametrize("crash", range(1, 8))
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_the_key_of_what_is_sent_survives_a_crash(holdfast_world: World, fault: Fault, crash: int) -> None:
    """§9.2, T-68: crashed at any write and recovered, a step sends under the same keys: lineage, super-step, task and index."""
    graph = letters([])

    async def story() -> list[str]:
        one = await holdfast_world.host(graph, plan=at_write(crash, fault))
        two = await holdfast_world.host(graph)
        run = await two.do(two.rt.submit(graph, key="k"))
        one.start(one.rt.worker(dispatch=False))
        await holdfast_world.clock.sleep(120)
        two.start(two.rt.worker(dispatch=False))
        await holdfast_world.clock.sleep(300)
        assert (await two.do(two.rt.get(run.run_id))).condition == "done"
        return [i.key.removeprefix(run.run_id) for i in await two.do(two.rt.intents(run.run_id))]

    keys = holdfast_world.run(story())
    assert keys == KEYS, keys


@pytest.mark.parametrize("name", ["a:b", ":", "order:", ":paid"])
async def test_a_signal_s_name_holds_no_colon(name: str) -> None:
    """§5.11: what stands on record under a name and a key could be read in two ways; nothing is recorded, and the run waits on."""
    async with Runtime("memory:", skills=[hears]) as rt:
        run = await rt.invoke("hears", {}, thread_id="t", detach=True)
        before = await rt.events(run.run_id)
        for at in (run.run_id, "t"):
            with pytest.raises(InvalidInput, match="colon"):
                await rt.signal(at, name, 1)
        assert await rt.events(run.run_id) == before and await rt.store.inbox(run.run_id) == []


@pytest.mark.parametrize("name", ["a:b", ":", "", "a" * 600])
async def test_nobody_waits_for_a_signal_that_cannot_be_sent(name: str) -> None:
    """§5.11: the run would wait without an end."""

    @flow("f", version="1")
    async def waits(ctx: Context) -> object:
        return await ctx.wait(name)

    async with Runtime("memory:", skills=[waits]) as rt:
        run = await rt.invoke(waits)
        assert run.condition == "failed" and run.error is not None and "signal" in run.error.message
