"""Replay and fork: new runs out of old ones (§7.6–7.8)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, flow
from holdfast.core import codec, ids
from holdfast.core.consistency import diagnose, ok
from holdfast.core.environments import PRODUCTION, Environment
from holdfast.core.errors import (
    CheckpointNotFound,
    InvalidInput,
    RequestConflict,
    RestrictedOption,
    RunNotFound,
    UsageError,
)
from tests.engine.outside import Crash, House, World


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


class Outside(World):
    """Also a model that is asked, and thinks of something new each time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def think(self, about: str) -> str:
        self.asked += 1
        return f"thought {self.asked} about {about}"

    @property
    def calls(self) -> int:
        return self.asked + len(self.done)


class Notes(State):
    topic: str
    draft: str = ""
    log: Annotated[list[str], append]
    receipt: str = ""


def notes(world: Outside, **effect: Any) -> Graph[Notes]:
    graph = Graph("notes", Notes, version="1")

    @graph.node(start=True)
    async def write(state: Notes, ctx: Context) -> dict[str, Any]:
        return {"draft": await ctx.step(world.think, state.topic), "log": ["wrote"]}

    @graph.node(after="write")
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        await ctx.approve("Publish?", show=state.draft)
        return {"log": ["asked"]}

    @graph.node(after="ask")
    async def publish(state: Notes, ctx: Context) -> dict[str, Any]:
        ctx.send("webhook", {"body": state.draft})
        ctx.record("published", "draft", state.draft)
        return {"receipt": await ctx.effect(world.upload, state.draft, **effect), "log": ["published"]}

    return graph


async def published(rt: Runtime, graph: Graph[Notes]) -> Any:
    run = await rt.invoke(graph, {"topic": "owls"}, thread_id="t")
    run = await rt.approve(run.run_id, actor="ada")
    assert run.status == "completed" and run.state.receipt == "receipt 1"
    return run


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


async def fingerprint(rt: Runtime, run_id: str) -> str:
    """Every row of a run as it is kept: its record, log, effects, inbox, intents and ledger."""
    store, h = rt.store, hashlib.sha256()
    found = await store.get(run_id)
    assert found is not None
    h.update(codec.encode_run(found[0]))
    for row in await store.rows(run_id):
        h.update(row.data + row.hash)
    for effect in await store.effects(run_id):
        h.update(codec.encode_effect(effect))
    for thing in (await store.intents(run_id), await store.inbox(run_id, taken=True), await store.ledger(run_id)):
        h.update(repr(thing).encode())
    return h.hexdigest()


async def sound(rt: Runtime, run_id: str) -> bool:
    """Whether the checker finds no error in a run."""
    found = await rt.store.get(run_id)
    assert found is not None
    rows = await rt.store.rows(run_id)
    problems = diagnose(run_id, *found, rt.store.now(), rows, effects=await rt.store.effects(run_id), intents=await rt.store.intents(run_id))
    return ok(problems)


# -- replay -------------------------------------------------------------------------------------------


async def test_a_replay_calls_nothing_outside(house: House) -> None:
    """§7.6, T-46, T-49, T-72: records are served, the approval is asked again, intents are not sent again, the source stays."""
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    before, calls = await fingerprint(rt, source.run_id), world.calls
    run = await rt.replay(source.run_id)
    assert (run.status, run.waits[0].prompt) == ("waiting_for_human", "Publish?"), "T-49: asked again"
    run = await rt.approve(run.run_id, actor="bob")
    assert run.status == "completed" and dict(run.state) == dict(source.state)
    assert world.calls == calls
    assert await fingerprint(rt, source.run_id) == before, "T-46"
    assert await rt.store.intents(run.run_id) == [], "T-72"
    assert (run.source_run_id, run.lineage_root, run.thread_id) == (source.run_id, source.run_id, f"t~{run.run_id}")
    assert [e.status.value for e in await rt.effects(run.run_id)] == ["reused"]
    assert await sound(rt, run.run_id)


