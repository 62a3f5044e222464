"""Statuses, the twelve transitions, what may be resumed, and conditions (§2).

The state machine is two tables. ``TRANSITIONS`` is checked before every change of status; ``RESUMABLE`` is
checked only by the resume operation, so that no other change of status can revive a terminal run (§2.3).
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.errors import IllegalTransition, UnknownStatus


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    WAITING_FOR_HUMAN = "waiting_for_human"
    WAITING_FOR_SIGNAL = "waiting_for_signal"
    REPLAYING = "replaying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


TRANSITIONS: frozenset[tuple[Status, Status]] = frozenset(
    {
        (Status.PENDING, Status.RUNNING),
        (Status.RUNNING, Status.WAITING_FOR_HUMAN),
        (Status.RUNNING, Status.WAITING_FOR_SIGNAL),
        (Status.RUNNING, Status.REPLAYING),
        (Status.RUNNING, Status.COMPLETED),
        (Status.RUNNING, Status.FAILED),
        (Status.RUNNING, Status.CANCELED),
        (Status.WAITING_FOR_HUMAN, Status.RUNNING),
        (Status.WAITING_FOR_SIGNAL, Status.RUNNING),
        (Status.REPLAYING, Status.RUNNING),
        (Status.REPLAYING, Status.FAILED),
        (Status.REPLAYING, Status.CANCELED),
    }
)
RESUMABLE = frozenset({Status.FAILED, Status.CANCELED})
TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELED})
WAITING = frozenset({Status.WAITING_FOR_HUMAN, Status.WAITING_FOR_SIGNAL})
AT_REST = frozenset({Status.PENDING, *WAITING})
LIVE = frozenset({Status.RUNNING, Status.REPLAYING})
NOT_ENDED = tuple(s for s in Status if s not in TERMINAL)

_SPELLINGS = {"cancelled": Status.CANCELED, **{s.value: s for s in Status}}


def parse(text: str) -> Status:
    """Returns the status that a word names; both spellings of cancel(l)ed are accepted (§2.11).

    Raises:
        UnknownStatus: for any other word; never coerced (§2.6).
    """
    try:
        return _SPELLINGS[text]
    except (KeyError, TypeError):
        known = ", ".join(s.value for s in Status)
        hint = f"it is a condition: --condition {text}, or condition={text}" if text in [c.value for c in Condition] else f"one of {known}"
        raise UnknownStatus(f"{text!r} is not a status", hint=hint) from None


def move(current: Status, wanted: Status) -> Status:
    """Returns ``wanted`` if the table has the transition.

    Raises:
        IllegalTransition: names both states (§2.2).
    """
    if (current, wanted) not in TRANSITIONS:
        raise IllegalTransition(current, wanted)
    return wanted


def path(current: Status, wanted: Status) -> tuple[Status, ...]:
    """Returns the statuses to pass through, ``wanted`` last: runs at rest and replaying runs pass through running (§2.4, §2.5)."""
    if (current, wanted) in TRANSITIONS:
        return (wanted,)
    if (current, Status.RUNNING) in TRANSITIONS and (Status.RUNNING, wanted) in TRANSITIONS:
        return (Status.RUNNING, wanted)
    raise IllegalTransition(current, wanted)


class Condition(StrEnum):
    """Finer states, derived from the run, which are shown beside the status (§2.9)."""

    QUEUED = "queued"
    RUNNING = "running"
    REPLAYING = "replaying"
    AWAITING_PHASE_HANDOFF = "awaiting_phase_handoff"
    AWAITING_GATE_DECISION = "awaiting_gate_decision"
    AWAITING_HUMAN_REVIEW = "awaiting_human_review"
    AWAITING_SIGNAL = "awaiting_signal"
    DONE = "done"
    HALTED = "halted"
    CANCELLED = "cancelled"
    FAILED = "failed"
    UNKNOWN = "unknown"
    INTERRUPTED = "interrupted"


class Class(StrEnum):
    LIVE = "live"
    OPERATOR_PAUSE = "operator pause"
    SETTLED = "settled terminal"
    TERMINAL = "terminal"
    DIAGNOSTIC = "diagnostic"
    TORN = "torn"


CLASSES: dict[Condition, Class] = {
    Condition.QUEUED: Class.LIVE,
    Condition.RUNNING: Class.LIVE,
    Condition.REPLAYING: Class.LIVE,
    Condition.AWAITING_PHASE_HANDOFF: Class.OPERATOR_PAUSE,
    Condition.AWAITING_GATE_DECISION: Class.OPERATOR_PAUSE,
    Condition.AWAITING_HUMAN_REVIEW: Class.OPERATOR_PAUSE,
    Condition.AWAITING_SIGNAL: Class.LIVE,
    Condition.DONE: Class.SETTLED,
    Condition.HALTED: Class.SETTLED,
    Condition.CANCELLED: Class.TERMINAL,
    Condition.FAILED: Class.DIAGNOSTIC,
    Condition.UNKNOWN: Class.DIAGNOSTIC,
    Condition.INTERRUPTED: Class.TORN,
}
