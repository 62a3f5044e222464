"""The table of docs/matrix.md "the head of the lane is …" with the real engine: invoke and resume drive it, or say why not (§4.16, X-32)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Flow, Graph, Limit, Runtime, State, flow
from holdfast.core import lanes
from holdfast.core.commands import LateResult
from holdfast.core.commit import InboxItem
from holdfast.core.errors import LaneBlocked, ThreadNotFound
from holdfast.testing import World as VirtualWorld
from tests.core.matrix import HEADS, head_cell
from tests.engine.support import World

DRIVEN = {lanes.May.DRIVE, lanes.May.AWAIT}


class Said(State):
    text: str = ""


@flow("elsewhere")
async def elsewhere(ctx: Context) -> None: ...


def graph(extra: bool) -> Graph[Said]:
    made = Graph("shaped", Said)

    @made.node(start=True)
    async def first(state: Said) -> None: ...

    if extra:

        @made.node(after="first")
        async def second(state: Said) -> None: ...

    return made


class Lane:
    """A thread ``t``: its head is made by the process ``other``, and ``one`` comes after it. A run that ``rests`` ends once ``go`` is set."""

    def __init__(self) -> None:
        self.world = World()
        self.go = asyncio.Event()
        self.tasks: list[asyncio.Task[Any]] = []
        self.talk = self._talk()
        limits = {"one": Limit(in_flight=1)}
        self.one, self.other = (Runtime(self.world.store, skills=[self.talk], clock=self.world.clock, limits=limits) for _ in range(2))

    def _talk(self) -> Flow[..., Any]:
        go = self.go

        @flow("talk")
        async def talk(ctx: Context, text: str, asks: str = "") -> str:
            match asks:
                case "person":
                    await ctx.approve("ok?")
                case "signal":
                    await ctx.wait("go")
                case "rests":
                    await go.wait()
                case "timer":
                    await ctx.sleep(60)
                case "child":
                    await ctx.child(elsewhere, {})
                case "limit":
                    await ctx.effect(str, text, limit="one")
            return text

        return talk

    async def begun(self, rt: Runtime, **options: Any) -> str:
        """A run that some process drives now."""
        self.tasks.append(asyncio.ensure_future(rt.invoke(self.talk, {"text": "head", "asks": "rests"}, thread_id="t", **options)))
        while True:
            await asyncio.sleep(0)
            if found := [r for r in await rt.runs(thread_id="t") if r.record.current_step_id is not None]:
                return found[0].run_id

    async def waiting(self, asks: str) -> str:
        return (await self.other.invoke(self.talk, {"text": "head", "asks": asks}, thread_id="t")).run_id

    async def detached(self, asks: str) -> str:
        return (await self.other.invoke(self.talk, {"text": "head", "asks": asks}, thread_id="t", detach=True)).run_id

    async def timed(self) -> str:
        run_id = await self.detached("timer")
        self.world.clock.at += 61_000_000
        return run_id

    async def parent(self) -> str:
        """Its child is for others, who have its code."""
        self.other.add(elsewhere)
        return await self.detached("child")

    async def crowded(self) -> str:
        """Another run holds the one place there is."""
        await self.world.store.register("holder", 10**12)
        await self.world.store.enter("holder", "r", "there", {"one": Limit(in_flight=1)})
        return await self.detached("limit")

    async def pending(self) -> str:
        return (await self.other.submit(self.talk, {"text": "head"}, thread_id="t")).run_id

    async def handed_back(self) -> str:
        run_id = await self.begun(self.other)
        self.other.drain()
        self.tasks.pop().cancel()
        async with asyncio.timeout(60):
            while (await self.one.get(run_id)).lease.owner is not None:
                await self.world.store.wait_for_change(0.05)
        self.go.set()
        return run_id

    async def dead(self) -> str:
        run_id = await self.begun(self.other)
        self.world.store.abandon(self.other.owner)
        self.tasks.pop().cancel()
        self.go.set()
        return run_id

    async def expired(self) -> str:
        run_id = await self.begun(self.other)
        self.world.clock.at += 31_000_000
        self.tasks.pop().cancel()
        self.go.set()
        return run_id

    async def answered(self) -> str:
        run_id = await self.waiting("person")
        await self.other.approve(run_id, drive=False)
        return run_id

    async def driven_here(self) -> str:
        run_id = await self.begun(self.one)
        asyncio.get_running_loop().call_later(0.05, self.go.set)
        return run_id

    async def held(self) -> str:
        run_id = await self.begun(self.other, recovery="hold")
        self.world.store.abandon(self.other.owner)
        return run_id

    async def interrupted(self) -> str:
        run_id = await self.held()
        await self.one.worker(until_idle=True)
        assert (await self.one.get(run_id)).condition == "interrupted"
        return run_id

    async def undecided(self) -> str:
        run_id = await self.waiting("person")
        await self.other.decide(run_id, "approve", resume=False)
        return run_id

    async def unknown(self) -> str:
        return (await self.other.submit(elsewhere, {}, thread_id="t")).run_id

    async def another_shape(self) -> str:
        run = await self.other.submit(graph(extra=False), {}, thread_id="t")
        self.one.add(graph(extra=True))
        return run.run_id


@asynccontextmanager
async def lane() -> AsyncIterator[Lane]:
    made = Lane()
    async with made.one, made.other:
        yield made
        for task in made.tasks:
            task.cancel()
        await asyncio.gather(*made.tasks, return_exceptions=True)


MADE: dict[str, Callable[[Lane], Awaitable[str]]] = {
    "pending": Lane.pending,
    "queued again, because its process released it": Lane.handed_back,
    "left by a dead owner": Lane.dead,
    "left by an owner whose lease has expired": Lane.expired,
    "waiting, and answered": Lane.answered,
    "executed here": Lane.driven_here,
    "executed by another process": lambda here: here.begun(here.other),
    "executed by a frozen process, its lease not expired": lambda here: here.begun(here.other),
    "left by a dead owner, recovery on hold": Lane.held,
    "interrupted": Lane.interrupted,
    "waiting for a person": lambda here: here.waiting("person"),
    "waiting for a signal": lambda here: here.waiting("signal"),
    "waiting, and answered with `--no-resume`": Lane.undecided,
    "waiting for a timer that is due": Lane.timed,
    "waiting for a timer that is not due": lambda here: here.detached("timer"),
    "waiting for a child": Lane.parent,
    "paused until a limit has room": Lane.crowded,
    "pending, of a skill that is not here": Lane.unknown,
    "pending, of another version of the graph": Lane.another_shape,
}


@pytest.mark.parametrize("name", HEADS)
async def test_invoke_behind_a_head(name: str) -> None:
    """X-32: it drives it and then its own, or gives its run back pending and says what is in the way; it never hangs."""
    async with lane() as here:
        head, what = await MADE[name](here), lanes.may(HEADS[name])
        run = await asyncio.wait_for(here.one.invoke(here.talk, {"text": "mine"}, thread_id="t"), 10)
        if what in DRIVEN:
            assert "executes its own run" in head_cell(what, "invoke") or "then its own run" in head_cell(what, "invoke")
            assert (run.status, run.result, run.blocked_by, run.blocked_why) == ("completed", "mine", None, None)
            assert (await here.one.get(head)).status == "completed"
        else:
            assert (run.status, run.blocked_by) == ("pending", head)
            assert run.blocked_why is not None and run.blocked_why.startswith(what), run.blocked_why


@pytest.mark.parametrize("name", HEADS)
async def test_resume_behind_a_head(name: str) -> None:
    """X-32: the same for a queued run that somebody resumes: driven, or ``lane_blocked`` with both; nothing is written then."""
    async with lane() as here:
        head, what = await MADE[name](here), lanes.may(HEADS[name])
        mine = await here.other.submit(here.talk, {"text": "mine"}, thread_id="t")
        resumed = asyncio.wait_for(here.one.resume(mine.run_id), 10)
        if what in DRIVEN:
            assert (await resumed).result == "mine" and (await here.one.get(head)).status == "completed"
            return
        with pytest.raises(LaneBlocked) as refused:
            await resumed
        assert (refused.value.code, refused.value.exit_code, refused.value.blocked_by) == ("lane_blocked", 6, head)
        assert refused.value.blocked_why.startswith(what) and (await here.one.get(mine.run_id)).version == mine.version


async def test_a_failed_run_is_resumed_behind_those_that_came_after_it() -> None:
    """X-32: its turn is a new one; what has taken the lane meanwhile goes first, or nothing is written."""
    fails = [True]

    @flow("flaky")
    async def flaky(ctx: Context, asks: bool = False) -> str:
        if asks:
            await ctx.approve("ok?")
        elif fails[0]:
            raise ValueError("boom")
        return "fine"

    world = World()
    async with world.runtime(flaky) as rt:
        failed = await rt.invoke(flaky, {}, thread_id="t")
        holder = await rt.invoke(flaky, {"asks": True}, thread_id="t")
        fails[0] = False
        with pytest.raises(LaneBlocked, match="a wait"):
            await rt.resume(failed.run_id, acknowledge=failed.stop_reason)
        assert (await rt.get(failed.run_id)).version == failed.version
        await rt.approve(holder.run_id, drive=False)
        assert (await rt.resume(failed.run_id, acknowledge=failed.stop_reason)).result == "fine"
        assert (await rt.get(holder.run_id)).status == "completed"


@pytest.mark.parametrize("name", HEADS)
async def test_explain_names_the_run_in_the_way_of_a_resume(name: str) -> None:
    """X-32: what ``explain`` advises of an ended run works. Where a resume is refused, it names the run in the way first."""
    async with lane() as here:
        ended = await here.other.submit(here.talk, {"text": "mine"}, thread_id="t")
        await here.other.cancel(ended.run_id, actor="ada")
        head, what = await MADE[name](here), lanes.may(HEADS[name])
        told = await here.one.explain(ended.run_id)
        in_the_way = what is not lanes.May.DRIVE
        assert (told["next"][0]["command"] == f"holdfast explain {head}") is in_the_way, told
        assert (head in told["why"]) is in_the_way
        assert any(a["command"].startswith(f"holdfast resume {ended.run_id}") for a in told["next"]), "it works once that run is out of the way"


async def test_explain_of_a_queued_run_names_who_is_before_it_now() -> None:
    """§10.8: not the run that was before it when it was queued, which has ended since."""

    @flow("ask")
    async def ask(ctx: Context) -> None:
        await ctx.approve("ok?")

    async with World().runtime(ask) as rt:
        first = await rt.invoke(ask, {}, thread_id="t")
        last = await rt.submit(ask, {}, thread_id="t")
        assert first.run_id in (await rt.explain(last.run_id))["why"]
        await rt.cancel(first.run_id, actor="ada")
        assert first.run_id not in (await rt.explain(last.run_id))["why"]


async def test_many_are_driven_in_the_order_of_their_turns() -> None:
    """§10.8: whoever comes last drives all that nobody alive drives, each once, in order."""
    order: list[str] = []

    @flow("say")
    async def say(ctx: Context, text: str) -> str:
        order.append(text)
        return text

    async with World().runtime(say) as rt:
        for n in range(5):
            await rt.submit(say, {"text": str(n)}, thread_id="t")
        assert (await asyncio.wait_for(rt.invoke(say, {"text": "last"}, thread_id="t"), 10)).result == "last"
        assert order == ["0", "1", "2", "3", "4", "last"]


async def test_a_thread_and_no_input_begins_nothing() -> None:
    """§4.16: the thread's newest run goes on as far as it can, and is given as it rests; without a thread a run begins with an empty input."""

    @flow("ask")
    async def ask(ctx: Context) -> str:
        return (await ctx.approve("ok?")).action

    world = World()
    async with world.runtime(ask) as rt:
        with pytest.raises(ThreadNotFound) as refused:
            await rt.invoke(ask, None, thread_id="t")
        assert (refused.value.code, refused.value.exit_code) == ("thread_not_found", 3)
        run = await rt.invoke(ask, {}, thread_id="t")
        again = await asyncio.wait_for(rt.invoke(ask, None, thread_id="t"), 10)
        assert (again.run_id, again.status, len(await rt.runs())) == (run.run_id, "waiting_for_human", 1)
        await rt.approve(run.run_id, drive=False)
        assert (await rt.invoke(ask, thread_id="t")).result == "approve" and len(await rt.runs()) == 1
        queued = await rt.submit(ask, {}, thread_id="u")
        assert (await rt.invoke(ask, thread_id="u")).run_id == queued.run_id
        assert (await rt.invoke(ask)).status == "waiting_for_human" and len(await rt.runs()) == 3


