"""What every kernel and every saver must do (§4.16): a test suite for engines that replace this one.

``await executor_suite(make)`` and ``await saver_suite(make)`` raise an AssertionError at the first thing that does not hold. ``make`` returns
a fresh ``Bench`` each time: an engine bound to a program. The program has a channel ``said``, a list that grows. It writes the ``text`` of
its input to ``said``, waits for one answer, and writes the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec

from holdfast.ports import Executor, Rested, Saver

RESTING = ("waiting_for_human", "waiting_for_signal")
SNAPSHOT = {"values", "metadata", "createdAt", "nextTasks"}


class Bench(msgspec.Struct, frozen=True):
    """An engine under test, with the saver of its threads."""

    executor: Executor
    saver: Saver


Make = Callable[[], AbstractAsyncContextManager[Bench]]


def _stands(run: Rested, said: list[str], *, rests: bool) -> None:
    assert run.status in (RESTING if rests else ("completed",)), f"it is {run.status}"
    assert list(run.values["said"]) == said, f"said is {run.values['said']}"


async def _refuse(act: Awaitable[Any], what: str) -> None:
    said = None
    try:
        await act
    except Exception as e:
        said = str(e)
    assert said is not None, f"{what} is not refused"
    assert said, f"{what} is refused without an error message"


async def executor_suite(make: Make) -> None:
    """Checks ``invoke`` and ``resume``, by thread."""
    async with make() as bench:
        kernel = bench.executor
        await _refuse(kernel.resume("a", "x"), "an answer on an unknown thread")
        _stands(await kernel.invoke("a", {"text": "hello"}), ["hello"], rests=True)
        _stands(await kernel.invoke("b", {"text": "other"}), ["other"], rests=True)
        _stands(await kernel.invoke("a"), ["hello"], rests=True)  # without an input nothing new begins
        _stands(await kernel.resume("a", "yes"), ["hello", "yes"], rests=False)
        await _refuse(kernel.resume("a", "again"), "a second answer to one question")
        _stands(await kernel.invoke("a"), ["hello", "yes"], rests=False)
        _stands(await kernel.resume("b", "no"), ["other", "no"], rests=False)


async def saver_suite(make: Make) -> None:
    """Checks ``put``, ``get`` and ``get_history``, by thread."""
    async with make() as bench:
        kernel, saver = bench.executor, bench.saver
        assert await saver.get("a") is None and list(await saver.get_history("a")) == [], "nothing is known of a thread nobody used"
        await kernel.invoke("a", {"text": "hello"})
        resting = await saver.get("a")
        assert resting is not None and set(resting) >= SNAPSHOT, f"a snapshot has {sorted(SNAPSHOT)}"
        assert set(resting["metadata"]) == {"source", "step", "writes"} and resting["nextTasks"], "a snapshot names the nodes that run next"
        put = await saver.put("a", {"values": {"said": ["edited"]}}, actor="ada")
        assert list(put["values"]["said"]) == ["edited"]
        _stands(await kernel.resume("a", "yes"), ["edited", "yes"], rests=False)
        history = list(await saver.get_history("a"))
        times = [h["createdAt"] for h in history]
        assert times == sorted(times), "oldest first"
        assert [list(h["values"]["said"]) for h in history if "said" in h["values"]][-1] == ["edited", "yes"]
        assert any(list(h["values"].get("said", ())) == ["hello"] for h in history), "an old snapshot shows what was then"
        assert list(await saver.get_history("b")) == []


__all__ = ["Bench", "Make", "executor_suite", "saver_suite"]
