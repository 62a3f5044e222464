"""A store under pressure: `python -m tests.workers.pressure ROUND... [--store STORE] [--minutes N] [--rows N] [--samples N] [--budget MINUTES] [--seed N]`.

A snapshot that is held for long, a million ended runs that are pruned, a hundred thousand runs of one tenant, ten thousand behind one lane: how
much slower everybody else gets by it. What is compared is measured in the same minutes, in turns: a store under pressure and one that is not,
on the same server or disk, each with a worker process of its own. Each round prints what was asked for, what was done of it and what was skipped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime as dt
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec
import psycopg

from holdfast import Runtime
from holdfast.core.errors import RunWaiting
from holdfast.stores.batches import Batch
from holdfast.stores.sqlite import keeping
from tests.postgres.server import Server
from tests.workers.copies import ended_runs, ended_runs_in_file
from tests.workers.faults import STORES, Summary, a_server
from tests.workers.load import Crew, Load, Pace, skills

LASTING = {"fsync": "on", "autovacuum": "on", "shared_buffers": "256MB", "max_wal_size": "4GB"}
HALF, TWICE, LITTLE_MORE = 0.5, 2.0, 1.3
LONGEST_BATCH = 1.0
PATIENCE = 120.0


class Asked(msgspec.Struct, frozen=True):
    """What a round is asked for. ``minutes``: how long a snapshot is held; ``fed``: how many short runs are queued meanwhile, of so many ``tenants`` and
    ``priorities``; ``rows``: how many runs there are in the way; ``samples``: how many
    runs are timed; ``window``, ``turns``: seconds for which a pace is measured, and how often; ``timed``: whether what was measured is judged; ``budget``: minutes
    after which no more is begun."""

    store: str
    minutes: float = 10.0
    rows: int = 0
    samples: int = 1000
    window: float = 5.0
    turns: int = 6
    seed: int = 1
    timed: bool = True
    budget: float = 60.0
    fed: int = 50
    tenants: int = 1
    priorities: int = 1


def p99(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


@contextlib.contextmanager
def two_stores(store: str) -> Iterator[tuple[str, str, Server | None]]:
    """The URLs of a store and of another one beside it, on the same server or the same disk."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="holdfast-pressure-") as folder:
            yield f"sqlite:///{folder}/pressed.db", f"sqlite:///{folder}/calm.db", None
    else:
        with a_server(**LASTING) as server:
            yield server.url, server.fresh("calm"), server


# -- a snapshot that is held ----------------------------------------------------------------------------


class Rates(msgspec.Struct):
    """Steps and claims a second, of several windows."""

    steps: list[float] = []
    claims: list[float] = []

    def take(self, steps: float, claims: float) -> None:
        self.steps.append(steps)
        self.claims.append(claims)


async def _in_turns(crews: Sequence[Crew], window: float, times: int) -> list[Rates]:
    """The pace of each, in windows that take turns: what else the machine does befalls both."""
    found = [Rates() for _ in crews]
    for _ in range(times):
        for crew, rates in zip(crews, found, strict=True):
            told = await crew.over(window)
            rates.take(told.steps / window, told.claims / window)
    return found


async def snapshot(asked: Asked) -> Summary:
    """A REPEATABLE READ snapshot held while workers step and claim: both at least half as fast as before. (10 minutes: some 14.)

    Beside it, on the same server, stands a database whose rows no snapshot holds: it tells how fast the machine is in the same minute.
    """
    began = time.monotonic()
    summary, claimed, stepped = Summary("snapshot", "postgres", round(asked.minutes * 60)), 0, 0
    with two_stores("postgres") as (held_url, calm_url, server):
        assert server is not None
        driven = {"steady": 4, "fed": asked.fed, "tenants": asked.tenants, "priorities": asked.priorities}
        async with Crew(Load(held_url, **driven)) as held, Crew(Load(calm_url, **driven)) as calm:
            await _in_turns((held, calm), asked.window, 1)  # plans are made, pages are read
            before = await _in_turns((held, calm), asked.window, asked.turns)
            with psycopg.connect(server.dsn("holdfast", "postgres")) as db:
                db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
                db.execute("SELECT count(*) FROM holdfast.run")
                since, last = time.monotonic(), 2 * asked.turns * (asked.window + 1)
                await held.say("go")
                while (left := asked.minutes * 60 - last - (time.monotonic() - since)) > 0 or not stepped:
                    await asyncio.sleep(min(max(left, asked.window), 30.0))
                    told = await held.say("tell")
                    claimed, stepped = claimed + told.claims, stepped + told.steps
                await held.say("hold")
                under = await _in_turns((held, calm), asked.window, asked.turns)
                summary.done = round(time.monotonic() - since)
                summary.measured |= {"steps under it": stepped, "claimed under it": claimed}
    for name in ("steps", "claims") if asked.fed else ("steps",):
        was, beside_then, now, beside_now = (statistics.median(getattr(r, name)) for r in (*before, *under))
        raw = now / was if was else 0.0
        part = raw * beside_then / beside_now if beside_now else raw
        summary.measured |= {
            f"{name}/s": f"{was:.0f}, under it {now:.0f}; beside it {beside_then:.0f}, then {beside_now:.0f}",
            f"part of the {name}/s before": round(raw, 2), f"of the {name}/s beside it": round(part, 2),
        }
        if asked.timed and part < HALF:
            summary.wrong.append(f"{name}/s fell to {part:.2f} of before")
    summary.seconds = time.monotonic() - began
    return summary


