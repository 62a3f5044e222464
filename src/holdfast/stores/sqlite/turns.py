"""Taking turns at the write lock of a file (§1.11).

SQLite lets one process write at a time, and wakes nobody: whoever finds the file locked looks again after a pause, and the lock may lie unused
meanwhile. So the processes of one machine tell each other. Whoever waits for the lock says so in a byte of the board (``stores/changes``), and whoever
leaves the lock to another wakes it by a datagram, and says in one more byte whose turn it is.

A process that writes one commit after the other has a turn of up to ``TURN_SECONDS``, in which the others that do so wait: to go from one process to
another costs about two commits, for each has to read anew what the other has written. Whoever has one commit to make, such as the birth of a run or
a command, is let in between two commits of that turn.

All this is a hint, and may be lost: SQLite's lock decides who writes, and whoever waits looks by itself after a while. One that has died in its
turn costs the others the rest of their patience, once.
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
ROUND_SECONDS = 0.120  # the more wait, the shorter the turns, so that each comes again after about so long ...
LEAST_SECONDS = 0.010  # ... but no turn is shorter than this
LEAVE_SECONDS = 0.002  # so long the lock is left to one that was let in, and has not yet been seen at it
ONCE, ON = 1, 2  # what a byte says: it has one commit to make; it goes on writing
_NOBODY = bytes(PLACES)


class Turns:
    """The turns of one process at a file, whose board is at the path ``board``. Where there is nothing like it, whoever waits looks again after a pause.

    ``others`` tells whether any other process may wait. ``clock`` gives seconds.
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
        self._since: float | None = None  # when its turn began, if it has one
        self._goes_on = False  # it had more to write when it last committed
        self._met = False  # the file was locked since it last rested, so that there is somebody else
        self._next = 0  # the place from which it looks for the next lone one

    # -- waiting ------------------------------------------------------------------------------------

    def wait(self, *, once: bool) -> float:
        """Says that this process waits for the lock, ``once`` for one commit that shall not wait for its turn; gives the seconds after which it looks
        by itself."""
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
        if not turn:  # the one that was let in has written meanwhile, and has not seen this one wait
            self._say(PLACES, self._place + 1)
        return LEAVE_SECONDS if turn else 0.0

    def fileno(self) -> int:
        """What can be read once this process is woken; -1 where nobody can wake it."""
        return -1 if (mine := self._find()) is None else mine.fileno()

    def look(self) -> None:
        """It has been woken, or has waited long enough: it looks for the lock, and waits no more. If it is woken for its turn, that begins."""
        if (mine := self._find()) is None:
            return
        with contextlib.suppress(OSError):  # there is no more
            while mine.recv(8):
                pass
        if self._leave() == ON and self._since is None:
            self._begin()

    def _leave(self) -> int:
        """Waits no longer; for what it has waited."""
        said, self._says = self._says, 0
        if said:
            self._say(self._place, 0)
        return said

    # -- after a commit -----------------------------------------------------------------------------

    def may_go_on(self) -> bool:
        """After a commit of one that may have more to write: whether it may go on at once. If not, it is another's turn, or another has been let in, and
        that one has been woken."""
        if not self._has_company():
            return True
        self._goes_on = True
        waiting, turn = self._read()
        if self._is_anothers(waiting, turn):  # it was let in between two commits of that one, or that one has waited for too long
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
        """Before the next commit of a run alone, which has had the file for a while, or was let in: whether it is another's turn, or another has been let in."""
        if not self._has_company():
            return False
        waiting, turn = self._read()
        return self._is_anothers(waiting, turn) or self._wake_next(waiting, ONCE) or self._wake_next(waiting, ON)

    def hand_back(self) -> bool:
        """After a commit of a run alone, which goes on: whether it was let in between two commits of another's turn."""
        return self._has_company() and self._leave_to_its_owner(*self._read())

    def pass_on(self) -> None:
        """After a commit that stands for itself: wakes the one whose turn it is, or else the next of those who wait."""
        if self._since is None and self._has_company():
            waiting, turn = self._read()
            if not self._leave_to_its_owner(waiting, turn) and turn in (0, self._place + 1):
                self._wake_next(waiting, ONCE) or self._wake_next(waiting, ON)

    def rest(self) -> None:
        """This process has nothing more to write now: its turn ends, and the next is woken."""
        self._goes_on = self._met = False
        if self._since is not None:
            self._since = None
            waiting, _ = self._read()
            if self._wake_next(waiting, ONCE) or not self._wake_next(waiting, ON):
                self._say(PLACES, 0)

    def _has_company(self) -> bool:
        """Whether another process may wait, and can be woken."""
        return (self._others() or self._met) and self._find() is not None

    def _is_anothers(self, waiting: bytes, turn: int) -> bool:
        """Whether it is another's turn, who is woken if it waits."""
        if turn in (0, self._place + 1):
            return False
        if waiting[turn - 1]:
            self._wake(turn - 1)
        return True

    def _leave_to_its_owner(self, waiting: bytes, turn: int) -> bool:
        """Whether it is another's turn, who waits and has been woken. One that does not wait has yet to wait, and says again that it is its turn; or it does
        not use its turn, or has died in it, and the next who commits wakes another."""
        if not self._is_anothers(waiting, turn):
            return False
        if not waiting[turn - 1]:
            self._say(PLACES, 0)
        return bool(waiting[turn - 1])

    def _begin(self, since: float | None = None) -> None:
        self._since = self._clock() if since is None else since
        self._say(PLACES, self._place + 1)

    def _wake_next(self, waiting: bytes, what: int) -> bool:
        """Wakes the next of those who wait for this; those who go on have their turn then. Whether there was one."""
        if what not in waiting:
            return False
        first = self._place + 1 if what == ON else self._next  # turns go round; of the lone ones this process lets in one after the other
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
        """Whether there is somebody to wake. It is told once: it may be stopped, or gone, and the next is told then."""
        self._say(place, 0)
        try:
            cast(socket.socket, self._socket).sendto(b"!", self._names[place])
        except OSError:
            return False
        return True

    # -- the board ----------------------------------------------------------------------------------

    def _read(self) -> tuple[bytes, int]:
        """Who waits for what, by places, and whose turn it is: its place and one more, or 0."""
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
        """What it is woken through, made when it is first needed: whoever only reads takes no place."""
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
        self._ends = (weakref.finalize(self, os.close, fd), weakref.finalize(self, made.close))  # of a store that nobody closes, too
        self._names = tuple([f"\0holdfast-turn-{os.geteuid()}-{file.st_dev:x}-{file.st_ino:x}-{n}" for n in range(PLACES)])
        for place, name in enumerate(self._names):
            with contextlib.suppress(OSError):  # another has this name
                made.bind(name)
                self._place, self._fd, self._socket = place, fd, made
                return

    def close(self) -> None:
        """Gives its turn and its place back; from now on pauses are pauses."""
        self._leave()
        self.rest()
        self._looked, self._socket = True, None
        for end in self._ends:
            end()


class LockWait:
    """Where the loop that writes waits for the lock of the file. ``write`` is called when it is this process's turn, or when it has waited long enough: it finds
    the lock free, or waits again. It is told whether others have been woken who come first."""

    def __init__(self, turns: Turns, write: Callable[[bool], None]) -> None:
        self._turns = turns
        self._write = write
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._once = False
        self._listens: asyncio.AbstractEventLoop | None = None
        self._let_in: list[asyncio.Future[None]] = []

    @property
    def on(self) -> bool:
        """Whether this process waits now; a loop that has died does not."""
        return self._timer is not None and not self._timer[0].is_closed()

    def begin(self, *, once: bool = False) -> None:
        """Waits, unless it does; ``once``: for one commit that shall not wait for a turn of this process."""
        if self.on and self._once >= once:
            return
        self._end()
        loop = asyncio.get_running_loop()
        self._once = once
        self._timer = (loop, loop.call_later(self._turns.wait(once=once), self._look))
        if self._listens is not loop and (fd := self._turns.fileno()) >= 0:
            with contextlib.suppress(NotImplementedError):  # a loop that cannot: it looks by itself
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
        """Waits no longer.

        Whoever waits to be let in gets ``StoreClosed``.
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
