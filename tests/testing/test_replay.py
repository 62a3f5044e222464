"""A recorded run held against the code as it is now: nothing outside is called, and what differs is told (§7.6, §4.12)."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from tests.engine.support import FakeClock
from tests.histories.make import SKILLS
from tests.testing.record import publish

from holdfast import Context, Graph, Retry, Runtime, Send, State, Tool, append, flow, thread
from holdfast.core import superstep
from holdfast.core.blobs import LARGE
from holdfast.core.errors import InvalidInput, RunNotFound, StoreCorrupt
from holdfast.stores import MemoryStore
from holdfast.testing import ReplayDiffers, Replayed, assert_replays, replay_check

HERE = Path(__file__).resolve().parent
HISTORY = HERE.parent / "histories" / "0.1.0" / "workspace"


class Notes(State):
    topic: str
    draft: str = ""
    log: Annotated[list[str], append]
    receipt: str = ""


class Outside:
    """Counts every call that reaches it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def think(self, about: str) -> str:
        self.calls.append("think")
        return f"All about\n{about}\n"

    async def polish(self, text: str) -> str:
        self.calls.append("polish")
        return text.upper()

    async def upload(self, text: str) -> str:
        self.calls.append("upload")
        return "receipt"


def notes(world: Outside, change: str = "") -> Graph[Notes]:
    """The code as it was, or with one change."""
    graph = Graph("notes", Notes, version="1")

    @graph.node(start=True)
    async def write(state: Notes, ctx: Context) -> dict[str, Any]:
        if change == "first":
            await ctx.step(world.polish, "x")
        draft = await ctx.step(world.think, f"{state.topic}!" if change == "arguments" else state.topic)
        if change == "new":
            draft = await ctx.step(world.polish, draft)
        if change == "caught":
            try:
                await ctx.step(world.polish, draft)
            except Exception:
                draft = "it went on"
        return {"draft": draft.replace("about", "ABOUT") if change == "value" else draft, "log": ["wrote"]}

    @graph.node(after="write")
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        await ctx.approve("Really?" if change == "question" else "Publish?", show=state.draft)
        if change == "outcome":
            ctx.report("degraded")
        return {"log": ["asked"]}

    @graph.node(after="ask")
    async def publish(state: Notes, ctx: Context) -> dict[str, Any]:
        if change == "fails":
            raise ValueError("the printer is out of paper")
        at = ctx.now().year
        if change == "missing":
            return {"receipt": "none"}
        text = "other" if change == "effect" else state.draft
        call = ctx.step if change == "kind" else ctx.effect
        return {"receipt": f"{await call(world.upload, text)} of {at}"}

    if change == "routing":

        @graph.node(after="write")
        async def print_it(state: Notes, ctx: Context) -> None:
            await ctx.step(world.polish, "paper")

    return graph


async def recorded(world: Outside, tmp_path: Path) -> Path:
    """A run of the code as it was, exported; the outside is counted from here."""
    graph = notes(world)
    async with Runtime("memory:", skills=[graph]) as rt:
        run = await rt.invoke(graph, {"topic": "owls"})
        await rt.approve(run.run_id, actor="ada")
        await rt.export(run.run_id, tmp_path)
    assert world.calls == ["think", "upload"]
    world.calls.clear()
    return tmp_path


TOLD = {
    "first": ("other_call", "step 1 write, call 0", "step think", "step polish('x')"),
    "new": ("new_call", "step 1 write, call 1", "no call here", "step polish('All about\\nowls\\n')"),
    "caught": ("new_call", "step 1 write, call 1", "no call here", "step polish('All about\\nowls\\n')"),
    "arguments": ("arguments", "step 1 write, call 0", "step think, with what was given to it then", "step think('owls!')"),
    "question": ("other_call", "step 2 ask, call 0", "approval 'Publish?'", "approval 'Really?'"),
    "effect": ("arguments", "step 3 publish, call 1", "effect upload, with what was given to it then", "effect upload('other')"),
    "kind": ("other_call", "step 3 publish, call 1", "effect upload", "step upload('All about\\nowls\\n')"),
    "missing": ("missing_call", "step 3 publish, call 1", "effect upload", "no call here"),
    "routing": ("routing", "step 2", "ask", "ask, print_it"),
    "outcome": ("outcome", "step 2 ask", "ok", "degraded"),
    "value": ("arguments", "step 3 publish, call 1", "effect upload, with what was given to it then", "effect upload('All ABOUT\\nowls\\n')"),
}


