"""What people write: declarations, their faults told in words, and nodes of every kind (§4.1, §4.2, §4.17)."""

from __future__ import annotations

import asyncio
import functools
import inspect
import sys
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from holdfast import END, START, Context, Goto, Graph, Runtime, Send, State, any_of, append, flow
from holdfast.core.errors import InvalidGraph, InvalidInput, UsageError
from holdfast.core.status import Status
from holdfast.handle import Run


class S(State):
    items: Annotated[list[str], append]
    n: int = 0
    limit: int = 10


async def nothing(state: S) -> None:
    return None


async def invoked(g: Graph[Any], inputs: dict[str, Any] | None = None) -> Run[Any]:
    async with Runtime("memory:", skills=[g]) as rt:
        return await rt.invoke(g, inputs or {})


# -- faults -----------------------------------------------------------------------------------------


def _unknown_after(g: Graph[S]) -> None:
    g.node("collect", start=True)(nothing)
    g.node("b", after="colect")(nothing)


def _forgotten(g: Graph[S]) -> None:
    g.node("collect", start=True)(nothing)
    g.node("publish")(nothing)


def _no_start(g: Graph[S]) -> None:
    g.node("a", after="b")(nothing)
    g.node("b", after="a")(nothing)


def _out_of_end(g: Graph[S]) -> None:
    g.node("a", start=True)(nothing)
    g.edge(END, "a")


def _to_start(g: Graph[S]) -> None:
    g.node("a", start=True)(nothing)
    g.edge("a", START)


def _after_end(g: Graph[S]) -> None:
    g.node("a", start=True)(nothing)
    g.node("b", after=END)(nothing)


def _edge_to_nowhere(g: Graph[S]) -> None:
    g.node("a", start=True)(nothing)
    g.edge("a", "publsh")
    g.edge("a", "b")
    g.node("publish", after="a")(nothing)


def _branch_of_nothing(g: Graph[S]) -> None:
    g.node("a", start=True)(nothing)
    g.branch("aa", lambda s: END)


def _branch_of_start(g: Graph[S]) -> None:
    g.node("a", start=True)(nothing)
    g.branch(START, lambda s: "a")


def _listens(g: Graph[S]) -> None:
    g.node("a", start=True, on="itms")(nothing)


def _contract(g: Graph[S]) -> None:
    g.node("a", start=True, reads=["n"], writes=["m"])(nothing)


def _never_written(g: Graph[S]) -> None:
    g.node("a", start=True, reads=["n"], writes=["items"])(nothing)


FAULTS: list[tuple[Callable[[Graph[S]], None], str]] = [
    (lambda g: None, "it has no nodes (decorate a function with @graph.node)"),
    (_unknown_after, "b comes after 'colect', which is not a node (did you mean 'collect'?)"),
    (_forgotten, "publish is never reached: nothing leads to it (give it after=…, on=… or start=True)"),
    (_no_start, "no node starts it (give one start=True, or on=[a channel of the input])"),
    (_out_of_end, "the edge @end → a leads out of END; no edge may leave END or enter START"),
    (_to_start, "the edge a → @start leads back to START; no edge may leave END or enter START"),
    (_after_end, "b comes after END, but no node can"),
    (_edge_to_nowhere, "an edge leads to 'publsh', which is not a node (did you mean 'publish'?)"),
    (_branch_of_nothing, "a branch starts at 'aa', which is not a node (did you mean 'a'?)"),
    (_branch_of_start, "a branch cannot start at START; attach the router to a node"),
    (_listens, "a listens to 'itms', which is not a channel of the state (did you mean 'items'?)"),
    (_contract, "a declares the channel 'm', which the state does not have"),
    (_never_written, "a reads 'n', which nothing writes: no node's writes= names it, and the input need not have it"),
]


@pytest.mark.parametrize(("declare", "words"), FAULTS, ids=[d.__name__ for d, _ in FAULTS])
def test_every_fault_is_one_clear_line(declare: Callable[[Graph[S]], None], words: str) -> None:
    g = Graph("g", S)
    declare(g)
    with pytest.raises(InvalidGraph) as caught:
        g.validate()
    assert f"  - {words}" in caught.value.message.splitlines()
    assert "\n" not in caught.value.line()


