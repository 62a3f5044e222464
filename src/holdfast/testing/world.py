"""A simulated world for crash tests: one store that outlives its users, virtual time, hosts that crash, and an outside that counts.

Theory of operation. A ``Host`` is a runtime in a ``Process`` of its own, with its own connection to the shared store. A
crash cuts the connection first and then cancels the host's tasks, so that nobody sees what they do as they end. A new host
on the same store finds what a restarted process would find. ``Outside`` stands for the systems that effects reach: it
counts what was done there, and it survives every crash.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast import logs
from holdfast.authoring import Skill
from holdfast.core import codec
from holdfast.core import events as ev
from holdfast.core import run as records
from holdfast.core.checkpoint import StepRecord
from holdfast.core.commit import Commit, Step
from holdfast.core.errors import HoldfastError
from holdfast.core.lease import counter
from holdfast.core.run import fold_all
from holdfast.core.status import TERMINAL
from holdfast.engine.base.services import Heartbeat
from holdfast.engine.calls.context import Context
from holdfast.engine.calls.effects import closed_owners
from holdfast.handle import Run
from holdfast.ports import Claim, Store
from holdfast.runtime import Runtime
from holdfast.stores.memory import MemoryStore
from holdfast.testing.clock import Process, VirtualClock, VirtualLoop, run_virtual
from holdfast.testing.crash import CrashingStore, Fault, Plan, SimulatedCrash, at_write, never
from holdfast.testing.diary import Diary
from holdfast.testing.invariants import Violation, lane_violations, violations
from holdfast.testing.transcript import ending, shorten

T = TypeVar("T")
Place = tuple[str, int, str, str]
LEASE_SECONDS = 30.0
MOST = 5  # the violations that a story begins with


class TaskHeartbeat(Heartbeat):
    """The heartbeat as a task of its process instead of a thread, so that virtual time drives it and a freeze stops it."""

    process: Process

    def start(self) -> None:
        self._confirmed = self._clock.monotonic()
        self.process.start(self._go_on())

    async def _go_on(self) -> None:
        while not self._stop.is_set():
            await self._clock.sleep(self._ttl_us / 3_000_000)
            if self._stop.is_set() or not await self.beat():
                return

    def stop(self) -> None:
        self._stop.set()


class Host:
    """A process with a runtime on the world's store."""

    def __init__(self, world: World, name: str, skills: Iterable[Skill], connection: CrashingStore, options: Mapping[str, Any]) -> None:
        self.world = world
        self.name = name
        self.process = Process(name)
        self.connection = connection
        self.rt = Runtime(connection.as_store(), skills=skills, clock=world.clock, lease=world.lease, **options)
        services = self.rt._services
        services.owner = name
        closed_owners.discard(name)  # a host of an earlier world may have had the same name
        services.entropy = lambda: world.rng.getrandbits(128)
        beat = TaskHeartbeat(services.store, world.clock, name, self.rt._ttl_us)
        beat.process = self.process
        self.rt._heartbeat = beat

    @property
    def dead(self) -> bool:
        return self.process.dead

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.process.start(work)

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Does some work in this process, and awaits it.

        Raises:
            SimulatedCrash: the process died meanwhile.
        """
        task = self.process.start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if self.dead:
                raise SimulatedCrash from None
            task.cancel()
            raise

    def kill(self, *, proven: bool = True) -> None:
        """Ends the process at once, as SIGKILL does. ``proven``: others can lock its liveness file, and so know that it is dead (§2.9)."""
        if self.dead:
            return
        self.world.diary.note("dies", who=self.name)
        self.connection.cut()
        self.process.kill()
        if proven:
            self.world.proven_dead(self.name)

    async def close(self) -> None:
        """Ends the process cleanly: its leases are handed back (§10.4)."""
        if not self.dead:
            await self.do(self.rt.close())
            self.connection.cut()
            self.process.kill()
        await self.process.wait_until_gone()


class Outside:
    """What effects reach. It outlives every process; ``acts`` counts how often each thing was done there for good."""

    def __init__(self, seen: Callable[[str, bool], None] = lambda what, again: None) -> None:
        self.acts: Counter[str] = Counter()
        self.known: dict[str, Any] = {}
        self._seen = seen

    def act(self, what: str, key: str | None = None, result: Any = None) -> int:
        """Does something outside that cannot be taken back. Returns how often it was done.

        ``key`` is the key that the engine handed over; a person who looks under it finds ``result``.
        """
        self.acts[what] += 1
        again = self.acts[what] > 1
        self._seen(f"acts outside: {what}" + (", and had done so before" if again else ""), again)
        if key is not None:
            self.known[key] = result
        return self.acts[what]


class World:
    """Simulated hosts over one store, in virtual time.

    Args:
        store: the store that they share; by default a new MemoryStore.
        lease: seconds.
        seed: the seed of random values, and in ``run`` of the order of callbacks.
        clock: the clock of all hosts; by default a new one.
    """

    def __init__(self, store: Store | None = None, *, lease: float = LEASE_SECONDS, seed: int = 0, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.rng = random.Random(seed)
        self.store: Store = store or MemoryStore(now=self.clock.now)
        self.lease = dt.timedelta(seconds=lease)
        self.diary = Diary(self.clock)
        self.outside = Outside(lambda what, again: self.diary.note(what, bad=again))
        self.hosts: list[Host] = []
        self.order: list[tuple[str, Commit]] = []
        self.fences: dict[str, int] = {}
        self.leases: dict[str, int] = {}
        self.begun: Counter[Place] = Counter()
        self._runs: dict[str, records.Run] = {}
        self._done: set[Place] = set()
        self._broken: list[Violation] = []

    # -- hosts --------------------------------------------------------------------------------------

    async def host(
        self, *skills: Skill, plan: Plan = never, pause: Callable[[], Awaitable[None]] | None = None, proven: bool = True, **options: Any
    ) -> Host:
        """Starts a simulated process with a runtime on the store. ``proven`` is whether other hosts know that the process is dead after it
        crashed."""
        name = f"host-{len(self.hosts) + 1}"
        connection = CrashingStore(self.store, plan, pause=pause, seen=self._saw)
        host = Host(self, name, skills, connection, options)
        connection._on_crash = lambda: host.kill(proven=proven)
        self.hosts.append(host)
        await host.do(host.rt.__aenter__())
        return host

    def proven_dead(self, owner: str) -> None:
        """Marks a process as proven dead, as its liveness file would show it. A store that cannot do this waits until the lease expires."""
        abandon = getattr(self.store, "abandon", None)
        if abandon is not None:
            abandon(owner)

    async def end(self) -> None:
        """Kills all remaining hosts."""
        for host in self.hosts:
            host.kill()
            await host.process.wait_until_gone()

    # -- what the store applied ---------------------------------------------------------------------

    def _saw(self, verb: str, args: tuple[Any, ...], answer: Any) -> None:
        match verb:
            case "register":
                self.leases[args[0]] = self.clock.now() + args[1]
            case "renew" if answer:
                self.leases[args[0]] = answer
            case "retire":
                self.leases.pop(args[0], None)
            case "claim" | "claim_or_load":
                for claim in answer if isinstance(answer, list) else ():
                    self._check_claim(args[0], claim)
            case "put":
                self.diary.note(f"asks {args[0].run_id}: {type(args[0].command).__name__}", run=args[0].run_id)
            case "commit":
                self._apply(args[0])
            case "step" | "join" | "step_at_once":
                self._apply(self._whole(args[0]))

    def _check_claim(self, owner: str, claim: Claim) -> None:
        """Checks that a claim takes nothing from a live owner (§10.1)."""
        before = claim.previous_owner
        said = f"claims {claim.run_id}, fence {counter(claim.fence)}" + (f", from {before}: {claim.cause}" if before else "")
        self.diary.note(said, who=owner, run=claim.run_id)
        alive = any(h.name == before and not h.dead for h in self.hosts)
        if before not in (None, owner) and alive and self.leases.get(before or "", 0) > self.clock.now():
            self._break("claimed_from_the_living", claim.run_id, f"{owner} took it from {before}")
        self.fences[claim.run_id] = claim.fence

    def _whole(self, step: Step) -> Commit:
        """Returns the commit that a step of the fused line stands for."""
        record = codec.open_row(codec.Row(step.seq, step.data, step.hash), step.after.hash)
        run = fold_all(self._runs[step.run_id], record.events)
        return Commit(run=run, events=record.events, after=step.after, fence=step.fence, at=record.at, delta=record.delta_bytes)

    def _apply(self, commit: Commit) -> None:
        run = self._runs[commit.run.run_id] = commit.run
        for born in commit.creates:
            self._runs[born.run.run_id] = born.run
        self.diary.note("", run=run.run_id, commit=commit)
        if commit.fence < self.fences.get(run.run_id, 0):
            self._break("written_late", run.run_id, f"event {commit.events[-1].seq} was written under an old fence")
        self.order.append((f"{run.tenant_id}/{run.session_key}/{run.lane}", commit))
        self.fences[run.run_id] = commit.fence
        names = {(r.task, r.path): r.name for r in commit.results if isinstance(r, StepRecord)}
        for event in commit.events:
            if isinstance(event.fact, ev.StepEnded):
                fact = event.fact
                self._done.add((run.run_id, fact.step, fact.task, names.get((fact.task, fact.path), fact.path)))

    def begin(self, ctx: Context, name: str = "") -> None:
        """A node calls this to report that it is running now; a function that it runs as a step calls it with its own name as ``name``.

        It is a violation if a completed step runs again, unless in a process that has not yet noticed that it lost its lease (§4.6, §7.1).
        """
        _, step, task = ctx.step_id.split(".")[:3]
        place = (ctx.run_id, int(step), task, name)
        self.begun[place] += 1
        if place in self._done and ctx.fence == counter(self.fences[ctx.run_id]):
            self._break("ran_again", ctx.run_id, f"step {step} {task} {name} was completed before")

    def _break(self, code: str, run_id: str, message: str) -> None:
        self._broken.append(Violation(code, run_id, message))
        self.diary.note(f"{code}: {message}", run=run_id, bad=True)

    # -- judging ------------------------------------------------------------------------------------

    async def check(self) -> list[Violation]:
        """Returns all violations: in the store, in the order of the lanes, and in simulated external systems."""
        twice = [Violation("acted_twice", "", f"{key} was done {n} times") for key, n in self.outside.acts.items() if n > 1]
        return [*self._broken, *await violations(self.store), *lane_violations(self.order), *twice]

    async def assert_whole(self) -> None:
        """Raises AssertionError with all violations and their ``story``, if there are any violations."""
        broken = await self.check()
        assert not broken, "\n" + await self.story(broken)

    async def story(self, broken: Sequence[Violation] = ()) -> str:
        """Returns, as text, what happened to the runs that have a violation (or to all runs), and their present state."""
        runs = self.diary.find_concerned(broken)
        lines = [*map(str, broken[:MOST]), *([f"and {len(broken) - MOST} more"] if len(broken) > MOST else []), "", *self.diary.tell(runs), ""]
        for run_id in runs:
            lines += [run_id, *await ending(self.store, run_id)]
        return shorten("\n".join(lines), [*runs, *self.diary.runs])

    # -- the short way ------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T], *, seed: int | None = None, most_turns: int = 0) -> T:
        """Runs a test's coroutine in virtual time, and ends all hosts afterwards."""

        async def whole() -> T:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            loop.set_exception_handler(lambda _loop, _context: None)  # errors of killed tasks are not logged
            try:
                return await work
            finally:
                await self.end()

        return run_virtual(whole(), seed=seed, clock=self.clock, most_turns=most_turns)


