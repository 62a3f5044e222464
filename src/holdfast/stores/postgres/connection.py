"""Connections to one PostgreSQL database: what a URL says, a small pool of connections, and the one place where errors are mapped.

Nothing is kept in a session: no SET, no LISTEN and no advisory lock outside a transaction, so that a transaction pooler may be in front of the
server. Behind one, statements are not prepared: ``?pooler=transaction`` says so. A pooler that the URL does not mention is detected: the session that
answers is not the one that was announced when the connection was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg
from psycopg import errors as sql
from psycopg.pq import ConnStatus
from psycopg.rows import tuple_row

from holdfast import logs
from holdfast.core import addresses
from holdfast.core.errors import (
    Conflict,
    EffectInProgress,
    HoldfastError,
    OutcomeUnknown,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
    UnsupportedFormat,
    UsageError,
    VersionConflict,
)
from holdfast.machine import note_error
from holdfast.stores.postgres.ahead import AT_REST, Ahead
from holdfast.stores.postgres.arrays import taught
from holdfast.stores.postgres.queries import OFTEN
from holdfast.stores.postgres.wire import Asked, Connection, Exchange, Plans, Rows, Statement

log = logs.logger("holdfast.store")

MOST = 3  # connections for verbs and commits; one more renews leases, and one more listens
PATIENCE = 30.0  # seconds for which a verb retries during an outage
FIRST_WAIT, LONGEST_WAIT = 0.02, 1.0
FULL_WAIT = 0.2  # each attempt at a server without a free connection costs the server a process
LAST_ANSWER = 1.0  # seconds for which a store that is closed waits for earlier questions
ANSWER_SECONDS = 20.0  # a server that does not answer for so many seconds is left
SPREAD = 64  # at most so many partitions: hash buckets are spread over them
T = TypeVar("T")
Held = tuple[int, Connection]
"""A connection, and its generation."""

# The store reports lost connections; psycopg's own warnings about them go only to applications that configure its logger.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class Place(msgspec.Struct, frozen=True):
    """What a URL says: where the database is, which pooler is in front of it (``transaction``, ``session``, or empty if the URL says nothing), and
    where to listen for notifications."""

    url: str
    conninfo: str
    pooler: str = ""
    listen: str | None = None
    partitions: int = 0


def place(url: str) -> Place:
    """Reads a URL. ``pooler=transaction``, ``listen=URL`` and ``partitions=N`` are Holdfast's, everything else is libpq's.

    Raises:
        UsageError: a part of the URL is invalid.
    """
    found, shown = addresses.parse(url), addresses.mask(url)
    if found is None or not found.clear:
        raise UsageError(f"the URL of the store is not understood: {shown}", hint=f"postgresql://user@host/database; {addresses.ENCODED}")
    ours: dict[str, str] = {}
    theirs = []
    for pair, name, value in found.parameters():
        if name in ("pooler", "listen", "partitions"):
            ours[name] = value
        else:
            theirs.append(pair)
    pooler, partitions = ours.get("pooler", ""), ours.get("partitions", "0")
    if pooler not in ("", "session", "transaction"):
        raise UsageError(f"pooler={pooler!r} in the URL of the store is not understood", hint="transaction, or session")
    if not partitions.isascii() or not partitions.isdigit() or int(partitions) > SPREAD:
        raise UsageError(f"partitions={partitions!r} in the URL of the store is not a number up to {SPREAD}", hint="leave it out")
    conninfo = found.start + ("" if found.user is None else f"{found.user}@") + found.place + ("?" + "&".join(theirs) if theirs else "")
    try:
        psycopg.conninfo.conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as e:
        said = addresses.scrub(_text(e), url)
        raise UsageError(f"the URL of the store is not understood: {said}", hint=f"postgresql://user@host/database; {addresses.ENCODED}") from None  # libpq repeats its input
    if (asked := next((value for _, name, value in found.parameters() if name == "target_session_attrs"), "")) in ("standby", "read-only"):
        raise UsageError(f"target_session_attrs={asked} in the URL of the store asks for a server that takes no writes", hint="target_session_attrs=read-write finds the primary of several servers")
    listen = ours.get("listen", "" if pooler == "transaction" else conninfo)
    return Place(shown, conninfo, pooler, listen or None, int(partitions))


def schema_of(place: Place, script: str) -> str:
    """Returns the statements of a migration; with ``partitions``, the tables run, log, inbox and others get so many partitions by the hash of their
    bucket."""
    text, tables = script, re.findall(r"CREATE TABLE holdfast\.(\w+) \((?:(?!CREATE)[^{}])*\n\) \{hash \w+\};", script)
    n = place.partitions
    text = re.sub(r" \{hash (\w+)\};", r" PARTITION BY HASH (\1);" if n else ";", text)
    text = text.replace("{, bucket}", ", bucket" if n else "")
    tuned = []
    for table in tables:
        parts = [f"{table}_{i}" for i in range(n)] or [table]
        for i, part in enumerate(parts if n else ()):
            tuned.append(f"CREATE TABLE holdfast.{part} PARTITION OF holdfast.{table} FOR VALUES WITH (MODULUS {n}, REMAINDER {i});")
        tuned += [f"ALTER TABLE holdfast.{part} SET ({_TUNED[table]});" for part in parts]
    tuned += [
        f"ALTER TABLE holdfast.{table} SET ({_TUNED[table]});"
        for table in ("intent", "worker")
        if f"CREATE TABLE holdfast.{table} (" in script
    ]
    return text.replace("{tuned}", "\n".join(tuned))


_OFTEN = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0"
_TUNED = {
    "run": f"fillfactor = 70, {_OFTEN}",
    "doc": f"fillfactor = 70, {_OFTEN}",
    "log": "autovacuum_vacuum_insert_scale_factor = 0.2",
    "whole": "autovacuum_vacuum_insert_scale_factor = 0.2",
    "inbox": f"fillfactor = 80, {_OFTEN}",
    "claim": _OFTEN,
    "effect": f"fillfactor = 80, {_OFTEN}",
    "intent": f"fillfactor = 70, {_OFTEN}",
    "vouch": f"fillfactor = 80, {_OFTEN}",
    "worker": "fillfactor = 50, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0",
}


# -- errors -----------------------------------------------------------------------------------------

# Temporary states: lost connections, a server that starts or shuts down or was demoted to read-only, too many connections, conflicts with another
# transaction, timeouts.
_PASSING = ("08", "57P", "53300", "25006", "40001", "40P01", "40003", "55P03", "57014", "55006", "25P03", "25P04")
_LEFT = ("08", "57P", "25006")  # after one of these the server is left at once, with its other connections
_FULL = ("too many clients", "too many connections", "remaining connection slots", "no more connections allowed")
_REFUSED = re.compile(
    r'(?:database|role|user) "[^"]*" does not exist|no such (?:database|user)|is not permitted to log in|authentication failed|no password supplied|password is required'
    r"|pg_hba\.conf|permission denied for database|unrecognized configuration parameter|invalid value for parameter|SSL was required|certificate verify failed"
    r"|does not match host name|certificate file .* does not exist|invalid \w+ value|invalid (?:port number|integer value)"
)
_SHUT = re.compile(r'database "[^"]*" does not exist|no such database|permission denied for database|not permitted to log in|pg_hba\.conf')
_UNPOOLED = re.compile(r"statement pooling mode|unsupported startup parameter")  # a pooler reports this under the state of a lost connection
_REFUSED_STATES = ("28", "3D000")
POOLER_HINT = "add pooler=transaction to the URL of the store, or pooler=session where the pooler keeps a session for each client"
UNPREPARED = (sql.InvalidSqlStatementName, sql.DuplicatePreparedStatement)


def passing(error: BaseException) -> bool:
    """Whether the same may succeed a moment later."""
    if isinstance(error, TimeoutError | OSError):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_PASSING) and not refuses(error)
    # An error without a state is the client's own: the connection could not be made, or was lost.
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not refuses(error)


def refuses(error: BaseException) -> bool:
    """Whether the server refuses this process, which only a person can change. If several servers were tried, all must have refused."""
    if not isinstance(error, psycopg.OperationalError):
        return False
    if _UNPOOLED.search(str(error)):
        return True
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_REFUSED_STATES)
    each = str(error).split("\n- host: ")
    return all(_REFUSED.search(said) for said in each[1:] or each)


def shut_for_now(error: psycopg.Error) -> psycopg.Error:
    """Returns the error as a passing one, if it says that the database is missing or admits nobody. For a process that was admitted before, somebody is restoring it."""
    return sql.CannotConnectNow(_text(error)) if refuses(error) and _SHUT.search(str(error)) else error


def too_many(error: BaseException | None) -> bool:
    """Whether the server is up but has no free connection. While a connection is being made, libpq gives no state, only the server's message."""
    if isinstance(error, sql.TooManyConnections):
        return True
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None and any(said in str(error) for said in _FULL)


