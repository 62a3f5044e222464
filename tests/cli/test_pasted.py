"""Each command that is printed about a run in trouble can be pasted: it ends in no usage error, needs no TARGET, and gives no hint for itself."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import SOURCE, Said, Type
from tests.cli.test_failing_runs import SKILLS, elsewhere

from holdfast import machine

COMMAND = re.compile(r"holdfast ((?:--store \S+ )?(?:approve|check|decide|deny|explain|fork|repair-state|resume|runs|show|signal|waits|worker)\b[^\n(),;]*)")
FILLED = {"JSON": '"r1"', "CHANNEL=JSON": 'receipt="r2"', "WHY": "so", "TEXT": "so"}
FLAGS = {"--upgrade", "--apply", "--follow", "--force"}
INPUT = '{"customer": "Ada"}'
WAYS = ("raised", "timed_out", "expired", "denied", "waiting", "answered", "changed", "both", "killed", "unknown")


@pytest.fixture
def shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (folder / "shop.py").write_text(SKILLS, "utf-8")
    (folder / "pyproject.toml").write_text('[tool.holdfast]\npolicy = "shop.py:policy"\n', "utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{SOURCE}{os.pathsep}{SOURCE.parent}")
    monkeypatch.setattr(machine, "here", lambda: machine.Here("host", "boot"))
    yield folder
    sys.modules.pop("shop", None)


ALONE = re.compile(r"^\W*(holdfast (?:--store \S+ )?(?:approve|decide|deny|explain|fork|resume|signal|worker)\b.*)$", re.M)
"""A line that begins with a command: whoever pastes it pastes all of it."""


def commands(text: str) -> list[list[str]]:
    """The commands in what was printed: their words, up to where prose follows, and what somebody is to fill in filled in."""
    found: dict[tuple[str, ...], None] = {}
    for line in COMMAND.findall(text):
        words: list[str] = []
        wants = False
        for word in shlex.split(line.partition("    ")[0]):
            known = not words or words[-1] == "--store" or wants or word.startswith("--") or ".py" in word or re.fullmatch(r"[0-9a-z]{26}", word)
            if words[:1] == ["--store"] and len(words) == 2:
                known = True
            if not known:
                break
            words.append(FILLED.get(word, word))
            wants = word.startswith("--") and word not in FLAGS
        found[tuple(words)] = None
    return [list(words) for words in found]


def met(holdfast: Type, way: str, store: tuple[str, ...]) -> Said:
    """Brings a run into a state in which it does not get on; gives what the command printed."""
    target = f"shop.py:{way}"
    match way:
        case "waiting":
            return holdfast("submit", target, "--input", INPUT, *store)
        case "killed" | "unknown":
            done = subprocess.run(elsewhere("run", target, "--input", INPUT, *store), capture_output=True, timeout=60, check=False)
            assert done.returncode == -9, done.stderr
            return holdfast("explain", "last", *store)
        case "answered" | "changed" | "both":
            holdfast("run", "shop.py:changed", "--input", INPUT, *store)
            holdfast("approve", "last", *store)
            if way != "answered":
                Path("new").touch()
                sys.modules.pop("shop")
            return holdfast("resume", "last", *(("shop.py:changed",) if way == "changed" else ()), *store)
    return holdfast("run", target, "--input", INPUT, *store)


@pytest.mark.parametrize(("way", "store"), [*((way, ()) for way in WAYS), *((way, ("--store", "sqlite:///other.db")) for way in ("raised", "both", "waiting"))])
def test_every_printed_command_can_be_pasted(way: str, store: tuple[str, ...], shop: Path, holdfast: Type) -> None:
    said = met(holdfast, way, store)
    texts = [said.out + said.err]
    texts += [s.out + s.err for s in (holdfast(look, "last", *store) for look in ("explain", "show", "waits"))]
    texts += [s.out + s.err for s in (holdfast(look, *store) for look in ("doctor", "check"))]
    printed = commands("\n".join(texts))
    assert printed, texts
    for bare in (found[1] for found in ALONE.finditer("\n".join(texts))):
        assert [FILLED.get(word, word) for word in shlex.split(bare, comments=True)[1:]] == commands(bare)[0], ("words behind a command", bare)
    for words in printed:
        if way in ("killed", "unknown") and words[0] in ("resume", "worker"):
            continue  # it would kill this process too
        done = holdfast(*words, *(("--until-idle",) if "worker" in words else ()))
        line = done.err.strip().splitlines()[-1] if done.err.strip() else ""
        assert done.code != 2 and "skill_unknown" not in line and "run_not_found" not in line, (words, done)
        assert done.code not in (3, 6) or words not in commands(line), ("a command whose hint is itself", words, line)


@pytest.mark.parametrize(
    ("typed", "missing"),
    [(("--acknowledge", "step_failed"), ("shop.py:twice", "--acknowledge", "step_failed", "--upgrade")), ((), ("shop.py:twice", "--acknowledge", "step_failed", "--upgrade"))],
)
def test_a_hint_keeps_what_was_typed_and_adds_what_is_missing(typed: tuple[str, ...], missing: tuple[str, ...], folder: Path, holdfast: Type) -> None:
    code = "from pathlib import Path\nfrom holdfast import Graph, State\nclass S(State):\n    n: int = 0\ntwice = Graph('twice', S)\n@twice.node(start=True)\ndef a(state: S):\n    if not Path('ok').exists():\n        raise ValueError('no')\n"
    (folder / "shop.py").write_text(code, "utf-8")
    run_id = holdfast("run", "shop.py:twice", "--input", "{}", "--json").json["run_id"]
    (folder / "shop.py").write_text(code + "@twice.node(after='a')\ndef b(state: S):\n    return {'n': 1}\n", "utf-8")
    sys.modules.pop("shop")
    first = holdfast("resume", run_id, *typed)
    assert first.code == 3 and commands(first.err) == [["resume", run_id, "shop.py:twice", *typed]]
    second = holdfast(*commands(first.err)[0])
    assert second.code == 6 and [set(c) for c in commands(second.err)] == [{"resume", run_id, *missing}]
    (folder / "ok").touch()
    assert holdfast(*commands(second.err)[0]).code == 0
    sys.modules.pop("shop")


def test_the_skills_of_the_project_need_no_target(folder: Path, holdfast: Type) -> None:
    (folder / "pyproject.toml").write_text('[tool.holdfast]\nskills = ["work.py"]\n', "utf-8")
    run_id = holdfast("submit", "--input", '{"name": "quick"}', "--json").json["run_id"]
    for words in commands(holdfast("explain", run_id).out):
        assert holdfast(*words, *(("--until-idle",) if "worker" in words else ())).code in (0, 6), words


def test_where_no_target_is_known_a_file_is_asked_for_plainly(folder: Path, holdfast: Type) -> None:
    run_id = holdfast("submit", "work.py", "--input", '{"name": "ask"}', "--json").json["run_id"]
    (folder / "work.py").rename(folder / "other.py")
    sys.modules.pop("work", None)
    (folder / "work.py").write_text("from holdfast import Graph, State\nclass S(State):\n    n: int = 0\ngraph = Graph('else', S)\n@graph.node(start=True)\ndef a(state: S):\n    return None\n", "utf-8")
    said = holdfast("resume", run_id, "work.py:graph")
    assert said.code == 3 and f"resume {run_id} YOUR_FILE.py" in said.err, "the file that was named does not hold it, so it is not named again"
    sys.modules.pop("work", None)
