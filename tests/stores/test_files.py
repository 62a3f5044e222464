"""What a store of files says of the operating system's errors; and that every name of the package is there."""

from __future__ import annotations

import asyncio
import gc
import importlib
import threading
from pathlib import Path

import pytest

from holdfast import stores
from holdfast.core.errors import StoreError
from holdfast.stores import SqliteStore
from holdfast.stores.files import disk_told
from holdfast.stores.urls import seal


@disk_told(lambda store: store.folder)
class Kept:
    folder = "/somewhere"

    async def read(self) -> bytes:
        raise OSError(5, "Input/output error")

    async def _read(self) -> bytes:
        raise OSError(5, "Input/output error")

    def now(self) -> int:
        raise OSError(5, "Input/output error")

    def _now(self) -> int:
        return 7


class Within(Kept):
    """What a verb calls within itself: only the verb tells."""

    async def read_within(self) -> bytes:
        return await self._read()

    def now_within(self) -> int:
        return self._now()


async def test_every_verb_that_is_awaited_is_told_of_and_nothing_else_is_touched() -> None:
    kept = Within()
    with pytest.raises(StoreError, match="/somewhere"):
        await kept.read()
    with pytest.raises(OSError, match="Input/output"):
        await kept.read_within()
    with pytest.raises(OSError, match="Input/output"):
        kept.now()
    assert kept.now_within() == 7


def test_every_name_leads_to_what_its_module_calls_so() -> None:
    assert sorted(n for names in stores.HOMES.values() for n in names) == stores.__all__
    for module, names in stores.HOMES.items():
        for name in names:
            assert getattr(stores, name) is getattr(importlib.import_module(module), name)

    assert stores.seal is seal


async def test_a_store_that_is_dropped_unclosed_leaves_no_thread(tmp_path: Path) -> None:
    """What a program forgets to close, or a test leaves as a dead process would, goes when nobody refers to it."""
    threads = {t for t in threading.enumerate() if t.name == "holdfast-anchor"}
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    (mine,) = {t for t in threading.enumerate() if t.name == "holdfast-anchor"} - threads
    del store
    gc.collect()
    await asyncio.to_thread(mine.join, 10)
    assert not mine.is_alive()
