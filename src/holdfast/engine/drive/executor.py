"""Executes one attempt of one task: take a snapshot, call the node, interpret what it returns, pack it (§4.2, §4.6)."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from operator import attrgetter
from typing import Any, cast

import msgspec

from holdfast.authoring import State
from holdfast.core import bounds, canon, ids
from holdfast.core import events as ev
from holdfast.core.channels import MISSING, ROOM
from holdfast.core.checkpoint import SendTo, Task, TaskResult, decode_writes
from holdfast.core.effects import LEDGERED
from holdfast.core.errors import BadReturn, ErrorValue, NodeMissing, StepFailure, make_own
from holdfast.core.graph import END, Goto, Node, Program, Send
from holdfast.core.outcomes import OK, completes, of_delivery
from holdfast.core.retry import backoff, time_left
from holdfast.core.superstep import INTENTS, check_writes, fit_writes, reduce_write
from holdfast.engine.base.failures import ControlFlow, contain, record
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.services import Services
from holdfast.engine.calls import effects as performing
from holdfast.engine.calls import gates, left, retries, steps
from holdfast.engine.calls.attempt import Attempt, Restart, Suspend
from holdfast.engine.calls.context import Context, Given, Hand, face
from holdfast.engine.calls.functions import Patience, await_in_time, call
from holdfast.engine.calls.holds import hold
from holdfast.engine.calls.subflow import Subflow
from holdfast.engine.calls.waits import Redo
from holdfast.engine.calls.written import read_intents


class StepError(Exception):
    """A task that failed for good: the error as a value, the outcome that it reported, and the exception."""

    def __init__(self, task: str, cause: BaseException, error: ErrorValue, attempt: int, outcome: str = "failed") -> None:
        super().__init__(error.message)
        self.task = task
        self.cause = cause
        self.error = error
        self.attempt = attempt
        self.outcome = outcome


class Finished(msgspec.Struct, frozen=True, gc=False):
    """A task's durable result, and its writes as the codec decodes them."""

    result: TaskResult
    writes: Mapping[str, Any]


NOTHING: Mapping[str, Any] = canon.EMPTY_DICT
FRESH = (0, 0)
CODE = ("state", "state_ctx")
"""The shapes of nodes that are one function of the user, called once."""
HEAVY = 64 * 1024
"""From this many bytes on, each write is weighed separately."""
_result = msgspec.msgpack.Decoder(TaskResult)


class Place(msgspec.Struct, frozen=True, gc=False):
    """The position of a task in a run: ``key`` is the run's own task; ``path`` leads to a task of a sub-flow inside it (§4.14)."""

    key: str
    path: str = ""

    @property
    def where(self) -> str:
        return f"{self.key}/{self.path}" if self.path else self.key


class Ahead(msgspec.Struct):
    """A first attempt of a light node that was begun elsewhere (``beginner``, ``fused``): the rest of its call, and its ``Hand``."""

    calling: Coroutine[Any, Any, Any]
    hand: Hand


