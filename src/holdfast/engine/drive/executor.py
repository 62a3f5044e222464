"""One attempt at one task: a pipeline over one value: snapshot, call, interpret, pack (§4.2, §4.6)."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from holdfast.authoring import State
from holdfast.core import bounds, canon, ids
from holdfast.core import events as ev
from holdfast.core.channels import MISSING
from holdfast.core.checkpoint import IntentWrite, SendTo, Task, TaskResult, written
from holdfast.core.effects import LEDGERED
from holdfast.core.errors import BadReturn, ErrorValue, NodeMissing, StepFailure, StepTimeout
from holdfast.core.graph import END, Goto, Node, Program, Send
from holdfast.core.outcomes import OK, completes, of_delivery
from holdfast.core.policy import gated
from holdfast.core.retry import backoff
from holdfast.core.superstep import INTENTS, check_writes, fitted, reduced
from holdfast.engine.base.failures import recorded
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.leaving import contained
from holdfast.engine.base.services import Services
from holdfast.engine.calls import effects as performing
from holdfast.engine.calls import gates, retries
from holdfast.engine.calls.context import Context, Restart, Suspend
from holdfast.engine.calls.functions import Patience, bounded, call
from holdfast.engine.calls.subflow import Subflow
from holdfast.engine.calls.waits import Redo, send_back


class StepError(Exception):
    """A task that failed for good: the error as a value, the outcome it reported, and the cause."""

    def __init__(self, task: str, cause: BaseException, error: ErrorValue, attempt: int, outcome: str = "failed") -> None:
        super().__init__(error.message)
        self.task = task
        self.cause = cause
        self.error = error
        self.attempt = attempt
        self.outcome = outcome


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A task's durable result, and its writes as the codec gives them back."""

    result: TaskResult
    writes: Mapping[str, Any]


NOTHING: Mapping[str, Any] = canon.EMPTY_DICT
FRESH = (0, 0)
HEAVY = 64 * 1024
"""Bytes of writes from which on they are weighed one by one."""
_result = msgspec.msgpack.Decoder(TaskResult)


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where in a run a task stands: ``key`` is the run's own task; ``path`` leads to one of a sub-flow inside it (§4.14)."""

    key: str
    path: str = ""

    @property
    def where(self) -> str:
        return f"{self.key}/{self.path}" if self.path else self.key


async def execute(
    services: Services, journal: Journal, program: Program, task: Task, *, values: Mapping[str, Any] | None = None, place: Place | None = None
) -> Finished:
    """Runs a task to its result, with its retries. A sub-flow gives the ``values`` and the ``place`` of its own.

    Raises:
        Suspend: it rests in waits.
        StepError: it failed, its retries included.
    """
    if task.skip:
        return Finished(TaskResult(task.key, outcome=task.skip), NOTHING)
    node = program.nodes[task.node]
    if values is None:
        values = journal.checkpoint.values
    if place is None:
        place = Place(task.key)
    attempt, due = journal.progress.attempts.get((place.key, place.path), FRESH)
    while True:
        if attempt:
            prefix = f"{place.path}/" if place.path else ""
            await retries.consented(Context(services, journal, node, task, attempt=attempt, prefix=prefix, root=place.key, program=program), node)
        if due:
            await services.clock.sleep(max(0, due - services.clock.now()) / 1_000_000)
        attempt += 1
        if attempt > 1:  # the first one is told by the step's own start and end (§10.9)
            began = ev.AttemptStarted(journal.checkpoint.step + 1, place.key, attempt, services.owner, place.path)
            journal.hold(Draft(facts=[began]))
        cause: BaseException
        try:
            return await _attempt(services, journal, program, node, task, values, place, attempt)
        except StepError as e:
            if node.shape != "subgraph":
                raise  # it reported an outcome of its own
            cause, error, outcome = e.cause, e.error, e.outcome
        except Restart as e:
            if program.flow:
                raise
            cause = StepFailure("ctx.restart is for flows", code="restart_outside_flow", hint="in a graph return Goto(node, writes)")
            raise StepError(place.key, cause, recorded(cause, where=place.where), attempt) from e
        except BaseException as e:
            # Conditions and routers are plain code that runs here: whatever they raise ends the step, not the process.
            cause = contained(e, node.name)
            error, outcome = recorded(cause, where=place.where), "failed"
        if journal.dead is not None:
            raise journal.dead from None  # the house's trouble, whatever the node made of it
        if not node.retry.retries(cause, attempt):
            raise StepError(place.key, cause, error, attempt, outcome) from cause
        step = journal.checkpoint.step + 1
        due = services.clock.now() + backoff(f"{ids.step_id(journal.run.run_id, step, place.key, place.path)}@{attempt}", attempt, node.retry.base_us)
        journal.progress.again(place.key, place.path, attempt, due, error)
        await journal.save(Draft(facts=[ev.StepRetryScheduled(step, place.key, attempt, due, error, place.path)]))


