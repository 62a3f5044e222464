"""A signal into a channel runs the nodes that listen to it, whatever else of the run waits (§5.11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, State, append, flow
from holdfast.core import events as ev
from holdfast.core.errors import NothingEligible, UndecidedWait
from holdfast.handle import Run
from holdfast.named import CheckpointStore, RunStore
from holdfast.stores.memory import MemoryStore
from holdfast.testing import replay_check
from tests.engine.support import FakeClock, World, says
from tests.people.test_between import Interposed, Place, places


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
    async with asyncio.timeout(60):
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


async def test_an_effect_of_which_nobody_knows(tmp_path: Any) -> None:
    """§6.5: its question stays open while messages are read."""
    world, desk = Shop(), waits(lambda desk, ctx: ctx.effect(desk.act))()
    run_id = await world.crash(desk.graph, when=says(ev.SideEffectAttempted))
    async with world.runtime(desk.graph) as rt:
        run = await rt.resume(run_id)
        assert [w.kind for w in run.waits] == ["effect"]
        await rt.signal(run_id, "inbox", "a")
        run = await rt.resume(run_id)
        assert run.values["said"] == ["read 1", "sorted"] and [w.kind for w in run.waits] == ["effect"]
        done = await rt.decide(run_id, "record_result", payload="sent")
        assert (await goes_on(rt, done.run_id)).values["said"] == ["read 1", "sorted", "sent, saw 0", "beside", "joined at 1"]
        assert desk.acts == 0
        await ran_once(rt, run_id)


async def goes_on(rt: Runtime, run_id: str) -> Run[Any]:
    run = await rt.get(run_id)
    return run if run.status in ("completed", "failed", "canceled") else await rt.resume(run_id)


class Inner(State):
    said: Annotated[list[str], append]
    inbox: Annotated[list[str], append]


async def test_a_task_of_a_child_graph_waits() -> None:
    """§4.14: it sees the copy it began with."""
    inner, graph = Graph("inner", Inner), Graph("outer", Post)

    @inner.node(start=True)
    async def first(state: Inner) -> dict[str, Any]:
        return {"said": [f"first saw {len(state.inbox)}"]}

    @inner.node(after="first")
    async def ask(state: Inner, ctx: Context) -> dict[str, Any]:
        return {"said": [f"{(await ctx.approve('ok?')).action}, saw {len(state.inbox)}"]}

    @inner.node(after="ask")
    async def third(state: Inner) -> dict[str, Any]:
        return {"said": [f"third saw {len(state.inbox)}"]}

    graph.subgraph("inner", inner, start=True, pass_in=["inbox"], pass_out=["said"])

    @graph.node(on=["inbox"])
    async def read(state: Post) -> dict[str, Any]:
        return {"said": [f"read {len(state.inbox)}"]}

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph, {})
        for n in (1, 2):
            await rt.signal(run.run_id, "inbox", "a")
            run = await rt.resume(run.run_id)
            assert len(run.values["said"]) == n and run.status == "waiting_for_human"
        done = await rt.approve(run.run_id)
        assert done.values["said"] == ["read 1", "read 2", "first saw 0", "approve, saw 0", "third saw 0"]
        await ran_once(rt, run.run_id)


async def test_a_message_comes_while_another_task_is_at_work() -> None:
    """It is read as soon as nothing works any more; the work's result is not lost, and its super-step still waits."""
    desk, world, go, busy = Desk(), World(), asyncio.Event(), asyncio.Event()

    @desk.graph.node(start=True)
    async def work(state: Post) -> dict[str, Any]:
        busy.set()
        await go.wait()
        return {"note": "worked"}

    async with world.runtime(desk.graph) as rt:
        driving = asyncio.ensure_future(rt.invoke(desk.graph, {}))
        await busy.wait()
        run_id = (await rt.runs())[0].run_id
        for word in "abc":
            await rt.signal(run_id, "inbox", word)
        assert (await rt.get(run_id)).values["said"] == []
        go.set()
        run = await driving
        assert run.values["said"] == ["read 3", "sorted"] and run.values["note"] == "", "one turn for what came together"
        done = await rt.approve(run_id)
        assert done.values["note"] == "worked" and done.values["said"][-1] == "joined at 3"
        await ran_once(rt, run_id)


