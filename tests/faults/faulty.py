"""A file layer that fails on command: every call by which a store reaches the disk, counted, and one or all of them refused.

SQLite goes through a VFS of its own (``apsw``); everything else goes through the functions of ``os`` and ``open``, which stand in for
themselves while the layer is on. Only paths below its folder are concerned; a descriptor is known by the path it was opened with.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import apsw

ERRORS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "EDQUOT": errno.EDQUOT, "EMFILE": errno.EMFILE}
FULL = ("ENOSPC", "EDQUOT")
POSSIBLE = {
    "open": ("EIO", "EMFILE", "ENOSPC", "EDQUOT"), "read": ("EIO",), "write": ("EIO", "ENOSPC", "EDQUOT"), "fsync": ("EIO", "ENOSPC", "EDQUOT"),
    "rename": ("EIO", "ENOSPC", "EDQUOT"), "truncate": ("EIO", "ENOSPC"), "remove": ("EIO",), "mkdir": ("EIO", "ENOSPC", "EDQUOT"),
    "list": ("EIO", "EMFILE"), "stat": ("EIO",), "lock": ("EIO",), "map": ("EIO",),
}
"""Which errors each kind of call can meet. (``link`` is a rename.)"""


class Faulty:
    """The layer. ``plan``: the kind of call to fail, its number among its kind (from 1), the error, and whether all later ones fail too."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder)
        self.counts: Counter[str] = Counter()
        self.plan: tuple[str, int, str, bool] | None = None
        self.met = 0
        self._paths: dict[int, str] = {}

    def mine(self, path: Any) -> bool:
        if isinstance(path, int):
            return path in self._paths
        try:
            return os.path.abspath(os.fsdecode(path)).startswith(self.folder)
        except TypeError:
            return False

    def forget(self, fd: int) -> None:
        """A descriptor is closed; its number may soon stand for a file elsewhere."""
        self._paths.pop(fd, None)

    def fails(self, kind: str) -> str | None:
        """Counts a call; gives the error that it meets."""
        self.counts[kind] += 1
        if self.plan is None or self.plan[0] != kind:
            return None
        _, number, error, lasting = self.plan
        if self.counts[kind] == number or (lasting and self.counts[kind] > number):
            self.met += 1
            return error
        return None

    def call(self, kind: str, path: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if self.mine(path) and (name := self.fails(kind)) is not None:
            raise OSError(ERRORS[name], os.strerror(ERRORS[name]), path if isinstance(path, str) else None)
        return function(*args, **options)

    # -- the functions of os ------------------------------------------------------------------------

    @contextmanager
    def on(self) -> Iterator[None]:
        real = {name: getattr(os, name) for name in CALLS} | {"open": os.open, "close": os.close, "write": os.write, "pwrite": os.pwrite}
        opened, flock = builtins.open, fcntl.flock

        def standing(kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda path, *args, **options: self.call(kind, path, function, path, *args, **options)

        def open_(path: Any, *args: Any, **options: Any) -> int:
            fd: int = self.call("open", path, real["open"], path, *args, **options)
            if self.mine(path):
                self._paths[fd] = os.fsdecode(path)
            return fd

        def close(fd: int) -> None:
            self.forget(fd)
            real["close"](fd)

        def write(name: str) -> Callable[..., int]:
            def half(fd: int, data: bytes, *args: Any) -> int:
                if self.mine(fd) and (error := self.fails("write")) is not None:
                    if error in FULL and len(data) > 1 and name == "write":  # a disk that fills up takes what it can, and then nothing
                        real[name](fd, data[: len(data) // 2], *args)
                    raise OSError(ERRORS[error], os.strerror(ERRORS[error]))
                done: int = real[name](fd, data, *args)
                return done

            return half

        def open_file(path: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            f = self.call("open", path, opened, path, mode, *args, **options)
            if not self.mine(path):
                return f
            self._paths[f.fileno()] = os.fsdecode(path)
            return File(f, self)

        stands: list[Any] = [patch.object(os, name, standing(kind, real[name])) for name, kind in CALLS.items()]
        stands += [patch.object(os, "open", open_), patch.object(os, "close", close), patch.object(os, "write", write("write"))]
        stands += [patch.object(os, "pwrite", write("pwrite")), patch.object(builtins, "open", open_file)]
        stands += [patch.object(fcntl, "flock", lambda fd, how: self.call("lock" if how != fcntl.LOCK_UN else "unlock", fd, flock, fd, how))]
        for each in stands:
            each.start()
        vfs = _Vfs(self)
        try:
            yield
        finally:
            vfs.unregister()
            for each in reversed(stands):
                each.stop()


CALLS = {
    "fsync": "fsync", "replace": "rename", "rename": "rename", "link": "rename", "truncate": "truncate", "ftruncate": "truncate", "unlink": "remove",
    "rmdir": "remove", "mkdir": "mkdir", "listdir": "list", "scandir": "list", "pread": "read", "stat": "stat",
}


class File:
    """A file object whose reads and writes are counted."""

    def __init__(self, f: Any, layer: Faulty) -> None:
        self._f = f
        self._fd: int = f.fileno()
        self._layer = layer

    def __enter__(self) -> File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._f, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._f)

    def read(self, *args: int) -> Any:
        return self._layer.call("read", self._fd, self._f.read, *args)

    def write(self, data: Any) -> Any:
        return self._layer.call("write", self._fd, self._f.write, data)

    def close(self) -> None:
        self._layer.forget(self._fd)
        self._f.close()


class _Vfs(apsw.VFS):
    """SQLite's way to the disk, while the layer is on: the default one for connections that are opened meanwhile."""

    def __init__(self, layer: Faulty) -> None:
        self.layer = layer
        super().__init__("faulty", "", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        if (error := self.layer.fails("open")) is not None:
            raise apsw.CantOpenError(f"{error} while opening")
        return _VfsFile(self.layer, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if (error := self.layer.fails("remove")) is not None:
            raise apsw.IOError(f"{error} while deleting")
        super().xDelete(filename, syncdir)


class _VfsFile(apsw.VFSFile):
    def __init__(self, layer: Faulty, name: Any, flags: list[int]) -> None:
        self.layer = layer
        super().__init__("unix", name, flags)

    def _fail(self, kind: str) -> None:
        if (error := self.layer.fails(kind)) is not None:
            raise (apsw.FullError if error in FULL else apsw.IOError)(f"{error} while a {kind}")

    def xRead(self, amount: int, offset: int) -> bytes:
        self._fail("read")
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        if (error := self.layer.fails("write")) is not None:
            if error in FULL:
                super().xWrite(data[: len(data) // 2], offset)
                raise apsw.FullError(f"{error} while writing")
            raise apsw.IOError(f"{error} while writing")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._fail("fsync")
        super().xSync(flags)

    def xTruncate(self, newsize: int) -> None:
        self._fail("truncate")
        super().xTruncate(newsize)

    def xFileSize(self) -> int:
        self._fail("stat")
        return super().xFileSize()


__all__ = ["ERRORS", "FULL", "POSSIBLE", "Faulty"]
