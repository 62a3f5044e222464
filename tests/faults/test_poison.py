"""Timeouts that end, threads that do not, forks, and a Runtime in the wrong hands (§10.10, X-14, X-18, X-24)."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Limit, Runtime, State, flow
from holdfast.core.errors import ForeignLoop, LeaseLost, ProcessForked, StoreError
from holdfast.core.graph import DEFAULT_TIMEOUT_US
from holdfast.engine.base.pool import Job, Pool
from holdfast.engine.calls import functions
from holdfast.engine.calls.functions import Patience
from holdfast.engine.desk.door import Request
from holdfast.stores import MemoryStore
from holdfast.testing import Fault, World


class Count(State):
    n: int = 0


def lone(function: Any, **options: Any) -> Graph[Count]:
    graph = Graph("lone", Count)
    graph.node("node", start=True, **options)(function)
    return graph


# -- how long a step may take -----------------------------------------------------------------------


def test_the_default_counts_from_the_last_progress(holdfast_world: World) -> None:
    """§10.10: ten minutes of chunks, of recorded calls and of progress are no timeout; a minute of silence is."""
    clock = holdfast_world.clock

    async def busy(state: Count, ctx: Context) -> dict[str, int]:
        for n in range(8):
            await clock.sleep(50)
            ctx.progress(f"{n}")
            await clock.sleep(50)
            ctx.emit(n)
            await clock.sleep(50)
            await ctx.step(clock.sleep, 50)
        return {"n": 1}

    async def silent(state: Count, ctx: Context) -> None:
        ctx.progress()
        await clock.sleep(70)

    async def story() -> tuple[Any, Any]:
        host = await holdfast_world.host(lone(busy))
        return await host.do(host.rt.invoke(lone(busy), {})), await host.do(host.rt.invoke(lone(silent), {}))

    done, failed = holdfast_world.run(story())
    assert done.status == "completed", done.error
    assert failed.stop_reason == "step_timeout"
    assert "60 s without any progress" in failed.error.message
    assert "timeout=" in failed.error.hint and "ctx.progress()" in failed.error.hint


def test_a_time_of_its_own_counts_from_the_start(holdfast_world: World) -> None:
    clock = holdfast_world.clock

    async def busy(state: Count, ctx: Context) -> None:
        while True:
            await clock.sleep(10)
            ctx.progress()

    async def call(ctx: Context) -> None:
        while True:
            await clock.sleep(10)
            ctx.progress()

    async def calling(state: Count, ctx: Context) -> None:
        await ctx.step(call, ctx, timeout=100, key="k")

    async def story() -> list[Any]:
        host = await holdfast_world.host()
        return [await host.do(host.rt.invoke(g, {})) for g in (lone(busy, timeout=100), lone(calling))]

    for run in holdfast_world.run(story()):
        assert run.stop_reason == "step_timeout", run.error
        assert "longer than 100 s" in run.error.message and "timeout=" in run.error.hint


def test_a_call_with_more_time_than_its_node(holdfast_world: World) -> None:
    """§10.10: while a call has a time of its own, its node's default does not count."""
    clock = holdfast_world.clock

    async def calling(state: Count, ctx: Context) -> dict[str, int]:
        await ctx.step(clock.sleep, 300, timeout=400)
        return {"n": 1}

    async def story() -> Any:
        host = await holdfast_world.host()
        return await host.do(host.rt.invoke(lone(calling), {}))

    assert holdfast_world.run(story()).status == "completed"


def test_patience() -> None:
    patience = Patience.of(None)
    assert (patience.limit_us, patience.own) == (DEFAULT_TIMEOUT_US, False)
    patience.move(100.0)
    assert patience.remaining(130.0) == 30.0
    patience.hold()
    assert patience.remaining(1_000.0) == 60.0
    patience.release(1_000.0)
    assert patience.remaining(1_010.0) == 50.0
    own = Patience.of(5)
    own.hold()
    assert own.remaining(3.0) == 2.0


async def until(rt: Runtime, run_id: str, status: str) -> None:
    while (await rt.get(run_id)).status != status:
        await rt.store.wait_for_change(1)


