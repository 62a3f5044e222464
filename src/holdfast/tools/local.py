"""Tools as subprocesses of this machine (§11.2): one process per call, in the workspace, with limits on time, output and files.

The workspace protects against mistakes, not against attacks: it is not a sandbox.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import signal
from pathlib import Path

import msgspec

from holdfast.core.errors import PathOutsideWorkspace, StepTimeout, ToolFailed
from holdfast.core.evidence import Artifact
from holdfast.ports import ToolOutcome, ToolRequest
from holdfast.tools import evidence, unstarted

OUTPUT_CAP = 4 * 1024 * 1024
GRACE_SECONDS = 5.0
CHUNK = 64 * 1024
ALLOWED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "USER")


class LocalRunner:
    """Runs each call in its own process group, so that its child processes end with it."""

    def __init__(self, *, output_cap: int = OUTPUT_CAP, grace_seconds: float = GRACE_SECONDS) -> None:
        self._cap = output_cap
        self._grace = grace_seconds

    async def run(self, request: ToolRequest) -> ToolOutcome:
        """Runs a tool in its workspace, with limits on time, output and files."""
        cwd = confine(request.workspace, request.cwd)

        def inside(path: str) -> str:
            return confine(request.workspace, path)

        for path in request.paths:
            inside(path)
        env = environment(request)
        try:
            process = await asyncio.create_subprocess_exec(
                *request.command,
                cwd=cwd,
                env=env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as e:
            raise unstarted.explain(e, request, cwd, env) from None
        try:
            async with asyncio.timeout(request.timeout_us / 1_000_000):
                (stdout, cut_out), (stderr, cut_err), _ = await asyncio.gather(
                    self._read(process.stdout), self._read(process.stderr), _feed(process.stdin, request.input)
                )
                code = await process.wait()
        except TimeoutError:
            await self._end(process)
            raise StepTimeout(
                f"{request.tool} took longer than {request.timeout_us / 1_000_000:g} s and was ended", hint="give it timeout=…"
            ) from None
        except BaseException:
            await self._end(process)
            raise
        left = await asyncio.to_thread(evidence.artifacts, request.artifacts, cwd, inside) if request.artifacts else ()
        seen = await evidence.reports(request.postconditions, cwd, inside, code, lambda argv: self._check(request, argv))
        return ToolOutcome(_text(stdout), _text(stderr), code, cut_out or cut_err, seen, left)

    async def _check(self, request: ToolRequest, argv: tuple[str, ...]) -> int:
        """Returns the exit code of a postcondition's command, which is run in the same way as the tool."""
        asked = msgspec.structs.replace(request, command=argv, input=b"", postconditions=(), artifacts=())
        return (await self.run(asked)).exit_code

    async def content(self, request: ToolRequest, artifact: Artifact) -> bytes:
        """Returns the content of a file that the tool left.

        Raises:
            ToolFailed: the file has changed since.
        """
        cwd = confine(request.workspace, request.cwd)
        data = await asyncio.to_thread(Path(confine(request.workspace, str(Path(cwd, artifact.name)))).read_bytes)
        if hashlib.sha256(data).hexdigest() != artifact.sha256:
            raise ToolFailed(f"{artifact.name} was changed while it was being saved")
        return data

    async def _read(self, stream: asyncio.StreamReader | None) -> tuple[bytes, bool]:
        """Reads a stream and returns up to the cap; the rest is read and dropped, so that the tool is not blocked."""
        assert stream is not None
        kept, cut = bytearray(), False
        while chunk := await stream.read(CHUNK):
            room = self._cap - len(kept)
            kept += chunk[:room]
            cut = cut or len(chunk) > room
        return bytes(kept), cut

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Sends SIGTERM to the whole process group, and after the grace period SIGKILL to what is left of it."""
        _signal(process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(self._grace):
                await process.wait()
        except TimeoutError:
            pass
        _signal(process.pid, signal.SIGKILL)
        await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


async def _feed(stream: asyncio.StreamWriter | None, data: bytes) -> None:
    assert stream is not None
    try:
        stream.write(data)
        await stream.drain()
        stream.close()
        await stream.wait_closed()
    except (BrokenPipeError, ConnectionResetError):
        return  # a tool need not read its input


def _text(data: bytes) -> str:
    """Returns output as text that every store can keep (§1.10)."""
    return data.decode("utf-8", "replace").replace("\0", "\ufffd")


def confine(workspace: str | None, path: str) -> str:
    """Returns the absolute path, which must be inside the workspace if there is one.

    Raises:
        PathOutsideWorkspace: it is outside, after symbolic links are followed.
    """
    if workspace is None:
        return os.path.abspath(path)
    root = Path(workspace).resolve()
    try:
        there = (root / path).resolve()
        if any(map(os.path.islink, (there, *there.parents))):  # from Python 3.13 on a link to itself is left as it is
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except (RuntimeError, OSError) as e:  # a symbolic link to itself; the type depends on the version of Python
        raise PathOutsideWorkspace(f"{path} leads to no place in the workspace {root}: {e}", hint="name a path inside it, or remove the link") from None
    if not there.is_relative_to(root):
        raise PathOutsideWorkspace(f"{path} is outside the workspace {root}", hint="name a path inside it, or widen Runtime(workspace=…)")
    return str(there)


def environment(request: ToolRequest) -> dict[str, str]:
    """Returns the allowed variables of this process's environment, and those that the call itself sets."""
    names = (*ALLOWED, *request.allow)
    return {n: os.environ[n] for n in names if n in os.environ} | dict(request.env)


__all__ = ["LocalRunner", "confine", "environment"]
