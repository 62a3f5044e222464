"""Commands become facts, or are refused (§5, §7, §10.12). Nothing here touches a store."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import canon, decisions
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import waits as ws
from holdfast.core.errors import (
    AcknowledgeRequired,
    ActionUnavailable,
    AlreadyTerminal,
    Denied,
    ErrorValue,
    HoldfastError,
    InvalidAnswer,
    InvalidInput,
    NotDecidable,
    NothingEligible,
    SettledTerminal,
    TooManySignals,
    UndecidedWait,
    WaitNotFound,
)
from holdfast.core.outcomes import Terminal
from holdfast.core.run import Buffered, Run, fold_all
from holdfast.core.status import TERMINAL, Status
from holdfast.core.waits import Decision, OnTimeout, Wait, WaitKind, find_halt
from tests.core.build import decided, folded, numbered, raw, wait

BOOM = ErrorValue("ValueError", "boom")
NOW = 77_000_000
W = "run.1.ask.0"


def resting(*waits: Wait, human: bool = True) -> Run:
    asked = [ev.WaitRequested(w) for w in waits]
    return folded(ev.RunStarted(), *asked, ev.RunWaitingForHuman() if human else ev.RunWaitingForSignal())


def failed(*waits: Wait, reason: str = "step_failed") -> Run:
    return folded(ev.RunStarted(), *(ev.WaitRequested(w) for w in waits), ev.CheckpointSaved(b"h", "failure"), ev.RunFailed(reason, BOOM))


def after(run: Run, facts: tuple[ev.Fact, ...]) -> Run:
    return fold_all(run, numbered(facts, first=run.version + 1))


def say(action: str, wait_id: str = W, **more: Any) -> cmd.Decide:
    return cmd.Decide(wait_id, action, "ada", **more)


# -- decisions --------------------------------------------------------------------------------------


def test_an_approval_is_a_fact_and_leaves_the_run_at_rest() -> None:
    """§5.4: decide is not resume; T-14: a fold of the facts alone shows it."""
    run = resting(wait(wait_id=W))
    (fact,) = decisions.decide(run, say("approve", note="fine", payload=raw({"a": 1})), NOW)
    assert fact == ev.WaitDecided(Decision(W, "approve", "ada", note="fine", payload=raw({"a": 1}), decided_at=NOW, asked="approval:"))
    moved = after(run, (fact,))
    assert (moved.status, moved.waits) == (Status.WAITING_FOR_HUMAN, ())
    assert moved.decisions == (fact.decision,)


def test_a_decision_may_leave_the_resume_to_somebody_else() -> None:
    (fact,) = decisions.decide(resting(wait(wait_id=W)), say("approve", resume=False), NOW)
    assert fact.decision.resume is False


@pytest.mark.parametrize(
    ("status", "error"),
    [("completed", AlreadyTerminal), ("canceled", AlreadyTerminal), ("pending", NotDecidable)],
)
def test_a_run_whose_waits_are_closed_takes_no_decision(status: str, error: type[HoldfastError]) -> None:
    """§5.4, T-05: an answer after the end is refused and changes nothing."""
    ends: dict[str, tuple[ev.Fact, ...]] = {
        "completed": (ev.RunStarted(), ev.RunCompleted()),
        "canceled": (ev.RunCanceled("canceled", False),),
        "pending": (ev.WaitRequested(wait(wait_id=W)),),
    }
    with pytest.raises(error) as e:
        decisions.decide(folded(*ends[status]), say("approve"), NOW)
    assert status in e.value.message


@pytest.mark.parametrize("status", [Status.RUNNING, Status.WAITING_FOR_HUMAN, Status.FAILED])
def test_an_open_wait_is_decidable_in_these(status: Status) -> None:
    """T-27: the writer asks the predicate that readers ask."""
    w = wait(wait_id=W)
    runs = {Status.RUNNING: folded(ev.RunStarted(), ev.WaitRequested(w)), Status.WAITING_FOR_HUMAN: resting(w), Status.FAILED: failed(w)}
    run = runs[status]
    assert run.status is status and ws.decidable(run.status, run.waits, W)
    assert isinstance(decisions.decide(run, say("approve"), NOW)[0], ev.WaitDecided)


def test_only_an_open_human_wait_is_decidable() -> None:
    with pytest.raises(WaitNotFound, match="w9"):
        decisions.decide(resting(wait(wait_id=W)), say("approve", "w9"), NOW)
    signal = wait(WaitKind.SIGNAL, wait_id=W, available_actions=())
    with pytest.raises(NotDecidable):
        decisions.decide(resting(signal, human=False), say("approve"), NOW)


def test_only_published_actions_are_taken() -> None:
    """§5.5, T-26: an empty list allows nothing."""
    with pytest.raises(ActionUnavailable, match="'halt' is not offered"):
        decisions.decide(resting(wait(wait_id=W)), say("halt"), NOW)
    with pytest.raises(ActionUnavailable, match="no action"):
        decisions.decide(resting(wait(wait_id=W, available_actions=())), say("approve"), NOW)
    handoff = wait(WaitKind.HANDOFF, wait_id=W, available_actions=ws.ACTIONS[WaitKind.HANDOFF])
    with pytest.raises(InvalidInput, match="needs feedback"):
        decisions.decide(resting(handoff), say("retry_feedback", feedback="  "), NOW)
    assert decisions.decide(resting(handoff), say("retry_feedback", feedback="shorter"), NOW)


def test_an_answer_of_nothing_is_an_answer() -> None:
    """L-09, §5.8: no payload with an answer means None; an approval without one edits nothing."""
    question = resting(wait(WaitKind.INPUT, wait_id=W, available_actions=("answer", "approve")))
    assert decisions.decide(question, say("answer"), NOW)[0].decision.payload == raw(None)
    assert decisions.decide(question, say("approve"), NOW)[0].decision.payload is None


def test_an_answer_is_held_against_its_schema() -> None:
    """§5.2: with an answer or edited arguments; other actions carry what they like."""
    question = resting(wait(wait_id=W, schema=raw({"type": "integer"}), available_actions=("answer", "approve", "continue")))
    for action in ("answer", "approve"):
        with pytest.raises(InvalidAnswer, match="'x' is not integer"):
            decisions.decide(question, say(action, payload=raw("x")), NOW)
        assert decisions.decide(question, say(action, payload=raw(7)), NOW)
    assert decisions.decide(question, say("approve"), NOW), "nothing was edited"
    assert decisions.decide(question, say("continue", payload=raw("x")), NOW)


def test_the_answers_among_facts_are_records_for_live_steps() -> None:
    """§5.2: decided or timed out; nothing else is an answer."""
    given, late = decided("approve", W), decided("timeout", "run.1.ask.1")
    records = decisions.answer_records([ev.RunStarted(), ev.WaitDecided(given), ev.WaitTimedOut(late)])
    assert [(r.path, decisions.read_answer(r)) for r in records] == [("0", given), ("1", late)]


@pytest.mark.parametrize(("action", "reason"), [("deny", "denied"), ("halt", "halted")])
def test_a_denial_or_a_halt_ends_the_run_for_good(action: str, reason: str) -> None:
    """§5.5, §5.14: canceled, settled, every other wait closed; T-07: with a reason."""
    run = resting(wait(wait_id=W, available_actions=("approve", "deny", "halt")), wait(wait_id="other"))
    facts = decisions.decide(run, say(action), NOW)
    assert isinstance(facts[0], ev.WaitDecided), "the decision first, then what it leads to (T-23)"
    assert any(isinstance(f, ev.WaitClosed) and f.wait_id == "other" for f in facts)
    assert facts[-1] == ev.RunCanceled(stop_reason=reason, settled=True, at_rest=True)
    end = after(run, facts)
    assert (end.status, end.settled, end.stop_reason, end.waits, end.decisions) == (Status.CANCELED, True, reason, (), ())


def test_a_live_run_that_is_denied_is_not_ended_at_rest() -> None:
    run = folded(ev.RunStarted(), ev.WaitRequested(wait(wait_id=W)))
    assert decisions.decide(run, say("deny"), NOW)[-1] == ev.RunCanceled(stop_reason="denied", settled=True, at_rest=False)


def test_a_denial_may_be_given_to_the_node() -> None:
    """§5.5: ``on_deny="deliver"``."""
    facts = decisions.decide(resting(wait(wait_id=W, on_deny="deliver")), say("deny"), NOW)
    assert [type(f) for f in facts] == [ev.WaitDecided]


@pytest.mark.parametrize(("action", "closed"), [("approve", ["second"]), ("deny", [])])
def test_an_approval_closes_what_others_asked_about_the_same_budget(action: str, closed: list[str]) -> None:
    """§8.5: it is extended once. A denial ends the run, and closes everything with it."""
    asked = [wait(WaitKind.BUDGET, w, name=name) for w, name in [(W, "cost"), ("second", "cost"), ("third", "tokens")]]
    facts = decisions.decide(resting(*asked, wait(wait_id="fourth")), say(action), NOW)
    assert [f.wait_id for f in facts if isinstance(f, ev.WaitClosed) and f.reason == "the budget was extended by another answer"] == closed


def test_a_failed_run_only_records_the_decision() -> None:
    """§5.4: there the resume of §7.3 uses it, even a denial."""
    facts = decisions.decide(failed(wait(wait_id=W)), say("deny"), NOW)
    assert [type(f) for f in facts] == [ev.WaitDecided]


@pytest.mark.parametrize(
    ("w", "action", "halts"),
    [
        (wait(), "approve", False),
        (wait(), "deny", True),
        (wait(on_deny="deliver"), "deny", False),
        (wait(on_deny="deliver"), "halt", True),
        (wait(), "timeout", True),
        (wait(on_timeout=OnTimeout.DELIVER), "timeout", False),
        (wait(on_timeout=OnTimeout.DEFAULT), "timeout", False),
        (wait(on_timeout=OnTimeout.FAIL), "timeout", False),
        (wait(on_timeout=OnTimeout.HALT), "approve", False),
    ],
)
def test_which_decisions_end_the_run(w: Wait, action: str, halts: bool) -> None:
    assert (find_halt(w, decided(action)) is not None) is halts


# -- timeouts ---------------------------------------------------------------------------------------


def timed_out(w: Wait, run: Run | None = None) -> tuple[ev.Fact, ...]:
    return decisions.decide(run or resting(w, human=w.human), cmd.FireTimeout(w.wait_id, 5), NOW)


def test_a_timeout_never_approves() -> None:
    """§5.10: it is a decision of the system's, made once; by default it halts."""
    facts = timed_out(wait(wait_id=W))
    assert facts[0] == ev.WaitTimedOut(Decision(W, "timeout", "system", decided_at=NOW, asked="approval:"))
    assert facts[-1] == ev.RunCanceled(stop_reason="wait_timed_out", settled=True, at_rest=True)


