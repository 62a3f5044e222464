"""Views: typed values that show a run, its waits, events, effects, steps and the rest, and one encoder (§2.10, §3.1, §13.1).

Every interface (the command line's ``--json`` and its pages, HTTP, HTML, streams) is made from these values. They are derived, can be
discarded and contain no stored type, so that a run can be shown without its code (§14.3). ``plain`` is the only way from a view to
JSON, and masks secrets, once (§13.5). Names and shapes are API; values of the program are shown in their JSON form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.core import canon, ids
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core.called import Called
from holdfast.core.commit import LedgerRow
from holdfast.core.consistency import Problem
from holdfast.core.drawing import mermaid
from holdfast.core.effects import Effect
from holdfast.core.envelopes import legible
from holdfast.core.errors import ErrorValue, EventUnreadable, HoldfastError
from holdfast.core.graph import START, Node, Program
from holdfast.core.intents import Intent
from holdfast.core.lanes import Blocked
from holdfast.core.lease import Alive, Lease, counter
from holdfast.core.masks import NOTHING, Mask
from holdfast.core.offers import NoWorker, Offer
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.status import Status
from holdfast.core.views import condition, condition_class, iso
from holdfast.core.waits import Decision, Wait, decidable

EVENT_VERSION = 1
JSON = Any


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all views: every field is always present."""


V = TypeVar("V", bound=Shape)


def plain(view: Shape, mask: Mask = NOTHING) -> dict[str, Any]:
    """Returns a view in its JSON form: the one encoder of all interfaces."""
    return dict(mask.record(msgspec.to_builtins(view)))


def hide(view: V, mask: Mask) -> V:
    """Returns the same view with everything hidden that the mask hides."""
    return msgspec.convert(mask.record(msgspec.to_builtins(view)), type(view)) if mask.names else view


def show(raw: bytes | None) -> JSON:
    """Returns a stored value in its JSON form. A damaged value is shown as ``unreadable``, so that it does not hide the rest of the record."""
    if raw is None:
        return None
    try:
        return canon.reveal(raw)
    except EventUnreadable as e:
        return {"unreadable": e.message}


def value(decoded: Any) -> JSON:
    """Returns a decoded value in its JSON form: registered types show their fields."""
    try:
        return canon.reveal(canon.pack(decoded, "value")[1])
    except HoldfastError as e:
        return {"unreadable": e.message}


def values(decoded: Mapping[str, Any]) -> dict[str, JSON]:
    """Returns the values of channels in their JSON form."""
    return {name: value(given) for name, given in decoded.items()}


# -- a run and its parts ----------------------------------------------------------------------------


class FrameView(Shape, frozen=True, kw_only=True):
    """One call of a traceback."""

    file: str
    line: int
    function: str
    source: str


class ErrorView(Shape, frozen=True, kw_only=True):
    """A failure as data: what went wrong, what to do, and the calls of the user's own code that led to it."""

    type: str
    message: str
    code: str
    hint: str
    where: str
    frames: list[FrameView]


class LeaseView(Shape, frozen=True, kw_only=True):
    """Who holds a run and until when; ``owner_alive`` is ``"true"``, ``"false"`` (proven) or ``"unknown"``."""

    owner: str | None
    expires_at: str | None
    owner_alive: str
    fence: int


class WaitView(Shape, frozen=True, kw_only=True):
    """A wait, for people to read. A wait of kind ``effect`` shows the key, the arguments' digest and the times of the effect in question.

    ``decidable`` says whether it may be decided now; in an event or an old checkpoint it is null. ``editable`` says whether an
    approval may carry a value of the type that ``schema`` describes: edited arguments, or the amount by which a budget is extended.
    """

    run_id: str
    wait_id: str
    kind: str
    step: int
    task: str
    path: str
    prompt: str
    name: str
    show: JSON
    available_actions: list[str]
    decidable: bool | None
    schema: JSON
    deadline: str | None
    on_timeout: str
    default: JSON
    on_deny: str
    who: list[str]
    requested_at: str | None
    digest: str
    policy_snapshot_id: str | None
    round: int
    authoritative: bool
    redo: str
    verdict: str
    effect_id: str | None
    cascade: bool
    covers: str
    reads: JSON
    editable: bool
    key: str | None
    request_hash: str | None
    attempted_at: str | None
    settled_at: str | None


