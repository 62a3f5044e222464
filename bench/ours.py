"""Holdfast's cases. ``python bench/ours.py CASE`` prints one JSON line a measurement; see README.md for what each does."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from typing import Annotated, Any

from common import DATABASE, NODES, RUNS, SHORT, TASKS, TEXT, clock, emit, folder, latencies, percentile, rate, size

from holdfast import Context, Goto, Graph, Runtime, Send, State, append, flow, merge, override, thread


class Line(State):
    n: int = 0
    data: str = ""


async def grow(state: Line) -> dict[str, Any]:
    return {"n": state.n + 1, "data": TEXT}


@functools.cache
def line(nodes: int) -> Graph[Line]:
    graph = Graph(f"line{nodes}", Line, version="1")
    for i in range(nodes):
        graph.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")(grow)
    return graph


def url(where: pathlib.Path | str) -> str:
    return DATABASE + os.environ.get("BENCH_OPTIONS", "") if DATABASE else f"sqlite:///{where}/runs.db"


# -- speed ------------------------------------------------------------------------------------------


async def lin() -> None:
    """One run of 100 nodes in a line, several times; the first are left out, in which the log file grows."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            for _ in range(4):
                await rt.invoke(line(NODES), {})
            before, taken = size(where / "runs.db"), []
            for _ in range(15):
                began = clock()
                run = await rt.invoke(line(NODES), {})
                taken.append(clock() - began)
                assert run.state.n == NODES
            rate("lin", NODES, taken, "steps/s")
            emit("lin bytes a step", (size(where / "runs.db") - before) / 15 / NODES, "B")


async def conc(nodes: int = SHORT, name: str = "conc") -> None:
    """100 runs at once in one process."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            await rt.invoke(line(nodes), {})
            taken = []
            for _ in range(6):
                began = clock()
                runs = await asyncio.gather(*[rt.invoke(line(nodes), {}) for _ in range(RUNS)])
                taken.append(clock() - began)
                assert all(r.state.n == nodes for r in runs)
            rate(name, RUNS * nodes, taken[1:], "steps/s")


async def conc_long() -> None:
    """100 runs of 100 nodes at once: what a step costs when births and ends hardly count."""
    await conc(NODES, "conc-long")


class Fan(State):
    n: int = 0
    data: Annotated[str, override] = ""
    out: Annotated[list[int], append]


@functools.cache
def fan_out(tasks: int) -> Graph[Fan]:
    graph = Graph("fan", Fan, version="1")

    @graph.node(start=True)
    async def plan(state: Fan) -> Any:
        return [Send("task", i) for i in range(tasks)]

    @graph.node
    async def task(state: Fan, ctx: Context) -> Any:
        return {"out": [ctx.payload]}

    @graph.node(after="task")
    async def join(state: Fan) -> Any:
        return {"n": len(state.out), "data": TEXT}

    return graph


async def fan() -> None:
    """A fan-out of 100 tasks, each durable when it ends, then a join; the first are left out, in which connections get to know their statements."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            taken = []
            for _ in range(48):
                began = clock()
                run = await rt.invoke(fan_out(TASKS), {})
                taken.append(clock() - began)
                assert run.state.n == TASKS, run
            rate("fan", TASKS, taken[24:], "tasks/s")


async def piece(i: int) -> dict[str, Any]:
    return {"n": i, "data": TEXT}


@flow("pieces", version="1")
async def pieces(ctx: Context, count: int) -> int:
    for i in range(count):
        await ctx.step(piece, i)
    return count


