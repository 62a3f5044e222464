"""Records of every past release still load, check and go on (§1.8; decision 4)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Runtime
from holdfast.core import describe
from holdfast.core.codec import open_row
from holdfast.stores import SqliteStore, WorkspaceStore, schema_version
from holdfast.stores.sqlite.connection import MIGRATIONS
from tests.histories.make import SKILLS, expectation

RELEASES = sorted(p.parent for p in Path(__file__).parent.glob("*/expected.json"))
KINDS = ["sqlite", "workspace"]


def expected(release: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((release / "expected.json").read_text("utf-8"))
    return found


@pytest.fixture(params=[(r, k) for r in RELEASES for k in KINDS], ids=lambda p: f"{p[0].name}-{p[1]}")
def history(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A release's records, and a copy of them as a store."""
    release, kind = request.param
    if kind == "sqlite":
        shutil.copy(release / "store.db", tmp_path / "store.db")
        return release, SqliteStore(tmp_path / "store.db")
    shutil.copytree(release / "workspace", tmp_path / "ws")
    return release, WorkspaceStore(tmp_path / "ws")


def test_this_release_has_left_its_records() -> None:
    assert RELEASES, "python -m tests.histories.make RELEASE"


async def test_every_record_loads(history: tuple[Path, Any]) -> None:
    """§1.8: the same statuses, values, events, effects and hashes as when they were written; nothing is found wrong."""
    release, store = history
    async with Runtime(store, skills=SKILLS) as rt:
        for name, was in expected(release).items():
            assert await expectation(rt, was["run_id"]) == was, name
            run, lease = await rt.store.get(was["run_id"])  # type: ignore[misc]
            assert describe.legacy(describe.run(run, lease, rt.store.now())).status in ("running", "completed", "failed")
            assert [describe.event(run, e).seq for row in await rt.store.rows(run.run_id) for e in open_row(row).events]
        found = await rt.check()
        assert [p.code for p in found if p.run_id is not None] == []
        assert {p.code for p in found} <= {"log_rolled_back"}, "the file came without its anchor"


async def test_what_rested_goes_on(history: tuple[Path, Any]) -> None:
    """§1.8: a run that waited then is approved and ends now."""
    release, store = history
    async with Runtime(store, skills=SKILLS) as rt:
        if isinstance(store, SqliteStore):
            await rt.acknowledge()
        was = expected(release)["waiting"]
        run = await rt.approve(was["run_id"], actor="ada")
        assert (str(run.status), run.state.log[-1]) == ("completed", "shipped chair")
        greeted = await rt.approve(expected(release)["flow"]["run_id"], actor="ada")
        assert greeted.result == "Hello, Ann"
        assert (await rt.check()).ok


@pytest.mark.parametrize("release", RELEASES, ids=lambda p: p.name)
async def test_an_old_database_is_migrated(release: Path, tmp_path: Path) -> None:
    """§1.8: opening brings the schema up to date and changes no byte of the log."""
    path = tmp_path / "store.db"
    shutil.copy(release / "store.db", path)
    before = _log(path)
    assert schema_version(f"sqlite:///{path}") is not None
    store = SqliteStore(path)
    await store.open()
    await store.close()
    assert schema_version(f"sqlite:///{path}") == len(MIGRATIONS)
    assert _log(path) == before


def _log(path: Path) -> list[Any]:
    db = apsw.Connection(str(path))
    found = list(db.execute("SELECT id, seq, hash, data FROM log ORDER BY id"))
    db.close()
    return found
