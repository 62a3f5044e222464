"""X-21: whatever lies beside the log is vouched for; what is altered, deleted, swapped or put back from an older copy is named."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.commit import DedupClaim, LedgerRow
from holdfast.core.effects import EffectStatus
from holdfast.core.errors import LogRolledBack, RecordDamaged
from holdfast.core.tokens import hashed
from holdfast.engine.keep.check import Checker
from holdfast.stores import SqliteStore
from holdfast.testing.conformance import TTL, Script, effect, refused, signal
from holdfast.testing.conformance_outbox import intent
from holdfast.testing.conformance_people import link, plan

Read = Callable[[SqliteStore, str], Awaitable[Any]]


class Place:
    """The harness that the conformance suite's helpers want."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store


async def populated(store: SqliteStore, run_id: str) -> None:
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
        await store.issue_token(replace(link(Place(store), f"{run_id}{n}"), run_id=run_id))  # type: ignore[arg-type]


KINDS = ("effect", "inbox", "claim", "token", "intent", "ledger", "schedule")
READS: dict[str, Read] = {
    "effect": lambda s, r: s.effects(r),
    "inbox": lambda s, r: s.load(r),
    "claim": lambda s, r: s.claimed("request", "t", f"{r}a"),
    "token": lambda s, r: s.token(hashed(f"{r}a")),
    "intent": lambda s, r: s.intents(r),
    "ledger": lambda s, r: s.ledger(r),
    "schedule": lambda s, r: s.schedule(f"s{r[1:]}"),
}
FIRST = {
    "inbox": "run = (SELECT id FROM run WHERE run_id = 'r1') AND key LIKE '%r1a'",
    "token": f"hash = x'{hashed('r1a').hex()}'",
    "claim": "key = 'r1a'",
    "schedule": "schedule_id = 's1'",
    "effect": "effect_id = 'r1.x1'",
    "intent": "intent_id = 'r1.i1'",
    "ledger": "run_id = 'r1' AND key = 'k1'",
}
OTHER = {"TEXT": "ifnull({0}, '') || 'x'", "BLOB": "CAST({0} || x'00' AS BLOB)", "INTEGER": "ifnull({0}, 0) + 1"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A populated store, closed."""
    path = tmp_path_factory.mktemp("whole") / "s.db"

    async def body() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.register("w", 10**6 * TTL)
        for run_id in ("r1", "r2"):
            await populated(store, run_id)
        for name in ("s1", "s2"):
            await store.put_schedule(plan(name, 5), None)
        assert await Checker(store).all() == []
        await store.close()

    asyncio.run(body())
    return path


@contextlib.asynccontextmanager
async def after(whole: Path, folder: Path, *statements: str) -> AsyncIterator[SqliteStore]:
    """A copy of the store, open, after statements by hand, each of which changed something."""
    folder.mkdir(parents=True, exist_ok=True)
    for suffix in ("", "-anchor"):
        shutil.copy(f"{whole}{suffix}", folder / f"s.db{suffix}")
    db = apsw.Connection(str(folder / "s.db"))
    for statement in statements:
        db.execute(statement)
        assert db.total_changes(), statement
    db.close()
    store = SqliteStore(folder / "s.db")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def columns(whole: Path, table: str) -> dict[str, str]:
    with contextlib.closing(apsw.Connection(str(whole))) as db:
        found = {name: kind for _, name, kind, *_ in db.execute(f"PRAGMA table_info({table})") if name != "id"}
        found.pop("lease_until", None)  # a sender's time moves on by itself
        return found


async def codes(store: SqliteStore) -> set[str]:
    return {p.code for p in await Checker(store).all() if p.run_id != "r2"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_deleted_record_is_named(whole: Path, tmp_path: Path, kind: str) -> None:
    """§12.1: by the checker and by whoever reads it, with run and record; the other run is not harmed."""
    async with after(whole, tmp_path, f"DELETE FROM {kind} WHERE {FIRST[kind]}") as store:
        assert f"{kind}_record_missing" in await codes(store)
        error = await refused(RecordDamaged, READS[kind](store, "r1"), f"{kind}_record_missing")
        assert isinstance(error, RecordDamaged)
        assert error.run_id == ("" if kind == "schedule" else "r1") and error.record and error.hint
        assert await READS[kind](store, "r2")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_table_that_lost_all_its_rows_is_named(whole: Path, tmp_path: Path, kind: str) -> None:
    """§12.1: what tells of records outlives them."""
    async with after(whole, tmp_path, f"DELETE FROM {kind}") as store:
        assert f"{kind}_record_missing" in await codes(store)
        await refused(RecordDamaged, READS[kind](store, "r2"), f"{kind}_record_missing")


@pytest.mark.parametrize("kind", KINDS)
async def test_an_altered_record_is_named(whole: Path, tmp_path: Path, kind: str) -> None:
    """§12.1: whichever of its columns; the other run is not harmed."""
    for name, type_ in columns(whole, kind).items():
        async with after(whole, tmp_path / name, f"UPDATE {kind} SET {name} = {OTHER[type_].format(name)} WHERE {FIRST[kind]}") as store:
            assert await codes(store) & {f"{kind}_record_altered", f"{kind}_record_missing"}, name
            if name != "json":  # for people who look with SQL
                await refused(RecordDamaged, READS[kind](store, "r1"))
            assert name == "run" or await READS[kind](store, "r2"), name  # what was moved into it harms it too


@pytest.mark.parametrize("kind", KINDS)
async def test_a_swap_is_named(whole: Path, tmp_path: Path, kind: str) -> None:
    """§12.1: a record vouches for its place: the content of another, sound in itself, is not its own."""
    where, content = FIRST[kind], [n for n in columns(whole, kind) if n not in ("hash", "schedule_id", "effect_id", "intent_id", "key", "run", "run_id")]
    content, theirs = (["run_id"], "key LIKE 'r2%'") if kind == "claim" else (content, f"NOT ({where})")
    taken = f"SELECT {', '.join(content)} FROM {kind} WHERE {theirs} LIMIT 1"
    async with after(whole, tmp_path, f"UPDATE {kind} SET ({', '.join(content)}) = ({taken}) WHERE {where}") as store:
        assert f"{kind}_record_altered" in await codes(store)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_voucher_is_named(whole: Path, tmp_path: Path, kind: str) -> None:
    """§12.1: a record that nothing vouches for might be any."""
    async with after(whole, tmp_path, f"DELETE FROM vouch WHERE kind = '{kind}'") as store:
        assert f"{kind}_record_altered" in await codes(store)
        await refused(RecordDamaged, READS[kind](store, "r1"), f"{kind}_record_altered")


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


async def test_a_record_that_its_index_does_not_find_is_not_done_twice(whole: Path, tmp_path: Path) -> None:
    """X-21: a flipped bit in the index of keys hid a finished act, and it was done again."""
    async with after(whole, tmp_path) as store:
        assert len(await store.effects(key="r1.k1")) == 1
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


WRITES: dict[str, Callable[[SqliteStore], Awaitable[Any]]] = {
    "put": lambda s: s.put(signal("r1", "late", 0)),
    "token": lambda s: s.issue_token(replace(link(Place(s), "late"), run_id="r1")),  # type: ignore[arg-type]
    "schedule": lambda s: s.put_schedule(plan("late", 5), None),
    "dropped schedule": lambda s: s.drop_schedule("s1"),
    "intents": lambda s: s.claim_intents("w", ("mail",), limit=5, ttl_us=TTL),
}


@pytest.mark.parametrize("what", WRITES)
async def test_the_anchor_covers_every_acknowledged_write(whole: Path, tmp_path: Path, what: str) -> None:
    """§1.9: a lost write-ahead log loses a schedule, a token, a signal; it is named whatever it held."""
    async with after(whole, tmp_path) as store:
        assert store.suspect is None
        await WRITES[what](store)
        shutil.copy(tmp_path / "s.db", tmp_path / "main.db")
    shutil.copy(tmp_path / "main.db", tmp_path / "s.db")  # what was in the log is lost
    again = SqliteStore(tmp_path / "s.db")
    await again.open()
    assert isinstance(again.suspect, LogRolledBack)
    await refused(LogRolledBack, again.put(signal("r1", "more", 0)))
    await again.acknowledge()
    await again.put(signal("r1", "more", 0))
    await again.close()
