"""Statements over one connection to PostgreSQL, at the level of libpq (stores/postgres/wire.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import psycopg
import pytest
from psycopg import errors as sql
from psycopg.pq import TransactionStatus
from tests.postgres.proxy import Proxy
from tests.postgres.server import shared

from holdfast.stores.postgres.arrays import Blobs, Columns, Names, Numbers, Texts
from holdfast.stores.postgres.connection import connect, place
from holdfast.stores.postgres.wire import GREATEST_AGE, MOST_PREPARED, Connection, Statement

PLANS = "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement = 'SELECT $1::int'"
PREPARED = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'holdfast%'"


WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE t SET n = 2%'"


async def until(so: Callable[[], bool]) -> None:
    for _ in iter(so, True):
        await asyncio.sleep(0)


@pytest.fixture
async def db() -> AsyncIterator[Connection]:
    made = await connect(place(shared().fresh("wire")))
    yield made
    await made.close()


async def test_values_and_rows_are_those_of_psycopg(db: Connection) -> None:
    """Whatever goes there comes back, by place and by name, once and prepared."""
    values = {
        "text": "ä%s", "number": 2**40, "bytes": b"\0%b", "none": None, "yes": True, "texts": Texts(["a", None]), "numbers": Numbers([1, None]), "blobs": Blobs([b"\1"]),
        "names": Names(("ä", "b")), "nobody": Names(),
    }
    text = (
        "SELECT %(text)s::text, %(number)s::bigint, %(bytes)s::bytea, %(none)s::text, %(yes)s::boolean, %(texts)s::text[], %(numbers)s::bigint[], "
        "%(blobs)s::bytea[], %(names)s::text[], %(nobody)s::text[], %(text)s::text, '100%%'"
    )
    expected = ("ä%s", 2**40, b"\0%b", None, True, ["a", None], [1, None], [b"\1"], ["ä", "b"], [], "ä%s", "100%")
    cursor = await db.execute(text, values)
    assert await cursor.fetchall() == [expected]
    for _ in range(3):
        assert await db.ask((text, values)) == [[expected]]
    assert await db.ask(("SELECT %s::int, %b::bytea", (7, b"\2")), ("SELECT '%s'", None)) == [[(7, b"\2")], [("%s",)]]
    assert await db.ask() == []


async def test_values_are_counted_before_they_are_handed_on(db: Connection) -> None:
    """The dumper would read behind the end of its memory; and what was to be prepared beside it is not taken for prepared."""
    beside = ("SELECT 'beside'", None)
    await db.ask(beside)
    for values in ((), (1, 2)):
        with pytest.raises(sql.ProgrammingError, match="1 places"):
            await db.ask(beside, ("SELECT %s::int", values))
    assert await db.ask(beside, ("SELECT %s::int", (1,))) == [[("beside",)], [(1,)]]


async def test_a_statement_is_prepared_when_it_is_sent_again(db: Connection) -> None:
    for n in range(4):
        assert (await db.ask(("SELECT %s::int", (n,))))[0] == [(n,)]
        assert (await db.ask((PREPARED, None)))[0][0][0] == (2 if n else 0)
    twice = ("SELECT %s::text", ("a",))
    assert await db.ask(twice, twice, twice) == [[("a",)]] * 3, "the second of three prepares it, and the third uses it"
    db.prepares = False
    again = ("SELECT %s::bigint", (1,))
    for _ in range(3):
        await db.ask(again)
    assert (await db.ask((PREPARED, None)))[0] == [(3,)], "behind a pooler none is"


async def test_a_prepared_statement_is_named_by_what_it_says(db: Connection) -> None:
    """Behind a pooler that nobody told of, the session of another client answers. A name that this one gave to another statement would execute that one."""
    other = await connect(place(shared().fresh("wire_other")))
    try:
        named: list[dict[str, str]] = []
        for one, word in ((db, "mine"), (other, "theirs")):
            for _ in range(2):
                await one.ask((f"SELECT '{word}', %s::int", (1,)), ("SELECT %s::int", (2,)))
            found = await one.ask(("SELECT statement, name FROM pg_prepared_statements WHERE name LIKE 'holdfast%'", None))
            named.append(dict(found[0]))
        mine, theirs = named
        assert mine.keys() & theirs.keys() == {"SELECT $1::int"} and len(mine) == len(theirs) == 2
        assert set(mine.values()) & set(theirs.values()) == {mine["SELECT $1::int"]}
    finally:
        await other.close()


async def test_what_an_application_sends_is_not_prepared_by_number(db: Connection) -> None:
    """psycopg would name it by a number, which is another client's statement in another session."""
    for _ in range(3):
        await db.execute("SELECT %s::int", (1,))
    assert await db.ask(("SELECT count(*) FROM pg_prepared_statements WHERE name NOT LIKE 'holdfast%'", None)) == [[(0,)]]


