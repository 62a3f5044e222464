"""Taking turns at the write lock of a file (§1.11).

SQLite lets one process write at a time, and wakes nobody: whoever finds the file locked looks again after a pause, and the lock may lie unused
meanwhile. So the processes of one machine tell each other. Whoever waits for the lock says so in a byte of the board (``stores/changes``), and
whoever has committed wakes the next of those who wait, by a datagram.

Like the bell this is a hint, and may be lost: it shortens a pause, and SQLite's lock decides. One that has died while it waited costs whoever
commits next a datagram that goes nowhere.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import time
import weakref

from holdfast.stores.changes import AFTER_NEWS, PLACES

_NOBODY = bytes(PLACES)


class Turns:
    """The turns of one process at a file, whose board is at the path ``board``. Where there is nothing like it, pauses are pauses. Any thread may wait."""

    def __init__(self, board: str, database: str) -> None:
        self._board = board
        self._database = database
        self._looked = False
        self._names: tuple[str, ...] = ()
        self._place = 0
        self._fd = -1
        self._socket: socket.socket | None = None
        self._ends: tuple[weakref.finalize[..., Turns], ...] = ()
        self._says = False

    def wait(self, seconds: float) -> None:
        """Pauses until this process is woken, or for so long."""
        if (mine := self._find()) is None:
            time.sleep(seconds)
            return
        if not self._says:
            self._says = self._say(self._place, b"\1")
        look = select.poll()  # of this thread alone: others may wait too
        look.register(mine, select.POLLIN)
        if look.poll(seconds * 1e3):
            with contextlib.suppress(OSError):  # there is no more, or another thread has taken it
                while mine.recv(8):
                    pass

    def leave(self) -> None:
        """Waits no longer: it has had the lock, or gives up."""
        if self._says:
            self._says = False
            self._say(self._place, b"\0")

    def pass_on(self) -> None:
        """Wakes the next of those who wait, after a commit of this process."""
        self.leave()
        if (mine := self._find()) is None:
            return
        try:
            waiting = os.pread(self._fd, PLACES, AFTER_NEWS).ljust(PLACES, b"\0")
        except OSError:
            return
        if waiting == _NOBODY:
            return
        for n in range(1, PLACES):
            place = (self._place + n) % PLACES
            if waiting[place]:
                try:
                    mine.sendto(b"!", self._names[place])
                    return
                except BlockingIOError:
                    pass  # it has been told often, and does not look: it may be stopped
                except OSError:
                    self._say(place, b"\0")  # it is gone

    def _say(self, place: int, word: bytes) -> bool:
        try:
            return os.pwrite(self._fd, word, AFTER_NEWS + place) == 1
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
        """Gives its place back; from now on pauses are pauses."""
        self.leave()
        self._looked, self._socket = True, None
        for end in self._ends:
            end()


__all__ = ["Turns"]
