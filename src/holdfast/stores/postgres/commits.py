"""Commits: which are written together, and in how many round trips (§1.11).

Commits that wait at the same time are written together. Plain steps of runs that are driven here share one statement that only inserts, in one round
trip. Steps that were not written, for whatever reason, are examined together, which yields the reason.

Commits that write nothing but their log row and their run's row take one round trip too. A birth is one statement. If a commit moves, rests, ends or
takes a run, the run's row is locked by a statement before it, so that the second statement sees what others have put into the run's inbox. Commits
that were not written this way go the general way, which yields the reason.

The general way is one transaction for a whole group, in two round trips: the first locks the runs, in the order of their ids, and reads what
``apply`` asks for; the second writes what ``apply`` ruled. A commit that may not be applied gets its refusal and does not affect the others. Only a
conflict that no read could show (two transactions that take one key) breaks a group; then each commit is tried alone.

If an answer was lost, the same commit is sent again. The compare-and-set makes that harmless: if the row after the commit's tip has the commit's own
hash, the commit has been written.
"""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import errors as sql
from psycopg.pq.abc import PGresult
from psycopg.types.json import Jsonb

from holdfast import meters
from holdfast.core import canon, chunks, codec, commit, ids, vouch
from holdfast.core.blobs import Blob
from holdfast.core.chunks import LINGER_US, Emitted
from holdfast.core.commit import Commit, DedupClaim, InboxItem, Step, ThreadEnd, Tip
from holdfast.core.errors import (
    HoldfastError,
    RecordDamaged,
    RunNotFound,
    StatementFailed,
    StoreClosed,
    VersionConflict,
    make_own,
)
from holdfast.core.lease import Keep, Release, Take, Touch
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.status import Status
from holdfast.core.tokens import Token
from holdfast.core.vouch import OWN
from holdfast.ports import Claim, Seat
from holdfast.stores import apply
from holdfast.stores.apply import Found, Prepared, Ruling
from holdfast.stores.postgres import besides
from holdfast.stores.postgres.arrays import Blobs, Columns, Numbers, Texts
from holdfast.stores.postgres.connection import UNPREPARED, Connection, Connections, Held, many, outlasting, passing, translate
from holdfast.stores.postgres.hints import may_name
from holdfast.stores.postgres.outbox import put_intents
from holdfast.stores.postgres.queries import BIRTHS, MOVES, TAKES, Q
from holdfast.stores.postgres.wire import Rows
from holdfast.stores.seats import Awaited

GROUP = 256
STEPS = 512
WRITERS = 2  # groups sent at once
HALVED = 32  # if at least this many commits wait, half of them are sent while the other half is still computed
TRIES = 4
Statement = tuple[str, Any]
RACED = (sql.UniqueViolation, sql.DivisionByZero)  # conflicts that no read could show: the read is repeated and then shows them


class _Stepping(msgspec.Struct, gc=False):
    """A plain step that is not answered yet. ``sent``: it has been sent before, and the answer was lost."""

    step: Step
    seat: Seat
    sent: bool = False

    @property
    def waits(self) -> bool:
        return self.seat.waits

    def refuse(self, error: HoldfastError) -> None:
        self.seat.refuse(error)

    def find_touched(self) -> tuple[set[object], set[object]]:
        return {self.step.run_id}, set()


class _Waiting(msgspec.Struct, gc=False):
    """Any other commit that is not answered yet."""

    prepared: Prepared
    future: asyncio.Future[Tip]
    sent: bool = False

    @property
    def waits(self) -> bool:
        return not self.future.done()

    def refuse(self, error: HoldfastError) -> None:
        self.future.set_exception(error)

    def find_touched(self) -> tuple[set[object], set[object]]:
        return _find_touched(self.prepared)


W = TypeVar("W", _Stepping, _Waiting)


class Seen(msgspec.Struct):
    """What the first round trip of a group has read: an ``apply.Sight``. ``after``: the hash of the row that follows each commit's tip, if there is
    one; ``unread_runs``: the runs whose inbox has more than the commit takes; ``followed``: the runs in whose lane others are marked as standing
    behind the holder; ``taking`` and ``vouched``: of the inbox items that a commit takes, those that are there and those that are vouched for;
    ``tokens``: the open links of waits that the commits close; ``numbers``: those of the ledger rows to be written."""

    now: int
    incarnation: int
    found: dict[str, Found]
    unread_runs: set[str]
    followed: set[str]
    taking: dict[str, set[str]]
    vouched: dict[str, set[str]]
    after: dict[str, bytes | None]
    takers: set[str]
    lanes: dict[str, tuple[str | None, str | None, int | None]]
    predecessors: set[str]
    claims: dict[tuple[str, str, str], str]
    effects: dict[str, set[str]]
    schedules: dict[str, Schedule]
    blobs: set[str]
    tokens: list[Token]
    numbers: Iterator[int]
    queued: dict[tuple[str, str], int]
    limited: bool

    def missing(self, run_id: str) -> RunNotFound:
        return RunNotFound(f"there is no run {run_id}")

    def there(self, run_id: str) -> bool:
        return run_id in self.found or run_id in self.predecessors

    def blocker(self, run: Run, turn: int) -> str | None:
        holder, first, at = self.lanes[run.run_id]
        return holder or (first if at is not None and at < turn else None)

    def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd:
        raise AssertionError("a store without ``ports.Threads`` must not be asked for the end of a thread")

    def unread(self, run_id: str, took: Sequence[str]) -> bool:
        return run_id in self.unread_runs

    def untaken(self, run_id: str, key: str) -> bool:
        return key in self.taking.get(run_id, ())

    def claimant(self, claim: DedupClaim) -> str | None:
        return self.claims.get((claim.kind, claim.scope, claim.key))

    def attempts(self, key: str) -> set[str]:
        return self.effects.get(key, set())

    def has_blob(self, digest: str) -> bool:
        return digest in self.blobs

    def schedule(self, schedule_id: str) -> Schedule | None:
        return self.schedules.get(schedule_id)

    def waiting(self, queue: str, tenant_id: str) -> int:
        return self.queued[queue, tenant_id]

    def any_limit(self) -> bool:
        return self.limited


