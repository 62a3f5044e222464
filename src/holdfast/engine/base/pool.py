"""Threads for plain functions: our own, so that they are named, bounded, and keep no process from ending (§10.10).

A thread cannot be ended from outside. One whose caller has given up goes on, and what it does is fenced off; its place is
given to another, up to as many again. Closing waits for what runs for a bounded time and says what still does.
"""

from __future__ import annotations

import contextvars
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from holdfast import machine
from holdfast.core.errors import StepFailure, StoreClosed

SIZE = 64


def _nothing() -> None:
    """Nobody is to be told: the call was cancelled before it began."""


_handed_on: Future[Any] = Future()


class Job:
    """One call. ``begun`` is told when a thread takes it up, if it had to wait for one."""

    __slots__ = ("_hand_on", "args", "begun", "context", "function", "future", "running", "what")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], what: str, begun: Callable[[], None] | None) -> None:
        self.function = function
        self.args = args
        self.what = what
        self.begun = begun
        self.context = contextvars.copy_context()
        self.future: Future[Any] = Future()
        self.running = False
        self._hand_on: Callable[[], None] = _nothing

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        self.running = True
        forks = machine.PROCESS.forks
        if self.begun is not None:
            self.begun()
        traced, profiled = sys.gettrace(), sys.getprofile()
        try:
            try:
                value = self.context.run(self.function, *self.args)
            finally:  # what it left to be called with its thread ends with it: one that raises would end the thread, and nobody would hear
                sys.settrace(traced)
                sys.setprofile(profiled)
        except BaseException as e:
            machine.end_child(forks, self.what)
            self._hand_on = partial(self.future.set_exception, e)
        else:
            machine.end_child(forks, self.what)
            self._hand_on = partial(self.future.set_result, value)

    def tell(self) -> None:
        """Hands on what ``run`` brought, and keeps none of it: the frames of an error's traceback refer to this."""
        hand_on, self._hand_on, self.future = self._hand_on, _nothing, _handed_on
        hand_on()


class Taking(Executor):
    """Hands one call to the pool of this context, in the words of ``loop.run_in_executor``: loops of tests make it in place instead."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return current.get().submit(self._job)


class Pool:
    """Threads as they are needed, at most ``size`` and as many again for those that nobody waits for any more.

    An executor as far as ``loop.run_in_executor`` wants one.
    """

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._ended = threading.Condition(self._guard)
        self._running: dict[Job, None] = {}
        self._given_up: set[Job] = set()
        self.threads = 0
        self._free = 0  # threads that wait for a job and have not been given one
        self._queued = 0  # jobs that wait for a thread
        self._count = 0
        self._closed = False

    @property
    def running(self) -> list[str]:
        """What its threads are at, the oldest first."""
        with self._guard:
            return [job.what for job in self._running]

    def submit(self, job: Job) -> Future[Any]:
        """Has a call made by the next free thread.

        Raises:
            StoreClosed: its runtime was closed.
            StepFailure: too many threads run for ever.
        """
        future = job.future  # the job forgets it once a thread has told what came of it
        with self._guard:
            if self._closed:
                raise StoreClosed("this runtime was closed")
            if len(self._given_up) >= self.size:
                raise StepFailure(
                    f"{len(self._given_up)} threads have timed out and are still running: {', '.join(sorted({j.what for j in self._given_up})[:5])}",
                    code="threads_exhausted", hint="give the code they call its own timeout, then restart this process",
                )
            if self._free:
                job.begun = None  # it is taken up at once
                self._free -= 1
            elif self.threads < self.size + len(self._given_up):
                job.begun = None
                self.threads += 1
                self._count += 1
                threading.Thread(target=self._work, name=f"holdfast-call-{self._count}", daemon=True).start()
            else:
                self._queued += 1
            self._jobs.put(job)
        return future

    def give_up(self, job: Job) -> None:
        """Nobody waits for this call any more."""
        with self._guard:
            if job in self._running:
                self._given_up.add(job)

    def close(self, seconds: float) -> list[str]:
        """Takes no more calls, waits so long for those that run, and gives what still runs."""
        with self._guard:
            self._closed = True
            for _ in range(self.threads):
                self._jobs.put(None)
            self._ended.wait_for(lambda: not self._running, seconds)
            return [job.what for job in self._running]

    def _work(self) -> None:
        """Takes one job after another; it was made for one, or is free until it is given one."""
        while True:
            job = self._jobs.get()
            with self._guard:
                if job is None:
                    self.threads -= 1
                    return
                self._running[job] = None
            job.run()
            with self._guard:  # free before anybody hears of it: who makes the next call at once is given this thread, and no new one
                self._given_up.discard(job)
                leaves = not self._closed and self.threads > self.size + len(self._given_up)
                if leaves:
                    self.threads -= 1
                elif self._queued:
                    self._queued -= 1
                else:
                    self._free += 1
            job.tell()
            with self._guard:
                del self._running[job]
                self._given_up.discard(job)
                self._ended.notify_all()
            if leaves:
                return
            del job


_shared = Pool()
current: contextvars.ContextVar[Pool] = contextvars.ContextVar("holdfast_pool", default=_shared)

__all__ = ["Job", "Pool", "current"]