async def test_an_answer_comes_while_a_woken_node_works() -> None:
    """Both go on at once; the older super-step ends first."""
    graph, go, busy = Graph("both", Post), asyncio.Event(), asyncio.Event()

    @graph.node(start=True)
    async def ask(state: Post, ctx: Context) -> dict[str, Any]:
        return {"said": [(await ctx.approve("ok?")).action]}

    @graph.node(on=["inbox"])
    async def read(state: Post) -> dict[str, Any]:
        busy.set()
        await go.wait()
        return {"said": ["read"]}

    @graph.node(after="ask")
    async def last(state: Post) -> dict[str, Any]:
        return {"said": [f"last after {len(state.said)}"]}

    async with World().runtime(graph) as rt:
        run = await rt.invoke(graph, {})
        await rt.signal(run.run_id, "inbox", "a")
        driving = asyncio.ensure_future(rt.resume(run.run_id))
        await busy.wait()
        await rt.decide(run.run_id, "approve")
        for _ in range(50):
            await asyncio.sleep(0)
        go.set()
        assert (await driving).values["said"] == ["approve", "read", "last after 1"], "and what it brought sees that alone"
        await ran_once(rt, run.run_id)


@pytest.mark.parametrize(("name", "value"), [("nobody", 1), ("said", "x"), ("note", "fits, and nobody listens")])
async def test_what_wakes_nobody_leaves_the_run_as_it_is(name: str, value: Any) -> None:
    """An undeclared name, a value that does not fit, a channel that no node listens to: kept until somebody asks, or the next barrier."""
    desk = Desk()
    async with World().runtime(desk.graph) as rt:
        run = await rt.invoke(desk.graph, {})
        await rt.signal(run.run_id, name, value)
        after = [e.type for e in await rt.events(run.run_id, after=run.version)]
        assert after == ["signal.received"] and (await rt.get(run.run_id)).condition == "awaiting_gate_decision"
        with pytest.raises(UndecidedWait):
            await rt.resume(run.run_id)
        assert [e.type for e in await rt.events(run.run_id, after=run.version)] == after


async def test_resume_without_news_finds_nothing() -> None:
    """§7.1: also after a message has been read."""
    desk = waits(lambda desk, ctx: ctx.wait("go"))()
    async with World().runtime(desk.graph) as rt:
        run = await rt.invoke(desk.graph, {})
        await rt.signal(run.run_id, "inbox", "a")
        await rt.resume(run.run_id)
        with pytest.raises(NothingEligible):
            await rt.resume(run.run_id)


async def test_a_command_at_rest_does_not_unqueue_a_message() -> None:
    """What is written between the message and the worker must not make the run sleep on."""
    desk, world = Desk(), Shop()
    async with world.runtime(desk.graph) as rt:
        run = await rt.invoke(desk.graph, {})
        await rt.signal(run.run_id, "inbox", "a")
        await RunStore(rt).patch_run(run.run_id, tags=["looked at"], actor="ada")
        await rt.signal(run.run_id, "nobody", 1)
        async with world.opened(desk.graph) as other:
            assert (await until(other, run.run_id, 2)).values["said"] == ["read 1", "sorted"]


async def test_a_process_without_the_code_lets_a_worker_look() -> None:
    desk, world = Desk(), Shop()
    async with world.runtime(desk.graph) as rt:
        run = await rt.invoke(desk.graph, {})
    async with world.runtime() as bare:
        await bare.signal(run.run_id, "inbox", "a")
    async with world.opened(desk.graph) as rt:
        assert (await until(rt, run.run_id, 2)).values["said"] == ["read 1", "sorted"]


