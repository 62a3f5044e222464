"""The named ports, over every store (interfaces, §4.16): views that act on runs at rest, and only through events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, State, append
from holdfast.core.errors import (
    AmbiguousWait,
    EffectConflict,
    EffectInProgress,
    IllegalTransition,
    InvalidInput,
    NotDecidable,
    SettledTerminal,
    UndecidedWait,
    UnknownOption,
)
from holdfast.named import CheckpointSaver, CheckpointStore, EventStore, KernelExecutor, RunStore, SideEffectLedger
from tests.engine.outside import House


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


class Talk(State):
    text: str = ""
    said: Annotated[list[str], append]


def talk() -> Graph[Talk]:
    graph = Graph("talk", Talk)

    @graph.node(start=True, reads=["said"])
    async def ask(state: Talk, ctx: Context) -> dict[str, Any]:
        await ctx.approve("Go on?")  # it covers what this step reads, which no patch here changes
        return {"said": ["asked"]}

    @graph.node(after="ask")
    async def say(state: Talk) -> dict[str, Any]:
        return {"said": [state.text]}

    return graph


async def test_runs(house: House) -> None:
    graph = talk()
    rt = await house.process(graph)
    store = RunStore(rt)
    made = await store.create_run(graph, {"text": "a"})
    assert made.status == "pending" and (await store.get_run(made.run_id)).run_id == made.run_id
    patched = await store.patch_run(made.run_id, tags=["x"], priority=7, trace_id="t", actor="ada")
    assert (patched.tags, patched.priority, patched.trace_id) == (("x",), 7, "t")
    [event] = [e for e in await rt.events(made.run_id) if e.type == "run.patched"]
    assert event.actor == "ada"
    with pytest.raises(IllegalTransition):
        await store.update_status(made.run_id, "completed")
    waiting = await rt.resume(made.run_id)
    assert waiting.status == "waiting_for_human" and waiting.priority == 7
    with pytest.raises(UndecidedWait):
        await store.update_status(made.run_id, "running")
    failed = await rt.deny(made.run_id, reason="no")
    assert failed.status == "canceled"
    with pytest.raises(IllegalTransition):
        await store.update_status(made.run_id, "running")  # T-02: by resume only


async def test_checkpoints(house: House) -> None:
    """save_checkpoint is a state patch by a named actor; what goes on sees it."""
    graph = talk()
    rt = await house.process(graph)
    store = CheckpointStore(rt)
    run = await rt.invoke(graph, {"text": "a"})
    before = await store.load_checkpoint(run.run_id)
    saved = await store.save_checkpoint(run.run_id, {"text": "b"}, actor="ada", reason="better")
    assert saved.values["text"] == "b" and saved.parent_id == before.checkpoint_id and saved.metadata["source"] == "patch"
    assert (await store.load_checkpoint(run.run_id, before.checkpoint_id)).values["text"] == "a"
    [event] = [e for e in await rt.events(run.run_id) if e.type == "state.patched"]
    assert (event.actor, event.payload["reason"], event.payload["channels"]) == ("ada", "better", ["text"])
    run = await rt.approve(run.run_id)
    assert list(run.state.said) == ["asked", "b"]
    assert [c["seq"] for c in await store.list_checkpoints(run.run_id)] == sorted(c.seq for c in await rt.checkpoints(run.run_id))
    with pytest.raises(SettledTerminal):
        await store.save_checkpoint(run.run_id, {"text": "c"}, actor="ada")


async def test_events(house: House) -> None:
    graph = talk()
    rt = await house.process(graph)
    store = EventStore(rt)
    run = await rt.invoke(graph, {"text": "a"})
    note = await store.append(run.run_id, "looked at it", actor="ada")
    assert (note.type, note.actor, note.payload["text"]) == ("note.added", "ada", "looked at it")
    page = await store.list_events(run.run_id, limit=3)
    seen = list(page)
    while page.next_cursor is not None:
        page = await store.list_events(run.run_id, page.next_cursor, limit=3)
        seen += page
    assert [e.seq for e in seen] == list(range(1, note.seq + 1))
    with pytest.raises(InvalidInput):
        await store.list_events(run.run_id, limit=0)


async def test_the_ledger(house: House) -> None:
    """T-39, T-41 through the port: an attempt is no result, another request is a conflict, a result stays."""
    graph = talk()
    rt = await house.process(graph)
    ledger = SideEffectLedger(rt)
    run = await rt.invoke(graph, {"text": "a"})
    assert await ledger.find_by_idempotency_key("k") is None
    effect = await ledger.record_attempt(run.run_id, "k", "mail", {"to": "bob"}, actor="ada")
    found = await ledger.find_by_idempotency_key("k")
    assert found is not None and (found["status"], found["result"]) == ("attempted", None)
    with pytest.raises(EffectInProgress):
        await ledger.record_attempt(run.run_id, "k", "mail", {"to": "bob"})
    with pytest.raises(EffectConflict):
        await ledger.record_attempt(run.run_id, "k", "mail", {"to": "eve"})
    settled = await ledger.record_result(effect.effect_id, "sent", actor="ada")
    assert settled.status == "recorded" and (await ledger.find_by_idempotency_key("k")) == settled
    with pytest.raises(NotDecidable):
        await ledger.record_result(effect.effect_id, "again")
    told = [e.type for e in await rt.events(run.run_id)]
    assert told.index("side_effect.attempted") < told.index("side_effect.recorded")


async def test_the_saver_and_the_kernel(house: House) -> None:
    """§4.16: by thread; history oldest first, in the old spelling."""
    graph = talk()
    rt = await house.process(graph)
    saver, kernel = CheckpointSaver(rt), KernelExecutor(rt, graph)
    assert await saver.get("t") is None
    run = await kernel.invoke("t", {"text": "a"})
    assert run.status == "waiting_for_human"
    snapshot = await saver.get("t")
    assert snapshot is not None and set(snapshot) == {"id", "runId", "values", "metadata", "createdAt", "nextTasks"}
    assert (snapshot["nextTasks"], set(snapshot["metadata"])) == (["ask"], {"source", "step", "writes"})
    put = await saver.put("t", {"values": {"text": "b"}}, actor="ada")
    assert put["values"]["text"] == "b"
    run = await kernel.resume("t", {"any": "thing"})
    assert (run.status, list(run.state.said)) == ("completed", ["asked", "b"])
    history = await saver.get_history("t")
    assert [h["createdAt"] for h in history] == sorted(h["createdAt"] for h in history) and history[-1]["values"]["said"] == ["asked", "b"]
    with pytest.raises(NotDecidable):
        await kernel.resume("t")


async def test_an_answer_to_several_waits_is_ambiguous(house: House) -> None:
    """§5.11, L-08."""
    graph = Graph("two", Talk)

    @graph.node(start=True)
    async def one(state: Talk, ctx: Context) -> None:
        await ctx.approve("one?")

    @graph.node(start=True)
    async def two(state: Talk, ctx: Context) -> None:
        await ctx.approve("two?")

    rt = await house.process(graph)
    kernel = KernelExecutor(rt, graph)
    await kernel.invoke("t", {})
    with pytest.raises(AmbiguousWait):
        await kernel.resume("t", None)


async def test_the_seeds_shapes(house: House) -> None:
    """Mend 22: dicts in, dicts out, None where nothing is, typed errors."""
    graph = talk()
    rt = await house.process(graph)
    runs, points, log, ledger = RunStore(rt), CheckpointStore(rt), EventStore(rt), SideEffectLedger(rt)
    made = await runs.create_run({"skill_id": "talk", "inputs": {"text": "a"}, "thread_id": "t", "tags": ["x"]})
    assert isinstance(made, dict) and (made["status"], made["thread_id"], made["tags"]) == ("pending", "t", ["x"])
    assert await runs.get_run("nobody") is None and await points.load_checkpoint("nobody") is None and await ledger.find_by_idempotency_key("none") is None
    with pytest.raises(UnknownOption) as caught:
        await runs.create_run({"skill_id": "talk", "input": {}})
    assert caught.value.nearest == "inputs"
    for wrong in ({"inputs": {}}, {"skill_id": 3}, {"skill_id": "talk", "key": 7}):
        with pytest.raises(InvalidInput):
            await runs.create_run(wrong)
    run_id = (await rt.resume(made["run_id"])).run_id
    with pytest.raises(UnknownOption):
        await runs.patch_run(run_id, {"tag": ["y"]})
    assert (await runs.patch_run(run_id, {"priority": 3}))["priority"] == 3
    saved = await points.save_checkpoint({"run_id": run_id, "actor": "ada", "reason": "r"}, {"text": "b"})
    head = await points.load_checkpoint(run_id)
    assert isinstance(saved, str) and isinstance(head, dict) and (head["checkpoint_id"], head["values"]["text"]) == (saved, "b")
    note = await log.append({"run_id": run_id, "event_type": "note.added", "payload": {"text": "seen"}, "actor": "ada"})
    assert (note["event_type"], note["payload"]["text"], note["actor"]) == ("note.added", "seen", "ada")
    with pytest.raises(InvalidInput):
        await log.append({"run_id": run_id, "event_type": "run.completed", "payload": {"text": "no"}})
    page = await log.list_events(run_id, limit=2)
    assert isinstance(page.next_cursor, str) and (await log.list_events(run_id, page.next_cursor))[0]["seq"] == 3
    with pytest.raises(InvalidInput):
        await log.list_events(run_id, "abc")
    effect_id = await ledger.record_attempt({"run_id": run_id, "idempotency_key": "k", "capability": "mail", "request": {"to": "bob"}})
    assert isinstance(effect_id, str)
    await ledger.record_result(effect_id, {"sent": True})
    found = await ledger.find_by_idempotency_key("k")
    assert found is not None and (found["status"], found["result"], found["idempotency_key"]) == ("recorded", {"sent": True}, "k")


async def test_the_ledger_finds_what_the_engine_did(house: House) -> None:
    graph = Graph("acts", Talk)

    def upload(text: str) -> str:
        return f"up {text}"

    @graph.node(start=True)
    async def act(state: Talk, ctx: Context) -> dict[str, Any]:
        return {"said": [await ctx.effect(upload, state.text, key="order 7")]}

    rt = await house.process(graph)
    await rt.invoke(graph, {"text": "a"})
    found = await SideEffectLedger(rt).find_by_idempotency_key("order 7")
    assert found is not None and (found["status"], found["result"]) == ("recorded", "up a")


async def test_a_port_opens_no_wait_that_is_not_there(house: House) -> None:
    graph = talk()
    rt = await house.process(graph)
    store = RunStore(rt)
    made = await store.create_run(graph, {"text": "a"})
    await store.update_status(made["run_id"], "running")
    for status in ("waiting_for_human", "waiting_for_signal"):
        with pytest.raises(NotDecidable):
            await store.update_status(made["run_id"], status)
