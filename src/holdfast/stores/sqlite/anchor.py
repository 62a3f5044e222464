"""The anchor: a small file beside the database that remembers how far the log had come (§1.9).

SQLite cannot see that its write-ahead log was lost or that an old copy was put back. The anchor holds the store's
incarnation, the last acknowledged log id and that row's hash. It is written after COMMIT and before the answer,
without a sync, so it is exact after a killed process and never ahead of the log; a thread syncs it each second.

Many processes write it, and none waits for another: a process that is stopped in the middle of a write holds up nobody. So
each acknowledged log id has a place of its own in the file, by its remainder, and the newest place counts. One that is written
too late takes nothing away from a newer one.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import struct
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.core.errors import StoreBusy
from holdfast.stores.files import on_disk

_HEAD = struct.Struct(">4sI20x")
_ROW = struct.Struct(">IQ16s")
_WRITES = struct.Struct(">IQ16x")
_PLACE = 32  # bytes: 28 of one of these, and their checksum
ROWS, WRITES = 64, 63
"""How many places there are for log ids, behind the head, and for the count of other transactions, behind those."""
SIZE = (1 + ROWS + WRITES) * _PLACE
_MAGIC = b"HFA3"
_NOTHING = bytes(_PLACE)
_PAST = {b"HFA1": struct.Struct(">4sIQ16s"), b"HFA2": struct.Struct(">4sIQ16sQ")}
"""One mark was the whole file in 0.1.0, which counted log rows only, and later."""
SYNC_EVERY = 1.0
PATIENCE = 5.0
"""Seconds to wait for another process that begins the file afresh."""


class Mark(NamedTuple):
    """Incarnation, the last log id and the hash of its row; id 0 is an empty log. ``writes``: the last transaction without a log row."""

    incarnation: int
    last: int
    hash: bytes
    writes: int = 0


def pack(mark: Mark) -> bytes:
    """The whole file, with this mark alone."""
    data = bytearray(SIZE)
    data[:_PLACE] = _check(_HEAD.pack(_MAGIC, mark.incarnation))
    for at, place in _places(mark):
        data[at : at + _PLACE] = _check(place)
    return bytes(data)


def unpack(data: bytes) -> Mark | None:
    """The mark, or None if the bytes are no whole, undamaged file."""
    if data[:4] in _PAST:
        return _past(_PAST[data[:4]], data)
    places = [data[at : at + _PLACE] for at in range(0, SIZE, _PLACE)]
    if len(data) != SIZE or data[:4] != _MAGIC or any(place != _NOTHING and _check(place[:-4]) != place for place in places):
        return None
    incarnation = int(_HEAD.unpack(places[0][:-4])[1])
    rows = [_ROW.unpack(place[:-4]) for place in places[1 : 1 + ROWS]]
    counts = [_WRITES.unpack(place[:-4]) for place in places[1 + ROWS :]]
    # A process that stood still may write of an incarnation that is over.
    _, last, digest = max((r for r in rows if r[0] == incarnation), key=lambda r: r[1], default=(0, 0, b""))
    return Mark(incarnation, last, digest, max((n for of, n in counts if of == incarnation), default=0))


@functools.lru_cache(16)
def _begins(incarnation: int) -> bytes:
    """What the file of an incarnation begins with."""
    return _MAGIC + incarnation.to_bytes(4, "big")


def _past(layout: struct.Struct, data: bytes) -> Mark | None:
    whole = len(data) == layout.size + 4 and zlib.crc32(data[:-4]).to_bytes(4, "big") == data[-4:]
    return Mark(*layout.unpack(data[:-4])[1:]) if whole else None


def _check(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "big")


def _places(mark: Mark) -> list[tuple[int, bytes]]:
    """Where what of a mark goes, and what goes there but for its checksum."""
    places = []
    if mark.last:
        places.append(((1 + mark.last % ROWS) * _PLACE, _ROW.pack(mark.incarnation, mark.last, mark.hash)))
    if mark.writes:
        places.append(((1 + ROWS + mark.writes % WRITES) * _PLACE, _WRITES.pack(mark.incarnation, mark.writes)))
    return places


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
        self._threads = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else begins the file afresh meanwhile.

        Raises:
            StoreBusy: somebody does, and has not come to its end for a while.
        """
        with self._threads:  # they share the descriptor, and a file lock does not keep them apart
            until = time.monotonic() + PATIENCE
            while True:
                try:
                    fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise StoreBusy(f"another process has locked {self.path}", hint="look for one that is stopped: end it, or let it continue") from None
                    time.sleep(0.01)
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
        return unpack(os.pread(self._fd, SIZE + 1, 0))

    def begin(self, mark: Mark, *, first: bool = False) -> None:
        """Starts afresh, downwards too: a new incarnation, or with ``first`` a new store unless another process was quicker.

        Raises:
            StoreFull, StoreReadOnly, StoreError: by what the disk says.
            StoreBusy: another process begins it, and does not come to its end.
        """
        with on_disk(self.path), self._alone():
            if not first or self.read() is None:
                self._write(mark)

    def renew(self) -> None:
        """A file of a past release becomes one of this; what is still at work there writes no more.

        Raises:
            StoreFull, StoreReadOnly, StoreError: by what the disk says.
            StoreBusy: another process begins it, and does not come to its end.
        """
        with on_disk(self.path):
            if os.pread(self._fd, 4, 0) in _PAST:
                with self._alone():
                    there = self.read()
                    if there is not None and os.pread(self._fd, 4, 0) in _PAST:
                        self._write(there)

    def _write(self, mark: Mark) -> None:
        os.pwrite(self._fd, pack(mark), 0)
        os.ftruncate(self._fd, SIZE)
        os.fsync(self._fd)

    def raise_to(self, mark: Mark) -> bool:
        """Moves the anchor upwards; False if the store has another incarnation by now, and nothing was written."""
        with self._threads:
            data = os.pread(self._fd, SIZE, 0)
            if not data.startswith(_begins(mark.incarnation)):
                return False
            for at, place in _places(mark):
                there = data[at : at + 12]
                if there < place[:12] or there[:4] != place[:4]:  # the incarnation and the number, compared as numbers are
                    os.pwrite(self._fd, _check(place), at)
                    self._dirty = True
            return True

    def raise_row(self, incarnation: int, number: int, digest: bytes) -> bool:
        """``raise_to`` for a mark of a log row alone, as nearly each commit leaves it."""
        place, at = _ROW.pack(incarnation, number, digest), (1 + number % ROWS) * _PLACE
        with self._threads:
            data = os.pread(self._fd, at + 12, 0)
            if data[:8] != _begins(incarnation):
                return False
            there = data[at:]
            if there < place[:12] or there[:4] != place[:4]:
                os.pwrite(self._fd, _check(place), at)
                self._dirty = True
        return True

    def of(self, incarnation: int) -> bool:
        """Whether it still is that of this incarnation."""
        return os.pread(self._fd, 8, 0) == _begins(incarnation)

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
