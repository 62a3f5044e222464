"""Proof of life: a file per owner beside the database, locked as long as its process lives (§2.9).

The kernel releases the lock when the process ends, however it ends. If another process can take the lock, the owner is proven dead; if it cannot,
the owner is proven alive. If there is no file, the owner's name may still prove its death: the machine was restarted, or there is no such process. A
file stays as long as an open attempt names its owner.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import weakref
from urllib.parse import quote, unquote

from holdfast.core.errors import Conflict
from holdfast.core.lease import Alive
from holdfast.machine import alive_by_name, may_prove
from holdfast.stores.files import on_disk, store_error

# Locks of owners that were retired while a thread of theirs still ran: held until this process ends.
_kept: dict[str, int] = {}


_all: weakref.WeakSet[Liveness] = weakref.WeakSet()


def _note_fork() -> None:
    """Closes the locks in a forked child: a child with a lock of its parent would keep a dead owner alive."""
    for liveness in list(_all):
        liveness.let_go()
    for fd in _kept.values():
        os.close(fd)
    _kept.clear()


os.register_at_fork(after_in_child=_note_fork)


class Liveness:
    """The folder of liveness files of one store."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._held: dict[str, int] = {}
        _all.add(self)

    def let_go(self) -> None:
        """Closes the locks in the child of a fork; the parent still has them."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    def _path(self, owner: str) -> str:
        name = quote(owner, safe="@:")
        return os.path.join(self.folder, name if len(name) <= 200 and name.strip(".") else hashlib.sha256(owner.encode()).hexdigest())

    def hold(self, owner: str) -> None:
        """Locks the owner's file until ``release``, ``drop`` or the end of the process."""
        try:
            os.makedirs(self.folder, exist_ok=True)
            fd = os.open(self._path(owner), os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as e:
            raise store_error(e, self.folder) from e
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Conflict(f"the worker {owner} is registered already", hint="an owner id is unique per process start", code="owner_taken") from None
        except OSError as e:
            os.close(fd)
            raise store_error(e, self.folder) from e
        self._held[owner] = fd

    def holds(self, owner: str) -> bool:
        return owner in self._held

    def release(self, owner: str) -> None:
        """Ends an owner cleanly: the file is deleted too, unless it is kept."""
        fd = self._held.pop(owner, None)
        if self._path(owner) not in _kept:
            self.forget(owner)
        if fd is not None:
            os.close(fd)

    def keep(self, owner: str) -> None:
        """Keeps the owner's file locked until this process ends: the owner is retired, but some of its work still runs here."""
        fd = self._held.pop(owner, None)
        if fd is not None:
            _kept[self._path(owner)] = fd

    def drop(self, owner: str) -> None:
        """Releases the lock and leaves the file: from now on the owner is proven dead."""
        fd = self._held.pop(owner, None)
        if fd is not None:
            os.close(fd)

    def forget(self, owner: str) -> None:
        with on_disk(self.folder), contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(owner))

    def alive(self, owner: str) -> Alive:
        """Returns whether an owner is alive, by proof only: from its file or, if there is none, from its name."""
        path = self._path(owner)
        if owner in self._held or path in _kept:
            return Alive.YES
        if not may_prove(owner):
            return Alive.UNKNOWN
        try:
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return alive_by_name(owner)
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

    def living(self) -> list[str]:
        """Returns the owners that are proven alive, by name."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as e:
            raise store_error(e, self.folder) from e
        return sorted(n for n in map(unquote, names) if self.alive(n) is Alive.YES)

    def close(self) -> None:
        for owner in list(self._held):
            self.drop(owner)


