"""The part of the store suite about links, schedules and news for owners (§5.9, §10.12, §10.15). Importing this module adds its cases
to ``conformance.CASES``."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.commands import Cancel, Decide, LateResult
from holdfast.core.commit import DedupClaim, InboxItem
from holdfast.core.errors import Conflict, ErrorValue, InboxUnread, RunNotFound, TokenRefused
from holdfast.core.lease import KEEP, RELEASE
from holdfast.core.offers import Offer, Shape
from holdfast.core.schedules import Change, Missed, Move, Schedule
from holdfast.core.tokens import Token, hash_secret
from holdfast.testing.conformance import SECOND, TTL, Harness, Script, case, refused, signal

# -- news for owners --------------------------------------------------------------------------------


@case
async def case_marked(h: Harness) -> None:
    """§10.12: an owner is told which of its runs have items that were not taken, each run once; it is told of no other owner's runs and of none at rest."""
    for owner in ("w", "v"):
        await h.store.register(owner, TTL)
    mine, other = await Script(h.store, "r1").begin("w"), await Script(h.store, "r2").begin("w")
    await Script(h.store, "r3").begin("v")
    await Script(h.store, "r4").submit()
    assert await h.store.find_marked("w") == []
    for run_id, key in (("r1", "a"), ("r1", "b"), ("r3", "a"), ("r4", "a")):
        await h.store.put(signal(run_id, key, h.store.now()))
    assert await h.store.find_marked("w") == ["r1"]
    assert await h.store.find_marked("v") == ["r3"]
    assert await h.store.find_marked("nobody") == []
    await h.store.put(signal("r2", "a", h.store.now()))
    assert sorted(await h.store.find_marked("w")) == ["r1", "r2"]
    await mine.write(mine.commit(ev.NoteAdded("taken"), took=("signal:go:a",)))
    assert sorted(await h.store.find_marked("w")) == ["r1", "r2"], "one of two is left"
    await mine.write(mine.commit(ev.NoteAdded("taken"), took=("signal:go:b",)))
    await other.complete(took=("signal:go:a",))
    assert await h.store.find_marked("w") == []


@case
async def case_offers(h: Harness) -> None:
    """§10.11: a worker is listed with what it works on, as it last said, for as long as the worker is known."""
    await h.store.register("w", TTL)
    await h.store.register("v", TTL)
    offer = Offer(("default", "slow"), (Shape("skill", "1", "f", "/srv"), Shape("skill", "1", "g")))
    await h.store.offer("w", Offer((), ()))
    await h.store.offer("w", offer)
    assert {w.owner: w.offer for w in await h.store.workers()} == {"w": offer, "v": None}
    await h.store.retire("w")
    await h.store.register("u", TTL)
    await h.store.offer("u", Offer((), (), upgrade=True))
    assert {w.owner: w.offer for w in await h.store.workers()} == {"v": None, "u": Offer((), (), upgrade=True)}


@case
async def case_no_end_over_an_unread_inbox(h: Harness) -> None:
    """§10.12, X-19: a commit cannot end a run over a command that the run has not taken: whatever was put first is taken first."""
    await h.store.register("w", TTL)
    for run_id, end in (("r1", ev.RunCompleted()), ("r2", ev.RunFailed("boom", ErrorValue("E", "m"))), ("r3", ev.RunCanceled("halted", settled=True))):
        script = await Script(h.store, run_id).begin("w")
        await h.store.put(InboxItem(run_id, "cancel", Cancel("ann"), h.store.now()))
        await refused(InboxUnread, h.store.commit(script.commit(end, lease=RELEASE)), "inbox_unread")
        loaded = await h.store.load(run_id)
        assert loaded is not None and loaded.tip == script.tip and loaded.lease.owner == "w", "nothing was written, and the lease was not released"
        await script.write(script.commit(ev.NoteAdded("not the end"), lease=KEEP))
        await script.write(script.commit(end, lease=RELEASE, took=("cancel",)))
        await h.store.put(InboxItem(run_id, "late:a", LateResult("a", "too late"), h.store.now()))
        await script.write(script.touching(ev.NoteAdded("after the run has ended")))


@case
async def case_no_end_at_rest_over_an_unread_inbox(h: Harness) -> None:
    """§10.12: the same holds for a commit that ends a run at rest; a run that goes to rest in a wait may leave items in its inbox."""
    await h.store.register("w", TTL)
    script = await Script(h.store, "r1").begin("w")
    await h.store.put(signal("r1", "a", h.store.now()))
    await script.wait()
    await refused(InboxUnread, h.store.commit(script.touching(ev.RunCanceled("canceled", at_rest=True))), "inbox_unread")
    await script.write(script.touching(ev.RunCanceled("canceled", at_rest=True), took=("signal:go:a",)))


