"""Checkpoints: immutable state at a barrier, chained by parent, stored as deltas (§4.5).

A ``Delta`` is what one barrier changed: the finished tasks with their writes, and what runs next. ``advance``
applies it to its parent. Live code and loading call the same function, so a loaded checkpoint equals the live one.
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

FORMAT = 100  # the format of everything that this release writes: major x 100 + minor (§1.8)
INPUT_TASK = "@input"
CARRY_TASK = "@carried"
PATCH_TASK = "@patch"
SIGNAL = "@signal~"
REVIEW_TASK = "@review"
WAITING_TASK = "@waiting"
"""Marks in ``done`` that a barrier carried on waiting tasks. A release that does not know such tasks finds no result of this name, and stops."""
CHECK = "@check"
"""The place, among the calls of a step, where the step's result is recorded when a person reviews it. The person's answer is recorded beneath it."""
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
    ``feedback``: what a person wants changed in a step that is done again, encoded (§5.5). ``began``: the super-step to which it belongs, if
    it waits while the run continues (§5.11), else 0; ``owed``: feedback that came during this wait, for the node's next turn."""

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


_keys: tuple[tuple[Task, ...], list[str]] = ((), [])  # the most recent argument of ``keys_of``, and its result


def keys_of(tasks: tuple[Task, ...]) -> list[str]:
    """Returns the keys of these tasks; the caller must not change the list. The last list is cached, because a super-step needs its keys several times."""
    global _keys
    known = _keys
    if known[0] is not tasks:
        _keys = known = (tasks, [t.node if t.index == 0 else f"{t.node}~{t.index}" for t in tasks])  # as ``Task.key``, without a call for each
    return known[1]


class SendTo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    node: str
    payload: bytes


class IntentWrite(msgspec.Struct, frozen=True, array_like=True):
    """A message that a task asks to send; the barrier makes an intent of it (§9.1). ``payload`` is encoded."""

    type: str
    payload: bytes
    key: str = ""
    order_key: str = ""


class LedgerWrite(msgspec.Struct, frozen=True, array_like=True):
    """A ledger row that a task returns; it is committed with the barrier (§9.6). ``data`` is encoded. With a ``statement`` it is not a row but SQL for
    the application's own tables, and the data are the parameters."""

    topic: str
    key: str
    data: bytes
    statement: str = ""