def test_a_timeout_may_be_delivered_or_answered_by_default() -> None:
    (given,) = timed_out(wait(wait_id=W, on_timeout=OnTimeout.DELIVER, default=raw("unused")))
    assert given.decision.payload is None
    (given,) = timed_out(wait(wait_id=W, on_timeout=OnTimeout.DEFAULT, default=raw("blue")))
    assert given.decision.payload == raw("blue")


def test_a_timeout_may_fail_the_run() -> None:
    run = resting(wait(wait_id=W, on_timeout=OnTimeout.FAIL, prompt="Ship?"))
    facts = timed_out(run.waits[0], run)
    assert facts[-1] == ev.RunFailed(
        stop_reason="wait_timed_out", error=ErrorValue("holdfast.WaitTimedOut", "nobody answered 'Ship?' in time", "wait_timed_out")
    )
    assert after(run, facts).status is Status.FAILED
    nameless = wait(wait_id=W, on_timeout=OnTimeout.FAIL)
    assert W in timed_out(nameless)[-1].error.message


@pytest.mark.parametrize(("kind", "halts"), [(WaitKind.SIGNAL, True), (WaitKind.CHILD, True), (WaitKind.TIMER, False)])
def test_a_signal_that_does_not_come_halts_and_a_timer_that_is_due_does_not(kind: WaitKind, halts: bool) -> None:
    """§5.10: halt is the default of every deadline; for a timer its coming is what was waited for."""
    facts = timed_out(wait(kind, wait_id=W, on_timeout=OnTimeout.HALT))
    assert isinstance(facts[-1], ev.RunCanceled) is halts and isinstance(facts[0], ev.WaitTimedOut)


