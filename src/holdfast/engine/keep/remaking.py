"""Makes records of effects again from the log, if they are missing or older than what the log says (§12.1).

The log says under which key an effect was attempted and how it ended; its result is in the log too, unless it is large. Nothing unknown is made up:
an effect whose result is not in the log is unknown, and a person is asked before anything is done under its key again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core import canon, effects
from holdfast.core import events as ev
from holdfast.core.checkpoint import StepRecord
from holdfast.core.codec import Record
from holdfast.core.effects import Effect, EffectClass, EffectStatus
from holdfast.core.run import Run

LOST = "its record was lost, and was made again from the log"
_ENDS: dict[type[ev.EffectFact], EffectStatus] = {
    ev.SideEffectFailed: EffectStatus.FAILED, ev.SideEffectAbandoned: EffectStatus.ABANDONED, ev.SideEffectBlocked: EffectStatus.BLOCKED,
}


class _Told(msgspec.Struct):
    """What the log says about one effect: when it was attempted, its newest fact, and its result."""

    fact: ev.EffectFact
    at: int
    attempted_at: int
    result: StepRecord | None = None


class Remaking:
    """Makes the records of the ``lost`` effects of a run from its log, which is fed to it oldest first."""

    def __init__(self, lost: Iterable[str]) -> None:
        self._lost = frozenset(lost)
        self._told: dict[str, _Told] = {}
        self._undone: dict[str, str] = {}

    def step(self, record: Record) -> None:
        for event in record.events:
            fact = event.fact
            if not isinstance(fact, ev.EffectFact) or isinstance(fact, ev.SideEffectReused):
                continue
            if isinstance(fact, ev.SideEffectRecorded):
                self._undone[fact.key] = fact.effect_id
            if fact.effect_id not in self._lost:
                continue
            before = self._told.get(fact.effect_id)
            began = event.at if before is None or isinstance(fact, ev.SideEffectAttempted) else before.attempted_at
            self._told[fact.effect_id] = _Told(fact, event.at, began, _find_result(record, fact))

    def effects(self, run: Run, now: int) -> tuple[Effect, ...]:
        return tuple([self._make(run, told, now) for told in self._told.values()])

    def _make(self, run: Run, told: _Told, now: int) -> Effect:
        fact, result = told.fact, told.result
        status = _ENDS.get(type(fact), EffectStatus.UNKNOWN)
        bare = Effect(
            effect_id=fact.effect_id, run_id=run.run_id, lineage_root=run.lineage_root, step=fact.step, task=fact.task, path=fact.path, attempt=1, capability="",
            effect_class=EffectClass.EXTERNAL, key=fact.key, shared=_is_shared(run, fact.key), status=status, attempted_at=told.attempted_at, tenant_id=run.tenant_id,
            settled_at=None if status is EffectStatus.UNKNOWN else told.at, closed=True, detail=LOST,
        )
        if result is None:
            return bare
        found = msgspec.structs.replace(bare, attempt=result.attempt, capability=result.name, request_hash=result.digest)
        if result.error is not None:
            return msgspec.structs.replace(found, error=result.error)
        data = result.value
        if not isinstance(fact, ev.SideEffectRecorded) or data is None:
            return found
        return msgspec.structs.replace(
            found, status=EffectStatus.RECORDED, result=data, response_hash=canon.chain(b"", data).hex(), settled_at=told.at, undone=self._undone.get(effects.undo_key(fact.key), "")
        )


def _find_result(record: Record, fact: ev.EffectFact) -> StepRecord | None:
    """Returns the result or failure of an effect, from the commit that reports it; None if it is not there."""
    return next((r for r in record.results if isinstance(r, StepRecord) and (r.kind, r.task, r.path) == ("effect", fact.task, fact.path)), None)


def _is_shared(run: Run, key: str) -> bool:
    """Whether other runs may use the same key: its scope is neither the lineage nor the run."""
    scope = key.split(":")[2:3]
    return scope not in ([run.lineage_root], [run.run_id])


__all__ = ["LOST", "Remaking"]
