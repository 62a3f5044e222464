"""What ``explain`` says of a run in each condition (First hour: whoever is woken at three in the morning)."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core import events as ev
from holdfast.core.effects import BY_DECISION, ELSEWHERE, Effect, EffectClass, EffectStatus
from holdfast.core.errors import ErrorValue, Frame
from holdfast.core.explain import MOST_LINES, Blocked, explain
from holdfast.core.run import Run
from holdfast.core.status import Condition, Status
from holdfast.core.waits import Decision, Wait, WaitKind

T0 = 1_000_000
BOOM = ErrorValue("app.Boom", "no money\nleft", hint="fill the account", frames=(Frame("pay.py", 7, "pay", "raise Boom"),))
ASK = Wait("r.1.ask.0", WaitKind.APPROVAL, step=1, task="ask", prompt="Pay 42?", available_actions=("approve", "deny", "answer", "retry_feedback", "halt"), requested_at=T0)
TIMER = Wait("r.1.sleep.0", WaitKind.SIGNAL, step=1, task="sleep", name="paid", requested_at=T0)


def run(status: Status = Status.RUNNING, **fields: object) -> Run:
    base = Run(run_id="r", thread_id="t", session_key="t", lane="main", skill_id="pay", skill_version="1", fingerprint="f", queue="default", priority=0, created_at=T0, tenant_id="", environment="development", lineage_root="r", status=Status.PENDING, version=1)
    return msgspec.structs.replace(base, status=status, **fields)


def told(facts: list[ev.Fact], of: Run | None = None, condition: Condition = Condition.RUNNING) -> tuple[str, ...]:
    return explain(of or run(), condition, [ev.Event(n, T0, fact) for n, fact in enumerate(facts, 1)]).happened


@pytest.mark.parametrize("condition", Condition)
def test_every_condition_has_a_reason_and_says_what_would_move_it(condition: Condition) -> None:
    found = explain(run(waits=(ASK, TIMER), error=BOOM, stop_reason="boom"), condition, [])
    assert found.why.endswith((".", "command line")) and found.next and all(a.text.endswith(".") for a in found.next)


def test_a_failure_names_the_line_and_how_to_go_on() -> None:
    found = explain(run(Status.FAILED, error=BOOM, stop_reason="boom"), Condition.FAILED, [])
    assert found.why == "It failed (boom). Boom: no money left (pay.py:7 in pay). Fill the account."
    assert found.next[0].command == "holdfast resume r YOUR_FILE.py --acknowledge boom"
    named = explain(run(Status.FAILED, error=BOOM, stop_reason="boom", target="my pay.py:pay"), Condition.FAILED, [])
    assert named.next[0].command == "holdfast resume r 'my pay.py:pay' --acknowledge boom", "the TARGET that it was submitted with"
    bare = explain(run(Status.FAILED, stop_reason="x"), Condition.FAILED, [])
    assert bare.why == "It failed (x)."


def test_a_question_shows_a_command_for_each_action() -> None:
    found = explain(run(Status.WAITING_FOR_HUMAN, waits=(ASK,)), Condition.AWAITING_GATE_DECISION, [])
    assert found.why == "It waits for a person: Pay 42? (approval)."
    assert [a.command.split(" ", 3)[1] for a in found.next] == ["approve", "deny", "decide", "decide", "decide"]
    assert not any("--wait" in a.command for a in found.next), "there is only one that could be meant"
    both = explain(run(Status.WAITING_FOR_HUMAN, waits=(ASK, msgspec.structs.replace(ASK, wait_id="r.1.ask.0?1"))), Condition.AWAITING_GATE_DECISION, [])
    assert "holdfast approve r --wait r.1.ask.0" in [a.command for a in both.next] and "holdfast approve r --wait 'r.1.ask.0?1'" in [a.command for a in both.next]
    decided = run(Status.WAITING_FOR_HUMAN, waits=(ASK,), decisions=(Decision("r.1.ask.0", "approve", "ada", T0),))
    assert "has not resumed" in explain(decided, Condition.AWAITING_GATE_DECISION, []).why
    assert "due to resume" in explain(run(Status.WAITING_FOR_HUMAN), Condition.AWAITING_GATE_DECISION, []).why


def test_a_signal_can_be_sent() -> None:
    found = explain(run(Status.WAITING_FOR_SIGNAL, waits=(TIMER,)), Condition.AWAITING_SIGNAL, [])
    assert found.next[0].command == "holdfast signal r paid"


def test_a_due_run_says_what_stands_in_the_way() -> None:
    due = run(Status.PENDING)
    assert explain(due, Condition.QUEUED, []).why == "It is due. It waits for a worker that has the skill 'pay'."
    answered = run(Status.WAITING_FOR_HUMAN, decisions=(Decision("w", "approve", "ada", T0),))
    assert explain(answered, Condition.QUEUED, []).why.startswith("It is answered and due.")
    assert "q is before it" in explain(due, Condition.QUEUED, [], Blocked(lane="q is before it")).why
    nobody = explain(due, Condition.QUEUED, [], Blocked(no_worker="none of the workers serves pay"))
    assert "none of the workers" in nobody.why and nobody.next[0].command == "holdfast worker YOUR_FILE.py"
    changed = explain(due, Condition.QUEUED, [], Blocked(no_worker="it began in another shape", shape="f0"))
    assert "The code has changed" in changed.why and 'migrates=("f0",)' in changed.next[0].text and all("--upgrade" in a.command for a in changed.next[1:])


def test_an_interrupted_run_says_who_left_it() -> None:
    dead = explain(run(), Condition.INTERRUPTED, [], Blocked(dead=True))
    assert dead.why == "The process that executed the run has died without recording why: it was killed, or it could not write (for example, the disk was full). No recorded result is lost; a step that was running is run again."
    assert "has not renewed its lease" in explain(run(), Condition.INTERRUPTED, []).why
    held = explain(run(interrupted_at=T0), Condition.INTERRUPTED, [ev.Event(1, T0, ev.RunInterrupted("key_unavailable"))])
    assert "interrupted (key_unavailable)" in held.why and "until a person resumes it" in held.why
    assert "It was interrupted. No worker" in explain(run(interrupted_at=T0), Condition.INTERRUPTED, []).why


def test_what_a_step_has_done_within_is_counted_and_a_failed_call_is_told_once() -> None:
    began, boom = ev.StepStarted(1, "load"), ev.StepFailed(1, "load", BOOM, path="0/2/0")
    calls: list[ev.Fact] = [ev.StepCompleted(1, "load", path="0/0/0"), ev.StepCompleted(1, "load", path="0/1/0"), ev.StepCompleted(1, "load", path="0/1")]
    failed = told([began, *calls, boom, ev.StepFailed(1, "load", BOOM), ev.RunFailed("boom", BOOM)], run(Status.FAILED))
    assert [line for line in failed if "failed" in line] == [
        "The step load failed in attempt 1: Boom: no money left (pay.py:7 in pay).",
        "The run failed with that error.",
    ]
    assert failed[-1] == "In the step load 2 calls completed; their results are kept."
    assert told([began, calls[0]])[-2:] == ("The step load began.", "In the step load one call completed; its result is kept.")
    assert told([began, *calls, ev.StepCompleted(1, "load"), ev.StepStarted(2, "send")])[-1] == "The step send began."


def test_an_effect_under_way_is_named_and_is_said_not_to_be_repeated_at_once() -> None:
    sent, open_ = ev.SideEffectAttempted("e1", "k1", 1, "mail", "0"), ev.SideEffectAttempted("e2", "k2", 1, "mail", "1", "send to Ada")
    facts: list[ev.Fact] = [ev.StepStarted(1, "mail"), sent, ev.SideEffectRecorded("e1", "k1", 1, "mail", "0"), open_]
    found = explain(run(), Condition.INTERRUPTED, [ev.Event(n, T0, fact) for n, fact in enumerate(facts, 1)], Blocked(dead=True))
    assert found.happened[-1] == "The effect mail.1 (send to Ada) was attempted, and its outcome is not recorded."
    assert "is not repeated at once: its verify= function is asked first, or a person if it has none." in found.why


def test_who_resumed_it_is_said() -> None:
    resumed = ev.Event(1, T0, ev.RunResumed("operator", acknowledged="boom"), actor="ada")
    assert explain(run(), Condition.RUNNING, [resumed]).happened[-1] == "ada resumed it, and acknowledged boom."
    assert explain(run(), Condition.RUNNING, [msgspec.structs.replace(resumed, actor="system")]).happened[-1].startswith("A run of")
    plain = ev.Event(1, T0, ev.RunResumed("operator"), actor="")
    assert explain(run(), Condition.RUNNING, [plain]).happened[-1] == "Somebody resumed it."


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ([ev.WaitRequested(ASK), ev.WaitTimedOut(Decision("w", "timeout", "", T0))], "Nobody answered by the deadline (x): Pay 42? (approval). This run cannot be resumed."),
        ([ev.WaitTimedOut(Decision("w", "timeout", "", T0))], "Nobody answered by the deadline (x). This run cannot be resumed."),
        ([ev.PolicyEvaluated("pay", "deny", "too much")], "The policy denied the step pay (x): too much. This run cannot be resumed."),
        ([ev.PolicyEvaluated("pay", "deny")], "The policy denied the step pay (x). This run cannot be resumed."),
        ([ev.WaitDecided(Decision("w", "deny", "ada", note="not today"))], "ada ended it with the answer deny (x): not today. This run cannot be resumed."),
        ([ev.WaitDecided(Decision("w", "halt", ""))], "Somebody ended it with the answer halt (x). This run cannot be resumed."),
        ([], "A person or a policy ended it (x). This run cannot be resumed."),
    ],
)
def test_a_halt_says_who_or_what_halted_it(facts: list[ev.Fact], why: str) -> None:
    events = [ev.Event(n, T0, fact) for n, fact in enumerate([*facts, ev.RunCanceled("x", settled=True)], 1)]
    found = explain(run(Status.CANCELED, stop_reason="x", settled=True), Condition.HALTED, events)
    assert found.why == why and found.next[0].command.startswith("holdfast fork r")


def test_what_was_under_way_is_named_and_an_error_is_told_once() -> None:
    assert told([ev.StepStarted(1, "pay")])[-1] == "The step pay began."
    assert told([ev.StepStarted(1, "pay"), ev.StepCompleted(1, "pay")])[-1] == "The step pay completed."
    assert told([ev.StepStarted(1, "pay")], run(Status.CANCELED, settled=True), Condition.HALTED) == told([], run(Status.CANCELED, settled=True), Condition.HALTED)
    assert told([ev.StepFailed(1, "pay", BOOM), ev.RunFailed("boom", BOOM)])[-1] == "The run failed with that error."


@pytest.mark.parametrize(("status", "condition"), [(Status.FAILED, Condition.FAILED), (Status.CANCELED, Condition.CANCELLED)])
def test_what_completed_steps_did_and_was_undone_is_done_again_by_a_fork_alone(status: Status, condition: Condition) -> None:
    """§6.11: a resume is refused, and a fork from the newest checkpoint would go on with what is gone."""
    hotel = Effect(
        effect_id="r.1.book.0#1", run_id="r", lineage_root="r", step=1, task="book", path="0", attempt=1, capability="book", effect_class=EffectClass.EXTERNAL, key="k", undone="u",
    )
    doubtful = msgspec.structs.replace(hotel, capability="rent", step=2, undone="")
    ended = run(status, stop_reason="x", error=BOOM, checkpoint_head="r.c9")
    found = explain(ended, condition, [], Blocked(gone=(hotel, doubtful)))
    assert "undone: book (step 1), rent (step 2, whether it was undone is unknown). A resume is refused" in found.why
    assert [a.command for a in found.next] == ["holdfast fork r YOUR_FILE.py"]
    assert any(" resume " in a.command for a in explain(ended, condition, []).next)


def test_an_unattended_halt_can_be_resumed_and_a_settled_one_cannot() -> None:
    assert "resume" in explain(run(Status.CANCELED, stop_reason="unattended"), Condition.HALTED, []).next[0].command
    assert "fork" in explain(run(Status.CANCELED, stop_reason="halted", settled=True), Condition.HALTED, []).next[0].command


def test_what_happened_is_told_in_order_and_steps_are_put_together() -> None:
    done = [ev.StepCompleted(n, f"s{n}") for n in range(1, 5)]
    decided = Decision("r.1.ask.0", "approve", "ada", T0)
    facts: list[ev.Fact] = [
        *done, ev.StepCompleted(5, "flow", path="0"), ev.RunRecovered("w", "owner_dead"), ev.StepFailed(5, "pay", BOOM),
        ev.StepRetryScheduled(5, "pay", 1, T0, BOOM), ev.StepCompleted(5, "pay"), ev.WaitRequested(ASK), ev.WaitDecided(decided), ev.RunCompleted(),
    ]
    lines = told(facts)
    assert lines[1] == "4 steps completed, the last of them s2, s3, s4."
    assert lines[2].startswith("Its worker died") and lines[3].endswith("(pay.py:7 in pay).") and "tried again" in lines[4]
    assert lines[5] == "The step pay completed." and lines[6] == "The step ask asked: Pay 42? (approval)." and lines[7] == "ada answered: approve."


def test_every_kind_of_turn_has_a_sentence() -> None:
    facts: list[ev.Fact] = [
        ev.RunRecovered("", "a person resumed it"), ev.WaitTimedOut(Decision("w", "timeout", "", T0)), ev.WaitDenied("w", "approve", "eve", "not hers"),
        ev.SideEffectUnknown("e", "k", 1, "pay"), ev.PolicyEvaluated("pay", "deny", "too much"), ev.RunCancelRequested("late"),
        ev.RunInterrupted("held"), ev.RunFailed("boom", BOOM), ev.RunCanceled("cancelled"), ev.SignalReceived("paid", "k", b"\xc0"),
        ev.WaitRequested(msgspec.structs.replace(ASK, kind=WaitKind.EFFECT)),
    ]
    lines = [told([fact])[1:] for fact in facts]
    assert lines[0] == () and all(len(line) == 1 and line[0].endswith(".") for line in lines[1:])


@pytest.mark.parametrize(
    ("note", "said"),
    [
        (ev.NoteAdded("wait:w was refused: w is closed", "wait:w", "wait_not_found", "ada", "approve"), ["ada answered approve, and that came too late: w is closed."]),
        (ev.NoteAdded("cancel:1 was refused: it has ended", "cancel:1", "already_terminal", "ada"), ["ada sent a cancel, and that came too late: it has ended."]),
        (ev.NoteAdded("cancel was refused: it has ended", "cancel", "already_terminal", "system"), []),
        (ev.NoteAdded("wait:w was refused: w is closed", "wait:w", "wait_not_found"), []),
        (ev.NoteAdded("looked at it", by="ada"), []),
    ],
)
def test_a_command_that_came_too_late_is_told_with_who_gave_it(note: ev.NoteAdded, said: list[str]) -> None:
    """X-19: deadlines and commands of the runtime itself are nobody's, and notes of older releases do not say whose they are."""
    assert list(told([note])[1:]) == said


