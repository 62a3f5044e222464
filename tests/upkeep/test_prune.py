"""Pruning and the anchor: what goes leaves no way for a log id to come back (§1.9, §6.10)."""

from __future__ import annotations

from pathlib import Path

from holdfast.stores import SqliteStore, WorkspaceStore
from holdfast.testing.conformance import TTL, Script
from tests.upkeep import damage as d


async def test_the_newest_row_keeps_its_place(tmp_path: Path) -> None:
    """§1.9: the anchor's row is still there, whoever is pruned; the next one gets the next number."""
    path = tmp_path / "s.db"
    store = d.clocked(path)
    await store.open()
    await d.done(store)
    store.clock_forward()
    assert (await store.prune(store.now())).run_ids == ("r1",)
    await store.close()
    store = SqliteStore(path)
    await store.open()
    assert store.suspect is None
    assert await store.verify() == []
    assert await store.run_ids() == []
    await store.register("v", TTL)
    script = await (await Script(store, "r2").begin("v")).steps(2)
    assert script.tip is not None
    assert script.tip.row > 3, "no id is given twice"
    await script.complete()
    assert await store.verify() == []
    await store.close()


async def test_a_child_goes_with_its_parent(tmp_path: Path) -> None:
    """§6.10: a family goes together: the child stays while its parent has not ended."""
    store = d.clocked(tmp_path / "s.db")
    await store.open()
    await store.register("w", TTL)
    parent = await Script(store, "p1").begin("w")
    child = await Script(store, "c1", parent_run_id="p1").begin("w")
    await child.complete()
    store.clock_forward()
    assert (await store.prune(store.now())).kept == {"c1": "a parent or a child of it is kept"}
    await parent.complete()
    store.clock_forward()
    assert (await store.prune(store.now())).run_ids == ("c1", "p1")
    await store.close()


async def test_a_workspace_loses_the_directory(tmp_path: Path) -> None:
    """§12.5: the files go too."""
    store = WorkspaceStore(tmp_path / "ws")
    await store.open()
    await d.done(store)
    assert (await store.prune(store.now() + 1)).run_ids == ("r1",)
    assert sorted(p.name for p in (tmp_path / "ws").iterdir()) == ["pruned.jsonl", "workspace.json"]
    await store.close()
