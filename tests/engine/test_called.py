"""What calls are called where people read of them: the function, and in a fan-out the item, the same on every surface."""

from __future__ import annotations

import functools
import logging
from typing import Annotated, Any

import msgspec
import pytest

from holdfast import Context, Graph, Retry, Runtime, Send, State, append, flow


class Order(msgspec.Struct):
    number: int
    to: str


class Mailer:
    def send(self, to: Any) -> str:
        return f"sent {to}"


def fetch(shard: str, day: str = "") -> str:
    if shard == "eu-2":
        raise ValueError("no such shard")
    return shard


@flow("fan")
async def fan(ctx: Context, wait: bool = False) -> list[Any]:
    async def one(shard: str) -> Any:
        try:
            return await ctx.step(fetch, shard, retry=Retry(2, base_us=1))
        except ValueError:
            return None

    found = [
        await ctx.map(one, ["eu-1", "eu-2"]),
        await ctx.map(lambda n: n + 1, [1]),
        await ctx.map(functools.partial(fetch, day="today"), ["us-1"]),
        await ctx.map(Mailer().send, [Order(7, "ada")]),
        await ctx.step(Mailer().send, "bob"),
        await ctx.step(lambda: 3),
        await ctx.step(fetch, "us-2", key="last"),
    ]
    if wait:
        await ctx.approve("Go on?")
    return found



async def test_steps_and_attempts_name_the_function_and_the_item() -> None:
    async with Runtime("memory:", skills=[fan]) as rt:
        run = await rt.invoke(fan)
        assert run.status == "completed", run.error
        steps = {s.path: s for s in await rt.steps(run.run_id)}
        named = {path: s.call for path, s in steps.items()}
        assert named["0/0/0"] == "one (eu-1)" and named["0/1/0/0"] == "fetch (eu-2)", "what an item calls is told by the item too"
        assert named["2/0/0"] == "fetch (us-1)" and named["3/0/0"] == "Mailer.send (number=7, to=ada)" and named["4"] == "Mailer.send"
        assert named["1/0/0"].startswith("lambda at test_called.py:") and named["1/0/0"].endswith(" (1)") and named["5"].startswith("lambda at test_called.py:")
        assert named["=last"] == "fetch" and named[""] == "fan"
        assert steps["0/0/0"].name == "one" and steps["1/0/0"].name == "<lambda>", "the recorded name is as it was"
        assert {a.call for a in await rt.attempts(run.run_id) if a.number == 2} == {"fetch (eu-2)"}


async def test_events_the_story_and_the_explanation_name_them_in_the_same_words() -> None:
    async with Runtime("memory:", skills=[fan]) as rt:
        run = await rt.invoke(fan)
        told = {e.payload["path"]: e.payload["call"] for e in await rt.events(run.run_id) if e.payload.get("path")}
        assert told["0/0/0"] == "one (eu-1)" and told["0/1/0/0"] == "fetch (eu-2)"
        assert all("call" not in e.payload for e in await rt.events(run.run_id) if "path" in e.payload and not e.payload["path"]), "a node's turn is named by its task"
        story = [m.detail for m in (await rt.look.snapshot(run.run_id)).story()]
        assert "one (eu-1)" in story and "fetch (eu-2): ValueError: no such shard" in story
        happened = (await rt.explain(run.run_id))["happened"]
        assert "In the step fan the call fetch (eu-2) is tried again after attempt 1." in happened
        assert any(line.startswith("In the step fan one call failed, and the code of the step handled that: fetch (eu-2): ValueError: no such shard") for line in happened)


async def test_the_log_has_the_function_and_no_value(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holdfast.run"):
        async with Runtime("memory:", skills=[fan]) as rt:
            await rt.invoke(fan)
    calls = {getattr(r, "call", None) for r in caplog.records}
    assert {"one", "fetch", "Mailer.send"} <= calls and not any("eu-2" in str(vars(r)) for r in caplog.records)


class Shards(State):
    shard: str = ""
    done: Annotated[list[str], append]


async def test_a_task_that_was_sent_is_named_by_what_it_was_sent() -> None:
    graph = Graph("sharded", Shards)

    @graph.node(start=True)
    async def plan(state: Shards) -> list[Send]:
        return [Send("work", {"shard": s}) for s in ("eu-1", "eu-2")]

    @graph.node(after="plan")
    async def work(state: Shards) -> dict[str, Any]:
        return {"done": [state.shard]}

    async with Runtime("memory:", skills=[graph]) as rt:
        run = await rt.invoke(graph)
        assert {"work (shard=eu-1)", "work (shard=eu-2)"} <= {s.call for s in await rt.steps(run.run_id)}
        assert "work (shard=eu-2)" in [m.detail for m in (await rt.look.snapshot(run.run_id)).story()]