class DecisionView(Shape, frozen=True, kw_only=True):
    """What was decided about a wait, by whom."""

    wait_id: str
    action: str
    actor: str
    feedback: str | None
    note: str | None
    payload: JSON
    decided_at: str | None
    resume: bool
    key: str
    policy: str | None
    forced: bool
    came: int | None
    via: str | None


class VersionsView(Shape, frozen=True, kw_only=True):
    """The versions with which the run was created: digests of the skill's capabilities and of its tools, and the registry that it came from."""

    capabilities: str | None
    bindings: str | None
    registry_ref: str | None


class NoWorkerView(Shape, frozen=True, kw_only=True):
    """The shape that a due run needs, and the shapes of its skill that living workers offer (§10.11)."""

    skill_id: str
    version: str
    wanted: str
    offered: list[str]
    workspace: str | None


class RunView(Shape, frozen=True, kw_only=True):
    """The run record under the names of §3.1, and the lease beside it. ``result`` is a flow's value, or a graph's state once it
    completed; ``origin`` is ``fork``, ``replay`` or empty. ``values`` are null if they were not read, or cannot be read."""

    run_id: str
    thread_id: str
    skill_id: str
    skill_version: str
    queue: str
    not_before: str | None
    blocked_by: str | None
    wake_at: str | None
    status: str
    condition: str
    condition_class: str
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    current_step_id: str | None
    checkpoint_head: str | None
    resume_from_checkpoint_id: str | None
    trace_id: str | None
    tenant_id: str
    environment: str
    versions: VersionsView
    policy_snapshot_id: str | None
    session_key: str
    lane: str
    priority: int
    job_id: str | None
    source_run_id: str | None
    source_checkpoint_id: str | None
    lineage_root: str
    parent_run_id: str | None
    stop_reason: str | None
    settled: bool
    result: JSON
    error: ErrorView | None
    tags: list[str]
    waits: list[WaitView]
    decisions: list[DecisionView]
    active_handoff: str | None
    cancel_requested_at: str | None
    version: int
    fingerprint: str
    target: str | None
    schedule_id: str | None
    scheduled_at: str | None
    origin: str
    blocked_why: str | None
    no_worker_for: NoWorkerView | None = None
    lease: LeaseView
    values: dict[str, JSON] | None = None


class ProblemView(Shape, frozen=True, kw_only=True):
    """A named inconsistency with a stable code (§12.1)."""

    code: str
    severity: str
    message: str
    repair_hint: str
    run_id: str | None


class RunDetail(RunView, frozen=True, kw_only=True):
    """A run with its values, its open waits and its problems: what every command about one run prints."""

    problems: list[ProblemView]
    deduplicated: bool = False


class LegacyView(Shape, frozen=True, kw_only=True):
    """The shape for old clients (§2.10). It gets no new fields and is removed with 1.0."""

    status: str
    result: JSON
    error: str | None


def run(
    of: Run, lease: Lease | None, now: int, *, channels: Mapping[str, JSON] | None = None, effects: Mapping[str, Effect] | None = None,
    blocked: Blocked | None = None, no_worker: NoWorker | None = None,
) -> RunView:
    """Returns the view of a run.

    Args:
        channels: its values in their JSON form, if they were read; they are a completed graph's result.
        effects: effect records by id, for the waits that ask about an effect.
        blocked: what blocks it now.
        no_worker: why no living worker can take it, if it is due and none can.
    """
    return RunView(**_record(of, lease, now, channels, effects or {}, blocked), no_worker_for=None if no_worker is None else no_worker_of(no_worker))


def no_worker_of(of: NoWorker) -> NoWorkerView:
    return NoWorkerView(skill_id=of.skill_id, version=of.version, wanted=of.wanted, offered=list(of.offered), workspace=of.workspace)


