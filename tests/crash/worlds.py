"""Scripted worlds for crash tests: small programs that tell of each execution, and what must come out of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from holdfast import Context, Flow, Graph, Send, State, append, flow, merge
from holdfast.testing import World
from holdfast.testing.world import Host, Script, approve_all

Skill = Graph[Any] | Flow[..., Any]


class Stage:
    """The world that runs now; programs are built once and tell it what they do."""

    world: World

    def enter(self, world: World) -> None:
        self.world = world

    def acting(self, ctx: Context, name: str) -> Callable[..., Awaitable[str]]:
        """An effect that counts outside by what it does, so that a changed key cannot hide a second act."""

        async def act(text: str, *, idempotency_key: str) -> str:
            await self.world.clock.sleep(0.01)
            self.world.outside.act(f"{ctx.run_id} {name} {text}", idempotency_key, f"{name} {text}")
            await self.world.clock.sleep(0.01)
            return f"{name} {text}"

        act.__name__ = name
        return act

    def telling(self, ctx: Context, name: str, seconds: float = 0.01) -> Callable[..., Awaitable[str]]:
        """A recorded step that says when it runs."""

        async def tell(text: str) -> str:
            self.world.begin(ctx, name)
            await self.world.clock.sleep(seconds)
            return f"{name} {text}"

        tell.__name__ = name
        return tell


stage = Stage()


class Trail(State):
    name: str
    trail: Annotated[list[str], append]
    table: Annotated[dict[str, int], merge]
    last: str = ""


def line() -> Graph[Trail]:
    """Three nodes in a row, the second with two recorded steps."""
    graph = Graph("line", Trail)

    @graph.node(start=True)
    async def first(state: Trail, ctx: Context) -> dict[str, Any]:
        stage.world.begin(ctx)
        return {"trail": "first", "last": state.name}

    @graph.node(after="first")
    async def second(state: Trail, ctx: Context) -> dict[str, Any]:
        stage.world.begin(ctx)
        one = await ctx.step(stage.telling(ctx, "one"), state.last)
        two = await ctx.step(stage.telling(ctx, "two"), one)
        return {"trail": two, "last": two}

    @graph.node(after="second")
    async def third(state: Trail, ctx: Context) -> dict[str, Any]:
        stage.world.begin(ctx)
        return {"trail": "third", "table": {"length": len(state.trail)}}

    return graph


def fan() -> Graph[Trail]:
    """Parallel siblings, a fan-out by Send, and a join."""
    graph = Graph("fan", Trail)

    @graph.node(start=True)
    async def deal(state: Trail, ctx: Context) -> list[Send]:
        stage.world.begin(ctx)
        return [Send("work", n) for n in range(3)]

    @graph.node
    async def work(state: Trail, ctx: Context) -> dict[str, Any]:
        stage.world.begin(ctx)
        await stage.world.clock.sleep(0.01 * (3 - ctx.payload))
        done = await ctx.step(stage.telling(ctx, "lift"), str(ctx.payload))
        return {"trail": done, "table": {str(ctx.payload): ctx.payload}}

    for name in ("left", "right"):

        async def side(state: Trail, ctx: Context, name: str = name) -> dict[str, Any]:
            stage.world.begin(ctx)
            await stage.world.clock.sleep(0.01)
            return {"trail": name}

        graph.node(name, after="work")(side)

    @graph.node(after=["left", "right"])
    async def join(state: Trail, ctx: Context) -> dict[str, Any]:
        stage.world.begin(ctx)
        return {"last": ",".join(state.trail)}

    return graph


def asked() -> Graph[Trail]:
    """A wait in the middle, and one beside a sibling that has finished."""
    graph = Graph("asked", Trail)

    @graph.node(start=True)
    async def draft(state: Trail, ctx: Context) -> dict[str, Any]:
        stage.world.begin(ctx)
        return {"last": await ctx.step(stage.telling(ctx, "write"), state.name)}

    @graph.node(after="draft")
    async def ask(state: Trail, ctx: Context) -> dict[str, Any]:
        said = await ctx.approve("Publish?", show=state.last)
        return {"trail": f"approved by {said.actor}"}

    @graph.node(after="draft")
    async def beside(state: Trail, ctx: Context) -> dict[str, Any]:
        stage.world.begin(ctx)
        return {"trail": await ctx.step(stage.telling(ctx, "prepare"), "all")}

    @graph.node(after=["ask", "beside"])
    async def rest(state: Trail, ctx: Context) -> dict[str, Any]:
        stage.world.begin(ctx)
        await ctx.sleep(45)
        return {"trail": "later"}

    return graph


def acting(*, idempotent: bool) -> Graph[Trail]:
    """An effect, a failing step that is tried again, and an intent."""
    graph = Graph("acting", Trail)

    @graph.node(start=True)
    async def think(state: Trail, ctx: Context) -> dict[str, Any]:
        stage.world.begin(ctx)
        return {"last": await ctx.step(stage.telling(ctx, "model"), state.name)}

    @graph.node(after="think")
    async def do(state: Trail, ctx: Context) -> dict[str, Any]:
        text = await ctx.effect(receiver(ctx) if idempotent else stage.acting(ctx, "pay"), state.last, idempotent=idempotent)
        ctx.send("mail", {"text": text})
        ctx.record("paid", state.name, 1)
        return {"trail": text}

    @graph.node(after="do", retry=3)
    async def shaky(state: Trail, ctx: Context) -> dict[str, Any]:
        if ctx.attempt < 2:
            raise ConnectionError("not yet")
        return {"trail": "steady"}

    return graph


def receiver(ctx: Context) -> Callable[..., Awaitable[str]]:
    """A service that dedupes by the key it is given."""

    async def pay(text: str, *, idempotency_key: str) -> str:
        await stage.world.clock.sleep(0.01)
        if not stage.world.outside.acts[idempotency_key]:
            stage.world.outside.act(idempotency_key)
        await stage.world.clock.sleep(0.01)
        return f"pay {text}"

    return pay


def journey() -> Flow[..., Any]:
    """A flow: steps, recorded dice, a gather, a map, a sleep, an approval."""

    @flow("journey")
    async def travel(ctx: Context, name: str) -> list[Any]:
        packed = await ctx.step(stage.telling(ctx, "pack"), name)
        dice = ctx.random()
        both = await ctx.gather(ctx.step(stage.telling(ctx, "walk", 0.03), "a"), ctx.step(stage.telling(ctx, "ride"), "b"))
        await ctx.sleep(60)
        said = await ctx.approve("Go on?")
        seen = await ctx.map(stage.telling(ctx, "look"), ["x"])
        return [packed, both, said.action, seen, 0 <= dice < 1]

    return travel


WORLDS: dict[str, tuple[Callable[[], Skill], Script]] = {
    "line": (line, approve_all),
    "parallel": (fan, approve_all),
    "wait": (asked, approve_all),
    "effect": (lambda: acting(idempotent=True), approve_all),
    "flow": (journey, approve_all),
}

__all__ = ["WORLDS", "Host", "acting", "asked", "fan", "journey", "line", "stage"]
