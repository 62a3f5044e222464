"""A Pydantic AI agent that pays back after an approval, on Holdfast. Offline: the model is a stub.

    python -m examples.pydantic_agent

Kill it at any time and start it again: what the model said and what was paid is on record.
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import Context, Runtime, flow
from holdfast.integrations.pydantic_ai import HoldfastDurability, run_agent

PAID: list[int] = []


async def stub(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Looks an order up, pays it back, says so."""
    answers = [part.content for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    match len(answers):
        case 0:
            return ModelResponse(parts=[ToolCallPart("look_up", {"order": "17"})])
        case 1:
            return ModelResponse(parts=[ToolCallPart("pay", {"cents": 4200})])
    return ModelResponse(parts=[TextPart(f"Done: {answers[-1]}.")])


agent = Agent(FunctionModel(stub), name="desk", capabilities=[HoldfastDurability()])


@agent.tool_plain(metadata={"holdfast": {"side_effects": "read"}})
async def look_up(order: str) -> str:
    return f"order {order}: 42.00"


@agent.tool_plain(requires_approval=True)
async def pay(cents: int) -> str:
    PAID.append(cents)
    return f"paid {cents}"


@flow("pydantic-desk", version="1")
async def desk(ctx: Context, question: str) -> str:
    return str((await run_agent(ctx, agent, question)).output)


async def main(url: str = "sqlite:///desk.db") -> str:
    async with Runtime(url, skills=[desk]) as rt:
        run = await rt.invoke(desk, {"question": "Pay order 17 back."})
        run = await rt.approve(run.run_id, actor="ada")
        return str(run.result)


if __name__ == "__main__":
    print(asyncio.run(main()))
