"""What a run did is taken back when it fails or is cancelled (§6.11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, flow
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.commit import Commit, InboxItem, Tip
from holdfast.core.effects import Effect
from holdfast.core.errors import EffectsUndone, StoreError, StoreUnavailable
from holdfast.core.policy import allow, deny, require_human
from holdfast.handle import Run
from holdfast.stores import MemoryStore
from tests.engine.outside import Crash, House


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


class Shop:
    """Bookings outside, and what was taken back of them; ``log`` is all that happened, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.crash_at = ""
        self.broken: set[str] = set()
        self.keys: list[str] = []

    def _do(self, what: str) -> None:
        if what in self.broken:
            raise ConnectionError(f"{what} is down")
        self.log.append(what)
        if what == self.crash_at:
            self.crash_at = ""
            raise Crash

    async def book(self, what: str) -> str:
        self._do(f"book {what}")
        return f"receipt {what}"

    async def cancel(self, receipt: str, what: str) -> str:
        assert receipt == f"receipt {what}"
        self._do(f"cancel {what}")
        return f"cancelled {what}"

    def release(self, receipt: str, *, idempotency_key: str) -> None:
        """A plain function, of one argument and the key."""
        self.keys.append(idempotency_key)
        self._do(f"release {receipt.partition(' ')[2]}")

    @property
    def undone(self) -> list[str]:
        return [x for x in self.log if not x.startswith("book")]


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


def trip(shop: Shop, fails: bool = True) -> Any:
    """A flow that books three things and then fails, for as long as ``pay`` is broken."""

    @flow("trip")
    async def travel(ctx: Context) -> str:
        await ctx.effect(shop.book, "flight", undo=shop.cancel)
        await ctx.effect(shop.book, "hotel", undo=shop.cancel)
        await ctx.effect(shop.book, "guide")
        await ctx.gather(ctx.effect(shop.book, "car", undo=shop.release), ctx.step(len, "x"))
        if fails:
            await ctx.effect(shop.book, "payment")
        else:
            await ctx.approve("Go?")
        return "done"

    return travel


async def test_a_failed_run_takes_back_what_it_did(house: House) -> None:
    """§6.11: the last one first, each as an effect of its own, before the run has ended."""
    shop = Shop()
    shop.broken.add("book payment")
    skill = trip(shop)
    rt = await house.process(skill)
    run = await rt.invoke(skill)
    assert (run.status, run.stop_reason, run.error.message) == ("failed", "step_failed", "book payment is down")
    assert shop.log == ["book flight", "book hotel", "book guide", "book car", "release car", "cancel hotel", "cancel flight"]
    effects = await rt.effects(run.run_id)
    flight, hotel, guide, car, payment, *undos = effects
    assert [e.status.value for e in effects] == ["recorded"] * 4 + ["failed"] + ["recorded"] * 3
    assert [u.source_effect_id for u in undos] == [car.effect_id, hotel.effect_id, flight.effect_id]
    assert [u.effect_id for u in undos] == [car.undone, hotel.undone, flight.undone] and guide.undone == ""
    assert [u.key for u in undos] == [f"{e.key}:undo" for e in (car, hotel, flight)] and shop.keys == [f"{car.key}:undo"]
    told = await kinds(rt, run.run_id)
    assert told[-1] == "checkpoint.saved" and told[-2] == "run.failed"
    assert told.count("side_effect.attempted") == told.count("side_effect.recorded") + 1 == 8


async def test_a_completed_run_takes_nothing_back(house: House) -> None:
    shop = Shop()
    skill = trip(shop)
    rt = await house.process(skill)
    run = await rt.invoke(skill)
    assert run.status == "completed" and shop.undone == []


# -- cancel -------------------------------------------------------------------------------------------


async def test_a_cancel_at_rest_takes_back_first(house: House) -> None:
    """§10.12: asked for, taken back, canceled; the run leaves its rest for it, and its question is closed in the end."""
    shop = Shop()
    skill = trip(shop, fails=False)
    rt = await house.process(skill)
    run = await rt.invoke(skill)
    assert (run.status, shop.undone) == ("waiting_for_human", [])
    run = await rt.cancel(run.run_id, actor="ada", reason="changed my mind")
    assert (run.status, run.stop_reason, run.condition, run.waits) == ("canceled", "canceled", "cancelled", ())
    assert shop.undone == ["release car", "cancel hotel", "cancel flight"]
    told = await kinds(rt, run.run_id)
    asked = told.index("run.cancel_requested")
    assert asked < told.index("side_effect.attempted", asked) < told.index("run.canceled")
    [resumed] = [e for e in await rt.events(run.run_id) if e.type == "run.resumed"]
    assert (resumed.payload["cause"], resumed.actor) == ("cancel", "ada")


async def test_a_cancel_without_the_code_leaves_it_to_a_worker(house: House) -> None:
    """A process that has not the skill asks; whoever has it takes back and ends the run."""
    shop = Shop()
    skill = trip(shop, fails=False)
    rt = await house.process(skill)
    run = await rt.invoke(skill)
    desk = await house.process()
    run = await desk.cancel(run.run_id)
    assert (run.status, run.condition, shop.undone) == ("running", "queued", [])
    other = await house.process(trip(shop, fails=False))
    await other.worker(until_idle=True)
    run = await other.get(run.run_id)
    assert (run.status, shop.undone) == ("canceled", ["release car", "cancel hotel", "cancel flight"])


async def test_a_cancel_where_the_code_has_changed_is_accepted(house: House) -> None:
    """§3.2: a process with another shape of the skill cannot take back; it asks all the same, and asked twice the run ends as it stands."""
    shop = Shop()
    skill = trip(shop, fails=False)
    rt = await house.process(skill)
    run = await rt.invoke(skill)

    @flow("trip")
    async def other(ctx: Context, where: str = "home") -> None: ...

    changed = await house.process(other)
    run = await changed.cancel(run.run_id)
    assert (run.status, run.condition, shop.undone) == ("running", "queued", [])
    run = await changed.cancel(run.run_id)
    assert (run.status, run.stop_reason, shop.undone) == ("canceled", "canceled", [])


