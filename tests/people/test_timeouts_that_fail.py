"""A question that nobody answered in time, and whose run failed by that, is asked anew when somebody goes on with the run (§5.10, §7.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core.errors import UndecidedWait
from holdfast.stores import SqliteStore
from tests.people.test_deadlines import Clock

done: list[str] = []


def publish(text: str) -> None:
    done.append(text)


class Draft(State):
    text: str = "draft"


def release() -> Graph[Draft]:
    graph = Graph("release", Draft, version="1")

    @graph.node(start=True)
    async def consent(state: Draft, ctx: Context) -> None:
        await ctx.approve("Publish?", timeout=1, on_timeout="fail")

    @graph.node(after="consent")
    async def out(state: Draft, ctx: Context) -> None:
        await ctx.effect(publish, state.text)

    return graph


@flow("asks", version="1")
async def asks(ctx: Context) -> str:
    return f"hello {await ctx.ask('Who are you?', str, timeout=1, on_timeout='fail')}"


@flow("hands over", version="1")
async def hands_over(ctx: Context) -> str:
    return f"hello {(await ctx.handoff('Look at it', verdict='bad', timeout=1, on_timeout='fail')).action}"


@flow("waits", version="1")
async def waits(ctx: Context) -> str:
    return f"hello {await ctx.wait('news', timeout=1, on_timeout='fail')}"


@flow("beside", version="1")
async def beside(ctx: Context) -> str:
    """Another question stays open."""
    first, second = await ctx.gather(ctx.ask("One?", str, timeout=1, on_timeout="fail"), ctx.ask("Two?", str))
    return f"hello {first} {second}"


@pytest.mark.parametrize("skill", [release(), asks, hands_over, waits, beside], ids=lambda s: s.program.id.replace(" ", "_"))
@pytest.mark.parametrize("again", ["once", "twice"])
async def test_a_resume_asks_anew(skill: Any, again: str, tmp_path: Path) -> None:
    """Nothing goes on by the silence, however often it happens; an answer to the new question does."""
    done.clear()
    clock = Clock()
    async with Runtime(SqliteStore(tmp_path / "runs.db", now=clock.now), skills=[skill], clock=clock) as rt:
        run = await rt.invoke(skill)
        seen = {w.wait_id for w in run.waits}
        for _ in range(2 if again == "twice" else 1):
            clock.forward(2)
            await rt.worker(until_idle=True)
            run = await rt.get(run.run_id)
            assert (run.status, run.stop_reason) == ("failed", "wait_timed_out")
            run = await rt.resume(run.run_id, acknowledge="wait_timed_out")
            asked = [w for w in run.waits if w.deadline is not None and w.wait_id not in seen]
            assert run.status.startswith("waiting") and asked, run
            seen |= {w.wait_id for w in asked}
            assert done == [] and run.result is None
        if skill is waits:
            await rt.signal(run.run_id, "news", "x")
        else:
            for wait in run.waits:
                await rt.decide(run.run_id, wait_id=wait.wait_id, action={"approval": "approve", "input": "answer", "handoff": "continue"}[wait.kind], **({"payload": "x"} if wait.kind == "input" else {}))
        await rt.worker(until_idle=True)
        run = await rt.get(run.run_id)
        assert run.status == "completed"
        assert done == (["draft"] if skill.program.id == "release" else []) and "None" not in str(run.result or "")
        assert list(await rt.check()) == []


@pytest.mark.parametrize("verb", ["fork", "replay"])
@pytest.mark.parametrize("skill", [release(), asks, waits], ids=lambda s: s.program.id)
async def test_a_new_run_out_of_it_asks_too(skill: Any, verb: str, tmp_path: Path) -> None:
    """§7.6, §7.7: the silence is nobody's answer there either, before the source was gone on with and after."""
    done.clear()
    clock = Clock()
    async with Runtime(SqliteStore(tmp_path / "runs.db", now=clock.now), skills=[skill], clock=clock) as rt:
        run = await rt.invoke(skill)
        clock.forward(2)
        await rt.worker(until_idle=True)
        for _ in range(2):
            again = await (rt.fork(run.run_id) if verb == "fork" else rt.replay(run.run_id))
            await rt.worker(until_idle=True)
            assert (await rt.get(again.run_id)).status.startswith("waiting") and done == []
            if (await rt.get(run.run_id)).status == "failed":
                await rt.resume(run.run_id, acknowledge="wait_timed_out")


async def test_what_was_delivered_stays(tmp_path: Path) -> None:
    """A silence that the code was told of, and went on from, is on record; a later failure does not ask again."""
    told: list[str] = []

    @flow("told", version="1")
    async def tells(ctx: Context) -> str:
        decision = await ctx.approve("Publish?", timeout=1, on_timeout="deliver")
        told.append(decision.action)
        if len(told) < 2:
            raise ValueError("something else")
        return decision.action

    clock = Clock()
    async with Runtime(SqliteStore(tmp_path / "runs.db", now=clock.now), skills=[tells], clock=clock) as rt:
        run = await rt.invoke(tells)
        clock.forward(2)
        await rt.worker(until_idle=True)
        assert (await rt.resume(run.run_id, acknowledge="step_failed")).result == "timeout"


async def test_a_new_question_is_not_resumed_past(tmp_path: Path) -> None:
    """§7.2: nor by another acknowledgement."""
    clock = Clock()
    async with Runtime(SqliteStore(tmp_path / "runs.db", now=clock.now), skills=[asks], clock=clock) as rt:
        run = await rt.invoke(asks)
        clock.forward(2)
        await rt.worker(until_idle=True)
        await rt.resume(run.run_id, acknowledge="wait_timed_out")
        with pytest.raises(UndecidedWait):
            await rt.resume(run.run_id, acknowledge="wait_timed_out")
