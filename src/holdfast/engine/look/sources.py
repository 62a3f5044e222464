"""Reading a run's log and ring buffer further: for one reader, or once for all readers of the same run.

Theory of operation. A reader that follows a run asks for what comes after a place in the run's log and ring, and then for news of that place. Readers
of one server are mostly at the same few places. ``SharedSource`` gives all readers that ask for the same place between two changes of the store the
same answer. While they wait, one task polls for them: after a change it reads each place that somebody waits at once, and wakes the readers for whom
something has come. So a commit costs the same few reads for one listener and for two hundred, and changes of other runs do not wake idle listeners.

An answer is kept until the task sees the next change, which includes anything committed after the answer was read. If a reader whose answer
is older than the last change is about to wait, the source first checks its place again, so that nothing in between is missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

import msgspec

from holdfast.core.chunks import Stored
from holdfast.core.codec import Row
from holdfast.core.errors import HoldfastError, make_own
from holdfast.core.lease import Lease
from holdfast.core.masks import Mask
from holdfast.core.run import Run
from holdfast.engine.look.looker import Looker
from holdfast.handle import EventView
from holdfast.machine import note_error
from holdfast.ports import Store

POLL_SECONDS = 0.5
PAGE = 500
ABREAST = 16
MOST_VIEWS = 2 * PAGE


class Point(msgspec.Struct, frozen=True):
    """A reader's place: after event ``seq``, and after batch ``serial`` of the ring. If ``serial`` is None, the reader does not want the ring."""

    run_id: str
    tenant_id: str | None
    seq: int
    serial: int | None


class Seen(msgspec.Struct, frozen=True):
    """A run as it was read, what of it must be hidden, and the first page after a place, log before ring. ``turn``: how many changes were seen before."""

    run: Run
    lease: Lease
    hidden: Mask
    rows: list[Row]
    ring: list[Stored]
    turn: int = 0


class Source(Protocol):
    """What a follower reads from."""

    async def look(self, point: Point) -> Seen:
        """Reads what comes after a place.

        Raises:
            InvalidInput, RunNotFound: there is no such run here.
        """

    async def news(self, point: Point, seen: Seen, seconds: float) -> bool:
        """Waits for more after a place. Returns True when there may be more than ``seen``, False after this many seconds."""

    def view(self, run_id: str, seq: int) -> EventView | None:
        """Returns the view of an event that was made for another reader; None if there is none."""

    def keep_view(self, run_id: str, seq: int, view: EventView) -> None:
        """Keeps the view of an event for other readers."""


class DirectSource:
    """The source of one reader."""

    def __init__(self, store: Store, looker: Looker) -> None:
        self._store = store
        self._looker = looker

    async def look(self, point: Point) -> Seen:
        run, lease = await self._looker.find_row(point.run_id, point.tenant_id)
        rows = await self._store.rows(point.run_id, point.seq, PAGE)
        ring = [] if point.serial is None else await self._store.chunks(point.run_id, point.serial, PAGE)
        if rows and rows[-1].seq > run.version:  # the run has continued meanwhile, so its row is older than these events
            run, lease = await self._looker.find_row(point.run_id, point.tenant_id)
        return Seen(run, lease, await self._looker.mask(run), rows, ring)

    async def news(self, point: Point, seen: Seen, seconds: float) -> bool:
        await self._store.wait_for_change(seconds)
        return True

    def view(self, run_id: str, seq: int) -> EventView | None:
        return None

    def keep_view(self, run_id: str, seq: int, view: EventView) -> None:
        pass


class SharedSource:
    """One source for many readers, of one run or of many."""

    def __init__(self, store: Store, looker: Looker) -> None:
        self._store = store
        self._direct = DirectSource(store, looker)
        self._turn = 0
        self._kept: dict[Point, asyncio.Future[Seen]] = {}
        self._asked: dict[Point, asyncio.Future[bool]] = {}
        self._waiting: dict[Point, set[asyncio.Future[bool]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._views: dict[tuple[str, int], EventView] = {}

    async def look(self, point: Point) -> Seen:
        turn = self._turn
        if self._task is None:  # not kept, because no task would notice when the answer is out of date
            return msgspec.structs.replace(await self._direct.look(point), turn=turn)
        kept = self._kept.get(point)
        if kept is None:
            kept = self._kept[point] = asyncio.ensure_future(self._read(point, turn))
            kept.add_done_callback(note_error)
        return await asyncio.shield(kept)

    async def _read(self, point: Point, turn: int) -> Seen:
        return msgspec.structs.replace(await self._direct.look(point), turn=turn)

    async def news(self, point: Point, seen: Seen, seconds: float) -> bool:
        turn = seen.turn
        while self._task is not None and turn != self._turn:
            turn = self._turn
            if await self._came(point):
                return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiting.setdefault(point, set()).add(waiter)
        if self._task is None:
            self._task = loop.create_task(self._watch())
        timer = loop.call_later(seconds, _tell, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()
            here = self._waiting.get(point, set())
            here.discard(waiter)
            if not here:
                self._waiting.pop(point, None)

    def view(self, run_id: str, seq: int) -> EventView | None:
        return self._views.get((run_id, seq))

    def keep_view(self, run_id: str, seq: int, view: EventView) -> None:
        if len(self._views) >= MOST_VIEWS:
            self._views = dict(list(self._views.items())[PAGE:])
        self._views[run_id, seq] = view

    # -- polling for all waiters ----------------------------------------------------------------------

    async def _watch(self) -> None:
        """Polls for the waiters, as long as there are any."""
        try:
            await self._store.wait_for_change(0)  # a task's first call only sets what counts as a change from now on
            while self._waiting:
                self._turn += 1
                self._kept, self._asked = {}, {}
                points = list(self._waiting)
                for first in range(0, len(points), ABREAST):
                    await asyncio.gather(*map(self._tell_of, points[first : first + ABREAST]))
                await self._store.wait_for_change(POLL_SECONDS)
        except HoldfastError as e:
            for waiter in self._everybody():
                if not waiter.done():
                    waiter.set_exception(make_own(e))
        finally:
            self._task = None
            self._kept, self._asked = {}, {}
            for waiter in self._everybody():  # waiters added at the last moment look for themselves
                _tell(waiter, True)

    async def _tell_of(self, point: Point) -> None:
        """Wakes the waiters at a place if there is something after it."""
        if await self._came(point):
            for waiter in self._waiting.get(point, ()):
                _tell(waiter, True)

    async def _came(self, point: Point) -> bool:
        """Whether there is anything after a place."""
        if (asked := self._asked.get(point)) is None:
            asked = self._asked[point] = asyncio.ensure_future(self._ask(point))
            asked.add_done_callback(note_error)
        return await asyncio.shield(asked)

    async def _ask(self, point: Point) -> bool:
        try:
            return bool(await self._store.rows(point.run_id, point.seq, 1) or (point.serial is not None and await self._store.chunks(point.run_id, point.serial, 1)))
        except HoldfastError:
            return True  # wakes the readers, which get the same error and can report it

    def _everybody(self) -> Iterable[asyncio.Future[bool]]:
        return [waiter for waiters in self._waiting.values() for waiter in waiters]


def _tell(waiter: asyncio.Future[bool], news: bool) -> None:
    if not waiter.done():
        waiter.set_result(news)


__all__ = ["PAGE", "POLL_SECONDS", "DirectSource", "Point", "Seen", "SharedSource", "Source"]
