"""Channels and their reducers (§4.1): how concurrent writes to one name become one value.

A reducer is applied once per write, in task order, whatever the order of arrival. The built-in ones have a
``tag`` that is stored with each write, so that loading never runs user code; a custom one's new value is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.bounds import number
from holdfast.core.canon import EMPTY_DICT, EMPTY_LIST, FrozenDict, FrozenList
from holdfast.core.errors import StepFailure

LAST = "last"
CUSTOM = "custom"
TOPIC = "topic"


class Missing:
    """The value of a channel nothing has written."""

    def __repr__(self) -> str:
        return "<empty>"


MISSING: Any = Missing()


class Reducer(msgspec.Struct, frozen=True):
    """``tag`` names a built-in; ``function`` is set for a custom one: pure, ``f(old, new) -> value``."""

    tag: str
    function: Callable[[Any, Any], Any] | None = None

    def __call__(self, old: Any, new: Any) -> Any:
        return reduce(self.tag, old, new) if self.function is None else self.function(old, new)


class _Thread:
    """The marker of a channel that carries over between the runs of a thread (§4.15)."""

    def __repr__(self) -> str:
        return "thread"


class _Secret:
    """The marker of a channel whose values are hidden from those who look (§13.5)."""

    def __repr__(self) -> str:
        return "secret"


last = Reducer(LAST)
override = Reducer("override")
append = Reducer("append")
merge = Reducer("merge")
topic = Reducer(TOPIC)
thread = _Thread()
secret = _Secret()


def window(n: int) -> Reducer:
    """Keeps the newest ``n`` items; what it forgets the ledger remembers (§4.13)."""
    return Reducer(f"window:{number(n, 'n', 1)}")


class Channel(msgspec.Struct, frozen=True):
    """A declared channel. ``default`` is admitted; ``required`` ones must be in the input."""

    name: str
    reducer: Reducer = last
    default: Any = MISSING
    required: bool = False
    thread: bool = False
    type: Any = Any
    secret: bool = False

    @property
    def initial(self) -> Any:
        if self.default is not MISSING:
            return self.default
        return INITIAL.get(self.reducer.tag.partition(":")[0], MISSING)


INITIAL: dict[str, Any] = {"append": EMPTY_LIST, "window": EMPTY_LIST, "topic": EMPTY_LIST, "merge": EMPTY_DICT}


def _extend(old: Any, new: Any) -> FrozenList:
    """``old`` plus one item, or plus all of a list's items, with a single copy."""
    out = FrozenList(EMPTY_LIST if old is MISSING or old is None else old)
    if isinstance(new, list):
        list.extend(out, new)
    else:
        list.append(out, new)
    return out


def reduce(tag: str, old: Any, new: Any) -> Any:
    """One write through a built-in reducer; values are admitted, and so is the result.

    Raises:
        StepFailure: ``merge`` was given something else than a dict, or the tag is not known.
    """
    match tag:
        case "last" | "override":
            return new
        case "append" | "topic":
            return _extend(old, new)
        case "merge":
            if not isinstance(new, dict):
                raise StepFailure(f"a merge channel takes a dict, not {type(new).__name__}", code="bad_write")
            return FrozenDict({**(EMPTY_DICT if old is MISSING or old is None else old), **new})
    if tag.startswith("window:"):
        return FrozenList(_extend(old, new)[-int(tag[7:]) :])
    raise StepFailure(f"the reducer {tag!r} is not known", code="unsupported_format")
