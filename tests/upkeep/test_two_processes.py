"""A workspace that one process writes and others read: what they see moves, and nobody writes over anybody (§12.5)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core import events as ev
from holdfast.core.blobs import blob_of
from holdfast.core.commands import Cancel
from holdfast.core.commit import InboxItem
from holdfast.core.effects import EffectStatus
from holdfast.core.errors import LeaseLost, StoreBusy, StoreCorrupt
from holdfast.core.lease import Alive
from holdfast.engine.keep.check import Checker
from holdfast.ports import RunFilter
from holdfast.stores import WorkspaceStore
from holdfast.stores import workspace as module
from holdfast.testing.conformance import TTL, Script, effect, refused
from holdfast.testing.conformance_blobs import bulk, recording
from holdfast.testing.conformance_outbox import intent
from tests.upkeep.test_check import content


class Two:
    """A writer and a reader of one folder; the reader was there first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reader = WorkspaceStore(folder)
        self.writer = WorkspaceStore(folder)


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    t = Two(tmp_path / "ws")
    await t.reader.open()
    await t.writer.open()
    await t.writer.register("w", TTL)
    yield t
    await t.writer.close()
    await t.reader.close()


async def test_a_reader_sees_each_commit(two: Two) -> None:
    """The run, its rows, its place: after each commit of the other, though the folder was not even there when it opened."""
    assert await two.reader.runs(RunFilter()) == []
    script = await Script(two.writer, "r1").begin("w")
    for _ in range(4):
        await script.steps(1)
        found = await two.reader.get("r1")
        assert found is not None and script.run is not None
        assert found[0] == script.run
        assert (found[1].owner, found[1].owner_alive) == ("w", Alive.YES)
        assert await two.reader.rows("r1") == await two.writer.rows("r1")
    await script.complete()
    assert [str(r.status) for r, _ in await two.reader.runs(RunFilter())] == ["completed"]
    assert two.reader.incarnation == two.writer.incarnation


async def test_what_hangs_on_a_run_is_seen_too(two: Two) -> None:
    """Inbox, effects, intents, claims, ledger, large results; and what only these files say, without a commit."""
    script = await Script(two.writer, "r1").begin("w")
    assert await two.reader.effects("r1") == []
    first = effect("r1", 1, "k")
    await script.write(script.commit(ev.SideEffectAttempted("r1.x1", "k"), effects=(first,), intents=(intent("r1", "i1", two.writer.now()),)))
    assert await two.reader.effects("r1") == [first]
    assert await two.reader.effects(key="k") == [first]
    assert [i.state for i in await two.reader.intents("r1")] == ["queued"]
    assert await two.writer.settle_effect(effect("r1", 1, "k", EffectStatus.RECORDED), "attempted")
    assert [e.status for e in await two.reader.effects("r1")] == ["recorded"]
    await two.writer.claim_intents("w", ("mail",), limit=1, ttl_us=TTL)
    assert [i.state for i in await two.reader.intents()] == ["sending"]
    command = Cancel("ada")
    await two.writer.put(InboxItem("r1", command.key, command, two.writer.now()))
    assert [i.key for i in await two.reader.inbox("r1")] == [command.key]
    await script.write(script.commit(ev.NoteAdded("taken"), took=(command.key,)))
    assert await two.reader.inbox("r1") == []
    await script.write(recording(script, bulk()))
    assert await two.reader.blob(bulk().digest) == bulk().data
    await refused(StoreCorrupt, two.reader.blob(blob_of(b"?").digest), "blob_unreadable")


