"""Connections to one SQLite file: opening, pragmas, schema, named statements, and the one place where errors are mapped."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw
import msgspec

from holdfast.core import canon, codec, views, vouch
from holdfast.core.errors import (
    Conflict,
    EffectInProgress,
    HoldfastError,
    StoreBusy,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    UnsupportedFormat,
    VersionConflict,
)
from holdfast.stores.statements import name_statements, read_migrations

APPLICATION_ID = 0x486F6C64  # «Hold»: tells `file`, and the next program that opens the database, whose it is
PATIENCE = 5.0
SHORT_PAUSES = 32  # the first pauses depend on how long commits take here: with a much longer pause the lock would be unused after a commit of another process
SHORT_PAUSE = (0.5, 4.0)  # their least and greatest length, in commits ...
COMMIT_SECONDS = (0.00002, 0.0002)  # ... where a commit counts as at least and at most this long
PAUSE_SECONDS = (0.0002, 0.002)  # the least and greatest length of the later pauses
LOG_LIMIT = 64 * 1024 * 1024  # a write-ahead log that a long reader has made longer than this is cut to it when it starts anew
INDEX_BYTES = 64 * 1024  # twice what the index of a write-ahead log needs at first
_WRITE_LOCK = 120  # the byte of the -shm file that a writer locks
_READ_MARKS = range(124, 128)  # the bytes that readers lock, one for each state they read; byte 123 is for readers of the file alone
_HERE = Path(__file__).parent  # importlib.resources would load archive and temporary-file modules with every start


Q: Any = name_statements(_HERE.joinpath("queries.sql").read_text("utf-8"))
MIGRATIONS = read_migrations(_HERE / "migrations")


def translate(error: apsw.Error, path: str) -> HoldfastError:
    """Maps an SQLite error to one of Holdfast's, which says who must act; the only place where that is decided."""
    text = str(error)
    if isinstance(error, apsw.ConstraintError):
        return _tell_violation(text)
    if isinstance(error, apsw.FullError) or (isinstance(error, apsw.IOError) and no_room(error, path)):
        return StoreFull(f"{path}: the disk is full; the last commit was not written", hint="free some space; a running worker then continues automatically, otherwise resume the run: everything committed before is intact")
    if isinstance(error, apsw.CantOpenError) and not (folder := Path(path).absolute().parent).is_dir():
        return StoreReadOnly(f"{path} cannot be written: the folder {folder} does not exist", hint="make the folder, or choose another place")
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError):
        return _tell_read_only(path, text)
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        pid = holder(path)
        who = f"the process {pid}" if pid else "another process"
        return StoreBusy(f"{path}: {who} has held the write lock for more than {PATIENCE:.0f} s", hint="that process may be suspended in the middle of a commit: let it continue, or end it")
    if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.FormatError):
        return StoreCorrupt(f"{path} is damaged: {text}", hint="keep a copy of the files, then restore a backup")
    if isinstance(error, apsw.IOError):
        return StoreError(f"{path}: input or output failed: {text}", hint="check the disk; Holdfast reads the data back to see whether the write succeeded", code="store_io")
    if isinstance(error, apsw.ConnectionClosedError | apsw.CursorClosedError):
        return StoreClosed(f"{path} was closed")
    if isinstance(error, apsw.SQLError) and ("no such table" in text or "no such column" in text):
        way_out = "a newer release has changed the schema: end this process and start that release; if none has, restore a backup"
        return UnsupportedFormat(f"{path} has another schema than this release: {text}", hint=way_out)
    if isinstance(error, apsw.SQLError) and "already exists" in text:
        return StoreCorrupt(f"{path}: the number of its schema is not that of its tables: {text}", hint="restore a backup")
    if isinstance(error, apsw.TooBigError):
        return StoreError(f"{path}: a value is too big: {text}", code="too_large")
    return StoreError(f"{path}: {type(error).__name__}: {text}")


def beside_of(path: str) -> tuple[str, str]:
    """Returns where SQLite keeps a store's write-ahead log and its index: beside the file itself, also if the path is a link to it."""
    real = os.path.realpath(path)
    return real + "-wal", real + "-shm"


