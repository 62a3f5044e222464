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
        evidence.refuse_outside(request.artifacts, request.postconditions, cwd, inside)  # before anything is done
        env = environment(request)
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.subprocess_exec(
                lambda: _Watched(loop), *request.command, cwd=cwd, env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, start_new_session=True,
            )
        except OSError as e:
            raise unstarted.explain(e, request, cwd, env) from None
        process = asyncio.subprocess.Process(transport, protocol, loop)
        out, err = _Output(self._cap), _Output(self._cap)
        talk = [loop.create_task(job) for job in (out.read(process.stdout), err.read(process.stderr), _feed(process.stdin, request.input))]
        try:
            async with asyncio.timeout(request.timeout_us / 1_000_000):
                await asyncio.wait({protocol.exited})
                await asyncio.wait(talk, timeout=self._grace)
        except TimeoutError:
            if process.returncode is None:
                await self._end(process.pid, protocol)
                raise StepTimeout(
                    f"{request.tool} took longer than {request.timeout_us / 1_000_000:g} s and was ended", hint="give it timeout=…"
                ) from None
        except BaseException:
            await self._end(process.pid, protocol)
            raise
        finally:
            for task in talk:
                task.cancel()
            await asyncio.gather(*talk, return_exceptions=True)
            transport.close()  # a process that the tool has left running may hold the pipes open for long
        for task in talk:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        code = process.returncode
        assert code is not None, "the tool has ended"
        left = await asyncio.to_thread(evidence.artifacts, request.artifacts, cwd, inside) if request.artifacts else ()
        seen = await evidence.reports(request.postconditions, cwd, inside, code, lambda argv: self._check(request, argv))
        return ToolOutcome(_text(bytes(out.kept)), _text(bytes(err.kept)), code, out.cut or err.cut, seen, left)

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

    async def _end(self, group: int, protocol: _Watched) -> None:
        """Sends SIGTERM to the whole process group, and after the grace period SIGKILL to what is left of it."""
        _signal(group, signal.SIGTERM)
        await asyncio.wait({protocol.exited}, timeout=self._grace)
        _signal(group, signal.SIGKILL)
        await asyncio.wait({protocol.exited})


class _Watched(asyncio.subprocess.SubprocessStreamProtocol):
    """Signals when the process itself has exited. Before Python 3.13, ``Process.wait`` also waits until no other process holds its output open."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=CHUNK, loop=loop)
        self.exited: asyncio.Future[None] = loop.create_future()

    def process_exited(self) -> None:
        super().process_exited()
        if not self.exited.done():
            self.exited.set_result(None)


class _Output:
    """The output of a stream, up to the cap. ``cut``: there was more, or there may be more, because another process holds it open."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self.kept = bytearray()
        self.cut = False

    async def read(self, stream: asyncio.StreamReader | None) -> None:
        """Reads a stream to its end; what is beyond the cap is dropped, so that the tool is not blocked."""
        assert stream is not None
        try:
            while chunk := await stream.read(CHUNK):
                room = self._cap - len(self.kept)
                self.kept += chunk[:room]
                self.cut = self.cut or len(chunk) > room
        except asyncio.CancelledError:
            self.cut = True
            raise


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
