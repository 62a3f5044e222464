"""Plan and barrier: one round of a program (§4)."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import canon, codec, starts
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core import superstep as ss
from holdfast.core.channels import CUSTOM, MISSING, Channel, Reducer, append, last, merge, override, reduce, thread, topic, window
from holdfast.core.checkpoint import Carry, Delta, SendTo, Source, Task, TaskResult
from holdfast.core.errors import (
    BadReturn,
    ContractViolation,
    EventUnreadable,
    InvalidInput,
    InvalidWrite,
    NodeMissing,
    StepFailure,
    TwoWriters,
    UndeclaredChannel,
    Unserializable,
)
from holdfast.core.graph import END, Goto, Send, any_of
from holdfast.core.ids import node_of
from tests.core.build import RUN, World, node, program, raw, wait


def add(old: Any, new: Any) -> Any:
    return old + new


TOTAL = Reducer(CUSTOM, add)


# -- reducers ---------------------------------------------------------------------------------------


def test_ten_parallel_appenders_in_task_order_a_hundred_times() -> None:
    """T-55, §4.3: whatever the order of arrival."""
    names = [f"n{i}" for i in range(10)]
    prog = program(*(node(n, start=True) for n in names), channels={"out": append})
    calls: dict[str, Any] = {n: (lambda state, n=n: {"out": n}) for n in names}
    for seed in range(100):
        world = World(prog, **calls)
        world.step(shuffle=random.Random(seed).shuffle)
        assert world.values["out"] == names


def test_two_writers_on_a_last_channel_are_refused() -> None:
    """§4.1."""
    prog = program(node("a", start=True), node("b", start=True), channels={"x": last})
    with pytest.raises(TwoWriters, match="a and b both wrote 'x'"):
        World(prog, a=lambda s: {"x": 1}, b=lambda s: {"x": 2}).step()


def test_the_built_in_reducers() -> None:
    """§4.1."""
    channels: dict[str, Any] = {"o": override, "a": append, "w": window(2), "m": merge, "c": Channel("c", TOTAL, default=10)}
    prog = program(node("a", start=True), node("b", start=True), channels=channels)
    world = World(prog, a=lambda s: {"o": 1, "a": [1, 2], "w": [1, 2], "m": {"x": 1}, "c": 1}, b=lambda s: {"o": 2, "a": 3, "w": 3, "m": {"y": 2}, "c": 2})
    world.step()
    assert dict(world.values) == {"o": 2, "a": [1, 2, 3], "w": [2, 3], "m": {"x": 1, "y": 2}, "c": 13}
    assert world.replayed() == [msgspec.structs.replace(c, created_at=0) for c in world.live]


def test_a_reducer_over_nothing() -> None:
    assert reduce("append", MISSING, 1) == [1]
    assert reduce("append", None, [1]) == [1]
    assert reduce("merge", MISSING, {"a": 1}) == {"a": 1}
    assert reduce("last", 1, 2) == 2
    assert add.__name__ == "add"
    assert TOTAL(1, 2) == 3
    assert append([1], 2) == [1, 2]
    with pytest.raises(StepFailure):
        reduce("merge", {}, 3)
    with pytest.raises(StepFailure):
        reduce("nonsense", 1, 2)
    with pytest.raises(InvalidInput):
        window(0)
    assert (repr(MISSING), repr(thread)) == ("<empty>", "thread")


def test_a_custom_reducer_is_stored_as_its_value() -> None:
    """§4.5: loading never runs user code."""
    calls: list[int] = []

    def counted(old: Any, new: Any) -> Any:
        calls.append(1)
        return old + new

    prog = program(node("a", start=True), channels={"c": Reducer(CUSTOM, counted)})
    world = World(prog, {"c": 1}, a=lambda s: {"c": 5}).drive()
    assert world.values["c"] == 6
    before = len(calls)
    assert world.replayed()[-1].values["c"] == 6
    assert len(calls) == before


def test_a_custom_reducer_may_make_nothing_a_store_could_not_keep() -> None:
    """§1.10."""
    prog = program(node("a", start=True), channels={"c": Reducer(CUSTOM, lambda old, new: object())})
    with pytest.raises(Unserializable) as refused:
        World(prog, {"c": 1}, a=lambda s: {"c": 5}).step()
    assert refused.value.path == "c"


def test_a_topic_is_emptied_at_each_super_step() -> None:
    """§4.1: what nobody writes is gone in the next round, the input's too."""
    prog = program(node("a", start=True), node("b", after=["a"]), node("c", after=["b"]), channels={"t": topic})
    world = World(prog, {"t": [0]}, a=lambda s: {"t": [1]}, b=lambda s: None)
    seen = [list(world.values["t"])]
    while world.step():
        seen.append(list(world.values["t"]))
    assert seen == [[0], [1], [], []]
    assert world.replayed() == world.live


