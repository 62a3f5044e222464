"""Workers in trouble, on purpose: `python -m tests.workers.faults ROUND... [--store STORE] [--times N] [--budget MINUTES] [--seed N]`.

Real worker processes drive short runs whose acts a receiver outside counts. Meanwhile they are killed and frozen, their server crashes, their
connections are cut. In the end every run must have ended or say what it waits for, no act may have been done twice, no log may be broken, and
nothing may have failed for a reason of the house. Each round prints what was asked for, what was done of it and what was skipped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.authoring import flow
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import HoldfastError
from holdfast.core.lease import DEFAULT_TTL_US
from holdfast.engine.calls.context import Context
from holdfast.ports import Store
from holdfast.runtime import Runtime
from holdfast.stores import open_url
from holdfast.testing.chaos import LEASE, Chaos, Outside, Report, skills
from holdfast.testing.invariants import violations
from holdfast.testing.nursery import tend
from tests.postgres.proxy import Proxy
from tests.postgres.server import Server
from tests.workers.distress import Listeners, Partition
from tests.workers.failover import Failover

KEEPS = {"synchronous_commit": "on", "full_page_writes": "on"}  # what a server that crashes must have
PLACES = ("effect before", "effect after", "commit before", "commit after", "renewal before", "renewal after")
STORES = ("sqlite", "postgres")
NAP = 0.3


class Summary(msgspec.Struct):
    """What was asked of a round, and what came of it. ``wrong`` is empty where all holds."""

    name: str
    store: str
    asked: int
    done: int = 0
    seconds: float = 0.0
    measured: dict[str, Any] = {}
    wrong: list[str] = []

    def text(self) -> str:
        said = "".join(f", {k} {v}" for k, v in self.measured.items())
        head = f"{self.name} over {self.store}: {self.asked} asked, {self.done} done, {self.asked - self.done} skipped, {len(self.wrong)} violations, {self.seconds:.0f} s{said}"
        return "\n".join([head, *(f"WRONG {w}" for w in self.wrong[:50])])


class Asked(msgspec.Struct, frozen=True):
    """What a round is asked for. ``budget``: minutes after which no more trouble is made; ``slack``: seconds that a takeover or a wake-up may
    take beyond what must be waited for."""

    store: str
    times: int
    seed: int
    budget: float
    slack: float = 1.0


# -- what the workers run -----------------------------------------------------------------------------


class Order:
    """A place at which this process is told to stand still: it says that it does, and stops itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def look(self, place: str) -> None:
        order = self._folder / f"freeze-{os.getpid()}"
        if order.exists():
            with contextlib.suppress(FileNotFoundError):
                if order.read_text() == place:
                    order.unlink()
                    (self._folder / f"frozen-{os.getpid()}").write_text(place)
                    os.kill(os.getpid(), signal.SIGSTOP)


