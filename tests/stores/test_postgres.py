"""What only the store over PostgreSQL has: counts of round trips, URLs, and warnings about its server."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import time
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import AsyncConnection
from psycopg.errors import InvalidSqlStatementName, OperationalError, UniqueViolation
from tests.inside import begin_process
from tests.postgres.pooler import PGBOUNCER, pooled
from tests.postgres.proxy import Proxy
from tests.postgres.server import shared

from holdfast import Context, Graph, Runtime, State
from holdfast.core import events as ev
from holdfast.core import ids, intents
from holdfast.core.commit import Settlement
from holdfast.core.errors import (
    Conflict,
    EffectInProgress,
    HoldfastError,
    LeaseLost,
    RecordDamaged,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
    UnsupportedFormat,
    UsageError,
    VersionConflict,
)
from holdfast.core.intents import Sending, Sent
from holdfast.engine.keep.check import Checker
from holdfast.engine.keep.repair import Repairer
from holdfast.ports import News, RunFilter
from holdfast.stores import PostgresStore, open_url, schema_version
from holdfast.stores.postgres import besides, connection, news
from holdfast.stores.postgres.arrays import Blobs, Numbers, Texts, taught
from holdfast.stores.postgres.connection import Place, outlasting, translate
from holdfast.stores.postgres.indexes import INDEXES
from holdfast.stores.postgres.queries import MIGRATIONS, OFTEN, TAKES, Q
from holdfast.testing.conformance import TTL, Script, effect, refused, signal
from holdfast.testing.conformance_people import plan


class Line(State):
    n: int = 0
    text: str = ""


def line(steps: int) -> Graph[Line]:
    graph = Graph("line", Line, version=str(steps))

    async def node(state: Line) -> dict[str, Any]:
        return {"n": state.n + 1, "text": "x" * 200}

    for i in range(steps):
        graph.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")(node)
    return graph


async def test_a_step_is_one_statement_and_one_round_trip() -> None:
    """Exact counts come first: what a lone step makes durable goes to the server in one message, and one answer comes back."""
    shared().fresh()
    async with Proxy(shared().folder) as proxy, Runtime(proxy.url + "&listen=") as rt:
        proxy.mark = b"x" * 200
        await rt.invoke(line(5), {})
        counted = []
        for steps in (20, 40):
            before = proxy.marked
            run = await rt.invoke(line(steps), {})
            assert run.state.n == steps
            counted.append(proxy.marked - before)
        assert counted[1] - counted[0] == 20


async def test_steps_of_many_runs_share_round_trips() -> None:
    shared().fresh()
    async with Proxy(shared().folder) as proxy, Runtime(proxy.url + "&listen=") as rt:
        graph = line(20)
        await rt.invoke(graph, {})
        before = proxy.answers
        runs = await asyncio.gather(*[rt.invoke(graph, {}) for _ in range(50)])
        assert all(run.status == "completed" for run in runs)
        assert proxy.answers - before < 50 * 20 / 2, "births and ends included"


async def test_a_group_of_steps_looks_the_rows_before_up_by_their_whole_keys() -> None:
    """As a planner that knows the tables makes its plan for any values: else a step reads all the log that its run has."""
    store = PostgresStore(shared().fresh())
    await store.open()
    await store.register("w", TTL)
    scripts = [await Script(store, f"r{n}").begin("w") for n in range(20)]
    await asyncio.gather(*(script.steps(50) for script in scripts))
    await store.close()
    with shared().admin("holdfast") as db:
        db.execute("ANALYZE holdfast.run, holdfast.log")
        numbers = itertools.count(1)
        statement = re.sub("%[sb]", lambda _: f"${next(numbers)}", Q.steps)
        plan = "\n".join(str(line) for (line,) in db.execute(f"EXPLAIN (GENERIC_PLAN) {statement}".encode()))
    assert re.search(r"using log_pkey.*\n.*Index Cond: .*n = h.n", plan), plan


LISTS = frozenset({"claim", "claimers", "lone", "ground", "planned_once"})
"""Statements of workers that ask for what is due, or for all workers."""
KEYED = {*OFTEN, TAKES.for_many, Q.marked_of, Q.lock_runs, Q.see_runs, Q.see_effects, Q.see_statuses, Q.run_get, Q.inbox_of, Q.load_tip, Q.load_rows, Q.put, Q.ended}


async def test_what_is_named_by_a_key_is_looked_up_by_it_also_where_the_index_of_what_is_under_way_is_small() -> None:
    """Such an index looks cheaper to the planner than a key: it takes it as a list of the few that are in it. As long as somebody holds a snapshot it lists
    all that was ever under way, and each commit went through it."""
    store = PostgresStore(f"{shared().fresh('keyed')}&listen=")
    await store.open()
    await store.register("w", TTL)
    await (await (await Script(store, "r1").begin("w")).steps(2)).complete()
    await store.close()
    with shared().admin("keyed") as db:
        columns = [str(name) for (name,) in db.execute("SELECT attname FROM pg_attribute WHERE attrelid = 'holdfast.run'::regclass AND attnum > 0 AND NOT attisdropped").fetchall()]
        fresh = dict.fromkeys(("run_id", "thread_id", "session_key", "lineage_root"), "'c' || n") | {"id": "n + 1000", "turn": "n + 1000"}
        db.execute(f"INSERT INTO holdfast.run ({', '.join(columns)}) SELECT {', '.join(fresh.get(c, f'r.{c}') for c in columns)} FROM holdfast.run r, generate_series(1, 20000) AS n".encode())
        db.execute("VACUUM (INDEX_CLEANUP ON, ANALYZE) holdfast.run")
        db.execute("SET enable_seqscan = off")  # tables that are empty here are read as if they were not
        db.execute("SET enable_bitmapscan = off")
        for text in sorted(KEYED - {getattr(Q, name) for name in LISTS}):
            names: dict[str, int] = {}
            numbered = re.sub(r"%(?:\((\w+)\))?[sb]", lambda m: f"${names.setdefault(m[1] or str(len(names)), len(names) + 1)}", text)  # noqa: B023
            plan = "\n".join(str(line) for (line,) in db.execute(f"EXPLAIN (GENERIC_PLAN) {numbered}".encode()).fetchall())
            assert "Index Cond" in plan, text
            assert not re.findall(r"Scan using (?:run|log|inbox|effect)_\w+ .*\n(?! *Index Cond)", plan), plan


async def test_rows_of_a_shelf_are_one_round_trip_with_their_digests() -> None:
    """Those that are to be new too; a lost answer does not make one's own rows another's."""
    shared().fresh()
    async with Proxy(shared().folder) as proxy:
        store = open_url(proxy.url + "&listen=")
        await store.open()
        assert isinstance(store, PostgresStore)
        counted = []
        for number in range(4):
            rows = {f"{letter}{number}": letter.encode() for letter in "abc"}
            before = proxy.answers
            assert await store.shelve("cups", rows, (f"a{number}", f"b{number}")) == []
            counted.append(proxy.answers - before)
        assert counted[-1] == 1, counted
        proxy.cut(b"lost answer", after=True)
        assert await store.shelve("cups", {"a0": b"other", "z": b"lost answer"}, ("a0", "z")) == ["a0"]
        assert (await store.find_shelved("cups", "a0"), await store.find_shelved("cups", "z")) == (b"a", b"lost answer")
        assert await store.verify() == []
        await store.close()


@pytest.mark.parametrize("encoding", ["utf8", "latin1"])
async def test_lists_of_texts_of_bytes_and_of_numbers_are_arrays(encoding: str) -> None:
    some: tuple[list[str | None], list[bytes], list[int | None]]
    some = ["a", "", None, "é, {}\"\\NULL"], [b"", bytes(range(256)), b"x" * 100_000], [0, None, 2**63 - 1, -(2**63)]
    async with await AsyncConnection.connect(shared().fresh(), client_encoding=encoding) as db:
        taught(db)
        for texts, blobs, numbers in (([], [], []), ([None], [b""], [None]), some):
            asked = {"texts": Texts(texts), "blobs": Blobs(blobs), "numbers": Numbers(numbers)}
            found = await (await db.execute("SELECT %(texts)s::text[], %(blobs)b::bytea[], %(numbers)b::bigint[], cardinality(%(texts)s::text[])", asked)).fetchone()
            assert found == (texts, blobs, numbers, len(texts))


async def test_a_read_whose_caller_goes_costs_no_connection() -> None:
    async with Proxy(shared().folder) as proxy:
        store = PostgresStore(f"{proxy.url}&listen=")
        shared().fresh()
        await store.open()
        await store.shelve("cups", {"a": b"1"})
        for _ in range(5):
            proxy.stall()
            asking = asyncio.ensure_future(store.find_shelved("cups", "a"))
            for _ in range(20):  # by then it has been sent
                await asyncio.sleep(0)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            proxy.heal()
            assert await store.find_shelved("cups", "a") == b"1"
        for _ in range(20):  # whatever was asked for is answered by then, and connections that are not fit any more are closed
            assert await store.find_shelved("cups", "a") == b"1"
        assert len(proxy.backends()) == proxy.served, "none was closed"
        assert proxy.served <= 5
        await store.close()


async def test_a_read_whose_caller_and_server_go_is_reported_by_nobody() -> None:
    """The store looks after the connection; an error that nobody waits for is no fault of the program."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with Proxy(shared().folder) as proxy:
        shared().fresh()
        store = PostgresStore(f"{proxy.url}&listen=")
        await store.open()
        await store.shelve("cups", {"a": b"1"})
        proxy.stall()
        asking = asyncio.ensure_future(store.find_shelved("cups", "a"))
        for _ in range(20):  # by then it has been sent
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        for pid in proxy.backends():
            proxy.cut_backend(pid)
        proxy.heal()
        assert await store.find_shelved("cups", "a") == b"1", "on another connection"
        await store.close()
    gc.collect()
    assert reported == []


