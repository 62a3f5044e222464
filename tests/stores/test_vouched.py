"""X-21: whatever lies beside the log is vouched for; what is altered, deleted, swapped or put back from an older copy is named."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, Protocol

import apsw
import psycopg
import pytest
from msgspec.structs import replace
from tests.postgres.server import shared

from holdfast import Context, Graph, Runtime, State, append, thread
from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.chunks import Batch, Emitted, Place, Turn
from holdfast.core.commit import DedupClaim, LedgerRow
from holdfast.core.effects import EffectStatus
from holdfast.core.errors import LogRolledBack, RecordDamaged
from holdfast.core.limits import Change, Limit, Rule
from holdfast.core.offers import Offer
from holdfast.core.tokens import hash_secret
from holdfast.core.vouch import shelf_seal
from holdfast.engine.keep.check import Checker, keeper
from holdfast.engine.keep.repair import Repairer
from holdfast.ports import Shelves, Store
from holdfast.stores import PostgresStore, SqliteStore
from holdfast.stores.evidence import STANDING
from holdfast.testing.conformance import TTL, Script, effect, refused, signal
from holdfast.testing.conformance_outbox import intent
from holdfast.testing.conformance_people import link, plan


class Kept(Store, Shelves, Protocol):
    """A store with all its verbs."""


Read = Callable[[Kept, str], Awaitable[Any]]


class Harness:
    """The harness that the conformance suite's helpers want."""

    def __init__(self, store: Kept) -> None:
        self.store = store


async def populated(store: Kept, run_id: str) -> None:
    """A run that has two of everything beside its log."""
    script = await Script(store, run_id).begin("w", claims=tuple(DedupClaim("request", "t", f"{run_id}{n}", run_id, "d", None) for n in "ab"))
    records = [effect(run_id, n, f"{run_id}.k{n}") for n in (1, 2)]
    await script.write(script.commit(ev.SideEffectAttempted(f"{run_id}.x1", f"{run_id}.k1"), effects=tuple(records)))
    done = tuple(replace(e, status=EffectStatus.RECORDED, result=canon.encode(e.effect_id)) for e in records)
    rows = tuple(LedgerRow(run_id, "t", f"k{n}", canon.encode(n), 1) for n in (1, 2))
    mail = tuple(intent(run_id, f"{run_id}.i{n}", store.now()) for n in (1, 2))
    await script.write(script.commit(ev.SideEffectRecorded(f"{run_id}.x1", f"{run_id}.k1"), effects=done, ledger=rows, intents=mail))
    await script.wait()
    for n in "ab":
        await store.put(signal(run_id, f"{run_id}{n}", 0))
        await store.issue_token(replace(link(Harness(store), f"{run_id}{n}"), run_id=run_id))  # type: ignore[arg-type]
        await store.shelve("cups", {f"{run_id}{n}": n.encode()})


KINDS = ("effect", "inbox", "claim", "token", "intent", "ledger", "schedule", "shelf")
READS: dict[str, Read] = {
    "effect": lambda s, r: s.effects(r),
    "inbox": lambda s, r: s.load(r),
    "claim": lambda s, r: s.find_claim("request", "t", f"{r}a"),
    "token": lambda s, r: s.token(hash_secret(f"{r}a")),
    "intent": lambda s, r: s.intents(r),
    "ledger": lambda s, r: s.ledger(r),
    "schedule": lambda s, r: s.schedule(f"s{r[1:]}"),
    "shelf": lambda s, r: s.find_shelved("cups", f"{r}a"),
}
OWN = ("schedule", "shelf")
FIRST = {
    "inbox": "run = (SELECT id FROM run WHERE run_id = 'r1') AND key LIKE '%r1a'",
    "token": f"hash = x'{hash_secret('r1a').hex()}'",
    "claim": "key = 'r1a'",
    "schedule": "schedule_id = 's1'",
    "effect": "effect_id = 'r1.x1'",
    "intent": "intent_id = 'r1.i1'",
    "ledger": "run_id = 'r1' AND key = 'k1'",
    "shelf": "key = 'r1a'",
}
OTHER = {
    "TEXT": "ifnull({0}, '') || 'x'", "BLOB": "CAST({0} || x'00' AS BLOB)", "INTEGER": "ifnull({0}, 0) + 1",
    "text": "coalesce({0}, '') || 'x'", "bytea": "{0} || '\\x00'::bytea", "bigint": "coalesce({0}, 0) + 1", "integer": "{0} + 1", "smallint": "{0} + 1",
    "boolean": "NOT {0}", "json": "'[0]'",
}
PLAIN = ("hash", "schedule_id", "effect_id", "intent_id", "key", "run", "run_id", "bucket", "name")  # by what a record is found: it has its own


