"""Waiting for news: a hint that shortens a poll and may be lost (§1.5, §10.16).

A waiting task is woken by every change since *its own* last return, so a change between looking and waiting is not missed. With a ``probe`` (a number
that changes when another process writes) one timer polls for all waiters together. A ``Board`` says which kinds of news the other processes have
written: a task that waits for certain kinds only is not woken by other news, and needs no probe.

A ``Bell`` notifies the other processes of this machine that have the same file open: it sends an empty datagram, upon which they look. The datagram
may be lost, and processes on other machines never get it, so the poll continues and is what can be relied on; it may be slow if others get datagrams.
Each process writes on the board which kinds of news its tasks wait for, so that the bell wakes nobody in vain: a worker without free capacity does
not wait for new runs.
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

from holdfast.core.errors import HoldfastError, StoreClosed, make_own
from holdfast.ports import ANYTHING, News

# One look, with its turn of the event loop, costs about 25 us: 1/40 of one processor for a second after news, 1/400 after that.
ACTIVE_POLL = 0.001
IDLE_POLL = 0.010
ACTIVE_FOR = 1.0
PLACES = 16
ASK_AGAIN_SECONDS = 1.0
BOARD = "!news"  # in the folder of the proofs of life, where no owner can have this name
_KINDS = tuple(int(kind) for kind in News)  # plain integers, because combining flags costs several calls each time
OTHER, INBOX = int(News.OTHER), int(News.INBOX)
_POSTED = tuple(kind for kind in _KINDS if kind != OTHER)
_WIDTH = 8
_LISTENS = 64  # from here on one byte for each process, by its place
_SAID = 0x80  # set in such a byte: the process has said which kinds it waits for; the byte 0 means that it has not
AFTER_NEWS = 128
"""The first bytes of a board, which are for news; other modules keep their own bytes behind them."""
_MOST = 1 << 8 * _WIDTH


class Bell:
    """Tells the processes of this machine that have the same file open that there is news. Each process has one of ``PLACES`` abstract socket names,
    which are not in any folder. If there are more processes than names, or the system is not Linux, the others find news by their own poll."""

    def __init__(self, file: os.stat_result) -> None:
        self._names = [f"\0holdfast-{os.geteuid()}-{file.st_dev:x}-{file.st_ino:x}-{n}" for n in range(PLACES)]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        weakref.finalize(self, self._socket.close)  # also for a store that nobody closes: to other processes this one has ended
        self.place: int | None = None
        for place, name in enumerate(self._names):
            with contextlib.suppress(OSError):  # another process has this name
                self._socket.bind(name)
                self.place = place
                break
        self._others: list[int] = []
        self._asked = 0.0
        self.sent = 0

    @classmethod
    def of(cls, path: str) -> Bell | None:
        """Returns the bell of a file; None if the system has no such sockets."""
        try:
            return cls(os.stat(path)) if sys.platform == "linux" else None
        except OSError:
            return None

    @property
    def heard(self) -> bool:
        """Whether any other process was reached when the bell was last rung."""
        return bool(self._others)

    def fileno(self) -> int:
        return self._socket.fileno()

    def ring(self, news: int, listens: bytes) -> None:
        """Notifies the processes that wait for news of these kinds, and those that have not said what they wait for. Once a second it notifies all
        places, to find out again which processes there are."""
        if (now := time.monotonic()) - self._asked > ASK_AGAIN_SECONDS:
            self._asked = now
            self._others = [place for place in range(PLACES) if place != self.place and self._tell(place)]
        else:
            self._others = [place for place in self._others if (listens[place] & _SAID and not listens[place] & news) or self._tell(place)]

    def _tell(self, place: int) -> bool:
        self.sent += 1
        try:
            self._socket.sendto(b"!", self._names[place])
        except BlockingIOError:
            pass  # its queue is full: it has been notified of more than it has looked at
        except OSError:
            return False
        return True

    def drain(self) -> None:
        """Discards the datagrams received: all mean the same."""
        with contextlib.suppress(OSError):
            while self._socket.recv(8):
                pass

    def close(self) -> None:
        self._socket.close()


class Board:
    """A file beside the database that says of which kinds the last news was, so that a task that waits for one kind need not look at each commit.

    Each kind has eight bytes. A process that has written something of that kind puts a number there that was never there before. To ask costs one
    read of a few bytes, and no statement. Like the bell this is a hint: a process that dies between its commit and its number has told nobody, and
    waiting tasks look by themselves after a while.
    """

    def __init__(self, path: str, mode: int) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        self.close = weakref.finalize(self, os.close, self._fd)
        with contextlib.suppress(OSError):  # the file of another user, who has set its mode
            os.fchmod(self._fd, mode)  # all who may write the database may write here, whatever the umask of the first user was
        self._number = int.from_bytes(os.urandom(_WIDTH))  # random, so that two processes do not count through the same numbers
        self._mine = [bytes(_WIDTH)] * len(_POSTED)
        self._seen = self._read()

    @classmethod
    def of(cls, path: str, database: str) -> Board | None:
        """Returns the board at a path; None if it cannot be created or written."""
        try:
            return cls(path, os.stat(database).st_mode & 0o666)
        except OSError:
            return None

    def _read(self) -> bytes:
        return os.pread(self._fd, _WIDTH * len(_POSTED), 0).ljust(_WIDTH * len(_POSTED), b"\0")

    def listen(self, place: int, kinds: int) -> None:
        """Writes which kinds of news the process at a place waits for."""
        with contextlib.suppress(OSError):  # the disk is full: this process is notified of other kinds too, or looks by itself
            os.pwrite(self._fd, bytes([_SAID | kinds]), _LISTENS + place)

    def listens(self) -> bytes:
        """Reads which kinds each process has said it waits for, by place."""
        try:
            return os.pread(self._fd, PLACES, _LISTENS).ljust(PLACES, b"\0")
        except OSError:
            return bytes(PLACES)

    def say(self, news: int) -> None:
        """Announces that something of these kinds was written. Must be called before the tasks of this process are woken: if its number overwrites
        that of another process, that process had committed before."""
        for i, kind in enumerate(_POSTED):
            if kind & news:
                self._number = (self._number + 1) % _MOST
                self._mine[i] = number = self._number.to_bytes(_WIDTH)
                try:
                    os.pwrite(self._fd, number, i * _WIDTH)
                except OSError:  # the disk is full: the others look by themselves
                    return

    def hear(self) -> int:
        """Returns the kinds of which other processes have written something since the last call; all kinds if the board cannot be read."""
        try:
            now, before = self._read(), self._seen
        except OSError:
            return int(ANYTHING)
        if now == before:
            return 0
        self._seen, found = now, 0
        for i, kind in enumerate(_POSTED):
            number = now[i * _WIDTH : (i + 1) * _WIDTH]
            if number != before[i * _WIDTH : (i + 1) * _WIDTH] and number != self._mine[i]:
                found |= kind
        return found


class Changes:
    """The tasks that wait for news of one store. ``tell`` may be called from the event loop's thread only."""

    def __init__(self, probe: Callable[[], int] | None = None) -> None:
        self._probe = probe
        self._probed: int | None = None
        self._generations = [0] * len(_KINDS)  # replaced at each news, never changed in place
        self._waiters: dict[asyncio.Future[None], int] = {}  # in order, so that the first to wait is woken first
        self._seen: weakref.WeakKeyDictionary[asyncio.Task[Any], list[int]] = weakref.WeakKeyDictionary()
        self._board: Callable[[], Board | None] = _none
        self._posted: Board | None = None
        self._asked = False
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._news = False
        self._active_until = 0.0  # by the clock of the event loop that waits
        self._closed = False
        self.bell: Bell | None = None
        self._listens: asyncio.AbstractEventLoop | None = None
        self._rings = 0  # the kinds of news that other processes are notified of after this turn of the event loop
        self._listening: int | None = None  # the kinds that this process has announced it waits for
        self.looks = 0

    def tell(self, news: int = int(ANYTHING)) -> None:
        """Announces that something of interest to others was written here. Polls more often for a while, because they may soon answer."""
        board = self._posted if self._asked else self._posting()
        if board is not None:
            board.say(news)
        if self.bell is not None:
            if not self._rings:
                asyncio.get_running_loop().call_soon(self._ring)  # one datagram for all that is written in this turn of the event loop
            self._rings |= news | OTHER
        self._wake(news | OTHER)

    def _posting(self) -> Board | None:
        """Returns the board. It is created when it is first needed, so a process that only reads creates no file."""
        if not self._asked:
            self._asked, self._posted = True, self._board()
        return self._posted

    def _ring(self) -> None:
        news, self._rings = self._rings, 0
        if self.bell is not None:
            board = self._posting()
            self.bell.ring(news, bytes(PLACES) if board is None else board.listens())

    def _wake(self, news: int) -> None:
        self._generations = [n + 1 if news & kind else n for kind, n in zip(_KINDS, self._generations, strict=True)]
        self._news = True
        if self._waiters:
            for waiter, about in list(self._waiters.items()):
                if about & news:
                    if not waiter.done():
                        waiter.set_result(None)
                    del self._waiters[waiter]

    async def wait(self, timeout: float, about: News = ANYTHING) -> News:
        """Returns at once if anything of these kinds changed since this task's last return, else at the next change or the timeout; returns what
        changed.

        Raises:
            StoreClosed: the store was closed before or meanwhile: nothing will change any more.
            HoldfastError: the store could not be read.
        """
        kinds = int(about)
        if kinds & OTHER or (self._probe is not None and self._posting() is None):
            kinds = OTHER  # woken by every change, which the probe finds; without a board its kind is unknown
        if self._listening is None or kinds & ~self._listening:
            self._say_what(kinds)
        elsewhere = self._look(kinds)
        if not self._find_unseen(kinds) and not self._closed:
            await self._sleep(timeout, kinds)
        elif elsewhere:
            await asyncio.sleep(0)  # a task that follows what another process writes without a pause must not hold up the event loop
        if self._closed:
            raise StoreClosed
        found = self._find_unseen(kinds)
        self._seen[_task()] = self._generations
        return ANYTHING if found & OTHER else News(found)

    def _say_what(self, kinds: int) -> None:
        """Announces which kinds of news this process waits for: the given ones, and those of the tasks that wait now."""
        for about in self._waiters.values():
            kinds |= about
        if kinds != self._listening and self.bell is not None and self.bell.place is not None and (board := self._posting()) is not None:
            board.listen(self.bell.place, kinds)
            self._listening = kinds

    def _find_unseen(self, about: int) -> int:
        seen = self._seen.get(_task())
        if seen is None:
            return about
        return 0 if seen is self._generations else sum([kind for kind, n, now in zip(_KINDS, seen, self._generations, strict=True) if n != now and kind & about])

    async def _sleep(self, timeout: float, about: int) -> None:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters[waiter] = about
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
            with contextlib.suppress(NotImplementedError):  # this event loop has no readers: the poll is enough
                loop.add_reader(self.bell, self._hear, loop)

    def _hear(self, loop: asyncio.AbstractEventLoop) -> None:
        """Looks for news at once, because another process has rung."""
        if self.bell is not None:
            self.bell.drain()
            self._say_what(0)  # this process need not be notified of what nobody waits for any more
            if self._timer is not None:
                self._timer[1].cancel()
            self._tick(loop)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._probe is None:
            return
        if self._news:
            self._news = False
            if self.bell is None or not self.bell.heard:
                self._active_until = loop.time() + ACTIVE_FOR
        now = loop.time()
        at = now + (ACTIVE_POLL if now < self._active_until and self._hurries() else IDLE_POLL)
        if self._timer is not None and self._timer[0] is loop:
            timer = self._timer[1]
            if not timer.cancelled() and timer.when() <= at:
                return
            timer.cancel()
        self._timer = (loop, loop.call_at(at, self._tick, loop))

    def _hurries(self) -> bool:
        """Whether any task waits for something that may arrive at any moment. Commands for runs that are driven here come from people, and the
        processes of this machine ring the bell."""
        return self.bell is None or {*self._waiters.values()} != {INBOX}

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._closed or not self._waiters:
            return
        try:
            self._look(OTHER if OTHER in self._waiters.values() else 0)
        except HoldfastError as e:  # nobody awaits this timer, so the waiting tasks get the error
            self._tell_error(e)
        if self._waiters:
            self._arm(loop)

    def _tell_error(self, error: HoldfastError) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(make_own(error))
        self._waiters.clear()

    def _look(self, about: int) -> bool:
        """Looks for what other processes have written: reads its kinds from the board and, if a task waits for any change, asks the probe too. Returns
        whether there is anything."""
        if self._probe is None or self._closed:
            return False
        self.looks += 1
        news = 0 if self._posted is None else self._posted.hear()
        if about & OTHER:
            value = self._probe()
            if value != self._probed:
                first, self._probed = self._probed is None, value
                news |= 0 if first else OTHER
        if news:
            self._wake(news)
        return bool(news)

    def close(self) -> None:
        """Wakes all waiting tasks, which get ``StoreClosed``, and closes bell and board."""
        self._closed = True
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None
        if self.bell is not None:
            if self._listens is not None and not self._listens.is_closed():
                self._listens.remove_reader(self.bell)
            self.bell.close()
            self.bell = self._listens = None
        if self._posted is not None:
            self._posted.close()
        self._posted, self._asked = None, False
        self._wake(int(ANYTHING))

    def reopen(self, bell: Bell | None = None, board: Callable[[], Board | None] | None = None) -> None:
        """Makes the closed store ready to wait again. ``board`` creates the board when it is first needed."""
        self._closed = False
        self._probed = self._listening = None
        self.bell = bell
        self._board = board or _none


def _none() -> None:
    return None


def _task() -> asyncio.Task[Any]:
    """Returns the waiting task. No frame of a wait may have a reference to it: the traceback of a cancelled task contains those frames, so the task
    would keep itself alive."""
    task = asyncio.current_task()
    assert task is not None
    return task


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