class TaskResult(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """The result of a finished task as one atomic record: writes, routing, outcome, and what it sends (§4.6).

    ``writes`` is an encoded dict; ``goto`` are the nodes that the node named, ``chosen`` those that its routers named; ``result`` is a flow's value;
    ``feedback``, encoded, goes to the nodes in ``goto``; ``unsent`` are the nodes to which the task sent an empty list of ``Send``s.
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
    """Returns the places that have a record beneath them."""
    found = set()
    for record in records:
        path = record.path
        while "/" in path:
            path = path.rpartition("/")[0]
            found.add(path)
    return frozenset(found)


class Held(msgspec.Struct, frozen=True, array_like=True):
    """What the waiting tasks of one earlier super-step see. ``values``, encoded, are those that differ from the checkpoint's own; ``absent`` are the
    channels that had no value yet."""

    step: int
    values: bytes
    absent: tuple[str, ...] = ()


class Base(msgspec.Struct, frozen=True, array_like=True):
    """What a run that begins at another run's checkpoint takes over, apart from the values (§7.7)."""

    versions: dict[str, int] = {}
    seen: dict[str, dict[str, int]] = {}
    skipped: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()
    idle: int = 0


class Tried(msgspec.Struct, frozen=True, array_like=True):
    """How often a place of a task was tried, or asked a question; ``due``: when the next attempt may begin."""

    task: str
    path: str
    count: int
    due: int = 0


class Unfinished(msgspec.Struct, frozen=True, array_like=True):
    """The records of tasks that no barrier has taken yet. A whole checkpoint contains them, because loading begins there.

    If the checkpoint was saved at a barrier, these are the tasks that wait while the run continues. If it was saved later, with a signal, these are
    all the records since the barrier, up to event ``upto``. Signals themselves stay in the log: ``heard`` is the first event since the barrier that
    reports a signal (0 if none came), ``names`` are their names. ``outdated``: the places of records that answer only exactly the same call.
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
    """The channels that begin with another run's values, as of event ``seq`` in that run's log (§4.15). ``hash`` is the chain hash at that
    event, so it vouches for the whole log up to there."""

    run_id: str
    seq: int
    hash: bytes
    channels: tuple[str, ...]


class Delta(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The changes from a checkpoint's parent to the checkpoint. ``done`` names finished tasks in task order: the result itself, or
    the key of a result that was durable before. ``kinds``: reducers other than ``last``, by channel; ``values``: values that no built-in
    reducer made (defaults, custom reducers, patches). If ``step`` does not change, nothing advances (§4.8). ``carries``: what a run's first
    checkpoint takes over from its thread; the caller puts these values into the parent before it applies the delta."""

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

    The pending writes, all that is finished or recorded since the last barrier, are in ``Progress`` (``results``, ``records``).
    ``skipped`` are the nodes whose last turn was a skip; ``topics`` the channels to be emptied at the next barrier.
    ``held``: by super-step, the values that its waiting tasks see while the run continues (§5.11); ``idle``: how many barriers took no task, but
    only signals; ``unfinished``: the records of the waiting tasks, if loading can begin at this checkpoint.
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
        """The last event that this checkpoint covers: loading from here reads only later ones."""
        return self.seq if self.unfinished is None else max(self.seq, self.unfinished.upto)

    @property
    def taken(self) -> int:
        """How many super-steps have ended."""
        return self.step - self.idle

    @property
    def waiting(self) -> tuple[Task, ...]:
        """The pending tasks of earlier super-steps."""
        return tuple([t for t in self.pending if t.began]) if self.held else ()

    def step_of(self, task: str) -> int:
        """Returns the super-step to which a pending task belongs: an earlier one if the task waits while the run continues, else the coming one."""
        if self.held:
            for t in self.pending:
                if t.began and t.key == task:
                    return t.began
        return self.step + 1

    def see_as(self, task: Task) -> Mapping[str, Any]:
        """Returns the values that a pending task sees: those with which its super-step began."""
        return self.held[task.began] if task.began else self.values


def empty(run_id: str, values: Mapping[str, Any] = EMPTY_DICT) -> Checkpoint:
    """Returns the parent of a run's first checkpoint: empty, or with the ``values`` that the run carries from its thread."""
    return Checkpoint(run_id=run_id, seq=0, step=-1, values=values, versions={}, seen={}, pending=())


def decode_writes(result: TaskResult) -> Mapping[str, Any]:
    """Returns the decoded writes of a finished task."""
    if result.writes is None:
        return {}
    value = canon.decode(result.writes)
    if not isinstance(value, dict):
        raise EventUnreadable(f"the writes of {result.task} are not a mapping")
    return value


def bump(done: Sequence[TaskResult], writes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Returns the channels that have news after these tasks, in a repeatable order (§4.3).

    A node to which a task sent an empty list of ``Send``s is done, unless another task of the super-step sends to it.
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
    """Returns the nodes to which tasks sent an empty list, and no task of the super-step sent anything."""
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
    """Returns the checkpoint after ``delta``. ``results`` holds the results that ``delta.done`` names by key. ``decoded`` holds writes that the
    live path has just made, so that they are not decoded again.

    Raises:
        EventUnreadable: the delta names a result that is not recorded.
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
    """Returns the result of ``advance``, and the channels that have news."""
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
        versions = dict(versions)  # copying is faster than building a new dict from two
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
    """Does the barrier of the most common step by a short way: one task ended well, its writes replace values, and it named no nodes. ``lasting``: the
    channels whose writes replace their values.

    Returns None for any other step. The delta and the checkpoint equal those of the long way (a property of the tests), except that the caller has to
    plan what runs next; for this, the channels that have news are returned too.
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
    """Does what ``cross_alone`` does for the most common fan-out: tasks of one node, made by ``Send``, that all ended well and wrote only to channels in
    ``reducing``, which have built-in reducers."""
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
    """Returns a fact for each task that ended in the super-step after ``parent``. A result given by its key was reported by an earlier commit and gets no fact."""
    made, kinds, step = list[ev.Fact](), dict[str, type[ev.StepEnded]](), parent.step + 1
    results = tuple(results)
    if len(results) > 8 and not parent.held and {*map(type, results)} == {TaskResult} and {*map(_outcome, results)} == {OK}:  # the usual end of a fan-out
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
    """Returns the event of a commit that names its checkpoint's hash (§1.8) and so gives the checkpoint its number, or None if no event does."""
    for event in events:
        if getattr(event.fact, "hash", b""):
            return event
    return None


def find_voucher(parent: Checkpoint, events: Iterable[ev.Event], delta: bytes) -> tuple[int, bytes] | None:
    """Returns the number and the hash of the checkpoint that this delta makes of its parent, or None if no event of the commit vouches for it."""
    found, hash = voucher(events), canon.chain(parent.hash, delta)
    return None if found is None or getattr(found.fact, "hash", b"") != hash else (found.seq, hash)


def vouch(parent: Checkpoint, facts: list[ev.Fact], delta: bytes, source: Source) -> tuple[bytes, int]:
    """Writes the hash of the checkpoint that this delta makes of its parent into the fact of the last completed step, or else into a new
    ``checkpoint.saved`` (§13.2). Returns the hash, and the index of that fact."""
    hash = canon.chain(parent.hash, delta)
    for i in range(_find_starts(facts) - 1, -1, -1) if source is not Source.INPUT else ():  # no step ends before the first checkpoint
        fact = facts[i]
        if type(fact) is ev.StepStarted:
            continue
        if (isinstance(fact, ev.StepEnded) and not fact.path) or (source is Source.PATCH and isinstance(fact, ev.StatePatched)):
            facts[i] = msgspec.structs.replace(fact, hash=hash)
            return hash, i
    facts.append(ev.CheckpointSaved(hash=hash, source=source.value))
    return hash, len(facts) - 1


def _find_starts(facts: list[ev.Fact]) -> int:
    """Returns the index of the first of the ``StepStarted`` facts if they all stand at the end, as after a barrier, else the number of facts."""
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
    """Returns the boundaries that the checkpoint of a commit stands for, each once (§4.5, §4.10).

    ``advanced``: the checkpoint is a barrier's, one super-step after its parent. Its tasks may have ended in
    earlier commits; a task that ends in this commit must have completed, by the one predicate (§4.11).
    """
    facts = events.facts if type(events) is Recorded else [*map(ev.fact_of, events)]
    kinds = tuple(map(type, facts))
    if _STEPS.issuperset(kinds):  # the usual case, and that of large commits
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
    """Returns the boundaries of facts of these kinds if no super-step ends with them."""
    return tuple(dict.fromkeys([_BOUNDARIES[kind] for kind in kinds if kind in _BOUNDARIES]))


class Ended(msgspec.Struct, frozen=True):
    """What a barrier took, if it did not take exactly the pending tasks: the tasks, and the signals for other nodes. ``reviewed``: the barrier followed the answer
    to a review, so it is not repeated before that is answered again."""

    tasks: tuple[str, ...]
    signals: tuple[TaskResult, ...]
    reviewed: bool = False


def note_end(delta: Delta) -> Ended | None:
    """Returns what a replay must know of this barrier, so that its super-steps get the same numbers (§7.6); None if it took exactly the pending tasks."""
    signals = tuple([d for d in delta.done if isinstance(d, TaskResult) and d.task.startswith(SIGNAL)])
    if not signals and WAITING_TASK not in delta.done and not any(t.began for t in delta.pending or ()):
        return None
    keys = [d.task if isinstance(d, TaskResult) else d for d in delta.done]
    return Ended(tuple([k for k in keys if k[0] != "@"]), signals, REVIEW_TASK in keys)


def _keep_views(parent: Checkpoint, pending: tuple[Task, ...] | None) -> Mapping[int, Mapping[str, Any]]:
    """Returns the values that carried tasks see, by super-step: those with which each super-step began."""
    return {t.began: parent.held.get(t.began, parent.values) for t in (pending or ()) if t.began}


def pack_held(values: Mapping[str, Any], held: Mapping[int, Mapping[str, Any]]) -> tuple[Held, ...]:
    """Packs the values that waiting tasks see, as differences from ``values``."""
    out = []
    for step, seen in held.items():
        other = {n: v for n, v in seen.items() if n not in values or values[n] is not v}
        out.append(Held(step, canon.encode(canon.FrozenDict(other)), tuple([n for n in values if n not in seen])))
    return tuple(out)


def unpack_held(values: Mapping[str, Any], held: tuple[Held, ...]) -> Mapping[int, Mapping[str, Any]]:
    """Returns the full values that waiting tasks see, from those differences."""
    return {h.step: canon.FrozenDict({n: v for n, v in {**values, **canon.decode(h.values)}.items() if n not in h.absent}) for h in held}


def _find(done: str, results: Mapping[str, TaskResult]) -> TaskResult:
    found = results.get(done)
    if found is None:
        raise EventUnreadable(f"the checkpoint refers to the result of {done}, which is not recorded")
    return found
