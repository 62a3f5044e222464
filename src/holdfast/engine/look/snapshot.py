"""One consistent read of a run, for readers (§13): everything that is shown of it is of one instant.

Theory of operation. The data of a run lie in several tables, and the run's owner continues to write while they are read. Everything except a
late effect and a delivery changes together with the run's log, so the log holds the reads together: the row is read before and after them,
and they are valid if it has not changed. A run that moves faster than that is shown as its log was when it was read, with its row folded from the
log itself; the other records may then be older than the events, and so say less than the log, never more.

A run is loaded with references to its large results only: ``whole`` reads a result back when it is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core import blobs, canon, compensation, describe, pruned
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core.called import Called, brief_of
from holdfast.core.checkpoint import Checkpoint, StepRecord
from holdfast.core.codec import Row, from_chain, open_row, open_rows
from holdfast.core.commit import LedgerRow
from holdfast.core.consistency import Problem
from holdfast.core.effects import Effect
from holdfast.core.errors import HoldfastError, InvalidInput, RunNotFound
from holdfast.core.intents import Intent
from holdfast.core.lanes import Blocked
from holdfast.core.lease import Lease
from holdfast.core.masks import NOTHING, Mask, mask
from holdfast.core.offers import NoWorker
from holdfast.core.progress import Progress
from holdfast.core.run import Run, fold_all
from holdfast.core.status import RESUMABLE
from holdfast.core.turns import Place, Turns
from holdfast.core.views import Moment, timeline
from holdfast.engine.look.living import Unsendable
from holdfast.engine.look.threads import Origin, Threads
from holdfast.ports import Store, offers_upkeep

T = TypeVar("T", StepRecord, Effect)


async def whole(store: Store, record: T) -> T:
    """Returns the record with its result, which is read if it is stored separately.

    Raises:
        StoreCorrupt: ``blob_unreadable``: the result is missing, or not what was written.
    """
    blob = blobs.reference_in(record.result if isinstance(record, Effect) else record.value)
    if blob is None:
        return record
    data = await store.blob(blob.digest)
    return replace(record, result=data) if isinstance(record, Effect) else replace(record, value=data)


async def missing(store: Store, run_id: str) -> RunNotFound:
    return pruned.missing(run_id, await store.find_pruned(run_id) if offers_upkeep(store) else None)


TRIES = 4
MOST = 1_000_000


@dataclasses.dataclass(frozen=True)
class Walk:
    """The result of one walk over a log. ``broken``: why the values could not be followed to the end; the events are those that could be read.

    ``names``: the names of recorded calls. ``states``: the values that the secret channels had.
    """

    events: tuple[ev.Event, ...]
    progress: Progress
    names: Mapping[Place, str]
    states: tuple[Mapping[str, Any], ...]
    broken: HoldfastError | None = None


def walk(run: Run, rows: Sequence[Row], origin: Origin | None) -> Walk:
    """Walks a log from its beginning. Values of types that are not registered here are shown as their fields (§14.3)."""
    with canon.looking():
        return _walk(run, rows, origin)


def _walk(run: Run, rows: Sequence[Row], origin: Origin | None) -> Walk:
    progress = Progress(run.run_id, origin)
    events: list[ev.Event] = []
    names: dict[Place, str] = {}
    states: list[Mapping[str, Any]] = []
    broken: HoldfastError | None = None
    for row in rows:
        try:
            record = open_row(row)
        except HoldfastError as e:
            broken = broken or e
            break
        events += record.events
        for result in record.results:
            if isinstance(result, cps.StepRecord):
                names[progress.checkpoint.step_of(result.task), result.task, result.path] = result.name
        if record.delta is not None:
            for task in record.delta.pending or ():
                if task.payload is not None and not task.began:
                    names[record.delta.step + 1, task.key, ""] = str(Called(task.node, brief_of(task.payload, run.secrets)))
        try:
            if run.secrets:
                states += _inputs(record.events)
            if broken is None:
                from_chain(row, progress.hash)
                progress.step(record)
                if run.secrets:
                    now = progress.checkpoint.values
                    states.append({n: canon.reveal(canon.encode(now[n])) for n in run.secrets if n in now})
        except HoldfastError as e:
            broken = e
    return Walk(tuple(events), progress, names, tuple(states), broken)


def _inputs(events: Sequence[ev.Event]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = [canon.reveal(e.fact.input) for e in events if isinstance(e.fact, ev.RunSubmitted)]
    return found + [{e.fact.name: canon.reveal(e.fact.payload)} for e in events if isinstance(e.fact, ev.SignalReceived)]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A run at one instant. Its descriptions are typed, and secrets are hidden in them already (§13.5)."""

    run: Run
    lease: Lease
    now: int
    rows: tuple[Row, ...]
    origin: Origin | None
    effect_records: tuple[Effect, ...] = ()
    intent_records: tuple[Intent, ...] = ()
    ledger_rows: tuple[LedgerRow, ...] = ()
    problems: tuple[Problem, ...] = ()
    blocked: Blocked | None = None
    behind: Blocked | None = None
    """The run of its lane because of which a resume of this ended run is refused for now."""
    no_worker: NoWorker | None = None
    unsendable: Unsendable | None = None
    """Says whether no process can send an intent; None if this was not asked."""
    lost: HoldfastError | None = None
    """Why the values that the run carries from its thread cannot be found."""
    walked: Walk | None = None
    """The walk over the end of a long log, if the whole log was not read: then ``rows`` are those since its newest whole checkpoint."""

    @cached_property
    def walk(self) -> Walk:
        return self.walked or walk(self.run, self.rows, self.origin)

    @property
    def head(self) -> Checkpoint:
        """The newest checkpoint, as far as the log can be read."""
        return self.walk.progress.checkpoint

    @property
    def gone(self) -> list[Effect]:
        """The effects of completed steps that were undone, or may have been, so that a resume is refused; empty unless the run could otherwise be resumed (§6.11)."""
        ended = self.run.status in RESUMABLE and not self.run.settled
        return compensation.find_taken_back(self.effect_records, self.run.run_id, self.head) if ended else []

    @cached_property
    def mask(self) -> Mask:
        return mask(self.run.secrets, self.walk.states) if self.run.secrets else NOTHING

    @cached_property
    def channels(self) -> dict[str, Any] | None:
        """The values at the head as JSON; None if they cannot be read: ``problems`` says why."""
        broken = self.walk.broken or self.lost
        if broken is not None:
            return {"unreadable": broken.message} if broken.code == "event_unreadable" else None
        return describe.values(self.head.values)

    @cached_property
    def record(self) -> describe.RunView:
        effects = {e.effect_id: e for e in self.effect_records}
        return describe.hide(describe.run(self.run, self.lease, self.now, channels=self.channels, effects=effects, blocked=self.blocked, no_worker=self.no_worker), self.mask)

    def detail(self, *, deduplicated: bool = False) -> describe.RunDetail:
        """Returns the record with its problems."""
        return describe.detail(self.record, list(self.problems), deduplicated=deduplicated)

    @property
    def waits(self) -> list[describe.WaitView]:
        return self.record.waits

    def story(self) -> list[Moment]:
        """Returns the timeline, with the attempts at sending the run's messages by their times (§9.3). A row that cannot be read ends it."""
        return [replace(m, detail=self.mask.text(m.detail)) for m in timeline(self.walk.events, self.intent_records, self.walk.names)]

    def events(self, after: int = 0, limit: int | None = None) -> list[describe.EventView]:
        chosen = [e for e in self.walk.events if e.seq > after][:limit]
        return [describe.hide(describe.event(self.run, e), self.mask) for e in chosen]

    def checkpoints(self, *, hidden: bool = True) -> list[describe.CheckpointView]:
        """Returns all checkpoints, oldest first; secrets are hidden unless ``hidden`` is False.

        Raises:
            StoreCorrupt, EventUnreadable: the log cannot be walked.
        """
        with canon.looking():
            return self._checkpoints(self.mask if hidden else NOTHING)

    def _checkpoints(self, hidden: Mask) -> list[describe.CheckpointView]:
        return [describe.hide(describe.checkpoint(progress.checkpoint, progress.results), hidden) for progress in self._walk_checkpoints()]

    def _walk_checkpoints(self) -> Iterator[Progress]:
        progress = Progress(self.run.run_id, self.origin)
        for row in self.rows:
            record = open_row(row, progress.hash)
            progress.step(record)
            if record.delta is not None:
                yield progress

    def find_fork_point(self) -> str:
        """Returns the checkpoint at which a fork begins with the newest state that contains nothing that was undone (§6.11); "" if there is none.

        Raises:
            StoreCorrupt, EventUnreadable: the log cannot be walked.
        """
        undone, found = compensation.missing(self.effect_records, self.run.run_id), ""
        with canon.looking():
            for progress in self._walk_checkpoints():
                if compensation.redoes(progress.checkpoint, undone):
                    found = progress.checkpoint.checkpoint_id
        return found

    def effects(self) -> list[describe.EffectView]:
        return [describe.hide(describe.effect(e), self.mask) for e in self.effect_records]

    def intents(self) -> list[describe.IntentView]:
        lacking = self.unsendable
        return [describe.hide(describe.intent(i, no_transport=lacking is not None and lacking(i)), self.mask) for i in self.intent_records]

    def ledger(self) -> list[describe.LedgerView]:
        return [describe.hide(describe.ledger(row), self.mask) for row in self.ledger_rows]

    @cached_property
    def turns(self) -> Turns:
        return Turns(self.run, self.lease).feed(self.walk.events)

    def steps(self) -> list[describe.StepView]:
        return [describe.hide(s, self.mask) for s in self.turns.steps(self.walk.names)]

    def attempts(self) -> list[describe.AttemptView]:
        return [describe.hide(a, self.mask) for a in self.turns.attempts(self.walk.names)]


