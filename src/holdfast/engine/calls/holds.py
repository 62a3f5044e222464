"""The limits that calls hold (§10.11).

A call with a limit holds a slot from before it begins until it has ended. If the limit is full, the call waits for up to a second; then it leaves the node, and the
run rests until another try makes sense. No thread and no lease is held meanwhile. Nothing has begun by then, so nothing is recorded.

While another call of the same run holds the limit, the run cannot rest, so the call keeps waiting for its turn. If several calls of a run wait for one limit, only
the first asks the store.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from holdfast import logs
from holdfast.core.errors import StoreError
from holdfast.core.limits import Later, soon
from holdfast.engine.base.failures import ControlFlow
from holdfast.engine.base.journal import Journal
from holdfast.engine.base.services import Services
from holdfast.engine.base.turns import Users
from holdfast.ports import offers_looking_again

log = logs.logger("holdfast.limits")
LOOK_US = 50_000
_around: contextvars.ContextVar[tuple[Users, ...]] = contextvars.ContextVar("holdfast_held", default=())
"""The limits held around the code: a call inside cannot wait for these to be released."""


class Crowded(ControlFlow):
    """Leaves the node because its limits are full and will be for a while; holds what each of its calls was told."""

    def __init__(self, *later: Later) -> None:
        super().__init__("the run pauses until a limit has room; do not catch BaseException around ctx calls")
        self.later = later

    def join(self, others: Sequence[ControlFlow]) -> ControlFlow:
        """Combines the ways out of branches: what all were told, or another way out if a branch has one."""
        crowded = [e for e in others if isinstance(e, Crowded)]
        return next((e for e in others if not isinstance(e, Crowded)), Crowded(*self.later, *(later for e in crowded for later in e.later)))


@asynccontextmanager
async def hold(services: Services, journal: Journal, place: str, limit: str) -> AsyncIterator[None]:
    """Holds a slot of a limit while the code inside runs.

    Raises:
        Crowded: the limit was full for a second, and no other call of the run holds it.
    """
    await _warn_undeclared(services, limit)
    with services.turns.take(journal.run.run_id, limit) as users:
        async with users.turn:
            await _enter(services, journal, place, limit, users)
        users.inside += 1
        token = _around.set((*_around.get(), users))
        try:
            yield
        finally:
            _around.reset(token)
            services.leaving.add(place)
            try:
                await asyncio.shield(_leave(services))
            finally:
                users.inside -= 1


async def _warn_undeclared(services: Services, limit: str) -> None:
    """Warns once about a limit that nobody declares: a misspelled name would limit nothing, and nobody would notice."""
    if limit in services.limits or limit in services.unbounded or limit in (await services.bounds()).limits:
        return
    services.unbounded.add(limit)
    log.warning(
        "the limit %r is declared nowhere, so calls that name it are not limited; Runtime(limits={%r: Limit(…)}) or `holdfast limits set %s` declares it",
        limit, limit, limit,
    )


async def _enter(services: Services, journal: Journal, place: str, limit: str, users: Users) -> None:
    store, clock, needs, began = services.store, services.clock, {limit: services.limits.get(limit)}, services.clock.monotonic()
    run_id, around = journal.run.run_id, _around.get().count(users)
    while (later := await store.enter(services.owner, run_id, place, needs)) is not None:
        now = store.now()
        if not soon(later, clock.monotonic() - began, now) and (users.inside <= around or journal.safe_points.asked):
            break
        await clock.sleep(min(max(later.at - now, 1_000), LOOK_US) / 1_000_000)
    else:
        return
    later = await store.enter(services.owner, run_id, place, needs, resting=True)
    if later is not None:
        raise Crowded(later)


async def look_again(services: Services, run_id: str, names: Iterable[str]) -> None:
    """Asks the limits once more on behalf of a run that rests by now: a slot that became free before the run rested could not wake it."""
    store = services.store
    if not offers_looking_again(store):
        return
    try:
        for name in dict.fromkeys(names):
            if await store.look_again(run_id, {name: services.limits.get(name)}):
                return
    except StoreError:
        return  # the run becomes due after a while in any case


async def _leave(services: Services) -> None:
    """Releases slots; releases that the store could not be told of are sent with the next ones."""
    places = list(services.leaving)
    try:
        await services.store.leave(services.owner, places)
    except StoreError:
        return  # the owner holds the slot until the next release, or until the owner ends
    services.leaving.difference_update(places)


__all__ = ["Crowded", "hold", "look_again"]