def is_leaving(error: BaseException) -> bool:
    """Whether the server is unusable now, so that its other connections are closed too."""
    return passing(error) and (not isinstance(error, psycopg.Error) or error.sqlstate is None or error.sqlstate.startswith(_LEFT))


def translate(error: BaseException, url: str) -> HoldfastError:
    """Maps an error of the database to one of Holdfast's, which says who must act; the only place where that is decided."""
    if isinstance(error, HoldfastError):
        return error
    text = _text(error)
    if isinstance(error, sql.UniqueViolation):
        return _translate_violation(error)
    if refuses(error):
        return unreachable(error, url)
    if isinstance(error, sql.ReadOnlySqlTransaction) and error.diag.message_primary is not None:  # ``_same_server`` raises it without a message for a standby, which may be promoted
        way_out = "set default_transaction_read_only = off for the database, the role and the server, or name the primary server in the URL"
        return StoreReadOnly(f"{url} may not be written: {text}", hint=way_out)
    if isinstance(error, UNPREPARED):
        return StoreError(f"{url}: what a session has prepared is gone in the next transaction: {text}", hint=POOLER_HINT)
    if isinstance(error, sql.ReadOnlySqlTransaction):
        return StoreUnavailable(f"{url} is a standby, which takes no writes", hint="name the primary server in the URL, or promote this one; a worker retries automatically")
    if isinstance(error, sql.QueryCanceled) and "statement timeout" in text:
        way_out = "statements of this role are ended too early: set statement_timeout = 0, or a longer one, for the role and the database, and in options= of the URL"
        return StoreUnavailable(f"{url}: {text}", hint=way_out)
    if passing(error):
        return StoreUnavailable(f"{url}: {text}", hint="a worker retries automatically; otherwise check the database")
    if isinstance(error, sql.DiskFull):
        return StoreFull(f"{url}: the disk is full; nothing of this commit was written", hint="free some space; a running worker then continues automatically, otherwise resume the run: everything committed before is intact")
    if isinstance(error, sql.UndefinedTable) and "holdfast.meta" in text:
        return StoreUnavailable(f"{url} has lost the tables of the store: {error.diag.message_primary or text}", hint="put them back from a backup; a worker retries automatically")
    if isinstance(error, sql.UndefinedTable | sql.UndefinedColumn | sql.UndefinedFunction):
        way_out = "a newer release has changed the schema: end this process and start that release; if none has, restore a backup"
        return UnsupportedFormat(f"{url} has another schema than this process opened: {text}", hint=way_out)
    if isinstance(error, sql.UndefinedObject | sql.DuplicateTable | sql.DuplicateObject | sql.DuplicateColumn):
        return StoreCorrupt(f"{url}: the schema is not the one that its table meta tells of: {text}", hint="restore a backup (with the database's own tools)")
    if isinstance(error, sql.InvalidColumnReference):
        return StoreCorrupt(f"{url}: an index is missing: {text}", hint="holdfast check names it; nothing of this was written")
    if isinstance(error, sql.DataCorrupted | sql.IndexCorrupted):
        return StoreCorrupt(f"{url} is damaged: {text}", hint="stop, then restore a backup")
    if isinstance(error, sql.InsufficientPrivilege):
        return StoreReadOnly(f"{url} may not be written: {text}", hint="the role needs CREATE on the database, or to own the schema holdfast")
    return StoreError(f"{url}: {type(error).__name__}: {text}")


