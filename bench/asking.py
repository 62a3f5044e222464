"""What the client of a bench of servers needs, the same for every server: reads that are timed, listeners on streams, and what a process takes."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx


def at(values: Sequence[float], part: float) -> float:
    found = sorted(values)
    return found[min(len(found) - 1, int(len(found) * part))]


def memory(pid: int) -> float:
    """MB that a process holds."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def worked(pid: int) -> float:
    """Seconds that a process has used a processor."""
    told = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


async def reads(http: httpx.AsyncClient, path: str, count: int, body: Any = None, *, seconds: float = 600) -> list[float]:
    """Milliseconds of so many reads, one after the other, or of those that fit: by GET, or by POST where there is a body."""
    took: list[float] = []
    until = time.monotonic() + seconds
    while len(took) < count and (not took or time.monotonic() < until):
        began = time.perf_counter()
        answer = await (http.get(path) if body is None else http.post(path, json=body))
        took.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, answer.text[:300]
    return took


async def frames(place: str, path: str, up: asyncio.Event, headers: str = "") -> AsyncIterator[tuple[bytes, bytes]]:
    """The lines of a stream of events, as names and values, to its end. The socket is read directly: a client with more comforts would be what is measured."""
    where = urlsplit(place)
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=2**20)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n{headers}\r\n".encode())
    try:
        async for text in reader:
            up.set()
            name, found, value = text.partition(b": ")
            if found:
                yield name, value.strip()
            elif text.startswith(b"retry:"):
                break
    finally:
        writer.close()


async def silent(place: str, path: str, up: asyncio.Event) -> None:
    """A listener on something that does not move."""
    async with aclosing(frames(place, path, up)) as lines:
        async for _ in lines:
            pass
