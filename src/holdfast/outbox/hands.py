"""Threads for transports that are plain functions: of one receiver so many at most, so that one that hangs keeps none from the others.

What a lane has to do waits in its queue. One thread takes it from there, one after the other, for as long as each is quick: a hop between
threads costs more than a quick function. Where the queue stands still there are soon more of them. A function that is waited for no more
keeps its thread, which is counted no more either, and keeps no process from its end.
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
    """Its time was over before a thread had come to it: nothing has happened."""


class _Turn:
    def __init__(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self.work = work
        self.future = future
        self.thread: _Thread | None = None


class _Queue:
    """What one lane has to do, and who does it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # over whose turn it is
        self.turns: deque[_Turn] = deque()
        self.threads: set[_Thread] = set()
        self.looking = False


class _Thread:
    """Takes turns until there are none, or it is left alone with its last."""

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
            except StopIteration as e:  # a future cannot carry it, and whoever waited for it would wait for ever
                error = RuntimeError("a transport raised StopIteration")
                error.__cause__ = e
            except BaseException as e:  # it is the caller's to judge, in the loop
                error = e
            self._back(turn, value, error)
        self._ended(self._lane, self)


class Hands:
    """The threads of one dispatcher. All but ``_Thread.run`` belongs to the loop's thread."""

    _numbers = itertools.count(1)

    def __init__(self, each: int = EACH) -> None:
        self._each = each
        self._queues: dict[Lane, _Queue] = {}
        self._came: deque[Callable[[], None]] = deque()
        self._told = False

    async def do(self, lane: Lane, work: Callable[[], Any]) -> Any:
        """What ``work`` returns, or raises, in a thread of this lane.

        Raises:
            NotReached: whoever waits was cut off before it had begun.
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
            if not turn.future.cancelled():  # it is what the function raised
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
                with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
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
        if queue.turns and not queue.threads:  # it came after the thread had looked
            self._start(lane, queue, loop)
        elif not queue.turns and not queue.threads:
            del self._queues[lane]

    def _look(self, lane: Lane, queue: _Queue, loop: asyncio.AbstractEventLoop) -> None:
        """As many threads again, where there is more to do than those that are there have done meanwhile."""
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