def detail(of: RunView, problems: list[Problem], *, deduplicated: bool = False) -> RunDetail:
    """Returns the view of a run with its problems."""
    fields = {name: getattr(of, name) for name in of.__struct_fields__}
    return RunDetail(**fields, problems=[problem(p) for p in problems], deduplicated=deduplicated)


def _record(of: Run, lease: Lease | None, now: int, channels: Mapping[str, JSON] | None, effects: Mapping[str, Effect], blocked: Blocked | None) -> dict[str, Any]:
    word = condition(of, lease, now)
    result = show(of.result)
    if of.result is None and of.status is Status.COMPLETED and channels is not None:
        result = dict(channels)
    return {
        "run_id": of.run_id,
        "thread_id": of.thread_id,
        "skill_id": of.skill_id,
        "skill_version": of.skill_version,
        "queue": of.queue,
        "not_before": iso(of.not_before),
        "blocked_by": (blocked.run_id or None) if blocked is not None else of.blocked_by,
        "wake_at": iso(of.wake_at),
        "status": str(of.status),
        "condition": word.value,
        "condition_class": condition_class(word, of).value,
        "created_at": iso(of.created_at),
        "started_at": iso(of.started_at),
        "finished_at": iso(of.finished_at),
        "current_step_id": of.current_step_id,
        "checkpoint_head": of.checkpoint_head,
        "resume_from_checkpoint_id": of.resume_from_checkpoint_id,
        "trace_id": of.trace_id,
        "tenant_id": of.tenant_id,
        "environment": of.environment,
        "versions": VersionsView(
            capabilities=of.versions.capabilities, bindings=of.versions.bindings, registry_ref=of.versions.registry_ref
        ),
        "policy_snapshot_id": of.policy_snapshot_id,
        "session_key": of.session_key,
        "lane": of.lane,
        "priority": of.priority,
        "job_id": of.job_id,
        "source_run_id": of.source_run_id,
        "source_checkpoint_id": of.source_checkpoint_id,
        "lineage_root": of.lineage_root,
        "parent_run_id": of.parent_run_id,
        "stop_reason": of.stop_reason,
        "settled": of.settled,
        "result": result,
        "error": error(of.error),
        "tags": list(of.tags),
        "waits": [wait(w, effects.get(w.effect_id or ""), status=of.status) for w in of.waits],
        "decisions": [decision(d) for d in of.decisions],
        "active_handoff": of.active_handoff,
        "cancel_requested_at": iso(of.cancel_requested_at),
        "version": of.version,
        "fingerprint": of.fingerprint,
        "target": of.target,
        "schedule_id": of.schedule_id,
        "scheduled_at": iso(of.slot),
        "origin": of.origin,
        "blocked_why": None if blocked is None else blocked.why,
        "lease": lease_of(lease),
        "values": None if channels is None else dict(channels),
    }


def legacy(of: RunView) -> LegacyView:
    """Returns the shape for old clients (§2.10): only in this shape is a canceled run shown as failed."""
    if of.status == Status.COMPLETED:
        return LegacyView(status="completed", result=of.result, error=None)
    if of.status in (Status.FAILED, Status.CANCELED):
        return LegacyView(status="failed", result=None, error=legible(of.error.message) if of.error is not None else of.stop_reason)
    return LegacyView(status="running", result=None, error=None)


def lease_of(lease: Lease | None) -> LeaseView:
    if lease is None:
        return LeaseView(owner=None, expires_at=None, owner_alive=Alive.UNKNOWN.value, fence=0)
    return LeaseView(owner=lease.owner, expires_at=iso(lease.expires_at), owner_alive=lease.owner_alive.value, fence=counter(lease.fence))


def error(of: ErrorValue | None) -> ErrorView | None:
    if of is None:
        return None
    frames = [FrameView(file=f.file, line=f.line, function=f.function, source=legible(f.source)) for f in of.frames]
    return ErrorView(type=of.type, message=legible(of.message), code=of.code, hint=legible(of.hint), where=of.where, frames=frames)


