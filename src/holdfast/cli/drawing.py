"""Skills as data and, for a run, with what is done and what comes next; the pictures themselves are the core's."""

from __future__ import annotations

import re
from typing import Any

import click

from holdfast.cli import output as o
from holdfast.core.drawing import draw as tree
from holdfast.core.drawing import mermaid
from holdfast.core.graph import START, Node, Program
from holdfast.core.ids import node_of
from holdfast.handle import CheckpointView


def describe(program: Program, at: CheckpointView | None = None) -> dict[str, Any]:
    """A program as data. With a checkpoint every node has a ``state``: ``done``, ``next`` or ``""``."""
    due = set() if at is None else {node_of(t) for t in at.pending_tasks}
    seen = set() if at is None else {node_of(n) for n, versions in at.versions_seen.items() if versions}
    nodes = [_node(n, "next" if n.name in due else "done" if n.name in seen else "") for n in _ordered(program)]
    edges = [[source, n["name"]] for n in nodes for source in (*n["after"], *(["@start"] if n["start"] else []))]
    return {
        "skill_id": program.id,
        "skill_version": program.version,
        "fingerprint": program.fingerprint,
        "flow": program.flow,
        "channels": [{"name": c.name, "reducer": c.reducer.tag, "thread": c.thread, "required": c.required} for c in program.channels.values()],
        "nodes": nodes,
        "edges": edges,
        "mermaid": mermaid(program),
    }


def _ordered(program: Program) -> list[Node]:
    """Nodes in the order in which they can first run; ties as declared."""
    left, out, placed = list(program.nodes.values()), [], set[str]()
    while left:
        free = [n for n in left if not (set(_sources(n)) - placed)] or left[:1]
        for node in free:
            out.append(node)
            placed.add(node.name)
        left = [n for n in left if n.name not in placed]
    return out


def _sources(node: Node) -> list[str]:
    found = [c.removeprefix("done:") for t in node.triggers for c in t.channels if c.startswith("done:")]
    return list(dict.fromkeys(found))


def _node(node: Node, state: str) -> dict[str, Any]:
    own = [c for t in node.triggers for c in t.channels if c != START and ":" not in c]
    return {
        "name": node.name,
        "start": any(START in t.channels for t in node.triggers),
        "after": _sources(node),
        "all": any(t.mode == "all" and len(t.channels) > 1 for t in node.triggers),
        "on": own,
        "when": node.when is not None,
        "routers": [str(getattr(r, "__name__", "router")) for r in node.routers],
        "reads": None if node.reads is None else list(node.reads),
        "writes": None if node.writes is None else list(node.writes),
        "side_effects": str(node.side_effects),
        "kind": node.shape,
        "state": state,
    }


def draw(program: Program, picture: dict[str, Any]) -> None:
    """The tree of the nodes; for a run, those that are done and those that come next are marked."""
    states = {n["name"]: n["state"] for n in picture["nodes"]}
    signs = {"done": o.mark("ok"), "next": o.mark("go"), "": "○"}

    def marked(found: re.Match[str]) -> str:
        state = states.get(found[1], "")
        return f"{signs[state]} {o.paint(found[1], bold=state == 'next', dim=state == 'done')}"

    title, *lines = tree(program).splitlines()
    click.echo(o.paint(o.clean(title), bold=True))
    for line in lines:
        click.echo(re.sub(r"○ (\S+)", marked, o.clean(line)))