PAID = Effect(effect_id="e1", run_id="r", lineage_root="r", step=1, task="pay", path="0", attempt=1, capability="send", effect_class=EffectClass.EXTERNAL, key="k")
UNSURE = ev.SideEffectUnknown("e1", "k", 1, "pay", "0", "owner_dead")
WHICH = Wait("r.1.pay.0", WaitKind.EFFECT, step=1, task="pay", available_actions=("record_result",), requested_at=T0, effect_id="e1")
DONE = ev.SideEffectRecorded("e1", "k", 1, "pay", "0")
OVER = ev.SideEffectAbandoned("e1", "k", 1, "pay", "0", "done again")
TRIED = ev.SideEffectAttempted("e1", "k", 1, "pay", "0")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([UNSURE, DONE], "It was found that the side effect of the step pay had happened; its result is recorded."),
        ([UNSURE, OVER, ev.SideEffectAttempted("e2", "k", 1, "pay", "0"), ev.SideEffectRecorded("e2", "k", 1, "pay", "0")],
         "It was found that the side effect of the step pay had not happened, so it was done again."),
        ([UNSURE, TRIED, DONE], "The side effect of the step pay was sent again under the same key; its result is recorded."),
        ([UNSURE, ev.WaitRequested(WHICH), DONE], "According to that answer, the side effect of the step pay had happened; its result is recorded."),
        ([UNSURE, ev.WaitRequested(WHICH), OVER], "Because of that answer, the side effect of the step pay was done again."),
        ([UNSURE, ev.WaitRequested(WHICH), ev.SideEffectAbandoned("e1", "k", 1, "pay", "0", BY_DECISION)], "A person decided that the side effect of the step pay should not be done."),
        ([UNSURE, TRIED, OVER], "The process died during a side effect of the step pay; its outcome is unknown."),
        ([TRIED, OVER, TRIED, DONE], "A run of pay (version 1) was submitted."),
    ],
)
def test_a_doubt_that_was_settled_is_told_with_how(facts: list[ev.Fact], said: str) -> None:
    assert told(facts)[-1] == said


