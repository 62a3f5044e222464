"""What the kernel keeps through failures, crashes, edits and crowds (§3.2, §3.5, §4)."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections import Counter
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, Send, State, append, flow, merge, thread, window
from holdfast.core import events as ev
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import FingerprintMismatch, InvalidInput, NodeMissing, RequestConflict, StoreFull
from holdfast.core.progress import Progress
from holdfast.core.status import Condition, Status
from holdfast.stores.memory import MemoryStore
from tests.engine.support import FakeClock, World, says

ran: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


class S(State):
    items: Annotated[list[str], append]
    n: int = 0


def line(*names: str, **broken: Any) -> Graph[S]:
    """A graph of nodes in a line; each says its name and counts itself; ``broken`` ones raise what they are given."""
    g = Graph("line", S)
    for i, name in enumerate(names):

        def node(state: S, name: str = name) -> dict[str, Any]:
            ran[name] += 1
            if broken.get(name):
                raise broken[name][0]
            return {"items": name}

        g.node(name, start=i == 0, after=None if i == 0 else names[i - 1])(node)
    return g


# -- failures ---------------------------------------------------------------------------------------


async def test_the_failure_checkpoint_holds_the_last_good_state() -> None:
    """T-50, T-62: fail at step 3, resume, steps 1–2 not re-run; versions, values and step number did not advance."""
    broken = [ValueError("no")]
    g = line("a", "b", "c", "d", c=broken)
    async with World().runtime(g) as rt:
        run = await rt.invoke(g, {})
        assert run.status is Status.FAILED and run.state.items == ["a", "b"]
        last, failure = (await rt.checkpoints(run.run_id))[-2:]
        assert failure.metadata["source"] == "failure" and failure.boundaries == ("run_failed",)
        assert (failure.step, failure.values, failure.channel_versions) == (last.step, last.values, last.channel_versions)
        assert failure.pending_tasks == ("c",) and failure.parent_id == last.checkpoint_id and run.checkpoint_head == failure.checkpoint_id
        broken.clear()
        run = await rt.resume(run.run_id, acknowledge=failure.checkpoint_id)
    assert run.state.items == ["a", "b", "c", "d"]
    assert ran == {"a": 1, "b": 1, "c": 2, "d": 1}


async def test_a_router_that_raised_once_is_asked_again() -> None:
    """L-01, §4.7: its node has no result, not even its routing; after the resume what is downstream still runs."""
    broken = [True]
    g = line("a", "b")
    g.node("end")(lambda state: {"items": "end"})

    def router(state: S) -> str:
        if broken:
            raise RuntimeError("router")
        return "end"

    g.branch("a", router)
    async with World().runtime(g) as rt:
        run = await rt.invoke(g, {})
        assert run.status is Status.FAILED and run.state.items == []
        broken.clear()
        run = await rt.resume(run.run_id, acknowledge="step_failed")
    assert run.status is Status.COMPLETED and run.state.items == ["a", "b", "end"]


@pytest.mark.parametrize("trial", range(10))
async def test_no_finished_sibling_of_a_failure_is_lost(trial: int) -> None:
    """L-19, T-58: 64 siblings, one fails; 100 trials, ten in each of these."""

    async def one(broken: int) -> None:
        ran.clear()
        hurt = [True]
        g = Graph("wide", S)

        @g.node(start=True)
        def fan(state: S) -> list[Send]:
            return [Send("work", i) for i in range(64)]

        @g.node
        async def work(state: S, ctx: Context) -> dict[str, Any]:
            for _ in range((ctx.payload * 7 + broken) % 5):
                await asyncio.sleep(0)
            ran[str(ctx.payload)] += 1
            if ctx.payload == broken and hurt:
                raise ValueError("one of many")
            return {"items": str(ctx.payload)}

        async with World().runtime(g) as rt:
            run = await rt.invoke(g, {})
            assert run.status is Status.FAILED
            done = set(ran) - {str(broken)}
            hurt.clear()
            run = await rt.resume(run.run_id, acknowledge="step_failed")
            assert run.state.items == [str(i) for i in range(64)], "all of them, in task order"
        assert {n for n, times in ran.items() if times > 1} == {str(broken)}, "only the failed one ran again"
        assert done <= set(ran)

    for i in range(10):
        await one((trial * 10 + i) % 64)


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_in_one_of_several_steps_runs_only_that_again(after: bool) -> None:
    """L-05, L-06, T-58: finished siblings stay finished, and a worker that is up goes on by itself."""
    g = Graph("g", S)

    def named(name: str) -> Any:
        async def node(state: S, ctx: Context) -> dict[str, Any]:
            ran[name] += 1
            if name == "slow":
                for _ in range(20):  # long enough for its sibling to become durable
                    await asyncio.sleep(0)
                await ctx.step(asyncio.sleep, 0)
            return {"items": name}

        return node

    for name in ("quick", "slow"):
        g.node(name, start=True)(named(name))
    g.node("join", after=["quick", "slow"])(named("join"))
    world = World()
    await world.crash(g, when=says(ev.StepCompleted, task="slow", path="0"), after=after)
    async with world.runtime(g) as rt:
        await rt.worker(until_idle=True)
        run = (await rt.runs())[0]
        state = await rt.state(run.run_id)
    assert run.status is Status.COMPLETED and state["items"] == ["quick", "slow", "join"]
    assert ran == {"quick": 1, "slow": 2, "join": 1}


async def test_one_save_that_fails_in_mid_run_stops_it_and_says_so() -> None:
    """L-04, T-51, §1.12: nothing later refers to what was never written, nothing is claimed to be done."""

    class Full(MemoryStore):
        broken = True

        async def commit(self, commit: Commit) -> Tip:
            if self.broken and any(isinstance(e.fact, ev.StepCompleted) and e.fact.task == "b" for e in commit.events):
                raise StoreFull("no room")
            return await super().commit(commit)

    store = Full(now=FakeClock().now)
    g = line("a", "b", "c")
    async with Runtime(store, skills=[g]) as rt:
        with pytest.raises(StoreFull):
            await rt.invoke(g, {})
        run = (await rt.runs())[0]
        assert run.status is Status.RUNNING and ran == {"a": 1, "b": 1}
    store.broken = False
    async with Runtime(store, skills=[g]) as rt:
        run = (await rt.recover())[0]
    assert run.state.items == ["a", "b", "c"] and ran == {"a": 1, "b": 2, "c": 1}


async def test_an_endless_loop_meets_a_limit_and_goes_on_with_a_higher_one() -> None:
    """T-66, §4.9: per invocation, typed, the state kept."""
    g = Graph("loop", S, step_limit=10)

    @g.node(start=True, after="turn")
    async def turn(state: S, ctx: Context) -> dict[str, Any]:
        await ctx.step(asyncio.sleep, 0)
        return {"n": state.n + 1}

    async with World().runtime(g) as rt:
        run = await rt.invoke(g, {})
        assert (run.stop_reason, run.state.n) == ("step_limit", 10), "recorded steps inside a node do not count"
        assert run.error is not None and run.error.code == "step_limit"
        run = await rt.resume(run.run_id, acknowledge="step_limit", step_limit=25)
        assert run.state.n == 35, "counted anew for each invocation"


# -- values -----------------------------------------------------------------------------------------


async def test_a_node_that_mutates_its_input_changes_nothing_anywhere() -> None:
    """L-13, T-60, §4.2: live result, stored state and the caller's dict agree."""

    class Nested(State):
        tree: dict[str, Any]

    g = Graph("g", Nested)
    refused: list[str] = []

    @g.node(start=True)
    def mutates(state: Nested) -> None:
        for attempt in (lambda: state.tree["list"].append(2), lambda: state.tree.update(x=1), lambda: setattr(state, "tree", {})):
            try:
                attempt()
            except TypeError as e:
                refused.append(str(e))

    given = {"tree": {"list": [1]}}
    async with World().runtime(g) as rt:
        run = await rt.invoke(g, given)
        stored = await rt.state(run.run_id)
    assert len(refused) == 3
    assert run.state.tree == stored["tree"] == given["tree"] == {"list": [1]}


