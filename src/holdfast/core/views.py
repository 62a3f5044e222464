"""What people and clients are shown of a run: pure projections (§2.9, §2.10, §3.1, §13.1).

Everything here is derived from the folded run, its events and its lease, and can be thrown away. The shapes are
API. They can be written as JSON as they stand, and no stored type is revived to show them, so a run can be looked
at without its code (§14.3). Secrets are masked by whoever shows them, with the run's mask (§13.5).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core import canon, ids
from holdfast.core import events as ev
from holdfast.core.checkpoint import Boundary
from holdfast.core.effects import Effect
from holdfast.core.errors import ErrorValue, EventUnreadable
from holdfast.core.lanes import Blocked
from holdfast.core.lease import Alive, Lease, counter
from holdfast.core.offers import NoWorker
from holdfast.core.outcomes import OK, completes
from holdfast.core.run import UNATTENDED, Run
from holdfast.core.status import CLASSES, LIVE, Class, Condition, Status
from holdfast.core.waits import Decision, Wait, WaitKind, decidable

EVENT_VERSION = 1
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def iso(us: int | None) -> str | None:
    """Microseconds since 1970 as ISO-8601 in UTC, always with six decimals so that the texts sort."""
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
    """The finer word for where a run stands (§2.9). Total: it never raises.

    Args:
        run: None if nothing has been folded.
        lease: None if the run is looked at where there are no leases, as in an export.
        now: the store's clock, microseconds since 1970.
    """
    if run is None:
        return Condition.UNKNOWN
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
        return Condition.AWAITING_SIGNAL if run.waits or _held_back(run) else Condition.QUEUED
    return Condition.UNKNOWN


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
    return Condition.AWAITING_GATE_DECISION if kinds or _held_back(run) else Condition.QUEUED


def _held_back(run: Run) -> bool:
    """Whether all is answered and somebody said not to resume yet (§5.4)."""
    return bool(run.decisions) and not any(d.resume for d in run.decisions)


def condition_class(word: Condition) -> Class:
    """Live, paused for a person, ended, or in need of a look (§2.9)."""
    return CLASSES[word]


# -- the run ----------------------------------------------------------------------------------------


def legacy(run: Run) -> dict[str, Any]:
    """The old clients' shape (§2.10): canceled shows as failed here and only here. It gains nothing new."""
    if run.status is Status.COMPLETED:
        return {"status": "completed", "result": _shown(run.result), "error": None}
    if run.status in (Status.FAILED, Status.CANCELED):
        text = run.error.message if run.error is not None else run.stop_reason
        return {"status": "failed", "result": None, "error": text}
    return {"status": "running", "result": None, "error": None}


def record(run: Run, lease: Lease | None, now: int, blocked: Blocked | None = None, no_worker: NoWorker | None = None) -> dict[str, Any]:
    """The run record under the names of §3.1, all of them always present, and the lease beside it.

    ``result`` is a flow's value; a graph's result is its state, which the caller reads from the checkpoint.
    """
    word = condition(run, lease, now)
    return {
        "run_id": run.run_id,
        "thread_id": run.thread_id,
        "skill_id": run.skill_id,
        "skill_version": run.skill_version,
        "queue": run.queue,
        "not_before": iso(run.not_before),
        "blocked_by": run.blocked_by if blocked is None else blocked.run_id,
        "blocked_why": None if blocked is None else blocked.why,
        "no_worker_for": None if no_worker is None else {**msgspec.to_builtins(no_worker), "offered": list(no_worker.offered)},
        "wake_at": iso(run.wake_at),
        "status": str(run.status),
        "condition": word.value,
        "condition_class": condition_class(word).value,
        "created_at": iso(run.created_at),
        "started_at": iso(run.started_at),
        "finished_at": iso(run.finished_at),
        "current_step_id": run.current_step_id,
        "checkpoint_head": run.checkpoint_head,
        "resume_from_checkpoint_id": run.resume_from_checkpoint_id,
        "trace_id": run.trace_id,
        "tenant_id": run.tenant_id,
        "environment": run.environment,
        "versions": {
            "capabilities": run.versions.capabilities,
            "bindings": run.versions.bindings,
            "registry_ref": run.versions.registry_ref,
        },
        "policy_snapshot_id": run.policy_snapshot_id,
        "session_key": run.session_key,
        "lane": run.lane,
        "priority": run.priority,
        "job_id": run.job_id,
        "source_run_id": run.source_run_id,
        "source_checkpoint_id": run.source_checkpoint_id,
        "lineage_root": run.lineage_root,
        "parent_run_id": run.parent_run_id,
        "stop_reason": run.stop_reason,
        "settled": run.settled,
        "result": _shown(run.result),
        "error": None if run.error is None else error_view(run.error),
        "tags": list(run.tags),
        "waits": [wait_view(w, status=run.status) for w in run.waits],
        "decisions": [decision_view(d) for d in run.decisions],
        "active_handoff": run.active_handoff,
        "cancel_requested_at": iso(run.cancel_requested_at),
        "version": run.version,
        "fingerprint": run.fingerprint,
        "target": run.target,
        "schedule_id": run.schedule_id,
        "scheduled_at": iso(run.slot),
        "lease": lease_view(lease),
    }