async def test_a_cancelled_run_that_had_been_left_behind(house: House) -> None:
    """T-90: the owner is dead; the run is still canceled only after it has taken back. The unknown effect stays listed."""
    shop = Shop()
    shop.crash_at = "book guide"
    skill = trip(shop)
    rt = await house.process(skill)
    with pytest.raises(Crash):
        await rt.invoke(skill)
    house.kill(rt)
    other = await house.process(trip(shop))
    [run] = await other.runs()
    run = await other.cancel(run.run_id)
    assert (run.status, shop.undone) == ("canceled", ["cancel hotel", "cancel flight"])
    assert [e.status.value for e in await other.effects(run.run_id)] == ["recorded", "recorded", "unknown", "recorded", "recorded"]


async def test_a_live_run_takes_back_at_its_boundary(house: House) -> None:
    """T-89: the cancel comes in mid-step; what finished is taken back in the same drive."""
    shop, at_work = Shop(), asyncio.Event()

    @flow("long")
    async def long(ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=shop.cancel)
        at_work.set()
        await asyncio.Event().wait()

    rt = await house.process(long)
    drive = asyncio.ensure_future(rt.invoke(long))
    await at_work.wait()
    await rt.cancel((await rt.runs())[0].run_id)
    run = await drive
    assert (run.status, shop.undone) == ("canceled", ["cancel flight"])


@pytest.mark.parametrize("how", ["deny", "halt"])
async def test_a_halt_takes_nothing_back(house: House, how: str) -> None:
    """A person who denies or halts says that nothing more is done (decision 58)."""
    shop = Shop()

    @flow("careful")
    async def careful(ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=shop.cancel)
        await (ctx.approve("Go?") if how == "deny" else ctx.handoff("Good?"))

    rt = await house.process(careful)
    run = await rt.invoke(careful)
    run = await (rt.deny(run.run_id, reason="no") if how == "deny" else rt.decide(run.run_id, "halt"))
    assert (run.status, run.condition, shop.undone) == ("canceled", "halted", [])


async def test_a_question_that_nobody_answered_in_time_may_fail_the_run(house: House) -> None:
    """§5.10 with on_timeout="fail": the run at rest fails, so it takes back."""
    shop = Shop()

    @flow("waits")
    async def waits(ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=shop.cancel)
        await ctx.approve("Go?", timeout=60, on_timeout="fail")

    rt = await house.process(waits)
    run = await rt.invoke(waits)
    house.clock.forward(61)
    await rt.worker(until_idle=True)
    run = await rt.get(run.run_id)
    assert (run.status, run.stop_reason, shop.undone) == ("failed", "wait_timed_out", ["cancel flight"])
    assert (await kinds(rt, run.run_id)).count("wait.timed_out") == 1


# -- crashes, failures, people --------------------------------------------------------------------------


async def test_a_crash_while_taking_back_goes_on_with_that(house: House) -> None:
    """Killed after an undo acted and before its result: it is not done again, a person says; no node runs meanwhile."""
    shop = Shop()
    shop.broken.add("book payment")
    shop.crash_at = "cancel hotel"
    skill = trip(shop)
    rt = await house.process(skill)
    with pytest.raises(Crash):
        await rt.invoke(skill)
    house.kill(rt)
    shop.broken.clear()  # the node would succeed now, and must not be asked
    other = await house.process(trip(shop))
    [run] = await other.runs()
    run = await other.resume(run.run_id)
    assert (run.status, shop.undone) == ("waiting_for_human", ["release car", "cancel hotel"])
    [wait] = run.waits
    assert wait.kind == "effect" and wait.show["effect"] == "cancel" and wait.show["closed"] is True
    await other.decide(run.run_id, "record_result", payload="I looked: cancelled", actor="ada")
    run = await other.resume(run.run_id)
    assert (run.status, run.error.message) == ("failed", "book payment is down"), "it ends as it was to end"
    assert shop.undone == ["release car", "cancel hotel", "cancel flight"] and "book payment" not in shop.log
    assert all(e.undone for e in await other.effects(run.run_id) if e.undo)


async def test_an_undo_that_hands_on_its_key_goes_again(house: House) -> None:
    """§6.5: the effect's receiver dedupes by the key, and so it does for its undo, which asks for one."""
    shop = Shop()

    async def book(what: str, idempotency_key: str) -> str:
        return await shop.book(what)

    @flow("keyed")
    async def keyed(ctx: Context) -> None:
        await ctx.effect(book, "car", idempotent=True, undo=shop.release)
        raise RuntimeError("no")

    shop.crash_at = "release car"
    rt = await house.process(keyed)
    with pytest.raises(Crash):
        await rt.invoke(keyed)
    house.kill(rt)
    other = await house.process(keyed)
    [run] = await other.runs()
    run = await other.resume(run.run_id)
    assert (run.status, shop.log) == ("failed", ["book car", "release car", "release car"])
    assert shop.keys[0] == shop.keys[1]


async def test_an_undo_that_fails_is_on_record_and_the_rest_goes_on(house: House) -> None:
    shop = Shop()
    shop.broken |= {"book payment", "cancel hotel"}
    skill = trip(shop)
    rt = await house.process(skill)
    run = await rt.invoke(skill)
    assert (run.status, run.error.message) == ("failed", "book payment is down"), "the run's own failure stays what it is"
    assert shop.undone == ["release car", "cancel flight"]
    found = {e.source_effect_id or e.effect_id: e for e in await rt.effects(run.run_id)}
    [hotel] = [e for e in await rt.effects(run.run_id) if e.path == "1" and e.undo]
    assert (hotel.undone, found[hotel.effect_id].status, found[hotel.effect_id].error.message) == ("", "failed", "cancel hotel is down")


