"""Calling user code: coroutine or thread, under a timeout, with its name for the record."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import CoroutineType, FunctionType
from typing import Any, TypeVar

from holdfast.core.errors import StepFailure, StepTimeout

T = TypeVar("T")


def name_of(function: Callable[..., Any]) -> str:
    """The name a call is recorded under."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return str(name)


def accepts_key(function: Callable[..., Any]) -> bool:
    """Whether a function asks for its effect's key (§6.3)."""
    try:
        return "idempotency_key" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def asynchronous(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    if type(function) is FunctionType and function.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # by far the most, and what inspect would find out the long way
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


async def call(function: Callable[..., Any], args: tuple[Any, ...], timeout_us: int, what: str) -> Any:
    """Awaits a coroutine function, or runs a plain one in a thread.

    Raises:
        StepTimeout: a typed class of its own; what a thread does after it is fenced off (§10.10).
        StepFailure: the code called ``sys.exit``, or let a cancellation out that nobody asked for: a failure of
            this step, not the end of the process that serves others.
    """
    return await bounded(function(*args) if asynchronous(function) else _in_thread(function, args), timeout_us, what)


async def bounded(work: Coroutine[Any, Any, T], timeout_us: int, what: str) -> T:
    """Awaits a coroutine of the user's for at most ``timeout_us`` from now; zero is for ever.

    Raises:
        StepTimeout, StepFailure: as ``call``.
    """
    try:
        return await _timed(work, timeout_us, what)
    except SystemExit as e:
        raise StepFailure(f"{what} called sys.exit({e.code!r})", code="system_exit") from e
    except asyncio.CancelledError as e:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StepFailure(f"{what} let a CancelledError out that it had raised or awaited itself", code="cancelled_inside") from e


async def _timed(work: Coroutine[Any, Any, T], timeout_us: int, what: str) -> T:
    """The first part, up to where it first waits, is run before a timer is set: no timer could end that part, and many
    a node ends in it, for which a timer would cost more than the node."""
    rest: Awaitable[T] = work
    began = asyncio.get_running_loop().time()
    if type(work) is CoroutineType:  # and no awaitable of another make
        try:
            rest = _Rest(work, work.send(None))
        except StopIteration as done:
            value: T = done.value
            return value
    if timeout_us <= 0:
        return await rest
    scope = asyncio.timeout_at(began + timeout_us / 1_000_000)
    try:
        async with scope:
            return await rest
    except TimeoutError:
        if scope.expired():
            raise StepTimeout(f"{what} took longer than {timeout_us / 1_000_000:g} s", hint="give it timeout=…") from None
        raise


class _Rest(Awaitable[Any]):
    """What is left of a coroutine whose first part has been run: it waits for ``waiting``."""

    __slots__ = ("_waiting", "_work")

    def __init__(self, work: Coroutine[Any, Any, Any], waiting: Any) -> None:
        self._work = work
        self._waiting = waiting

    def __await__(self) -> Generator[Any, Any, Any]:
        work, waiting = self._work, self._waiting
        while True:
            try:
                yield waiting
            except BaseException as e:  # a cancel or a timeout strikes where the coroutine waits, so it is thrown in there
                try:
                    waiting = work.throw(e)
                except StopIteration as done:
                    return done.value
            else:
                return (yield from work.__await__())


async def _in_thread(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """A plain callable may still hand back an awaitable: a lambda around a coroutine function does."""
    value = await asyncio.to_thread(_plainly, function, args)
    return await value if inspect.isawaitable(value) else value


def _plainly(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Calls it; a future cannot carry a StopIteration, and whoever waited for it would wait for ever."""
    try:
        return function(*args)
    except StopIteration as e:
        raise RuntimeError("a plain function raised StopIteration") from e
