"""Whatever people answer, and whenever: what a node is told is what was accepted, once, and what was refused is not done (§5, §8, §10.8–§10.12).

``python -m tests.people.any_answer [--seeds N] [--first N] [--budget MINUTES]``, some 100 ms a seed.

A graph is drawn whose steps ask people for approvals, answers and handoffs, wait for signals and timers, and act, alone, beside each other, in races and
children, behind gates, within limits and budgets, before a review. One or two processes work on its runs, and die at commits. At any commit somebody may answer, deny, signal or
cancel, twice or at the same time as somebody else; deadlines pass. Each answer and each signal has a name of its own, so the node sees at once when it is given
one that was not accepted, or one that was given before. Then all is answered, and every run must come to its end.
"""

from __future__ import annotations

import asyncio
import random
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Sequence
from itertools import chain
from typing import Annotated, Any, NamedTuple

from holdfast import Context, Graph, Limit, Runtime, State, append, flow
from holdfast.core.errors import HoldfastError
from holdfast.core.ids import wait_base
from holdfast.handle import Decision, EventView, Run, Wait
from holdfast.policy import require_human
from holdfast.stores import MemoryStore
from holdfast.testing import violations
from holdfast.testing.crash import SimulatedCrash
from tests.engine import outside
from tests.engine.outside import House
from tests.searches import in_a_house, make_parser, report

MOST = 80
ROOM = 2
SIGNALS = ("red", "blue")
CONSENTS = ("approve", "continue", "continue_with_waiver")


class Lost(Exception):
    """A failure that may not come again."""


class Clock(outside.Clock):
    """Whoever sleeps lets little time pass: deadlines pass where the play lets them."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.001))


class Said:
    """An answer that was accepted: to which question of which run, and what."""

    def __init__(self, run_id: str, wait: Wait, action: str, payload: Any, feedback: str | None) -> None:
        self.run_id = run_id
        self.wait = wait
        self.action = action
        self.payload = payload
        self.feedback = feedback


class World:
    """What is outside the runs: who said what, and what was done. ``wrong`` is what must not be."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.n = 0
        self.calm = False
        self.said: dict[str, Said] = {}
        self.sent: dict[str, tuple[str, str]] = {}
        self.done: Counter[tuple[str, str]] = Counter()
        self.inside = 0
        self.wrong: list[str] = []

    def name(self, what: str) -> str:
        self.n += 1
        return f"{what}{self.n}"

    def lose(self) -> None:
        if not self.calm and self.rng.random() < 0.3:
            raise Lost("lost")

    def hear(self, run_id: str, prompt: str, given: Decision) -> None:
        """A node of a run is told a decision about a question."""
        if given.action == "timeout":
            if given.approved:
                self.wrong.append(f"silence approved {prompt}")
            return
        said = self.said.get(given.actor)
        if said is None or (said.run_id, said.wait.prompt, said.action) != (run_id, prompt, given.action) or (said.payload is not None and said.payload != given.payload):
            self.wrong.append(f"{run_id[-4:]} {prompt} was told {given.action} {given.payload} by {given.actor}, who said {said and (said.run_id[-4:], said.wait.prompt, said.action, said.payload)}")

    def hear_value(self, run_id: str, prompt: str, value: str) -> None:
        """A node of a run is told the answer to a question."""
        said = self.said.get(value.partition(":")[0])
        if said is None or (said.run_id, said.wait.prompt, said.payload) != (run_id, prompt, value):
            self.wrong.append(f"{run_id[-4:]} {prompt} was told {value}")

    async def act(self, run_id: str, at: str) -> str:
        self.done[run_id, at] += 1
        if self.done[run_id, at] > 1:
            self.wrong.append(f"{run_id[-4:]} did {at} {self.done[run_id, at]} times")
        return f"{at} {self.done[run_id, at]}"

    async def act_inside(self, run_id: str, at: str) -> str:
        self.inside += 1
        try:
            if self.inside > ROOM:
                self.wrong.append(f"{self.inside} are at work where {ROOM} may be")
            await asyncio.sleep(0)
            return await self.act(run_id, at)
        finally:
            self.inside -= 1

    async def think(self, at: str) -> str:
        return at


Plan = list[tuple[Any, ...]]
LEAVES = ["approve", "deliver", "default", "ask", "silence", "handoff", "redo", "wait", "late", "sleep", "act", "inside", "step", "spend", "child", "shaky", "failing"]
SCOPES = ["gather", "map", "race", "contest", "try"]


