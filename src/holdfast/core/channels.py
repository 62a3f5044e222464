"""Channels and their reducers (§4.1): how concurrent writes to one name become one value.

A reducer is applied once per write, in task order, regardless of the order of arrival. A built-in reducer has a
``tag`` that is stored with each write, so that loading never runs user code; for a custom reducer the new value is stored.

A growing channel has a size limit (§14.3). Each write is measured by what it adds and what it drops; the value that is there already is measured
only once. Nothing has to be measured as long as a run's last whole checkpoint, and all that was stored since, together are smaller than
the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any

import msgspec

from holdfast.core import canon
from holdfast.core.bounds import GROWN_BYTES, VALUE_BYTES, number
from holdfast.core.canon import EMPTY_DICT, EMPTY_LIST, FrozenDict, FrozenList
from holdfast.core.errors import InvalidGraph, InvalidWrite, StepFailure, TooLarge

LAST = "last"
CUSTOM = "custom"
TOPIC = "topic"


class Missing:
    """The value of a channel that nothing has written."""

    def __repr__(self) -> str:
        return "<empty>"


MISSING: Any = Missing()


class Reducer(msgspec.Struct, frozen=True):
    """How writes to a channel become its value: ``reducer(old, new)``. ``tag`` names a built-in reducer; ``function`` is set for a custom one,
    a pure function ``f(old, new) -> value``."""

    tag: str
    function: Callable[[Any, Any], Any] | None = None

    def __call__(self, old: Any = MISSING, new: Any = MISSING) -> Any:
        if new is MISSING:
            raise InvalidGraph("a reducer is named in an annotation, and not called", hint="Annotated[list[str], append]")
        return reduce(self.tag, old, new) if self.function is None else self.function(old, new)


class _Thread:
    """The marker of a channel that carries over between the runs of a thread (§4.15)."""

    def __repr__(self) -> str:
        return "thread"


class _Secret:
    """The marker of a channel whose values are hidden when a run is shown (§13.5)."""

    def __repr__(self) -> str:
        return "secret"


last = Reducer(LAST)
"""Keeps ``new`` in the place of ``old``. Two writes in one super-step are an error (``TwoWriters``). A channel without a reducer uses this one."""
override = Reducer("override")
"""Keeps ``new`` in the place of ``old``. If several nodes write in one super-step, the last in the order of the tasks counts."""
append = Reducer("append")
"""Adds ``new`` to the end of the list ``old``: the items of a list, or any other value as one item. The channel starts as an empty list."""
merge = Reducer("merge")
"""Updates the dict ``old`` with the dict ``new``. The channel starts as an empty dict."""
topic = Reducer(TOPIC)
"""Like ``append``, but the channel holds only the items that were written in the last super-step."""
thread = _Thread()
"""Marks a channel whose value is carried from one run of a thread to the next: ``talk: Annotated[list[str], append, thread]`` (§4.15)."""
secret = _Secret()
"""Marks a channel whose values are hidden in commands, pages, the HTTP API and logs: ``token: Annotated[str, secret]`` (§13.5)."""


def window(n: int) -> Reducer:
    """Adds the items of ``new`` (a list, or one item) to the list ``old`` and keeps the newest ``n`` items. Dropped items stay in the run's
    log (§4.13)."""
    return Reducer(f"window:{number(n, 'n', 1)}")


class Channel(msgspec.Struct, frozen=True):
    """A declared channel. ``default`` is admitted; a ``required`` channel must be in the input."""

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


REPLACING = frozenset({LAST, TOPIC, "override"})
"""Reducers that do not need the old value."""

INITIAL: dict[str, Any] = {"append": EMPTY_LIST, "window": EMPTY_LIST, "topic": EMPTY_LIST, "merge": EMPTY_DICT}


def _extend(old: Any, new: Any) -> FrozenList:
    """Returns a copy of ``old`` with one more item, or with all items of a list."""
    out = FrozenList(EMPTY_LIST if old is MISSING or old is None else old)
    if isinstance(new, list):
        list.extend(out, new)
    else:
        list.append(out, new)
    return out


def reduce(tag: str, old: Any, new: Any) -> Any:
    """Applies one write through a built-in reducer. Both values must be admitted; so is the result.

    Raises:
        StepFailure: ``merge`` was given a value that is not a dict, or the tag is not known.
    """
    match tag:
        case "last" | "override":
            return new
        case "append" | "topic":
            return _extend(old, new)
        case "merge":
            if not isinstance(new, dict):
                raise StepFailure(f"a merge channel takes a dict, not {type(new).__name__}", code="bad_write")
            out = FrozenDict(EMPTY_DICT if old is MISSING or old is None else old)
            dict.update(out, new)
            return out
    if tag.startswith("window:"):
        return FrozenList(_extend(old, new)[-int(tag[7:]) :])
    raise StepFailure(f"the reducer {tag!r} is not known", code="unsupported_format")


_REPLACED = frozenset({LAST, "override", CUSTOM})
_LISTED: tuple[type, ...] = (list, tuple, frozenset)
_ADDS_TO: dict[str, tuple[type, ...]] = {"append": _LISTED, "window": _LISTED, "merge": (dict,)}
"""The types of values that reducers can add to."""


def find_misfits(kinds: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    """Returns the channels whose value their reducer cannot add to: an older program, with another reducer, wrote it."""
    return [n for n, tag in kinds.items() if (old := values.get(n)) is not None and not isinstance(old, _ADDS_TO.get(tag.partition(":")[0], (object,)))]


def refuse_misfit(name: str, tag: str, held: Any) -> InvalidWrite:
    """Returns the error of a write to such a channel."""
    given = next((kind.__name__ for kind in (list, dict) if isinstance(held, kind)), type(held).__name__)
    wanted, reducer = "dict" if tag == "merge" else "list", tag.partition(":")[0]
    return InvalidWrite(
        f"{name} holds a {given} from before, and its reducer {reducer} adds to a {wanted}",
        field=name, hint="give the channel with another reducer another name, or fork the run and set the channel",
    )


def must_copy(values: Mapping[str, Any], name: str) -> bool:
    """Returns False for every value: someone else may hold it, so it must be copied."""
    return False


def grow(values: dict[str, Any], name: str, tag: str, new: Any, sole: Callable[[Mapping[str, Any], str], bool]) -> None:
    """Does ``reduce`` in place if ``sole`` says that only ``values`` holds the list or dict; this costs only as much as what is added. Otherwise
    the value is copied, so that no one else who holds it sees a change."""
    kind, dropped = type(values.get(name)), tag.startswith("window:")
    if kind is FrozenDict and tag == "merge" and isinstance(new, dict) and sole(values, name):
        dict.update(values[name], new)
    elif kind is FrozenList and (dropped or tag in ("append", TOPIC)) and sole(values, name):
        if isinstance(new, list):
            list.extend(values[name], new)
        else:
            list.append(values[name], new)
        if dropped:
            list.__delitem__(values[name], slice(None, -int(tag[7:])))
    else:
        values[name] = reduce(tag, values.get(name, MISSING), new)


def take(values: dict[str, Any], kinds: Mapping[str, str], writes: Collection[Mapping[str, Any]]) -> None:
    """Applies the writes of several tasks, in their order, through the built-in reducers. ``kinds`` has the tags of the reducers other than ``last``,
    by channel. All writes to one list are added to it at once."""
    many = dict.fromkeys([name for name, tag in kinds.items() if tag not in _REPLACED]).keys()  # in the order in which they are written
    if not values.keys() >= many:  # rare: channels without a value are added in the order in which they are written
        for name in [n for write in writes for n in write if kinds.get(n) != CUSTOM]:
            values.setdefault(name, MISSING)
    if not many >= {*chain.from_iterable(writes)}:
        for write in writes:
            for name, value in write.items():
                if name not in many and kinds.get(name) != CUSTOM:
                    values[name] = value
    for name in many:
        if news := [write[name] for write in writes if name in write]:
            values[name] = _reduce_all(kinds[name], values.get(name, MISSING), news)


_LISTS = frozenset({list, FrozenList})


def _reduce_all(tag: str, old: Any, news: list[Any]) -> Any:
    """Applies ``reduce`` to one write after the other, with a single copy."""
    if len(news) == 1 or tag == "merge":
        made = {"": reduce(tag, old, news[0])}
        for new in news[1:]:
            grow(made, "", tag, new, _may_grow)
        return made[""]
    if _LISTS.issuperset(map(type, news)):
        return reduce(tag, old, [*chain.from_iterable(news)])
    items: list[Any] = []
    for new in news:
        if isinstance(new, list):
            items += new
        else:
            items.append(new)
    return reduce(tag, old, items)


def _may_grow(values: Mapping[str, Any], name: str) -> bool:
    """Returns True: nobody else holds a value that was made here."""
    return True


ROOM = GROWN_BYTES - VALUE_BYTES
"""If less than this is stored of a run, no single write can bring a channel over the limit."""


class Weights:
    """The sizes of one run's growing channels, each with the value that was measured. ``weighed``: how many bytes were measured so far."""

    __slots__ = ("_known", "weighed")

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, int]] = {}
        self.weighed = 0

    def hold(self, channels: Mapping[str, Channel], before: Mapping[str, Any], writes: Iterable[Mapping[str, Any]], after: Mapping[str, Any] | None = None) -> None:
        """Checks the sizes of channels after these writes against their limit. ``after``: the values after the writes, if they are known.

        Raises:
            TooLarge: names the channel.
        """
        by_channel: dict[str, list[Any]] = {}
        for each in writes:
            for name, value in each.items():
                if name in channels and channels[name].reducer.tag != LAST:
                    by_channel.setdefault(name, []).append(value)
        for name, values in by_channel.items():
            weight = self._weigh_growth(channels[name].reducer.tag, name, before.get(name, MISSING), values, after)
            if weight > GROWN_BYTES:
                raise TooLarge(f"{name}, grown", weight, GROWN_BYTES, hint="keep fewer items with window(n), or write the data to files and keep only their names in the channel")
            if after is not None and name in after:
                self._known[name] = (after[name], weight)

    def _weigh_growth(self, tag: str, name: str, old: Any, writes: list[Any], after: Mapping[str, Any] | None) -> int:
        if tag in _REPLACED:
            return self._of(after[name] if after is not None and name in after else writes[-1])
        was = 0 if old is MISSING or old is None or tag == TOPIC else self.weight(name, old)
        if tag == "merge":
            new: dict[str, Any] = {}
            for value in writes:
                new.update(value)
            return was + self._of(new) - sum(self._of({k: old[k]}) for k in new if was and k in old)
        items = [item for value in writes for item in (value if isinstance(value, list) else [value])]
        if tag.startswith("window:"):
            had = 0 if old is MISSING or old is None else len(old)
            out = max(had + len(items) - int(tag[7:]), 0)
            if had:
                was -= self._of(old[:out])
            items = items[max(out - had, 0) :]
        return was + self._of(items)

    def weight(self, name: str, value: Any) -> int:
        """Returns the size of a channel's value. The same value is measured only once."""
        known = self._known.get(name)
        if known is None or known[0] is not value:
            known = self._known[name] = (value, self._of(value))
        return known[1]

    def _of(self, value: Any) -> int:
        """Returns the size of a value in bytes; for a list or a dict, of its contents."""
        head = 0
        if isinstance(value, dict | list):
            head = 1 if len(value) < 16 else 3 if len(value) < 2**16 else 5
            value = canon.FrozenDict(value) if isinstance(value, dict) else canon.FrozenList(value)
        size = len(canon.encode(value)) - head
        self.weighed += size
        return size
