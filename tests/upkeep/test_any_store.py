"""What is the same in every store: the checker, and that pruning takes no run that lives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.core import events as ev
from holdfast.core.errors import ErrorValue
from holdfast.core.lease import RELEASE
from holdfast.engine.keep.check import Checker
from holdfast.stores import SqliteStore, WorkspaceStore
from holdfast.testing.conformance import TTL, Clock, Script
from tests.inside import OpenMemory
from tests.upkeep import damage as d


def memory(store: Any, folder: Path) -> None:
    store.alter_run("r1", status="pending")


def sqlite(store: Any, folder: Path) -> None:
    d.sql(folder / "s.db", "UPDATE run SET status = 'pending'")


def files(store: Any, folder: Path) -> None:
    (meta,) = (folder / "ws").glob("*/meta.json")
    meta.write_text(meta.read_text().replace('"status": "completed"', '"status": "pending"'))
    assert json.loads(meta.read_text())


MAKES: dict[str, Callable[[Path, Clock], Any]] = {
    "memory": lambda folder, clock: OpenMemory(now=clock),
    "sqlite": lambda folder, clock: SqliteStore(folder / "s.db", now=clock),
    "workspace": lambda folder, clock: WorkspaceStore(folder / "ws", now=clock),
}
EDITS = {"memory": memory, "sqlite": sqlite, "workspace": files}


@pytest.mark.parametrize("kind", MAKES)
async def test_the_checker_names_what_drifted_in_any_store(kind: str, tmp_path: Path) -> None:
    """§12.6: a sound store has no problem, one with a row edited by hand says so, and the way out is told."""
    clock = Clock()
    store = MAKES[kind](tmp_path, clock)
    await store.open()
    await d.done(store)
    assert list(await Checker(store).all()) == []
    if kind != "memory":
        await store.close()
    EDITS[kind](store, tmp_path)
    if kind != "memory":
        store = MAKES[kind](tmp_path, clock)
        await store.open()
    found = {p.code: p.repair_hint for p in await Checker(store).all()}
    assert found["terminal_event_without_terminal_snapshot"]
    await store.close()


@pytest.mark.parametrize("kind", MAKES)
async def test_pruning_takes_no_run_that_lives(kind: str, tmp_path: Path) -> None:
    """T-53, §6.10: however many there are and however old; running, waiting and pending ones stay, with their lineages. What failed has ended."""
    clock = Clock()
    store = MAKES[kind](tmp_path, clock)
    await store.open()
    await store.register("w", 10**9 * TTL)
    for n in range(20):
        await (await (await Script(store, f"done{n:02}").begin("w")).steps(1)).complete()
    await (await Script(store, "running").begin("w")).steps(2)
    await (await (await Script(store, "waiting").begin("w")).steps(1)).wait()
    await Script(store, "pending").submit()
    broken = await (await Script(store, "failed").begin("w")).steps(1)
    await broken.write(broken.commit(ev.RunFailed("step_failed", ErrorValue("ValueError", "no")), lease=RELEASE))
    source = await (await Script(store, "source").begin("w")).steps(1)
    await source.complete()
    await (await Script(store, "fork", lineage_root="source").begin("w")).steps(1)
    clock.forward(10**12)
    would = await store.prune(store.now(), dry=True)
    took = await store.prune(store.now())
    assert set(took.run_ids) == set(would.run_ids) == {f"done{n:02}" for n in range(20)} | {"failed"}
    assert await store.run_ids() == ["fork", "pending", "running", "source", "waiting"]
    async with Runtime(store) as rt:
        assert {r.run_id for r in await rt.runs()} == {"fork", "pending", "running", "source", "waiting"}
        assert [w.run_id for w in await rt.waits()] == ["waiting"]
    await store.close()
