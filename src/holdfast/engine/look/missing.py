"""What is said of a run that is not here: nothing is known of it, or it was pruned, when and by whom (§6.10)."""

from __future__ import annotations

from holdfast.core import pruned
from holdfast.core.errors import RunNotFound
from holdfast.ports import Store, offers_upkeep


async def missing(store: Store, run_id: str) -> RunNotFound:
    return pruned.missing(run_id, await store.pruned(run_id) if offers_upkeep(store) else None)


__all__ = ["missing"]
