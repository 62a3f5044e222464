"""What is sound stays so (point 14 of «Harden»): an export of a sound run is sound, and a check beside a prune tells of nothing that is not there."""

from __future__ import annotations

import asyncio
import datetime as dt
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Context, Goto, Graph, Runtime, State, append
from holdfast.core.codec import Row
from holdfast.core.consistency import Diagnosis
from holdfast.core.errors import HoldfastError, RecordDamaged
from holdfast.engine.keep import check
from holdfast.stores import MemoryStore, PostgresStore, SqliteStore, WorkspaceStore, workspace
from holdfast.stores.postgres import besides as pg_besides
from holdfast.stores.sqlite import besides
from holdfast.testing import VirtualClock
from holdfast.testing.conformance import TTL, Script, signal
from tests.postgres.server import shared

ACTS = ("effect", "step", "large", "send", "record", "ask", "wait", "fail")


class Long(State):
    n: int = 0


class Plan(State):
    acts: list[list[str]] = []  # noqa: RUF012
    said: Annotated[list[str], append] = []  # noqa: RUF012


def skill() -> Graph[Plan]:
    made = Graph("plan", Plan, version="1")

    @made.node(start=True)
    async def first(state: Plan, ctx: Context) -> dict[str, Any]:
        return {"said": [await act(ctx, name) for name in state.acts[0]]}

    @made.node(after="first")
    async def second(state: Plan, ctx: Context) -> dict[str, Any]:
        return {"said": [await act(ctx, name) for name in state.acts[1]]}

    return made


async def act(ctx: Context, name: str) -> str:
    match name:
        case "effect":
            await ctx.effect(said, "mail", key=f"mail-{ctx.run_id}")
        case "step":
            await ctx.step(said, "step")
        case "large":
            await ctx.step(said, "x" * 70_000, name="large")
        case "send":
            ctx.send("mail", {"to": "ada"})
        case "record":
            ctx.record("topic", "key", {"n": 1})
        case "ask":
            await ctx.approve("go on?", show={"n": 1})
        case "wait":
            await ctx.wait("news")
        case _:
            raise ValueError("it broke")
    return name


async def said(text: str) -> str:
    return text


PLANS = st.lists(st.lists(st.sampled_from(ACTS), max_size=4, unique=True), min_size=2, max_size=2)
DOINGS = st.lists(st.sampled_from(["approve", "deny", "signal", "resume", "fork", "replay", "cancel"]), max_size=5)


async def lived(rt: Runtime, plan: list[list[str]], doings: list[str]) -> None:
    run = await rt.invoke("plan", {"acts": plan}, thread_id="t")
    for n, doing in enumerate(doings):
        try:
            match doing:
                case "approve":
                    await rt.approve(run.run_id, actor="ada")
                case "deny":
                    await rt.deny(run.run_id, reason="no", actor="ada")
                case "signal":
                    await rt.signal(run.run_id, "news", n)
                case "resume":
                    await rt.resume(run.run_id, acknowledge="step_failed")
                case "fork":
                    await rt.fork(run.run_id, from_step="first")
                case "replay":
                    await rt.replay(run.run_id)
                case _:
                    await rt.cancel(run.run_id)
        except HoldfastError:
            pass  # refused, as it may be


@given(plan=PLANS, doings=DOINGS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_an_export_of_a_sound_run_is_sound(plan: list[list[str]], doings: list[str]) -> None:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as place:
            async with Runtime("memory:", skills=[skill()]) as rt:
                await lived(rt, plan, doings)
                assert [p for p in await rt.check() if p.severity == "error"] == []
                told = {r.run_id: await rt.state(r.run_id) for r in await rt.runs()}
                for run_id in told:
                    await rt.export(run_id, place)
            async with Runtime(f"workspace:{place}", skills=[skill()]) as away:
                assert [p for p in await away.check() if p.severity == "error"] == []
                assert {r.run_id: await away.state(r.run_id) for r in await away.runs()} == told
            async with Runtime("memory:", skills=[skill()]) as back:
                assert set((await back.import_runs(place))[0]) == told.keys()
                assert [p for p in await back.check() if p.severity == "error"] == []

    asyncio.run(run())


async def test_a_check_beside_a_prune_tells_of_nothing_that_is_not_there(tmp_path: Path) -> None:
    """Runs vanish while they are looked at: each is whole, or not there."""
    clock = VirtualClock()
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[skill()], clock=clock) as rt:
        for n in range(40):
            await rt.invoke("plan", {"acts": [["effect", "record"], ["large"]]}, thread_id=f"t{n}")
        for n in range(10):
            await rt.invoke("plan", {"acts": [["ask"], []]}, thread_id=f"w{n}")
        clock.advance(60)
        checks = [asyncio.ensure_future(rt.check()) for _ in range(3)]
        await asyncio.sleep(0)
        gone = await rt.prune(dt.timedelta(seconds=1))
        found = [await c for c in checks] + [await rt.check()]
        assert len(gone.run_ids) == 40
        assert [p for problems in found for p in problems if p.severity in ("error", "warning")] == []


