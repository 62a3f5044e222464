"""What every case shares: a folder of its own, the payloads, and one JSON line per measurement."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Programs that are started from here find packages as installers leave them: with their bytecode, whatever the shell that runs the bench was told.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

HERE = pathlib.Path(__file__).resolve().parent
HOME = pathlib.Path(os.environ.get("BENCH_HOME") or HERE / ".home")
DATABASE = os.environ.get("BENCH_DATABASE", "")
"""The URL of the empty PostgreSQL database that a case is given, where the bench runs over one."""
clock = time.perf_counter

NODES = 100  # of the linear graph
RUNS = 100  # at once
SHORT = 20  # steps of each of the runs at once, and of each run that is recovered
TASKS = 100  # of the fan-out
TEXT = "x" * 480  # with a counter beside it about 500 bytes of new state a step


@contextmanager
def folder() -> Iterator[pathlib.Path]:
    """An empty folder on the disk that is measured; gone afterwards."""
    base = pathlib.Path(os.environ.get("BENCH_DATA") or HOME / "data")
    base.mkdir(parents=True, exist_ok=True)
    made = pathlib.Path(tempfile.mkdtemp(dir=base))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def emit(metric: str, value: float, unit: str, **more: object) -> None:
    """One measurement, as the parent process reads it."""
    print(json.dumps({"metric": metric, "value": value, "unit": unit, **more}), flush=True)


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def rate(metric: str, count: int, seconds: Sequence[float], unit: str) -> None:
    """How many a second, by the median of several goes."""
    emit(metric, count / statistics.median(seconds), unit)


def latencies(metric: str, seconds: Sequence[float]) -> None:
    emit(f"{metric} p50", percentile(seconds, 0.5) * 1e3, "ms")
    emit(f"{metric} p99", percentile(seconds, 0.99) * 1e3, "ms")


def size(path: pathlib.Path) -> int:
    """Bytes on disk of a database and its log; of a PostgreSQL database its own."""
    if DATABASE:
        import psycopg

        with psycopg.connect(DATABASE, autocommit=True) as db:
            found = db.execute("SELECT pg_database_size(current_database())").fetchone()
        assert found is not None
        return int(found[0])
    return sum(p.stat().st_size for p in path.parent.iterdir() if p.is_file() and p.name.startswith(path.name))