async def test_a_recorded_replay_passes_through_running(house: House) -> None:
    """T-03, §2.5: there is no edge from replaying to completed, nor to a wait."""
    world = Outside()

    @flow("short")
    async def short(ctx: Context) -> str:
        thought: str = await ctx.step(world.think, "owls")
        return f"{thought} {await ctx.effect(world.upload, thought)} {ctx.random()}"

    rt = await house.process(short)
    source = await rt.invoke(short, {})
    run = await rt.replay(source.run_id)
    assert (run.status, run.result, world.calls) == ("completed", source.result, 2)
    told = [k for k in await kinds(rt, run.run_id) if k.startswith("run.")]
    assert told == ["run.submitted", "run.replayed", "run.claimed", "run.started", "run.replaying", "run.resumed", "run.completed"]
    [resumed] = [e for e in await rt.events(run.run_id) if e.type == "run.resumed"]
    assert resumed.payload["cause"] == "replayed"


async def test_the_first_unrecorded_call_ends_replaying(house: House) -> None:
    """§7.6: the source failed in the middle; what it never came to is done."""
    world, broken = Outside(), [True]

    @flow("half")
    async def half(ctx: Context) -> str:
        one: str = await ctx.step(world.think, "one")
        if broken[0]:
            raise RuntimeError("later")
        return one + " " + await ctx.effect(world.upload, one)

    rt = await house.process(half)
    source = await rt.invoke(half, {})
    assert source.status == "failed"
    broken[0] = False
    run = await rt.replay(source.run_id)
    assert (run.status, run.result, world.asked, len(world.done)) == ("completed", "thought 1 about one receipt 1", 1, 1)
    told = await kinds(rt, run.run_id)
    assert told.index("run.replaying") < told.index("run.resumed") < told.index("side_effect.attempted") < told.index("run.completed")


async def test_a_replay_of_a_fork_of_a_replay_calls_nothing_outside(house: House) -> None:
    """T-47, must show 2."""
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    replay = await rt.approve((await rt.replay(source.run_id)).run_id)
    fork = await rt.approve((await rt.fork(replay.run_id, set={"draft": "mine"}, reason="better", actor="ada")).run_id)
    assert fork.status == "completed" and world.done[-1] == "mine" and world.calls == 3
    again = await rt.approve((await rt.replay(fork.run_id)).run_id)
    assert again.status == "completed" and dict(again.state) == dict(fork.state)
    assert world.calls == 3, "zero outside calls"
    assert {r.lineage_root for r in (source, replay, fork, again)} == {source.run_id}


async def test_an_unfinished_replay_is_answered_from_the_whole_lineage(house: House) -> None:
    """T-47: the replay stopped early; its own replay finds the rest in the source."""
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    stopped = await rt.replay(source.run_id)
    await rt.cancel(stopped.run_id)
    again = await rt.approve((await rt.replay(stopped.run_id)).run_id)
    assert (again.status, again.state.receipt, world.calls) == ("completed", "receipt 1", 2)


async def test_loops_are_answered_in_order(house: House) -> None:
    """T-40: three visits, three records, three keys."""
    world = Outside()

    class Count(State):
        n: int = 0
        seen: Annotated[list[str], append]

    graph = Graph("loop", Count)

    @graph.node(start=True)
    async def turn(state: Count, ctx: Context) -> dict[str, Any]:
        return {"n": state.n + 1, "seen": [await ctx.effect(world.upload, "same")]}

    graph.branch("turn", lambda s: "turn" if s.n < 3 else None)
    rt = await house.process(graph)
    source = await rt.invoke(graph, {})
    assert list(source.state.seen) == ["receipt 1", "receipt 2", "receipt 3"]
    assert len({e.key for e in await rt.effects(source.run_id)}) == 3
    run = await rt.replay(source.run_id)
    assert run.status == "completed" and run.state == source.state and len(world.done) == 3


async def test_reexecute_opens_records_of_its_own(house: House) -> None:
    """T-42: two records, both linked to the step; the source's stays what later replays find."""
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    before = await fingerprint(rt, source.run_id)
    run = await rt.approve((await rt.replay(source.run_id, effects="reexecute")).run_id)
    assert (run.state.receipt, len(world.done), world.asked) == ("receipt 2", 2, 1)
    [old], [new] = await rt.effects(source.run_id), await rt.effects(run.run_id)
    assert (old.step, old.task, old.path) == (new.step, new.task, new.path) and old.key != new.key
    later = await rt.approve((await rt.replay(source.run_id)).run_id)
    assert later.state.receipt == "receipt 1" and len(world.done) == 2
    assert await fingerprint(rt, source.run_id) == before


