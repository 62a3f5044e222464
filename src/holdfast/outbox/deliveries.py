"""Sends a run's own intents while ``invoke``, ``run`` and their kin drive it (§4.18).

Nothing is begun, and nothing looked up, for a run that sends nothing. What cannot be sent yet is left to a dispatcher.
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
    """One run's sendings. ``news``: there may be more to send, or the run has come to its rest."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.rested = False
        self.task: asyncio.Task[None] | None = None


class Deliveries:
    """The sendings of the runs that are driven here. ``dispatcher`` makes one, once its owner is known to the store."""

    def __init__(self, clock: Clock, dispatcher: Callable[[], Awaitable[Dispatcher]]) -> None:
        self._clock = clock
        self._dispatcher = dispatcher
        self._runs: dict[str, _Own] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    def post(self, run_id: str) -> None:
        """A run that is driven here may have intents to send: a commit of it has some, or one from before."""
        own = self._runs.get(run_id)
        if own is None:
            own = self._runs[run_id] = _Own()
        own.news.set()
        if own.task is None:
            own.task = asyncio.ensure_future(self._send(run_id, own))
            own.task.add_done_callback(note_error)  # a run that is left does not wait for it

    async def deliver(self, run_id: str) -> None:
        """The run rests: what it has to be sent is sent, as far as that can be done now."""
        own = self._runs[run_id]
        if own.task is None:
            return
        own.rested = True
        own.news.set()
        try:
            await asyncio.shield(own.task)
        except StoreError as e:  # the run rests, and its intents are on record: whoever dispatches next goes on with them
            log.warning("the intents of %s are left to a dispatcher: %s", run_id, e.line())

    def leave(self, run_id: str) -> None:
        """The run is not driven here any more; a sending that is under way is cut off, and kept as such."""
        own = self._runs.pop(run_id, None)
        if own is not None and own.task is not None and not own.task.done():
            own.task.cancel()
            self._leaving.add(own.task)
            own.task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        """Waits for what was cut off to be kept."""
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
                last = rested  # the question that a link waits for may be asked only now
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
