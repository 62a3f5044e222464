"""The tombstone of a pruned run, and the error for a run that does not exist (§6.10)."""

from __future__ import annotations

import msgspec

from holdfast.core import views
from holdfast.core.errors import RunNotFound, RunPruned


class Tombstone(msgspec.Struct, frozen=True):
    """What remains of a pruned run: when it was pruned (microseconds since 1970), and by whom."""

    run_id: str
    at: int
    by: str


def missing(run_id: str, left: Tombstone | None, hint: str = "list the runs: holdfast runs") -> RunNotFound:
    """Returns the error for a run that does not exist. ``left``: its tombstone, if it was pruned."""
    return RunNotFound(f"there is no run {run_id!r}", hint=hint) if left is None else RunPruned(run_id, left.at, left.by, views.iso(left.at) or "")


__all__ = ["Tombstone", "missing"]