def lease_view(lease: Lease | None) -> dict[str, Any]:
    """Who holds a run and until when; ``owner_alive`` is ``"true"``, ``"false"`` (proven) or ``"unknown"``."""
    if lease is None:
        return {"owner": None, "expires_at": None, "owner_alive": Alive.UNKNOWN.value, "fence": 0}
    return {
        "owner": lease.owner,
        "expires_at": iso(lease.expires_at),
        "owner_alive": lease.owner_alive.value,
        "fence": counter(lease.fence),
    }


def error_view(error: ErrorValue) -> dict[str, Any]:
    frames = [{"file": f.file, "line": f.line, "function": f.function, "source": f.source} for f in error.frames]
    return {"type": error.type, "message": error.message, "code": error.code, "hint": error.hint, "where": error.where, "frames": frames}


def wait_view(wait: Wait, effect: Effect | None = None, *, status: Status | None = None) -> dict[str, Any]:
    """A wait as a person reads it. One of kind ``effect`` shows the effect in question, if its record is at hand.

    ``decidable`` says whether it may be decided now, for an open wait of a run with this ``status``; as part of an event it is null.
    """
    return {
        "wait_id": wait.wait_id,
        "kind": str(wait.kind),
        "step": wait.step,
        "task": wait.task,
        "path": wait.path,
        "prompt": wait.prompt,
        "name": wait.name,
        "show": _shown(wait.show),
        "available_actions": list(wait.available_actions),
        "decidable": None if status is None else decidable(status, (wait,), wait.wait_id),
        "schema": _shown(wait.schema),
        "deadline": iso(wait.deadline),
        "on_timeout": str(wait.on_timeout),
        "default": _shown(wait.default),
        "on_deny": wait.on_deny,
        "who": list(wait.who),
        "requested_at": iso(wait.requested_at),
        "digest": wait.digest,
        "policy_snapshot_id": wait.policy_snapshot_id,
        "round": wait.round,
        "authoritative": wait.authoritative,
        "redo": wait.redo,
        "verdict": wait.verdict,
        "effect_id": wait.effect_id,
        "cascade": wait.cascade,
        "covers": wait.covers,
        "key": None if effect is None else effect.key,
        "request_hash": None if effect is None else effect.request_hash,
        "attempted_at": None if effect is None else iso(effect.attempted_at),
        "settled_at": None if effect is None else iso(effect.settled_at),
    }


def decision_view(decision: Decision) -> dict[str, Any]:
    return {
        "wait_id": decision.wait_id,
        "action": decision.action,
        "actor": decision.actor,
        "feedback": decision.feedback,
        "note": decision.note,
        "payload": _shown(decision.payload),
        "decided_at": iso(decision.decided_at),
        "resume": decision.resume,
        "key": decision.key,
        "policy": decision.policy,
        "forced": decision.forced,
    }


def _shown(raw: bytes | None) -> Any:
    """A stored value for showing. Damage in one value must not hide the rest of the record."""
    if raw is None:
        return None
    try:
        return canon.reveal(raw)
    except EventUnreadable as e:
        return {"unreadable": e.message}


# -- events -----------------------------------------------------------------------------------------

_TIMES = frozenset({"due", "not_before"})


def envelope(run: Run, event: ev.Event) -> dict[str, Any]:
    """An event as the world sees it (§13.1). What follows from the run or the number is derived here, on read."""
    return {
        "event_id": ids.event_id(run.run_id, event.seq),
        "event_version": EVENT_VERSION,
        "event_type": event.type,
        "occurred_at": iso(event.at),
        "run_id": run.run_id,
        "seq": event.seq,
        "fence": counter(event.fence),
        "trace_id": run.trace_id,
        "tenant_id": run.tenant_id,
        "actor": event.actor,
        "payload": payload(run.run_id, event),
    }


def payload(run_id: str, event: ev.Event) -> dict[str, Any]:
    """A fact's fields, and the stable ids that they imply: step_id, attempt_id, checkpoint_id (§13.3)."""
    fact = event.fact
    if isinstance(fact, ev.Unknown):
        return {"tag": fact.tag, "fields": canon.plain(fact.fields)}
    shown = {name: _field(name, getattr(fact, name)) for name in fact.__struct_fields__}
    if "step" in shown and "task" in shown:
        shown["step_id"] = ids.step_id(run_id, shown["step"], shown["task"], shown.get("path", ""))
        if "attempt" in shown:
            shown["attempt_id"] = ids.attempt_id(shown["step_id"], shown["attempt"])
    if "hash" in shown:
        shown["checkpoint_id"] = ids.checkpoint_id(run_id, event.seq) if shown["hash"] else None
    return shown