def unreachable(error: BaseException, url: str) -> StoreRefused:
    """Returns why a connection cannot be made, permanently as far as can be known."""
    said = _text(error)
    way_out = next((hint for words, hint in _WAYS_IN if re.search(words, said)), "check the URL, the server and its access rules (pg_hba.conf)")
    return StoreRefused(f"{url} cannot be opened: {said}", hint=way_out)


_WAYS_IN = (
    (r"statement pooling mode", "set pool_mode = transaction in the pooler, or name the server itself in the URL"),
    (r"unsupported startup parameter", "set ignore_startup_parameters in the pooler, or give the setting to the role (ALTER ROLE … SET) and leave it out of the URL"),
    (r'database "[^"]*" does not exist|no such database', "create the database (CREATE DATABASE), or correct its name in the URL"),
    (r'(?:role|user) "[^"]*" does not exist|no such user|not permitted to log in', "create the role with LOGIN (CREATE ROLE), or correct the user in the URL"),
    (r"password|authentication failed", "correct the user and the password: in the URL, in $PGPASSWORD or in ~/.pgpass"),
    (r"permission denied for database", "GRANT CONNECT ON DATABASE to the role"),
    (r"configuration parameter|for parameter", "correct options= in the URL"),
    (r"invalid \w+ value|invalid port number|invalid integer value", "correct this option in the URL, or the environment variable that gives it"),
    (r"SSL|certificate", "correct the sslmode and the certificates in the URL"),
)


