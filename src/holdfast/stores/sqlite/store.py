"""The SQLite store: the verbs of the port, each one transaction.

Theory of operation. Three connections at most: the loop's, which reads and, while commits are quick, writes; the
writer thread's, when they are not (``writer.py``); and the renewal's, so that a heartbeat in its own thread depends on
nobody (``renew``). Several processes may share the file: row ids are given inside the write transaction, owners are
judged by their liveness files and by the clock since boot, and wake-ups come from a poll of ``data_version``.

When opening finds that the log has gone backwards, or that the store is another incarnation than the anchor remembers,
the store can be read and ``verify`` names it, but every write raises the named error until ``acknowledge`` (§1.9).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import math
import os
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import apsw
import msgspec

from holdfast import machine
from holdfast.core import blobs, canon, chunks, codec, vouch
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.chunks import Emitted, Stored
from holdfast.core.codec import Row
from holdfast.core.commit import Commit, DedupClaim, InboxItem, LedgerRow, Settlement, Step, ThreadEnd, Tip
from holdfast.core.consistency import problem, record_problem
from holdfast.core.effects import Effect
from holdfast.core.errors import (
    HoldfastError,
    IncarnationChanged,
    LeaseLost,
    LogRolledBack,
    ProcessForked,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreMoved,
    UnknownStatus,
    UsageError,
)
from holdfast.core.intents import Intent, answer_lost
from holdfast.core.lease import Alive, Lease, at_once, due_since
from holdfast.core.limits import Backlog, Due, Later, Limit, Rule, choose, in_force
from holdfast.core.offers import Offer
from holdfast.core.pruned import Tombstone
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.status import TERMINAL, Status
from holdfast.core.tokens import Token
from holdfast.ports import (
    ANYTHING,
    NO_LIMITS,
    Claim,
    Claims,
    Dossier,
    Evidence,
    Head,
    IntentCount,
    Loaded,
    News,
    Problem,
    Pruned,
    RunFilter,
    Tally,
    Usage,
    Worker,
)
from holdfast.stores import apply
from holdfast.stores.apply import Found
from holdfast.stores.changes import BOARD, Bell, Board, Changes
from holdfast.stores.crowds import Crowds
from holdfast.stores.files import Identity, on_disk, store_error
from holdfast.stores.liveness import Liveness
from holdfast.stores.sqlite import besides, lanes, limits, outbox, upkeep
from holdfast.stores.sqlite.anchor import Anchor, Mark
from holdfast.stores.sqlite.commits import Committer, Sight, keep_blob, lane_blocker
from holdfast.stores.sqlite.connection import (
    LOG_LIMIT,
    LOOP_BUSY,
    PATIENCE,
    Q,
    begin_anew,
    connect,
    mapped,
    process_named,
    readable,
    readers,
    reading,
    row,
    rows,
    schema,
    shut,
    shutting,
    unmake,
    waiting_log,
    writing,
)
from holdfast.stores.sqlite.lanes import NOBODY, Behind
from holdfast.stores.sqlite.owners import Owners, Seen
from holdfast.stores.sqlite.writer import Writer

MAX_LIST = 10_000
TIDY_SECONDS = 1.0
READ_SECONDS = 0.2  # a reader that is there for so long is told of
LITTLE_ROOM = 256 * 1024 * 1024  # on a disk with less than this left, doctor warns
MAX_PROBLEMS = 100
_TERMINAL = frozenset(s.value for s in TERMINAL)
_FILTERS = {
    "tenant_id": "tenant_id = ?",
    "skill_id": "skill_id = ?",
    "thread_id": "thread_id = ?",
    "session_key": "session_key = ?",
    "lane": "lane = ?",
    "parent_run_id": "parent_run_id = ?",
    "lineage_root": "lineage_root = ?",
    "owner": "owner = ?",
    "before": "run_id < ?",
}
_OPEN = "status NOT IN ('completed', 'failed', 'canceled')"  # in the words of an index
_LIST = "SELECT run_id, doc, status, version, step, head, fence, owner, due FROM run"
_DUE = f"holds = 0 AND due IS NOT NULL AND due <= ? AND turn <= ifnull((SELECT turn FROM run WHERE run_id = ?), {apply.LAST_TURN})"


class _Candidate(NamedTuple):
    """A run that may be claimed. ``holds``: of a run at rest that is due, whether it holds its lane; None for any other."""

    key: int
    run_id: str
    fence: int
    previous: str | None
    holds: int | None


class _Found(NamedTuple):
    """The runs that may be claimed, the buckets after that, and when a rate lets another run go."""

    runs: Sequence[_Candidate] = ()
    buckets: Mapping[str, int] = {}
    again: int | None = None


class _Nothing(Exception):
    """Others were first: the transaction of a claim that takes nothing is undone, so that nobody is told of it."""

    def __init__(self, again: int | None) -> None:
        super().__init__(again)
        self.again = again


class _Wanted(NamedTuple):
    """What a claimer takes: of which queues (none: all), of which skills and shapes (as JSON, None: any), within which declared limits."""

    queues: tuple[str, ...]
    skills: str | None
    shapes: str | None
    limits: Mapping[str, Limit]

    @classmethod
    def of(cls, queues: Sequence[str], skills: Sequence[str] | None, shapes: Sequence[str] | None, limits: Mapping[str, Limit]) -> _Wanted:
        return cls(tuple(queues), None if skills is None else json.dumps(list(skills)), None if shapes is None else json.dumps(list(shapes)), limits)


class SqliteStore:
    """A store in one SQLite file. ``now`` replaces its clock (microseconds since 1970), so that tests can move time."""

    has_server: bool = False

    def __init__(self, path: str | os.PathLike[str], *, now: Callable[[], int] | None = None) -> None:
        self.path = os.fspath(path)
        self.url = f"sqlite:///{self.path}"
        self.incarnation = 0
        self.suspect: HoldfastError | None = None
        self.patience = PATIENCE
        self._now = now or machine.wall
        self._anchor = Anchor(self.path + "-anchor", self._unsynced, self._each_second)
        self._liveness = Liveness(self.path + "-live")
        self._moved = now is not None
        self._owners = Owners(self._liveness, self._now, given=self._moved)
        self._tidied = -math.inf
        self._crowds = Crowds()
        self._search = outbox.Search(self._owners)
        self._changes = Changes(self._data_version)
        self._noted = (0, 0)
        self._overgrown: HoldfastError | None = None
        self._file: Identity | None = None
        self._log: dict[str, Identity] = {}  # the write-ahead log and its index, from the first commit on until the last connection here ends
        self._orphans: dict[str, tuple[int, int]] = {}
        self._db: apsw.Connection | None = None
        self._writer: Writer | None = None
        self._renewing: apsw.Connection | None = None
        self._renewal = threading.Lock()

    # -- life ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Opens or creates the file. A log that went backwards is named in ``suspect`` and by ``verify``; it opens for reading.

        Raises:
            StoreReadOnly, StoreCorrupt, StoreBusy, UnsupportedFormat: by what stands in the way.
        """
        if self._db is not None:
            return
        folder = os.path.dirname(os.path.abspath(self.path))
        if not os.path.isdir(folder):
            raise UsageError(f"the folder {folder} does not exist", hint="create it first")
        new = not os.path.lexists(self.path)
        try:
            self._prepare(connect(self.path, create=True))
        except BaseException:
            self._anchor.close()
            if new:
                unmake(self.path)
            raise
        self._db = connect(self.path, patience=LOOP_BUSY)
        self._writer = Writer(self.path, self._committer(self._db), self._thread_committer, self._after, self._changes.tell)
        self._forks = machine.forks()
        self._anchor.keep_synced()
        posted = partial(Board.of, os.path.join(self.path + "-live", BOARD), self.path)
        self._changes.reopen(None if self._moved else Bell.of(self.path), posted)  # where time is given, so is the order of what happens

    def _prepare(self, db: apsw.Connection) -> None:
        """Makes the tables where there are none, and looks what the file is."""
        try:
            with mapped(self.path):
                empty = db.pragma("user_version") == 0
                schema(db, self.path, secrets.randbits(31))
                if empty:
                    # The schema is in the file itself from the start: a lost log then shows as a lost log, not as a new store.
                    db.pragma("wal_checkpoint(TRUNCATE)")
                known = _one(db, Q.meta_get, ("incarnation",))
                self.incarnation = known if isinstance(known, int) and 0 <= known < 2**31 else 0
                with on_disk(self._anchor.path):
                    self.suspect = self._suspicion(db)
                self._file = Identity(self.path, filled=True)
        finally:
            shut(db)

    def _committer(self, db: apsw.Connection) -> Committer:
        return Committer(db, self._owners, self._now, self._same)

    def _thread_committer(self) -> Committer:
        return self._committer(self._another())

    def _another(self) -> apsw.Connection:
        """One more connection to the file that is open, and to no other that has come into its place."""
        self._same_file()
        if isinstance(self.suspect, StoreMoved):
            raise self.suspect
        return connect(self.path)

    def _end(self, db: apsw.Connection) -> Mark:
        """Where the store stands: its newest log row, and its newest transaction without one."""
        last, digest = row(db, Q.log_last) or (0, b"")
        return Mark(self.incarnation, last, digest, _one(db, Q.meta_get, ("writes",)) or 0)

    def _suspicion(self, db: apsw.Connection) -> HoldfastError | None:
        """Holds the end of the store against the anchor, in constant time (§1.9). The anchor is read first: it is never ahead."""
        mark = self._anchor.open()
        end = self._end(db)
        self._noted = (end.last, end.writes)
        way_out = "look at what is missing (holdfast check), restore a backup, or accept the loss: holdfast doctor --acknowledge"
        if mark is None:
            if end.last == 0 and end.writes == 0:
                self._anchor.begin(Mark(self.incarnation, 0, b""), first=True)
                return None
            return LogRolledBack(f"{self._anchor.path} is missing or damaged, so the end of the log cannot be verified", hint=way_out)
        if mark.last > end.last:
            return LogRolledBack(f"{self.path} ends with log row {end.last}, but row {mark.last} was acknowledged", hint=way_out)
        if mark.incarnation != self.incarnation:
            return IncarnationChanged(f"{self.path} is not the store its anchor belongs to", hint=way_out)
        if mark.writes > end.writes:
            about = f"{self.path} contains {end.writes} writes outside the log, but {mark.writes} were acknowledged"
            return LogRolledBack(about, hint=way_out)
        if mark.last:
            found = row(db, Q.log_hash, (mark.last,))
            if found is None or found[0] != mark.hash:
                return LogRolledBack(f"{self.path}: log row {mark.last} is not the one that was acknowledged", hint=way_out)
        self._anchor.renew()
        return None

    def _after(self, committer: Committer) -> HoldfastError | None:
        """Between COMMIT and the answer: the anchor follows. Gives what must be answered instead, where the file that was written is
        no longer the store: nothing is acknowledged into the void. May run in the writer's thread."""
        self._same_file()
        if not self._log:
            self._same_log()
        if isinstance(self.suspect, StoreMoved):
            return self.suspect
        number, digest = committer.last
        grown = number > self._noted[0] or committer.wrote > self._noted[1]
        self._noted = (max(number, self._noted[0]), max(committer.wrote, self._noted[1]))
        try:  # what does not grow may be another store by now, restored from an older copy
            followed = self._anchor.raise_to(Mark(self.incarnation, number, digest, committer.wrote)) if grown else self._anchor.of(self.incarnation)
        except OSError as e:
            self._unsynced(e)
            return None
        if not followed:
            self.suspect = self._replaced()
            return self.suspect
        return None

    def _same(self, incarnation: int) -> None:
        """Asked inside each transaction that no fence guards, before it writes.

        Raises:
            IncarnationChanged: another process has restored or acknowledged the store meanwhile.
        """
        if incarnation != self.incarnation:
            self.suspect = self._replaced()
            raise self.suspect

    def _replaced(self) -> IncarnationChanged:
        return IncarnationChanged(f"{self.path} was restored or acknowledged by another process", hint="open the store again")

    def _unsynced(self, error: OSError) -> None:
        """The anchor could not follow: whatever is acknowledged from now on nothing would vouch for. May run in any thread."""
        if self.suspect is None:
            self.suspect = store_error(error, self._anchor.path)

    def _each_second(self) -> None:
        """In the anchor's thread: looks at the file and its log, and empties a log that a reader which has left had let grow."""
        self._same_file()
        self._same_log()
        if self.suspect is None:
            try:
                begin_anew(self.path, LOG_LIMIT)
                self._overgrown = None
            except HoldfastError as e:
                self._overgrown = e  # it is tried again; ``doctor`` tells of it

    async def health(self) -> list[Problem]:
        """Whether the disk is nearly full, and who reads for so long that the write-ahead log cannot start anew (``doctor``)."""
        left = self._overgrown
        told = [] if left is None else [Problem(left.code, "warning", f"{self.path}: its write-ahead log cannot be emptied: {left.message}", left.hint)]
        told += self._room()
        if not (before := await asyncio.to_thread(self._old_readers)):
            return told
        await asyncio.sleep(READ_SECONDS)
        stays = sorted({pid for pid, _ in before & await asyncio.to_thread(self._old_readers)})
        size = os.stat(self.path + "-wal").st_size if stays else 0
        about = f"reads an old state of {self.path}: its write-ahead log, {size >> 10} KiB now, grows until that ends"
        return told + [Problem("snapshot_old", "warning", f"{process_named(pid)} {about}", "end that reader; the write-ahead log is then emptied within a second") for pid in stays]

    def _room(self) -> list[Problem]:
        """How much the disk still takes, if that is little."""
        free = shutil.disk_usage(os.path.dirname(os.path.abspath(self.path))).free
        if free >= LITTLE_ROOM:
            return []
        return [Problem("disk_low", "warning", f"the disk of {self.path} has {free >> 20} MiB left", "make room: on a full disk every run stops at its last commit")]

    def _old_readers(self) -> set[tuple[int, int]]:
        with mapped(self.path), contextlib.closing(connect(self.path, patience=0)) as db:
            return readers(self.path) if waiting_log(db) else set()

    def _same_file(self) -> None:
        """Looks whether the path still leads to the file that is open; writes end where it does not (X-27). May run in any thread."""
        if self._file is not None and self.suspect is None and (what := self._file.lost()):
            way_out = "put the file back, or end the processes that use it and open what is there now"
            self.suspect = StoreMoved(f"{self.path} {what} while it was open", hint=way_out)

    def _same_log(self) -> None:
        """Looks whether the write-ahead log is the one that is open: in another one nobody else would see what is written here, and what is
        written here would go with this process. With another index beside it, two processes would write over each other."""
        try:
            for path in (self.path + "-wal", self.path + "-shm"):
                if path not in self._log:
                    if os.path.exists(path):
                        self._log[path] = Identity(path)
                elif self.suspect is None and (what := self._log[path].lost()):
                    way_out = "stop this process with SIGTERM, so that what it wrote reaches the file; then open the store again"
                    self.suspect = StoreMoved(f"{path} {what} while it was open", hint=way_out)
        except HoldfastError as e:
            self.suspect = self.suspect or e

    async def close(self) -> None:
        """Ends what is in hand, syncs the anchor, and lets go of every owner's proof of life."""
        self._changes.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        with self._renewal:
            if self._renewing is not None:
                shut(self._renewing)
                self._renewing = None
        self._liveness.close()
        self._anchor.close()
        self._log = {}
        if self._db is not None:
            shut(self._db)
            self._db = None

    def now(self) -> int:
        return self._now()

    def _read(self) -> apsw.Connection:
        if self._db is None:
            raise StoreClosed(f"{self.path} is not open", hint="await store.open() first")
        self._own()
        return self._db

    def _own(self) -> None:
        """Refuses the child of a fork: it shares its parent's connection."""
        if machine.forks() != self._forks:
            raise ProcessForked(f"{self.path} was opened by the process that this one was forked from", hint="open it again in the child")

    def _write(self) -> Writer:
        if (writer := self._writer) is None:
            raise StoreClosed(f"{self.path} is not open", hint="await store.open() first")
        if machine.forks() != self._forks:
            self._own()
        if self.suspect is not None:
            raise type(self.suspect)(self.suspect.message, hint=self.suspect.hint, code=self.suspect.code)
        return writer

    # -- writing ------------------------------------------------------------------------------------

    async def commit(self, commit: Commit) -> Tip:
        writer = self._write()
        prepared = apply.prepare(commit)
        if __debug__ and prepared.step is None:  # of plain steps the store in memory checks enough; here they would pay for it each time
            commit.check()
        return await writer.commit(prepared)

    async def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd:
        with mapped(self.path):
            return Sight(self._read(), self._now(), 0, False).thread_end(tenant_id, thread_id)

    async def step(self, step: Step) -> Tip:
        return await self._write().commit(step)

    async def put(self, item: InboxItem) -> InboxItem:
        def work(committer: Committer) -> InboxItem:
            with committer.writing():
                return committer.put(item, self._now())

        kept = await self._write().run(work)
        self._changes.tell(News.DUE | News.INBOX)
        return kept

    async def settle_effect(self, effect: Effect, expected: str) -> bool:
        def work(committer: Committer) -> bool:
            with committer.writing():
                if not row(committer.db, Q.effect_stands, (effect.effect_id, str(expected)))[0]:
                    return False
                besides.vouch_for(committer.db, [besides.put_effect(committer.db, effect)])
                return True

        done = await self._write().run(work)
        self._changes.tell(News.OTHER)
        return done

    # -- leases and lanes ---------------------------------------------------------------------------

    async def claim(
        self,
        owner: str,
        queues: Sequence[str],
        skills: Sequence[str] | None,
        *,
        limit: int,
        run_id: str | None = None,
        shapes: Sequence[str] | None = None,
        limits: Mapping[str, Limit] = NO_LIMITS,
    ) -> Claims:
        self._write()
        wanted = _Wanted.of(queues, skills, shapes, limits)
        with mapped(self.path):
            found = self._found(self._read(), owner, wanted, min(limit, 1), run_id)
            behind = lanes.behind(self._read(), self._crowds, queues, self._now()) if run_id is None else NOBODY
        return await self._claimed(owner, wanted, limit, run_id, found, behind)

    async def claim_or_load(
        self,
        owner: str,
        queues: Sequence[str],
        skills: Sequence[str] | None,
        *,
        limit: int,
        shapes: Sequence[str] | None = None,
        limits: Mapping[str, Limit] = NO_LIMITS,
    ) -> Claims | Loaded:
        self._write()
        wanted = _Wanted.of(queues, skills, shapes, limits)
        with mapped(self.path):
            db = self._read()
            found = self._found(db, owner, wanted, min(limit, 2), None)
            behind = lanes.behind(db, self._crowds, queues, self._now())
            alone = len(found.runs) == 1 and found.runs[0].holds is not None and not behind
            if alone and (loaded := self._unbegun(db, found.runs[0].run_id, limits)) is not None:
                return loaded
        return await self._claimed(owner, wanted, limit, None, found, behind)

    def _unbegun(self, db: apsw.Connection, run_id: str, declared: Mapping[str, Limit]) -> Loaded | None:
        """A run as it stands, if it was only ever born and no limit concerns it. One that cannot be read is claimed: its claimer says so on the run."""
        if declared or row(db, Q.rule_any)[0]:
            return None
        with contextlib.suppress(HoldfastError, UnicodeDecodeError), reading(db):
            if (loaded := self._loaded(db, run_id)) is not None and apply.is_unbegun(loaded):
                return loaded
        return None

    async def _claimed(self, owner: str, wanted: _Wanted, limit: int, run_id: str | None, found: _Found, behind: Behind) -> Claims:
        """Takes what there is to take; ``found``: some of it, as a look has shown."""
        writer = self._write()
        with mapped(self.path):
            if not found.runs and not behind and (run_id is not None or not self._litter(self._read(), owner)):
                self._known(self._read(), owner)
                return Claims().until(found.again)

        def work(committer: Committer) -> tuple[list[tuple[int, Claim]], int | None, int]:
            with committer.writing():
                self._known(committer.db, owner)
                marked = lanes.settle(committer.db, behind, self._now()) if behind else 0
                found = self._found(committer.db, owner, wanted, limit, run_id)
                if not found.runs and not marked and not behind.freed and not self._litter(committer.db, owner):
                    raise _Nothing(found.again)
                return self._taken(committer.db, owner, found), found.again, marked

        try:
            taken, again, marked = await writer.run(work)
        except _Nothing as e:
            taken, again, marked = [], e.again, 0
        if behind.line is not None:
            self._crowds.marked(behind.line, marked)
        if behind.freed:
            self._changes.tell(News.DUE)
        for key, claim in taken:
            writer.drives(claim.run_id, key)
        return Claims([claim for _, claim in taken]).until(again)

    def _found(self, db: apsw.Connection, owner: str, wanted: _Wanted, limit: int, run_id: str | None) -> _Found:
        if run_id is not None:
            return self._candidate(db, owner, run_id, wanted.limits, self._now())
        return self._candidates(db, self._owners.holding(db), owner, wanted, limit)

    def _known(self, db: apsw.Connection, owner: str) -> None:
        """
        Raises:
            LeaseLost: the claimer is not a known worker.
        """
        if self._owners.find(db, owner) is None:
            raise LeaseLost(f"{owner} is not a known worker", hint="register it first")

    def _taken(self, db: apsw.Connection, owner: str, found: _Found) -> list[tuple[int, Claim]]:
        """Inside a transaction: gives an owner what was found, and drops the owners that are gone for good."""
        now = self._now()
        limits.keep_buckets(db, found.buckets)
        for holds, statement in ((0, Q.take_due), (1, Q.take_due_holder)):
            if due := [(owner, c.key, c.fence) for c in found.runs if c.holds == holds]:
                db.executemany(statement, due)
        if others := [(owner, at_once(now), c.key, c.fence) for c in found.runs if c.holds is None]:
            db.executemany(Q.take, others)
        # A process that was killed leaves many runs: why they may be taken is proven once for all of them.
        lost = {o: self._owners.lost(self._owners.find(db, o)) for o in {c.previous for c in found.runs if c.previous is not None}}
        out = [(c.key, self._claim_of(c, owner, lost)) for c in found.runs]
        if any(c.previous is not None for c in found.runs):
            self._tidied = -math.inf  # somebody is gone
        for gone in self._litter(db, owner):
            if self._owners.drop(db, Q.worker_delete_idle, gone):
                self._liveness.forget(gone)
        return out

    @staticmethod
    def _claim_of(c: _Candidate, owner: str, lost: Mapping[str, str | None]) -> Claim:
        """The claim of a run that was due, that was asked for by name, or that a lost owner had; ``lost``: why each owner is."""
        if c.holds is not None:
            return Claim(c.run_id, c.fence + 1)
        return apply.take(c.run_id, c.fence, c.previous, owner, lost.get(c.previous) if c.previous is not None else None)

    def _litter(self, db: apsw.Connection, owner: str) -> list[str]:
        """Owners that are gone for good, hold nothing, and whom no attempt names that is not closed: their death must stay provable. They are in
        nobody's way: they are looked for once a second, and after a run was taken over."""
        if not self._moved and time.monotonic() - self._tidied < TIDY_SECONDS:
            return []
        gone = [w.owner for w in self._owners.seen(db) if w.owner != owner and self._owners.forgettable(w)]
        gone = [o for o in gone if not row(db, Q.worker_runs, (o,))[0]]
        named = {e.owner for e in besides.effects_open(db) if not e.closed} if gone else set()
        litter = [o for o in gone if o not in named]
        if not litter:
            self._tidied = time.monotonic()
        return litter

    def _candidates(
        self, db: apsw.Connection, workers: Sequence[Seen], owner: str, wanted: _Wanted, limit: int
    ) -> _Found:
        """What may be claimed, most urgent first: due runs at rest, and the runs of lost owners; and the buckets after that."""
        now = self._now()
        rules = in_force(wanted.limits, limits.rules(db))
        use = limits.use(db, workers, rules, owner, now) if rules else None
        among = json.dumps(wanted.queues) if wanted.queues else None
        found: list[Any] = []
        for worker in workers:
            if worker.owner != owner and worker.lost is not None:
                found += rows(db, Q.claim_orphans, (worker.owner, among, wanted.skills, limit, wanted.shapes))
        for queue in wanted.queues or lanes.names(db, Q.next_queue):
            here: list[Any] = []
            priority = 2**62
            while len(here) < limit and (priority := _one(db, Q.next_priority, (queue, priority))) is not None:
                for tenant in lanes.names(db, Q.next_tenant, queue, priority):
                    if use is None or use.in_the_way(queue, tenant) is None:
                        for after, until in apply.due_ranges(now):
                            here += rows(db, Q.claim_due, (queue, priority, now, wanted.skills, limit, wanted.shapes, tenant, after, until))
            found += here
        candidates = {r[0]: _Candidate(r[0], r[1], r[2], r[3], r[6]) for r in found}
        if use is None and len({r[9] for r in found}) > 1:
            use = limits.use(db, workers, rules, owner, now)
        if use is None:
            found.sort(key=lambda r: (-r[4], due_since(r[5], now), r[7]))
            return _Found([candidates[r[0]] for r in found[:limit]])
        got = choose([Due(r[0], r[8], r[9], r[4], due_since(r[5], now), r[7]) for r in found], use, limit)
        return _Found([candidates[key] for key in got.keys], got.buckets, got.again)

    def _candidate(
        self, db: apsw.Connection, claimer: str, run_id: str, declared: Mapping[str, Limit], now: int
    ) -> _Found:
        found = row(db, Q.claim_one, (run_id,))
        if found is None:
            raise besides.missing(db, run_id)
        key, fence, owner, status, tenant, session, lane, holds, turn, queue = found
        live = owner is not None and self._owners.lost(self._owners.find(db, owner)) is None
        if not apply.takeable(Found(fence, owner, live, 0, b"", bool(holds), turn, status), claimer):
            return _Found()
        if not holds and lane_blocker(db, (tenant, session, lane), key, turn, now) is not None:
            return _Found()
        one = [_Candidate(key, run_id, fence, owner, None)]
        rules = in_force(declared, limits.rules(db))
        if owner == claimer or not rules.touches(queue, tenant):
            return _Found(one)
        use = limits.use(db, self._owners.holding(db), rules, claimer, now)
        if use.in_the_way(queue, tenant) is not None:
            return _Found(again=use.again)
        use.take(queue, tenant)
        return _Found(one, use.buckets)

    async def register(self, owner: str, ttl_us: int) -> None:
        writer = self._write()
        self._liveness.hold(owner)

        def work(committer: Committer) -> None:
            with committer.writing():
                self._owners.register(committer.db, owner, ttl_us)

        try:
            await writer.run(work)
        except BaseException:
            self._liveness.release(owner)
            raise

    async def renew(self, owner: str, ttl_us: int) -> int:
        """May be driven from any thread (``asyncio.run``): it has a connection of its own and awaits nothing."""
        self._write()
        with self._renewal, mapped(self.path):
            if self._renewing is None:
                self._renewing = self._another()
            with writing(self._renewing):
                return self._owners.renew(self._renewing, owner, ttl_us)

    async def retire(self, owner: str) -> None:
        def work(committer: Committer) -> None:
            with committer.writing():
                committer.db.execute(Q.hand_back, (at_once(self._now()), owner))
                limits.leave(committer.db, owner, None, self._now())
                self._owners.drop(committer.db, Q.worker_delete, owner)

        writer = self._write()
        await writer.run(work)
        writer.forget()
        self._liveness.release(owner)
        self._changes.tell(News.DUE | News.FREED)

    async def outlive(self, owner: str) -> None:
        self._liveness.keep(owner)

    async def owner_alive(self, owner: str) -> Alive:
        with mapped(self.path):
            return self._owners.known(self._read(), owner)

    def abandon(self, owner: str) -> None:
        """Ends an owner's life without handing anything back, as a crash does: from now on it is proven dead."""
        self._liveness.drop(owner)

    async def workers(self, *, counted: bool = True) -> list[Worker]:
        db, now = self._read(), self._now()
        with mapped(self.path):
            return [
                Worker(
                    w.owner, w.started_at, now + self._owners.left(w), self._owners.alive(w).value,
                    _one(db, Q.worker_runs, (w.owner,)) if counted else 0, self._offer(db, w.owner),
                )
                for w in self._owners.all(db)
            ]

    def _offer(self, db: apsw.Connection, owner: str) -> Offer | None:
        data = _one(db, Q.offer_get, (owner,))
        sound = data is not None and all(besides.each(db, [vouch.of_offer(owner, data)]))
        return codec.decode_offer(data) if sound else None  # one that is not what was written is named by the checker

    async def offer(self, owner: str, offer: Offer) -> None:
        def work(committer: Committer) -> None:
            with committer.writing():
                data = codec.encode_offer(offer)
                committer.db.execute(Q.offers_forget)
                committer.db.execute(Q.vouch_offers_forget)
                committer.db.execute(Q.offer_put, (owner, data))
                besides.vouch_for(committer.db, [vouch.of_offer(owner, data)])

        await self._write().run(work)

    # -- limits: ports.Limiting ---------------------------------------------------------------------

    async def rules(self) -> list[Rule]:
        with mapped(self.path):
            return limits.sound_rules(self._read())

    async def put_rule(self, rule: Rule, before: Rule | None) -> bool:
        def work(committer: Committer) -> bool:
            with committer.writing():
                return limits.put_rule(committer.db, rule, before)

        done = await self._write().run(work)
        self._changes.tell(News.DUE)
        return done

    async def usage(self) -> Usage:
        db = self._read()
        with mapped(self.path):
            return limits.usage(db, self._owners.seen(db))

    async def backlog(self) -> list[Backlog]:
        with mapped(self.path):
            return limits.backlog(self._read(), self._now())

    async def enter(self, owner: str, run_id: str, place: str, needs: Mapping[str, Limit | None], *, resting: bool = False) -> Later | None:
        writer = self._write()
        with mapped(self.path):
            db = self._read()
            if self._owners.find(db, owner) is None:
                raise LeaseLost(f"{owner} is not a known worker", hint="register it first")
            if not resting and isinstance(found := limits.may(db, self._owners.seen(db), owner, place, needs, self._now()), Later | None):
                return found

        def work(committer: Committer) -> Later | None:
            with committer.writing():
                return limits.enter(committer.db, self._owners.seen(committer.db), owner, run_id, place, needs, self._now(), resting=resting)

        return await writer.run(work)

    async def leave(self, owner: str, places: Sequence[str]) -> None:
        def work(committer: Committer) -> None:
            with committer.writing():
                limits.leave(committer.db, owner, places, self._now())

        await self._write().run(work)
        self._changes.tell(News.DUE)

    # -- reading ------------------------------------------------------------------------------------

    def _run(self, row: Sequence[Any]) -> Run:
        """The run of a row.

        Raises:
            UnknownStatus: a stored status outside the eight (§2.6).
            EventUnreadable: the cold part is damaged.
        """
        run_id, doc, status, version, step, head = row[:6]
        try:
            known = Status(status)
        except ValueError:
            raise UnknownStatus(f"{run_id} is stored with the status {status!r}, which this release does not know", hint="holdfast check names the damage") from None
        return codec.overlay(codec.decode_run(doc), status=known.value, version=version, step=step, head=head)

    def _lease(self, db: apsw.Connection, fence: int, owner: str | None, due: int | None) -> Lease:
        if owner is None:
            return Lease(fence, None, None, Alive.UNKNOWN, due)
        worker = self._owners.find(db, owner)
        if worker is None:
            return Lease(fence, owner, None, Alive.UNKNOWN, due)
        return Lease(fence, owner, self._now() + self._owners.left(worker), self._owners.alive(worker), due)

    async def get(self, run_id: str) -> tuple[Run, Lease] | None:
        db = self._read()
        with mapped(self.path):
            found = row(db, Q.run_get, (run_id,))
            return None if found is None else (self._run(found), self._lease(db, *found[6:]))

    async def load(self, run_id: str) -> Loaded | None:
        db = self._read()
        with mapped(self.path), reading(db):
            return self._loaded(db, run_id)

    def _loaded(self, db: apsw.Connection, run_id: str) -> Loaded | None:
        """A run with all that is needed to go on with it; what there is nothing of is not asked for."""
        found = row(db, Q.run_load, (run_id,))
        if found is None:
            return None
        run, lease, (key, tip, since, size, seq, digest, data, prev, saved, told, emitted) = self._run(found), self._lease(db, *found[6:9]), found[9:]
        if digest is None:
            raise StoreCorrupt(f"the newest commit of {run_id} is missing from the log", hint="restore a backup", code="checkpoint_head_missing")
        newest = row(db, Q.whole_newest, (key,)) if saved else None
        whole, stop = (None, 0) if newest is None else (codec.decode_whole(run_id, newest[2]), newest[1])
        since_then = [Row(seq, data, digest)] if prev == stop else _back(db, tip, stop, 0)
        items = tuple(besides.inbox(db, run_id, key, taken=False)) if told else ()
        batches = tuple(chunks.read(run_id, (data for (data,) in rows(db, Q.chunks_newest, (key,))))) if emitted else ()
        return Loaded(run, Tip(seq, digest, tip, since, size), lease, whole, tuple(since_then), items, batches)

    async def runs(self, query: RunFilter) -> list[tuple[Run, Lease]]:
        db = self._read()
        limit, out = min(query.limit, MAX_LIST), list[tuple[Run, Lease]]()
        with mapped(self.path), reading(db):
            for sql, values in _listing(query, self._now()):
                seen = 0
                while len(out) < limit:
                    found = rows(db, sql + " LIMIT ? OFFSET ?", [*values, limit, seen])
                    for kept in found:
                        with contextlib.suppress(HoldfastError):  # one that cannot be read hides no other; the checker names it (§3.6)
                            out.append((self._run(kept), self._lease(db, *kept[6:])))
                    seen += len(found)
                    if len(found) < limit:
                        break
        return out[:limit]

    async def heads(self, run_ids: Sequence[str]) -> dict[str, Head]:
        db, named = self._read(), (json.dumps(list(run_ids)),)
        with mapped(self.path), reading(db):
            wholes, found = rows(db, Q.heads, named), rows(db, Q.heads_back, named)
        logs: dict[str, list[Row]] = {}
        for run_id, seq, data, digest in found:
            logs.setdefault(run_id, []).append(Row(seq, data, digest))
        out: dict[str, Head] = {}
        for run_id, data in wholes:
            with contextlib.suppress(HoldfastError):  # loading this run alone says what is wrong with it
                out[run_id] = Head(None if data is None else codec.decode_whole(run_id, data), tuple(logs.get(run_id, ())))
        return out

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        """Pages forward by whole checkpoints, each the end of a stretch that is walked backwards."""
        db = self._read()
        with mapped(self.path), reading(db):
            found = row(db, Q.run_tip, (run_id,))
            return [] if found is None else _forward(db, found[0], found[1], after, limit)

    async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]:
        db = self._read()
        with mapped(self.path):
            found = row(db, Q.run_tip, (run_id,))
            if found is None:
                return []
            return besides.inbox(db, run_id, found[0], taken=taken)

    async def marked(self, owner: str) -> list[str]:
        with mapped(self.path):
            return [run_id for (run_id,) in rows(self._read(), Q.marked, (owner,))]

    # -- people and schedules -----------------------------------------------------------------------

    async def issue_token(self, token: Token) -> None:
        t = token

        def work(committer: Committer) -> None:
            with committer.writing():
                if row(committer.db, Q.run_tip, (t.run_id,)) is None:
                    raise besides.missing(committer.db, t.run_id)
                committer.db.execute(Q.token_insert, (t.hash, t.run_id, t.wait_id, t.tenant_id, t.actor, t.created_at, t.expires_at))
                besides.vouch_for(committer.db, [vouch.of_token(t)])

        await self._write().run(work)

    async def token(self, hash: bytes) -> Token | None:
        db = self._read()
        with mapped(self.path), reading(db):
            return besides.token(db, hash)

    async def redeem_token(self, hash: bytes, item: InboxItem) -> InboxItem:
        def work(committer: Committer) -> InboxItem:
            with committer.writing():
                now = self._now()
                token = besides.token(committer.db, hash)
                run = row(committer.db, Q.run_tip, (item.run_id,))
                answered = run is None or row(committer.db, Q.inbox_get, (run[0], item.key)) is not None
                if (usable := apply.usable(token, now, answered=answered)) is not None:
                    besides.mark_token(committer.db, usable)
                return committer.put(item, now)

        kept = await self._write().run(work)
        self._changes.tell()
        return kept

    async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
        def work(committer: Committer) -> bool:
            with committer.writing():
                return committer.put_schedule(schedule, before)

        done = await self._write().run(work)
        self._changes.tell()
        return done

    async def drop_schedule(self, schedule_id: str) -> bool:
        def work(committer: Committer) -> bool:
            with committer.writing():
                return besides.drop_schedule(committer.db, schedule_id)

        return await self._write().run(work)

    async def schedule(self, schedule_id: str) -> Schedule | None:
        db = self._read()
        with mapped(self.path), reading(db):
            return besides.schedule(db, schedule_id)

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        db = self._read()
        with mapped(self.path):
            if due is not None and row(db, Q.schedules_due, (due,)) is None:
                return []  # as nearly always when a worker asks
            with reading(db):
                return besides.schedules(db, due)

    async def claimed(self, kind: str, scope: str, key: str) -> DedupClaim | None:
        db = self._read()
        with mapped(self.path), reading(db):
            return besides.claimed(db, kind, scope, key, self._now())

    async def open_effects(self, owner: str) -> list[Effect]:
        with mapped(self.path):
            return [e for e in besides.effects_open(self._read()) if e.owner == owner]

    async def effects(self, run_id: str | None = None, *, key: str | None = None, lineage_root: str | None = None) -> list[Effect]:
        db = self._read()
        choices = ((key, besides.effects_of_key), (run_id, besides.effects_of_run), (lineage_root, besides.effects_of_lineage))
        with mapped(self.path), reading(db):
            found = next((read(db, value) for value, read in choices if value is not None), None)
            if found is None:
                found = besides.effects_all(db)
        return [e for e in found if run_id in (None, e.run_id) and lineage_root in (None, e.lineage_root)]

    async def newest_effects(self, tenant_id: str | None = None, *, statuses: Sequence[str] = (), limit: int = 100) -> list[Effect]:
        db = self._read()
        with mapped(self.path), reading(db):
            return besides.newest_effects(db, tenant_id, statuses, min(limit, MAX_LIST))

    async def tally(self, tenant_id: str | None = None) -> Tally:
        db = self._read()
        with mapped(self.path), reading(db):
            runs = rows(db, Q.tally_runs, ()) if tenant_id is None else rows(db, Q.tally_runs_of, (tenant_id,))
            return Tally(dict(runs), dict(rows(db, Q.tally_effects, (tenant_id,))))

    # -- outbox and ledger --------------------------------------------------------------------------

    async def intents(
        self,
        run_id: str | None = None,
        *,
        state: str | None = None,
        type: str | None = None,
        tenant_id: str | None = None,
        after: str | None = None,
        limit: int = 500,
    ) -> list[Intent]:
        with mapped(self.path):
            return outbox.read_list(self._read(), run_id, state, type, tenant_id, after, limit)

    async def intent(self, intent_id: str) -> Intent | None:
        with mapped(self.path):
            return outbox.read_intent(self._read(), intent_id)

    async def claim_intents(
        self,
        owner: str,
        types: Sequence[str],
        *,
        limit: int,
        ttl_us: int,
        each: int = 1_000_000,
        room: Mapping[tuple[str, str, str], int] | None = None,
        run_id: str | None = None,
        held: Collection[str] = (),
        doubt: bool = False,
    ) -> list[Intent]:
        with mapped(self.path):
            if not doubt and not self._search.ready(self._read(), types, self._now(), 1, each, room or {}, run_id):
                return []

        def work(committer: Committer) -> list[Intent]:
            now = self._now()
            with committer.writing():
                mine = partial(answer_lost, owner=owner, held=held, doubt=True) if doubt else None
                ready = self._search.ready(committer.db, types, now, limit, each, room or {}, run_id, mine)
                return outbox.claim(committer.db, ready, owner, now, now + ttl_us, self._owners.after(ttl_us), mine)

        return await self._write().run(work)

    async def renew_intents(self, owner: str, ttl_us: int) -> None:
        def work(committer: Committer) -> None:
            with committer.writing():
                committer.db.execute(Q.intents_renew, (self._now() + ttl_us, self._owners.after(ttl_us), owner))

        await self._write().run(work)

    async def settle_intents(self, settlements: Sequence[Settlement]) -> list[bool]:
        def work(committer: Committer) -> list[bool]:
            now = self._now()
            with committer.writing():
                kept = outbox.settle(committer.db, settlements, lambda item: committer.put(item, now))
                for s in (s for s, held in zip(settlements, kept, strict=True) if held):
                    for blob in s.blobs:
                        keep_blob(committer.db, s.after.run_id, blob, now)
                return kept

        done = await self._write().run(work)
        self._changes.tell(News.OUTBOX | News.DUE | News.INBOX if any(s.puts for s in settlements) else News.OUTBOX)
        return done

    async def drop_payloads(self, before: int, limit: int) -> int:
        with mapped(self.path):
            if not rows(self._read(), Q.intents_to_drop, (before, 1)):
                return 0

        def work(committer: Committer) -> int:
            with committer.writing():
                return outbox.drop_payloads(committer.db, before, limit)

        return await self._write().run(work)

    async def intent_counts(self) -> list[IntentCount]:
        with mapped(self.path):
            return outbox.counts(self._read())

    async def ledger(
        self,
        run_id: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        tenant_id: str | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> list[LedgerRow]:
        with mapped(self.path):
            return outbox.ledger(self._read(), run_id, topic, key, tenant_id, after, limit)

    async def blob(self, digest: str) -> bytes:
        with mapped(self.path):
            found = row(self._read(), Q.blob_get, (bytes.fromhex(digest),))
        return blobs.read_back(digest, None if found is None else found[0])

    # -- chunks -------------------------------------------------------------------------------------

    async def emit(self, emitted: Sequence[Emitted]) -> None:
        def work(committer: Committer) -> None:
            with writing(committer.db):
                for e in emitted:
                    key, fence = row(committer.db, Q.run_fence, (e.run_id,)) or (0, 0)
                    if key and fence == e.fence:
                        besides.emit(committer.db, key, e, self.now())

        await self._write().run(work)
        self._changes.tell(News.OTHER)

    async def chunks(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Stored]:
        with mapped(self.path):
            found = rows(self._read(), Q.chunks, (run_id, after, limit))
        return [Stored(serial, batch, bool(gone)) for serial, data, gone in found if (batch := chunks.readable(run_id, data)) is not None]

    # -- shelves: ports.Shelves ---------------------------------------------------------------------

    async def shelve(self, shelf: str, rows: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
        def work(committer: Committer) -> list[str]:
            with committer.writing():
                return besides.shelve(committer.db, shelf, rows, once)

        return await self._write().run(work)

    async def shelve_new(self, shelf: str, key: str, data: bytes) -> bytes | None:
        def work(committer: Committer) -> bytes | None:
            with committer.writing():
                there = besides.shelved(committer.db, shelf, key)
                if there is None:
                    besides.shelve(committer.db, shelf, {key: data})
                return there

        return await self._write().run(work)

    async def shelved(self, shelf: str, key: str) -> bytes | None:
        with mapped(self.path):
            return besides.shelved(self._read(), shelf, key)

    async def shelf_scan(self, shelf: str, prefix: str = "", after: str = "", limit: int = 100) -> list[tuple[str, bytes]]:
        with mapped(self.path), reading(self._read()):
            return besides.shelf_scan(self._read(), shelf, prefix, after, limit)

    async def unshelve(self, shelf: str, prefix: str) -> int:
        def work(committer: Committer) -> int:
            with committer.writing():
                return besides.unshelve(committer.db, shelf, prefix)

        return await self._write().run(work)

    # -- waiting ------------------------------------------------------------------------------------

    def _data_version(self) -> int:
        with mapped(self.path):
            return int(_one(self._read(), "PRAGMA data_version", ()))

    @property
    def rings(self) -> bool:
        """Whether it tells other processes of this machine what it writes."""
        return self._changes.bell is not None

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        return await self._changes.wait(timeout, about)

    # -- the store as a whole -----------------------------------------------------------------------

    async def verify(self) -> list[Problem]:
        """SQLite's own check, the anchor and incarnation, and every chain of the log; in a thread, on a connection of its own."""
        self._read()
        problems = [] if self.suspect is None else [Problem(self.suspect.code, "error", self.suspect.message, self.suspect.hint)]
        return problems + await asyncio.to_thread(self._inspect)

    def _inspect(self) -> list[Problem]:
        try:
            with mapped(self.path), contextlib.closing(connect(self.path, patience=self.patience)) as db:
                with reading(db):
                    words = [str(r[0]) for r in db.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})")]
                    bad = [_integrity(self.path, w) for w in words if w != "ok"]
                    found = bad + _chains(db) + [record_problem(e) for e in besides.damage_of_store(db)]
                with writing(db):
                    return found  # whoever holds the write lock for seconds is named, with the process id
        except HoldfastError as e:
            return [Problem(e.code, "error", e.message, e.hint)]

    # -- upkeep: ports.Upkeep -----------------------------------------------------------------------

    async def run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        db = self._read()
        with mapped(self.path), reading(db):
            if not after:
                self._orphans = upkeep.orphans(db)
            found = [r for (r,) in rows(db, Q.run_ids, (after, limit)) if isinstance(r, str)]  # a damaged index gives anything
        end = found[-1] if len(found) == limit else None
        lost = [r for r in self._orphans if r > after and (end is None or r <= end)]
        return sorted([*found, *lost]) if lost else found

    async def evidence(self, run_id: str) -> Evidence | None:
        db = self._read()
        with mapped(self.path), reading(db):
            raw = upkeep.raw_row(db, run_id)
            if raw is not None:
                found = upkeep.evidence_of(raw, self._lease(db, raw["fence"], raw["owner"], raw["due"]), row(db, Q.log_end, (raw["tip"],)))
                found = msgspec.structs.replace(found, needs=upkeep.needs(db, run_id, raw["id"]))
                many = bool(row(db, Q.vouch_many, (run_id,))[0])
                beside = [] if many else self._beside(db, run_id, raw["id"])
            else:
                place = self._orphan(db, run_id)
                return None if place is None else upkeep.find_orphan(run_id, *place, row(db, Q.log_end, (place[1],)))
        if many:  # others of the loop have their turn meanwhile (§12.6)
            beside = await asyncio.to_thread(self._beside_apart, run_id, raw["id"])
        return msgspec.structs.replace(found, problems=(*found.problems, *beside))

    def _beside(self, db: apsw.Connection, run_id: str, id: int) -> list[Problem]:
        """What is wrong with a run's records beside its log."""
        return [record_problem(e) for e in [*besides.damage_of_run(db, run_id, id), *outbox.damage_of_run(db, run_id, self._owners, self._now())]]

    def _beside_apart(self, run_id: str, id: int) -> list[Problem]:
        """The same in a thread, on a connection of its own."""
        with mapped(self.path), contextlib.closing(connect(self.path, patience=self.patience)) as db, reading(db):
            return self._beside(db, run_id, id)

    def _orphan(self, db: apsw.Connection, run_id: str) -> tuple[int, int] | None:
        if run_id not in self._orphans:
            self._orphans = upkeep.orphans(db)
        return self._orphans.get(run_id)

    async def log(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Row]:
        db = self._read()
        with mapped(self.path), reading(db):
            place = row(db, Q.run_tip, (run_id,)) or self._orphan(db, run_id)
            return [] if place is None else _forward(db, place[0], place[1], after, limit)

    async def whole(self, run_id: str, after: int = 0) -> tuple[int, Checkpoint | HoldfastError] | None:
        db = self._read()
        with mapped(self.path), reading(db):
            place = row(db, Q.run_tip, (run_id,)) or self._orphan(db, run_id)
            found = None if place is None else row(db, Q.whole_next, (place[0], after))
        if found is None:
            return None
        try:
            return found[0], codec.decode_whole(run_id, found[1])[0]
        except HoldfastError as e:
            return found[0], e

    async def rebuild(self, evidence: Evidence, commits: Sequence[Commit]) -> str:
        writer = self._write()
        backup = upkeep.keep_backup(self.path, evidence)

        def lost(owner: str) -> bool:
            return self._owners.lost(self._owners.find(self._read(), owner)) is not None

        def work(committer: Committer) -> None:
            with committer.writing():
                committer.last = upkeep.rebuild(committer.db, evidence, commits, self._now(), lost)

        try:
            await writer.run(work)
        except BaseException:
            upkeep.drop_backup(self.path, backup)
            raise
        self._orphans = {}
        self._changes.tell()
        return backup

    async def claims_of(self, run_id: str) -> list[DedupClaim]:
        with mapped(self.path):
            return besides.claims_of(self._read(), run_id)

    async def adopt(self, dossier: Dossier) -> bool:
        run_id = dossier.run.run_id
        if await self.get(run_id) is not None:
            return not apply.same(dossier, await self.rows(run_id))

        def work(committer: Committer) -> None:
            with committer.writing():
                if besides.pruned(committer.db, run_id) is not None:
                    raise besides.missing(committer.db, run_id)
                committer.last = upkeep.adopt(committer.db, dossier, self.incarnation, self._now())

        await self._write().run(work)
        self._changes.tell()
        return True

    async def loans(self) -> list[tuple[str, str]]:
        with mapped(self.path):
            return rows(self._read(), Q.loans)

    async def keep_origin(self, run_id: str, origin: bytes) -> None:
        def work(committer: Committer) -> None:
            with committer.writing():
                committer.db.execute(Q.origin_insert, (origin, run_id))

        await self._write().run(work)

    async def pruned(self, run_id: str) -> Tombstone | None:
        with mapped(self.path):
            return besides.pruned(self._read(), run_id)

    async def prune(self, before: int, *, dry: bool = False, actor: str = "operator") -> Pruned:
        with mapped(self.path):
            if dry:
                return upkeep.prunable(self._read(), before, ())

        def work(committer: Committer) -> Pruned:
            with committer.writing():
                found = upkeep.prunable(committer.db, before, rows(committer.db, Q.loans))
                upkeep.prune(committer.db, found.run_ids)
                besides.bury(committer.db, found.run_ids, self._now(), actor)
                return found

        done = await self._write().run(work)
        self._changes.tell()
        return done

    async def reindex(self) -> None:
        """Makes all indexes anew from their tables: what an index does not find is found again."""

        def work(committer: Committer) -> None:
            with committer.writing():
                committer.db.execute("REINDEX")

        await self._write().run(work)
        self._changes.tell()

    async def vouch_anew(self) -> None:
        """An operator accepts the records beside the log as they are: what is lost is lost, what was altered counts as it stands."""

        def work(committer: Committer) -> None:
            with committer.writing():
                besides.vouch_anew(committer.db)
                outbox.free(committer.db, self._owners, self._now())

        await self._write().run(work)
        self._changes.tell()

    # -- incarnations and copies --------------------------------------------------------------------

    async def acknowledge(self) -> None:
        """An operator accepts the log as it is: a new incarnation, and every fence given out before is void (§1.9)."""
        if self._db is None:
            raise StoreClosed(f"{self.path} is not open", hint="await store.open() first")
        with mapped(self.path):
            self._renew_incarnation(self._db)

    def _renew_incarnation(self, db: apsw.Connection) -> None:
        incarnation = self.incarnation
        while incarnation == self.incarnation:
            incarnation = secrets.randbits(31)
        with writing(db):
            db.execute(Q.meta_set, ("incarnation", incarnation))
            db.execute(Q.move_fences, (incarnation, at_once(self._now())))
            db.execute(Q.forget_workers)
            db.execute(Q.vouch_forget_workers)
            db.execute(Q.meta_wrote)
            end = self._end(db)._replace(incarnation=incarnation)
        self._anchor.begin(end)
        self.incarnation, self._noted, self.suspect = incarnation, (end.last, end.writes), None
        if self._writer is not None:
            self._writer.forget()
        self._changes.tell()

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """A consistent copy in one file, taken while the store is in use. Opening the copy asks for an acknowledgement.

        Raises:
            UsageError: the file exists.
            StoreCorrupt, LogRolledBack: the store is damaged, or an older state of it lies there: no backup is made of that.
        """
        target = os.fspath(path)
        if os.path.exists(target):
            raise UsageError(f"{target} exists", hint="give a new name")
        self._read()
        self._same_file()
        if self.suspect is not None:
            raise self.suspect
        await asyncio.to_thread(self._copy, self.path, target)

    def _copy(self, source: str, target: str) -> None:
        """The copy has its name once it is whole and on the disk; one that fails leaves nothing behind."""
        building = f"{target}.{os.getpid()}.tmp"
        try:
            with mapped(target), shutting(connect(source)) as here, shutting(apsw.Connection(building)) as there:
                _pour_all(there.backup("main", here, "main"))
                if not _is_sound(there):
                    raise StoreCorrupt(f"{source} is damaged, so no backup was made of it", hint="holdfast check and doctor say what is wrong; restore an older backup")
            with on_disk(target):
                with open(building, "rb") as f:
                    os.fsync(f.fileno())
                os.rename(building, target)
        except BaseException:
            for left in (building, f"{building}-journal", f"{building}-wal"):
                with contextlib.suppress(OSError):
                    os.unlink(left)
            raise

    async def restore(self, path: str | os.PathLike[str]) -> None:
        """Puts a backup in the place of what is there, under a new incarnation: old workers are refused (X-02).

        Raises:
            UsageError: there is no such file.
            StoreCorrupt, UnsupportedFormat: it is no store this release can read; nothing was changed.
        """
        source = os.fspath(path)
        if not os.path.isfile(source):
            raise UsageError(f"there is no file {source}", hint="give the path of a backup")
        db = self._read()
        await asyncio.to_thread(self._pour, source)
        with mapped(self.path):
            self._renew_incarnation(db)

    def _pour(self, source: str) -> None:
        with mapped(source), shutting(connect(source, readonly=True)) as there:
            check_backup(there, source)
            with mapped(self.path), shutting(connect(self.path)) as here:
                _pour_all(here.backup("main", there, "main"))
                schema(here, self.path, 0)


def _pour_all(copying: apsw.Backup) -> None:
    try:
        copying.step(-1)
    except BaseException:
        with contextlib.suppress(apsw.Error):  # a disk that fails while it ends too: what it said first counts
            copying.finish()
        raise
    copying.finish()


def _integrity(path: str, word: str) -> Problem:
    """What SQLite's own check says. An index that differs from its table hides rows, and can be made anew from it."""
    if " index " in word or "entry" in word:
        return problem("index_damaged", f"{path}: {word}", "rebuild the indexes: holdfast doctor --rebuild")
    return Problem(StoreCorrupt.code, "error", f"{path}: {word}", "restore a backup")


def check_backup(db: apsw.Connection, path: str) -> None:
    """Refuses what is no store of ours, before anything is overwritten."""
    if not _is_sound(db) or not db.table_exists("main", "log"):
        raise StoreCorrupt(f"{path} is damaged, or is not a Holdfast store", hint="choose another backup")
    readable(db.pragma("user_version"), path)


def _is_sound(db: apsw.Connection) -> bool:
    """Whether SQLite finds every page of a file in order."""
    return [str(r[0]) for r in rows(db, "PRAGMA quick_check(1)")] == ["ok"]


BESIDE = ("", "-wal", "-shm", "-anchor")
"""What a store's files are called; the database is the first."""


def set_aside(path: str, source: str) -> str:
    """Moves the files of a damaged store out of the way of the backup ``source``, and gives the new name of the first. Nothing is deleted.

    Raises:
        StoreCorrupt, UnsupportedFormat: the backup is none that could take its place.
        StoreBusy: a living process still has the store open.
    """
    with mapped(source), shutting(connect(source, readonly=True)) as db:
        check_backup(db, source)
    if living := Liveness(f"{path}-live").living():
        raise StoreBusy(f"{path} is still open in {', '.join(living)}", hint="end these processes first, then restore again")
    kept = f"{path}.damaged-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%f}"
    with on_disk(path):
        for beside in BESIDE:
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{beside}", f"{kept}{beside}")
    return kept


def _one(db: apsw.Connection, sql: str, values: Sequence[Any]) -> Any:
    found = row(db, sql, values)
    return None if found is None else found[0]


def _listing(query: RunFilter, now: int) -> list[tuple[str, list[Any]]]:
    """What lists these runs: one statement, or one after the other."""
    where = [sql for field, sql in _FILTERS.items() if getattr(query, field) is not None]
    values: list[Any] = [getattr(query, field) for field in _FILTERS if getattr(query, field) is not None]
    if query.statuses is not None:
        where.append("status IN (SELECT value FROM json_each(?))")
        values.append(json.dumps([str(s) for s in query.statuses]))
        if not TERMINAL.intersection(query.statuses):
            where.append(_OPEN)
    if not query.ahead:
        return [(_LIST + (" WHERE " + " AND ".join(where) if where else "") + (" ORDER BY turn DESC" if query.by_turn else " ORDER BY run_id DESC"), values)]
    held, due = (f"{_LIST} WHERE {' AND '.join([*where, also])}" for also in ("holds = 1", _DUE))
    return [(held, values), (due + " ORDER BY turn", [*values, now, query.until])]


def _back(db: apsw.Connection, start: int, stop: int, after: int) -> list[Row]:
    """The chain from row ``start`` back to, but without, ``stop`` or events up to ``after``; oldest first."""
    return [Row(seq, data, digest) for seq, data, digest in reversed(rows(db, Q.log_back, (start, stop, after)))]


def _forward(db: apsw.Connection, key: int, tip: int, after: int, limit: int | None) -> list[Row]:
    """Log rows of a run oldest first; with ``limit`` no more than those are in memory."""
    if limit is None:
        return _back(db, tip, 0, after)
    out: list[Row] = []
    stop, skip = 0, 0
    while len(out) < limit:
        end = _one(db, Q.whole_after, (key, after, skip))
        page = rows(db, Q.log_page, (tip if end is None else end, stop, after, limit - len(out)))
        out += [Row(seq, data, digest) for seq, data, digest in page]
        if end is None or end == tip:
            break
        stop, skip = end, skip + 1
    return out


def _chains(db: apsw.Connection) -> list[Problem]:
    """Walks the whole log once: every row must follow its run's previous one, and every run must end at its tip."""
    ends: dict[int, tuple[int, bytes]] = {}
    broken: dict[int, str] = {}
    last = 0
    while page := rows(db, Q.chain_page, (last,)):
        for number, run, seq, prev, digest, data in page:
            before, previous = ends.get(run, (0, b""))
            if prev != before or canon.chain(previous, data) != digest:
                broken.setdefault(run, f"the commit that ends with event {seq} does not match its hash")
            ends[run] = (number, digest)
        if page[-1][0] <= last:
            break  # the table itself is damaged, which SQLite's own check has said
        last = page[-1][0]
    problems: list[Problem] = []
    key, before = 0, -1
    while key > before and (tips := rows(db, Q.tips_page, (key,))):
        before = key
        for key, run_id, tip, seq in tips:
            if ends.get(key, (0, b""))[0] != tip:
                broken.setdefault(key, f"the run's row says that the log ends at event {seq}, but it does not")
            if key in broken and len(problems) < MAX_PROBLEMS:
                problems.append(Problem("event_chain_broken", "error", broken[key], "restore a backup", run_id))
    return problems


__all__ = ["SqliteStore", "set_aside"]
