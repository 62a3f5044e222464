"""What a step of a linear run consists of, counted: the difference between a run of 100 nodes and one of 50, a node.

Nothing of a party's own code is changed: statements are seen by SQLite's tracing, encodings by Python's profiler, ways
back from another thread by the event loop's own entry for them, syncs by strace (left out where there is none).
"""

from __future__ import annotations

import asyncio
import collections
import importlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from typing import Any

from common import emit, folder

FEW, MANY = 50, 100
counted: collections.Counter[str] = collections.Counter()


def statement(sql: str) -> None:
    counted["statements"] += 1
    if sql.lstrip().upper().startswith("COMMIT"):
        counted["commits"] += 1


def watch_sqlite() -> None:
    """Sees every statement of every connection of Python's own driver."""
    connect = sqlite3.connect

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        db = connect(*args, **options)
        db.set_trace_callback(statement)
        return db

    sqlite3.connect = traced  # type: ignore[assignment]
    sqlite3.dbapi2.connect = traced  # type: ignore[attr-defined]


def watch_apsw() -> None:
    """Commits are told by SQLite: a statement that is a transaction of its own says no COMMIT."""
    apsw = importlib.import_module("apsw")

    def commit() -> bool:
        counted["commits"] += 1
        return False

    def hook(db: Any) -> None:
        def trace(_: Any, __: str, ___: Any) -> bool:
            counted["statements"] += 1
            return True

        db.exec_trace = trace
        db.set_commit_hook(commit)

    apsw.connection_hooks.append(hook)


def watch_threads() -> None:
    back = asyncio.BaseEventLoop.call_soon_threadsafe

    def hop(self: Any, *args: Any, **options: Any) -> Any:
        counted["hops between threads"] += 1
        return back(self, *args, **options)

    asyncio.BaseEventLoop.call_soon_threadsafe = hop  # type: ignore[method-assign]


def profiler(_: Any, event: str, arg: Any) -> None:
    if event == "c_call":
        name = arg.__name__
        if name in ("packb", "dumps") or (name == "encode" and type(arg.__self__).__name__ == "Encoder"):
            counted["encodings"] += 1


async def ours(nodes: int) -> None:
    cases = importlib.import_module("ours")
    with folder() as where:
        async with cases.Runtime(cases.url(where)) as rt:
            run = await rt.invoke(cases.line(nodes), {})
            counted["events"] += run.version


async def langgraph(nodes: int) -> None:
    cases = importlib.import_module("langgraph_cases")
    with folder() as where:
        async with cases.saver(where) as saver:
            await cases.line(nodes, saver).ainvoke({"n": 0, "data": ""}, cases.on("t"), durability="sync")


async def dbos(nodes: int) -> None:
    await importlib.import_module("dbos_cases").line(nodes)


PARTIES = {"ours": ours, "langgraph": langgraph, "dbos": dbos}


def once(who: str, nodes: int, watched: str) -> None:
    """One run in this process, watched in one way, since watching in all at once would count the watchers."""
    if watched == "profile":
        threading.setprofile(profiler)
        sys.setprofile(profiler)
    elif watched == "trace":
        watch_sqlite()
        watch_threads()
        if who == "ours":
            watch_apsw()
    if who == "dbos":
        importlib.import_module("dbos_cases").main(lambda: dbos(nodes))
    else:
        asyncio.run(PARTIES[who](nodes))
    sys.setprofile(None)
    for name, count in counted.items():
        print(f"COUNT {name}={count}", flush=True)


def count(who: str, nodes: int, watched: str, before: tuple[str, ...] = ()) -> dict[str, int]:
    # Not on the disk: a disk that is slow at the moment would have us hand commits to a thread, as it should.
    quick = {"BENCH_DATA": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
    command = [*before, sys.executable, __file__, who, str(nodes), watched]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, env={**os.environ, **quick})
    return {m[1]: int(m[2]) for m in re.finditer(r"COUNT (.+)=(\d+)", done.stdout)}


def syncs(who: str, nodes: int) -> int:
    with tempfile.NamedTemporaryFile("r") as log:
        count(who, nodes, "nothing", ("strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", log.name))
        return sum(1 for text in log if re.search(r"\bf(data)?sync\(", text))


def traceable() -> bool:
    return shutil.which("strace") is not None and subprocess.run(["strace", "-o", os.devnull, "true"], stderr=subprocess.DEVNULL).returncode == 0


def main(who: str) -> None:
    traced = {n: count(who, n, "trace") for n in (FEW, MANY)}
    profiled = {n: count(who, n, "profile") for n in (FEW, MANY)}
    for name in ("commits", "statements", "hops between threads", "events"):
        if name in traced[MANY]:
            emit(f"per step: {name}", (traced[MANY][name] - traced[FEW].get(name, 0)) / (MANY - FEW), "")
        elif name.startswith("hops"):
            emit(f"per step: {name}", 0, "")
    emit("per step: encodings", (profiled[MANY]["encodings"] - profiled[FEW]["encodings"]) / (MANY - FEW), "")
    if traceable():
        emit("per step: syncs", (syncs(who, MANY) - syncs(who, FEW)) / (MANY - FEW), "")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        once(sys.argv[1], int(sys.argv[2]), sys.argv[3])
