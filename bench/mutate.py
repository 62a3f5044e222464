"""Mutation score of the core: changes one thing of it at a time and asks whether tests/core notices.

    python bench/mutate.py                          # 300 mutants of the whole core, seed 1
    python bench/mutate.py --modules run,waits --sample 0    # every mutant of two modules

A mutant is made in memory, in a forked child, and never touches the source. The tests run once under coverage first, so
that each mutant of a function is shown only to the tests that enter this function, its module's own tests first, then the
quick ones; what a module does at its import is shown to all. What counts as caught: a failing test, an error at import, or
no end within five times what all tests need. Left alone is what no caller could see: prose (texts with a blank in them, hints), ``__all__``, assertions, and
whether the garbage collector tracks a value. Prints what nobody noticed, then the score by module; exit 1 below
``--at-least``.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import json
import os
import pathlib
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import coverage
import hypothesis
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
CORE = ROOT / "src" / "holdfast" / "core"
TESTS = ROOT / "tests" / "core"
LIMIT_SECONDS = 1_000
TIMES = 5
UNSEEN = ("hint", "gc")  # keywords whose values no caller can tell apart

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
DROPPED = (ast.AugAssign, ast.Raise, ast.Delete, ast.Continue, ast.Break)


class Mutant(NamedTuple):
    module: str
    number: int
    line: int
    what: str
    within: range | None = None


class Spot(NamedTuple):
    """A place that can be changed: a field of a node, or an item of a list in it, and what to put there.

    ``within``: the lines of the outermost function around it; None for what runs at import.
    """

    node: ast.AST
    field: str
    index: int | None
    new: ast.AST
    line: int
    what: str
    within: range | None


def spots(tree: ast.Module) -> Iterator[Spot]:
    """Every change of a module, in the order of its text."""
    yield from _walk(tree, 0, None)


def _walk(node: ast.AST, line: int, within: range | None) -> Iterator[Spot]:
    line = getattr(node, "lineno", line)
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params") or (isinstance(node, ast.keyword) and node.arg in UNSEEN):
            continue
        inside = within
        if within is None and field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside = range(node.body[0].lineno, (node.end_lineno or line) + 1)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id.startswith("__") for t in node.targets):
            continue  # __all__ and __slots__ change nothing that a caller sees
        if isinstance(node, ast.JoinedStr | ast.Assert):
            continue  # prose, and what must hold anyway
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                for new, what in _changes(child):
                    yield Spot(node, field, index, new, getattr(child, "lineno", line), what, inside)
                yield from _walk(child, line, inside)


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
        case ast.Expr(value=ast.Call() as value):
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


def mutants(module: str) -> list[Mutant]:
    """All of a module, in the order of its text."""
    return [Mutant(module, n, spot.line, spot.what, spot.within) for n, spot in enumerate(spots(parsed(module)))]


def parsed(module: str) -> ast.Module:
    return ast.parse((CORE / f"{module}.py").read_text())


def changed(mutant: Mutant) -> ast.Module:
    """The module with one place changed; as it is for number -1."""
    tree = parsed(mutant.module)
    if mutant.number < 0:
        return tree
    spot = next(itertools.islice(spots(tree), mutant.number, None))
    if spot.index is None:
        setattr(spot.node, spot.field, spot.new)
    else:
        getattr(spot.node, spot.field)[spot.index] = spot.new
    return ast.fix_missing_locations(tree)


class _Loader(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives one module its changed body; all others come from their files."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = f"holdfast.core.{mutant.module}"
        self._path = str(CORE / f"{mutant.module}.py")
        self._tree = changed(mutant)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self._path, loader=self) if name == self._name else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._tree, self._path, "exec"), module.__dict__)


class Durations:
    """A pytest plugin: how long the tests of each file take."""

    def __init__(self) -> None:
        self.by_file: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = str(ROOT / report.nodeid.partition("::")[0])
        self.by_file[file] = self.by_file.get(file, 0.0) + report.duration


class Reach:
    """Which tests enter which lines of the core, what ran at import, and how long it all takes."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file, times = os.path.join(folder, "coverage"), pathlib.Path(folder, "durations")

            def watched() -> int:
                watch = coverage.Coverage(data_file=file, source=["holdfast.core"], config_file=False)
                watch.set_option("run:dynamic_context", "test_function")
                durations = Durations()
                watch.start()
                code = run_tests([str(TESTS)], durations)
                watch.stop()
                watch.save()
                times.write_text(json.dumps(durations.by_file))
                return code

            began = time.monotonic()
            self.whole = in_child(watched, LIMIT_SECONDS) == 0
            self.limit = TIMES * (time.monotonic() - began)
            self._durations: dict[str, float] = json.loads(times.read_text()) if self.whole else {}
            data = coverage.CoverageData(file)
            data.read()
            self._by_module = {p.stem: data.contexts_by_lineno(str(p)) for p in CORE.glob("*.py")}

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests to show it to; an empty list if none would notice."""
        own = str(TESTS / f"test_{mutant.module}.py")
        by_line = self._by_module[mutant.module]
        names = {""} if mutant.within is None else {name for line in mutant.within for name in by_line.get(line, ())}
        if "" in names:  # a test file needs it when it is imported
            found = {str(p) for p in TESTS.glob("test_*.py")}
        else:
            found = {f"{TESTS / name.split('.')[2]}.py::{name.split('.')[3]}" for name in names}
        return sorted(found, key=lambda t: (t.partition("::")[0] != own, self._durations.get(t.partition("::")[0], 0.0), t))


def run_tests(which: list[str], *plugins: object) -> int:
    """Quietly, to the first failure, which is not made smaller."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", max_examples=50, derandomize=True, deadline=None, database=None, phases=phases)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning", "--hypothesis-profile=mutants"]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        return int(pytest.main([*options, *which], plugins=plugins))


