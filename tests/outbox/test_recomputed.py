"""What a step that is computed again makes of its sendings (§9.2, T-68), and when it is not computed again at all (§10.9, T-88): on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, State, policy
from holdfast.core.errors import StepTimeout
from holdfast.testing import CrashingStore, Fault, SimulatedCrash
from tests.outbox.conftest import Open

KEYS = [".1.first!0", ".1.first!1", ".2.second!0"]


class Letter(State):
    text: str = ""


def letters(begun: list[str]) -> Graph[Letter]:
    graph: Graph[Letter] = Graph("letters", Letter, version="1")

    @graph.node(start=True, capabilities=("mail",), retry=5)
    async def first(state: Letter, ctx: Context) -> dict[str, str]:
        begun.append(ctx.run.run_id)
        ctx.send("mail", {"n": 1})
        ctx.send("mail", {"n": 2})
        return {"text": "x"}

    @graph.node(after="first")
    async def second(state: Letter, ctx: Context) -> None:
        ctx.send("mail", {"n": 3})

    return graph


async def crashed(rt: Runtime, fault: Fault, number: int) -> tuple[str, bool]:
    """A run whose process died at this commit of it, before the commit or after it; and whether there was such a commit."""
    commits = iter(range(1, 100))

    def plan(_: int, verb: str) -> Fault | None:
        return fault if verb == "commit" and next(commits) == number else None

    submitted = await rt.submit("letters", {})
    dying = Runtime(CrashingStore(rt.store, plan).as_store(), skills=[letters([])], lease=0.3)
    try:
        async with dying:
            await dying.resume(submitted.run_id)
    except SimulatedCrash:
        return submitted.run_id, True
    return submitted.run_id, False


async def test_a_recomputed_step_sends_under_the_same_keys(open_rt: Open) -> None:
    """§9.2, T-68: the process died before each commit and after it; whoever takes the run over sends each once, under the keys of the step."""
    begun: list[str] = []
    got: list[str] = []

    async def send(payload: Any, key: str) -> None:
        got.append(key)

    async with open_rt(skills=[letters(begun)], transports={"mail": send}) as rt:
        ends = [await crashed(rt, fault, number) for number in (1, 2, 3) for fault in (Fault.BEFORE, Fault.AFTER)]
        assert [died for _, died in ends].count(True) >= 4, ends
        stop = asyncio.Event()
        working = asyncio.ensure_future(rt.worker(stop=stop))
        for run_id, _ in ends:
            await rt.result(run_id, timeout=20)
        stop.set()
        await asyncio.wait_for(working, 20)
        await rt.dispatch(until_idle=True)
        for run_id, _ in ends:
            assert [i.key.removeprefix(run_id) for i in await rt.intents(run_id)] == KEYS
        assert sorted(got) == sorted(f"{run_id}{key}" for run_id, _ in ends for key in KEYS)
        assert set(begun) == {run_id for run_id, _ in ends[:3]}, "the second commit is the first step's: what had not committed was computed again, and nothing else"


async def test_what_a_policy_denies_is_tried_once(open_rt: Open) -> None:
    """§8.1, T-88: five attempts are allowed; a denial before the step makes none, one after it has made one, and nothing of it is sent."""
    begun: list[str] = []
    for where, ran in (("gate", 0), ("check", 1)):
        graph: Graph[Letter] = Graph(where, Letter, version="1")
        gates: dict[str, Any] = {where: lambda request: "no mail today"}

        @graph.node(start=True, retry=Retry(max_attempts=5, base_us=1), **gates)
        async def write(state: Letter, ctx: Context) -> None:
            begun.append(ctx.run.run_id)
            ctx.send("mail", {"n": 1})

        async with open_rt(skills=[graph]) as rt:
            run = await rt.invoke(graph, {})
            assert (run.status, run.stop_reason, begun.count(run.run_id)) == ("canceled", "policy_denied", ran)
            assert await rt.intents(run.run_id) == []
    async with open_rt(skills=[letters(begun)], policy=lambda request: policy.deny("closed")) as rt:
        run = await rt.invoke("letters", {})
        assert (run.status, run.stop_reason, begun.count(run.run_id)) == ("canceled", "policy_denied", 0)


@pytest.mark.parametrize("error, ran", [(ValueError("the call timed out"), 1), (StepTimeout("read"), 5)])
async def test_a_timeout_is_known_by_its_class(error: Exception, ran: int, open_rt: Open) -> None:
    """§10.9, T-88: who retries what timed out retries that alone; what an error says makes no timeout of it."""
    begun: list[int] = []
    graph: Graph[Letter] = Graph("slow", Letter, version="1")

    @graph.node(start=True, retry=Retry(max_attempts=5, base_us=1, on=(StepTimeout,)))
    async def read(state: Letter) -> None:
        begun.append(1)
        raise error

    async with open_rt(skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, len(begun)) == ("failed", ran)
        assert run.error is not None and run.error.code == ("step_timeout" if ran > 1 else "step_failed"), run.error
