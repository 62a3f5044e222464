"""How a command's process ends although a node's threads go on.

A thread cannot be stopped. The runtime's own end with the process, but for others the interpreter waits as long as they take: for calls of
``asyncio.to_thread``, for a library's pool, for threads that a node has started. A command that a signal has told to end waits for them for a moment,
and then leaves. Nothing that they still do would be recorded.
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
"""So long the interpreter has in any case for its own end."""
P = ParamSpec("P")
T = TypeVar("T")

_told: list[float] = []


def note_signal() -> None:
    """A signal has told this process to end. The threads have had their time ``PATIENCE_SECONDS`` after the last one."""
    _told[:] = [time.monotonic()]


def _count_left() -> float:
    """How long threads are still waited for."""
    return max(0.0, _told[0] + PATIENCE_SECONDS - time.monotonic())


class _Executor(concurrent.futures.ThreadPoolExecutor):
    """The executor of a loop's ``to_thread``, whose end waits for what was begun no longer than the process does."""

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
    """Within the loop of a command: what its nodes leave in threads is waited for no longer than ``PATIENCE_SECONDS`` once a signal has told it to end."""
    asyncio.get_running_loop().set_default_executor(_Executor())


def limit_exit(code: int) -> None:
    """From now on the process ends soon, if a signal has told it to, whatever its threads do; as a rule the interpreter ends it sooner."""
    if _told:
        threading.Thread(target=_cut, args=(code,), name="holdfast-leave", daemon=True).start()


def _cut(code: int) -> None:
    time.sleep(max(LEAST_SECONDS, _count_left()))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read them has gone
            stream.flush()
    os._exit(code)


__all__ = ["PATIENCE_SECONDS", "limit_exit", "note_signal", "watch_threads"]
