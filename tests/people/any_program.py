"""Programs drawn by a seed, which ask people, wait and act; and the world that they act on, which sees what must not be (``tests.people.any_answer``).

Each answer, each signal and each act has a name of its own. So a node sees at once when it is given what was not accepted, or what was meant for another.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from itertools import chain
from typing import Annotated, Any, NamedTuple, Protocol

from holdfast import Context, Graph, State, append, flow
from holdfast.core.effects import Absent, Happened, Unknown
from holdfast.core.errors import HoldfastError
from holdfast.handle import Decision, Wait
from holdfast.policy import require_human

ROOM = 2
SIGNALS = ("red", "blue")
ACTS = ("plain", "verified", "dedupes", "retried", "bound")
"""How an act is declared: a lost one is asked about, looked up, or repeated under its key; one that fails is tried again; one that is bound goes through a limit."""


class Lost(Exception):
    """A failure that may not come again."""


class Process(Protocol):
    """A process that may die."""

    dead: bool

    def die(self) -> BaseException: ...


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)
"""The process in which a node runs."""


class Said(NamedTuple):
    """An answer that was accepted: to which question of which run, and what. ``by_hand``: the result of an act that whoever says it takes back."""

    run_id: str
    wait: Wait
    action: str
    payload: Any
    feedback: str | None
    by_hand: str = ""

    @property
    def what(self) -> tuple[str, Any, str | None]:
        """What makes two answers the same (§5.6)."""
        return self.action, self.payload, self.feedback


class Done(NamedTuple):
    """An act that was done: for which run, where in its program, under which key."""

    run_id: str
    at: str
    key: str
    result: str


class World:
    """What is outside the runs: who said what, and what was done. ``wrong`` is what must not be."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.n = 0
        self.calm = False
        self.said: dict[str, Said] = {}
        self.answers: dict[tuple[str, str], Said] = {}
        self.sent: dict[str, tuple[str, str]] = {}
        self.heard: set[tuple[str, str]] = set()
        self.sources: dict[str, str | None] = {}
        self.done: dict[str, Done] = {}
        self.under_way: set[str] = set()
        self.standing: set[str] = set()
        self.undone: set[str] = set()
        self.inside = 0
        self.wrong: list[str] = []

    def name(self, what: str) -> str:
        self.n += 1
        return f"{what}{self.n}"

    def chance(self, part: float) -> bool:
        """Draws whether something happens that disturbs; nothing does once all is to come to its end."""
        return not self.calm and self.rng.random() < part

    # -- what nodes are told ------------------------------------------------------------------------

    def find_lineage(self, run_id: str) -> list[str]:
        """Returns a run and those that it was forked or replayed from."""
        found: list[str] = []
        at: str | None = run_id
        while at is not None:
            found.append(at)
            at = self.sources.get(at)
        return found

    def hear(self, run_id: str, prompt: str, given: Decision) -> None:
        """A node of a run is told a decision about a question. People are asked again by a fork and by a replay (§5.8)."""
        if given.action == "timeout":
            if given.approved:
                self.wrong.append(f"silence approved {prompt}")
            return
        said = self.said.get(given.actor)
        if said is None or (said.run_id, said.wait.prompt, said.action) != (run_id, prompt, given.action) or (said.payload is not None and said.payload != given.payload):
            self.wrong.append(f"{run_id[-4:]} {prompt} was told {given.action} {given.payload} by {given.actor}, who said {said and (said.run_id[-4:], said.wait.prompt, said.action, said.payload)}")

    def hear_value(self, run_id: str, prompt: str, value: str) -> str:
        """A node of a run is told the answer to a question."""
        said = self.said.get(value.partition(":")[0])
        if said is None or (said.run_id, said.wait.prompt, said.payload) != (run_id, prompt, value):
            self.wrong.append(f"{run_id[-4:]} {prompt} was told {value}")
        return value

    def hear_signal(self, run_id: str, name: str, value: str) -> str:
        """A node of a run is given a signal, which a fork and a replay take over."""
        to, called = self.sent.get(value, ("", ""))
        if called != name or to not in self.find_lineage(run_id):
            self.wrong.append(f"{run_id[-4:]} got {value} for {name}")
        self.heard.add((run_id, value))
        return value

    def accept(self, actor: str, said: Said) -> None:
        """An answer was accepted. A question has one answer (§5.6). The runs of a lineage may ask about an act under one id."""
        before = self.answers.setdefault((said.run_id, said.wait.wait_id), said)
        if self.stands(said.by_hand):
            self.take_back(said.by_hand, f"{actor} by hand")
        if before.what != said.what:
            self.wrong.append(f"{said.wait.wait_id} was answered {before.what}, and then {said.what} by {actor}")

    # -- what nodes do ------------------------------------------------------------------------------

    def perhaps_die(self) -> None:
        """The process of a node ends here, now and then."""
        process = PROCESS.get()
        if process is not None and (process.dead or self.chance(0.04)):
            raise process.die()

    def lose(self) -> None:
        if self.chance(0.3):
            raise Lost("lost")

    async def think(self, at: str) -> str:
        return at

    async def act(self, run_id: str, at: str, *, idempotency_key: str) -> str:
        """Acts once, and no more."""
        return await self._act(run_id, at, idempotency_key)

    async def act_once(self, run_id: str, at: str, *, idempotency_key: str) -> str:
        """Acts, unless that was done under this key before."""
        self.lose()
        if idempotency_key in self.done:
            return self.done[idempotency_key].result
        return await self._act(run_id, at, idempotency_key)

    async def act_or_fail(self, run_id: str, at: str, *, idempotency_key: str) -> str:
        """Fails now and then, before it does anything."""
        self.lose()
        return await self._act(run_id, at, idempotency_key)

    async def act_inside(self, run_id: str, at: str, *, idempotency_key: str) -> str:
        self.inside += 1
        try:
            if self.inside > ROOM:
                self.wrong.append(f"{self.inside} are at work where {ROOM} may be")
            return await self._act(run_id, at, idempotency_key)
        finally:
            self.inside -= 1

    async def _act(self, run_id: str, at: str, key: str) -> str:
        self.under_way.add(key)
        try:
            self.perhaps_die()
            await asyncio.sleep(0)
            if key in self.done:
                self.wrong.append(f"{run_id[-4:]} did {at} again under {key}")
            if any((d.run_id, d.at) == (run_id, at) and d.key in self.standing for d in self.done.values()):
                self.wrong.append(f"{run_id[-4:]} did {at} again under another key")
            done = self.done[key] = Done(run_id, at, key, f"{at} {self.name('#')}")
            self.standing.add(key)
            self.perhaps_die()
            await asyncio.sleep(0)
            return done.result
        finally:
            self.under_way.discard(key)

    async def verify(self, key: str, run_id: str, at: str) -> Happened | Absent | Unknown:
        """Finds out whether an act was done."""
        if key in self.under_way or self.chance(0.2):
            return Unknown()
        return Happened(self.done[key].result) if key in self.done else Absent()

    async def undo(self, result: str, run_id: str, at: str, *, idempotency_key: str) -> None:
        """Takes an act back."""
        self.under_way.add(idempotency_key)
        try:
            self.perhaps_die()
            await asyncio.sleep(0)
            self.take_back(result, idempotency_key)
            self.perhaps_die()
        finally:
            self.under_way.discard(idempotency_key)

    def take_back(self, result: str, key: str) -> None:
        """Takes back what was done with this result, as the act under a key."""
        done = next((d for d in self.done.values() if d.result == result), None)
        if done is None or (done.key not in self.standing and not self.is_shared(result)):
            self.wrong.append(f"{result} was taken back, which does not stand")
        else:
            self.standing.discard(done.key)
        self.undone.add(key)

    def is_shared(self, result: str) -> bool:
        """Whether people told several runs of a lineage that this was done: then each of them may take it back."""
        return len({s.run_id for s in self.said.values() if s.action == "record_result" and s.payload == result}) > 1

    def was_done(self, result: str) -> bool:
        return any(d.result == result for d in self.done.values())

    def stands(self, result: str) -> bool:
        """Whether what was done, with this result, was not taken back."""
        return any(d.result == result and d.key in self.standing for d in self.done.values())


