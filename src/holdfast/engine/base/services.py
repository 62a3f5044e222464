"""What an engine works with, as one value that is passed down instead of globals: the store, the registries, the runs that this process drives, and
the lease under which it drives them.

The module is long because these parts need each other: a process that drives runs renews its lease and checks it before anything new begins; and
from here each driver learns that its run has news, where it may stop, and whether the run is driven alone.

*News* (§10.12, §10.16). Other processes put commands into a live run's inbox; the run's owner must see them within milliseconds, also in the
middle of a step. One task polls for all driven runs together, whenever the store may have changed and at least twice a second. It does not
look at every run: the store names the runs with news, and a heap gives the runs whose deadline has passed.

*Safe points* (§10.13). Between super-steps a run can be left without interrupting anything. Inside a super-step, a node is at a safe
point when it is about to begin its next ctx call and no call is in flight: what it has done so far is on record. A plain node, and a call,
are allowed to finish first.

*Quarantine* (§10.6). A run is a suspect if its owner has died and an earlier owner died too, with no progress in between: the run may
end this process too, and with it all runs driven beside it. The death would be counted against those runs as well and could end them. So a
suspect waits, for a limited time, until the other runs here have come to rest. Then it is driven alone until it makes progress, or for a limited
time; runs that arrive meanwhile wait. Suspects are driven one after another. A run that waits here has not begun, so a death does not count against it.

*The lease* (§10.3, §10.4). It is renewed in a separate thread, so that a busy event loop does not delay it. One row per worker holds the expiry, so
one update renews all its runs. A worker judges its lease by a clock that continues while the machine sleeps, and begins nothing later than 60 % of
the TTL after its last confirmed renewal."""

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
    """A clock that takes the time from the store for all that is stored or compared with stored times (§1.9), and spans from the worker's own clock."""

    def __init__(self, store: Store, spans: Clock) -> None:
        self.now = store.now
        self.monotonic = spans.monotonic
        self.sleep = spans.sleep


class Skills:
    """The programs this process can run, by id and version."""

    def __init__(self) -> None:
        self._by_id: dict[str, dict[str, Program]] = {}
        self._ref: str | None = None
        self._shapes: tuple[str, ...] | None = None  # cached: a worker needs them at each poll

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
        """A fingerprint of what is registered here: it changes when a program, a version or a shape does."""
        if self._ref is None:
            self._ref = canon.fingerprint([[p.id, p.version, p.fingerprint] for p in self])
        return self._ref

    @property
    def shapes(self) -> tuple[str, ...]:
        """The fingerprints of the runs that this process can continue, migrations included (§10.11)."""
        if self._shapes is None:
            self._shapes = tuple(dict.fromkeys(f for p in self for f in (p.fingerprint, *p.migrates)))
        return self._shapes

    def find(self, skill_id: str, version: str | None = None) -> Program:
        """Returns the program with this id, in the version asked for if it is registered, else in the version registered last.

        Raises:
            SkillUnknown: this process does not have it; the error says which skills it has.
        """
        versions = self._by_id.get(skill_id)
        if not versions:
            known = ", ".join(self._by_id) or "none"
            raise SkillUnknown(f"the skill {skill_id!r} is not registered here", hint=f"known: {known}; pass its TARGET (module:name) or Runtime(skills=[…])")
        if version is not None and version in versions:
            return versions[version]
        return next(reversed(versions.values()))

    def for_run(self, run: Run, *, upgrade: bool = False) -> Program:
        """Returns the program that may continue a run (§3.2).

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
    """A call through ``ctx``: its place in its run, its kind, its name and its arguments. ``digest`` identifies the arguments."""

    run_id: str
    step: int
    task: str
    path: str
    kind: str
    name: str
    digest: str
    args: tuple[Any, ...]


class Sendings(Protocol):
    """Sends the intents of the runs that are driven here (§4.18)."""

    def post(self, run_id: str) -> None:
        """Notes that a run that is driven here may have intents to send, from a new commit or from an earlier one."""

    async def deliver(self, run_id: str) -> None:
        """Sends what a run at rest has to send, as far as that is possible now."""

    def leave(self, run_id: str) -> None:
        """Notes that the run is no longer driven here."""


class Recording(Protocol):
    """Answers the calls of a run from records instead of executing them (``holdfast.testing.replay``)."""

    def answer(self, call: Asked) -> StepRecord | None:
        """Returns the record for the call. None if the call may be executed, because it opens a scope or a wait."""

    def find_end(self, run_id: str, step: int) -> Ended | None:
        """Returns how the barrier with this number ended; None if it was a plain one."""


# -- the runs that are driven here -----------------------------------------------------------------


LOOK_SECONDS = 0.5
REST_SECONDS = 0.002
FIRST_SECONDS = 0.005  # a run of one short step on a database server has ended by then
ASK_AGAIN_SECONDS = 0.1
STALE = 64


class Written(Protocol):
    """The journal of a run that is driven. ``quiet`` is set while no effect of the run is in flight."""

    @property
    def quiet(self) -> asyncio.Event: ...

    def stop(self, error: HoldfastError) -> None:
        """Makes sure that nothing is written from now on."""


class Driven(Protocol):
    """The interface that all drivers share."""

    @property
    def journal(self) -> Written: ...

    def nudge(self) -> None:
        """Tells the driver that the run's inbox may have something."""

    def drain(self) -> None:
        """Makes the driver stop at the next safe boundary."""

    def broke(self, error: BaseException) -> None:
        """Stops the driver with this error, because nothing watches the run's inbox any more."""