async def test_a_verify_in_memory_lets_others_have_their_turn() -> None:
    """Point 2: also where the store itself holds a long log against its hashes."""
    turns = [0]

    async def other() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    store = MemoryStore()
    await store.open()
    await store.register("w", TTL)
    await (await Script(store, "r1").begin("w")).steps(200)
    beside = asyncio.ensure_future(other())
    assert await store.verify() == []
    beside.cancel()
    assert turns[0] >= 20


async def test_many_records_of_a_run_are_not_held_against_their_digests_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point 2: few are, at once; many are in a thread, and what is found is the same."""
    threads: list[int] = []

    def told(db: Any, run_id: str, key: int | None) -> list[RecordDamaged]:
        threads.append(threading.get_ident())
        return [RecordDamaged("inbox", run_id, "s1")]

    monkeypatch.setattr(besides, "damage_of_run", told)
    store = SqliteStore(tmp_path / "s.db")
    await store.open()
    await store.register("w", TTL)
    for run_id, count in (("r1", 3), ("r2", 100)):
        await (await Script(store, run_id).begin("w")).wait()
        for n in range(count):
            await store.put(signal(run_id, f"s{n}", n))
        found = await store.evidence(run_id)
        assert found is not None and [p.code for p in found.problems] == ["inbox_record_altered"]
    assert threads[0] == threading.get_ident() != threads[1]
    await store.close()


async def test_many_records_of_a_run_in_postgres_are_held_against_their_vouchers_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point 2: few are, at once; many are in a thread, a run's and the store's."""
    threads: dict[str, list[int]] = {"damage_of_run": [], "damage_of_store": []}

    def noted(name: str) -> Callable[..., Any]:
        true = getattr(pg_besides, name)

        def told(*args: Any) -> Any:
            threads[name].append(threading.get_ident())
            return true(*args)

        return told

    for name in threads:
        monkeypatch.setattr(pg_besides, name, noted(name))
    store = PostgresStore(shared().fresh("turns"))
    await store.open()
    await store.register("w", TTL)
    for run_id, count in (("r1", 3), ("r2", 100)):
        await (await Script(store, run_id).begin("w")).wait()
        await asyncio.gather(*(store.put(signal(run_id, f"s{n}", n)) for n in range(count)))
        found = await store.evidence(run_id)
        assert found is not None and found.problems == ()
    assert await store.verify() == []
    await store.shelve("cups", {f"k{n}": b"tea" for n in range(100)})
    assert await store.verify() == []
    await store.close()
    for few, many in threads.values():
        assert few == threading.get_ident() != many


async def test_a_look_at_a_workspace_reads_long_logs_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point 2: `verify` and `evidence` of a workspace that another process writes; what is read is the same."""
    writer = WorkspaceStore(tmp_path / "ws")
    await writer.open()
    await writer.register("w", TTL)
    for run_id, steps in (("r1", 3), ("r2", 20), ("r3", 20)):
        await (await Script(writer, run_id).begin("w")).steps(steps)
    for run_id in ("r1", "r2", "r3"):
        found = await writer.evidence(run_id)
        assert found is not None and found.problems == ()
    await writer.close()
    threads: dict[str, set[int]] = {}
    true = workspace.read_log

    def told(run_id: str, data: bytes, checkpoint: Any) -> Any:
        threads.setdefault(run_id, set()).add(threading.get_ident())
        return true(run_id, data, checkpoint)

    monkeypatch.setattr(workspace, "read_log", told)
    monkeypatch.setattr(workspace, "SLICE_BYTES", 12_000)
    reader = WorkspaceStore(tmp_path / "ws")
    assert await reader.verify() == []
    for run_id in ("r1", "r2", "r3"):
        found = await reader.evidence(run_id)
        assert found is not None and found.problems == () and found.tip is not None
        assert len(await reader.log(run_id)) == (4 if run_id == "r1" else 21)
    await reader.close()
    here = threading.get_ident()
    assert threads["r1"] == {here} and here not in threads["r2"] | threads["r3"]


async def test_a_check_lets_others_have_their_turn() -> None:
    """Point 2: it never blocks the loop: between two turns of another task it goes through few rows, however long a log is."""
    turns, fed = [0], Counter[int]()

    class Counted(Diagnosis):
        def feed(self, row: Row) -> None:
            fed[turns[0]] += 1
            super().feed(row)

    async def other() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    made = Graph("long", Long)

    @made.node(start=True)
    async def go(state: Long) -> Goto | dict[str, int]:
        return Goto("go", {"n": state.n + 1}) if state.n < 400 else {"n": 0}

    async with Runtime("memory:", skills=[made]) as rt:
        run = await rt.invoke(made, {})
        assert run.status == "completed"
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(check, "Diagnosis", Counted)
            beside = asyncio.ensure_future(other())
            assert list(await rt.check()) == []
            beside.cancel()
    assert sum(fed.values()) > 400 and max(fed.values()) <= 2 * check.SLICE_ROWS, fed.most_common(3)