async def test_what_swallows_its_cancel_is_abandoned_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "CLEANUP_SECONDS", 0.05)
    turns: list[int] = []

    async def stubborn(state: Count) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                turns.append(1)

    async with asyncio.timeout(60), Runtime(MemoryStore()) as rt:
        run = await rt.invoke(lone(stubborn, timeout=0.05), {})
        assert run.stop_reason == "step_timeout" and "abandoned" in ((run.error and run.error.message) or "")
        seen = len(turns)
        other = lone(stubborn)
        made = await rt.submit(other, {})
        work = asyncio.ensure_future(rt.worker())
        await until(rt, made.run_id, "running")
        await rt.cancel(made.run_id)
        await until(rt, made.run_id, "canceled")
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert len(turns) == seen + 1, "it is stepped no further"


# -- threads ------------------------------------------------------------------------------------------


word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="")


async def test_plain_code_runs_in_threads_of_our_own() -> None:
    seen: list[tuple[str, str, bool]] = []

    def plain(state: Count) -> dict[str, int]:
        seen.append((threading.current_thread().name, word.get(), threading.current_thread().daemon))
        return {"n": 1}

    word.set("kept")
    async with Runtime(MemoryStore()) as rt:
        for _ in range(5):
            assert (await rt.invoke(lone(plain), {})).state.n == 1
    assert {(w, d) for _, w, d in seen} == {("kept", True)}
    assert {name for name, _, _ in seen} == {"holdfast-call-1"}, "one after the other, one thread will do"


def test_a_thread_is_free_before_its_result_is_told() -> None:
    """Who makes the next call the moment the last one is done needs no second thread."""
    pool, done = Pool(4), list[int]()
    last = threading.Event()

    def again(future: Future[int]) -> None:
        done.append(future.result())
        if len(done) < 5:
            pool.submit(Job(lambda: len(done), (), "next", None)).add_done_callback(again)
        else:
            last.set()

    pool.submit(Job(lambda: 0, (), "first", None)).add_done_callback(again)
    assert last.wait(10)
    assert (done, pool.threads) == ([0, 1, 2, 3, 4], 1)
    assert pool.close(20) == []


def test_a_pool_is_bounded_and_gives_places_of_lost_threads_away() -> None:
    pool, gate = Pool(2), threading.Event()
    begun = threading.Semaphore(0)

    def hang() -> None:
        begun.release()
        gate.wait(10)

    jobs = [Job(hang, (), f"hang{n}", None) for n in range(2)]
    for job in jobs:
        pool.submit(job)
    third = Job(lambda: 7, (), "third", None)
    future = pool.submit(third)
    assert begun.acquire(timeout=60) and begun.acquire(timeout=60)
    assert not future.done()
    pool.give_up(jobs[0])
    assert pool.submit(Job(lambda: 8, (), "fourth", None)).result(20) == 8
    assert future.result(20) == 7
    pool.give_up(jobs[1])
    with pytest.raises(Exception, match="hang0, hang1"):
        pool.submit(Job(lambda: 9, (), "fifth", None))
    assert sorted(pool.close(0.01)) == ["hang0", "hang1"]
    gate.set()
    assert pool.close(20) == []


UNENDING = """
from __future__ import annotations
import asyncio, logging, sys, threading
from holdfast import Graph, Runtime, State
import holdfast.runtime
logging.basicConfig()
holdfast.runtime.CLOSE_SECONDS = 0.2

class S(State):
    n: int = 0

graph = Graph("g", S)

@graph.node(start=True, timeout=0.2)
def unending(state: S):
    threading.Event().wait()

async def main():
    async with Runtime(f"sqlite:///{sys.argv[1]}") as rt:
        run = await rt.invoke(graph, {})
        print(run.stop_reason)

asyncio.run(main())
"""


