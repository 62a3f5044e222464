"""What the browser tests stand on: Debian's chromium, axe-core from npm at a pinned hash, a server of a scene in this process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from holdfast import Runtime
from holdfast.api import app
from tests.http.scenes import SCENES, Mail

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "holdfast-browser"
AXE = "4.14.1"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"


def axe() -> str:
    """The source of axe-core, fetched once by npm."""
    file = CACHE / f"axe-{AXE}.min.js"
    if not file.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", f"axe-core@{AXE}"], cwd=CACHE, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(CACHE / f"axe-core-{AXE}.tgz") as packed, contextlib.closing(packed.extractfile("package/axe.min.js")) as source:  # type: ignore[type-var]
            assert source is not None
            file.write_bytes(source.read())
    found = file.read_bytes()
    assert hashlib.sha256(found).hexdigest() == AXE_SHA256, f"{file} is not the axe-core that was pinned"
    return found.decode()


def chromium() -> tuple[str, dict[str, str]]:
    """Debian's chromium, and the environment that it needs: ``$CHROMIUM``, the installed one, else its packages unpacked in a folder of one's own."""
    if installed := os.environ.get("CHROMIUM") or shutil.which("chromium"):
        return installed, {}
    root = CACHE / "debian"
    if not (root / "usr/bin/chromium").exists():
        (root / "packages").mkdir(parents=True, exist_ok=True)
        told = subprocess.run(["apt-get", "install", "--simulate", "--no-install-recommends", "chromium"], check=True, capture_output=True, text=True).stdout
        wanted = [line.split()[1] for line in told.splitlines() if line.startswith("Inst ")]
        subprocess.run(["apt-get", "download", *wanted], cwd=root / "packages", check=True, stdout=subprocess.DEVNULL)
        for package in sorted((root / "packages").glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
    places = [root / place for place in ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib", "lib/x86_64-linux-gnu")]
    libraries = [str(folder) for place in places for folder in (place, place / "pulseaudio")]  # a package may keep some in a folder of its own
    return str(root / "usr/lib/chromium/chromium"), {"LD_LIBRARY_PATH": ":".join(libraries)}


class Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.up.set()


@contextlib.contextmanager
def named(host: str) -> Iterator[None]:
    """The machine has this name meanwhile."""
    own = socket.gethostname
    socket.gethostname = lambda: host
    try:
        yield
    finally:
        socket.gethostname = own


@contextlib.asynccontextmanager
async def shown(scene: str, folder: Path, *, tokens: bool = False) -> AsyncIterator[tuple[str, Runtime]]:
    """A server over the store of a scene: where it listens, and its runtime. No page shows what machine or folder that was."""
    with contextlib.chdir(folder), named("worker-1"):
        async with Runtime(f"sqlite:///{scene}.db", transports={"mail": Mail()}) as rt:
            await SCENES[scene](rt)
            application = app(rt, tokens=tokens)
            server = Server(uvicorn.Config(application, host="127.0.0.1", port=0, log_config=None, access_log=False, lifespan="off"))
            serving = asyncio.ensure_future(server.serve())
            try:
                await asyncio.wait_for(server.up.wait(), 30)
                port = server.servers[0].sockets[0].getsockname()[1]
                yield f"http://127.0.0.1:{port}", rt
            finally:
                application.state.api.stopping.set()
                server.should_exit = True
                await serving
