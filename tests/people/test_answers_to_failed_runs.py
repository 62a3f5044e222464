"""An answer that a failed run was given is what its resume goes by: one that ends the run ends it, and nothing is done behind it (§5.4, §5.5, §5.10, §7.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, State, append
from holdfast.core import decisions
from holdfast.core import events as ev
from holdfast.core.commands import FireTimeout
from holdfast.core.commit import InboxItem
from holdfast.core.errors import AcknowledgeRequired
from holdfast.engine.base.journal import Draft, Journal
from holdfast.handle import Run
from holdfast.ports import Claim
from holdfast.stores import MemoryStore, SqliteStore
from tests.people.test_deadlines import Clock


class Told(State):
    told: Annotated[list[str], append]


class Bank:
    """What is done outside, and a step beside the question that fails until it is mended."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.broken = True

    async def pay(self, what: str) -> str:
        self.paid.append(what)
        return what

    async def hang(self, what: str) -> str:
        self.paid.append(what)
        if len(self.paid) == 1:
            await asyncio.Event().wait()
        return what


Question = Callable[[Context, Bank], Any]


async def an_approval(ctx: Context, bank: Bank) -> Any:
    return (await ctx.approve("Pay?", timeout=9)).action


async def a_question(ctx: Context, bank: Bank) -> Any:
    return await ctx.ask("How much?", str, timeout=9)


async def a_handoff(ctx: Context, bank: Bank) -> Any:
    return (await ctx.handoff("Look at it", verdict="bad", timeout=9)).action


async def an_effect_in_doubt(ctx: Context, bank: Bank) -> Any:
    return await ctx.effect(bank.hang, "in doubt", side_effects="external_action", timeout=0.01)


def beside(question: Question, bank: Bank) -> Graph[Told]:
    graph = Graph("beside", Told, version="1")

    @graph.node(start=True)
    async def asks(state: Told, ctx: Context) -> dict[str, Any]:
        told = await question(ctx, bank)
        await ctx.effect(bank.pay, "all")
        return {"told": [str(told)]}

    @graph.node(start=True, retry=Retry(max_attempts=1))
    async def fails(state: Told, ctx: Context) -> None:
        while bank.broken:
            if ctx.run.waits:
                raise ConnectionError("no network")
            await asyncio.sleep(0)

    return graph


async def fail(rt: Runtime, bank: Bank) -> Run[Any]:
    run = await rt.invoke("beside", {})
    assert (run.status, run.stop_reason, len(run.waits)) == ("failed", "step_failed", 1)
    bank.broken = False
    return run


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize(
    ("question", "answer", "reason"),
    [
        (an_approval, "deny", "denied"),
        (a_question, "deny", "denied"),
        (a_handoff, "halt", "halted"),
        (an_effect_in_doubt, "halt", "halted"),
    ],
)
async def test_what_ends_the_run_ends_it_when_it_is_resumed(kind: str, question: Question, answer: str, reason: str, tmp_path: Path) -> None:
    bank, clock = Bank(), Clock()
    store = MemoryStore(now=clock.now) if kind == "memory" else SqliteStore(tmp_path / "runs.db", now=clock.now)
    async with Runtime(store, skills=[beside(question, bank)], clock=clock) as rt:
        run = await fail(rt, bank)
        before = list(bank.paid)
        await rt.decide(run.run_id, answer, actor="ada")
        assert (await rt.get(run.run_id)).status == "failed"
        run = await rt.resume(run.run_id, acknowledge="step_failed")
        assert (run.status, run.stop_reason, run.settled, bank.paid) == ("canceled", reason, True, before)
        assert await rt.check() == []


@pytest.mark.parametrize(("question", "answer", "told"), [(an_approval, "approve", "approve"), (a_handoff, "continue", "continue")])
async def test_any_other_answer_lets_it_go_on(question: Question, answer: str, told: str) -> None:
    bank, clock = Bank(), Clock()
    async with Runtime(MemoryStore(now=clock.now), skills=[beside(question, bank)], clock=clock) as rt:
        run = await fail(rt, bank)
        await rt.decide(run.run_id, answer, actor="ada")
        run = await rt.resume(run.run_id, acknowledge="step_failed")
        assert (run.status, run.state.told, bank.paid) == ("completed", [told], ["all"])


