"""Nodes that hold the event loop past their time: struck, where it is the node's own code that runs, and the step fails as any other that timed out."""

from __future__ import annotations

import asyncio
import contextvars
import dis
import gc
import inspect
import select
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from holdfast import END, Context, Graph, Runtime, Send, State, register
from holdfast.core import canon
from holdfast.engine.base import begun, loopwatch
from holdfast.engine.calls import functions
from holdfast.engine.calls.context import whose
from holdfast.engine.drive import beginner, driver, executor, fused
from holdfast.stores import MemoryStore
from holdfast.testing.clock import VirtualClock, run_virtual
from tests.faults.test_zoo import healthy


class Odd(State):
    n: int = 0
    anything: Any = None


KINDS: dict[str, Callable[[], Graph[Any]]] = {}


def node(function: Any = None, **options: Any) -> Any:
    def put(function: Any) -> Any:
        def make() -> Graph[Any]:
            graph = Graph(function.__name__, Odd)
            graph.node("odd", start=True, **({"timeout": 0.15} | options))(function)
            return graph

        KINDS[function.__name__] = make
        return function

    return put if function is None else put(function)


def kind(make: Callable[[], Graph[Any]]) -> Any:
    KINDS[make.__name__] = make
    return make


def spin(*_: Any) -> None:
    while True:
        pass


async def spinning(*_: Any) -> None:
    while True:
        pass


@node
async def spins_at_once(state: Odd) -> None:
    while True:
        pass


@node
async def spins_later(state: Odd) -> None:
    await asyncio.sleep(0)
    spin()


@node
async def spins_with_its_context(state: Odd, ctx: Context) -> None:
    while True:
        len(ctx.run_id)


@node
async def spins_after_a_call(state: Odd, ctx: Context) -> None:
    await ctx.step(asyncio.sleep, 0)
    spin()


@node
async def spins_over_calls_of_the_house(state: Odd, ctx: Context) -> None:
    while True:
        ctx.now()
        for _ in range(100):
            pass


@node
async def sleeps_on_the_loop(state: Odd) -> None:
    select.select([], [], [], 0.6)


@node
async def sleeps_in_small_pieces(state: Odd) -> None:
    while True:
        select.select([], [], [], 0.01)


@node
async def spins_in_a_task_of_its_own(state: Odd) -> None:
    await asyncio.gather(spinning(), asyncio.sleep(0))


@node
async def spins_in_a_callback(state: Odd) -> None:
    asyncio.get_running_loop().call_soon(spin)
    await asyncio.Event().wait()


@node
async def spins_in_a_branch(state: Odd, ctx: Context) -> None:
    await ctx.gather(ctx.step(asyncio.sleep, 0), spinning())


@node
async def spins_in_a_step(state: Odd, ctx: Context) -> None:
    await ctx.step(spinning, timeout=0.15)


@node
async def spins_in_an_effect(state: Odd, ctx: Context) -> None:
    await ctx.effect(spinning, timeout=0.15, idempotent=True, retry=1)


@node
async def spins_in_a_map(state: Odd, ctx: Context) -> None:
    await ctx.map(spinning, [1, 2])


@node
async def catches_every_error(state: Odd) -> None:
    while True:
        try:
            spin()
        except Exception:
            pass


@node
async def tidies_up(state: Odd) -> None:
    try:
        spin()
    finally:
        select.select([], [], [], 0.2)


@node
async def catches_it_and_returns(state: Odd) -> Any:
    try:
        spin()
    except BaseException:
        return {"n": 1}


@types.coroutine
def generating() -> Any:
    while True:
        pass
    yield


@node
def a_generator_that_looks_plain(state: Odd) -> Any:
    return generating()


class Awaited:
    def __await__(self) -> Any:
        while True:
            pass


@node
async def awaits_what_never_does(state: Odd) -> None:
    await Awaited()


@node
def gives_what_is_awaited(state: Odd) -> Any:
    return spinning()


class Mapped(Mapping[str, Any]):
    def __getitem__(self, key: str) -> Any:
        while True:
            pass

    def __iter__(self) -> Any:
        return iter(["n"])

    def __len__(self) -> int:
        return 1


@node
async def gives_a_mapping_without_end(state: Odd) -> Any:
    return Mapped()


@node(when=lambda state: spin() is None)
async def a_condition_without_end(state: Odd) -> None:
    pass


@kind
def a_router_without_end() -> Graph[Any]:
    graph = Graph("a_router_without_end", Odd)
    graph.node("odd", start=True, timeout=0.15)(_nothing)
    graph.branch("odd", lambda state: spin() or END)
    return graph


async def _nothing(state: Odd) -> None:
    pass


@kind
def the_second_of_two() -> Graph[Any]:
    graph = Graph("the_second_of_two", Odd)
    graph.node("first", start=True)(_nothing)
    graph.node("second", after="first", timeout=0.15)(spins_at_once)
    return graph