async def test_abandon_leaves_it_standing(house: House) -> None:
    shop = Shop()
    shop.broken.add("book payment")
    shop.crash_at = "cancel hotel"
    skill = trip(shop)
    rt = await house.process(skill)
    with pytest.raises(Crash):
        await rt.invoke(skill)
    house.kill(rt)
    other = await house.process(trip(shop))
    [run] = await other.runs()
    await other.resume(run.run_id)
    await other.decide(run.run_id, "abandon", actor="ada")
    run = await other.resume(run.run_id)
    assert (run.status, shop.undone) == ("failed", ["release car", "cancel hotel", "cancel flight"])
    assert [e.undone != "" for e in await other.effects(run.run_id) if e.undo] == [True, False, True]


async def test_a_second_cancel_ends_it_as_it_stands(house: House) -> None:
    """A run never hangs in what it takes back: cancelled again while a person is asked, it ends and says what is left."""
    shop = Shop()
    skill = trip(shop, fails=False)
    rt = await house.process(skill)
    run = await rt.invoke(skill)
    shop.crash_at = "cancel hotel"
    with pytest.raises(Crash):
        await rt.cancel(run.run_id)
    house.kill(rt)
    other = await house.process(trip(shop, fails=False))
    run = await other.resume(run.run_id)
    assert run.waits[0].kind == "effect" and run.status == "waiting_for_human"
    run = await other.cancel(run.run_id)
    assert (run.status, shop.undone) == ("canceled", ["release car", "cancel hotel"])


async def test_a_function_nobody_can_find_is_for_a_person(house: House) -> None:
    """Made inside the node, it dies with its process; another one asks rather than guess. Nothing hangs, nothing is imported."""
    shop = Shop()

    @flow("closed")
    async def closed(ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=lambda receipt: shop.log.append(f"undid {receipt}"))
        await ctx.approve("Go?")

    rt = await house.process(closed)
    run = await rt.invoke(closed)
    other = await house.process(closed)
    run = await other.cancel(run.run_id)
    [wait] = run.waits
    assert (run.status, wait.kind, wait.available_actions) == ("waiting_for_human", "effect", ("record_result", "abandon", "halt"))
    assert "cannot find" in wait.prompt and shop.undone == []
    await other.decide(run.run_id, "record_result", payload="by hand", actor="ada")
    run = await other.resume(run.run_id)
    flight, undo = await other.effects(run.run_id)
    assert (run.status, flight.undone, undo.status) == ("canceled", undo.effect_id, "recorded")


@pytest.mark.parametrize("why", ["unknown", "denied"])
@pytest.mark.parametrize(("action", "undone"), [("record_result", True), ("abandon", False)])
async def test_an_undo_that_died_in_its_act_is_asked_about_where_nobody_may_do_it_again(house: House, why: str, action: str, undone: bool) -> None:
    """§6.5: its attempt is in doubt, whether the process that continues lacks its function or the policy forbids it by now. The answer settles that attempt."""
    shop = Shop()

    def closed() -> Any:
        undo = shop.cancel if why == "denied" else lambda receipt, what: shop.cancel(receipt, what)

        @flow("closed")
        async def made(ctx: Context) -> None:
            await ctx.effect(shop.book, "flight", undo=undo)
            raise RuntimeError("no")

        return made

    skill = closed()
    shop.crash_at = "cancel flight"
    rt = await house.process(skill)
    with pytest.raises(Crash):
        await rt.invoke(skill)
    house.kill(rt)
    other = await house.process(closed(), **({"policy": lambda request: deny("the season is over") if request.undo else allow()} if why == "denied" else {}))
    [run] = await other.runs()
    run = await other.resume(run.run_id)
    [wait] = run.waits
    assert (run.status, wait.kind, wait.available_actions) == ("waiting_for_human", "effect", ("record_result", "abandon", "halt"))
    assert ("cannot find" if why == "unknown" else "the season is over") in wait.prompt and "outcome is unknown" in wait.prompt
    flight, undo = await other.effects(run.run_id)
    assert (undo.status, wait.effect_id, wait.show["closed"]) == ("unknown", undo.effect_id, True)
    await other.decide(run.run_id, action, payload="looked" if undone else ..., actor="ada")
    run = await other.resume(run.run_id)
    flight, undo = await other.effects(run.run_id)
    assert (run.status, run.error.message, shop.undone) == ("failed", "no", ["cancel flight"])
    assert (undo.status, flight.undone) == (("recorded", undo.effect_id) if undone else ("abandoned", ""))
    assert [p.code for p in await other.check(run.run_id)] == []


async def test_what_a_person_undid_is_not_undone_again(house: House) -> None:
    """The process that has the function goes on after somebody was asked by one that has not: the answer counts (§6.5)."""
    shop = Shop()

    @flow("closed")
    async def closed(ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=lambda receipt: shop.log.append(f"undid {receipt}"))
        await ctx.approve("Go?")

    knows = await house.process(closed)
    run = await knows.invoke(closed)
    other = await house.process(closed)
    await other.cancel(run.run_id)
    await other.decide(run.run_id, "record_result", payload="by hand", actor="ada")
    run = await knows.resume(run.run_id)
    flight, undo = await knows.effects(run.run_id)
    assert (run.status, flight.undone, undo.status, shop.undone) == ("canceled", undo.effect_id, "recorded", [])


