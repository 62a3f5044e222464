"""A skill as lines for a terminal and, for a run, with what is done and what comes next; the picture itself is the core's."""

from __future__ import annotations

import re
from typing import Any

import click

from holdfast.cli import output as o
from holdfast.core.drawing import draw as tree
from holdfast.core.graph import Program


def draw(program: Program, picture: dict[str, Any]) -> None:
    """The tree of the nodes; for a run, those that are done and those that come next are marked."""
    states = {n["name"]: n["state"] for n in picture["nodes"]}
    signs = {"done": o.mark("ok"), "next": o.mark("go"), "": "○"}

    def mark(found: re.Match[str]) -> str:
        state = states.get(found[1], "")
        return f"{signs[state]} {o.paint(found[1], bold=state == 'next', dim=state == 'done')}"

    title, *lines = tree(program).splitlines()
    click.echo(o.paint(o.clean(title), bold=True))
    for line in lines:
        click.echo(re.sub(r"○ (\S+)", mark, o.clean(line)))
