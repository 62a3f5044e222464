"""A signal into a channel runs the nodes that listen to it, whatever else of the run waits (§5.11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, State, append, flow
from holdfast.core import events as ev
from holdfast.core.errors import HoldfastError, NothingEligible, UndecidedWait
from holdfast.handle import Run
from holdfast.stores.memory import MemoryStore
from tests.engine.support import FakeClock, World, says
from tests.people.test_between import Interposed, places


class Post(State):
    inbox: Annotated[list[str], append]
    said: Annotated[list[str], append]
    note: str = ""


@flow("child")
async def child(ctx: Context) -> str:
    return str(await ctx.wait("go"))


class Desk:
    """A graph in which one node waits, however it likes, beside one that has finished; ``inbox`` wakes two others, one after the other."""

    def __init__(self, **options: Any) -> None:
        self.entered = self.acts = 0
        self.graph = graph = Graph("desk", Post)

        @graph.node(start=True, **options)
        async def ask(state: Post, ctx: Context) -> dict[str, Any]:
            self.entered += 1
            saw = len(state.inbox)
            return {"said": [f"{await self.wait(ctx)}, saw {saw}"]}

        @graph.node(start=True)
        async def beside(state: Post) -> dict[str, Any]:
            return {"said": ["beside"]}

        @graph.node(after=["ask", "beside"])
        async def join(state: Post) -> dict[str, Any]:
            return {"said": [f"joined at {len(state.inbox)}"]}

        @graph.node(on=["inbox"])
        async def read(state: Post, ctx: Context) -> dict[str, Any]:
            return {"said": [f"read {await ctx.step(len, state.inbox)}"]}

        @graph.node(after="read")
        async def sort(state: Post) -> dict[str, Any]:
            return {"said": ["sorted"]}

    async def wait(self, ctx: Context) -> Any:
        return (await ctx.approve("ok?")).action

    async def act(self) -> str:
        self.acts += 1
        if self.acts == 1:
            raise ConnectionError("try 1")
        return "acted"


def waits(what: Callable[[Desk, Context], Awaitable[Any]], **options: Any) -> Callable[[], Desk]:
    def make() -> Desk:
        desk = Desk(**options)
        desk.wait = lambda ctx: what(desk, ctx)  # type: ignore[method-assign]
        return desk

    return make


async def _answered(rt: Runtime, run: Run[Any]) -> None:
    await rt.decide(run.run_id, "answer", payload="yes")


async def _approved(rt: Runtime, run: Run[Any]) -> None:
    await rt.decide(run.run_id, "approve")


async def _asleep(desk: Desk, ctx: Context) -> str:
    await ctx.sleep(60)
    return "slept"


async def _both(desk: Desk, ctx: Context) -> str:
    one, two = await ctx.gather(ctx.wait("one"), ctx.wait("two"))
    return f"{one} {two}"


async def _go(rt: Runtime, run: Run[Any]) -> None:
    await rt.signal(run.run_id, "go", "gone")


async def _one_and_two(rt: Runtime, run: Run[Any]) -> None:
    await rt.signal(run.run_id, "two", 2)
    await rt.signal(run.run_id, "one", 1)


async def _child_goes(rt: Runtime, run: Run[Any]) -> None:
    await rt.signal(run.waits[0].name, "go", "gone")


async def _time_passes(rt: Runtime, run: Run[Any]) -> None:
    """``resume`` lets it."""


KINDS: dict[str, tuple[Callable[[], Desk], Callable[[Runtime, Run[Any]], Awaitable[None]], str]] = {
    "approval": (Desk, _approved, "approve"),
    "input": (waits(lambda desk, ctx: ctx.ask("what?", str)), _answered, "yes"),
    "gate": (waits(lambda desk, ctx: asyncio.sleep(0, "let"), gate=lambda request: False, on_fail="require_human"), _approved, "let"),
    "check": (waits(lambda desk, ctx: asyncio.sleep(0, "let"), check=lambda request: False, on_fail="require_human"), _approved, "let"),
    "signal": (waits(lambda desk, ctx: ctx.wait("go")), _go, "gone"),
    "two signals": (waits(_both), _one_and_two, "1 2"),
    "timer": (waits(_asleep), _time_passes, "slept"),
    "child": (waits(lambda desk, ctx: ctx.child(child)), _child_goes, "gone"),
    "retry": (waits(lambda desk, ctx: ctx.effect(desk.act, retry=Retry(max_attempts=3))), _approved, "acted"),
}


class Still(FakeClock):
    """Time passes when it is moved."""

    def __init__(self) -> None:
        super().__init__()
        self._moved = asyncio.Event()

    def move(self, seconds: float) -> None:
        self.at += int(seconds * 1_000_000)
        self._moved.set()
        self._moved = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        until = self.at + int(seconds * 1_000_000)
        while self.at < until:
            await self._moved.wait()


class Shop(World):
    """A world with a clock that stands still, and a worker."""

    def __init__(self) -> None:
        super().__init__()
        self.clock: Still = Still()
        self.store = MemoryStore(now=self.clock.now)

    @asynccontextmanager
    async def opened(self, *skills: Any) -> AsyncIterator[Runtime]:
        async with self.runtime(*skills) as rt:
            working = asyncio.ensure_future(rt.worker())
            try:
                yield rt
            finally:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)


async def until(rt: Runtime, run_id: str, said: int) -> Run[Any]:
    """The run once it rests with so much said."""
    async with asyncio.timeout(10):
        while True:
            run = await rt.get(run_id)
            if len(run.values["said"]) >= said and run.status not in ("running", "pending"):
                return run
            assert run.status != "failed", run.error
            await asyncio.sleep(0)


@pytest.mark.parametrize("kind", KINDS)
async def test_it_wakes_while_others_wait(kind: str) -> None:
    """Each message is read when it comes; what waited then ends as it would have, having seen what it began with."""
    make, answer, word = KINDS[kind]
    desk, world = make(), Shop()
    async with world.opened(desk.graph, child) as rt:
        run = await rt.invoke(desk.graph, {}, detach=True)
        assert run.status.startswith("waiting_for_") and run.values["said"] == []
        entered, waiting = desk.entered, run.waits
        for n, message in enumerate("abc", 1):
            await rt.signal(run.run_id, "inbox", message)
            run = await until(rt, run.run_id, 2 * n)
            assert run.values["said"] == [w for i in range(1, n + 1) for w in (f"read {i}", "sorted")]
            assert run.waits == waiting and desk.entered == entered, "what waits is not entered for it"
        await answer(rt, run)
        world.clock.move(61)
        done = await until(rt, run.run_id, 9)
        assert done.status == "completed"
        assert done.values["said"] == ["read 1", "sorted", "read 2", "sorted", "read 3", "sorted", f"{word}, saw 0", "beside", "joined at 3"]
        assert [p for p in await rt.check() if p.severity == "error"] == []
        await ran_once(rt, run.run_id)


async def ran_once(rt: Runtime, run_id: str) -> None:
    """Each step began once and ended once, under its own number."""
    told = [(e.type, (e.payload["step"], e.payload["task"])) for e in await rt.events(run_id) if e.type in ("step.started", "step.completed") and not e.payload.get("path")]
    begun, done = ([place for kind, place in told if kind == word] for word in ("step.started", "step.completed"))
    assert len(set(begun)) == len(begun) and sorted(begun) == sorted(done)