def draw(rng: random.Random, depth: int = 0) -> Plan:
    plan: Plan = []
    for _ in range(rng.randint(1, 2 if depth else 3)):
        kind = rng.choice(LEAVES if depth > 1 else [*LEAVES, *SCOPES])
        match kind:
            case "gather" | "contest":
                plan.append((kind, [draw(rng, depth + 1) for _ in range(2)]))
            case "map" | "try":
                plan.append((kind, draw(rng, depth + 1)))
            case "wait" | "late" | "race":
                plan.append((kind, rng.choice(SIGNALS)))
            case _:
                plan.append((kind,))
    return plan


class Way:
    """One going through a plan."""

    def __init__(self, world: World, ctx: Context) -> None:
        self.world = world
        self.ctx = ctx

    async def go(self, plan: Plan, at: str) -> list[str]:
        return [str(await self.one(part, f"{at}.{n}")) for n, part in enumerate(plan)]

    async def one(self, part: tuple[Any, ...], at: str) -> Any:
        world, ctx, run_id = self.world, self.ctx, self.ctx.run_id
        match part:
            case ("approve",):
                return await self._approved(at, await ctx.approve(at))
            case ("deliver",):
                return await self._approved(at, await ctx.approve(at, on_deny="deliver", on_timeout="deliver", timeout=20))
            case ("default",):
                return await self._approved(at, await ctx.approve(at, show=at, schema=str, on_timeout="default", default="nobody", timeout=15))
            case ("ask",):
                value = await ctx.ask(at, schema=str)
                world.hear_value(run_id, at, value)
                return value
            case ("silence",):
                value = await ctx.ask(at, schema=str, timeout=25, on_timeout="default", default="nobody")
                if value != "nobody":
                    world.hear_value(run_id, at, value)
                return value
            case ("failing",):
                value = await ctx.ask(at, schema=str, timeout=60, on_timeout="fail")
                world.hear_value(run_id, at, value)
                return value
            case ("handoff",):
                given = await ctx.handoff(at, redo=None)
                world.hear(run_id, at, given)
                return given.action
            case ("redo",):
                prompt = f"{at}{ctx.feedback or ''}"
                given = await ctx.handoff(prompt, verdict="poor")
                world.hear(run_id, prompt, given)
                return given.action
            case ("wait", name):
                return self._signalled(name, await ctx.wait(name))
            case ("late", name):
                value = await ctx.wait(name, timeout=20, on_timeout="deliver")
                return value if value is None else self._signalled(name, value)
            case ("race", name):
                index, value = await ctx.first_of(ctx.wait(name), ctx.sleep(10))
                return self._signalled(name, value) if index == 0 else "slept"
            case ("sleep",):
                return await ctx.sleep(5)
            case ("act",):
                return await ctx.effect(world.act, run_id, at)
            case ("inside",):
                return await ctx.effect(world.act_inside, run_id, at, limit="room")
            case ("step",):
                return await ctx.step(world.think, at)
            case ("spend",):
                ctx.spend(cost=1)
                return await ctx.step(world.think, at)
            case ("child",):
                return await ctx.child("child", {"at": at})
            case ("shaky",):
                return await ctx.step(world.lose)
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

    async def _approved(self, at: str, given: Decision) -> str:
        self.world.hear(self.ctx.run_id, at, given)
        if not given.approved:
            return given.action
        return str(await self.ctx.effect(self.world.act, self.ctx.run_id, f"{at}!"))

    def _signalled(self, name: str, value: str) -> str:
        if value not in self.world.sent or self.world.sent[value] != (self.ctx.run_id, name):
            self.world.wrong.append(f"{self.ctx.run_id[-4:]} got {value} for {name}")
        return value


class Trail(State):
    said: Annotated[list[str], append]
    red: str = ""


