"""Where processes matter: killed, stopped, piped, and two at work on one store.

A step stands still by reading a FIFO: whoever opens its other end knows that the step is under way, and no test sleeps.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from tests.cli.conftest import Type, environment

HELD = '''
import asyncio
import os
from typing import Annotated

from holdfast import Context, Graph, State, append


class Work(State):
    done: Annotated[list[str], append]


graph = Graph("held", Work)


def note(word: str) -> str:
    with open("calls.txt", "a") as file:
        file.write(word + "\\n")
    return word


def hold(word: str) -> str:
    note(word)
    if os.path.exists("gate"):
        open("gate").read()
    return word


async def linger(word: str) -> str:
    note(word)
    if os.path.exists("lingering"):
        open("lingering").read(1)
        await asyncio.Event().wait()
    return word


@graph.node(start=True)
async def first(state: Work, ctx: Context):
    return {"done": [await ctx.step(note, "first")]}


@graph.node(after="first")
async def left(state: Work, ctx: Context):
    return {"done": [await ctx.step(hold, "left")]}


@graph.node(after="first")
async def right(state: Work, ctx: Context):
    return {"done": [await ctx.step(note, "right")]}


@graph.node(after=["left", "right"])
async def last(state: Work, ctx: Context):
    return {"done": [await ctx.step(linger, "last")]}
'''


@pytest.fixture(autouse=True)
def skill(folder: Path) -> None:
    (folder / "held.py").write_text(HELD, "utf-8")


@pytest.fixture
def start() -> Iterator[object]:
    """Starts a command and leaves it running; whatever still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "holdfast", *words]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
        started.append(child)
        return child

    yield begin
    for child in started:
        child.kill()
        child.wait()
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()


def entered(name: str) -> int:
    """Waits until a step reads the FIFO; gives the end that lets it go on when closed."""
    return os.open(name, os.O_WRONLY)


def calls() -> list[str]:
    return Path("calls.txt").read_text("utf-8").split()


def until(stream: IO[str] | None, word: str) -> str:
    """Reads lines until one holds the word."""
    assert stream is not None
    for line in stream:
        if word in line:
            return line
    raise AssertionError(f"{word!r} was never said")


def test_killed_in_the_middle_it_goes_on_without_doing_again_what_was_done(start: object, process: Type) -> None:
    """L-05, L-06, T-58: SIGKILL in one of two parallel steps; resume runs only that one again, at once (§2.9, §7.1)."""
    whole = process("run", "held.py", "--json")
    assert whole.code == 0
    assert sorted(calls()) == ["first", "last", "left", "right"], "the uncrashed world does the work"
    Path("calls.txt").unlink()

    os.mkfifo("gate")
    child = start("run", "held.py")  # type: ignore[operator]
    gate = entered("gate")
    until(child.stderr, "right")
    child.kill()
    child.wait()
    os.close(gate)
    os.unlink("gate")
    run_id = process("runs", "--json").json["runs"][0]["run_id"]
    assert process("show", run_id, "--json").json["condition"] == "interrupted"
    done = process("resume", run_id, "held.py", "--json")
    assert done.code == 0
    assert calls().count("first") == 1 and calls().count("right") == 1 and calls().count("left") == 2
    assert done.json["values"] == whole.json["values"]
    events = [e["event_type"] for e in process("events", run_id, "--json").json["events"]]
    assert "run.recovered" in events and process("check", run_id).code == 0


