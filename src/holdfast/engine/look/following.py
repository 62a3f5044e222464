"""Following a run: its events, what its steps emit, its values and updates, from any process and from any point (§13.6).

Theory of operation. The log and the ring buffer are read in turn, the log first. A chunk emitted before an event is written with that event
or before it, so a reader that sees an event can also see all chunks before it. Both are given in one order: a chunk comes after the event after
which it was emitted, and before the next event. A cursor names a place in both; a reader that comes back with it gets each part once. A reader
without a cursor gets the chunks that no durable result has replaced yet, and from there on all chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core import bounds, canon, describe, ids
from holdfast.core import events as ev
from holdfast.core.checkpoint import INPUT_TASK, TaskResult, voucher
from holdfast.core.chunks import Batch, Place, Stored, Turn
from holdfast.core.codec import Record, Row, open_row
from holdfast.core.errors import InvalidInput
from holdfast.core.lease import Lease
from holdfast.core.masks import Mask
from holdfast.core.progress import Progress
from holdfast.core.run import Run
from holdfast.core.status import TERMINAL
from holdfast.engine.look.sources import PAGE, POLL_SECONDS, Point, Seen, Source
from holdfast.engine.look.threads import Threads
from holdfast.handle import EventView, StreamPart
from holdfast.ports import Store

MODES = ("values", "updates", "custom", "messages", "events")


def modes_of(value: Any, field: str = "modes") -> frozenset[str]:
    """Checks the modes that were asked for, and returns them.

    Raises:
        InvalidInput: a mode is unknown, or none was given.
    """
    given = bounds.texts([value] if isinstance(value, str) else value, field, bounds.ID_BYTES)
    if not given:
        raise InvalidInput(f"{field} is empty, so the stream would never send anything", hint=f"modes are {', '.join(MODES)}", field=field)
    for mode in given:
        if mode not in MODES:
            raise InvalidInput(f"{field} has no {mode!r}", hint=f"modes are {', '.join(MODES)}", field=field)
    return frozenset(given)


class Cursor(msgspec.Struct, frozen=True):
    """A place in a run's log and ring. ``seq``: the last event that was given completely; ``parts``: how many parts of the next event were given; ``chunks``:
    how many chunks of the batch ``serial`` were given; ``number``: the number of the last one. A negative ``serial``: the place in the ring is unknown."""

    seq: int = 0
    parts: int = 0
    serial: int = 0
    chunks: int = 0
    number: int = 0

    def __str__(self) -> str:
        return ".".join(map(str, msgspec.structs.astuple(self)))

    @classmethod
    def read(cls, given: Any, field: str = "after") -> Cursor:
        """Reads a cursor that was given out, or the number of an event.

        Raises:
            InvalidInput: it is not a cursor of a stream.
        """
        text = given if isinstance(given, str) else str(given) if type(given) is int else ""
        numbers = text.split(".")
        if len(text) > 200 or not all(n.isascii() and n.isdigit() for n in numbers) or len(numbers) not in (1, 5):
            raise InvalidInput(f"{field} is not a cursor of a stream: {text[:80]!r}", hint="give the cursor of a part that you had", field=field)
        places = [bounds.number(int(n), field) for n in numbers]
        return cls(*places) if len(places) > 1 else cls(places[0], serial=-1)

    def check(self, run: Run, field: str = "after") -> None:
        """Refuses a place that the run has not reached, because everything up to there would be skipped without notice.

        Raises:
            InvalidInput: the cursor is from another run, or from this one before its store lost events.
        """
        if self.seq > run.version:
            told = f"{field} names a place after event {self.seq}, and {run.run_id} has {run.version} events"
            raise InvalidInput(told, hint="it is of another run, or events were lost: begin at the start", field=field)


class Follower:
    """Reads one run's log and ring together, for one reader."""

    run: Run
    lease: Lease
    hidden: Mask

    def __init__(
        self, store: Store, source: Source, threads: Threads, run_id: str, modes: frozenset[str], after: Cursor | None, tenant_id: str | None = None
    ) -> None:
        self._store = store
        self._source = source
        self._seen: Seen | None = None
        self._threads = threads
        self._run_id = run_id
        self._modes = modes
        self._tenant_id = tenant_id
        self._begun = after is not None and after.serial >= 0
        self._at = Cursor() if after is None else msgspec.structs.replace(after, serial=max(0, after.serial))
        self._resume = self._at if self._begun else None  # where the reader left off, possibly in the middle of a batch and of an event
        self._recalled = False
        self.level = False
        self.over = False
        self._emits = bool(modes & {"custom", "messages"})
        self._progress: Progress | None = None
        self._turns: dict[Place, Turn] = {}  # attempts that emit and are not superseded
        self._next: dict[str, int] = {}  # the number of the next chunk of each turn
        self._hold: list[Stored] = []  # batches emitted after an event that has not been read yet
        self._serial = max(0, self._at.serial - 1)

    async def parts(self) -> AsyncIterator[StreamPart]:
        """Yields all parts from the cursor on, across waits, until the run has ended."""
        while True:
            async for part in self.ready():
                yield part
            if self.over:
                return
            await self.news(POLL_SECONDS)

    async def news(self, seconds: float) -> bool:
        """Waits for more parts. Returns True when there may be some, False after this many seconds."""
        return True if self._seen is None else await self._source.news(self._point(), self._seen, seconds)

    def _point(self) -> Point:
        return Point(self._run_id, self._tenant_id, self._log_from(), self._serial if self._emits else None)

    async def ready(self) -> AsyncIterator[StreamPart]:
        """Yields the parts that are available now. Afterwards ``run``, ``lease`` and ``hidden`` (what must be hidden) are as they were read. ``level``: everything
        that has happened to the run was given; ``over``: and the run has ended."""
        if self._begun and not self._recalled:
            await self._recall()
        self._recalled = True
        while True:
            seen = self._seen = await self._source.look(self._point())
            run, rows = seen.run, seen.rows
            self.run, self.lease, self.hidden = run, seen.lease, seen.hidden
            self._at.check(run)
            if self._emits:
                await self._read_ring(seen.ring)
            for row in rows:
                if self._wants_values and self._progress is None:
                    self._progress = Progress(self._run_id, await self._threads.origin(self._run_id, await self._store.rows(self._run_id)))
                for part in self._of_record(run, self._open(row)):
                    yield part
            if len(rows) == PAGE:
                continue
            for part in self._read_emitted(self._at.seq):
                yield part
            self.level = self._at.seq >= run.version
            self.over = run.status in TERMINAL and self.level
            return

    # -- the log ------------------------------------------------------------------------------------

    @property
    def _wants_values(self) -> bool:
        return bool(self._modes & {"values", "updates"})

    def _log_from(self) -> int:
        """Values are computed from the whole log; without values, only what comes after the cursor is read."""
        if not self._wants_values:
            return self._at.seq
        return 0 if self._progress is None else self._progress.seq

    def _open(self, row: Row) -> Record:
        """Reads a row, and updates the values with it. Values of types that are not registered here are given as their fields (§14.3)."""
        with canon.looking():
            record = open_row(row, None if self._progress is None else self._progress.hash)
            if self._progress is not None:
                self._progress.step(record)
            return record

    def _of_record(self, run: Run, record: Record) -> Iterator[StreamPart]:
        vouching = voucher(record.events) if record.delta is not None else None
        for event in record.events:
            if event.seq <= self._at.seq:
                continue
            for part in self._read_emitted(event.seq - 1):
                yield part
            number = 0
            for part in [*self._supersede(event), *self._tell(run, event), *(self._state(record, vouching.seq) if event is vouching else ())]:
                number += 1
                if self._resume is not None and event.seq == self._resume.seq + 1 and number <= self._resume.parts:
                    continue  # given already
                self._at = msgspec.structs.replace(self._at, parts=number)
                yield msgspec.structs.replace(part, cursor=str(self._at))
            self._at = msgspec.structs.replace(self._at, seq=event.seq, parts=0)

    def _tell(self, run: Run, event: ev.Event) -> list[StreamPart]:
        if "events" not in self._modes:
            return []
        view = None if run.secrets else self._source.view(self._run_id, event.seq)
        if view is None:
            view = EventView(**describe.plain(describe.event(run, event), self.hidden))
            if not run.secrets:  # not kept for a run with secrets: what must be hidden may become known later
                self._source.keep_view(self._run_id, event.seq, view)
        place = _place(event.fact)
        step_id = "" if place is None else ids.step_id(self._run_id, place.step, place.task)
        return [StreamPart("events", view, "", self._run_id, step_id, getattr(event.fact, "attempt", 0) if place is not None else 0)]

    def _state(self, record: Record, seq: int) -> list[StreamPart]:
        """Returns what the barrier of a record changed, and the values after it."""
        progress, delta = self._progress, record.delta
        if progress is None or delta is None:
            return []
        out = []
        checkpoint = progress.checkpoint
        if "updates" in self._modes and (done := {t: w for t, w in checkpoint.writes.items() if not t.startswith("@")}):
            results = {r.task: r for r in (*record.results, *delta.done) if isinstance(r, TaskResult)}
            with canon.looking():
                told = {t: canon.decode(r.result) if (r := results.get(t)) is not None and r.result is not None else dict(w) for t, w in done.items()}
            step_id = ids.step_id(self._run_id, checkpoint.step, next(iter(done))) if len(done) == 1 else ""
            out.append(StreamPart("updates", told, "", self._run_id, step_id))
        if "values" in self._modes and (checkpoint.writes or INPUT_TASK in delta.done or delta.values is not None):
            out.append(StreamPart("values", dict(checkpoint.values), "", self._run_id))
        return out

    # -- the ring -----------------------------------------------------------------------------------

    async def _read_ring(self, page: Sequence[Stored]) -> None:
        while True:
            for stored in page:
                self._serial = stored.serial
                if self._begun or not stored.replaced:
                    self._hold.append(stored)
                else:
                    self._at = msgspec.structs.replace(self._at, serial=stored.serial, chunks=len(stored.batch.chunks))
            if len(page) < PAGE:
                self._begun = True
                return
            page = await self._store.chunks(self._run_id, self._serial, PAGE)

    def _read_emitted(self, seq: int) -> list[StreamPart]:
        """Returns the parts of the batches that were emitted up to this event."""
        out: list[StreamPart] = []
        while self._hold and self._hold[0].batch.after <= seq:
            out += self._of_batch(self._hold.pop(0))
        return out

    def _of_batch(self, stored: Stored) -> list[StreamPart]:
        batch, turn = stored.batch, stored.batch.turn
        given = 0
        if self._resume is not None and stored.serial == self._resume.serial:
            given = self._resume.chunks
        out: list[StreamPart] = []
        if not given:
            before = self._turns.get(turn.place)
            if before is not None and before.turn != turn.turn:
                out.append(self._mark(before))
            self._turns[turn.place] = turn
        expected = self._next.get(turn.key, 1)
        if batch.first > expected and not given:
            out.append(StreamPart("missed", batch.first - expected, str(self._at), self._run_id, turn.step_id, turn.number, attempt_id=turn.attempt_id))
        for number, data in enumerate(batch.chunks[given:], batch.first + given):
            if number < expected:
                continue
            self._at = msgspec.structs.replace(self._at, serial=stored.serial, chunks=number - batch.first + 1, number=number)
            with canon.looking():
                value = canon.decode(data)
            if (mode := self._mode(value)) is not None:
                out.append(StreamPart(mode, value, str(self._at), self._run_id, turn.step_id, turn.number, attempt_id=turn.attempt_id))
        self._next[turn.key] = batch.last + 1
        return out

    def _mode(self, value: Any) -> str | None:
        """Returns the mode in which a chunk is given, once: ``messages`` for a piece of a message if that was asked for, else ``custom`` if that was; else None."""
        if "messages" in self._modes and is_message(value):
            return "messages"
        return "custom" if "custom" in self._modes else None

    def _mark(self, turn: Turn) -> StreamPart:
        """Makes the part that says that what this attempt has emitted is superseded."""
        self._turns.pop(turn.place, None)
        return StreamPart("custom", None, str(self._at), self._run_id, turn.step_id, turn.number, superseded=True, attempt_id=turn.attempt_id)

    def _supersede(self, event: ev.Event) -> list[StreamPart]:
        """Returns the marks for attempts that an event ends without a result. Forgets attempts that have a result."""
        fact = event.fact
        if isinstance(fact, ev.AttemptTakenOver | ev.RunInterrupted):
            return [self._mark(t) for t in list(self._turns.values())]
        place = _place(fact)
        if place is None:
            return []
        mine = [t for p, t in self._turns.items() if p.step == place.step and p.task == place.task and _within(p.path, place.path)]
        if isinstance(fact, ev.StepRetryScheduled):
            return [self._mark(t) for t in mine]
        if isinstance(fact, ev.StepEnded):
            for turn in mine:
                self._turns.pop(turn.place, None)
        return []

    async def _recall(self) -> None:
        """Restores what a reader that comes back already knows of the attempts that emit."""
        if not self._emits or not self._at.serial:
            return
        batches: list[Batch] = []
        serial = 0
        while page := await self._store.chunks(self._run_id, serial, PAGE):
            for stored in page:
                serial = stored.serial
                if serial <= self._at.serial:
                    batches.append(stored.batch)
            if serial > self._at.serial:
                break
        for batch in batches:
            self._next[batch.turn.key] = batch.last + 1
        await self._go_over(batches)
        if batches and self._resume is not None:  # the reader may not have got all of the last batch
            self._next[batches[-1].turn.key] = min(self._next[batches[-1].turn.key], self._resume.number + 1)

    async def _go_over(self, batches: Sequence[Batch]) -> None:
        """Replays the log for these attempts, so that nothing that the reader was told is given again."""
        if not batches:
            return
        seq, left = min(b.after for b in batches), list(batches)
        while rows := await self._store.rows(self._run_id, seq, PAGE):
            for event in (e for row in rows for e in open_row(row).events if e.seq > seq):
                if event.seq > self._at.seq:
                    break
                self._take(left, event.seq - 1)
                self._supersede(event)
            seq = rows[-1].seq
            if seq >= self._at.seq:
                break
        self._take(left, self._at.seq)

    def _take(self, batches: list[Batch], seq: int) -> None:
        while batches and batches[0].after <= seq:
            batch = batches.pop(0)
            self._turns[batch.turn.place] = batch.turn


def is_message(value: Any) -> bool:
    """Whether a chunk is a piece of a message: it has a role and content."""
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and "content" in value


def _place(fact: ev.Fact | ev.Unknown) -> Place | None:
    """Returns the place that an event is about; None if it is about none."""
    step, task = getattr(fact, "step", None), getattr(fact, "task", None)
    return Place(step, task, getattr(fact, "path", "")) if isinstance(step, int) and isinstance(task, str) else None


def _within(path: str, above: str) -> bool:
    return not above or path == above or path.startswith(f"{above}/")


async def next_or_failed(feed: AsyncIterator[StreamPart], driving: asyncio.Future[None]) -> StreamPart | None:
    """Returns the next part, None at the end. If the run's execution ended with an error, raises that error."""
    coming: asyncio.Future[StreamPart | None] = asyncio.ensure_future(anext(feed, None))
    both: set[asyncio.Future[Any]] = {coming, driving}
    try:
        if not driving.done():
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if driving.done() and (error := driving.exception()) is not None:
            raise error
        return await coming
    finally:
        if not coming.done():
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


__all__ = ["MODES", "Cursor", "Follower", "is_message", "modes_of"]
