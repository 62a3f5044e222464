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

    The first part, up to where it first waits, is run before a timer is set: no timer could end that part, and many a node
    ends in it, for which a timer would cost more than the node.

    Raises:
        StepTimeout, StepFailure: as ``call``.
    """
    try:
        if type(work) is not CoroutineType:  # an awaitable of another make
            return await _within(work, asyncio.get_running_loop().time(), timeout_us, what)
        began = asyncio.get_running_loop().time()
        rest: Begun[T] = Begun(work)
        if rest.over:
            return rest.value
        return await _within(rest, began, timeout_us, what)
    except SystemExit as e:
        raise StepFailure(f"{what} called sys.exit({e.code!r})", code="system_exit") from e
    except asyncio.CancelledError as e:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StepFailure(f"{what} let a CancelledError out that it had raised or awaited itself", code="cancelled_inside") from e


async def _within(rest: Awaitable[T], began: float, timeout_us: int, what: str) -> T:
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


class Begun(Awaitable[T]):
    """A coroutine whose first part, up to where it first waits, has been run in the caller's task: it is ``over`` and left a
    ``value``, or it is to be awaited further. What it raises in its first part is raised at once."""

    __slots__ = ("_steps", "_waiting", "over", "value")
    value: T

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.over = False
        self._steps = self._kept(work).__await__()
        self._waiting = next(self._steps, None)

    async def _kept(self, work: Coroutine[Any, Any, T]) -> None:
        """Keeps the value aside: a coroutine that returns nothing ends without an exception, which would cost more than all of this."""
        self.value = await work
        self.over = True

    def __await__(self) -> Generator[Any, Any, T]:
        steps, waiting = self._steps, self._waiting
        while not self.over:
            try:
                yield waiting
            except BaseException as e:  # a cancel or a timeout strikes where the coroutine waits, so it is thrown in there
                try:
                    waiting = steps.throw(e)
                except StopIteration:
                    break
            else:
                yield from steps
        return self.value


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
