"""Taking over what a dead owner left behind (§10.6)."""

from __future__ import annotations

import pytest

from holdfast import Graph, Runtime, State
from holdfast.core.errors import StoreError
from holdfast.core.status import Condition, Status
from holdfast.stores.memory import MemoryStore
from tests.inside import fall_silent, lower


class Count(State):
    n: int = 0


class Dying(MemoryStore):
    """A store whose owner dies with its k-th commit: that and all its later ones are refused, and it is proven dead."""

    lives = 0
    dead = False

    async def commit(self, commit):  # type: ignore[no-untyped-def]
        if self.lives == 1:
            self.lives, self.dead = 0, True
            for worker in await self.workers():
                self.abandon(worker.owner)
        if self.dead:
            raise StoreError("killed here")
        self.lives = max(0, self.lives - 1)
        return await super().commit(commit)

    async def register(self, owner: str, ttl_us: int) -> None:
        self.dead = False
        await super().register(owner, ttl_us)


def counting() -> tuple[Graph[Count], list[str]]:
    calls: list[str] = []
    graph = Graph("count", Count)

    @graph.node(start=True)
    async def one(state: Count) -> dict[str, int]:
        calls.append("one")
        return {"n": state.n + 1}

    @graph.node(after="one")
    async def two(state: Count) -> dict[str, int]:
        calls.append("two")
        return {"n": state.n + 1}

    return graph, calls


async def left_behind(store: Dying, graph: Graph[Count], **options: object) -> str:
    """A run whose owner died after its first step."""
    rt = await Runtime(store, skills=[graph]).__aenter__()
    store.lives = 3
    with pytest.raises(StoreError):
        await rt.invoke(graph, {}, **options)
    fall_silent(rt)
    return (await rt.runs())[0].run_id


async def test_a_worker_goes_on_where_a_dead_owner_stood() -> None:
    """§10.6, T-86: finished work is not redone, and the events say who took over."""
    store = Dying()
    graph, calls = counting()
    run_id = await left_behind(store, graph)
    calls.clear()
    async with Runtime(store, skills=[graph]) as rt:
        await rt.recover()
        run = await rt.get(run_id)
        kinds = [e.type for e in await rt.events(run_id)]
    assert run.status is Status.COMPLETED
    assert run.state.n == 2
    assert calls == ["two"]
    assert kinds.count("run.started") == 1
    assert [k for k in kinds if k in ("attempt.lease_expired", "attempt.taken_over", "run.recovered")] == [
        "attempt.lease_expired",
        "attempt.taken_over",
        "run.recovered",
    ]


async def test_a_run_on_hold_waits_for_a_person() -> None:
    """§10.6: ``recovery="hold"`` stays interrupted until somebody resumes it; then it goes on."""
    store = Dying()
    graph, calls = counting()
    run_id = await left_behind(store, graph, recovery="hold")
    calls.clear()
    async with Runtime(store, skills=[graph]) as rt:
        await rt.recover()
        assert (await rt.get(run_id)).condition is Condition.INTERRUPTED
        await rt.recover()
        assert calls == []
        run = await rt.resume(run_id, actor="ada")
    assert run.status is Status.COMPLETED
    assert calls == ["two"]


async def test_a_step_that_kills_its_owners_ends_failed() -> None:
    """T-77, §10.6: takeovers have a budget of their own; out of it the run fails, and a person may resume it."""
    store = Dying()
    graph, _ = counting()
    run_id = await left_behind(store, graph)
    for _ in range(2):
        rt = await Runtime(store, skills=[graph]).__aenter__()
        store.lives = 2  # its takeover is on record, then it dies in the step
        with pytest.raises(StoreError):
            await rt.resume(run_id)
        fall_silent(rt)
    async with Runtime(store, skills=[graph]) as rt:
        lower(rt, takeovers=2)
        run = await rt.resume(run_id)
        assert run.status is Status.FAILED
        assert run.stop_reason == "takeover_limit"
        assert (await rt.resume(run_id, acknowledge="takeover_limit")).status is Status.COMPLETED
