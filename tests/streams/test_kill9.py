"""``kill -9`` in the middle of what is streamed: a reader in another process gets each chunk once, and is told what was superseded."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import pytest

from holdfast import Runtime

PROGRAM = '''
import asyncio, os, sys
from holdfast import Context, Runtime, flow

@flow("talk")
async def talk(ctx: Context) -> str:
    async def model(name: str) -> str:
        for n in range(30):
            ctx.emit([name, os.getpid(), n])
            await asyncio.sleep(0.01)
        return name
    ctx.emit(["node", os.getpid(), 0])
    one = await ctx.step(model, "one")
    both = await ctx.gather(ctx.step(model, "two"), ctx.step(model, "three"))
    ctx.emit(["node", os.getpid(), 1])
    return one

async def main() -> None:
    async with Runtime("sqlite:///runs.db", skills=[talk]) as rt:
        await rt.submit(talk, {}, key="one")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)  # until somebody reads
        await rt.worker(until_idle=True)

asyncio.run(main())
'''


def start(place: pathlib.Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    return subprocess.Popen([sys.executable, "program.py"], cwd=place, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str], how: signal.Signals | None = None) -> None:
    if how is not None:
        process.send_signal(how)
    process.communicate(timeout=60)


async def read(place: pathlib.Path, fatal: list[int]) -> list[Any]:
    """Follows the run to its end, leaving and coming back with a cursor now and then; workers die after so many chunks each."""
    process = start(place)
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    parts: list[Any] = []
    cursor: str | None = None
    deaths = list(fatal)
    chunks = 0
    try:
        async with asyncio.timeout(60), Runtime(f"sqlite:///{place}/runs.db") as rt:
            (run,) = await rt.runs()
            over = False
            while not over:
                over = True
                async for part in rt.stream(run.run_id, after=cursor):
                    parts.append(part)
                    cursor = part.cursor
                    if len(parts) == 1:
                        go(process)
                    chunks += part.mode == "custom" and not part.superseded
                    if deaths and chunks >= deaths[0]:
                        deaths.pop(0)
                        await asyncio.to_thread(end, process, signal.SIGKILL)
                        process = start(place)
                        go(process)
                    if len(parts) % 7 == 0:
                        over = False
                        break
    finally:
        await asyncio.to_thread(end, process)
    return parts


def told(parts: list[Any]) -> dict[tuple[str, int], list[int]]:
    """The numbers of the chunks, by who said them: what is said, and the process."""
    found: dict[tuple[str, int], list[int]] = {}
    for p in parts:
        if p.mode == "custom" and not p.superseded:
            name, pid, n = p.data
            found.setdefault((name, pid), []).append(n)
    return found


def test_an_undisturbed_run_is_told_once_and_in_order(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    parts = asyncio.run(read(tmp_path, []))
    found = told(parts)
    assert {name: n for (name, _), n in found.items()} == {"node": [0, 1], "one": list(range(30)), "two": list(range(30)), "three": list(range(30))}
    assert not any(p.superseded or p.mode == "missed" for p in parts)
    seqs = [p.data.seq for p in parts if p.mode == "events"]
    assert seqs == list(range(1, len(seqs) + 1)) and parts[-1].data.type == "run.completed"


@pytest.mark.parametrize("fatal", [[12], [45], [8, 50, 60]], ids=["in the first call", "in two calls at once", "three times"])
def test_killed_in_the_middle_each_chunk_comes_once_and_the_rest_is_marked(tmp_path: pathlib.Path, fatal: list[int]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    parts = asyncio.run(read(tmp_path, fatal))
    found = told(parts)
    for (name, _), numbers in found.items():
        assert numbers == list(range(len(numbers))), f"{name}: each once, in order"
    for name in ("one", "two", "three"):
        mine = [n for (said, _), n in found.items() if said == name]
        assert mine[-1] == list(range(30)), f"the last attempt of {name} is whole"
        marks = [p for p in parts if p.superseded and p.attempt_id == next(q.attempt_id for q in parts if q.mode == "custom" and not q.superseded and q.data[0] == name)]
        assert len(marks) == len(mine) - 1, f"each broken attempt of {name} is marked, once"
    seqs = [p.data.seq for p in parts if p.mode == "events"]
    assert seqs == list(range(1, len(seqs) + 1)) and parts[-1].data.type == "run.completed"
