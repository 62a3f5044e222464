"""A failure that is let out in the end is tried again, and the code may go another way then: what its handler did stands at places of other calls (§4.12, §5.8, §6.3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, State, flow
from tests.engine.outside import House

booked: list[str] = []
done: list[str] = []


@pytest.fixture(autouse=True)
def outside() -> None:
    booked.clear()
    done.clear()


async def book() -> None:
    booked.append("try")
    if len(booked) == 1:
        raise ConnectionError("lost")


async def pay() -> None:
    done.append("paid")


async def mail(text: str) -> str:
    done.append(text)
    return text


async def apologise() -> None:
    done.append("sorry")


@flow("consent", version="1")
async def consent(ctx: Context) -> str:
    try:
        await ctx.step(book)
    except ConnectionError:
        await ctx.approve("Write this order off?")
        raise
    await ctx.approve("Pay the supplier?")
    await ctx.effect(pay)
    return "ok"


class Order(State):
    said: str = ""


def retried() -> Graph[Order]:
    graph = Graph("retried", Order, version="1")

    @graph.node(start=True, retry=Retry(3, base_us=0))
    async def order(state: Order, ctx: Context) -> dict[str, Any]:
        try:
            await ctx.step(book)
        except ConnectionError:
            await ctx.approve("Write this order off?")
            raise
        await ctx.approve("Pay the supplier?")
        await ctx.effect(pay)
        return {"said": "ok"}

    return graph


@pytest.mark.parametrize("skill", [consent, retried()], ids=["resumed", "retried"])
async def test_a_consent_counts_for_its_own_question_alone(skill: Any, tmp_path: Path) -> None:
    """§5.8: the consent to what a handler asked is none to what the code asks at the same place when the failure does not come again."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[skill]) as rt:
        run = await rt.invoke(skill)
        assert [w.prompt for w in run.waits] == ["Write this order off?"]
        run = await rt.approve(run.run_id)
        if run.status == "failed":
            run = await rt.resume(run.run_id, acknowledge="step_failed")
        assert [w.prompt for w in run.waits] == ["Pay the supplier?"] and done == []
        assert (await rt.approve(run.run_id)).status == "completed" and done == ["paid"]


@flow("same", version="1")
async def same(ctx: Context) -> str:
    try:
        await ctx.step(book)
    except ConnectionError:
        await ctx.effect(mail, "sorry")
        raise
    return str(await ctx.effect(mail, "welcome"))


@pytest.mark.parametrize(("answer", "sent"), [("approve", ["sorry"]), ("reexecute", ["sorry", "welcome"])])
async def test_one_effect_with_other_arguments_is_asked_about(answer: str, sent: list[str], tmp_path: Path) -> None:
    """§6.3: neither the stale result nor a second act, until somebody says which."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[same]) as rt:
        run = await rt.invoke(same)
        assert (run.status, done) == ("failed", ["sorry"])
        run = await rt.resume(run.run_id, acknowledge="step_failed")
        assert [w.kind for w in run.waits] == ["gate"] and done == ["sorry"]
        await rt.decide(run.run_id, answer)
        run = await rt.resume(run.run_id)
        assert (run.status, run.result, done) == ("completed", sent[-1], sent)
        assert len({e.effect_id for e in await rt.effects(run.run_id)}) == len(await rt.effects(run.run_id)) and list(await rt.check()) == []


@flow("another", version="1")
async def another(ctx: Context) -> str:
    try:
        await ctx.step(book)
    except ConnectionError:
        await ctx.effect(apologise)
        raise
    return str(await ctx.effect(mail, "welcome"))


async def test_another_effect_is_another_act(tmp_path: Path) -> None:
    """It has a key of its own, and the run goes on."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[another]) as rt:
        run = await rt.invoke(another)
        run = await rt.resume(run.run_id, acknowledge="step_failed")
        assert (run.status, run.result, done) == ("completed", "welcome", ["sorry", "welcome"])
        assert len({e.key for e in await rt.effects(run.run_id)}) == 2 and list(await rt.check()) == []


async def test_a_handler_that_runs_again_repeats_no_effect(tmp_path: Path) -> None:
    """L-15: the failure comes again, and so does its handler."""

    async def fail() -> None:
        raise ConnectionError("lost")

    @flow("again", version="1")
    async def again(ctx: Context) -> None:
        try:
            await ctx.step(fail)
        except ConnectionError:
            await ctx.effect(mail, "sorry")
            raise

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[again]) as rt:
        run = await rt.invoke(again)
        for _ in range(2):
            run = await rt.resume(run.run_id, acknowledge="step_failed")
            assert (run.status, done) == ("failed", ["sorry"])


# -- consents to retries ----------------------------------------------------------------------------


def failing(**call: Any) -> tuple[Graph[Order], dict[str, int]]:
    """Two acts that are not idempotent, each of which fails at first."""
    count = {"a": 0, "b": 0}

    async def act(which: str) -> None:
        count[which] += 1
        if count[which] == 1:
            raise ConnectionError(f"{which} lost")

    graph = Graph("failing", Order, version="1")

    @graph.node(start=True, retry=Retry(5, base_us=0))
    async def both(state: Order, ctx: Context) -> dict[str, Any]:
        await ctx.effect(act, "a", **call)
        await ctx.effect(act, "b", **call)
        return {"said": "ok"}

    return graph, count


