"""How a step ended and whether it completed (§4.11), and how a run ends that has nothing left to do (§5.16)."""

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
    """Whether a step with this outcome is a completed checkpoint.

    ``ok``, ``degraded`` or anything that begins with ``skipped``, trimmed and lower-cased; every other word,
    ``""`` and ``None`` is not. The fold, the checkpoint writer, the resume and the summaries all call this.
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
    """The step's outcome where a delivering node reports what came of its product.

    With no change nothing was delivered: the step is skipped and fires no edge. A rejection is no completion.
    """
    return {DELIVERED: OK, NO_CHANGE: UNCHANGED, REJECTED: REJECTED}.get(word.strip().lower(), word)


# -- the end of a run -------------------------------------------------------------------------------


class Terminal(StrEnum):
    """What becomes of a run in which nothing is runnable any more (§5.16)."""

    DONE = "done"
    AWAITING_HUMAN_REVIEW = "awaiting_human_review"
    HALTED = "halted"


def resolve_terminal_outcome(
    status: Status, *, reviewed: bool = False, handoff: bool = False, decision: str | None = None, delivery: str | None = None
) -> Terminal:
    """Decides how a run with nothing left to do ends; those who ask only apply the answer (§5.16).

    Args:
        reviewed: its kind of work is one that the policy has people review.
        handoff: a person has still to decide about a machine's verdict; no end erases that (§5.14).
        decision: the action that a person took in its review, None if there was none yet.
        delivery: what came of the product, if a node has just published it. A change that is none needs no review.

    Raises:
        IllegalTransition: a run with this status cannot end here; a failed one is resumed first.
    """
    match status:
        case Status.COMPLETED:
            return Terminal.DONE
        case Status.CANCELED:
            return Terminal.HALTED  # what comes late revives nothing (T-08)
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
