"""Failures as records, and as exceptions again, so that code that caught one the first time catches it on re-entry (§4.12, §14.3).

A record keeps the frames of the user's own code: file, line, function and the text of the line (§13.2). Frames of this package
and of the standard library's task and thread machinery between them say nothing to the user and are left out.

Stored bytes name a class; they never choose what is imported or called. A class that this process has loaded already is
taken, and its instance is made without its constructor: what an ``except`` clause can name is always loaded. Any other comes
back as a StepFailure with the recorded code.
"""

from __future__ import annotations

import asyncio
import builtins
import concurrent.futures
import contextlib
import inspect
import linecache
import pathlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import holdfast
from holdfast.core.errors import ErrorValue, Frame, HoldfastError, StepFailure, storable

MOST_FRAMES = 20
LONGEST_SOURCE = 200
_PACKAGE = pathlib.Path(inspect.getfile(holdfast)).resolve().parent
_OURS = tuple(f"{_PACKAGE / room}{suffix}" for room, suffix in (("engine", "/"), ("stores", "/"), ("core", "/"), ("workers", "/"), ("tools", "/"), ("runtime", ".py"), ("authoring", ".py")))
_MACHINERY = (
    *(str(pathlib.Path(inspect.getfile(m)).parent) + "/" for m in (asyncio, concurrent.futures)),
    *(inspect.getfile(m) for m in (threading, contextlib)),
)


def recorded(error: BaseException, where: str = "") -> ErrorValue:
    """A failure as it is kept, with the frames of the user's code that led to it."""
    return ErrorValue.of(error, where, frames_of(error))


def frames_of(error: BaseException) -> tuple[Frame, ...]:
    """The calls of the user's code that led to an exception, the outermost first; of many, the first and the last ones."""
    found = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        if not code.co_filename.startswith((*_OURS, *_MACHINERY)):
            found.append((code.co_filename, at.tb_lineno or code.co_firstlineno, code.co_qualname, at.tb_frame.f_globals))
        at = at.tb_next
    if len(found) > MOST_FRAMES:
        found = found[: MOST_FRAMES // 2] + found[-MOST_FRAMES // 2 :]
    return tuple(Frame(storable(file), line, storable(name), _source(file, line, scope)) for file, line, name, scope in found)


def _source(file: str, line: int, scope: dict[str, Any]) -> str:
    return storable(linecache.getline(file, line, scope).strip())[:LONGEST_SOURCE]


def traced(error: ErrorValue) -> Exception:
    """The exception of a recorded failure whose traceback shows the recorded frames."""
    made = revived(error)
    tail: types.TracebackType | None = None
    for frame in reversed(error.frames):
        tail = types.TracebackType(tail, _standing(frame), -1, frame.line)  # -1: no instruction, so that the line is taken as given
    return made.with_traceback(tail)


class _Recorded:
    """Gives the traceback module the recorded line where the file cannot be read any more."""

    def __init__(self, frame: Frame) -> None:
        self._text = "\n" * (frame.line - 1) + frame.source + "\n"

    def get_source(self, name: str) -> str:
        return self._text


def _standing(frame: Frame) -> types.FrameType:
    """A frame with the recorded file and function. Nothing of the recorded code is run."""
    code = compile("at()", frame.file or "?", "exec").replace(co_name=frame.function, co_qualname=frame.function, co_firstlineno=max(1, frame.line))
    kept: list[types.FrameType] = []
    scope: dict[str, Any] = {"at": _caller(kept), "__name__": "recorded", "__loader__": _Recorded(frame)}
    exec(code, scope)
    return kept[0]


def _caller(kept: list[types.FrameType]) -> Callable[[], None]:
    def at() -> None:
        frame = sys._getframe(1)
        kept.append(frame)

    return at


def revived(error: ErrorValue) -> Exception:
    """The exception a recorded failure stands for."""
    made = _made(_loaded(error.type), error)
    return made if made is not None else StepFailure(f"{error.type}: {error.message}", code=error.code, hint=error.hint)


def _loaded(name: str) -> type[Exception] | None:
    """The exception class of this qualified name, if it is loaded."""
    found = getattr(builtins, name, None)
    if isinstance(found, type) and issubclass(found, Exception):
        return found
    newest = None
    for cls in _below(Exception):
        if f"{cls.__module__}.{cls.__qualname__}" == name:
            newest = cls
    return newest


def _below(cls: type[Exception]) -> Iterator[type[Exception]]:
    seen = {cls}
    todo = [cls]
    while todo:
        for inner in todo.pop().__subclasses__():
            if inner not in seen:
                seen.add(inner)
                todo.append(inner)
                yield inner


def _made(cls: type[Exception] | None, error: ErrorValue) -> Exception | None:
    """An instance that carries the message, made by the builtin it rests on; None where that needs more than a message."""
    if cls is None:
        return None
    base = next(c for c in cls.__mro__ if c.__module__ == "builtins")
    try:
        made: object = base.__new__(cls, error.message)  # type: ignore[arg-type]
    except TypeError:
        return None
    if not isinstance(made, Exception):
        return None
    made.args = (error.message,)
    if isinstance(made, HoldfastError):
        made.message, made.hint, made.code = error.message, error.hint, error.code
    return made


__all__ = ["frames_of", "recorded", "revived", "traced"]
