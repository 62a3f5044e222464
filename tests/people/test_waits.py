"""Waits as users meet them: approvals, questions, handoffs, signals, timers, children (§5, §4.14)."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, flow
from holdfast.core.errors import (
    ActionUnavailable,
    AlreadyTerminal,
    AmbiguousWait,
    DecisionConflict,
    Denied,
    InvalidAnswer,
    InvalidInput,
    NotDecidable,
    RunFailed,
    SignalConflict,
    TokenRefused,
    UndecidedWait,
)


class Notes(State):
    said: Annotated[list[str], append]
    text: str = ""


def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


# -- questions --------------------------------------------------------------------------------------


@dataclasses.dataclass
class Address:
    street: str
    number: int


@flow("where")
async def where(ctx: Context) -> Any:
    return await ctx.ask("where to?", Address)


async def test_an_answer_is_a_value_of_the_type_asked_for(tmp_path: Path) -> None:
    """§5.2: the answer is held against the schema; one that does not fit is refused and loses nothing."""
    async with Runtime(url(tmp_path), skills=[where]) as rt:
        run = await rt.invoke(where)
        assert run.waits[0].kind == "input" and run.waits[0].available_actions == ("answer", "deny")
        before = await kinds(rt, run.run_id)
        with pytest.raises(InvalidAnswer, match=r"answer\.number: 'seven' is not integer"):
            await rt.decide(run.run_id, "answer", payload={"street": "Elm", "number": "seven"})
        assert await kinds(rt, run.run_id) == before
        await rt.decide(run.run_id, "answer", payload={"street": "Elm", "number": 7})
        run = await rt.resume(run.run_id)
        assert run.result == Address("Elm", 7)


@pytest.mark.parametrize(("kind", "payload"), [(None, None), (str | None, None), (str, ""), (list[int], []), (dict[str, int], {})])
async def test_nothing_and_empty_are_answers(kind: Any, payload: Any, tmp_path: Path) -> None:
    """L-09, §5.8: an answer of None, of "" or of [] is legal and arrives."""
    got: list[Any] = []

    @flow("empty")
    async def empty(ctx: Context) -> bool:
        got.append(await ctx.ask("well?", kind))
        return True

    async with Runtime(url(tmp_path), skills=[empty]) as rt:
        run = await rt.invoke(empty)
        await rt.decide(run.run_id, "answer", payload=payload)
        run = await rt.resume(run.run_id)
        assert run.status == "completed" and got == [payload]


async def test_an_approval_may_carry_edited_arguments(tmp_path: Path) -> None:
    """§5.2: the payload is held against the schema of what may be edited."""

    @flow("edit")
    async def edit(ctx: Context) -> Any:
        decision = await ctx.approve("send?", show={"to": "a"}, schema=dict[str, str])
        return decision.payload

    async with Runtime(url(tmp_path), skills=[edit]) as rt:
        run = await rt.invoke(edit)
        with pytest.raises(InvalidAnswer):
            await rt.approve(run.run_id, payload={"to": 1})
        run = await rt.approve(run.run_id, payload={"to": "b"})
        assert run.result == {"to": "b"}


# -- decisions --------------------------------------------------------------------------------------


@flow("gatekeeper")
async def gatekeeper(ctx: Context, on_deny: str = "halt") -> str:
    decision = await ctx.approve("go?", on_deny=on_deny)
    return decision.action


async def test_the_same_decision_again_changes_nothing(tmp_path: Path) -> None:
    """T-24, §5.6: the stored record stands with its first time; another note is a conflict and leaves it as it is."""
    async with Runtime(url(tmp_path)) as rt:
        run = await rt.invoke(gatekeeper)
        wait_id = run.waits[0].wait_id
        await rt.decide(run.run_id, "approve", wait_id=wait_id, note="ok", resume=False)
        first = await rt.events(run.run_id)
        await rt.decide(run.run_id, "approve", wait_id=wait_id, note="ok", resume=False, actor="someone else")
        with pytest.raises(DecisionConflict):
            await rt.decide(run.run_id, "approve", wait_id=wait_id, note="changed")
        assert await rt.events(run.run_id) == first


async def test_decided_is_not_resumed(tmp_path: Path) -> None:
    """§5.4: with resume=False the decision is on record and nothing goes on until somebody resumes."""
    async with Runtime(url(tmp_path), skills=[gatekeeper]) as rt:
        run = await rt.invoke(gatekeeper)
        with pytest.raises(UndecidedWait):
            await rt.resume(run.run_id, force=True)
        run = await rt.decide(run.run_id, "approve", resume=False)
        assert run.status == "waiting_for_human" and run.condition == "awaiting_gate_decision"
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).status == "waiting_for_human"
        assert (await rt.resume(run.run_id)).result == "approve"


async def test_two_resolvers(tmp_path: Path) -> None:
    """T-97, §5.6: approve and deny at once: one wins, the other is told; one decision is on record."""
    for _ in range(5):
        async with Runtime(url(tmp_path), skills=[gatekeeper]) as rt:
            run = await rt.invoke(gatekeeper)
            both = await asyncio.gather(
                rt.decide(run.run_id, "approve", actor="a", resume=False), rt.decide(run.run_id, "deny", actor="b"), return_exceptions=True
            )
            assert sum(isinstance(b, DecisionConflict | AlreadyTerminal) for b in both) == 1
            assert (await kinds(rt, run.run_id)).count("wait.decided") == 1


async def test_who_comes_after_another_decision_is_told_so() -> None:
    """§5.6: also if no wait is named, which is open no more; over HTTP two that are sent at once come one after the other."""
    async with Runtime("memory:", skills=[gatekeeper]) as rt:
        run = await rt.invoke(gatekeeper)
        await rt.decide(run.run_id, "approve", actor="a", resume=False)
        for action, refused in (("deny", DecisionConflict), ("approve", NotDecidable)):
            with pytest.raises(refused, match="was answered already .approve by a. and is queued"):
                await rt.decide(run.run_id, action, actor="b")
        assert (await kinds(rt, run.run_id)).count("wait.decided") == 1


async def test_an_empty_run_id_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """T-25, §7.10: it never means the newest run."""
    async with Runtime(url(tmp_path)) as rt:
        await rt.invoke(gatekeeper)
        for call in (rt.decide("", "approve"), rt.cancel(""), rt.resume(""), rt.signal("", "x"), rt.get("")):
            with pytest.raises(InvalidInput, match="the run id is empty"):
                await call


async def test_only_published_actions_are_taken(tmp_path: Path) -> None:
    """T-26, §5.5: an action the wait does not publish is refused, and so is one that lacks its feedback."""
    async with Runtime(url(tmp_path)) as rt:
        run = await rt.invoke(gatekeeper)
        with pytest.raises(ActionUnavailable, match="not offered"):
            await rt.decide(run.run_id, "continue")


async def test_the_resolver_is_asked_first(tmp_path: Path) -> None:
    """T-36, §5.7: a refused payload leaves an audit event and nothing in any channel."""

    async with Runtime(url(tmp_path), resolver=lambda actor, action, wait, run: actor == "ada" or "not you") as rt:
        run = await rt.invoke(gatekeeper)
        with pytest.raises(Denied, match="not you"):
            await rt.approve(run.run_id, actor="bob", payload={"evil": True})
        after = await rt.events(run.run_id)
        denied = [e for e in after if e.type == "wait.denied"]
        assert len(denied) == 1 and denied[0].payload["actor"] == "bob" and denied[0].actor == "bob"
        assert "evil" not in str(after) and (await rt.get(run.run_id)).decisions == ()
        assert (await rt.approve(run.run_id, actor="ada")).result == "approve"


async def test_two_approvals_in_one_node(tmp_path: Path) -> None:
    """T-32, L-07, L-08: an effect before two waits happens once; an answer without a wait id is refused while two are open."""
    acted: list[int] = []

    async def act() -> int:
        acted.append(1)
        return 1

    @flow("two")
    async def two(ctx: Context) -> list[str]:
        await ctx.effect(act)
        first = await ctx.approve("one?")
        second = await ctx.approve("two?")
        return [first.action, second.action]

    @flow("both")
    async def both(ctx: Context) -> list[str]:
        return [d.action for d in await ctx.gather(ctx.approve("one?"), ctx.approve("two?"))]

    async with Runtime(url(tmp_path), skills=[two, both]) as rt:
        run = await rt.invoke(two)
        run = await rt.approve(run.run_id)
        assert run.status == "waiting_for_human" and run.waits[0].prompt == "two?"
        with pytest.raises(UndecidedWait):
            await rt.resume(run.run_id)
        run = await rt.approve(run.run_id)
        assert run.result == ["approve", "approve"] and acted == [1]

        run = await rt.invoke(both)
        assert {w.prompt for w in run.waits} == {"one?", "two?"}
        with pytest.raises(AmbiguousWait):
            await rt.approve(run.run_id)
        one, other = (w.wait_id for w in run.waits)
        run = await rt.approve(run.run_id, wait_id=one)
        assert [w.wait_id for w in run.waits] == [other] and run.status == "waiting_for_human"
        assert (await rt.approve(run.run_id, wait_id=other)).result == ["approve", "approve"]


# -- handoffs ---------------------------------------------------------------------------------------


def release(rounds: list[Any]) -> Graph[Notes]:
    """A draft, a machine that always rejects it, and what comes after."""
    graph = Graph("release", Notes)

    @graph.node(start=True)
    async def draft(state: Notes, ctx: Context) -> dict[str, Any]:
        rounds.append(ctx.feedback)
        return {"text": f"draft {len(rounds)}"}

    @graph.node(after="draft")
    async def judge(state: Notes, ctx: Context) -> dict[str, Any]:
        decision = await ctx.handoff("too long", verdict="rejected", redo="draft", show=state.text)
        return {"said": [decision.action]}

    @graph.node(after="judge")
    async def publish(state: Notes, ctx: Context) -> dict[str, Any]:
        return {"said": [w.feedback or "" for w in ctx.waivers]}

    return graph


async def test_feedback_reaches_the_step_that_is_redone(tmp_path: Path) -> None:
    """T-28, §5.5: one more round, the redone node sees the words, a new rejection asks under a new id."""
    rounds: list[Any] = []
    graph = release(rounds)
    async with Runtime(url(tmp_path), skills=[graph]) as rt:
        run = await rt.invoke(graph)
        first = run.waits[0]
        assert run.condition == "awaiting_phase_handoff" and run.active_handoff == first.wait_id
        with pytest.raises(InvalidInput, match="feedback"):
            await rt.decide(run.run_id, "retry_feedback")
        await rt.decide(run.run_id, "retry_feedback", feedback="shorter")
        run = await rt.resume(run.run_id)
        assert rounds == [None, "shorter"] and run.waits[0].wait_id != first.wait_id and run.waits[0].show == "draft 2"
        await rt.decide(run.run_id, "continue")
        run = await rt.resume(run.run_id)
        assert run.status == "completed" and run.state.said == ["continue"] and rounds == [None, "shorter"]
        assert run.seen_handoffs == (first.wait_id, first.wait_id.replace(".2.", ".4."))


async def test_a_waiver_is_seen_by_later_gates_in_another_process(tmp_path: Path) -> None:
    """T-29, T-30, §5.5: the verdict stays, the waiver survives a restart and reaches later steps."""
    rounds: list[Any] = []
    async with Runtime(url(tmp_path)) as rt:
        run = await rt.invoke(release(rounds))
        await rt.decide(run.run_id, "continue_with_waiver", feedback="length is fine", resume=False)
    async with Runtime(url(tmp_path), skills=[release(rounds)]) as rt:
        run = await rt.resume(run.run_id)
        assert run.state.said == ["continue_with_waiver", "length is fine"] and rounds == [None]
        asked = [e.payload["wait"]["verdict"] for e in await rt.events(run.run_id) if e.type == "wait.requested"]
        assert asked == ["rejected"]


async def test_a_node_may_redo_itself(tmp_path: Path) -> None:
    """§5.5: its recorded calls are made again in the new round; a loop of one's own gets the decision instead."""
    calls: list[Any] = []

    @flow("alone")
    async def alone(ctx: Context) -> str:
        text = await ctx.step(write, ctx.feedback)
        await ctx.handoff("again?", verdict="rejected")
        return text

    async def write(feedback: str | None) -> str:
        calls.append(feedback)
        return f"text for {feedback}"

    @flow("looping")
    async def looping(ctx: Context) -> list[str | None]:
        seen: list[str | None] = []
        while True:
            decision = await ctx.handoff("again?", verdict="rejected", redo=None)
            seen.append(decision.feedback)
            if decision.approved:
                return seen

    async with Runtime(url(tmp_path), skills=[alone, looping]) as rt:
        run = await rt.invoke(alone)
        ids = [run.waits[0].wait_id]
        for words in ("one", "two"):
            await rt.decide(run.run_id, "retry_feedback", feedback=words)
            run = await rt.resume(run.run_id)
            ids.append(run.waits[0].wait_id)
        assert len(set(ids)) == 3 and calls == [None, "one", "two"]
        await rt.decide(run.run_id, "continue")
        assert (await rt.resume(run.run_id)).result == "text for two"

        run = await rt.invoke(looping)
        await rt.decide(run.run_id, "retry_feedback", feedback="more")
        run = await rt.resume(run.run_id)
        await rt.decide(run.run_id, "continue")
        assert (await rt.resume(run.run_id)).result == ["more", None]


