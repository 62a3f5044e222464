"""The part of the store suite about the outbox (§9). Importing this module adds its cases to ``conformance.CASES``.

A case about two senders takes its second store from the harness's ``another``, if it has one: a store over the same database, as another
process would have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core import canon, intents
from holdfast.core import events as ev
from holdfast.core.blobs import blob_of
from holdfast.core.commit import LedgerRow, Settlement
from holdfast.core.errors import ErrorValue, RunNotFound, StoreCorrupt, VersionConflict
from holdfast.core.intents import Failed, Intent, IntentState, Sending, Sent
from holdfast.engine.keep.check import keeper
from holdfast.ports import Store
from holdfast.testing.conformance import SECOND, TTL, Harness, Script, case, refused, signal

PLAIN = Sending()
DONE = Sent()
MAIL = ("mail",)


def intent(run_id: str, name: str, at: int, order_key: str = "", **fields: Any) -> Intent:
    """Returns an intent as a barrier makes it."""
    payload = canon.encode("hello")
    made = Intent(intent_id=name, run_id=run_id, type="mail", payload=payload, key=name, created_at=at, due=at, order_key=order_key)
    return replace(made, digest=intents.digest("mail", payload), **fields)


def senders(h: Harness) -> tuple[Store, Store]:
    """Returns two stores over one database, or the one store twice."""
    return h.store, getattr(h, "another", h.store)


async def outbox(h: Harness, *made: Intent, run_id: str = "r1", **submitted: Any) -> Script:
    """Returns the script of a run that asks for these intents to be sent."""
    if not any(w.owner == "w" for w in await h.store.workers()):
        await h.store.register("w", TTL)
    script = await Script(h.store, run_id, **submitted).begin("w")
    await script.write(script.commit(ev.NoteAdded("x"), intents=made))
    return script


async def settle(store: Store, before: Intent, outcome: intents.Outcome = DONE) -> bool:
    """Settles an intent, as a dispatcher does when a send has ended. Returns whether the store accepted it."""
    return (await store.settle_intents([Settlement(before, intents.after(before, outcome, PLAIN, store.now()))]))[0]


def names(found: Sequence[Intent]) -> list[str]:
    return [i.intent_id for i in found]


@case
async def case_intents_are_claimed_and_settled(h: Harness) -> None:
    """§9.1, §9.3: intents are stored with the commit or not at all, claimed under a lease and settled once; each attempt is kept."""
    now = h.store.now()
    script = await outbox(h, intent("r1", "a", now), intent("r1", "b", now))
    await refused(VersionConflict, h.store.commit(Script(h.store, "r1").first(intents=(intent("r1", "never", now),))))
    one, two = senders(h)
    got = await one.claim_intents("d1", MAIL, limit=10, ttl_us=SECOND)
    assert [(i.intent_id, i.state, i.attempts, i.owner) for i in got] == [("a", "sending", 1, "d1"), ("b", "sending", 1, "d1")]
    assert await two.claim_intents("d2", MAIL, limit=10, ttl_us=SECOND) == []
    assert await settle(one, got[0], Sent(canon.encode("ok")))
    assert not await settle(one, got[0])
    assert [i.state for i in await two.intents("r1")] == ["sent", "sending"]
    assert names(await two.intents(state="sent")) == ["a"]
    kept = await two.intent("a")
    assert kept is not None
    (done,) = kept.tries
    assert (done.number, done.owner, done.outcome, done.closed, bool(done.answer)) == (1, "d1", "sent", True, True)
    assert (kept.settled_at, kept.owner) == (now, None)
    assert await two.intent("nobody") is None
    assert script.tip is not None


@case
async def case_a_lost_sender_is_told_apart(h: Harness) -> None:
    """§9.4, T-67: a sender that takes over from a lost one is told so; a late settlement of the lost one changes nothing."""
    now = h.store.now()
    await outbox(h, intent("r1", "a", now))
    one, two = senders(h)
    (first,) = await one.claim_intents("d1", MAIL, limit=10, ttl_us=SECOND)
    h.clock.forward(SECOND)
    (second,) = await two.claim_intents("d2", MAIL, limit=10, ttl_us=SECOND)
    assert (second.attempts, second.detail, [t.outcome for t in second.tries], second.tries[0].closed) == (2, "sender_lost", ["lost", None], False)
    assert not await settle(one, first)
    kept = await one.intent("a")
    assert kept is not None and (kept.state, kept.owner) == ("sending", "d2")
    assert await settle(two, second)


@case
async def case_a_settlement_names_its_attempt(h: Harness) -> None:
    """A sender that lost an intent and claimed it again settles its second attempt, and not by mistake its first."""
    await outbox(h, intent("r1", "a", h.store.now()))
    (first,) = await h.store.claim_intents("d1", MAIL, limit=1, ttl_us=SECOND)
    h.clock.forward(SECOND)
    (second,) = await h.store.claim_intents("d1", MAIL, limit=1, ttl_us=SECOND)
    assert (first.owner, second.owner, first.attempts, second.attempts) == ("d1", "d1", 1, 2)
    assert not await settle(h.store, first, Failed(ErrorValue("E", "late")))
    assert await settle(h.store, second)


@case
async def case_a_dead_sender_needs_no_waiting(h: Harness) -> None:
    """§10.6: the proof of a sender's death ends its claim at once, and closes its attempt."""
    await outbox(h, intent("r1", "a", h.store.now()))
    await h.store.register("d1", TTL)
    await h.store.claim_intents("d1", MAIL, limit=1, ttl_us=TTL)
    assert await h.store.claim_intents("d2", MAIL, limit=1, ttl_us=TTL) == []
    h.kill("d1")
    (again,) = await h.store.claim_intents("d2", MAIL, limit=1, ttl_us=TTL)
    assert (again.tries[0].outcome, again.tries[0].closed) == ("lost", True)