async def test_require_human_is_a_pause_that_goes_on(house: House) -> None:
    """T-43, must show 2: a wait with a checkpoint, not a failure."""
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    run = await rt.approve((await rt.replay(source.run_id, effects="require_human")).run_id)
    [wait] = run.waits
    assert (run.status, wait.kind, wait.show["reason"]) == ("waiting_for_human", "gate", "side_effect_replay")
    assert (await rt.checkpoint(run.run_id)).boundaries == ("waiting_for_human",)
    run = await rt.approve(run.run_id)
    assert (run.status, run.state.receipt, len(world.done)) == ("completed", "receipt 1", 1)


async def test_require_human_may_do_it_again(house: House) -> None:
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    run = await rt.approve((await rt.replay(source.run_id, effects="require_human")).run_id)
    await rt.decide(run.run_id, "reexecute", actor="ada")
    run = await rt.resume(run.run_id)
    assert (run.status, run.state.receipt, len(world.done)) == ("completed", "receipt 2", 2)


async def test_an_environment_only_makes_it_stricter(house: House) -> None:
    """§6.6, §8.3: production serves what is recorded, whatever was asked for."""
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph, environment="production")
    source = await published(rt, graph)
    run = await rt.approve((await rt.replay(source.run_id, effects="reexecute")).run_id)
    assert (run.state.receipt, len(world.done)) == ("receipt 1", 1)
    with pytest.raises(InvalidInput, match="effects='sometimes' is not known"):
        await rt.replay(source.run_id, effects="sometimes")


async def test_failures_are_served_too(house: House) -> None:
    """§6.9: the node caught it then, and catches it now."""
    world = Outside()

    async def refused(text: str) -> str:
        world.asked += 1
        raise ConnectionError("refused")

    @flow("careful")
    async def careful(ctx: Context) -> str:
        try:
            return str(await ctx.effect(refused, "a"))
        except ConnectionError as e:
            return f"no: {e}"

    rt = await house.process(careful)
    source = await rt.invoke(careful, {})
    run = await rt.replay(source.run_id)
    assert (run.result, source.result, world.asked) == ("no: refused", "no: refused", 1)


async def test_what_waited_for_the_world_is_not_waited_for_again(house: House) -> None:
    """§7.6: timers are recorded calls; only people are asked again."""

    @flow("slow")
    async def slow(ctx: Context) -> str:
        await ctx.sleep(20)
        return "done"

    rt = await house.process(slow)
    source = await rt.invoke(slow, {})
    assert source.status == "completed"
    at = house.clock.at
    run = await rt.replay(source.run_id)
    assert (run.status, house.clock.at) == ("completed", at)


async def test_a_crashed_replay_goes_on_as_a_replay(house: House) -> None:
    world = Outside()

    @flow("two")
    async def two(ctx: Context) -> list[str]:
        return [await ctx.effect(world.upload, "a"), await ctx.effect(world.upload, "b")]

    rt = await house.process(two)
    source = await rt.invoke(two, {})
    made = await rt.replay(source.run_id, drive=False)
    assert (made.status, made.condition) == ("pending", "queued")
    other = await house.process(two)
    await other.worker(until_idle=True)
    run = await other.get(made.run_id)
    assert (run.status, list(run.result), world.calls) == ("completed", ["receipt 1", "receipt 2"], 2)


async def test_a_replay_from_a_step(house: House) -> None:
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    run = await rt.replay(source.run_id, from_step="publish")
    assert run.status == "completed" and world.calls == 2 and run.state == source.state
    with pytest.raises(CheckpointNotFound, match="never reached"):
        await rt.replay(source.run_id, from_step="nowhere")
    with pytest.raises(CheckpointNotFound):
        await rt.replay(source.run_id, from_checkpoint=f"{source.run_id}.c999")
    with pytest.raises(RunNotFound):
        await rt.replay("nobody")
    with pytest.raises(InvalidInput, match="the run id is empty"):
        await rt.replay("")


