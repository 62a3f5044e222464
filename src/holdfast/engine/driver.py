"""One claimed run, driven to its next rest.

Theory of operation. The driver owns the run's journal for as long as the lease lasts. It enters (starts, resumes
or recovers the run), then goes round: execute the pending tasks, barrier, commit; until nothing is runnable, all that is
left waits, or something failed. Each way out is one commit that also gives the lease back. A crash between any two
lines leaves a log from which the next claimer's driver enters at the same place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from holdfast.core import canon, decisions, ids, superstep
from holdfast.core import checkpoint as cps
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.channels import MISSING
from holdfast.core.checkpoint import Delta, Source, Task, TaskResult
from holdfast.core.commit import Intent, LedgerRow
from holdfast.core.effects import ReplayPolicy
from holdfast.core.errors import ErrorValue, LeaseLost, Rejected, StepFailure, StepLimit, UsageError
from holdfast.core.graph import Program
from holdfast.core.lease import KEEP, RELEASE, Take
from holdfast.core.run import Run
from holdfast.core.status import AT_REST, LIVE, Status
from holdfast.core.waits import Wait, resting
from holdfast.engine import lineage
from holdfast.engine.context import Restart, Suspend
from holdfast.engine.effects import surfaced
from holdfast.engine.executor import Finished, StepError, execute
from holdfast.engine.journal import Draft, Journal
from holdfast.engine.services import Services
from holdfast.engine.threads import carried
from holdfast.ports import Claim, Loaded


class Driver:
    """Drives one run; made for one claim and thrown away after it."""

    def __init__(self, services: Services, program: Program, journal: Journal, *, step_limit: int | None = None) -> None:
        self._services = services
        self._program = program
        self._journal = journal
        self._limit = step_limit or program.step_limit
        self._wake = asyncio.Event()

    @property
    def journal(self) -> Journal:
        return self._journal

    def nudge(self) -> None:
        """A hint that the run's inbox may have something (§1.5)."""
        self._wake.set()

    # -- entering -----------------------------------------------------------------------------------

    async def drive(self, claim: Claim | None = None, inbox: tuple[Any, ...] = (), *, named: bool = False) -> Run:
        """Drives to the next rest and returns the run as it rests then. ``named``: a person asked for this very run.

        Raises:
            LeaseLost, StoreError: the run is left as the last commit made it; somebody else goes on (§1.12).
        """
        if claim is not None:
            self._journal.hold(Draft(facts=self._entry(claim, named)))
            if claim.previous_owner is not None:
                self._journal.hold(await surfaced(self._services, claim.run_id, claim.previous_owner, claim.cause))
                if await self._stop_here(named):
                    return self._journal.run
        if await self._drain(inbox):
            return self._journal.run
        status = self._journal.run.status
        if status in AT_REST - {Status.PENDING} and not await self._reenter():
            return self._journal.run
        self._journal.echo = await lineage.echo(self._services.store, self._journal.run)
        if self._journal.run.current_step_id is None:
            if self._journal.checkpoint.seq:
                await self._begin_there()
            else:
                await self.begin()
        return await self._rounds()

    def _entry(self, claim: Claim, named: bool) -> list[ev.Fact]:
        """The facts that ride in the first commit under a new fence (§1.4)."""
        facts: list[ev.Fact] = [ev.RunClaimed(self._services.owner, claim.fence & 0xFFFFFFFF)]
        run = self._journal.run
        if claim.previous_owner is not None and run.status in LIVE:
            expired = ev.AttemptLeaseExpired(claim.previous_owner, claim.cause)
            if (run.recovery == "hold" and not named) or self._journal.progress.takeovers >= self._services.max_takeovers:
                return [expired, *facts]
            facts = [
                expired,
                ev.AttemptTakenOver(self._services.owner, self._journal.progress.takeovers + 1),
                ev.RunRecovered(claim.previous_owner, claim.cause),
                *facts,
            ]
        elif run.interrupted_at is not None and run.status in LIVE:
            facts = [ev.RunRecovered("", "a person resumed it"), *facts]
        return facts

    async def _stop_here(self, named: bool) -> bool:
        """Whether a run that was taken over must not simply go on (§10.6): held for a person, or out of takeovers."""
        run = self._journal.run
        if run.status not in LIVE:
            return False
        if run.recovery == "hold" and not named:
            await self._journal.leave(Draft(facts=[ev.RunInterrupted("recovery is on hold until a person resumes it")]))
            return True
        if self._journal.progress.takeovers >= self._services.max_takeovers:
            spent = StepFailure(
                f"its owners died {self._journal.progress.takeovers} times without any progress in between", code="takeover_limit", hint="find out what kills them, then resume"
            )
            await self._fail(Draft(), spent, ErrorValue.of(spent))
            return True
        # A step that kills its owners before their first commit must be counted all the same.
        await self._journal.save(Draft())
        return False

    async def begin(self, born: Draft | None = None) -> None:
        """The first checkpoint: the input through the reducers. With ``born`` the run is created in the same commit."""
        journal = self._journal
        given = journal.progress.results[cps.INPUT_TASK]
        draft = born or Draft()
        run = draft.facts[0] if draft.facts and isinstance(draft.facts[0], ev.RunSubmitted) else journal.run
        before = await carried(self._services.store, self._program, run.tenant_id, run.thread_id)
        delta, checkpoint = superstep.first(self._program, journal.checkpoint, given, before)
        if born is not None or journal.run.status is Status.PENDING:
            draft.facts.append(ev.RunStarted())
        draft.facts += self._started(checkpoint.pending, 1)
        await journal.checkpointed(draft, delta, checkpoint, lease=KEEP if born is None else Take(self._services.owner))

    async def _begin_there(self) -> None:
        """A replay or fork starts at the checkpoint it was born with (§7.6)."""
        journal = self._journal
        facts: list[ev.Fact] = [ev.RunStarted()]
        if journal.run.origin == lineage.REPLAY and journal.echo is not None and journal.echo.last > journal.checkpoint.step:
            facts.append(ev.RunReplaying())
        checkpoint = journal.checkpoint
        facts += self._started(checkpoint.pending, checkpoint.step + 1)
        await journal.checkpointed(Draft(facts=facts), Delta(step=checkpoint.step, source=Source.FORK), checkpoint)

    async def _reenter(self) -> bool:
        """Leaves a wait if an answer has come (§2.7); otherwise gives the run back as it was."""
        run = self._journal.run
        if not run.decisions:
            await self._journal.leave(Draft(facts=[ev.RunHandedBack(self._services.owner)]), due=run.wake_at)
            return False
        last = run.decisions[-1]
        records = decisions.answers(run)
        upgraded = self._program.fingerprint if self._program.fingerprint != run.fingerprint else None
        resumed = ev.RunResumed(cause=cause_of(last), wait_id=last.wait_id, checkpoint_id=run.checkpoint_head, upgraded=upgraded)
        self._journal.hold(Draft(facts=[resumed], results=list(records)))
        return True

    async def _drain(self, inbox: tuple[Any, ...]) -> bool:
        """Turns commands into facts, one commit each (§1.6); True if the run has come to its end by that."""
        for item in inbox:
            run = self._journal.run
            if isinstance(item.command, cmd.Signal | cmd.LateResult) and run.status is Status.PENDING:
                continue
            try:
                facts = decisions.decide(run, item.command, self._services.clock.now())
            except (Rejected, UsageError) as e:
                # The command came too late or does not fit; it is consumed and the log says why.
                facts = (ev.NoteAdded(f"{item.key} was refused: {e.message}"),)
            draft = Draft(facts=list(facts) or [ev.NoteAdded(f"{item.key} changed nothing")], took=[item.key])
            ended = any(isinstance(f, ev.RunCanceled | ev.RunFailed) for f in facts)
            if ended:
                await self._journal.rest(draft, Source.CANCEL)
                return True
            if run.status in LIVE:
                draft.results = [decisions.answer(f.decision) for f in facts if isinstance(f, ev.WaitDecided | ev.WaitTimedOut)]
            await self._journal.save(draft)
        return await self._fire_timeouts()

    async def _fire_timeouts(self) -> bool:
        """Injects the timeouts that are due, through the same path as a decision (§5.10)."""
        now = self._services.clock.now()
        for wait in self._journal.run.waits:
            if wait.deadline is None or wait.deadline > now:
                continue
            facts = decisions.decide(self._journal.run, cmd.FireTimeout(wait.wait_id, wait.deadline), now)
            draft = Draft(facts=list(facts))
            if any(isinstance(f, ev.RunCanceled | ev.RunFailed) for f in facts):
                await self._journal.rest(draft, Source.CANCEL)
                return True
            if self._journal.run.status in LIVE:
                draft.results = [decisions.answer(f.decision) for f in facts if isinstance(f, ev.WaitTimedOut)]
            await self._journal.save(draft)
        return False

    # -- going round --------------------------------------------------------------------------------

    async def _rounds(self) -> Run:
        steps = 0
        journal = self._journal
        while True:
            checkpoint = journal.checkpoint
            if not checkpoint.pending:
                await self._complete(Draft())
                return journal.run
            try:
                superstep.expect(self._program, checkpoint.pending)
            except StepFailure as e:
                return await self._fail(Draft(), e, ErrorValue.of(e))
            if steps >= self._limit:
                limit = StepLimit(f"{steps} super-steps in one invocation; the limit is {self._limit}", hint="resume with a higher step_limit")
                return await self._fail(Draft(), limit, ErrorValue.of(limit))
            if journal.echo is not None and checkpoint.step >= journal.echo.last:
                journal.replayed()
            if not self._services.alive() and not await self._services.holds():
                raise LeaseLost(f"{self._services.owner} could not renew its lease; it stops at this boundary")
            if self._wake.is_set() and await self._look():
                return journal.run
            steps += 1
            if len(checkpoint.pending) == 1:
                rested = await self._single(checkpoint.pending[0])
            else:
                rested = await self._parallel(checkpoint.pending)
            if rested:
                return journal.run

    async def _look(self) -> bool:
        self._wake.clear()
        return await self._drain(tuple(await self._services.store.inbox(self._journal.run.run_id)))

    async def _single(self, task: Task) -> bool:
        """A super-step of one task: its result and the barrier are one commit."""
        known = self._journal.progress.results.get(task.key)
        if known is not None:
            return await self._barrier({task.key: known}, set(), {})
        while True:
            try:
                finished = await execute(self._services, self._journal, self._program, task)
            except Suspend as s:
                if self._answered(s.waits):
                    continue
                return await self._rest_in(s.waits)
            except Restart as r:
                return await self._restart(task, r)
            except StepError as e:
                draft = Draft(facts=[self._failed(e)])
                await self._fail(draft, e.cause, e.error)
                return True
            result = finished.result
            return await self._barrier({task.key: result}, {task.key}, {task.key: finished.writes})

    async def _parallel(self, pending: tuple[Task, ...]) -> bool:
        """Several tasks at once, bounded; what finishes is durable at once and never run again (§4.6)."""
        journal = self._journal
        todo = [t for t in pending if t.key not in journal.progress.results]
        results: dict[str, TaskResult] = {t.key: journal.progress.results[t.key] for t in pending if t.key in journal.progress.results}
        decoded: dict[str, Mapping[str, Any]] = {}
        inline: set[str] = set()
        waits: dict[str, Wait] = {}
        failed: StepError | None = None
        room = asyncio.Semaphore(self._services.parallel)
        stop = False

        async def turn(task: Task) -> Finished | None:
            async with room:
                return None if stop else await execute(self._services, journal, self._program, task)

        running = {asyncio.ensure_future(turn(t)): t for t in todo}
        saves: list[asyncio.Future[None]] = []
        looker = asyncio.ensure_future(self._wake.wait())
        try:
            while running:
                done, _ = await asyncio.wait({*running, looker}, return_when=asyncio.FIRST_COMPLETED)
                batch = Draft()
                for future in [f for f in running if f in done]:
                    task = running.pop(future)
                    error = future.exception()
                    match error:
                        case None:
                            finished = future.result()
                            if finished is None:
                                continue
                            results[task.key] = finished.result
                            decoded[task.key] = finished.writes
                            batch.facts.append(self._ended(finished.result))
                            batch.results.append(finished.result)
                        case Suspend():
                            new = [w for w in error.waits if w.wait_id not in {o.wait_id for o in journal.run.waits}]
                            batch.facts += [ev.WaitRequested(w) for w in new]
                            waits |= {w.wait_id: w for w in error.waits}
                        case StepError():
                            failed = failed or error
                            stop = True
                            batch.facts.append(self._failed(error))
                        case _:
                            raise error
                if looker in done:
                    self._wake.clear()
                    if await self._look():
                        return True
                    looker = asyncio.ensure_future(self._wake.wait())
                    for task in [t for t in todo if t.key in {journal_task(k) for k in journal.progress.records} and t.key not in results]:
                        mine = [w for w in waits.values() if w.task == task.key]
                        if mine and any(w.wait_id not in {o.wait_id for o in journal.run.waits} for w in mine):
                            waits = {k: w for k, w in waits.items() if w.task != task.key}
                            running[asyncio.ensure_future(turn(task))] = task
                if batch:
                    if not running and failed is None and not waits and len(results) == len(pending):
                        inline = {r.task for r in batch.results if isinstance(r, TaskResult)}
                    else:
                        await journal.save(batch)
            await asyncio.gather(*saves)
        finally:
            looker.cancel()
            for future in running:
                future.cancel()
            if running:
                await asyncio.gather(*running, return_exceptions=True)
        if failed is not None:
            await self._fail(Draft(), failed.cause, failed.error)
            return True
        if waits:
            return await self._rest_in(tuple(waits.values()))
        return await self._barrier(results, inline, decoded)

    # -- barriers and ends --------------------------------------------------------------------------

    async def _barrier(self, results: Mapping[str, TaskResult], inline: set[str], decoded: Mapping[str, Mapping[str, Any]]) -> bool:
        """The commit that carries the super-step across; the last one also ends the run. True if it rests now."""
        journal, program = self._journal, self._program
        parent = journal.checkpoint
        try:
            delta, moved = superstep.barrier(program, parent, results, inline=inline, decoded=decoded)
        except StepFailure as e:
            kept = [results[k] for k in inline]
            await self._fail(Draft(facts=[self._ended(r) for r in kept], results=list(kept)), e, ErrorValue.of(e))
            return True
        draft = Draft(facts=[self._ended(results[t.key]) for t in parent.pending if t.key in inline])
        if any(r.intents or r.ledger for r in results.values()):
            self._outbox(draft, [results[t.key] for t in parent.pending])
        if moved.pending:
            draft.facts += self._started(moved.pending, moved.step + 1)
            await journal.checkpointed(draft, delta, moved)
            return False
        result = results[parent.pending[-1].key].result if program.flow else None
        draft.facts += decisions.mark_run_done(journal.run, result)
        await journal.checkpointed(draft, delta, moved, lease=RELEASE)
        return True

    def _outbox(self, draft: Draft, done: list[TaskResult]) -> None:
        """Intents and ledger rows of the finished tasks, under keys that a recomputation makes again (§9.2)."""
        run, step = self._journal.run, self._journal.checkpoint.step + 1
        now, echo = self._services.clock.now(), self._journal.echo
        for result in done:
            for n, write in enumerate(result.intents):
                intent_id = f"{ids.step_id(run.run_id, step, result.task)}!{n}"
                place = f"{step}.{result.task}!{n}"
                key = write.key or f"{run.lineage_root if echo is None else echo.scope}.{place}"
                if echo is not None and (sent := echo.intents.get(place)) is not None and run.replay_effects != ReplayPolicy.REEXECUTE:
                    if sent.type == write.type and sent.payload == write.payload:
                        continue  # the source sent it, or will: it is not sent again (§7.8, T-72)
                    key = write.key or f"{run.run_id}.{place}"
                elif echo is not None and run.replay_effects == ReplayPolicy.REEXECUTE:
                    key = write.key or f"{run.run_id}.{place}"
                draft.intents.append(
                    Intent(intent_id=intent_id, run_id=run.run_id, type=write.type, payload=write.payload, key=key, order_key=write.order_key, created_at=now, due=now)
                )
                draft.facts.append(ev.IntentEnqueued(intent_id, write.type))
            for row in result.ledger:
                draft.ledger.append(LedgerRow(run.run_id, row.topic, row.key, row.data, now))
                draft.facts.append(ev.LedgerAppended(row.topic, row.key))

    async def _complete(self, draft: Draft) -> None:
        draft.facts += decisions.mark_run_done(self._journal.run)
        await self._journal.rest(draft, Source.LOOP)

    async def _rest_in(self, waits: tuple[Wait, ...]) -> bool:
        """Parks the run in its open waits, unless one was answered meanwhile (§5.2)."""
        journal = self._journal
        known = {w.wait_id for w in journal.run.waits}
        draft = Draft(facts=[ev.WaitRequested(w) for w in waits if w.wait_id not in known])
        open_now = (*journal.run.waits, *(w for w in waits if w.wait_id not in known))
        draft.facts.append(ev.RunWaitingForHuman() if resting(open_now) is Status.WAITING_FOR_HUMAN else ev.RunWaitingForSignal())
        await journal.rest(draft, Source.WAIT)
        return True

    async def _fail(self, draft: Draft, cause: BaseException, error: ErrorValue) -> Run:
        """Ends the run failed; what is finished stays, and so do its open questions (§4.8, §5.14)."""
        if not isinstance(cause, Exception) or isinstance(cause, LeaseLost):
            raise cause
        draft.facts += decisions.mark_run_failed(self._journal.run, decisions.stop_reason(cause), error)
        await self._journal.rest(draft, Source.FAILURE)
        return self._journal.run

    def _answered(self, waits: tuple[Wait, ...]) -> bool:
        """Whether an answer has come while the task's other calls went on: then it is entered again at once (§5.2)."""
        return any(self._journal.record(w.task, w.path) is not None for w in waits)

    async def _restart(self, task: Task, restart: Restart) -> bool:
        """A flow begins afresh (§4.12): a barrier that replaces its inputs and forgets its records, under the same run and lineage."""
        journal, program = self._journal, self._program
        try:
            if not program.flow:
                raise StepFailure("ctx.restart is for flows", code="restart_outside_flow", hint="in a graph return Goto(node, writes)")
            given = superstep.check_input(program, restart.inputs)
            writes = {c.name: c.initial for c in program.channels.values() if c.initial is not MISSING} | dict(given)
        except (StepFailure, UsageError) as e:
            failed = StepError(task.key, e, ErrorValue.of(e, where=task.key), 1)
            await self._fail(Draft(facts=[self._failed(failed)]), e, failed.error)
            return True
        if journal.run.waits:
            journal.hold(Draft(facts=list(decisions.close_waits(journal.run, "the flow began afresh"))))
        result = TaskResult(task.key, writes=canon.encode(canon.FrozenDict(writes)), goto=(task.node,))
        return await self._barrier({task.key: result}, {task.key}, {})

    # -- facts --------------------------------------------------------------------------------------

    def _started(self, pending: tuple[Task, ...], step: int) -> list[ev.Fact]:
        return [ev.StepStarted(step, t.key) for t in pending]

    def _ended(self, result: TaskResult) -> ev.StepEnded:
        kind = ev.step_ended(result.outcome)
        return kind(self._journal.checkpoint.step + 1, result.task, result.outcome, attempt=result.attempt)

    def _failed(self, e: StepError) -> ev.StepFailed:
        return ev.StepFailed(self._journal.checkpoint.step + 1, e.task, e.error, e.outcome, e.attempt)


def journal_task(place: tuple[str, str]) -> str:
    return place[0]


def cause_of(decision: Any) -> str:
    """Why a run left its wait (§2.7)."""
    match decision.action:
        case "timeout":
            return "timeout"
        case "signal":
            return "signal"
        case "completed" | "failed" | "canceled":
            return "child"
    return "decision"


def loaded_driver(services: Services, loaded: Loaded, claim: Claim, *, upgrade: bool = False, step_limit: int | None = None) -> Driver:
    """The driver of a claimed run.

    Raises:
        SkillUnknown, FingerprintMismatch: this process cannot go on with it (§3.2).
        StoreCorrupt: its log does not hold together.
    """
    program = services.skills.for_run(loaded.run, upgrade=upgrade)
    return Driver(services, program, Journal.load(services.store, loaded, claim.fence), step_limit=step_limit)


async def hand_back(services: Services, loaded: Loaded, claim: Claim, due: int) -> None:
    """Gives up a claim that this process can do nothing with: unchanged, due again at ``due``."""
    journal = Journal.load(services.store, loaded, claim.fence)
    await journal.leave(Draft(facts=[ev.RunHandedBack(services.owner)]), due=due)


__all__ = ["Driver", "cause_of", "hand_back", "loaded_driver"]
