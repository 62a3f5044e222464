"""The usual mistakes of a first hour end in an error that names the way out (§3.6)."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import decimal
import functools
import pickle
import re
import types
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import pydantic
import pytest

from holdfast import Context, Goto, Graph, Runtime, Send, State, append, flow, window
from holdfast.core.errors import (
    ContractViolation,
    HoldfastError,
    InvalidGraph,
    InvalidInput,
    LogRolledBack,
    RunFailed,
    StoreClosed,
    StoreReadOnly,
    UsageError,
)
from holdfast.stores.urls import open_url


def work(number: int = 1) -> int:
    return number


@flow("one")
async def one(ctx: Context) -> int:
    return await ctx.step(work)


async def test_a_call_in_the_place_of_a_function() -> None:
    @flow("calls")
    async def calls(ctx: Context) -> Any:
        return await ctx.step(work(3))  # type: ignore[call-overload]

    async with Runtime("memory:", skills=[calls]) as rt:
        with pytest.raises(RunFailed, match=r"fn is a function, not 3 of type int; give the function itself .* step\(f, x\)"):
            await rt.run(calls)


@pytest.mark.parametrize(
    ("skill", "said"),
    [
        (work, "skills[0] is a Graph or a Flow, not the function work; @flow("),
        (Graph, "skills[0] is a Graph or a Flow, not the class Graph; @flow("),
        ("one", "skills[0] is a Graph or a Flow, not 'one' of type str; @flow("),
    ],
)
def test_what_is_no_skill(skill: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Runtime("memory:", skills=[skill])
    assert str(caught.value).startswith(said)


def test_a_class_that_is_no_state() -> None:
    with pytest.raises(InvalidInput, match="state is a subclass of State, not the class dict"):
        Graph("g", dict)  # type: ignore[type-var]


def test_a_path_in_the_place_of_a_url() -> None:
    with pytest.raises(InvalidInput, match=r"store_url is a URL, such as sqlite:///runs.db, or a store, not a value of type \w+; sqlite:////data/runs.db$"):
        Runtime(Path("/data/runs.db"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="store_url is a URL"):
        Runtime(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("runs.db", "sqlite:///runs.db"),
        ("sqlite://runs.db", "sqlite:///runs.db"),
        ("sqlite:runs.db", "sqlite:///runs.db"),
        ("sqlite:/data/runs.db", "sqlite:////data/runs.db"),
        (":memory:", "memory:"),
        ("memory", "memory:"),
        ("sqlite://", "memory:"),
    ],
)
def test_a_url_that_is_nearly_right(url: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_url(url)
    assert caught.value.hint.startswith(f"did you mean {meant}? ")
    open_url(meant)


@pytest.mark.parametrize("url", ["mysql://db", "sqlite:///", "", "workspace:", "sqlite:///a.db?mode=ro", "runs"])
def test_a_url_for_which_nothing_is_guessed(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_url(url)
    assert caught.value.hint.startswith("supported: ")


@pytest.mark.one_store("it is about the file")
async def test_a_folder_in_the_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(StoreReadOnly, match="is a folder; a SQLite store is a file: add its name"):
        async with Runtime(f"sqlite:///{tmp_path}"):
            pass


@pytest.mark.one_store("it is about the file")
async def test_a_store_that_was_moved_without_its_anchor_opens_once_the_anchor_has_followed(tmp_path: Path) -> None:
    """§1.9: what the hint says is done."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    async with Runtime(f"sqlite:///{old}", skills=[one]) as rt:
        run = await rt.invoke(one, {})
    old.rename(new)
    with pytest.raises(LogRolledBack, match="move its anchor to .*new.db-anchor too"):
        async with Runtime(f"sqlite:///{new}", skills=[one]) as rt:
            await rt.invoke(one, {})
    (tmp_path / "old.db-anchor").rename(tmp_path / "new.db-anchor")
    async with Runtime(f"sqlite:///{new}", skills=[one]) as rt:
        assert (await rt.get(run.run_id)).result == 1
        assert (await rt.invoke(one, {})).result == 1


async def test_what_a_task_group_holds_is_told() -> None:
    """Its own text says «1 sub-exception», and nothing of the way out."""

    @flow("grouped")
    async def grouped(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step(work))
            group.create_task(ctx.step(work))

    async with Runtime("memory:", skills=[grouped]) as rt:
        with pytest.raises(RunFailed, match=r"1 sub-exception\): ConcurrentScope: the call of work began .* use ctx.gather"):
            await rt.run(grouped)


