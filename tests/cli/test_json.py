"""With ``--json`` standard output holds one JSON object: whatever the code of a run prints, and however the command ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Type, environment

LOUD = '''
import os
import subprocess
import sys

from holdfast import Context, flow

print("imported")


def work() -> str:
    print("from a step")
    sys.stdout.write("written\\n")
    subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    os.write(1, b"to the descriptor\\n")
    return "done"


@flow("loud")
async def loud(ctx: Context) -> str:
    print("from the flow")
    return await ctx.step(work)
'''
PRINTED = ["imported", "from the flow", "from a step", "written", "from a child", "to the descriptor"]


@pytest.mark.parametrize("words", [("run", "loud.py"), ("submit", "loud.py"), ("graph", "loud.py")])
def test_what_a_run_prints_goes_beside_the_object(process: Type, words: tuple[str, ...]) -> None:
    Path("loud.py").write_text(LOUD)
    done = process(*words, "--json")
    assert done.code == 0, done.err
    assert isinstance(json.loads(done.out), dict)
    assert [p for p in (PRINTED if words[0] == "run" else PRINTED[:1]) if p not in done.err] == []


def test_without_json_what_a_run_prints_is_on_standard_output(process: Type) -> None:
    Path("loud.py").write_text(LOUD)
    done = process("run", "loud.py")
    assert done.code == 0 and [p for p in PRINTED if p not in done.out] == []


@pytest.mark.parametrize(
    ("words", "code", "exit_code"),
    [
        (("show", "nobody"), "run_not_found", 3),
        (("check",), "no_store", 3),
        (("runs", "--limit", "many"), "usage", 2),
        (("run", "--bogus"), "usage", 2),
        (("approve",), "usage", 2),
        (("run", "nosuch.py"), "skill_unknown", 3),
        (("nosuch",), "usage", 2),
        (("runs", "--store", "mysql://x"), "usage", 2),
        (("runs", "--store", "sqlite:///garbage.db"), "store_corrupt", 1),
        (("new", "loud"), "file_exists", 2),
    ],
)
def test_an_error_is_an_object_too(process: Type, words: tuple[str, ...], code: str, exit_code: int) -> None:
    Path("garbage.db").write_text("no database" * 1000)
    Path("loud.py").write_text(LOUD)
    done = process(*words, "--json")
    assert done.code == exit_code
    error = json.loads(done.out)["error"]
    assert set(error) == {"code", "message", "hint"}
    assert error["code"] == code and error["message"]
    assert done.err.startswith(f"{code}: {error['message'].splitlines()[0]}")
    if error["hint"]:
        assert error["hint"] in done.err


def test_without_json_an_error_leaves_standard_output_empty(process: Type) -> None:
    done = process("show", "nobody")
    assert (done.code, done.out) == (3, "") and done.err.startswith("run_not_found: ")


def test_an_object_that_was_printed_stays_the_only_one(process: Type) -> None:
    """A run that failed is told as a run; its error is no error of the command."""
    Path("fails.py").write_text("from holdfast import Context, flow\n\n\n@flow('fails')\nasync def fails(ctx: Context) -> None:\n    raise ValueError('no')\n")
    done = process("run", "fails.py", "--json")
    assert done.code == 1 and json.loads(done.out)["stop_reason"] == "step_failed"


def test_what_is_followed_prints_one_object_a_line(process: Type) -> None:
    Path("loud.py").write_text(LOUD)
    process("run", "loud.py")
    done = process("events", "last", "--follow", "--json")
    assert done.code == 0 and all(isinstance(json.loads(line), dict) for line in done.out.splitlines())


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("words", [("runs", "--json"), ("runs",), ("show", "last"), ("waits",), ("explain", "last"), ("show", "«日本語»", "--json"), ("show", "«日本語»")])
def test_every_encoding_of_a_terminal_carries_what_is_said(process: Type, words: tuple[str, ...], encoding: str) -> None:
    Path("asks.py").write_text("from holdfast import Context, flow\n\n\n@flow('asks')\nasync def asks(ctx: Context) -> None:\n    await ctx.approve('«日本語» – ja?')\n", "utf-8")
    assert process("run", "asks.py").code == 4
    env = environment() | {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    done = subprocess.run([sys.executable, "-m", "holdfast", *words], capture_output=True, env=env, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert done.returncode == (3 if words[1:2] == ("«日本語»",) else 0), done.stderr
    assert b"internal:" not in done.stderr and b"Error" not in done.stderr
    if "--json" in words:
        said = json.loads(done.stdout.decode("utf-8" if encoding == "ascii" else encoding))
        assert "«日本語»" in json.dumps(said, ensure_ascii=False)
