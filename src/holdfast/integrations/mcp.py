"""MCP (extra ``mcp``): runs, waits and decisions as tools of a server, and a server's tools as effects of a run."""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, TypeVar

from mcp import Client
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from holdfast import Context, HoldfastError, Runtime, StepFailure, UsageError, current
from holdfast.core.errors import RunNotFound

P = ParamSpec("P")
T = TypeVar("T")
SCOPES = ("view", "submit", "decide", "cancel")


Check = Callable[[], Awaitable[None]]
"""Awaited before each call; it raises if the caller is no longer allowed to do anything."""


async def _anybody() -> None:
    """Lets every call through."""


def server(rt: Runtime, *, actor: str, scopes: tuple[str, ...] = SCOPES, tenant_id: str | None = None, check: Check = _anybody) -> MCPServer:
    """A server whose tools start, show, decide, signal and cancel runs of a runtime.

    Args:
        rt: an open runtime.
        actor: the name under which decisions are recorded.
        scopes: what a client may do: ``view``, ``submit``, ``decide``, ``cancel``. Tools outside them are not offered.
        tenant_id: the tenant whose runs a client sees; None for a store without tenants.
        check: awaited before each call; what it raises is the answer. In this way a token that was revoked meanwhile is refused.
    """
    if odd := set(scopes) - set(SCOPES):
        raise UsageError(f"the scope {min(odd)!r} is not known", hint="scopes: " + ", ".join(SCOPES))
    made = MCPServer("holdfast", log_level="WARNING")

    def offer(function: Callable[P, Awaitable[T]]) -> None:
        """Offers a tool. An error is reported by its code, message and hint, and nothing else."""

        @functools.wraps(function)
        async def serve(*args: P.args, **options: P.kwargs) -> T:
            try:
                await check()
                return await function(*args, **options)
            except HoldfastError as e:
                raise ToolError(e.line()) from e

        made.tool()(serve)

    async def find(run_id: str) -> dict[str, Any]:
        record: dict[str, Any] = await rt.record(run_id)
        if tenant_id is not None and record["tenant_id"] != tenant_id:
            raise RunNotFound(f"there is no run {run_id!r}", hint="list the runs: holdfast runs")
        return record

    if "view" in scopes:

        @offer
        async def get_run(run_id: str) -> dict[str, Any]:
            """One run: status, condition, values, open waits, result or error."""
            return await find(run_id)

        @offer
        async def list_skills() -> list[dict[str, str]]:
            """The skills that can be started here."""
            return [{"skill_id": p.id, "version": p.version} for p in rt.skills]

        @offer
        async def list_waits() -> list[dict[str, Any]]:
            """The questions that wait for a person, with the actions that answer them."""
            waits = [w for w in await rt.waits() if tenant_id is None or (await rt.record(w.run_id))["tenant_id"] == tenant_id]
            return [{"wait_id": w.wait_id, "run_id": w.run_id, "kind": w.kind, "prompt": w.prompt, "show": w.show, "actions": list(w.available_actions)} for w in waits]

    if "submit" in scopes:

        @offer
        async def start_run(skill_id: str, input: dict[str, Any], key: str) -> dict[str, Any]:
            """Starts a run. The same key with the same input gives the run that is already there."""
            run = await rt.submit(skill_id, input, key=key) if tenant_id is None else await rt.submit(skill_id, input, key=key, tenant_id=tenant_id)
            return await find(run.run_id)

    if "decide" in scopes:

        @offer
        async def decide(run_id: str, wait_id: str, action: str, feedback: str | None = None, note: str | None = None) -> dict[str, Any]:
            """Answers a question of a run by one of its actions."""
            await find(run_id)
            await rt.decide(run_id, action, wait_id=wait_id, actor=actor, feedback=feedback, note=note)
            return await find(run_id)

        @offer
        async def signal_run(run_id: str, name: str, payload: Any, key: str) -> dict[str, Any]:
            """Gives a run a signal. The same key is delivered once."""
            await find(run_id)
            await rt.signal(run_id, name, payload, key=key, actor=actor)
            return await find(run_id)

    if "cancel" in scopes:

        @offer
        async def cancel_run(run_id: str, reason: str = "") -> dict[str, Any]:
            """Asks a run to end."""
            await find(run_id)
            await rt.cancel(run_id, actor=actor, reason=reason)
            return await find(run_id)

    return made


async def mcp_tool(session: Any, name: str, /, arguments: Mapping[str, Any] | None = None, *, key: str | None = None) -> list[Any]:
    """Calls a server's tool from a node or a flow: a recorded step where it only reads, else an effect.

    The tool's annotations decide: ``readOnlyHint`` makes it a step, ``idempotentHint`` lets it be called again under the same
    key after a crash. Without either, a person is asked about a call whose outcome is unknown.

    Args:
        session: what ``mcp.Client`` takes (a server, a URL, a transport), or an open client.
        name: the tool.
        arguments: by name.
        key: frees the call from its position, as for ``ctx.step``.

    Returns:
        The content blocks of the answer, as plain values.

    Raises:
        StepFailure: the tool is not offered (``mcp_tool_missing``) or reported an error (``mcp_tool_failed``).
    """
    ctx: Context | None = current()
    if ctx is None:
        raise UsageError("mcp_tool was called outside a node", hint="call it in a node or a flow, or use the client itself")

    async def annotations() -> dict[str, bool]:
        async with _open(session) as client:
            tool = next((t for t in (await client.list_tools()).tools if t.name == name), None)
        if tool is None:
            raise StepFailure(f"the server has no tool {name!r}", code="mcp_tool_missing")
        known = tool.annotations
        return {"read": bool(known and known.read_only_hint), "idempotent": bool(known and known.idempotent_hint)}

    async def call(text: str) -> list[Any]:
        async with _open(session) as client:
            answer = await client.call_tool(name, json.loads(text))
        if answer.is_error:
            raise StepFailure(f"the tool {name!r} reported an error: {_text(answer)}", code="mcp_tool_failed")
        return [block.model_dump(mode="json") for block in answer.content]

    kind = await ctx.step(annotations, key=None if key is None else f"{key}.about", name=f"mcp.{name}.about")
    text = json.dumps(dict(arguments or {}), sort_keys=True)
    if kind["read"]:
        found: list[Any] = await ctx.step(call, text, key=key, name=f"mcp.{name}")
    else:
        found = await ctx.effect(call, text, key=key, name=f"mcp.{name}", idempotent=kind["idempotent"])
    return found


class _Borrowed(AbstractAsyncContextManager[Any]):
    """Leaves an open client open, because its owner closes it."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def __aenter__(self) -> Any:
        return self._client

    async def __aexit__(self, *_: object) -> None:
        return None


def _open(session: Any) -> AbstractAsyncContextManager[Any]:
    return _Borrowed(session) if hasattr(session, "call_tool") and not isinstance(session, MCPServer) else Client(session)


def _text(answer: Any) -> str:
    return " ".join(getattr(block, "text", "") for block in answer.content)[:500]


__all__ = ["SCOPES", "mcp_tool", "server"]