async def wf() -> None:
    """One flow of 100 recorded steps."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            taken = []
            for _ in range(12):
                began = clock()
                assert await rt.run(pieces, NODES) == NODES
                taken.append(clock() - began)
            rate("wf", NODES, taken[3:], "steps/s")


# -- growth -----------------------------------------------------------------------------------------


class Chat(State):
    messages: Annotated[list[dict[str, Any]], append, thread]


@functools.cache
def chat() -> Graph[Chat]:
    """user -> llm -> tool -> llm: four messages, about 1.1 kB, a turn."""
    graph = Graph("chat", Chat, version="1")

    @graph.node(start=True)
    async def ask(state: Chat) -> Any:
        return {"messages": [{"role": "assistant", "content": "y" * 300, "tool": True}]}

    @graph.node(after="ask")
    async def tool(state: Chat) -> Any:
        return {"messages": [{"role": "tool", "content": "r" * 300}]}

    @graph.node(after="tool")
    async def answer(state: Chat) -> Any:
        return {"messages": [{"role": "assistant", "content": "z" * 300, "tool": False}]}

    return graph


async def turns(turns: str = "1000") -> None:
    """1,000 turns of one thread: what a turn costs at its end against its beginning, and what all of it weighs."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            taken = []
            for i in range(int(turns)):
                message = {"role": "user", "content": "q" * 200, "n": i}
                began = clock()
                run = await rt.invoke(chat(), {"messages": [message]}, thread_id="t")
                taken.append(clock() - began)
            weight = sum(len(str(m["content"])) for m in run.state.messages)
            early, late = percentile(taken[5:15], 0.5), percentile(taken[-10:], 0.5)
            emit("turns: turn 10", early * 1e3, "ms")
            emit("turns: turn 1000", late * 1e3, "ms")
            emit("turns: turn 1000 against turn 10", late / early, "x")
        async with Runtime(url(where)) as rt:
            began = clock()
            await rt.get(run.run_id)
            emit("turns: loading turn 1000 cold", (clock() - began) * 1e3, "ms")
        # At rest: what the write-ahead log adds while it is open does not grow with the conversation.
        emit("turns: database per byte of message", size(where / "runs.db") / weight, "x")


