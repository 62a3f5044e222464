"""The one writer of a claimed run: what it decides goes through here, one commit at a time (§1.6).

Tasks of a super-step finish when they like; whatever is handed in while a commit is in flight goes into the next one. A failed commit kills the
journal: every later write gets the same error, so nothing can be reported that is not durable (§1.12).

While plain steps go along the fused line (``core/fused``), that holds where the run stands, and this holds what it was when the line
began. Whoever looks ends the line: what they find is what each step would have left, had it come by here.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any, TypeVar

import msgspec

from holdfast import logs, machine
from holdfast.core import blobs, codec, decisions
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core import run as records
from holdfast.core.blobs import Blob
from holdfast.core.called import Call
from holdfast.core.channels import Weights
from holdfast.core.checkpoint import INPUT_TASK, Checkpoint, Delta, Result, Source, StepRecord, TaskResult
from holdfast.core.codec import open_row
from holdfast.core.commands import Cancel
from holdfast.core.commit import (
    SIGNAL_EXTRA_BYTES,
    Behind,
    Commit,
    DedupClaim,
    InboxItem,
    LedgerRow,
    Statement,
    Step,
    ThreadEnd,
    Tip,
    whole_due,
)
from holdfast.core.effects import Effect
from holdfast.core.errors import REFUSED, HoldfastError, LeaseLost, StoreError, make_own
from holdfast.core.fused import Line
from holdfast.core.graph import Program
from holdfast.core.intents import Intent
from holdfast.core.lease import COUNTER, KEEP, RELEASE, LeaseAction
from holdfast.core.progress import HEARD, Progress
from holdfast.core.recorded import Recorded
from holdfast.core.run import Buffered, Run
from holdfast.core.status import Status
from holdfast.core.waits import Wait
from holdfast.engine.base.begun import Rest
from holdfast.engine.base.echo import Echo
from holdfast.engine.base.services import SafePoints, Sendings
from holdfast.engine.base.streams import Ring
from holdfast.engine.look import parents
from holdfast.engine.look.snapshot import whole
from holdfast.machine import call_nobody
from holdfast.meters import METERS
from holdfast.ports import Loaded, Store

T = TypeVar("T")
SOME_ROWS = 64
_LOUD = frozenset([kind for wire, kind in ev.KINDS.items() if wire in logs.LOUD])
_EFFECTS = frozenset([kind for kind in ev.KINDS.values() if issubclass(kind, ev.EffectFact)])
_making = threading.Lock()


class Draft(msgspec.Struct):
    """What somebody wants to be durable with the next commit; drafts merge."""

    facts: list[ev.Fact] = []
    results: list[Result] = []
    effects: list[Effect] = []
    took: list[str] = []
    puts: list[InboxItem] = []
    creates: list[Commit] = []
    claims: list[DedupClaim] = []
    intents: list[Intent] = []
    ledger: list[LedgerRow] = []
    statements: list[Statement] = []
    blobs: list[Blob] = []
    max_queued: int | None = None
    due_stands: bool = False

    def merge(self, other: Draft) -> None:
        self.facts += other.facts
        self.results += other.results
        self.effects += other.effects
        self.took += other.took
        self.puts += other.puts
        self.creates += other.creates
        self.claims += other.claims
        self.intents += other.intents
        self.ledger += other.ledger
        self.statements += other.statements
        self.blobs += other.blobs
        self.max_queued = self.max_queued if other.max_queued is None else other.max_queued
        self.due_stands |= other.due_stands

    def join(self, later: Draft) -> Draft:
        """Both in one, and neither changed."""
        both = Draft()
        both.merge(self)
        both.merge(later)
        return both

    def __bool__(self) -> bool:
        return bool(self.facts or self.results or self.ledger or self.intents)

    @property
    def only_facts(self) -> bool:
        """Whether its facts are all there is to it."""
        return not any(msgspec.structs.astuple(self)[1:])


_NOTHING = Draft()
"""What is held where nothing is; nobody changes it."""


class Act(msgspec.Struct, frozen=True):
    """An effect in the middle of its act. ``task`` is what a cancel can end; a thread has none."""

    name: str
    task: asyncio.Task[Any] | None


class Journal:
    """A run under a lease, its progress, and the way to make more of it durable."""

    def __init__(self, store: Store, run: Run | None, tip: Tip | None, fence: int, progress: Progress) -> None:
        self.store = store
        self.fence = fence
        self._stands(run, tip, progress)
        self._line: Line | None = None
        self.dead: BaseException | None = None
        self.cut = False
        self.stopped: Sequence[str] = ()
        self.sendings: Sendings | None = None  # who sends its intents while it is driven, where somebody here does
        self.posted = False
        self.expects: Callable[[int | None], None] = call_nobody  # told of each change of the open waits: when they fall due
        self._held = _NOTHING
        self.echo: Echo | None = None
        self._ring: Ring | None = None
        self._lock = asyncio.Lock()
        self.stepping = False  # whether a step of the line is with the store
        self._stepped: asyncio.Future[None] | None = None
        self._next: Draft | None = None
        self._joined: asyncio.Task[None] | None = None

    @classmethod
    def load(cls, store: Store, loaded: Loaded, fence: int) -> Journal:
        """The journal of a claimed run, its progress read back from the log.

        Raises:
            StoreCorrupt: the log does not hold together.
        """
        progress = Progress(loaded.run.run_id, loaded.whole).walk(loaded.rows)
        journal = cls(store, loaded.run, loaded.tip, fence, progress)
        if loaded.emitted:
            journal._ring = Ring(loaded.run.run_id, fence, loaded.emitted)
        return journal

    @property
    def ring(self) -> Ring:
        """Where this driving puts what its steps emit; plain nodes ask for it from their threads."""
        with _making:
            if self._ring is None:
                self._ring = Ring(self.run.run_id, self.fence)
            return self._ring

    def supersede(self) -> None:
        """What the driving before has emitted goes on nowhere: its attempts begin again."""
        if self._ring is not None:
            self._ring.supersede()

    # Where the run stands, as the last commit left it. While a line goes on these are not there: whoever looks at one ends it.

    @cached_property
    def run(self) -> Run:
        self._look()
        assert self._run is not None, "nothing has been committed yet"
        return self._run

    @cached_property
    def tip(self) -> Tip | None:
        self._look()
        return self._tip

    @cached_property
    def progress(self) -> Progress:
        self._look()
        return self._progress

    @cached_property
    def safe_points(self) -> SafePoints:
        """Those of its driver, which puts them here; of a run that nobody drives nobody asks."""
        return SafePoints(call_nobody)

    # What few runs have is made when it is first asked for: many are driven at once, and the garbage collector goes through all that each has.

    @cached_property
    def acting(self) -> set[str]:
        """The effects in flight."""
        return set()

    @cached_property
    def acts(self) -> dict[str, Act]:
        return {}

    @cached_property
    def taking(self) -> set[tuple[str, str]]:
        """Signals, by name and key, that a wait of this driving has taken."""
        return set()

    @cached_property
    def quiet(self) -> asyncio.Event:
        """Set while no effect is in flight."""
        found = asyncio.Event()
        found.set()
        return found

    @cached_property
    def weights(self) -> Weights:
        """What the channels weigh; most runs hold too little for anybody to ask."""
        return Weights()

    def _stands(self, run: Run | None, tip: Tip | None, progress: Progress) -> None:
        self._run, self._tip, self._progress = run, tip, progress
        self.tip, self.progress = tip, progress
        if run is not None:
            self.run = run

    @property
    def due(self) -> int | None:
        """When the earliest deadline of its open waits falls due; a run on the fused line waits for nothing."""
        return None if self._line is not None or self._run is None or not self._run.waits else self._run.wake_at

    # -- the fused line -----------------------------------------------------------------------------

    def line(self, program: Program) -> Line | None:
        """Begins a line of plain steps where the run stands; None if something about the run is not plain."""
        run, progress = self._run, self._progress
        checkpoint = progress.checkpoint
        if run is None or self._tip is None or run.status is not Status.RUNNING or run.budgets or run.waits or run.cancel_requested_at is not None:
            return None
        if self.dead is not None or self.echo is not None or self._ring is not None or self._held or self._lock.locked():
            return None
        if checkpoint.skipped or checkpoint.topics or checkpoint.held:
            return None
        if progress.busy or progress.borrows or logs.has_listener():
            return None
        self._line = Line(program, run, self._tip, self.fence, checkpoint, machine.sole)
        for name in ("run", "tip", "progress"):
            self.__dict__.pop(name, None)
        return self._line

    def goes_along(self, line: Line) -> bool:
        """Whether nobody has looked since the line began, and nothing is wrong."""
        return self._line is line and self.dead is None

    async def step(self, write: Callable[[Step], Awaitable[Tip]], line: Line, step: Step) -> None:
        """Makes a step of the line durable; returns after the sync.

        Raises:
            LeaseLost, VersionConflict, StoreError: and the journal is dead from then on.
        """
        self.stepping = True
        try:
            tip = await write(step)
        except BaseException as e:
            self.end_step(line, None, e)
            raise
        self.end_step(line, tip)

    def end_step(self, line: Line, tip: Tip | None, error: BaseException | None = None) -> bool:
        """The step that was decided last is durable, or what has become of it is not known and the journal is dead. Gives whether the line goes on."""
        self.stepping = False
        if tip is None:
            self.dead = error
        else:
            line.keep(tip)
        if self._stepped is not None and not self._stepped.done():
            self._stepped.set_result(None)
        if self._line is line:
            return self.dead is None
        self._follow(line)
        return False

    async def _until_stepped(self) -> None:
        """A step of the line, which is over, is with the store: waits until it is known what has become of it. One task at most does, that which has the lock."""
        self._stepped = stepped = asyncio.get_running_loop().create_future()
        try:
            await stepped
        finally:
            self._stepped = None

    async def end(self, line: Line, commit: Commit) -> None:
        """Makes the end of a run durable that has come along the line; which is over, whatever becomes of it.

        Raises:
            InboxUnread: somebody has put a command into the run's inbox; nothing was written and the journal lives on.
            LeaseLost, VersionConflict, StoreError: and the journal is dead from then on.
        """
        async with self._lock:
            try:
                await self._durable(lambda: commit)  # whoever looks meanwhile finds the run as the last step left it
            finally:
                if self._run is commit.run:
                    self._line = None
                self._look()

    def _look(self) -> None:
        """Makes what others look at from what the line holds, which ends it."""
        if self._line is not None:
            line, self._line = self._line, None
            self._follow(line)

    def _follow(self, line: Line) -> None:
        if line.moved:
            self._progress.checkpoint = line.checkpoint
            self._stands(line.run, line.tip, self._progress)
        else:
            self._stands(self._run, self._tip, self._progress)

    # -- what is on record --------------------------------------------------------------------------

    @property
    def held(self) -> Draft:
        """What goes into the next commit, whoever makes it."""
        return self._held

    @property
    def waived(self) -> tuple[str, ...]:
        """The steps whose gates were waived by force, what is not durable yet included."""
        return (*self.run.waived, *(f.subject for f in self.held.facts if isinstance(f, ev.PolicyEvaluated) and f.verdict == ev.WAIVED))

    def has_answer(self, wait: Wait) -> bool:
        """Whether this asking of a wait has its answer on record."""
        record = self.progress.records.get((wait.task, wait.path))  # its own: what a fork has from its source is taken over by the call that it answers alone
        return record is not None and record.kind == "wait" and decisions.read_answer(record).wait_id == wait.wait_id

    def record(self, task: str, path: str, call: Call | None = None) -> StepRecord | None:
        """The record at a place. A replay is answered from its echo, and writes what it is given into its own log.

        ``call``: that which is to be answered. A fork computes anew what it calls with other arguments.
        """
        known = self.progress.records.get((task, path))
        if known is not None or self.echo is None:
            return known
        echoed = self.find_echo(task, path)
        if echoed is None or echoed.kind == "effect":
            return None
        if call is not None and not self.echo.answers((self.progress.checkpoint.step_of(task), task, path), echoed, call):
            return None
        self.hold(Draft(results=[echoed]))
        return echoed

    async def whole(self, record: StepRecord) -> StepRecord:
        """The record with its value, also where that is kept apart. One that cannot be read stops the run where it stands (§1.12)."""
        if record.value is None or len(record.value) != blobs.REFERENCE_BYTES:
            return record
        return await self.asking(whole(self.store, record))

    @property
    def stored(self) -> int:
        """How many bytes are stored of the run since its last whole checkpoint, and that one: no channel is heavier than this."""
        return 0 if self.tip is None else self.tip.since + self.tip.whole

    def stop(self, error: HoldfastError) -> None:
        """The house is in trouble: from here on nothing of this driving is written, and nothing that its nodes make of it is an outcome (X-18)."""
        if self.dead is None:
            self.dead = error

    async def asking(self, answer: Awaitable[T]) -> T:
        """What the store answers; if it cannot, that is no failure of the step that wanted to know."""
        try:
            return await answer
        except StoreError as e:
            self.stop(e)
            raise

    def find_echo(self, task: str, path: str) -> StepRecord | None:
        """What the source has on record at a place, effects included."""
        return None if self.echo is None else self.echo.records.get((self.progress.checkpoint.step_of(task), task, path))

    def end_replay(self) -> None:
        """The first call without a record ends the replaying (§7.6)."""
        if self._run is not None and self.run.status is Status.REPLAYING and not any(isinstance(f, ev.RunResumed) for f in self.held.facts):
            self.hold(Draft(facts=[ev.RunResumed(cause=decisions.REPLAYED)]))

    def hold(self, draft: Draft) -> None:
        """Keeps a draft for the next commit, whoever makes it: recorded clocks and dice, ledger rows, intents."""
        self._look()
        if self._held is _NOTHING:
            self._held = Draft()
        self._held.merge(draft)
        self._note(draft)

    async def save(self, draft: Draft) -> None:
        """Makes a draft durable, together with whatever else waits; returns after the sync.

        A caller that is cancelled meanwhile (a step's timeout) does not cancel the commit.

        Raises:
            LeaseLost, VersionConflict, StoreError: and the journal is dead from then on.
        """
        if self.dead is not None:
            raise make_own(self.dead)
        if not self._lock.locked():
            if not await self._at_once(draft):
                await asyncio.sleep(0)  # calls of one scope that run at once are seen to, and others have their turn, whatever the store
            return
        if self._next is None or self._joined is None:
            self._next = Draft()
            self._joined = asyncio.ensure_future(self._together())
        self._next.merge(draft)
        await _to_its_end(self._joined)

    async def attempt(self, draft: Draft) -> None:
        """Makes an effect's attempt durable, in a commit of its own, before the act.

        Raises:
            EffectInProgress, ClaimTaken: the key is in use by another; nothing was written and the journal lives on (§6.8).
        """
        await self._at_once(draft)

    def close(self) -> None:
        """Nobody goes on with the run here. It lets go of what refers back to it: of the driver, and of the error that it died of, which has gone to its caller."""
        self.safe_points.on_reached = call_nobody
        if self.dead is not None:
            self.dead = LeaseLost("this process no longer executes the run")

    async def command(self, become: Callable[[Run], Draft | None], actor: str) -> None:
        """Makes what a command becomes durable, in a commit of its own that names who asked; None writes nothing.

        It is decided on the run as the last commit left it: one in flight may be what the command answers.
        """
        if self.dead is not None:
            raise make_own(self.dead)
        async with self._lock:
            self._look()
            if self.stepping:
                await self._until_stepped()
            draft = become(self.run)
            if draft is not None:
                await self._write(draft, actor=actor)

    async def _at_once(self, draft: Draft) -> bool:
        """Has a commit made and handed to the store in this turn of the loop; a task, in which it goes on if it has to wait, would begin in a later one.
        Gives whether it had to."""
        writing = self._alone(draft)
        try:
            waiting = writing.send(None)
        except StopIteration:
            return False
        await _to_its_end(asyncio.ensure_future(Rest(writing, waiting)))
        return True

    async def _alone(self, draft: Draft) -> None:
        async with self._lock:
            await self._write(draft)

    async def _together(self) -> None:
        async with self._lock:
            draft, self._next, self._joined = self._next, None, None
            assert draft is not None
            await self._write(draft)

    async def checkpoint(
        self, draft: Draft, delta: Delta, checkpoint: Checkpoint, *, lease: LeaseAction = KEEP, due: int | None = None, actor: str = ev.SYSTEM,
        behind: Behind | None = None, follows: ThreadEnd | None = None
    ) -> None:
        """A commit with a checkpoint. Its hash goes into the last completed step's fact, else into ``checkpoint.saved`` (§13.2)."""
        async with self._lock:
            await self._write(draft, checkpoint, delta, lease, due, actor, behind, follows)

    async def rest(self, draft: Draft, source: Source, *, lease: LeaseAction = RELEASE, due: int | None = None, actor: str = ev.SYSTEM) -> None:
        """Ends this claim in a wait or for good: a checkpoint with the parent's values (§4.8), and the lease goes back.

        A run that never started has no parent: its single checkpoint holds its input (§2.4).
        """
        parent = self.progress.checkpoint
        delta = Delta(parent.step, source) if parent.seq else Delta(0, source, (INPUT_TASK,))
        checkpoint = cps.advance(parent, delta, self.progress.results, seq=0, at=0, hash=b"")
        await self.checkpoint(draft, delta, checkpoint, lease=lease, due=due, actor=actor)

    async def leave(self, draft: Draft, *, lease: LeaseAction = RELEASE, due: int | None = None, actor: str = ev.SYSTEM, at: int | None = None) -> None:
        """A commit that moves no checkpoint and leaves the run without an owner. ``at``: when it was decided, if not now."""
        async with self._lock:
            await self._write(draft, None, None, lease, due, actor, at=at)

    async def _write(
        self, draft: Draft, checkpoint: Checkpoint | None = None, delta: Delta | None = None, lease: LeaseAction = KEEP, due: int | None = None,
        actor: str = ev.SYSTEM, behind: Behind | None = None, follows: ThreadEnd | None = None, at: int | None = None
    ) -> None:
        self._look()
        if self.stepping:
            await self._until_stepped()
        if self.dead is not None:
            raise make_own(self.dead)
        if draft.results:
            self._note(draft)
        held = self._held
        if held:
            self._held, draft = _NOTHING, held.join(draft)
        try:
            await self._durable(partial(self._number, draft, checkpoint, delta, lease, due, actor, behind, follows, at))
        except REFUSED:
            self._held = held.join(self._held)
            raise

    async def _durable(self, make: Callable[[], Commit]) -> None:
        """Has a commit written, which is made once all that was emitted before it is there, and takes over what has become of the run."""
        ring = self._ring
        if ring is not None and ring.writing is not None:
            await asyncio.wait([ring.writing])
        commit = make()
        after = commit.after
        if commit.took and commit.checkpoint is None and after is not None and whole_due(after.since + SIGNAL_EXTRA_BYTES * commit.signals, after.whole):
            commit = await self._standing(commit)
        if ring is not None:
            commit = self._riding(commit, ring)
        try:
            tip = await self.store.commit(commit)
        except REFUSED:
            raise  # refused, and nothing is lost: whoever decided decides again
        except BaseException as e:
            self.dead = e
            raise
        kinds = commit.events.kinds if type(commit.events) is Recorded else {*map(type, map(ev.fact_of, commit.events))}
        if logs.LISTENERS or METERS or logs.LOG.isEnabledFor(logging.INFO) or not _LOUD.isdisjoint(kinds):
            logs.log_commit(commit)  # seldom: nobody listens to what goes well
        if ring is not None and commit.emitted is not None:
            ring.forget(commit.emitted.replaced)
        before, progress = self._run, self._progress
        self._stands(commit.run, tip, progress)
        if commit.puts:
            self.stopped = [*self.stopped, *[i.run_id for i in commit.puts if isinstance(i.command, Cancel)]]
        if not _EFFECTS.isdisjoint(kinds):
            self._account(commit.events)
        if commit.intents:
            self.post()
        if not HEARD.isdisjoint(kinds):
            progress.hear(commit.events)
        if commit.checkpoint is not None:
            stood, progress.checkpoint = progress.checkpoint.step, commit.checkpoint
            if commit.checkpoint.step != stood:
                progress.barrier(first=stood < 0)
        if before is None or commit.run.waits is not before.waits:
            self.expects(commit.run.wake_at if commit.run.waits else None)

    def post(self) -> None:
        """What is to be sent of the run is durable: whoever sends for it may begin (§1.7)."""
        if self.sendings is not None:
            self.posted = True
            self.sendings.post(self.run.run_id)

    async def _standing(self, commit: Commit) -> Commit:
        """The commit of a signal with what is to be saved whole, so that the log need not be walked from further back each time (§5.11).

        It is made from what is on record, not from what this driving has in hand: that is what loading would find.
        """
        if not commit.signals or (loaded := await self.store.load(self.run.run_id)) is None or loaded.tip != self.tip:
            return commit
        if loaded.whole is None and codec.read_carried(loaded.rows):
            return commit  # what it carries from its thread is not at hand here
        progress = Progress(loaded.run.run_id, loaded.whole).walk(loaded.rows)
        for result in commit.results:
            progress.record(result)
        progress.tell(commit.events)
        return msgspec.structs.replace(commit, stands=progress.whole())

    async def catch_up(self) -> None:
        """Reads the signals since the last barrier that a whole checkpoint has left in the log (§5.11)."""
        assert self._progress.older is not None
        news = [e.fact async for e in self._read_events(*self._progress.older) if isinstance(e.fact, ev.SignalReceived)]
        self._progress.catch_up(news)

    async def later(self, name: str) -> tuple[Buffered, int] | None:
        """The oldest signal of a name that nobody has asked for and that the run's record does not hold, and the event that tells of it."""
        kept = next((x for x in self.run.later if x.name == name), None)
        if kept is None:
            return None
        async for event in self._read_events(kept.after + 1, self.run.version):
            fact = event.fact
            if isinstance(fact, ev.SignalReceived) and fact.name == name and (name, fact.key) not in self.taking:
                return Buffered(fact.name, fact.key, fact.payload, fact.actor), event.seq
        return None

    async def _read_events(self, first: int, last: int) -> AsyncIterator[ev.Event]:
        """The events of the run from one number to another, as the log has them."""
        while first <= last and (rows := await self.asking(self.store.rows(self.run.run_id, first - 1, SOME_ROWS))):
            for row in rows:
                for event in open_row(row).events:
                    if first <= event.seq <= last:
                        yield event
            first = rows[-1].seq + 1

    def _riding(self, commit: Commit, ring: Ring) -> Commit:
        """The commit with what steps have emitted until now, and with what its results replace of that."""
        parent = self.progress.checkpoint
        moved = commit.checkpoint is not None and commit.checkpoint.step > max(parent.step, 0)
        emitted = ring.take(ring.end(commit.results, parent.step + 1, over=moved or commit.run.terminal))
        return msgspec.structs.replace(commit, emitted=emitted) if emitted else commit

    def _account(self, events: Iterable[ev.Event]) -> None:
        """Keeps account of the effects in flight: a cancel lets them come to their end."""
        for event in events:
            if isinstance(event.fact, ev.SideEffectAttempted):
                self.acting.add(event.fact.effect_id)
                self.quiet.clear()
            elif isinstance(event.fact, ev.EffectFact):
                self.acting.discard(event.fact.effect_id)
                if not self.acting:
                    self.quiet.set()

    def unsent(self, draft: Draft, lease: LeaseAction, actor: str = ev.SYSTEM) -> Commit:
        """A commit made but not applied: a run's birth that travels in another run's commit, or moves a schedule on."""
        return self._number(draft, None, None, lease, None, actor)

    def _number(
        self, draft: Draft, checkpoint: Checkpoint | None, delta: Delta | None, lease: LeaseAction, due: int | None, actor: str, behind: Behind | None = None,
        follows: ThreadEnd | None = None, at: int | None = None
    ) -> Commit:
        """Numbers and folds the facts. A checkpoint gets what only its commit knows, and is named after the fact that vouches for it."""
        facts, before, parent, plain = draft.facts, self._run, self._progress.checkpoint, draft.only_facts
        seq = 0 if self.tip is None else self.tip.seq
        fence = self.fence & COUNTER
        if before is not None and before.status is Status.REPLAYING:
            decisions.leave_replay(facts)
        if at is None:
            at = self.store.now()
        data: bytes | None = None
        hash, vouching = b"", 0
        if delta is not None:
            data = codec.encode_delta(delta)
            hash, place = cps.vouch(parent, facts, data, delta.source)
            vouching = seq + 1 + place
        events, run = records.record(before, facts, seq, at, actor, fence)
        if checkpoint is not None:
            kept = cps.boundaries(events, advanced=checkpoint.step > max(parent.step, 0))
            unfinished = self.progress.find_unfinished(checkpoint) if checkpoint.held else None
            checkpoint = msgspec.structs.replace(
                checkpoint, seq=vouching, created_at=at, hash=hash, waits=run.waits, boundaries=kept, unfinished=unfinished
            )
        puts = draft.puts
        if (run.parent_run_id is not None and run.terminal) or (before is not None and before.waits and any([w.cascade for w in before.waits])):  # noqa: C419 - quicker
            puts = puts + parents.messages(before, run, facts, parent if checkpoint is None else checkpoint, at)
        commit = Commit(
            run=run, events=events, after=self.tip, fence=self.fence, at=at, actor=actor, checkpoint=checkpoint, delta=data, lease=lease, due=due,
            behind=behind, follows=follows,
        )
        if plain and not puts:
            return commit
        results, effects, apart = tuple(draft.results), tuple(draft.effects), tuple[Blob, ...]()
        if effects or [r for r in results if type(r) is StepRecord and r.kind in blobs.APART]:
            results, effects, apart = blobs.set_apart(results, effects)
        return msgspec.structs.replace(
            commit, results=results, effects=effects, blobs=(*apart, *draft.blobs), took=tuple(draft.took), puts=tuple(puts), creates=tuple(draft.creates),
            claims=tuple(draft.claims), intents=tuple(draft.intents), ledger=tuple(draft.ledger), statements=tuple(draft.statements), max_queued=draft.max_queued,
            due_stands=draft.due_stands,
        )

    def _note(self, draft: Draft) -> None:
        for result in draft.results:
            if isinstance(result, TaskResult):
                self._progress.results[result.task] = result
            elif (place := (result.task, result.path)) in self._progress.records or place in self._progress.outdated:
                self._progress.record(result)
            else:
                self._progress.records[place] = result


async def _to_its_end(writing: asyncio.Task[None]) -> None:
    """Waits for a commit, which a caller that is cancelled leaves under way. How it ended is then nobody's to tell: whoever writes next meets it."""
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        writing.add_done_callback(_ignore_error)
        raise


def _ignore_error(writing: asyncio.Task[None]) -> None:
    """An error of the house is in the journal, or nothing was written; any other is still reported by the loop."""
    if not writing.cancelled() and (error := writing.exception()) is not None and not isinstance(error, HoldfastError):
        writing.get_loop().call_exception_handler({"message": "a commit failed, and no call was waiting for it", "exception": error, "task": writing})
