"""Failovers of PostgreSQL: a standby takes the server's place, at the same address.

The address is a folder of its own, with a link to the socket of whichever server has it. An asynchronous standby that has fallen behind loses
a tail: what was acknowledged after it was copied. A synchronous one has everything that was answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from holdfast import Context, Runtime, flow
from holdfast.core.effects import Absent, Happened
from holdfast.core.errors import HoldfastError, RunWaiting
from holdfast.testing.invariants import violations
from tests.postgres.server import Server

SOCKET = ".s.PGSQL.5432"
KEEPS = {"synchronous_commit": "on", "full_page_writes": "on", "max_wal_senders": "5"}
PATIENCE = 30.0
MOST = 5_000
LEFT_WITHIN = 5.0


class Address:
    """Where clients look for the server."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hf-at-", dir="/tmp"))
        self.url = f"postgresql:///holdfast?host={self.folder}&user=holdfast"

    def of(self, server: Server) -> None:
        link = self.folder / SOCKET
        link.unlink(missing_ok=True)
        link.symlink_to(server.folder / SOCKET)

    def nobody(self) -> None:
        (self.folder / SOCKET).unlink(missing_ok=True)


class Acts:
    """What was done outside, by name."""

    def __init__(self, done: list[str] | None = None) -> None:
        self.done: list[str] = [] if done is None else done
        self.begun: list[tuple[str, float]] = []
        self.enough = False

    async def act(self, what: str) -> str:
        self.begun.append((what, time.monotonic()))
        self.done.append(what)
        await asyncio.sleep(0.01)
        return what

    def happened(self, key: str, what: str) -> Happened | Absent:
        return Happened(what) if what in self.done else Absent()

    @property
    def twice(self) -> list[str]:
        return sorted({what for what in self.done if self.done.count(what) > 1})


def paying(acts: Acts, *, sure: bool) -> Any:
    """``sure``: what an act came to can be looked up, so that nobody is asked."""

    @flow("paying")
    async def paying(ctx: Context, name: str, times: int) -> str:
        """Acts again and again, until it is told that it is enough."""
        for k in range(times):
            if acts.enough:
                break
            await ctx.effect(acts.act, f"{name}.{k}", verify=acts.happened if sure else None)
        return name

    return paying