def test_a_process_with_an_unending_thread_stops_and_says_which(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", UNENDING, str(tmp_path / "s.db")], check=False, capture_output=True, text=True, timeout=60)
    assert ended.stdout == "step_timeout\n"
    assert ended.returncode == 0
    assert "unending still ran in a thread" in ended.stderr


# -- lateness and the house's errors --------------------------------------------------------------------


@pytest.mark.parametrize("wraps", ["as_it_is", "group", "cause", "swallowed"])
def test_no_error_of_the_house_is_an_outcome(holdfast_world: World, wraps: str) -> None:
    """X-18: whatever a node makes of a lease that was lost under it, the run goes on elsewhere and acts once."""
    world = holdfast_world

    async def act() -> str:
        world.outside.act("act")
        return "done"

    @flow("late")
    async def late(ctx: Context) -> str:
        await ctx.step(world.clock.sleep, 1)
        await asyncio.sleep(0)
        try:
            return str(await ctx.effect(act))
        except (LeaseLost, StoreError) as e:
            if wraps == "group":
                raise ExceptionGroup("both", [e, ValueError("x")]) from None
            if wraps == "cause":
                raise ValueError("mine") from e
            if wraps == "swallowed":
                return "nothing came of it"
            raise

    async def story() -> tuple[Any, list[str]]:
        ill = False

        def plan(n: int, verb: str) -> Any:
            return Fault.LOST if ill and verb in ("renew", "commit") else None

        host = await world.host(late, plan=plan)
        run = await host.do(host.rt.submit(late))
        host.start(host.rt.worker())
        await world.clock.sleep(0.5)
        ill = True
        await world.clock.sleep(40)
        ill = False
        await world.clock.sleep(120)
        return await host.do(host.rt.get(run.run_id)), [e.type for e in await host.rt.events(run.run_id)]

    run, types = world.run(story())
    assert (run.status, run.result) == ("completed", "done"), (run.error, types)
    assert "attempt.taken_over" not in types
    assert world.outside.acts == {"act": 1}


def test_a_thread_that_holds_the_interpreter_fails_nothing(tmp_path: Path) -> None:
    """X-18: the heart cannot beat for three leases; acts of other runs wait for a beat out of turn, and are done once."""
    acts = tmp_path / "acts"

    def act(n: int) -> int:
        fd = os.open(acts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{n}\n".encode())
        os.close(fd)
        return n

    @flow("acting")
    async def acting(ctx: Context, n: int) -> int:
        for k in range(3):
            await ctx.effect(act, n * 10 + k)
        return n

    @flow("greedy")
    async def greedy(ctx: Context) -> None:
        for _ in range(2):
            interval = sys.getswitchinterval()
            sys.setswitchinterval(10)
            end = time.monotonic() + 0.9
            while time.monotonic() < end:
                pass
            sys.setswitchinterval(interval)
            await asyncio.sleep(0)

    async def body() -> None:
        async with Runtime(f"sqlite:///{tmp_path / 's.db'}", skills=[acting, greedy], lease=0.3) as rt:
            runs = [await rt.submit(acting, {"n": n}) for n in range(4)]
            runs += [await rt.submit(greedy)]
            await rt.worker(until_idle=True)
            for run in runs:
                now = await rt.get(run.run_id)
                assert now.status == "completed", (now.stop_reason, now.error)
                assert "attempt.taken_over" not in [e.type for e in await rt.events(run.run_id)]

    asyncio.run(body())
    assert sorted(map(int, acts.read_text().split())) == sorted(n * 10 + k for n in range(4) for k in range(3))


# -- a Runtime in the wrong hands ------------------------------------------------------------------------


async def one(state: Count) -> dict[str, int]:
    return {"n": state.n + 1}


async def test_a_runtime_entered_again(tmp_path: Path) -> None:
    graph = lone(one)
    for store in (MemoryStore(), f"sqlite:///{tmp_path / 's.db'}"):
        rt = Runtime(store, skills=[graph])
        owners = set()
        for _ in range(3):
            async with rt:
                assert (await rt.invoke(graph, {})).state.n == 1
                await rt.submit(graph, {})
                await rt.worker(until_idle=True)
                owners.add(rt.owner)
        assert len(owners) == 3
        async with rt, rt:
            assert (await rt.invoke(graph, {})).state.n == 1


def test_a_runtime_entered_again_in_another_loop(tmp_path: Path) -> None:
    graph = lone(one)
    rt = Runtime(f"sqlite:///{tmp_path / 's.db'}", skills=[graph])

    async def use() -> None:
        async with rt:
            assert (await rt.invoke(graph, {})).state.n == 1

    for _ in range(2):
        asyncio.run(use())


async def test_a_runtime_shared_by_threads_is_refused(tmp_path: Path) -> None:
    graph = lone(one)
    async with Runtime(f"sqlite:///{tmp_path / 's.db'}", skills=[graph]) as rt:
        run = await rt.invoke(graph, {})

        async def use() -> None:
            for verb in (lambda: rt.invoke(graph, {}), lambda: rt.submit(graph, {}), lambda: rt.get(run.run_id), lambda: rt.worker(until_idle=True), rt.__aenter__, rt.close):
                with pytest.raises(ForeignLoop, match="another event loop") as caught:
                    await verb()
                assert "run_coroutine_threadsafe" in caught.value.hint

        await asyncio.to_thread(lambda: asyncio.run(use()))
        assert (await rt.get(run.run_id)).status == "completed"


FOREIGN: dict[str, tuple[Any, ...]] = {
    "acknowledge": (), "approve": ("w",), "attempts": ("RUN",), "backup": ("FILE",), "cancel": ("RUN",), "check": (), "checkpoint": ("RUN",), "checkpoints": ("RUN",),
    "close": (), "decide": ("w", "approve"), "decide_all": ("approve",), "deny": ("w",), "diff": ("RUN", "a", "b"), "dispatch": (), "effects": ("RUN",), "events": ("RUN",),
    "explain": ("RUN",), "export": ("RUN", "FILE"), "fork": ("RUN",), "get": ("RUN",), "history": ("t",), "import_runs": ("FOLDER",), "intents": (), "invoke": ("SKILL", {}),
    "issue_token": ("w", "ann"), "kernel_invoke": ("SKILL", {}, Request()), "kernel_resume": ("RUN",), "lanes": (), "ledger": (), "limits": (), "mask": ("RUN",), "pause_queue": ("q",),
    "pause_schedule": ("s",), "prune": (timedelta(1),), "queues": (), "record": ("RUN",), "recover": (), "redeem": ("t", "approve"), "redrive": ("i",), "repair_run_state": ("RUN",),
    "replay": ("RUN",), "restore": ("FILE",), "result": ("RUN",), "resume": ("RUN",), "run": ("SKILL", {}), "run_stream": ("SKILL", {}), "runs": (), "schedule": ("SKILL",), "schedules": (),
    "set_limit": ("l", Limit(in_flight=1)), "settle": ("i", "sent"), "signal": ("RUN", "s"), "state": ("RUN",), "steps": ("RUN",), "stream": ("RUN",), "submit": ("SKILL", {}), "trigger": ("s",),
    "unpause_queue": ("q",), "unpause_schedule": ("s",), "unschedule": ("s",), "unset_limit": ("l",), "waits": (), "worker": (), "workers": (),
}
"""By verb of a Runtime what it is given. All of them go to the store."""
NAMED: dict[str, dict[str, Any]] = {
    name: {"actor": "ann"} for name in ("approve", "decide", "decide_all", "deny", "pause_queue", "redrive", "set_limit", "settle", "unpause_queue", "unset_limit")
} | {
    "schedule": {"every": timedelta(1)}
}
NAMED["deny"]["reason"] = "no"
NAMED["decide_all"]["where"] = {"name": "n"}


def test_every_verb_is_among_those_that_are_refused_to_other_threads() -> None:
    verbs = {name for name, f in vars(Runtime).items() if not name.startswith("_") and (inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f))}
    assert verbs <= FOREIGN.keys()


@pytest.mark.parametrize("name", FOREIGN)
async def test_a_verb_is_refused_to_another_thread(name: str, tmp_path: Path) -> None:
    """One that only reads, too: what it returned would be of a store that another loop writes."""
    graph = lone(one)
    async with Runtime(f"sqlite:///{tmp_path / 's.db'}", skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        named = {"RUN": run.run_id, "SKILL": graph, "FILE": tmp_path / "x", "FOLDER": tmp_path}
        given = [named.get(a, a) if isinstance(a, str) else a for a in FOREIGN[name]]

        async def call() -> None:
            answer = getattr(rt, name)(*given, **NAMED.get(name, {}))
            if not hasattr(answer, "__aiter__"):
                await answer
            async for _ in answer:
                break

        async def use() -> None:
            with pytest.raises(ForeignLoop):
                await asyncio.wait_for(call(), 60)

        await asyncio.to_thread(lambda: asyncio.run(use()))
        assert (await rt.get(run.run_id)).status == "completed"


def _child(rt: Any, graph: Any, run_id: str, said: Any) -> None:
    async def use() -> list[str]:
        out = []
        for verb in (lambda: rt.submit(graph, {}), lambda: rt.get(run_id), lambda: rt.store.workers()):
            try:
                await verb()
            except ProcessForked as e:
                out.append(e.code)
        return out

    said.put(asyncio.run(use()))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
async def test_the_child_of_a_fork_neither_commits_nor_claims(tmp_path: Path) -> None:
    """§10.1: what the parent opened is not the child's; and a child keeps no dead parent alive."""
    graph = lone(one)
    async with Runtime(f"sqlite:///{tmp_path / 's.db'}", skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        context = multiprocessing.get_context("fork")
        said = context.SimpleQueue()
        child = context.Process(target=_child, args=(rt, graph, run.run_id, said))
        child.start()
        child.join(30)
        assert said.get() == ["process_forked"] * 3
        assert len(await rt.runs()) == 1
