"""Executes the tool calls of one workspace for runs that are driven elsewhere (§11.3): ``holdfast tool-runner``.

A request is an intent of the type ``tool@WORKSPACE``, and this module is its transport: claim, lease, renewal, gate and settlement are the
dispatcher's. Three things are particular to tools. The command is that of a tool declared here, never one from the request. Nothing is begun for a run
that no longer waits for it, and a call in progress is ended when its run stops waiting. A request whose runner was lost is not sent again: the answer says so,
and the run that asked decides, as it does when a tool process of its own has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from holdfast import workspaces
from holdfast.authoring import Tool
from holdfast.core import bounds, canon, toolcalls
from holdfast.core.blobs import Blob, blob_of
from holdfast.core.commands import LateResult
from holdfast.core.commit import InboxItem
from holdfast.core.effects import LEDGERED, EffectClass, EffectStatus, Happened
from holdfast.core.errors import ErrorValue, HoldfastError, InvalidInput, RunNotFound, StoreError, UsageError
from holdfast.core.intents import SENDER_LOST, Intent, stands
from holdfast.core.retry import Retry
from holdfast.core.status import Status
from holdfast.core.toolcalls import Answer, Asked
from holdfast.engine.desk import door
from holdfast.handle import IntentView
from holdfast.outbox.dispatcher import NotBegun, Shut
from holdfast.outbox.transports import Given, NotConfigured, Signal
from holdfast.ports import Store, ToolOutcome, ToolRequest
from holdfast.tools import LocalRunner

AT_ONCE = 8
WEEK_SECONDS = 7 * 24 * 3600.0
WATCH_SECONDS = 0.5
UNWANTED = "the run does not wait for it any more"
ENDED = "its runner was ended in the middle of the call"


class RemoteTools:
    """The tools of a folder, for runs that are executed elsewhere with ``Runtime(workspace="remote:ID")``.

    Pass ``transports`` to a ``Runtime`` and call its ``dispatch``; ``holdfast tool-runner`` does both.

    Args:
        folder: the workspace in which the tools run; ``workspace`` is its id.
        tools: the tools that may be called. A request names one of them; it cannot bring a command of its own.
        at_once: how many calls may run at the same time. Of those that write, one runs at a time.
    """

    alone = True
    timeout = WEEK_SECONDS
    retry = Retry(max_attempts=10_000)

    def __init__(self, folder: str | os.PathLike[str], tools: Iterable[Tool], *, at_once: int = AT_ONCE) -> None:
        self._folder = os.path.abspath(bounds.path(folder, "folder"))
        self._tools = {t.name: t for t in door.several("tools", tools, (Tool,))}
        found = workspaces.find_id(self._folder) if os.path.isdir(self._folder) else None
        if found is None:
            raise UsageError(f"{self._folder} is not a folder in which this process can write", hint="a workspace is a folder with an id in .holdfast/workspace")
        self.workspace = found
        self._room = asyncio.Semaphore(at_once)
        self._runner = LocalRunner()
        self._mine: dict[str, tuple[Store, Intent]] = {}
        self._content: dict[str, list[Blob]] = {}

    @property
    def transports(self) -> Mapping[str, Any]:
        """What a ``Runtime`` needs to serve this workspace."""
        return {toolcalls.type_of(self.workspace): self}

    @property
    def names(self) -> tuple[str, ...]:
        """The tools that may be called."""
        return tuple(self._tools)

    # -- as the dispatcher uses it ------------------------------------------------------------------

    async def admit(self, store: Store, intent: Intent) -> str | None:
        """Checks an intent before each attempt. Returns the limit of its tool.

        Raises:
            NotConfigured: the tool is not declared here.
            Shut: the run no longer waits for the request, or the intent is no valid request.
        """
        try:
            asked = _read_request(intent)
        except InvalidInput as e:
            raise Shut(e.message) from None
        if (tool := self._tools.get(asked.tool)) is None:
            raise NotConfigured(UsageError(f"the tool {asked.tool!r} is not declared at this runner", hint="holdfast tool-runner --tools TARGET"))
        if not await _is_wanted(store, intent, asked):
            await _leave(store, intent, asked, EffectStatus.ABANDONED, UNWANTED)
            raise Shut(UNWANTED)
        self._mine[intent.key] = (store, intent)
        return tool.limit

    async def send(self, payload: Any, key: str) -> Any:
        """Runs one call and returns its answer, whatever the call's result is."""
        store, intent = self._mine.pop(key)
        asked = toolcalls.read_request(payload)
        tool = self._tools[asked.tool]
        async with contextlib.AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._room)
                await stack.enter_async_context(workspaces.lock(self._folder, writes=EffectClass(tool.side_effects) in LEDGERED))
            except asyncio.CancelledError:
                raise NotBegun("its runner was ended before its turn came") from None
            there = await store.intent(intent.intent_id)
            if there is None or not stands(there, intent) or (there.lease_until or 0) <= store.now():
                raise NotBegun("its lease was over when its turn came")
            answer, content = await self._do(store, intent, asked, self._request(asked, tool))
        self._content[intent.intent_id] = content
        return toolcalls.plain(answer)

    async def verify(self, payload: Any, key: str) -> Happened:
        """Answers for a call whose runner was lost: nobody knows what it did. The run decides with that answer."""
        return Happened(toolcalls.plain(Answer(owner="", lost=SENDER_LOST, closed=False)))

    def on_response(self, intent: IntentView, answer: dict[str, Any]) -> list[Given]:
        """Returns the answer as a signal to the run, and the content that the call has left, for the commit that settles the request."""
        lost = next((t.owner for t in reversed(intent.attempts) if t.outcome in ("lost", "unknown")), "")
        owner = answer["owner"] or lost
        name = toolcalls.owner_of(intent.type, intent.payload["place"])
        return [*self._content.pop(intent.intent_id, ()), Signal(name, {**answer, "owner": owner})]

    async def late(self, store: Store, intent: Intent) -> None:
        """Handles an outcome that came after another runner had taken the request. It is kept as evidence only, and the attempt is closed (§10.2)."""
        asked = _read_request(intent)
        self._content.pop(intent.intent_id, None)
        last = intent.tries[-1]
        said = f"tool:{asked.tool}: {last.outcome or 'ended'}, too late, at the runner {last.owner}"
        for effect in await store.effects(intent.run_id):
            if effect.effect_id == asked.effect_id and effect.status is EffectStatus.UNKNOWN and effect.owner == last.owner:
                await store.settle_effect(replace(effect, closed=True, detail=said), EffectStatus.UNKNOWN)
        command = LateResult(f"{intent.intent_id}@{last.number}", said)
        try:
            await store.put(InboxItem(intent.run_id, command.key, command, store.now()))
        except RunNotFound:
            return  # its lineage was pruned

    # -- the call -----------------------------------------------------------------------------------

    def _request(self, asked: Asked, tool: Tool) -> ToolRequest:
        env = asked.env | ({"HOLDFAST_IDEMPOTENCY_KEY": asked.key} if asked.key else {})
        return ToolRequest(
            tool=tool.name, command=(*tool.command, *asked.argv), step_id=asked.step_id, attempt=asked.attempt, cwd=asked.cwd, workspace=self._folder, paths=asked.paths,
            env=env, allow=tool.env, input=asked.input, timeout_us=asked.timeout_us, postconditions=tool.postconditions, artifacts=tool.artifacts,
        )

    async def _do(self, store: Store, intent: Intent, asked: Asked, request: ToolRequest) -> tuple[Answer, list[Blob]]:
        owner = intent.owner or ""
        act = asyncio.ensure_future(self._ran(request))
        watch = asyncio.ensure_future(_wait_until_unwanted(store, intent, asked))
        try:
            await asyncio.wait({act, watch}, return_when=asyncio.FIRST_COMPLETED)
            why = UNWANTED
        except asyncio.CancelledError:
            why = ENDED  # caught: the call is ended and answered, although this runner is ending too
        watch.cancel()
        if not act.done():
            act.cancel()
            await asyncio.wait({act})
        if act.cancelled():
            await _leave(store, intent, asked, EffectStatus.UNKNOWN, why)
            return Answer(owner=owner, lost=why), []
        if (error := act.exception()) is not None:
            return Answer(owner=owner, error=ErrorValue.of(error)), []
        outcome, content = act.result()
        try:
            data = canon.pack(outcome, request.tool)[1]
        except HoldfastError as e:
            return Answer(owner=owner, lost=f"done, but its result cannot be stored: {e.message}"), []
        if len(data) <= toolcalls.INLINE:
            return Answer(owner=owner, outcome=data), content
        blob = blob_of(data)
        return Answer(owner=owner, blob=blob.digest), [*content, blob]

    async def _ran(self, request: ToolRequest) -> tuple[ToolOutcome, list[Blob]]:
        outcome = await self._runner.run(request)
        return outcome, [Blob(a.sha256, a.size, await self._runner.content(request, a)) for a in outcome.artifacts]


