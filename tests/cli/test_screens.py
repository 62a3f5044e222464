"""What each command prints, as golden screens: its help, a good use and a wrong one, on terminals of 80 and 140 columns and in a pipe.

``python -m tests.cli.test_screens`` writes them anew, below tests/golden/screens; look at the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from tests.cli.conftest import SKILL

from holdfast import machine
from holdfast.cli import output, session
from holdfast.cli.main import cli

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "screens"
ROOMS = {"80": 80, "140": 140, "pipe": 0}
GOOD: dict[str, tuple[str, ...]] = {
    "runs": ("runs",), "show": ("show", "WAITING"), "events": ("events", "DONE"), "steps": ("steps", "DONE"), "attempts": ("attempts", "FAILED"),
    "checkpoints": ("checkpoints", "DONE"), "state": ("state", "WAITING"), "diff": ("diff", "DONE", "c1", "c9"), "graph": ("graph", "work.py"),
    "explain": ("explain", "FAILED"), "waits": ("waits",), "effects": ("effects", "DONE"), "outbox": ("outbox",), "ledger": ("ledger",), "leases": ("leases",),
    "workers": ("workers",), "lanes": ("lanes",), "check": ("check",), "migrate": ("migrate",), "doctor": ("doctor",), "repair-state": ("repair-state", "DONE"),
    "prune": ("prune", "--older-than", "30d", "--dry-run"), "schedule": ("schedule", "list"), "token": ("token", "list"),
    "show-failed": ("show", "FAILED"), "explain-waiting": ("explain", "WAITING"), "decide-all": ("decide", "--all", "--where", "skill=work", "--action", "approve", "--dry-run"),
}  # fmt: skip
WRONG: dict[str, tuple[str, ...]] = {
    **{name: (name, "nothing") for name in ("show", "events", "steps", "attempts", "checkpoints", "state", "explain", "effects", "approve", "cancel", "resume", "replay", "fork", "redrive", "repair-state")},
    "run": ("run", "nothing.py"), "submit": ("submit", "work.py", "--input", "{"), "worker": ("worker", "nothing.py"), "runs": ("runs", "--status", "runing"),
    "diff": ("diff", "DONE", "c1", "c99"), "deny": ("deny", "DONE", "--reason", "R"), "decide": ("decide", "WAITING", "--action", "aprove"),
    "signal": ("signal", "DONE", "paid"), "prune": ("prune", "--older-than", "soon"), "export": ("export", "nothing", "out"), "restore": ("restore", "nothing.db"),
    "serve": ("serve", "--host", "0.0.0.0", "--no-auth"), "token": ("token", "create", "--scopes", "veiw"), "settle": ("settle", "nothing", "--as", "sent", "--reason", "R"),
    "schedule": ("schedule", "remove", "nothing"), "new": ("new", "a/b"), "graph": ("graph", "nothing.py"),
}  # fmt: skip


class Terminal(io.StringIO):
    """A stream that is a terminal, or a pipe."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


def typed(words: tuple[str, ...], room: int) -> str:
    """What a command shows, both streams as they come, and its exit code."""
    stream = Terminal(room > 0)
    environment = dict(os.environ)
    os.environ["COLUMNS"] = str(room or 80)
    code: object = 0
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            sys.stdout = output.Shown(stream)  # type: ignore[assignment]
            cli.main(args=list(words), prog_name="holdfast")
    except SystemExit as e:
        code = e.code
    finally:
        os.environ.clear()
        os.environ.update(environment)
    return f"$ holdfast {' '.join(words)}\n{click.unstyle(stream.getvalue())}exit {code}\n"


def steady(text: str, names: dict[str, str], *, squeezed: bool = True) -> str:
    """A screen without what differs from one time to another: ids, times, durations, processes; ``squeezed``: and columns."""
    for name, run_id in names.items():
        text = text.replace(run_id, name.ljust(26, "."))
    text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?", "2026-01-01 00:00:00Z", text)
    text = re.sub(r"\b\d\d:\d\d:\d\d\.\d{3}\b", "00:00:00.000", text)
    text = re.sub(r"\+\d+\.\d{3}\b", "+0.000", text)
    text = re.sub(r"\bhost-[\w.-]*…?", "OWNER", text)
    text = re.sub(r"\b01[0-9a-z]{6,}…", "RUN…", text).replace(os.getcwd(), "HERE")
    text = re.sub(r"by [a-z]+(?=, T|$)", "by USER", text, flags=re.M)
    return re.sub(r"[ \t]+", " ", text) if squeezed else text


