"""Calling user code: coroutine or thread, under a timeout, with its name for the record."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from holdfast.core.errors import StepFailure, StepTimeout


def name_of(function: Callable[..., Any]) -> str:
    """The name a call is recorded under."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None) or type(function).__name__
    return str(name)


def asynchronous(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


async def call(function: Callable[..., Any], args: tuple[Any, ...], timeout_us: int, what: str) -> Any:
    """Awaits a coroutine function, or runs a plain one in a thread.

    Raises:
        StepTimeout: a typed class of its own; what a thread does after it is fenced off (§10.10).
        StepFailure: the code called ``sys.exit``, or let a cancellation out that nobody asked for: a failure of
            this step, not the end of the process that serves others.
    """
    try:
        return await _timed(function, args, timeout_us, what)
    except SystemExit as e:
        raise StepFailure(f"{what} called sys.exit({e.code!r})", code="system_exit") from e
    except asyncio.CancelledError as e:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise StepFailure(f"{what} let a CancelledError out that it had raised or awaited itself", code="cancelled_inside") from e


async def _timed(function: Callable[..., Any], args: tuple[Any, ...], timeout_us: int, what: str) -> Any:
    if timeout_us <= 0:
        return await function(*args) if asynchronous(function) else await _in_thread(function, args)
    scope = asyncio.timeout(timeout_us / 1_000_000)
    try:
        async with scope:
            if asynchronous(function):
                return await function(*args)
            return await _in_thread(function, args)
    except TimeoutError:
        if scope.expired():
            raise StepTimeout(f"{what} took longer than {timeout_us / 1_000_000:g} s", hint="give it timeout=…") from None
        raise


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
