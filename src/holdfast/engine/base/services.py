"""What an engine works with: one value handed down instead of globals; what it holds meanwhile, the runs that this process drives; and the lease
under which it does.

It is long, for none of these is there without the others: a process that drives renews its lease, and asks before anything new begins; and
whoever drives a run is told here of its news, where it may stop, and whether it is driven alone.

*News* (§10.12, §10.16). Other processes put commands into a live run's inbox; its owner is to see them within milliseconds, also in
mid-step. One task looks for all of them together whenever the store may have changed, and at the latest twice a second. What merely
exists is not looked at: the store names the runs with news, and a heap the ones whose deadline has passed.

*Safe points* (§10.13). Between super-steps a run may be left anywhere without cutting anything short. Inside one, a node stands at a safe
point when its next ctx call would begin and none is in flight: what it did so far is on record. A plain node, and a call, are let come to
their end first.

*Quarantine* (§10.6). A run whose owner has died, and before that another one without any progress in between, is a suspect: what it does
next may end this process too, with all that is driven beside it. Those would be counted as if the fault were theirs, and end with it. So a
suspect waits until the runs in hand have come to a rest, for a little while, and is driven alone until it gets on, or for a little while;
whoever comes meanwhile waits. Suspects take turns. What has waited has not been begun, and does not count.

*The lease* (§10.3, §10.4). It is renewed in a thread of its own, off the event loop's busy path. One row per worker holds the expiry, so one update renews
all its runs. A worker judges its lease by a clock that goes on while the machine sleeps, and begins nothing later than 60 % of the TTL after its
last confirmed renewal."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import heapq
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import Any, Protocol

import msgspec

from holdfast import workspaces
from holdfast.core import canon
from holdfast.core.checkpoint import Ended, StepRecord
from holdfast.core.environments import DEVELOPMENT, Environment
from holdfast.core.errors import (
    Conflict,
    FingerprintMismatch,
    HoldfastError,
    LeaseLost,
    ProcessForked,
    SkillUnknown,
    StoreClosed,
    StoreError,
    WorkspaceElsewhere,
    make_own,
)
from holdfast.core.graph import Program
from holdfast.core.lease import SAFE_PART
from holdfast.core.limits import Limit, Rules, in_force
from holdfast.core.offers import Offer
from holdfast.core.policy import Policy
from holdfast.core.run import ANY, Run, shape_in
from holdfast.core.wording import target_of
from holdfast.engine.base.failures import ControlFlow
from holdfast.engine.base.pool import Pool
from holdfast.engine.base.streams import Streams
from holdfast.engine.base.turns import Turns
from holdfast.engine.look.living import living
from holdfast.engine.look.threads import Threads
from holdfast.machine import note_error
from holdfast.ports import Clock, Gathering, News, Resolver, Steps, Store, offers_gathering, offers_steps

BOUNDS_SECONDS = 1.0


class StoreClock:
    """The store's time for whatever is stored, or compared with what is (§1.9); a worker's own clock measures spans only."""

    def __init__(self, store: Store, spans: Clock) -> None:
        self.now = store.now
        self.monotonic = spans.monotonic
        self.sleep = spans.sleep


class Skills:
    """The programs this process can run, by id and version."""

    def __init__(self) -> None:
        self._by_id: dict[str, dict[str, Program]] = {}
        self._ref: str | None = None
        self._shapes: tuple[str, ...] | None = None  # a worker asks for them with each look

    def add(self, program: Program) -> Program:
        versions = self._by_id.setdefault(program.id, {})
        if versions.get(program.version) is not program:
            versions[program.version] = program
            self._ref = self._shapes = None
        return program

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._by_id)

    def __iter__(self) -> Any:
        return (p for versions in self._by_id.values() for p in versions.values())

    @property
    def ref(self) -> str:
        """A name for what is registered here, which changes with it: programs, their versions and shapes."""
        if self._ref is None:
            self._ref = canon.fingerprint([[p.id, p.version, p.fingerprint] for p in self])
        return self._ref

    @property
    def shapes(self) -> tuple[str, ...]:
        """The fingerprints of runs that can be gone on with here, migrations included (§10.11)."""
        if self._shapes is None:
            self._shapes = tuple(dict.fromkeys(f for p in self for f in (p.fingerprint, *p.migrates)))
        return self._shapes

    def find(self, skill_id: str, version: str | None = None) -> Program:
        """The program of an id; of several versions the one asked for, else the newest registered.

        Raises:
            SkillUnknown: this process does not have it; says what it has.
        """
        versions = self._by_id.get(skill_id)
        if not versions:
            known = ", ".join(self._by_id) or "none"
            raise SkillUnknown(f"the skill {skill_id!r} is not registered here", hint=f"known: {known}; pass its TARGET (module:name) or Runtime(skills=[…])")
        if version is not None and version in versions:
            return versions[version]
        return next(reversed(versions.values()))

    def for_run(self, run: Run, *, upgrade: bool = False) -> Program:
        """The program that may go on with a run (§3.2).

        Raises:
            SkillUnknown: it is not registered here.
            FingerprintMismatch: its shape changed, no migration is declared, and no upgrade was asked for.
        """
        program = self.find(run.skill_id, run.skill_version)
        if upgrade:
            return program
        for other in (program, *reversed(self._by_id[run.skill_id].values())):
            if run.fingerprint == other.fingerprint or run.fingerprint in other.migrates:
                return other
        code = target_of(run.target)
        raise FingerprintMismatch(
            f"the graph of {run.skill_id!r} (v{program.version}) differs from the one with which the run {run.run_id} began (v{run.skill_version})",
            hint=f'to let the new code continue such runs, declare migrates=("{run.fingerprint}",) in the skill; for this run only: holdfast resume {run.run_id} {code} --upgrade, holdfast worker {code} --upgrade',
        )


class Asked(msgspec.Struct, frozen=True):
    """A call through ``ctx``: where it stands in which run, what it is, and with what. ``digest`` tells arguments apart."""

    run_id: str
    step: int
    task: str
    path: str
    kind: str
    name: str
    digest: str
    args: tuple[Any, ...]


class Sendings(Protocol):
    """Who sends the intents of runs that are driven here (§4.18)."""

    def post(self, run_id: str) -> None:
        """A run that is driven here may have intents to send: a commit of it has some, or one from before."""

    async def deliver(self, run_id: str) -> None:
        """The run rests: what it has to be sent is sent, as far as that can be done now."""

    def leave(self, run_id: str) -> None:
        """The run is not driven here any more."""


class Recording(Protocol):
    """What answers the calls of a run in the place of the outside (``holdfast.testing.replay``)."""

    def answer(self, call: Asked) -> StepRecord | None:
        """What is on record there; None where the call may go on: it opens a scope, or a wait."""

    def find_end(self, run_id: str, step: int) -> Ended | None:
        """How the barrier of this number went, where it was no plain one."""


# -- the runs that are driven here -----------------------------------------------------------------


LOOK_SECONDS = 0.5
REST_SECONDS = 0.002
FIRST_SECONDS = 0.005  # a run of one short step over a server has ended by then
ASK_AGAIN_SECONDS = 0.1
STALE = 64


class Written(Protocol):
    """What is written of a run that is driven. ``quiet`` is set while nothing of it acts outside."""

    @property
    def quiet(self) -> asyncio.Event: ...

    def stop(self, error: HoldfastError) -> None:
        """From here on nothing is written."""


class Driven(Protocol):
    """What the drivers have in common."""

    @property
    def journal(self) -> Written: ...

    def nudge(self) -> None:
        """The run's inbox may have something."""

    def drain(self) -> None:
        """Stop at the next safe boundary."""

    def broke(self, error: BaseException) -> None:
        """Nobody looks at its inbox any more: it must not go on as if somebody did."""