async def test_every_old_checkpoint_shows_its_own_list() -> None:
    """L-14."""
    g = line("a", "b", "c")
    async with World().runtime(g) as rt:
        run = await rt.invoke(g, {"items": ["input"]})
        shown = [list(c.values["items"]) for c in await rt.checkpoints(run.run_id)]
        assert shown == [["input"], ["input", "a"], ["input", "a", "b"], ["input", "a", "b", "c"]]
        change = await rt.diff(run.run_id, *[c.checkpoint_id for c in await rt.checkpoints(run.run_id)][1:3])
    assert change["changed"] == {"items": {"from": ["input", "a"], "to": ["input", "a", "b"]}}
    assert change["added"] == change["removed"] == {}


async def test_folding_the_recorded_writes_gives_the_stored_values() -> None:
    """T-61, §4.5, for built-in and custom reducers."""

    class Many(State):
        log: Annotated[list[int], window(3)]
        seen: Annotated[dict[str, int], merge]
        total: Annotated[int, lambda old, new: old + new] = 0

    g = Graph("g", Many)

    @g.node(start=True)
    def fan(state: Many) -> list[Send]:
        return [Send("add", i) for i in range(10)]

    @g.node
    def add(state: Many, ctx: Context) -> dict[str, Any]:
        return {"log": ctx.payload, "seen": {str(ctx.payload): 1}, "total": ctx.payload}

    world = World()
    async with world.runtime(g) as rt:
        run = await rt.invoke(g, {})
    loaded = await world.store.load(run.run_id)
    assert loaded is not None
    again = Progress(run.run_id).walk(await world.store.rows(run.run_id)).checkpoint
    assert dict(again.values) == dict(run.values) == {"log": [7, 8, 9], "seen": {str(i): 1 for i in range(10)}, "total": 45}


