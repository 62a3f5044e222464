"""Pydantic AI agents on Holdfast (extra ``pydantic-ai``).

Give an agent the capability ``HoldfastDurability()`` and run it inside a node or a flow, by ``agent.run`` or by ``run_agent``.
Each model request is then a recorded step. A tool is an effect, unless its metadata says that it only reads::

    @agent.tool_plain(metadata={"holdfast": {"side_effects": "read"}})
    def look_up(order: str) -> str: ...

``run_agent`` also asks a person about tools that require approval, counts the usage on the run's budget, and streams.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, ToolDenied, durable_exec
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.messages import AgentStreamEvent, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import RunContext

from holdfast import Context, UsageError, current

D = TypeVar("D")
KEY = "holdfast"
"""The key in a tool's metadata under which its side effects are declared."""

UNDECLARED: dict[str, Any] = {"side_effects": "external_action"}
RECORDED = ("none", "read")
_events: TypeAdapter[AgentStreamEvent] = TypeAdapter(AgentStreamEvent)
_emitting: ContextVar[bool] = ContextVar("holdfast_pydantic_ai_emitting", default=False)
_within: ContextVar[bool] = ContextVar("holdfast_pydantic_ai_within", default=False)
_OPTIONS = frozenset({"side_effects", "idempotent", "replay", "verify", "undo", "retry", "timeout"})


def _here() -> Context | None:
    """Returns the context in which a call is to be recorded. What happens inside a recorded call, as in an agent that a tool asks, is part of that call."""
    return None if _within.get() else current()


class _Calls(durable_exec.JournalCallableOperationBackend[dict[str, Any]]):
    """Records each unit of work of an agent as one call of the node in which it runs."""

    async def execute(
        self, *, operation_id: durable_exec.DurableOperationId, name: str, body: Callable[[], Awaitable[Any]], cache_key: object, config: dict[str, Any]
    ) -> Any:
        ctx = _here()
        if ctx is None or isinstance(operation_id, durable_exec.EventStreamHandlerId):
            return await body()  # an event is emitted where it happens; after a crash it is emitted again, and the attempt before is superseded

        async def unit() -> Any:
            token = _within.set(True)
            try:
                return await body()
            finally:
                _within.reset(token)

        key = _key(operation_id, cache_key)
        if key is not None and config.get("side_effects", "none") not in RECORDED:
            return await ctx.effect(unit, key=key, name=name, **config)
        rest = {k: v for k, v in config.items() if k in ("retry", "timeout")}
        return await ctx.step(unit, key=key, name=name, **rest)


def _key(operation_id: durable_exec.DurableOperationId, parts: object) -> str | None:
    """Returns the key of a tool's call, so that calls of one answer may run at the same time. A model may use the id of a call again."""
    if not isinstance(operation_id, durable_exec.ToolsetCallToolId) or not isinstance(parts, tuple):
        return None
    run = next((part for part in parts if isinstance(part, RunContext)), None)
    return None if run is None or run.tool_call_id is None else f"{run.run_id}.{run.run_step}.{run.tool_call_id}"


class HoldfastDurability(durable_exec.BaseDurabilityCapability[D]):
    """Makes an agent's model requests and tool calls durable where it runs inside a Holdfast run; elsewhere it changes nothing."""

    engine_spec = durable_exec.DurabilityEngineSpec(
        engine_name="Holdfast",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=durable_exec.JSON_CODEC,
        tool_config_key=KEY,
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
    )

    def __init__(self, *, models: Mapping[str, Model] | None = None, event_stream_handler: EventStreamHandler[D] | None = None, name: str | None = None) -> None:
        self._told = event_stream_handler

        async def tell(run: RunContext[D], events: AsyncIterable[AgentStreamEvent]) -> None:
            """Emits events where they happen: those of a model while it answers, within the recorded call."""
            passed = _pass_on(events) if _emitting.get() else events
            if event_stream_handler is not None:
                await event_stream_handler(run, passed)
            async for _ in passed:
                continue

        super().__init__(models=models, event_stream_handler=tell, name=name)

    @property
    def has_wrap_run_event_stream(self) -> bool:
        return self._told is not None or _emitting.get()

    @property
    def in_durable_context(self) -> bool:
        return _here() is not None

    def get_default_run_id(self) -> str | None:
        ctx = _here()
        return None if ctx is None else str(ctx.uuid())

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return durable_exec.conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> Any:
        ctx = _here()
        return None if ctx is None else ctx.now()

    def get_durable_operation_backend(self) -> durable_exec.DurableOperationBackend[Any]:
        declared = self._build_resolve_tool_config(UNDECLARED)

        def resolve(operation_id: Any, tool: Any, tool_name: str) -> Any:
            return _check(tool_name, declared(tool, tool_name))

        config: Any = durable_exec.RoleBasedOperationConfig(model={}, event={}, capability={}, tool=UNDECLARED, resolve_tool=resolve)
        return _Calls(agent_name=self.name, default_model_id=self.default_model_id, config=config)

    def _toolset_base_config(self, kind: durable_exec.ToolsetKind) -> dict[str, Any]:
        return UNDECLARED


def _check(tool: str, config: Any) -> Any:
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
        emit: give the agent's events out as chunks (``ctx.emit``), pieces of text as messages; the model must be able to stream.
        options: further arguments of ``agent.run``, such as ``deps`` or ``message_history``.
    """
    token = _emitting.set(emit)
    try:
        return await _run(ctx, agent, prompt, options)
    finally:
        _emitting.reset(token)


async def _run(ctx: Context, agent: Agent[Any, Any], prompt: str, options: dict[str, Any]) -> AgentRunResult[Any]:
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


async def _pass_on(events: AsyncIterable[AgentStreamEvent]) -> AsyncIterator[AgentStreamEvent]:
    """Yields the events, and emits them as chunks of the step in which they happen."""
    async for event in events:
        if (ctx := current()) is not None:
            ctx.emit(_piece(event))
        yield event


def _piece(event: AgentStreamEvent) -> Any:
    """Returns a chunk: a piece of a message with its role and content, or any other event as it is."""
    match event:
        case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
            return {"role": "assistant", "content": text}
    return _events.dump_python(event, mode="json")


def _count(ctx: Context, result: AgentRunResult[Any]) -> None:
    usage = result.usage
    ctx.spend(tokens=usage.total_tokens or 0)


__all__ = ["KEY", "HoldfastDurability", "run_agent"]
