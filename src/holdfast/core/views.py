"""The condition of a run and its timeline (§2.9): pure projections of the folded run, its events and its lease."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from types import MappingProxyType

import msgspec

from holdfast.core import events as ev
from holdfast.core.envelopes import legible
from holdfast.core.intents import Intent, IntentState
from holdfast.core.lease import Lease
from holdfast.core.run import UNATTENDED, Run
from holdfast.core.status import CLASSES, LIVE, Class, Condition, Status
from holdfast.core.waits import WaitKind

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Place = tuple[int, str, str]
"""A step: its super-step, its task, and the path of a call inside it."""

NO_NAMES: Mapping[Place, str] = MappingProxyType({})


def iso(us: int | None) -> str | None:
    """Returns microseconds since 1970 as ISO-8601 in UTC, always with six decimals, so that the texts sort."""
    if us is None:
        return None
    try:
        return (_EPOCH + dt.timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return f"{us}us"  # a damaged row may hold any number; it is shown, not hidden


# -- condition --------------------------------------------------------------------------------------

_AT_ONCE: dict[Status, Condition] = {
    Status.PENDING: Condition.QUEUED,
    Status.COMPLETED: Condition.DONE,
    Status.FAILED: Condition.FAILED,
}


def condition(run: Run | None, lease: Lease | None, now: int) -> Condition:
    """Returns the condition of a run (§2.9). It never raises.

    Args:
        run: None if nothing has been folded.
        lease: None if the run is shown without leases, as in an export.
        now: the store's clock, microseconds since 1970.
    """
    if run is None:
        return Condition.UNKNOWN
    found = _of_status(run, lease, now)
    held = run.interrupted_at is not None and (lease is None or lease.due is None)  # an answer that a person gave since then has made it due
    return Condition.INTERRUPTED if found is Condition.QUEUED and held else found


def _of_status(run: Run, lease: Lease | None, now: int) -> Condition:
    status = run.status
    if status in _AT_ONCE:
        return _AT_ONCE[status]
    if status in LIVE:
        return _moving(run, lease, now)
    if status is Status.CANCELED:
        return Condition.HALTED if run.settled or run.stop_reason == UNATTENDED else Condition.CANCELLED
    if status is Status.WAITING_FOR_HUMAN:
        return _asking(run)
    if status is Status.WAITING_FOR_SIGNAL:
        return Condition.AWAITING_SIGNAL if run.waits or _is_held_back(run) else Condition.QUEUED
    return Condition.UNKNOWN


_MOVING = tuple(sorted(LIVE))
STATUSES: Mapping[Condition, tuple[Status, ...]] = {
    Condition.QUEUED: (Status.PENDING, *_MOVING, Status.WAITING_FOR_HUMAN, Status.WAITING_FOR_SIGNAL),
    Condition.RUNNING: _MOVING,
    Condition.REPLAYING: _MOVING,
    Condition.INTERRUPTED: (Status.PENDING, *_MOVING, Status.WAITING_FOR_HUMAN, Status.WAITING_FOR_SIGNAL),
    Condition.AWAITING_PHASE_HANDOFF: (Status.WAITING_FOR_HUMAN,),
    Condition.AWAITING_GATE_DECISION: (Status.WAITING_FOR_HUMAN,),
    Condition.AWAITING_HUMAN_REVIEW: (Status.WAITING_FOR_HUMAN,),
    Condition.AWAITING_SIGNAL: (Status.WAITING_FOR_SIGNAL,),
    Condition.HALTED: (Status.CANCELED,),
    Condition.CANCELLED: (Status.CANCELED,),
    Condition.DONE: (Status.COMPLETED,),
    Condition.FAILED: (Status.FAILED,),
    Condition.UNKNOWN: tuple(Status),
}
"""The statuses that a run of a condition can have, so that listing runs of a condition need not read all runs."""


def _moving(run: Run, lease: Lease | None, now: int) -> Condition:
    if run.interrupted_at is not None:
        return Condition.INTERRUPTED
    if lease is not None and lease.owner is not None and not lease.live(now):
        return Condition.INTERRUPTED
    if run.status is Status.REPLAYING:
        return Condition.REPLAYING
    return Condition.RUNNING if lease is not None and lease.owner is not None else Condition.QUEUED


def _asking(run: Run) -> Condition:
    kinds = {w.kind for w in run.waits if w.human}
    if WaitKind.REVIEW in kinds:
        return Condition.AWAITING_HUMAN_REVIEW
    if WaitKind.HANDOFF in kinds:
        return Condition.AWAITING_PHASE_HANDOFF
    return Condition.AWAITING_GATE_DECISION if kinds or _is_held_back(run) else Condition.QUEUED


def _is_held_back(run: Run) -> bool:
    """Whether the run is answered, and every answer said not to resume yet (§5.4)."""
    return bool(run.decisions) and not any(d.resume for d in run.decisions)


def condition_class(word: Condition, run: Run | None = None) -> Class:
    """Returns the class of a condition (§2.9). A halt that is not settled, because the run was unattended, counts as terminal."""
    if word is Condition.HALTED and run is not None and not run.settled:
        return Class.TERMINAL
    return CLASSES[word]


# -- the timeline ------------------------------------------------------------------------------------


class Moment(msgspec.Struct, frozen=True):
    """One line of a run's timeline. ``duration`` is in seconds: of a step, of a wait until its answer, or of the whole run."""

    at: str | None
    what: str
    step: str = ""
    duration: float | None = None
    detail: str = ""