Check = Callable[[str], Awaitable[Sequence[Problem]]]


async def page(store: Store, run_id: str, after: int, limit: int) -> list[ev.Event]:
    """Returns the first ``limit`` events newer than ``after``. Only their rows and the row before them are read, whose hash the first is checked against.

    Raises:
        ChainBroken, EventUnreadable, UnsupportedFormat: one of them is damaged or cannot be read.
    """
    rows = await store.rows(run_id, max(0, after - 1), limit + 1)
    if not rows:
        return []
    if rows[0].seq <= after:
        previous, rows = rows[0].hash, rows[1:]
    else:
        first = open_row(rows[0]).events[0].seq
        before = await store.rows(run_id, first - 2, 1) if first > 1 else []
        previous = before[0].hash if before else b""
    return [event for record in open_rows(rows, previous) for event in record.events if event.seq > after][:limit]


async def find_run(store: Store, run_id: str, tenant_id: str | None = None) -> tuple[Run, Lease]:
    """Returns the row of a run. Another tenant's run is not found, with the same words as for an id that never existed (§14.2).

    Raises:
        InvalidInput, RunNotFound: there is no such run here.
    """
    if not run_id:
        raise InvalidInput("the run id is empty", hint="list the runs: holdfast runs")
    row = await store.get(run_id)
    if row is None and tenant_id is None:
        raise await missing(store, run_id)
    if row is None or (tenant_id is not None and row[0].tenant_id != tenant_id):
        raise RunNotFound(f"there is no run {run_id!r}", hint="list the runs: holdfast runs")
    return row


