"""Maps errors of the operating system to Holdfast's; and tells whether a path still leads to the file that was opened."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from holdfast.core.errors import StoreError, StoreFull, StoreReadOnly

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
ANCHOR, LIVE = "-anchor", "-live"
"""What a SQLite store has beside it: the file that vouches for its end, and the folder with the proofs of life of its owners."""
_NO_MORE = frozenset({errno.EMFILE, errno.ENFILE})


def fix_place(path: str) -> str:
    """Returns the path as an absolute one, from the current working directory, which a node may change. An absolute path stays as it is."""
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def find_base(path: str) -> str:
    """Returns the path beside which the files lie that Holdfast keeps with a store. If the store's path is a link to its file, that is the path of the file, so
    that all who open the store agree, by whatever path; but what a past release has laid beside the link stays in use."""
    if not os.path.islink(path):
        return path
    try:
        known = os.path.getsize(path + ANCHOR) > 0
    except OSError:
        known = False
    return path if known else os.path.realpath(path)


def stamp_of(*paths: str) -> int:
    """Returns a number that changes when any of these files is written, made or removed. Writes within a few milliseconds may count as one."""
    found: list[tuple[int, ...] | None] = []
    for path in paths:
        try:
            there = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((there.st_ino, there.st_size, there.st_mtime_ns))
    return hash(tuple(found))


def store_error(error: OSError, path: str) -> StoreError:
    """Maps an error of the operating system to one of Holdfast's, which says who must act."""
    said = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreFull(f"{path}: the disk is full: {said}", hint="free some space, then try again: everything committed before is intact")
    if error.errno in _REFUSED:
        return StoreReadOnly(f"{path} cannot be written: {said}", hint="check the permissions of the file and of its folder")
    if error.errno in _NO_MORE:
        return StoreError(f"{path}: no more files can be opened: {said}", hint="raise the limit (ulimit -n), or close some", code="store_io")
    return StoreError(f"{path}: input or output failed: {said}", hint="check the disk; Holdfast reads the data back to see whether the write succeeded", code="store_io")


@contextlib.contextmanager
def on_disk(path: str) -> Iterator[None]:
    """Raises Holdfast's errors instead of the operating system's."""
    try:
        yield
    except OSError as e:
        raise store_error(e, path) from e


C = TypeVar("C")


def disk_told(place: Callable[[Any], str]) -> Callable[[type[C]], type[C]]:
    """A class decorator for stores: every public verb that the class defines raises Holdfast's errors instead of the operating system's. ``place``
    returns where a store's files are."""

    def verb(function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(function)
        async def ask(self: Any, *args: Any, **options: Any) -> Any:
            try:
                return await function(self, *args, **options)
            except OSError as e:
                raise store_error(e, place(self)) from e

        return ask

    def mark(cls: type[C]) -> type[C]:
        for name, found in list(vars(cls).items()):
            if inspect.iscoroutinefunction(found) and not name.startswith("_"):
                setattr(cls, name, verb(found))
        return cls

    return mark


class Identity:
    """Which file a path led to when it was opened. A file that is removed, moved or replaced while it is open is noticed, even if a link to it is
    left in its place. ``filled``: it is never empty from then on."""

    def __init__(self, path: str, *, filled: bool = False) -> None:
        self._path = path
        self._filled = filled
        with on_disk(path):
            self._first, _ = self._now()
            self._plain = os.lstat(path)[:3] if self._first is not None and self._first[1] == self._first[2] else None  # its mode, inode and device

    def is_plain(self) -> bool:
        """A quick check whether the file is the same, which nearly always succeeds. If it does not, ``tell_lost`` decides."""
        try:
            found = os.lstat(self._path)
        except OSError:
            return False
        return found[:3] == self._plain and (found[6] > 0 or not self._filled)

    def _now(self) -> tuple[tuple[int, int, int] | None, int]:
        """Returns which file is there, with the inode of the name itself, and its size."""
        try:
            found = name = os.lstat(self._path)
            if stat.S_ISLNK(name.st_mode):
                found = os.stat(self._path)
        except FileNotFoundError:
            return None, 0
        return (found.st_dev, found.st_ino, name.st_ino), found.st_size

    def tell_lost(self) -> str:
        """Returns what has become of the file; empty if it is the same."""
        try:
            there, size = self._now()
        except OSError as e:
            return f"cannot be examined: {e.strerror}"
        if there == self._first:
            return "was emptied" if self._filled and not size else ""
        return "was removed or moved" if there is None else "was replaced by another file"


__all__ = ["ANCHOR", "LIVE", "Identity", "disk_told", "find_base", "fix_place", "on_disk", "stamp_of", "store_error"]