def _tell_read_only(path: str, text: str) -> StoreReadOnly:
    """Says what cannot be written: a file that SQLite keeps beside the store, the folder, or the store itself."""
    folder = os.path.dirname(os.path.realpath(path))
    if os.access(path, os.W_OK):
        for beside in beside_of(path):
            if os.path.exists(beside) and not os.access(beside, os.R_OK | os.W_OK):
                way_out = "make that file writable; if no process has the store open, and the file that ends in -wal is empty, you may also remove both"
                return StoreReadOnly(f"{path} cannot be written, because {beside} cannot: {text}", hint=way_out)
    if os.path.exists(path) and not os.access(folder, os.W_OK):
        way_out = f"check the permissions of {folder}: SQLite writes there even to read; to look at the store, you may also copy it to another folder, with the files beside it"
        return StoreReadOnly(f"{path} cannot be written: {text}", hint=way_out)
    return StoreReadOnly(f"{path} cannot be written: {text}", hint="check the permissions of the file and of its folder")


def _tell_violation(text: str) -> HoldfastError:
    """Maps the violation of a unique index, by the columns in its message."""
    if "effect.key" in text:
        return EffectInProgress("another attempt under this key is not settled", hint="wait for it")
    if "run.run_id" in text:
        return VersionConflict("the run exists already", hint="load it")
    if "run.tenant_id" in text:
        return Conflict("the lane is held by another run", hint="submit it as pending", code="lane_busy")
    if "worker.owner" in text:
        return Conflict("the worker is registered already", hint="an owner id is unique per process start", code="owner_taken")
    return StoreError(f"a constraint was violated: {text}", code="constraint")


def holder(path: str) -> int | None:
    """Returns the process that holds the write lock; None if that is unknown."""
    return next((pid for pid, kind, first, last in _locks(path) if kind == "WRITE" and first <= _WRITE_LOCK <= last), None)


def readers(path: str) -> set[tuple[int, int]]:
    """Returns the processes that read a state of the store, each with its read mark: behind it the write-ahead log cannot start anew."""
    return {(pid, mark) for pid, kind, first, last in _locks(path) if kind == "READ" for mark in _READ_MARKS if first <= mark <= last}


def _locks(path: str) -> Iterator[tuple[int, str, int, int]]:
    """Yields who locks which bytes of the -shm file, from the kernel's table of locks; nothing if that is unknown.

    The -shm file itself is never opened: closing any descriptor of it would drop this process's own locks.
    """
    try:
        inode = os.stat(beside_of(path)[1]).st_ino
        with open("/proc/locks", encoding="ascii") as table:
            lines = table.readlines()
    except OSError:
        return
    for line in lines:
        part = line.split()
        if len(part) == 8 and part[5].rpartition(":")[2] == str(inode):
            yield int(part[4]), part[3], int(part[6]), sys.maxsize if part[7] == "EOF" else int(part[7])


def process_named(pid: int) -> str:
    """Describes a process for people: its id, its name and when it began, as far as that is known."""
    if pid == os.getpid():
        return f"this process ({pid})"
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            text = f.read()
        with open("/proc/stat", encoding="ascii") as f:
            started = next(int(line.split()[1]) for line in f if line.startswith("btime "))
        name, ticks = text[text.index("(") + 1 : text.rindex(")")], int(text[text.rindex(")") :].split()[20])
    except (OSError, ValueError, LookupError, StopIteration):
        return f"the process {pid}"
    return f"the process {pid} ({name}, which began at {views.iso((started + ticks // os.sysconf('SC_CLK_TCK')) * 1_000_000)})"


def begin_anew(path: str, limit: int) -> bool:
    """Empties a write-ahead log that has grown beyond ``limit`` bytes, if no reader needs it any more; does not wait. Returns whether it was emptied.
    Opens a connection of its own, and may run in any thread."""
    try:
        if os.stat(beside_of(path)[0]).st_size <= limit:
            return False
    except OSError:
        return False
    with contextlib.closing(connect(path, waits=Waits(0))) as db, map_errors(path):
        (busy, _, _), *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return not busy


def waiting_log(db: apsw.Connection) -> int:
    """Brings as much of the write-ahead log into the database file as possible; returns how many pages of it are still being read."""
    found: Any = row(db, "PRAGMA wal_checkpoint(PASSIVE)")
    return max(0, int(found[1]) - int(found[2]))


