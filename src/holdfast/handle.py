"""What the methods of a Runtime return: frozen views of stored records, with datetimes and decoded values."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core import canon, intents, schedules
from holdfast.core import run as records
from holdfast.core import waits as ws
from holdfast.core.commit import LedgerRow
from holdfast.core.envelopes import legible
from holdfast.core.errors import ErrorValue
from holdfast.core.lanes import Blocked
from holdfast.core.lease import Lease
from holdfast.core.offers import NoWorker
from holdfast.core.status import Condition, Status
from holdfast.core.views import condition

S = TypeVar("S")
T = TypeVar("T")


def when(at: int) -> dt.datetime:
    """Microseconds since 1970 as an aware UTC datetime (§3.4)."""
    return dt.datetime.fromtimestamp(at // 1_000_000, dt.UTC) + dt.timedelta(microseconds=at % 1_000_000)


def optional_when(at: int | None) -> dt.datetime | None:
    return None if at is None else when(at)


class Decision(msgspec.Struct, frozen=True):
    """The decision about a wait. ``payload`` holds edited arguments or an answer, decoded."""

    action: str
    approved: bool
    payload: Any = None
    feedback: str | None = None
    note: str | None = None
    actor: str = ""
    decided_at: dt.datetime | None = None

    @classmethod
    def of(cls, raw: ws.Decision) -> Decision:
        """The view of a stored decision."""
        return cls(
            action=raw.action,
            approved=raw.action in (ws.APPROVE, ws.CONTINUE, ws.WAIVE),
            payload=None if raw.payload is None else canon.decode(raw.payload),
            feedback=raw.feedback,
            note=raw.note,
            actor=raw.actor,
            decided_at=when(raw.decided_at),
        )


class Wait(msgspec.Struct, frozen=True):
    """An open question, as it is shown to people. ``decidable`` is True if it can be decided now (§5.4); the waits of an old checkpoint
    cannot. ``verdict`` is the program's own judgement at a handoff, or the reason why the question is asked again. ``effect_id`` is the effect that the
    question is about."""

    wait_id: str
    kind: str
    prompt: str
    available_actions: tuple[str, ...]
    show: Any = None
    name: str = ""
    deadline: dt.datetime | None = None
    requested_at: dt.datetime | None = None
    step: int = 0
    task: str = ""
    who: tuple[str, ...] = ()
    run_id: str = ""
    decidable: bool = False
    verdict: str = ""
    effect_id: str | None = None

    @classmethod
    def of(cls, raw: ws.Wait, status: Status | None = None) -> Wait:
        """The view of a stored wait of a run with this status."""
        return cls(
            wait_id=raw.wait_id,
            kind=raw.kind.value,
            prompt=legible(raw.prompt),
            available_actions=raw.available_actions,
            show=None if raw.show is None else canon.decode(raw.show),
            name=raw.name,
            deadline=optional_when(raw.deadline),
            requested_at=optional_when(raw.requested_at),
            step=raw.step,
            task=raw.task,
            who=raw.who,
            run_id=raw.wait_id.split(".", 1)[0],
            decidable=status is not None and ws.decidable(status, (raw,), raw.wait_id),
            verdict=raw.verdict,
            effect_id=raw.effect_id,
        )


class Decided(msgspec.Struct, frozen=True):
    """The result of one decision of ``Runtime.decide_all``. ``code`` is the code of the refusal; None if the decision was accepted."""

    run_id: str
    wait_id: str
    ok: bool
    code: str | None = None


class Run(Generic[S]):
    """A snapshot of a run: its record, its condition and its state. It never changes; ask the Runtime for a newer one."""

    __slots__ = ("_blocked", "_lease", "_no_worker", "_now", "_record", "_state", "_values", "deduplicated")

    # Read from the record as they are, and named here for type checkers, completion and the reference. All others: ``record``.
    run_id: str
    thread_id: str
    session_key: str
    lane: str
    skill_id: str
    skill_version: str
    fingerprint: str
    queue: str
    priority: int
    version: int
    lineage_root: str
    tenant_id: str
    environment: str
    current_step_id: str | None
    checkpoint_head: str | None
    resume_from_checkpoint_id: str | None
    trace_id: str | None
    versions: records.Versions
    policy_snapshot_id: str | None
    job_id: str | None
    source_run_id: str | None
    source_checkpoint_id: str | None
    parent_run_id: str | None
    parent_wait_id: str | None
    on_parent_end: str
    stop_reason: str | None
    settled: bool
    tags: tuple[str, ...]
    active_handoff: str | None
    takeovers: int
    target: str | None
    request_key: str | None
    paused_lane: str
    recovery: str
    kind: str | None
    unattended: bool
    origin: str
    replay_effects: str
    budgets: dict[str, float]
    spent: dict[str, float]
    schedule_id: str | None
    workspace: str | None

    def __init__(
        self, record: records.Run, lease: Lease, now: int, values: Mapping[str, Any], state: Any, *, deduplicated: bool = False, blocked: Blocked | None = None,
        no_worker: NoWorker | None = None,
    ) -> None:
        self._blocked = blocked
        self._no_worker = no_worker
        self._record = record
        self._lease = lease
        self._now = now
        self._values = values
        self._state = state
        self.deduplicated = deduplicated

    @property
    def record(self) -> records.Run:
        """The run record itself, with times in microseconds since 1970, UTC."""
        return self._record

    @property
    def lease(self) -> Lease:
        """Which process is executing the run, and until when its lease lasts."""
        return self._lease

    @property
    def status(self) -> Status:
        """One of ``pending``, ``running``, ``waiting_for_human``, ``waiting_for_signal``, ``replaying``, ``completed``, ``failed`` and
        ``canceled``."""
        return self._record.status

    @property
    def blocked_by(self) -> str | None:
        """The id of the run of the same lane (runs that execute one after another) that this queued run waits for now. If this view
        was made without looking that up, it is the run that it waited for when it was queued."""
        return (self._blocked.run_id or None) if self._blocked is not None else self._record.blocked_by

    @property
    def blocked(self) -> Blocked | None:
        """``blocked_by`` and ``blocked_why`` as they were looked up."""
        return self._blocked

    @property
    def no_worker_for(self) -> NoWorker | None:
        """For a due run that no running worker of its queue can take: the version of the skill's graph that a worker must have. Otherwise
        None (§10.11)."""
        return self._no_worker

    @property
    def blocked_why(self) -> str | None:
        """Why the run in ``blocked_by`` cannot be executed first (§4.16): another process holds its lease, it is on hold or waits, or its
        skill is not registered here."""
        return None if self._blocked is None else self._blocked.why

    @property
    def condition(self) -> Condition:
        """A more detailed status, such as ``queued``, ``awaiting_gate_decision`` or ``interrupted``."""
        return condition(self._record, self._lease, self._now)

    @property
    def state(self) -> S:
        """The channels at the latest checkpoint, as the graph's State."""
        state: S = self._state
        return state

    @property
    def values(self) -> Mapping[str, Any]:
        """The channels at the latest checkpoint, by name."""
        return self._values

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The open waits of the run."""
        return tuple(Wait.of(w, self._record.status) for w in self._record.waits)

    @property
    def result(self) -> Any:
        """A flow's return value; for a graph, its state when it has completed; None before the end."""
        if self._record.result is not None:
            return canon.decode(self._record.result)
        if self._record.status is Status.COMPLETED and self._values:
            return self._state
        return None

    @property
    def error(self) -> ErrorValue | None:
        """Why the run failed, with the frames of the code that raised the error; None if it did not fail."""
        return self._record.error

    @property
    def created_at(self) -> dt.datetime:
        """When the run was submitted, UTC."""
        return when(self._record.created_at)

    @property
    def started_at(self) -> dt.datetime | None:
        """When its first step began, UTC; None before that."""
        return optional_when(self._record.started_at)

    @property
    def finished_at(self) -> dt.datetime | None:
        """When the run ended, UTC; None before that."""
        return optional_when(self._record.finished_at)

    @property
    def cancel_requested_at(self) -> dt.datetime | None:
        """When its cancellation was requested, UTC; None if it was not."""
        return optional_when(self._record.cancel_requested_at)

    @property
    def not_before(self) -> dt.datetime | None:
        """The time before which the run does not begin, UTC; None if it may begin at once."""
        return optional_when(self._record.not_before)

    @property
    def scheduled_at(self) -> dt.datetime | None:
        """The scheduled time (slot) for which its schedule (``schedule_id``) started it, UTC, even if it began late; None if no schedule
        started it (§10.15)."""
        return optional_when(self._record.slot)

    @property
    def wake_at(self) -> dt.datetime | None:
        """When its next timer, retry or deadline is due, UTC; None if there is none."""
        return optional_when(self._record.wake_at)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *Run.__annotations__})

    def __repr__(self) -> str:
        return f"<Run {self._record.run_id} {self._record.skill_id} {self.status.value} ({self.condition.value})>"


