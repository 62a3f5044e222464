"""Taking turns at the write lock of a file (§1.11).

SQLite lets one process write at a time and notifies nobody when the lock is free: a process that finds the file locked tries again after a pause, and
the lock may be unused meanwhile. So the processes of one machine notify each other. A process that waits for the lock sets a byte of the board
(``stores/changes``). A process that leaves the lock to another wakes it with a datagram, and writes in one more byte whose turn it is.

A process that writes many commits in a row has a turn of up to ``TURN_SECONDS``; other such processes wait for the end of that turn. A change of the
writing process costs about two commits, because each process must read again what the other has written. A process that has a single commit to make,
such as the birth of a run or a command, is let in between two commits of that turn.

All this is a hint and may be lost: SQLite's lock decides who writes, and a waiting process tries by itself after a while. A process that dies in its
turn delays the others once, until they try by themselves.
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
from typing import cast

from holdfast.core.errors import StoreClosed
from holdfast.stores.changes import AFTER_NEWS, PLACES
from holdfast.stores.sqlite.connection import Pace

TURN_SECONDS = 0.040
ROUND_SECONDS = 0.120  # the more processes wait, the shorter the turns, so that each has its next turn after about this time ...
LEAST_SECONDS = 0.010  # ... but no turn is shorter than this
LEAVE_SECONDS = 0.002  # how long the lock is left to a process that was let in, until that process is seen to use it
ONCE, ON = 1, 2  # values of a waiting byte: it has one commit to make; it goes on writing
_NOBODY = bytes(PLACES)


class Turns:
    """The turns of one process at a file, whose board is at the path ``board``. Without a board or datagrams, a waiting process tries again after a
    pause.

    ``others`` returns whether any other process may wait. ``clock`` returns seconds.
    """

    def __init__(self, board: str, database: str, others: Callable[[], bool], pace: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self._board = board
        self._database = database
        self._others = others
        self._pace = pace
        self._clock = clock
        self._looked = False
        self._names: tuple[str, ...] = ()
        self._place = 0
        self._fd = -1
        self._socket: socket.socket | None = None
        self._ends: tuple[weakref.finalize[..., Turns], ...] = ()
        self._says = 0
        self._since: float | None = None  # when the turn of this process began, if it has one
        self._goes_on = False  # this process had more to write when it last committed
        self._met = False  # the file was locked since this process last rested, so there is another process
        self._next = 0  # the place at which the search for the next process with a single commit begins

    # -- waiting ------------------------------------------------------------------------------------

    def wait(self, *, once: bool) -> float:
        """Announces that this process waits for the lock; returns the seconds after which it tries by itself. ``once``: it waits for one commit,
        which need not wait for the turn of this process."""
        if self._find() is None:
            return self._pace.pause()
        self._met = True
        says = ON if self._goes_on and not once else ONCE
        if self._says != says and self._say(self._place, says):
            self._says = says
        if says == ONCE:
            return self._pace.pause()
        _, turn = self._read()
        if self._since is None:
            return ROUND_SECONDS + TURN_SECONDS if turn else self._pace.pause()
        if not turn:  # the process that was let in has written meanwhile, and did not see that this one waits
            self._say(PLACES, self._place + 1)
        return LEAVE_SECONDS if turn else 0.0

    def fileno(self) -> int:
        """Returns the descriptor that becomes readable when this process is woken; -1 if nobody can wake it."""
        return -1 if (mine := self._find()) is None else mine.fileno()

    def look(self) -> None:
        """Stops waiting, because this process was woken or has waited long enough. If it waited for its turn, that turn begins."""
        if (mine := self._find()) is None:
            return
        with contextlib.suppress(OSError):  # all datagrams have been read
            while mine.recv(8):
                pass
        if self._leave() == ON and self._since is None:
            self._begin()

    def _leave(self) -> int:
        """Stops waiting; returns what this process waited for (``ONCE``, ``ON``), or 0."""
        said, self._says = self._says, 0
        if said:
            self._say(self._place, 0)
        return said

    # -- after a commit -----------------------------------------------------------------------------

    def may_go_on(self) -> bool:
        """Called after a commit of a process that may have more to write: returns whether it may write on at once. If not, it is the turn of another
        process, or another has been let in; that process has been woken if it waits."""
        if not self._has_company():
            return True
        self._goes_on = True
        waiting, turn = self._read()
        if self._is_anothers(waiting, turn):  # this commit was let in during that turn, or that process waited so long that it began its turn by itself
            self._since = None
            return False
        if waiting == _NOBODY:
            return True
        if self._since is None or not turn:
            self._begin(self._since)
        if self._wake_next(waiting, ONCE):
            return False
        if self._clock() - cast(float, self._since) < max(LEAST_SECONDS, min(TURN_SECONDS, ROUND_SECONDS / max(1, waiting.count(ON)))):
            return True
        self._since = None
        if self._wake_next(waiting, ON):
            return False
        self._begin()
        return True

    def give_way(self) -> bool:
        """Called before the next commit of the only run here, when that run has had the file for a while or was let in. Returns whether to wait: it
        is the turn of another process, or another has been woken."""
        if not self._has_company():
            return False
        waiting, turn = self._read()
        return self._is_anothers(waiting, turn) or self._wake_next(waiting, ONCE) or self._wake_next(waiting, ON)

    def hand_back(self) -> bool:
        """Called after a commit of the only run here, which goes on. Returns whether the commit was let in during the turn of another process, which
        is woken."""
        return self._has_company() and self._leave_to_its_owner(*self._read())

    def pass_on(self) -> None:
        """Called after a single commit: wakes the process whose turn it is, or else the next one that waits."""
        if self._since is None and self._has_company():
            waiting, turn = self._read()
            if not self._leave_to_its_owner(waiting, turn) and turn in (0, self._place + 1):
                self._wake_next(waiting, ONCE) or self._wake_next(waiting, ON)

    def rest(self) -> None:
        """Ends the turn of this process, which has nothing more to write now, and wakes the next."""
        self._goes_on = self._met = False
        if self._since is not None:
            self._since = None
            waiting, _ = self._read()
            if self._wake_next(waiting, ONCE) or not self._wake_next(waiting, ON):
                self._say(PLACES, 0)

    def _has_company(self) -> bool:
        """Returns whether another process may wait, and can be woken."""
        return (self._others() or self._met) and self._find() is not None

    def _is_anothers(self, waiting: bytes, turn: int) -> bool:
        """Returns whether it is the turn of another process, and wakes that process if it waits."""
        if turn in (0, self._place + 1):
            return False
        if waiting[turn - 1]:
            self._wake(turn - 1)
        return True

    def _leave_to_its_owner(self, waiting: bytes, turn: int) -> bool:
        """Returns whether it is the turn of another process that waits, and wakes it. If that process does not wait, the turn byte is cleared: the
        process is about to wait, and will then write again that it is its turn; or it does not use its turn or has died in it, and the next process
        that commits wakes another."""
        if not self._is_anothers(waiting, turn):
            return False
        if not waiting[turn - 1]:
            self._say(PLACES, 0)
        return bool(waiting[turn - 1])

    def _begin(self, since: float | None = None) -> None:
        self._since = self._clock() if since is None else since
        self._say(PLACES, self._place + 1)

    def _wake_next(self, waiting: bytes, what: int) -> bool:
        """Wakes the next process that waits for ``what``; with ``ON`` its turn begins. Returns whether there was one."""
        if what not in waiting:
            return False
        first = self._place + 1 if what == ON else self._next  # turns go round; those with a single commit are let in by this process one after the other
        for n in range(PLACES):
            place = (first + n) % PLACES
            if waiting[place] == what and self._wake(place):
                if what == ON:
                    self._say(PLACES, place + 1)
                else:
                    self._next = place + 1
                return True
        return False

    def _wake(self, place: int) -> bool:
        """Wakes the process at a place; returns whether there is one. Its waiting byte is cleared, so it is woken once: if it is suspended or gone,
        the next is woken next time."""
        self._say(place, 0)
        try:
            cast(socket.socket, self._socket).sendto(b"!", self._names[place])
        except OSError:
            return False
        return True

    # -- the board ----------------------------------------------------------------------------------

    def _read(self) -> tuple[bytes, int]:
        """Reads what the process at each place waits for, and whose turn it is: that process's place plus one, or 0."""
        try:
            found = os.pread(self._fd, PLACES + 1, AFTER_NEWS).ljust(PLACES + 1, b"\0")
        except OSError:
            return _NOBODY, 0
        return found[:PLACES], found[PLACES] if found[PLACES] <= PLACES else 0

    def _say(self, place: int, word: int) -> bool:
        try:
            return os.pwrite(self._fd, bytes([word]), AFTER_NEWS + place) == 1
        except OSError:
            return False

    def _find(self) -> socket.socket | None:
        """Returns the socket through which this process is woken. It is opened when it is first needed, so a process that only reads takes no place."""
        if not self._looked:
            self._looked = True
            if sys.platform == "linux":
                with contextlib.suppress(OSError):
                    self._open()
        return self._socket

    def _open(self) -> None:
        file = os.stat(self._database)
        fd = os.open(self._board, os.O_RDWR | os.O_CLOEXEC)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._ends = (weakref.finalize(self, os.close, fd), weakref.finalize(self, made.close))  # also for a store that nobody closes
        self._names = tuple([f"\0holdfast-turn-{os.geteuid()}-{file.st_dev:x}-{file.st_ino:x}-{n}" for n in range(PLACES)])
        for place, name in enumerate(self._names):
            with contextlib.suppress(OSError):  # another process has this name
                made.bind(name)
                self._place, self._fd, self._socket = place, fd, made
                return

    def close(self) -> None:
        """Gives back the turn and the place of this process; from now on it waits for pauses only."""
        self._leave()
        self.rest()
        self._looked, self._socket = True, None
        for end in self._ends:
            end()


