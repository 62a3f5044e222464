"""Explains in a few sentences what happened to a run, why it is in its present state, and what would make it continue.

Pure: ``explain`` reads the folded run, its condition and its events. It decides nothing, and the only values of the program that
it shows are those that a wait shows, which the caller masks.
"""

from __future__ import annotations

import datetime as dt
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.core import events as ev
from holdfast.core.effects import BY_DECISION, ELSEWHERE, Effect, EffectStatus, name_gone
from holdfast.core.envelopes import legible
from holdfast.core.errors import ErrorValue
from holdfast.core.run import Run
from holdfast.core.status import LIVE, WAITING, Condition, Status
from holdfast.core.toolcalls import place_of
from holdfast.core.waits import APPROVE, Wait, WaitKind
from holdfast.core.wording import EDIT, answering, describe_action, phrase, target_of

MOST_LINES = 10
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Advice(msgspec.Struct, frozen=True):
    """One thing that a person can do, and the command for it; the command is empty if there is none."""

    text: str
    command: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """``happened`` are sentences in order of time, ``why`` says why the run is in its present state, ``next`` what would make it continue."""

    run_id: str
    happened: tuple[str, ...]
    why: str
    next: tuple[Advice, ...]


class Blocked(msgspec.Struct, frozen=True):
    """What the caller knows about a run besides its record: what keeps it from being driven.

    ``no_worker`` says that no living worker can take it; ``shape`` is the shape in which it began, if workers serve its skill in another; ``lane`` says which run
    is before it and in what state, ``before`` is that run's id; ``dead``: the process that holds its lease is proven dead. ``effects`` are the records
    of its effects, ``now`` is the store's time in microseconds. ``limit`` is the limit or the pause that holds it back; ``nobody``: no
    worker of its queue is running; ``due`` is since when, or from when, it may be executed; ``requests`` are the states of its
    requests to tool runners; ``idle``: the process that holds its lease does not execute it.
    ``gone`` are effects of its completed steps that were undone, or may have been, so that a resume is refused.
    """

    no_worker: str = ""
    shape: str = ""
    lane: str = ""
    before: str = ""
    dead: bool = False
    effects: tuple[Effect, ...] = ()
    now: int = 0
    limit: str = ""
    nobody: bool = False
    due: int | None = None
    requests: tuple[str, ...] = ()
    idle: bool = False
    gone: tuple[Effect, ...] = ()


NOTHING = Blocked()


class _Why(NamedTuple):
    why: str
    next: tuple[Advice, ...]


def explain(run: Run, condition: Condition, events: Sequence[ev.Event], blocked: Blocked = NOTHING) -> Explanation:
    """Explains a run.

    Args:
        run: the folded run.
        condition: its condition (§2.9).
        events: its events, oldest first; from a part of them only that part is explained.
        blocked: what keeps it from being driven, if it is due.
    """
    why, advice = _REASONS[condition](run, events, blocked)
    if run.interrupted_at is not None and run.status in WAITING and blocked.due is None and condition is not Condition.INTERRUPTED:
        why = f"{why} {_tell_held(events)}"
        advice = (*advice, Advice("Resume it once its time is over, or what it waits for is there: no worker does.", _resume(run)))
    if blocked.lane and condition is not Condition.QUEUED and any(a.command.startswith("holdfast resume ") for a in advice):
        why = f"{why} A resume is refused for now, because {blocked.lane}."
        advice = (Advice("See to that run first: it must have ended, or have released the lane.", f"holdfast explain {blocked.before}"), *advice)
    return Explanation(run.run_id, _tell_happened(run, condition, events, blocked), why, advice)


def _tell_held(events: Sequence[ev.Event]) -> str:
    """Says why no worker continues a run."""
    cause = next((f" ({legible(e.fact.cause)})" for e in reversed(events) if isinstance(e.fact, ev.RunInterrupted)), "")
    return f"It was interrupted{cause}. No worker continues it until a person resumes it."


