"""What must hold of every store at every moment, whatever has happened to its users.

``violations`` reads through the port alone, so that the same checker judges the memory store of a simulated seed and a
database whose real processes were killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import msgspec

from holdfast.core import compensation, decisions
from holdfast.core import events as ev
from holdfast.core.codec import Record, Row, open_row
from holdfast.core.commands import Decide
from holdfast.core.commit import Commit, InboxItem
from holdfast.core.consistency import drift
from holdfast.core.effects import Effect, EffectStatus
from holdfast.core.errors import EffectsUndone, HoldfastError
from holdfast.core.progress import Progress
from holdfast.core.run import Run, fold
from holdfast.core.status import TERMINAL, Status
from holdfast.engine.look.threads import Origin, Threads
from holdfast.ports import RunFilter, Store

PAGE = 500
RESOLVED = (ev.WaitDecided, ev.WaitTimedOut)
ENDED = (ev.RunCompleted, ev.RunFailed, ev.RunCanceled)


class Violation(msgspec.Struct, frozen=True):
    """A broken invariant: its code, the run, and what was found."""

    code: str
    run_id: str
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.code, self.run_id, self.message) if part)


async def violations(store: Store) -> list[Violation]:
    """Returns all violations found in a store, run by run; an empty list if there are none."""
    found: list[Violation] = []
    keys: Counter[str] = Counter()
    logs: dict[str, list[Record]] = {}
    async for run in _runs(store):
        rows = await store.rows(run.run_id)
        records, broken = _records(run.run_id, rows)
        found += broken
        if not broken:
            logs[run.run_id] = records
            found += await _values(store, run, rows, records)
            found += inbox_violations(run, records, await store.inbox(run.run_id, taken=True))
        keys.update(i.key for i in await store.intents(run.run_id))
    found += effect_violations(await store.effects(), logs)
    found += [Violation("intent_twice", "", f"the intent key {key!r} is there {n} times") for key, n in keys.items() if n > 1]
    return found


async def _runs(store: Store) -> AsyncIterator[Run]:
    before: str | None = None
    while True:
        page = await store.runs(RunFilter(before=before, limit=PAGE))
        for run, _ in page:
            yield run
        if len(page) < PAGE:
            return
        before = page[-1][0].run_id


async def _values(store: Store, run: Run, rows: Sequence[Row], records: Sequence[Record]) -> list[Violation]:
    """Returns the log's violations. Values that are loaded from whole checkpoints and other runs' logs must equal what the whole log folds to (§4.5)."""
    threads = Threads(store)
    try:
        origin, loaded = await threads.origin(run.run_id, rows), await threads.load(run.run_id)
    except HoldfastError as e:
        return [Violation("checkpoint_broken", run.run_id, e.message)]
    found = log_violations(run, records, origin)
    if not found and loaded is not None:
        short = Progress(run.run_id, loaded.whole).walk(loaded.rows).checkpoint
        if short.values != Progress(run.run_id, origin).walk(rows).checkpoint.values:
            found.append(Violation("values_differ", run.run_id, f"{short.checkpoint_id} loads with other values than those computed from the log"))
    return found


def _records(run_id: str, rows: Sequence[Row]) -> tuple[list[Record], list[Violation]]:
    """Returns the log of a run, checked against its hash chain, and a violation if it cannot be read."""
    records: list[Record] = []
    previous = b""
    for row in rows:
        try:
            record = open_row(row, previous)
        except HoldfastError as e:
            return records, [Violation("chain_broken", run_id, e.message)]
        records.append(record)
        previous = record.hash
    return records, []


def log_violations(run: Run, records: Sequence[Record], origin: Origin | None = None) -> list[Violation]:
    """Checks a run's log against itself and against the run's row (§1.1, §1.4, §1.8, §2.8, §5.6)."""
    found: list[Violation] = []

    def say(code: str, message: str) -> None:
        found.append(Violation(code, run.run_id, message))

    events = [e for r in records for e in r.events]
    if [e.seq for e in events] != list(range(1, len(events) + 1)):
        say("event_gap", f"event numbers are {[e.seq for e in events]}")
        return found
    folded: Run | None = None
    try:
        for event in events:
            folded = fold(folded, event)
    except HoldfastError as e:
        say("fold_refused", e.message)
        return found
    if folded is None or (names := drift(run, folded)):
        say("fold_drift", f"the row differs from its events in {names if folded is not None else 'everything'}")
    progress = Progress(run.run_id, origin)
    try:
        for record in records:
            progress.step(record)
    except HoldfastError as e:
        say("checkpoint_broken", e.message)
    else:
        head = progress.checkpoint.checkpoint_id if progress.checkpoint.seq else None
        if run.checkpoint_head != head:
            say("head_missing", f"the head is {run.checkpoint_head}, the log's last checkpoint {head}")
    fences = [e.fence for e in events]
    if fences != sorted(fences):
        say("fence_went_back", f"events were written under the fences {fences}")
    if run.terminal and run.status is not Status.COMPLETED and not run.stop_reason:
        say("no_stop_reason", f"it ended {run.status} and does not say why")
    _lifecycle(events, say)
    return found


def _lifecycle(events: Iterable[ev.Event], tell: Callable[[str, str], None]) -> None:
    """Checks what may happen only once, or only once between two other events."""
    ended: str | None = None
    started = 0
    resolved: set[str] = set()
    completed: set[tuple[int, str, str]] = set()
    for event in events:
        fact = event.fact
        if ended is not None and isinstance(fact, ENDED):
            tell("two_terminals", f"{fact.wire} (event {event.seq}) after {ended} without a resume")
        if isinstance(fact, ENDED):
            ended = fact.wire
            if isinstance(fact, ev.RunFailed) and fact.stop_reason == EffectsUndone.code:
                last = max((step for step, _, _ in completed), default=0)
                completed = {c for c in completed if c[0] != last}  # a resume does again what depended on effects that another run has undone
        elif isinstance(fact, ev.RunResumed):
            ended = None
        elif isinstance(fact, ev.RunStarted):
            started += 1
            if started > 1:
                tell("started_twice", f"run.started again at event {event.seq}")
        elif isinstance(fact, ev.WaitRequested):
            resolved.discard(fact.wait.wait_id)
        elif isinstance(fact, RESOLVED):
            if fact.decision.wait_id in resolved:
                tell("wait_resolved_twice", f"{fact.decision.wait_id} again at event {event.seq}")
            resolved.add(fact.decision.wait_id)
        elif isinstance(fact, ev.WaitClosed) and fact.returned is not None:
            _, step, _ = fact.wait_id.split(".", 2)
            task, path = decisions.place(fact.wait_id)
            completed = {c for c in completed if c[:2] != (int(step), task) or not path.startswith(f"{c[2]}/")}  # what was made of the signal is made anew
        elif isinstance(fact, ev.SideEffectRecorded) and fact.task == compensation.TASK:
            undone = compensation.undone_at(fact.path)[:2]
            completed = {c for c in completed if c[:2] != undone}  # a resume does the effect again, and what was recorded after it
        elif isinstance(fact, ev.StepEnded):
            place = (fact.step, fact.task, fact.path)
            if place in completed:
                tell("completed_twice", f"step {fact.step} {fact.task} {fact.path} again at event {event.seq}")
            completed.add(place)


def inbox_violations(run: Run, records: Sequence[Record], items: Sequence[InboxItem]) -> list[Violation]:
    """Checks that each taken item was taken by a commit in the log, and that no decision is left whose wait was decided. Other items may be left."""
    ends = {r.seq for r in records}
    decided = {e.fact.decision.wait_id for r in records for e in r.events if isinstance(e.fact, ev.WaitDecided)}
    left = [i for i in items if i.taken_seq is None and isinstance(i.command, Decide) and i.command.wait_id in decided]
    return [Violation("inbox_not_consumed", run.run_id, f"{i.key} is decided, and still waits to be taken") for i in left] + [
        Violation("inbox_taken_unseen", run.run_id, f"{i.key} was taken by event {i.taken_seq}, which ends no commit")
        for i in items
        if i.taken_seq is not None and i.taken_seq not in ends
    ]


def effect_violations(effects: Sequence[Effect], logs: dict[str, list[Record]]) -> list[Violation]:
    """Checks each key's records: a key is confirmed once, has one open record, and is never tried again while the outcome is unknown (§6.5)."""
    found: list[Violation] = []
    by_key: dict[str, list[Effect]] = {}
    for effect in effects:
        by_key.setdefault(effect.key, []).append(effect)
    for key, tries in by_key.items():
        run_id = tries[0].run_id
        label = key.replace("\x1f", "/")
        confirmed = [e for e in tries if e.status is EffectStatus.RECORDED and e.source_effect_id is None]
        if len({e.effect_id for e in confirmed}) > 1 and not any(e.replay_policy == "reexecute" for e in confirmed):
            found.append(Violation("effect_confirmed_twice", run_id, f"{label}: {[e.effect_id for e in confirmed]}"))
        if sum(e.open for e in tries) > 1:
            found.append(Violation("effect_open_twice", run_id, f"{label} has several attempts without a result"))
    for run_id, records in logs.items():
        found += _blind(run_id, records, {e.effect_id: e for e in effects})
    return found