@pytest.mark.parametrize("limit", [1, 2])
async def test_the_step_limit_counts_what_is_entered(limit: int) -> None:
    """§4.9: reading and sorting are two super-steps of an invocation; what only waits is none."""
    desk = Desk()
    async with World().runtime(desk.graph) as rt:
        run = await rt.invoke(desk.graph, {})
        await rt.signal(run.run_id, "inbox", "a")
        run = await rt.resume(run.run_id, step_limit=limit)
        assert run.status == ("failed" if limit == 1 else "waiting_for_human")
        if limit == 1:
            assert run.stop_reason == "step_limit" and run.values["said"] == ["read 1"]
            await rt.decide(run.run_id, "approve")
            run = await rt.resume(run.run_id, acknowledge="step_limit")
            assert run.values["said"] == ["read 1", "approve, saw 0", "beside", "sorted", "joined at 1"], "the older super-step ends first"
        else:
            assert run.values["said"] == ["read 1", "sorted"] and len(run.waits) == 1
            assert (await rt.approve(run.run_id)).values["said"][-1] == "joined at 1"


async def test_a_budget_of_steps_counts_super_steps() -> None:
    """§8.5: the barrier that only brings a message is none."""
    desk = Desk()
    async with World().runtime(desk.graph) as rt:
        run = await rt.invoke(desk.graph, {}, budgets={"steps": 3})
        for word in "ab":
            await rt.signal(run.run_id, "inbox", word)
            run = await rt.resume(run.run_id)
        assert run.values["said"] == ["read 1", "sorted", "read 2"], "two for the first message, and one for the second"
        assert sorted(w.kind for w in run.waits) == ["approval", "budget"]
        await rt.approve(run.run_id, wait_id=next(w.wait_id for w in run.waits if w.kind == "budget"))
        assert (await rt.get(run.run_id)).values["said"][-1] == "sorted"


# -- in the middle of it ----------------------------------------------------------------------------


async def halfway(rt: Runtime, desk: Desk) -> Run[Any]:
    """A run whose first super-step waits since one message was read and sorted."""
    run = await rt.invoke(desk.graph, {})
    await rt.signal(run.run_id, "inbox", "a")
    run = await rt.resume(run.run_id)
    assert run.values["said"] == ["read 1", "sorted"]
    return run


async def test_a_cancel_and_a_resume_ask_anew() -> None:
    """§5.14: under a new wait id, in the super-step it was asked in."""
    desk = Desk()
    async with World().runtime(desk.graph) as rt:
        run = await halfway(rt, desk)
        before = run.waits[0].wait_id
        assert (await rt.cancel(run.run_id)).status == "canceled"
        run = await rt.resume(run.run_id)
        assert run.status == "waiting_for_human" and run.waits[0].wait_id == f"{before}/!1"
        done = await rt.approve(run.run_id)
        assert done.values["said"] == ["read 1", "sorted", "approve, saw 0", "beside", "joined at 1"]


@pytest.mark.parametrize(("on_timeout", "status"), [("halt", "canceled"), ("deliver", "completed")])
async def test_its_deadline(on_timeout: str, status: str) -> None:
    """§5.10."""
    desk = waits(lambda desk, ctx: ctx.ask("what?", str, timeout=60, on_timeout=on_timeout))()
    world = World()
    async with world.runtime(desk.graph) as rt:
        run = await halfway(rt, desk)
        world.clock.at += 61_000_000
        run = await rt.resume(run.run_id)
        assert run.status == status


async def test_a_patch_is_seen_by_what_waits() -> None:
    """§5.11: it sees what it began with; only a patch replaces that. §5.8: and then what was consented to is asked again."""
    desk = Desk()
    async with World().runtime(desk.graph) as rt:
        run = await halfway(rt, desk)
        await CheckpointStore(rt).save_checkpoint(run.run_id, {"inbox": ["x", "y", "z"]}, actor="ada", reason="mend")
        run = await rt.approve(run.run_id)
        assert run.status == "waiting_for_human" and "inbox" in run.waits[0].verdict
        done = await rt.approve(run.run_id)
        assert done.values["said"] == ["read 1", "sorted", "approve, saw 3", "beside", "joined at 3"]


async def test_another_message_does_not_undo_a_consent() -> None:
    """§5.8: what the step reads is what it began with."""
    desk = Desk()
    async with World().runtime(desk.graph) as rt:
        run = await halfway(rt, desk)
        assert (await rt.approve(run.run_id)).status == "completed"