class Taken:
    """The runs that tasks of this process have taken, or are about to take, and drive. Once it is ``closed``, no more are taken."""

    def __init__(self) -> None:
        self._runs: set[str] = set()
        self._coming: set[str] = set()
        self._none_comes = asyncio.Event()
        self.closed: HoldfastError | None = None

    def __contains__(self, run_id: str) -> bool:
        return run_id in self._runs

    def take(self, run_id: str) -> None:
        """Registers a run that is about to be taken.

        Raises:
            StoreClosed: no more runs are taken.
        """
        if self.closed is not None:
            raise StoreClosed("this runtime was closed")
        self.add(run_id)

    def add(self, run_id: str) -> None:
        self._runs.add(run_id)
        self._coming.add(run_id)

    def attend(self, run_id: str) -> None:
        """Notes that the run has a driver that is registered with ``Drivers``."""
        self._coming.discard(run_id)
        if self.closed is not None and not self._coming:
            self._none_comes.set()

    def discard(self, run_id: str) -> None:
        self._runs.discard(run_id)
        self.attend(run_id)

    async def close(self, error: HoldfastError) -> None:
        """Takes no more runs, and waits until each run that was taken has a driver or was given up."""
        self.closed = error
        while self._coming:
            self._none_comes.clear()
            await self._none_comes.wait()