Script = Callable[[Host, Run[Any]], Awaitable[object]]
MOST_EVENTS = 500


async def approve_all(host: Host, run: Run[Any]) -> None:
    """The default script: approves what can be approved, and answers for an unknown effect what ``Outside`` knows (§6.5).

    While the process that attempted the effect may still act, nobody can say that the effect will not happen, so the script waits.
    """
    known = host.world.outside.known
    if run.version > MOST_EVENTS:
        return  # a run that asks without end is stuck; its story says so
    for wait in run.waits:
        if "approve" in wait.available_actions:
            await host.rt.decide(run.run_id, "approve", wait_id=wait.wait_id, actor="tester")
        elif wait.kind == "effect" and wait.show["key"] in known:
            await host.rt.decide(run.run_id, "record_result", wait_id=wait.wait_id, actor="tester", payload=known[wait.show["key"]])
        elif wait.kind == "effect" and await _over(host, wait.show):
            await host.rt.decide(run.run_id, "reexecute", wait_id=wait.wait_id, actor="tester", force=True)


async def approve_known(host: Host, run: Run[Any]) -> None:
    """The default script of the fixture ``holdfast_crashes``: it approves as ``approve_all`` does, but makes nothing up about an effect. A test's
    function may reach anything, so only the test can look whether the effect happened.

    Raises:
        AssertionError: a person is asked whether an effect happened.
    """
    for wait in run.waits:
        if wait.kind == "effect":
            raise AssertionError(
                f"after a crash a person is asked whether the effect {wait.show['effect']!r} happened: it has no verify= and is not idempotent=True; give it one of them, or "
                "pass script= to holdfast_crashes: a function that looks at the receiver and answers record_result or reexecute (docs/testing.md)"
            )
    await approve_all(host, run)