def test_accumulating_history_stays_what_it_was() -> None:
    """L-14: every old checkpoint shows its own list."""
    prog = program(node("a", start=True, on=["n"]), channels={"log": append, "n": last})
    world = World(prog, a=lambda s: {"log": len(s["log"]), **({"n": 1} if len(s["log"]) < 4 else {})}).drive()
    lists = [list(c.values["log"]) for c in world.live]
    assert lists == [list(range(i)) for i in range(len(lists))]
    assert [list(c.values["log"]) for c in world.replayed()] == lists


# -- triggers ---------------------------------------------------------------------------------------


def test_successors_of_parallel_nodes_are_united() -> None:
    """T-56, §4.4."""
    prog = program(
        node("a", start=True, routers=(lambda s: "x",)), node("b", start=True, routers=(lambda s: "y",)), node("x"), node("y"), channels={}
    )
    assert World(prog).drive().ran == [["a", "b"], ["x", "y"]]


def test_a_node_runs_once_per_version() -> None:
    """T-57: restarting between super-steps plans the same; a second write triggers once more."""
    prog = program(node("writer", start=True), node("reader", on=["x"]), node("again", after=["reader"]), node("late", on=["x"]), channels={"x": last})
    world = World(prog, writer=lambda s: {"x": 1}, again=lambda s: {"x": 2} if s["x"] == 1 else None).drive()
    assert world.ran == [["writer"], ["reader", "late"], ["again"], ["reader", "late"], ["again"]]
    for cp in world.replayed():
        assert set(ss.plan(prog, cp, prog.listeners)) == {t for t in cp.pending if t.index == 0}


def test_a_join_waits_for_all_and_any_of_for_any() -> None:
    """§4.17."""
    prog = program(
        node("a", start=True), node("b", start=True), node("b2", after=["b"]), node("join", after=["a", "b2"]), node("first", any_of=["a", "b2"]),
    )
    assert World(prog).drive().ran == [["a", "b"], ["b2", "first"], ["join", "first"]]
    assert any_of("a", "b").nodes == ("a", "b")


def test_a_false_when_skips_and_satisfies_joins() -> None:
    """§4.17: it fires no edge, a join of skips is skipped, a join with one alive runs."""
    never: dict[str, Any] = {"when": lambda s: False}
    prog = program(
        node("a", start=True), node("no", start=True, **never), node("after_no", after=["no"]), node("mixed", after=["a", "no"]),
        node("no2", start=True, **never), node("dead", after=["no", "no2"]), node("any_dead", any_of=["no", "no2"]), node("any_alive", any_of=["no", "a"]),
        node("last", after=["dead"]),
    )
    world = World(prog).drive()
    ran = [name for step in world.ran for name in step if name not in ("no", "no2")]
    assert ran == ["a", "mixed", "any_alive"]
    assert world.head.skipped == {"no", "no2", "after_no", "dead", "any_dead", "last"}
    assert world.replayed() == world.live


def test_a_node_skipped_once_may_run_later() -> None:
    prog = program(node("a", start=True, on=["n"]), node("b", after=["a"], when=lambda s: s["n"] > 1), channels={"n": Channel("n", last, default=0)})
    world = World(prog, a=lambda s: {"n": s["n"] + 1} if s["n"] < 2 else None).drive()
    assert "b" in [n for step in world.ran for n in step]
    assert world.head.skipped == frozenset()


def test_an_any_of_waits_while_one_may_still_be_alive() -> None:
    prog = program(
        node("no", start=True, when=lambda s: False), node("a", start=True), node("slow", after=["a"]), node("either", any_of=["no", "slow"]),
    )
    assert World(prog).drive().ran[-1] == ["either"]


def test_goto_replaces_the_edges() -> None:
    """§4: one name, several, or END."""
    prog = program(node("a", start=True), node("b", after=["a"]), node("c"), node("d"), channels={"x": last})
    world = World(prog, a=lambda s: Goto(["c", "d"], {"x": 7})).drive()
    assert world.ran == [["a"], ["c", "d"]]
    assert world.values["x"] == 7
    assert World(prog, a=lambda s: Goto(END)).drive().ran == [["a"]]
    assert World(prog, a=lambda s: Goto("c")).drive().ran == [["a"], ["c"]]


