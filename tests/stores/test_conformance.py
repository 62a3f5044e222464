"""The one suite, over every store: its cases name what they show, T-80 to T-82, T-86 and X-03 among them."""

import asyncio
from pathlib import Path

import pytest
from tests.postgres.pooler import through_pooler
from tests.postgres.server import shared
from tests.stores.third import ThirdStore

from holdfast.stores import MemoryStore, PostgresStore, SqliteStore, WorkspaceStore
from holdfast.testing import (
    conformance_blobs,
    conformance_chunks,
    conformance_clocks,
    conformance_limits,
    conformance_outbox,
    conformance_people,
    conformance_shelves,
    conformance_threads,
)
from holdfast.testing.conformance import CASES, Clock

for part in (
    conformance_blobs,
    conformance_chunks,
    conformance_clocks,
    conformance_limits,
    conformance_outbox,
    conformance_people,
    conformance_shelves,
    conformance_threads,
):
    assert part.__doc__, "imported for its cases"


class Memory:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = MemoryStore(now=self.clock)

    def kill(self, owner: str) -> None:
        self.store.abandon(owner)


class Sqlite:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = SqliteStore(folder / "store.db", now=self.clock)

    def kill(self, owner: str) -> None:
        self.store.abandon(owner)


class Workspace:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = WorkspaceStore(folder / "runs", now=self.clock)

    def kill(self, owner: str) -> None:
        self.store.abandon(owner)


class Postgres:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = PostgresStore(shared().fresh(), now=self.clock)

    def kill(self, owner: str) -> None:
        self.store.abandon(owner)


class Partitioned:
    """Runs, logs and inboxes over four tables each, in a database of its own; and as behind a pooler, without prepared statements."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = PostgresStore(shared().fresh("partitioned") + "&partitions=4&pooler=transaction", now=self.clock)

    def kill(self, owner: str) -> None:
        self.store.abandon(owner)


class Pooled:
    """Through a transaction pooler, which hands every transaction to another backend; ``tests.postgres.pooler.WHICH`` says which one it is."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = PostgresStore(through_pooler(shared().fresh("pooled"), shared().folder), now=self.clock)

    def kill(self, owner: str) -> None:
        self.store.abandon(owner)


class Third:
    """What one more engine costs: ``third.py``."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = ThirdStore(str(folder / "third.db"), now=self.clock)

    def kill(self, owner: str) -> None:
        self.store.abandon(owner)


Harnesses = type[Memory] | type[Sqlite] | type[Workspace] | type[Postgres] | type[Partitioned] | type[Pooled] | type[Third]


IDS = {Pooled: "postgres_pooled", Partitioned: "postgres_partitioned"}
STORES = [Memory, Sqlite, Workspace, Postgres, Pooled, Third, pytest.param(Partitioned, marks=pytest.mark.heavy)]


@pytest.mark.parametrize("harness", STORES, ids=lambda h: IDS.get(h, h.__name__.lower()))
@pytest.mark.parametrize("name", CASES)
def test_conformance(name: str, harness: Harnesses, tmp_path: Path) -> None:
    async def run() -> None:
        h = harness(tmp_path)
        await h.store.open()
        try:
            await CASES[name](h)
        finally:
            await h.store.close()

    asyncio.run(run())
