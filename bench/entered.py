"""A pytest plugin for bench/mutate.py: which tests reach which marks, and tests shown to a mutant in forks of one process.

    HOLDFAST_ENTERED=FOLDER pytest -p bench.entered …       # over a marked tree: for each process one file of lines in FOLDER
    HOLDFAST_NOW=FILE pytest -n0 -p bench.entered …         # the test at work and when it began, and which one failed, for whoever watches
    HOLDFAST_SHOWS=FD pytest -n0 -p bench.entered FILES …   # collects, and then answers requests from that socket
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pathlib
import resource
import signal
import socket
import sys
import time
import types
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import pytest
from bench.mutations import Mutant, changed

PATIENCE = 4  # how much longer than by the processor anything may take by the clock
HANGS = 20.0  # seconds that a test may take beyond five times what it took without a mutant


class Entered:
    """One process of pytest over a marked tree: a line for each test, with its marks, what it took and whether it passed."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._out = folder / f"{os.getpid()}.tests"
        self._took, self._passed = 0.0, True
        self._found: list[str] = []
        self._marks = importlib.import_module("holdfast_marks")
        self._marks.told = self._found.append
        self._pid = os.getpid()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if self._found:
            self._tell("", 0.0, True)  # what was reached before a test began: at import, at collection
        self._took, self._passed = 0.0, True
        try:
            return (yield)
        finally:
            if os.getpid() == self._pid:
                self._tell(item.nodeid, self._took, self._passed)

    def _tell(self, test: str, took: float, passed: bool) -> None:
        with self._out.open("a") as out:
            out.write(json.dumps({"test": test, "took": round(took, 4), "passed": passed, "marks": sorted(set(self._found))}) + "\n")
        self._found.clear()
        self._marks.seen.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took += report.duration
        self._passed = self._passed and report.outcome == "passed"


class Now:
    """Writes down which test runs, and which one failed."""

    def __init__(self, file: pathlib.Path) -> None:
        self._file = file
        self.failed = False

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._file.write_text(json.dumps([nodeid, time.time()]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = True
            with self._file.with_suffix(".failed").open("a") as out:
                out.write(report.nodeid + "\n")


# -- a fork for each mutant --------------------------------------------------------------------------


class Request(NamedTuple):
    """Show this mutant (none: the tree as it is) to these tests, and write into ``now`` which one runs."""

    mutant: Sequence[Any] | None
    tests: Sequence[str]
    now: str
    seconds: float
    by_clock: float
    durations: Sequence[float]
    """What each test took without a mutant."""


class Answer(NamedTuple):
    """How it ended: the exit code (None: ended from outside), the test that failed or hung, and the seconds of the processor."""

    code: int | None
    failed: str | None
    seconds: float
    fits: bool = True
    """False where the change cannot be put into a running process."""


class Forks:
    """Collects once. For each request a fork gets the changed function in place of the one that was imported."""

    def __init__(self, end: socket.socket, root: pathlib.Path) -> None:
        self._end = end
        self._root = root
        self._functions: dict[tuple[str, str], list[types.FunctionType]] = {}
        self._texts = {path: path.read_text() for path in (root / "src").rglob("*.py")}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> object:
        items = {item.nodeid: item for item in session.items}
        source = str(self._root / "src")
        for one in gc.get_objects():
            if type(one) is types.FunctionType and one.__code__.co_filename.startswith(source):
                self._functions.setdefault((one.__code__.co_filename, one.__code__.co_qualname), []).append(one)
        with self._end, self._end.makefile("rw") as lines:
            for line in lines:
                lines.write(json.dumps(self._show(Request(*json.loads(line)), items)) + "\n")
                lines.flush()
        return True

    def _show(self, request: Request, items: dict[str, pytest.Item]) -> Answer:
        mutant = None if request.mutant is None else Mutant(*request.mutant)
        swaps = self._swaps(mutant)
        wanted = [items[test] for test in request.tests if test in items]
        if swaps is None or len(wanted) < len(request.tests):
            return Answer(None, None, 0.0, fits=False)
        new_databases()
        child = os.fork()
        if child == 0:
            _be_shown(wanted, swaps, pathlib.Path(request.now), request.seconds)
        return watched(child, request)

    def _swaps(self, mutant: Mutant | None) -> list[tuple[types.FunctionType, types.CodeType]] | None:
        """The functions to change, each with its new code; None where that is not possible."""
        if mutant is None:
            return []
        path = self._root / mutant.path
        module = compile(changed(mutant, self._texts[path]), str(path), "exec")
        new = {(c.co_qualname, c.co_firstlineno): c for c in _codes(module)}
        found = self._functions.get((str(path), mutant.within), [])
        swaps = [(f, new[mutant.within, f.__code__.co_firstlineno]) for f in found if (mutant.within, f.__code__.co_firstlineno) in new]
        same = all(f.__code__.co_freevars == code.co_freevars for f, code in swaps)
        imported = any(getattr(m, "__file__", None) == str(path) for m in list(sys.modules.values()))
        return swaps if same and mutant.within and len(swaps) == len(found) and (found or not imported) else None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield const
            yield from _codes(const)


def new_databases() -> None:
    """Where a PostgreSQL server is shared by the tests: nothing in it that a mutant of before has left."""
    if (server := sys.modules.get("tests.postgres.server")) is None:
        return
    with server.shared().admin() as db:
        for (name,) in db.execute("SELECT datname FROM pg_database WHERE NOT datistemplate AND datname <> 'postgres'").fetchall():
            db.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        db.execute("CREATE DATABASE holdfast OWNER holdfast")


def _be_shown(items: Sequence[pytest.Item], swaps: Sequence[tuple[types.FunctionType, types.CodeType]], now: pathlib.Path, seconds: float) -> NoReturn:
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 5))
        watch = Now(now)
        items[0].config.pluginmanager.register(watch)
        for function, new in swaps:
            function.__code__ = new
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if watch.failed:
                break
        code = int(watch.failed)
    except BaseException:  # a mutant may break anything, the test runner included
        code = 3
    finally:
        os._exit(code)


