"""The anchor: a small file beside the database that remembers how far the log had come (§1.9).

SQLite cannot see that its write-ahead log was lost or that an old copy was put back. The anchor holds the store's
incarnation, the last acknowledged log id and that row's hash. It is written after COMMIT and before the answer,
without a sync, so it is exact after a killed process and never ahead of the log; a thread syncs it each second.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.stores.files import on_disk

_LAYOUT = struct.Struct(">4sIQ16sQ")
_MAGIC = b"HFA2"
_SIZE = _LAYOUT.size + 4
_FIRST = struct.Struct(">4sIQ16s")
_FIRST_MAGIC = b"HFA1"  # release 0.1.0 counted log rows only
SYNC_EVERY = 1.0


class Mark(NamedTuple):
    """Incarnation, the last log id and the hash of its row; id 0 is an empty log. ``writes``: the last transaction without a log row."""

    incarnation: int
    last: int
    hash: bytes
    writes: int = 0

    def raised(self, other: Mark) -> Mark:
        """The newer of both in each respect."""
        last, digest = max((self.last, self.hash), (other.last, other.hash), key=lambda end: end[0])
        return Mark(self.incarnation, last, digest, max(self.writes, other.writes))


def pack(mark: Mark) -> bytes:
    body = _LAYOUT.pack(_MAGIC, mark.incarnation, mark.last, mark.hash.ljust(16, b"\0"), mark.writes)
    return body + zlib.crc32(body).to_bytes(4, "big")


def unpack(data: bytes) -> Mark | None:
    """The mark, or None if the bytes are no whole, undamaged one."""
    if zlib.crc32(data[:-4]).to_bytes(4, "big") != data[-4:]:
        return None
    if len(data) == _SIZE and data[:4] == _MAGIC:
        return Mark(*_LAYOUT.unpack(data[:-4])[1:])
    if len(data) == _FIRST.size + 4 and data[:4] == _FIRST_MAGIC:
        return Mark(*_FIRST.unpack(data[:-4])[1:])
    return None


def pack_head(incarnation: int) -> bytes:
    """The bytes before the log id."""
    return _MAGIC + incarnation.to_bytes(4, "big")


def _work(of: weakref.ref[Anchor], stop: threading.Event) -> None:
    while not stop.wait(SYNC_EVERY) and (anchor := of()) is not None:
        anchor.tick()
        del anchor  # else it would live as long as the next wait


class Anchor:
    """The open anchor file. ``raise_to`` may be called from any thread and by many processes.

    ``failed`` is told where a sync fails; ``each_second`` is called by the thread that syncs, before it does.
    """

    def __init__(self, path: str, failed: Callable[[OSError], None] = lambda _: None, each_second: Callable[[], None] = lambda: None) -> None:
        self.path = path
        self._failed = failed
        self._each_second = each_second
        self._fd = -1
        self._dirty = False
        # Threads share the descriptor, and a file lock does not keep them apart.
        self._threads = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._threads:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def open(self) -> Mark | None:
        """Opens or creates the file; None if it was not there, is empty, or is damaged.

        Raises:
            StoreFull, StoreReadOnly, StoreError: by what the disk says.
        """
        with on_disk(self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            self._stop.clear()
            return self.read()

    def read(self) -> Mark | None:
        return unpack(os.pread(self._fd, _SIZE + 1, 0))

    def begin(self, mark: Mark, *, first: bool = False) -> None:
        """Starts afresh, downwards too: a new incarnation, or with ``first`` a new store unless another process was quicker."""
        with on_disk(self.path), self._locked():
            if first and self.read() is not None:
                return
            os.pwrite(self._fd, pack(mark), 0)
            os.ftruncate(self._fd, _SIZE)
            os.fsync(self._fd)

    def raise_to(self, mark: Mark) -> bool:
        """Moves the anchor upwards; False if the store has another incarnation by now, and nothing was written."""
        with self._threads:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            try:
                data = os.pread(self._fd, _SIZE + 1, 0)
                if data[:8] != pack_head(mark.incarnation):  # of another incarnation, or of a past release
                    there = unpack(data)
                    if there is None or there.incarnation != mark.incarnation:
                        return False
                else:  # on the way of every commit: what is known of its bytes is read as numbers
                    there = Mark(mark.incarnation, int.from_bytes(data[8:16], "big"), data[16:32], int.from_bytes(data[32:40], "big"))
                if there.last < mark.last or there.writes < mark.writes or data[:4] != _MAGIC:
                    os.pwrite(self._fd, pack(there.raised(mark)), 0)
                    self._dirty = True
                return True
            finally:
                fcntl.flock(self._fd, fcntl.LOCK_UN)

    def of(self, incarnation: int) -> bool:
        """Whether it still is that of this incarnation."""
        there = self.read()
        return there is not None and there.incarnation == incarnation

    def keep_synced(self) -> None:
        """Starts the thread that syncs about each second. It keeps no store alive that its owner has dropped without closing it, and ends with it."""
        self._thread = threading.Thread(target=_work, args=(weakref.ref(self), self._stop), name="holdfast-anchor", daemon=True)
        self._thread.start()

    def tick(self) -> None:
        """What the thread does each second."""
        self._each_second()
        try:
            self.sync()
        except OSError as e:  # the loop goes on: what it could not sync is said, and tried again
            self._failed(e)

    def sync(self) -> None:
        """Brings what was written onto the disk.

        Raises:
            OSError: it failed; what is not synced stays so, and is tried again.
        """
        if self._dirty:
            self._dirty = False
            try:
                os.fsync(self._fd)
            except OSError:
                self._dirty = True
                raise

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._fd >= 0:
            try:
                self.sync()
            except OSError as e:
                self._failed(e)
            finally:
                os.close(self._fd)
                self._fd = -1
