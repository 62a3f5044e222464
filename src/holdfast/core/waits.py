"""Waits and decisions: why a run rests, who may end the rest and how (§5).

A wait is part of a paused checkpoint and is registered nowhere else. This module contains the values and the
predicates that readers and writers share.

A person consents to what was shown. If nothing was shown, the consent is to the step as it was: its arguments and the state that it reads (§5.8).
The wait keeps a digest of this. When the step is entered again, the digest shows whether the consent still covers it. A change in the wording of
the question makes no difference; a change of a name or number in it does, if nothing else was shown.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from holdfast.core import canon, envelopes
from holdfast.core.bounds import refuse_unknown, wrong
from holdfast.core.errors import ActionUnavailable, EventUnreadable, InvalidInput, NotDecidable
from holdfast.core.masks import HIDDEN, mask
from holdfast.core.status import Status


class WaitKind(StrEnum):
    APPROVAL = "approval"
    HANDOFF = "handoff"
    GATE = "gate"
    REVIEW = "review"
    INPUT = "input"
    EFFECT = "effect"
    RETRY = "retry"
    TAKEOVER = "takeover"
    BUDGET = "budget"
    SIGNAL = "signal"
    TIMER = "timer"
    CHILD = "child"


HUMAN = frozenset(
    {
        WaitKind.APPROVAL,
        WaitKind.HANDOFF,
        WaitKind.GATE,
        WaitKind.REVIEW,
        WaitKind.INPUT,
        WaitKind.EFFECT,
        WaitKind.RETRY,
        WaitKind.TAKEOVER,
        WaitKind.BUDGET,
    }
)

APPROVE, DENY, ANSWER = "approve", "deny", "answer"
CONTINUE, WAIVE, RETRY, HALT = "continue", "continue_with_waiver", "retry_feedback", "halt"
RECORD_RESULT, REEXECUTE, ABANDON = "record_result", "reexecute", "abandon"
REJECT = "reject"
TIMEOUT, SIGNAL = "timeout", "signal"

ACTIONS: dict[WaitKind, tuple[str, ...]] = {
    WaitKind.APPROVAL: (APPROVE, DENY),
    WaitKind.GATE: (APPROVE, DENY),
    WaitKind.RETRY: (APPROVE, DENY),
    WaitKind.TAKEOVER: (APPROVE, DENY),
    WaitKind.BUDGET: (APPROVE, DENY),
    WaitKind.INPUT: (ANSWER, DENY),
    WaitKind.HANDOFF: (CONTINUE, WAIVE, RETRY, HALT),
    WaitKind.REVIEW: (APPROVE, CONTINUE, RETRY, HALT),
    WaitKind.EFFECT: (RECORD_RESULT, REEXECUTE, ABANDON, HALT),
}
KNOWN = (APPROVE, DENY, ANSWER, CONTINUE, WAIVE, RETRY, REJECT, HALT, RECORD_RESULT, REEXECUTE, ABANDON)
"""All actions (§5.5)."""
CONSENTS = frozenset({APPROVE, CONTINUE, WAIVE})
NEEDS_FEEDBACK = frozenset({WAIVE, RETRY})
HALTING = frozenset({HALT, DENY})
UNEDITED = frozenset({WaitKind.GATE, WaitKind.REVIEW, WaitKind.RETRY, WaitKind.TAKEOVER})
"""Kinds of waits whose consent cannot carry a payload, because nothing would read it: what is consented to is not edited."""
DEFAULT_DEADLINE_US = 7 * 24 * 3600 * 1_000_000


class Passage(StrEnum):
    """What an action does at a gate (§5.5)."""

    PASSES = "passes"
    FAILS = "fails"
    REDOES = "redoes"
    ENDS = "ends"


BEFORE_STEP: dict[str, Passage] = {
    APPROVE: Passage.PASSES,
    CONTINUE: Passage.PASSES,
    WAIVE: Passage.PASSES,
    REJECT: Passage.FAILS,
    DENY: Passage.ENDS,
    HALT: Passage.ENDS,
}
AFTER_STEP: dict[str, Passage] = BEFORE_STEP | {RETRY: Passage.REDOES}
"""The actions of a gate before its step, and of one after it. Before the step there is no result that could be redone."""


def at_gate(actions: Iterable[str], gate: Mapping[str, Passage] = BEFORE_STEP) -> tuple[str, ...]:
    """Returns the actions that a policy or a node offers at a gate.

    Raises:
        UnknownOption: an action does not exist. InvalidInput: an action has no meaning there.
    """
    if isinstance(actions, bytes | Mapping) or not isinstance(actions, Iterable):
        raise wrong("actions", "a list of actions", actions)
    offered = tuple([actions] if isinstance(actions, str) else actions)
    for n, action in enumerate(offered):
        if not isinstance(action, str):
            raise wrong(f"actions[{n}]", "an action", action)
        check_action(action)
        if action not in gate:
            where = "at a gate" if action not in AFTER_STEP else "at a gate before its step: nothing has been made yet"
            raise InvalidInput(f"{action!r} cannot be offered {where}", hint="a gate may offer " + ", ".join(gate))
    return offered


def check_action(action: object) -> None:
    """Refuses an action that does not exist.

    Raises:
        UnknownOption: names the nearest action.
    """
    if action not in KNOWN:
        raise refuse_unknown(action, KNOWN, "a decision", "there is no action")


class OnTimeout(StrEnum):
    HALT = "halt"
    DELIVER = "deliver"
    DEFAULT = "default"
    FAIL = "fail"


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """An open question to a person or the world (§5.2).

    ``show`` is the encoded payload shown, ``digest`` its fingerprint with the step and the policy snapshot; ``name`` is
    a signal's name or a child's run id; ``deadline`` and ``requested_at`` are microseconds since 1970. ``round`` counts how
    often this place has asked before; ``redo`` is the node that is done again after ``retry_feedback``; with ``cascade``
    the child that is waited for is cancelled when no one waits for it any more. ``covers`` is the digest of what a consent covers: the payload
    shown, or, if nothing is shown, what the step reads; ``reads`` is an excerpt of the latter (§5.8).
    """

    wait_id: str
    kind: WaitKind
    step: int
    task: str
    path: str = ""
    prompt: str = ""
    name: str = ""
    show: bytes | None = None
    available_actions: tuple[str, ...] = ()
    schema: bytes | None = None
    deadline: int | None = None
    on_timeout: OnTimeout = OnTimeout.HALT
    default: bytes | None = None
    on_deny: str = "halt"
    who: tuple[str, ...] = ()
    requested_at: int = 0
    digest: str = ""
    policy_snapshot_id: str | None = None
    round: int = 0
    authoritative: bool = True
    redo: str = "node"
    verdict: str = ""
    effect_id: str | None = None
    cascade: bool = False
    covers: str = ""
    reads: bytes | None = None

    @property
    def human(self) -> bool:
        return self.kind in HUMAN

    @property
    def editable(self) -> bool:
        """Whether an approval may carry a value. It may if the question has a schema for the value; then the value is read."""
        return self.kind in (WaitKind.APPROVAL, WaitKind.BUDGET) and self.schema is not None and APPROVE in self.available_actions

    @property
    def asked(self) -> str:
        """A short form of the question: an answer fits only a question with the same one (§5.8)."""
        what = self.prompt if self.kind is WaitKind.CHILD else self.name or self.prompt
        return f"{self.kind.value}:{what}"


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """What was decided about a wait, by whom. ``payload`` is encoded; None means that none was given.

    ``key`` is the key of the signal that answered, ``came`` the event that reported the signal, if it was not in the run's record; ``policy`` the
    snapshot under which the question was asked (§5.8), ``via`` the id of the access token with which the decision was made (§16.2).
    """

    wait_id: str
    action: str
    actor: str
    feedback: str | None = None
    note: str | None = None
    payload: bytes | None = None
    decided_at: int = 0
    resume: bool = True
    asked: str = ""
    key: str = ""
    policy: str | None = None
    forced: bool = False
    came: int = 0
    via: str = ""

    def same(self, other: Decision) -> bool:
        """Whether another decision says the same (§5.6): times and ``resume`` do not count."""
        mine = (self.wait_id, self.action, self.feedback, self.note, self.payload, self.forced)
        return mine == (other.wait_id, other.action, other.feedback, other.note, other.payload, other.forced)


class Asked(Protocol):
    """The part of a question that determines how a decision ends it."""

    @property
    def kind(self) -> WaitKind: ...

    @property
    def on_deny(self) -> str: ...

    @property
    def on_timeout(self) -> str: ...


def find_halt(asked: Asked, given: Decision) -> str | None:
    """Returns the stop reason with which this decision ends the run (§5.5, §5.10), or None if it does not end the run."""
    if given.action == HALT:
        return "halted"
    if given.action == DENY and asked.on_deny == "halt":
        return "denied"
    silence = given.action == TIMEOUT and asked.on_timeout == OnTimeout.HALT and asked.kind is not WaitKind.TIMER
    return "wait_timed_out" if silence else None


def times_out_for_good(asked: Wait | None, given: Decision) -> bool:
    """Whether the decision is a timeout that failed the run: it is not an answer, and a resumed run asks again (§5.10)."""
    return given.action == TIMEOUT and asked is not None and asked.on_timeout is OnTimeout.FAIL


def tell_child(given: Decision) -> str | None:
    """Returns the message of the failure that a child's end causes in its parent, or None if the child completed or this is not a child's end."""
    if given.action not in (Status.FAILED, Status.CANCELED):
        return None
    told = None if given.payload is None or envelopes.is_sealed(given.payload) else canon.decode(given.payload)
    told = told if isinstance(told, dict) else {}
    who = f"the child {told['run_id']}" if "run_id" in told else "the child"
    if given.action == Status.CANCELED and not told.get("error"):
        return f"{who} was canceled"
    return f"{who} ended {given.action}: {told.get('error') or 'no reason given'}"


def decidable(status: Status, waits: tuple[Wait, ...], wait_id: str) -> bool:
    """Whether a wait of a run with this status is open and may be decided now: the one predicate of §5.4.

    A failed or interrupted run only records the decision; the resume of §7.3 uses it.
    """
    open_now = any(w.wait_id == wait_id and w.human for w in waits)
    return open_now and status in (Status.WAITING_FOR_HUMAN, Status.RUNNING, Status.REPLAYING, Status.FAILED)


def check_allowed(wait: Wait, action: str, feedback: str | None) -> None:
    """Refuses an action that the wait does not offer, or one that lacks its feedback (§5.5).

    Raises:
        ActionUnavailable: the action is not in the wait's list; an empty list allows nothing.
        InvalidInput: the action needs feedback.
    """
    if not wait.available_actions:
        raise ActionUnavailable(f"the wait {wait.wait_id} offers no action", hint="check the run: holdfast check")
    if action not in wait.available_actions:
        offered = ", ".join(wait.available_actions)
        raise ActionUnavailable(f"{action!r} is not offered by {wait.wait_id}", hint=f"it offers {offered}")
    if action in NEEDS_FEEDBACK and not (feedback and feedback.strip()):
        raise InvalidInput(f"{action} needs feedback", hint="say what should change: --feedback TEXT")


def check_payload(wait: Wait, action: str) -> None:
    """Refuses a payload that nothing would read.

    Raises:
        InvalidInput: the consent would mean something else than the person intended.
    """
    if wait.kind in UNEDITED and action in CONSENTS:
        raise InvalidInput(f"{wait.wait_id} asks about a {wait.kind}, which cannot be edited: nothing reads a payload", field="payload", hint=f"{action} it without a payload")


def answering(wait: Wait, payload: Any) -> tuple[str, Any]:
    """Returns the action and the payload (``...`` for none) with which a bare answer decides this wait (§5.11). False never approves.

    Raises:
        NotDecidable: the answer does not determine one of the offered actions.
    """
    offered = wait.available_actions
    if ANSWER in offered:
        return ANSWER, payload
    if APPROVE in offered and payload is not False:
        return APPROVE, ... if payload is None or payload is True or (isinstance(payload, str) and wait.kind in UNEDITED) else payload
    if DENY in offered and payload is False:
        return DENY, ...
    if CONTINUE in offered and payload is not False:
        return CONTINUE, ... if payload is None or payload is True else payload
    raise NotDecidable(f"{payload!r} is not an answer to {wait.wait_id}", hint=f"decide it by an action: {', '.join(offered)}")


def resting(waits: tuple[Wait, ...]) -> Status:
    """Returns the status of a run whose tasks all rest in these waits (§5.2)."""
    return Status.WAITING_FOR_HUMAN if any(w.human for w in waits) else Status.WAITING_FOR_SIGNAL


def wake_at(waits: tuple[Wait, ...]) -> int | None:
    """Returns the earliest deadline, computed from the waits; never authoritative (§5.10)."""
    return min((w.deadline for w in waits if w.deadline is not None), default=None)


def plain(wait: Wait) -> dict[str, Any]:
    """Returns the fields of a wait that need no decoding."""
    skip = {"show", "schema", "default"}
    return {f: getattr(wait, f) for f in wait.__struct_fields__ if f not in skip}


EXCERPT_BYTES = 512
SHOWN_CHARS = 400
_WORD = re.compile(r"[\w@/.,:+\-]+")
HOW_TO_KEEP = "To keep a value from changing between a question and its answer, record it: await ctx.step(…)."


class Subject(msgspec.Struct, frozen=True):
    """What a question is about. ``reads`` is an excerpt of what the step reads, if nothing is shown."""

    covers: str
    show: Any = None
    reads: Mapping[str, Any] | None = None


def subject_of(show: Any, verdict: str = "") -> Subject:
    """Returns the subject of a question that shows something: what is shown."""
    return Subject("show:" + canon.fingerprint([show, verdict]), show)


def read(reads: Mapping[str, Any], secret: Collection[str], verdict: str = "") -> Subject:
    """Returns the subject of a question that shows nothing: what the step reads. Large and secret values are kept as digests."""
    kept = {n: _excerpt(v, n in secret) for n, v in reads.items()}
    return Subject("read:" + canon.fingerprint([dict(reads), verdict]), reads=kept)


def _excerpt(value: Any, secret: bool) -> Any:
    if not secret and len(canon.encode(canon.admit(value))) <= EXCERPT_BYTES:
        return value
    return f"{HIDDEN if secret else '…'}{canon.fingerprint(value)[:8]}"


def pack(subject: Subject) -> bytes | None:
    return None if subject.reads is None else canon.pack(dict(subject.reads), "reads")[1]


def compare(before: Wait, prompt: str, now: Subject, secret: Collection[str] = ()) -> str | None:
    """Returns how the subject of a question differs from what a consent covered, or None if it does not differ.

    A wait from a release that kept no digest is compared by what it showed.
    """
    if not before.covers:
        if before.show is None or canon.fingerprint(_value(before.show)) == canon.fingerprint(now.show):
            return None
    elif before.covers == now.covers:
        if now.reads is None or particulars(before.prompt) == particulars(prompt):
            return None
        return f"the question was {before.prompt!r} and is now {prompt!r}"
    names = mask(secret, ())
    if before.show is not None or now.show is not None:
        return f"{_text(names.value(_plain(_value(before.show))))} was shown, and it is {_text(names.value(_plain(now.show)))} now"
    was, reads = _reads(before), now.reads or {}
    differing = [n for n in dict.fromkeys((*was, *reads)) if n not in was or n not in reads or _plain(was[n]) != _plain(reads[n])]
    told = ", ".join(f"{n} was {_text(_plain(was.get(n)))} and is {_text(_plain(reads.get(n)))}" for n in differing)
    return told or "the values that the step reads have changed"


def particulars(prompt: str) -> list[str]:
    """Returns the names and numbers in a question; the other words are only wording."""
    words = [w.strip(".,:") for w in _WORD.findall(prompt)]
    return [w for n, w in enumerate(words) if any(c.isdigit() or c in "@/_" for c in w) or (n and len(w) > 1 and w[:1].isupper())]


def _reads(wait: Wait) -> Mapping[str, Any]:
    found = None if wait.reads is None else _value(wait.reads)
    return found if isinstance(found, Mapping) else {}


def _value(data: bytes | None) -> Any:
    """Returns a stored value. If it cannot be decoded here, returns a text that differs from every value."""
    try:
        return None if data is None else canon.decode(data)
    except EventUnreadable as e:
        return f"unreadable: {e.message}"


def _plain(value: Any) -> Any:
    return canon.reveal(canon.encode(canon.admit(value)))


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
