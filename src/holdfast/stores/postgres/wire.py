"""Statements over one connection, at the level of libpq: sent together, answered together.

psycopg makes a cursor for each statement, describes each column of its answer and watches the socket with a timer; for the client that is more work
than most of the statements here. So the one way in which this store asks is implemented here. Values, rows and errors are psycopg's own: psycopg
dumps, loads and names them. Everything else (connecting, rolling back, closing, statements of applications) is done by psycopg's connections. The
statements here are the store's own, whose placeholders match their values.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors as sql
from psycopg.abc import PQGen
from psycopg.abc import Transformer as Adapts
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import tuple_row

from holdfast.machine import call_nobody

Statement = tuple[str, Any]
Rows = list[tuple[Any, ...]]
CANCEL_SECONDS = 1.0
MOST_PREPARED = 500  # for one connection; this store has fewer statements
FIRST_AGE, GREATEST_AGE = 1.0, 60.0  # seconds for which a connection keeps its plans
_PLACE = re.compile(r"%(?:(%)|(?:\((\w+)\))?([sb]))")
_FORMATS = {"s": PyFormat.AUTO, "b": PyFormat.BINARY}
_WENT_WELL = frozenset((ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK))
_Key = tuple[bytes, tuple[int, ...]]
T = TypeVar("T")


class _Sent:
    """A statement on its way, or the preparation of the one that follows."""

    __slots__ = ("prepares", "send")

    def __init__(self, send: Callable[[], None], prepares: _Key | None = None) -> None:
        self.send = send
        self.prepares = prepares


class Asked:
    """Decides which statements are prepared at their first use over a connection: those asked ``often``, and those that were asked before over
    another connection that shares this object. To prepare a statement costs the server as much as to parse and plan it for one use."""

    def __init__(self, often: Iterable[str] = ()) -> None:
        self._often = frozenset(often)
        self._keys: set[_Key] = set()

    def again(self, text: str, key: _Key) -> bool:
        """Returns whether this statement will probably be asked again, and notes that it was asked."""
        if key in self._keys:
            return True
        self._keys.add(key)
        return text in self._often


class Plans:
    """How long a connection keeps the plans of its prepared statements. The server makes a plan once, for the table sizes of that time, and keeps it
    until it has new statistics. On a new database it plans for nearly empty tables, and then reads all runs of a session to find one. So plans are
    discarded, soon at first and later rarely; the next use of each statement makes its plan anew, for the sizes of that time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._age = FIRST_AGE
        self._until = clock() + FIRST_AGE
        self._uses: dict[str, int] = {}
        self._earlier: dict[str, int] = {}  # uses before the plans were discarded last

    def old(self) -> bool:
        return self._clock() >= self._until

    def let_go(self) -> None:
        """Notes that the plans were discarded, and new ones are made from now on."""
        self._age = min(2 * self._age, GREATEST_AGE)
        self._until = self._clock() + self._age
        for text, uses in self._uses.items():
            self._earlier[text] = self._earlier.get(text, 0) + uses
        self._uses = {}

    def use(self, text: str) -> None:
        """Notes that a statement is asked, so that its plan exists from now on."""
        self._uses[text] = self._uses.get(text, 0) + 1

    def count_lacking(self, text: str, uses: int) -> int:
        """Returns how many more times a statement has to be asked until it has a lasting plan: at least once with these plans, and ``uses`` times in
        all."""
        now = 0 if self.old() else self._uses.get(text, 0)
        return max(uses - self._uses.get(text, 0) - self._earlier.get(text, 0), 0 if now else 1)


