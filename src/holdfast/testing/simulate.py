"""The deterministic simulator: several workers on one loop, everything that can go wrong to them, and a judge.

Theory of operation. One seed draws everything: which callback runs next, how long a write takes, which write dies before
or after it is applied or loses its answer, who is killed or frozen and for how long, when the wall clock jumps, what is
submitted, decided and cancelled, and how often the same request is made twice. After a while the faults end: frozen
processes thaw as zombies, a worker is there again, and every run must end. Then all invariants are checked, and each
completed run must have the values of an undisturbed one. The same seed gives the same story each time.

``python -m holdfast.testing.simulate --seeds 1000``
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import HoldfastError, StoreError
from holdfast.core.status import TERMINAL, Status
from holdfast.handle import Run
from holdfast.ports import RunFilter, Store
from holdfast.testing.clock import Livelock, VirtualClock
from holdfast.testing.crash import Fault, SimulatedCrash
from holdfast.testing.invariants import Violation
from holdfast.testing.plays import PLAYS, STAGE, Cast, Play
from holdfast.testing.transcript import shorten
from holdfast.testing.world import MOST_EVENTS, Host, World

LEASE = 3.0
CHAOS = 15.0
PATIENCE = 600.0
MOST_TURNS = 100_000
MOST_RUNS = 500
SAID = {
    Fault.BEFORE: "{verb}: its process dies before it is done",
    Fault.AFTER: "{verb}: its process dies once it is done",
    Fault.LOST: "{verb}: the store fails, and it is not done",
    Fault.APPLIED: "{verb}: the store fails, though it is done",
}
PLAYED = Cast(PLAYS)


class Odds(msgspec.Struct, frozen=True):
    """How often each kind of fault happens under a seed."""

    workers: int
    runs: int
    crash: float
    lost: float
    kills: float
    freezes: float
    jumps: float
    cancels: float
    same_lane: float

    @classmethod
    def of(cls, draw: Any) -> Odds:
        """Draws the odds of a seed. Each kind of fault is left out under some seeds, so that faults are also seen one at a time."""

        def sometimes(rate: float) -> float:
            return rate if draw.random() < 0.6 else 0.0

        return cls(
            workers=draw.randint(1, 3),
            runs=draw.randint(1, 4),
            crash=sometimes(0.04),
            lost=sometimes(0.04),
            kills=sometimes(0.3),
            freezes=sometimes(0.4),
            jumps=sometimes(0.1),
            cancels=sometimes(0.15),
            same_lane=sometimes(0.7),
        )


class Story(msgspec.Struct, frozen=True):
    """The result of a seed: the violations, how often each thing happened, and who did what when to the broken runs."""

    seed: int
    violations: tuple[Violation, ...]
    happened: Mapping[str, int]
    told: str

    @property
    def ok(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        return f"seed {self.seed}: {'whole' if self.ok else 'BROKEN'}\n{self.told}"


class Simulation:
    """The simulation of one seed. ``cast``: the programs from which its runs are drawn."""

    def __init__(self, seed: int, store: Callable[[VirtualClock], Store] | None = None, cast: Cast = PLAYED) -> None:
        self.seed = seed
        self.cast = cast
        clock = VirtualClock()
        self.world = World(None if store is None else store(clock), lease=LEASE, seed=seed, clock=clock)
        self.draw = self.world.rng
        self.odds = Odds.of(self.draw)
        self.calm = False
        self.happened: Counter[str] = Counter()
        self.workers: dict[int, Host] = {}
        self.submitted: dict[str, tuple[Play, str]] = {}
        self.answered: dict[int, set[str]] = {}
        self.cancelled: set[str] = set()
        self.tasks: list[asyncio.Task[Any]] = []

    def say(self, kind: str, text: str, who: str = "") -> None:
        self.happened[kind] += 1
        self.world.diary.note(text, who=who)

    # -- the way to the store -----------------------------------------------------------------------

    def plan(self, number: int, verb: str) -> Fault | None:
        if self.calm:
            return None
        fate = self.draw.random()
        if fate < self.odds.crash:
            fault = Fault.BEFORE if fate < self.odds.crash / 2 else Fault.AFTER
        elif fate > 1 - self.odds.lost:
            fault = Fault.LOST if fate > 1 - self.odds.lost / 2 else Fault.APPLIED
        else:
            return None
        self.say(fault.value, SAID[fault].format(verb=verb))
        return fault

    async def pause(self) -> None:
        fate = self.draw.random()
        if fate < 0.6:
            return
        await self.world.clock.sleep(0 if fate < 0.9 else self.draw.random() * 0.05)

    async def host(self) -> Host:
        return await self.world.host(*self.cast.skills, plan=self.plan, pause=self.pause, proven=self.draw.random() < 0.5)

    # -- those who work -----------------------------------------------------------------------------

    async def keep_working(self, slot: int) -> None:
        """Supervises a worker: whatever ends it, another one is started after a while."""
        while True:
            try:
                host = self.workers[slot] = await self.host()
                await host.do(host.rt.worker(concurrency=self.draw.randint(1, 3)))
            except (SimulatedCrash, StoreError, HoldfastError) as e:
                self.say("ended", f"its worker ends: {type(e).__name__}", self.workers[slot].name)
                self.workers[slot].kill(proven=self.draw.random() < 0.5)
            await self.world.clock.sleep(self.draw.random() * 2)

    async def chaos(self) -> None:
        """Kills and freezes workers and lets the clock jump, for ``CHAOS`` seconds."""
        while self.world.clock.elapsed < CHAOS:
            await self.world.clock.sleep(self.draw.random() * 2)
            host = self.workers.get(self.draw.randrange(self.odds.workers))
            if host is None or host.dead:
                continue
            fate = self.draw.random()
            if fate < self.odds.kills:
                self.say("killed", "is killed", host.name)
                host.kill(proven=self.draw.random() < 0.5)
            elif fate < self.odds.kills + self.odds.freezes and not host.process.frozen:
                seconds = self.draw.random() * LEASE * 3
                self.say("frozen", f"freezes for {seconds:.1f} s", host.name)
                host.process.freeze()
                self.tasks.append(asyncio.ensure_future(self._thaw(host, seconds)))
            elif fate > 1 - self.odds.jumps:
                seconds = self.draw.choice([-20, -5, 30, 3600])
                self.say("jumped", f"the wall clock jumps by {seconds} s")
                self.world.clock.jump(seconds)
        self.calm = True
        self.say("calm", "the chaos ends")

    async def _thaw(self, host: Host, seconds: float) -> None:
        await self.world.clock.sleep(seconds)
        if not host.dead:
            self.say("thawed", "thaws", host.name)
            host.process.thaw()

    # -- those who ask ------------------------------------------------------------------------------

    async def ask_for_runs(self) -> None:
        names = list(self.cast.plays)
        for number in range(self.odds.runs):
            await self.world.clock.sleep(self.draw.random() * 3)
            play = self.draw.choice(names)
            session = "shared" if self.draw.random() < self.odds.same_lane else f"own-{number}"
            urgency = self.draw.choice([0, 0, 5])  # between lanes; in a lane the order of submission counts
            asks = [self._submit(number, play, session, urgency)]
            if self.draw.random() < 0.3:
                self.happened["asked twice"] += 1
                asks.append(self._submit(number, play, session, urgency))
            await asyncio.gather(*asks)

    async def _submit(self, number: int, play: str, session: str, urgency: int) -> None:
        """Submits a run under one request key, again and again until it is answered."""
        name = f"run-{number}"
        while True:
            client = await self.client()
            try:
                run = await client.do(
                    client.rt.submit(self.cast.plays[play].skill, {"name": name}, key=f"request-{number}", session_key=session, priority=urgency)
                )
            except (SimulatedCrash, StoreError):
                await self.world.clock.sleep(0.5)
                continue
            finally:
                client.kill()
            self.answered.setdefault(number, set()).add(run.run_id)
            if run.run_id not in self.submitted:
                self.say("submitted", f"submitted {play} as {run.run_id} in {session}", client.name)
            self.submitted[run.run_id] = (self.cast.plays[play], name)
            return

    async def client(self) -> Host:
        while True:
            try:
                return await self.host()
            except (SimulatedCrash, StoreError):
                continue

    async def look_after(self) -> None:
        """Does what people do: approves, looks into unknown effects, cancels, and resumes failed runs; sometimes answers twice."""
        while True:
            await self.world.clock.sleep(0.2 + self.draw.random() * 1.5)
            client = await self.client()
            try:
                for run_id in await self._find_runs(client):
                    found = await client.rt.store.get(run_id)
                    if found is not None and (found[0].version > MOST_EVENTS or (found[0].terminal and found[0].status is not Status.FAILED)):
                        continue  # people have nothing more to do about the run, or cannot help
                    run = await client.rt.get(run_id)
                    if run.waits and (run.status not in TERMINAL or run.status is Status.FAILED):
                        answers = [self._answer(client, run)]
                        if self.draw.random() < 0.3:
                            answers.append(self._answer(client, run))
                        await asyncio.gather(*answers)
                    if run_id in self.submitted:
                        await self._interfere(client, run)
            except (SimulatedCrash, StoreError):
                continue
            finally:
                client.kill()

    async def _find_runs(self, client: Host) -> list[str]:
        """Returns the runs that were submitted, and then their children."""
        found = await client.rt.store.runs(RunFilter(limit=MOST_RUNS))
        return [*self.submitted, *[run.run_id for run, _ in found if run.parent_run_id is not None]]

    async def _answer(self, client: Host, run: Run[Any]) -> None:
        try:
            await client.do(self.cast.answer(client, run))
        except StoreError:
            raise
        except HoldfastError as e:
            self.happened[f"refused: {e.code}"] += 1

    async def _interfere(self, client: Host, run: Run[Any]) -> None:
        if run.status not in TERMINAL and not self.calm and self.draw.random() < self.odds.cancels * 0.2:
            self.say("cancelled", f"{run.run_id} is asked to end")
            self.cancelled.add(run.run_id)
            try:
                await client.do(client.rt.cancel(run.run_id))
            except StoreError:
                raise
            except HoldfastError as e:
                self.happened[f"refused: {e.code}"] += 1
        elif run.status is Status.FAILED:
            self.say("failed", f"{run.run_id} had failed: {run.stop_reason}")
            try:
                # A resume also drives the run; people do not wait for that without a limit.
                await asyncio.wait_for(client.do(self._resume(client, run)), 5)
            except (HoldfastError, SimulatedCrash, TimeoutError) as e:
                self.happened[f"resume: {type(e).__name__}"] += 1

    async def _resume(self, client: Host, run: Run[Any]) -> None:
        await client.rt.resume(run.run_id, acknowledge=run.stop_reason)

    # -- the whole ----------------------------------------------------------------------------------

    async def play(self) -> None:
        STAGE.world = self.world
        await self.world.store.open()
        people = asyncio.ensure_future(self.look_after())
        workers = [asyncio.ensure_future(self.keep_working(slot)) for slot in range(self.odds.workers)]
        asking = asyncio.ensure_future(self.ask_for_runs())
        try:
            await self.chaos()
            await asking
            await self._settle()
        finally:
            for task in (people, *workers, asking, *self.tasks):
                task.cancel()
            await asyncio.gather(people, *workers, asking, *self.tasks, return_exceptions=True)
            for task in (people, *workers):
                self._note_own_fault(task)

    def _note_own_fault(self, task: asyncio.Future[Any]) -> None:
        """Raises an error of the simulator itself, which must not look like a calm end."""
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, SimulatedCrash):
            raise error

    async def _settle(self) -> None:
        """Waits until every run has ended, then thaws the frozen processes, so that zombies act on what they believe."""
        until = self.world.clock.elapsed + PATIENCE
        while self.world.clock.elapsed < until:
            await self.world.clock.sleep(1)
            found = [await self.world.store.get(run_id) for run_id in self.submitted]
            if all(f is not None and f[0].terminal for f in found):
                break
        for host in self.world.hosts:
            if not host.dead:
                host.process.thaw()
        await self.world.clock.sleep(LEASE * 2)

    async def judge(self) -> list[Violation]:
        broken = await self.world.check()
        for number, ids in self.answered.items():
            if len(ids) > 1:
                broken.append(Violation("submitted_twice", "", f"request-{number} became {' and '.join(sorted(ids))}"))
        for run_id, (play, name) in self.submitted.items():
            reader = await self.world.host(*self.cast.skills)
            run = await reader.rt.get(run_id)
            if run.status not in TERMINAL:
                broken.append(Violation("never_ended", run_id, f"it is {run.condition}, owned by {run.lease.owner}"))
            elif run.status is Status.CANCELED and run_id not in self.cancelled:
                broken.append(Violation("canceled_unasked", run_id, f"stop reason {run.stop_reason}"))
            elif run.status is Status.FAILED:
                broken.append(Violation("failed", run_id, f"stop reason {run.stop_reason}: {run.error}"))
            elif run.status is Status.COMPLETED:
                if wrong := _differs(play.expected(name), run):
                    broken.append(Violation("wrong_end", run_id, wrong))
                broken += [Violation("not_done", run_id, f"{act} was not done") for act in play.acts(name) if not self.world.outside.acts[act]]
            reader.kill()
        return broken


def _differs(expected: Any, run: Run[Any]) -> str:
    if not isinstance(expected, dict):
        return "" if run.result == expected else f"the result is {run.result!r}, not {expected!r}"
    values = {n: run.values.get(n) for n in expected}
    return "" if values == expected else f"the values are {values!r}, not {expected!r}"


def simulate(seed: int, *, tell: bool = False, store: Callable[[VirtualClock], Store] | None = None, cast: Cast = PLAYED) -> Story:
    """Simulates one seed and judges it. The story of a broken seed is told, and with ``tell`` that of a sound one too. ``store`` makes the
    world's store, over the world's clock; by default it is in memory. ``cast``: the programs from which its runs are drawn."""
    simulation = Simulation(seed, store, cast)

    async def whole() -> Story:
        try:
            await simulation.play()
            broken = await simulation.judge()
        except HoldfastError as e:
            broken = [Violation("world_stopped", "", f"{type(e).__name__}: {e.message}")]
        told = await simulation.world.story(broken) if broken or tell else ""
        return Story(seed, tuple(broken), dict(simulation.happened), told)

    try:
        return simulation.world.run(whole(), seed=seed, most_turns=MOST_TURNS)
    except Livelock as e:
        broken, diary = Violation("livelock", "", str(e)), simulation.world.diary
        return Story(seed, (broken,), dict(simulation.happened), shorten("\n".join([str(broken), "", *diary.tell(diary.runs)]), diary.runs))


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulates seeds and prints the results. Returns 1 if a seed is broken."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.simulate", description=__doc__.split("\n\n")[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to play")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run only this seed and print what happened, even if no invariant is broken")
    parser.add_argument("--keep-going", action="store_true", help="continue after a seed that fails")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        story = simulate(options.seed, tell=True)
        sys.stdout.write(f"{story}\n")
        return 0 if story.ok else 1
    began = time.perf_counter()
    happened: Counter[str] = Counter()
    broken = 0
    for seed in range(options.first, options.first + options.seeds):
        story = simulate(seed)
        happened.update(story.happened)
        if not story.ok:
            broken += 1
            sys.stdout.write(f"{story}\n")
            if not options.keep_going:
                break
    seconds = time.perf_counter() - began
    sys.stdout.write(f"{options.seeds} seeds from {options.first}: {broken} broken, {seconds:.1f} s\n")
    sys.stdout.write("".join(f"  {n:>8}  {what}\n" for what, n in sorted(happened.items(), key=lambda p: -p[1])))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
