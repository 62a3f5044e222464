"""Whatever way a step goes, no record answers for a call with other arguments, and what a run ends with stands (§4.12, §6.3, §6.6, §6.11, §7.6).

``python -m tests.engine.any_way [--seeds N] [--first N] [--budget MINUTES]``, some 200 ms a seed.

A flow is drawn whose calls are given what earlier calls gave. It fails, is tried again, cancelled, resumed and forked at random; its process dies in the
middle of an act, and questions are answered late. Each result says what was asked for, so the flow sees at once when it is given that of another call; what it
ends with stands outside; and a replay ends with the same and does nothing.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from holdfast import Context, Retry, Runtime, flow
from holdfast.core import canon
from holdfast.core.commit import Commit
from holdfast.core.errors import DecisionConflict, EffectsUndone, HoldfastError
from holdfast.stores import MemoryStore
from holdfast.testing.crash import SimulatedCrash
from tests.engine import outside
from tests.engine.outside import House
from tests.engine.support import Dying, When
from tests.searches import in_a_house, make_parser, report

MOST = 60


class Lost(Exception):
    """A failure that may not come again."""


class Outside:
    """What the flow acts on. ``wrong`` are the results that were given for other calls; ``lost`` those that a process took with it, by what was asked for."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.fails = 0.3
        self.dead = False
        self.n = 0
        self.standing: set[str] = set()
        self.wrong: list[str] = []
        self.lost: dict[tuple[str, str], str] = {}

    def lose(self) -> None:
        if self.rng.random() < self.fails:
            raise Lost("lost")

    async def step(self, name: str, given: str) -> str:
        return f"{name}({given})"

    async def shaky(self, name: str, given: str) -> str:
        self.lose()
        return f"{name}({given})"

    async def book(self, name: str, given: str) -> str:
        self.n += 1
        self.standing.add(f"{self.n}!")
        return f"{name}{self.n}!({given})"

    async def book_and_die(self, name: str, given: str) -> str:
        got = await self.book(name, given)
        if self.rng.random() < self.fails / 2:
            self.dead = True
            self.lost[name, given] = got
            raise outside.Crash
        return got

    async def cancel(self, receipt: str) -> None:
        self.standing.discard(re.match(r"[a-z]\w*?(\d+!)", receipt).group(1))  # type: ignore[union-attr]

    async def note(self, name: str, given: str) -> str:
        return f"{name}({given})"

    async def risky(self, name: str, given: str) -> str:
        self.lose()
        return f"{name}({given})"

    def check(self, name: str, given: str, got: Any) -> str:
        if not re.fullmatch(re.escape(name) + r"(\d+!)?" + re.escape(f"({given})"), str(got)):
            self.wrong.append(f"{name}({given}) was given {got}")
        return str(got)


Plan = list[tuple[Any, ...]]
LEAVES = [
    "step", "keyed", "closure", "shaky", "tries", "book", "dies", "note", "risky", "retried", "ask", "silence", "approve", "child", "fail", "now",
]
SCOPES = ["map", "gather", "try", "each", "branch", "finally", "race", "contest"]


def draw(rng: random.Random, depth: int = 0) -> Plan:
    plan: Plan = []
    for _ in range(rng.randint(1, 3 if depth else 5)):
        kind = rng.choice(LEAVES if depth > 1 else [*LEAVES, *SCOPES])
        match kind:
            case "map":
                plan.append((kind, draw(rng, depth + 1)))
            case "gather":
                plan.append((kind, [draw(rng, depth + 1) for _ in range(2)]))
            case "finally":
                plan.append((kind, draw(rng, depth + 1), draw(rng, 9)))
            case "contest":
                plan.append((kind, [draw(rng, depth + 1) for _ in range(2)]))
            case "each":
                plan.append((kind, [draw(rng, 9) for _ in range(2)]))
            case "try":
                plan.append((kind, draw(rng, depth + 1), draw(rng, depth + 1)))
            case "branch":
                plan.append((kind, draw(rng, depth + 1), draw(rng, depth + 1)))
            case _:
                plan.append((kind,))
    return plan


def brief(text: str) -> str:
    """So much of what was given so far that it tells one from another."""
    booked = re.findall(r"\d+!", text)
    return ",".join(booked[-2:]) + f"~{len(text) % 7}"


