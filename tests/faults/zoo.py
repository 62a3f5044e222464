"""Nodes that misbehave, each in its own way (X-24). ``ends`` is the status that its run must come to."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import msgspec

from holdfast import END, Context, Goto, Graph, Send, State
from holdfast.core.errors import HoldfastError, LeaseLost, StoreError, VersionConflict


class Odd(State):
    n: int = 0
    text: str = ""
    anything: Any = None


class Kind(msgspec.Struct, frozen=True):
    name: str
    make: Callable[[], Graph[Any]]
    ends: str = "failed"


KINDS: dict[str, Kind] = {}
RELEASE = threading.Event()  # lets go of the threads that were left running


def node(ends: str = "failed", **options: Any) -> Callable[[Any], Any]:
    """Puts a node into the zoo, as the one node of its graph."""

    def put(function: Any) -> Any:
        def make() -> Graph[Any]:
            graph = Graph(function.__name__, Odd)
            graph.node("odd", start=True, **options)(function)
            return graph

        KINDS[function.__name__] = Kind(function.__name__, make, ends)
        return function

    return put


def graph(ends: str = "failed") -> Callable[[Callable[[str], Graph[Any]]], Any]:
    def put(function: Callable[[str], Graph[Any]]) -> Any:
        KINDS[function.__name__] = Kind(function.__name__, lambda: function(function.__name__), ends)
        return function

    return put


def _reap(pid: int) -> None:
    """Waits for the child of a fork, which must end by itself."""
    os.waitpid(pid, 0)


class Base(BaseException):
    """No Exception, and none of the house's."""


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class MuteBase(BaseException):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class Deep(Exception):
    def __str__(self) -> str:
        return str(self)


