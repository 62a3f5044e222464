"""The page about integrations: its blocks run as they stand."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast import Runtime
from tests.test_tidy import fences

PAGE = Path(__file__).resolve().parents[2] / "docs" / "integrations.md"


async def test_the_blocks_of_the_page_make_skills() -> None:
    made: list[dict[str, Any]] = []
    for block in fences(PAGE.read_text("utf-8"), "python"):
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(block, "page", "exec"), names)
        made.append(names)
    pydantic_ai, openai_agents, langgraph, saver = made
    assert await saver["remember"]() == {"text": "HI"}
    assert openai_agents["desk"].id == "openai-desk"
    async with Runtime("memory:", skills=[pydantic_ai["desk"], langgraph["skill"]]) as rt:
        run = await rt.invoke(langgraph["skill"], {"input": {"text": "hi"}})
        assert run.result == {"text": "HI"}, run.error
        run = await rt.invoke(pydantic_ai["desk"], {"question": "Where is order 17?"})
        assert run.status == "waiting_for_human" and run.waits[0].prompt == "pay?", run.error


async def test_the_table_of_the_same_kill_is_what_happens() -> None:
    """``python -m tests.integrations.same_kill --write`` writes it."""
    command = [sys.executable, "-m", "tests.integrations.same_kill"]
    ended = await asyncio.to_thread(subprocess.run, command, cwd=PAGE.parents[1], capture_output=True, text=True, timeout=180, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout in PAGE.read_text("utf-8"), ended.stdout
