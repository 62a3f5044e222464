"""Ways in which people lose work with LangGraph, each with a graph as a skill over ``HoldfastSaver`` (cases L-01 … L-22).

L-20 is about workers alone and has its tests beside the engine. Each test names its cases; where an issue of LangGraph's tracker tells of the
same loss, its number stands beside them.
"""

from __future__ import annotations

import asyncio
import json
import operator
import pickle
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from holdfast import HoldfastError, Retry, Runtime, current
from holdfast.core.errors import StoreCorrupt, StoreError
from holdfast.integrations.langgraph import HoldfastSaver, as_skill
from holdfast.integrations.langgraph import rows as r

did: list[str] = []
AT: Any = {"configurable": {"thread_id": "t"}}


class Log(TypedDict):
    log: Annotated[list[Any], operator.add]


@pytest.fixture(autouse=True)
def fresh() -> None:
    did.clear()


def line(*nodes: Callable[..., Any]) -> StateGraph[Log]:
    graph = StateGraph(Log)
    for node in nodes:
        graph.add_node(node.__name__, node)
    for before, after in zip([START, *(n.__name__ for n in nodes)], [*(n.__name__ for n in nodes), END], strict=True):
        graph.add_edge(before, after)
    return graph


@asynccontextmanager
async def place(graph: StateGraph[Log], folder: Path) -> AsyncIterator[tuple[Runtime, Any, HoldfastSaver]]:
    """A process: the saver and the runs in one file."""
    url = f"sqlite:///{folder}/runs.db"
    async with HoldfastSaver.from_url(url) as saver:
        skill = as_skill(graph.compile(checkpointer=saver), "talk")
        async with Runtime(url, skills=[skill]) as rt:
            yield rt, skill, saver


def node(name: str, act: Callable[[], Any] = lambda: None) -> Callable[..., Any]:
    async def run(state: Log) -> dict[str, list[Any]]:
        did.append(name)
        act()
        return {"log": [name]}

    run.__name__ = name
    return run


def once(error: BaseException) -> Callable[[], None]:
    """Raises the first time it is called."""
    left = [error]

    def act() -> None:
        if left:
            raise left.pop()

    return act


async def again(rt: Runtime, run: Any) -> Any:
    """Somebody has seen why it failed, and lets it go on."""
    return await rt.resume(run.run_id, acknowledge=run.error.code)


START_INPUT = {"input": {"log": []}}


async def test_a_router_that_fails_once_loses_nothing_downstream(tmp_path: Path) -> None:
    """L-01 (#8834)."""
    broken = once(ValueError("no route"))

    def route(state: Log) -> str:
        broken()
        return "after"

    graph = StateGraph(Log).add_node("first", node("first")).add_node("after", node("after"))
    graph.add_edge(START, "first").add_conditional_edges("first", route, ["after"]).add_edge("after", END)
    async with place(graph, tmp_path) as (rt, skill, _):
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
        assert run.status == "failed"
        run = await again(rt, run)
        assert (run.status, run.result) == ("completed", {"log": ["first", "after"]}), run.error


async def test_four_turns_at_once_are_all_kept_in_their_order(tmp_path: Path) -> None:
    """L-02 (#8796); over processes: ``test_turns_of_two_processes``."""
    async with place(line(node("a"), node("b")), tmp_path) as (rt, skill, saver):
        begun = [await rt.submit(skill, {"input": {"log": [f"turn {n}"]}}, thread_id="t") for n in range(4)]
        await rt.worker(until_idle=True)
        assert [len((await rt.get(run.run_id)).result["log"]) for run in begun] == [3, 6, 9, 12]
        found = await saver.aget_tuple(AT)
        assert found is not None and found.checkpoint["channel_values"]["log"] == [word for n in range(4) for word in (f"turn {n}", "a", "b")]


async def in_processes(program: str, folder: Path, *words: str) -> Any:
    """What a program of this folder tells that makes processes of its own."""
    command = [sys.executable, str(Path(__file__).with_name(f"{program}.py")), str(folder), *words]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=150, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


