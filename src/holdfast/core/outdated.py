"""Records that may have been made of what is no more (§6.11).

Where an effect was taken back and is done again, it gives something else, and what the code made of it is something else too. Whatever its step
recorded after it is outdated. A record that says what was asked for answers the very same call, and no other: a step and an effect by the digest of their
arguments, a question by what was shown, a child by its input. One that does not say it is gone: what a scope came to, a step under a key, a failure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from holdfast.core.called import Call
from holdfast.core.checkpoint import CHECK, StepRecord, find_scopes

_SUMS = frozenset({"scope", "first_of", "task"})
"""Kinds of what several calls came to: they say nothing about what these were asked for."""
_ANSWERS = frozenset({"step", "effect", "value", "wait"})


class Outdated(NamedTuple):
    """By their paths: what is ``gone``, and what answers only the ``same`` call."""

    gone: list[str]
    same: list[str]


def find_outdated(records: Sequence[StepRecord], path: str) -> Outdated:
    """What becomes of a task's records, the oldest first, where the effect at ``path`` in it was taken back.

    What came later in time counts as made of it, for the branches of a scope may tell one another. If the effect has no record of its own, the first that
    holds it counts for it, and if there is none, nothing is known to be older.
    """
    first = next((n for n, r in enumerate(records) if r.path == path or is_around(r, path)), 0)
    found, scopes = Outdated([], []), find_scopes(records)
    for record in records[first:]:
        if (
            record.path == path
            or record.error is not None
            or record.kind in _SUMS
            or (record.kind == "step" and (not record.digest or record.path in scopes))
        ):
            found.gone.append(record.path)
        elif record.kind in _ANSWERS:
            found.same.append(record.path)
    return found


def is_around(record: StepRecord, path: str) -> bool:
    """Whether a record of a task is that of a scope or a step around ``path``, or of a result that holds all that was done so far."""
    there, here = path.split("/"), record.path.split("/")
    shared = 0
    while shared < min(len(there), len(here)) and there[shared] == here[shared]:
        shared += 1
    return shared == len(here) < len(there) or (shared == len(here) - 1 and here[shared] == CHECK)


def is_same(record: StepRecord, call: Call) -> bool:
    """Whether a record is surely that of this very call."""
    return (record.name, record.kind, record.digest) == (call.name, call.kind, call.digest) and (call.fn is None or _tells_all(call.fn))


def _tells_all(fn: Callable[..., Any]) -> bool:
    """Whether all that a function is given is among its arguments, as far as one can see: nothing that was made where it was made."""
    if isinstance(fn, functools.partial):
        return False
    inner = isinstance(fn, FunctionType) and "<locals>" in fn.__qualname__
    return not (inner and (fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__))


__all__ = ["Outdated", "find_outdated", "is_around", "is_same"]
