"""Worker processes that start at once, because they are forked from one process that has everything imported.

Workers that are killed again and again must soon be replaced, on a busy machine too; otherwise a test of faults measures how long an
interpreter takes to start. The nursery is a process with one thread. It forks when it is told to, says when a child has ended, and kills its
children when its own input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable

START = b"start\n"


class Child:
    """A process of the nursery. No signal is sent to it once it is ``gone``, because another process may have its process id by then."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.gone = asyncio.Event()

    def send(self, number: signal.Signals) -> None:
        if not self.gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)


class Nursery:
    """Starts a nursery and talks to it. ``module`` is what ``python -m`` runs as the nursery, with ``arguments``; ``command`` is the whole command."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.command = (sys.executable, "-m", module, *arguments)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._begun: asyncio.Queue[Child] = asyncio.Queue()
        self._children: dict[int, Child] = {}

    async def __aenter__(self) -> Nursery:
        self._process = await asyncio.create_subprocess_exec(*self.command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        self._reading = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None and self._process.stdin is not None and self._reading is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        while line := await self._process.stdout.readline():
            word, pid = line.split()
            if word == b"began":
                child = self._children[int(pid)] = Child(int(pid))
                self._begun.put_nowait(child)
            else:
                self._children.pop(int(pid)).gone.set()

    async def start(self) -> Child:
        """Starts another process."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(START)
        await self._process.stdin.drain()
        return await self._begun.get()


def tend(work: Callable[[], object]) -> None:
    """Runs the nursery: for each line of its input it forks a child that runs ``work``, until the input ends."""
    reader, writer = os.pipe()
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer)
    children: set[int] = set()
    told = b""
    while True:
        ready, _, _ = select.select([0, reader], [], [])
        if reader in ready:
            os.read(reader, 4096)
            for pid in [p for p in children if os.waitpid(p, os.WNOHANG)[0]]:
                children.discard(pid)
                os.write(1, f"gone {pid}\n".encode())
        if 0 in ready:
            data = os.read(0, 4096)
            if not data:
                break
            *lines, told = (told + data).split(b"\n")
            for _ in lines:
                if (pid := os.fork()) == 0:
                    _begin(work, reader, writer)
                children.add(pid)
                os.write(1, f"began {pid}\n".encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)


def _begin(work: Callable[[], object], *fds: int) -> None:
    """Runs ``work`` in a child and exits. The child uses none of the nursery's pipes, neither its input nor its output."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for fd in fds:
            os.close(fd)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)
        work()
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


__all__ = ["Child", "Nursery", "tend"]
