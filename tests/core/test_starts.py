"""A run's first checkpoint, worked out once for all inputs that name the same channels (``core/starts``, §4.15)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import canon, codec, starts
from holdfast.core import checkpoint as cps
from holdfast.core.channels import CUSTOM, Channel, Reducer, append, last, merge, override, topic, window
from holdfast.core.checkpoint import Carry, Source, TaskResult
from holdfast.core.errors import StepFailure
from holdfast.core.graph import Program
from tests.core.build import RUN, node, program, raw

REDUCERS = {"p": last, "q": last, "o": override, "l": append, "w": window(3), "m": merge, "t": topic, "c": Reducer(CUSTOM, lambda old, new: old + new)}
DEFAULTS = {"p": 3, "l": canon.admit([1]), "m": canon.admit({"x": 1})}
ITEMS = st.lists(st.integers(0, 9), max_size=2)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "p": st.integers(0, 9), "q": st.integers(0, 9), "o": st.integers(0, 9), "l": st.one_of(ITEMS, st.integers(0, 9)), "w": ITEMS,
    "m": st.dictionaries(st.sampled_from("xyz"), st.integers(0, 9), max_size=2), "t": ITEMS, "c": st.integers(0, 9),
}
KEPT: dict[str, st.SearchStrategy[Any]] = {**VALUES, "l": ITEMS}


@st.composite
def programs(draw: st.DrawFn) -> Program:
    names = draw(st.lists(st.sampled_from([*REDUCERS]), unique=True, min_size=1))
    channels = {n: Channel(n, REDUCERS[n], thread=draw(st.booleans()), **({"default": DEFAULTS[n]} if n in DEFAULTS and draw(st.booleans()) else {})) for n in names}
    nodes = [node("a", start=True), node("b", on=[draw(st.sampled_from(names))]), node("z", after=["a"])]
    return program(*nodes, channels=channels)


def drawn(data: st.DataObject, names: list[str], kinds: dict[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    return {n: canon.admit(data.draw(kinds[n])) for n in names}


@given(programs(), st.data())
def test_what_is_the_same_of_many_starts_is_worked_out_once(prog: Program, data: st.DataObject) -> None:
    """Issue «Speed»: whether or not a run with the same names began before, its first checkpoint and its delta are the same bytes."""
    named = data.draw(st.lists(st.sampled_from([*prog.channels]), unique=True))
    threaded = [n for n in prog.channels if prog.channels[n].thread]
    taken = data.draw(st.lists(st.sampled_from(threaded), unique=True)) if threaded else []
    split = data.draw(st.integers(0, len(taken)))
    for _ in range(3):
        writes, carried = drawn(data, named, VALUES), drawn(data, taken, KEPT)
        parts = data.draw(st.sampled_from([[taken[:split], taken[split:]], [taken], []]))
        carries = tuple([Carry(f"r{i}", 7, b"h", tuple(part)) for i, part in enumerate(parts)])
        given_ = TaskResult(cps.INPUT_TASK, writes=canon.encode(canon.FrozenDict(writes)))
        fresh = msgspec.structs.replace(prog, starts={})
        told = data.draw(st.sampled_from([None, canon.FrozenDict(writes)]))
        delta, found = starts.first(prog, cps.empty(RUN), given_, carried, carries=carries, writes=told)
        wanted, checkpoint = starts.first(fresh, cps.empty(RUN), given_, carried, carries=carries)
        assert (delta, found) == (wanted, checkpoint) and codec.encode_delta(delta) == codec.encode_delta(wanted)
        assert [*found.values] == [*checkpoint.values] and [*found.versions] == [*checkpoint.versions] and [*found.writes] == [*checkpoint.writes]
        assert canon.encode(canon.FrozenDict(found.values)) == canon.encode(canon.FrozenDict(checkpoint.values))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a start is worked out."""
    times = [0]
    real = starts.advance

    def advance(*args: Any, **named: Any) -> Any:
        times[0] += 1
        return real(*args, **named)

    monkeypatch.setattr(starts, "advance", advance)
    return times


def begin(prog: Program, values: dict[str, Any], **more: Any) -> cps.Checkpoint:
    return starts.first(prog, cps.empty(RUN), TaskResult(cps.INPUT_TASK, writes=raw(values)), **more)[1]


def test_a_start_is_worked_out_for_each_set_of_names(counted: list[int]) -> None:
    prog = program(node("a", start=True), channels={n: Channel(n, r) for n, r in {"p": last, "l": append}.items()})
    assert [begin(prog, {"p": n}).values["p"] for n in range(5)] == [*range(5)] and counted == [1]
    assert [begin(prog, {"l": [n]}).values["l"] for n in range(5)] == [[n] for n in range(5)] and counted == [2]
    begin(prog, {"l": [1], "p": 1})
    begin(prog, {"p": 1, "l": [1]})
    assert counted == [4], "the order of the names is that of the values"


def test_what_goes_by_the_values_is_worked_out_each_time(counted: list[int]) -> None:
    """§4.4: a function of the author's reduces each input."""
    prog = program(node("a", start=True), channels={"c": Channel("c", REDUCERS["c"], default=1)})
    assert [begin(prog, {"c": n}).values["c"] for n in range(3)] == [1, 2, 3] and counted == [3]
    assert begin(prog, {"c": 1}, source=Source.FORK).source is Source.FORK, "any other source goes the long way"
    over = program(node("a", start=True), channels={"l": Channel("l", append, default=canon.admit([1]))})
    assert [begin(over, {"l": [n]}).values["l"] for n in range(3)] == [[1, 0], [1, 1], [1, 2]]
    little = program(node("a", start=True), channels={"p": Channel("p", last, thread=True), "q": Channel("q", last)})
    assert [begin(little, {"q": 1}, carried={"p": n}).values["p"] for n in range(3)] == [0, 1, 2], "what is carried by value is stored"


def test_few_starts_are_kept(counted: list[int]) -> None:
    """§11.2: a flow's input may have any names; none stays for good."""
    prog = program(node("a", start=True), flow=True, channels={})
    for n in range(3 * starts.MOST):
        begin(prog, {f"name{n}": n})
    assert counted == [3 * starts.MOST] and len(prog.starts) <= starts.MOST


def test_a_write_that_does_not_fit_its_reducer_is_refused_each_time() -> None:
    prog = program(node("a", start=True), channels={"m": Channel("m", merge)})
    begin(prog, {"m": {"x": 1}})
    for _ in range(2):
        with pytest.raises(StepFailure, match="a merge channel takes a dict"):
            begin(prog, {"m": 3})
