"""Ctrl-C while a node computes (X-18): `asyncio.run` cancels its main task in the midst of the node's code. The run is handed back, whatever the node makes of it,
and the process ends of Ctrl-C.

The key is pressed by the node itself, so that the signal arrives in its code for sure. A node that cancels its own task fails as before.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State, run
from holdfast.core.status import Status
from holdfast.handle import Run


class Work(State):
    n: int = 0


Code = Callable[..., Awaitable[dict[str, int]]]
PRESSED: list[int] = []


def press() -> None:
    """Once in a test: at the second one asyncio raises KeyboardInterrupt at once."""
    if not PRESSED:
        PRESSED.append(1)
        signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """asyncio takes SIGINT over only from Python's own handler."""
    PRESSED.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def pressing(n: int) -> int:
    press()
    return n


async def at_once(state: Work) -> dict[str, int]:
    press()
    return {"n": 2}


async def before_it_waits(state: Work) -> dict[str, int]:
    press()
    await asyncio.sleep(0)
    return {"n": 2}


async def after_it_waited(state: Work) -> dict[str, int]:
    await asyncio.sleep(0)
    press()
    return {"n": 2}


async def and_fails(state: Work) -> dict[str, int]:
    press()
    raise ValueError("it was interrupted")


async def and_exits(state: Work) -> dict[str, int]:
    press()
    raise SystemExit(3)


async def and_goes_on(state: Work) -> dict[str, int]:
    press()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        return {"n": 2}
    raise AssertionError("it was not canceled")


async def and_tidies_up(state: Work) -> dict[str, int]:
    press()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError as e:
        raise ValueError("it was interrupted") from e
    raise AssertionError("it was not canceled")


async def in_time(state: Work) -> dict[str, int]:
    async with asyncio.timeout(60):
        press()
        await asyncio.sleep(0)
    return {"n": 2}


async def under_another_handler(state: Work) -> dict[str, int]:
    """An application has put its own handler before that of asyncio."""
    before: Any = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda number, frame: before(number, frame))
    press()
    signal.signal(signal.SIGINT, before)
    return {"n": 2}


async def with_its_context(state: Work, ctx: Context) -> dict[str, int]:
    press()
    return {"n": 2}


async def in_a_step(state: Work, ctx: Context) -> dict[str, int]:
    return {"n": await ctx.step(pressing, 2)}


async def in_an_effect(state: Work, ctx: Context) -> dict[str, int]:
    return {"n": await ctx.effect(pressing, 2)}


async def in_a_plain_step(state: Work, ctx: Context) -> dict[str, int]:
    """What a thread does meets no signal; what waits for it does."""
    await ctx.step(abs, 1)
    press()
    return {"n": 2}


async def in_a_branch(state: Work, ctx: Context) -> dict[str, int]:
    await ctx.gather(ctx.step(pressing, 1), ctx.step(pressing, 2))
    return {"n": 2}


CODES: list[Code] = [
    at_once, before_it_waits, after_it_waited, and_fails, and_exits, in_time, under_another_handler, with_its_context, in_a_step, in_an_effect, in_a_plain_step,
    in_a_branch,
]


def graph_of(code: Code, **options: Any) -> Graph[Work]:
    graph = Graph("work", Work)

    @graph.node(start=True)
    async def first(state: Work) -> dict[str, int]:
        return {"n": 1}

    graph.node(after="first", name="compute", **options)(code)

    @graph.node(after="compute")
    async def last(state: Work) -> dict[str, int]:
        return {"n": 3}

    return graph


async def runs_in(path: Path, graph: Graph[Work]) -> list[Run[Any]]:
    async with Runtime(f"sqlite:///{path}/runs.db", skills=[graph]) as rt:
        return list(await rt.runs())


async def alone(rt: Runtime, graph: Graph[Work]) -> None:
    await rt.invoke(graph, {})


async def beside_others(rt: Runtime, graph: Graph[Work]) -> None:
    await asyncio.gather(*[rt.invoke(graph, {}) for _ in range(3)])


async def in_a_group(rt: Runtime, graph: Graph[Work]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(rt.invoke(graph, {}))


async def by_a_worker(rt: Runtime, graph: Graph[Work]) -> None:
    await rt.submit(graph, {})
    await rt.worker()


def interrupt(path: Path, graph: Graph[Work], how: Callable[[Runtime, Graph[Work]], Awaitable[None]]) -> list[Run[Any]]:
    async def main() -> None:
        async with Runtime(f"sqlite:///{path}/runs.db", skills=[graph]) as rt:
            await how(rt, graph)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    return asyncio.run(runs_in(path, graph))


@pytest.mark.parametrize("how", [alone, beside_others, in_a_group])
@pytest.mark.parametrize("code", CODES)
def test_the_run_is_handed_back_and_the_process_ends(tmp_path: Path, code: Code, how: Callable[[Runtime, Graph[Work]], Awaitable[None]]) -> None:
    found = interrupt(tmp_path, graph_of(code), how)
    assert [(r.status, r.error) for r in found] == [(Status.RUNNING, None)] * len(found) != []


@pytest.mark.parametrize("code", [and_goes_on, and_tidies_up])
def test_a_node_does_not_keep_it_for_itself(tmp_path: Path, code: Code) -> None:
    (found,) = interrupt(tmp_path, graph_of(code), alone)
    assert (found.status, found.error) == (Status.RUNNING, None)


def test_a_worker_ends(tmp_path: Path) -> None:
    """Its runs have tasks of their own, which are canceled once it has heard of it."""
    (found,) = interrupt(tmp_path, graph_of(at_once), by_a_worker)
    assert found.error is None


def test_it_is_no_attempt_that_is_tried_again(tmp_path: Path) -> None:
    (found,) = interrupt(tmp_path, graph_of(and_fails, retry=3), alone)
    assert (found.status, found.error) == (Status.RUNNING, None)


def test_the_code_around_a_node_is_interrupted_like_it(tmp_path: Path) -> None:
    def asked(state: Work) -> bool:
        press()
        return True

    (found,) = interrupt(tmp_path, graph_of(in_time, when=asked), alone)
    assert (found.status, found.error) == (Status.RUNNING, None)


def test_the_run_goes_on_afterwards(tmp_path: Path) -> None:
    graph = graph_of(at_once)
    interrupt(tmp_path, graph, alone)

    async def again() -> Run[Any]:
        async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[graph]) as rt:
            await rt.worker(until_idle=True)
            return (await rt.runs())[0]

    found = asyncio.run(again())
    assert (found.status, found.state.n) == (Status.COMPLETED, 3)


def test_run_raises_it(tmp_path: Path) -> None:
    graph = graph_of(at_once)
    with pytest.raises(KeyboardInterrupt):
        run(graph, {}, store=f"sqlite:///{tmp_path}/runs.db")
    (found,) = asyncio.run(runs_in(tmp_path, graph))
    assert (found.status, found.error) == (Status.RUNNING, None)


@pytest.mark.parametrize("waits", [False, True])
def test_what_cancels_itself_fails_still(tmp_path: Path, waits: bool) -> None:
    async def code(state: Work) -> dict[str, int]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if waits:
            await asyncio.sleep(0)
        return {"n": 2}

    graph = graph_of(code)

    async def main() -> Run[Any]:
        async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[graph]) as rt:
            return await rt.invoke(graph, {})

    found = asyncio.run(main())
    assert found.error is not None and found.error.code == "cancelled_inside"