Plan = list[tuple[Any, ...]]
LEAVES = [
    "approve", "deliver", "default", "ask", "silence", "handoff", "redo", "wait", "late", "sleep", "act", "act", "book", "step", "spend", "child", "shaky", "failing",
]
SCOPES = ["gather", "map", "race", "either", "contest", "try"]


def draw(rng: random.Random, depth: int = 0) -> Plan:
    plan: Plan = []
    for _ in range(rng.randint(1, 2 if depth else 3)):
        kind = rng.choice(LEAVES if depth > 1 else [*LEAVES, *SCOPES] if depth else [*LEAVES, *SCOPES, "fail"])  # plain code that fails by chance, and is caught, would go another way each time
        match kind:
            case "gather" | "contest":
                plan.append((kind, [draw(rng, depth + 1) for _ in range(2)]))
            case "map" | "try":
                plan.append((kind, draw(rng, depth + 1)))
            case "wait" | "late" | "race" | "either":
                plan.append((kind, rng.choice(SIGNALS)))
            case "act" | "book":
                plan.append((kind, rng.choice(ACTS)))
            case "child":
                plan.append((kind, rng.choice(["cancel", "cancel", "keep"])))
            case _:
                plan.append((kind,))
    return plan


class Way:
    """One going through a plan."""

    def __init__(self, world: World, ctx: Context) -> None:
        self.world = world
        self.ctx = ctx
        world.sources[ctx.run_id] = ctx.run.source_run_id

    async def go(self, plan: Plan, at: str) -> list[str]:
        return [str(await self.one(part, f"{at}.{n}")) for n, part in enumerate(plan)]

    async def one(self, part: tuple[Any, ...], at: str) -> Any:
        match part:
            case (("gather" | "map" | "race" | "either" | "contest" | "try"), _):
                return await self._scope(part, at)
            case (("act" | "book"), how):
                return await self._act(at, how, undo=part[0] == "book")
            case (("wait" | "late"), _):
                return await self._await_signal(*part)
        return await self._leaf(part, at)

    async def _leaf(self, part: tuple[Any, ...], at: str) -> Any:
        world, ctx, run_id = self.world, self.ctx, self.ctx.run_id
        match part:
            case ("approve",):
                return await self._approved(at, await ctx.approve(at))
            case ("deliver",):
                return await self._approved(at, await ctx.approve(at, on_deny="deliver", on_timeout="deliver", timeout=20))
            case ("default",):
                return await self._approved(at, await ctx.approve(at, show=at, schema=str, on_timeout="default", default="nobody", timeout=15))
            case ("ask",):
                return world.hear_value(run_id, at, await ctx.ask(at, schema=str))
            case ("silence",):
                value = await ctx.ask(at, schema=str, timeout=25, on_timeout="default", default="nobody")
                return value if value == "nobody" else world.hear_value(run_id, at, value)
            case ("failing",):
                return world.hear_value(run_id, at, await ctx.ask(at, schema=str, timeout=60, on_timeout="fail"))
            case ("handoff",):
                given = await ctx.handoff(at, redo=None)
                world.hear(run_id, at, given)
                return given.action
            case ("redo",):
                prompt = f"{at}{ctx.feedback or ''}"
                given = await ctx.handoff(prompt, verdict="poor")
                world.hear(run_id, prompt, given)
                return given.action
            case ("sleep",):
                return await ctx.sleep(5)
            case ("step",):
                return await ctx.step(world.think, at)
            case ("spend",):
                ctx.spend(cost=1)
                return await ctx.step(world.think, at)
            case ("child", on_parent_end):
                return await ctx.child("child", {"at": at}, on_parent_end=on_parent_end)
            case ("shaky",):
                return await ctx.step(world.lose)
            case ("fail",):
                return world.lose()
        raise AssertionError(part)

    async def _await_signal(self, kind: str, name: str) -> str | None:
        value = await (self.ctx.wait(name) if kind == "wait" else self.ctx.wait(name, timeout=20, on_timeout="deliver"))
        return value if value is None else self.world.hear_signal(self.ctx.run_id, name, value)

    async def _act(self, at: str, how: str, *, undo: bool) -> str:
        world = self.world
        options: dict[str, Any] = {"undo": world.undo} if undo else {}
        match how:
            case "verified":
                options["verify"] = world.verify
            case "dedupes":
                options["idempotent"] = True
            case "retried":
                options["retry"] = 2
            case "bound":
                options["limit"] = "room"
        act = {"dedupes": world.act_once, "retried": world.act_or_fail, "bound": world.act_inside}.get(how, world.act)
        return str(await self.ctx.effect(act, self.ctx.run_id, at, **options))

    async def _approved(self, at: str, given: Decision) -> str:
        self.world.hear(self.ctx.run_id, at, given)
        return await self._act(f"{at}!", "plain", undo=False) if given.approved else given.action

    async def _scope(self, part: tuple[Any, ...], at: str) -> Any:
        world, ctx, run_id = self.world, self.ctx, self.ctx.run_id
        match part:
            case ("race", name):
                index, value = await ctx.first_of(ctx.wait(name), ctx.sleep(10))
                return world.hear_signal(run_id, name, value) if index == 0 else "slept"
            case ("either", name):
                index, value = await ctx.first_of(ctx.ask(at, schema=str, timeout=60, on_timeout="default", default="nobody"), ctx.wait(name), ctx.sleep(20))
                match index:
                    case 0 if value != "nobody":
                        return world.hear_value(run_id, at, value)
                    case 1:
                        return world.hear_signal(run_id, name, value)
                return "slept"
            case ("gather", plans):
                return [*chain(*await ctx.gather(*(self.go(p, f"{at}g{n}") for n, p in enumerate(plans))))]
            case ("map", inner):

                async def item(name: str) -> list[str]:
                    return await self.go(inner, f"{at}{name}")

                return [*chain(*await ctx.map(item, ["u", "v"]))]
            case ("contest", plans):
                index, value = await ctx.first_of(*(self.go(p, f"{at}c{n}") for n, p in enumerate(plans)))
                return [index, *value]
            case ("try", inner):
                try:
                    return await self.go(inner, f"{at}t")
                except (Lost, HoldfastError) as e:
                    if not isinstance(e, Lost) and "Lost" not in str(e):
                        raise
                    return ["lost"]
        raise AssertionError(part)