@pytest.mark.parametrize("who", ["at_rest", "worker"])
async def test_a_second_cancel_does_not_pass_over_an_answer_about_an_undo(house: House, who: str) -> None:
    """§6.5, §10.12: what a person has said about an undo is recorded before the run ends as it stands; a resume does not go by what they have undone."""
    shop = Shop()

    @flow("closed")
    async def closed(ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=lambda receipt: None)
        await ctx.effect(shop.book, "hotel", undo=lambda receipt: None)
        await ctx.approve("Go?")

    run = await (await house.process(closed)).invoke(closed)
    other = await house.process(closed)
    await other.cancel(run.run_id)
    [wait] = (await other.get(run.run_id)).waits
    assert "book is to be undone" in wait.prompt
    await other.decide(run.run_id, "record_result", payload="by hand", actor="ada")
    if who == "at_rest":
        await other.cancel(run.run_id)
    else:
        await other.store.put(InboxItem(run_id=run.run_id, key="cancel", command=cmd.Cancel("ada"), put_at=other.store.now()))
    await other.worker(until_idle=True)
    run = await other.get(run.run_id)
    flight, hotel, undo = await other.effects(run.run_id)
    assert (run.status, run.waits, hotel.undone, undo.status, flight.undone) == ("canceled", (), undo.effect_id, "recorded", "")
    run = await other.resume(run.run_id)
    assert (run.condition, shop.log) == ("awaiting_gate_decision", ["book flight", "book hotel", "book hotel"])


async def test_a_run_whose_code_is_gone_is_ended_by_any_flow_of_its_name(house: House) -> None:
    """§10.12: no node runs while effects are undone. So a cancel that waits until the answer about an undo is recorded needs no more than a process that takes the run up."""
    shop = Shop()

    @flow("closed")
    async def closed(ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=shop.cancel)
        await ctx.approve("Go?")

    @flow("closed")
    async def empty(ctx: Context) -> None:
        raise AssertionError("no node runs")

    run = await (await house.process(closed)).invoke(closed)
    other = await house.process(empty)
    await other.cancel(run.run_id)
    await other.worker(until_idle=True)
    [wait] = (await other.get(run.run_id)).waits
    assert "which the process that executes the run cannot find" in wait.prompt
    await other.decide(run.run_id, "record_result", payload="by hand", actor="ada")
    await other.cancel(run.run_id)
    assert (await other.get(run.run_id)).condition == "queued"
    await other.worker(until_idle=True)
    run = await other.get(run.run_id)
    flight, undo = await other.effects(run.run_id)
    assert (run.status, run.waits, flight.undone, undo.status, shop.log) == ("canceled", (), undo.effect_id, "recorded", ["book flight"])


async def test_what_a_person_said_of_an_undo_in_doubt_counts_where_it_may_be_done(house: House) -> None:
    """The answer was given to a process whose policy forbids the undo; one without that policy goes on before the attempt is settled (§6.5)."""
    shop = Shop()

    @flow("closed")
    async def closed(ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=shop.cancel)
        raise RuntimeError("no")

    shop.crash_at = "cancel flight"
    rt = await house.process(closed)
    with pytest.raises(Crash):
        await rt.invoke(closed)
    house.kill(rt)
    [run] = await (other := await house.process(closed, policy=lambda request: deny("the season is over") if request.undo else allow())).runs()
    run = await other.resume(run.run_id)
    assert "the season is over" in run.waits[0].prompt
    await other.decide(run.run_id, "record_result", payload="looked", actor="ada")
    run = await (await house.process(closed)).resume(run.run_id)
    flight, undo = await other.effects(run.run_id)
    assert (run.status, undo.status, flight.undone, shop.undone) == ("failed", "recorded", undo.effect_id, ["cancel flight"])


async def test_a_cancel_that_reaches_a_run_with_its_answer_may_ask_about_the_undo(house: House) -> None:
    """A worker has claimed the run because it was answered; it begins to undo before the run has left its rest, and must ask a person (§2.4, §6.11)."""
    shop = Shop()

    @flow("closed")
    async def closed(ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=lambda receipt: None)
        await ctx.gather(ctx.approve("Go?"), ctx.approve("Sure?"))

    rt = await house.process(closed)
    run = await rt.invoke(closed)
    other = await house.process(closed)
    await rt.approve(run.run_id, wait_id=run.waits[0].wait_id, drive=False)
    await rt.store.put(InboxItem(run_id=run.run_id, key="cancel", command=cmd.Cancel("ada"), put_at=rt.store.now()))
    await other.worker(until_idle=True)
    run = await other.get(run.run_id)
    [wait] = run.waits
    assert (run.status, wait.kind) == ("waiting_for_human", "effect") and "cannot find" in wait.prompt
    await other.decide(run.run_id, "record_result", actor="ada")
    await other.worker(until_idle=True)
    assert (await other.get(run.run_id)).status == "canceled"


async def withdraw(receipt: str) -> None:
    """Takes a letter back; it stands in its module, not in a class."""


async def test_an_undo_goes_by_the_name_of_its_function(house: House) -> None:
    """§6.11: in the ledger and wherever a person is asked, without the module."""
    shop = Shop()

    @flow("letters")
    async def letters(ctx: Context) -> None:
        await ctx.effect(shop.book, "letter", undo=withdraw)
        raise RuntimeError("no")

    rt = await house.process(letters)
    run = await rt.invoke(letters)
    assert [e.capability for e in await rt.effects(run.run_id)] == ["book", "withdraw"]


async def test_the_process_that_made_it_knows_a_function_without_a_name(house: House) -> None:
    shop = Shop()

    @flow("closed")
    async def closed(ctx: Context) -> None:
        for what in ("flight", "hotel"):
            await ctx.effect(shop.book, what, undo=lambda receipt, what=what: shop.log.append(f"undid {what}"))
        raise RuntimeError("no")

    rt = await house.process(closed)
    await rt.invoke(closed)
    assert shop.undone == ["undid hotel", "undid flight"]


# -- policy -------------------------------------------------------------------------------------------


