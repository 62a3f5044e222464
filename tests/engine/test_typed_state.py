"""State is what its annotations say (§3.7): input, writes, signals, patches, answers and a flow's arguments."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Annotated, Any

import msgspec
import pytest

from holdfast import Context, Graph, Runtime, State, append, flow, merge, window
from holdfast.core.errors import InvalidAnswer, InvalidInput, TooLarge
from holdfast.named import CheckpointStore


@dataclasses.dataclass(frozen=True)
class Item:
    name: str
    price: float = 0.0


def added(old: int, new: int) -> int:
    return old + new


class Order(State):
    n: int = 0
    share: float = 0.0
    due: dt.date | None = None
    items: Annotated[list[Item], append]
    last: Annotated[list[str], window(3)]
    facts: Annotated[dict[str, int], merge]
    total: Annotated[int, added] = 0
    small: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0
    text: str = ""
    news: Annotated[list[str], append]


def order(writes: dict[str, Any] | None = None, *, asks: bool = False) -> Graph[Order]:
    graph = Graph("order", Order)

    @graph.node(start=True)
    async def one(state: Order, ctx: Context) -> dict[str, Any]:
        if asks:
            await ctx.wait("go")
        return writes or {}

    return graph


GOOD: list[tuple[dict[str, Any], str, Any]] = [
    ({"n": 3}, "n", 3), ({"share": 1}, "share", 1.0), ({"due": "2026-01-02"}, "due", dt.date(2026, 1, 2)), ({"items": Item("a")}, "items", [Item("a")]),
    ({"items": [{"name": "a", "price": 2}]}, "items", [Item("a", 2.0)]), ({"last": ["a", "b", "c", "d"]}, "last", ["b", "c", "d"]), ({"last": "a"}, "last", ["a"]),
    ({"facts": {"a": 1}}, "facts", {"a": 1}), ({"total": 4}, "total", 4), ({"small": 9}, "small", 9),
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"n": "not a number"}, "n"), ({"n": True}, "n"), ({"n": 1.0}, "n"), ({"share": "1"}, "share"), ({"due": "soon"}, "due"), ({"due": 5}, "due"), ({"items": "a"}, "items"),
    ({"items": [{"name": 3}]}, "items[0].name"), ({"items": [{"nam": "a"}]}, "items[0].nam"), ({"last": [1]}, "last[0]"), ({"facts": {"a": "b"}}, "facts.a"),
    ({"total": "4"}, "total"), ({"small": 10}, "small"), ({"text": None}, "text"),
]


@pytest.mark.parametrize(("given", "name", "value"), GOOD, ids=[str(g[0])[:30] for g in GOOD])
async def test_what_fits_is_kept_as_its_type(given: dict[str, Any], name: str, value: Any) -> None:
    async with Runtime("memory:") as rt:
        for run in (await rt.invoke(order(given), {}), await rt.invoke(order(), given)):
            again = (await rt.get(run.run_id)).values[name]
            assert run.status == "completed" and run.values[name] == value == again and type(again) is type(run.values[name])


@pytest.mark.parametrize(("given", "field"), BAD, ids=[str(b[0])[:30] for b in BAD])
async def test_what_does_not_fit_is_refused_where_it_enters(given: dict[str, Any], field: str) -> None:
    async with Runtime("memory:") as rt:
        run = await rt.invoke(order(given), {})
        assert run.error is not None and (run.status, run.error.code) == ("failed", "invalid_write") and field in run.error.message
        with pytest.raises(InvalidInput) as caught:
            await rt.invoke(order(), given)
        assert caught.value.field == field and field in str(caught.value)
        with pytest.raises(InvalidInput):
            await rt.submit(order(), given)
        assert len(await rt.runs()) == 1
        source = await rt.invoke(order({"n": 1}), {})
        if not field.startswith("total"):
            value = given if not field.startswith(("items", "last")) else {n: v if isinstance(v, list) else [v] for n, v in given.items()}
            with pytest.raises(InvalidInput) as caught:
                await rt.fork(source.run_id, set=value)
            assert caught.value.field.split("[")[0] == field.split("[")[0]


async def test_a_patch_and_a_signal() -> None:
    async with Runtime("memory:") as rt:
        run = await rt.invoke(order(asks=True), {})
        for values in ({"n": "x"}, {"items": [3]}, {"facts": {"a": "b"}}):
            with pytest.raises(InvalidInput):
                await CheckpointStore(rt).save_checkpoint(run.run_id, values, actor="ada")
        with pytest.raises(InvalidInput) as caught:
            await rt.signal(run.run_id, "news", 5)
        assert caught.value.field == "news" and (await rt.get(run.run_id)).version == run.version
        await rt.signal(run.run_id, "news", "a")
        await rt.signal(run.run_id, "go")
        done = await rt.resume(run.run_id)
        assert list(done.state.news) == ["a"]


async def test_a_flow_takes_what_its_signature_says() -> None:
    @flow("pay")
    async def pay(ctx: Context, amount: float, on: dt.date | None = None, to: Item = Item("x")) -> str:
        return f"{amount} {on} {to.name}"

    async with Runtime("memory:", skills=[pay]) as rt:
        assert await rt.run(pay, 3) == "3.0 None x"
        run = await rt.invoke("pay", {"amount": 3, "on": "2026-01-02", "to": {"name": "a"}})
        assert run.result == "3.0 2026-01-02 a"
        for given in ({"amount": "3"}, {"amount": 3, "on": "soon"}, {"amount": 1, "to": {"name": 3}}):
            with pytest.raises(InvalidInput):
                await rt.invoke("pay", given)


async def test_an_answer_is_of_the_type_asked_for() -> None:
    @flow("asks")
    async def asks(ctx: Context) -> Item:
        return await ctx.ask("Which?", Item)

    async with Runtime("memory:", skills=[asks]) as rt:
        run = await rt.invoke(asks)
        for wrong in ({"name": 3}, "a", {"price": 3}):
            with pytest.raises(InvalidAnswer):
                await rt.resume(run.run_id, payload=wrong)
        assert (await rt.resume(run.run_id, payload={"name": "a", "price": 2})).result == Item("a", 2.0)


async def test_writes_and_what_they_grow_to_are_bounded() -> None:
    """§14.3: 40 MiB in a channel passed."""
    mib = 1024 * 1024

    class Heap(State):
        text: str = ""
        parts: Annotated[list[str], append]
        left: int = 6

    graph = Graph("heap", Heap)

    @graph.node(start=True)
    async def grow(state: Heap) -> dict[str, Any]:
        return {"text": state.text * 40} if state.left == 0 else {"parts": "x" * (15 * mib), "left": state.left - 1}

    graph.branch(grow, lambda state: "grow" if state.left else None)
    async with Runtime("memory:") as rt:
        for given, field in (({"text": "x" * mib, "left": 0}, "text"), ({"left": 6}, "parts")):
            run = await rt.invoke(graph, given)
            assert run.error is not None and run.error.code == "too_large" and field in run.error.message
        with pytest.raises(TooLarge) as caught:
            await rt.submit(graph, {"text": "x" * (17 * mib)})
        assert caught.value.field and caught.value.limit == 16 * mib
