"""What ``show`` and ``explain`` print of a run that does not get on, in each of nine ways, as golden screens; ``docs/stuck.md`` quotes them.

``python -m tests.cli.test_failing_runs`` writes them anew, and the blocks of that page; look at the difference before you commit it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli import full_disk
from tests.cli.conftest import SOURCE
from tests.cli.test_screens import GOLDEN, folder, steady, typed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "stuck.md"
SKILLS = '''
import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

from holdfast import Context, Graph, State
from holdfast.policy import Policy, allow, deny
from tests.cli import full_disk


class Order(State):
    customer: str
    receipt: str = ""


raised = Graph("raised", Order)
timed_out = Graph("timed-out", Order)
killed = Graph("killed", Order)
expired = Graph("expired", Order)
denied = Graph("denied", Order)
unknown = Graph("unknown", Order)
changed = Graph("changed", Order)
waiting = Graph("waiting", Order)
full = Graph("full", Order)


@raised.node(start=True)
def look_up(state: Order):
    return {"receipt": "r1"}


@raised.node(after="look_up")
def charge(state: Order):
    raise ConnectionError(f"the bank refused {state.customer}")


@timed_out.node(start=True, timeout=timedelta(milliseconds=50))
async def ask_bank(state: Order):
    await asyncio.Event().wait()


@killed.node(start=True)
def render(state: Order):
    os.kill(os.getpid(), signal.SIGKILL)


@expired.node(start=True)
async def ask(state: Order, ctx: Context):
    await ctx.approve("Refund Ada?", timeout=timedelta(microseconds=1))  # over before anybody can answer, on any machine


@denied.node(start=True, capabilities=("payments",))
def pay(state: Order):
    return {"receipt": "r1"}


def send_money(customer: str, cents: int) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "r1"


@unknown.node(start=True)
async def refund(state: Order, ctx: Context):
    await ctx.effect(send_money, state.customer, 4200)


@changed.node(start=True)
async def confirm(state: Order, ctx: Context):
    await ctx.approve("Go on?")


if Path("new").exists():

    @changed.node(after="confirm")
    def notify(state: Order):
        return None


@waiting.node(start=True)
def work(state: Order):
    return {"receipt": "r1"}


@full.node(start=True)
def reserve(state: Order):
    return {"receipt": "r1"}


@full.node(after="reserve")
def fill(state: Order):
    full_disk.fill()
    return {"receipt": "r2"}


policy = Policy(gate=lambda asked: deny("payments are closed on Sundays") if "payments" in asked.capabilities else allow())
'''
PROCESS = "import sys; from holdfast import machine; machine.here = lambda: machine.Here('host', 'boot'); from holdfast.cli.main import main; main()"
WAYS = {
    "raised": "A node raised an exception",
    "timed_out": "A node took too long",
    "killed": "The worker was killed",
    "expired": "Nobody answered in time",
    "denied": "The policy denied a step",
    "unknown": "Nobody knows whether a side effect happened",
    "changed": "The code has changed",
    "waiting": "No worker is up",
    "full": "The disk is full",
}


def elsewhere(*words: str) -> list[str]:
    """A command in a process of its own, on a machine of the same name."""
    return [sys.executable, "-c", PROCESS, *words]


@contextlib.contextmanager
def another_worker(way: str) -> Iterator[None]:
    """A worker with the code as it is now is up, and has said which run it cannot take."""
    with subprocess.Popen(elsewhere("worker", f"shop.py:{way}"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as worker:
        assert worker.stdout is not None
        try:
            assert "no_worker_for" in worker.stdout.readline()
            yield
        finally:
            worker.kill()


def came_to_that(way: str) -> str:
    """Brings a run into the state; gives what the command printed where that is worth reading."""
    start = (f"shop.py:{way}", "--input", '{"customer": "Ada"}')
    match way:
        case "killed" | "unknown":
            done = subprocess.run(elsewhere("run", *start), capture_output=True, timeout=60, check=False)
            assert done.returncode == -9, done.stderr
            return "" if way == "killed" else typed(("resume", "last", f"shop.py:{way}"), 80)
        case "waiting":
            return typed(("submit", *start), 80)
        case "changed":
            typed(("run", *start), 80)
            typed(("approve", "last"), 80)
            Path("new").touch()
            sys.modules.pop("shop")
            return typed(("resume", "last", f"shop.py:{way}"), 80)
        case "full":
            with full_disk.has_room(Path.cwd()):
                return typed(("run", *start), 80)
    return typed(("run", *start), 80)


def screens() -> dict[str, tuple[str, str, str, str]]:
    """By way: what the command printed that met it, what ``show`` prints, what ``explain`` prints; that once more as the page quotes it."""
    with folder():
        Path("shop.py").write_text(SKILLS, "utf-8")
        Path("pyproject.toml").write_text('[tool.holdfast]\npolicy = "shop.py:policy"\n', "utf-8")
        path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = f"{SOURCE}{os.pathsep}{SOURCE.parent}"
        found = {}
        try:
            for way in WAYS:
                met = came_to_that(way)
                with another_worker(way) if way == "changed" else contextlib.nullcontext():
                    texts = [met, typed(("show", "last"), 80), typed(("explain", "last"), 80)]
                run_id = re.search(r"^run ([0-9a-z]{26})$", texts[1], re.M)
                assert run_id is not None, texts[1]
                names = {"RUN": run_id[1]}
                met, show, explain = [re.sub(r"^run RUN\.*\n", "", steady(text, names), flags=re.M) for text in texts]
                found[way] = (met, show, explain, quoted(steady(texts[2], names, squeezed=False)))
        finally:
            sys.modules.pop("shop", None)
            if path is not None:
                os.environ["PYTHONPATH"] = path
        return found


def whole(found: dict[str, tuple[str, str, str, str]]) -> str:
    return "\n".join(f"=== {WAYS[way]}\n\n" + "\n".join(text for text in texts[:3] if text) for way, texts in found.items())


def quoted(text: str) -> str:
    """A screen as the page quotes it: the id shortened, nothing about the exit."""
    lines = re.sub(r"RUN\.{5,}", "RUN", text).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("exit ", "$ ", "run RUN"))).strip("\n")


@pytest.fixture(scope="module")
def shown() -> dict[str, tuple[str, str, str, str]]:
    return screens()


def test_each_screen_is_as_it_was(shown: dict[str, tuple[str, str, str, str]]) -> None:
    assert whole(shown) == (GOLDEN / "failing.txt").read_text("utf-8"), "python -m tests.cli.test_failing_runs writes them anew"


def test_a_disk_has_room_each_time_that_it_is_set_up(tmp_path: Path) -> None:
    """Whoever runs the tests on several processes may set the screens up twice in one: a worker that has nothing left takes a part of this module from another."""
    for n in range(2):
        with full_disk.has_room(tmp_path):
            with open(tmp_path / "file", "w") as file:
                file.write(str(n))
                full_disk.fill()
                with pytest.raises(OSError, match="No space left"):
                    file.write("more")


@pytest.mark.parametrize("way", WAYS)
def test_explain_says_why_and_gives_commands_in_ten_lines(way: str, shown: dict[str, tuple[str, str, str, str]]) -> None:
    said = shown[way][2]
    assert "holdfast " in said and "RUN" in said and "exit 0" in said
    story = [line for line in said.splitlines() if line.startswith(" . ")]
    assert 1 <= len(story) <= 10


def test_the_page_quotes_them(shown: dict[str, tuple[str, str, str, str]]) -> None:
    text = PAGE.read_text("utf-8")
    assert re.findall(r"^## (.*)$", text, re.M) == list(WAYS.values())
    assert re.findall(r"^```text\n(.*?)\n```", text, re.M | re.S) == [shown[way][3] for way in WAYS], "python -m tests.cli.test_failing_runs writes them anew"


if __name__ == "__main__":
    made = screens()
    (GOLDEN / "failing.txt").write_text(whole(made), "utf-8")
    if PAGE.exists():
        blocks = iter([texts[3] for texts in made.values()])
        PAGE.write_text(re.sub(r"^```text\n.*?\n?```", lambda _: f"```text\n{next(blocks)}\n```", PAGE.read_text("utf-8"), flags=re.M | re.S), "utf-8")
