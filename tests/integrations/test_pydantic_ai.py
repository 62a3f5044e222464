"""A Pydantic AI agent in a flow: model requests and tools once, whatever dies, and approvals asked once (§19.4)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Context, Runtime, UsageError, flow
from holdfast.integrations.pydantic_ai import HoldfastDurability, run_agent

done: list[str] = []


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """A model of three requests: look something up twice, then pay, then say so."""
    returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    done.append(f"model {len(returned)}")
    if not returned:
        return ModelResponse(parts=[ToolCallPart("look_up", {"order": "17"}), ToolCallPart("look_up", {"order": "18"})])
    if len(returned) == 2:
        return ModelResponse(parts=[ToolCallPart("pay", {"cents": 4200})])
    return ModelResponse(parts=[TextPart(f"done: {returned[-1].content}")])


agent = Agent(FunctionModel(answer), name="desk", capabilities=[HoldfastDurability()])


@agent.tool_plain(metadata={"holdfast": {"side_effects": "read"}})
async def look_up(order: str) -> str:
    done.append(f"look_up {order}")
    return f"order {order}: 42.00"


@agent.tool_plain(metadata={"holdfast": {"side_effects": "external_action", "idempotent": True}}, requires_approval=True)
async def pay(cents: int) -> str:
    done.append(f"pay {cents}")
    return f"paid {cents}"


@flow("desk", version="1")
async def desk(ctx: Context, question: str) -> str:
    result = await run_agent(ctx, agent, question)
    return str(result.output)


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()


async def test_each_model_request_and_tool_happens_once_around_an_approval() -> None:
    async with Runtime("memory:", skills=[desk]) as rt:
        run = await rt.invoke(desk, {"question": "Pay me back."})
        assert run.status == "waiting_for_human", run.error
        assert run.waits[0].show == {"tool": "pay", "arguments": {"cents": 4200}}
        run = await rt.approve(run.run_id, actor="ada")
        assert (run.status, run.result) == ("completed", "done: paid 4200"), run.error
        assert done == ["model 0", "look_up 17", "look_up 18", "model 2", "pay 4200", "model 3"]
        assert [e.status.value for e in await rt.effects(run.run_id)] == ["recorded"]


async def test_a_denied_tool_is_told_to_the_model() -> None:
    async with Runtime("memory:", skills=[desk]) as rt:
        run = await rt.invoke(desk, {"question": "Pay me back."})
        run = await rt.deny(run.run_id, actor="ada", reason="no")
        assert run.status == "completed" and not any(d.startswith("pay") for d in done)


async def greet(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    return ModelResponse(parts=[TextPart("hello")])


async def test_outside_a_run_the_agent_is_what_it_was() -> None:
    plain = Agent(FunctionModel(greet), name="plain", capabilities=[HoldfastDurability()])
    assert (await plain.run("hi")).output == "hello"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the world drops the framework's coroutines where a process dies
def test_a_crash_at_any_write_repeats_no_recorded_request(holdfast_crashes: Any) -> None:
    counts: list[list[str]] = []
    _, ends = holdfast_crashes(desk, {"question": "Pay me back."}, fresh=lambda world: (counts.append(list(done)), done.clear()))
    assert {(str(end.run.result), str(end.run.error), end.run.condition) for end in ends} == {("done: paid 4200", "None", "done")}
    for calls in (c for c in counts[1:] if c):
        assert all(calls.count(call) <= 2 for call in calls)
        again = {call for call in calls if calls.count(call) == 2}
        assert len(again) <= 1 or again == {"look_up 17", "look_up 18"}, "only what was under way at the crash may run again; the two tools of one answer are together"
        assert len(calls) <= 7 + (len(again) == 2)


async def test_an_unknown_option_of_a_tool_is_refused_by_name() -> None:
    odd = Agent(FunctionModel(answer), name="odd", capabilities=[HoldfastDurability()])
    odd.tool_plain(metadata={"holdfast": {"side_efects": "read"}})(look_up)

    @flow("odd", version="1")
    async def ask(ctx: Context) -> str:
        return str((await run_agent(ctx, odd, "?")).output)

    async with Runtime("memory:", skills=[ask]) as rt:
        run = await rt.invoke(ask, {})
        assert run.error is not None and "side_efects" in run.error.message
    assert issubclass(UsageError, Exception)


helper = Agent(FunctionModel(answer), name="helper", capabilities=[HoldfastDurability()])
helper.tool_plain(name="look_up")(look_up)
helper.tool_plain(name="pay")(pay)


async def ask_helper(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    return ModelResponse(parts=[TextPart(str(returned[-1].content)) if returned else ToolCallPart("ask", {"question": "Pay me back."})])


boss = Agent(FunctionModel(ask_helper), name="boss", capabilities=[HoldfastDurability()])


@boss.tool_plain
async def ask(question: str) -> str:
    return str((await helper.run(question)).output)


@flow("boss", version="1")
async def bossy(ctx: Context, question: str) -> str:
    return str((await run_agent(ctx, boss, question)).output)


async def test_an_agent_that_a_tool_asks_is_part_of_the_tools_call() -> None:
    async with Runtime("memory:", skills=[bossy]) as rt:
        run = await rt.invoke(bossy, {"question": "Pay me back."})
        assert (run.status, run.result) == ("completed", "done: paid 4200"), run.error
        assert sorted(done) == sorted(["model 0", "look_up 17", "look_up 18", "model 2", "pay 4200", "model 3"])
        assert [(e.capability.rpartition(":")[2], e.status.value) for e in await rt.effects(run.run_id)] == [("ask", "recorded")]