async def test_a_read_that_is_not_answered_is_asked_again_on_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Proxy(shared().folder) as proxy:
        shared().fresh()
        store = PostgresStore(f"{proxy.url}&listen=")
        await store.open()
        await store.shelve("cups", {"a": b"1"})
        before = proxy.served
        monkeypatch.setattr(connection, "ANSWER_SECONDS", 0.2)
        proxy.stall()
        asking = asyncio.ensure_future(store.find_shelved("cups", "a"))
        await asyncio.wait([asking], timeout=0.3)
        proxy.heal()
        assert await asking == b"1"
        assert proxy.served > before
        await store.close()


async def test_a_store_that_is_closed_lets_those_go_who_are_not_answered() -> None:
    async with Proxy(shared().folder) as proxy:
        shared().fresh()
        store = PostgresStore(f"{proxy.url}&listen=")
        await store.open()
        await store.shelve("cups", {"a": b"1"})
        proxy.stall()
        asking = asyncio.ensure_future(store.find_shelved("cups", "a"))
        await asyncio.sleep(0)
        await asyncio.wait_for(store.close(), 5)
        with pytest.raises(StoreError) as told:
            await asyncio.wait_for(asking, 5)
        assert told.value.code == "store_closed"


async def test_a_schema_is_brought_up_to_date_whatever_time_a_role_has_for_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """§1.9: of many runs it takes longer, and what is ended is taken back and begun again each time."""
    url = shared().fresh("unhurried")
    store = PostgresStore(url)
    await store.open()
    await store.close()
    scripts = (*MIGRATIONS[:-1], "CREATE TABLE public.told AS SELECT current_setting('statement_timeout') AS statement, current_setting('lock_timeout') AS lock;")
    monkeypatch.setattr("holdfast.stores.postgres.server.MIGRATIONS", scripts)
    with shared().admin("unhurried") as db:
        db.execute("GRANT CREATE ON SCHEMA public TO holdfast")
        db.execute("DROP TABLE IF EXISTS public.told")
        db.execute("UPDATE holdfast.meta SET value = value - 1 WHERE key = 'schema'")
        store = PostgresStore(url + "&options=-c%20statement_timeout%3D60s%20-c%20lock_timeout%3D60s")
        await store.open()
        await store.close()
        assert db.execute("SELECT statement, lock FROM public.told").fetchall() == [("0", "0")]


async def test_a_process_whose_schema_a_newer_release_has_changed_is_told_so_and_ends() -> None:
    """§1.8: it could only try again for ever. A worker that is left over from a deploy ends with this."""
    store = PostgresStore(shared().fresh("deployed"))
    await store.open()
    with shared().admin("deployed") as db:
        for change, back in (("ALTER TABLE holdfast.run RENAME COLUMN due TO due_at", "ALTER TABLE holdfast.run RENAME COLUMN due_at TO due"), ("ALTER TABLE holdfast.doc RENAME TO document", "ALTER TABLE holdfast.document RENAME TO doc")):
            db.execute(change.encode())
            try:
                with pytest.raises(UnsupportedFormat) as told:
                    await store.load("r1")
            finally:
                db.execute(back.encode())
            assert "newer release" in told.value.hint and not told.value.passing
    await store.close()