async def test_turns_of_two_processes(tmp_path: Path) -> None:
    """L-02 (#8796): two processes, two turns at once in each. LangGraph's own saver keeps one or two of the four."""
    assert await in_processes("langgraph_turns", tmp_path, "skill") == {"skill": 4}


async def test_a_writer_whose_clock_is_behind_hides_no_turn(tmp_path: Path) -> None:
    """L-03 (#6869): a checkpoint of the thread has an id of the near future; the next turn stands after it."""
    async with place(line(node("a")), tmp_path) as (rt, skill, saver):
        await rt.invoke(skill, {"input": {"log": ["one"]}}, thread_id="t")
        found = await saver.aget_tuple(AT)
        assert found is not None
        ahead = uuid.UUID(str(uuid6())).int + (700 << 80)  # of 410 µs each
        later = found.checkpoint | {"id": str(uuid.UUID(int=ahead))}
        await saver.aput(found.config, later, found.metadata, {})
        run = await rt.invoke(skill, {"input": {"log": ["two"]}}, thread_id="t")
        assert run.result == {"log": ["one", "a", "two", "a"]}, run.error
        assert ((await saver.aget_tuple(AT)) or found).checkpoint["channel_values"]["log"] == ["one", "a", "two", "a"]


@pytest.mark.parametrize("number", range(1, 7))
async def test_a_save_that_fails_stops_the_run_and_it_goes_on_from_what_is_kept(tmp_path: Path, number: int) -> None:
    """L-04: whichever save it is."""
    async with place(line(node("a"), node("b")), tmp_path) as (rt, skill, saver):
        inner = saver.shelf.put_many
        count = 0

        async def sometimes(rows: dict[str, bytes], **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise StoreError("the disk is away")
            return await inner(rows, **options)

        saver.shelf.put_many = sometimes  # type: ignore[method-assign,assignment]
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
        if run.status != "completed":
            assert run.error is not None and "the disk is away" in str(run.error)
            run = await again(rt, run)
        assert run.result == {"log": ["a", "b"]}, run.error
        listed = [t async for t in saver.alist(AT)]
        assert [len(t.checkpoint["channel_values"].get("log", [])) for t in listed] == sorted((len(t.checkpoint["channel_values"].get("log", [])) for t in listed), reverse=True)
        assert did.count("a") <= 2 and did.count("b") <= 2


async def kept(saver: HoldfastSaver, count: int) -> None:
    """Returns once so many writes of the plan's tasks are in the store."""
    async with asyncio.timeout(60):
        while True:
            writes = [w for key, data in await saver.shelf.scan("t/c/", limit=1000) if not r.of_checkpoint(key) for w in r.writes_of(data)]
            values = [saver.serde.loads_typed((w.kind, w.body)) for w in writes if w.channel == "log"]
            if len([v for v in values if v and not isinstance(v[0], str)]) >= count:
                return
            await asyncio.sleep(0)


def fan(width: int, work: Callable[..., Any]) -> StateGraph[Log]:
    graph = StateGraph(Log).add_node("plan", node("plan")).add_node("work", work).add_node("join", node("join"))
    graph.add_edge(START, "plan").add_conditional_edges("plan", lambda state: [Send("work", n) for n in range(width)], ["work"])
    return graph.add_edge("work", "join").add_edge("join", END)


async def test_a_process_that_dies_in_one_of_several_steps_repeats_that_one_alone(tmp_path: Path) -> None:
    """L-05, L-06, L-21 (#8039): ``kill -9`` once its siblings' writes are kept; a worker goes on by itself, and they are not run again."""
    assert await in_processes("langgraph_dies", tmp_path) == [-9, 0]
    async with Runtime(f"sqlite:///{tmp_path}/runs.db") as rt:
        (run,) = await rt.runs()
        assert run.result == {"log": ["plan", 0, 1, 2, "join"]}, run.error
    acts = (tmp_path / "acts").read_text().split()
    assert sorted(acts) == sorted(["plan", "0", "1", "2", "2", "join"])


async def test_an_effect_before_two_questions_happens_once(tmp_path: Path) -> None:
    """L-07, L-08, L-09 (#7417): the node runs three times, the effect once; each answer is for its own question, and None is an answer."""

    async def pay() -> str:
        did.append("pay")
        return "paid"

    async def ask(state: Log) -> dict[str, list[Any]]:
        did.append("ask")
        ctx = current()
        assert ctx is not None
        return {"log": [await ctx.effect(pay, key="pay"), interrupt("one?"), interrupt("two?")]}

    async with place(line(ask), tmp_path) as (rt, skill, _):
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
        assert [w.prompt for w in run.waits] == ["one?"]
        run = await rt.resume(run.run_id, payload=None)
        assert [w.prompt for w in run.waits] == ["two?"], "the first answer does not answer the second question"
        run = await rt.resume(run.run_id, payload="yes")
        assert run.result == {"log": ["paid", None, "yes"]}, run.error
        assert did.count("pay") == 1 and did.count("ask") == 3


async def test_questions_of_parallel_nodes_are_open_together_and_answered_in_any_order(tmp_path: Path) -> None:
    """L-08 (#6108): a map of answers by question, not by order."""

    async def left(state: Log) -> dict[str, list[Any]]:
        return {"log": [f"left {interrupt('left?')}"]}

    async def right(state: Log) -> dict[str, list[Any]]:
        return {"log": [f"right {interrupt({'ask': 'right?', 'more': 'x' * 5000})}"]}

    graph = StateGraph(Log).add_node("left", left).add_node("right", right).add_edge(START, "left").add_edge(START, "right")
    async with place(graph, tmp_path) as (rt, skill, _):
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
        first, second = sorted(run.waits, key=lambda w: len(w.prompt))
        assert first.prompt == "left?" and second.show == {"ask": "right?", "more": "x" * 5000} and len(second.prompt) < 600
        run = await rt.decide(run.run_id, "answer", wait_id=second.wait_id, payload="R", actor="ada")
        assert [w.wait_id for w in (await rt.get(run.run_id)).waits] == [first.wait_id]
        run = await rt.decide(run.run_id, "answer", wait_id=first.wait_id, payload="L", actor="ada")
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).result == {"log": ["left L", "right R"]}


