"""The anchor: a small file beside the database that records how far the log had come (§1.9).

SQLite cannot see that its write-ahead log was lost or that an old copy was put back. The anchor holds the store's incarnation, the last acknowledged
log id and that row's hash. It is written after COMMIT and before the answer, without a sync, so it is exact after a killed process and never ahead of
the log; a thread syncs it each second.

Many processes write it without waiting for each other, so a process that is suspended in the middle of a write delays nobody. For that, each
acknowledged log id has a place of its own in the file, by its remainder, and the newest place counts. A write that comes too late does not replace a
newer one.
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
_PLACE = 32  # bytes: 28 of a head, row or count, and 4 of their checksum
ROWS, WRITES = 64, 63
"""How many places there are for log ids, behind the head, and for the count of transactions without a log row, behind those."""
SIZE = (1 + ROWS + WRITES) * _PLACE
_MAGIC = b"HFA3"
_NOTHING = bytes(_PLACE)
_PAST = {b"HFA1": struct.Struct(">4sIQ16s"), b"HFA2": struct.Struct(">4sIQ16sQ")}
"""The layouts of past releases, in which one mark was the whole file: 0.1.0, which counted log rows only, and a later one."""
SYNC_EVERY = 1.0
PATIENCE = 5.0
"""Seconds to wait for another process that is rewriting the file."""


class Mark(NamedTuple):
    """Incarnation, last log id and that row's hash; id 0 is an empty log. ``writes``: the last transaction without a log row."""

    incarnation: int
    last: int
    hash: bytes
    writes: int = 0


def pack(mark: Mark) -> bytes:
    """Returns the whole file, with this mark alone."""
    data = bytearray(SIZE)
    data[:_PLACE] = _check(_HEAD.pack(_MAGIC, mark.incarnation))
    for at, place in _places(mark):
        data[at : at + _PLACE] = _check(place)
    return bytes(data)


def unpack(data: bytes) -> Mark | None:
    """Returns the mark, or None if the bytes are not a whole, undamaged file."""
    if data[:4] in _PAST:
        return _past(_PAST[data[:4]], data)
    places = [data[at : at + _PLACE] for at in range(0, SIZE, _PLACE)]
    if len(data) != SIZE or data[:4] != _MAGIC or any(place != _NOTHING and _check(place[:-4]) != place for place in places):
        return None
    incarnation = int(_HEAD.unpack(places[0][:-4])[1])
    rows = [_ROW.unpack(place[:-4]) for place in places[1 : 1 + ROWS]]
    counts = [_WRITES.unpack(place[:-4]) for place in places[1 + ROWS :]]
    # A process that was suspended may still write for an earlier incarnation.
    _, last, digest = max((r for r in rows if r[0] == incarnation), key=lambda r: r[1], default=(0, 0, b""))
    return Mark(incarnation, last, digest, max((n for of, n in counts if of == incarnation), default=0))


@functools.lru_cache(16)
def _begins(incarnation: int) -> bytes:
    """The first bytes of an incarnation's file."""
    return _MAGIC + incarnation.to_bytes(4, "big")


def _past(layout: struct.Struct, data: bytes) -> Mark | None:
    whole = len(data) == layout.size + 4 and zlib.crc32(data[:-4]).to_bytes(4, "big") == data[-4:]
    return Mark(*layout.unpack(data[:-4])[1:]) if whole else None


def _check(body: bytes) -> bytes:
    return body + zlib.crc32(body).to_bytes(4, "big")


def _places(mark: Mark) -> list[tuple[int, bytes]]:
    """The offsets at which the parts of a mark are stored, and the bytes there, without their checksum."""
    places = []
    if mark.last:
        places.append(((1 + mark.last % ROWS) * _PLACE, _ROW.pack(mark.incarnation, mark.last, mark.hash)))
    if mark.writes:
        places.append(((1 + ROWS + mark.writes % WRITES) * _PLACE, _WRITES.pack(mark.incarnation, mark.writes)))
    return places


def _work(of: weakref.ref[Anchor], stop: threading.Event) -> None:
    while not stop.wait(SYNC_EVERY) and (anchor := of()) is not None:
        anchor.tick()
        del anchor  # otherwise the anchor would stay alive during the next wait


class Anchor:
    """The open anchor file. ``raise_to`` may be called from any thread and by many processes.

    ``failed`` is called when a sync fails; ``each_second`` is called by the thread that syncs, before it does.
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
        """Locks the file, so that nobody else rewrites it meanwhile.

        Raises:
            StoreBusy: another process does, and has not finished within ``PATIENCE``.
        """
        with self._threads:  # threads share the descriptor, so the file lock does not exclude them from each other
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
        """Opens or creates the file; returns its mark, or None if it was not there, is empty, or is damaged.

        Raises:
            StoreFull, StoreReadOnly, StoreError: depending on the disk's error.
        """
        with on_disk(self.path):
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            self._stop.clear()
            return self.read()

    def read(self) -> Mark | None:
        return unpack(os.pread(self._fd, SIZE + 1, 0))

    def begin(self, mark: Mark, *, first: bool = False) -> None:
        """Rewrites the file, also to a lower mark: for a new incarnation or, with ``first``, for a new store unless another process was quicker.

        Raises:
            StoreFull, StoreReadOnly, StoreError: depending on the disk's error.
            StoreBusy: another process is rewriting the file, and does not finish.
        """
        with on_disk(self.path), self._alone():
            if not first or self.read() is None:
                self._write(mark)

    def renew(self) -> None:
        """Converts the file of a past release to this one's layout. Processes of that release that still run can then no longer write it.

        Raises:
            StoreFull, StoreReadOnly, StoreError: depending on the disk's error.
            StoreBusy: another process is rewriting the file, and does not finish.
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
        """Moves the anchor upwards. Returns False, and writes nothing, if the store has another incarnation by now."""
        with self._threads:
            data = os.pread(self._fd, SIZE, 0)
            if not data.startswith(_begins(mark.incarnation)):
                return False
            for at, place in _places(mark):
                there = data[at : at + 12]
                if there < place[:12] or there[:4] != place[:4]:  # the incarnation and the number; big-endian bytes compare as the numbers do
                    os.pwrite(self._fd, _check(place), at)
                    self._dirty = True
            return True

    def raise_row(self, incarnation: int, number: int, digest: bytes) -> bool:
        """As ``raise_to``, for a mark that is a log row alone, as after nearly each commit."""
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
        """Returns whether the file still belongs to this incarnation."""
        return os.pread(self._fd, 8, 0) == _begins(incarnation)

    def keep_synced(self) -> None:
        """Starts the thread that syncs about each second. The thread does not keep alive a store that was dropped without being closed, and ends with
        it."""
        self._thread = threading.Thread(target=_work, args=(weakref.ref(self), self._stop), name="holdfast-anchor", daemon=True)
        self._thread.start()

    def tick(self) -> None:
        """The thread's work of each second."""
        self._each_second()
        try:
            self.sync()
        except OSError as e:  # the thread goes on: the error is reported, and the sync is tried again
            self._failed(e)

    def sync(self) -> None:
        """Syncs what was written to the disk.

        Raises:
            OSError: the sync failed; it is tried again at the next call.
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