async def _over(host: Host, shown: Mapping[str, Any]) -> bool:
    """Whether the attempt can no longer act: it is closed, or its process has ended or executes nothing, which only the world can know."""
    return shown["closed"] or all(h.dead or not h.rt._services.acting for h in host.world.hosts if h.name == shown["owner"])


async def to_the_end(host: Host, run_id: str, script: Script = approve_all, *, rounds: int = 40) -> Run[Any]:
    """Recovers and drives a run until it has ended, and answers what it asks. The longer nothing happens, the longer it lets time pass."""
    seen, idle = -1, 0
    for _ in range(rounds):
        await host.rt.recover()
        run = await host.rt.get(run_id)
        if run.status in TERMINAL:
            return run
        seen, idle = run.version, idle + 1 if run.version == seen else 0
        await script(host, run)
        await asyncio.sleep(min(2**idle, 3600))
    raise AssertionError(f"{run_id} did not end in {rounds} rounds: it is {run.condition}")


class Disturbed(NamedTuple):
    """One crash of ``crash_everywhere``: where it happened, and how the run ended after it."""

    number: int
    verb: str
    fault: Fault
    run: Run[Any]
    world: World


def crash_everywhere(
    skill: Skill,
    inputs: Mapping[str, Any] | None = None,
    *,
    script: Script = approve_all,
    faults: Iterable[Fault] = (Fault.BEFORE, Fault.AFTER),
    store: Callable[[VirtualClock], Store] | None = None,
    fresh: Callable[[World], object] | None = None,
    proven: bool = True,
    runtime: Mapping[str, Any] | None = None,
) -> tuple[Run[Any], list[Disturbed]]:
    """Runs a skill undisturbed, then once for each (store write, fault) with a crash there; returns all the ends.

    The process that crashes is gone; another one on the same store goes on. ``fresh`` is called with each new world before
    its run, to reset what the test counts. ``runtime``: further options for the Runtime of its processes.

    Raises:
        AssertionError: an invariant is broken; the message tells the story.
    """

    def once(plan: Plan) -> tuple[Run[Any], Host, World]:
        clock = VirtualClock()
        world = World(store(clock) if store is not None else None, clock=clock)
        if fresh is not None:
            fresh(world)

        async def story() -> tuple[Run[Any], Host]:
            await world.store.open()
            first = await world.host(skill, plan=plan, proven=proven, **(runtime or {}))
            try:
                run_id = await _begin(first, skill, inputs, script)
            except (SimulatedCrash, HoldfastError):
                if not first.dead:
                    await first.close()
                run_id = None
            second = await world.host(skill, **(runtime or {}))
            if run_id is None:
                run_id = await _begin_again(second, skill, inputs)
            run = await second.do(to_the_end(second, run_id, script))
            await second.close()
            await world.assert_whole()
            return run, first

        with logs.mute():  # every crash here is on purpose
            run, first = world.run(story())
        return run, first, world

    whole, first, _ = once(never)
    verbs = list(first.connection.writes)
    assert len(verbs) > 1, "the run without a fault wrote nothing to the store"
    ends: list[Disturbed] = []
    for number, verb in enumerate(verbs, 1):
        for fault in faults:
            run, _, world = once(at_write(number, fault))
            ends.append(Disturbed(number, verb, fault, run, world))
    return whole, ends


async def _begin(host: Host, skill: Skill, inputs: Mapping[str, Any] | None, script: Script) -> str:
    """Does the work of the first process: begins the run and takes it as far as it can."""
    run: Run[Any] = await host.do(host.rt.invoke(skill, inputs, key="the-run"))
    if run.status not in TERMINAL:
        await host.do(to_the_end(host, run.run_id, script))
    await host.close()
    return str(run.run_id)


async def _begin_again(host: Host, skill: Skill, inputs: Mapping[str, Any] | None) -> str:
    """Submits again under the same request key: returns the existing run, or a new one if the first was never durable (§3.5)."""
    run: Run[Any] = await host.do(host.rt.submit(skill, inputs, key="the-run"))
    return str(run.run_id)


__all__ = ["Disturbed", "Host", "Outside", "World", "approve_all", "approve_known", "crash_everywhere", "to_the_end"]
