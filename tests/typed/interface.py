"""The example of the docs and what its names are typed as: checked, never run."""

from __future__ import annotations

import datetime as dt
import functools
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, assert_type

import holdfast
from holdfast import (
    END,
    Context,
    Decision,
    Flow,
    Goto,
    Graph,
    Run,
    Runtime,
    Send,
    State,
    Tool,
    any_of,
    append,
    flow,
    merge,
    override,
    thread,
    window,
)


class Notes(State):
    repo: str
    commits: Annotated[list[str], append]
    draft: str = ""
    log: Annotated[list[str], window(50), thread]
    seen: Annotated[dict[str, int], merge]
    newest: Annotated[str, override] = ""
    total: Annotated[int, lambda old, new: old + new] = 0


def length(text: str) -> int:
    return len(text)


async def summarise(commits: list[str]) -> str:
    return "\n".join(commits)


async def sized(text: str, limit: int, *, exact: bool = False) -> str:
    return text[:limit]


async def upload(text: str) -> None: ...


def pay(cents: int, *, idempotency_key: str) -> float:
    return cents / 100


async def was_uploaded(key: str, text: str) -> Any: ...


graph = Graph("release-notes", Notes, version="1")
assert_type(graph, Graph[Notes])


@graph.node(start=True)
async def collect(state: Notes, ctx: Context) -> dict[str, Any]:
    log = await ctx.tool("git", ["log", "--oneline", "-20"], cwd=state.repo)
    return {"commits": log.stdout.splitlines()}


@graph.node(after="collect", retry=3, timeout=timedelta(minutes=5), reads=["commits"], writes=["draft"])
async def draft(state: Notes, ctx: Context) -> dict[str, Any]:
    assert_type(state.commits, list[str])
    assert_type(state.draft, str)
    text = await ctx.step(summarise, state.commits)
    assert_type(text, str)
    assert_type(await ctx.step(length, text), int)
    assert_type(await ctx.step(functools.partial(sized, exact=True), text, 5), str)
    assert_type(await ctx.step(sized, text, 5, key="short", retry=3, timeout=5.0), str)
    assert_type(await ctx.gather(ctx.step(length, "a"), ctx.step(summarise, ["b"])), tuple[int, str])
    assert_type(await ctx.gather(*[ctx.step(length, text) for text in state.commits]), list[int])
    assert_type(await ctx.gather(ctx.step(length, "a")), list[int])
    assert_type(await ctx.map(length, state.commits, concurrency=4), list[int])
    assert_type(await ctx.map(summarise, [state.commits]), list[str])
    assert_type(ctx.now(), dt.datetime)
    assert_type(ctx.random(), float)
    assert_type(ctx.uuid(), uuid.UUID)
    assert_type(ctx.attempt, int)
    assert_type(ctx.fence, int)
    assert_type(ctx.idempotency_key, str)
    assert_type(ctx.feedback, str | None)
    assert_type(ctx.deadline, dt.datetime | None)
    index, _ = await ctx.first_of(ctx.step(length, "a"), ctx.sleep(5))
    assert_type(index, int)
    return {"draft": text}


@graph.node(after="draft", when=lambda state: bool(state.draft))
async def ask(state: Notes, ctx: Context) -> Goto | None:
    decision = await ctx.approve("Publish?", show=state.draft, timeout=timedelta(days=7), who=["ada"], on_deny="deliver")
    assert_type(decision, Decision)
    return None if decision.approved else Goto(END, {"draft": ""})


@graph.node(after=any_of("ask", "draft"))
async def publish(state: Notes, ctx: Context) -> list[Send]:
    await ctx.effect(upload, state.draft, side_effects="external_action", verify=was_uploaded)
    assert_type(await ctx.effect(pay, 5, idempotent=True), float)
    assert_type(await ctx.effect(sized, "a", 5, key="b", undo=pay), str)
    assert_type(await ctx.child(total, {"first": 1}), list[str])
    assert_type(await ctx.child(graph, {"repo": "."}, priority=5), Notes)
    assert_type(await ctx.child("total", {"first": 1}), Any)
    assert_type(await ctx.ask("How many?", int, timeout=5), int)
    assert_type(await ctx.ask("How many?"), Any)
    assert_type(await ctx.ask("How many?", int | None), Any)
    ctx.send("webhook", {"url": "…", "body": state.draft})
    ctx.record("audit", "published", {"size": len(state.draft)})
    ctx.emit("chunk")
    return [Send("plain", 1)]


@graph.node
def plain(state: Notes) -> Mapping[str, Any]:
    return {"newest": state.repo}


@graph.node(on=["commits"], side_effects="none", capabilities=("notes",))
def counts(state: Notes, ctx: Context) -> dict[str, Any]:
    ctx.log.info("counted")
    return {"total": len(state.commits)}


def route(state: Notes) -> str:
    return "plain" if state.total else END


assert_type(graph.edge("publish", END).branch("counts", route), Graph[Notes])
graph.subgraph("inner", Graph("inner", Notes), pass_in=["repo"], pass_out=["draft"], after="plain")


@flow("total", version="2")
async def total(ctx: Context, first: int, second: int = 2) -> list[str]:
    if first > 10:
        ctx.restart(first=0)
    return [str(await ctx.step(length, "x" * first))]


@flow("nothing")
async def nothing(ctx: Context) -> None: ...


async def main() -> None:
    made = Notes(repo=".", commits=[], log=[], seen={})
    assert_type(made.repo, str)
    async with Runtime("sqlite:///runs.db", skills=[graph, total], tools=[Tool("git", side_effects="read")], lease=timedelta(seconds=30)) as rt:
        run = await rt.invoke(graph, {"repo": "."}, thread_id="t1")
        assert_type(run, Run[Notes])
        assert_type(run.state.commits, list[str])
        assert_type(run.state, Notes)
        assert_type(await rt.run(total, 1), list[str])
        assert_type(await rt.run(total, first=1, second=3), list[str])
        assert_type(await rt.run(graph, {"repo": "."}), Notes)
        assert_type(total, Flow[[int, int], list[str]]) if False else None
        async for event in rt.events(run.run_id, follow=True):
            assert_type(event.seq, int)
        for event in await rt.events(run.run_id):
            assert_type(event.event_type, str)
        assert_type((await rt.submit(graph, {"repo": "."}, delay=timedelta(hours=1), key="k")).run_id, str)
        assert_type(run.tags, tuple[str, ...])
    assert_type(holdfast.run(graph, {"repo": "."}, store="memory:"), Notes)
    assert_type(holdfast.run(total, {"first": 1}, store="memory:"), list[str])
