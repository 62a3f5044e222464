"""One act asks once: the runs of a lineage share a question and its answer (§6.5, §5.8)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import Context, flow
from holdfast.core import events as ev
from holdfast.core.errors import DecisionConflict
from tests.engine.support import World, says

ANSWERS = [("record_result", {"payload": "by hand"}), ("reexecute", {"force": True}), ("abandon", {})]


class Post:
    def __init__(self) -> None:
        self.sent = 0

    def flow(self, key: str | None = None) -> Any:
        async def send(to: str) -> str:
            self.sent += 1
            return f"sent {self.sent} to {to}"

        @flow("post")
        async def post(ctx: Context) -> str:
            return await ctx.effect(send, "ada", key=key)

        return post


async def lineage(world: World, skill: Any, forks: int) -> list[str]:
    """A run that died in its effect, and forks of it, each of the one before; all rest in the question."""
    run_id = await world.crash(skill, when=says(ev.SideEffectAttempted))
    ids = [run_id]
    async with world.runtime(skill) as rt:
        await rt.resume(run_id)
        for _ in range(forks):
            fork = await rt.fork(ids[-1], actor="ada")
            assert fork.status == "waiting_for_human"
            ids.append(fork.run_id)
    return ids


async def test_a_fork_shows_the_same_question_and_the_effect() -> None:
    world, post = World(), Post()
    skill = post.flow()
    ids = await lineage(world, skill, 2)
    async with world.runtime(skill) as rt:
        runs = [await rt.get(i) for i in ids]
        questions = {(w.wait_id, w.effect_id, w.prompt, repr(w.show)) for r in runs for w in r.waits}
        assert len(questions) == 1 and len(await rt.waits()) == 1
        for i in ids:
            assert [(e.status, e.capability) for e in await rt.effects(i)] == [("unknown", "send")]
            assert [p for p in await rt.check(i) if p.severity == "error"] == []


@pytest.mark.parametrize(("action", "options"), ANSWERS)
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_one_answer_settles_it_for_all(at: int, action: str, options: dict[str, Any]) -> None:
    world, post = World(), Post()
    skill = post.flow()
    ids = await lineage(world, skill, 2)
    async with world.runtime(skill) as rt:
        await rt.decide(ids[at], action, actor="ada", resume=False, **options)
        if action != "reexecute":
            for i in ids:
                assert (await rt.get(i)).waits == ()
        for i in [ids[at], *(i for i in ids if i != ids[at])]:
            run = await rt.resume(i)
            assert (run.status, run.error.code if run.error else None) == (("failed", "effect_abandoned") if action == "abandon" else ("completed", None))
            assert run.waits == ()
            told = [str(e.payload) for e in await rt.events(i) if e.type in ("wait.decided", "wait.closed")]
            assert told and (i == ids[at] or any(f"in the run {ids[at]}" in t for t in told))
            assert [p for p in await rt.check(i) if p.severity == "error"] == []
        results = {(await rt.get(i)).result for i in ids}
        assert results == {{"record_result": "by hand", "reexecute": "sent 1 to ada", "abandon": None}[action]}
        assert post.sent == (1 if action == "reexecute" else 0)


async def test_another_answer_elsewhere_is_a_conflict() -> None:
    world, post = World(), Post()
    skill = post.flow()
    source, fork = await lineage(world, skill, 1)
    async with world.runtime(skill) as rt:
        asked = (await rt.get(fork)).waits[0].wait_id
        await rt.decide(source, "record_result", payload=1, actor="ada", resume=False)
        with pytest.raises(DecisionConflict):
            await rt.decide(fork, "abandon", wait_id=asked, actor="bob")


async def test_a_fork_made_after_the_answer_asks_nothing() -> None:
    world, post = World(), Post()
    skill = post.flow()
    [source] = await lineage(world, skill, 0)
    async with world.runtime(skill) as rt:
        first = (await rt.checkpoints(source))[0].checkpoint_id
        await rt.decide(source, "record_result", payload="by hand", actor="ada")
        assert (await rt.resume(source)).result == "by hand"
        fork = await rt.fork(source, first, actor="ada")
        assert (fork.status, fork.result, post.sent) == ("completed", "by hand", 0)


async def test_a_source_that_had_not_asked_yet_finds_what_its_fork_was_told() -> None:
    world, post = World(), Post()
    skill = post.flow()
    source = await world.crash(skill, when=says(ev.SideEffectAttempted))
    async with world.runtime(skill) as rt:
        fork = await rt.fork(source, actor="ada")
        await rt.decide(fork.run_id, "record_result", payload="by hand", actor="ada")
        assert (await rt.resume(fork.run_id)).result == "by hand"
        assert ((await rt.resume(source)).result, post.sent) == ("by hand", 0)


async def test_a_fork_made_between_the_answer_and_its_effect_is_told() -> None:
    """It asks what its source has been told already and has not acted upon: whoever settles it there answers the fork too."""
    world, post = World(), Post()
    skill = post.flow()
    [source] = await lineage(world, skill, 0)
    async with world.runtime(skill) as rt:
        await rt.decide(source, "abandon", actor="ada", resume=False)
        fork = await rt.fork(source, actor="ada")
        assert (fork.status, len(fork.waits)) == ("waiting_for_human", 1)
        assert (await rt.resume(source)).status == "failed"
        await rt.worker(until_idle=True)
        run = await rt.get(fork.run_id)
        assert (run.status, run.waits, run.error.code if run.error else None, post.sent) == ("failed", (), "effect_abandoned", 0)


async def test_each_of_two_questions_shows_its_own_act() -> None:
    """Two acts were under way when the process died: in every run of the lineage each question is about one of them."""

    async def send(to: str) -> str:
        return f"sent to {to}"

    @flow("post")
    async def post(ctx: Context) -> list[str]:
        return list(await ctx.gather(ctx.effect(send, "ada"), ctx.effect(send, "bob")))

    world = World()
    run_id = await world.crash(post, when=says(ev.SideEffectRecorded), after=False)
    async with world.runtime(post) as rt:
        await rt.resume(run_id)
        acts = {e.effect_id: (e.key, e.request_hash) for e in await rt.effects(run_id)}
        assert len(set(acts.values())) == 2
        fork = await rt.fork(run_id, actor="ada")
        again = await rt.fork(fork.run_id, actor="ada")
        for found in (await rt.get(run_id), fork, again):
            shown = {w.effect_id: w.show for w in found.waits}
            assert {i: (s["key"], s["arguments"]) for i, s in shown.items()} == acts


@pytest.mark.parametrize("again", [0, 1])
@pytest.mark.parametrize("at", [0, 1])
async def test_what_was_abandoned_elsewhere_does_not_answer_whether_it_is_done_after_all(at: int, again: int) -> None:
    """All runs of the lineage know that it was given up. The question is a new one, and only an act that was done since answers it."""
    world, post = World(), Post()
    skill = post.flow()
    ids = await lineage(world, skill, 1)
    async with world.runtime(skill) as rt:
        await rt.decide(ids[at], "abandon", actor="ada", resume=False)
        for i in ids:
            assert (await rt.resume(i)).stop_reason == "effect_abandoned"
        for i in ids:
            run = await rt.resume(i, acknowledge="effect_abandoned")
            assert [w.prompt for w in run.waits] == ["send was abandoned by decision. Should it be done after all?"]
        other = ids[1 - again]
        await rt.decide(other, "abandon", actor="ada", resume=False)
        assert len((await rt.get(ids[again])).waits) == 1, "each run decides whether it goes on without"
        await rt.decide(ids[again], "reexecute", actor="ada", force=True)
        run = await rt.resume(ids[again])
        assert (run.status, run.result, post.sent) == ("completed", "sent 1 to ada", 1)
        assert (await rt.resume(other)).stop_reason == "effect_abandoned"
        assert [p for i in ids for p in await rt.check(i) if p.severity == "error"] == []


async def test_a_fork_made_after_an_act_was_given_up_asks_whether_it_is_done_after_all() -> None:
    world, post = World(), Post()
    skill = post.flow()
    [source] = await lineage(world, skill, 0)
    async with world.runtime(skill) as rt:
        first = (await rt.checkpoints(source))[0].checkpoint_id
        await rt.decide(source, "abandon", actor="ada", resume=False)
        assert (await rt.resume(source)).stop_reason == "effect_abandoned"
        fork = await rt.fork(source, first, actor="ada")
        assert [w.prompt for w in fork.waits] == ["send was abandoned by decision. Should it be done after all?"]
        await rt.decide(fork.run_id, "reexecute", actor="ada", force=True)
        fork = await rt.resume(fork.run_id)
        assert (fork.status, fork.result, post.sent) == ("completed", "sent 1 to ada", 1)


async def test_what_a_fork_has_undone_since_is_no_answer_for_its_source() -> None:
    """The fork was told that it was done, and has taken it back. The source asks: it must not go on as if that still stood."""
    world, undone = World(), list[str]()

    async def send(to: str) -> str:
        return f"sent to {to}"

    async def take_back(result: str) -> None:
        undone.append(result)

    @flow("post")
    async def post(ctx: Context) -> str:
        sent = await ctx.effect(send, "ada", undo=take_back)
        await ctx.approve("Go on?")
        return str(sent)

    source = await world.crash(post, when=says(ev.SideEffectAttempted))
    async with world.runtime(post) as rt:
        fork = await rt.fork(source, actor="ada")
        await rt.decide(fork.run_id, "record_result", payload="by hand", actor="ada")
        assert [w.prompt for w in (await rt.resume(fork.run_id)).waits] == ["Go on?"]
        await rt.cancel(fork.run_id)
        assert undone == ["by hand"]
        run = await rt.resume(source)
        [wait] = run.waits
        assert (wait.kind, wait.prompt) == ("effect", "send was attempted, and its outcome is unknown. Check with its receiver, then record what happened.")
        await rt.decide(source, "reexecute", actor="ada", force=True)
        assert [w.prompt for w in (await rt.resume(source)).waits] == ["Go on?"]
        assert (await rt.approve(source, actor="ada")).result == "sent to ada"
        assert [p for p in await rt.check(source) if p.severity == "error"] == []
