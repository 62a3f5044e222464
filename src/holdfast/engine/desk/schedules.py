"""Checks, adds, changes, pauses and drops schedules (§10.15). The sweeper fires them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.calendar import CALENDAR
from holdfast.callers import VIA
from holdfast.core import bounds, canon, superstep
from holdfast.core import schedules as sch
from holdfast.core.bounds import check_known
from holdfast.core.errors import Conflict, InvalidInput, ScheduleNotFound
from holdfast.core.graph import Program
from holdfast.core.schedules import Schedule
from holdfast.engine.base.services import Services
from holdfast.engine.desk import door
from holdfast.engine.desk.intake import Birth, birth

OPTIONS = tuple(name for name in door.KEPT if name not in ("queue", "tenant_id"))
OVERLAP = {"skip": False, "allow": True}
PATIENCE = 100


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """When a schedule is due, as a caller says it. Durations are in microseconds."""

    cron: str | None = None
    every_us: int | None = None
    zone: str | None = None
    overlap: str = "skip"
    missed: str = "skip"
    catch_up: int = 1
    grace_us: int = sch.GRACE_US


class Scheduler:
    """The schedules of a store, for one runtime."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._store = services.store

    async def put(self, program: Program, given: Mapping[str, Any], rule: Rule, schedule_id: str | None, actor: str, options: Mapping[str, Any]) -> Schedule:
        """Adds a schedule, or changes the one with that id. The same call again changes nothing.

        Raises:
            InvalidInput: the input, by field; the cron line, zone or interval. UsageError: cronsim is missing. UnknownOption.
        """
        new = self._draft(program, given, rule, schedule_id, options)
        return await self._change(new.schedule_id, lambda old, now: sch.revise(old, new, now, actor, CALENDAR))

    def _draft(self, program: Program, given: Mapping[str, Any], rule: Rule, schedule_id: str | None, options: Mapping[str, Any]) -> Schedule:
        check_known(options, door.KEPT, "a schedule")
        if rule.overlap not in OVERLAP:
            raise InvalidInput(f"overlap is skip or allow, not {rule.overlap!r}")
        missed = rule.missed.replace("-", "_")
        if missed not in set(sch.Missed):
            raise InvalidInput(f"missed is skip or catch_up, not {rule.missed!r}")
        wanted = {name: options[name] for name in sorted(options) if options[name] is not None}
        door.request(wanted, where="a schedule")
        said = msgspec.json.decode(msgspec.json.encode({name: value for name, value in wanted.items() if name in OPTIONS}))
        data = bounds.check_size(superstep.pack_input(program, given)[1], "inputs")
        every_us = 0 if rule.every_us is None else rule.every_us or -1  # an interval of 0 is refused as too short, and does not mean that none was given
        more = {name: value for name, value in wanted.items() if name not in OPTIONS}
        parts = (program.id, rule.cron or "", str(rule.every_us), rule.zone or "", data.hex(), repr(said), repr(more))
        return Schedule(
            schedule_id=schedule_id if schedule_id is not None else f"{'-'.join(program.id.split())}-{canon.digest(parts)[:8]}",
            skill_id=program.id, input=data, cron=rule.cron or "", every_us=every_us, zone=rule.zone or "UTC",
            overlap=OVERLAP[rule.overlap], missed=sch.Missed(missed), catch_up=rule.catch_up, grace_us=rule.grace_us, options=said,
            created_at=self._store.now(), **more,
        )

    async def _change(self, schedule_id: str, become: Callable[[Schedule | None, int], Schedule]) -> Schedule:
        """Decides on the current schedule, and again if it was changed meanwhile, for example advanced by a worker."""
        for _ in range(PATIENCE):
            old = await self._store.schedule(schedule_id)
            new = become(old, self._store.now())
            if new == old or await self._store.put_schedule(new, old):
                return new
        raise Conflict(f"others keep changing the schedule {schedule_id}", hint="try again")

    async def find(self, schedule_id: str) -> Schedule:
        """Returns a schedule by its id.

        Raises:
            ScheduleNotFound: there is none.
        """
        return _there(schedule_id, await self._store.schedule(schedule_id))

    async def pause(self, schedule_id: str, actor: str) -> Schedule:
        return await self._change(schedule_id, lambda old, now: sch.pause(_there(schedule_id, old), now, actor, VIA.get()))

    async def unpause(self, schedule_id: str, actor: str) -> Schedule:
        return await self._change(schedule_id, lambda old, now: sch.unpause(_there(schedule_id, old), now, actor, CALENDAR, VIA.get()))

    async def drop(self, schedule_id: str) -> None:
        if not await self._store.drop_schedule(schedule_id):
            _there(schedule_id, None)


def _there(schedule_id: str, found: Schedule | None) -> Schedule:
    if found is None:
        raise ScheduleNotFound(f"there is no schedule {schedule_id!r}", hint="holdfast schedule list shows them")
    return found


def birth_of(services: Services, s: Schedule, *, slot: int | None = None, key: str | None = None) -> Birth:
    """Prepares a run of a schedule: for one of its slots, or without a slot because somebody asked for a run.

    Raises:
        SkillUnknown: the skill is not registered here. InvalidInput: the skill no longer accepts this input.
    """
    said = {**s.options, "tenant_id": s.tenant_id, "queue": s.queue, "key": key}
    request = door.request(said, where="a schedule", schedule_id=s.schedule_id, slot=slot)
    return birth(services, services.skills.find(s.skill_id), canon.decode(s.input), request)



__all__ = ["OPTIONS", "Rule", "Scheduler", "birth_of"]
