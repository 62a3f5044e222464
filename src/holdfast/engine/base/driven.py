"""Tells the drivers of this process that their runs' inboxes have news (§10.12, §10.16).

Other processes put commands into a live run's inbox; its owner is to see them within milliseconds, also in mid-step.
One task looks for all of them together whenever the store may have changed, and at the latest twice a second. What merely exists is
not looked at: the store names the runs with news, and a heap the ones whose deadline has passed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from holdfast.core.errors import StoreError
from holdfast.ports import Clock, Store

LOOK_SECONDS = 0.5
REST_SECONDS = 0.002
AGAIN_SECONDS = 0.1
STALE = 64


class Driven(Protocol):
    """What an attendant needs of a driver."""

    def nudge(self) -> None:
        """The run's inbox may have something."""

    def due(self) -> int | None:
        """When the earliest deadline of its open waits falls due. Another is told of by ``Attendant.expect``."""

    def drain(self) -> None:
        """Stop at the next safe boundary."""

    def broke(self, error: BaseException) -> None:
        """Nobody looks at its inbox any more: it must not go on as if somebody did."""


class Attendant:
    """Watches the inboxes of the runs that this owner drives, for as long as it drives any; ``left`` are those it has handed back."""

    def __init__(self, store: Store, clock: Clock, owner: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._drivers: dict[str, Driven] = {}
        self._expected: dict[str, int] = {}
        self._deadlines: list[tuple[int, str]] = []  # a heap of these, and of such as are no longer expected
        self._task: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self.draining = False
        self.left: list[str] = []

    @contextmanager
    def on(self, run_id: str, driver: Driven) -> Iterator[None]:
        """Attends to a run while it is driven."""
        self._drivers[run_id] = driver
        self.expect(run_id, driver.due())
        if self.draining:
            driver.drain()
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._watch())
            self._task.add_done_callback(self._ended)
        try:
            yield
        finally:
            self._drivers.pop(run_id, None)
            self._expected.pop(run_id, None)
            if not self._drivers:
                self._closed.set()
            if not self._drivers and self._task is not None:
                self._task.cancel()
                self._task = None

    def expect(self, run_id: str, due: int | None) -> None:
        """The next deadline of a run that is driven here; None: it has none."""
        if self._expected.get(run_id) == due:
            return
        if due is None:
            del self._expected[run_id]
            return
        self._expected[run_id] = due
        heapq.heappush(self._deadlines, (due, run_id))
        if len(self._deadlines) > 2 * len(self._expected) + STALE:  # of runs that have gone on meanwhile
            self._deadlines = [(at, run) for run, at in self._expected.items()]
            heapq.heapify(self._deadlines)

    def _fall_due(self, now: int) -> None:
        """Tells the drivers whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= now:
            due, run_id = heapq.heappop(self._deadlines)
            if self._expected.get(run_id) == due:
                del self._expected[run_id]
                self.nudge(run_id)

    def drives(self, run_id: str) -> bool:
        return run_id in self._drivers

    @property
    def driven(self) -> tuple[str, ...]:
        return tuple(self._drivers)

    def drain(self) -> None:
        """Every run that is driven here, and any that will be, is handed back at its next safe boundary (§10.13)."""
        self.draining = True
        for driver in list(self._drivers.values()):
            driver.drain()

    async def close(self, error: BaseException) -> None:
        """Stops every run that is driven here, each with this error, once what it acts on outside has come to its end or its grace."""
        self._closed = asyncio.Event()
        for driver in list(self._drivers.values()):
            driver.broke(error)
        if self._drivers:
            await self._closed.wait()

    def nudge(self, run_id: str) -> None:
        """Something was put into this run's inbox here."""
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.nudge()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A watch that broke for good takes its drivers with it: they would never hear of a cancel again (X-14)."""
        if not task.cancelled() and (error := task.exception()) is not None:
            for driver in list(self._drivers.values()):
                driver.broke(error)

    async def _watch(self) -> None:
        """A store that fails for a while is asked again; the drivers meet its error with their next commit."""
        while self._drivers:
            try:
                await self._store.wait_for_change(LOOK_SECONDS)
                for run_id in await self._store.marked(self._owner()):
                    self.nudge(run_id)
            except StoreError as e:
                if not e.passing:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
            self._fall_due(self._clock.now())
            await asyncio.sleep(REST_SECONDS)  # many changes at once are one look
