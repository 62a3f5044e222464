"""Settings shared by all tests: how hard hypothesis tries.

``fast`` is the default: few examples, the same ones each time, so that a red run is red for everyone.
``pytest --hypothesis-profile=long`` looks for new ones.
"""

import contextlib
import faulthandler
import gc
import os
import pathlib
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Generator, Iterator

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, get_cache_dir
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.terminal import TerminalReporter
from hypothesis import HealthCheck, settings

from holdfast.stores import MemoryStore, SqliteStore
from holdfast.testing import VirtualClock, World
from tests.postgres.blocking import at_once, blocking, finish
from tests.postgres.instead import OtherStore, kept_for, stand_in
from tests.postgres.pooler import WHICH

settings.register_profile("fast", max_examples=50, derandomize=True, deadline=None, database=None)
settings.register_profile("long", max_examples=2_000, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fast")

pytest_plugins = ["holdfast.testing.plugin", "pytester"]  # in an installed package the first comes by itself

STARTED = (
    "holdfast.cli.main, holdfast.api.app, holdfast.testing, holdfast.telemetry, holdfast.stores.postgres.store, uvicorn, httpx, pytest, hypothesis, schemathesis.pytest.plugin, langgraph.graph",
    "agents, pydantic_ai, pydantic_ai.models.function, mcp.server",
)
"""What the processes import that tests start, and this one's workers: on two cores at once, half of it on each."""

COMPILING = "import sys, pytest; sys.argv[1:] and pytest.main(['--collect-only', '-q', '-n0', '-p', 'no:cacheprovider', *sys.argv[1:]]); import {names}"
MANY = 100
"""How many test files without bytecode there are at least when they are compiled beforehand; fewer take the workers less time than that."""

COLLECTED_AFTER = (20_000, 20, 50)
"""Of the garbage collector: new objects, and generations, before it looks again."""

ENDED_AFTER = 330.0
"""Seconds; above the timeout of a test."""


MEMORY, ROOM = "/dev/shm", 4 * 2**30
"""Where a disk costs nothing, and how many bytes have to be free there."""


def list_uncompiled() -> list[str]:
    """Returns the files of tests whose bytecode, with rewritten assertions, is missing or out of date."""
    here = pathlib.Path(__file__).parent
    found = []
    for path in sorted(here.rglob("test_*.py")):
        there = get_cache_dir(path) / f"{path.stem}{PYC_TAIL}"
        if not there.exists() or there.stat().st_mtime < path.stat().st_mtime:
            found.append(str(path))
    return found


def pytest_configure(config: pytest.Config) -> None:
    """Has the package and the frameworks compiled once, where Python is told to keep no bytecode: some hundred processes of the tests would each do it again.
    Before a whole run the tests are compiled once too, or each worker would rewrite the assertions of all of them.
    Temporary folders are in memory where there is room: no test loses power, and the syncs of thousands of stores cost next to nothing there."""
    with contextlib.suppress(OSError):  # another system: on its disk
        if shutil.disk_usage(MEMORY).free >= ROOM and os.access(MEMORY, os.W_OK | os.X_OK):
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)
    if hasattr(config, "workerinput"):
        return
    whole = config.args_source is not pytest.Config.ArgsSource.ARGS and bool(config.getoption("numprocesses", None))
    tests = list_uncompiled() if whole else []
    if sys.dont_write_bytecode or len(tests) >= MANY:
        keeps = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        half = len(tests) // 2 if len(tests) >= MANY else 0
        parts = (tests[:half], tests[half:]) if half else ([], [])
        commands = [[sys.executable, "-c", COMPILING.format(names=names), *part] for names, part in zip(STARTED, parts, strict=True)]
        for process in [subprocess.Popen(command, env=keeps, stdout=subprocess.DEVNULL) for command in commands]:
            process.wait()  # whatever cannot be imported fails in its own tests


def pytest_xdist_auto_num_workers() -> int:
    """Half as many workers again as there are cores: for a fifth of their time tests wait for other processes and for leases to end."""
    if told := os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return int(told)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + (cores + 1) // 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A heavy test has a budget of its own, not the time of one that hangs. One that is kept to the store that it names says why."""
    for item in items:
        try:
            kept_for(item.iter_markers())
        except ValueError as e:
            raise pytest.UsageError(f"{item.nodeid}: {e}") from e
        if item.get_closest_marker("heavy") is not None:
            item.add_marker(pytest.mark.timeout(0))


def pytest_collection_finish() -> None:
    """Takes what was collected out of the garbage collector's sight: it would walk 8,000 tests and all their modules again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What even a test's timeout does not end is told, and ended with its process; xdist makes another one."""
    if item.get_closest_marker("heavy") is None:
        faulthandler.dump_traceback_later(ENDED_AFTER, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store", choices=["as-written", "postgres"], default="as-written", help="postgres: what tests open by URL in memory or in SQLite is PostgreSQL instead")


@pytest.fixture(autouse=True)
def other_store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[OtherStore]:
    """Puts the store that was asked for in the place of those that tests name, and gives the URL that stands for another."""
    told = request.node.user_properties
    if request.config.getoption("--store") == "as-written":
        yield str
    elif why := kept_for(request.node.iter_markers()):
        yield str
        told.append(("kept to its store", why))
    else:
        made = stand_in(monkeypatch)
        yield made.url
        if made.made:
            told.append(("opened in PostgreSQL", len(made.made)))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def each_world(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> Iterator[World]:
    """Simulated hosts over each kind of store in turn, each of its verbs done at once: virtual time does not wait for a disk or a server."""
    clock = VirtualClock()
    store = MemoryStore(now=clock.now) if request.param == "memory" else at_once(SqliteStore(tmp_path / "a.db", now=clock.now)) if request.param == "sqlite" else blocking(clock.now)
    yield World(store, clock=clock)
    finish()


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Says what stood for a transaction pooler, where one was asked for, how many tests another store has stood for, and which seeds were played."""
    seeds = [str(value) for reports in terminalreporter.stats.values() for r in reports if getattr(r, "when", "") == "call" for name, value in r.user_properties if name == "seeds"]
    if seeds:
        terminalreporter.write_line(f"simulated: {sum(int(told.split()[0]) for told in seeds)} seeds: {', '.join(seeds)}")
    if terminalreporter.config.getoption("--store") == "postgres":
        told = Counter(name for reports in terminalreporter.stats.values() for r in reports if getattr(r, "when", "") == "teardown" for name, _ in r.user_properties)
        opened, kept = told["opened in PostgreSQL"], told["kept to its store"]
        terminalreporter.write_line(f"--store postgres: {opened} tests opened a store in PostgreSQL, {kept} kept the one that they name")
    if any(
        "postgres_pooled" in report.nodeid for reports in terminalreporter.stats.values() for report in reports if hasattr(report, "nodeid")
    ):
        terminalreporter.write_line(f"transaction pooler: {WHICH}")
