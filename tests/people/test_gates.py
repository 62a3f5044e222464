"""A node's own gates, before its step and after it (§8.1, §8.2)."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, State, append
from holdfast.core import events as ev
from holdfast.core import policy
from holdfast.core.errors import InvalidGraph, InvalidInput
from holdfast.core.policy import Request
from tests.engine.support import World, says


class Text(State):
    text: str = ""
    length: int = 0
    said: Annotated[list[str], append]


class Bench:
    """A graph of two nodes, the first with gates; ``ran`` tells how often each ran and with what feedback."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[str | None] = []
        self.graph = graph = Graph("bench", Text)

        @graph.node(start=True, retry=5, **options)
        async def write(state: Text, ctx: Context) -> dict[str, Any]:
            self.ran.append(ctx.feedback)
            return {"text": "long" if ctx.feedback is None else ctx.feedback}

        @graph.node(after="write")
        async def last(state: Text) -> dict[str, Any]:
            return {"said": ["last"]}


def short(request: Request) -> bool | str:
    """Passes a text of at most three letters."""
    return (request.writes is not None and len(request.writes["text"]) <= 3) or "the text is too long"


async def evaluated(rt: Any, run_id: str) -> list[tuple[str, str, str]]:
    return [(e.payload["subject"], e.payload["verdict"], e.payload["reason"]) for e in await rt.events(run_id) if e.type == "policy.evaluated"]


@pytest.mark.parametrize(("on_fail", "status", "outcome", "verdict"), [
    ("block", "canceled", None, "deny"),
    ("warn", "completed", "ok", "warn"),
    ("degrade", "completed", "degraded", "degrade"),
])
@pytest.mark.parametrize("where", ["gate", "check"])
async def test_what_does_not_pass(where: str, on_fail: str, status: str, outcome: str | None, verdict: str) -> None:
    """§8.2, T-88: before the step and after it; on record; a refusal is not retried, and what it made does not stand."""
    bench = Bench(**{where: lambda request: "no good", "on_fail": on_fail})
    async with World().runtime(bench.graph) as rt:
        run = await rt.invoke(bench.graph)
        assert run.status == status
        assert await evaluated(rt, run.run_id) == [("write" if where == "gate" else "write:after", verdict, "no good")]
        ends = [e.payload["outcome"] for e in await rt.events(run.run_id) if e.type.startswith("step.") and e.payload.get("task") == "write" and "outcome" in e.payload]
        assert ends == ([] if outcome is None else [outcome])
        assert bench.ran == ([] if on_fail == "block" and where == "gate" else [None]), "five attempts were allowed, one was made"
        if on_fail == "block":
            assert (run.stop_reason, run.settled, run.state.text, run.state.said) == ("policy_denied", True, "", [])
        else:
            assert run.state.said == ["last"]


async def test_what_passes_is_on_record_and_goes_on() -> None:
    """§13.2: policy events only where a gate is declared."""
    seen: list[tuple[Any, Any]] = []

    def look(request: Request) -> bool:
        seen.append((request.state.text, None if request.writes is None else dict(request.writes)))
        return True

    bench = Bench(gate=look, check=look)
    async with World().runtime(bench.graph) as rt:
        run = await rt.invoke(bench.graph, {"text": "given"})
        assert run.status == "completed" and seen == [("given", None), ("given", {"text": "long"})]
        assert await evaluated(rt, run.run_id) == [("write", "allow", ""), ("write:after", "allow", "")]


async def test_a_person_lets_a_result_stand() -> None:
    """§8.2, §5.8: what is approved is what was shown; the step does not run again for it, in another process neither."""
    world = World()
    async with world.runtime((first := Bench(check=short, on_fail="require_human")).graph) as rt:
        run = await rt.invoke(first.graph)
        [wait] = run.waits
        assert (wait.kind, wait.prompt, wait.show) == ("gate", "the text is too long", {"text": "long"})
        assert wait.available_actions == ("approve", "retry_feedback", "deny") and run.condition == "awaiting_gate_decision"
        assert run.state.text == "", "nothing of it stands yet"
        await rt.decide(run.run_id, "approve", resume=False)
    async with world.runtime((other := Bench(check=short, on_fail="require_human")).graph) as rt:
        run = await rt.resume(run.run_id)
        assert (run.status, run.state.text, run.state.said) == ("completed", "long", ["last"])
        assert first.ran == [None] and other.ran == []
        assert len(await evaluated(rt, run.run_id)) == 1
        assert [p for p in await rt.check(run.run_id) if p.severity == "error"] == []


async def test_a_person_sends_a_result_back() -> None:
    """§5.5: the step runs again with the words, and what it makes then is checked anew."""
    bench = Bench(check=short, on_fail="require_human")
    async with World().runtime(bench.graph) as rt:
        run = await rt.invoke(bench.graph)
        first = run.waits[0].wait_id
        await rt.decide(run.run_id, "retry_feedback", feedback="still long")
        run = await rt.resume(run.run_id)
        assert run.waits[0].wait_id != first and run.waits[0].show == {"text": "still long"}
        await rt.decide(run.run_id, "retry_feedback", feedback="ok")
        run = await rt.resume(run.run_id)
        assert (run.status, run.state.text, bench.ran) == ("completed", "ok", [None, "still long", "ok"])
        assert [v for _, v, _ in await evaluated(rt, run.run_id)] == ["require_human", "require_human", "allow"]


