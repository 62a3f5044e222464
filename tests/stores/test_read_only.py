"""A store that its user may only read: it is read, what cannot be written is named, and it can be written again once its permissions allow it.

The programs run in processes of their own, as a user who is not root, because root may write everything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.stores import SqliteStore
from holdfast.testing.conformance import Script

NOBODY = 65534
PROLOGUE = """
import asyncio, concurrent.futures.thread, encodings.ascii, encodings.latin_1, os, shutil, stat, sys  # before the user is changed, who may not read the interpreter
from holdfast.core.errors import HoldfastError
from holdfast.stores import SqliteStore
from holdfast.testing.conformance import Script
from holdfast.stores.sqlite import connection, store, upkeep
path = sys.argv[1]

async def opened():
    store = SqliteStore(path)
    await store.open()
    return store

if os.geteuid() == 0:
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
"""


@pytest.fixture
async def folder() -> AsyncIterator[Path]:
    """A folder with a store in it that has one run."""
    made = Path(tempfile.mkdtemp())
    store = SqliteStore(made / "s.db")
    await store.open()
    await Script(store, "r1").submit()
    await store.close()
    made.chmod(0o755)
    if os.geteuid() == 0:
        for name in (made, *made.rglob("*")):
            os.chown(name, NOBODY, NOBODY)
    yield made
    for name in (made, *(p for p in made.iterdir() if p.is_dir())):
        name.chmod(0o755)
    shutil.rmtree(made)


def tell(folder: Path, program: str) -> list[str]:
    """Returns what a program prints that is executed as another user."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    body = "async def main():\n" + textwrap.indent(textwrap.dedent(program), "    ") + "\nasyncio.run(main())\n"
    done = subprocess.run([sys.executable, "-c", PROLOGUE + body, folder / "s.db", str(NOBODY)], capture_output=True, text=True, env=env, timeout=60)
    if "PermissionError" in done.stderr or "unknown encoding" in done.stderr:
        pytest.skip("this account cannot run the interpreter")
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[:-1]


async def test_what_is_only_read_is_no_news(folder: Path) -> None:
    """Whoever followed a run of such a store read it again and again without a pause, so that no signal was heard: SQLite counts its own reads as changes
    there."""
    (folder / "s.db").chmod(0o444)
    program = """
    store = await opened()
    await store.wait_for_change(0)
    for _ in range(3):
        await store.rows("r1")
        print(bool(await store.wait_for_change(0.01)))
    await store.close()
    """
    assert tell(folder, program) == ["False"] * 3


async def test_what_another_user_writes_is_news(folder: Path) -> None:
    (folder / "s.db").chmod(0o444)
    program = """
    store = await opened()
    await store.wait_for_change(0)
    await store.rows("r1")
    os.utime(path, ns=(1, 1))
    print(bool(await store.wait_for_change(10)))
    await store.close()
    """
    assert tell(folder, program) == ["True"]


async def test_a_look_leaves_nothing_that_keeps_others_from_writing(folder: Path) -> None:
    """The files beside the store had its mode and belonged to whoever had only looked, and the store could not be written any more when its own
    permissions allowed it again."""
    (folder / "s.db").chmod(0o444)
    program = """
    store = await opened()
    print((await store.get("r1"))[0].run_id)
    await store.close()
    os.chmod(path, 0o644)
    store = await opened()
    await Script(store, "r2").submit()
    print((await store.get("r2"))[0].run_id)
    await store.close()
    """
    assert tell(folder, program) == ["r1", "r2"]


async def test_files_beside_the_store_are_as_open_as_its_folder(folder: Path) -> None:
    (folder / "s.db").chmod(0o444)
    folder.chmod(0o775)
    program = """
    store = await opened()
    await store.get("r1")
    await store.close()
    print(*[f"{stat.S_IMODE(os.stat(path + end).st_mode):o}" for end in ("-wal", "-shm")])
    """
    assert tell(folder, program) == ["664 664"]


async def test_the_file_that_cannot_be_written_is_named(folder: Path) -> None:
    for end, size in (("-wal", 0), ("-shm", 32_768)):
        (folder / f"s.db{end}").write_bytes(bytes(size))
        (folder / f"s.db{end}").chmod(0o444)
        if os.geteuid() == 0:
            os.chown(folder / f"s.db{end}", NOBODY, NOBODY)
    program = """
    try:
        store = await opened()
        await Script(store, "r2").submit()
    except HoldfastError as e:
        print(e.code, "s.db-shm cannot" in e.message or "s.db-wal cannot" in e.message, "make that file writable" in e.hint)
    """
    assert tell(folder, program) == ["store_read_only True True"]


async def test_a_folder_that_cannot_be_written_is_named(folder: Path) -> None:
    """SQLite makes files there even to read, so the way out is another folder."""
    folder.chmod(0o555)
    program = """
    try:
        await opened()
    except HoldfastError as e:
        print(e.code, os.path.dirname(path) in e.hint, "copy it to another folder" in e.hint)
    """
    assert tell(folder, program) == ["store_read_only True True"]


async def test_a_backup_is_restored_from_where_nothing_can_be_written(folder: Path) -> None:
    """A backup on a read-only disk was refused, because it «cannot be written»."""
    backups = folder / "backups"
    backups.mkdir()
    store = SqliteStore(folder / "other.db")
    await store.open()
    await Script(store, "r9").submit()
    await store.backup(backups / "b.db")
    await store.close()
    if os.geteuid() == 0:
        os.chown(backups, NOBODY, NOBODY)
    (backups / "b.db").chmod(0o444)
    backups.chmod(0o555)
    program = """
    store = await opened()
    await store.restore(os.path.join(os.path.dirname(path), "backups", "b.db"))
    print((await store.get("r9"))[0].run_id, await store.get("r1"))
    print(os.listdir(os.path.join(os.path.dirname(path), "backups")))
    """
    assert tell(folder, program) == ["r9 None", "['b.db']"]


async def test_a_store_that_can_only_be_read_is_examined(folder: Path) -> None:
    """``doctor`` was refused, although it only looks."""
    (folder / "s.db").chmod(0o444)
    program = """
    store = await opened()
    print(*[p.code for p in await store.health() if p.code != "disk_low"])
    await store.close()
    """
    assert tell(folder, program) == ["store_read_only"]
