"""Retries: the record of a failure, and whether a failed step may be retried without asking (§10.9).

A recorded call is not repeated, so a retry repeats only what failed. An effect that failed may still have happened. Unless its receiver deduplicates by the key, a
person decides whether it is retried, once for each failure, whatever caused the retry.
"""

from __future__ import annotations

from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.called import Called
from holdfast.core.effects import LEDGERED, Effect, EffectStatus
from holdfast.core.errors import ErrorValue
from holdfast.core.retry import ONCE, Retry, backoff
from holdfast.core.waits import WaitKind
from holdfast.engine.calls.attempt import RETRY, Attempt
from holdfast.engine.calls.waits import Ask, request

FRESH = (0, 0)


def again(attempt: Attempt, path: str, called: Called, number: int, retry: Retry, error: ErrorValue, seed: str) -> ev.StepRetryScheduled:
    """Returns the fact that a call is retried after its ``number``-th failure; its place counts the failures from now on."""
    due = attempt.services.clock.now() + backoff(f"{seed}@{number}", number, retry.base_us)
    attempt.journal.progress.attempts[attempt.key, path] = (number, due)
    return ev.StepRetryScheduled(attempt.step, attempt.key, number, due, error, path, called)


async def ask_consent(attempt: Attempt) -> None:
    """Returns if another attempt repeats nothing unsafe, or a person has allowed it.

    Raises:
        Suspend: a person is asked.
    """
    effects = await attempt.effects()
    unsafe = find_unsafe(effects)
    if not unsafe:
        return
    failures = sum(map(_unsafe, effects))  # failures of effects that succeeded later count too: a question about another failure is another question
    node = attempt.node.name
    names = ", ".join(dict.fromkeys(e.capability.removeprefix("node:") for e in unsafe))
    which = {"effects": [e.effect_id for e in unsafe], "errors": [e.error.message for e in unsafe if e.error is not None]}
    prompt = f"{names} failed in {node} and is not declared idempotent. Try it again?"
    await request(attempt, Ask(kind=WaitKind.RETRY, prompt=prompt, name=node, show=which, path=f"{attempt.prefix}{RETRY}/{failures}"))


async def is_allowed(attempt: Attempt, path: str) -> bool:
    """Whether a person has allowed another attempt of this step after the newest failure of the effect at a place."""
    progress, asked = attempt.journal.progress, f"{attempt.prefix}{RETRY}/"
    failed = next((e.effect_id for e in reversed(await attempt.effects()) if e.path == path and e.status is EffectStatus.FAILED), None)
    for (task, at), wait in progress.questions.items():
        allowed = task == attempt.key and at.startswith(asked) and (task, at) in progress.records
        if allowed and wait.show is not None and failed in canon.decode(wait.show)["effects"]:
            return True
    return False


def find_unsafe(effects: list[Effect]) -> list[Effect]:
    """Returns the failures of effects that another attempt would repeat: all failures at each place whose last attempt failed."""
    last = {e.path: e for e in effects}
    return [e for e in effects if e.status is EffectStatus.FAILED and _unsafe(last[e.path])]


def _unsafe(effect: Effect) -> bool:
    return effect.status is EffectStatus.FAILED and effect.effect_class in LEDGERED and not effect.idempotent


__all__ = ["FRESH", "ONCE", "again", "ask_consent", "find_unsafe", "is_allowed"]