class _Rows:
    """The rows that a group writes, each with its log row: of new runs, and of existing ones."""

    def __init__(self) -> None:
        self.born: list[tuple[Any, ...]] = []
        self.moved: list[tuple[Any, ...]] = []

    def statements(self) -> list[Statement]:
        """Returns one statement for each kind. For a single row it has plain parameters; for several, each column is an array."""
        asked: list[Statement] = []
        if len(self.moved) == 1:
            asked.append((Q.run_update, self.moved[0]))
        elif self.moved:
            asked.append((Q.runs_update, _columns(_MOVED, self.moved)))
        if len(self.born) == 1:
            (row,) = self.born
            asked.append((Q.run_insert, (*row[:18], *row[1:6], *row[18:])))
        elif self.born:
            asked.append((Q.runs_insert, _columns(_BORN, self.born)))
        return asked


class _Plain(msgspec.Struct, frozen=True):
    """Commits that write nothing beside their rows, and the statements that write them: births, commits that move a run, and those that take one.
    ``told``: the transaction itself notifies others."""

    born: Sequence[_Waiting]
    moved: Sequence[_Waiting]
    taken: Sequence[_Waiting]
    statements: Sequence[Statement]
    told: bool

    def take_left(self, batch: list[_Waiting], error: BaseException) -> list[_Waiting]:
        """Returns all commits after an error. After a temporary one they are marked as sent, because they may have been written."""
        if passing(error) and not isinstance(error, UNPREPARED):
            for w in (*self.born, *self.moved, *self.taken):
                w.sent = True
        return batch