async def test_a_replay_that_names_itself_asks_for_the_same_thing(house: House) -> None:
    """§6.3: the run's id in an effect's arguments is no other request."""
    world = Outside()

    @flow("named")
    async def named(ctx: Context) -> str:
        return str(await ctx.effect(world.upload, f"notes-{ctx.run_id}.md"))

    rt = await house.process(named)
    source = await rt.invoke(named, {})
    run = await rt.replay(source.run_id)
    assert (run.status, run.result, len(world.done)) == ("completed", "receipt 1", 1)


async def test_a_replay_with_other_arguments_is_a_conflict(house: House) -> None:
    """T-41: the code changed what it asks for; no stale result is given."""
    world, text = World(), ["a"]

    @flow("changed")
    async def changed(ctx: Context) -> str:
        return str(await ctx.effect(world.upload, text[0]))

    rt = await house.process(changed)
    source = await rt.invoke(changed, {})
    text[0] = "b"
    run = await rt.replay(source.run_id)
    assert (run.status, run.stop_reason, world.done) == ("failed", "effect_conflict", ["a"])


# -- fork ---------------------------------------------------------------------------------------------


async def test_a_fork_publishes_another_text(house: House) -> None:
    """§7.7, must show 3, T-46, T-49: the edit takes the place of the last write, and all that came of it is done anew."""
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    before = await fingerprint(rt, source.run_id)
    run = await rt.fork(source.run_id, set={"draft": "mine"}, reason="better", actor="ada")
    assert (run.status, run.waits[0].show) == ("waiting_for_human", "mine"), "T-49: what was never seen was never approved"
    run = await rt.approve(run.run_id)
    assert (run.status, world.done) == ("completed", ["thought 1 about owls", "mine"])
    assert list(run.state.log) == ["wrote", "asked", "published"]
    [patched] = [e for e in await rt.events(run.run_id) if e.type == "state.patched"]
    assert (patched.actor, patched.payload["reason"], patched.payload["channels"]) == ("ada", "better", ["draft"])
    [intent] = await rt.store.intents(run.run_id)
    assert intent.key != (await rt.store.intents(source.run_id))[0].key
    assert await fingerprint(rt, source.run_id) == before
    assert await sound(rt, run.run_id)


async def test_a_fork_without_edits_repeats_no_effect(house: House) -> None:
    """§6.6: a record under the key is reused in any run; T-72: nor is its intent sent again."""
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    run = await rt.fork(source.run_id)
    assert (run.status, run.state.receipt, len(world.done)) == ("completed", "receipt 1", 1)
    assert await rt.store.intents(run.run_id) == []


async def test_a_fork_that_reexecutes_does(house: House) -> None:
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    run = await rt.fork(source.run_id, effects="reexecute")
    assert (run.status, run.state.receipt, len(world.done)) == ("completed", "receipt 2", 2)
    assert len(await rt.store.intents(run.run_id)) == 1


async def test_a_fork_of_a_failed_run_from_its_head(house: House) -> None:
    world, broken = Outside(), [True]
    graph = notes(world)

    @graph.node(after="publish")
    async def tell(state: Notes) -> None:
        if broken[0]:
            raise RuntimeError("down")

    rt = await house.process(graph)
    run = await rt.invoke(graph, {"topic": "owls"})
    run = await rt.approve(run.run_id)
    assert run.status == "failed"
    broken[0] = False
    fork = await rt.fork(run.run_id)
    assert fork.status == "completed" and world.calls == 2


async def test_a_fork_with_other_inputs_begins_at_the_start(house: House) -> None:
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    run = await rt.fork(source.run_id, inputs={"topic": "cats"})
    assert run.waits[0].show == "thought 2 about cats"


async def test_a_fork_never_touches_an_unknown_effect_of_its_source(house: House) -> None:
    """T-46, §6.5: asked in the fork, decided in the fork."""
    world = Outside()
    world.crash_at = 1
    graph = notes(world)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {"topic": "owls"})
    with pytest.raises(Crash):
        await rt.approve(run.run_id)
    house.kill(rt)
    other = await house.process(graph)
    await other.resume(run.run_id)
    before = await fingerprint(other, run.run_id)
    fork = await other.fork(run.run_id)
    assert fork.status == "waiting_for_human" and fork.waits[0].kind == "effect" and len(world.done) == 1
    await other.decide(fork.run_id, "reexecute", actor="ada")
    fork = await other.resume(fork.run_id)
    assert fork.status == "completed" and len(world.done) == 2
    assert await fingerprint(other, run.run_id) == before