class Drivers:
    """Watches the inboxes of the runs that this owner drives, as long as it drives any. ``left``: the runs that it has handed back; ``taken``: the runs
    that are driven or will be in a moment."""

    def __init__(self, store: Store, clock: Clock, owner: Callable[[], str]) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._drivers: dict[str, Driven] = {}
        self._expected: dict[str, int] = {}
        self._deadlines: list[tuple[int, str]] = []  # a heap of the expected deadlines; it also holds some that are no longer expected
        self._task: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None
        self._closed = asyncio.Event()
        self.draining = False
        self.left: list[str] = []
        self.taken = Taken()

    @contextmanager
    def on(self, run_id: str, driver: Driven, due: int | None) -> Iterator[None]:
        """Watches a run while it is driven. ``due``: its next deadline."""
        self._drivers[run_id] = driver
        self.taken.attend(run_id)
        self.expect(run_id, due)
        if self.draining:
            driver.drain()
        if self.taken.closed is not None:
            driver.broke(make_own(self.taken.closed))
        if self._soon is None and (self._task is None or self._task.done()):
            # Runs that end before this time cost neither a task nor a poll.
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
        """Begins to watch the inboxes."""
        self._soon = None
        self._task = asyncio.ensure_future(self._watch())
        self._task.add_done_callback(self._end)

    def expect(self, run_id: str, due: int | None) -> None:
        """Sets the next deadline of a run that is driven here; None if it has none."""
        if self._expected.get(run_id) == due:
            return
        if due is None:
            del self._expected[run_id]
            return
        self._expected[run_id] = due
        heapq.heappush(self._deadlines, (due, run_id))
        if len(self._deadlines) > 2 * len(self._expected) + STALE:  # too many entries are out of date
            self._deadlines = [(at, run) for run, at in self._expected.items()]
            heapq.heapify(self._deadlines)

    def _fall_due(self, now: int) -> None:
        """Wakes the drivers whose deadline has passed."""
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
        """Hands back every run that is or will be driven here, each at its next safe boundary (§10.13)."""
        self.draining = True
        for driver in list(self._drivers.values()):
            driver.drain()

    def drain_one(self, run_id: str) -> bool:
        """Hands the run back at its next safe boundary, if it is driven here. Returns whether it is."""
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.drain()
        return driver is not None

    async def close(self, error: HoldfastError) -> None:
        """Stops with this error every run that is driven here or is about to be. Effects in flight may finish first, within their grace period."""
        self._closed = asyncio.Event()
        for driver in list(self._drivers.values()):
            driver.broke(make_own(error))
        await self.taken.close(error)
        if self._drivers:
            await self._closed.wait()

    def abandon(self) -> None:
        """Stops the journals of the runs that are still driven here and have no effect in flight: what their nodes return or raise from now on is no
        outcome (X-18)."""
        if (error := self.taken.closed) is not None:
            for driver in self._drivers.values():
                if driver.journal.quiet.is_set():
                    driver.journal.stop(make_own(error))

    def nudge(self, run_id: str) -> None:
        """Tells the driver of this run that something was put into the run's inbox in this process."""
        driver = self._drivers.get(run_id)
        if driver is not None:
            driver.nudge()

    def _end(self, task: asyncio.Task[None]) -> None:
        """Stops all drivers if the watch has failed for good, because they would never hear of a cancel again (X-14)."""
        if not task.cancelled() and (error := task.exception()) is not None:
            for driver in list(self._drivers.values()):
                driver.broke(make_own(error))

    async def _watch(self) -> None:
        """Polls for news. After a passing error of the store it tries again; the drivers get the error with their next commit."""
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
            await asyncio.sleep(REST_SECONDS)  # so that changes at the same time cost one poll


class Standing(Protocol):
    """The part of an attempt that ``SafePoints`` reads: the number of its calls in flight, and whether it is parked at a boundary."""

    calls: int
    parked: bool


NOBODY: frozenset[Standing] = frozenset()


class SafePoints:
    """Watches the tasks of a super-step once this was ``asked`` for. Calls ``on_reached`` when all tasks under way are at a boundary."""

    def __init__(self, reached: Callable[[], None]) -> None:
        self.asked = False
        self.on_reached = reached
        self._tasks: dict[str, frozenset[Standing]] = {}

    def ask(self) -> None:
        self.asked = True
        self.look()

    def begin(self, *tasks: str, alone: bool = False) -> None:
        """Enters tasks; each counts as under way until its result is durable. ``alone``: they are all the tasks of their super-step."""
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
        """Parks a node before it begins a call, until the scope is closed."""
        node.parked = True
        self.look()
        await asyncio.Event().wait()

    def look(self) -> None:
        if self.asked and self._tasks and all(nodes and all(n.parked and not n.calls for n in nodes) for nodes in self._tasks.values()):
            self.on_reached()


COMPANY_SECONDS = 2.0
"""How long a suspect waits for the other runs to come to rest. After that it is driven beside those that have not."""
ALONE_SECONDS = 5.0
"""How long a suspect is driven alone. If it has not ended its process by then, it continues beside other runs."""


