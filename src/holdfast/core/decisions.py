"""``decide(run, command, now) -> facts``: one small function per command, pure (§5, §7, §10.12).

A command that the state machine refuses raises. An accepted command becomes facts, and only facts change the run.
The named transition helpers of §5.15 are at the end; the functions above are made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import answers as forms
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core import ids
from holdfast.core import run as records
from holdfast.core import waits as ws
from holdfast.core.canon import encode, reveal
from holdfast.core.checkpoint import StepRecord, Task
from holdfast.core.errors import (
    AcknowledgeRequired,
    AlreadyTerminal,
    ErrorValue,
    HoldfastError,
    InvalidInput,
    NotDecidable,
    NothingEligible,
    Rejected,
    RunIsLive,
    SettledTerminal,
    TooManySignals,
    UndecidedWait,
    UsageError,
    WaitNotFound,
    code_of,
    from_code,
)
from holdfast.core.outcomes import Terminal
from holdfast.core.run import UNATTENDED, Run
from holdfast.core.status import LIVE, RESUMABLE, TERMINAL, Status
from holdfast.core.waits import Decision, OnTimeout, Wait, WaitKind
from holdfast.core.wording import target_of

Facts = tuple[ev.Fact, ...]
REPLAYED = "replayed"
"""The cause with which a run leaves its replay: it reached a call without a record, its end, or a wait."""
MAX_SIGNALS = 100_000
MAX_AT_HAND = 1_000
"""The most signals, over all names, in a run's record, which is written with each signal."""
_NOTHING = encode(None)


def decide(run: Run, command: cmd.AnyCommand, now: int) -> Facts:
    """Returns the facts that a command becomes for this run; none, if it changes nothing.

    Raises:
        Rejected, UsageError: the command is refused; then nothing is written.
    """
    return _TABLE[type(command)](run, command, now)


class Taken(msgspec.Struct, frozen=True):
    """What commands from a run's inbox become in one commit. ``keys``: the commands taken; ``refused``: those that came too late or do not
    fit, and why; ``ends``: whether they end the run."""

    facts: Facts
    keys: tuple[str, ...]
    refused: dict[str, HoldfastError]
    ends: bool


NOTHING_TAKEN = Taken((), (), {}, False)


def take(run: Run, waiting: Iterable[tuple[str, cmd.AnyCommand]], now: int) -> Taken:
    """Takes the oldest command. If it ends the run, also takes all commands behind it, because nothing will handle them later."""
    facts: list[ev.Fact] = []
    keys: list[str] = []
    refused: dict[str, HoldfastError] = {}
    after = run
    for key, command in waiting:
        became: Facts
        try:
            became = decide(after, command, now) or (ev.NoteAdded(f"{key} changed nothing"),)
        except (Rejected, UsageError) as e:
            refused[key] = e
            by, action = getattr(command, "actor", ""), getattr(command, "action", "")
            became = (ev.NoteAdded(f"{key} was refused: {e.message}", refused=key, code=e.code, by=by, action=action),)
        facts += became
        keys.append(key)
        after = fold_facts(after, became, now)
        if not after.terminal:
            break
    return Taken(tuple(facts), tuple(keys), refused, after.terminal and not run.terminal)


def fold_facts(run: Run, facts: Sequence[ev.Fact], now: int) -> Run:
    """Returns the run as it will be once these facts are durable."""
    return records.record(run, facts, run.version, now)[1]


def cause_of(decision: ws.Decision) -> str:
    """Returns why a run left its wait (§2.7)."""
    match decision.action:
        case "timeout":
            return "timeout"
        case "signal":
            return "signal"
        case "completed" | "failed" | "canceled":
            return "child"
    return "decision"


def refusal(facts: Iterable[ev.Fact | ev.Unknown], key: str) -> HoldfastError | None:
    """Returns why the command under this key was refused, or None if these facts do not refuse it."""
    for fact in facts:
        if isinstance(fact, ev.NoteAdded) and fact.refused == key:
            return from_code(fact.code, fact.text)
    return None


def _open(run: Run, wait_id: str) -> Wait | None:
    return next((w for w in run.waits if w.wait_id == wait_id), None)