async def test_the_same_code_does_the_same(tmp_path: Path) -> None:
    """All four calls, a person's answer among them, come from the recording."""
    world = Outside()
    replayed = await assert_replays(notes(world), await recorded(world, tmp_path))
    assert (replayed.same, replayed.served, replayed.same_shape, replayed.status) == (True, 4, True, "completed")
    assert str(replayed) == f"notes does what run {replayed.run_id} recorded: 4 recorded calls answered, completed"
    assert world.calls == []


@pytest.mark.parametrize("change", TOLD)
async def test_a_change_is_told_where_it_is(change: str, tmp_path: Path) -> None:
    """Which call at which place changed, expected and got; nothing outside is called on the way."""
    world = Outside()
    folder = await recorded(world, tmp_path)
    with pytest.raises(ReplayDiffers) as e:
        await assert_replays(notes(world, change), folder)
    first = e.value.replayed.differences[0]
    assert (first.kind, first.where, first.expected, first.got) == TOLD[change]
    assert world.calls == []


async def test_values_are_told_by_channel_as_a_difference_of_lines(tmp_path: Path) -> None:
    world = Outside()
    replayed = await replay_check(notes(world, "value"), await recorded(world, tmp_path))
    assert [(d.kind, d.where) for d in replayed.differences] == [("arguments", "step 3 publish, call 1"), ("value", "channel draft")]
    assert str(replayed.differences[1]).splitlines() == [
        "channel draft: another value",
        "    --- recorded", "    +++ now", "    @@ -1,2 +1,2 @@", "    -All about", "    +All ABOUT", "     owls",
    ]


async def test_another_end_is_told(tmp_path: Path) -> None:
    """A node that fails now: how it ends, and the calls that came no more are not listed on top of it."""
    world = Outside()
    replayed = await replay_check(notes(world, "fails"), await recorded(world, tmp_path))
    assert [d.kind for d in replayed.differences] == ["end", "value"]
    assert replayed.differences[0].expected == "completed"
    assert replayed.differences[0].got == "failed (step_failed): ValueError: the printer is out of paper"


async def test_a_changed_shape_alone_is_no_difference(tmp_path: Path) -> None:
    """A node that this run never came to; the report says that a resting run would need an upgrade."""
    world = Outside()
    folder = await recorded(world, tmp_path)
    graph = notes(world)

    @graph.node()
    async def elsewhere(state: Notes) -> None: ...

    replayed = await replay_check(graph, folder)
    assert (replayed.same, replayed.same_shape) == (True, False)
    graph = notes(world, "new")
    graph.node("elsewhere")(elsewhere)
    assert "its graph has changed since" in str(await replay_check(graph, folder))


async def test_a_recording_that_rests(tmp_path: Path) -> None:
    """It is compared as far as it goes: the same waits stay open; another question there is told, and so is a call before it."""
    world = Outside()
    graph = notes(world)
    async with Runtime("memory:", skills=[graph]) as rt:
        run = await rt.invoke(graph, {"topic": "owls"})
        await rt.export(run.run_id, tmp_path)
    replayed = await replay_check(graph, tmp_path)
    assert (replayed.same, replayed.status) == (True, "waiting_for_human")
    changed = await replay_check(notes(world, "question"), tmp_path)
    assert [(d.kind, d.got) for d in changed.differences] == [("other_call", "approval 'Really?'")]