async def _attempt(
    services: Services, journal: Journal, program: Program, node: Node, task: Task, values: Mapping[str, Any], place: Place, attempt: int
) -> Finished:
    snapshot = program.state._view(values, node.reads)
    if node.when is not None and not node.when(snapshot):
        return Finished(TaskResult(task.key, outcome="skipped: when", attempt=attempt), NOTHING)
    if node.shape == "state" and node.check is None and not gated(node) and not journal.run.budgets:
        # It is given nothing but the state, and nobody is asked before it runs: it needs no context.
        return _finish(program, node, task, values, attempt, await _called(node, (snapshot,), Patience(node.timeout_us, own=node.timed)))
    while True:
        prefix = f"{place.path}/" if place.path else ""
        ctx = Context(services, journal, node, task, attempt=attempt, prefix=prefix, root=place.key, program=program, state=snapshot)
        try:
            if journal.run.budgets:
                await ctx._afford(f"{prefix}@budget")
            if gated(node):
                await gates.before(ctx, node, snapshot)
            if node.check is None:
                return await _run(services, journal, program, node, task, values, place, snapshot, ctx)
            made = gates.held(ctx)
            finished = Finished(made, written(made)) if made else await _run(services, journal, program, node, task, values, place, snapshot, ctx)
            ctx = Context(services, journal, node, task, attempt=attempt, prefix=prefix, root=place.key, program=program, state=snapshot)
            return Finished(await gates.after(ctx, node, snapshot, finished.result, finished.writes), finished.writes)
        except Redo as r:
            if r.target is None:
                send_back(ctx, r.feedback)
                continue
            told = canon.pack(r.feedback, "feedback")[1]
            return Finished(TaskResult(task.key, goto=(r.target,), feedback=told, attempt=attempt, ledger=tuple(ctx._ledger)), NOTHING)


async def _run(
    services: Services, journal: Journal, program: Program, node: Node, task: Task, values: Mapping[str, Any], place: Place, snapshot: State, ctx: Context
) -> Finished:
    """The step itself, as what it is: a sub-flow, an effect, or plain code."""
    if node.shape == "subgraph":
        return await _subflow(services, journal, program, node, task, values, place, ctx)
    if node.side_effects in LEDGERED:
        return await _as_effect(program, node, task, values, snapshot, ctx)
    return await _whole(program, node, task, values, snapshot, ctx)


async def _whole(program: Program, node: Node, task: Task, values: Mapping[str, Any], snapshot: State, ctx: Context) -> Finished:
    boundaries = ctx._journal.boundaries
    boundaries.enter(ctx._key, ctx)
    try:
        value = await _call(node, snapshot, ctx)
        ctx._end()
    except StepTimeout:
        if ctx._parked:
            await boundaries.stand(ctx)  # its time was up while it stood still, to be handed back: that is no failure of its own
        raise
    finally:
        ctx._closed = True
        boundaries.leave(ctx._key, ctx)
    return _finish(program, node, task, values, ctx.attempt, value, ctx)


async def _as_effect(program: Program, node: Node, task: Task, values: Mapping[str, Any], snapshot: State, ctx: Context) -> Finished:
    """A node that declares a side effect is one: its attempt is on record before it runs, its result is the record (§6.1)."""

    async def act(seen: Any, payload: Any) -> bytes:
        return msgspec.msgpack.encode((await _whole(program, node, task, values, snapshot, ctx)).result)

    options = performing.Options(
        side_effects=node.side_effects.value, idempotent=node.idempotent, verify=node.verify, undo=node.undo, timeout_us=0, name=f"node:{node.name}",
        cooperative=node.asynchronous,
    )  # fmt: skip
    data = await performing.perform_at(ctx, f"{ctx._root.prefix}@node", act, (dict(snapshot), ctx.payload), options)
    if not isinstance(data, bytes):  # a hook or a person said what happened: that is what it wrote
        return _finish(program, node, task, values, ctx.attempt, data, ctx)
    result = _result.decode(data)
    return Finished(result, written(result))


async def _call(node: Node, snapshot: State, ctx: Context) -> Any:
    """The node's own call, with what its signature asks for."""
    match node.shape:
        case "flow":
            inputs = dict(snapshot)

            async def whole() -> Any:
                return await node.call(ctx, **inputs)

            return await call(whole, (), ctx._patience, node.name)
        case "state":
            args: tuple[Any, ...] = (snapshot,)
        case _:
            args = (snapshot, ctx)
    ctx._sync = not node.asynchronous
    return await _called(node, args, ctx._patience)


def _called(node: Node, args: tuple[Any, ...], patience: Patience) -> Coroutine[Any, Any, Any]:
    """A coroutine is awaited directly: no task, no thread."""
    if node.asynchronous:
        return bounded(node.call(*args), patience, node.name)
    return call(node.call, args, patience, node.name)


