"""Mend 17, §12.1: real mutations of the ledger of effects, each named by ``check``; a shared key whose record is lost never acts twice."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Context, Runtime, flow
from holdfast.core.errors import HoldfastError

acts: list[str] = []
ROWS = pytest.mark.one_store("it alters the rows of a SQLite file; those of PostgreSQL are altered in tests/damage")


async def pay(name: str) -> str:
    acts.append(name)
    return f"receipt of {name}"


@flow("payer")
async def payer(ctx: Context, name: str) -> str:
    return await ctx.effect(pay, name, key=name)


def rows(db: apsw.Connection, statement: str, *given: Any) -> None:
    db.execute(statement, given)
    assert db.total_changes(), statement


def swapped(db: apsw.Connection) -> None:
    (one, a), (other, b) = list(db.execute("SELECT effect_id, data FROM effect ORDER BY effect_id"))[:2]
    rows(db, "UPDATE effect SET data = ? WHERE effect_id = ?", b, one)
    rows(db, "UPDATE effect SET data = ? WHERE effect_id = ?", a, other)


def moved(db: apsw.Connection) -> None:
    """The record of the one act under the key of the other."""
    rows(db, "UPDATE effect SET key = key || 'x'")


MUTATIONS: dict[str, Callable[[apsw.Connection], None]] = {
    "deleted": lambda db: rows(db, "DELETE FROM effect"),
    "one deleted": lambda db: rows(db, "DELETE FROM effect WHERE effect_id = (SELECT min(effect_id) FROM effect)"),
    "the data altered": lambda db: rows(db, "UPDATE effect SET data = CAST(data || x'00' AS BLOB)"),
    "the data emptied": lambda db: rows(db, "UPDATE effect SET data = x''"),
    "the status altered": lambda db: rows(db, "UPDATE effect SET status = 'abandoned'"),
    "unknown status": lambda db: rows(db, "UPDATE effect SET status = 'nonsense'"),
    "the key altered": moved,
    "swapped": swapped,
}


async def paid(url: str, *names: str) -> list[str]:
    """What a process that opens the store makes of these payments: their status, or why it was refused."""
    found = []
    async with Runtime(url, skills=[payer]) as rt:
        for name in names:
            try:
                found.append(str((await rt.invoke(payer, {"name": name})).status))
            except HoldfastError as e:
                found.append(e.code)
    return found


async def named(url: str) -> set[str]:
    async with Runtime(url) as rt:
        return {p.code for p in await rt.check() if p.code.startswith("effect_record")}


@ROWS
@pytest.mark.parametrize("how", MUTATIONS)
async def test_a_mutation_of_a_row(tmp_path: Path, how: str) -> None:
    acts.clear()
    url = f"sqlite:///{tmp_path}/s.db"
    assert await paid(url, "ada", "bob") == ["completed", "completed"] and acts == ["ada", "bob"]
    assert await named(url) == set()
    with contextlib.closing(apsw.Connection(f"{tmp_path}/s.db")) as db:
        MUTATIONS[how](db)
    assert await named(url) <= {"effect_record_missing", "effect_record_altered"} and await named(url), how
    again = await paid(url, "ada", "bob")
    assert acts == ["ada", "bob"], f"{how}: acted twice; {again}"
    assert how == "one deleted" or "completed" not in again, again


@ROWS
async def test_an_older_copy_of_the_rows(tmp_path: Path) -> None:
    """All rows of the ledger as they stood before, put back: their runs are on record, and nothing of them is done again."""
    acts.clear()
    url, path = f"sqlite:///{tmp_path}/s.db", f"{tmp_path}/s.db"
    await paid(url, "ada")
    with contextlib.closing(apsw.Connection(path)) as db:
        columns = [c[1] for c in db.execute("PRAGMA table_info(effect)")]
        before = list(db.execute("SELECT * FROM effect"))
    await paid(url, "bob")
    with contextlib.closing(apsw.Connection(path)) as db:
        db.execute("DELETE FROM effect")
        for row in before:
            db.execute(f"INSERT INTO effect VALUES ({', '.join('?' * len(columns))})", row)
    assert await named(url) == {"effect_record_missing"}
    again = await paid(url, "ada", "bob")
    assert acts == ["ada", "bob"] and again[1] != "completed", again


LINES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "all deleted": lambda lines: [],
    "the last deleted": lambda lines: lines[:-1],
    "the first deleted": lambda lines: lines[1:],
    "swapped": lambda lines: [lines[1], lines[0], *lines[2:]],
    "altered": lambda lines: [line.replace(b"recorded", b"abandoned") for line in lines],
    "doubled": lambda lines: [*lines, lines[-1]],
}


@pytest.mark.parametrize("how", LINES)
async def test_a_mutation_of_a_workspace(tmp_path: Path, how: str) -> None:
    """The same of ``effects.jsonl``: one line an effect's state, which its run keeps."""
    acts.clear()
    url = f"workspace:{tmp_path}/w"
    assert await paid(url, "ada", "bob") == ["completed", "completed"]
    [one, *_] = sorted(Path(tmp_path, "w").rglob("effects.jsonl"))
    lines = one.read_bytes().splitlines(keepends=True)
    assert len(lines) >= 2
    shutil.copy(one, tmp_path / "before")
    one.write_bytes(b"".join(LINES[how](lines)))
    async with Runtime(url) as rt:
        found = {p.code for p in await rt.check()}
    assert found, how
    again = await paid(url, "ada", "bob")
    assert acts == ["ada", "bob"], f"{how}: acted twice; {again}"
