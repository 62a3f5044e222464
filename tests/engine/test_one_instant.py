"""A request is of one moment: who takes it in looks at the clock, and all that comes of it goes by what that showed."""

from __future__ import annotations

from holdfast import Graph, Runtime, State
from holdfast.core.lease import at_once
from holdfast.stores import MemoryStore


class Once(State):
    n: int = 0


class Ticking:
    """A clock that moves on by a second with each look."""

    def __init__(self) -> None:
        self.at = 1_700_000_000_000_000
        self.looks = 0

    def now(self) -> int:
        self.looks += 1
        self.at += 1_000_000
        return self.at


async def test_a_run_is_submitted_in_one_moment() -> None:
    """Its id, its first event, since when it is due and what is shown of it say the same, however far the clock moves meanwhile."""
    clock, graph = Ticking(), Graph("once", Once)
    graph.node("n", start=True)(lambda state: None)
    store = MemoryStore(now=clock.now)
    async with Runtime(store) as rt:
        await rt.submit(graph, {})  # limits and workers are known for a second from here on
        before, looks = clock.at, clock.looks
        run = await rt.submit(graph, {})
        assert clock.looks == looks + 1, "one look"
        at = before + 1_000_000
        stands = await store.get(run.run_id)
        assert stands is not None and stands[0] == run.record
        assert run.record.created_at == at and run.lease.due == stands[1].due == at_once(at)


async def test_one_that_is_delayed_begins_by_that_moment_too() -> None:
    clock, graph = Ticking(), Graph("once", Once)
    graph.node("n", start=True)(lambda state: None)
    async with Runtime(MemoryStore(now=clock.now)) as rt:
        run = await rt.submit(graph, {}, delay=60.0)
        assert run.lease.due == run.record.not_before
        assert run.record.not_before is not None and 0 < run.record.created_at - (run.record.not_before - 60_000_000) <= 2_000_000