def _decide(run: Run, c: cmd.Decide, now: int) -> Facts:
    wait = _open(run, c.wait_id)
    if run.status in (Status.COMPLETED, Status.CANCELED):
        raise AlreadyTerminal(f"the run is {run.status}; its waits are closed", hint="fork the run, or start a new one")
    if wait is None and not c.wait_id:
        raise WaitNotFound(f"the run is {run.status} and has no open question", hint=f"holdfast explain {run.run_id} says why, and what can be done")
    if wait is None:
        raise WaitNotFound(f"no open wait {c.wait_id}", hint=f"holdfast waits {run.run_id} lists the open ones")
    if not ws.decidable(run.status, run.waits, c.wait_id):
        raise NotDecidable(f"the wait {c.wait_id} cannot be decided while the run is {run.status}")
    ws.check_allowed(wait, c.action, c.feedback)
    payload = c.payload
    if c.action == ws.ANSWER and payload is None:
        payload = _NOTHING  # an answer of nothing is an answer (L-09)
    if payload is not None:
        ws.check_payload(wait, c.action)
    if wait.schema is not None and payload is not None and c.action in (ws.ANSWER, ws.APPROVE):
        forms.check(reveal(wait.schema), reveal(payload))
    decision = Decision(
        wait_id=c.wait_id, action=c.action, actor=c.actor, feedback=c.feedback, note=c.note, payload=payload, decided_at=now,
        resume=c.resume, asked=wait.asked, policy=wait.policy_snapshot_id, forced=c.force, via=c.via,
    )
    match c.action:
        case ws.CONTINUE:
            facts = continue_handoff(run, decision)
        case ws.WAIVE:
            facts = continue_with_waiver_handoff(run, decision)
        case ws.RETRY:
            facts = retry_feedback_handoff(run, decision)
        case _:
            facts = (ev.WaitDecided(decision),)
    if wait.kind is ws.WaitKind.BUDGET and c.action == ws.APPROVE:  # one answer extends it once, whichever steps asked
        also = [w for w in run.waits if w.kind is wait.kind and w.name == wait.name and w.wait_id != wait.wait_id]
        facts += tuple([ev.WaitClosed(w.wait_id, "the budget was extended by another answer") for w in also])
    halt = ws.find_halt(wait, decision)
    if halt is not None and run.status is not Status.FAILED:  # a failed run applies the decision when it is resumed
        facts += mark_run_halted(run, halt)
    return facts


def _timeout(run: Run, c: cmd.FireTimeout, now: int) -> Facts:
    """Deterministic: the result depends only on the run and the wait, no matter how often the command is injected (§5.10)."""
    wait = _open(run, c.wait_id)
    if wait is None or run.status in (Status.COMPLETED, Status.CANCELED):
        return ()
    payload = wait.default if wait.on_timeout is OnTimeout.DEFAULT else None
    decision = Decision(wait_id=c.wait_id, action=ws.TIMEOUT, actor=ev.SYSTEM, payload=payload, decided_at=now, asked=wait.asked)
    facts: Facts = (ev.WaitTimedOut(decision),)
    if run.status is Status.FAILED:
        return facts  # the timeout counts as the answer to its question, and applies when the run is resumed
    if (halt := ws.find_halt(wait, decision)) is not None:
        return facts + mark_run_halted(run, halt)
    if wait.on_timeout is OnTimeout.FAIL:
        what = wait.prompt or wait.name or wait.wait_id
        error = ErrorValue(type="holdfast.WaitTimedOut", message=f"nobody answered {what!r} in time", code="wait_timed_out")
        facts += mark_run_failed(run, "wait_timed_out", error)
    return facts


def _cancel(run: Run, c: cmd.Cancel, now: int) -> Facts:
    """Records the request first. If the run rests or was interrupted, it is canceled at once; the owner of a live run cancels it at its safe boundary (§10.12)."""
    if c.queued and run.status is not Status.PENDING:
        return ()
    if run.status in TERMINAL:
        raise AlreadyTerminal(f"the run is already {run.status}", hint="nothing is left to cancel")
    asked: Facts = () if run.cancel_requested_at is not None else (ev.RunCancelRequested(c.reason, c.via),)
    return asked if run.status in LIVE and run.interrupted_at is None else asked + mark_run_canceled(run)


