"""What channels weigh as they grow (§14.3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import canon, channels
from holdfast.core.channels import Channel, Reducer, Weights, append, last, merge, topic, window
from holdfast.core.errors import TooLarge
from tests.core.build import node, program

PROG = program(
    node("a", start=True),
    channels={"list": append, "few": window(7), "dict": merge, "topic": topic, "last": last, "own": Channel("own", Reducer("custom", lambda old, new: old + new))},
)
ITEM = st.one_of(st.integers(0, 10**9), st.text("abcé", max_size=40), st.lists(st.integers(0, 300), max_size=20))
WRITE = st.one_of(
    st.tuples(st.just("list"), st.lists(ITEM, max_size=4)),
    st.tuples(st.just("list"), st.integers(0, 9)),
    st.tuples(st.just("few"), st.lists(ITEM, max_size=12)),
    st.tuples(st.just("topic"), st.lists(ITEM, max_size=3)),
    st.tuples(st.just("dict"), st.dictionaries(st.sampled_from("abcdef"), ITEM, max_size=4)),
)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.lists(WRITE, min_size=1, max_size=3), max_size=12))
def test_what_is_added_and_what_goes_is_the_weight(steps: list[list[tuple[str, Any]]]) -> None:
    """Taken from one value to the next it is what the whole value weighs."""
    weights, values = Weights(), {}
    for step in steps:
        writes = [canon.admit({name: value}) for name, value in step]
        after = dict(values)
        for each in writes:
            for name, value in each.items():
                if name != "topic":
                    after[name] = canon.admit(PROG.channels[name].reducer(after.get(name, canon.EMPTY_DICT if name == "dict" else canon.EMPTY_LIST), value))
        weights.hold(PROG.channels, values, writes, after)
        for name in {n for each in writes for n in each} - {"topic"}:
            head = 1 if len(after[name]) < 16 else 3 if len(after[name]) < 2**16 else 5
            assert weights.weight(name, after[name]) == len(canon.encode(after[name])) - head
        values = after


@pytest.mark.parametrize("name", ["list", "dict", "few"])
def test_a_write_costs_what_it_adds(name: str) -> None:
    """Not what is there: bytes that are looked at, at ten times and a hundred times the size."""
    looked = []
    for size in (100, 1_000, 10_000):
        prog = program(node("a", start=True), channels={"list": append, "dict": merge, "few": window(size)})
        old = canon.admit({f"k{i}": i for i in range(size)} if name == "dict" else list(range(1000, 1000 + size)))
        weights, write = Weights(), canon.admit({name: {"k5": 7, "new": 1} if name == "dict" else [1000, 2000]})
        weights.weight(name, old)
        before = weights.weighed
        new = prog.channels[name].reducer(old, write[name])
        weights.hold(prog.channels, {name: old}, [write], {name: new})
        looked.append(weights.weighed - before)
    assert max(looked) == min(looked) < 40


def test_beyond_the_bound_it_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "GROWN_BYTES", 100)
    weights = Weights()
    weights.hold(PROG.channels, {}, [canon.admit({"list": ["x" * 60], "last": "x" * 1000})])
    with pytest.raises(TooLarge, match="list, grown"):
        weights.hold(PROG.channels, canon.admit({"list": ["x" * 60]}), [canon.admit({"list": "y" * 60})])
    with pytest.raises(TooLarge, match="own, grown"):
        weights.hold(PROG.channels, {}, [canon.admit({"own": "y" * 60})], canon.admit({"own": "y" * 200}))
    weights.hold(PROG.channels, {}, [canon.admit({"own": "y" * 60})])
    weights.hold(PROG.channels, canon.admit({"few": ["x" * 10] * 7}), [canon.admit({"few": ["y" * 10] * 20})])