def test_a_goto_to_a_join_consumes_what_it_has_seen() -> None:
    prog = program(node("a", start=True), node("b", start=True), node("join", after=["a"]), channels={})
    assert World(prog, b=lambda s: Goto("join")).drive().ran == [["a", "b"], ["join"]]


def test_sends_fan_out_with_their_payloads() -> None:
    """§4.2, §11.1: beside the node's own turn, in order, each with a number."""
    got: list[Any] = []

    def work(state: Mapping[str, Any]) -> Any:
        got.append(state["@payload"])
        return {"out": [state["@payload"]]}

    prog = program(node("a", start=True), node("w", after=["a"]), node("end", after=["w"]), channels={"out": append})
    world = World(prog, a=lambda s: [Send("w", {"n": i}) for i in range(3)], w=work).drive()
    assert world.ran == [["a"], ["w", "w~1", "w~2", "w~3"], ["end"]]
    assert got == [None, {"n": 0}, {"n": 1}, {"n": 2}]
    assert world.values["out"] == [None, {"n": 0}, {"n": 1}, {"n": 2}]
    assert world.replayed() == world.live


def test_a_send_to_nowhere_is_refused() -> None:
    prog = program(node("a", start=True))
    with pytest.raises(NodeMissing):
        World(prog, a=lambda s: [Send("ghost")]).step()


def test_two_senders_count_together() -> None:
    prog = program(node("a", start=True), node("b", start=True), node("w"))
    world = World(prog, a=lambda s: [Send("w", 1)], b=lambda s: [Send("w", 2)]).drive()
    assert world.ran == [["a", "b"], ["w~1", "w~2"]]
    assert node_of("w~2") == "w"


# -- folding what was recorded ----------------------------------------------------------------------

NAMES = ["a", "b", "c", "d", "e"]
CHANNELS = {"p": last, "q": last, "o": override, "l": append, "w": window(3), "m": merge, "t": topic, "c": Reducer(CUSTOM, add)}


@st.composite
def graphs(draw: st.DrawFn, *, lean: bool = False) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """``lean``: mostly lines of nodes that replace values."""
    nodes, calls = [], {}
    for i, name in enumerate(NAMES[: draw(st.integers(1, 5))]):
        before = NAMES[:i]
        kind = draw(st.sampled_from(["after", "after", "any", "on"] if lean else ["start", "after", "any", "on"])) if before else "start"
        sources = draw(st.lists(st.sampled_from(before), min_size=1, max_size=3, unique=True)) if before else []
        skips = draw(st.sampled_from([None, None, lambda s: False]))
        nodes.append(
            node(
                name, start=kind == "start", after=sources if kind == "after" else (), any_of=sources if kind == "any" else (),
                on=[draw(st.sampled_from(["l", "m"]))] if kind == "on" else (), when=skips,
            )
        )
        writes = draw(
            st.fixed_dictionaries(
                {},
                optional={"p": st.integers(0, 2), "q": st.integers(0, 2)}
                if lean and draw(st.booleans())
                else {
                    "o": st.integers(0, 5), "l": st.lists(st.integers(0, 9), max_size=2), "w": st.integers(0, 9), "t": st.integers(0, 9),
                    "m": st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3), max_size=2), "c": st.integers(0, 9),
                },
            )
        )
        back: Any = writes
        match draw(st.integers(0, 15 if lean else 5)):
            case 0:
                back = Goto(draw(st.sampled_from([*before, name, END])), writes)
            case 1:
                back = [Send(draw(st.sampled_from([*before, name])), i)]
        calls[name] = lambda state, back=back: back
    given = draw(st.fixed_dictionaries({}, optional={"l": st.lists(st.integers(), max_size=2), "c": st.just(1), "t": st.just([5]), "o": st.just(0)}))
    return program(*nodes, channels=CHANNELS), given, calls


@settings(deadline=None)
@given(graphs(), st.randoms(), st.booleans())
def test_folding_what_was_recorded_gives_every_checkpoint(made: Any, rng: random.Random, inline: bool) -> None:
    """T-61, §4.5: values, versions, seen, skips, topics and pending tasks, from encoded deltas alone."""
    prog, given_, calls = made
    world = World(prog, given_, **calls).drive(8, shuffle=rng.shuffle, inline=inline)
    again = world.replayed()
    assert again == world.live
    for live, loaded in zip(world.live, again, strict=True):
        assert canon.encode(canon.FrozenDict(live.values)) == canon.encode(canon.FrozenDict(loaded.values))


