"""Intents: acts that were decided and are not done yet (§9), and the one function that determines an intent's state after each attempt.

Any process may send an intent, under its key, at least once; whether a second sending is a second act depends on the
receiver. So every attempt is recorded, and whether its sender can still be sending. An attempt without a known end is in *doubt*.
After it no other attempt is begun, unless the transport deduplicates or can look the key up, or a person has said what happened (§9.4).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from holdfast.core import canon
from holdfast.core.errors import ErrorValue, IntentInFlight, IntentSettled, InvalidInput
from holdfast.core.lease import Alive, at_once, due_time
from holdfast.core.retry import SECOND, backoff

SENDER_LOST = "sender_lost"
MAY_LIVE = "attempt_may_live"
ELSEWHERE = "another store"
IMPORTED = "it was imported, and the store that it comes from may have sent it"
KEPT_ANSWER = 16 * 1024
RETENTION_US = 24 * 3600 * SECOND
WAIT_LINK = "{wait_link}"


class IntentState(StrEnum):
    """The state of an intent. Queued and sending: it is not sent yet; unknown: a person is asked; the others are settled."""

    QUEUED = "queued"
    SENDING = "sending"
    SENT = "sent"
    UNKNOWN = "unknown"
    DEAD = "dead"
    ABANDONED = "abandoned"


OPEN = frozenset({IntentState.QUEUED, IntentState.SENDING, IntentState.UNKNOWN})


class Ended(StrEnum):
    """How an attempt at sending ended. ``late``: it was never begun; ``lost``: its sender was lost, and the outcome is not known; ``absent``: the
    transport looked it up, and it had not happened."""

    SENT = "sent"
    REFUSED = "refused"
    FAILED = "failed"
    LATE = "late"
    LOST = "lost"
    UNKNOWN = "unknown"
    ABSENT = "absent"


DOUBTFUL = frozenset({Ended.LOST, Ended.UNKNOWN})


class Delivery(msgspec.Struct, frozen=True, array_like=True):
    """One attempt at sending an intent. ``answer`` is the digest of the receiver's answer; ``closed``: no process can still be sending it."""

    number: int
    owner: str
    began_at: int
    ended_at: int | None = None
    outcome: Ended | None = None
    error: ErrorValue | None = None
    answer: str = ""
    closed: bool = False


class Ruling(msgspec.Struct, frozen=True, array_like=True):
    """What a person said about an intent. ``after`` is the number of the last attempt before it; ``via`` the id of the access token (§16.2)."""

    at: int
    actor: str
    reason: str
    action: str
    after: int
    forced: bool = False
    via: str = ""