@pytest.mark.parametrize("at", range(4))
async def test_a_fork_in_the_middle(at: int) -> None:
    """§7.7: what waits waits on in its own super-step; what was finished there is finished in the fork too."""
    desk = Desk()
    async with World().runtime(desk.graph) as rt:
        run = await halfway(rt, desk)
        points = [c for c in await rt.checkpoints(run.run_id) if c.step >= 1]
        fork = await rt.fork(run.run_id, from_checkpoint=points[min(at, len(points) - 1)].checkpoint_id, actor="ada")
        assert fork.status == "waiting_for_human" and fork.values["said"] == ["read 1", "sorted"]
        await rt.signal(fork.run_id, "inbox", "b")
        fork = await rt.resume(fork.run_id)
        done = await rt.approve(fork.run_id)
        assert done.values["said"] == ["read 1", "sorted", "read 2", "sorted", "approve, saw 0", "beside", "joined at 2"]
        assert (await rt.get(run.run_id)).status == "waiting_for_human"
        assert [p for p in await rt.check() if p.severity == "error"] == []


async def test_a_fork_with_an_edit_in_the_middle() -> None:
    """The edit is seen by what waits, as a patch is."""
    desk = Desk()
    async with World().runtime(desk.graph) as rt:
        run = await halfway(rt, desk)
        point = [c for c in await rt.checkpoints(run.run_id) if c.step >= 1][-1]
        fork = await rt.fork(run.run_id, from_checkpoint=point.checkpoint_id, set={"inbox": ["x", "y"]}, actor="ada")
        done = await rt.approve(fork.run_id)
        assert done.values["said"] == ["read 1", "sorted", "approve, saw 2", "beside", "joined at 2"]


async def test_a_replay_goes_the_way_its_source_went() -> None:
    """§7.6: the messages come in the same super-steps, so that every recorded call is found under its number and nothing is done twice."""
    desk, acts = Desk(), []

    @desk.graph.node(after="join")
    async def act(state: Post, ctx: Context) -> dict[str, Any]:
        async def send() -> str:
            acts.append(1)
            return "sent"

        return {"note": await ctx.effect(send)}

    async with World().runtime(desk.graph) as rt:
        run = await halfway(rt, desk)
        await rt.signal(run.run_id, "inbox", "b")
        await rt.resume(run.run_id)
        done = await rt.approve(run.run_id)
        assert done.values["note"] == "sent" and len(acts) == 1
        replay = await rt.replay(run.run_id)
        assert replay.status == "waiting_for_human" and replay.values["said"] == ["read 1", "sorted", "read 2", "sorted"]
        again = await rt.approve(replay.run_id)
        assert again.values == done.values and len(acts) == 1
        steps = [[(e.payload["step"], e.payload["task"]) for e in await rt.events(r, 0) if e.type == "step.completed" and not e.payload.get("path")] for r in (run.run_id, replay.run_id)]
        assert steps[0] == steps[1]
        third = await rt.replay(replay.run_id)
        assert (await rt.approve(third.run_id)).values == done.values and len(acts) == 1


async def test_the_same_code_does_what_is_recorded() -> None:
    """``replay_check`` of a run in which messages were read meanwhile."""
    desk, world = Desk(), World()
    async with world.runtime(desk.graph) as rt:
        run = await halfway(rt, desk)
        await rt.approve(run.run_id)
    assert str(await replay_check(desk.graph, world.store, run.run_id)).startswith("desk does what")


async def test_repair_finds_nothing_and_a_forgotten_run_row_is_rebuilt() -> None:
    desk = Desk()
    async with World().runtime(desk.graph) as rt:
        run = await halfway(rt, desk)
        found = await rt.repair_run_state(run.run_id, apply=True)
        assert not found.applied and found.actions == (), found
        assert (await rt.approve(run.run_id)).status == "completed"