def _field(name: str, value: Any) -> Any:
    if isinstance(value, bytes) and name != "hash":
        return _shown(value)  # all other bytes in a fact are an encoded value
    if isinstance(value, ErrorValue):
        return error_view(value)
    if isinstance(value, Wait):
        return wait_view(value)
    if isinstance(value, Decision):
        return decision_view(value)
    return iso(value) if name in _TIMES else canon.plain(value)


class Moment(msgspec.Struct, frozen=True):
    """One line of a run's story. ``duration`` is in seconds: of a step, of a wait until its answer, of the whole run."""

    at: str | None
    what: str
    step: str = ""
    duration: float | None = None
    detail: str = ""


def timeline(events: Iterable[ev.Event]) -> list[Moment]:
    """The story of a run for people. A step that ended is one line with its duration; one under way has its start."""
    began: dict[tuple[int, str] | str, int] = {}
    starts: dict[tuple[int, str], int] = {}
    story: list[Moment | None] = []
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
        story.append(Moment(iso(event.at), event.type, _where(fact), duration, _detail(event)))
    return [m for m in story if m is not None]


def _where(fact: ev.Fact | ev.Unknown) -> str:
    if isinstance(fact, ev.WaitRequested):
        fact = fact.wait  # type: ignore[assignment]
    task = str(getattr(fact, "task", ""))
    path = getattr(fact, "path", "")
    return f"{task}.{path}" if path else task


def _detail(event: ev.Event) -> str:
    """What is worth saying of a fact in one line."""
    match event.fact:
        case ev.Unknown(tag=tag):
            return f"a kind this release does not know ({tag})"
        case ev.RunSubmitted() as f:
            return f"{f.skill_id} {f.skill_version}"
        case ev.RunQueued() as f:
            return f"behind {f.blocked_by}" if f.blocked_by else f.reason
        case ev.RunResumed() as f:
            return f.cause + (", forced" if f.forced else "")
        case ev.RunRecovered() as f:
            return f"from {f.previous_owner}: {f.cause}"
        case ev.RunFailed() as f:
            return f"{f.stop_reason}: {f.error.message}"
        case ev.RunCanceled() as f:
            return f.stop_reason
        case ev.RunClaimed() | ev.RunHandedBack() | ev.AttemptTakenOver() as f:
            return f.owner
        case ev.RunForked() | ev.RunReplayed() as f:
            return f"from {f.source_checkpoint_id or f.source_run_id}"
        case ev.StepEnded() as f:
            again = f"attempt {f.attempt}" if f.attempt > 1 else ""
            return ", ".join(x for x in ("" if f.outcome == "ok" else f.outcome, again) if x)
        case ev.StepFailed() as f:
            return f"{f.error.type}: {f.error.message}"
        case ev.StepRetryScheduled() as f:
            return f"again at {(iso(f.due) or '')[11:19]}Z: attempt {f.attempt} failed ({f.error.message})"
        case ev.WaitRequested() as f:
            return f"{f.wait.kind}: {f.wait.prompt or f.wait.name}"
        case ev.WaitDecided() | ev.WaitTimedOut() as f:
            return f"{f.decision.action} by {f.decision.actor}" + (", forced" if f.decision.forced else "") + (f": {f.decision.feedback}" if f.decision.feedback else "")
        case ev.WaitDenied() as f:
            return f"{f.action} by {f.actor} refused: {f.reason}"
        case ev.EffectFact() as f:
            return f.detail or f.effect_id
        case ev.IntentFact() as f:
            return f"{f.intent_type} {f.detail}".strip()
        case ev.SignalReceived() as f:
            return f.name
        case ev.NoteAdded() as f:
            return f.text
    return str(getattr(event.fact, "cause", "") or getattr(event.fact, "reason", ""))


# -- checkpoints ------------------------------------------------------------------------------------

STEPPED = (Boundary.STEP_COMPLETED,)
_BOUNDARIES: dict[type, Boundary] = {
    ev.RunStarted: Boundary.RUN_STARTED,
    ev.RunWaitingForHuman: Boundary.WAITING_FOR_HUMAN,
    ev.RunWaitingForSignal: Boundary.WAITING_FOR_SIGNAL,
    ev.RunCompleted: Boundary.RUN_COMPLETED,
    ev.RunFailed: Boundary.RUN_FAILED,
    ev.RunCanceled: Boundary.RUN_CANCELED,
}


def boundaries(events: Iterable[ev.Event], *, advanced: bool) -> tuple[Boundary, ...]:
    """What the checkpoint saved with one commit's facts stands for, each once (§4.5, §4.10).

    ``advanced``: the checkpoint is a barrier's, one super-step further than its parent. Its tasks may have ended in
    earlier commits; a task that ends in this one must have completed, by the one predicate (§4.11).
    """
    found = []
    for event in events:
        fact = event.fact
        if isinstance(fact, ev.StepEnded):
            if advanced and not fact.path and fact.outcome != OK:
                advanced = completes(fact.outcome)
        elif (boundary := _BOUNDARIES.get(type(fact))) is not None and boundary not in found:
            found.append(boundary)
    if not advanced:
        return tuple(found)
    return (Boundary.STEP_COMPLETED, *found) if found else STEPPED