@pytest.mark.parametrize(("fields", "who"), [({"verifiable": True}, "Its verify= found that"), ({"verifiable": True, "detail": f"{ELSEWHERE}r2"}, "It was found that")])
def test_the_hook_is_named_that_settled_a_doubt(fields: dict[str, object], who: str) -> None:
    events = [ev.Event(n, T0, fact) for n, fact in enumerate([UNSURE, DONE], 1)]
    assert explain(run(), Condition.DONE, events, Blocked(effects=(msgspec.structs.replace(PAID, **fields),))).happened[-1].startswith(who)


def test_a_long_story_is_cut_in_the_middle() -> None:
    lines = told([ev.WaitDenied("w", "approve", f"p{n}", "") for n in range(30)], run(origin="fork", source_run_id="q"))
    assert len(lines) == MOST_LINES and "more things happened" in lines[3] and lines[-1].startswith("p29") and "fork from q" in lines[0]


@pytest.mark.parametrize(
    ("fields", "does"),
    [
        ({}, "does not repeat it: it asks a person."), ({"verifiable": True}, "asks its verify= first."), ({"idempotent": True}, "sends it again under the same key"),
        ({"verifiable": True, "status": EffectStatus.UNKNOWN}, "asks a person."),
    ],
)
def test_an_effect_without_an_outcome_names_its_key_and_what_a_resume_does_about_it(fields: dict[str, object], does: str) -> None:
    record = Effect(effect_id="e", run_id="r", lineage_root="r", step=1, task="pay", path="0", attempt=1, capability="send", effect_class=EffectClass.EXTERNAL, key="k")
    events = [ev.Event(1, T0, ev.SideEffectAttempted("e", "k", 1, "pay", "0"))]
    blocked = Blocked(effects=(msgspec.structs.replace(record, **fields),))
    said = explain(run(), Condition.INTERRUPTED, events, blocked).happened[-1]
    assert "Its key is k; a resume " in said and does in said
    assert "resume" not in explain(run(), Condition.RUNNING, events, blocked).happened[-1]


