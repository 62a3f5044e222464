"""Mutation score: changes one thing of the package at a time and asks whether a test notices.

    python bench/mutate.py                                     # 150 mutants of engine/, stores/, workers/, core/, seed 1
    python bench/mutate.py --only engine/calls --count 0       # every mutant of one folder
    python bench/mutate.py --again                             # the survivors of the last run once more, with the tests of today

Every draw is printed with its seed. The tests run once under coverage, which says for each test which lines of which function
it runs; this map is kept by the digest of each test file, so that it is made once (``--map`` makes it and nothing else). A
mutant is written into a copy of the tree, never into the tree itself, and is shown for at most ``--seconds`` (of the processor) to the tests that
enter its function: those that run its very line before the others, the quickest first, to the first failure, which must happen
twice. A mutant is killed by a failing test, by a test that hangs, or by an import that fails. What no caller could see is left
alone: prose (texts with a blank in them, hints), ``__all__``, assertions, and whether the garbage collector tracks a value.

Survivors that are no fault stand in bench/no_fault.toml with the reason. Results are kept below ``--state`` and a run goes on
where it stopped. Exit 1 below ``--at-least`` per cent.
"""

from __future__ import annotations

import argparse
import ast
import concurrent.futures
import contextlib
import copy
import hashlib
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import hypothesis  # noqa: F401 - at hand for every fork
import pytest
import pytest_asyncio  # noqa: F401
import xdist  # noqa: F401

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE = pathlib.Path("src/holdfast")
FOLDERS = ("engine", "stores", "workers", "core")
NO_FAULT = ROOT / "bench" / "no_fault.toml"
UNSEEN = ("hint", "gc")  # keywords whose values no caller can tell apart
NOT_SHOWN = ("tests/docs", "tests/examples", "tests/integrations", "tests/typed", "tests/cli", "tests/simulation", "tests/damage", "tests/postgres")  # fmt: skip
"""Tests of pages, tools and whole commands: slow, and processes of their own, in which nobody sees what they enter."""

AT_ONCE = 4  # test files of one round of the map
ROUNDS = (8, 60)  # tests of the first rounds that a mutant meets; most do not outlive the first
HANGS = 20.0  # seconds that a test may take beyond five times what it took without a mutant
PATIENCE = 4  # how much longer than by the processor anything may take by the clock

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
DROPPED = (ast.AugAssign, ast.Raise, ast.Delete, ast.Continue, ast.Break)


# -- what can be changed -----------------------------------------------------------------------------


class Mutant(NamedTuple):
    """One change: the file, the function (qualified; "" for what runs at import), the how-manieth change of that function, and what it is."""

    path: str
    within: str
    number: int
    line: int
    what: str

    @property
    def name(self) -> str:
        return f"{self.path}::{self.within or '(import)'}#{self.number}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.within or '(import)'}#{self.number}: {self.what}"


class Spot(NamedTuple):
    """A place that can be changed: a field of a node, or an item of a list in it, and what to put there."""

    node: ast.AST
    field: str
    index: int | None
    new: ast.AST
    line: int
    what: str
    within: str


def spots(tree: ast.Module) -> Iterator[Spot]:
    """Every change of a module, in the order of its text."""
    yield from _walk(tree, 0, "", "")


def _walk(node: ast.AST, line: int, within: str, scope: str) -> Iterator[Spot]:
    line = getattr(node, "lineno", line)
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        scope = f"{scope}.{node.name}" if scope else node.name
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params") or (isinstance(node, ast.keyword) and node.arg in UNSEEN):
            continue
        inside = within
        if not within and field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = scope
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id.startswith("__") for t in node.targets):
            continue  # __all__ and __slots__ change nothing that a caller sees
        if isinstance(node, ast.JoinedStr | ast.Assert):
            continue  # prose, and what must hold anyway
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                for new, what in _changes(child):
                    yield Spot(node, field, index, new, getattr(child, "lineno", line), what, inside)
                yield from _walk(child, line, inside, scope)


def _changes(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    if (swap := SWAPS.get(type(node))) is not None:
        yield swap(), f"{type(node).__name__} -> {swap.__name__}"
    match node:
        case ast.Constant(value=bool() as old):
            yield ast.Constant(not old), f"{old} -> {not old}"
        case ast.Constant(value=int() as old):
            yield ast.Constant(old + 1), f"{old} -> {old + 1}"
        case ast.Constant(value=str() as old) if " " not in old:
            yield ast.Constant(old + "X"), f"{old!r} -> {old + 'X'!r}"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand, f"not dropped: {ast.unparse(node)}"
        case ast.If(test=test):
            yield _with(node, test=_negated(test)), f"if negated: {ast.unparse(test)}"
        case ast.IfExp(test=test):
            yield _with(node, test=_negated(test)), f"if negated: {ast.unparse(test)}"
        case ast.comprehension(ifs=[test, *rest]):
            yield _with(node, ifs=rest), f"filter dropped: {ast.unparse(test)}"
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None)), f"returns None: {ast.unparse(value)}"
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call()) as value):
            yield ast.Pass(), f"dropped: {ast.unparse(value)}"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass(), f"dropped: {ast.unparse(node)}"
    if isinstance(node, DROPPED):
        yield ast.Pass(), f"dropped: {ast.unparse(node)}"


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _negated(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), test)


