"""One wrong input for each command: one clear line on stderr with a stable code, the right exit code, no traceback."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.cli.conftest import Type

from holdfast.cli.main import cli

NOBODY = "0" * 26
RUN = ["run", "work.py", "--input"]

WRONG: list[tuple[list[str], int, str]] = [
    (["--sotre"], 2, "usage"),
    (["rnus"], 2, "usage"),
    (["run", "nowhere.py"], 3, "skill_unknown"),
    (["run", "no.such.module:graph"], 3, "skill_unknown"),
    (["run", "work.py:nothing"], 3, "skill_unknown"),
    (["run", "work.py:note"], 3, "skill_unknown"),
    (["run", ":graph"], 2, "usage"),
    (["run", "no/such"], 3, "skill_unknown"),
    ([*RUN, "{"], 2, "invalid_input"),
    ([*RUN, "[]"], 2, "invalid_input"),
    ([*RUN, "@nowhere.json"], 2, "invalid_input"),
    ([*RUN, '{"name": NaN}'], 2, "invalid_input"),
    ([*RUN, '{"name": "a\\u0000b"}'], 2, "unserializable"),
    ([*RUN, '{"name": "\\ud800"}'], 2, "unserializable"),
    ([*RUN, "{}"], 2, "invalid_input"),
    ([*RUN, '{"name": "x", "nmae": 1}'], 2, "invalid_input"),
    ([*RUN, "[" * 100_000], 2, "invalid_input"),
    ([*RUN, '{"name": "x"}', "--lease", "0"], 2, "usage"),
    ([*RUN, '{"name": "x"}', "--store", "mysql://x"], 2, "usage"),
    ([*RUN, '{"name": "x"}', "--store", "sqlite:///no/such/folder/a.db"], 2, "usage"),
    (["submit", "work.py", "--input", "3"], 2, "invalid_input"),
    (["worker", "nowhere.py"], 3, "skill_unknown"),
    (["worker", "work.py", "--concurrency", "0"], 2, "usage"),
    (["runs", "--status", "paused"], 2, "invalid_input"),
    (["runs", "--condition", "tired"], 2, "invalid_input"),
    (["runs", "--limit", "501"], 2, "usage"),
    (["show", NOBODY], 3, "run_not_found"),
    (["show", ""], 2, "invalid_input"),
    (["show"], 2, "usage"),
    (["show", NOBODY, "--store", "a.db", "--workspace", "b"], 2, "usage"),
    (["events", NOBODY], 3, "run_not_found"),
    (["events", NOBODY, "--after", "-1"], 2, "usage"),
    (["checkpoints", NOBODY], 3, "run_not_found"),
    (["state", NOBODY], 3, "run_not_found"),
    (["diff", NOBODY, "c1", "c2"], 3, "run_not_found"),
    (["graph", NOBODY], 3, "run_not_found"),
    (["graph", "nowhere.py"], 3, "skill_unknown"),
    (["waits", NOBODY], 3, "run_not_found"),
    (["approve", NOBODY], 3, "run_not_found"),
    (["approve", ""], 2, "invalid_input"),
    (["approve", NOBODY, "--payload", "{"], 2, "invalid_input"),
    (["deny", NOBODY], 2, "usage"),
    (["deny", NOBODY, "--reason", "x"], 3, "run_not_found"),
    (["decide", NOBODY], 2, "usage"),
    (["decide", NOBODY, "--action", "approve"], 3, "run_not_found"),
    (["signal", NOBODY, "news"], 3, "run_not_found"),
    (["cancel", NOBODY], 3, "run_not_found"),
    (["resume", NOBODY], 3, "run_not_found"),
    (["replay", NOBODY], 3, "run_not_found"),
    (["fork", NOBODY], 3, "run_not_found"),
    (["fork", NOBODY, "--set", "x"], 2, "invalid_input"),
    (["fork", NOBODY, "--set", "x={"], 2, "invalid_input"),
    (["repair-state", NOBODY], 3, "run_not_found"),
    (["repair-state", ""], 2, "invalid_input"),
    (["doctor", "--store", "postgres"], 2, "usage"),
    (["backup", "a.db"], 3, "no_store"),
    (["prune", "--older-than", "1d", "--store", "sqlite:///nowhere.db"], 3, "no_store"),
    (["prune", "--older-than", "1d", "--dry-run", "--store", "sqlite:///nowhere.db"], 3, "no_store"),
    (["restore", "nowhere.db"], 2, "usage"),
    (["check", NOBODY], 3, "run_not_found"),
    (["effects", NOBODY], 3, "run_not_found"),
    (["outbox", "--limit", "0"], 2, "usage"),
    (["leases", "--store", "postgres"], 2, "usage"),
    (["migrate", "--store", "postgres"], 2, "usage"),
    (["new", "class"], 2, "bad_name"),
    (["new", "work"], 2, "file_exists"),
    (["new", "json"], 2, "bad_name"),
    (["new", "no/such/folder/hello"], 1, "not_written"),
    (["demo", "--ask", "--yes"], 2, "usage"),
    (["demo", "--repo", "nowhere"], 3, "no_repository"),
    (["demo", "--crash", "--store", "memory:"], 2, "usage"),
]


@pytest.mark.parametrize(("words", "code", "word"), WRONG, ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else None)
def test_one_line_one_code(holdfast: Type, words: list[str], code: int, word: str) -> None:
    """Errors go to stderr as one clear line with a stable code; stdout stays empty (interfaces, Command line)."""
    said = holdfast(*words)
    lines = said.err.splitlines()
    if words:
        assert len(lines) == 1, said.err
        assert lines[0].startswith(f"{word}: "), said.err
        assert said.out == ""
    assert said.code == code
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("code", "word"),
    [("1 / 0", "ZeroDivisionError"), ("def f(:", "SyntaxError"), ("import nothing_of_the_kind", "nothing_of_the_kind"), ("raise SystemExit(9)", "9")],
)
def test_code_that_cannot_be_imported_is_named_with_its_line(holdfast: Type, code: str, word: str) -> None:
    """The author's mistake is one line with its place, not our traceback."""
    Path("bad.py").write_text(f"\n\n{code}\n", "utf-8")
    said = holdfast("run", "bad.py")
    assert said.code == 2
    assert word in said.err and "bad.py:3" in said.err
    assert "Traceback" not in said.err


