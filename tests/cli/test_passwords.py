"""The password of a store's URL stands in nothing that a command prints or writes (§13.5, §14.4)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
from tests.cli.conftest import Type
from tests.postgres.server import shared

SECRET = "hunter2"


def urls(database: str) -> list[str]:
    """A database whose URL has its password at the two places where libpq takes one."""
    asked = shared().fresh(database)
    host = dict(pair.split("=", 1) for pair in urlsplit(asked).query.split("&"))["host"]
    return [f"{asked}&password={SECRET}", f"postgresql://holdfast:{SECRET}@{quote(host, safe='')}/{database}"]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("how", ["option", "variable"])
def test_no_command_repeats_the_password(holdfast: Type, folder: Path, monkeypatch: pytest.MonkeyPatch, place: int, how: str) -> None:
    database = f"passwords_{how}_{place}"  # of its own: it loses what names it
    url, named = urls(database)[place], []
    if how == "variable":
        monkeypatch.setenv("HOLDFAST_STORE", url)
    else:
        named = ["--store", url]
    said = {
        words: holdfast(*words, *named)
        for words in [
            ("run", "work.py:graph", "--input", '{"name": "a"}'), ("submit", "work.py:graph", "--input", '{"name": "b"}'), ("runs",), ("show", "last"), ("waits",),
            ("explain", "last"), ("doctor",), ("doctor", "--json"), ("check",), ("migrate", "--json"), ("migrate",), ("show", "last", "--html", "run.html"), ("show", "nobody"),
        ]
    }
    assert {words for words, told in said.items() if SECRET in told.out + told.err} == set()
    assert said["show", "last", "--html", "run.html"].code == 0, said["show", "last", "--html", "run.html"].err
    assert SECRET not in (folder / "run.html").read_text("utf-8")
    with shared().admin(database) as db:
        db.execute("DELETE FROM holdfast.meta WHERE key = 'store'")
    damaged = [holdfast(*words, *named) for words in (("check",), ("doctor",), ("doctor", "--json"), ("runs",))]
    assert "cannot be identified" in damaged[0].out + damaged[0].err
    assert not [told for told in damaged if SECRET in told.out + told.err]
    if how == "option":
        assert "***" in said["explain", "last"].out + said["submit", "work.py:graph", "--input", '{"name": "b"}'].out


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@localhost:1/db?nonsense=1", "postgresql://u:hun/hunter2@localhost:1/db", "postgresql://u:hun@hunter2@localhost:1/db",
        "postgresql://u:hunter2%zz@localhost:1/db", "postgresql://u:hunter2%00@localhost:1/db", "postgresql://u:hunter2@[::1/db", "postgresql://localhost:1/db?hunter2",
        "postgresql://u:hunter2@localhost:1/db?pooler=no", "postgresql:u:hunter2@localhost/db", "mysql://u:hunter2@localhost/db", "host=localhost password=hunter2",
    ],
)
def test_a_url_that_is_refused_is_told_without_its_password(holdfast: Type, url: str) -> None:
    told = holdfast("runs", "--store", url)
    assert told.code == 2 and told.err and SECRET not in told.out + told.err