# -- a million ended runs that are pruned ---------------------------------------------------------------


class Watch:
    """How long the transactions of a role last, looked at fifty times a second."""

    def __init__(self, server: Server, role: str) -> None:
        self._server = server
        self._role = role
        self._over = threading.Event()
        self.longest = 0.0
        self.doing = ""

    def __enter__(self) -> Watch:
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        look = """SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8, left(query, 80) FROM pg_stat_activity
          WHERE usename = %s AND xact_start IS NOT NULL ORDER BY xact_start LIMIT 1"""
        with self._server.admin() as db:
            while not self._over.wait(0.02):
                for age, query in db.execute(look, (self._role,)):
                    if float(str(age)) > self.longest:
                        self.longest, self.doing = float(str(age)), str(query)


async def _steps(crew: Crew, seconds: float) -> list[float]:
    """How long each step took for so many seconds, or for longer where none has ended by then."""
    await crew.say("tell")
    waits: list[float] = []
    while not waits:
        await asyncio.sleep(seconds)
        waits = (await crew.say("tell")).waits
    return waits


class Old(msgspec.Struct):
    """A store with so many ended runs, and what a prune there is opened and watched by."""

    url: str
    made: int
    pruner: str
    watch: Any


class Batches:
    """How long the transactions of prunes over SQLite stand in the way of others, in this process."""

    longest = 0.0
    doing = ""

    def __enter__(self) -> Batches:
        self._before = keeping.prune_in_batches

        async def watched(start: Any, find: Any, take: Callable[[Sequence[str]], Awaitable[Batch]], *, rest: float) -> Any:
            async def timed(roots: Sequence[str]) -> Batch:
                batch = await take(roots)
                if batch.took > self.longest:
                    self.longest, self.doing = batch.took, f"{len(batch.pruned.run_ids)} runs"
                return batch

            return await self._before(start, find, timed, rest=rest)

        keeping.prune_in_batches = watched
        return self

    def __exit__(self, *_: object) -> None:
        keeping.prune_in_batches = self._before


@contextlib.asynccontextmanager
async def _old_store(asked: Asked) -> AsyncIterator[Old]:
    tenths = 10 if asked.rows > 1000 else 1
    if asked.store == "sqlite":
        with tempfile.TemporaryDirectory(prefix="holdfast-pressure-") as folder:
            made = await ended_runs_in_file(f"{folder}/old.db", asked.rows, asked.seed, tenths)
            yield Old(f"sqlite:///{folder}/old.db", made, f"sqlite:///{folder}/old.db", Batches())
    else:
        with a_server(**LASTING) as server:
            made = await ended_runs(server, asked.rows, asked.seed, tenths)
            with server.admin("holdfast") as db:
                db.execute("CREATE ROLE pruner LOGIN IN ROLE holdfast")
            yield Old(server.url, made, server.url.replace("user=holdfast", "user=pruner"), Watch(server, "pruner"))


