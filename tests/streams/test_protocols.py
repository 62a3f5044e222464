"""The two encoders, held against the protocols' own packages: ``ag-ui-protocol``, and the AI SDK's chunks as Pydantic AI has them (§19.6)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import ag_ui.core
import httpx
import pytest
from pydantic import TypeAdapter
from pydantic_ai.ui.vercel_ai import response_types

from holdfast import Context, Graph, Retry, Runtime, State
from holdfast.handle import EventView, StreamPart
from holdfast.protocols import MODES, AgUi, Vercel
from tests.http.support import served

AGUI: TypeAdapter[Any] = TypeAdapter(ag_ui.core.Event)
CHUNKS = [c for name in dir(response_types) if name.endswith("Chunk") and (c := getattr(response_types, name)) not in (response_types.BaseChunk,)]


class Talk(State):
    how: str = ""
    tries: int = 0


def skill() -> Graph[Talk]:
    graph = Graph("talk", Talk)
    tries: Counter[str] = Counter()

    @graph.node(start=True, retry=Retry(max_attempts=2, base_us=1))
    async def say(state: Talk, ctx: Context) -> dict[str, Any]:
        tries[ctx.run_id] += 1
        ctx.emit("he")
        ctx.emit({"progress": 0.5})
        if tries[ctx.run_id] == 1:
            raise ConnectionError("again")
        ctx.emit({"role": "assistant", "content": "llo"})
        ctx.emit({"role": "someone", "content": ""})
        return {"tries": tries[ctx.run_id]}

    @graph.node(after="say")
    async def ask(state: Talk, ctx: Context) -> dict[str, Any]:
        ctx.emit("really")
        if state.how == "fail":
            raise ValueError("no good")
        if state.how != "straight":
            await ctx.approve("sure?")
        return {}

    return graph


def valid_agui(wire: list[dict[str, Any]]) -> None:
    """The rules of an event stream: what is begun is ended, once, and nothing comes after the run's end."""
    for event in wire:
        AGUI.validate_python(event)
    kinds = [e["type"] for e in wire]
    assert kinds[0] == "RUN_STARTED" and kinds[-1] in ("RUN_FINISHED", "RUN_ERROR") and kinds.count("RUN_STARTED") == 1
    texts: set[str] = set()
    steps: set[str] = set()
    for e in wire:
        match e["type"]:
            case "TEXT_MESSAGE_START":
                assert e["messageId"] not in texts
                texts.add(e["messageId"])
            case "TEXT_MESSAGE_CONTENT":
                assert e["messageId"] in texts and e["delta"]
            case "TEXT_MESSAGE_END":
                texts.remove(e["messageId"])
            case "STEP_STARTED":
                assert e["stepName"] not in steps
                steps.add(e["stepName"])
            case "STEP_FINISHED":
                steps.remove(e["stepName"])
    assert not texts and not steps


def valid_vercel(wire: list[dict[str, Any]]) -> None:
    for chunk in wire:
        fitting = [c for c in CHUNKS if c.model_fields["type"].default == chunk["type"]] or [response_types.DataChunk]
        read = fitting[0].model_validate(chunk)
        assert read.model_dump(by_alias=True, exclude_none=True) == chunk, "it has nothing that the protocol lacks"
    assert wire[0]["type"] == "start" and wire[-1]["type"] in ("finish", "abort")
    texts: set[str] = set()
    steps = 0
    for c in wire:
        match c["type"]:
            case "text-start":
                assert c["id"] not in texts
                texts.add(c["id"])
            case "text-delta":
                assert c["id"] in texts
            case "text-end":
                texts.remove(c["id"])
            case "start-step":
                steps += 1
            case "finish-step":
                steps -= 1
    assert not texts and steps == 0


