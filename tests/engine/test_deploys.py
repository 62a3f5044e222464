"""A deploy changes a skill's shape while runs of it wait: who can take them, and who is told (§10.11, X-31)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Context, Graph, Runtime, State, append, merge, thread
from holdfast.stores import SqliteStore
from holdfast.stores.memory import MemoryStore
from holdfast.workers.worker import Report
from tests.engine.support import FakeClock


class Trail(State):
    said: str = ""


def paying(extra: bool = False, **options: Any) -> Graph[Trail]:
    made = Graph("pay", Trail, **options)

    @made.node(start=True)
    async def ask(state: Trail, ctx: Context) -> dict[str, str]:
        return {"said": (await ctx.approve("pay?")).actor}

    if extra:

        @made.node(after="ask")
        async def tell(state: Trail) -> dict[str, str]:
            return {"said": state.said + ", told"}

    return made


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    clock = FakeClock()
    kept = MemoryStore(now=clock.now)
    return (lambda: kept if request.param == "memory" else SqliteStore(tmp_path / "runs.db", now=clock.now)), clock


async def test_a_run_of_an_older_shape_is_told_everywhere_and_an_upgrade_goes_on(store: Any) -> None:
    """X-31: the decision is kept; lists, show, check and each worker say so; ``--upgrade`` goes on."""
    kept, clock = store
    before, now = paying(), paying(extra=True)
    async with Runtime(kept(), skills=[before], clock=clock) as old:
        run_id = (await old.invoke(before, {})).run_id
    async with Runtime(kept(), skills=[now], clock=clock) as rt, Runtime(kept(), clock=clock) as looker:
        run = await rt.approve(run_id, actor="ada")
        assert run.status == "waiting_for_human" and [d.actor for d in run.record.decisions] == ["ada"]
        assert run.no_worker_for is None, "no worker is up"
        told: list[Report] = []
        await rt.worker(until_idle=True, on_report=told.append)
        await rt.worker(until_idle=True, on_report=told.append)
        lines = [r.passed for r in told if r.passed is not None]
        assert [(x.skill_id, x.version, x.wanted, x.offered) for x in lines[:1]] == [("pay", "1", before.program.fingerprint, (now.program.fingerprint,))]
        seen = await looker.get(run_id)
        assert seen.no_worker_for == lines[0] and (await looker.runs())[0].no_worker_for == lines[0]
        assert (await looker.record(run_id))["no_worker_for"] == {
            "skill_id": "pay", "version": "1", "wanted": before.program.fingerprint, "offered": [now.program.fingerprint], "workspace": None,
        }
        found = await looker.check(run_id)
        assert [(p.code, p.severity) for p in found] == [("no_worker_for", "warning")] and found.ok
        assert before.program.fingerprint in found[0].repair_hint and "--upgrade" in found[0].repair_hint
        await rt.worker(until_idle=True, upgrade=True)
        end = await looker.get(run_id)
        assert end.status == "completed" and end.values["said"] == "ada, told" and end.no_worker_for is None
        assert end.fingerprint == now.program.fingerprint


async def test_a_declared_migration_takes_it(store: Any) -> None:
    """§10.11: a shape that names the run's fingerprint in ``migrates=`` is offered as well."""
    kept, clock = store
    before = paying()
    now = paying(extra=True, migrates=(before.program.fingerprint,))
    async with Runtime(kept(), skills=[before], clock=clock) as old:
        run_id = (await old.invoke(before, {})).run_id
        await old.decide(run_id, "approve", actor="ada")
    async with Runtime(kept(), skills=[now], clock=clock) as rt:
        told: list[Report] = []
        await rt.worker(until_idle=True, on_report=told.append)
        assert (await rt.get(run_id)).status == "completed" and not [r for r in told if r.passed is not None]


