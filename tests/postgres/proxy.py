"""A proxy before a PostgreSQL server that cuts connections where it is told to: before a message is handed on, or after the server has
answered it and before the client hears of that."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path

READY = b"Z\x00\x00\x00\x05"
EXECUTED = b"QE"  # a text, or one that was parsed before
KEY = b"K\x00\x00\x00\x0c"  # which backend it is


class Kinds:
    """Tells the kinds of the messages of one direction as their bytes come. ``greeted``: whether the first of a client, which has no kind, is past."""

    def __init__(self, *, greeted: bool) -> None:
        self._greeted = greeted
        self._rest = b""

    def of(self, data: bytes) -> bytes:
        """The kinds of the messages that are whole with these bytes."""
        data, found = self._rest + data, bytearray()
        while len(data) >= 5:
            head = int(self._greeted)
            length = head + int.from_bytes(data[head : head + 4], "big")
            if len(data) < length:
                break
            if self._greeted:
                found += data[:1]
            data, self._greeted = data[length:], True
        self._rest = data
        return bytes(found)


class Proxy:
    """Listens in a folder of its own. ``cut`` arms it for the next message that holds ``needle``; ``answers`` counts round trips, ``statements`` what
    the server was told to execute, ``served`` the connections, ``marked`` the messages that hold ``mark``."""

    def __init__(self, to: Path, database: str = "holdfast") -> None:
        self._to = to / ".s.PGSQL.5432"
        self.folder = Path(tempfile.mkdtemp(prefix="hf-px-", dir="/tmp"))
        self.url = f"postgresql:///{database}?host={self.folder}&user=holdfast"
        self.cuts = 0
        self.answers = 0
        self.statements = 0
        self.served = 0
        self.marked = 0
        self.mark = b"\0no message holds this"
        self.forwards = asyncio.Event()
        self.forwards.set()
        self._needle = b""
        self._after = False
        self._cuts: dict[int, asyncio.Event] = {}
        self._server: asyncio.AbstractServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_unix_server(self._serve, self.folder / ".s.PGSQL.5432")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        shutil.rmtree(self.folder)

    def cut(self, needle: bytes, *, after: bool) -> None:
        """Cuts the connection on which the next such message comes: before it is handed on, or after it was answered."""
        self._needle, self._after = needle, after

    @property
    def armed(self) -> bool:
        return bool(self._needle)

    def disarm(self) -> None:
        self._needle = b""

    def stall(self) -> None:
        """Forwards nothing any more, in neither direction, and cuts nothing: a partition. ``heal`` ends that."""
        self.forwards.clear()

    def heal(self) -> None:
        self.forwards.set()

    def backends(self) -> list[int]:
        """The process numbers of the backends that it has clients connected with."""
        return list(self._cuts)

    def cut_backend(self, pid: int) -> bool:
        """Cuts the client off from that backend, whatever it does now; False if none of ours is connected with it."""
        if (cut := self._cuts.pop(pid, None)) is None:
            return False
        self.cuts += 1
        cut.set()
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled where the proxy ends, which asyncio's streams would report
                await self._between(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _between(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.served += 1
        await self.forwards.wait()
        from_server, to_server = await asyncio.open_unix_connection(self._to)
        muted, cut = asyncio.Event(), asyncio.Event()
        pids: list[int] = []
        asked = Kinds(greeted=False)

        async def forth() -> None:
            while data := await reader.read(1 << 16):
                await self.forwards.wait()
                self.marked += self.mark in data
                self.statements += sum(kind in EXECUTED for kind in asked.of(data))
                if self._needle and self._needle in data:
                    self._needle = b""
                    self.cuts += 1
                    if not self._after:
                        return
                    muted.set()
                to_server.write(data)
                await to_server.drain()

        async def back() -> None:
            while data := await from_server.read(1 << 16):
                await self.forwards.wait()
                if not pids and (at := data.find(KEY)) >= 0:
                    pids.append(int.from_bytes(data[at + 5 : at + 9], "big"))
                    self._cuts[pids[0]] = cut
                self.answers += data.count(READY)
                if muted.is_set():
                    if READY in data:
                        return
                    continue
                writer.write(data)
                await writer.drain()

        tasks = [asyncio.ensure_future(forth()), asyncio.ensure_future(back()), asyncio.ensure_future(cut.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for pid in pids:
                self._cuts.pop(pid, None)
            to_server.close()
            await asyncio.gather(*tasks, return_exceptions=True)


__all__ = ["Proxy"]