def test_a_timeout_that_comes_late_changes_nothing() -> None:
    """§5.6, T-35: the answer was first, or the run has ended for good."""
    run = resting(wait(wait_id=W))
    assert timed_out(wait(wait_id="w9"), run) == ()
    assert timed_out(wait(wait_id=W), after(run, decisions.mark_run_halted(run))) == ()


@pytest.mark.parametrize("on_timeout", list(OnTimeout))
def test_silence_is_the_answer_to_a_question_of_a_failed_run(on_timeout: OnTimeout) -> None:
    """§5.10: its key is used by it, so that nothing could end the wait later. Whoever resumes the run goes by it."""
    ended = failed(wait(wait_id=W, on_timeout=on_timeout))
    facts = timed_out(ended.waits[0], ended)
    assert [type(f) for f in facts] == [ev.WaitTimedOut]
    told = after(ended, facts)
    assert (told.status, told.waits, [d.action for d in told.decisions]) == (Status.FAILED, (), ["timeout"])



# -- cancel -----------------------------------------------------------------------------------------


def test_a_run_at_rest_is_canceled_in_one_breath() -> None:
    """§10.12, T-89: the request is on record first; §2.4, T-01: through running, in the same commit."""
    run = resting(wait(wait_id=W))
    facts = decisions.decide(run, cmd.Cancel("ada", "too late"), NOW)
    assert facts == (
        ev.RunCancelRequested("too late"),
        ev.WaitClosed(W, "canceled"),
        ev.RunCanceled(stop_reason="canceled", settled=False, at_rest=True),
    )
    end = after(run, facts)
    assert (end.status, end.settled, end.stop_reason, end.waits) == (Status.CANCELED, False, "canceled", ())


