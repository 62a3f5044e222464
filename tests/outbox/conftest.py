"""Every store that is there, as the tests of the outbox open it: again and again, each runtime as another process would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Runtime
from holdfast.stores import MemoryStore, WorkspaceStore
from tests.postgres.server import shared

Open = Callable[..., Runtime]
STORES = ("memory", "sqlite", "workspace", "postgresql")


class Shared(MemoryStore):
    """A store that several runtimes of one process share: it outlives each of them."""

    async def close(self) -> None:
        """Nothing: the next one goes on with it."""


class SharedFolder(WorkspaceStore):
    """The same for the folder, which is one process's at a time."""

    entered = False

    async def open(self) -> None:
        if not self.entered:
            self.entered = True
            await super().open()

    async def close(self) -> None:
        """Nothing: the next one goes on with it."""

    async def ended(self) -> None:
        await super().close()


@pytest.fixture(params=STORES)
async def open_rt(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Open]:
    """Runtimes over one store; each is closed at the end. On PostgreSQL the secret of links is in the environment (§5.9)."""
    if request.param == "postgresql":
        monkeypatch.setenv("HOLDFAST_SECRET", "x" * 32)
    opened: list[Runtime] = []
    folder = SharedFolder(tmp_path / "runs")
    stores: dict[str, Any] = {"memory": Shared(), "workspace": folder, "sqlite": f"sqlite:///{tmp_path}/a.db"}
    store = shared().fresh() if request.param == "postgresql" else stores[request.param]

    def make(**options: Any) -> Runtime:
        opened.append(Runtime(store, **options))
        return opened[-1]

    yield make
    for rt in opened:
        await rt.close()
    if folder.entered:
        await folder.ended()