@pytest.mark.parametrize("how", ["denied", "canceled", "failed", "forked", "timed_out"])
async def test_every_end_of_a_run(how: str, tmp_path: Path) -> None:
    """A denial is given again; a cancel ends the recording; a failure fails again; a fork starts from its own beginning."""
    world, clock = Outside(), FakeClock()
    graph = notes(world, "fails" if how == "failed" else "")
    async with Runtime(MemoryStore(now=clock.now), skills=[graph], clock=clock) as rt:
        run = await rt.invoke(graph, {"topic": "owls"})
        match how:
            case "denied":
                run = await rt.deny(run.run_id, reason="no", actor="ada")
            case "canceled":
                run = await rt.cancel(run.run_id)
            case "failed":
                run = await rt.approve(run.run_id)
            case "forked":
                run = await rt.fork(run.run_id, set={"draft": "mine"})
                run = await rt.approve(run.run_id)
                assert run.state.draft == "mine"
            case "timed_out":
                clock.at += 8 * 86_400_000_000
                await rt.worker(until_idle=True)
                run = await rt.get(run.run_id)
                assert run.stop_reason == "wait_timed_out"
        await rt.export(run.run_id, tmp_path)
    calls = len(world.calls)
    replayed = await replay_check(graph, tmp_path)
    assert replayed.same, str(replayed)
    assert replayed.status == str(run.status)
    assert len(world.calls) == calls
    assert (await replay_check(notes(world, "first"), tmp_path)).same is (how == "forked"), "the fork began after that"


@pytest.mark.parametrize("run_id", [p.name for p in sorted(HISTORY.iterdir()) if p.is_dir()])
async def test_runs_of_a_past_release(run_id: str) -> None:
    """§1.8: each of the seven, whatever became of it, does what it did: fans, retries, effects, waits, flows."""
    meta = json.loads((HISTORY / run_id / "meta.json").read_text("utf-8"))
    skill = next(s for s in SKILLS if s.program.id == meta["skill_id"])
    replayed = await assert_replays(skill, HISTORY / run_id)  # type: ignore[arg-type]
    assert replayed.run_id == run_id
    assert replayed.served >= (4 if meta["status"] == "completed" else 0)


async def test_a_skip_in_the_words_of_a_past_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§1.8: the outcome of a node after skipped ones is worded otherwise since 0.1.0; that is no difference."""
    graph = Graph("skips", Notes, version="1")

    @graph.node(start=True, when=lambda state: False)
    def first(state: Notes) -> None: ...

    @graph.node(after="first")
    def second(state: Notes) -> None: ...

    with monkeypatch.context() as before:
        before.setattr(superstep, "ALL_SKIPPED", "skipped: all it comes after was skipped")
        async with Runtime("memory:", skills=[graph]) as rt:
            run = await rt.invoke(graph, {"topic": "owls"})
            assert "skipped: all it comes after was skipped" in [e.payload.get("outcome") for e in await rt.events(run.run_id)]
            await rt.export(run.run_id, tmp_path)
    replayed = await replay_check(graph, tmp_path)
    assert (replayed.same, replayed.status) == (True, "completed"), str(replayed)


def test_the_sample_in_the_folder(holdfast_replay: Callable[..., Replayed]) -> None:
    """As users keep one beside their tests, with the fixture."""
    assert holdfast_replay(publish, HERE / "recorded" / "approved").status == "completed"


# -- everything that a call can be -------------------------------------------------------------------


def everything(world: Outside) -> Any:
    tries = [0]

    def shaky(text: str) -> str:
        tries[0] += 1
        if tries[0] == 1:
            raise ConnectionError("busy")
        world.calls.append("shaky")
        return text

    async def big() -> str:
        world.calls.append("big")
        return "x" * (LARGE * 2)

    def breaks() -> None:
        world.calls.append("breaks")
        raise ValueError("no")

    @flow("other")
    async def other(ctx: Context, n: int) -> int:
        world.calls.append("other")
        return n + 1

    @flow("everything")
    async def everything(ctx: Context, name: str) -> list[Any]:
        got: list[Any] = [await ctx.step(shaky, name, retry=Retry(3)), len(await ctx.step(big)), ctx.random(), str(ctx.uuid())]
        got += await ctx.gather(ctx.step(world.think, "a"), ctx.effect(world.upload, ctx.run_id))
        got += await ctx.map(world.polish, ["b", "c"])
        got.append(list(await ctx.first_of(ctx.step(world.polish, "d"), ctx.sleep(3600))))
        try:
            await ctx.step(breaks)
        except ValueError as e:
            got.append(str(e))
        got.append(await ctx.step(world.polish, "e", key="mine"))
        await ctx.sleep(dt.timedelta(hours=1))
        got.append(await ctx.wait("go"))
        got.append(await ctx.child(other, {"n": 1}))
        got.append((await ctx.tool("echo", ["hi"])).stdout)
        given = await ctx.handoff("Fine?", redo=None)
        got.append(given.action)
        return got

    return everything, other


async def test_every_kind_of_call_is_answered(tmp_path: Path) -> None:
    """Retries, races, scopes, failures, timers, signals, children, tools, large results; the tool's declaration may be left out."""
    world, clock = Outside(), FakeClock()
    whole, other = everything(world)
    async with Runtime(MemoryStore(now=clock.now), skills=[whole, other], tools=[Tool("echo", side_effects="read")], clock=clock) as rt:
        run = await rt.invoke(whole, {"name": "Ada"})
        await rt.signal(run.run_id, "go", {"n": 7})
        run = await rt.resume(run.run_id)
        run = await rt.decide(run.run_id, "continue", actor="ada")
        run = await rt.resume(run.run_id)
        assert run.status == "completed", run.record.error
        await rt.export(run.run_id, tmp_path)
    assert len(world.calls) == 10, world.calls
    replayed = await assert_replays(whole, tmp_path)
    assert replayed.served > 15
    assert (await replay_check(whole, tmp_path, tools=[Tool("echo", side_effects="read")])).same
    changed = await replay_check(whole, tmp_path, tools=[Tool("echo", side_effects="write")])
    assert [(d.kind, d.expected, d.got.partition("(")[0]) for d in changed.differences] == [("other_call", "step tool:echo", "effect tool:echo")]
    assert len(world.calls) == 10