@pytest.mark.parametrize(
    ("facts", "at_rest"),
    [((), True), ((ev.RunStarted(),), False), ((ev.RunStarted(), ev.RunReplaying()), False), ((ev.RunStarted(), ev.RunWaitingForSignal()), True)],
)
def test_a_cancel_settles_at_rest_and_is_a_request_to_whoever_drives(facts: tuple[ev.Fact, ...], at_rest: bool) -> None:
    """§10.12: intent first; the owner of a live run ends it at its boundary."""
    run = folded(*facts)
    found = decisions.decide(run, cmd.Cancel("ada"), NOW)
    assert isinstance(found[0], ev.RunCancelRequested) and isinstance(found[-1], ev.RunCanceled) is at_rest
    assert decisions.mark_run_canceled(run)[-1].at_rest is at_rest


def test_a_second_cancel_asks_no_second_time() -> None:
    run = folded(ev.RunStarted(), ev.RunCancelRequested("once"))
    assert decisions.decide(run, cmd.Cancel("ada", "twice"), NOW) == ()


@pytest.mark.parametrize("end", [ev.RunCompleted(), ev.RunFailed("x", BOOM), ev.RunCanceled("canceled", False)])
def test_completion_first_leaves_nothing_to_cancel(end: ev.Fact) -> None:
    """T-92."""
    with pytest.raises(AlreadyTerminal, match="already"):
        decisions.decide(folded(ev.RunStarted(), end), cmd.Cancel("ada"), NOW)


def test_what_takes_a_queued_runs_place_ends_no_other() -> None:
    """§5.13: a replaced run that has begun, or ended, meanwhile stays as it is."""
    command = cmd.Cancel("system", "replaced by x", queued=True)
    end = after(folded(), decisions.decide(folded(), command, NOW))
    assert (end.status, end.stop_reason, end.started_at) == (Status.CANCELED, "canceled", None)
    for begun in (folded(ev.RunStarted()), resting(wait(wait_id=W)), folded(ev.RunStarted(), ev.RunCompleted())):
        assert decisions.decide(begun, command, NOW) == ()


def test_a_failed_run_that_asks_nothing_says_so_to_an_answer_that_names_no_wait() -> None:
    with pytest.raises(WaitNotFound, match=r"the run is failed and has no open question; holdfast explain \w+ says why"):
        decisions.decide(failed(), cmd.Decide("", "approve", "ada"), NOW)


# -- resume -----------------------------------------------------------------------------------------


def test_a_failed_run_is_resumed_by_whoever_names_what_he_has_seen() -> None:
    """§7.3: its head, or its stop reason; a stale or missing acknowledgement is refused."""
    run = failed(reason="step_timeout")
    assert run.checkpoint_head is not None
    for seen in (run.checkpoint_head, "step_timeout"):
        (fact,) = decisions.decide(run, cmd.Resume("ada", acknowledge=seen, force=True), NOW)
        assert fact == ev.RunResumed(cause="operator", checkpoint_id=run.checkpoint_head, acknowledged=seen, forced=True)
    with pytest.raises(AcknowledgeRequired, match="nobody has acknowledged the failure yet"):
        decisions.decide(run, cmd.Resume("ada"), NOW)
    with pytest.raises(AcknowledgeRequired, match="'step_failed' does not name this failure: step_timeout") as e:
        decisions.decide(run, cmd.Resume("ada", acknowledge="step_failed"), NOW)
    assert "--acknowledge step_timeout" in e.value.hint


def test_a_run_without_a_checkpoint_is_not_resumed_by_naming_nothing() -> None:
    """§7.3: None is no acknowledgement, even where there is no head to name."""
    run = folded(ev.RunStarted(), ev.RunFailed("x", BOOM))
    assert run.checkpoint_head is None
    with pytest.raises(AcknowledgeRequired):
        decisions.refuse_resume(run, None)