async def test_another_process_drives_the_newest_run() -> None:
    """§4.16: with no input a run that another drives is given as it is, at once."""
    async with lane() as here:
        head = await here.begun(here.other)
        run = await asyncio.wait_for(here.one.invoke(here.talk, None, thread_id="t"), 10)
        assert (run.run_id, run.status) == (head, "running")


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("given", [{"thread_id": "t"}, {"session_key": "t"}])
async def test_a_child_in_the_lane_of_an_ancestor(deep: bool, given: dict[str, str]) -> None:
    """§4.16: it would wait for its parent, which waits for it: its step fails with ``lane_of_ancestor``; in another lane it runs."""

    @flow("leaf")
    async def leaf(ctx: Context) -> str:
        return "leaf"

    @flow("middle")
    async def middle(ctx: Context, more: dict[str, Any]) -> Any:
        return await ctx.child(leaf, {}, **more)

    @flow("top")
    async def top(ctx: Context, more: dict[str, Any]) -> Any:
        return await (ctx.child(middle, {"more": more}) if deep else ctx.child(leaf, {}, **more))

    async with World().runtime(leaf, middle, top) as rt:
        run = await asyncio.wait_for(rt.invoke(top, {"more": given}, thread_id="t"), 10)
        assert run.status == "failed"
        failed = [r for r in await rt.runs(status="failed") if r.error is not None and r.error.code == "lane_of_ancestor"]
        assert len(failed) == 1 and run.run_id in str(failed[0].error)
        other = await rt.invoke(top, {"more": {**given, "lane": "other"}}, thread_id="t")
        assert other.result == "leaf"


