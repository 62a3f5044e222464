"""A conversation over many runs is carried on by reference, whatever becomes of the runs before (§4.15, decision 35)."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import apsw
import pytest

from holdfast import Context, Graph, Runtime, State, append, thread
from holdfast.core import codec
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import ChainBroken, Conflict, StoreCorrupt, VersionConflict
from holdfast.core.progress import Progress
from holdfast.core.status import Status
from holdfast.engine.keep.check import keeper
from holdfast.engine.keep.pruning import prune
from holdfast.engine.keep.transfer import copy
from holdfast.engine.look import threads
from holdfast.engine.look.threads import Threads
from holdfast.named import CheckpointStore
from holdfast.ports import Store
from holdfast.stores import MemoryStore, SqliteStore, WorkspaceStore
from holdfast.stores.apply import WHOLE_FLOOR
from holdfast.testing import VirtualClock
from holdfast.testing.crash import CrashingStore, Fault, SimulatedCrash, at_write
from holdfast.testing.invariants import violations
from holdfast.testing.world import World, to_the_end
from tests.inside import threads_of
from tests.virtual import keep_in_virtual_time

SOUND = 30 * 86_400 * 1_000_000


class Chat(State):
    say: str
    log: Annotated[list[str], append, thread]
    seen: Annotated[int, max, thread] = 0
    note: str = ""


def chat() -> Graph[Chat]:
    g = Graph("chat", Chat)

    @g.node(start=True)
    def turn(state: Chat) -> dict[str, Any]:
        return {"log": f"re: {state.say}", "seen": len(state.log)}

    @g.node(after="turn")
    async def end(state: Chat, ctx: Context) -> None:
        if state.say == "ask" and not state.note:
            await ctx.approve("Go on?")
        if state.say.startswith("break") and not state.note:
            raise ValueError("no")

    return g


@pytest.fixture(autouse=True)
def _nothing_is_light(monkeypatch: pytest.MonkeyPatch) -> None:
    """These conversations are short; all the same they are carried on by reference here."""
    monkeypatch.setattr(threads, "LIGHT", -1)


Maker = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite", "workspace"])
def maker(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Maker:
    """The same store each time, opened anew where it can be."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    if request.param == "sqlite":
        return lambda: SqliteStore(tmp_path / "s.db")
    return lambda: WorkspaceStore(tmp_path / "ws")


def said(*words: str) -> list[str]:
    return [line for word in words for line in (word, f"re: {word}")]


async def talk(rt: Runtime, *words: str) -> list[str]:
    """One run for each word; their ids."""
    ids = []
    for word in words:
        run = await rt.invoke(chat(), {"say": word, "log": [word]}, thread_id="t")
        ids.append(run.run_id)
    return ids


async def patched(rt: Runtime, run_id: str, values: dict[str, Any]) -> None:
    await CheckpointStore(rt).save_checkpoint(run_id, values, actor="ada", reason="test")


async def heard(rt: Runtime, run_id: str) -> list[str]:
    found: list[str] = (await rt.get(run_id)).state.log
    return found


async def carried(store: Store, run_id: str) -> list[str]:
    """The runs that a run's first checkpoint names."""
    return [c.run_id for c in codec.read_carried(await store.rows(run_id))]


async def test_each_turn_names_the_one_before(maker: Maker) -> None:
    """§4.15, §4.5: no turn's log holds what was said before it; all the same each loads whole, here and in another process."""
    async with Runtime(maker(), skills=[chat()]) as rt:
        ids = await talk(rt, "one", "two", "three")
        assert [await carried(rt.store, r) for r in ids] == [[], ids[:1], ids[1:2]]
        later = [row.data for r in ids[1:] for row in list(await rt.store.rows(r))]
        assert not any(b"re: one" in data for data in later)
    async with Runtime(maker(), skills=[chat()]) as rt:
        for n, run_id in enumerate(ids, 1):
            assert await heard(rt, run_id) == said("one", "two", "three")[: 2 * n]
            assert (await rt.get(run_id)).state.seen == 2 * n - 1
        first, *_ = await rt.checkpoints(ids[2])
        assert (first.values["log"], first.parent_id) == ([*said("one", "two"), "three"], None)
        last = (await rt.invoke(chat(), {"say": "four", "log": ["four"]}, thread_id="t")).run_id
        assert await heard(rt, last) == said("one", "two", "three", "four")
        assert (await rt.check()).ok
        assert await violations(rt.store) == []