# -- shapes -----------------------------------------------------------------------------------------


async def _waiting(world: World, g: Graph[S]) -> str:
    async with world.runtime(g) as rt:
        run = await rt.invoke(g, {})
        assert run.status is Status.WAITING_FOR_HUMAN
        return str(run.run_id)


def asking(name: str, *, then: str = "end", **options: Any) -> Graph[S]:
    g = Graph("asking", S, **options)

    async def ask(state: S, ctx: Context) -> dict[str, Any]:
        ran["ask"] += 1
        decision = await ctx.approve("Go on?")
        return {"items": f"{name} {decision.actor}"}

    g.node(name, start=True)(ask)
    g.node(then, after=name)(lambda state: {"items": then})
    return g


async def test_a_renamed_node_is_a_typed_error_and_the_answer_is_kept() -> None:
    """L-11, §3.2: a pending node that no longer exists is an error, never "done"."""
    world = World()
    rid = await _waiting(world, asking("ask"))
    async with world.runtime(asking("inquire")) as rt:
        assert (await rt.approve(rid, actor="ada")).status is Status.WAITING_FOR_HUMAN, "it is recorded, and somebody else goes on"
        with pytest.raises(FingerprintMismatch):
            await rt.resume(rid)
        with pytest.raises(NodeMissing, match="'ask', which asking no longer has"):
            await rt.resume(rid, upgrade=True)
        kept = await rt.get(rid)
        assert kept.status is Status.WAITING_FOR_HUMAN and [d.actor for d in kept.record.decisions] == ["ada"]
    async with world.runtime(asking("ask")) as rt:
        run = await rt.resume(rid)
    assert run.state.items == ["ask ada", "end"], "nobody was asked twice"


async def test_another_shape_goes_on_where_it_is_declared_or_asked_for() -> None:
    """§3.2: ``migrates=`` and ``upgrade``; the run then bears the new fingerprint."""
    before = asking("ask")
    changed = asking("ask", then="finish")
    for declared in (True, False):
        world = World()
        rid = await _waiting(world, before)
        now = asking("ask", then="finish", migrates=(before.program.fingerprint,)) if declared else changed
        async with world.runtime(now) as rt:
            if declared:
                run = await rt.approve(rid, actor="ada")
            else:
                await rt.approve(rid, actor="ada")
                with pytest.raises(FingerprintMismatch) as refused:
                    await rt.resume(rid)
                assert before.program.fingerprint in refused.value.hint and f"holdfast resume {rid} YOUR_FILE.py --upgrade" in refused.value.hint
                run = await rt.resume(rid, upgrade=True)
        assert run.state.items == ["ask ada", "finish"]
        assert run.fingerprint == now.program.fingerprint


async def test_a_worker_leaves_alone_what_it_has_no_code_for() -> None:
    """§10.11: it never claims the run, so that whoever has its code goes on with it at once."""
    world = World()
    g = asking("ask")
    async with world.runtime(g) as rt:
        rid = (await rt.submit(g, {})).run_id
    reports: list[Any] = []
    async with world.runtime(asking("inquire")) as rt:
        await rt.worker(until_idle=True, on_report=reports.append)
        run = await rt.get(rid)
    assert [r.passed.wanted for r in reports] == [g.program.fingerprint] and run.record.version == 2, "it says so, and leaves it"
    assert run.status is Status.PENDING and run.condition is Condition.QUEUED
    async with world.runtime(g) as rt:
        await rt.worker(until_idle=True)
        assert (await rt.get(rid)).status is Status.WAITING_FOR_HUMAN


