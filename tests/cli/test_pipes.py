"""Who reads may stop reading, and a disk or terminal may refuse what is told: the exit code says what the command did, not how its words fared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Type, environment

FULL = Path("/dev/full")
full = pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")


def gone() -> int:
    """The end of a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    return write


def closed() -> int:
    """A descriptor that the command finds closed."""
    return -1


def refusing() -> int:
    return os.open(FULL, os.O_WRONLY)


def started(words: tuple[str, ...], *, out: Callable[[], int] | None = None, err: Callable[[], int] | None = None, buffered: bool = True) -> tuple[int, str, str]:
    """How a command ends whose streams are like that, and what it said on the others."""
    env = environment() | {"PYTHONUNBUFFERED": "" if buffered else "1"}
    made = {1: None if out is None else out(), 2: None if err is None else err()}
    streams = {number: subprocess.PIPE if fd is None else subprocess.DEVNULL if fd < 0 else fd for number, fd in made.items()}

    def close() -> None:
        for number, fd in made.items():
            if fd == -1:
                os.close(number)

    done = subprocess.run(
        [sys.executable, "-m", "holdfast", *words], stdin=subprocess.DEVNULL, stdout=streams[1], stderr=streams[2], text=True, env=env, timeout=60, preexec_fn=close,
        check=False,
    )
    for fd in made.values():
        if fd is not None and fd >= 0:
            os.close(fd)
    return done.returncode, done.stdout or "", done.stderr or ""


PRINTED: list[tuple[str, ...]] = [
    ("--help",), ("--version",), ("runs", "--help"), ("token",), ("runs",), ("runs", "--json"), ("show", "last"), ("events", "last"), ("check",), ("doctor",), ("workers",),
    ("run", "work.py", "--input", '{"name": "quick"}'), ("submit", "work.py", "--input", '{"name": "quick"}', "--json"), ("show", "last", "--debug"),
]


@pytest.mark.parametrize("words", PRINTED, ids=" ".join)
@pytest.mark.parametrize("buffered", [True, False])
def test_a_reader_that_has_gone_ends_a_command_with_141_and_no_words(words: tuple[str, ...], buffered: bool, holdfast: Type) -> None:
    holdfast("run", "work.py", "--input", '{"name": "Ada"}')
    code, _, err = started(words, out=gone, buffered=buffered)
    assert code == 141, err
    assert "Traceback" not in err and "io_error" not in err and "internal" not in err


def test_what_a_command_does_is_done_although_nobody_reads_its_answer(holdfast: Type) -> None:
    started(("run", "work.py", "--input", '{"name": "quick"}'), out=gone)
    [run] = holdfast("runs", "--json").json["runs"]
    assert run["status"] == "completed"


STREAMS = [gone, closed, pytest.param(refusing, marks=full)]
ENDS: list[tuple[tuple[str, ...], int]] = [
    (("run", "work.py", "--input", '{"name": "quick"}'), 0), (("run", "work.py", "--input", '{"name": "Ada"}'), 4), (("run", "work.py", "--input", '{"name": "broken"}'), 1),
    (("worker", "work.py", "--until-idle"), 0), (("worker", "work.py", "--until-idle", "--log", "json"), 0), (("show", "last"), 0), (("show", "nobody"), 3), (("nonsense",), 2),
    (("resume", "last", "work.py"), 6), (("approve", "last", "work.py"), 0),
]


@pytest.mark.parametrize("err", STREAMS)
@pytest.mark.parametrize("words, code", ENDS, ids=lambda v: " ".join(v) if isinstance(v, tuple) else "")
def test_what_is_told_on_stderr_decides_nothing(words: tuple[str, ...], code: int, err: Callable[[], int], holdfast: Type) -> None:
    holdfast("run", "work.py", "--input", '{"name": "Eve"}')
    before = {run["run_id"] for run in holdfast("runs", "--json").json["runs"]}
    plain, told, _ = started(words, err=err)
    assert plain == code, told
    assert [run["status"] for run in holdfast("runs", "--json").json["runs"] if run["run_id"] not in before and run["status"] in ("pending", "running")] == []


@full
@pytest.mark.parametrize("words", [("--help",), ("runs",), ("runs", "--json"), ("run", "work.py", "--input", '{"name": "quick"}')], ids=" ".join)
@pytest.mark.parametrize("buffered", [True, False])
def test_an_answer_that_cannot_be_written_is_an_error(words: tuple[str, ...], buffered: bool) -> None:
    code, _, err = started(words, out=refusing, buffered=buffered)
    assert code == 1 and err.splitlines()[-1] == "io_error: standard output: No space left on device"


@pytest.mark.parametrize("words", [("--help",), ("runs",), ("run", "work.py", "--input", '{"name": "quick"}')], ids=" ".join)
def test_who_closes_stdout_wants_no_answer(words: tuple[str, ...]) -> None:
    code, _, err = started(words, out=closed)
    assert code == 0 and "Traceback" not in err and "Exception" not in err
