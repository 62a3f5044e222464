"""One round of a program: plan, then barrier (§4.3). Pure: results go in, the next checkpoint comes out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import count, repeat
from operator import attrgetter
from typing import Any, cast

import msgspec

from holdfast.core import canon
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core.bounds import wrong
from holdfast.core.channels import LAST, MISSING, Channel, Reducer, find_misfits, last, refuse_misfit
from holdfast.core.checkpoint import (
    NONE_SEEN,
    REVIEW_TASK,
    SIGNAL,
    WAITING_TASK,
    Checkpoint,
    Delta,
    SendTo,
    Source,
    Task,
    TaskResult,
    advance_with_news,
    decode_writes,
    keys_of,
)
from holdfast.core.errors import (
    BadReturn,
    ContractViolation,
    InvalidInput,
    InvalidWrite,
    NodeMissing,
    StepFailure,
    TwoWriters,
    UndeclaredChannel,
    Unserializable,
)
from holdfast.core.graph import Node, Program, Trigger
from holdfast.core.ids import node_of
from holdfast.core.kinds import Kind, Misfit
from holdfast.core.outcomes import ALL_SKIPPED, DELIVERED, NO_CHANGE, SKIPPED, UNCHANGED, completes

INTENTS = "intents"
_began, _node, _payload = attrgetter("began"), attrgetter("node"), attrgetter("payload")
NONE_FINISHED: Mapping[str, TaskResult] = {}


class Turns(msgspec.Struct, frozen=True, gc=False):
    """The parts of a checkpoint that determine which nodes run next."""

    versions: Mapping[str, int]
    seen: Mapping[str, Mapping[str, int]]
    skipped: frozenset[str]


def plan(
    program: Program, checkpoint: Checkpoint | Turns, news: Iterable[str], late: Iterable[str] = (), busy: frozenset[str] = frozenset()
) -> tuple[Task, ...]:
    """Returns the tasks of the next super-step: a task for each node with a trigger whose channels are newer than the node has seen.

    Only nodes that listen to ``news`` are checked: every other node was runnable before and has had its turn. A node has one turn at a
    time. A ``busy`` node, whose turn waits, is passed over; when its turn has ended, the caller names it in ``late`` and it is checked.
    """
    found: dict[str, Task] = {}
    listeners, nodes = program.listeners, program.nodes
    for channel in news:
        if channel in listeners:
            for name in listeners[channel]:
                if name not in found and name not in busy and (task := _ready(nodes[name], checkpoint)) is not None:
                    found[name] = task
    for name in late:
        if name not in found and name not in busy and name in nodes and (task := _ready(nodes[name], checkpoint)) is not None:
            found[name] = task
    if len(found) < 2:
        return tuple(found.values())
    return tuple(found[n] for n in sorted(found, key=program.order.__getitem__))


def _ready(node: Node, cp: Checkpoint | Turns) -> Task | None:
    """Returns the node's task, a skip if all the nodes that it joins were skipped, or None if it is not its turn."""
    versions, seen = cp.versions, cp.seen.get(node.name, NONE_SEEN)
    goto = f"goto:{node.name}"
    if versions.get(goto, -1) > seen.get(goto, -1):
        return Task(node.name, seen=(goto, *_newer(node.triggers, cp, seen)))
    skip: Task | None = None
    for trigger in node.triggers:
        newer = []
        for channel in trigger.channels:
            if versions.get(channel, -1) > seen.get(channel, -1):
                newer.append(channel)
        if not newer or (trigger.mode == "all" and len(newer) < len(trigger.channels)):
            continue
        if not cp.skipped or any(not (c.startswith("done:") and c[5:] in cp.skipped) for c in newer):
            return Task(node.name, seen=tuple(newer))
        if len(newer) == len(trigger.channels) and not _goes_round(node.name, cp):
            skip = Task(node.name, seen=tuple(newer), skip=ALL_SKIPPED)
    return skip