def test_resume_of_a_failed_run_clears_its_end() -> None:
    """T-02, T-06: finished_at is null again; no status setter could do that."""
    run = failed()
    assert run.finished_at is not None
    again = after(run, decisions.decide(run, cmd.Resume("ada", acknowledge="step_failed"), NOW))
    assert (again.status, again.finished_at, again.stop_reason, again.error) == (Status.RUNNING, None, None, None)


@pytest.mark.parametrize("end", [ev.RunCompleted(), ev.RunCanceled("denied", True)])
def test_what_ended_for_good_is_never_resumed(end: ev.Fact) -> None:
    """§7.2, §7.4: forced or not."""
    with pytest.raises(SettledTerminal, match="for good"):
        decisions.decide(folded(ev.RunStarted(), end), cmd.Resume("ada", force=True), NOW)


def test_a_canceled_run_is_resumed_on_request() -> None:
    run = folded(ev.RunStarted(), ev.CheckpointSaved(b"h", "cancel"), ev.RunCanceled("canceled", False))
    assert [type(f) for f in decisions.decide(run, cmd.Resume("ada"), NOW)] == [ev.RunResumed]
    with pytest.raises(InvalidInput, match="no checkpoint") as e:
        decisions.decide(folded(ev.RunStarted(), ev.RunCanceled("canceled", False)), cmd.Resume("ada"), NOW)
    assert e.value.code == "no_checkpoint"


@pytest.mark.parametrize("force", [False, True])
def test_an_undecided_question_is_never_resumed_past(force: bool) -> None:
    """§7.2: at rest or failed."""
    w = wait(wait_id=W)
    with pytest.raises(UndecidedWait, match=W):
        decisions.decide(resting(w), cmd.Resume("ada", force=force), NOW)
    with pytest.raises(UndecidedWait):
        decisions.decide(failed(w), cmd.Resume("ada", acknowledge="step_failed", force=force), NOW)


def test_a_failed_run_with_only_a_signal_open_asks_nobody() -> None:
    run = failed(wait(WaitKind.SIGNAL, wait_id=W))
    assert decisions.decide(run, cmd.Resume("ada", acknowledge="step_failed"), NOW)


def test_an_answered_run_is_resumed() -> None:
    run = after(resting(wait(wait_id=W)), (ev.WaitDecided(decided("approve", W)),))
    assert decisions.decide(run, cmd.Resume("ada"), NOW)


def test_a_run_whose_signal_has_not_come_has_nothing_to_go_on_with() -> None:
    """§7.1."""
    signal = wait(WaitKind.SIGNAL, wait_id=W)
    with pytest.raises(NothingEligible):
        decisions.decide(resting(signal, human=False), cmd.Resume("ada"), NOW)
    come = after(resting(signal, human=False), (ev.WaitDecided(decided("signal", W)),))
    assert decisions.decide(come, cmd.Resume("ada"), NOW)


# -- answers as records -----------------------------------------------------------------------------


def test_an_answer_is_found_at_the_place_that_asked() -> None:
    """§5.12: the re-entered step looks it up by its task and path."""
    run = resting(wait(wait_id=W, prompt="Ship?"))
    facts = decisions.decide(run, say("approve", payload=raw(None)), NOW)
    (record,) = decisions.answers(after(run, facts))
    assert (record.task, record.path, record.name, record.kind) == ("ask", "0", "approval:Ship?", "wait")
    assert decisions.read_answer(record) == facts[0].decision
    assert decisions.read_answer(record).payload == raw(None), "an answer of None is an answer (§5.8, L-09)"


@pytest.mark.parametrize(
    ("wait_id", "place"),
    [("r.1.ask.0", ("ask", "0")), ("r.12.ask:2.0/1.3", ("ask:2", "0/1.3")), ("r.1.ask", ("ask", ""))],
)
def test_a_wait_id_names_its_place(wait_id: str, place: tuple[str, str]) -> None:
    assert decisions.place(wait_id) == place


@pytest.mark.parametrize(
    ("action", "cause"),
    [("timeout", "timeout"), ("signal", "signal"), ("completed", "child"), ("failed", "child"), ("canceled", "child"), ("approve", "decision"), ("answer", "decision")],
)
def test_a_decision_says_why_its_run_goes_on(action: str, cause: str) -> None:
    """§2.7."""
    assert decisions.cause_of(decided(action, W)) == cause


# -- signals, children, late results ----------------------------------------------------------------


