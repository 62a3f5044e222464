"""``pytest --store postgres`` is what it says: a slice of it in every run, the reason of each exception, and no count of what never happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.postgres.instead import OtherStore, kept_for, stand_in
from tests.statements import counting_compilations, counting_statements, counting_work

ROOT = Path(__file__).resolve().parents[2]
SLICE = ("tests/engine/test_folds.py", "tests/people/test_waits.py")


def test_a_slice_of_both_suites_runs_over_postgres() -> None:
    """All that the slice opens by URL is in PostgreSQL, but for a test that says why not; and it is told how many there are of each."""
    words = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "--store", "postgres", *SLICE]
    keeps = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # everything else was compiled when this run began
    done = subprocess.run(words, cwd=ROOT, env=keeps, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    ((opened, kept),) = re.findall(r"^--store postgres: (\d+) tests opened a store in PostgreSQL, (\d+) kept", done.stdout, re.MULTILINE)
    assert int(opened) >= 30 and kept == "1", done.stdout


def test_a_store_is_kept_for_a_reason() -> None:
    assert kept_for([pytest.mark.heavy.mark, pytest.mark.one_store("it counts statements").mark]) == "it counts statements"
    assert kept_for([pytest.mark.heavy.mark]) is None


@pytest.mark.parametrize("given", [(), ("",), (" ",), (1,), ("a", "b")])
def test_no_store_is_kept_without_a_reason(given: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="say in one sentence why"):
        kept_for([pytest.mark.one_store.with_args(*given).mark])


@pytest.mark.parametrize("counting", [counting_statements, counting_compilations, counting_work], ids=lambda c: c.__name__)
def test_nothing_is_counted_that_never_happens(monkeypatch: pytest.MonkeyPatch, counting: object) -> None:
    """What SQLite does while PostgreSQL stands in for it is nothing: any bound would hold."""
    made = stand_in(monkeypatch)
    assert callable(counting)
    with counting(), pytest.raises(AssertionError, match="one_store"):
        made.url("sqlite:///a.db")
    assert made.made == ()


@pytest.mark.one_store("it is about tests that are run as they are written")
def test_a_test_marked_so_opens_what_it_names(other_store: OtherStore) -> None:
    assert other_store("sqlite:///a.db") == "sqlite:///a.db"


def test_who_asks_is_told_which_url_stands_for_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same file is the same database, another is another, and a URL that stands for one is itself."""
    made = stand_in(monkeypatch)
    one, other = made.url(f"sqlite:///{tmp_path}/a.db"), made.url(f"sqlite:///{tmp_path}/b.db")
    assert one.startswith("postgresql:///") and one != other
    assert made.url(one) == one == made.url(f"sqlite:///{tmp_path}/a.db")
    assert made.made == (one, other)
