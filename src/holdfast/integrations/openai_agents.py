"""The OpenAI Agents SDK on Holdfast (extra ``openai-agents``).

``run_agent(ctx, agent, input)`` runs an agent inside a node or a flow. Each request to the model is a recorded step, each call
of a function tool an effect under the call's id. ``reads=`` names the tools that only read: those are recorded steps. A tool
with ``needs_approval=True`` opens an approval, which a person may answer days later.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from collections.abc import AsyncIterator, Collection
from contextvars import ContextVar
from typing import Any

from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    FunctionTool,
    Handoff,
    LocalShellTool,
    ModelRetryAdvice,
    ModelRetryAdviceRequest,
    RunConfig,
    RunContextWrapper,
    RunErrorHandlers,
    RunHooks,
    Runner,
    ShellTool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
)
from agents.items import ModelResponse, TResponseStreamEvent
from agents.models.interface import Model, ModelProvider
from agents.result import RunResult, RunResultBase, RunResultStreaming
from agents.tool_context import ToolContext
from openai.types.responses import ResponseCompletedEvent, ResponseTextDeltaEvent
from pydantic import TypeAdapter

from holdfast import Context, StepFailure, UsageError, current

_response: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
_any: TypeAdapter[Any] = TypeAdapter(Any)
_CONTENT = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)
_within: ContextVar[bool] = ContextVar("holdfast_openai_agents_within", default=False)
_RUNS_HERE = (ComputerTool, LocalShellTool, ShellTool, ApplyPatchTool)


def _here() -> Context | None:
    """Returns the context in which a call is to be recorded. What happens inside a recorded call, as in an agent that is a tool, is part of that call."""
    return None if _within.get() else current()


class Requests:
    """Counts the requests to models in one run of an agent. A tool's call is identified by the request before it too, because a model may use an id again."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._count = 0

    def begin(self) -> None:
        """Counts another request."""
        self._count += 1

    def key(self, call_id: str) -> str:
        """Returns the key of a tool's call."""
        return f"{self._prefix}.{self._count}.{call_id}"


class RecordedModel(Model):
    """A model whose answers are recorded steps of the run in which it is asked."""

    def __init__(self, inner: Model, requests: Requests | None = None) -> None:
        self._inner: Model = inner.plain if isinstance(inner, RecordedModel) else inner
        self._requests = requests or Requests()

    @property
    def plain(self) -> Model:
        """The wrapped model."""
        return self._inner

    async def close(self) -> None:
        await self._inner.close()

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._inner.get_retry_advice(request)

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        async def request() -> Any:
            # Fields that were not set must stay unset: the SDK distinguishes them from those set to None.
            return _response.dump_python(await self._inner.get_response(*args, **options), mode="json", exclude_unset=True)

        ctx = _here()
        if ctx is None:
            return await self._inner.get_response(*args, **options)
        self._requests.begin()
        return _response.validate_python(await ctx.step(request, name="model_request"))

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        """Yields the events of an answer while it comes in; of a recorded answer only the last. Pieces of its text are messages of the run's stream."""
        ctx = _here()
        if ctx is None:
            async for event in self._inner.stream_response(*args, **options):
                yield event
            return
        told: asyncio.Queue[TResponseStreamEvent | None] = asyncio.Queue()

        async def request() -> Any:
            whole: Any = None
            async for event in self._inner.stream_response(*args, **options):
                if isinstance(event, ResponseCompletedEvent):
                    whole = event.model_dump(mode="json", exclude_unset=True)
                    continue
                if isinstance(event, ResponseTextDeltaEvent):
                    ctx.emit({"role": "assistant", "content": event.delta})
                told.put_nowait(event)
            if whole is None:
                raise StepFailure("the model's stream ended without its answer", code="model_stream_ended")
            return whole

        self._requests.begin()
        step = asyncio.ensure_future(ctx.step(request, name="model_request"))
        step.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (piece := await told.get()) is not None:
                yield piece
            yield ResponseCompletedEvent.model_validate(await step)
        finally:
            step.cancel()


class _Recorded(ModelProvider):
    def __init__(self, inner: ModelProvider, requests: Requests) -> None:
        self._inner = inner
        self._requests = requests

    def get_model(self, model_name: str | None) -> Model:
        return RecordedModel(self._inner.get_model(model_name), self._requests)


