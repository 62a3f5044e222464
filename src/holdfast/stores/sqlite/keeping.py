"""The SQLite store as a whole: checks, repair, import, pruning, backups (``ports.Upkeep``, ``ports.Copies``)."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
import time
from collections.abc import Callable, Sequence

import apsw
import msgspec

from holdfast.core import canon, codec
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.codec import Row
from holdfast.core.commit import Commit, DedupClaim
from holdfast.core.consistency import problem, record_problem, unknown_trigger
from holdfast.core.errors import HoldfastError, StoreBusy, StoreCorrupt, UsageError
from holdfast.core.pruned import Tombstone
from holdfast.ports import Dossier, Evidence, Problem, Pruned
from holdfast.stores import apply
from holdfast.stores.batches import Batch, prune_in_batches
from holdfast.stores.evidence import behind_its_log
from holdfast.stores.files import LIVE, find_base, on_disk
from holdfast.stores.liveness import Liveness
from holdfast.stores.sqlite import besides, outbox, upkeep
from holdfast.stores.sqlite.commits import Committer
from holdfast.stores.sqlite.connection import (
    Q,
    Waits,
    connect,
    indexes_and_triggers,
    kind_of,
    list_lost_objects,
    list_unknown_triggers,
    map_errors,
    readable,
    reading,
    row,
    rows,
    schema,
    shutting,
    value_of,
    writing,
)
from holdfast.stores.sqlite.reading import Reading, log_forward

MAX_PROBLEMS = 100
PAGE = 500  # rows that are read at once when all are read
SINCE = 20_000  # rows of a log that are searched in the event loop; more are searched in a thread
LINEAGES = 100  # lineages that are found at once, and pruned in one transaction at most
KEYS = 200  # deleted in one transaction
AHEAD = 32  # lineages examined before a transaction is begun, so that none is begun for lineages that stay
HELD = 0.002  # seconds after which a transaction of a prune takes no more lineages, so that a step which waits for it is hardly delayed
REST = 8  # seconds of pause for each second of such a transaction
BESIDE = ("", "-wal", "-shm", "-anchor")
"""The suffixes of a store's files; the first is the database."""


REINDEX = "rebuild the indexes: holdfast doctor --rebuild"