@pytest.mark.parametrize("how", ["straight", "fail", "approve", "cancel"])
async def test_streams_are_what_the_protocols_say(how: str) -> None:
    graph = skill()
    agui: list[dict[str, Any]] = []
    vercel: list[dict[str, Any]] = []
    async with Runtime("memory:", skills=[graph]) as rt:
        encoders: list[tuple[Any, list[dict[str, Any]]]] = []
        async for part in rt.run_stream(graph, {"how": how}, modes=MODES, thread_id="t"):
            encoders = encoders or [(AgUi(part.run_id, "t"), agui), (Vercel(part.run_id, "t"), vercel)]
            for encoder, wire in encoders:
                wire += encoder.encode(part)
            if part.mode == "events" and part.data.type == "run.waiting_for_human":
                await (rt.approve(part.run_id) if how == "approve" else rt.cancel(part.run_id))
    valid_agui(agui)
    valid_vercel(vercel)
    assert "".join(e["delta"] for e in agui if e["type"] == "TEXT_MESSAGE_CONTENT") == "hehelloreally" == "".join(c["delta"] for c in vercel if c["type"] == "text-delta")
    customs = [e["name"] for e in agui if e["type"] == "CUSTOM"]
    assert customs[:3] == ["holdfast.chunk", "holdfast.superseded", "holdfast.chunk"] and ("holdfast.wait.requested" in customs) == (how in ("approve", "cancel"))
    assert agui[-1]["type"] == ("RUN_ERROR" if how == "fail" else "RUN_FINISHED")
    assert [c["type"] for c in vercel[-2:]][-1] == {"fail": "finish", "cancel": "abort"}.get(how, "finish")


@pytest.mark.parametrize("protocol", ["agui", "vercel"])
async def test_they_are_spoken_over_http(protocol: str, tmp_path: Path) -> None:
    graph = skill()
    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(graph, {"how": "straight"})
        answer: httpx.Response = await http.get(f"/v1/runs/{run.run_id}/stream?protocol={protocol}")
        data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        assert answer.headers["content-type"].startswith("text/event-stream")
        if protocol == "agui":
            valid_agui([json.loads(d) for d in data])
        else:
            assert answer.headers["x-vercel-ai-ui-message-stream"] == "v1" and data[-1] == "[DONE]"
            valid_vercel([json.loads(d) for d in data[:-1]])
        assert (await http.get(f"/v1/runs/{run.run_id}/stream?protocol=other")).status_code == 422


@pytest.mark.parametrize("payload", [{"wait_id": "w1", "reason": "x"}, {"wait": {"wait_id": "w1"}}, {"decision": {"wait_id": "w1", "action": "approve"}}], ids=str)
@pytest.mark.parametrize("kind", ["wait.requested", "wait.decided", "wait.denied", "wait.timed_out", "wait.closed"])
def test_every_event_of_a_wait_is_under_the_id_of_its_wait(kind: str, payload: dict[str, Any]) -> None:
    """The AI SDK replaces data that has the id of data before it."""
    event = EventView(
        event_id="e", event_version=1, event_type=kind, occurred_at="", run_id="r", seq=1, fence=1, trace_id=None, tenant_id="default", actor="ada", payload=payload,
    )
    told = [w for w in Vercel("r", "t").encode(StreamPart("events", event, "", "r", "", 0)) if w["type"].startswith("data-wait")]
    assert [w["id"] for w in told] == ["w1"]


async def test_two_waits_of_a_run_have_two_ids() -> None:
    asks = Graph("asks", Talk, version="1")

    @asks.node(start=True)
    async def both(state: Talk, ctx: Context) -> None:
        await ctx.approve("first?")
        await ctx.approve("second?")

    async with Runtime("memory:", skills=[asks]) as rt, served(rt, tokens=False) as http:
        run = await rt.invoke(asks, {})
        while run.waits:
            await rt.approve(run.run_id, actor="ada")
            run = await rt.get(run.run_id)
        text = (await http.get(f"/v1/runs/{run.run_id}/stream?protocol=vercel")).text
        told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        asked, decided = [[w["id"] for w in told if w["type"] == kind] for kind in ("data-wait-requested", "data-wait-decided")]
        assert asked == decided and len(set(asked)) == 2 and all(asked)
