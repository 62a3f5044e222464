"""An agent of the OpenAI Agents SDK in a flow (§19.5)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import Agent, ModelResponse, Usage, function_tool
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from holdfast import Context, Runtime, flow
from holdfast.integrations.openai_agents import run_agent

done: list[str] = []


def call(number: int, name: str, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(type="function_call", call_id=f"call-{number}", name=name, arguments=json.dumps(arguments))


class Stub(Model):
    """A model of three requests: look something up twice, then pay, then say so."""

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        returned = [i for i in input if isinstance(i, dict) and i.get("type") == "function_call_output"] if isinstance(input, list) else []
        done.append(f"model {len(returned)}")
        if not returned:
            output: list[Any] = [call(1, "look_up", order="17"), call(2, "look_up", order="18")]
        elif len(returned) == 2:
            output = [call(3, "pay", cents=4200)]
        else:
            text = ResponseOutputText(type="output_text", text=f"done: {returned[-1]['output']}", annotations=[])
            output = [ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])]
        return ModelResponse(output=output, usage=Usage(requests=1, input_tokens=3, output_tokens=4, total_tokens=7), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


@function_tool
async def look_up(order: str) -> str:
    done.append(f"look_up {order}")
    return f"order {order}"


@function_tool(needs_approval=True)
async def pay(cents: int) -> str:
    done.append(f"pay {cents}")
    return f"paid {cents}"


agent = Agent(name="desk", model=Stub(), tools=[look_up, pay])


@flow("openai-desk", version="1")
async def desk(ctx: Context, question: str) -> str:
    return str((await run_agent(ctx, agent, question, reads=["look_up"], idempotent=["pay"])).final_output)


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()


async def test_each_model_request_and_tool_happens_once_around_an_approval() -> None:
    async with Runtime("memory:", skills=[desk]) as rt:
        run = await rt.invoke(desk, {"question": "Pay me back."})
        assert run.status == "waiting_for_human", run.error
        assert run.waits[0].show == {"tool": "pay", "arguments": '{"cents": 4200}'}
        run = await rt.approve(run.run_id, actor="ada")
        assert (run.status, run.result) == ("completed", "done: paid 4200"), run.error
        assert sorted(done) == sorted(["model 0", "look_up 17", "look_up 18", "model 2", "pay 4200", "model 3"])
        assert [e.status.value for e in await rt.effects(run.run_id)] == ["recorded"]


async def test_a_denied_tool_is_told_to_the_model() -> None:
    async with Runtime("memory:", skills=[desk]) as rt:
        run = await rt.invoke(desk, {"question": "Pay me back."})
        run = await rt.deny(run.run_id, actor="ada", reason="no")
        assert run.status == "completed" and not any(d.startswith("pay") for d in done)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the world drops the framework's coroutines where a process dies
def test_a_crash_at_any_write_repeats_no_recorded_request(holdfast_crashes: Any) -> None:
    counts: list[list[str]] = []
    _, ends = holdfast_crashes(desk, {"question": "Pay me back."}, fresh=lambda world: (counts.append(list(done)), done.clear()))
    assert {(str(end.run.result), str(end.run.error), end.run.condition) for end in ends} == {("done: paid 4200", "None", "done")}
    assert all(c.count(one) <= 2 for c in counts for one in c)