def timeline(events: Iterable[ev.Event], intents: Iterable[Intent] = (), names: Mapping[Place, str] = NO_NAMES) -> list[Moment]:
    """Returns the timeline of a run for people. A step that ended is one line with its duration; a step under way is shown with its start. Deliveries of
    its ``intents`` are not in the log, and are merged in by their times (§9.3). ``names``: names of steps, by their places."""
    began: dict[tuple[int, str] | str, int] = {}
    starts: dict[tuple[int, str], int] = {}
    story: list[Moment | None] = []
    times: list[int] = []
    for event in events:
        fact = event.fact
        if isinstance(fact, ev.CheckpointSaved):
            continue
        since: int | None = None
        if isinstance(fact, ev.StepStarted):
            began[fact.step, fact.task] = event.at
            starts[fact.step, fact.task] = len(story)
        elif isinstance(fact, ev.StepEnded | ev.StepFailed) and not fact.path:
            since = began.pop((fact.step, fact.task), None)
            if (at := starts.pop((fact.step, fact.task), None)) is not None:
                story[at] = None
        elif isinstance(fact, ev.WaitRequested):
            began[fact.wait.wait_id] = event.at
        elif isinstance(fact, ev.WaitDecided | ev.WaitTimedOut):
            since = began.pop(fact.decision.wait_id, None)
        elif isinstance(fact, ev.RunStarted):
            began[""] = event.at
        elif isinstance(fact, ev.RunCompleted | ev.RunFailed | ev.RunCanceled):
            since = began.get("")
        duration = None if since is None else (event.at - since) / 1_000_000
        story.append(Moment(iso(event.at), event.type, _where(fact), duration, _detail(event, names)))
        times.append(event.at)
    beside = sorted((told for intent in intents for told in _deliveries(intent)), key=lambda told: told[0])
    log = [(at, m) for at, m in zip(times, story, strict=True) if m is not None]
    return [m for _, m in merge(log, beside, key=lambda told: told[0])]


def _deliveries(intent: Intent) -> Iterator[tuple[int, Moment]]:
    """Yields each attempt at sending an intent, at the time of its end, and the rulings of people on it."""
    step = intent.intent_id.partition(".")[2].rpartition("!")[0].partition(".")[2]
    to = f"{intent.type} to {intent.target}" if intent.target else intent.type
    for t in intent.tries:
        at = t.began_at if t.ended_at is None else t.ended_at
        took = None if t.ended_at is None else (t.ended_at - t.began_at) / 1_000_000
        said = "" if t.error is None else legible(t.error.message)
        told = ", ".join(x for x in (to, f"attempt {t.number}" if t.number > 1 else "") if x)
        yield at, Moment(iso(at), f"intent.{t.outcome or IntentState.SENDING}", step, took, f"{told}: {said}" if said else told)
    for r in intent.rulings:
        why = f": {legible(r.reason)}" if r.reason else ""
        yield r.at, Moment(iso(r.at), f"intent.{r.action}", step, None, f"{to}, by {r.actor}{', forced' if r.forced else ''}{why}")


