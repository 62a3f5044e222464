"""What bench/mutate.py changes: one place of a module at a time; and marks, which tell the tests that reach such a place."""

from __future__ import annotations

import ast
import copy
import itertools
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

UNSEEN = ("hint", "gc")  # keywords whose values no caller can tell apart

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}
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


def mutants(root: pathlib.Path, path: str) -> list[Mutant]:
    """All of a file, in the order of its text."""
    counts: dict[str, int] = {}
    found = []
    for spot in spots(ast.parse((root / path).read_text())):
        number = counts[spot.within] = counts.get(spot.within, -1) + 1
        found.append(Mutant(path, spot.within, number, spot.line, spot.what))
    return found


def changed(mutant: Mutant, text: str) -> ast.Module:
    """Its file with one place changed; what stays keeps its lines."""
    tree = ast.parse(text)
    spot = _spot(tree, mutant)
    held = getattr(spot.node, spot.field)
    ast.copy_location(spot.new, held if spot.index is None else held[spot.index])
    if spot.index is None:
        setattr(spot.node, spot.field, spot.new)
    else:
        held[spot.index] = spot.new
    return ast.fix_missing_locations(tree)


def _spot(tree: ast.Module, mutant: Mutant) -> Spot:
    return next(itertools.islice((s for s in spots(tree) if s.within == mutant.within), mutant.number, None))


# -- marks: which tests reach it ---------------------------------------------------------------------

MARKS = """import os

seen = set()
told = None


def mark(place):
    if place in seen:
        return
    seen.add(place)
    if told is not None:
        told(place)
    elif folder := os.environ.get("HOLDFAST_ENTERED"):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        out = os.open(f"{folder}/{os.getpid()}.marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(out, f"{test}\\t{place}\\n".encode())
        os.close(out)
"""
"""The module holdfast_marks of a marked tree. In a process that a test starts it writes into the folder that pytest was given."""


def marked(text: str, own: Sequence[Mutant]) -> str:
    """The module with a mark before each statement that one of its mutants changes, and at the begin of the function around it.

    For what runs at import every outermost function of the module is marked: its tests may see it."""
    tree = ast.parse(text)
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    entries = _outermost(tree)
    before: list[tuple[ast.AST, str]] = []
    for mutant in own:
        if not mutant.within:
            continue
        spot = _spot(tree, mutant)
        held = getattr(spot.node, spot.field)
        place: ast.AST = held if spot.index is None else held[spot.index]
        if place not in above or above[place] is not spot.node:
            place = spot.node  # operators are shared between all places of a tree
        while not isinstance(place, ast.stmt):
            place = above[place]
        before.append((place, mutant.name))
    for place, name in before:
        for field in ("body", "orelse", "finalbody"):
            rows = getattr(above[place], field, None)
            if isinstance(rows, list) and any(row is place for row in rows):
                rows.insert(next(i for i, row in enumerate(rows) if row is place), _mark(name))
    everywhere = any(not mutant.within for mutant in own)
    wanted = {mutant.within for mutant in own}
    for within, function in entries:
        if everywhere or within in wanted:
            function.body.insert(_after_docstring(function.body), _mark(f"{own[0].path}::{within}"))
    first = _after_docstring(tree.body)
    while isinstance(row := tree.body[first], ast.ImportFrom) and row.module == "__future__":
        first += 1
    tree.body.insert(first, ast.parse("from holdfast_marks import mark as __holdfast_mark__").body[0])
    return ast.unparse(ast.fix_missing_locations(tree))


def _mark(place: str) -> ast.stmt:
    return ast.Expr(ast.Call(ast.Name("__holdfast_mark__", ast.Load()), [ast.Constant(place)], []))


def _after_docstring(body: list[ast.stmt]) -> int:
    return int(bool(body) and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str))


def _outermost(tree: ast.Module) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The outermost functions with their qualified names; a property and its setter share one."""
    found: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = []

    def look(node: ast.AST, scope: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((f"{scope}{child.name}", child))
            elif isinstance(child, ast.ClassDef):
                look(child, f"{scope}{child.name}.")
            else:
                look(child, scope)

    look(tree, "")
    return found
