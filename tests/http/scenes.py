"""Stores for the pages to show: none, one run, many kinds of runs, a run whose every field is hostile, and runs with long names and texts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec

from holdfast import Context, Graph, PermanentError, Runtime, State, append
from holdfast.handle import Run

HOSTILE = (
    "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "&lt;b&gt;", "\u202egnp.exe", "\x1b[31mred\x1b[0m", "{{ 7*7 }}", "</title></style></textarea>",
    "javascript:alert(1)", "<svg/onload=alert(1)>", "' onmouseover='alert(1)", "${7*7}", "\u0007\u200b\u2066bell", "x" * 120,
)


class Notes(State):
    repo: str = ""
    to: str = ""
    commits: Annotated[list[str], append]
    draft: str = ""
    published: str = ""


class Verdict(msgspec.Struct):
    """What a reviewer says."""

    verdict: Literal["publish", "shorten", "drop"]
    pages: int = 1
    remarks: str = ""


class Flaky:
    """Fails so often, then works."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self) -> str:
        self.left -= 1
        if self.left >= 0:
            raise ConnectionError("connection reset by peer")
        return "Adds schedules, limits and an outbox; mends nine faults."


class Mail:
    """Sends what goes to somebody, and refuses everybody else."""

    async def send(self, payload: Any, key: str) -> str:
        if payload["to"] == "nobody":
            raise PermanentError("550 no such mailbox")
        return "250 accepted"


def notes(begun: asyncio.Event | None = None) -> Graph[Notes]:
    """Release notes: read, write with a retry, ask, publish."""
    g = Graph("release-notes", Notes, version="3")

    @g.node(start=True)
    async def scan(state: Notes, ctx: Context) -> dict[str, Any]:
        return {"commits": ["a1f03c2 Add schedules", "77d0e11 Mend a fault of the outbox", "09cc4b5 Write the guide"]}

    @g.node(start=True)
    async def styles(state: Notes) -> dict[str, Any]:
        return {"commits": ["style: plain"]}

    @g.node(after=["scan", "styles"], retry=4)
    async def write(state: Notes, ctx: Context) -> dict[str, Any]:
        if state.repo == "broken":
            raise ValueError("the model refused: its answer is no JSON (at line 1, column 9)")
        return {"draft": f"Notes of {state.repo}: {FLAKY.setdefault(state.repo, Flaky(state.repo == 'flaky'))()}"}

    @g.node(after="write")
    async def review(state: Notes, ctx: Context) -> dict[str, Any]:
        ctx.record("drafts", state.repo, {"length": len(state.draft)})
        match state.repo:
            case "ask":
                said = await ctx.ask("What becomes of this draft?", Verdict, show=state.draft, who=["ada", "operator"], timeout=7200, on_timeout="deliver")
                return {"published": said.verdict if said is not None else "nothing"}
            case "signal":
                await ctx.wait("merged")
            case "quick" | "flaky" | "mail" | "unknown":
                pass
            case _:
                await ctx.approve("Publish these notes?", show={"draft": state.draft, "commits": len(state.commits)})
        return {}

    @g.node(after="review", side_effects="external_action")
    async def publish(state: Notes, ctx: Context) -> dict[str, Any]:
        async def upload(text: str) -> str:
            if begun is not None and state.repo == "unknown":
                begun.set()
                await asyncio.Event().wait()
            return "https://notes.example.org/3"

        place = await ctx.effect(upload, state.draft, timeout=60 if begun is None else 1)  # a cancel waits for an act that is under way
        if state.to:
            ctx.send("mail", {"to": state.to, "text": state.draft})
        return {"published": place}

    return g


FLAKY: dict[str, Flaky] = {}


def evil(text: str) -> Graph[Notes]:
    """A run that says one text wherever it may say something."""
    g = Graph("evil", Notes)

    @g.node(start=True)
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        async def act(given: str) -> str:
            return given

        ctx.record(text[:100] or "t", text[:100] or "k", text)
        await ctx.effect(act, text)
        ctx.send("mail", {"to": "nobody", "text": text})
        await ctx.approve(text, show={text[:100]: text}, who=[text])
        return {}

    @g.node(after="ask")
    async def fail(state: Notes, ctx: Context) -> dict[str, Any]:
        raise ValueError(text)

    return g


