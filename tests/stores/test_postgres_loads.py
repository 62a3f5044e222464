"""What a verb costs over PostgreSQL, counted: beside two thousand runs of its session as much as beside fifty (§10.8).

All runs of a session lie in one bucket, so that an index of the bucket alone finds all of them. The plan of a statement that was prepared while the
tables were nearly empty uses such an index, or none, and the server keeps it until it hears of new statistics. Here it hears of none: what makes it plan
anew is the store, which lets go of its plans as its clock goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest
from psycopg import Connection
from tests.postgres.server import shared

from holdfast.core import canon, ids
from holdfast.core import events as ev
from holdfast.core.chunks import Batch, Emitted, Place, Turn
from holdfast.core.commit import LedgerRow
from holdfast.core.tokens import Token
from holdfast.stores import PostgresStore
from holdfast.stores.postgres.wire import GREATEST_AGE
from holdfast.testing.conformance import TTL, Script, effect, signal

FEW, MANY = 50, 2_000
USES = 10  # a statement is prepared when it is used again, and from the sixth time on its plan is one for any values
MORE_ROWS, MORE_BLOCKS = 20, 16  # of each use: entries of what was taken or settled meanwhile are passed over, and an index of two thousand is higher
RUN = {"run": "run_id", "doc": "run", "log": "run", "whole": "run", "inbox": "run", "vouch": "run", "effect": "run_id", "token": "run_id", "ledger": "run_id", "chunk": "run_id"}


def name(number: int) -> str:
    """The id of a run of the one session."""
    return ids.run_id(1_000_000_000_000_000 + number, number, "default", "s")


ONE, TOLD, DRIVEN = name(0), name(1), name(2)


class Case:
    """A store with two runs at rest, of which one gets signals, and one in the middle of its steps."""

    def __init__(self, store: PostgresStore, script: Script) -> None:
        self.store, self.script = store, script
        self.number = 1_000_000

    def key(self) -> str:
        """Another one each time."""
        self.number += 1
        return f"k{self.number}"


Verb = Callable[[Case], Awaitable[object]]
VERBS: dict[str, Verb] = {
    "get": lambda c: c.store.get(ONE),
    "load": lambda c: c.store.load(ONE),
    "rows": lambda c: c.store.rows(ONE),
    "rows_after": lambda c: c.store.rows(ONE, 9, 3),
    "heads": lambda c: c.store.heads([ONE]),
    "inbox": lambda c: c.store.inbox(ONE),
    "inbox_taken": lambda c: c.store.inbox(ONE, taken=True),
    "effects": lambda c: c.store.effects(ONE),
    "ledger": lambda c: c.store.ledger(ONE),
    "intents": lambda c: c.store.intents(ONE),
    "chunks": lambda c: c.store.chunks(ONE),
    "claims_of": lambda c: c.store.claims_of(ONE),
    "token": lambda c: c.store.token(ONE.encode()),
    "find_marked": lambda c: c.store.find_marked("w"),
    "step": lambda c: c.script.steps(1),
    "emit": lambda c: c.store.emit([emitted(c.script)]),
}


def verb(function: Verb) -> Verb:
    VERBS[function.__name__] = function
    return function


@verb
async def put(c: Case) -> None:
    await c.store.put(signal(TOLD, c.key(), c.store.now()))


@verb
async def redeem(c: Case) -> None:
    hash, item = c.key().encode(), signal(TOLD, c.key(), c.store.now())
    await c.store.issue_token(Token(hash, TOLD, "w1", "default", "ada", c.store.now(), c.store.now() + TTL))
    await c.store.redeem_token(hash, item)


@verb
async def take_from_the_inbox(c: Case) -> None:
    key = c.key()
    await c.store.put(signal(DRIVEN, key, c.store.now()))
    await c.script.write(c.script.commit(ev.NoteAdded("taken"), took=(f"signal:go:{key}",)))


@verb
async def attempt(c: Case) -> None:
    key = c.key()
    await c.script.write(c.script.commit(ev.SideEffectAttempted(f"{DRIVEN}.{key}", key), effects=(effect(DRIVEN, int(key[1:]), key),)))


@verb
async def birth(c: Case) -> None:
    await Script(c.store, name(int(c.key()[1:])), session_key="s", thread_id="t", lane=c.key()).submit()


def emitted(script: Script) -> Emitted:
    return Emitted(script.run_id, script.fence, (Batch(Turn(Place(1, "node"), 1, 1, 0, "s1", "t1"), 1, 1, (b"1",)),))


async def lived(store: PostgresStore, run_id: str, steps: int) -> Script:
    """A run with a log, and a record of each kind beside it."""
    script = await Script(store, run_id, session_key="s", thread_id="t", lane=run_id).begin("w")
    for key in ("k1", "k2"):
        await store.put(signal(run_id, key, store.now()))
    await script.write(script.commit(ev.NoteAdded("taken"), took=("signal:go:k1",)))
    await script.steps(steps, size=6_000)
    row = LedgerRow(run_id, "topic", run_id, canon.encode(1), store.now())
    await script.write(script.commit(ev.SideEffectAttempted(f"{run_id}.x1", run_id), effects=(effect(run_id, 1, run_id),), ledger=(row,)))
    await store.emit([emitted(script)])
    await store.issue_token(Token(run_id.encode(), run_id, "w1", "default", "ada", store.now(), store.now() + TTL))
    return script


def copied(db: Connection[tuple[object, ...]], source: str, names: list[str]) -> None:
    """More runs like one that is there, with all that is beside it: written as rows, since thousands of them would take too long to live."""
    db.execute("CREATE TEMP TABLE IF NOT EXISTS copy (name text, id bigint)")
    db.execute("DELETE FROM copy")
    db.execute("INSERT INTO copy SELECT x, nextval('holdfast.number') FROM unnest(%s::text[]) AS x", (names,))
    (found,) = db.execute("SELECT id FROM holdfast.run WHERE run_id = %s", (source,)).fetchone() or (0,)
    for table, which in RUN.items():
        columns = db.execute("SELECT attname, atttypid::regtype::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''", (f"holdfast.{table}",)).fetchall()
        named = "replace(replace(o.{}, '" + source + "', c.name), '" + source.encode().hex() + "', encode(convert_to(c.name, 'UTF8'), 'hex'))"  # a token's id is its hash
        to = {str(c): named.format(c) if type == "text" else f"o.{c}" for c, type in columns}
        if which == "run" and table != "vouch":
            to["run"] = "c.id"
        if table == "run":
            to["id"] = to["turn"] = "c.id"
        for number in to.keys() & {"id", "serial"} if table not in ("run", "vouch") else ():
            to[number] = "nextval('holdfast.number')"
        if table == "token":
            to["hash"] = "convert_to(c.name, 'UTF8')"
        where = found if to[which] == "c.id" else source
        db.execute(f"INSERT INTO holdfast.{table} ({', '.join(to)}) SELECT {', '.join(to.values())} FROM holdfast.{table} o, copy c WHERE o.{which} = %s".encode(), (where,))
    db.execute("SELECT pg_stat_force_next_flush()")


class Read(NamedTuple):
    """What the server has read of one table."""

    rows: int
    blocks: int


# A session tells of what it has read now and then, and when it has run this function.
TELLS = """CREATE OR REPLACE FUNCTION public.tell() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_stat_force_next_flush(); RETURN NULL; END';
CREATE TRIGGER tell AFTER INSERT ON holdfast.shelf FOR EACH STATEMENT EXECUTE FUNCTION public.tell()"""
LOOK = """SELECT t.relname, coalesce(t.seq_tup_read, 0) + coalesce(i.read, 0), coalesce(b.heap_blks_hit, 0) + coalesce(b.heap_blks_read, 0) + coalesce(b.idx_blks_hit, 0) + coalesce(b.idx_blks_read, 0)
FROM pg_stat_user_tables t JOIN pg_statio_user_tables b USING (relid)
LEFT JOIN (SELECT relid, sum(idx_tup_read) AS read FROM pg_stat_user_indexes GROUP BY relid) i USING (relid) WHERE t.schemaname = 'holdfast'"""


def told(db: Connection[tuple[object, ...]]) -> dict[str, Read]:
    return {str(table): Read(int(str(rows)), int(str(blocks))) for table, rows, blocks in db.execute(LOOK).fetchall()}


async def reads(case: Case, db: Connection[tuple[object, ...]]) -> dict[str, dict[str, Read]]:
    """What each verb reads of each table in some uses."""
    found: dict[str, dict[str, Read]] = {}
    for what, do in VERBS.items():
        await case.store.shelve("told", {"before": b""})
        before = told(db)
        for _ in range(USES):
            await do(case)
        await case.store.shelve("told", {"after": b""})
        found[what] = {table: Read(rows - before[table].rows, blocks - before[table].blocks) for table, (rows, blocks) in told(db).items()}
    return found


@pytest.mark.parametrize("known", ["nothing", "that_it_was_empty", "that_it_had_few"])
async def test_a_verb_reads_no_more_beside_many_runs_of_its_session(known: str) -> None:
    with shared().admin() as db:
        db.execute("DROP DATABASE IF EXISTS loads WITH (FORCE)")
    elapsed = 0.0
    store = PostgresStore(f"{shared().fresh('loads')}&listen=", clock=lambda: elapsed)
    await store.open()
    try:
        await store.register("w", TTL)
        with shared().admin("loads") as db:
            db.execute(TELLS)
            for table in RUN:
                db.execute(f"ALTER TABLE holdfast.{table} SET (autovacuum_enabled = false)".encode())
            if known == "that_it_was_empty":
                db.execute("ANALYZE")
            case = Case(store, await lived(store, DRIVEN, 3))
            for run_id in (ONE, TOLD):
                await (await lived(store, run_id, 12)).wait()
            await reads(case, db)
            names = [name(n) for n in range(3, MANY)]
            copied(db, ONE, names[: FEW - 3])
            if known == "that_it_had_few":
                db.execute("ANALYZE")
            elapsed += GREATEST_AGE
            few = await reads(case, db)
            copied(db, ONE, names[FEW - 3 :])
            elapsed += GREATEST_AGE
            many = await reads(case, db)
    finally:
        await store.close()
    more = {
        what: {table: (few[what][table], read) for table, read in tables.items() if read.rows > few[what][table].rows + USES * MORE_ROWS or read.blocks > few[what][table].blocks + USES * MORE_BLOCKS}
        for what, tables in many.items()
    }
    assert {what: tables for what, tables in more.items() if tables} == {}