def _read_record(run: Run[Any], name: str) -> Any:
    """Returns a field of the record, as folded (§3.1)."""
    return getattr(object.__getattribute__(run, "_record"), name)


type.__setattr__(Run, "__getattr__", _read_record)  # set here, so that a type checker does not see it and reports misspelt names


class ScheduleChange(msgspec.Struct, frozen=True):
    """Who did what to a schedule, and when."""

    at: dt.datetime
    actor: str
    what: str


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule at one moment (§10.15). ``next_at`` is None while it is paused. ``overdue`` is True if its slot has passed by more than
    ``grace`` and no worker has fired it. ``error`` is the reason why a slot could not be fired, otherwise None."""

    id: str
    skill_id: str
    inputs: Any
    cron: str | None
    every: dt.timedelta | None
    zone: str
    overlap: str
    missed: str
    catch_up: int
    grace: dt.timedelta
    queue: str
    tenant_id: str
    options: Mapping[str, Any]
    paused: bool
    overdue: bool
    next_at: dt.datetime | None
    last_at: dt.datetime | None
    last_run: str | None
    fired: int
    skipped_missed: int
    skipped_overlap: int
    error: str | None
    created_at: dt.datetime
    changes: tuple[ScheduleChange, ...]

    @classmethod
    def of(cls, raw: schedules.Schedule, now: int) -> Schedule:
        """The view of a stored schedule at a time in microseconds since 1970."""
        with canon.looking():  # one whose types are not known here does not keep the others from being listed (§14.3)
            inputs = canon.decode(raw.input)
        return cls(
            id=raw.schedule_id,
            skill_id=raw.skill_id,
            inputs=inputs,
            cron=raw.cron or None,
            every=dt.timedelta(microseconds=raw.every_us) if raw.every_us else None,
            zone=raw.zone,
            overlap="allow" if raw.overlap else "skip",
            missed=raw.missed.value,
            catch_up=raw.catch_up,
            grace=dt.timedelta(microseconds=raw.grace_us),
            queue=raw.queue,
            tenant_id=raw.tenant_id,
            options=raw.options,
            paused=raw.paused,
            overdue=raw.due is not None and now - raw.due > raw.grace_us,
            next_at=optional_when(raw.due),
            last_at=optional_when(raw.last_slot),
            last_run=raw.last_run,
            fired=raw.fired,
            skipped_missed=raw.skipped_missed,
            skipped_overlap=raw.skipped_overlap,
            error=raw.error or None,
            created_at=when(raw.created_at),
            changes=tuple(ScheduleChange(when(c.at), c.actor, c.what) for c in raw.changes),
        )


class EventView(msgspec.Struct, frozen=True):
    """One event of a run's log (§13.1). Its fields can also be read by name, as in ``event["seq"]``.

    ``seq`` is its number in the log, ``event_type`` what happened, and ``payload`` the fields of what happened. ``fence`` is the fencing number of the
    process that wrote it, and ``actor`` the person or the process that caused it.
    """

    event_id: str
    event_version: int
    event_type: str
    occurred_at: str
    run_id: str
    seq: int
    fence: int
    trace_id: str | None
    tenant_id: str
    actor: str
    payload: dict[str, Any]

    @property
    def type(self) -> str:
        """The same as ``event_type``."""
        return self.event_type

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def _show(value: Any) -> Any:
    """Values as JSON has them; what it has not, as text."""
    match value:
        case dt.datetime():
            return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
        case Mapping():
            return {str(k): _show(v) for k, v in value.items()}
        case list() | tuple():
            return [_show(v) for v in value]
        case str() | int() | float() | bool() | None:
            return value
    found = canon.plain(value)
    return found if isinstance(found, dict | list | str | int | float) else str(found)


class StreamPart(msgspec.Struct, frozen=True):
    """A part of a run's stream.

    ``mode`` is one of the requested modes; ``run`` in the first part of ``run_stream``; or ``missed``: then ``data`` is the number of chunks of this
    attempt that were dropped before they could be read. ``cursor`` is the place of the part: a reader that comes back with it gets the later
    parts. ``step_id``, ``attempt`` and ``attempt_id`` say who emitted a chunk. A part with ``superseded`` has the mode ``custom`` and no data: the
    chunks of this attempt that were read before it are no longer valid.
    """

    mode: str
    data: Any
    cursor: str
    run_id: str
    step_id: str = ""
    attempt: int = 0
    superseded: bool = False
    attempt_id: str = ""


class DeliveryView(msgspec.Struct, frozen=True):
    """One attempt to send an outgoing message (intent) (§9.3). ``answer`` is the digest of the receiver's answer."""

    number: int
    owner: str
    started_at: dt.datetime
    ended_at: dt.datetime | None
    outcome: str | None
    error: ErrorValue | None
    answer: str | None

    @classmethod
    def of(cls, raw: intents.Delivery) -> DeliveryView:
        """The view of a stored attempt to send."""
        outcome = None if raw.outcome is None else raw.outcome.value
        return cls(raw.number, raw.owner, when(raw.began_at), optional_when(raw.ended_at), outcome, raw.error, raw.answer or None)


