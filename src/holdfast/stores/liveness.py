"""Proof of life: a file per owner beside the database, locked for as long as its process lives (§2.9).

The kernel lets go of the lock when the process ends, however it ends. Whoever can take the lock has proof that the
owner is dead; whoever cannot has proof that it lives. Without the file, or on another machine, nothing is known.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import time
from urllib.parse import quote

from holdfast.core.errors import Conflict, StoreReadOnly
from holdfast.core.lease import Alive


def boot() -> str:
    """Which boot of which machine this is: a lock or a tick count means something only within it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return platform.node()


def ticks() -> int:
    """Microseconds of a clock that goes on while the machine sleeps and that nobody sets (§10.3)."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


class Liveness:
    """The folder of liveness files of one store."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def _path(self, owner: str) -> str:
        name = quote(owner, safe="@:")
        return os.path.join(self._folder, name if len(name) <= 200 and name.strip(".") else hashlib.sha256(owner.encode()).hexdigest())

    def hold(self, owner: str) -> None:
        """Locks the owner's file until ``release``, ``drop`` or the end of the process."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            fd = os.open(self._path(owner), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as e:
            raise StoreReadOnly(f"{self._folder} cannot be written: {e.strerror}", hint="check the permissions of the folder") from e
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Conflict(f"the worker {owner} is registered already", hint="an owner id is unique per process start", code="owner_taken") from None
        self._held[owner] = fd

    def holds(self, owner: str) -> bool:
        return owner in self._held

    def release(self, owner: str) -> None:
        """A clean end: the file goes too."""
        fd = self._held.pop(owner, None)
        self.forget(owner)
        if fd is not None:
            os.close(fd)

    def drop(self, owner: str) -> None:
        """Lets go of the lock and leaves the file: from now on the owner is proven dead."""
        fd = self._held.pop(owner, None)
        if fd is not None:
            os.close(fd)

    def forget(self, owner: str) -> None:
        try:
            os.unlink(self._path(owner))
        except FileNotFoundError:
            return

    def alive(self, owner: str) -> Alive:
        """By proof only, about an owner of this boot of this machine."""
        if owner in self._held:
            return Alive.YES
        try:
            fd = os.open(self._path(owner), os.O_RDWR)
        except OSError:
            return Alive.UNKNOWN
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Alive.YES
        except OSError:
            return Alive.UNKNOWN
        finally:
            os.close(fd)
        return Alive.NO

    def close(self) -> None:
        for owner in list(self._held):
            self.drop(owner)


