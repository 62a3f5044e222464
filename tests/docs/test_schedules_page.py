"""The page about schedules says what is: its blocks run as they stand, and what it shows of the clocks is true."""

from __future__ import annotations

import ast
import inspect
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from click.testing import CliRunner

from holdfast import Graph, Runtime, State
from holdfast.cli.main import cli
from holdfast.core.schedules import GRACE_US, MAX_CATCH_UP

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "schedules.md").read_text("utf-8")


class Report(State):
    day: str = ""
    kind: str = ""


def skill(id: str) -> Graph[Report]:
    graph = Graph(id, Report)
    graph.node("only", start=True)(lambda state: None)
    return graph


async def test_its_blocks_run() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    async with Runtime("memory:") as rt:
        names: dict[str, Any] = {"rt": rt, "report": skill("report"), "sync": skill("sync"), "datetime": datetime, "timedelta": timedelta, "ZoneInfo": ZoneInfo}
        for block in blocks:
            done = eval(compile(block, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
            if inspect.iscoroutine(done):
                await done
        later = {r.not_before for r in await rt.runs()}
        assert datetime(2026, 11, 21, 8, tzinfo=UTC) in later and len(later) == 2
        assert {(s.id[:5], s.cron, s.every) for s in await rt.schedules()} == {
            ("daily", "0 9 * * MON-FRI", None), ("sync-", None, timedelta(minutes=15)),
        }


def test_what_it_says_of_the_clocks() -> None:
    (line,) = re.findall(r"^holdfast (schedule next .*)$", PAGE, re.M)
    words = [w.strip("'") for w in re.findall(r"'[^']*'|\S+", line)]
    said = CliRunner().invoke(cli, words, prog_name="holdfast").stdout
    assert "Sun 2026-03-29 03:00:00 CEST" in said and "right after the change: 03:00" in PAGE


def test_its_numbers() -> None:
    assert GRACE_US == 60_000_000 and "(one minute by default)" in PAGE
    assert f"(1 to {MAX_CATCH_UP})" in PAGE
