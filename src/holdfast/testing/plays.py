"""The programs that the simulator runs: small, quick to check, and each with something that a careless engine gets wrong.

They are built once; ``STAGE`` says in which world they run now. A node tells the world that it begins, so that the world
sees if a step that is on record as completed begins again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from holdfast.authoring import Graph, Skill, State, flow
from holdfast.core.channels import append, merge
from holdfast.core.graph import Goto, Send
from holdfast.engine.calls.context import Context
from holdfast.handle import Run
from holdfast.testing.world import Host, World, approve_all


class Stage:
    """The world that runs now."""

    world: World

    async def pass_time(self, seconds: float) -> None:
        """Sleeps for ``seconds`` times a random factor between 0.5 and 1.5."""
        await self.world.clock.sleep(seconds * (0.5 + self.world.rng.random()))


STAGE = Stage()


def act(ctx: Context, name: str) -> Callable[..., Awaitable[str]]:
    """Returns an effect on ``Outside``, which counts it by what it does and not by its key."""

    async def acting(text: str, *, idempotency_key: str) -> str:
        await STAGE.pass_time(0.1)
        STAGE.world.outside.act(f"{ctx.run_id} {name} {text}", idempotency_key, f"{name} {text}")
        await STAGE.pass_time(0.1)
        return f"{name} {text}"

    acting.__name__ = name
    return acting


def dedupe(ctx: Context, name: str) -> Callable[..., Awaitable[str]]:
    """Returns an effect whose receiver removes duplicates by the key."""

    async def acting(text: str, *, idempotency_key: str) -> str:
        await STAGE.pass_time(0.1)
        if idempotency_key not in STAGE.world.outside.known:
            STAGE.world.outside.act(f"{ctx.run_id} {name} {text}", idempotency_key, f"{name} {text}")
        await STAGE.pass_time(0.1)
        return f"{name} {text}"

    acting.__name__ = name
    return acting


def tell(ctx: Context, name: str, seconds: float = 0.1) -> Callable[..., Awaitable[str]]:
    """Returns the function of a recorded step."""

    async def telling(text: str) -> str:
        STAGE.world.begin(ctx, name)
        await STAGE.pass_time(seconds)
        return f"{name} {text}"

    telling.__name__ = name
    return telling


class Trail(State):
    name: str
    trail: Annotated[list[str], append]
    table: Annotated[dict[str, int], merge]
    count: int = 0
    news: str = ""


def _line() -> Graph[Trail]:
    graph = Graph("line", Trail)

    @graph.node(start=True)
    async def read(state: Trail, ctx: Context) -> dict[str, Any]:
        STAGE.world.begin(ctx)
        return {"trail": await ctx.step(tell(ctx, "model"), state.name)}

    @graph.node(after="read")
    async def pay(state: Trail, ctx: Context) -> dict[str, Any]:
        STAGE.world.begin(ctx)
        return {"trail": await ctx.effect(act(ctx, "pay"), state.name), "count": 1}

    @graph.node(after="pay")
    async def note(state: Trail, ctx: Context) -> dict[str, Any]:
        STAGE.world.begin(ctx)
        ctx.send("mail", {"to": state.name})
        ctx.record("paid", state.name, len(state.trail))
        return {"count": state.count + len(state.trail)}

    return graph


def _fan() -> Graph[Trail]:
    graph = Graph("fan", Trail)

    @graph.node(start=True)
    async def deal(state: Trail, ctx: Context) -> list[Send]:
        return [Send("work", n) for n in range(3)]

    @graph.node
    async def work(state: Trail, ctx: Context) -> dict[str, Any]:
        STAGE.world.begin(ctx)
        await STAGE.pass_time(0.3)
        if ctx.payload == 1:
            lifted = await ctx.effect(dedupe(ctx, "lift"), "1", idempotent=True)
        else:
            lifted = await ctx.step(tell(ctx, "lift"), str(ctx.payload))
        return {"trail": lifted, "table": {str(ctx.payload): ctx.payload}}

    @graph.node(after="work", retry=4)
    async def shaky(state: Trail, ctx: Context) -> dict[str, Any]:
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return {"trail": "steady"}

    @graph.node(after="work")
    async def calm(state: Trail, ctx: Context) -> dict[str, Any]:
        STAGE.world.begin(ctx)
        return {"trail": "calm", "news": "fresh"}

    @graph.node(on=["news"])
    async def listener(state: Trail, ctx: Context) -> dict[str, Any]:
        STAGE.world.begin(ctx)
        return {"table": {"heard": len(state.trail)}}

    @graph.node(after=["shaky", "calm"])
    async def join(state: Trail, ctx: Context) -> dict[str, Any]:
        STAGE.world.begin(ctx)
        return {"count": len(state.trail)}

    return graph


def _ask() -> Graph[Trail]:
    graph = Graph("asked", Trail)

    @graph.node(start=True)
    async def ask(state: Trail, ctx: Context) -> dict[str, Any]:
        said = await ctx.approve("Publish?", show=state.name)
        return {"trail": said.action}

    @graph.node(start=True)
    async def beside(state: Trail, ctx: Context) -> dict[str, Any]:
        STAGE.world.begin(ctx)
        return {"trail": await ctx.effect(act(ctx, "prepare"), "all")}

    @graph.node(after=["ask", "beside"])
    async def publish(state: Trail, ctx: Context) -> dict[str, Any]:
        await ctx.sleep(2)
        return {"trail": await ctx.effect(act(ctx, "publish"), state.name)}

    return graph


def _loop() -> Graph[Trail]:
    graph = Graph("loop", Trail)

    @graph.node(start=True)
    async def turn(state: Trail, ctx: Context) -> Goto:
        STAGE.world.begin(ctx)
        done = await ctx.effect(act(ctx, "turn"), str(state.count))
        return Goto("turn" if state.count < 3 else "rest", {"count": state.count + 1, "trail": done})

    @graph.node
    async def rest(state: Trail, ctx: Context) -> dict[str, Any]:
        STAGE.world.begin(ctx)
        return {"trail": "rest"}

    return graph


def _rounds() -> Graph[Trail]:
    """A join in a loop: in each round it waits for both branches, also for the longer one."""
    graph = Graph("rounds", Trail)

    def way(name: str) -> Callable[[Trail, Context], Awaitable[dict[str, Any]]]:
        async def walk(state: Trail, ctx: Context) -> dict[str, Any]:
            STAGE.world.begin(ctx)
            await STAGE.pass_time(0.1)
            return {"trail": name}

        return walk

    graph.node("start", start=True)(way("start"))
    graph.node("short", after="start")(way("short"))
    graph.node("long", after="start")(way("long"))
    graph.node("longer", after="long")(way("longer"))

    @graph.node(after=["short", "longer"])
    async def join(state: Trail, ctx: Context) -> Goto | dict[str, Any]:
        STAGE.world.begin(ctx)
        writes = {"count": state.count + 1, "trail": "join"}
        return Goto("start", writes) if state.count < 1 else writes

    return graph


@flow("journey")
async def _journey(ctx: Context, name: str) -> list[Any]:
    packed = await ctx.step(tell(ctx, "pack"), name)
    ctx.random()
    both = await ctx.gather(ctx.step(tell(ctx, "walk", 0.3), "a"), ctx.effect(act(ctx, "ride"), "b"))
    await ctx.sleep(1)
    said = await ctx.approve("Go on?")
    seen: list[str] = await ctx.map(tell(ctx, "look"), ["x"])
    return [packed, both, said.action, seen]


class Play(NamedTuple):
    """A program, and what it must end with, with or without faults, by the name that a run is given. ``acts``: what must have been done outside by its end."""

    skill: Skill
    expected: Callable[[str], Any]
    acts: Callable[[str], Sequence[str]] = lambda name: ()


class Cast(NamedTuple):
    """The programs of a simulation. ``others`` are programs that ``plays`` start; ``answer`` is what people do about a run that asks."""

    plays: Mapping[str, Play]
    others: Sequence[Skill] = ()
    answer: Callable[[Host, Run[Any]], Coroutine[Any, Any, None]] = approve_all

    @property
    def skills(self) -> list[Skill]:
        return [*(play.skill for play in self.plays.values()), *self.others]


def _trail(*words: str, **more: Any) -> Callable[[str], Any]:
    return lambda name: {"trail": [w.format(name=name) for w in words], **more}


PLAYS: Mapping[str, Play] = {
    "line": Play(_line(), _trail("model {name}", "pay {name}", count=3)),
    "fan": Play(_fan(), _trail("lift 0", "lift 1", "lift 2", "steady", "calm", count=5, table={"0": 0, "1": 1, "2": 2, "heard": 5})),
    "asked": Play(_ask(), _trail("approve", "prepare all", "publish {name}")),
    "loop": Play(_loop(), _trail("turn 0", "turn 1", "turn 2", "turn 3", "rest", count=4)),
    "rounds": Play(_rounds(), _trail(*2 * ("start", "short", "long", "longer", "join"), count=2)),
    "journey": Play(_journey, lambda name: [f"pack {name}", ["walk a", "ride b"], "approve", ["look x"]]),
}

__all__ = ["PLAYS", "STAGE", "Cast", "Play", "Stage"]
