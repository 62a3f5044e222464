"""Group commit: who may commit now, with whom, and in which thread (§1.11).

If a store drives one run, it commits in place, without a future. If it drives several, each appends its commit to a list; one callback at the end of
the event loop's tick writes them all, and each is answered after the sync. While commits are quick there is no writer thread, because a switch
between threads costs more than a commit. The thread takes over when a commit takes longer than ``SLOW`` seconds on average, so that the event loop
stays free. Nothing blocks while another process has the write lock: the event loop continues, and is woken when it is this process's turn
(``turns``).

On any error a group is rolled back; then each member is tried and answered alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import apsw

from holdfast import meters
from holdfast.core.commit import Step, Tip
from holdfast.core.errors import HoldfastError, StoreClosed, make_own
from holdfast.core.lease import Take
from holdfast.ports import Seat
from holdfast.stores.apply import Prepared, news_of
from holdfast.stores.seats import Awaited
from holdfast.stores.sqlite.commits import Committer, Outcome, Refused, Write
from holdfast.stores.sqlite.connection import PATIENCE, Pace, shut, translate
from holdfast.stores.sqlite.turns import LockWait, Turns

SLOW = 0.002
GROUP = 512
TURN = 0.002

T = TypeVar("T")


_Waiting = tuple[Write, Seat]
"""A commit, and the seat that waits for its answer."""


class _Job(NamedTuple):
    work: Callable[[Committer], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class Writer:
    """Performs every write to the database.

    ``here`` is the event loop's own committer; ``there`` makes the thread's when it is first needed; ``refusal`` returns why nothing may be written
    any more, or None; ``after`` is called after every transaction, before anybody is answered, and may return an error to answer instead; ``pace`` is
    told how long commits take; ``turns`` are those of this process at the file.
    """

    def __init__(
        self, path: str, here: Committer, there: Callable[[], Committer], refusal: Callable[[], HoldfastError | None], after: Callable[[Committer], HoldfastError | None],
        tell: Callable[[int], None], pace: Pace, turns: Turns,
    ) -> None:
        self._path = path
        self._here = here
        self._there = there
        self._refusal = refusal
        self._after = after
        self._tell = tell
        self._pace = pace
        self._lock_wait = LockWait(turns, self._at_turn)
        self._turns = turns
        self._pending: list[_Waiting] = []
        self._context = contextvars.Context()  # seats run code of runs, each in its own context
        self._flushing: asyncio.AbstractEventLoop | None = None  # the event loop that will flush; one that was closed will not
        self._keys: dict[str, int] = {}
        self._news: int | None = None  # the kinds of news to announce to others, if any
        self._average = 0.0
        self._turn_ends = 0.0
        self._giving_way = 0
        self._away = 0
        self._busy_since: float | None = None
        self._closed = False
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- commits ------------------------------------------------------------------------------------

    def commit(self, w: Write) -> Awaitable[Tip]:
        """Writes a commit, alone or together with others that wait; answers after the sync."""
        return self._await(w) if type(w) is Step and len(self._keys) > 1 else self._first(w)

    def step_at_once(self, s: Step) -> Tip | None:
        """Writes the step of the only run that is driven here, in place; returns None if it must be written another way, or is refused."""
        key = self._keys.get(s.run_id)
        if key is None or len(self._keys) > 1 or self._pending or self._away or self._average >= SLOW or time.perf_counter() > self._turn_ends:
            return None
        here = self._here
        try:
            tip = here.step(s, key)
        except (Refused, apsw.BusyError):
            return None
        except apsw.Error as e:
            raise translate(e, self._path) from e
        if (error := self._after(here)) is not None:
            raise error
        self._average += (here.took - self._average) * 0.1
        return tip

    async def _first(self, w: Write) -> Tip:
        """Writes a commit in place, unless others have something to write too."""
        lone = (alone := self._alone(w)) and self._stands_for_a_claim(w)  # its worker has just looked, and nothing else is due, so there is nobody to give way to
        if alone and not lone and self._giving_way:
            alone = False  # another run that is about to begin is giving way just now: neither is alone
        elif alone and not lone and time.perf_counter() > self._turn_ends:
            # Commits in place never wait, so one run would keep the event loop to itself until its end. So it yields now and then. Runs that then
            # have something to write are no longer committed one by one, and of several that were about to begin alone none commits in place.
            self._giving_way += 1
            try:
                await asyncio.sleep(0)
            finally:
                self._giving_way -= 1
            self._turn_ends = time.perf_counter() + TURN
            alone = self._alone(w) and not self._giving_way
            if alone and self._turns.give_way():
                future = self._await(w)
                self._lock_wait.begin()
                return await future
        if alone and not self._pending and not self._away and self._average < SLOW:
            try:
                applied = self._in_place(w)
                if lone:
                    self._turn_ends = time.perf_counter() + TURN
                tip = self._finish(w, applied)
                self._announce()
                return tip
            except apsw.BusyError:
                pass  # another process writes
            except apsw.Error as e:
                raise translate(e, self._path) from e
        return await self._await(w)

    def _await(self, w: Write) -> asyncio.Future[Tip]:
        """Joins the next group, and returns a future of the answer."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Tip] = loop.create_future()
        self.join(w, Awaited(future))
        return future

    @property
    def gathers(self) -> bool:
        """Whether this store drives several runs."""
        return len(self._keys) > 1

    def join(self, w: Write, seat: Seat) -> None:
        """Adds a commit to the group of this tick; the seat is told after the sync.

        Raises:
            StoreClosed: nothing is written here any more.
        """
        if self._closed:
            raise StoreClosed
        self._pending.append((w, seat))
        loop = asyncio.get_running_loop()
        if self._flushing is not loop:
            self._flushing = loop
            loop.call_soon(self._flush, context=self._context)

    def _alone(self, w: Write) -> bool:
        """Whether this store drives no other run, so that there is no point in waiting for other commits."""
        if not self._keys:
            return type(w) is Prepared and isinstance(w.commit.lease, Take)
        return len(self._keys) == 1 and w.run_id in self._keys

    def _stands_for_a_claim(self, w: Write) -> bool:
        return type(w) is Prepared and isinstance(w.commit.lease, Take) and w.commit.lease.found

    def _in_place(self, w: Write) -> Outcome:
        applied = self._here.one(w, self._keys.get(w.run_id))
        if (error := self._after(self._here)) is not None:
            raise error
        self._turns.pass_on()
        self._note(self._here.took)
        return applied

    def _flush(self) -> None:
        """Writes the commits gathered in this tick."""
        self._flushing = None
        if not self._pending:
            self._turns.rest()
        if self._away or not self._pending or self._lock_wait.on:
            return
        batch = self._next_batch()
        if self._refusal() is not None:  # steps that seats handed over have not been checked for this
            for _, seat in batch:
                seat.refuse(cast(HoldfastError, self._refusal()))
            self._turns.rest()
            return
        if self._average < SLOW:
            try:
                outcomes = self._settle(self._here, batch)
            except apsw.BusyError:
                self._wait_turn(batch)
                return
            gathers = self.gathers
            self._answer(batch, outcomes, self._here.took, goes_on=self._turns.may_go_on() if gathers else True)
            if not gathers:
                self._leave_lock(steps=all(type(w) is Step for w, _ in batch))
            return
        self._send_away(batch)

    def _leave_lock(self, *, steps: bool) -> None:
        """Leaves the lock to other processes after a single commit, or after a plain step of the only run here, which goes on in place."""
        if steps and self._keys:
            self._turn_ends = 0.0 if self._turns.hand_back() else time.perf_counter() + TURN
        else:
            self._turns.pass_on()

    def _at_turn(self, others_first: bool) -> None:
        """Called when the lock may be free. Tasks with a single transaction come first; if there are any, the pending commits wait on."""
        if not others_first:
            self._context.run(self._flush)
        elif self._pending:
            self._lock_wait.begin()

    def _wait_turn(self, batch: Sequence[_Waiting]) -> None:
        """Puts a batch back because another process writes. It is written when it is this process's turn, unless that takes longer than ``PATIENCE``."""
        now = time.monotonic()
        self._busy_since = self._busy_since or now
        if now - self._busy_since < PATIENCE:
            self._pending[:0] = batch
            self._lock_wait.begin(once=len(self._pending) == 1)
        else:
            self._answer(batch, [apsw.BusyError("database is locked")] * len(batch), self._average, final=True)

    def _flush_soon(self) -> None:
        """Has the pending commits written in the next tick."""
        loop = asyncio.get_running_loop()
        if self._pending and self._flushing is not loop:
            self._flushing = loop
            loop.call_soon(self._flush, context=self._context)

    def _next_batch(self) -> list[_Waiting]:
        """Returns the oldest pending commits, at most one of each run: a second one must see the result of the first."""
        batch = [waiting for waiting in self._pending if waiting[1].waits]  # otherwise its task was cancelled before anything was written
        self._pending = []
        if len(batch) <= GROUP and len({w.run_id for w, _ in batch}) == len(batch):
            return batch
        first: dict[str, _Waiting] = {}
        for waiting in batch:
            if waiting[0].run_id in first or len(first) == GROUP:
                self._pending.append(waiting)
            else:
                first[waiting[0].run_id] = waiting
        return list(first.values())

    def _settle(self, committer: Committer, batch: Sequence[_Waiting]) -> Sequence[Outcome | Exception]:
        """Commits a group; if anything fails, each member gets its own outcome. Only a busy database is left to the caller."""
        keys = dict(self._keys)
        if len(batch) > 1:
            try:
                done = committer.together([w for w, _ in batch], keys)
                error = self._after(committer)
                return done if error is None else [make_own(error) for _ in batch]
            except apsw.BusyError:
                raise
            except Exception:
                # The group was rolled back. Each member is tried alone, which shows whose error it was.
                return [self._attempt(committer, w, keys) for w, _ in batch]
        try:
            applied = committer.one(batch[0][0], keys.get(batch[0][0].run_id)) if batch else None
        except apsw.BusyError:
            raise
        except apsw.Error as e:
            return [translate(e, self._path)]
        except Exception as e:
            return [e]
        error = self._after(committer)
        return [] if applied is None else [error or applied]

    def _attempt(self, committer: Committer, w: Write, keys: dict[str, int]) -> Outcome | Exception:
        try:
            applied = committer.one(w, keys.get(w.run_id))
        except apsw.BusyError as e:
            return e
        except apsw.Error as e:
            return translate(e, self._path)
        except Exception as e:
            return e
        return self._after(committer) or applied

    def _answer(self, batch: Sequence[_Waiting], outcomes: Sequence[Outcome | Exception], took: float, *, final: bool = False, goes_on: bool = True) -> None:
        """Tells each member its own outcome. One that met a busy database is written again until ``PATIENCE`` ends, unless ``final``. ``goes_on``:
        whether their next commits may be written at once."""
        self._note(took)
        if meters.METERS and batch:
            meters.group(len(batch), took)
        locked: list[_Waiting] = []
        for waiting, outcome in zip(batch, outcomes, strict=True):
            w, seat = waiting
            if type(outcome) is Tip or not isinstance(outcome, Exception):
                tip = outcome if type(outcome) is Tip else self._finish(w, outcome)
                if seat.waits and (step := seat.tell(tip)) is not None:
                    self._pending.append((step, seat))
            elif isinstance(outcome, apsw.BusyError) and not final:
                locked.append(waiting)
            else:
                self._keys.pop(w.run_id, None)
                error = translate(outcome, self._path) if isinstance(outcome, apsw.Error) else outcome
                if seat.waits:
                    seat.refuse(error)
        self._announce()
        if locked:
            self._wait_turn(locked)
            return
        self._busy_since = None
        if not self._pending:
            self._turns.rest()
        elif goes_on:
            self._flush_soon()
        else:
            self._lock_wait.begin(once=len(self._pending) == 1)

    def _finish(self, w: Write, outcome: Outcome) -> Tip:
        """Remembers whether the run is driven here, and whether there is news for others."""
        if isinstance(outcome, Tip):
            return outcome  # the owner keeps its run, and a plain step is no news to others
        if outcome.owned:
            self._keys[w.run_id] = outcome.key
        else:
            self._keys.pop(w.run_id, None)
        if type(w) is Prepared and (w.sealed.doc is not None or not w.plain):
            self._news = (self._news or 0) | news_of(w, outcome.owned)
        return outcome.tip

    def _announce(self) -> None:
        """Announces the news once, for all that was committed together."""
        if self._news is not None:
            news, self._news = self._news, None
            self._tell(news)

    def _note(self, took: float) -> None:
        self._average += (took - self._average) * 0.1
        self._pace.seconds = self._average

    def drives(self, run_id: str, key: int) -> None:
        """Notes that a run was claimed through this store."""
        self._keys[run_id] = key

    def forget(self) -> None:
        """Forgets which runs are driven here, because runs were handed back. The key of a run that is still held is learned again at its next commit."""
        self._keys.clear()

    # -- everything else ----------------------------------------------------------------------------

    async def run(self, work: Callable[[Committer], T]) -> T:
        """Runs a verb's transaction: in place while the database is quick, as soon as this process is let in; else in the thread."""

        def whole(committer: Committer) -> T:
            result = work(committer)
            if (error := self._after(committer)) is not None:
                raise error
            if committer is self._here:
                self._turns.pass_on()
            return result

        began = time.monotonic()
        while not self._away and self._average < SLOW:
            try:
                return whole(self._here)
            except apsw.BusyError as e:
                if time.monotonic() - began >= PATIENCE:
                    raise translate(e, self._path) from e
                await self._lock_wait.be_let_in()
                if self._closed:
                    raise StoreClosed from None
            except apsw.Error as e:
                raise translate(e, self._path) from e
        try:
            return cast(T, await self._submit(whole))
        except apsw.Error as e:
            raise translate(e, self._path) from e

    # -- the thread ---------------------------------------------------------------------------------

    def _send_away(self, batch: Sequence[_Waiting]) -> None:
        def work(committer: Committer) -> tuple[Sequence[Outcome | Exception], float]:
            return self._settle(committer, batch), committer.took

        def settle(job: asyncio.Future[Any]) -> None:
            error = job.exception()
            if error is None:
                self._answer(batch, *job.result(), final=True)
                self._turns.rest()
                self._turns.pass_on()
                return
            assert isinstance(error, Exception)
            self._answer(batch, [make_own(error) for _ in batch], self._average, final=True)

        future = self._submit(work)
        future.add_done_callback(settle)

    def _submit(self, work: Callable[[Committer], Any]) -> asyncio.Future[Any]:
        if self._closed:
            raise StoreClosed  # nobody would end a thread that begins now
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="holdfast-writer", daemon=True)
            self._thread.start()
        self._away += 1
        self._jobs.put(_Job(work, loop, future))
        return future

    def _work(self) -> None:
        committer: Committer | None = None
        while (job := self._jobs.get()) is not None:
            try:
                committer = committer or self._there()
                error: Exception | None = None
                result = job.work(committer)
            except Exception as e:  # the caller handles it, in its own thread
                result, error = None, e
            try:
                job.loop.call_soon_threadsafe(self._back, job.future, result, error)
            except RuntimeError:
                self._away -= 1  # the event loop was closed: nobody waits any more
        if committer is not None:
            shut(committer.db)

    def _back(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        self._away -= 1
        if not self._away:
            self._flush_soon()
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def close(self) -> None:
        """Ends the thread after its current jobs; refuses commits that are not yet written."""
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        for _, seat in self._pending:
            if seat.waits:
                seat.refuse(StoreClosed())
        self._pending = []
        self._lock_wait.close()