async def test_a_halt_settles(tmp_path: Path) -> None:
    """T-08, §5.5: halted for good; a late continue revives nothing."""
    graph = release([])
    async with Runtime(url(tmp_path), skills=[graph]) as rt:
        run = await rt.invoke(graph)
        wait_id = run.waits[0].wait_id
        run = await rt.decide(run.run_id, "halt", wait_id=wait_id)
        assert (run.status, run.condition, run.stop_reason, run.settled) == ("canceled", "halted", "halted", True)
        assert run.waits == () and run.active_handoff is None and run.seen_handoffs == (wait_id,)
        with pytest.raises(DecisionConflict):
            await rt.decide(run.run_id, "continue", wait_id=wait_id)
        assert (await rt.get(run.run_id)).status == "canceled"


async def test_nobody_attends(tmp_path: Path) -> None:
    """T-38, §5.17: advisory goes on by a recorded decision; authoritative stops, and the first resume only asks again."""
    entered: list[int] = []

    @flow("night")
    async def night(ctx: Context, authoritative: bool) -> str:
        entered.append(1)
        decision = await ctx.handoff("look", verdict="rejected", authoritative=authoritative, show={"kept": 1})
        return f"{decision.action} by {decision.actor}"

    async with Runtime(url(tmp_path), skills=[night]) as rt:
        run = await rt.invoke(night, {"authoritative": False}, unattended=True)
        assert run.result == "continue by unattended" and "wait.decided" in await kinds(rt, run.run_id)
        entered.clear()
        run = await rt.invoke(night, {"authoritative": True}, unattended=True)
        assert (run.status, run.stop_reason, run.settled) == ("canceled", "unattended_handoff", False) and entered == [1]
        run = await rt.resume(run.run_id)
        assert run.status == "waiting_for_human" and entered == [1]
        assert run.waits[0].available_actions == ("continue", "continue_with_waiver", "retry_feedback", "halt") and run.waits[0].show == {"kept": 1}
        await rt.decide(run.run_id, "continue", actor="ada")
        assert (await rt.resume(run.run_id)).result == "continue by ada"


