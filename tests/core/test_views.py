"""What is shown of a run: shapes are API (§2.9, §2.10, §3.1, §13.1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import events as ev
from holdfast.core import views
from holdfast.core.errors import ErrorValue
from holdfast.core.intents import Delivery, Ended, Intent, Ruling
from holdfast.core.lease import Alive, Lease
from holdfast.core.run import Run
from holdfast.core.status import Class, Condition, Status
from holdfast.core.waits import WaitKind
from tests.core.build import decided, folded, numbered, raw, submitted, wait

NOW = 100_000_000
HELD = Lease(fence=(7 << 32) + 3, owner="w", expires_at=NOW + 1, owner_alive=Alive.YES)
EXPIRED = Lease(fence=1, owner="w", expires_at=NOW)
DEAD = Lease(fence=1, owner="w", expires_at=NOW + 1, owner_alive=Alive.NO)
FREE = Lease(fence=1)
BOOM = ErrorValue("ValueError", "boom", where="a")


def at(status: Status, **more: Any) -> Run:
    return msgspec.structs.replace(folded(), status=status, **more)


def human(*kinds: WaitKind, **more: Any) -> Run:
    return at(Status.WAITING_FOR_HUMAN, waits=tuple(wait(k, f"w{i}") for i, k in enumerate(kinds)), **more)


TABLE: list[tuple[Run | None, Lease | None, Condition]] = [
    (None, None, Condition.UNKNOWN),
    (at("paused"), FREE, Condition.UNKNOWN),  # type: ignore[arg-type]
    (at(Status.PENDING), FREE, Condition.QUEUED),
    (at(Status.PENDING), None, Condition.QUEUED),
    (at(Status.RUNNING), HELD, Condition.RUNNING),
    (at(Status.RUNNING), FREE, Condition.QUEUED),
    (at(Status.RUNNING), None, Condition.QUEUED),
    (at(Status.RUNNING), EXPIRED, Condition.INTERRUPTED),
    (at(Status.RUNNING), DEAD, Condition.INTERRUPTED),
    (at(Status.RUNNING, interrupted_at=1), FREE, Condition.INTERRUPTED),
    (at(Status.PENDING, interrupted_at=1), FREE, Condition.INTERRUPTED),
    (at(Status.PENDING, interrupted_at=1), None, Condition.INTERRUPTED),
    (human(interrupted_at=1, decisions=(decided("approve"),)), FREE, Condition.INTERRUPTED),
    (human(interrupted_at=1, decisions=(decided("approve"),)), Lease(fence=1, due=1), Condition.QUEUED),
    (human(WaitKind.APPROVAL, interrupted_at=1), FREE, Condition.AWAITING_GATE_DECISION),
    (at(Status.WAITING_FOR_SIGNAL, waits=(wait(WaitKind.SIGNAL),), interrupted_at=1), FREE, Condition.AWAITING_SIGNAL),
    (at(Status.WAITING_FOR_SIGNAL, interrupted_at=1), FREE, Condition.INTERRUPTED),
    (at(Status.REPLAYING), HELD, Condition.REPLAYING),
    (at(Status.REPLAYING), EXPIRED, Condition.INTERRUPTED),
    (at(Status.REPLAYING), DEAD, Condition.INTERRUPTED),
    (human(WaitKind.HANDOFF), FREE, Condition.AWAITING_PHASE_HANDOFF),
    (human(WaitKind.REVIEW), FREE, Condition.AWAITING_HUMAN_REVIEW),
    (human(WaitKind.HANDOFF, WaitKind.REVIEW), FREE, Condition.AWAITING_HUMAN_REVIEW),
    *[
        (human(k), FREE, Condition.AWAITING_GATE_DECISION)
        for k in (WaitKind.APPROVAL, WaitKind.GATE, WaitKind.EFFECT, WaitKind.RETRY, WaitKind.TAKEOVER, WaitKind.BUDGET, WaitKind.INPUT)
    ],
    (human(WaitKind.TIMER, decisions=(decided("approve"),)), FREE, Condition.QUEUED),
    (human(decisions=(decided("approve"),)), FREE, Condition.QUEUED),
    (human(decisions=(decided("approve", resume=False),)), FREE, Condition.AWAITING_GATE_DECISION),
    (at(Status.WAITING_FOR_SIGNAL, waits=(wait(WaitKind.SIGNAL),)), FREE, Condition.AWAITING_SIGNAL),
    (at(Status.WAITING_FOR_SIGNAL), FREE, Condition.QUEUED),
    (at(Status.COMPLETED), FREE, Condition.DONE),
    (at(Status.CANCELED, settled=True), FREE, Condition.HALTED),
    (at(Status.CANCELED), FREE, Condition.CANCELLED),
    (at(Status.FAILED), FREE, Condition.FAILED),
    (at(Status.FAILED, waits=(wait(WaitKind.HANDOFF),)), FREE, Condition.FAILED),
]


@pytest.mark.parametrize(("run", "lease", "expected"), TABLE)
def test_the_table_of_conditions(run: Run | None, lease: Lease | None, expected: Condition) -> None:
    """§2.9."""
    assert views.condition(run, lease, NOW) is expected


def test_every_condition_is_reached() -> None:
    assert {c for _, _, c in TABLE} == set(Condition)


@given(
    st.sampled_from([*Status, "garbage"]), st.booleans(), st.none() | st.integers(0, 5),
    st.lists(st.sampled_from(WaitKind), max_size=3), st.lists(st.booleans(), max_size=2),
    st.none() | st.builds(Lease, st.integers(0, 9), st.none() | st.just("w"), st.none() | st.integers(0, 9), st.sampled_from(Alive)),
)
def test_condition_is_total(status: Any, settled: bool, interrupted: int | None, kinds: list[WaitKind], answers: list[bool], lease: Lease | None) -> None:
    """§2.9: it answers for everything, and its class is known."""
    waits = tuple(wait(k, f"w{i}") for i, k in enumerate(kinds))
    decisions = tuple(decided("approve", resume=r) for r in answers)
    run = at(status, settled=settled, interrupted_at=interrupted, waits=waits, decisions=decisions)
    word = views.condition(run, lease, 5)
    assert isinstance(views.condition_class(word), Class)
    assert status == "garbage" or status in views.STATUSES[word], "whoever looks for runs of a condition looks at those"
    if status == "garbage":
        assert word is Condition.UNKNOWN


def test_the_classes() -> None:
    """§2.9."""
    assert views.condition_class(Condition.QUEUED) is Class.LIVE
    assert views.condition_class(Condition.AWAITING_HUMAN_REVIEW) is Class.OPERATOR_PAUSE
    assert views.condition_class(Condition.INTERRUPTED) is Class.TORN


def test_what_a_line_of_a_story_says_of_a_resume() -> None:
    """§7.3: that it was forced is said, and of no other."""
    story = views.timeline(numbered([ev.RunStarted(), ev.RunResumed("signal"), ev.RunResumed("operator", forced=True)]))
    assert [(m.step, m.detail) for m in story] == [("", ""), ("", "signal"), ("", "operator, forced")]
    assert views.Moment("now", "x") == views.Moment(at="now", what="x", step="", duration=None, detail="")


def test_a_story() -> None:
    """One line for a step that ended, with its duration; a wait until its answer; the whole run at its end."""
    story = views.timeline(
        numbered(
            [
                submitted(), ev.RunStarted(), ev.CheckpointSaved(b"h"), ev.NoteAdded("hi"), ev.StepStarted(1, "a"), ev.StepCompleted(1, "a", outcome="degraded", attempt=2),
                ev.StepStarted(2, "b"), ev.WaitRequested(wait(prompt="Publish?", path="0")), ev.WaitDecided(decided("deny", feedback="no")),
                ev.StepFailed(2, "b", BOOM), ev.StepStarted(3, "c"), ev.StepCompleted(3, "c", path="1"), ev.RunFailed("step_failed", BOOM),
            ]
        )
    )
    assert [(m.what, m.step, m.duration, m.detail) for m in story] == [
        ("run.submitted", "", None, "notes 1"),
        ("run.started", "", None, ""),
        ("note.added", "", None, "hi"),
        ("step.completed", "a", 1.0, "degraded, attempt 2"),
        ("wait.requested", "ask.0", None, "approval: Publish?"),
        ("wait.decided", "", 1.0, "deny by ada: no"),
        ("step.failed", "b", 3.0, "ValueError: boom"),
        ("step.started", "c", None, ""),
        ("step.completed", "c.1", None, ""),
        ("run.failed", "", 11.0, "step_failed: boom"),
    ]
    assert story[0].at == "1970-01-01T00:00:01.000000Z"


@pytest.mark.parametrize(
    ("fact", "detail"),
    [
        (ev.Unknown(99, []), "a kind this release does not know (99)"),
        (ev.RunQueued(blocked_by="r"), "after r"),
        (ev.RunQueued("lane"), "lane"),
        (ev.RunResumed("operator", forced=True), "operator, forced"),
        (ev.RunRecovered("w", "expired"), "from w: expired"),
        (ev.RunCanceled("denied"), "denied"),
        (ev.RunClaimed("w", 1), "w"),
        (ev.RunForked("a", "a.c1"), "from a.c1"),
        (ev.RunReplayed("a"), "from a"),
        (ev.StepRetryScheduled(1, "a", 1, 0, BOOM), "again at 00:00:00Z: attempt 1 failed (boom)"),
        (ev.WaitRequested(wait(WaitKind.SIGNAL, name="go")), "signal: go"),
        (ev.WaitTimedOut(decided("timeout")), "nobody answered by the deadline"),
        (ev.WaitDecided(decided("reexecute", forced=True)), "reexecute by ada, forced"),
        (ev.WaitDenied("w", "approve", "eve", "not hers"), "approve by eve refused: not hers"),
        (ev.SideEffectAttempted("e", "k"), "e"),
        (ev.IntentEnqueued("i", "webhook"), "webhook"),
        (ev.SignalReceived("go", "k", raw(1)), "go"),
        (ev.NoteAdded("hello"), "hello"),
        (ev.PolicyEvaluated("refund", "deny", "over the limit"), "deny: over the limit"),
        (ev.PolicyEvaluated("refund", "allow"), "allow"),
        (ev.AttemptLeaseExpired("w", "owner_dead"), "owner_dead"),
        (ev.RunCancelRequested("why"), "why"),
        (ev.RunStarted(), ""),
        (ev.StepCompleted(1, "a"), ""),
    ],
)
def test_what_is_worth_saying(fact: ev.Fact, detail: str) -> None:
    assert views.timeline([ev.Event(1, 0, fact)])[0].detail == detail


def test_what_became_of_intents_is_told_by_its_time() -> None:
    """§9.3: each attempt at its end, or its beginning while it is under way, and what people said about it."""
    boom = ErrorValue("OSError", "down")
    tries = (Delivery(1, "d", 2_000_000, ended_at=3_000_000, outcome=Ended.FAILED, error=boom), Delivery(2, "d", 9_000_000))
    rulings = (Ruling(5_000_000, "ada", "it is up", "redrive", 1, forced=True), Ruling(6_000_000, "ada", "", "redrive", 1))
    sent = Intent(intent_id="r.step!0", run_id="r", type="mail", payload=b"", key="k", target="a@b.c", tries=tries, rulings=rulings)
    bare = Intent(intent_id="r.step!1", run_id="r", type="sms", payload=b"", key="l", tries=(Delivery(1, "d", 4_000_000, ended_at=4_500_000, outcome=Ended.SENT),))
    story = views.timeline(numbered((ev.NoteAdded("hi"),)), [sent, bare])
    told = [(m.what, m.detail) for m in story if m.what.startswith("intent.")]
    assert told == [
        ("intent.failed", "mail to a@b.c: down"), ("intent.sent", "sms"), ("intent.redrive", "mail to a@b.c, by ada, forced: it is up"),
        ("intent.redrive", "mail to a@b.c, by ada"), ("intent.sending", "mail to a@b.c, attempt 2"),
    ]
