"""The fused line: decides plain steps without the objects that other steps are made of (targets, "Speed, second stage").

Theory of operation. Most steps are *plain*. A plain step has one task, of an async node that takes only the state. It is the task's first attempt,
and its writes replace values or go through built-in reducers. The run waits for nothing, its inbox is empty, and another step follows. What such
a step makes durable depends on few values: the end of the log, the run's position, the task, and its writes. A ``Line`` holds these. For each
step it makes the bytes of the delta, the two facts, the row and the hashes in one go: a ``Step``, which a store writes with the same two
statements as any plain commit. No ``Draft``, ``Commit``, ``Event``, ``Checkpoint`` or new ``Run`` is made. If some code asks for the run, these
objects are made from the values of the line, equal to those that each step would have made. That ends the line: the journal takes over, and the
run continues on the general path (``engine/base/journal``, ``engine/drive/fused``).

A step that is not plain is never half done here. ``decide`` returns None before it changes anything, and the general path does the step. This
is so for a skip, and for a step that makes a whole checkpoint due. The state of the line changes only when the step is durable (``keep``), so a
commit that fails leaves the line at the end of the log.

The run's last step is decided here too, if no one has to be asked about the run's end (``ends``). It is an ordinary commit, because readers
look at a run that ends. It ends the line.

*Fast = general*: rows, hashes, events, checkpoints and what a reader sees after each commit have the same bytes on both paths
(``tests/engine/test_fused.py``), because both call the same functions: ``superstep.plan``, ``codec.encode_delta``, ``codec.encode_row``,
``canon.chain``. If only one node can follow another, these functions are called once for the pair. For each step, the values that change are
then put into the bytes that they returned (``codec.Form``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import msgspec

from holdfast.core import canon, codec, ids
from holdfast.core import events as ev
from holdfast.core.channels import MISSING, ROOM, find_misfits, grow, must_copy, reduce
from holdfast.core.checkpoint import ENDED, STEPPED, Checkpoint, Delta, Source, Task, TaskResult
from holdfast.core.commit import Commit, Step, Tip, whole_due
from holdfast.core.graph import Program, Straight
from holdfast.core.lease import RELEASE, counter
from holdfast.core.outcomes import OK
from holdfast.core.run import Run, apply_steps, fold_all
from holdfast.core.superstep import Turns, plan

NO_KINDS: dict[str, str] = {}
MOST_WAYS = 4096
"""The number of ways that are cached for a program."""


class _Stand(msgspec.Struct, frozen=True, gc=False):
    """The state of a line after a super-step. ``task`` is the next task if that is plain, else None. ``straight``: the one pending task is the node that always follows, woken
    only by the end of this one. ``number`` is the encoded number of the next super-step. The fields from ``by`` on describe the last step; a new line has none."""

    step: int
    number: bytes
    hash: bytes
    version: int
    vouched: int
    pending: tuple[Task, ...]
    task: Task | None
    straight: bool
    by: Task | None = None
    at: int = 0
    seen: Mapping[str, int] = {}
    writes: Mapping[str, Any] = {}
    kinds: dict[str, str] = NO_KINDS
    done: str = ""


class _Way(msgspec.Struct, frozen=True, gc=False):
    """The step from a node to the only node that follows it: what is the same each time it is taken. ``done`` is the channel of the first node's end; ``goto`` is the
    channel by which a goto wakes the node that follows; ``task`` is the task of that node, if it can be plain."""

    done: str
    goto: str
    follows: str
    pending: tuple[Task, ...]
    task: Task | None
    form: codec.Form


def _find_way(program: Program, node: str, kinds: dict[str, str]) -> _Way | None:
    """Returns the way from this node for writes through these reducers, or None if ``program.straight`` has no node that follows it."""
    then = program.straight.get(node)
    return None if then is None else _way(node, then, then.node in program.plain, tuple(kinds.items()))


@functools.lru_cache(4096)
def _way(node: str, then: Straight, plain: bool, kinds: tuple[tuple[str, str], ...]) -> _Way:
    task = Task(then.node, seen=(then.done,))
    delta = Delta(0, Source.LOOP, (TaskResult(node, OK, None),), dict(kinds), pending=(task,))
    form = codec.form(delta, ev.StepCompleted(0, node, OK, bytes(canon.HASH_BYTES)), ev.StepStarted(0, then.node))
    return _Way(then.done, then.goto, then.node, (task,), task if plain else None, form)


class Line:
    """The state of a run while it does plain steps: its log, its row and its checkpoint, as loose values.

    ``versions`` and ``seen`` are copies of the head's, which only the line changes. ``sole`` tells whether nobody else holds a value; such a value
    may be changed in place. ``task`` is the next task if that is plain, else None.
    """

    __slots__ = (
        "_before", "_checkpoint", "_counted", "_decided", "_fence", "_fits", "_program", "_reduces", "_run", "_run_id", "_sole", "_stand", "_tip", "_ways", "seen", "skipped", "task", "values",
        "versions",
    )

    def __init__(self, program: Program, run: Run, tip: Tip, fence: int, checkpoint: Checkpoint, sole: Callable[[Mapping[str, Any], str], bool] = must_copy) -> None:
        self._program = program
        self._reduces = bool(program.reducing)
        self._fits = not (program.reducing and find_misfits(program.reducing, checkpoint.values))  # checked once: what reducers write themselves always fits them
        self._ways: dict[str | tuple[str, ...], _Way | None] = program.ways
        self._sole = sole
        self._run = run
        self._run_id = run.run_id
        self._tip = tip
        self._fence = fence
        self._checkpoint = checkpoint
        self._before = checkpoint.seq
        self._decided: _Stand | None = None
        self.task = task = self._find_plain(checkpoint.pending)
        step = checkpoint.step
        self._stand = _Stand(step, codec.number(step + 1), checkpoint.hash, run.version, checkpoint.seq, checkpoint.pending, task, False)
        self.values = checkpoint.values
        self.versions = dict(checkpoint.versions)
        self.seen = dict(checkpoint.seen)
        self.skipped: frozenset[str] = frozenset()
        self._counted = codec.number(counter(fence))

    @property
    def pending(self) -> tuple[Task, ...]:
        """The tasks of the next super-step."""
        return self._stand.pending

    def _find_plain(self, pending: tuple[Task, ...]) -> Task | None:
        if len(pending) != 1:
            return None
        task = pending[0]
        if task.node not in self._program.plain or task.index or task.payload is not None or task.feedback is not None or task.skip:
            return None
        return task

    @overload
    def decide(self, task: Task, writes: Mapping[str, Any], packed: bytes | None, at: int, ends: Literal[False] = False) -> Step | None: ...

    @overload
    def decide(self, task: Task, writes: Mapping[str, Any], packed: bytes | None, at: int, ends: bool) -> Step | Commit | None: ...

    def decide(self, task: Task, writes: Mapping[str, Any], packed: bytes | None, at: int, ends: bool = False) -> Step | Commit | None:
        """Returns what the end of a plain task makes durable, or None if the general path must decide it. ``packed`` are its encoded writes, None if
        it wrote nothing. ``ends``: if no step follows, the run may complete here, because no one has to be asked about its end.

        Changes nothing: once the step is durable, ``keep`` changes the line.
        """
        node, stand, tip, fence, run_id = task.node, self._stand, self._tip, self._fence, self._run_id
        step, vouched = stand.step + 1, tip.seq + 1
        kinds = self._kinds(writes) if self._reduces else NO_KINDS
        if kinds is None:
            return None
        # On its first turn a straight follower has seen only the end of the node before it, one step earlier.
        upto = {task.seen[0]: stand.step} if stand.straight and node not in self.seen else self._see(task)
        after = codec.number(step + 1)
        key = (node, *kinds) if kinds else node
        way = self._ways.get(key, MISSING)
        if way is MISSING:
            if len(self._ways) >= MOST_WAYS:
                self._ways.clear()  # a node may write many different sets of channels
            way = self._ways[key] = _find_way(self._program, node, kinds)
        if way is not None and way.goto not in self.versions and self._program.heard.isdisjoint(writes):
            # No written channel wakes a node, and the node that follows listens only to this node's end: it is next, without a plan.
            done, pending, following, follows, count, straight = way.done, way.pending, way.task, way.follows, 2, True
            hash, row = way.form.fill(stand.hash, stand.number, after, packed, at, self._counted)
        else:
            done, straight = f"done:{node}", False
            news = [done, *writes]
            pending = plan(self._program, Turns(self.versions | dict.fromkeys(news, step), {**self.seen, node: upto} if upto else self.seen, self.skipped), news)
            if not pending:
                return self._end(task, writes, packed, at, upto, kinds, news) if ends else None
            data = codec.encode_delta(Delta(step, Source.LOOP, (TaskResult(node, OK, packed),), kinds, pending=pending))
            hash = canon.chain(stand.hash, data)
            facts: list[ev.Fact] = [ev.StepCompleted(step, node, OK, hash), *[ev.StepStarted(step + 1, t.node) for t in pending]]
            row, count, following, follows = codec.encode_row(at, fence, ev.SYSTEM, facts, data), len(facts), self._find_plain(pending), pending[-1].node
        since = tip.since + len(row)
        if whole_due(since, tip.whole):
            return None
        version = stand.version + count
        self._decided = _Stand(step, after, hash, version, vouched, pending, following, straight, task, at, upto, writes, kinds, done)
        return Step(
            run_id, fence, tip, tip.seq + count, canon.chain(tip.hash, row), row, since, version, ids.step_id(run_id, step + 1, follows), ids.checkpoint_id(run_id, vouched)
        )

    def _kinds(self, writes: Mapping[str, Any]) -> dict[str, str] | None:
        """Returns the reducers of the writes, or None if the general path must check whether a value fits its reducer, or whether a channel grows too large."""
        reducing = self._program.reducing
        if reducing.keys().isdisjoint(writes):
            return NO_KINDS
        kinds = {name: reducing[name] for name in writes if name in reducing}
        wrong = any(tag == "merge" and not isinstance(writes[name], dict) for name, tag in kinds.items())
        return None if wrong or not self._fits or self._tip.since + self._tip.whole > ROOM else kinds

    def _see(self, task: Task) -> dict[str, int]:
        versions, upto = self.versions, dict(self.seen.get(task.node) or ())
        for channel in task.seen:
            upto[channel] = versions.get(channel, 0)
        return upto

    def _end(
        self, task: Task, writes: Mapping[str, Any], packed: bytes | None, at: int, upto: Mapping[str, int], kinds: dict[str, str], news: list[str]
    ) -> Commit:
        """Returns the commit of a plain task that no step follows: the run completes."""
        node, stand, tip, run_id = task.node, self._stand, self._tip, self._run_id
        step = stand.step + 1
        values = dict(self.values)
        for name, value in writes.items():
            values[name] = reduce(kinds[name], values.get(name, MISSING), value) if name in kinds else value
        data = codec.encode_delta(Delta(step, Source.LOOP, (TaskResult(node, OK, packed),), kinds, pending=()))
        hash = canon.chain(stand.hash, data)
        fence, vouched = counter(self._fence), tip.seq + 1
        events = (ev.Event(vouched, at, ev.StepCompleted(step, node, OK, hash), ev.SYSTEM, fence), ev.Event(vouched + 1, at, ev.RunCompleted(), ev.SYSTEM, fence))
        checkpoint = Checkpoint(
            run_id=run_id,
            seq=vouched,
            step=step,
            values=values,
            versions=self.versions | dict.fromkeys(news, step),
            seen={**self.seen, node: upto} if upto else dict(self.seen),
            pending=(),
            parent=ids.checkpoint_id(run_id, stand.vouched) if stand.vouched else None,
            source=Source.LOOP,
            boundaries=ENDED,
            writes={node: writes},
            hash=hash,
            created_at=at,
            idle=self._checkpoint.idle,
        )
        return Commit(run=fold_all(self.run, events), events=events, after=tip, fence=self._fence, at=at, checkpoint=checkpoint, delta=data, lease=RELEASE)

    def keep(self, tip: Tip) -> None:
        """Moves the line past the step that was decided last, now that it is durable. The log ends at ``tip``."""
        kept = self._decided
        assert kept is not None and kept.by is not None, "something was decided"
        self._before, self._stand, self._decided, self._tip = self._stand.vouched, kept, None, tip
        self.task = kept.task
        step, writes, versions = kept.step, kept.writes, self.versions
        if kept.kinds:
            values = self.values = dict(self.values)  # callers may still hold the old dict, so it is not changed
            for name, value in writes.items():
                if name in kept.kinds:
                    grow(values, name, kept.kinds[name], value, self._sole)
                else:
                    values[name] = value
        else:
            self.values = {**self.values, **writes}
        versions[kept.done] = step
        for channel in writes:
            versions[channel] = step
        if kept.seen:
            self.seen[kept.by.node] = kept.seen

    @property
    def moved(self) -> bool:
        """Whether any step of this line is durable."""
        return self._stand.by is not None

    @property
    def tip(self) -> Tip:
        return self._tip

    @property
    def run(self) -> Run:
        """The run as it is after the last step."""
        stand = self._stand
        if stand.by is None:
            return self._run
        return apply_steps(self._run, ev.StepStarted(stand.step + 1, stand.pending[-1].node), stand.vouched, stand.version - self._run.version)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the last step, equal to the one that its commit would contain."""
        stand, run_id = self._stand, self._run_id
        if stand.by is None:
            return self._checkpoint
        return Checkpoint(
            run_id=run_id,
            seq=stand.vouched,
            step=stand.step,
            values=self.values,
            versions=dict(self.versions),
            seen=dict(self.seen),
            pending=stand.pending,
            parent=ids.checkpoint_id(run_id, self._before) if self._before else None,
            source=Source.LOOP,
            boundaries=STEPPED,
            writes={stand.by.node: stand.writes},
            hash=stand.hash,
            created_at=stand.at,
            idle=self._checkpoint.idle,
        )


__all__ = ["Line"]