@case
async def case_a_claim_whose_answer_was_lost(h: Harness) -> None:
    """X-09, §9.4: an owner that lost the answer to a claim claims those intents again, of which it sent none; it gets none that it is sending, nor another owner's."""
    now = h.store.now()
    await outbox(h, *(intent("r1", name, now) for name in ("lost", "sending", "theirs", "free")))
    one, two = senders(h)
    got = {i.intent_id: i for i in await one.claim_intents("d1", MAIL, limit=2, ttl_us=TTL)}
    assert names(await two.claim_intents("d2", MAIL, limit=1, ttl_us=TTL)) == ["theirs"]
    assert names(await one.claim_intents("d1", MAIL, limit=9, ttl_us=TTL, held=("sending",))) == ["free"], "nothing is in doubt"
    assert await two.claim_intents("d2", MAIL, limit=9, ttl_us=TTL, held=("theirs",), doubt=True) == []
    (again,) = await one.claim_intents("d1", MAIL, limit=9, ttl_us=TTL, held=("sending", "free"), doubt=True)
    assert (again.intent_id, again.attempts, [t.outcome for t in again.tries], again.doubts) == ("lost", 2, ["late", None], ())
    assert again.detail == "" and not await settle(one, got["lost"]) and await settle(one, again) and await settle(one, got["sending"])


@case
async def case_long_sends_are_renewed(h: Harness) -> None:
    """§9.1: an intent that is still being sent (speech, an upload) and is renewed is not taken away."""
    now = h.store.now()
    await outbox(h, intent("r1", "a", now), intent("r1", "b", now))
    (first,) = await h.store.claim_intents("d1", MAIL, limit=1, ttl_us=SECOND)
    (second,) = await h.store.claim_intents("d2", MAIL, limit=1, ttl_us=SECOND)
    h.clock.forward(SECOND - 1)
    await h.store.renew_intents("d1", SECOND)
    h.clock.forward(SECOND - 1)
    assert names(await h.store.claim_intents("d3", MAIL, limit=5, ttl_us=SECOND)) == [second.intent_id]
    assert await settle(h.store, first)


@case
async def case_only_what_it_has_a_transport_for(h: Harness) -> None:
    """§9.1: a dispatcher gets only the types that it can send; and only the intents of one run if it asks for that."""
    now = h.store.now()
    await outbox(h, intent("r1", "a", now), replace(intent("r1", "b", now), type="fax"))
    await outbox(h, intent("r2", "c", now), run_id="r2")
    assert await h.store.claim_intents("d", (), limit=5, ttl_us=SECOND) == []
    assert names(await h.store.claim_intents("d", ("fax", "pigeon"), limit=5, ttl_us=SECOND)) == ["b"]
    assert names(await h.store.claim_intents("d", MAIL, limit=5, ttl_us=SECOND, run_id="r2")) == ["c"]
    assert names(await h.store.claim_intents("d", MAIL, limit=5, ttl_us=SECOND)) == ["a"]
    assert names(await h.store.intents(type="fax")) == ["b"]
    assert names(await h.store.intents(after="a", limit=1)) == ["b"]


