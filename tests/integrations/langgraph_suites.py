"""LangGraph's own suites through our saver (§19.1, §19.3), each in an environment made for it:

    LANGGRAPH_SRC=/path/to/langgraph uv run python -m tests.integrations.langgraph_suites --budget 15

``released``: the newest ``langgraph-checkpoint-conformance`` and ``langgraph`` on the package index, both durabilities, with and without
strict MessagePack; about a minute. ``head``: the conformance suite of the checkout; about a minute. ``matrix``: each test of the checkout's
Pregel suite that asks for a checkpointer, once for each durability; about two minutes. ``turns``: two processes, four turns at once on one
thread, as a skill and with LangGraph's own SQLite saver alone; half a minute. Without ``LANGGRAPH_SRC`` the two that need it are skipped by name.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
GUEST = Path(__file__).with_name("langgraph_guest.py")
TURNS = Path(__file__).with_name("langgraph_turns.py")
DURABILITIES = ("strict", "joined")
PARTS = ("released", "head", "matrix", "turns")
PYTEST = ("pytest", "pytest-mock", "syrupy", "redis", "pycryptodome", "psycopg[binary,pool]", "httpx", "pytest-repeat", "pytest-xdist")
LIBRARIES = ("langgraph", "checkpoint", "checkpoint-sqlite", "checkpoint-postgres", "checkpoint-conformance", "prebuilt", "sdk-py")


class Round(NamedTuple):
    """What one round of a suite gave."""

    name: str
    asked: int
    passed: int
    skipped: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    def line(self) -> str:
        return f"{self.name}: asked {self.asked}, passed {self.passed}, skipped {len(self.skipped)}, failed {len(self.failed)}"


class Suites:
    """The environments, and how long there is."""

    def __init__(self, folder: Path, source: Path | None, minutes: float) -> None:
        self.folder = folder
        self.source = source
        self._end = time.monotonic() + minutes * 60
        self._made: dict[str, Path] = {}

    def _left(self) -> float:
        return max(self._end - time.monotonic(), 1.0)

    def python(self, name: str, *wanted: str) -> Path:
        """The interpreter of an environment that has these packages, and this Holdfast."""
        if name not in self._made:
            home = self.folder / name
            subprocess.run(["uv", "venv", "-q", "--no-config", "-p", sys.executable, str(home)], check=True, cwd=self.folder)
            made = home / "bin" / "python"
            command = ["uv", "pip", "install", "-q", "--no-config", "-p", str(made), *wanted, *PYTEST, "-e", str(ROOT)]
            subprocess.run(command, check=True, cwd=self.folder, timeout=self._left())
            self._made[name] = made
        return self._made[name]

    def released(self) -> Path:
        return self.python("index", "langgraph", "langgraph-checkpoint-conformance", "langgraph-checkpoint-sqlite")

    def checkout(self) -> Path:
        assert self.source is not None
        return self.python("checkout", *(str(self.source / "libs" / library) for library in LIBRARIES))

    def _told(self, python: Path, *words: str, cwd: Path | None = None, **settings: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")} | settings
        return subprocess.run([str(python), *words], capture_output=True, text=True, timeout=self._left(), cwd=cwd or self.folder, env=env, check=False)

    def conformance(self, name: str, python: Path) -> list[Round]:
        rounds = []
        for durability in DURABILITIES:
            for strict in ("false", "true"):
                told = self._told(python, str(GUEST), HOLDFAST_DURABILITY=durability, LANGGRAPH_STRICT_MSGPACK=strict)
                title = f"{name} conformance, {durability}{', strict MessagePack' if strict == 'true' else ''}"
                if told.returncode:
                    rounds.append(Round(title, 1, 0, failed=(told.stderr.strip()[-2000:],)))
                    continue
                found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
                wrong = tuple(found["failed"]) + (("a capability was not detected",) if found["detected"] < found["capabilities"] else ())
                title = f"{title} (version {found['version']}, {found['detected']} of {found['capabilities']} capabilities)"
                rounds.append(Round(title, found["passed"] + len(wrong), found["passed"], failed=wrong))
        return rounds

    def matrix(self, python: Path, strict_msgpack: bool) -> list[Round]:
        assert self.source is not None
        place = self.folder / "matrix"
        library = self.source / "libs" / "langgraph"
        shutil.copytree(library / "tests", place / "tests")
        shutil.copy(library / "pyproject.toml", place)
        shutil.copy(GUEST, place)
        with (place / "tests" / "conftest.py").open("a") as conftest:
            conftest.write("\n\nfrom langgraph_guest import async_checkpointer, sync_checkpointer  # noqa\n")
        files = [str(p.relative_to(place)) for p in sorted((place / "tests").glob("test_*.py")) if "sync_checkpointer" in p.read_text("utf-8")]
        rounds = []
        for durability in DURABILITIES:
            report = place / f"{durability}.xml"
            words = ["-m", "pytest", "-q", "-p", "langgraph_guest", "-p", "no:cacheprovider", "-o", "addopts=", "-n", "2", f"--junitxml={report}", *files]
            settings = {"PYTHONPATH": str(place), "NO_DOCKER": "true", "HOLDFAST_DURABILITY": durability}
            told = self._told(python, *words, cwd=place, **settings, LANGGRAPH_STRICT_MSGPACK=str(strict_msgpack).lower())
            rounds.append(read(f"Pregel matrix, {durability}{', strict MessagePack' if strict_msgpack else ''}", report, told))
        return rounds

    def turns(self, python: Path) -> list[Round]:
        told = self._told(python, str(TURNS), str(self.folder), PYTHONPATH=str(ROOT))
        if told.returncode:
            return [Round("turns", 4, 0, failed=(told.stderr.strip()[-2000:],))]
        found: dict[str, int] = json.loads(told.stdout.splitlines()[-1])
        print(f"four turns at once from two processes: LangGraph's own saver kept {found['alone']} of 4, HoldfastSaver alone {found['saver']} of 4")
        return [Round("four turns at once from two processes, as a skill", 4, found["skill"], failed=() if found["skill"] == 4 else ("turns were lost",))]


def read(name: str, report: Path, told: subprocess.CompletedProcess[str]) -> Round:
    """The counts of a report that pytest wrote."""
    if not report.exists():
        return Round(name, 1, 0, failed=((told.stdout + told.stderr)[-3000:],))
    kinds: Counter[str] = Counter()
    skipped, failed = [], []
    for case in ET.parse(report).iter("testcase"):
        kind = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        kinds[kind] += 1
        title = f"{case.get('classname')}::{case.get('name')}"
        if kind == "skipped":
            skipped.append(f"{title}: {next(iter(case)).get('message')}")
        elif kind != "passed":
            failed.append(f"{title}: {next(iter(case)).get('message')}")
    return Round(name, sum(kinds.values()), kinds["passed"], tuple(skipped), tuple(failed))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, default=15, metavar="MINUTES", help="ends after so many minutes; about five are needed")
    parser.add_argument("--only", default=",".join(PARTS), help="parts by comma: " + ", ".join(PARTS))
    parser.add_argument("--source", default=os.environ.get("LANGGRAPH_SRC"), help="a checkout of LangGraph; $LANGGRAPH_SRC by default")
    parser.add_argument("--strict-msgpack", action="store_true", help="the Pregel matrix under strict MessagePack too")
    given = parser.parse_args()
    wanted = given.only.split(",")
    if odd := set(wanted) - set(PARTS):
        parser.error(f"no part is named {min(odd)!r}; parts: {', '.join(PARTS)}")
    source = Path(given.source).resolve() if given.source else None
    if source is not None and not (source / "libs" / "langgraph" / "tests").is_dir():
        parser.error(f"{source} is no checkout of LangGraph: it has no libs/langgraph/tests")
    left_out = [part for part in wanted if source is None and part in ("head", "matrix")]
    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="hf-langgraph-") as folder:
        suites = Suites(Path(folder), source, given.budget)
        for part in [p for p in PARTS if p in wanted and p not in left_out]:
            try:
                match part:
                    case "released":
                        made = suites.conformance("released", suites.released())
                    case "head":
                        made = suites.conformance("head's", suites.checkout())
                    case "matrix":
                        made = suites.matrix(suites.checkout(), given.strict_msgpack)
                    case _:
                        made = suites.turns(suites.released())
            except subprocess.TimeoutExpired:
                left_out.append(f"{part} (the budget ended)")
                continue
            for each in made:
                print(each.line(), *(f"  skipped by itself: {s}" for s in each.skipped), *(f"  FAILED: {f}" for f in each.failed), sep="\n", flush=True)
            rounds += made
    print(f"asked {sum(r.asked for r in rounds)}, passed {sum(r.passed for r in rounds)}, skipped by themselves {sum(len(r.skipped) for r in rounds)}, parts left out: {', '.join(left_out) or 'none'}")
    return 1 if any(r.failed for r in rounds) or not rounds else 0


if __name__ == "__main__":
    sys.exit(main())