class Taken:
    """The runs that some task of this process has taken, or is about to take, and drives. Once it is ``closed``, no more are taken."""

    def __init__(self) -> None:
        self._runs: set[str] = set()
        self._coming: set[str] = set()
        self._none_comes = asyncio.Event()
        self.closed: HoldfastError | None = None

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._runs

    def take(self, run_id: str) -> None:
        """A run is about to be taken.

        Raises:
            StoreClosed: no more are taken.
        """
        if self.closed is not None:
            raise StoreClosed("this runtime was closed")
        self.add(run_id)

    def add(self, run_id: str) -> None:
        self._runs.add(run_id)
        self._coming.add(run_id)

    def attend(self, run_id: str) -> None:
        """Its driver is attended to."""
        self._coming.discard(run_id)
        if self.closed is not None and not self._coming:
            self._none_comes.set()

    def discard(self, run_id: str) -> None:
        self._runs.discard(run_id)
        self.attend(run_id)

    async def close(self, error: HoldfastError) -> None:
        """Takes no more, and waits for those that have been taken and have no driver yet."""
        self.closed = error
        while self._coming:
            self._none_comes.clear()
            await self._none_comes.wait()


class Drivers:
    """Watches the inboxes of the runs that this owner drives, for as long as it drives any; ``left`` are those it has handed back, and ``taken`` those that
    are driven, or will be in a moment."""

    def __init__(self, store: Store, clock: Clock, owner: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._drivers: dict[str, Driven] = {}
        self._expected: dict[str, int] = {}
        self._deadlines: list[tuple[int, str]] = []  # a heap of these, and of such as are no longer expected
        self._task: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        self.draining = False
        self.left: list[str] = []
        self.taken = Taken()

    @contextmanager
    def on(self, run_id: str, driver: Driven, due: int | None) -> Iterator[None]:
        """Attends to a run while it is driven; ``due``: its next deadline."""
        self._drivers[run_id] = driver
        self.taken.attend(run_id)
        self.expect(run_id, due)
        if self.draining:
            driver.drain()
        if self.taken.closed is not None:
            driver.broke(make_own(self.taken.closed))
        if self._soon is None and (self._task is None or self._task.done()):
            # What ends before that has no task made for it, and no look.
            self._soon = asyncio.get_running_loop().call_later(FIRST_SECONDS, self._begin)
        try:
            yield
        finally:
            self._drivers.pop(run_id, None)
            self._expected.pop(run_id, None)
            if not self._drivers:
                self._closed.set()
            if not self._drivers and self._soon is not None:
                self._soon.cancel()
                self._soon = None
            if not self._drivers and self._task is not None:
                self._task.cancel()
                self._task = None

    def _begin(self) -> None:
        """Begins to watch."""
        self._soon = None
        self._task = asyncio.ensure_future(self._watch())
        self._task.add_done_callback(self._end)

    def expect(self, run_id: str, due: int | None) -> None:
        """The next deadline of a run that is driven here; None: it has none."""
        if self._expected.get(run_id) == due:
            return
        if due is None:
            del self._expected[run_id]
            return
        self._expected[run_id] = due
        heapq.heappush(self._deadlines, (due, run_id))
        if len(self._deadlines) > 2 * len(self._expected) + STALE:  # of runs that have gone on meanwhile
            self._deadlines = [(at, run) for run, at in self._expected.items()]
            heapq.heapify(self._deadlines)

    def _fall_due(self, now: int) -> None:
        """Tells the drivers whose deadline has passed."""
        while self._deadlines and self._deadlines[0][0] <= now:
            due, run_id = heapq.heappop(self._deadlines)
            if self._expected.get(run_id) == due:
                del self._expected[run_id]
                self.nudge(run_id)

    def drives(self, run_id: str) -> bool:
        return run_id in self._drivers

    @property
    def driven(self) -> tuple[str, ...]:
        return tuple(self._drivers)

    def drain(self) -> None:
        """Every run that is driven here, and any that will be, is handed back at its next safe boundary (§10.13)."""
        self.draining = True
        for driver in list(self._drivers.values()):
            driver.drain()

    def drain_one(self, run_id: str) -> bool:
        """The run is handed back at its next safe boundary, if it is driven here; gives whether it is."""
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.drain()
        return driver is not None

    async def close(self, error: HoldfastError) -> None:
        """Stops every run that is driven here, and any that is about to be, each with this error, once what it acts on outside has come to its end or its grace."""
        self._closed = asyncio.Event()
        for driver in list(self._drivers.values()):
            driver.broke(make_own(error))
        await self.taken.close(error)
        if self._drivers:
            await self._closed.wait()

    def abandon(self) -> None:
        """Nothing that is driven here still, and acts on nothing outside, is written any more: what its nodes meet from now on is no outcome (X-18)."""
        if (error := self.taken.closed) is not None:
            for driver in self._drivers.values():
                if driver.journal.quiet.is_set():
                    driver.journal.stop(make_own(error))

    def nudge(self, run_id: str) -> None:
        """Something was put into this run's inbox here."""
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.nudge()

    def _end(self, task: asyncio.Task[None]) -> None:
        """A watch that broke for good takes its drivers with it: they would never hear of a cancel again (X-14)."""
        if not task.cancelled() and (error := task.exception()) is not None:
            for driver in list(self._drivers.values()):
                driver.broke(make_own(error))

    async def _watch(self) -> None:
        """A store that fails for a while is asked again; the drivers meet its error with their next commit."""
        while self._drivers:
            try:
                await self._store.wait_for_change(LOOK_SECONDS, News.INBOX)
                for run_id in await self._store.find_marked(self._owner()):
                    self.nudge(run_id)
            except StoreError as e:
                if not e.passing:
                    raise
                await asyncio.sleep(ASK_AGAIN_SECONDS)
            self._fall_due(self._clock.now())
            await asyncio.sleep(REST_SECONDS)  # many changes at once are one look


class Standing(Protocol):
    """The part of an attempt that is looked at here: its calls in flight, and whether it stands still."""

    calls: int
    parked: bool


NOBODY: frozenset[Standing] = frozenset()


class SafePoints:
    """Watches the tasks of a super-step once somebody has ``asked``; ``reached`` is called when all that run stand at a boundary."""

    def __init__(self, reached: Callable[[], None]) -> None:
        self.asked = False
        self.on_reached = reached
        self._tasks: dict[str, frozenset[Standing]] = {}

    def ask(self) -> None:
        self.asked = True
        self.look()

    def begin(self, *tasks: str, alone: bool = False) -> None:
        """Tasks are entered; each counts as under way until what came of it is durable. ``alone``: they are all there is of their super-step."""
        if alone:
            self._tasks.clear()
        self._tasks.update(dict.fromkeys(tasks, NOBODY))

    def end(self, *tasks: str) -> None:
        for _ in map(self._tasks.pop, tasks, repeat(NOBODY)):  # there may be many
            pass
        self.look()

    def clear(self) -> None:
        self._tasks.clear()

    def enter(self, task: str, node: Standing) -> None:
        self._tasks[task] = self._tasks.get(task, NOBODY) | {node}

    def leave(self, task: str, node: Standing) -> None:
        if task in self._tasks:
            self._tasks[task] -= {node}

    async def stand(self, node: Standing) -> None:
        """Stands still before a call is begun, until the scope is closed."""
        node.parked = True
        self.look()
        await asyncio.Event().wait()

    def look(self) -> None:
        if self.asked and self._tasks and all(nodes and all(n.parked and not n.calls for n in nodes) for nodes in self._tasks.values()):
            self.on_reached()


COMPANY_SECONDS = 2.0
"""For so long a suspect waits for the others to come to a rest; some rest late, and it is driven beside them."""
ALONE_SECONDS = 5.0
"""For so long it is driven alone; what has not ended its process by then goes on beside others."""


class Quarantine:
    """Which runs of this process are driven, and which of them alone."""

    def __init__(self) -> None:
        self._here: set[str] = set()
        self._suspects: list[str] = []
        self._moved = asyncio.Event()
        self._over: asyncio.TimerHandle | None = None

    async def enter(self, run_id: str, *, suspect: bool, waits: bool = True) -> None:
        """Returns when the run may be driven. ``waits``: whether it lets suspects go first; what is born here does not."""
        if not suspect:
            if waits and self._suspects:
                await self._until(lambda: not self._suspects, COMPANY_SECONDS + ALONE_SECONDS)
            self._here.add(run_id)
            return
        self._suspects.append(run_id)
        await self._until(lambda: self._suspects[0] == run_id, None)
        await self._until(lambda: not self._here, COMPANY_SECONDS)
        self._over = asyncio.get_running_loop().call_later(ALONE_SECONDS, self.clear, run_id)

    def clear(self, run_id: str) -> None:
        """The run has got on, or has lived long enough: it is driven beside others from now on."""
        if run_id in self._suspects:
            self._suspects.remove(run_id)
            self._here.add(run_id)
            self._tell()

    def leave(self, run_id: str) -> None:
        """The run is not driven here any more."""
        if run_id in self._suspects or run_id in self._here:
            if self._suspects[:1] == [run_id] and self._over is not None:
                self._over.cancel()
            self._suspects = [r for r in self._suspects if r != run_id]
            self._here.discard(run_id)
            self._tell()

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def _until(self, ready: Callable[[], bool], seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not ready():
                    await self._moved.wait()


# -- the runs that are driven no more ----------------------------------------------------------------


GIVE_BACK_SECONDS, MOST_GIVE_BACK_SECONDS = 1.0, 5.0  # after an error of the store, and after each try that failed


class Leftovers:
    """Has the runs seen to that an error of the store left with this process while nobody in it drives them (§2.9). A worker of the process takes them up
    again; where none is at work, each is given back as soon as the store answers, for its lease is renewed and nobody else could go on with it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._workers: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._more = False

    @contextmanager
    def attend(self, look: Callable[[], None]) -> Iterator[None]:
        """While a worker is at work it is told to ``look`` for such runs."""
        self._workers.append(look)
        try:
            yield
        finally:
            self._workers.remove(look)

    def see_to(self, give_back: Callable[[], Awaitable[None]]) -> None:
        """There may be such runs, now or in a moment; ``give_back`` does so with all there are."""
        self._more = True
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._go_on(give_back))
            self._task.add_done_callback(note_error)

    async def _go_on(self, give_back: Callable[[], Awaitable[None]]) -> None:
        pause = GIVE_BACK_SECONDS
        while self._more:
            await self._clock.sleep(pause)
            self._more = False
            if self._workers:
                for look in self._workers:
                    look()
                continue
            try:
                await give_back()
            except (StoreClosed, ProcessForked):
                return
            except HoldfastError:  # it is asked again; whatever else is done with the store meets the error too
                self._more, pause = True, min(2 * pause, MOST_GIVE_BACK_SECONDS)

    async def close(self) -> None:
        """Leaves what is left to whoever ends this process's leases."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])


# -- the lease -------------------------------------------------------------------------------------


AGAIN_SECONDS = 1.0  # a renewal that failed is tried again so soon


class Heartbeat:
    """Renews until stopped. ``failed`` holds the error that ended it, so that nothing goes on half-dead (X-14)."""

    def __init__(self, store: Store, clock: Clock, owner: str, ttl_us: int) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._usual_us = ttl_us
        self._times: dict[str, int] = {}
        self._stop = threading.Event()
        self._turn = threading.Condition()
        self._hurried = False
        self._beats = 0
        self._safe_until = self._since(clock.monotonic())
        self._thread: threading.Thread | None = None
        self._held_by: str | None = None
        self._beginning: asyncio.Task[None] | None = None
        self.begun = False
        self.failed: BaseException | None = None

    async def begin(self) -> None:
        """Registers the owner, once for all who ask, and renews from then on. Whoever is cancelled meanwhile leaves it under way.

        Raises:
            StoreError: it may be registered all the same.
        """
        if self._beginning is None:
            self._beginning = asyncio.ensure_future(self._begin())
            self._beginning.add_done_callback(note_error)
        await asyncio.shield(self._beginning)

    async def _begin(self) -> None:
        await self._store.register(self._owner, self._usual_us)
        self.begun = True
        self.start()

    async def settle(self) -> bool:
        """Waits for a registration that is under way. Whether the owner is registered."""
        if self._beginning is not None:
            await asyncio.wait({self._beginning})
        return self.begun

    @property
    def ttl(self) -> float:
        """Seconds for which a lease lasts from its last renewal on."""
        return self._ttl_us / 1_000_000

    def lapse(self, why: str | None) -> None:
        """Lets the leases run out, for what holds the loop cannot be ended and others are to go on; None ends that."""
        self._held_by = why

    def start(self) -> None:
        self._safe_until = self._since(self._clock.monotonic())
        self._thread = threading.Thread(target=self._work, name="holdfast-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        with self._turn:
            self._turn.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def safe(self) -> bool:
        """Whether something new may begin under the lease."""
        return self._clock.monotonic() < self._safe_until

    def confirm(self) -> bool:
        """Whether something new may begin, asked by a thread: has the lease renewed out of turn before it says no."""
        if self.safe() or self._thread is None:
            return self.safe()
        with self._turn:
            before, self._hurried = self._beats, True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._beats > before or self._stop.is_set(), self._usual_us / 3_000_000)
        return self.safe()

    def lengthen(self, run_id: str, times: int) -> bool:
        """Makes the lease so many times as long from the next renewal on, while that run is driven; 1 ends that. Whether anything changed.

        A run whose code keeps the interpreter for longer than a lease would go from one late owner to the next for ever (§10.6).
        """
        if times == 1 and run_id not in self._times:
            return False
        before = self._ttl_us
        self._times = {r: t for r, t in self._times.items() if r != run_id} | ({run_id: times} if times > 1 else {})
        return self._ttl_us != before

    @property
    def _ttl_us(self) -> int:
        return self._usual_us * max(self._times.values(), default=1)

    @property
    def _pause(self) -> float:
        """Seconds to the next renewal: a third of the lease, and at most one after a renewal that failed."""
        third: float = self._usual_us / 3_000_000
        return third if self.failed is None else min(third, AGAIN_SECONDS)

    def _since(self, confirmed: float) -> float:
        """Until when something may begin after a renewal that was confirmed then (§10.3)."""
        return confirmed + self._usual_us * SAFE_PART / 1_000_000

    async def beat(self) -> bool:
        """One renewal; False once the owner is no longer known, so that renewing is pointless."""
        asked, ttl_us = self._clock.monotonic(), self._ttl_us
        try:
            known = await self._store.renew(self._owner, ttl_us)
        except StoreClosed as e:  # nobody will renew anything there
            self.failed = e
            return False
        except Exception as e:  # a renewal that fails is tried again; `safe` runs out by itself if none succeeds
            self.failed = e
            return True
        if not known:
            self.failed = LeaseLost(f"{self._owner} is no longer known as a worker", hint="other workers take its runs over; open the store again")
            return False
        self.failed = None
        self._safe_until = asked + ttl_us * SAFE_PART / 1_000_000
        return True

    def _work(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            while True:
                with self._turn:
                    self._turn.wait_for(lambda: self._hurried or self._stop.is_set(), self._pause)
                    self._hurried = False
                if self._stop.is_set() or (self._held_by is None and not loop.run_until_complete(self.beat())):
                    return
                with self._turn:
                    self._beats += 1
                    self._turn.notify_all()
        except ControlFlow:
            pass  # the store of a simulated process that has been killed: its threads are gone with it
        finally:
            loop.close()


# -- what is handed down ---------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Services:
    """Store, clock, owner and registries of one runtime; ``grace``: seconds for which a cancel lets an effect in flight come to
    its end (§10.12).

    ``alive()`` is False once the lease may have been lost (§10.3), ``renew`` confirms it now, out of turn, ``confirm`` has that done
    for a thread, and ``failed()`` is the error of a renewal that does not succeed. ``lengthen`` makes leases so many times as long
    while a run is driven whose earlier owners were late; 1 ends that. ``claiming`` is held from a claim's question until they are among those
    that are ``driving``;
    ``stalled``: those whose driving broke off though their lease may be held here, with the time (``clock.monotonic``) from
    which they may be taken up again. ``undos``: what takes an effect back, by the effect's place, as this process was told. ``limits`` are those declared here,
    ``max_queued`` how many runs of a tenant may wait in a queue; ``leaving``: calls that have ended and whose limits are to be given back; ``turns``: which calls of a run hold a limit here
    or wait for it; ``unbounded``: limits that calls named and nobody declares, as was said once;
    ``sends``: the types of intents that are sent from here for everybody. ``stepping`` and ``crowd``: the store, where it takes plain steps sealed, and where it writes those of many together.
    """

    store: Store
    clock: Clock
    owner: str
    skills: Skills
    environment: str = "development"
    place: Environment = DEVELOPMENT
    tools: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    resolver: Resolver | None = None
    policy: Policy | None = None
    tool_runner: Any = None
    workspace: str | None = None
    acting: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    parallel: int = 64
    max_takeovers: int = 10
    alive: Callable[[], bool] = lambda: True
    claiming: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    stalled: dict[str, float] = dataclasses.field(default_factory=dict)
    renew: Callable[[], Awaitable[bool]] | None = None
    confirm: Callable[[], bool] = lambda: True
    lengthen: Callable[[str, int], bool] = lambda run_id, times: False
    failed: Callable[[], BaseException | None] = lambda: None
    entropy: Callable[[], int] = lambda: int.from_bytes(os.urandom(16))
    grace: float = 10.0
    recording: Recording | None = None
    sendings: Sendings | None = None
    pool: Pool = dataclasses.field(default_factory=Pool)
    undos: dict[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, Limit] = dataclasses.field(default_factory=dict)
    max_queued: int | None = None
    leaving: set[str] = dataclasses.field(default_factory=set)
    turns: Turns = dataclasses.field(default_factory=Turns)
    unbounded: set[str] = dataclasses.field(default_factory=set)
    sends: tuple[str, ...] = ()
    quarantine: Quarantine = dataclasses.field(default_factory=Quarantine)
    streams: Streams = dataclasses.field(init=False)
    drivers: Drivers = dataclasses.field(init=False)
    leftovers: Leftovers = dataclasses.field(init=False)
    threads: Threads = dataclasses.field(init=False)
    stepping: Steps | None = dataclasses.field(init=False)
    crowd: Gathering | None = dataclasses.field(init=False)
    _bounds: tuple[float, Rules] | None = dataclasses.field(init=False)
    _offers: tuple[float, list[Offer]] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.streams = Streams(self.store, self.clock)
        self.drivers = Drivers(self.store, self.clock, lambda: self.owner)
        self.leftovers = Leftovers(self.clock)
        self.threads = Threads(self.store)
        self.stepping = self.store if offers_steps(self.store) else None
        self.crowd = self.store if offers_gathering(self.store) else None
        self._bounds: tuple[float, Rules] | None = None
        self._offers: tuple[float, list[Offer]] = 0.0, []

    async def bounds(self, *, fresh: bool = False) -> Rules:
        """The limits in force, as they were at most a second ago unless ``fresh`` ones are asked for; a claim goes by what they are then."""
        now = self.clock.monotonic()
        if fresh or self._bounds is None or now - self._bounds[0] >= BOUNDS_SECONDS:
            self._bounds = (now, in_force(self.limits, await self.store.rules()))
        return self._bounds[1]

    def rebound(self) -> None:
        """A limit was changed here: what was in force a moment ago is not asked of any more."""
        self._bounds = None

    async def offers(self, at: int, *, fresh: bool = False) -> list[Offer]:
        """What the processes offer that are up at a time of the store; that some are, as they were at most a second ago unless ``fresh`` ones are asked for."""
        now = self.clock.monotonic()
        if fresh or not self._offers[1] or now - self._offers[0] >= BOUNDS_SECONDS:
            self._offers = (now, await living(self.store, at))
        return self._offers[1]

    @property
    def folder(self) -> str | None:
        """The id of the workspace here; None where no tool has worked yet, or there is none."""
        return workspaces.read_id(self.workspace)

    @property
    def shapes(self) -> tuple[str, ...]:
        """What runs that can be gone on with here look like to a store: those that are bound to no folder, and those bound to this one."""
        return self._here(self.skills.shapes)

    def list_shapes(self, *, upgrade: bool) -> tuple[str, ...]:
        """What a worker claims: those, or with ``upgrade`` what is of any shape, in the same folders."""
        return self._here((ANY,) if upgrade else self.skills.shapes)

    def _here(self, shapes: tuple[str, ...]) -> tuple[str, ...]:
        folder = self.folder
        return shapes if folder is None else (*shapes, *(shape_in(f, folder) for f in shapes))

    def here(self, run: Run) -> None:
        """Refuses a run whose tools have worked in another folder.

        Raises:
            WorkspaceElsewhere: naming that workspace.
        """
        if run.workspace is not None and run.workspace != self.folder:
            raise WorkspaceElsewhere(
                f"the tools of {run.run_id} have worked in the workspace {run.workspace}, which is not here", hint="resume it where that folder is: Runtime(workspace=…)"
            )

    def go_by(self, heartbeat: Heartbeat) -> None:
        """Has it say from now on whether something may begin under this process's lease."""
        self.alive, self.renew, self.confirm, self.lengthen = heartbeat.safe, heartbeat.beat, heartbeat.confirm, heartbeat.lengthen
        self.failed = lambda: heartbeat.failed

    def begin_anew(self, owner: str) -> None:
        """The runtime was closed and is entered again, as another owner."""
        self.owner = owner
        self.pool = Pool()
        self.acting.clear()
        self.claiming = asyncio.Lock()
        self.stalled.clear()
        self.leaving.clear()
        self.sends = ()
        self.quarantine = Quarantine()
        self.leftovers = Leftovers(self.clock)
        self.drivers = Drivers(self.store, self.clock, lambda: self.owner)

    @property
    def driving(self) -> Taken:
        """The runs that some task of this process has claimed and drives."""
        return self.drivers.taken

    async def holds(self) -> bool:
        """Whether something new may begin under the lease; asks the store once before it says no.

        A machine that slept, or a loop that was busy for long, has missed renewals that it may still make up for.
        """
        if self.alive():
            return True
        return self.renew is not None and await self.renew() and self.alive()


def may_be_held_still(error: BaseException) -> bool:
    """Whether a run may still be held here after its driver ended with this error."""
    return isinstance(error, StoreError | Conflict)
