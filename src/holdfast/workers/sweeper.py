"""Starts the runs of schedules whose slot has come (§10.15).

The run of a slot is created in the commit that advances its schedule, and the commit is refused if the schedule has changed since it
was read. So a crash leaves both or neither, and only one of several workers fires the slot. In addition, the slot is a key that stays
taken as long as the run is kept: it protects a store that offers less than a transaction, and helps when a clock was set back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from holdfast.calendar import CALENDAR
from holdfast.core import schedules as sch
from holdfast.core.commit import DedupClaim
from holdfast.core.errors import Conflict, HoldfastError, StoreError
from holdfast.core.lease import TOUCH
from holdfast.core.schedules import Firing, Move, Schedule
from holdfast.engine.base.services import Services
from holdfast.engine.desk import lanes
from holdfast.engine.desk.schedules import birth_of

SWEEP_SECONDS = 0.5
REFUSED_SECONDS = 60.0  # a schedule that cannot be fired here is left to other workers for this long before it is tried again
TOGETHER = 64  # this many are fired at once, so that their commits share a sync


class Sweeper:
    """Looks for due schedules of one worker's skills and queues. ``failed`` is called for each schedule that cannot be fired."""

    def __init__(self, services: Services, queues: Sequence[str], failed: Callable[[str, Exception], Awaitable[None]]) -> None:
        self._services = services
        self._queues = queues
        self._failed = failed
        self._next = float("-inf")
        self._refused: dict[str, float] = {}

    async def sweep(self) -> bool:
        """Fires one slot of each due schedule; returns True if some are still due. Runs at most twice a second, unless some are.

        Raises:
            StoreError: the store failed (X-14).
        """
        now = self._services.clock.monotonic()
        if now < self._next:
            return False
        self._refused = {i: at for i, at in self._refused.items() if at > now}
        due = [s for s in await self._services.store.schedules(due=self._services.store.now()) if self._mine(s)]
        more = False
        for i in range(0, len(due), TOGETHER):
            ends = await asyncio.gather(*(self._one(s) for s in due[i : i + TOGETHER]), return_exceptions=True)
            for end in ends:
                if isinstance(end, BaseException):
                    raise end
                more = more or end
        self._next = float("-inf") if more else now + SWEEP_SECONDS
        return more

    def _mine(self, s: Schedule) -> bool:
        """Whether this worker could drive the run of a schedule; else the schedule is left to another worker."""
        here = s.skill_id in self._services.skills.ids and (not self._queues or s.queue in self._queues)
        return here and s.schedule_id not in self._refused

    async def _one(self, s: Schedule) -> bool:
        """Fires one schedule. An error affects only this schedule: it is reported, and stored with it for others to see (X-14)."""
        try:
            return await self._fire(s)
        except StoreError:
            raise
        except Exception as e:
            self._refused[s.schedule_id] = self._services.clock.monotonic() + REFUSED_SECONDS
            why = e.line() if isinstance(e, HoldfastError) else f"{type(e).__name__}: {e}"
            if why != s.error:
                await self._services.store.put_schedule(msgspec.structs.replace(s, error=why), s)
            await self._failed(s.schedule_id, e)
            return False

    async def _fire(self, s: Schedule) -> bool:
        """Advances a schedule by one slot, or past the slots to be skipped. Returns True if it is due again already."""
        store = self._services.store
        now = store.now()
        next_ = sch.firing(s, now, CALENDAR)
        if next_.slot is None:
            after = next_.moved
            await store.put_schedule(after, s)
        elif not s.overlap and await self._under_way(s.last_run):
            after = sch.skip_overlap(next_)
            await store.put_schedule(after, s)
        else:
            after = await self._start(s, next_, next_.slot)
        return after.due is not None and after.due <= now

    async def _under_way(self, run_id: str | None) -> bool:
        """Whether the run of the previous slot has not ended, for example because it waits for a person."""
        found = None if run_id is None else await self._services.store.get(run_id)
        return found is not None and not found[0].terminal

    async def _start(self, s: Schedule, next_: Firing, slot: int) -> Schedule:
        """Creates the slot's run, in one commit with the advance of the schedule."""
        store = self._services.store
        born = birth_of(self._services, s, slot=slot)
        draft = lanes.admit(born, await lanes.ahead(store, born), "scheduled")
        draft.claims.append(DedupClaim("slot", sch.scope(s), str(slot), born.run_id, "", None))
        after = sch.fire(next_, born.run_id)
        commit = born.journal.unsent(draft, TOUCH, f"schedule:{s.schedule_id}")
        try:
            await store.commit(msgspec.structs.replace(commit, moves=(Move(s, after),)))
        except Conflict as e:
            if e.code == "claim_taken":
                return await self._had(s, next_, slot)
            if e.code != "schedule_moved":
                raise
        return after  # also if another worker was first and has advanced it

    async def _had(self, s: Schedule, next_: Firing, slot: int) -> Schedule:
        """Advances a schedule whose slot has a run already that the schedule does not know of."""
        taken = await self._services.store.find_claim("slot", sch.scope(s), str(slot))
        after = sch.fire(next_, taken.run_id if taken is not None else s.last_run or "")
        await self._services.store.put_schedule(after, s)
        return after


__all__ = ["Sweeper"]
