"""The OpenAI Agents SDK on Holdfast (extra ``openai-agents``).

``run_agent(ctx, agent, input)`` runs an agent inside a node or a flow. Each request to the model is a recorded step, each call
of a function tool an effect under the call's id. ``reads=`` names the tools that only read: those are recorded steps. A tool
with ``needs_approval=True`` opens an approval, which a person may answer days later.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from agents import Agent, FunctionTool, RunConfig, Runner
from agents.items import ModelResponse
from agents.models.interface import Model, ModelProvider
from agents.models.multi_provider import MultiProvider
from agents.result import RunResult
from agents.tool_context import ToolContext
from pydantic import TypeAdapter

from holdfast import Context, UsageError, current

_response: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)


class RecordedModel(Model):
    """A model whose answers are recorded steps of the run it is asked in."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        async def request() -> Any:
            # Fields that were not set must stay so: the SDK tells them from those set to None.
            return _response.dump_python(await self._inner.get_response(*args, **options), mode="json", exclude_unset=True)

        ctx = current()
        if ctx is None:
            return await self._inner.get_response(*args, **options)
        return _response.validate_python(await ctx.step(request, name="model_request"))

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise UsageError("a streamed answer of a model cannot be recorded", hint="use run_agent; ctx.emit reports progress")


class _Recorded(ModelProvider):
    def __init__(self, inner: ModelProvider) -> None:
        self._inner = inner

    def get_model(self, model_name: str | None) -> Model:
        return RecordedModel(self._inner.get_model(model_name))


def durable(tool: FunctionTool, *, read: bool = False, idempotent: bool = False) -> FunctionTool:
    """The tool with its calls on record: an effect under the call's id, or with ``read`` a recorded step.

    Args:
        tool: a function tool.
        read: it changes nothing, so that it may be called again after a crash.
        idempotent: the receiver drops a repeated call, so that it is called again under the same key.
    """

    async def invoke(given: ToolContext[Any], arguments: str) -> Any:
        ctx = current()
        if ctx is None:
            return await tool.on_invoke_tool(given, arguments)

        async def call(text: str) -> Any:
            return await tool.on_invoke_tool(given, text)

        if read:
            return await ctx.step(call, arguments, key=given.tool_call_id, name=tool.name)
        return await ctx.effect(call, arguments, key=given.tool_call_id, name=tool.name, idempotent=idempotent)

    return dataclasses.replace(tool, on_invoke_tool=invoke)


def recorded(agent: Agent[Any], *, reads: Collection[str] = (), idempotent: Collection[str] = ()) -> Agent[Any]:
    """The agent, and those it hands over to, with models and function tools on record."""
    return _recorded(agent, reads, idempotent, {})


def _recorded(agent: Agent[Any], reads: Collection[str], idempotent: Collection[str], made: dict[int, Agent[Any]]) -> Agent[Any]:
    if id(agent) in made:
        return made[id(agent)]
    tools = [durable(t, read=t.name in reads, idempotent=t.name in idempotent) if isinstance(t, FunctionTool) else t for t in agent.tools]
    model = RecordedModel(agent.model) if isinstance(agent.model, Model) else agent.model
    copy = made[id(agent)] = dataclasses.replace(agent, model=model, tools=tools)
    copy.handoffs = [_recorded(h, reads, idempotent, made) if isinstance(h, Agent) else h for h in agent.handoffs]
    return copy


async def run_agent(
    ctx: Context, agent: Agent[Any], input: Any, *, reads: Collection[str] = (), idempotent: Collection[str] = (), max_turns: int = 10, context: Any = None
) -> RunResult:
    """Runs an agent inside a node or a flow until it has its answer.

    Args:
        ctx: the context of the node or flow.
        agent: an agent as the SDK has it; its models and tools need no change.
        input: what the user says, or a list of input items.
        reads: names of tools that only read.
        idempotent: names of tools whose receiver drops a repeated call.
        max_turns: as in ``Runner.run``.
        context: as in ``Runner.run``.
    """
    config = RunConfig(tracing_disabled=True, model_provider=_Recorded(MultiProvider()))
    kept = recorded(agent, reads=reads, idempotent=idempotent)
    result = await Runner.run(kept, input, context=context, max_turns=max_turns, run_config=config)
    while result.interruptions:
        state = result.to_state()
        for item in result.interruptions:
            shown = {"tool": item.name, "arguments": item.arguments}
            decision = await ctx.approve(f"{item.name}?", show=shown, on_deny="deliver")
            if decision.approved:
                state.approve(item)
            else:
                state.reject(item)
        result = await Runner.run(kept, state, max_turns=max_turns, run_config=config)
    usage = result.context_wrapper.usage
    ctx.spend(tokens=usage.total_tokens)
    return result


__all__ = ["RecordedModel", "durable", "recorded", "run_agent"]