class LockWait:
    """Waits for the write lock on behalf of the event loop. ``write`` is called when it is this process's turn, or when it has waited long enough; it
    finds the lock free, or waits again. Its argument is whether tasks in ``be_let_in`` have been woken, which come first."""

    def __init__(self, turns: Turns, write: Callable[[bool], None]) -> None:
        self._turns = turns
        self._write = write
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._once = False
        self._listens: asyncio.AbstractEventLoop | None = None
        self._let_in: list[asyncio.Future[None]] = []

    @property
    def on(self) -> bool:
        """Whether this process waits now; a wait in a closed event loop does not count."""
        return self._timer is not None and not self._timer[0].is_closed()

    def begin(self, *, once: bool = False) -> None:
        """Begins to wait, unless it waits already. ``once``: for one commit, which need not wait for the turn of this process."""
        if self.on and self._once >= once:
            return
        self._end()
        loop = asyncio.get_running_loop()
        self._once = once
        self._timer = (loop, loop.call_later(self._turns.wait(once=once), self._look))
        if self._listens is not loop and (fd := self._turns.fileno()) >= 0:
            with contextlib.suppress(NotImplementedError):  # this event loop has no readers: the timer is enough
                loop.add_reader(fd, self._look)
                self._listens = loop

    async def be_let_in(self) -> None:
        """Returns when the lock may be free for one commit."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._let_in.append(woken)
        self.begin(once=True)
        await woken

    def _look(self) -> None:
        self._turns.look()
        if self._timer is None:
            return
        self._end()
        woken, self._let_in = [one for one in self._let_in if not one.done()], []
        for one in woken:
            one.set_result(None)
        self._write(bool(woken))

    def _end(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None

    def close(self) -> None:
        """Stops waiting.

        Tasks in ``be_let_in`` get ``StoreClosed``.
        """
        self._end()
        if self._listens is not None and not self._listens.is_closed():
            self._listens.remove_reader(self._turns.fileno())
        self._listens = None
        self._turns.close()
        left, self._let_in = self._let_in, []
        for one in left:
            if not one.done():
                one.set_exception(StoreClosed())


__all__ = ["LockWait", "Turns"]
