"""Finds the records that may depend on an effect that was taken back (§6.11).

If an effect was taken back and is done again, it returns another result, and the code may compute other values from it. All that its step
recorded after it is outdated. A record that contains its request still answers exactly the same call: a step and an effect by the digest of their
arguments, a question by what was shown, a child by its input. Other records are removed: the result of a scope, a step under a key, a failure.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from holdfast.core.called import Call
from holdfast.core.checkpoint import CHECK, StepRecord, find_scopes

_SUMS = frozenset({"scope", "first_of", "task"})
"""Kinds of records that hold the combined result of several calls, and not the requests of these calls."""
_ANSWERS = frozenset({"step", "effect", "value", "wait"})


class Outdated(NamedTuple):
    """Paths of outdated records: those to be removed (``gone``), and those that answer only exactly the ``same`` call."""

    gone: list[str]
    same: list[str]


def find_outdated(records: Sequence[StepRecord], path: str) -> Outdated:
    """Returns which of a task's records, oldest first, are outdated after the effect at ``path`` in the task was taken back.

    Every later record counts as depending on the effect, because the branches of a scope may exchange values. If the effect has no record of its own, the
    first record of a scope or step around it is used instead; if there is none, all records count as later.
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
    """Returns the places of the records around ``path``: of the scopes and steps that contain it, and of step results that are being reviewed."""
    scopes = list_scopes(path)
    return [*scopes, CHECK, *(f"{scope}/{CHECK}" for scope in scopes), f"{path}/{CHECK}"]


def list_scopes(path: str) -> list[str]:
    """Returns the places of the scopes and steps that contain ``path``, the outermost first."""
    places = path.split("/")
    return ["/".join(places[:n]) for n in range(1, len(places))]


def is_beside(record: StepRecord) -> bool:
    """Whether a record is not an ordinary call of the code: it is feedback, or an answer about a call or a retry, whose path names what it is about."""
    if record.kind != "wait":
        return record.kind == "feedback"
    places = record.path.split("/")  # a key that the code gave to a call may contain these characters too, after a =
    return "?" in places[-1] or any(place.startswith("@") for place in places)


def goes_on(record: StepRecord, path: str, at: Collection[str]) -> bool:
    """Whether this later record shows that the code continued after what happened at ``path``. It does if it belongs to the same flow of control, to one around
    it, or to a call of one of these, and is not itself the failure of a scope around ``path``. ``at``: the places with a record: these are calls, not branches."""
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
    """Returns the super-step of a sub-flow to which a place belongs, or 0 if it belongs to none."""
    step, dot, _ = place.partition(".")
    return int(step) if dot and step.isdecimal() else 0


def is_same(record: StepRecord, call: Call) -> bool:
    """Whether a record certainly belongs to this call."""
    return (record.name, record.kind, record.digest) == (call.name, call.kind, call.digest) and (call.fn is None or _tells_all(call.fn))


def _tells_all(fn: Callable[..., Any]) -> bool:
    """Whether a function gets all its inputs as arguments, as far as can be seen: it is not a partial, and has no closure or defaults from inside another function."""
    if isinstance(fn, functools.partial):
        return False
    inner = isinstance(fn, FunctionType) and "<locals>" in fn.__qualname__
    return not (inner and (fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__))


__all__ = ["Outdated", "find_outdated", "goes_on", "is_beside", "is_same", "list_around", "list_scopes"]