@settings(deadline=None)
@given(graphs(lean=True), st.booleans(), st.booleans())
def test_the_shorter_way_of_a_line_is_the_long_one(made: Any, inline: bool, known: bool) -> None:
    """§4.3: a barrier that takes the shorter way gives what the general one gives, and most steps of a line do take it."""
    prog, given_, calls = made
    real = ss.barrier
    took: list[bool] = []

    def both(program: Any, parent: Any, results: Any, *, inline: Any, decoded: Any) -> Any:
        seen = {k: cps.decode_writes(r) for k, r in results.items()} if known else decoded
        short = real(program, parent, results, inline=inline, decoded=seen)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cps, "cross_alone", lambda *_: took.append(True))
            long = real(program, parent, results, inline=inline, decoded=seen)
        assert short == long
        assert list(short[1].versions) == list(long[1].versions)
        assert canon.encode(canon.FrozenDict(short[1].values)) == canon.encode(canon.FrozenDict(long[1].values))
        return short

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ss, "barrier", both)
        world = World(prog, given_, **calls)
        with contextlib.suppress(TwoWriters):  # a Send beside the node's own turn: no line any more
            world.drive(8, inline=inline)
    assert world.replayed() == world.live


CROWD = program(
    node("a", start=True), node("b"), node("c"), node("after", after=["b"]), node("both", after=["b", "c"]), node("heard", on=["l"]),
    channels={n: r for n, r in CHANNELS.items() if n != "q"},
)
SENT = st.fixed_dictionaries(
    {"node": st.sampled_from(["b"] * 8 + ["c"]), "payload": st.just(raw(1)), "seen": st.sampled_from([()] * 8 + [("done:a",)])}
)
RETURNED = st.fixed_dictionaries(
    {},
    optional={
        "outcome": st.sampled_from(["ok"] * 6 + ["skipped: when", "degraded"]), "goto": st.sampled_from([None] * 6 + [("c",), ()]), "chosen": st.sampled_from([()] * 6 + [("after",)]),
        "sends": st.sampled_from([()] * 6 + [(SendTo("c", raw(2)),)]), "unsent": st.sampled_from([()] * 6 + [("c",)]), "feedback": st.sampled_from([None] * 6 + [raw("no")]),
    },
)
GROWN = st.fixed_dictionaries(
    {}, optional={"l": st.one_of(st.lists(st.integers(0, 9), max_size=2), st.integers(0, 9)), "w": st.integers(0, 9), "o": st.integers(0, 9), "m": st.dictionaries(st.sampled_from("xyz"), st.integers(0, 3), max_size=2)}
)
ODDLY = st.fixed_dictionaries({}, optional={"p": st.integers(0, 2), "t": st.integers(0, 9), "c": st.integers(0, 9), "x": st.integers(0, 2)})


@settings(deadline=None)
@given(st.data())
def test_the_shorter_way_of_a_crowd_is_the_long_one(data: st.DataObject) -> None:
    """§4.3: the barrier of a fan-out that takes the shorter way gives what the general one gives."""
    sent = data.draw(st.lists(SENT, min_size=2, max_size=5))
    seen: Counter[str] = Counter()
    tasks = []
    for each in sent:
        seen[each["node"]] += 1
        tasks.append(Task(each["node"], index=seen[each["node"]], payload=each["payload"], seen=each["seen"]))
    writes = {t.key: canon.admit(data.draw(GROWN) | (data.draw(ODDLY) if data.draw(st.integers(0, 5)) == 0 else {})) for t in tasks}
    results = {t.key: TaskResult(t.key, writes=raw(writes[t.key]), **data.draw(RETURNED)) for t in tasks}
    values = canon.admit(data.draw(st.sampled_from([{}, {"l": [1], "m": {"x": 1}}, {"o": 3, "w": [1, 2, 3]}])))
    parent = msgspec.structs.replace(
        cps.empty(RUN, values), seq=7, step=3, pending=tuple(tasks), versions={"@start": 0, "done:a": 3}, seen={"a": {"@start": 0}}, idle=1,
        topics=data.draw(st.sampled_from([()] * 8 + [("t",)])), skipped=data.draw(st.sampled_from([frozenset()] * 8 + [frozenset({"b"})])),
    )
    inline = set(data.draw(st.sampled_from([[*results], [], [*results][1:]])))
    decoded = {k: writes[k] for k in data.draw(st.sampled_from([[*results], [], [*results][:1]]))}
    took: list[bool] = []
    real = cps.cross_crowd

    def barrier() -> Any:
        try:
            return ss.barrier(CROWD, parent, results, inline=inline, decoded=decoded)
        except (TwoWriters, StepFailure) as e:
            return str(e)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cps, "cross_crowd", lambda *a: (found := real(*a), took.append(found is not None))[0])
        short = barrier()
        patch.setattr(cps, "cross_crowd", lambda *_: None)
        long = barrier()
    assert short == long
    if not isinstance(short, str):
        assert list(short[1].versions) == list(long[1].versions) and list(short[1].writes) == list(long[1].writes) and codec.encode_delta(short[0]) == codec.encode_delta(long[0])
        assert canon.encode(canon.FrozenDict(short[1].values)) == canon.encode(canon.FrozenDict(long[1].values))
    plain = all(r.outcome == "ok" and r.goto is None and not (r.chosen or r.sends or r.unsent) and r.feedback is None and writes[k].keys() <= {"l", "w", "m", "o"} for k, r in results.items())
    alike = len({t.node for t in tasks}) == 1 and not any(t.seen for t in tasks) and not parent.topics and not parent.skipped
    assert took == [plain and alike]