async def test_a_connection_lets_go_of_its_plans_in_the_message_of_another_statement() -> None:
    """At growing intervals, without a round trip, in no transaction but its own, and not behind a pooler; what it has prepared stays prepared."""
    elapsed = 0.0
    shared().fresh("wire")
    async with Proxy(shared().folder, "wire") as proxy:
        db = await connect(place(proxy.url), clock=lambda: elapsed)
        asked = ("SELECT %s::int", (1,))

        async def dropped(*more: Statement) -> bool:
            statements = proxy.statements
            assert (await db.ask(asked, *more))[0] == [(1,)]
            return proxy.statements - statements == 2 + len(more)

        for _ in range(7):
            assert not await dropped()
        assert (await db.ask((PLANS, None)))[0] == [(5, 1)]
        times = []
        for second in range(200):
            elapsed = float(second)
            if await dropped():
                times.append(second)
        assert times == [1, 3, 7, 15, 31, 63, 123, 183]
        assert (await db.ask((PLANS, None)))[0] == [(5, 201)], "it is still the same one"
        elapsed += GREATEST_AGE
        await db.ask(("BEGIN ISOLATION LEVEL REPEATABLE READ", None))
        assert db.pgconn.transaction_status == TransactionStatus.INTRANS
        elapsed += GREATEST_AGE
        assert not await dropped(), "it waits for the end of a transaction"
        assert await dropped(("COMMIT", None)) is False
        assert await dropped()
        elapsed += GREATEST_AGE
        with pytest.raises(sql.DivisionByZero):
            await db.ask(("SELECT 1/0", None))
        elapsed += GREATEST_AGE
        answers = proxy.answers
        assert await db.ask(("SELECT 2", None)) == [[(2,)]]
        assert proxy.answers - answers == 2, "two transactions, sent together"
        db.prepares, elapsed = False, elapsed + GREATEST_AGE
        assert not await dropped()
        await db.close()


async def test_a_connection_keeps_a_bounded_number_of_statements(db: Connection) -> None:
    asked = [(f"SELECT {n}", None) for n in range(MOST_PREPARED + 20)]
    for _ in range(2):
        assert [rows[0][0] for rows in await db.ask(*asked)] == list(range(MOST_PREPARED + 20))
    assert (await db.ask((PREPARED, None)))[0] == [(MOST_PREPARED,)]


async def test_the_first_error_of_several_is_raised_and_nothing_of_them_is_done(db: Connection) -> None:
    """Together they are one transaction; a statement that could not be prepared because of another is prepared the next time."""
    await db.ask(("CREATE TEMP TABLE t (n int PRIMARY KEY)", None))
    insert = "INSERT INTO t VALUES (%s)"
    await db.ask((insert, (0,)))
    later = ("SELECT 'later'", None)
    await db.ask(later)
    with pytest.raises(sql.UniqueViolation) as caught:
        await db.ask((insert, (1,)), (insert, (0,)), ("SELECT 1/0", None), later)
    assert caught.value.diag.table_name == "t"
    assert db.pgconn.transaction_status == TransactionStatus.IDLE
    assert (await db.ask(("SELECT n FROM t", None), later)) == [[(0,)], [("later",)]]
    with pytest.raises(sql.DivisionByZero):
        await db.ask(("BEGIN", None), (insert, (5,)), ("SELECT 1/0", None), ("COMMIT", None))
    assert db.pgconn.transaction_status == TransactionStatus.INERROR
    await db.rollback()
    answer = await db.answer(("UPDATE t SET n = n + %s", (1,)))
    assert answer.command_tuples == 1


async def test_more_than_the_socket_takes_at_once_goes_through(db: Connection) -> None:
    """While the server writes answers that nobody reads it reads nothing: what is sent and what comes must be looked after together."""
    large = "x" * 3_000_000
    found = await db.ask(*[("SELECT %s::text", (large,)) for _ in range(8)])
    assert all(rows == [(large,)] for rows in found)


async def test_whoever_is_broken_off_breaks_off_the_statement_too(db: Connection) -> None:
    """A statement that waits for a lock would be executed after its caller has gone."""
    await db.ask(("DROP TABLE IF EXISTS t", None), ("CREATE TABLE t (n int)", None), ("INSERT INTO t VALUES (0)", None))
    with shared().admin("wire") as other:
        other.autocommit = False
        other.execute("UPDATE t SET n = 1")
        asking = asyncio.ensure_future(db.ask(("UPDATE t SET n = 2", None)))
        async with asyncio.timeout(30):
            with shared().admin("wire") as look:
                await until(lambda: look.execute(WAITS).fetchone() is not None)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                await until(lambda: look.execute(WAITS).fetchone() is None)
        other.commit()
        assert other.execute("SELECT n FROM t").fetchone() == (1,)


async def test_a_connection_that_is_cut_says_so() -> None:
    shared().fresh()
    async with Proxy(shared().folder) as proxy:
        db = await connect(place(proxy.url))
        assert await db.ask(("SELECT 1", None)) == [[(1,)]]
        asking = asyncio.ensure_future(db.ask(("SELECT pg_sleep(60)", None)))
        heard = asyncio.ensure_future((listening := await connect(place(proxy.url))).hear(lambda _: None, 60))
        await asyncio.sleep(0)
        with shared().admin() as admin:
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'holdfast'")
        with pytest.raises(psycopg.OperationalError):
            await asking
        with pytest.raises(psycopg.OperationalError):
            await heard
        assert db.closed
        with pytest.raises(psycopg.OperationalError):
            await db.ask(("SELECT 1", None))
        await db.close()
        await listening.close()


