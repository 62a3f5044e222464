"""The same agent in two frameworks: three requests to a model, two tools that read at once, one that pays after an approval, streamed.

What they do outside is appended to the file ``$ACTS``, where it is named.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent as OpenAIAgent
from agents import ModelResponse as OpenAIResponse
from agents import Usage, function_tool
from agents.models.interface import Model
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from holdfast import Context, Flow, Runtime, flow
from holdfast.integrations import openai_agents, pydantic_ai

PIECES = ("The ", "order ", "is ", "paid ", "back.")
TEXT = "".join(PIECES)
acts: list[str] = []


def act(what: str) -> None:
    """Something outside that cannot be taken back."""
    acts.append(what)
    if file := os.environ.get("ACTS"):
        fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{what}\n".encode())
        os.close(fd)


async def pause() -> None:
    """The time that a model or a tool takes; none in virtual time."""
    if "ACTS" in os.environ:
        await asyncio.sleep(0.005)


async def look(order: str) -> str:
    act(f"look_up {order}")
    await pause()
    return f"order {order}"


async def refund(cents: int) -> str:
    await pause()
    act(f"pay {cents}")
    await pause()
    return f"paid {cents}"


# -- Pydantic AI ------------------------------------------------------------------------------------


async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    returned = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    act(f"model {len(returned)}")
    if not returned:
        yield {0: DeltaToolCall("look_up", '{"order": "17"}', tool_call_id="c1"), 1: DeltaToolCall("look_up", '{"order": "18"}', tool_call_id="c2")}
    elif len(returned) == 2:
        yield {0: DeltaToolCall("pay", '{"cents": 4200}', tool_call_id="c1")}  # some models use the ids of calls again
    else:
        for piece in PIECES:
            await pause()
            yield piece


desk = Agent(FunctionModel(stream_function=answer), name="desk", capabilities=[pydantic_ai.HoldfastDurability()])
desk.tool_plain(name="look_up", metadata={"holdfast": {"side_effects": "read"}})(look)
desk.tool_plain(name="pay", requires_approval=True)(refund)


@flow("pydantic_ai", version="1")
async def pydantic_desk(ctx: Context, question: str) -> str:
    return str((await pydantic_ai.run_agent(ctx, desk, question, emit=True)).output)


# -- OpenAI Agents ----------------------------------------------------------------------------------


def call(number: int, name: str, **arguments: Any) -> ResponseFunctionToolCall:
    return ResponseFunctionToolCall(type="function_call", call_id=f"c{number}", name=name, arguments=json.dumps(arguments))


class Stub(Model):
    def output(self, input: Any) -> list[Any]:
        returned = [i for i in input if isinstance(i, dict) and i.get("type") == "function_call_output"] if isinstance(input, list) else []
        act(f"model {len(returned)}")
        if not returned:
            return [call(1, "look_up", order="17"), call(2, "look_up", order="18")]
        if len(returned) == 2:
            return [call(3, "pay", cents=4200)]
        text = ResponseOutputText(type="output_text", text=TEXT, annotations=[])
        return [ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])]

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> OpenAIResponse:
        return OpenAIResponse(output=self.output(input), usage=Usage(requests=1, input_tokens=3, output_tokens=4, total_tokens=7), response_id=None)

    async def stream_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        output = self.output(input)
        if isinstance(output[0], ResponseOutputMessage):
            for number, piece in enumerate(PIECES):
                await pause()
                yield ResponseTextDeltaEvent(content_index=0, delta=piece, item_id="m", logprobs=[], output_index=0, sequence_number=number, type="response.output_text.delta")
        usage = ResponseUsage(
            input_tokens=3, output_tokens=4, total_tokens=7, input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0), output_tokens_details=OutputTokensDetails(reasoning_tokens=0)
        )
        response = Response(id="r", created_at=0, model="stub", object="response", output=output, parallel_tool_calls=True, tool_choice="auto", tools=[], usage=usage)
        yield ResponseCompletedEvent(response=response, sequence_number=99, type="response.completed")


clerk = OpenAIAgent(
    name="desk", model=Stub(), tools=[function_tool(look, name_override="look_up"), function_tool(refund, name_override="pay", needs_approval=True)]
)


@flow("openai_agents", version="1")
async def openai_desk(ctx: Context, question: str) -> str:
    return str((await openai_agents.run_agent(ctx, clerk, question, reads=["look_up"], emit=True)).final_output)


SKILLS: dict[str, Flow[Any, Any]] = {"pydantic_ai": pydantic_desk, "openai_agents": openai_desk}


async def drive(name: str, url: str, told: str) -> None:
    """Drives the run ``one`` until it is killed; says so once it is there."""
    skill = SKILLS[name]
    async with Runtime(url, skills=[skill], lease=0.5) as rt:
        await rt.submit(skill, {"question": "Pay me back."}, key="one")
        print(told, flush=True)
        await rt.worker()
