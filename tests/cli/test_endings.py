"""A command that is told to end does so within seconds, also while its database is away (§10.13)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Type, environment
from tests.postgres.server import Server

LONG = '''
import asyncio
from holdfast import Context, Graph, State


class Work(State):
    name: str = ""


graph = Graph("long", Work)


async def act(name: str) -> None:
    print("acting", flush=True)
    await asyncio.sleep(600)


@graph.node(start=True)
async def first(state: Work, ctx: Context) -> None:
    await ctx.effect(act, state.name, side_effects="external_action")
'''
LATEST = 25
"""Seconds: less than the thirty that the store is asked again for."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server().create()
    yield made
    made.remove()


@pytest.mark.parametrize(("busy", "signals"), [(False, 1), (False, 2), (True, 2), (True, 3)])
def test_a_worker_whose_database_is_away_ends_on_signals(holdfast: Type, folder: Path, server: Server, busy: bool, signals: int) -> None:
    (folder / "long.py").write_text(LONG, "utf-8")
    if busy:
        assert holdfast("submit", "long.py:graph", "--store", server.url).code == 0
    words = [sys.executable, "-m", "holdfast", "worker", "long.py:graph", "--store", server.url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True) as worker:
        try:
            assert worker.stdout is not None and worker.stderr is not None
            assert worker.stderr.readline().startswith("worker ")
            if busy:
                assert worker.stdout.readline() == "acting\n"
            server.stop("immediate")
            worker.send_signal(signal.SIGTERM)
            assert worker.stderr.readline().startswith("draining")
            for _ in range(signals - 1):
                worker.send_signal(signal.SIGTERM)
            assert worker.wait(LATEST) in ((0, -signal.SIGTERM) if signals == 3 else (0,))
            assert "its lease ends" in worker.stderr.read() or signals == 3
        finally:
            worker.kill()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_command_whose_database_is_away_ends_on_signals_and_says_how_to_go_on(folder: Path, server: Server, signals: int) -> None:
    (folder / "long.py").write_text(LONG, "utf-8")
    words = [sys.executable, "-m", "holdfast", "run", "long.py:graph", "--store", server.url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True) as run:
        try:
            assert run.stdout is not None and run.stderr is not None
            assert run.stdout.readline() == "acting\n"
            server.stop("immediate")
            for _ in range(signals):
                run.send_signal(signal.SIGINT)
            assert run.wait(LATEST) == 128 + signal.SIGINT
            assert "holdfast resume" in run.stderr.read()
        finally:
            run.kill()


IN_THREADS = '''
import asyncio
import threading
import time
from holdfast import Context, Graph, State


class Work(State):
    name: str = ""


graph = Graph("threads", Work)


@graph.node(start=True)
async def first(state: Work, ctx: Context) -> None:
    print("acting", flush=True)
    if state.name == "own":
        threading.Thread(target=time.sleep, args=(600,)).start()
        await asyncio.sleep(600)
    await asyncio.to_thread(time.sleep, 600)
'''


@pytest.mark.parametrize(("command", "number", "code"), [("worker", signal.SIGTERM, 0), ("run", signal.SIGINT, 128 + signal.SIGINT)])
@pytest.mark.parametrize("name", ["loop", "own"])
def test_no_thread_of_a_node_holds_up_the_end(holdfast: Type, folder: Path, command: str, number: signal.Signals, code: int, name: str) -> None:
    """The interpreter waits for threads of ``asyncio.to_thread``, and for those that a node has started, as long as they take."""
    (folder / "threads.py").write_text(IN_THREADS, "utf-8")
    words = [sys.executable, "-m", "holdfast", command, "threads.py:graph"]
    if command == "worker":
        assert holdfast("submit", "threads.py:graph", "--input", f'{{"name": "{name}"}}').code == 0
    else:
        words += ["--input", f'{{"name": "{name}"}}']
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.readline() == "acting\n"
            process.send_signal(number)
            while not process.stderr.readline().startswith(("draining", "stopping")):
                assert process.poll() is None
            process.send_signal(number)
            assert process.wait(LATEST) == code
        finally:
            process.kill()
    assert holdfast("runs", "--json").json["runs"][0]["condition"] == "queued", "its lease was given back"
