"""What running steps emit, on its way into the store's ring buffer (§13.6).

Theory of operation. ``ctx.emit`` puts a chunk into the ring of the run's current execution (``Ring``) and returns. Pending chunks are written with the
run's next commit, in the same transaction, so that a reader that sees an event can also see everything emitted before it. If no commit comes within
50 ms, one write stores the pending chunks of all runs of the process (``Streams``). A run that emits nothing has no ring and costs nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from holdfast import logs
from holdfast.core.checkpoint import Result
from holdfast.core.chunks import RING_BYTES, RING_CHUNKS, RUN_BYTES, Batch, Emitted, Place, Turn, find_replaced
from holdfast.core.errors import HoldfastError
from holdfast.core.lease import counter
from holdfast.ports import Clock, Store

EVERY = 0.05
log = logs.logger("holdfast.streams")


class Track:
    """The chunks of one turn of a step: those that are pending, and the state of the ring in the store. ``begun``: the number of the next chunk since the
    step was last entered; chunks up to ``known`` were emitted before that and are not kept again."""

    def __init__(self, turn: Turn, known: int = 0) -> None:
        self.turn = turn
        self.known = known
        self.begun = 1
        self.after = 0
        self.first = known + 1
        self.pending: deque[bytes] = deque()
        self.weight = 0
        self.batches: deque[tuple[int, int]] = deque()  # for each batch in the store: its last number and its size
        self.stored = 0

    def add(self, data: bytes, after: int, most: int) -> bool:
        """Adds a chunk, and keeps the pending chunks within the bounds of the ring. Returns whether the chunk is new."""
        self.begun += 1
        if self.begun - 1 <= self.known:
            return False
        self.pending.append(data)
        self.weight += len(data)
        self.after = after
        while len(self.pending) > 1 and (len(self.pending) > RING_CHUNKS or self.weight > most):
            self.weight -= len(self.pending.popleft())
            self.first += 1
        return True

    def take(self) -> Batch | None:
        if not self.pending:
            return None
        batch = Batch(self.turn, self.first, self.after, tuple(self.pending))
        self.batches.append((batch.last, self.weight))
        self.stored += self.weight
        self.first, self.weight = batch.last + 1, 0
        self.pending.clear()
        return batch

    def cut(self, most: int) -> int:
        """Drops the oldest batches beyond the bounds. Returns the number of the first chunk that stays in the ring; 0 if none is dropped."""
        before = 0
        newest = self.batches[-1][0] if self.batches else 0
        while len(self.batches) > 1 and (self.batches[0][0] <= newest - RING_CHUNKS or self.stored > most):
            last, size = self.batches.popleft()
            self.stored -= size
            before = last + 1
        return before


class Ring:
    """What a run emits under one claim. ``left``: the newest batch of each turn that earlier claims have left in the store."""

    def __init__(self, run_id: str, fence: int, left: Sequence[Batch] = ()) -> None:
        self.run_id = run_id
        self.fence = fence
        self.writing: asyncio.Future[None] | None = None
        self._count = 0
        self._tracks: dict[Place, Track] = {}
        self._turns: set[Turn] = {b.turn for b in left}
        self._lock = threading.Lock()
        for batch in sorted(left, key=lambda b: b.turn.turn):
            self._tracks[batch.turn.place] = Track(batch.turn, batch.last)

    def supersede(self) -> None:
        """Marks that no earlier turn is continued, because its attempts begin again."""
        for track in self._tracks.values():
            track.known = -1

    def enter(self, place: Place, number: int, rounds: int, step_id: str, attempt_id: str, *, again: bool) -> Track:
        """Returns the track of an attempt that begins to emit. With ``again``, the same attempt is entered once more: returns its track, if it has one."""
        with self._lock:
            before = self._tracks.get(place)
            if before is not None and again and before.known >= 0 and (before.turn.number, before.turn.rounds) == (number, rounds):
                before.known = max(before.known, before.first + len(before.pending) - 1)
                before.begun = 1
                return before
            self._count += 1
            turn = Turn(place, counter(self.fence) << 20 | self._count, number, rounds, step_id, attempt_id)
            self._turns.add(turn)
            track = self._tracks[place] = Track(turn)
            return track

    def add(self, track: Track, data: bytes, after: int) -> bool:
        """Adds a chunk. Returns whether there is something new to write."""
        with self._lock:
            return track.add(data, after, self._most())

    def _most(self) -> int:
        return min(RING_BYTES, RUN_BYTES // max(1, len(self._tracks)))

    def take(self, replaced: Iterable[str] = ()) -> Emitted:
        """Takes out what is pending, to be written now."""
        with self._lock:
            batches = [b for b in (t.take() for t in self._tracks.values()) if b is not None]
            before = {t.turn.key: n for t in self._tracks.values() if (n := t.cut(self._most()))}
        return Emitted(self.run_id, self.fence, tuple(batches), before, tuple(replaced))

    def end(self, results: Sequence[Result], step: int, *, over: bool) -> list[str]:
        """Returns the keys of the turns that these results replace; with ``over`` of all, because the step or run has ended. ``forget`` drops them."""
        with self._lock:
            if not self._turns or not (over or results):
                return []
            places = {t.place for t in self._turns}
            gone = places if over else find_replaced(results, places, step)
            out = sorted(t.key for t in self._turns if t.place in gone)
            return out

    def forget(self, keys: Iterable[str]) -> None:
        """Drops turns that were replaced."""
        gone = set(keys)
        with self._lock:
            self._turns = {t for t in self._turns if t.key not in gone}
            self._tracks = {p: t for p, t in self._tracks.items() if t.turn.key not in gone}


class Streams:
    """Writes what runs emit if no commit does: at most every 50 ms, for all runs together."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._dirty: dict[str, Ring] = {}
        self._task: asyncio.Task[None] | None = None

    def emit(self, ring: Ring, track: Track, data: bytes, after: int, loop: asyncio.AbstractEventLoop) -> None:
        """Keeps a chunk. Plain nodes call this from their threads; the event loop does the writing."""
        if not ring.add(track, data, after):
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            self._later(ring)
        else:
            loop.call_soon_threadsafe(self._later, ring)

    def _later(self, ring: Ring) -> None:
        self._dirty[ring.run_id] = ring
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        while self._dirty:
            await self._clock.sleep(EVERY)
            rings, self._dirty = list(self._dirty.values()), {}
            emitted = [(ring, e) for ring in rings if ring.writing is None and (e := ring.take())]
            if not emitted:
                continue
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            for ring, _ in emitted:
                ring.writing = written
            try:
                await self._store.emit([e for _, e in emitted])
            except HoldfastError as e:  # chunks are provisional: the run continues without them, and its readers are told of a gap
                log.debug("chunks of %d runs were not kept: %s", len(emitted), e)
            finally:
                for ring, _ in emitted:
                    ring.writing = None
                written.set_result(None)

    async def close(self) -> None:
        """Stops: nothing more is written."""
        self._dirty.clear()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


__all__ = ["EVERY", "Ring", "Streams", "Track"]