async def test_keyword_arguments_of_a_step() -> None:
    @flow("keywords")
    async def keywords(ctx: Context) -> Any:
        return await ctx.step(work, number=3)  # type: ignore[call-overload]

    async with Runtime("memory:", skills=[keywords]) as rt:
        with pytest.raises(RunFailed, match=r"has no option 'number'; .*functools.partial\(fn, number=…\)"):
            await rt.run(keywords)


def test_two_skills_of_one_name_and_version_in_one_list() -> None:
    """The second took the place of the first without a word. One skill named twice is no mistake, and neither is another version."""

    def make(version: str) -> Any:
        @flow("orders", version=version)
        async def orders(ctx: Context) -> int:
            return 1

        return orders

    first = make("1")
    with pytest.raises(UsageError, match="two skills are called 'orders' in version '1'; give one of them another id or another version"):
        Runtime("memory:", skills=[first, make("1")])
    Runtime("memory:", skills=[first, first, make("2")]).add(make("1"))


class Count(State):
    n: int = 0


graph_of_one: Graph[Count] = Graph("graph-of-one", Count)


@graph_of_one.node(start=True)
async def only(state: Count) -> None: ...


def test_a_runtime_is_entered_with_async_with() -> None:
    with pytest.raises(UsageError, match=r"a Runtime is entered with `async with`, not with `with`; async with Runtime\("):
        with Runtime("memory:"):  # type: ignore[attr-defined, misc]
            pass


@pytest.mark.parametrize("skill", [one, graph_of_one])
def test_a_skill_is_not_called(skill: Any) -> None:
    with pytest.raises(UsageError, match=rf"'{skill.id}' is not called like a function; await rt.run\(.*\).*within a run: await ctx.child\("):
        skill(1)


@pytest.mark.parametrize("skill", [one, graph_of_one])
@pytest.mark.parametrize("verb", ["step", "effect", "map"])
async def test_a_skill_in_the_place_of_a_function_is_a_child(skill: Any, verb: str) -> None:
    @flow("outer")
    async def outer(ctx: Context) -> Any:
        return await getattr(ctx, verb)(skill, [1])

    async with Runtime("memory:", skills=[outer]) as rt:
        with pytest.raises(RunFailed, match=rf"fn is a function, not the skill '{skill.id}'; .*await ctx.child\("):
            await rt.run(outer)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda g: g.node(one), r"a node is a function, not the skill 'one'; .*ctx.child\("),
        (lambda g: g.node(graph_of_one), r"a node is a function, not the skill 'graph-of-one'; .*subgraph\("),
        (lambda g: g.subgraph("inner", one), r"the subgraph 'inner' is a Graph, not Flow; .*ctx.child\("),
        (lambda g: g.edge(one, "only"), "source is a node's name or its function, not the skill 'one'"),
        (lambda g: g.branch("only", one), "router is a function, not the skill 'one'"),
        (lambda g: g.node(Count), r"a node is a function, not the class Count; .*Count\(…\)"),
        (lambda g: g.node(Methods.add), r"the node 'add' is a method without its object; .*obj.add"),
        (lambda g: g.node(turned), r"the node 'turned' takes \(state\) or \(state, ctx\), not \(ctx, state\)"),
        (lambda g: g.node(lacking), r"the node 'lacking' takes \(state\) or \(state, ctx\), not \(ctx\)"),
    ],
)
def test_what_is_no_node(use: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        use(Graph("g", Count))


class Methods:
    async def add(self, state: Count) -> dict[str, int]:
        return {"n": state.n + 1}


async def turned(ctx: Context, state: Count) -> None: ...


async def lacking(ctx: Context) -> None: ...


async def test_the_method_of_an_object_is_a_node() -> None:
    g: Graph[Count] = Graph("g", Count)
    g.node(start=True)(Methods().add)
    async with Runtime("memory:") as rt:
        assert (await rt.run(g, {"n": 1})).n == 2


async def after_its_input(order: str, ctx: Context) -> None: ...
async def under_another_name(order: str, c: Context) -> None: ...
async def without(order: str) -> None: ...
async def a_method(self: Any, ctx: Context, order: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (after_its_input, r"async def after_its_input\(ctx, order\)"),
        (under_another_name, r"async def under_another_name\(c, order\)"),
        (without, r"async def without\(ctx, order\)"),
        (a_method, "declare the flow outside of the class"),
    ],
)
def test_ctx_is_the_first_argument_of_a_flow(function: Any, hint: str) -> None:
    """Otherwise the run was refused with «has no input 'order'», or was given ctx for the order."""
    with pytest.raises(InvalidGraph, match=rf"the flow 'f' takes ctx as its first argument, not '\w+'; {hint}"):
        flow("f")(function)


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        ("Decimal | None", r"the annotation of 'total' in the state Order cannot be resolved: name 'Decimal' is not defined; .*TYPE_CHECKING"),
        ("asyncio.Nothing", "the annotation of 'total' in the state Order cannot be resolved: module 'asyncio' has no attribute 'Nothing'"),
        ("list[", "the annotation of 'total' in the state Order cannot be resolved"),
        ("1 | 2 | list", "the annotation of 'total' in the state Order cannot be resolved"),
    ],
)
def test_an_annotation_of_a_state_that_cannot_be_resolved(annotation: str, said: str) -> None:
    """Above all a name that is imported for the type checker alone."""
    with pytest.raises(InvalidGraph, match=said):
        type("Order", (State,), {"__annotations__": {"name": "str", "total": annotation}, "__module__": __name__, "name": "", "total": None})