class Connection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A psycopg connection that can be asked in this way. ``prepares`` must be False behind a transaction pooler, where the next transaction is in
    another session. Statements that psycopg itself sends are never prepared: it names them by number, and the session of another client has others of
    these numbers.

    The event loop watches its socket from the first exchange on, not for each anew, until psycopg itself reads from it, or it is closed or lost.
    """

    def __init__(self, pgconn: PGconn, row_factory: Any = tuple_row) -> None:
        super().__init__(pgconn, row_factory)
        self.prepares = True
        self.plans = Plans()
        self.asked = Asked()
        self._statements: dict[_Key, bytes] = {}  # the statements this connection has prepared, with their names
        self._adapts: Adapts | None = None
        self._exchange: Exchange | None = None
        self._watched: tuple[asyncio.AbstractEventLoop, int] | None = None

    async def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Runs psycopg's own requests, for which psycopg watches the socket itself."""
        self.watch_no_more()
        return await super().wait(gen, *args, **kwargs)

    async def close(self) -> None:
        self.watch_no_more()
        self._adapts = None  # it refers back to this connection
        await super().close()

    def watch(self, exchange: Exchange) -> None:
        """Passes on what arrives to an exchange."""
        self._exchange = exchange
        if self._watched is None or self._watched[0] is not exchange.loop:
            self.watch_no_more()
            self._exchange, self._watched = exchange, (exchange.loop, self.pgconn.socket)
            exchange.loop.add_reader(self._watched[1], self._ready)

    def watch_no_more(self) -> None:
        """Stops watching the socket. Must be called before the socket is closed, and at once if libpq may have closed it, because its number may soon
        be that of another."""
        watched, self._watched, self._exchange = self._watched, None, None
        if watched is not None:
            watched[0].remove_reader(watched[1])

    def end(self) -> None:
        """Ends the exchange. Another may follow if the connection is still there."""
        self._exchange = None
        if self.pgconn.status != ConnStatus.OK:
            self.watch_no_more()

    def _ready(self) -> None:
        if self._exchange is not None:
            self._exchange.ready()
            return
        with contextlib.suppress(psycopg.Error):  # the next user of this connection sees that it is lost
            self.pgconn.consume_input()
        self.end()

    async def ask(self, *asked: Statement) -> list[Rows]:
        """Returns the rows of each of these statements, in one round trip. They are one transaction, unless the first of them begins one.

        Raises:
            psycopg.Error: of the first that failed, after which none was executed; or of the connection.
        """
        return [self.rows(answer) for answer in await self._ask(asked)]

    async def answer(self, asked: Statement) -> PGresult:
        """Returns what the server answers to one statement.

        Raises:
            psycopg.Error: as ``ask``.
        """
        (answer,) = await self._ask((asked,))
        return answer

    def begin(self, asked: Sequence[Statement], over: Callable[[], None]) -> Exchange:
        """Sends statements at once, in this turn of the event loop; ``over`` is called when all are answered, or the connection is lost.

        Raises:
            psycopg.Error: nothing can be sent.
        """
        anew = self.prepares and self.plans.old() and self.pgconn.transaction_status == TransactionStatus.IDLE
        sent: list[_Sent] = []
        if anew:
            self.plans.let_go()
        try:
            for text, values in asked:
                self._plan(text, values, sent)
        except BaseException:  # nothing was sent, so nothing will be prepared
            for each in sent:
                if each.prepares is not None:
                    self.forget(each.prepares)
            raise
        return Exchange(self, sent, over, anew=anew)

    async def hear(self, told: Callable[[str], None], seconds: float) -> None:
        """Calls ``told`` with the payload of each notification, for so many seconds.

        Raises:
            psycopg.Error: the connection was lost.
        """
        pg, loop = self.pgconn, asyncio.get_running_loop()
        self.watch_no_more()
        lost: asyncio.Future[None] = loop.create_future()

        def ready() -> None:
            try:
                pg.consume_input()
                while (notice := pg.notifies()) is not None:
                    told(notice.extra.decode("utf-8", "replace"))
            except psycopg.Error as e:
                loop.remove_reader(socket)
                if not lost.done():
                    lost.set_exception(e)

        socket = pg.socket
        loop.add_reader(socket, ready)
        ready()  # for notifications that came with the last answer
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await lost
        finally:
            loop.remove_reader(socket)

    async def _ask(self, asked: Sequence[Statement]) -> list[PGresult]:
        """Sends statements and returns their answers. If it is cancelled before the answers, the connection is unusable."""
        if not asked:
            return []
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        exchange = self.begin(asked, lambda: None if answered.done() else answered.set_result(None))
        try:
            await answered
        except asyncio.CancelledError:
            exchange.leave()
            if self.pgconn.transaction_status == TransactionStatus.ACTIVE:
                with contextlib.suppress(psycopg.Error, OSError):  # a lost server has nothing to cancel
                    await self.cancel_safe(timeout=CANCEL_SECONDS)
            raise
        return exchange.answers()

    def rows(self, answer: PGresult) -> Rows:
        """Returns the rows of an answer."""
        if not answer.nfields:
            return []
        adapter = self._adapts or self._adapter()
        adapter.set_pgresult(answer)
        return adapter.load_rows(0, answer.ntuples, tuple)

    def _adapter(self) -> Adapts:
        """Returns the adapter. It is created when it is first needed: by then the connection knows its types."""
        if self._adapts is None:
            self._adapts = Transformer.from_context(self)
        return self._adapts

    def forget(self, key: _Key) -> None:
        """Forgets a statement that could not be prepared."""
        self._statements.pop(key, None)

    def _plan(self, text: str, values: Any, sent: list[_Sent]) -> None:
        """Decides how a statement is sent, and adds that to ``sent``. A statement that this connection has prepared is sent as such. It is prepared
        at its second use, or at its first if it will probably be asked again: most statements that are asked once are not."""
        given: Sequence[Any] | None = None
        types: tuple[int, ...] = ()
        kinds: Sequence[Any] | None = None
        if values is None:
            query = text.encode()  # without values a percent sign stays one
        else:
            query, formats, names = _parse(text)
            adapter = self._adapts or self._adapter()
            given = values if names is None else list(map(values.__getitem__, names))
            if len(given) != len(formats):  # the dumper does not count the values, and would read beyond its memory
                raise sql.ProgrammingError(f"the statement has {len(formats)} places, and {len(given)} values were given for them")
            given = adapter.dump_sequence(given, formats)
            types, kinds = adapter.types or (), adapter.formats
        key = (query, types)
        known = self._statements
        name = known.get(key)
        if name is None and self.prepares and len(known) < MOST_PREPARED and self.asked.again(text, key):
            name = known[key] = _name(key)
            sent.append(_Sent(functools.partial(self.pgconn.send_prepare, name, query, types), key))
        if name is None:
            sent.append(_Sent(functools.partial(self.pgconn.send_query_params, query, given, types, kinds)))
        else:
            self.plans.use(text)
            sent.append(_Sent(functools.partial(self.pgconn.send_query_prepared, name, given, kinds)))