@pytest.mark.parametrize("option", ["environment", "capabilities", "inherit_approvals", "tenant_id", "unattended", "policy_snapshot_id"])
async def test_what_raises_privileges_is_refused_by_name(house: House, option: str) -> None:
    """T-48: denied by default, everywhere."""
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    with pytest.raises(RestrictedOption, match=option):
        await rt.fork(source.run_id, **{option: "x"})


async def test_an_environment_restricts_options_by_name(house: House) -> None:
    """T-48: an allowed override passes, a restricted one is refused by name, nonsense is a usage error."""
    world = Outside()
    graph = notes(world)
    narrow = Environment(name="narrow", options=frozenset({"set", "reason"}))
    rt = await house.process(graph, environment=narrow)
    source = await published(rt, graph)
    assert (await rt.fork(source.run_id, set={"draft": "x"}, reason="r")).status == "waiting_for_human"
    with pytest.raises(RestrictedOption, match="'tags'"):
        await rt.fork(source.run_id, tags=["a"])
    with pytest.raises(UsageError, match="'colour'"):
        await rt.fork(source.run_id, colour="red")
    with pytest.raises(InvalidInput, match="nothing_of_the_kind"):
        await rt.fork(source.run_id, set={"nothing_of_the_kind": 1})
    assert "delay" not in (PRODUCTION.options or ())


async def test_request_keys_of_forks_and_replays(house: House) -> None:
    """§3.5: every operation that creates a run takes one."""
    world = Outside()
    graph = notes(world)
    rt = await house.process(graph)
    source = await published(rt, graph)
    one = await rt.fork(source.run_id, set={"draft": "x"}, key="k")
    two = await rt.fork(source.run_id, set={"draft": "x"}, key="k")
    assert one.run_id == two.run_id and two.deduplicated
    with pytest.raises(RequestConflict):
        await rt.fork(source.run_id, set={"draft": "y"}, key="k")


# -- what forks are called --------------------------------------------------------------------------


def test_a_name_is_shortened_where_too_little_room_is_left() -> None:
    for name in ("a" * 485, "é" * 242, "a"):
        assert ids.shorten(name) == name
    for name in ("a" * 486, "é" * 243, "é" * 256, "~" * 512):
        short = ids.shorten(name)
        assert len(short.encode()) <= 485 and ids.shorten(short) == short and short != ids.shorten(name + "b")
        assert ids.is_wellformed(f"{short}~{'0' * 26}")


def plain() -> Graph[Notes]:
    graph = Graph("plain", Notes, version="1")

    @graph.node(start=True)
    async def write(state: Notes) -> dict[str, Any]:
        return {"draft": state.topic}

    return graph


@pytest.mark.parametrize("thread", [None, "talk", "a~b", "é" * 256, "~", "talk~01m8fvtbvyfqhpkygfdc7xr1qb"])
async def test_forks_of_forks_have_threads_that_can_be_named(house: House, thread: str | None) -> None:
    """§7.8: each lies beside the first thread, not beside the one before it, so that no generation makes the name longer."""
    graph = plain()
    rt = await house.process(graph)
    run = first = await rt.invoke(graph, {"topic": "tides"}, thread_id=thread, session_key="mine~s")
    for generation in range(4):
        run = await (rt.fork if generation % 2 else rt.replay)(run.run_id)
        own = f"{ids.shorten(first.thread_id)}~{run.run_id}"
        assert run.thread_id == own
        assert run.record.session_key == (own if generation else f"mine~s~{run.run_id}"), "later turns have their thread as their session"
        assert await rt.history(run.thread_id)
        run = await rt.invoke(graph, {"topic": "moons"}, thread_id=run.thread_id)
        assert run.thread_id == own, "a later turn of the fork's thread; what is forked from it lies beside the first thread too"
    assert await rt.check() == []


async def test_a_thread_that_a_user_named_after_a_run_stays_whole(house: House) -> None:
    graph = plain()
    rt = await house.process(graph)
    run = await rt.invoke(graph, {"topic": "tides"})
    about = await rt.invoke(graph, {"topic": "tides"}, thread_id=f"about~{run.run_id}")
    fork = await rt.fork(about.run_id)
    assert fork.thread_id == f"about~{run.run_id}~{fork.run_id}"