def mutants(path: str) -> list[Mutant]:
    """All of a file, in the order of its text."""
    counts: dict[str, int] = {}
    found = []
    for spot in spots(ast.parse((ROOT / path).read_text())):
        number = counts[spot.within] = counts.get(spot.within, -1) + 1
        found.append(Mutant(path, spot.within, number, spot.line, spot.what))
    return found


def changed(mutant: Mutant, text: str) -> str:
    """The text of its file with one place changed."""
    tree = ast.parse(text)
    spot = next(itertools.islice((s for s in spots(tree) if s.within == mutant.within), mutant.number, None))
    if spot.index is None:
        setattr(spot.node, spot.field, spot.new)
    else:
        getattr(spot.node, spot.field)[spot.index] = spot.new
    return ast.unparse(ast.fix_missing_locations(tree))


def functions(path: pathlib.Path) -> dict[str, tuple[range, str]]:
    """The lines of each outermost function, and a digest of its text."""
    text = path.read_text()
    lines = text.splitlines()
    found: dict[str, tuple[range, str]] = {}

    def look(node: ast.AST, scope: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                rows = range(child.body[0].lineno, (child.end_lineno or child.lineno) + 1)
                digest = hashlib.sha256("\n".join(lines[rows.start - 1 : rows.stop - 1]).encode()).hexdigest()[:12]
                found[f"{scope}{child.name}"] = rows, digest
            elif isinstance(child, ast.ClassDef):
                look(child, f"{scope}{child.name}.")
            else:
                look(child, scope)

    look(ast.parse(text), "")
    return found


# -- which tests enter what --------------------------------------------------------------------------


class Reach:
    """The map: for each test file its tests with their durations, and for each function the lines of it that each test runs."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self.durations: dict[str, float] = {}
        self._entered: dict[tuple[str, str], dict[str, tuple[str, int]]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def stale(self) -> list[str]:
        """Test files without a map, then those with one of another text."""
        files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").rglob("test_*.py") if len(p.relative_to(ROOT).parts) > 2)
        found = [f for f in files if not f.startswith(NOT_SHOWN) and self._kept(f) is None]
        return sorted(found, key=lambda f: self._file(f).exists())  # those without any first

    def _file(self, test_file: str) -> pathlib.Path:
        return self._folder / (test_file.replace("/", "+") + ".json")

    def _kept(self, test_file: str) -> dict[str, Any] | None:
        try:
            kept: dict[str, Any] = json.loads(self._file(test_file).read_text())
        except (OSError, ValueError):
            return None
        return kept if kept["digest"] == digest_of(ROOT / test_file) else None

    def make(self, tree: pathlib.Path, files: Sequence[str], workers: int) -> None:
        """Run these test files in a copy of the tree, and keep what they enter."""
        for start in range(0, len(files), AT_ONCE):
            some = files[start : start + AT_ONCE]
            with tempfile.TemporaryDirectory() as out:
                run = pytest_in(tree, ["-n", str(workers), "--dist", "worksteal", *some], {"HOLDFAST_ENTERED": out})
                with contextlib.suppress(subprocess.TimeoutExpired):
                    run.wait(1_800)
                end(run)
                parts = [json.loads(p.read_text()) for p in pathlib.Path(out).glob("*.json")]
            self._keep(tree, some, parts)
            print(f"map: {start + len(some)} of {len(files)} files, {sum(len(p['tests']) for p in parts)} tests in these", flush=True)

    def _keep(self, tree: pathlib.Path, files: Sequence[str], parts: Sequence[dict[str, Any]]) -> None:
        shapes: dict[str, dict[str, tuple[range, str]]] = {}
        for file in files:
            tests: dict[str, float] = {}
            entered: dict[str, dict[str, list[Any]]] = {}
            failed = []
            for part in parts:
                for test, (took, passed) in part["tests"].items():
                    if test.partition("::")[0] != file:
                        continue
                    if not passed:
                        failed.append(test)
                        continue
                    tests[test] = round(took, 4)
                    for path, mask in part["lines"].get(test, {}).items():
                        if path not in shapes:
                            shapes[path] = functions(tree / path)
                        bits = int(mask, 16)
                        for name, (rows, digest) in shapes[path].items():
                            if own := bits >> rows.start & ((1 << len(rows)) - 1):
                                entered.setdefault(f"{path}::{name}", {}).setdefault(digest, []).append([test, f"{own:x}"])
            if failed:
                print(f"not passed without a mutant, so left out: {', '.join(failed[:5])}{' …' if len(failed) > 5 else ''}", flush=True)
            self._file(file).write_text(json.dumps({"digest": digest_of(ROOT / file), "tests": tests, "entered": entered}))

    def load(self) -> None:
        for kept_file in self._folder.glob("*.json"):
            kept = json.loads(kept_file.read_text())
            self.durations.update(kept["tests"])
            for place, by_digest in kept["entered"].items():
                path, _, name = place.partition("::")
                found = self._entered.setdefault((path, name), {})
                for digest, tests in by_digest.items():
                    for test, mask in tests:
                        found[test] = digest, int(mask, 16)

    def sound(self) -> list[str]:
        """A few quick tests of many files."""
        return self._in_turn({t for t in self.durations if (ROOT / t.partition("::")[0]).exists()})[:40]

    def tests(self, mutant: Mutant, tree: pathlib.Path) -> list[str]:
        """The tests to show it to: those that run its line, then those that enter its function; the quick ones first, of each file in turn."""
        first: set[str] = set()
        then: set[str] = set()
        if mutant.within:
            rows, digest = functions(tree / mutant.path)[mutant.within]
            for test, (seen, mask) in self._entered.get((mutant.path, mutant.within), {}).items():
                (first if seen == digest and mask >> (mutant.line - rows.start) & 1 else then).add(test)
        else:
            for (path, _), tests in self._entered.items():
                if path == mutant.path:
                    then.update(tests)
        return [*self._in_turn(first), *self._in_turn(then - first)]

    def _in_turn(self, tests: set[str]) -> list[str]:
        by_file: dict[str, list[str]] = {}
        for test in sorted(tests, key=lambda t: (self.durations.get(t, 9.0), t)):
            by_file.setdefault(test.partition("::")[0], []).append(test)
        ranked = [(place, self.durations.get(test, 9.0), test) for own in by_file.values() for place, test in enumerate(own)]
        return [test for _, _, test in sorted(ranked, key=lambda r: (r[1] > 2, r[0] // 3, r[1], r[2]))]


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


def pytest_in(tree: pathlib.Path, options: Sequence[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
    """Pytest in a session of its own, so that it can be ended with all that it started."""
    env = {**os.environ, "PYTHONPATH": f"{tree / 'src'}:{tree}", "PYTHONDONTWRITEBYTECODE": "1", **more}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "bench.entered", "-p", "no:cacheprovider", *options]
    return subprocess.Popen(command, cwd=tree, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def end(run: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()


class Shown(NamedTuple):
    killed: bool
    by: str
    """The test that failed; for a survivor how many tests it met."""
    seconds: float
    """Of the processor: on a busy machine the clock says little."""


class Ended(NamedTuple):
    """How pytest ended in a child: its exit code (None where it was ended), the test that failed or hung, and what it took."""

    code: int | None
    failed: str | None
    seconds: float


def show(mutant: Mutant, reach: Reach, tree: pathlib.Path, limit: float) -> Shown:
    """Write it into the copy, show it to its tests, and put back what stood there."""
    tests = [t for t in reach.tests(mutant, tree) if (tree / t.partition("::")[0]).exists()]
    if not tests:
        return Shown(False, "no test enters it", 0.0)
    target = tree / mutant.path
    source = target.read_text()
    target.write_text(changed(mutant, source))
    spent, met = 0.0, 0
    try:
        for some in (tests[: ROUNDS[0]], tests[ROUNDS[0] : ROUNDS[1]], tests[ROUNDS[1] :]):
            while some and spent < limit - 1:
                ended = run_tests(tree, some, limit - spent, reach)
                spent += ended.seconds
                if ended.failed is None:
                    met += len(some) if ended.code == 0 else 0
                    if ended.code not in (0, None, 5):
                        return Shown(True, f"pytest ends with {ended.code}", spent)
                    break
                again = run_tests(tree, [ended.failed], limit, reach)
                spent += again.seconds
                if again.code != 0:
                    return Shown(True, ended.failed, spent)
                some = some[some.index(ended.failed) + 1 :] if ended.failed in some else []  # it fails now and then, with or without a mutant
        return Shown(False, f"met {met} of {len(tests)} tests", spent)
    finally:
        target.write_text(source)


def run_tests(tree: pathlib.Path, tests: Sequence[str], limit: float, reach: Reach) -> Ended:
    """Runs them in a fork of this process, which has pytest at hand and nothing of the package; to the first failure."""
    with tempfile.TemporaryDirectory() as folder:
        listed, now = pathlib.Path(folder, "tests"), pathlib.Path(folder, "now.json")
        listed.write_text("\n".join(tests))
        child = os.fork()
        if child == 0:
            _be_pytest(tree, listed, now, limit)
        began, code = time.monotonic(), None
        usage = None
        while usage is None:
            pid, status, used = os.wait4(child, os.WNOHANG)
            if pid:
                usage, code = used, os.waitstatus_to_exitcode(status)
                break
            time.sleep(0.1)
            failed = None
            with contextlib.suppress(OSError, ValueError):
                test, since = json.loads(now.read_text())
                failed = test if time.time() - since > PATIENCE * (HANGS + 5 * reach.durations.get(test, 1.0)) else None
            if failed is not None or time.monotonic() - began > PATIENCE * limit:
                _end(child)
                _, _, used = os.wait4(child, 0)
                return Ended(None, failed, used.ru_utime + used.ru_stime)
        _end(child)
        told = now.with_suffix(".failed")
        failed = told.read_text().splitlines()[0] if told.exists() else None
        return Ended(None if code < 0 else code, failed, usage.ru_utime + usage.ru_stime)


def _be_pytest(tree: pathlib.Path, listed: pathlib.Path, now: pathlib.Path, limit: float) -> NoReturn:
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 5))
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        os.chdir(tree)
        os.environ.update(PYTHONPATH=f"{tree / 'src'}:{tree}", PYTHONDONTWRITEBYTECODE="1", HOLDFAST_NOW=str(now))
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(tree / "src"), str(tree)]
        code = int(pytest.main(["-q", "-n0", "-x", "-p", "bench.entered", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", f"@{listed}"]))
    except BaseException:  # a mutant may break anything, the test runner included
        code = 3
    finally:
        os._exit(code)


def _end(child: int) -> None:
    """Ends a child with all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


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
    every = [m for file in files for m in mutants(file)]
    return (every if not count or count >= len(every) else random.Random(seed).sample(every, count)), len(every)


class Bench(NamedTuple):
    """What a worker process has at hand."""

    reach: Reach
    tree: pathlib.Path
    until: float
    seconds: float


_bench: list[Bench] = []


def _settle(reach: Reach, places: multiprocessing.Queue[pathlib.Path], until: float, seconds: float) -> None:
    _bench.append(Bench(reach, places.get(), until, seconds))


def _one(mutant: Mutant) -> tuple[Mutant, Shown] | None:
    """None once the budget is used up."""
    reach, tree, until, seconds = _bench[0]
    return None if time.monotonic() > until else (mutant, show(mutant, reach, tree, seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", action="append", metavar="PATH", help="a folder or file below src/holdfast; may be repeated")
    parser.add_argument("--count", type=int, default=150, help="how many mutants; 0 means all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=90.0, help="how long each mutant is shown to tests")
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="stop after this time; the next run goes on")
    parser.add_argument("--at-once", type=int, default=1, choices=(1, 2), help="mutants side by side")
    parser.add_argument("--at-least", type=float, default=90.0, help="per cent")
    parser.add_argument("--map", action="store_true", help="only find out which tests enter what")
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
    label = hashlib.sha256(json.dumps([sorted(only), options.count, options.seed]).encode()).hexdigest()[:10]
    results = options.state / f"seed-{options.seed}-{label}.json"
    reach = Reach(options.state / "map")
    with contextlib.ExitStack() as stack:
        trees = [copied(pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-mutants-")))) for _ in range(options.at_once)]
        if not options.stale and (files := reach.stale()):
            say(f"finding out what the tests of {len(files)} files enter")
            reach.make(trees[0], files, options.at_once)
        if options.map:
            return 0
        reach.load()
        done: dict[str, list[Any]] = json.loads(results.read_text()) if results.exists() else {}
        if options.again:
            done = {name: kept for name, kept in done.items() if kept[0]}
        waiting = [m for m in chosen if m.name not in done]
        if run_tests(trees[0], reach.sound(), 300, reach).code != 0:
            print("the tests fail without any mutant: make the map anew (remove it from --state), or run pytest")
            return 2
        places: multiprocessing.Queue[pathlib.Path] = multiprocessing.get_context("fork").Queue()
        for tree in trees:
            places.put(tree)
        given = (reach, places, until, options.seconds)
        fork = multiprocessing.get_context("fork")
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
    }  # fmt: skip
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