async def test_the_loop_watches_a_socket_until_psycopg_reads_from_it(db: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each question anew."""
    loop, ours, theirs = asyncio.get_running_loop(), 0, 0
    add = loop.add_reader

    def watch(file: int, ready: Callable[..., None], *more: object) -> None:
        nonlocal ours, theirs
        assert file == db.pgconn.socket
        ours, theirs = (ours + 1, theirs) if not more else (ours, theirs + 1)
        add(file, ready, *more)

    monkeypatch.setattr(loop, "add_reader", watch)
    for n in range(5):
        assert await db.ask(("SELECT %s::int", (n,))) == [[(n,)]]
    with pytest.raises(sql.DivisionByZero):
        await db.ask(("SELECT 1/0", None))
    assert (ours, theirs) == (1, 0)
    assert await (await db.execute("SELECT 7")).fetchone() == (7,)
    assert theirs > 0
    for n in range(5):
        assert await db.ask(("SELECT %s::int", (n,))) == [[(n,)]]
    assert ours == 2


async def test_a_socket_that_is_lost_at_rest_is_watched_no_more() -> None:
    """Its number is soon that of another."""
    shared().fresh()
    db = await connect(place(shared().url))
    await db.ask(("SELECT 1", None))
    file = db.pgconn.socket
    with shared().admin() as admin:
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'holdfast'")
    async with asyncio.timeout(30):
        await until(lambda: db.closed)
    assert not asyncio.get_running_loop().remove_reader(file)
    other = await connect(place(shared().url))
    assert await other.ask(("SELECT 2", None)) == [[(2,)]]
    await db.close()
    assert await other.ask(("SELECT 3", None)) == [[(3,)]]
    file = other.pgconn.socket
    await other.close()
    assert not asyncio.get_running_loop().remove_reader(file)


async def test_what_is_told_while_a_statement_is_answered_is_heard(db: Connection) -> None:
    told: list[str] = []
    await db.ask(("LISTEN a", None))
    with shared().admin("wire") as other:
        other.execute("NOTIFY a, 'one'")
    await db.ask(("SELECT pg_notify('a', 'two')", None))
    hearing = asyncio.ensure_future(db.hear(told.append, 60))
    with shared().admin("wire") as other:
        other.execute("NOTIFY a, 'three'")
    async with asyncio.timeout(30):
        await until(lambda: len(told) == 3)
    hearing.cancel()
    await asyncio.wait([hearing])
    assert told == ["one", "two", "three"]
    assert await db.ask(("SELECT 1", None)) == [[(1,)]], "whoever listened no more may ask"


ROWS = [(1, "a", b"\0", None, None), (None, "ä", None, 2**40, "b"), (-1, None, b"", 0, "")]


async def test_a_row_alone_is_the_row_that_it_is_among_many(db: Connection) -> None:
    """The statement for one row is made of that for many."""
    columns = Columns(
        "SELECT * FROM unnest(%(n)b::bigint[], %(t)b::text[],\n  %(b)b::bytea[], %(m)b::bigint[], %(u)b::text[])\n AS t (n, t, b, m, u) WHERE %(now)s::bigint IS NULL",
        {"n": Numbers, "t": Texts, "b": Blobs, "m": Numbers, "u": Texts},
    )
    assert await db.ask((columns.for_many, columns.many(ROWS) | {"now": None})) == [ROWS]
    for row in ROWS:
        assert await db.ask((columns.for_one, columns.one(row) | {"now": None})) == [[row]]
    with pytest.raises(AssertionError, match="from arrays"):
        Columns("SELECT 1", {"n": Numbers, "t": Texts, "b": Blobs})
    with pytest.raises(AssertionError, match="order of its columns"):
        Columns("SELECT * FROM unnest(%(t)b::text[], %(n)b::bigint[], %(b)b::bytea[]) AS t (t, n, b)", {"n": Numbers, "t": Texts, "b": Blobs})


@pytest.mark.parametrize("beside", [0, 2])
async def test_an_error_at_the_end_of_a_transaction_is_the_database_s(db: Connection, beside: int) -> None:
    """A statement that went well may fail when its transaction ends: serialization, deferred constraints, full queues. It was an internal error, which nobody tried again."""
    await db.ask(("CREATE TEMP TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)", None))
    for _ in range(3):  # as it stands, then prepared, then by its name
        with pytest.raises(sql.UniqueViolation):
            await db.ask(*[("SELECT 1", None)] * beside, ("INSERT INTO late VALUES (1), (1) RETURNING n", None))
        assert await db.ask(("SELECT count(*) FROM late", None)) == [[(0,)]], "and the connection goes on"
