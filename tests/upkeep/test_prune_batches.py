"""Prunes over SQLite go in batches: each is one short transaction, and others write in between (§6.10)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.core import events as ev
from holdfast.core.commit import DedupClaim, Tip
from holdfast.core.errors import ErrorValue, HoldfastError, StoreCorrupt, VersionConflict
from holdfast.core.lease import RELEASE
from holdfast.engine.keep.check import Checker
from holdfast.stores import SqliteStore
from holdfast.stores.sqlite import keeping, upkeep
from holdfast.stores.sqlite.connection import Q, connect
from holdfast.testing.conformance import TTL, Script
from holdfast.testing.conformance_blobs import bulk, recording
from holdfast.testing.conformance_outbox import intent
from holdfast.testing.conformance_threads import carrying
from tests.statements import counting_statements, counting_work
from tests.upkeep import damage as d

MANY = 250
LONG = 1000 * TTL


@contextmanager
def watching() -> Iterator[list[int]]:
    """How many runs each transaction has removed, of any connection opened meanwhile, where it has removed some."""
    found: list[int] = []

    def hook(db: apsw.Connection) -> None:
        gone = 0

        def changed(kind: int, _: str, table: str, __: int) -> None:
            nonlocal gone
            gone += kind == apsw.SQLITE_DELETE and table == "run"

        def committed() -> bool:
            nonlocal gone
            if gone:
                found.append(gone)
            gone = 0
            return False

        db.set_update_hook(changed)
        db.set_commit_hook(committed)

    apsw.connection_hooks.append(hook)
    try:
        yield found
    finally:
        apsw.connection_hooks.remove(hook)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Any]:
    store = d.clocked(tmp_path / "s.db")
    await store.open()
    await store.register("w", LONG)
    yield store
    await store.close()


async def ended(store: Any, count: int, *, claims: bool = False) -> list[str]:
    """Runs that have ended, each a lineage of its own."""
    names = [f"r{n:04}" for n in range(count)]
    for name in names:
        claim = (DedupClaim("request", "t\x1fskill", name, name, "digest", None),) if claims else ()
        await (await Script(store, name).begin("w", claims=claim)).complete()
    store.clock_forward()
    return names


async def test_no_transaction_removes_more_than_a_batch(tmp_path: Path) -> None:
    with watching() as found:
        store = d.clocked(tmp_path / "s.db")
        await store.open()
        await store.register("w", LONG)
        names = await ended(store, MANY)
        done = await store.prune(store.now())
        await store.close()
    assert list(done.run_ids) == names
    assert sum(found) == MANY
    assert max(found) <= keeping.LINEAGES, found


async def test_time_bounds_a_batch_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the disk is: once the time is over, no more lineages are taken."""
    monkeypatch.setattr(keeping, "HELD", 0)
    with watching() as found:
        store = d.clocked(tmp_path / "s.db")
        await store.open()
        await store.register("w", LONG)
        await ended(store, 35)
        assert len((await store.prune(store.now())).run_ids) == 35
        await store.close()
    assert found == [upkeep.AT_ONCE] * (35 // upkeep.AT_ONCE) + [35 % upkeep.AT_ONCE]


async def test_a_lineage_and_what_hangs_together_with_it_go_in_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay with its source, a child with its parent, a run with those that carry its thread on: whatever ends the prune, nobody is left without."""
    monkeypatch.setattr(upkeep, "AT_ONCE", 1)
    monkeypatch.setattr(keeping, "HELD", 0)
    with watching() as found:
        store = d.clocked(tmp_path / "s.db")
        await store.open()
        await store.register("w", LONG)
        before = await (await Script(store, "a1").begin("w")).complete()
        await (await Script(store, "a2", lineage_root="a1").begin("w")).complete()
        successor = await Script(store, "a3").begin("w")
        await successor.write(carrying(successor, before))
        await successor.complete()
        await (await Script(store, "a4", parent_run_id="a3").begin("w")).complete()
        await (await Script(store, "b1").begin("w")).complete()
        store.clock_forward()
        assert (await store.prune(store.now())).run_ids == ("a1", "a2", "a3", "a4", "b1")
        await store.close()
    assert found == [4, 1]


async def test_what_stays_takes_no_transaction(store: Any, tmp_path: Path) -> None:
    """However many lineages are old and may not go: nobody else waits for a prune that removes nothing."""
    for n in range(70):
        script = await (await Script(store, f"r{n:04}").begin("w")).steps(1)
        await script.complete(intents=(intent(script.run_id, f"i{n}", store.now()),))
    store.clock_forward()
    wrote = rows_of(tmp_path / "s.db", "SELECT value FROM meta WHERE key = 'writes'")
    done = await store.prune(store.now())
    assert (done.run_ids, len(done.kept)) == ((), 70)
    assert rows_of(tmp_path / "s.db", "SELECT value FROM meta WHERE key = 'writes'") == wrote


async def test_a_thread_that_stays_is_looked_at_once(store: Any) -> None:
    """Its last run is young: that all others stay is settled with the first of them, and not again for each."""
    before = await (await Script(store, "t0000").begin("w")).complete()
    for n in range(1, 60):
        script = await Script(store, f"t{n:04}").begin("w")
        await script.write(carrying(script, before))
        before = await script.complete()
    store.clock_forward()
    young = await Script(store, "young").begin("w")
    await young.write(carrying(young, before))
    await store.close()
    with counting_statements(lambda sql: "family" in sql) as asked:
        await store.open()
        done = await store.prune(store.now())
    assert (done.run_ids, len(done.kept)) == ((), 60)
    assert sum(asked.values()) == 1


async def test_what_is_young_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is old is found by the index on its end: ten times as many young runs beside it change nothing."""
    monkeypatch.setattr(keeping, "HELD", float("inf"))  # how many transactions it takes goes by the clock
    cost: list[int] = []
    for young in (30, 300):
        with counting_work() as work:
            store = d.clocked(tmp_path / f"{young}.db")
            await store.open()
            await store.register("w", LONG)
            names = await ended(store, 20, claims=True)
            at = store.now()
            store.clock_forward()
            for n in range(young):
                claim = DedupClaim("request", "t\x1fskill", f"k{n}", f"y{n:04}", "digest", None)
                await (await Script(store, f"y{n:04}").begin("w", claims=(claim,))).complete()
            before = work.steps
            assert list((await store.prune(at)).run_ids) == names
            cost.append(work.steps - before)
            await store.close()
    assert cost[1] <= 1.1 * cost[0], cost


async def test_a_run_whose_end_no_column_tells(store: Any, tmp_path: Path) -> None:
    """A release before this one wrote it, or that column was lost: it goes by what its row holds; a young one stays, and so does one that cannot be read."""
    names = await ended(store, 4)
    at = store.now()
    store.clock_forward()
    await (await Script(store, "young").begin("w")).complete()
    await store.close()
    d.sql(tmp_path / "s.db", "UPDATE run SET ended = NULL WHERE run_id <> 'r0000'", "UPDATE run SET doc = x'c1' WHERE run_id = 'r0003'")
    await store.open()
    assert (await store.prune(at, dry=True)).run_ids == (await store.prune(at)).run_ids == tuple(names[:3])
    assert await store.run_ids() == ["r0003", "young"]


async def test_an_end_that_was_altered_is_named(store: Any, tmp_path: Path) -> None:
    await ended(store, 1)
    await store.close()
    d.sql(tmp_path / "s.db", "UPDATE run SET ended = ended - 1")
    await store.open()
    assert [p.code for p in await Checker(store).all()] == ["snapshot_field_drift"]


async def test_a_run_that_was_resumed_has_not_ended(store: Any) -> None:
    """The time of its first end is gone with the resumption."""
    script = await (await Script(store, "r1").begin("w")).steps(1)
    await script.write(script.commit(ev.RunFailed("step_failed", ErrorValue("ValueError", "no")), lease=RELEASE))
    store.clock_forward()
    assert (await store.prune(store.now(), dry=True)).run_ids == ("r1",)
    await script.write(script.touching(ev.RunResumed(cause="operator")))
    store.clock_forward()
    assert (await store.prune(store.now())).run_ids == ()
    assert [p.code for p in await Checker(store).all()] == []


async def test_a_broken_chain_leaves_no_rows_behind(store: Any, tmp_path: Path) -> None:
    """A log row whose way back was lost does not hide those before it: none is left that no run has."""
    await (await (await Script(store, "r1").begin("w")).steps(4)).complete()
    await (await (await Script(store, "r2").begin("w")).steps(4)).complete()
    store.clock_forward()
    await store.close()
    d.sql(tmp_path / "s.db", "UPDATE log SET prev = 77 WHERE run = 1 AND seq = 3")
    await store.open()
    assert (await store.prune(store.now())).run_ids == ("r1", "r2")
    assert await store.run_ids() == []
    assert rows_of(tmp_path / "s.db", "SELECT count(*) FROM log") == [(1,)], "the newest row, emptied"


async def test_emptied_rows_do_not_gather(store: Any, tmp_path: Path) -> None:
    """Whichever batch has met the newest row: once there is a newer one, the next prune that takes a log removes it."""
    for n in range(5):
        await (await (await Script(store, f"r{n}").begin("w")).steps(1)).complete()
        store.clock_forward()
        await store.prune(store.now())
        assert rows_of(tmp_path / "s.db", "SELECT count(*), min(run), max(run) FROM log") == [(1, 0, 0)]
        assert await store.verify() == []


def rows_of(path: Path, sql: str) -> list[Any]:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


# -- a crash ------------------------------------------------------------------------------------------

# Prunes a copy of a store in a process that is killed before its n-th transaction that removes runs; the last one comes through.
CHILD = """
import asyncio, os, shutil, signal, sys
import apsw
from holdfast.stores import SqliteStore
from holdfast.stores.sqlite import keeping, upkeep
from holdfast.stores.sqlite import keeping, upkeep

upkeep.AT_ONCE, keeping.HELD = 3, 0

def hook(db):
    gone = 0
    def changed(kind, _, table, __):
        global seen
        nonlocal gone
        gone += kind == apsw.SQLITE_DELETE and table == "run"
    def committed():
        global seen
        nonlocal gone
        seen += gone > 0
        if gone and seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        gone = 0
        return False
    db.set_update_hook(changed)
    db.set_commit_hook(committed)

apsw.connection_hooks.append(hook)

async def prune(path):
    store = SqliteStore(path)
    await store.open()
    done = await store.prune(2**62, actor="eve")
    await store.close()
    return done

number, status = 0, -1
while status:
    number, seen = number + 1, 0
    for end in ("", "-anchor"):
        shutil.copy(sys.argv[1] + end, f"{sys.argv[2]}/{number}.db{end}")
    if (pid := os.fork()) == 0:
        asyncio.run(prune(f"{sys.argv[2]}/{number}.db"))
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    print(status, flush=True)
"""


def kill_at_each(path: Path, folder: Path) -> list[int]:
    """How each of these processes ended."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    child = subprocess.run([sys.executable, "-c", CHILD, path, folder], stdout=subprocess.PIPE, text=True, env=env, timeout=120, check=True)
    return [int(word) for word in child.stdout.split()]


async def mixed(path: Path) -> dict[str, set[str]]:
    """A store with lineages of every kind, by root; those that stay are under the empty root."""
    store = d.clocked(path)
    await store.open()
    await store.register("w", LONG)
    families: dict[str, set[str]] = {"": {"live", "unsettled"}}
    for n in range(4):
        source = await (await Script(store, f"plain{n}").begin("w", claims=(DedupClaim("request", "t\x1fskill", f"k{n}", f"plain{n}", "digest", None),))).steps(2)
        await source.complete()
        families[f"plain{n}"] = {f"plain{n}"}
        large = await Script(store, f"large{n}").begin("w")
        await large.write(recording(large, bulk("one for all"), key=f"default:effect:shared:{n}", shared=n == 0))
        await large.write(recording(large, bulk(f"{n} ")))
        await large.complete()
        families[f"large{n}"] = {f"large{n}"}
        before = await (await Script(store, f"talk{n}").begin("w")).complete()
        successor = await Script(store, f"talks{n}").begin("w")
        await successor.write(carrying(successor, before))
        await successor.complete()
        await (await Script(store, f"again{n}", lineage_root=f"talk{n}").begin("w")).complete()
        families[f"talk{n}"] = {f"talk{n}", f"talks{n}", f"again{n}"}
    open_ = await (await Script(store, "unsettled").begin("w")).steps(1)
    await open_.complete(intents=(intent("unsettled", "i1", store.now()),))
    live = await Script(store, "live").begin("w")
    await live.write(recording(live, bulk("one for all"), key="live"))
    await live.steps(1)
    await store.close()
    return families


async def test_a_prune_that_is_killed_between_two_batches(tmp_path: Path) -> None:
    """A lineage is whole or gone, all that is left is sound, and the next prune comes to the same end as one that nobody kills."""
    families = await mixed(tmp_path / "s.db")
    everyone = set[str]().union(*families.values())
    (tmp_path / "copies").mkdir()
    ends = kill_at_each(tmp_path / "s.db", tmp_path / "copies")
    assert ends[-1] == 0, "one came through"
    assert set(ends[:-1]) == {signal.SIGKILL} and len(ends) > 4, "and that one had several batches"
    left: list[int] = []
    for number in range(1, len(ends) + 1):
        store = SqliteStore(tmp_path / "copies" / f"{number}.db")
        await store.open()
        assert store.suspect is None
        there = set(await store.run_ids())
        left.append(len(there))
        for root, members in families.items():
            assert not root or members <= there or not members & there, "a lineage is whole or gone"
        assert families[""] <= there
        assert [p for p in await Checker(store).all() if p.severity == "error"] == []
        again = await store.prune(2**62)
        assert set(again.run_ids) == there - families[""] and again.kept == {"unsettled": "an effect or an intent is not settled"}
        assert set(await store.run_ids()) == families[""]
        assert await store.blob(bulk("one for all").digest) == bulk("one for all").data
        assert all([await store.find_pruned(r) is not None for r in everyone - families[""]])
        assert [p for p in await Checker(store).all() if p.severity == "error"] == []
        await store.close()
    assert left[0] == len(everyone) and left[-1] == 2 and left == sorted(left, reverse=True) and len(set(left)) == len(left)


# -- others write in between --------------------------------------------------------------------------


async def test_others_step_between_two_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of another store of the same file, and one of this store itself, go on while a prune is under way."""
    monkeypatch.setattr(keeping, "HELD", 0)
    with watching() as found:
        one, other = SqliteStore(tmp_path / "s.db"), SqliteStore(tmp_path / "s.db")
        await one.open()
        await other.open()
        await one.register("w", LONG)
        for n in range(200):
            await (await Script(one, f"r{n:04}").begin("w")).complete()
        scripts = [await Script(one, "here").begin("w"), await Script(other, "there").begin("w")]
        steps = {"here": set[int](), "there": set[int]()}
        pruning = asyncio.ensure_future(one.prune(one.now() + 1))

        async def step(script: Script) -> None:
            while not pruning.done():
                await script.steps(1)
                steps[script.run_id].add(len(found))
                await asyncio.sleep(0)

        await asyncio.gather(*map(step, scripts))
        assert len((await pruning).run_ids) == 200
        assert await one.verify() == []
        await one.close()
        await other.close()
    assert len(found) == 200 // upkeep.AT_ONCE
    for name, between in steps.items():
        assert len(between & set(range(1, len(found)))) > len(found) // 2, f"{name} stepped between {sorted(between)} of {len(found)} batches"


async def test_whoever_carries_on_meanwhile_keeps_its_predecessor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§6.10, §4.15: of many threads, each is carried on or pruned; never both."""
    monkeypatch.setattr(keeping, "REST", 0)
    monkeypatch.setattr(keeping, "HELD", 0)
    one, other = SqliteStore(tmp_path / "s.db"), SqliteStore(tmp_path / "s.db")
    await one.open()
    await other.open()
    await one.register("w", LONG)
    befores = [await (await Script(one, f"a{n:03}").begin("w")).complete() for n in range(120)]
    successors = [await Script(other, f"b{n:03}").begin("w") for n in range(120)]
    pruning = asyncio.ensure_future(one.prune(one.now() + 1))
    outcomes: list[Tip | HoldfastError] = []
    for before, successor in reversed(list(zip(befores, successors, strict=True))):
        try:
            outcomes.append(await successor.write(carrying(successor, before)))
        except HoldfastError as e:
            outcomes.append(e)
        await asyncio.sleep(0)
    gone = set((await pruning).run_ids)
    carried = [isinstance(o, Tip) for o in reversed(outcomes)]
    assert [before.run_id not in gone for before in befores] == carried
    assert {type(o) for o in outcomes} == {Tip, VersionConflict}, "some came in time and some did not"
    assert await one.verify() == []
    await one.close()
    await other.close()


async def test_a_large_result_that_is_named_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§6.10: whoever was told that it is there finds it, whichever batch took the run that brought it."""
    monkeypatch.setattr(keeping, "REST", 0)
    monkeypatch.setattr(keeping, "HELD", 0)
    one, other = SqliteStore(tmp_path / "s.db"), SqliteStore(tmp_path / "s.db")
    await one.open()
    await other.open()
    await one.register("w", LONG)
    for n in range(80):
        script = await Script(one, f"a{n:03}").begin("w")
        await script.write(recording(script, bulk(f"{n} ")))
        await script.complete()
    namers = [await Script(other, f"b{n:03}").begin("w") for n in range(80)]
    pruning = asyncio.ensure_future(one.prune(one.now() + 1))
    named: list[int] = []
    for n in reversed(range(80)):
        try:
            await namers[n].write(recording(namers[n], bulk(f"{n} "), kept=True))
            named.append(n)
        except StoreCorrupt:
            pass
        await asyncio.sleep(0)
    assert len((await pruning).run_ids) == 80
    assert 0 < len(named) < 80, "some came in time and some did not"
    for n in named:
        assert await other.blob(bulk(f"{n} ").digest) == bulk(f"{n} ").data
    assert rows_of(tmp_path / "s.db", "SELECT count(*) FROM blob") == [(len(named),)]
    assert await one.verify() == []
    await one.close()
    await other.close()


@pytest.mark.parametrize("statement", ["lone_step", "steps_run", "run_update", "ends_run", "lone_end", "run_insert"])
async def test_no_write_of_a_runs_row_builds_a_list_for_the_indexes_of_prunes(tmp_path: Path, statement: str) -> None:
    """A condition with a list of statuses made SQLite build that list, and look through it, each time a row was written."""
    store = SqliteStore(tmp_path / "a.db")
    await store.open()
    await store.close()
    with contextlib.closing(connect(str(tmp_path / "a.db"))) as db:
        db.create_scalar_function("placed", lambda *values: values[0], 1)
        db.execute(Q.lone_ways)
        text = str(getattr(Q, statement))
        values = [None] * max([int(n) for n in re.findall(r"\?(\d+)", text)] or [text.count("?")])
        steps = [str(row[1]) for row in db.execute(f"EXPLAIN {text}", values)]
    assert "MakeRecord" in steps and "OpenEphemeral" not in steps