def _blind(run_id: str, records: Sequence[Record], effects: dict[str, Effect]) -> list[Violation]:
    """Returns attempts under a key whose last attempt has no outcome, though nobody was asked and nothing was verified.

    An owner that comes too late closes its own attempt in the effect's row, without an event (§6.5).
    """
    found: list[Violation] = []
    unsettled: dict[str, str] = {}
    for record in records:
        for event in record.events:
            fact = event.fact
            if isinstance(fact, ev.SideEffectAttempted):
                effect = effects.get(fact.effect_id)
                before = effects.get(unsettled.get(fact.key, ""))
                closed = before is None or before.status in (EffectStatus.ABANDONED, EffectStatus.FAILED)
                if not closed and (effect is None or not (effect.idempotent or effect.verifiable)):
                    label = fact.key.replace("\x1f", "/")
                    found.append(Violation("effect_repeated_blindly", run_id, f"{label} at event {event.seq}"))
                unsettled[fact.key] = fact.effect_id
            elif isinstance(fact, ev.EffectFact) and not isinstance(fact, ev.SideEffectUnknown):
                unsettled.pop(fact.key, None)
            elif isinstance(fact, RESOLVED) or (isinstance(fact, ev.RunResumed) and fact.cause == "operator"):
                unsettled.clear()  # a person has looked
    return found