# -- signals ----------------------------------------------------------------------------------------


class Mail(State):
    news: Annotated[list[str], append]
    got: Annotated[list[str], append]


def listening() -> Graph[Mail]:
    graph = Graph("listening", Mail)

    @graph.node(start=True)
    async def main(state: Mail, ctx: Context) -> dict[str, Any]:
        return {"got": [await ctx.wait("news"), await ctx.wait("news")]}

    @graph.node(on=["news"])
    async def heard(state: Mail) -> dict[str, Any]:
        return {"got": ["heard"]}

    return graph


async def test_early_signals_are_kept_until_asked_for(tmp_path: Path) -> None:
    """§5.11: in the order they came, the same key once; also a write to the channel of that name."""
    graph = listening()
    async with Runtime(url(tmp_path), skills=[graph]) as rt:
        run = await rt.submit(graph, {})
        for key, word in (("1", "a"), ("2", "b"), ("1", "a")):
            run = await rt.signal(run.run_id, "news", word, key=key)
        with pytest.raises(SignalConflict, match="the key '1' was used with another payload"):
            await rt.signal(run.run_id, "news", "again", key="1")
        assert run.status == "pending" and len(run.signals) == 2
        await rt.worker(until_idle=True)
        run = await rt.get(run.run_id)
        assert run.status == "completed" and run.state.news == ["a", "b"] and run.state.got == ["a", "b", "heard"]
        assert run.signals == ()
        with pytest.raises(AlreadyTerminal):
            await rt.signal(run.run_id, "news", "late")
        with pytest.raises(AlreadyTerminal):
            await rt.signal(run.run_id, "news", "late", key="3")
        seen = (await rt.signal(run.run_id, "news", "b", key="2")).record.version
        assert seen == run.record.version, "whoever was not told that it was taken says it again, and is told so"
        with pytest.raises(SignalConflict, match="the key '1' was used with another payload"):
            await rt.signal(run.run_id, "news", "again", key="1")


