"""Waits and decisions (§5)."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core import canon
from holdfast.core import waits as w
from holdfast.core.errors import ActionUnavailable, InvalidInput, NotDecidable
from holdfast.core.status import Status
from holdfast.core.waits import WaitKind
from tests.core.build import decided, raw, wait
from tests.core.test_payloads import SEALED


def test_the_same_decision_again_is_the_same() -> None:
    """T-24, §5.6: wait, action, feedback, note and payload count; the time, the actor and ``resume`` do not."""
    first = decided("approve", note="n", payload=raw(None), decided_at=1)
    assert first.same(decided("approve", note="n", payload=raw(None), decided_at=2, resume=False))
    for other in (
        decided("deny", note="n", payload=raw(None)),
        decided("approve", note="other", payload=raw(None)),
        decided("approve", note="n"),
        decided("approve", note="n", feedback="f", payload=raw(None)),
        decided("approve", "w2", note="n", payload=raw(None)),
    ):
        assert not first.same(other)


@pytest.mark.parametrize("status", list(Status))
def test_one_predicate_says_what_is_decidable(status: Status) -> None:
    """T-27, §5.4."""
    now = status in (Status.WAITING_FOR_HUMAN, Status.RUNNING, Status.REPLAYING, Status.FAILED)
    assert w.decidable(status, (wait(),), "w1") is now
    assert not w.decidable(status, (), "w1")
    assert not w.decidable(status, (wait(WaitKind.TIMER),), "w1")


def test_only_published_actions_are_taken() -> None:
    """T-26, §5.5: a missing list allows nothing."""
    w.check_allowed(wait(), "approve", None)
    with pytest.raises(ActionUnavailable):
        w.check_allowed(wait(), "halt", None)
    with pytest.raises(ActionUnavailable):
        w.check_allowed(wait(available_actions=()), "approve", None)


@pytest.mark.parametrize("action", ["continue_with_waiver", "retry_feedback"])
def test_some_actions_need_feedback(action: str) -> None:
    """§5.5."""
    handoff = wait(WaitKind.HANDOFF, available_actions=w.ACTIONS[WaitKind.HANDOFF])
    for feedback in (None, "", "  "):
        with pytest.raises(InvalidInput):
            w.check_allowed(handoff, action, feedback)
    w.check_allowed(handoff, action, "shorter")


def test_where_waits_rest_and_when_they_fall_due() -> None:
    """§5.2, §5.10."""
    timer = wait(WaitKind.TIMER, "t", deadline=5)
    assert w.resting((timer,)) is Status.WAITING_FOR_SIGNAL
    assert w.resting((timer, wait(deadline=3))) is Status.WAITING_FOR_HUMAN
    assert w.wake_at((timer, wait(deadline=3), wait())) == 3
    assert w.wake_at((wait(),)) is None


def test_every_human_kind_offers_something() -> None:
    """§5.3."""
    assert set(w.ACTIONS) == set(w.HUMAN)
    assert {k for k in WaitKind if k not in w.HUMAN} == {WaitKind.SIGNAL, WaitKind.TIMER, WaitKind.CHILD}
    assert all(w.ACTIONS.values())


def test_what_was_asked_in_a_word() -> None:
    """§5.8: an answer fits no other question."""
    assert wait(prompt="Publish?").asked == "approval:Publish?"
    assert wait(WaitKind.SIGNAL, name="go", prompt="x").asked == "signal:go"


def test_the_plain_fields() -> None:
    assert set(w.plain(wait())) == set(msgspec.structs.asdict(wait())) - {"show", "schema", "default"}


@pytest.mark.parametrize(
    ("offered", "payload", "decided"),
    [
        (("answer", "deny"), "x", ("answer", "x")),
        (("answer", "deny"), None, ("answer", None)),
        (("answer", "deny"), False, ("answer", False)),
        (("approve", "deny"), None, ("approve", ...)),
        (("approve", "deny"), True, ("approve", ...)),
        (("approve", "deny"), {"to": "b"}, ("approve", {"to": "b"})),
        (("approve", "deny"), 1, ("approve", 1)),
        (("approve", "deny"), False, ("deny", ...)),
        (("approve", "continue", "retry_feedback", "halt"), None, ("approve", ...)),
        (("continue", "halt"), None, ("continue", ...)),
        (("continue", "halt"), True, ("continue", ...)),
        (("continue", "halt"), "x", ("continue", "x")),
    ],
)
def test_how_a_bare_answer_decides(offered: tuple[str, ...], payload: object, decided: tuple[str, object]) -> None:
    """§5.11, L-09: None is an answer, and False never approves."""
    assert w.answering(wait(available_actions=offered), payload) == decided


@pytest.mark.parametrize(("offered", "payload"), [(("approve", "halt"), False), (("continue", "halt"), False), (("record_result", "abandon"), "x"), ((), "x")])
def test_what_a_bare_answer_does_not_say(offered: tuple[str, ...], payload: object) -> None:
    with pytest.raises(NotDecidable, match="is not an answer to"):
        w.answering(wait(available_actions=offered), payload)


@pytest.mark.parametrize("kind", [k for k in WaitKind if k in w.HUMAN])
def test_an_edit_is_offered_where_a_schema_says_what_it_is(kind: WaitKind) -> None:
    offered = w.ACTIONS[kind]
    assert not wait(kind, available_actions=offered).editable
    assert wait(kind, available_actions=offered, schema=b"x").editable == (kind in (WaitKind.APPROVAL, WaitKind.BUDGET))
    assert not wait(kind, available_actions=("halt",), schema=b"x").editable


@pytest.mark.parametrize("kind", [k for k in WaitKind if k in w.HUMAN])
def test_a_payload_that_nothing_reads_is_refused(kind: WaitKind) -> None:
    """§5.4: what is consented to is what was shown; an edit that would be dropped is none."""
    for action in w.ACTIONS[kind]:
        if kind not in w.UNEDITED or action not in w.CONSENTS:
            w.check_payload(wait(kind), action)
            continue
        with pytest.raises(InvalidInput, match="payload") as caught:
            w.check_payload(wait(kind), action)
        assert caught.value.hint


@pytest.mark.parametrize("kind", sorted(w.UNEDITED))
def test_a_word_of_consent_is_no_edit(kind: WaitKind) -> None:
    """§5.11: whoever answers «yes» to what cannot be edited approves it; whoever gives it other values is refused."""
    asked = wait(kind, available_actions=w.ACTIONS[kind])
    assert w.answering(asked, "yes") == ("approve", ...)
    assert w.answering(asked, {"to": "b"}) == ("approve", {"to": "b"})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (decided("failed", payload=canon.encode({"run_id": "kid", "status": "failed", "error": "boom"})), "the child kid ended failed: boom"),
        (decided("canceled", payload=canon.encode({"run_id": "kid", "status": "canceled", "error": None})), "the child kid was canceled"),
        (decided("failed"), "the child ended failed: no reason given"),
        (decided("failed", payload=SEALED), "the child ended failed: no reason given"),
        (decided("failed", payload=canon.encode([1])), "the child ended failed: no reason given"),
        (decided("completed", payload=canon.encode(1)), None),
        (decided("approve"), None),
    ],
)
def test_the_end_of_a_child_is_a_failure_of_its_parent(given: w.Decision, told: str | None) -> None:
    assert w.tell_child(given) == told