def no_room(error: apsw.Error, path: str) -> bool:
    """Whether an I/O error is due to a full disk: SQLite reports it so if the index of the write-ahead log cannot be made longer."""
    if getattr(error, "extendedresult", 0) != apsw.SQLITE_IOERR_SHMSIZE:
        return False
    try:
        disk = os.statvfs(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < INDEX_BYTES


def unmake(path: str) -> None:
    """Removes the rest of a store that could not be created: a file with nothing but its header, unless a log shows that another process has created
    the store meanwhile."""
    with contextlib.suppress(OSError):
        if os.stat(path).st_size <= 4096 and not (os.path.exists(path + "-wal") and os.stat(path + "-wal").st_size):
            for name in (path + "-shm", path + "-wal", path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)


@contextlib.contextmanager
def map_errors(path: str) -> Iterator[None]:
    """Raises Holdfast's errors instead of SQLite's."""
    try:
        yield
    except apsw.Error as e:
        raise translate(e, path) from e
    except UnicodeDecodeError as e:  # a text outside ``_legible``; the checker names the record
        raise StoreCorrupt(f"{path} is damaged: it contains invalid text: {e}", hint="holdfast check names the record") from e


class Pace:
    """How many seconds a commit has taken here recently; 0 if none has been made."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    def pause(self) -> float:
        """Returns the seconds after which a commit of another process may be finished."""
        return random.uniform(*SHORT_PAUSE) * min(max(self.seconds, COMMIT_SECONDS[0]), COMMIT_SECONDS[1])


class Waits:
    """A busy handler with short, uneven pauses. SQLite's own pauses grow to 100 ms, and a busy other process would starve this one. The first pauses
    are about as long as a commit, which may take a fraction of a millisecond or many. A process that holds the lock for longer than a few commits is
    not about to release it, so the later pauses are longer.

    ``patience``: seconds in all. ``never``: while it is set, nothing waits.
    """

    __slots__ = ("_began", "_pace", "_patience", "never")

    def __init__(self, patience: float = PATIENCE, pace: Pace | None = None) -> None:
        self._patience = patience
        self._pace = pace or Pace()
        self._began = 0.0
        self.never = False

    def __call__(self, count: int) -> bool:
        if self.never:
            return False
        now = time.monotonic()
        if count == 0:
            self._began = now
        if now - self._began >= self._patience:
            return False
        time.sleep(min(self._pace.pause() if count < SHORT_PAUSES else random.uniform(*PAUSE_SECONDS), self._patience / 4))
        return True


def connect(path: str, *, waits: Waits | None = None, create: bool = False, readonly: bool = False) -> apsw.Connection:
    """Returns a connection ready for use. ``waits``: its busy handler.

    Raises:
        StoreReadOnly, StoreCorrupt, StoreBusy: depending on what prevents it.
    """
    flags = apsw.SQLITE_OPEN_READONLY if readonly else apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    name = path
    if readonly and not os.path.exists(beside_of(path)[0]):  # nobody has it open, so it can be read without a file beside it, as on a read-only disk
        name, flags = f"file:{quote(os.path.abspath(path))}?immutable=1", flags | apsw.SQLITE_OPEN_URI
    with map_errors(path):
        db = apsw.Connection(name, flags=flags, statementcachesize=128)
        try:
            db.set_busy_handler(waits or Waits())
            if not readonly:
                _ours(db, path)
                if db.readonly("main"):
                    let_others_write(path)
                mode = db.pragma("journal_mode", "wal")
                if mode != "wal":
                    raise StoreReadOnly(f"{path} cannot use a write-ahead log (its journal is {mode!r})", hint="put it on a local disk")
                db.pragma("synchronous", "FULL")
            # Without this, SQLite compiles a statement again whenever a value is bound that may decide about the use of a partial index: a search for
            # due runs would cost ten times as much. No plan here depends on a value.
            db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            db.pragma("cache_size", -16384)
            db.pragma("journal_size_limit", LOG_LIMIT)
            db.pragma("trusted_schema", "OFF")
            _teach(db)
        except BaseException:
            shut(db)
            raise
    return db


def shut(db: apsw.Connection) -> None:
    """Closes a connection. What was acknowledged is on the disk by then. If closing cannot also move the log into the file, the next opener does it."""
    with contextlib.suppress(apsw.IOError, apsw.FullError, apsw.CantOpenError):
        db.close()


@contextlib.contextmanager
def shutting(db: apsw.Connection) -> Iterator[apsw.Connection]:
    """Gives a connection for the time of a ``with`` block."""
    try:
        yield db
    finally:
        shut(db)


def let_others_write(path: str) -> None:
    """Lets those write the files beside a store who may write its folder, and could remove them there. SQLite gives the files the mode of the store and
    the user who opens it. If this user may only read the store, nobody could write it any more, although its own permissions allow it."""
    for beside in beside_of(path):
        with contextlib.suppress(OSError):  # it is not there, or of another user, who must do this
            there, folder = os.stat(beside), os.stat(os.path.dirname(beside))
            wanted = there.st_mode | 0o600
            if folder.st_mode & stat.S_IWGRP and folder.st_gid == there.st_gid:
                wanted |= 0o060
            if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
                wanted |= 0o006
            if wanted != there.st_mode:
                os.chmod(beside, stat.S_IMODE(wanted))


def _ours(db: apsw.Connection, path: str) -> None:
    """Refuses the database of another program, before anything in it is changed. The tables are looked for first: they come in one transaction with the id, perhaps of
    another process that makes the store at this moment."""
    if row(db, "SELECT EXISTS (SELECT 1 FROM sqlite_schema)")[0] and db.pragma("application_id") != APPLICATION_ID:
        raise StoreCorrupt(f"{path} is an SQLite database, but not one of Holdfast's", hint="give the store a file of its own")


def readable(number: int, path: str) -> None:
    """Refuses the schema of a newer release."""
    if number > len(MIGRATIONS):
        raise UnsupportedFormat(f"{path} has schema {number}, this release knows {len(MIGRATIONS)}", hint="use the release that wrote it")


def as_json(data: bytes) -> str:
    """Returns an encoded value as JSON, for people who type SQL."""
    return msgspec.json.encode(canon.reveal(data)).decode()


def _field(*values: Any) -> Any:
    """Returns one field of an encoded record, by its place; a migration makes a column of it."""
    data, place = values
    return msgspec.msgpack.decode(data)[place]


def _end(*values: Any) -> int | None:
    """Returns when a run ended, from the encoded part of its row; None if that cannot be read."""
    try:
        return codec.decode_run(values[0]).finished_at
    except HoldfastError:
        return None


def _show(*values: Any) -> str:
    return as_json(values[0])


def schema(db: apsw.Connection, path: str, incarnation: int) -> None:
    """Brings the schema up to date, in one transaction; a new database gets ``incarnation``.

    Raises:
        UnsupportedFormat: the schema is that of a newer release.
        StoreReadOnly: the schema is that of an older release, and the file cannot be written.
    """
    with map_errors(path):
        before = int(db.pragma("user_version"))
        if before == len(MIGRATIONS) and db.pragma("application_id") == APPLICATION_ID:
            return
        try:
            db.execute(Q.begin)
        except apsw.ReadOnlyError as e:
            about = f"{path} has schema {before}, this release needs {len(MIGRATIONS)}, and the file cannot be written"
            raise StoreReadOnly(about, hint="somebody who may write the store must run: holdfast migrate") from e
        try:
            number = int(db.pragma("user_version"))
            readable(number, path)
            db.create_scalar_function("holdfast_field", _field, 2, deterministic=True)
            db.create_scalar_function("holdfast_end", _end, 1, deterministic=True)
            db.create_scalar_function("holdfast_json", _show, 1, deterministic=True)
            db.create_scalar_function("seal", _seal, deterministic=True)
            for script in MIGRATIONS[number:]:
                db.execute(script)
            if number == 0:
                db.execute(Q.meta_set, ("incarnation", incarnation))
            db.pragma("application_id", APPLICATION_ID)
            db.pragma("user_version", len(MIGRATIONS))
            db.execute(Q.commit)
        except BaseException:
            abort(db)
            raise


@functools.cache
def indexes_and_triggers() -> dict[str, str]:
    """Returns the indexes and triggers of this release's schema, with the statements that create them."""
    with contextlib.closing(apsw.Connection(":memory:")) as db:
        _teach(db)
        schema(db, ":memory:", 0)
        return dict(db.execute(Q.indexes_and_triggers))


def kind_of(name: str) -> str:
    """Returns ``index`` or ``trigger``, for a name of this release's schema."""
    return "trigger" if indexes_and_triggers()[name].startswith("CREATE TRIGGER") else "index"


def list_lost_objects(db: apsw.Connection) -> list[str]:
    """Returns the indexes and triggers that a store lacks, or has with another definition. Without a unique index there may be duplicates."""
    there = dict(rows(db, Q.indexes_and_triggers))
    return sorted(name for name, made in indexes_and_triggers().items() if there.get(name) != made)


def list_unknown_triggers(db: apsw.Connection) -> list[tuple[str, str]]:
    """Returns the triggers on the tables of a store that this release does not create, each with its table."""
    return [(str(name), str(table)) for name, table in rows(db, Q.triggers_made) if name not in indexes_and_triggers()]


def _teach(db: apsw.Connection) -> None:
    """Gives a connection the functions that statements and migrations use."""
    db.create_scalar_function("standing", _standing, 6, deterministic=True)
    db.create_scalar_function("weigh", _weigh, 2, deterministic=True)
    db.create_scalar_function("heft", _heft, 1, deterministic=True)


def _seal(*parts: Any) -> bytes:
    """``vouch.seal`` as a function of SQL, for the migration that seals what a past release has written."""
    return vouch.seal(*parts)


def _standing(*columns: Any) -> bytes:
    """``vouch.standing`` as a function of SQL, for the statements that change what a run's row says beside its log."""
    return vouch.standing(*columns)


def _weigh(*named: Any) -> int:
    """``vouch.weigh`` as a function of SQL; what a damaged page gives may be anything."""
    return vouch.weigh(*map(str, named))


def _heft(*seals: Any) -> int:
    """``vouch.heft`` as a function of SQL."""
    return vouch.heft(*seals) if isinstance(seals[0], bytes) else 0


def schema_number(path: str) -> int:
    """The schema's number in a file, read without changing it; 0 if it has none."""
    with map_errors(path), contextlib.closing(connect(path, readonly=True)) as db:
        return int(db.pragma("user_version"))


def row(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> Any:
    """The first row as a tuple, or None."""
    try:
        return db.execute(sql, values).fetchone()
    except UnicodeDecodeError:
        return next(iter(_legible(db, sql, values)), None)


def rows(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    """All rows as tuples."""
    try:
        return db.execute(sql, values).fetchall()
    except UnicodeDecodeError:
        return _legible(db, sql, values)


def _legible(db: apsw.Connection, sql: str, values: Sequence[Any]) -> list[Any]:
    """Returns the rows of a query with a text that is not UTF-8. Invalid bytes are written as escapes, so that one bad value hides no other."""
    count = len(db.execute(sql, values).get_description())
    names = [f"c{i}" for i in range(count)]
    columns = ", ".join(f"typeof({n}), CASE typeof({n}) WHEN 'text' THEN CAST({n} AS BLOB) ELSE {n} END" for n in names)
    found = db.execute(f"WITH kept ({', '.join(names)}) AS ({sql}) SELECT {columns} FROM kept", values).fetchall()
    return [tuple([str(v, "utf-8", "backslashreplace") if isinstance(v, bytes) and kind == "text" else v for kind, v in zip(r[::2], r[1::2], strict=True)]) for r in found]


@contextlib.contextmanager
def writing(db: apsw.Connection, waits: Waits | None = None) -> Iterator[None]:
    """One write transaction: all of it or none of it. ``waits``: the busy handler of the connection, given if it must not wait for the lock."""
    if waits is not None:
        waits.never = True
    try:
        db.execute(Q.begin)
    finally:
        if waits is not None:
            waits.never = False
    try:
        yield
        db.execute(Q.commit)
    except BaseException:
        abort(db)
        raise


@contextlib.contextmanager
def reading(db: apsw.Connection) -> Iterator[None]:
    """One snapshot for several reads."""
    db.execute(Q.begin_read)
    try:
        yield
    finally:
        abort(db)


def abort(db: apsw.Connection) -> None:
    """Ends the open transaction; some errors have already rolled it back by themselves."""
    if db.in_transaction:
        db.execute(Q.rollback)


def value_of(db: apsw.Connection, sql: str, values: Sequence[Any]) -> Any:
    """The first value of the first row; None where there is none."""
    found = row(db, sql, values)
    return None if found is None else found[0]