def _resume(run: Run, c: cmd.Resume, now: int) -> Facts:
    """Checks the preconditions of §7.1–7.3, then returns the facts. The shell re-evaluates the policy before it calls this.

    A run that has not begun, or was interrupted, gets no facts here: the process that drives it writes that it was started or recovered.
    """
    refuse_resume(run, c.acknowledge)
    if run.status is Status.PENDING or run.status in LIVE:
        return ()
    resumed = ev.RunResumed(
        cause="operator", checkpoint_id=run.checkpoint_head, acknowledged=c.acknowledge, forced=c.force, upgraded=c.upgraded, precedes=c.precedes, via=c.via
    )
    if not run.rearm:
        return (resumed,)
    # No one was there to answer: the first resume only asks again, and runs nothing (§5.17).
    return (resumed, *(ev.WaitRequested(ask_again(w, now)) for w in run.rearm), ev.RunWaitingForHuman())


def ask_again(wait: Wait, now: int) -> Wait:
    """Returns the same question under a new id (§5.14)."""
    span = None if wait.deadline is None else wait.deadline - wait.requested_at
    run, step, _ = wait.wait_id.split(".", 2)
    again = wait.round + 1
    return replace(
        wait,
        wait_id=ids.wait_id(run, int(step), wait.task, wait.path, again),
        round=again,
        requested_at=now,
        deadline=None if span is None else now + span,
    )


def refuse_resume(run: Run, acknowledge: str | None) -> None:
    """Raises if this run may not be resumed; returns otherwise.

    Raises:
        SettledTerminal: it was halted, denied or completed: fork, replay or follow up instead (§7.2).
        UndecidedWait: a person has not answered yet; this cannot be forced.
        AcknowledgeRequired: a failed run's head or stop reason was not named, or is stale (§7.3).
        NothingEligible: no answer has come, so there is nothing to continue with (§7.1).
        RunIsLive: it runs. Whether its owner has only left it behind is for the shell to find out, which sees the lease.
        InvalidInput: it has no checkpoint to continue from (§7.9).
    """
    if run.status in LIVE and run.interrupted_at is None:
        raise RunIsLive(f"{run.run_id} is {run.status}", hint="wait for it, or cancel it")
    if run.status in TERMINAL and (run.settled or run.status not in RESUMABLE):
        raise SettledTerminal(f"the run is {run.status} for good ({run.stop_reason or 'done'})", hint=f"holdfast fork {run.run_id} {target_of(run.target)} begins a new run from its state")
    human = [w for w in run.waits if w.human]
    if human and not run.decisions and run.status in (Status.WAITING_FOR_HUMAN, Status.FAILED):
        raise UndecidedWait(f"{len(human)} question(s) are unanswered: {', '.join(w.wait_id for w in human)}", hint=f"holdfast waits {run.run_id} shows the commands that answer")
    if run.status in (Status.WAITING_FOR_SIGNAL, Status.WAITING_FOR_HUMAN) and run.waits and not run.decisions:
        what = ", ".join(f"{w.kind} {w.name or w.prompt}".strip() for w in run.waits)
        raise NothingEligible(f"the run still waits for: {what}", hint=f"see holdfast waits {run.run_id}")
    if run.status is Status.FAILED:
        known = {run.checkpoint_head, run.stop_reason} - {None}
        if acknowledge not in known:
            what = f"{acknowledge!r} does not name this failure" if acknowledge else "the run failed, and nobody has acknowledged the failure yet"
            raise AcknowledgeRequired(f"{what}: {run.stop_reason}", hint=f"after you have fixed the cause: holdfast resume {run.run_id} {target_of(run.target)} --acknowledge {run.stop_reason}")
    if run.status in RESUMABLE and run.checkpoint_head is None:
        raise InvalidInput(f"{run.run_id} has no checkpoint to continue from", hint="submit it again", code="no_checkpoint")


def answers(run: Run) -> tuple[StepRecord, ...]:
    """Returns the decisions of a resumed run as records, which its re-entered steps will find (§5.12)."""
    return tuple(answer(d) for d in run.decisions)


