"""Tasks of one super-step beside each other: what a task of the event loop is made for, and what each of them has for itself (§4.3, §4.12)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Context, Graph, Runtime, Send, State, append, current
from holdfast.core import canon
from holdfast.core.channels import MISSING, reduce
from holdfast.core.checkpoint import Delta, Source, TaskResult, advance, empty
from holdfast.core.errors import ConcurrentScope
from holdfast.engine.drive.siblings import Siblings
from holdfast.stores import MemoryStore
from tests.inside import lower

word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="nothing")


class Fan(State):
    out: Annotated[list[Any], append]


def fan_out(node: Any, items: int) -> Graph[Fan]:
    graph = Graph("fan", Fan)

    @graph.node(start=True)
    async def plan(state: Fan) -> Any:
        return [Send("task", i) for i in range(items)]

    graph.node("task")(node)
    return graph


async def run_of(graph: Graph[Fan], parallel: int = 64) -> list[Any]:
    async with Runtime(MemoryStore(), skills=[graph]) as rt:
        lower(rt, parallel=parallel)
        run = await rt.invoke(graph, {})
        assert run.state is not None, run.error
        return list(run.state.out)


# -- tasks of the event loop --------------------------------------------------------------------------


async def test_what_never_waits_takes_no_task_of_its_own() -> None:
    seen = set()

    async def task(state: Fan, ctx: Context) -> Any:
        seen.add(asyncio.current_task())
        return {"out": [ctx.payload]}

    assert await run_of(fan_out(task, 50)) == list(range(50)) and len(seen) == 1


async def test_what_waits_is_in_one_task_all_the_way() -> None:
    """Timeouts and cancels rest on it."""
    seen = []

    async def task(state: Fan, ctx: Context) -> Any:
        before = asyncio.current_task()
        async with asyncio.timeout(30):
            await asyncio.sleep(0)
        seen.append((before, asyncio.current_task()))
        return {"out": [ctx.payload]}

    assert await run_of(fan_out(task, 20)) == list(range(20))
    assert all(before is after for before, after in seen) and len({before for before, _ in seen}) == 20


@pytest.mark.parametrize("waits", [0, 3])
async def test_what_one_puts_into_its_context_no_other_finds(waits: int) -> None:
    found = []

    async def task(state: Fan, ctx: Context) -> Any:
        found.append(word.get())
        word.set(f"of {ctx.payload}")
        for _ in range(waits):
            await asyncio.sleep(0)
        return {"out": [word.get()]}

    assert await run_of(fan_out(task, 10)) == [f"of {i}" for i in range(10)] and found == ["nothing"] * 10


async def test_as_many_wait_at_once_as_there_is_room_for() -> None:
    most, now, opened = 0, 0, asyncio.Event()

    async def task(state: Fan, ctx: Context) -> Any:
        nonlocal most, now
        if ctx.payload % 3 == 0:
            return {"out": [ctx.payload]}  # what does not wait takes no room
        now += 1
        most = max(most, now)
        if now == 4:
            opened.set()
        await opened.wait()
        await asyncio.sleep(0)
        now -= 1
        return {"out": [ctx.payload]}

    assert await run_of(fan_out(task, 30), parallel=4) == list(range(30)) and most == 4


async def test_they_begin_to_wait_together() -> None:
    """Not one in each turn of the loop: a turn may be long where much goes on."""
    turns, began = 0, []

    async def one(piece: int, _: asyncio.Task[Any]) -> int:
        began.append(turns)
        await asyncio.sleep(0)
        return piece

    told = asyncio.Event()
    siblings = Siblings(64, one, told.set)
    for piece in range(64):
        siblings.add(piece)
    ended: list[int] = []
    while len(ended) < 64:
        turns += 1
        await asyncio.sleep(0)
        ended += [piece for piece, _, _ in siblings.take_ended()]
    assert sorted(ended) == list(range(64)) and max(began) - min(began) <= 1


async def test_what_is_cancelled_has_ended_and_no_more_begins() -> None:
    began, ended = [], []

    async def one(piece: int, _: asyncio.Task[Any]) -> None:
        began.append(piece)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(piece)

    siblings = Siblings(3, one, lambda: None)
    for piece in range(9):
        siblings.add(piece)
    for _ in range(4):
        await asyncio.sleep(0)
    await siblings.cancel()
    assert began == sorted(ended) == [0, 1, 2]
    with pytest.raises(asyncio.CancelledError):
        siblings.take_ended()


async def test_each_is_told_with_what_it_raised() -> None:
    class Out(BaseException):
        pass

    async def one(piece: int, _: asyncio.Task[Any]) -> int:
        if piece == 1:
            raise Out
        if piece == 2:
            await asyncio.sleep(0)
            raise ValueError
        return piece

    siblings = Siblings(2, one, lambda: None)
    for piece in range(5):
        siblings.add(piece)
    for _ in range(6):
        await asyncio.sleep(0)
    assert {piece: type(error) for piece, _, error in siblings.take_ended()} == {0: type(None), 1: Out, 2: ValueError, 3: type(None), 4: type(None)}


# -- a node that asks for its context -----------------------------------------------------------------


async def test_a_node_that_is_given_the_state_alone_may_be_done_again() -> None:
    """§5.5: who calls ``current()`` has all that a node with a context has."""
    told: list[str | None] = []
    graph = Graph("draft", Fan)

    @graph.node(start=True)
    async def draft(state: Fan) -> Any:
        ctx = current()
        assert ctx is not None
        told.append(ctx.feedback)
        await ctx.handoff("good enough?", verdict="rejected")
        return {"out": [ctx.feedback]}

    async with Runtime(MemoryStore(), skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        await rt.decide(run.run_id, "retry_feedback", feedback="shorter")
        run = await rt.resume(run.run_id)
        await rt.decide(run.run_id, "continue")
        run = await rt.resume(run.run_id)
        assert run.state is not None and run.state.out == ["shorter"] and told == [None, None, "shorter", "shorter"]


async def test_all_tasks_of_one_node_are_given_one_snapshot() -> None:
    """§4.2: what nodes see is shared, and nobody can change it."""
    seen = []

    async def task(state: Fan, ctx: Context) -> Any:
        seen.append(state)
        return {"out": [ctx.payload]}

    await run_of(fan_out(task, 5))
    assert len({id(state) for state in seen}) == 1


async def test_a_context_that_outlives_its_node_writes_nothing() -> None:
    """What a node left running asks for its attempt only when the node has ended."""
    kept: list[Context] = []

    async def task(state: Fan, ctx: Context) -> Any:
        kept.append(ctx)
        return {"out": [ctx.payload]}

    assert await run_of(fan_out(task, 3)) == [0, 1, 2]
    assert [ctx.payload for ctx in kept] == [0, 1, 2] and [ctx.attempt for ctx in kept] == [1, 1, 1]
    with pytest.raises(ConcurrentScope):
        kept[0].random()


async def test_threads_of_a_node_that_ask_at_once_get_one_attempt() -> None:
    found = []

    async def task(state: Fan, ctx: Context) -> Any:
        gate = threading.Barrier(4)

        def ask() -> None:
            gate.wait(10)
            ctx.report("degraded")
            found.append(ctx.attempt_id)

        await asyncio.gather(*[asyncio.to_thread(ask) for _ in range(4)])
        return {"out": [ctx.payload]}

    assert await run_of(fan_out(task, 2)) == [0, 1] and len(found) == 8 and len(set(found)) == 2


async def test_keys_with_a_code_of_their_own_fail_their_step() -> None:
    """Whatever a node returns is looked at where what it raises is a failure of the step."""

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            raise ArithmeticError("no")

    async def task(state: Fan, ctx: Context) -> Any:
        return {Key("out"): [ctx.payload]}

    graph = fan_out(task, 3)
    async with Runtime(MemoryStore(), skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        assert run.status == "failed" and run.error is not None and run.error.type.endswith("ArithmeticError")


# -- many writes to one channel -----------------------------------------------------------------------

WRITES = {
    "append": st.one_of(st.integers(), st.lists(st.integers(), max_size=3)),
    "topic": st.one_of(st.integers(), st.lists(st.integers(), max_size=3)),
    "window:3": st.one_of(st.integers(), st.lists(st.integers(), max_size=5)),
    "merge": st.dictionaries(st.sampled_from("abc"), st.integers(), max_size=3),
    "override": st.integers(),
}
OLD = {"append": [1, 2], "topic": [], "window:3": [1, 2], "merge": {"a": 0, "z": 0}, "override": 0}


@pytest.mark.parametrize("tag", WRITES)
@pytest.mark.parametrize("had", [True, False])
@given(data=st.data())
def test_many_writes_make_what_they_make_one_by_one(tag: str, had: bool, data: st.DataObject) -> None:
    """§4.1. What was there before is not touched: others hold it."""
    writes = [canon.admit(w) for w in data.draw(st.lists(WRITES[tag], min_size=1, max_size=5))]
    parent = empty("r", canon.FrozenDict({"c": canon.admit(OLD[tag])} if had else {}))
    before = canon.encode(parent.values)
    results = [TaskResult(f"t~{n}", writes=canon.encode(canon.FrozenDict({"c": w}))) for n, w in enumerate(writes, 1)]
    moved = advance(parent, Delta(0, Source.LOOP, tuple(results), {"c": tag}, pending=()), {}, seq=1, at=0, hash=b"")
    expected = parent.values.get("c", MISSING) if tag != "topic" else canon.admit([])
    for write in writes:
        expected = reduce(tag, expected, write)
    assert moved.values["c"] == expected and canon.encode(parent.values) == before
    again = advance(moved, Delta(1, Source.LOOP, tuple(results), {"c": tag}, pending=()), {}, seq=2, at=0, hash=b"")
    assert moved.values["c"] == expected and (tag == "override" or again.values["c"] is not moved.values["c"])
