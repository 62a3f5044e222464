"""A LangGraph graph as a skill (§19.3): turns of a thread, interrupts as questions, and a crash at every write."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from holdfast import Runtime, UsageError
from holdfast.integrations.langgraph import as_skill
from holdfast.integrations.langgraph.asked import Code

ran: list[str] = []


class Talk(TypedDict):
    log: Annotated[list[str], operator.add]


async def first(state: Talk) -> dict[str, list[str]]:
    ran.append("first")
    return {"log": ["first"]}


async def ask(state: Talk) -> dict[str, list[str]]:
    return {"log": [interrupt("ok?")]}


async def last(state: Talk) -> dict[str, list[str]]:
    ran.append("last")
    return {"log": ["last"]}


def build() -> StateGraph[Talk]:
    graph = StateGraph(Talk).add_node("first", first).add_node("ask", ask).add_node("last", last)
    return graph.add_edge(START, "first").add_edge("first", "ask").add_edge("ask", "last").add_edge("last", END)


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


async def test_an_interrupt_is_a_question_and_its_answer_goes_on() -> None:
    skill = as_skill(build().compile(checkpointer=InMemorySaver()), "talk")
    async with Runtime("memory:", skills=[skill]) as rt:
        run = await rt.invoke(skill, {"input": {"log": []}}, thread_id="t")
        assert run.status == "waiting_for_human" and run.waits[0].prompt == "ok?", run.error
        run = await rt.resume(run.run_id, payload="yes")
        assert run.result == {"log": ["first", "yes", "last"]} and ran == ["first", "last"], run.error


async def test_turns_of_a_thread_share_their_state_one_after_the_other() -> None:
    graph = StateGraph(Talk).add_node("first", first).add_edge(START, "first").add_edge("first", END)
    skill = as_skill(graph.compile(checkpointer=InMemorySaver()), "turns")
    async with Runtime("memory:", skills=[skill]) as rt:
        for turn in range(4):
            await rt.submit(skill, {"input": {"log": [f"turn {turn}"]}}, thread_id="t")
        await rt.worker(until_idle=True)
        ended = [(await rt.get(r.run_id)).result["log"] for r in await rt.runs(thread_id="t")]
        assert sorted(len(log) for log in ended) == [2, 4, 6, 8]
        assert max(ended, key=len) == [x for n in range(4) for x in (f"turn {n}", "first")]


def test_a_graph_without_a_checkpointer_is_refused() -> None:
    with pytest.raises(UsageError, match="no checkpointer"):
        as_skill(build().compile(), "talk")


def test_a_crash_at_any_write_loses_no_turn(holdfast_crashes: Any) -> None:
    """Not one that was accepted and had no checkpoint yet either (#8764)."""
    saver = InMemorySaver()
    skill = as_skill(build().compile(checkpointer=saver), "talk")

    async def script(host: Any, run: Any) -> None:
        for wait in run.waits:
            await host.rt.decide(run.run_id, "answer", wait_id=wait.wait_id, actor="ada", payload="yes")

    def fresh(world: object) -> None:
        saver.storage.clear()
        saver.writes.clear()
        saver.blobs.clear()

    _, ends = holdfast_crashes(skill, {"input": {"log": []}}, script=script, fresh=fresh)
    assert {(str(end.run.result), str(end.run.error), end.run.condition) for end in ends} == {(str({"log": ["first", "yes", "last"]}), "None", "done")}


def test_the_code_of_a_large_module_is_walked_however_deep_its_calls_go() -> None:
    """Two thousand functions, each of which calls the next and the first: a text at the end is found, and another one there is another code."""

    def module(text: str) -> Any:
        names: dict[str, Any] = {"__name__": "large"}
        lines = [f"def f{n}(state):\n    return f{n + 1}(state) or f0(state)\n" for n in range(2000)]
        exec("".join(lines) + f"def f2000(state):\n    return {text!r}\n", names)
        return names["f0"]

    def code(text: str) -> Code:
        return Code.of({"first": module(text)})

    assert "Pay?" in code("Pay?").texts and code("Pay?") == code("Pay?") != code("Delete?")
