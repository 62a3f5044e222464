"""Executes one claimed run until it next rests.

Theory of operation. The driver owns the run's journal for as long as the lease lasts. It enters the run (starts, resumes or recovers it), and then repeats:
execute the pending tasks, cross the barrier, commit; until nothing can run, all remaining tasks wait, or something failed. Each way out is one commit
that also releases the lease. After a crash between any two lines, the driver of the next owner enters the run at the same point of its log.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.callers import VIA
from holdfast.core import canon, decisions, ids, reviews, starts, superstep
from holdfast.core import checkpoint as cps
from holdfast.core import commands as cmd
from holdfast.core import compensation as undone
from holdfast.core import events as ev
from holdfast.core.channels import MISSING, ROOM
from holdfast.core.checkpoint import Checkpoint, Delta, Ended, Source, Task, TaskResult
from holdfast.core.commit import InboxItem
from holdfast.core.errors import (
    Conflict,
    ErrorValue,
    HoldfastError,
    InboxUnread,
    LeaseLost,
    StatementFailed,
    StepFailure,
    StepLimit,
    UsageError,
    make_own,
)
from holdfast.core.graph import Program
from holdfast.core.lease import EXPIRED, KEEP, RELEASE, Alive, Take
from holdfast.core.limits import Later
from holdfast.core.outcomes import NO_CHANGE, REJECTED, Terminal
from holdfast.core.run import Run
from holdfast.core.status import AT_REST, LIVE, TERMINAL, Status
from holdfast.core.waits import Wait, WaitKind, resting
from holdfast.engine.base import failures
from holdfast.engine.base.failures import contain, record
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.services import ALONE_SECONDS, SafePoints, Services
from holdfast.engine.calls.attempt import Restart, Suspend
from holdfast.engine.calls.effects import LOOK_SECONDS, surface_open
from holdfast.engine.calls.holds import Crowded, look_again
from holdfast.engine.calls.waits import Halted, Unattended, take_signal
from holdfast.engine.desk import door, lineage
from holdfast.engine.drive import compensation, outgoing
from holdfast.engine.drive.executor import Ahead, Place, StepError, execute
from holdfast.engine.drive.fused import Fused
from holdfast.engine.drive.supersteps import Outcome, Round, failure, find_parked
from holdfast.engine.look.threads import CarriedValues
from holdfast.machine import call_nobody
from holdfast.ports import Claim, Loaded

PATIENCE = 100
_intents, _ledger, _writes = attrgetter("intents"), attrgetter("ledger"), attrgetter("writes")
MOST_DOUBLED = 3  # how often the lease is doubled for a run whose owners were late


class Driver:
    """Executes one run; created for one claim and used once."""

    def __init__(self, services: Services, program: Program, journal: Journal, *, step_limit: int | None = None, forced: bool = False) -> None:
        self._services = services
        self._program = program
        self.journal = journal
        self._limit = step_limit or program.step_limit
        self._forced = forced
        self._via = ""
        self._lock = asyncio.Lock()
        self._parked: dict[str, tuple[Wait, ...]] = {}
        self._task: asyncio.Task[Any] | None = None
        self.scope: asyncio.Task[Any] | None = None
        self._attending: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._end: Callable[[], Draft] | None = None
        self._broken: BaseException | None = None
        self._began: float | None = None
        self._again = self._cut = self._going = self._over = self._repeats = self._late = self._doubled = self._suspect = False
        journal.safe_points = SafePoints(self._at_safe_point)
        journal.expects = functools.partial(services.drivers.expect, journal.progress.checkpoint.run_id)

    @functools.cached_property
    def _news(self) -> asyncio.Event:
        """Set when an answer has been recorded; parallel tasks wait for it."""
        return asyncio.Event()

    # -- news while it is driven --------------------------------------------------------------------

    def nudge(self) -> None:
        """Notes that the run's inbox may have something, or that a deadline has passed (§1.5)."""
        if self._going and (self._attending is None or self._attending.done()):
            self._attending = asyncio.ensure_future(self._attend())
            self._attending.add_done_callback(self._note_attended)
        else:
            self._again = True  # entering the run reads the inbox; what comes later is read after that

    @property
    def stops(self) -> bool:
        """Whether the run must stop at this boundary, or its step was cut off."""
        return self._cut or self._end is not None or self._broken is not None or self.journal.safe_points.asked

    def drain(self) -> None:
        """Makes the run be handed back at its next safe boundary; a step in progress finishes first (§10.13)."""
        self.journal.safe_points.ask()

    def _at_safe_point(self) -> None:
        if self.scope is not None and not self._cut:
            self._cut = self.journal.cut = True
            failures.cancel(self.scope)

    async def _attend(self) -> None:
        """Turns commands and deadlines into facts while steps run: an answer re-enters its task, a cancel ends the current step (§10.12)."""
        while not self._over and self._end is None:
            self._again = False
            async with self._lock:
                if not self._over and self.journal.dead is None and self.journal.tip is not None and self.journal.run.status not in TERMINAL:
                    await self._take(tuple(await self._services.store.inbox(self.journal.run.run_id)))
                    self._services.drivers.expect(self.journal.run.run_id, self.journal.due)  # also a deadline that a changed clock has put off
            if not self._again:
                return

    def _note_attended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broke(error)

    def broke(self, error: BaseException) -> None:
        """Stops the run with the error of a task that watches it beside its steps (X-14)."""
        self._broken = error
        self._interrupt()

    async def _take(self, inbox: tuple[InboxItem, ...]) -> None:
        """Turns commands into facts, one commit each (§1.6). A command that ends the run is kept in ``_end`` for the safe boundary."""
        for item in inbox:
            await self.journal.command(lambda run, item=item: self._become(item, run), getattr(item.command, "actor", ev.SYSTEM))  # type: ignore[misc]
            if self._end is not None:
                self._interrupt()
                return
        await self._time_out()

    def _become(self, item: InboxItem, run: Run) -> Draft | None:
        """Returns the draft of a command; None if the command ends the run and must wait for the boundary."""
        run = decisions.fold_facts(run, self.journal.held.facts, self._services.clock.now())  # a resume that no commit holds yet goes before
        found = decisions.take(run, [(item.key, item.command)], self._services.clock.now())
        facts = compensation.tell_only(self.journal.progress, found.facts) if found.ends else found.facts
        if facts is None:
            self._end = lambda: self._ending(item)
            return None
        draft = Draft(facts=list(facts), took=[item.key])
        if run.status in LIVE:
            draft.results = list(decisions.answer_records(facts))
            if draft.results:
                self._news.set()
            if isinstance(item.command, cmd.Cancel):
                self._end = self._canceling
        return draft

    async def _time_out(self) -> None:
        """Injects the timeouts that are due. A timeout and an answer share one inbox key: the first to be put wins (§5.6)."""
        run = self.journal.run
        now = self._services.clock.now() if run.waits else 0
        for wait in run.waits:
            if wait.deadline is None or wait.deadline > now or self._end is not None or wait not in self.journal.run.waits:
                continue
            command = cmd.FireTimeout(wait.wait_id, wait.deadline)
            for key in (command.key, f"{command.key}!"):  # an item under the first key was taken and did not end the wait, so it would stay open for ever
                item = await self._services.store.put(InboxItem(run_id=run.run_id, key=key, command=command, put_at=now))
                if item.taken_seq is None:
                    await self._take((item,))
                    break

    def _canceling(self) -> Draft:
        return Draft(facts=list(decisions.mark_run_canceled(self.journal.run)))

    def _ending(self, item: InboxItem) -> Draft:
        """Returns the draft of a command that ends the run, decided on the run as it is at the boundary. It may have come too late."""
        now = self._services.clock.now()
        run = decisions.fold_facts(self.journal.run, self.journal.held.facts, now)
        return Draft(facts=list(decisions.take(run, [(item.key, item.command)], now).facts), took=[item.key])

    def _interrupt(self) -> None:
        """Ends the current step once no effect is in flight, or after a grace period by force."""
        if self.scope is not None and self._closing is None:
            self._closing = asyncio.ensure_future(self._close())

    async def _close(self) -> None:
        journal = self.journal
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._services.grace):
                await journal.quiet.wait()
        if self.scope is not None:
            self._cut = journal.cut = True
            failures.cancel(self.scope)
            acts = list(journal.acts.values())
            for act in acts:
                if act.task is not None:
                    failures.cancel(act.task)
            if threads := [act.name for act in acts if act.task is None]:
                waits = f"cancelling: waiting for {', '.join(threads)} in a thread, which nothing can end"
                with contextlib.suppress(HoldfastError):  # the driver's own commit will meet the same error of the store
                    await journal.save(Draft(facts=[ev.NoteAdded(waits)]))

    async def _threads_end(self) -> None:
        """Waits while a thread of the run still carries out an effect, even if its step has timed out: the run must not end before it (§6.5)."""
        mine = f"{self.journal.run.run_id}."
        while any(effect_id.startswith(mine) and turn.startswith("thread") for effect_id, turn in list(self._services.acting)):
            await self._services.store.wait_for_change(LOOK_SECONDS)

    async def _end_or_hand_back(self) -> bool:
        """Commits the end that a command asked for, or hands the run back; returns whether the run rests."""
        if self._end is None:
            return await self._hand_back()
        await self._threads_end()
        end, now = self._end(), self._services.clock.now()
        if end.took and not decisions.fold_facts(self.journal.run, [*self.journal.held.facts, *end.facts], now).terminal:
            self._end = None  # its question was settled while the step came to its boundary; the step was cut off, so the run begins it anew
            return await self._hand_back(end)
        back = None if compensation.rests(self.journal) else await compensation.take_back(self._services, self.journal, self._program, end)
        async with self._lock:
            self._over = True
            await self._rest_for_good(*(back or (self._end(), Source.CANCEL)))
        return True

    async def _rest_for_good(self, draft: Draft, source: Source) -> None:
        """Ends the run, or leaves it to wait for an answer about an undo. Commands that are still in its inbox came too late for an end, and the log says so; a run that
        would wait takes them, and ends as it stands if one of them ends it."""
        journal = self.journal
        for _ in range(PATIENCE):
            late = await self._services.store.inbox(journal.run.run_id)
            now = self._services.clock.now()
            ended = decisions.fold_facts(journal.run, [*journal.held.facts, *draft.facts], now)
            rest = [i for i in late if i.key not in draft.took and i.key not in journal.held.took]
            if rest and not ended.terminal:
                self._end = None
                await self._take(tuple(rest))
                draft, source = (draft, source) if self._end is None else (self._end(), Source.CANCEL)
                continue
            found = decisions.take(ended, [(i.key, i.command) for i in rest], now) if ended.terminal else decisions.NOTHING_TAKEN
            try:
                kept = decisions.keep_answers(journal.run, tuple(draft.facts))  # it had been answered, and ends before the step that asked was entered again
                await journal.rest(draft.join(Draft(facts=list(found.facts), took=list(found.keys), results=[*kept])), source)
                return
            except InboxUnread:
                continue
        raise Conflict(f"other processes keep sending commands to {journal.run.run_id}", hint="resume it")

    async def ends(self, write: Callable[[], Awaitable[None]]) -> bool:
        """Ends the run, unless a command was put into its inbox meanwhile: then nothing is written, and the command is taken (§10.12)."""
        async with self._lock:
            if self._end is not None:
                return False  # a command to end the run has just come
            self._over = True
            try:
                await write()
            except InboxUnread:
                self._over = False
                await self._take(tuple(await self._services.store.inbox(self.journal.run.run_id)))
                return False
        return True

    async def _hand_back(self, late: Draft | None = None) -> bool:
        """Leaves the run to whoever claims it next. ``late``: what became of a command that came too late."""
        async with self._lock:
            self._over = True
            await self.journal.leave((late or Draft()).join(Draft(facts=[ev.RunHandedBack(self._services.owner)])))
            self._services.drivers.left.append(self.journal.run.run_id)
        return True

    async def _put_off(self, later: tuple[Later, ...]) -> bool:
        """Rests until a limit has room: no slot is held meanwhile, and a slot that becomes free makes the run due (§10.11)."""
        async with self._lock:
            if self._end is not None:
                return False
            self._over, soonest = True, min(later, key=lambda each: each.at)
            await self.journal.leave(Draft(facts=[ev.RunHandedBack(self._services.owner, soonest.why)]), due=soonest.at)
        await look_again(self._services, self.journal.run.run_id, [each.name for each in later])
        return True

    # -- entering -----------------------------------------------------------------------------------

    async def drive(self, claim: Claim | None = None, inbox: tuple[Any, ...] = (), *, named: bool = False) -> Run:
        """Executes the run until it next rests, and returns it as it is then. ``named``: a person asked for this very run.

        Raises:
            LeaseLost, StoreError: the run is left as the last commit made it; another process continues it (§1.12).
        """
        via = VIA.get()
        self._via = via if named else ""
        VIA.set("")  # what the run does is not done by whoever asked that it is driven
        try:
            run = await self._drive(claim, inbox, named)
            if self._program.carried and run.terminal and self.journal.tip is not None:
                self._services.threads.keep(run, self.journal.tip, self.journal.fence, self.journal.progress.checkpoint)
            return run
        finally:
            VIA.set(via)
            self._over = True
            self.journal.safe_points.on_reached = call_nobody  # breaks a reference cycle; else only the garbage collector would free the run and its values
            self._services.quarantine.leave(self.journal.progress.checkpoint.run_id)
            if self._doubled:
                self._services.lengthen(self.journal.progress.checkpoint.run_id, 1)
            for task in (self._attending, self._closing):
                if task is not None and not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    async def _drive(self, claim: Claim | None, inbox: tuple[Any, ...], named: bool) -> Run:
        journal = self.journal
        if claim is None and journal.run.terminal:
            return journal.run  # its first commit has ended it
        if journal.progress.older is not None:
            await journal.catch_up()
        if claim is not None:
            self._late = claim.cause == EXPIRED and await self._services.store.owner_alive(claim.previous_owner or "") is Alive.YES
        entry = [] if claim is None else self._entry(claim, named)
        await self._enter(claim)
        if entry:
            journal.hold(Draft(facts=entry))
        if claim is not None and claim.previous_owner is not None:
            journal.supersede()
            journal.hold(await surface_open(self._services, claim.run_id, claim.previous_owner, claim.cause))
            # A process that claims its own run again, after an outage or a late renewal, has not taken it over (§10.6).
            if claim.previous_owner != self._services.owner and await self._stop_here(named):
                return journal.run
        elif claim is not None and self._why_spent() is not None and await self._stop_here(named):
            return journal.run
        if journal.run.cancel_requested_at is not None and journal.run.status in LIVE:
            self._end = self._canceling  # its owner died between the request and the boundary
        elif undone.PLACE not in journal.progress.records or not compensation.is_told(journal):  # what was said about an undo is recorded first
            await self._take(inbox)
        if self._end is not None:
            await self._end_or_hand_back()
            return journal.run
        early = journal.run.begins_at if journal.run.status is Status.PENDING and not named else None
        if early is not None and early > self._services.store.now():
            await journal.leave(Draft(facts=[ev.RunHandedBack(self._services.owner)]), due=early)  # a command was put, but the run's time to begin has not come
            return journal.run
        if journal.run.status in AT_REST - {Status.PENDING} and not await self._reenter():
            return journal.run
        if undone.PLACE in journal.progress.records:
            self._end = Draft  # the recorded end decides how it ends
            await self._end_or_hand_back()
            return journal.run
        if journal.run.source_run_id is not None:
            journal.echo = await lineage.echo(self._services, journal.run, journal.run.source_run_id)
        self._repeats = self._services.recording is not None or (journal.echo is not None and bool(journal.echo.ended))
        if journal.run.current_step_id is None:
            if journal.run.origin and journal.progress.checkpoint.seq:
                await self._begin_there()
            else:
                await self.begin()
        return journal.run if journal.run.status in TERMINAL else await self._rounds()

    async def _enter(self, claim: Claim | None) -> None:
        """Waits until the run may execute beside others; a run that may end the process executes alone (``Quarantine``)."""
        progress = self.journal.progress
        self._suspect = claim is not None and (progress.takeovers > 0 or progress.cuts > 1) and not self._late and self._why_spent() is None
        await self._services.quarantine.enter(progress.checkpoint.run_id, suspect=self._suspect, waits=claim is not None)
        self._began = self._services.clock.monotonic()

    @property
    def fresh(self) -> bool:
        """Whether the driver began to execute the run a moment ago."""
        return self._began is not None and self._services.clock.monotonic() - self._began < ALONE_SECONDS

    def _entry(self, claim: Claim, named: bool) -> list[ev.Fact]:
        """Returns the facts to write with the first commit under a new fence (§1.4)."""
        claimed, run = ev.RunClaimed(self._services.owner, claim.fence & 0xFFFFFFFF), self.journal.run
        if claim.previous_owner is None and run.interrupted_at is None:
            return [claimed]
        stays = (run.recovery == "hold" and not named) or self._why_spent() is not None
        return self.journal.progress.enter(run, claimed, claim.previous_owner, claim.cause, late=self._late, stays=stays, via=self._via)

    async def _stop_here(self, named: bool) -> bool:
        """Whether a run that was taken over must not simply continue (§10.6): it is held for a person, or has used up its takeovers."""
        run = self.journal.run
        if run.status not in LIVE:
            return False
        if run.recovery == "hold" and not named:
            await self.journal.leave(Draft(facts=[ev.RunInterrupted("recovery is on hold until a person resumes it")]))
            return True
        if (spent := self._why_spent()) is not None:
            await self._fail(Draft(), spent, record(spent))
            return True
        # This commit counts a step that kills its owners before their own first commit.
        await self.journal.save(Draft())
        late = self.journal.progress.late + self._late
        self._doubled = late > 0
        if late and self._services.lengthen(run.run_id, 2 ** min(late, MOST_DOUBLED)) and self._services.renew is not None:
            await self._services.renew()
        return False

    def _why_spent(self) -> StepFailure | None:
        progress = self.journal.progress
        return progress.why_spent(self._services.max_takeovers, late=self._late) if progress.takeovers or progress.cuts or progress.late else None

    async def begin(self, born: Draft | None = None, carried_values: CarriedValues | None = None, writes: Mapping[str, Any] | None = None) -> None:
        """Writes the first checkpoint: the input through the reducers. With ``born`` the same commit creates the run. ``carried_values``: what its thread
        carries, if it was read already; ``writes``: its decoded input, if the caller has it.

        A reducer that refuses the input ends the run as failed.
        """
        journal = self.journal
        given = journal.progress.results.get(cps.INPUT_TASK)
        kept = given is None  # it ended before it began; its only checkpoint holds the input (§2.4)
        if given is None:
            given = TaskResult(cps.INPUT_TASK, writes=canon.encode(canon.FrozenDict(journal.progress.checkpoint.values)))
        draft = born or Draft()
        run = draft.facts[0] if draft.facts and isinstance(draft.facts[0], ev.RunSubmitted) else journal.run
        if carried_values is None and self._program.carried:
            carried_values = await self._services.threads.find_carried_values(self._program, run.tenant_id, run.thread_id)
        values, carried = (None, ()) if carried_values is None else (carried_values.values, () if kept else carried_values.carries)
        try:
            delta, checkpoint = starts.first(self._program, journal.progress.checkpoint, given, values, inline=kept, carries=carried, writes=writes)
        except BaseException as raised:  # a reducer that refuses the input
            e = contain(raised, "a reducer")
            if born is not None:  # its first commit also ends it
                draft.facts += [ev.RunStarted(), ev.RunFailed(decisions.stop_reason(e), record(e))]
                await journal.rest(draft, Source.FAILURE)
                return
            await self._fail(Draft(facts=[ev.RunStarted()] if journal.run.status is Status.PENDING else []), e, record(e))
            return
        if born is not None or journal.run.status is Status.PENDING:
            draft.facts.append(ev.RunStarted())
        draft.facts += superstep.list_starts(checkpoint)
        behind = None if carried_values is None else carried_values.behind(delta.carries)
        await journal.checkpoint(draft, delta, checkpoint, lease=KEEP if born is None else Take(self._services.owner, found=journal.tip is not None), behind=behind, follows=None if carried_values is None else carried_values.follows)

    async def _begin_there(self) -> None:
        """Starts a replay or a fork at the checkpoint that it was created with (§7.6)."""
        journal = self.journal
        facts: list[ev.Fact] = [ev.RunStarted()] if journal.run.status is Status.PENDING else []
        if journal.run.origin == door.REPLAY and journal.echo is not None and journal.echo.last > journal.progress.checkpoint.step:
            facts.append(ev.RunReplaying())
        if journal.echo is not None:
            journal.hold(Draft(results=list(journal.echo.results)))
        delta = Delta(journal.progress.checkpoint.step, Source.FORK)
        checkpoint = cps.advance(journal.progress.checkpoint, delta, {}, seq=0, at=0, hash=b"")
        facts += [ev.StepStarted(checkpoint.step_of(t.key), t.key) for t in checkpoint.pending]
        await journal.checkpoint(Draft(facts=facts), delta, checkpoint)

    async def _reenter(self) -> bool:
        """Leaves a wait if an answer has come (§2.7); otherwise hands the run back unchanged."""
        run = self.journal.run
        if not run.decisions and not self._is_woken():
            await self.journal.leave(Draft(facts=[ev.RunHandedBack(self._services.owner)]))
            return False
        records = decisions.answers(run)
        told = {r.task for r in records}
        self._parked = find_parked(self._program, run.waits, self.journal.progress.checkpoint.pending, told) if run.waits else {}
        upgraded = self._program.fingerprint if self._program.fingerprint != run.fingerprint else None
        cause, wait_id = (decisions.cause_of(run.decisions[-1]), run.decisions[-1].wait_id) if run.decisions else ("signal", None)
        resumed = ev.RunResumed(cause=cause, wait_id=wait_id, checkpoint_id=run.checkpoint_head, forced=self._forced, upgraded=upgraded, via=self._via)
        self.journal.hold(Draft(facts=[resumed], results=list(records)))
        return True

    # -- going round --------------------------------------------------------------------------------

    async def _rounds(self) -> Run:
        steps = 0
        journal = self.journal
        try:
            superstep.expect(self._program, journal.progress.checkpoint.pending)  # only at the entry: a barrier plans only nodes that the program has
            if journal.echo is not None or journal.progress.borrows:
                await lineage.expect_standing(self._services, journal)
        except StepFailure as e:
            await self._fail(Draft(), e, record(e))
            return journal.run
        fused = Fused(self._services, journal, self._program, self) if self._program.plain else None
        self._going = True
        self._task = asyncio.current_task()
        if self._again:
            self.nudge()
        while True:
            checkpoint = journal.progress.checkpoint
            if not checkpoint.pending or reviews.AT in journal.progress.records:  # a review was answered, and the answer has not been applied yet
                if await self._finish() or (self._end is not None and await self._end_or_hand_back()):
                    return journal.run
                continue
            enters = self._enters(checkpoint) if checkpoint.held or self._parked else True
            if enters and steps >= self._limit:
                limit = StepLimit(f"{steps} super-steps in one invocation; the limit is {self._limit}", hint="resume with a higher step_limit")
                await self._fail(Draft(), limit, record(limit))
                return journal.run
            if journal.echo is not None and checkpoint.step >= journal.echo.last:
                journal.end_replay()
            if not self._services.alive() and not await self._services.holds():
                raise LeaseLost(f"{self._services.owner} could not renew its lease; it stops at this boundary")
            if self._broken is not None:
                raise self._broken
            if self._end is not None or journal.safe_points.asked:
                await self._end_or_hand_back()
                return journal.run
            ahead = None
            if fused is not None and not self._repeats:
                ahead = await fused.along(self._limit - steps)
                steps += fused.ran
                if fused.over:
                    return journal.run
                if fused.ran and ahead is None:
                    continue
            steps += enters
            if await self._superstep(journal.progress.checkpoint.pending, ahead):
                return journal.run
            if self._suspect:
                self._services.quarantine.clear(journal.run.run_id)

    def _enters(self, checkpoint: Checkpoint) -> bool:
        """Whether any task will run: if all tasks only wait, that is no super-step of this invocation (§4.9)."""
        known, parked = self.journal.progress.results, self._parked
        return any(t.key not in known and (t.key not in parked or any(self.journal.has_answer(w) for w in parked[t.key])) for t in checkpoint.pending)

    async def _superstep(self, pending: tuple[Task, ...], ahead: Ahead | None) -> bool:
        """Executes the pending tasks; a command may end them (§10.12). Returns whether the run rests now."""
        me = self.scope = self._task
        assert me is not None
        try:
            outcome = await (self._single(pending[0], ahead) if len(pending) == 1 and not self._parked else self._parallel(pending))
        except asyncio.CancelledError:
            # This cancel is our own, unless the task was canceled from outside too; then the run stays as its last commit left it.
            if not self._cut or failures.uncancel(me) > 0:
                raise
            if self._broken is not None:
                raise self._broken from None
            return await self._end_or_hand_back()
        finally:
            self.scope = None
        if self._broken is not None:
            raise self._broken
        if self._cut:
            failures.uncancel(me)  # the step ended, or swallowed the cancel, before the cancel took effect
            if outcome.left is not None:
                self.journal.hold(outcome.left)
            return await self._end_or_hand_back()
        try:
            return await self._conclude(outcome)
        finally:
            del outcome  # it holds an error whose traceback may refer to this frame

    async def _single(self, task: Task, ahead: Ahead | None) -> Outcome:
        """Executes a super-step of one task: its result and the barrier are one commit."""
        key = task.key
        known = self.journal.progress.results.get(key)
        if known is not None:
            self.journal.safe_points.clear()
            return Outcome({key: known})
        if ahead is None:
            self.journal.safe_points.begin(key, alone=True)
        while True:
            try:
                begun, ahead = ahead, None
                finished = await execute(self._services, self.journal, self._program, task, place=Place(key), ahead=begun)
            except Suspend as s:
                if any([self.journal.has_answer(w) for w in s.waits]):  # noqa: C419 - a list is faster than a generator here
                    continue
                return Outcome(waits=s.waits)
            except Crowded as c:
                return Outcome(later=c.later)
            except (Halted, Unattended) as h:
                return Outcome(stopped=h)
            except Restart as r:
                return Outcome(restart=(task, r))
            except StepError as e:
                return Outcome(failed=e, left=Draft(facts=[failure(self.journal, e)]))
            return Outcome({key: finished.result}, {key: finished.writes}, {key})

    async def _parallel(self, pending: tuple[Task, ...]) -> Outcome:
        """Executes several tasks at once; each result is durable as soon as its task ends, and that task never runs again (§4.6)."""
        self.journal.safe_points.clear()
        checkpoint, known = self.journal.progress.checkpoint, self.journal.progress.results
        if checkpoint.held and self._find_barrier(known) is not None:
            return Outcome({t.key: known[t.key] for t in pending if t.key in known})  # its barrier is crossed before any task runs
        parked, self._parked = self._parked, {}
        return await Round(self._services, self.journal, self._program, pending, parked, self._find_barrier, self._news).run()

    async def _conclude(self, o: Outcome) -> bool:
        """Applies the outcome of a super-step, in one commit with the results that are not durable yet. Returns whether the run rests now."""
        if o.failed is not None:
            return await self._step_failed(o.left or Draft(), o.failed)
        if o.stopped is not None:
            return await self._stop(o.left or Draft(), o.stopped)
        if o.restart is not None:
            return await self._restart(*o.restart)
        if o.later:
            return await self._put_off(o.later)
        if not o.whole:
            return await self._hand_back()
        checkpoint = self.journal.progress.checkpoint
        if not o.waits and not checkpoint.held and not self._repeats:
            return await self._barrier(o.results, o.inline, o.decoded)
        if o.waits:
            self._parked = {t: tuple([w for w in o.waits if w.task == t]) for t in dict.fromkeys(w.task for w in o.waits)}
        taken = self._find_barrier(o.results)
        if taken is None:
            return await self._rest_in(o.waits)
        if not o.inline <= {t.key for t in taken}:
            done = [o.results[k] for k in o.inline]
            await self.journal.save(Draft(facts=cps.list_ends(checkpoint, done), results=list(done)))
            o.inline = set()
        return await self._barrier(o.results, o.inline, o.decoded, taken)

    def _before(self, step: int) -> Ended | None:
        """Returns how the barrier with this number went in the run that this one repeats, if it was not a plain one (§7.6)."""
        echo, recording = self.journal.echo, self._services.recording
        known = None if echo is None else echo.ended.get(step)
        return known if known is not None or recording is None else recording.find_end(self.journal.run.run_id, step)

    def _find_barrier(self, results: Mapping[str, TaskResult]) -> tuple[Task, ...] | None:
        """Returns the tasks of the super-step that ends with these results, or None if none ends yet. A repeated run keeps the order of the original."""
        checkpoint = self.journal.progress.checkpoint
        before = self._before(checkpoint.step + 1) if self._repeats else None
        if before is not None and not before.reviewed and set(before.tasks) <= {t.key for t in checkpoint.pending}:
            mine = tuple([t for t in checkpoint.pending if t.key in before.tasks])
            return mine if all(t.key in results for t in mine) else None
        return superstep.whole(checkpoint, results)

    # -- barriers and ends --------------------------------------------------------------------------

    async def _barrier(
        self, results: Mapping[str, TaskResult], inline: set[str], decoded: Mapping[str, Mapping[str, Any]], taken: tuple[Task, ...] | None = None
    ) -> bool:
        """Writes the commit that crosses a super-step's barrier; the last one also ends the run. Returns whether the run rests now. ``taken``: the tasks that
        have ended, or None for all pending tasks; the other tasks keep waiting (§5.11)."""
        try:
            return await self._cross(results, inline, decoded, taken)
        except (StatementFailed, StepFailure) as e:  # the application's tables, or the replayed run, refuse: the run stays, and its finished tasks are kept
            return await self._note_uncrossed(results, inline, e)

    async def _note_uncrossed(self, results: Mapping[str, TaskResult], inline: set[str], e: Exception) -> bool:
        done = [results[k] for k in inline]
        return await self._fail(Draft(facts=cps.list_ends(self.journal.progress.checkpoint, done), results=list(done)), e, record(e))

    async def _cross(
        self, results: Mapping[str, TaskResult], inline: set[str], decoded: Mapping[str, Mapping[str, Any]], taken: tuple[Task, ...] | None = None
    ) -> bool:
        journal, program = self.journal, self._program
        parent = journal.progress.checkpoint
        try:
            delta, moved = superstep.barrier(program, parent, results, inline=inline, decoded=decoded, signals=self._signals(), taken=taken)
            if journal.tip is not None and (len(inline) > 1 or journal.stored > ROOM):
                self._weigh(parent, moved, results, inline)
        except BaseException as raised:  # only the user's reducers can raise here, and their error is a failure of the run
            return await self._note_uncrossed(results, inline, contain(raised, "a reducer"))
        draft = Draft(facts=cps.list_ends(parent, delta.done))
        if taken is not None:
            results = {t.key: results[t.key] for t in taken}
        if any(map(_intents, results.values())) or any(map(_ledger, results.values())):
            outgoing.add(self._services.store, journal, draft, [results[t.key] for t in (parent.pending if taken is None else taken)], self._services.clock.now())
        delivery = None if moved.held or (moved.pending and not moved.pending[0].skip) else superstep.delivery(program, results.values())
        if delivery == NO_CHANGE and all(t.skip for t in moved.pending):
            delta, moved = superstep.settle(delta, moved)
        if moved.pending or not self._ends_well(delivery):
            draft.facts += superstep.list_starts(moved)
            await journal.checkpoint(draft, delta, moved)
            return False
        if journal.echo is not None or journal.progress.borrows:
            await lineage.expect_standing(self._services, journal)
        result = results[parent.pending[-1].key].result if program.flow else None

        async def complete() -> None:
            draft.facts += decisions.mark_run_done(journal.run, result)
            await journal.checkpoint(draft, delta, moved, lease=RELEASE)

        if await self.ends(complete):
            return True
        if self._end is None:
            return await self._barrier(results, inline, decoded, taken)
        journal.hold(Draft(facts=[f for f in draft.facts if isinstance(f, ev.StepEnded)], results=[results[k] for k in inline]))
        return await self._end_or_hand_back()

    def _ends_well(self, delivery: str | None) -> bool:
        """Whether a run with nothing left to do has completed without a further question: it has no kind of work, handoff, review or delivery."""
        journal, program = self.journal, self._program
        if delivery is None and program.kind is None and journal.run.active_handoff is None and reviews.AT not in journal.progress.records:
            return True
        return compensation.outcome(self._services, program, journal, delivery) is Terminal.DONE

    def _weigh(self, parent: Checkpoint, moved: Checkpoint, results: Mapping[str, TaskResult], inline: set[str]) -> None:
        """Checks the size of the channels after a barrier (§14.3), if so much is stored that a channel may have exceeded its bound.

        Raises:
            TooLarge: names the channel.
        """
        if self.journal.stored + sum(map(len, filter(None, map(_writes, map(results.__getitem__, inline))))) > ROOM:
            self.journal.weights.hold(self._program.channels, parent.values, moved.writes.values(), moved.values)

    def _signals(self) -> tuple[TaskResult, ...]:
        """Returns the signals that came since the last barrier, as writes of this one (§5.11)."""
        news = self.journal.progress.news
        own = superstep.write_signals(self._program, [(f.name, f.payload) for f in news]) if news else ()
        before = self._before(self.journal.progress.checkpoint.step + 1) if self._repeats else None
        if before is None or not before.signals:
            return own
        theirs = enumerate(before.signals, len(own) + 1)
        return (*own, *(msgspec.structs.replace(s, task=f"{cps.SIGNAL}{n}") for n, s in theirs))

    def _is_woken(self) -> bool:
        """Whether a signal has come that lets a node run although all pending tasks wait (§5.11), or did so in the run that is repeated."""
        before = self._before(self.journal.progress.checkpoint.step + 1) if self._repeats else None
        if before is not None:
            return not before.tasks and not before.reviewed
        if (echo := self.journal.echo) is not None and max(echo.ended, default=0) > self.journal.progress.checkpoint.step:
            return False  # the signal belongs to one of the barriers that are still to be repeated
        signals = self._signals()
        try:
            return bool(signals) and superstep.wakes(self._program, self.journal.progress.checkpoint, signals, self.journal.progress.results)
        except BaseException as e:
            contain(e, "a reducer")
            return True  # the barrier will raise the same error and record it

    async def _finish(self, delivery: str | None = None) -> bool:
        """Ends a run that has nothing left to do, as the rule of §5.16 says. Returns False if the run continues with another round or with what a signal starts."""
        journal, program = self.journal, self._program
        if not journal.progress.checkpoint.pending and reviews.AT not in journal.progress.records and self._is_woken():
            journal.hold(Draft(facts=list(decisions.close_waits(journal.run, "a signal came, and there is more to review"))))
            return await self._barrier({}, set(), {}, ())
        async with self._lock:
            feedback = compensation.find_sent_back(journal)
            outcome = None if feedback is not None else compensation.outcome(self._services, program, journal, delivery)
            if outcome is not None and self._end is not None:
                return False
            draft, crossed, failed = Draft(), None, None
            try:
                if outcome in (None, Terminal.DONE):
                    crossed = compensation.cross_reviewed(self._services, journal, program, self._signals(), draft, feedback)
            except BaseException as raised:
                failed = contain(raised, "a reducer")
            try:
                if outcome is None and crossed is not None:
                    draft.facts += [*decisions.close_waits(journal.run, "the work is done again", crossed[1].waiting), *superstep.list_starts(crossed[1])]
                    self._parked = {}
                    await journal.checkpoint(draft, *crossed)
                    return False
                if outcome is not None and failed is None:
                    self._over = True
                    draft.facts += compensation.facts(self._services, program, journal, outcome, delivery)
                    await (journal.rest(draft, compensation.source(journal.run, outcome)) if crossed is None else journal.checkpoint(draft, *crossed, lease=RELEASE))
                    return True
            except InboxUnread:
                self._over = False
                await self._take(tuple(await self._services.store.inbox(journal.run.run_id)))
            except StatementFailed as e:
                self._over, failed = False, e
        return await (self._finish(delivery) if failed is None else self._fail(Draft(), failed, record(failed)))

    async def _step_failed(self, draft: Draft, e: StepError) -> bool:
        """Ends the run as failed, unless the failed step is a delivery that was rejected: then the rule of §5.16 decides."""
        if e.outcome == REJECTED and self._program.nodes[ids.node_of(e.task)].delivers:
            self.journal.hold(draft)
            return await self._finish(REJECTED)
        return await self._fail(draft, e.cause, e.error)

    async def _rest_in(self, waits: tuple[Wait, ...]) -> bool:
        """Parks the run in its open waits (§5.2), unless a wait was answered or the run canceled meanwhile, or a signal lets a node run (§5.11)."""
        journal = self.journal
        async with self._lock:
            if self._end is not None or any([journal.has_answer(w) for w in waits]):  # noqa: C419
                return False
            if any([await take_signal(journal, w, self._services.clock.now()) for w in waits if w.kind is WaitKind.SIGNAL]):
                return False  # a signal came after its step had asked for it and before this point
            known = {w.wait_id for w in journal.run.waits}
            new = [w for w in waits if w.wait_id not in known]
            if not self._is_woken():
                open_now = (*journal.run.waits, *new)
                draft = Draft(facts=[ev.WaitRequested(w) for w in new])
                draft.facts.append(ev.RunWaitingForHuman() if resting(open_now) is Status.WAITING_FOR_HUMAN else ev.RunWaitingForSignal())
                self._over = True
                await journal.rest(draft, Source.WAIT)
                return True
            if new:
                await journal.save(Draft(facts=[ev.WaitRequested(w) for w in new]))
        return await self._barrier(journal.progress.results, set(), {}, ())

    async def _stop(self, draft: Draft, why: Halted | Unattended) -> bool:
        """Ends the run because a policy refused (§8.1), because of a recorded answer (§5.5), or because nobody is there to be asked (§5.17)."""

        async def stop() -> None:
            run = self.journal.run
            facts = decisions.mark_run_halted(run, why.stop_reason) if isinstance(why, Halted) else decisions.mark_run_unattended(run, (why.wait,))
            await self.journal.rest(draft.join(Draft(facts=list(facts))), Source.CANCEL)

        while not await self.ends(stop):
            if self._end is not None:
                self.journal.hold(draft)
                return await self._end_or_hand_back()
        return True

    async def _fail(self, draft: Draft, cause: BaseException, error: ErrorValue) -> bool:
        """Ends the run as failed; finished results and open questions are kept (§4.8, §5.14)."""
        journal = self.journal
        if journal.dead is not None:
            raise make_own(journal.dead)
        failed = Draft(facts=list(decisions.mark_run_failed(journal.run, decisions.stop_reason(cause), error)))
        back = await compensation.take_back(self._services, journal, self._program, draft.join(failed))
        if back is not None:
            async with self._lock:
                self._over = True
                await self._rest_for_good(*back)
            return True
        while not await self.ends(lambda: journal.rest(draft.join(failed), Source.FAILURE)):
            if self._end is not None:
                journal.hold(draft)
                return await self._end_or_hand_back()
        return True

    async def _restart(self, task: Task, restart: Restart) -> bool:
        """Restarts a flow (§4.12): a barrier that replaces its inputs and drops its records, in the same run and lineage."""
        journal, program = self.journal, self._program
        try:
            if not program.flow:
                raise StepFailure("ctx.restart is for flows", code="restart_outside_flow", hint="in a graph return Goto(node, writes)")
            given = superstep.check_input(program, restart.inputs)
            writes = {c.name: c.initial for c in program.channels.values() if c.initial is not MISSING} | dict(given)
        except (StepFailure, UsageError) as e:
            failed = StepError(task.key, e, record(e, where=task.key), 1)
            return await self._fail(Draft(facts=[failure(journal, failed)]), e, failed.error)
        journal.hold(Draft(facts=list(decisions.close_waits(journal.run, "the flow began afresh"))))
        result = TaskResult(task.key, writes=canon.encode(canon.FrozenDict(writes)), goto=(task.node,))
        return await self._barrier({task.key: result}, {task.key}, {})


def load_driver(services: Services, loaded: Loaded, claim: Claim, *, upgrade: bool = False, step_limit: int | None = None, forced: bool = False) -> Driver:
    """Returns the driver of a claimed run.

    Raises:
        SkillUnknown, FingerprintMismatch: this process cannot continue the run (§3.2).
        StoreCorrupt: its log is inconsistent.
    """
    program = services.skills.for_run(loaded.run, upgrade=upgrade)
    services.here(loaded.run)
    return Driver(services, program, Journal.load(services.store, loaded, claim.fence), step_limit=step_limit, forced=forced)


__all__ = ["Driver", "load_driver"]