def make(rng: random.Random, world: World) -> list[Any]:
    plans = {f"n{layer}{n}": (layer, draw(rng), rng.choice([None, None, None, "gate", "check"])) for layer in range(rng.randint(1, 3)) for n in range(rng.randint(1, 3))}
    kid = [part for part in draw(rng, 2) if part != ("child",)]
    graph: Graph[Trail] = Graph("root", Trail, kind=rng.choice([None, None, "planning"]))

    def add(name: str, layer: int, plan: Plan, gate: str | None) -> None:
        options: dict[str, Any] = {"start": True} if not layer else {"after": [n for n, (at, _, _) in plans.items() if at == layer - 1]}
        if gate == "gate":
            options["gate"] = lambda request: require_human(f"may {name}?")
        elif gate == "check":
            options["check"] = lambda request: require_human(f"is {name} right?")

        @graph.node(name, **options)
        async def node(state: Trail, ctx: Context) -> dict[str, Any]:
            return {"said": await Way(world, ctx).go(plan, f"{name}{ctx.feedback or ''}")}

    for name, (layer, plan, gate) in plans.items():
        add(name, layer, plan, gate)
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
        return await Way(world, ctx).go(kid, f"{at}{ctx.feedback or ''}")

    graph.plans = [plans, kid]  # type: ignore[attr-defined]
    return [graph, child]


class Busy:
    """A process's way to the store. At any of its commits somebody may say something, and it may die."""

    def __init__(self, play: Play, store: Any, lives: int) -> None:
        self._play = play
        self._store = store
        self._lives = lives
        self.gone = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Any) -> Any:
        if self.gone:
            raise outside.Crash
        self._lives -= 1
        dies, after = self._lives == 0 and not self._play.world.calm, self._play.rng.random() < 0.5
        if dies and not after:
            self.gone = True
            raise outside.Crash
        if self._play.rng.random() < self._play.chatter:
            await self._play.speak()
        tip = await self._store.commit(commit)
        if dies:
            self.gone = True
            raise outside.Crash
        if self._play.rng.random() < self._play.chatter:
            await self._play.speak()
        return tip


class Worker(NamedTuple):
    """A process that works on the runs."""

    rt: Runtime
    store: Busy


