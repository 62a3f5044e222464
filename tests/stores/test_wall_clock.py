"""§10.3: a store that is a file goes by the clock of its machine, whatever a worker has put in the place of its own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.ports import Store
from holdfast.stores import MemoryStore, SqliteStore


@pytest.mark.parametrize("seconds", [-600, 600])
def test_a_workers_own_clock_is_not_the_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    real, read = time.time_ns, time.time
    monkeypatch.setattr(time, "time_ns", lambda: real() + seconds * 1_000_000_000)
    monkeypatch.setattr(time, "time", lambda: read() + seconds)
    stores: tuple[Store, ...] = (SqliteStore(str(tmp_path / "s.db")), MemoryStore())
    for store in stores:
        assert abs(store.now() - real() // 1000) < 60_000_000
