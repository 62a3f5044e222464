"""One attempt at one task: a pipeline over one value: snapshot, call, interpret, pack (§4.2, §4.6)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.authoring import State
from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.channels import MISSING
from holdfast.core.checkpoint import IntentWrite, SendTo, Task, TaskResult
from holdfast.core.errors import BadReturn, ErrorValue, NodeMissing, StepFailure, SuspensionSwallowed
from holdfast.core.graph import END, Goto, Node, Program, Send
from holdfast.core.outcomes import OK, completes
from holdfast.core.retry import backoff
from holdfast.core.superstep import INTENTS, check_writes
from holdfast.engine.calls import bounded, call
from holdfast.engine.context import Context, Suspend
from holdfast.engine.journal import Draft, Journal
from holdfast.engine.services import Services


class StepError(Exception):
    """A task that failed for good: the error as a value, the outcome it reported, and the cause."""

    def __init__(self, task: str, cause: BaseException, error: ErrorValue, attempt: int, outcome: str = "failed") -> None:
        super().__init__(error.message)
        self.task = task
        self.cause = cause
        self.error = error
        self.attempt = attempt
        self.outcome = outcome


class Finished(msgspec.Struct, frozen=True):
    """A task's durable result, and its writes as the codec gives them back."""

    result: TaskResult
    writes: Mapping[str, Any]


NOTHING: Mapping[str, Any] = canon.EMPTY_DICT


async def execute(services: Services, journal: Journal, program: Program, task: Task) -> Finished:
    """Runs a task to its result, with its retries.

    Raises:
        Suspend: it rests in waits.
        StepError: it failed, its retries included.
    """
    if task.skip:
        return Finished(TaskResult(task.key, outcome=task.skip), NOTHING)
    node = program.nodes[task.node]
    snapshot = program.state._view(journal.checkpoint.values, node.reads)
    failures, due = journal.progress.attempts.get((task.key, ""), (0, 0))
    attempt = failures
    while True:
        if due:
            await services.clock.sleep(max(0, due - services.clock.now()) / 1_000_000)
        attempt += 1
        try:
            return await _attempt(services, journal, program, node, task, snapshot, attempt)
        except StepError:
            raise
        except Exception as e:
            if journal.dead is not None:
                raise journal.dead from None
            error = ErrorValue.of(e, where=task.key)
            if not node.retry.retries(e, attempt):
                raise StepError(task.key, e, error, attempt) from e
            due = services.clock.now() + backoff(f"{journal.run.run_id}.{journal.checkpoint.step + 1}.{task.key}@{attempt}", attempt, node.retry.base_us)
            journal.progress.attempts[task.key, ""] = (attempt, due)
            await journal.save(Draft(facts=[ev.StepRetryScheduled(journal.checkpoint.step + 1, task.key, attempt, due, error)]))


async def _attempt(
    services: Services, journal: Journal, program: Program, node: Node, task: Task, snapshot: State, attempt: int
) -> Finished:
    if node.when is not None and not node.when(snapshot):
        return Finished(TaskResult(task.key, outcome="skipped: when", attempt=attempt), NOTHING)
    ctx = Context(services, journal, node, task, attempt=attempt)
    value = await _call(node, snapshot, ctx)
    if ctx._suspended:
        raise SuspensionSwallowed(f"{node.name} caught the wait it was to rest in", hint="do not catch BaseException around ctx calls")
    return _finish(program, node, task, journal.checkpoint.values, ctx, value)


async def _call(node: Node, snapshot: State, ctx: Context) -> Any:
    """The node's own call. A coroutine is awaited directly: no task, no thread."""
    match node.shape:
        case "flow":
            args: tuple[Any, ...] = ()
            inputs = dict(snapshot)

            async def whole() -> Any:
                return await node.call(ctx, **inputs)

            return await call(whole, args, node.timeout_us, node.name)
        case "state":
            args = (snapshot,)
        case _:
            args = (snapshot, ctx)
    if node.asynchronous:
        return await bounded(node.call(*args), node.timeout_us, node.name)
    ctx._sync = True
    return await call(node.call, args, node.timeout_us, node.name)