class Receiver(Outside):
    """The receiver: it notes besides when each act began, and by whom; a process may be stopped right before an act or after it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._order = Order(folder)
        self._when = folder / "when"

    def act(self, what: str) -> str:
        fd = os.open(self._when, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{what} {time.monotonic()} {os.getpid()}\n".encode())
        os.close(fd)
        self._order.look("effect before")
        done = super().act(what)
        self._order.look("effect after")
        return done

    def begun(self) -> list[tuple[str, float, int]]:
        lines = self._when.read_text().splitlines() if self._when.exists() else []
        return [(what, float(at), int(pid)) for what, at, pid in map(str.split, lines)]


class Stopping:
    """A store whose process may be stopped before a commit or a renewal, or when it has taken effect and nobody has been told."""

    def __init__(self, store: Store, order: Order) -> None:
        self._store = store
        self._order = order

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, commit: Commit) -> Tip:
        self._order.look("commit before")
        tip = await self._store.commit(commit)
        self._order.look("commit after")
        return tip

    async def renew(self, owner: str, ttl_us: int) -> int:
        self._order.look("renewal before")
        until = await self._store.renew(owner, ttl_us)
        self._order.look("renewal after")
        return until


@flow("timed")
async def timed(ctx: Context, name: str) -> str:
    """Sleeps twice."""
    for _ in range(2):
        await ctx.sleep(NAP)
    return name


async def work(url: str, folder: Path, lease: float) -> None:
    """A worker, as a process of its own. Its wall clock goes by a file."""
    offset, real = folder / f"clock-{os.getpid()}", time.time_ns

    def now() -> int:
        with contextlib.suppress(OSError, ValueError):
            return real() + int(offset.read_text()) * 1_000_000_000
        return real()

    time.time_ns = now
    store: Any = Stopping(open_url(url), Order(folder))
    async with Runtime(store, skills=[*skills(Receiver(folder)), timed], lease=lease) as rt:  # type: ignore[list-item]
        (folder / f"up-{os.getpid()}").touch()
        await rt.worker(concurrency=8)


# -- rounds over worker processes ---------------------------------------------------------------------


class Missed(HoldfastError):
    """Nobody came by where the trouble was laid: it was not done, and is laid again."""

    code = "missed"


class Round(Chaos):
    """Trouble for worker processes over one store. ``url`` is this process's way to it, ``theirs`` the workers'."""

    kinds_of_fault: Sequence[str]
    names = ("verified", "blind")
    lease = LEASE

    def __init__(self, folder: Path, asked: Asked, url: str, theirs: str | None = None) -> None:
        module = "tests.workers.faults"
        super().__init__(folder, runs=asked.times, faults=asked.times, seed=asked.seed, budget=asked.budget, url=url, kinds=self.kinds_of_fault, module=module)
        self.nursery.command = (sys.executable, "-m", module, "--nursery", theirs or url, str(folder), str(self.lease))
        self.receiver = Receiver(folder)
        self.measured: dict[str, Any] = {}

    async def _judge(self, rt: Runtime) -> None:
        await super()._judge(rt)
        self.report.wrong += [str(v) for v in await violations(rt.store)]
        self.report.wrong += [f"{p.code}: {p.message}" for p in await rt.check() if p.severity == "error"]

    def summary(self, name: str, store: str) -> Summary:
        report = self.report
        measured = {**self.measured, "runs": report.runs_done, "acts": report.acts, "asked people": report.asked_people, "ended": report.ended, "given up after ten lost owners": report.limited, "of each": report.faults_done}
        return Summary(name, store, report.faults, sum(report.faults_done.values()), report.seconds, measured, report.wrong)


class Clocks(Round):
    """Workers' clocks are ten minutes slow, or fast, or right, and jump in mid-run; the database's own clock stays."""

    kinds_of_fault = ("-600", "600", "0")
    names = ("timed", "timed", "verified", "blind")
    greedy_each = 0  # who holds the interpreter for three leases is late for all timers of its process, whatever the clocks say
    early = late = 1.0
    most_claims = 2.0  # of one run, for each of its rests
    stalled = 0.0
    """How late this process itself was woken, in seconds: a worker on the same machine can be no less late than that."""

    async def go(self) -> Report:
        watching = asyncio.ensure_future(self._watch())
        try:
            return await super().go()
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        while True:
            due = time.monotonic() + NAP
            await asyncio.sleep(NAP)
            self.stalled = max(self.stalled, time.monotonic() - due)

    def skills(self) -> list[object]:
        return [*super().skills(), timed]

    async def _befall(self, rt: Runtime, fault: str) -> None:
        worker = await self._victim(rt)
        (self.folder / f"clock-{worker.pid}").write_text(fault)

    async def _judge(self, rt: Runtime) -> None:
        await super()._judge(rt)
        naps: list[float] = []
        claims = 0.0
        for run_id in self.runs:
            run = await rt.get(run_id)
            if run.skill_id == "timed":
                events = await rt.events(run_id)
                at = {kind: [dt.datetime.fromisoformat(e.occurred_at).timestamp() for e in events if e.type == kind] for kind in ("wait.requested", "run.resumed", "run.claimed")}
                if len(at["run.resumed"]) != len(at["wait.requested"]):
                    self.report.wrong.append(f"{run_id} slept {len(at['wait.requested'])} times and woke {len(at['run.resumed'])} times")
                naps += [woken - asked for asked, woken in zip(at["wait.requested"], at["run.resumed"], strict=False)]
                claims = max(claims, len(at["run.claimed"]) / (len(at["wait.requested"]) + 1))
        latest, earliest = max((nap - NAP for nap in naps), default=0.0), max((NAP - nap for nap in naps), default=0.0)
        self.measured["timers off by at most, s"], self.measured["claims a rest, at most"] = round(max(latest, earliest), 2), claims
        if claims > self.most_claims:
            self.report.wrong.append(f"{claims} claims a rest")
        if latest > self.late + self.stalled or earliest > self.early:
            self.report.wrong.append(f"a timer was {max(latest, earliest):.2f} s off")


class ServerClock(Clocks):
    """The database's own clock jumps ten minutes, for a second, and back; the workers' clocks jump too. What was put to sleep while it was
    ahead wakes when ten minutes have passed."""

    kinds_of_fault = ("-600", "600", "server -600", "server 600")
    early = late = most_claims = float("inf")  # leases are compared with that clock too: where it jumps ahead they are over, and others claim

    def __init__(self, folder: Path, asked: Asked, server: Server) -> None:
        super().__init__(folder, asked, server.url)
        self._server = server
        self._turn = asyncio.Lock()

    async def _befall(self, rt: Runtime, fault: str) -> None:
        if not fault.startswith("server"):
            await super()._befall(rt, fault)
            return
        async with self._turn:
            with self._server.admin("holdfast") as db:
                for seconds in (fault.removeprefix("server "), "0"):
                    db.execute("UPDATE jumping.clock SET seconds = %s", (seconds,))
                    await asyncio.sleep(0.5 + self.dice.random())


    async def _settle(self, rt: Runtime) -> None:
        with self._server.admin("holdfast") as db:
            db.execute("UPDATE jumping.clock SET seconds = 601")
        await super()._settle(rt)


JUMPING = """
CREATE SCHEMA jumping;
CREATE TABLE jumping.clock (seconds float8 NOT NULL);
INSERT INTO jumping.clock VALUES (0);
CREATE FUNCTION jumping.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  'SELECT pg_catalog.clock_timestamp() + make_interval(secs => seconds) FROM jumping.clock';
GRANT USAGE ON SCHEMA jumping TO holdfast;
GRANT SELECT ON jumping.clock TO holdfast;
ALTER ROLE holdfast SET search_path = jumping, pg_catalog
"""


class Storm(Round):
    """Fifty workers begin at once over sixty connections, and again when the server has crashed; none of them may end."""

    kinds_of_fault = ("storm",)
    workers_wanted = 50
    lease = DEFAULT_TTL_US / 1_000_000  # as users have it: nobody dies here, and nobody waits for a lease to run out

    def __init__(self, folder: Path, asked: Asked, server: Server, workers: int = 50) -> None:
        super().__init__(folder, asked, server.url)
        self._server = server
        self.workers_wanted = workers
        self._worked: set[str] = set()

    async def _befall(self, rt: Runtime, fault: str) -> None:
        until = time.monotonic() + 120
        while len([w for w in self.workers if self._up(w)]) < self.workers_wanted:
            if time.monotonic() > until or any(w.gone.is_set() for w in self.workers):
                self.report.wrong.append(f"only {len([w for w in self.workers if self._up(w)])} workers came up")
                return
            await asyncio.sleep(0.05)
        self._server.crash()
        await asyncio.to_thread(self._server.start)
        runs = []
        for _ in range(2 * self.workers_wanted):
            name = f"verified{len(self.runs)}"
            runs.append((await rt.submit("verified", {"name": name}, key=name)).run_id)
            self.runs.append(runs[-1])
        for run_id in runs:
            await rt.result(run_id, timeout=120)
        self.report.wrong += [f"worker {w.pid} has ended" for w in self.workers if w.gone.is_set()]
        owners = {e.payload["owner"] for r in runs for e in await rt.events(r) if e.type == "run.claimed"}
        self.measured["workers up"], self.measured["that drove something"] = len(self.workers), len(owners)


class Kills(Round):
    """Workers are killed, stopped and killed, stopped beyond their leases and thawed."""

    kinds_of_fault = ("kill", "kill", "kill_twice", "stop_and_kill", "stop_and_thaw")


class Freezes(Round):
    """Workers stand still exactly at an effect, a commit or a renewal, until their lease is over and others have gone on."""

    kinds_of_fault = PLACES
    workers_wanted = 5

    async def _befall(self, rt: Runtime, fault: str) -> None:
        worker = await self._victim(rt)
        order, frozen = self.folder / f"freeze-{worker.pid}", self.folder / f"frozen-{worker.pid}"
        if order.exists() or frozen.exists():
            raise Missed("it has an order already")
        order.write_text(fault)
        until = time.monotonic() + 3
        while not frozen.exists():
            if worker.gone.is_set():
                raise Missed("it was gone before it came by")
            if time.monotonic() > until and order.exists():
                with contextlib.suppress(FileNotFoundError):  # it has read its order just now, and is about to stand still: it is waited for, or nobody would wake it
                    order.unlink()
                    raise Missed("it did not come by")
            await asyncio.sleep(0.005)
        self.struck.add(worker.pid)
        await asyncio.sleep(LEASE * (1.1 + self.dice.random() * 0.5))
        frozen.unlink(missing_ok=True)  # the round may have come to its end meanwhile, and its folder with it
        worker.send(signal.SIGKILL if self.dice.random() < 0.2 else signal.SIGCONT)


class Crashes(Round):
    """The server crashes under its workers, none of which is started anew; how soon the first commit follows is measured."""

    kinds_of_fault = ("crash",)
    workers_wanted = 4

    def __init__(self, folder: Path, asked: Asked, server: Server) -> None:
        super().__init__(folder, asked, server.url)
        self._server = server
        self._turn = asyncio.Lock()
        self._slowest = 0.0
        self._began: set[int] = set()

    def _committed(self) -> int:
        with self._server.admin("holdfast") as db:
            row = db.execute("SELECT coalesce(sum(n), 0)::bigint FROM (SELECT max(n) AS n FROM holdfast.log GROUP BY bucket, run) t").fetchone()
        assert row is not None
        return int(str(row[0]))

    async def _befall(self, rt: Runtime, fault: str) -> None:
        async with self._turn:
            await self._victim(rt)
            self._began |= {w.pid for w in self.workers}
            for _ in range(2):
                name = f"blind{len(self.runs)}"
                self.runs.append((await rt.submit("blind", {"name": name}, key=name)).run_id)
            await asyncio.sleep(self.dice.random() * 0.1)
            self._server.crash()
            await asyncio.to_thread(self._server.start)
            at, before = time.monotonic(), self._committed()
            name = f"blind{len(self.runs)}"  # there is something to commit, whatever had ended before
            self.runs.append((await rt.submit("blind", {"name": name}, key=name)).run_id)
            while self._committed() <= before + 1:
                if time.monotonic() - at > 20:
                    self.report.wrong.append("nothing was committed within 20 s of a crash")
                    return
                await asyncio.sleep(0.01)
            took = time.monotonic() - at
            self._slowest = max(self._slowest, took)
            if took > 3:
                self.report.wrong.append(f"the first commit came {took:.1f} s after the server was back")

    async def _judge(self, rt: Runtime) -> None:
        await super()._judge(rt)
        self.measured["slowest first commit, s"] = round(self._slowest, 2)
        if len(self._began) > self.workers_wanted:
            self.report.wrong.append(f"{len(self._began) - self.workers_wanted} workers had to be started anew")


class Cuts(Round):
    """Connections are cut: before the commit is forwarded, after it took effect, and while its backend waits for a lock."""

    kinds_of_fault = ("before", "after", "waiting")

    def __init__(self, folder: Path, asked: Asked, server: Server, proxy: Proxy) -> None:
        super().__init__(folder, asked, server.url, proxy.url)
        self._server = server
        self._proxy = proxy
        self._turn = asyncio.Lock()

    async def _befall(self, rt: Runtime, fault: str) -> None:
        async with self._turn:
            await self._victim(rt)
            for skill in ("blind", "verified", "verified") if fault == "waiting" else ("blind", "verified"):
                name = f"{skill}{len(self.runs)}"
                self.runs.append((await rt.submit(skill, {"name": name}, key=name)).run_id)
            if fault == "waiting":
                await asyncio.sleep(0.05)
                await self._waiting()
                return
            before = self._proxy.cuts
            self._proxy.cut(self.dice.choice((b"blind", b"verified")), after=fault == "after")
            until = time.monotonic() + 3
            while self._proxy.cuts == before:
                if time.monotonic() > until:
                    self._proxy.disarm()
                    raise Missed("no commit came by")
                await asyncio.sleep(0.002)

    async def _waiting(self) -> None:
        with self._server.admin("holdfast") as db, self._server.admin("holdfast") as look:
            found = db.execute("SELECT run_id FROM holdfast.run WHERE owner IS NOT NULL ORDER BY random() LIMIT 1").fetchone()
            if found is None:
                raise Missed("nothing is driven")
            with db.transaction():
                if db.execute("SELECT 1 FROM holdfast.run WHERE run_id = %s FOR UPDATE SKIP LOCKED", found).fetchone() is None:
                    raise Missed("it is being written")
                until = time.monotonic() + 0.5
                waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND usename = 'holdfast' LIMIT 1"
                while (held := look.execute(waiting).fetchone()) is None or not self._proxy.cut_backend(int(str(held[0]))):
                    if time.monotonic() > until:
                        raise Missed("nobody waits for it")
                    await asyncio.sleep(0.002)
                await asyncio.sleep(self.dice.random() * 0.3)  # the backend still waits; it commits when it is let


@contextlib.contextmanager
def a_server(**settings: str) -> Iterator[Server]:
    server = Server(settings={**KEEPS, **settings}).create()
    try:
        yield server
    finally:
        server.remove()


async def over_processes(name: str, make: Callable[[Path, Asked, str], Round], asked: Asked) -> Summary:
    with tempfile.TemporaryDirectory(prefix="holdfast-workers-") as folder, contextlib.ExitStack() as stack:
        url = f"sqlite:///{folder}/runs.db" if asked.store == "sqlite" else stack.enter_context(a_server()).url
        round_ = make(Path(folder), asked, url)
        await round_.go()
        return round_.summary(name, asked.store)


async def kills(asked: Asked) -> Summary:
    """Workers killed with -9, or stopped beyond their lease and killed or thawed. (1,000 over each store: some 10 minutes each.)"""
    return await over_processes("kills", Kills, asked)


async def freezes(asked: Asked) -> Summary:
    """Workers stopped exactly at an effect, a commit, a renewal, before it and after it. (600 over each store: some 10 minutes each.)"""
    return await over_processes("freezes", Freezes, asked)


async def crashes(asked: Asked) -> Summary:
    """PostgreSQL ended at once (`immediate`) under four workers. (500: some 15 minutes.)"""
    with tempfile.TemporaryDirectory(prefix="holdfast-workers-") as folder, a_server() as server:
        round_ = Crashes(Path(folder), asked, server)
        await round_.go()
        return round_.summary("crashes", "postgres")


async def cuts(asked: Asked) -> Summary:
    """Connections to PostgreSQL cut before a commit, after it, and while its backend waits for a lock. (1,000: some 10 minutes.)"""
    with tempfile.TemporaryDirectory(prefix="holdfast-workers-") as folder, a_server() as server:
        async with Proxy(server.folder) as proxy:
            round_ = Cuts(Path(folder), asked, server, proxy)
            await round_.go()
            return round_.summary("cuts", "postgres")


async def _fail_over(how: str, asked: Asked) -> Summary:
    summary, until, began = Summary(f"failover {how}", "postgres", asked.times), time.monotonic() + asked.budget * 60, time.monotonic()
    slowest, named, surfaced = 0.0, 0, 0
    while summary.done < asked.times and time.monotonic() < until:
        found = await Failover(how).go()
        summary.done += 1
        summary.wrong += found.wrong
        slowest, named, surfaced = max(slowest, found.back_after), named + len(found.lost), surfaced + found.surfaced
    summary.measured = {"runs named": named, "of them with acts put on record again": surfaced, "slowest until all was well, s": round(slowest, 2)}
    summary.seconds = time.monotonic() - began
    return summary


async def promotions(asked: Asked) -> Summary:
    """An asynchronous standby that had fallen behind takes the server's place: what is lost is named, set aside, never done again. (50: some 10 minutes.)"""
    return await _fail_over("asynchronous", asked)


