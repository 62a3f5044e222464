"""More processes than a server has connections for: each gets by with one, and all of them work (§10)."""

from __future__ import annotations

import asyncio
import contextlib

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


async def test_what_others_need_more_is_given_back() -> None:
    """A store that waits for news sees that the server has become crowded: it keeps one connection, and renews its lease over that one."""
    server = Server(settings={"max_connections": "20"}).create()
    store = PostgresStore(server.url)
    mine = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'holdfast'"
    with contextlib.ExitStack() as stack:
        stack.callback(server.remove)
        await store.open()
        await store.register("w", TTL)
        assert await store.renew("w", TTL) > 0
        await asyncio.gather(*(store.workers() for _ in range(3)))
        look = stack.enter_context(server.admin())
        begun = look.execute(mine).fetchone()
        for _ in range(11):
            stack.enter_context(server.admin())
        async with asyncio.timeout(30):
            while look.execute(mine).fetchone() != (1,):
                await store.wait_for_change(0.2)
        assert await store.renew("w", TTL) > 0
        assert (begun, look.execute(mine).fetchone()) == ((4,), (1,))
        await store.close()
