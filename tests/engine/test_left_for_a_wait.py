"""A node that rests in a wait has not ended: what it does on its way out is done when it truly leaves (§5.12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import Context, Flow, Graph, Runtime, State, flow
from holdfast.handle import Run

done: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


def lock() -> None:
    done.append("locked")


def unlock() -> None:
    done.append("unlocked")


def write(line: str) -> str:
    done.append(line)
    return line


@asynccontextmanager
async def locked(ctx: Context) -> AsyncIterator[None]:
    await ctx.effect(lock, side_effects="write")
    try:
        yield
    finally:
        await ctx.effect(unlock, side_effects="write")


async def answered(skill: Flow[Any, Any] | Graph[Any], *names: str) -> Run[Any]:
    """The run, with these signals sent one after another while it rests."""
    async with Runtime("memory:", skills=[skill]) as rt:
        run: Run[Any] = await rt.invoke(skill, {})  # type: ignore[arg-type]
        for name in names:
            assert run.condition == "awaiting_signal", run.error
            assert [w.name for w in run.waits] == [name]
            done.append(name)
            await rt.signal(run.run_id, name, name)
            run = await rt.resume(run.run_id)
        assert await rt.check(run.run_id) == []
        return run


async def test_what_finally_does_is_done_once_after_the_wait() -> None:
    """§5.12: nothing of it is done, or on record, while the node only rests."""

    @flow("f")
    async def f(ctx: Context) -> Any:
        await ctx.effect(lock, side_effects="write")
        try:
            first = await ctx.wait("a")
            await ctx.step(write, "between")
            return [first, await ctx.wait("b")]
        finally:
            await ctx.effect(unlock, side_effects="write")

    run = await answered(f, "a", "b")
    assert run.result == ["a", "b"], run.error
    assert done == ["locked", "a", "between", "b", "unlocked"]


async def test_a_context_manager_ends_once_after_the_wait() -> None:
    """§5.12, in a graph and around a scope, and again in one branch of it."""
    g = Graph("g")

    @g.node(start=True)
    async def node(state: State, ctx: Context) -> None:
        async with locked(ctx):
            await ctx.gather(ctx.wait("a"), ctx.step(write, "beside"))
            await ctx.wait("b")

    run = await answered(g, "a", "b")
    assert run.condition == "done", run.error
    assert done == ["locked", "beside", "a", "b", "unlocked"]


async def test_a_branch_that_rests_does_nothing_on_its_way_out() -> None:
    """§5.12: its siblings go on meanwhile, each with a way out of its own."""

    async def item(name: str) -> str:
        async with locked(ctxs[-1]):
            if name == "a":
                await ctxs[-1].wait("a")
            return await ctxs[-1].step(write, name)

    ctxs: list[Context] = []

    @flow("f")
    async def f(ctx: Context) -> list[str]:
        ctxs.append(ctx)
        return await ctx.map(item, ["a", "c"])

    run = await answered(f, "a")
    assert run.result == ["a", "c"], run.error
    answer = done.index("a")
    assert sorted(done[:answer]) == ["c", "locked", "locked", "unlocked"]
    assert done[answer:] == ["a", "a", "unlocked"]


@pytest.mark.parametrize("how", ["step", "now", "wait", "gather", "grouped", "in time"])
async def test_no_kind_of_call_is_made_on_the_way_out(how: str) -> None:
    """§5.12."""

    async def clean(ctx: Context) -> None:
        match how:
            case "step" | "in time":
                await ctx.step(write, "cleaned")
            case "now":
                write(f"cleaned {ctx.now():%Y}"[:7])
            case "wait":
                write("cleaned" if await ctx.wait("c") else "")
            case _:
                await ctx.gather(ctx.step(write, "cleaned"))

    @flow("f")
    async def f(ctx: Context) -> Any:
        try:
            if how == "grouped":
                async with asyncio.TaskGroup() as group:
                    waiting = group.create_task(ctx.wait("a"))
                return waiting.result()
            if how == "in time":
                return await asyncio.wait_for(ctx.wait("a"), 30)
            return await ctx.wait("a")
        finally:
            await clean(ctx)

    run = await answered(f, "a", *(["c"] if how == "wait" else []))
    assert run.result == "a", run.error
    assert done == ["a", *(["c"] if how == "wait" else []), "cleaned"]


async def test_a_call_after_the_way_out_was_swallowed_is_not_made() -> None:
    """§5.12: the step fails, before anything is done that its record does not fit."""

    @flow("f")
    async def f(ctx: Context) -> None:
        try:
            await ctx.wait("a")
        except BaseException as e:
            error = e
        await ctx.step(write, f"caught {type(error).__name__}")

    run = await answered(f)
    assert run.stop_reason == "suspension_swallowed"
    assert done == []


async def test_tasks_beside_one_that_rests_make_their_calls() -> None:
    """§5.2: another line of control of the same scope is not on its way out."""

    @flow("f")
    async def f(ctx: Context) -> list[Any]:
        async def late() -> str:
            await asyncio.sleep(0)
            return await ctx.step(write, "beside", key="beside")

        asked, beside = await asyncio.gather(ctx.wait("a"), late(), return_exceptions=True)
        if isinstance(asked, BaseException):
            raise asked
        return [asked, beside]

    run = await answered(f, "a")
    assert run.result == ["a", "beside"], run.error
    assert done == ["beside", "a"]