async def test_the_schema_of_a_database_is_told_without_opening_it() -> None:
    url = shared().fresh("told_schema")
    with shared().admin("told_schema") as db:
        db.execute("DROP SCHEMA IF EXISTS holdfast CASCADE")
        assert schema_version(url) is None
        assert db.execute("SELECT to_regclass('holdfast.meta')").fetchall() == [(None,)]
    store = PostgresStore(url)
    await store.open()
    await store.close()
    assert schema_version(url) == len(MIGRATIONS)
    assert schema_version(url.replace("/told_schema?", "/nowhere?")) is None


@pytest.mark.parametrize("more", ["", "&partitions=4"])
async def test_an_index_that_is_missing_or_invalid_is_named(more: str) -> None:
    """§10.14: what must be there once rests on unique indexes. One is missing after a restore that was broken off, and invalid after a REINDEX CONCURRENTLY."""
    database = f"indexed{len(more)}"
    with shared().admin() as db:
        db.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)".encode())
    store = PostgresStore(shared().fresh(database) + more)
    await store.open()
    await Script(store, "r1").submit()
    with shared().admin(database) as db:
        there = {str(name) for (name,) in db.execute("SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = 'holdfast'::regnamespace AND NOT c.relispartition")}
        assert there == INDEXES, "a migration that makes or drops an index says so in indexes.py"
        assert await store.verify() == []
        db.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'holdfast.effect_open'::regclass")
        db.execute("ALTER TABLE holdfast.claim DROP CONSTRAINT claim_pkey")
    found = [(p.code, p.severity, p.message) for p in await store.verify()]
    assert found == [("index_damaged", "error", "the index holdfast.effect_open is invalid"), ("index_damaged", "error", "the index holdfast.claim_pkey is missing")]
    await store.close()


@pytest.mark.parametrize("change", ["UPDATE holdfast.meta SET value = value - 3 WHERE key = 'schema'", "DROP TABLE holdfast.meta"])
async def test_a_schema_that_meta_does_not_tell_of_is_damage(change: str) -> None:
    """A worker could only try again for ever."""
    with shared().admin() as db:
        db.execute("DROP DATABASE IF EXISTS other_meta WITH (FORCE)")
    url = shared().fresh("other_meta")
    store = PostgresStore(url)
    await store.open()
    await store.close()
    with shared().admin("other_meta") as db:
        db.execute(change.encode())
    with pytest.raises(StoreCorrupt) as told:
        await PostgresStore(url, patience=0.2).open()
    assert "backup" in told.value.hint


