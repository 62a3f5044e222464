"""How PostgreSQL finds what it is asked for: which plans last, and that narrow indexes find what they are for."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

import pytest
from psycopg import Connection as Psycopg
from tests.postgres.server import shared

from holdfast.core.status import Status
from holdfast.ports import RunFilter
from holdfast.stores import PostgresStore
from holdfast.stores.postgres import connection
from holdfast.stores.postgres.queries import MOVES, TAKES, Q
from holdfast.stores.postgres.wire import Connection, Exchange, Statement
from holdfast.testing.conformance import TTL, Script

MANY = 3000
PLANS = "SELECT custom_plans, generic_plans FROM pg_prepared_statements WHERE statement LIKE '%taken AS%'"
SETTINGS = "SELECT count(*) FROM pg_settings WHERE source = 'session' AND name IN ('plan_cache_mode', 'jit', 'enable_seqscan', 'enable_bitmapscan', 'enable_mergejoin', 'enable_hashjoin')"
ROWS_READ = (
    "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname = 'run') + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'run')"
)


async def test_a_claim_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would plan it anew each time, which takes longer than to carry it out. Nothing of that stays in the session."""
    made: list[Connection] = []
    learn = connection.taught

    def taught(db: Connection) -> None:
        made.append(db)
        learn(db)

    monkeypatch.setattr(connection, "taught", taught)
    store = PostgresStore(shared().fresh() + "&listen=", clock=lambda: 0.0)  # each of its connections rests between its statements
    await store.open()
    await store.register("w", TTL)
    for n in range(12):
        await Script(store, f"r{n}").submit()
        assert len(await store.claim("w", (), None, limit=5)) == 1
    found = [await db.ask((PLANS, None), (SETTINGS, None)) for db in made if not db.closed]
    await store.close()
    plans = [row for rows, _ in found for row in rows]
    assert plans and all(custom == 0 and generic >= 5 for custom, generic in plans), plans
    assert all(left == [(0,)] for _, left in found)


@pytest.mark.parametrize("count", [30, 300, MANY])
@pytest.mark.parametrize("partitions", [0, 4])
async def test_a_row_that_was_locked_is_written_by_its_place(partitions: int, count: int) -> None:
    """And not found a second time by its name, which costs more, in some collations several times as much. Nor are all names gone through where there are few:
    plans last, and there may be more by then."""
    database = f"places_{partitions}"
    store = PostgresStore(shared().fresh(database) + (f"&partitions={partitions}" if partitions else ""))
    await store.open()
    await Script(store, "r1").submit()
    await store.close()
    with shared().admin(database) as db:
        copied(db, count)
        db.execute("VACUUM (FULL, ANALYZE) holdfast.run")
        for text, updates in ((Q.claim, 2), (Q.claim_single, 1), (MOVES.for_many, 1), (MOVES.for_one, 1), (TAKES.for_many, 1), (TAKES.for_one, 1)):
            names: dict[str, int] = {}
            numbered = re.sub(r"%\((\w+)\)[sb]", lambda m: f"${names.setdefault(m[1], len(names) + 1)}", text)  # noqa: B023
            db.execute("BEGIN")
            db.execute(Q.planned_once)
            plan = "\n".join(str(line) for (line,) in db.execute(f"EXPLAIN (GENERIC_PLAN) {numbered}".encode()).fetchall())
            db.execute("COMMIT")
            if count == MANY:  # of few, or in a partition that is empty, one may be looked up by its name
                assert len(re.findall("TID Cond: .*place = ctid", plan)) >= updates, plan
            assert "Merge Cond" not in plan and "Hash Cond" not in plan, plan
            assert not re.search(r"run_pkey on .*\n(?! *Index Cond: .*run_id)", plan), plan


