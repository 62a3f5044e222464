"""What a person says of an attempt, written on its record: that it was done and what it gave, or how its undo went (§6.5)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core import canon
from holdfast.core import effects as fx
from holdfast.core import events as ev
from holdfast.core.effects import Effect, EffectStatus
from holdfast.core.errors import InvalidInput
from holdfast.core.waits import ABANDON, Decision
from holdfast.engine.base.journal import Draft
from holdfast.ports import outcome_told

TOOL = "tool:"


def settle(effect: Effect, decision: Decision, data: bytes, now: int) -> Draft:
    """An attempt of which a person says that it was done, and gave ``data``."""
    return Draft(facts=[_fact(ev.SideEffectRecorded, effect, _as_found(decision))], effects=[_record_done(effect, data, now)])


def settle_undo(effect: Effect, undo: Effect, decision: Decision, now: int) -> Draft:
    """The attempt to take an effect of this run back, as a person says it ended: it came through, or the effect stands."""
    if decision.action == ABANDON:
        gone = replace(undo, status=EffectStatus.ABANDONED, closed=True, settled_at=now, detail=fx.BY_DECISION)
        return Draft(facts=[_fact(ev.SideEffectAbandoned, undo, fx.BY_DECISION)], effects=[gone])
    done = _record_done(undo, read_payload(decision), now)
    return Draft(facts=[_fact(ev.SideEffectRecorded, undo, _as_found(decision))], effects=[done, replace(effect, undone=undo.effect_id)])


def read_payload(decision: Decision) -> bytes:
    """What a person says that a call gave, encoded; nothing is an answer too."""
    return canon.encode(None) if decision.payload is None else bytes(decision.payload)


def read_result(effect: Effect, decision: Decision) -> bytes | None:
    """The same as the call would give it, whose code is not at hand: that of a tool gives an outcome.

    None where it would be asked for again, or says of a tool that it failed: then nobody knows whether there is anything to take back.
    """
    data = read_payload(decision)
    if not effect.capability.startswith(TOOL):
        return data
    value: Any = canon.decode(data)
    try:
        outcome = outcome_told({} if value is None else value, "payload")
    except InvalidInput:
        return None
    return canon.pack(outcome)[1] if outcome.ok else None


def _record_done(effect: Effect, data: bytes, now: int) -> Effect:
    return replace(
        effect, status=EffectStatus.RECORDED, result=data, response_hash=canon.chain(b"", data).hex(), settled_at=now, closed=True
    )


def _fact(kind: type[ev.EffectFact], effect: Effect, detail: str) -> ev.EffectFact:
    return kind(effect.effect_id, effect.key, effect.step, effect.task, effect.path, detail)


def _as_found(decision: Decision) -> str:
    return f"as {fx.attribute(decision.actor, decision.note or '')} found"


__all__ = ["read_payload", "read_result", "settle", "settle_undo"]