def test_the_first_signal_stops_a_run_at_a_safe_boundary(start: object, process: Type) -> None:
    """§10.13, §10.4: the step under way comes to its end and is kept; what comes next is said, and goes on as typed."""
    os.mkfifo("gate")
    child = start("run", "held.py")  # type: ignore[operator]
    gate = entered("gate")
    child.send_signal(signal.SIGINT)
    until(child.stderr, "stopping when the current step or recorded call has ended")
    os.close(gate)
    os.unlink("gate")
    _, err = child.communicate(timeout=30)
    assert child.returncode == 128 + signal.SIGINT
    shown = process("runs", "--json").json["runs"][0]
    last = err.splitlines()[-1]
    assert last.startswith("stopped: by SIGINT; its runs are released, and a worker resumes them") and f"resume {shown['run_id']} held.py" in last
    assert (shown["status"], shown["condition"], shown["lease"]["owner"]) == ("running", "queued", None)
    assert sorted(calls()) == ["first", "left", "right"]
    assert process("resume", shown["run_id"], "held.py").code == 0
    assert sorted(calls()) == ["first", "last", "left", "right"], "nothing was done again"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_stops_a_run_where_it_stands(start: object, process: Type, number: signal.Signals) -> None:
    """§10.4: cut off in the middle of a step, the lease is given back at once, and that step alone is done again."""
    os.mkfifo("lingering")
    child = start("run", "held.py")  # type: ignore[operator]
    gate = entered("lingering")
    os.write(gate, b"x")
    child.send_signal(number)
    until(child.stderr, "again: at once")
    child.send_signal(number)
    out, err = child.communicate(timeout=30)
    os.close(gate)
    os.unlink("lingering")
    assert child.returncode == 128 + number
    assert err.splitlines()[-1].startswith("stopped: ") and out == ""
    shown = process("runs", "--json").json["runs"][0]
    assert (shown["status"], shown["condition"], shown["lease"]["owner"]) == ("running", "queued", None)
    assert process("resume", shown["run_id"], "held.py").code == 0
    assert calls().count("first") == 1 and calls().count("last") == 2


def test_a_worker_drains(start: object, process: Type) -> None:
    """§10.13: told to stop, it claims no more, lets what runs come to its rest, and ends with 0."""
    run_id = process("submit", "held.py", "--json").json["run_id"]
    os.mkfifo("gate")
    worker = start("worker", "held.py")  # type: ignore[operator]
    gate = entered("gate")
    worker.send_signal(signal.SIGTERM)
    until(worker.stderr, "draining")
    os.close(gate)
    out, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert run_id in out and "completed" in out
    assert sorted(calls()) == ["first", "last", "left", "right"]


def test_a_second_signal_hands_back_what_the_worker_drives(start: object, process: Type) -> None:
    run_id = process("submit", "held.py", "--json").json["run_id"]
    os.mkfifo("lingering")
    worker = start("worker", "held.py")  # type: ignore[operator]
    gate = entered("lingering")
    os.write(gate, b"x")
    worker.send_signal(signal.SIGINT)
    until(worker.stderr, "draining")
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=30)
    os.close(gate)
    assert worker.returncode == 0
    assert process("show", run_id, "--json").json["condition"] == "queued"


def test_events_are_followed_from_another_process(start: object, process: Type) -> None:
    """One JSON object a line, as they happen, until the run has ended."""
    run_id = process("submit", "held.py", "--json").json["run_id"]
    follower = start("events", run_id, "--follow", "--json")  # type: ignore[operator]
    until(follower.stdout, "run.queued")
    assert process("worker", "held.py", "--until-idle").code == 0
    rest, _ = follower.communicate(timeout=30)
    assert [json.loads(line)["event_type"] for line in rest.splitlines()][-1] == "run.completed"
    assert follower.returncode == 0


def test_a_reader_that_has_seen_enough_is_no_error(start: object, process: Type) -> None:
    """``holdfast events RUN | head -1`` ends without a word on stderr."""
    run_id = process("run", "held.py", "--json").json["run_id"]
    reader = start("events", run_id, "--follow")  # type: ignore[operator]
    assert reader.stdout is not None
    reader.stdout.close()
    reader.wait(timeout=30)
    assert reader.stderr is not None
    assert reader.stderr.read() == ""


