"""A node that was left by an error is entered again and goes another way: what it did on its way out answers no other call (§4.12)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, State, flow
from holdfast.authoring import Skill

done: list[str] = []
slow = True
began, cleaned = asyncio.Event(), asyncio.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    global slow, began, cleaned
    slow, began, cleaned = True, asyncio.Event(), asyncio.Event()
    done.clear()


async def work() -> None:
    done.append("work")
    began.set()
    if slow:
        await asyncio.Event().wait()


async def lose() -> None:
    done.append("work")
    if slow:
        raise ConnectionError("lost")


async def say(what: str) -> str:
    done.append(what)
    if what == "clean":
        cleaned.set()
    return what


def clean() -> None:
    done.append("clean")


async def first(ctx: Context, how: str, fails: bool) -> None:
    fn = lose if fails else work
    match how:
        case "plain":
            await fn()
        case "step":
            await ctx.step(fn)
        case "gather":
            await ctx.gather(ctx.step(fn), ctx.step(say, "beside"))
        case "map":

            async def item(n: int) -> None:
                try:
                    await (ctx.step(fn) if n else ctx.step(say, "beside"))
                finally:
                    await ctx.step(say, f"end {n}")

            await ctx.map(item, [0, 1])


async def body(ctx: Context, how: str, last: str, fails: bool) -> str:
    try:
        await first(ctx, how, fails)
        await ctx.step(say, "b")
        await ctx.step(say, "c")
        return "ok"
    finally:
        match last:
            case "effect":
                await ctx.effect(clean, side_effects="write")
            case "gather":
                await ctx.gather(ctx.step(say, "clean"))
            case _:
                await ctx.step(say, "clean")


def made(how: str, last: str, *, fails: bool, graph: bool = False, **options: Any) -> Skill:
    if graph:
        g = Graph("f", version="1")

        @g.node(start=True, **options)
        async def node(state: State, ctx: Context) -> None:
            await body(ctx, how, last, fails)

        return g

    @flow("f", version="1")
    async def f(ctx: Context) -> str:
        return await body(ctx, how, last, fails)

    return f


async def until_it_works(rt: Runtime, skill: Skill) -> tuple[asyncio.Task[Any], str]:
    running: asyncio.Task[Any] = asyncio.ensure_future(rt.invoke(skill, {}))  # type: ignore[call-overload]
    await began.wait()
    for _ in range(20):  # what runs beside it comes to its end
        await rt.events((await rt.runs())[0].run_id)
    return running, (await rt.runs())[0].run_id


async def gone_on_with(url: str, skill: Skill, run_id: str, **options: Any) -> list[str]:
    """What the rest of the run does, in another process."""
    global slow
    slow, before = False, len(done)
    async with Runtime(url, skills=[skill]) as rt:
        run = await rt.resume(run_id, **options)
        assert run.condition == "done", run.error
        rest = done[before:]
        assert await rt.check() == []
        done.clear()
        again = await rt.replay(run_id)
        assert (again.condition, again.result) == ("done", run.result), again.error
        assert set(done) <= {"work"}, "a replay does nothing that is on record"
        return rest


HOW = ["plain", "step", "gather", "map"]
LAST = ["step", "effect", "gather"]


def rest_of(how: str) -> list[str]:
    return ["work", *(["end 1"] if how == "map" else []), "b", "c", "clean"]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("how", HOW)
async def test_after_a_failure(how: str, last: str, graph: bool, tmp_path: Path) -> None:
    url, skill = f"sqlite:///{tmp_path}/runs.db", made(how, last, fails=True, graph=graph)
    async with Runtime(url, skills=[skill]) as rt:
        run = await rt.invoke(skill, {})  # type: ignore[call-overload]
        assert run.condition == "failed" and done[-1] == "clean"
        replayed = await rt.replay(run.run_id)
        assert replayed.stop_reason == run.stop_reason, "it fails as its source did"
    assert [x for x in await gone_on_with(url, skill, run.run_id, acknowledge=run.stop_reason) if x != "beside"] == rest_of(how)


@pytest.mark.parametrize("last", LAST)
@pytest.mark.parametrize("how", HOW)
async def test_after_a_cancel(how: str, last: str, tmp_path: Path) -> None:
    """§2.3, §10.12."""
    url, skill = f"sqlite:///{tmp_path}/runs.db", made(how, last, fails=False)
    async with Runtime(url, skills=[skill]) as rt:
        running, run_id = await until_it_works(rt, skill)
        await rt.cancel(run_id)
        assert (await running).condition == "cancelled"
    assert [x for x in await gone_on_with(url, skill, run_id) if x not in ("beside", "end 0")] == rest_of(how)


@pytest.mark.parametrize("how", HOW)
async def test_after_its_caller_has_gone(how: str, tmp_path: Path) -> None:
    """§10.13: as by ``asyncio.wait_for(rt.invoke(…), 5)``; the run is handed back, and whoever comes next does all that is left."""
    url, skill = f"sqlite:///{tmp_path}/runs.db", made(how, "step", fails=False)
    async with Runtime(url, skills=[skill]) as rt:
        running, run_id = await until_it_works(rt, skill)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert done[-1] == "clean"
    assert [x for x in await gone_on_with(url, skill, run_id) if x not in ("beside", "end 0")] == rest_of(how)


async def test_a_retry_of_its_node() -> None:
    """§10.9."""
    global slow
    skill = made("plain", "step", fails=True, graph=True, retry=Retry(2, base_us=0, on=(ConnectionError,)))

    async with Runtime("memory:", skills=[skill]) as rt:
        running: asyncio.Task[Any] = asyncio.ensure_future(rt.invoke(skill, {}))  # type: ignore[call-overload]
        await cleaned.wait()
        slow = False
        assert (await running).condition == "done"
    assert done == ["work", "clean", "work", "b", "c", "clean"]


async def test_what_a_handler_did_that_went_on_is_kept() -> None:
    """L-15: the error is caught, and the handler's call stands; another error is raised later."""
    global slow

    @flow("f", version="1")
    async def f(ctx: Context) -> str:
        try:
            await ctx.step(lose)
        except ConnectionError:
            await ctx.step(say, "handled")
        await ctx.step(say, "b")
        if slow:
            raise ValueError("later")
        return "ok"

    async with Runtime("memory:", skills=[f]) as rt:
        run = await rt.invoke(f)
        assert run.condition == "failed"
        slow = False
        assert (await rt.resume(run.run_id, acknowledge=run.stop_reason)).condition == "done"
    assert done == ["work", "handled", "b"]


async def test_what_its_caller_handles_is_nothing_of_the_node() -> None:
    """The run is begun in an ``except`` of its caller: its calls are all made while an error is handled."""
    global slow

    @flow("f", version="1")
    async def f(ctx: Context) -> str:
        await ctx.step(say, "a")
        if slow:
            raise ValueError("own")
        return "ok"

    async with Runtime("memory:", skills=[f]) as rt:
        try:
            raise KeyError("the caller's")
        except KeyError:
            run = await rt.invoke(f)
        assert run.condition == "failed"
        slow = False
        assert (await rt.resume(run.run_id, acknowledge=run.stop_reason)).condition == "done"
    assert done == ["a"]


async def test_after_its_time_was_up(tmp_path: Path) -> None:
    """§10.10."""
    url, skill = f"sqlite:///{tmp_path}/runs.db", made("plain", "step", fails=False, graph=True, timeout=0.05)
    async with Runtime(url, skills=[skill]) as rt:
        run = await rt.invoke(skill, {})  # type: ignore[call-overload]
        assert run.stop_reason == "step_timeout" and done == ["work", "clean"]
    assert await gone_on_with(url, skill, run.run_id, acknowledge=run.stop_reason) == ["work", "b", "c", "clean"]