def _where(fact: ev.Fact | ev.Unknown) -> str:
    if isinstance(fact, ev.WaitRequested):
        fact = fact.wait  # type: ignore[assignment]
    task = str(getattr(fact, "task", ""))
    path = getattr(fact, "path", "")
    return f"{task}.{path}" if path else task


def name_call(fact: ev.Fact | ev.Unknown, names: Mapping[Place, str] = NO_NAMES) -> str:
    """Returns what distinguishes the step of a fact from others: a call's name and its item, or the payload of a sent task."""
    match fact:
        case ev.StepEnded() | ev.StepFailed() | ev.StepRetryScheduled() | ev.AttemptStarted():
            return names.get((fact.step, fact.task, fact.path), "") if fact.call is None else str(fact.call)
    return ""


def _detail(event: ev.Event, names: Mapping[Place, str]) -> str:
    """Returns the details of a fact in one line."""
    told = name_call(event.fact, names)
    match event.fact:
        case ev.Unknown(tag=tag):
            return f"a kind this release does not know ({tag})"
        case ev.RunSubmitted() as f:
            return f"{f.skill_id} {f.skill_version}"
        case ev.RunQueued() as f:
            return f"after {f.blocked_by}" if f.blocked_by else f.reason
        case ev.RunResumed() as f:
            return f.cause + (", forced" if f.forced else "")
        case ev.RunRecovered() as f:
            return f"from {f.previous_owner}: {f.cause}"
        case ev.RunFailed() as f:
            return f"{f.stop_reason}: {legible(f.error.message)}"
        case ev.RunCanceled() as f:
            return f.stop_reason
        case ev.RunClaimed() | ev.RunHandedBack() | ev.AttemptTakenOver() as f:
            return f.owner
        case ev.RunForked() | ev.RunReplayed() as f:
            return f"from {f.source_checkpoint_id or f.source_run_id}"
        case ev.StepEnded() as f:
            again = f"attempt {f.attempt}" if f.attempt > 1 else ""
            return ", ".join(x for x in (told, "" if f.outcome == "ok" else f.outcome, again) if x)
        case ev.StepFailed() as f:
            return f"{told and f'{told}: '}{f.error.type.rpartition('.')[2]}: {legible(f.error.message)}"
        case ev.StepRetryScheduled() as f:
            return f"{told and f'{told}: '}again at {(iso(f.due) or '')[11:19]}Z: attempt {f.attempt} failed ({legible(f.error.message)})"
        case ev.WaitRequested() as f:
            return f"{f.wait.kind}: {legible(f.wait.prompt) or f.wait.name}"
        case ev.WaitTimedOut():
            return "nobody answered by the deadline"
        case ev.WaitDecided() as f:
            return f"{f.decision.action} by {f.decision.actor}" + (", forced" if f.decision.forced else "") + (f": {legible(f.decision.feedback)}" if f.decision.feedback else "")
        case ev.WaitDenied() as f:
            return f"{f.action} by {f.actor} refused: {legible(f.reason)}"
        case ev.EffectFact() as f:
            return legible(f.detail) or f.effect_id
        case ev.IntentFact() as f:
            return f"{f.intent_type} {legible(f.detail)}".strip()
        case ev.SignalReceived() as f:
            return f.name
        case ev.NoteAdded() as f:
            return legible(f.text)
        case ev.PolicyEvaluated() as f:
            return f"{f.verdict}: {legible(f.reason)}" if f.reason else f.verdict
    return legible(str(getattr(event.fact, "cause", "") or getattr(event.fact, "reason", "")))
