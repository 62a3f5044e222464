"""Programs and the fingerprint of their shape (§3.2)."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.channels import Channel, append, last, override
from holdfast.core.errors import InvalidGraph
from holdfast.core.graph import Node
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