@contextlib.contextmanager
def folder() -> Iterator[dict[str, str]]:
    """A folder with a skill and a store of three runs: done, waiting, failed."""
    here, before, kept = Path.cwd(), dict(os.environ), (session.program, machine.here, output.span, output.ago)
    path = list(sys.path)
    with tempfile.TemporaryDirectory() as at:
        os.chdir(at)
        try:
            for name in ("HOLDFAST_STORE", "HOLDFAST_SKILLS", "HOLDFAST_LEASE", "HOLDFAST_ACTOR", "UV_RUN_RECURSION_DEPTH"):
                os.environ.pop(name, None)
            os.environ["HOLDFAST_ACTOR"] = "ada"
            session.program = lambda: ["holdfast"]
            machine.here = lambda: machine.Here("host", "boot")  # type: ignore[assignment]
            output.span, output.ago = lambda seconds: "" if seconds is None else "1.00 s", lambda at, now: "" if at is None else "5 s ago"
            Path("work.py").write_text(SKILL, "utf-8")
            names = {}
            for name, who in (("DONE", "quick"), ("WAITING", "Ada"), ("FAILED", "broken")):
                said = typed(("run", "work.py", "--input", f'{{"name": "{who}"}}', "--json"), 0)
                found = re.search(r'"run_id": ?"([0-9a-z]{26})"', said)
                assert found is not None, said
                names[name] = found[1]
            yield names
        finally:
            session.program, machine.here, output.span, output.ago = kept  # type: ignore[assignment]
            os.chdir(here)
            os.environ.clear()
            os.environ.update(before)
            sys.path[:] = path


def filled(words: tuple[str, ...], names: dict[str, str]) -> tuple[str, ...]:
    return tuple(names.get(word, word) for word in words)


def screens() -> dict[str, str]:
    """All golden screens, by the names of their files."""
    with folder() as names:
        found = {}
        for room, columns in ROOMS.items():
            found[f"help-{room}"] = "\n".join(typed((*words, "--help"), columns) for words in every_command())
            found[f"good-{room}"] = "\n".join(steady(typed(filled(words, names), columns), names) for words in GOOD.values())
            found[f"wrong-{room}"] = "\n".join(steady(typed(filled(words, names), columns), names) for words in WRONG.values())
        return found


def every_command() -> list[tuple[str, ...]]:
    """The words of each command, those of groups included."""
    words: list[tuple[str, ...]] = [()]
    for name, command in cli.commands.items():
        words.append((name,))
        if isinstance(command, click.Group):
            words += [(name, below) for below in command.commands]
    return words


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    return screens()


@pytest.mark.parametrize("name", [f"{kind}-{room}" for kind in ("help", "good", "wrong") for room in ROOMS])
def test_each_screen_is_as_it_was(name: str, shown: dict[str, str]) -> None:
    assert shown[name] == (GOLDEN / f"{name}.txt").read_text("utf-8"), "python -m tests.cli.test_screens writes them anew"


def test_every_wrong_use_is_one_line_and_no_traceback(shown: dict[str, str]) -> None:
    for screen in re.split(r"^(?=\$ holdfast )", shown["wrong-pipe"], flags=re.M)[1:]:
        lines = [line for line in screen.strip().splitlines()[1:] if line.strip()]
        assert len(lines) == 2 and lines[-1] in ("exit 1", "exit 2", "exit 3", "exit 6"), screen
        assert "internal:" not in screen


@pytest.mark.parametrize(("room", "columns"), [("80", 80), ("140", 140)])
def test_lists_and_helps_fit_the_terminal(room: str, columns: int) -> None:
    """But for commands to copy, which are never cut."""
    with folder() as names:
        for words in [GOOD[n] for n in ("runs", "steps", "attempts", "checkpoints", "effects", "outbox", "ledger", "leases", "workers", "lanes", "schedule", "token", "decide-all")]:
            for line in typed(filled(words, names), columns).splitlines()[1:]:
                assert output.columns(line) <= columns or line.startswith("more: "), line
        for words in every_command():
            for line in typed((*words, "--help"), columns).splitlines()[1:]:
                assert output.columns(line) <= columns, line


def test_a_wide_character_takes_two_columns() -> None:
    assert output.cut("日本語のテキスト", 7) == "日本語…"
    assert output.fit([26, 30, 30], {0}, 80) == [26, 25, 25]
    assert output.fit([26, 8, 8], {0}, 20) == [26, 8, 8]


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for file, text in screens().items():
        (GOLDEN / f"{file}.txt").write_text(text, "utf-8")
        sys.__stdout__.write(f"{file}.txt\n")  # type: ignore[union-attr]