async def pruned(store: Kept, run_id: str) -> None:
    """A run that had a link, and of which a note is left."""
    script = await Script(store, run_id).begin("w")
    await store.issue_token(replace(link(Harness(store), run_id), run_id=run_id))  # type: ignore[arg-type]
    await script.complete()
    assert run_id in (await keeper(store).prune(store.now() + 1)).run_ids


async def fill(store: Kept) -> None:
    await store.open()
    await store.register("w", 10**6 * TTL)
    for run_id in ("r1", "r2"):
        await populated(store, run_id)
    for name in ("s1", "s2"):
        await store.put_schedule(plan(name, 5), None)
        set_ = Change(1, "ada", "set", Limit(in_flight=1, per_second=5))
        assert await store.put_rule(Rule(f"limit {name}").change(set_), None)
        assert await store.enter("w", f"r{name[1:]}", f"r{name[1:]}.a", {f"limit {name}": None}) is None
    assert await store.enter("w", "r2", "r2.b", {"limit s1": None}, resting=True) is not None
    for name in ("p1", "p2"):
        await pruned(store, name)
    assert await Checker(store).all() == []
    await store.close()
    async with Runtime(store, skills=[talk()]) as rt:
        for text in ("first", "second"):
            assert (await rt.invoke("talk", {"said": [text * 100]}, thread_id="t")).status == "completed"


class Said(State):
    said: Annotated[list[str], append, thread]


def talk() -> Graph[Said]:
    made = Graph("talk", Said, version="1")

    @made.node(start=True)
    async def answer(state: Said, ctx: Context) -> dict[str, Any]:
        return {"said": [await ctx.effect(at_length, len(state.said))]}

    return made


async def at_length(n: int) -> str:
    return str(n) * 70_000


class InSqlite:
    """Copies of a populated store in a file, altered by hand."""

    separator = "char(31)"

    def __init__(self, folder: Path) -> None:
        self._whole, self._folder, self._count = folder / "s.db", folder, 0
        asyncio.run(fill(SqliteStore(self._whole)))

    @contextlib.asynccontextmanager
    async def after(self, *statements: str) -> AsyncIterator[Kept]:
        """A copy of the store, open, after statements by hand, each of which changed something."""
        self._count += 1
        path = self._folder / str(self._count) / "s.db"
        path.parent.mkdir()
        for suffix in ("", "-anchor"):
            shutil.copy(f"{self._whole}{suffix}", f"{path}{suffix}")
        with contextlib.closing(apsw.Connection(str(path))) as db:
            for statement in statements:
                db.execute(statement)
                assert db.total_changes(), statement
        store = SqliteStore(path)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    def blob(self, data: bytes) -> str:
        """Bytes in a statement by hand."""
        return f"x'{data.hex()}'"

    def hand(self, statement: str) -> None:
        """Alters the copy that is open."""
        with contextlib.closing(apsw.Connection(str(self._folder / str(self._count) / "s.db"))) as db:
            db.execute(statement)

    def columns(self, table: str) -> dict[str, str]:
        with contextlib.closing(apsw.Connection(str(self._whole))) as db:
            found = {str(name): str(kind) for _, name, kind, *_ in db.execute(f"PRAGMA table_info({table})")}
        moves_on = ("id", "lease_until", "ticks") if table == "intent" else ("id",)  # how long a sender may take is renewed without its voucher
        return {name: kind for name, kind in found.items() if name not in moves_on}