class Keeping(Reading):
    """The verbs of ``ports.Upkeep`` and ``ports.Copies``, and what the checker asks of a store."""

    async def verify(self) -> list[Problem]:
        """Runs SQLite's own check, and checks the anchor, the incarnation and every hash chain of the log; in a thread, on a connection of its own."""
        self._read()
        problems = [] if self.suspect is None else [Problem(self.suspect.code, "error", self.suspect.message, self.suspect.hint)]
        return problems + await asyncio.to_thread(self._inspect)

    def _inspect(self) -> list[Problem]:
        try:
            with map_errors(self.path), contextlib.closing(connect(self.path, waits=Waits(self.patience))) as db:
                words = [str(r[0]) for r in db.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})")]
                found = [_integrity(self.path, w) for w in words if w != "ok"]
                found += [problem("index_damaged", f"{self.path}: the {kind_of(name)} {name} is missing, or is another one", REINDEX) for name in list_lost_objects(db)]
                found += [unknown_trigger(f"the trigger {name}", table, f'DROP TRIGGER "{name}"') for name, table in list_unknown_triggers(db)]
                found += _chains(db)
                with reading(db):
                    found += [record_problem(e) for e in besides.damage_of_store(db)]
                with writing(db):
                    return found  # a process that has held the write lock for seconds is reported, with its id
        except HoldfastError as e:
            return [Problem(e.code, "error", e.message, e.hint)]

    async def run_ids(self, after: str = "", limit: int = 1000) -> list[str]:
        db = self._read()
        with map_errors(self.path), reading(db):
            if not after:
                self._orphans = upkeep.orphans(db)
            found = [r for (r,) in rows(db, Q.run_ids, (after, limit)) if isinstance(r, str)]  # a damaged index may return anything
        end = found[-1] if len(found) == limit else None
        lost = [r for r in self._orphans if r > after and (end is None or r <= end)]
        return sorted([*found, *lost]) if lost else found

    async def evidence(self, run_id: str) -> Evidence | None:
        db = self._read()
        await self._look_beyond(db, run_id)
        with map_errors(self.path), reading(db):
            raw = upkeep.raw_row(db, run_id)
            if raw is not None:
                tail = value_of(db, Q.tail_get, (raw["id"],))
                found = upkeep.evidence_of(db, raw, self._lease(db, raw["fence"], raw["owner"], raw["due"]), self._beyond.get(run_id), tail)
                found = msgspec.structs.replace(found, needs=upkeep.needs(db, run_id, raw["id"]))
                many = bool(row(db, Q.vouch_many, (run_id,))[0])
                beside = [] if many else self._beside(db, run_id, raw["id"])
            else:
                place = self._orphan(db, run_id)
                return None if place is None else upkeep.find_orphan(run_id, *place, row(db, Q.log_end, (place[1], place[0])))
        if many:  # other tasks of the event loop run meanwhile (§12.6)
            beside = await asyncio.to_thread(self._beside_apart, run_id, raw["id"])
        return msgspec.structs.replace(found, problems=(*found.problems, *beside))

    def _beside(self, db: apsw.Connection, run_id: str, id: int) -> list[Problem]:
        """Returns what is wrong with a run's records beside its log."""
        return [record_problem(e) for e in [*besides.damage_of_run(db, run_id, id), *outbox.damage_of_run(db, run_id, self._owners, self._now())]]

    def _beside_apart(self, run_id: str, id: int) -> list[Problem]:
        """As ``_beside``, in a thread, on a connection of its own."""
        with map_errors(self.path), contextlib.closing(connect(self.path, waits=Waits(self.patience))) as db, reading(db):
            return self._beside(db, run_id, id)

    async def _look_beyond(self, db: apsw.Connection, run_id: str) -> None:
        """Finds where a run's log ends if its row may lag behind. If much was written since, it searches in a thread."""
        with map_errors(self.path):
            doubted, since = row(db, Q.log_end_doubted, (run_id,)) or (False, 0)
            if not doubted:
                end = None
            elif since <= SINCE:
                end = value_of(db, Q.log_beyond, (run_id,))
            else:
                end = await asyncio.to_thread(self._look_beyond_apart, run_id)
        self._beyond.pop(run_id, None)
        if end is not None:
            self._beyond[run_id] = end

    def _look_beyond_apart(self, run_id: str) -> int | None:
        with map_errors(self.path), contextlib.closing(connect(self.path, waits=Waits(self.patience))) as db:
            end: int | None = value_of(db, Q.log_beyond, (run_id,))
            return end

    def _place(self, db: apsw.Connection, run_id: str) -> tuple[int, int] | None:
        """Returns a run's key and its newest log row, also if its row is missing or lags behind."""
        found = row(db, Q.run_tip, (run_id,))
        if found is None:
            return self._orphan(db, run_id)
        return found[0], max(found[1], self._beyond.get(run_id, 0))

    def _orphan(self, db: apsw.Connection, run_id: str) -> tuple[int, int] | None:
        if run_id not in self._orphans:
            self._orphans = upkeep.orphans(db)
        return self._orphans.get(run_id)

    async def log(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Row]:
        db = self._read()
        with map_errors(self.path), reading(db):
            place = self._place(db, run_id)
            return [] if place is None else log_forward(db, place[0], place[1], after, limit)

    async def whole(self, run_id: str, after: int = 0) -> tuple[int, Checkpoint | HoldfastError] | None:
        db = self._read()
        with map_errors(self.path), reading(db):
            place = self._place(db, run_id)
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

        def is_lost(owner: str) -> bool:
            return self._owners.why_lost(self._owners.find(self._read(), owner)) is not None

        def work(committer: Committer) -> None:
            with committer.writing():
                committer.last = upkeep.rebuild(committer.db, evidence, commits, self._now(), is_lost)

        try:
            await writer.run(work)
        except BaseException:
            upkeep.drop_backup(self.path, backup)
            raise
        self._orphans = {}
        self._beyond.pop(evidence.run_id, None)
        self._changes.tell()
        return backup

    async def claims_of(self, run_id: str) -> list[DedupClaim]:
        with map_errors(self.path):
            return besides.claims_of(self._read(), run_id)

    async def adopt(self, dossier: Dossier) -> bool:
        run_id = dossier.run.run_id
        if await self.get(run_id) is not None:
            return not apply.same(dossier, await self.rows(run_id))

        def work(committer: Committer) -> None:
            with committer.writing():
                if besides.find_pruned(committer.db, run_id) is not None:
                    raise besides.missing(committer.db, run_id)
                committer.last = upkeep.adopt(committer.db, dossier, self.incarnation, self._now())

        await self._write().run(work)
        self._changes.tell()
        return True

    async def list_carries(self) -> list[tuple[str, str]]:
        with map_errors(self.path):
            return rows(self._read(), Q.carries)

    async def keep_origin(self, run_id: str, origin: bytes) -> None:
        def work(committer: Committer) -> None:
            with committer.writing():
                committer.db.execute(Q.origin_insert, (origin, run_id))

        await self._write().run(work)

    async def find_pruned(self, run_id: str) -> Tombstone | None:
        with map_errors(self.path):
            return besides.find_pruned(self._read(), run_id)

    async def prune(self, before: int, *, dry: bool = False, actor: str = "operator") -> Pruned:
        """Prunes in batches: what is found is checked again in the transaction that deletes it. Nobody else can write during that transaction, so it
        is short."""

        async def find(after: upkeep.Place) -> list[tuple[upkeep.Place, str]]:
            with map_errors(self.path):
                return upkeep.list_old(self._read(), before, after, LINEAGES)

        async def look(roots: Sequence[str]) -> Batch:
            db = self._read()
            with map_errors(self.path), reading(db):
                return Batch(upkeep.judge(db, roots, before, dry=True)[0], len(roots), 0)

        async def take(roots: Sequence[str]) -> Batch:
            db, first = self._read(), roots[:AHEAD]
            with map_errors(self.path), reading(db):
                found, _ = upkeep.judge(db, first, before, dry=False)
            if not found.run_ids:
                return Batch(found, len(first), 0)

            def work(committer: Committer) -> Batch:
                with committer.writing():
                    began = time.monotonic()
                    pruned, done = upkeep.prune(committer.db, roots, before, at=self._now(), by=actor, over=lambda: time.monotonic() - began > HELD)
                return Batch(pruned, done, time.monotonic() - began)

            return await self._write().run(work)

        if dry:
            return await prune_in_batches(upkeep.START, find, look, rest=0)
        done = await prune_in_batches(upkeep.START, find, take, rest=REST)
        await self._forget_expired()
        if done.run_ids:
            self._changes.tell()
        return done

    async def _forget_expired(self) -> None:
        """Deletes the keys that have outlasted their pruned runs and have expired now, a few in each transaction."""
        while True:
            with map_errors(self.path):
                found = upkeep.list_expired(self._read(), now := self._now(), KEYS)

            def work(committer: Committer, found: Sequence[DedupClaim] = found, now: int = now) -> None:
                with committer.writing():
                    upkeep.forget_claims(committer.db, found, now)

            if found:
                await self._write().run(work)
            if len(found) < KEYS:
                return

    async def reindex(self) -> None:
        """Creates all indexes anew from their tables, also missing ones, and missing triggers, so that rows which an index does not find are found again.

        Raises:
            StoreError: a table has duplicates for which there is a unique index.
        """

        def work(committer: Committer) -> None:
            with committer.writing():
                for name in list_lost_objects(committer.db):
                    committer.db.execute(f'DROP {kind_of(name).upper()} IF EXISTS "{name}"')
                    committer.db.execute(indexes_and_triggers()[name])
                committer.db.execute("REINDEX")

        await self._write().run(work)
        self._changes.tell()

    async def vouch_anew(self) -> None:
        """Accepts the records beside the log as they are, on behalf of an operator: lost ones stay lost, and altered ones count as they are."""

        def work(committer: Committer) -> None:
            with committer.writing():
                besides.vouch_anew(committer.db)
                outbox.free(committer.db, self._owners, self._now())

        await self._write().run(work)
        self._changes.tell()

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Writes a consistent copy to one file, while the store is in use. A store opened from the copy must be acknowledged.

        Raises:
            UsageError: the file exists.
            StoreCorrupt, LogRolledBack: the store is damaged, or was reset to an older state: no backup is made of that.
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
        """Copies the store. The copy gets its name when it is complete and on the disk; a failed copy leaves no files."""
        building = f"{target}.{os.getpid()}.tmp"
        try:
            with map_errors(target), shutting(connect(source)) as here, shutting(apsw.Connection(building)) as there:
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
        """Replaces the store with a backup, under a new incarnation, so that old workers are refused (X-02).

        Raises:
            UsageError: there is no such file, or it is the store itself.
            StoreCorrupt, UnsupportedFormat: it is not a store that this release can read; nothing was changed.
        """
        source = os.fspath(path)
        _there(source)
        if os.path.exists(self.path) and os.path.samefile(source, self.path):
            raise UsageError(f"{source} is the store itself", hint="give the path of a backup; --store names the store that it replaces")
        db = self._read()
        await asyncio.to_thread(self._pour, source)
        with map_errors(self.path):
            self._renew_incarnation(db)

    def _pour(self, source: str) -> None:
        with map_errors(source), shutting(connect(source, readonly=True)) as there:
            check_backup(there, source)
            with map_errors(self.path), shutting(connect(self.path)) as here:
                _pour_all(here.backup("main", there, "main"))
                schema(here, self.path, 0)