class Quarantine:
    """Which runs are driven in this process, and which of them alone."""

    def __init__(self) -> None:
        self._here: set[str] = set()
        self._suspects: list[str] = []
        self._moved = asyncio.Event()
        self._over: asyncio.TimerHandle | None = None

    async def enter(self, run_id: str, *, suspect: bool, waits: bool = True) -> None:
        """Returns when the run may be driven. ``waits``: whether the run waits for suspects; a run that is born here does not."""
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
        """Ends the suspicion: the run has made progress, or has run long enough. It is driven beside others from now on."""
        if run_id in self._suspects:
            self._suspects.remove(run_id)
            self._here.add(run_id)
            self._tell()

    def leave(self, run_id: str) -> None:
        """Notes that the run is no longer driven here."""
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


GIVE_BACK_SECONDS, MOST_GIVE_BACK_SECONDS = 1.0, 5.0  # the pause after an error of the store, and the longest one after tries that failed


class Leftovers:
    """Takes care of the runs that an error of the store left with this process without a driver (§2.9). If a worker of this process is at work, it takes
    them up again. Otherwise each is given back as soon as the store answers, because its lease is still renewed and no other process could continue it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._workers: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._more = False

    @contextmanager
    def attend(self, look: Callable[[], None]) -> Iterator[None]:
        """Registers ``look``, which tells a worker to look for such runs, while that worker is at work."""
        self._workers.append(look)
        try:
            yield
        finally:
            self._workers.remove(look)

    def see_to(self, give_back: Callable[[], Awaitable[None]]) -> None:
        """Notes that there may be such runs, now or in a moment. ``give_back`` gives back all of them."""
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
            except HoldfastError:  # tried again later; all other uses of the store report the error too
                self._more, pause = True, min(2 * pause, MOST_GIVE_BACK_SECONDS)

    async def close(self) -> None:
        """Stops. The runs that remain are released when this process's leases are ended."""
        task, self._task = self._task, None
        if task is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])


# -- the lease -------------------------------------------------------------------------------------


AGAIN_SECONDS = 1.0  # the pause before a failed renewal is tried again


class Heartbeat:
    """Renews the lease until stopped. ``failed``: the error of the last renewal, or None, so that no run continues unnoticed without a lease (X-14)."""

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
        """Registers the owner, once for all callers, and renews its lease from then on. If a caller is cancelled, the registration continues.

        Raises:
            StoreError: the owner may be registered nevertheless.
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
        """Waits for a registration that is under way. Returns whether the owner is registered."""
        if self._beginning is not None:
            await asyncio.wait({self._beginning})
        return self.begun

    @property
    def ttl(self) -> float:
        """The duration of a lease in seconds, from its last renewal."""
        return self._ttl_us / 1_000_000

    def lapse(self, why: str | None) -> None:
        """Stops renewing, so that the leases expire and other processes can continue the runs: the event loop is held by something that cannot be ended.
        None resumes renewing."""
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
        """Whether something new may begin under the lease, as far as is known without asking the store."""
        return self._clock.monotonic() < self._safe_until

    def confirm(self) -> bool:
        """Whether something new may begin under the lease. For threads: before it returns False, it waits for a renewal out of turn."""
        if self.safe() or self._thread is None:
            return self.safe()
        with self._turn:
            before, self._hurried = self._beats, True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._beats > before or self._stop.is_set(), self._usual_us / 3_000_000)
        return self.safe()

    def lengthen(self, run_id: str, times: int) -> bool:
        """Makes the lease ``times`` as long from the next renewal on, while that run is driven; 1 ends this. Returns whether the length changed.

        Without this, a run whose code holds the interpreter for longer than a lease would go from one late owner to the next for ever (§10.6).
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
        """Seconds to the next renewal: a third of the lease, and at most ``AGAIN_SECONDS`` after a renewal that failed."""
        third: float = self._usual_us / 3_000_000
        return third if self.failed is None else min(third, AGAIN_SECONDS)

    def _since(self, confirmed: float) -> float:
        """Until when something new may begin after a renewal confirmed at this time (§10.3)."""
        return confirmed + self._usual_us * SAFE_PART / 1_000_000

    async def beat(self) -> bool:
        """Renews once. Returns False if renewing again is pointless, because the owner is no longer known or the store is closed."""
        asked, ttl_us = self._clock.monotonic(), self._ttl_us
        try:
            known = await self._store.renew(self._owner, ttl_us)
        except StoreClosed as e:  # nothing can be renewed there any more
            self.failed = e
            return False
        except Exception as e:  # tried again; if no renewal succeeds, `safe` becomes False by itself
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
            pass  # raised by the store of a simulated process that was killed: its threads end with it
        finally:
            loop.close()