def test_who_handed_it_back_is_said() -> None:
    assert told([ev.RunHandedBack("w", "drained")])[-1] == "Its worker was stopped and released the run (drained)."
    assert told([ev.RunHandedBack("w")])[-1] == "Its worker was stopped and released the run."


def test_a_deadline_that_has_passed_is_said() -> None:
    waiting = run(Status.WAITING_FOR_HUMAN, waits=(msgspec.structs.replace(ASK, deadline=T0 + 5),))
    assert "Its deadline has passed" in explain(waiting, Condition.AWAITING_GATE_DECISION, [], Blocked(now=T0 + 6)).why
    assert "deadline" not in explain(waiting, Condition.AWAITING_GATE_DECISION, [], Blocked(now=T0)).why


def test_a_failed_run_can_be_forked_from_its_head() -> None:
    found = explain(run(Status.FAILED, stop_reason="x", checkpoint_head="r.c7"), Condition.FAILED, [])
    assert found.next[1].command == "holdfast fork r YOUR_FILE.py --from c7"


@pytest.mark.parametrize(
    ("blocked", "why", "command"),
    [
        (Blocked(nobody=True, due=T0, now=T0 + 1), "It is due since 1970-01-01 00:00:01Z, and no worker is running.", "holdfast worker "),
        (Blocked(due=T0 + 5_000_000, now=T0), "It is not due yet: it may be executed from 1970-01-01 00:00:06Z on.", "holdfast resume "),
        (Blocked(limit="the queue 'default' is paused", nobody=True, due=T0, now=T0), "It is due, but held back: the queue 'default' is paused.", "holdfast queues"),
    ],
)
def test_what_keeps_a_queued_run_from_beginning(blocked: Blocked, why: str, command: str) -> None:
    found = explain(run(), Condition.QUEUED, [], blocked)
    assert found.why == why and found.next[0].command.startswith(command)


