"""Whether a step is a completed checkpoint (§4.11), and how a run ends that has nothing left to do (§5.16)."""

from __future__ import annotations

import itertools

import pytest

from holdfast.core import events as ev
from holdfast.core.errors import IllegalTransition
from holdfast.core.outcomes import Terminal, completes, of_delivery, resolve_terminal_outcome
from holdfast.core.status import Status


@pytest.mark.parametrize("outcome", ["ok", "OK", "  ok ", "degraded", " Degraded", "skipped", "skipped: why", "SKIPPED: x", "skippedish"])
def test_these_complete(outcome: str) -> None:
    """T-11."""
    assert completes(outcome)


@pytest.mark.parametrize(
    "outcome",
    ["okayish", "skip", "DONE", "done", None, "", " ", "ok: fine", "degraded: why", "failed", "halted: x", "rejected", "error", "incomplete", 1, True, b"ok"],
)
def test_these_do_not(outcome: object) -> None:
    """T-11: a step that ended is not a step that completed."""
    assert completes(outcome) is False


def test_each_success_has_its_kind() -> None:
    """§13.2."""
    kinds = {o: ev.step_ended(o) for o in ("ok", " Skipped: why", "degraded", "OK")}
    assert kinds == {"ok": ev.StepCompleted, " Skipped: why": ev.StepSkipped, "degraded": ev.StepDegraded, "OK": ev.StepCompleted}


@pytest.mark.parametrize(
    ("word", "outcome"),
    [
        ("delivered", "ok"),
        (" Delivered ", "ok"),
        ("no_change", "skipped: no_change"),
        ("rejected", "rejected"),
        ("ok", "ok"),
        ("degraded", "degraded"),
        ("anything", "anything"),
    ],
)
def test_what_came_of_a_product_is_an_outcome_of_its_step(word: str, outcome: str) -> None:
    """§5.16: delivered and no_change complete, a rejection does not; other words are the step's own."""
    assert of_delivery(word) == outcome
    assert completes(outcome) is (word.strip().lower() not in ("rejected", "anything"))


# -- the terminal outcome (§5.16) -------------------------------------------------------------------

DONE, REVIEW, HALTED = Terminal.DONE, Terminal.AWAITING_HUMAN_REVIEW, Terminal.HALTED
ENDS = {Status.COMPLETED: DONE, Status.CANCELED: HALTED}
"""What has ended stays as it is, whatever comes late (T-08)."""


@pytest.mark.parametrize("handoff", [False, True])
@pytest.mark.parametrize("reviewed", [False, True])
@pytest.mark.parametrize("status", list(Status))
def test_status_by_handoff_by_kind(status: Status, reviewed: bool, handoff: bool) -> None:
    """§5.16: an undecided handoff, or work of a kind that is reviewed, waits for a person; everything else is done."""
    if status is Status.FAILED:
        with pytest.raises(IllegalTransition, match="failed"):
            resolve_terminal_outcome(status, reviewed=reviewed, handoff=handoff)
        return
    expected = ENDS.get(status) or (REVIEW if reviewed or handoff else DONE)
    assert resolve_terminal_outcome(status, reviewed=reviewed, handoff=handoff) is expected


TABLE = {
    # (reviewed, decision, delivery): outcome; with an undecided handoff beside it
    (False, None, None): (DONE, REVIEW),
    (False, None, "delivered"): (DONE, REVIEW),
    (False, None, "no_change"): (DONE, REVIEW),
    (False, None, "rejected"): (HALTED, REVIEW),
    (True, None, None): (REVIEW, REVIEW),
    (True, None, "delivered"): (REVIEW, REVIEW),
    (True, None, "no_change"): (DONE, REVIEW),
    (True, None, "rejected"): (REVIEW, REVIEW),
}
DECISIONS = {"approve": DONE, "continue": DONE, "continue_with_waiver": DONE, "halt": HALTED, "deny": HALTED}


@pytest.mark.parametrize("status", [Status.RUNNING, Status.REPLAYING])
@pytest.mark.parametrize(("case", "outcomes"), TABLE.items())
def test_deliveries(case: tuple[bool, str | None, str | None], outcomes: tuple[Terminal, Terminal], status: Status) -> None:
    """§5.16: no_change needs no review; a rejection goes to a person where one reviews, else it halts the run."""
    reviewed, decision, delivery = case
    for handoff, expected in zip((False, True), outcomes, strict=True):
        found = resolve_terminal_outcome(status, reviewed=reviewed, handoff=handoff, decision=decision, delivery=delivery)
        assert found is expected, (case, handoff)


@pytest.mark.parametrize(("action", "outcome"), DECISIONS.items())
def test_a_persons_word_ends_it(action: str, outcome: Terminal) -> None:
    """§5.16: approve or continue completes, halt halts, whatever else there is to say."""
    for reviewed, handoff, delivery in itertools.product((False, True), (False, True), (None, "delivered", "no_change", "rejected")):
        found = resolve_terminal_outcome(Status.RUNNING, reviewed=reviewed, handoff=handoff, decision=action, delivery=delivery)
        assert found is outcome


def test_without_a_reason_to_ask_it_is_done() -> None:
    assert resolve_terminal_outcome(Status.RUNNING) is DONE
    assert resolve_terminal_outcome(Status.RUNNING, delivery="rejected") is HALTED


def test_a_decision_that_ends_nothing_leaves_the_question() -> None:
    """A timeout never approves (§5.10), and feedback asks for another round."""
    for action in ("timeout", "retry_feedback"):
        assert resolve_terminal_outcome(Status.RUNNING, reviewed=True, decision=action) is REVIEW
