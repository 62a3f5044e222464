"""The run record and its fold (§1.4, §3.1): the only place where a run changes.

``fold`` is used by live code, recovery, the checker and repair. It is a table from a kind of fact to a small function, so that the effect of an event
on a run can be read in one place. An unknown kind changes nothing, not even the version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count, repeat
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import canon, ids
from holdfast.core import events as ev
from holdfast.core.errors import ErrorValue, EventUnreadable
from holdfast.core.recorded import Recorded
from holdfast.core.status import LIVE, TERMINAL, Status, move, path
from holdfast.core.waits import APPROVE, Decision, Wait, WaitKind, wake_at

UNATTENDED = "unattended_handoff"
"""The stop reason of an unattended run that asked a person; its first resume asks again (§5.17)."""


class Versions(msgspec.Struct, frozen=True, array_like=True):
    capabilities: str | None = None
    bindings: str | None = None
    registry_ref: str | None = None


class Buffered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A signal that has arrived and that no wait has asked for yet (§5.11). ``payload`` is encoded."""

    name: str
    key: str
    payload: bytes
    actor: str = ""


def shape_in(fingerprint: str, workspace: str | None) -> str:
    """Returns a program's shape, with the folder if a run is bound to one."""
    return fingerprint if workspace is None else f"{fingerprint}@{workspace}"


ANY = "*"
"""In the list of shapes that a claimer takes: every program's shape, with a folder or without."""


def of_any(shape: str) -> str:
    """Returns the shape that a claimer of any program lists if it takes runs of this shape."""
    return shape_in(ANY, shape.partition("@")[2] or None)