def wait(of: Wait, effect: Effect | None = None, *, status: Status | None = None) -> WaitView:
    """Returns the view of a wait. ``effect`` is the record of the effect that it asks about, if available; ``status`` is that of its run, if the wait is open."""
    return WaitView(
        run_id=of.wait_id.partition(".")[0],
        wait_id=of.wait_id,
        kind=str(of.kind),
        step=of.step,
        task=of.task,
        path=of.path,
        prompt=legible(of.prompt),
        name=of.name,
        show=show(of.show),
        available_actions=list(of.available_actions),
        decidable=None if status is None else decidable(status, (of,), of.wait_id),
        schema=show(of.schema),
        deadline=iso(of.deadline),
        on_timeout=str(of.on_timeout),
        default=show(of.default),
        on_deny=of.on_deny,
        who=list(of.who),
        requested_at=iso(of.requested_at),
        digest=of.digest,
        policy_snapshot_id=of.policy_snapshot_id,
        round=of.round,
        authoritative=of.authoritative,
        redo=of.redo,
        verdict=of.verdict,
        effect_id=of.effect_id,
        cascade=of.cascade,
        covers=of.covers,
        reads=show(of.reads),
        editable=of.editable,
        key=None if effect is None else effect.key,
        request_hash=None if effect is None else effect.request_hash,
        attempted_at=None if effect is None else iso(effect.attempted_at),
        settled_at=None if effect is None else iso(effect.settled_at),
    )


def decision(of: Decision) -> DecisionView:
    return DecisionView(
        wait_id=of.wait_id,
        action=of.action,
        actor=of.actor,
        feedback=legible(of.feedback),
        note=legible(of.note),
        payload=show(of.payload),
        decided_at=iso(of.decided_at),
        resume=of.resume,
        key=of.key,
        policy=of.policy,
        forced=of.forced,
        came=of.came or None,
        via=of.via or None,
    )


def problem(of: Problem) -> ProblemView:
    return ProblemView(code=of.code, severity=str(of.severity), message=of.message, repair_hint=of.repair_hint, run_id=of.run_id)


# -- events -----------------------------------------------------------------------------------------

_TIMES = frozenset({"due", "not_before"})
_SELDOM = frozenset({"call", "returned"})
"""Fields that are shown only if they are not None."""


class EventView(Shape, frozen=True, kw_only=True):
    """An event in its envelope (§13.1)."""

    event_id: str
    event_version: int
    event_type: str
    occurred_at: str | None
    run_id: str
    seq: int
    fence: int
    trace_id: str | None
    tenant_id: str
    actor: str
    payload: dict[str, JSON]


def event(of: Run, happened: ev.Event) -> EventView:
    """Returns the public view of an event. Values that follow from the run or the event's number are derived here, on read."""
    return EventView(
        event_id=ids.event_id(of.run_id, happened.seq),
        event_version=EVENT_VERSION,
        event_type=happened.type,
        occurred_at=iso(happened.at),
        run_id=of.run_id,
        seq=happened.seq,
        fence=counter(happened.fence),
        trace_id=of.trace_id,
        tenant_id=of.tenant_id,
        actor=happened.actor,
        payload=payload(of.run_id, happened),
    )


def payload(run_id: str, happened: ev.Event) -> dict[str, JSON]:
    """Returns a fact's fields, and the stable ids that follow from them: step_id, attempt_id, checkpoint_id (§13.3)."""
    fact = happened.fact
    if isinstance(fact, ev.Unknown):
        return {"tag": fact.tag, "fields": canon.plain(fact.fields)}
    told = {name: _field(name, getattr(fact, name)) for name in fact.__struct_fields__ if name not in _SELDOM or getattr(fact, name) is not None}
    if "step" in told and "task" in told:
        told["step_id"] = ids.step_id(run_id, told["step"], told["task"], told.get("path", ""))
        if "attempt" in told:
            told["attempt_id"] = ids.attempt_id(told["step_id"], told["attempt"])
    if "hash" in told:
        told["checkpoint_id"] = ids.checkpoint_id(run_id, happened.seq) if told["hash"] else None
    return told


