"""More processes than a server has connections for: each gets by with one, and all of them work (§10)."""

from __future__ import annotations

import asyncio

from holdfast.core.errors import StoreUnavailable
from holdfast.stores import PostgresStore
from holdfast.testing.conformance import TTL, Script
from tests.postgres.server import Server

PROCESSES = 12


async def renewed(store: PostgresStore, owner: str) -> bool:
    """One renewal; the heartbeat tries again where there was no connection for it."""
    try:
        return bool(await store.renew(owner, TTL))
    except StoreUnavailable:
        return False


async def test_each_gets_by_with_one_connection() -> None:
    """Twelve stores of up to five connections each, on a server that has room for seventeen."""
    server = Server(settings={"max_connections": "20"}).create()
    stores = [PostgresStore(server.url) for _ in range(PROCESSES)]
    try:

        async def live(n: int, store: PostgresStore) -> None:
            await store.open()
            await store.register(f"w{n}", TTL)
            waiting = asyncio.ensure_future(store.wait_for_change(1.0))
            for k in range(3):
                script = await Script(store, f"r{n}x{k}").begin(f"w{n}")
                await asyncio.gather(script.steps(2), store.get(script.run_id), store.workers())
                while not await renewed(store, f"w{n}"):
                    await store.wait_for_change(0.1)
            await waiting

        async with asyncio.timeout(60):
            await asyncio.gather(*(live(n, s) for n, s in enumerate(stores)))
        assert await stores[0].verify() == []
    finally:
        await asyncio.gather(*(s.close() for s in stores))
        server.remove()
