"""Mutation score: changes one thing of the package at a time and asks whether a test notices.

    python bench/mutate.py                                     # 150 mutants of engine/, stores/, workers/, core/, seed 1
    python bench/mutate.py --only engine/calls --count 0       # every mutant of one folder
    python bench/mutate.py --again                             # the survivors of the last run once more, with the tests of today

Every draw is printed with its seed. The tests run once over a copy of the tree in which each place to be changed, and each
function around one, carries a mark that says for each test whether it comes there; this map is kept for the draw, by the digest
of each test file (``--map`` makes it and nothing else). A mutant is shown for at most ``--seconds`` (of the processor) to the
tests that enter its function: those that reach its very place before the others, the quickest first, to the first failure, which
must happen twice and not without the mutant. One process has imported and collected all; each showing is a fork of it in which
the function is exchanged. What runs at import, or survives though it ran at import too, is shown in a process that imports
it anew. The changed file stands in a copy of the tree, never in the tree itself, for the processes that tests start.

A mutant is killed by a failing test, by a test that hangs, or by an import that fails. What no caller could see is left
alone: prose (texts with a blank in them, hints), ``__all__``, assertions, and whether the garbage collector tracks a value.

Survivors that are no fault stand in bench/no_fault.toml with the reason. Results are kept below ``--state`` and a run goes on
where it stopped. Exit 1 below ``--at-least`` per cent.
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import ast
import concurrent.futures
import contextlib
import hashlib
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this is run as a file, and its neighbours are imported as pytest imports them

import hypothesis  # noqa: F401 - at hand for every fork
import pytest
import pytest_asyncio  # noqa: F401
import xdist  # noqa: F401
from bench.entered import PATIENCE, Answer, Request, end, watched
from bench.mutations import MARKS, Mutant, changed, marked, mutants

SOURCE = pathlib.Path("src/holdfast")
FOLDERS = ("engine", "stores", "workers", "core")
NO_FAULT = ROOT / "bench" / "no_fault.toml"
NOT_SHOWN = ("tests/docs", "tests/examples", "tests/integrations", "tests/typed", "tests/cli", "tests/simulation", "tests/damage", "tests/postgres")
"""Tests of pages, tools and whole commands."""

AT_ONCE = 40  # test files of one round of the map
ROUNDS = (8, 60)  # tests of the first rounds that a mutant meets; most do not outlive the first


# -- which tests reach what --------------------------------------------------------------------------


class Reach:
    """The map of a draw: the tests with their durations, and for each function and each place to be changed the tests that come there."""

    def __init__(self, folder: pathlib.Path, chosen: Sequence[Mutant]) -> None:
        self._folder = folder
        self._chosen = chosen
        self.durations: dict[str, float] = {}
        self._reached: dict[str, set[str]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def stale(self) -> list[str]:
        """Test files without a map, or with one of another text."""
        files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py") if len(p.relative_to(ROOT).parts) > 2)
        return [f for f in files if not f.startswith(NOT_SHOWN) and self._kept(f) is None]

    def _file(self, test_file: str) -> pathlib.Path:
        return self._folder / (test_file.replace("/", "+") + ".json")

    def _kept(self, test_file: str) -> dict[str, Any] | None:
        try:
            kept: dict[str, Any] = json.loads(self._file(test_file).read_text())
        except (OSError, ValueError):
            return None
        return kept if kept["digest"] == digest_of(ROOT / test_file) else None

    def make(self, tree: pathlib.Path, files: Sequence[str], workers: int) -> None:
        """Run these test files over a copy of the tree with marks, and keep what they reach. What fails for the marks runs once more without."""
        plain = {path: (tree / path).read_text() for path in {m.path for m in self._chosen}}
        for start in range(0, len(files), AT_ONCE):
            some = files[start : start + AT_ONCE]
            try:
                (tree / "src" / "holdfast_marks.py").write_text(MARKS)
                for path, text in plain.items():
                    (tree / path).write_text(marked(text, [m for m in self._chosen if m.path == path]))
                tests, reached = _run(tree, some, workers)
            finally:
                for path, text in plain.items():
                    (tree / path).write_text(text)
            failed = [test for test, (_, passed) in tests.items() if not passed]
            if failed:
                (tree / "src" / "holdfast_marks.py").write_text("seen = set()\n")
                tests.update(_run(tree, failed, 0)[0])
                failed = [test for test in failed if not tests[test][1]]
                print(f"not passed without a mutant, so left out: {', '.join(failed) or 'none'}", flush=True)
            (tree / "src" / "holdfast_marks.py").unlink()
            for file in some:
                own = {test: took for test, (took, passed) in tests.items() if passed and test.partition("::")[0] == file}
                where = {test: marks for test, marks in reached.items() if test in own or not test}
                self._file(file).write_text(json.dumps({"digest": digest_of(ROOT / file), "tests": own, "reached": where}))
            print(f"map: {start + len(some)} of {len(files)} files, {len(tests)} tests in these", flush=True)

    def load(self) -> None:
        for kept_file in self._folder.glob("*.json"):
            kept = json.loads(kept_file.read_text())
            self.durations.update(kept["tests"])
            for test, places in kept["reached"].items():
                for place in places:
                    self._reached.setdefault(place, set()).add(test)

    def sound(self) -> list[str]:
        """A few quick tests of many files."""
        there = set(self.files())
        return self._in_turn({t for t in self.durations if t.partition("::")[0] in there})[:40]

    def files(self) -> list[str]:
        """The test files that come to any of the places."""
        found = {test.partition("::")[0] for tests in self._reached.values() for test in tests if test}
        return sorted(f for f in found if (ROOT / f).exists())

    def at_import(self, mutant: Mutant) -> bool:
        """Whether it may be seen only where the package is imported anew."""
        return not mutant.within or "" in self._reached.get(f"{mutant.path}::{mutant.within}", ())

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests to show it to: those that reach its place, then those that enter its function; the quick ones first, of each file in turn."""
        first = self._reached.get(mutant.name, set()) - {""}
        if mutant.within:
            then = self._reached.get(f"{mutant.path}::{mutant.within}", set()) - {""}
        else:
            then = {t for place, tests in self._reached.items() if place.startswith(f"{mutant.path}::") for t in tests if t}
        return [*self._in_turn(first), *self._in_turn(then - first)]

    def _in_turn(self, tests: set[str]) -> list[str]:
        by_file: dict[str, list[str]] = {}
        for test in sorted(tests, key=lambda t: (self.durations.get(t, 9.0), t)):
            by_file.setdefault(test.partition("::")[0], []).append(test)
        ranked = [(place, self.durations.get(test, 9.0), test) for own in by_file.values() for place, test in enumerate(own)]
        return [test for _, _, test in sorted(ranked, key=lambda r: (r[1] > 2, r[0] // 3, r[1], r[2]))]


def _run(tree: pathlib.Path, what: Sequence[str], workers: int) -> tuple[dict[str, tuple[float, bool]], dict[str, list[str]]]:
    """Tests with what each took and whether it passed, and the marks that each came to ("" for what ran before any test)."""
    tests: dict[str, tuple[float, bool]] = {}
    reached: dict[str, set[str]] = {}
    with tempfile.TemporaryDirectory() as out:
        listed = pathlib.Path(out, "what")
        listed.write_text("\n".join(what))
        run = pytest_in(tree, ["-n", str(workers), "--dist", "worksteal", f"@{listed}"], {"HOLDFAST_ENTERED": out})
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(3_600)
        end(run.pid)
        run.wait()
        for told in pathlib.Path(out).glob("*.tests"):
            for line in told.read_text().splitlines():
                one = json.loads(line)
                if one["test"]:
                    tests[one["test"]] = one["took"], one["passed"]
                reached.setdefault(one["test"], set()).update(one["marks"])
        for told in pathlib.Path(out).glob("*.marks"):
            for line in told.read_text().splitlines():
                test, _, place = line.partition("\t")
                reached.setdefault(test, set()).add(place)
    return tests, {test: sorted(places) for test, places in reached.items()}


def digest_of(path: pathlib.Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


# -- showing a mutant to tests ------------------------------------------------------------------------


def copied(into: pathlib.Path) -> pathlib.Path:
    """A copy of the tree as it stands, beside a link to what tests read from outside it."""
    tree = into / "tree"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    if (ROOT.parent / "shared").exists():
        (into / "shared").symlink_to(ROOT.parent / "shared")
    return tree


def pytest_in(tree: pathlib.Path, options: Sequence[str], more: dict[str, str], keep: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Pytest in a session of its own, so that it can be ended with all that it started."""
    env = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "bench.entered", "-p", "no:cacheprovider", *options]
    nowhere = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=tree, env=env, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True, pass_fds=keep)


class Shown(NamedTuple):
    killed: bool
    by: str
    """The test that failed; for a survivor how many tests it met."""
    seconds: float
    """Of the processor: on a busy machine the clock says little."""


class Lane:
    """A copy of the tree and a process that has imported and collected all tests that come to any place of the draw."""

    def __init__(self, reach: Reach, tree: pathlib.Path) -> None:
        self._reach = reach
        self.tree = tree
        here, there = socket.socketpair()
        listed = tree.parent / "files"
        listed.write_text("\n".join(reach.files()))
        options = ["-n0", f"--basetemp={tree.parent / 'temp'}", f"@{listed}"]
        self._process = pytest_in(tree, options, {"HOLDFAST_SHOWS": str(there.fileno())}, [there.fileno()])
        there.close()
        self._lines = here.makefile("rw")

    def close(self) -> None:
        self._lines.close()
        end(self._process.pid)
        self._process.wait()

    def run(self, mutant: Mutant | None, tests: Sequence[str], limit: float, *, anew: bool) -> Answer:
        """To the first failure: in a fork of that process, or in one that imports everything anew."""
        with tempfile.TemporaryDirectory() as folder:
            durations = [self._reach.durations.get(test, 1.0) for test in tests]
            request = Request(mutant, list(tests), str(pathlib.Path(folder, "now.json")), limit, PATIENCE * limit, durations)
            if anew:
                return _anew(self.tree, request)
            self._lines.write(json.dumps(request) + "\n")
            self._lines.flush()
            return Answer(*json.loads(self._lines.readline()))

    def show(self, mutant: Mutant, limit: float) -> Shown:
        """Write it into the copy, show it to its tests, and put back what stood there."""
        tests = [t for t in self._reach.tests(mutant) if (self.tree / t.partition("::")[0]).exists()]
        if not tests:
            return Shown(False, "no test enters it", 0.0)
        target = self.tree / mutant.path
        source = target.read_text()
        text = ast.unparse(changed(mutant, source))
        try:
            target.write_text(text)
            shown = None if not mutant.within else self._show(mutant, tests, limit, text, source, anew=False)
            if shown is None or (not shown.killed and self._reach.at_import(mutant)):
                shown = self._show(mutant, tests, limit, text, source, anew=True)
            assert shown is not None
            return shown
        finally:
            target.write_text(source)

    def _show(self, mutant: Mutant, tests: Sequence[str], limit: float, text: str, source: str, *, anew: bool) -> Shown | None:
        """None where it does not fit into a running process."""
        spent, met = 0.0, 0
        for some in (tests[: ROUNDS[0]], tests[ROUNDS[0] : ROUNDS[1]], tests[ROUNDS[1] :]):
            while some and spent < limit - 1:
                ended = self.run(mutant, some, limit - spent, anew=anew)
                if not ended.fits:
                    return None
                spent += ended.seconds
                if ended.failed is None:
                    met += len(some) if ended.code == 0 else 0
                    if ended.code not in (0, None, 5) and self._without(mutant, some, source, text, anew).code == 0:
                        return Shown(True, f"pytest ends with {ended.code}", spent)
                    break
                again = self.run(mutant, [ended.failed], limit, anew=anew)
                spent += again.seconds
                if again.code != 0 and self._without(mutant, [ended.failed], source, text, anew).code == 0:
                    return Shown(True, ended.failed, spent)
                some = some[some.index(ended.failed) + 1 :] if ended.failed in some else []  # it fails now and then, with or without a mutant
        return Shown(False, f"met {met} of {len(tests)} tests", spent)

    def _without(self, mutant: Mutant, tests: Sequence[str], source: str, text: str, anew: bool) -> Answer:
        """The same tests where there is no mutant."""
        target = self.tree / mutant.path
        target.write_text(source)
        try:
            return self.run(None, tests, 300, anew=anew)
        finally:
            target.write_text(text)


def _anew(tree: pathlib.Path, request: Request) -> Answer:
    """Runs them in a fork of this process, which has pytest at hand and nothing of the package."""
    listed = pathlib.Path(request.now).with_name("tests")
    listed.write_text("\n".join(request.tests))
    child = os.fork()
    if child == 0:
        _be_pytest(tree, listed, request)
    return watched(child, request)


def _be_pytest(tree: pathlib.Path, listed: pathlib.Path, request: Request) -> NoReturn:
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(request.seconds) + 1, int(request.seconds) + 5))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.chdir(tree)
        os.environ.update(PYTHONPATH=f"{tree / 'src'}:{tree}", PYTHONDONTWRITEBYTECODE="1", HOLDFAST_NOW=request.now)
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(tree / "src"), str(tree)]
        code = int(pytest.main(["-q", "-n0", "-x", "-p", "bench.entered", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", f"@{listed}"]))
    except BaseException:  # a mutant may break anything, the test runner included
        code = 3
    finally:
        os._exit(code)


# -- the command -------------------------------------------------------------------------------------


def no_faults() -> dict[tuple[str, str, str, str], str]:
    """Survivors that are no fault, by file, function, change and the text of its line, with the reason."""
    if not NO_FAULT.exists():
        return {}
    listed = tomllib.loads(NO_FAULT.read_text()).get("mutant", [])
    return {(one["path"], one["within"], one["what"], one["text"]): one["why"] for one in listed}


def drawn(only: Sequence[str], count: int, seed: int) -> tuple[list[Mutant], int]:
    places = [SOURCE / o if (ROOT / SOURCE / o).exists() else pathlib.Path(o) for o in only]
    files = sorted({str(p.relative_to(ROOT)) for place in places for p in ([ROOT / place] if (ROOT / place).is_file() else (ROOT / place).rglob("*.py"))})
    every = [m for file in files for m in mutants(ROOT, file)]
    return (every if not count or count >= len(every) else random.Random(seed).sample(every, count)), len(every)


class Bench(NamedTuple):
    """What a worker process has at hand."""

    lane: Lane
    until: float
    seconds: float


_bench: list[Bench] = []


def _settle(lanes: Sequence[Lane], numbers: multiprocessing.Queue[int], until: float, seconds: float) -> None:
    _bench.append(Bench(lanes[numbers.get()], until, seconds))


def _one(mutant: Mutant) -> tuple[Mutant, Shown] | None:
    """None once the budget is used up."""
    lane, until, seconds = _bench[0]
    return None if time.monotonic() > until else (mutant, lane.show(mutant, seconds))


def _sound(lane: Lane, tests: list[str], anew: bool) -> bool:
    """Whether tests pass where there is no mutant. A few may fail under load: they are named, and no kill counts by one that fails without it."""
    for _ in range(6):
        ended = lane.run(None, tests, 300, anew=anew)
        if ended.code == 0 or ended.failed is None:
            return ended.code == 0
        print(f"fails without a mutant, here and now: {ended.failed}", flush=True)
        tests = [test for test in tests if test != ended.failed]
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", action="append", metavar="PATH", help="a folder or file below src/holdfast; may be repeated")
    parser.add_argument("--count", type=int, default=150, help="how many mutants; 0 means all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=90.0, help="how long each mutant is shown to tests")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="stop after this time; the next run goes on")
    parser.add_argument("--at-once", type=int, default=1, choices=(1, 2), help="mutants side by side")
    parser.add_argument("--at-least", type=float, default=90.0, help="per cent")
    parser.add_argument("--map", action="store_true", help="only find out which tests reach what")
    parser.add_argument("--stale", action="store_true", help="use the map as it is, also where test files have changed since")
    parser.add_argument("--again", action="store_true", help="show the survivors of this draw once more")
    parser.add_argument("--state", type=pathlib.Path, default=ROOT / "bench" / "results" / "mutants", help="where the map and the results are kept")
    parser.add_argument("--json", action="store_true", help="print one object in place of lines")
    options = parser.parse_args()
    only = options.only or list(FOLDERS)
    until = time.monotonic() + 60 * options.budget if options.budget else float("inf")
    chosen, possible = drawn(only, options.count, options.seed)
    say = (lambda *_: None) if options.json else (lambda *words: print(*words, flush=True))
    say(f"{len(chosen)} mutants of {possible} in {', '.join(only)}, seed {options.seed}, {options.seconds:.0f} s each")
    label = hashlib.sha256(json.dumps([[m.name, m.what] for m in chosen]).encode()).hexdigest()[:10]
    results = options.state / f"seed-{options.seed}-{label}.json"
    reach = Reach(options.state / f"map-{label}", chosen)
    with contextlib.ExitStack() as stack:
        trees = [copied(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-mutants-")))) for _ in range(options.at_once)]
        if not options.stale and (files := reach.stale()):
            say(f"finding out what the tests of {len(files)} files reach")
            reach.make(trees[0], files, options.at_once)
        if options.map:
            return 0
        reach.load()
        done: dict[str, list[Any]] = json.loads(results.read_text()) if results.exists() else {}
        if options.again:
            done = {name: kept for name, kept in done.items() if kept[0]}
        waiting = sorted((m for m in chosen if m.name not in done), key=reach.at_import)  # what takes long comes last
        lanes = [Lane(reach, tree) for tree in trees]
        for lane in lanes:
            stack.callback(lane.close)
        if not all(_sound(lane, reach.sound(), anew) for lane in lanes for anew in (False, True)):
            print("the tests fail without any mutant: make the map anew (remove it from --state), or run pytest")
            return 2
        fork = multiprocessing.get_context("fork")
        numbers: multiprocessing.Queue[int] = fork.Queue()
        for number in range(len(lanes)):
            numbers.put(number)
        given = (lanes, numbers, until, options.seconds)
        with concurrent.futures.ProcessPoolExecutor(options.at_once, mp_context=fork, initializer=_settle, initargs=given) as pool:
            for future in concurrent.futures.as_completed([pool.submit(_one, m) for m in waiting]):
                if (answer := future.result()) is None:
                    continue
                mutant, shown = answer
                done[mutant.name] = [shown.killed, shown.by, round(shown.seconds, 1)]
                results.parent.mkdir(parents=True, exist_ok=True)
                results.write_text(json.dumps(done, indent=1))
                say(f"{len(done)}/{len(chosen)} {'killed' if shown.killed else 'SURVIVED'} {shown.seconds:.0f} s {mutant} ({shown.by})")
    return told(chosen, done, options, possible)


def text_of(mutant: Mutant) -> str:
    return (ROOT / mutant.path).read_text().splitlines()[mutant.line - 1].strip() if mutant.line else ""


def told(chosen: Sequence[Mutant], done: dict[str, list[Any]], options: argparse.Namespace, possible: int) -> int:
    """Print the summary; 0 if enough of what was shown was killed."""
    reasons = no_faults()
    rows: dict[str, list[int]] = {}
    survivors = []
    excused = []
    for mutant in chosen:
        row = rows.setdefault(mutant.path.split("/")[2], [0, 0, 0, 0])
        row[0] += 1
        if (kept := done.get(mutant.name)) is None:
            continue
        row[1] += 1
        if kept[0]:
            row[2] += 1
        elif (why := reasons.get((mutant.path, mutant.within, mutant.what, text_of(mutant)))) is not None:
            row[3] += 1
            excused.append({"mutant": str(mutant), "why": why})
        else:
            survivors.append({"mutant": str(mutant), "shown": kept[1]})
    asked, shown, killed, no_fault = (sum(r[i] for r in rows.values()) for i in range(4))
    judged = shown - no_fault
    percent = 100 * killed / judged if judged else 0.0
    summary = {
        "seed": options.seed, "possible": possible, "asked": asked, "done": shown, "killed": killed, "survived": len(survivors),
        "no_fault": no_fault, "skipped": asked - shown, "percent": round(percent, 1), "survivors": survivors, "excused": excused,
    }
    if options.json:
        print(json.dumps(summary, indent=2, ensure_ascii=False))
    else:
        for one in survivors:
            print(f"survived: {one['mutant']} ({one['shown']})")
        for one in excused:
            print(f"no fault: {one['mutant']}: {one['why']}")
        print(f"\n{'folder':<12}{'asked':>7}{'done':>7}{'killed':>8}{'no fault':>10}{'score':>8}")
        for folder, (a, d, k, n) in sorted(rows.items()):
            print(f"{folder:<12}{a:>7}{d:>7}{k:>8}{n:>10}{k / (d - n) if d > n else 0:>8.0%}")
        print(f"asked {asked}, done {shown}, killed {killed}, survived {len(survivors)}, no fault {no_fault}, skipped {asked - shown}: {percent:.1f} % (seed {options.seed})")
    return 0 if shown == asked and percent >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
