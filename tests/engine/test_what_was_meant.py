"""The usual mistakes of a first hour end in an error that names the way out (§3.6)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core.errors import InvalidGraph, InvalidInput, LogRolledBack, RunFailed, StoreClosed, StoreReadOnly, UsageError
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
        with pytest.raises(RunFailed, match=r"ctx\.step waits, and a plain function called it: threaded has passed .*; make that function async, and await ctx\.step in it"):
            await rt.run(threaded)
