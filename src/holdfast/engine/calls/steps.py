"""Recorded calls without side effects: steps, recorded values, and budgets (§4.12, §8.5)."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from holdfast.core import bounds, budgets, canon, decisions, ids
from holdfast.core import events as ev
from holdfast.core.called import Call, Called, brief
from holdfast.core.checkpoint import StepRecord
from holdfast.core.retry import Retry
from holdfast.core.run import Run
from holdfast.core.waits import WaitKind
from holdfast.engine.base.failures import record
from holdfast.engine.base.journal import Draft
from holdfast.engine.calls import retries
from holdfast.engine.calls.attempt import Attempt, Scope, current
from holdfast.engine.calls.functions import Patience, asynchronous, attempting, call, describe_function, name_of
from holdfast.engine.calls.holds import hold
from holdfast.engine.calls.waits import Ask, request

Act = Callable[[], Awaitable[Any]]
_plain = msgspec.msgpack.Encoder(order="sorted")


async def step(
    attempt: Attempt, fn: Callable[..., Any], args: tuple[Any, ...], *, key: str | None, retry: Retry, patience: Patience, name: str | None = None,
    limit: str | None = None,
) -> Any:
    """Runs ``fn(*args)`` once in the life of the run and records what it returns."""
    given = name is not None
    name = bounds.text(name, "name") if name is not None else name_of(fn)
    digest = digest_of(args) if args and key is None else ""
    with attempt.places.open(name, key) as path:
        made = Call(path, name, "step", digest, args, called=Called(name if given else describe_function(fn, name), attempt.places.scope().item), fn=fn)
        if limit is None:
            return await _once(attempt, made, retry, lambda: _patiently(attempt, fn, args, patience, name))

        async def act() -> Any:
            async with hold(attempt.services, attempt.journal, f"{attempt.attempt_id}/{path}", limit):
                return await _patiently(attempt, fn, args, patience, name)

        return await _once(attempt, made, retry, act)


async def _patiently(attempt: Attempt, fn: Callable[..., Any], args: tuple[Any, ...], patience: Patience, name: str) -> Any:
    """Calls the function; progress extends its time."""
    with attempt.minding(patience):
        return await call(fn, args, patience, name)


async def item(attempt: Attempt, fn: Callable[[Any], Any], value: Any, awaiting: Callable[[Any], Awaitable[Any]] | None = None) -> Any:
    """Runs ``fn(value)`` as one item of a map: a recorded step in which ``fn`` may make recorded calls of its own. ``awaiting``: the async function to call instead of a
    plain ``fn`` that makes such calls."""
    name, args, short = name_of(fn), (value,), brief(value, attempt.journal.run.secrets)
    with attempt.places.open(name) as path:

        async def act() -> Any:
            if awaiting is None and not asynchronous(fn):
                return await _patiently(attempt, fn, args, Patience.of(None), name)
            token = current.set(Scope(attempt.places.mark, f"{path}/", attempt.places.scope().within + 1, short))
            try:
                return await call(awaiting or fn, args, 0, name)  # its own calls have timeouts, and so has the node
            finally:
                current.reset(token)

        made = Call(path, name, "step", digest_of(args), args, opens=True, called=Called(describe_function(fn, name), short), fn=fn)
        return await _once(attempt, made, retries.ONCE, act)


async def _once(attempt: Attempt, made: Call, retry: Retry, act: Act) -> Any:
    record = attempt.places.lookup(made)
    if record is not None:
        return await attempt.give(record)
    await afford(attempt, made.path)
    await attempt.begin()
    try:
        value, packed, number = await _try(attempt, made, retry, act)
        done = StepRecord(attempt.key, made.path, made.name, value=packed, attempt=number, digest=made.digest)
        fact = ev.StepCompleted(attempt.step, attempt.key, attempt=number, path=made.path, call=made.called)
        await attempt.save(Draft(facts=[fact], results=[done]))
        return value
    finally:
        attempt.finish()


async def _try(attempt: Attempt, made: Call, retry: Retry, act: Act) -> tuple[Any, bytes, int]:
    """Retries until the call succeeds or its attempts are used up; every failure is durable before the next attempt (§10.9)."""
    progress = attempt.journal.progress
    number, due = progress.attempts.get((attempt.key, made.path), retries.FRESH)
    while True:
        if due:
            await attempt.pause(due, number, retry.base_us)
        number += 1
        if number > 1:  # the event of the step's end tells of the first attempt (§10.9)
            attempt.journal.hold(Draft(facts=[ev.AttemptStarted(attempt.step, attempt.key, number, attempt.services.owner, made.path, made.called)]))
        try:
            with attempting(made.path, number):
                value, data = canon.pack(await act(), f"{made.name}()")
            return value, data, number
        except Exception as e:
            error = record(e, where=made.path)
            if not retry.retries(e, number):
                failed = StepRecord(attempt.key, made.path, made.name, error=error, attempt=number, digest=made.digest)
                fact = ev.StepFailed(attempt.step, attempt.key, error, attempt=number, path=made.path, call=made.called)
                await attempt.save(Draft(facts=[fact], results=[failed]))
                raise
            again = retries.again(attempt, made.path, made.called, number, retry, error, f"{attempt.step_id}.{made.path}")
            due = again.due
            await attempt.save(Draft(facts=[again]))


def digest_of(args: tuple[Any, ...]) -> str:
    """Returns a digest that distinguishes calls of one function by their arguments; empty if the arguments have no stable form."""
    try:
        return hashlib.blake2b(_plain.encode(args), digest_size=8).hexdigest()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ""


# -- values and budgets -----------------------------------------------------------------------------


def value(attempt: Attempt, name: str, make: Callable[[], Any]) -> Any:
    """Returns a recorded value of the clock or of the random generator."""
    with attempt.places.open(name) as path:
        record = attempt.places.lookup(Call(path, name, "value"))
        if record is not None:
            return attempt.serve(record)
        made, data = canon.pack(make(), name)
        attempt.journal.hold(Draft(results=[StepRecord(attempt.key, path, name, value=data, kind="value")]))
        return made


def spend(attempt: Attempt, amounts: Mapping[str, float]) -> None:
    """Counts what this step has used of the run's budgets, once."""
    with attempt.places.open("spend") as path:
        known = attempt.places.lookup(Call(path, "spend", "value"))
        if known is not None and not attempt.places.is_outdated(path):
            return
        clean = bounds.limits({n: a for n, a in amounts.items() if a != 0}, "spend", bounds.SPENT)
        kept = StepRecord(attempt.key, path, "spend", value=canon.encode(canon.FrozenDict(clean)), kind="value")
        if known is not None and known.value == kept.value:
            return
        attempt.journal.hold(Draft(facts=[ev.BudgetSpent(attempt.step, attempt.key, clean)], results=[kept]))


