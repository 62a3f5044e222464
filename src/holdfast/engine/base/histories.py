"""Looking back: a thread's snapshots, oldest first (§4.16), and the differences between two checkpoints."""

from __future__ import annotations

from typing import Any

from holdfast.core import canon
from holdfast.core.errors import CheckpointNotFound, InvalidInput
from holdfast.core.views import iso
from holdfast.engine.base.reader import Reader
from holdfast.engine.look.threads import Ends
from holdfast.handle import CheckpointView
from holdfast.ports import RunFilter, Store

LIMIT = 10_000
IN_HAND = 8
"""How many runs' ends are kept while a thread is walked: a run begins with those of the newest earlier runs that had what it carries."""


async def history(store: Store, reader: Reader, thread_id: str, *, limit: int | None = None, after: str | None = None) -> list[dict[str, Any]]:
    """Returns the checkpoints of a thread's runs, run after run in the order of their turns, which does not depend on a clock (§3.4).

    Each run is walked once, from where the run before it ended. Lists and dicts in the values are read-only, because checkpoints share them. ``after``: a checkpoint's id; only what came later is returned.

    Raises:
        InvalidInput: a limit below 1.
        CheckpointNotFound: the thread has no such checkpoint.
    """
    if limit is not None and limit < 1:
        raise InvalidInput(f"limit is at least 1, not {limit}")
    runs = [run.run_id for run, _ in reversed(await store.runs(RunFilter(thread_id=thread_id, limit=LIMIT, by_turn=True)))]
    out: list[dict[str, Any]] = []
    begun = after is None
    ends: Ends = {}
    for run_id in runs if begun else runs[runs.index(_run_of(after, runs)) :]:
        while len(ends) > IN_HAND:
            del ends[next(iter(ends))]
        async for c in reader.walk(run_id, ends):
            if begun:
                out.append(_show(c, dict(c.values)))  # each contains the whole conversation up to there, so the shared parts are not copied
            elif c.checkpoint_id == after:
                begun = True
            if limit is not None and len(out) == limit:
                return out
    if not begun:
        raise CheckpointNotFound(f"the thread {thread_id!r} has no checkpoint {after}", hint="give the id of one of its checkpoints")
    return out


def _run_of(checkpoint_id: str | None, runs: list[str]) -> str:
    run_id = (checkpoint_id or "").rpartition(".")[0]
    if run_id not in runs:
        raise CheckpointNotFound(f"no run of this thread has the checkpoint {checkpoint_id}", hint="give the id of one of its checkpoints")
    return run_id


def snapshot(view: CheckpointView) -> dict[str, Any]:
    """Returns the JSON shape of §4.16; the ids name the run and the checkpoint. The values are a copy, which the caller may change and put back."""
    return _show(view, canon.thaw(view.values))


def _show(view: CheckpointView, values: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": view.checkpoint_id,
        "runId": view.run_id,
        "values": values,
        "metadata": canon.thaw(view.metadata),
        "createdAt": iso(int(view.created_at.timestamp() * 1_000_000)),
        "nextTasks": list(view.pending_tasks),
    }


async def diff(reader: Reader, run_id: str, a: str, b: str) -> dict[str, Any]:
    """Returns the channels that only ``b`` has, those that only ``a`` has, and those whose value differs, as ``{"from": …, "to": …}``.

    Raises:
        CheckpointNotFound: one of them is not a checkpoint of this run.
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