async def test_two_processes_over_one_file(tmp_path: Path) -> None:
    """X-32 over SQLite: a run left behind by a closed process, and one that another drives."""
    url, go = f"sqlite:///{tmp_path}/runs.db", asyncio.Event()

    @flow("chat")
    async def chat(ctx: Context, rests: bool = False) -> str:
        if rests:
            await go.wait()
        return "said"

    async with Runtime(url, skills=[chat]) as first:
        left = await first.submit(chat, {}, thread_id="t")
    async with Runtime(url, skills=[chat]) as one, Runtime(url, skills=[chat]) as two:
        assert (await asyncio.wait_for(one.invoke(chat, {}, thread_id="t"), 10)).result == "said"
        assert (await one.get(left.run_id)).status == "completed"
        driving = asyncio.ensure_future(one.invoke(chat, {"rests": True}, thread_id="t"))
        while not [r for r in await two.runs(thread_id="t", limit=1) if r.condition == "running"]:
            await two.store.wait_for_change(0.05)
        run = await asyncio.wait_for(two.invoke(chat, {}, thread_id="t"), 10)
        assert run.status == "pending" and str(run.blocked_why).startswith("another's live lease")
        go.set()
        assert (await driving).result == "said"
        assert (await asyncio.wait_for(two.resume(run.run_id), 10)).result == "said"


