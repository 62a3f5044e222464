"""A store that crashes on command: before a write, after it, or with its outcome unknown.

Every verb that is not in ``READS`` counts as a write, so that a verb which is added to the port later is covered
without a change here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Hashable
from enum import StrEnum
from typing import Any, cast

from holdfast.core.commit import Step, Tip
from holdfast.core.errors import StoreError
from holdfast.engine.base.failures import ControlFlow
from holdfast.ports import Seat, Store

READS = frozenset(
    {
        "backlog", "blob", "close", "counts", "due", "effects", "find_claim", "find_marked", "get", "inbox", "intents", "lanes", "leases", "ledger",
        "list_carries", "load", "now", "open", "open_effects", "owner_alive", "rows", "rules", "runs", "schedule", "schedules", "thread_end", "token", "usage",
        "verify", "wait_for_change", "whole", "workers",
    }
)


class SimulatedCrash(ControlFlow):
    """Raised to simulate a process that was killed (``kill -9``). The engine does not catch it."""


class Fault(StrEnum):
    """What goes wrong at a write. The process dies ``before`` or ``after`` it; or the process lives and the store reports a failure,
    and the write was in fact ``lost`` (not made) or ``applied`` (X-09)."""

    BEFORE = "before"
    AFTER = "after"
    LOST = "lost"
    APPLIED = "applied"


Plan = Callable[[int, str], Fault | None]


def at_write(number: int, fault: Fault) -> Plan:
    """Returns a plan with one fault, at the write of this number, counted from 1."""
    return lambda n, verb: fault if n == number else None


def never(number: int, verb: str) -> Fault | None:
    return None


class CrashingStore:
    """A shared store as one simulated process sees it; the process can crash at any write.

    Args:
        store: the wrapped store, which outlives the process.
        plan: called at each write with its number and the method's name; it returns the fault, or None.
        pause: awaited before and after each call, so that other tasks can run in between.
        seen: called with (method, arguments, result) after each write that was applied.
        on_crash: called when the process crashes.

    ``writes`` lists the methods that wrote, in order. After a crash every call raises SimulatedCrash.
    """

    def __init__(
        self,
        store: Store,
        plan: Plan = never,
        *,
        pause: Callable[[], Awaitable[None]] | None = None,
        seen: Callable[[str, tuple[Any, ...], Any], None] | None = None,
        on_crash: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._plan = plan
        self._pause = pause
        self._seen = seen
        self._on_crash = on_crash
        self.writes: list[str] = []
        self.dead = False

    @property
    def beneath(self) -> Store:
        """The wrapped store."""
        return self._store

    def as_store(self) -> Store:
        """Returns this object with the type ``Store``. Its methods are created on demand."""
        return cast(Store, self)

    def cut(self) -> None:
        """Cuts the process off: from now on nothing reaches the store, and every call raises SimulatedCrash."""
        self.dead = True

    async def open(self) -> None:
        """Does nothing, because the wrapped store is open already; raises SimulatedCrash after a crash."""
        self._alive()

    async def close(self) -> None:
        """Does nothing: the wrapped store is shared and stays open."""

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._store, name)
        if name in ("join", "step_at_once"):
            return self._write(name, target)
        if not callable(target) or not _is_verb(getattr(target, "__func__", target)):
            return target
        return self._read(target) if name in READS else self._write(name, target)

    def _read(self, target: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def read(*args: Any, **kwargs: Any) -> Any:
            self._alive()
            answer = await target(*args, **kwargs)
            self._alive()
            return answer

        return read

    def begin(self, verb: str) -> Fault | None:
        """Counts a write; returns the fault that happens at it, or None."""
        self._alive()
        self.writes.append(verb)
        return self._plan(len(self.writes), verb)

    def tell(self, verb: str, arguments: tuple[Any, ...], answer: Any) -> None:
        """Reports a write that was applied."""
        if self._seen is not None:
            self._seen(verb, arguments, answer)

    def die(self) -> SimulatedCrash:
        """Ends the process here; returns the error that its calls raise from now on."""
        self.cut()
        if self._on_crash is not None:
            self._on_crash()
        return SimulatedCrash()

    def _write(self, verb: str, target: Callable[..., Any]) -> Callable[..., Any]:
        def join(step: Step, seat: Seat) -> None:
            fault = self.begin(verb)
            if fault is Fault.BEFORE:
                raise self.die()
            if fault is Fault.LOST:
                raise StoreError(f"the connection broke before {verb} was done", code="store_unreachable")
            target(step, _Watched(self, seat, step, fault))

        def step_at_once(step: Step) -> Tip | None:
            self._alive()
            tip: Tip | None = target(step) if self._plan is never else None  # otherwise the engine hands the step over again, by a verb that may crash
            if tip is not None:
                self.writes.append(verb)
                self.tell(verb, (step,), tip)
            return tip

        async def write(*args: Any, **kwargs: Any) -> Any:
            fault = self.begin(verb)
            if self._pause is not None:
                await self._pause()
                self._alive()
            if fault is Fault.BEFORE:
                raise self.die()
            if fault is Fault.LOST:
                raise StoreError(f"the connection broke before {verb} was done", code="store_unreachable")
            answer = await target(*args, **kwargs)
            self.tell(verb, args, answer)
            if fault is Fault.AFTER:
                raise self.die()
            if self._pause is not None:
                await self._pause()
                self._alive()
            if fault is Fault.APPLIED:
                raise StoreError(f"the connection broke while {verb} was done", code="store_unreachable")
            return answer

        # All three are defined in this method, so that ``ports.offers_gathering`` sees the same object and class behind every write.
        return join if verb == "join" else step_at_once if verb == "step_at_once" else write

    def _alive(self) -> None:
        if self.dead:
            raise SimulatedCrash


class _Watched:
    """The seat of a run that hands steps to a store which may crash at each of them."""

    def __init__(self, store: CrashingStore, seat: Seat, step: Step, fault: Fault | None) -> None:
        self._store = store
        self._seat = seat
        self._step = step
        self._fault = fault

    @property
    def waits(self) -> bool:
        return self._seat.waits

    def tell(self, tip: Tip) -> Step | None:
        store, fault = self._store, self._fault
        store.tell("join", (self._step, self._seat), tip)
        if store.dead or fault is Fault.AFTER:
            self._seat.refuse(SimulatedCrash() if store.dead else store.die())
            return None
        if fault is Fault.APPLIED:
            self._seat.refuse(StoreError("the connection broke while join was done", code="store_unreachable"))
            return None
        step = self._seat.tell(tip)
        if step is None:
            return None
        self._step, self._fault = step, store.begin("join")
        if self._fault is Fault.BEFORE:
            self._seat.refuse(store.die())
            return None
        if self._fault is Fault.LOST:
            self._seat.refuse(StoreError("the connection broke before join was done", code="store_unreachable"))
            return None
        return step

    def refuse(self, error: BaseException) -> None:
        self._seat.refuse(SimulatedCrash() if self._store.dead else error)


@functools.lru_cache(1024)
def _is_verb(function: Hashable) -> bool:
    """Whether a store's attribute is a coroutine function. The answer is cached, because to find it takes longer than most verbs of a store in memory."""
    return inspect.iscoroutinefunction(function)


__all__ = ["READS", "CrashingStore", "Fault", "Plan", "SimulatedCrash", "at_write", "never"]
