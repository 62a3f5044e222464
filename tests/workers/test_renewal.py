"""Renewals of a lease while the store is away (§10.3)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.engine.base.services import Heartbeat
from holdfast.testing import SimulatedCrash, VirtualClock

TTL_US = 600_000_000  # renewed every 200 s where all is well


class Away:
    """A store that fails at the first renewal."""

    def __init__(self) -> None:
        self.asked = 0
        self.again = threading.Event()

    async def renew(self, owner: str, ttl_us: int) -> int:
        self.asked += 1
        if self.asked == 1:
            raise StoreUnavailable("it is away", hint="")
        self.again.set()
        return 1


def test_a_renewal_that_failed_is_tried_again_within_a_second() -> None:
    """However long the lease is: whoever waits a third of it has that much less of it left."""
    store: Any = Away()
    clock = VirtualClock()
    heart = Heartbeat(store, clock, "w", TTL_US)
    heart.start()
    try:
        clock.advance(TTL_US / 1_000_000)
        assert not heart.confirm()  # out of turn, and the store is away
        assert store.again.wait(timeout=30), "it waited for a third of the lease"
        assert store.asked == 2
    finally:
        heart.stop()


class Dead:
    """The store as a simulated process sees it that was killed."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)

    async def renew(self, owner: str, ttl_us: int) -> int:
        self.asked.release()
        raise SimulatedCrash


def test_the_thread_of_a_simulated_process_that_died_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process renews nothing and prints nothing; what it would print was the failure of whatever test ran at that moment."""
    said: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", said.append)
    store: Any = Dead()
    heart = Heartbeat(store, VirtualClock(), "w", 30_000)
    heart.start()
    assert store.asked.acquire(timeout=60)
    heart.stop()
    assert (said, store.asked.acquire(blocking=False), heart.failed) == ([], False, None)
