"""Executes pieces of work beside each other, in as few tasks of the event loop as they need.

Theory of operation. A runner is a task of the loop. It begins one piece after another, each by a call that gives what came of it or the coroutine that is left of it,
and steps such a coroutine by hand, so that it sees the moment in which it first waits. A piece that ends before it waits, as most nodes of a fan-out do, has cost no task of its own, no wake-up and
no turn of the loop. A piece that waits keeps its runner: one piece is in one task from its first line to its last, because timeouts,
cancels and ``asyncio.current_task`` rest on that. The other pieces get runners of their own then, as many as there is room for: the tasks of a super-step are
mostly alike. Each piece has a copy of the context variables, as it would have in a task.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, Generic, TypeVar

from holdfast.engine.base import failures
from holdfast.engine.base.begun import Rest
from holdfast.machine import call_nobody

P = TypeVar("P")
T = TypeVar("T")


def _begin_nothing(piece: object, task: asyncio.Task[Any]) -> None:
    """In the place of what begins pieces, when all have ended."""


class Siblings(Generic[P, T]):
    """The pieces that are under way. ``work`` begins one of them in the task of the loop that it is given: it gives what came of it, or what is left to do, or None
    for one that is not to be begun any more; at most ``room`` of them are begun and not ended; ``told`` is called when some have ended."""

    def __init__(self, room: int, work: Callable[[P, asyncio.Task[Any]], T | Coroutine[Any, Any, T] | None], told: Callable[[], None]) -> None:
        self._room = room
        self._work = work
        self._told = told
        self._for = asyncio.current_task()
        self._queue: deque[P] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._free = 0  # runners that will take another piece in this turn of the loop or the next
        self._ended: list[tuple[P, T | None, BaseException | None]] = []
        self._broke: BaseException | None = None

    def add(self, *pieces: P) -> None:
        """Begins pieces, once there is room."""
        self._queue.extend(pieces)
        if not self._free:
            self._start()

    def take_ended(self) -> list[tuple[P, T | None, BaseException | None]]:
        """The pieces that have ended since the last time: each with its value, or with what it raised.

        Raises:
            BaseException: what ended a runner rather than its piece: a cancel, or somebody at the keyboard.
        """
        if self._broke is not None:
            raise self._broke
        found, self._ended = self._ended, []
        return found

    async def cancel(self) -> None:
        """Ends what is under way, in the name of the engine, and waits for it; begins no more."""
        self._queue.clear()
        running = list(self._runners)
        for runner in running:
            failures.cancel(runner)
        if running:
            await asyncio.gather(*running, return_exceptions=True)

    def close(self) -> None:
        """Begins no more, and calls nobody: what it called refers back to it, and would be freed by the garbage collector alone."""
        self._work, self._told = _begin_nothing, call_nobody

    def _start(self) -> None:
        if len(self._runners) >= self._room:
            return
        self._free += 1
        runner = asyncio.create_task(self._run())
        failures.serve(runner, self._for)
        self._runners.add(runner)
        runner.add_done_callback(self._leave)

    def _leave(self, runner: asyncio.Task[None]) -> None:
        self._runners.discard(runner)
        broke = asyncio.CancelledError() if runner.cancelled() else runner.exception()
        if broke is not None:
            self._broke = self._broke or broke
            self._told()

    async def _run(self) -> None:
        queue, copy, me = self._queue, contextvars.copy_context, asyncio.current_task()
        assert me is not None, "a runner is a task of the loop"
        self._free -= 1
        while queue:
            piece, context = queue.popleft(), copy()
            value, error = None, None
            try:
                begun = context.run(self._work, piece, me)
                if type(begun) is CoroutineType:
                    waiting = context.run(begun.send, None)
                    for _ in range(min(len(queue), self._room) - self._free):
                        self._start()
                    rest = Rest(begun, waiting, context)
                    del waiting  # a future that failed keeps its error, whose traceback refers to this frame
                    value = await rest
                else:
                    value = begun
            except StopIteration as end:
                value = end.value
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as e:
                error = e
            if not self._ended:
                self._told()
            self._ended.append((piece, value, error))
            value = error = None  # an error has this frame in its traceback


__all__ = ["Siblings"]