async def test_what_was_loaded_is_gone_through_for_garbage_once_before_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of a short run that would take longer than the run."""
    times: list[None] = []
    begin_process(monkeypatch)
    monkeypatch.setattr(gc, "collect", lambda *_: times.append(None))
    async with Runtime("memory:"):
        assert not times, "where a command opens a file and ends, it would only cost"
    for _ in range(2):
        async with Runtime(shared().fresh()):
            assert len(times) == 1


async def test_a_row_that_is_lost_is_told_of_by_whoever_would_replace_it() -> None:
    url = shared().fresh("lost")
    store = PostgresStore(url)
    await store.open()
    await store.shelve("cups", {"row": b"1", "voucher": b"1"})
    with shared().admin("lost") as db:
        db.execute("DELETE FROM holdfast.shelf WHERE key = 'row'")
        db.execute("DELETE FROM holdfast.vouch WHERE id = 'cups' || chr(31) || 'voucher'")
    assert await store.shelve("cups", {"row": b"2", "voucher": b"2", "new": b"2"}, ("row", "voucher", "new")) == ["row", "voucher"]
    for key in ("row", "voucher"):
        with pytest.raises(RecordDamaged):
            await store.find_shelved("cups", key)
    assert await store.find_shelved("cups", "new") == b"2"
    await store.close()


class Letters(State):
    count: int = 0


letters: Graph[Letters] = Graph("letters", Letters, version="1")


@letters.node(start=True)
async def write(state: Letters, ctx: Context) -> None:
    for n in range(state.count):
        ctx.send("mail", {"n": n})


async def drained(store: PostgresStore, groups: int) -> None:
    """Takes and settles so many groups of sixteen, as a dispatcher does."""
    for _ in range(groups):
        found = await store.claim_intents("w", ("mail",), limit=16, ttl_us=TTL, held=())
        assert len(found) == 16
        assert await store.settle_intents([Settlement(i, intents.after(i, Sent(), Sending(), store.now())) for i in found]) == [True] * 16


async def test_a_group_of_intents_is_taken_in_two_round_trips_and_settled_in_one() -> None:
    """To take them is one transaction, which begins with the look and is committed with the writing; to settle them is one statement."""
    url = shared().fresh()
    async with Runtime(url) as rt:
        await rt.invoke(letters, {"count": 16 * 9})
    async with Proxy(shared().folder) as proxy:
        store = PostgresStore(proxy.url + "&listen=")
        await store.open()
        await store.register("w", TTL)
        await drained(store, 4)  # by then the statements are prepared
        before = proxy.answers
        await drained(store, 5)
        assert proxy.answers - before == 5 * (2 + 1)
        await store.close()


async def test_of_a_group_with_a_damaged_intent_nothing_is_settled_and_it_is_named() -> None:
    url = shared().fresh("groups")
    async with Runtime(url) as rt:
        await rt.invoke(letters, {"count": 3})
    store = PostgresStore(url)
    await store.open()
    await store.register("w", TTL)
    found = await store.claim_intents("w", ("mail",), limit=3, ttl_us=TTL)
    done = [Settlement(i, intents.after(i, Sent(), Sending(), store.now())) for i in found]
    with shared().admin("groups") as db:
        db.execute("UPDATE holdfast.vouch SET seal = decode('00', 'hex') WHERE kind = 'intent' AND id = %s", (found[1].intent_id,))
    with pytest.raises(RecordDamaged, match=found[1].intent_id):
        await store.settle_intents(done)
    assert await store.settle_intents([done[0], done[2]]) == [True, True], "neither was kept before"
    assert await store.settle_intents([done[0]]) == [False]
    await store.close()


async def test_a_claim_of_intents_does_not_read_what_was_sent_before() -> None:
    """Whatever was claimed leaves entries in the indexes until they are vacuumed: no later claim reads them all again."""
    url, read = shared().fresh(), []
    async with Runtime(url) as rt:
        await rt.invoke(letters, {"count": 16 * 60})
    with shared().admin("holdfast") as db:
        db.execute("ALTER TABLE holdfast.intent SET (autovacuum_enabled = false)")
    try:
        for _ in range(3):
            before = entries_read()
            store = PostgresStore(url)
            await store.open()
            await store.register("w", TTL)
            await drained(store, 20)
            await store.retire("w")
            await store.close()
            read.append(entries_read() - before)
    finally:
        with shared().admin("holdfast") as db:
            db.execute("ALTER TABLE holdfast.intent RESET (autovacuum_enabled)")
    assert read[2] <= 24 * 16 * 20, f"entries for 20 groups of 16; those that are dead are passed over once the server has marked them: {read}"


def entries_read() -> int:
    """How many entries of the indexes of intents the server has read so far, as those connections tell that have ended."""
    with shared().admin("holdfast") as db:
        until = time.monotonic() + 60
        while db.execute("SELECT 1 FROM pg_stat_activity WHERE datname = 'holdfast' AND usename = 'holdfast'").fetchone():
            assert time.monotonic() < until, "the connections of a closed store end"
        found = db.execute("SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'intent'").fetchone()
    assert found is not None
    return int(str(found[0]))


@pytest.mark.parametrize("url", ["postgresql://h/d?pooler=maybe", "postgresql://h/d?partitions=many", "postgresql://h/d?no_such_option=1", "postgresql://h/d?target_session_attrs=standby", "postgresql://h/d?target_session_attrs=read-only"])
def test_a_url_that_is_not_understood(url: str) -> None:
    with pytest.raises(UsageError):
        open_url(url)


async def test_a_server_that_is_not_there_is_said_so_without_the_password() -> None:
    store = PostgresStore("postgresql://ann:secret@127.0.0.1:1/none", patience=0.2)
    assert "secret" not in store.url
    with pytest.raises(StoreError) as caught:
        await store.open()
    assert "secret" not in caught.value.line()


WRONG = {
    "database": (lambda url: url.replace("/refused?", "/nowhere?"), "CREATE DATABASE"), "role": (lambda url: url.replace("user=holdfast", "user=nobody_here"), "CREATE ROLE"),
    "login": (lambda url: url.replace("user=holdfast", "user=no_login"), "LOGIN"), "rights": (lambda url: url.replace("user=holdfast", "user=no_rights"), "GRANT CONNECT"),
    "setting": (lambda url: f"{url}&options=-c%20nonsense%3D1", "options="), "value": (lambda url: f"{url}&sslmode=nonsense", "in the URL"),
    "each of two": (lambda url: url.replace("/refused?", "/nowhere?").replace("&user", f",{shared().folder}&user"), "CREATE DATABASE"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_a_server_that_refuses_us_is_told_at_once_with_the_way_out(wrong: str) -> None:
    """No waiting helps, so none is advised; a worker ends with it."""
    url = shared().fresh("refused")
    with shared().admin() as db:
        for role, may in (("no_login", "NOLOGIN"), ("no_rights", "LOGIN")):
            if not db.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,)).fetchone():
                db.execute(f"CREATE ROLE {role} {may}".encode())
        db.execute("REVOKE CONNECT ON DATABASE refused FROM PUBLIC")
    change, way_out = WRONG[wrong]
    store = PostgresStore(change(url), patience=600.0)
    with pytest.raises(StoreRefused) as told:
        async with asyncio.timeout(4):  # it is tried for five seconds where waiting may help
            await store.open()
    assert way_out in told.value.hint and not told.value.passing


async def test_of_several_servers_one_that_is_away_may_come_back() -> None:
    url = shared().fresh("refused").replace("/refused?", "/nowhere?").replace("&user", ",/nowhere&user")
    with pytest.raises(StoreUnavailable):
        await PostgresStore(url, patience=0.2).open()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('FATAL:  password authentication failed for user "u"', True), ('FATAL:  no pg_hba.conf entry for host "h", user "u", database "d", no encryption', True),
        ("fe_sendauth: no password supplied", True), ("server does not support SSL, but SSL was required", True), ("FATAL:  SASL authentication failed", True), ("FATAL: unsupported startup parameter: options", True), ("FATAL:  no more connections allowed (max_client_conn)", False),
        ("FATAL:  the database system is starting up", False), ("Connection refused", False), ("FATAL:  sorry, too many clients already", False), ("timeout expired", False),
    ],
)
def test_what_a_server_says_while_a_connection_is_made(said: str, told: bool) -> None:
    error = psycopg.OperationalError(f'connection failed: connection to server at "h", port 5432 failed: {said}')
    assert connection.refuses(error) is told and connection.passing(error) is not told
    assert isinstance(translate(error, "postgresql://h/d"), StoreRefused if told else StoreUnavailable)


@pytest.mark.parametrize(("said", "way_out"), [("transaction blocks not allowed in statement pooling mode", "pool_mode"), ("unsupported startup parameter: options", "ignore_startup_parameters")])
def test_what_a_pooler_does_not_do_is_told_with_the_way_out(said: str, way_out: str) -> None:
    """It says so under the state of a lost connection, and no waiting helps."""
    error = psycopg.errors.ProtocolViolation(said)
    assert connection.refuses(error) and not connection.passing(error)
    told = translate(error, "postgresql://h/d")
    assert isinstance(told, StoreRefused) and way_out in told.hint


async def test_a_database_that_takes_no_writes_is_said_to_be_read_only() -> None:
    url = shared().fresh("only_read")
    with shared().admin() as db:
        db.execute("ALTER DATABASE only_read SET default_transaction_read_only = on")
    try:
        with pytest.raises(StoreReadOnly) as told:
            await PostgresStore(url, patience=0.2).open()
    finally:
        with shared().admin() as db:
            db.execute("ALTER DATABASE only_read RESET default_transaction_read_only")
    assert "default_transaction_read_only" in told.value.hint


async def test_a_standby_in_the_url_is_said_to_be_one() -> None:
    standby = shared().clone()
    standby.start()
    try:
        with pytest.raises(StoreUnavailable) as told:
            await PostgresStore(standby.url, patience=0.2).open()
    finally:
        standby.remove()
    assert told.value.message.count("postgresql://") == 1 and "standby" in told.value.message and "primary" in told.value.hint


async def reading(store: PostgresStore) -> None:
    await store.open()
    await store.load("r1")


async def test_a_role_whose_statements_are_ended_too_early_is_told_the_setting() -> None:
    store = PostgresStore(shared().fresh("hurried"), patience=0.2)
    await store.open()
    with shared().admin("hurried") as holder:
        holder.execute("BEGIN; LOCK TABLE holdfast.run, holdfast.log IN ACCESS EXCLUSIVE MODE")
        hurried = PostgresStore(shared().url.replace("/holdfast?", "/hurried?") + "&options=-c%20statement_timeout%3D50ms", patience=0.2)
        with pytest.raises(StoreUnavailable) as told:
            await reading(hurried)
    assert "statement_timeout" in told.value.hint
    await hurried.close()
    await store.close()


@pytest.mark.parametrize("asked", ["latin1", "sql_ascii", "euc_jp"])
async def test_a_connection_in_another_encoding_is_refused(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not carry every text. The URL decides before the environment."""
    url = shared().fresh("encoded")
    with pytest.raises(UsageError) as caught:
        await PostgresStore(f"{url}&client_encoding={asked}").open()
    assert (caught.value.code, "PGCLIENTENCODING" in caught.value.hint) == ("encoding_not_utf8", True)
    monkeypatch.setenv("PGCLIENTENCODING", asked)
    await refused(UsageError, PostgresStore(url).open())
    store = PostgresStore(f"{url}&client_encoding=utf8")
    await store.open()
    await store.close()