def in_child(work: Callable[[], int], limit: float) -> int | None:
    """The exit code of some work in a child of this process; None if it does not end in time."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.setsid()
        try:
            code = work()
        except BaseException:  # a mutant may break anything, the test runner included
            code = 1
        os.write(write, bytes([code]))
        os._exit(0)
    os.close(write)
    try:
        ready, _, _ = select.select([read], [], [], limit)
        answer = os.read(read, 1) if ready else b""
        return answer[0] if answer else None
    finally:
        os.close(read)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def caught(mutant: Mutant, tests: list[str], limit: float) -> bool:
    """Whether these tests notice."""

    def work() -> int:
        sys.meta_path.insert(0, _Loader(mutant))
        return run_tests(tests)

    return bool(tests) and in_child(work, limit) != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--modules", default="", help="comma-separated; all of the core by default")
    parser.add_argument("--sample", type=int, default=300, help="how many mutants; 0 means all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-least", type=float, default=85.0, help="percent")
    options = parser.parse_args()
    names = options.modules.split(",") if options.modules else sorted(p.stem for p in CORE.glob("*.py") if p.stem != "__init__")
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    os.chdir(ROOT)
    every = [m for name in names for m in mutants(name)]
    chosen = every if not options.sample or options.sample >= len(every) else random.Random(options.seed).sample(every, options.sample)
    began = time.monotonic()
    reach = Reach()
    if not reach.whole:
        print("the tests fail without any mutant: run pytest tests/core")
        return 2
    score: dict[str, list[int]] = {name: [0, 0] for name in names}
    left: list[Mutant] = []
    for mutant in sorted(chosen, key=lambda m: (m.module, m.number)):
        found = caught(mutant, reach.tests(mutant), reach.limit)
        score[mutant.module][0] += found
        score[mutant.module][1] += 1
        if not found:
            left.append(mutant)
            print(f"{mutant.module}.py:{mutant.line}: {mutant.what}", flush=True)
    print(f"\n{'module':<14}{'caught':>8}{'of':>6}{'score':>8}")
    for name, (hits, count) in score.items():
        if count:
            print(f"{name:<14}{hits:>8}{count:>6}{hits / count:>8.0%}")
    hits, count = sum(s[0] for s in score.values()), len(chosen)
    percent = 100 * hits / count if count else 100.0
    print(f"{'all':<14}{hits:>8}{count:>6}{percent:>7.1f}%   of {len(every)} possible, seed {options.seed}, {time.monotonic() - began:.0f} s")
    return 0 if percent >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