async def _subflow(
    services: Services, journal: Journal, program: Program, node: Node, task: Task, values: Mapping[str, Any], place: Place, ctx: Context
) -> Finished:
    """A child graph in this node's place: driven to its end, then one merged write with its ledger rows and intents (§4.14)."""

    async def one(inner: Task, seen: Mapping[str, Any], path: str) -> tuple[TaskResult, Mapping[str, Any]]:
        finished = await execute(services, journal, node.child, inner, values=seen, place=Place(place.key, path))
        return finished.result, finished.writes

    child = Subflow(journal, node, place.key, place.path, services.parallel, one)
    ended = await call(child.drive, (values, ctx.payload), node.timeout_us, node.name)
    ctx._intents += ended.intents
    ctx._ledger += ended.ledger
    return _finish(program, node, task, values, ctx.attempt, ended.merged(program, node), ctx)


def _finish(
    program: Program, node: Node, task: Task, values: Mapping[str, Any], attempt: int, value: Any, ctx: Context | None = None
) -> Finished:
    """What the node returned, and what it did through its context, as a result: checked, packed, routed."""
    intents, ledger = ((), ()) if ctx is None else (tuple(ctx._intents), tuple(ctx._ledger))
    if program.flow:
        _, data = canon.pack(value, f"{program.id}()")
        return Finished(TaskResult(task.key, _outcome(node, task, ctx), attempt=attempt, result=data, intents=intents, ledger=ledger), NOTHING)
    raw, goto, sends = _interpret(node, value)
    if INTENTS in raw and INTENTS not in program.channels:
        intents += tuple(_intents(raw.pop(INTENTS)))
    writes, packed = NOTHING, None
    if raw:
        check_writes(program, node, raw)
        writes, packed = canon.pack(raw, node.name)
        if program.writes and (typed := fitted(program, node, writes)) is not writes:
            writes, packed = canon.pack(typed, node.name)
        if len(packed) > HEAVY:
            _weigh(program, writes, values)
    chosen: tuple[str, ...] = ()
    empty = isinstance(value, list | tuple) and not value
    if node.routers:
        chosen, routed, none = _route(program, node, values, writes)
        sends += routed
        empty = empty or none
    if goto or chosen or sends:
        _expect(program, node, [*(goto or ()), *chosen, *(s.node for s in sends)])
    result = TaskResult(
        task.key,
        _outcome(node, task, ctx),
        packed,
        goto,
        chosen,
        tuple([SendTo(s.node, canon.pack(s.payload, f"Send({s.node!r})")[1]) for s in sends]) if sends else (),
        attempt,
        intents=intents,
        ledger=ledger,
        unsent=tuple([n for n in node.sends if n not in chosen and all(s.node != n for s in sends)]) if empty else (),
    )
    return Finished(result, writes)


def _weigh(program: Program, writes: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Holds heavy writes, and what their channels have grown to, against their bounds (§14.3).

    Raises:
        TooLarge: naming the channel.
    """
    for name, value in writes.items():
        size = len(bounds.sized(canon.encode(value), name))
        if size > HEAVY and name not in program.lasting and name in values:
            bounds.sized(canon.encode(values[name]), f"{name}, grown", bounds.GROWN_BYTES - size)


def _expect(program: Program, node: Node, targets: list[str]) -> None:
    for target in targets:
        if target not in program.nodes:
            raise NodeMissing(f"{node.name} goes to {target!r}, which is not a node", hint="nodes: " + ", ".join(program.nodes))


def _outcome(node: Node, task: Task, ctx: Context | None) -> str:
    if ctx is None:
        return OK
    outcome = of_delivery(ctx._outcome) if node.delivers else ctx._outcome
    if outcome is OK or completes(outcome):
        return outcome
    cause = StepFailure(f"{task.key} ended {outcome!r}, which is no completion")
    raise StepError(task.key, cause, recorded(cause, where=task.key), ctx.attempt, outcome)


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


def _route(program: Program, node: Node, values: Mapping[str, Any], writes: Mapping[str, Any]) -> tuple[tuple[str, ...], list[Send], bool]:
    """Asks the node's routers, which see the state with the node's own writes. True: one of them gave an empty list."""
    seen = dict(values)
    for name, value in writes.items():
        reducer = program.channels[name].reducer
        old = seen.get(name, MISSING)
        seen[name] = reduced(name, reducer, old, value, program.values.get(name))
    chosen: list[str] = []
    sends: list[Send] = []
    empty = False
    snapshot = program.state._view(seen)
    for router in node.routers:
        answer = router(snapshot)
        empty = empty or (isinstance(answer, list | tuple) and not answer)
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
    return tuple(dict.fromkeys(chosen)), sends, empty


__all__ = ["Finished", "StepError", "Suspend", "execute"]