class Exchange:
    """What was sent over a connection, until all of it is answered. Nothing else may be sent over the connection meanwhile. ``anew``: the connection
    first discards its plans, in a transaction of its own that costs no round trip; the server's answer to that is skipped."""

    def __init__(self, db: Connection, sent: Sequence[_Sent], over: Callable[[], None], *, anew: bool = False) -> None:
        self._db = db
        self._pg = pg = db.pgconn
        self.loop = asyncio.get_running_loop()
        self._sent = sent
        self._over = over
        self._found: list[PGresult] = []
        self._error: psycopg.Error | None = None
        self._writing, self._socket = False, pg.socket
        self._piped = anew or len(sent) > 1
        self._before = anew
        try:
            if self._piped:
                pg.enter_pipeline_mode()
            if anew:
                pg.send_query_params(b"DISCARD PLANS", None)
                pg.pipeline_sync()
            for each in sent:
                each.send()
            if self._piped:
                pg.pipeline_sync()
            self._writing = pg.flush() != 0
            db.watch(self)
        except BaseException:
            db.watch_no_more()
            raise
        if self._writing:
            self.loop.add_writer(self._socket, self.ready)

    def answers(self) -> list[PGresult]:
        """Returns the answers to the statements. One more may follow them: an error at the end of their transaction, after all of them succeeded.

        Raises:
            psycopg.Error: of the first that failed, of the end of the transaction, or of the connection.
        """
        if self._error is not None:
            raise self._error
        if len(self._found) < len(self._sent):
            raise sql.OperationalError("the connection was lost before all was answered")
        found: list[PGresult] = []
        failed = next((answer for answer in self._found if answer.status not in _WENT_WELL), None)
        for each, answer in zip(self._sent, self._found, strict=False):
            if each.prepares is None:
                found.append(answer)
            elif answer.status not in _WENT_WELL:
                self._db.forget(each.prepares)
        if failed is not None:
            raise sql.error_from_result(failed, self._db.info.encoding)
        return found

    def leave(self) -> None:
        """Stops waiting for answers and drops the callback, which refers back to this exchange. Unless all is answered, the connection is unusable
        after that."""
        self._over = call_nobody
        if self._writing:
            self._writing = False
            self.loop.remove_writer(self._socket)
        self._db.end()

    def ready(self) -> None:
        """Called when there is something to read, or the socket can take more of what is still to be sent."""
        pg = self._pg
        try:
            if self._writing and pg.flush() == 0:
                self._writing = False
                self.loop.remove_writer(self._socket)
            pg.consume_input()  # also while there is more to write: a server that waits for its answers to be read reads nothing itself
            while not pg.is_busy():
                answer = pg.get_result()
                if answer is None:
                    if not self._piped:
                        break
                elif answer.status == ExecStatus.PIPELINE_SYNC:
                    if not self._before:
                        pg.exit_pipeline_mode()
                        break
                    self._before = False
                elif not self._before:
                    self._found.append(answer)
            else:
                return
        except psycopg.Error as e:
            self._error = e
        over = self._over
        self.leave()
        over()


@functools.lru_cache(1024)
def _name(key: _Key) -> bytes:
    """Returns the name of a prepared statement, which is a hash of its text and types. Behind an undetected pooler the session of another client may
    answer, and what that client has prepared under a name must never be executed for another statement."""
    query, types = key
    return b"holdfast_" + hashlib.blake2b(b"%s %r" % (query, types), digest_size=12).hexdigest().encode()


@functools.lru_cache(1024)
def _parse(text: str) -> tuple[bytes, list[PyFormat], list[str] | None]:
    """Returns a statement with the server's placeholders, the formats of its values, and their names if they have any."""
    formats: list[PyFormat] = []
    names: list[str] = []

    def place(found: re.Match[str]) -> str:
        percent, name, format = found.groups()
        if percent:
            return "%"
        if name is None:
            formats.append(_FORMATS[format])
        elif name not in names:
            names.append(name)
            formats.append(_FORMATS[format])
        return f"${len(formats) if name is None else names.index(name) + 1}"

    return _PLACE.sub(place, text).encode(), formats, names or None


__all__ = ["Asked", "Connection", "Exchange", "Plans", "Rows", "Statement"]
