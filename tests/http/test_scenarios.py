"""The validation scenarios of the seed documents, driven over HTTP alone on each store: pause and go on, replay, fork; the fourth, one status everywhere, is test_words.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest

from holdfast import Context, Graph, Runtime, State, append
from tests.http.support import served
from tests.postgres.server import shared

DONE: list[str] = []


class Order(State):
    item: str = ""
    count: int = 1
    said: Annotated[list[str], append]


async def pay(item: str, count: int) -> str:
    """What must happen once: it leaves a trace that no store holds."""
    DONE.append(f"{count} {item}")
    return f"receipt {len(DONE)}"


def shop() -> Graph[Order]:
    graph = Graph("shop", Order, version="1")

    @graph.node(start=True)
    async def price(state: Order) -> dict[str, Any]:
        return {"said": [f"{state.count} {state.item}"]}

    @graph.node(after="price")
    async def confirm(state: Order, ctx: Context) -> dict[str, Any]:
        return {"said": [(await ctx.approve("Buy it?", show={"item": state.item})).action]}

    @graph.node(after="confirm", side_effects="external_action")
    async def buy(state: Order, ctx: Context) -> dict[str, Any]:
        return {"said": [await ctx.effect(pay, state.item, state.count)]}

    @graph.node(after="buy")
    async def tell(state: Order) -> dict[str, Any]:
        return {"said": ["done"]}

    return graph


def placed(kind: str, folder: Path) -> str:
    if kind == "postgres":
        return shared().fresh("scenarios")
    return {"sqlite": f"sqlite:///{folder}/runs.db", "workspace": f"workspace:{folder}/runs"}.get(kind, "memory:")


async def got(http: httpx.AsyncClient, path: str) -> Any:
    answer = await http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def sent(http: httpx.AsyncClient, path: str, **body: Any) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code in (200, 201, 202), answer.text
    return answer.json()


async def rested(http: httpx.AsyncClient, run_id: str) -> Any:
    """The run once nothing moves it any more, by the long poll."""
    async with asyncio.timeout(60):
        while (run := await got(http, f"/v1/runs/{run_id}?wait=5"))["status"] in ("pending", "running", "replaying"):
            pass
    return run


async def bought(http: httpx.AsyncClient, item: str) -> Any:
    run = await rested(http, (await sent(http, "/v1/runs", skill_id="shop", input={"item": item}))["run_id"])
    return await approved(http, run["run_id"])


async def approved(http: httpx.AsyncClient, run_id: str) -> Any:
    """The run after its question was approved, and it has gone on: by the request, or by the worker that was quicker."""
    await sent(http, f"/v1/runs/{run_id}/approve", actor="ada")
    gone_on = await http.post(f"/v1/runs/{run_id}/resume", json={})
    assert gone_on.status_code == 202 or gone_on.json()["code"] in ("run_is_live", "settled_terminal"), gone_on.text
    async with asyncio.timeout(60):
        while (run := await got(http, f"/v1/runs/{run_id}?wait=5"))["status"] not in ("completed", "failed", "canceled"):
            pass
    return run


@pytest.mark.parametrize("kind", ["memory", "sqlite", "workspace", "postgres"])
async def test_the_scenarios_of_the_seed_documents_over_http(kind: str, tmp_path: Path) -> None:
    async with asyncio.timeout(60), Runtime(placed(kind, tmp_path), skills=[shop()]) as rt, served(rt, tokens=False) as http:
        working = asyncio.ensure_future(rt.worker())
        try:
            await pause_and_go_on(http)
            await replay(http)
            await fork(http)
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


async def pause_and_go_on(http: httpx.AsyncClient) -> None:
    """1: pause for confirmation and resume to completion."""
    DONE.clear()
    made = await sent(http, "/v1/runs", skill_id="shop", input={"item": "tea"}, thread_id="first")
    run = await rested(http, made["run_id"])
    assert (run["status"], run["condition"], run["current_step_id"] is not None) == ("waiting_for_human", "awaiting_gate_decision", True)
    (wait,) = (await got(http, "/v1/waits"))["waits"]
    assert (wait["run_id"], wait["prompt"], wait["decidable"]) == (run["run_id"], "Buy it?", True) and not DONE
    early = await http.post(f"/v1/runs/{run['run_id']}/resume", json={})
    assert (early.status_code, early.json()["code"]) == (409, "undecided_wait")
    done = await approved(http, run["run_id"])
    assert (done["status"], done["condition"], done["values"]["said"]) == ("completed", "done", ["1 tea", "approve", "receipt 1", "done"])
    kinds = [e["event_type"] for e in (await got(http, f"/v1/runs/{run['run_id']}/events?limit=500"))["events"]]
    assert kinds.index("run.waiting_for_human") < kinds.index("wait.decided") < kinds.index("run.resumed") < kinds.index("run.completed") and DONE == ["1 tea"]


async def replay(http: httpx.AsyncClient) -> None:
    """2: replay from a step boundary using recorded side-effect results."""
    DONE.clear()
    source = await bought(http, "rice")
    assert DONE == ["1 rice"]
    points = (await got(http, f"/v1/runs/{source['run_id']}/checkpoints?limit=500"))["checkpoints"]
    for given in ({}, {"from_checkpoint": points[1]["checkpoint_id"]}, {"from_step": "buy"}):
        again = await rested(http, (await sent(http, f"/v1/runs/{source['run_id']}/replay", reason="what happened?", **given))["run_id"])
        if again["status"] == "waiting_for_human":  # a person is asked anew; what was done outside is not done anew
            again = await approved(http, again["run_id"])
        assert (again["status"], again["origin"], again["source_run_id"]) == ("completed", "replay", source["run_id"]), given
        assert again["values"] == source["values"] and again["run_id"] != source["run_id"] and again["source_checkpoint_id"] is not None
        assert DONE == ["1 rice"], "nothing is done again"
    assert (await got(http, f"/v1/runs/{source['run_id']}"))["version"] == source["version"], "the source stays as it was"


async def fork(http: httpx.AsyncClient) -> None:
    """3: fork from a checkpoint and run with modified options that break nothing."""
    DONE.clear()
    source = await bought(http, "salt")
    points = (await got(http, f"/v1/runs/{source['run_id']}/checkpoints?limit=500"))["checkpoints"]
    made = await sent(http, f"/v1/runs/{source['run_id']}/fork", from_checkpoint=points[0]["checkpoint_id"], set={"count": 3}, options={"tags": ["bulk"], "priority": 5}, reason="more of it")
    waiting = await rested(http, made["run_id"])
    assert (waiting["status"], waiting["origin"], waiting["source_run_id"], waiting["tags"]) == ("waiting_for_human", "fork", source["run_id"], ["bulk"])
    done = await approved(http, made["run_id"])
    assert done["status"] == "completed" and done["values"]["count"] == 3 and DONE == ["1 salt", "3 salt"]
    assert (await got(http, f"/v1/runs/{source['run_id']}"))["values"] == source["values"]
    refused = await http.post(f"/v1/runs/{source['run_id']}/fork", json={"set": {"nothing": 1}})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_input"), refused.text