class Slow:
    """What takes for ever to be written down."""


register(Slow, "slow", dump=spin, load=lambda _: Slow())


@node
async def writes_what_takes_for_ever(state: Odd) -> Any:
    return {"anything": Slow()}


def one_of_many(function: Any) -> None:
    """The same in a task of a fan-out, beside others that are well."""

    def make() -> Graph[Any]:
        graph = Graph("one_of_many", Odd)

        @graph.node(start=True)
        async def plan(state: Odd) -> Any:
            return [*[Send("well", i) for i in range(3)], Send("odd", 3), Send("well", 4)]

        graph.node("well")(_nothing)
        graph.node("odd", timeout=0.15)(function)
        return graph

    KINDS[f"{function.__name__}_in_a_fan_out"] = make


for _each in (spins_at_once, spins_later, spins_with_its_context, spins_after_a_call, catches_it_and_returns, sleeps_on_the_loop, writes_what_takes_for_ever):
    one_of_many(_each)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopwatch, "TICK_SECONDS", 0.05)


async def ended(rt: Runtime, run: Any) -> None:
    assert run.status == "failed", (run.status, run.state)
    assert run.stop_reason == "step_timeout" and run.error.code == "step_timeout", run.error
    types_ = [e.type for e in await rt.events(run.run_id)]
    assert "attempt.taken_over" not in types_ and "run.handed_back" not in types_


@pytest.mark.parametrize("name", KINDS)
async def test_it_is_ended_and_its_neighbours_are_not(name: str) -> None:
    good = healthy()
    async with Runtime(MemoryStore(), skills=[graph := KINDS[name](), good]) as rt:
        odd = await rt.submit(graph, {})
        runs = [await rt.submit(good, {}) for _ in range(10)]
        await rt.worker(until_idle=True)
        assert [(await rt.get(r.run_id)).state.n for r in runs] == [2] * 10
        await ended(rt, await rt.get(odd.run_id))
        await rt.check()
    assert not loopwatch.struck


async def test_in_invoke() -> None:
    async with Runtime(MemoryStore()) as rt:
        await ended(rt, await rt.invoke(KINDS["spins_at_once"](), {}))
        assert (await rt.invoke(healthy(), {})).state.n == 2


class Lock:
    """Waited for in C, without a turn of Python's, until it is released."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def hold(self) -> None:
        self._lock.acquire(timeout=30)

    def release(self) -> None:
        self._lock.release()


async def test_a_process_that_cannot_be_freed_says_which_step_and_ends(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(loopwatch, "CLEANUP_SECONDS", 0.2)
    said: list[Any] = []
    patience, lock = functions.Patience(100_000, own=True), Lock()

    class Leases:
        ttl = 0.3

        def lapse(self, why: str | None) -> None:
            said.append(why)

    def end(code: int) -> None:
        said.append(code)
        lock.release()

    async def stuck() -> None:
        lock.hold()

    watch = loopwatch.Watch(Leases(), whose, lambda: True, end)
    watch.start()
    with pytest.raises(Exception, match="stuck took longer than 0.1 s, and let nothing else"):
        await functions.await_in_time(stuck(), patience, "stuck")
    watch.stop()
    assert said == ["stuck", loopwatch.CODE]
    assert capfd.readouterr().err == "holdfast: stuck holds the event loop and cannot be ended: this process ends\n"


async def test_leases_are_renewed_again_once_the_loop_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopwatch, "CLEANUP_SECONDS", 0.2)
    said: list[Any] = []
    lock, loop, again = Lock(), asyncio.get_running_loop(), asyncio.Event()

    class Leases:
        ttl = 60.0

        def lapse(self, why: str | None) -> None:
            said.append(why)
            if why is None:
                loop.call_soon_threadsafe(again.set)
            else:
                lock.release()

    async def stuck() -> None:
        lock.hold()

    watch = loopwatch.Watch(Leases(), whose, lambda: False, said.append)
    watch.start()
    with pytest.raises(Exception, match="stuck took longer"):
        await functions.await_in_time(stuck(), functions.Patience(100_000, own=True), "stuck")
    await again.wait()
    watch.stop()
    assert said == ["stuck", None]


def mixed() -> None:
    """Code of a node and code of the house in turns; it ends by itself where nothing strikes it."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        canon.pack({"n": [1, 2, {"a": "b"}]}, "x")
        functions.name_of(mixed)
        for _ in range(30):
            pass


