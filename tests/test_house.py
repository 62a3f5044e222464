"""docs/architecture.md held against a run that is followed through the house, and what the house weighs (issue «House»)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bench.house import ROOT, walked, weighed

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "architecture.md").read_text("utf-8")
BESIDE = {
    "workers/worker": "this run is driven by the façade; a worker claims by the same verb",
    "core/graph": "the program was made when the flow was declared",
    "core/line": "the fused path of a plain step of a graph",
    "engine/calls/scopes": "concurrent calls", "engine/calls/subflow": "a graph in a node's place", "engine/calls/gates": "gates around a step",
    "core/intents": "it sends nothing", "outbox/hands": "it sends nothing, and these are threads for transports that are plain functions",
    "workers/toolrunner": "its tools run here", "engine/calls/elsewhere": "its tools run here",
}  # fmt: skip
"""Rooms that the table names and this run does not enter, and why."""
WALK = {"submit": (36, 90), "drive": (54, 570), "approve": (57, 380)}
"""By phase the modules entered and the returns to one that was left, as they were measured, with room for what goes by the clock. The aim
of the issue (35 modules, half the returns) is reached where a run is submitted, and half the returns nearly where it is approved: these may
fall, and may not grow."""
NEWCOMER = 4_500
"""How many lines a newcomer reads to know how a run lives."""


def rows() -> dict[str, list[str]]:
    """By number of a row of the walk, the modules that it names."""
    found: dict[str, list[str]] = {}
    for line in PAGE.split("## The walk")[1].split("\n## ")[0].splitlines():
        if match := re.match(r"\| (\d+|5–7) \|", line):
            found[match[1]] = list(re.findall(r"`([a-z]\w*(?:/\w+)*)(?:\.\w+)?`", line.split("|")[3]))
    return found


async def test_a_newcomers_path_is_short_and_on_the_way() -> None:
    """«Reading it» names its files one by one; one run goes through each of them."""
    entered = set().union(*(walk.modules for walk in (await walked()).values()))
    named = re.findall(r"^\| \d+ \| \[`([\w/]+)`\]\(\.\./src/holdfast/([\w/]+)\.py\)", PAGE.split("## Reading it")[1].split("## The seam")[0], re.M)
    assert len(named) >= 10 and all(shown == path for shown, path in named)
    assert {path for _, path in named} <= entered
    assert sum((ROOT / f"{path}.py").read_text("utf-8").count("\n") for _, path in named) <= NEWCOMER


async def test_the_walk_is_true_row_by_row() -> None:
    """Every room that a row names is there, and a run enters it; or it is named here why this run does not."""
    entered = set().union(*(walk.modules for walk in (await walked()).values()))
    named = {name for names in rows().values() for name in names}
    assert len(rows()) == 11 and len(named) > 20
    for name in named:
        assert (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file(), f"{name} is not there"
        assert any(m == name or m.startswith(f"{name}/") for m in entered) != (name in BESIDE), name
    assert BESIDE.keys() <= named


@pytest.mark.parametrize("phase", WALK)
async def test_the_walk_does_not_grow(phase: str) -> None:
    modules, returns = WALK[phase]
    walk = (await walked())[phase]
    assert len(walk.modules) <= modules and walk.returns <= returns, (len(walk.modules), walk.returns)


def test_what_is_large_does_not_grow() -> None:
    """Largest class, module and function, private members reached for on anything but oneself, and ``Any`` in the engine."""
    weight = weighed(ROOT, "engine")
    assert weight.largest["class"][0] <= 1320 and weight.largest["module"][0] <= 1520 and weight.largest["function"][0] <= 110, weight.largest
    assert weight.private <= 42 and weight.any_in_1000 <= 32