async def test_another_worker_another_queue_and_a_dead_worker(store: Any) -> None:
    """§10.11: nothing is said while one that lives can take it; a worker of another queue does not count, nor does a dead one."""
    kept, clock = store
    before, now = paying(), paying(extra=True)
    async with Runtime(kept(), skills=[before], clock=clock) as fits, Runtime(kept(), skills=[now], clock=clock) as other, Runtime(kept(), clock=clock) as looker:
        run_id = (await looker.submit(before, {}, queue="slow")).run_id
        await other.worker(until_idle=True)
        assert (await looker.get(run_id)).no_worker_for is None, "it works on another queue"
        await other.worker(until_idle=True, queues=("slow",))
        assert (await looker.get(run_id)).no_worker_for is not None
        await fits.worker(until_idle=True, queues=("slow",), concurrency=1)
        assert (await looker.get(run_id)).status == "waiting_for_human"
        again = (await looker.submit(before, {}, queue="slow")).run_id
        assert (await looker.get(again)).no_worker_for is None, "one that lives can take it"
        fits.store.abandon(fits.owner)  # type: ignore[attr-defined]
        assert (await looker.get(again)).no_worker_for is not None
        other.store.abandon(other.owner)  # type: ignore[attr-defined]
        assert (await looker.get(again)).no_worker_for is None, "none is up"


async def test_a_skill_that_nobody_has() -> None:
    """§10.11: it is offered by none."""
    clock = FakeClock()
    kept = MemoryStore(now=clock.now)
    async with Runtime(kept, skills=[paying()], clock=clock) as rt, Runtime(kept, clock=clock) as looker:
        unknown = Graph("unknown", Trail)

        @unknown.node(start=True)
        async def only(state: Trail) -> None: ...

        run_id = (await looker.submit(unknown, {})).run_id
        await rt.worker(until_idle=True)
        lacking = (await looker.get(run_id)).no_worker_for
        assert lacking is not None and (lacking.skill_id, lacking.offered) == ("unknown", ())


def keeping(kind: Any, written: Any, version: str) -> Graph[State]:
    """A graph whose one channel, carried by its thread, is of this kind."""
    made: Graph[State] = Graph("keep", type("Kept", (State,), {"__annotations__": {"kept": kind}}), version=version)

    @made.node(start=True)
    async def write(state: State) -> dict[str, Any]:
        return {"kept": written}

    return made


LISTED, JOINED, PLAIN = (Annotated[list[str], append, thread], ["a"]), (Annotated[dict[str, str], merge, thread], {"a": "b"}), (Annotated[str, thread], "ab")


@pytest.mark.parametrize(("before", "now"), [(LISTED, JOINED), (JOINED, LISTED), (PLAIN, LISTED), (PLAIN, JOINED)])
@pytest.mark.parametrize("worker", [False, True])
async def test_a_thread_whose_channel_has_another_reducer_fails_its_run_and_goes_on(store: Any, before: Any, now: Any, worker: bool) -> None:
    """§4.1, §4.15: the run ends with an error that names the channel; nothing is made of what does not fit, and the thread is not blocked."""
    kept, clock = store
    first, second = keeping(*before, "1"), keeping(*now, "2")
    async with Runtime(kept(), skills=[first], clock=clock) as rt:
        assert (await rt.invoke(first, {"kept": "x"} if before is PLAIN else {}, thread_id="t")).condition == "done"
    async with Runtime(kept(), skills=[second], clock=clock) as rt:
        run = await rt.submit(second, {}, thread_id="t")
        if worker:
            await rt.worker(until_idle=True)
            run = await rt.get(run.run_id)
        else:
            run = await rt.resume(run.run_id)
        assert (run.condition, run.stop_reason) == ("failed", "invalid_write"), run
        assert run.error is not None and run.error.message.startswith("kept holds a ")
        assert await rt.check() == []
    async with Runtime(kept(), skills=[first], clock=clock) as rt:
        again = await rt.invoke(first, {"kept": "x"} if before is PLAIN else {}, thread_id="t")
        assert again.condition == "done"
        assert again.values["kept"] == {id(LISTED): ["a", "a"], id(JOINED): {"a": "b"}, id(PLAIN): "ab"}[id(before)]