@pytest.mark.parametrize("verb", ["get", "explain", "cancel", "resume", "history"])
async def test_a_runtime_after_its_end_or_before_its_beginning(verb: str, tmp_path: Path) -> None:
    rt = Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[one])
    with pytest.raises(StoreClosed, match=r"is not open; .*async with Runtime\(…\) as rt"):
        await getattr(rt, verb)("0" * 26)
    async with rt:
        run = await rt.invoke(one, {})
    with pytest.raises(StoreClosed, match=r"is not open; .*async with Runtime\(…\) as rt"):
        await getattr(rt, verb)(run.run_id)


async def test_a_lambda_that_makes_ctx_calls_is_an_item_as_an_async_function_is() -> None:
    """A lambda cannot be async, and the signature of ``ctx.map`` allows one whose result is to be awaited."""
    done: list[int] = []

    async def double(number: int) -> int:
        done.append(number)
        return 2 * number

    @flow("lambdas")
    async def lambdas(ctx: Context) -> list[int]:
        both = await ctx.map(lambda n: ctx.step(double, n), [1, 2]) + await ctx.map(lambda n: ctx.effect(double, n, idempotent=True), [3, 4], concurrency=1)
        plain = await ctx.map(lambda n: n if ctx.attempt else 0, [5])
        await ctx.approve("On?")
        return both + plain

    async with Runtime("memory:", skills=[lambdas]) as rt:
        asked = await rt.invoke(lambdas, {})
        assert asked.waits, asked.error
        ended = await rt.approve(asked.run_id)
    assert (ended.result, done) == ([2, 4, 6, 8, 5], [1, 2, 3, 4])


@pytest.mark.parametrize("verb", ["step", "map"])
async def test_a_plain_function_that_makes_ctx_calls(verb: str) -> None:
    @flow("threaded")
    async def threaded(ctx: Context) -> Any:
        def plain(number: int) -> Any:
            return ctx.step(work, number)

        return await (ctx.step(plain, 1) if verb == "step" else ctx.map(plain, [1]))

    async with Runtime("memory:", skills=[threaded]) as rt:
        with pytest.raises(RunFailed, match=r"ctx\.step waits, and a plain function called it: threaded has passed .*; await ctx\.step in threaded itself; a function that is passed to ctx\.map may"):
            await rt.run(threaded)


@pytest.mark.parametrize("verb", ["step", "effect"])
async def test_an_async_function_that_makes_ctx_calls_is_awaited_as_it_is(verb: str) -> None:
    """The refusal told it to give the inner call a key, or to use ctx.gather."""

    async def both(ctx: Context, number: int) -> int:
        return await ctx.step(work, number) + await ctx.step(work, number)

    @flow("twice")
    async def twice(ctx: Context, around: bool) -> Any:
        return await (both(ctx, 2) if not around else getattr(ctx, verb)(lambda: both(ctx, 2), name="both"))

    async with Runtime("memory:", skills=[twice]) as rt:
        with pytest.raises(RunFailed, match=r"both makes the call of work, and it was itself given to a ctx call.*; await both\(…\) as it is: then each ctx call"):
            await rt.run(twice, around=True)
        assert await rt.run(twice, around=False) == 4