async def test_a_person_refuses_a_result() -> None:
    """§5.5: halted, and nothing of it stands."""
    bench = Bench(check=short, on_fail="require_human")
    async with World().runtime(bench.graph) as rt:
        run = await rt.invoke(bench.graph)
        run = await rt.deny(run.run_id, reason="no")
        assert (run.status, run.condition, run.stop_reason, run.state.text) == ("canceled", "halted", "denied", "")


async def test_a_person_is_asked_before_a_step() -> None:
    """§8.1: by the node's own gate; an approval is honoured once the step is entered again (T-31)."""
    bench = Bench(gate=lambda request: False, on_fail="require_human")
    async with World().runtime(bench.graph) as rt:
        run = await rt.invoke(bench.graph)
        assert [(w.kind, w.prompt) for w in run.waits] == [("gate", "the gate refused")] and bench.ran == []
        run = await rt.approve(run.run_id)
        assert run.status == "completed" and bench.ran == [None]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("kind", [ev.WaitRequested, ev.RunResumed])
async def test_a_crash_around_the_question_keeps_the_result(kind: type[ev.Fact], after: bool) -> None:
    """§8.2: result and question are one commit; before it the step simply runs again."""
    world, bench = World(), Bench(check=short, on_fail="require_human")
    if kind is ev.WaitRequested:
        run_id = await world.crash(bench.graph, when=says(kind), after=after)
        if not after:
            await world.recovered(bench.graph)
    else:
        async with world.runtime(bench.graph) as rt:
            run_id = (await rt.invoke(bench.graph)).run_id
            await rt.decide(run_id, "approve", resume=False)
        await world.crash(bench.graph, when=says(kind), after=after, resume=run_id)
    async with world.runtime(bench.graph) as rt:
        run = await rt.get(run_id)
        run = await (rt.approve(run_id) if run.waits else rt.resume(run_id))
        assert (run.status, run.state.text) == ("completed", "long")
        assert bench.ran == ([None, None] if kind is ev.WaitRequested and not after else [None])


async def test_a_result_inside_a_sub_flow_is_checked_too() -> None:
    """§4.14: the child's node rests, and goes on with what it made."""
    bench = Bench(check=short, on_fail="require_human")
    graph = Graph("outer", Text)
    graph.subgraph("inner", bench.graph, start=True)
    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph)
        assert run.waits[0].show == {"text": "long"}
        run = await rt.approve(run.run_id)
        assert (run.state.text, run.state.said, bench.ran) == ("long", ["last"], [None])


async def test_an_effect_is_checked_without_being_done_again() -> None:
    """§6.1: the node is an effect; its record stands whatever becomes of the result."""
    bench = Bench(check=short, on_fail="require_human", side_effects="write")
    async with World().runtime(bench.graph) as rt:
        run = await rt.invoke(bench.graph)
        run = await rt.approve(run.run_id)
        assert run.state.text == "long" and bench.ran == [None]
        assert [e.status for e in await rt.effects(run.run_id)] == ["recorded"]


async def test_a_replay_asks_anew() -> None:
    """T-49, §7.6: the node runs again and its result is a question again."""
    bench = Bench(check=short, on_fail="require_human")
    async with World().runtime(bench.graph) as rt:
        run = await rt.approve((await rt.invoke(bench.graph)).run_id)
        other = await rt.replay(run.run_id)
        assert other.waits[0].show == {"text": "long"} and bench.ran == [None, None]
        assert (await rt.approve(other.run_id)).state.text == "long"


async def test_a_verdict_says_for_itself() -> None:
    """§8.2: whatever on_fail is; a gate that asks may say what may be answered."""
    bench = Bench(check=lambda request: policy.require_human("well?", ("approve", "deny")), on_fail="block")
    async with World().runtime(bench.graph) as rt:
        run = await rt.invoke(bench.graph)
        assert (run.waits[0].prompt, run.waits[0].available_actions) == ("well?", ("approve", "deny"))


@pytest.mark.parametrize("options", [{"gate": None}, {"check": None}])
def test_a_gate_is_a_plain_function(options: dict[str, Any]) -> None:
    async def later(request: Request) -> bool:
        return True

    with pytest.raises(InvalidGraph, match="is async; a gate is a plain function"):
        Bench(**dict.fromkeys(options, later))


def test_an_unknown_consequence_is_named() -> None:
    with pytest.raises(InvalidInput, match="on_fail='shout' is not known"):
        Bench(check=short, on_fail="shout")


def test_a_crash_at_every_write_of_a_checked_step(holdfast_crashes: Any) -> None:
    """§8.2: sent back once, then approved, with the process killed before and after each write on the way."""
    bench = Bench(check=lambda request: "look at it", on_fail="require_human")

    async def script(host: Any, run: Any) -> None:
        if run.waits[0].show == {"text": "long"}:
            await host.rt.decide(run.run_id, "retry_feedback", feedback="ok")
        else:
            await host.rt.approve(run.run_id, drive=False)

    run, ends = holdfast_crashes(bench.graph, {}, script=script)
    assert (run.state.text, run.state.said) == ("ok", ["last"]) and len(ends) > 10
    assert all(e.run.status == "completed" and e.run.state == run.state for e in ends)