async def afford(attempt: Attempt, path: str) -> None:
    """Waits for a person (kind ``budget``) if one of the run's budgets is exceeded (§8.5)."""
    while attempt.journal.run.budgets:
        over = await _find_exceeded(attempt)
        place = "" if over is None else budgets.place(path, over.name, over.limit)
        _close_others(attempt, path, place)
        if over is None:
            return
        if attempt.record(place) is not None:
            return  # a person decided not to extend the budget, but allowed this step
        wait_id = ids.wait_id(attempt.journal.run.run_id, attempt.step, attempt.key, place)
        if all(w.wait_id != wait_id for w in attempt.journal.run.waits):
            attempt.journal.hold(Draft(facts=[ev.BudgetExceeded(over.name, over.used, over.limit)]))
        prompt = f"The budget of {over.limit:g} {over.name} is spent. Extend it by {over.extend:g}?"
        question = Ask(
            kind=WaitKind.BUDGET, prompt=prompt, name=over.name, show=budgets.show(over), default=over.extend, schema=budgets.EXTENSION, path=place
        )
        await request(attempt, question)


def _close_others(attempt: Attempt, path: str, place: str) -> None:
    """Closes the questions about a budget that were asked before this call, except the one at ``place``: another answer has extended the budget meanwhile."""
    asked = [w for w in attempt.journal.run.waits if w.kind is WaitKind.BUDGET and (w.step, w.task) == (attempt.step, attempt.key) and w.path.startswith(f"{path}?")]
    if stale := [w for w in asked if w.path != place]:
        attempt.journal.hold(Draft(facts=[ev.WaitClosed(w.wait_id, "the budget was extended by another answer") for w in stale]))


async def _find_exceeded(attempt: Attempt) -> budgets.Exceeded | None:
    """Returns the first budget that is exceeded. Amounts that are reported and not yet durable count too."""
    found: list[budgets.Exceeded | None] = []

    def look(run: Run) -> None:
        now = attempt.services.clock.now()
        spent = [f for f in attempt.journal.held.facts if isinstance(f, ev.BudgetSpent)]
        found.append(budgets.find_exceeded(decisions.fold_facts(run, spent, now), attempt.journal.progress.checkpoint.taken, now))

    await attempt.journal.command(look, ev.SYSTEM)
    return found[0]


__all__ = ["afford", "digest_of", "item", "spend", "step", "value"]
