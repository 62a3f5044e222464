"""What a claim costs, counted: it reads no queue however long (§10.11), and it looks at each worker once however many there are."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Graph, Limit, Runtime, State
from holdfast.core.lease import Alive
from holdfast.stores.liveness import Liveness
from holdfast.workers.worker import Report
from tests.outbox.conftest import Open
from tests.postgres.server import shared
from tests.statements import counting_work

LIMITS = {"queue:default": Limit(in_flight=5, per_second=50, burst=5), "tenant:*": Limit(in_flight=2)}
TTL = 30_000_000


class Empty(State):
    n: int = 0


graph: Graph[Empty] = Graph("empty", Empty, version="1")


@graph.node(start=True)
async def work(state: Empty) -> dict[str, int]:
    return {"n": 1}


async def queued(rt: Runtime, tenant: str, count: int) -> None:
    for first in range(0, count, 100):
        await asyncio.gather(*(rt.submit(graph, {}, tenant_id=tenant) for _ in range(min(100, count - first))))


@pytest.mark.parametrize("limits", [{}, LIMITS], ids=["free", "limited"])
async def test_a_claim_reads_no_queue(limits: dict[str, Limit], tmp_path: Path) -> None:
    """Must show 7: beside 600 runs of another tenant a claim takes the steps that it takes beside a hundred."""
    cost: list[int] = []
    for waiting in (100, 600):
        with counting_work() as done:
            async with Runtime(f"sqlite:///{tmp_path}/{waiting}.db", skills=[graph]) as rt:
                await queued(rt, "big", waiting)
                await queued(rt, "small", 3)
                for owner in ("a", "b"):
                    await rt.store.register(owner, TTL)
                before = done.steps
                tenants = []
                for owner in ("a", "b", "a", "b"):
                    for claim in await rt.store.claim(owner, ("default",), None, limit=2, limits=limits):
                        tenants.append((await rt.get(claim.run_id)).record.tenant_id)
                cost.append(done.steps - before)
                assert tenants.count("small") >= 2, "the tenant that holds less is served, however long the other's queue"
    assert cost[1] <= 1.1 * cost[0], cost


def rows_read() -> int:
    """How many rows the server has read so far, in tables and in indexes, as those connections tell that have ended."""
    with shared().admin("holdfast") as db:
        until = time.monotonic() + 60
        while db.execute("SELECT 1 FROM pg_stat_activity WHERE datname = 'holdfast' AND usename = 'holdfast'").fetchone():
            assert time.monotonic() < until, "the connections of a closed runtime end"
        found = db.execute(
            "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname = 'run') + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'run')"
        ).fetchone()
    assert found is not None
    return int(str(found[0]))


@pytest.mark.parametrize(("known", "queues"), [(False, (40, 250)), (True, (250, 800))], ids=["quiet", "true"])
@pytest.mark.parametrize("limits", [{}, LIMITS], ids=["free", "limited"])
async def test_a_claim_on_postgresql_reads_no_queue(limits: dict[str, Limit], known: bool, queues: tuple[int, int]) -> None:
    """The same, whether the statistics are of a time when nothing was queued or know of the queue: the plan does not depend on what they say."""
    url, read = shared().fresh(), []
    async with Runtime(url, skills=[graph]) as rt:
        await queued(rt, "old", 20)
        await rt.worker(until_idle=True)
    with shared().admin("holdfast") as db:
        db.execute("ANALYZE holdfast.run")
        db.execute("ALTER TABLE holdfast.run SET (autovacuum_enabled = false)")  # or it would learn of the queue meanwhile, and read so small a table whole
    for waiting in queues:
        async with Runtime(url, skills=[graph]) as rt:
            await queued(rt, "big", waiting)
        rows_read()  # a session that has not ended yet may hold a snapshot, under which nothing is vacuumed
        with shared().admin("holdfast") as db:
            db.execute("VACUUM (INDEX_CLEANUP ON) holdfast.run")  # or dead entries of its indexes are read, which are few beside what earlier tests left: then they stay
            if known:
                db.execute("ANALYZE holdfast.run")
        before = rows_read()
        async with Runtime(url, skills=[graph]) as rt:
            await rt.store.register(f"w{waiting}", TTL)
            for _ in range(4):
                await rt.store.claim(f"w{waiting}", ("default",), None, limit=1, limits=limits)
        read.append(rows_read() - before)
    assert read[1] <= read[0] + 60, read


@pytest.mark.parametrize("limits", [{}, LIMITS], ids=["free", "limited"])
async def test_a_claim_looks_at_those_who_hold_runs(limits: dict[str, Limit], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proof of life is a file each: where twenty workers are up and two hold runs, a claim opens two; once a second somebody looks at all, for those that are gone."""
    asked: list[str] = []
    proven = Liveness.alive

    def alive(self: Liveness, owner: str) -> Alive:
        asked.append(owner)
        return proven(self, owner)

    async with Runtime(f"sqlite:///{tmp_path}/a.db", skills=[graph]) as rt:
        for n in range(20):
            await rt.store.register(f"w{n}", TTL)
        await queued(rt, "big", 3)
        monkeypatch.setattr(Liveness, "alive", alive)
        claims = 12
        began = time.monotonic()
        for n in range(claims):
            await rt.store.claim(f"w{n}", ("default",), None, limit=1, limits=limits)
        looks = 2 + int(time.monotonic() - began)  # the first claim looks at all, and one a second after it
        assert len(asked) <= 21 * looks + 3 * 2 * claims, len(asked)


async def test_who_is_up_is_read_once_for_all_runs_that_are_passed_over(open_rt: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """§10.11: a worker that finds nothing looks for due runs that nobody takes; how many are due makes no difference to how often it asks who is up."""
    other: Graph[Empty] = Graph("other", Empty, version="1")
    other.node("only", start=True)(lambda state: {"n": 2})
    told: list[Report] = []
    asked: list[int] = []
    async with open_rt(skills=[graph]) as rt:
        async with open_rt() as giver:
            for _ in range(30):
                await giver.submit(other, {})
        workers = rt.store.workers

        async def counted(*given: Any, **more: Any) -> Any:
            asked.append(1)
            return await workers(*given, **more)

        monkeypatch.setattr(rt.store, "workers", counted)
        await asyncio.wait_for(rt.worker(until_idle=True, on_report=told.append), 30)
        assert len([r for r in told if r.passed is not None]) == 30
        assert len(asked) <= 2, len(asked)