async def test_what_was_taken_back_is_not_taken_back_again(tmp_path: Path) -> None:
    """§6.11: the run failed and its effect was undone; held against the code, neither is called."""
    world = Outside()

    async def take_back(result: str, text: str) -> None:
        world.calls.append("take_back")

    def graph(fails: bool) -> Graph[Notes]:
        made = Graph("undone", Notes, version="1")

        @made.node(start=True)
        async def act(state: Notes, ctx: Context) -> dict[str, Any]:
            return {"receipt": await ctx.effect(world.upload, state.topic, undo=take_back)}

        @made.node(after="act")
        async def fail(state: Notes) -> None:
            if fails:
                raise ValueError("no")

        return made

    async with Runtime("memory:", skills=[graph(True)]) as rt:
        run = await rt.invoke(graph(True), {"topic": "owls"})
        assert (run.status, world.calls) == ("failed", ["upload", "take_back"])
        await rt.export(run.run_id, tmp_path)
    assert (await replay_check(graph(True), tmp_path)).same
    (told,) = (await replay_check(graph(False), tmp_path)).differences
    assert (told.kind, told.got) == ("end", "completed")
    assert len(world.calls) == 2


async def test_a_fan_and_a_subflow(tmp_path: Path) -> None:
    """§4.14: tasks of a super-step keep their places, and calls inside a sub-flow theirs."""
    world = Outside()

    def fan(extra: str = "") -> Graph[Notes]:
        inner = Graph("inner", Notes, version="1")

        @inner.node(start=True)
        async def deep(state: Notes, ctx: Context) -> dict[str, Any]:
            return {"draft": await ctx.step(world.think, state.topic + extra)}

        graph = Graph("fan", Notes, version="1")

        @graph.node(start=True)
        async def split(state: Notes) -> Any:
            return [Send("each", n) for n in range(3)]

        @graph.node()
        async def each(state: Notes, ctx: Context) -> dict[str, Any]:
            return {"log": [await ctx.step(world.polish, f"{ctx.payload}")]}

        graph.subgraph("child", inner, after="each", pass_in=["topic"], pass_out=["draft"])
        return graph

    async with Runtime("memory:", skills=[fan()]) as rt:
        run = await rt.invoke(fan(), {"topic": "owls"})
        assert run.status == "completed"
        await rt.export(run.run_id, tmp_path)
    calls = len(world.calls)
    assert (await assert_replays(fan(), tmp_path)).served == 4
    (told,) = (await replay_check(fan("!"), tmp_path)).differences
    assert (told.kind, told.got) == ("arguments", "step think('owls!')")
    assert told.where.startswith("step 3 child, call ")
    assert len(world.calls) == calls