async def test_a_paused_node_that_is_renamed_is_an_error_and_the_answer_is_kept(tmp_path: Path) -> None:
    """L-11."""

    def graph(name: str) -> StateGraph[Log]:
        async def ask(state: Log) -> dict[str, list[Any]]:
            return {"log": [interrupt("ok?")]}

        return StateGraph(Log).add_node(name, ask).add_edge(START, name).add_edge(name, END)

    async with place(graph("ask"), tmp_path) as (rt, skill, _):
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
    async with place(graph("question"), tmp_path) as (rt, _, _):
        run = await rt.resume(run.run_id, payload="yes")
        assert run.status == "failed" and run.error is not None and run.error.code == "pending_node_missing" and "'ask'" in run.error.message
    async with place(graph("ask"), tmp_path) as (rt, _, _):
        run = await again(rt, run)
        assert (run.status, run.result) == ("completed", {"log": ["yes"]}), run.error


async def test_what_a_node_changes_in_its_input_is_neither_told_nor_kept(tmp_path: Path) -> None:
    """L-13: the result, the kept state and the caller's own dict agree."""

    async def meddles(state: Log) -> None:
        state["log"].append("meddled")

    given: dict[str, Any] = {"log": ["a"]}
    async with place(line(meddles, node("b")), tmp_path) as (rt, skill, saver):
        run = await rt.invoke(skill, {"input": given}, thread_id="t")
        found = await saver.aget_tuple(AT)
        assert found is not None and run.result["log"] == found.checkpoint["channel_values"]["log"]
        assert given == {"log": ["a"]}