def _pour_all(copying: apsw.Backup) -> None:
    try:
        copying.step(-1)
    except BaseException:
        with contextlib.suppress(apsw.Error):  # a failing disk may fail here again: the first error counts
            copying.finish()
        raise
    copying.finish()


def _integrity(path: str, word: str) -> Problem:
    """Maps a line of SQLite's own check. An index that differs from its table hides rows, and can be created anew from it."""
    if " index " in word or "entry" in word:
        return problem("index_damaged", f"{path}: {word}", REINDEX)
    return Problem(StoreCorrupt.code, "error", f"{path}: {word}", "restore a backup")


def check_backup(db: apsw.Connection, path: str) -> None:
    """Refuses a file that is not a Holdfast store, before anything is overwritten."""
    if not _is_sound(db) or not db.table_exists("main", "log"):
        raise StoreCorrupt(f"{path} is damaged, or is not a Holdfast store", hint="choose another backup")
    readable(db.pragma("user_version"), path)


def _is_sound(db: apsw.Connection) -> bool:
    """Whether SQLite finds every page of a file sound."""
    return [str(r[0]) for r in rows(db, "PRAGMA quick_check(1)")] == ["ok"]


def _there(source: str) -> None:
    if not os.path.isfile(source):
        raise UsageError(f"there is no file {source}", hint="give the path of a backup")