def _finish(program: Program, node: Node, task: Task, values: Mapping[str, Any], ctx: Context, value: Any) -> Finished:
    """What the node returned, as a result: checked, packed, routed."""
    if program.flow:
        _, data = canon.pack(value, f"{program.id}()")
        result = TaskResult(task.key, outcome=_outcome(task, ctx), attempt=ctx.attempt, result=data)
        return Finished(msgspec.structs.replace(result, intents=tuple(ctx._intents), ledger=tuple(ctx._ledger)), NOTHING)
    raw, goto, sends = _interpret(node, value)
    if INTENTS in raw and INTENTS not in program.channels:
        ctx._intents += _intents(raw.pop(INTENTS))
    writes: Mapping[str, Any] = NOTHING
    packed: bytes | None = None
    if raw:
        check_writes(program, node, raw)
        writes, data = canon.pack(raw, node.name)
        packed = data
    chosen: tuple[str, ...] = ()
    if node.routers:
        chosen, routed = _route(program, node, values, writes)
        sends += routed
    for target in (*(goto or ()), *chosen, *(s.node for s in sends)):
        if target not in program.nodes:
            raise NodeMissing(f"{node.name} goes to {target!r}, which is not a node", hint="nodes: " + ", ".join(program.nodes))
    result = TaskResult(
        task=task.key,
        outcome=_outcome(task, ctx),
        writes=packed,
        goto=goto,
        chosen=chosen,
        sends=tuple(SendTo(s.node, canon.pack(s.payload, f"Send({s.node!r})")[1]) for s in sends),
        attempt=ctx.attempt,
        intents=tuple(ctx._intents),
        ledger=tuple(ctx._ledger),
    )
    return Finished(result, writes)


def _outcome(task: Task, ctx: Context) -> str:
    outcome = ctx._outcome
    if outcome is OK or completes(outcome):
        return outcome
    cause = StepFailure(f"{task.key} ended {outcome!r}, which is no completion")
    raise StepError(task.key, cause, ErrorValue.of(cause, where=task.key), ctx.attempt, outcome)


def _interpret(node: Node, value: Any) -> tuple[dict[str, Any], tuple[str, ...] | None, list[Send]]:
    """Writes, targets and sends of a return value.

    Raises:
        BadReturn: for anything but a mapping, Goto, Send, a list of Sends, or None.
    """
    if type(value) is dict:  # nearly always
        return value.copy(), None, []
    match value:
        case None:
            return {}, None, []
        case Goto():
            return dict(value.writes or {}), value.targets, []
        case Send():
            return {}, None, [value]
        case Mapping():
            return dict(value), None, []
        case list() | tuple() if all(isinstance(v, Send) for v in value):
            return {}, None, list(value)
    raise BadReturn(
        f"{node.name} returned {type(value).__name__}", hint="return a dict of writes, Goto(node, writes), [Send(node, payload)] or None"
    )


def _intents(written: Any) -> list[IntentWrite]:
    items = written if isinstance(written, list | tuple) else [written]
    out = []
    for item in items:
        if not isinstance(item, Mapping) or not isinstance(item.get("type"), str):
            raise BadReturn("an intent is a mapping with a type and a payload")
        rest = {k: v for k, v in item.items() if k not in ("type", "payload", "key", "order")}
        payload = item.get("payload", rest or None)
        out.append(IntentWrite(item["type"], canon.pack(payload, "intent")[1], str(item.get("key", "")), str(item.get("order", ""))))
    return out


def _route(program: Program, node: Node, values: Mapping[str, Any], writes: Mapping[str, Any]) -> tuple[tuple[str, ...], list[Send]]:
    """Asks the node's routers, which see the state with the node's own writes."""
    seen = dict(values)
    for name, value in writes.items():
        reducer = program.channels[name].reducer
        old = seen.get(name, MISSING)
        seen[name] = value if reducer.function is not None and old is MISSING else canon.admit(reducer(old, value), name)
    chosen: list[str] = []
    sends: list[Send] = []
    snapshot = program.state._view(seen)
    for router in node.routers:
        answer = router(snapshot)
        for target in answer if isinstance(answer, list | tuple) else [answer]:
            match target:
                case None:
                    continue
                case Send():
                    sends.append(target)
                case str() if target == END:
                    continue
                case str():
                    chosen.append(target)
                case _:
                    raise BadReturn(f"the router of {node.name} returned {target!r}", hint="return a node's name, END, Sends, or a list of them")
    return tuple(dict.fromkeys(chosen)), sends


__all__ = ["Finished", "StepError", "Suspend", "execute"]