# -- lanes: over the order in which commits were applied ---------------------------------------------


def lane_violations(order: Iterable[tuple[str, Commit]]) -> list[Violation]:
    """Checks that no run of a lane works between the first step and the end of another, and that runs begin in turn (§10.8).

    ``order`` lists what the store applied, in the order in which it did: (session and lane, commit). A run that ended and was
    resumed takes the lane anew.
    """
    found: list[Violation] = []
    holder: dict[str, str] = {}
    queued: dict[str, dict[str, None]] = {}
    for lane, commit in order:
        run = commit.run
        queue = queued.setdefault(lane, {})
        if commit.after is None:
            queue[run.run_id] = None
        worked = any(isinstance(e.fact, ev.StepStarted | ev.StepEnded) for e in commit.events)
        held = holder.get(lane)
        if worked and held is not None and held != run.run_id:
            found.append(Violation("lane_overlap", run.run_id, f"it worked in {lane} (event {commit.events[-1].seq}) while {held} held it"))
        if worked and run.run_id in queue and (first := next(iter(queue))) != run.run_id:
            found.append(Violation("lane_order", run.run_id, f"it began in {lane} before {first}, which was submitted earlier"))
        if worked or run.terminal:
            queue.pop(run.run_id, None)
        if worked and not run.terminal:
            holder[lane] = run.run_id
        if run.status in TERMINAL and holder.get(lane) == run.run_id:
            del holder[lane]
    return found


__all__ = ["Violation", "effect_violations", "inbox_violations", "lane_violations", "log_violations", "violations"]
