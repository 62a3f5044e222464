"""Virtual time: it moves only when told, or when nothing else can happen.

Theory of operation. ``VirtualLoop`` is an event loop whose clock is a ``VirtualClock``. When nothing is ready to run it
jumps to the next timer instead of waiting for it, so an hour of retries takes microseconds. With a seed it also draws
which ready callback runs next, so that one seed always gives the same interleaving. Every callback belongs to the
``Process`` in whose context it was made. The callbacks of a frozen process are parked, and the tasks of a killed process
are cancelled; this simulates SIGSTOP and SIGKILL without a real process.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
EPOCH_US = 1_767_225_600_000_000  # 2026-01-01, so that times in transcripts look like times

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("holdfast_testing_process", default=None)


class Livelock(Exception):
    """The loop took the greatest number of turns that is allowed, and the work has not ended."""


class VirtualClock:
    """A clock for ``Runtime(clock=…)``. ``skew_us`` moves only the wall clock, as a person or NTP does (X-13)."""

    def __init__(self, start_us: int = EPOCH_US) -> None:
        self.start_us = start_us
        self.elapsed = 0.0
        self.skew_us = 0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = itertools.count()

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        return self.start_us + int(self.elapsed * 1_000_000) + self.skew_us

    def monotonic(self) -> float:
        """A number of seconds; a jump of the wall clock does not change it."""
        return self.elapsed

    async def sleep(self, seconds: float) -> None:
        """Returns when the clock has advanced by ``seconds``: by itself in a ``VirtualLoop``, by ``advance`` in any other loop."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop) and loop.clock is self:
            await asyncio.sleep(seconds)
        elif seconds > 0:
            woken: asyncio.Future[None] = loop.create_future()
            heapq.heappush(self._sleepers, (self.elapsed + seconds, next(self._count), woken))
            await woken
        else:
            await asyncio.sleep(0)

    def advance(self, seconds: float) -> None:
        """Advances the clock and wakes the sleepers whose time has come."""
        assert seconds >= 0, "time does not go back; jump() sets the wall clock"
        self.elapsed += seconds
        while self._sleepers and self._sleepers[0][0] <= self.elapsed:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():
                woken.set_result(None)

    def jump(self, seconds: float) -> None:
        """Moves the wall clock forward or back by ``seconds``; ``monotonic`` is not changed."""
        self.skew_us += int(seconds * 1_000_000)


class Process:
    """A simulated process that a test can kill or freeze: all callbacks and tasks that were started by ``start``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.parked: list[asyncio.Handle] = []

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task of this process; the tasks that it starts belong to the process too."""
        return contextvars.copy_context().run(self._start, work)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        _process.set(self)
        return asyncio.get_running_loop().create_task(work)

    def freeze(self) -> None:
        """Stops the process where it is, between any two callbacks, as SIGSTOP does."""
        self.frozen = True

    def thaw(self) -> None:
        """Lets the frozen process run again."""
        self.frozen = False
        if self.parked:
            _virtual().resume(self.parked)
            self.parked = []

    def kill(self) -> None:
        """Ends all its tasks where they are. Cut the process off from its store first (``CrashingStore.cut``), so that its tasks can write
        nothing while they end."""
        self.dead = True
        self.thaw()
        for task in list(self.tasks):
            task.cancel()

    async def wait_until_gone(self) -> None:
        """Returns when the last of its tasks has ended; a task that catches its cancellation is cancelled again."""
        assert self.dead, "gone() is only for a process that was killed: call kill() first"
        while left := [t for t in self.tasks if not t.done() and t is not asyncio.current_task()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1.0)


def current_process() -> Process | None:
    """The process whose code runs now; None for the test itself."""
    return _process.get()


def _virtual() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "processes live in a VirtualLoop: use run_virtual"
    return loop


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop over virtual time. With ``rng`` the next callback is chosen at random. Blocking calls run in place."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _selector: Any

    def __init__(self, clock: VirtualClock | None = None, rng: random.Random | None = None, *, most_turns: int = 0) -> None:
        self.clock = clock or VirtualClock()
        self._most_turns = most_turns
        self._rng = rng
        self.turns = 0
        self.idle_jumps = 0
        super().__init__()
        self.set_task_factory(_make_owned)

    def time(self) -> float:
        """The virtual time of the loop, in seconds."""
        return self.clock.elapsed

    def resume(self, handles: list[asyncio.Handle]) -> None:
        """Puts the callbacks of a frozen process back into the loop."""
        self._ready.extend(handles)

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], R], *args: *Ts) -> asyncio.Future[R]:
        """Runs ``func`` at once: a blocking step needs no thread in a test, and the order stays the same each time."""
        future: asyncio.Future[R] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as e:
            future.set_exception(e)
        return future

    def _run_once(self) -> None:
        """Runs one turn: makes due timers ready and runs one ready callback; if there is none, time jumps to the next timer."""
        ready, timers = self._ready, self._scheduled
        now = self.clock.elapsed
        while timers and (timers[0].cancelled() or timers[0].when() <= now):
            timer = heapq.heappop(timers)
            if not timer.cancelled():
                ready.append(timer)
        if not ready:
            self._process_events(self._selector.select(0))  # type: ignore[attr-defined]
        if not ready:
            if timers:
                self.idle_jumps += 1
                self.clock.advance(max(0.0, timers[0].when() - now))
            else:
                # Only another thread or a socket can make a callback ready now.
                self._process_events(self._selector.select(1.0))  # type: ignore[attr-defined]
            return
        if self._rng is not None and len(ready) > 1:
            place = int(self._rng.random() * len(ready))
            ready[0], ready[place] = ready[place], ready[0]
        handle = ready.popleft()
        if handle.cancelled():
            return
        process: Process | None = handle._context.get(_process)  # type: ignore[attr-defined]
        if process is not None and process.frozen:
            process.parked.append(handle)
            return
        self.turns += 1
        if self.turns == self._most_turns:
            ready.appendleft(handle)  # the runner ends all tasks afterwards, and needs this callback for that
            raise Livelock(f"{self.turns} turns, and only {self.clock.elapsed:.3f} s have passed")
        handle._run()


def _make_owned(loop: asyncio.AbstractEventLoop, coro: Any, *, context: contextvars.Context | None = None, **more: Any) -> asyncio.Task[Any]:
    """Makes a task and registers it with the process that starts it."""
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context, **more)
    process = _process.get()
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(lambda t: process.tasks.pop(t, None))
        if process.dead:
            task.cancel()
    return task


def run_virtual(work: Coroutine[Any, Any, T], *, seed: int | None = None, clock: VirtualClock | None = None, most_turns: int = 0) -> T:
    """Runs a coroutine to its end in virtual time; with ``seed`` the callbacks run in a random order made from it.

    Raises:
        Livelock: the loop took ``most_turns`` turns and the coroutine has not ended.
    """
    rng = None if seed is None else random.Random(seed)
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock, rng, most_turns=most_turns)) as runner:
        return runner.run(work)


__all__ = ["EPOCH_US", "Livelock", "Process", "VirtualClock", "VirtualLoop", "current_process", "run_virtual"]
