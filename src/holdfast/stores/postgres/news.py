"""Wake-ups over PostgreSQL: polling is what can be relied on, a notification only shortens it (§10.16).

While any task waits, one task of this store polls for all: it reads a number that moves with every write of the server, often for a second after news
and rarely after that. If the URL leads to the server itself, a connection also listens. A process that writes something others may wait for sends a
notification of its kinds, at most every ``QUIET`` seconds, in a statement of its own that does not wait for the disk. While a connection listens, a
task that waits for one kind only is not woken by every write of the server; it is woken because of that number at most twice a second. If the
listening connection is lost or half-open, only its hints are lost. It checks itself with a heartbeat in its own session, and is replaced if that
fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable

import psycopg

from holdfast.core.errors import HoldfastError
from holdfast.ports import ANYTHING, News
from holdfast.stores.changes import Changes
from holdfast.stores.postgres.connection import LAST_ANSWER, Connections, Place, connect
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.wire import Statement

ACTIVE_POLL, IDLE_POLL = 0.010, 0.040
CROWDED_POLL, LONGEST_POLL = 0.2, 0.5
HEARD_POLL = 0.5  # for tasks whose kind of news is notified
SHARE = 10  # on a crowded server, the looks take at most this part of the time (1/10)
ACTIVE_FOR = 1.0
QUIET = 0.020
HEARTBEAT = 5.0
CHANNEL = "holdfast_news"
OTHER, DUE = int(News.OTHER), int(News.DUE)


class Hearing:
    """The waiters of one store, and the tasks that look for news on their behalf. Everything belongs to the event loop that opened the store. ``due``
    is called when something has become due, with the name of the run if it was given."""

    def __init__(
        self, place: Place, look: Callable[[], Awaitable[int]], crowded: Callable[[], bool] = lambda: False, due: Callable[[str | None], None] = lambda run_id: None
    ) -> None:
        self._place = place
        self._look = look
        self._crowded = crowded
        self._due = due
        self._changes = Changes()
        self._pool: Connections | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._wanted = asyncio.Event()
        self._asking = asyncio.Lock()
        self._waiting = 0
        self._curious = 0
        self._hurried = asyncio.Event()
        self._heard = False
        self._moved_at = 0.0
        self._name = secrets.token_hex(4)
        self._owed = 0
        self._quiet_until = 0.0
        self._saying: asyncio.Task[None] | None = None

    def open(self, pool: Connections) -> None:
        self._pool = pool
        self._changes.reopen()
        self._wanted, self._hurried = asyncio.Event(), asyncio.Event()
        self._asking = asyncio.Lock()
        self._owed, self._quiet_until = 0, 0.0

    async def close(self) -> None:
        """Wakes all waiting tasks. A question that was sent is answered first: to cancel it would cost its connection, and a warning."""
        self._pool, asking = None, False
        with contextlib.suppress(TimeoutError):
            asking = await asyncio.wait_for(self._asking.acquire(), LAST_ANSWER)
        tasks, self._tasks, self._saying = [*self._tasks, *([self._saying] if self._saying is not None else [])], [], None
        for task in tasks:
            with contextlib.suppress(RuntimeError):  # its event loop has been closed
                task.cancel()
        if asking:
            self._asking.release()
        self._changes.close()
        here = [t for t in tasks if t.get_loop() is asyncio.get_running_loop() and t is not asyncio.current_task()]
        if here:  # a cancelled question closes its connection, which takes a moment
            await asyncio.wait(here, timeout=LAST_ANSWER)

    def tell(self, news: int = int(ANYTHING), told: bool = False, born: str | None = None) -> None:
        """Announces that something of these kinds was written here. Tasks that wait here are woken; other processes are notified once ``QUIET`` has
        passed, unless the transaction itself has ``told`` them. What is of no other kind than ``OTHER`` they find by polling. ``born``: this run is
        due, and nothing else."""
        self._moved_at = time.monotonic()
        self._wake(news, born)
        if self._place.listen is not None and self._pool is not None and not told:
            self._owed |= news & ~OTHER
            if self._owed and not self._is_saying():
                self._saying = asyncio.ensure_future(self._say(self._pool))

    def _wake(self, news: int, born: str | None = None) -> None:
        """Wakes the tasks that wait here."""
        if news & DUE:
            self._due(born)
        self._changes.tell(news)

    def with_it(self, news: int, born: str | None = None) -> Statement | None:
        """Returns the statement that notifies others within the transaction that writes something of these kinds; None if they were notified just
        now, so that they are notified later."""
        kinds = news & ~OTHER
        if self._place.listen is None or self._pool is None or not kinds or self._is_saying() or (now := time.monotonic()) < self._quiet_until:
            return None
        self._quiet_until = now + QUIET
        return Q.tell, (CHANNEL, f"{kinds} {self._name}" if born is None else f"{kinds} {self._name} {born}")

    def _is_saying(self) -> bool:
        """Whether a notification of the kinds that are owed is about to be sent."""
        return self._saying is not None and not self._saying.done()

    async def _say(self, pool: Connections) -> None:
        """Notifies others of the kinds that are owed once ``QUIET`` has passed, and repeats this for what comes meanwhile."""
        while self._owed and self._pool is pool:
            await asyncio.sleep(max(0.0, self._quiet_until - time.monotonic()))
            kinds, self._owed = self._owed, 0
            try:
                async with self._asking, pool.hold() as db:
                    # What it announces is on the disk. The notification itself need not be: after a crash everybody looks anyway.
                    await db.execute(f"SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}, '{kinds} {self._name}'", prepare=False)
            except (psycopg.Error, OSError):
                return  # the hint is lost: polling finds the news
            self._quiet_until = time.monotonic() + QUIET

    def _hear(self, payload: str) -> None:
        """Wakes the tasks that a notification concerns; all of them if it is not one of Holdfast's."""
        kinds, _, more = payload.partition(" ")
        name, _, born = more.partition(" ")
        if name != self._name:  # what was written here was announced here
            self._moved_at = time.monotonic()
            self._wake(int(kinds) & int(ANYTHING) if kinds.isdecimal() and len(kinds) < 4 else int(ANYTHING), born or None)

    async def wait(self, timeout: float, about: News) -> News:
        """Returns at once if anything of these kinds changed since this task's last return, else at the next change or the timeout; returns what
        changed."""
        if self._pool is not None and not self._tasks:
            self._tasks.append(asyncio.ensure_future(self._poll()))
            if self._place.listen is not None:
                self._tasks.append(asyncio.ensure_future(self._listen(self._pool, self._place.listen)))
        curious = bool(about & OTHER)
        self._waiting += 1
        self._curious += curious
        self._wanted.set()
        if curious:
            self._hurried.set()
        try:
            return await self._changes.wait(timeout, about)
        finally:
            self._waiting -= 1
            self._curious -= curious
            if not self._curious:
                self._hurried.clear()

    async def _poll(self) -> None:
        last: int | None = None
        took, all_told, owed = 0.0, 0.0, False
        while True:
            if not self._waiting:
                self._wanted.clear()
                await self._wanted.wait()
            if self._heard and not self._curious:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurried.wait(), HEARD_POLL)
            await asyncio.sleep(self._pause(took))
            began = time.monotonic()
            try:
                async with self._asking:
                    number = await self._look()
                took = time.monotonic() - began
            except (psycopg.Error, OSError, HoldfastError):
                await asyncio.sleep(0.2 * (0.5 + random.random()))
                last = None
                self._wake(int(ANYTHING))  # waiting tasks look for themselves, and meet the error
                continue
            moved = number != last and last is not None
            last, owed = number, owed or moved
            if owed and (not self._heard or began - all_told >= HEARD_POLL):
                all_told, owed = began, False
                self._wake(int(ANYTHING))
            elif moved:
                self._changes.tell(OTHER)

    def _pause(self, took: float) -> float:
        """Returns the seconds to the next look. On a crowded server each process looks rarely: there are many, and what one writes is news to all."""
        if self._crowded():
            return min(max(CROWDED_POLL, SHARE * took), LONGEST_POLL) * (0.5 + random.random() / 2)
        active = time.monotonic() - self._moved_at < ACTIVE_FOR
        return (ACTIVE_POLL if active else IDLE_POLL) * (0.9 + 0.2 * random.random())

    async def _listen(self, pool: Connections, conninfo: str) -> None:
        wait = 0.1
        while not (conninfo == self._place.conninfo and pool.pooled):  # a notification to a session of a pooler reaches nobody
            if self._crowded():  # others need the connection more: polling finds the news
                await asyncio.sleep(HEARTBEAT * (0.5 + random.random()))
                continue
            try:
                db = await connect(self._place, conninfo=conninfo)
            except (psycopg.Error, OSError):
                await asyncio.sleep(wait * (0.5 + random.random()))
                wait = min(wait * 2, 5.0)
                continue
            try:
                await db.ask((f"LISTEN {CHANNEL}", None))
                wait, self._heard = 0.1, True
                self._wake(int(ANYTHING))  # for what was written before it listened
                while True:
                    await db.hear(self._hear, HEARTBEAT)
                    async with asyncio.timeout(HEARTBEAT), self._asking:
                        if (await db.ask(("SELECT WHERE current_setting('transaction_read_only') = 'on'", None)))[0]:
                            break  # a demoted server sends no notifications
                        if self._crowded():
                            break
            except (psycopg.Error, OSError):
                pass  # connects anew; polling continues meanwhile
            finally:
                self._heard = False
                await db.close()


__all__ = ["Hearing"]
