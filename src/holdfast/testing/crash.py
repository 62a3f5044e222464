"""A store that dies on command: before a write, after it, or with its outcome unknown.

Every verb that is not on the list of reads counts as a write, so a verb added to the port later is covered without
anybody thinking of it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Hashable
from enum import StrEnum
from typing import Any, cast

from holdfast.core.errors import StoreError
from holdfast.engine.base.failures import ControlFlow
from holdfast.ports import Store

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
    """A plan with one fault, at the write of this number, counted from 1."""
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

    def _write(self, verb: str, target: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def write(*args: Any, **kwargs: Any) -> Any:
            self._alive()
            self.writes.append(verb)
            fault = self._plan(len(self.writes), verb)
            if self._pause is not None:
                await self._pause()
                self._alive()
            if fault is Fault.BEFORE:
                self._die()
            if fault is Fault.LOST:
                raise StoreError(f"the connection broke before {verb} was done", code="store_unreachable")
            answer = await target(*args, **kwargs)
            if self._seen is not None:
                self._seen(verb, args, answer)
            if fault is Fault.AFTER:
                self._die()
            if self._pause is not None:
                await self._pause()
                self._alive()
            if fault is Fault.APPLIED:
                raise StoreError(f"the connection broke while {verb} was done", code="store_unreachable")
            return answer

        return write

    def _die(self) -> None:
        self.cut()
        if self._on_crash is not None:
            self._on_crash()
        raise SimulatedCrash

    def _alive(self) -> None:
        if self.dead:
            raise SimulatedCrash


@functools.lru_cache(1024)
def _is_verb(function: Hashable) -> bool:
    """Whether a store's attribute is a coroutine function. To ask that anew takes longer than most verbs of a store in memory."""
    return asyncio.iscoroutinefunction(function)


__all__ = ["READS", "CrashingStore", "Fault", "Plan", "SimulatedCrash", "at_write", "never"]
