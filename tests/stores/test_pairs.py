"""Two stores over one database, under contention."""

import asyncio
from pathlib import Path

import pytest
from tests.postgres.pooler import through_pooler
from tests.postgres.server import shared

from holdfast.stores import MemoryStore, PostgresStore, SqliteStore
from holdfast.testing import conformance_limits
from holdfast.testing.conformance import Clock
from holdfast.testing.conformance_pairs import PAIRS

assert conformance_limits.__doc__, "imported for its cases"


class Sqlite:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.one = SqliteStore(folder / "store.db", now=self.clock)
        self.other = SqliteStore(folder / "store.db", now=self.clock)


class Postgres:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        url = shared().fresh()
        self.one = PostgresStore(url, now=self.clock)
        self.other = PostgresStore(url, now=self.clock)


class Memory:
    """One store by two hands: what is written by the one is contended by the other."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.one = self.other = MemoryStore(now=self.clock)


class Partitioned:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        url = shared().fresh("partitioned") + "&partitions=4"
        self.one = PostgresStore(url, now=self.clock)
        self.other = PostgresStore(url, now=self.clock)


class Pooled:
    """One of the two through a transaction pooler."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        url = shared().fresh("pooled")
        self.one = PostgresStore(through_pooler(url, shared().folder), now=self.clock)
        self.other = PostgresStore(url, now=self.clock)


Stores = type[Memory] | type[Sqlite] | type[Postgres] | type[Partitioned] | type[Pooled]
STORES = {"memory": Memory, "sqlite": Sqlite, "postgres": Postgres, "postgres_partitioned": Partitioned, "postgres_pooled": Pooled}


@pytest.mark.parametrize(
    "stores", [pytest.param(s, id=name, marks=[pytest.mark.heavy] if s is Partitioned else []) for name, s in STORES.items()]
)
@pytest.mark.parametrize("name", PAIRS)
def test_pair(name: str, stores: Stores, tmp_path: Path) -> None:
    async def run() -> None:
        p = stores(tmp_path)
        await p.one.open()
        await p.other.open()
        try:
            await PAIRS[name](p)
        finally:
            await p.one.close()
            await p.other.close()

    asyncio.run(run())
