"""Collects the evidence of a tool's work in its workspace (§11.4). The runner of the tool collects it; the core judges it."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from holdfast.core.addresses import mask
from holdfast.core.errors import HoldfastError, PathOutsideWorkspace, TooLarge
from holdfast.core.evidence import (
    Artifact,
    Command,
    ExitCode,
    FileExists,
    FileHash,
    HttpStatus,
    JsonPathEquals,
    Postcondition,
    Report,
    Unseen,
    at,
    judge,
)
from holdfast.core.jsons import json_of
from holdfast.workspaces import FOLDER

LOOK_SECONDS = 10.0
LARGEST = 256 * 1024 * 1024
MOST = 1_000
JSON_CAP = 16 * 1024 * 1024

Run = Callable[[tuple[str, ...]], Any]


async def reports(conditions: tuple[Postcondition, ...], cwd: str, confined: Callable[[str], str], code: int, run: Run) -> tuple[Report, ...]:
    """Returns one report for each postcondition. ``confined`` checks that a path is inside the workspace; ``run`` returns a command's exit code."""
    return tuple([judge(c, await _look_at(c, cwd, confined, code, run)) for c in conditions])


async def _look_at(condition: Postcondition, cwd: str, confined: Callable[[str], str], code: int, run: Run) -> Any:
    try:
        match condition:
            case ExitCode():
                return code
            case FileExists(path):
                return Path(confined(str(Path(cwd, path)))).is_file()
            case FileHash(path):
                return await asyncio.to_thread(hash_file, confined(str(Path(cwd, path))))
            case JsonPathEquals(path, pointer):
                return await asyncio.to_thread(_json, confined(str(Path(cwd, path))), pointer)
            case HttpStatus(url):
                return await asyncio.to_thread(_status, url)
            case Command(argv):
                return await run(argv)
    except PathOutsideWorkspace:
        raise
    except (OSError, ValueError, http.client.HTTPException, HoldfastError) as e:
        return Unseen(f"{type(e).__name__}: {e}")


def hash_file(path: str) -> str:
    _refuse_others(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refuse_others(path: str) -> None:
    """Refuses an existing path that is not a regular file: a named pipe without a writer would block the reader for ever.

    Raises:
        OSError: it is not a regular file, or it does not exist.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(f"{path} is not a regular file")


def _json(path: str, pointer: str) -> Any:
    _refuse_others(path)
    if Path(path).stat().st_size > JSON_CAP:
        return Unseen(f"{path} has more than {JSON_CAP} bytes")
    return at(json_of(Path(path).read_bytes()), pointer)


def _status(url: str) -> int:
    """Returns the status of one GET; redirects are not followed."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{mask(url)!r} is not an address")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=LOOK_SECONDS)
    try:
        connection.request("GET", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
        return connection.getresponse().status
    finally:
        connection.close()


def refuse_outside(patterns: tuple[str, ...], conditions: Iterable[Postcondition], cwd: str, confined: Callable[[str], str]) -> None:
    """Refuses patterns and conditions that lead outside the workspace, before the tool runs.

    Raises:
        PathOutsideWorkspace: names it.
    """
    for pattern in patterns:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise PathOutsideWorkspace(f"{pattern} leads out of the workspace", hint="give patterns relative to where the tool runs")
    for condition in conditions:
        if isinstance(condition, FileExists | FileHash | JsonPathEquals):
            confined(str(Path(cwd, condition.path)))


def artifacts(patterns: tuple[str, ...], cwd: str, confined: Callable[[str], str]) -> tuple[Artifact, ...]:
    """Returns the files that match the patterns, sorted by name, relative to where the tool ran. Files in Holdfast's own folder are left out.

    Raises:
        PathOutsideWorkspace: one of them lies outside.
        TooLarge: one is larger than what is kept, or there are too many.
    """
    found: dict[str, Artifact] = {}
    for pattern in patterns:
        for path in sorted(Path(cwd).glob(pattern)):
            if path.is_file():
                real, name = confined(str(path)), str(path.relative_to(cwd))
                if FOLDER in path.relative_to(cwd).parts or FOLDER in Path(os.path.relpath(real, cwd)).parts:
                    continue
                if (size := path.stat().st_size) > LARGEST:
                    raise TooLarge(f"artifact {name}", size, LARGEST)
                found[name] = Artifact(name, size, hash_file(real))
        if len(found) > MOST:
            raise TooLarge("artifacts", len(found), MOST, unit="files")
    return tuple(found[name] for name in sorted(found))


__all__ = ["artifacts", "hash_file", "reports"]