async def test_each_old_checkpoint_shows_its_own_list(tmp_path: Path) -> None:
    """L-14."""
    async with place(line(node("a"), node("b")), tmp_path) as (rt, skill, saver):
        for turn in range(3):
            await rt.invoke(skill, {"input": {"log": [f"turn {turn}", "x" * 300]}}, thread_id="t")
        logs = [t.checkpoint["channel_values"].get("log", []) async for t in saver.alist(AT)]
        assert [len(log) for log in logs] == [12, 11, 10, 8, 8, 7, 6, 4, 4, 3, 2, 0]
        whole = logs[0]
        assert all(log == whole[: len(log)] for log in logs)


async def test_a_failing_sibling_does_not_repeat_the_others_effect(tmp_path: Path) -> None:
    """L-15, L-19 (#8115): 64 siblings, one fails; none of the finished is lost or run again when the run is resumed."""
    stumbles = once(ValueError("one of them"))

    async def work(number: int) -> dict[str, list[Any]]:
        did.append(f"work {number}")
        if number == 40:
            await kept(savers[0], 63)
            stumbles()
        return {"log": [number]}

    savers: list[HoldfastSaver] = []
    async with place(fan(64, work), tmp_path) as (rt, skill, saver):
        savers.append(saver)
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
        assert run.status == "failed", run.result
        run = await again(rt, run)
        assert run.result == {"log": ["plan", *range(64), "join"]}, run.error
        assert did.count("work 40") == 2 and len(did) == 64 + 1 + 2


async def test_a_node_that_blocks_is_given_up_in_time_and_its_late_write_does_not_count(tmp_path: Path) -> None:
    """L-16."""
    from datetime import timedelta
    from threading import Event

    go, late = Event(), Event()

    def blocks(state: Log) -> dict[str, list[Any]]:
        did.append("blocks")
        if did.count("blocks") == 1:
            go.wait(20)
            late.set()
            return {"log": ["late"]}
        return {"log": ["in time"]}

    url = f"sqlite:///{tmp_path}/runs.db"
    async with HoldfastSaver.from_url(url) as saver:
        skill = as_skill(line(blocks).compile(checkpointer=saver), "talk", timeout=timedelta(seconds=0.5))
        async with Runtime(url, skills=[skill]) as rt:
            began = time.monotonic()
            run = await rt.invoke(skill, START_INPUT, thread_id="t")
            assert run.status == "failed" and time.monotonic() - began < 10
            go.set()
            assert await asyncio.to_thread(late.wait, 10)
            run = await again(rt, run)
            assert run.result == {"log": ["in time"]}, run.error


class Trap:
    """Whoever loads it is caught."""

    def __reduce__(self) -> Any:
        return (did.append, ("called",))


@pytest.mark.parametrize("kind", ["pickle", "msgpack", "json", "odd"])
async def test_hostile_bytes_in_the_store_call_nothing_and_are_named(tmp_path: Path, kind: str) -> None:
    """L-18."""
    async with place(line(node("a")), tmp_path) as (rt, skill, saver):
        run = await rt.invoke(skill, {"input": {"log": ["x" * 300]}}, thread_id="t")
        thread = r.Thread.of("t")
        row = r.Checkpoint("", str(uuid6()), None, None, empty_checkpoint()["ts"], kind, pickle.dumps(Trap()), kind, pickle.dumps(Trap()))
        await saver.shelf.put(thread.checkpoint("", row.id), r.encode(row))
        with pytest.raises(StoreCorrupt):
            await saver.aget_tuple(AT)
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
        assert run.status == "failed" and run.error is not None and run.error.type.endswith("StoreCorrupt"), run.error
        assert "called" not in did


async def test_waiting_turns_hold_no_task(tmp_path: Path) -> None:
    """L-22."""

    async def ask(state: Log) -> dict[str, list[Any]]:
        return {"log": [interrupt("ok?")]}

    async with place(line(ask), tmp_path) as (rt, skill, _):
        await rt.invoke(skill, START_INPUT, thread_id="first")
        before = len(asyncio.all_tasks())
        for number in range(20):
            await rt.invoke(skill, START_INPUT, thread_id=f"t{number}")
        left = [task for task in asyncio.all_tasks() if not task.cancelling()]  # one that watched an inbox may be about to end
        assert len(left) <= before
        assert len(await rt.waits(limit=100)) == 21


