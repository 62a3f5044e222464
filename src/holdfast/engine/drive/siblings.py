"""Executes pieces of work beside each other, in as few tasks of the event loop as they need.

Theory of operation. A runner is a task of the loop. It does one piece after another and steps each by hand, so that it sees the moment
in which a piece first waits. A piece that ends before it waits, as most nodes of a fan-out do, has cost no task of its own, no wake-up and
no turn of the loop. A piece that waits keeps its runner: one piece is in one task from its first line to its last, because timeouts,
cancels and ``asyncio.current_task`` rest on that. The other pieces get runners of their own then, as many as there is room for: the tasks of a super-step are
mostly alike. Each piece has a copy of the context variables, as it would have in a task.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from holdfast.engine.base import failures
from holdfast.engine.base.begun import Rest

P = TypeVar("P")
T = TypeVar("T")


class Siblings(Generic[P, T]):
    """The pieces that are under way. ``work`` does one of them, or gives None for one that is not to be begun any more; at most ``room`` of them are begun and
    not ended; ``told`` is called when some have ended."""

    def __init__(self, room: int, work: Callable[[P], Coroutine[Any, Any, T] | None], told: Callable[[], None]) -> None:
        self._room = room
        self._work = work
        self._told = told
        self._for = asyncio.current_task()
        self._queue: deque[P] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._free = 0  # runners that will take another piece in this turn of the loop or the next
        self._ended: list[tuple[P, T | None, BaseException | None]] = []
        self._broke: BaseException | None = None

    def add(self, piece: P) -> None:
        """Begins a piece, once there is room."""
        self._queue.append(piece)
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
        queue, copy, work, told = self._queue, contextvars.copy_context, self._work, self._told
        self._free -= 1
        while queue:
            piece = queue.popleft()
            context, doing = copy(), work(piece)
            value, error = None, None
            try:
                if doing is not None:
                    waiting = context.run(doing.send, None)
                    for _ in range(min(len(queue), self._room) - self._free):
                        self._start()
                    value = await Rest(doing, waiting, context)
            except StopIteration as end:
                value = end.value
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit):
                raise
            except BaseException as e:
                error = e
            if not self._ended:
                told()
            self._ended.append((piece, value, error))


__all__ = ["Siblings"]