@case
async def case_order_is_kept_per_key(h: Harness) -> None:
    """§9.4: the intents of a key are sent strictly first in, first out, also with retries and two dispatchers."""
    now = h.store.now()
    await outbox(h, intent("r1", "a1", now, "a"), intent("r1", "a2", now, "a"), intent("r1", "b1", now, "b"), intent("r1", "c", now))
    one, two = senders(h)
    got = await one.claim_intents("d1", MAIL, limit=10, ttl_us=TTL)
    assert set(names(got)) == {"a1", "b1", "c"}
    assert await two.claim_intents("d2", MAIL, limit=10, ttl_us=TTL) == []
    first = next(i for i in got if i.intent_id == "a1")
    assert await settle(one, first, Failed(ErrorValue("E", "not now")))
    assert await two.claim_intents("d2", MAIL, limit=10, ttl_us=TTL) == [], "a retry that is not due yet is still the first of its key"
    h.clock.forward(2 * SECOND)
    (again,) = await two.claim_intents("d2", MAIL, limit=10, ttl_us=TTL)
    assert (again.intent_id, again.attempts) == ("a1", 2)
    assert await settle(two, again)
    assert names(await one.claim_intents("d1", MAIL, limit=10, ttl_us=TTL)) == ["a2"]


@case
async def case_order_among_runs_and_one_run(h: Harness) -> None:
    """§9.4: a key has one order across all runs, also for a dispatcher that asks for the intents of one run."""
    now = h.store.now()
    await outbox(h, intent("r1", "a1", now, "a"))
    await outbox(h, intent("r2", "a2", now, "a"), run_id="r2")
    assert await h.store.claim_intents("d", MAIL, limit=5, ttl_us=TTL, run_id="r2") == []
    (first,) = await h.store.claim_intents("d", MAIL, limit=5, ttl_us=TTL, run_id="r1")
    assert await settle(h.store, first)
    assert names(await h.store.claim_intents("d", MAIL, limit=5, ttl_us=TTL, run_id="r2")) == ["a2"]


@case
async def case_order_keys_are_a_tenants_own(h: Harness) -> None:
    """An unknown intent does not hold back intents of another tenant or of another type under the same key."""
    now = h.store.now()
    await outbox(h, intent("r1", "mine", now, "k", tenant_id="a"), intent("r1", "theirs", now, "k", tenant_id="b"))
    await outbox(h, replace(intent("r2", "fax", now, "k", tenant_id="a"), type="fax"), run_id="r2")
    await outbox(h, intent("r3", "next", now, "k", tenant_id="a"), run_id="r3")
    got = await h.store.claim_intents("d", ("mail", "fax"), limit=5, ttl_us=TTL)
    assert set(names(got)) == {"mine", "theirs", "fax"}
    mine = next(i for i in got if i.intent_id == "mine")
    asked = intents.ask(mine, "nobody knows", now)
    assert await h.store.settle_intents([Settlement(mine, asked)]) == [True]
    assert await h.store.claim_intents("d", MAIL, limit=5, ttl_us=TTL) == [], "unknown holds its key"
    gone = intents.rule(asked, "abandoned", actor="ada", reason="", now=now)
    assert await h.store.settle_intents([Settlement(asked, gone)]) == [True]
    assert names(await h.store.claim_intents("d", MAIL, limit=5, ttl_us=TTL)) == ["next"]


@case
async def case_dead_frees_its_key(h: Harness) -> None:
    """§9.4: an intent that was refused for good lets the next one go; if a person has it sent again, it goes first once more."""
    now = h.store.now()
    await outbox(h, intent("r1", "a1", now, "a"), intent("r1", "a2", now, "a"))
    (first,) = await h.store.claim_intents("d", MAIL, limit=5, ttl_us=TTL)
    assert await settle(h.store, first, intents.Refused(ErrorValue("E", "no such address")))
    dead = await h.store.intent("a1")
    assert dead is not None and dead.state == IntentState.DEAD
    again = intents.redrive(dead, actor="ada", reason="fixed", forced=False, now=now)
    assert await h.store.settle_intents([Settlement(dead, again), Settlement(dead, again)]) == [True, False]
    assert names(await h.store.claim_intents("d", MAIL, limit=5, ttl_us=TTL)) == ["a1"]


@case
async def case_lanes_take_turns(h: Harness) -> None:
    """A receiver with a long queue does not hold back intents for others; intents for a receiver without room are left."""
    now = h.store.now()
    slow = tuple(intent("r1", f"s{n:02}", now, target="slow") for n in range(20))
    await outbox(h, *slow, intent("r1", "q", now + 1, target="quick"), intent("r1", "t", now + 1, tenant_id="other", target="slow"))
    h.clock.forward(SECOND)
    got = await h.store.claim_intents("d", MAIL, limit=6, ttl_us=TTL, each=4)
    assert set(names(got)) == {"s00", "s01", "s02", "s03", "q", "t"}
    full = ("mail", "default", "slow")
    assert await h.store.claim_intents("d", MAIL, limit=6, ttl_us=TTL, each=4, room={full: 0}) == []
    assert names(await h.store.claim_intents("d", MAIL, limit=6, ttl_us=TTL, each=4, room={full: 1})) == ["s04"]