@pytest.mark.parametrize(("status", "condition"), [(Status.FAILED, Condition.FAILED), (Status.CANCELED, Condition.CANCELLED), (Status.CANCELED, Condition.HALTED)])
def test_a_resume_that_another_run_of_the_lane_is_in_the_way_of_is_not_advised_alone(status: Status, condition: Condition) -> None:
    """§4.16: who is in the way is named, and is the first thing to see to."""
    ended = run(status, stop_reason="x")
    alone = explain(ended, condition, [])
    found = explain(ended, condition, [], Blocked(lane="the run h is before it in its lane (it waits)", before="h"))
    assert found.why == f"{alone.why} A resume is refused for now, because the run h is before it in its lane (it waits)."
    assert found.next[0].command == "holdfast explain h" and found.next[1:] == alone.next
    settled = run(Status.CANCELED, stop_reason="x", settled=True)
    assert explain(settled, Condition.HALTED, [], Blocked(lane="the run h goes before it", before="h")).next[0].command.startswith("holdfast fork"), "no resume, nothing in its way"


def test_a_dead_owner_and_nobody_to_take_over() -> None:
    found = explain(run(), Condition.INTERRUPTED, [], Blocked(dead=True, nobody=True))
    assert found.why.endswith("No worker is running.") and any(a.command.startswith("holdfast worker ") for a in found.next)
    assert not any(a.command.startswith("holdfast worker ") for a in explain(run(), Condition.INTERRUPTED, [], Blocked(dead=True)).next), "one that runs takes it over by itself"


