"""The examples of agent frameworks on Holdfast: each ends, and pays once."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from examples import langgraph_talk, mcp_tools, openai_agent, pydantic_agent


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (pydantic_agent, "Done: paid 4200."),
        (openai_agent, "Done: ['paid 4200']."),
        (langgraph_talk, "completed, [4200]"),
        (mcp_tools, "paid 4200"),
    ],
    ids=lambda given: given.__name__.rpartition(".")[2] if isinstance(given, ModuleType) else "",
)
async def test_it_pays_once_after_an_approval(example: ModuleType, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paid: list[int] = []
    monkeypatch.setattr(example, "PAID", paid)
    assert await example.main(f"sqlite:///{tmp_path}/runs.db") == said
    assert paid == [4200]
    source = Path(str(example.__file__)).read_text("utf-8")
    assert len(source.splitlines()) <= 60 and "sleep" not in source
