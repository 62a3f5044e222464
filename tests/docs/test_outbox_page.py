"""The pages about the outbox and about tools run, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime

DOCS = Path(__file__).resolve().parents[2] / "docs"


def example(name: str) -> str:
    """The examples of a page: each goes on where the one before it ends."""
    return "".join(re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text("utf-8"), re.M | re.S))


class Mailer:
    def __init__(self) -> None:
        self.sent: list[tuple[str, str]] = []

    async def send(self, to: str, text: str, *, idempotency_key: str) -> str:
        self.sent.append((to, idempotency_key))
        return "accepted"


async def test_the_outbox_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mailer = Mailer()
    world: dict[str, Any] = {"mailer": mailer}
    exec(compile(example("outbox.md"), "docs/outbox.md", "exec"), world)
    (intent,) = await world["main"]()
    assert (intent.state, intent.answer, mailer.sent) == ("sent", "accepted", [("ada@example.com", intent.key)])


async def test_the_tools_page(tmp_path: Path) -> None:
    world: dict[str, Any] = {}
    exec(compile(example("tools.md"), "docs/tools.md", "exec"), world)
    run = await world["main"](tmp_path)
    assert (run.status, list(run.state.names)) == ("completed", ["dist/app.txt", "dist/report.json"])
    async with Runtime("memory:", workspace=tmp_path) as rt:
        run = await rt.invoke(world["fan"], {})
        assert (run.status, len(run.state.names)) == ("completed", 4)
    run = await world["elsewhere"](f"sqlite:///{tmp_path}/runs.db", tmp_path)
    assert (run.status, list(run.values["names"])) == ("completed", ["dist/app.txt", "dist/report.json"])
