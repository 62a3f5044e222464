"""Real processes on one SQLite file, killed and stopped where it hurts (L-05, L-06, L-21, T-59, T-75, T-76, T-78, X-12).

Each process appends a line to a file opened with O_APPEND for whatever it does outside; those lines outlive it.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import apsw
import pytest
from tests.stopped import stop

from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import violations

PROGRAM = '''
import asyncio, os, sys
from typing import Annotated
from holdfast import Context, Graph, Runtime, State, append

class Trail(State):
    trail: Annotated[list[str], append]

graph = Graph("killed", Trail)
out = os.open("did", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

def did(word):
    os.write(out, (word + "\\n").encode())

async def note(word):
    did("begin " + word)
    await asyncio.sleep(float(os.environ.get("PACE", "0.01")))
    did("end " + word)
    return word

async def act(word, *, idempotency_key):
    did("act " + word)
    await asyncio.sleep(float(os.environ.get("PACE", "0.01")))
    return word

@graph.node(start=True)
async def first(state, ctx: Context):
    return {"trail": await ctx.step(note, "model")}

for name in ("left", "right"):
    async def side(state, ctx: Context, name=name):
        return {"trail": await ctx.step(note, name)}
    graph.node(name, after="first")(side)

@graph.node(after=["left", "right"])
async def pay(state, ctx: Context):
    return {"trail": await ctx.effect(act, "pay", idempotent=True)}

async def main(what):
    async with Runtime("sqlite:///runs.db", skills=[graph], lease=float(os.environ.get("LEASE", "30"))) as rt:
        run = await rt.submit(graph, {}, key="one")
        if what == "work":
            await rt.worker(until_idle=True)
        run = await rt.get(run.run_id)
        print(run.status, ",".join(run.state.trail))

asyncio.run(main(sys.argv[1]))
'''
TRAIL = "completed model,left,right,pay"


@pytest.fixture
def place(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def start(place: pathlib.Path, **env: str) -> subprocess.Popen[str]:
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **env}
    return subprocess.Popen([sys.executable, "program.py", "work"], cwd=place, env=known, stdout=subprocess.PIPE, text=True)


def lines(place: pathlib.Path) -> list[str]:
    did = place / "did"
    return did.read_text().splitlines() if did.exists() else []


def until(place: pathlib.Path, line: str, process: subprocess.Popen[str]) -> None:
    """Looks until the process has said a line; it is killed by the caller at that very place."""
    end = time.monotonic() + 30
    while line not in lines(place):
        assert process.poll() is None and time.monotonic() < end, f"{line!r} was never said: {lines(place)}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.002)


def finish(place: pathlib.Path, **env: str) -> str:
    process = start(place, **env)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return said.strip()


def whole(place: pathlib.Path) -> None:
    """The invariants of what was left in the file."""

    async def look() -> list[object]:
        store = SqliteStore(place / "runs.db")
        await store.open()
        try:
            return list(await violations(store))
        finally:
            await store.close()

    assert asyncio.run(look()) == []


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_undisturbed(place: pathlib.Path) -> None:
    assert finish(place) == TRAIL
    assert collections.Counter(lines(place)).most_common(1)[0][1] == 1
    whole(place)


@pytest.mark.parametrize("line", ["begin model", "begin left", "end right", "act pay"])
def test_killed_at_a_step(place: pathlib.Path, line: str) -> None:
    """L-05, L-06, L-21: the next process takes over at once, for the dead one's file is unlocked; what was done is not redone."""
    process = start(place, PACE="0.3")
    until(place, line, process)
    killed(process)
    before = collections.Counter(lines(place))
    began = time.monotonic()
    assert finish(place) == TRAIL
    assert time.monotonic() - began < 15, "it waited for the lease of thirty seconds"
    after = collections.Counter(lines(place))
    assert all(after[f"begin {word}"] <= 2 for word in ("model", "left", "right"))
    if line in ("begin left", "end right", "act pay"):
        assert after["begin model"] == before["begin model"] == 1, "T-59: what the model said is not asked again"
    whole(place)


def test_a_dozen_random_kills(place: pathlib.Path) -> None:
    """Killed again and again at random moments, the run comes to the same end."""
    random_kills(place, 12, random.Random(9))


@pytest.mark.heavy
def test_two_hundred_random_kills(tmp_path: pathlib.Path) -> None:
    """Issue 2, must show 2."""
    draw = random.Random(1)
    for n in range(20):
        place = tmp_path / str(n)
        place.mkdir()
        (place / "program.py").write_text(PROGRAM)
        random_kills(place, 10, draw)


def random_kills(place: pathlib.Path, times: int, draw: random.Random) -> None:
    for _ in range(times):
        process = start(place, PACE="0.05")
        try:
            process.wait(timeout=0.15 + draw.random() * 0.5)
        except subprocess.TimeoutExpired:
            killed(process)
        else:
            process.communicate()
    assert finish(place) == TRAIL
    ended = collections.Counter(line for line in lines(place) if line.startswith("end"))
    assert set(ended) == {"end model", "end left", "end right"}
    whole(place)


def test_a_stopped_worker_wakes_as_a_zombie(place: pathlib.Path) -> None:
    """T-75, X-12: stopped beyond its lease, overtaken, thawed: what it writes is refused, and the log shows one end."""
    stopped = start(place, PACE="0.5", LEASE="1")
    until(place, "begin left", stopped)
    stop(stopped.pid, place / "runs.db")
    try:
        end = time.monotonic() + 30
        while finish(place, LEASE="1") != TRAIL:
            assert time.monotonic() < end, "nobody took the run over"
    finally:
        stopped.send_signal(signal.SIGCONT)
    said, _ = stopped.communicate(timeout=30)
    assert said.strip() in ("", TRAIL)
    assert lines(place).count("act pay") == 1
    assert lines(place).count("begin model") == 1
    whole(place)


COMMITTING = """
import apsw, select, signal, sys
db = apsw.Connection(sys.argv[1])
db.execute("CREATE TABLE t (n); BEGIN IMMEDIATE")
signal.signal(signal.SIGCONT, lambda *_: db.execute("COMMIT"))
print("holds it", flush=True)
while not select.select([sys.stdin], [], [], 0.05)[0]:
    pass  # a signal that comes just before a wait is seen after it
"""


def test_what_is_stopped_in_a_commit_is_stopped_again_after_it(tmp_path: pathlib.Path) -> None:
    """Else a test that freezes a process would fail by chance, as all others wait for the file's lock."""
    path = tmp_path / "s.db"
    with subprocess.Popen([sys.executable, "-c", COMMITTING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"holds it\n"
        stop(child.pid, path)
        with contextlib.closing(apsw.Connection(str(path))) as db:
            db.execute("INSERT INTO t VALUES (1)")
        assert os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None, "it is stopped"
        child.kill()