async def pruning(asked: Asked) -> Summary:
    """A million ended runs, copied from a hundred real ones, pruned while 100 run: p99 of a step at most twice, batches at most 1 s. (Over each store: some 20 minutes.)"""
    began = time.monotonic()
    summary = Summary("pruning", asked.store, asked.rows)
    async with _old_store(asked) as old:
        made, watch = old.made, old.watch
        summary.measured["made in, s"] = round(time.monotonic() - began)
        async with Crew(Load(old.url, steady=100, pause=0.1)) as crew:
            await crew.say("go")
            await _steps(crew, 2 * asked.window)
            before = await _steps(crew, 6 * asked.window)
            at = time.monotonic()
            with watch:
                async with Runtime(old.pruner) as rt:
                    pruned = await rt.prune(dt.timedelta(0))
            took = time.monotonic() - at
            during = (await crew.say("tell")).waits
            after = await _steps(crew, 6 * asked.window)
        summary.done = len(pruned.run_ids)
        async with Runtime(old.url) as rt:
            left = await rt.runs(limit=500)
            summary.wrong += [f"{p.code}: {p.message}" for p in await rt.check() if p.severity == "error"]
    if summary.done != made or len(left) != 100:
        summary.wrong.append(f"of {made} ended runs {summary.done} are gone, and {len(left)} are left, of which 100 run")
    calm = min(p99(before), p99(after))
    summary.measured |= {
        "runs pruned a second": round(summary.done / took), "longest batch, s": round(watch.longest, 2), "doing": watch.doing,
        "steps/s before": round(len(before) / (6 * asked.window)), "steps while it pruned": len(during), "a second": round(len(during) / took), "p99 of a step before, ms": ms(p99(before)), "meanwhile": ms(p99(during)), "after": ms(p99(after)),
        "times": round(p99(during) / calm, 2),
    }
    if asked.timed and p99(during) > TWICE * calm:
        summary.wrong.append(f"p99 of a step is {p99(during) / calm:.2f} times that without")
    if asked.timed and watch.longest > LONGEST_BATCH:
        summary.wrong.append(f"a batch took {watch.longest:.2f} s: {watch.doing}")
    summary.seconds = time.monotonic() - began
    return summary


# -- a crowd in the way of others -----------------------------------------------------------------------

_, BRIEF, HELD = skills(Pace())


async def _submit(rt: Runtime, skill: Any, given: dict[str, Any], count: int, until: float = float("inf"), **options: Any) -> int:
    """Submits so many runs, as far as there is time; gives how many."""
    done = 0
    while done < count and time.monotonic() < until:
        some = min(500, count - done)
        await asyncio.gather(*(rt.submit(skill, given, **options) for _ in range(some)))
        done += some
    return done


async def _timed(rt: Runtime) -> float:
    """How long a run of somebody else takes, from its submission to its end."""
    at = time.monotonic()
    run = await rt.submit(BRIEF, {"pause": 0.0}, tenant_id="small")
    await rt.result(run.run_id, timeout=PATIENCE)
    return time.monotonic() - at


