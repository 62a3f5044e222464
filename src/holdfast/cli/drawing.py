"""Skills as pictures: a list of nodes for the terminal, Mermaid for pages, plain data for programs."""

from __future__ import annotations

from typing import Any

import click

from holdfast.authoring import mermaid
from holdfast.cli import output as o
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


def draw(picture: dict[str, Any]) -> None:
    """One line a node, what leads to it beside it; a line in the margin joins what follows upon one another."""
    title = "flow" if picture["flow"] else "graph"
    click.echo(f"{o.paint(o.inline(picture['skill_id']), bold=True)} {o.inline(picture['skill_version'])}  {title}, {len(picture['nodes'])} nodes")
    signs = {"done": o.mark("ok"), "next": o.mark("go"), "": o.mark("dot")}
    gap = max((o.columns(n["name"]) for n in picture["nodes"]), default=0)
    for node in picture["nodes"]:
        said = ["start"] if node["start"] else []
        if node["after"]:
            said.append(("after all of " if node["all"] else "after ") + ", ".join(node["after"]))
        said += [f"on {', '.join(node['on'])}"] if node["on"] else []
        said += ["when its condition holds"] if node["when"] else []
        said += [f"then {', '.join(node['routers'])} chooses"] if node["routers"] else []
        said += [node["side_effects"]] if node["side_effects"] != "none" else []
        said += ["sub-graph"] if node["kind"] == "subgraph" else []
        told = "; ".join(said) or "where a router or Goto leads"
        click.echo(f"  {signs[node['state']]} {o.pad(o.inline(node['name']), gap)}  {o.paint(o.inline(told), dim=True)}")