def silent(*on_timeout: str) -> Graph[Told]:
    """Two questions at once, whose time is up at the same moment."""
    graph = Graph("silent", Told, version="1")

    @graph.node(start=True)
    async def first(state: Told, ctx: Context) -> dict[str, Any]:
        return {"told": [str(await ctx.ask("One?", str, timeout=1, on_timeout=on_timeout[0], default="-"))]}

    @graph.node(start=True)
    async def second(state: Told, ctx: Context) -> dict[str, Any]:
        return {"told": [str(await ctx.ask("Two?", str, timeout=1, on_timeout=on_timeout[1], default="-"))]}

    return graph


@pytest.mark.parametrize("swept", ["by_a_worker", "by_whoever_resumes"])
@pytest.mark.parametrize("second", ["fail", "halt", "default", "deliver"])
async def test_two_questions_whose_time_is_up_at_once(second: str, swept: str) -> None:
    """The first fails the run. The other was left open with a key that was used up: a resume claimed the run and gave it back for ever."""
    clock = Clock()
    store = MemoryStore(now=clock.now)
    async with Runtime(store, skills=[silent("fail", second)], clock=clock) as rt:
        run = await rt.invoke("silent", {})
        clock.forward(2)
        for wait in run.waits:
            command = FireTimeout(wait.wait_id, clock.at)
            await store.put(InboxItem(run_id=run.run_id, key=command.key, command=command, put_at=clock.at))
        if swept == "by_a_worker":
            await rt.worker(until_idle=True)
        else:
            with pytest.raises(AcknowledgeRequired):
                await rt.resume(run.run_id)
        run = await rt.get(run.run_id)
        assert (run.status, run.stop_reason) == ("failed", "wait_timed_out")
        run = await rt.resume(run.run_id, acknowledge="wait_timed_out")
        if second == "halt":
            assert (run.status, run.stop_reason) == ("canceled", "wait_timed_out")
            return
        asked = {w.prompt for w in run.waits}
        assert asked == ({"One?", "Two?"} if second == "fail" else {"One?"})
        for wait in run.waits:
            await rt.decide(run.run_id, "answer", wait_id=wait.wait_id, payload="yes", actor="ada")
        run = await rt.resume(run.run_id)
        assert run.state.told == ["yes", "yes" if second == "fail" else "-" if second == "default" else "None"]


async def test_a_wait_whose_key_was_used_up_comes_to_its_end(tmp_path: Path) -> None:
    """As releases before this one left it: nobody could answer, and nothing could time it out."""
    clock = Clock()
    store = SqliteStore(tmp_path / "runs.db", now=clock.now)
    async with Runtime(store, skills=[silent("default", "default")], clock=clock) as rt:
        run = await rt.invoke("silent", {})
        command = FireTimeout(run.waits[0].wait_id, clock.at)
        await store.put(InboxItem(run_id=run.run_id, key=command.key, command=command, put_at=clock.at))
        [claim] = await store.claim(rt.owner, (), None, limit=1, run_id=run.run_id)
        await use_up(store, claim, command.key)
        clock.forward(2)
        run = await rt.resume(run.run_id)
        assert (run.status, run.state.told) == ("completed", ["-", "-"])


async def use_up(store: SqliteStore, claim: Claim, key: str) -> None:
    loaded = await store.load(claim.run_id)
    assert loaded is not None
    journal = Journal.load(store, loaded, claim.fence)
    await journal.leave(Draft(facts=[ev.NoteAdded(f"{key} changed nothing")], took=[key]))
    assert decisions.answers(journal.run) == ()


async def test_deadlines_that_pass_at_once_are_each_told_once() -> None:
    """§5.10: the first that is taken brings the others with it, and none of them is injected anew."""
    clock, graph = Clock(), silent("default", "deliver")

    @graph.node(start=True)
    async def works(state: Told, ctx: Context) -> None:
        for count in (2, 0):  # until both are asked, and until both have timed out
            while True:
                if len(ctx.run.waits) == count:
                    break
                await asyncio.sleep(0)
            clock.forward(2)

    async with Runtime(MemoryStore(now=clock.now), skills=[graph], clock=clock) as rt:
        run = await rt.invoke("silent", {})
        assert run.status == "completed"
        told = [e.event_type for e in await rt.events(run.run_id)]
        assert told.count("wait.timed_out") == 2 and "note.added" not in told