async def test_a_child_counts_with_its_parents_commit(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files come first: a reader that looks in between sees neither, and both afterwards, though the child's files change no more."""
    script = await Script(two.writer, "p1").begin("w")
    assert [r.run_id for r, _ in await two.reader.runs(RunFilter())] == ["p1"]
    add = module._add
    seen: list[Any] = []

    def between(path: str, data: bytes) -> None:
        seen.append(([r.run_id for r, _ in at_once(two.reader.runs(RunFilter()))], at_once(two.reader.inbox("p1"))))
        add(path, data)

    monkeypatch.setattr(module, "_add", between)
    born = Script(two.writer, "c1", parent_run_id="p1").first()
    told = InboxItem("p1", "k1", Cancel("ada"), two.writer.now())
    await script.write(script.commit(ev.NoteAdded("child"), creates=(born,), puts=(told,)))
    monkeypatch.undo()
    assert len(seen) == 3, "the child's log, the inbox line, the parent's log"
    assert seen == [(["p1"], [])] * 3
    assert sorted(r.run_id for r, _ in await two.reader.runs(RunFilter())) == ["c1", "p1"]
    assert [i.key for i in await two.reader.inbox("p1")] == ["k1"]


def at_once(verb: Coroutine[Any, Any, Any]) -> Any:
    """What a verb of this store gives, in the middle of plain code: it never pauses."""
    with pytest.raises(StopIteration) as e:
        verb.send(None)
    return e.value.value


async def test_a_reader_takes_no_lock_and_leaves_nothing(two: Two) -> None:
    """T-98: it was there first and does not keep the writer from writing; looking changes no byte."""
    script = await Script(two.writer, "r1").begin("w")
    await script.steps(2)
    before = content(two.folder)
    await two.reader.get("r1")
    assert [p.code for p in await Checker(two.reader).all()] == []
    assert content(two.folder) == before
    assert two.reader._lock < 0 <= two.writer._lock


async def test_only_one_writes(two: Two) -> None:
    """§12.5: the other is refused by name until the first has let go; then it goes on from what the first has left."""
    script = await (await Script(two.writer, "r1").begin("w")).steps(1)
    await two.reader.register("v", TTL)
    await refused(StoreBusy, Script(two.reader, "r2").submit())
    await refused(StoreBusy, two.reader.claim("v", (), None, limit=1))
    await refused(StoreBusy, two.reader.put(InboxItem("r1", "k", Cancel("ada"), 0)))
    assert await two.reader.get("r2") is None
    await script.steps(1)
    await two.writer.close()
    found = await two.reader.get("r1")
    assert found is not None and found[1].owner_alive is Alive.NO
    (claim,) = await two.reader.claim("v", (), None, limit=1)
    assert (claim.previous_owner, claim.cause) == ("w", "owner_dead")
    loaded = await two.reader.load("r1")
    assert loaded is not None
    going = Script.of(two.reader, loaded, claim.fence)
    assert script.tip is not None and loaded.tip.hash == script.tip.hash, "what the first wrote last"
    await (await going.steps(1)).complete()
    late = WorkspaceStore(two.folder)
    await late.open()
    assert [p.code for p in await Checker(late).all()] == []
    await late.close()


async def test_a_commit_prepared_on_old_ground_is_refused(two: Two) -> None:
    """§10.14: whoever takes the lock reads first; what was decided on what it saw before does not fit any more."""
    script = await Script(two.writer, "r1").begin("w")
    await two.reader.register("v", TTL)
    loaded = await two.reader.load("r1")
    await script.wait()
    await two.writer.close()
    stale = Script.of(two.reader, loaded, loaded.lease.fence)
    error = await refused(LeaseLost, two.reader.commit(stale.commit(ev.NoteAdded("late"))))
    assert "was released" in error.message


async def test_a_run_that_is_pruned_or_damaged_meanwhile(two: Two) -> None:
    """A directory that goes is gone; a line that changes is named; mended, it is there again."""
    for run_id in ("r1", "r2"):
        await (await Script(two.writer, run_id).begin("w")).complete()
    assert len(await two.reader.runs(RunFilter())) == 2
    log = two.folder / "r2" / "events.jsonl"
    sound = log.read_bytes()
    log.write_bytes(sound.replace(b"skill", b"skull", 1))
    await refused(StoreCorrupt, two.reader.get("r2"))
    log.write_bytes(sound)
    assert await two.reader.get("r2") is not None
    assert (await two.writer.prune(two.writer.now() + 1)).run_ids == ("r1", "r2")
    assert await two.reader.runs(RunFilter()) == []
    assert await two.reader.get("r1") is None


class Count(State):
    n: int = 0


graph = Graph("count", Count, version="1")


@graph.node(start=True)
async def one(state: Count, ctx: Context) -> Any:
    await ctx.step(int, "1")
    return {"n": 1}


@graph.node(after="one")
async def two_(state: Count, ctx: Context) -> Any:
    await ctx.wait("go")
    return {"n": 2}


async def test_events_follow_what_another_process_does(tmp_path: Path) -> None:
    """§13: a follower that was there before the run's second half is told of it, and ends with the run."""
    folder = tmp_path / "ws"
    async with Runtime(f"workspace:{folder}", skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        async with Runtime(f"workspace:{folder}") as other:
            feed = other.events(run.run_id, follow=True)
            told: list[str] = []
            rests = asyncio.Event()

            async def follow() -> None:
                async for event in feed:
                    told.append(event.type)
                    if event.type == "run.waiting_for_signal":
                        rests.set()

            following = asyncio.create_task(follow())
            await asyncio.wait_for(rests.wait(), 30)
            await rt.signal(run.run_id, "go")
            await rt.resume(run.run_id)
            await asyncio.wait_for(following, 30)
    assert told[-1] == "run.completed"
    assert told.count("run.started") == 1


def test_follow_on_the_command_line(tmp_path: Path) -> None:
    """``events --follow`` in one process moves with what ``signal`` and ``resume`` do in others."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    (tmp_path / "count.py").write_text(_SKILL, "utf-8")

    def holdfast(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words, "--workspace", "ws"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def done(*words: str) -> str:
        child = holdfast(*words)
        out, err = child.communicate(timeout=60)
        assert child.returncode in (0, 4), err
        return out

    done("run", "count.py", "--json")
    run_id = next((tmp_path / "ws").glob("*/events.jsonl")).parent.name
    following = holdfast("events", run_id, "--follow")
    assert following.stdout is not None
    for line in following.stdout:
        if "waiting_for_signal" in line:
            break
    done("signal", run_id, "go")
    done("resume", run_id, "count.py")
    rest, _ = following.communicate(timeout=60)
    assert following.returncode == 0
    assert "run.completed" in rest


_SKILL = """
from holdfast import Context, Graph, State


class Count(State):
    n: int = 0


graph = Graph("count", Count)


@graph.node(start=True)
async def one(state: Count, ctx: Context):
    await ctx.wait("go")
    return {"n": 1}
"""