# -- requests and threads ---------------------------------------------------------------------------


async def test_a_request_key_makes_a_request_once() -> None:
    """§3.5."""
    g = line("a")
    async with World().runtime(g) as rt:
        first = await rt.submit(g, {"n": 1}, key="k")
        again = await rt.submit(g, {"n": 1}, key="k")
        assert (again.run_id, again.deduplicated, first.deduplicated) == (first.run_id, True, False)
        with pytest.raises(RequestConflict):
            await rt.submit(g, {"n": 2}, key="k")
        run = await rt.invoke(g, {"n": 1}, key="k")
        assert run.run_id == first.run_id and run.deduplicated and run.status is Status.COMPLETED, "invoke drives what is there"
        assert ran == {"a": 1}
        once = await asyncio.gather(*(rt.invoke(g, {"n": 5}, key="other") for _ in range(5)))
    assert len({r.run_id for r in once}) == 1 and sum(not r.deduplicated for r in once) == 1
    assert ran == {"a": 2}


async def test_a_submitted_run_waits_for_its_time() -> None:
    """§10.15."""
    g = line("a")
    world = World()
    async with world.runtime(g) as rt:
        later = await rt.submit(g, {}, delay=dt.timedelta(minutes=5))
        at = await rt.submit(g, {}, at=later.created_at + dt.timedelta(minutes=10))
        with pytest.raises(InvalidInput, match="timezone"):
            await rt.submit(g, {}, at=dt.datetime(2030, 1, 1))  # noqa: DTZ001 - that is the mistake
        await rt.worker(until_idle=True)
        assert not ran
        world.clock.at += 300_000_000
        await rt.worker(until_idle=True)
        assert (await rt.get(later.run_id)).status is Status.COMPLETED and (await rt.get(at.run_id)).status is Status.PENDING


class Chat(State):
    say: str
    log: Annotated[list[str], window(50), thread]
    hurt: bool = False


def chat() -> Graph[Chat]:
    g = Graph("chat", Chat)

    @g.node(start=True)
    async def turn(state: Chat, ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"log": state.say}

    @g.node(after="turn")
    async def end(state: Chat, ctx: Context) -> None:
        if state.hurt:
            raise ValueError("no")
        if state.say == "ask":
            await ctx.approve("Go on?")

    return g


async def test_four_at_once_on_one_thread_all_count_in_order() -> None:
    """L-02, §4.15, §10.8."""
    g = chat()
    async with World().runtime(g) as rt:
        runs = await asyncio.gather(*(rt.invoke(g, {"say": str(i)}, thread_id="t") for i in range(4)))
        last = await rt.invoke(g, {"say": "4"}, thread_id="t")
    assert [r.status for r in runs] == [Status.COMPLETED] * 4
    assert [len(r.state.log) for r in runs] == [1, 2, 3, 4], "each saw all that came before it"
    assert last.state.log == ["0", "1", "2", "3", "4"], "in the order they were submitted"


async def test_a_thread_goes_on_after_runs_that_failed_were_canceled_or_never_began() -> None:
    """§4.15: failed and canceled included."""
    g = chat()
    async with World().runtime(g) as rt:
        await rt.invoke(g, {"say": "one"}, thread_id="t")
        failed = await rt.invoke(g, {"say": "two", "hurt": True}, thread_id="t")
        assert failed.status is Status.FAILED
        waiting = await rt.invoke(g, {"say": "ask"}, thread_id="t")
        queued = await rt.submit(g, {"say": "never"}, thread_id="t")
        await rt.cancel(queued.run_id)
        await rt.cancel(waiting.run_id)
        run = await rt.invoke(g, {"say": "three"}, thread_id="t")
        assert run.state.log == ["one", "two", "ask", "three"]
        history = await rt.history("t")
    assert [h["values"]["log"] for h in history if h["metadata"]["source"] == "loop" and h["metadata"]["writes"].get("turn")] == [
        ["one"], ["one", "two"], ["one", "two", "ask"], ["one", "two", "ask", "three"]
    ]
    assert all(set(h) >= {"values", "metadata", "createdAt", "nextTasks"} for h in history)
    assert [h["createdAt"] for h in history] == sorted(h["createdAt"] for h in history)
    assert history[1]["metadata"] == {"source": "loop", "step": 1, "writes": {"turn": {"log": "one"}}}