async def delta() -> None:
    """What a step adds to the log beyond the bytes it wrote."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            run = await rt.invoke(line(NODES), {})
            rows = await rt.store.rows(run.run_id)
            steps = [len(r.data) for r in rows[1:-1]]
            emit("delta: bytes a step beyond its writes", sum(steps) / len(steps) - len(TEXT) - 10, "B")


class Wide(State):
    n: int = 0
    slots: Annotated[dict[str, str], merge]


@functools.cache
def spin(steps: int) -> Graph[Wide]:
    graph = Graph("spin", Wide, version="1", step_limit=10**9)

    @graph.node(start=True)
    async def turn(state: Wide) -> Any:
        writes = {"n": state.n + 1, "slots": {f"k{state.n % 32}": "v" * 100}}
        return Goto("turn" if state.n + 1 < steps else "ask", writes)

    @graph.node
    async def ask(state: Wide, ctx: Context) -> Any:
        await ctx.approve("on?")

    return graph


async def resume() -> None:
    """Open a store, go on with a run that waits behind 100 or 10,000 steps of history."""
    after = {}
    for steps in (100, 10_000):
        with folder() as where:
            async with Runtime(url(where)) as rt:
                runs = [await rt.invoke(spin(steps), {}) for _ in range(5 if steps == 100 else 3)]
            taken = []
            async with Runtime(url(where), skills=[spin(steps)]) as rt:
                for run in runs:
                    began = clock()
                    ended = await rt.approve(run.run_id)
                    taken.append(clock() - began)
                    assert ended.status == "completed", ended
            after[steps] = percentile(taken, 0.5)
            emit(f"resume: after {steps} steps", after[steps] * 1e3, "ms")
    emit("resume: after 10,000 steps against 100", after[10_000] / after[100], "x")


CLAIMS = 15


async def park(waiting: int = 1_000_000, due: int = 100) -> None:
    """A million runs at rest: memory of a process that works beside them, and claiming 100 that fall due.

    One run is put to rest by the engine; its rows are then copied a million times, under other ids, in SQL.
    """


    @flow("sleeper", version="1")
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(10**9)

    with folder() as where:
        async with Runtime(url(where)) as rt:
            await rt.submit(sleeper, {})
            await rt.worker(until_idle=True)
        if DATABASE:
            copied_on_a_server(waiting, due)
        else:
            copied_in_a_file(where, waiting, due)
        emit("park: database per waiting run", size(where / "runs.db") / waiting, "B")
        child = subprocess.run([sys.executable, __file__, "park-child", str(where), str(due)], stdout=subprocess.PIPE, text=True, check=True)
        print(child.stdout, end="", flush=True)


def copied_on_a_server(waiting: int, due: int) -> None:
    import psycopg

    with psycopg.connect(DATABASE, autocommit=True) as db:
        columns = [str(name) for (name,) in db.execute("SELECT attname FROM pg_attribute WHERE attrelid = 'holdfast.run'::regclass AND attnum > 0 AND NOT attisdropped")]
        fresh = dict.fromkeys(("run_id", "thread_id", "session_key", "lineage_root"), "made") | {"id": "n + 1000", "turn": "n + 1000"}
        fresh["due"] = f"CASE WHEN n > {waiting // 2} AND n <= {waiting // 2 + CLAIMS * due} THEN 1 + (n - {waiting // 2} - 1) / {due} ELSE r.due END"  # put to rest together, due together
        fresh["seal"] = f"holdfast.standing(made, fence, owner, {fresh['due']}, holds, n + 1000)"
        picked = ", ".join(fresh.get(c, f"r.{c}") for c in columns)
        db.execute(
            f"INSERT INTO holdfast.run ({', '.join(columns)}) SELECT {picked} FROM holdfast.run r, generate_series(1, {waiting}) AS n, "
            "LATERAL (SELECT 'copy' || lpad(n::text, 20, '0') || right(r.run_id, 2) AS made) m".encode()
        )
        db.execute(
            "INSERT INTO holdfast.doc (bucket, run, data) SELECT r.bucket, r.id, d.data FROM holdfast.run r, holdfast.doc d WHERE r.run_id LIKE 'copy%' "
            "AND d.run = (SELECT id FROM holdfast.run WHERE run_id NOT LIKE 'copy%')"
        )
        db.execute("VACUUM ANALYZE holdfast.run, holdfast.doc")


def copied_in_a_file(where: pathlib.Path, waiting: int, due: int) -> None:
    import apsw

    with contextlib.closing(apsw.Connection(str(where / "runs.db"))) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(run)")]
        fresh = {"id": "n + 10", "run_id": "printf('copy%022d', n)", "thread_id": "printf('copy%022d', n)", "session_key": "printf('copy%022d', n)"}
        picked = ", ".join(fresh.get(c, c) for c in columns)
        db.execute("PRAGMA synchronous = OFF")
        db.execute(
            f"WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many WHERE n < {waiting}) "
            f"INSERT INTO run ({', '.join(columns)}) SELECT {picked} FROM run, many WHERE run.id = 1"
        )
        db.execute(f"UPDATE run SET due = 1 + (id - {waiting // 2} - 1) / {due} WHERE id > {waiting // 2} AND id <= {waiting // 2 + CLAIMS * due}")  # put to rest together, due together
        db.pragma("wal_checkpoint", "TRUNCATE")


async def park_child(where: str, due: str) -> None:
    before = resident()
    async with Runtime(url(where)) as rt:
        await rt.invoke(line(10), {})
        taken = []
        await rt.store.register("bench", 60_000_000)
        for _ in range(CLAIMS):  # each time the next 100 that have fallen due
            began = clock()
            claims = await rt.store.claim("bench", ("default",), ("sleeper",), limit=int(due))
            taken.append(clock() - began)
            assert len(claims) == int(due), len(claims)
        await rt.store.retire("bench")
        emit("park: claim of 100 due among 1,000,000", percentile(taken, 0.5) * 1e3, "ms")
        emit("park: resident memory beside 1,000,000 runs", resident(), "MB")
        emit("park: of that, for the store", resident() - before, "MB")


def resident() -> float:
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


# -- latency ----------------------------------------------------------------------------------------


class Stamp(State):
    at: float = 0.0


stamped = Graph("stamped", Stamp, version="1")


@stamped.node(start=True)
async def stamp(state: Stamp) -> Any:
    return {"at": time.monotonic()}


@flow("signalled", version="1")
async def signalled(ctx: Context) -> float:
    await ctx.wait("go")
    return time.monotonic()


@flow("approved", version="1")
async def approved(ctx: Context) -> float:
    await ctx.approve("go?")
    return time.monotonic()


SERVED = (stamped, signalled, approved, line(NODES))


async def serve(where: str) -> None:
    """An idle worker in a process of its own."""
    async with Runtime(url(where), skills=SERVED) as rt:
        print("ready", flush=True)
        await rt.worker(concurrency=10)


def worker_process(where: pathlib.Path) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, __file__, "serve", str(where)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline().strip() == "ready"
    return child


NOOPS = 300
"""Of so many a 99th percentile is not the slowest of all: a disk takes a hundred times as long for one sync in some thousand."""


async def noop_polling() -> None:
    """The same by polling alone: without LISTEN, as behind a transaction pooler."""
    os.environ["BENCH_OPTIONS"] = "&pooler=transaction"
    await noop("noop, polling alone")


async def noop(name: str = "noop") -> None:
    """Submit to an idle worker in another process, and have the result here."""
    with folder() as where:
        child = worker_process(where)
        try:
            async with Runtime(url(where), skills=SERVED) as rt:
                taken = []
                for _ in range(NOOPS):
                    await asyncio.sleep(0.02)
                    began = clock()
                    run = await rt.submit(stamped, {})
                    await rt.result(run.run_id)
                    taken.append(clock() - began)
                latencies(name, taken[5:])
        finally:
            child.kill()
            child.wait()


async def noop_rested() -> None:
    """The same with a worker that has had nothing to do for 10 seconds."""
    with folder() as where:
        child = worker_process(where)
        try:
            async with Runtime(url(where), skills=SERVED) as rt:
                taken = []
                for _ in range(7):
                    await asyncio.sleep(10)
                    began = clock()
                    run = await rt.submit(stamped, {})
                    await rt.result(run.run_id)
                    taken.append(clock() - began)
                latencies("noop, idle for 10 s", taken[1:])
        finally:
            child.kill()
            child.wait()


async def cold() -> None:
    """What a no-op run costs its process that calls it in a loop, after 20 ms and after 10 s at rest: the same code, which may have left the processor's caches."""
    with folder() as where:
        async with Runtime(url(where)) as rt:
            for rest, name, times in ((0.0, "in a loop", 60), (0.02, "after 20 ms", 40), (10.0, "after 10 s", 3)):
                spent = []
                for _ in range(times):
                    await asyncio.sleep(rest)
                    began = time.process_time()
                    await rt.invoke(stamped, {})
                    spent.append(time.process_time() - began)
                emit(f"cold: CPU of a no-op run, {name}", percentile(spent[times // 6 :], 0.5) * 1e3, "ms")


SERVED_RUNS = 1000
"""So many that it counts little how soon a process has come to its usual speed, and how long the one client takes to submit them."""


async def several(workers: int, files: int = 1) -> tuple[float, float]:
    """Steps a second, and CPU in us a step of all workers, of submitted runs of 100 steps: on one file, or on so many, each with its part of both."""
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(folder()) for _ in range(files)]
        children = [worker_process(place) for place in places for _ in range(workers // files)]
        try:
            async with contextlib.AsyncExitStack() as open_:
                runtimes = [await open_.enter_async_context(Runtime(url(place), skills=SERVED)) for place in places]
                before, began = sum(cpu(c.pid) for c in children), clock()
                runs = [(rt, await rt.submit(line(NODES), {})) for _ in range(SERVED_RUNS // files) for rt in runtimes]
                for rt, run in runs:
                    await rt.result(run.run_id)
                taken, spent = clock() - began, sum(cpu(c.pid) for c in children) - before
        finally:
            for child in children:
                child.kill()
                child.wait()
    return SERVED_RUNS * NODES / taken, spent / SERVED_RUNS / NODES * 1e6


def cpu(pid: int) -> float:
    """Seconds of processor time that a process has had."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def workers() -> None:
    """One file, and 1, 2 and 4 workers: what each more brings, and what a step costs all of them. Beside it 4 workers that share nothing but the machine."""
    found = {n: await several(n) for n in (1, 2, 4)}
    apart = 0.0 if DATABASE else (await several(4, files=4))[1]
    for n, (speed, spent) in found.items():
        emit(f"workers: {n}, steps/s", speed, "steps/s")
        emit(f"workers: {n}, CPU a step", spent, "us")
    for n in (2, 4):
        emit(f"workers: {n} against 1, steps/s", found[n][0] / found[1][0], "times")
        emit(f"workers: {n} against 1, CPU a step", found[n][1] / found[1][1], "times")
    if apart:
        emit("workers: 4 on files of their own against 1, CPU a step", apart / found[1][1], "times")


async def goes_on(name: str, skill: Any) -> None:
    """A signal or an approval is given here: until the run goes on in the worker's process."""
    with folder() as where:
        child = worker_process(where)
        try:
            async with Runtime(url(where), skills=SERVED) as rt:
                taken = []
                for _ in range(25):
                    run = await rt.submit(skill, {})
                    while not run.waits:
                        assert run.status in ("pending", "running"), run.error
                        await asyncio.sleep(0.01)
                        run = await rt.get(run.run_id)
                    await asyncio.sleep(0.03)
                    began = time.monotonic()
                    if name == "signal":
                        await rt.signal(run.run_id, "go")
                    else:
                        await rt.approve(run.run_id, drive=False)
                    while (run := await rt.get(run.run_id)).status != "completed":
                        await rt.store.wait_for_change(1)
                    taken.append(run.result - began)
                latencies(f"{name}: run goes on", taken[3:])
        finally:
            child.kill()
            child.wait()


async def signal_() -> None:
    await goes_on("signal", signalled)


async def approval() -> None:
    await goes_on("approval", approved)


# -- recovery ---------------------------------------------------------------------------------------


halves = Graph("halves", Line, version="1")
hanging: list[int] = []


async def half(state: Line) -> dict[str, Any]:
    if state.n == SHORT // 2 and os.environ.get("HANG"):
        hanging.append(state.n)
        if len(hanging) == RUNS:
            print("half", flush=True)
        await asyncio.sleep(3600)
    if os.environ.get("TELL"):
        print("STEP", time.time(), flush=True)
    return {"n": state.n + 1, "data": TEXT}


for number in range(SHORT):
    halves.node(f"s{number}", start=number == 0, after=None if number == 0 else f"s{number - 1}")(half)


async def recover() -> None:
    """100 runs half way through when their process is killed: from opening the store to the first step, and to all done."""
    with folder() as where:
        child = subprocess.Popen([sys.executable, __file__, "recover-child", str(where)], env={**os.environ, "HANG": "1"}, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None and child.stdout.readline().strip() == "half"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        out = subprocess.run([sys.executable, __file__, "recover-child", str(where)], env={**os.environ, "TELL": "1"}, stdout=subprocess.PIPE, text=True, check=True)
        said = [said.split() for said in out.stdout.splitlines()]
        opened = next(float(at) for word, at in said if word == "OPEN")
        emit("recover: first step", (next(float(at) for word, at in said if word == "STEP") - opened) * 1e3, "ms")
        emit("recover: 100 runs done", (next(float(at) for word, at in said if word == "DONE") - opened) * 1e3, "ms")


async def recover_child(where: str) -> None:
    if os.environ.get("HANG"):
        async with Runtime(url(where), skills=[halves]) as rt:
            await asyncio.gather(*[rt.invoke(halves, {}) for _ in range(RUNS)])
    print("OPEN", time.time(), flush=True)
    async with Runtime(url(where), skills=[halves]) as rt:
        done = await rt.recover()
        print("DONE", time.time(), flush=True)
        assert len(done) == RUNS and all(r.status == "completed" for r in done), len(done)


async def effect() -> None:
    """200 steps and 200 effects of one flow, side by side and in turns; then one result of each kind that is large."""
    count, goes = 200, 9

    async def act(text: str) -> str:
        return text

    @flow("acts")
    async def acts(ctx: Context, many: int, text: str, ledgered: bool) -> None:
        for _ in range(many):
            await (ctx.effect(act, text) if ledgered else ctx.step(act, text))

    with folder() as where:
        async with Runtime(url(where)) as rt:
            taken: dict[bool, list[float]] = {False: [], True: []}
            for number in range(goes):
                for ledgered in (number % 2 == 0, number % 2 != 0):
                    began = clock()
                    await rt.run(acts, count, TEXT, ledgered)
                    taken[ledgered].append((clock() - began) / count)
            step, acted = (statistics.median(taken[k][1:]) for k in (False, True))
            emit("step", step * 1e3, "ms")
            emit("effect", acted * 1e3, "ms")
            emit("effect against step", acted / step, "times")
            for ledgered, name in ((False, "large step"), (True, "large effect")):
                large = []
                for number in range(goes):
                    began = clock()
                    await rt.run(acts, 1, f"{number}{ledgered}".ljust(1 << 20, "x"), ledgered)
                    large.append(clock() - began)
                emit(f"{name}, 1 MiB", statistics.median(large[1:]) * 1e3, "ms")


CASES = {
    "effect": effect, "lin": lin, "conc": conc, "conc-long": conc_long, "fan": fan, "wf": wf, "turns": turns, "delta": delta, "resume": resume, "park": park,
    "noop": noop, "noop-polling": noop_polling, "noop-rested": noop_rested, "cold": cold, "workers": workers, "signal": signal_, "approval": approval, "recover": recover,
    "serve": serve, "park-child": park_child, "recover-child": recover_child,
}

if __name__ == "__main__":
    asyncio.run(CASES[sys.argv[1]](*sys.argv[2:]))