def _goes_round(name: str, cp: Checkpoint | Turns) -> bool:
    """Whether a skip has come back to a node that was skipped before, and no node has run since: the cycle ends there."""
    if name not in cp.skipped:
        return False
    last = cp.versions.get(f"done:{name}", -1)
    return not any(v > last and c.startswith("done:") and c[5:] not in cp.skipped for c, v in cp.versions.items())


def _newer(triggers: tuple[Trigger, ...], cp: Checkpoint | Turns, seen: Mapping[str, int]) -> list[str]:
    return [c for t in triggers for c in t.channels if cp.versions.get(c, -1) > seen.get(c, -1)]


def check_writes(program: Program, node: Node, writes: Mapping[str, Any]) -> None:
    """Refuses writes that a node may not make, before they become a result.

    Raises:
        UndeclaredChannel: the state has no such channel (§4.1).
        ContractViolation: outside the node's ``writes=`` (§4.2).
        BadReturn: the value for a ``merge`` channel is not a dict.
    """
    channels = program.channels
    if node.writes is None and writes.keys() <= program.lasting:
        return
    for name in writes:
        if name not in channels:
            known = ", ".join(channels)
            raise UndeclaredChannel(f"{node.name} wrote {name!r}, which the state does not declare", hint=f"its channels are {known}")
        if node.writes is not None and name not in node.writes:
            raise ContractViolation(f"{node.name} wrote {name!r} outside its contract writes={list(node.writes)}")
        if channels[name].reducer.tag == "merge" and not isinstance(writes[name], dict):
            raise BadReturn(f"{node.name} wrote a {type(writes[name]).__name__} to {name!r}, which merges dicts")