async def test_a_signal_wakes_what_waits_for_it(tmp_path: Path) -> None:
    """§5.11, §7.1: resume finds nothing eligible before it comes; a thread's name will do as the target."""
    graph = listening()
    async with Runtime(url(tmp_path), skills=[graph]) as rt:
        run = await rt.invoke(graph, {}, thread_id="t")
        assert run.status == "waiting_for_signal" and run.condition == "awaiting_signal"
        with pytest.raises(Exception, match="signal news") as refused:
            await rt.resume(run.run_id)
        assert refused.value.code == "nothing_eligible"  # type: ignore[attr-defined]
        await rt.signal("t", "other", 1)
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).status == "waiting_for_signal"
        await rt.signal("t", "news", "x")
        await rt.signal("t", "news", "y")
        run = await rt.resume(run.run_id)
        assert run.state.got == ["x", "y", "heard"]
        assert next(e.payload["cause"] for e in await rt.events(run.run_id) if e.type == "run.resumed") == "signal"


async def test_a_signal_does_not_unqueue_an_answered_run(tmp_path: Path) -> None:
    """§5.4: what is written between the decision and its resume leaves the resume queued."""
    async with Runtime(url(tmp_path), skills=[gatekeeper]) as rt:
        run = await rt.invoke(gatekeeper)
        await rt.decide(run.run_id, "approve")
        await rt.signal(run.run_id, "unasked", 1)
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).result == "approve"


