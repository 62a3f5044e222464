"""Threads for plain functions. They are Holdfast's own, so that they are named, limited in number, and do not keep a process from ending (§10.10).

A thread cannot be ended from outside. If its caller has given up, the thread continues, and what it does is fenced off. Its place is
given to another thread, up to ``size`` more. Closing waits for running calls for a limited time, and then says which still run.
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
    """Tells nobody: the call was cancelled before it began."""


_handed_on: Future[Any] = Future()


class Job:
    """One call. ``begun`` is called when a thread takes the call, if the call had to wait for one."""

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
            finally:  # trace functions that the call has set end with it: if one raised, it would end the thread, and nobody would notice
                sys.settrace(traced)
                sys.setprofile(profiled)
        except BaseException as e:
            machine.end_child(forks, self.what)
            self._hand_on = partial(self.future.set_exception, e)
        else:
            machine.end_child(forks, self.what)
            self._hand_on = partial(self.future.set_result, value)

    def tell(self) -> None:
        """Passes on the result or error of ``run`` and keeps no reference to it: the frames of an error's traceback refer to this job."""
        hand_on, self._hand_on, self.future = self._hand_on, _nothing, _handed_on
        hand_on()


class Taking(Executor):
    """Hands one call to the pool of this context through ``loop.run_in_executor``; the event loops of tests make the call in place instead."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return current.get().submit(self._job)


class Pool:
    """Threads, started as they are needed: at most ``size``, and as many again in place of those whose callers have given up.

    An executor, as far as ``loop.run_in_executor`` requires.
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
        """The calls that its threads execute, the oldest first."""
        with self._guard:
            return [job.what for job in self._running]

    def submit(self, job: Job) -> Future[Any]:
        """Has the next free thread make a call.

        Raises:
            StoreClosed: its runtime was closed.
            StepFailure: too many threads are still running calls that timed out.
        """
        future = job.future  # read now: the job drops it once a thread has passed the result on
        with self._guard:
            if self._closed:
                raise StoreClosed("this runtime was closed")
            if len(self._given_up) >= self.size:
                raise StepFailure(
                    f"{len(self._given_up)} threads have timed out and are still running: {', '.join(sorted({j.what for j in self._given_up})[:5])}",
                    code="threads_exhausted", hint="give the code they call its own timeout, then restart this process",
                )
            if self._free:
                job.begun = None  # a thread takes it at once
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
        """Notes that nobody waits for this call any more."""
        with self._guard:
            if job in self._running:
                self._given_up.add(job)

    def close(self, seconds: float) -> list[str]:
        """Takes no more calls, waits up to ``seconds`` for those that run, and returns those that still run."""
        with self._guard:
            self._closed = True
            for _ in range(self.threads):
                self._jobs.put(None)
            self._ended.wait_for(lambda: not self._running, seconds)
            return [job.what for job in self._running]

    def _work(self) -> None:
        """Takes one job after another. A thread is started for one job, and is free afterwards until it is given another."""
        while True:
            job = self._jobs.get()
            with self._guard:
                if job is None:
                    self.threads -= 1
                    return
                self._running[job] = None
            job.run()
            with self._guard:  # freed before the result is passed on: a caller that makes its next call at once gets this thread and not a new one
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