class Committer:
    """Performs commits. ``driven``: the runs that are driven here; ``fences``: the fences under which the caller knows that it holds them;
    ``knows_all``: whether these are all runs that it holds. ``given`` returns the time of a clock that tests move; ``judge`` returns why an owner is
    lost, from its name, its boot and the rest of its lease. ``tell`` is called when others may have something to do, with the kinds of news, whether
    the transaction itself has notified them, and the run that is due if it is only one. ``with_it`` returns the statement that notifies others within
    the transaction, if any."""

    def __init__(
        self,
        pool: Connections,
        url: str,
        patience: float,
        given: Callable[[], int | None],
        judge: Callable[[str, str | None, int | None], str | None],
        tell: Callable[[int, bool, str | None], None],
        with_it: Callable[[int, str | None], Statement | None],
    ) -> None:
        self.driven: set[str] = set()
        self.fences: dict[str, int] = {}
        self.knows_all = True
        self._pool = pool
        self._url = url
        self._patience = patience
        self._given = given
        self._judge = judge
        self._tell = tell
        self._with_it = with_it
        self._steps: list[_Stepping] = []
        self._others: list[_Waiting] = []
        self._sent = 0
        self._half = STEPS
        self._busy = 0
        self._armed = False
        self._lone = True
        self._under_way: set[asyncio.Future[None]] = set()

    async def commit(self, p: Prepared) -> Tip:
        if p.step is not None:
            return await self.step(p.step)
        future: asyncio.Future[Tip] = asyncio.get_running_loop().create_future()
        self._others.append(_Waiting(p, future))
        if len(self._others) == HALVED and self._busy < WRITERS:
            self._flush()
        else:
            self._arm()
        return await future

    async def step(self, step: Step) -> Tip:
        future: asyncio.Future[Tip] = asyncio.get_running_loop().create_future()
        self.join(step, Awaited(future))
        return await future

    def join(self, step: Step, seat: Seat) -> None:
        """Adds a step to those sent at the end of this tick, or sooner with the first half of a large group; the seat is told."""
        self._steps.append(_Stepping(step, seat))
        if len(self._steps) == self._half and self._busy < WRITERS:
            self._flush()
        else:
            self._arm()

    def note_driven(self, claims: Iterable[Claim]) -> None:
        """Notes that runs were claimed through this store, and that the caller knows it."""
        fences = {claim.run_id: claim.fence for claim in claims}
        self.driven.update(fences)
        self.fences.update(fences)

    def forget(self) -> None:
        """Forgets the driven runs, because runs were handed back. Those still held are learned again, so from now on not all runs that the caller
        holds are known."""
        self.knows_all = False
        self.driven.clear()
        self.fences.clear()

    async def close(self) -> None:
        """Waits for the groups that were sent; refuses commits that were not."""
        waiting: list[_Stepping | _Waiting] = [*self._steps, *self._others]
        self._steps, self._others = [], []
        for w in waiting:
            _fail(w, StoreClosed())
        if self._under_way:
            await asyncio.wait(self._under_way)

    # -- groups -------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Has the commits gathered so far sent at the end of this tick of the event loop. While births, rests and ends come one by one, the first of
        a tick is sent at once."""
        if not self._armed and self._busy < WRITERS and (self._steps or self._others):
            self._armed = True
            asyncio.get_running_loop().call_soon(self._end_tick)
            if self._lone and not self._steps:
                self._flush()

    def _end_tick(self) -> None:
        self._armed = False
        gathered = len(self._others)
        if self._lone:
            self._lone = not gathered
        elif gathered == 1:
            self._lone = True
        self._flush()

    def _flush(self) -> None:
        while self._busy < WRITERS and (self._steps or self._others):
            if self._steps:
                steps, self._steps = _apart(self._steps, STEPS)
                if steps and not self._step_at_once(steps):
                    self._send(len(steps), self._write_steps(steps))
            else:
                others, self._others = _apart(self._others, GROUP)
                if others and not self._others_at_once(others):
                    self._send(len(others), self._write_others(others))

    def _send(self, size: int, writing: Coroutine[Any, Any, None]) -> None:
        self._busy += 1
        task = asyncio.ensure_future(writing)
        self._under_way.add(task)
        task.add_done_callback(self._end)
        if meters.METERS:
            task.add_done_callback(functools.partial(_meter, size, time.perf_counter()))

    def _end(self, task: asyncio.Future[None]) -> None:
        self._under_way.discard(task)
        self._busy -= 1
        self._arm()

    # -- steps --------------------------------------------------------------------------------------

    def _step_at_once(self, batch: list[_Stepping]) -> bool:
        """Sends steps in this turn of the event loop, and answers them in the turn in which the server has answered, if a connection is idle: a task
        and its turns would be a good part of the cost of one step. Returns whether it did."""
        steps = self._pick_driven([w.step for w in batch])
        if not steps or meters.METERS or (held := self._pool.take()) is None:
            return False
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def over(error: BaseException | None = None) -> None:
            late.cancel()
            self._half = max(HALVED, (self._sent + len(self._steps) + 1) // 2)
            self._sent -= len(batch)
            written: set[bytes] | None = None
            try:
                if error is not None:
                    raise error
                (answer,) = exchange.answers()
                written = _read_written(held[1], answer, steps)
            except Exception as e:  # nobody awaits this, so the seats of these steps get the error
                self._send(len(batch), self._step_again(batch, held, e))
            else:
                self._pool.give_back(held)
            ended.set_result(None)
            self._end(ended)
            if written is not None and (left := self._answer_written(batch, written)):  # the seats hand over their next steps
                self._send(len(left), self._look_into(left))

        def too_late() -> None:
            exchange.leave()
            over(TimeoutError())

        try:
            exchange = held[1].begin((_ask_for_steps(steps),), over)
        except (psycopg.Error, OSError) as e:
            self._send(len(batch), self._step_again(batch, held, e))
            return True
        self._busy += 1
        self._sent += len(batch)
        self._under_way.add(ended)
        late = loop.call_later(self._patience, too_late)
        return True

    async def _step_again(self, batch: list[_Stepping], held: Held, error: Exception) -> None:
        """Handles steps whose answer was an error, or did not come."""
        await self._pool.give_back_broken(held, error)
        await self._fail_steps(batch, error)

    async def _write_steps(self, batch: list[_Stepping]) -> None:
        """Writes steps with one statement for all; examines those that were not written."""
        try:
            async with asyncio.timeout(self._patience), self._pool.hold() as db:
                written = await self._step(db, [w.step for w in batch])
        except (psycopg.Error, OSError) as e:
            await self._fail_steps(batch, e)
            return
        if left := self._answer_written(batch, written):
            await self._look_into(left)

    def _answer_written(self, batch: Sequence[_Stepping], written: set[bytes]) -> list[_Stepping]:
        """Answers the steps that were written, and returns the others."""
        left = []
        for w in batch:
            if w.step.hash in written:
                self._answer_step(w.seat, w.step.tip(w.step.after.row + 1))
            elif w.waits:
                left.append(w)
        return left

    def _answer_step(self, seat: Seat, tip: Tip) -> None:
        """Tells a seat, which must happen outside of any task."""
        if type(seat) is Awaited or asyncio.current_task() is None:
            self._tell_seat(seat, tip)
        else:
            asyncio.get_running_loop().call_soon(self._tell_seat, seat, tip)

    def _tell_seat(self, seat: Seat, tip: Tip) -> None:
        if seat.waits and (step := seat.tell(tip)) is not None:
            self.join(step, seat)

    async def _fail_steps(self, batch: list[_Stepping], error: Exception) -> None:
        if not passing(error) and not isinstance(error, UNPREPARED):
            for w in batch:
                _fail(w, translate(error, self._url))
            return
        for w in batch:
            w.sent = True
        if left := [w for w in batch if w.waits]:
            await self._look_into(left)

    async def _step(self, db: Connection, steps: Sequence[Step]) -> set[bytes]:
        """Returns the hashes of the steps that were written."""
        driven = self._pick_driven(steps)
        return _read_written(db, await db.answer(_ask_for_steps(driven)), driven) if driven else set()

    def _pick_driven(self, steps: Sequence[Step]) -> list[Step]:
        """Returns the steps whose runs are driven here."""
        return [s for s in steps if s.run_id in self.driven]

    async def _look_into(self, batch: Sequence[_Stepping]) -> None:
        """Writes steps of runs that were not known to be driven here, and settles those whose answer was lost; the others are told why they were
        refused."""

        async def work(sent: int) -> list[Tip | HoldfastError]:
            async with self._pool.hold() as db:
                return await self._settle_steps(db, batch, sent > 0)

        try:
            outcomes = await outlasting(work, self._url, self._patience)
        except Exception as e:
            for w in batch:
                _fail(w, translate(e, self._url))
            return
        for w, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Tip):
                self._answer_step(w.seat, outcome)
            else:
                self.driven.discard(w.step.run_id)
                _fail(w, outcome)

    async def _settle_steps(self, db: Connection, batch: Sequence[_Stepping], again: bool) -> list[Tip | HoldfastError]:
        asked = {
            "b": _buckets([w.step.run_id for w in batch]), "run": Texts([w.step.run_id for w in batch]),
            "n": Numbers([w.step.after.row + 1 for w in batch]), "took": Texts(["[]"] * len(batch)),
        }
        _, _, locked, ends = await many(db, [(Q.begin, None), (Q.bounded, None), (Q.lock_runs, asked), (Q.see_runs, {**asked, "now": self._given()})])
        tips = {run: (n or 0, digest or b"", after) for run, n, digest, after, *_ in ends}
        found = {run: (fence, owner) for run, fence, owner, *_ in locked}
        outcomes: dict[str, Tip | HoldfastError] = {}
        steps: list[Step] = []
        for w in batch:
            s = w.step
            if s.run_id not in found:
                outcomes[s.run_id] = RunNotFound(f"there is no run {s.run_id}")
                continue
            fence, owner = found[s.run_id]
            n, digest, after = tips[s.run_id]
            self.driven.add(s.run_id)
            error = apply.step_refused(s, Found(fence, owner, False, n, digest))
            if error is None:
                steps.append(s)
            elif (w.sent or again) and after == s.hash:
                outcomes[s.run_id] = s.tip(s.after.row + 1)  # it was written; only the answer was lost
            else:
                outcomes[s.run_id] = error
        written = await self._step(db, steps)
        await db.ask((Q.commit, None))
        for s in steps:
            stale = VersionConflict(f"the log of {s.run_id} has new events since it was read", hint="load it again")
            outcomes[s.run_id] = s.tip(s.after.row + 1) if s.hash in written else stale
        return [outcomes[w.step.run_id] for w in batch]

    # -- the general way ----------------------------------------------------------------------------

    def _others_at_once(self, batch: list[_Waiting]) -> bool:
        """Sends the commits that write nothing beside in this turn of the event loop, and answers them in the turn in which the server has answered,
        as ``_step_at_once``. Returns whether it did."""
        if meters.METERS or (held := self._pool.take()) is None:
            return False
        asked = self._plain(batch)
        if not asked.statements:
            self._pool.give_back(held)
            return False
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def over(found: list[Rows] | BaseException) -> None:
            try:
                left = asked.take_left(batch, found) if isinstance(found, BaseException) else self._answer_at_once(batch, asked, found)
            except Exception as e:  # nobody awaits this, so those who wait for these commits get the error
                for w in batch:
                    _fail(w, translate(e, self._url))
                left = []
            if left:
                self._send(len(left), self._settle_others(left))
            ended.set_result(None)
            self._end(ended)

        self._busy += 1
        self._under_way.add(ended)
        self._pool.send(held, asked.statements, self._patience, over)
        return True

    async def _write_others(self, batch: list[_Waiting]) -> None:
        asked, left = self._plain(batch), batch
        if asked.statements:
            try:
                async with asyncio.timeout(self._patience), self._pool.hold() as db:
                    found = await many(db, asked.statements)
            except (psycopg.Error, OSError) as e:
                left = asked.take_left(batch, e)
            else:
                left = self._answer_at_once(batch, asked, found)
        await self._settle_others(left)

    async def _settle_others(self, batch: list[_Waiting]) -> None:
        """Sends the commits that are left, if any, the general way."""
        if not batch:
            return
        try:
            await self._settle(batch)
        except Exception as e:
            if len(batch) == 1:
                _fail(batch[0], translate(e, self._url))
                return
            for w in batch:  # the group was rolled back; each is tried alone, which shows whose error it was
                try:
                    await self._settle([w])
                except Exception as e:
                    _fail(w, translate(e, self._url))

    def _plain(self, batch: Sequence[_Waiting]) -> _Plain:
        """Returns the statements for the commits that write nothing beside, in one round trip."""
        born = [w for w in batch if _begins(w.prepared)]
        moved = [w for w in batch if w.prepared.run_id in self.driven and _moves(w.prepared)]
        taken = [w for w in batch if _takes(w.prepared)]
        asked: list[Statement] = []
        for columns, rows in ((TAKES, [_take(w.prepared) for w in taken]), (MOVES, [_move(w.prepared) for w in moved])):
            if rows:
                buckets, names, *_ = zip(*rows, strict=True)
                asked += [(Q.lock_rows, {"bucket": Numbers(buckets), "run": Texts(names)}), _write(columns, rows, self._given())]
        if born:
            asked.append(_write(BIRTHS, [_birth(w.prepared) for w in born], self._given()))
        told = [w.prepared for w in (*taken, *moved, *born)]
        spoken = self._with_it(_news(told), _name_due(told)) if asked else None
        return _Plain(born, moved, taken, asked if spoken is None else [spoken, *asked], spoken is not None)

    def _answer_at_once(self, batch: Sequence[_Waiting], asked: _Plain, found: Sequence[Rows]) -> list[_Waiting]:
        """Answers the commits that were written, as they were sent: the state of runs here may have been forgotten meanwhile. Returns all others, for
        which the general way finds the reason."""
        given = iter(found[1:] if asked.told else found)
        written: set[str] = set()
        for rows in (*[_second(given) for sent in (asked.taken, asked.moved) if sent], next(given) if asked.born else ()):
            written.update(run_id for (run_id,) in rows)
        done = [w for w in (*asked.taken, *asked.moved, *asked.born) if w.prepared.run_id in written]
        for w in done:
            if apply.owner_after(w.prepared.commit, "") is None:
                self.driven.discard(w.prepared.run_id)
            elif isinstance(w.prepared.commit.lease, Take):
                self.driven.add(w.prepared.run_id)
        self._conclude(done, [w.prepared.tip(_number(w.prepared.commit)) for w in done], told=asked.told)
        return [w for w in batch if w.prepared.run_id not in written]

    async def _settle(self, batch: list[_Waiting]) -> None:
        """Writes one group in one transaction, and answers each commit after it.

        Raises:
            HoldfastError: for all of them; nothing was written, or that is unknown.
        """

        async def work(sent: int) -> list[Tip | HoldfastError]:
            for w in batch:
                w.sent = w.sent or sent > 0
            for attempt in range(TRIES):
                try:
                    async with self._pool.hold() as db:
                        return await self._transaction(db, batch)
                except RACED:
                    if len(batch) > 1 or attempt == TRIES - 1:
                        raise
            raise AssertionError("the last attempt gives an outcome")

        self._conclude(batch, await outlasting(work, self._url, self._patience))

    def _conclude(self, batch: Sequence[_Waiting], outcomes: Sequence[Tip | HoldfastError], *, told: bool = False) -> None:
        """Answers commits, and notifies those whom they concern, unless they were notified already."""
        written: list[Prepared] = []
        for w, outcome in zip(batch, outcomes, strict=True):
            c = w.prepared.commit
            if isinstance(outcome, Tip):
                if apply.owner_after(c, "") is None:
                    self.fences.pop(c.run.run_id, None)
                elif isinstance(c.lease, Take):
                    self.fences[c.run.run_id] = c.fence
                _answer(w, outcome)
                written.append(w.prepared)
            else:
                self.driven.discard(c.run.run_id)
                _fail(w, outcome)
        if any(_concerns_others(p) for p in written):
            self._tell(_news(written), told, _name_due(written))

    async def _transaction(self, db: Connection, batch: Sequence[_Waiting]) -> list[Tip | HoldfastError]:
        seen = await self._look(db, [w.prepared for w in batch])
        outcomes: list[Tip | HoldfastError] = []
        rows = _Rows()
        beside: list[Statement] = []
        application: list[commit.Statement] = []
        kept: set[str] = set()  # runs that have an owner after it
        left: list[Run] = []  # runs whose lane is free for those behind
        for w in batch:
            p = w.prepared
            c, run_id = p.commit, p.commit.run.run_id
            if w.sent and seen.after.get(run_id) == p.sealed.row.hash:
                outcomes.append(p.tip(_number(c)))  # it was written; only the answer was lost
                continue
            ruling = self._rule(p, seen)
            if isinstance(ruling, HoldfastError):
                outcomes.append(ruling)
                continue
            if not ruling.holds and run_id in seen.followed:
                left.append(c.run)
            beside += self._write_beside(p, ruling, seen, rows)
            application += c.statements
            outcomes.append(p.tip(_number(c)))
            if ruling.owner is None:
                self.driven.discard(run_id)
            else:
                kept.add(run_id)
        await _application(db, application)
        if left:
            beside.append((Q.behind_next, {"tenant": [r.tenant_id for r in left], "session": [r.session_key for r in left], "lane": [r.lane for r in left]}))
        await many(db, [*rows.statements(), *beside, (Q.commit, None)])
        self.driven |= kept
        return outcomes

    async def _look(self, db: Connection, prepared: Sequence[Prepared]) -> Seen:
        """Performs the first round trip: locks, then reads what ``apply`` asks for."""
        every = [q for p in prepared for q in (p, *p.creates)]
        named = {q.commit.run.run_id: q for q in every}
        runs = sorted({*named, *(i.run_id for q in every for i in q.commit.puts)})
        lanes = [q.commit.run for q in every if apply.wants_lane(q.commit)]
        predecessors = sorted({r for q in every if q.commit.behind for r in q.commit.behind.runs})
        claims = [m for q in every for m in q.commit.claims]
        effects = sorted({e.key for q in every for e in q.commit.effects})
        moves = sorted({m.after.schedule_id for q in every for m in q.commit.moves})
        queued = [q.commit.run for q in every if q.commit.max_queued is not None]
        large = sorted({b.digest for q in every for b in q.commit.blobs if b.data is None})
        closed = [q for q in every if q.closed]
        entries = sum(len(q.commit.ledger) for q in every)
        at = {"now": self._given()}
        asked: list[Statement] = [
            (Q.begin, None),
            (Q.bounded, None),
            (Q.lock_runs, {"b": _buckets(runs), "run": Texts(runs)}),
            (Q.see_runs, {
                **at, "b": _buckets(named), "run": Texts(named), "n": Numbers([_number(q.commit) for q in named.values()]),
                "took": Texts([json.dumps(q.commit.took) for q in named.values()]),
            }),
            (Q.see_now, at),
        ]
        beside: list[tuple[bool, Statement]] = [
            (any(isinstance(q.commit.lease, Take) for q in every), (Q.see_takers, {"owners": _takers(every)})),
            (bool(lanes), (Q.see_lanes, {
                **at, "run": Texts([r.run_id for r in lanes]), "tenant": Texts([r.tenant_id for r in lanes]),
                "session": Texts([r.session_key for r in lanes]), "lane": Texts([r.lane for r in lanes]),
            })),
            (bool(predecessors), (Q.see_predecessors, {"b": [ids.bucket_number(r) for r in predecessors], "run": predecessors})),
            (bool(claims), (Q.see_claims, {
                "own": OWN, "kind": [m.kind for m in claims], "scope": [m.scope for m in claims], "key": [m.key for m in claims],
                "id": [vouch.claim_id(m.kind, m.scope, m.key) for m in claims],
            })),
            (bool(effects), (Q.see_effects, {"keys": effects})),
            (bool(moves), (Q.see_schedules, {"ids": moves})),
            (bool(large), (Q.see_blobs, {"shas": large})),
            (bool(moves), (Q.vouch_some, (OWN, "schedule", moves))),
            (bool(closed), (Q.see_tokens, {"runs": [q.commit.run.run_id for q in closed], "waits": [w for q in closed for w in q.closed]})),
            (bool(entries), (Q.see_numbers, {"count": entries})),
            (any(_is_found(q.commit) for q in every), (Q.see_limits, None)),
            *((True, (statement, {"queue": r.queue, "tenant": r.tenant_id})) for r in queued for statement in (Q.queue_lock, Q.waiting_in)),
        ]
        answers = await many(db, asked + [statement for wanted, statement in beside if wanted])
        given = iter(answers[5:])
        more = [next(given) if wanted else [] for wanted, _ in beside]
        (now, incarnation) = answers[4][0]
        there = [row[:6] for row in more[3] if row[3] is not None]
        besides.verify(map(besides.of_claim_row, there), [row[6:] for row in more[3] if row[6] is not None])
        taken = [DedupClaim(*row) for row in there]
        over = sorted({m.run_id for m in taken if not apply.still_taken(m, None, now)})
        statuses: dict[str, str] = dict((await many(db, [(Q.see_statuses, {"b": [ids.bucket_number(r) for r in over], "run": over})]))[0]) if over else {}
        if {id for id, *_ in more[5]} < {id for _, _, id, *_ in more[7]}:  # one was created between the two reads, so it is there now
            (more[5],) = await many(db, [(Q.see_schedules, {"ids": moves})])
        besides.verify(map(vouch.of_schedule_row, more[5]), more[7])
        seen = Seen(
            now=now,
            incarnation=incarnation,
            found={},
            unread_runs=set(),
            followed=set(),
            taking={},
            vouched={},
            after={},
            takers={owner for (owner,) in more[0]},
            lanes={run: (holder, first, turn) for run, holder, first, turn in more[1]},
            predecessors={run for (run,) in more[2]},
            claims={(m.kind, m.scope, m.key): m.run_id for m in taken if apply.still_taken(m, statuses.get(m.run_id), now)},
            effects={},
            schedules={i: codec.decode_schedule(data) for i, _, _, data in more[5]},
            blobs={sha for (sha,) in more[6]},
            tokens=besides.keep_sound(more[8], besides.of_token_row, besides.decode_token),
            numbers=iter([number for (number,) in more[9]]),
            queued={(r.queue, r.tenant_id): more[12 + 2 * n][0][0] for n, r in enumerate(queued)},
            limited=bool(more[10]),
        )
        for key, effect_id in more[4]:
            seen.effects.setdefault(key, set()).add(effect_id)
        ends = {run: rest for run, *rest in answers[3]}
        for run, fence, owner, holds, turn, status in answers[2]:
            n, digest, after, boot, left, unread, followed, untaken, vouched = ends.get(run, (0, b"", None, None, None, False, False, (), ()))
            live = owner is not None and self._judge(owner, boot, left) is None
            seen.found[run] = Found(fence, owner, live, n or 0, digest or b"", holds, turn, status)
            seen.after[run], seen.taking[run], seen.vouched[run] = after, set(untaken), set(vouched)
            if unread:
                seen.unread_runs.add(run)
            if followed:
                seen.followed.add(run)
        return seen

    def _rule(self, p: Prepared, seen: Seen) -> Ruling | HoldfastError:
        """Returns what becomes of a commit and of those that it creates, or why it may not be applied."""
        c, run_id = p.commit, p.commit.run.run_id
        taker = not isinstance(c.lease, Take) or c.lease.owner in seen.takers
        try:
            ruling = apply.admit(p, seen.found.get(run_id), seen, incarnation=seen.incarnation, taker=taker, now=seen.now, limited=seen.any_limit)
        except HoldfastError as e:
            return e
        if lost := set(c.took) - seen.vouched.get(run_id, set()):
            return RecordDamaged("inbox", run_id, min(lost))
        refused = (error for child in p.creates if isinstance(error := self._rule(child, seen), HoldfastError))
        return next(refused, ruling)

    # -- what is written ----------------------------------------------------------------------------

    def _write_beside(self, p: Prepared, ruling: Ruling, seen: Seen, rows: _Rows) -> Iterator[Statement]:
        """Yields what a commit writes beside its log row and its run's. These two go into ``rows``, which are written before everything else."""
        c, run, log = p.commit, p.commit.run, p.sealed.row
        bucket = ids.bucket_number(run.run_id)
        end = _log_values(p)
        ended = run.finished_at if run.terminal else None
        if run.run_id not in seen.found:
            found_by = (run.tenant_id, run.skill_id, run.shape, run.thread_id, run.session_key, run.lane, run.queue)
            born = p.sealed.doc or codec.encode_run(run)
            place = (bucket, run.run_id, c.fence, ruling.owner, ruling.due, ruling.holds, run.status.value)
            rows.born.append((*place, *found_by, run.priority, run.parent_run_id, run.lineage_root, ended, born, *end))
        else:
            stands = (ruling.turn or None, c.fence, ruling.owner, ruling.due, int(ruling.holds))
            doc = codec.encode_run(run) if p.sealed.doc is None and p.whole is not None else p.sealed.doc  # so that a load needs no rows from before a whole checkpoint
            rows.moved.append((*stands, run.status.value, run.priority, run.shape, ended, doc, bucket, run.run_id, _number(c), *end))
            if c.took:
                yield Q.inbox_take, {"seq": log.seq, "b": bucket, "run": run.run_id, "keys": list(c.took), "count": len(c.took)}
        if p.whole is not None:
            yield Q.whole_insert, (log.seq, _number(c), p.whole, bucket, run.run_id)
        for predecessor in c.behind.runs if c.behind is not None else ():
            yield Q.carry_insert, (predecessor, run.run_id)
        if p.closed:
            yield from besides.revoke(seen.tokens, run.run_id, p.closed, seen.now)
        if not p.plain:
            yield from self._beside(p, seen, rows)

    def _beside(self, p: Prepared, seen: Seen, rows: _Rows) -> Iterator[Statement]:
        """Yields what a commit writes beside its log row."""
        c, at = p.commit, self._given()
        for m in c.claims:
            values = {"kind": m.kind, "scope": m.scope, "key": m.key, "run": m.run_id, "digest": m.digest, "until": m.expires_at, "now": at}
            yield Q.claim_insert, values
        yield from besides.keep(map(vouch.of_claim, c.claims))
        yield from besides.put_effects(p.effects, p.encoded)
        yield from besides.put_claims(apply.claim_keys(p.effects))
        yield from put_intents(c.intents)
        yield from besides.put_ledger(c.ledger, seen.numbers)
        for blob in c.blobs:
            yield from keep_blob(c.run.run_id, blob)
        if c.emitted is not None:
            yield from emitting(c.emitted, at)
        for child in p.creates:
            ruling = self._rule(child, seen)
            assert isinstance(ruling, Ruling), "it was ruled on before"
            yield from self._write_beside(child, ruling, seen, rows)
        for item in c.puts:
            yield Q.put, put_values(item, at)
        for move in c.moves:
            yield from besides.put_schedule(move.after, new=move.before is None)


