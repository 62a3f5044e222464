"""The progress of a run: the head checkpoint and what has happened since, folded from its log (§4.5, §4.6).

``step`` applies one record; loading, time travel (``state --at``) and the checker all walk a log with it. Results and
records since the last barrier are pending here, and are cleared when a barrier takes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.core import canon, compensation, decisions, envelopes, ids, outdated, payloads
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core.channels import CUSTOM, TOPIC, grow
from holdfast.core.checkpoint import (
    FORMAT,
    NONE_SEEN,
    STEPPED,
    Checkpoint,
    Result,
    Source,
    StepRecord,
    Task,
    TaskResult,
    Tried,
    Unfinished,
    decode_writes,
)
from holdfast.core.codec import UNDECODABLE, Record, Row, open_to_checkpoint, plain_decoders
from holdfast.core.errors import ChainBroken, ChildFailed, ErrorValue, StepFailure, StoreCorrupt
from holdfast.core.outcomes import OK
from holdfast.core.run import Run
from holdfast.core.status import LIVE, Status
from holdfast.core.waits import ABANDON, Decision, Wait, tell_child, times_out_for_good

CHILD_FAILED = ErrorValue.of(ChildFailed("")).type
_TAKEN_BACK = frozenset({"effect", compensation.GONE})
HEARD = frozenset({ev.WaitRequested, ev.WaitClosed, ev.SignalReceived})
"""The kinds of facts that ``hear`` notes."""


def _tell_error(record: StepRecord) -> tuple[str, str] | None:
    """Returns the type and the message of a record's error, or None if it has none."""
    return None if record.error is None else (record.error.type, record.error.message)


def _read_answer(record: StepRecord) -> Decision | None:
    """Returns the decision in a record, or None if it is not the record of a wait, or cannot be read."""
    if record.kind != "wait" or envelopes.is_sealed(record.value):
        return None
    return decisions.read_answer(record)


LEFT, LEFT_AT_ONCE = "left", "left:now"
"""Kinds of a record whose name is the place of a call that a task made while it left an error (``engine/calls/left``)."""
_QUIET = frozenset({ev.StepStarted, ev.CheckpointSaved, ev.RunStarted, ev.RunClaimed, ev.BudgetSpent, ev.SideEffectAttempted})
"""Kinds of facts that change nothing here. Most facts of a log are of these kinds, or report that a step completed."""