TAIL = 1_000
"""How many events the end of a run contains, if not all are read."""


async def tail(store: Store, threads: Threads, run_id: str, *, tenant_id: str | None = None) -> Snapshot:
    """Reads a long run as it is, with its last events: the cost does not grow with the run.

    Raises:
        InvalidInput, RunNotFound: there is no such run here.
    """
    await find_run(store, run_id, tenant_id)
    loaded = await threads.load(run_id)
    if loaded is None:
        raise await missing(store, run_id)
    run = loaded.run
    effects, now = tuple(await store.effects(run_id)), store.now()
    intents, ledger = tuple(await store.intents(run_id, limit=TAIL)), tuple(await store.ledger(run_id, limit=TAIL))
    rows = await store.rows(run_id, max(0, run.version - TAIL))
    with canon.looking():
        try:
            events = tuple([e for row in rows for e in open_row(row).events if e.seq <= run.version])
            progress = Progress(run_id, loaded.whole).walk(loaded.rows)
        except HoldfastError:  # something is damaged: the whole run is read, and what is readable is shown
            return await snapshot(store, threads, run_id, tenant_id=tenant_id)
    walked = Walk(events, progress, {}, ())
    return Snapshot(run, loaded.lease, now, tuple(loaded.rows), loaded.whole, effects, intents, ledger, walked=walked)


async def snapshot(store: Store, threads: Threads, run_id: str, *, tenant_id: str | None = None, check: Check | None = None) -> Snapshot:
    """Reads everything about a run at one instant; ``check`` finds its problems.

    Raises:
        InvalidInput, RunNotFound: there is no such run here.
    """
    run, lease = await find_run(store, run_id, tenant_id)
    for last in [False] * TRIES + [True]:
        effects = tuple(await store.effects(run_id))
        intents = tuple(await store.intents(run_id, limit=MOST))
        ledger = tuple(await store.ledger(run_id, limit=MOST))
        problems = () if check is None else tuple(await check(run_id))
        rows = tuple(await store.rows(run_id))
        now, before = store.now(), run
        run, lease = await find_run(store, run_id, tenant_id)
        if last or run.version == before.version:
            break
    if rows and rows[-1].seq != run.version:
        run = fold_all(None, [event for row in rows for event in open_row(row).events])
    origin, lost = None, None
    try:
        with canon.looking():
            origin = await threads.origin(run_id, rows)
    except HoldfastError as e:
        lost = e
    return Snapshot(run, lease, now, rows, origin, effects, intents, ledger, problems, lost=lost)
