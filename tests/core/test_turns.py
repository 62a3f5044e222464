"""Steps and attempts, put together from events (§10.9)."""

from __future__ import annotations

from holdfast.core import events as ev
from holdfast.core.errors import ErrorValue
from holdfast.core.lease import Lease
from holdfast.core.run import fold_all
from holdfast.core.turns import Turns
from tests.core.build import RUN, numbered, submitted

BOOM = ErrorValue("ValueError", "boom")


def turns(*facts: ev.Fact, lease: Lease | None = None) -> Turns:
    events = list(numbered([submitted(), *facts]))
    return Turns(fold_all(None, events), lease).feed(events)


def test_a_plain_step_is_one_try() -> None:
    told = turns(ev.RunClaimed("w1", 1), ev.RunStarted(), ev.StepStarted(1, "a"), ev.StepCompleted(1, "a"), ev.StepStarted(2, "b"))
    done, going = told.steps({})
    assert (done.step_id, done.name, done.path, done.outcome, done.attempts, done.error) == (f"{RUN}.1.a", "a", "", "ok", 1, None)
    assert done.started_at is not None and done.ended_at is not None and done.started_at < done.ended_at
    assert (going.outcome, going.ended_at) == (None, None)
    first, second = told.attempts()
    assert (first.attempt_id, first.number, first.owner, first.outcome, first.retry_at) == (f"{RUN}.1.a@1", 1, "w1", "ok", None)
    assert (second.outcome, second.ended_at, second.lease_expires_at) == (None, None, None)


def test_a_try_under_way_shows_its_owners_lease_and_nobody_elses() -> None:
    facts = (ev.RunClaimed("w1", 1), ev.RunStarted(), ev.StepStarted(1, "a"))
    assert turns(*facts, lease=Lease(1, "w1", 9_000_000)).attempts()[0].lease_expires_at == "1970-01-01T00:00:09.000000Z"
    assert turns(*facts, lease=Lease(1, "w2", 9_000_000)).attempts()[0].lease_expires_at is None


def test_a_step_that_is_tried_again() -> None:
    told = turns(
        ev.RunClaimed("w1", 1), ev.RunStarted(), ev.StepStarted(1, "a"), ev.StepRetryScheduled(1, "a", 1, 7_000_000, BOOM), ev.AttemptStarted(1, "a", 2, "w1"), ev.StepFailed(1, "a", BOOM, attempt=2),
    )
    step = told.steps({})[0]
    assert (step.outcome, step.attempts, step.error and step.error.message) == ("failed", 2, "boom")
    one, two = told.attempts()
    assert (one.outcome, one.retry_at, one.error and one.error.type) == ("failed", "1970-01-01T00:00:07.000000Z", "ValueError")
    assert (two.attempt_id, two.outcome, two.retry_at) == (f"{RUN}.1.a@2", "failed", None)


def test_between_two_tries_a_step_has_no_outcome() -> None:
    told = turns(ev.RunStarted(), ev.StepStarted(1, "a"), ev.StepRetryScheduled(1, "a", 1, 7_000_000, BOOM))
    assert (told.steps({})[0].outcome, told.attempts()[0].outcome) == (None, "failed")


def test_a_step_that_changed_hands() -> None:
    told = turns(
        ev.RunClaimed("w1", 1), ev.RunStarted(), ev.StepStarted(1, "a"), ev.StepStarted(1, "b"), ev.StepCompleted(1, "b"),
        ev.AttemptLeaseExpired("w1", "owner_dead"), ev.AttemptTakenOver("w2", 1), ev.RunRecovered("w1", "owner_dead"), ev.StepCompleted(1, "a"),
    )
    assert [(a.step_id[-1], a.number, a.owner, a.outcome) for a in told.attempts()] == [("a", 1, "w1", "lost"), ("a", 2, "w2", "ok"), ("b", 1, "w1", "ok")]


def test_recorded_calls_have_their_names_and_begin_where_that_is_told() -> None:
    told = turns(
        ev.RunStarted(), ev.StepStarted(1, "a"), ev.StepCompleted(1, "a", path="0"), ev.SideEffectAttempted("e", "k", 1, "a", "s/1"), ev.StepCompleted(1, "a", path="s/1"),
        ev.SideEffectAttempted("f", "k2", 1, "a", ""),
    )
    whole, call, effect = told.steps({(1, "a", "0"): "summarise"})
    assert (whole.name, call.name, call.path, call.started_at, call.outcome) == ("a", "summarise", "0", None, "ok")
    assert (effect.name, effect.started_at is not None) == ("1", True)


def test_what_the_end_of_a_run_cut_off_is_incomplete() -> None:
    told = turns(ev.RunStarted(), ev.StepStarted(1, "a"), ev.StepStarted(1, "b"), ev.StepRetryScheduled(1, "b", 1, 1, BOOM), ev.RunCanceled("canceled"))
    assert [(s.outcome, s.ended_at is not None) for s in told.steps({})] == [("incomplete", True)] * 2
    assert [a.outcome for a in told.attempts()] == ["incomplete", "failed"]


def test_a_step_that_is_entered_again_after_its_failure() -> None:
    told = turns(ev.RunStarted(), ev.StepStarted(1, "a"), ev.StepFailed(1, "a", BOOM), ev.StepCompleted(1, "a"))
    assert [(a.number, a.outcome, a.started_at is None) for a in told.attempts()] == [(1, "failed", False), (2, "ok", True)]


def test_an_attempt_that_is_told_of_twice_is_one() -> None:
    told = turns(ev.RunClaimed("w1", 1), ev.RunStarted(), ev.StepStarted(1, "a"), ev.AttemptStarted(1, "a", 1, "w1"), ev.StepCompleted(1, "a"))
    assert [a.number for a in told.attempts()] == [1]
