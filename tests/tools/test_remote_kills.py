"""Tool runners that die at each of their writes, are killed in the middle of a tool, or are frozen; and the worker that asked, killed meanwhile (§11.3)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.status import Status
from holdfast.testing import CrashingStore, Fault, SimulatedCrash
from tests.outbox.conftest import Open
from tests.stopped import stop
from tests.tools.test_remote import Pair, begun


class Numbered(State):
    n: int = 0
    script: str = ""


numbered: Graph[Numbered] = Graph("numbered", Numbered, version="1")


@numbered.node(start=True)
async def work(state: Numbered, ctx: Context) -> None:
    await ctx.tool("sh", ["-c", state.script or f"printf x >> count{state.n}"], timeout=90)


def counted(pair: Pair, number: int) -> int:
    path = pair.folder / f"count{number}"
    return len(path.read_text()) if path.exists() else 0


@contextlib.asynccontextmanager
async def at_work(*work: Callable[[asyncio.Event], Any]) -> AsyncIterator[None]:
    """Workers and runners that go on until the end."""
    stop = asyncio.Event()
    tasks = [asyncio.ensure_future(start(stop)) for start in work]
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)


async def rested(rt: Runtime, run_id: str) -> Any:
    """The run once no runner has it."""
    async with asyncio.timeout(60):
        while (run := await rt.get(run_id)).status not in (Status.COMPLETED, Status.WAITING_FOR_HUMAN, Status.FAILED):
            await rt.store.wait_for_change(0.2)
    return run


async def test_a_runner_dies_at_each_of_its_writes(open_rt: Open, tmp_path: Path) -> None:
    """Before or after the claim, before or after the settlement: the call was made once at most, and where nobody knows a person is asked."""
    pair = Pair(open_rt, tmp_path / "space", skill=numbered)
    cases = [("claim_intents", Fault.AFTER), ("settle_intents", Fault.BEFORE), ("settle_intents", Fault.AFTER), ("claim_intents", Fault.BEFORE)]
    async with pair.worker() as rt:
        runs = []
        for number, (verb, fault) in enumerate(cases):
            runs.append(await rt.invoke(numbered, {"n": number}))
            dying = Runtime(CrashingStore(rt.store, lambda _, v, verb=verb, fault=fault: fault if v == verb else None).as_store(), transports=pair.there.transports, lease=2.0)
            with contextlib.suppress(SimulatedCrash):
                async with dying:
                    await dying.dispatch(until_idle=True)
        async with pair.runner() as runner, at_work(lambda stop: runner.dispatch(stop=stop), lambda stop: rt.worker(stop=stop)):
            ends = [await rested(rt, run.run_id) for run in runs]
        found = {(verb, fault): (str(run.status), [w.kind for w in run.waits], counted(pair, n)) for n, ((verb, fault), run) in enumerate(zip(cases, ends, strict=True))}
    asked = ("waiting_for_human", ["effect"])
    assert found == {
        ("claim_intents", Fault.BEFORE): ("completed", [], 1),
        ("claim_intents", Fault.AFTER): (*asked, 0),
        ("settle_intents", Fault.BEFORE): (*asked, 1),
        ("settle_intents", Fault.AFTER): ("completed", [], 1),
    }


async def test_the_worker_that_asked_dies_meanwhile(open_rt: Open, tmp_path: Path) -> None:
    """Before and after each of its commits: the tool runs once, whoever goes on with the run."""
    pair = Pair(open_rt, tmp_path / "space", skill=numbered)
    async with pair.worker() as rt, pair.runner() as runner, at_work(lambda stop: runner.dispatch(stop=stop)):
        runs = []
        for commit in range(1, 5):
            for fault in (Fault.BEFORE, Fault.AFTER):
                run = await rt.submit(numbered, {"n": len(runs)})
                runs.append(run.run_id)
                commits = iter(range(1, 100))

                def plan(_: int, verb: str, commits: Any = commits, commit: int = commit, fault: Fault = fault) -> Fault | None:
                    return fault if verb == "commit" and next(commits) == commit else None

                with contextlib.suppress(SimulatedCrash):
                    async with Runtime(
                        CrashingStore(rt.store, plan).as_store(), skills=[numbered], tools=pair.tools, workspace=f"remote:{pair.there.workspace}", lease=2.0
                    ) as dying:
                        await dying.resume(run.run_id)
        async with at_work(lambda stop: rt.worker(stop=stop)):
            ends = [await rested(rt, run_id) for run_id in runs]
        assert [(str(r.status), counted(pair, n)) for n, r in enumerate(ends)] == [("completed", 1)] * len(runs)
        for run_id in runs:
            assert [e.status for e in await rt.store.effects(run_id)] == ["recorded"] and len(await rt.intents(run_id)) == 1


@pytest.mark.one_store("its runners are processes that open the file")
async def test_a_runner_is_killed_and_one_is_frozen(tmp_path: Path) -> None:
    """With the processes themselves: ``kill -9`` in the middle of a tool; and SIGSTOP until another runner has the request: its late outcome is evidence."""
    url = f"sqlite:///{tmp_path}/a.db"
    (tmp_path / "declared.py").write_text('from holdfast import Tool\ntools = [Tool("sh", side_effects="write")]\n')
    pair = Pair(lambda **options: Runtime(url, **options), tmp_path / "space", skill=numbered)
    started: list[asyncio.subprocess.Process] = []

    async def start() -> asyncio.subprocess.Process:
        argv = ("-m", "holdfast", "tool-runner", "--workspace", "space", "--tools", "declared.py:tools", "--store", url, "--lease", "1")
        process = await asyncio.create_subprocess_exec(sys.executable, *argv, cwd=tmp_path, stderr=asyncio.subprocess.PIPE)
        started.append(process)
        assert process.stderr is not None
        said = (await asyncio.wait_for(process.stderr.readline(), 20)).decode()
        assert said.startswith("tool runner ") and f"workspace {pair.there.workspace}, sh" in said, said
        return process

    waiting = "echo $$ > pid; while ! test -e go; do sleep 0.02; done; printf x >> count{}"
    try:
        async with pair.worker() as rt, at_work(lambda stop: rt.worker(stop=stop)):
            first = await start()
            killed = await rt.submit(numbered, {"n": 0, "script": waiting.format(0)})
            await asyncio.wait_for(begun(pair, rt), 20)
            first.kill()
            os.killpg(int((pair.folder / "pid").read_text()), signal.SIGKILL)
            (pair.folder / "pid").unlink()
            second = await start()
            run = await rested(rt, killed.run_id)
            assert ([w.kind for w in run.waits], counted(pair, 0)) == (["effect"], 0), run.error
            frozen = await rt.submit(numbered, {"n": 1, "script": waiting.format(1)})
            await asyncio.wait_for(begun(pair, rt), 20)
            stop(second.pid, tmp_path / "a.db")
            await start()
            run = await rested(rt, frozen.run_id)
            assert [w.kind for w in run.waits] == ["effect"], run.error
            (pair.folder / "go").touch()
            async with asyncio.timeout(60):
                while not counted(pair, 1):  # the tool goes on though its runner is frozen
                    await rt.store.wait_for_change(0.02)
            second.send_signal(signal.SIGCONT)
            async with asyncio.timeout(60):
                while not any("too late" in str(e.payload) for e in await rt.events(frozen.run_id)):
                    await rt.store.wait_for_change(0.2)
            assert [(e.status, e.closed) for e in await rt.store.effects(frozen.run_id)] == [("unknown", True)]
            assert counted(pair, 1) == 1 and [w.kind for w in (await rt.get(frozen.run_id)).waits] == ["effect"]
            done = await rt.decide(frozen.run_id, "record_result", payload={"exit_code": 0}, actor="ada")
            assert done.run_id == frozen.run_id
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
            await process.wait()
