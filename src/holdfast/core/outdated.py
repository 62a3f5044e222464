"""Records that may have been made of what is no more (§6.11).

Where an effect was taken back and is done again, it gives something else, and what the code made of it is something else too. Whatever its step
recorded after it is outdated. A record that says what was asked for answers the very same call, and no other: a step and an effect by the digest of their
arguments, a question by what was shown, a child by its input. One that does not say it is gone: what a scope came to, a step under a key, a failure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
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
    counts = {path, *list_around(path)}
    first = next((n for n, r in enumerate(records) if r.path in counts), 0)
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


def list_around(path: str) -> list[str]:
    """The places of the records that are around ``path``: those of the scopes and steps that it is in, and of results that hold all that was done so far."""
    places = path.split("/")
    scopes = ["/".join(places[:n]) for n in range(1, len(places))]
    return [*scopes, CHECK, *(f"{scope}/{CHECK}" for scope in scopes), f"{path}/{CHECK}"]


def is_beside(record: StepRecord) -> bool:
    """Whether a record is no call of the code at its place in order: feedback, or an answer about a call or a retry, which says itself what it is about."""
    if record.kind != "wait":
        return record.kind == "feedback"
    places = record.path.split("/")  # a key that the code gave to a call may hold any of these signs, behind a =
    return "?" in places[-1] or any(place.startswith("@") for place in places)


def goes_on(record: StepRecord, path: str, at: Collection[str]) -> bool:
    """Whether this later record shows that the code went on after what happened at ``path``: it is of the same line of control or of one around it, or beneath
    a call of such a line, and not itself the failure of a scope that the other was in. ``at``: the places with a record, which tell calls from the branches of a scope."""
    if path.startswith(record.path + "/"):
        return record.error is None
    there, here = path.split("/"), record.path.split("/")
    differ = next((n for n, (a, b) in enumerate(zip(there, here, strict=False)) if a != b), None)
    if differ is None:
        return False
    outer = next(n for n, place in enumerate(there) if not place.startswith("@") and not _round(place))
    if differ < outer:
        return _round(there[differ]) < _round(here[differ])
    return differ in (outer, len(there) - 1, len(here) - 1) or "/".join(there[: differ + 1]) in at


def _round(place: str) -> int:
    """The super-step of a sub-flow that a place is of; 0 if it is of none."""
    step, dot, _ = place.partition(".")
    return int(step) if dot and step.isdecimal() else 0


def is_same(record: StepRecord, call: Call) -> bool:
    """Whether a record is surely that of this very call."""
    return (record.name, record.kind, record.digest) == (call.name, call.kind, call.digest) and (call.fn is None or _tells_all(call.fn))


def _tells_all(fn: Callable[..., Any]) -> bool:
    """Whether all that a function is given is among its arguments, as far as one can see: nothing that was made where it was made."""
    if isinstance(fn, functools.partial):
        return False
    inner = isinstance(fn, FunctionType) and "<locals>" in fn.__qualname__
    return not (inner and (fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__))


__all__ = ["Outdated", "find_outdated", "goes_on", "is_beside", "is_same", "list_around"]