def test_debug_shows_the_traceback(holdfast: Type) -> None:
    """Before the command or after it."""
    for words in (["show", NOBODY, "--debug"], ["--debug", "show", NOBODY]):
        said = holdfast(*words)
        assert "Traceback" in said.err and said.code == 3


def test_several_skills_in_a_file_are_named(holdfast: Type) -> None:
    Path("two.py").write_text("from work import graph\nfrom holdfast import flow\n@flow('other')\nasync def other(ctx): return 1\n", "utf-8")
    said = holdfast("run", "two.py")
    assert (said.code, said.err.split(":")[0]) == (2, "ambiguous_target")
    assert "two.py:graph" in said.err and "two.py:other" in said.err


def test_a_run_without_its_code_says_what_to_type_and_imports_nothing(holdfast: Type) -> None:
    """Stored bytes never choose what is imported (§14.3): the recorded TARGET is shown as the command to type."""
    run_id = holdfast("run", "work.py", "--input", '{"name": "Ada"}', "--json").json["run_id"]
    holdfast("approve", run_id)
    said = holdfast("resume", run_id)
    assert (said.code, said.err.split(":")[0]) == (3, "skill_unknown")
    assert f"resume {run_id} work.py:graph" in said.err
    assert Path("calls.txt").read_text("utf-8").split() == ["first"]


def test_a_damaged_store_is_named(holdfast: Type) -> None:
    """No store of ours, or not a database at all: a typed line, nothing overwritten."""
    Path("a.db").write_bytes(b"not a database, and longer than a header would be" * 40)
    for words in (["runs"], ["check"], ["run", "work.py", "--input", '{"name": "x"}'], ["migrate"]):
        said = holdfast(*words, "--store", "sqlite:///a.db")
        assert (said.code, said.err.split(":")[0]) == (1, "store_corrupt"), words
    assert Path("a.db").read_bytes().startswith(b"not a database")


def test_a_store_that_cannot_be_reached_is_not_taken_for_one_that_is_not_there(holdfast: Type, folder: Path) -> None:
    """As one in a folder that this user may not enter: that was an error without a way out, or no runs at all."""
    (folder / "loop.db").symlink_to("loop.db")
    for words in (["runs"], ["show", "last"], ["check"], ["run", "work.py", "--input", '{"name": "x"}']):
        said = holdfast(*words, "--store", "sqlite:///loop.db")
        assert (said.code, said.err.split(":")[0]) == (1, "store_read_only") and "permissions" in said.err, words


def test_where_nothing_can_be_written_it_says_so(holdfast: Type, folder: Path) -> None:
    """A write that fails is exit code 1 and one typed line."""
    (folder / ".holdfast").write_text("in the way", "utf-8")
    for words, code in ((["demo"], "not_written"), (["run", "work.py", "--input", '{"name": "x"}'], "store_read_only"), (["migrate"], "store_read_only")):
        said = holdfast(*words)
        assert (said.code, said.err.split(":")[0], len(said.err.splitlines())) == (1, code, 1), said.err


def test_what_a_run_says_cannot_move_the_cursor(holdfast: Type) -> None:
    """Stored text is shown, not obeyed: no escape sequence of a run reaches the operator's terminal."""
    Path("evil.py").write_text(
        "from holdfast import Graph, State, Context\n"
        "class S(State):\n    x: str = ''\n"
        "graph = Graph('evil', S)\n"
        "@graph.node(start=True)\n"
        "async def ask(state, ctx: Context):\n    await ctx.approve('\\x1b[2Jgone\\r\\nforged line', show='\\x1b]0;title\\x07\\u202e')\n",
        "utf-8",
    )
    said = holdfast("run", "evil.py")
    run_id = said.out.split()[1]
    for page in (said.out, said.err, holdfast("show", run_id).out, holdfast("runs").out, holdfast("waits").out, holdfast("events", run_id).out):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e]", page)
    assert "gone" in said.out


def groups(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """The names of all groups that do nothing by themselves."""
    if not group.invoke_without_command:
        yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from groups(command, *path, name)


@pytest.mark.parametrize("words", list(groups(cli)), ids=" ".join)
def test_a_group_alone_is_its_help(holdfast: Type, words: tuple[str, ...]) -> None:
    """Issue «First hour», 5: whoever types the name alone asks what there is; line by line, on stdout."""
    alone, asked = holdfast(*words), holdfast(*words, "--help")
    assert (alone.code, alone.out, alone.err) == (0, asked.out, "")
    assert len(alone.out.splitlines()) > 5


def test_a_port_where_nothing_can_listen(holdfast: Type) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = holdfast("serve", "--no-auth", "--port", str(taken.getsockname()[1]))
    assert (said.code, said.err.partition(":")[0]) == (2, "port_taken")
    assert "--port names another" in said.err
    said = holdfast("serve", "--no-auth", "--host", "no-such-host.invalid")
    assert (said.code, said.err.partition(":")[0]) == (2, "usage")