@case
async def case_a_settlement_brings_what_its_hook_gave(h: Harness) -> None:
    """§9.5, §11.4: the ledger rows, signals, further intents and files of a hook are stored with the settlement, once, or none of them is."""
    now = h.store.now()
    await outbox(h, intent("r1", "a", now))
    (got,) = await h.store.claim_intents("d", MAIL, limit=1, ttl_us=TTL)
    row = LedgerRow("r1", "mail", "a", canon.encode({"ok": True}), now, "r1.1.node")
    after = intents.after(got, DONE, PLAIN, now)
    given = Settlement(got, after, (row,), (signal("r1", "k", now),), (intent("r1", "a:1", now),), (left := blob_of(b"left by a tool"),))
    await refused(RunNotFound, h.store.settle_intents([replace(given, puts=(signal("nobody", "k", now),))]))
    assert await h.store.ledger("r1") == []
    await refused(StoreCorrupt, h.store.blob(left.digest))
    assert await h.store.settle_intents([given, given]) == [True, False]
    assert await h.store.blob(left.digest) == b"left by a tool"
    assert await h.store.settle_intents([given]) == [False]
    assert [(r.topic, r.step_id) for r in await h.store.ledger("r1")] == [("mail", "r1.1.node")]
    assert [i.key for i in await h.store.inbox("r1")] == ["signal:go:k"]
    assert names(await h.store.intents("r1")) == ["a", "a:1"]


@case
async def case_settlements_come_in_groups(h: Harness) -> None:
    """Each settlement of a group is compared on its own."""
    now = h.store.now()
    await outbox(h, *(intent("r1", f"i{n}", now) for n in range(3)))
    got = await h.store.claim_intents("d", MAIL, limit=3, ttl_us=TTL)
    done = [Settlement(i, intents.after(i, Sent(), PLAIN, now)) for i in got]
    assert await settle(h.store, got[1])
    assert await h.store.settle_intents(done) == [True, False, True]
    (count,) = await h.store.intent_counts()
    assert (count.type, count.state, count.count, count.oldest) == ("mail", "sent", 3, now)


@case
async def case_payloads_are_dropped(h: Harness) -> None:
    """§9.7: of an intent that was sent or abandoned long ago, key, state and attempts stay; of any other, everything does."""
    now = h.store.now()
    await outbox(h, *(intent("r1", f"i{n}", now) for n in range(4)))
    got = await h.store.claim_intents("d", MAIL, limit=3, ttl_us=TTL)
    assert await settle(h.store, got[0], Sent(canon.encode("answer")))
    assert await settle(h.store, got[1], intents.Refused(ErrorValue("E", "no")))
    assert await settle(h.store, got[2])
    h.clock.forward(SECOND)
    assert await h.store.drop_payloads(h.store.now(), 1) == 1
    assert await h.store.drop_payloads(h.store.now(), 10) == 1
    assert await h.store.drop_payloads(h.store.now(), 10) == 0
    kept = {i.intent_id: i for i in await h.store.intents("r1")}
    assert [bool(kept[f"i{n}"].payload) for n in range(4)] == [False, True, False, True]
    assert (kept["i0"].state, kept["i0"].key, len(kept["i0"].tries), kept["i0"].answer) == ("sent", "i0", 1, b"")
    assert intents.same(kept["i0"], "mail", canon.encode("hello"))


@case
async def case_an_ended_run_goes_once_its_intents_are_settled(h: Harness) -> None:
    """§6.10: a lineage is prunable when its intents are sent, dead or abandoned."""
    now = h.store.now()
    script = await outbox(h, intent("r1", "a", now))
    await script.complete()
    h.clock.forward(10 * SECOND)
    assert (await keeper(h.store).prune(h.store.now())).run_ids == ()
    (got,) = await h.store.claim_intents("d", MAIL, limit=1, ttl_us=TTL)
    assert await settle(h.store, got, intents.Refused(ErrorValue("E", "no")))
    assert (await keeper(h.store).prune(h.store.now())).run_ids == ("r1",)
    assert await h.store.intents() == []


__all__ = ["intent", "outbox", "settle"]
