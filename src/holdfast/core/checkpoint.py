"""Checkpoints: immutable state at a barrier, chained by parent, stored as deltas (§4.5).

A ``Delta`` is what one barrier changed: the finished tasks with their writes, and what runs next. ``advance``
applies one to its parent; live code and loading call the same function, so what is loaded is what was live.
A checkpoint's hash is H(parent's hash, delta's bytes); the event of its commit names it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain, compress, repeat
from operator import attrgetter, is_
from typing import Any

import msgspec

from holdfast.core import canon, ids
from holdfast.core import events as ev
from holdfast.core.canon import EMPTY_DICT, EMPTY_LIST
from holdfast.core.channels import TOPIC, take
from holdfast.core.errors import ErrorValue, EventUnreadable
from holdfast.core.outcomes import OK, SKIPPED, completes
from holdfast.core.recorded import Recorded
from holdfast.core.waits import Wait

FORMAT = 100  # of everything this release writes: major x 100 + minor (§1.8)
INPUT_TASK = "@input"
CARRY_TASK = "@carried"
PATCH_TASK = "@patch"
SIGNAL = "@signal~"
WAITING_TASK = "@waiting"
"""Stands in ``done`` where a barrier carried waiting tasks on: a release that does not know of them finds no such result, and stops."""
RESULT = "@result"
CHECK = "@check"
"""Beside the calls of a step: its result that a person is asked about, or was, and beneath it what they answered."""
NONE_SEEN: Mapping[str, int] = {}
NONE_DECODED: Mapping[str, Mapping[str, Any]] = {}
NONE_HELD: Mapping[int, Mapping[str, Any]] = {}


class Source(StrEnum):
    INPUT = "input"
    LOOP = "loop"
    WAIT = "wait"
    FAILURE = "failure"
    CANCEL = "cancel"
    FORK = "fork"
    PATCH = "patch"


class Boundary(StrEnum):
    RUN_STARTED = "run_started"
    STEP_COMPLETED = "step_completed"
    WAITING_FOR_HUMAN = "waiting_for_human"
    WAITING_FOR_SIGNAL = "waiting_for_signal"
    RUN_COMPLETED = "run_completed"
    RUN_FAILED = "run_failed"
    RUN_CANCELED = "run_canceled"


class Task(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A node's turn in the coming super-step. ``seen``: the trigger channels it consumes; ``skip``: why it is passed over;
    ``feedback``: what a person wants changed in a step that is done again, encoded (§5.5). ``began``: the super-step it is a task of, if
    it waits while the run goes on (§5.11), else 0; ``owed``: feedback that came meanwhile, for the node's next turn."""

    node: str
    index: int = 0
    payload: bytes | None = None
    seen: tuple[str, ...] = ()
    skip: str = ""
    feedback: bytes | None = None
    began: int = 0
    owed: bytes | None = None

    @property
    def key(self) -> str:
        return self.node if self.index == 0 else f"{self.node}~{self.index}"  # as ``ids.task_key``


_keys: tuple[tuple[Task, ...], list[str]] = ((), [])  # those that were asked for last


def keys_of(tasks: tuple[Task, ...]) -> list[str]:
    """The keys of these tasks, not to be changed. Those of one super-step are asked for several times, and made once."""
    global _keys
    known = _keys
    if known[0] is not tasks:
        _keys = known = (tasks, [t.node if t.index == 0 else f"{t.node}~{t.index}" for t in tasks])  # as ``Task.key``, without a call for each
    return known[1]


class SendTo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    node: str
    payload: bytes


class IntentWrite(msgspec.Struct, frozen=True, array_like=True):
    """An act a task asks for; the barrier makes an intent of it (§9.1). ``payload`` is encoded."""

    type: str
    payload: bytes
    key: str = ""
    order_key: str = ""


class LedgerWrite(msgspec.Struct, frozen=True, array_like=True):
    """A ledger row a task returns; it commits with the barrier (§9.6). ``data`` is encoded. Instead of a row it may be a ``statement`` for the
    application's own tables, whose parameters are the data."""

    topic: str
    key: str
    data: bytes
    statement: str = ""


