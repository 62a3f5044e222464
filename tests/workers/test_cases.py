"""What becomes of runs whose workers come and go, by the numbers of the cases, over each kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, thread
from holdfast.testing import World
from holdfast.testing.world import Host
from tests.postgres.server import shared

PLACES: dict[str, Callable[[Path], str]] = {"sqlite": lambda folder: f"sqlite:///{folder}/a.db", "postgres": lambda folder: shared().fresh()}


class Count(State):
    n: int = 0


class Chat(State):
    say: str
    log: Annotated[list[str], append, thread]


def of_two(second: Callable[[], Any]) -> Graph[Count]:
    graph = Graph("two", Count, version="1")
    graph.node("one", start=True)(lambda state: {"n": state.n + 1})

    @graph.node("two", after="one")
    async def two(state: Count) -> dict[str, int]:
        await second()
        return {"n": state.n + 1}

    return graph


def test_a_step_that_kills_its_workers_ends_failed(each_world: World) -> None:
    """T-77: takeovers have a budget of their own; the step has not failed once. A person may resume it."""
    world, hosts, calm = each_world, list[Host](), False

    async def second() -> None:
        if not calm:
            hosts[-1].kill()
            await world.clock.sleep(1)

    graph = of_two(second)

    async def story() -> None:
        nonlocal calm
        await world.store.open()
        client = await world.host(graph)
        run = await client.do(client.rt.submit(graph, {}))
        while not (await client.rt.get(run.run_id)).record.terminal:
            assert len(hosts) < 20, "its budget ends"
            hosts.append(await world.host(graph))
            hosts[-1].start(hosts[-1].rt.worker())
            await world.clock.sleep(5)
        done = await client.rt.get(run.run_id)
        assert (done.status, done.stop_reason) == ("failed", "takeover_limit")
        kinds = [e.type for e in await client.rt.events(run.run_id)]
        assert kinds.count("attempt.taken_over") == len(hosts) - 2 > 2 and "step.failed" not in kinds
        calm = True
        assert (await client.do(client.rt.resume(run.run_id, acknowledge="takeover_limit"))).state.n == 2
        await world.assert_whole()

    world.run(story())


def test_three_deploys_during_one_long_step_retire_no_run(each_world: World) -> None:
    """X-07: each begins the step again: one worker is told to drain and ended before the step is, one is killed, one is lost with its machine."""
    world, begun = each_world, list[float]()

    async def second() -> None:
        begun.append(world.clock.elapsed)
        await world.clock.sleep(40)

    graph = of_two(second)

    async def story() -> None:
        await world.store.open()
        client = await world.host(graph)
        run = await client.do(client.rt.submit(graph, {}))
        for number, proven in enumerate((True, True, False)):
            host = await world.host(graph, proven=proven)
            host.start(host.rt.worker())
            await world.clock.sleep(20)
            assert len(begun) == number + 1
            if number == 0:
                host.rt.drain()
                await world.clock.sleep(5)
            host.kill(proven=proven)
            await world.clock.sleep(40)
        last = await world.host(graph)
        last.start(last.rt.worker())
        await world.clock.sleep(60)
        done = await client.rt.get(run.run_id)
        assert (done.status, done.state.n, len(begun)) == ("completed", 2, 4)
        await world.assert_whole()

    world.run(story())


@pytest.mark.parametrize("place", PLACES)
async def test_four_at_once_on_one_thread_all_count_in_order(place: str, tmp_path: Path) -> None:
    """L-02: two processes, two invocations each, and a worker."""
    graph: Graph[Chat] = Graph("chat", Chat, version="1")

    @graph.node(start=True)
    async def turn(state: Chat, ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": state.say}

    url = PLACES[place](tmp_path)
    async with Runtime(url, skills=[graph]) as here, Runtime(url, skills=[graph]) as there:
        stop = asyncio.Event()
        working = asyncio.ensure_future(there.worker(stop=stop))
        four = await asyncio.gather(*(rt.invoke(graph, {"say": str(n)}, thread_id="t") for n, rt in enumerate((here, there, here, there))))
        runs = [run for run in four if await here.result(run.run_id, timeout=60)]
        runs = [await here.get(run.run_id) for run in runs]
        last = await here.invoke(graph, {"say": "4"}, thread_id="t")
        stop.set()
        await working
    assert [run.status for run in runs] == ["completed"] * 4
    assert sorted(len(run.state.log) for run in runs) == [1, 2, 3, 4], "each saw all that came before it"
    assert sorted(last.state.log) == ["0", "1", "2", "3", "4"] and last.state.log[-1] == "4"


@pytest.mark.parametrize("place", PLACES)
async def test_three_that_wait_in_a_lane_outlive_their_process_in_order(place: str, tmp_path: Path) -> None:
    """T-84."""
    said: list[str] = []
    graph: Graph[Chat] = Graph("chat", Chat, version="1")

    @graph.node(start=True)
    async def turn(state: Chat, ctx: Context) -> dict[str, Any]:
        said.append(state.say)
        return {"log": state.say}

    url = PLACES[place](tmp_path)
    async with Runtime(url, skills=[graph]) as rt:
        for n in range(3):
            await rt.submit(graph, {"say": str(n)}, thread_id="t")
    async with Runtime(url, skills=[graph]) as rt:
        await rt.worker(until_idle=True, concurrency=3)
        runs = await rt.runs(thread_id="t")
    assert said == ["0", "1", "2"] and [run.status for run in runs] == ["completed"] * 3


@pytest.mark.parametrize("place", PLACES)
async def test_the_first_runs_of_a_process_may_begin_at_once(place: str, tmp_path: Path) -> None:
    """The process is registered once, whoever is first."""
    graph = of_two(lambda: asyncio.sleep(0))
    async with Runtime(PLACES[place](tmp_path), skills=[graph]) as rt:
        runs = await asyncio.gather(*(rt.invoke(graph, {}) for _ in range(5)))
        assert [run.state.n for run in runs] == [2] * 5 and len(await rt.workers()) == 1
