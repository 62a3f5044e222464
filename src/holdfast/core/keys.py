"""Finds dicts in annotations whose keys no store can keep: keys are text, there and in JSON (§1.10, §3.7)."""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import datetime as dt
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from holdfast.core import canon

NO_TEXT = (int, float, complex, bytes, type(None), tuple, frozenset, enum.Enum, uuid.UUID, dt.date, dt.time, dt.timedelta, decimal.Decimal, msgspec.Struct)
"""Classes whose instances are no text. Any other class is given the benefit of the doubt."""


class Unkept(NamedTuple):
    """A dict that can never be filled: where it is, as a path below what is declared, and its annotation."""

    path: str
    annotation: Any


def find_unkept(annotation: Any) -> Unkept | None:
    """Returns the first dict in an annotation, at any depth, whose keys cannot be text; None if there is none. A field of a class counts if every value of the class
    has it; a class that was registered with functions of its own is stored as these say."""
    seen: set[Any] = set()
    todo = [Unkept("", annotation)]
    while todo:
        path, found = todo.pop()
        found = _unwrap(found)
        kind = get_origin(found) or found
        if kind is Literal or (not isinstance(kind, type | types.UnionType) and kind is not typing.Union):
            continue
        args = get_args(found)
        if isinstance(kind, type) and issubclass(kind, abc.Mapping) and args and not _may_be_text(args[0]):
            return Unkept(path, found)
        todo += [Unkept(path, a) for a in reversed(args)]
        if isinstance(kind, type) and kind not in seen:
            seen.add(kind)
            todo += [Unkept(f"{path}.{name}", inner) for name, inner in reversed([*_fields(kind)])]
    return None


def _unwrap(annotation: Any) -> Any:
    """Returns what an annotation stands for, without its metadata and its name."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif hasattr(annotation, "__value__"):
            annotation = annotation.__value__
        else:
            return annotation


def _may_be_text(key: Any) -> bool:
    """Whether any text can be a key with this annotation; a subclass of ``str`` is no text to a store."""
    key = _unwrap(key)
    if get_origin(key) is Literal:
        return any(type(each) is str for each in get_args(key))
    if get_origin(key) in (typing.Union, types.UnionType):
        return any(map(_may_be_text, get_args(key)))
    kind = get_origin(key) or key
    if kind is None:
        return False
    return not isinstance(kind, type) or kind is str or not (issubclass(kind, (*NO_TEXT, str)) or dataclasses.is_dataclass(kind))


def _fields(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the fields that every value of a class has, with their annotations."""
    if canon.is_stored_by_its_own_functions(kind):
        return
    if isinstance(model := getattr(kind, "model_fields", None), dict):
        own = getattr(kind, "__pydantic_decorators__", None)
        if own is None or not (own.field_serializers or own.model_serializers):  # what its serializers make of it may be text
            yield from ((name, field.annotation) for name, field in model.items() if field.is_required() and not field.metadata)
        return
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError):
        return
    yield from ((name, hints[name]) for name in _find_required(kind, [*hints]) if name in hints)


def _find_required(kind: Any, names: list[str]) -> list[str]:
    """Returns which fields of a class have no default; ``names``: all, in their order."""
    if dataclasses.is_dataclass(kind):
        return [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]
    if issubclass(kind, msgspec.Struct):
        return [f.name for f in msgspec.structs.fields(kind) if f.required]
    if is_typeddict(kind):
        return sorted(kind.__required_keys__)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return names[: len(names) - len(kind.__new__.__defaults__ or ())]
    return []


__all__ = ["Unkept", "find_unkept"]
