"""One decision about many waits: each is taken or refused alone (interfaces, ``decide_all``)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import InvalidInput, StoreError, UnknownOption
from holdfast.ports import Store
from holdfast.testing import open_store


class Order(State):
    amount: int = 0


def asking(skill: str, prompt: str = "Pay?") -> Graph[Order]:
    graph = Graph(skill, Order)

    @graph.node(start=True)
    async def ask(state: Order, ctx: Context) -> None:
        await ctx.approve(prompt, show=state.amount)

    @graph.node(after="ask")
    async def check(state: Order, ctx: Context) -> None:
        await ctx.handoff("Fine?", verdict="unclear")

    return graph


REFUND, INVOICE = asking("refund"), asking("invoice")


@pytest.fixture(params=["memory", "sqlite", "workspace"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/runs.db", "workspace": f"workspace:{tmp_path}/space"}[request.param]


async def waiting(rt: Runtime) -> set[str]:
    return {w.run_id for w in await rt.waits()}


async def test_all_that_fit_are_decided_and_no_other(url: str) -> None:
    async with Runtime(url, skills=[REFUND, INVOICE]) as rt:
        refunds = [(await rt.invoke(REFUND, {"amount": n}, tags=["vip"] if n else [])).run_id for n in range(3)]
        other = (await rt.invoke(INVOICE, {})).run_id
        done = await rt.decide_all("approve", where={"skill": "refund", "step": "ask", "kind": "approval"}, actor="ada", note="all fine")
        assert [d.run_id for d in done] == refunds, "the oldest first"
        assert all(d.ok and d.code is None for d in done)
        assert [(await rt.get(r)).decisions[-1].actor for r in refunds] == ["ada"] * 3
        assert (await rt.get(other)).waits[0].decidable
        for run_id in refunds:
            assert (await rt.resume(run_id)).waits[0].kind == "handoff"


@pytest.mark.parametrize(
    ("where", "fits"),
    [({"tag": "vip"}, 2), ({"thread": "t1"}, 1), ({"kind": "handoff"}, 0), ({"step": "check"}, 0), ({"tag": "vip", "thread": "t1"}, 1), ({"name": "other"}, 0)],
)
async def test_every_key_must_be_equal(where: dict[str, str], fits: int) -> None:
    async with Runtime("memory:", skills=[REFUND]) as rt:
        for n in range(3):
            await rt.invoke(REFUND, {"amount": n}, tags=["vip", "eu"] if n else [], thread_id=f"t{n}")
        assert len(await rt.decide_all("approve", where=where, actor="ada")) == fits


async def test_what_is_refused_says_why_and_hinders_no_other(url: str) -> None:
    """A wait that does not offer the action is refused alone; the resolver's no as well."""

    def resolver(actor: str, action: str, wait: object, run: object) -> bool | str:
        return "not yours" if "locked" in run.tags else True  # type: ignore[attr-defined]

    async with Runtime(url, skills=[REFUND], resolver=resolver) as rt:
        first = (await rt.invoke(REFUND, {})).run_id
        locked = (await rt.invoke(REFUND, {}, tags=["locked"])).run_id
        third = (await rt.invoke(REFUND, {})).run_id
        await rt.approve(third)
        done = await rt.decide_all("approve", where={"skill": "refund"}, actor="ada")
        assert [(d.run_id, d.ok, d.code) for d in done] == [(first, True, None), (locked, False, "denied"), (third, False, "action_unavailable")]


async def test_the_same_decision_again_finds_nothing_left(url: str) -> None:
    async with Runtime(url, skills=[REFUND]) as rt:
        run_id = (await rt.invoke(REFUND, {})).run_id
        assert len(await rt.decide_all("approve", where={"skill": "refund"}, actor="ada")) == 1
        again = await rt.decide_all("approve", where={"skill": "refund"}, actor="ada")
        assert again == []
        assert len((await rt.get(run_id)).decisions) == 1


async def test_two_deciders_at_once_take_each_wait_once(url: str) -> None:
    async with Runtime(url, skills=[REFUND]) as rt:
        runs = [(await rt.invoke(REFUND, {})).run_id for _ in range(6)]
        both = await asyncio.gather(*(rt.decide_all(action, where={"kind": "approval"}, actor=action) for action in ("approve", "deny")))
        taken = [d.run_id for done in both for d in done if d.ok]
        assert sorted(taken) == sorted(runs)
        for run_id in runs:
            assert [e.type for e in await rt.events(run_id) if e.type in ("wait.decided", "wait.denied")] in (["wait.decided"], ["wait.denied"])


async def test_at_most_so_many_the_oldest_first(url: str) -> None:
    async with Runtime(url, skills=[REFUND]) as rt:
        runs = [(await rt.invoke(REFUND, {})).run_id for _ in range(4)]
        assert [d.run_id for d in await rt.decide_all("approve", where={"skill": "refund"}, actor="ada", limit=3)] == runs[:3]
        assert runs[3] in await waiting(rt)


async def test_waits_that_no_person_answers_are_left_alone() -> None:
    paid = Graph("paid", Order)

    @paid.node(start=True)
    async def hear(state: Order, ctx: Context) -> None:
        await ctx.wait("paid")

    async with Runtime("memory:", skills=[paid]) as rt:
        run = await rt.invoke(paid, {})
        assert [w.kind for w in run.waits] == ["signal"]
        assert await rt.decide_all("approve", where={"skill": "paid"}, actor="ada") == []


@pytest.mark.parametrize(
    ("where", "name"),
    [({"skil": "refund"}, "skil"), ({}, "where"), ({"kind": "aproval"}, "kind"), ({"skill": 7}, "skill"), ({"tag": ""}, "tag"), ("skill=refund", "where")],
)
async def test_a_wrong_selection_is_refused_by_name(where: dict[str, str], name: str) -> None:
    async with Runtime("memory:", skills=[REFUND]) as rt:
        run = await rt.invoke(REFUND, {})
        with pytest.raises((UnknownOption, InvalidInput), match=name):
            await rt.decide_all("approve", where=where, actor="ada")
        assert run.run_id in await waiting(rt)


async def test_an_action_that_nobody_knows_is_refused_before_anything_is_decided() -> None:
    async with Runtime("memory:", skills=[REFUND]) as rt:
        await rt.invoke(REFUND, {})
        with pytest.raises(UnknownOption, match="approve"):
            await rt.decide_all("aprove", where={"skill": "refund"}, actor="ada")


async def test_a_store_in_trouble_ends_it_and_what_was_taken_stays() -> None:
    async with open_store("memory:") as store:
        async with Runtime(Failing(store), skills=[REFUND]) as rt:  # type: ignore[arg-type]
            runs = [(await rt.invoke(REFUND, {})).run_id for _ in range(3)]
            rt.store.after = 1  # type: ignore[attr-defined]
            with pytest.raises(StoreError):
                await rt.decide_all("approve", where={"skill": "refund"}, actor="ada")
            rt.store.after = None  # type: ignore[attr-defined]
            assert [len((await rt.get(r)).decisions) for r in runs] == [1, 0, 0]
            assert len(await rt.decide_all("approve", where={"skill": "refund"}, actor="ada")) == 2


class Failing:
    """A store whose ``put`` fails after so many."""

    def __init__(self, store: Store) -> None:
        self.inner = store
        self.after: int | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def put(self, item: object) -> object:
        if self.after is not None:
            if self.after == 0:
                raise StoreError("the disk is away")
            self.after -= 1
        return await self.inner.put(item)  # type: ignore[arg-type]
