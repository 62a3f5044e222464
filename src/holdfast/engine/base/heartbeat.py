"""Renewal of a worker's lease in its own thread, off the event loop's busy path (§10.3, §10.4).

One row per worker holds the expiry, so one update renews all its runs. A worker judges its lease by a clock that goes
on while the machine sleeps, and begins nothing later than 60 % of the TTL after its last confirmed renewal.
"""

from __future__ import annotations

import asyncio
import threading

from holdfast.core.errors import LeaseLost, StoreClosed
from holdfast.core.lease import SAFE_PART
from holdfast.engine.base.failures import ControlFlow
from holdfast.ports import Clock, Store

AGAIN_SECONDS = 1.0  # a renewal that failed is tried again so soon


class Heartbeat:
    """Renews until stopped. ``failed`` holds the error that ended it, so that nothing goes on half-dead (X-14)."""

    def __init__(self, store: Store, clock: Clock, owner: str, ttl_us: int) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._usual_us = ttl_us
        self._times: dict[str, int] = {}
        self._stop = threading.Event()
        self._turn = threading.Condition()
        self._hurried = False
        self._beats = 0
        self._safe_until = self._since(clock.monotonic())
        self._thread: threading.Thread | None = None
        self._held_by: str | None = None
        self.failed: BaseException | None = None

    @property
    def ttl(self) -> float:
        """Seconds for which a lease lasts from its last renewal on."""
        return self._ttl_us / 1_000_000

    def lapse(self, why: str | None) -> None:
        """Lets the leases run out, for what holds the loop cannot be ended and others are to go on; None ends that."""
        self._held_by = why

    def start(self) -> None:
        self._safe_until = self._since(self._clock.monotonic())
        self._thread = threading.Thread(target=self._work, name="holdfast-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        with self._turn:
            self._turn.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def safe(self) -> bool:
        """Whether something new may begin under the lease."""
        return self._clock.monotonic() < self._safe_until

    def confirm(self) -> bool:
        """Whether something new may begin, asked by a thread: has the lease renewed out of turn before it says no."""
        if self.safe() or self._thread is None:
            return self.safe()
        with self._turn:
            before, self._hurried = self._beats, True
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._beats > before or self._stop.is_set(), self._usual_us / 3_000_000)
        return self.safe()

    def lengthen(self, run_id: str, times: int) -> bool:
        """Makes the lease so many times as long from the next renewal on, while that run is driven; 1 ends that. Whether anything changed.

        A run whose code keeps the interpreter for longer than a lease would go from one late owner to the next for ever (§10.6).
        """
        if times == 1 and run_id not in self._times:
            return False
        before = self._ttl_us
        self._times = {r: t for r, t in self._times.items() if r != run_id} | ({run_id: times} if times > 1 else {})
        return self._ttl_us != before

    @property
    def _ttl_us(self) -> int:
        return self._usual_us * max(self._times.values(), default=1)

    @property
    def _pause(self) -> float:
        """Seconds to the next renewal: a third of the lease, and at most one after a renewal that failed."""
        third: float = self._usual_us / 3_000_000
        return third if self.failed is None else min(third, AGAIN_SECONDS)

    def _since(self, confirmed: float) -> float:
        """Until when something may begin after a renewal that was confirmed then (§10.3)."""
        return confirmed + self._usual_us * SAFE_PART / 1_000_000

    async def beat(self) -> bool:
        """One renewal; False once the owner is no longer known, so that renewing is pointless."""
        asked, ttl_us = self._clock.monotonic(), self._ttl_us
        try:
            known = await self._store.renew(self._owner, ttl_us)
        except StoreClosed as e:  # nobody will renew anything there
            self.failed = e
            return False
        except Exception as e:  # a renewal that fails is tried again; `safe` runs out by itself if none succeeds
            self.failed = e
            return True
        if not known:
            self.failed = LeaseLost(f"{self._owner} is no longer known as a worker", hint="other workers take its runs over; open the store again")
            return False
        self.failed = None
        self._safe_until = asked + ttl_us * SAFE_PART / 1_000_000
        return True

    def _work(self) -> None:
        loop = asyncio.new_event_loop()
        try:
            while True:
                with self._turn:
                    self._turn.wait_for(lambda: self._hurried or self._stop.is_set(), self._pause)
                    self._hurried = False
                if self._stop.is_set() or (self._held_by is None and not loop.run_until_complete(self.beat())):
                    return
                with self._turn:
                    self._beats += 1
                    self._turn.notify_all()
        except ControlFlow:
            pass  # the store of a simulated process that has been killed: its threads are gone with it
        finally:
            loop.close()