def _keep(tool: FunctionTool, value: Any) -> Any:
    """Returns a tool's answer as it is recorded: plain values as they are, content parts and declared outputs as JSON, any other object as the text that the model gets."""
    if tool.output_json_schema is not None:
        return _any.dump_python(value, mode="json")
    if isinstance(value, _CONTENT) or (isinstance(value, list) and value and all(isinstance(v, _CONTENT) for v in value)):
        return _any.dump_python(value, mode="json", exclude_none=True)
    return value if _plain(value) else str(value)


def _plain(value: Any) -> bool:
    match value:
        case dict():
            return all(isinstance(k, str) and _plain(v) for k, v in value.items())
        case list():
            return all(map(_plain, value))
    return value is None or type(value) in (str, int, float, bool)


class RecordedCalls:
    """What a function tool does when it is called: an effect under the call's id, or a recorded step."""

    def __init__(self, tool: FunctionTool, requests: Requests, *, read: bool, idempotent: bool) -> None:
        self.tool = tool
        self._requests = requests
        self._read = read
        self._idempotent = idempotent

    async def __call__(self, given: ToolContext[Any], arguments: str) -> Any:
        ctx = _here()
        if ctx is None:
            return await self.tool.on_invoke_tool(given, arguments)

        async def call(text: str) -> Any:
            token = _within.set(True)
            try:
                return _keep(self.tool, await self.tool.on_invoke_tool(given, text))
            finally:
                _within.reset(token)

        key = self._requests.key(given.tool_call_id)
        if self._read:
            return await ctx.step(call, arguments, key=key, name=self.tool.name)
        return await ctx.effect(call, arguments, key=key, name=self.tool.name, idempotent=self._idempotent)


def durable(tool: FunctionTool, *, read: bool = False, idempotent: bool = False, requests: Requests | None = None) -> FunctionTool:
    """Returns the tool with its calls recorded: as an effect under the call's id, or with ``read`` as a recorded step.

    Args:
        tool: a function tool.
        read: the tool changes nothing, so that it may be called again after a crash.
        idempotent: the receiver drops a repeated call, so that it is called again under the same key.
        requests: those of the run in which the tool is called.
    """
    plain = tool.on_invoke_tool.tool if isinstance(tool.on_invoke_tool, RecordedCalls) else tool
    made = copy.copy(plain)
    made.on_invoke_tool = RecordedCalls(plain, requests or Requests(), read=read, idempotent=idempotent)
    return made


def record(agent: Agent[Any], *, reads: Collection[str] = (), idempotent: Collection[str] = (), requests: Requests | None = None) -> Agent[Any]:
    """Returns the agent, and those it hands over to, with recorded models and function tools. An agent that has them already gets new ones.

    Raises:
        UsageError: it has a tool with side effects here that cannot be recorded.
    """
    return _Recorder(reads, idempotent, requests or Requests()).agent(agent)


