"""A transaction pooler: ``pgbouncer`` where it is on PATH, else a proxy that hands every transaction to another backend.

The proxy is harder on a client than a pooler is: of its backends it never gives a client the one that it had last. So whatever is kept in
a session, a prepared statement, a setting, a listener, an advisory lock, is missed in the next transaction.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psycopg

PGBOUNCER = shutil.which("pgbouncer")
WHICH = f"pgbouncer ({PGBOUNCER})" if PGBOUNCER else "the tests' own proxy, every transaction on another backend (no pgbouncer on PATH)"
BACKENDS = 6
_HEAD = struct.Struct("!cI")
_ENDS = (b"Q", b"S", b"F")  # what the server answers with ReadyForQuery


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """The next message: its kind, and all its bytes."""
    head = await reader.readexactly(_HEAD.size)
    kind, length = _HEAD.unpack(head)
    return kind, head + await reader.readexactly(length - 4)


class _Backend:
    """A session of the server. What it says goes to the client that has it, ``to``."""

    def __init__(self) -> None:
        self.to: asyncio.Queue[_Said] | None = None
        self.greeting = b""
        self.gone = False

    async def connect(self, socket: Path, startup: bytes) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(socket)
        try:
            await self._greet(startup)
        except BaseException:
            self._writer.close()  # nobody reads from it, who would
            raise
        self._reading = asyncio.ensure_future(self._read())

    async def _greet(self, startup: bytes) -> None:
        self._writer.write(startup)
        kind = b""
        while kind != b"Z":
            kind, whole = await _message(self._reader)
            self.greeting += whole
            if kind == b"E":
                raise ConnectionError(whole.decode(errors="replace"))

    async def _read(self) -> None:
        try:
            while True:
                kind, whole = await _message(self._reader)
                if self.to is not None:
                    self.to.put_nowait((self, kind, whole))
        except (OSError, EOFError):
            self.gone = True
            if self.to is not None:
                self.to.put_nowait((self, b"", b""))
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def close(self) -> None:
        self.gone = True
        self._writer.close()


_Said = tuple[_Backend | None, bytes, bytes]  # who said it, the client where it is None, its kind (empty: it has gone), and all its bytes


class Pooler:
    """The proxy. ``handed`` counts the transactions that it gave to another backend than the client's last."""

    def __init__(self, to: Path) -> None:
        self._to = to / ".s.PGSQL.5432"
        self.folder = Path(tempfile.mkdtemp(prefix="hf-pool-", dir="/tmp"))
        self.handed = 0
        self._idle: dict[bytes, list[_Backend]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> asyncio.AbstractServer:
        return await asyncio.start_unix_server(self._client, self.folder / ".s.PGSQL.5432")

    async def _lend(self, startup: bytes, last: _Backend | None, to: asyncio.Queue[_Said]) -> _Backend:
        """A backend for one transaction: any but the last, the one that has rested longest."""
        idle = [b for b in self._idle.get(startup, []) if not b.gone]
        backend = next((b for b in idle if b is not last), None)
        if backend is not None:
            idle.remove(backend)
        self._idle[startup] = idle
        if backend is None:
            backend = _Backend()
            await backend.connect(self._to, startup)
        self.handed += last is not None
        backend.to = to
        return backend

    def _back(self, startup: bytes, backend: _Backend) -> None:
        backend.to = None
        idle = self._idle[startup]
        if len(idle) < BACKENDS:
            idle.append(backend)
        else:
            backend.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said: asyncio.Queue[_Said] = asyncio.Queue()
        try:
            with contextlib.suppress(OSError, EOFError):
                length = await reader.readexactly(4)
                startup = length + await reader.readexactly(struct.unpack("!I", length)[0] - 4)
                reading = asyncio.ensure_future(_told(reader, said))
                self._tasks.add(reading)
                reading.add_done_callback(self._tasks.discard)
                await self._serve(startup, said, writer)
        finally:
            writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _serve(self, startup: bytes, said: asyncio.Queue[_Said], writer: asyncio.StreamWriter) -> None:
        held: _Backend | None = await self._lend(startup, None, said)
        last = held
        assert held is not None
        writer.write(held.greeting)
        self._back(startup, held)
        held, unanswered, asking = None, 0, False
        while True:
            source, kind, whole = await said.get()
            if kind in (b"", b"X"):  # either side has gone: so has what was under way
                if held is not None:
                    held.close()
                return
            if source is not None:
                if source is not held:
                    continue
                writer.write(whole)
                if kind == b"Z":
                    unanswered -= 1
                    if not unanswered and not asking and whole[-1:] == b"I":
                        self._back(startup, held)
                        held = None
                continue
            if held is None:
                last = held = await self._lend(startup, last, said)
            held.write(whole)
            asking = kind not in _ENDS
            unanswered += kind in _ENDS


async def _told(reader: asyncio.StreamReader, to: asyncio.Queue[_Said]) -> None:
    try:
        while True:
            to.put_nowait((None, *await _message(reader)))
    except (OSError, EOFError):
        to.put_nowait((None, b"", b""))


_poolers: dict[Path, Path] = {}


def pooled(folder: Path) -> Path:
    """The folder of a pooler before the server in this folder; begun when it is first asked for, and ended with the process."""
    if folder not in _poolers:
        _poolers[folder] = _bouncer(folder) if PGBOUNCER else _proxy(folder)
    return _poolers[folder]


def _proxy(folder: Path) -> Path:
    pooler, begun = Pooler(folder), threading.Event()

    async def serve() -> None:
        server = await pooler.listen()
        begun.set()
        await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(serve()), name="pooler", daemon=True).start()
    begun.wait()
    atexit.register(shutil.rmtree, pooler.folder, ignore_errors=True)
    return pooler.folder


def _bouncer(folder: Path) -> Path:
    assert PGBOUNCER is not None
    here = Path(tempfile.mkdtemp(prefix="hf-pool-", dir="/tmp"))
    (here / "users").write_text('"holdfast" ""\n')
    (here / "ini").write_text(
        f"[databases]\n* = host={folder} port=5432\n[pgbouncer]\nunix_socket_dir = {here}\nlisten_port = 5432\nlisten_addr =\nauth_type = trust\n"
        f"auth_file = {here}/users\npool_mode = transaction\ndefault_pool_size = {BACKENDS}\nserver_round_robin = 1\nmax_client_conn = 500\n"
        "ignore_startup_parameters = extra_float_digits\n"
    )
    user = "nobody" if os.geteuid() == 0 else None  # it refuses root, as its server does
    if user is not None:
        here.chmod(0o777)
    process = subprocess.Popen([PGBOUNCER, here / "ini"], user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    atexit.register(shutil.rmtree, here, ignore_errors=True)
    atexit.register(process.kill)
    until = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(f"host={here} dbname=postgres user=holdfast").close()
            return here
        except psycopg.OperationalError:
            if time.monotonic() > until or process.poll() is not None:
                raise


def through_pooler(url: str, folder: Path) -> str:
    """The URL of the same database behind a transaction pooler."""
    return url.replace(str(folder), str(pooled(folder))) + "&pooler=transaction"


__all__ = ["WHICH", "Pooler", "pooled", "through_pooler"]