def test_a_plain_line_takes_the_shorter_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """One task, values that replace values, no target named: nothing else would be quicker for it."""
    taken: list[bool] = []
    real = cps.cross_alone
    monkeypatch.setattr(cps, "cross_alone", lambda *a: (found := real(*a), taken.append(found is not None))[0])
    prog = program(node("a", start=True), node("b", after=["a"]), node("c", after=["b"]), channels={"x": last, "l": append})
    World(prog, a=lambda s: {"x": 1}, b=lambda s: {"l": [1]}, c=lambda s: None).drive()
    assert taken == [True, False, True]


def test_errors_and_waits_do_not_advance() -> None:
    """T-62, §4.8: the head moves; step, versions, values and what is pending do not, nor do topics empty."""
    prog = program(node("a", start=True), node("b", after=["a"]), channels={"x": last, "t": topic})
    world = World(prog, a=lambda s: {"x": 1, "t": 1})
    world.step()
    for source in (Source.FAILURE, Source.WAIT, Source.CANCEL):
        still = cps.advance(world.head, Delta(step=world.head.step, source=source), {}, seq=9, at=5, hash=b"h")
        assert (still.step, still.values, still.versions, still.seen, still.pending, still.topics) == (
            world.head.step, world.head.values, world.head.versions, world.head.seen, world.head.pending, ("t",),
        )
        assert (still.checkpoint_id, still.parent, still.source) == (f"{RUN}.c9", world.head.checkpoint_id, source)


def test_a_patch_changes_values_and_wakes_their_listeners() -> None:
    """§7.7: what is pending keeps its topics."""
    prog = program(node("a", start=True), node("b", on=["x"]), channels={"x": last, "t": topic})
    world = World(prog, a=lambda s: {"t": 1})
    world.step()
    delta = Delta(step=world.head.step, source=Source.PATCH, values=raw({"x": 5}))
    patched = cps.advance(world.head, delta, {}, seq=9, at=5, hash=b"h")
    assert (patched.values["x"], patched.values["t"], patched.topics) == (5, [1], ("t",))
    assert [t.node for t in ss.plan(prog, patched, ["x"])] == ["b"]
    both = Delta(step=world.head.step, source=Source.PATCH, values=raw({"x": 5}), done=(TaskResult(cps.PATCH_TASK, writes=raw({"x": 4, "t": 2})),), kinds={"t": "topic"})
    mixed = cps.advance(world.head, both, {}, seq=9, at=5, hash=b"h")
    assert (mixed.values["x"], mixed.values["t"]) == (5, [1, 2])


def test_a_delta_that_refers_to_nothing_is_an_error() -> None:
    with pytest.raises(EventUnreadable, match="not recorded"):
        cps.advance(cps.empty(RUN), Delta(step=0, done=("a",)), {}, seq=1, at=0, hash=b"")
    with pytest.raises(EventUnreadable, match="not a mapping"):
        cps.decode_writes(TaskResult("a", writes=raw([1])))
    assert cps.decode_writes(TaskResult("a")) == {}


# -- what comes in ----------------------------------------------------------------------------------


