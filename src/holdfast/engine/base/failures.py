"""Recorded failures as exceptions again, so that code that caught one the first time catches it on re-entry (§4.12, §14.3).

Stored bytes name a class; they never choose what is imported or called. A class that this process has loaded already is
taken, and its instance is made without its constructor: what an ``except`` clause can name is always loaded. Any other comes
back as a StepFailure with the recorded code.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator

from holdfast.core.errors import ErrorValue, HoldfastError, StepFailure


def revived(error: ErrorValue) -> Exception:
    """The exception a recorded failure stands for."""
    made = _made(_loaded(error.type), error)
    return made if made is not None else StepFailure(f"{error.type}: {error.message}", code=error.code)


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
        made.message, made.hint, made.code = error.message, "", error.code
    return made


__all__ = ["revived"]