def _field(name: str, given: Any) -> JSON:
    if isinstance(given, str):
        return legible(given)
    if isinstance(given, bytes) and name != "hash":
        return show(given)  # all other bytes in a fact are an encoded value
    if isinstance(given, ErrorValue):
        return msgspec.to_builtins(error(given))
    if isinstance(given, Called):
        return str(given)
    if isinstance(given, ev.SignalReceived):
        return {of: _field(of, getattr(given, of)) for of in given.__struct_fields__}
    if isinstance(given, Wait):
        return msgspec.to_builtins(wait(given))
    if isinstance(given, Decision):
        return msgspec.to_builtins(decision(given))
    return iso(given) if name in _TIMES else canon.plain(given)


# -- checkpoints ------------------------------------------------------------------------------------


class CheckpointView(Shape, frozen=True, kw_only=True):
    """A whole checkpoint (§4.5)."""

    checkpoint_id: str
    run_id: str
    seq: int
    step: int
    parent_id: str | None
    boundaries: list[str]
    values: dict[str, JSON]
    channel_versions: dict[str, int]
    versions_seen: dict[str, dict[str, int]]
    pending_tasks: list[str]
    pending_writes: dict[str, JSON]
    metadata: dict[str, JSON]
    hash: str
    format: int
    waits: list[WaitView]
    created_at: str | None


def checkpoint(of: cps.Checkpoint, results: Mapping[str, cps.TaskResult]) -> CheckpointView:
    """Returns the view of a checkpoint, with the results of tasks that no barrier has taken yet."""
    return CheckpointView(
        checkpoint_id=of.checkpoint_id,
        run_id=of.run_id,
        seq=of.seq,
        step=of.step,
        parent_id=of.parent,
        boundaries=[b.value for b in of.boundaries],
        values=values(of.values),
        channel_versions=dict(of.versions),
        versions_seen={node: dict(seen) for node, seen in of.seen.items()},
        pending_tasks=[t.key for t in of.pending],
        pending_writes={k: value(cps.decode_writes(r)) for k, r in results.items() if k != cps.INPUT_TASK},
        metadata={"source": of.source.value, "step": of.step, "writes": value(of.writes)},
        hash=of.hash.hex(),
        format=of.format,
        waits=[wait(w) for w in of.waits],
        created_at=iso(of.created_at),
    )


class DiffView(Shape, frozen=True, kw_only=True):
    """What changed in a run's state from checkpoint ``a`` to checkpoint ``b``; for a changed channel its values ``from`` and ``to``."""

    run_id: str
    a: str
    b: str
    added: dict[str, JSON]
    removed: dict[str, JSON]
    changed: dict[str, dict[str, JSON]]


def diff(was: CheckpointView, now: CheckpointView) -> DiffView:
    """Returns what is different in ``now``. Secrets are hidden later, because the fact that a secret changed may be shown."""
    old, new = was.values, now.values
    return DiffView(
        run_id=now.run_id,
        a=was.checkpoint_id,
        b=now.checkpoint_id,
        added={n: v for n, v in new.items() if n not in old},
        removed={n: v for n, v in old.items() if n not in new},
        changed={n: {"from": old[n], "to": new[n]} for n in old if n in new and old[n] != new[n]},
    )


# -- effects, intents, the ledger -------------------------------------------------------------------


class EffectView(Shape, frozen=True, kw_only=True):
    """An effect record (§6.4)."""

    effect_id: str
    run_id: str
    lineage_root: str
    step: int
    task: str
    path: str
    attempt: int
    capability: str
    effect_class: str
    key: str
    shared: bool
    request_hash: str
    response_hash: str
    status: str
    replay_policy: str
    idempotent: bool
    verifiable: bool
    result: JSON
    error: ErrorView | None
    owner: str
    fence: int
    attempted_at: str | None
    settled_at: str | None
    tenant_id: str
    source_effect_id: str | None
    closed: bool
    blob: str
    undo: str
    detail: str
    args: JSON
    undone: str