def test_the_first_checkpoint_holds_input_defaults_and_what_the_thread_carries() -> None:
    """§4.15."""
    channels = {
        "log": Channel("log", append, thread=True), "n": Channel("n", last, default=3), "m": Channel("m", merge, default=canon.admit({"a": 1})),
        "own": Channel("own", append, thread=True), "free": Channel("free", last), "c": Channel("c", TOTAL),
    }
    prog = program(node("a", start=True), channels=channels)
    given_ = TaskResult(cps.INPUT_TASK, writes=raw({"log": ["new"], "m": {"b": 2}, "c": 4}))
    carried = {"log": canon.admit(["old"]), "own": canon.admit([1]), "n": 99}
    delta, cp = starts.first(prog, cps.empty(RUN), given_, carried)
    assert dict(cp.values) == {"log": ["old", "new"], "n": 3, "m": {"a": 1, "b": 2}, "own": [1], "c": 4}
    again = cps.advance(cps.empty(RUN), delta, {cps.INPUT_TASK: given_}, seq=0, at=0, hash=b"")
    assert again == cp
    assert [t.node for t in cp.pending] == ["a"]
    _, same = starts.first(prog, cps.empty(RUN), given_, carried, inline=True)
    assert same.values == cp.values


def test_what_a_thread_carries_by_reference_is_not_stored_again() -> None:
    """§4.15: the delta names where the values are; over those that were loaded it gives what over live ones it gave."""
    channels = {
        "log": Channel("log", append, thread=True), "own": Channel("own", append, thread=True), "c": Channel("c", TOTAL, thread=True),
        "last": Channel("last", last, thread=True), "over": Channel("over", override, thread=True), "far": Channel("far", merge, thread=True),
        "news": Channel("news", topic, thread=True), "new": Channel("new", append, thread=True),
    }
    prog = program(node("a", start=True), channels=channels)
    given_ = TaskResult(cps.INPUT_TASK, writes=raw({"log": ["new"], "c": 4, "last": "z", "over": "z", "news": ["z"]}))
    near = {"log": canon.admit(["old"]), "own": canon.admit([1]), "c": 3, "last": "y", "over": "y", "news": canon.admit(["y"])}
    far = {"far": canon.admit({"k": 1})}
    carries = (Carry("before", 7, b"h", tuple(near)), Carry("long before", 5, b"g", ("far",)), Carry("none", 3, b"f", ()))
    delta, cp = starts.first(prog, cps.empty(RUN), given_, {**near, **far}, carries=carries)
    wanted = {"log": ["old", "new"], "own": [1], "c": 7, "last": "z", "over": "z", "news": ["z"], "far": {"k": 1}, "new": []}
    assert dict(cp.values) == wanted
    assert delta.carries == (Carry("before", 7, b"h", ("log", "own")), Carry("long before", 5, b"g", ("far",)))
    assert canon.decode(delta.values or b"") == {"new": [], "c": 7}, "a custom reducer's value is stored, the rest is not"
    start = cps.empty(RUN, canon.admit({"log": ["old"], "own": [1], "far": {"k": 1}}))
    assert delta.done == (cps.INPUT_TASK, cps.CARRY_TASK), "a release that knows nothing of it finds a result missing"
    results = {cps.INPUT_TASK: given_, cps.CARRY_TASK: TaskResult(cps.CARRY_TASK)}
    again = cps.advance(start, codec.decode_delta(codec.encode_delta(delta)), results, seq=0, at=0, hash=b"")
    assert (again.values, again.parent, again.pending) == (cp.values, None, cp.pending)
    assert (again.versions, again.seen, again.skipped) == (cp.versions, cp.seen, cp.skipped)
    with pytest.raises(EventUnreadable, match="@carried, which is not recorded"):
        cps.advance(start, delta, {cps.INPUT_TASK: given_}, seq=0, at=0, hash=b"")
    plainly, same = starts.first(prog, cps.empty(RUN), given_, {**near, **far})
    assert (plainly.carries, dict(same.values)) == ((), wanted)


def test_a_flow_takes_inputs_that_are_no_channels() -> None:
    prog = program(node("main", start=True), channels={}, flow=True, inputs=("name",))
    given_ = TaskResult(cps.INPUT_TASK, writes=raw(ss.check_input(prog, {"name": "ada"})))
    assert starts.first(prog, cps.empty(RUN), given_)[1].values == {"name": "ada"}
    with pytest.raises(InvalidInput):
        ss.check_input(prog, {"nmae": "ada"})
    assert ss.check_input(program(node("m", start=True), flow=True), {"any": 1}) == {"any": 1}


