"""A server killed in the middle of streams and POSTs: ``python -m tests.http.kills --kills 200`` (about ten minutes; ``--budget MINUTES`` ends it).

Round after round a real server is killed by SIGKILL while clients post under an ``Idempotency-Key`` and follow streams. Each client tries again with the same key and
with ``Last-Event-ID``. Then: every key made one run and one answer, every signal was delivered once, and every stream gave each event once, in order.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from holdfast import Runtime
from tests.http.support import graph


class Served:
    """A server that is killed and started again, on one port."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = 0
        self.process: asyncio.subprocess.Process | None = None
        self.up = asyncio.Event()

    @property
    def place(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        target = f"{Path(__file__).parent / 'support.py'}:NOTES"
        command = [sys.executable, "-m", "holdfast", "serve", target, "--no-auth", "--port", str(self.port), "--store", self.url]
        self.process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2])
        assert self.process.stderr is not None
        async with asyncio.timeout(60):
            while not (found := re.findall(r"http://127\.0\.0\.1:(\d+)", (await self.process.stderr.readline()).decode())):
                assert self.process.returncode is None, "the server did not start"
        self.port = int(found[0])
        self.up.set()

    async def kill(self) -> None:
        assert self.process is not None
        self.up.clear()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


async def insist(served: Served, act: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
    """The same again, until it was answered."""
    while True:
        await served.up.wait()
        try:
            async with httpx.AsyncClient(base_url=served.place, timeout=30) as http:
                return await act(http)
        except (httpx.TransportError, httpx.StreamError):
            await served.up.wait()
            await asyncio.sleep(0)


async def posted(served: Served, path: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    async def act(http: httpx.AsyncClient) -> dict[str, Any] | None:
        answer = await http.post(path, json=body, headers={"Idempotency-Key": key})
        if answer.status_code in (409, 503) and answer.json()["code"] in ("in_progress", "store_busy", "store_unavailable"):
            raise httpx.ReadError("not yet")
        assert answer.status_code in (200, 202), answer.text
        found: dict[str, Any] = answer.json()
        return found

    return dict(await insist(served, act))


async def followed(served: Served, run_id: str, seen: list[int]) -> None:
    """A run's events to its end, taken up again after the last one that came."""

    async def act(http: httpx.AsyncClient) -> bool:
        headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
        async with http.stream("GET", f"/v1/runs/{run_id}/stream", headers=headers) as stream:
            kind = ""
            async for line in stream.aiter_lines():
                if line.startswith("id: "):
                    seen.append(int(line[4:]))
                elif line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("retry:") and kind in ("run.completed", "rest"):
                    return True
        if kind == "run.completed":
            return True
        raise httpx.ReadError("it broke off")

    await insist(served, act)


async def client(served: Served, number: int, lists: dict[str, list[int]], made: dict[str, str]) -> None:
    """Creates a run, follows it, signals it twice under one key, and creates it again under the same key."""
    key, body = f"k{number}", {"skill_id": "notes", "input": {"name": "wait"}}
    first = await posted(served, "/v1/runs", key, body)
    run_id = made[key] = str(first["run_id"])
    follow = asyncio.ensure_future(followed(served, run_id, lists.setdefault(run_id, [])))
    for _ in range(2):
        await posted(served, f"/v1/runs/{run_id}/signal", f"s{number}", {"name": "go", "payload": number})
    again = await posted(served, "/v1/runs", key, body)
    assert again["run_id"] == run_id, "one key, one run"
    await follow


async def torment(kills: int, seconds: float, seed: int, folder: Path) -> Counter[str]:
    """So many kills, or as many as fit."""
    dice, told = random.Random(seed), Counter[str]()
    url = f"sqlite:///{folder}/runs.db"
    async with Runtime(url, skills=[graph()]):
        pass
    served, until = Served(url), time.monotonic() + seconds
    lists: dict[str, list[int]] = {}
    made: dict[str, str] = {}
    await served.start()
    try:
        while told["kills"] < kills and time.monotonic() < until:
            clients = [asyncio.ensure_future(client(served, told["clients"] + n, lists, made)) for n in range(4)]
            told["clients"] += len(clients)
            for _ in range(2):
                await asyncio.wait(clients, timeout=dice.uniform(0.02, 0.4))
                if told["kills"] < kills:
                    await served.kill()
                    told["kills"] += 1
                    await served.start()
            await asyncio.wait_for(asyncio.gather(*clients), 120)
    finally:
        await served.kill()
    async with Runtime(url, skills=[graph()]) as rt:
        for run_id in made.values():
            events = await rt.events(run_id)
            told["events"] += len(events)
            assert lists[run_id] == [e.seq for e in events], (run_id, lists[run_id], len(events))
            assert sum(e.type == "signal.received" for e in events) == 1, run_id
            assert (await rt.get(run_id)).status == "completed"
        every = await rt.runs(limit=500) if len(made) < 500 else []
        assert not every or {r.run_id for r in every} == set(made.values()), "nothing was done twice"
    return told


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.http.kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--kills", type=int, default=200)
    asked.add_argument("--budget", type=float, default=20, metavar="MINUTES")
    asked.add_argument("--seed", type=int, default=1)
    given = asked.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        told = asyncio.run(torment(given.kills, given.budget * 60, given.seed, Path(folder)))
    print(
        f"asked {given.kills} kills, done {told['kills']}, skipped {given.kills - told['kills']}; {told['clients']} clients, {told['events']} events, "
        f"none missed or repeated, nothing done twice; {time.monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