class Trail(State):
    said: Annotated[list[str], append]
    red: str = ""


def find_round(ctx: Context) -> str:
    """Says in which round a node runs: the super-steps of the run and of its sub-graphs, and what it was sent back with."""
    return f"{':'.join(part for part in re.split('[./]', ctx.step_id) if part.isdecimal())}{ctx.feedback or ''}"


def make(rng: random.Random, world: World) -> tuple[list[Any], str]:
    """Draws a graph and the flow of its children; gives them, and what they do."""
    plans = {f"n{layer}{n}": (layer, draw(rng), rng.choice([None, None, None, "gate", "check"])) for layer in range(rng.randint(1, 3)) for n in range(rng.randint(1, 3))}
    kid = [part for part in draw(rng, 2) if part[0] != "child"]
    inner = {name for name in plans if rng.random() < 0.15}
    graph: Graph[Trail] = Graph("root", Trail, kind=rng.choice([None, None, "planning"]))

    def node(name: str, plan: Plan) -> Callable[..., Any]:
        async def go(state: Trail, ctx: Context) -> dict[str, Any]:
            return {"said": await Way(world, ctx).go(plan, f"{name}{find_round(ctx)}")}

        return go

    for name, (layer, plan, gate) in plans.items():
        options: dict[str, Any] = {"start": True} if not layer else {"after": [n for n, (at, _, _) in plans.items() if at == layer - 1]}
        if gate is not None:
            options[gate] = _asker(f"may {name}?" if gate == "gate" else f"is {name} right?")
        if name in inner:
            within: Graph[Trail] = Graph(f"in-{name}", Trail)
            within.node(f"{name}i", start=True)(node(f"{name}i", plan))
            graph.subgraph(name, within, pass_in=["red"], pass_out=["said"], **options)
        else:
            graph.node(name, **options)(node(name, plan))
    if rng.random() < 0.2:

        @graph.node("delivers", after=next(reversed(plans)), delivers=True)
        async def delivers(state: Trail, ctx: Context) -> None:
            ctx.report(await ctx.step(rng.choice, ["delivered", "delivered", "no_change", "rejected"]))

    if rng.random() < 0.2:

        @graph.node("listens", on=["red"])
        async def listens(state: Trail, ctx: Context) -> dict[str, Any]:
            return {"said": [f"heard {state.red}!"]}

    @flow("child")
    async def child(ctx: Context, at: str) -> list[str]:
        return await Way(world, ctx).go(kid, f"{at}{find_round(ctx)}")

    return [graph, child], f"{plans} {sorted(inner)} {kid}"


def _asker(prompt: str) -> Callable[[Any], Any]:
    return lambda request: require_human(prompt)


def count_words(values: Any) -> Counter[str]:
    """Counts the words in what a run ended with."""
    return Counter("".join(c if c not in "[]'," else " " for c in str(values)).split())


__all__ = ["PROCESS", "ROOM", "SIGNALS", "Said", "World", "count_words", "make"]
