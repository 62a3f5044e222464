"""A run's first checkpoint: its input through the reducers, defaults, and what its thread carries (§4.15).

Theory of operation. Most of a first checkpoint depends only on the names of the channels in the input and of those that the thread carries: the
reducers, the defaults of the other channels, and what runs next. This is worked out once (``_Start``) and cached in the program; for each run
only the values are filled in. If more depends on the values, for example with a custom reducer, the whole checkpoint is worked out each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core import canon
from holdfast.core.channels import CUSTOM, LAST, MISSING, REPLACING, TOPIC, find_misfits, refuse_misfit, take
from holdfast.core.checkpoint import CARRY_TASK, INPUT_TASK, Carry, Checkpoint, Delta, Source, Task, TaskResult, advance, decode_writes
from holdfast.core.graph import START, Program
from holdfast.core.superstep import plan, reduce_write

MOST = 64
"""The number of starts that are cached for a program: the input of a flow may have any names."""


class _Start(msgspec.Struct, frozen=True, gc=False):
    """What all first checkpoints have in common whose inputs name the same channels and whose threads carry the same channels. ``carried`` are the carried
    channels that the input does not replace, ``defaults`` the stored values of the other channels. ``delta`` has no ``carries``: each run fills in its own."""

    delta: Delta
    carried: tuple[str, ...]
    defaults: Mapping[str, Any]
    versions: Mapping[str, int]
    pending: tuple[Task, ...]


def first(
    program: Program, start: Checkpoint, given: TaskResult, carried: Mapping[str, Any] | None = None, *, inline: bool = False, source: Source = Source.INPUT,
    carries: tuple[Carry, ...] = (), writes: Mapping[str, Any] | None = None
) -> tuple[Delta, Checkpoint]:
    """Returns the first checkpoint of a run and its delta.

    ``carries`` says where the ``carried`` values are recorded. These values are not stored again; only the result of a custom reducer over them is.
    A carried value that the input replaces is left out. ``writes`` is the decoded input, if the caller has it.
    """
    writes = decode_writes(given) if writes is None else writes
    if carried and (misfits := find_misfits({n: tag for n, tag in program.reducing.items() if n in writes}, carried)):
        raise refuse_misfit(misfits[0], program.reducing[misfits[0]], carried[misfits[0]])
    if inline or start.step >= 0 or start.values or source is not Source.INPUT:
        return _work_out(program, start, given, writes, carried, carries, source, inline)
    named = () if carried is None else tuple(carried)
    if named and sum(len(c.channels) for c in carries) != len(named):
        return _work_out(program, start, given, writes, carried, carries, source, inline)  # some carried values are small and are stored again
    key = (tuple(writes), named)
    begun = program.starts.get(key, MISSING)
    if begun is MISSING:
        delta, checkpoint = _work_out(program, start, given, writes, carried, carries, source, inline)
        if len(program.starts) >= MOST:
            program.starts.clear()
        program.starts[key] = _keep(delta, checkpoint)
        return delta, checkpoint
    if begun is None:
        return _work_out(program, start, given, writes, carried, carries, source, inline)
    return _fill(begun, start, writes, carried or {}, carries)


def _fill(begun: _Start, start: Checkpoint, writes: Mapping[str, Any], carried: Mapping[str, Any], carries: tuple[Carry, ...]) -> tuple[Delta, Checkpoint]:
    """Returns the first checkpoint of a known start with these values."""
    delta = begun.delta
    told: dict[str, Mapping[str, Any]] = {INPUT_TASK: writes}
    values = {n: carried[n] for n in begun.carried}
    if values:
        left = carries if len(values) == len(carried) and len(carries) == 1 else _restrict(carries, values)
        delta = msgspec.structs.replace(delta, carries=left)
        told[CARRY_TASK] = {}
    if delta.kinds:
        take(values, delta.kinds, (writes,))
    else:
        values.update(writes)
    values.update(begun.defaults)
    return delta, Checkpoint(
        run_id=start.run_id, seq=0, step=0, values=values, versions=begun.versions, seen={}, pending=begun.pending, writes=told
    )


def _keep(delta: Delta, checkpoint: Checkpoint) -> _Start | None:
    """Returns what first checkpoints with the same names have in common, or None if more than their values can differ."""
    if any(tag in (CUSTOM, TOPIC) for tag in delta.kinds.values()):
        return None
    defaults = {} if delta.values is None else canon.decode(delta.values)
    carried = tuple([n for c in delta.carries for n in c.channels])
    return _Start(msgspec.structs.replace(delta, carries=()), carried, defaults, checkpoint.versions, checkpoint.pending)


def _restrict(carries: tuple[Carry, ...], channels: Mapping[str, Any]) -> tuple[Carry, ...]:
    """Returns ``carries`` limited to these channels, without those that carry none of them."""
    left = [msgspec.structs.replace(c, channels=tuple([n for n in c.channels if n in channels])) for c in carries]
    return tuple([c for c in left if c.channels])


def _work_out(
    program: Program, start: Checkpoint, given: TaskResult, writes: Mapping[str, Any], carried: Mapping[str, Any] | None, carries: tuple[Carry, ...], source: Source,
    inline: bool,
) -> tuple[Delta, Checkpoint]:
    base: dict[str, Any] = {}
    for channel in program.channels.values():
        value = (carried or {}).get(channel.name, MISSING) if channel.thread else MISSING
        value = channel.initial if value is MISSING else value
        if value is not MISSING:
            base[channel.name] = value
    kinds = {n: c.reducer.tag for n in writes if (c := program.channels.get(n)) is not None and c.reducer.tag != LAST}
    carried = {n: base[n] for c in carries for n in c.channels if n not in writes or kinds.get(n, LAST) not in REPLACING}
    explicit = {n: v for n, v in base.items() if n not in writes and n not in carried}
    for name, tag in kinds.items():
        old = base.get(name, MISSING)
        # Loading itself applies a built-in reducer to an empty channel. Over a default or a carried value the result must be stored, and so
        # must the result of every custom reducer. A run that ended before it began has its input in its one checkpoint already, and the
        # input is not reduced over that.
        if tag == CUSTOM or name in start.values or (name not in carried and tag not in REPLACING and old is not MISSING and old):
            reducer = program.channels[name].reducer
            explicit[name] = reduce_write(name, reducer, old, writes[name], program.values.get(name))
            kinds[name] = CUSTOM
    values = canon.encode(canon.FrozenDict(explicit)) if explicit else None
    carried = {n: v for n, v in carried.items() if n not in explicit}
    carries = _restrict(carries, carried)
    # A release that does not know ``carries`` finds that a result is missing and stops, so it never takes a part of the state for the whole.
    done = (given if inline else INPUT_TASK, *([CARRY_TASK] if carries else []))
    delta = Delta(step=0, source=source, done=done, kinds=kinds, values=values, carries=carries)
    if carried:
        start = msgspec.structs.replace(start, values=canon.FrozenDict({**start.values, **carried}))
    moved = advance(start, delta, {INPUT_TASK: given, CARRY_TASK: TaskResult(CARRY_TASK)}, seq=0, at=0, hash=b"", decoded={INPUT_TASK: writes})
    pending = plan(program, moved, [START, *moved.values])
    return msgspec.structs.replace(delta, pending=pending), msgspec.structs.replace(moved, pending=pending)


__all__ = ["first"]