async def test_a_new_turn_after_one_that_failed_is_a_turn_of_its_own(tmp_path: Path) -> None:
    """A failed turn keeps what it did; the next begins at the graph's start and repeats nothing of it."""
    stumbles = once(ValueError("once"))
    async with place(line(node("a"), node("b", stumbles), node("c")), tmp_path) as (rt, skill, _):
        failed = await rt.invoke(skill, {"input": {"log": ["one"]}}, thread_id="t")
        assert failed.status == "failed"
        run = await rt.invoke(skill, {"input": {"log": ["two"]}}, thread_id="t")
        assert run.status == "completed" and run.result["log"][:3] == ["one", "a", "two"], run.error


async def test_the_same_request_again_is_the_same_turn(tmp_path: Path) -> None:
    """A client that sends its message again after a lost answer gets the turn that is there."""
    async with place(line(node("a")), tmp_path) as (rt, skill, _):
        one = await rt.invoke(skill, {"input": {"log": ["hi"]}}, thread_id="t", key="message-1")
        again = await rt.invoke(skill, {"input": {"log": ["hi"]}}, thread_id="t", key="message-1")
        assert one.run_id == again.run_id and did == ["a"]


async def test_a_command_that_goes_elsewhere_survives_a_question(tmp_path: Path) -> None:
    """``Command(goto=…)`` after an interrupt, over another process."""

    async def ask(state: Log) -> Command[Any]:
        return Command(goto="yes" if interrupt("ok?") else "no", update={"log": ["asked"]})

    def graph() -> StateGraph[Log]:
        built = StateGraph(Log).add_node("ask", ask, destinations=("yes", "no")).add_node("yes", node("yes")).add_node("no", node("no"))
        return built.add_edge(START, "ask").add_edge("yes", END).add_edge("no", END)

    async with place(graph(), tmp_path) as (rt, skill, _):
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
    async with place(graph(), tmp_path) as (rt, _, _):
        run = await rt.resume(run.run_id, payload=True)
        assert run.result == {"log": ["asked", "yes"]}, run.error


def asking(*questions: Any) -> StateGraph[Log]:
    """One node that asks these in their order; its code is the same, what it asks is bound to it."""

    async def ask(state: Log) -> dict[str, list[Any]]:
        return {"log": [interrupt(question) for question in questions]}

    return line(ask)


async def over(folder: Path, before: StateGraph[Log], after: StateGraph[Log], answers: list[Any]) -> Any:
    """The run whose code was changed while its last question was open, and that answer given."""
    async with place(before, folder) as (rt, skill, _):
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
        for answer in answers[:-1]:
            run = await rt.resume(run.run_id, payload=answer)
    async with place(after, folder) as (rt, _, _):
        return await rt.resume(run.run_id, payload=answers[-1])


NAME, TOWN = "What is the name?", {"question": "Which town?"}


@pytest.mark.parametrize("answers", [["Ada"], ["Ada", "Oslo"]], ids=["none answered", "one answered"])
async def test_questions_of_a_node_swapped_while_it_waits_are_an_error_and_the_answer_is_kept(tmp_path: Path, answers: list[str]) -> None:
    """L-10: LangGraph gives an answer to whichever question comes at its place now."""
    run = await over(tmp_path, asking(NAME, TOWN), asking(TOWN, NAME), answers)
    assert run.status == "failed" and run.error is not None and run.error.code == "question_changed", run.result
    assert NAME in run.error.message and TOWN["question"] in run.error.message
    async with place(asking(NAME, TOWN), tmp_path) as (rt, _, _):
        run = await again(rt, run)
        if answers == ["Ada"]:
            run = await rt.resume(run.run_id, payload="Oslo")
        assert (run.status, run.result) == ("completed", {"log": ["Ada", "Oslo"]}), run.error