async def test_a_run_that_was_canceled_before_it_began_begins_when_it_is_resumed() -> None:
    """§2.4, §7.1: its one checkpoint holds its input; it starts from that, at its first step."""
    g = chat()
    async with World().runtime(g) as rt:
        queued = await rt.submit(g, {"say": "one"}, thread_id="t")
        assert (await rt.cancel(queued.run_id)).status is Status.CANCELED
        run = await rt.resume(queued.run_id)
        assert (run.status, run.state.log) == (Status.COMPLETED, ["one"])
        assert [e.type for e in await rt.events(run.run_id)].count("step.completed") == 2, "its two nodes, once each"


async def test_a_second_writer_whose_clock_is_behind_is_not_lost() -> None:
    """L-03, §3.4: order is decided by numbers and lanes, never by a clock."""
    g = chat()
    world = World()
    async with world.runtime(g) as rt:
        await rt.invoke(g, {"say": "one"}, thread_id="t")
    world.clock.at -= 30_000_000
    async with world.runtime(g) as behind:
        late = await behind.invoke(g, {"say": "two"}, thread_id="t")
        assert late.state.log == ["one", "two"]
    world.clock.at += 30_000_000
    async with world.runtime(g) as rt:
        run = await rt.invoke(g, {"say": "three"}, thread_id="t")
    assert run.state.log == ["one", "two", "three"]


# -- streams ----------------------------------------------------------------------------------------


async def test_chunks_are_streamed_with_the_attempt_that_made_them() -> None:
    """§13.6, from the loop and from the thread of a plain node."""
    g = Graph("g", S)

    @g.node(start=True)
    async def talks(state: S, ctx: Context) -> None:
        for word in ("a", "b"):
            ctx.emit(word)
            await asyncio.sleep(0)

    @g.node(after="talks")
    def shouts(state: S, ctx: Context) -> None:
        ctx.emit("C")

    async with World().runtime(g) as rt:
        run = await rt.submit(g, {})
        chunks: list[Any] = []

        async def listen() -> None:
            async for chunk in rt.stream(run.run_id, modes=["custom"]):
                chunks.append(chunk)

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0)
        await rt.worker(until_idle=True)
        await asyncio.wait_for(listening, 20)
        assert [c.data for c in chunks] == ["a", "b", "C"]
        assert chunks[0].attempt_id == f"{run.run_id}.1.talks@1"
        assert [c async for c in rt.stream(run.run_id, modes=["custom"])] == [], "it has ended: nothing is waited for"


async def test_a_flow_s_inputs_are_named() -> None:
    @flow("f")
    async def f(ctx: Context, a: int, b: int = 2) -> int:
        return a + b

    async with World().runtime(f) as rt:
        assert await rt.run(f, 1) == 3
        assert await rt.run(f, 1, b=5) == 6
        with pytest.raises(InvalidInput, match="'f' needs 'a'"):
            await rt.invoke(f, {"b": 1})


# -- cut short --------------------------------------------------------------------------------------


async def test_a_driving_that_is_cancelled_gives_its_run_back() -> None:
    """§10.4: a caller that stops waiting leaves nothing behind that only its own end could free."""
    g = Graph("g", S)
    gate = asyncio.Event()
    patience = asyncio.timeout(60)

    @g.node(start=True)
    async def before(state: S) -> dict[str, Any]:
        ran["before"] += 1
        return {"items": "before"}

    @g.node(after="before")
    async def slow(state: S) -> dict[str, Any]:
        ran["slow"] += 1
        if ran["slow"] == 1:
            patience.reschedule(asyncio.get_running_loop().time())
        await gate.wait()
        return {"items": "slow"}

    async with World().runtime(g) as rt:
        with pytest.raises(TimeoutError):
            async with patience:
                await rt.invoke(g, {})
        left = (await rt.runs())[0]
        assert left.status is Status.RUNNING and left.condition is Condition.QUEUED
        gate.set()
        run = await rt.resume(left.run_id)
    assert run.state.items == ["before", "slow"] and ran == {"before": 1, "slow": 2}