class Later(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many signals of a name arrived after those in the run's record. Only the log contains them, after event ``after``."""

    name: str
    count: int
    after: int


AT_HAND = 32
"""The most unasked signals of one name that the run's record holds. The record is written with each signal, so it must not grow with them."""


class Run(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """The folded record of a run. Times are microseconds since 1970, UTC; ``result`` is encoded.

    ``version`` is the number of events folded. ``waits`` are the open ones; ``decisions`` those that the run has
    not consumed yet; ``seen_handoffs`` is never cleared (§5.14). ``precedes``: the run that had the next turn of its thread before this one, which had
    ended, was resumed.
    """

    run_id: str
    thread_id: str
    session_key: str
    lane: str
    skill_id: str
    skill_version: str
    fingerprint: str
    queue: str
    priority: int
    status: Status
    created_at: int
    version: int
    lineage_root: str
    tenant_id: str = "default"
    environment: str = "development"
    not_before: int | None = None
    blocked_by: str | None = None
    started_at: int | None = None
    finished_at: int | None = None
    current_step_id: str | None = None
    checkpoint_head: str | None = None
    resume_from_checkpoint_id: str | None = None
    trace_id: str | None = None
    versions: Versions = Versions()
    policy_snapshot_id: str | None = None
    job_id: str | None = None
    source_run_id: str | None = None
    source_checkpoint_id: str | None = None
    parent_run_id: str | None = None
    parent_wait_id: str | None = None
    on_parent_end: str = "cancel"
    stop_reason: str | None = None
    settled: bool = False
    result: bytes | None = None
    error: ErrorValue | None = None
    tags: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    decisions: tuple[Decision, ...] = ()
    active_handoff: str | None = None
    seen_handoffs: tuple[str, ...] = ()
    waivers: tuple[Decision, ...] = ()
    cancel_requested_at: int | None = None
    interrupted_at: int | None = None
    takeovers: int = 0
    target: str | None = None
    request_key: str | None = None
    paused_lane: str = "hold"
    recovery: str = "auto"
    kind: str | None = None
    unattended: bool = False
    origin: str = ""
    replay_effects: str = ""
    signals: tuple[Buffered, ...] = ()
    rearm: tuple[Wait, ...] = ()
    budgets: dict[str, float] = {}
    extensions: dict[str, float] = {}
    spent: dict[str, float] = {}
    active_us: int = 0
    active_since: int | None = None
    schedule_id: str | None = None
    slot: int | None = None
    inherits: bool = False
    secrets: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()
    workspace: str | None = None
    later: tuple[Later, ...] = ()
    precedes: str = ""

    @property
    def unasked(self) -> int:
        """How many signals have arrived that no wait has asked for yet."""
        return len(self.signals) + sum(later.count for later in self.later)

    def at_hand(self, name: str) -> bool:
        """Whether the record takes the next signal of this name; otherwise only the log contains it."""
        return all(later.name != name for later in self.later) and sum(s.name == name for s in self.signals) < AT_HAND

    @property
    def terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def shape(self) -> str:
        """The shape that a worker must have to claim this run: the program's shape, and the folder in which the run's tools have worked (§11.2)."""
        return shape_in(self.fingerprint, self.workspace)

    @property
    def begins_at(self) -> int | None:
        """The requested time of its beginning. None if that time had passed when it was submitted: then the run begins at once, under any clock."""
        return None if self.not_before is None or self.not_before <= self.created_at else self.not_before

    @property
    def wake_at(self) -> int | None:
        return wake_at(self.waits) if self.waits else None


def _move(run: Run, wanted: Status, **changes: Any) -> Run:
    return replace(run, status=move(run.status, wanted), **changes)


def _on_submitted(e: ev.Event, f: ev.RunSubmitted) -> Run:
    return Run(
        run_id=f.run_id,
        thread_id=f.thread_id,
        session_key=f.session_key,
        lane=f.lane,
        skill_id=f.skill_id,
        skill_version=f.skill_version,
        fingerprint=f.fingerprint,
        queue=f.queue,
        priority=f.priority,
        status=Status.PENDING,
        created_at=e.at,
        version=1,
        lineage_root=f.lineage_root or f.run_id,
        tenant_id=f.tenant_id,
        environment=f.environment,
        not_before=f.not_before,
        trace_id=f.trace_id,
        versions=Versions(f.capabilities, f.bindings, f.registry_ref),
        policy_snapshot_id=f.policy_snapshot_id,
        job_id=f.job_id,
        source_run_id=f.source_run_id,
        source_checkpoint_id=f.source_checkpoint_id,
        resume_from_checkpoint_id=f.source_checkpoint_id,
        parent_run_id=f.parent_run_id,
        parent_wait_id=f.parent_wait_id,
        on_parent_end=f.on_parent_end,
        tags=f.tags,
        target=f.target,
        request_key=f.request_key,
        paused_lane=f.paused_lane,
        recovery=f.recovery,
        kind=f.kind,
        unattended=f.unattended,
        budgets=f.budgets,
        extensions=f.budgets,
        schedule_id=f.schedule_id,
        slot=f.slot,
        secrets=f.secrets,
    )


def _on_born(e: ev.Event, f: Any, started: int) -> Run:
    """Returns a run after the three events of being submitted, claimed and started at once."""
    return replace(_on_submitted(e, f), status=Status.RUNNING, started_at=started, active_since=started, version=3)


def _on_started(run: Run, e: ev.Event, f: ev.RunStarted) -> Run:
    return _move(run, Status.RUNNING, started_at=run.started_at if run.started_at is not None else e.at, blocked_by=None)


def _on_resumed(run: Run, e: ev.Event, f: ev.RunResumed) -> Run:
    # Only the resume operation consults RESUMABLE; the fold records its outcome (§2.3).
    status = Status.RUNNING if run.terminal else move(run.status, Status.RUNNING)
    return replace(
        run,
        status=status,
        finished_at=None,
        stop_reason=None,
        error=None,
        settled=False,
        interrupted_at=None,
        takeovers=0,
        decisions=(),  # the same commit records them as results for the steps that asked
        cancel_requested_at=None,
        rearm=(),
        fingerprint=f.upgraded or run.fingerprint,
        resume_from_checkpoint_id=f.checkpoint_id or run.resume_from_checkpoint_id,
        precedes=run.precedes or f.precedes,
        started_at=run.started_at if run.started_at is not None else e.at,
    )


def _end(run: Run, e: ev.Event, status: Status, **changes: Any) -> Run:
    for step in path(run.status, status):
        run = _move(run, step)
    return replace(run, finished_at=e.at, **changes)


def _on_last(run: Run, step: ev.Event, end: ev.Event) -> Run:
    """Returns a running run after its last step, with which it completes."""
    head = ids.checkpoint_id(run.run_id, step.seq) if step.fact.hash else run.checkpoint_head  # type: ignore[union-attr]
    return replace(
        run, status=Status.COMPLETED, version=run.version + 2, checkpoint_head=head, finished_at=end.at, result=end.fact.result, waits=(), active_handoff=None,  # type: ignore[union-attr]
        decisions=(), active_us=run.active_us + (0 if run.active_since is None else end.at - run.active_since), active_since=None,
    )


def _on_completed(run: Run, e: ev.Event, f: ev.RunCompleted) -> Run:
    return replace(_move(run, Status.COMPLETED), finished_at=e.at, result=f.result, waits=(), active_handoff=None, decisions=())


def _on_failed(run: Run, e: ev.Event, f: ev.RunFailed) -> Run:
    return _end(run, e, Status.FAILED, stop_reason=f.stop_reason, error=f.error)


def _on_canceled(run: Run, e: ev.Event, f: ev.RunCanceled) -> Run:
    rearm = tuple(w for w in run.waits if w.wait_id in f.rearms)
    return _end(
        run, e, Status.CANCELED, stop_reason=f.stop_reason, settled=f.settled, waits=(), active_handoff=None, decisions=(), rearm=rearm
    )


def _wait_requested(run: Run, e: ev.Event, f: ev.WaitRequested) -> Run:
    waits = (*(w for w in run.waits if w.wait_id != f.wait.wait_id), f.wait)
    if f.wait.kind is not WaitKind.HANDOFF:
        return replace(run, waits=waits)
    return replace(run, waits=waits, active_handoff=f.wait.wait_id, seen_handoffs=(*run.seen_handoffs, f.wait.wait_id))


def _without(run: Run, wait_id: str) -> dict[str, Any]:
    return {
        "waits": tuple(w for w in run.waits if w.wait_id != wait_id),
        "active_handoff": None if run.active_handoff == wait_id else run.active_handoff,
    }


def _on_decided(run: Run, e: ev.Event, f: ev.WaitDecided | ev.WaitTimedOut) -> Run:
    """A decision closes the wait. The decision is kept until a step consumes it."""
    if run.status in (Status.COMPLETED, Status.CANCELED):
        return run  # a late answer must not revive a run that has ended (T-08)
    waived = (*run.waivers, f.decision) if f.decision.action == "continue_with_waiver" else run.waivers
    signals, later = _use_signal(run, f.decision) if f.decision.key else (run.signals, run.later)
    # The owner of a live run records the answer in this same commit; a run at rest keeps it until it is resumed.
    kept = run.decisions if run.status in LIVE else (*run.decisions, f.decision)
    extended = {**run.budgets, **_extend_budget(run, f.decision)} if run.budgets else run.budgets
    return replace(run, decisions=kept, waivers=waived, signals=signals, later=later, budgets=extended, **_without(run, f.decision.wait_id))


def _use_signal(run: Run, decision: Decision) -> tuple[tuple[Buffered, ...], tuple[Later, ...]]:
    """Returns the signals that remain after one answered a wait: it was in the record, or was the oldest of those that only the log contains."""
    name = decision.asked.partition(":")[2]
    left = tuple(s for s in run.signals if (s.name, s.key) != (name, decision.key))
    if len(left) < len(run.signals):
        return left, run.later
    moved = [Later(x.name, x.count - 1, max(x.after, decision.came)) if x.name == name else x for x in run.later]
    return left, tuple([x for x in moved if x.count > 0])


def _extend_budget(run: Run, decision: Decision) -> dict[str, float]:
    """Returns the budget that an approval extends, with its new limit; the amount is the approval's, or else the wait's default (§8.5)."""
    wait = next((w for w in run.waits if w.wait_id == decision.wait_id), None)
    if wait is None or wait.kind is not WaitKind.BUDGET or decision.action != APPROVE or wait.name not in run.budgets:
        return {}
    given = None if decision.payload is None else canon.decode(decision.payload)
    stated = given.get("extend") if isinstance(given, dict) else None
    amount = stated if isinstance(stated, int | float) else canon.decode(wait.default) if wait.default is not None else 0
    return {wait.name: run.budgets[wait.name] + float(amount)}


def _wait_closed(run: Run, e: ev.Event, f: ev.WaitClosed) -> Run:
    older = () if f.returned is None else (Buffered(f.returned.name, f.returned.key, f.returned.payload, f.returned.actor),)
    return replace(run, signals=(*older, *run.signals), **_without(run, f.wait_id), decisions=tuple(d for d in run.decisions if d.wait_id != f.wait_id))


def _on_signal(run: Run, e: ev.Event, f: ev.SignalReceived) -> Run:
    if run.status in (Status.COMPLETED, Status.CANCELED):
        return run
    if run.at_hand(f.name):
        return replace(run, signals=(*run.signals, Buffered(f.name, f.key, f.payload, f.actor)))
    kept = next((x for x in run.later if x.name == f.name), Later(f.name, 0, e.seq - 1))
    return replace(run, later=(*(x for x in run.later if x.name != f.name), replace(kept, count=kept.count + 1)))


def _step_started(run: Run, e: ev.Event, f: ev.StepStarted) -> Run:
    return replace(run, current_step_id=ids.step_id(run.run_id, f.step, f.task))


def _on_saved(run: Run, e: ev.Event, f: ev.StepEnded | ev.CheckpointSaved | ev.StatePatched) -> Run:
    return replace(run, checkpoint_head=ids.checkpoint_id(run.run_id, e.seq)) if f.hash else run


def _on_patched(run: Run, e: ev.Event, f: ev.RunPatched) -> Run:
    return replace(
        run,
        tags=run.tags if f.tags is None else f.tags,
        priority=run.priority if f.priority is None else f.priority,
        trace_id=run.trace_id if f.trace_id is None else f.trace_id,
        workspace=run.workspace if f.workspace is None else f.workspace,
    )


def _on_judged(run: Run, e: ev.Event, f: ev.PolicyEvaluated) -> Run:
    return replace(run, waived=(*run.waived, f.subject)) if f.verdict == ev.WAIVED and f.subject not in run.waived else run


def _again(run: Run, e: ev.Event, f: ev.RunSubmitted) -> Run:
    raise EventUnreadable(f"event {e.seq} submits the run {run.run_id} a second time")


def _same(run: Run, e: ev.Event, f: ev.Fact) -> Run:
    return run


def _count_time(function: Callable[[Run, ev.Event, Any], Run]) -> Callable[[Run, ev.Event, Any], Run]:
    """Wraps ``function`` so that the time in which a run is driven is counted; waits do not count (T-95)."""

    def apply(run: Run, e: ev.Event, f: Any) -> Run:
        changed = function(run, e, f)
        if (run.status in LIVE) is (changed.status in LIVE):
            return changed
        if changed.status in LIVE:
            return replace(changed, active_since=e.at)
        return replace(changed, active_us=changed.active_us + (0 if run.active_since is None else e.at - run.active_since), active_since=None)

    return apply


_FOLD: dict[type, Callable[[Run, ev.Event, Any], Run]] = {
    ev.RunSubmitted: _again,
    ev.RunQueued: lambda run, e, f: replace(run, blocked_by=f.blocked_by),
    ev.RunStarted: _on_started,
    ev.RunResumed: _on_resumed,
    ev.RunRecovered: lambda run, e, f: replace(run, interrupted_at=None),
    ev.RunInterrupted: lambda run, e, f: replace(run, interrupted_at=e.at),
    ev.RunWaitingForHuman: lambda run, e, f: _move(run, Status.WAITING_FOR_HUMAN),
    ev.RunWaitingForSignal: lambda run, e, f: _move(run, Status.WAITING_FOR_SIGNAL),
    ev.RunReplaying: lambda run, e, f: _move(run, Status.REPLAYING),
    ev.RunCompleted: _on_completed,
    ev.RunFailed: _on_failed,
    ev.RunCanceled: _on_canceled,
    ev.RunCancelRequested: lambda run, e, f: replace(run, cancel_requested_at=e.at),
    ev.RunPatched: _on_patched,
    ev.PolicyEvaluated: _on_judged,
    ev.BudgetSpent: lambda run, e, f: replace(run, spent={**run.spent, **{n: run.spent.get(n, 0.0) + amount for n, amount in f.amounts.items()}}),
    ev.RunForked: lambda run, e, f: replace(run, origin="fork", replay_effects=f.effects, inherits=f.approvals),
    ev.RunReplayed: lambda run, e, f: replace(run, origin="replay", replay_effects=f.effects, inherits=f.approvals),
    ev.StepStarted: _step_started,
    ev.StepCompleted: _on_saved,
    ev.StepDegraded: _on_saved,
    ev.StepSkipped: _on_saved,
    ev.AttemptTakenOver: lambda run, e, f: replace(run, takeovers=f.takeovers),
    ev.CheckpointSaved: _on_saved,
    ev.StatePatched: _on_saved,
    ev.WaitRequested: _wait_requested,
    ev.WaitDecided: _on_decided,
    ev.WaitTimedOut: _on_decided,
    ev.WaitClosed: _wait_closed,
    ev.SignalReceived: _on_signal,
}


for _kind in (ev.RunStarted, ev.RunResumed, ev.RunWaitingForHuman, ev.RunWaitingForSignal, ev.RunCompleted, ev.RunFailed, ev.RunCanceled):
    _FOLD[_kind] = _count_time(_FOLD[_kind])


def fold(run: Run | None, event: ev.Event) -> Run | None:
    """Returns the run after one more event (§1.4). It accepts every kind: an unknown one leaves the run unchanged.

    Raises:
        IllegalTransition: the event implies an edge that is not in the table (§2.2).
        EventUnreadable: the first event is not ``run.submitted``, or a later one is.
    """
    fact = event.fact
    if type(fact) is ev.Unknown:
        return run
    if run is None:
        if type(fact) is not ev.RunSubmitted:
            raise EventUnreadable(f"a run begins with run.submitted, not {fact.wire}")
        return _on_submitted(event, fact)
    changed = _FOLD.get(type(fact), _same)(run, event, fact)
    return replace(changed, version=run.version + 1)


def apply_steps(run: Run, started: ev.StepStarted | None, head: int, count: int) -> Run:
    """Returns the run after ``count`` events of steps. ``started`` is the last ``StepStarted``, ``head`` the number of the last event that saved a checkpoint, or 0."""
    return replace(
        run,
        version=run.version + count,
        current_step_id=run.current_step_id if started is None else ids.step_id(run.run_id, started.step, started.task),
        checkpoint_head=ids.checkpoint_id(run.run_id, head) if head else run.checkpoint_head,
    )


def record(run: Run | None, facts: Sequence[ev.Fact], after: int, at: int, actor: str = ev.SYSTEM, fence: int = 0) -> tuple[tuple[ev.Event, ...], Run]:
    """Makes events of these facts, numbered from ``after + 1`` on, and returns them and the run after them."""
    events = Recorded(map(ev.Event, count(after + 1), repeat(at), facts, repeat(actor), repeat(fence)))
    events.facts, events.kinds = [*facts], frozenset(map(type, facts))
    return events, fold_all(run, events)


_HOT = frozenset({ev.StepStarted, ev.StepCompleted})
_LAST = (ev.StepCompleted, ev.RunCompleted)
_BORN = (ev.RunSubmitted, ev.RunClaimed, ev.RunStarted)


def fold_all(run: Run | None, events: Iterable[ev.Event]) -> Run:
    """Folds many events; the run must exist afterwards.

    Most events begin or end a step, or save a checkpoint, and change only three fields. A sequence of such events makes one new
    record, instead of two for each event. The result is the same as folding the events one by one.
    """
    step: ev.StepStarted | None = None
    head = hot = 0
    events = events if isinstance(events, tuple) else tuple(events)
    if run is None and len(events) > 2 and tuple(map(type, map(ev.fact_of, events[:3]))) == _BORN:
        run, events = _on_born(events[0], events[0].fact, events[2].at), events[3:]
    elif run is not None and len(events) == 2 and run.status is Status.RUNNING and tuple(map(type, map(ev.fact_of, events))) == _LAST:
        return _on_last(run, *events)
    facts = events.facts if type(events) is Recorded else [*map(ev.fact_of, events)]
    if run is not None and len(facts) > 8 and _HOT.issuperset(map(type, facts)):  # a fan-out: only the last event of each kind counts
        step = next((f for f in reversed(facts) if type(f) is ev.StepStarted), None)
        head = next((e.seq for e in reversed(events) if type(e.fact) is ev.StepCompleted and e.fact.hash), 0)
        return apply_steps(run, step, head, len(events))
    for event in events:
        fact = event.fact
        if run is not None:
            kind = type(fact)
            if kind is ev.StepStarted:
                step, hot = fact, hot + 1  # type: ignore[assignment]
                continue
            if kind is ev.StepCompleted or kind is ev.CheckpointSaved:
                if fact.hash:  # type: ignore[union-attr]
                    head = event.seq
                hot += 1
                continue
            if hot:
                run, step, head, hot = apply_steps(run, step, head, hot), None, 0, 0
        run = fold(run, event)
    if run is None:
        raise EventUnreadable("no events, no run")
    return apply_steps(run, step, head, hot) if hot else run
