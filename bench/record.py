"""What a bench writes with ``--record FILE``: what it measured, when, on which machine, with which versions, and what ran beside it."""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import os
import pathlib
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import apsw


class Recorder:
    """Made before the first measurement, so that it knows the time and the load of then. Without a file it records nothing."""

    def __init__(self, file: pathlib.Path | None, beside: str) -> None:
        self._file = file
        self._beside = beside
        self._began = dt.datetime.now(dt.UTC)
        self._load = os.getloadavg()[0]
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="write the measurements, the machine and the versions to this file, as JSON")
        parser.add_argument("--beside", default="", metavar="TEXT", help="what else the machine did meanwhile; kept in the record")

    @classmethod
    def of(cls, given: argparse.Namespace) -> Recorder:
        return cls(given.record, given.beside)

    def write(self, measurements: Iterable[Mapping[str, Any]], **versions: str) -> None:
        """Writes the record; a file that was there is replaced."""
        if self._file is None:
            return
        now = dt.datetime.now(dt.UTC)
        record = {
            "command": shlex.join(["python", f"bench/{pathlib.Path(sys.argv[0]).name}", *sys.argv[1:]]),
            "date": self._began.isoformat(timespec="seconds").replace("+00:00", "Z"),
            "seconds": round((now - self._began).total_seconds()),
            "machine": machine(),
            "beside": self._beside,
            "load": {"first": round(self._load, 2), "last": round(os.getloadavg()[0], 2)},
            "versions": {"holdfast": version("holdfast"), "python": platform.python_version(), "sqlite": apsw.sqlite_lib_version(), **versions},
        }
        rows = ",\n".join("  " + json.dumps(rounded(dict(m)), ensure_ascii=False) for m in measurements)
        head = json.dumps(record, indent=1, ensure_ascii=False).removesuffix("\n}")
        self._file.write_text(f'{head},\n "measurements": [\n{rows}\n ]\n}}\n', "utf-8")


def machine() -> dict[str, Any]:
    """What the figures depend on, as far as the system tells it."""
    told = pathlib.Path("/proc/cpuinfo")
    lines = told.read_text("utf-8").splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count(), "memory_gib": round(memory / 2**30), "system": f"{platform.system()} {platform.machine()}"}


def version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def rounded(measurement: dict[str, Any]) -> dict[str, Any]:
    """Five figures are more than any measurement here is worth."""
    return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in measurement.items()}