class RulingView(msgspec.Struct, frozen=True):
    """What a person decided about an outgoing message (intent): ``redrive``, ``sent`` or ``abandoned``."""

    at: dt.datetime
    actor: str
    action: str
    reason: str
    forced: bool


class IntentView(msgspec.Struct, frozen=True, kw_only=True):
    """An outgoing message (intent) at one moment (§9.3). ``payload`` and ``answer`` are None after they have been deleted. ``no_transport_for`` is
    its type if no known process can send messages of this type."""

    intent_id: str
    run_id: str
    tenant_id: str
    type: str
    key: str
    order: str
    state: str
    payload: Any
    answer: Any
    attempts: tuple[DeliveryView, ...]
    rulings: tuple[RulingView, ...]
    created_at: dt.datetime
    due: dt.datetime | None
    settled_at: dt.datetime | None
    detail: str
    no_transport_for: str | None = None

    @classmethod
    def of(cls, raw: intents.Intent, *, no_transport: bool = False) -> IntentView:
        """The view of a stored intent; ``no_transport``: whether no known process can send messages of its type."""
        queued = raw.state is intents.IntentState.QUEUED
        with canon.looking():
            payload, answer = (canon.thaw(canon.decode(data)) if data else None for data in (raw.payload, raw.answer))
        return cls(
            intent_id=raw.intent_id,
            run_id=raw.run_id,
            tenant_id=raw.tenant_id,
            type=raw.type,
            key=raw.key,
            order=raw.order_key,
            state=raw.state.value,
            payload=payload,
            answer=answer,
            attempts=tuple(DeliveryView.of(t) for t in raw.tries),
            rulings=tuple(RulingView(when(r.at), r.actor, r.action, r.reason, r.forced) for r in raw.rulings),
            created_at=when(raw.created_at),
            due=when(raw.due_at) if queued else None,
            settled_at=optional_when(raw.settled_at),
            detail=raw.detail,
            no_transport_for=raw.type if no_transport else None,
        )

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def record(self) -> dict[str, Any]:
        """The JSON record: what the command line and HTTP show."""
        attempts = [{**msgspec.structs.asdict(a), "error": a.error and msgspec.structs.asdict(a.error)} for a in self.attempts]
        rulings = [msgspec.structs.asdict(r) for r in self.rulings]
        found: dict[str, Any] = _show({**msgspec.structs.asdict(self), "attempts": attempts, "rulings": rulings})
        return found


