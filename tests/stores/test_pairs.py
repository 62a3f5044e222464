"""Two stores over one database, under contention."""

import asyncio
from pathlib import Path

import pytest
from tests.postgres.server import shared

from holdfast.stores import PostgresStore, SqliteStore
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


@pytest.mark.parametrize("stores", [Sqlite, Postgres], ids=lambda s: s.__name__.lower())
@pytest.mark.parametrize("name", PAIRS)
def test_pair(name: str, stores: type[Sqlite] | type[Postgres], tmp_path: Path) -> None:
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
