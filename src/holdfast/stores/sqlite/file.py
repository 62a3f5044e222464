"""One SQLite file as a process has it open: its connections, its identity, its anchor, its clock and its news.

There are three connections at most: the event loop's, which reads and, while commits are quick, writes; the writer thread's, which writes when they
are not (``writer.py``); and the one for renewals, so that a heartbeat in its own thread depends on no other connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import shutil
import threading
from collections.abc import Callable
from functools import partial

import apsw

from holdfast import machine
from holdfast.core.errors import (
    NOT_OPEN,
    HoldfastError,
    IncarnationChanged,
    LogRolledBack,
    ProcessForked,
    StoreClosed,
    StoreMoved,
    StoreReadOnly,
    UsageError,
)
from holdfast.core.lease import at_once
from holdfast.ports import ANYTHING, News, Problem
from holdfast.stores.changes import BOARD, Bell, Board, Changes
from holdfast.stores.crowds import Crowds
from holdfast.stores.files import ANCHOR, LIVE, Identity, find_base, fix_place, on_disk, stamp_of, store_error
from holdfast.stores.liveness import Liveness
from holdfast.stores.sqlite import outbox
from holdfast.stores.sqlite.anchor import Anchor, Mark
from holdfast.stores.sqlite.commits import Committer
from holdfast.stores.sqlite.connection import (
    LOG_LIMIT,
    PATIENCE,
    Pace,
    Q,
    Waits,
    begin_anew,
    beside_of,
    connect,
    map_errors,
    process_named,
    readers,
    row,
    schema,
    shut,
    unmake,
    value_of,
    waiting_log,
    writing,
)
from holdfast.stores.sqlite.owners import Owners
from holdfast.stores.sqlite.turns import Turns
from holdfast.stores.sqlite.writer import Writer

READ_SECONDS = 0.2  # a reader that is still there after this time is reported
LITTLE_ROOM = 256 * 1024 * 1024  # doctor warns if the disk has less than this left


class File:
    """What all verbs of a store share: its connections, and what is known of its file and of other processes."""

    def __init__(self, path: str | os.PathLike[str], *, now: Callable[[], int] | None = None) -> None:
        self.path = os.fspath(path)
        self.url = f"sqlite:///{self.path}"
        self.incarnation = 0
        self.suspect: HoldfastError | None = None
        self.patience = PATIENCE
        self._pace = Pace()
        self._now = now or machine.wall
        self._anchor = Anchor(self.path + ANCHOR, self._note_unsynced, self._each_second)
        self._liveness = Liveness(self.path + LIVE)
        self._moved = now is not None
        self._owners = Owners(self._liveness, self._now, given=self._moved)
        self._tidied = -math.inf
        self._crowds = Crowds()
        self._search = outbox.Search(self._owners)
        self._changes = Changes(self._data_version)
        self._noted = (0, 0)
        self._overgrown: HoldfastError | None = None
        self._file: Identity | None = None
        self._log: dict[str, Identity] = {}  # the write-ahead log and its index, from the first commit until the last connection here is closed
        self._orphans: dict[str, tuple[int, int]] = {}
        self._beyond: dict[str, int] = {}
        self._db: apsw.Connection | None = None
        self._writer: Writer | None = None
        self._committers: list[Committer] = []
        self._renewing: apsw.Connection | None = None
        self._renewal = threading.Lock()

    # -- life ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Opens or creates the file. If its log went backwards, ``suspect`` and ``verify`` say so, and the store can only be read.

        Raises:
            StoreReadOnly, StoreCorrupt, StoreBusy, UnsupportedFormat: depending on what prevents it.
        """
        if self._db is not None:
            return
        self.path = fix_place(self.path)
        base = find_base(self.path)
        self._anchor.path, self._liveness.folder = base + ANCHOR, base + LIVE
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise UsageError(f"the folder {folder} does not exist", hint="create it first")
        if os.path.isdir(self.path):
            raise StoreReadOnly(f"{self.path} is a folder", hint="a SQLite store is a file: add its name, such as runs.db")
        new = not os.path.lexists(self.path)
        try:
            self._prepare(connect(self.path, create=True))
        except BaseException:
            self._anchor.close()
            if new:
                unmake(self.path)
            raise
        waits = Waits(pace=self._pace)
        self._db = connect(self.path, waits=waits)
        turns = Turns(os.path.join(base + LIVE, BOARD), self.path, self._has_company, self._pace)
        here = Committer(self._db, self._owners, self._now, self._same, waits)
        self._committers = [here]
        self._writer = Writer(self.path, here, self._thread_committer, self._refusal, self._after, self._changes.tell, self._pace, turns)
        self._forks = machine.PROCESS.forks
        self._anchor.keep_synced()
        posted = partial(Board.of, os.path.join(base + LIVE, BOARD), self.path)
        self._changes.reopen(None if self._moved else Bell.of(self.path), posted)  # no bell with a given clock, which also determines the order of events

    def _prepare(self, db: apsw.Connection) -> None:
        """Creates the tables if there are none, and reads the identity and state of the file."""
        try:
            with map_errors(self.path):
                empty = db.pragma("user_version") == 0
                schema(db, self.path, secrets.randbits(31))
                if empty:
                    # The schema is in the database file itself from the start, so that a lost write-ahead log is seen as such and not as a new store.
                    db.pragma("wal_checkpoint(TRUNCATE)")
                known = value_of(db, Q.meta_get, ("incarnation",))
                self.incarnation = known if isinstance(known, int) and 0 <= known < 2**31 else 0
                with on_disk(self._anchor.path):
                    self.suspect = self._suspicion(db)
                self._file = Identity(self.path, filled=True)
        finally:
            shut(db)

    def _thread_committer(self) -> Committer:
        made = Committer(self._another(), self._owners, self._now, self._same)
        self._committers.append(made)
        return made

    def _another(self) -> apsw.Connection:
        """Opens one more connection to the open file; refuses if another file has replaced it."""
        self._same_file()
        if isinstance(self.suspect, StoreMoved):
            raise self.suspect
        return connect(self.path, waits=Waits(pace=self._pace))

    def _end(self, db: apsw.Connection) -> Mark:
        """Returns where the store ends: its newest log row, and its newest transaction without one."""
        last, digest = row(db, Q.log_last) or (0, b"")
        return Mark(self.incarnation, last, digest, value_of(db, Q.meta_get, ("writes",)) or 0)

    def _suspicion(self, db: apsw.Connection) -> HoldfastError | None:
        """Compares the end of the store with the anchor, in constant time (§1.9). The anchor is read first, because it is never ahead of the store."""
        mark = self._anchor.open()
        end = self._end(db)
        self._noted = (end.last, end.writes)
        way_out = "look at what is missing (holdfast check), restore a backup, or accept the loss: holdfast doctor --acknowledge"
        if mark is None:
            if end.last == 0 and end.writes == 0:
                self._anchor.begin(Mark(self.incarnation, 0, b""), first=True)
                return None
            moved = f"if you have moved or renamed the store, move its anchor to {self._anchor.path} too; otherwise "
            return LogRolledBack(f"{self._anchor.path} is missing or damaged, so the end of the log cannot be verified", hint=moved + way_out)
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

    def _has_company(self) -> bool:
        """Whether any other process of this machine has the file open, as far as this process knows."""
        return (bell := self._changes.bell) is not None and bell.heard

    def _after(self, committer: Committer) -> HoldfastError | None:
        """Raises the anchor, between COMMIT and the answer. If the file that was written is no longer the store, returns the error to answer instead,
        so that nothing is acknowledged that would be lost. May run in the writer's thread."""
        if self._file is None or not self._file.is_plain():
            self._same_file()
        if not self._log:
            self._same_log()
        if self.suspect is not None and isinstance(self.suspect, StoreMoved):
            return self.suspect
        (number, digest), wrote, (rows, writes) = committer.last, committer.wrote, self._noted
        try:  # if nothing grew, the anchor has it already; but the store may by now be another one, restored from an older copy
            if wrote > writes:
                followed = self._anchor.raise_to(Mark(self.incarnation, number if number > rows else 0, digest, wrote))
            elif number > rows:
                followed = self._anchor.raise_row(self.incarnation, number, digest)
            else:
                followed = self._anchor.of(self.incarnation)
        except OSError as e:
            self._note_unsynced(e)
            return None
        finally:
            self._noted = (number if number > rows else rows, wrote if wrote > writes else writes)
        if not followed:
            self.suspect = self._refuse_replaced()
            return self.suspect
        return None

    def _same(self, incarnation: int) -> None:
        """Called inside each transaction that no fence guards, before it writes.

        Raises:
            IncarnationChanged: another process has restored or acknowledged the store meanwhile.
        """
        if incarnation != self.incarnation:
            self.suspect = self._refuse_replaced()
            raise self.suspect

    def _refuse_replaced(self) -> IncarnationChanged:
        return IncarnationChanged(f"{self.path} was restored or acknowledged by another process", hint="open the store again")

    def _note_unsynced(self, error: OSError) -> None:
        """Makes the store suspect because the anchor could not be written or synced: nothing would vouch for what is acknowledged from now on. May
        run in any thread."""
        if self.suspect is None:
            self.suspect = store_error(error, self._anchor.path)

    def _each_second(self) -> None:
        """In the anchor's thread: checks the file and its log, and empties a log that grew because of a reader that has left."""
        self._same_file()
        self._same_log()
        if self.suspect is None:
            try:
                begin_anew(self.path, LOG_LIMIT)
                self._overgrown = None
            except HoldfastError as e:
                self._overgrown = e  # it is tried again; ``doctor`` reports it

    async def health(self) -> list[Problem]:
        """Reports whether the disk is nearly full, and who reads for so long that the write-ahead log cannot start anew (``doctor``)."""
        left = self._overgrown
        told = [] if left is None else [Problem(left.code, "warning", f"{self.path}: its write-ahead log cannot be emptied: {left.message}", left.hint)]
        told += self._room()
        if self._read().readonly("main"):  # who reads is then unknown
            about, way_out = f"{self.path} can only be read by this user", "to change anything, make the file and its folder writable"
            return [*told, Problem(StoreReadOnly.code, "warning", about, way_out)]
        if not (before := await asyncio.to_thread(self._old_readers)):
            return told
        await asyncio.sleep(READ_SECONDS)
        stays = sorted({pid for pid, _ in before & await asyncio.to_thread(self._old_readers)})
        size = os.stat(beside_of(self.path)[0]).st_size if stays else 0
        about = f"reads an old state of {self.path}: its write-ahead log, {size >> 10} KiB now, grows until that ends"
        return told + [Problem("snapshot_old", "warning", f"{process_named(pid)} {about}", "end that reader; the write-ahead log is then emptied within a second") for pid in stays]

    def _room(self) -> list[Problem]:
        """Reports how much space the disk has left, if that is little."""
        free = shutil.disk_usage(os.path.dirname(os.path.abspath(self.path))).free
        if free >= LITTLE_ROOM:
            return []
        return [Problem("disk_low", "warning", f"the disk of {self.path} has {free >> 20} MiB left", "make room: on a full disk every run stops at its last commit")]

    def _old_readers(self) -> set[tuple[int, int]]:
        with map_errors(self.path), contextlib.closing(connect(self.path, waits=Waits(0))) as db:
            return readers(self.path) if waiting_log(db) else set()

    def _same_file(self) -> None:
        """Checks that the path still leads to the open file; if not, nothing more is written (X-27). May run in any thread."""
        if self._file is not None and self.suspect is None and (what := self._file.tell_lost()):
            way_out = "end the processes that use it; then put the file back, or open what is there now"
            self.suspect = StoreMoved(f"{self.path} {what} while it was open", hint=way_out)

    def _same_log(self) -> None:
        """Checks that the write-ahead log is still the open one. In a replaced log nobody else would see what is written here, and it would be lost
        when this process ends. With a replaced index, two processes would overwrite each other."""
        try:
            for path in beside_of(self.path):
                if path not in self._log:
                    if os.path.exists(path):
                        self._log[path] = Identity(path)
                elif self.suspect is None and (what := self._log[path].tell_lost()):
                    way_out = "stop this process with SIGTERM, so that what it wrote reaches the file; then open the store again"
                    self.suspect = StoreMoved(f"{path} {what} while it was open", hint=way_out)
        except HoldfastError as e:
            self.suspect = self.suspect or e

    async def close(self) -> None:
        """Finishes pending writes, syncs the anchor, and gives up every owner's proof of life."""
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

    # -- the ways in --------------------------------------------------------------------------------

    def _read(self) -> apsw.Connection:
        if self._db is None:
            raise StoreClosed(f"{self.path} is not open", hint=NOT_OPEN)
        self._own()
        return self._db

    def _own(self) -> None:
        """Refuses to work in the child of a fork, which shares its parent's connection."""
        if machine.PROCESS.forks != self._forks:
            raise ProcessForked(f"{self.path} was opened by the process that this one was forked from", hint="open it again in the child")

    def _write(self) -> Writer:
        if (writer := self._writer) is None:
            raise StoreClosed(f"{self.path} is not open", hint=NOT_OPEN)
        if machine.PROCESS.forks != self._forks:
            self._own()
        if (refused := self._refusal()) is not None:
            raise refused
        return writer

    def _refusal(self) -> HoldfastError | None:
        """Returns why nothing may be written; None if it may."""
        suspect = self.suspect
        return None if suspect is None else type(suspect)(suspect.message, hint=suspect.hint, code=suspect.code)

    # -- news ---------------------------------------------------------------------------------------

    def _data_version(self) -> int:
        with map_errors(self.path):
            db = self._read()
            if db.readonly("main"):  # SQLite may count its own reads as changes if it cannot lock anything
                return stamp_of(self.path, beside_of(self.path)[0])
            return int(value_of(db, "PRAGMA data_version", ()))

    @property
    def rings(self) -> bool:
        """Whether the store notifies other processes of this machine of what it writes."""
        return self._changes.bell is not None

    async def wait_for_change(self, timeout: float, about: News = ANYTHING) -> News:
        return await self._changes.wait(timeout, about)

    async def acknowledge(self) -> None:
        """Accepts the log as it is, on behalf of an operator: sets a new incarnation, which makes every earlier fence void (§1.9)."""
        if self._db is None:
            raise StoreClosed(f"{self.path} is not open", hint=NOT_OPEN)
        with map_errors(self.path):
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
        for committer in self._committers:
            committer.forget()
        self._changes.tell()


__all__ = ["File"]
