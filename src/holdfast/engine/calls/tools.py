"""``ctx.tool``: a call of a declared tool: a recorded step if it only reads, else an effect (§6.1, §11.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.authoring import Tool, microseconds
from holdfast.core import canon
from holdfast.core.effects import Idempotency
from holdfast.core.errors import InvalidInput, ToolFailed, UsageError
from holdfast.core.retry import coerce
from holdfast.engine.calls import effects as performing
from holdfast.ports import ToolOutcome, ToolRequest

SLACK_US = 15_000_000
SHOWN = 500


class ToolCall:
    """The act: it goes through the runner, with the effect's key in its environment if it has one."""

    def __init__(self, ctx: Any, tool: Tool, env: Mapping[str, str], paths: tuple[str, ...], timeout_us: int, check: bool) -> None:
        self.__name__ = f"tool:{tool.name}"
        self._ctx = ctx
        self._tool = tool
        self._env = env
        self._paths = paths
        self._timeout_us = timeout_us
        self._check = check

    async def __call__(self, argv: Sequence[str], cwd: str, given: Any, idempotency_key: str = "") -> ToolOutcome:
        services = self._ctx._services
        if services.tool_runner is None:
            raise UsageError("no tool runner is configured", hint="Runtime(tool_runner=…)")
        env = dict(self._env) | ({"HOLDFAST_IDEMPOTENCY_KEY": idempotency_key} if idempotency_key else {})
        request = ToolRequest(
            tool=self._tool.name,
            command=(*self._tool.command, *argv),
            step_id=self._ctx.step_id,
            attempt=self._ctx.attempt,
            cwd=cwd,
            workspace=services.workspace,
            paths=self._paths,
            env=env,
            allow=self._tool.env,
            input=b"" if given is None else msgspec.json.encode(canon.thaw(given)),
            timeout_us=self._timeout_us,
        )
        outcome: ToolOutcome = await services.tool_runner.run(request)
        if self._check and not outcome.ok:
            said = (outcome.stderr.strip() or outcome.stdout.strip())[-SHOWN:]
            raise ToolFailed(f"{self._tool.name} ended with {outcome.exit_code}: {said}", hint="check=False hands the outcome to the node")
        return outcome


def call_tool(
    ctx: Any, name: str, args: Sequence[str] | str, *, cwd: Any, input: Any, env: Mapping[str, str], paths: Sequence[Any], check: bool, timeout: Any, **options: Any
) -> Any:
    """The coroutine of one ``ctx.tool`` call."""
    tool = ctx._services.tools.get(name) or Tool(name)
    argv = [args] if isinstance(args, str) else [str(a) for a in args]
    if any("\0" in a for a in argv):
        raise InvalidInput(f"an argument of {name} holds U+0000")
    timeout_us = microseconds(timeout if timeout is not None else tool.timeout, 60_000_000)
    act = ToolCall(ctx, tool, env, tuple(str(p) for p in paths), timeout_us, check)
    chosen = performing.Options(
        side_effects=tool.side_effects,
        idempotent=tool.idempotency != Idempotency.NOT_SUPPORTED,
        # The runner ends the process itself; this bound is for a runner that does not come back.
        timeout_us=timeout_us + SLACK_US,
        retry=coerce(options.pop("retry", None)),
        **options,
    )
    return performing.perform(ctx, act, (argv, str(cwd) if cwd is not None else "", input), chosen)


__all__ = ["ToolCall", "call_tool"]
