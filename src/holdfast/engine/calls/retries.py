"""Whether a failed step may be tried again by itself (§10.9).

What is on record is not done again, so a retry repeats only what failed. An effect that failed may have acted all the same: unless its receiver
dedupes by the key, a person says whether it is tried again, once for each failure, however the step came to be retried.
"""

from __future__ import annotations

from holdfast.core.effects import LEDGERED, Effect, EffectStatus
from holdfast.core.graph import Node
from holdfast.core.waits import WaitKind
from holdfast.engine.calls.context import Context
from holdfast.engine.calls.waits import Ask, request

PLACE = "@retry"


async def consented(ctx: Context, node: Node) -> None:
    """Returns where another attempt repeats nothing unsafe, or a person has allowed it.

    Raises:
        Suspend: a person is asked.
    """
    unsafe = failed(await ctx.own_effects())
    if not unsafe:
        return
    names = ", ".join(dict.fromkeys(e.capability.removeprefix("node:") for e in unsafe))
    which = {"effects": [e.effect_id for e in unsafe], "errors": [e.error.message for e in unsafe if e.error is not None]}
    prompt = f"{names} failed in {node.name} and is not declared idempotent. Try it again?"
    await request(ctx, Ask(kind=WaitKind.RETRY, prompt=prompt, name=node.name, show=which, path=f"{ctx.place_prefix}{PLACE}/{len(unsafe)}"))


def failed(effects: list[Effect]) -> list[Effect]:
    """The failures of effects that another attempt would repeat: at each place that ended in one, all of them."""
    last = {e.path: e for e in effects}
    return [e for e in effects if e.status is EffectStatus.FAILED and _unsafe(last[e.path])]


def _unsafe(effect: Effect) -> bool:
    return effect.status is EffectStatus.FAILED and effect.effect_class in LEDGERED and not effect.idempotent


__all__ = ["PLACE", "consented", "failed"]