def _tell_happened(run: Run, condition: Condition, events: Sequence[ev.Event], blocked: Blocked) -> tuple[str, ...]:
    steps: list[str] = []
    said: list[str] = [_tell_begun(run)]
    under_way, failed = "", False
    calls: list[str] = []
    caught: dict[str, str] = {}
    doubts: dict[str, str] = {}
    for event in events:
        match event.fact:
            case ev.StepEnded(task=task, path=""):
                steps.append(task)
                under_way = ""
                calls.clear()
                if not caught:
                    continue
                line, failed = _tell_caught(task, caught), False
                caught.clear()
            case ev.StepEnded(path=path):
                calls.append(path)
                continue
            case ev.StepFailed(path=path, error=error, call=call) if path:
                caught[path] = f"{call or 'call ' + path}: {_tell_failure(error)}"
                continue  # either the step fails with this error too, or its code has handled it
            case ev.StepStarted(task=task):
                under_way = task
                continue
            case ev.RunFailed() if failed:
                line = "The run failed with that error."
            case fact:
                if isinstance(fact, ev.StepFailed):
                    caught.clear()
                _note_doubt(fact, doubts)
                line = _sentence(fact, event.actor) or _clear_doubt(fact, doubts, blocked.effects)
                failed = isinstance(fact, ev.StepFailed)
        if line:
            said += _steps(steps)
            steps.clear()
            said.append(line)
    said += _steps(steps)
    if under_way and run.status in LIVE:
        said.append(f"The step {under_way} began.")
    if under_way and run.status not in (Status.COMPLETED, Status.CANCELED) and (kept := _leaves(calls)):
        said.append(f"In the step {under_way} {'one call completed; its result is' if kept == 1 else f'{kept:,} calls completed; their results are'} kept.")
    if run.status in LIVE:
        records = {} if condition in (Condition.RUNNING, Condition.REPLAYING) else {e.effect_id: e for e in blocked.effects}
        said += [f"{_name(e)} was attempted, and its outcome is not recorded.{_tell_resume(records.get(e.effect_id))}" for e in _open_effects(events)]
    if len(said) > MOST_LINES:
        left = len(said) - MOST_LINES + 1
        said = [*said[:3], f"… {left} more things happened.", *said[3 + left :]]
    return tuple(said)


def _tell_caught(task: str, failures: dict[str, str]) -> str:
    """Describes the calls that failed in a completed step. If a call only contains others, the calls inside it count instead."""
    found = [said for path, said in failures.items() if not any(other.startswith(f"{path}/") for other in failures)]
    return f"In the step {task} {'one call' if len(found) == 1 else f'{len(found):,} calls'} failed, and the code of the step handled that: {found[-1]}"


def _note_doubt(fact: ev.Fact | ev.Unknown, doubts: dict[str, str]) -> None:
    """Notes the effects whose outcome was unknown, and how it was found out: by the verify hook, by a person, or by the receiver from the key."""
    match fact:
        case ev.SideEffectUnknown(effect_id=effect_id):
            doubts[effect_id] = "found"
        case ev.WaitRequested(wait=wait) if wait.effect_id in doubts:
            doubts[wait.effect_id] = "person"
        case ev.SideEffectAttempted(effect_id=effect_id) if effect_id in doubts:
            doubts[effect_id] = "key"


_CLEARED = {
    "found": "{0} that the side effect of the step {1} had happened; its result is recorded.",
    "person": "According to that answer, the side effect of the step {1} had happened; its result is recorded.",
    "key": "The side effect of the step {1} was sent again under the same key; its result is recorded.",
}
_AGAIN = {
    "found": "{0} that the side effect of the step {1} had not happened, so it was done again.",
    "person": "Because of that answer, the side effect of the step {1} was done again.",
}


def _clear_doubt(fact: ev.Fact | ev.Unknown, doubts: dict[str, str], records: Sequence[Effect]) -> str:
    """Describes the outcome of an effect that was in doubt; empty for any other fact."""
    match fact:
        case ev.SideEffectRecorded(effect_id=effect_id, task=task) if effect_id in doubts:
            return _CLEARED[doubts.pop(effect_id)].format(_finder(effect_id, records), task)
        case ev.SideEffectAbandoned(effect_id=effect_id, task=task, detail=detail) if effect_id in doubts:
            how = doubts.pop(effect_id)
            return f"A person decided that the side effect of the step {task} should not be done." if detail == BY_DECISION else _AGAIN.get(how, "").format(_finder(effect_id, records), task)
        case _:
            return ""


