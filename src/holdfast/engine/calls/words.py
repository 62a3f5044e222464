"""Writes what a person says about an attempt into its record: that it happened and with which result, or how its undo ended (§6.5)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.core import canon
from holdfast.core import effects as fx
from holdfast.core import events as ev
from holdfast.core.effects import Effect, EffectStatus
from holdfast.core.errors import ErrorValue, InvalidInput
from holdfast.core.waits import ABANDON, Decision
from holdfast.engine.base.journal import Draft
from holdfast.ports import outcome_told

TOOL = "tool:"


def settle(effect: Effect, decision: Decision, data: bytes, now: int) -> Draft:
    """Returns the draft for an attempt that, as a person says, happened and returned ``data``."""
    return Draft(facts=[_fact(ev.SideEffectRecorded, effect, _as_found(decision))], effects=[_record_done(effect, data, now)])


def fail(effect: Effect, error: ErrorValue, decision: Decision, now: int) -> Draft:
    """Returns the draft for an attempt that, as a person says, happened and failed."""
    failed = replace(effect, status=EffectStatus.FAILED, error=error, settled_at=now, closed=True)
    return Draft(facts=[_fact(ev.SideEffectFailed, effect, _as_found(decision))], effects=[failed])


def settle_undo(effect: Effect, undo: Effect, decision: Decision, now: int) -> Draft:
    """Returns the draft for the attempt to undo an effect of this run, as a person says it ended: the effect is undone, or it stands."""
    if decision.action == ABANDON:
        gone = replace(undo, status=EffectStatus.ABANDONED, closed=True, settled_at=now, detail=fx.BY_DECISION)
        return Draft(facts=[_fact(ev.SideEffectAbandoned, undo, fx.BY_DECISION)], effects=[gone])
    done = _record_done(undo, read_payload(decision), now)
    return Draft(facts=[_fact(ev.SideEffectRecorded, undo, _as_found(decision))], effects=[done, replace(effect, undone=undo.effect_id)])


def read_payload(decision: Decision) -> bytes:
    """Returns the encoded result that a person states; no result is an answer too."""
    return canon.encode(None) if decision.payload is None else bytes(decision.payload)


def check_result(effect: Effect, decision: Decision) -> None:
    """Checks the result that a person stated for a call.

    Raises:
        InvalidInput: the call is one of a tool, and the result is no outcome of a tool.
    """
    if effect.capability.startswith(TOOL):
        value: Any = canon.decode(read_payload(decision))
        outcome_told({} if value is None else value, "payload")


def read_result(effect: Effect, decision: Decision) -> bytes | None:
    """Returns the stated result in the form in which the call itself would record it, for a call whose code is not here: that of a tool is an outcome."""
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


__all__ = ["check_result", "fail", "read_payload", "read_result", "settle", "settle_undo"]
