"""Whatever people answer, and whenever: what a node is told is what was accepted, once, and what was refused is not done (§5, §6, §7, §8, §10.1–§10.12).

``python -m tests.people.any_answer [--seeds N] [--first N] [--store memory|sqlite] [--budget MINUTES]``, some 300 ms a seed.

A program is drawn (``tests.people.any_program``) whose steps ask people for approvals, answers and handoffs, wait for signals and timers, and act, alone, beside
each other, in races, sub-graphs and children, behind gates, within limits and budgets, before a review. One or two processes work on its runs. They die at
writes and in the middle of acts, are told that a write failed that was made, and freeze until their lease is over and another process has gone on. At any write
somebody may answer, also by a link, deny, signal, cancel, fork or replay, twice or at the same time as somebody else; deadlines pass. Then all is answered, and
every run must come to its end, with nothing outside that its records do not tell of.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import Limit, Runtime
from holdfast.core import canon
from holdfast.core.compensation import LIMITS
from holdfast.core.effects import Effect, EffectStatus
from holdfast.core.errors import HoldfastError, LeaseLost, StoreError
from holdfast.core.ids import wait_base
from holdfast.handle import EventView, Run, Wait
from holdfast.ports import Store
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.testing import violations
from holdfast.testing.crash import CrashingStore, Fault, SimulatedCrash
from holdfast.workers.worker import Report
from tests.engine import outside
from tests.inside import die
from tests.people.any_program import PROCESS, ROOM, SIGNALS, Said, World, count_words, make
from tests.postgres.blocking import Blocking, hold
from tests.searches import make_parser, report

MOST = 80
KINDS = ("memory", "sqlite")
CONSENTS = ("approve", "continue", "continue_with_waiver")
KIND_ANSWERS = ("approve", "answer", "continue", "reexecute")
ENDED = ("completed", "canceled", "failed")
LEASE_SECONDS = 31
DEPARTED = ("effect_conflict", "record_mismatch")
"""How a replay ends that people send another way than its source went. A run whose source took back what it depends on ends with ``effects_undone``."""
EXPECTED = frozenset(
    {"already_terminal", "settled_terminal", "undecided_wait", "not_decidable", "decision_conflict", "action_unavailable", "acknowledge_required", "run_is_live",
     "nothing_eligible", "effects_undone", "lane_blocked", "token_refused", "attempt_may_live", "wait_not_found", "checkpoint_not_found"}
)  # fmt: skip
"""What people may be refused for."""


class Clock(outside.Clock):
    """Whoever sleeps lets little time pass: deadlines pass where the play lets them. While a process is frozen, others wait in earnest."""

    most = 0.001

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, self.most))


class Wrong(Clock):
    """The clock of a process, which shows another time than the store's (§10.3)."""

    def __init__(self, right: Clock, by: float) -> None:
        self.right = right
        self.by = int(by * outside.SECOND)

    def now(self) -> int:
        return self.right.now() + self.by

    def monotonic(self) -> float:
        return self.right.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self.right.sleep(seconds)


class Stores:
    """Where the runs are kept: in memory, or in a file that each process opens for itself."""

    def __init__(self, kind: str, folder: Path, clock: Clock) -> None:
        self.kind = kind
        self._path = folder / "runs.db"
        self._clock = clock
        self._memory = MemoryStore(now=clock.now)
        self._open: list[Blocking] = []

    async def open(self) -> Store:
        if self.kind == "memory":
            return self._memory
        store = hold(SqliteStore(self._path, now=self._clock.now))
        self._open.append(store)
        await store.open()
        return store  # type: ignore[return-value]

    def close(self) -> None:
        for store in self._open:
            store.end()


class Busy(CrashingStore):
    """A process's way to the store. At any of its writes somebody may say something, and it may die or freeze."""

    def __init__(self, play: Play, store: Store, plan: Callable[[int, str], Fault | None]) -> None:
        super().__init__(store, plan, pause=self._go_slow)
        self._play = play
        self._thaws: asyncio.Event | None = None

    @property
    def frozen(self) -> bool:
        return self._thaws is not None

    async def _go_slow(self) -> None:
        if self._thaws is not None:
            await self._thaws.wait()
        await self._play.disturb(self)

    async def freeze(self, meanwhile: Awaitable[None]) -> None:
        """Holds up everything that the process asks of the store until the coroutine has ended."""
        self._thaws = asyncio.Event()
        try:
            await meanwhile
        finally:
            self._thaws.set()
            self._thaws = None

    async def renew(self, owner: str, ttl_us: int) -> int:
        """The heart beats in a thread of its own, where nobody says anything. That of a frozen process does not."""
        if self.dead:
            raise SimulatedCrash
        if self.frozen:
            raise StoreError("the process is frozen")
        return await self.beneath.renew(owner, ttl_us)