def copied(db: Psycopg[tuple[object, ...]], count: int) -> None:
    """Of the one run that is there: so many in its thread and its lineage, and in a session of others."""
    columns = [str(c) for (c,) in db.execute("SELECT attname FROM pg_attribute WHERE attrelid = 'holdfast.run'::regclass AND attnum > 0 AND NOT attisdropped")]
    other = {"id": "r.id + n", "turn": "r.turn + n", "run_id": "'r1-' || lpad(n::text, 8, '0')", "session_key": "'s' || n % 100", "lane": "'l' || n", "holds": "n % 2 = 0"}
    picked = ", ".join(other.get(c, f"r.{c}") for c in columns)
    db.execute(f"INSERT INTO holdfast.run ({', '.join(columns)}) SELECT {picked} FROM holdfast.run r, generate_series(1, {count}) n".encode())
    db.execute(f"INSERT INTO holdfast.doc (bucket, run, data) SELECT d.bucket, d.run + n, d.data FROM holdfast.doc d, generate_series(1, {count}) n".encode())


def rows_read() -> int:
    """As those connections tell that have ended."""
    with shared().admin() as db:
        until = time.monotonic() + 60
        while db.execute("SELECT 1 FROM pg_stat_activity WHERE datname = 'holdfast' AND usename = 'holdfast'").fetchone():
            assert time.monotonic() < until, "the connections of a closed store end"
    with shared().admin("holdfast") as db:
        found = db.execute(ROWS_READ).fetchone()
    assert found is not None
    return int(str(found[0]))


@pytest.mark.parametrize(
    ("query", "most"),
    [
        (RunFilter(thread_id="r1", limit=2), 30),
        (RunFilter(thread_id="r1", limit=2, by_turn=True), 30),
        (RunFilter(lineage_root="r1", limit=2), 30),
        (RunFilter(limit=2), 30),
        (RunFilter(thread_id="r1", before="r1-00000001", limit=2), 30),
        (RunFilter(tenant_id="default", session_key="s7", statuses=(Status.PENDING,), limit=2, by_turn=True), 300),
        (RunFilter(statuses=(Status.PENDING,), limit=2), 30),
    ],
    ids=["thread", "turns", "lineage", "all", "named", "session", "status"],
)
async def test_a_listing_is_looked_up(query: RunFilter, most: int) -> None:
    """Also of the run that a thread or a lineage is called by, which is in no index of threads and lineages; asked until its plan is one for any values."""
    url = shared().fresh()
    store = PostgresStore(url)
    await store.open()
    await Script(store, "r1").submit()
    with shared().admin("holdfast") as db:
        copied(db, MANY)
        db.execute("VACUUM (INDEX_CLEANUP ON, ANALYZE) holdfast.run")  # what earlier tests left behind under the same names is not to be read here
    await store.close()
    before = rows_read()
    await store.open()
    for _ in range(10):
        assert len(await store.runs(query)) == (1 if query.before else 2)
    await store.close()
    read = rows_read() - before
    assert read < 10 * most, read


async def test_logs_without_a_run_are_looked_for_once_for_all_pages_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find them every log is gone through. Whoever goes on with pages that another began looks for them too."""
    url, asked = f"{shared().fresh()}&listen=", 0
    begin = Connection.begin

    def noted(self: Connection, statements: Sequence[Statement], over: Callable[[], None]) -> Exchange:
        nonlocal asked
        asked += sum(text == Q.log_orphans for text, _ in statements)
        return begin(self, statements, over)

    monkeypatch.setattr(Connection, "begin", noted)
    store = PostgresStore(url)
    await store.open()
    names = [f"r{n}" for n in range(5)]
    for name in names:
        await Script(store, name).submit()
    with shared().admin("holdfast") as db:
        db.execute("DELETE FROM holdfast.run WHERE run_id = 'r3'")
    pages = [await store.run_ids(limit=2), await store.run_ids("r1", 2), await store.run_ids("r4", 2)]
    assert (pages, asked) == ([["r0", "r1"], ["r2", "r3", "r4"], []], 1)
    await store.close()
    other = PostgresStore(url)
    await other.open()
    assert (await other.run_ids("r1", 2), asked) == (["r2", "r3", "r4"], 2)
    await other.close()