async def _compare(pressed: Runtime, calm: Runtime, samples: int, until: float) -> tuple[list[float], list[float]]:
    """How long runs take in either store, one here and one there."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(min(20, samples)):
        await _timed(pressed), await _timed(calm)
    while len(found[0]) < samples and time.monotonic() < until:
        found[0].append(await _timed(pressed))
        found[1].append(await _timed(calm))
    return found


def _judge(summary: Summary, asked: Asked, what: str, found: tuple[list[float], list[float]]) -> None:
    pressed, calm = found
    ratio = p99(pressed) / p99(calm)
    summary.measured |= {
        f"{what}: p50, ms": f"{ms(statistics.median(pressed))} against {ms(statistics.median(calm))}", f"{what}: p99, ms": f"{ms(p99(pressed))} against {ms(p99(calm))}",
        f"{what}: times": round(ratio, 2),
    }
    if asked.timed and ratio > LITTLE_MORE:
        summary.wrong.append(f"{what}: p99 is {ratio:.2f} times that without")


@contextlib.asynccontextmanager
async def _working(*loads: Load) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for load in loads:
            await (await stack.enter_async_context(Crew(load))).say("go")
        yield


async def _fed(rt: Runtime, most: int, pause: float) -> None:
    """Keeps so many runs of the large tenant queued, beside which the others of its store are measured."""
    while True:
        depth = sum(q.depth for q in await rt.queues())
        await _submit(rt, BRIEF, {"pause": pause}, max(0, min(50, most - depth)), tenant_id="large")
        await asyncio.sleep(0.1)


async def tenant(asked: Asked) -> Summary:
    """A tenant with 100,000 queued runs: another tenant's p99 at most 1.3 times that beside a tenant with a hundred. (Over each store: some 10 minutes.)

    Once while workers do as much of the crowd as they can, and once where a limit lets only two of a tenant's runs be under way.
    """
    began = time.monotonic()
    until = began + asked.budget * 60
    summary = Summary("tenant", asked.store, 2 * asked.samples)
    with two_stores(asked.store) as (pressed_url, calm_url, _):
        async with Runtime(pressed_url) as pressed, Runtime(calm_url) as calm:
            there = await _submit(pressed, BRIEF, {"pause": 0.02}, asked.rows, began + asked.budget * 30, tenant_id="large")
            summary.measured["submitted in, s"] = round(time.monotonic() - began)
            if there < asked.rows:
                summary.wrong.append(f"only {there} of {asked.rows} runs were submitted in half of the budget")
            for what, each in (("as fast as they can", 0), ("two at a time", 2)):
                async with _working(Load(pressed_url, each_tenant=each), Load(calm_url, each_tenant=each)):
                    feeding = [asyncio.ensure_future(_fed(calm, 100, 0.02)), asyncio.ensure_future(_fed(pressed, asked.rows // 2, 0.02))]
                    found = await _compare(pressed, calm, asked.samples, until)
                    for task in feeding:
                        task.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await task
                summary.done += len(found[0])
                _judge(summary, asked, what, found)
            summary.measured["queued in the end"] = left = sum(q.depth for q in await pressed.queues())
            if not left:
                summary.wrong.append("the crowd was gone before the end")
    summary.seconds = time.monotonic() - began
    return summary


async def lane(asked: Asked) -> Summary:
    """10,000 runs queued behind the holder of one lane: p99 of runs in other lanes at most 1.3 times that without. (Over each store: some 3 minutes.)"""
    began = time.monotonic()
    until = began + asked.budget * 60
    summary = Summary("lane", asked.store, asked.samples)
    with two_stores(asked.store) as (pressed_url, calm_url, _):
        async with Runtime(pressed_url) as pressed, Runtime(calm_url) as calm, _working(Load(pressed_url), Load(calm_url)):
            holders = [await rt.submit(HELD, {}, session_key="busy", tenant_id="small") for rt in (pressed, calm)]
            for rt, holder in zip((pressed, calm), holders, strict=True):
                with contextlib.suppress(RunWaiting):
                    await rt.result(holder.run_id, timeout=PATIENCE)
            there = await _submit(pressed, BRIEF, {"pause": 0.0}, asked.rows, began + asked.budget * 30, session_key="busy", tenant_id="small")
            if there < asked.rows:
                summary.wrong.append(f"only {there} of {asked.rows} runs were submitted in half of the budget")
            found = await _compare(pressed, calm, asked.samples, until)
            summary.done = len(found[0])
            _judge(summary, asked, "others", found)
            summary.measured["behind the holder in the end"] = left = sum(q.depth for q in await pressed.queues())
            if left != there:
                summary.wrong.append(f"{there - left} of the runs behind the holder went")
    summary.seconds = time.monotonic() - began
    return summary


ROUNDS: dict[str, tuple[Callable[[Asked], Awaitable[Summary]], int, tuple[str, ...]]] = {
    "snapshot": (snapshot, 0, ("postgres",)),
    "pruning": (pruning, 1_000_000, STORES),
    "tenant": (tenant, 100_000, STORES),
    "lane": (lane, 10_000, STORES),
}


def main(arguments: Sequence[str] | None = None) -> int:
    rounds = "\n".join(f"  {name}: {(round_.__doc__ or '').splitlines()[0]}" for name, (round_, _, _) in ROUNDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m tests.workers.pressure", description=f"{(__doc__ or '').splitlines()[0]}\n\n{rounds}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("round", nargs="*", help="which rounds; all of them by default")
    parser.add_argument("--store", choices=STORES, action="append", help="over which store; over each by default")
    parser.add_argument("--minutes", type=float, default=10.0, help="for which the snapshot is held (10)")
    parser.add_argument("--fed", type=int, default=50, help="short runs that are queued while the snapshot is held (50)")
    parser.add_argument("--tenants", type=int, default=1, help="of these runs (1)")
    parser.add_argument("--priorities", type=int, default=1, help="of these runs (1)")
    parser.add_argument("--rows", type=int, help="runs in the way; by default as many as the issue asks")
    parser.add_argument("--samples", type=int, default=1000, help="runs that are timed beside a crowd (1000)")
    parser.add_argument("--seed", type=int, default=1, help="of the ids of copied runs; printed (1)")
    parser.add_argument("--budget", type=float, default=60.0, metavar="MINUTES", help="for each round and store, after which no more is begun (60)")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.round) - ROUNDS.keys():
        parser.error(f"no round {', '.join(sorted(unknown))}: there are {', '.join(ROUNDS)}")
    if asked.fed < 0 or min(asked.tenants, asked.priorities) < 1:
        parser.error("--fed is 0 or more, --tenants and --priorities are 1 or more")
    wrong = 0
    print(f"seed {asked.seed}", flush=True)
    for name in asked.round or ROUNDS:
        round_, usual, stores = ROUNDS[name]
        for store in stores:
            if store in (asked.store or stores):
                rows = usual if asked.rows is None else asked.rows
                summary = asyncio.run(round_(Asked(
                    store, asked.minutes, rows, asked.samples, seed=asked.seed, budget=asked.budget, fed=asked.fed, tenants=asked.tenants, priorities=asked.priorities,
                )))
                print(summary.text(), flush=True)
                wrong += len(summary.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

__all__ = ["ROUNDS", "Asked", "main"]