def test_a_signal_is_received_by_whoever_has_not_ended() -> None:
    """§5.11."""
    command = cmd.Signal("go", "k1", raw(1), "ada")
    assert decisions.decide(folded(ev.RunStarted()), command, NOW) == (ev.SignalReceived("go", "k1", raw(1), "ada"),)
    with pytest.raises(AlreadyTerminal, match="can no longer receive the signal"):
        decisions.decide(folded(ev.RunStarted(), ev.RunCompleted()), command, NOW)


def test_a_signal_is_kept_until_asked_for_and_answers_the_oldest_wait_for_it() -> None:
    """§5.11: in the buffer of the fold, out of it by the decision that names its key; T-37: in one commit with its consumption."""
    early = after(folded(ev.RunStarted()), decisions.decide(folded(ev.RunStarted()), cmd.Signal("go", "k1", raw(1), "ada"), NOW))
    assert [(s.name, s.key) for s in early.signals] == [("go", "k1")]
    waiting = resting(wait(WaitKind.SIGNAL, wait_id=W, name="go"), wait(WaitKind.SIGNAL, wait_id="w2", name="go"), human=False)
    facts = decisions.decide(waiting, cmd.Signal("go", "k2", raw(2), "ada"), NOW)
    assert [type(f) for f in facts] == [ev.SignalReceived, ev.WaitDecided]
    woken = after(waiting, facts)
    assert woken.signals == () and [w.wait_id for w in woken.waits] == ["w2"] and woken.decisions[0].payload == raw(2)


def test_a_signal_answers_no_wait_but_one_for_it() -> None:
    """§5.11: neither a wait for another signal nor a question that happens to be called alike; a failed run only keeps it."""
    command = cmd.Signal("go", "k", raw(1), "ada")
    received = ev.SignalReceived("go", "k", raw(1), "ada")
    other = resting(wait(WaitKind.SIGNAL, wait_id="w2", name="stop"), wait(wait_id=W, name="go"))
    assert decisions.decide(other, command, NOW) == (received,)
    mixed = resting(wait(WaitKind.SIGNAL, wait_id="w2", name="stop"), wait(WaitKind.SIGNAL, wait_id="w3", name="go"))
    assert [f.decision.wait_id for f in decisions.decide(mixed, command, NOW) if isinstance(f, ev.WaitDecided)] == ["w3"]
    assert decisions.decide(failed(wait(WaitKind.SIGNAL, wait_id="w3", name="go")), command, NOW) == (received,)


def test_signals_nobody_takes_are_bounded() -> None:
    run = replace(folded(ev.RunStarted()), signals=(Buffered("go", "k", raw(1)),) * decisions.MAX_SIGNALS)
    with pytest.raises(TooManySignals):
        decisions.decide(run, cmd.Signal("go", "k1", raw(1), "ada"), NOW)


def child(status: str, **more: Any) -> cmd.ChildEnded:
    return cmd.ChildEnded("kid", status, **more)


def test_a_childs_end_answers_the_wait_for_it() -> None:
    """§4.14."""
    run = resting(wait(WaitKind.CHILD, wait_id=W, name="kid"), human=False)
    (fact,) = decisions.decide(run, child("completed", result=raw(42)), NOW)
    assert fact.decision == Decision(W, "completed", "system", payload=raw(42), decided_at=NOW, asked="child:")
    two = resting(wait(WaitKind.CHILD, wait_id=W, name="kid"), wait(WaitKind.CHILD, wait_id=f"{W}2", name="kid"), human=False)
    assert [f.decision.wait_id for f in decisions.decide(two, child("completed"), NOW)] == [W, f"{W}2"]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (child("failed", error=BOOM), {"run_id": "kid", "status": "failed", "error": "boom"}),
        (child("failed", result=raw(42), error=BOOM), {"run_id": "kid", "status": "failed", "error": "boom"}),
        (child("canceled"), {"run_id": "kid", "status": "canceled", "error": None}),
    ],
)
def test_a_child_without_a_result_says_how_it_ended(command: cmd.ChildEnded, shown: dict[str, Any]) -> None:
    run = resting(wait(WaitKind.CHILD, wait_id=W, name="kid"), human=False)
    (fact,) = decisions.decide(run, command, NOW)
    assert canon.decode(fact.decision.payload) == shown


def test_a_cancel_keeps_what_was_answered() -> None:
    """§5.4: it was accepted; only what is still open is asked anew. A halt for good keeps nothing."""
    told = folded(ev.RunStarted(), ev.WaitRequested(wait(wait_id=W)), ev.RunWaitingForHuman(), ev.WaitDecided(decided("approve", W)))
    canceled = decisions.decide(told, cmd.Cancel("ada"), NOW)
    assert [r.path for r in decisions.keep_answers(told, canceled)] == [decisions.place(W)[1]]
    assert decisions.keep_answers(told, decisions.mark_run_halted(told)) == [] == decisions.keep_answers(told, (ev.NoteAdded("x"),))