# -- what is handed down ---------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Services:
    """Store, clock, owner and registries of one runtime.

    ``grace``: seconds for which a cancel lets an effect in flight finish (§10.12).
    ``alive()`` is False once the lease may have been lost (§10.3). ``renew`` renews it now, out of turn; ``confirm`` does so for a thread.
    ``failed()`` returns the error of a renewal that does not succeed. ``lengthen`` makes leases a number of times as long while a run is driven
    whose earlier owners were late; 1 ends that. ``claiming`` is held from the time when a claim asks the store until the claimed runs are in ``driving``.
    ``stalled``: the runs whose execution broke off although their lease may still be held here, each with the time (``clock.monotonic``) from
    which it may be taken up again. ``undos``: by place of an effect, the function that takes the effect back, as this process was told.
    ``limits``: the limits declared here. ``max_queued``: how many runs of a tenant may wait in a queue. ``leaving``: calls that have ended and
    whose limits have to be given back. ``turns``: which calls of a run hold a limit here or wait for it. ``unbounded``: limits that calls have named
    and that nobody declares, each of which was reported once. ``sends``: the types of intents that are sent from here for all processes.
    ``stepping``: the store, if it accepts plain steps already sealed. ``crowd``: the store, if it writes the steps of many runs together.
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
        """Returns the limits in force; they are at most a second old, or read now if ``fresh``. A claim is decided with those in force at that time."""
        now = self.clock.monotonic()
        if fresh or self._bounds is None or now - self._bounds[0] >= BOUNDS_SECONDS:
            self._bounds = (now, in_force(self.limits, await self.store.rules()))
        return self._bounds[1]

    def rebound(self) -> None:
        """Drops the cached limits, because a limit was changed here."""
        self._bounds = None

    async def offers(self, at: int, *, fresh: bool = False) -> list[Offer]:
        """Returns what the processes offer that are alive at a time of the store. A result that is not empty is cached for a second, unless ``fresh``."""
        now = self.clock.monotonic()
        if fresh or not self._offers[1] or now - self._offers[0] >= BOUNDS_SECONDS:
            self._offers = (now, await living(self.store, at))
        return self._offers[1]

    @property
    def folder(self) -> str | None:
        """The id of the workspace here. None if there is no workspace, or no tool has worked in it yet."""
        return workspaces.read_id(self.workspace)

    @property
    def shapes(self) -> tuple[str, ...]:
        """The shapes, as a store names them, of the runs that can be continued here: those bound to no folder, and those bound to this folder."""
        return self._here(self.skills.shapes)

    def list_shapes(self, *, upgrade: bool) -> tuple[str, ...]:
        """Returns the shapes of the runs that a worker claims: ``shapes``, or with ``upgrade`` any shape, for the same folders."""
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
        """Lets the heartbeat decide from now on whether something may begin under this process's lease."""
        self.alive, self.renew, self.confirm, self.lengthen = heartbeat.safe, heartbeat.beat, heartbeat.confirm, heartbeat.lengthen
        self.failed = lambda: heartbeat.failed

    def begin_anew(self, owner: str) -> None:
        """Resets what belongs to one opening of the runtime: it was closed and is entered again as another owner."""
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
        """The runs that tasks of this process have claimed, or are about to claim, and drive."""
        return self.drivers.taken

    async def holds(self) -> bool:
        """Whether something new may begin under the lease. Before it returns False, it renews the lease once.

        A machine that slept, or an event loop that was busy for long, has missed renewals; a renewal now may still succeed.
        """
        if self.alive():
            return True
        return self.renew is not None and await self.renew() and self.alive()


def may_be_held_still(error: BaseException) -> bool:
    """Whether this process may still hold a run after the run's driver ended with this error."""
    return isinstance(error, StoreError | Conflict)