class Failover:
    """One failover under runs that two runtimes drive, and what came of it. ``how``: asynchronous, with a lost tail; synchronous; or demoted,
    where the old server stays up and takes no more writes."""

    def __init__(self, how: str, *, runs: int = 4) -> None:
        self.how = how
        self.synchronous = how != "asynchronous"
        self.wrong: list[str] = []
        self.lost: dict[str, str] = {}
        self.surfaced = 0
        self.back_after = 0.0
        self._acts = Acts()
        self._runs = runs

    async def go(self) -> Failover:
        address = Address()
        server = Server(settings=KEEPS).create()
        standby: Server | None = None
        try:
            address.of(server)
            skill = paying(self._acts, sure=self.synchronous)
            async with Runtime(address.url, skills=[skill], lease=2.0) as rt, Runtime(address.url, skills=[skill], lease=2.0) as other:
                runs = [(await rt.submit(skill, {"name": f"p{i}", "times": MOST})).run_id for i in range(self._runs)]
                async with working(rt, other):
                    await self._some(len(self._acts.done) + 3 * self._runs)
                    standby = await asyncio.to_thread(server.clone)
                    if self.synchronous:
                        await asyncio.to_thread(self._follow, server, standby)
                    late = (await rt.submit(skill, {"name": "late", "times": 3})).run_id  # its birth is in the tail
                    await self._each(3)
                    at = await self._fail_over(address, server, standby)
                    if self.synchronous:
                        await self._goes_on(rt, runs, at)
                    else:
                        await self._stands_still(rt, other, [*runs, late], at)
                await self._judge(rt, runs)
        finally:
            for s in (server, standby):
                if s is not None:
                    s.remove()
            shutil.rmtree(address.folder, ignore_errors=True)
        return self

    async def _some(self, acts: int) -> None:
        """Until so much was done outside."""
        until = time.monotonic() + PATIENCE
        while len(self._acts.done) < acts:
            if time.monotonic() > until:
                raise AssertionError("the workers do nothing")
            await asyncio.sleep(0.01)

    async def _each(self, acts: int) -> None:
        """Until so much more was done outside for each run: what each has committed last is in the tail."""
        names = [f"p{i}." for i in range(self._runs)]
        before = [self._of(name) for name in names]
        until = time.monotonic() + PATIENCE
        while any(self._of(name) < already + acts for name, already in zip(names, before, strict=True)):
            if time.monotonic() > until:
                raise AssertionError("a run does not go on")
            await asyncio.sleep(0.01)

    def _of(self, name: str) -> int:
        return sum(what.startswith(name) for what in self._acts.done)

    def _follow(self, server: Server, standby: Server) -> None:
        """The standby follows, and no commit is answered before it has it."""
        standby.start()
        with server.admin() as db:
            db.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            db.execute("SELECT pg_reload_conf()")
            until = time.monotonic() + PATIENCE
            while not db.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'").fetchone():
                if time.monotonic() > until:
                    raise AssertionError("the standby does not follow")
                time.sleep(0.02)

    async def _fail_over(self, address: Address, server: Server, standby: Server) -> float:
        if self.how == "demoted":
            with server.admin() as db:
                db.execute("ALTER SYSTEM SET default_transaction_read_only = on")
                db.execute("SELECT pg_reload_conf()")
        else:
            address.nobody()
            await asyncio.to_thread(server.stop, "immediate")
        if not self.synchronous:
            await asyncio.to_thread(standby.start)  # what it was copied with, and nothing after that
        await asyncio.to_thread(standby.promote)
        address.of(standby)
        return time.monotonic()

    async def _goes_on(self, rt: Runtime, runs: list[str], at: float) -> None:
        """Nothing that was answered is lost, and all go on by themselves."""
        await self._some(len(self._acts.done) + self._runs)
        self.back_after = time.monotonic() - at
        self._acts.enough = True
        if self.how == "demoted" and self.back_after > LEFT_WITHIN:
            self.wrong.append(f"a server that was demoted was left after {self.back_after:.1f} s")
        for run_id in runs:
            with contextlib.suppress(RunWaiting):  # an act was under way when the server went: a person is asked about it
                await rt.result(run_id, timeout=PATIENCE)
        if problems := [p for p in await rt.check() if p.severity == "error"]:
            self.wrong += [f"{p.code}: {p.message}" for p in problems]

    async def _stands_still(self, rt: Runtime, other: Runtime, runs: list[str], at: float) -> None:
        """Each run that lost commits is named, set aside, and stays so until a person resumes it."""
        until = time.monotonic() + PATIENCE
        waiting = set(runs[:-1])
        while waiting and time.monotonic() < until:
            for run_id in list(waiting):
                with contextlib.suppress(HoldfastError):
                    if (await rt.get(run_id)).condition == "interrupted":
                        waiting.discard(run_id)
            await asyncio.sleep(0.02)
        self.back_after = time.monotonic() - at
        self.wrong += [f"{run_id} lost commits and is not set aside: {(await rt.get(run_id)).condition}" for run_id in waiting]
        named = {p.run_id: p.message for r in (rt, other) for p in await r.store.verify() if p.code == "log_rolled_back"}  # type: ignore[attr-defined]
        self.lost = {str(r): about for r, about in named.items()}
        self.wrong += [f"{run_id} lost commits and is not named" for run_id in runs if run_id not in named]
        before = list(self._acts.done)
        fresh = await rt.submit("paying", {"name": f"fresh{time.monotonic_ns()}", "times": 2})
        await rt.result(fresh.run_id, timeout=PATIENCE)  # all others go on
        if [a for a in self._acts.done[len(before) :] if not a.startswith("fresh")]:
            self.wrong.append("a run that lost commits went on by itself")
        self._acts.enough = True
        for run_id in runs[:-1]:
            effects = {e.effect_id: str(e.status) for e in await rt.effects(run_id)}
            name = f"p{runs.index(run_id)}"
            missing = len({a for a in before if a.startswith(f"{name}.")}) - len(effects)
            if missing > 0:
                self.wrong.append(f"{missing} acts of {run_id} are on record no more")
            told = [e.payload["cause"] for e in await rt.events(run_id) if e.type == "run.interrupted"]
            self.surfaced += sum("side effects of its lost commits" in str(t) for t in told)
            try:
                await rt.resume(run_id, actor="ada")  # now it goes on, or asks about what nobody knows
            except HoldfastError as e:
                self.wrong.append(f"{run_id} lost commits and cannot be resumed: {e}; {[v.type for v in await rt.events(run_id)][-12:]}")

    async def _judge(self, rt: Runtime, runs: list[str]) -> None:
        self.wrong += [f"{what} was done twice" for what in self._acts.twice]
        self.wrong += [str(v) for v in await violations(rt.store)]


@contextlib.asynccontextmanager
async def working(*runtimes: Runtime) -> AsyncIterator[None]:
    """Their workers work meanwhile, and none of them may end."""
    workers = [asyncio.ensure_future(rt.worker(concurrency=4)) for rt in runtimes]
    try:
        yield
        for worker in workers:
            if worker.done():
                worker.result()
                raise AssertionError("a worker has ended")
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


__all__ = ["Acts", "Address", "Failover", "working"]