def fit_writes(program: Program, node: Node, writes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a node's admitted writes, converted to the annotations of their channels (§3.7); the same object if nothing had to be converted.

    Raises:
        InvalidWrite: a value does not fit; names its field, the wanted type and what was given.
    """
    typed, found = program.writes, writes
    for name, value in writes.items():
        if name in typed and type(value) is not (kind := typed[name]).exact:
            try:
                made = kind.fit(value, name)
            except Misfit as e:
                raise InvalidWrite(f"{node.name} wrote a value that does not fit: {e}", field=e.path, hint=f"{name} is declared {_name(program.channels[name])}") from None
            if made is not value:
                found = {**found, name: made}
    return found


def _name(channel: Channel) -> str:
    """Returns an annotation almost as its author wrote it."""
    return channel.type.__name__ if isinstance(channel.type, type) else str(channel.type).replace("typing.", "")


def check_values(program: Program, values: Mapping[str, Any], field: str, fits: Mapping[str, Kind]) -> dict[str, Any]:
    """Returns values for channels that come from outside, converted to the annotations (§3.7). ``fits`` is ``program.writes`` for values that
    go through the reducers, ``program.values`` for values that replace the channels'.

    Raises:
        InvalidInput: a value does not fit; names its field, the wanted type and what was given. TooLarge: a value is too large.
    """
    found = dict(values)
    for name, value in values.items():
        if name in fits and type(value) is not (kind := fits[name]).exact:
            try:
                found[name] = kind.fit(value, f"{field}.{name}")
            except Misfit as e:
                raise InvalidInput(str(e), field=e.path.partition(".")[2] or e.path, hint=f"{name} is declared {_name(program.channels[name])}") from None
    return found


def reduce_write(name: str, reducer: Reducer, old: Any, value: Any, kind: Kind | None = None) -> Any:
    """Applies one write through a channel's reducer. The first write to a channel with a custom reducer and no default is kept unchanged. ``kind`` is what
    the channel's value may be; the result of a custom reducer is checked against it.

    Raises:
        StepFailure: the custom reducer raised.
        Unserializable: its result is a value that no store can keep.
    """
    if reducer.function is None:
        return canon.admit(reducer(old, value), name)
    made = value
    if old is not MISSING:
        try:
            made = reducer.function(old, value)
        except Exception as e:
            what = f"{type(e).__name__}: {e}"
            raise StepFailure(f"the reducer of {name!r} raised {what}", code="reducer_failed", hint="a reducer is pure: f(old, new)") from e
    if kind is not None and type(made) is not kind.exact:
        try:
            made = kind.fit(made, name)
        except Misfit as e:
            raise InvalidWrite(f"the reducer of {name!r} returned a value that does not fit: {e}", field=e.path) from None
    return canon.admit(made, name)


def barrier(
    program: Program, parent: Checkpoint, results: Mapping[str, TaskResult], *, inline: frozenset[str] | set[str], decoded: Mapping[str, Mapping[str, Any]],
    source: Source = Source.LOOP, signals: tuple[TaskResult, ...] = (), taken: tuple[Task, ...] | None = None
) -> tuple[Delta, Checkpoint]:
    """Applies the writes of all tasks in task order and plans what is next.

    ``inline`` names the results that become durable with this commit; the delta refers to the others by key. ``signals`` are writes from outside to the channels of
    their names; they are applied after those of the tasks, in the order of their arrival (§5.11). ``taken`` are the tasks of the super-step that ends, None for all
    pending tasks; the other tasks are carried on unchanged. The checkpoint lacks seq, time and hash, which only its commit knows.

    Raises:
        TwoWriters: two tasks wrote one ``last`` channel (§4.1).
        StepFailure: a custom reducer raised.
        InvalidWrite: a channel holds a value that its reducer cannot add to.
        Unserializable: a custom reducer made a value that no store can keep.
    """
    if program.reducing and (misfits := find_misfits(program.reducing, parent.values)):
        written = {name for r in (*results.values(), *signals) for name in (decoded[r.task] if r.task in decoded else decode_writes(r))}
        for name in written.intersection(misfits):
            raise refuse_misfit(name, program.reducing[name], parent.values[name])
    if len(parent.pending) == 1 and not signals and source is Source.LOOP and taken is None and not parent.held:
        alone = results[parent.pending[0].key]
        short = cps.cross_alone(parent, alone, alone.task in inline, decoded.get(alone.task), program.lasting)
        if short is not None:
            return _with_pending(short[0], short[1], plan(program, *short[1:]))
    if len(parent.pending) > 1 and not signals and source is Source.LOOP and taken is None and not parent.held:
        short = cps.cross_crowd(parent, results, inline, decoded, program.reducing)
        if short is not None:
            return _with_pending(short[0], short[1], plan(program, *short[1:]))
    group = parent.pending if taken is None else taken
    waiting = () if taken is None else _carry(parent, taken)
    done = [results[t.key] for t in group]
    if signals:
        done += signals
    kinds: dict[str, str] = {}
    custom: dict[str, Any] = {}
    writer: dict[str, str] = {}
    entries: list[TaskResult | str] = []
    sent: list[SendTo] = []
    told: dict[str, bytes] = {}
    for result in done:
        task = result.task
        outside = task[0] == "@"
        entries.append(result if outside or task in inline else task)
        for name, value in (decoded[task] if task in decoded else decode_writes(result)).items():
            if name in kinds and name not in custom:
                continue  # a built-in reducer takes any number of writes
            channel = program.channels.get(name)
            reducer = last if channel is None else channel.reducer
            tag = reducer.tag
            if tag == LAST:
                if name in writer and not outside:
                    raise TwoWriters(
                        f"{writer[name]} and {task} both wrote {name!r} in one super-step",
                        hint="give the channel a reducer: Annotated[..., append], override, merge",
                    )
                writer[name] = task
                continue
            kinds[name] = tag
            if reducer.function is not None:
                old = custom.get(name, parent.values.get(name, MISSING))
                custom[name] = reduce_write(name, reducer, old, value, program.values.get(name))
        if result.sends:
            sent += _expect(program, result)
        if result.feedback is not None:
            told.update(dict.fromkeys(result.goto or (), result.feedback))
    if waiting:
        entries.append(WAITING_TASK)
        waiting = tuple([msgspec.structs.replace(t, owed=told[t.node]) if t.node in told and _busy(t, results) else t for t in waiting])
    delta = Delta(
        step=parent.step + 1,
        source=source,
        done=tuple(entries),
        kinds=kinds,
        values=canon.encode(canon.FrozenDict(custom)) if custom else None,
        pending=waiting,
    )
    moved, news = advance_with_news(parent, delta, results, seq=parent.seq, at=0, hash=b"", decoded=decoded)
    if waiting or parent.held:
        told = {t.node: t.owed for t in group if t.owed is not None} | told
        tasks = plan(program, _consume(moved, waiting), news, _late(program, moved, group), frozenset([t.node for t in waiting if _busy(t, results)]))
        tasks = _apart(tasks, waiting)
    else:
        tasks = plan(program, moved, news)
    if told:
        tasks = tuple([msgspec.structs.replace(t, feedback=told[t.node]) if t.node in told else t for t in tasks])
    if sent:
        tasks += _number(sent, (*waiting, *tasks))
    return _with_pending(delta, moved, (*waiting, *tasks))


def _carry(parent: Checkpoint, taken: tuple[Task, ...]) -> tuple[Task, ...]:
    """Returns the pending tasks that are not taken. Each records from now on to which super-step it belongs."""
    keys = {t.key for t in taken}
    return tuple([t if t.began else msgspec.structs.replace(t, began=parent.step + 1) for t in parent.pending if t.key not in keys])


def _busy(task: Task, results: Collection[str]) -> bool:
    """Whether a carried task is its node's own turn (not a ``Send``) and is unfinished: a node has one turn at a time."""
    return task.payload is None and task.key not in results


def _consume(moved: Checkpoint, waiting: tuple[Task, ...]) -> Checkpoint:
    """Returns the checkpoint to plan from: it counts what the carried tasks have seen as seen, although their super-step has not ended."""
    seen = dict(moved.seen)
    for task in waiting:
        if task.payload is None and task.seen:
            seen[task.node] = upto = dict(seen.get(task.node, NONE_SEEN))
            for channel in task.seen:
                upto[channel] = max(upto.get(channel, -1), min(moved.versions.get(channel, 0), task.began - 1))
    return msgspec.structs.replace(moved, seen=seen)


def _apart(tasks: tuple[Task, ...], waiting: tuple[Task, ...]) -> tuple[Task, ...]:
    """Returns the planned tasks with keys that no waiting task has: a waiting super-step may still contain an earlier, finished turn of a node."""
    used = {t.key for t in waiting}
    last = {n: max(t.index for t in waiting if t.node == n) for n in {t.node for t in waiting}}
    return tuple([msgspec.structs.replace(t, index=last[t.node] + 1) if t.key in used else t for t in tasks])


def _late(program: Program, moved: Checkpoint, group: tuple[Task, ...]) -> list[str]:
    """Returns the nodes whose trigger channels were written while their turn was carried on."""
    found = []
    for task in group:
        if task.began and task.payload is None and (node := program.nodes.get(task.node)) is not None:
            channels = (f"goto:{node.name}", *(c for t in node.triggers for c in t.channels))
            if any(moved.versions.get(c, -1) >= task.began for c in channels):
                found.append(node.name)
    return found


def whole(checkpoint: Checkpoint, results: Collection[str]) -> tuple[Task, ...] | None:
    """Returns the pending tasks of the oldest super-step whose tasks are all finished, or None if there is no such super-step."""
    if not checkpoint.held:
        return (checkpoint.pending or None) if all(map(results.__contains__, keys_of(checkpoint.pending))) else None
    steps: dict[int, list[Task]] = {}
    for task in checkpoint.pending:
        steps.setdefault(task.began or checkpoint.step + 1, []).append(task)
    return next((tuple(steps[s]) for s in sorted(steps) if all(t.key in results for t in steps[s])), None)


def write_signals(program: Program, news: Iterable[tuple[str, bytes]]) -> tuple[TaskResult, ...]:
    """Returns the signals named like channels of the state, as writes to these channels (§5.11). A signal that does not fit is left out: its
    sender did not have this code, and ``ctx.wait`` still returns it as it was sent."""
    out: list[TaskResult] = []
    for name, payload in news:
        channel = program.channels.get(name)
        if channel is None or (channel.reducer.tag == "merge" and not isinstance(canon.decode(payload), dict)):
            continue
        try:
            given = check_values(program, {name: canon.decode(payload)}, "signal", program.writes)
        except InvalidInput:
            continue
        out.append(TaskResult(f"{SIGNAL}{len(out) + 1}", writes=canon.encode(canon.admit(given))))
    return tuple(out)


def wakes(program: Program, checkpoint: Checkpoint, signals: tuple[TaskResult, ...], results: Mapping[str, TaskResult]) -> bool:
    """Whether a node runs because of these signals, although all pending tasks wait (§5.11).

    Raises:
        StepFailure, Unserializable: a custom reducer refuses a signal.
    """
    if not any(name in program.listeners for s in signals for name in decode_writes(s)):
        return False
    _, moved = barrier(program, checkpoint, results, inline=frozenset(), decoded={}, signals=signals, taken=())
    return len(moved.pending) > len(checkpoint.pending)


def _expect(program: Program, result: TaskResult) -> tuple[SendTo, ...]:
    for node in dict.fromkeys(map(_node, result.sends)):
        if node not in program.nodes:
            raise NodeMissing(f"{result.task} sent to {node!r}, which is not a node")
    return result.sends


def _number(sent: Iterable[SendTo], beside: tuple[Task, ...]) -> tuple[Task, ...]:
    """Returns a task for each ``Send``. The tasks of a node are numbered, after its tasks in ``beside``."""
    counts: dict[str, int] = {}
    for task in beside:
        counts[task.node] = max(counts.get(task.node, 0), task.index)
    sent = tuple(sent)
    nodes = [*map(_node, sent)]
    if len({*nodes}) == 1:
        return tuple(map(Task, nodes, count(counts.get(nodes[0], 0) + 1), map(_payload, sent)))
    tasks = []
    for send in sent:
        counts[send.node] = counts.get(send.node, 0) + 1
        tasks.append(Task(send.node, index=counts[send.node], payload=send.payload))
    return tuple(tasks)


def delivery(program: Program, results: Iterable[TaskResult]) -> str | None:
    """Returns ``delivered`` or ``no_change`` for this super-step, or None if no delivering node took part. One node that delivered outweighs those without change."""
    mine = [r.outcome for r in results if (n := program.nodes.get(node_of(r.task))) is not None and n.delivers]
    if any(completes(o) and not o.startswith(SKIPPED) for o in mine):
        return DELIVERED
    return NO_CHANGE if UNCHANGED in mine else None


def settle(delta: Delta, moved: Checkpoint) -> tuple[Delta, Checkpoint]:
    """Returns the same barrier with no next task, because only skips were left to do."""
    return _with_pending(delta, moved, ())


def again(
    program: Program, parent: Checkpoint, targets: tuple[str, ...], feedback: str, results: Mapping[str, TaskResult] = NONE_FINISHED, signals: tuple[TaskResult, ...] = ()
) -> tuple[Delta, Checkpoint]:
    """Returns the barrier of one more round, after which ``targets`` run again with a person's feedback (§5.5). Pending tasks of these nodes, and deliveries, are dropped.
    Of the others it takes those that have ``results``, and carries on the rest."""
    sent = TaskResult(REVIEW_TASK, goto=targets, feedback=canon.pack(feedback, "feedback")[1])
    kept = tuple([t for t in parent.pending if t.node not in targets and not program.nodes[t.node].delivers])
    taken = tuple([t for t in kept if t.key in results])
    return barrier(program, msgspec.structs.replace(parent, pending=kept), results, inline=frozenset(), decoded={}, signals=(*signals, sent), taken=taken)


def close(program: Program, parent: Checkpoint, results: Mapping[str, TaskResult], signals: tuple[TaskResult, ...]) -> tuple[Delta, Checkpoint]:
    """Returns the last barrier of a run that a reviewer has approved: it takes the tasks that have ``results``. The others stay pending, and nobody runs them."""
    taken = tuple([t for t in parent.pending if t.key in results])
    return barrier(program, parent, results, inline=frozenset(), decoded={}, signals=(*signals, TaskResult(REVIEW_TASK)), taken=taken)


def _with_pending(delta: Delta, moved: Checkpoint, pending: tuple[Task, ...]) -> tuple[Delta, Checkpoint]:
    """Sets ``pending`` in place. No other code holds these two values yet, so they need not be copied at every step."""
    msgspec.structs.force_setattr(delta, "pending", pending)
    msgspec.structs.force_setattr(moved, "pending", pending)
    return delta, moved


def pack_input(program: Program, given: Mapping[str, Any]) -> tuple[canon.FrozenDict, bytes]:
    """Returns the result of ``check_input``, and its bytes."""
    if program.given[0] and type(given) is dict and all(map(given.__contains__, program.required)) and (plain := canon.pack_plain(given, *program.given)) is not None:
        return plain
    admitted = check_input(program, given)
    return admitted, canon.encode(admitted)


def check_input(program: Program, given: Mapping[str, Any]) -> canon.FrozenDict:
    """Returns the admitted input of a run.

    Raises:
        InvalidInput: names a channel that the state does not have, or a required one that is missing.
        Unserializable: with the field's path (§1.10).
    """
    if not isinstance(given, Mapping):
        raise InvalidInput(f"the input of {program.id} is a mapping of its channels, not {type(given).__name__}")
    if not program.flow or program.inputs:
        allowed = program.inputs if program.flow else tuple(program.channels)
        for name in given:
            if name not in allowed:
                raise InvalidInput(f"{program.id} has no input {name!r}", hint="it takes " + ", ".join(allowed))
    missing = [name for name in program.required if name not in given]
    if missing:
        raise InvalidInput(f"the skill {program.id!r} needs {', '.join(map(repr, missing))} in its input", hint="such as {" + ", ".join(f'"{m}": …' for m in missing) + "}")
    admitted = canon.admit(dict(given), "input")
    typed = check_values(program, admitted, "input", program.writes)
    for name, value in typed.items():
        if name in program.channels and program.channels[name].reducer.tag == "merge" and not isinstance(value, dict):
            raise wrong(f"input.{name}", "a dict to merge", value)
    return cast("canon.FrozenDict", canon.admit(typed, "input"))


def list_starts(checkpoint: Checkpoint) -> list[ev.Fact]:
    """Returns the facts of the tasks that begin after a checkpoint."""
    if {*map(_began, checkpoint.pending)} == {0}:  # the usual case: no task of an earlier super-step waits
        return [*map(ev.StepStarted, repeat(checkpoint.step + 1), keys_of(checkpoint.pending))]
    return [ev.StepStarted(checkpoint.step + 1, t.key) for t in checkpoint.pending if not t.began]


def expect(program: Program, pending: tuple[Task, ...]) -> None:
    """Checks that the nodes of the pending tasks exist. A missing node is an error, never "done" (§3.2).

    Raises:
        NodeMissing: names the node and those that the program has.
    """
    for task in pending:
        if task.node not in program.nodes:
            known = ", ".join(program.nodes)
            raise NodeMissing(f"the run's next node is {task.node!r}, which {program.id} no longer has", hint=f"it has {known}")


__all__ = [
    "INTENTS", "Turns", "Unserializable", "again", "barrier", "check_input", "check_values", "check_writes", "close", "delivery",
    "expect", "fit_writes", "pack_input", "plan", "settle", "wakes", "whole", "write_signals",
]
