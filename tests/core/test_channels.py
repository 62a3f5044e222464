"""Channels and their reducers: how writes to one name become one value (§4.1)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import channels as ch
from holdfast.core.canon import FrozenDict, FrozenList, admit
from holdfast.core.channels import MISSING, Channel, Reducer, append, last, merge, override, reduce, topic, window
from holdfast.core.errors import InvalidInput, StepFailure
from holdfast.machine import sole

BUILT_IN: list[tuple[Reducer, Any, Any, Any]] = [
    (last, MISSING, 1, 1),
    (last, 1, None, None),
    (override, [1], 2, 2),
    (append, MISSING, 1, [1]),
    (append, None, 1, [1]),
    (append, [1], 2, [1, 2]),
    (append, [1], [2, 3], [1, 2, 3]),
    (append, [1], [], [1]),
    (append, [1], (2, 3), [1, (2, 3)]),
    (topic, [1], 2, [1, 2]),
    (window(2), MISSING, 1, [1]),
    (window(2), [1, 2], 3, [2, 3]),
    (window(2), [1, 2], [3, 4, 5], [4, 5]),
    (window(1), [1], 2, [2]),
    (merge, MISSING, {"a": 1}, {"a": 1}),
    (merge, None, {"a": 1}, {"a": 1}),
    (merge, {"a": 1, "b": 1}, {"b": 2}, {"a": 1, "b": 2}),
]


@pytest.mark.parametrize(("reducer", "old", "new", "value"), BUILT_IN)
def test_the_built_in_reducers(reducer: Reducer, old: Any, new: Any, value: Any) -> None:
    """§4.1: and what was there is not changed by what comes after it."""
    before = old if old is MISSING else admit(old)
    found = reducer(before, admit(new))
    assert found == value
    assert type(found) in (FrozenList, FrozenDict) or found == new
    if old is not MISSING:
        assert before == old


@given(st.lists(st.integers() | st.lists(st.integers(), max_size=3), max_size=8), st.integers(1, 4))
def test_a_window_is_the_end_of_what_append_would_have(writes: list[Any], n: int) -> None:
    """§4.13: it forgets the oldest, whatever came at once."""
    whole, bounded = MISSING, MISSING
    for write in writes:
        whole, bounded = append(whole, write), window(n)(bounded, write)
    assert bounded == (whole if whole is MISSING else whole[-n:])


@pytest.mark.parametrize("n", [0, -1, 1.5, "2", None])
def test_a_window_needs_a_size(n: Any) -> None:
    with pytest.raises(InvalidInput, match="n is a whole number from 1 to"):
        window(n)
    assert window(1).tag == "window:1"


@pytest.mark.parametrize("new", [1, [("a", 1)], None])
def test_a_merge_takes_a_dict(new: Any) -> None:
    with pytest.raises(StepFailure, match="takes a dict") as e:
        merge({}, new)
    assert e.value.code == "bad_write"


def test_a_reducer_that_nobody_knows_is_refused() -> None:
    """§1.8: a newer release's reducer is a typed error, never a guess."""
    for tag in ("custom", "sum", "windows"):
        with pytest.raises(StepFailure, match="is not known") as e:
            reduce(tag, [], 1)
        assert e.value.code == "unsupported_format"


def test_a_reducer_of_ones_own_is_asked_with_old_and_new() -> None:
    assert Reducer(ch.CUSTOM, lambda old, new: (old, new))(1, 2) == (1, 2)


@pytest.mark.parametrize(
    ("channel", "initial"),
    [
        (Channel("x"), MISSING),
        (Channel("x", override), MISSING),
        (Channel("x", append), []),
        (Channel("x", topic), []),
        (Channel("x", window(3)), []),
        (Channel("x", merge), {}),
        (Channel("x", append, default=(1,)), (1,)),
        (Channel("x", default=None), None),
    ],
)
def test_what_a_channel_holds_before_anybody_writes(channel: Channel, initial: Any) -> None:
    """§4.1: what collects begins empty; a default of None is a default."""
    assert channel.initial == initial
    assert (channel.required, channel.thread, channel.secret) == (False, False, False)


def test_the_markers_say_what_they_are() -> None:
    assert [repr(marker) for marker in (MISSING, ch.thread, ch.secret)] == ["<empty>", "thread", "secret"]


GROWING = st.sampled_from(["append", "merge", "window:3", "override"])
ADDED = st.one_of(st.integers(), st.lists(st.integers(), max_size=4), st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3))


@given(GROWING, st.lists(st.tuples(ADDED, st.booleans()), max_size=8), st.sampled_from([MISSING, None, [], [1], {"a": 1}]))
def test_what_grows_in_place_is_what_is_reduced_and_nobody_sees_it_move(tag: str, writes: list[tuple[Any, bool]], first: Any) -> None:
    """Issue «Speed», 4: what somebody else holds is copied; either way the values are those of ``reduce``."""
    begun = admit(first, "x") if first is not MISSING and first is not None else first
    values: dict[str, Any] = {} if begun is MISSING else {"x": begun}
    expected, held = begun, []
    for new, hold in writes:
        new = admit(new, "x")
        try:
            expected = reduce(tag, expected, new)
        except (StepFailure, ValueError):  # no dict for ``merge``, or what a dict cannot be extended by
            with pytest.raises((StepFailure, ValueError)):
                ch.grow(values, "x", tag, new, sole)
            break
        ch.grow(values, "x", tag, new, sole)
        assert values["x"] == expected and type(values["x"]) is type(expected)
        if hold:
            held.append((values["x"], repr(values["x"])))
    assert all(repr(value) == told for value, told in held)


@pytest.mark.parametrize(("tag", "first", "new"), [("append", [1], [2]), ("append", [1], 2), ("window:2", [1, 2], 3), ("merge", {"a": 1}, {"b": 2})])
def test_what_nobody_else_holds_grows_where_it_stands(tag: str, first: Any, new: Any) -> None:
    values = {"x": admit(first, "x")}
    place = id(values["x"])
    ch.grow(values, "x", tag, admit(new, "x"), sole)
    assert id(values["x"]) == place
    kept = values["x"]
    ch.grow(values, "x", tag, admit(new, "x"), sole)
    assert values["x"] is not kept, "it is held here, too"


def test_what_is_not_known_to_be_held_by_nobody_is_copied() -> None:
    values = {"x": admit([1], "x")}
    place = values["x"]
    ch.grow(values, "x", "append", 2, ch.must_copy)
    assert values["x"] == [1, 2] and place == [1]


def test_channels_without_a_value_come_in_the_order_in_which_they_are_written() -> None:
    """What a whole checkpoint's bytes rest on. What nobody wrote stays as it is."""
    values: dict[str, Any] = {"z": 1}
    kinds = {"m": "merge", "a": "append", "own": ch.CUSTOM, "none": "append"}
    ch.take(values, kinds, [{"a": 1, "own": 9}, {"l": 2, "m": {"k": 1}}, {"a": [2, 3], "l": 4}])
    assert list(values.items()) == [("z", 1), ("a", [1, 2, 3]), ("l", 4), ("m", {"k": 1})]
