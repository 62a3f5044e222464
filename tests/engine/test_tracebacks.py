"""A failing node shows its own frames, and none of ours (§13.2)."""

from __future__ import annotations

import asyncio
import pathlib
import traceback

import pytest

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core.errors import ErrorValue, Frame, RunFailed, StepFailure
from holdfast.engine.base.failures import MOST_FRAMES, frames_of, record, with_traceback


class Order(State):
    amount: int = 0
    paid: bool = False


graph = Graph("order", Order, version="1")


def share(amount: int) -> float:
    return 1 / amount  # the line that fails


@graph.node(start=True)
async def divide(state: Order) -> dict[str, object]:
    await asyncio.to_thread(share, state.amount)
    return {}


@flow("lookup", version="1")
async def lookup(ctx: Context, name: str) -> str:
    return await ctx.step(find, name)


def find(name: str) -> str:
    return {"a": "b"}[name]


async def test_a_failing_node_keeps_its_own_frames() -> None:
    async with Runtime("memory:", skills=[graph]) as rt:
        run = await rt.invoke(graph, {"amount": 0})
        assert run.error is not None
        assert [f.function for f in run.error.frames] == ["divide", "share"]
        last = run.error.frames[-1]
        assert (last.file, last.source) == (__file__, "return 1 / amount  # the line that fails")
        assert pathlib.Path(__file__).read_text().splitlines()[last.line - 1].strip() == last.source
        shown = await rt.record(run.run_id)
        assert shown["error"]["frames"][-1] == {"file": last.file, "line": last.line, "function": "share", "source": last.source}


async def test_a_recorded_call_of_a_flow_keeps_them_too() -> None:
    async with Runtime("memory:", skills=[lookup]) as rt:
        run = await rt.invoke(lookup, {"name": "x"})
        assert run.error is not None and [f.function for f in run.error.frames] == ["lookup", "find"]


async def test_the_cause_of_run_failed_is_the_recorded_class_with_the_recorded_lines() -> None:
    async with Runtime("memory:", skills=[graph]) as rt:
        with pytest.raises(RunFailed) as caught:
            await rt.run(graph, {"amount": 0})
    cause = caught.value.__cause__
    assert type(cause) is ZeroDivisionError
    text = "".join(traceback.format_exception(cause))
    assert "return 1 / amount  # the line that fails" in text and ", in share" in text
    assert "holdfast/engine" not in text and "During handling" not in "".join(traceback.format_exception(caught.value))


def test_a_deep_traceback_is_cut_in_the_middle() -> None:
    def fall(n: int) -> None:
        if not n:
            raise ValueError("the bottom")
        fall(n - 1)

    try:
        fall(100)
    except ValueError as e:
        kept = frames_of(e)
    assert len(kept) == MOST_FRAMES and kept[-1].source == 'raise ValueError("the bottom")' and kept[0].function.startswith("test_a_deep")


def test_frames_of_a_file_that_is_gone_show_the_recorded_line() -> None:
    value = ErrorValue("app.Missing", "no such order", frames=(Frame("/gone/orders.py", 7, "fetch", "raise Missing(order)"),))
    error = with_traceback(value)
    assert type(error) is StepFailure
    text = "".join(traceback.format_exception(error))
    assert 'File "/gone/orders.py", line 7, in fetch' in text and "raise Missing(order)" in text


def test_an_exception_whose_text_cannot_be_made_is_kept_by_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    value = record(Mute(), "node")
    assert value.type.endswith("Mute") and "its __str__ raised RuntimeError" in value.message and value.where == "node"