def has_not_begun(error: BaseException) -> bool:
    """Whether the innermost frame of an error had only been entered: there Python 3.13 raises what it did not see in the frame before."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    assert last is not None
    entered = next(i.offset for i in dis.get_instructions(last.tb_frame.f_code) if i.opname == "RESUME")
    return sys.version_info >= (3, 13) and last.tb_lasti <= entered


async def test_it_strikes_nothing_but_the_nodes_own_code() -> None:
    """Strikes at code that is mostly the house's: each is raised in a frame of this file, or as it calls the house's, and none comes late."""
    me, over, done = threading.get_ident(), threading.Event(), 0

    def strikes() -> None:
        while not over.is_set():
            held = loopwatch.holder(sys._current_frames()[me], whose)
            if held is not None and held.users and not loopwatch.struck:
                loopwatch.strike(me, held, type("Overdue", (loopwatch.Overdue,), {"timeout": functions.StepTimeout("struck")}))

    async def node() -> None:
        mixed()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.00001)
    gc.disable()  # its callbacks (Hypothesis leaves one) run in this thread and swallow what is raised in them; the watch then strikes again
    thread = threading.Thread(target=strikes)
    thread.start()
    try:
        for done in range(20):
            with pytest.raises(functions.StepTimeout) as raised:
                await functions.await_in_time(node(), functions.Patience(60_000_000, own=True), "node")
            settled = raised.value.__cause__
            assert settled is not None
            assert settled.__context__ is not None, "it was raised in the node"
            frames = [f.f_globals["__name__"] for f in traceback_of(settled.__context__)]
            assert not frames[-1].startswith("holdfast") or has_not_begun(settled.__context__), (done, frames)
            canon.pack([1, 2, 3], "x")
    finally:
        over.set()
        thread.join()
        gc.enable()
        sys.setswitchinterval(interval)
    assert done == 19 and not loopwatch.struck


def test_a_strike_that_was_settled_leaves_nothing_in_the_interpreter() -> None:
    """Its flag for such an exception stayed up: each look at it took the long way ever after, and under a trace function a call never began."""
    code = """
import sys, threading
from holdfast.core.errors import StepTimeout
from holdfast.engine.base import loopwatch
for strikes in (False, True):
    struck = type("Struck", (loopwatch.Overdue,), {"timeout": StepTimeout("late")})
    try:
        try:
            loopwatch.struck[threading.get_ident()] = struck
            if strikes:
                loopwatch._raise_in(threading.get_ident(), struck)
        finally:
            loopwatch.settle()
    except loopwatch.Overdue:
        print("struck")
    sys.settrace(lambda *seen: None)
    (lambda: 1)()
    sys.settrace(None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["struck", "struck"], "")


def traceback_of(error: BaseException) -> list[types.FrameType]:
    at, out = error.__traceback__, []
    while at is not None:
        out.append(at.tb_frame)
        at = at.tb_next
    return out


def test_what_is_taken_for_a_gate_is_there() -> None:
    """The names go by what the functions are called today."""
    there = set()
    for module in (begun, functions, executor, beginner, fused, driver, sys.modules["holdfast.engine.calls.scopes"], sys.modules["holdfast.engine.calls.effects"]):
        for code in codes(compile(inspect.getsource(module), "x", "exec")):
            there.add(f"{module.__name__}:{code.co_qualname}")
    assert there >= loopwatch.GATES | loopwatch.BETWEEN


def codes(code: types.CodeType) -> list[types.CodeType]:
    return [code, *(inner for c in code.co_consts if isinstance(c, types.CodeType) for inner in codes(c))]


def test_a_debugged_node_is_left_alone() -> None:
    there: dict[str, Any] = {"__name__": "bdb", "sys": sys}
    exec("def stopped():\n    return sys._getframe()", there)
    assert loopwatch.holder(there["stopped"](), whose) is None
    assert whose(contextvars.Context()) is None


def test_nobody_looks_after_a_loop_of_virtual_time() -> None:
    """What runs next is drawn there by a seed; a mark that came by real time would be drawn too, and no story could be told twice."""

    async def story() -> list[str]:
        async with Runtime("memory:", clock=clock) as rt:
            await rt.invoke(healthy(), {})
            return [thread.name for thread in threading.enumerate() if thread.name == "holdfast-watch"]

    clock = VirtualClock()
    assert run_virtual(story(), seed=1, clock=clock) == []


async def test_frames_are_listed_without_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer that is run in the middle of it may wait for ever: a worker hung so, with all its threads."""
    collects: list[bool] = []
    frames = sys._current_frames

    def listed() -> dict[int, types.FrameType]:
        collects.append(gc.isenabled())
        return frames()

    monkeypatch.setattr(sys, "_current_frames", listed)
    async with Runtime(MemoryStore()) as rt:
        await ended(rt, await rt.invoke(KINDS["spins_at_once"](), {}))
    assert len(collects) >= 3 and not any(collects), "the watch looks, looks on, and strikes"
    assert gc.isenabled()
    gc.disable()
    try:
        with loopwatch.pause_collection():
            pass
        assert not gc.isenabled(), "who collects nothing is left so"
    finally:
        gc.enable()