async def gives(ctx: Context) -> Any:
    yield 1


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def plain(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return plain


class Called:
    async def __call__(self, ctx: Context) -> int:
        return 1


async def by_place(ctx: Context, order: str, /) -> str:
    return order


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (gives, r"the flow 'f' uses yield, and a flow must return its result; ctx.emit\(chunk\) streams"),
        (work, "the flow 'f' must be an async def$"),
        (decorated(without), "the flow 'f' must be an async def, and its decorator has made it a plain function; write @flow beneath that decorator, or make the decorator async"),
        (staticmethod(without), "the flow 'f' must be an async def, not a staticmethod; write @staticmethod above @flow"),
        (Called(), r"the flow 'f' must be an async def, not an object; give its method: flow\('f'\)\(obj.__call__\)"),
        (by_place, "the flow 'f' takes its inputs by name, and 'order' can only be given by its place; take the / out of its signature"),
    ],
)
def test_what_is_no_flow(function: Any, said: str) -> None:
    with pytest.raises(InvalidGraph, match=said):
        flow("f")(function)


def test_flow_without_an_id() -> None:
    with pytest.raises(InvalidInput, match=r"id is text, not the function without; @flow\('without', version='1'\)"):
        flow(without)  # type: ignore[arg-type]


async def test_a_partial_is_a_flow() -> None:
    """What it fixes is an input with a default."""

    async def price(ctx: Context, amount: int, factor: decimal.Decimal) -> decimal.Decimal:
        return amount * factor

    doubled = flow("doubled")(functools.partial(price, factor=decimal.Decimal(2)))
    async with Runtime("memory:", skills=[doubled]) as rt:
        assert (await rt.invoke(doubled, {"amount": 3})).result == 6
        assert (await rt.invoke(doubled, {"amount": 3, "factor": decimal.Decimal(3)})).result == 9