@case
async def case_puts_and_ends_race(h: Harness) -> None:
    """X-19: many runs end while commands are put into them: each command is taken before the end, or put to a run that had ended."""
    await h.store.register("w", TTL)
    scripts = [await Script(h.store, f"r{n}").begin("w") for n in range(20)]

    async def ends(script: Script) -> bool:
        try:
            await script.write(script.commit(ev.RunCompleted(), lease=RELEASE))
        except InboxUnread:
            return False
        return True

    async def asks(script: Script) -> bool:
        await h.store.put(InboxItem(script.run_id, "cancel", Cancel("ann"), h.store.now()))
        found = await h.store.get(script.run_id)
        return found is not None and found[0].terminal

    pairs = [x for n, s in enumerate(scripts) for x in ((ends(s), asks(s)) if n % 2 else (asks(s), ends(s)))]
    await asyncio.gather(*pairs)
    for script in scripts:
        found, left = await h.store.get(script.run_id), await h.store.inbox(script.run_id)
        assert found is not None and [i.key for i in left] == ["cancel"]
        if not found[0].terminal:
            await script.write(script.commit(ev.RunCancelRequested(""), took=("cancel",)))


# -- links ------------------------------------------------------------------------------------------


def link(h: Harness, name: str = "secret", **more: Any) -> Token:
    now = h.store.now()
    fields: dict[str, Any] = {"run_id": "r1", "wait_id": "r1.w", "tenant_id": "default", "actor": "ada", "created_at": now, "expires_at": now + SECOND}
    return Token(hash=hash_secret(name), **{**fields, **more})


def answer(h: Harness, key: str = "decide:r1.w", actor: str = "ada") -> InboxItem:
    return InboxItem("r1", key, Decide("r1.w", "approve", actor), h.store.now())


@case
async def case_token_answers_once(h: Harness) -> None:
    """§5.9: a link is stored by its hash, used in one transaction with the answer, and then refused."""
    await h.store.register("w", TTL)
    await (await Script(h.store, "r1").begin("w")).wait()
    token = link(h)
    await refused(RunNotFound, h.store.issue_token(link(h, run_id="nobody")))
    assert await h.store.token(token.hash) is None
    await h.store.issue_token(token)
    assert await h.store.token(token.hash) == token
    await refused(TokenRefused, h.store.redeem_token(hash_secret("another"), answer(h)))
    assert await h.store.inbox("r1") == []
    h.clock.forward(1)
    assert await h.store.redeem_token(token.hash, answer(h)) == answer(h)
    assert await h.store.token(token.hash) == replace(token, used_at=h.store.now())
    assert await h.store.inbox("r1") == [answer(h)]
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=1)] == ["r1"], "the answer makes the run due"
    await refused(TokenRefused, h.store.redeem_token(token.hash, answer(h, "other")))


@case
async def case_token_expires(h: Harness) -> None:
    """§5.9: a link answers in its last microsecond; in the next one it is refused, and nothing is put."""
    await Script(h.store, "r1").submit()
    for name in ("early", "late"):
        await h.store.issue_token(link(h, name))
    h.clock.forward(SECOND - 1)
    await h.store.redeem_token(hash_secret("early"), answer(h))
    h.clock.forward(1)
    await refused(TokenRefused, h.store.redeem_token(hash_secret("late"), answer(h, "other")))
    assert [i.key for i in await h.store.inbox("r1")] == ["decide:r1.w"]
    found = await h.store.token(hash_secret("late"))
    assert found is not None and found.used_at is None


@case
async def case_token_of_a_lost_race(h: Harness) -> None:
    """§5.9: a second answer gets the first one back and does not use up its link; nor does an answer to a run that is not there."""
    await Script(h.store, "r1").submit()
    await h.store.issue_token(link(h))
    first = answer(h, actor="bob")
    await h.store.put(first)
    assert await h.store.redeem_token(hash_secret("secret"), answer(h)) == first
    found = await h.store.token(hash_secret("secret"))
    assert found is not None and found.used_at is None
    await refused(RunNotFound, h.store.redeem_token(hash_secret("secret"), replace(answer(h), run_id="nobody")))
    found = await h.store.token(hash_secret("secret"))
    assert found is not None and found.used_at is None


@case
async def case_token_race(h: Harness) -> None:
    """§5.9: of many uses of one link at once, one succeeds."""
    await Script(h.store, "r1").submit()
    await h.store.issue_token(link(h))
    ends = await asyncio.gather(*(h.store.redeem_token(hash_secret("secret"), answer(h, f"k{n}")) for n in range(8)), return_exceptions=True)
    assert sum(isinstance(e, InboxItem) for e in ends) == 1
    assert sum(isinstance(e, TokenRefused) for e in ends) == 7
    assert len(await h.store.inbox("r1")) == 1


# -- schedules --------------------------------------------------------------------------------------


