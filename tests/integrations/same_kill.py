"""The same kill, alone and on Holdfast: the table of ``docs/integrations.md``.

    python -m tests.integrations.same_kill [--write]

One program in each framework: it asks a model, looks two orders up, asks the model, asks a person, pays, and asks the model for its last word. Each is killed by
``kill -9`` once, in its last request or right after it paid, and begun again: alone by the same call (LangGraph with a checkpointer in a file, and by ``ainvoke(None)`` where its
thread stands), on Holdfast by a worker. Counted is what happened outside, over both lives. ``--write`` puts the table in the page.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import multiprocessing
import operator
import os
import pathlib
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, TypedDict

from agents import RunConfig, Runner
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from mcp import Client
from mcp.server import MCPServer
from mcp_types import ToolAnnotations
from pydantic_ai import DeferredToolRequests, DeferredToolResults

from holdfast import Context, Flow, HoldfastError, Runtime, current, flow
from holdfast.integrations.langgraph import HoldfastSaver, as_skill
from holdfast.integrations.mcp import mcp_tool
from tests.integrations import desks

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "integrations.md"
PROCESSES = multiprocessing.get_context("fork")  # the frameworks are imported once
PATIENCE_SECONDS = 60
QUESTION = "Pay me back."
PAID, LAST = "pay 4200", "model 3"
KILLS = {LAST: "in its last request", PAID: "right after it paid"}


# -- LangGraph --------------------------------------------------------------------------------------


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


async def think(state: Log) -> dict[str, list[str]]:
    desks.act("model 0")
    return {"log": ["look_up 17, 18"]}


async def read(state: Log) -> dict[str, list[str]]:
    return {"log": [await desks.look("17"), await desks.look("18")]}


async def decide(state: Log) -> dict[str, list[str]]:
    desks.act("model 2")
    return {"log": ["pay 4200"]}


async def pay(state: Log) -> dict[str, list[str]]:
    if interrupt("pay?") != "yes":
        return {"log": ["not paid"]}
    ctx = current()
    return {"log": [await desks.refund(4200) if ctx is None else await ctx.effect(desks.refund, 4200, key="pay")]}


async def say(state: Log) -> dict[str, list[str]]:
    desks.act("model 3")
    return {"log": [desks.TEXT]}


def graph() -> StateGraph[Log]:
    made = StateGraph(Log)
    names = {"think": think, "read": read, "decide": decide, "pay": pay, "say": say}
    for name, node in names.items():
        made.add_node(name, node)
    for before, after in zip([START, *names], [*names, END], strict=True):
        made.add_edge(before, after)
    return made


# -- MCP --------------------------------------------------------------------------------------------

bank = MCPServer("bank")
bank.tool(name="look_up", annotations=ToolAnnotations(read_only_hint=True))(desks.look)
bank.tool(name="pay")(desks.refund)


@flow("mcp", version="1")
async def mcp_desk(ctx: Context, question: str) -> str:
    for order in ("17", "18"):
        await mcp_tool(bank, "look_up", {"order": order})
    await ctx.approve("pay?")
    await mcp_tool(bank, "pay", {"cents": 4200})
    return desks.TEXT


# -- alone ------------------------------------------------------------------------------------------


def person() -> bool:
    """Somebody who says yes."""
    desks.act("person")
    return True


async def pydantic_alone(url: str) -> str:
    async def heard(run: Any, events: Any) -> None:
        async for _ in events:  # the stub's model can but stream
            continue

    output: Any = [str, DeferredToolRequests]
    result: Any = await desks.desk.run(QUESTION, output_type=output, event_stream_handler=heard)
    while isinstance(result.output, DeferredToolRequests):
        approved = DeferredToolResults(approvals={call.tool_call_id: person() for call in result.output.approvals})
        result = await desks.desk.run(message_history=result.all_messages(), deferred_tool_results=approved, output_type=output, event_stream_handler=heard)
    return str(result.output)


async def openai_alone(url: str) -> str:
    config = RunConfig(tracing_disabled=True)
    result = await Runner.run(desks.clerk, QUESTION, run_config=config)
    while result.interruptions:
        state = result.to_state()
        for item in result.interruptions:
            person()
            state.approve(item)
        result = await Runner.run(desks.clerk, state, run_config=config)
    return str(result.final_output)


async def langgraph_alone(url: str) -> str:
    at: Any = {"configurable": {"thread_id": "t"}}
    async with HoldfastSaver.from_url(url) as saver:
        built = graph().compile(checkpointer=saver)
        state = await built.aget_state(at)
        if not state.created_at:
            await built.ainvoke({"log": []}, at, durability="sync")
        elif not state.interrupts:
            await built.ainvoke(None, at, durability="sync")
        while (state := await built.aget_state(at)).interrupts:
            person()
            await built.ainvoke(Command(resume="yes"), at, durability="sync")
        return str(state.values["log"][-1])


async def mcp_alone(url: str) -> str:
    async with Client(bank) as client:
        for order in ("17", "18"):
            await client.call_tool("look_up", {"order": order})
        person()
        await client.call_tool("pay", {"cents": 4200})
    return desks.TEXT


# -- on Holdfast ------------------------------------------------------------------------------------


async def held(skill: Flow[Any, Any], inputs: dict[str, Any], url: str) -> str:
    """Drives the run by a worker, and answers what it asks; whoever answers looks outside first."""
    async with Runtime(url, skills=[skill], lease=1) as rt:
        run = await rt.submit(skill, inputs, thread_id="t", key="one")
        stop = asyncio.Event()
        works = asyncio.ensure_future(rt.worker(stop=stop))
        answered: set[str] = set()
        while (run := await rt.get(run.run_id)).status not in ("completed", "failed"):
            for wait in [w for w in run.waits if w.wait_id not in answered]:
                with contextlib.suppress(HoldfastError):  # the process that may have acted may still live; it is asked again
                    if wait.kind == "effect":
                        await rt.decide(run.run_id, "record_result", wait_id=wait.wait_id, actor="ada", payload=PAYLOADS.get(skill.id, "paid 4200"))
                    else:
                        await rt.decide(run.run_id, wait.available_actions[0], wait_id=wait.wait_id, actor="ada", payload="yes" if wait.kind == "input" else None)
                    person()
                    answered.add(wait.wait_id)
            await rt.store.wait_for_change(0.1)
        stop.set()
        await works
        return str(run.result)


PAYLOADS: dict[str, Any] = {"mcp": [{"type": "text", "text": "paid 4200"}]}


async def langgraph_held(url: str) -> str:
    async with HoldfastSaver.from_url(url) as saver:
        return await held(as_skill(graph().compile(checkpointer=saver), "langgraph"), {"input": {"log": []}}, url)


def held_by(skill: Flow[Any, Any]) -> Callable[[str], Awaitable[str]]:
    return lambda url: held(skill, {"question": QUESTION}, url)


class Framework(NamedTuple):
    """How one is run alone and on Holdfast, and where it is killed."""

    title: str
    alone: Callable[[str], Awaitable[str]]
    held: Callable[[str], Awaitable[str]]
    kills: tuple[str, ...] = (LAST, PAID)


FRAMEWORKS = (
    Framework("Pydantic AI", pydantic_alone, held_by(desks.pydantic_desk)),
    Framework("OpenAI Agents SDK", openai_alone, held_by(desks.openai_desk)),
    Framework("LangGraph", langgraph_alone, langgraph_held),
    Framework("MCP, a tool called by a program", mcp_alone, held_by(mcp_desk), (PAID,)),
)


# -- the kill ---------------------------------------------------------------------------------------


def live(program: Callable[[str], Awaitable[str]], folder: str, dies_after: str) -> None:
    """One life of a process, which ends by ``kill -9`` when it has done this for the first time."""
    acts = pathlib.Path(folder) / "acts"
    os.environ["ACTS"] = str(acts)
    logging.disable(logging.CRITICAL)  # an MCP server tells everything that is logged
    plain = desks.act

    def act(what: str) -> None:
        plain(what)
        if what == dies_after and acts.read_text().split("\n").count(what) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    desks.act = act
    asyncio.run(program(f"sqlite:///{folder}/runs.db"))


class Count(NamedTuple):
    """What happened outside, over both lives."""

    paid: int
    models: int
    reads: int
    people: int

    @property
    def cells(self) -> str:
        return " | ".join(map(str, self))


def count(program: Callable[[str], Awaitable[str]], dies_after: str) -> Count:
    with tempfile.TemporaryDirectory() as folder:
        for ends in (-signal.SIGKILL, 0):
            process = PROCESSES.Process(target=live, args=(program, folder, dies_after))
            process.start()
            process.join(PATIENCE_SECONDS)
            process.kill()
            assert process.exitcode == ends, f"a process ended with {process.exitcode}, and {ends} was to come"
        kinds = Counter(line.split()[0] for line in (pathlib.Path(folder) / "acts").read_text().splitlines())
    return Count(kinds["pay"], kinds["model"], kinds["look_up"], kinds["person"])


def table() -> str:
    """The table as it is in the page."""
    lines = ["| killed | | payments | requests to the model | reads | questions to a person |", "|---|---|---|---|---|---|"]
    for framework in FRAMEWORKS:
        for kill in framework.kills:
            for how, program in (("alone", framework.alone), ("on Holdfast", framework.held)):
                lines.append(f"| {framework.title}, {KILLS[kill]} | {how} | {count(program, kill).cells} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table in the page")
    given = parser.parse_args()
    found = table()
    print(found)
    if given.write:
        page = PAGE.read_text("utf-8")
        PAGE.write_text(re.sub(r"^\| killed \|.*?\n(?=\n)", lambda _: found + "\n", page, count=1, flags=re.M | re.S), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
