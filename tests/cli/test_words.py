"""What commands say and take, word for word where a reader was misled."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Type, environment

from holdfast.core.status import Status


def test_the_first_commands_of_the_help_work_as_they_are_typed(holdfast: Type) -> None:
    """Somebody types them in this order."""
    shown = [line.split("holdfast ", 1)[1] for line in holdfast("--help").out.splitlines() if line.strip().startswith("holdfast ")]
    typed = [next(line for line in shown if line.startswith(word)) for word in ("new hello", "run hello.py")]
    for line, code in zip(typed, (0, 4), strict=True):  # the skill asks a question
        done = holdfast(*shlex.split(line.split("   ")[0]))
        assert done.code == code, done.err


@pytest.mark.parametrize("words", [["backup", "b.db"], ["check"], ["doctor"], ["prune", "--older-than", "1d"]], ids=" ".join)
def test_no_store_is_one_exit_code(words: list[str], holdfast: Type, folder: Path) -> None:
    done = holdfast(*words)
    assert (done.code, done.err.split(":")[0], list(folder.iterdir())) == (3, "no_store", [folder / "work.py"])


def test_a_store_that_migrate_makes_is_said_to_be_made(holdfast: Type) -> None:
    first, again = holdfast("migrate"), holdfast("migrate")
    assert first.out.startswith("sqlite:///.holdfast/runs.db is created with schema ") and "None" not in first.out
    assert again.out.endswith("nothing to do\n")


@pytest.mark.parametrize("host", ["127.0.0.2", "127.1.2.3", "localhost", "127.0.0.1"])
def test_every_loopback_address_is_one(host: str) -> None:
    serving = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "serve", "--no-auth", "--port", "0", "--host", host], stderr=subprocess.PIPE, text=True, env=environment()
    )
    try:
        assert serving.stderr is not None and "serving" in serving.stderr.readline()
    finally:
        serving.terminate()
        serving.communicate(timeout=60)
    assert serving.returncode == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "example.org", "127.0.0.1.example.org", "128.0.0.1"])
def test_what_is_no_loopback_address_asks_for_tokens(host: str, holdfast: Type) -> None:
    done = holdfast("serve", "--no-auth", "--host", host)
    assert done.code == 2 and f"{host} is not a loopback address" in done.err


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
@pytest.mark.parametrize("action", ["nope", "aprove", "APPROVE", ""])
def test_an_action_that_nobody_knows_is_named(action: str, more: list[str], holdfast: Type) -> None:
    holdfast("run", "work.py", "--input", '{"name": "Ada"}')
    done = holdfast("decide", "--all", "--where", "skill=work", "--action", action, *more)
    assert done.code == 2 and f"there is no action {action!r}" in done.err and "did you mean" in done.err


@pytest.mark.parametrize("span", ["0d", "0s", "0.0w", "0.1s"])
def test_a_token_that_would_never_be_valid_is_refused(span: str, holdfast: Type, folder: Path) -> None:
    done = holdfast("token", "create", "--scopes", "view", "--expires", span)
    assert (done.code, done.out) == (2, "") and span in done.err and not (folder / ".holdfast").exists()


@pytest.mark.parametrize("name", ["Ada", "broken", "quick"])
@pytest.mark.parametrize("store", ["memory:", "memory://"])
def test_no_command_is_suggested_for_what_is_gone(name: str, store: str, holdfast: Type) -> None:
    done = holdfast("run", "work.py", "--input", f'{{"name": "{name}"}}', "--store", store)
    assert "python -m holdfast" not in done.out
    assert ("is gone now" in done.out) == (name == "Ada")
    assert holdfast("run", "work.py", "--input", f'{{"name": "{name}"}}', "--store", store, "--json").json["status"] in list(Status)


@pytest.mark.parametrize("words", [["--store", ""], ["--store="], ["--workspace", ""]], ids=str)
def test_an_empty_store_is_not_the_usual_one(words: list[str], holdfast: Type) -> None:
    holdfast("run", "work.py", "--input", '{"name": "quick"}')
    for typed in (["runs", *words], ["submit", "work.py", "--input", '{"name": "quick"}', *words]):
        done = holdfast(*typed)
        assert (done.code, done.out) == (2, "") and "is not the URL of a store" in done.err
    if words[0].startswith("--store"):
        assert holdfast(*words, "runs").code == 2


@pytest.mark.parametrize("more, code", [(["--missed", "catch-up"], 0), (["--missed", "skip"], 2), ([], 2)], ids=str)
def test_catch_up_asks_for_missed_slots_to_be_run(more: list[str], code: int, holdfast: Type) -> None:
    done = holdfast("schedule", "add", "work.py", "--every", "1h", "--input", '{"name": "quick"}', "--catch-up", "5", *more)
    assert done.code == code and (code == 0 or "--missed catch-up" in done.err)
    assert holdfast("schedule", "add", "work.py", "--every", "1h", "--input", '{"name": "quick"}', "--catch-up", "1").code == 0


@pytest.mark.parametrize(("has", "options", "told"), [(False, (), True), (True, (), False), (False, ("--no-auth",), False), (False, ("--token-file", "tokens"), False)])
def test_a_server_whose_store_has_no_token_says_how_one_is_made(has: bool, options: tuple[str, ...], told: bool, holdfast: Type) -> None:
    """§17: otherwise nobody can log in, and the first page that says so is the login page."""
    if has:
        holdfast("token", "create", "--scopes", "view", "--store", "sqlite:///runs.db")
    Path("tokens").touch()
    serving = subprocess.Popen([sys.executable, "-m", "holdfast", "serve", "--port", "0", "--store", "sqlite:///runs.db", *options], stderr=subprocess.PIPE, text=True, env=environment())
    try:
        assert serving.stderr is not None and "serving" in serving.stderr.readline()
        first = serving.stderr.readline() if told else ""
    finally:
        serving.terminate()
        rest = serving.communicate(timeout=60)[1]
    expected = "the store has no token yet, so nobody can log in: python -m holdfast token create --scopes view,decide --store sqlite:///runs.db\n"
    assert first == (expected if told else "") and "token create" not in rest