def plan(name: str, due: int | None, **more: Any) -> Schedule:
    """Returns a schedule with a value in each kind of field."""
    return Schedule(
        schedule_id=name, skill_id="skill", input=canon.encode({"x": 1}), every_us=SECOND, missed=Missed.CATCH_UP, due=due,
        options={"tags": ["a"], "priority": 3}, changes=(Change(1, "ada", "added"),), **more,
    )


@case
async def case_schedules(h: Harness) -> None:
    """§10.15: schedules are stored as they are, listed soonest first, and found by what is due; a paused one is never due."""
    now = h.store.now()
    late, soon, paused, next_ = plan("late", now - 5), plan("soon", now), plan("paused", None, paused=True), plan("next", now + 1)
    assert await h.store.schedules() == [] and await h.store.schedule("late") is None
    for s in (next_, paused, soon, late):
        assert await h.store.put_schedule(s, None)
    assert await h.store.schedules() == [late, soon, next_, paused]
    assert await h.store.schedules(due=now) == [late, soon]
    assert await h.store.schedules(due=now - 6) == []
    assert await h.store.schedule("late") == late
    assert await h.store.drop_schedule("late")
    assert not await h.store.drop_schedule("late")
    assert await h.store.schedules() == [soon, next_, paused] and await h.store.schedule("late") is None


@case
async def case_schedule_is_moved_by_who_has_seen_it(h: Harness) -> None:
    """§10.15, §10.14: a schedule is changed by compare-and-set of the whole, so that a move does not overwrite a change that left the due time alone."""
    now = h.store.now()
    s = plan("s", now)
    assert not await h.store.put_schedule(replace(s, due=now + 1), s), "there is none yet"
    assert await h.store.put_schedule(s, None)
    assert not await h.store.put_schedule(s, None), "there is one already"
    changed = replace(s, input=canon.encode({"x": 2}))
    assert await h.store.put_schedule(changed, s)
    assert not await h.store.put_schedule(replace(s, due=now + 1), s)
    assert await h.store.schedule("s") == changed
    ends = await asyncio.gather(*(h.store.put_schedule(replace(changed, due=now + n), changed) for n in range(1, 9)))
    assert sum(ends) == 1


@case
async def case_slot_fires_in_one_commit(h: Harness) -> None:
    """§10.15: the slot's run and the schedule's move are written in one commit, both or neither."""
    now = h.store.now()
    s = plan("s", now)
    await h.store.put_schedule(s, None)
    moved = replace(s, due=now + SECOND, last_slot=now, last_run="r1", fired=1)
    slot = DedupClaim("slot", "default/s", str(now), "r1", "")
    await Script(h.store, "r1").submit(moves=(Move(s, moved),), claims=(slot,))
    assert await h.store.schedule("s") == moved and await h.store.get("r1") is not None
    assert await h.store.schedules(due=now) == []
    h.clock.forward(SECOND * 3600 * 24 * 400)
    assert await h.store.find_claim("slot", "default/s", str(now)) == slot, "a slot's key does not expire"

    await refused(Conflict, h.store.commit(Script(h.store, "r2").first(moves=(Move(s, moved),))), "schedule_moved")
    assert await h.store.get("r2") is None, "another worker was first"
    again = Script(h.store, "r3").first(moves=(Move(moved, replace(moved, due=None)),), claims=(replace(slot, run_id="r3"),))
    await refused(Conflict, h.store.commit(again), "claim_taken")
    assert await h.store.schedule("s") == moved and await h.store.get("r3") is None, "the slot has its run"
    await h.store.drop_schedule("s")
    await refused(Conflict, h.store.commit(Script(h.store, "r4").first(moves=(Move(moved, replace(moved, due=None)),))), "schedule_moved")
    assert await h.store.schedules() == []


@case
async def case_slot_race(h: Harness) -> None:
    """§10.15: of three workers that fire one slot at once, one succeeds; slots of other schedules are not held up."""
    now = h.store.now()
    s = plan("s", now)
    await h.store.put_schedule(s, None)
    others = [plan(f"o{n}", now) for n in range(5)]
    for o in others:
        await h.store.put_schedule(o, None)

    def firing(run_id: str, s: Schedule) -> Any:
        return h.store.commit(Script(h.store, run_id).first(moves=(Move(s, replace(s, due=now + SECOND, last_run=run_id)),)))

    rivals = [firing(f"r{n}", s) for n in range(3)]
    ends = await asyncio.gather(*rivals, *(firing(f"p{n}", o) for n, o in enumerate(others)), return_exceptions=True)
    assert sum(isinstance(e, Conflict) for e in ends[:3]) == 2 and not any(isinstance(e, BaseException) for e in ends[3:])
    found = await h.store.schedule("s")
    assert found is not None
    assert [r for r in ("r0", "r1", "r2") if await h.store.get(r) is not None] == [found.last_run]


__all__ = ["answer", "link", "plan"]
