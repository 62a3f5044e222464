"""A pytest plugin for bench/mutate.py: which tests run which lines of the package, how long each takes, and which one runs now.

    HOLDFAST_ENTERED=FOLDER pytest -p bench.entered …     # one file of JSON a process in FOLDER
    HOLDFAST_NOW=FILE pytest -n0 -p bench.entered …       # the test at work and when it began, for whoever watches for one that hangs
"""

from __future__ import annotations

import json
import os
import pathlib
import sqlite3
import time
from collections.abc import Generator
from typing import Any

import coverage
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


class Entered:
    """One process of pytest, watched test by test."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._out = folder / f"{os.getpid()}.json"
        self._data = folder / f"{os.getpid()}.coverage"
        self._watch = coverage.Coverage(data_file=str(self._data), include=[f"{ROOT}/src/holdfast/*"], config_file=False, messages=False)
        self._tests: dict[str, tuple[float, bool]] = {}
        self._pid = os.getpid()

    def pytest_sessionstart(self) -> None:
        self._watch.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._watch.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            if os.getpid() == self._pid:
                self._watch.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took, passed = self._tests.get(report.nodeid, (0.0, True))
        self._tests[report.nodeid] = (took + report.duration, passed and report.outcome == "passed")

    def pytest_sessionfinish(self) -> None:
        if os.getpid() != self._pid:
            return
        self._watch.stop()
        self._watch.save()
        with sqlite3.connect(self._data) as data:
            rows = data.execute("SELECT context, path, numbits FROM line_bits JOIN context ON context.id = context_id JOIN file ON file.id = file_id").fetchall()
        lines: dict[str, dict[str, str]] = {}
        for test, path, bits in rows:
            if test and path.endswith(".py"):
                lines.setdefault(test, {})[str(pathlib.Path(path).relative_to(ROOT))] = f"{int.from_bytes(bits, 'little'):x}"
        self._out.write_text(json.dumps({"tests": self._tests, "lines": lines}))
        self._data.unlink(missing_ok=True)


class Now:
    """Writes down which test runs."""

    def __init__(self, file: pathlib.Path) -> None:
        self._file = file

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._file.write_text(json.dumps([nodeid, time.time()]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._file.with_suffix(".failed").open("a") as out:
                out.write(report.nodeid + "\n")


def pytest_configure(config: Any) -> None:
    works = hasattr(config, "workerinput") or config.getoption("numprocesses", None) in (None, 0)
    if works and (folder := os.environ.get("HOLDFAST_ENTERED")) is not None:
        config.pluginmanager.register(Entered(pathlib.Path(folder)))
    if (file := os.environ.get("HOLDFAST_NOW")) is not None:
        config.pluginmanager.register(Now(pathlib.Path(file)))