class Worker(NamedTuple):
    """A process that works on the runs."""

    rt: Runtime
    store: Busy

    async def work(self, on_report: Callable[[Report], None]) -> None:
        PROCESS.set(self.store)
        await self.rt.worker(until_idle=True, on_report=on_report)


class Link(NamedTuple):
    """A link by which somebody may answer a question once, until a time."""

    token: str
    run: Run[Any]
    wait: Wait
    actor: str
    until: int


class Play:
    """One seed."""

    def __init__(self, seed: int, kind: str, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.world = World(self.rng)
        self.clock = Clock()
        self.stores = Stores(kind, folder, self.clock)
        self.skills, plan = make(self.rng, self.world)
        self.chatter = self.rng.choice([0.0, 0.02, 0.08])
        self.freezes = self.rng.choice([0.0, 0.0, 0.01])
        self.deaths = self.rng.random() < 0.6
        self.speaking = False
        self.spoke = False
        self.freezing = False
        self.names: dict[str, int] = {}
        self.links: list[Link] = []
        self.used: set[str] = set()
        self.births = 0
        self.replays: set[str] = set()
        self.of_replays: set[str] = set()
        self.story: list[str] = [plan]
        self.runtimes: list[Runtime] = []
        self.workers: list[Worker] = []

    def tell(self, text: str) -> None:
        self.story.append(text)

    # -- processes ----------------------------------------------------------------------------------

    async def open(self, store: Store | CrashingStore, clock: Clock, **options: Any) -> Runtime:
        rt = Runtime(store, skills=self.skills, clock=clock, limits={"room": Limit(in_flight=ROOM)}, **options)  # type: ignore[arg-type]
        await rt.__aenter__()
        self.runtimes.append(rt)
        return rt

    async def begin(self) -> Worker:
        """Begins a process that works on the runs, and that may come to harm."""
        at = self.rng.randint(1, 60) if self.deaths and self.rng.random() < 0.7 else 0
        fault = self.rng.choice([Fault.BEFORE, Fault.AFTER, Fault.BEFORE, Fault.AFTER, Fault.LOST, Fault.APPLIED])
        store = Busy(self, await self.stores.open(), lambda number, verb: fault if number == at and not self.world.calm else None)
        worker = Worker(await self.open(store, Wrong(self.clock, self.rng.choice([0, 0, -3600, 3600]))), store)
        self.workers.append(worker)
        return worker

    def bury(self, worker: Worker) -> None:
        self.tell("  a process dies")
        worker.store.cut()
        die(worker.rt)
        worker.store.abandon(worker.rt.owner)
        self.workers.remove(worker)
        self.runtimes.remove(worker.rt)

    async def disturb(self, store: Busy) -> None:
        """Something happens beside a write of a process: somebody speaks, or the process freezes until another one has gone on with its runs."""
        if self.speaking or self.freezing or self.world.calm:
            return
        if self.rng.random() < self.chatter:
            await self.speak()
        elif self.rng.random() < self.freezes:
            self.freezing = True
            try:
                await store.freeze(asyncio.create_task(self.take_over()))
            finally:
                self.freezing = False

    async def take_over(self) -> None:
        """The lease of a process runs out, and another one works on its runs."""
        self.tell("  a process freezes")
        self.clock.forward(LEASE_SECONDS)
        self.clock.most = 1.0
        try:
            await self.work([await self.begin()])
        finally:
            self.clock.most = Clock.most
        self.tell("  the process goes on")

    async def work(self, workers: Sequence[Worker]) -> None:
        """Lets processes work until nothing is due, and buries those that died."""
        results = await asyncio.gather(*(asyncio.create_task(w.work(self.take_report)) for w in workers), return_exceptions=True)
        for worker, found in zip(workers, results, strict=True):
            if worker.store.dead or isinstance(found, SimulatedCrash):
                self.bury(worker)
            elif isinstance(found, StoreError):
                self.tell(f"  a process gives up: {found.code}")
            elif isinstance(found, BaseException):
                raise found

    def take_report(self, report: Report) -> None:
        """A run that a process leaves because of an error is one whose store failed, or that another has taken."""
        e = report.error
        if e is not None and not isinstance(e, StoreError | LeaseLost):
            self.world.wrong.append("".join(traceback.format_exception(e)))

    # -- people -------------------------------------------------------------------------------------

    async def speak(self) -> None:
        """Somebody says something to one of the runs, whatever these are doing."""
        if self.speaking or self.world.calm:
            return
        self.speaking = self.spoke = True
        try:
            await asyncio.create_task(self._speak())  # in a context of its own, which is not that of the process whose write it interrupts
        finally:
            self.speaking = False

    async def _speak(self) -> None:
        PROCESS.set(None)
        if runs := await self.list_runs():
            await self.say(self.rng.choice(runs))

    async def say(self, run: Run[Any]) -> None:
        """Cancels it, forks it, sends it a signal, or answers one of its questions, now and then together with others."""
        fate, rng = self.rng.random(), self.rng
        asked = [w for w in run.waits if w.available_actions]
        if fate < 0.03:
            await self.try_to("cancel", run, self.people.cancel(run.run_id))
        elif fate < 0.06:
            await self.bear(run)
        elif fate < 0.3:
            await self.signal(run, rng.choice(SIGNALS))
        elif fate < 0.4:
            await self.use_link(run, asked)
        elif asked:
            wait = rng.choice(asked)
            await asyncio.gather(*[self.answer(run, wait, rng.choice([self.people, self.others])) for _ in range(rng.choice([1, 1, 1, 1, 2, 3]))])

    async def try_to(self, what: str, run: Run[Any], call: Awaitable[Any]) -> bool:
        """Says something to a run, and tells whether it was accepted."""
        try:
            await call
        except HoldfastError as e:
            self.tell(f"    {run.run_id[-4:]} {what}: {e.code}")
            if e.code not in EXPECTED:
                self.world.wrong.append(f"{run.run_id[-4:]} {what}: {e.code}, {e}")
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

    async def bear(self, run: Run[Any]) -> None:
        """Forks a run, from any of its checkpoints, or replays one that has ended."""
        if self.births == 3:
            return
        self.births += 1
        key, points = f"b{self.births}", await self.people.checkpoints(run.run_id)
        at = self.rng.choice(points).checkpoint_id if points and self.rng.random() < 0.7 else None
        if self.rng.random() < 0.6 or run.status not in ENDED:
            await self.try_to(f"fork {key} from {at and at[-8:]}", run, self.people.fork(run.run_id, at, key=key, drive=False))
        else:
            self.replays.add(key)
            await self.try_to(f"replay {key}", run, self.people.replay(run.run_id, key=key, drive=False))

    async def answer(self, run: Run[Any], wait: Wait, who: Runtime, *, kind: bool = False) -> None:
        """Answers a question."""
        actor = self.world.name("p")
        said = await self.choose(run, wait, actor, kind=kind)
        if said is None:
            return
        self.world.said[actor] = said
        options = {"payload": said.payload} if said.payload is not None else {}
        text = f"{wait.wait_id[-20:]} {wait.kind} {wait.prompt!r}: {said.action} {said.payload or ''} by {actor}"
        if await self.try_to(text, run, who.decide(run.run_id, said.action, wait_id=wait.wait_id, actor=actor, feedback=said.feedback, **options)):
            self.world.accept(actor, said)
        else:
            del self.world.said[actor]

    async def use_link(self, run: Run[Any], asked: Sequence[Wait]) -> None:
        """Makes a link to a question, or uses one, which may have been used, be too old or lead to a question that was answered otherwise."""
        world, rng = self.world, self.rng
        if asked and rng.random() < 0.5:
            wait, actor, ttl = rng.choice(asked), world.name("l"), rng.choice([5, 3600])
            try:
                token = await self.people.issue_token(wait.wait_id, actor, ttl)
            except HoldfastError as e:
                self.tell(f"    no link to {wait.wait_id[-20:]}: {e.code}")
                return
            self.links.append(Link(token, run, wait, actor, self.clock.now() + ttl * outside.SECOND))
        for link in rng.sample(self.links, min(len(self.links), rng.choice([0, 1, 2]))):
            said = await self.choose(link.run, link.wait, link.actor)
            if said is None:
                continue
            world.said.setdefault(link.actor, said)
            options = {"payload": said.payload} if said.payload is not None else {}
            late = self.clock.now() >= link.until
            text = f"{link.wait.wait_id[-20:]} {link.wait.kind} {link.wait.prompt!r}: {said.action} {said.payload or ''} by the link of {link.actor}"
            if await self.try_to(text, link.run, self.people.redeem(link.token, said.action, feedback=said.feedback, **options)):
                if late or link.token in self.used:
                    world.wrong.append(f"the link of {link.actor} was used {'too late' if late else 'twice'}")
                self.used.add(link.token)
                world.accept(link.actor, said)
            elif link.token not in self.used:
                del world.said[link.actor]

    async def choose(self, run: Run[Any], wait: Wait, actor: str, *, kind: bool = False) -> Said | None:
        """What somebody says to a question. Of acts they say what is true, and nothing while it may change."""
        rng, payload, feedback = self.rng, None, None
        if wait.kind == "effect":
            return await self.choose_truth(run, wait, kind=kind)
        action = rng.choice(wait.available_actions)
        if kind or (action in ("deny", "halt") and rng.random() < 0.7):
            action = next(a for a in KIND_ANSWERS if a in wait.available_actions)
        if action == "answer" or (action == "approve" and wait.kind == "approval" and rng.random() < 0.5):
            payload = f"{actor}:said"
        elif wait.kind == "budget" and action == "approve":
            return Said(run.run_id, wait, action, {"extend": rng.choice([1, 3, 100])}, None)
        if action in ("retry_feedback", "continue_with_waiver"):
            feedback = f"<{actor}>"
        return Said(run.run_id, wait, action, payload, feedback)

    async def choose_truth(self, run: Run[Any], wait: Wait, *, kind: bool) -> Said | None:
        """What somebody says about an act, or about the undo of one, which they may do by hand."""
        world, rng, payload, by_hand = self.world, self.rng, None, ""
        effect = await self.find_effect(wait.effect_id or "")
        if effect.key in world.under_way or any(w.store.frozen for w in self.workers):
            return None
        if effect.task == "@undo" or "undo" in wait.show:
            act = await self.find_effect(effect.source_effect_id) if effect.task == "@undo" and effect.source_effect_id else effect
            result = "" if act.result is None else str(canon.decode(act.result))
            by_hand = result if rng.random() < 0.5 else ""
            action = "abandon" if world.stands(result) and not by_hand else "record_result"
        elif effect.key in world.done:
            action = next(a for a in ("record_result", "abandon") if a in wait.available_actions)
            payload = world.done[effect.key].result if action == "record_result" else None
        elif "reexecute" in wait.available_actions and (kind or rng.random() < 0.7):
            action = "reexecute"
        else:
            action = "abandon"
        return Said(run.run_id, wait, action, payload, None, by_hand)

    async def find_effect(self, effect_id: str) -> Effect:
        return next(e for e in await self.people.effects(effect_id.partition(".")[0]) if e.effect_id == effect_id)

    async def list_runs(self) -> list[Run[Any]]:
        """All runs, in an order that does not depend on their ids, which differ from one play of a seed to the next."""
        found = {r.run_id: r for r in await self.people.runs(limit=100)}
        for run in sorted((r for r in found.values() if r.run_id not in self.names), key=lambda r: (r.request_key or "", self.names.get(r.parent_run_id or "", 0), (r.parent_wait_id or "")[27:])):
            self.names[run.run_id] = len(self.names)
            self.world.sources[run.run_id] = run.source_run_id
            if run.request_key in self.replays or {run.source_run_id, run.parent_run_id} & self.of_replays:
                self.of_replays.add(run.run_id)
        return sorted(found.values(), key=lambda r: self.names[r.run_id])

    # -- runs ---------------------------------------------------------------------------------------

    async def play(self) -> list[str]:
        """Plays it; gives what is wrong."""
        rng, world = self.rng, self.world
        self.people = await self.open(await self.stores.open(), self.clock)
        self.others = await self.open(await self.stores.open(), self.clock)
        await self.begin()
        budgets = {"cost": rng.choice([1, 2])} if rng.random() < 0.3 else None
        thread = "t" if rng.random() < 0.5 else None
        for n in range(rng.randint(1, 2)):
            await self.people.submit("root", {}, key=f"r{n}", thread_id=thread, budgets=budgets, paused_lane=rng.choice(["hold", "release"]))
        for turn in range(MOST):
            world.calm = world.calm or turn > MOST // 3
            if await self.turn():
                return [*world.wrong, *await self.look_back()]
            if world.wrong:
                return world.wrong
        return [*world.wrong, "it comes to no end"]

    async def turn(self) -> bool:
        """Lets the workers work, somebody speak, or time pass; True once all runs have ended."""
        rng = self.rng
        if not self.workers or (len(self.workers) < 2 and rng.random() < 0.3):
            await self.begin()
        self.spoke = False
        await self.work([*self.workers])
        runs = await self.list_runs()
        for run in runs:
            self.tell(f"{run.run_id[-4:]} {run.skill_id} {run.condition} {run.stop_reason or ''} {[(w.kind, w.name, w.wait_id[-12:]) for w in run.waits]}")
        if self.workers and not self.spoke:  # what was said during a worker's last write may lie until it works again
            for run in runs:
                await self.look(run)
        if all(r.status in ("completed", "canceled") for r in runs) and rng.random() < 0.4:
            self.world.calm = True
        if not self.world.calm:
            await self.go_on(runs)
            return False
        left = False
        for run in runs:
            left = await self.finish(run) or left
        self.clock.forward(3)
        return not left

    async def go_on(self, runs: Sequence[Run[Any]]) -> None:
        """People do as they please."""
        rng = self.rng
        for _ in range(rng.randint(1, 3)):
            await self.speak()
        if rng.random() < 0.4:
            self.clock.forward(rng.choice([1, 6, 16, 30]))
        self.world.wrong += [f"{r.run_id[-4:]} ended {r.stop_reason}: {r.error and r.error.message}" for r in runs if r.stop_reason in DEPARTED and r.run_id not in self.of_replays]
        for run in runs:
            if (run.status == "failed" and rng.random() < 0.5) or (run.condition == "cancelled" and rng.random() < 0.1):
                await self.try_to("resume", run, self.people.resume(run.run_id, acknowledge=run.stop_reason))

    async def finish(self, run: Run[Any]) -> bool:
        """Helps a run to its end; True if it may go on. A replay of a run that stays failed fails as that does."""
        source = self.world.sources.get(run.run_id)
        if run.status == "failed" and run.run_id in self.of_replays and source is not None and (await self.people.get(source)).status == "failed":
            return False
        if run.status == "failed" and (run.stop_reason == "effects_undone" or (run.stop_reason in DEPARTED and run.run_id in self.of_replays)):
            return False
        if run.status == "failed":
            return await self.try_to("resume", run, self.people.resume(run.run_id, acknowledge=run.stop_reason))
        for wait in run.waits:
            if wait.available_actions:
                await self.answer(run, wait, self.people, kind=True)
            elif wait.kind == "signal":
                await self.signal(run, wait.name)
        return run.status not in ENDED

    # -- what must hold -----------------------------------------------------------------------------

    async def look(self, run: Run[Any]) -> None:
        """A run at rest must be one that something can wake, and wait for nothing that it has got."""
        world = self.world
        if run.status not in ("waiting_for_human", "waiting_for_signal") or run.condition == "queued":
            return
        if not run.waits:
            world.wrong.append(f"{run.run_id} waits for nothing")
        places = Counter(wait_base(w.wait_id) for w in run.waits)
        world.wrong += [f"{place} is asked {n} times at once" for place, n in places.items() if n > 1]
        awaited = {w.name for w in run.waits if w.kind == "signal"}
        if awaited:
            came = [e.payload for e in await self.people.events(run.run_id) if e.type == "signal.received"]
            for fact in came:
                value = str(fact["payload"])
                if fact["name"] in awaited and (run.run_id, value) not in world.heard:
                    world.wrong.append(f"{run.run_id[-4:]} waits for {fact['name']} though {value} came")

    async def look_back(self) -> list[str]:
        """What is wrong with what is on record."""
        wrong = [str(v) for v in await violations(await self.stores.open())]
        for run in await self.list_runs():
            wrong += [f"{p.code}: {p.message}" for p in await self.people.check(run.run_id) if p.severity == "error"]
            events = await self.people.events(run.run_id)
            wrong += self.find_asked_again(events)
            wrong += self.find_lost_words(run, events)
            given_up = any(e.type == "wait.closed" and ".@undo." in e.payload["wait_id"] for e in events)  # a second cancel ends a run that asks about an undo as it is
            wrong += await self.find_false_records(run, given_up=given_up)
            keys = Counter((e.payload["name"], e.payload["key"]) for e in events if e.type == "signal.received")
            wrong += [f"{k} was delivered {n} times" for k, n in keys.items() if n > 1]
            got = count_words(run.values.get("said", []) if run.values else run.result)
            wrong += [f"{run.run_id[-4:]} used {v} {n} times" for v, n in got.items() if n > 1 and v in self.world.sent]
        return wrong

    def find_asked_again(self, events: Sequence[EventView]) -> list[str]:
        """Questions that were asked once more though somebody had answered them, and the answer stood: it does not once an effect of the step has been undone, because a
        resume does that again, and all that came after it; nor for another result than was shown (§5.8)."""
        answered, shown, wrong = dict[str, str](), dict[str, Any](), list[str]()
        for e in events:
            if e.type == "wait.decided" and e.payload["decision"]["action"] in (*CONSENTS, "answer"):
                answered[wait_base(e.payload["decision"]["wait_id"])] = e.payload["decision"]["actor"]
            elif e.type == "wait.closed":
                answered.pop(wait_base(e.payload["wait_id"]), None)
            elif e.type == "side_effect.recorded" and e.payload["task"] == "@undo":
                step, task = e.payload["path"].split(".")[:2]
                answered = {place: actor for place, actor in answered.items() if not place.partition(".")[2].startswith((f"{step}.{task}.", f"{step}.@undo."))}
            elif e.type == "wait.requested":
                wait = e.payload["wait"]
                place = wait_base(wait["wait_id"])
                if place in answered and wait["kind"] != "review" and shown[place] == wait["show"]:
                    wrong.append(f"{wait['wait_id']} is asked again (event {e.seq}) though {answered[place]} had answered it")
                shown[place] = wait["show"]
        return wrong

    def find_lost_words(self, run: Run[Any], events: Sequence[EventView]) -> list[str]:
        """Answers and signals that were accepted, and of which the log does not tell."""
        if run.status != "completed":
            return []
        told = {e.payload["decision"]["wait_id"] for e in events if e.type == "wait.decided"} | {e.payload["wait_id"] for e in events if e.type == "wait.closed"}
        return [f"{run.run_id[-4:]} does not tell of {said.what} about {said.wait.prompt}" for (by, wait_id), said in self.world.answers.items() if by == run.run_id and wait_id not in told]

    async def find_false_records(self, run: Run[Any], *, given_up: bool) -> list[str]:
        """Records of acts that are not as they say, and acts that should have been taken back."""
        world, wrong = self.world, list[str]()
        effects = await self.people.effects(run.run_id)
        undos = {e.source_effect_id: e for e in effects if e.task == "@undo"}
        doubtful = {e for e, undo in undos.items() if undo.status is not EffectStatus.RECORDED}
        for e in effects:
            if e.status is not EffectStatus.RECORDED or e.task == "@undo":
                continue
            result = None if e.result is None else canon.decode(e.result)
            done = world.done.get(e.key)
            if not world.was_done(str(result)):
                wrong.append(f"{e.effect_id} is on record with {result}, and was not done")
            elif done is not None and done.result != result:
                wrong.append(f"{e.effect_id} is on record with {result} in place of {done.result}")
            elif done is not None and e.effect_id not in doubtful and not world.is_shared(done.result) and bool(e.undone) == world.stands(done.result):
                wrong.append(f"{e.effect_id} is {'' if e.undone else 'not '}taken back on record, and outside it is otherwise")
            ends = (run.status == "failed" and run.stop_reason not in LIMITS) or run.condition == "cancelled"
            if e.undo and ends and not given_up and not e.undone and e.effect_id not in doubtful:
                wrong.append(f"{e.effect_id} was not taken back when its run ended {run.status}, {run.stop_reason}")
        return wrong

    async def close(self) -> None:
        self.world.calm = True
        for rt in self.runtimes:
            await rt.close()
        self.stores.close()


async def play(seed: int, kind: str, folder: Path) -> str:
    """Plays one seed; returns its story if anything is wrong, else nothing."""
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)  # errors of a process that died are nobody's
    playing = Play(seed, kind, folder)
    try:
        told = await asyncio.wait_for(playing.play(), 60)
    except Exception as e:
        told = ["".join(traceback.format_exception(e))]
    finally:
        await playing.close()
    return "\n".join([*playing.story, *told]) if told else ""


def over(kind: str | None) -> Callable[[int], str]:
    """Plays seeds over a kind of store; by default the seed says which."""

    def tell(seed: int) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return asyncio.run(play(seed, kind or KINDS[seed % 4 == 0], Path(folder)))

    return tell


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser("tests.people.any_answer", __doc__, seeds=2000, takes="some ten minutes")
    parser.add_argument("--store", choices=KINDS, help="where the runs are kept (every fourth seed: in a file, the others: in memory)")
    options = parser.parse_args(arguments)
    return report(options, over(options.store))


if __name__ == "__main__":
    sys.exit(main())