def _finder(effect_id: str, records: Sequence[Effect]) -> str:
    """Returns who found out the outcome of an effect: its verify hook, if it has one and the outcome did not come from another run."""
    hooked = any(e.effect_id == effect_id and e.verifiable and not e.detail.startswith(ELSEWHERE) for e in records)
    return "Its verify= found" if hooked else "It was found"


def _leaves(calls: Sequence[str]) -> int:
    """Returns how many calls a step has recorded, without those that only contain others."""
    above = {path.rpartition("/")[0] for path in calls}
    return len(set(calls) - above)


def _open_effects(events: Sequence[ev.Event]) -> list[ev.SideEffectAttempted]:
    """Returns the effects that were attempted and whose outcome is not recorded."""
    found: dict[str, ev.SideEffectAttempted] = {}
    for event in events:
        match event.fact:
            case ev.SideEffectAttempted(effect_id=effect_id) as fact:
                found[effect_id] = fact
            case ev.EffectFact(effect_id=effect_id):
                found.pop(effect_id, None)
    return list(found.values())


def _name(effect: ev.SideEffectAttempted) -> str:
    detail = f" ({legible(effect.detail)})" if effect.detail else ""
    return f"The effect {effect.task}.{effect.path}{detail}"


def _tell_resume(effect: Effect | None) -> str:
    """Says what a resume does about an effect whose outcome is unknown."""
    if effect is None:
        return ""
    if effect.verifiable and effect.status is not EffectStatus.UNKNOWN:
        does = "a resume asks its verify= first"
    elif effect.idempotent and effect.status is not EffectStatus.UNKNOWN:
        does = "a resume sends it again under the same key, so that its receiver does it once"
    else:
        does = "a resume does not repeat it: it asks a person"
    return f" Its key is {effect.key}; {does}."


def _tell_begun(run: Run) -> str:
    origin = f", {run.origin} from {run.source_run_id}" if run.source_run_id else ""
    return f"A run of {run.skill_id} (version {run.skill_version}) was submitted{origin}."


