"""What happened to a run, why it stands where it stands, and what would move it: a few sentences made from its record.

Pure: ``explain`` reads the folded run, its condition and its events. It decides nothing and shows no value of the program's but
what a wait shows, which the caller masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.core import events as ev
from holdfast.core.errors import ErrorValue
from holdfast.core.run import Run
from holdfast.core.status import Condition
from holdfast.core.waits import Wait
from holdfast.core.wording import offered

MOST_LINES = 10


class Advice(msgspec.Struct, frozen=True):
    """One thing that somebody can do, and the command that does it; the command is empty where there is nothing to type."""

    text: str
    command: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """``happened`` are sentences in order of time, ``why`` says why the run stands where it stands, ``next`` what would move it."""

    run_id: str
    happened: tuple[str, ...]
    why: str
    next: tuple[Advice, ...]


class Blocked(msgspec.Struct, frozen=True):
    """What keeps a due run from being driven, as the caller knows it: no worker that can take it, or a run before it in its lane."""

    no_worker: str = ""
    lane: str = ""


NOTHING = Blocked()


class _Why(NamedTuple):
    why: str
    next: tuple[Advice, ...]


def explain(run: Run, condition: Condition, events: Sequence[ev.Event], blocked: Blocked = NOTHING) -> Explanation:
    """Explains a run.

    Args:
        run: as folded.
        condition: where it stands (§2.9).
        events: its events, oldest first; a part of them gives a part of the story.
        blocked: what keeps it from being driven, if it is due.
    """
    why, advice = _REASONS[condition](run, blocked)
    return Explanation(run.run_id, _happened(run, events), why, advice)


def _happened(run: Run, events: Sequence[ev.Event]) -> tuple[str, ...]:
    steps: list[str] = []
    said: list[str] = [_begun(run)]
    for event in events:
        match event.fact:
            case ev.StepEnded(task=task, path=""):
                steps.append(task)
                continue
            case fact:
                line = _sentence(fact, event.actor)
        if line:
            said += _steps(steps)
            steps.clear()
            said.append(line)
    said += _steps(steps)
    if len(said) > MOST_LINES:
        left = len(said) - MOST_LINES + 1
        said = [*said[:3], f"… {left} more things happened.", *said[3 + left :]]
    return tuple(said)


def _begun(run: Run) -> str:
    origin = f", {run.origin} from {run.source_run_id}" if run.source_run_id else ""
    return f"The skill {run.skill_id} {run.skill_version} was submitted{origin}."


def _steps(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[-3:])
    return [f"The step {shown} completed." if len(names) == 1 else f"{len(names)} steps completed, the last of them {shown}."]


def _sentence(fact: ev.Fact | ev.Unknown, actor: str) -> str:
    match fact:
        case ev.RunRecovered(previous_owner=owner) if owner:
            return "Its worker died or lost its lease, and another one took the run over."
        case ev.StepFailed(task=task, error=error, attempt=attempt):
            return f"The step {task} failed in attempt {attempt}: {_failed(error)}"
        case ev.StepRetryScheduled(task=task, attempt=attempt):
            return f"The step {task} is tried again after attempt {attempt}."
        case ev.WaitRequested(wait=wait):
            return f"The step {wait.task} asked: {_asked(wait)}."
        case ev.WaitDecided(decision=decision):
            return f"{decision.actor or 'Somebody'} decided {decision.action}."
        case ev.WaitTimedOut():
            return "Nobody answered in time."
        case ev.WaitDenied(actor=who, action=action, reason=reason):
            return f"{who} tried to {action} and was refused{f': {reason}' if reason else ''}."
        case ev.SideEffectUnknown(task=task):
            return f"The process died during a side effect of the step {task}; its outcome is unknown."
        case ev.PolicyEvaluated(verdict="deny", subject=subject, reason=reason):
            return f"The policy denied {subject}{f': {reason}' if reason else ''}."
        case ev.RunCancelRequested(reason=reason):
            return f"{actor} asked to cancel it{f': {reason}' if reason else ''}."
        case ev.RunInterrupted(cause=cause):
            return f"It was set aside: {cause}."
        case ev.RunFailed(error=error):
            return f"The run failed: {_failed(error)}"
        case ev.RunCanceled():
            return "The run was canceled."
        case ev.RunCompleted():
            return "The run completed."
        case ev.SignalReceived(name=name):
            return f"The signal {name} arrived."
        case _:
            return ""


def _failed(error: ErrorValue) -> str:
    at = error.frames[-1] if error.frames else None
    place = f" ({at.file}:{at.line} in {at.function})" if at is not None else ""
    kind = error.type.rpartition(".")[2]
    return f"{kind}: {' '.join(error.message.split())[:200]}{place}."


def _asked(wait: Wait) -> str:
    return f"{' '.join((wait.prompt or wait.name or wait.kind.value).split())[:120]} ({wait.kind.value})"


def _queued(run: Run, blocked: Blocked) -> _Why:
    if blocked.lane:
        return _Why(f"It waits for its turn: {blocked.lane}.", (Advice("See who holds the lane.", "holdfast lanes"),))
    if blocked.no_worker:
        upgrade = Advice("Let the code of today take it.", f"holdfast worker TARGET --upgrade   (or holdfast resume {run.run_id} TARGET)")
        return _Why(f"It is due, and no living worker can take it: {blocked.no_worker}.", (upgrade,))
    start = Advice("Start a worker, or drive it here.", f"holdfast worker TARGET   (or holdfast resume {run.run_id} TARGET)")
    return _Why("It is due and waits for a worker.", (start,))


def _running(run: Run, blocked: Blocked) -> _Why:
    return _Why("A worker is driving it.", (Advice("Watch it.", f"holdfast events {run.run_id} --follow"), Advice("Cancel it.", f"holdfast cancel {run.run_id}")))


def _asking(run: Run, blocked: Blocked) -> _Why:
    waits = [w for w in run.waits if w.human]
    if not waits:
        return _Why("It is answered and due to resume.", (Advice("Drive it on.", f"holdfast resume {run.run_id} TARGET"),))
    advice = []
    for wait in waits:
        for action in wait.available_actions:
            advice.append(Advice(f"{offered(wait.kind, action).label}.", _command(run, wait, action)))
    named = "; ".join(_asked(w) for w in waits)
    decided = {d.wait_id for d in run.decisions}
    if all(w.wait_id in decided for w in waits):
        return _Why(f"The question is decided, and the run has not resumed: {named}.", (Advice("Drive it on.", f"holdfast resume {run.run_id} TARGET"),))
    return _Why(f"It waits for a person: {named}.", tuple(advice))


def _command(run: Run, wait: Wait, action: str) -> str:
    match action:
        case "approve":
            return f"holdfast approve {run.run_id} --wait {wait.wait_id}"
        case "deny":
            return f"holdfast deny {run.run_id} --wait {wait.wait_id} --reason R"
        case "answer" | "record_result":
            return f"holdfast decide {run.run_id} --wait {wait.wait_id} --action {action} --payload JSON"
        case "retry_feedback" | "continue_with_waiver":
            return f"holdfast decide {run.run_id} --wait {wait.wait_id} --action {action} --feedback TEXT"
        case _:
            return f"holdfast decide {run.run_id} --wait {wait.wait_id} --action {action}"


def _signalled(run: Run, blocked: Blocked) -> _Why:
    names = sorted({w.name for w in run.waits if w.name and not w.human})
    kinds = ", ".join(sorted({w.kind.value for w in run.waits})) or "signal"
    signals = tuple(Advice(f"Send the signal {name}.", f"holdfast signal {run.run_id} {name}") for name in names if any(w.name == name and w.kind.value == "signal" for w in run.waits))
    return _Why(f"It waits for a {kinds}{': ' + ', '.join(names) if names else ''}.", signals)


def _done(run: Run, blocked: Blocked) -> _Why:
    return _Why("It is done.", (Advice("Do it again with changes.", f"holdfast fork {run.run_id} --set CHANNEL=JSON"),))


def _halted(run: Run, blocked: Blocked) -> _Why:
    if not run.settled:
        return _Why(f"It ended because nobody attended it ({run.stop_reason}).", (Advice("Resume it: the question is asked again.", f"holdfast resume {run.run_id} TARGET"),))
    return _Why(f"A person or a policy ended it ({run.stop_reason}); this run stays ended.", (Advice("Begin a new run from its state.", f"holdfast fork {run.run_id}"),))


def _cancelled(run: Run, blocked: Blocked) -> _Why:
    return _Why(f"It was canceled on request ({run.stop_reason}).", (Advice("Resume it where it stood.", f"holdfast resume {run.run_id} TARGET"),))


def _broken(run: Run, blocked: Blocked) -> _Why:
    error = run.error
    hint = f" {error.hint[:1].upper()}{error.hint[1:]}." if error is not None and error.hint else ""
    why = f"It failed ({run.stop_reason}).{f' {_failed(error)}' if error is not None else ''}{hint}"
    again = Advice("After the cause is mended, resume it where it stood.", f"holdfast resume {run.run_id} TARGET --acknowledge {run.stop_reason}")
    return _Why(why, (again, Advice("Or begin a new run from an earlier state.", f"holdfast fork {run.run_id} --from CHECKPOINT")))


def _torn(run: Run, blocked: Blocked) -> _Why:
    take = Advice("Take it over and drive it on.", f"holdfast resume {run.run_id} TARGET")
    return _Why("It was interrupted: its process ended, or it was set aside for a person.", (take, Advice("See what is wrong with it.", f"holdfast check {run.run_id}")))


def _unknown(run: Run, blocked: Blocked) -> _Why:
    return _Why("Its record cannot be read as a run.", (Advice("See what is wrong with it.", f"holdfast check {run.run_id}"),))


_REASONS: dict[Condition, Callable[[Run, Blocked], _Why]] = {
    Condition.QUEUED: _queued,
    Condition.RUNNING: _running,
    Condition.REPLAYING: _running,
    Condition.AWAITING_PHASE_HANDOFF: _asking,
    Condition.AWAITING_GATE_DECISION: _asking,
    Condition.AWAITING_HUMAN_REVIEW: _asking,
    Condition.AWAITING_SIGNAL: _signalled,
    Condition.DONE: _done,
    Condition.HALTED: _halted,
    Condition.CANCELLED: _cancelled,
    Condition.FAILED: _broken,
    Condition.INTERRUPTED: _torn,
    Condition.UNKNOWN: _unknown,
}

__all__ = ["Advice", "Blocked", "Explanation", "explain"]
