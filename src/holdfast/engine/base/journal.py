"""The only writer of a claimed run: every decision about the run becomes durable here, one commit at a time (§1.6).

Tasks of a super-step finish at any time; drafts that are handed in while a commit is in flight go into the next commit. A failed commit kills
the journal: every later write raises the same error, so that nothing can be reported that is not durable (§1.12).

While plain steps are executed on the fused line (``core/fused``), the ``Line`` holds the current state of the run, and the journal holds the state
from when the line began. Reading ``run``, ``tip`` or ``progress`` ends the line: the reader gets the state that the general way would have left.
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
from holdfast.core import blobs, budgets, codec, decisions
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
from holdfast.core.waits import Wait, WaitKind
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
    """What a caller wants to make durable with the next commit. Drafts can be merged."""

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
        """Returns both drafts merged into a new one; changes neither."""
        both = Draft()
        both.merge(self)
        both.merge(later)
        return both

    def __bool__(self) -> bool:
        return bool(self.facts or self.results or self.ledger or self.intents)

    @property
    def only_facts(self) -> bool:
        """Whether the draft contains facts and nothing else."""
        return not any(msgspec.structs.astuple(self)[1:])


_NOTHING = Draft()
"""The value of ``_held`` while nothing is held. It is shared and must not be changed."""


class Act(msgspec.Struct, frozen=True):
    """An effect that is being executed. ``task``: the task that a cancel can end; None if the effect runs in a thread."""

    name: str
    task: asyncio.Task[Any] | None


class Journal:
    """A run under a lease, its progress, and the methods that make further decisions durable."""

    def __init__(self, store: Store, run: Run | None, tip: Tip | None, fence: int, progress: Progress) -> None:
        self.store = store
        self.fence = fence
        self._stands(run, tip, progress)
        self._line: Line | None = None
        self.dead: BaseException | None = None
        self.cut = False
        self.stopped: Sequence[str] = ()
        self.sendings: Sendings | None = None  # sends the run's intents while it is driven; None if nothing in this process does
        self.posted = False
        self.expects: Callable[[int | None], None] = call_nobody  # called at each change of the open waits, with their next deadline
        self._held = _NOTHING
        self.echo: Echo | None = None
        self._ring: Ring | None = None
        self._lock = asyncio.Lock()
        self.stepping = False  # whether the store is writing a step of the line
        self._stepped: asyncio.Future[None] | None = None
        self._next: Draft | None = None
        self._joined: asyncio.Task[None] | None = None

    @classmethod
    def load(cls, store: Store, loaded: Loaded, fence: int) -> Journal:
        """Makes the journal of a claimed run. Its progress is read back from the log.

        Raises:
            StoreCorrupt: the log is inconsistent.
        """
        progress = Progress(loaded.run.run_id, loaded.whole).walk(loaded.rows)
        journal = cls(store, loaded.run, loaded.tip, fence, progress)
        if loaded.emitted:
            journal._ring = Ring(loaded.run.run_id, fence, loaded.emitted)
        return journal

    @property
    def ring(self) -> Ring:
        """The ring buffer for what steps emit under this claim. Plain nodes ask for it from their threads."""
        with _making:
            if self._ring is None:
                self._ring = Ring(self.run.run_id, self.fence)
            return self._ring

    def supersede(self) -> None:
        """Marks what was emitted under earlier claims as finished, because its attempts begin again."""
        if self._ring is not None:
            self._ring.supersede()

    # The state of the run after the last commit. While a line is in use these attributes are absent: reading one of them ends the line.

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
        """The safe points of the driver, which assigns them here. This default is for a run without a driver, whose safe points nobody asks for."""
        return SafePoints(call_nobody)

    # The attributes that few runs use are made on first use: many runs are driven at once, and the garbage collector visits every object of each run.

    @cached_property
    def acting(self) -> set[str]:
        """The ids of the effects in flight."""
        return set()

    @cached_property
    def acts(self) -> dict[str, Act]:
        return {}

    @cached_property
    def taking(self) -> set[tuple[str, str]]:
        """The signals, by name and key, that a wait has taken under this claim."""
        return set()

    @cached_property
    def quiet(self) -> asyncio.Event:
        """Set while no effect is in flight."""
        found = asyncio.Event()
        found.set()
        return found

    @cached_property
    def weights(self) -> Weights:
        """The sizes of the channels. Most runs are so small that nobody asks for them."""
        return Weights()

    def _stands(self, run: Run | None, tip: Tip | None, progress: Progress) -> None:
        self._run, self._tip, self._progress = run, tip, progress
        self.tip, self.progress = tip, progress
        if run is not None:
            self.run = run

    @property
    def due(self) -> int | None:
        """The earliest deadline of the open waits. None on the fused line, where a run waits for nothing."""
        return None if self._line is not None or self._run is None or not self._run.waits else self._run.wake_at

    # -- the fused line -----------------------------------------------------------------------------

    def line(self, program: Program) -> Line | None:
        """Begins a line of plain steps at the current state of the run. Returns None if something about the run is not plain."""
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
        """Whether nobody has read the state since the line began, and no commit has failed."""
        return self._line is line and self.dead is None

    async def step(self, write: Callable[[Step], Awaitable[Tip]], line: Line, step: Step) -> None:
        """Makes a step of the line durable. Returns after the sync.

        Raises:
            LeaseLost, VersionConflict, StoreError: the journal is dead from then on.
        """
        self.stepping = True
        try:
            tip = await write(step)
        except BaseException as e:
            self.end_step(line, None, e)
            raise
        self.end_step(line, tip)

    def end_step(self, line: Line, tip: Tip | None, error: BaseException | None = None) -> bool:
        """Takes the result of the last step: its tip if it is durable; else ``error``, and the journal is dead. Returns whether the line continues."""
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
        """Waits until the step that the store is writing has succeeded or failed; its line has ended. Only the task that holds the lock calls this."""
        self._stepped = stepped = asyncio.get_running_loop().create_future()
        try:
            await stepped
        finally:
            self._stepped = None

    async def end(self, line: Line, commit: Commit) -> None:
        """Makes the end of a run on the line durable. The line is over, whether this succeeds or not.

        Raises:
            InboxUnread: a command is in the run's inbox; nothing was written, and the journal stays usable.
            LeaseLost, VersionConflict, StoreError: the journal is dead from then on.
        """
        async with self._lock:
            try:
                await self._durable(lambda: commit)  # a reader sees the run meanwhile as the last step left it
            finally:
                if self._run is commit.run:
                    self._line = None
                self._look()

    def _look(self) -> None:
        """Ends the line, if there is one, and takes the state of the run over from it."""
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
        """The draft that goes into the next commit, whichever caller makes that commit."""
        return self._held

    @property
    def waived(self) -> tuple[str, ...]:
        """The steps whose gates were waived by force, including those not durable yet."""
        return (*self.run.waived, *(f.subject for f in self.held.facts if isinstance(f, ev.PolicyEvaluated) and f.verdict == ev.WAIVED))

    def has_answer(self, wait: Wait) -> bool:
        """Whether the answer to this wait, identified by ``wait_id``, is on record, or it needs none any more."""
        record = self.progress.records.get((wait.task, wait.path))  # own records only: a fork takes a record of its source over only in the call that it answers
        return (wait.kind is WaitKind.BUDGET and budgets.is_extended(self.run, wait)) or (record is not None and record.kind == "wait" and decisions.read_answer(record).wait_id == wait.wait_id)

    def record(self, task: str, path: str, call: Call | None = None) -> StepRecord | None:
        """Returns the record at a place. A replay gets it from its echo and writes it into its own log.

        ``call``: the call to be answered. A fork does not use the record if the call has other arguments.
        """
        known = self.progress.records.get((task, path))
        if known is not None or self.echo is None:
            return known
        echoed = self.find_echo(task, path)
        if echoed is None or echoed.kind == "effect" or self._asks_itself(task, path):
            return None
        if call is not None and not self.echo.answers((self.progress.checkpoint.step_of(task), task, path), echoed, call):
            return None
        self.hold(Draft(results=[echoed]))
        return echoed

    def _asks_itself(self, task: str, path: str) -> bool:
        """Whether this run has asked or waited there itself, because its source had not come that far: what the source was told since is no answer to it."""
        return any(by == task and (at == path or at.startswith(f"{path}/")) for by, at in self.progress.questions)

    async def whole(self, record: StepRecord) -> StepRecord:
        """Returns the record with its value, which is read if it is stored separately. If it cannot be read, the run stops where it is (§1.12)."""
        if record.value is None or len(record.value) != blobs.REFERENCE_BYTES:
            return record
        return await self.asking(whole(self.store, record))

    @property
    def stored(self) -> int:
        """The bytes stored since the run's last whole checkpoint, plus that checkpoint. No channel is larger than this."""
        return 0 if self.tip is None else self.tip.since + self.tip.whole

    def stop(self, error: HoldfastError) -> None:
        """Marks the journal as dead because of an error that is no node's: nothing more is written, and no result or error of a node counts from now on (X-18)."""
        if self.dead is None:
            self.dead = error

    async def asking(self, answer: Awaitable[T]) -> T:
        """Returns the store's answer. If the store fails, the journal is dead, so that the step that asked does not count as failed."""
        try:
            return await answer
        except StoreError as e:
            self.stop(e)
            raise

    def find_echo(self, task: str, path: str) -> StepRecord | None:
        """Returns the source's record at a place, effects included."""
        return None if self.echo is None else self.echo.records.get((self.progress.checkpoint.step_of(task), task, path))

    def end_replay(self) -> None:
        """Ends replaying, at the first call without a record (§7.6)."""
        if self._run is not None and self.run.status is Status.REPLAYING and not any(isinstance(f, ev.RunResumed) for f in self.held.facts):
            self.hold(Draft(facts=[ev.RunResumed(cause=decisions.REPLAYED)]))

    def hold(self, draft: Draft) -> None:
        """Keeps a draft for the next commit, whichever caller makes it: recorded clock readings and random numbers, ledger rows, intents."""
        self._look()
        if self._held is _NOTHING:
            self._held = Draft()
        self._held.merge(draft)
        self._note(draft)

    async def save(self, draft: Draft) -> None:
        """Makes a draft durable, together with any other drafts that wait. Returns after the sync.

        If the caller is cancelled meanwhile (a step's timeout), the commit is not cancelled.

        Raises:
            LeaseLost, VersionConflict, StoreError: the journal is dead from then on.
        """
        if self.dead is not None:
            raise make_own(self.dead)
        if not self._lock.locked():
            if not await self._at_once(draft):
                await asyncio.sleep(0)  # gives concurrent calls of the scope and other tasks a turn, whichever store is used
            return
        if self._next is None or self._joined is None:
            self._next = Draft()
            self._joined = asyncio.ensure_future(self._together())
        self._next.merge(draft)
        await _to_its_end(self._joined)

    async def attempt(self, draft: Draft) -> None:
        """Makes an effect's attempt durable before the effect is executed, in a commit of its own.

        Raises:
            EffectInProgress, ClaimTaken: another call uses the key; nothing was written, and the journal stays usable (§6.8).
        """
        await self._at_once(draft)

    def close(self) -> None:
        """Ends this process's work on the run. Drops the references to the driver and to the error that killed the journal, which its caller has received."""
        self.safe_points.on_reached = call_nobody
        if self.dead is not None:
            self.dead = LeaseLost("this process no longer executes the run")

    async def command(self, become: Callable[[Run], Draft | None], actor: str) -> None:
        """Makes what a command becomes durable, in a commit of its own that names the actor; writes nothing if ``become`` returns None.

        ``become`` gets the run after the last commit, because a commit in flight may contain the very thing that the command answers.
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
        """Makes a commit and hands it to the store in this turn of the event loop; a task would begin in a later turn. If the commit has to wait, it continues
        in a task. Returns whether it had to wait."""
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
        """Makes a commit with a checkpoint. The checkpoint's hash goes into the fact of the last completed step, else into ``checkpoint.saved`` (§13.2)."""
        async with self._lock:
            await self._write(draft, checkpoint, delta, lease, due, actor, behind, follows)

    async def rest(self, draft: Draft, source: Source, *, lease: LeaseAction = RELEASE, due: int | None = None, actor: str = ev.SYSTEM) -> None:
        """Ends this claim because the run waits or has ended: saves a checkpoint with the parent's values (§4.8) and releases the lease.

        A run that never started has no parent: its only checkpoint holds its input (§2.4).
        """
        parent = self.progress.checkpoint
        delta = Delta(parent.step, source) if parent.seq else Delta(0, source, (INPUT_TASK,))
        checkpoint = cps.advance(parent, delta, self.progress.results, seq=0, at=0, hash=b"")
        await self.checkpoint(draft, delta, checkpoint, lease=lease, due=due, actor=actor)

    async def leave(self, draft: Draft, *, lease: LeaseAction = RELEASE, due: int | None = None, actor: str = ev.SYSTEM, at: int | None = None) -> None:
        """Makes a commit without a checkpoint that leaves the run without an owner. ``at``: the time of the decision, if not now."""
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
        """Makes a commit after any write of emitted chunks in flight has ended, has it written, and takes over the new state of the run."""
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
            raise  # the store refused it, and nothing is lost: the caller decides again
        except BaseException as e:
            self.dead = e
            raise
        kinds = commit.events.kinds if type(commit.events) is Recorded else {*map(type, map(ev.fact_of, commit.events))}
        if logs.LISTENERS or METERS or logs.LOG.isEnabledFor(logging.INFO) or not _LOUD.isdisjoint(kinds):
            logs.log_commit(commit)  # rarely true: usually nobody listens to commits that succeed
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
        """Tells the sender that intents of the run are durable and can be sent (§1.7)."""
        if self.sendings is not None:
            self.posted = True
            self.sendings.post(self.run.run_id)

    async def _standing(self, commit: Commit) -> Commit:
        """Adds a whole checkpoint to the commit of a signal, so that later loads need not walk the log from further back each time (§5.11).

        The checkpoint is made from what is on record, not from this journal's state in memory, because that is what a load would find.
        """
        if not commit.signals or (loaded := await self.store.load(self.run.run_id)) is None or loaded.tip != self.tip:
            return commit
        if loaded.whole is None and codec.read_carried(loaded.rows):
            return commit  # the values that it carries from its thread are not available here
        progress = Progress(loaded.run.run_id, loaded.whole).walk(loaded.rows)
        for result in commit.results:
            progress.record(result)
        progress.tell(commit.events)
        return msgspec.structs.replace(commit, stands=progress.whole())

    async def catch_up(self) -> None:
        """Reads the signals since the last barrier that are only in the log, because the whole checkpoint does not contain them (§5.11)."""
        assert self._progress.older is not None
        news = [e.fact async for e in self._read_events(*self._progress.older) if isinstance(e.fact, ev.SignalReceived)]
        self._progress.catch_up(news)

    async def later(self, name: str) -> tuple[Buffered, int] | None:
        """Returns the oldest signal of a name that no wait has taken and that is only in the log, not in the run's row; and the number of its event."""
        kept = next((x for x in self.run.later if x.name == name), None)
        if kept is None:
            return None
        async for event in self._read_events(kept.after + 1, self.run.version):
            fact = event.fact
            if isinstance(fact, ev.SignalReceived) and fact.name == name and (name, fact.key) not in self.taking:
                return Buffered(fact.name, fact.key, fact.payload, fact.actor), event.seq
        return None

    async def _read_events(self, first: int, last: int) -> AsyncIterator[ev.Event]:
        """Yields the run's events from number ``first`` to number ``last``, as they are in the log."""
        while first <= last and (rows := await self.asking(self.store.rows(self.run.run_id, first - 1, SOME_ROWS))):
            for row in rows:
                for event in open_row(row).events:
                    if first <= event.seq <= last:
                        yield event
            first = rows[-1].seq + 1

    def _riding(self, commit: Commit, ring: Ring) -> Commit:
        """Adds to the commit the chunks that steps have emitted so far, and which earlier chunks its results replace."""
        parent = self.progress.checkpoint
        moved = commit.checkpoint is not None and commit.checkpoint.step > max(parent.step, 0)
        emitted = ring.take(ring.end(commit.results, parent.step + 1, over=moved or commit.run.terminal))
        return msgspec.structs.replace(commit, emitted=emitted) if emitted else commit

    def _account(self, events: Iterable[ev.Event]) -> None:
        """Tracks which effects are in flight, because a cancel lets them finish."""
        for event in events:
            if isinstance(event.fact, ev.SideEffectAttempted):
                self.acting.add(event.fact.effect_id)
                self.quiet.clear()
            elif isinstance(event.fact, ev.EffectFact):
                self.acting.discard(event.fact.effect_id)
                if not self.acting:
                    self.quiet.set()

    def unsent(self, draft: Draft, lease: LeaseAction, actor: str = ev.SYSTEM) -> Commit:
        """Makes a commit without applying it: the birth of a run, which is part of another run's commit or advances a schedule."""
        return self._number(draft, None, None, lease, None, actor)

    def _number(
        self, draft: Draft, checkpoint: Checkpoint | None, delta: Delta | None, lease: LeaseAction, due: int | None, actor: str, behind: Behind | None = None,
        follows: ThreadEnd | None = None, at: int | None = None
    ) -> Commit:
        """Numbers the facts and applies them to the run. The checkpoint gets its remaining fields, and the number of the event that contains its hash."""
        facts, before, parent, plain = [*draft.facts], self._run, self._progress.checkpoint, draft.only_facts  # a copy: whoever is refused still has the draft
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
    """Waits for a commit. If the caller is cancelled, the commit continues; if it fails then, the next write of the journal raises the error."""
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        writing.add_done_callback(_ignore_error)
        raise


def _ignore_error(writing: asyncio.Task[None]) -> None:
    """Ignores a HoldfastError, because the journal holds it or nothing was written. Reports any other error through the event loop."""
    if not writing.cancelled() and (error := writing.exception()) is not None and not isinstance(error, HoldfastError):
        writing.get_loop().call_exception_handler({"message": "a commit failed, and no call was waiting for it", "exception": error, "task": writing})
