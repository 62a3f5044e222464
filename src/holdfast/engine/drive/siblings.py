"""Executes pieces of work concurrently, in as few asyncio tasks as they need.

Theory of operation. A runner is an asyncio task. It begins one piece after another by a plain call, which returns the result of the piece or a coroutine for the
rest of it. The runner steps such a coroutine by hand, so that it sees when the coroutine first waits. A piece that ends before it waits, as most nodes of a fan-out
do, costs no task, no wake-up and no turn of the event loop. A piece that waits keeps its runner: all of it must run in one task, because timeouts, cancels and
``asyncio.current_task`` depend on that. The other pieces then get further runners, as many as there is room for. Each piece has a copy of the context variables, as
it would have in a task of its own.
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
    """Replaces the function that begins pieces, once all have ended."""


class Siblings(Generic[P, T]):
    """Runs pieces of work concurrently. ``work`` begins a piece in the asyncio task that it is given: it returns the result, a coroutine for the rest, or None
    for a piece that must not begin any more. At most ``room`` pieces run at a time. ``told`` is called when some have ended."""

    def __init__(self, room: int, work: Callable[[P, asyncio.Task[Any]], T | Coroutine[Any, Any, T] | None], told: Callable[[], None]) -> None:
        self._room = room
        self._work = work
        self._told = told
        self._for = asyncio.current_task()
        self._queue: deque[P] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._free = 0  # runners that will take another piece in this or the next turn of the event loop
        self._ended: list[tuple[P, T | None, BaseException | None]] = []
        self._broke: BaseException | None = None

    def add(self, *pieces: P) -> None:
        """Adds pieces, which begin once there is room."""
        self._queue.extend(pieces)
        if not self._free:
            self._start()

    def take_ended(self) -> list[tuple[P, T | None, BaseException | None]]:
        """Returns the pieces that have ended since the last call: each with its value, or with the error that it raised.

        Raises:
            BaseException: an error that ended a runner rather than its piece: a cancel, or a KeyboardInterrupt.
        """
        if self._broke is not None:
            raise self._broke
        found, self._ended = self._ended, []
        return found

    async def cancel(self) -> None:
        """Cancels the running pieces on behalf of the engine and waits for them; begins no more."""
        self._queue.clear()
        running = list(self._runners)
        for runner in running:
            failures.cancel(runner)
        if running:
            await asyncio.gather(*running, return_exceptions=True)

    def close(self) -> None:
        """Begins no more pieces, and drops its callbacks; they refer back to this object, and only the garbage collector would free it."""
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
                    del waiting  # a failed future keeps its error, whose traceback refers to this frame
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
            value = error = None  # an error's traceback refers to this frame


__all__ = ["Siblings"]
