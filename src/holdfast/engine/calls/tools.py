"""``ctx.tool``: a call of a declared tool: a recorded step if the tool only reads, otherwise an effect (§6.1, §11.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import workspaces
from holdfast.authoring import Tool, microseconds
from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.blobs import Blob
from holdfast.core.bounds import text
from holdfast.core.effects import LEDGERED, EffectClass, Idempotency
from holdfast.core.errors import ToolFailed, UsageError
from holdfast.core.evidence import ExitCode, judge, missing
from holdfast.core.retry import coerce
from holdfast.core.toolcalls import Answer, Asked
from holdfast.core.waits import WaitKind
from holdfast.engine.base.failures import revive
from holdfast.engine.base.journal import Draft
from holdfast.engine.calls import effects as performing
from holdfast.engine.calls import waits as waiting
from holdfast.engine.calls.attempt import Attempt
from holdfast.engine.calls.elsewhere import Elsewhere
from holdfast.ports import ToolOutcome, ToolRequest, outcome_told

SLACK_US = 15_000_000
SHOWN = 500


class ToolCall:
    """Runs a tool through the runner, with the effect's key in its environment if it has one. ``elsewhere``: the runners of a workspace in another process."""

    def __init__(self, attempt: Attempt, tool: Tool, env: Mapping[str, str], paths: tuple[str, ...], timeout_us: int, check: bool) -> None:
        self.__name__ = f"tool:{tool.name}"
        self._attempt = attempt
        self._tool = tool
        self._env = env
        self._paths = paths
        self._timeout_us = timeout_us
        self._check = check
        workspace = workspaces.away(attempt.services.workspace)
        self.elsewhere = None if workspace is None else Elsewhere(attempt, workspace, tool.name, self._ask, self._answer)

    async def __call__(self, argv: Sequence[str], cwd: str, given: Any, idempotency_key: str = "") -> ToolOutcome:
        services = self._attempt.services
        if self.elsewhere is not None:
            outcome: ToolOutcome = await self.elsewhere.read((argv, cwd, given))
            return outcome
        if services.tool_runner is None:
            raise UsageError("no tool runner is configured", hint="Runtime(tool_runner=…)")
        env = dict(self._env) | ({"HOLDFAST_IDEMPOTENCY_KEY": idempotency_key} if idempotency_key else {})
        request = ToolRequest(
            tool=self._tool.name,
            command=(*self._tool.command, *argv),
            step_id=self._attempt.step_id,
            attempt=self._attempt.number,
            cwd=cwd,
            workspace=services.workspace,
            paths=self._paths,
            env=env,
            allow=self._tool.env,
            input=_encode_input(given),
            timeout_us=self._timeout_us,
            postconditions=self._tool.postconditions,
            artifacts=self._tool.artifacts,
        )
        return await self._end(await services.tool_runner.run(request), request)

    def _ask(self, place: str, effect_id: str, key: str, args: tuple[Any, ...]) -> Asked:
        argv, cwd, given = args
        attempt = self._attempt
        return Asked(
            place=place, tool=self._tool.name, argv=tuple(argv), step_id=attempt.step_id, attempt=attempt.number, cwd=cwd,
            input=_encode_input(given), env=dict(self._env), paths=self._paths, timeout_us=self._timeout_us, effect_id=effect_id, key=key,
        )

    async def _answer(self, args: tuple[Any, ...], answer: Answer) -> ToolOutcome:
        """Returns the outcome that a runner has answered; it is checked like one of this process.

        Raises:
            ToolFailed: the answer is no outcome. Any other error is that of the runner's call.
        """
        if answer.error is not None:
            raise revive(answer.error)
        store, attempt = self._attempt.services.store, self._attempt
        data = await attempt.journal.asking(store.blob(answer.blob)) if answer.blob else answer.outcome
        outcome = canon.decode(data)
        if not isinstance(outcome, ToolOutcome):
            raise ToolFailed(f"the runner {answer.owner} answered with what is not the outcome of a tool")
        return await self._end(outcome, None, told=answer.word is not None)

    def take_word(self, value: Any) -> Callable[[], Awaitable[ToolOutcome]]:
        """Returns a function that gives the call's value from what a person has said: an outcome by the names of its fields, which is checked like any other
        outcome; an outcome object is used as it is.

        Raises:
            InvalidInput: what they said is no outcome.
        """
        outcome = value if isinstance(value, ToolOutcome) else outcome_told({} if value is None else value, "payload")

        async def judge_word() -> ToolOutcome:
            return outcome if outcome is value else await self._end(outcome, None, told=True)

        return judge_word

    async def _end(self, outcome: ToolOutcome, request: ToolRequest | None, *, told: bool = False) -> ToolOutcome:
        """Returns the call's value for an outcome. ``request``: what this process ran; None if it ran elsewhere and its files are in the store. ``told``: a person has stated the
        outcome, so no other evidence is required."""
        if self._attempt.node.capabilities:  # one of the capabilities is bound to this tool
            bound = ev.BindingAttempted(self._attempt.key, self._tool.name, "ok" if outcome.ok else "failed")
            self._attempt.journal.hold(Draft(facts=[bound]))
        if told and not outcome.reports:
            seen = [judge(c, outcome.exit_code) for c in self._tool.postconditions if isinstance(c, ExitCode)]
            outcome = msgspec.structs.replace(outcome, reports=tuple(seen))
        if not told:
            outcome = msgspec.structs.replace(outcome, reports=missing(self._tool.postconditions, outcome.reports))
        if outcome.reports or outcome.artifacts:
            await self._keep_evidence(outcome, request)
        if self._check and not outcome.ok and not any(isinstance(c, ExitCode) for c in self._tool.postconditions):
            said = (outcome.stderr.strip() or outcome.stdout.strip())[-SHOWN:]
            raise ToolFailed(f"{self._tool.name} ended with {outcome.exit_code}: {said}", hint="check=False hands the outcome to the node")
        return outcome

    async def _keep_evidence(self, outcome: ToolOutcome, request: ToolRequest | None) -> None:
        """Records the evidence with the end of the call, whether it succeeded or failed (§11.4).

        Raises:
            ToolFailed: a postcondition does not hold. Unserializable: a name or a detail cannot be stored.
        """
        canon.pack((outcome.reports, outcome.artifacts), self._tool.name)  # a file name may not be valid text: it is refused before it enters an event (§1.10)
        kept = Draft(facts=[ev.PostconditionEvaluated(r.kind, r.ok is True, r.detail, r.ok is not None) for r in outcome.reports])
        fetch = getattr(self._attempt.services.tool_runner, "content", None)
        for artifact in outcome.artifacts:
            if request is None:
                kept.blobs.append(Blob(artifact.sha256, artifact.size))
            elif fetch is not None:
                kept.blobs.append(Blob(artifact.sha256, artifact.size, await fetch(request, artifact)))
            kept.facts.append(ev.ArtifactCreated(artifact.name, artifact.size, artifact.sha256))
        self._attempt.journal.hold(kept)
        failed = [r for r in outcome.reports if r.ok is False]
        if failed:
            said = "; ".join(f"{r.kind}: {r.detail}" for r in failed)
            raise ToolFailed(f"{self._tool.name} did not do what it should: {said}", code="postcondition_failed")


