"""Kills and freezes dispatchers between claim, send and settle, and looks at what a real receiver got (T-67).

    uv run python -m tests.outbox.kills --cycles 1000 --budget 20
    uv run python -m tests.outbox.kills --cycles 1000 --budget 20 --store postgresql

About six minutes each on two cores. Two dispatchers are up. The receiver appends each line that it gets to a file. What must hold: of the type whose receiver dedupes
every key arrives, and its order per key is kept; of the type whose receiver cannot, no key arrives twice, and each that did not
arrive for certain is listed as unknown; nothing of a step that did not commit arrives.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast import Context, Graph, Runtime, State
from holdfast.handle import IntentView
from tests.postgres.server import shared

LEASE = 0.6
EACH = 4


class Load(State):
    n: int = 0
    fail: bool = False


graph: Graph[Load] = Graph("load", Load, version="1")


@graph.node(start=True)
async def send(state: Load, ctx: Context) -> None:
    for i in range(EACH):
        ctx.send("safe", {"line": f"{state.n}.{i}"}, order=f"k{state.n % 3}")
        ctx.send("plain", {"line": f"{state.n}.{i}"})
    if state.fail:
        raise ValueError("this step does not commit")


class Appending:
    """A receiver that is a file; it takes its time, so that a kill finds it at work."""

    def __init__(self, path: Path, dedupes: bool) -> None:
        self._path = path
        self.dedupes = dedupes

    async def send(self, payload: Any, key: str) -> None:
        await asyncio.sleep(random.uniform(0, 0.004))
        with self._path.open("a") as file:
            file.write(f"{payload['line']}\n")
        await asyncio.sleep(random.uniform(0, 0.004))


def transports(folder: Path) -> dict[str, Any]:
    return {"safe": Appending(folder / "safe.txt", True), "plain": Appending(folder / "plain.txt", False)}


async def dispatcher(folder: Path, url: str) -> None:
    async with Runtime(url, transports=transports(folder), lease=LEASE) as rt:
        await rt.dispatch()


class Nursery:
    """A process that has everything imported and forks a dispatcher when it is asked to, so that a kill costs no start."""

    def __init__(self, folder: Path, url: str) -> None:
        command = [sys.executable, "-m", "tests.outbox.kills", "--nursery", str(folder), "--url", url]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def spawn(self) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        print("go", file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def nursery(folder: Path, url: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that are killed
    for _ in sys.stdin:
        if (pid := os.fork()) == 0:
            asyncio.run(dispatcher(folder, url))
            os._exit(0)
        print(pid, flush=True)


async def torment(folder: Path, cycles: int, deadline: float, seed: int, url: str = "") -> dict[str, Any]:
    """The counts, after so many kills and freezes, or as many as fit before the deadline; over a database in the folder, or that of ``url``.

    Raises:
        AssertionError: something arrived twice, too early, out of order or not at all.
    """
    dice, url = random.Random(seed), url or f"sqlite:///{folder}/a.db"
    home = Nursery(folder, url)
    up = [home.spawn(), home.spawn()]
    done, made, frozen = 0, 0, 0
    async with Runtime(url, lease=30) as rt:
        try:
            while done < cycles and time.monotonic() < deadline:
                await rt.invoke(graph, {"n": made, "fail": made % 7 == 6})
                made += 1
                await asyncio.sleep(dice.uniform(0.0, 0.12))
                victim = dice.randrange(2)
                if dice.random() < 0.25:
                    os.kill(up[victim], signal.SIGSTOP)
                    await asyncio.sleep(LEASE * dice.uniform(0.2, 1.8))
                    os.kill(up[victim], signal.SIGCONT)
                    frozen += 1
                else:
                    os.kill(up[victim], signal.SIGKILL)
                    up[victim] = home.spawn()
                done += 1
        finally:
            for child in up:
                os.kill(child, signal.SIGKILL)
            home.close()
    async with Runtime(url, transports=transports(folder), lease=30) as rt:
        while True:
            await rt.dispatch(until_idle=True)
            counts = await rt.store.intent_counts()
            if not any(c.state in ("queued", "sending") for c in counts):
                break
            await rt.store.wait_for_change(0.1)
        intents = [IntentView.of(i) for i in await rt.store.intents(limit=10**9)]
    return judge(folder, intents, cycles, done, made, frozen)


def judge(folder: Path, intents: list[Any], asked: int, done: int, made: int, frozen: int) -> dict[str, Any]:
    lines = {name: (folder / f"{name}.txt").read_text().split() if (folder / f"{name}.txt").exists() else [] for name in ("safe", "plain")}
    committed = {f"{n}.{i}" for n in range(made) if n % 7 != 6 for i in range(EACH)}
    states = {t: Counter(i.state for i in intents if i.type == t) for t in ("safe", "plain")}
    for name, got in lines.items():
        assert set(got) <= committed, f"{name}: something of a step that did not commit was sent"
    assert set(lines["safe"]) == committed, "what dedupes arrives in any case"
    assert states["safe"] == {"sent": len(committed)}, states["safe"]
    firsts = list(dict.fromkeys(lines["safe"]))
    for key in range(3):
        mine = [tuple(map(int, line.split("."))) for line in firsts if int(line.split(".")[0]) % 3 == key]
        assert mine == sorted(mine), f"the order of k{key} is broken"
    twice = [line for line, count in Counter(lines["plain"]).items() if count > 1]
    assert not twice, f"sent twice without a person: {twice[:5]}"
    plain = {i.payload["line"]: i.state for i in intents if i.type == "plain"}
    assert set(plain) == committed
    assert all(line in lines["plain"] for line, state in plain.items() if state == "sent"), "said to be sent, and was not"
    doubtful = [line for line in lines["plain"] if plain[line] != "sent"]
    assert all(plain[line] == "unknown" for line in doubtful), "a doubtful one is not listed"
    return {
        "asked_and_done": [asked, done], "freezes": frozen, "intents": len(intents), "repeated to a receiver that dedupes": len(lines["safe"]) - len(committed),
        "unknown": states["plain"]["unknown"], "of them sent": len(doubtful),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--budget", type=float, default=20, help="minutes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--url", default="", help=argparse.SUPPRESS)
    parser.add_argument("--nursery", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.nursery is not None:
        nursery(given.nursery, given.url)
        return
    with tempfile.TemporaryDirectory() as folder:
        url = shared().fresh() if given.store == "postgresql" else ""
        print(asyncio.run(torment(Path(folder), given.cycles, time.monotonic() + given.budget * 60, given.seed, url)))


if __name__ == "__main__":
    main()