def test_a_child_nobody_waits_for_changes_nothing() -> None:
    w = wait(WaitKind.CHILD, wait_id=W, name="another")
    assert decisions.decide(resting(w, human=False), child("completed"), NOW) == ()
    named_alike = wait(WaitKind.SIGNAL, wait_id=W, name="kid")
    assert decisions.decide(resting(named_alike, human=False), child("completed"), NOW) == ()
    ended = failed(wait(WaitKind.CHILD, wait_id=W, name="kid"))
    assert after(ended, decisions.decide(ended, child("completed"), NOW)).decisions, "kept for the resume of §7.3"


def test_a_late_result_is_evidence_and_no_more() -> None:
    """§10.2."""
    (fact,) = decisions.decide(folded(ev.RunStarted()), cmd.LateResult("r.1.a@1", "it had sent the mail"), NOW)
    assert fact == ev.NoteAdded("late result of r.1.a@1: it had sent the mail")


def test_every_command_has_its_function() -> None:
    """A command that nothing decides would be accepted into inboxes and never answered."""
    known = set(decisions._TABLE)
    assert known == set(cmd.AnyCommand.__args__)  # type: ignore[attr-defined]


# -- the named helpers (§5.15) ----------------------------------------------------------------------


def test_done_closes_every_wait() -> None:
    run = folded(ev.RunStarted(), ev.WaitRequested(wait(wait_id=W)))
    assert decisions.mark_run_done(run, raw(1)) == (ev.WaitClosed(W, "done"), ev.RunCompleted(raw(1)))
    assert after(run, decisions.mark_run_done(run)).status is Status.COMPLETED


def test_halted_closes_every_wait_and_is_settled() -> None:
    run = folded(ev.RunStarted(), ev.WaitRequested(wait(wait_id=W)))
    assert decisions.mark_run_halted(run) == (ev.WaitClosed(W, "halted"), ev.RunCanceled(stop_reason="halted", settled=True, at_rest=False))
    replaying = folded(ev.RunStarted(), ev.RunReplaying())
    assert decisions.mark_run_halted(replaying)[-1].at_rest is False
    assert decisions.mark_run_halted(folded())[-1].at_rest is True


def test_failed_and_interrupted_keep_every_question() -> None:
    """T-21, T-22, §5.14."""
    handoff = wait(WaitKind.HANDOFF, wait_id=W)
    run = folded(ev.RunStarted(), ev.WaitRequested(handoff))
    torn = after(run, decisions.mark_run_interrupted(run, "the process ends"))
    assert (torn.waits, torn.active_handoff, torn.status) == ((handoff,), W, Status.RUNNING)
    assert torn.interrupted_at is not None
    end = after(torn, decisions.mark_run_failed(torn, "x", BOOM))
    assert (end.waits, end.active_handoff, end.status) == ((handoff,), W, Status.FAILED)
    assert (end.stop_reason, end.error) == ("x", BOOM)


def test_a_review_is_a_wait() -> None:
    run = folded(ev.RunStarted())
    review = wait(WaitKind.REVIEW, wait_id=W)
    end = after(run, decisions.mark_run_awaiting_review(run, review))
    assert (end.status, end.waits) == (Status.WAITING_FOR_HUMAN, (review,))


@pytest.mark.parametrize("unattended", [False, True])
def test_an_outcome_is_only_applied(unattended: bool) -> None:
    """§5.16: done closes every wait, halted settles, a review is opened and keeps the handoff; §5.17: or it stops the run."""
    handoff = wait(WaitKind.HANDOFF, wait_id="h")
    run = replace(folded(ev.RunStarted(), ev.WaitRequested(handoff)), unattended=unattended)
    done = after(run, decisions.apply_outcome(run, Terminal.DONE, result=raw(1)))
    assert (done.status, done.result, done.waits, done.active_handoff) == (Status.COMPLETED, raw(1), (), None)
    halted = after(run, decisions.apply_outcome(run, Terminal.HALTED, why="delivery_rejected"))
    assert (halted.status, halted.settled, halted.stop_reason, halted.waits) == (Status.CANCELED, True, "delivery_rejected", ())
    assert decisions.apply_outcome(run, Terminal.HALTED)[-1].stop_reason == "halted"
    review = wait(WaitKind.REVIEW, wait_id=W)
    asked = after(run, decisions.apply_outcome(run, Terminal.AWAITING_HUMAN_REVIEW, review=review))
    if unattended:
        assert (asked.status, asked.settled, asked.stop_reason, asked.rearm) == (Status.CANCELED, False, "unattended_handoff", (review,))
    else:
        assert (asked.status, asked.waits, asked.active_handoff) == (Status.WAITING_FOR_HUMAN, (handoff, review), "h")
    with pytest.raises(AssertionError):
        decisions.apply_outcome(run, Terminal.AWAITING_HUMAN_REVIEW)


