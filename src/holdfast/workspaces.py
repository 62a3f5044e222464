"""Workspaces are identified by a random id in each folder (§11.2), so that a run continues where its tools have worked, and nowhere else."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.core.errors import UsageError

FOLDER, NAME = ".holdfast", "workspace"
AWAY = "remote:"
LOOK_SECONDS = 0.02


def away(folder: str | None) -> str | None:
    """Returns the id in ``remote:ID``, a workspace whose tools a runner elsewhere executes (§11.3). None for a folder.

    Raises:
        UsageError: what follows ``remote:`` is not the id of a workspace.
    """
    if folder is None or not folder.startswith(AWAY):
        return None
    if re.fullmatch(r"[0-9a-f]{16}", found := folder.removeprefix(AWAY)) is None:
        raise UsageError(f"{folder!r} does not name a workspace", hint="remote:ID, with the id that `holdfast tool-runner` prints; ./remote: is a folder")
    return found


def fix_place(folder: str) -> str:
    """Returns the absolute path of a folder, because a node may change the working directory. A remote workspace is returned unchanged."""
    return folder if away(folder) is not None else os.path.abspath(folder)


def read_id(folder: str | None) -> str | None:
    """Returns the id of a folder, or of a remote workspace; None if it has none yet.

    Raises:
        UsageError: what lies there is no id.
    """
    if folder is None or (found := away(folder)) is not None:
        return None if folder is None else found
    try:
        found = Path(folder, FOLDER, NAME).read_text("ascii").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"the id of the workspace {folder} cannot be read: {e}", hint=f"remove {FOLDER}/{NAME} there: a new one is made") from e
    if re.fullmatch(r"[0-9a-f]{16}", found) is None:
        raise UsageError(f"{FOLDER}/{NAME} in {folder} is not the id of a workspace", hint="remove it: a new one is made")
    return found


def find_id(folder: str) -> str | None:
    """Returns the id of a folder, which is created if there is none; None if nothing can be written there.

    Raises:
        UsageError: what lies there is no id.
    """
    if (found := read_id(folder)) is not None:
        return found
    place = Path(folder, FOLDER)
    try:
        if not place.is_dir():
            place.mkdir(exist_ok=True)
            Path(place, ".gitignore").write_text("*\n", "ascii")
        temporary = Path(place, f"{NAME}.{os.getpid()}.{secrets.token_hex(4)}")
        temporary.write_text(f"{secrets.token_hex(8)}\n", "ascii")
        try:
            os.link(temporary, Path(place, NAME))  # the first process to do this names the folder
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    except OSError:
        return None  # then no tool can write there either
    return read_id(folder)


@asynccontextmanager
async def lock(folder: str | None, *, writes: bool) -> AsyncIterator[None]:
    """Locks a folder for one writer, or for many readers at a time. The lock ends with its process. A remote workspace is locked by its runner."""
    if folder is None or away(folder) is not None or read_id(folder) is None:
        yield
        return
    fd = os.open(Path(folder, FOLDER, NAME), os.O_RDONLY)
    try:
        while not _lock(fd, writes):  # noqa: ASYNC110 (no other process tells when it lets go)
            await asyncio.sleep(LOOK_SECONDS)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, writes: bool) -> bool:
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if writes else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


__all__ = ["away", "find_id", "fix_place", "lock", "read_id"]