class TaskResult(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """What a finished task leaves: writes, routing, outcome and what it sends: one atomic record (§4.6).

    ``writes`` is an encoded dict; ``goto`` and ``chosen`` are what the node and its routers named; ``result`` is a flow's value;
    ``feedback`` goes to the nodes that ``goto`` names, encoded; ``unsent`` are the nodes that an empty list of ``Send``s was for.
    """

    task: str
    outcome: str = OK
    writes: bytes | None = None
    goto: tuple[str, ...] | None = None
    chosen: tuple[str, ...] = ()
    sends: tuple[SendTo, ...] = ()
    attempt: int = 1
    result: bytes | None = None
    intents: tuple[IntentWrite, ...] = ()
    ledger: tuple[LedgerWrite, ...] = ()
    feedback: bytes | None = None
    unsent: tuple[str, ...] = ()


class StepRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A recorded call inside a task, by scope and position (§4.12). ``value`` is encoded; a failure has ``error``."""

    task: str
    path: str
    name: str
    value: bytes | None = None
    error: ErrorValue | None = None
    attempt: int = 1
    kind: str = "step"
    digest: str = ""


Result = TaskResult | StepRecord


def find_scopes(records: Iterable[StepRecord]) -> frozenset[str]:
    """The places with anything on record beneath them."""
    found = set()
    for record in records:
        path = record.path
        while "/" in path:
            path = path.rpartition("/")[0]
            found.add(path)
    return frozenset(found)


class Held(msgspec.Struct, frozen=True, array_like=True):
    """What the tasks of one super-step see that wait while the run goes on: ``values``, encoded, are those in which it differs from the
    checkpoint's own; ``absent`` are channels that had no value yet."""

    step: int
    values: bytes
    absent: tuple[str, ...] = ()


class Base(msgspec.Struct, frozen=True, array_like=True):
    """What a run that begins at another's checkpoint takes over beside its values (§7.7)."""

    versions: dict[str, int] = {}
    seen: dict[str, dict[str, int]] = {}
    skipped: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()
    idle: int = 0


class Tried(msgspec.Struct, frozen=True, array_like=True):
    """How often a place of a task has been tried or asked at; ``due``: when the next attempt may begin."""

    task: str
    path: str
    count: int
    due: int = 0


class Unfinished(msgspec.Struct, frozen=True, array_like=True):
    """What is on record of tasks that have not come to a barrier's end. A whole checkpoint holds it, for loading begins there.

    With a barrier these are the tasks that wait while the run goes on. One that was saved later, with a signal, holds all that has happened
    since the barrier, up to event ``upto``. Signals themselves stay in the log: ``heard`` is the first event since the barrier that
    tells of one, 0 if none has come, and ``names`` what they were called. ``outdated``: the places of records that answer only the very same call.
    """

    results: tuple[TaskResult | StepRecord, ...] = ()
    attempts: tuple[Tried, ...] = ()
    asked: tuple[Tried, ...] = ()
    questions: tuple[Wait, ...] = ()
    failed: dict[str, ErrorValue] = {}
    takeovers: int = 0
    late: int = 0
    heard: int = 0
    names: tuple[str, ...] = ()
    upto: int = 0
    cuts: int = 0
    outdated: tuple[tuple[str, str], ...] = ()


class Carry(msgspec.Struct, frozen=True, array_like=True):
    """Whose values these channels begin with: another run's, as its log stood at event ``seq`` (§4.15). ``hash`` is where that log's
    chain stood there, and so vouches for all of it."""

    run_id: str
    seq: int
    hash: bytes
    channels: tuple[str, ...]


class Delta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a checkpoint changes of its parent. ``done`` names finished tasks in task order: the result itself, or
    the key of one that was durable before. ``kinds``: reducers other than ``last``; ``values``: what no built-in
    reducer made (defaults, custom reducers, patches). With ``step`` unchanged nothing advances (§4.8). ``carries``: what a run's first
    one takes over from its thread; the parent's values are those already when it is applied."""

    step: int
    source: Source = Source.LOOP
    done: tuple[TaskResult | str, ...] = ()
    kinds: dict[str, str] = {}
    values: bytes | None = None
    pending: tuple[Task, ...] | None = None
    base: Base | None = None
    carries: tuple[Carry, ...] = ()


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A whole checkpoint, as loaded. ``values`` are frozen; ``created_at`` is microseconds since 1970.

    ``results`` and ``records`` are the pending writes: what is finished or recorded since the last barrier.
    ``skipped`` are the nodes whose last turn was a skip; ``topics`` the channels to be emptied at the next barrier.
    ``held``: by super-step, what its tasks see that wait while the run goes on (§5.11); ``idle``: how many barriers took no task, but
    only what came for others; ``unfinished``: what is on record of those that wait, where the checkpoint is one to load from.
    """

    run_id: str
    seq: int
    step: int
    values: Mapping[str, Any]
    versions: Mapping[str, int]
    seen: Mapping[str, Mapping[str, int]]
    pending: tuple[Task, ...]
    parent: str | None = None
    skipped: frozenset[str] = frozenset()
    topics: tuple[str, ...] = ()
    waits: tuple[Wait, ...] = ()
    source: Source = Source.INPUT
    boundaries: tuple[Boundary, ...] = ()
    writes: Mapping[str, Any] = {}
    hash: bytes = b""
    created_at: int = 0
    format: int = FORMAT
    held: Mapping[int, Mapping[str, Any]] = {}
    idle: int = 0
    unfinished: Unfinished | None = None

    @property
    def checkpoint_id(self) -> str:
        return ids.checkpoint_id(self.run_id, self.seq)

    @property
    def upto(self) -> int:
        """The last event that loading from here need not look at."""
        return self.seq if self.unfinished is None else max(self.seq, self.unfinished.upto)

    @property
    def taken(self) -> int:
        """How many super-steps have come to their end."""
        return self.step - self.idle

    @property
    def waiting(self) -> tuple[Task, ...]:
        """The pending tasks of earlier super-steps."""
        return tuple([t for t in self.pending if t.began]) if self.held else ()

    def step_of(self, task: str) -> int:
        """The super-step that a pending task is of: the coming one, unless it waits while the run goes on."""
        if self.held:
            for t in self.pending:
                if t.began and t.key == task:
                    return t.began
        return self.step + 1

    def see_as(self, task: Task) -> Mapping[str, Any]:
        """The values that a pending task sees: those its super-step began with."""
        return self.held[task.began] if task.began else self.values


def empty(run_id: str, values: Mapping[str, Any] = EMPTY_DICT) -> Checkpoint:
    """What precedes the first checkpoint of a run: nothing, or ``values`` that it carries from its thread."""
    return Checkpoint(run_id=run_id, seq=0, step=-1, values=values, versions={}, seen={}, pending=())


def decode_writes(result: TaskResult) -> Mapping[str, Any]:
    """The decoded writes of a finished task."""
    if result.writes is None:
        return {}
    value = canon.decode(result.writes)
    if not isinstance(value, dict):
        raise EventUnreadable(f"the writes of {result.task} are not a mapping")
    return value


def bump(done: Sequence[TaskResult], writes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The channels that have news after these tasks, in a repeatable order (§4.3).

    A node that an empty list of ``Send``s was for is done, unless another task of the super-step sends to it.
    """
    out: dict[str, None] = {}
    ended: set[str] = set()
    for result in done:
        task = result.task
        if task == INPUT_TASK:
            out["@start"] = None
        elif result.goto is None and task[0] != "@" and (node := ids.node_of(task)) not in ended:
            ended.add(node)
            out[f"done:{node}"] = None
        for target in result.goto or ():
            out[f"goto:{target}"] = None
        for target in result.chosen:
            out[f"goto:{target}"] = None
        for channel in writes[task]:
            out[channel] = None
    for node in find_unsent(done):
        out[f"done:{node}"] = None
    return list(out)


def find_unsent(done: Sequence[TaskResult]) -> list[str]:
    """The nodes for which nothing was sent, though something might have been."""
    named = [node for result in done for node in result.unsent]
    return [node for node in named if all(s.node != node for result in done for s in result.sends)] if named else named


def advance(
    parent: Checkpoint,
    delta: Delta,
    results: Mapping[str, TaskResult],
    *,
    seq: int,
    at: int,
    hash: bytes,
    waits: tuple[Wait, ...] = (),
    boundaries: tuple[Boundary, ...] = (),
    decoded: Mapping[str, Mapping[str, Any]] | None = None,
) -> Checkpoint:
    """The checkpoint after ``delta``. ``results`` holds what ``delta.done`` names by key; ``decoded`` spares the live
    path a second decode of writes it has just made.

    Raises:
        EventUnreadable: the delta names a result that is not there.
    """
    return advance_with_news(parent, delta, results, seq=seq, at=at, hash=hash, waits=waits, boundaries=boundaries, decoded=decoded)[0]


def advance_with_news(
    parent: Checkpoint,
    delta: Delta,
    results: Mapping[str, TaskResult],
    *,
    seq: int,
    at: int,
    hash: bytes,
    waits: tuple[Wait, ...] = (),
    boundaries: tuple[Boundary, ...] = (),
    decoded: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Checkpoint, list[str]]:
    """``advance``, and the channels that have news by it."""
    parent_id = parent.checkpoint_id if parent.seq else None
    if delta.base is not None:
        b = delta.base
        kept = canon.EMPTY_DICT if delta.values is None else canon.decode(delta.values)
        parent = msgspec.structs.replace(parent, values=kept, versions=b.versions, seen=b.seen, skipped=frozenset(b.skipped))
        based = msgspec.structs.replace(
            parent, seq=seq, step=delta.step, pending=delta.pending or (), topics=b.topics, parent=parent_id, created_at=at, hash=hash, waits=waits,
            boundaries=boundaries, source=delta.source, writes={}, held=unpack_held(kept, b.held), idle=b.idle,
        )
        return based, []
    if delta.step == parent.step and not delta.done and delta.values is None:
        still = msgspec.structs.replace(
            parent, seq=seq, parent=parent_id, created_at=at, hash=hash, waits=waits, boundaries=boundaries, source=delta.source, writes={}, unfinished=None
        )
        return still, []
    done = [entry if isinstance(entry, TaskResult) else _find(entry, results) for entry in delta.done if entry != WAITING_TASK]
    carries_on = len(done) < len(delta.done)
    known = NONE_DECODED if decoded is None else decoded
    writes = {r.task: known[r.task] if r.task in known else decode_writes(r) for r in done}
    values = dict(parent.values)
    kinds, moves = delta.kinds, delta.step != parent.step
    topics = () if moves else parent.topics
    if moves:
        for name in parent.topics:
            values[name] = EMPTY_LIST
    if not kinds:
        for write in writes.values():
            values.update(write)
    else:
        topics = (*topics, *(n for n, tag in kinds.items() if tag == TOPIC and n not in topics))
        for name in topics:
            if moves or name not in parent.topics:
                values[name] = EMPTY_LIST
        take(values, kinds, writes.values())
    news = bump(done, writes)
    held = _keep_views(parent, delta.pending) if carries_on else parent.held if delta.pending is None else NONE_HELD
    if delta.values is not None:
        given = canon.decode(delta.values)
        values.update(given)
        if delta.source is Source.PATCH:
            news += [n for n in given if n not in news]
            held = {step: canon.FrozenDict({**seen, **given}) for step, seen in held.items()}
    versions = parent.versions
    if news:
        versions = dict(versions)  # a clone, which is quicker than unpacking two into a third
        for name in news:
            versions[name] = delta.step
    seen, skipped = parent.seen, parent.skipped
    if done:
        turns = {t.key: t for t in parent.pending}
        seen = dict(seen)
        had = parent.versions
        for result in done:
            turn = turns.get(result.task)
            node = ids.node_of(result.task) if turn is None else turn.node
            if turn is not None and turn.seen:
                seen[node] = upto = dict(seen.get(node, NONE_SEEN))
                for channel in turn.seen:
                    upto[channel] = had.get(channel, 0) if not turn.began else max(upto.get(channel, 0), min(had.get(channel, 0), turn.began - 1))
            if result.outcome != OK and result.outcome.strip().lower().startswith(SKIPPED):
                skipped |= {node}
            elif node in skipped:
                skipped -= {node}
        if skipped and (none := find_unsent(done)):
            skipped -= set(none)
    moved = Checkpoint(
        run_id=parent.run_id,
        seq=seq,
        step=delta.step,
        values=values,
        versions=versions,
        seen=seen,
        pending=parent.pending if delta.pending is None else delta.pending,
        parent=parent_id,
        skipped=skipped,
        topics=topics,
        waits=waits,
        source=delta.source,
        boundaries=boundaries,
        writes=writes,
        hash=hash,
        created_at=at,
        held=held,
        idle=parent.idle + (carries_on and all(r.task[0] == "@" for r in done)),
    )
    return moved, news


_node, _seen = attrgetter("node"), attrgetter("seen")
_named = attrgetter("outcome", "goto", "chosen", "sends", "unsent", "feedback")
_NOBODY = (OK, None, (), (), (), None)


def cross_alone(
    parent: Checkpoint, result: TaskResult, inline: bool, writes: Mapping[str, Any] | None, lasting: frozenset[str]
) -> tuple[Delta, Checkpoint, list[str]] | None:
    """A barrier by a shorter way, for what most steps are: one task, at its end, that replaced values and named nobody. ``lasting``: the channels whose
    writes replace their values.

    None: it is no such step. What comes out is what the long way gives (a property of the tests), but for what runs next, and the channels that have news.
    """
    if result.outcome != OK or result.goto is not None or result.chosen or result.sends or result.unsent or parent.topics or parent.skipped:
        return None
    if writes is None:
        writes = decode_writes(result)
    if not writes.keys() <= lasting:
        return None
    task, step = parent.pending[0], parent.step + 1
    node, had = task.node, parent.versions
    news = [f"done:{node}", *writes]
    upto = dict(parent.seen.get(node, NONE_SEEN))
    for channel in task.seen:
        upto[channel] = had.get(channel, 0)
    moved = Checkpoint(
        run_id=parent.run_id,
        seq=parent.seq,
        step=step,
        values={**parent.values, **writes},
        versions={**had, **dict.fromkeys(news, step)},
        seen={**parent.seen, node: upto} if upto else parent.seen,
        pending=(),
        parent=parent.checkpoint_id if parent.seq else None,
        source=Source.LOOP,
        writes={result.task: writes},
        idle=parent.idle,
    )
    return Delta(step, Source.LOOP, (result if inline else result.task,)), moved, news


def cross_crowd(
    parent: Checkpoint, results: Mapping[str, TaskResult], inline: frozenset[str] | set[str], decoded: Mapping[str, Mapping[str, Any]], reducing: Mapping[str, str]
) -> tuple[Delta, Checkpoint, list[str]] | None:
    """``cross_alone`` for what most fan-outs are: tasks of one node that were sent to it, have all ended well, and wrote to channels with built-in reducers, which
    ``reducing`` has."""
    node = parent.pending[0].node
    if parent.topics or parent.skipped or {*map(_node, parent.pending)} != {node} or {*map(_seen, parent.pending)} != {()}:
        return None
    keys = keys_of(parent.pending)
    done = [*map(results.__getitem__, keys)]
    if {*map(_named, done)} != {_NOBODY}:
        return None
    if all(map(decoded.__contains__, keys)):
        writes = [*map(decoded.__getitem__, keys)]
    else:
        writes = [decoded[k] if k in decoded else decode_writes(results[k]) for k in keys]
    names = dict.fromkeys(chain.from_iterable(writes))
    kinds = {name: tag for name in names if (tag := reducing.get(name)) is not None}
    if len(kinds) < len(names):
        return None
    step = parent.step + 1
    values = dict(parent.values)
    take(values, kinds, writes)
    news = [f"done:{node}", *names]
    moved = Checkpoint(
        run_id=parent.run_id,
        seq=parent.seq,
        step=step,
        values=values,
        versions={**parent.versions, **dict.fromkeys(news, step)},
        seen=dict(parent.seen),
        pending=(),
        parent=parent.checkpoint_id if parent.seq else None,
        source=Source.LOOP,
        writes=dict(zip(keys, writes, strict=True)),
        idle=parent.idle,
    )
    entries = tuple(done) if inline.issuperset(keys) else tuple([r if r.task in inline else r.task for r in done])
    return Delta(step, Source.LOOP, entries, kinds), moved, news


def list_ends(parent: Checkpoint, results: Iterable[TaskResult | str]) -> list[ev.Fact]:
    """The facts of tasks of the super-step after ``parent`` that have ended; of those that others told of before, there are none."""
    made, kinds, step = list[ev.Fact](), dict[str, type[ev.StepEnded]](), parent.step + 1
    results = tuple(results)
    if len(results) > 8 and not parent.held and {*map(type, results)} == {TaskResult} and {*map(_outcome, results)} == {OK}:  # as most of a fan-out end
        mine = results if results[-1].task[0] != "@" else [r for r in results if r.task[0] != "@"]  # type: ignore[union-attr]  # signals come last
        return [*map(ev.StepCompleted, repeat(step), map(_task, mine), repeat(OK), repeat(b""), map(_attempt, mine))]
    for r in results:
        if type(r) is not TaskResult or r.task[0] == "@":
            continue
        if parent.held:
            step = parent.step_of(r.task)
        if r.outcome not in kinds:
            kinds[r.outcome] = ev.step_ended(r.outcome)
        made.append(kinds[r.outcome](step, r.task, r.outcome, b"", r.attempt))
    return made


_outcome, _task, _attempt = attrgetter("outcome"), attrgetter("task"), attrgetter("attempt")


def voucher(events: Iterable[ev.Event]) -> ev.Event | None:
    """The event of a commit that names its checkpoint's hash (§1.8), and so numbers the checkpoint; None if it has none."""
    for event in events:
        if getattr(event.fact, "hash", b""):
            return event
    return None


def find_voucher(parent: Checkpoint, events: Iterable[ev.Event], delta: bytes) -> tuple[int, bytes] | None:
    """The number and the hash of the checkpoint that these bytes make of its parent; None if no event of their commit vouches for it."""
    found, hash = voucher(events), canon.chain(parent.hash, delta)
    return None if found is None or getattr(found.fact, "hash", b"") != hash else (found.seq, hash)


def vouch(parent: Checkpoint, facts: list[ev.Fact], delta: bytes, source: Source) -> tuple[bytes, int]:
    """The hash of the checkpoint that these bytes make of its parent, written into the last completed step's fact, else into
    ``checkpoint.saved`` (§13.2); and the place of that fact."""
    hash = canon.chain(parent.hash, delta)
    for i in range(_find_starts(facts) - 1, -1, -1) if source is not Source.INPUT else ():  # no step has ended before the first
        fact = facts[i]
        if type(fact) is ev.StepStarted:
            continue
        if (isinstance(fact, ev.StepEnded) and not fact.path) or (source is Source.PATCH and isinstance(fact, ev.StatePatched)):
            facts[i] = msgspec.structs.replace(fact, hash=hash)
            return hash, i
    facts.append(ev.CheckpointSaved(hash=hash, source=source.value))
    return hash, len(facts) - 1


def _find_starts(facts: list[ev.Fact]) -> int:
    """Where the steps begin that come last, as all do that a barrier begins."""
    kinds = [*map(type, facts)]
    found = len(kinds) - kinds.count(ev.StepStarted)
    return len(kinds) if ev.StepStarted in kinds[:found] else found


STEPPED = (Boundary.STEP_COMPLETED,)
ENDED = (Boundary.STEP_COMPLETED, Boundary.RUN_COMPLETED)
_BOUNDARIES: dict[type, Boundary] = {
    ev.RunStarted: Boundary.RUN_STARTED,
    ev.RunWaitingForHuman: Boundary.WAITING_FOR_HUMAN,
    ev.RunWaitingForSignal: Boundary.WAITING_FOR_SIGNAL,
    ev.RunCompleted: Boundary.RUN_COMPLETED,
    ev.RunFailed: Boundary.RUN_FAILED,
    ev.RunCanceled: Boundary.RUN_CANCELED,
}


_STEPS = frozenset({ev.StepStarted, ev.StepCompleted})
_ending = attrgetter("outcome", "path")


def boundaries(events: Iterable[ev.Event], *, advanced: bool) -> tuple[Boundary, ...]:
    """What the checkpoint saved with one commit's facts stands for, each once (§4.5, §4.10).

    ``advanced``: the checkpoint is a barrier's, one super-step further than its parent. Its tasks may have ended in
    earlier commits; a task that ends in this one must have completed, by the one predicate (§4.11).
    """
    facts = events.facts if type(events) is Recorded else [*map(ev.fact_of, events)]
    kinds = tuple(map(type, facts))
    if _STEPS.issuperset(kinds):  # as nearly always, and where there are many
        mine = [*compress(facts, map(is_, kinds, repeat(ev.StepCompleted)))]
        if {*map(_outcome, mine)} == {OK}:
            return STEPPED if advanced else ()
        ended = {*map(_ending, mine)}
        return STEPPED if advanced and all(outcome == OK or path or completes(outcome) for outcome, path in ended) else ()
    if not advanced and len(kinds) < 8:
        return _stand_for(kinds)
    found = []
    for kind, fact in zip(kinds, facts, strict=True):
        if kind is ev.StepStarted:
            continue
        if isinstance(fact, ev.StepEnded):
            if advanced and fact.outcome != OK and not fact.path:
                advanced = completes(fact.outcome)
        elif (boundary := _BOUNDARIES.get(kind)) is not None and boundary not in found:
            found.append(boundary)
    if not advanced:
        return tuple(found)
    return (Boundary.STEP_COMPLETED, *found) if found else STEPPED


@functools.lru_cache(1024)
def _stand_for(kinds: tuple[type, ...]) -> tuple[Boundary, ...]:
    """What facts of these kinds stand for where no super-step ends by them."""
    return tuple(dict.fromkeys([_BOUNDARIES[kind] for kind in kinds if kind in _BOUNDARIES]))


class Ended(msgspec.Struct, frozen=True):
    """How a barrier went, where it was none that takes all that is pending and nothing else: the tasks it took, and what came for others."""

    tasks: tuple[str, ...]
    signals: tuple[TaskResult, ...]


def note_end(delta: Delta) -> Ended | None:
    """What a replay of this barrier has to know, so that its super-steps have the numbers they had (§7.6); None for any plain one."""
    signals = tuple([d for d in delta.done if isinstance(d, TaskResult) and d.task.startswith(SIGNAL)])
    if not signals and WAITING_TASK not in delta.done and not any(t.began for t in delta.pending or ()):
        return None
    keys = [d.task if isinstance(d, TaskResult) else d for d in delta.done]
    return Ended(tuple([k for k in keys if k[0] != "@"]), signals)


def _keep_views(parent: Checkpoint, pending: tuple[Task, ...] | None) -> Mapping[int, Mapping[str, Any]]:
    """What the tasks see that a barrier carries on: what their super-step began with."""
    return {t.began: parent.held.get(t.began, parent.values) for t in (pending or ()) if t.began}


def pack_held(values: Mapping[str, Any], held: Mapping[int, Mapping[str, Any]]) -> tuple[Held, ...]:
    """What waiting tasks see, as far as it differs from these values."""
    out = []
    for step, seen in held.items():
        other = {n: v for n, v in seen.items() if n not in values or values[n] is not v}
        out.append(Held(step, canon.encode(canon.FrozenDict(other)), tuple([n for n in values if n not in seen])))
    return tuple(out)


def unpack_held(values: Mapping[str, Any], held: tuple[Held, ...]) -> Mapping[int, Mapping[str, Any]]:
    """What waiting tasks see, whole again."""
    return {h.step: canon.FrozenDict({n: v for n, v in {**values, **canon.decode(h.values)}.items() if n not in h.absent}) for h in held}


def _find(done: str, results: Mapping[str, TaskResult]) -> TaskResult:
    found = results.get(done)
    if found is None:
        raise EventUnreadable(f"the checkpoint refers to the result of {done}, which is not recorded")
    return found