def effect(of: Effect) -> EffectView:
    return EffectView(
        effect_id=of.effect_id,
        run_id=of.run_id,
        lineage_root=of.lineage_root,
        step=of.step,
        task=of.task,
        path=of.path,
        attempt=of.attempt,
        capability=of.capability,
        effect_class=str(of.effect_class),
        key=of.key,
        shared=of.shared,
        request_hash=of.request_hash,
        response_hash=of.response_hash,
        status=str(of.status),
        replay_policy=str(of.replay_policy),
        idempotent=of.idempotent,
        verifiable=of.verifiable,
        result=show(of.result),
        error=error(of.error),
        owner=of.owner,
        fence=of.fence,
        attempted_at=iso(of.attempted_at),
        settled_at=iso(of.settled_at),
        tenant_id=of.tenant_id,
        source_effect_id=of.source_effect_id,
        closed=of.closed,
        blob=of.blob,
        undo=of.undo,
        detail=legible(of.detail),
        args=show(of.args),
        undone=of.undone,
    )


class DeliveryView(Shape, frozen=True, kw_only=True):
    """One attempt at sending an intent. ``closed``: no process can still be sending it."""

    number: int
    owner: str
    began_at: str | None
    ended_at: str | None
    outcome: str | None
    error: ErrorView | None
    answer: str
    closed: bool


class RulingView(Shape, frozen=True, kw_only=True):
    """A person's ruling on an intent."""

    at: str | None
    actor: str
    via: str | None
    reason: str
    action: str
    forced: bool


class IntentView(Shape, frozen=True, kw_only=True):
    """An intent: an outgoing message, sent or not (§9). ``no_transport_for`` is its type, if it waits to be sent and no running process sends that type."""

    intent_id: str
    run_id: str
    tenant_id: str
    type: str
    key: str
    order: str
    state: str
    attempts: list[DeliveryView]
    created_at: str | None
    due: str | None
    settled_at: str | None
    detail: str
    no_transport_for: str | None
    payload: JSON
    target: str
    owner: str | None
    lease_until: str | None
    rulings: list[RulingView]
    wait_id: str


def intent(of: Intent, *, no_transport: bool = False) -> IntentView:
    return IntentView(
        intent_id=of.intent_id,
        run_id=of.run_id,
        tenant_id=of.tenant_id,
        type=of.type,
        key=of.key,
        order=of.order_key,
        state=str(of.state),
        attempts=[
            DeliveryView(
                number=t.number,
                owner=t.owner,
                began_at=iso(t.began_at),
                ended_at=iso(t.ended_at),
                outcome=None if t.outcome is None else str(t.outcome),
                error=error(t.error),
                answer=t.answer,
                closed=t.closed,
            )
            for t in of.tries
        ],
        created_at=iso(of.created_at),
        due=iso(of.due_at),
        settled_at=iso(of.settled_at),
        detail=legible(of.detail),
        no_transport_for=of.type if no_transport and of.open else None,
        payload=show(of.payload) if of.payload else None,
        target=of.target,
        owner=of.owner,
        lease_until=iso(of.lease_until),
        rulings=[RulingView(at=iso(r.at), actor=r.actor, via=r.via or None, reason=legible(r.reason), action=r.action, forced=r.forced) for r in of.rulings],
        wait_id=of.wait_id,
    )


class QueuedView(Shape, frozen=True, kw_only=True):
    """The intents that wait to be sent: how many, since when the oldest, and those of their types that no running process sends."""

    queued: int
    oldest_at: str | None
    no_transport_for: list[str]


class LedgerView(Shape, frozen=True, kw_only=True):
    """A row that a step wrote for people and applications (§9.6). ``number`` is its position among all rows, and None for one tenant."""

    number: int | None
    run_id: str
    step_id: str
    topic: str
    key: str
    data: JSON
    created_at: str | None


def ledger(of: LedgerRow) -> LedgerView:
    return LedgerView(number=of.number or None, run_id=of.run_id, step_id=of.step_id, topic=of.topic, key=of.key, data=show(of.data), created_at=iso(of.at))


# -- workers, steps, lanes, queues, limits, skills --------------------------------------------------


class ServedView(Shape, frozen=True, kw_only=True):
    """A skill that a worker serves, in one version. ``fingerprint``: of its graph; ``workspace``: the folder in which its tools work, if it names one."""

    skill_id: str
    version: str
    fingerprint: str
    workspace: str | None


