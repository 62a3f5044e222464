"""What bad receivers cost the good ones (§9.1): slow, 500, 429 with Retry-After, half an answer, a redirect to a link-local address, an endless body.

    uv run python bench/receivers.py [--seconds 20] [--url URL]

A good receiver is sent one intent after the other, and it is told how long each took from its commit: first alone, then beside six bad ones,
each a host of its own with a queue that never ends. The receivers are a process of their own, as they are elsewhere: what an endless answer costs
whoever writes it is not measured. The sender is set up as ``holdfast worker`` sets itself up. Told besides: the most memory this process had, and what became of the bad ones' intents;
last, that what is refused again and again is dead after its attempts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from sending import graph

from holdfast import Runtime, machine
from holdfast.transports import Function, Retry, Webhook

HOSTS = {"good": "127.0.0.1", "slow": "127.0.0.2", "broken": "127.0.0.3", "later": "127.0.0.4", "half": "127.0.0.5", "away": "127.0.0.6", "endless": "127.0.0.7"}
ANSWERS = {
    "broken": b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
    "later": b"HTTP/1.1 429 Later\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n",
    "half": b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf",
    "away": b"HTTP/1.1 302 Away\r\nLocation: http://169.254.169.254/latest\r\nContent-Length: 0\r\n\r\n",
    "good": b"HTTP/1.1 204 Fine\r\n\r\n",
}
OF_EACH = 64


def to(url: str, count: int = 1) -> dict[str, Any]:
    """The inputs of a run that sends so many to a receiver."""
    return {"type": "hook", "payload": {"url": url, "body": {}}, "count": count}


class Receivers:
    """The process of the receivers, as the sender sees it."""

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self.came: asyncio.Queue[float] = asyncio.Queue()
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[dict[str, int]] | None = None

    async def open(self) -> None:
        self._process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--serve", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        assert self._process.stdout is not None
        self.urls = json.loads(await self._process.stdout.readline())
        self._reading = asyncio.ensure_future(self._read(self._process.stdout))

    async def _read(self, out: asyncio.StreamReader) -> dict[str, int]:
        """When the good one was asked; the clock is one for all processes of a machine. The last line says how often each was."""
        asked: dict[str, int] = {}
        while line := await out.readline():
            told = json.loads(line)
            if isinstance(told, dict):
                asked = told
            else:
                self.came.put_nowait(told)
        return asked

    async def close(self) -> dict[str, int]:
        """Ends them. Gives how often each was asked."""
        assert self._process is not None and self._process.stdin is not None and self._reading is not None
        self._process.stdin.close()
        asked = await self._reading
        await self._process.wait()
        return asked


class Serving:
    """One server for each kind, on an address of its own, until nobody listens to this process any more."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self._servers: list[asyncio.Server] = []

    async def run(self) -> None:
        urls = await self.open()
        print(json.dumps(urls), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for server in self._servers:
            server.close()
        print(json.dumps(self.asked), flush=True)

    async def open(self) -> dict[str, str]:
        urls: dict[str, str] = {}
        for kind, host in HOSTS.items():
            server = await asyncio.start_server(lambda r, w, kind=kind: self._serve(kind, r, w), host, 0)
            self._servers.append(server)
            urls[kind] = f"http://{host}:{server.sockets[0].getsockname()[1]}/"
        return urls

    async def _serve(self, kind: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.asked[kind] += 1
            if kind == "good":
                print(time.perf_counter(), flush=True)
            if kind == "slow":
                await asyncio.wait_for(reader.read(), 30)  # to when whoever asked has gone
            elif kind == "endless":
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    writer.write(b"x" * 65536)
                    await writer.drain()
            else:
                writer.write(ANSWERS[kind])
                await writer.drain()
        writer.transport.abort()


async def measured(rt: Runtime, receivers: Receivers, seconds: float) -> list[float]:
    """From before the run that sends to when the good receiver has it, in ms."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        await rt.submit(graph, to(receivers.urls["good"]))
        times.append((await asyncio.wait_for(receivers.came.get(), 30) - began) * 1000)
        await asyncio.sleep(0.01)
    return sorted(times)


async def poison() -> dict[str, Any]:
    """An intent that is refused again and again."""
    calls = 0

    async def refuse(payload: Any, key: str) -> None:
        nonlocal calls
        calls += 1
        raise OSError("no")

    async with Runtime("memory:", transports={"hook": Function(refuse, retry=Retry(max_attempts=5, base_us=10_000))}) as rt:
        run = await rt.invoke(graph, to("http://nobody/"))
        async with asyncio.timeout(30):
            while (intent := (await rt.intents(run.run_id))[0]).state != "dead":
                await rt.dispatch(until_idle=True)
        return {"state": intent.state, "attempts": len(intent.attempts), "calls": calls}


async def whole(url: str, seconds: float) -> dict[str, Any]:
    receivers = Receivers()
    await receivers.open()
    machine.settle()
    found: dict[str, Any] = {}
    async with Runtime(url, skills=[graph], transports={"hook": Webhook(allow=tuple(HOSTS.values()), timeout=2)}) as rt:
        stop = asyncio.Event()
        working = asyncio.ensure_future(rt.worker(stop=stop))
        await measured(rt, receivers, seconds / 10)
        alone = await measured(rt, receivers, seconds)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for kind in HOSTS:
            if kind != "good":
                await rt.submit(graph, to(receivers.urls[kind], OF_EACH))
        beside = await measured(rt, receivers, seconds)
        stop.set()
        await working
        found = {
            "good_alone": {"count": len(alone), "p50_ms": round(alone[len(alone) // 2], 1), "p99_ms": round(alone[int(len(alone) * 0.99)], 1)},
            "good_beside": {"count": len(beside), "p50_ms": round(beside[len(beside) // 2], 1), "p99_ms": round(beside[int(len(beside) * 0.99)], 1)},
            "p99_ratio": round(beside[int(len(beside) * 0.99)] / alone[int(len(alone) * 0.99)], 2),
            "more_memory_mib": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1),
        }
        states: Counter[str] = Counter()
        kinds = {host: kind for kind, host in HOSTS.items()}
        for intent in await rt.store.intents(limit=5_000):
            kind = kinds[intent.target.partition(":")[0]]
            if kind != "good":
                states[f"{kind}: {intent.state}"] += 1
        found["became"] = dict(sorted(states.items()))
    found["asked"] = await receivers.close()
    return found


async def both(url: str, seconds: float) -> dict[str, Any]:
    return await whole(url, seconds) | {"poison": await poison()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--url", default="")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(Serving().run())
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(both(given.url or f"sqlite:///{Path(folder) / 'a.db'}", given.seconds))))


if __name__ == "__main__":
    main()
