"""Prunes take lineages in batches, over whatever keeps them: each batch is one short transaction, and others write while the prune rests (§6.10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from holdfast.ports import Pruned

Place = TypeVar("Place")


class Batch(msgspec.Struct, frozen=True):
    """What one transaction of a prune did. ``done``: with how many of the lineages that it was given, from the first on; ``took``: for how many
    seconds it stood in the way of others."""

    pruned: Pruned
    done: int
    took: float


async def prune_in_batches(
    start: Place, find: Callable[[Place], Awaitable[Sequence[tuple[Place, str]]]], take: Callable[[Sequence[str]], Awaitable[Batch]], *, rest: float
) -> Pruned:
    """Goes through all lineages that may be old enough.

    A lineage goes in one transaction, with all that must go or stay with it. Whatever ends a prune between two of them leaves lineages that are
    whole and lineages that are gone; the next prune begins from the start and finds what is left.

    Args:
        start: the place before all others.
        find: the next lineages behind a place, by their roots, each with its own place; nothing where there are no more.
        take: lets the first of these lineages go, or says why they stay, after it has looked at them again.
        rest: for each second of a transaction, so many seconds until the next one.
    """
    gone: set[str] = set()
    kept: dict[str, str] = {}
    seen: set[str] = set()
    after, pause = start, 0.0
    while found := await find(after):
        after = found[-1][0]
        left = [root for root in dict.fromkeys(root for _, root in found) if root not in seen]
        seen.update(left)
        while left := [root for root in left if root not in gone and root not in kept]:  # what hangs together was settled with the first of it
            await asyncio.sleep(pause)
            batch = await take(left)
            gone.update(batch.pruned.run_ids)
            kept.update(batch.pruned.kept)
            left, pause = left[batch.done :], rest * batch.took
    return Pruned(tuple(sorted(gone)), dict(sorted(kept.items())))


__all__ = ["Batch", "prune_in_batches"]
