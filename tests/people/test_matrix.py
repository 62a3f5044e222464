"""The matrix of docs/matrix.md against the real engine: each verb people use, on a run in each situation (§2, §5, §7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, flow
from holdfast.core import events as ev
from holdfast.core.errors import HoldfastError
from holdfast.core.status import TERMINAL
from holdfast.handle import Run
from tests.core.matrix import COMMANDS, SITUATIONS, cell
from tests.engine.support import World, says


class Trail(State):
    said: Annotated[list[str], append]


class Stage:
    """A world, a runtime that issues the commands, and whatever keeps a run busy until ``go``."""

    def __init__(self, world: World | None = None) -> None:
        self.world = world or World()
        self.go = asyncio.Event()
        self.busy = asyncio.Event()

    def graph(self, *, asks: bool = False, works: bool = False, listens: bool = False, fails: bool = False, holds: bool = False) -> Graph[Trail]:
        """Nodes side by side, by what the run is to do."""
        graph = Graph("stage", Trail)

        @graph.node(start=True)
        async def begin(state: Trail) -> dict[str, Any]:
            return {"said": ["begun"]}

        if asks:

            @graph.node(after="begin")
            async def ask(state: Trail, ctx: Context) -> dict[str, Any]:
                return {"said": [(await ctx.approve("ok?")).action]}

        if listens:

            @graph.node(after="begin")
            async def hear(state: Trail, ctx: Context) -> dict[str, Any]:
                return {"said": [str(await ctx.wait("go"))]}

        if works:

            @graph.node(after="begin")
            async def work(state: Trail) -> dict[str, Any]:
                if holds:
                    self.busy.set()
                    await self.go.wait()
                return {"said": ["worked"]}

        if fails:

            @graph.node(after="begin")
            async def fail(state: Trail, ctx: Context) -> dict[str, Any]:
                for _ in range(50):  # so that the question is on record first
                    await asyncio.sleep(0)
                raise ValueError("boom")

        return graph

    @asynccontextmanager
    async def rests(self, graph: Any, *acts: Callable[[Runtime, str], Awaitable[Any]], submit: bool = False, **options: Any) -> AsyncIterator[tuple[Runtime, str]]:
        async with self.world.runtime(graph) as rt:
            run = await (rt.submit if submit else rt.invoke)(graph, **options)
            for act in acts:
                await act(rt, run.run_id)
            yield rt, run.run_id

    @asynccontextmanager
    async def lives(self, graph: Any, start: Callable[[Runtime], Awaitable[Run[Any]]]) -> AsyncIterator[tuple[Runtime, str]]:
        """A run that another runtime drives, in mid-step."""
        async with self.world.runtime(graph) as owner, self.world.runtime(graph) as rt:
            driving = asyncio.ensure_future(start(owner))
            await self.busy.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            yield rt, next(r.run_id for r in await rt.runs() if r.status not in TERMINAL)
            self.go.set()
            await driving


@asynccontextmanager
async def staged(name: str, world: World | None = None) -> AsyncIterator[tuple[Runtime, str]]:
    """The real run of a situation."""
    s = Stage(world)

    async def approve(rt: Runtime, run_id: str) -> None:
        await rt.decide(run_id, "approve", resume=False)

    @flow("night")
    async def night(ctx: Context) -> str:
        return (await ctx.handoff("look", actions=("continue", "halt"))).action

    @flow("twice")
    async def twice(ctx: Context) -> list[float]:
        one = await ctx.step(_one)
        if ctx.run.origin == "replay":
            s.busy.set()
            await s.go.wait()
        return [one, await ctx.step(_one)]

    match name:
        case "pending":
            found = s.rests(s.graph(), submit=True)
        case "running":
            found = s.lives(g := s.graph(works=True, holds=True), lambda rt: rt.invoke(g))
        case "running, a question open":
            found = s.lives(g := s.graph(asks=True, works=True, holds=True), lambda rt: rt.invoke(g))
        case "running, interrupted":
            graph = s.graph(asks=True, works=True)
            run_id = await s.world.crash(graph, when=says(ev.StepCompleted, task="work"))
            async with s.world.runtime(graph) as rt:
                yield rt, run_id
            return
        case "replaying":
            async with s.world.runtime(twice) as rt:
                source = (await rt.invoke(twice)).run_id
            found = s.lives(twice, lambda rt: rt.replay(source))
        case "waiting_for_human, undecided":
            found = s.rests(s.graph(asks=True))
        case "waiting_for_human, decided":
            found = s.rests(s.graph(asks=True), approve)
        case "waiting_for_signal":
            found = s.rests(s.graph(listens=True))
        case "waiting_for_signal, signal received":
            found = s.rests(s.graph(listens=True), lambda rt, run_id: rt.signal(run_id, "go", 1))
        case "completed":
            found = s.rests(s.graph())
        case "failed":
            found = s.rests(s.graph(fails=True))
        case "failed, undecided":
            found = s.rests(s.graph(asks=True, fails=True))
        case "failed, decided":
            found = s.rests(s.graph(asks=True, fails=True), approve)
        case "canceled":
            found = s.rests(s.graph(asks=True), lambda rt, run_id: rt.cancel(run_id))
        case "canceled, settled":
            found = s.rests(s.graph(asks=True), lambda rt, run_id: rt.deny(run_id, reason="no"))
        case "canceled, unattended":
            found = s.rests(night, unattended=True)
        case _:
            raise AssertionError(f"nobody knows how to make a run that is {name}")
    async with found as made:
        yield made


async def _one() -> float:
    return 1.0


VERBS: dict[str, Callable[[Runtime, str, str], Awaitable[Any]]] = {
    "decide: approve": lambda rt, run_id, wait_id: rt.decide(run_id, "approve", wait_id=wait_id),
    "decide: deny": lambda rt, run_id, wait_id: rt.decide(run_id, "deny", wait_id=wait_id, note="no"),
    "decide: not offered": lambda rt, run_id, wait_id: rt.decide(run_id, "abandon", wait_id=wait_id),
    "signal": lambda rt, run_id, wait_id: rt.signal(run_id, "go", 1),
    "cancel": lambda rt, run_id, wait_id: rt.cancel(run_id),
    "resume": lambda rt, run_id, wait_id: rt.resume(run_id, wait=False),
    "resume, acknowledged": lambda rt, run_id, wait_id: rt.resume(run_id, wait=False, acknowledge="step_failed"),
}
# What the inbox answers before the table is asked (§5.6): the decision on record, or that there is another.
ON_RECORD = {
    ("waiting_for_human, decided", "decide: approve"): "",
    ("waiting_for_human, decided", "decide: deny"): "decision_conflict",
    ("waiting_for_human, decided", "decide: not offered"): "decision_conflict",
    ("failed, decided", "decide: approve"): "",
    ("failed, decided", "decide: deny"): "decision_conflict",
    ("failed, decided", "decide: not offered"): "decision_conflict",
    ("canceled, settled", "decide: approve"): "decision_conflict",
    ("canceled, settled", "decide: deny"): "",
    ("canceled, settled", "decide: not offered"): "decision_conflict",
}


def said(situation: str, verb: str) -> str:
    """The code of the refusal that the table tells of; empty where it accepts."""
    found = cell(SITUATIONS[situation], COMMANDS[verb])
    return found.removeprefix("✗ ") if found.startswith("✗") else ""


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_the_staged_run_is_what_it_is_called(situation: str) -> None:
    async with staged(situation) as (rt, run_id):
        run, model = await rt.get(run_id), SITUATIONS[situation]
        assert (run.status, len(run.waits), len(run.decisions), run.settled, len(run.record.rearm)) == (
            model.status, len(model.waits), len(model.decisions), model.settled, len(model.rearm),
        )
        assert (run.condition == "interrupted") is (situation == "running, interrupted")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("situation", SITUATIONS)
async def test_the_engine_does_as_the_table_says(situation: str, verb: str) -> None:
    """T-27, T-90: accepted where the table has an event, refused by the same code where it has one; a refusal writes nothing."""
    async with staged(situation) as (rt, run_id):
        before = await rt.get(run_id)
        wait_id = before.waits[0].wait_id if before.waits else f"{run_id}.2.ask.0"
        seen = len(await rt.events(run_id))
        expected = ON_RECORD.get((situation, verb), said(situation, verb))
        if verb == "decide: approve" and before.waits:
            assert before.waits[0].decidable is (expected == "")
            assert (await rt.record(run_id))["waits"][0]["decidable"] is (expected == "")
        if expected:
            with pytest.raises(HoldfastError) as refused:
                await VERBS[verb](rt, run_id, wait_id)
            assert refused.value.code == expected and refused.value.exit_code in (2, 3, 6)
            assert len(await rt.events(run_id)) == seen
            return
        await VERBS[verb](rt, run_id, wait_id)
        after = await rt.get(run_id)
        if verb == "cancel" and before.condition not in ("running", "replaying"):
            assert (after.status, after.waits, after.stop_reason) == ("canceled", (), "canceled"), "T-90: at once"
        if before.status in TERMINAL and not verb.startswith("resume"):
            assert after.status is before.status, "nothing but a resume leaves an end"
