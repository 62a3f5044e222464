"""Workers cut off from their database, clocks that are wrong, and listeners that hear nothing."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from holdfast import Context, Runtime, flow
from holdfast.core.effects import MAY_LIVE
from holdfast.core.errors import RunWaiting
from holdfast.ports import RunFilter
from holdfast.testing.invariants import violations
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server
from tests.workers.failover import MOST, Acts, paying, working

SAFE_PART = 0.6  # of a lease, after which no effect begins
PATIENCE = 30.0


class Partition:
    """A worker's connections forward nothing for three leases, in either direction, while another worker can reach the database."""

    def __init__(self, server: Server, *, lease: float = 2.0, slack: float = 1.0) -> None:
        self._server = server
        self._lease = lease
        self._slack = slack
        self.wrong: list[str] = []
        self.taken_after = 0.0
        self.last_act = 0.0

    async def go(self) -> Partition:
        url, done = self._server.fresh(), list[str]()
        mine, theirs = Acts(done), Acts(done)
        near, far = paying(mine, sure=True), paying(theirs, sure=True)
        async with Proxy(self._server.folder) as proxy:
            async with Runtime(proxy.url, skills=[near], lease=self._lease) as rt, Runtime(url, skills=[far], lease=self._lease) as other:
                runs = [(await other.submit(far, {"name": f"p{i}", "times": MOST})).run_id for i in range(4)]
                async with working(rt):
                    await self._until(lambda: len(set(done)) >= 8, "nothing is done")
                    async with working(other):
                        proxy.stall()
                        at = time.monotonic()
                        try:
                            await self._taken(other, runs, at)
                            await asyncio.sleep(max(0.0, at + 3 * self._lease - time.monotonic()))
                        finally:
                            proxy.heal()
                        self.last_act = max((when - at for _, when in mine.begun), default=0.0)
                        if self.last_act > SAFE_PART * self._lease:
                            self.wrong.append(f"an effect began {self.last_act:.2f} s after the partition, with a lease of {self._lease} s")
                        await self._until(lambda: rt.store.now() > 0 and len(done) > 0, "it does not come back")
                        mine.enough = theirs.enough = True
                        for run_id in runs:
                            await self._ended(other, run_id)
                await self._judge(other, runs, mine)
        return self

    async def _ended(self, other: Runtime, run_id: str) -> None:
        """It ends. It may ask about one thing: an attempt that had not acted when its worker was cut off, which may live still (§6.5)."""
        while True:
            try:
                await other.result(run_id, timeout=PATIENCE)
            except RunWaiting as e:
                (wait,) = (await other.get(run_id)).waits
                if wait.show["reason"] != MAY_LIVE:
                    self.wrong.append(f"{run_id} asks, though it can look: {e.message}")
                    return
                await other.decide(run_id, "reexecute", actor="ada", feedback="it was cut off before it acted", force=True, resume=False)
            else:
                return

    async def _until(self, holds: Any, otherwise: str) -> None:
        until = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > until:
                raise AssertionError(otherwise)
            await asyncio.sleep(0.01)

    async def _taken(self, other: Runtime, runs: list[str], at: float) -> None:
        """Every run is the other worker's within a lease and a second."""
        while True:
            held = {run.run_id for run, _ in await other.store.runs(RunFilter(owner=other.owner))} | {w.run_id for w in await other.waits()}
            self.taken_after = time.monotonic() - at
            if held >= set(runs):
                break
            if self.taken_after > PATIENCE:
                raise AssertionError("nobody takes the runs over")
            await asyncio.sleep(0.02)
        if self.taken_after > self._lease + self._slack:
            self.wrong.append(f"the runs were taken over after {self.taken_after:.2f} s, with a lease of {self._lease} s")

    async def _judge(self, other: Runtime, runs: list[str], mine: Acts) -> None:
        self.wrong += [f"{what} was done twice" for what in mine.twice]
        self.wrong += [str(v) for v in await violations(other.store)]


class Listeners:
    """An idle worker without a single notification: its listener is killed before each run, or there is none."""

    def __init__(self, server: Server, *, slack: float = 1.0) -> None:
        self._server = server
        self._slack = slack
        self.wrong: list[str] = []
        self.slowest = 0.0

    async def go(self, times: int) -> Listeners:
        @flow("nothing")
        async def nothing(ctx: Context, n: int) -> int:
            return n

        for listen, url in (("killed", self._server.fresh()), ("none", self._server.url + "&listen=")):
            async with Runtime(url, skills=[nothing]) as rt, Runtime(url, skills=[nothing]) as asking, working(rt):
                for n in range(times):
                    if listen == "killed":
                        with self._server.admin("holdfast") as db:
                            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND usename = 'holdfast'")
                    at = time.monotonic()
                    run = await asking.submit(nothing, {"n": n})
                    await asking.result(run.run_id, timeout=PATIENCE)
                    self.slowest = max(self.slowest, time.monotonic() - at)
        if self.slowest > self._slack:
            self.wrong.append(f"a run was claimed and ended {self.slowest:.2f} s after it was submitted")
        return self


__all__ = ["Listeners", "Partition"]