def test_every_way_to_stop_says_why() -> None:
    """T-07, §2.8: not completed and ended means a stop reason."""
    run = folded(ev.RunStarted(), ev.WaitRequested(wait(wait_id=W, available_actions=("approve", "deny", "halt"))))
    ways = [
        decisions.decide(run, say("deny"), NOW),
        decisions.decide(run, say("halt"), NOW),
        decisions.mark_run_canceled(run),
        decisions.decide(run, cmd.FireTimeout(W, 0), NOW),
        decisions.mark_run_halted(run),
        decisions.mark_run_failed(run, decisions.stop_reason(ValueError("x")), BOOM),
    ]
    for facts in ways:
        end = after(run, facts)
        assert end.status in TERMINAL and end.stop_reason


def test_a_failure_leaves_a_stable_code() -> None:
    """§2.8."""
    assert decisions.stop_reason(ValueError("anything")) == "step_failed"
    assert decisions.stop_reason(Denied("no")) == "denied"
    assert decisions.stop_reason(HoldfastError("x", code="mine")) == "mine"


def test_a_forced_decision_says_so() -> None:
    """§6.5: on record with the decision, and another decision than the same without force (§5.6)."""
    run = resting(wait(WaitKind.EFFECT, available_actions=("reexecute",)))
    plain, forced = (decisions.decide(run, cmd.Decide("w1", "reexecute", "ada", force=f), NOW)[0] for f in (False, True))
    assert isinstance(plain, ev.WaitDecided) and isinstance(forced, ev.WaitDecided)
    assert (plain.decision.forced, forced.decision.forced) == (False, True)
    assert not plain.decision.same(forced.decision) and forced.decision.same(forced.decision)


def test_commands_are_taken_until_the_run_has_ended() -> None:
    """X-19: over whatever waits behind the one that ends the run, the log says that it came too late; nothing is dropped."""
    run = folded(ev.RunStarted(), ev.WaitRequested(wait()), ev.RunWaitingForHuman())
    deny = cmd.Decide(wait_id="w1", action="deny", actor="ada")
    signal = cmd.Signal(name="go", signal_key="k", payload=raw(1), actor="bob")
    found = decisions.take(run, [("wait:w1", deny), ("signal:go:k", signal)], 9)
    assert found.ends and found.keys == ("wait:w1", "signal:go:k")
    assert decisions.fold_facts(run, found.facts, 9).terminal
    late = decisions.refusal(found.facts, "signal:go:k")
    assert late is not None and late.code == "already_terminal" == found.refused["signal:go:k"].code
    assert decisions.refusal(found.facts, "wait:w1") is None and decisions.refusal([], "any") is None
    one = decisions.take(run, [("signal:go:k", signal), ("wait:w1", deny)], 9)
    assert (one.keys, one.ends, one.refused) == (("signal:go:k",), False, {}), "one commit, one command, where the run goes on"
    assert decisions.take(run, [], 9) == decisions.NOTHING_TAKEN


def test_a_command_that_changes_nothing_is_on_record() -> None:
    run = folded(ev.RunStarted())
    late = cmd.FireTimeout("w9", 5)
    found = decisions.take(run, [(late.key, late)], 9)
    assert [type(f) for f in found.facts] == [ev.NoteAdded] and found.keys == (late.key,) and not found.refused


def test_a_replay_passes_through_running_before_it_ends_or_waits() -> None:
    """§2.5, T-03: there is no edge from replaying to the end or to a wait."""
    on = ev.RunResumed(cause=decisions.REPLAYED)
    for facts, after in (
        ([ev.StepCompleted(1, "a"), ev.RunCompleted()], [ev.StepCompleted(1, "a"), on, ev.RunCompleted()]),
        ([ev.RunWaitingForHuman()], [on, ev.RunWaitingForHuman()]),
        ([ev.RunResumed(cause="decision"), ev.RunCompleted()], [ev.RunResumed(cause="decision"), ev.RunCompleted()]),
        ([ev.StepCompleted(1, "a")], [ev.StepCompleted(1, "a")]),
    ):
        given: list[ev.Fact] = [*facts]
        decisions.leave_replay(given)
        assert given == after
