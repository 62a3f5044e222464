"""The outcomes of steps and whether a step completed (§4.11), and how a run ends when nothing is left to do (§5.16)."""

from __future__ import annotations

from enum import StrEnum

from holdfast.core.status import Status, path
from holdfast.core.waits import APPROVE, CONTINUE, HALTING, WAIVE

OK = "ok"
DEGRADED = "degraded"
SKIPPED = "skipped"
ALL_SKIPPED = "skipped: every node that it comes after was skipped"
FAILED = "failed"


def completes(outcome: object) -> bool:
    """Whether a step with this outcome is completed.

    It is for ``ok``, ``degraded`` and anything that begins with ``skipped``, trimmed and lower-cased; it is not for any
    other word, ``""`` or ``None``. The fold, the checkpoint writer, the resume and the summaries all call this.
    """
    if outcome == OK:
        return True
    if not isinstance(outcome, str):
        return False
    word = outcome.strip().lower()
    return word in (OK, DEGRADED) or word.startswith(SKIPPED)


# -- deliveries -------------------------------------------------------------------------------------

DELIVERED = "delivered"
NO_CHANGE = "no_change"
REJECTED = "rejected"
UNCHANGED = f"{SKIPPED}: {NO_CHANGE}"


def of_delivery(word: str) -> str:
    """Returns the outcome of a delivering node's step, from the word with which it reports its delivery.

    With no change nothing was delivered: the step counts as skipped and fires no edge. A rejected step is not completed.
    """
    return {DELIVERED: OK, NO_CHANGE: UNCHANGED, REJECTED: REJECTED}.get(word.strip().lower(), word)


# -- the end of a run -------------------------------------------------------------------------------


class Terminal(StrEnum):
    """How a run ends in which nothing is runnable any more (§5.16)."""

    DONE = "done"
    AWAITING_HUMAN_REVIEW = "awaiting_human_review"
    HALTED = "halted"


def resolve_terminal_outcome(
    status: Status, *, reviewed: bool = False, handoff: bool = False, decision: str | None = None, delivery: str | None = None
) -> Terminal:
    """Decides how a run with nothing left to do ends; the callers only apply the answer (§5.16).

    Args:
        reviewed: whether people review this kind of work, according to the policy.
        handoff: whether a person still has to decide about a machine's verdict; no end erases that (§5.14).
        decision: the action that a person chose in its review, None if there was none yet.
        delivery: the result of the delivery, if a node has just published the product. Without a change no review is needed.

    Raises:
        IllegalTransition: a run with this status cannot end here; a failed run is resumed first.
    """
    match status:
        case Status.COMPLETED:
            return Terminal.DONE
        case Status.CANCELED:
            return Terminal.HALTED  # a late answer does not revive the run (T-08)
    path(status, Status.COMPLETED)
    if decision in HALTING:
        return Terminal.HALTED
    if decision in (APPROVE, CONTINUE, WAIVE):
        return Terminal.DONE
    if handoff:
        return Terminal.AWAITING_HUMAN_REVIEW
    if delivery == REJECTED:
        return Terminal.AWAITING_HUMAN_REVIEW if reviewed else Terminal.HALTED
    if reviewed and delivery != NO_CHANGE:
        return Terminal.AWAITING_HUMAN_REVIEW
    return Terminal.DONE