class Progress:
    """The state of a run, as it is folded from the log. It is mutable; each instance belongs to one driver or reader.

    ``results``: finished tasks by key. ``records``: recorded calls by (task, path). ``attempts``: the number of
    failed attempts by (task, path), and when the next may begin. Since the run last made progress: ``takeovers`` is how many owners died,
    ``late`` how many were late to renew their lease although they lived (§10.6), ``cuts`` how often its
    driving was cancelled as soon as it had begun. ``asked``: how often each place has opened a wait;
    ``questions``: the newest wait of each place; ``outdated``: places whose record or question answers only exactly the same call;
    ``news``: signals not yet written to the channels of their names; ``older``: the first and last event between which the log contains more
    such signals, because a whole checkpoint does not contain signals. ``hash`` is the chain hash of the last row, ``fence`` the fence under
    which it was written, 0 if that row was not read.

    ``sends``: whether the run may have enqueued intents, which a whole checkpoint does not tell; ``borrows``: whether it may use effects of another run.

    ``whole`` is where to begin: a whole checkpoint, or one numbered 0 with the values that the run carries from its thread (§4.15).
    """

    __slots__ = (
        "_first", "_names", "asked", "attempts", "borrows", "checkpoint", "cuts", "failed", "fence", "hash", "late", "news", "older", "outdated", "questions", "records", "results", "sends", "seq", "takeovers",
        "waits",
    )

    def __init__(self, run_id: str, whole: tuple[Checkpoint, bytes] | None = None) -> None:
        self.checkpoint: Checkpoint = cps.empty(run_id)
        self.hash = b""
        self.seq = 0
        self.fence = 0
        self.takeovers = 0
        self.late = 0
        self.cuts = 0
        self.sends = self.borrows = whole is not None and whole[0].upto > 0
        self.waits: tuple[Wait, ...] = ()
        self.results: dict[str, TaskResult] = {}
        self.records: dict[tuple[str, str], StepRecord] = {}
        self.attempts: dict[tuple[str, str], tuple[int, int]] = {}
        self.failed: dict[str, ErrorValue] = {}
        self.asked: dict[tuple[str, str], int] = {}
        self.questions: dict[tuple[str, str], Wait] = {}
        self.outdated: set[tuple[str, str]] = set()
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
        """Takes over the records of unfinished tasks, for example from a whole checkpoint."""
        for result in kept.results:
            self.record(result)
        self.attempts = {(t.task, t.path): (t.count, t.due) for t in kept.attempts}
        self.asked = {(t.task, t.path): t.count for t in kept.asked}
        self.questions = {(w.task, w.path): w for w in kept.questions}
        self.failed = dict(kept.failed)
        self.outdated = set(kept.outdated)

    def whole(self) -> Checkpoint:
        """Returns the head with all records since. If this is saved as a whole checkpoint, loading can begin at the current end of the log."""
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
            outdated=tuple(sorted(self.outdated)),
        )
        return msgspec.structs.replace(self.checkpoint, waits=self.waits, unfinished=kept)

    def find_unfinished(self, of: Checkpoint) -> Unfinished:
        """Returns the records of the tasks that a checkpoint carries on."""
        keys = {t.key for t in of.waiting}
        return Unfinished(
            results=(*(r for r in self.results.values() if r.task in keys), *(r for r in self.records.values() if r.task in keys)),
            attempts=tuple([Tried(t, path, count, due) for (t, path), (count, due) in self.attempts.items() if t in keys]),
            asked=tuple([Tried(t, path, count) for (t, path), count in self.asked.items() if t in keys]),
            questions=tuple([w for w in self.questions.values() if w.task in keys]),
            failed={t: e for t, e in self.failed.items() if t in keys},
            outdated=tuple(sorted(p for p in self.outdated if p[0] in keys)),
        )

    def leaves_out(self, names: Iterable[str]) -> bool:
        """Whether signals with one of these names may be among the older ones, which only the log contains."""
        return self.older is not None and not self._names.keys().isdisjoint(names)

    def catch_up(self, older: list[ev.SignalReceived]) -> None:
        """Adds the older signals, which the caller has read from the log."""
        self.news[:0] = older
        self.older = None

    def record(self, result: Result) -> None:
        if isinstance(result, TaskResult):
            self.results[result.task] = result
            return
        if result.kind == LEFT_AT_ONCE:
            self._drop_left(result)
            return
        place = result.task, result.path
        if place in self.records:
            del self.records[place]  # records are kept in the order of their arrival
        if result.kind != "wait":  # an answer belongs to the question before it, so the place stays outdated
            self.outdated.discard(place)
        self.records[place] = result

    @property
    def busy(self) -> bool:
        """Whether anything is recorded since the last barrier."""
        return bool(self.results or self.records or self.attempts or self.failed or self.asked or self.questions or self.news or self.older)

    def enter(self, run: Run, claimed: ev.RunClaimed, before: str | None, cause: str, *, late: bool, stays: bool, via: str) -> list[ev.Fact]:
        """Returns the facts of the first commit under a new claim (§1.4). ``before``: the owner that had not released the run, and ``cause``: why it does not have it
        any more; ``late``: it lives, and was late. ``stays``: the run does not go on. ``via``: the token of the person who asked for this very run."""
        if before is None or run.status not in LIVE:
            resumed = run.interrupted_at is not None and (run.status in LIVE or run.status is Status.PENDING)
            return [ev.RunRecovered("", "a person resumed it", via), claimed] if resumed else [claimed]
        if before == claimed.owner:
            return [ev.RunHandedBack(before), claimed]
        expired = ev.AttemptLeaseExpired(before, cause)
        if stays:
            return [expired, claimed]
        begun = not self.takeovers or self.fence in (0, claimed.fence - 1)  # an owner that had claimed it but not begun it was killed by another run
        over = ev.AttemptTakenOver(claimed.owner, self.takeovers + (begun and not late), self.late + 1 if late else 0, begun=begun)
        return [expired, over, ev.RunRecovered(before, cause, via), claimed]

    def why_spent(self, most: int, *, late: bool) -> StepFailure | None:
        """Returns why a run does not continue that has used up one of its two budgets: for owners that died, or for owners that were late (§10.6)."""
        if late and self.late >= most:
            said = f"{self.late} owners in a row renewed their lease too late, without any progress in between"
            hint = "find out what blocks the Python process for so long, or increase the lease (Runtime(lease=), --lease); then resume"
            return StepFailure(said, code=compensation.LEASE_TOO_SHORT, hint=hint)
        if not late and self.takeovers + self.cuts >= most:
            cut = f", and were canceled {self.cuts} times right after they had begun to execute it," if self.cuts else ""
            said = f"its owners died {self.takeovers} times{cut} without any progress in between"
            return StepFailure(said, code=compensation.TAKEOVER_LIMIT, hint="find out what kills the workers, then resume")
        return None

    def barrier(self, *, first: bool = False) -> None:
        """Clears what the barrier took and keeps the records of the tasks that it carried on. The first checkpoint takes no signals, so these stay."""
        kept = self.find_unfinished(self.checkpoint) if self.checkpoint.held else None
        self.results.clear()
        self.records.clear()
        self.attempts.clear()
        self.failed.clear()
        self.asked.clear()
        self.questions.clear()
        self.outdated.clear()
        if kept is not None:
            self._recall(kept)
        if not first:
            self.news.clear()
            self.older, self._first = None, 0
            self._names.clear()

    def hear(self, events: Iterable[ev.Event]) -> None:
        """Notes what later steps of this super-step must know. Both live code and loading call it."""
        for event in events:
            match event.fact:
                case ev.WaitRequested(wait=wait):
                    self.asked[wait.task, wait.path] = self.asked.get((wait.task, wait.path), 0) + 1
                    self.questions[wait.task, wait.path] = wait
                    self._renew(wait)
                case ev.SignalReceived() as signal:
                    self.news.append(signal)
                case ev.WaitClosed(wait_id=wait_id, returned=ev.SignalReceived()):
                    self._give_back(*decisions.place(wait_id))
                case _:
                    pass

    def _renew(self, wait: Wait) -> None:
        """Removes an outdated answer at the place of a new question, if it answers another question."""
        place = wait.task, wait.path
        if place not in self.outdated:
            return
        self.outdated.discard(place)
        if (record := self.records.get(place)) is not None and ((given := _read_answer(record)) is None or given.wait_id != wait.wait_id):
            del self.records[place]

    def _give_back(self, task: str, path: str) -> None:
        """Forgets an answer that was returned because it now belongs to another wait, and what was made of it inside the scope that returned it: the
        outermost scope around the place that has a record."""
        self.records.pop((task, path), None)
        around = []
        while path := path.rpartition("/")[0]:
            if (task, path) in self.records:
                around.append(path)
        for made in around[:-1]:
            del self.records[task, made]

    def _drop_left(self, left: StepRecord) -> None:
        """Forgets the calls that a task made while it left an error: the task is entered again and may take another path."""
        for place in [p for p in self.records if p[0] == left.task and f"{p[1]}/".startswith(f"{left.name}/")]:
            del self.records[place]

    def _drop_all_left(self, tasks: Collection[str], beneath: str = "") -> None:
        """Forgets the calls that these tasks made while they left an error, at places beginning with ``beneath``: their failure no longer counts."""
        for place, record in list(self.records.items()):
            if record.kind == LEFT and record.task in tasks and record.path.startswith(beneath):
                self._drop_left(record)
                del self.records[place]

    def again(self, task: str, path: str, attempt: int, due: int, error: ErrorValue | None = None) -> None:
        """Begins another attempt at a task or a call: the failure that ended the last attempt no longer counts, finished work does."""
        beneath = f"{path}/" if path else ""
        self._drop_all_left((task,), beneath)
        self._forget(task, beneath, error, _tell_error)
        for place in [p for p in self.attempts if p[0] == task and p[1].startswith(beneath)]:
            del self.attempts[place]
        self.attempts[task, path] = (attempt, due)

    def forgive(self) -> None:
        """An operator resumes a failed run: its failures no longer count, its finished work does, except for effects that were taken back.

        A wait that timed out and failed the run counts as a failure, and so does a child that failed or was canceled: both are asked for again.
        """
        self.attempts.clear()
        self.takeovers = self.late = self.cuts = 0
        before = {place: record for place, record in self.records.items() if place[0] != compensation.TASK}
        self._take_back()
        for place, record in list(self.records.items()):
            if (given := _read_answer(record)) is not None and times_out_for_good(self._question(place, given), given):
                del self.records[place]
        self._drop_all_left({task for task, _ in self.records})
        for task in {task for task, _ in before}:
            self._forget(task, "", self.failed.get(task), self._tell_failure)
        for (task, path), record in before.items():
            if (given := _read_answer(record)) is not None and given.action == ABANDON and (call := (task, path.rpartition("?")[0])) in before and call not in self.records:
                self.records.pop((task, path), None)  # it failed its step; whether to carry out the effect after all is asked as a new question
        self.failed.clear()

    def _question(self, place: tuple[str, str], given: Decision) -> Wait | None:
        """Returns the wait at a place that the decision answered, or None if it is not known."""
        asked = self.questions.get(place)
        return asked if asked is not None and asked.wait_id == given.wait_id else None

    def _tell_failure(self, record: StepRecord) -> tuple[str, str] | None:
        """Returns the type and the message of the error with which a record failed, or None. A failed child counts as the error that its parent gets."""
        if record.error is not None or (given := _read_answer(record)) is None:
            return _tell_error(record)
        told = tell_child(given)
        return None if told is None else (CHILD_FAILED, told)

    def _take_back(self) -> None:
        """Forgets the results of effects that were taken back, so that they are done again (§6.11). Records that may depend on them become outdated."""
        for place in [p for p in self.records if p[0] == compensation.TASK]:
            record = self.records.pop(place)
            if record.kind not in _TAKEN_BACK or record.error is not None:
                continue
            step, task, path = compensation.undone_at(record.path)
            if step == self.checkpoint.step_of(task):
                self.results.pop(task, None)
                found = outdated.find_outdated([r for p, r in self.records.items() if p[0] == task], path)
                for gone in found.gone:
                    del self.records[task, gone]
                self.outdated.difference_update([(task, p) for p in found.gone])
                self.outdated.update([(task, p) for p in found.same], [(task, w.path) for w in self.waits if w.task == task])

    def _forget(self, task: str, beneath: str, ended: ErrorValue | None, failure_of: Callable[[StepRecord], tuple[str, str] | None]) -> None:
        """Forgets recorded failures, except those that the code caught before it went on: it must find these again. ``failure_of`` tells which records failed.

        If a caught failure ended the attempt after all (``ended``), its handlers raised it again. The records of the handlers are then forgotten too: if the
        failure does not come again, the code makes other calls at the same places. An effect among them is in the effect records, and is not repeated.
        """
        mine = [r for (t, path), r in self.records.items() if t == task and path.startswith(beneath)]
        at = {r.path for r in mine}
        for number, failure in enumerate(mine):
            if (error := failure_of(failure)) is None or (task, failure.path) not in self.records:
                continue
            later = [r for r in mine[number + 1 :] if outdated.goes_on(r, failure.path, at)]
            if not later:
                del self.records[task, failure.path]
            elif ended is not None and error == (ended.type, ended.message):
                for record in (failure, *(r for r in later if not outdated.is_beside(r))):
                    self.records.pop((task, record.path), None)

    def step(self, record: Record) -> None:
        """Applies one record of the log.

        Raises:
            ChainBroken: no event vouches for the checkpoint's hash (§1.8).
            KeyUnavailable: its payload is encrypted under a key that is not available (§14.5).
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
        """Applies the events of a commit without a checkpoint, before it is in the log. The caller applies its results."""
        self._note(events)
        self.seq, self.hash = events[-1].seq, hash

    def _note(self, events: Sequence[ev.Event]) -> None:
        heard = False
        for event in events:
            kind = type(event.fact)
            if kind in _QUIET:
                continue
            if kind is ev.StepCompleted:
                self.takeovers = self.late = self.cuts = 0
                continue
            heard = heard or kind in HEARD
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
                case ev.SideEffectReused(effect_id=act) if not act.startswith(f"{self.checkpoint.run_id}."):
                    self.borrows = True
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
        if heard:
            self.hear(events)

    def walk(self, rows: Sequence[Row]) -> Progress:
        """Checks rows against the hash chain and applies them. Consecutive plain steps are read in one go."""
        hashes = canon.chain_each(self.hash, [row.data for row in rows])
        at = 0
        while at < len(rows):
            if (found := read_plain(self.checkpoint, rows, hashes, at, self.waits)) is None:
                records = open_to_checkpoint(rows, hashes, at)
                for record in records:
                    self.step(record)
                at += len(records)
                continue
            at += found.rows
            self.checkpoint = found.checkpoint
            self.takeovers = self.late = self.cuts = 0
            self.barrier()
            self.seq, self.hash, self.fence = rows[at - 1].seq, rows[at - 1].hash, found.fence
        return self


_APART = frozenset({CUSTOM, TOPIC})
"""Reducers that do more than add the written value to the old one."""


class Plain(NamedTuple):
    """Plain steps that were read in one go: the number of rows, the checkpoint of the last one, and the fence under which it was written."""

    rows: int
    checkpoint: Checkpoint
    fence: int


def read_plain(parent: Checkpoint, rows: Sequence[Row], hashes: Sequence[bytes], start: int, waits: tuple[Wait, ...]) -> Plain | None:
    """Reads the plain steps from ``rows[start]`` on in one go, or returns None if that row is not a plain step. ``hashes`` are the rows' hashes as
    computed along the chain.

    Most rows of most logs are plain steps (``core/fused``): one task has ended, and one task is next. What such a row changes in ``parent``, the
    checkpoint before it, depends on few values. These are kept as loose values from row to row, and one checkpoint is made at the end, without the
    events, records and checkpoints that ``Progress.step`` makes for each row. ``waits`` stay open throughout, because no plain step opens or closes a wait.

    It stops before the first row that is not a plain step, or that is damaged: ``Progress.step`` applies that row, or reports what is wrong with it.
    The result is the same either way (a property of the tests). Here too, rows are checked against the chain, and checkpoints against the hash that
    vouches for them.

    Raises:
        EventUnreadable: the writes of a step cannot be decoded.
    """
    if parent.step < 0 or parent.topics or parent.skipped or parent.held or (task := _find_plain(parent.pending)) is None:
        return None
    decode_row, decode_delta = plain_decoders()
    step, hash, vouched, before = parent.step, parent.hash, parent.seq, 0
    values, versions, seen = dict(parent.values), dict(parent.versions), dict(parent.seen)
    made: set[str] = set()
    writes: Mapping[str, Any] = {}

    def sole(_: Mapping[str, Any], name: str) -> bool:
        return name in made  # a value made here is held by nobody else

    at, count, fence, node, pending = 0, 0, 0, "", parent.pending
    for row in rows[start:] if start else rows:
        if row.hash != hashes[start + count] or row.opener is not None:
            break
        try:
            read = decode_row(row.data)
            change = decode_delta(read.delta)
        except UNDECODABLE:
            break
        ended, done, kinds = read.facts[0], change.done, change.kinds
        if read.format != FORMAT or ended.outcome != OK or ended.path or ended.hash != canon.chain(hash, read.delta):
            break
        if change.step != step + 1 or change.source is not Source.LOOP or change.values is not None or change.base is not None or change.carries:
            break
        if change.pending is None or len(done) != 1 or type(result := done[0]) is not TaskResult or (kinds and not _APART.isdisjoint(kinds.values())):
            break
        if result.task != task.node or result.outcome != OK or result.unsent:
            break
        writes, node, step = decode_writes(result), task.node, step + 1
        if task.seen:
            seen[node] = upto = dict(seen.get(node, NONE_SEEN))
            for channel in task.seen:
                upto[channel] = versions.get(channel, 0)
        if result.goto is None:
            versions["done:" + node] = step
        else:
            for target in result.goto:
                versions["goto:" + target] = step
        for target in result.chosen:
            versions["goto:" + target] = step
        for name, value in writes.items():
            versions[name] = step
            if name not in kinds:
                values[name] = value
                continue
            old = values.get(name)
            grow(values, name, kinds[name], value, sole)
            if values[name] is not old:
                made.add(name)
        count, at, fence, hash, before, vouched, pending = count + 1, read.at, read.fence, ended.hash, vouched, row.seq - 1, change.pending
        if (task := _find_plain(pending)) is None:
            break
    if not count:
        return None
    checkpoint = Checkpoint(
        run_id=parent.run_id,
        seq=vouched,
        step=step,
        values=values,
        versions=versions,
        seen=seen,
        pending=pending,
        parent=ids.checkpoint_id(parent.run_id, before) if before else None,
        waits=waits,
        source=Source.LOOP,
        boundaries=STEPPED,
        writes={node: writes},
        hash=hash,
        created_at=at,
        idle=parent.idle,
    )
    return Plain(count, checkpoint, fence)


def _find_plain(pending: tuple[Task, ...]) -> Task | None:
    """Returns the pending task if it is the only one, and its node's only turn in the super-step; else None."""
    if len(pending) != 1:
        return None
    task = pending[0]
    return None if task.index or task.began or task.node[0] == "@" else task
