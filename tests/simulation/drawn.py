"""Graphs and flows drawn by a seed, played by the simulator (``holdfast.testing.simulate``).

``python -m tests.simulation.drawn [--seeds N] [--first N] [--store memory|sqlite|postgres] [--budget MINUTES]``, some 300 ms a seed in memory.

The simulator has six programs, written by hand. Here each seed draws two more: nodes in any order, joins, routers, fan-outs, loops, sub-graphs and children, whose
nodes make any recorded calls, in scopes too. An undisturbed run says first what must come of each. Then the same program runs among crashes, lost writes, frozen
processes and late answers, and must end with the same values and the same acts, each of them done once.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from tests.postgres.blocking import finish, over
from tests.searches import make_parser, report

from holdfast.authoring import Graph, Skill, State, flow
from holdfast.core.channels import append, merge, override, topic, window
from holdfast.core.effects import Absent, Happened
from holdfast.core.graph import Goto, Send, any_of
from holdfast.core.retry import Retry
from holdfast.core.status import TERMINAL, Status
from holdfast.engine.calls.context import Context
from holdfast.handle import Run
from holdfast.ports import RunFilter, Store
from holdfast.testing import VirtualClock
from holdfast.testing.plays import STAGE, Cast, Play
from holdfast.testing.simulate import Story, simulate
from holdfast.testing.world import Host, World, approve_all

NAME = "@"
"""The name of the undisturbed run. It is found again in its values, and the name of another run is put in its place."""

ROUNDS = 60
MOST_TURNS = 200_000
Part = tuple[Any, ...]
Plan = list[Part]

LEAVES = (
    "step", "step", "plain", "act", "act", "dedupe", "verified", "approve", "ask", "sleep", "wait", "record", "send", "dice", "flaky", "child", "keyed", "quick",
)
SCOPES = ("gather", "map", "race", "caught", "each")
PEOPLE = frozenset({"approve", "ask", "wait", "child"})
KINDS = ("plan", "plan", "plan", "loop", "fan", "fast", "fast", "router")


def add(old: int, new: int) -> int:
    return (old or 0) + new


class Drawn(State):
    name: str
    trail: Annotated[list[str], append]
    table: Annotated[dict[str, str], merge]
    last: Annotated[list[str], window(3)]
    heap: Annotated[list[str], topic]
    total: Annotated[int, add] = 0
    news: Annotated[str, override] = ""


class Lost(Exception):
    """A failure that a node expects."""


def digest(text: str, name: str) -> str:
    """Says briefly what a text is, whatever the run is called."""
    return format(zlib.crc32(text.replace(name.partition("/")[0], "").encode()), "08x")


def called(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    return function


# -- what nodes do ------------------------------------------------------------------------------------


class Act(NamedTuple):
    """One call. Its ``place`` is unlike that of any other call of the run, so that an act that is done twice is seen."""

    ctx: Context
    place: str
    name: str

    def step(self, seconds: float = 0.1) -> Callable[..., Any]:
        async def tell(text: str) -> str:
            STAGE.world.begin(self.ctx, self.place)
            await STAGE.pass_time(seconds)
            return f"{self.place}({text})"

        return called(tell, self.place)

    def plain(self) -> Callable[..., Any]:
        def tell(text: str) -> str:
            STAGE.world.begin(self.ctx, self.place)
            return f"{self.place}({text})"

        return called(tell, self.place)

    def flaky(self) -> Callable[..., Any]:
        async def tell(text: str) -> str:
            await STAGE.pass_time(0.05)
            if STAGE.world.rng.random() < 0.4:
                raise ConnectionError("not now")
            return f"{self.place}({text})"

        return called(tell, self.place)

    def effect(self, *, dedupes: bool = False) -> Callable[..., Any]:
        """``dedupes``: the receiver knows the keys that it has had."""

        async def act(text: str, *, idempotency_key: str) -> str:
            await STAGE.pass_time(0.1)
            if not dedupes or idempotency_key not in STAGE.world.outside.known:
                STAGE.world.outside.act(f"{self.name} {self.place} {text}", idempotency_key, f"{self.place}({text})")
            await STAGE.pass_time(0.1)
            return f"{self.place}({text})"

        return called(act, self.place)

    @staticmethod
    async def verify(key: str, text: str) -> Happened | Absent:
        await STAGE.pass_time(0.05)
        known = STAGE.world.outside.known
        return Happened(known[key]) if key in known else Absent()


class Way:
    """One going through a plan."""

    def __init__(self, ctx: Context, name: str, child: Skill | None) -> None:
        self.ctx = ctx
        self.name = name
        self.child = child

    async def go(self, plan: Plan, given: str, at: str) -> str:
        for number, part in enumerate(plan):
            given = await self._one(part, given, f"{at}{number}")
        return given

    async def _one(self, part: Part, given: str, at: str) -> str:
        ctx, act = self.ctx, Act(self.ctx, f"{part[0]}{at}", self.name)
        text = f"{self.name}:{digest(given, self.name)}"
        match part:
            case ("step",):
                got = await ctx.step(act.step(), text)
            case ("plain",):
                got = await ctx.step(act.plain(), text)
            case ("keyed",):
                got = await ctx.step(act.step(0.02), text, key=f"k{at}")
            case ("flaky",):
                got = await ctx.step(act.flaky(), text, retry=Retry(max_attempts=40, base_us=1000))
            case ("act",):
                got = await ctx.effect(act.effect(), text)
            case ("dedupe",):
                got = await ctx.effect(act.effect(dedupes=True), text, idempotent=True)
            case ("verified",):
                got = await ctx.effect(act.effect(), text, verify=act.verify)
            case ("approve",):
                got = (await ctx.approve(f"May {at}?", show=given)).action
            case ("ask",):
                got = await ctx.ask(f"What {at}?", schema=str)
            case ("wait",):
                got = await ctx.wait(f"signal{at}")
            case ("child",):
                got = str(await ctx.child(self.child, {"name": f"{self.name}/{at}"}))
            case ("quick",):
                got = at
            case _:
                return await self._other(part, given, at)
        return f"{given},{got}"

    async def _other(self, part: Part, given: str, at: str) -> str:
        """What gives nothing new, and scopes of other calls."""
        ctx = self.ctx
        match part:
            case ("sleep",):
                await ctx.sleep(1.5)
            case ("record",):
                ctx.record("rows", f"{self.name} {at}", given)
            case ("send",):
                ctx.send("mail", {"to": self.name, "at": at})
            case ("dice",):
                ctx.random()
                ctx.now()
                ctx.uuid()
            case ("gather", plans):
                got = await ctx.gather(*(self.go(plan, f"{given}<{n}", f"{at}g{n}x") for n, plan in enumerate(plans)))
                return f"{given}[{'|'.join(g[len(given) :] for g in got)}]"
            case ("map", plan):

                async def item(letter: str) -> str:
                    return await self.go(plan, f"{given}<{letter}", f"{at}m{letter}x")

                got = await ctx.map(item, ["u", "v", "w"], concurrency=2)
                return f"{given}[{'|'.join(g[len(given) :] for g in got)}]"
            case ("each",):

                def effect(letter: str) -> Awaitable[str]:
                    return ctx.effect(Act(ctx, f"each{at}{letter}", self.name).effect(dedupes=True), f"{self.name}{letter}", idempotent=True)

                return given + "".join(await ctx.map(lambda letter: (ctx, effect(letter))[1], ["u", "v"]))
            case ("race", plan):
                won, came = await ctx.first_of(self.go(plan, given, f"{at}r"), ctx.wait(f"never{at}"))
                return f"{given}{won}{came[len(given) :]}"
            case ("caught", plan):

                async def lose() -> None:
                    raise Lost("always")

                try:
                    given = await self.go(plan, given, f"{at}t")
                    await ctx.step(called(lose, f"lose{at}"))
                except Lost:
                    return given + await ctx.step(Act(ctx, f"mend{at}", self.name).step(), self.name)
        return given


# -- how programs are drawn ---------------------------------------------------------------------------


def draw_plan(rng: random.Random, *, inner: bool = False, alone: bool = False) -> Plan:
    """What a node does, one call after the other. ``inner``: without further scopes; ``alone``: it asks nobody and starts no child."""
    plan: Plan = []
    for _ in range(rng.randint(1, 2 if inner else 3)):
        kind = rng.choice(LEAVES if inner else (*LEAVES, *SCOPES))
        match kind:
            case "gather":
                plan.append((kind, [draw_plan(rng, inner=True, alone=alone) for _ in range(rng.randint(2, 3))]))
            case "map" | "race" | "caught":
                plan.append((kind, draw_plan(rng, inner=True, alone=alone)))
            case _:
                plan.append(("step" if alone and kind in PEOPLE else kind,))
    return plan


class Drawing:
    """Draws one graph. ``child``: the flow that its nodes may start."""

    def __init__(self, rng: random.Random, child: Skill) -> None:
        self._rng = rng
        self._child = child

    def graph(self, id: str, *, inner: bool = False) -> Graph[Drawn]:
        rng, graph = self._rng, Graph(id, Drawn, step_limit=200)
        names = [f"{'b' if inner else 'a'}{n}" for n in range(rng.randint(1, 3 if inner else 5))]
        for number, name in enumerate(names):
            before, options = names[:number], dict[str, Any]()
            if not before or rng.random() < 0.2:
                options["start"] = True
            if before and (not options or rng.random() < 0.3):
                sources = rng.sample(before, rng.randint(1, min(3, len(before))))
                options["after"] = any_of(*sources) if len(sources) > 1 and rng.random() < 0.4 else sources
            if before and rng.random() < 0.15:
                options["on"] = "news"
            if before and rng.random() < 0.2:
                options["when"] = self._when()
            if before and not inner and rng.random() < 0.12:
                graph.subgraph(name, self.graph(f"{id}-{name}", inner=True), pass_out=["trail", "table"], **options)
            else:
                self._put(graph, name, rng.choice(KINDS), options)
        return graph

    def _when(self) -> Callable[[Drawn], bool]:
        odd = self._rng.random() < 0.5
        return lambda state: len(state.trail) % 2 == odd

    def _put(self, graph: Graph[Drawn], name: str, kind: str, options: dict[str, Any]) -> None:
        rng = self._rng
        if kind == "fast":
            graph.node(name, **options)(self._fast(name))
            return
        if rng.random() < 0.2:
            options["retry"] = 3
        graph.node(name, **options)(self._node(name, kind, draw_plan(rng, inner=rng.random() < 0.3)))
        if kind == "fan":
            graph.node(f"{name}w")(self._worker(f"{name}w", draw_plan(rng, inner=True)))
            if rng.random() < 0.5:
                graph.node(f"{name}j", after=f"{name}w")(self._node(f"{name}j", "plan", draw_plan(rng, inner=True)))
        if kind == "router":
            graph.node(f"{name}l")(self._fast(f"{name}l"))
            graph.node(f"{name}r")(self._node(f"{name}r", "plan", draw_plan(rng, inner=True)))
            graph.branch(name, lambda state: f"{name}l" if len(state.trail) % 2 else f"{name}r")

    def _fast(self, name: str) -> Callable[..., Any]:
        pack = self._pack(name)

        async def node(state: Drawn) -> dict[str, Any]:
            return pack(state, f"{name}:{len(state.trail)}")

        return called(node, name)

    def _node(self, name: str, kind: str, plan: Plan) -> Callable[..., Any]:
        pack, laps, child = self._pack(name), self._rng.randint(1, 2), self._child

        async def node(state: Drawn, ctx: Context) -> Any:
            STAGE.world.begin(ctx)
            got = f"{name}:" + await Way(ctx, state.name, child).go(plan, "", f"{place(ctx)}_")
            if kind == "fan":
                return [Send(f"{name}w", n) for n in range(3)]
            if kind == "loop" and sum(said.startswith(f"{name}:") for said in state.trail) < laps:
                return Goto(name, pack(state, got))
            return pack(state, got)

        return called(node, name)

    def _worker(self, name: str, plan: Plan) -> Callable[..., Any]:
        child = self._child

        async def worker(state: Drawn, ctx: Context) -> dict[str, Any]:
            STAGE.world.begin(ctx)
            got = await Way(ctx, state.name, child).go(plan, str(ctx.payload), f"{place(ctx)}_{ctx.payload}_")
            return {"trail": f"{name}:{got}", "table": {f"{name}{ctx.payload}": digest(got, state.name)}}

        return called(worker, name)

    def _pack(self, name: str) -> Callable[[Drawn, str], dict[str, Any]]:
        """What a node writes. Only the first node of a graph has news, or those that listen to it would set each other off for ever."""
        channel = self._rng.choice(["last", "heap", "table", None])
        news = name[1:] == "0" and self._rng.random() < 0.5

        def pack(state: Drawn, got: str) -> dict[str, Any]:
            brief = digest(got, state.name)
            writes: dict[str, Any] = {"trail": got, "total": len(got.replace(state.name, ""))}
            if channel is not None:
                writes[channel] = {name: brief} if channel == "table" else brief
            return writes | ({"news": name} if news else {})

        return pack


def place(ctx: Context) -> str:
    """Where a node stands in its run, which no other of its turns does."""
    return re.sub(r"\W", "_", ctx.step_id.partition(".")[2])


def draw_flow(rng: random.Random, id: str, child: Skill | None) -> Skill:
    plan = draw_plan(rng, alone=child is None) + draw_plan(rng, alone=child is None)

    @flow(id)
    async def drawn(ctx: Context, name: str) -> str:
        return await Way(ctx, name, child).go(plan, "", "f")

    return drawn


# -- how they are played ------------------------------------------------------------------------------


async def answer(host: Host, run: Run[Any]) -> None:
    """Answers by the question alone, so that whoever is asked twice says the same."""
    await approve_all(host, run)
    for wait in run.waits:
        if "answer" in wait.available_actions:
            await host.rt.decide(run.run_id, "answer", wait_id=wait.wait_id, actor="tester", payload=f"({wait.prompt})")
        elif wait.kind == "signal" and not wait.name.startswith("never"):
            await host.rt.signal(run.run_id, wait.name, f"({wait.name})", key=wait.name)


def expect(skill: Skill, skills: Sequence[Skill]) -> tuple[str, tuple[str, ...]] | None:
    """What comes of a program undisturbed: its values as JSON, and what it did outside; None if it comes to no end.

    Raises:
        AssertionError: something is wrong though nothing disturbed it.
    """
    world = World(seed=1)
    STAGE.world = world

    async def play() -> Run[Any]:
        await world.store.open()
        host = await world.host(*skills)
        run = await host.do(host.rt.submit(skill, {"name": NAME}))
        for _ in range(ROUNDS):
            working = host.start(host.rt.worker(until_idle=True))
            await world.clock.sleep(30)
            await working
            for found, _ in await world.store.runs(RunFilter(limit=500)):
                if found.status not in TERMINAL and found.waits:
                    await answer(host, await host.rt.get(found.run_id))
            run = await host.rt.get(run.run_id)
            if run.terminal:
                break
        await world.assert_whole()
        return run

    run = world.run(play(), seed=1, most_turns=MOST_TURNS)
    if run.status is not Status.COMPLETED:
        assert run.status is not Status.FAILED or run.stop_reason == "step_limit", f"undisturbed it fails: {run.error}"
        return None
    return json.dumps(dict(run.values) if isinstance(skill, Graph) else run.result), tuple(world.outside.acts)


def _make(skill: Skill, values: str, acts: tuple[str, ...]) -> Play:
    return Play(skill, lambda name: json.loads(values.replace(NAME, name)), lambda name: [act.replace(NAME, name) for act in acts])


def draw(seed: int) -> Cast:
    """The programs of a seed, with what must come of them; those that come to no end are left out."""
    rng = random.Random(seed)
    child = draw_flow(rng, "child", None)
    skills = [Drawing(rng, child).graph(f"graph-{n}") if rng.random() < 0.75 else draw_flow(rng, f"flow-{n}", child) for n in range(2)]
    expected = {skill: expect(skill, [*skills, child]) for skill in skills}
    return Cast({skill.id: _make(skill, *found) for skill, found in expected.items() if found is not None}, [child], answer)


def play(seed: int, store: Callable[[VirtualClock], Store] | None = None) -> Story | None:
    """Draws programs and plays them; None if none of them comes to an end."""
    cast = draw(seed)
    return simulate(seed, store=store, cast=cast) if cast.plays else None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("tests.simulation.drawn", __doc__, seeds=1000, takes="some five minutes in memory")
    parser.add_argument("--store", choices=["memory", "sqlite", "postgres"], default="memory", help="where the runs are kept (memory)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        store = None if options.store == "memory" else over(options.store, Path(folder))

        def tell(seed: int) -> str:
            try:
                story = play(seed, store)
                return "" if story is None or story.ok else str(story)
            finally:
                finish()

        return report(options, tell)


if __name__ == "__main__":
    sys.exit(main())
