"""The functions that undo effects: the name under which each is recorded, and how another process finds it (§6.11).

A process knows the functions that its own calls have passed. Another process, after a crash or a wait, looks for the recorded name among the functions that the skill's
own code names in ``undo=``, and nowhere else: stored data never chooses what is imported (§14.3). If it cannot find the function this way, a person is asked.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

import msgspec

from holdfast.core import canon
from holdfast.core.checkpoint import TaskResult, decode_writes
from holdfast.core.effects import Effect
from holdfast.core.graph import Program

KEPT = 10_000
NODE_PATH = "@node"
Undo = Callable[..., Any]
_result = msgspec.msgpack.Decoder(TaskResult)


def label(undo: Undo) -> str:
    """Returns ``module:qualified name``; a function that was created at run time has a name that no other function has."""
    if isinstance(undo, functools.partial):
        return f"partial {label(undo.func)}"
    named = undo if hasattr(undo, "__qualname__") else type(undo)
    return f"{getattr(named, '__module__', '')}:{named.__qualname__}"


def keep(known: dict[str, Undo], effect_place: str, undo: Undo) -> None:
    """Remembers an undo function by its effect's place. Beyond ``KEPT`` functions the oldest is dropped."""
    known.pop(effect_place, None)
    known[effect_place] = undo
    if len(known) > KEPT:
        del known[next(iter(known))]


def find(known: Mapping[str, Undo], program: Program, effect: Effect) -> Undo | None:
    """Returns the function that undoes the effect; None if this process does not have it, or several functions match."""
    if _is_declared(effect):
        return next((n.undo for p in _programs(program) for n in p.nodes.values() if n.undo is not None and label(n.undo) == effect.undo), None)
    here = known.get(effect.effect_id.rpartition("#")[0])
    if here is not None and label(here) == effect.undo:
        return here
    found: list[Undo] = []
    module, _, name = effect.undo.partition(":")
    for undo in _find_undos(program):
        if label(undo).partition(":")[2] == name and undo not in found:
            found.append(undo)
    same = [u for u in found if label(u) == effect.undo]  # a script that is run has another module name than the same file when imported
    sure = same or found
    return sure[0] if len(sure) == 1 and "<lambda>" not in name and not module.startswith("partial ") else None


def read_given(effect: Effect) -> tuple[Any, ...]:
    """Returns the arguments of the undo function: the effect's result and its arguments, or for a declared node its writes and the state that it saw."""
    result = None if effect.result is None else canon.decode(effect.result)
    if _is_declared(effect) and isinstance(result, bytes):
        result = decode_writes(_result.decode(result))
    return (result, *(() if effect.args is None else canon.decode(effect.args)))


def _is_declared(effect: Effect) -> bool:
    return effect.path.rpartition("/")[2] == NODE_PATH


def fitting(undo: Undo, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns as many of the arguments as the function takes: an ``undo(receipt)`` need not declare arguments that it does not use."""
    try:
        parameters = inspect.signature(undo).parameters.values()
    except (TypeError, ValueError):
        return values
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return values
    room = sum(1 for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "idempotency_key")
    return values[:room]


# -- names in the skill's own code ------------------------------------------------------------------


def _programs(program: Program) -> Iterator[Program]:
    yield program
    for node in program.nodes.values():
        if isinstance(node.child, Program):
            yield from _programs(node.child)


def _find_undos(program: Program) -> Iterator[Undo]:
    """Returns the functions named in ``undo=`` in the code of a skill's nodes and of the functions of the same package that they call."""
    todo = [n.call for p in _programs(program) for n in p.nodes.values()]
    seen: set[Any] = set()
    while todo:
        code = todo.pop()
        while isinstance(code, functools.partial):
            code = code.func
        owner = getattr(code, "__self__", None)
        function = inspect.unwrap(getattr(code, "__func__", code))
        if not isinstance(function, FunctionType) or function in seen:
            continue
        seen.add(function)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError):
            continue  # no source is available, as at an interactive prompt
        names = _visible(function)
        if owner is not None and function.__code__.co_argcount:
            names[function.__code__.co_varnames[0]] = owner  # a method of an object from which the skill was built
        for call in (c for c in ast.walk(tree) if isinstance(c, ast.Call)):
            for keyword in call.keywords:
                if keyword.arg == "undo" and callable(undo := _value(keyword.value, names)):
                    yield undo
            helper = _value(call.func, names)
            if isinstance(helper, FunctionType) and _package(helper) == _package(function):
                todo.append(helper)


def _visible(function: FunctionType) -> dict[str, Any]:
    """Returns the names that mean the same inside and outside of a function: its globals and closure variables, without its local names."""
    code = function.__code__
    names = dict(function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:
            names.pop(name, None)
    for name in (*code.co_varnames, *code.co_cellvars):
        names.pop(name, None)
    return names


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(value=inner, attr=name):
            base = _value(inner, names)
            there = inspect.getattr_static(base, name, None)  # reads the attribute without running user code
            return None if there is None or isinstance(there, property | functools.cached_property) else getattr(base, name, None)
    return None


def _package(function: FunctionType) -> str:
    return function.__module__.partition(".")[0]


__all__ = ["find", "fitting", "keep", "label", "read_given"]
