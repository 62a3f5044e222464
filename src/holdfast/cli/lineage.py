"""The tree of a lineage: which run was made from which (§7.6, §7.7)."""

from __future__ import annotations

from holdfast.cli import output as o
from holdfast.core.describe import RunView


def tree(runs: list[RunView], here: str) -> list[str]:
    """Returns the lineage as lines: each run beneath the one that it was made from."""
    below: dict[str | None, list[RunView]] = {}
    known = {run.run_id for run in runs}
    for run in runs:
        parent = run.source_run_id if run.source_run_id in known else None
        below.setdefault(parent, []).append(run)
    lines: list[str] = []

    def grow(parent: str | None, indent: str) -> None:
        children = below.get(parent, [])
        for i, run in enumerate(children):
            last = i == len(children) - 1
            branch = "" if parent is None else ("└─ " if last else "├─ ")
            point = (run.source_checkpoint_id or "").rpartition(".")[2]
            how = f"{run.origin} of {point}  " if run.origin else ""
            you = "  ← this run" if run.run_id == here else ""
            lines.append(f"{indent}{branch}{run.run_id}  {how}{o.paint(run.condition, o.COLOURS.get(run.condition))}{you}")
            grow(run.run_id, indent + ("" if parent is None else ("   " if last else "│  ")))

    grow(None, "  ")
    return lines
