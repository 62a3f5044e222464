"""An agent of the OpenAI Agents SDK that pays back after an approval, on Holdfast. Offline: the model is a stub.

    python -m examples.openai_agent
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, ModelResponse, Usage, function_tool
from agents.items import TResponseStreamEvent
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from holdfast import Context, Runtime, flow
from holdfast.integrations.openai_agents import run_agent

PAID: list[int] = []


class Stub(Model):
    """Pays, and says so."""

    async def get_response(self, system_instructions: str | None, input: Any, *args: Any, **options: Any) -> ModelResponse:
        answers = [item["output"] for item in input if item.get("type") == "function_call_output"]
        text = ResponseOutputText(type="output_text", text=f"Done: {answers}.", annotations=[])
        said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
        asks = ResponseFunctionToolCall(type="function_call", call_id="c1", name="pay", arguments=json.dumps({"cents": 4200}))
        return ModelResponse(output=[said if answers else asks], usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        raise NotImplementedError("this example asks for whole answers")


@function_tool(needs_approval=True)
async def pay(cents: int) -> str:
    PAID.append(cents)
    return f"paid {cents}"


agent = Agent(name="desk", model=Stub(), tools=[pay])


@flow("openai-desk", version="1")
async def desk(ctx: Context, question: str) -> str:
    return str((await run_agent(ctx, agent, question)).final_output)


async def main(url: str = "sqlite:///desk.db") -> str:
    async with Runtime(url, skills=[desk]) as rt:
        run = await rt.invoke(desk, {"question": "Pay order 17 back."})
        run = await rt.approve(run.run_id, actor="ada")
        return str(run.result)


if __name__ == "__main__":
    print(asyncio.run(main()))