def test_a_held_run_is_for_a_person_to_resume() -> None:
    held = msgspec.structs.replace(run(), recovery="hold")
    found = explain(held, Condition.INTERRUPTED, [], Blocked(dead=True, nobody=True))
    assert "until a person resumes it" in found.why and not any("worker" in a.command for a in found.next)


def test_a_request_to_a_tool_runner_names_what_is_in_its_way() -> None:
    """Nobody is told to send the answer by hand."""
    wait = Wait("r.1.build.0>a", WaitKind.SIGNAL, step=1, task="build", name="tool@0123456789abcdef#a", prompt="make runs in the workspace 0123456789abcdef", requested_at=T0)
    found = explain(run(Status.WAITING_FOR_SIGNAL, waits=(wait,)), Condition.AWAITING_SIGNAL, [], Blocked(requests=("the request is queued",)))
    assert found.why == "It waits for a tool runner: make runs in the workspace 0123456789abcdef; the request is queued."
    assert [a.command for a in found.next] == ["holdfast tool-runner --workspace PATH --tools TARGET", "holdfast outbox r"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ([ev.RunInterrupted("an earlier one"), ev.RunInterrupted("Ctrl-C"), ev.NoteAdded("n")], "It was interrupted (Ctrl-C)."),
        ([], "It was interrupted."),
    ],
)
@pytest.mark.parametrize(
    ("status", "condition", "wait", "first"),
    [
        (Status.WAITING_FOR_HUMAN, Condition.AWAITING_GATE_DECISION, ASK, "It waits for a person: Pay 42? (approval)."),
        (Status.WAITING_FOR_SIGNAL, Condition.AWAITING_SIGNAL, TIMER, "It waits for "),
    ],
)
def test_a_run_that_waits_and_was_interrupted_says_that_no_worker_continues_it(facts: list[ev.Fact], said: str, status: Status, condition: Condition, wait: Wait, first: str) -> None:
    """What it waits for is told first; that it is there will not be enough."""
    events = [ev.Event(n, T0, fact) for n, fact in enumerate(facts, 1)]
    left = run(status, waits=(wait,), interrupted_at=T0)
    plain = explain(msgspec.structs.replace(left, interrupted_at=None), condition, events)
    found = explain(left, condition, events)
    assert found.why == f"{plain.why} {said} No worker continues it until a person resumes it." and found.why.startswith(first)
    assert found.next[:-1] == plain.next and found.next[-1].command == "holdfast resume r YOUR_FILE.py"
    assert explain(left, condition, events, Blocked(due=T0)).why == plain.why, "an answer since then has made it due"


@pytest.mark.parametrize(("idle", "why", "commands"), [(True, "because the store failed", ["holdfast resume r YOUR_FILE.py"]), (False, "A worker is executing it.", ["holdfast events r --follow", "holdfast cancel r"])])
def test_a_run_that_its_process_does_not_execute_says_so(idle: bool, why: str, commands: list[str]) -> None:
    found = explain(run(), Condition.RUNNING, [], Blocked(idle=idle))
    assert why in found.why and [a.command for a in found.next] == commands