@pytest.mark.parametrize("call", [{}, {"retry": Retry(3, base_us=0)}], ids=["node", "call"])
async def test_a_consent_to_a_retry_is_about_one_failure(call: dict[str, Any], tmp_path: Path) -> None:
    """§10.9: once for each failure: that of another act is another question."""
    graph, count = failing(**call)
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[graph]) as rt:
        run = await rt.invoke(graph)
        asked = 0
        while run.waits:
            assert run.waits[0].kind == "retry" and (count["a"] < 2 or count["b"] == 1), count
            asked += 1
            run = await rt.approve(run.run_id)
        assert (run.status, count, asked) == ("completed", {"a": 2, "b": 2}, 2)


# -- given up ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("retry", [None, Retry(5, base_us=0)], ids=["once", "retried"])
@pytest.mark.parametrize(("answer", "ends"), [("reexecute", "completed"), ("abandon", "failed"), ("halt", "canceled")])
async def test_what_was_abandoned_is_not_done_unasked(retry: Retry | None, answer: str, ends: str, tmp_path: Path) -> None:
    """docs/effects.md: neither by a retry, nor by whoever goes on with the failed run, nor by a fork of it."""
    acts: list[int] = []

    async def act() -> None:
        acts.append(1)
        if len(acts) == 1:
            await asyncio.Event().wait()

    graph = Graph("given up", Order, version="1")

    @graph.node(start=True, **({} if retry is None else {"retry": retry}))
    async def once(state: Order, ctx: Context) -> dict[str, Any]:
        await ctx.effect(act, timeout=0.01)
        return {"said": "ok"}

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[graph]) as rt:
        run = await rt.invoke(graph)
        await rt.decide(run.run_id, "abandon")
        run = await rt.resume(run.run_id)
        assert (run.status, run.stop_reason, len(acts)) == ("failed", "effect_abandoned", 1)
        fork = await rt.fork(run.run_id)
        await rt.worker(until_idle=True)
        for going_on in (await rt.get(fork.run_id), await rt.resume(run.run_id, acknowledge="effect_abandoned")):
            assert [w.kind for w in going_on.waits] == ["effect"] and len(acts) == 1
            assert "abandoned" in going_on.waits[0].prompt and "record_result" not in going_on.waits[0].available_actions
        await rt.decide(run.run_id, answer)
        run = await rt.get(run.run_id) if answer == "halt" else await rt.resume(run.run_id)
        assert (run.status, len(acts)) == (ends, 2 if answer == "reexecute" else 1)
        if answer == "abandon":
            assert (await rt.resume(run.run_id, acknowledge="effect_abandoned")).waits, "each time somebody goes on"
        assert list(await rt.check()) == []


# -- answered, and canceled before anybody went on ----------------------------------------------------


@flow("listens", version="1")
async def listens(ctx: Context) -> str:
    return f"{await ctx.wait('go')}"


@flow("asks", version="1")
async def asks(ctx: Context) -> str:
    return f"{await ctx.ask('Who?', str)} {(await ctx.approve('Sure?')).action}"


async def test_a_cancel_loses_no_signal(tmp_path: Path) -> None:
    """§5.11: its sender cannot send it again, for it is the same one."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[listens]) as rt:
        run = await rt.invoke(listens)
        await rt.signal(run.run_id, "go", "now", key="k1")
        await rt.cancel(run.run_id)
        assert (await rt.resume(run.run_id)).result == "now"


async def test_a_cancel_loses_no_answer(tmp_path: Path) -> None:
    """§5.4: what is still open is asked anew, and that alone."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[asks]) as rt:
        run = await rt.invoke(asks)
        await rt.decide(run.run_id, "answer", payload="bob")
        await rt.cancel(run.run_id)
        run = await rt.resume(run.run_id)
        assert [w.prompt for w in run.waits] == ["Sure?"]
        await rt.cancel(run.run_id)
        run = await rt.resume(run.run_id)
        assert (await rt.approve(run.run_id)).result == "bob approve"
        assert list(await rt.check()) == []


async def test_a_map_in_a_handler_shows_that_the_code_went_on(tmp_path: Path) -> None:
    """A failure that the code caught is found again, also where all that it did since is beneath another call."""
    house, called = House("memory", tmp_path), list[str]()

    async def tell(what: str) -> str:
        called.append(what)
        if called == ["ticket"]:
            raise ValueError("sold out")
        return what

    async def end() -> None:
        if called.count("end") < 1:
            called.append("end")
            raise RuntimeError("not yet")

    @flow("handles")
    async def handles(ctx: Context) -> Any:
        try:
            got = [await ctx.step(tell, "ticket")]
        except ValueError:
            got = await ctx.map(tell, ["sorry"])
        await end()
        return got

    rt = await house.process(handles)
    run = await rt.invoke(handles)
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert (run.status, list(run.result)) == ("completed", ["sorry"]) and called == ["ticket", "sorry", "end"]
    await house.close()


async def test_an_effect_that_failed_and_was_caught_is_found_again(tmp_path: Path) -> None:
    """A retry of the node carries out again what ended it, and nothing that the code went on from."""
    house, called = House("memory", tmp_path), list[str]()

    async def pay(what: str) -> str:
        called.append(what)
        if len(called) == 1:
            raise ValueError("no money")
        return what

    async def end() -> None:
        if called.count("end") < 1:
            called.append("end")
            raise RuntimeError("not yet")

    @flow("pays", retry=Retry(max_attempts=2, base_us=0))
    async def pays(ctx: Context) -> Any:
        try:
            got = await ctx.effect(pay, "card", idempotent=True)
        except ValueError:
            got = await ctx.step(pay, "cash")
        await end()
        return got

    rt = await house.process(pays)
    run = await rt.invoke(pays)
    assert (run.status, run.result, called) == ("completed", "cash", ["card", "cash", "end"])
    await house.close()
