"""Proof of life: a file per owner beside the database, locked for as long as its process lives (§2.9).

The kernel lets go of the lock when the process ends, however it ends. Whoever can take the lock has proof that the
owner is dead; whoever cannot has proof that it lives. Where there is no file, the owner's name may still prove it: the
machine was started anew, or there is no such process. A file stays for as long as an open attempt names its owner.
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
    """A child holds no proof of its parent's life: it would keep a dead owner alive."""
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
        """Closes what it holds, in the child of a fork: the parent holds it still."""
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
        """A clean end: the file goes too, unless it is kept."""
        fd = self._held.pop(owner, None)
        if self._path(owner) not in _kept:
            self.forget(owner)
        if fd is not None:
            os.close(fd)

    def keep(self, owner: str) -> None:
        """The owner is gone, but something of it still runs here: its file stays locked until this process ends."""
        fd = self._held.pop(owner, None)
        if fd is not None:
            _kept[self._path(owner)] = fd

    def drop(self, owner: str) -> None:
        """Lets go of the lock and leaves the file: from now on the owner is proven dead."""
        fd = self._held.pop(owner, None)
        if fd is not None:
            os.close(fd)

    def forget(self, owner: str) -> None:
        with on_disk(self.folder), contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(owner))

    def alive(self, owner: str) -> Alive:
        """By proof only, from the owner's file; where there is none, from its name."""
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
        """The owners that are proven to live, by name."""
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