async def test_the_first_of_several_waits(tmp_path: Path) -> None:
    """§5.11, §4.12: the others are closed, and what came first is the same again later."""

    @flow("race")
    async def race(ctx: Context) -> Any:
        winner = await ctx.first_of(ctx.wait("a"), ctx.wait("b"), ctx.sleep(3600))
        await ctx.approve("and now?")
        return winner

    async with Runtime(url(tmp_path), skills=[race]) as rt:
        run = await rt.invoke(race)
        assert len(run.waits) == 3
        await rt.signal(run.run_id, "b", "hello")
        run = await rt.resume(run.run_id)
        assert [w.kind for w in run.waits] == ["approval"]
        assert (await rt.approve(run.run_id)).result == (1, "hello")
        assert (await kinds(rt, run.run_id)).count("wait.closed") == 2


# -- children ---------------------------------------------------------------------------------------


@flow("square")
async def square(ctx: Context, n: int) -> int:
    if n < 0:
        raise ValueError("negative")
    if n == 7:
        await ctx.approve("seven?")
    return n * n


@flow("parent")
async def parent(ctx: Context, ns: list[int]) -> list[int]:
    return await ctx.gather(*(ctx.child(square, {"n": n}) for n in ns))


async def test_children_are_driven_in_process(tmp_path: Path) -> None:
    """§4.14, §4.18: runs of their own, made in the commit that opens the wait, their results in the parent's inbox."""
    async with Runtime(url(tmp_path), skills=[parent, square]) as rt:
        run = await rt.invoke(parent, {"ns": [2, 3]})
        assert run.result == [4, 9]
        children = [r for r in await rt.runs() if r.parent_run_id == run.run_id]
        assert len(children) == 2 and {c.session_key for c in children} == {c.run_id for c in children}


async def test_a_child_that_fails_and_one_that_rests(tmp_path: Path) -> None:
    """§4.14: the parent gets a typed failure; it rests while its child rests in a person's wait."""
    async with Runtime(url(tmp_path), skills=[parent, square]) as rt:
        with pytest.raises(RunFailed, match="negative"):
            await rt.run(parent, ns=[-1])
        run = await rt.invoke(parent, {"ns": [7]})
        assert run.status == "waiting_for_signal"
        child = run.waits[0].name
        await rt.approve(child)
        assert (await rt.resume(run.run_id)).result == [49]