def test_input_is_checked_by_name() -> None:
    """§3.5, X-11."""
    prog = program(node("a", start=True), channels={"x": Channel("x", last, required=True), "y": last})
    assert ss.check_input(prog, {"x": 1}) == {"x": 1}
    for bad, word in (({"z": 1, "x": 1}, "'z'"), ({}, "x"), ([1], "mapping")):
        with pytest.raises(InvalidInput, match=word):
            ss.check_input(prog, bad)  # type: ignore[arg-type]
    with pytest.raises(Unserializable) as refused:
        ss.check_input(prog, {"x": ["\0"]})
    assert refused.value.path == "input.x[0]"


def test_writes_are_checked_before_they_are_results() -> None:
    """§4.1, §4.2."""
    prog = program(node("a", start=True, writes=("x",)), channels={"x": last, "m": merge})
    spec = prog.nodes["a"]
    ss.check_writes(prog, spec, {"x": 1})
    with pytest.raises(UndeclaredChannel):
        ss.check_writes(prog, spec, {"z": 1})
    with pytest.raises(ContractViolation):
        ss.check_writes(prog, spec, {"m": {}})
    with pytest.raises(BadReturn):
        ss.check_writes(prog, msgspec.structs.replace(spec, writes=None), {"m": [1]})


def test_a_pending_node_that_is_gone_is_an_error() -> None:
    """§3.2, L-11: never done."""
    prog = program(node("a", start=True))
    ss.expect(prog, (Task("a"),))
    with pytest.raises(NodeMissing, match="'b'"):
        ss.expect(prog, (Task("a"), Task("b")))


def test_live_writes_are_not_decoded_again() -> None:
    prog = program(node("a", start=True), channels={"x": last})
    world = World(prog)
    result = TaskResult("a", writes=raw({"x": 1}), sends=(SendTo("a", raw(1)),))
    delta, cp = ss.barrier(prog, world.head, {"a": result}, inline={"a"}, decoded={"a": {"x": "decoded"}})
    assert cp.values["x"] == "decoded"
    assert delta.done == (result,)
    assert [t.key for t in cp.pending] == ["a~1"]


def test_a_skip_that_comes_back_to_where_it_began_ends_there() -> None:
    """§4.17: a cycle whose condition turned false ends; it does not skip round for ever."""
    prog = program(
        node("a", start=True, any_of=["b"], when=lambda s: s["n"] < 2), node("b", after=["a"]), node("slow", start=True), channels={"n": override}
    )
    world = World(prog, {"n": 0}, a=lambda s: {"n": s["n"] + 1}).drive()
    assert world.ran == [["a", "slow"], ["b"], ["a"], ["b"], ["a"], []]
    assert world.head.pending == ()