async def _application(db: Connection, statements: Sequence[commit.Statement]) -> None:
    """Executes the statements that steps have returned for the application's own tables, in the transaction of their commits.

    Raises:
        StatementFailed: one was refused; the whole transaction is rolled back.
    """
    if not statements:
        return
    try:
        async with db.pipeline():  # by psycopg itself, which reports what is wrong with a text that others wrote and with its placeholders
            for s in statements:
                await db.execute(s.text, _params(s))
    except (psycopg.Error, TypeError) as e:  # a TypeError: named placeholders with a list of values, or the other way round
        if passing(e):
            raise
        raise StatementFailed(f"{type(e).__name__}: {str(e).strip()[:500]}", hint="nothing of the step was committed; fix the table or the code, then resume") from None


def _params(statement: commit.Statement) -> Any:
    """Returns the parameters as the driver takes them: mappings become jsonb. If there are none, the driver does not search the text for
    placeholders."""
    given = canon.thaw(canon.decode(statement.params))
    if isinstance(given, dict):
        return {name: _param(value) for name, value in given.items()} or None
    return [_param(value) for value in given] or None


def _param(value: Any) -> Any:
    return Jsonb(value) if isinstance(value, dict) else value


# The types of the columns of statements for many rows.
_LOGGED = (Numbers, Numbers, Numbers, Numbers, Texts, Texts, Blobs, Blobs)
_STEPPED = (Numbers, Texts, Numbers, *_LOGGED, Numbers, Blobs)
_BORN = (Numbers, Texts, Numbers, Texts, Numbers, Numbers, *[Texts] * 8, Numbers, Texts, Texts, Numbers, Blobs, *_LOGGED)
_MOVED = (Numbers, Numbers, Texts, Numbers, Numbers, Texts, Numbers, Texts, Numbers, Blobs, Numbers, Texts, Numbers, *_LOGGED)


