"""Slots: a call that uses a limit holds it from before it begins until it has ended (§10.11).

Where the limit is full the call waits, for a second at most; then it leaves the node, and the run rests until it is worth trying again: no thread and
no lease is held meanwhile. Nothing has been begun by then, so nothing is on record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from holdfast.core.errors import StoreError
from holdfast.core.limits import SOON_US, Later
from holdfast.engine.base.leaving import Leaving
from holdfast.engine.base.services import Services

LOOK_US = 50_000


class Crowded(Leaving):
    """Leaves the node because a limit that it uses is full, and will be for a while."""

    def __init__(self, later: Later) -> None:
        super().__init__("the run rests until a limit has room; do not catch BaseException around ctx calls")
        self.later = later

    def joined(self, others: Sequence[Leaving]) -> Leaving:
        """All branches rest, or one of them has another way out."""
        return next((e for e in others if not isinstance(e, Crowded)), self)


@asynccontextmanager
async def held(services: Services, run_id: str, place: str, limit: str | None) -> AsyncIterator[None]:
    """Holds a limit for as long as what is within goes on.

    Raises:
        Crowded: it is full, and was for a second.
    """
    if limit is None:
        yield
        return
    await _entered(services, run_id, place, limit)
    try:
        yield
    finally:
        services.leaving.add(place)
        await asyncio.shield(_left(services))


async def _entered(services: Services, run_id: str, place: str, limit: str) -> None:
    store, needs, until = services.store, {limit: services.limits.get(limit)}, services.clock.now() + SOON_US
    while (later := await store.enter(services.owner, run_id, place, needs)) is not None:
        now = services.clock.now()
        if now >= until or (later.at > until and later.at - now > SOON_US):
            break
        await services.clock.sleep(min(max(later.at - now, 1_000), LOOK_US) / 1_000_000)
    else:
        return
    later = await store.enter(services.owner, run_id, place, needs, resting=True)
    if later is not None:
        raise Crowded(later)


async def _left(services: Services) -> None:
    """Gives back what is held no more; what the store could not be told of is told with the next."""
    places = list(services.leaving)
    try:
        await services.store.leave(services.owner, places)
    except StoreError:
        return  # its owner holds it until then, or until it ends
    services.leaving.difference_update(places)


__all__ = ["Crowded", "held"]
