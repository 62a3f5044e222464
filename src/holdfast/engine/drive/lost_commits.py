"""Runs whose newest commits were lost with a database server, as this process knows (§1.9).

Each is set aside as ``interrupted`` until a named actor resumes it. What was done outside, and is on record no more, is put on record again
in the same commit: else the run, driven on from where it is now, would do it a second time. A result that is known is kept; where it is
not, a person is asked when the run comes to that place.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast import logs
from holdfast.core import events as ev
from holdfast.core.effects import Effect, EffectStatus
from holdfast.core.status import TERMINAL
from holdfast.engine.base.journal import Draft
from holdfast.engine.base.reader import Reader
from holdfast.engine.base.services import Services
from holdfast.engine.drive.commands import Desk
from holdfast.ports import LostTail, offers_recall, offers_sealing

ACTOR = "failover"
log = logs.logger("holdfast.failover")


async def surface(services: Services) -> None:
    """Tells of every lost tail in its run's log, where there is one still; one that somebody drives meanwhile is told of later.

    Raises:
        StoreError: the store fails again.
    """
    store, recalls = services.store, services.store
    if not offers_recall(recalls):
        return
    later: list[LostTail] = []
    try:
        while (tail := recalls.take_tail()) is not None:
            later.append(tail)
            loaded = await store.load(tail.run_id)
            draft = _draft(tail, plain=not offers_sealing(store))
            gone = loaded is None or (loaded.run.status in TERMINAL and not draft.effects)
            if loaded is None or gone or await Desk(services, Reader(services)).at_rest(loaded, draft, actor=ACTOR):
                log.warning("log_rolled_back: %s", tail.about)
                later.pop()
    finally:
        for tail in later:
            recalls.keep_tail(tail)


def _draft(tail: LostTail, *, plain: bool) -> Draft:
    """What is written of it. ``plain``: results are as they were given, so that they may be kept again."""
    effects = [e if _is_known(e) and plain else replace(e, status=EffectStatus.ATTEMPTED, result=None, blob="", error=None, settled_at=None) for e in tail.effects]
    results = {e.effect_id for e in effects if e.status is not EffectStatus.ATTEMPTED}
    facts: list[ev.Fact] = [f for f in tail.facts if isinstance(f, ev.SideEffectAttempted) or f.effect_id in results]
    acts = f"; {len(effects)} side effects of its lost commits are recorded again: {', '.join(e.effect_id for e in effects)[:500]}" if effects else ""
    facts.append(ev.RunInterrupted(f"log_rolled_back: {tail.about}{acts}"))
    return Draft(facts=facts, effects=effects)


def _is_known(effect: Effect) -> bool:
    """Whether what came of it is in the record itself."""
    return not effect.open and not effect.blob


__all__ = ["surface"]
