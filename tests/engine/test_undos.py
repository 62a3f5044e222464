"""Where a process that did not do the effect finds what takes it back (§6.11, §14.3)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Context, Graph, State, flow
from holdfast.core.effects import Effect, EffectClass
from holdfast.engine.calls import undos


class Empty(State):
    n: int = 0


EFFECT = Effect(
    effect_id="run.1.node.0#1", run_id="run", lineage_root="run", step=1, task="node", path="0", attempt=1, capability="book",
    effect_class=EffectClass.EXTERNAL, key="k",
)


async def book(what: str) -> str:
    return what


async def refund(receipt: str) -> None: ...


async def unused(receipt: str) -> None: ...


named_partial = functools.partial(refund)


def found(skill: Any, undo: Any, known: dict[str, Any] | None = None) -> Any:
    return undos.find(known or {}, skill.program, replace(EFFECT, undo=undos.label(undo)))


class Bank:
    async def refund(self, receipt: str) -> None: ...

    @property
    def broken(self) -> Any:
        raise OSError("no bank today")

    async def pay(self, state: Empty, ctx: Context) -> None:
        await ctx.effect(book, "a", undo=self.refund)


def of(code: Any) -> Graph[Empty]:
    graph = Graph("bank", Empty)
    graph.node("pay", start=True)(code)
    return graph


async def helper(ctx: Context) -> None:
    await ctx.effect(book, "a", undo=refund)


async def by_helper(state: Empty, ctx: Context) -> None:
    await helper(ctx)


async def shadowed(state: Empty, ctx: Context) -> None:
    def refund(receipt: str) -> None: ...

    await ctx.effect(book, "a", undo=refund)


def test_by_the_name_that_the_code_writes() -> None:
    assert found(of(by_helper), refund) is refund, "a function of the same package that the node calls"
    bank = Bank()
    assert found(of(bank.pay), bank.refund) == bank.refund, "a method of the object that the node is of"
    assert found(of(functools.partial(Bank.pay, bank)), bank.refund) is None, "whose self nobody can know from its code"


def test_what_the_code_closes_over() -> None:
    bank, other = Bank(), Bank()

    @flow("one")
    async def one(ctx: Context) -> None:
        await ctx.effect(book, "a", undo=bank.refund)

    @flow("two")
    async def two(ctx: Context) -> None:
        await ctx.effect(book, "a", undo=bank.refund)
        await ctx.effect(book, "b", undo=other.refund)

    @flow("raises")
    async def raises(ctx: Context) -> None:
        await ctx.effect(book, "a", undo=bank.broken)

    assert found(one, bank.refund) == bank.refund
    assert found(two, bank.refund) is None, "two of one name: nobody guesses"
    assert found(raises, bank.refund) is None


def test_what_is_stored_chooses_only_among_what_stands_behind_undo() -> None:
    """§14.3: no other function of the code or of its modules, whatever name the record holds."""
    for other in (unused, book, helper, functools.reduce, print):
        assert found(of(by_helper), other) is None


@pytest.mark.parametrize(
    "undo", [lambda receipt: None, functools.partial(refund), named_partial, shadowed], ids=["lambda", "partial", "named partial", "local"]
)
def test_what_no_other_process_can_know(undo: Any) -> None:
    assert found(of(shadowed), undo) is None
    assert found(of(by_helper), undo) is None


def test_the_process_that_was_told_knows() -> None:
    """By the effect's place, and only while it is the function that is on record."""
    mine = lambda receipt: None  # noqa: E731
    known: dict[str, Any] = {}
    undos.keep(known, "run.1.node.0", mine)
    assert found(of(shadowed), mine, known) is mine
    assert found(of(by_helper), refund, known) is refund


def test_a_script_is_the_same_code_as_its_module() -> None:
    effect = replace(EFFECT, undo="__main__:refund")
    assert undos.find({}, of(by_helper).program, effect) is refund


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undos, "KEPT", 2)
    known: dict[str, Any] = {}
    for place in ("a", "b", "a", "c"):
        undos.keep(known, place, refund)
    assert list(known) == ["a", "c"]


def test_it_is_given_as_much_as_it_takes() -> None:
    def none() -> None: ...

    def one(receipt: str, *, idempotency_key: str) -> None: ...

    def keyed(receipt: str, idempotency_key: str) -> None: ...

    def rest(*args: str) -> None: ...

    given = ("r", "a", "b")
    assert [undos.fitting(f, given) for f in (none, one, keyed, rest, refund)] == [(), ("r",), ("r",), given, ("r",)]
    assert undos.fitting(dict, given) == given, "of what has no signature nothing is known"


def test_code_without_source_names_nothing() -> None:
    names: dict[str, Any] = {"Context": Context, "book": book, "refund": refund}
    exec(compile("async def node(state, ctx):\n    await ctx.effect(book, 'a', undo=refund)\n", "<typed in>", "exec"), names)
    assert found(of(names["node"]), refund) is None


def test_sub_graphs_are_looked_into() -> None:
    graph = Graph("parent", Empty)
    graph.subgraph("inner", of(by_helper), start=True)
    assert found(graph, refund) is refund
    declared: Graph[Empty] = Graph("declared", Empty)
    declared.node("pay", start=True, side_effects="write", undo=named_partial)(by_helper)
    effect = replace(EFFECT, path="@node", undo=undos.label(named_partial))
    assert undos.find({}, declared.program, effect) is named_partial



