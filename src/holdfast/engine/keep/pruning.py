"""Deletes old runs, and keeps what the remaining runs need from them (§6.10)."""

from __future__ import annotations

from holdfast.core import codec
from holdfast.core.errors import StoreCorrupt
from holdfast.engine.look import recipients
from holdfast.engine.look.threads import Threads
from holdfast.ports import Pruned, Store, Upkeep, offers_shelves


async def prune(store: Store, keeper: Upkeep, before: int, *, dry: bool = False, actor: str = "operator") -> Pruned:
    """Deletes what ended before that time. For runs that stay and carry on from a deleted run, their origin is stored with them first.

    A crash in between leaves an origin too many, or lineages that the next prune deletes; nothing has to be undone. A run that begins to carry
    on in between keeps its predecessor from being deleted this time.
    """
    carries = await keeper.list_carries()
    if carries and not dry:
        threads, gone = Threads(store), set((await keeper.prune(before, dry=True)).run_ids)
        for successor in dict.fromkeys(b for b, predecessor in carries if predecessor in gone and b not in gone):
            try:
                origin = await threads.origin(successor, await store.rows(successor))
            except StoreCorrupt:
                continue  # what it carries cannot be found: its predecessor stays, and the prune reports why
            if origin is not None:
                await keeper.keep_origin(successor, codec.encode_whole(*origin))
    pruned = await keeper.prune(before, dry=dry, actor=actor)
    if not dry and offers_shelves(store):
        await recipients.forget(store, keeper)
    return pruned


__all__ = ["prune"]
