"""Budgets: durable counters that are checked before each step (§8.5).

``steps`` are super-steps, ``seconds`` the wall time without waits, ``cost`` and ``tokens`` what steps
report by ``ctx.spend``. Exceeding one opens a ``budget`` wait; an approval extends it once, by a stated amount.
"""

from __future__ import annotations

import msgspec

from holdfast.core.run import Run
from holdfast.core.waits import Wait, WaitKind

EXTENSION = {"type": ["object", "null"], "properties": {"extend": {"type": "number", "exclusiveMinimum": 0}}, "additionalProperties": False}
"""The schema of an approval's value: the amount by which to extend. Any other value is refused and the question stays open (§5.2)."""


class Exceeded(msgspec.Struct, frozen=True):
    """A budget that is spent. ``extend`` is the amount by which an approval extends it, if the approval names no amount."""

    name: str
    used: float
    limit: float
    extend: float


def find_exceeded(run: Run, step: int, now: int) -> Exceeded | None:
    """Returns the first budget of a run that is spent, after ``step`` super-steps, or None if none is."""
    for name, limit in run.budgets.items():
        used = _measure(run, name, step, now)
        if used > limit or (name == "steps" and used >= limit):
            return Exceeded(name, used, limit, run.extensions.get(name, limit))
    return None


def _measure(run: Run, name: str, step: int, now: int) -> float:
    match name:
        case "steps":
            return float(step)
        case "seconds":
            since = 0 if run.active_since is None else now - run.active_since
            return (run.active_us + since) / 1_000_000
    return run.spent.get(name, 0.0)


def place(path: str, name: str, limit: float) -> str:
    """Returns the place at which a step asks about a budget of this size, before its call at ``path``."""
    short = f"{limit:g}"
    return f"{path}?{name}={short if float(short) == limit else repr(float(limit))}"  # six digits, as always, unless they would be those of another limit


def is_extended(run: Run, wait: Wait) -> bool:
    """Whether the budget that a wait asks about was extended by the answer to another wait, so that the step can check it again."""
    return wait.kind is WaitKind.BUDGET and wait.name in run.budgets and not wait.path.endswith(place("", wait.name, run.budgets[wait.name]))


def show(over: Exceeded) -> dict[str, object]:
    """Returns what a person sees before extending the budget."""
    return {"budget": over.name, "used": over.used, "limit": over.limit, "extend": over.extend}


__all__ = ["EXTENSION", "Exceeded", "find_exceeded", "is_extended", "place", "show"]