async def with_ctx_by_name(state: Count, *, ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda g: g.node(lambda state: None), r"a lambda has no name; give one: graph.node\('NAME'\)\(lambda state: …\)"),
        (lambda g: g.node(with_ctx_by_name), r"the node 'with_ctx_by_name' takes \(state\) or \(state, ctx\), and 'ctx' can only be given by its name; take the \* out"),
        (lambda g: Goto(work), r"Goto takes the name of a node, not the function work; Goto\('work'\)"),
        (lambda g: Goto(["a", work]), r"Goto takes the name of a node, not the function work; Goto\('work'\)"),
        (lambda g: Send(work, 1), r"Send takes the name of a node, not the function work; Send\('work', …\)"),
        (lambda g: Send(5, 1), "Send takes the name of a node, not 5 of type int$"),
    ],
)
def test_a_node_that_has_no_name_or_is_not_named(use: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        use(Graph("g", Count))


@pytest.mark.parametrize(
    ("annotation", "default", "said"),
    [
        (Annotated[list[str], window], None, r"the annotation of 'many' in the state Order: window needs a number; Annotated\[list\[str\], window\(50\)\]"),
        (list[str], append, r"the default of 'many' in the state Order is a reducer; it belongs in the annotation: many: Annotated\[list\[str\], append\]"),
        (list[str], dataclasses.field(default_factory=list), "the default of 'many' in the state Order is a field of a dataclass; write the value itself, such as \\[\\]: no two states share it"),
        (list[str], pydantic.Field(default_factory=list), "the default of 'many' in the state Order is a field of pydantic; write the value itself"),
        (Annotated[str, append], "x", "the default of 'many' in the state Order is 'x' of type str, and its reducer append adds to a list; give it a list, or another reducer"),
        (list[str], msgspec.field(default_factory=list), "the default of 'many' in the state Order is a field of msgspec; write the value itself"),
        ("Annotated[list[str], append()]", None, r"a reducer is named in an annotation, and not called; Annotated\[list\[str\], append\]"),
    ],
)
def test_a_channel_that_is_nearly_right(annotation: Any, default: Any, said: str) -> None:
    with pytest.raises(InvalidGraph, match=said):
        type("Order", (State,), {"__annotations__": {"many": annotation}, "__module__": __name__, **({} if default is None else {"many": default})})


class Field(NamedTuple):
    name: str


async def test_a_default_may_be_of_a_class_that_is_called_as_a_librarys() -> None:
    class Form(State):
        first: Field = Field("a")

    form: Graph[Form] = Graph("form", Form)
    form.node("ask", start=True)(lambda state: None)
    async with Runtime("memory:") as rt:
        assert (await rt.invoke(form, {})).state.first == Field("a")


class Odd(State):
    keys: int = 1
    items: Annotated[list[str], append]
    values: int = 2


async def test_a_channel_may_bear_the_name_of_a_method_of_a_mapping() -> None:
    odd: Graph[Odd] = Graph("odd", Odd)
    odd.node("add", start=True)(lambda state: {"items": [str(state.keys)], "values": state["values"] + 1})
    async with Runtime("memory:") as rt:
        assert (await rt.run(odd, Odd(keys=5, items=["a"]))) == {"keys": 5, "items": ["a", "5"], "values": 3}


async def test_a_run_and_its_state_go_to_another_process() -> None:
    counted: Graph[Count] = Graph("counted", Count)
    counted.node("add", start=True)(lambda state: {"n": state.n + 1})
    async with Runtime("memory:") as rt:
        run = await rt.invoke(counted, {"n": 1})
        for copied in (pickle.loads(pickle.dumps(run)), copy.deepcopy(run)):
            assert (copied.run_id, copied.status, copied.state, copied.result) == (run.run_id, run.status, run.state, run.result)
            assert type(copied.state) is Count and copied.state.n == 2

    narrow: Graph[Odd] = Graph("narrow", Odd)

    @narrow.node(start=True, reads=["keys"])
    def look(state: Odd) -> None:
        copied = pickle.loads(pickle.dumps(state))
        assert copied.keys == 1
        with pytest.raises(ContractViolation, match=r"'values' may not be read by this node, which declares reads=\['keys'\]"):
            _ = copied.values

    async with Runtime("memory:") as rt:
        await rt.run(narrow)


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (lambda rt, run: rt.approve(run.run_id), r"the run is failed and has no open question; holdfast explain \w{26} says why"),
        (lambda rt, run: rt.resume(run), r"run_id is text, not a value of type Run; give its id: run\.run_id"),
        (lambda rt, run: rt.invoke(one, order="a"), r"Runtime\.invoke has no option 'order'; .*An input is given in a mapping: \{'order': …\}"),
        (lambda rt, run: rt.submit(one, order="a"), r"Runtime\.submit has no option 'order'; .*An input is given in a mapping: \{'order': …\}"),
        (lambda rt, run: rt.run(named, {"order": "a"}), r"named: rt\.run takes the inputs of a flow as arguments, and was given a mapping of them; rt\.run\(named, \*\*inputs\)"),
        (lambda rt, run: rt.invoke(named, {"order": {"a": 1}}), r"input\.order must be str, and it is a value of type dict"),
        (lambda rt, run: rt.invoke(named, {"order": [1]}), r"input\.order must be str, and it is a value of type list"),
    ],
)
async def test_a_verb_that_is_given_what_another_takes(verb: Any, said: str) -> None:
    @flow("fails")
    async def fails(ctx: Context) -> None:
        raise LookupError("not there")

    async with Runtime("memory:", skills=[fails]) as rt:
        run = await rt.invoke(fails)
        with pytest.raises(HoldfastError, match=said):
            await verb(rt, run)


@flow("named")
async def named(ctx: Context, order: str) -> str:
    return order


async def test_a_result_that_does_not_come_in_time() -> None:
    async with Runtime("memory:") as rt:
        run = await rt.submit(one)
        with pytest.raises(TimeoutError, match=f"the run {run.run_id} is still pending after 0 s; holdfast explain {run.run_id} says"):
            await rt.result(run.run_id, timeout=0)


async def test_an_async_node_that_a_decorator_has_made_plain() -> None:
    @decorated
    async def hidden(state: Count, ctx: Context) -> Any:
        return await ctx.step(work)

    g: Graph[Count] = Graph("g", Count)
    g.node(start=True)(hidden)
    async with Runtime("memory:") as rt:
        with pytest.raises(RunFailed, match="from plain code of hidden; a decorator has made it plain: make that decorator async"):
            await rt.run(g, {"n": 1})


@pytest.mark.parametrize(("gives", "said"), [(gives, "return a list: "), (lambda ctx: types.MappingProxyType({}), r"convert it to a dict: dict\(…\)")])
async def test_what_a_step_cannot_give(gives: Any, said: str) -> None:
    @flow("streams")
    async def streams(ctx: Context) -> Any:
        return await ctx.step(gives, "prompt")

    async with Runtime("memory:", skills=[streams]) as rt:
        run = await rt.invoke(streams)
    assert run.error is not None and re.search(said, run.error.hint)
