"""A run by the beginning of its id, or as ``last``, on the command line alone (§7.10)."""

from __future__ import annotations

import asyncio

import click
import pytest
from tests.cli.conftest import Type

from holdfast import Runtime
from holdfast.cli.main import cli
from holdfast.cli.session import RunName
from holdfast.core.errors import RunNotFound


def begun(holdfast: Type, name: str = "Ada") -> str:
    return str(holdfast("run", "work.py", "--input", f'{{"name": "{name}"}}', "--json").json["run_id"])


def prefix(run_id: str, *others: str) -> str:
    """The shortest beginning that fits this run alone."""
    return next(run_id[:n] for n in range(6, 27) if not any(o.startswith(run_id[:n]) for o in others))


def test_last_is_the_newest_run_and_its_whole_id_is_printed_first(holdfast: Type) -> None:
    begun(holdfast)
    newest = begun(holdfast)
    said = holdfast("show", "last", "--json")
    assert said.json["run_id"] == newest
    assert said.err == f"run {newest}\n"


def test_a_beginning_that_fits_one_run_stands_for_it_in_every_command(holdfast: Type) -> None:
    one, two = begun(holdfast), begun(holdfast)
    short = prefix(one, two)
    for words in (["show", short], ["events", short], ["steps", short], ["state", short], ["checkpoints", short], ["effects", short], ["waits", short], ["explain", short]):
        said = holdfast(*words)
        assert (said.code, said.err) == (0, f"run {one}\n"), words
    assert holdfast("approve", short, "--json").json["run_id"] == one
    assert holdfast("resume", short, "work.py", "--json").json["status"] == "completed"
    assert holdfast("show", two, "--json").json["status"] == "waiting_for_human"


def test_a_beginning_that_fits_several_runs_changes_none(holdfast: Type) -> None:
    one, two = begun(holdfast), begun(holdfast)
    shared = one[:6]
    assert two.startswith(shared)
    said = holdfast("cancel", shared)
    assert said.code == 2
    assert "ambiguous_run" in said.err and one in said.err and two in said.err
    assert [r["status"] for r in holdfast("runs", "--json").json["runs"]] == ["waiting_for_human"] * 2


@pytest.mark.parametrize("text", ["01m", "lastly", "zzzzzzzz", "LAST", "last "])
def test_what_fits_no_run_is_not_found(holdfast: Type, text: str) -> None:
    begun(holdfast)
    said = holdfast("show", text)
    assert (said.code, said.err.partition(":")[0]) == (3, "run_not_found")


def test_an_empty_id_never_means_the_newest(holdfast: Type) -> None:
    begun(holdfast)
    assert holdfast("cancel", "").code == 2
    assert holdfast("runs", "--json").json["runs"][0]["status"] == "waiting_for_human"


def test_last_without_a_run_or_a_store_says_so(holdfast: Type) -> None:
    assert holdfast("show", "last").code == 3
    assert holdfast("migrate", "--store", "sqlite:///empty.db").code == 0
    said = holdfast("show", "last", "--store", "sqlite:///empty.db")
    assert (said.code, said.err.partition(":")[0]) == (3, "run_not_found")


def test_python_takes_whole_ids_alone(holdfast: Type) -> None:
    run_id = begun(holdfast)

    async def look(text: str) -> None:
        async with Runtime("sqlite:///.holdfast/runs.db") as rt:
            await rt.get(text)

    for text in (run_id[:20], "last"):
        with pytest.raises(RunNotFound):
            asyncio.run(look(text))


def test_every_argument_that_names_a_run_is_of_this_kind() -> None:
    named = [(name, p) for name, command in cli.commands.items() for p in command.params if isinstance(p, click.Argument) and p.name == "run_id"]
    assert len(named) > 15
    assert [name for name, p in named if not isinstance(p.type, RunName)] == []


def test_graph_takes_a_beginning_and_last(holdfast: Type) -> None:
    run_id = begun(holdfast)
    assert holdfast("graph", "last", "work.py").err == f"run {run_id}\n"
    assert holdfast("graph", run_id[:12], "work.py").code == 0


def test_the_shell_completes_commands_options_and_runs(holdfast: Type, process: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/cli.md puts into a shell's start file works."""
    run_id = begun(holdfast)
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "bash_source")
    assert "complete -o nosort -F" in process().out
    monkeypatch.setenv("_HOLDFAST_COMPLETE", "bash_complete")
    for words, cursor, offered in (("holdfast exp", 1, "export"), ("holdfast show --fu", 2, "--full"), ("holdfast show la", 2, "last"), (f"holdfast show {run_id[:8]}", 2, run_id)):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(cursor))
        assert f"plain,{offered}" in process().out.splitlines(), words