class Chat(State):
    said: str
    turns: Annotated[list[str], append, thread]


async def test_a_turn_of_a_thread(tmp_path: Path) -> None:
    """§4.15: what the run carried from its thread is in the recording."""

    def chat(word: str = "heard") -> Graph[Chat]:
        graph = Graph("chat", Chat, version="1")

        @graph.node(start=True)
        async def reply(state: Chat, ctx: Context) -> dict[str, Any]:
            return {"turns": [f"{word} {state.said} after {len(state.turns)}"]}

        return graph

    async with Runtime("memory:", skills=[chat()]) as rt:
        for said in ("a", "b", "c"):
            run = await rt.invoke(chat(), {"said": said}, thread_id="t")
        assert run.state.turns[-1] == "heard c after 2"
        await rt.export(run.run_id, tmp_path)
    assert (await replay_check(chat(), tmp_path)).same
    (told,) = (await replay_check(chat("saw"), tmp_path)).differences
    assert told.where == "channel turns" and "'saw c after 2'" in told.got and "'heard b after 1'" in told.got


# -- where it comes from ----------------------------------------------------------------------------


async def test_from_a_store(tmp_path: Path) -> None:
    """A URL and a run's id, or an open store; several runs and none named is an error (§7.10)."""
    world = Outside()
    graph = notes(world)
    url = f"sqlite:///{tmp_path}/runs.db"
    async with Runtime(url, skills=[graph]) as rt:
        first, second = [await rt.invoke(graph, {"topic": t}) for t in ("a", "b")]
        assert (await replay_check(graph, rt.store, first.run_id)).same
    assert (await replay_check(graph, url, second.run_id)).same
    with pytest.raises(InvalidInput, match="2 runs are there"):
        await replay_check(graph, url)
    with pytest.raises(InvalidInput, match="the run id is empty"):
        await replay_check(graph, url, "")
    with pytest.raises(RunNotFound):
        await replay_check(graph, url, "nobody")
    with pytest.raises(RunNotFound, match="no directory"):
        await replay_check(graph, tmp_path / "nowhere")
    with pytest.raises(RunNotFound, match="no recorded run"):
        await replay_check(graph, tmp_path)
    with pytest.raises(InvalidInput, match="not of publish"):
        await replay_check(publish, url, first.run_id)
    assert len(world.calls) == 2


async def test_a_damaged_recording_is_refused(tmp_path: Path) -> None:
    """X-01: it is not held against anything."""
    world = Outside()
    folder = await recorded(world, tmp_path)
    (log,) = folder.glob("*/events.jsonl")
    log.write_bytes(log.read_bytes().replace(b"owls", b"0wls"))
    with pytest.raises(StoreCorrupt):
        await replay_check(notes(world), log.parent)


async def test_several_at_once(tmp_path: Path) -> None:
    """Each has a store and a recording of its own; the records on disk stay as they are."""
    world = Outside()
    folder = await recorded(world, tmp_path)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    done = await asyncio.gather(*[replay_check(notes(world, c), folder) for c in ("", "new", "")])
    assert [r.same for r in done] == [True, False, True]
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


async def test_calls_within_an_item_of_a_map_are_no_missing_calls() -> None:
    """An item whose result is served makes none of its own calls; one that is not on record does."""
    world, items = Outside(), ["a", "b"]

    @flow("mapped")
    async def mapped(ctx: Context) -> list[str]:
        async def one(about: str) -> str:
            return await ctx.step(world.polish, await ctx.step(world.think, about))

        return await ctx.map(one, items)

    store = MemoryStore()
    async with Runtime(store, skills=[mapped]) as rt:
        await rt.invoke(mapped, {})
    made = len(world.calls)
    assert (await assert_replays(mapped, store)).served == len(items) and len(world.calls) == made == 4
    items.append("c")
    with pytest.raises(ReplayDiffers):
        await assert_replays(mapped, store)