def test_all_faults_are_told_at_once() -> None:
    g = Graph("g", S)
    _edge_to_nowhere(g)
    g.node("z", after="zz", reads="ghost")(nothing)
    with pytest.raises(InvalidGraph) as caught:
        g.validate()
    assert len(caught.value.message.splitlines()) == 5


def test_a_name_is_declared_once() -> None:
    g = Graph("g", S)
    g.node("a", start=True)(nothing)
    with pytest.raises(InvalidGraph, match="the node 'a' is declared twice"):
        g.node("a")(nothing)


@pytest.mark.parametrize(("id", "state", "words"), [("", S, "id is empty"), ("g", dict, "subclass of State")])
def test_a_graph_is_made_of_a_name_and_a_state(id: str, state: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Graph(id, state)


def test_a_node_does_not_yield() -> None:
    g = Graph("g", S)
    with pytest.raises(InvalidGraph, match="uses yield; a node must return its writes"):

        @g.node(start=True)
        def gen(state: S) -> Any:
            yield {"n": 1}


def test_a_node_takes_one_or_two_arguments() -> None:
    g = Graph("g", S)
    with pytest.raises(InvalidGraph, match="takes \\(state\\) or \\(state, ctx\\), not 3 arguments"):

        @g.node(start=True)
        def three(state: S, ctx: Context, more: int) -> None: ...


def _goes() -> Any:
    return Goto("b")


def test_what_a_node_may_reach_by_goto_or_send_is_no_fault() -> None:
    def directly(state: S) -> Any:
        return Send("b", 1)

    def through_a_function(state: S) -> Any:
        return _goes()

    def through_an_object(state: S) -> Any:
        return thing.next()

    class Thing:
        def next(self) -> Any:
            return _goes()

    thing = Thing()
    for call in (directly, through_a_function, through_an_object, functools.partial(directly)):
        g = Graph("g", S)
        g.node("a", start=True)(call)
        g.node("b")(nothing)
        g.validate()


def test_cycles_are_fine() -> None:
    g = Graph("g", S)
    g.node("a", start=True)(nothing)
    g.node("b", after="a")(nothing)
    g.edge("b", "a")
    g.validate()


def test_a_thousand_nodes_are_checked_quickly() -> None:
    g = Graph("g", S)
    g.node("n0", start=True)(nothing)
    for i in range(1, 1000):
        g.node(f"n{i}", after=f"n{i - 1}")(nothing)
    began = time.process_time()
    g.validate()
    assert time.process_time() - began < 2, "it is linear: far below"
    assert len(g.draw().splitlines()) == 1002
    assert len(g.mermaid().splitlines()) == 2001


# -- nodes of every kind ----------------------------------------------------------------------------


async def test_a_function_may_be_registered_under_another_name() -> None:
    g = Graph("g", S)

    def first(state: S) -> dict[str, Any]:
        return {"items": "first"}

    g.node("one", start=True)(first)
    g.node("two", after=first)(lambda state: {"items": "two"})
    assert (await invoked(g)).state.items == ["first", "two"]


async def test_callables_of_every_kind_are_nodes() -> None:
    class Adds:
        def __call__(self, state: S) -> dict[str, Any]:
            return {"items": "object"}

        async def method(self, state: S, ctx: Context) -> dict[str, Any]:
            return {"items": "method"}

    def partly(word: str, state: S, ctx: Context) -> dict[str, Any]:
        return {"items": word}

    async def optional(state: S, ctx: Context | None = None) -> dict[str, Any]:
        return {"items": "ctx" if ctx is not None else "none"}

    g = Graph("g", S)
    g.node("a", start=True)(Adds())
    g.node("b", after="a")(Adds().method)
    g.node("c", after="b")(functools.partial(partly, "partial"))
    g.node("d", after="c")(optional)
    assert (await invoked(g)).state.items == ["object", "method", "partial", "ctx"]


async def test_a_node_may_return_a_state() -> None:
    g = Graph("g", S)

    @g.node(start=True)
    async def a(state: S) -> S:
        return S(items=["a"], n=5)

    run = await invoked(g)
    assert (run.state.items, run.state.n) == (["a"], 5)


async def test_goto_end_with_writes_ends_the_branch() -> None:
    g = Graph("g", S)

    @g.node(start=True)
    async def a(state: S) -> Goto:
        return Goto(END, {"n": 7})

    @g.node(after="a")
    async def never(state: S) -> dict[str, Any]:
        return {"n": 8}

    run = await invoked(g)
    assert run.status is Status.COMPLETED and run.state.n == 7


async def test_send_fans_out_and_joins() -> None:
    """§4.2: each Send is a task of its own; what comes after the node waits for all of them."""
    g = Graph("g", S)

    @g.node(start=True)
    async def fan(state: S) -> list[Send]:
        return [Send("work", {"i": i}) for i in range(state.n)]

    @g.node
    async def work(state: S, ctx: Context) -> dict[str, Any]:
        return {"items": str(ctx.payload["i"])}

    @g.node(after="work")
    async def join(state: S) -> dict[str, Any]:
        return {"items": f"of {len(state.items)}"}

    assert (await invoked(g, {"n": 3})).state.items == ["0", "1", "2", "of 3"]
    none = await invoked(g, {"n": 0})
    assert none.status is Status.COMPLETED and none.state.items == ["of 0"], "a fan-out of nothing: what comes after it runs"


@pytest.mark.parametrize("returned", [5, "text", [1], {1, 2}, object()])
async def test_other_return_values_are_a_typed_error(returned: Any) -> None:
    g = Graph("g", S)
    g.node("a", start=True)(lambda state: returned)
    assert (await invoked(g)).stop_reason == "bad_return"


async def test_a_target_that_is_no_node_fails_and_names_the_nodes() -> None:
    g = Graph("g", S)
    g.node("a", start=True)(nothing)
    g.branch("a", lambda state: "nowhere")
    run = await invoked(g)
    assert run.stop_reason == "node_missing" and run.error is not None and "a goes to 'nowhere'" in run.error.message


async def test_a_condition_that_raises_fails_its_node() -> None:
    g = Graph("g", S)

    def condition(state: S) -> bool:
        raise ValueError("no idea")

    g.node("a", start=True, when=condition)(nothing)
    run = await invoked(g)
    assert run.status is Status.FAILED and run.error is not None and (run.error.type, run.error.where) == ("ValueError", "a")


async def test_any_of_takes_the_first_and_after_takes_all() -> None:
    """§4.17."""
    g = Graph("g", S)
    g.node("a", start=True)(lambda state: {"items": "a"})
    g.node("b", after="a")(lambda state: {"items": "b"})
    g.node("all", after=["a", "b"])(lambda state: {"items": "all"})
    g.node("any", after=any_of("a", "b"))(lambda state: {"items": "any"})
    assert (await invoked(g)).state.items == ["a", "b", "any", "all", "any"]


# -- what user code may raise -----------------------------------------------------------------------


def _exits() -> None:
    sys.exit(3)


async def _cancels() -> None:
    raise asyncio.CancelledError


def _stops() -> None:
    raise StopIteration("x")


@pytest.mark.parametrize(
    ("raises", "code"), [(_exits, "system_exit"), (_cancels, "cancelled_inside"), (_stops, "step_failed")], ids=["exit", "cancel", "stop"]
)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "in parallel"])
async def test_what_user_code_raises_fails_its_step_and_nothing_else(raises: Callable[[], Any], code: str, beside: bool) -> None:
    """A library that calls sys.exit must not end a worker that drives a hundred other runs."""
    g = Graph("g", S)

    @g.node(start=True)
    async def a(state: S) -> None:
        value = raises()
        if asyncio.iscoroutine(value):
            await value

    @g.node("sync", start=beside, after=None if beside else "a")
    def sync(state: S) -> None:
        if not inspect.iscoroutinefunction(raises):
            raises()

    run = await asyncio.wait_for(invoked(g), 20)
    assert run.status is Status.FAILED and run.stop_reason == code


