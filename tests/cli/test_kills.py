"""A real process, killed again and again at no particular place: nothing is lost and nothing is done twice.

The process is killed after a random number of the lines it prints, while it goes on; what is on record at that moment
is compared with what its steps have noted in an O_APPEND file, before and after.
"""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.cli.conftest import Type, environment

WORLD = '''
import os
from typing import Annotated

from holdfast import Absent, Context, Graph, Happened, State, append


class Work(State):
    seed: int
    found: Annotated[list[str], append]
    sent: list[str] = []


graph = Graph("world", Work)


def note(word: str) -> str:
    handle = os.open("calls.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, (word + "\\n").encode())
    os.close(handle)
    return word


def send(word: str, idempotency_key: str) -> str:
    handle = os.open("sent.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, (idempotency_key.replace(chr(31), "/") + "\\n").encode())
    os.close(handle)
    return word


def was_sent(key: str, word: str):
    there = os.path.exists("sent.txt") and key.replace(chr(31), "/") in open("sent.txt").read().splitlines()
    return Happened(word) if there else Absent()


@graph.node(start=True)
async def plan(state: Work, ctx: Context):
    return {"found": [await ctx.step(note, "plan.0"), await ctx.step(note, "plan.1")]}


def sibling(name: str):
    @graph.node(name, after="plan")
    async def search(state: Work, ctx: Context):
        return {"found": [await ctx.step(note, f"{name}.0")]}


for letter in "abc":
    sibling(letter)


@graph.node(after=["a", "b", "c"])
async def publish(state: Work, ctx: Context):
    return {"sent": [await ctx.effect(send, f"{state.seed}", verify=was_sent)]}


@graph.node(after="publish")
async def close(state: Work, ctx: Context):
    return {"found": [await ctx.step(note, "close.0")]}
'''


def completed(process: Type, run_id: str) -> set[str]:
    """The recorded calls of a run: ``task.path`` of every step.completed inside a node."""
    events = process("events", run_id, "--json").json["events"]
    return {f"{e['payload']['task']}.{e['payload']['path']}" for e in events if e["event_type"] == "step.completed" and e["payload"]["path"]}


def counts() -> Counter[str]:
    file = Path("calls.txt")
    return Counter(file.read_text("utf-8").split()) if file.exists() else Counter()


def killed_after(lines: int, *words: str) -> bool:
    """Starts a command and kills it once it has printed so many lines; False if it ended by itself before."""
    command = [sys.executable, "-m", "holdfast", *words]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment()) as child:
        assert child.stderr is not None
        for _ in range(lines):
            if not child.stderr.readline():
                break
        child.kill()
        return child.wait() == -9


@pytest.mark.parametrize("kills", [4, pytest.param(200, marks=pytest.mark.heavy)])
def test_random_kills_of_a_real_process(process: Type, kills: int) -> None:
    """Issue: final values equal those of an undisturbed run, no completed step runs again, siblings keep their results (T-58, T-78, L-05, L-06)."""
    Path("world.py").write_text(WORLD, "utf-8")
    whole = process("run", "world.py", "--input", '{"seed": 0}', "--json")
    assert whole.code == 0, whole.err
    assert counts() == Counter(dict.fromkeys(("plan.0", "plan.1", "a.0", "b.0", "c.0", "close.0"), 1)), "the uncrashed world does the work"
    dice, done, seed = random.Random(7), 0, 0
    while done < kills:
        seed += 1
        for name in ("calls.txt", "sent.txt"):
            Path(name).unlink(missing_ok=True)
        run_id = process("submit", "world.py", "--input", json.dumps({"seed": seed}), "--json").json["run_id"]
        settled: Counter[str] = Counter()
        for _ in range(dice.randint(1, 3)):
            done += killed_after(dice.randint(0, 7), "resume", run_id, "world.py")
            now = counts()
            assert all(now[name] == n for name, n in settled.items()), f"seed {seed}: a completed step ran again: {settled} {now}"
            settled = Counter({name: now[name] for name in completed(process, run_id) if name != "publish.0"})
        last = process("resume", run_id, "world.py", "--json")
        shown = process("show", run_id, "--json").json
        assert shown["status"] == "completed", f"seed {seed}: {last.err} {shown}"
        now = counts()
        assert all(now[name] == n for name, n in settled.items()), f"seed {seed}: a completed step ran again: {settled} {now}"
        assert shown["values"] == whole.json["values"] | {"seed": seed, "sent": [str(seed)]}
        assert len(Path("sent.txt").read_text("utf-8").split()) == 1, f"seed {seed}: the effect happened twice"
        assert shown["problems"] == []
