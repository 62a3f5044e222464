"""A worker: claims due runs and drives each to its next rest, many at once, until it is told to drain (§10)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec

from holdfast import logs, meters
from holdfast.core import events as ev
from holdfast.core.errors import Conflict, HoldfastError, LeaseLost, Rejected, StoreError, UsageError, make_own
from holdfast.core.lease import counter
from holdfast.core.offers import NoWorker, Offer, Shape
from holdfast.core.run import Run
from holdfast.core.status import NOT_ENDED
from holdfast.engine.base import failures
from holdfast.engine.base.journal import Draft
from holdfast.engine.base.obstacles import Sight, lacking
from holdfast.engine.base.services import Services, may_be_held_still
from holdfast.engine.drive.conductor import drive_to_rest, leave_over, let_go
from holdfast.engine.drive.driver import Driver, load_driver
from holdfast.engine.drive.lost_commits import surface
from holdfast.outbox.dispatcher import Dispatcher
from holdfast.ports import Claim, Claims, Loaded, News, RunFilter, offers_untaken
from holdfast.workers.sweeper import Sweeper

IDLE_SECONDS = 0.5
PASS_SECONDS = 5.0
MANY = 500
STALL_SECONDS = 1.0
BACK_OFF_SECONDS = 0.5  # after the first failure of the store; doubled after each further one, up to MOST_SECONDS
MOST_SECONDS = 30.0
SOUND_SECONDS = 5.0  # work that has run this long without an error counts as recovered
AHEAD = 4  # of many runs that are claimed together, this many are begun first, so that their steps need not wait until the others are loaded
AHEAD_TURNS = 10  # turns of the event loop after which those runs have reached their steps, if commits are quick
VAIN_SECONDS, MOST_VAIN_SECONDS = 0.002, 0.1  # how long a worker whose claim found nothing leaves the next free place to other workers
CALM_SECONDS = 1.0
REFUSED_US = 60_000_000  # a run whose code is not here is left to others for this long before it is looked at again


log = logs.logger("holdfast.worker")


class Report(msgspec.Struct, frozen=True):
    """The result of one claim: the run at rest, or the error that stopped its execution.

    With ``schedule_id`` there is no run: the slot of this schedule has come and could not be fired. With neither a run nor a schedule, the store
    fails, and the worker backs off.
    """

    run_id: str
    run: Run | None
    error: BaseException | None = None
    schedule_id: str | None = None
    passed: NoWorker | None = None


class Trouble:
    """Counts how often the store failed in a row, and computes how long a worker backs off from it.

    A claim that works proves nothing about commits that fail, so each kind of success resets only its own kind of failure.
    """

    def __init__(self, dice: Callable[[], int]) -> None:
        self._dice = dice
        self.error: StoreError | None = None
        self._times = 0
        self._driving = False

    def fail(self, error: StoreError, *, driving: bool) -> None:
        """Counts a failure: of a run if ``driving``, else of the worker itself."""
        self.error = error
        self._times += 1
        self._driving = driving

    def work(self, *, driving: bool) -> None:
        if driving or not self._driving:
            self.error, self._times = None, 0

    def seconds(self) -> float:
        """Returns the next pause in seconds, with jitter, so that many workers do not come back at once."""
        u = self._dice() % 1_000 / 1_000
        pause: float = BACK_OFF_SECONDS * 2 ** min(self._times - 1, 10)
        return min(MOST_SECONDS, pause) * (0.5 + u)


class Patience:
    """How long a worker leaves what others release to other workers: at first not at all, then longer after each claim in vain. Of many workers
    that wait for a limit, only one gets the place that becomes free; the pauses have random lengths, so that the workers do not all poll at once."""

    def __init__(self, dice: Callable[[], int]) -> None:
        self._dice = dice
        self._vain = 0
        self._freed = -math.inf

    def free(self, now: float) -> float:
        """Returns the seconds to wait after something was released at this moment."""
        if now - self._freed > CALM_SECONDS:
            self._vain = 0
        self._freed = now
        return self.seconds()

    def look(self, *, in_vain: bool) -> None:
        self._vain = self._vain + 1 if in_vain else 0

    def seconds(self) -> float:
        """Returns a random part of the pause."""
        most: float = VAIN_SECONDS * 2 ** min(self._vain - 1, 10)
        return 0.0 if not self._vain else min(MOST_VAIN_SECONDS, most) * (self._dice() % 1_000 / 1_000)


class Worker:
    """Claims runs and drives them. A wake-up only shortens the wait: what can be claimed is found by a query (§10.16).

    It also fires schedules, unless told not to (§10.15). ``on_report`` is called at the end of each claim. If the store fails for
    a while, the worker backs off visibly: ``degraded`` holds the error, which is also logged and reported. If the store is broken for good, or closed,
    the worker ends, because it must not continue without a working store (X-14). With ``until_idle`` any error ends it, because a caller waits for the result.
    """

    def __init__(
        self,
        services: Services,
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 10,
        on_report: Callable[[Report], Awaitable[None] | None] | None = None,
        until_idle: bool = False,
        schedules: bool = True,
        upgrade: bool = False,
    ) -> None:
        self._services = services
        self._queues = tuple(queues)
        self._concurrency = concurrency
        services.pool.size = max(services.pool.size, concurrency)
        self._on_report = on_report
        self._until_idle = until_idle
        self._upgrade = upgrade
        self._passed: set[str] = set()
        self._offered: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._looked = -math.inf
        self._sweeper = Sweeper(services, self._queues, self._note_unfired) if schedules else None
        self._running: set[asyncio.Task[Report | None]] = set()
        self._draining = asyncio.Event()
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()
        self._news = asyncio.Event()
        self._made_room = asyncio.Event()  # a run that was driven here has ended
        self._looks = True  # there may be runs to claim that the last claim has not found
        self._patience = Patience(services.entropy)
        self._later: tuple[float, asyncio.Task[None]] | None = None
        self._trouble = Trouble(services.entropy)
        self._beside = Trouble(services.entropy)
        self._gives = offers_untaken(services.store)
        self._refused = False  # taking a run by its first commit was refused: another process has taken the run or put a command into its inbox
        self._doubt = True  # this owner may hold runs that nobody drives, from a claim whose answer was lost

    @property
    def degraded(self) -> StoreError | None:
        """The error from which this worker, or what goes on beside it, backs off now; None if there is none."""
        return self._trouble.error or self._beside.error

    def drain(self) -> None:
        """Stops claiming. Runs in progress are driven to their next rest (§10.13)."""
        self._draining.set()
        self._news.set()

    def _look(self) -> None:
        """Makes this worker look for runs to claim at once."""
        self._looks = True
        self._news.set()

    async def beside(self, work: Callable[[], Awaitable[object]]) -> None:
        """Keeps some other work going beside the runs (sending intents), with the worker's own back-off: if a passing failure of the store ends
        the work, it is started again after a pause, visibly.

        Raises:
            StoreError: the store is broken for good, or was closed.
        """
        while not self._draining.is_set():
            going = asyncio.ensure_future(work())
            try:
                await asyncio.wait({going}, timeout=SOUND_SECONDS)
                if not going.done():
                    self._beside.work(driving=True)
                await going
                return
            except StoreError as e:
                if not e.passing:
                    raise
                self._beside.fail(e, driving=False)
            finally:
                going.cancel()
                await asyncio.wait({going})
            await self._back_off(self._beside)

    async def close(self) -> None:
        """Ends the worker now. Runs in progress are handed back as their last commit left them."""
        self._closing.set()
        self.drain()
        await self._ended.wait()

    async def _watch(self) -> None:
        """Watches for changes in one task that stays, because a store tells each task what it has not told this task yet. Makes the worker look at once for
        runs that have become due, and for what others release, such as the place of a limit, as soon as it is this worker's turn."""
        clock = self._services.clock
        while True:
            pause = 0.0
            if len(self._running) >= self._concurrency:
                await self._wait_for_room()
                continue
            try:
                if await self._services.store.wait_for_change(IDLE_SECONDS, News.DUE | News.FREED) == News.FREED:
                    pause = self._patience.free(clock.monotonic())
            except StoreError as e:
                if not e.passing:
                    raise
                await clock.sleep(IDLE_SECONDS)
            if pause:
                self._look_in(pause)
            else:
                self._look()
                await asyncio.sleep(0)  # lets the look begin before this task waits again

    async def _wait_for_room(self) -> None:
        """Waits until this worker may take another run; changes meanwhile are still news afterwards. Wakes the worker now and then for its other work."""
        self._made_room.clear()
        try:
            async with asyncio.timeout(IDLE_SECONDS):
                await self._made_room.wait()
        except TimeoutError:
            self._look()

    def _look_in(self, seconds: float) -> None:
        """Makes this worker look after this many seconds, unless something makes it look earlier."""

        async def look() -> None:
            await self._services.clock.sleep(seconds)
            self._later = None
            self._look()

        at = self._services.clock.monotonic() + seconds
        if self._later is None or at < self._later[0]:
            self._look_no_more()
            self._later = (at, asyncio.ensure_future(look()))

    def _look_no_more(self) -> None:
        later, self._later = self._later, None
        if later is not None:
            later[1].cancel()

    async def run(self) -> None:
        """Works until drained, or with ``until_idle`` until nothing is due.

        Raises:
            StoreError: the store is broken for good, or was closed; nothing was reported as done that is not durable.
        """
        watch = asyncio.ensure_future(self._watch())
        watch.add_done_callback(lambda _: self._news.set())
        try:
            with self._services.leftovers.attend(self._note_doubt):
                await self._work(watch)
        except asyncio.CancelledError:
            self._stop()  # runs in progress stay as their last commit left them; closing the runtime hands them back
            raise
        finally:
            watch.cancel()
            self._look_no_more()
            if self._closing.is_set():
                self._stop()
            if self._running:
                await asyncio.wait(self._running)
            self._ended.set()
            if self._doubt or self._services.stalled:
                leave_over(self._services)  # this worker will not take them up again
            await self._reap()

    async def _work(self, watch: asyncio.Future[None]) -> None:
        """Claims and drives until drained, then waits for the runs in progress."""
        while not self._draining.is_set():
            try:
                await self._offer()
                found = await self._turn()
            except StoreError as e:
                self._fail(e)
            else:
                if found is None:
                    return
                self._trouble.work(driving=not self._running and not self._services.stalled)
                await self._pause(found)
            if watch.done():
                watch.result()  # the store has failed for good: raises, which ends the worker
            if self._trouble.error is not None:
                await self._back_off(self._trouble)
        while self._running and not self._closing.is_set():
            await self._pause(False)

    def _stop(self) -> None:
        for task in self._running:
            failures.cancel(task)

    async def _turn(self) -> bool | None:
        """Fires what is due, claims as many runs as there is room for, and begins to drive them. Returns whether there may be more to claim at once: a claim that
        left room found everything, and there will be news of what comes later. Returns None with ``until_idle``, once nothing is due."""
        services = self._services
        await surface(services)
        if self._doubt:
            await self._note_undriven()
        more = await self._sweeper.sweep() if self._sweeper is not None else False
        room = await self._room()
        asked_at = time.perf_counter() if meters.METERS else 0.0
        looks = room > 0 and (self._looks or more or self._until_idle)
        if looks:
            self._look_no_more()
            self._looks = False
        async with services.claiming:
            found = await self._claim(room) if looks else None
            claims = [] if isinstance(found, Loaded) else await self._begin(found, room)
        if asked_at and looks:
            meters.meter_claim(time.perf_counter() - asked_at)
        if isinstance(found, Loaded):
            self._refused, begun = True, asyncio.Event()  # assumed until the commit succeeds
            claim = Claim(found.run.run_id, found.lease.fence + 1)
            self._start(claim.run_id, self._one(claim, found, begun)).add_done_callback(lambda _: begun.set())
            await begun.wait()  # until the run is taken it is due, and the next claim would find it again
            self._looks = self._looks or self._refused
            return self._refused
        self._looks = self._looks or (looks and len(claims) >= room)
        if looks and not claims:
            await self._pass_over()
        if not claims and not more and not self._running and self._until_idle and room > 0:
            return None
        return len(claims) >= room > 0 or more

    async def _begin(self, asked: Claims | None, room: int) -> list[Claim]:
        """Begins to drive the claimed runs (``asked``; None if no claim was made) and runs left to this owner. Returns all of them."""
        found = asked if asked is not None else Claims()
        if asked is not None:
            self._patience.look(in_vain=not found)
        if found.again is not None and len(found) < room:
            self._look_in(max(0, found.again - self._services.store.now()) / 1_000_000 + self._patience.seconds())
        claims = found + (await self._reclaim(room - len(found)) if room > 0 else [])
        ahead = asyncio.ensure_future(_turns(AHEAD_TURNS)) if len(claims) > AHEAD else None
        for n, claim in enumerate(claims):
            self._start(claim.run_id, self._one(claim, after=None if n < AHEAD else ahead))
        return claims

    async def _claim(self, room: int) -> Claims | Loaded:
        """Claims what this worker takes next. A lone run that has never begun may be returned unclaimed, to be taken by its first commit (§1.11)."""
        services, store = self._services, self._services.store
        skills, shapes = services.skills.ids, services.list_shapes(upgrade=self._upgrade)
        try:
            if self._gives and not self._running and not self._refused and offers_untaken(store):
                return await store.claim_or_load(services.owner, self._queues, skills, limit=room, shapes=shapes, limits=services.limits)
            self._refused = False
            return await store.claim(services.owner, self._queues, skills, limit=room, shapes=shapes, limits=services.limits)
        except LeaseLost:
            if (closed := services.drivers.taken.closed) is not None:
                raise make_own(closed) from None  # the runtime was closed meanwhile, so this is no longer an owner
            raise

    def _start(self, run_id: str, driving: Coroutine[Any, Any, Report | None]) -> asyncio.Task[Report | None]:
        self._services.driving.add(run_id)
        task = asyncio.ensure_future(driving)
        failures.serve(task)
        task.add_done_callback(lambda _: self._news.set())
        self._running.add(task)
        return task

    def _fail(self, error: StoreError) -> None:
        """Notes that the store failed. Raises the error if waiting is no use, or if a caller waits for the result."""
        if not error.passing or self._until_idle:
            raise error
        self._trouble.fail(error, driving=False)
        self._doubt = self._looks = True

    def _note_doubt(self) -> None:
        """Notes that this owner may hold runs that nobody here drives."""
        self._doubt = True
        self._look()

    async def _note_undriven(self) -> None:
        """Notes the runs that this owner holds and nobody here drives, so that they are reclaimed."""
        services = self._services
        for run, _ in await services.store.runs(RunFilter(owner=services.owner, limit=500)):
            if run.run_id not in services.driving and not run.terminal:
                services.stalled.setdefault(run.run_id, services.clock.monotonic())
        self._doubt = False

    async def _back_off(self, trouble: Trouble) -> None:
        """Stays away from the store for a while and says so; runs in progress go on meanwhile. A drain ends the pause."""
        error, seconds = trouble.error, trouble.seconds()
        assert error is not None
        log.warning("the store failed, trying again in %.1f s: %s", seconds, error.line())
        await self._tell(Report("", None, error))
        rest = asyncio.ensure_future(self._services.clock.sleep(seconds))
        drain = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({rest, drain}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            rest.cancel()
            drain.cancel()
        await self._reap()

    async def _offer(self) -> None:
        """Tells the store what this worker works on, and again when skills were added or when what is sent from here has changed."""
        services = self._services
        if self._offered != (now := (services.shapes, services.sends)):
            self._offered, self._looks = now, True
            await services.store.offer(services.owner, self.offer)

    @property
    def offer(self) -> Offer:
        """What this worker works on, and what is sent beside it."""
        services = self._services
        shapes = [Shape(p.id, p.version, f, services.folder) for p in services.skills for f in (p.fingerprint, *p.migrates)]
        return Offer(self._queues, tuple(shapes), self._upgrade, dict(services.limits), services.sends)

    async def _pass_over(self) -> None:
        """Reports, once for each due run, that no living worker of its queue can take it (§10.11)."""
        services, now = self._services, self._services.clock.monotonic()
        if now - self._looked < PASS_SECONDS and not self._until_idle:
            return
        self._looked = now
        sight = Sight(services)
        for run, lease in await services.store.runs(RunFilter(statuses=NOT_ENDED, limit=MANY)):
            mine = not self._queues or run.queue in self._queues
            if mine and run.run_id not in self._passed and (found := await lacking(services.store, run, lease, sight)) is not None:
                self._passed.add(run.run_id)
                await self._tell(Report(run.run_id, None, passed=found))

    async def _room(self) -> int:
        """Returns how many more runs may be claimed. While the store fails runs in progress, that is one in total, as a try. A worker that cannot confirm its own
        lease claims none: the runs would be lost at the first commit (§10.3).

        Raises:
            LeaseLost: this owner is no longer known, so waiting is no use (X-14).
        """
        most = self._concurrency if self._trouble.error is None else 1
        room = most - len(self._running)
        if room <= 0 or await self._services.holds():
            return room
        if isinstance(error := self._services.failed(), LeaseLost):
            raise error
        return 0

    async def _reclaim(self, room: int) -> list[Claim]:
        """Claims again, under a new fence, the runs that are held here and that nobody drives, because the store failed under their driver or the lease
        was not safe for a while. Otherwise nobody could continue them while this process lives (X-09)."""
        services, out = self._services, list[Claim]()
        now = services.clock.monotonic()
        due = [r for r, at in services.stalled.items() if at <= now and r not in services.driving]
        for run_id in due[: max(0, room)]:
            found = await services.store.get(run_id)
            if found is not None and found[1].owner == services.owner:
                out += await services.store.claim(services.owner, (), None, limit=1, run_id=run_id)
            services.stalled.pop(run_id, None)
        return out

    async def _pause(self, busy: bool) -> None:
        """Waits for a change, a finished run or the drain; then handles the claims that ended."""
        if busy and len(self._running) < self._concurrency:
            await asyncio.sleep(0)
        else:
            await self._news.wait()
            self._news.clear()
        await self._reap()

    async def _reap(self) -> None:
        """Reports the results of the claims that ended."""
        for task in [t for t in self._running if t.done()]:
            self._running.discard(task)
            self._made_room.set()
            if task.cancelled():
                continue
            if (report := task.result()) is None:
                continue
            if not isinstance(report.error, StoreError):
                self._trouble.work(driving=True)
            elif report.error.passing and not self._until_idle:
                self._trouble.fail(report.error, driving=True)
            await self._tell(report)

    async def _tell(self, report: Report) -> None:
        if self._on_report is not None:
            told = self._on_report(report)
            if told is not None:
                await told

    async def _note_unfired(self, schedule_id: str, error: Exception) -> None:
        await self._tell(Report("", None, error, schedule_id))

    async def _one(self, claim: Claim, found: Loaded | None = None, begun: asyncio.Event | None = None, after: asyncio.Future[None] | None = None) -> Report | None:
        """Drives one claim and returns its result as a report. Only a cancel from outside ends the worker. ``after``: a future to wait for first.

        ``found``: a run that is not claimed yet and is to be taken by its first commit; ``begun`` is set after that commit. Returns None if that commit was
        refused, or if the run cannot be begun in this way: it is then claimed like any other.
        """
        services = self._services
        try:
            if after is not None:
                await asyncio.shield(after)
            loaded = found or await services.threads.load(claim.run_id)
            assert loaded is not None, "a claimed run is there"
            try:
                driver = load_driver(services, loaded, claim, upgrade=self._upgrade)
            except HoldfastError as e:
                if found is not None:
                    return None
                if not isinstance(e, Rejected | UsageError):
                    raise
                await let_go(services, claim.run_id, claim.fence, e, due=services.store.now() + REFUSED_US)
                return Report(claim.run_id, None, e)
            with services.drivers.on(claim.run_id, driver, loaded.run.wake_at if loaded.run.waits else None):
                if begun is not None and not await self._take(driver, claim, loaded.run):
                    return None
                if begun is not None:
                    begun.set()
                run = await drive_to_rest(services, driver, None if begun is not None else claim, loaded.inbox)
            return Report(claim.run_id, run)
        except asyncio.CancelledError as e:
            await asyncio.shield(let_go(services, claim.run_id, claim.fence, e))
            raise
        except Exception as e:
            with contextlib.suppress(HoldfastError):
                await let_go(services, claim.run_id, claim.fence, e)
            if may_be_held_still(e):
                services.stalled[claim.run_id] = services.clock.monotonic() + STALL_SECONDS
            return Report(claim.run_id, None, e)
        finally:
            services.driving.discard(claim.run_id)

    async def _take(self, driver: Driver, claim: Claim, run: Run) -> bool:
        """Takes a run and begins it, in one commit. False if that was refused, because another process has taken the run or put a command into its inbox."""
        services, program, carried_values = self._services, self._services.skills.for_run(run, upgrade=self._upgrade), None
        if program.carried:
            try:
                carried_values = await services.threads.ahead(program, run.tenant_id, run.thread_id)
            except HoldfastError:  # the process that claims the run gets this error again, and records it on the run
                return False
            if carried_values is None:
                return False
        try:
            await driver.begin(Draft(facts=[ev.RunClaimed(services.owner, counter(claim.fence))]), carried_values)
        except Conflict:
            return False
        self._refused = False
        return True


async def _turns(count: int) -> None:
    """Waits for a number of turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def run_worker(
    made: Callable[[], Worker], sender: Dispatcher | None, sends: Callable[[bool], contextlib.AbstractAsyncContextManager[None]], working: set[Worker],
    *, stop: asyncio.Event | None, until_idle: bool,
) -> None:
    """Runs a worker, and a sender of intents beside it, until ``stop`` is set, or with ``until_idle`` until nothing is due for either.

    Meanwhile ``sends`` says that this process sends, and ``working`` contains the worker.
    """
    worker, stopping = made(), asyncio.Event()
    sending = asyncio.ensure_future(worker.beside(lambda: sender.run(stop=stopping))) if sender is not None and not until_idle else None

    async def drain() -> None:
        waits = [asyncio.ensure_future(stop.wait())] if stop is not None else []
        try:
            await asyncio.wait([*waits, *([sending] if sending is not None else [])], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        worker.drain()  # stop was set; or the dispatcher had an error that does not pass, and the worker must not continue without a sender

    watcher = asyncio.ensure_future(drain()) if stop is not None or sending is not None else None
    working.add(worker)
    try:
        async with sends(sending is not None):
            await worker.run()
        while until_idle and sender is not None and await sender.run(stop=stop, until_idle=True) and not (stop is not None and stop.is_set()):
            await made().run()
    except BaseException:
        if sending is not None:
            sending.cancel()
        raise
    finally:
        working.discard(worker)
        if watcher is not None:
            watcher.cancel()
        stopping.set()
        if sending is not None:
            await asyncio.wait([sending])
    if sending is not None:
        sending.result()


__all__ = ["Report", "Trouble", "Worker"]