async def test_a_policy_is_asked_about_each(house: House) -> None:
    """§6.11: gated by policy: one is denied and stays done, one is asked about, one is allowed."""
    shop, asked = Shop(), []
    shop.broken.add("book payment")

    def gate(request: Any) -> Any:
        if not request.undo:
            return allow()
        asked.append((request.node, request.undo, request.side_effects))
        if request.undo == "release":
            return deny("cars stay")
        return require_human("Cancel the booking?") if len(asked) == 2 else allow()

    skill = trip(shop)
    rt = await house.process(skill, policy=gate)
    run = await rt.invoke(skill)
    [wait] = run.waits
    assert (run.status, wait.kind, wait.prompt, shop.undone) == ("waiting_for_human", "gate", "Cancel the booking?", [])
    run = await rt.approve(run.run_id, actor="ada")
    assert (run.status, shop.undone) == ("failed", ["cancel hotel", "cancel flight"])
    assert asked == [("trip", "release", "external_action"), ("trip", "cancel", "external_action"), ("trip", "cancel", "external_action")]
    blocked = [e for e in await rt.effects(run.run_id) if e.status == "blocked"]
    assert [(e.capability, e.detail) for e in blocked] == [("release", "cars stay")]
    assert "side_effect.blocked" in await kinds(rt, run.run_id)


async def test_a_denied_undo_leaves_the_rest(house: House) -> None:
    shop = Shop()
    shop.broken.add("book payment")
    skill = trip(shop)
    rt = await house.process(skill, policy=lambda r: require_human("Sure?") if r.undo == "release" else allow())
    run = await rt.invoke(skill)
    run = await rt.deny(run.run_id, reason="keep the car")
    assert (run.status, run.stop_reason, shop.undone) == ("failed", "step_failed", ["cancel hotel", "cancel flight"])


# -- going on afterwards ------------------------------------------------------------------------------


async def test_a_resumed_flow_does_again_what_was_taken_back(house: House) -> None:
    """§7.3: not reused, for it stands no more; under another key, so that a receiver that dedupes does it; all else is served."""
    shop = Shop()
    shop.broken.add("book payment")
    skill = trip(shop)
    rt = await house.process(skill)
    run = await rt.invoke(skill)
    shop.broken.clear()
    shop.log.clear()
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert (run.status, run.result) == ("completed", "done")
    assert shop.log == ["book flight", "book hotel", "book car", "book payment"], "the guide was never taken back"
    keys = [e.key for e in await rt.effects(run.run_id) if e.path == "0"]
    assert keys[1] == f"{keys[0]}:2"


async def test_it_fails_again_and_takes_back_again(house: House) -> None:
    shop = Shop()
    shop.broken |= {"book payment", "cancel hotel"}
    skill = trip(shop)
    rt = await house.process(skill)
    run = await rt.invoke(skill)
    shop.broken.remove("cancel hotel")
    shop.log.clear()
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert run.status == "failed"
    assert shop.log == ["book flight", "book car", "release car", "cancel flight", "cancel hotel"], "the hotel had stood all the time"
    shop.broken.clear()
    shop.log.clear()
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert run.status == "completed" and shop.log == ["book flight", "book hotel", "book car", "book payment"]
    keys = [e.key for e in await rt.effects(run.run_id) if e.path == "0" and e.undo]
    assert keys[1:] == [f"{keys[0]}:2", f"{keys[0]}:3"]


class Trip(State):
    log: Annotated[list[str], append]


