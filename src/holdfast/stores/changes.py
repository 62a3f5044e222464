"""Waiting for news: a hint that shortens a poll, never the truth (§1.5, §10.16).

Whoever waits is woken by whatever happened since *its own* last return, so a change between looking and waiting is not
missed. With a ``probe`` (a number that moves when another process writes) one timer polls for all waiters together.

A ``Bell`` tells the other processes of this machine that have the same file open: an empty datagram, upon which they look. It
may be lost, and processes elsewhere never hear it: the poll goes on, and is the truth. Where others hear, it may be slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from holdfast.core.errors import HoldfastError, StoreClosed

# A look and its turn of the loop cost about 25 us: a part in 40 of one processor for a second after news, in 400 after that.
ACTIVE_POLL = 0.001
IDLE_POLL = 0.010
ACTIVE_FOR = 1.0
PLACES = 16
ASK_AGAIN_SECONDS = 1.0


class Bell:
    """Tells the processes of this machine that have the same file open of news. Each has one of a few names that the kernel keeps and no
    folder shows; with more processes than names, and on other systems than Linux, the rest is told by its own poll."""

    def __init__(self, file: os.stat_result) -> None:
        self._names = [f"\0holdfast-{os.geteuid()}-{file.st_dev:x}-{file.st_ino:x}-{n}" for n in range(PLACES)]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        weakref.finalize(self, self._socket.close)  # of a store that nobody closes: its process has ended, as far as others know
        self._own: str | None = None
        for name in self._names:
            with contextlib.suppress(OSError):  # another has this name
                self._socket.bind(name)
                self._own = name
                break
        self._others: list[str] = []
        self._asked = 0.0
        self.sent = 0

    @classmethod
    def of(cls, path: str) -> Bell | None:
        """The bell of a file; None where there is nothing like it."""
        try:
            return cls(os.stat(path)) if sys.platform == "linux" else None
        except OSError:
            return None

    @property
    def heard(self) -> bool:
        """Whether anybody heard when it was last rung."""
        return bool(self._others)

    def fileno(self) -> int:
        return self._socket.fileno()

    def ring(self) -> None:
        """Tells all who hear. Who they are is found out anew after a second."""
        if (now := time.monotonic()) - self._asked > ASK_AGAIN_SECONDS:
            self._others, self._asked = [n for n in self._names if n != self._own], now
        self._others = [name for name in self._others if self._told(name)]

    def _told(self, name: str) -> bool:
        self.sent += 1
        try:
            self._socket.sendto(b"!", name)
        except BlockingIOError:
            pass  # it has been told more than it has looked at
        except OSError:
            return False
        return True

    def drain(self) -> None:
        """Forgets what came: it all means the same."""
        with contextlib.suppress(OSError):
            while self._socket.recv(8):
                pass

    def close(self) -> None:
        self._socket.close()


class Changes:
    """The waiters of one store. ``tell`` may be called from the loop's thread only."""

    def __init__(self, probe: Callable[[], int] | None = None) -> None:
        self._probe = probe
        self._probed: int | None = None
        self._generation = 0
        self._waiters: dict[asyncio.Future[None], None] = {}  # in order, so that whoever waited first is woken first
        self._seen: weakref.WeakKeyDictionary[asyncio.Task[Any], int] = weakref.WeakKeyDictionary()
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._news = False
        self._active_until = 0.0  # by the clock of the loop that waits
        self._closed = False
        self.bell: Bell | None = None
        self._listens: asyncio.AbstractEventLoop | None = None
        self._rings = False
        self.looks = 0

    def tell(self) -> None:
        """Something of interest to others was written here. Their answer may not be long in coming: that is looked out for more often."""
        if self.bell is not None and not self._rings:
            self._rings = True
            asyncio.get_running_loop().call_soon(self._ring)  # what is written in this turn is told of once
        self._wake()

    def _ring(self) -> None:
        self._rings = False
        if self.bell is not None:
            self.bell.ring()

    def _wake(self) -> None:
        self._generation += 1
        self._news = True
        if self._waiters:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._waiters.clear()

    async def wait(self, timeout: float) -> None:
        """Returns at once if anything changed since this task's last return, else at the next change or the timeout.

        Raises:
            StoreClosed: it was closed before or meanwhile: nothing will change any more.
            HoldfastError: the store could not be looked at.
        """
        task = asyncio.current_task()
        assert task is not None
        self._look()
        if self._seen.get(task) == self._generation and not self._closed:
            await self._sleep(timeout)
        if self._closed:
            raise StoreClosed
        self._seen[task] = self._generation

    async def _sleep(self, timeout: float) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = None
        self._listen(loop)
        self._arm(loop)
        handle = loop.call_later(max(0.0, timeout), _release, waiter)
        try:
            await waiter
        finally:
            handle.cancel()
            self._waiters.pop(waiter, None)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        if self.bell is not None and self._listens is not loop:
            self._listens = loop
            with contextlib.suppress(NotImplementedError):  # a loop that cannot: the poll does
                loop.add_reader(self.bell, self._heard, loop)

    def _heard(self, loop: asyncio.AbstractEventLoop) -> None:
        """Somebody has rung: a look, at once."""
        if self.bell is not None:
            self.bell.drain()
            if self._timer is not None:
                self._timer[1].cancel()
            self._tick(loop)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._probe is None or (self._timer is not None and self._timer[0] is loop and not self._timer[1].cancelled()):
            return
        if self._news:
            self._news = False
            if self.bell is None or not self.bell.heard:
                self._active_until = loop.time() + ACTIVE_FOR
        active = loop.time() < self._active_until
        self._timer = (loop, loop.call_later(ACTIVE_POLL if active else IDLE_POLL, self._tick, loop))

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._closed or not self._waiters:
            return
        try:
            self._look()
        except HoldfastError as e:  # nobody awaits this timer: whoever waits for news hears what was wrong
            self._tell_error(e)
        if self._waiters:
            self._arm(loop)

    def _tell_error(self, error: HoldfastError) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._waiters.clear()

    def _look(self) -> None:
        """Compares the probe with what it said last."""
        if self._probe is None or self._closed:
            return
        self.looks += 1
        value = self._probe()
        if value != self._probed:
            first, self._probed = self._probed is None, value
            if not first:
                self._wake()

    def close(self) -> None:
        """Lets everybody go."""
        self._closed = True
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None
        if self.bell is not None:
            if self._listens is not None and not self._listens.is_closed():
                self._listens.remove_reader(self.bell)
            self.bell.close()
            self.bell = self._listens = None
        self._wake()

    def reopen(self, bell: Bell | None = None) -> None:
        self._closed = False
        self._probed = None
        self.bell = bell


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
