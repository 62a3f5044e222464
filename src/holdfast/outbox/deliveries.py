"""Sends a run's own intents while ``invoke``, ``run`` and the like drive it (§4.18).

For a run that sends nothing, nothing is started or looked up. What cannot be sent yet is left to a dispatcher.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast import logs
from holdfast.core.errors import StoreError
from holdfast.machine import note_error
from holdfast.outbox.dispatcher import Dispatcher
from holdfast.ports import Clock

log = logs.logger("holdfast.outbox")
A_LITTLE_SECONDS = 0.01


class _Own:
    """The sending for one run. ``news``: there may be more to send, or the run has come to rest."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.rested = False
        self.task: asyncio.Task[None] | None = None


class Deliveries:
    """Sends for the runs that are driven here. ``dispatcher`` makes a dispatcher, once the store knows its owner."""

    def __init__(self, clock: Clock, dispatcher: Callable[[], Awaitable[Dispatcher]]) -> None:
        self._clock = clock
        self._dispatcher = dispatcher
        self._runs: dict[str, _Own] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def post(self, run_id: str) -> None:
        """Notes that a run that is driven here may have intents to send, from a new commit or from an earlier one."""
        own = self._runs.get(run_id)
        if own is None:
            own = self._runs[run_id] = _Own()
        own.news.set()
        if own.task is None:
            own.task = asyncio.ensure_future(self._send(run_id, own))
            own.task.add_done_callback(note_error)  # nobody waits for the task of a run that is left

    async def deliver(self, run_id: str) -> None:
        """Sends what a run at rest has to send, as far as that is possible now."""
        own = self._runs[run_id]
        if own.task is None:
            return
        own.rested = True
        own.news.set()
        try:
            await asyncio.shield(own.task)
        except StoreError as e:  # the run rests, and its intents are on record: the next dispatcher continues with them
            log.warning("the intents of %s are left to a dispatcher: %s", run_id, e.line())

    def leave(self, run_id: str) -> None:
        """Notes that the run is no longer driven here. A sending in progress is cut off, and recorded as such."""
        own = self._runs.pop(run_id, None)
        if own is not None and own.task is not None and not own.task.done():
            own.task.cancel()
            self._leaving.add(own.task)
            own.task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Waits until the sendings that were cut off are recorded."""
        for run_id in list(self._runs):
            self.leave(run_id)
        if self._leaving:
            await asyncio.wait(self._leaving)

    async def _send(self, run_id: str, own: _Own) -> None:
        dispatcher = await self._dispatcher()
        last = False
        while True:
            own.news.clear()
            rested = own.rested
            await dispatcher.run(until_idle=True, run_id=run_id)
            if own.news.is_set():
                continue
            pause = dispatcher.put_off - self._clock.monotonic()
            if pause > 0 and not last:
                last = rested  # a message with a link may have waited for a question that the run has only now asked
                await _either(own.news, pause + A_LITTLE_SECONDS)
            elif rested:
                return
            else:
                await own.news.wait()


async def _either(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


__all__ = ["Deliveries"]
