"""Waiting for news: a hint that shortens a poll, never the truth (§1.5, §10.16).

Whoever waits is woken by whatever happened since *its own* last return, so a change between looking and waiting is not
missed. With a ``probe`` (a number that moves when another process writes) one timer polls for all waiters together. A ``Board`` says which
kinds of news the other processes have written: whoever waits for one of these only is not woken by everything else, and does not probe.

A ``Bell`` tells the other processes of this machine that have the same file open: an empty datagram, upon which they look. It
may be lost, and processes elsewhere never hear it: the poll goes on, and is the truth. Where others hear, it may be slow. Each process says on the
board which kinds of news somebody in it waits for, so that the bell wakes nobody in vain: a worker that has no room waits for nothing new.
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

# A look and its turn of the loop cost about 25 us: a part in 40 of one processor for a second after news, in 400 after that.
ACTIVE_POLL = 0.001
IDLE_POLL = 0.010
ACTIVE_FOR = 1.0
PLACES = 16
ASK_AGAIN_SECONDS = 1.0
BOARD = "!news"  # in the folder of those that live, where it can be the name of none of them
_KINDS = tuple(int(kind) for kind in News)  # plain numbers: to combine flags costs several calls each time
OTHER, INBOX = int(News.OTHER), int(News.INBOX)
_POSTED = tuple(kind for kind in _KINDS if kind != OTHER)
_WIDTH = 8
_LISTENS = 64  # from here on a byte for each process, by its place
_SAID = 0x80  # in such a byte: the kinds in it were said, where 0 says nothing
AFTER_NEWS = 128
"""So many bytes of a board are for news; what other modules put on it lies behind them."""
_MOST = 1 << 8 * _WIDTH


class Bell:
    """Tells the processes of this machine that have the same file open of news. Each has one of a few names that the kernel keeps and no
    folder shows; with more processes than names, and on other systems than Linux, the rest is told by its own poll."""

    def __init__(self, file: os.stat_result) -> None:
        self._names = [f"\0holdfast-{os.geteuid()}-{file.st_dev:x}-{file.st_ino:x}-{n}" for n in range(PLACES)]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        weakref.finalize(self, self._socket.close)  # of a store that nobody closes: its process has ended, as far as others know
        self.place: int | None = None
        for place, name in enumerate(self._names):
            with contextlib.suppress(OSError):  # another has this name
                self._socket.bind(name)
                self.place = place
                break
        self._others: list[int] = []
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

    def ring(self, news: int, listens: bytes) -> None:
        """Tells all who wait for news of these kinds, as far as they say what they wait for. Who there is to tell is found out anew after a second, by telling
        all."""
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


class Board:
    """A file beside the database that says of which kind the last news was, so that whoever waits for one kind need not look at each commit.

    Each kind has eight bytes, and whoever has written something of that kind puts a number there that nobody has put there before. To ask costs one read
    of a few bytes and no statement. Like the bell it is a hint: a process that dies between its commit and its number told nobody, and those who wait come
    back by themselves after a while.
    """

    def __init__(self, path: str, mode: int) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        self.close = weakref.finalize(self, os.close, self._fd)
        with contextlib.suppress(OSError):  # another user's, who has done it
            os.fchmod(self._fd, mode)  # whoever may write the database may write here, whatever the umask of its first user was
        self._number = int.from_bytes(os.urandom(_WIDTH))  # two processes never count through the same numbers
        self._mine = [bytes(_WIDTH)] * len(_POSTED)
        self._seen = self._read()

    @classmethod
    def of(cls, path: str, database: str) -> Board | None:
        """The board at a path; None where it can be neither made nor written."""
        try:
            return cls(path, os.stat(database).st_mode & 0o666)
        except OSError:
            return None

    def _read(self) -> bytes:
        return os.pread(self._fd, _WIDTH * len(_POSTED), 0).ljust(_WIDTH * len(_POSTED), b"\0")

    def listen(self, place: int, kinds: int) -> None:
        """Says for the process at a place which kinds of news it waits for."""
        with contextlib.suppress(OSError):  # no room on the disk: it is told of other kinds, or comes back by itself
            os.pwrite(self._fd, bytes([_SAID | kinds]), _LISTENS + place)

    def listens(self) -> bytes:
        """What each process has said that it waits for, by places."""
        try:
            return os.pread(self._fd, PLACES, _LISTENS).ljust(PLACES, b"\0")
        except OSError:
            return bytes(PLACES)

    def say(self, news: int) -> None:
        """Says that something of these kinds was written. Who waits in this process is to be told afterwards: a number of another process
        that this one covers belongs to what was committed before."""
        for i, kind in enumerate(_POSTED):
            if kind & news:
                self._number = (self._number + 1) % _MOST
                self._mine[i] = number = self._number.to_bytes(_WIDTH)
                try:
                    os.pwrite(self._fd, number, i * _WIDTH)
                except OSError:  # no room on the disk: the others come back by themselves
                    return

    def hear(self) -> int:
        """The kinds of which other processes have written something since this was last asked; all of them where that cannot be read."""
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
    """The waiters of one store. ``tell`` may be called from the loop's thread only."""

    def __init__(self, probe: Callable[[], int] | None = None) -> None:
        self._probe = probe
        self._probed: int | None = None
        self._generations = [0] * len(_KINDS)  # replaced with each news, never changed
        self._waiters: dict[asyncio.Future[None], int] = {}  # in order, so that whoever waited first is woken first
        self._seen: weakref.WeakKeyDictionary[asyncio.Task[Any], list[int]] = weakref.WeakKeyDictionary()
        self._board: Callable[[], Board | None] = _none
        self._posted: Board | None = None
        self._asked = False
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._news = False
        self._active_until = 0.0  # by the clock of the loop that waits
        self._closed = False
        self.bell: Bell | None = None
        self._listens: asyncio.AbstractEventLoop | None = None
        self._rings = 0  # the kinds of news that the others are to be told of after this turn of the loop
        self._listening: int | None = None  # the kinds that this process has said it waits for
        self.looks = 0

    def tell(self, news: int = int(ANYTHING)) -> None:
        """Something of interest to others was written here. Their answer may not be long in coming: that is looked out for more often."""
        board = self._posted if self._asked else self._posting()
        if board is not None:
            board.say(news)
        if self.bell is not None:
            if not self._rings:
                asyncio.get_running_loop().call_soon(self._ring)  # what is written in this turn is told of once
            self._rings |= news | OTHER
        self._wake(news | OTHER)

    def _posting(self) -> Board | None:
        """The board, made when it is first needed: whoever only reads makes no file."""
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
        """Returns at once if anything of it changed since this task's last return, else at the next change or the timeout; gives what changed.

        Raises:
            StoreClosed: it was closed before or meanwhile: nothing will change any more.
            HoldfastError: the store could not be looked at.
        """
        kinds = int(about)
        if kinds & OTHER or (self._probe is not None and self._posting() is None):
            kinds = OTHER  # of every change, which the probe finds; without a board it is of no kind
        if self._listening is None or kinds & ~self._listening:
            self._say_what(kinds)
        self._look(kinds)
        if not self._find_unseen(kinds) and not self._closed:
            await self._sleep(timeout, kinds)
        if self._closed:
            raise StoreClosed
        found = self._find_unseen(kinds)
        self._seen[_task()] = self._generations
        return ANYTHING if found & OTHER else News(found)

    def _say_what(self, kinds: int) -> None:
        """Says which kinds of news are waited for here: these, and those that others wait for."""
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
            with contextlib.suppress(NotImplementedError):  # a loop that cannot: the poll does
                loop.add_reader(self.bell, self._hear, loop)

    def _hear(self, loop: asyncio.AbstractEventLoop) -> None:
        """Somebody has rung: a look, at once."""
        if self.bell is not None:
            self.bell.drain()
            self._say_what(0)  # whoever no longer waits need not be told
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
        """Whether somebody waits for what may come back at any moment. Commands for runs that are driven here come from people, and the processes of this
        machine ring."""
        return self.bell is None or {*self._waiters.values()} != {INBOX}

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._closed or not self._waiters:
            return
        try:
            self._look(OTHER if OTHER in self._waiters.values() else 0)
        except HoldfastError as e:  # nobody awaits this timer: whoever waits for news hears what was wrong
            self._tell_error(e)
        if self._waiters:
            self._arm(loop)

    def _tell_error(self, error: HoldfastError) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(make_own(error))
        self._waiters.clear()

    def _look(self, about: int) -> None:
        """Looks for what others have written: of which kinds, and where somebody waits for any change by the probe too."""
        if self._probe is None or self._closed:
            return
        self.looks += 1
        news = 0 if self._posted is None else self._posted.hear()
        if about & OTHER:
            value = self._probe()
            if value != self._probed:
                first, self._probed = self._probed is None, value
                news |= 0 if first else OTHER
        if news:
            self._wake(news)

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
        if self._posted is not None:
            self._posted.close()
        self._posted, self._asked = None, False
        self._wake(int(ANYTHING))

    def reopen(self, bell: Bell | None = None, board: Callable[[], Board | None] | None = None) -> None:
        """``board`` makes the board when it is first needed."""
        self._closed = False
        self._probed = self._listening = None
        self.bell = bell
        self._board = board or _none


def _none() -> None:
    return None


def _task() -> asyncio.Task[Any]:
    """The task that waits. No frame of a wait keeps it: one that is cancelled has those frames in its traceback, and would keep itself."""
    task = asyncio.current_task()
    assert task is not None
    return task


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