async def synchronous(asked: Asked) -> Summary:
    """A synchronous standby takes the server's place: nothing that was answered is lost. (50: some 10 minutes.)"""
    return await _fail_over("synchronous", asked)


async def demotions(asked: Asked) -> Summary:
    """A server that takes no more writes, but stays up, is left within 5 s for the one in its place. (10: some 2 minutes.)"""
    return await _fail_over("demoted", asked)


async def clocks(asked: Asked) -> Summary:
    """Workers whose clocks are ten minutes slow and fast, and jump in mid-run. (300 over each store: some 3 minutes each.)"""
    return await over_processes("clocks", Clocks, asked)


async def server_clock(asked: Asked) -> Summary:
    """The database's own clock jumps ten minutes either way, for a second or so, and back. (100: some 4 minutes.)"""
    with tempfile.TemporaryDirectory(prefix="holdfast-workers-") as folder, a_server() as server:
        with server.admin("holdfast") as db:
            db.execute(JUMPING)
        round_ = ServerClock(Path(folder), asked, server)
        await round_.go()
        return round_.summary("server clock", "postgres")


async def storms(asked: Asked) -> Summary:
    """Fifty workers at once over sixty connections, and again after a crash. (5: some 5 minutes.)"""
    summary, began, until = Summary("storms", "postgres", asked.times), time.monotonic(), time.monotonic() + asked.budget * 60
    while summary.done < asked.times and time.monotonic() < until:
        with tempfile.TemporaryDirectory(prefix="holdfast-workers-") as folder, a_server(max_connections="60") as server:
            round_ = Storm(Path(folder), msgspec.structs.replace(asked, times=1), server)
            await round_.go()
            summary.done += 1
            summary.wrong += round_.report.wrong
            summary.measured = round_.measured
    summary.seconds = time.monotonic() - began
    return summary