def steps(shop: Shop) -> Graph[Trip]:
    graph = Graph("steps", Trip)

    @graph.node(start=True)
    async def fly(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": await ctx.effect(shop.book, "flight", undo=shop.cancel)}

    @graph.node(after="fly")
    async def sleep(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": await ctx.effect(shop.book, "hotel", undo=shop.cancel)}

    @graph.node(after="fly")
    async def drive(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": await ctx.effect(shop.book, "car", undo=shop.cancel)}

    @graph.node(after=["sleep", "drive"])
    async def pay(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": await ctx.effect(shop.book, "payment")}

    return graph


async def test_parallel_steps_and_earlier_ones(house: House) -> None:
    """In the order in which they were recorded, over all super-steps."""
    shop = Shop()
    shop.broken.add("book payment")
    graph = steps(shop)
    rt = await house.process(graph)
    await rt.invoke(graph)
    done = [x.partition(" ")[2] for x in shop.log if x.startswith("book")]
    assert shop.undone == [f"cancel {x}" for x in reversed(done)] and len(done) == 3


async def test_a_graph_does_not_go_on_without_what_its_earlier_steps_did(house: House) -> None:
    """Resumed, it would pay for a flight that is cancelled; a fork does it all again, from the first of them."""
    shop = Shop()
    shop.broken.add("book payment")
    graph = steps(shop)
    rt = await house.process(graph)
    run = await rt.invoke(graph)
    shop.broken.clear()
    with pytest.raises(EffectsUndone, match=r"book \(step 1\).*as if that were still done") as refused:
        await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert "holdfast fork" in refused.value.hint
    shop.log.clear()
    fork = await rt.fork(run.run_id)
    assert fork.status == "completed" and sorted(shop.log) == ["book car", "book flight", "book hotel", "book payment"]
    shop.log.clear()


async def test_a_replay_tells_what_was_taken_back_and_does_not_act_on_from_there(house: House) -> None:
    """T-46, T-47: zero outside calls, as of any replay; but what comes after the records would build on what stands no more."""
    shop = Shop()
    skill = trip(shop, fails=False)
    rt = await house.process(skill)
    run = await rt.cancel((await rt.invoke(skill)).run_id)
    shop.log.clear()
    again = await rt.replay(run.run_id)
    assert again.status == "waiting_for_human" and shop.log == []
    acts = trip(shop)
    rt.add(acts)
    again = await rt.replay(run.run_id)
    assert (again.status, again.stop_reason, shop.log) == ("failed", "effects_undone", [])
    assert "cannot continue from there; a fork carries out" in again.error.message
    again = await rt.replay(run.run_id, effects="reexecute")
    assert again.status == "completed" and sorted(shop.log) == ["book car", "book flight", "book guide", "book hotel", "book payment"]


async def test_a_sibling_that_had_finished_is_done_again(house: House) -> None:
    """In the super-step that failed, a finished task whose effect was taken back has to act again."""
    shop = Shop()
    shop.broken.add("book hotel")
    graph = steps(shop)
    rt = await house.process(graph)
    run = await rt.invoke(graph)
    assert run.status == "failed" and "cancel car" in shop.log
    shop.broken.clear()
    with pytest.raises(EffectsUndone):
        await rt.resume(run.run_id, acknowledge=run.stop_reason)
    run = await rt.fork(run.run_id)
    assert run.status == "completed" and list(run.state.log) == ["receipt flight", "receipt hotel", "receipt car", "receipt payment"]


async def test_a_sibling_is_done_again_in_the_same_run(house: House) -> None:
    shop = Shop()
    shop.broken.add("book hotel")
    graph = Graph("two", Trip)
    for name in ("car", "hotel"):

        async def book(state: Trip, ctx: Context, name: str = name) -> dict[str, Any]:
            return {"log": await ctx.effect(shop.book, name, undo=shop.cancel)}

        graph.node(name, start=True)(book)
    rt = await house.process(graph)
    run = await rt.invoke(graph)
    assert (run.status, shop.log) == ("failed", ["book car", "cancel car"])
    shop.broken.clear()
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert (run.status, shop.log) == ("completed", ["book car", "cancel car", "book car", "book hotel"])
    assert list(run.state.log) == ["receipt car", "receipt hotel"]


# -- declared nodes, sub-flows, tools -----------------------------------------------------------------


async def test_a_declared_node_has_an_undo_of_its_own(house: House) -> None:
    """It is given what the node wrote, and the state that it saw."""
    shop, seen = Shop(), []

    def unbook(writes: Any, state: Any) -> None:
        seen.append((dict(writes), list(state["log"])))

    graph = Graph("declared", Trip)

    @graph.node(start=True, side_effects="external_action", undo=unbook)
    async def fly(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": [await shop.book("flight")]}

    @graph.node(after="fly")
    async def ask(state: Trip, ctx: Context) -> None:
        await ctx.approve("Go?")

    rt = await house.process(graph)
    run = await rt.invoke(graph, {"log": ["start"]})
    other = await house.process(graph)
    run = await other.cancel(run.run_id)
    assert run.status == "canceled" and seen == [({"log": ["receipt flight"]}, ["start"])]


async def test_what_a_sub_flow_did_is_taken_back_too(house: House) -> None:
    shop = Shop()
    child = Graph("child", Trip)

    @child.node(start=True)
    async def fly(state: Trip, ctx: Context) -> dict[str, Any]:
        return {"log": await ctx.effect(shop.book, "flight", undo=shop.cancel)}

    @child.node(after="fly")
    async def fail(state: Trip, ctx: Context) -> None:
        if "book payment" in shop.broken:
            raise RuntimeError("no")

    graph = Graph("parent", Trip)
    graph.subgraph("trip", child, start=True)
    shop.broken.add("book payment")
    rt = await house.process(graph)
    run = await rt.invoke(graph)
    assert (run.status, shop.log) == ("failed", ["book flight", "cancel flight"])
    shop.broken.clear()
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert (run.status, shop.log) == ("completed", ["book flight", "cancel flight", "book flight"])


async def test_a_tool_is_taken_back_by_its_outcome(house: House) -> None:
    seen: list[Any] = []

    def undo(outcome: Any, argv: Any) -> None:
        seen.append((outcome.stdout.strip(), list(argv)))

    @flow("tool")
    async def tool(ctx: Context) -> None:
        await ctx.tool("echo", ["made"], undo=undo)
        raise RuntimeError("no")

    rt = await house.process(tool)
    run = await rt.invoke(tool)
    assert run.status == "failed" and seen == [("made", ["made"])]


async def test_a_shared_effect_is_taken_back_by_the_run_that_did_it(house: House) -> None:
    """§6.3: whoever asks for the key afterwards does it anew; whoever had only been given its result takes nothing back."""
    shop = Shop()

    @flow("order")
    async def order(ctx: Context, ends: str) -> str:
        receipt: str = await ctx.effect(shop.book, "flight", key="order-7", undo=shop.cancel)
        if ends == "badly":
            raise RuntimeError("no")
        if ends == "late":
            await ctx.approve("Go?")
        return receipt

    rt = await house.process(order)
    first = await rt.invoke(order, {"ends": "late"})
    second = await rt.invoke(order, {"ends": "badly"})
    assert second.status == "failed" and shop.undone == []
    await rt.cancel(first.run_id)
    assert shop.undone == ["cancel flight"]
    third = await rt.invoke(order, {"ends": "well"})
    fourth = await rt.invoke(order, {"ends": "well"})
    assert third.status == fourth.status == "completed" and shop.log == ["book flight", "cancel flight", "book flight"]


class Ailing(MemoryStore):
    """A store that cannot be reached once: when something is taken back, by a commit, by a look at the ledger or at a receipt."""

    def __init__(self, verb: str, shop: Shop) -> None:
        super().__init__()
        self.verb, self._shop = verb, shop

    def _fails(self, verb: str) -> None:
        if verb == self.verb and self._shop.undone:
            self.verb = ""
            raise StoreUnavailable("the disk is gone for a moment")

    async def commit(self, commit: Commit) -> Tip:
        if any(isinstance(e.fact, ev.SideEffectAttempted) for e in commit.events):
            self._fails("commit")
        return await super().commit(commit)

    async def effects(self, run_id: str | None = None, **more: Any) -> list[Effect]:
        self._fails("effects")
        return await super().effects(run_id, **more)

    async def blob(self, digest: bytes) -> bytes:
        self._fails("blob")
        return await super().blob(digest)


class Wordy(Shop):
    """Its receipts are so large that they are kept apart."""

    async def book(self, what: str) -> str:
        return (await super().book(what)).ljust(300_000)

    async def cancel(self, receipt: str, what: str) -> str:
        return await super().cancel(receipt.rstrip(), what)

    def release(self, receipt: str, *, idempotency_key: str) -> None:
        super().release(receipt.rstrip(), idempotency_key=idempotency_key)


@pytest.mark.parametrize("verb", ["commit", "effects", "blob"])
async def test_a_store_that_fails_while_something_is_taken_back_ends_no_undo(verb: str) -> None:
    """§1.12, §10.6: it is no failure of the undo: the run stands where it was, and whoever goes on takes back the rest."""
    shop = Wordy() if verb == "blob" else Shop()
    store = Ailing(verb, shop)
    shop.broken.add("book payment")
    skill = trip(shop)
    async with Runtime(store, skills=[skill]) as rt:
        with pytest.raises(StoreError):
            await rt.invoke(skill)
        assert store.verb == "" and shop.undone == ["release car"]
        [run] = await rt.runs()
        assert run.status == "running" and (await kinds(rt, run.run_id)).count("side_effect.failed") == 1, "the booking, and no undo"
        run = await rt.resume(run.run_id)
        assert run.status == "failed" and shop.undone == ["release car", "cancel hotel", "cancel flight"]
        assert all(e.undone for e in await rt.effects(run.run_id) if e.undo)


# -- a person's word that nobody has gone on with -----------------------------------------------------------


def asks_about(shop: Shop) -> Any:
    """Its process dies in the second booking; the third is made of what a person says about that."""

    @flow("asks")
    async def asks(ctx: Context) -> str:
        await ctx.effect(shop.book, "flight", undo=shop.cancel)
        receipt: str = await ctx.effect(shop.book, "hotel", undo=shop.cancel)
        await ctx.approve("Go?")
        return receipt

    return asks


async def asked_about(house: House, shop: Shop, skill: Any) -> tuple[Runtime, str]:
    shop.crash_at = "book hotel"
    rt = await house.process(skill)
    with pytest.raises(Crash):
        await rt.invoke(skill)
    house.kill(rt)
    rt = await house.process(skill)
    [run] = await rt.runs()
    run = await rt.resume(run.run_id)
    assert [w.kind for w in run.waits] == ["effect"]
    return rt, run.run_id


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_what_a_person_said_was_done_is_taken_back(house: House, where: str) -> None:
    """§6.5, §6.11: the answer says that it happened, whether or not the run went on with it before the cancel. It is the last that is known to be done."""
    shop = Shop()
    rt, run_id = await asked_about(house, shop, asks_about(shop))
    await rt.decide(run_id, "record_result", payload="receipt hotel", actor="ada")
    if where == "here":
        run = await rt.cancel(run_id)
    else:
        desk = await house.process()
        assert (await desk.cancel(run_id)).condition == "queued"
        other = await house.process(asks_about(shop))
        await other.worker(until_idle=True)
        run = await other.get(run_id)
    assert (run.status, shop.undone) == ("canceled", ["cancel hotel", "cancel flight"])
    flight, hotel, *undos = await rt.effects(run_id)
    assert [e.status.value for e in (flight, hotel, *undos)] == ["recorded"] * 4
    assert (hotel.undone, hotel.closed) == (undos[0].effect_id, True)
    [told] = [e for e in await rt.events(run_id) if e.type == "side_effect.recorded" and e.payload["effect_id"] == hotel.effect_id]
    assert told.payload["detail"] == "as ada found"
    assert await rt.check() == []
    run = await rt.resume(run_id)
    assert shop.log[-2:] == ["book flight", "book hotel"] and run.waits[0].prompt == "Go?"


@pytest.mark.parametrize("action", ["abandon", "reexecute"])
async def test_any_other_word_leaves_it_as_it_is(house: House, action: str) -> None:
    """§10.12: what is not said to have happened stays unknown and is listed."""
    shop = Shop()
    rt, run_id = await asked_about(house, shop, asks_about(shop))
    await rt.decide(run_id, action, actor="ada")
    run = await rt.cancel(run_id)
    assert (run.status, shop.undone) == ("canceled", ["cancel flight"])
    assert [e.status.value for e in await rt.effects(run_id)] == ["recorded", "unknown", "recorded"]


async def test_the_word_alone_is_enough_to_take_something_back(house: House) -> None:
    """Nothing else was done that could be taken back, so that the end would have been written at once."""
    shop = Shop()

    @flow("one")
    async def one(ctx: Context) -> None:
        await ctx.effect(shop.book, "hotel", undo=shop.cancel)

    rt, run_id = await asked_about(house, shop, one)
    await rt.decide(run_id, "record_result", payload="receipt hotel", actor="ada")
    run = await rt.cancel(run_id)
    assert (run.status, shop.undone) == ("canceled", ["cancel hotel"])


async def test_a_sibling_that_fails_first_does_not_hide_the_word(house: House) -> None:
    """The run goes on with the answer, and fails before the call that it is for is reached again."""
    shop, fails = Shop(), []

    @flow("beside")
    async def beside(ctx: Context) -> None:
        if fails:
            raise RuntimeError("no")
        await ctx.effect(shop.book, "hotel", undo=shop.cancel)

    rt, run_id = await asked_about(house, shop, beside)
    await rt.decide(run_id, "record_result", payload="receipt hotel", actor="ada")
    fails.append(True)
    run = await rt.resume(run_id)
    assert (run.status, shop.undone) == ("failed", ["cancel hotel"])


@pytest.mark.parametrize(("said", "undone"), [({"stdout": "made"}, [("made", ["made"])]), ({"exit_code": 1}, []), ("made", [])], ids=["done", "failed", "no outcome"])
async def test_what_a_person_said_about_a_tool(house: House, said: Any, undone: list[Any]) -> None:
    """Its undo is given an outcome. A call that is said to have failed, or an answer that would be asked for again, is taken back by nobody's guess."""
    seen: list[Any] = []

    def undo(outcome: Any, argv: Any) -> None:
        seen.append((outcome.stdout, list(argv)))

    class Runner:
        async def run(self, request: Any) -> Any:
            raise Crash

    @flow("tool")
    async def tool(ctx: Context) -> None:
        await ctx.tool("echo", ["made"], undo=undo)

    rt = await house.process(tool, tool_runner=Runner())
    with pytest.raises(Crash):
        await rt.invoke(tool)
    house.kill(rt)
    rt = await house.process(tool, tool_runner=Runner())
    [run] = await rt.runs()
    run = await rt.resume(run.run_id)
    await rt.decide(run.run_id, "record_result", payload=said, actor="ada")
    run = await rt.cancel(run.run_id)
    assert (run.status, seen) == ("canceled", undone)
    assert [e.status.value for e in await rt.effects(run.run_id)] == (["recorded", "recorded"] if undone else ["unknown"])


class Beside(State):
    n: int = 0


def beside(shop: Shop, on_timeout: str = "halt") -> Graph[Beside]:
    """Books what only its own process can undo, asks, and fails once somebody has said so."""
    graph = Graph("beside", Beside)

    @graph.node(start=True)
    async def books(state: Beside, ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=lambda receipt: shop.log.append(f"undid {receipt}"))

    @graph.node(start=True)
    async def asks(state: Beside, ctx: Context) -> None:
        await ctx.ask("Which seat?", str, timeout=60, on_timeout=on_timeout)

    @graph.node(start=True)
    async def fails(state: Beside, ctx: Context) -> None:
        await ctx.approve("Go?")
        raise RuntimeError("sold out")

    return graph


async def asked_about_an_undo(house: House, graph: Graph[Beside]) -> tuple[Runtime, Run[Any]]:
    """Its run, which failed in another process than the one that booked."""
    rt = await house.process(graph)
    run = await rt.invoke(graph)
    house.kill(rt)
    rt = await house.process(graph)
    [go] = [w for w in run.waits if w.kind == "approval"]
    await rt.decide(run.run_id, "approve", wait_id=go.wait_id, actor="ada")
    run = await rt.resume(run.run_id)
    assert sorted(w.kind for w in run.waits) == ["effect", "input"]
    return rt, run


@pytest.mark.parametrize("how", ["swept", "resumed"])
@pytest.mark.parametrize("on_timeout", ["fail", "halt"])
async def test_a_deadline_that_passes_while_it_takes_back_does_not_end_it(how: str, on_timeout: str, house: House) -> None:
    """§6.11: the end is decided, and a person is asked about an undo. Another question is answered by silence; what is to be taken back still is."""
    rt, run = await asked_about_an_undo(house, beside(Shop(), on_timeout))
    house.clock.forward(61)
    await (rt.worker(until_idle=True) if how == "swept" else rt.resume(run.run_id))
    run = await rt.get(run.run_id)
    assert (run.status, [w.kind for w in run.waits]) == ("waiting_for_human", ["effect"])
    assert [p for p in await rt.check() if p.severity == "error"] == []
    await rt.decide(run.run_id, "record_result", payload="by hand", actor="ada")
    run = await rt.resume(run.run_id)
    flight, undo = await rt.effects(run.run_id)
    assert (run.status, run.stop_reason, flight.undone, undo.status) == ("failed", "step_failed", undo.effect_id, "recorded")


@pytest.mark.parametrize("way", ["said", "left_for_a_worker"])
@pytest.mark.parametrize("word", ["deny", "cancel"])
async def test_a_person_ends_it_while_it_takes_back(word: str, way: str, house: House) -> None:
    """§6.11, §10.12: a run never hangs in what it takes back. It ends as it stands, whoever comes to the word first."""
    rt, run = await asked_about_an_undo(house, beside(Shop()))
    [seat] = [w for w in run.waits if w.kind == "input"]
    if way == "left_for_a_worker":  # whoever said it has died before anybody took it
        command = cmd.Decide(seat.wait_id, "deny", "ada") if word == "deny" else cmd.Cancel(actor="ada")
        await rt.store.put(InboxItem(run_id=run.run_id, key=command.key, command=command, put_at=house.clock.now()))
        await rt.worker(until_idle=True)
    else:
        await (rt.decide(run.run_id, "deny", wait_id=seat.wait_id, actor="ada") if word == "deny" else rt.cancel(run.run_id, actor="ada"))
    run = await rt.get(run.run_id)
    assert (run.status, run.stop_reason, run.waits) == ("canceled", "denied" if word == "deny" else "canceled", ())
    assert [p for p in await rt.check() if p.severity == "error"] == []


@pytest.mark.parametrize("undoes", [True, False])
async def test_an_answer_outlives_a_failure(undoes: bool, house: House) -> None:
    """§5.6, §6.11: a question was answered when a deadline beside it ends the run. The answer counts once the run is resumed."""
    shop, graph = Shop(), Graph("trip", Beside)

    @graph.node(start=True)
    async def books(state: Beside, ctx: Context) -> None:
        await ctx.effect(shop.book, "flight", undo=shop.cancel if undoes else None)
        await ctx.approve("Go?", timeout=60, on_timeout="fail")

    @graph.node(start=True)
    async def asks(state: Beside, ctx: Context) -> dict[str, Any]:
        return {"n": await ctx.ask("How many?", int)}

    rt = await house.process(graph)
    run = await rt.invoke(graph)
    [seats] = [w for w in run.waits if w.kind == "input"]
    await rt.decide(run.run_id, "answer", wait_id=seats.wait_id, payload=3, actor="ada")
    house.clock.forward(61)
    await rt.worker(until_idle=True)
    run = await rt.get(run.run_id)
    assert (run.status, run.stop_reason, shop.undone) == ("failed", "wait_timed_out", ["cancel flight"] * undoes)
    run = await rt.resume(run.run_id, acknowledge="wait_timed_out")
    assert [w.prompt for w in run.waits] == ["Go?"]
    run = await rt.approve(run.run_id, actor="ada")
    assert (run.status, run.state.n, shop.log.count("book flight")) == ("completed", 3, 1 + undoes)
