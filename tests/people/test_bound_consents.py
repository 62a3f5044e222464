"""A consent covers what was shown, or where nothing is shown what the step reads (§5.8, X-28)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Send, State, flow, secret
from holdfast.core.environments import Environment
from holdfast.core.policy import Policy, require_human
from holdfast.named import CheckpointStore
from tests.engine.support import World


class Bill(State):
    amount: int = 1
    memo: str = ""
    paid: int = 0


class Desk:
    """A step that pays what it is to pay once a person has approved it; ``sums`` are what was paid."""

    def __init__(self, amount: Callable[[Bill], int], *, show: bool, prompt: Callable[[int], str] = lambda amount: "Pay?", **options: Any) -> None:
        self.sums: list[int] = []
        self.graph = graph = Graph("bill", Bill)

        @graph.node(start=True, **options)
        async def pay(state: Bill, ctx: Context) -> dict[str, Any]:
            due = amount(state)
            await ctx.approve(prompt(due), show={"amount": due} if show else None)
            await ctx.effect(self._pay, due)
            return {"paid": due}

    async def _pay(self, due: int) -> None:
        self.sums.append(due)


async def asked(world: World, desk: Desk) -> str:
    async with world.runtime(desk.graph) as rt:
        run = await rt.invoke(desk.graph)
        await rt.approve(run.run_id, actor="ada", drive=False)
        return run.run_id


@pytest.mark.parametrize("show", [True, False])
async def test_code_that_computes_another_amount_asks_anew(show: bool) -> None:
    world, amounts = World(), iter([1, 1_000_000, 1_000_000])
    desk = Desk(lambda state: next(amounts), show=show, prompt=lambda due: "Pay?" if show else f"Pay {due}?")
    run_id = await asked(world, desk)
    async with world.runtime(desk.graph) as rt:
        run = await rt.resume(run_id)
        [wait] = run.waits
        assert run.status == "waiting_for_human" and desk.sums == []
        assert "1000000" in wait.verdict.replace(",", "") and "ctx.step" in wait.verdict and "ada" in wait.verdict
        assert wait.show == ({"amount": 1_000_000} if show else None) and wait.wait_id.endswith("!1")
        assert (await rt.approve(run_id)).status == "completed" and desk.sums == [1_000_000]


@pytest.mark.parametrize("show", [True, False])
async def test_a_state_patched_meanwhile_asks_anew(show: bool) -> None:
    world, desk = World(), Desk(lambda state: state.amount, show=show)
    run_id = await asked(world, desk)
    async with world.runtime(desk.graph) as rt:
        await patched(rt, run_id, amount=1_000_000)
        run = await rt.resume(run_id)
        assert run.status == "waiting_for_human" and desk.sums == []
        assert "1000000" in run.waits[0].verdict and " 1 " in run.waits[0].verdict.replace("}", " ")
        assert (await rt.approve(run_id)).state.paid == 1_000_000


async def patched(rt: Any, run_id: str, **values: Any) -> None:
    await CheckpointStore(rt).save_checkpoint(run_id, values, actor="eve", reason="a patch")


async def test_a_patch_of_what_the_step_does_not_read_changes_nothing() -> None:
    for options, show in (({"reads": ("amount",)}, False), ({}, True)):
        world, desk = World(), Desk(lambda state: state.amount, show=show, **options)
        run_id = await asked(world, desk)
        async with world.runtime(desk.graph) as rt:
            await patched(rt, run_id, memo="thanks")
            assert (await rt.resume(run_id)).status == "completed" and desk.sums == [1]


@pytest.mark.parametrize("show", [True, False])
async def test_another_wording_is_no_difference(show: bool) -> None:
    world = World()
    run_id = await asked(world, Desk(lambda state: state.amount, show=show))
    second = Desk(lambda state: state.amount, show=show, prompt=lambda due: "Is it all right to pay?")
    async with world.runtime(second.graph) as rt:
        assert (await rt.resume(run_id)).status == "completed" and second.sums == [1]


async def test_what_was_recorded_stays_what_it_was() -> None:
    """The way out that the new question names."""
    world, amounts, sums = World(), iter([1, 2]), []

    @flow("kept")
    async def kept(ctx: Context) -> int:
        due = await ctx.step(lambda: next(amounts))
        await ctx.approve("Pay?", show=due)
        sums.append(due)
        return due

    async with world.runtime(kept) as rt:
        assert (await rt.approve((await rt.invoke(kept)).run_id)).result == 1 and sums == [1]


async def test_gates_bind_to_what_their_step_reads() -> None:
    for where in ("policy", "gate"):
        for reads in (None, ("amount",)):
            world, policy = World(), Policy(gate=lambda request: require_human("May it?"))
            options = {"capabilities": ("money",)} if where == "policy" else {"gate": policy.gate}
            graph = Graph("gated", Bill)

            @graph.node(start=True, reads=reads, **options)
            async def pay(state: Bill) -> dict[str, Any]:
                return {"paid": state.amount}

            async with world.runtime(graph, policy=policy if where == "policy" else None) as rt:
                run_id = (await rt.invoke(graph)).run_id
                await rt.approve(run_id, drive=False)
                await patched(rt, run_id, memo="x")
                run = await rt.resume(run_id)
                if reads is None:
                    assert "memo" in run.waits[0].verdict
                    await rt.approve(run_id, drive=False)
                assert (await rt.get(run_id)).status == ("completed" if reads else "waiting_for_human")
                if reads is None:
                    await patched(rt, run_id, amount=7)
                    run = await rt.resume(run_id)
                    assert "amount" in run.waits[0].verdict and run.state.paid == 0
                    assert (await rt.approve(run_id)).state.paid == 7


async def test_the_payload_of_a_send_is_what_its_step_reads() -> None:
    graph, jobs, sums = Graph("fan", Bill), iter([[1], [2]]), []

    @graph.node(start=True)
    async def split(state: Bill) -> Any:
        return [Send("pay", n) for n in next(jobs)]

    @graph.node
    async def pay(state: Bill, ctx: Context) -> dict[str, Any]:
        await ctx.approve("Pay?")
        sums.append(ctx.payload)
        return {"paid": ctx.payload}

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert (await rt.approve(run.run_id)).state.paid == 1 and sums == [1]


async def test_secrets_are_not_told() -> None:
    class Safe(State):
        pin: Annotated[int, secret] = 1234

    graph = Graph("safe", Safe)

    @graph.node(start=True)
    async def use(state: Safe, ctx: Context) -> None:
        await ctx.approve("Use it?")

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        await rt.approve(run.run_id, drive=False)
        await patched(rt, run.run_id, pin=9876)
        run = await rt.resume(run.run_id)
        assert "pin" in run.waits[0].verdict and "1234" not in run.waits[0].verdict and "9876" not in run.waits[0].verdict


@pytest.mark.parametrize("amount", [1, 5])
async def test_a_consent_inherited_by_a_fork_binds_too(amount: int) -> None:
    world, desk = World(), Desk(lambda state: state.amount, show=False)
    async with world.runtime(desk.graph, environment=Environment(name="lab", inherit_approvals=True)) as rt:
        run = await rt.approve((await rt.invoke(desk.graph)).run_id)
        fork = await rt.fork(run.run_id, set={"amount": amount}, actor="eve", reason="more")
        assert fork.status == ("completed" if amount == 1 else "waiting_for_human") and desk.sums == [1]


async def test_two_bare_questions_swapped_are_told_apart() -> None:
    """L-10: the wording alone tells nothing until the question that was asked turns up elsewhere."""
    world = World()

    def version(first: str, second: str) -> Any:
        @flow("pair")
        async def pair(ctx: Context) -> None:
            await ctx.approve(first)
            await ctx.approve(second)

        return pair

    async with world.runtime(version("the roof?", "the door?")) as rt:
        run = await rt.invoke("pair")
        await rt.approve(run.run_id, drive=False)
    async with world.runtime(version("the door?", "the roof?")) as rt:
        run = await rt.resume(run.run_id)
        assert run.stop_reason == "record_mismatch" and "the roof?" in run.error.message