def watched(child: int, request: Request) -> Answer:
    """Waits for a child that runs tests, and ends it with all that it started: after its time, or when a test hangs."""
    now = pathlib.Path(request.now)
    usual = dict(zip(request.tests, request.durations, strict=True))
    began = time.monotonic()

    def hangs(patience: float) -> str | None:
        with contextlib.suppress(OSError, ValueError):
            test, since = json.loads(now.read_text())
            return test if time.time() - since > patience * (HANGS + 5 * usual.get(test, 1.0)) else None
        return None

    while True:
        pid, status, used = os.wait4(child, os.WNOHANG)
        if pid:
            break
        time.sleep(0.02)
        failed = hangs(PATIENCE)
        if failed is not None or time.monotonic() - began > request.by_clock:
            end(child)
            _, _, used = os.wait4(child, 0)
            return Answer(None, failed, used.ru_utime + used.ru_stime)
    end(child)
    code = os.waitstatus_to_exitcode(status)
    told = now.with_suffix(".failed")
    failed = told.read_text().splitlines()[0] if told.exists() else None
    if code < 0 and failed is None:
        failed = hangs(1)  # it had all of its processor's time to itself
    return Answer(None if code < 0 else code, failed, used.ru_utime + used.ru_stime)


def end(child: int) -> None:
    """Ends a child with all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def pytest_configure(config: Any) -> None:
    root = pathlib.Path(__file__).resolve().parents[1]
    works = hasattr(config, "workerinput") or config.getoption("numprocesses", None) in (None, 0)
    if works and (folder := os.environ.get("HOLDFAST_ENTERED")) is not None and (root / "src" / "holdfast_marks.py").exists():
        config.pluginmanager.register(Entered(pathlib.Path(folder)))
    if (file := os.environ.get("HOLDFAST_NOW")) is not None:
        config.pluginmanager.register(Now(pathlib.Path(file)))
    if (given := os.environ.pop("HOLDFAST_SHOWS", None)) is not None:
        config.pluginmanager.register(Forks(socket.socket(fileno=int(given)), root))