async def test_one_that_is_put_off_and_has_something_to_take_goes_first_for_that() -> None:
    """§4.16: its time has not come, but what was put into its inbox makes it due: it takes that, and is in nobody's way again."""
    async with lane() as here, asyncio.timeout(60):
        later = await here.other.submit(here.talk, {"text": "later"}, thread_id="t", delay=3600)
        await here.world.store.put(InboxItem(later.run_id, "late:x", LateResult("x", "it gave 3"), here.world.store.now()))
        assert (await here.one.invoke(here.talk, {"text": "mine"}, thread_id="t")).result == "mine"
        assert [e.type for e in await here.one.events(later.run_id)].count("note.added") == 1
        assert (await here.one.get(later.run_id)).status == "pending" and (await here.one.get(later.run_id)).record.started_at is None


def test_a_run_that_rests_for_a_limit_is_waited_for_without_being_tried_all_the_time(holdfast_world: VirtualWorld) -> None:
    """§4.16, §10.11: ``invoke`` waits for its own run as for a timer, tries it when it is due, and goes on as soon as somebody makes room;
    who comes behind it in this process waits with it."""

    @flow("narrow")
    async def narrow(ctx: Context, n: int) -> int:
        return await ctx.effect(int, n, limit="one")

    async def story() -> None:
        store, clock = holdfast_world.store, holdfast_world.clock
        host = await holdfast_world.host(narrow, limits={"one": Limit(in_flight=1)})
        await store.register("holder", 10**12)
        await store.enter("holder", "r", "there", {"one": Limit(in_flight=1)})
        first = host.start(host.rt.invoke(narrow, {"n": 1}, thread_id="t"))
        await clock.sleep(300)
        (run,) = await host.rt.runs()
        assert run.version < 60 and run.condition == "queued", run.version
        behind = host.start(host.rt.invoke(narrow, {"n": 2}, thread_id="t"))
        await clock.sleep(5)
        assert not behind.done()
        left = clock.elapsed
        await store.leave("holder", ["there"])
        assert [(await first).result, (await behind).result] == [1, 2] and clock.elapsed - left < 10

    holdfast_world.run(story())