async def partitions(asked: Asked) -> Summary:
    """A worker's connections forward nothing for three leases: no effect after 60 % of one, takeover within one and a second. (50: some 8 minutes.)"""
    summary, began, until = Summary("partitions", "postgres", asked.times), time.monotonic(), time.monotonic() + asked.budget * 60
    slowest = latest = 0.0
    with a_server() as server:
        while summary.done < asked.times and time.monotonic() < until:
            found = await Partition(server, slack=asked.slack).go()
            summary.done += 1
            summary.wrong += found.wrong
            slowest, latest = max(slowest, found.taken_after), max(latest, found.last_act)
    summary.measured = {"lease, s": 2.0, "last act after, s": round(latest, 2), "taken over after, s": round(slowest, 2)}
    summary.seconds = time.monotonic() - began
    return summary


async def listeners(asked: Asked) -> Summary:
    """An idle worker whose listener is killed before each run, and one without any: submitted to ended within a second. (50: a minute.)"""
    began = time.monotonic()
    with a_server() as server:
        found = await Listeners(server, slack=asked.slack).go(asked.times)
    return Summary("listeners", "postgres", asked.times, asked.times, time.monotonic() - began, {"slowest, s": round(found.slowest, 3)}, found.wrong)


ROUNDS: dict[str, tuple[Callable[[Asked], Awaitable[Summary]], int, tuple[str, ...]]] = {
    "kills": (kills, 1000, STORES),
    "freezes": (freezes, 600, STORES),
    "crashes": (crashes, 500, ("postgres",)),
    "cuts": (cuts, 1000, ("postgres",)),
    "promotions": (promotions, 50, ("postgres",)),
    "synchronous": (synchronous, 50, ("postgres",)),
    "demotions": (demotions, 10, ("postgres",)),
    "partitions": (partitions, 50, ("postgres",)),
    "listeners": (listeners, 50, ("postgres",)),
    "clocks": (clocks, 300, STORES),
    "server-clock": (server_clock, 100, ("postgres",)),
    "storms": (storms, 5, ("postgres",)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    rounds = "\n".join(f"  {name}: {round_.__doc__}" for name, (round_, _, _) in ROUNDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.workers.faults", description=f"{(__doc__ or '').splitlines()[0]}\n\n{rounds}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("round", nargs="*", help="which rounds; all of them by default")
    parser.add_argument("--store", choices=STORES, action="append", help="over which store; over each by default")
    parser.add_argument("--times", type=int, help="how often the trouble is made; by default as often as the issue asks")
    parser.add_argument("--seed", type=int, default=int(dt.datetime.now(dt.UTC).timestamp()), help="the draw; printed")
    parser.add_argument("--budget", type=float, default=20.0, metavar="MINUTES", help="for each round and store, after which no more trouble is made (20)")
    parser.add_argument("--nursery", nargs=3, metavar=("URL", "FOLDER", "LEASE"), help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.nursery:
        url, folder, lease = asked.nursery
        tend(lambda: asyncio.run(work(url, Path(folder), float(lease))))
        return 0
    if unknown := set(asked.round) - ROUNDS.keys():
        parser.error(f"no round {', '.join(sorted(unknown))}: there are {', '.join(ROUNDS)}")
    wrong = 0
    print(f"seed {asked.seed}", flush=True)
    for name in asked.round or ROUNDS:
        round_, usual, stores = ROUNDS[name]
        for store in stores:
            if store in (asked.store or stores):
                summary = asyncio.run(round_(Asked(store, asked.times or usual, asked.seed, asked.budget)))
                print(summary.text(), flush=True)
                wrong += len(summary.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

__all__ = ["ROUNDS", "Asked", "Summary", "main"]