class Intent(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """An act that was decided and is not done yet: it is sent only after its commit, under its key (§9). Times are microseconds since 1970.

    ``attempts`` is the number of the latest attempt, which a settlement compares; ``tries`` are the attempts themselves.
    ``digest`` identifies type and payload, even after the payload is dropped; ``target`` is the receiver, as far as the payload
    shows it; ``wait_id`` is the wait that its link answers.
    """

    intent_id: str
    run_id: str
    type: str
    payload: bytes
    key: str
    order_key: str = ""
    created_at: int = 0
    state: IntentState = IntentState.QUEUED
    attempts: int = 0
    due: int = 0
    owner: str | None = None
    lease_until: int | None = None
    detail: str = ""
    settled_at: int | None = None
    tenant_id: str = "default"
    target: str = ""
    digest: str = ""
    tries: tuple[Delivery, ...] = ()
    rulings: tuple[Ruling, ...] = ()
    answer: bytes = b""
    wait_id: str = ""

    @property
    def due_at(self) -> int:
        """When it will be sent, or since when it has been due."""
        return due_time(self.due)

    @property
    def open(self) -> bool:
        """Whether it is not settled, so that it keeps its lineage from being pruned, and holds its order key."""
        return self.state in OPEN

    @property
    def order(self) -> tuple[str, str, str]:
        """The group of intents among which order is kept; meaningless without an order key."""
        return (self.tenant_id, self.type, self.order_key)

    @property
    def lane(self) -> tuple[str, str, str]:
        """The group of intents with the same receiver, as far as that is known."""
        return (self.type, self.tenant_id, self.target)

    @property
    def current(self) -> tuple[Delivery, ...]:
        """The attempts since a person last asked to send it again."""
        since = max((r.after for r in self.rulings if r.action == REDRIVE), default=0)
        return tuple(t for t in self.tries if t.number > since)

    @property
    def not_configured(self) -> ErrorValue | None:
        """What its last sender lacked to send it; None if it waits for something else."""
        last = self.tries[-1] if self.tries and self.state is IntentState.QUEUED else None
        return last.error if last is not None and last.outcome is Ended.LATE else None

    @property
    def doubts(self) -> tuple[Delivery, ...]:
        """The attempts whose outcome is not known."""
        return tuple(t for t in self.current if t.outcome in DOUBTFUL)


REDRIVE, MARK_SENT, ABANDON = "redrive", "sent", "abandoned"
RULINGS = (MARK_SENT, ABANDON)


def digest(type: str, payload: bytes) -> str:
    """Returns the digest that distinguishes acts under the same key."""
    return canon.chain(type.encode("utf-8", "surrogatepass"), payload).hex()


def same(intent: Intent, type: str, payload: bytes) -> bool:
    """Whether an intent is the act of this type and payload; works after its payload is dropped, too."""
    if not intent.digest:  # of the first release
        return (intent.type, intent.payload) == (type, payload)
    return intent.digest == digest(type, payload)


def target(payload: Any) -> str:
    """Returns the receiver of a payload: the host of its ``url``, if it has one. With this, a slow receiver delays only its own intents."""
    url = payload.get("url") if isinstance(payload, Mapping) else None
    if not isinstance(url, str):
        return ""
    try:
        return (urlsplit(url).netloc.rpartition("@")[2]).lower()[:255]
    except ValueError:
        return ""


# -- what a transport declares about itself ---------------------------------------------------------


class Sending(msgspec.Struct, frozen=True):
    """What a transport declares about itself. ``dedupes``: the receiver drops a repeated key; ``verifies``: it can be asked about a key.

    ``max_attempts`` limits failures, ``max_losses`` the senders that were lost one after the other.
    """

    dedupes: bool = False
    verifies: bool = False
    max_attempts: int = 10
    base_us: int = SECOND
    max_losses: int = 10


# -- outcomes ---------------------------------------------------------------------------------------


class Sent(msgspec.Struct, frozen=True):
    """The receiver has it. ``answer`` is the receiver's encoded answer."""

    answer: bytes = b""
    detail: str = ""


class Refused(msgspec.Struct, frozen=True):
    """The receiver will never take it."""

    error: ErrorValue


class Failed(msgspec.Struct, frozen=True):
    """This attempt failed. ``after_us``: the receiver asked for no other attempt before this much time has passed."""

    error: ErrorValue
    after_us: int = 0


class Doubtful(msgspec.Struct, frozen=True):
    """It is not known whether it was sent."""

    error: ErrorValue


class Late(msgspec.Struct, frozen=True):
    """It could not be sent at its time, and nothing has happened. ``after_us``: when it is tried again; ``error``: what its sender
    lacks."""

    why: str
    after_us: int = 0
    error: ErrorValue | None = None


Outcome = Sent | Refused | Failed | Doubtful | Late

CLOCKS_US = 60_000_000  # the most by which clocks may differ, or be adjusted


def is_held_too_long(given: Intent, left: int) -> bool:
    """Whether a sender's lease has more time left than it was ever given, so it was altered. ``given``: the intent as its sender took it."""
    if given.state is not IntentState.SENDING or given.lease_until is None or not given.tries:
        return False
    return left > given.lease_until - given.tries[-1].began_at + CLOCKS_US


def answer_lost(intent: Intent, owner: str, held: Collection[str], *, doubt: bool) -> bool:
    """Whether this owner holds an intent by a claim whose answer never reached it, so that it has not begun to send it."""
    return doubt and intent.state is IntentState.SENDING and intent.owner == owner and intent.intent_id not in held


def start_sending(intent: Intent, owner: str, now: int, until: int, *, lost: bool = False, dead: bool = False, answer_lost: bool = False) -> Intent:
    """Returns the intent as its new sender holds it. ``lost``: it is taken from a sender that was lost; ``dead``: that sender is proven dead;
    ``answer_lost``: the sender holds it already, by a claim whose answer was lost."""
    tries = intent.tries
    if answer_lost:
        before = [t for t in tries[:-1] if t.outcome is not Ended.LATE]
        tries = (*before, replace(tries[-1], ended_at=now, outcome=Ended.LATE, closed=True))
    elif lost:
        tries = _note_lost(intent, now, dead)
    number = intent.attempts + 1
    return replace(
        intent, state=IntentState.SENDING, owner=owner, lease_until=until, attempts=number, tries=(*tries, Delivery(number, owner, now)),
        detail=SENDER_LOST if lost and not answer_lost else intent.detail,
    )


def find_lost(intent: Intent, now: int, alive: Alive) -> Intent:
    """Returns the intent in the state in which a person may rule on it: if its sender is proven dead, or has let its lease expire, its attempt is lost,
    and the outcome is unknown."""
    if intent.state is not IntentState.SENDING or (alive is not Alive.NO and (intent.lease_until or 0) > now):
        return intent
    tries = _note_lost(intent, now, alive is Alive.NO)
    return replace(intent, state=IntentState.UNKNOWN, owner=None, lease_until=None, tries=tries, detail=SENDER_LOST)


def take_in(intent: Intent, now: int) -> Intent:
    """Returns an intent that is imported with its run from another store. That store may still send it, so here its outcome is in doubt, as after a lost sender."""
    if intent.state not in (IntentState.QUEUED, IntentState.SENDING):
        return intent
    number = intent.attempts + 1
    elsewhere = Delivery(number, ELSEWHERE, now, now, Ended.LOST)
    return replace(
        intent, state=IntentState.QUEUED, owner=None, lease_until=None, due=at_once(now), attempts=number, tries=(*_note_lost(intent, now, dead=False), elsewhere)
    )


def _note_lost(intent: Intent, now: int, dead: bool) -> tuple[Delivery, ...]:
    """Returns its attempts with the last one marked as lost. ``dead``: its sender is proven dead."""
    if not intent.tries and intent.attempts:  # begun under the first release, which recorded no attempts
        return (Delivery(intent.attempts, intent.owner or "", intent.created_at, now, Ended.LOST, closed=dead),)
    return tuple(replace(t, ended_at=now, outcome=Ended.LOST, closed=dead) if t.outcome is None else t for t in intent.tries)


class Send(msgspec.Struct, frozen=True):
    """Send it now."""


class LookUp(msgspec.Struct, frozen=True):
    """Ask its transport whether it happened. ``closed``: no process can still be sending it."""

    closed: bool


class Ask(msgspec.Struct, frozen=True):
    """Ask a person."""

    why: str


def next_move(intent: Intent, how: Sending) -> Send | LookUp | Ask:
    """Returns what to do with an intent that was just claimed (§9.4)."""
    doubts = intent.doubts
    if not doubts:
        return Send()
    losses = 0
    for t in reversed(intent.current[:-1]):
        if t.outcome is not Ended.LOST:
            break
        losses += 1
    if losses >= how.max_losses:
        return Ask(f"{losses} senders in a row died while sending it")
    if how.dedupes:
        return Send()
    if how.verifies:
        return LookUp(all(t.closed for t in doubts))
    return Ask(IMPORTED if any(t.owner == ELSEWHERE for t in doubts) else SENDER_LOST)


def after(intent: Intent, outcome: Outcome, how: Sending, now: int) -> Intent:
    """Returns an intent after an attempt ended with this outcome. This is the only place where that is decided (§9.3, §9.4)."""
    now = _no_earlier(intent, now)
    if isinstance(outcome, Doubtful) and how.dedupes:
        outcome = Failed(outcome.error)
    match outcome:
        case Sent(answer, detail):
            kept = answer if len(answer) <= KEPT_ANSWER else b""
            said = canon.chain(b"", answer).hex() if answer else ""
            return _rest(intent, IntentState.SENT, Ended.SENT, now, detail=detail, answer=kept, said=said)
        case Refused(error):
            return _rest(intent, IntentState.DEAD, Ended.REFUSED, now, detail=error.message, error=error)
        case Doubtful(error):
            return _rest(intent, IntentState.UNKNOWN, Ended.UNKNOWN, now, detail=error.message, error=error)
        case Late(why, after_us, lacking):
            return replace(_rest(intent, IntentState.QUEUED, Ended.LATE, now, detail=why, error=lacking), due=now + after_us if after_us else at_once(now))
    error, failures = outcome.error, 1 + sum(t.outcome is Ended.FAILED for t in intent.current)
    if failures >= how.max_attempts:
        return _rest(intent, IntentState.DEAD, Ended.FAILED, now, detail=error.message, error=error)
    pause = backoff(f"{intent.intent_id}@{intent.attempts}", failures, how.base_us, outcome.after_us)
    return replace(_rest(intent, IntentState.QUEUED, Ended.FAILED, now, detail=error.message, error=error), due=now + pause)


def ask(intent: Intent, why: str, now: int) -> Intent:
    """Returns an intent on which a person has to rule; this attempt sent nothing."""
    return _rest(intent, IntentState.UNKNOWN, Ended.LATE, _no_earlier(intent, now), detail=why)


def _no_earlier(intent: Intent, now: int) -> int:
    """Returns a time of an attempt's end that is not before its beginning. The server gave the time of the beginning; this process's estimate of the
    server's time may be behind by the time that an answer travels."""
    return max(now, intent.tries[-1].began_at)


def note_absent(intent: Intent) -> Intent:
    """Returns the intent, still claimed, after its transport has said that no earlier attempt happened."""
    return replace(intent, tries=tuple(replace(t, outcome=Ended.ABSENT) if t.outcome in DOUBTFUL else t for t in intent.tries))


def _rest(
    intent: Intent, state: IntentState, outcome: Ended, now: int, *, detail: str, error: ErrorValue | None = None, answer: bytes = b"", said: str = ""
) -> Intent:
    *before, last = intent.tries
    if outcome is Ended.LATE:  # nothing happened in any of these attempts, so only the latest is kept
        before = [t for t in before if t.outcome is not Ended.LATE]
    done = replace(last, ended_at=now, outcome=outcome, error=error, answer=said, closed=True)
    settled = None if state in OPEN else now
    return replace(
        intent, state=state, owner=None, lease_until=None, tries=(*before, done), detail=detail[:1000], settled_at=settled, answer=answer
    )


# -- rulings of people ------------------------------------------------------------------------------


def may_live(intent: Intent, alive: Mapping[str, Alive]) -> Delivery | None:
    """Returns an attempt whose sender may still be sending: its end is in doubt, and its sender is not proven dead (§6.5)."""
    return next((t for t in intent.doubts if not t.closed and alive.get(t.owner, Alive.UNKNOWN) is not Alive.NO), None)


def redrive(intent: Intent, *, actor: str, reason: str, forced: bool, now: int, via: str = "") -> Intent:
    """Returns the intent, queued to be sent again because a person asks for it.

    Raises:
        IntentSettled: it was sent, or given up.
        IntentInFlight: it is being sent.
        InvalidInput: its payload has been dropped.
    """
    if intent.state in (IntentState.SENT, IntentState.ABANDONED):
        raise IntentSettled(f"{intent.intent_id} is {intent.state}", hint="to send it again, start a new run")
    if intent.state is IntentState.SENDING:
        raise IntentInFlight(f"{intent.owner} is sending {intent.intent_id}", hint="wait until this attempt has ended")
    if not intent.payload:
        raise InvalidInput(f"the payload of {intent.intent_id} has been dropped")
    ruling = Ruling(now, actor, reason, REDRIVE, intent.attempts, forced, via)
    return replace(intent, state=IntentState.QUEUED, due=at_once(now), detail="", settled_at=None, rulings=(*intent.rulings, ruling))


def rule(intent: Intent, outcome: str, *, actor: str, reason: str, now: int, via: str = "") -> Intent:
    """Returns the intent, settled as a person says; the same ruling again changes nothing.

    Raises:
        IntentSettled: it is settled with another outcome.
        IntentInFlight: it is being sent.
        InvalidInput: there is no such outcome.
    """
    if outcome not in RULINGS:
        raise InvalidInput(f"{outcome!r} is not an outcome that an intent can be settled as", hint="one of " + ", ".join(RULINGS))
    if intent.state == outcome:
        return intent
    if intent.state in (IntentState.SENT, IntentState.ABANDONED):
        raise IntentSettled(f"{intent.intent_id} is {intent.state}", hint="look at it: holdfast outbox")
    if intent.state is IntentState.SENDING:
        raise IntentInFlight(f"{intent.owner} is sending {intent.intent_id}", hint="wait until this attempt has ended")
    ruling = Ruling(now, actor, reason, outcome, intent.attempts, via=via)
    return replace(intent, state=IntentState(outcome), settled_at=now, detail=reason, rulings=(*intent.rulings, ruling))


def drop_payload(intent: Intent) -> Intent:
    """Returns the intent without its payload and its answer (§9.7)."""
    return replace(intent, payload=b"", answer=b"")


def is_spent(intent: Intent, before: int) -> bool:
    """Whether the payload of an intent can be dropped: the intent was sent or given up before that time (§9.7)."""
    return bool(intent.payload) and intent.state in (IntentState.SENT, IntentState.ABANDONED) and (intent.settled_at or 0) < before


def stands(there: Intent, before: Intent) -> bool:
    """Whether an intent has not changed since ``before`` was read: every settlement makes this comparison."""
    return (there.state, there.owner, there.attempts) == (before.state, before.owner, before.attempts)


__all__ = [
    "ABANDON",
    "ELSEWHERE",
    "IMPORTED",
    "MARK_SENT",
    "MAY_LIVE",
    "OPEN",
    "REDRIVE",
    "RETENTION_US",
    "RULINGS",
    "SENDER_LOST",
    "WAIT_LINK",
    "Ask",
    "Delivery",
    "Doubtful",
    "Ended",
    "Failed",
    "Intent",
    "IntentState",
    "Late",
    "LookUp",
    "Outcome",
    "Refused",
    "Ruling",
    "Send",
    "Sending",
    "Sent",
    "after",
    "answer_lost",
    "ask",
    "digest",
    "drop_payload",
    "find_lost",
    "is_spent",
    "may_live",
    "next_move",
    "note_absent",
    "redrive",
    "rule",
    "same",
    "stands",
    "start_sending",
    "take_in",
    "target",
]
