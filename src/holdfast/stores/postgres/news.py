"""Wake-ups over PostgreSQL: polling is the truth, a notification only shortens it (§10.16).

Whoever waits makes one task of this store poll for all: a number that moves with every write of the server, asked often for a second
after news and seldom after that. Where the URL leads to the server itself, a connection listens besides; whoever writes something others
may wait for says so at most every ``QUIET`` seconds, in a statement of its own. A listener that is cut or half-open costs nothing but
its hints; it proves that it is heard by a heartbeat in its own session, and is made anew when it is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable

import psycopg

from holdfast.core.errors import HoldfastError
from holdfast.ports import News
from holdfast.stores.changes import Changes
from holdfast.stores.postgres.connection import LAST_ANSWER, Connections, Place, connect

ACTIVE_POLL, IDLE_POLL = 0.010, 0.040
CROWDED_POLL, LONGEST_POLL = 0.2, 0.5
SHARE = 10  # on a crowded server: looks take at most so small a part of the time
ACTIVE_FOR = 1.0
QUIET = 0.020
HEARTBEAT = 5.0
CHANNEL = "holdfast_news"


class Hearing:
    """The waiters of one store, and the tasks that look out for them. Everything belongs to the loop that opened the store."""

    def __init__(self, place: Place, look: Callable[[], Awaitable[int]], crowded: Callable[[], bool] = lambda: False) -> None:
        self._place = place
        self._look = look
        self._crowded = crowded
        self._changes = Changes()
        self._pool: Connections | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._wanted = asyncio.Event()
        self._asking = asyncio.Lock()
        self._waiting = 0
        self._moved_at = 0.0
        self._saying: asyncio.Task[None] | None = None

    def open(self, pool: Connections) -> None:
        self._pool = pool
        self._changes.reopen()
        self._wanted = asyncio.Event()
        self._asking = asyncio.Lock()

    async def close(self) -> None:
        """Lets everybody go. A question that is under way is answered first: to break it off costs its connection, and a warning."""
        self._pool, asking = None, False
        with contextlib.suppress(TimeoutError):
            asking = await asyncio.wait_for(self._asking.acquire(), LAST_ANSWER)
        tasks, self._tasks, self._saying = [*self._tasks, *([self._saying] if self._saying is not None else [])], [], None
        for task in tasks:
            with contextlib.suppress(RuntimeError):  # its loop has been closed
                task.cancel()
        if asking:
            self._asking.release()
        self._changes.close()
        here = [t for t in tasks if t.get_loop() is asyncio.get_running_loop() and t is not asyncio.current_task()]
        if here:  # a question that was broken off closes its connection, which takes a moment
            await asyncio.wait(here, timeout=LAST_ANSWER)

    def tell(self) -> None:
        """Something of interest to others was written here: those who wait here are woken, others are told once it is quiet."""
        self._moved_at = time.monotonic()
        self._changes.tell()
        if self._place.listen is not None and self._pool is not None and (self._saying is None or self._saying.done()):
            self._saying = asyncio.ensure_future(self._say(self._pool))

    async def _say(self, pool: Connections) -> None:
        await asyncio.sleep(0)
        try:
            async with self._asking, pool.held() as db:
                await db.execute(f"NOTIFY {CHANNEL}")
        except (psycopg.Error, OSError):
            return  # a hint that was not given: polling finds it
        await asyncio.sleep(QUIET)
        if self._moved_at > time.monotonic() - QUIET and self._pool is pool:
            self._saying = asyncio.ensure_future(self._say(pool))

    async def wait(self, timeout: float, about: News) -> News:
        """Returns at once if anything of it changed since this task's last return, else at the next change or the timeout; gives what changed."""
        if self._pool is not None and not self._tasks:
            self._tasks.append(asyncio.ensure_future(self._poll()))
            if self._place.listen is not None:
                self._tasks.append(asyncio.ensure_future(self._listen(self._place.listen)))
        self._waiting += 1
        self._wanted.set()
        try:
            return await self._changes.wait(timeout, about)
        finally:
            self._waiting -= 1

    async def _poll(self) -> None:
        last: int | None = None
        took = 0.0
        while True:
            if not self._waiting:
                self._wanted.clear()
                await self._wanted.wait()
            await asyncio.sleep(self._pause(took))
            began = time.monotonic()
            try:
                async with self._asking:
                    number = await self._look()
                took = time.monotonic() - began
            except (psycopg.Error, OSError, HoldfastError):
                await asyncio.sleep(0.2 * (0.5 + random.random()))
                last = None
                self._changes.tell()  # whoever waits looks for itself, and meets the error
                continue
            if number != last:
                first, last = last is None, number
                if not first:
                    self._changes.tell()

    def _pause(self, took: float) -> float:
        """Seconds to the next look. Many processes share a crowded server: what one of them writes is news to all, so each looks seldom."""
        if self._crowded():
            return min(max(CROWDED_POLL, SHARE * took), LONGEST_POLL) * (0.5 + random.random() / 2)
        active = time.monotonic() - self._moved_at < ACTIVE_FOR
        return (ACTIVE_POLL if active else IDLE_POLL) * (0.9 + 0.2 * random.random())

    async def _listen(self, conninfo: str) -> None:
        wait = 0.1
        while True:
            if self._crowded():  # others need the connection more: polling finds what is new
                await asyncio.sleep(HEARTBEAT * (0.5 + random.random()))
                continue
            try:
                db = await connect(self._place, conninfo=conninfo)
            except (psycopg.Error, OSError):
                await asyncio.sleep(wait * (0.5 + random.random()))
                wait = min(wait * 2, 5.0)
                continue
            try:
                await db.execute(f"LISTEN {CHANNEL}")
                wait = 0.1
                while True:
                    async for _ in db.notifies(timeout=HEARTBEAT, stop_after=1):
                        self._moved_at = time.monotonic()
                        self._changes.tell()
                    async with asyncio.timeout(HEARTBEAT), self._asking:
                        if await (await db.execute("SELECT WHERE current_setting('transaction_read_only') = 'on'")).fetchone() is not None:
                            break  # a server that was demoted tells nothing any more
                        if self._crowded():
                            break
            except (psycopg.Error, OSError):
                pass  # made anew; polling goes on meanwhile
            finally:
                await db.close()


__all__ = ["Hearing"]
