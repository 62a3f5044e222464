"""What a run leaves behind when it comes to a rest: nothing that the garbage collector alone could free.

It holds the run's values and, after a failure, all that the frames of the user's code hold. A collection of the oldest generation may be long in coming.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import pytest

from holdfast import Context, Goto, Graph, Retry, Runtime, Send, State, append, flow
from holdfast.core.errors import RunFailed
from holdfast.engine.calls.functions import Patience, await_in_time
from tests.postgres.server import shared

TIMES = 3
WORKERS = ("holdfast.workers.", "holdfast.outbox.")
"""What there is once for each worker."""
Scenario = Callable[[Runtime], Awaitable[object]]
SCENARIOS: dict[str, Scenario] = {}
SKILLS: list[Any] = []


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def skill(made: Any) -> Any:
    SKILLS.append(made)
    return made


# -- skills -----------------------------------------------------------------------------------------


class Numbers(State):
    n: int = 0
    all: Annotated[list[int], append]


line = skill(Graph("line", Numbers))


@line.node(start=True)
async def first(state: Numbers) -> dict[str, Any]:
    return {"n": 1}


@line.node(after="first")
async def second(state: Numbers, ctx: Context) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"n": 2, "all": [1]}


fan = skill(Graph("fan", Numbers))


@fan.node(start=True)
async def scatter(state: Numbers) -> Any:
    return [Send("each", {"x": x}) for x in range(4)]


@fan.node
async def each(state: Numbers, ctx: Context) -> dict[str, Any]:
    if ctx.payload["x"] % 2:
        await asyncio.sleep(0)
    if ctx.payload["x"] == 3 and state.n:
        raise ValueError("three")
    return {"all": [ctx.payload["x"]]}


loop = skill(Graph("loop", Numbers))


@loop.node(start=True)
async def again(state: Numbers) -> Any:
    return Goto("again", {"n": state.n + 1}) if state.n < 3 else {"n": 9}


retried = skill(Graph("retried", Numbers))


@retried.node(start=True, retry=Retry(max_attempts=3, base_us=1_000), side_effects="read")
async def flaky(state: Numbers, ctx: Context) -> dict[str, Any]:
    if ctx.attempt < 3:
        raise ValueError("not yet")
    return {"n": ctx.attempt}


async def add(n: int) -> int:
    return n + 1


def add_in_a_thread(n: int) -> int:
    return n + 1


async def refuse(n: int) -> int:
    raise ValueError(n)


async def fail_at_once(state: Numbers) -> None:
    raise ValueError(state.n)


async def fail_after_a_wait(state: Numbers) -> None:
    await asyncio.sleep(0)
    raise ValueError(state.n)


def fail_in_a_thread(state: Numbers) -> None:
    raise ValueError(state.n)


async def fail_in_a_call(state: Numbers, ctx: Context) -> None:
    await ctx.step(refuse, state.n)


async def fail_in_an_effect(state: Numbers, ctx: Context) -> None:
    await ctx.effect(refuse, state.n)


async def fail_beside(state: Numbers, ctx: Context) -> None:
    await ctx.gather(ctx.step(add, 0), ctx.step(refuse, state.n))


async def return_what_cannot_be_kept(state: Numbers) -> Any:
    return {"n": object()}


async def take_too_long(state: Numbers) -> None:
    await asyncio.Event().wait()


def refuse_to_route(state: Numbers) -> str:
    raise ValueError(state.n)


def broken(where: str, function: Any, **given: Any) -> Any:
    """A graph of which a node fails: after another one, or beside it."""
    graph = Graph(f"{function.__name__}_{where}", Numbers)
    graph.node(start=True)(second if where == "beside_another" else first)
    graph.node("breaks", start=where == "beside_another", after=None if where == "beside_another" else "first", **given)(function)
    return skill(graph)


BREAKS: dict[Any, dict[str, Any]] = {
    fail_at_once: {},
    fail_after_a_wait: {},
    fail_in_a_thread: {},
    fail_in_a_call: {},
    fail_in_an_effect: {},
    fail_beside: {},
    return_what_cannot_be_kept: {},
    take_too_long: {"timeout": 0.01},
}
WHERE: dict[str, dict[str, Any]] = {"in_the_middle": {}, "beside_another": {}, "twice": {"retry": Retry(max_attempts=2, base_us=1_000), "side_effects": "read"}}

misrouted = skill(Graph("misrouted", Numbers))
misrouted.node(start=True)(first)
misrouted.branch("first", refuse_to_route)


@skill
@flow("steps")
async def steps(ctx: Context) -> int:
    n = await ctx.step(add, 0)
    n = await ctx.step(add_in_a_thread, n)
    with contextlib.suppress(ValueError):
        await ctx.step(refuse, n)
    return n


@skill
@flow("beside")
async def beside(ctx: Context) -> list[int]:
    found = await ctx.gather(ctx.step(add, 0), ctx.step(add, 1))
    return found + await ctx.map(add, [1, 2, 3])


@skill
@flow("pays")
async def pays(ctx: Context, fails: bool = False) -> int:
    return await ctx.effect(refuse if fails else add, 1)


@skill
@flow("asks")
async def asks(ctx: Context) -> str:
    await ctx.approve("go on?")
    return await ctx.wait("go")


@skill
@flow("naps")
async def naps(ctx: Context) -> None:
    await ctx.sleep(0.001)


@skill
@flow("fails")
async def fails(ctx: Context) -> None:
    kept = Numbers()
    await ctx.step(refuse, kept.n)


@skill
@flow("late", timeout=0.01)
async def late(ctx: Context) -> None:
    await asyncio.Event().wait()


@skill
@flow("parent")
async def parent(ctx: Context, fails: bool = False) -> int:
    return await ctx.child(pays, {"fails": fails})


@skill
@flow("emits")
async def emits(ctx: Context) -> None:
    for n in range(3):
        ctx.emit(n)


# -- what is done with them -------------------------------------------------------------------------

INVOKED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "plain_steps": (line, {}, "completed"),
    "steps_that_go_back": (loop, {}, "completed"),
    "fan_out": (fan, {}, "completed"),
    "fan_out_of_which_one_fails": (fan, {"n": 1}, "failed"),
    "retries": (retried, {}, "completed"),
    "recorded_calls": (steps, {}, "completed"),
    "calls_beside_each_other": (beside, {}, "completed"),
    "effect": (pays, {}, "completed"),
    "effect_that_fails": (pays, {"fails": True}, "failed"),
    "sleep": (naps, {}, "completed"),
    "failure": (fails, {}, "failed"),
    "timeout": (late, {}, "failed"),
    "child": (parent, {}, "completed"),
    "child_that_fails": (parent, {"fails": True}, "failed"),
    "router_that_fails": (misrouted, {}, "failed"),
    **{
        f"{function.__name__}_{where}": (broken(where, function, **given, **besides), {}, "failed")
        for function, given in BREAKS.items()
        for where, besides in WHERE.items()
        if (function, where) != (fail_in_an_effect, "twice")  # what came of the effect is unknown then: nobody but a person may say
    },
}
"""By what it shows: a skill, its input, and how the run ends."""


def invoking(made: Any, given: dict[str, Any], end: str) -> Scenario:
    async def invoke(rt: Runtime) -> None:
        assert (await rt.invoke(made, given)).status == end

    return invoke


SCENARIOS |= {name: invoking(*row) for name, row in INVOKED.items()}


@scenario
async def conversation(rt: Runtime) -> None:
    await rt.invoke(line, {}, thread_id="t")


@scenario
async def waits_and_answers(rt: Runtime) -> None:
    run = await rt.invoke(asks, {})
    await rt.approve(run.run_id)
    await rt.signal(run.run_id, "go", "on")
    assert (await rt.resume(run.run_id)).status == "completed"


@scenario
async def cancel(rt: Runtime) -> None:
    run = await rt.invoke(asks, {})
    await rt.cancel(run.run_id)


@scenario
async def cancel_of_the_caller(rt: Runtime) -> None:
    for turns in range(0, 64, 3):
        calling = asyncio.ensure_future(rt.invoke(late, {}))
        for _ in range(turns):
            await asyncio.sleep(0)
        calling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await calling
        del calling


@scenario
async def crowd(rt: Runtime) -> None:
    """Runs that ride beside each other, some of which wait, fail, or stop."""
    await asyncio.gather(*[rt.invoke(made, {}) for made in (line, late, line, fails, line, steps, late, line)])


@scenario
async def emitted(rt: Runtime) -> None:
    run = await rt.submit(emits, {})
    following = asyncio.ensure_future(collect(rt, run.run_id))
    await rt.resume(run.run_id)
    await following


async def collect(rt: Runtime, run_id: str) -> list[Any]:
    return [part async for part in rt.stream(run_id)]


@scenario
async def replay_and_fork(rt: Runtime) -> None:
    run = await rt.invoke(steps, {})
    await rt.replay(run.run_id)
    await rt.fork(run.run_id, (await rt.history(run.run_id))[-1]["id"])


@scenario
async def result_of_a_failed_run(rt: Runtime) -> None:
    run = await rt.invoke(fails, {})
    with pytest.raises(RunFailed) as caught:
        await rt.result(run.run_id)
    del caught


@scenario
async def work_of_a_worker(rt: Runtime) -> None:
    """The worker itself may be left: there is one."""
    stop = asyncio.Event()
    working = asyncio.ensure_future(rt.worker(stop=stop))
    for made in (line, fan, steps, pays, naps, parent):
        await rt.result((await rt.submit(made, {})).run_id, timeout=20)
    stop.set()
    await working


# -- the tests --------------------------------------------------------------------------------------


def named(thing: object) -> str:
    """What is left, if it is the engine's or the user's: a frame by its function, anything else by its class."""
    if isinstance(thing, FrameType):
        name = f"{thing.f_globals.get('__name__', '')}:{thing.f_code.co_qualname}"
    elif inspect.iscoroutine(thing):
        name = f"{(thing.cr_frame or thing).__class__.__name__}:{thing.__qualname__}"
        return name if "holdfast" in thing.cr_code.co_filename or __file__ == thing.cr_code.co_filename else ""
    else:
        name = f"{type(thing).__module__}:{type(thing).__qualname__}"
    return name if name.startswith(("holdfast.", __name__)) and not name.startswith(WORKERS) else ""


async def left_by(work: Callable[[], Awaitable[object]]) -> Counter[str]:
    """What of the engine and the user's code is left for the collector when something has been done so often."""
    await work()  # what is made once
    await settled()
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(TIMES):
            await work()
        await settled()
        gc.collect()
        return Counter(name for thing in gc.garbage if (name := named(thing)))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def settled() -> None:
    """Gives what was cancelled or closed its turns."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"])
async def test_a_run_leaves_nothing_for_the_collector(store: str, name: str, tmp_path: Path) -> None:
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/a.db"}.get(store) or shared().fresh()
    async with Runtime(url, skills=SKILLS) as rt:
        assert await left_by(lambda: SCENARIOS[name](rt)) == Counter()


async def test_what_is_left_is_seen() -> None:
    """The tests above can fail."""

    class Left:
        def __init__(self) -> None:
            self.own = self

    async def leave() -> None:
        Left()

    assert await left_by(leave) == Counter({f"{__name__}:{Left.__qualname__}": TIMES})


def test_what_is_thrown_away_with_its_loop_is_closed_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its task is gone by then, and so is whoever could be told."""
    closed, said = [], []
    monkeypatch.setattr(sys, "unraisablehook", said.append)

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(1)

    async def begin() -> asyncio.Task[None]:
        task = asyncio.ensure_future(await_in_time(hang(), Patience(60_000_000, own=True), "hang"))
        for _ in range(5):
            await asyncio.sleep(0)
        return task

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # the loop itself says that a task was pending
    task = loop.run_until_complete(begin())
    loop.close()
    del task, loop
    gc.collect()
    assert (closed, said) == ([1], [])