def check_file(source: str) -> None:
    """Refuses a file that no store can be restored from.

    Raises:
        UsageError: there is no such file.
        StoreCorrupt, UnsupportedFormat: it is not a store that this release can read.
    """
    _there(source)
    with map_errors(source), shutting(connect(source, readonly=True)) as db:
        check_backup(db, source)


def set_aside(path: str, source: str) -> str:
    """Renames the files of a damaged store to make room for the backup ``source``, and returns the new name of the first. Deletes nothing.

    Raises:
        StoreCorrupt, UnsupportedFormat: the backup cannot replace the store.
        StoreBusy: a living process still has the store open.
    """
    check_file(source)
    if living := Liveness(find_base(path) + LIVE).living():
        raise StoreBusy(f"{path} is still open in {', '.join(living)}", hint="end these processes first, then restore again")
    kept = f"{path}.damaged-{dt.datetime.now(dt.UTC):%Y%m%dT%H%M%S%f}"
    with on_disk(path):
        for beside in BESIDE:
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}{beside}", f"{kept}{beside}")
    return kept


def _chains(db: apsw.Connection) -> list[Problem]:
    """Walks the whole log, page by page with one read each, because what is committed during a read stays in the write-ahead log. If anything is
    wrong, the log is walked again in a single read: the numbers of rows that were pruned meanwhile may have been given to others."""
    if not _walk(db, reading):
        return []
    with reading(db):
        return _walk(db, lambda _: contextlib.nullcontext())


