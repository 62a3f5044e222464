"""Side effects under a key: attempt on record, act, result on record (§6.2).

What was attempted without a result is unknown: it is executed again only if the receiver dedupes by the key; else
nobody repeats it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from holdfast.core import canon, ids
from holdfast.core import events as ev
from holdfast.core.checkpoint import StepRecord
from holdfast.core.effects import LEDGERED, Effect, EffectClass, EffectStatus, effect_key
from holdfast.core.errors import EffectConflict, EffectInProgress, EffectUnknown, ErrorValue, LeaseLost
from holdfast.engine.calls import call, name_of
from holdfast.engine.journal import Draft


class Options(msgspec.Struct, frozen=True):
    """What the author said about one effect."""

    key: str | None = None
    side_effects: str = "external_action"
    idempotent: bool = False
    replay: str | None = None
    verify: Callable[..., Any] | None = None
    undo: Callable[..., Any] | None = None
    timeout_us: int = 60_000_000


class Place(Protocol):
    """The part of a Context that an effect needs."""

    _services: Any
    _journal: Any
    _key: str
    _step: int
    attempt: int

    def _place(self, name: str, key: str | None = None) -> Any: ...
    def _lookup(self, path: str, name: str, kind: str) -> StepRecord | None: ...
    def _served(self, record: StepRecord) -> Any: ...


async def perform(ctx: Any, fn: Callable[..., Any], args: tuple[Any, ...], options: Options) -> Any:
    """One effect at one place: served from its record, or attempted, done and recorded.

    Raises:
        EffectUnknown: an earlier attempt has no result (§6.5).
        EffectConflict: the key is on record with another request (§6.3).
        EffectInProgress: somebody else is doing it now (§6.8).
    """
    kind = EffectClass(options.side_effects)
    if kind not in LEDGERED:
        return await ctx._do_step(fn, args, options.key, ctx._node.retry, options.timeout_us)
    name = name_of(fn)
    with ctx._place(name, options.key) as path:
        record = ctx._lookup(path, name, "effect")
        if record is not None:
            return ctx._served(record)
        run, journal, services = ctx._journal.run, ctx._journal, ctx._services
        shared = options.key is not None
        own = f"{ctx._step}.{ctx._key}.{path}"
        key = effect_key(run.tenant_id, "effect", name if shared else run.lineage_root, options.key or own)
        request = canon.fingerprint([name, list(args)])
        before = await services.store.effects(key=key)
        for effect in reversed(before):
            if effect.request_hash != request:
                raise EffectConflict(f"the key {options.key or own!r} of {name} is on record with other arguments", hint="use another key, or the same arguments")
            if effect.status is EffectStatus.RECORDED:
                return await _reuse(ctx, path, name, effect)
            if effect.open and not options.idempotent:
                if effect.run_id != run.run_id:
                    raise EffectInProgress(f"{name} is under way in the run {effect.run_id}")
                raise EffectUnknown(f"{name} was attempted and nobody knows its outcome", hint="look outside, then decide: holdfast effects")
        if not services.alive():
            raise LeaseLost("the lease may have been lost: no effect is begun")
        known = next((e for e in reversed(before) if e.open), None)
        effect = Effect(
            effect_id=known.effect_id if known is not None else f"{ids.step_id(run.run_id, ctx._step, ctx._key, path)}#{len(before) + 1}",
            run_id=run.run_id,
            lineage_root=run.lineage_root,
            step=ctx._step,
            task=ctx._key,
            path=path,
            attempt=ctx.attempt,
            capability=name,
            effect_class=kind,
            key=key,
            shared=shared,
            request_hash=request,
            idempotent=options.idempotent,
            verifiable=options.verify is not None,
            owner=services.owner,
            fence=journal.fence,
            attempted_at=services.clock.now(),
            tenant_id=run.tenant_id,
        )
        fact = ev.SideEffectAttempted(effect.effect_id, key, ctx._step, ctx._key, path)
        await journal.save(Draft(facts=[fact], effects=[effect]))
        try:
            result = await call(_keyed(fn, key), args, options.timeout_us, name)
        except Exception as e:
            error = ErrorValue.of(e, where=path)
            failed = msgspec.structs.replace(effect, status=EffectStatus.FAILED, error=error, settled_at=services.clock.now())
            await journal.save(Draft(facts=[ev.SideEffectFailed(effect.effect_id, key, ctx._step, ctx._key, path, error.message)], effects=[failed]))
            raise
        value, data = canon.pack(result, f"{name}()")
        raw = data
        recorded = msgspec.structs.replace(
            effect, status=EffectStatus.RECORDED, result=raw, response_hash=canon.fingerprint(value), settled_at=services.clock.now()
        )
        done = StepRecord(ctx._key, path, name, value=raw, kind="effect", attempt=ctx.attempt)
        facts: list[ev.Fact] = [
            ev.SideEffectRecorded(effect.effect_id, key, ctx._step, ctx._key, path),
            ev.StepCompleted(ctx._step, ctx._key, attempt=ctx.attempt, path=path),
        ]
        await journal.save(Draft(facts=facts, results=[done], effects=[recorded]))
        return value


async def _reuse(ctx: Any, path: str, name: str, effect: Effect) -> Any:
    done = StepRecord(ctx._key, path, name, value=effect.result, kind="effect")
    fact = ev.SideEffectReused(effect.effect_id, effect.key, ctx._step, ctx._key, path)
    await ctx._journal.save(Draft(facts=[fact], results=[done]))
    return ctx._served(done)


def _keyed(fn: Callable[..., Any], key: str) -> Callable[..., Any]:
    """Hands the key to a function that asks for it by a parameter named ``idempotency_key``."""
    try:
        wants = "idempotency_key" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return fn
    if not wants:
        return fn
    if inspect.iscoroutinefunction(fn):

        async def act(*args: Any) -> Any:
            return await fn(*args, idempotency_key=key)

        return act
    return lambda *args: fn(*args, idempotency_key=key)
