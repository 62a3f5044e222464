"""Nothing stays open behind what was closed: descriptors are counted over many lives of every store and of a runtime that works."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Runtime, flow
from holdfast.core.errors import HoldfastError
from holdfast.stores import PostgresStore, SqliteStore, WorkspaceStore
from tests.postgres.server import shared

TIMES = 50
MEASURED = (1, TIMES - 1)
HERE = "/proc/self/fd"

pytestmark = pytest.mark.skipif(not os.path.isdir(HERE), reason="descriptors are counted in /proc")


@flow("short")
async def short(ctx: Context) -> str:
    return await ctx.step(str, "done")


def open_now() -> int:
    gc.collect()
    return len(os.listdir(HERE))


def opened(kind: str, folder: Path) -> Any:
    match kind:
        case "sqlite":
            return SqliteStore(folder / "runs.db")
        case "workspace":
            return WorkspaceStore(folder / "runs")
        case _:
            return PostgresStore(shared().fresh())


@pytest.mark.parametrize("kind", ["sqlite", "workspace", "postgres"])
def test_a_store_that_was_closed_leaves_nothing_open(kind: str, tmp_path: Path) -> None:
    async def lives() -> list[int]:
        counted = []
        store = opened(kind, tmp_path)
        for life in range(TIMES):
            await store.open()
            await store.register(f"w{life}", 1_000_000)
            await store.renew(f"w{life}", 1_000_000)
            await store.claim(f"w{life}", (), None, limit=1)
            await store.wait_for_change(0)
            await store.retire(f"w{life}")
            await store.close()
            if life in MEASURED:
                counted.append(open_now())
        return counted

    counted = asyncio.run(lives())
    assert counted[1] <= counted[0], counted


@pytest.mark.parametrize("url", ["memory:", "sqlite:///{}/runs.db", "workspace:{}/runs"])
def test_a_runtime_that_was_closed_leaves_nothing_open(url: str, tmp_path: Path) -> None:
    """Each life has a loop of its own, a worker, and every other one ends by an error."""

    async def life(number: int) -> None:
        async with Runtime(url.format(tmp_path), skills=[short]) as rt:
            await rt.submit("short")
            await rt.worker(until_idle=True)
            if number % 2:
                raise HoldfastError("over")

    counted = []
    for number in range(TIMES):
        with contextlib.suppress(HoldfastError):
            asyncio.run(life(number))
        if number in MEASURED:
            counted.append(open_now())
    assert counted[1] <= counted[0], counted


async def test_a_store_that_cannot_be_opened_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "runs.db").write_bytes(b"junk" * 5_000)
    before = open_now()
    for _ in range(TIMES):
        with pytest.raises(HoldfastError):
            await SqliteStore(tmp_path / "runs.db").open()
    assert open_now() <= before


async def test_closing_a_store_under_its_heartbeat_ends_the_heartbeat(tmp_path: Path) -> None:
    """Whoever renews at a store that was closed stops, and leaves no thread and no loop behind."""
    before = {t.ident for t in threading.enumerate()}
    store = SqliteStore(tmp_path / "runs.db")
    rt = Runtime(store, skills=[short], lease=0.03)  # type: ignore[arg-type]
    await rt.__aenter__()
    await rt.invoke("short")
    await store.close()
    async with asyncio.timeout(60):
        while [t for t in threading.enumerate() if t.ident not in before and t.name == "holdfast-heartbeat"]:
            await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(int))])
