"""A ctx call that nobody awaits is told, and nothing is done on the strength of it (§4.12, §5)."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State, flow

paid: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    paid.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # Python warns of such a coroutine as well, when it is freed
        yield


async def pay(amount: int) -> str:
    paid["paid"] += amount
    return "paid"


async def number() -> int:
    return 1


async def _end(skill: Any) -> Any:
    async with Runtime("memory:", skills=[skill]) as rt:
        return await rt.invoke(skill, {})


async def test_a_question_that_nobody_awaits_lets_nothing_pass() -> None:
    """The coroutine of an approval is true; the payment behind it must not be made."""

    @flow("refund")
    async def refund(ctx: Context) -> Any:
        if ctx.approve("Pay?"):
            return await ctx.effect(pay, 7)
        return "denied"

    run = await _end(refund)
    assert run.stop_reason == "not_awaited" and not paid
    assert run.error.message == "ctx.approve was called without await, before ctx.effect"
    assert "await ctx.approve(…)" in run.error.hint


@pytest.mark.parametrize("last", [True, False])
async def test_a_call_that_is_dropped_or_kept_is_told_at_the_end_of_its_node(last: bool) -> None:
    @flow("kept")
    async def kept(ctx: Context) -> Any:
        forgotten = None if last else ctx.step(number)
        if last:
            ctx.sleep(5)
        return "done" if forgotten is None else "kept"

    run = await _end(kept)
    assert run.stop_reason == "not_awaited" and run.result is None
    assert run.error.message == f"kept returned, and ctx.{'sleep' if last else 'step'} was called without await"


async def test_in_a_node_of_a_graph_it_is_told_too() -> None:
    graph = Graph("graph", State)

    @graph.node(start=True)
    async def forget(state: State, ctx: Context) -> None:
        ctx.effect(pay, 7)

    run = await _end(graph)
    assert run.stop_reason == "not_awaited" and run.error.message.startswith("forget returned, and ctx.effect") and not paid


async def test_the_run_goes_on_once_the_code_is_mended() -> None:
    """What was recorded before the forgotten call stays, and is not run again."""

    @flow("mended")
    async def before(ctx: Context) -> Any:
        await ctx.step(pay, 1)
        ctx.step(number)
        return await ctx.step(pay, 10)

    @flow("mended")
    async def after(ctx: Context) -> Any:
        await ctx.step(pay, 1)
        await ctx.step(number)
        return await ctx.step(pay, 10)

    async with Runtime("memory:", skills=[before]) as rt:
        run = await rt.invoke(before, {})
        assert run.stop_reason == "not_awaited" and paid["paid"] == 1
        rt.add(after)
        run = await rt.resume(run.run_id, acknowledge="not_awaited")
    assert run.result == "paid" and paid["paid"] == 11


async def test_calls_that_are_made_first_and_awaited_later_are_no_mistake() -> None:
    @flow("later")
    async def later(ctx: Context) -> Any:
        first, second = ctx.step(number), ctx.step(number)
        found = [await second, await first]
        found += await ctx.gather(*[ctx.step(number) for _ in range(50)])
        found += await ctx.gather(ctx.gather(ctx.step(number)), ctx.map(number_of, [1]))
        winner, _ = await ctx.first_of(ctx.step(number), ctx.sleep(60), ctx.gather(ctx.sleep(60)))
        task = asyncio.create_task(ctx.step(number))
        found.append(await task)
        return [winner, len(found)]

    run = await _end(later)
    assert run.result == [0, 55], run.error


async def number_of(item: int) -> int:
    return item


async def test_an_error_of_the_code_is_told_before_what_it_left() -> None:
    @flow("raising")
    async def raising(ctx: Context) -> Any:
        ctx.step(number)
        raise LookupError("no account")

    run = await _end(raising)
    assert run.stop_reason == "step_failed" and "no account" in run.error.message


async def test_what_waits_may_have_calls_made_ahead() -> None:
    @flow("asks")
    async def asks(ctx: Context) -> Any:
        ahead = ctx.step(number)
        decision = await ctx.approve("Go?")
        return [decision.approved, await ahead]

    async with Runtime("memory:", skills=[asks]) as rt:
        run = await rt.invoke(asks, {})
        assert run.waits
        run = await rt.approve(run.run_id)
    assert run.result == [True, 1]
