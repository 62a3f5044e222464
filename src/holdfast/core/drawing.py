"""Pictures of a program: Mermaid text for pages, lines of text for a terminal. Pure: they are made only from the declaration."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.graph import START, Node, Program

Link = tuple[str, str]
"""From where a node is reached, and how: ``after``, ``all``, ``any`` or ``on``."""


def links(program: Program) -> dict[str, list[Link]]:
    """Returns, by node, from where it is reached: START, nodes, or channels (``on``), in the order of their declaration."""
    found: dict[str, list[Link]] = {}
    for node in program.nodes.values():
        mine = found.setdefault(node.name, [])
        for trigger in node.triggers:
            several = len(trigger.channels) > 1
            for channel in trigger.channels:
                kind, _, source = channel.partition(":")
                if channel == START:
                    mine.append((START, "after"))
                elif kind == "done":
                    mine.append((source, trigger.mode if several else "after"))
                else:
                    mine.append((channel, "on"))
    return found


def mermaid(program: Program) -> str:
    """Returns a program as a Mermaid flowchart. Joins are thick arrows, ``on=`` is dotted, a branch is a diamond, a sub-graph a frame."""
    return "\n".join(["flowchart TD", *_chart(program, "")])


_RESERVED = frozenset({"class", "classDef", "click", "default", "direction", "end", "flowchart", "graph", "linkStyle", "style", "subgraph"})


def _id(prefix: str, name: str) -> str:
    """Returns a name in a form that Mermaid accepts: its reserved words, and dashes, would end a statement."""
    name = name.replace("-", "_")
    return prefix + (f"{name}_" if name in _RESERVED else name)


def _chart(program: Program, prefix: str) -> Iterator[str]:
    for node in program.nodes.values():
        name = _id(prefix, node.name)
        if isinstance(node.child, Program):
            yield f'    subgraph {name}["{node.name}: {node.child.id}"]'
            yield from _chart(node.child, f"{name}__")
            yield "    end"
        else:
            yield f'    {name}["{node.name}"]'
    for target, sources in links(program).items():
        for source, how in sources:
            arrow = {"all": "==>", "any": "-->", "after": "-->", "on": "-.->"}[how]
            if source == START:
                yield f"    {prefix}__start((start)) {arrow} {_id(prefix, target)}"
            elif how == "on":
                yield f'    {prefix}__on_{source}[/"{source}"/] {arrow} {_id(prefix, target)}'
            else:
                yield f"    {_id(prefix, source)} {arrow} {_id(prefix, target)}"
    for node in program.nodes.values():
        if node.routers:
            yield f'    {_id(prefix, node.name)} --> {prefix}__route_{node.name.replace("-", "_")}{{"?"}}'


def draw(program: Program) -> str:
    """Returns a program as lines for a terminal: each node once, under the node that leads to it; ``↑`` refers to a node drawn above."""
    title = f"{program.id} (version {program.version})"
    if program.flow:
        return f"{title}\n  ○ a flow: its code decides which steps run"
    after: dict[str, list[str]] = {}
    reached = links(program)
    for target, sources in reached.items():
        for source, how in sources or [("", "goto")]:
            if target not in after.setdefault(f"on:{source}" if how == "on" else source, []):
                after[f"on:{source}" if how == "on" else source].append(target)
    lines = [title]
    drawn: set[str] = set()
    roots = [("● start", START), *((f"▷ {r[3:]}", r) for r in after if r.startswith("on:")), ("◇ by Goto, Send or a branch", "")]
    for head, root in roots:
        if root in after:
            lines += [f"  {head}", *_tree(program, after, reached, root, drawn)]
    return "\n".join(lines)


def _tree(program: Program, after: dict[str, list[str]], reached: dict[str, list[Link]], root: str, drawn: set[str]) -> Iterator[str]:
    """Draws depth first, without recursion, so that a chain of a thousand nodes needs no deeper stack than one of ten."""
    stack = [(name, "  ", i == len(after[root]) - 1) for i, name in reversed(list(enumerate(after[root])))]
    while stack:
        name, indent, last = stack.pop()
        alone = last and indent == "  "
        lead = "" if alone else "└─ " if last else "├─ "
        if name in drawn:
            yield f"{indent}{lead}↑ {name}"
            continue
        drawn.add(name)
        yield f"{indent}{lead}{_tell(program.nodes[name], reached[name])}"
        children = after.get(name, [])
        deeper = indent if len(children) == 1 and alone else indent + ("   " if last else "│  ")
        stack += [(child, deeper, i == len(children) - 1) for i, child in reversed(list(enumerate(children)))]


def _tell(node: Node, sources: list[Link]) -> str:
    marks = []
    joined = {how: [s for s, h in sources if h == how] for how in ("all", "any")}
    if joined["all"]:
        marks.append("after all of " + ", ".join(joined["all"]))
    if joined["any"]:
        marks.append("after any of " + ", ".join(joined["any"]))
    if node.when is not None:
        marks.append("when")
    if node.routers:
        marks.append("branches")
    if isinstance(node.child, Program):
        marks.append(f"subgraph {node.child.id}: {len(node.child.nodes)} nodes")
    return f"○ {node.name}" + (f"  ({'; '.join(marks)})" if marks else "")


__all__ = ["draw", "links", "mermaid"]
