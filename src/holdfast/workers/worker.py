"""A worker: claims due runs and drives each to its next rest, many at once, until it is told to drain (§10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.core.errors import LeaseLost, Rejected, UsageError
from holdfast.core.run import Run
from holdfast.engine.base.services import Services, broke_off
from holdfast.engine.drive.driver import loaded_driver
from holdfast.engine.drive.release import driven, let_go
from holdfast.ports import Claim
from holdfast.workers.sweeper import Sweeper

IDLE_SECONDS = 0.5
STALL_SECONDS = 1.0
REFUSED_US = 60_000_000  # a run whose code is not here is left to others for so long before it is looked at again


class Report(msgspec.Struct, frozen=True):
    """What came of one claim: the run as it rests, or the error that stopped the driving.

    With ``schedule_id`` there is no run: this schedule's slot has come and could not be fired.
    """

    run_id: str
    run: Run | None
    error: BaseException | None = None
    schedule_id: str | None = None


class Worker:
    """Claims and drives. A wake-up only shortens the wait: what is claimable is found by query (§10.16).

    It fires schedules too, unless told not to (§10.15). ``on_report`` is called after each claim's end. An error of the store
    ends the worker, it never goes on half-dead (X-14).
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
    ) -> None:
        self._services = services
        self._queues = tuple(queues)
        self._concurrency = concurrency
        self._on_report = on_report
        self._until_idle = until_idle
        self._sweeper = Sweeper(services, self._queues, self._unfired) if schedules else None
        self._running: set[asyncio.Task[Report]] = set()
        self._draining = asyncio.Event()
        self._news = asyncio.Event()

    def drain(self) -> None:
        """Stops claiming; what runs is finished to its next rest (§10.13)."""
        self._draining.set()
        self._news.set()

    async def _watch(self) -> None:
        """Looks out for changes in one task that stays: a store tells each task what it has not yet been told."""
        while True:
            await self._services.store.wait_for_change(IDLE_SECONDS)
            self._news.set()

    async def run(self) -> None:
        """Works until drained; with ``until_idle`` also until nothing is due.

        Raises:
            StoreError: the store failed; nothing was reported as done that is not durable.
        """
        services = self._services
        watch = asyncio.ensure_future(self._watch())
        watch.add_done_callback(lambda _: self._news.set())
        try:
            while not self._draining.is_set():
                more = await self._sweeper.sweep() if self._sweeper is not None else False
                room = await self._room()
                skills = services.skills
                claims = await services.store.claim(services.owner, self._queues, skills.ids, limit=room, shapes=skills.shapes) if room > 0 else []
                claims += await self._reclaimed(room - len(claims)) if room > 0 else []
                for claim in claims:
                    services.driving.add(claim.run_id)
                    task = asyncio.ensure_future(self._one(claim))
                    task.add_done_callback(lambda _: self._news.set())
                    self._running.add(task)
                if not claims and not more and not self._running and self._until_idle and room > 0:
                    return
                await self._pause(bool(claims) or more)
                if watch.done():
                    watch.result()  # the store fails: it says so here, and the worker ends
        except asyncio.CancelledError:
            for task in self._running:  # what is under way is left as its last commit made it; the close hands it back
                task.cancel()
            raise
        finally:
            watch.cancel()
            if self._running:
                await asyncio.wait(self._running)
            await self._reap()

    async def _room(self) -> int:
        """How many more runs may be claimed. Whoever cannot confirm its own lease takes none: they would be lost at the first
        commit (§10.3).

        Raises:
            LeaseLost: this owner is no longer known, so that waiting is no use (X-14).
        """
        room = self._concurrency - len(self._running)
        if room <= 0 or await self._services.holds():
            return room
        if isinstance(error := self._services.failed(), LeaseLost):
            raise error
        return 0

    async def _reclaimed(self, room: int) -> list[Claim]:
        """Runs that are held here and that nobody drives, because the store failed under their driver, or the lease was not
        safe for a while: taken up again, under a new fence. Else they would be nobody's while this process lives (X-09)."""
        services, out = self._services, []
        now = services.clock.monotonic()
        due = [r for r, at in services.stalled.items() if at <= now and r not in services.driving]
        for run_id in due[: max(0, room)]:
            found = await services.store.get(run_id)
            if found is not None and found[1].owner == services.owner:
                out += await services.store.claim(services.owner, (), None, limit=1, run_id=run_id)
            del services.stalled[run_id]
        return out

    async def _pause(self, busy: bool) -> None:
        """Waits for a change, a finished run or the drain; then looks at what ended."""
        if busy and len(self._running) < self._concurrency:
            await asyncio.sleep(0)
        else:
            await self._news.wait()
            self._news.clear()
        await self._reap()

    async def _reap(self) -> None:
        """Tells what came of the claims that ended.

        Raises:
            StoreError: of the first that met one; the others met the same store.
        """
        failed: BaseException | None = None
        for task in [t for t in self._running if t.done()]:
            self._running.discard(task)
            if task.cancelled():
                continue
            if (error := task.exception()) is not None:
                failed = failed or error
                continue
            await self._tell(task.result())
        if failed is not None:
            raise failed

    async def _tell(self, report: Report) -> None:
        if self._on_report is not None:
            told = self._on_report(report)
            if told is not None:
                await told

    async def _unfired(self, schedule_id: str, error: Exception) -> None:
        await self._tell(Report("", None, error, schedule_id))

    async def _one(self, claim: Claim) -> Report:
        """Drives one claim. What concerns the run alone is a report; what concerns the store ends the worker."""
        services = self._services
        try:
            loaded = await services.threads.load(claim.run_id)
            assert loaded is not None, "a claimed run is there"
            try:
                driver = loaded_driver(services, loaded, claim)
            except (Rejected, UsageError) as e:
                await let_go(services, claim.run_id, claim.fence, e, due=services.store.now() + REFUSED_US)
                return Report(claim.run_id, None, e)
            with services.attendant.on(claim.run_id, driver):
                run = await driven(services, driver, claim, loaded.inbox)
            return Report(claim.run_id, run)
        except asyncio.CancelledError as e:
            await asyncio.shield(let_go(services, claim.run_id, claim.fence, e))
            raise
        except Exception as e:
            await let_go(services, claim.run_id, claim.fence, e)
            if broke_off(e):
                services.stalled[claim.run_id] = services.clock.monotonic() + STALL_SECONDS
            return Report(claim.run_id, None, e)
        finally:
            services.driving.discard(claim.run_id)
            services.streams.end(claim.run_id)
