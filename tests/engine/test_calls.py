"""User code under a timeout: the part before its first wait is run without a timer (§10.10)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import Any

import pytest

from holdfast.core.errors import StepFailure, StepTimeout
from holdfast.engine.calls.functions import Patience, await_in_time, call

SECOND = 1_000_000


async def test_what_never_waits_sets_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def quick() -> int:
        return 7

    monkeypatch.setattr(asyncio, "timeout_at", lambda at: pytest.fail("a timer was set"))
    assert await await_in_time(quick(), SECOND, "quick") == 7


async def test_what_waits_is_cut_off() -> None:
    """§10.10: the timeout is a typed failure, and the code learns of it where it waits."""
    told: list[str] = []

    async def stuck() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    with pytest.raises(StepTimeout):
        await await_in_time(stuck(), 1_000, "stuck")
    assert told == ["cancelled"]


async def test_the_time_before_the_first_wait_counts() -> None:
    loop = asyncio.get_running_loop()
    patience = Patience(5 * SECOND, own=True)

    async def late() -> int:
        await asyncio.sleep(0)
        return 1

    began = loop.time()
    assert await await_in_time(late(), patience, "late") == 1
    assert began <= patience.moved <= loop.time()


async def test_a_timeout_error_of_its_own_passes() -> None:
    async def mine() -> None:
        await asyncio.sleep(0)
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine") as caught:
        await await_in_time(mine(), SECOND, "mine")
    assert not isinstance(caught.value, StepTimeout)


async def test_a_cancel_may_be_answered_by_more_waiting() -> None:
    """The rest of a coroutine is an ordinary one: it may catch the cancel, wait again and return."""

    async def tidy() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "tidied"
        return "never"

    task = asyncio.ensure_future(await_in_time(tidy(), 0, "tidy"))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "tidied"


async def test_failures_before_and_after_the_first_wait() -> None:
    async def at_once() -> None:
        raise ValueError("before")

    async def later() -> None:
        await asyncio.sleep(0)
        raise ValueError("after")

    with pytest.raises(ValueError, match="before"):
        await await_in_time(at_once(), SECOND, "x")
    with pytest.raises(ValueError, match="after"):
        await await_in_time(later(), SECOND, "x")


async def test_closing_runs_the_clean_up() -> None:
    closed: list[bool] = []

    async def open_ended() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append(True)

    work = await_in_time(open_ended(), 0, "x")
    work.send(None)
    asyncio.get_running_loop().call_soon(work.close)
    await asyncio.sleep(0)
    assert closed == [True]


async def test_a_plain_function_runs_in_a_thread_and_an_awaitable_of_another_make_is_awaited() -> None:
    class Other:
        def __await__(self) -> Generator[Any, None, int]:
            yield from asyncio.sleep(0).__await__()
            return 3

    assert await call(lambda: 2, (), SECOND, "plain") == 2
    assert await await_in_time(Other(), SECOND, "other") == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("met", [False, True], ids=["on its way", "met"])
async def test_a_cancel_of_its_own_is_taken_back_at_once(met: bool) -> None:
    """A step that cancels its own task has failed. Whoever awaits it goes on in the next turns of the loop, and no cancel is left for it."""
    loop, turns = asyncio.get_running_loop(), 0
    task = asyncio.current_task()
    assert task is not None

    async def cancels_itself() -> int:
        task.cancel()
        if met:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return 1

    def turn() -> None:
        nonlocal turns, spinning
        turns += 1
        spinning = loop.call_soon(turn)

    spinning = loop.call_soon(turn)
    try:
        with pytest.raises(StepFailure):
            await await_in_time(cancels_itself(), 0, "cancels_itself")
    finally:
        spinning.cancel()
    assert turns < 10 and task.cancelling() == 0