async def test_what_is_light_is_simply_stored(maker: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """§4.15, decision 35: a counter or a few words make no run depend on another; a conversation that grows does from then on."""
    monkeypatch.setattr(threads, "LIGHT", 256)
    async with Runtime(maker(), skills=[chat()]) as rt:
        ids = await talk(rt, "one", "x" * 300, "three", "four")
        assert [await carried(rt.store, r) for r in ids] == [[], [], ids[1:2], ids[2:3]]
        assert set(await keeper(rt.store).list_carries()) == {(ids[2], ids[1]), (ids[3], ids[2])}
        assert await heard(rt, ids[3]) == said("one", "x" * 300, "three", "four")
        assert await violations(rt.store) == []


@pytest.mark.parametrize(
    ("value", "light"),
    [
        (None, True), (7, True), (1.5, True), ("x" * 254, True), ("x" * 255, False), (b"x" * 300, False), ([1] * 28, True), ([1] * 29, False),
        ({"k": "x" * 200}, True), ({"k" * 300: 1}, False), ([["x" * 300], 1], False), ([[], {}, [{}]], True), (frozenset({1}), False),
    ],
)
def test_what_is_light(value: Any, light: bool) -> None:
    """About as many bytes as it would be stored in; whatever its size cannot be told of at a glance is not."""
    assert (threads._room_left(value, 256) >= 0) is light


async def test_a_whole_one_comes_in_time_however_the_turns_are_cut(tmp_path: pathlib.Path) -> None:
    """§4.5: the bytes since the last whole checkpoint are counted across the runs, so that loading walks no further than that."""
    async with Runtime(SqliteStore(tmp_path / "s.db"), skills=[chat()]) as rt:
        text = "x" * 10_000
        ids = await talk(rt, *[text + str(n) for n in range(16)])
        kept = keeper(rt.store)
        wholes = [r for r in ids if await kept.whole(r) is not None]
        assert wholes and ids[0] not in wholes
        after = ids[ids.index(wholes[-1]) + 1 :]
        loaded = [await rt.store.load(r) for r in ids]
        assert all(x is not None and x.tip.since <= max(WHOLE_FLOOR, x.tip.whole) + 25_000 for x in loaded)
        before = loaded[ids.index(wholes[0]) - 1]
        assert before is not None and before.tip.since > 40_000, "its own log is a quarter of that"
        assert after and await heard(rt, ids[-1]) == said(*[text + str(n) for n in range(16)])


async def test_a_turn_in_hand_asks_for_nothing_that_another_process_has_changed(tmp_path: pathlib.Path) -> None:
    """§4.15: what one process has in hand of a thread is left when its newest run has gone on elsewhere."""
    async with Runtime(SqliteStore(tmp_path / "s.db"), skills=[chat()]) as here, Runtime(SqliteStore(tmp_path / "s.db"), skills=[chat()]) as there:
        (first,) = await talk(here, "one")
        (broken,) = await talk(here, "break")
        assert (await here.get(broken)).status is Status.FAILED
        await patched(there, broken, {"note": "mended", "log": ["rewritten"]})
        assert (await there.resume(broken, actor="ada", acknowledge="step_failed")).status is Status.COMPLETED
        (next_one,) = await talk(here, "two")
        assert await heard(here, next_one) == ["rewritten", *said("two")]
        assert await heard(here, first) == said("one")


async def test_one_that_was_resumed_after_it_was_carried_on_from(maker: Maker) -> None:
    """§4.15: a run carries from another one's log as it stood, also when that one has gone on since, to whole checkpoints even."""
    async with Runtime(maker(), skills=[chat()]) as rt:
        _, broken = await talk(rt, "one", "break")
        (after,) = await talk(rt, "two")
        await patched(rt, broken, {"note": "x" * (WHOLE_FLOOR + 1), "log": ["rewritten"]})
        assert (await rt.resume(broken, actor="ada", acknowledge="step_failed")).status is Status.COMPLETED
        assert await heard(rt, broken) == ["rewritten"]
    async with Runtime(maker(), skills=[chat()]) as rt:
        assert await heard(rt, after) == said("one", "break", "two")
        assert await violations(rt.store) == []


@pytest.mark.parametrize("fresh", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize("order", [(0,), (0, 1), (1, 0), (0, 0)], ids=str)
async def test_an_old_turn_that_is_resumed_makes_no_later_turn_forgotten(order: tuple[int, ...], fresh: bool, maker: Maker) -> None:
    """§4.15, decision 130: the newest run is the one whose turn began last, whichever ends last; what a resumed turn adds counts for itself."""
    async with Runtime(maker(), skills=[chat()]) as rt:
        broken = []
        for word in ("one", "two"):
            broken += await talk(rt, f"break {word}")
        await talk(rt, "three")
        for n, which in enumerate(order):
            await patched(rt, broken[which], {"note": "mended" if n + 1 == len(order) or order[n + 1] != which else ""})
            run = await rt.resume(broken[which], actor="ada", acknowledge="step_failed")
            assert run.status is (Status.COMPLETED if run.state.note else Status.FAILED)
        if not fresh:
            await talk(rt, "four")
    async with Runtime(maker(), skills=[chat()]) as rt:
        if fresh:
            await talk(rt, "four")
        (last,) = await talk(rt, "five")
        assert await heard(rt, last) == said("break one", "break two", "three", "four", "five")
        assert await violations(rt.store) == []


async def test_the_newest_turn_that_is_resumed_is_carried_on_from(maker: Maker) -> None:
    """§4.15: no later turn has begun; one that was canceled before it began has nothing to carry."""
    async with Runtime(maker(), skills=[chat()]) as rt:
        await talk(rt, "one")
        (broken,) = await talk(rt, "break")
        asking = await rt.invoke(chat(), {"say": "ask", "log": ["ask"]}, thread_id="t")
        behind = await rt.submit(chat(), {"say": "never", "log": ["never"]}, thread_id="t")
        await rt.cancel(behind.run_id)
        await rt.approve(asking.run_id)
        await patched(rt, broken, {"note": "mended", "log": ["rewritten"]})
        await rt.resume(broken, actor="ada", acknowledge="step_failed")
        (after,) = await talk(rt, "two")
        assert await heard(rt, after) == said("one", "break", "ask", "two")
        (broken,) = await talk(rt, "break")
        behind = await rt.submit(chat(), {"say": "never", "log": ["never"]}, thread_id="t", delay=3600)
        await rt.cancel(behind.run_id)
        await patched(rt, broken, {"note": "mended", "log": ["rewritten"]})
        await rt.resume(broken, actor="ada", acknowledge="step_failed")
        (after,) = await talk(rt, "three")
        assert await heard(rt, after) == ["rewritten", *said("three")]
        assert await violations(rt.store) == []


async def test_a_fork_of_a_turn_stands_on_its_own(maker: Maker) -> None:
    """§7.8: it begins with the values of the chosen checkpoint, in a thread of its own, and needs no run but itself."""
    async with Runtime(maker(), skills=[chat()]) as rt:
        ids = await talk(rt, "one", "two", "three", "four")
        forked = await rt.fork(ids[2], set={"say": "other"})
        replayed = await rt.replay(ids[2])
        assert forked.state.log == [*said("one", "two"), "three", "re: other"]
        assert replayed.state.log == said("one", "two", "three")
        assert await carried(rt.store, forked.run_id) == []
        assert await heard(rt, ids[3]) == said("one", "two", "three", "four")
        assert await violations(rt.store) == []


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_crash_at_each_write_of_a_second_turn(kind: str, fault: Fault, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T-09, §4.15: whatever write of a carrying run the process dies at, another one ends it with all that was said."""
    keep_in_virtual_time(monkeypatch)

    def story(number: int) -> list[str]:
        clock = VirtualClock()
        world = World(MemoryStore(now=clock.now) if kind == "memory" else SqliteStore(tmp_path / f"{number}.db", now=clock.now), clock=clock)
        asked = {"inputs": {"say": "ask", "log": ["ask"]}, "thread_id": "t", "key": "second"}

        async def told() -> list[str]:
            await world.store.open()
            first = await world.host(chat())
            await first.do(talk(first.rt, "one"))
            await first.close()
            second = await world.host(chat(), plan=at_write(number, fault))
            try:
                run = await second.do(second.rt.invoke(chat(), **asked))
                await second.do(to_the_end(second, run.run_id))
                await second.close()
            except SimulatedCrash:
                assert number <= len(second.connection.writes)
            third = await world.host(chat())
            run = await third.do(third.rt.submit(chat(), **asked))
            run = await third.do(to_the_end(third, run.run_id))
            assert (run.status, run.state.log) == (Status.COMPLETED, said("one", "ask"))
            (last,) = await third.do(talk(third.rt, "three"))
            assert await third.do(heard(third.rt, last)) == said("one", "ask", "three")
            await third.close()
            await world.assert_whole()
            return second.connection.writes

        return world.run(told())

    writes = story(10_000)
    assert len(writes) > 8, "the undisturbed story wrote too little"
    for number in range(1, len(writes) + 1):
        story(number)


# -- what becomes of the runs before ----------------------------------------------------------------


async def test_pruning_keeps_what_later_turns_carry(maker: Maker) -> None:
    """§6.10, §4.15: the runs before go; the first that stays keeps what it began with, and those after it go on from that."""
    async with Runtime(maker(), skills=[chat()]) as rt:
        ids = await talk(rt, "one", "two", "three", "ask", "five")
        assert (await rt.get(ids[3])).status is Status.WAITING_FOR_HUMAN
        carries = set(await keeper(rt.store).list_carries())
        assert carries == {(ids[1], ids[0]), (ids[2], ids[1]), (ids[3], ids[2])}
        planned = await prune(rt.store, keeper(rt.store), rt.store.now() + SOUND, dry=True)
        assert set(await keeper(rt.store).list_carries()) == carries, "a dry run keeps nothing"
        done = await prune(rt.store, keeper(rt.store), rt.store.now() + SOUND)
        assert (set(done.run_ids), done) == (set(ids[:3]), planned)
        assert await keeper(rt.store).list_carries() == []
    async with Runtime(maker(), skills=[chat()]) as rt:
        assert (await rt.approve(ids[3])).state.log == said("one", "two", "three", "ask")
        assert (await rt.checkpoints(ids[3]))[0].values["log"] == [*said("one", "two", "three"), "ask"]
        assert (await rt.check()).ok
        assert await violations(rt.store) == []
        await rt.recover()
        assert await heard(rt, ids[4]) == said("one", "two", "three", "ask", "five")


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
async def test_a_crash_in_pruning_loses_nothing(fault: Fault, maker: Maker) -> None:
    """§4.15: first the values of each run that continues, then the predecessors; killed at any write in between, all is still there."""
    store = maker()
    async with Runtime(store, skills=[chat()]) as rt:
        ids = await talk(rt, "one", "two", "ask")
    await store.open()
    for number in (1, 2, 3) if fault is Fault.BEFORE else (1, 2, 2):  # a look, the values, the predecessors
        crashing = CrashingStore(store, at_write(number, fault)).as_store()
        with pytest.raises(SimulatedCrash):
            await prune(crashing, keeper(crashing), store.now() + SOUND)
        async with Runtime(store, skills=[chat()]) as rt:
            assert await heard(rt, ids[2]) == said("one", "two", "ask")
            assert await violations(rt.store) == []
        await store.open()
    assert (await prune(store, keeper(store), store.now() + SOUND)).run_ids == (tuple(sorted(ids[:2])) if fault is Fault.BEFORE else ())
    async with Runtime(store, skills=[chat()]) as rt:
        assert (await rt.approve(ids[2])).state.log == said("one", "two", "ask")


async def test_a_lender_stays_for_a_loan_that_nobody_settled(maker: Maker) -> None:
    """§6.10: whoever asks the store itself to prune loses nothing either: it says what stays and why."""
    async with Runtime(maker(), skills=[chat()]) as rt:
        ids = await talk(rt, "one", "two", "ask")
        done = await keeper(rt.store).prune(rt.store.now() + SOUND)
        assert done.run_ids == ()
        assert set(done.kept.values()) >= {"a later run of its thread continues from it"}
        assert await heard(rt, ids[2]) == said("one", "two", "ask")


async def test_a_run_that_begins_while_its_lender_is_pruned_is_refused(maker: Maker) -> None:
    """§4.15, §1.11: a first checkpoint commits only while the run that it names is there."""

    class Late(CrashingStore):
        """Prunes between a run's look at its thread and its first checkpoint."""

        async def commit(self, commit: Commit) -> Tip:
            if commit.behind is not None:
                await keeper(self.beneath).prune(self.beneath.now() + SOUND)
            return await self.beneath.commit(commit)

    store = maker()
    async with Runtime(store, skills=[chat()]) as rt:
        await talk(rt, "one")
    await store.open()
    async with Runtime(Late(store).as_store(), skills=[chat()]) as rt:
        run = await rt.submit(chat(), {"say": "two", "log": ["two"]}, thread_id="t")
        with pytest.raises(VersionConflict, match="pruned in the meantime"):
            await rt.resume(run.run_id)
    async with Runtime(store, skills=[chat()]) as rt:
        await rt.recover()
        (run,) = await rt.runs()
        assert (run.status, (await rt.get(run.run_id)).state.log) == (Status.COMPLETED, said("two"))


class Meanwhile(CrashingStore):
    """Lets something happen once, between a look at a thread's end and the first commit that follows it."""

    def __init__(self, store: Any, what: Callable[[], Awaitable[object]]) -> None:
        super().__init__(store)
        self.what: Callable[[], Awaitable[object]] | None = what
        self.refused: list[str] = []

    async def commit(self, commit: Commit) -> Tip:
        if commit.follows is not None and self.what is not None:
            what, self.what = self.what, None
            await what()
        try:
            return await self.beneath.commit(commit)
        except Conflict as e:
            self.refused.append(e.code)
            raise


@pytest.mark.parametrize("held", [True, False])
async def test_a_turn_that_ends_meanwhile_is_not_lost(maker: Maker, held: bool) -> None:
    """§4.15, issue «Speed», 3: born, claimed and begun in one commit, which is held against how the thread ends."""
    store = maker()
    async with Runtime(store, skills=[chat()]) as other:
        between = Meanwhile(store, lambda: talk(other, "between"))
        async with Runtime(between.as_store(), skills=[chat()]) as rt:
            if held:  # the end is in hand
                between.what, what = None, between.what
                await talk(rt, "one")
                between.what = what
            else:
                await talk(other, "one")
            last = (await talk(rt, "two"))[0]
            assert between.refused == ["thread_moved"]
            assert await heard(rt, last) == said("one", "between", "two")


async def test_a_turn_beside_one_that_waits_is_queued(maker: Maker) -> None:
    """§10.8: the lane says no in that very commit."""
    async with Runtime(maker(), skills=[chat()]) as rt:
        await talk(rt, "one")
        asked = (await talk(rt, "ask"))[0]
        run = await rt.invoke(chat(), {"say": "two", "log": ["two"]}, thread_id="t")
        assert run.status == Status.PENDING
        await rt.approve(asked, actor="ada")
        run = await rt.resume(run.run_id)
        assert run.state.log == said("one", "ask", "two")


async def test_many_turns_at_once_lose_none(maker: Maker) -> None:
    """§4.15: whoever comes second begins with what the first left."""
    async with Runtime(maker(), skills=[chat()]) as rt:
        words = [str(n) for n in range(8)]
        await asyncio.gather(*[talk(rt, w) for w in words])
        final = (await rt.invoke(chat(), {"say": "end", "log": ["end"]}, thread_id="t")).state.log
        assert sorted(final) == sorted(said(*words, "end"))
        assert all(final.index(f"re: {w}") == final.index(w) + 1 for w in words)


async def test_an_exported_run_needs_no_other(maker: Maker, tmp_path: pathlib.Path) -> None:
    """§12.5: what it carries travels with it, from store to directory to store; a later turn there goes on from it."""
    async with Runtime(maker(), skills=[chat()]) as rt:
        ids = await talk(rt, "one", "two", "three")
        await rt.export(ids[2], tmp_path / "out")
    assert "re: two" in next((tmp_path / "out").rglob("origin.json")).read_text("utf-8")
    elsewhere = SqliteStore(tmp_path / "other.db")
    await elsewhere.open()
    out = WorkspaceStore(tmp_path / "out")
    await out.open()
    assert await copy(out, elsewhere, ids[2])
    assert not await copy(out, elsewhere, ids[2])
    memory = MemoryStore()
    assert await copy(elsewhere, memory, ids[2])
    await out.close()
    await elsewhere.close()
    for store in (elsewhere, memory, WorkspaceStore(tmp_path / "out")):
        async with Runtime(store, skills=[chat()]) as rt:
            assert await heard(rt, ids[2]) == said("one", "two", "three")
            assert await keeper(store).list_carries() == []
            assert await heard(rt, (await talk(rt, "four"))[0]) == said("one", "two", "three", "four")
            assert (await rt.check()).ok
            assert await violations(store) == []


# -- damage -----------------------------------------------------------------------------------------


async def test_a_lender_that_is_gone_or_changed_is_named(tmp_path: pathlib.Path) -> None:
    """§12.2, §4.15: never a shorter conversation: whoever loads the run is told, and so is whoever checks."""
    path = tmp_path / "s.db"
    async with Runtime(SqliteStore(path), skills=[chat()]) as rt:
        ids = await talk(rt, "one", "two", "three")
    db = apsw.Connection(str(path))
    db.execute("UPDATE log SET hash = x'00' WHERE id = (SELECT tip FROM run WHERE run_id = ?)", (ids[0],))
    async with Runtime(SqliteStore(path), skills=[chat()]) as rt:
        with pytest.raises(ChainBroken):
            await rt.get(ids[2])
        found = {p.run_id: p.code for p in await rt.check()}
        assert found[ids[1]] == "checkpoint_hash_mismatch"
        assert ids[2] not in found
    db.execute("DELETE FROM run WHERE run_id = ?", (ids[0],))
    db.execute("DELETE FROM log WHERE run NOT IN (SELECT id FROM run)")
    db.close()
    async with Runtime(SqliteStore(path), skills=[chat()]) as rt:
        with pytest.raises(StoreCorrupt, match=f"{ids[1]} carries .* from {ids[0]}, which is not there"):
            await rt.get(ids[2])
        assert "checkpoint_head_missing" in {p.code for p in await rt.check() if p.run_id == ids[1]}


async def test_an_origin_that_was_changed_is_named(tmp_path: pathlib.Path) -> None:
    """X-01: a bit of it, and it is not served."""
    path = tmp_path / "s.db"
    async with Runtime(SqliteStore(path), skills=[chat()]) as rt:
        ids = await talk(rt, "one", "ask")
        await prune(rt.store, keeper(rt.store), rt.store.now() + SOUND)
        origin = await Threads(rt.store).origin(ids[1], await rt.store.rows(ids[1]))
        assert origin is not None
        assert Progress(ids[1], origin).walk(await rt.store.rows(ids[1])).checkpoint.values["log"] == said("one", "ask")
    db = apsw.Connection(str(path))
    (data,) = db.execute("SELECT data FROM whole WHERE seq = 0").fetchone()
    db.execute("UPDATE whole SET data = ? WHERE seq = 0", (data.replace(b"one", b"two"),))
    db.close()
    async with Runtime(SqliteStore(path), skills=[chat()]) as rt:
        with pytest.raises(StoreCorrupt):
            await rt.get(ids[1])
        assert {p.code for p in await rt.check() if p.run_id == ids[1]} == {"checkpoint_hash_mismatch"}


async def test_what_is_in_hand_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """§4.15: the ends of many threads give way to the newest ones; the newest stays, however heavy."""
    store = MemoryStore()
    monkeypatch.setattr(threads, "KEPT_THREADS", 2)
    async with Runtime(store, skills=[chat()]) as rt:
        for name in ("a", "b", "c"):
            for word in ("one", "two", "three"):
                await rt.invoke(chat(), {"say": word, "log": [word]}, thread_id=name)
        held = threads_of(rt)
        assert sorted(thread for _, thread in held._ends) == ["b", "c"]
        assert [len(ends) for ends in held._ends.values()] == [2, 2]
        assert held._weight == sum(e.tip.since + e.tip.whole for ends in held._ends.values() for e in ends)
        monkeypatch.setattr(threads, "KEPT_BYTES", 1)
        last = await rt.invoke(chat(), {"say": "four", "log": ["four"]}, thread_id="a")
        assert [thread for _, thread in held._ends] == ["a"]
        assert last.state.log == said("one", "two", "three", "four")
        for word in ("x" * 200_000, "y" * 200_000):
            await rt.invoke(chat(), {"say": "on", "log": [word]}, thread_id="a")
        (ends,) = held._ends.values()
        assert ends[0].tip.whole > 0 and held._weight == sum(e.tip.since + e.tip.whole for e in ends), "whole checkpoints weigh as much as the log since"