async def test_a_cancel_reaches_the_children(tmp_path: Path) -> None:
    """§10.12: those at rest end with their parent, as declared."""
    async with Runtime(url(tmp_path), skills=[parent, square]) as rt:
        run = await rt.invoke(parent, {"ns": [7]})
        child = run.waits[0].name
        run = await rt.cancel(run.run_id, reason="enough")
        assert run.status == "canceled" and (await rt.get(child)).status == "canceled"


# -- tokens -----------------------------------------------------------------------------------------


async def test_a_link_answers_once(tmp_path: Path) -> None:
    """T-93, §5.9: single use, expiring, bound to its tenant; a refused attempt does not use it up."""
    async with Runtime(url(tmp_path), skills=[gatekeeper]) as rt:
        run = await rt.invoke(gatekeeper)
        wait_id = run.waits[0].wait_id
        old = await rt.issue_token(wait_id, actor="ada", ttl=timedelta(seconds=0))
        with pytest.raises(TokenRefused, match="expired"):
            await rt.redeem(old, "approve")
        link = await rt.issue_token(wait_id, actor="ada", ttl=timedelta(hours=1))
        with pytest.raises(TokenRefused, match="not known"):
            await rt.redeem(link, "approve", tenant_id="other")
        with pytest.raises(ActionUnavailable):
            await rt.redeem(link, "halt")
        both = await asyncio.gather(rt.redeem(link, "approve"), rt.redeem(link, "approve"), return_exceptions=True)
        assert sum(isinstance(b, TokenRefused) for b in both) == 1
        run = await rt.resume(run.run_id)
        assert run.result == "approve"
        decided = next(e for e in await rt.events(run.run_id) if e.type == "wait.decided")
        assert decided.payload["decision"]["actor"] == "ada" and link not in str(await rt.events(run.run_id))


async def test_a_cancel_revokes_links(tmp_path: Path) -> None:
    """T-05, T-91, §5.14: after one cancel, two, and a resume that asks anew under another id."""
    async with Runtime(url(tmp_path), skills=[gatekeeper]) as rt:
        run = await rt.invoke(gatekeeper)
        first = run.waits[0].wait_id
        link = await rt.issue_token(first, actor="ada", ttl=timedelta(hours=1))
        await rt.cancel(run.run_id)
        before = await kinds(rt, run.run_id)
        for _ in range(2):
            with pytest.raises(TokenRefused, match="revoked"):
                await rt.redeem(link, "approve")
            with pytest.raises(AlreadyTerminal):
                await rt.cancel(run.run_id)
        assert await kinds(rt, run.run_id) == before and "run.resumed" not in before
        run = await rt.resume(run.run_id)
        assert run.status == "waiting_for_human" and run.waits[0].wait_id != first
        with pytest.raises(TokenRefused):
            await rt.redeem(link, "approve")
        assert (await rt.approve(run.run_id)).result == "approve"




async def test_a_threads_signal_is_for_the_run_that_has_begun() -> None:
    """§5.11: as ``resume`` answers it; what is queued behind waits for its turn, and hears nothing. Before any has begun, the newest."""

    @flow("hears")
    async def hears(ctx: Context, n: int) -> str:
        return f"{n} {await ctx.wait('go')}"

    async with Runtime("memory:", skills=[hears]) as rt:
        early = [await rt.submit(hears, {"n": n}, thread_id="early") for n in range(2)]
        assert (await rt.signal("early", "go", "soon", key="k")).run_id == early[1].run_id
        first = await rt.invoke(hears, {"n": 1}, thread_id="talk")
        await rt.submit(hears, {"n": 2}, thread_id="talk")
        await rt.signal("talk", "go", "on", key="k")
        assert (await rt.resume(first.run_id)).result == "1 on"
        assert (await rt.invoke(hears, None, thread_id="talk")).condition == "awaiting_signal"
        await rt.signal("talk", "go", "up", key="k")
        assert (await rt.invoke(hears, None, thread_id="talk")).result == "2 up"