def test_a_reducer_that_raises_fails_its_step() -> None:
    """§4.1: the author's function is user code; what it raises is a failure, by name."""
    divide = Reducer(CUSTOM, lambda old, new: old // new)
    world = World(program(node("a", start=True), channels={"n": divide}), {"n": 8}, a=lambda s: {"n": 0})
    with pytest.raises(StepFailure, match="the reducer of 'n' raised ZeroDivisionError") as caught:
        world.step()
    assert caught.value.code == "reducer_failed"


MISFITS = [(append, 1, "list"), (append, "ab", "list"), (append, {"a": 1}, "list"), (window(2), 1, "list"), (merge, [1], "dict"), (merge, "ab", "dict")]


@pytest.mark.parametrize(("reducer", "held", "wanted"), MISFITS)
def test_a_reducer_adds_only_to_what_it_can(reducer: Reducer, held: Any, wanted: str) -> None:
    """§3.2, §4.1: what an older program wrote through another reducer is not taken apart; who does not write there goes on."""
    prog = program(node("a", start=True), node("b", after=["a"]), channels={"n": reducer, "m": append})
    new = {"n": {"k": 1} if wanted == "dict" else [2]}
    world = World(prog, {"m": []}, a=lambda s: {"m": [1]}, b=lambda s: new)
    world.live[-1] = msgspec.structs.replace(world.head, values={**world.head.values, "n": canon.admit(held, "n")})
    world.step()
    assert world.head.values["m"] == [1]
    with pytest.raises(InvalidWrite, match=f"n holds a .*adds to a {wanted}") as caught:
        world.step()
    assert caught.value.field == "n"
    with pytest.raises(InvalidWrite, match="n holds a"):
        starts.first(prog, cps.empty(RUN), TaskResult(cps.INPUT_TASK, writes=canon.encode(canon.admit(new, "n"))), {"n": canon.admit(held, "n")})


def test_an_input_that_is_there_already_is_not_reduced_upon() -> None:
    """§2.4: a run that ended before it began holds its input; begun later, it starts from that and no more."""
    prog = program(node("a", start=True), channels={"log": append, "seen": merge, "x": last})
    there = TaskResult(cps.INPUT_TASK, writes=raw({"log": ["in"], "seen": {"k": 1}, "x": 1}))
    _, kept = starts.first(prog, cps.empty(RUN), there)
    delta, begun = starts.first(prog, kept, there, inline=True)
    assert dict(begun.values) == dict(kept.values) == {"log": ["in"], "seen": {"k": 1}, "x": 1}
    assert dict(cps.advance(kept, delta, {}, seq=2, at=0, hash=b"").values) == dict(begun.values)


def test_a_run_that_begins_at_anothers_checkpoint_takes_over_what_it_had_seen() -> None:
    """§7.7: values, versions, what was consumed and skipped, topics, and what runs next; nothing of its own parent but the link."""
    base = cps.Base(versions={"done:a": 3, "x": 2}, seen={"a": {"@start": 1}}, skipped=("no",), topics=("t",))
    pending = (cps.Task("b", seen=("done:a",)),)
    asked, kept = (wait(),), (cps.Boundary.RUN_STARTED,)
    delta = Delta(step=7, source=Source.FORK, values=canon.encode(canon.admit({"x": [1]})), pending=pending, base=base)
    forked = cps.advance(cps.empty(RUN), delta, {}, seq=3, at=5, hash=b"h", waits=asked, boundaries=kept)
    assert forked == cps.Checkpoint(
        run_id=RUN, seq=3, step=7, values={"x": [1]}, versions={"done:a": 3, "x": 2}, seen={"a": {"@start": 1}}, pending=pending, parent=None,
        skipped=frozenset({"no"}), topics=("t",), waits=asked, source=Source.FORK, boundaries=kept, writes={}, hash=b"h", created_at=5,
    )
    bare = cps.advance(forked, Delta(step=9, base=cps.Base()), {}, seq=4, at=6, hash=b"i")
    assert bare == cps.Checkpoint(
        run_id=RUN, seq=4, step=9, values={}, versions={}, seen={}, pending=(), parent=f"{RUN}.c3", source=Source.LOOP, hash=b"i", created_at=6
    )


def test_a_fork_has_no_news_of_its_own() -> None:
    """§7.7: what is to run comes with the checkpoint; a fork wakes nobody by being made."""
    moved, news = cps.advance_with_news(cps.empty(RUN), Delta(step=1, base=cps.Base(versions={"x": 1})), {}, seq=1, at=0, hash=b"")
    assert (news, moved.pending) == ([], ())


def test_the_channel_by_which_a_node_sends_is_called_intents() -> None:
    """§9.1: authors write to it by this name."""
    assert ss.INTENTS == "intents"


def test_an_empty_list_of_sends_satisfies_the_join_behind_it() -> None:
    """Mend 23: what waits for the target goes on; beside a step that was skipped in the same barrier too."""
    prog = program(node("a", start=True), node("x", start=True), node("w"), node("join", after=["w"]), node("behind", after=["x"]))
    world = World(prog)
    results = {"a": TaskResult("a", unsent=("w",)), "x": TaskResult("x", outcome="skipped: when")}
    _, moved = ss.barrier(prog, world.head, results, inline=set(), decoded={})
    assert "join" in [t.key for t in moved.pending if not t.skip]
    sent = {"a": TaskResult("a", unsent=("w",), sends=(SendTo("w", raw(1)),)), "x": TaskResult("x")}
    _, moved = ss.barrier(prog, world.head, sent, inline=set(), decoded={})
    assert {t.node for t in moved.pending if not t.skip} == {"behind", "w"}


def test_what_begins_after_a_barrier_is_told_and_what_waits_on_has_been() -> None:
    """§5.11: a task that is carried on began in a super-step before."""
    checkpoint = msgspec.structs.replace(cps.empty(RUN), step=3, pending=(Task("a"), Task("b", index=2), Task("c", began=2)))
    assert ss.list_starts(checkpoint) == [ev.StepStarted(4, "a"), ev.StepStarted(4, Task("b", index=2).key)]
    plain = msgspec.structs.replace(checkpoint, pending=checkpoint.pending[:2])
    assert ss.list_starts(plain) == ss.list_starts(checkpoint) and ss.list_starts(cps.empty(RUN)) == []