def _text(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _translate_violation(error: psycopg.Error) -> HoldfastError:
    """Maps the violation of a unique index, by the index, whatever its partition is called."""
    where = f"{error.diag.table_name or ''} {error.diag.constraint_name or ''}"
    if "effect" in where:
        return EffectInProgress("another attempt under this key is not settled", hint="wait for it")
    if "session_key" in where or "lane_holder" in where:
        return Conflict("the lane is held by another run", hint="submit it as pending", code="lane_busy")
    if "worker" in where:
        return Conflict("the worker is registered already", hint="an owner id is unique per process start", code="owner_taken")
    if "run" in where or "log" in where:
        return VersionConflict("the run exists already, or its log has new events since it was read", hint="load it")
    return StoreError(f"a constraint was violated: {_text(error)}", code="constraint")


# -- connections ------------------------------------------------------------------------------------


async def connect(
    place: Place, *, prepared: bool = True, conninfo: str | None = None, clock: Callable[[], float] = time.monotonic, asked: Asked | None = None
) -> Connection:
    """Opens a connection on which each statement is a transaction of its own until one is begun. ``clock`` is the one for the age of its plans,
    ``asked`` the statements asked over other connections.

    Raises:
        psycopg.Error: the connection cannot be made.
        UsageError: the database or the connection does not use UTF-8.
    """
    db = await Connection.connect(
        conninfo or place.conninfo,
        autocommit=True,
        row_factory=tuple_row,
        connect_timeout=5,
        keepalives_idle=5,
        keepalives_interval=2,
        keepalives_count=3,
        tcp_user_timeout=10_000,
        application_name="holdfast",
    )
    if (refusal := _refuse_encoding(db, place.url)) is not None:
        await db.close()
        raise refusal
    db.prepares = prepared and place.pooler != "transaction"
    db.plans = Plans(clock)
    db.asked = asked or db.asked
    db.prepare_threshold = None
    taught(db)
    return db


def _refuse_encoding(db: Connection, url: str) -> UsageError | None:
    """Returns why a connection that encodes text in anything but UTF-8 is unusable; None if it uses UTF-8."""
    server, client = (db.info.parameter_status(name) or "UTF8" for name in ("server_encoding", "client_encoding"))
    if server != "UTF8":
        why, hint = f"the database is encoded as {server}", "create one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
    elif client != "UTF8":
        why, hint = f"the connection is encoded as {client}", "unset PGCLIENTENCODING, or add client_encoding=utf8 to the URL"
    else:
        return None
    return UsageError(f"{url}: {why}, which cannot hold every text", hint=hint, code="encoding_not_utf8")


class _Room:
    """Counts how many more connections may be used. The caller that has waited longest is next."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter_now(self) -> bool:
        """Takes room for one more connection; returns whether there was any."""
        if self._free:
            self._free -= 1
            return True
        return False

    async def enter(self) -> None:
        if self.enter_now():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        while self._waiting:
            if not (turn := self._waiting.popleft()).done():
                turn.set_result(None)
                return
        self._free += 1


class _Question:
    """A question sent over a connection that was taken from the pool, until it is answered. ``over`` is called when the connection has been given
    back. After ``until``, by the clock of its event loop, the server is left."""

    def __init__(self, pool: Connections, held: Held, seconds: float, over: Callable[[list[Rows] | BaseException], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.until = self.loop.time() + seconds
        self.ended: asyncio.Future[None] | None = None  # set when a close waits for it
        self._pool = pool
        self._held = held
        self._over = over
        self._exchange: Exchange | None = None

    def send(self, asked: Sequence[Statement]) -> None:
        try:
            self._exchange = self._held[1].begin(asked, self._read)
        except Exception as e:
            self._pool.end_in_vain(self._held, e, self._over)
        else:
            self._pool.wait_for(self)

    def leave(self) -> None:
        """Ends the question because its time is over, or because the store is closed."""
        assert self._exchange is not None, "it was sent"
        self._exchange.leave()
        self._end(TimeoutError("no answer"))

    def _read(self) -> None:
        assert self._exchange is not None, "it was sent"
        try:
            found = [self._held[1].rows(answer) for answer in self._exchange.answers()]
        except Exception as e:
            self._end(e)
        else:
            self._end(found)

    def _end(self, found: list[Rows] | Exception) -> None:
        self._pool.wait_no_more(self)
        if isinstance(found, Exception):
            self._pool.end_in_vain(self._held, found, self._over)
        else:
            self._pool.give_back(self._held)
            self._over(found)
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)


class Connections:
    """A small pool of connections, opened when they are first needed; the one used last is handed out first. ``generation`` is increased when the
    server is left: a connection of an earlier one is closed when it is given back. ``check`` is called with each new connection. On a ``crowded``
    server only one is used at a time and no other kept, so that every process gets one. ``clock`` is that of their plans."""

    def __init__(
        self, place: Place, *, check: Callable[[Connection], Awaitable[None]], most: int = MOST, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._place = place
        self._clock = clock
        self._check = check
        self._idle: list[Held] = []
        self._room = _Room(most)
        self._prepared = True
        self._asked_before = Asked(OFTEN)
        self._generation = 0
        self._closed = self._was_let_in = False
        self._alone = asyncio.Lock()
        self._asked: set[asyncio.Future[Any]] = set()
        self._questions: set[_Question] = set()
        self._late: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None  # one timer for all questions, because each is usually answered long before its time is over
        self._ahead = Ahead(clock)
        self._quiet: asyncio.TimerHandle | None = None
        self.crowded = False
        self.pooled = False  # whether a transaction pooler, which the URL does not mention, seems to be in front of the server

    def expect(self, asked: Sequence[Statement], uses: int) -> None:
        """Notes that these reads will probably be asked again, so that the server plans them on each connection while nobody waits. ``uses``: how
        often the last of them has to be used until the server keeps its plan."""
        self._ahead.expect(asked, uses)
        if self._quiet is None:
            self._quiet = asyncio.get_running_loop().call_later(AT_REST, self._plan_ahead)

    def _plan_ahead(self) -> None:
        """Has plans made over a connection that lacks some, once no question is open; the other connections follow later."""
        self._quiet = None
        if self._closed or self.crowded or not self._ahead.expects():
            return
        lacking: list[Statement] = []
        if not self._questions:
            for held in self._idle:
                generation, db = held
                if generation == self._generation and db.pgconn.status != ConnStatus.BAD and (lacking := self._ahead.list_lacking(db)):
                    break
            if lacking and self._room.enter_now():
                self._idle.remove(held)
                self.send(held, lacking, ANSWER_SECONDS, lambda found: None)
        if lacking or self._questions or not self._idle:
            self._quiet = asyncio.get_running_loop().call_later(AT_REST, self._plan_ahead)

    def at_once(self, asked: Sequence[Statement]) -> asyncio.Future[list[Rows]] | None:
        """Sends these statements in this turn of the event loop, and returns a future of their rows; None if no connection is idle. A task, its turns
        and its timers would be most of the cost of a short read. The caller may be cancelled: the connection is given back when the answer is there."""
        if (held := self.take()) is None:
            return None
        answered: asyncio.Future[list[Rows]] = asyncio.get_running_loop().create_future()

        def over(found: list[Rows] | BaseException) -> None:
            if answered.done():
                return
            if isinstance(found, BaseException):
                answered.add_done_callback(note_error)
                answered.set_exception(found)
            else:
                answered.set_result(found)

        self.send(held, asked, ANSWER_SECONDS, over)
        return answered

    def send(self, held: Held, asked: Sequence[Statement], seconds: float, over: Callable[[list[Rows] | BaseException], None]) -> None:
        """Sends statements over a connection that was ``taken``, and calls ``over`` with their rows, or with the error of the database or the socket,
        after giving the connection back."""
        _Question(self, held, seconds, over).send(asked)

    def wait_for(self, question: _Question) -> None:
        self._questions.add(question)
        if self._late is None or self._late[0] is not question.loop or self._late[1].when() > question.until:
            self._look_for_late_at(question.loop, question.until)

    def wait_no_more(self, question: _Question) -> None:
        self._questions.discard(question)

    def _look_for_late_at(self, loop: asyncio.AbstractEventLoop, at: float) -> None:
        if self._late is not None:
            self._late[1].cancel()
        self._late = loop, loop.call_at(at, self._look_for_late, loop)

    def _look_for_late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._late, now = None, loop.time()
        for question in [q for q in self._questions if q.until <= now]:
            question.leave()
        if self._questions:
            self._look_for_late_at(loop, min([q.until for q in self._questions]))

    def end_in_vain(self, held: Held, error: Exception, over: Callable[[list[Rows] | BaseException], None]) -> None:
        self._later(self._end_in_vain(held, error, over))

    async def _end_in_vain(self, held: Held, error: Exception, over: Callable[[list[Rows] | BaseException], None]) -> None:
        try:
            await self.give_back_broken(held, error)
        finally:
            over(error)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts work as a task for which a close waits."""
        task = asyncio.ensure_future(work)
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)

    async def answer(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        """Returns what ``ask`` reads over one connection. A cancelled caller returns at once, and the answer is awaited without it: breaking off a
        question would cost its connection, and the server would need a new process for the next one."""
        task = asyncio.ensure_future(self._answer(ask))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        task.add_done_callback(note_error)  # the server may be lost meanwhile; ``hold`` handles what that means for the connection
        return await asyncio.shield(task)

    async def _answer(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        async with asyncio.timeout(ANSWER_SECONDS), self.hold() as db:
            return await ask(db)

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[Connection]:
        """Gives an idle connection for the time of a ``with`` block. If the block raises an error, the connection is rolled back or closed."""
        await self._room.enter()
        try:
            async with self._alone if self.crowded else contextlib.nullcontext():
                held = await self._one()
                try:
                    yield held[1]
                except BaseException as error:
                    await self._after(error, *held)
                    raise
                await self._keep(*held)
        finally:
            self._room.leave()

    def take(self) -> Held | None:
        """Takes an idle connection without waiting; None if there is none. The caller must give it back."""
        if not self._idle or self.crowded or not self._room.enter_now():
            return None
        generation, db = self._idle.pop()
        if generation != self._generation or db.pgconn.status == ConnStatus.BAD:
            self._idle.append((generation, db))
            self._room.leave()
            return None
        return generation, db

    def give_back(self, held: Held) -> None:
        """Gives back an idle connection that was ``taken``."""
        generation, db = held
        if self._closed or generation != self._generation or db.pgconn.status == ConnStatus.BAD or self.crowded:
            self._later(self._keep(*held))
        else:
            self._idle.append(held)
        self._room.leave()

    async def give_back_broken(self, held: Held, error: BaseException) -> None:
        """Gives back a connection that met this error."""
        try:
            await self._after(error, *held)
        finally:
            self._room.leave()

    async def _keep(self, generation: int, db: Connection) -> None:
        if self._closed or generation != self._generation or db.closed:
            await db.close()
        else:
            spare, self._idle = (self._idle, []) if self.crowded else ([], self._idle)
            self._idle.append((generation, db))
            for _, other in spare:
                await other.close()

    async def _one(self) -> Held:
        while self._idle:
            generation, db = self._idle.pop()
            if not db.closed and not db.broken:
                return generation, db
        generation = self._generation
        try:
            db = await connect(self._place, prepared=self._prepared, clock=self._clock, asked=self._asked_before)
        except psycopg.Error as e:
            self.crowded = self.crowded or too_many(e)
            if self._was_let_in:
                raise shut_for_now(e) from e
            raise
        try:
            await self._check(db)
        except BaseException as e:
            await db.close()
            if isinstance(e, UNPREPARED):
                await self.find_pooler()
            raise
        self._was_let_in = True
        return generation, db

    async def find_pooler(self) -> None:
        """Stops preparing statements, because a pooler gives each transaction to another session."""
        if not self.pooled:
            self.pooled, self._prepared = True, False
            log.warning("%s: a pooler stands before the server, and the URL does not say which; %s", self._place.url, POOLER_HINT)
            await self.leave()

    async def _after(self, error: BaseException, generation: int, db: Connection) -> None:
        """Handles a connection after an error: it is kept if it is idle again after a rollback."""
        if isinstance(error, UNPREPARED):
            await self.find_pooler()
        elif is_leaving(error) or not isinstance(error, psycopg.Error | HoldfastError):
            await db.close()
            if is_leaving(error):
                await self.leave()
            return
        try:
            await db.rollback()
        except (psycopg.Error, OSError):
            await db.close()
            return
        if generation == self._generation and not self._closed and not db.closed:
            self._idle.append((generation, db))
        else:
            await db.close()

    async def leave(self) -> None:
        """Closes idle connections; those in use are closed when they are given back."""
        self._generation += 1
        idle, self._idle = self._idle, []
        for _, db in idle:
            await db.close()

    async def close(self) -> None:
        """Closes every connection. Waits a moment for the answers to questions whose caller has gone."""
        self._closed = True
        await self.leave()
        loop = asyncio.get_running_loop()
        here = [task for task in self._asked if task.get_loop() is loop]
        for question in self._questions:
            if question.loop is loop:
                question.ended = loop.create_future()
                here.append(question.ended)
        if here:
            _, late = await asyncio.wait(here, timeout=LAST_ANSWER)
            for task in late:
                task.cancel()
            for question in [q for q in self._questions if q.loop is loop]:
                question.leave()
            while late := {task for task in self._asked if task.get_loop() is loop}:
                await asyncio.wait(late)
        for timer in (self._quiet, None if self._late is None else self._late[1]):
            if timer is not None:
                timer.cancel()
        self._quiet = self._late = None


async def outlasting(work: Callable[[int], Awaitable[T]], url: str, patience: float, *, wrote: bool = True) -> T:
    """Does something until it succeeds or fails for good: after a temporary error the same thing is sent again, with back-off and jitter.

    ``work`` is called with the number of times it has been sent before, so that a writer can tell its own earlier write from another's.

    Raises:
        OutcomeUnknown: temporary errors lasted too long, and something may have been written.
        StoreUnavailable: temporary errors lasted too long, and nothing was written.
        HoldfastError: the mapped error, if it is not temporary.
    """
    until, wait, sent, broken = time.monotonic() + patience, FIRST_WAIT, 0, False
    while True:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await work(sent)
        except UNPREPARED as e:
            sent += 1
            if sent > 3:
                raise translate(e, url) from e
        except (psycopg.Error, OSError) as e:
            if not passing(e):
                raise translate(e, url) from e
            sent, broken = sent + 1, broken or (is_leaving(e) and not too_many(e))
            wait = max(wait, FULL_WAIT) if too_many(e) else wait
            if time.monotonic() + wait > until:
                if wrote and broken:
                    raise OutcomeUnknown(f"{url}: {_text(e)}", hint="load it again; only the stored state is valid") from e
                raise translate(e, url) from e
            await asyncio.sleep(wait * (0.5 + random.random()))
            wait = min(wait * 2, LONGEST_WAIT)


async def many(db: Connection, asked: Sequence[Statement]) -> list[Rows]:
    """Asks several statements in one round trip; returns the rows of each."""
    return await db.ask(*asked)


async def rows_of(db: Connection, text: str, values: Any = None) -> list[tuple[Any, ...]]:
    """Returns the rows of one statement."""
    return (await db.ask((text, values)))[0]


async def first_of(db: Connection, text: str, values: Any = None) -> tuple[Any, ...] | None:
    found = await rows_of(db, text, values)
    return found[0] if found else None


async def one_of(db: Connection, text: str, values: Any = None) -> tuple[Any, ...]:
    found = await first_of(db, text, values)
    assert found is not None, "the statement gives a row whatever there is"
    return found


__all__ = [
    "LAST_ANSWER", "PATIENCE", "POOLER_HINT", "UNPREPARED", "Connection", "Connections", "Place", "connect", "first_of", "is_leaving", "many", "one_of", "outlasting", "passing",
    "place", "refuses", "rows_of", "schema_of", "shut_for_now", "too_many", "translate", "unreachable",
]