class Play:
    """One seed."""

    def __init__(self, seed: int, house: House) -> None:
        self.rng = random.Random(seed)
        self.world = World(self.rng)
        self.house = house
        self.clock = house.clock = Clock()
        self.memory = MemoryStore(now=self.clock.now)
        self.skills = make(self.rng, self.world)
        self.chatter = self.rng.choice([0.0, 0.03, 0.1])
        self.deaths = self.rng.random() < 0.6
        self.speaking = False
        self.names: dict[str, int] = {}
        self.story: list[str] = [str(self.skills[0].plans)]

    async def process(self) -> Worker:
        lives = self.rng.randint(1, 60) if self.deaths and self.rng.random() < 0.7 else 0
        self.house.memory = store = Busy(self, self.memory, lives)  # type: ignore[assignment]
        return Worker(await self.house.process(*self.skills, limits={"room": Limit(in_flight=ROOM)}), store)

    def tell(self, text: str) -> None:
        self.story.append(text)

    # -- people -------------------------------------------------------------------------------------

    async def speak(self) -> None:
        """Somebody says something to one of the runs, whatever these are doing."""
        if self.speaking or self.world.calm:
            return
        self.speaking = True
        try:
            if runs := await self.list_runs():
                await self.say(self.rng.choice(runs))
        finally:
            self.speaking = False

    async def say(self, run: Run[Any]) -> None:
        """Cancels it, sends it a signal, or answers one of its questions, now and then together with somebody else."""
        fate = self.rng.random()
        if fate < 0.03:
            await self.try_to("cancel", run, self.people.cancel(run.run_id))
        elif fate < 0.3:
            await self.signal(run, self.rng.choice(SIGNALS))
        else:
            asked = [w for w in run.waits if w.available_actions]
            if asked:
                wait = self.rng.choice(asked)
                both = [self.answer(run, wait, who) for who in (self.people, self.others)[: 2 if self.rng.random() < 0.2 else 1]]
                taken = {(s.action, s.payload, s.feedback) for s in map(self.world.said.get, await asyncio.gather(*both)) if s is not None}
                if len(taken) > 1:
                    self.world.wrong.append(f"{wait.wait_id} was answered {taken}")

    async def try_to(self, what: str, run: Run[Any], call: Awaitable[Any]) -> bool:
        """Says something to a run, and tells whether it was accepted."""
        try:
            await call
        except HoldfastError as e:
            self.tell(f"    {run.run_id[-4:]} {what}: {e.code}")
            return False
        self.tell(f"    {run.run_id[-4:]} {what}")
        return True

    async def signal(self, run: Run[Any], name: str) -> None:
        """Sends a signal, with or without a key, and with a key perhaps twice."""
        value = self.world.name("s")
        self.world.sent[value] = (run.run_id, name)
        key = value if self.rng.random() < 0.5 else None
        for _ in range(2 if key is not None and self.rng.random() < 0.5 else 1):
            if not await self.try_to(f"signal {name} {value}", run, self.people.signal(run.run_id, name, value, key=key)):
                return

    async def answer(self, run: Run[Any], wait: Wait, who: Runtime, *, kind: bool = False) -> str:
        """Answers a question; gives by whom it was answered, empty if that was refused."""
        world, rng = self.world, self.rng
        action = rng.choice(wait.available_actions)
        if kind or (action in ("deny", "halt", "abandon") and rng.random() < 0.7):
            action = next(a for a in ("approve", "answer", "continue", "reexecute") if a in wait.available_actions)
        actor, payload, more = world.name("p"), None, dict[str, Any]()
        if wait.kind == "effect":
            where = (run.run_id, self.place(wait))
            happened = world.done[where] > 0
            if action in ("reexecute", "abandon") and happened:
                action = "record_result"
            if action == "record_result" and not happened:
                action = "reexecute"
            if action == "record_result":
                more["payload"] = f"{where[1]} told"
        elif action == "answer" or (action == "approve" and wait.kind == "approval" and rng.random() < 0.5):
            payload = more["payload"] = f"{actor}:said"
        elif wait.kind == "budget" and action == "approve":
            more["payload"] = {"extend": rng.choice([1, 3, 100])}
        if action in ("retry_feedback", "continue_with_waiver"):
            more["feedback"] = f"<{actor}>"
        world.said[actor] = Said(run.run_id, wait, action, payload, more.get("feedback"))
        if not await self.try_to(f"{wait.wait_id[-20:]} {wait.kind} {wait.prompt!r}: {action} {payload or ''} by {actor}", run, who.decide(run.run_id, action, wait_id=wait.wait_id, actor=actor, **more)):
            del world.said[actor]
            return ""
        return actor

    def place(self, wait: Wait) -> str:
        """Which act a question about an effect is about: the last of its arguments."""
        return str(wait.show["show"][-1])

    async def list_runs(self) -> list[Run[Any]]:
        """All runs, in an order that does not depend on their ids, which differ from one play of a seed to the next."""
        found = {r.run_id: r for r in await self.people.runs(limit=50)}
        for run in sorted((r for r in found.values() if r.run_id not in self.names), key=lambda r: (r.request_key or "", self.names.get(r.parent_run_id or "", 0), (r.parent_wait_id or "")[27:])):
            self.names[run.run_id] = len(self.names)
        return sorted(found.values(), key=lambda r: self.names[r.run_id])

    # -- runs ---------------------------------------------------------------------------------------

    async def play(self) -> list[str]:
        """Plays it; gives what is wrong."""
        self.house.memory = self.memory
        self.people, self.others = await self.house.process(*self.skills), await self.house.process()
        workers = [await self.process()]
        budgets = {"cost": self.rng.choice([1, 2])} if self.rng.random() < 0.3 else None
        thread = "t" if self.rng.random() < 0.5 else None
        for n in range(self.rng.randint(1, 2)):
            await self.people.submit("root", {}, key=f"r{n}", thread_id=thread, budgets=budgets, paused_lane=self.rng.choice(["hold", "release"]))
        for turn in range(MOST):
            self.world.calm = turn > MOST // 3
            if await self.turn(workers):
                break
            if self.world.wrong:
                return self.world.wrong
        else:
            return [*self.world.wrong, "it comes to no end"]
        return [*self.world.wrong, *await self.look_back()]

    async def turn(self, workers: list[Worker]) -> bool:
        """Lets the workers work, somebody speak, or time pass; True once all runs have ended."""
        rng = self.rng
        if len(workers) < 2 and rng.random() < 0.3:
            workers.append(await self.process())
        results = await asyncio.gather(*(w.rt.worker(until_idle=True) for w in workers), return_exceptions=True)
        for n, found in reversed([*enumerate(results)]):
            if workers[n].store.gone or isinstance(found, SimulatedCrash):
                self.tell("  a process dies")
                self.house.kill(workers[n].rt)
                del workers[n]
            elif isinstance(found, BaseException):
                raise found
        if not workers:
            workers.append(await self.process())
            return False
        runs = await self.list_runs()
        for run in runs:
            self.tell(f"{run.run_id[-4:]} {run.skill_id} {run.condition} {run.stop_reason or ''} {[(w.kind, w.wait_id[-12:]) for w in run.waits]}")
            self.look(run)
        if all(r.status in ("completed", "canceled", "failed") for r in runs) and (self.world.calm or rng.random() < 0.5):
            failed = [r for r in runs if r.status == "failed"]
            if not failed:
                return True
        if not self.world.calm:
            for _ in range(rng.randint(1, 3)):
                await self.speak()
            if rng.random() < 0.4:
                self.clock.forward(rng.choice([1, 6, 16, 30]))
            for run in runs:
                if run.status == "failed" and rng.random() < 0.5:
                    await self.try_to("resume", run, self.people.resume(run.run_id, acknowledge=run.stop_reason))
            return False
        for run in runs:
            for wait in run.waits:
                if wait.available_actions:
                    await self.answer(run, wait, self.people, kind=True)
                elif wait.kind == "signal":
                    await self.signal(run, wait.name)
            if run.status == "failed":
                await self.try_to("resume", run, self.people.resume(run.run_id, acknowledge=run.stop_reason))
        self.clock.forward(3)
        return False

    def look(self, run: Run[Any]) -> None:
        """A run at rest must be one that something can wake."""
        if run.status in ("waiting_for_human", "waiting_for_signal") and run.condition != "queued" and not run.waits:
            self.world.wrong.append(f"{run.run_id} waits for nothing")
        places = Counter(wait_base(w.wait_id) for w in run.waits)
        self.world.wrong += [f"{place} is asked {n} times at once" for place, n in places.items() if n > 1]

    async def look_back(self) -> list[str]:
        """What is wrong with what is on record."""
        wrong = [str(v) for v in await violations(self.memory)]
        for run in await self.list_runs():
            wrong += [f"{p.code}: {p.message}" for p in await self.people.check(run.run_id) if p.severity == "error"]
            events = await self.people.events(run.run_id)
            wrong += self.find_asked_again(events)
            said = [e.payload for e in await self.people.events(run.run_id) if e.type == "signal.received"]
            keys = Counter((p["name"], p["key"]) for p in said)
            wrong += [f"{k} was delivered {n} times" for k, n in keys.items() if n > 1]
            got = Counter(v for v in (str(run.values.get("said", []) if run.values else run.result)).replace("[", " ").replace("]", " ").replace("'", " ").replace(",", " ").split() if v in self.world.sent)
            wrong += [f"{run.run_id[-4:]} used {v} {n} times" for v, n in got.items() if n > 1]
        return wrong


    def find_asked_again(self, events: Sequence[EventView]) -> list[str]:
        """Questions that were asked once more though somebody had answered them, and the answer stood."""
        answered, wrong = dict[str, str](), list[str]()
        for e in events:
            if e.type == "wait.decided" and e.payload["decision"]["action"] in (*CONSENTS, "answer"):
                answered[wait_base(e.payload["decision"]["wait_id"])] = e.payload["decision"]["actor"]
            elif e.type == "wait.closed":
                answered.pop(wait_base(e.payload["wait_id"]), None)
            elif e.type == "wait.requested" and (actor := answered.get(wait_base(e.payload["wait"]["wait_id"]))) is not None and e.payload["wait"]["kind"] not in ("review",):
                wrong.append(f"{e.payload['wait']['wait_id']} is asked again (event {e.seq}) though {actor} had answered it")
        return wrong


async def play(seed: int, house: House) -> str:
    """Plays one seed; returns its story if anything is wrong, else nothing."""
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # errors of a process that died are nobody's
    playing = Play(seed, house)
    try:
        told = await asyncio.wait_for(playing.play(), 60)
    except Exception as e:
        told = ["".join(traceback.format_exception(e))]
    return "\n".join([*playing.story, *told]) if told else ""


tell = in_a_house(play)


def main(arguments: Sequence[str] | None = None) -> int:
    return report(make_parser("tests.people.any_answer", __doc__, seeds=2000, takes="some four minutes").parse_args(arguments), tell)


if __name__ == "__main__":
    sys.exit(main())