class WorkerView(Shape, frozen=True, kw_only=True):
    """A process that holds leases. ``alive`` is ``"true"``, ``"false"`` (proven) or ``"unknown"``. ``serves``: the skills whose runs it takes; none if it
    drives only runs that it begins itself. ``upgrade``: it takes their runs, whatever version they began with."""

    owner: str
    started_at: str | None
    expires_at: str | None
    alive: str
    runs: int
    serves: list[ServedView]
    upgrade: bool


def list_served(of: Offer | None) -> list[ServedView]:
    """Returns the skills in an offer; a process that claims no runs serves none."""
    shapes = () if of is None or not of.works else dict.fromkeys(of.shapes)
    return [ServedView(skill_id=s.skill_id, version=s.version, fingerprint=s.fingerprint, workspace=s.workspace) for s in shapes]


class StepView(Shape, frozen=True, kw_only=True):
    """A node's turn in a super-step, or with ``path`` a recorded call inside it. ``outcome`` is null while it is under way. ``call`` distinguishes
    calls of one function: its name, and in a fan-out a short form of the item."""

    step_id: str
    name: str
    call: str
    path: str
    outcome: str | None
    attempts: int
    started_at: str | None
    ended_at: str | None
    error: ErrorView | None


class AttemptView(Shape, frozen=True, kw_only=True):
    """One attempt at a step (§10.9): by whom, when, and how it ended. ``number`` counts the attempts, including those after a takeover."""

    attempt_id: str
    step_id: str
    call: str
    number: int
    owner: str | None
    lease_expires_at: str | None
    started_at: str | None
    ended_at: str | None
    outcome: str | None
    error: ErrorView | None
    retry_at: str | None


class LaneView(Shape, frozen=True, kw_only=True):
    """A lane that a run holds: which run, since when, until when its lease is valid (null while it rests), and which runs wait behind it."""

    session_key: str
    lane: str
    holder: str
    since: str | None
    expires_at: str | None
    queued: list[str]


class QueueView(Shape, frozen=True, kw_only=True):
    """A queue: how many due runs are not claimed, since when the oldest is due, how many runs are driven, and how many are ``blocked``, by cause:
    ``paused``, ``no_worker_for``, ``lane``, ``limit``."""

    queue: str
    depth: int
    oldest_at: str | None
    in_flight: int
    paused: bool
    blocked: dict[str, int]


class LimitChangeView(Shape, frozen=True, kw_only=True):
    """A change of a limit or a queue by a person: set, unset, paused or unpaused."""

    at: str | None
    actor: str
    via: str | None
    action: str
    in_flight: int | None
    per_second: float | None
    burst: int | None
    reason: str


class LimitView(Shape, frozen=True, kw_only=True):
    """A limit in force: ``stored``, or declared by a running process; how much of it is in use; and its changes, newest last."""

    name: str
    in_flight: int | None
    per_second: float | None
    burst: int | None
    stored: bool
    in_use: int
    changes: list[LimitChangeView]


class NodeView(Shape, frozen=True, kw_only=True):
    """A node of a graph: from where it is reached, what it reads and writes."""

    name: str
    start: bool
    after: list[str]
    all: bool
    on: list[str]
    when: bool
    routers: list[str]
    reads: list[str] | None
    writes: list[str] | None
    side_effects: str
    kind: str
    state: str


class ChannelView(Shape, frozen=True, kw_only=True):
    """A channel of a graph's state."""

    name: str
    reducer: str
    thread: bool
    required: bool


class SkillView(Shape, frozen=True, kw_only=True):
    """A registered program as data. For a run every node has a ``state``: ``done``, ``next`` or ``""``."""

    skill_id: str
    skill_version: str
    fingerprint: str
    flow: bool
    channels: list[ChannelView]
    nodes: list[NodeView]
    edges: list[list[str]]
    mermaid: str