def test_what_new_writes_passes_as_written(process: Type, folder: Path) -> None:
    assert process("new", "hello").code == 0
    env = environment() | {"PYTEST_DEBUG_TEMPROOT": str(folder)}  # its folders are tidied up by itself alone
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_hello.py"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_a_follower_is_stopped_by_ctrl_c(start: object, process: Type) -> None:
    """One line and 128 + the signal's number; it drove nothing, so it hands nothing back."""
    run_id = process("submit", "held.py", "--json").json["run_id"]
    follower = start("events", run_id, "--follow")  # type: ignore[operator]
    until(follower.stdout, "run.queued")
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=30)
    assert (follower.returncode, err) == (128 + signal.SIGINT, "stopped: by SIGINT\n")


def test_leases_show_who_drives(start: object, process: Type) -> None:
    """While a run is driven its owner is alive; killed, it is proven dead (§2.9)."""
    os.mkfifo("gate")
    child = start("run", "held.py")  # type: ignore[operator]
    gate = entered("gate")
    (lease,) = process("leases", "--json").json["leases"]
    assert (lease["alive"], lease["runs"]) == ("true", 1)
    run_id = process("runs", "--json").json["runs"][0]["run_id"]
    refused = process("resume", run_id, "held.py")
    assert (refused.code, refused.err.split(":")[0]) == (6, "run_is_live")
    child.kill()
    child.wait()
    os.close(gate)
    (lease,) = process("leases", "--json").json["leases"]
    assert lease["alive"] == "false"


def test_a_cancel_is_looked_on_until_the_run_has_ended(start: object, process: Type) -> None:
    """T-89, §10.12: accepted at once; from another process one sees that it was asked for, and the end."""
    os.mkfifo("lingering")
    child = start("run", "held.py")  # type: ignore[operator]
    gate = entered("lingering")
    os.write(gate, b"x")
    run_id = process("runs", "--json").json["runs"][0]["run_id"]
    said = process("cancel", run_id, "--reason", "enough", "--actor", "ada")
    assert said.code == 0, said.err
    assert "asked for by ada: enough" in said.err and "  canceled" in said.out
    _, err = child.communicate(timeout=30)
    os.close(gate)
    assert child.returncode == 5 and "asked for by ada: enough" in err
    again = process("cancel", run_id)
    assert (again.code, again.err.split(":")[0]) == (6, "already_terminal")


ACTING = '''
import os

from holdfast import Context, flow


def upload() -> str:
    open("gate").read()
    with open("calls.txt", "a") as file:
        file.write("uploaded\\n")
    return "receipt"


@flow("acting")
async def acting(ctx: Context) -> str:
    return await ctx.effect(upload)
'''


def test_a_cancel_says_what_it_waits_for(start: object, process: Type) -> None:
    """§6.5: an effect in a thread is not left behind: asked to look on for no longer, cancel says that it is not over yet."""
    Path("acting.py").write_text(ACTING, "utf-8")
    os.mkfifo("gate")
    child = start("run", "acting.py")  # type: ignore[operator]
    gate = entered("gate")
    run_id = process("runs", "--json").json["runs"][0]["run_id"]
    answer = process("cancel", run_id, "--json").json
    assert (answer["accepted"], answer["status"]) == (True, "running")
    said = process("show", run_id).out
    assert "cancel" in said and "asked for at" in said
    os.close(gate)
    child.communicate(timeout=30)
    assert child.returncode == 5 and calls() == ["uploaded"]
    shown = process("effects", run_id, "--json").json["effects"]
    assert [e["status"] for e in shown] == ["recorded"]


SERVING = """
import gc, sys
from typing import Any
from holdfast.api import server
from holdfast.cli.main import main

async def run(app: Any, host: str, port: int, began: Any, within: Any) -> None:
    before = gc.get_freeze_count()
    began("http://here")
    print(before, gc.get_freeze_count() > 10_000, gc.get_threshold()[0] >= 10_000, flush=True)

server.run = run
sys.argv = ["holdfast", "serve", "--no-auth"]
main()
"""


def test_a_server_is_seldom_held_up_by_the_garbage_collector(folder: Path) -> None:
    """What it has loaded is looked at no more: each look through all of it kept every request waiting."""
    done = subprocess.run([sys.executable, "-c", SERVING], env=environment(), capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.returncode) == ("0 True True\n", 0), done.stderr