def keep_answers(run: Run, facts: Facts) -> list[StepRecord]:
    """Returns the unconsumed decisions of a run that these facts cancel at rest, as records for the steps that asked, in case the run is resumed."""
    return list(answers(run)) if any(isinstance(f, ev.RunCanceled) and not f.settled for f in facts) else []


def answer(decision: Decision) -> StepRecord:
    """Returns a decision as the record that ``ctx.approve`` and similar calls look up by the wait's place."""
    task, path = place(decision.wait_id)
    return StepRecord(task=task, path=path, name=decision.asked, kind="wait", value=bytes(msgspec.msgpack.encode(decision)))


def answer_records(facts: Facts | list[ev.Fact]) -> list[StepRecord]:
    """Returns the decisions among these facts as records for the steps of a live run."""
    return [answer(f.decision) for f in facts if isinstance(f, ev.WaitDecided | ev.WaitTimedOut)]


def place(wait_id: str) -> tuple[str, str]:
    """Returns the (task, path) in a wait id, which is ``run.step.task.path``; the round of asking does not matter."""
    parts = ids.wait_base(wait_id).split(".", 3)
    return parts[2], parts[3] if len(parts) > 3 else ""


def read_answer(record: StepRecord) -> Decision:
    assert record.value is not None
    return msgspec.msgpack.decode(record.value, type=Decision)


def _late(run: Run, c: cmd.LateResult, now: int) -> Facts:
    return (ev.NoteAdded(f"late result of {c.attempt_id}: {c.summary}"),)


def _refuse(run: Run, c: cmd.Refused, now: int) -> Facts:
    return (ev.WaitDenied(c.wait_id, c.action, c.actor, c.reason, c.via),)


def _signal(run: Run, c: cmd.Signal, now: int) -> Facts:
    """A signal answers the oldest open wait for its name; if there is none, it is kept until a wait asks for it (§5.11)."""
    if run.status in (Status.COMPLETED, Status.CANCELED):
        raise AlreadyTerminal(f"the run is already {run.status}; it can no longer receive the signal {c.name!r}", hint="start a new run")
    if run.unasked >= MAX_SIGNALS:
        raise TooManySignals(f"{MAX_SIGNALS} signals wait for {run.run_id} already", hint="let the run handle some of them first")
    if len(run.signals) >= MAX_AT_HAND and run.at_hand(c.name):
        raise TooManySignals(f"signals with {MAX_AT_HAND} different names wait for {run.run_id} already", hint="let the run handle some of them first, or use fewer names")
    received = ev.SignalReceived(c.name, c.signal_key, c.payload, c.actor, c.via)
    wait = next((w for w in run.waits if w.kind is WaitKind.SIGNAL and w.name == c.name), None)
    if wait is None or run.status is Status.FAILED:
        return (received,)
    return (received, ev.WaitDecided(answer_by_signal(wait, c.signal_key, c.payload, c.actor, now, via=c.via)))


def answer_by_signal(wait: Wait, key: str, payload: bytes, actor: str, now: int, came: int = 0, via: str = "") -> Decision:
    """Returns a signal as the answer to the wait that asked for it. ``came``: the event that reported the signal, if the run's record does not contain it."""
    return Decision(wait_id=wait.wait_id, action=ws.SIGNAL, actor=actor, payload=payload, decided_at=now, asked=wait.asked, key=key, came=came, via=via)


def _child(run: Run, c: cmd.ChildEnded, now: int) -> Facts:
    waits = [w for w in run.waits if w.kind is WaitKind.CHILD and w.name == c.child_run_id]
    if not waits or run.status in (Status.COMPLETED, Status.CANCELED):
        return ()
    told = None if c.error is None else c.error.message
    value = c.result if c.status == Status.COMPLETED else encode({"run_id": c.child_run_id, "status": c.status, "error": told})
    return tuple([ev.WaitDecided(Decision(wait_id=w.wait_id, action=c.status, actor=ev.SYSTEM, payload=value, decided_at=now, asked=w.asked)) for w in waits])


_TABLE: dict[type, Callable[[Run, Any, int], Facts]] = {
    cmd.Decide: _decide,
    cmd.FireTimeout: _timeout,
    cmd.Cancel: _cancel,
    cmd.Resume: _resume,
    cmd.LateResult: _late,
    cmd.Signal: _signal,
    cmd.ChildEnded: _child,
    cmd.Refused: _refuse,
}


