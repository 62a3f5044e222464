"""What a process asks before it goes on with the runs of one that was killed, counted: its death is proven once, however many runs it held."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from tests.statements import counting_statements

from holdfast.core.lease import Alive
from holdfast.stores import SqliteStore
from holdfast.stores.liveness import Liveness
from holdfast.testing.conformance import TTL, Script

pytestmark = pytest.mark.one_store("it counts the statements of SQLite, and the proofs of life by files")


async def left_behind(path: Path, count: int) -> None:
    """So many runs of a worker that has died: its file is there, and nobody holds it."""
    store = SqliteStore(path)
    await store.open()
    for number in range(count):
        await Script(store, f"r{number}").submit()
    await store.register("w", TTL)
    assert len(await store.claim("w", (), None, limit=count)) == count
    await store.close()


async def taken_over(path: Path, count: int, asked: Counter[str]) -> Counter[str]:
    await left_behind(path, count)
    with counting_statements() as found:
        store = SqliteStore(path)
        await store.open()
        await store.register("next", TTL)
        found.clear()
        asked.clear()
        claims = await store.claim("next", (), None, limit=count)
        assert [(c.previous_owner, c.cause) for c in claims] == [("w", "owner_dead")] * count
        counted = Counter(found)
        await store.close()
    return counted


def test_the_death_of_an_owner_is_proven_once_for_all_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    alive = Liveness.alive

    def told(self: Liveness, owner: str) -> Alive:
        asked[owner] += 1
        return alive(self, owner)

    monkeypatch.setattr(Liveness, "alive", told)
    few = asyncio.run(taken_over(tmp_path / "few.db", 5, asked))
    proofs = asked["w"]
    many = asyncio.run(taken_over(tmp_path / "many.db", 50, asked))
    assert asked["w"] == proofs <= 4
    assert many["UPDATE"] - few["UPDATE"] == 45, "each run is taken by one statement"
    assert many["SELECT"] == few["SELECT"], "and none is read again"
