"""Stops code that holds the event loop: an async node that never yields to other tasks (§10.10).

Theory of operation. No timer fires while code holds the loop, so a thread checks four times a second whether the loop moves. If it has not
moved, the thread reads from the stack of the loop's thread whose code is running and whether its time is up. If so, it raises ``Overdue`` in that
code (a *strike*), and the step fails like one that timed out. An exception raised into another thread takes effect wherever that thread is next, so it
is raised only while the innermost frame is user code: checking the frame and raising are one C call, during which no other thread can run. If the
frame is left before the exception takes effect, its *gate*, the function of the engine that called the user code, deals with the exception (``settle``).
So a strike never takes effect in the engine, with one exception: since Python 3.13 it may do so in a function of the engine that user code calls, at
the start of that function, before any of it has run.

Code in C gets the exception when it returns to Python. If it does not return, the process stops renewing its leases, so that other processes
continue its runs; a worker exits, and says which step held the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import ctypes
import gc
import itertools
import logging
import operator
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any, NamedTuple, Protocol

from holdfast import logs
from holdfast.core.errors import StepTimeout
from holdfast.core.graph import DEFAULT_TIMEOUT_US

TICK_SECONDS = 0.25
"""The time between two checks; a loop that has not moved between two checks stands still."""
CLEANUP_SECONDS = 5.0
"""How long code may continue after the first strike, to clean up. After that it is struck repeatedly, and leases are no longer renewed."""
BRIEF_SECONDS = 0.001
"""The pause between these repeated strikes, which is short so that one of them takes effect outside any try that catches everything."""
CODE = 70  # the exit code of the worker's process (EX_SOFTWARE)

log = logs.logger("holdfast.worker")


class Overdue(BaseException):
    """Raised into code that holds the loop and whose time is up. ``timeout``: the error with which the step fails. Each strike creates a subclass, because
    only a class, not an instance, can be raised into another thread."""

    timeout: StepTimeout


class Placed(Protocol):
    """What user code belongs to: its time limit and its step."""

    @property
    def patience(self) -> Timed: ...

    @property
    def step_id(self) -> str: ...


class Timed(Protocol):
    """A time limit (``calls.functions.Patience``)."""

    limit_us: int

    def overdue(self, now: float, still: float) -> bool:
        """Whether the time is up at ``now``, for code that has held the loop for ``still`` seconds."""

    def over(self, what: str, more: str) -> StepTimeout: ...


class Whole:
    """The time limit of user code that has no clock of its own: a condition, a router, a reducer."""

    def __init__(self, limit_us: int = DEFAULT_TIMEOUT_US) -> None:
        self.limit_us = limit_us

    def overdue(self, now: float, still: float) -> bool:
        return 0 < self.limit_us <= still * 1_000_000

    def over(self, what: str, more: str) -> StepTimeout:
        return StepTimeout(f"{what} took longer than {self.limit_us / 1_000_000:g} s{more}", hint="it must return at once")


# -- whose code it is -------------------------------------------------------------------------------

# Functions of the engine from which user code is called, by module and name; an exception out of that call is a failure of the step.
# Those in ``SETTLING`` call ``settle``; in the others, one try of the engine contains the call and nothing else but pure code.
SETTLING = frozenset({
    "holdfast.engine.calls.functions:Begun.__init__", "holdfast.engine.calls.functions:Begun._step", "holdfast.engine.drive.fused:_Ride.call",
    "holdfast.engine.drive.beginner:Beginner.begin",
})
GATES = SETTLING | frozenset({
    "holdfast.engine.drive.executor:_attempt", "holdfast.engine.drive.executor:_finish", "holdfast.engine.drive.beginner:pack_looked_at", "holdfast.engine.drive.driver:Driver.begin",
    "holdfast.engine.drive.driver:Driver._barrier", "holdfast.engine.drive.driver:Driver._is_woken",
})
# Functions of the engine that only pass calls on: nothing is lost if what they call raises.
BETWEEN = frozenset({
    "holdfast.engine.calls.functions:Begun._keep", "holdfast.engine.calls.functions:First.__await__", "holdfast.engine.base.begun:Rest.__await__",
    "holdfast.engine.calls.functions:await_any", "holdfast.engine.calls.functions:_in_thread", "holdfast.engine.calls.scopes:_branches.<locals>.branch",
    "holdfast.engine.drive.executor:_route", "holdfast.engine.drive.executor:_interpret", "holdfast.engine.drive.executor:pack", "holdfast.engine.calls.effects:Performance._gate.<locals>.act",
})
PURE = ("holdfast.core.", "holdfast.authoring")  # pure functions over what nodes return; the returned objects may have code of their own
NODES = ("holdfast.demo", "holdfast.integrations")
DEBUGGERS = frozenset({"bdb", "pdb", "pydevd", "_pydevd_bundle", "debugpy"})
TURN = asyncio.Handle._run.__code__  # one turn of the loop


class Region(NamedTuple):
    """User code that is called from one place under one time limit. ``key`` distinguishes this call from earlier ones."""

    key: tuple[FrameType, float]
    what: str
    time: Timed


class Held(NamedTuple):
    """What holds the loop. ``frame``: the innermost frame; ``gate``: the function through which user code was called, None if that code has a task of its own;
    ``regions``: the regions that the frame is in, the innermost first; ``users``: the frame is user code, and it was called from user code up to its gate."""

    frame: FrameType
    gate: FrameType | None
    regions: tuple[Region, ...]
    placed: Placed | None
    users: bool


def holder(frame: FrameType, whose: Callable[[contextvars.Context], Placed | None]) -> Held | None:
    """Returns whose code runs in a thread whose innermost frame is this one. None if it belongs to no step, or a debugger is active."""
    users, gates, placed, turn = not _engines(frame), [], None, frame
    for f in _outward(frame):
        module = str(f.f_globals.get("__name__", ""))
        if module.partition(".")[0] in DEBUGGERS:
            return None
        if f.f_code is TURN:
            placed, turn = whose(f.f_locals["self"]._context), f
            break
        if _name(f) in GATES:
            gates.append(f)
        elif not gates and _engines(f):
            users = users and (module.startswith(PURE) or _name(f) in BETWEEN)
    if gates and (hand := gates[0].f_locals.get("hand")) is not None:
        placed = hand  # the code may run in another task's turn, for a task that waits
    regions = tuple(r for f in gates if (r := _region(f)).time.limit_us > 0)
    if not regions and placed is not None:
        regions = (Region((gates[0] if gates else turn, 0.0), frame.f_code.co_qualname, placed.patience),)
    gate = gates[0] if gates else None
    return Held(frame, gate, regions, placed, users and frame is not gate) if regions else None


def _name(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '')}:{frame.f_code.co_qualname}"


def _engines(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.startswith("holdfast.") and not module.startswith(NODES)


def _region(gate: FrameType) -> Region:
    there: dict[str, Any] = dict(gate.f_locals)
    called, node = there.get("hand", there.get("self")), there.get("node")
    time: Timed | None = getattr(called, "patience", None)
    if time is None:
        time = Whole() if node is None else Whole(node.timeout_us)
    what = getattr(called, "what", "") or ("a reducer" if node is None else node.name)
    return Region((gate, there.get("began", 0.0)), what, time)


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


# -- the strike -------------------------------------------------------------------------------------

struck: dict[int, type[Overdue]] = {}
"""By thread: the class of the last strike in code that was called from a gate in ``SETTLING`` and has not returned to that gate yet."""
_guard = threading.Lock()
_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_in.argtypes = (ctypes.c_ulong, ctypes.py_object)
_raise_in.restype = ctypes.c_int


class _Taken(BaseException):
    """Raised in place of a strike that is withdrawn."""


@contextlib.contextmanager
def pause_collection() -> Iterator[None]:
    """Disables garbage collection meanwhile. The interpreter lists the frames of all threads under a lock, and before Python 3.12 it may collect garbage while it holds
    that lock. A finalizer can then switch to a thread that is ending, which holds the interpreter and waits for that lock: a deadlock."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def strike(thread: int, held: Held, error: type[Overdue]) -> bool:
    """Raises ``error`` in that thread if it still runs the very frame that was looked at. Checking and raising are one C call: no thread runs in between."""
    there = map(operator.itemgetter(thread), itertools.starmap(sys._current_frames, itertools.repeat((), 1)))
    same = map(partial(operator.is_, held.frame), there)
    act = itertools.starmap(partial(_raise_in, thread, error), itertools.compress(itertools.repeat(()), same))
    settled = held.gate is not None and _name(held.gate) in SETTLING
    with _guard:
        before = struck.get(thread)
        if settled:
            struck[thread] = error
        try:
            with pause_collection():
                done = next(act, 0) == 1
        except KeyError:  # the thread has ended
            done = False
        if not done and settled:
            struck.pop(thread)
            if before is not None:
                struck[thread] = before
    return done