# -- the named helpers (§5.15): pure, no I/O --------------------------------------------------------


def continue_handoff(run: Run, decision: Decision) -> Facts:
    """Records the decision as an override, so that the loop does not re-enter. The machine's verdict does not change."""
    return (ev.WaitDecided(decision),)


def continue_with_waiver_handoff(run: Run, decision: Decision) -> Facts:
    """Does the same as ``continue``, and the fold keeps the waiver, with its feedback, for every later gate."""
    assert decision.feedback, "a waiver needs feedback that says what is waived"
    return (ev.WaitDecided(decision),)


def retry_feedback_handoff(run: Run, decision: Decision) -> Facts:
    """Asks for one more round of the step that is to be redone; if it is rejected again, a new wait id is used."""
    assert decision.feedback, "retry_feedback needs feedback that says what should change"
    return (ev.WaitDecided(decision),)


def close_waits(run: Run, reason: str, keep: tuple[Task, ...] = ()) -> Facts:
    """Closes the open waits of a run, except those of the tasks to ``keep``."""
    kept = {t.key for t in keep}
    return tuple(ev.WaitClosed(w.wait_id, reason) for w in run.waits if w.task not in kept)


def leave_replay(facts: list[ev.Fact]) -> None:
    """Inserts ``run.resumed`` before an end or a wait: a replay passes through running first, because no edge leads from replaying to these (§2.5, T-03)."""
    for i, fact in enumerate(facts):
        if isinstance(fact, ev.RunResumed):
            return
        if isinstance(fact, ev.RunCompleted | ev.RunWaitingForHuman | ev.RunWaitingForSignal):
            facts.insert(i, ev.RunResumed(cause=REPLAYED))
            return


def mark_run_done(run: Run, result: bytes | None = None) -> Facts:
    return (*close_waits(run, "done"), ev.RunCompleted(result))


def mark_run_halted(run: Run, reason: str = "halted") -> Facts:
    return (*close_waits(run, reason), ev.RunCanceled(stop_reason=reason, settled=True, at_rest=run.status not in LIVE))


def mark_run_canceled(run: Run) -> Facts:
    """Ends a run on request: it can be resumed, and no question stays open (§5.14)."""
    return (*close_waits(run, "canceled"), ev.RunCanceled(stop_reason="canceled", settled=False, at_rest=run.status not in LIVE))


def mark_run_unattended(run: Run, waits: tuple[Wait, ...]) -> Facts:
    """Stops an unattended run with an authoritative question, for a named reason; the run keeps the questions (§5.17)."""
    kept = tuple(w.wait_id for w in waits)
    closed = tuple(ev.WaitClosed(w.wait_id, UNATTENDED) for w in run.waits if w.wait_id not in kept)
    return (*(ev.WaitRequested(w) for w in waits), *closed, ev.RunCanceled(stop_reason=UNATTENDED, settled=False, rearms=kept))


def mark_run_failed(run: Run, reason: str, error: ErrorValue) -> Facts:
    """Fails a run and keeps its open waits: an undecided question is never erased (§5.14)."""
    return (ev.RunFailed(stop_reason=reason, error=error),)


def mark_run_interrupted(run: Run, cause: str) -> Facts:
    return (ev.RunInterrupted(cause),)


def mark_run_awaiting_review(run: Run, wait: Wait) -> Facts:
    return (ev.WaitRequested(wait), ev.RunWaitingForHuman())


def apply_outcome(run: Run, outcome: Terminal, *, result: bytes | None = None, review: Wait | None = None, why: str = "halted") -> Facts:
    """Returns the facts of a terminal outcome for this run (§5.16). A review stops an unattended run until someone attends to it (§5.17)."""
    match outcome:
        case Terminal.DONE:
            return mark_run_done(run, result)
        case Terminal.HALTED:
            return mark_run_halted(run, why)
    assert review is not None, "to ask for a review, say what is reviewed"
    return mark_run_unattended(run, (review,)) if run.unattended else mark_run_awaiting_review(run, review)


def stop_reason(error: BaseException) -> str:
    """Returns the stable code that a failure leaves on the run."""
    return code_of(error)
