"""Threads for transports that are plain functions. Each receiver has a limited number, so that one that hangs does not block the others.

The work of a lane waits in the lane's queue. One thread takes it from there, one item after another, as long as each is quick, because a switch between
threads costs more than a quick function. If the queue does not move, more threads are started. If nobody waits for a function any more, its
thread no longer counts towards the limit; it does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.outbox.pace import EACH, Lane

STANDS_SECONDS = 0.002


class NotReached(Exception):
    """The time was over before a thread had begun: nothing has happened."""


class _Turn:
    def __init__(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.thread: _Thread | None = None


class _Queue:
    """The work of one lane, and its threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # protects which turn is taken by which thread
        self.turns: deque[_Turn] = deque()
        self.threads: set[_Thread] = set()
        self.looking = False


class _Thread:
    """Takes turns until there are none, or until nobody waits for its current one any more."""

    def __init__(self, lane: Lane, queue: _Queue, back: Callable[[_Turn, Any, BaseException | None], None], ended: Callable[[Lane, _Thread], None]) -> None:
        self._lane, self._queue, self._back, self._ended = lane, queue, back, ended
        self.left = False

    def run(self) -> None:
        while not self.left:
            with self._queue.lock:
                turn = self._queue.turns.popleft() if self._queue.turns else None
                if turn is not None:
                    turn.thread = self
            if turn is None:
                break
            value: Any = None
            error: BaseException | None = None
            try:
                value = turn.work()
            except StopIteration as e:  # a future cannot hold a StopIteration, and its waiter would wait for ever
                error = RuntimeError("a transport raised StopIteration")
                error.__cause__ = e
            except BaseException as e:  # raised to the caller, in the event loop
                error = e
            self._back(turn, value, error)
        self._ended(self._lane, self)


class Hands:
    """The threads of one dispatcher. Everything except ``_Thread.run`` runs in the event loop's thread."""

    _numbers = itertools.count(1)

    def __init__(self, each: int = EACH) -> None:
        self._each = each
        self._queues: dict[Lane, _Queue] = {}
        self._came: deque[Callable[[], None]] = deque()
        self._told = False

    async def do(self, lane: Lane, work: Callable[[], Any]) -> Any:
        """Calls ``work`` in a thread of this lane, and returns its result or raises its error.

        Raises:
            NotReached: the caller was cancelled before the call had begun.
        """
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(lane, _Queue())
        turn = _Turn(work, loop.create_future())
        queue.turns.append(turn)
        if not queue.threads:
            self._start(lane, queue, loop)
        elif not queue.looking:
            queue.looking = True
            loop.call_later(STANDS_SECONDS, self._look, lane, queue, loop)
        try:
            return await turn.future
        except asyncio.CancelledError:
            if not turn.future.cancelled():  # the function itself raised it
                raise
            with queue.lock:
                if turn.thread is None:
                    queue.turns.remove(turn)
                    raise NotReached("it was not begun: no thread was free") from None
            turn.thread.left = True
            queue.threads.discard(turn.thread)
            if queue.turns and not queue.threads:
                self._start(lane, queue, loop)
            raise

    def _start(self, lane: Lane, queue: _Queue, loop: asyncio.AbstractEventLoop) -> None:
        def tell(what: Callable[[], None]) -> None:
            self._came.append(what)
            if not self._told:
                self._told = True
                with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(self._hand_back)

        thread = _Thread(lane, queue, lambda turn, value, error: tell(lambda: _answer(turn, value, error)), lambda lane, thread: tell(lambda: self._let_go(lane, thread, loop)))
        queue.threads.add(thread)
        threading.Thread(target=thread.run, name=f"holdfast-send-{next(self._numbers)}", daemon=True).start()

    def _hand_back(self) -> None:
        self._told = False
        while self._came:
            self._came.popleft()()

    def _let_go(self, lane: Lane, thread: _Thread, loop: asyncio.AbstractEventLoop) -> None:
        queue = self._queues.get(lane)
        if queue is None:
            return
        queue.threads.discard(thread)
        if queue.turns and not queue.threads:  # added after the thread had looked
            self._start(lane, queue, loop)
        elif not queue.turns and not queue.threads:
            del self._queues[lane]

    def _look(self, lane: Lane, queue: _Queue, loop: asyncio.AbstractEventLoop) -> None:
        """Doubles the number of threads if there is more work in the queue than they have done meanwhile."""
        queue.looking = bool(queue.turns)
        for _ in range(min(len(queue.turns), len(queue.threads), self._each - len(queue.threads))):
            self._start(lane, queue, loop)
        if queue.looking:
            loop.call_later(STANDS_SECONDS, self._look, lane, queue, loop)


def _answer(turn: _Turn, value: Any, error: BaseException | None) -> None:
    if turn.future.done():
        return
    if error is not None:
        turn.future.set_exception(error)
    else:
        turn.future.set_result(value)


__all__ = ["Hands", "NotReached"]
