"""Pydantic AI agents on Holdfast (extra ``pydantic-ai``).

Give an agent the capability ``HoldfastDurability()`` and run it inside a node or a flow, by ``agent.run`` or by ``run_agent``.
Each model request is then a recorded step. A tool is an effect, unless its metadata says that it only reads::

    @agent.tool_plain(metadata={"holdfast": {"side_effects": "read"}})
    def look_up(order: str) -> str: ...

``run_agent`` also asks a person about tools that require approval, and counts the usage on the run's budget.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied, durable_exec
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import RunContext

from holdfast import Context, UsageError, current

D = TypeVar("D")
KEY = "holdfast"
"""The key in a tool's metadata under which its side effects are declared."""

UNDECLARED: dict[str, Any] = {"side_effects": "external_action"}
RECORDED = ("none", "read")
_events: TypeAdapter[AgentStreamEvent] = TypeAdapter(AgentStreamEvent)
_OPTIONS = frozenset({"side_effects", "idempotent", "replay", "verify", "undo", "retry", "timeout"})


class _Calls(durable_exec.JournalCallableOperationBackend[dict[str, Any]]):
    """Each unit of work of an agent as one recorded call of the node it runs in."""

    async def execute(
        self, *, operation_id: durable_exec.DurableOperationId, name: str, body: Callable[[], Awaitable[Any]], cache_key: object, config: dict[str, Any]
    ) -> Any:
        ctx = current()
        if ctx is None:
            return await body()

        async def unit() -> Any:
            return await body()

        if isinstance(operation_id, durable_exec.ToolsetCallToolId) and config.get("side_effects", "none") not in RECORDED:
            return await ctx.effect(unit, name=name, **config)
        rest = {k: v for k, v in config.items() if k in ("retry", "timeout")}
        return await ctx.step(unit, name=name, **rest)


class HoldfastDurability(durable_exec.BaseDurabilityCapability[D]):
    """Makes an agent's model requests and tool calls durable where it runs inside a Holdfast run; elsewhere it changes nothing."""

    engine_spec = durable_exec.DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=durable_exec.JSON_CODEC,
        sequential_tools_in_durable_context=True,
        tool_config_key=KEY,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
    )

    @property
    def in_durable_context(self) -> bool:
        return current() is not None

    def get_default_run_id(self) -> str | None:
        ctx = current()
        return None if ctx is None else str(ctx.uuid())

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return durable_exec.conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> Any:
        ctx = current()
        return None if ctx is None else ctx.now()

    def get_durable_operation_backend(self) -> durable_exec.DurableOperationBackend[Any]:
        declared = self._build_resolve_tool_config(UNDECLARED)

        def resolve(operation_id: Any, tool: Any, tool_name: str) -> Any:
            return _checked(tool_name, declared(tool, tool_name))

        config: Any = durable_exec.RoleBasedOperationConfig(model={}, event={}, capability={}, tool=UNDECLARED, resolve_tool=resolve)
        return _Calls(agent_name=self.name, default_model_id=self.default_model_id, config=config)

    def _toolset_base_config(self, kind: durable_exec.ToolsetKind) -> dict[str, Any]:
        return UNDECLARED


def _checked(tool: str, config: Any) -> Any:
    if isinstance(config, dict) and (odd := config.keys() - _OPTIONS):
        raise UsageError(f"the metadata of the tool {tool!r} has the unknown option {min(odd)!r}", hint="options: " + ", ".join(sorted(_OPTIONS)))
    return config


async def run_agent(ctx: Context, agent: Agent[Any, Any], prompt: str, *, emit: bool = False, **options: Any) -> AgentRunResult[Any]:
    """Runs an agent inside a node or a flow until it has its answer.

    A tool that requires approval opens an approval for each of its calls, which a person may answer days later; a denied call is
    told to the model with the reason. The usage counts as ``tokens`` of the run's budget.

    Args:
        ctx: the context of the node or flow.
        agent: an agent with the capability ``HoldfastDurability``.
        prompt: what the user says.
        emit: give the agent's events out as chunks of the step (``ctx.emit``); the model must be able to stream.
        options: further arguments of ``agent.run``, such as ``deps`` or ``message_history``.
    """
    if emit:
        options["event_stream_handler"] = _emitting(ctx)
    output = [options.pop("output_type", agent.output_type), DeferredToolRequests]
    result: AgentRunResult[Any] = await agent.run(prompt, output_type=output, **options)
    _count(ctx, result)
    while isinstance(result.output, DeferredToolRequests):
        answers: dict[str, Any] = {}
        for call in result.output.approvals:
            shown = {"tool": call.tool_name, "arguments": call.args_as_dict()}
            decision = await ctx.approve(f"{call.tool_name}?", show=shown, on_deny="deliver")
            answers[call.tool_call_id] = decision.approved or ToolDenied(decision.note or "A person denied this call.")
        rest = {k: v for k, v in options.items() if k != "message_history"}
        result = await agent.run(
            message_history=result.all_messages(), deferred_tool_results=DeferredToolResults(approvals=answers), output_type=output, **rest
        )
        _count(ctx, result)
    return result


def _emitting(ctx: Context) -> Callable[[RunContext[Any], AsyncIterable[AgentStreamEvent]], Awaitable[None]]:
    async def handler(run: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        async for event in events:
            ctx.emit(_events.dump_python(event, mode="json"))

    return handler


def _count(ctx: Context, result: AgentRunResult[Any]) -> None:
    usage = result.usage
    ctx.spend(tokens=usage.total_tokens or 0)


__all__ = ["KEY", "HoldfastDurability", "run_agent"]