def _write(columns: Columns, rows: Sequence[tuple[Any, ...]], now: int | None) -> Statement:
    """Returns the statement that writes these rows, with their values."""
    if len(rows) == 1:
        return columns.for_one, columns.one(rows[0]) | {"now": now}
    return columns.for_many, columns.many(rows) | {"now": now}


def _begins(p: Prepared) -> bool:
    """Whether this is the birth of a run that begins at once or waits to begin, and writes nothing beside."""
    c = p.commit
    if c.after is not None or not p.plain or p.whole is not None or p.closed or c.max_queued is not None or c.follows is not None or c.run.terminal:
        return False
    return c.run.status is Status.PENDING if isinstance(c.lease, Release | Touch) else isinstance(c.lease, Take) and not c.lease.found


def _concerns_others(p: Prepared) -> bool:
    """Whether others may have something to do because of the commit."""
    return p.sealed.doc is not None or not p.plain


def _news(written: Iterable[Prepared]) -> int:
    """Returns the kinds of news in these commits; 0 if they are no news."""
    news, moved = 0, False
    for p in written:
        news |= apply.news_of(p, apply.owner_after(p.commit, "") is not None)
        moved = moved or _concerns_others(p)
    return news if moved else 0


def _name_due(written: Sequence[Prepared]) -> str | None:
    """Returns the run that became due by these commits, if they are a single birth and a notification may name the run."""
    if len(written) != 1 or not _begins(written[0]) or apply.owner_after(written[0].commit, None) is not None:
        return None
    return written[0].run_id if may_name(written[0].run_id) else None


