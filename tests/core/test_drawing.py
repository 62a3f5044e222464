"""Pictures of programs."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.channels import append, last
from holdfast.core.drawing import draw, mermaid
from tests.core.build import node, program


def test_a_graph_as_mermaid() -> None:
    inner = program(node("x", start=True), node("y", after=["x"]), channels={"items": append})
    prog = program(
        node("a", start=True, routers=(lambda s: "d",)),
        msgspec.structs.replace(node("sub", after=["a"]), child=inner),
        node("b", after=["a"]),
        node("c", after=["sub", "b"]),
        node("d", any_of=["a", "b"]),
        node("watch", on=["items"]),
        channels={"items": append},
    )
    assert mermaid(prog).splitlines() == [
        "flowchart TD",
        '    a["a"]',
        '    subgraph sub["sub: g"]',
        '    sub__x["x"]',
        '    sub__y["y"]',
        "    sub____start((start)) --> sub__x",
        "    sub__x --> sub__y",
        "    end",
        '    b["b"]',
        '    c["c"]',
        '    d["d"]',
        '    watch["watch"]',
        "    __start((start)) --> a",
        "    a --> sub",
        "    a --> b",
        "    sub ==> c",
        "    b ==> c",
        "    a --> d",
        "    b --> d",
        '    __on_items[/"items"/] -.-> watch',
        '    a --> __route_a{"?"}',
    ]


def test_a_graph_as_lines() -> None:
    inner = program(node("x", start=True))
    prog = program(
        node("a", start=True),
        node("b", after=["a"], when=lambda s: True),
        node("c", after=["b"], routers=(lambda s: "a",)),
        msgspec.structs.replace(node("d", after=["b"]), child=inner),
        node("e", after=["c", "d"]),
        node("a2", any_of=["e", "c"]),
        node("loose"),
        node("watch", on=["n"]),
        channels={"n": last},
    )
    assert draw(prog).splitlines() == [
        "g (version 1)",
        "  ● start",
        "  ○ a",
        "  ○ b  (when)",
        "     ├─ ○ c  (branches)",
        "     │  ├─ ○ e  (after all of c, d)",
        "     │  │  └─ ○ a2  (after any of e, c)",
        "     │  └─ ↑ a2",
        "     └─ ○ d  (subgraph g: 1 nodes)",
        "        └─ ↑ e",
        "  ▷ n",
        "  ○ watch",
        "  ◇ by Goto, Send or a branch",
        "  ○ loose",
    ]


def test_a_flow_s_picture_is_its_name() -> None:
    assert draw(program(node("main"), flow=True)) == "g (version 1)\n  ○ a flow: its code decides which steps run"


def test_a_thousand_nodes_are_drawn_in_a_line() -> None:
    nodes = [node("n0", start=True), *(node(f"n{i}", after=[f"n{i - 1}"]) for i in range(1, 1000))]
    lines = draw(program(*nodes)).splitlines()
    assert len(lines) == 1002 and max(map(len, lines)) < 20


def test_mermaid_is_not_taken_at_its_own_words() -> None:
    prog = program(node("start", start=True), node("end", after=["start"]), node("make-it", after=["end"]))
    assert mermaid(prog).splitlines()[1:] == [
        '    start["start"]',
        '    end_["end"]',
        '    make_it["make-it"]',
        "    __start((start)) --> start",
        "    start --> end_",
        "    end_ --> make_it",
    ]


def test_two_ways_from_one_node_to_another_are_one_line_for_a_terminal() -> None:
    prog = program(node("a", start=True), node("b", after=["a"], any_of=["a"]))
    assert draw(prog).splitlines()[1:] == ["  ● start", *draw(program(node("a", start=True), node("b", after=["a"]))).splitlines()[2:]]


@pytest.mark.parametrize("word", ["class", "classDef", "click", "default", "direction", "end", "flowchart", "graph", "linkStyle", "style", "subgraph"])
def test_a_node_may_be_called_what_mermaid_calls_something_else(word: str) -> None:
    """Its own words would end a statement; the label still says the name as it is."""
    prog = program(node(word, start=True), node("next-one", after=[word]))
    lines = mermaid(prog).splitlines()
    assert lines[1:3] == [f'    {word}_["{word}"]', '    next_one["next-one"]']
    assert lines[3:] == [f"    __start((start)) --> {word}_", f"    {word}_ --> next_one"]