def _read_request(intent: Intent) -> Asked:
    return toolcalls.read_request(canon.thaw(canon.decode(intent.payload)))


async def _is_wanted(store: Store, intent: Intent, asked: Asked) -> bool:
    """Whether the run still waits for this request."""
    found = await store.get(intent.run_id)
    if found is None or found[0].terminal or found[0].cancel_requested_at is not None:
        return False
    name = toolcalls.owner_of(intent.type, asked.place)
    return any(w.name == name for w in found[0].waits)


async def _wait_until_unwanted(store: Store, intent: Intent, asked: Asked) -> None:
    """Returns when the run no longer waits for the request. A failure of the store meanwhile does not count."""
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        try:
            if not await _is_wanted(store, intent, asked):
                return
        except StoreError:
            continue


async def _leave(store: Store, intent: Intent, asked: Asked, status: EffectStatus, why: str) -> None:
    """Notes on the attempt that it was not begun or was ended in the middle, because the run, which no longer waits, will not note it."""
    found = await store.get(intent.run_id)
    if not asked.effect_id or found is None or found[0].status is Status.FAILED:
        return  # a failed run still waits, and looks at the request when it is resumed
    owner = toolcalls.owner_of(intent.type, asked.place)
    for effect in await store.effects(intent.run_id):
        if effect.effect_id == asked.effect_id and effect.status is EffectStatus.ATTEMPTED and effect.owner == owner:
            over = store.now() if status is EffectStatus.ABANDONED else None
            await store.settle_effect(replace(effect, status=status, closed=True, detail=why, settled_at=over, owner=intent.owner or owner), EffectStatus.ATTEMPTED)


__all__ = ["RemoteTools"]