class LedgerView(msgspec.Struct, frozen=True):
    """A row of the ledger (§9.6). ``number`` is its place among all rows, the cursor of ``rt.ledger``."""

    number: int
    run_id: str
    step_id: str
    topic: str
    key: str
    data: Any
    created_at: dt.datetime

    @classmethod
    def of(cls, raw: LedgerRow) -> LedgerView:
        """The view of a stored row."""
        with canon.looking():
            return cls(raw.number, raw.run_id, raw.step_id, raw.topic, raw.key, canon.thaw(canon.decode(raw.data)), when(raw.at))

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def record(self) -> dict[str, Any]:
        """The JSON record: what the command line and HTTP show."""
        found: dict[str, Any] = _show(msgspec.structs.asdict(self))
        return found


class CheckpointView(msgspec.Struct, frozen=True):
    """A checkpoint with its values (§4.5)."""

    checkpoint_id: str
    run_id: str
    seq: int
    step: int
    parent_id: str | None
    boundaries: tuple[str, ...]
    values: Mapping[str, Any]
    channel_versions: Mapping[str, int]
    versions_seen: Mapping[str, Mapping[str, int]]
    pending_tasks: tuple[str, ...]
    pending_writes: Mapping[str, Any]
    waits: tuple[Wait, ...]
    metadata: Mapping[str, Any]
    created_at: dt.datetime
    hash: str
    format: int

    @property
    def next_tasks(self) -> tuple[str, ...]:
        """The same as ``pending_tasks``."""
        return self.pending_tasks

    @property
    def state_values(self) -> Mapping[str, Any]:
        """The same as ``values``."""
        return self.values

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


class Feed(Generic[T]):
    """``await feed`` gives a list; ``async for x in feed`` streams."""

    def __init__(self, source: Callable[[], AsyncIterator[T]]) -> None:
        self._source = source

    def __aiter__(self) -> AsyncIterator[T]:
        return self._source()

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._all().__await__()

    async def _all(self) -> list[T]:
        return [x async for x in self._source()]
