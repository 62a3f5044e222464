"""The tree of a lineage: what was made of what (§7.6, §7.7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.cli import output as o
from holdfast.core.run import Run as Record
from holdfast.core.views import condition
from holdfast.ports import RunFilter
from holdfast.runtime import Runtime

MOST = 500


async def family(rt: Runtime, record: Mapping[str, Any]) -> list[tuple[Record, str]]:
    """All runs of a lineage with their conditions, oldest first; empty for a run that nothing came of."""
    found = await rt.store.runs(RunFilter(lineage_root=record["lineage_root"], limit=MOST))
    now = rt.store.now()
    return [(run, condition(run, lease, now).value) for run, lease in reversed(found)] if len(found) > 1 else []


def tree(runs: list[tuple[Record, str]], here: str) -> list[str]:
    """The lineage as lines: each run beneath the one that it was made from."""
    below: dict[str | None, list[tuple[Record, str]]] = {}
    known = {run.run_id for run, _ in runs}
    for run, word in runs:
        parent = run.source_run_id if run.source_run_id in known else None
        below.setdefault(parent, []).append((run, word))
    lines: list[str] = []

    def grow(parent: str | None, indent: str) -> None:
        children = below.get(parent, [])
        for i, (run, word) in enumerate(children):
            last = i == len(children) - 1
            branch = "" if parent is None else ("└─ " if last else "├─ ")
            point = (run.source_checkpoint_id or "").rpartition(".")[2]
            how = f"{run.origin} of {point}  " if run.origin else ""
            you = "  ← this run" if run.run_id == here else ""
            lines.append(f"{indent}{branch}{run.run_id}  {how}{o.paint(word, o.COLOURS.get(word))}{you}")
            grow(run.run_id, indent + ("" if parent is None else ("   " if last else "│  ")))

    grow(None, "  ")
    return lines