class RecordedHandoff:
    """A handover to an agent, whose calls are recorded from there on."""

    def __init__(self, inner: Handoff[Any, Any], recorder: _Recorder) -> None:
        self.inner = inner
        self._recorder = recorder

    async def __call__(self, given: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
        return self._recorder.agent(await self.inner.on_invoke_handoff(given, arguments))


class _Recorder:
    """Makes copies of the agents of one run, each once, because agents may hand over in a circle."""

    def __init__(self, reads: Collection[str], idempotent: Collection[str], requests: Requests) -> None:
        self._reads = reads
        self._idempotent = idempotent
        self._requests = requests
        self._made: list[tuple[Agent[Any], Agent[Any]]] = []

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        if known := next((made for plain, made in self._made if agent is plain or agent is made), None):
            return known
        if agent.mcp_servers:
            raise UsageError(f"the agent {agent.name!r} calls MCP servers itself, which is not recorded", hint="call their tools in function tools, by holdfast.integrations.mcp.mcp_tool")
        if odd := next((t for t in agent.tools if isinstance(t, _RUNS_HERE)), None):
            raise UsageError(f"the agent {agent.name!r} has the tool {odd.name!r}, which has side effects here that are not recorded", hint="use a function tool")
        model = RecordedModel(agent.model, self._requests) if isinstance(agent.model, Model) else agent.model
        made = dataclasses.replace(agent, model=model, tools=[self._tool(t) if isinstance(t, FunctionTool) else t for t in agent.tools])
        self._made.append((agent, made))
        made.handoffs = [self._handoff(h) if isinstance(h, Handoff) else self.agent(h) for h in agent.handoffs]
        return made

    def _tool(self, tool: FunctionTool) -> FunctionTool:
        return durable(tool, read=tool.name in self._reads, idempotent=tool.name in self._idempotent, requests=self._requests)

    def _handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        plain = handoff.on_invoke_handoff.inner if isinstance(handoff.on_invoke_handoff, RecordedHandoff) else handoff
        return dataclasses.replace(plain, on_invoke_handoff=RecordedHandoff(plain, self))


def _configure(given: RunConfig | dict[str, Any] | None, requests: Requests) -> RunConfig:
    """Returns the config with recorded models."""
    config = RunConfig(tracing_disabled=True) if given is None else RunConfig(**given) if isinstance(given, dict) else given
    if config.sandbox is not None:
        raise UsageError("the run_config has a sandbox, which has side effects here that are not recorded", hint="use function tools")
    model = RecordedModel(config.model, requests) if isinstance(config.model, Model) else config.model
    return dataclasses.replace(config, model=model, model_provider=_Recorded(config.model_provider, requests))


async def run_agent(
    ctx: Context,
    agent: Agent[Any],
    input: Any,
    *,
    reads: Collection[str] = (),
    idempotent: Collection[str] = (),
    max_turns: int | None = 10,
    context: Any = None,
    emit: bool = False,
    run_config: RunConfig | dict[str, Any] | None = None,
    hooks: RunHooks[Any] | None = None,
    error_handlers: RunErrorHandlers[Any] | None = None,
    previous_response_id: str | None = None,
    conversation_id: str | None = None,
) -> RunResultBase:
    """Runs an agent inside a node or a flow until it has its answer.

    Args:
        ctx: the context of the node or flow.
        agent: an agent as the SDK has it; its models and tools need no change.
        input: what the user says, or a list of input items.
        reads: names of tools that only read.
        idempotent: names of tools whose receiver drops a repeated call.
        max_turns: as in ``Runner.run``.
        context: as in ``Runner.run``.
        emit: ask the model for a stream, and give the pieces of its text out as messages (``ctx.emit``).
        run_config: as in ``Runner.run``; what its models answer is on record. Without one, nothing is traced.
        hooks: as in ``Runner.run``. They, guardrails and filters of a config are not on record: after a crash they are called again.
        error_handlers: as in ``Runner.run``.
        previous_response_id: as in ``Runner.run``.
        conversation_id: as in ``Runner.run``.

    Raises:
        UsageError: the agent has a tool, or the config a sandbox, with side effects here that cannot be recorded.
    """
    requests = Requests(str(ctx.uuid()))
    config = _configure(run_config, requests)
    kept = record(agent, reads=reads, idempotent=idempotent, requests=requests)

    async def stretch(given: Any) -> RunResult | RunResultStreaming:
        if not emit:
            return await Runner.run(
                kept, given, context=context, max_turns=max_turns, hooks=hooks, run_config=config, error_handlers=error_handlers,
                previous_response_id=previous_response_id, conversation_id=conversation_id,
            )
        streamed = Runner.run_streamed(
            kept, given, context=context, max_turns=max_turns, hooks=hooks, run_config=config, error_handlers=error_handlers,
            previous_response_id=previous_response_id, conversation_id=conversation_id,
        )
        async for _ in streamed.stream_events():
            continue  # pieces are emitted where the model is asked
        return streamed

    result = await stretch(input)
    while result.interruptions:
        state = result.to_state()
        for item in result.interruptions:
            shown = {"tool": item.name, "arguments": item.arguments}
            decision = await ctx.approve(f"{item.name}?", show=shown, on_deny="deliver")
            if decision.approved:
                state.approve(item)
            else:
                state.reject(item)
        result = await stretch(state)
    usage = result.context_wrapper.usage
    ctx.spend(tokens=usage.total_tokens)
    return result


__all__ = ["RecordedModel", "durable", "record", "run_agent"]