async def test_questions_with_what_they_are_about_in_them_are_told_apart_too(tmp_path: Path) -> None:
    """L-10: by the words in the code, in nodes and in what nodes call."""

    def first(state: Log, cents: int) -> Any:
        return interrupt(f"Pay {cents}?")

    def second(state: Log, cents: int) -> Any:
        return interrupt({"ask": f"Delete {cents}?", "about": cents})

    def version(*steps: Callable[[Log, int], Any]) -> StateGraph[Log]:
        def ask(state: Log) -> dict[str, list[Any]]:
            return {"log": [step(state, 4200) for step in steps]}

        return line(ask)

    run = await over(tmp_path, version(first, second), version(second, first), ["yes"])
    assert run.error is not None and run.error.code == "question_changed"


async def test_a_question_that_is_only_worded_otherwise_takes_the_answer(tmp_path: Path) -> None:
    """Neither what a model wrote into it, nor other words of the code, nor a node that asks no more are a swap."""
    written = iter(["a role and a name", "something else"])

    async def draft(state: Log) -> dict[str, list[Any]]:
        did.append("draft")
        return {"log": [interrupt({"role": "draft", "text": next(written)})]}

    async def draft_better(state: Log) -> dict[str, list[Any]]:
        did.append("again")
        return {"log": [interrupt({"role": "draft", "text": "a name"})]}

    draft_better.__name__ = "draft"
    for number, (before, after, log) in enumerate(
        [
            (asking("Name?"), asking("What is the name, please?"), ["Ada"]),
            (line(draft), line(draft_better), ["Ada"]),
            (asking("Name?"), line(node("ask")), ["ask"]),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = await over(folder, before, after, ["Ada"])
        assert (run.status, run.result) == ("completed", {"log": log}), (number, run.error)


async def test_a_node_is_not_run_once_more_where_its_code_is_as_it_was(tmp_path: Path) -> None:
    def graph() -> StateGraph[Log]:
        async def ask(state: Log) -> dict[str, list[Any]]:
            did.append("ask")
            return {"log": [interrupt("ok?")]}

        return line(ask)

    run = await over(tmp_path, graph(), graph(), ["yes"])
    assert run.status == "completed" and did == ["ask", "ask"]


async def test_recorded_calls_of_a_node_that_are_reordered_keep_their_results(tmp_path: Path) -> None:
    """L-12: by their keys; two functions that change keys are an error, and so is a call without a key."""

    async def left() -> str:
        did.append("left")
        return "L"

    async def right() -> str:
        did.append("right")
        return "R"

    def graph(*calls: tuple[str, Any]) -> StateGraph[Log]:
        async def act(state: Log) -> dict[str, list[Any]]:
            ctx = current()
            assert ctx is not None
            found = [await (ctx.step(fn, key=key) if key else ctx.step(fn)) for key, fn in calls]
            return {"log": [*found, interrupt("ok?")]}

        return line(act)

    straight, turned, mixed = (("l", left), ("r", right)), (("r", right), ("l", left)), (("l", right), ("r", left))
    for number, (after, result, code) in enumerate([(turned, {"log": ["R", "L", "yes"]}, None), (mixed, None, "record_mismatch")]):
        did.clear()
        folder = tmp_path / str(number)
        folder.mkdir()
        run = await over(folder, graph(*straight), graph(*after), ["yes"])
        assert (run.result, run.error and run.error.code) == (result, code), run.error
        assert did == ["left", "right"]
    async with place(graph(("", left)), tmp_path) as (rt, skill, _):
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
        assert run.error is not None and run.error.type.endswith("ConcurrentScope")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the world drops the framework's coroutines where a process dies
def test_three_attempts_are_three_wherever_a_process_dies(holdfast_crashes: Any) -> None:
    """L-17: ``retry=`` of the skill; LangGraph's own policy begins to count anew in each process. What is done is not done again."""

    def fails() -> None:
        raise ConnectionError("down")

    counts: list[tuple[int, int]] = []

    def begin(world: Any) -> None:
        counts.append((did.count("a"), did.count("b")))
        did.clear()
        graph.checkpointer = InMemorySaver()

    graph = line(node("a"), node("b", fails)).compile(checkpointer=InMemorySaver())
    skill = as_skill(graph, "talk", retry=Retry(3, base_us=1000))
    _, ends = holdfast_crashes(skill, START_INPUT, fresh=begin)
    counts = [*counts[1:], (did.count("a"), did.count("b"))]
    assert {(end.run.status, end.run.error and end.run.error.type) for end in ends} == {("failed", "ConnectionError")}
    assert counts[0] == (1, 3) and set(counts) == {(1, 3), (1, 4)}, "at most the one that was under way is not counted"


async def test_an_error_handler_beside_a_failing_sibling_acts_once(tmp_path: Path) -> None:
    """L-15 (#9002): the handler's writes are kept, and its effect happens once when the run goes on."""
    stumbles, told = once(ValueError("the sibling")), asyncio.Event()

    async def tell() -> str:
        did.append("told")
        told.set()
        return "told"

    async def fails(state: Log) -> None:
        raise ValueError("fails")

    async def handler(state: Log) -> dict[str, list[Any]]:
        ctx = current()
        assert ctx is not None
        return {"log": [await ctx.effect(tell, key="tell")]}

    async def sibling(state: Log) -> dict[str, list[Any]]:
        await told.wait()
        stumbles()
        return {"log": ["sibling"]}

    graph = StateGraph(Log).add_node("fails", fails, error_handler=handler).add_node("sibling", sibling)
    graph.add_edge(START, "fails").add_edge(START, "sibling")
    async with place(graph, tmp_path) as (rt, skill, _):
        async with asyncio.timeout(60):
            run = await rt.invoke(skill, START_INPUT, thread_id="t")
        for _ in range(3):
            if run.status == "failed":
                run = await again(rt, run)
        assert (run.status, run.result and sorted(run.result["log"]), did) == ("completed", ["sibling", "told"], ["told"]), run.error


async def test_what_a_canceled_run_did_and_told_is_kept(tmp_path: Path) -> None:
    """#5672: nodes that ended are in the thread's state, who follows has heard every piece, and the next turn goes on from there."""
    go = asyncio.Event()

    async def tells(state: Log) -> dict[str, list[Any]]:
        ctx = current()
        assert ctx is not None
        if "again" not in state["log"]:
            ctx.emit({"role": "assistant", "content": "half of "})
            ctx.emit({"role": "assistant", "content": "an answer"})
            await go.wait()
        return {"log": ["tells"]}

    async with place(line(node("a"), tells), tmp_path) as (rt, skill, _):
        run = await rt.submit(skill, START_INPUT, thread_id="t")
        stop = asyncio.Event()
        works = asyncio.ensure_future(rt.worker(stop=stop))
        async with asyncio.timeout(60):
            pieces = []
            async for part in rt.stream(run.run_id, modes=("messages",)):
                pieces.append(part.data["content"])
                if len(pieces) == 2:
                    await rt.cancel(run.run_id)
        stop.set()
        await works
        assert ((await rt.get(run.run_id)).status, pieces) == ("canceled", ["half of ", "an answer"])
        run = await rt.invoke(skill, {"input": {"log": ["again"]}}, thread_id="t")
        assert run.result == {"log": ["a", "again", "a", "tells"]}, run.error


async def test_an_answer_to_a_question_that_is_not_open_is_refused(tmp_path: Path) -> None:
    """#8836: LangGraph takes an answer under an unknown id and goes on as if there were none."""

    async def ask(state: Log) -> dict[str, list[Any]]:
        return {"log": [interrupt("ok?")]}

    async with place(line(ask), tmp_path) as (rt, skill, _):
        run = await rt.invoke(skill, START_INPUT, thread_id="t")
        with pytest.raises(HoldfastError, match="nowhere"):
            await rt.decide(run.run_id, "answer", wait_id="nowhere", payload="yes", actor="ada")
        run = await rt.resume(run.run_id, payload="yes")
        assert run.result == {"log": ["yes"]} and await rt.waits() == []
