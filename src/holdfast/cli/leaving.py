"""Ends the process of a command although threads of a node go on.

A thread cannot be stopped. The runtime's own threads end with the process, but the interpreter waits for others as long as they take: for calls of
``asyncio.to_thread``, for a library's pool, for threads that a node has started. A command that a signal has told to end waits for them for a short
time, and then exits. Nothing that they do afterwards would be recorded.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

PATIENCE_SECONDS = 5.0
LEAST_SECONDS = 1.0
"""How long the interpreter has in any case to end by itself."""
P = ParamSpec("P")
T = TypeVar("T")

_told: list[float] = []


def note_signal() -> None:
    """Notes that a signal has told this process to end. Threads are waited for until ``PATIENCE_SECONDS`` after the last signal."""
    _told[:] = [time.monotonic()]


def _count_left() -> float:
    """Returns how many seconds threads are still waited for."""
    return max(0.0, _told[0] + PATIENCE_SECONDS - time.monotonic())


class _Executor(concurrent.futures.ThreadPoolExecutor):
    """The executor of a loop's ``to_thread``. Its shutdown waits for the calls that have begun no longer than the process does."""

    def __init__(self) -> None:
        super().__init__(thread_name_prefix="asyncio")
        self._begun: set[concurrent.futures.Future[Any]] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> concurrent.futures.Future[T]:
        call = super().submit(fn, *args, **kwargs)
        self._begun.add(call)
        call.add_done_callback(self._begun.discard)
        return call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        told = bool(_told)
        super().shutdown(wait and not told, cancel_futures=cancel_futures or told)
        if wait and told:
            concurrent.futures.wait(list(self._begun), _count_left())


def watch_threads() -> None:
    """Sets the executor of a command's event loop, so that a command told to end by a signal waits at most ``PATIENCE_SECONDS`` for threads of its nodes."""
    asyncio.get_running_loop().set_default_executor(_Executor())


def limit_exit(code: int) -> None:
    """Ends the process soon if a signal has told it to end, whatever its threads do. As a rule the interpreter ends it sooner."""
    if _told:
        threading.Thread(target=_cut, args=(code,), name="holdfast-leave", daemon=True).start()


def _cut(code: int) -> None:
    time.sleep(max(LEAST_SECONDS, _count_left()))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader has closed the stream
            stream.flush()
    os._exit(code)


__all__ = ["PATIENCE_SECONDS", "limit_exit", "note_signal", "watch_threads"]