def _birth(p: Prepared) -> tuple[Any, ...]:
    """Returns the row of a new run, with its log row. A run that is due at once gets no time from here: the database knows it better."""
    c, run = p.commit, p.commit.run
    owner = apply.owner_after(c, None)
    due = apply.due_after(c, owner, 0, lambda: False)
    doc = p.sealed.doc or codec.encode_run(run)
    return (
        ids.bucket_number(run.run_id), run.run_id, c.fence, owner, due, apply.holds_after(c, False), run.status.value, run.tenant_id, run.skill_id, run.shape,
        run.thread_id, run.session_key, run.lane, run.queue, run.priority, run.parent_run_id, run.lineage_root, None, doc, *_log_values(p),
    )


def _moves(p: Prepared) -> bool:
    """Whether the commit moves a run that its owner keeps or releases, and writes nothing beside."""
    c = p.commit
    if c.after is None or not p.plain or p.whole is not None or p.closed or c.max_queued is not None or c.follows is not None:
        return False
    return isinstance(c.lease, Keep | Release)


def _move(p: Prepared) -> tuple[Any, ...]:
    """Returns what becomes of a run's row, with its log row and the one that it follows. It has two due times, for an empty and for an unread inbox,
    and two values for whether the run holds its lane, for whether it held it before or not."""
    c, run = p.commit, p.commit.run
    assert c.after is not None, "a run that moves has begun"
    owner = apply.owner_after(c, "")
    due, unread = apply.due_after(c, owner, 0, lambda: False), apply.due_after(c, owner, 0, lambda: True)
    return (
        ids.bucket_number(run.run_id), run.run_id, c.fence, owner is not None, due, unread, apply.holds_after(c, True), apply.holds_after(c, False), run.status.value, run.priority, run.shape,
        run.finished_at if run.terminal else None, p.sealed.doc, c.after.row, c.after.hash, *_log_values(p),
    )