class InPostgres:
    """A populated store in a database: altered by hand, and put back as it was."""

    separator = "chr(31)"

    def __init__(self) -> None:
        self._url, self._server = shared().fresh("vouched"), shared()
        self._touched: set[str] = set()
        asyncio.run(fill(PostgresStore(self._url)))
        with self._by_hand() as db:
            db.execute("DROP SCHEMA IF EXISTS saved CASCADE; CREATE SCHEMA saved")
            self._tables = [name for (name,) in db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'")]
            for table in self._tables:
                db.execute(f"CREATE TABLE saved.{table} AS SELECT * FROM {table}".encode())

    def _by_hand(self) -> psycopg.Connection[Any]:
        db = self._server.admin("vouched")
        db.execute("SET search_path TO holdfast")
        return db

    @contextlib.asynccontextmanager
    async def after(self, *statements: str) -> AsyncIterator[Kept]:
        with self._by_hand() as db:
            for table in self._tables if "all" in self._touched else self._touched:
                db.execute(f"DELETE FROM {table}; INSERT INTO {table} SELECT * FROM saved.{table}".encode())
            self._touched = {statement.replace("FROM ", "").split()[1] for statement in statements}
            for statement in statements:
                assert db.execute(statement.replace("= x'", "= '\\x").encode()).rowcount, statement
        store = PostgresStore(self._url)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    def blob(self, data: bytes) -> str:
        return f"'\\x{data.hex()}'::bytea"

    def hand(self, statement: str) -> None:
        self._touched = {"all"}
        with self._by_hand() as db:
            db.execute(statement.encode())

    def columns(self, table: str) -> dict[str, str]:
        asked = "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'holdfast' AND table_name = %s"
        with self._by_hand() as db:
            return {name: kind for name, kind in db.execute(asked, (table,)) if name not in ("id", "lease_until")}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> InSqlite | InPostgres:
    return InSqlite(tmp_path_factory.mktemp("vouched")) if request.param == "sqlite" else InPostgres()


@pytest.fixture(scope="module")
def in_sqlite(tmp_path_factory: pytest.TempPathFactory) -> InSqlite:
    return InSqlite(tmp_path_factory.mktemp("whole"))


async def codes(store: Kept) -> set[str]:
    return {p.code for p in await Checker(store).all() if p.run_id != "r2"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_deleted_record_is_named(kept: InSqlite | InPostgres, kind: str) -> None:
    """§12.1, X-21: by the checker and by whoever reads it, with run and record; the other run is not harmed."""
    async with kept.after(f"DELETE FROM {kind} WHERE {FIRST[kind]}") as store:
        assert f"{kind}_record_missing" in await codes(store)
        error = await refused(RecordDamaged, READS[kind](store, "r1"), f"{kind}_record_missing")
        assert isinstance(error, RecordDamaged)
        assert error.run_id == ("" if kind in OWN else "r1") and error.record and error.hint
        assert await READS[kind](store, "r2")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_table_that_lost_all_its_rows_is_named(kept: InSqlite | InPostgres, kind: str) -> None:
    """§12.1: what tells of records outlives them."""
    async with kept.after(f"DELETE FROM {kind}") as store:
        assert f"{kind}_record_missing" in await codes(store)
        await refused(RecordDamaged, READS[kind](store, "r2"), f"{kind}_record_missing")


@pytest.mark.parametrize("kind", KINDS)
async def test_an_altered_record_is_named(kept: InSqlite | InPostgres, kind: str) -> None:
    """§12.1, X-21: whichever of its columns; the other run is not harmed."""
    for name, type_ in kept.columns(kind).items():
        async with kept.after(f"UPDATE {kind} SET {name} = {OTHER[type_].format(name)} WHERE {FIRST[kind]}") as store:
            assert await codes(store) & {f"{kind}_record_altered", f"{kind}_record_missing"}, name
            if name != "json":  # for people who look with SQL
                await refused(RecordDamaged, READS[kind](store, "r1"))
            assert name == "run" or await READS[kind](store, "r2"), name  # what was moved into it harms it too


@pytest.mark.parametrize("kind", ["effect", "inbox", "intent", "ledger", "schedule"])
async def test_a_record_that_was_moved_in_its_order_is_named(kept: InSqlite | InPostgres, kind: str) -> None:
    """§12.1: by the number that a database gives it a record comes before others: moved to the front or the end it is damaged: its checksum does not match."""
    for id in (-1, 0, 10**9):
        async with kept.after(f"UPDATE {kind} SET id = {id} WHERE {FIRST[kind]}") as store:
            assert await codes(store) & {f"{kind}_record_altered", f"{kind}_record_missing"}, id
            await refused(RecordDamaged, READS[kind](store, "r1"))
            assert await READS[kind](store, "r2")
            if kind != "ledger":  # its number is its id: the operator takes the new one
                await store.vouch_anew()  # type: ignore[attr-defined]
                assert await codes(store) == set()
                assert await READS[kind](store, "r1")
        kept.hand("SELECT 1")


@pytest.mark.parametrize("clocks", ["lease_until", "ticks"])
async def test_a_sender_s_lease_that_was_made_longer_is_named(kept: InSqlite | InPostgres, clocks: str) -> None:
    """§9.1, §12.1: no sender has longer than it was given: an intent is not kept from its next attempt for years without a word."""
    if clocks == "ticks" and isinstance(kept, InPostgres):
        return  # there the server's clock decides
    async with kept.after() as store:
        if clocks == "ticks":
            await store.register("d1", TTL)
        (taken,) = await store.claim_intents("d1", ("mail",), limit=1, ttl_us=TTL, run_id="r1")
        assert "intent_record_altered" not in await codes(store)
        kept.hand(f"UPDATE intent SET {clocks} = {clocks} + 1000000000000000 WHERE intent_id = '{taken.intent_id}'")
        assert {p.message for p in await Checker(store).all() if p.code == "intent_record_altered"} == {f"the intent record '{taken.intent_id}' of r1 is damaged: its checksum does not match"}
        await store.renew_intents("d1", TTL)
        assert "intent_record_altered" not in await codes(store), "a sender that lives writes it anew"
        kept.hand(f"UPDATE intent SET {clocks} = {clocks} + 1000000000000000 WHERE intent_id = '{taken.intent_id}'")
        await store.vouch_anew()  # type: ignore[attr-defined]
        assert "intent_record_altered" not in await codes(store)
        assert taken.intent_id in [i.intent_id for i in await store.claim_intents("d2", ("mail",), limit=5, ttl_us=TTL, run_id="r1")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_swap_is_named(kept: InSqlite | InPostgres, kind: str) -> None:
    """§12.1: a record vouches for its place: the content of another, sound in itself, is not its own."""
    where, content = FIRST[kind], [n for n in kept.columns(kind) if n not in PLAIN]
    content, theirs = (["run_id"], "key LIKE 'r2%'") if kind == "claim" else (content, f"NOT ({where})")
    taken = f"SELECT {', '.join(content)} FROM {kind} WHERE {theirs} LIMIT 1"
    async with kept.after(f"UPDATE {kind} SET ({', '.join(content)}) = ({taken}) WHERE {where}") as store:
        assert f"{kind}_record_altered" in await codes(store)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_voucher_is_named(kept: InSqlite | InPostgres, kind: str) -> None:
    """§12.1: a record that nothing vouches for might be any."""
    async with kept.after(f"DELETE FROM vouch WHERE kind = '{kind}'") as store:
        assert f"{kind}_record_altered" in await codes(store)
        await refused(RecordDamaged, READS[kind](store, "r1"), f"{kind}_record_altered")


@pytest.mark.parametrize(("kind", "table"), [("limit", "rule"), ("bucket", "bucket"), ("call", "call")])
async def test_limits_are_vouched_for(kept: InSqlite | InPostgres, kind: str, table: str) -> None:
    """§12.1, §10.11: what was set, what rates have given, who holds what: a row that is altered, lost or swapped is named."""
    for name, type_ in kept.columns(table).items():
        async with kept.after(f"UPDATE {table} SET {name} = {OTHER[type_].format(name)} WHERE {name} IN (SELECT {name} FROM {table} WHERE {name} IS NOT NULL LIMIT 1)") as store:
            assert await codes(store) & {f"{kind}_record_altered", f"{kind}_record_missing"}, name
    async with kept.after(f"DELETE FROM {table}") as store:
        assert f"{kind}_record_missing" in await codes(store)
        if kind == "limit":
            await refused(RecordDamaged, store.rules(), "limit_record_missing")
        await store.vouch_anew()  # type: ignore[attr-defined]
        assert await codes(store) == set()


async def test_what_a_limit_is_used_for_leaves_nothing_behind(kept: InSqlite | InPostgres) -> None:
    """§12.1: calls that end, are lost with their owner or go with their run take along what vouches for them."""
    async with kept.after() as store:
        await store.leave("w", ["r1.a"])
        assert await store.enter("w", "r2", "r2.b", {"limit s1": None}) is None
        assert await codes(store) == set()
        await store.retire("w")
        await store.register("v", TTL)
        assert await store.enter("v", "r2", "r2.c", {"limit s2": Limit(in_flight=1, per_second=1000)}) is None
        assert {code for code in await codes(store) if "_record_" in code} == set()
    kept.hand("SELECT 1")


@pytest.mark.parametrize("name", STANDING)
async def test_what_a_run_s_row_says_beside_its_log_is_vouched_for(kept: InSqlite | InPostgres, name: str) -> None:
    """§12.1: an altered fence, owner, time, lane or place in it is named, and mended from the log; a run is hidden by none of them."""
    other = OTHER[kept.columns("run")[name]].format(name)
    for new in (other, "NULL") if name in ("owner", "due") else (other,):
        async with kept.after(f"UPDATE run SET {name} = {new} WHERE run_id = 'r1' AND ({name} = {name} OR {name} IS NULL)") as store:
            if await codes(store) == set():
                assert new == "NULL"  # it was null
                continue
            assert await codes(store) == {"snapshot_field_drift"}
            before = await store.get("r2")
            async with Runtime(store) as rt:
                assert (await rt.repair_run_state("r1", True, actor="ada")).applied
                assert await codes(store) == set()
                assert await store.get("r2") == before
    kept.hand("SELECT 1")


@pytest.mark.parametrize(("table", "code"), [("carry", "carry_record_missing"), ("blob_use", "blob_use_record_missing")])
async def test_what_a_run_needs_of_others_is_held_against_its_log(kept: InSqlite | InPostgres, table: str, code: str) -> None:
    """§12.1, §6.10: a lost note lets a prune take away what the run needs; it is named, and noted again."""
    async with kept.after(f"DELETE FROM {table}") as store:
        assert await codes(store) == {code}
        async with Runtime(store) as rt:
            for run_id in {p.run_id for p in await rt.check() if p.code == code}:
                assert run_id is not None
                assert (await rt.repair_run_state(run_id, True, actor="ada")).applied
            assert await codes(store) == set()
    kept.hand("SELECT 1")


@pytest.mark.parametrize("kind", ["worker", "offer"])
async def test_a_worker_s_row_is_vouched_for(kept: InSqlite | InPostgres, kind: str) -> None:
    """§12.1: what a store keeps of processes; a lease is no longer than it was asked for."""
    async with kept.after() as store:
        await store.offer("w", Offer(("q",), ()))
        assert await codes(store) == set()
        row = {n: t for n, t in kept.columns(kind).items() if n != "owner"}
    for name, type_ in row.items():
        other = f"{name} + 100000000000000" if name in ("expires_at", "ticks") else OTHER[type_].format(name)
        async with kept.after() as store:
            await store.offer("w", Offer(("q",), ()))
            kept.hand(f"UPDATE {kind} SET {name} = {other} WHERE owner = 'w'")
            assert f"{kind}_record_altered" in await codes(store), name
            assert {p.message for p in await Checker(store).all() if p.run_id != "r2"} == {f"the {kind} record 'w' is damaged: its checksum does not match"}, name
            await store.renew("w", TTL)
            assert await codes(store) == ({"offer_record_altered"} if kind == "offer" else set()), "whoever renews writes its row anew"


async def test_the_operator_accepts_what_is_there(kept: InSqlite | InPostgres) -> None:
    """§12.1: ``doctor --rebuild --acknowledge``: what is lost is lost, what was altered counts as it stands."""
    damage = [f"DELETE FROM {kind} WHERE {FIRST[kind]}" for kind in KINDS]
    async with kept.after(*damage) as store:
        assert {f"{kind}_record_missing" for kind in KINDS} <= await codes(store)
        kept.hand("UPDATE ledger SET step_id = 'other'")
        await store.vouch_anew()  # type: ignore[attr-defined]
        assert await codes(store) == {"effect_record_missing"}, "the log speaks of it still"
        assert (await Repairer(store).repair("r1", apply=True)).applied
        assert await codes(store) == set()
        assert await store.effects("r1") and await store.effects("r2")


COUNTED = {"schedule": ("schedule", "schedule_id = 's1'", "id = 's1'"), "limit": ("rule", "name = 'limit s1'", "id = 'limit s1'"), "token": ("token", FIRST["token"], f"id = '{hash_secret('r1a').hex()}'"), "pruned": ("pruned", "run_id = 'p1'", "id = 'p1'")}


@pytest.mark.parametrize("all_of_them", [False, True])
@pytest.mark.parametrize("kind", COUNTED)
async def test_what_is_lost_together_with_its_voucher_is_counted(kept: InSqlite | InPostgres, kind: str, all_of_them: bool) -> None:
    """§12.1: no log tells of schedules, links, limits and notes about pruned runs, so the store counts them: by how many, and by the sum of their ids."""
    table, record, voucher = COUNTED[kind]
    which = ("", "") if all_of_them else (f" WHERE {record}", f" AND {voucher}")
    async with kept.after(f"DELETE FROM {table}{which[0]}", f"DELETE FROM vouch WHERE kind = '{kind}'{which[1]}") as store:
        found = [p for p in await Checker(store).all() if p.code == f"{kind}_record_missing"]
        there = {"schedule": 2, "limit": 2, "token": 4, "pruned": 2}[kind]
        assert [f"'{there if all_of_them else 1} of {there}'" in p.message for p in found] == [True], found
        await store.vouch_anew()  # type: ignore[attr-defined]
        assert f"{kind}_record_missing" not in await codes(store), "the operator accepts the loss"
    kept.hand("SELECT 1")


@pytest.mark.parametrize("kind", COUNTED)
async def test_a_count_that_is_lost_or_altered_is_named(kept: InSqlite | InPostgres, kind: str) -> None:
    """§12.1: it has no digest, for it is held against what is there."""
    async with kept.after(f"DELETE FROM roll WHERE kind = '{kind}'") as store:
        assert await codes(store) == {f"{kind}_record_missing"}
    for change, code in (("n = n + 1", f"{kind}_record_missing"), ("sum = sum + 1", f"{kind}_record_missing"), ("n = n - 1", f"{kind}_record_altered")):
        one = " AND shard = (SELECT min(shard) FROM roll)" if isinstance(kept, InPostgres) else ""
        async with kept.after(f"UPDATE roll SET {change} WHERE kind = '{kind}'{one}") as store:
            assert await codes(store) == {code}, change
            await store.vouch_anew()  # type: ignore[attr-defined]
            assert await codes(store) == set()
        kept.hand("SELECT 1")


async def test_what_is_added_changed_and_deleted_stays_counted(kept: InSqlite | InPostgres) -> None:
    """§12.1: a schedule that moves, a limit that changes and a link that is used are counted once; what is deleted, by hand of its verb or with its run, is not missing."""
    async with kept.after() as store:
        await store.put_schedule(plan("s3", 5), None)
        await store.put_schedule(plan("s3", 6), await store.schedule("s3"))
        assert not await store.put_schedule(plan("s3", 7), None)
        before = next(r for r in await store.rules() if r.name == "limit s1")
        assert await store.put_rule(before.change(Change(2, "ada", "unset", None)), before)
        await store.issue_token(replace(link(Harness(store), "r2c"), run_id="r2", expires_at=store.now() + 10**9))  # type: ignore[arg-type]
        assert await store.redeem_token(hash_secret("r2c"), signal("r2", "by the link", 0))
        assert await codes(store) == set()
        assert await store.drop_schedule("s3") and not await store.drop_schedule("s3") and await store.drop_schedule("s1")
        assert await codes(store) == set()
        for name in ("p3", "p1"):  # the second is pruned again
            await pruned(store, name)
        assert await codes(store) == set()
    kept.hand("SELECT 1")


LOST = ("DELETE FROM shelf WHERE key = 'r1a'", "DELETE FROM vouch WHERE kind = 'shelf' AND id LIKE '%r1a'")


@pytest.mark.parametrize("all_of_them", [False, True])
async def test_a_row_of_a_shelf_that_is_lost_together_with_its_voucher_is_counted(kept: InSqlite | InPostgres, all_of_them: bool) -> None:
    """§12.1: the store says for each shelf how many rows it must have."""
    async with kept.after(*(["DELETE FROM shelf", "DELETE FROM vouch WHERE kind = 'shelf'"] if all_of_them else LOST)) as store:
        found = [p for p in await Checker(store).all() if p.code == "shelf_record_missing"]
        assert [f"'cups {4 if all_of_them else 1} of 4'" in p.message for p in found] == [True], found
        await store.shelve("cups", {"r1a": b"another"})
        assert "shelf_record_missing" in await codes(store), "a new row under its key hides no loss"
        await store.vouch_anew()  # type: ignore[attr-defined]
        assert await codes(store) == set(), "the operator accepts the loss"
    kept.hand("SELECT 1")


async def test_a_row_of_a_shelf_that_is_put_back_together_with_its_voucher_is_named(kept: InSqlite | InPostgres) -> None:
    """§12.1: an access token that was revoked counts again if its row is put back."""
    async with kept.after() as store:
        old = shelf_seal("cups", "r1a", b"a")
        await store.shelve("cups", {"r1a": b"newer"})
        assert await codes(store) == set()
        kept.hand(f"UPDATE shelf SET data = {kept.blob(b'a')} WHERE key = 'r1a'")
        assert await codes(store) == {"shelf_record_altered"}, "its voucher is the newer one"
        kept.hand(f"UPDATE vouch SET seal = {kept.blob(old)} WHERE kind = 'shelf' AND id LIKE '%r1a'")
        assert await store.find_shelved("cups", "r1a") == b"a"
        found = [p for p in await Checker(store).all() if p.severity == "error"]
        assert [(p.code, "'cups at least 1 of 4'" in p.message) for p in found] == [("shelf_record_altered", True)]
        await store.vouch_anew()  # type: ignore[attr-defined]
        assert await codes(store) == set()
    kept.hand("SELECT 1")


async def test_a_deleted_row_of_a_shelf_that_is_put_back_is_named(kept: InSqlite | InPostgres) -> None:
    """§12.1: there is a row more than the store tells of."""
    async with kept.after() as store:
        await store.unshelve("cups", "r1a")
        kept.hand(f"INSERT INTO shelf (name, key, data) VALUES ('cups', 'r1a', {kept.blob(b'a')})")
        id, seal = f"'cups' || {kept.separator} || 'r1a'", kept.blob(shelf_seal("cups", "r1a", b"a"))
        kept.hand(f"INSERT INTO vouch (run, kind, id, seal, under) VALUES ('', 'shelf', {id}, {seal}, 'cups')")
        assert await store.find_shelved("cups", "r1a") == b"a"
        assert await codes(store) == {"shelf_record_altered"}
    kept.hand("SELECT 1")


@pytest.mark.parametrize(("change", "code"), [("n = n + 1", "missing"), ("n = n - 1", "altered"), ("sum = sum + 1", "altered")])
async def test_a_count_of_a_shelf_that_is_altered_is_named(kept: InSqlite | InPostgres, change: str, code: str) -> None:
    one = " AND shard = (SELECT min(shard) FROM shelf_roll)" if isinstance(kept, InPostgres) else ""
    async with kept.after(f"UPDATE shelf_roll SET {change} WHERE name = 'cups'{one}") as store:
        assert await codes(store) == {f"shelf_record_{code}"}
        await store.vouch_anew()  # type: ignore[attr-defined]
        assert await codes(store) == set()
    async with kept.after("DELETE FROM shelf_roll") as store:
        assert await codes(store) == {"shelf_record_altered"}
    kept.hand("SELECT 1")


async def test_rows_of_shelves_stay_counted(kept: InSqlite | InPostgres) -> None:
    """§12.1: whatever verb puts, replaces or deletes them, also at the same time."""
    async with kept.after() as store:
        await store.shelve("cups", {"r1a": b"1", "r1b": b"2", "new": b"3"})
        assert await codes(store) == set()
        assert await store.shelve("cups", {"r1a": b"4", "free": b"5", "new": b"6"}, ("r1a", "free")) == ["r1a"]
        assert await store.shelve("cups", {"r1a": b"4"}, ("r1a",)) == ["r1a"]
        assert await store.shelve_new("cups", "added", b"7") is None and await store.shelve_new("cups", "added", b"8") == b"7"
        assert await store.unshelve("cups", "r1") == 2 and await store.unshelve("cups", "r1") == 0
        assert await codes(store) == set()
        await store.shelve("plates é", {"a": b"", "b": b""})
        await asyncio.gather(*(store.shelve("plates é", {"a": str(n).encode(), f"k{n % 5}": b""}) for n in range(40)), *(store.unshelve("plates é", f"k{n}") for n in range(5)))
        assert await codes(store) == set()
        assert await store.unshelve("plates é", "") > 0 and await store.unshelve("cups", "") > 0
        assert await codes(store) == set()
    kept.hand("SELECT 1")


@pytest.mark.parametrize("value", [0, -(10**12), 10**15])
@pytest.mark.parametrize("name", ["since", "whole"])
async def test_what_says_only_when_a_checkpoint_is_saved_whole_changes_nothing_else(kept: InSqlite | InPostgres, name: str, value: int) -> None:
    """§4.5: how much was logged since the last whole checkpoint is vouched for by nothing: altered, one is saved sooner or later, and that is all."""
    async with kept.after() as store:
        sound = [await carried(store, run_id) for run_id in ("r1", "r2")]
    async with kept.after(f"UPDATE {'log' if isinstance(kept, InPostgres) else 'run'} SET {name} = {value}") as store:
        kept.hand("SELECT 1")
        assert [await carried(store, run_id) for run_id in ("r1", "r2")] == sound
        async with Runtime(store, skills=[talk()]) as rt:
            run = await rt.invoke("talk", {"said": ["third"]}, thread_id="t")
            assert run.status == "completed" and len(run.state.said) == 6
            assert await codes(store) == set()


async def carried(store: Kept, run_id: str) -> Any:
    found = await store.load(run_id)
    assert found is not None
    return found.run, found.rows, found.inbox


@pytest.mark.parametrize("column", ["serial", "turn", "last", "data", "gone", "run"])
async def test_an_altered_chunk_is_shown_as_no_other(kept: InSqlite | InPostgres, column: str) -> None:
    """§13.6: chunks are provisional: one that was altered is left out, comes late, or is taken for one that was replaced; no other words are shown."""
    async with kept.after() as store:
        script = await Script(store, "c1").begin("w")
        turn = Turn(Place(1, "n", ""), 1, 1, 0, "s", "a")
        await store.emit([Emitted("c1", script.fence, (Batch(turn, n, 1, (canon.encode(f"word {n}"),)),)) for n in (1, 2, 3)])
        written = [s.batch for s in await store.chunks("c1")]
        assert [b.first for b in written] == [1, 2, 3]
        type_ = kept.columns("chunk").get(column, "TEXT")
        name = "run_id" if isinstance(kept, InPostgres) and column == "run" else column
        other = {"serial": "serial + 1000", "run": "'r1'" if name == "run_id" else "(SELECT id FROM run WHERE run_id = 'r1')"}.get(column) or OTHER[type_].format(name)
        kept.hand(f"UPDATE chunk SET {name} = {other} WHERE last = 2")
        shown = [s.batch for s in await store.chunks("c1")] + [s.batch for s in await store.chunks("r1")]
        assert [b for b in shown if b not in written] == []
        loaded = await store.load("c1")
        assert loaded is not None and [b for b in loaded.emitted if b not in written] == []
        assert len(shown) == (2 if column in ("data", "run") else 3)


async def test_what_has_lost_its_name_is_not_vouched_for_and_stays_named(in_sqlite: InSqlite) -> None:
    """Point 1: a damaged page gives rows without a key; ``doctor --rebuild --acknowledge`` takes the others as they are."""
    async with in_sqlite.after() as store:
        (made,) = _by_hand(store, "SELECT sql FROM sqlite_schema WHERE name = 'effect'")
        bare = str(made).replace("effect_id    TEXT NOT NULL", "effect_id    TEXT")
        assert bare != made
        for sql, statement in ((bare, f"UPDATE effect SET effect_id = NULL WHERE {FIRST['effect']}"), (made, "SELECT 1")):
            with contextlib.closing(apsw.Connection(_path(store))) as db:
                db.execute("PRAGMA writable_schema = ON")
                db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'effect'", (sql,))
            _by_hand(store, statement)
        assert {"effect_record_altered", "effect_record_missing"} <= await codes(store)
        _by_hand(store, f"DELETE FROM ledger WHERE {FIRST['ledger']}")
        await store.vouch_anew()  # type: ignore[attr-defined]
        left = await codes(store)
        assert "effect_record_altered" in left and "ledger_record_missing" not in left


def _path(store: Kept) -> str:
    assert isinstance(store, SqliteStore)
    return store.path


def _by_hand(store: Kept, statement: str) -> tuple[Any, ...]:
    with contextlib.closing(apsw.Connection(_path(store))) as db:
        return tuple(value for row in db.execute(statement) for value in row)


async def test_an_older_copy_of_an_effect_is_named(tmp_path: Path) -> None:
    """§12.1: the attempt, put back in the place of its recorded result, would be done again."""
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    await store.register("w", TTL)
    script = await Script(store, "r1").begin("w")
    await script.write(script.commit(ev.SideEffectAttempted("r1.x1", "k"), effects=(effect("r1", 1, "k"),)))
    with contextlib.closing(apsw.Connection(store.path)) as db:
        old = db.execute("SELECT status, data FROM effect").get
        done = replace(effect("r1", 1, "k"), status=EffectStatus.RECORDED, result=canon.encode(1))
        await script.write(script.commit(ev.SideEffectRecorded("r1.x1", "k"), effects=(done,)))
        db.execute("UPDATE effect SET (status, data) = (?, ?)", old)
    await refused(RecordDamaged, store.effects(key="k"), "effect_record_altered")
    assert await codes(store) == {"effect_record_altered"}
    await store.close()


async def test_a_record_that_its_index_does_not_find_is_not_done_twice(in_sqlite: InSqlite, tmp_path: Path) -> None:
    """X-21: a flipped bit in the index of keys hid a finished act, and it was done again."""
    async with in_sqlite.after() as whole:
        assert len(await whole.effects(key="r1.k1")) == 1
    shutil.copy(whole.path, tmp_path / "s.db")  # type: ignore[attr-defined]
    pages = (tmp_path / "s.db").read_bytes()
    with contextlib.closing(apsw.Connection(str(tmp_path / "s.db"))) as db:
        number = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'effect_key'").get
        size = db.pragma("page_size")
    at = (number - 1) * size
    page = pages[at : at + size]
    assert page.count(b"r1.k1") == 1
    (tmp_path / "s.db").write_bytes(pages[:at] + page.replace(b"r1.k1", b"r1.k0") + pages[at + size :])
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    await refused(RecordDamaged, store.effects(key="r1.k1"), "effect_record_missing")
    await store.close()


WRITES: dict[str, Callable[[Kept], Awaitable[Any]]] = {
    "put": lambda s: s.put(signal("r1", "late", 0)),
    "token": lambda s: s.issue_token(replace(link(Harness(s), "late"), run_id="r1")),  # type: ignore[arg-type]
    "schedule": lambda s: s.put_schedule(plan("late", 5), None),
    "dropped schedule": lambda s: s.drop_schedule("s1"),
    "intents": lambda s: s.claim_intents("w", ("mail",), limit=5, ttl_us=TTL),
    "shelf": lambda s: s.shelve("cups", {"late": b""}),
    "once on a shelf": lambda s: s.shelve("cups", {"late": b""}, ("late",)),
    "new on a shelf": lambda s: s.shelve_new("cups", "late", b""),
    "off a shelf": lambda s: s.unshelve("cups", "r1"),
}


@pytest.mark.parametrize("what", WRITES)
async def test_the_anchor_covers_every_acknowledged_write(in_sqlite: InSqlite, tmp_path: Path, what: str) -> None:
    """§1.9: a lost write-ahead log loses a schedule, a token, a signal; it is named whatever it held."""
    async with in_sqlite.after() as store:
        assert isinstance(store, SqliteStore) and store.suspect is None
        await WRITES[what](store)
        shutil.copy(store.path, tmp_path / "main.db")
    shutil.copy(tmp_path / "main.db", store.path)  # what was in the log is lost
    again = SqliteStore(store.path)
    await again.open()
    assert isinstance(again.suspect, LogRolledBack)
    await refused(LogRolledBack, again.put(signal("r1", "more", 0)))
    await again.acknowledge()
    await again.put(signal("r1", "more", 0))
    await again.close()


@pytest.mark.parametrize(("table", "column"), [("worker", "host"), ("claim", "scope"), ("effect", "lineage_root"), ("shelf", "key"), ("schedule", "tenant_id")])
async def test_a_text_that_is_none_is_named_and_accepted(in_sqlite: InSqlite, table: str, column: str) -> None:
    """§12.1: a byte that is no UTF-8 ends neither the look at it nor its acceptance by a raw error."""
    where = {"worker": "owner = 'w'", **FIRST}[table]
    async with in_sqlite.after(f"UPDATE {table} SET {column} = CAST(x'f66d' AS TEXT) WHERE {where}") as store:
        kinds = {code.partition("_record_")[0] for code in await codes(store) if "_record_" in code}
        assert table in kinds
        await store.vouch_anew()  # type: ignore[attr-defined]
        assert f"{table}_record_altered" not in await codes(store)
