"""What each commit and each verb costs over PostgreSQL, counted and not timed: round trips, statements, syncs, and bytes of the write-ahead log.

Round trips and statements are counted on the wire. Syncs are the records in the write-ahead log that say that a transaction has committed: each of them
is flushed to the disk before its client is answered, and here there is but one client, whose flushes nobody shares. Each operation is done several
times, and the least of what was counted is what it costs: the first time statements are prepared and pages begun.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from psycopg import Connection
from tests.postgres.pooler import pooled
from tests.postgres.proxy import Proxy
from tests.postgres.server import shared

from holdfast.core import events as ev
from holdfast.core.commit import DedupClaim
from holdfast.core.effects import EffectStatus
from holdfast.core.errors import ErrorValue
from holdfast.core.lease import RELEASE, Take
from holdfast.ports import Loaded
from holdfast.stores import PostgresStore
from holdfast.testing.conformance import TTL, Script, effect, replace, signal

TIMES = 3
MANY = 20
RESTING = 400
Operation = Callable[[PostgresStore, str], AsyncIterator[None]]


class Cost(NamedTuple):
    """``wal``: bytes; measured, and a fifth more."""

    trips: int
    statements: int
    syncs: int
    wal: int


OPERATIONS: dict[str, tuple[Operation, Cost]] = {}


def costs(trips: int, statements: int, syncs: int, wal: int) -> Callable[[Operation], Operation]:
    """What is counted is what an operation does after its ``yield``; before it, it makes what it needs."""

    def noted(operation: Operation) -> Operation:
        OPERATIONS[operation.__name__] = operation, Cost(trips, statements, syncs, wal)
        return operation

    return noted


async def driven(store: PostgresStore, name: str) -> Script:
    """A run in the middle of its steps."""
    return await (await Script(store, name).begin("w")).steps(1)


# -- steps and their commits --------------------------------------------------------------------------


@costs(trips=1, statements=1, syncs=1, wal=690)
async def step(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await driven(store, name)
    yield
    await script.steps(1)


@costs(trips=1, statements=1, syncs=1, wal=13_000)
async def steps_of_twenty_runs(store: PostgresStore, name: str) -> AsyncIterator[None]:
    scripts = await asyncio.gather(*[driven(store, f"{name}.{n}") for n in range(MANY)])
    yield
    await asyncio.gather(*[script.steps(1) for script in scripts])


@costs(trips=1, statements=1, syncs=1, wal=1_390)
async def birth(store: PostgresStore, name: str) -> AsyncIterator[None]:
    yield
    await Script(store, name).submit()


@costs(trips=2, statements=10, syncs=1, wal=2_030)
async def birth_under_a_key(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = Script(store, name)
    yield
    await script.write(script.first(claims=(DedupClaim("request", "default", name, name, "d"),)))


@costs(trips=1, statements=1, syncs=1, wal=28_000)
async def births_of_twenty_runs(store: PostgresStore, name: str) -> AsyncIterator[None]:
    yield
    await asyncio.gather(*[Script(store, f"{name}.{n}").submit() for n in range(MANY)])


@costs(trips=1, statements=1, syncs=1, wal=1_300)
async def birth_that_begins(store: PostgresStore, name: str) -> AsyncIterator[None]:
    """As ``invoke`` does: born, taken and begun."""
    yield
    await Script(store, name).begin("w")


@costs(trips=1, statements=2, syncs=0, wal=0)
async def look_for_a_run_that_is_due(store: PostgresStore, name: str) -> AsyncIterator[None]:
    """As an idle worker does: what it finds is taken by its first commit."""
    await store.claim("w", (), None, limit=5)  # what was left the time before
    await Script(store, name).submit()
    await store.claim_or_load("w", ("other",), None, limit=5)  # from here on it knows of no run that is due
    yield
    assert isinstance(await store.claim_or_load("w", (), None, limit=5), Loaded)


@costs(trips=2, statements=2, syncs=1, wal=1_480)
async def birth_of_which_a_worker_hears(store: PostgresStore, name: str) -> AsyncIterator[None]:
    """The run is looked up by its name when the worker hears of it, and is there when it asks."""
    await store.claim("w", (), None, limit=5)
    await store.claim_or_load("w", (), None, limit=5)
    yield
    await Script(store, name).submit()
    assert isinstance(await store.claim_or_load("w", (), None, limit=5), Loaded)


@costs(trips=1, statements=2, syncs=1, wal=1_170)
async def first_commit_of_a_run_that_was_found(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await Script(store, name).submit()
    yield
    await script.write(replace(script.taking("w", ev.RunClaimed("w", 2), ev.RunStarted()), lease=Take("w", found=True)))


@costs(trips=1, statements=2, syncs=1, wal=1_250)
async def rest(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await driven(store, name)
    yield
    await script.wait()


@costs(trips=1, statements=2, syncs=1, wal=1_400)
async def rest_until_a_time(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await driven(store, name)
    yield
    await script.wait(deadline=store.now() + 100 * TTL)


@costs(trips=2, statements=10, syncs=1, wal=2_810)
async def attempt(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await driven(store, name)
    yield
    await script.write(script.commit(ev.SideEffectAttempted(f"{name}.x1", name), effects=(effect(name, 1, name),)))


@costs(trips=2, statements=10, syncs=1, wal=2_450)
async def result(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await driven(store, name)
    await script.write(script.commit(ev.SideEffectAttempted(f"{name}.x1", name), effects=(effect(name, 1, name),)))
    yield
    done = effect(name, 1, name, EffectStatus.RECORDED)
    await script.write(script.commit(ev.SideEffectRecorded(done.effect_id, name), effects=(done,)))


@costs(trips=1, statements=2, syncs=1, wal=1_100)
async def end(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await driven(store, name)
    yield
    await script.complete()


@costs(trips=1, statements=2, syncs=1, wal=1_160)
async def failure(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await driven(store, name)
    yield
    await script.write(script.commit(ev.RunFailed("boom", ErrorValue("E", "m")), lease=RELEASE))


@costs(trips=1, statements=2, syncs=1, wal=1_210)
async def release(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await driven(store, name)
    yield
    await script.write(script.commit(ev.RunHandedBack("w"), lease=RELEASE))


@costs(trips=2, statements=8, syncs=1, wal=2_050)
async def take_from_the_inbox(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await driven(store, name)
    await store.put(signal(name, "k", store.now()))
    yield
    await script.write(script.commit(ev.NoteAdded("taken"), took=("signal:go:k",)))


# -- verbs --------------------------------------------------------------------------------------------


@costs(trips=1, statements=2, syncs=1, wal=970)
async def put(store: PostgresStore, name: str) -> AsyncIterator[None]:
    await Script(store, name).submit()
    yield
    await store.put(signal(name, "k", store.now()))


@costs(trips=1, statements=1, syncs=1, wal=770)
async def settlement_of_an_effect(store: PostgresStore, name: str) -> AsyncIterator[None]:
    script = await driven(store, name)
    await script.write(script.commit(ev.SideEffectAttempted(f"{name}.x1", name), effects=(effect(name, 1, name),)))
    yield
    assert await store.settle_effect(effect(name, 1, name, EffectStatus.RECORDED), "attempted")


@costs(trips=1, statements=3, syncs=1, wal=850)
async def claim(store: PostgresStore, name: str) -> AsyncIterator[None]:
    await Script(store, name).submit()
    yield
    assert len(await store.claim("w", (), None, limit=100)) == 1


@costs(trips=1, statements=3, syncs=1, wal=83_000)
async def claim_of_a_hundred(store: PostgresStore, name: str) -> AsyncIterator[None]:
    await asyncio.gather(*[Script(store, f"{name}.{n}").submit() for n in range(100)])
    yield
    assert len(await store.claim("w", (), None, limit=100)) == 100


@costs(trips=1, statements=3, syncs=0, wal=0)
async def claim_of_nothing(store: PostgresStore, name: str) -> AsyncIterator[None]:
    """What it wrote would be news to every idle worker, itself among them, and each would look again, for ever."""
    await (await driven(store, name)).wait(deadline=store.now() + 100 * TTL)
    yield
    assert await store.claim("w", (), None, limit=100) == []


@costs(trips=5, statements=15, syncs=0, wal=0)
async def claim_of_nothing_of_many_tenants(store: PostgresStore, name: str) -> AsyncIterator[None]:
    """Several tenants wait, so that what is in use would be counted."""
    for tenant in ("a", "b"):
        await Script(store, f"{name}{tenant}", tenant_id=tenant, not_before=store.now() + 100 * TTL).submit()
    yield
    assert await store.claim("w", (), None, limit=100) == []


@costs(trips=3, statements=9, syncs=1, wal=850)
async def claim_by_name(store: PostgresStore, name: str) -> AsyncIterator[None]:
    await Script(store, name).submit()
    yield
    assert len(await store.claim("w", (), None, limit=1, run_id=name)) == 1


@costs(trips=1, statements=2, syncs=1, wal=280)
async def renewal(store: PostgresStore, name: str) -> AsyncIterator[None]:
    """Of all runs of a worker."""
    yield
    assert await store.renew("w", TTL) > store.now()


@costs(trips=1, statements=1, syncs=1, wal=520)
async def registration(store: PostgresStore, name: str) -> AsyncIterator[None]:
    yield
    await store.register(name, TTL)


@costs(trips=1, statements=9, syncs=0, wal=0)
async def load(store: PostgresStore, name: str) -> AsyncIterator[None]:
    await driven(store, name)
    yield
    assert await store.load(name) is not None


@costs(trips=1, statements=1, syncs=0, wal=0)
async def look_for_the_end_of_a_run(store: PostgresStore, name: str) -> AsyncIterator[None]:
    """As whoever waits for a result does: it is given with the end."""
    await (await driven(store, name)).complete()
    yield
    assert isinstance(await store.load_if_ended(name), Loaded)


async def test_a_claim_writes_few_indexes_and_merges_nothing_in_them(tmp_path: Path) -> None:
    """Of runs that rest and hold their lanes each is in four: those of names, of lanes, of what is due and of the status. Whoever takes one writes into
    the first two, and into that of owners. A page that is full is divided at once: keys are merged nowhere, but where many runs have the same one."""
    store = PostgresStore(shared().fresh("counts") + "&listen=", clock=lambda: 0.0)
    await store.open()
    await store.register("w", TTL)
    for group in range(RESTING // 100):
        scripts = [await driven(store, f"r{group}.{n:02}") for n in range(100)]
        await asyncio.gather(*[script.wait(deadline=store.now() - 1) for script in scripts])
    with shared().admin("counts") as db:
        db.execute("SET synchronous_commit = on")
        indexes = {str(number): str(name) for number, name in db.execute("SELECT relfilenode, relname FROM pg_class WHERE relname LIKE 'run_%' AND relkind = 'i'")}
        db.execute("VACUUM (INDEX_CLEANUP ON) holdfast.run")
        begin = place(db)
        for _ in range(RESTING // 100):
            assert len(await store.claim("w", (), None, limit=100)) == 100
        end = place(db)
        db.execute("SELECT pg_logical_emit_message(true, '', '')")  # with its commit all that was written before is on disk
    await store.close()
    records = [record for record in shared().written(begin, end) if "rmgr: Btree" in record]
    added = Counter(indexes[found[1]] for record in records if "desc: INSERT_LEAF" in record or "desc: INSERT_POST" in record or "desc: SPLIT" in record
                    if (found := re.search(r"rel \d+/\d+/(\d+) ", record)) is not None and found[1] in indexes)
    assert set(added) == {"run_pkey", "run_lane_holder", "run_owner"}, added
    assert sum(added.values()) < 3.2 * RESTING, added  # and a few where pages are divided
    assert len(shared().written(begin, end)) < 5.7 * RESTING, "a lock, a row and three entries of each run, and a few where pages are tidied or divided"
    merged = {indexes[found[1]] for record in records if "desc: DEDUP" in record if (found := re.search(r"rel \d+/\d+/(\d+) ", record)) is not None}
    assert merged <= {"run_owner"}, merged


INDEXES = """SELECT c.relname, coalesce(p.relname, c.relname), pg_get_indexdef(i.indexrelid), i.indisprimary, coalesce('deduplicate_items=off' = ANY(c.reloptions), false)
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid LEFT JOIN pg_inherits h ON h.inhrelid = c.oid LEFT JOIN pg_class p ON p.oid = h.inhparent
WHERE c.relkind = 'i' AND i.indrelid IN (SELECT relid FROM pg_partition_tree('holdfast.run') UNION SELECT 'holdfast.run'::regclass)"""


@pytest.mark.parametrize("partitions", [0, 4])
async def test_a_run_is_in_no_index_by_its_number(partitions: int) -> None:
    """It is found by its name, which is its key, so that whoever writes its row anew writes one index less. Where each key has but one run none are merged."""
    database = f"indexes_{partitions}"
    store = PostgresStore(shared().fresh(database) + (f"&partitions={partitions}" if partitions else ""))
    await store.open()
    await store.close()
    with shared().admin(database) as db:
        found = db.execute(INDEXES).fetchall()
    keys = [str(text).split(" USING ")[1] for _, _, text, primary, _ in found if primary]
    assert keys == ["btree (run_id, bucket) WITH (deduplicate_items=off, fillfactor='50')"] * (partitions or 1), found
    assert [text for _, _, text, _, _ in found if re.search(r"\bid\b", str(text))] == []
    assert {str(of) for _, of, _, _, apart in found if not apart} == {"run_owner", "run_ended"}


def place(db: Connection[tuple[object, ...]]) -> str:
    """Where the write-ahead log ends."""
    (found,) = db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
    return str(found)


async def counted(operation: Operation, folder: Path, more: str) -> tuple[Cost, list[Cost]]:
    """The least that it costs, and what each time did, its syncs apart."""
    shared().fresh("counts")
    with shared().admin("counts") as db:
        db.execute("ALTER DATABASE counts SET synchronous_commit = on")
        db.execute("SET synchronous_commit = on")
        async with Proxy(folder, "counts") as proxy:
            store = PostgresStore(f"{proxy.url}&listen={more}", clock=lambda: 0.0)  # its plans do not age: how often it lets go of them is counted elsewhere
            await store.open()
            try:
                await store.register("w", TTL)
                every = [await once(operation(store, f"r{n}"), proxy, db) for n in range(TIMES)]
            finally:
                await store.close()
        db.execute("SELECT pg_logical_emit_message(true, '', '')")  # with its commit all that was written before is on disk
    _, begin, end = min(every)  # by its trips first: a crowd that went over two connections is two commits, which may write no more than one
    syncs = sum("desc: COMMIT " in record for record in shared().written(begin, end))
    trips, statements, _, wal = map(min, zip(*(cost for cost, _, _ in every), strict=True))
    return Cost(trips, statements, syncs, wal), [cost for cost, _, _ in every]


async def once(work: AsyncIterator[None], proxy: Proxy, db: Connection[tuple[object, ...]]) -> tuple[Cost, str, str]:
    """What it costs this time, and where in the write-ahead log it begins and ends."""
    await anext(work)
    trips, statements, begin = proxy.answers, proxy.statements, place(db)
    assert await anext(work, "done") == "done", "an operation yields once"
    trips, statements, end = proxy.answers - trips, proxy.statements - statements, place(db)
    (wal,) = db.execute("SELECT (%s::pg_lsn - %s::pg_lsn)::int", (end, begin)).fetchone() or (0,)
    return Cost(trips, statements, 0, int(str(wal))), begin, end


CASES = [pytest.param(name, False, id=f"{name}-postgres") for name in OPERATIONS]
CASES += [pytest.param(name, True, id=f"{name}-postgres_pooled") for name in ("step", "steps_of_twenty_runs", "birth_that_begins", "result", "end", "put", "claim")]


@pytest.mark.parametrize(("name", "pooler"), CASES)
async def test_what_it_costs(name: str, pooler: bool) -> None:
    """Through a transaction pooler it is the same."""
    operation, expected = OPERATIONS[name]
    folder, more = (pooled(shared().folder), "&pooler=transaction") if pooler else (shared().folder, "")
    cost, every = await counted(operation, folder, more)
    assert cost[:3] == expected[:3], every
    assert cost.wal <= expected.wal, every