async def execute(
    services: Services, journal: Journal, program: Program, task: Task, *, values: Mapping[str, Any] | None = None, place: Place | None = None,
    ahead: Ahead | None = None,
) -> Finished:
    """Runs a task until it has a result, retries included. For a task of a sub-flow, ``values`` and ``place`` are those of the sub-flow. ``ahead``: an attempt
    that has begun elsewhere and is continued.

    Raises:
        Suspend: it waits.
        StepError: it failed, and so did its retries.
    """
    if task.skip:
        return Finished(TaskResult(task.key, outcome=task.skip), NOTHING)
    node = program.nodes[task.node]
    if values is None:
        values = journal.progress.checkpoint.see_as(task) if task.began else journal.progress.checkpoint.values
    if place is None:
        place = Place(task.key)
    attempt, due = journal.progress.attempts.get((place.key, place.path), FRESH)
    while True:
        if attempt:
            await retries.ask_consent(Attempt(services, journal, node, task, number=attempt, key=place.key, inner=place.path, program=program))
        if due:
            await services.clock.sleep(time_left(due, services.clock.now(), attempt, node.retry.base_us) / 1_000_000)
        attempt += 1
        if attempt > 1:  # the events of the step itself tell of the first attempt (§10.9)
            began = ev.AttemptStarted(journal.progress.checkpoint.step_of(place.key), place.key, attempt, services.owner, place.path)
            journal.hold(Draft(facts=[began]))
        cause: BaseException
        try:
            if ahead is None:
                finished = await _attempt(services, journal, program, node, task, values, place, attempt)
            else:
                begun, ahead = ahead, None
                try:
                    finished = await _go_on(program, node, task, values, attempt, begun)
                except Redo as r:
                    sent = begun.hand.send_back(r.target, r.feedback)
                    finished = Finished(sent, NOTHING) if sent is not None else await _attempt(services, journal, program, node, task, values, place, attempt)
            tip = journal.tip
            if tip is not None and tip.since + tip.whole > ROOM and not place.path:
                journal.weights.hold(program.channels, journal.progress.checkpoint.values, [finished.writes])
            return finished
        except StepError as e:
            if node.shape != "subgraph":
                raise  # the node has reported its own outcome
            cause, error, outcome = e.cause, e.error, e.outcome
        except Restart as e:
            if program.flow:
                raise
            cause = StepFailure("ctx.restart is for flows", code="restart_outside_flow", hint="in a graph return Goto(node, writes)")
            raise StepError(place.key, cause, record(cause, where=place.where), attempt) from e
        except ControlFlow:
            raise
        except BaseException as e:
            # Conditions and routers are plain user code that runs here: an error in them ends the step, not the process.
            cause = contain(e, node.name)
            error, outcome = record(cause, where=place.where), "failed"
        try:
            if journal.dead is not None:
                raise make_own(journal.dead) from None  # an error of the store or the lease, whatever the node made of it
            if not node.retry.retries(cause, attempt):
                raise StepError(place.key, cause, error, attempt, outcome) from cause
        finally:
            del cause  # its traceback refers to this frame, and to everything that the node's frames hold
        step = journal.progress.checkpoint.step_of(place.key)
        due = services.clock.now() + backoff(f"{ids.step_id(journal.run.run_id, step, place.key, place.path)}@{attempt}", attempt, node.retry.base_us)
        journal.progress.again(place.key, place.path, attempt, due, error)
        await journal.save(Draft(facts=[ev.StepRetryScheduled(step, place.key, attempt, due, error, place.path)]))


def see(program: Program, node: Node, values: Mapping[str, Any]) -> State:
    """Returns the state that a node sees."""
    return cast("State", program.state._view(values, node.reads))


def pack(program: Program, node: Node, raw: dict[str, Any]) -> tuple[Mapping[str, Any], bytes]:
    """Validates writes against their annotations; returns them with their bytes."""
    writes, packed = canon.pack(raw, node.name)
    if program.writes and (typed := fit_writes(program, node, writes)) is not writes:
        writes, packed = canon.pack(typed, node.name)
    return writes, packed


async def _attempt(
    services: Services, journal: Journal, program: Program, node: Node, task: Task, values: Mapping[str, Any], place: Place, attempt: int
) -> Finished:
    snapshot = see(program, node, values)
    if node.when is not None and not node.when(snapshot):
        return Finished(TaskResult(task.key, outcome="skipped: when", attempt=attempt), NOTHING)
    given = Hand(services, journal, program, asyncio.get_running_loop())
    given.take(node, task, snapshot)
    given.at(place.key, place.path, attempt)
    light = node.shape in CODE and node.check is None and node.limit is None and not node.gated and not journal.run.budgets
    while True:
        try:
            if light:
                return await _let_end(program, node, task, values, attempt, given, functools.partial(_begin, node, snapshot, given))
            at = given.attempt()
            if journal.run.budgets:
                await steps.afford(at, f"{at.prefix}@budget")
            if node.gated:
                await gates.before(at, node, snapshot)
            if node.check is None:
                return await _run(services, journal, program, node, task, values, place, snapshot, at)
            held = gates.find_held(at)
            finished = Finished(held, decode_writes(held)) if held else await _run(services, journal, program, node, task, values, place, snapshot, at)
            at = given.attempt()
            return Finished(await gates.after(at, node, snapshot, finished.result, finished.writes), finished.writes)
        except Redo as r:
            if (sent := given.send_back(r.target, r.feedback)) is not None:
                return Finished(sent, NOTHING)
            given.again()


def _begin(node: Node, snapshot: State, given: Hand) -> Coroutine[Any, Any, Any]:
    """Calls a node without gates or checks."""
    return _call_code(node, (snapshot,) if node.shape == "state" else (snapshot, given()), given.time())