def _encode_input(given: Any) -> bytes:
    """Returns what is passed on a tool's standard input."""
    return b"" if given is None else msgspec.json.encode(canon.thaw(given))


async def accept(attempt: Attempt, tool: Tool, call: Awaitable[Any]) -> Any:
    """Returns the outcome of a call; if evidence is missing, a person decides whether it counts (§11.4, T-96).

    The call is recorded by then. If it is approved, the run continues with it, and nothing is done a second time.
    """
    outcome = await call
    if not isinstance(outcome, ToolOutcome):
        return outcome  # a verify function has found it, which is evidence
    unseen = [r for r in outcome.reports if r.ok is None]
    if unseen:
        said = "; ".join(f"{r.kind}: {r.detail}" for r in unseen)
        shown = {"tool": tool.name, "exit_code": outcome.exit_code, "missing": [msgspec.structs.asdict(r) for r in unseen]}
        prompt = f"{tool.name} was called, and there is no evidence of what it did ({said}). Does it count as done?"
        await waiting.request(attempt, waiting.Ask(kind=WaitKind.TAKEOVER, prompt=prompt, name=tool.name, show=canon.admit(shown)))
    return outcome


def find_tool(value: object, field: str) -> str | Tool:
    """Finds a tool by its name, or takes a declared one."""
    return value if isinstance(value, Tool) else text(value, field)


def call_tool(
    attempt: Attempt, called: str | Tool, argv: Sequence[str], *, cwd: Any, input: Any, env: Mapping[str, str], paths: Sequence[Any], check: bool, timeout: Any, **options: Any
) -> Any:
    """Returns the coroutine of one ``ctx.tool`` call."""
    tool = called if isinstance(called, Tool) else attempt.services.tools.get(called) or Tool(called)
    timeout_us = microseconds(timeout if timeout is not None else tool.timeout, 60_000_000)
    act = ToolCall(attempt, tool, env, tuple(paths), timeout_us, check)
    chosen = performing.Options(
        side_effects=tool.side_effects,
        idempotent=tool.idempotency != Idempotency.NOT_SUPPORTED,
        # The runner itself ends the process at its timeout; this bound is for a runner that does not return.
        timeout_us=timeout_us + SLACK_US,
        retry=coerce(options.pop("retry", None)),
        limit=tool.limit if act.elsewhere is None else None,  # a runner in another process holds the limit while it runs the tool
        elsewhere=act.elsewhere,
        told=act.take_word,
        **options,
    )
    call = performing.perform(attempt, act, (argv, cwd or "", input), chosen)
    call = accept(attempt, tool, call) if tool.postconditions else call
    return call if attempt.services.workspace is None else at_its_place(attempt, tool, call)


async def at_its_place(attempt: Attempt, tool: Tool, call: Coroutine[Any, Any, ToolOutcome]) -> ToolOutcome:
    """Returns the outcome of a call in the workspace. The run's first such call records which folder that is before it acts; only one run at a time writes there (§11.3)."""
    services, journal = attempt.services, attempt.journal
    try:
        folder = workspaces.find_id(services.workspace) if services.workspace is not None else None
        services.here(journal.run)
    except BaseException:
        call.close()
        raise
    if folder is not None and journal.run.workspace is None and not any(isinstance(f, ev.RunPatched) and f.workspace for f in journal.held.facts):
        journal.hold(Draft(facts=[ev.RunPatched(workspace=folder)]))
    async with workspaces.lock(services.workspace, writes=EffectClass(tool.side_effects) in LEDGERED):
        return await call


__all__ = ["ToolCall", "call_tool", "find_tool"]
