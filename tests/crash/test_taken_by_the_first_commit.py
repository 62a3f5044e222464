"""A crash at every write of a worker that takes a lone run by its first commit (§1.11): the claim and the beginning are one write, so there is
nothing between them, and whatever becomes of that write the run is begun once."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.crash.worlds import line, stage
from tests.postgres.blocking import blocking
from tests.virtual import keep_in_virtual_time

from holdfast import logs
from holdfast.core.errors import HoldfastError
from holdfast.ports import Store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import Fault, SimulatedCrash, VirtualClock
from holdfast.testing.crash import Plan, at_write, never
from holdfast.testing.world import Host, World

Maker = Callable[[VirtualClock], Store]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def maker(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Maker:
    keep_in_virtual_time(monkeypatch)
    names = itertools.count()
    if request.param == "memory":
        return lambda clock: MemoryStore(now=clock.now)
    if request.param == "postgres":
        return lambda clock: blocking(clock.now)
    return lambda clock: SqliteStore(tmp_path / f"{next(names)}.db", now=clock.now)


def once(maker: Maker, plan: Plan) -> tuple[World, Host, Any, list[str]]:
    """A run is submitted by one process; a worker takes it, and dies or is refused as ``plan`` says; another worker goes on."""
    clock = VirtualClock()
    world = World(maker(clock), clock=clock)
    stage.enter(world)

    async def story() -> tuple[Host, Any, list[str]]:
        await world.store.open()
        skill = line()
        submitter = await world.host(skill)
        run = await submitter.do(submitter.rt.submit(skill, {"name": "Ada"}))
        first = await world.host(skill, plan=plan)
        try:
            await first.do(first.rt.worker(until_idle=True))
            await first.close()
        except (SimulatedCrash, HoldfastError):
            if not first.dead:
                first.kill()
        second = await world.host(skill)
        await second.do(second.rt.worker(until_idle=True))
        run = await second.do(second.rt.get(run.run_id))
        kinds = [e.type for e in await second.do(_events(second, run.run_id))]
        await second.close()
        await submitter.close()
        await world.assert_whole()
        return first, run, kinds

    with logs.mute():  # every crash here is on purpose
        return world, *world.run(story())


async def _events(host: Host, run_id: str) -> list[Any]:
    return list(await host.rt.events(run_id))


def test_a_crash_at_each_write_of_a_worker(maker: Maker) -> None:
    """Before the fused commit nobody has the run, and after it the worker has it and has begun it: no claim stands alone."""
    _, whole, run, kinds = once(maker, never)
    verbs = list(whole.connection.writes)
    assert run.status == "completed" and kinds.count("run.claimed") == kinds.count("run.started") == 1
    found = verbs.index("claim_or_load")
    assert verbs[found + 1] == "commit" and "claim" not in verbs[: found + 2], "the run's first commit takes it"
    for number, verb in enumerate(verbs, 1):
        for fault in Fault:
            _, _, run, kinds = once(maker, at_write(number, fault))
            about = number, verb, fault, kinds
            assert run.status == "completed" and kinds.count("run.started") == 1, about
            assert run.record.takeovers <= 1, about
            died = fault in (Fault.BEFORE, Fault.AFTER)
            if died and number == found + 2:  # the fused commit: before it the run is as it was born, after it it was begun by one that died
                assert kinds.count("run.claimed") == (1 if fault is Fault.BEFORE else 2), about
                assert ("attempt.taken_over" in kinds) is (fault is Fault.AFTER), about


def test_another_worker_is_first(maker: Maker) -> None:
    """Both have found the run; the commit of whoever is later is refused, and it finds nothing more to do. Nothing is told of that but to itself."""
    clock = VirtualClock()
    store: Any = maker(clock)
    between: list[Callable[[], Coroutine[Any, Any, None]]] = []

    async def found(*args: Any, **options: Any) -> Any:
        answer = await store.claim_or_load(*args, **options)
        if between:
            await between.pop()()
        return answer

    instead: Any = _Instead(store, claim_or_load=found)
    world = World(instead, clock=clock)
    stage.enter(world)

    async def story() -> tuple[Any, list[str], list[Any], list[str]]:
        await world.store.open()
        skill = line()
        told: list[Any] = []
        first, second = await world.host(skill), await world.host(skill)
        run = await first.do(first.rt.submit(skill, {"name": "Ada"}))

        taken: list[str] = []

        async def overtake() -> None:
            taken.append(run.run_id)
            await second.do(second.rt.worker(until_idle=True))  # between the look and the commit of the first

        between.append(overtake)
        await first.do(first.rt.worker(until_idle=True, on_report=told.append))
        run = await first.do(first.rt.get(run.run_id))
        kinds = [e.type for e in await first.do(_events(first, run.run_id))]
        await first.close()
        await second.close()
        await world.assert_whole()
        return run, kinds, told, taken

    run, kinds, told, taken = world.run(story())
    assert taken and run.status == "completed" and told == []
    assert kinds.count("run.claimed") == kinds.count("run.started") == 1


class _Instead:
    """A store with some verbs in the place of its own."""

    def __init__(self, store: Store, **verbs: Any) -> None:
        self._store = store
        self._verbs = verbs

    def __getattr__(self, name: str) -> Any:
        return self._verbs.get(name) or getattr(self._store, name)