async def _let_end(
    program: Program, node: Node, task: Task, values: Mapping[str, Any], attempt: int, hand: Hand, begin: Callable[[], Coroutine[Any, Any, Any]],
) -> Finished:
    """Runs a call of a node's code and notes its end."""
    token, asked, outer = face.set(hand), hand.asked, sys.exception()
    try:
        value = await begin()
        for at in asked:
            at.end()
    except ControlFlow:
        raise
    except BaseException as e:
        await left.note(e, asked, outer)
        raise
    finally:
        face.reset(token)
        hand.ended = True
        for at in asked:
            at.close()
            at.journal.safe_points.leave(at.key, at)
    return _finish(program, node, task, values, attempt, value, asked[0] if asked else None)


async def _go_on(program: Program, node: Node, task: Task, values: Mapping[str, Any], attempt: int, ahead: Ahead) -> Finished:
    """Continues a node's attempt that was begun elsewhere."""
    return await _let_end(program, node, task, values, attempt, ahead.hand, lambda: ahead.calling)


async def _run(
    services: Services, journal: Journal, program: Program, node: Node, task: Task, values: Mapping[str, Any], place: Place, snapshot: State, at: Attempt
) -> Finished:
    """Runs the step as a sub-flow, an effect or plain code, within its limit."""
    if node.limit is None:
        return await _ran(services, journal, program, node, task, values, place, snapshot, at)
    async with hold(services, journal, at.attempt_id, node.limit):
        return await _ran(services, journal, program, node, task, values, place, snapshot, at)


async def _ran(
    services: Services, journal: Journal, program: Program, node: Node, task: Task, values: Mapping[str, Any], place: Place, snapshot: State, at: Attempt
) -> Finished:
    if node.shape == "subgraph":
        return await _subflow(services, journal, program, node, task, values, place, at)
    if node.side_effects in LEDGERED:
        return await _as_effect(program, node, task, values, snapshot, at)
    return await _whole(program, node, task, values, snapshot, at)


async def _whole(program: Program, node: Node, task: Task, values: Mapping[str, Any], snapshot: State, at: Attempt) -> Finished:
    boundaries = at.journal.safe_points
    boundaries.enter(at.key, at)
    token, outer = face.set(Given(at)), sys.exception()
    try:
        value = await _call(node, snapshot, at)
        at.end()
    except ControlFlow:
        raise
    except BaseException as e:
        await left.note(e, [at], outer)
        raise
    finally:
        face.reset(token)
        at.close()
        boundaries.leave(at.key, at)
    return _finish(program, node, task, values, at.number, value, at)


async def _as_effect(program: Program, node: Node, task: Task, values: Mapping[str, Any], snapshot: State, at: Attempt) -> Finished:
    """Runs a node that declares a side effect as an effect: the attempt is recorded before it runs, and its result is the effect's result (§6.1)."""

    async def act(seen: Any, payload: Any) -> bytes:
        return msgspec.msgpack.encode((await _whole(program, node, task, values, snapshot, at)).result)

    options = performing.Options(
        side_effects=node.side_effects.value, idempotent=node.idempotent, verify=node.verify, undo=node.undo, timeout_us=0, name=f"node:{node.name}",
        cooperative=node.asynchronous,
    )
    data = await performing.perform_at(at, f"{at.root}@node", act, (dict(snapshot), at.payload), options)
    if not isinstance(data, bytes):  # a verify function or a person gave the result: these are the node's writes
        return _finish(program, node, task, values, at.number, data, at)
    result = _result.decode(data)
    return Finished(result, decode_writes(result))


async def _call(node: Node, snapshot: State, at: Attempt) -> Any:
    """Calls the node with the arguments that its signature asks for."""
    match node.shape:
        case "flow":
            return await call(functools.partial(node.call, Context(at), **dict(snapshot)), (), at.patience, node.name)
        case "state":
            args: tuple[Any, ...] = (snapshot,)
        case _:
            args = (snapshot, Context(at))
    at.plain = not node.asynchronous
    return await _call_code(node, args, at.patience)


def _call_code(node: Node, args: tuple[Any, ...], patience: Patience) -> Coroutine[Any, Any, Any]:
    """Awaits a coroutine directly, without a task or a thread."""
    if node.asynchronous:
        return await_in_time(node.call(*args), patience, node.name)
    return call(node.call, args, patience, node.name)


async def _subflow(
    services: Services, journal: Journal, program: Program, node: Node, task: Task, values: Mapping[str, Any], place: Place, at: Attempt
) -> Finished:
    """Runs a child graph in place of this node, and returns one merged write with the child's ledger rows and intents (§4.14)."""

    async def one(inner: Task, seen: Mapping[str, Any], path: str) -> tuple[TaskResult, Mapping[str, Any]]:
        finished = await execute(services, journal, node.child, inner, values=seen, place=Place(place.key, path))
        return finished.result, finished.writes

    child = Subflow(journal, node, place.key, place.path, services.parallel, one)
    ended = await call(child.drive, (values, at.payload), node.timeout_us, node.name)
    at.intents += ended.intents
    at.ledger += ended.ledger
    return _finish(program, node, task, values, at.number, ended.merge(program, node), at)


