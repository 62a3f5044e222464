"""Draws a skill as lines on a terminal; for a run, with what is done and what comes next. The core makes the picture itself."""

from __future__ import annotations

import re
from typing import Any

import click

from holdfast.cli import output as o
from holdfast.core.drawing import draw as tree
from holdfast.core.graph import Program


def draw(program: Program, picture: dict[str, Any]) -> None:
    """Draws the tree of the nodes; for a run, it marks the nodes that are done and those that come next."""
    states = {n["name"]: n["state"] for n in picture["nodes"]}
    signs = {"done": o.mark("ok"), "next": o.mark("go"), "": "○"}

    def mark(found: re.Match[str]) -> str:
        state = states.get(found[1], "")
        return f"{signs[state]} {o.paint(found[1], bold=state == 'next', dim=state == 'done')}"

    title, *lines = tree(program).splitlines()
    click.echo(o.paint(o.clean(title), bold=True))
    for line in lines:
        click.echo(re.sub(r"○ (\S+)", mark, o.clean(line)))
