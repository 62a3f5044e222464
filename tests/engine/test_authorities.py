"""Who decides what: events the lifecycle, checkpoints the values, effect records what was done outside (§1.1–§1.3)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import apsw
import pytest

from holdfast import Context, Graph, Runtime, State, append
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import StoreError
from holdfast.core.lease import Release
from holdfast.stores import SqliteStore
from holdfast.stores.memory import MemoryStore
from holdfast.testing import Fault
from holdfast.testing import World as Crashing
from holdfast.testing.crash import at_write
from tests.engine.support import World


class S(State):
    items: Annotated[list[str], append]


acts: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    acts.clear()


def asking() -> Graph[S]:
    """A step, a question, a step."""
    graph = Graph("asking", S)
    graph.node("read", start=True)(lambda state: {"items": "read"})

    @graph.node(after="read")
    async def ask(state: S, ctx: Context) -> dict[str, Any]:
        said = await ctx.approve("Go on?")
        return {"items": said.action}

    graph.node("write", after="ask")(lambda state: {"items": "write"})
    return graph


def charging(name: str, *, fails: bool = False, key: str | None = None) -> Graph[S]:
    graph = Graph(name, S)

    async def charge(text: str) -> str:
        acts.append(text)
        if fails:
            raise ConnectionError("no line")
        return f"charged {text}"

    @graph.node(start=True)
    async def pay(state: S, ctx: Context) -> dict[str, Any]:
        return {"items": await ctx.effect(charge, "Ada", key=key)}

    return graph


async def test_what_happened_is_appended_numbered_and_signed() -> None:
    """§1.1: 1, 2, 3 … without a gap; what stands is never written again; who decided is on it."""
    world, graph = World(), asking()
    async with world.runtime(graph) as rt:
        run = await rt.invoke(graph, {})
        before = await world.store.rows(run.run_id)
        await rt.approve(run.run_id, actor="ada")
        done = await rt.get(run.run_id)
        assert done.status == "completed"
        assert (await world.store.rows(run.run_id))[: len(before)] == before
        events = await rt.events(run.run_id)
        assert [e.seq for e in events] == list(range(1, len(events) + 1))
        assert [e.actor for e in events if e.event_type == "wait.decided"] == ["ada"]


async def test_checkpoints_are_a_chain_that_never_changes() -> None:
    """§1.2: what was read once reads the same for ever; each names the one before it; the newest one's values are the run's."""
    world, graph = World(), asking()
    async with world.runtime(graph) as rt:
        run = await rt.invoke(graph, {})
        before = await rt.checkpoints(run.run_id)
        await rt.approve(run.run_id)
        after = await rt.checkpoints(run.run_id)
        assert after[: len(before)] == before and len(after) > len(before)
        assert [c.parent_id for c in after] == [None, *(c.checkpoint_id for c in after[:-1])]
        done = await rt.get(run.run_id)
        assert (done.checkpoint_head, done.values) == (after[-1].checkpoint_id, after[-1].values)
        assert [await rt.state(run.run_id, c.checkpoint_id) for c in before] == [S(**c.values) for c in before]


async def test_an_effect_s_record_decides_whether_it_is_done() -> None:
    """§1.3: a run whose own log knows nothing of it is answered from the record, under the key and with what it gave."""
    world = World()
    one, two = charging("one", key="order-7"), charging("two", key="order-7")
    async with world.runtime(one, two) as rt:
        first, second = await rt.invoke(one, {}), await rt.invoke(two, {})
        assert first.state.items == second.state.items == ["charged Ada"]
        assert acts == ["Ada"]
        (record,) = await rt.effects(first.run_id)
        assert (record.status, record.key.endswith("order-7")) == ("recorded", True)


async def test_every_way_of_an_effect_is_an_event() -> None:
    """§6.7; the reused one names the record that answered."""
    world = World()
    done, again, broken = charging("done", key="order-7"), charging("again", key="order-7"), charging("broken", fails=True)

    async def told(rt: Runtime, run_id: str) -> list[str]:
        return [e.event_type for e in await rt.events(run_id) if e.event_type.startswith("side_effect.")]

    async with world.runtime(done, again, broken) as rt:
        first = await rt.invoke(done, {})
        assert await told(rt, first.run_id) == ["side_effect.attempted", "side_effect.recorded"]
        second = await rt.invoke(again, {})
        assert await told(rt, second.run_id) == ["side_effect.reused"]
        (reused,) = [e for e in await rt.events(second.run_id) if e.event_type == "side_effect.reused"]
        (record,) = await rt.effects(first.run_id)
        assert record.effect_id in str(reused.payload)
        failed = await rt.invoke(broken, {})
        assert await told(rt, failed.run_id) == ["side_effect.attempted", "side_effect.failed"]


async def test_a_wait_is_its_paused_checkpoint_and_nothing_else(tmp_path: Path) -> None:
    """§5.1: no table registers it; whoever has the checkpoint has the question."""
    graph = asking()
    store = SqliteStore(tmp_path / "s.db")
    async with Runtime(store, skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        places = [
            [(w.wait_id, w.prompt) for w in waits] for waits in ((await rt.checkpoint(run.run_id)).waits, run.waits, await rt.waits())
        ]
        assert places[0] == places[1] == places[2]
        assert [w.prompt for w in run.waits] == ["Go on?"]
        assert (await rt.checkpoint(run.run_id)).boundaries[-1] == "waiting_for_human"
    with contextlib.closing(apsw.Connection(str(tmp_path / "s.db"))) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert names and not [n for n in names if "wait" in n or "approval" in n]
    async with Runtime(SqliteStore(tmp_path / "s.db"), skills=[graph]) as rt:
        await rt.approve(run.run_id)
        assert (await rt.get(run.run_id)).state.items == ["read", "approve", "write"]


async def test_what_a_run_is_called_by_default() -> None:
    """§3.3: the thread is the run, the session the thread, the lane main; a job groups the runs of one request."""
    world, graph = World(), asking()
    async with world.runtime(graph) as rt:
        alone = await rt.submit(graph, {})
        named = await rt.submit(graph, {}, thread_id="talk", job_id="job-1")
        other = await rt.submit(graph, {}, session_key="desk", lane="side", job_id="job-1")
        assert (alone.thread_id, alone.session_key, alone.lane, alone.job_id) == (alone.run_id, alone.run_id, "main", None)
        assert (named.thread_id, named.session_key, named.lane, named.job_id) == ("talk", "talk", "main", "job-1")
        assert (other.thread_id, other.session_key, other.lane, other.job_id) == (other.run_id, "desk", "side", "job-1")


# -- nothing leaves before its commit ---------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.APPLIED])
def test_nothing_is_told_that_is_not_in_the_store(fault: Fault) -> None:
    """§1.7: at each write the store fails; what the caller was told in the end is what the store holds, or it was an error."""
    graph = asking()

    def told(number: int) -> tuple[str, int]:
        world = Crashing()

        async def story() -> tuple[str, int]:
            await world.store.open()
            host = await world.host(graph, plan=at_write(number, fault))
            try:
                run = await host.do(host.rt.invoke(graph, {}))
            except StoreError:
                return "error", len(host.connection.writes)
            found = await world.store.get(run.run_id)
            assert found is not None and (found[0].status, found[0].version) == (run.status, run.version)
            return run.status.value, len(host.connection.writes)

        return world.run(story())

    undisturbed, writes = told(0)
    assert undisturbed == "waiting_for_human" and writes > 3
    ends = [told(n)[0] for n in range(2, writes + 1)]
    assert "error" in ends, "a store that fails is told of"


class Watched(MemoryStore):
    """Keeps what was committed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Commit] = []

    async def commit(self, commit: Commit) -> Tip:
        tip = await super().commit(commit)
        self.commits.append(commit)
        return tip


@pytest.mark.parametrize("graph", [charging("done"), charging("broken", fails=True), asking()], ids=lambda g: g.id)
async def test_the_outcome_and_the_lease_go_in_one_commit(graph: Graph[S]) -> None:
    """§10.5: the lease is given back by the commit that holds the outcome, not before it."""
    store = Watched()
    async with Runtime(store, skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        ends = [c for c in store.commits if c.run.status == run.status]
        assert [isinstance(c.lease, Release) for c in ends] == [True]
        assert not any(isinstance(c.lease, Release) for c in store.commits if c.run.status == "running")
        assert (await rt.get(run.run_id)).lease.owner is None