async def test_loading_begins_at_a_whole_checkpoint_also_while_something_waits() -> None:
    """A thousand messages while one task waits: what is loaded does not grow with them, and nothing on record of what waits is lost."""
    graph, entered = Graph("long", Post), []

    @graph.node(start=True)
    async def ask(state: Post, ctx: Context) -> dict[str, Any]:
        entered.append(await ctx.step(dict, {"n": 1}))
        return {"said": [(await ctx.approve("ok?")).action, str(len(state.inbox))]}

    @graph.node(start=True)
    async def beside(state: Post) -> dict[str, Any]:
        return {"said": ["beside"]}

    @graph.node(on=["note"])
    async def read(state: Post) -> dict[str, Any]:
        return {"note": "x" * 20_000} if len(state.note) < 100 else None

    world = World()
    async with world.runtime(graph) as rt:
        run = await rt.invoke(graph, {})
        sizes = []
        for n in range(30):
            await rt.signal(run.run_id, "note", str(n))
            await rt.resume(run.run_id)
            loaded = await world.store.load(run.run_id)
            assert loaded is not None
            sizes.append(len(loaded.rows))
        assert max(sizes[10:]) <= max(sizes[:10]) + 2
        done = await rt.approve(run.run_id)
        assert done.values["said"] == ["approve", "0", "beside"] and len(entered) == 2
        assert [e.type for e in await rt.events(run.run_id)].count("wait.requested") == 1
        await ran_once(rt, run.run_id)


# -- whenever it comes, and whenever somebody dies ---------------------------------------------------


async def test_a_message_at_any_moment_is_read() -> None:
    """It comes between any two looks of a run at the store: read once, and the rest as if it had not come (§5.6)."""
    tried, reached = 0, set[Place]()
    for place in places(reached):
        desk, world, sent = Desk(), World(), []
        async with world.runtime(desk.graph) as other:

            async def send(other: Runtime = other, sent: list[str] = sent) -> None:
                runs = await other.runs()
                if runs and runs[0].status not in ("completed", "failed"):
                    sent.append((await other.signal(runs[0].run_id, "inbox", "a")).run_id)

            store = Interposed(world.store, *place, send)
            async with Runtime(store, skills=[desk.graph], clock=world.clock) as rt:  # type: ignore[arg-type]
                run = await rt.invoke(desk.graph, {})
                if run.status == "waiting_for_human":
                    await rt.get(run.run_id)  # whoever decides looks at it first, and somebody goes on with it afterwards
                    await rt.decide(run.run_id, "approve")
                    await rt.resume(run.run_id)
        if not store.reached:
            continue
        reached.add(place)
        tried += bool(sent)
        async with world.runtime(desk.graph) as rt:
            await rt.worker(until_idle=True)
            run = await rt.get(run.run_id)
            assert run.status == "completed", (place, run)
            assert len(run.values["inbox"]) == len(sent), place
            said = list(run.values["said"])
            assert [s for s in said if s.startswith(("read", "sorted"))] == (["read 1", "sorted"] if sent else []), (place, said)
            assert [s for s in said if not s.startswith(("read", "sorted"))][:2] == ["approve, saw 0", "beside"], (place, said)
            await ran_once(rt, run.run_id)
    assert tried > 20


async def test_a_crash_at_any_commit() -> None:
    """T-51: killed before or after each commit while a message is read beside a question; nothing runs twice that was finished."""
    number = 0
    while True:
        number += 1
        for after in (False, True):
            desk, world, seen = Desk(), World(), [0]
            async with world.runtime(desk.graph) as rt:
                run = await rt.invoke(desk.graph, {})
                await rt.signal(run.run_id, "inbox", "a")

            def when(commit: Any, seen: list[int] = seen, number: int = number) -> bool:
                seen[0] += 1
                return seen[0] == number

            try:
                await world.crash(desk.graph, resume=run.run_id, when=when, after=after)
            except AssertionError:
                assert number > 3
                return
            async with world.runtime(desk.graph) as rt:
                await rt.recover()
                run = await rt.get(run.run_id)
                if run.values["said"] != ["read 1", "sorted"]:
                    run = await rt.resume(run.run_id)
                assert run.values["said"] == ["read 1", "sorted"] and run.status == "waiting_for_human"
                done = await rt.approve(run.run_id)
                assert done.values["said"] == ["read 1", "sorted", "approve, saw 0", "beside", "joined at 1"]
                assert [p for p in await rt.check() if p.severity == "error"] == []
                await ran_once(rt, run.run_id)
