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