async def test_a_plain_function_that_stops_an_iteration_does_not_hang() -> None:
    g = Graph("g", S)
    g.node("a", start=True)(lambda state: next(iter([])))
    run = await asyncio.wait_for(invoked(g), 20)
    assert run.status is Status.FAILED


async def test_a_keyboard_interrupt_is_the_operator_s() -> None:
    """It ends the driving; the run stays as the last commit left it."""
    g = Graph("g", S)

    @g.node(start=True)
    async def a(state: S) -> None:
        raise KeyboardInterrupt

    async with Runtime("memory:", skills=[g]) as rt:
        with pytest.raises(KeyboardInterrupt):
            await rt.invoke(g)
        assert (await rt.runs())[0].status is Status.RUNNING


# -- plain functions --------------------------------------------------------------------------------


async def test_a_plain_node_uses_what_does_not_wait_and_is_told_about_the_rest() -> None:
    """interfaces: the others raise "make it async"."""
    g = Graph("g", S)
    threads: list[int] = []

    @g.node(start=True)
    def plain(state: S, ctx: Context) -> dict[str, Any]:
        threads.append(threading.get_ident())
        ctx.emit("chunk")
        ctx.record("topic", "key", 1)
        assert ctx.now() is not None and 0 <= ctx.random() < 1 and ctx.uuid() is not None
        return {"n": 1}

    @g.node(after="plain")
    def waits(state: S, ctx: Context) -> None:
        ctx.approve("Go on?")

    run = await invoked(g)
    assert run.stop_reason == "usage" and run.error is not None
    assert "ctx.approve waits" in run.error.message
    assert threads != [threading.get_ident()]


