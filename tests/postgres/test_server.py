"""The server that the tests bring."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.postgres import server
from tests.postgres.server import Server, installed


def test_it_runs_though_its_binaries_lie_where_others_may_not_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout of the superuser, in a home of its own: the server runs as another, who may not enter there."""
    there = installed()
    assert there is not None
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    package = there.parent
    for folder in (package, package.with_name(f"{package.name}.libs")):
        (closed / folder.name).symlink_to(folder)
    monkeypatch.setattr(server, "installed", lambda major: closed / package.name / there.name)
    made = Server().create()
    try:
        with made.admin() as db:
            row = db.execute("SELECT 1").fetchone()
            assert row is not None and row[0] == 1
    finally:
        made.remove()
