"""What is left of a run that was pruned, and what is said of a run that is not here (§6.10)."""

from __future__ import annotations

import msgspec

from holdfast.core import views
from holdfast.core.errors import RunNotFound, RunPruned


class Tombstone(msgspec.Struct, frozen=True):
    """What is left of a run that was pruned: when (microseconds since 1970), and who did it."""

    run_id: str
    at: int
    by: str


def missing(run_id: str, left: Tombstone | None, hint: str = "list the runs: holdfast runs") -> RunNotFound:
    """What is said of a run that is not here. ``left``: what is left of it, if it was pruned."""
    return RunNotFound(f"there is no run {run_id!r}", hint=hint) if left is None else RunPruned(run_id, left.at, left.by, views.iso(left.at) or "")


__all__ = ["Tombstone", "missing"]
