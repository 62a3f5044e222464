"""Programs and the fingerprint of their shape (§3.2)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.channels import Channel, append, last, override
from holdfast.core.errors import InvalidGraph
from holdfast.core.graph import Node, Program, Trigger, find_unwritten
from tests.core.build import node, program


def test_a_program_knows_who_listens_to_what() -> None:
    prog = program(node("a", start=True), node("b", after=["a"], on=["x"]), channels={"x": last})
    assert prog.listeners["done:a"] == ("b",)
    assert prog.listeners["x"] == ("b",)
    assert prog.listeners["goto:a"] == ("a",)
    assert prog.order == {"a": 0, "b": 1}


def test_the_fingerprint_is_of_the_shape() -> None:
    """§3.2: channels with reducers, names, triggers; bodies do not count."""
    base = program(node("a", start=True), node("b", after=["a"]), channels={"x": last})
    body = program(node("a", start=True, call=print), node("b", after=["a"]), channels={"x": last})
    assert base.fingerprint == body.fingerprint
    others = [
        program(node("a", start=True), node("b", start=True), channels={"x": last}),
        program(node("a", start=True), node("c", after=["a"]), channels={"x": last}),
        program(node("a", start=True), node("b", after=["a"]), channels={"x": override}),
        program(node("a", start=True), node("b", after=["a"]), channels={"x": Channel("x", last, thread=True)}),
        program(node("a", start=True), node("b", after=["a"]), channels={"y": last}),
        program(node("a", start=True, routers=(lambda s: "b",)), node("b", after=["a"]), channels={"x": last}),
        program(node("a", start=True), node("b", any_of=["a"]), channels={"x": last}),
    ]
    assert len({base.fingerprint, *(o.fingerprint for o in others)}) == len(others) + 1


def test_a_flow_s_fingerprint_is_its_signature() -> None:
    one = program(node("main"), flow=True, signature="(ctx, name)")
    assert one.fingerprint != program(node("main"), flow=True, signature="(ctx)").fingerprint
    assert one.fingerprint == program(node("other"), flow=True, signature="(ctx, name)").fingerprint


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([], "no nodes"),
        ([node("b", after=["b"])], "no node starts it"),
        ([node("a", start=True), node("b", after=["ghost"])], "'ghost', which is not a node"),
        ([node("a", start=True, on=["ghost"])], "'ghost', which is not a channel"),
        ([node("a", start=True, reads=("ghost",))], "'ghost', which the state does not have"),
        ([node("a", start=True, writes=("ghost",))], "'ghost', which the state does not have"),
        ([node("bad name", start=True)], "'bad name'"),
        ([node("a"), node("b")], "no node is wired"),
    ],
)
def test_faults_are_told_in_words(nodes: list[Node], words: str) -> None:
    with pytest.raises(InvalidGraph, match=words):
        program(*nodes, channels={"x": append})


def test_data_alone_may_start_a_graph() -> None:
    assert program(node("a", on=["x"]), channels={"x": last}).listeners["x"] == ("a",)


def test_a_channel_called_start_is_the_state_s_own() -> None:
    prog = program(node("a", start=True), node("b", on=["start"]), channels={"start": last})
    assert prog.listeners["start"] == ("b",)
    assert prog.listeners["@start"] == ("a",)


def test_a_channel_that_two_triggers_share_is_listened_to_once() -> None:
    spec = node("b", on=["x"])
    twice = msgspec.structs.replace(spec, triggers=spec.triggers * 2)
    assert program(node("a", start=True), twice, channels={"x": last}).listeners["x"] == ("b",)


def plain(name: str, **options: Any) -> Node:
    """A node whose code plainly never returns Goto or Send."""
    return msgspec.structs.replace(node(name, **options), routes=False)


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([plain("a", start=True), plain("b")], "b is never reached: nothing leads to it"),
        ([plain("a", start=True), plain("b", after=["c"]), plain("c", after=["b"])], "c is never reached"),
        ([plain("a", start=True), plain("b"), plain("c", after=["a", "b"])], "c is never reached"),
        ([plain("a", start=True), node("b", after=["alpha", "a"])], "'alpha', which is not a node"),
        ([plain("a", start=True), node("b", triggers=(Trigger("all", ()),))], "b can never run"),
        ([plain("a", start=True), node("b", after=["@end"])], "b comes after END, but no node can"),
        ([plain("collect", start=True), node("b", after=["colect"])], r"\(did you mean 'collect'\?\)"),
    ],
)
def test_what_cannot_be_reached_is_told(nodes: list[Node], words: str) -> None:
    with pytest.raises(InvalidGraph, match=words):
        program(*nodes, channels={"x": append})


@pytest.mark.parametrize(
    "nodes",
    [
        [node("a", start=True), plain("b")],
        [plain("a", start=True, routers=(lambda s: "b",)), plain("b")],
        [plain("a", start=True), plain("b", after=["a"]), plain("c", any_of=["b", "c"])],
        [plain("a", on=["x"]), plain("b", after=["a"])],
    ],
)
def test_what_may_be_reached_is_not_faulted(nodes: list[Node]) -> None:
    assert list(program(*nodes, channels={"x": append}).nodes) == [n.name for n in nodes]


def child(**channels: Any) -> Program:
    return program(plain("inner", start=True), channels=channels)


def holding(inner: Program, pass_in: tuple[str, ...] = (), pass_out: tuple[str, ...] = ()) -> Node:
    return msgspec.structs.replace(node("sub", start=True), shape="subgraph", child=inner, pass_in=pass_in, pass_out=pass_out)


@pytest.mark.parametrize(
    ("sub", "words"),
    [
        (holding(child(x=last), pass_in=("x", "items")), "sub has 'items' in pass_in, which the state does not have"),
        (holding(child(y=last), pass_out=("x",)), "sub has 'x' in pass_out, which the state of g does not have"),
        (holding(child(y=Channel("y", required=True))), "sub does not pass in y, which g needs"),
    ],
)
def test_a_sub_graph_says_what_it_lacks(sub: Node, words: str) -> None:
    """§4.14."""
    with pytest.raises(InvalidGraph, match=words):
        program(sub, channels={"x": last})


def test_the_shape_of_a_child_is_part_of_the_parent_s() -> None:
    """§3.2."""
    prints = {
        program(holding(inner, pass_in), channels={"x": last}).fingerprint
        for inner, pass_in in [(child(x=last), ()), (child(x=append), ()), (child(x=last), ("x",))]
    }
    assert len(prints) == 3


def test_a_channel_that_is_read_and_never_written_is_named() -> None:
    """§4.2."""
    channels = {"x": last, "y": Channel("y", required=True), "z": last}
    reader = node("a", start=True, reads=("x", "y", "z"), writes=())
    assert [f.split(",")[0] for f in find_unwritten(program(reader, channels=channels))] == ["a reads 'x'", "a reads 'z'"]
    writer = node("b", after=["a"], writes=("x", "z"))
    assert find_unwritten(program(reader, writer, channels=channels)) == []
    assert find_unwritten(program(reader, node("b", after=["a"]), channels=channels)) == [], "without a contract it may write anything"
    assert len(find_unwritten(program(reader, holding(child(x=last), pass_out=("x",)), channels=channels))) == 1
