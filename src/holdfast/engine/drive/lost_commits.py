"""Reports runs whose newest commits a database server has lost, as far as this process knows them (§1.9).

Each such run is marked ``interrupted`` until a named actor resumes it. Acts that were carried out and are no longer recorded are recorded again in the same commit;
otherwise the run would carry them out a second time. A known result is kept. If the result is unknown, a person is asked when the run comes to that call.
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
    """Writes every lost end of a log into its run's log, if the run still exists; a run that another process executes is reported later.

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
    """Returns what is written about a lost end. ``plain``: results are in the form in which they were given, so that they can be stored again."""
    effects = [e if _is_known(e) and plain else replace(e, status=EffectStatus.ATTEMPTED, result=None, blob="", error=None, settled_at=None) for e in tail.effects]
    results = {e.effect_id for e in effects if e.status is not EffectStatus.ATTEMPTED}
    facts: list[ev.Fact] = [f for f in tail.facts if isinstance(f, ev.SideEffectAttempted) or f.effect_id in results]
    acts = f"; {len(effects)} side effects of its lost commits are recorded again: {', '.join(e.effect_id for e in effects)[:500]}" if effects else ""
    facts.append(ev.RunInterrupted(f"log_rolled_back: {tail.about}{acts}"))
    return Draft(facts=facts, effects=effects)


def _is_known(effect: Effect) -> bool:
    """Whether the record itself contains the outcome."""
    return not effect.open and not effect.blob


__all__ = ["surface"]