class Clock(outside.Clock):
    """Whoever sleeps lets little time pass, so that no question falls due."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.001))


def die_at_a_commit(world: Outside) -> When:
    """Names the commit at which a process dies, if it dies at one; nothing of the process acts after it."""
    left = world.rng.randint(1, 40) if world.rng.random() < 0.5 else 0

    def when(commit: Commit) -> bool:
        nonlocal left
        left -= 1
        if left == 0 and world.fails:
            world.dead = True
        return left == 0 and world.fails > 0

    return when


class Way:
    """One going through a plan."""

    def __init__(self, world: Outside, ctx: Context) -> None:
        self.world = world
        self.ctx = ctx

    async def go(self, plan: Plan, given: str, at: str) -> str:
        for n, part in enumerate(plan):
            given = await self.one(part, given, f"{at}{n}")
        return given

    async def one(self, part: tuple[Any, ...], given: str, at: str) -> str:
        out, ctx, arg = self.world, self.ctx, brief(given)
        if out.dead:
            raise outside.Crash
        match part:
            case ("step",):
                return given + out.check("s", arg, await ctx.step(out.step, "s", arg))
            case ("shaky",):
                return given + out.check("s", arg, await ctx.step(out.shaky, "s", arg))
            case ("keyed",):
                return given + out.check("k", arg, await ctx.step(out.step, "k", arg, key=f"k{at}"))
            case ("closure",):

                async def write() -> str:
                    return await out.step("w", arg)

                return given + out.check("w", arg, await ctx.step(write))
            case ("book",):
                return given + out.check("b", arg, await ctx.effect(out.book, "b", arg, undo=out.cancel))
            case ("note",):
                return given + out.check("n", arg, await ctx.effect(out.note, "n", arg))
            case ("risky",):
                return given + out.check("n", arg, await ctx.effect(out.risky, "n", arg, idempotent=True))
            case ("ask",):
                return given + out.check("q", arg, await ctx.ask(f"q({arg})", schema=str))
            case ("approve",):
                return given + out.check("a", arg, (await ctx.approve("Sure?", show=f"a({arg})", schema=str)).payload)
            case ("child",):
                return given + out.check("c", arg, await ctx.child("child", {"given": arg}))
            case ("now",):
                ctx.now()
                return given
            case ("fail",):
                if at.isdecimal():
                    out.lose()
                else:  # what plain code decides by chance, and somebody catches, would be another way each time
                    await ctx.step(out.lose)
                return given
            case ("try", first, other):
                try:
                    return await self.go(first, given, f"{at}t")
                except (Lost, HoldfastError) as e:
                    if not isinstance(e, Lost) and "Lost" not in str(e):
                        raise
                    return await self.go(other, given + "x", f"{at}e")
            case ("branch", first, other):  # another booking, another way
                return await self.go(first if len(re.findall(r"\d+!", given)) and int(re.findall(r"(\d+)!", given)[-1]) % 2 else other, given, f"{at}b")
            case ("map", inner):

                async def item(name: str) -> str:
                    return await self.go(inner, given + name, f"{at}i")

                return given + "".join(await ctx.map(item, ["u", "v"]))
            case ("gather", plans):
                return given + "".join(await ctx.gather(*(self.go(p, f"{given}{n}", f"{at}g") for n, p in enumerate(plans))))
            case ("tries",):
                return given + out.check("s", arg, await ctx.step(out.shaky, "s", arg, retry=2))
            case ("retried",):
                return given + out.check("n", arg, await ctx.effect(out.risky, "n", arg, idempotent=True, retry=2))
            case ("silence",):
                return given + out.check("q", arg, await ctx.ask(f"q({arg})", schema=str, timeout=10, on_timeout="fail"))
            case ("dies",):
                return given + out.check("b", arg, await ctx.effect(out.book_and_die, "b", arg, undo=out.cancel))
            case ("finally", inner, clean):
                try:
                    return await self.go(inner, given, f"{at}f")
                finally:
                    await self.go(clean, given, f"{at}c")
            case ("each", plans):
                got = []
                for n, p in enumerate(plans):
                    try:
                        got.append(await self.go(p, f"{given}{n}", f"{at}l{n}"))
                    except (Lost, HoldfastError) as e:
                        if not isinstance(e, Lost) and "Lost" not in str(e):
                            raise
                        got.append(f"lost{n}")
                return given + "".join(got)
            case ("contest", plans):
                _, got = await ctx.first_of(*(self.go(p, f"{given}{n}", f"{at}g") for n, p in enumerate(plans)))
                return given + got
            case ("race",):
                _, got = await ctx.first_of(self.ctx.step(out.step, "r", arg), ctx.wait("never"))
                return given + out.check("r", arg, got)
        raise AssertionError(part)


def make(rng: random.Random, world: Outside) -> list[Any]:
    plan = draw(rng)

    @flow("child")
    async def child(ctx: Context, given: str) -> str:
        return f"c({given})"

    @flow("any", retry=rng.choice([None, Retry(max_attempts=3, base_us=1)]))
    async def any_(ctx: Context) -> str:
        return await Way(world, ctx).go(plan, "", "")

    any_.plan = plan  # type: ignore[attr-defined]
    return [any_, child]


async def answer(rt: Runtime, run: Any, rng: random.Random, world: Outside) -> None:
    """A person answers one of the questions of a run: an approval gives back what it shows, and whatever was done with other arguments is done anew. Of an
    attempt they say what they know, or that it is not to be done."""
    people = [w for w in run.waits if w.available_actions]
    if not people:
        return
    wait = rng.choice(people)
    given: dict[str, Any] = {"input": {"payload": wait.prompt}, "approval": {"payload": wait.show}}.get(wait.kind, {})
    action = next(a for a in ("answer", "reexecute", "approve", "record_result") if a in wait.available_actions)
    if wait.kind == "effect" and "undo" not in wait.show:
        attempted = wait.show["show"]
        got = world.lost.pop(tuple(attempted), None) if attempted else None
        if got is not None and "record_result" in wait.available_actions:
            action, given = "record_result", {"payload": got}
        elif "reexecute" not in wait.available_actions or (world.fails and rng.random() < 0.1):
            action = "abandon"
    elif action == "record_result" and wait.effect_id is not None:  # that it was taken back: by hand, if it was not
        there = {e.effect_id: e for e in await rt.effects(wait.effect_id.partition(".")[0])}
        about = there[wait.effect_id]
        act = there.get(about.source_effect_id or "", about)
        if act.result is not None:
            await world.cancel(canon.decode(act.result))
    with suppress(DecisionConflict):  # their first word stands
        await rt.decide(run.run_id, action, wait_id=wait.wait_id, actor="ada", **given)


async def play_again(rt: Runtime, run: Any, rng: random.Random, world: Outside) -> list[str]:
    """A replay; gives what is wrong with it."""
    done, world.fails = world.n, 0.0
    again = await rt.replay(run.run_id)
    while again.waits:
        await answer(rt, again, rng, world)
        again = await rt.resume(again.run_id)
    if (str(again.status), again.result) != ("completed", run.result):
        return [f"the replay is {again.status}, {again.error}: {again.result!r}"]
    return [*world.wrong, *(["the replay has booked"] if world.n > done else [])]


async def play(seed: int, house: House) -> str:
    """Plays one; gives what is wrong, empty if nothing is."""
    rng = random.Random(seed)
    world = Outside(rng)
    skills = make(rng, world)
    house.clock = Clock()
    memory = MemoryStore(now=house.clock.now)

    async def begin() -> Runtime:
        world.dead = False
        house.memory = Dying(memory, die_at_a_commit(world), after=rng.random() < 0.5)  # type: ignore[assignment]
        return await house.process(*skills)

    rt = await begin()
    story: list[str] = [str(skills[0].plan)]
    while True:
        try:
            run = await rt.invoke("any", key="once")
            break
        except SimulatedCrash:
            house.kill(rt)
            rt = await begin()
    for turn in range(MOST):
        story.append(f"{run.run_id[-4:]} {run.status} {run.stop_reason or ''}")
        if world.wrong:
            return "\n".join([*story, *world.wrong])
        if world.dead:  # in a branch of which nobody waited for the end
            house.kill(rt)
            rt = await begin()
        if turn > MOST // 2:
            world.fails = 0.0
        if run.status == "completed":
            gone = [b for b in re.findall(r"\d+!", str(run.result)) if b not in world.standing]
            story += [f"{gone} do not stand"] if gone else []
            wrong = await play_again(rt, run, rng, world)
            return "\n".join([*story, *wrong]) if gone or wrong else ""
        if run.stop_reason in ("record_mismatch", "effect_conflict"):
            return "\n".join([*story, str(run.error.message)])
        if rng.random() < 0.2:
            house.kill(rt)
            rt = await begin()
        try:
            if rng.random() < 0.15:
                house.clock.forward(11)
            if run.waits and run.status in ("waiting_for_human", "waiting_for_signal"):
                how = rng.random() if turn < MOST // 2 else 1.0
                if how < 0.15:
                    run = await rt.cancel(run.run_id)
                elif how < 0.3:
                    run = await rt.fork(run.run_id, actor="ada")
                else:
                    await answer(rt, run, rng, world)
                    run = await rt.resume(run.run_id)
            elif rng.random() < 0.3 and turn < MOST // 2:
                run = await rt.fork(run.run_id, actor="ada")
            else:
                if run.waits and rng.random() < 0.3:
                    await answer(rt, run, rng, world)
                run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
        except SimulatedCrash:
            house.kill(rt)
            rt = await begin()
            run = await rt.get(run.run_id)
        except EffectsUndone:
            run = await rt.fork(run.run_id, actor="ada")
        except HoldfastError as e:
            if e.code not in ("nothing_eligible", "undecided_wait"):
                raise
            await answer(rt, run, rng, world)
            run = await rt.get(run.run_id)
    return "\n".join([*story, "it comes to no end"])


tell = in_a_house(play)


def main(arguments: Sequence[str] | None = None) -> int:
    return report(make_parser("tests.engine.any_way", __doc__, seeds=2000, takes="some six minutes").parse_args(arguments), tell)


if __name__ == "__main__":
    sys.exit(main())
