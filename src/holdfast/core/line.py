"""The fused line: plain steps decided without the values that other steps are made of (targets, "Speed, second stage").

Theory of operation. Most steps are *plain*: one task, of an async node that is given the state alone, first attempt, which
returned writes that replace values or go through built-in reducers, of a run that waits for nothing, whose inbox had nothing, and after which something is to be done. What
such a step makes durable follows from few things: where the log and the run stand, the task, and its writes. A ``Line`` holds
these, and makes of each step the bytes of its delta, its two facts, its row and its hashes at once: a ``Step``, which a store
writes with the same two statements as any plain commit. ``Draft``, ``Commit``, ``Event``, ``Checkpoint`` and a new ``Run`` are
not made on the way. Whoever looks at the run gets them made from what the line holds, as if each step had made its own, and that
ends the line: the journal takes over, and the general way goes on from there (``engine/base/journal``, ``engine/drive/fused``).

What is not plain is never half done here. ``decide`` gives None before anything has changed, and the general way does the
step: one before a whole checkpoint, a skip. What a step decided becomes the line's own state only
when it is durable (``keep``), so that a commit that fails leaves the line where the log is.

The run's last step is decided here too, where nobody is asked about its end (``ends``): a commit like any other, for a run's
end is looked at. That ends the line.

*Fast = general*: rows, hashes, events, checkpoints and what a reader sees after each commit are the same bytes either way
(``tests/properties/test_fused.py``), for both call the same functions: ``superstep.plan``, ``codec.encode_delta``,
``codec.encode_row``, ``canon.chain``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import msgspec

from holdfast.core import canon, codec, ids
from holdfast.core import events as ev
from holdfast.core.channels import MISSING, ROOM, copied, grow, reduce
from holdfast.core.checkpoint import ENDED, NONE_SEEN, STEPPED, Checkpoint, Delta, Source, Task, TaskResult
from holdfast.core.commit import Commit, Step, Tip, whole_due
from holdfast.core.graph import Program
from holdfast.core.lease import RELEASE, counter
from holdfast.core.outcomes import OK
from holdfast.core.run import Run, fold_all, stepped
from holdfast.core.superstep import Turns, plan

NO_KINDS: dict[str, str] = {}


class _Next(msgspec.Struct, frozen=True, gc=False):
    """What becomes of the line once a step of it is durable."""

    step: Step
    at: int
    task: Task
    seen: Mapping[str, int]
    writes: Mapping[str, Any]
    news: list[str]
    hash: bytes
    vouched: int
    pending: tuple[Task, ...]
    started: ev.StepStarted
    kinds: dict[str, str]


class Line:
    """A run on its plain steps: where its log, its row and its checkpoint stand, as loose values.

    ``versions`` and ``seen`` are the head's, in copies that the line alone changes. ``sole`` says of a value that nobody else holds it: it may
    grow where it stands.
    """

    __slots__ = (
        "_before", "_checkpoint", "_decided", "_fence", "_last", "_program", "_run", "_sole", "_tip", "hash", "pending", "seen", "skipped", "step", "values", "version",
        "versions",
    )  # fmt: skip

    def __init__(self, program: Program, run: Run, tip: Tip, fence: int, checkpoint: Checkpoint, sole: Callable[[Mapping[str, Any], str], bool] = copied) -> None:
        self._program = program
        self._sole = sole
        self._run = run
        self._tip = tip
        self._fence = fence
        self._checkpoint = checkpoint
        self._before = checkpoint.seq
        self._decided: _Next | None = None
        self._last: _Next | None = None
        self.values = checkpoint.values
        self.versions = dict(checkpoint.versions)
        self.seen = dict(checkpoint.seen)
        self.skipped: frozenset[str] = frozenset()
        self.pending = checkpoint.pending
        self.step = checkpoint.step
        self.hash = checkpoint.hash
        self.version = run.version

    @property
    def task(self) -> Task | None:
        """The plain task that is next; None if something else is."""
        pending = self.pending
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
        """What a plain task's end makes durable; None if there is more to it. ``packed`` are its writes, encoded, if it wrote; ``ends``: where nothing
        comes after it, nobody is asked about the run's end.

        Nothing has changed by it: that is for ``keep``, once it is durable.
        """
        node, step, tip = task.node, self.step + 1, self._tip
        upto, kinds = self._seen(task), self._kinds(writes) if self._program.reducing else NO_KINDS
        if kinds is None:
            return None
        news = [f"done:{node}", *writes]
        pending = self._after(node, step, upto, writes, news)
        if not pending:
            return self._end(task, writes, packed, at, upto, kinds, news) if ends else None
        data = codec.encode_delta(Delta(step, Source.LOOP, (TaskResult(node, OK, packed),), kinds, pending=pending))
        hash = canon.chain(self.hash, data)
        facts: list[ev.Fact] = [ev.StepCompleted(step, node, OK, hash), *[ev.StepStarted(step + 1, t.node) for t in pending]]
        row = codec.encode_row(at, self._fence, ev.SYSTEM, facts, data)
        since = tip.since + len(row)
        if whole_due(since, tip.whole):
            return None
        vouched, count = tip.seq + 1, len(facts)
        run_id = self._run.run_id
        decided = Step(
            run_id, self._fence, tip, tip.seq + count, canon.chain(tip.hash, row), row, since, self.version + count,
            ids.step_id(run_id, step + 1, pending[-1].node), ids.checkpoint_id(run_id, vouched),
        )  # fmt: skip
        self._decided = _Next(decided, at, task, upto, writes, news, hash, vouched, pending, facts[-1], kinds)  # type: ignore[arg-type]
        return decided

    def _kinds(self, writes: Mapping[str, Any]) -> dict[str, str] | None:
        """The reducers that the writes go through; None if the general way is to say whether they may, or how much there may be."""
        reducing = self._program.reducing
        if reducing.keys().isdisjoint(writes):
            return NO_KINDS
        kinds = {name: reducing[name] for name in writes if name in reducing}
        wrong = any(tag == "merge" and not isinstance(writes[name], dict) for name, tag in kinds.items())
        return None if wrong or self._tip.since + self._tip.whole > ROOM else kinds

    def _seen(self, task: Task) -> dict[str, int]:
        upto = dict(self.seen.get(task.node, NONE_SEEN))
        for channel in task.seen:
            upto[channel] = self.versions.get(channel, 0)
        return upto

    def _end(
        self, task: Task, writes: Mapping[str, Any], packed: bytes | None, at: int, upto: Mapping[str, int], kinds: dict[str, str], news: list[str]
    ) -> Commit:
        """The commit of a plain task after which nothing comes: the run has completed."""
        node, step, run, last, tip = task.node, self.step + 1, self.run, self.checkpoint, self._tip
        values = dict(self.values)
        for name, value in writes.items():
            values[name] = reduce(kinds[name], values.get(name, MISSING), value) if name in kinds else value
        data = codec.encode_delta(Delta(step, Source.LOOP, (TaskResult(node, OK, packed),), kinds, pending=()))
        hash = canon.chain(self.hash, data)
        fence, vouched = counter(self._fence), tip.seq + 1
        events = (ev.Event(vouched, at, ev.StepCompleted(step, node, OK, hash), ev.SYSTEM, fence), ev.Event(vouched + 1, at, ev.RunCompleted(), ev.SYSTEM, fence))
        checkpoint = Checkpoint(
            run_id=run.run_id,
            seq=vouched,
            step=step,
            values=values,
            versions=self.versions | dict.fromkeys(news, step),
            seen={**self.seen, node: upto} if upto else dict(self.seen),
            pending=(),
            parent=last.checkpoint_id if last.seq else None,
            source=Source.LOOP,
            boundaries=ENDED,
            writes={node: writes},
            hash=hash,
            created_at=at,
            idle=last.idle,
        )
        return Commit(run=fold_all(run, events), events=events, after=tip, fence=self._fence, at=at, checkpoint=checkpoint, delta=data, lease=RELEASE)

    def _after(self, node: str, step: int, upto: Mapping[str, int], writes: Mapping[str, Any], news: list[str]) -> tuple[Task, ...]:
        """The tasks that follow. One that only listens to this node's end, and to nothing that was written, is known without a plan."""
        program, versions = self._program, self.versions
        then = program.straight.get(node)
        if then is not None and then.goto not in versions and program.heard.isdisjoint(writes):
            return (Task(then.node, seen=(then.done,)),)
        return plan(program, Turns(versions | dict.fromkeys(news, step), {**self.seen, node: upto} if upto else self.seen, self.skipped), news)

    def keep(self, tip: Tip) -> None:
        """What was decided last is durable, and the log ends there now."""
        kept = self._decided
        assert kept is not None, "something was decided"
        last, self._last, self._decided, self._tip = self._last, kept, None, tip
        if last is not None:
            self._before = last.vouched
        self.step = step = self.step + 1
        self.version, self.hash, self.pending = kept.step.version, kept.hash, kept.pending
        if kept.kinds:
            values = self.values = dict(self.values)  # those that were given out stay as they are
            for name, value in kept.writes.items():
                if name in kept.kinds:
                    grow(values, name, kept.kinds[name], value, self._sole)
                else:
                    values[name] = value
        else:
            self.values = {**self.values, **kept.writes}
        for channel in kept.news:
            self.versions[channel] = step
        if kept.seen:
            self.seen[kept.task.node] = kept.seen

    @property
    def moved(self) -> bool:
        """Whether any step of it is durable."""
        return self._last is not None

    @property
    def tip(self) -> Tip:
        return self._tip

    @property
    def run(self) -> Run:
        """The run as it is after the last step."""
        last = self._last
        return self._run if last is None else stepped(self._run, last.started, last.vouched, self.version - self._run.version)

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint that the last step saved, as its commit would have had it."""
        last, run_id = self._last, self._run.run_id
        if last is None:
            return self._checkpoint
        return Checkpoint(
            run_id=run_id,
            seq=last.vouched,
            step=self.step,
            values=self.values,
            versions=dict(self.versions),
            seen=dict(self.seen),
            pending=self.pending,
            parent=ids.checkpoint_id(run_id, self._before) if self._before else None,
            source=Source.LOOP,
            boundaries=STEPPED,
            writes={last.task.node: last.writes},
            hash=last.hash,
            created_at=last.at,
            idle=self._checkpoint.idle,
        )


__all__ = ["Line"]
