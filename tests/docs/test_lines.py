"""Every command that a page names exists as it is written: the command, its options, how many arguments it takes; modules, tests, extras."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from itertools import pairwise

import click
import pytest

from holdfast.cli.main import cli
from tests.docs.pages import ROOT, lines

LINES = sorted(set(lines()))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def of_holdfast(words: list[str]) -> str:
    """What is wrong with a command of ours; nothing, if it is right."""
    command: click.Command = cli
    context = click.Context(cli, info_name="holdfast", **cli.context_settings)
    if words[:1] == ["--help"]:
        return ""
    while isinstance(command, click.Group) and words and words[0] in command.commands:
        command = command.commands[words.pop(0)]
        context = click.Context(command, info_name=command.name, parent=context)
    if isinstance(command, click.Group) and words:
        return "" if words[0] == "COMMAND" else f"no command {words[0]}"
    try:
        _, left, _ = command.make_parser(context).parse_args(words)
    except click.UsageError as e:
        return e.format_message()
    return f"too many arguments: {left}" if left else ""


@cache
def help_of(module: str) -> str:
    """The help of a module or script; what it takes must stand there."""
    started = [module] if module.endswith(".py") else ["-m", module]
    return subprocess.run([sys.executable, *started, "--help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


def of_python(words: list[str]) -> str:
    """What is wrong with ``python -m MODULE …`` or ``python FILE …``."""
    module, more = (words[1], words[2:]) if words[0] == "-m" else (words[0], words[1:])
    if words[0] == "-m" and importlib.util.find_spec(module) is None:
        return f"no module {module}"
    if words[0] != "-m" and not (ROOT / module).is_file():
        return f"no file {module}"
    if module == "holdfast":
        return of_holdfast(more)
    unknown = [w for w in more if w.startswith("--") and w.partition("=")[0] not in help_of(module)]
    return f"{module} knows no {unknown}" if unknown else ""


def of_pytest(words: list[str]) -> str:
    paths = [w for w in words if w.startswith("tests/")]
    gone = [p for p in paths if not (ROOT / p.partition("::")[0]).exists()]
    marks = [b for a, b in pairwise(words) if a == "-m"]
    known = " ".join(PROJECT["tool"]["pytest"]["ini_options"]["markers"])
    return f"gone: {gone}" if gone else "".join(f"no mark {m}" for m in marks if m not in known)


def of_pip(words: list[str]) -> str:
    extras = [e for w in words for found in [re.search(r"\[([\w,-]+)\]", w)] if found for e in found[1].split(",")]
    unknown = set(extras) - set(PROJECT["project"]["optional-dependencies"])
    return f"no extra {unknown}" if unknown else ""


def wrong(line: str) -> str:
    """What is wrong with a line; nothing, if it is right."""
    for part in line.split(" && "):
        words = [w for w in shlex.split(part.replace("…", "").replace("...", ""), comments=True) if w]
        words = [w.strip("[]") if re.fullmatch(r"\[[A-Z.]+\]", w) else w for w in words]
        match words:
            case ["uv", "run", *rest]:
                while rest and rest[0].startswith("--"):
                    rest = rest[2:]
                found = wrong(shlex.join(rest))
            case ["holdfast", *rest]:
                found = of_holdfast(rest)
            case ["python" | "python3", *rest]:
                found = of_python(rest)
            case ["pytest", *rest]:
                found = of_pytest(rest)
            case ["pip", *rest]:
                found = of_pip(rest)
            case _:
                found = ""
        if found:
            return found
    return ""


def test_every_line_names_what_there_is() -> None:
    assert len(LINES) > 120
    assert {f"{name}: {line}": why for name, line in LINES if (why := wrong(line))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "holdfast shwo RUN", "holdfast show RUN --fully", "holdfast show A B", "uv run python -m holdfast.testing.simulate --speeds 3",
        "python -m holdfast.testing.nothing", "uv run pytest tests/nothing", "uv run pytest -m quick", "pip install 'holdfast[postgre]'", "python bench/nothing.py",
        "pip install uv && uv run holdfast dmo",
    ],
)
def test_a_line_that_is_wrong_is_found(line: str) -> None:
    assert wrong(line)