class Shouting(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class OddCode(HoldfastError):
    code = 42  # type: ignore[assignment]


# -- what it raises ---------------------------------------------------------------------------------


def raising(name: str, make: Callable[[], BaseException], *, sync: bool = True) -> None:
    """Three kinds of one error: at once, after a wait, and from a thread."""

    def at_once() -> Graph[Any]:
        g = Graph(f"{name}_at_once", Odd)

        @g.node(start=True)
        async def odd(state: Odd) -> None:
            raise make()

        return g

    def later() -> Graph[Any]:
        g = Graph(f"{name}_later", Odd)

        @g.node(start=True)
        async def odd(state: Odd, ctx: Context) -> None:
            await asyncio.sleep(0)
            raise make()

        return g

    def in_a_thread() -> Graph[Any]:
        g = Graph(f"{name}_in_a_thread", Odd)

        @g.node(start=True)
        def odd(state: Odd) -> None:
            raise make()

        return g

    for f in (at_once, later, in_a_thread) if sync else (at_once, later):
        KINDS[f"{name}_{f.__name__}"] = Kind(f"{name}_{f.__name__}", f)


raising("value_error", lambda: ValueError("x"))
raising("base_exception", lambda: Base("x"))
raising("generator_exit", GeneratorExit)
raising("system_exit", lambda: SystemExit(0))
raising("cancelled_error", asyncio.CancelledError)
raising("stop_iteration", StopIteration)
raising("mute", Mute)
raising("mute_base", MuteBase, sync=False)
raising("shouting", Shouting, sync=False)
raising("deep_text", Deep, sync=False)
raising("lease_lost", lambda: LeaseLost("the node says so"), sync=False)
raising("store_error", lambda: StoreError("another store"), sync=False)
raising("version_conflict", lambda: VersionConflict("mine"), sync=False)
raising("odd_code", lambda: OddCode("x"), sync=False)
raising("group", lambda: ExceptionGroup("g", [ValueError("a"), ExceptionGroup("h", [KeyError("b")])]), sync=False)
raising("base_group", lambda: BaseExceptionGroup("g", [SystemExit(1), Base("b")]), sync=False)
raising("group_of_the_house", lambda: ExceptionGroup("g", [LeaseLost("x"), StoreError("y")]), sync=False)
raising("timeout_error", TimeoutError, sync=False)
raising("huge_text", lambda: ValueError("x" * 5_000_000), sync=False)
raising("hostile_text", lambda: ValueError("\0 \ud800 \x1b[2J"), sync=False)


@node()
async def raised_from_a_lost_lease(state: Odd) -> None:
    try:
        raise LeaseLost("x")
    except LeaseLost as e:
        raise ValueError("mine") from e


@node()
async def recursion(state: Odd) -> Any:
    def down(n: int) -> int:
        return down(n + 1) + 1

    return {"n": down(0)}


@node()
async def a_cycle_of_causes(state: Odd) -> None:
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    raise a


@node()
async def unraisable(state: Odd) -> None:
    raise "text"  # type: ignore[misc]  # noqa: B016


# -- what it does to its own task ---------------------------------------------------------------------


def mine() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@node()
async def cancels_itself(state: Odd) -> None:
    mine().cancel()
    await asyncio.Event().wait()


@node()
async def cancels_itself_and_returns(state: Odd) -> dict[str, int]:
    mine().cancel()
    return {"n": 1}


@node()
async def cancels_itself_twice(state: Odd, ctx: Context) -> dict[str, int]:
    for _ in range(2):
        mine().cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            pass
    return {"n": 1}


@node()
async def cancels_itself_and_raises(state: Odd) -> None:
    mine().cancel()
    raise ValueError("x")


@node(ends="completed")
async def a_timeout_of_its_own(state: Odd) -> dict[str, int]:
    try:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
    except TimeoutError:
        return {"n": 1}
    return {}


@node()
async def a_task_group_that_fails(state: Odd) -> None:
    async def bad() -> None:
        raise ValueError("x")

    async with asyncio.TaskGroup() as group:
        group.create_task(bad())
        await asyncio.Event().wait()


@node(ends="completed")
async def leaves_a_task_behind(state: Odd) -> dict[str, int]:
    async def lives() -> None:
        await asyncio.sleep(0)

    state_of[id(state)] = asyncio.ensure_future(lives())
    return {"n": 1}


state_of: dict[int, Any] = {}


# -- how long it takes --------------------------------------------------------------------------------


@node(timeout=0.05)
async def hangs(state: Odd) -> None:
    await asyncio.Event().wait()


@node(timeout=0.05)
async def swallows_its_cancel(state: Odd) -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


@node(timeout=0.05)
async def swallows_everything(state: Odd, ctx: Context) -> None:
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException:
            continue


@node(timeout=0.05)
async def hangs_in_its_clean_up(state: Odd) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.Event().wait()


@node(timeout=0.05)
async def tidies_up(state: Odd) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        for _ in range(3):
            await asyncio.sleep(0)


@node(timeout=0.05)
def hangs_in_a_thread(state: Odd) -> None:
    RELEASE.wait(60)


@node(timeout=0.05)
async def a_step_hangs_in_a_thread(state: Odd, ctx: Context) -> None:
    await ctx.step(lambda: RELEASE.wait(60))


@node(timeout=0.05)
async def swallows_in_a_step(state: Odd, ctx: Context) -> None:
    await ctx.step(swallows_everything.__wrapped__ if hasattr(swallows_everything, "__wrapped__") else swallows_everything, state, ctx)


# -- what it is and gives ------------------------------------------------------------------------------


def _generator() -> Iterator[dict[str, int]]:
    yield {"n": 1}


async def _asynchronous_generator() -> Any:
    yield {"n": 1}


@node()
def generator(state: Odd) -> Any:
    return _generator()


@node()
async def asynchronous_generator(state: Odd) -> Any:
    return _asynchronous_generator()


@node()
async def a_coroutine_never_awaited(state: Odd) -> Any:
    async def never() -> None: ...

    return never()


@node(ends="completed")
def a_coroutine_from_plain_code(state: Odd) -> Any:
    async def one() -> dict[str, int]:
        return {"n": 1}

    return one()


class Tricky(Mapping[str, Any]):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getitem__(self, key: str) -> Any:
        raise self.error

    def __iter__(self) -> Iterator[str]:
        raise self.error

    def __len__(self) -> int:
        raise self.error


class Liar:
    @property
    def __class__(self) -> Any:
        raise ValueError("I am nothing")


class LateText(str):
    def __len__(self) -> int:
        raise ValueError("no length")


def looped() -> list[Any]:
    out: list[Any] = []
    out.append(out)
    return out


def nested(depth: int) -> list[Any]:
    out: list[Any] = []
    for _ in range(depth):
        out = [out]
    return out


RETURNS: dict[str, Callable[[], Any]] = {
    "a_number": lambda: 7,
    "an_object": object,
    "a_class": lambda: Odd,
    "a_module": lambda: sys,
    "odd_keys": lambda: {1: 2},
    "an_undeclared_channel": lambda: {"nothing": 1},
    "a_tricky_mapping": lambda: Tricky(ValueError("x")),
    "a_trickier_mapping": lambda: Tricky(Base("x")),
    "a_mapping_that_exits": lambda: Tricky(SystemExit(0)),
    "a_liar": Liar,
    "a_function": lambda: {"anything": lambda: 1},
    "a_lock": lambda: {"anything": threading.Lock()},
    "no_number": lambda: {"anything": float("nan")},
    "a_nul": lambda: {"text": "a\0b"},
    "half_a_character": lambda: {"text": "\ud800"},
    "a_loop": lambda: {"anything": looped()},
    "a_deep_list": lambda: {"anything": nested(100_000)},
    "an_unknown_target": lambda: Goto("nowhere"),
    "an_unknown_send": lambda: [Send("nowhere", 1)],
    "mixed_sends": lambda: [Send("odd", 1), 7],
    "a_frame": lambda: {"anything": sys._getframe()},
    "a_lazy_module": lambda: types.ModuleType("x"),
}


def returning(name: str, make: Callable[[], Any]) -> None:
    def build() -> Graph[Any]:
        g = Graph(f"returns_{name}", Odd)

        @g.node(start=True)
        async def odd(state: Odd) -> Any:
            return make()

        return g

    KINDS[f"returns_{name}"] = Kind(f"returns_{name}", build)


for _name, _make in RETURNS.items():
    returning(_name, _make)


# -- what stands around it -----------------------------------------------------------------------------


def bad(error: type[BaseException]) -> Callable[..., Any]:
    def raises(state: Any) -> Any:
        raise error("x")

    return raises


def good(g: Graph[Any], **options: Any) -> None:
    @g.node(**options)
    async def fine(state: Any) -> dict[str, int]:
        return {"n": 1}


@graph()
def a_condition_that_exits(name: str) -> Graph[Any]:
    g = Graph(name, Odd)
    good(g, start=True)
    g.node("second", after="fine", when=bad(SystemExit))(bad(ValueError))
    return g


@graph()
def a_condition_that_is_cancelled(name: str) -> Graph[Any]:
    g = Graph(name, Odd)
    good(g, start=True, when=bad(asyncio.CancelledError))
    return g


@graph()
def a_router_that_raises(name: str) -> Graph[Any]:
    g = Graph(name, Odd)
    good(g, start=True)
    g.branch("fine", bad(Base))
    return g


@graph()
def a_router_of_nonsense(name: str) -> Graph[Any]:
    g = Graph(name, Odd)
    good(g, start=True)
    g.branch("fine", lambda state: 7)
    return g


def exploding(old: int, new: int) -> int:
    raise Base("x")


@graph()
def a_reducer_that_raises(name: str) -> Graph[Any]:
    class Sum(State):
        n: Annotated[int, exploding] = 0

    g = Graph(name, Sum)
    good(g, start=True)
    return g


# -- what it does through its context ------------------------------------------------------------------


@node()
async def a_step_that_exits(state: Odd, ctx: Context) -> None:
    await ctx.step(bad(SystemExit), 1)


@node()
async def a_step_of_base(state: Odd, ctx: Context) -> None:
    async def raises() -> None:
        raise Base("x")

    await ctx.step(raises)


@node()
async def an_effect_that_exits(state: Odd, ctx: Context) -> None:
    await ctx.effect(bad(SystemExit), 1)


@node()
async def an_effect_that_is_cancelled(state: Odd, ctx: Context) -> None:
    async def raises() -> None:
        raise asyncio.CancelledError

    await ctx.effect(raises)


@node()
async def a_branch_that_raises_base(state: Odd, ctx: Context) -> None:
    async def raises() -> None:
        await asyncio.sleep(0)
        raise Base("x")

    await ctx.gather(raises(), ctx.step(asyncio.sleep, 0))


@node()
async def a_branch_that_exits(state: Odd, ctx: Context) -> None:
    async def raises() -> None:
        await asyncio.sleep(0)
        raise SystemExit(1)

    await ctx.gather(raises(), ctx.step(asyncio.sleep, 0))


@node()
async def swallows_its_wait(state: Odd, ctx: Context) -> dict[str, int]:
    try:
        await ctx.wait("never")
    except BaseException:
        pass
    return {"n": 1}


@node()
async def restarts_a_graph(state: Odd, ctx: Context) -> None:
    ctx.restart(n=1)


@node(side_effects="external_action")
async def a_declared_act_of_base(state: Odd) -> None:
    raise Base("x")


# -- what it does to its process -----------------------------------------------------------------------


@node(ends="completed")
def forks_and_comes_back(state: Odd) -> dict[str, int]:
    pid = os.fork()
    if pid:
        _reap(pid)
    return {"n": 1}


@node(ends="completed")
async def forks_on_the_loop(state: Odd) -> dict[str, int]:
    pid = os.fork()
    if pid:
        _reap(pid)
    return {"n": 1}


@node(ends="completed")
async def forks_and_the_child_goes_on(state: Odd, ctx: Context) -> dict[str, int]:
    await asyncio.sleep(0)
    pid = os.fork()
    if pid:
        _reap(pid)
    await ctx.step(asyncio.sleep, 0)
    return {"n": 1}


@node(ends="completed")
async def forks_and_the_child_exits(state: Odd) -> dict[str, int]:
    pid = os.fork()
    if not pid:
        sys.exit(0)
    _reap(pid)
    return {"n": 1}


def _raising(*_: Any) -> Any:
    raise ValueError("a trace function that raises")


@node()
async def leaves_a_trace_that_raises(state: Odd) -> None:
    sys.settrace(_raising)


@node()
async def leaves_a_profile_that_raises(state: Odd) -> None:
    await asyncio.sleep(0)
    sys.setprofile(_raising)


@node(ends="completed")
def leaves_a_trace_in_its_thread(state: Odd) -> None:
    sys.settrace(_raising)


@node(ends="completed")
async def leaves_a_trace_in_the_thread_of_an_effect(state: Odd, ctx: Context) -> None:
    def act() -> None:
        sys.settrace(_raising)

    await ctx.effect(act)


@node()
async def ends_in_the_middle(state: Odd) -> Any:
    return Goto([END, "nowhere"])
