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


DESCRIPTORS = '''
import os
from holdfast import Context, Graph, State

class Found(State):
    null: list = []

graph = Graph("descriptors", Found, version="1")

@graph.node(start=True)
async def look(state: Found, ctx: Context):
    os.system("echo what a child prints >&2")
    return {"null": [os.fstat(number).st_rdev == os.stat(os.devnull).st_rdev for number in range(3)]}
'''


@pytest.mark.parametrize("closed", [(0,), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_a_closed_stream_is_not_given_to_another_file(closed: tuple[int, ...], holdfast: Type, folder: Path) -> None:
    """The event loop had the number of the closed stream, and what a child process printed was written there."""
    (folder / "descriptors.py").write_text(DESCRIPTORS)

    def close() -> None:
        for number in closed:
            os.close(number)

    command = [sys.executable, "-m", "holdfast", "run", "descriptors.py"]
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment(), timeout=60, preexec_fn=close, check=True)
    found = holdfast("show", "last", "--json").json["values"]["null"]
    assert [found[number] for number in closed] == [True] * len(closed)


@pytest.mark.parametrize(("words", "code", "said"), [(("run", "work.py", "--input", "-"), 2, "is not JSON"), (("mcp",), 0, "serving")])
def test_closed_standard_input_is_an_empty_one(words: tuple[str, ...], code: int, said: str, holdfast: Type) -> None:
    command = [sys.executable, "-m", "holdfast", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, preexec_fn=lambda: os.close(0), check=False)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


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
