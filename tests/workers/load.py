"""A worker process whose pace is measured: `python -m tests.workers.load LOAD`, where LOAD is JSON; then a word a line, each answered by a line.

It drives runs that step for ever and short ones that it submits to itself, as many as it is told. ``go`` and ``hold`` open and close the gate
before every step; ``tell`` gives what was done since it was last asked: steps, claims, and how long each step took to be durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from holdfast import Context, Goto, Graph, Limit, Runtime, State, flow

TEXT = "x" * 480  # with a counter beside it about 500 bytes of new state a step
FOR_EVER = 1_000_000_000
A_DAY = 86_400


class Load(msgspec.Struct, frozen=True):
    """What a process is to drive. ``steady``: runs that step for ever, with a pause of so many seconds in each step; ``fed``: how many short
    runs it keeps queued, of so many ``priorities`` and ``tenants`` in turn; ``each_tenant``: how many runs of a tenant may be under way, 0 for as many as there are."""

    url: str
    concurrency: int = 10
    steady: int = 0
    pause: float = 0.0
    fed: int = 0
    priorities: int = 1
    tenants: int = 1
    each_tenant: int = 0


class Told(msgspec.Struct):
    """What was done since it was last asked."""

    steps: int = 0
    claims: int = 0
    waits: list[float] = []


class Pace:
    """The gate before every step, and what goes by. A step lasts from the end of its node to the beginning of the next: until it is durable."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.told = Told()
        self.begun = 0
        self._ended: dict[str, float] = {}

    async def step(self, run_id: str, pause: float) -> None:
        if (ended := self._ended.pop(run_id, None)) is not None:
            self.told.steps += 1
            self.told.waits.append(time.monotonic() - ended)
        await self.open.wait()
        if pause:
            await asyncio.sleep(pause)
        self._ended[run_id] = time.monotonic()

    def tell(self) -> Told:
        told, self.told = self.told, Told()
        return told


class Steps(State):
    pause: float = 0.0
    n: int = 0
    data: str = ""


def skills(pace: Pace) -> tuple[Graph[Steps], Any, Any]:
    """A graph that steps for ever, a flow of one step, and one that waits for a person."""
    steady: Graph[Steps] = Graph("steady", Steps, version="1", step_limit=FOR_EVER)

    @steady.node(start=True, timeout=A_DAY)  # it may stand before the gate for long
    async def again(state: Steps, ctx: Context) -> Any:
        await pace.step(ctx.run_id, state.pause)
        return Goto("again", {"n": state.n + 1, "data": TEXT})

    @flow("brief", version="1", timeout=A_DAY)
    async def brief(ctx: Context, pause: float) -> str:
        pace.told.claims += 1
        pace.begun += 1
        await pace.open.wait()
        if pause:
            await asyncio.sleep(pause)
        return "done"

    @flow("held", version="1")
    async def held(ctx: Context) -> str:
        await ctx.wait("go")
        return "done"

    return steady, brief, held


async def _feed(rt: Runtime, brief: Any, pace: Pace, load: Load) -> None:
    """Keeps about so many short runs queued, as long as the gate is open."""
    submitted = 0
    while True:
        await pace.open.wait()
        wanted = load.fed - (submitted - pace.begun)
        turns = range(submitted, submitted + wanted)
        await asyncio.gather(*(
            rt.submit(brief, {"pause": 0.0}, priority=n % load.priorities, tenant_id=f"t{n % load.tenants}" if load.tenants > 1 else "default") for n in turns
        ))
        submitted += wanted
        await asyncio.sleep(0.01)


async def _words() -> AsyncIterator[str]:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield line.decode().strip()


async def drive(load: Load) -> None:
    pace = Pace()
    steady, brief, held = skills(pace)
    limits = {"tenant:*": Limit(in_flight=load.each_tenant)} if load.each_tenant else {}
    async with Runtime(load.url, skills=[steady, brief, held], limits=limits) as rt:
        await asyncio.gather(*(rt.submit(steady, {"pause": load.pause}) for _ in range(load.steady)))
        tasks = [asyncio.ensure_future(rt.worker(concurrency=load.concurrency + load.steady, dispatch=False))]
        if load.fed:
            tasks.append(asyncio.ensure_future(_feed(rt, brief, pace, load)))
        async for word in _words():
            if word == "go":
                pace.open.set()
            elif word == "hold":
                pace.open.clear()
            if broken := [t for t in tasks if t.done()]:
                broken[0].result()
            print(msgspec.json.encode(pace.tell() if word == "tell" else Told()).decode(), flush=True)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


class Crew:
    """The way to such a process from outside. It ends with this one."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Crew:
        command = (sys.executable, "-m", "tests.workers.load", msgspec.json.encode(self._load).decode())
        self._process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 28)
        await self.say("hold")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()

    async def say(self, word: str) -> Told:
        """Says a word, and gives what was told.

        Raises:
            RuntimeError: the process has ended.
        """
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{word}\n".encode())
        await self._process.stdin.drain()
        if not (line := await self._process.stdout.readline()):
            raise RuntimeError(f"the worker process ended with {await self._process.wait()}")
        return msgspec.json.decode(line, type=Told)

    async def over(self, seconds: float) -> Told:
        """What is done within so many seconds of open gate, which is closed afterwards."""
        await self.say("go")
        await asyncio.sleep(min(1.0, seconds / 5))  # what is queued behind the gate goes first
        await self.say("tell")
        began = time.monotonic()
        await asyncio.sleep(seconds)
        told, took = await self.say("tell"), time.monotonic() - began
        await self.say("hold")
        return Told(round(told.steps * seconds / took), round(told.claims * seconds / took), told.waits)


if __name__ == "__main__":
    asyncio.run(drive(msgspec.json.decode(sys.argv[1], type=Load)))

__all__ = ["Crew", "Load", "Pace", "Told", "drive", "skills"]
