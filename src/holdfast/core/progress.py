"""Where a run stands: the head checkpoint and what has happened since, folded from its log (§4.5, §4.6).

``step`` applies one record; loading, time travel (``state --at``) and the checker all walk a log with it. What
is finished or recorded since the last barrier stays pending here and is cleared when a barrier carries it across.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core import checkpoint as cps
from holdfast.core import compensation, payloads
from holdfast.core import events as ev
from holdfast.core.checkpoint import Checkpoint, Result, StepRecord, TaskResult, Tried, Unfinished
from holdfast.core.codec import Record, Row, open_rows
from holdfast.core.errors import ChainBroken, ErrorValue, StoreCorrupt
from holdfast.core.waits import Wait

_KEPT = frozenset({"effect", "wait", "feedback"})
HEARD = frozenset({ev.WaitRequested, ev.SignalReceived})
"""The facts of which ``hear`` takes note."""


def _goes_on(record: StepRecord, path: str) -> bool:
    """Whether this later record shows that the code went on after what happened at ``path``: it is of the same line of
    control or of one around it, and not itself the failure of a scope that the other was in."""
    if path.startswith(record.path + "/"):
        return record.error is None
    scope = record.path.rpartition("/")[0]
    return not scope or path.startswith(scope + "/")


_QUIET = frozenset({ev.StepStarted, ev.CheckpointSaved, ev.RunStarted, ev.RunClaimed, ev.BudgetSpent, ev.SideEffectAttempted})
"""Kinds that tell nothing that later steps of a super-step must know: most facts of a log are of these, or of a step that completed."""


class Progress:
    """Mutable while a log is walked; one instance belongs to one driver or reader.

    ``results``: finished tasks by key. ``records``: recorded calls by (task, path). ``attempts``: the number of
    failed attempts by (task, path), with when the next may begin. ``takeovers``: how many owners have died since the run last got on,
    ``late`` how many were late with their lease though they lived (§10.6), and ``cuts`` how often its
    driving was cancelled as soon as it had begun. ``asked``: how often each place has opened a wait,
    and ``questions`` the newest one there;
    ``news``: signals not yet written to channels of their names; ``older``: where in the log more of them are, from which event to which,
    for a whole checkpoint does not hold signals. ``hash`` is the chain hash of the last row, ``fence`` the one it
    was written under, 0 where it was not read.

    ``sends``: whether the run may have enqueued intents, which a whole checkpoint does not tell.

    ``whole`` is where to begin: a whole checkpoint, or one numbered 0 with what the run carries from its thread (§4.15).
    """

    __slots__ = (
        "_first", "_names", "asked", "attempts", "checkpoint", "cuts", "failed", "fence", "hash", "late", "news", "older", "questions", "records", "results", "sends", "seq", "takeovers", "waits",
    )

    def __init__(self, run_id: str, whole: tuple[Checkpoint, bytes] | None = None) -> None:
        self.checkpoint: Checkpoint = cps.empty(run_id)
        self.hash = b""
        self.seq = 0
        self.fence = 0
        self.takeovers = 0
        self.late = 0
        self.cuts = 0
        self.sends = whole is not None and whole[0].upto > 0
        self.waits: tuple[Wait, ...] = ()
        self.results: dict[str, TaskResult] = {}
        self.records: dict[tuple[str, str], StepRecord] = {}
        self.attempts: dict[tuple[str, str], tuple[int, int]] = {}
        self.failed: dict[str, ErrorValue] = {}
        self.asked: dict[tuple[str, str], int] = {}
        self.questions: dict[tuple[str, str], Wait] = {}
        self.news: list[ev.SignalReceived] = []
        self.older: tuple[int, int] | None = None
        self._first, self._names = 0, dict[str, None]()
        if whole is not None:
            self.checkpoint, self.hash = whole
            self.seq = self.checkpoint.upto
            self.waits = self.checkpoint.waits
            if (kept := self.checkpoint.unfinished) is not None:
                self._recall(kept)
                self.takeovers, self.late, self.cuts, self._first = kept.takeovers, kept.late, kept.cuts, kept.heard
                self._names = dict.fromkeys(kept.names)
                self.older = (kept.heard, kept.upto) if kept.heard else None

    def _recall(self, kept: Unfinished) -> None:
        """Takes over what a whole checkpoint holds of the tasks that wait while the run goes on."""
        for result in kept.results:
            self.record(result)
        self.attempts = {(t.task, t.path): (t.count, t.due) for t in kept.attempts}
        self.asked = {(t.task, t.path): t.count for t in kept.asked}
        self.questions = {(w.task, w.path): w for w in kept.questions}
        self.failed = dict(kept.failed)

    def whole(self) -> Checkpoint:
        """The head with all that is on record since: what to save whole where the log stands now, so that loading can begin here."""
        kept = Unfinished(
            results=(*self.results.values(), *self.records.values()),
            attempts=tuple([Tried(t, path, count, due) for (t, path), (count, due) in self.attempts.items()]),
            asked=tuple([Tried(t, path, count) for (t, path), count in self.asked.items()]),
            questions=tuple(self.questions.values()),
            failed=dict(self.failed),
            takeovers=self.takeovers,
            late=self.late,
            cuts=self.cuts,
            heard=self._first,
            names=tuple(self._names),
            upto=self.seq,
        )
        return msgspec.structs.replace(self.checkpoint, waits=self.waits, unfinished=kept)

    def find_unfinished(self, of: Checkpoint) -> Unfinished:
        """What is on record of the tasks that a checkpoint carries on."""
        keys = {t.key for t in of.waiting}
        return Unfinished(
            results=(*(r for r in self.results.values() if r.task in keys), *(r for r in self.records.values() if r.task in keys)),
            attempts=tuple([Tried(t, path, count, due) for (t, path), (count, due) in self.attempts.items() if t in keys]),
            asked=tuple([Tried(t, path, count) for (t, path), count in self.asked.items() if t in keys]),
            questions=tuple([w for w in self.questions.values() if w.task in keys]),
            failed={t: e for t, e in self.failed.items() if t in keys},
        )

    def leaves_out(self, names: Iterable[str]) -> bool:
        """Whether signals of such names may be among those that are in the log alone."""
        return self.older is not None and not self._names.keys().isdisjoint(names)

    def catch_up(self, older: list[ev.SignalReceived]) -> None:
        """Takes the older signals in, read from the log."""
        self.news[:0] = older
        self.older = None

    def record(self, result: Result) -> None:
        if isinstance(result, TaskResult):
            self.results[result.task] = result
        else:
            self.records[result.task, result.path] = result

    @property
    def busy(self) -> bool:
        """Whether anything is on record since the last barrier."""
        return bool(self.results or self.records or self.attempts or self.failed or self.asked or self.questions or self.news or self.older)

    def barrier(self, *, first: bool = False) -> None:
        """Forgets what the barrier took, all but what is on record of the tasks that it carried on. The first checkpoint carries no signals."""
        kept = self.find_unfinished(self.checkpoint) if self.checkpoint.held else None
        self.results.clear()
        self.records.clear()
        self.attempts.clear()
        self.failed.clear()
        self.asked.clear()
        self.questions.clear()
        if kept is not None:
            self._recall(kept)
        if not first:
            self.news.clear()
            self.older, self._first = None, 0
            self._names.clear()

    def hear(self, events: Iterable[ev.Event]) -> None:
        """Notes what later steps of this super-step must know; live code and loading call it alike."""
        for event in events:
            match event.fact:
                case ev.WaitRequested(wait=wait):
                    self.asked[wait.task, wait.path] = self.asked.get((wait.task, wait.path), 0) + 1
                    self.questions[wait.task, wait.path] = wait
                case ev.SignalReceived() as signal:
                    self.news.append(signal)
                case _:
                    pass

    def again(self, task: str, path: str, attempt: int, due: int, error: ErrorValue | None = None) -> None:
        """Another attempt at a task or a call begins: the failure that ended the last one counts no longer, finished work does."""
        beneath = f"{path}/" if path else ""
        self._forget(task, beneath, error)
        for place in [p for p in self.attempts if p[0] == task and p[1].startswith(beneath)]:
            del self.attempts[place]
        self.attempts[task, path] = (attempt, due)

    def forgive(self) -> None:
        """An operator goes on with a failed run: its failures no longer count, its finished work does, but for what was taken back."""
        self.attempts.clear()
        self.takeovers = self.late = self.cuts = 0
        self._take_back()
        for task in {task for task, _ in self.records}:
            self._forget(task, "", self.failed.get(task))
        self.failed.clear()

    def _take_back(self) -> None:
        """Forgets the results of effects that were taken back, and of what they were part of: these are done again (§6.11)."""
        for place in [p for p in self.records if p[0] == compensation.TASK]:
            record = self.records.pop(place)
            if record.kind != "effect" or record.error is not None:
                continue
            step, task, path = compensation.undone_at(record.path)
            if step == self.checkpoint.step_of(task):
                self.results.pop(task, None)
                while path:
                    self.records.pop((task, path), None)
                    path = path.rpartition("/")[0]

    def _forget(self, task: str, beneath: str, ended: ErrorValue | None) -> None:
        """Forgets recorded failures, but for those that the code caught and went on from: it must find these again.

        A failure that ended the attempt after all (``ended``) was let out in the end; what its handlers recorded on the
        way goes with it, people's answers and effects excepted.
        """
        mine = [r for (t, path), r in self.records.items() if t == task and path.startswith(beneath)]
        for number, failure in enumerate(mine):
            if failure.error is None or (task, failure.path) not in self.records:
                continue
            later = [r for r in mine[number + 1 :] if _goes_on(r, failure.path)]
            if not later:
                del self.records[task, failure.path]
            elif ended is not None and (failure.error.type, failure.error.message) == (ended.type, ended.message):
                for record in (failure, *(r for r in later if r.kind not in _KEPT)):
                    self.records.pop((task, record.path), None)

    def step(self, record: Record) -> None:
        """Applies one record of the log.

        Raises:
            ChainBroken: the checkpoint's hash is not the one its event vouches for (§1.8).
            KeyUnavailable: what it says is encrypted under a key that is not at hand (§14.5).
        """
        for result in record.results:
            self.record(result)
        self._note(record.events)
        if record.delta is not None:
            vouched = cps.find_voucher(self.checkpoint, record.events, record.delta_bytes)
            if vouched is None:
                payloads.hold_open(record.delta)
                raise ChainBroken(f"the checkpoint saved with event {record.seq} is not recorded by any event", hint="find the damage: holdfast check")
            if record.delta.carries:
                self.results[cps.CARRY_TASK] = TaskResult(cps.CARRY_TASK)
            lacking = [n for c in record.delta.carries for n in c.channels if n not in self.checkpoint.values]
            if lacking:
                raise StoreCorrupt(
                    f"{', '.join(lacking)} of {self.checkpoint.run_id} came from {record.delta.carries[0].run_id}, whose log is missing",
                    hint="restore a backup that has both runs", code="checkpoint_head_missing",
                )
            before = self.checkpoint.step
            seq, hash = vouched
            kept = cps.boundaries(record.events, advanced=record.delta.step > max(before, 0))
            self.checkpoint = cps.advance(
                self.checkpoint, record.delta, self.results, seq=seq, at=record.at, hash=hash, waits=self.waits, boundaries=kept
            )
            if self.checkpoint.step != before:
                self.barrier(first=before < 0)
        self.seq, self.hash, self.fence = record.seq, record.hash, record.fence

    def tell(self, events: Sequence[ev.Event], hash: bytes = b"") -> None:
        """Applies what a commit without a checkpoint tells, its results apart, before it is in the log."""
        self._note(events)
        self.seq, self.hash = events[-1].seq, hash

    def _note(self, events: Sequence[ev.Event]) -> None:
        self.hear(events)
        for event in events:
            kind = type(event.fact)
            if kind in _QUIET:
                continue
            if kind is ev.StepCompleted:
                self.takeovers = self.late = self.cuts = 0
                continue
            if isinstance(event.fact, ev.SignalReceived):
                self._first = self._first or event.seq
                self._names[event.fact.name] = None
            match event.fact:
                case ev.RunSubmitted(input=given):
                    self.results[cps.INPUT_TASK] = TaskResult(cps.INPUT_TASK, writes=given)
                case ev.StepRetryScheduled(task=task, path=path, attempt=attempt, due=due, error=error):
                    self.again(task, path, attempt, due, error)
                case ev.StepFailed(task=task, path=path, attempt=attempt, error=error):
                    self.attempts[task, path] = (attempt, 0)
                    if not path:
                        self.failed[task] = error
                case ev.RunResumed(cause="operator"):
                    self.forgive()
                case ev.AttemptTakenOver(late=late) if late > self.late:
                    self.late = late
                case ev.AttemptTakenOver(begun=False):
                    pass
                case ev.AttemptTakenOver():
                    self.takeovers += 1
                case ev.RunHandedBack(cut=True):
                    self.cuts += 1
                case ev.StepEnded() | ev.SideEffectRecorded():
                    self.takeovers = self.late = self.cuts = 0
                case ev.IntentEnqueued():
                    self.sends = True
                case ev.WaitRequested(wait=wait):
                    self.waits = (*(w for w in self.waits if w.wait_id != wait.wait_id), wait)
                case ev.WaitDecided(decision=decision) | ev.WaitTimedOut(decision=decision):
                    self.takeovers = self.late = self.cuts = 0
                    self.waits = tuple(w for w in self.waits if w.wait_id != decision.wait_id)
                case ev.WaitClosed(wait_id=wait_id):
                    self.waits = tuple(w for w in self.waits if w.wait_id != wait_id)
                case ev.RunCompleted() | ev.RunCanceled():
                    self.waits = ()
                case _:
                    pass

    def walk(self, rows: Sequence[Row]) -> Progress:
        """Applies rows, held against the chain."""
        for record in open_rows(rows, self.hash):
            self.step(record)
        return self