def _walk(db: apsw.Connection, each: Callable[[apsw.Connection], contextlib.AbstractContextManager[None]]) -> list[Problem]:
    """Checks that every row follows its run's previous one, and that every run ends at its tip. ``each`` is entered for each page."""
    log = _Log()
    more = True
    while more:
        with each(db):
            more = log.walk(db)
    problems: list[Problem] = []
    key, before, more = 0, -1, True
    while more and key > before:
        before = key
        with each(db):
            while log.walk(db):  # what was committed meanwhile, because the rows of runs are read as of now
                pass
            tips = rows(db, Q.tips_page, (key, PAGE))
        more = len(tips) == PAGE
        for key, run_id, tip, seq in tips:
            why = log.find_broken(key, tip, seq)
            if len(problems) >= MAX_PROBLEMS:
                continue
            if why is not None:
                problems.append(Problem("event_chain_broken", "error", why, "restore a backup", run_id))
            elif log.goes_on(key, tip):
                error = behind_its_log(run_id)
                problems.append(problem(error.code, error.message, error.hint, run_id))
    return problems


class _Log:
    """How far the log has been walked: where each run ends, and rows that do not follow the one before."""

    def __init__(self) -> None:
        self._last = 0
        self._stuck = False
        self._ends: dict[int, tuple[int, bytes]] = {}
        self._broken: dict[int, str] = {}

    def walk(self, db: apsw.Connection) -> bool:
        """Walks one page; returns whether there may be another. If the table itself is damaged there is none: SQLite's own check has reported that."""
        page = [] if self._stuck else rows(db, Q.chain_page, (self._last, PAGE))
        for number, run, seq, prev, digest, data in page:
            before, previous = self._ends.get(run, (0, b""))
            if prev != before or canon.chain(previous, data) != digest:
                self._broken.setdefault(run, f"the commit that ends with event {seq} does not match its hash")
            self._ends[run] = (number, digest)
        if not page:
            return False
        self._stuck, self._last = page[-1][0] <= self._last, page[-1][0]
        return not self._stuck and len(page) == PAGE

    def find_broken(self, run: int, tip: int, seq: int) -> str | None:
        """Returns what is wrong with a run whose row says that its log ends at ``tip``."""
        if self._ends.get(run, (0, b""))[0] < tip:
            self._broken.setdefault(run, f"the run's row says that the log ends at event {seq}, but it does not")
        return self._broken.get(run)

    def goes_on(self, run: int, tip: int) -> bool:
        """Whether the log of a run goes on behind ``tip``."""
        return self._ends.get(run, (0, b""))[0] > tip


__all__ = ["Keeping", "check_backup", "check_file", "set_aside"]
