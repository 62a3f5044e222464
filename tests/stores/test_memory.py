"""What only the store in memory has: an owner that was given up is gone, as a process that was killed is."""

from __future__ import annotations

from holdfast.stores import MemoryStore
from holdfast.testing.conformance import TTL


async def test_whoever_is_gone_renews_nothing() -> None:
    """§10.3: 0 says so; an owner that nobody knows, one that has retired, and one that was given up while it is still registered."""
    store = MemoryStore()
    await store.register("w", TTL)
    await store.register("v", TTL)
    assert await store.renew("w", TTL) > store.now()
    await store.retire("v")
    store.abandon("w")
    assert [await store.renew(owner, TTL) for owner in ("w", "v", "nobody")] == [0, 0, 0]