def _finish(
    program: Program, node: Node, task: Task, values: Mapping[str, Any], attempt: int, value: Any, at: Attempt | None = None
) -> Finished:
    """Checks, packs and routes what the node returned and did through its context; returns it as a result."""
    intents, ledger = ((), ()) if at is None else (tuple(at.intents), tuple(at.ledger))
    if program.flow:
        _, data = canon.pack(value, f"{program.id}()")
        return Finished(TaskResult(task.key, _outcome(node, task, at), attempt=attempt, result=data, intents=intents, ledger=ledger), NOTHING)
    raw, goto, sends = _interpret(node, value)
    if INTENTS in raw and INTENTS not in program.channels:
        intents += tuple(read_intents(raw.pop(INTENTS)))
    writes, packed = NOTHING, None
    if raw:
        check_writes(program, node, raw)
        writes, packed = pack(program, node, raw)
        if len(packed) > HEAVY:
            for name, value in writes.items():
                bounds.check_size(canon.encode(value), name)
    chosen: tuple[str, ...] = ()
    empty = type(value) is not dict and isinstance(value, list | tuple) and not value
    if node.routers:
        chosen, routed, none = _route(program, node, values, writes)
        sends += routed
        empty = empty or none
    if goto or chosen or sends:
        _expect(program, node, dict.fromkeys([*(goto or ()), *chosen, *map(_node, sends)]))
    result = TaskResult(
        task.key,
        _outcome(node, task, at),
        packed,
        goto,
        chosen,
        _pack_sends(sends) if sends else (),
        attempt,
        intents=intents,
        ledger=ledger,
        unsent=tuple([n for n in node.sends if n not in chosen and all(s.node != n for s in sends)]) if empty else (),
    )
    return Finished(result, writes)


_node, _payload = attrgetter("node"), attrgetter("payload")


def _pack_sends(sends: list[Send]) -> tuple[SendTo, ...]:
    """Returns what is sent, in its order; payloads for one node are packed together."""
    nodes = [*map(_node, sends)]
    if len({*nodes}) == 1:
        return tuple(map(SendTo, nodes, canon.encode_each([*map(_payload, sends)], f"Send({nodes[0]!r})")))
    return tuple([SendTo(s.node, canon.pack(s.payload, f"Send({s.node!r})")[1]) for s in sends])


def _expect(program: Program, node: Node, targets: Iterable[str]) -> None:
    for target in targets:
        if target not in program.nodes:
            raise NodeMissing(f"{node.name} goes to {target!r}, which is not a node", hint="nodes: " + ", ".join(program.nodes))


def _outcome(node: Node, task: Task, at: Attempt | None) -> str:
    if at is None:
        return OK
    outcome = of_delivery(at.outcome) if node.delivers else at.outcome
    if outcome is OK or completes(outcome):
        return outcome
    cause = StepFailure(f"{task.key} ended {outcome!r}, which is not a completion")
    raise StepError(task.key, cause, record(cause, where=task.key), at.number, outcome)


def _interpret(node: Node, value: Any) -> tuple[dict[str, Any], tuple[str, ...] | None, list[Send]]:
    """Splits a return value into writes, targets and sends.

    Raises:
        BadReturn: it is no mapping, Goto, Send, list of Sends, or None.
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
        case list() | tuple() if set(map(type, value)) == {Send} or all(isinstance(v, Send) for v in value):
            return {}, None, list(value)
    raise BadReturn(
        f"{node.name} returned {type(value).__name__}", hint="return a dict of writes, Goto(node, writes), [Send(node, payload)] or None"
    )


def _route(program: Program, node: Node, values: Mapping[str, Any], writes: Mapping[str, Any]) -> tuple[tuple[str, ...], list[Send], bool]:
    """Asks the node's routers, which see the state with the node's own writes. The last value returned is True if a router gave an empty list."""
    seen = dict(values)
    for name, value in writes.items():
        reducer = program.channels[name].reducer
        old = seen.get(name, MISSING)
        seen[name] = reduce_write(name, reducer, old, value, program.values.get(name))
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


__all__ = ["HEAVY", "NOTHING", "Ahead", "Finished", "Place", "StepError", "Suspend", "execute", "pack", "see"]
