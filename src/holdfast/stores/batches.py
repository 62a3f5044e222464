"""Prunes delete lineages in batches, in every store with transactions: each batch is one short transaction, and others write during the pauses
(§6.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from holdfast.ports import Pruned

Place = TypeVar("Place")


class Batch(msgspec.Struct, frozen=True):
    """The result of one transaction of a prune. ``done``: how many of the given lineages were handled, from the first on; ``took``: for how many
    seconds it blocked others."""

    pruned: Pruned
    done: int
    took: float


async def prune_in_batches(
    start: Place, find: Callable[[Place], Awaitable[Sequence[tuple[Place, str]]]], take: Callable[[Sequence[str]], Awaitable[Batch]], *, rest: float
) -> Pruned:
    """Handles all lineages that may be old enough.

    A lineage is deleted in one transaction, with all that must be deleted or kept with it. If a prune is interrupted between two transactions, each
    lineage is whole or gone; the next prune begins from the start and finds the rest.

    Args:
        start: the place before all others.
        find: returns the next lineages after a place, by their roots, each with its own place; empty if there are no more.
        take: checks the first of these lineages again, and deletes them or says why they stay.
        rest: seconds of pause for each second of a transaction.
    """
    gone: set[str] = set()
    kept: dict[str, str] = {}
    seen: set[str] = set()
    after, pause = start, 0.0
    while found := await find(after):
        after = found[-1][0]
        left = [root for root in dict.fromkeys(root for _, root in found) if root not in seen]
        seen.update(left)
        while left := [root for root in left if root not in gone and root not in kept]:  # related ones were handled together
            await asyncio.sleep(pause)
            batch = await take(left)
            gone.update(batch.pruned.run_ids)
            kept.update(batch.pruned.kept)
            left, pause = left[batch.done :], rest * batch.took
    return Pruned(tuple(sorted(gone)), dict(sorted(kept.items())))


__all__ = ["Batch", "prune_in_batches"]