def settle() -> None:
    """Withdraws a strike that has not taken effect yet, and ends the step nevertheless, because its time was up. Called at a gate whose thread was struck.

    Raises:
        Overdue: the thread was struck.
    """
    thread = threading.get_ident()
    with _guard:
        try:
            # Withdrawing it with NULL would leave the interpreter's flag for it set for ever: each check would take the slow path, and under a
            # trace function no call would begin. So another exception replaces it and is caught here.
            _raise_in(thread, _Taken)
            while True:
                pass
        except _Taken:
            error = struck.pop(thread, None)
    if error is not None:
        raise error


# -- the watch --------------------------------------------------------------------------------------


class Renewing(Protocol):
    """What renews the leases of this process."""

    def lapse(self, why: str | None) -> None:
        """Stops renewing, for this reason; None resumes it."""

    @property
    def ttl(self) -> float: ...


class Watch:
    """Watches one event loop from a thread. ``ends``: whether this process is a worker's and can be ended as the last resort."""

    def __init__(
        self,
        renewing: Renewing,
        whose: Callable[[contextvars.Context], Placed | None],
        ends: Callable[[], bool],
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._renewing = renewing
        self._whose = whose
        self._ends = ends
        self._end = end
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._moved = False

    def start(self) -> None:
        """Watches the loop that runs here, if it runs in real time. A loop of virtual time chooses by its seed what runs next, and a mark would change its choices."""
        if self._thread is not None:
            return
        self._loop, self._watched = asyncio.get_running_loop(), threading.get_ident()
        if abs(self._loop.time() - time.monotonic()) > 1:
            return
        self._thread = threading.Thread(target=self._work, name="holdfast-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def _mark(self) -> None:
        self._moved = True

    def _work(self) -> None:
        while not self._stop.wait(TICK_SECONDS):
            frame = self._frame()
            if frame is None or self._loop.is_closed():
                return
            if frame.f_globals.get("__name__") == "selectors":
                continue  # the loop is idle
            del frame
            self._moved = False
            try:
                self._loop.call_soon_threadsafe(self._mark)
            except RuntimeError:
                return
            self._look_on()

    def _look_on(self) -> None:
        """Watches a loop that stands still, until it moves again."""
        seen: dict[tuple[FrameType, float], float] = {}
        first = lapsed = struck_in = None
        pause = 0.0
        while not self._stop.wait(pause) and not self._moved:
            pause = TICK_SECONDS
            held, now = self._find_holder(), self._loop.time()
            if held is None:
                continue
            seen = {r.key: seen.get(r.key, now) for r in held.regions}
            late = next((r for r in held.regions if r.time.overdue(now, now - seen[r.key])), None)
            if late is None:
                continue
            if late.key != struck_in:
                first, struck_in = None, late.key
            if first is None or now - first >= CLEANUP_SECONDS:
                pause = BRIEF_SECONDS
                if held.users and self._strike(held, late) and first is None:
                    first, pause = now, TICK_SECONDS
                    _say(logging.WARNING, f"{_name_held(held, late)} has blocked the event loop beyond its timeout, and is being stopped")
                elif held.frame is held.gate:
                    first = first or now  # C code that the engine called directly
            if first is not None and now - first >= CLEANUP_SECONDS:
                lapsed = lapsed or self._lapse(held, late, now)
                if now - lapsed >= self._renewing.ttl and self._ends():
                    self._give_up(held, late)
                    return
        if lapsed is not None:
            self._renewing.lapse(None)

    def _frame(self) -> FrameType | None:
        with pause_collection():
            return sys._current_frames().get(self._watched)

    def _find_holder(self) -> Held | None:
        frame = self._frame()
        try:
            return None if frame is None else holder(frame, self._whose)
        except (AttributeError, LookupError, RuntimeError):
            return None  # the stack changed while it was read; the next check tries again

    def _strike(self, held: Held, late: Region) -> bool:
        timeout = late.time.over(late.what, ", and let nothing else have its turn")
        return strike(self._watched, held, type("Overdue", (Overdue,), {"timeout": timeout}))

    def _lapse(self, held: Held, late: Region, now: float) -> float:
        self._renewing.lapse(_name_held(held, late))
        ends = f", and ends in {self._renewing.ttl:g} s" if self._ends() else ""
        _say(logging.ERROR, f"{_name_held(held, late)} blocks the event loop and cannot be stopped: this process no longer renews its leases{ends}")
        return now

    def _give_up(self, held: Held, late: Region) -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"holdfast: {_name_held(held, late)} holds the event loop and cannot be ended: this process ends\n".encode(errors="replace"))
        self._stop.set()
        self._end(CODE)


def _say(level: int, text: str) -> None:
    """Logs from a separate thread: the code that holds the loop may also hold a log handler's lock."""
    threading.Thread(target=log.log, args=(level, "%s", text), name="holdfast-watch-log", daemon=True).start()


def _name_held(held: Held, late: Region) -> str:
    try:
        return late.what if held.placed is None else f"{late.what} ({held.placed.step_id})"
    except (AttributeError, LookupError):
        return late.what


__all__ = ["BETWEEN", "GATES", "Held", "Overdue", "Placed", "Timed", "Watch", "holder", "settle", "strike", "struck"]
