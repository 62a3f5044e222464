"""Which processes are up, and which intents none of them can send (§9.1, §10.11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.core import offers
from holdfast.core.intents import Intent, IntentState
from holdfast.core.lease import Alive
from holdfast.core.offers import Offer
from holdfast.ports import Store

Unsendable = Callable[[Intent], bool]


async def living(store: Store, now: int) -> list[Offer]:
    """Returns what the processes offer that are up ``now``."""
    found = []
    for w in await store.workers(counted=False):
        if w.offer is not None and w.alive != Alive.NO and w.expires_at > now:
            found.append(w.offer)
    return found


async def find_sent_types(store: Store, here: Iterable[str] | None = None) -> frozenset[str] | None:
    """Returns the types of intents that are sent by a process that is up, or by this one, which sends those in ``here``. None if that is
    not known: without ``here`` only the other processes count, and if none of them sends anything, nothing is known."""
    others = await living(store, store.now())
    return offers.find_sent(here or (), others) if here is not None or any(o.sends for o in others) else None


async def unsendable(store: Store, here: Iterable[str] | None = None) -> Unsendable:
    """Returns a function that says whether an intent is queued and no process sends its type."""
    types = await find_sent_types(store, here)
    return lambda intent: types is not None and intent.state is IntentState.QUEUED and intent.type not in types


__all__ = ["Unsendable", "find_sent_types", "living", "unsendable"]