def skill(program: Program, at: cps.Checkpoint | None = None) -> SkillView:
    """Returns the view of a program; with a checkpoint, the nodes also show the run's progress."""
    due = set() if at is None else {ids.node_of(t.key) for t in at.pending}
    seen = set() if at is None else {ids.node_of(n) for n, versions in at.seen.items() if versions}
    nodes = [_node(n, "next" if n.name in due else "done" if n.name in seen else "") for n in _order(program)]
    return SkillView(
        skill_id=program.id,
        skill_version=program.version,
        fingerprint=program.fingerprint,
        flow=program.flow,
        channels=[
            ChannelView(name=c.name, reducer=c.reducer.tag, thread=c.thread, required=c.required) for c in program.channels.values()
        ],
        nodes=nodes,
        edges=[[source, n.name] for n in nodes for source in (*n.after, *(["@start"] if n.start else []))],
        mermaid=mermaid(program),
    )


def _order(program: Program) -> list[Node]:
    """Returns the nodes in the order in which they can first run; ties are in the order of declaration."""
    left, out, placed = list(program.nodes.values()), [], set[str]()
    while left:
        free = [n for n in left if not (set(_sources(n)) - placed)] or left[:1]
        for node in free:
            out.append(node)
            placed.add(node.name)
        left = [n for n in left if n.name not in placed]
    return out


def _sources(node: Node) -> list[str]:
    found = [c.removeprefix("done:") for t in node.triggers for c in t.channels if c.startswith("done:")]
    return list(dict.fromkeys(found))


def _node(node: Node, state: str) -> NodeView:
    return NodeView(
        name=node.name,
        start=any(START in t.channels for t in node.triggers),
        after=_sources(node),
        all=any(t.mode == "all" and len(t.channels) > 1 for t in node.triggers),
        on=[c for t in node.triggers for c in t.channels if c != START and ":" not in c],
        when=node.when is not None,
        routers=[str(getattr(r, "__name__", "router")) for r in node.routers],
        reads=None if node.reads is None else list(node.reads),
        writes=None if node.writes is None else list(node.writes),
        side_effects=str(node.side_effects),
        kind=node.shape,
        state=state,
    )


class ScheduleChangeView(Shape, frozen=True, kw_only=True):
    """Who did what to a schedule, and when."""

    at: str | None
    actor: str
    via: str | None
    what: str


class ScheduleView(Shape, frozen=True, kw_only=True):
    """A schedule (§10.15). Times are in UTC; those with ``_local`` are in the schedule's own zone, if it is known."""

    schedule_id: str
    skill_id: str
    cron: str | None
    every_seconds: float | None
    zone: str
    overlap: str
    missed: str
    catch_up: int
    grace_seconds: float
    queue: str
    tenant_id: str
    inputs: JSON
    options: dict[str, JSON]
    paused: bool
    overdue: bool
    next_at: str | None
    next_at_local: str | None
    last_at: str | None
    last_at_local: str | None
    last_run: str | None
    fired: int
    skipped_missed: int
    skipped_overlap: int
    error: str | None
    created_at: str | None
    changes: list[ScheduleChangeView]


def schedule(of: Schedule, now: int, *, next_local: str | None = None, last_local: str | None = None) -> ScheduleView:
    return ScheduleView(
        schedule_id=of.schedule_id,
        skill_id=of.skill_id,
        cron=of.cron or None,
        every_seconds=of.every_us / 1_000_000 if of.every_us else None,
        zone=of.zone,
        overlap="allow" if of.overlap else "skip",
        missed=of.missed.value,
        catch_up=of.catch_up,
        grace_seconds=of.grace_us / 1_000_000,
        queue=of.queue,
        tenant_id=of.tenant_id,
        inputs=show(of.input),
        options=dict(of.options),
        paused=of.paused,
        overdue=of.due is not None and now - of.due > of.grace_us,
        next_at=iso(of.due),
        next_at_local=next_local,
        last_at=iso(of.last_slot),
        last_at_local=last_local,
        last_run=of.last_run,
        fired=of.fired,
        skipped_missed=of.skipped_missed,
        skipped_overlap=of.skipped_overlap,
        error=legible(of.error) or None,
        created_at=iso(of.created_at),
        changes=[ScheduleChangeView(at=iso(c.at), actor=c.actor, via=c.via or None, what=c.what) for c in of.changes],
    )