async def test_a_thread_of_an_async_node_is_told_too() -> None:
    @flow("f")
    async def f(ctx: Context) -> Any:
        return await ctx.step(lambda: ctx.sleep(1))

    async with Runtime("memory:", skills=[f]) as rt:
        run = await rt.invoke(f)
    assert run.stop_reason == "usage" and run.error is not None and "a plain function called it" in run.error.message


async def test_values_nest_as_deep_as_anyone_needs() -> None:
    class Tree(State):
        value: Any = None

    deep: Any = "leaf"
    for i in range(80):
        deep = {"in": deep} if i % 2 else [deep]
    g = Graph("g", Tree)
    g.node("a", start=True)(lambda state: {"value": [state.value]})
    assert (await invoked(g, {"value": deep})).state.value == [deep]


async def test_a_reducer_that_raises_fails_the_run() -> None:
    class Sum(State):
        n: Annotated[int, lambda old, new: old // new] = 1

    g = Graph("g", Sum)
    g.node("a", start=True)(lambda state: {"n": 0})
    run = await invoked(g)
    assert run.stop_reason == "reducer_failed" and run.error is not None and "ZeroDivisionError" in run.error.message


async def test_what_a_router_or_a_condition_raises_fails_its_node_beside_others() -> None:
    g = Graph("g", S)
    g.node("a", start=True)(nothing)
    g.node("b", start=True)(lambda state: {"items": "b"})
    g.branch("a", lambda state: sys.exit(2))
    assert (await invoked(g)).stop_reason == "system_exit"


async def test_a_restart_in_one_of_several_nodes_is_told() -> None:
    g = Graph("g", S)

    @g.node(start=True)
    async def a(state: S, ctx: Context) -> None:
        ctx.restart()

    g.node("b", start=True)(nothing)
    assert (await invoked(g)).stop_reason == "restart_outside_flow"


def test_routers_and_conditions_are_plain_functions() -> None:
    async def later(state: S) -> Any: ...

    g = Graph("g", S)
    g.node("a", start=True)(nothing)
    with pytest.raises(InvalidGraph, match="the router of 'a' is async"):
        g.branch("a", later)
    with pytest.raises(InvalidGraph, match="the when= of 'b' is async"):
        g.node("b", after="a", when=later)(nothing)


# -- contracts --------------------------------------------------------------------------------------


async def test_a_contract_bounds_what_a_node_sees_and_writes() -> None:
    """§4.2: the snapshot holds only what it reads, a write outside is a typed error."""
    seen: list[Any] = []

    def contracted(returned: dict[str, Any], look: bool) -> Graph[S]:
        g = Graph("g", S)

        @g.node(start=True, reads=["n"], writes=["items"])
        def a(state: S) -> dict[str, Any]:
            seen.append(dict(state))
            return {"items": str(state.limit)} if look else returned

        return g

    run = await invoked(contracted({"items": "x"}, look=False), {"n": 3})
    assert run.state.items == ["x"] and seen == [{"n": 3}]
    assert (await invoked(contracted({"n": 4}, look=False))).stop_reason == "contract_violation"
    run = await invoked(contracted({}, look=True))
    assert run.stop_reason == "contract_violation" and run.error is not None
    assert run.error.message == "'limit' may not be read by this node, which declares reads=['n']"


async def test_a_channel_nobody_declared_is_named() -> None:
    """§4.1."""
    g = Graph("g", S)
    g.node("a", start=True)(lambda state: {"itmes": "x"})
    run = await invoked(g)
    assert run.stop_reason == "undeclared_channel" and run.error is not None and "'itmes'" in run.error.message


async def test_two_writers_of_one_channel_are_a_typed_error() -> None:
    g = Graph("g", S)
    for name in "ab":
        g.node(name, start=True)(lambda state: {"n": 1})
    run = await invoked(g)
    assert run.stop_reason == "two_writers" and run.error is not None and "a and b both wrote 'n'" in run.error.message


async def test_an_input_may_be_called_as_an_option_is() -> None:
    """`rt.run` takes a flow's inputs by name, whatever their names; `invoke` and `submit` take them in a mapping, and say so."""

    @flow("names")
    async def names(ctx: Context, skill: str, inputs: int, self: int, thread_id: str, key: str = "k") -> list[Any]:
        return [skill, inputs, self, thread_id, key]

    given = {"skill": "s", "inputs": 1, "self": 2, "thread_id": "t"}
    async with Runtime("memory:") as rt:
        assert await rt.run(names, **given) == ["s", 1, 2, "t", "k"]
        assert await rt.run(names, "s", 1, 2, thread_id="t", key="x") == ["s", 1, 2, "t", "x"]
        assert (await rt.invoke(names, given)).result == ["s", 1, 2, "t", "k"]
        for begin in (rt.invoke, rt.submit):
            with pytest.raises(UsageError, match=r"given 'skill' twice.* in a mapping: \{'skill': …\}"):
                await begin(names, skill="s")  # type: ignore[call-arg]
            with pytest.raises(UsageError, match=r"given 'inputs' twice"):
                await begin(names, given, inputs=1)  # type: ignore[call-arg]
        with pytest.raises(UsageError, match=r"needs 'skill', 'inputs', 'self', 'thread_id' in its input; such as \{\"skill\": …"):
            await rt.submit(names, thread_id="t")
        with pytest.raises(UsageError, match="'inputs'"):
            await rt.run(names, skill="s")


async def test_a_graph_is_run_with_its_skill_by_name() -> None:
    class One(State):
        n: int = 0

    graph = Graph("one", One)

    @graph.node(start=True)
    async def only(state: One) -> dict[str, int]:
        return {"n": state.n + 1}

    async with Runtime("memory:") as rt:
        assert (await rt.run(skill=graph, inputs={"n": 1})).n == 2
        with pytest.raises(UsageError, match="given 'skill' twice"):
            await rt.run(graph, skill=graph)  # type: ignore[misc]
        with pytest.raises(TypeError, match="skill"):
            await rt.run()  # type: ignore[call-overload]


def test_a_dict_that_can_never_be_filled_is_refused_where_it_is_declared() -> None:
    """§1.10: the keys of what is stored are text; the error says what to declare instead."""
    with pytest.raises(InvalidGraph, match=r"prices in the state Shop is declared dict\[int, float\], and can never be filled.*declare dict\[str, float\].*list\[tuple\[int, float\]\]"):

        class Shop(State):
            prices: dict[int, float] = {}  # noqa: RUF012

    with pytest.raises(InvalidGraph, match=r"seats in the state Hall is declared dict\[tuple\[int, int\], str\]"):

        class Hall(State):
            seats: Annotated[list[dict[tuple[int, int], str]], append]

    with pytest.raises(InvalidGraph, match=r"given in the flow 'count' is declared dict\[int, int\]"):

        @flow("count")
        async def counts(ctx: Context, given: dict[int, int] | None = None) -> None: ...
