"""A thread that is busy, or whose holder waits: what becomes of the next message (§5.13, §10.8)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Runtime, flow
from holdfast.core import canon
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.commit import InboxItem
from holdfast.core.errors import InvalidInput, LaneBusy
from holdfast.handle import Run
from tests.engine.support import Crash, Dying, World, says


@flow("chat")
async def chat(ctx: Context, text: str, asks: bool = False) -> str:
    if asks:
        await ctx.approve("ok?")
    return text


@flow("hears")
async def hears(ctx: Context) -> None:
    await ctx.wait("go")


async def busy(rt: Runtime, **options: Any) -> Run[Any]:
    """The holder of the thread ``t``, resting in a wait."""
    run = await rt.invoke(chat, {"text": "first", "asks": True}, thread_id="t", **options)
    assert run.status == "waiting_for_human"
    return run


async def say(rt: Runtime, text: str, how: str = "submit", **options: Any) -> Run[Any]:
    return await (rt.submit if how == "submit" else rt.invoke)(chat, {"text": text}, thread_id="t", **options)


async def settled(rt: Runtime, *runs: Run[Any]) -> list[str]:
    await rt.worker(until_idle=True)
    return [(await rt.get(r.run_id)).status.value for r in runs]


@pytest.mark.parametrize("how", ["submit", "invoke"])
async def test_a_run_behind_a_waiting_holder_comes_back_queued(how: str) -> None:
    """§5.13: at once, with who is before it; nothing hangs; it goes on when its turn comes, in order (§10.8)."""
    async with World().runtime(chat) as rt:
        holder = await busy(rt)
        second = await asyncio.wait_for(say(rt, "second", how), 20)
        third = await asyncio.wait_for(say(rt, "third", how), 20)
        assert (second.status, second.condition, second.blocked_by) == ("pending", "queued", holder.run_id)
        assert third.blocked_by == holder.run_id
        await rt.approve(holder.run_id, drive=False)
        assert await settled(rt, holder, second, third) == ["completed"] * 3
        done = [(await rt.get(r.run_id)).started_at for r in (second, third)]
        assert done == sorted(done, key=str)


@pytest.mark.parametrize("how", ["submit", "invoke"])
async def test_reject_is_told(how: str) -> None:
    """§5.13: a typed refusal that names the holder; nothing is created. A free thread, or another, is no reason to refuse."""
    async with World().runtime(chat) as rt:
        holder = await busy(rt)
        with pytest.raises(LaneBusy, match=holder.run_id) as refused:
            await say(rt, "second", how, on_busy="reject")
        assert refused.value.exit_code == 6 and len(await rt.runs()) == 1
        other = await rt.invoke(chat, {"text": "x"}, thread_id="u", on_busy="reject")
        assert other.status == "completed"
        await rt.approve(holder.run_id)
        run = await say(rt, "second", how, on_busy="reject")
        assert await settled(rt, run) == ["completed"]


@pytest.mark.parametrize("how", ["submit", "invoke"])
async def test_ack_is_on_record_and_never_runs(how: str) -> None:
    """§5.13: accepted, with its input and who was before it; ended at once, so that it takes no turn."""
    async with World().runtime(chat) as rt:
        holder = await busy(rt)
        run = await say(rt, "second", how, on_busy="ack", key="m2")
        assert (run.status, run.condition, run.stop_reason, run.blocked_by) == ("canceled", "halted", "lane_busy", holder.run_id)
        assert run.started_at is None and run.values == {"text": "second"}
        again = await say(rt, "second", how, on_busy="ack", key="m2")
        assert again.deduplicated and again.run_id == run.run_id
        await rt.approve(holder.run_id, drive=False)
        assert await settled(rt, holder, run) == ["completed", "canceled"]
        assert [p for p in await rt.check(run.run_id) if p.severity == "error"] == []
        free = await say(rt, "third", how, on_busy="ack")
        assert await settled(rt, free) == ["completed"], "a free thread is not busy"


@pytest.mark.parametrize("how", ["submit", "invoke"])
async def test_replace_takes_the_place_of_what_is_queued(how: str) -> None:
    """§5.13: the queued ones end canceled, in the commit that queues the new one; the holder stays."""
    async with World().runtime(chat) as rt:
        holder = await busy(rt)
        queued = [await say(rt, t) for t in ("second", "third")]
        newest = await say(rt, "fourth", how, on_busy="replace")
        assert [(await rt.get(r.run_id)).status for r in queued] == ["canceled", "canceled"]
        assert (newest.status, newest.blocked_by) == ("pending", holder.run_id)
        events = await rt.events(queued[0].run_id)
        asked = next(e for e in events if e.type == "run.cancel_requested")
        assert asked.payload["reason"] == f"replaced by {newest.run_id}"
        assert (await rt.get(queued[0].run_id)).started_at is None
        await rt.approve(holder.run_id, drive=False)
        assert await settled(rt, holder, newest, *queued) == ["completed", "completed", "canceled", "canceled"]


async def test_replace_spares_what_has_begun_meanwhile() -> None:
    """§5.13: a command that comes late ends nothing but a queued run."""
    async with World().runtime(chat) as rt:
        first = await say(rt, "first")
        newest = await say(rt, "second", on_busy="replace")
        assert (await rt.get(first.run_id)).status == "canceled" and newest.blocked_by is None
        assert await settled(rt, newest) == ["completed"]
        only = await say(rt, "third", on_busy="replace")
        assert await settled(rt, only) == ["completed"]


async def test_who_lets_go_of_the_lane_or_whose_time_has_not_come_is_not_in_the_way() -> None:
    """§10.8: ``paused_lane="release"``; a run for later is neither the holder nor queued."""
    async with World().runtime(chat) as rt:
        await busy(rt, paused_lane="release")
        later = await rt.submit(chat, {"text": "later"}, thread_id="t", delay=timedelta(days=1))
        run = await say(rt, "second", "invoke", on_busy="reject")
        assert run.status == "completed"
        assert (await say(rt, "third", "invoke", on_busy="replace")).status == "completed"
        assert (await rt.get(later.run_id)).status == "pending"


async def test_a_list_says_of_each_run_who_goes_before_it() -> None:
    """§10.8: those that are queued share the first of their lane; one whose time has not come has its turn by its submission, as ever."""
    async with World().runtime(chat) as rt:
        early = await rt.submit(chat, {"text": "early"}, thread_id="t", delay=timedelta(days=1))
        first, second = await say(rt, "first"), await say(rt, "second")
        late = await rt.submit(chat, {"text": "late"}, thread_id="t", delay=timedelta(days=1))
        other = await rt.submit(chat, {"text": "other"}, thread_id="t", lane="side")
        behind = {early.run_id: None, first.run_id: None, second.run_id: first.run_id, late.run_id: first.run_id, other.run_id: None}
        assert {r.run_id: r.blocked_by for r in await rt.runs()} == behind
        assert {run_id: (await rt.get(run_id)).blocked_by for run_id in behind} == behind


async def test_who_has_let_go_and_is_due_again_is_in_the_way_of_those_that_came_later() -> None:
    """§10.8: claims leave them for it, whatever made it due: a message to a busy thread is told so, and ``invoke`` drives it first."""
    async with World().runtime(chat, hears) as rt:
        older = await rt.invoke(hears, {}, thread_id="t", paused_lane="release")
        assert older.status == "waiting_for_signal" and (await say(rt, "between", "invoke")).status == "completed"
        await rt.store.put(InboxItem(older.run_id, "signal:go:k", cmd.Signal("go", "k", canon.encode(1), "ann"), rt.store.now()))
        queued = await say(rt, "second")
        assert queued.blocked_by == older.run_id
        with pytest.raises(LaneBusy, match=older.run_id):
            await say(rt, "third", on_busy="reject")
        assert (await asyncio.wait_for(say(rt, "fourth", "invoke"), 20)).status == "completed"
        assert [(await rt.get(r.run_id)).status for r in (older, queued)] == ["completed"] * 2


async def test_a_request_key_is_answered_first() -> None:
    """§3.5: the same request again is no new message, busy or not."""
    async with World().runtime(chat) as rt:
        first = await rt.submit(chat, {"text": "first", "asks": True}, thread_id="t", key="m1")
        again = await rt.submit(chat, {"text": "first", "asks": True}, thread_id="t", key="m1", on_busy="reject")
        assert again.deduplicated and again.run_id == first.run_id


async def test_an_unknown_policy_is_named() -> None:
    async with World().runtime(chat) as rt:
        with pytest.raises(InvalidInput, match="on_busy='drop' is not known") as refused:
            await say(rt, "x", on_busy="drop")
        assert refused.value.hint == "one of queue, reject, ack, replace"


async def test_a_crash_right_after_a_replacement_leaves_it_to_whoever_comes() -> None:
    """§5.13, §1.6: the cancel is in the replaced run's inbox with the commit that creates the new one; a worker finds it there."""
    world = World()
    async with world.runtime(chat) as rt:
        holder = await busy(rt)
        queued = await say(rt, "second")
    dying = Dying(world.store, says(ev.RunQueued, reason="in place of 1 queued"), after=True)
    rt = Runtime(dying, skills=[chat], clock=world.clock)  # type: ignore[arg-type]
    await rt.__aenter__()
    with pytest.raises(Crash):
        await say(rt, "third", on_busy="replace")
    async with world.runtime(chat) as rt:
        newest = next(r for r in await rt.runs() if r.run_id not in (holder.run_id, queued.run_id))
        await rt.approve(holder.run_id)
        assert await settled(rt, holder, queued, newest) == ["completed", "canceled", "completed"]
        assert (await rt.get(queued.run_id)).started_at is None