async def test_a_database_in_another_encoding_is_refused() -> None:
    """It could not keep every text: a commit would fail that holds one in another script."""
    with shared().admin() as db:
        db.execute("DROP DATABASE IF EXISTS western")
        db.execute("CREATE DATABASE western OWNER holdfast ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    url = shared().fresh("western")
    for more in ("", "&client_encoding=utf8"):
        with pytest.raises(UsageError) as caught:
            await PostgresStore(url + more).open()
        assert (caught.value.code, "CREATE DATABASE" in caught.value.hint) == ("encoding_not_utf8", True)


async def test_a_server_that_is_not_durable_is_warned_of() -> None:
    store = PostgresStore(shared().fresh())
    await store.open()
    warned = {(p.code, p.severity) for p in await store.health()}
    assert {("server_not_durable", "warning"), ("vacuum_behind", "warning")} <= warned
    assert abs(store.now() - time.time_ns() // 1000) < 5_000_000
    await store.close()


async def test_an_older_schema_is_brought_up_to_date() -> None:
    """§1.8: in one transaction; what is there counts as it is, and whoever still writes as before is refused."""
    url = shared().fresh("older")
    store = PostgresStore(url)
    await store.open()
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    await script.write(script.commit(ev.SideEffectAttempted("r1.x1", "k"), effects=(effect("r1", 1, "k"),)))
    await store.put(signal("r1", "a", 0))
    await store.put_schedule(plan("s1", 5), None)
    await store.close()
    with shared().admin("older") as db:
        tables = [str(t) for (t,) in db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")]
        later = [f"holdfast.{t}" for t in tables if f"CREATE TABLE holdfast.{t} (" not in MIGRATIONS[0]]
        db.execute("ALTER TABLE holdfast.run ADD COLUMN doc bytea; UPDATE holdfast.run r SET doc = (SELECT data FROM holdfast.doc d WHERE d.bucket = r.bucket AND d.run = r.id)")
        db.execute("ALTER TABLE holdfast.run ALTER COLUMN doc SET NOT NULL")
        for table, column in (("run", "seal"), ("run", "behind"), ("effect", "placed"), ("inbox", "placed"), ("intent", "placed"), ("schedule", "placed")):
            db.execute(f"ALTER TABLE holdfast.{table} DROP COLUMN {column}".encode())
        db.execute("CREATE INDEX run_due ON holdfast.run (queue)")  # it went with its column
        db.execute("ALTER TABLE holdfast.run DROP CONSTRAINT run_pkey, ADD PRIMARY KEY (bucket, id), ADD UNIQUE (bucket, run_id); CREATE INDEX run_id ON holdfast.run (run_id)")
        db.execute(f"DROP TABLE {', '.join(later)}; UPDATE holdfast.meta SET value = 1 WHERE key = 'schema'".encode())
    both = [PostgresStore(url), PostgresStore(url)]
    await asyncio.gather(*[s.open() for s in both])
    assert both[0].incarnation == both[1].incarnation != store.incarnation
    assert {p.code for p in await Checker(both[0]).all()} == {"effect_attempted_without_result"}
    assert [run.run_id for run, _ in await both[0].runs(RunFilter())] == ["r1"], "its row and what lies beside it are read together"
    assert len(await both[0].effects(key="k")) == len(await both[1].inbox("r1")) == 1
    await refused(LeaseLost, both[0].commit(script.commit(ev.NoteAdded("late"))))
    for s in both:
        await s.close()


async def test_rows_of_shelves_that_a_release_before_has_put_are_counted() -> None:
    """§12.1: schema 16 counts them by shelf; from then on one that is lost together with its voucher is named."""
    url = shared().fresh("counted_shelves")
    store = PostgresStore(url)
    await store.open()
    await store.shelve("cups", {"a": b"1", "b": b"2"})
    await store.shelve("cups", {"a": b"3"})
    await store.close()
    with shared().admin("counted_shelves") as db:
        db.execute("DROP TABLE holdfast.shelf_roll; ALTER TABLE holdfast.vouch DROP COLUMN was; UPDATE holdfast.meta SET value = 15 WHERE key = 'schema'")
        store = PostgresStore(url)
        await store.open()
        assert await Checker(store).all() == []
        assert db.execute("SELECT name, n FROM holdfast.shelf_roll").fetchall() == [("cups", 2)]
        await store.shelve("cups", {"a": b"4", "c": b"5"})
        assert await Checker(store).all() == []
        db.execute("DELETE FROM holdfast.shelf WHERE key = 'c'; DELETE FROM holdfast.vouch WHERE under = 'cups' AND id LIKE '%c'")
        assert [p.code for p in await Checker(store).all()] == ["shelf_record_missing"]
    await store.close()


@pytest.mark.parametrize("damage", ["DELETE FROM holdfast.doc", "UPDATE holdfast.doc SET data = '\\xc1'"], ids=["lost", "altered"])
@pytest.mark.parametrize("mends", ["repair", "end"])
async def test_what_lies_beside_a_runs_row_is_missed_and_written_again(damage: str, mends: str) -> None:
    """§3.6: it is named, and hides no other run; a repair writes it again, and so does the next commit that has one: the log says what it was."""
    store = PostgresStore(shared().fresh())
    await store.open()
    await store.register("w", TTL)
    script = await (await Script(store, "r1").begin("w")).steps(2)
    await Script(store, "r2").submit()
    sound = await store.get("r1")
    with shared().admin("holdfast") as db:
        db.execute(f"{damage} WHERE run = (SELECT id FROM holdfast.run WHERE run_id = 'r1')".encode())
    await refused(StoreError, store.get("r1"))
    assert [run.run_id for run, _ in await store.runs(RunFilter())] == ["r2"]
    assert {p.run_id for p in await Checker(store).all() if p.severity == "error"} == {"r1"}
    if mends == "repair":
        await store.retire("w")
        assert (await Repairer(store).repair("r1", apply=True, actor="ann")).applied
    else:
        await script.complete()
    assert [p for p in await Checker(store).all() if p.severity == "error"] == []
    found = await store.get("r1")
    assert sound is not None and found is not None and (found[0].skill_id, found[0].created_at) == (sound[0].skill_id, sound[0].created_at)
    await store.close()


async def test_a_number_is_given_to_one_run_alone() -> None:
    """No index of runs has it: where the sequence was set back, the key of the log says no, and nothing of the run is left. Any other number is as good."""
    store = PostgresStore(shared().fresh("numbers"))
    await store.open()
    names = [ids.run_id(1_000_000_000_000_000 + n, n, "default", "s") for n in range(3)]
    first, second, third = [Script(store, name, session_key="s", lane=name) for name in names]
    await first.submit()
    with shared().admin("numbers") as db:
        ((number,),) = db.execute("SELECT id FROM holdfast.run").fetchall()
        db.execute(f"ALTER TABLE holdfast.run ALTER COLUMN id SET DEFAULT {number}".encode())
        await refused(VersionConflict, second.submit())
        assert db.execute("SELECT run_id FROM holdfast.run").fetchall() == [(first.run_id,)]
        db.execute("ALTER TABLE holdfast.run ALTER COLUMN id SET DEFAULT nextval('holdfast.number'); SELECT setval('holdfast.number', 1, false)")
        await third.submit()
        assert len(db.execute("SELECT DISTINCT id FROM holdfast.run").fetchall()) == 2
    assert await store.verify() == []
    await store.close()


async def test_a_store_that_cannot_be_opened_keeps_no_connection() -> None:
    """It is refused for good, and the server is as if it had never been asked."""
    url = shared().fresh("newer")
    store = PostgresStore(url)
    await store.open()
    await store.close()
    with shared().admin("newer") as db:
        db.execute("UPDATE holdfast.meta SET value = 9999 WHERE key = 'schema'")
        try:
            await refused(UnsupportedFormat, store.open())
            others = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'newer' AND pid <> pg_backend_pid()"
            seen = [db.execute(others).fetchone() for _ in range(500)]  # a session that was closed takes a moment to go
            assert (0,) in seen
        finally:
            db.execute("UPDATE holdfast.meta SET value = %s WHERE key = 'schema'", (len(MIGRATIONS),))


class Violation(UniqueViolation):
    """A unique index said no."""

    def __init__(self, table: str, index: str) -> None:
        super().__init__("duplicate key value violates unique constraint")
        self._said = SimpleNamespace(table_name=table, constraint_name=index)

    @property
    def diag(self) -> Any:
        return self._said


@pytest.mark.parametrize(
    ("table", "index", "error", "code"),
    [
        ("effect", "effect_open", EffectInProgress, "effect_in_progress"),
        ("run_17", "run_17_tenant_id_session_key_lane_idx", Conflict, "lane_busy"),
        ("run", "run_lane_holder", Conflict, "lane_busy"),
        ("worker", "worker_owner", Conflict, "owner_taken"),
        ("run", "run_pkey", VersionConflict, "version_conflict"),
        ("run_3", "run_3_bucket_run_id_key", VersionConflict, "version_conflict"),
        ("log", "log_pkey", VersionConflict, "version_conflict"),
        ("shelf", "shelf_pkey", StoreError, "constraint"),
        (None, None, StoreError, "constraint"),
    ],
)
def test_what_it_means_that_an_index_says_no(table: Any, index: Any, error: type[HoldfastError], code: str) -> None:
    """§10.14: where two write at once the index decides, and each is told what has happened; in a partition as in one table."""
    told = translate(Violation(table, index), "postgresql:///x")
    assert (type(told), told.code) == (error, code)


async def test_what_stays_unprepared_is_not_sent_for_ever() -> None:
    """A statement that the server has forgotten is sent anew; where that does not help either, the error comes out."""
    sent: list[int] = []

    async def work(before: int) -> None:
        sent.append(before)
        assert len(sent) < 10
        raise InvalidSqlStatementName("prepared statement does not exist")

    with pytest.raises(StoreError, match="prepared statement") as refused:
        await outlasting(work, "postgresql:///x", 1.0)
    assert sent == [0, 1, 2, 3] and "pooler=transaction" in refused.value.hint


async def test_a_store_that_was_closed_while_its_server_went_back_is_a_new_incarnation() -> None:
    """§1.9: it finds another history than the one it was left with, so every fence given out before is void. Once."""
    url = shared().fresh("history")
    store = PostgresStore(url)
    await store.open()
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    await store.close()
    with shared().admin("history") as db:
        db.execute("UPDATE holdfast.meta SET value = value + 1 WHERE key = 'timeline'")
    first, second = PostgresStore(url), PostgresStore(url)
    await first.open()
    assert first.incarnation != store.incarnation
    await refused(LeaseLost, first.commit(script.commit(ev.NoteAdded("late"))))
    await second.open()
    assert second.incarnation == first.incarnation
    for s in (first, second):
        await s.close()


@pytest.mark.parametrize("what", ["incarnation", "schema", "incarnation found by a living store"])
async def test_what_writes_to_every_run_takes_as_long_as_it_takes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """§1.9, §10: of many runs it takes longer than the server has for an answer. Broken off it would be taken back, and begun again each time."""
    url = shared().fresh(f"long_{what[:6]}_{len(what)}")
    name = url.partition("?")[0].rpartition("/")[2]
    store = PostgresStore(url)
    await store.open()
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    before, living = store.incarnation, what.endswith("store")
    if not living:
        await store.close()
    monkeypatch.setattr("holdfast.stores.postgres.server.OPEN_PATIENCE", 0.0)
    loop, gone_by = asyncio.get_running_loop(), 0.0
    monkeypatch.setattr(loop, "time", lambda: time.monotonic() + gone_by)
    with shared().admin(name) as db, shared().admin(name) as locked:
        db.execute("UPDATE holdfast.meta SET value = value - 1 WHERE key = %s", ["schema" if what == "schema" else "timeline"])
        if what == "schema":
            monkeypatch.setattr("holdfast.stores.postgres.server.MIGRATIONS", (*MIGRATIONS[:-1], "SELECT 1;"))
        locked.execute("BEGIN")
        locked.execute("LOCK TABLE holdfast.run IN SHARE MODE")
        if living:
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND pid <> %s", [locked.info.backend_pid])
            monkeypatch.setattr(store, "_history", (1, 1))
            waiting: asyncio.Future[Any] = asyncio.ensure_future(store.load("r1"))
        else:
            store = PostgresStore(url)
            waiting = asyncio.ensure_future(store.open())
        waits = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        while not (writes := db.execute(waits).fetchall()):
            await asyncio.sleep(0)
            assert not waiting.done()
        gone_by = 2 * connection.ANSWER_SECONDS
        for _ in range(50):
            await asyncio.sleep(0)  # whoever waited for an answer waits for it no longer
        assert db.execute(waits).fetchall() == writes and not waiting.done()
        locked.execute("COMMIT")
    await waiting
    assert await store.load("r1") is not None
    assert store.incarnation != before
    await refused(LeaseLost, store.commit(script.commit(ev.NoteAdded("late"))))
    await store.close()


async def test_a_run_of_which_only_the_log_is_left_is_mended() -> None:
    """§12.7: its row is made anew of its log, and the checker has nothing more to say."""
    url = shared().fresh("orphans")
    store = PostgresStore(url)
    await store.open()
    await store.register("w", TTL)
    await (await (await Script(store, "r1").begin("w")).steps(2)).complete()
    before = await store.get("r1")
    with shared().admin("orphans") as db:
        db.execute("DELETE FROM holdfast.run")
    assert await store.get("r1") is None
    report = await Repairer(store).repair("r1", apply=True, actor="ann")
    assert report.applied, report
    after = await store.get("r1")
    assert before is not None and after is not None and after[0].status == before[0].status == "completed"
    assert [p.code for p in await Checker(store).all() if p.severity == "error"] == []
    await store.close()


async def test_a_scan_of_a_shelf_reads_ranges_of_keys() -> None:
    """All of them have both bounds in the index; where a scan ends at its limit, so do the vouchers that it reads."""
    url = shared().fresh("scans")
    store = PostgresStore(url)
    await store.open()
    await store.shelve("cups", {f"{letter}/{n:03}": b"x" for letter in "abc" for n in range(300)})
    asked = besides.shelf_range("cups", "b/", "b/010") | {"limit": 3}
    with shared().admin("scans") as db:
        db.execute("ANALYZE")
        db.execute("SET enable_seqscan = off")  # so few rows would be read one after the other
        db.execute("SET enable_bitmapscan = off")
        for statement in (Q.shelf_scan, Q.vouch_shelf, Q.shelf_drop):
            dry = "" if statement is Q.shelf_drop else "(ANALYZE, TIMING OFF) "
            plan = "\n".join(str(row[0]) for row in db.execute(f"EXPLAIN {dry}{statement}".encode(), asked).fetchall())
            bounds = next((line for line in plan.splitlines() if "Index Cond" in line), "")
            assert "Seq Scan" not in plan and ">=" in bounds and "< " in bounds, plan
            if statement is Q.vouch_shelf:
                assert "Rows Removed by Filter" not in plan and re.search(r"vouch\S* .*rows=3(\.\d*)? loops=1", plan), plan
        db.execute("DELETE FROM holdfast.shelf WHERE key = 'b/012'")
    assert [key for key, _ in await store.shelf_scan("cups", "b/", limit=12)] == [f"b/{n:03}" for n in range(12)]
    for prefix, after, limit in [("b/", "", 13), ("b/01", "", 2 + 1), ("b", "b/011", 1), ("", "a/299", 100)]:
        with pytest.raises(RecordDamaged):
            await store.shelf_scan("cups", prefix, after, limit)
    assert len(await store.shelf_scan("cups", "b/", "b/012", 1000)) == 287
    await store.close()


async def test_what_is_seen_later_than_it_is_logged_is_news_when_it_is_seen() -> None:
    """A commit is in the log before others see it; here a standby that never answers keeps it there. Whoever looked meanwhile is told again."""
    store = PostgresStore(shared().fresh() + "&listen=")
    await store.open()
    await store.register("w", TTL)
    with shared().admin() as db, psycopg.connect(shared().dsn(), autocommit=True) as writer:
        writer.execute("SET synchronous_commit = on")
        try:
            db.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            db.execute("SELECT pg_reload_conf()")
            writing: asyncio.Future[Any] | None = None
            async with asyncio.timeout(60):
                while db.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'").fetchone() is None:  # the setting takes a moment
                    if writing is None or writing.done():
                        writing = asyncio.ensure_future(asyncio.to_thread(writer.execute, "UPDATE holdfast.meta SET value = value WHERE key = 'store'"))
                    await asyncio.to_thread(db.execute, "SELECT 1")
            assert writing is not None
            while await store.wait_for_change(0.3):
                pass  # that it was logged
            assert not writing.done()
        finally:
            db.execute("ALTER SYSTEM RESET synchronous_standby_names")
            db.execute("SELECT pg_reload_conf()")
        await writing
        assert await store.wait_for_change(5)
    await store.close()


async def test_who_cannot_listen_tries_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """§10.16: a notification is a hint; a server that gives none is not asked for it all the time. Nobody waits in earnest here."""
    asked, pauses, enough = 0, list[float](), asyncio.Event()
    sleep = asyncio.sleep

    async def unreachable(place: Place, *, conninfo: str) -> Any:
        nonlocal asked
        asked += 1
        if asked == 9:
            enough.set()
            await asyncio.Event().wait()
        raise OSError("nobody is there")

    async def paused(seconds: float) -> None:
        if seconds == 0 or seconds >= 0.1:  # a poll is quicker than that
            pauses.append(seconds)
        await sleep(0)

    async def look() -> int:
        return 1

    monkeypatch.setattr(news, "connect", unreachable)
    monkeypatch.setattr(asyncio, "sleep", paused)
    monkeypatch.setattr(news.random, "random", lambda: 0.5)
    pool: Any = object()
    hints = news.Hearing(Place("", "", listen="nobody"), look)
    hints.open(pool)
    waiting = asyncio.ensure_future(hints.wait(60, News.DUE))
    async with asyncio.timeout(60):
        await enough.wait()
    await hints.close()
    await asyncio.wait([waiting])
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


async def test_every_transaction_is_on_another_backend_of_the_pooler() -> None:
    """What stands for a pooler does what one does: what a session keeps is missed in the next transaction."""
    folder = pooled(shared().folder)
    async with await AsyncConnection.connect(f"host={folder} dbname=postgres user=holdfast", autocommit=True) as db:
        db.prepare_threshold = None
        seen = [(await (await db.execute("SELECT pg_backend_pid()")).fetchone() or (0,))[0] for _ in range(4)]
        assert PGBOUNCER or all(a != b for a, b in itertools.pairwise(seen))
        async with db.transaction():
            inside = [(await (await db.execute("SELECT pg_backend_pid()")).fetchone() or (0,))[0] for _ in range(3)]
        assert len(set(inside)) == 1


async def test_a_pooler_that_nobody_told_of_is_found_out() -> None:
    """Behind a pooler a prepared statement is another backend's: none is prepared any more, and what was asked is answered."""
    url = shared().fresh("pooled").replace(str(shared().folder), str(pooled(shared().folder)))
    store = PostgresStore(url + "&listen=")
    await store.open()
    await store.register("w", TTL)
    scripts = [await Script(store, f"r{i}").begin("w") for i in range(3)]
    for script in scripts:
        await script.steps(5)
    assert await store.verify() == []
    await store.close()


async def test_several_clients_of_a_pooler_that_nobody_told_of_work_and_say_so() -> None:
    """Each is handed the others' sessions. Nothing of theirs is executed, no error of it comes out, and the way out is said."""
    url = shared().fresh("pooled_many").replace(str(shared().folder), str(pooled(shared().folder)))
    stores = [PostgresStore(url) for _ in range(4)]
    await asyncio.gather(*[s.open() for s in stores])
    await asyncio.gather(*[s.register(f"w{i}", TTL) for i, s in enumerate(stores)])
    scripts = [await Script(s, f"r{i}").begin(f"w{i}") for i, s in enumerate(stores)]
    await asyncio.gather(*[script.steps(8) for script in scripts])
    for s in stores:
        assert await s.verify() == []
        (told,) = [p for p in await s.health() if p.code == "pooler_unnamed"]
        assert told.severity == "warning" and "pooler=transaction" in told.repair_hint
        assert "pooler_unnamed" not in {p.code for p in await s.verify()}
    with shared().admin("pooled_many") as look:
        assert look.execute("SELECT 1 FROM pg_stat_activity WHERE datname = 'pooled_many' AND query LIKE 'LISTEN%'").fetchall() == []
    for s in stores:
        await s.close()


@pytest.mark.parametrize("said", ["", "&pooler=session", "&pooler=transaction"])
async def test_of_a_pooler_nobody_is_told_who_knows(said: str) -> None:
    """Directly at the server there is none, and whoever says which one it is knows."""
    url = shared().fresh("pooled_said") + said
    store = PostgresStore(url if not said else url.replace(str(shared().folder), str(pooled(shared().folder))))
    await store.open()
    assert "pooler_unnamed" not in {p.code for p in await store.health()}
    await store.close()


def _begun(look: psycopg.Connection[tuple[object, ...]], pid: int) -> tuple[object, ...] | None:
    """Whether a session has written or locked anything in its transaction."""
    return look.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND backend_xid IS NOT NULL", (pid,)).fetchone()


async def test_whoever_is_cut_off_in_the_middle_of_a_message_keeps_no_run_locked() -> None:
    """A client that is stopped between two statements of one round trip is in no transaction that the server's own bound ends: whoever renews ends it."""
    store = PostgresStore(shared().fresh() + "&listen=")
    await store.open()
    await store.register("w", TTL)
    await Script(store, "r1").submit()
    stopped = await AsyncConnection.connect(shared().dsn(), autocommit=True, application_name="holdfast")

    async def sends() -> None:
        async with stopped.pipeline():
            await stopped.execute("SELECT id FROM holdfast.run FOR NO KEY UPDATE")
            async with asyncio.timeout(60):
                locked = None
                with shared().admin() as look:
                    while locked is None:  # before that it would have nothing to keep
                        locked = await asyncio.to_thread(_begun, look, stopped.info.backend_pid)
                putting = asyncio.ensure_future(store.put(signal("r1", "k", store.now())))
                while not putting.done():
                    await store.renew("w", TTL)
            assert [await putting] == await store.inbox("r1")

    with pytest.raises(OperationalError):
        await sends()
    await stopped.close()
    await store.close()


async def test_a_worker_whose_renewals_were_lost_is_waited_for() -> None:
    """§1.9: after a failover that lost the tail its lease looks as if it had run out; what it remembers counts for one TTL all the same."""
    now = 1_700_000_000_000_000
    store = PostgresStore(shared().fresh("spoken") + "&listen=", now=lambda: now)
    await store.open()
    await store.register("w", TTL)
    moved = now + 3 * TTL
    with shared().admin("spoken") as db:

        def waited_for(at: int) -> bool:
            return db.execute(Q.unspoken.encode(), {"moved": moved, "now": at}).fetchone() is not None

        assert [waited_for(moved + after) for after in (0, TTL - 1, TTL + 1)] == [True, True, False]
        now = moved + 1
        await store.renew("w", TTL)
        assert not waited_for(now)
    await store.close()


async def test_what_is_driven_here_is_marked_also_after_another_owner_has_gone() -> None:
    """§5.6: whose inbox holds something is looked up by the runs that this process knows to be its own, as long as it knows them all."""
    store = PostgresStore(shared().fresh() + "&listen=")
    await store.open()
    await store.register("w", TTL)
    await store.register("v", TTL)
    await Script(store, "r1").submit()
    await Script(store, "r2").submit()
    assert {c.run_id for c in await store.claim("w", (), None, limit=5)} == {"r1", "r2"}
    assert await store.find_marked("w") == []
    await store.put(signal("r1", "k", store.now()))
    assert await store.find_marked("w") == ["r1"]
    await store.retire("v")
    assert await store.find_marked("w") == ["r1"] and await store.find_marked("v") == []
    await store.close()


@pytest.mark.parametrize("state", ["25P04", "25P03", "57P05", "57014", "55P03"])
def test_what_a_limit_of_the_server_has_ended_passes(state: str) -> None:
    """A transaction, a session, a statement or a lock that took too long this once is tried again, and no worker ends by it."""
    error = type("Ended", (psycopg.OperationalError,), {"sqlstate": state})("too long")
    assert connection.passing(error) and isinstance(translate(error, "postgresql://h/d"), StoreUnavailable)