def _is_found(c: Commit) -> bool:
    """Whether the commit replaces a claim."""
    return isinstance(c.lease, Take) and c.lease.found


def _takes(p: Prepared) -> bool:
    """Whether the commit begins a run that was found, instead of its claim, and writes nothing beside."""
    c = p.commit
    if not _is_found(c) or c.after is None or not p.plain or p.whole is not None or p.closed or c.took or c.max_queued is not None or c.follows is not None:
        return False
    return not c.run.terminal and apply.holds_after(c, False)


def _take(p: Prepared) -> tuple[Any, ...]:
    """Returns what becomes of the row of a run that is taken, with its log row and the one that it follows."""
    c, run = p.commit, p.commit.run
    assert c.after is not None, "a run that was found is there"
    owner = apply.owner_after(c, None)
    due = apply.due_after(c, owner, 0, lambda: False)
    return (
        ids.bucket_number(run.run_id), run.run_id, c.fence, owner, due, run.status.value, run.priority, run.shape, p.sealed.doc, c.after.row, c.after.hash, *_log_values(p),
    )


def _second(answers: Iterator[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """Returns the answer that follows the one of a lock."""
    next(answers)
    return next(answers)


def _log_values(p: Prepared) -> tuple[Any, ...]:
    run, log = p.commit.run, p.sealed.row
    return log.seq, p.since, p.whole_size, run.version, run.current_step_id, run.checkpoint_head, log.hash, log.data


def _columns(arrays: Sequence[Callable[[Any], Any]], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [array(column) for array, column in zip(arrays, zip(*rows, strict=True), strict=True)]


def _buckets(runs: Iterable[str]) -> Numbers:
    return Numbers([ids.bucket_number(r) for r in runs])


def _number(c: Commit) -> int:
    """Returns the number of the log row that a commit becomes."""
    return 1 if c.after is None else c.after.row + 1


def _takers(every: Iterable[Prepared]) -> list[str]:
    return sorted({q.commit.lease.owner for q in every if isinstance(q.commit.lease, Take)})


def _apart(waiting: Sequence[W], most: int) -> tuple[list[W], list[W]]:
    """Returns the oldest commits that do not touch the same things, and the rest. If a commit needs to see what another does to a run, a lane or a
    key, it is in a later group, which is read when the other is done."""
    if len(waiting) == 1:
        return [w for w in waiting if w.waits], []
    batch: list[W] = []
    rest: list[W] = []
    written: set[object] = set()
    told: set[object] = set()
    for w in waiting:
        if not w.waits:
            continue  # its task was cancelled before anything was sent
        writes, tells = w.find_touched()
        if len(batch) == most or writes & written or writes & told or tells & written:
            rest.append(w)
        else:
            batch.append(w)
        written |= writes
        told |= tells
    return batch, rest


def _find_touched(p: Prepared) -> tuple[set[object], set[object]]:
    """Returns what a commit changes, and the runs into whose inbox it puts something, which several commits may do at once."""
    c = p.commit
    writes: set[object] = {c.run.run_id}
    if c.after is None or isinstance(c.lease, Take | Touch):
        writes.add((c.run.tenant_id, c.run.session_key, c.run.lane))
    if c.max_queued is not None:
        writes.add(("queued", c.run.queue, c.run.tenant_id))
    writes.update((m.kind, m.scope, m.key) for m in c.claims)
    writes.update(("effect", e.key) for e in c.effects)
    writes.update(("schedule", m.after.schedule_id) for m in c.moves)
    tells: set[object] = {i.run_id for i in c.puts}
    for child in p.creates:
        more, others = _find_touched(child)
        writes |= more
        tells |= others
    return writes, tells - writes


def _meter(size: int, began: float, _: asyncio.Task[None]) -> None:
    meters.group(size, time.perf_counter() - began)


def _ask_for_steps(steps: Sequence[Step]) -> Statement:
    """Returns the statement that writes the steps whose fence is that of their run, and that follow the end of its log."""
    rows = [
        (ids.bucket_number(s.run_id), s.run_id, s.fence, s.seq, s.since, s.after.whole, s.version, s.step, s.head, s.hash, s.data, s.after.row, s.after.hash)
        for s in steps
    ]
    return (Q.steps, _columns(_STEPPED, rows)) if len(rows) > 1 else (Q.step, rows[0])


def _read_written(db: Connection, answer: PGresult, steps: Sequence[Step]) -> set[bytes]:
    """Returns the hashes of the steps that were written. The statement for one step returns no rows: it was written if one row was affected."""
    if not answer.nfields:
        return {s.hash for s in steps} if answer.command_tuples else set()
    return {digest for (digest,) in db.rows(answer)}


def _answer(w: _Waiting, tip: Tip) -> None:
    if not w.future.done():
        w.future.set_result(tip)


def _fail(w: _Waiting | _Stepping, error: HoldfastError) -> None:
    if w.waits:
        w.refuse(make_own(error))


def put_values(item: InboxItem, at: int | None) -> dict[str, Any]:
    command = codec.encode_command(item.command)
    voucher = vouch.of_inbox(item.run_id, item.key, item.put_at, command, None)
    return {
        "b": ids.bucket_number(item.run_id), "run": item.run_id, "key": item.key, "at": item.put_at, "command": command, "seal": voucher.seal, "now": at,
    }


def keep_blob(run_id: str, blob: Blob) -> Iterator[Statement]:
    """Stores a blob unless it is there, and records that the run refers to it."""
    if blob.data is not None:
        yield Q.blob_insert, (blob.digest, blob.data)
    yield Q.blob_use, (blob.digest, run_id)


def emitting(e: Emitted, at: int | None) -> Iterator[Statement]:
    """Stores chunks of a run, and deletes those that were replaced a while ago."""
    yield Q.chunk_sweep, {"now": at, "linger": LINGER_US}
    for batch in e.batches:
        yield Q.chunk_put, (e.run_id, batch.turn.key, batch.last, chunks.encode(e.run_id, batch))
    for turn, first in e.before.items():
        yield Q.chunk_cut, (e.run_id, turn, first)
    if e.replaced:
        yield Q.chunk_gone, {"now": at, "run": e.run_id, "turns": list(e.replaced)}


__all__ = ["RACED", "TRIES", "Committer", "Statement", "emitting", "keep_blob", "put_values"]
