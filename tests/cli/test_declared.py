"""Harden 8 and 10 from the commands' own declarations: every number and length of time is bounded, no name stands twice in any JSON, looking runs no
code of the current folder, and one function prints."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from tests.people import test_secrets_everywhere as secrets

import holdfast
from holdfast import Runtime
from holdfast.cli.main import cli
from holdfast.core.jsons import json_of

NASTY = (
    str(10**23), "-1", "-" + "9" * 30, "nan", "inf", "-inf", "1e400", "1e999", "", " ", "0x10", "1_0_0", "9" * 5000, "\u0661\u0662x", "1,5", "٣", "½", "1e", "--", "None",
)
SPANS = (*NASTY, "9" * 40 + "d", "10^23", "1e300d", "nand", "infs", "-5d", "5 parsecs", "1d2", "d", "99999999999999w", "9999-99-99", "10000-01-01T00:00:00Z", "0000-00-00", "now+1")
WORDS = {"topic", "type", "type_", "thread", "thread_id", "tag", "tenant"}
"""Options that say T and mean no time."""


def declared(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from declared(command, (*path, name))
        else:
            yield (*path, name), command


NUMBERS = [
    pytest.param(command, option, id=f"{' '.join(path)} {option.opts[0]}")
    for path, command in declared() for option in command.params
    if isinstance(option, click.Option) and not option.is_flag and isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
]


@pytest.mark.parametrize(("command", "option"), NUMBERS)
def test_every_number_is_bounded(command: click.Command, option: click.Option) -> None:
    kind: Any = option.type
    assert kind.min is not None and kind.max is not None and math.isfinite(kind.max), "no bounds"
    for text in NASTY:
        try:
            value = option.type_cast_value(click.Context(command), text)
        except click.UsageError:
            continue
        assert kind.min <= value <= kind.max and math.isfinite(value), (text, value)


TIMES = {
    (*path, option.opts[0]): [option.opts[0], *path]
    for path, command in declared() for option in command.params
    if isinstance(option, click.Option) and option.metavar in ("T", "TIME", "DURATION") and option.name not in WORDS
}
GIVEN = {
    ("schedule", "add"): ["holdfast.demo.notes:graph"], ("submit",): ["holdfast.demo.notes:graph", "--input", '{"repo": ".", "folder": "."}'], ("prune",): ["--dry-run"],
    ("schedule", "next"): ["--cron", "0 0 * * *"], ("token", "create"): [],
}
BESIDE = {"--grace": ["--every", "1d"]}


@pytest.mark.parametrize("place", TIMES, ids=" ".join)
def test_every_length_of_time_is_bounded(place: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    *path, option = place
    for text in SPANS:
        words = [*path, *GIVEN.get(tuple(path), []), *BESIDE.get(option, []), f"{option}={text}", "--store", f"sqlite:///{tmp_path}/s.db"]
        done = CliRunner().invoke(cli, words, prog_name="holdfast")
        assert done.exception is None or isinstance(done.exception, SystemExit), (text, done.exception)
        assert "internal" not in done.output and "Traceback" not in done.output, (text, done.output)
        assert done.exit_code in (0, 2), (text, done.exit_code, done.output)
        if done.exit_code:
            assert len(done.stderr.strip().splitlines()) <= 3, (text, done.stderr)


def test_all_of_them_were_found() -> None:
    assert len(NUMBERS) > 25 and len(TIMES) >= 8


# -- JSON --------------------------------------------------------------------------------------------------

TWICE = ('{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', '[{"a": 1}, {"a": 1, "a": 1}]', '{"\\u0061": 1, "a": 2}', '{"": 1, "": 2}')


@pytest.mark.parametrize("text", [*TWICE, '{"a": NaN}', "[Infinity]", "[-Infinity]"])
def test_no_name_stands_twice(text: str) -> None:
    with pytest.raises(ValueError, match=r"twice|not a JSON number"):
        json_of(text)
    with pytest.raises(ValueError, match=r"twice|not a JSON number"):
        json_of(text.encode())


def test_what_is_read_from_outside_is_read_by_it() -> None:
    """No other module decodes JSON that somebody else may have written."""
    own = {"core/jsons.py", "api/bodies.py"}  # bodies count keys and depth besides, in a function of their own
    ours = {"integrations/mcp.py", "testing"}  # what we have encoded ourselves a moment before
    root = Path(holdfast.__file__).parent
    found = []
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        if name in own or name in ours or name.startswith("testing/"):
            continue
        if re.search(r"\bjson\.loads?\(", path.read_text()):
            found.append(name)
    assert not found


# -- one function prints -------------------------------------------------------------------------------------


def test_nothing_is_printed_past_it() -> None:
    """The command line's streams are those of ``cli/output``; nobody else writes to a terminal."""
    root = Path(holdfast.__file__).parent
    found = []
    for path in (root / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write"):
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node.func)}")
    assert not found


# -- looking runs no code of the folder ------------------------------------------------------------------------

EVIL = "open({mark!r}, 'a').write('ran')\n"
SHADOWS = ("json.py", "click.py", "msgspec.py", "apsw.py", "asyncio.py", "logging.py", "sitecustomize.py", "usercustomize.py", "holdfast_skills.py", "notes.py", "conftest.py")


def poisoned(folder: Path) -> Path:
    """A folder full of modules that anything may import by mistake."""
    mark = folder / "ran"
    for name in SHADOWS:
        (folder / name).write_text(EVIL.format(mark=str(mark)))
    (folder / "pyproject.toml").write_text('[tool.holdfast]\nskills = ["holdfast_skills", "notes.py"]\n')
    (folder / ".env").write_text("HOLDFAST_SKILLS=holdfast_skills\n")
    return mark


def test_no_looking_command_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each, with what it shows of a run whose skill is named in that folder; also where the environment names it."""
    url = f"sqlite:///{tmp_path}/runs.db"
    made = CliRunner().invoke(cli, ["submit", "holdfast.demo.notes:graph", "--input", '{"repo": ".", "folder": "."}', "--json", "--store", url], prog_name="holdfast")
    run_id = json.loads(made.stdout)["run_id"]
    mark = poisoned(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_SKILLS", "holdfast_skills")
    count = 0
    for words in secrets.commands(run_id, "head"):
        CliRunner().invoke(cli, [*words, "--store", url], prog_name="holdfast")
        assert not mark.exists(), words
        count += 1
    assert count > 15


def test_nor_does_the_interpreter_that_is_asked_for_it(tmp_path: Path) -> None:
    """``python -m`` puts the current folder before the standard library."""
    mark = poisoned(tmp_path)
    environment = {**os.environ, "HOLDFAST_STORE": f"sqlite:///{tmp_path}/runs.db", "HOLDFAST_SKILLS": "holdfast_skills"}
    done = subprocess.run([sys.executable, "-m", "holdfast", "runs"], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert "Traceback" not in done.stderr and done.returncode in (0, 3), (done.returncode, done.stderr)
    assert not mark.exists(), done.stderr


async def test_code_that_is_named_is_found_all_the_same(tmp_path: Path) -> None:
    """A target of the current folder, by ``python -m``."""
    (tmp_path / "mine.py").write_text("from holdfast import flow\n\n\n@flow('mine')\nasync def mine(ctx):\n    return 7\n")
    command = [sys.executable, "-m", "holdfast", "run", "mine:mine", "--json", "--store", f"sqlite:///{tmp_path}/runs.db"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)  # noqa: ASYNC221
    assert done.returncode == 0, done.stderr
    async with Runtime(f"sqlite:///{tmp_path}/runs.db") as rt:
        assert [r.result for r in await rt.runs()] == [7]
