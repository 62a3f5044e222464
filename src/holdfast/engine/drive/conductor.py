"""Creates runs, and executes them in this process until they rest: the layer between the runtime's verbs and one ``Driver``.

A run that another process executes, or whose lane is not free yet, is waited for. A run that waits for a person is returned as it is. The store decides which
run may be claimed (§10.1). Every function here may be called again after a crash.

A run must not stay claimed by a process that lives and does nothing with it, because nobody else could continue it (§10.4, §10.13). So if executing a claimed
run stops early (its caller was canceled, its code is not here, its log is damaged), the run is handed back, and the log says so. If another try cannot help,
the run is marked ``interrupted`` for a person, and no worker claims it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any

import msgspec

from holdfast.callers import VIA
from holdfast.core import commands as cmd
from holdfast.core import compensation as undone
from holdfast.core import decisions, superstep, views
from holdfast.core import events as ev
from holdfast.core import policy as policies
from holdfast.core import run as records
from holdfast.core.checkpoint import Result, Source, StepRecord
from holdfast.core.commit import InboxItem, Tip
from holdfast.core.errors import (
    AcknowledgeRequired,
    ChainBroken,
    Conflict,
    EventUnreadable,
    FingerprintMismatch,
    HoldfastError,
    KeyUnavailable,
    LaneBlocked,
    LaneBusy,
    LeaseLost,
    LimitReached,
    NodeMissing,
    PayloadAltered,
    PlaintextRefused,
    QueueFull,
    RecordDamaged,
    Rejected,
    RequestConflict,
    RestrictedOption,
    RunIsLive,
    SkillUnknown,
    StoreCorrupt,
    StoreError,
    ThreadNotFound,
    UnknownStatus,
    UnsupportedFormat,
    VersionConflict,
)
from holdfast.core.graph import Program
from holdfast.core.lanes import Blocked, May
from holdfast.core.lease import AT_ONCE, TOUCH, Alive, Lease
from holdfast.core.limits import SOON_US, tell_when_to_come_back
from holdfast.core.progress import LEFT_AT_ONCE, Progress
from holdfast.core.status import LIVE, TERMINAL, WAITING, Status
from holdfast.core.waits import WaitKind
from holdfast.engine.base import obstacles, pool
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.reader import POLL_SECONDS, Reader
from holdfast.engine.base.services import Drivers, Services, may_be_held_still
from holdfast.engine.calls import gates
from holdfast.engine.desk import lanes, lineage
from holdfast.engine.desk.door import OnBusy, Wish
from holdfast.engine.desk.intake import Birth
from holdfast.engine.drive import compensation
from holdfast.engine.drive.commands import Desk
from holdfast.engine.drive.driver import Driver, load_driver
from holdfast.engine.drive.lost_commits import surface
from holdfast.handle import Run
from holdfast.ports import Claim, RunFilter, Store, offers_release, offers_upkeep

LOOK_SECONDS = 5.0
PATIENCE = 20
MOST_LEFT = 500  # how many runs one call of ``_give_back`` reads
NEXT = 3  # how many of the runs ahead in the lane are tried at a time; another process may claim one first


class Conductor:
    """Creates and executes runs for one runtime. ``own`` registers the process as an owner of leases before its first claim."""

    def __init__(self, services: Services, reader: Reader, desk: Desk, own: Callable[[], Awaitable[None]]) -> None:
        self._services = services
        self._store = services.store
        self._skills = services.skills
        self._reader = reader
        self._desk = desk
        self._own = own
        self._waited: Counter[str] = Counter()  # runs that rest for a limit and for which a caller here waits

    # -- creating -----------------------------------------------------------------------------------

    async def submit(self, born: Birth) -> Run[Any]:
        """Stores a new run for a worker to execute; returns the existing run if its request key is known (§3.5)."""
        try:
            return await self._enqueue(born, "submitted", self._services.max_queued)
        except QueueFull as e:
            raise QueueFull(e.message, retry_after=tell_when_to_come_back(await self._services.bounds(), born.fact.queue, born.fact.tenant_id)) from None

    async def invoke(self, program: Program, born: Birth, *, shared: bool, step_limit: int | None, detach: bool = False) -> Run[Any]:
        """Creates, claims and starts a run in one commit, and executes it. ``shared``: its thread was named by the caller, so other runs may be on it.

        With ``detach`` it returns at the first rest of any kind, timers and children included (§4.18).
        """
        await self._own()
        if shared and born.on_busy is not OnBusy.QUEUE:  # a lane counts as busy only if this process cannot execute it until it rests
            await self._way_cleared(records.fold_all(None, [ev.Event(1, self._store.now(), born.fact)]))
        if (await self._services.bounds()).touches(born.fact.queue, born.fact.tenant_id):
            return await self._queue(born, "a limit", step_limit, detach)
        carried_values = None
        if shared and program.carried:
            # The thread's values are read before the run holds its lane. So its first commit is compared with the thread's end; otherwise a turn
            # that ends meanwhile would be lost.
            carried_values = await self._services.threads.ahead(program, born.fact.tenant_id, born.fact.thread_id)
            if carried_values is None:
                return await self._queue(born, "its thread's turn", step_limit, detach)
        journal = born.journal
        driver = Driver(self._services, program, journal, step_limit=step_limit)
        draft = born.draft()
        draft.facts.append(ev.RunClaimed(self._services.owner, journal.fence & 0xFFFFFFFF))
        self._services.driving.take(born.run_id)
        try:
            await driver.begin(draft, carried_values, born.given)
        except (Exception, asyncio.CancelledError) as e:
            self._services.driving.discard(born.run_id)
            journal.close()
            if not isinstance(e, Conflict):
                await asyncio.shield(let_go(self._services, born.run_id, journal.fence, e))  # its first commit may have been applied
                raise
            if e.code == "claim_taken" and born.claims:
                return await self._settle(await self._existing(born), step_limit, detach)
            if e.code not in ("lane_busy", "thread_moved"):
                raise
            journal.dead = None
            return await self._queue(born, "lane busy" if e.code == "lane_busy" else "its thread's turn", step_limit, detach)
        del draft  # frees the input while the run executes
        record = await self._drive(born.run_id, driver)
        if record.terminal:
            return self._reader.show_left(record, Lease(journal.fence), journal.progress.checkpoint.values, self._store.now())
        return await self.drive_on(born.run_id, step_limit=step_limit, detach=detach)

    async def _enqueue(self, born: Birth, reason: str, max_queued: int | None = None) -> Run[Any]:
        """Writes the first commit of a run that must wait its turn, or handles a busy lane as its ``on_busy`` says (§5.13)."""
        journal = born.journal
        before = await lanes.ahead(self._store, born)
        try:
            draft = lanes.admit(born, before, reason)
            draft.max_queued = max_queued
            if type(draft.facts[-1]) is ev.RunCanceled:
                await journal.rest(draft, Source.CANCEL, lease=TOUCH)
            else:
                await journal.leave(draft, lease=TOUCH, at=born.at)
        except (Conflict, LaneBusy) as e:
            known = born.claims and await self._store.find_claim(born.claims[0].kind, born.claims[0].scope, born.claims[0].key)
            if not known or (isinstance(e, Conflict) and e.code != "claim_taken"):
                raise
            return await self._existing(born)
        for item in draft.puts:
            await self._desk.settle(item.run_id)
        return await self._reader.show_born(journal, born.at)

    async def _existing(self, born: Birth) -> Run[Any]:
        """Returns the run that already has this request key, if it was given the same input."""
        claim = born.claims[0]
        taken = await self._store.find_claim(claim.kind, claim.scope, claim.key)
        if taken is None:
            raise StoreError(f"the request key {claim.key!r} is taken, but its run cannot be found")
        if taken.digest != claim.digest:
            raise RequestConflict(f"the key {claim.key!r} was used with another input, by the run {taken.run_id}", hint="use another key")
        run = await self._reader.get(taken.run_id)
        run.deduplicated = True
        return run

    async def _queue(self, born: Birth, reason: str, step_limit: int | None, detach: bool) -> Run[Any]:
        """Puts a new run into its lane, and executes it when its turn comes."""
        run = await self._enqueue(born, reason)
        return await self._settle(run, step_limit, detach)

    async def _settle(self, run: Run[Any], step_limit: int | None, detach: bool) -> Run[Any]:
        """Executes a run until it rests, whether it is new or was found under its request key."""
        driven = await self.drive_on(run.run_id, step_limit=step_limit, detach=detach)
        driven.deduplicated = run.deduplicated
        return driven

    async def go_on(self, tenant_id: str, thread_id: str) -> Run[Any]:
        """Continues a thread's newest run as far as possible, and returns it as it rests; no new run begins (§4.16).

        Raises:
            ThreadNotFound: there is no run in that thread.
        """
        newest = await self._store.runs(RunFilter(tenant_id=tenant_id, thread_id=thread_id, limit=1, by_turn=True))
        if not newest:
            raise ThreadNotFound(f"no run in the thread {thread_id!r}", hint="give it an input to begin with")
        run, lease = newest[0]
        elsewhere = lease.live(self._store.now()) and lease.owner != self._services.owner
        return await self._reader.get(run.run_id) if elsewhere else await self.if_able(run.run_id, named=False)

    # -- driving ------------------------------------------------------------------------------------

    async def _drive(
        self, run_id: str, driver: Driver, claim: Claim | None = None, inbox: tuple[InboxItem, ...] = (), named: bool = False, due: int | None = None
    ) -> records.Run:
        """Executes a claimed run until it rests, and sends its intents. ``due``: the next deadline of its waits."""
        self._services.driving.add(run_id)
        journal = driver.journal
        journal.sendings = self._services.sendings
        if claim is not None and journal.progress.sends:
            journal.post()  # intents of an earlier execution may not have been sent
        try:
            with self._services.drivers.on(run_id, driver, due):
                record = await drive_to_rest(self._services, driver, claim, inbox, named=named)
            if journal.posted and journal.sendings is not None:
                await journal.sendings.deliver(run_id)
            return record
        finally:
            if journal.posted and journal.sendings is not None:
                journal.sendings.leave(run_id)
            self._services.driving.discard(run_id)

    async def _claim(self, run_id: str) -> Claim | None:
        await self._own()
        await self._services.holds()
        got: list[Claim] = []
        async with self._services.claiming:
            if not (taken := run_id in self._services.driving):  # another task here has just claimed it; a second claim would take the run from that task
                self._services.driving.take(run_id)
                try:
                    got = await self._store.claim(self._services.owner, (), None, limit=1, run_id=run_id, limits=self._services.limits)
                except StoreError:
                    leave_over(self._services)  # the claim may have been applied in spite of the error
                    raise
                finally:
                    if not got:
                        self._services.driving.discard(run_id)
        if taken:
            await self._store.wait_for_change(POLL_SECONDS)
        return got[0] if got else None

    async def _drive_claim(
        self, claim: Claim, *, upgrade: bool = False, step_limit: int | None = None, named: bool = False, judged: list[ev.Fact] | None = None,
        forced: bool = False,
    ) -> Journal:
        """Loads a claimed run and executes it until it next rests; returns its journal."""
        try:
            loaded = await self._reader.load(claim.run_id)
            driver = load_driver(self._services, loaded, claim, upgrade=upgrade, step_limit=step_limit, forced=forced)
            if judged:
                driver.journal.hold(Draft(facts=judged))
        except (Exception, asyncio.CancelledError) as e:
            await asyncio.shield(let_go(self._services, claim.run_id, claim.fence, e))
            self._services.driving.discard(claim.run_id)
            raise
        await self._drive(claim.run_id, driver, claim, loaded.inbox, named, loaded.run.wake_at if loaded.run.waits else None)
        return driver.journal

    async def drive_on(
        self, run_id: str, *, upgrade: bool = False, step_limit: int | None = None, named: bool = True, detach: bool = False, judged: list[ev.Fact] | None = None
    ) -> Run[Any]:
        """Executes what this process can. Returns at human and signal waits, with ``detach`` also at timers and children (§4.18), and if the lane blocks the
        run. The facts in ``judged`` are written with the first commit."""
        left = await self._drive_on(run_id, upgrade=upgrade, step_limit=step_limit, named=named, detach=detach, judged=judged)
        return left if isinstance(left, Run) else await self._reader.get(run_id)

    async def _drive_on(
        self, run_id: str, *, upgrade: bool = False, step_limit: int | None = None, named: bool = True, detach: bool = False, judged: list[ev.Fact] | None = None,
        forced: bool = False, known: tuple[records.Run, Lease, int] | None = None, stop: asyncio.Event | None = None,
    ) -> Blocked | Run[Any] | None:
        """Does the work of ``drive_on``. Returns the run if it has ended or waits for an answer, or the part of its lane that blocks it. ``known``: the run, its
        lease and the time at which the caller read them and found that this process can continue it. ``stop``: set once nobody waits for the run any more."""
        below = Children(self._services.drivers, self._drive_on)
        try:
            return await self._go_on_with(run_id, below, upgrade, step_limit, named, detach, judged, forced, known, stop)
        except BaseException:
            if stop is None or not stop.is_set():
                below.cancel()
            raise
        finally:
            await below.rest()

    async def _go_on_with(
        self, run_id: str, below: Children, upgrade: bool, step_limit: int | None, named: bool, detach: bool, judged: list[ev.Fact] | None, forced: bool,
        known: tuple[records.Run, Lease, int] | None, stop: asyncio.Event | None,
    ) -> Blocked | Run[Any] | None:
        fitting, left = known is not None, None
        while True:
            if known is None:
                run, lease = await self._reader.find(run_id)
                now = self._store.now()
            else:
                (run, lease, now), known = known, None
            if run.status in TERMINAL or (run.interrupted_at is not None and not named) or self._services.drivers.draining or (stop is not None and stop.is_set()):
                return None
            if detach and run.status in WAITING and not run.decisions and (lease.due is None or lease.due > now):
                return None
            kinds = {w.kind for w in run.waits}
            if WaitKind.CHILD in kinds and run.status in WAITING and not run.decisions and not _is_due(lease, now) and await self._children(run, lease.due, below):
                continue
            if run.status in WAITING and not run.decisions and not lease.live(now):
                timers = bool(kinds) and kinds <= {WaitKind.TIMER, WaitKind.CHILD}
                if lease.due is None or (not timers and lease.due > now):
                    stands = left is not None and left.dead is None and left.run.version == run.version  # unchanged since this process left it
                    return self._reader.show_left(run, lease, left.progress.checkpoint.values, now) if left is not None and stands else None
                if lease.due > now:
                    await self._until((lease.due - now) / 1_000_000)
                    continue
            if run.status in LIVE and (pause := obstacles.put_off(run, lease, now)) > 0:
                if detach:
                    return None
                await self._room(run_id, pause)
                continue
            if not fitting:
                await self._fitting(run, upgrade)
            fitting = False
            if lease.owner is not None and lease.live(now) and not self._idle_here(run_id, lease):
                await self._store.wait_for_change(POLL_SECONDS)
            elif (claim := await self._claim(run_id)) is not None:
                left = await self._drive_claim(claim, upgrade=upgrade, step_limit=step_limit, named=named, judged=judged, forced=forced)
                if left.run.status in TERMINAL:
                    return self._reader.show_left(left.run, Lease(left.fence), left.progress.checkpoint.values, self._store.now())
                judged, forced = None, False
            elif (blocked := await self._way_cleared(run) or await self._wait_for_limit(run)) is not None:
                return blocked

    async def _room(self, run_id: str, left: int) -> None:
        """Waits until a run that rests for a limit may be tried again; a slot that becomes free makes the run due earlier."""
        self._waited[run_id] += 1
        try:
            await self._until(left / 1_000_000)
        finally:
            self._waited[run_id] -= 1

    async def _wait_for_limit(self, run: records.Run) -> Blocked | None:
        """Waits a moment if a limit will soon let the run continue, or if a run of this process holds the slot; otherwise returns what blocks it (§10.11)."""
        held = await obstacles.find_limit(self._services, run)
        if held is None:
            await asyncio.sleep(0)
            return None
        left = None if held.until is None else held.until - self._store.now()
        if left is not None and left <= SOON_US:
            await self._services.clock.sleep(max(left, 1_000) / 1_000_000)
            return None
        if not held.mine:
            return Blocked("", held.why)
        await self._store.wait_for_change(POLL_SECONDS)
        return None

    async def _way_cleared(self, run: records.Run, lease: Lease | None = None) -> Blocked | None:
        """Executes the runs that come before a run in its lane and that no living process executes. Returns what still blocks the lane and cannot be executed here, or
        None if the lane is free. ``lease``: may show that the run holds its lane already."""
        if lease is not None and obstacles.has_lane(run, lease):
            return None
        patience = PATIENCE
        while patience:
            ahead = await obstacles.before(self._store, run, NEXT)
            if not ahead or self._services.drivers.draining:
                return None
            for head, held in ahead:
                what = obstacles.judge(self._services, head, held)
                if what is May.LIMIT and self._waited[head.run_id]:
                    what = May.AWAIT
                if what is May.AWAIT:
                    await self._store.wait_for_change(POLL_SECONDS)
                    break
                if what is not May.DRIVE:
                    return obstacles.tell(what, head, held)
                if (claim := await self._claim(head.run_id)) is not None:
                    with contextlib.suppress(*DAMAGED):  # the run is interrupted now, which the next look shows
                        await self._drive_claim(claim)
                    break
            else:  # other processes claimed all of them first
                patience -= 1
                await self._store.wait_for_change(POLL_SECONDS)
        return obstacles.tell(May.LIVE, *ahead[0])

    async def _fitting(self, run: records.Run, upgrade: bool) -> Program:
        """Returns the program that may continue this run; called before anything is claimed or written (§3.2).

        Raises:
            SkillUnknown, FingerprintMismatch: this process cannot continue it.
            NodeMissing: the program has changed and lacks a node that the run needs next; recorded answers are kept.
        """
        program = self._skills.for_run(run, upgrade=upgrade)
        self._services.here(run)
        if program.fingerprint != run.fingerprint:
            loaded = await self._reader.load(run.run_id)
            superstep.expect(program, Progress(run.run_id, loaded.whole).walk(loaded.rows).checkpoint.pending)
        return program

    async def _ask_policy(self, run: records.Run, program: Program, actor: str, force: bool) -> list[ev.Fact]:
        """Asks the current policy about every gated step still to come (§7.5); force waives only that (§7.4). Returns the facts to record.

        Raises:
            Denied: the policy refuses a step; the refusal is recorded too, if the run rests.
            RestrictedOption: the policy, or the environment, does not permit force.
        """
        policy = self._services.policy
        if force:
            self._services.place.check_force("a run past its policy")
            if not (policy is None or policy.allow_force):
                raise RestrictedOption("the current policy does not allow --force", hint="resume without --force")
            gated = [n for n in program.nodes.values() if policies.asks(policy, n)]
            return [ev.NoteAdded(f"{actor} waived the policy's re-evaluation"), *gates.waive_refusals(policy, gated, run, self._services.environment)]
        if run.status is Status.PENDING or not any(n.gated for n in program.nodes.values()):
            return []
        loaded = await self._reader.load(run.run_id)
        progress = Progress(run.run_id, loaded.whole).walk(loaded.rows)
        if compensation.find_begun(progress) is not None:
            return []  # no step is still to come: the run undoes effects, and each undo asks the policy itself
        checkpoint = progress.checkpoint
        pending = {t.node for t in checkpoint.pending}
        todo = [n for n in program.nodes.values() if policies.asks(policy, n) and n.name not in run.waived and (n.name in pending or n.name not in checkpoint.seen)]
        facts, refusal = gates.reevaluate(policy, todo, run, self._services.environment)
        if refusal is not None:
            if run.status not in LIVE:
                await self._desk.at_rest(loaded, Draft(facts=facts), actor=actor)
            raise refusal
        return facts

    def _idle_here(self, run_id: str, lease: Lease) -> bool:
        """Whether this process holds a run that nothing in it executes, because its driver ended with an error of the store."""
        return lease.owner == self._services.owner and run_id not in self._services.driving

    async def _children(self, run: records.Run, due: int | None, below: Children) -> bool:
        """Executes the children that a run waits for and whose code is here, until they rest or the run has news; returns whether it has (§4.18)."""
        names = [wait.name for wait in run.waits if wait.kind is WaitKind.CHILD]
        while True:
            for name in names:
                found = await self._store.get(name)
                if found is not None and not found[0].terminal and found[0].skill_id in self._skills.ids:
                    below.drive(found[0])
            if driven := below.driven:
                await self._until(None if due is None else (due - self._store.now()) / 1_000_000, driven)
                below.pass_on_errors()
            after, lease = await self._reader.find(run.run_id)
            if after.version != run.version or _is_due(lease, self._store.now()):
                return True
            if not driven:
                return False
            names = below.at_rest  # a person may have answered one of them

    async def _until(self, seconds: float | None, beside: Collection[asyncio.Task[Any]] = ()) -> None:
        """Waits until a timer is due, something changes, or one of the tasks ``beside`` ends; it looks again soon enough that a missed hint does not matter."""

        async def wait_for_change() -> None:
            await self._store.wait_for_change(0)  # the first wait of a task only marks what counts as news from here on
            await self._store.wait_for_change(LOOK_SECONDS)

        waiting = {asyncio.ensure_future(wait_for_change())}
        if seconds is not None:
            waiting.add(asyncio.ensure_future(self._services.clock.sleep(seconds)))
        try:
            await asyncio.wait({*waiting, *beside}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def reborn(self, run_id: str, wish: Wish, drive: bool) -> Run[Any]:
        """Creates a replay or a fork (§7.6, §7.7), or returns the one that already exists under the same key."""
        await self._reader.find(run_id)
        source = await self._reader.load(run_id)
        if source.run.skill_id in self._skills.ids:
            self._skills.for_run(source.run, upgrade=wish.upgrade)
        wish = msgspec.structs.replace(wish, missing=tuple(undone.missing(await self._store.effects(run_id), run_id)))
        try:
            made = await lineage.create(self._services, source, wish)
        except Conflict as e:
            if e.code != "claim_taken" or wish.key is None:
                raise
            taken = await self._store.find_claim("request", lineage.request_scope(source.run, wish.kind), wish.key)
            if taken is None:
                raise
            if taken.digest != await lineage.digest(self._services, source.run, wish):
                raise RequestConflict(f"the key {wish.key!r} was used for another {wish.kind}, by {taken.run_id}", hint="use another key") from None
            again = await self._reader.get(taken.run_id)
            again.deduplicated = True
            return again
        early = wish.not_before is not None and wish.not_before > self._store.now()
        return await (self.if_able(made) if drive and not early else self._reader.get(made))

    async def if_able(self, run_id: str, *, named: bool = True) -> Run[Any]:
        """Continues a run if this process has its skill in a compatible shape; otherwise a worker will (§10.11)."""
        run, lease = await self._reader.find(run_id)
        left = await self._drive_on(run_id, named=named, known=(run, lease, self._store.now())) if run.status not in TERMINAL and await self._able(run) else None
        return left if isinstance(left, Run) else await self._reader.get(run_id)

    async def _able(self, run: records.Run) -> bool:
        try:
            await self._fitting(run, upgrade=False)
        except (SkillUnknown, FingerprintMismatch, NodeMissing):
            return False
        return True

    async def end_if_asked(self, run_id: str) -> Run[Any]:
        """Returns a run that was asked to end. Executes it to its end if effects must be undone first and no other process executes it (§6.11)."""
        run = await self._reader.get(run_id)
        if run.status not in LIVE or run.lease.live(self._store.now()):
            return run
        try:
            self._skills.for_run(run.record)
        except (SkillUnknown, FingerprintMismatch):
            return run  # the request is recorded, which is what the caller wanted; a process that has the code ends the run
        return await self.drive_on(run_id)

    async def resume(
        self, run_id: str, *, payload: Any = ..., actor: str, acknowledge: str | None, force: bool, wait: bool, upgrade: bool, step_limit: int | None
    ) -> Run[Any]:
        """Continues a run where it stopped (§7.1); a payload first answers the question that it waits for (§5.11)."""
        if payload is not ...:
            asks = await self._desk.asking(run_id)
            await self._fitting(asks, upgrade)  # checked before anything is recorded: an answer is accepted only if this process can act on it
            run_id = await self._desk.answer(asks, payload, actor=actor)
        before, lease = await self._reader.find(run_id)
        while True:
            if (before.waits or await self._store.inbox(run_id)) and await self._desk.bring_up(before):
                before, lease = await self._reader.find(run_id)
            run = before
            if run.waits and await self._desk.time_out(run):
                run, lease = await self._reader.find(run_id)
            if run.status in TERMINAL and (before.status in WAITING or payload is not ...):
                return await self._reader.get(run_id)  # a deadline, or the answer, has ended the run
            now = self._store.now()
            # A process that has claimed a waiting run is about to read the answer in the run's inbox.
            executed = run.status in LIVE or (run.status in WAITING and not run.decisions)
            if not (executed and lease.live(now)) or self._idle_here(run_id, lease):
                break
            before, lease = await self._refuse_live(run, lease, wait)
        program = await self._fitting(run, upgrade)
        if (blocked := await self._way_cleared(run, lease)) is not None:  # checked before anything is written
            raise _lane_blocked(run_id, blocked)
        if run.status not in LIVE and run.status is not Status.PENDING and not await self._desk.due_by_a_signal(run):
            try:
                decisions.refuse_resume(run, acknowledge)
            except AcknowledgeRequired:
                await self._refuse_without(run)  # a caller is not told to acknowledge a run that cannot be resumed at all
                raise
        doubts: list[StepRecord] = []
        if run.status in TERMINAL:
            doubts = await self._refuse_without(run)
        judged = await self._ask_policy(run, program, actor, force)
        if run.status in TERMINAL:
            precedes = run.precedes or await self._services.threads.find_next(run)
            command = cmd.Resume(actor=actor, acknowledge=acknowledge, force=force, precedes=precedes, via=VIA.get())
            loaded = await self._reader.load(run_id)
            facts = (*judged, *decisions.decide(loaded.run, command, now))
            judged = []
            upgraded = program.fingerprint if upgrade and program.fingerprint != run.fingerprint else None
            facts = tuple(msgspec.structs.replace(f, upgraded=upgraded) if isinstance(f, ev.RunResumed) else f for f in facts)
            if not await self._desk.at_rest(loaded, Draft(facts=list(facts), results=[*decisions.answers(loaded.run), *doubts]), actor=actor, due=AT_ONCE):
                raise Conflict(f"another process has resumed {run_id} in the meantime")
        known = None if run.status in TERMINAL else (run, lease, now)
        left = await self._drive_on(run_id, upgrade=upgrade, step_limit=step_limit, judged=judged, forced=force, known=known)
        if isinstance(left, Blocked):
            raise _lane_blocked(run_id, left)
        return left or await self._reader.get(run_id)

    async def _refuse_without(self, run: records.Run) -> list[StepRecord]:
        """Refuses to continue a run if effects of its completed steps were undone; returns records of the other effects whose outcome is in doubt.

        Raises:
            EffectsUndone: names the effects, and what to do instead.
        """
        effects = await self._store.effects(run.run_id)
        if undone.missing(effects, run.run_id):
            loaded = await self._reader.load(run.run_id)
            compensation.refuse_to_go_on(run, effects, Progress(run.run_id, loaded.whole).walk(loaded.rows).checkpoint)
        return undone.note_doubts(effects, run.run_id)

    async def _refuse_live(self, run: records.Run, lease: Lease, wait: bool) -> tuple[records.Run, Lease]:
        """Refuses a run whose owner is alive; waits for the lease of an owner that cannot be seen to run out (§7.1). Returns the run and its lease as they are then."""
        until = views.iso(lease.expires_at)
        if lease.owner_alive is Alive.YES or not wait:
            raise RunIsLive(f"{run.run_id} is being executed by {lease.owner}, whose lease lasts until {until}", hint="wait for it, or cancel it")
        while lease.live(self._store.now()):
            await self._store.wait_for_change(POLL_SECONDS)
            run, lease = await self._reader.find(run.run_id)
        return run, lease


class Children:
    """The children that a run executes beside itself in this process. A child that the run no longer needs is released at the child's next safe boundary."""

    def __init__(self, drivers: Drivers, drive: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._drivers = drivers
        self._drive = drive
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        self._begun: dict[str, int] = {}
        self._stop = asyncio.Event()

    def drive(self, child: records.Run) -> None:
        """Starts to execute a child, unless it is being executed, or has not changed since it last came to rest."""
        task = self._tasks.get(child.run_id)
        if task is None or (task.done() and self._begun[child.run_id] != child.version):
            self._begun[child.run_id] = child.version
            self._tasks[child.run_id] = asyncio.ensure_future(self._drive(child.run_id, stop=self._stop))

    @property
    def driven(self) -> list[asyncio.Task[Any]]:
        return [task for task in self._tasks.values() if not task.done()]

    @property
    def at_rest(self) -> list[str]:
        return [run_id for run_id, task in self._tasks.items() if task.done()]

    def pass_on_errors(self) -> None:
        """Raises the error that ended the execution of a child, if there is one."""
        for task in self._tasks.values():
            if task.done():
                task.result()

    def cancel(self) -> None:
        for task in self.driven:
            task.cancel()

    async def rest(self) -> None:
        """Releases the children that are still executed, and waits until they are released."""
        if not self._tasks:
            return
        self._stop.set()
        for run_id, task in self._tasks.items():
            if not task.done() and not self._drivers.drain_one(run_id):
                task.cancel()  # none of its steps is executing
        for came in await asyncio.gather(*self._tasks.values(), return_exceptions=True):
            if isinstance(came, Exception) and not isinstance(came, HoldfastError):  # an error of the child's run is shown with that run
                raise came


def _is_due(lease: Lease, now: int) -> bool:
    return lease.due is not None and lease.due <= now


def _lane_blocked(run_id: str, blocked: Blocked) -> Rejected:
    if not blocked.run_id:
        return LimitReached(f"{run_id} may not begin now: {blocked.why}", hint="a worker takes it when there is room; holdfast queues shows what is in the way")
    return LaneBlocked(
        f"{run_id} waits for its turn after {blocked.run_id}: {blocked.why}", blocked_by=blocked.run_id, blocked_why=blocked.why, hint=f"holdfast show {blocked.run_id}"
    )


# These concern one run; any other error of the store concerns all runs.
DAMAGED = (EventUnreadable, ChainBroken, UnsupportedFormat, UnknownStatus, RecordDamaged, KeyUnavailable, PayloadAltered, PlaintextRefused)
MISFITS = frozenset({"snapshot_field_drift", "log_rolled_back"})
"""The row of a run does not fit its log, so nothing may be appended, not even that the run is handed back."""
MISFIT_US = 3_600_000_000  # only a person can repair it: workers leave the run alone for this time
DAMAGED_CODES = frozenset({"checkpoint_head_missing", "checkpoint_hash_mismatch", "blob_unreadable"})
# After these, another process, or this one a moment later, may well continue the run.
PASSING = (asyncio.CancelledError, KeyboardInterrupt, SkillUnknown, FingerprintMismatch)


async def drive_to_rest(services: Services, driver: Driver, claim: Claim | None, inbox: tuple[Any, ...], *, named: bool = False) -> records.Run:
    """Executes a run until it next rests. If something cuts that short, releases the run before the error is passed on.

    Raises:
        BaseException: what ended the execution.
    """
    pool.current.set(services.pool)
    try:
        run = await driver.drive(claim, inbox, named=named)
        for child in driver.journal.stopped:
            await Desk(services, Reader(services)).settle(child)  # a child at rest ends at once, as if it had been canceled itself (§10.12)
        if run.interrupted_at is not None:
            await Desk(services, Reader(services)).settle(run.run_id)  # commands that arrived before it was interrupted
        return run
    except (Exception, asyncio.CancelledError, KeyboardInterrupt) as e:
        left = [r for r in driver.journal.held.results if isinstance(r, StepRecord) and r.kind == LEFT_AT_ONCE]
        driver.journal.close()
        if driver.journal.tip is not None:
            await asyncio.shield(let_go(services, driver.journal.run.run_id, driver.journal.fence, e, cut=driver.fresh, left=left))
        with contextlib.suppress(HoldfastError):  # the next process reports it
            await surface(services)
        if may_be_held_still(e):
            leave_over(services)  # repeated, because by now nothing here executes the run
        raise


async def let_go(services: Services, run_id: str, fence: int, error: BaseException, *, due: int | None = None, cut: bool = False, left: Sequence[Result] = ()) -> None:
    """Hands back a run whose execution was stopped by ``error``, if this process still holds it: due again at once, or at ``due``. ``left``: records of what its steps did
    while they were stopping. ``cut``: the run had only just begun; if it was canceled then, that counts as an owner that died of it, because a step can cancel any task.

    After an error of the store or of the lease nothing more is written (§1.12). Then a worker of this process claims the run again under a new fence, and records the
    outcome of the effects in flight, or the run is handed back later. The caller raises or reports ``error`` itself.
    """
    store, later = services.store, services.store.now() + MISFIT_US
    if isinstance(error, StoreCorrupt) and error.code in MISFITS and offers_release(store):
        with contextlib.suppress(StoreError):  # if the store cannot do even this, the run stays held until this owner ends
            await store.release(run_id, services.owner, fence, later)
        return
    damaged = isinstance(error, DAMAGED) or (isinstance(error, StoreCorrupt) and error.code in DAMAGED_CODES)
    if may_be_held_still(error) and not damaged:
        leave_over(services)
        return
    again = due is not None or (isinstance(error, PASSING) and not damaged)
    why = error.line() if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
    fact: ev.Fact = ev.RunHandedBack(services.owner, cut=cut and isinstance(error, asyncio.CancelledError)) if again else ev.RunInterrupted(why[:1000])
    try:
        await hand_back(services, run_id, fence, fact, due=due, left=left)
    except HoldfastError:  # the store could not even write this commit
        leave_over(services)


def leave_over(services: Services) -> None:
    """Notes that this process may hold runs that nothing in it executes; they are handed back once the store answers."""
    services.leftovers.see_to(functools.partial(_give_back, services))


async def _give_back(services: Services) -> None:
    """Hands back every run that this owner holds and that nothing here executes.

    Raises:
        HoldfastError: one of them could not be handed back; the others were.
    """
    async with services.claiming:  # a run that is claimed meanwhile is in ``driving`` once the lock is free
        held = await services.store.runs(RunFilter(owner=services.owner, limit=MOST_LEFT))
        left = [(run, lease) for run, lease in held if run.run_id not in services.driving and not run.terminal]
    failed: HoldfastError | None = None
    for run, lease in left:
        try:
            await hand_back(services, run.run_id, lease.fence, ev.RunHandedBack(services.owner))
        except HoldfastError as e:  # the other runs may be in order
            failed = e
    if failed is not None:
        raise failed
    if len(held) == MOST_LEFT and left:
        leave_over(services)


async def hand_back(services: Services, run_id: str, fence: int, fact: ev.Fact, *, due: int | None = None, left: Sequence[Result] = ()) -> bool:
    """Writes ``fact`` and the records ``left`` in one commit that releases the lease; returns False if this process does not hold the run (any more)."""
    store = services.store
    for _ in range(3):
        held = await _find_held(store, run_id)
        if held is None or held[1].owner != services.owner or held[1].fence != fence:
            return False
        run, _, tip = held
        answered = run.status in WAITING and any(d.resume for d in run.decisions)
        journal = Journal(store, run, tip, fence, Progress(run_id))
        try:
            await journal.leave(Draft(facts=[fact], results=list(left), due_stands=due is not None), due=AT_ONCE if answered and due is None else due)
            return True
        except LeaseLost:
            return False
        except VersionConflict:
            continue  # a commit that was in flight when its caller left has been applied
    return False


async def _find_held(store: Store, run_id: str) -> tuple[records.Run, Lease, Tip] | None:
    """Returns the run, its lease and the end of its log, even if its log or its other records are damaged."""
    try:
        loaded = await store.load(run_id)
    except StoreCorrupt:
        evidence = await store.evidence(run_id) if offers_upkeep(store) else None
        if evidence is None or not isinstance(evidence.run, records.Run) or evidence.lease is None or evidence.tip is None:
            raise
        return evidence.run, evidence.lease, evidence.tip
    return None if loaded is None else (loaded.run, loaded.lease, loaded.tip)


__all__ = ["Conductor", "drive_to_rest", "hand_back", "leave_over", "let_go"]