def _steps(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(names[-3:])
    return [f"The step {shown} completed." if len(names) == 1 else f"{len(names)} steps completed, the last of them {shown}."]


def _sentence(fact: ev.Fact | ev.Unknown, actor: str) -> str:
    match fact:
        case ev.RunResumed(acknowledged=acknowledged) if actor != "system":
            return f"{actor or 'Somebody'} resumed it{f', and acknowledged {acknowledged}' if acknowledged else ''}."
        case ev.RunHandedBack(why=why):
            return f"Its worker was stopped and released the run{f' ({why})' if why else ''}."
        case ev.RunRecovered(previous_owner=owner) if owner:
            return "Its worker died or lost its lease, and another one took the run over."
        case ev.StepFailed(task=task, error=error, attempt=attempt):
            return f"The step {task} failed in attempt {attempt}: {_tell_failure(error)}"
        case ev.StepRetryScheduled(task=task, attempt=attempt, call=call):
            which = f"The step {task}" if call is None else f"In the step {task} the call {call}"
            return f"{which} is tried again after attempt {attempt}."
        case ev.WaitRequested(wait=wait) if wait.kind is WaitKind.EFFECT:
            return f"The step {wait.task} asked a person what happened."
        case ev.WaitRequested(wait=wait):
            return f"The step {wait.task} asked: {_tell_question(wait)}."
        case ev.WaitDecided(decision=decision):
            return f"{decision.actor or 'Somebody'} answered: {decision.action}."
        case ev.WaitTimedOut():
            return "Nobody answered by the deadline."
        case ev.WaitDenied(actor=who, action=action, reason=reason):
            return f"{who} tried to {action} and was refused{f': {legible(reason)}' if reason else ''}."
        case ev.SideEffectUnknown(task=task):
            return f"The process died during a side effect of the step {task}; its outcome is unknown."
        case ev.NoteAdded(refused=key, text=text, by=who, action=action) if key and who not in ("", ev.SYSTEM):
            said = f"answered {action}" if action else f"sent a {key.partition(':')[0]}"
            return f"{who} {said}, and that came too late: {legible(text.removeprefix(f'{key} was refused: '))}."
        case ev.PolicyEvaluated(verdict="deny", subject=subject, reason=reason):
            return f"The policy denied the step {subject}{f': {legible(reason)}' if reason else ''}."
        case ev.RunCancelRequested(reason=reason):
            return f"{actor} asked to cancel it{f': {legible(reason)}' if reason else ''}."
        case ev.RunInterrupted(cause=cause):
            return f"It was interrupted: {cause}."
        case ev.RunFailed(error=error):
            return f"The run failed: {_tell_failure(error)}"
        case ev.RunCanceled():
            return "The run was canceled."
        case ev.RunCompleted():
            return "The run completed."
        case ev.SignalReceived(name=name):
            return f"The signal {name} arrived."
        case _:
            return ""


def _tell_failure(error: ErrorValue) -> str:
    at = error.frames[-1] if error.frames else None
    place = f" ({at.file}:{at.line} in {at.function})" if at is not None else ""
    kind = error.type.rpartition(".")[2]
    return f"{kind}: {' '.join(legible(error.message).split())[:200]}{place}."


def _tell_question(wait: Wait) -> str:
    text = " ".join((legible(wait.prompt) or wait.name or wait.kind.value).split())[:160].rstrip(".")
    return text if wait.kind is WaitKind.EFFECT else f"{text} ({wait.kind.value})"


def _resume(run: Run, *more: str) -> str:
    return " ".join(["holdfast resume", run.run_id, target_of(run.target), *more])


def _explain_queued(run: Run, events: Sequence[ev.Event], blocked: Blocked) -> _Why:
    if blocked.lane:
        ahead = Advice("See what that run needs (runs of one lane execute one after another).", f"holdfast explain {blocked.before}")
        return _Why(f"It waits for its turn: {blocked.lane}.", (ahead, Advice("See all runs that have a lane, and who waits for it.", "holdfast lanes")))
    start = Advice("Start a worker that has the skill.", f"holdfast worker {target_of(run.target)}")
    if blocked.shape:
        changed = (
            Advice(f'To let the new code continue such runs, declare in the skill: migrates=("{blocked.shape}",).'),
            Advice("Or start a worker that also takes runs of other versions of the graph.", f"{start.command} --upgrade"),
            Advice("Or resume it here with the code as it is.", _resume(run, "--upgrade")),
        )
        return _Why(f"The code has changed: {blocked.no_worker}.", changed)
    if blocked.no_worker:
        return _Why(f"It is due, but {blocked.no_worker}.", (start, Advice("Or resume it here.", _resume(run))))
    here = Advice("Or execute it here.", _resume(run))
    if blocked.due is not None and blocked.due > blocked.now:
        return _Why(f"It is not due yet: it may be executed from {_clock(blocked.due)} on.", (Advice("Execute it here now.", _resume(run)),))
    decided = "It is answered and due" if run.decisions else "It is due"
    if blocked.limit:
        return _Why(f"{decided}, but held back: {blocked.limit}.", (Advice("See the queues.", "holdfast queues"), Advice("See the limits.", "holdfast limits")))
    if blocked.nobody:
        queue = "" if run.queue == "default" else f" of the queue {run.queue!r}"
        since = "" if blocked.due is None else f" since {_clock(blocked.due)}"
        return _Why(f"{decided}{since}, and no worker{queue} is running.", (start, here))
    return _Why(f"{decided}. It waits for a worker that has the skill {run.skill_id!r}.", (start, here))


def _clock(us: int) -> str:
    return (EPOCH + dt.timedelta(microseconds=us)).strftime("%Y-%m-%d %H:%M:%SZ")


def _running(run: Run, events: Sequence[ev.Event], blocked: Blocked) -> _Why:
    if blocked.idle:
        back = "This process holds it and does not execute it, because the store failed. It is released as soon as the store answers; then any worker can continue it."
        return _Why(back, (Advice("Or continue it here.", _resume(run)),))
    return _Why("A worker is executing it.", (Advice("Watch it.", f"holdfast events {run.run_id} --follow"), Advice("Cancel it.", f"holdfast cancel {run.run_id}")))


def _asking(run: Run, events: Sequence[ev.Event], blocked: Blocked) -> _Why:
    waits = [w for w in run.waits if w.human]
    if not waits:
        return _Why("It is answered and due to resume.", (Advice("Resume it here, or start a worker.", _resume(run)),))
    advice = [a for wait in waits for a in _answers(run, wait, alone=len(waits) == 1)]
    named = "; ".join(_tell_question(w) for w in waits)
    decided = {d.wait_id for d in run.decisions}
    if all(w.wait_id in decided for w in waits):
        return _Why(f"The question is decided, and the run has not resumed: {named}.", (Advice("Resume it here, or start a worker.", _resume(run)),))
    late = any(w.deadline is not None and w.deadline <= blocked.now for w in waits)
    passed = " Its deadline has passed: the next worker or `holdfast resume` does what on_timeout= says." if late else ""
    return _Why(f"It waits for a person: {named}.{passed}", tuple(advice))


def _answers(run: Run, wait: Wait, *, alone: bool) -> list[Advice]:
    which = None if alone else wait.wait_id
    said = [Advice(phrase(describe_action(wait.kind, action)), shlex.join(["holdfast", *answering(run.run_id, which, action)])) for action in wait.available_actions]
    return [*said, Advice(f"{EDIT}.", shlex.join(["holdfast", *answering(run.run_id, which, APPROVE, edited=True)]))] if wait.editable else said


def _explain_signal(run: Run, events: Sequence[ev.Event], blocked: Blocked) -> _Why:
    tools = [w for w in run.waits if place_of(w.name) is not None]
    if tools:
        asked = "; ".join([*(_tell_question(w).removesuffix(f" ({w.kind.value})") for w in tools), *blocked.requests])
        start = Advice("Start a tool runner where that workspace is.", "holdfast tool-runner --workspace PATH --tools TARGET")
        return _Why(f"It waits for a tool runner: {asked}.", (start, Advice("If no runner can answer, say what came of the call, or give it up.", f"holdfast outbox {run.run_id}")))
    names = sorted({w.name for w in run.waits if w.name and not w.human})
    kinds = ", ".join(sorted({w.kind.value for w in run.waits})) or "signal"
    signals = tuple(Advice(f"Send the signal {name}.", f"holdfast signal {run.run_id} {name}") for name in names if any(w.name == name and w.kind.value == "signal" for w in run.waits))
    return _Why(f"It waits for a {kinds}{': ' + ', '.join(names) if names else ''}.", signals)


def _explain_done(run: Run, events: Sequence[ev.Event], blocked: Blocked) -> _Why:
    return _Why("It is done.", (Advice("Start a new run from it, with changes.", f"holdfast fork {run.run_id} {target_of(run.target)} --set CHANNEL=JSON"),))


def _explain_halted(run: Run, events: Sequence[ev.Event], blocked: Blocked) -> _Why:
    if not run.settled:
        return _Why(f"It ended because it ran unattended and needed a person ({run.stop_reason}).", (Advice("Resume it: the question is asked again.", _resume(run)),))
    fork = Advice("Start a new run from its state.", f"holdfast fork {run.run_id} {target_of(run.target)}")
    match next((e for e in reversed(events) if isinstance(e.fact, _ENDINGS)), None):
        case ev.Event(fact=ev.WaitTimedOut()):
            asked = next((f": {_tell_question(e.fact.wait)}" for e in reversed(events) if isinstance(e.fact, ev.WaitRequested)), "")
            later = Advice("For later runs: give the question more time with timeout=, or set on_timeout= to choose what happens instead.")
            return _Why(f"Nobody answered by the deadline ({run.stop_reason}){asked}. This run cannot be resumed.", (fork, later))
        case ev.Event(fact=ev.PolicyEvaluated(subject=subject, reason=reason)):
            change = Advice("Change the policy, or what the step needs; then start a new run from its state.", fork.command)
            return _Why(f"The policy denied the step {subject} ({run.stop_reason}){f': {legible(reason)}' if reason else ''}. This run cannot be resumed.", (change,))
        case ev.Event(fact=ev.WaitDecided(decision=decision)):
            because = f": {legible(decision.note or decision.feedback)}" if decision.note or decision.feedback else ""
            return _Why(f"{decision.actor or 'Somebody'} ended it with the answer {decision.action} ({run.stop_reason}){because}. This run cannot be resumed.", (fork,))
    return _Why(f"A person or a policy ended it ({run.stop_reason}). This run cannot be resumed.", (fork,))


_ENDINGS = (ev.WaitTimedOut, ev.PolicyEvaluated, ev.WaitDecided)


def _explain_refusal(run: Run, why: str, gone: Sequence[Effect]) -> _Why:
    """Explains a run that cannot be resumed, because effects of its completed steps were undone."""
    undone = f"{why} Effects of its completed steps were undone: {name_gone(gone)}. A resume is refused, because it would continue as if that were still done."
    return _Why(undone, (Advice("Start a fork: it carries that out again.", f"holdfast fork {run.run_id} {target_of(run.target)}"),))


def _explain_cancelled(run: Run, events: Sequence[ev.Event], blocked: Blocked) -> _Why:
    if blocked.gone:
        return _explain_refusal(run, f"It was canceled on request ({run.stop_reason}).", blocked.gone)
    return _Why(f"It was canceled on request ({run.stop_reason}).", (Advice("Resume it where it stopped.", _resume(run)),))


def _explain_broken(run: Run, events: Sequence[ev.Event], blocked: Blocked) -> _Why:
    error = run.error
    told = legible(error.hint) if error is not None else ""
    hint = f" {told[:1].upper()}{told[1:]}." if told else ""
    why = f"It failed ({run.stop_reason}).{f' {_tell_failure(error)}' if error is not None else ''}{hint}"
    if blocked.gone:
        return _explain_refusal(run, why, blocked.gone)
    again = Advice("After you have fixed the cause, resume it where it stopped.", _resume(run, "--acknowledge", run.stop_reason or ""))
    fork = Advice("Or start a new run from its latest checkpoint.", f"holdfast fork {run.run_id} {target_of(run.target)}{_from(run)}")
    return _Why(why, (again, fork, Advice("To start from an earlier checkpoint, list them.", f"holdfast checkpoints {run.run_id}")))


def _from(run: Run) -> str:
    return f" --from {run.checkpoint_head.rpartition('.')[2]}" if run.checkpoint_head else ""


def _explain_torn(run: Run, events: Sequence[ev.Event], blocked: Blocked) -> _Why:
    take = Advice("Resume it here." if blocked.nobody else "Resume it here, or leave it to a running worker that has the skill.", _resume(run))
    start = Advice("Or start a worker: it takes the run over.", f"holdfast worker {target_of(run.target)}")
    check = Advice("Check its stored data for problems.", f"holdfast check {run.run_id}")
    if run.interrupted_at is not None or run.recovery == "hold":
        return _Why(_tell_held(events), (Advice("Resume it.", _resume(run)), check))
    ended = "has died without recording why: it was killed, or it could not write (for example, the disk was full)" if blocked.dead else "has not renewed its lease"
    why = f"The process that executed the run {ended}. No recorded result is lost; a step that was running is run again."
    if _open_effects(events):
        why += " An effect whose outcome is not recorded is not repeated at once: its verify= function is asked first, or a person if it has none."
    if blocked.nobody:
        return _Why(f"{why} No worker is running.", (take, start, check))
    return _Why(why, (take, check))


def _explain_unknown(run: Run, events: Sequence[ev.Event], blocked: Blocked) -> _Why:
    return _Why("Its stored record is damaged.", (Advice("Check its stored data for problems.", f"holdfast check {run.run_id}"),))


_REASONS: dict[Condition, Callable[[Run, Sequence[ev.Event], Blocked], _Why]] = {
    Condition.QUEUED: _explain_queued,
    Condition.RUNNING: _running,
    Condition.REPLAYING: _running,
    Condition.AWAITING_PHASE_HANDOFF: _asking,
    Condition.AWAITING_GATE_DECISION: _asking,
    Condition.AWAITING_HUMAN_REVIEW: _asking,
    Condition.AWAITING_SIGNAL: _explain_signal,
    Condition.DONE: _explain_done,
    Condition.HALTED: _explain_halted,
    Condition.CANCELLED: _explain_cancelled,
    Condition.FAILED: _explain_broken,
    Condition.INTERRUPTED: _explain_torn,
    Condition.UNKNOWN: _explain_unknown,
}

__all__ = ["Advice", "Blocked", "Explanation", "explain"]
