"""The runs that this process drives: who tells their drivers of news, where they may stop, and which of them is driven alone.

*News* (§10.12, §10.16). Other processes put commands into a live run's inbox; its owner is to see them within milliseconds, also in
mid-step. One task looks for all of them together whenever the store may have changed, and at the latest twice a second. What merely
exists is not looked at: the store names the runs with news, and a heap the ones whose deadline has passed.

*Safe points* (§10.13). Between super-steps a run may be left anywhere without cutting anything short. Inside one, a node stands at a safe
point when its next ctx call would begin and none is in flight: what it did so far is on record. A plain node, and a call, are let come to
their end first.

*Quarantine* (§10.6). A run whose owner has died, and before that another one without any progress in between, is a suspect: what it does
next may end this process too, with all that is driven beside it. Those would be counted as if the fault were theirs, and end with it. So a
suspect waits until the runs in hand have come to a rest, for a little while, and is driven alone until it gets on, or for a little while;
whoever comes meanwhile waits. Suspects take turns. What has waited has not been begun, and does not count."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from holdfast.core.errors import StoreError
from holdfast.ports import Clock, News, Store

LOOK_SECONDS = 0.5
REST_SECONDS = 0.002
FIRST_SECONDS = 0.005  # a run of one short step over a server has ended by then
AGAIN_SECONDS = 0.1
STALE = 64


class Driven(Protocol):
    """What the drivers have in common."""

    def nudge(self) -> None:
        """The run's inbox may have something."""

    def due(self) -> int | None:
        """When the earliest deadline of its open waits falls due. Another is told of by ``Drivers.expect``."""

    def drain(self) -> None:
        """Stop at the next safe boundary."""

    def broke(self, error: BaseException) -> None:
        """Nobody looks at its inbox any more: it must not go on as if somebody did."""


class Drivers:
    """Watches the inboxes of the runs that this owner drives, for as long as it drives any; ``left`` are those it has handed back."""

    def __init__(self, store: Store, clock: Clock, owner: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._drivers: dict[str, Driven] = {}
        self._expected: dict[str, int] = {}
        self._deadlines: list[tuple[int, str]] = []  # a heap of these, and of such as are no longer expected
        self._task: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
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
        if self._soon is None and (self._task is None or self._task.done()):
            # What ends before that has no task made for it, and no look.
            self._soon = asyncio.get_running_loop().call_later(FIRST_SECONDS, self._begin)
        try:
            yield
        finally:
            self._drivers.pop(run_id, None)
            self._expected.pop(run_id, None)
            if not self._drivers:
                self._closed.set()
            if not self._drivers and self._soon is not None:
                self._soon.cancel()
                self._soon = None
            if not self._drivers and self._task is not None:
                self._task.cancel()
                self._task = None

    def _begin(self) -> None:
        """Begins to watch."""
        self._soon = None
        self._task = asyncio.ensure_future(self._watch())
        self._task.add_done_callback(self._ended)

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
                await self._store.wait_for_change(LOOK_SECONDS, News.INBOX)
                for run_id in await self._store.marked(self._owner()):
                    self.nudge(run_id)
            except StoreError as e:
                if not e.passing:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
            self._fall_due(self._clock.now())
            await asyncio.sleep(REST_SECONDS)  # many changes at once are one look


class Standing(Protocol):
    """The part of an attempt that is looked at here: its calls in flight, and whether it stands still."""

    calls: int
    parked: bool


class SafePoints:
    """Watches the tasks of a super-step once somebody has ``asked``; ``reached`` is called when all that run stand at a boundary."""

    def __init__(self, reached: Callable[[], None]) -> None:
        self.asked = False
        self._reached = reached
        self._tasks: dict[str, set[Standing]] = {}

    def ask(self) -> None:
        self.asked = True
        self.look()

    def begin(self, task: str) -> None:
        """A task is entered; it counts as under way until what came of it is durable."""
        self._tasks[task] = set()

    def end(self, task: str) -> None:
        self._tasks.pop(task, None)
        self.look()

    def clear(self) -> None:
        self._tasks.clear()

    def enter(self, task: str, node: Standing) -> None:
        self._tasks.setdefault(task, set()).add(node)

    def leave(self, task: str, node: Standing) -> None:
        self._tasks.get(task, set()).discard(node)

    async def stand(self, node: Standing) -> None:
        """Stands still before a call is begun, until the scope is closed."""
        node.parked = True
        self.look()
        await asyncio.Event().wait()

    def look(self) -> None:
        if self.asked and self._tasks and all(nodes and all(n.parked and not n.calls for n in nodes) for nodes in self._tasks.values()):
            self._reached()


COMPANY_SECONDS = 2.0
"""For so long a suspect waits for the others to come to a rest; some rest late, and it is driven beside them."""
ALONE_SECONDS = 5.0
"""For so long it is driven alone; what has not ended its process by then goes on beside others."""


class Quarantine:
    """Which runs of this process are driven, and which of them alone."""

    def __init__(self) -> None:
        self._here: set[str] = set()
        self._suspects: list[str] = []
        self._moved = asyncio.Event()
        self._over: asyncio.TimerHandle | None = None

    async def enter(self, run_id: str, *, suspect: bool, waits: bool = True) -> None:
        """Returns when the run may be driven. ``waits``: whether it lets suspects go first; what is born here does not."""
        if not suspect:
            if waits and self._suspects:
                await self._until(lambda: not self._suspects, COMPANY_SECONDS + ALONE_SECONDS)
            self._here.add(run_id)
            return
        self._suspects.append(run_id)
        await self._until(lambda: self._suspects[0] == run_id, None)
        await self._until(lambda: not self._here, COMPANY_SECONDS)
        self._over = asyncio.get_running_loop().call_later(ALONE_SECONDS, self.clear, run_id)

    def clear(self, run_id: str) -> None:
        """The run has got on, or has lived long enough: it is driven beside others from now on."""
        if run_id in self._suspects:
            self._suspects.remove(run_id)
            self._here.add(run_id)
            self._tell()

    def leave(self, run_id: str) -> None:
        """The run is not driven here any more."""
        if run_id in self._suspects or run_id in self._here:
            if self._suspects[:1] == [run_id] and self._over is not None:
                self._over.cancel()
            self._suspects = [r for r in self._suspects if r != run_id]
            self._here.discard(run_id)
            self._tell()

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _until(self, ready: Callable[[], bool], seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not ready():
                    await self._moved.wait()
