"""Looking back: a thread's snapshots, oldest first (§4.16), and what changed between two checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.engine.base.reader import Reader
from holdfast.handle import CheckpointView
from holdfast.ports import RunFilter, Store

LIMIT = 10_000


async def history(store: Store, reader: Reader, thread_id: str) -> list[dict[str, Any]]:
    """The checkpoints of a thread's runs, run after run in the order of their turns: no clock decides (§3.4)."""
    runs = await store.runs(RunFilter(thread_id=thread_id, limit=LIMIT, by_turn=True))
    return [snapshot(c) for run, _ in reversed(runs) for c in await reader.checkpoints(run.run_id)]


def snapshot(view: CheckpointView) -> dict[str, Any]:
    """The JSON shape of §4.16; ids say which run and checkpoint it is."""
    return {
        "id": view.checkpoint_id,
        "runId": view.run_id,
        "values": dict(view.values),
        "metadata": {"source": view.metadata["source"], "step": view.metadata["step"], "writes": _plain(view.metadata["writes"])},
        "createdAt": view.created_at.isoformat(),
        "nextTasks": list(view.pending_tasks),
    }


def _plain(writes: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {task: dict(write) for task, write in writes.items()}


async def diff(reader: Reader, run_id: str, a: str, b: str) -> dict[str, Any]:
    """Channels only ``b`` has, only ``a`` has, and those whose value differs as ``{"from": …, "to": …}``.

    Raises:
        CheckpointNotFound: one of them is no checkpoint of this run.
    """
    before, after = await reader.checkpoint(run_id, a), await reader.checkpoint(run_id, b)
    was, now = before.values, after.values
    return {
        "run_id": run_id,
        "a": before.checkpoint_id,
        "b": after.checkpoint_id,
        "added": {n: v for n, v in now.items() if n not in was},
        "removed": {n: v for n, v in was.items() if n not in now},
        "changed": {n: {"from": was[n], "to": now[n]} for n in was if n in now and was[n] != now[n]},
    }


__all__ = ["diff", "history", "snapshot"]