def broad() -> Graph[Notes]:
    """A fan-out with long names, and long texts and lists in the places where people read."""
    g = Graph("a-skill-whose-name-is-longer-than-a-narrow-screen", Notes)
    tasks = [f"read_part_{n}_of_the_archive" for n in range(24)]

    @g.node(start=True)
    async def begin(state: Notes) -> dict[str, Any]:
        return {"draft": "https://example.org/" + "path/" * 60}

    def read(name: str) -> None:
        @g.node(name, after="begin")
        async def part(state: Notes) -> dict[str, Any]:
            return {"commits": [name]}

    for name in tasks:
        read(name)

    @g.node(after=tasks)
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        if state.repo == "fails":
            raise ValueError("The archive could not be read. " * 30)
        await ctx.approve("Is everything there that belongs to the archive of this year? " * 7, show={"all": state.commits, "at": state.draft})
        return {}

    return g


async def sent(rt: Runtime) -> None:
    """Sends what is to be sent, as far as it can be."""
    await rt.dispatch(until_idle=True)


async def none(rt: Runtime) -> None:
    """Nothing."""


async def one(rt: Runtime) -> None:
    """One run that waits for a person."""
    rt.add(g := notes())
    await rt.invoke(g, {"repo": "holdfast"}, thread_id="holdfast", tags=["nightly"])


async def many(rt: Runtime) -> None:
    """A run of each kind, some of them often."""
    rt.add(g := notes())
    for n in range(24):
        await rt.invoke(g, {"repo": "quick"}, thread_id=f"quick-{n}", tags=["nightly"] if n % 3 else [])
    await rt.invoke(g, {"repo": "flaky"}, thread_id="flaky")
    waiting = await rt.invoke(g, {"repo": "holdfast"}, thread_id="holdfast", tags=["nightly"])
    await rt.invoke(g, {"repo": "ask"}, thread_id="ask")
    await rt.invoke(g, {"repo": "signal"}, thread_id="signal")
    failed: Run[Any] = await rt.invoke(g, {"repo": "broken"}, thread_id="broken")
    for to in ("nobody", "ada@example.org"):
        await rt.invoke(g, {"repo": "mail", "to": to}, thread_id=f"mail-{to}")
    denied = await rt.invoke(g, {"repo": "denied"}, thread_id="denied")
    await rt.deny(denied.run_id, reason="not on a Friday", actor="grace")
    canceled = await rt.invoke(g, {"repo": "canceled"}, thread_id="canceled")
    await rt.cancel(canceled.run_id, actor="ada", reason="a duplicate")
    points = await rt.checkpoints(waiting.run_id)
    await rt.fork(waiting.run_id, points[-1].checkpoint_id, set={"draft": "A shorter text."}, reason="too long", actor="ada", drive=False)
    await rt.replay(waiting.run_id, actor="ada", drive=False)
    await rt.schedule(g, {"repo": "quick"}, every=3600)
    await rt.submit(g, {"repo": "holdfast"}, thread_id="holdfast")
    assert failed.status == "failed"
    await sent(rt)
    await unknown(rt)


async def unknown(rt: Runtime) -> None:
    """A run whose process died in the middle of an act."""
    begun = asyncio.Event()
    async with Runtime(rt.store.url, skills=[g := notes(begun)]) as doomed:
        driving = asyncio.ensure_future(doomed.invoke(g, {"repo": "unknown"}, thread_id="unknown"))
        await asyncio.wait_for(begun.wait(), 30)
        abandon: Callable[[str], None] = doomed.store.abandon  # type: ignore[attr-defined]
        abandon(doomed.owner)
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
    await rt.worker(until_idle=True)


async def hostile(rt: Runtime) -> None:
    """A run for each hostile text, which says it in every field."""
    for text in HOSTILE:
        rt.add(g := evil(text))
        run = await rt.invoke(g, {"repo": text, "draft": text}, thread_id=text[:100], tags=[text[:1000]])
        rt.add(evil(text))
        if run.waits and text == HOSTILE[0]:
            await rt.decide(run.run_id, "approve", actor=text, note=text)
            await rt.resume(run.run_id)
    await sent(rt)


async def long(rt: Runtime) -> None:
    """Runs with long names, texts and lists."""
    rt.add(g := broad())
    for repo in ("asks", "fails"):
        await rt.invoke(g, {"repo": repo}, thread_id="thread-" + "x" * 80, tags=["t" * 60], lane=repo)


SCENES: dict[str, Callable[[Runtime], Awaitable[None]]] = {"none": none, "one": one, "many": many, "hostile": hostile, "long": long}
