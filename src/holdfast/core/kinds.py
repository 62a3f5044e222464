"""Kinds: check values against their annotations (§3.7).

Theory of operation. An annotation is compiled once into a function that takes a value and returns it, converted only as far as JSON
makes necessary: an int may stand for a float, a text for a date, UUID, decimal or path, a plain value for an enumeration, a mapping
or a list for a class or another container. Nothing else changes its type. A value that does not fit raises a ``Misfit``, with
the path of the value, what was wanted and what was given. An unknown annotation accepts everything.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import datetime as dt
import decimal
import enum
import operator
import pathlib
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from holdfast.core import canon
from holdfast.core.bounds import show

Fit = Callable[[Any, str], Any]
JSON_TEXTS = (dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID, decimal.Decimal)
LISTS = (list, abc.Sequence, abc.MutableSequence, abc.Collection, abc.Iterable)
SETS = (set, frozenset, abc.Set, abc.MutableSet)
DICTS = (dict, abc.Mapping, abc.MutableMapping)
FAST = (str, int, bool, bytes, float)


class Misfit(Exception):
    """A value does not fit its annotation."""

    def __init__(self, path: str, wanted: str, given: str, said: str = "") -> None:
        super().__init__(said or f"{path} must be {wanted}, and it is {given}")
        self.path = path
        self.wanted = wanted
        self.given = given


def _refuse_unknown(cls: Any, what: str, path: str, given: str) -> Misfit:
    return Misfit(path, "absent", given, f"{path} is not a {what} of {cls.__name__} (given: {given})")


class Kind(msgspec.Struct, frozen=True):
    """What values of a channel may be. Values exactly of the class ``exact``, values of ``shape``, and lists whose items all have the shape ``each``
    fit without conversion."""

    fit: Fit
    exact: type | None = None
    shape: canon.Shape = None
    each: canon.Shape = None


def compile_kind(annotation: Any) -> Kind | None:
    """Returns the kind of an annotation, or None if it accepts everything."""
    fit = _fit(annotation)
    if fit is None:
        return None
    shape = _find_shape(annotation)
    if isinstance(shape, canon.ListOf):
        return Kind(fit, each=shape.each)
    return Kind(fit, annotation if annotation in FAST and isinstance(annotation, type) else None, shape)


def _find_shape(annotation: Any) -> canon.Shape:
    """Returns the shape whose values fit an annotation without conversion, or None if each value has to be checked."""
    if annotation is Any or isinstance(annotation, typing.TypeVar):
        return object
    if annotation in FAST and isinstance(annotation, type):
        return annotation
    base, inner = get_origin(annotation) or annotation, get_args(annotation)
    if base is list:
        each = _find_shape(inner[0]) if inner else object
        return None if each is None else canon.ListOf(each)
    if base is dict:
        each = _find_shape(inner[1]) if inner else object
        return None if each is None or (inner and inner[0] not in (str, Any)) else canon.DictOf(each)
    return None


def _fit(kind: Any) -> Fit | None:
    """Returns the function of an annotation, or None if it accepts everything."""
    if kind is Any or isinstance(kind, str | typing.TypeVar | typing.ForwardRef):
        return None
    if kind is None or kind is type(None):
        return _none
    supertype = getattr(kind, "__supertype__", None) or getattr(kind, "__value__", None)
    if supertype is not None:
        return _fit(supertype)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _fit_annotated(inner[0], [m for m in inner[1:] if isinstance(m, msgspec.Meta)])
    if origin is Literal:
        return _literal(inner)
    if origin is typing.Union or origin is types.UnionType:
        return _union(kind, [_fit(k) for k in inner])
    if origin in (typing.Required, typing.NotRequired, typing.Final):
        return _fit(inner[0])
    base = origin or kind
    if base in FAST:
        return {str: _text, int: _int, bool: _bool, bytes: _bytes, float: _float}[base]
    if base in LISTS:
        return _list(inner)
    if base is tuple:
        return _tuple(inner)
    if base in SETS:
        return _set(frozenset if base in (frozenset, abc.Set) else set, inner)
    if base in DICTS:
        return _dict(inner)
    return _of_class(base) if isinstance(base, type) else None


def _of_class(cls: Any) -> Fit | None:
    if cls is object or typing.is_typeddict(cls):
        return _fit_typed_dict(cls) if cls is not object else None
    if cls in JSON_TEXTS:
        return _json_text(cls)
    if issubclass(cls, enum.Enum):
        return _enum(cls)
    if issubclass(cls, pathlib.PurePath):
        return _path(cls)
    if dataclasses.is_dataclass(cls):
        made = typing.cast("Callable[..., Any]", cls)
        return _fields(cls, [(f.name, f.init) for f in dataclasses.fields(cls)], lambda v: made(**v), dataclasses.replace)
    if issubclass(cls, msgspec.Struct):
        return _fields(cls, [(n, True) for n in cls.__struct_fields__], lambda v: msgspec.convert(v, cls), msgspec.structs.replace)
    if hasattr(cls, "model_validate"):
        return _model(cls)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _fit_named_tuple(cls)
    if getattr(cls, "_is_protocol", False):
        return None
    return _instance(cls)


# -- plain values -------------------------------------------------------------------------------------


def _none(value: Any, path: str) -> Any:
    if value is not None:
        raise Misfit(path, "None", show(value))
    return value


def _text(value: Any, path: str) -> Any:
    if not isinstance(value, str):
        raise Misfit(path, "str", show(value))
    return str.__str__(value)


def _int(value: Any, path: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misfit(path, "int", show(value))
    return int(value)


def _bool(value: Any, path: str) -> Any:
    if not isinstance(value, bool):
        raise Misfit(path, "bool", show(value))
    return value


def _bytes(value: Any, path: str) -> Any:
    if not isinstance(value, bytes):
        raise Misfit(path, "bytes", show(value))
    return value


def _float(value: Any, path: str) -> Any:
    if isinstance(value, float):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misfit(path, "float", show(value))
    try:
        return float(value)
    except OverflowError:
        raise Misfit(path, "float", show(value)) from None


def _literal(known: tuple[Any, ...]) -> Fit:
    def fit(value: Any, path: str) -> Any:
        for each in known:
            if each == value and type(each) is type(value):
                return each
        raise Misfit(path, "one of " + ", ".join(map(repr, known)), show(value))

    return fit


def _json_text(cls: Any) -> Fit:
    def fit(value: Any, path: str) -> Any:
        if isinstance(value, cls) and not (cls is dt.date and isinstance(value, dt.datetime)):
            return value
        if isinstance(value, str):
            try:
                return msgspec.convert(value, cls)
            except msgspec.ValidationError as e:
                raise Misfit(path, cls.__name__, f"{show(value)} ({e})") from None
        raise Misfit(path, cls.__name__, show(value))

    return fit


def _enum(cls: Any) -> Fit:
    def fit(value: Any, path: str) -> Any:
        if isinstance(value, cls):
            return value
        for member in cls:
            if member.value == value and type(member.value) is type(value):
                return member
        raise Misfit(path, f"{cls.__name__}: one of {', '.join(repr(m.value) for m in cls)}", show(value))

    return fit


def _path(cls: Any) -> Fit:
    def fit(value: Any, path: str) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise Misfit(path, cls.__name__, show(value))
        return cls(value)

    return fit


def _instance(cls: Any) -> Fit:
    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, cls):
            raise Misfit(path, cls.__name__, show(value))
        return value

    return fit


# -- several kinds, and bounds ------------------------------------------------------------------------


def _union(kind: Any, fits: list[Fit | None]) -> Fit | None:
    if None in fits:
        return None
    wanted = str(kind).replace("typing.", "")

    def fit(value: Any, path: str) -> Any:
        found: list[Any] = []
        for each in fits:
            try:
                made = each(value, path)  # type: ignore[misc]
            except Misfit:
                continue
            if type(made) is type(value):
                return made  # a value that fits without conversion goes before all conversions
            found.append(made)
        if not found:
            raise Misfit(path, wanted, show(value))
        return found[0]

    return fit


def _fit_annotated(kind: Any, metas: list[msgspec.Meta]) -> Fit | None:
    inner = _fit(kind)
    if not metas:
        return inner
    base = get_origin(kind) or kind
    bounded: Any = base if base in (*FAST, *JSON_TEXTS, list, dict, set, frozenset, tuple) else Any
    for meta in metas:
        bounded = Annotated[bounded, meta]

    def fit(value: Any, path: str) -> Any:
        made = value if inner is None else inner(value, path)
        try:
            msgspec.convert(made, bounded)
        except msgspec.ValidationError as e:
            raise Misfit(path, str(e).removeprefix("Expected ").partition(" - at ")[0], show(value)) from None
        return made

    return fit


_EXACT: dict[Fit, type] = {_text: str, _int: int, _bool: bool, _bytes: bytes, _float: float}
"""The class whose values all fit a function without conversion."""


# -- containers ---------------------------------------------------------------------------------------


def _items(value: Any, each: Fit | None, path: str) -> list[Any] | None:
    """Returns the converted items, or None if no item changed."""
    if each is None or (each in _EXACT and {_EXACT[each]}.issuperset(map(type, value))):
        return None
    made = [each(item, f"{path}[{n}]") for n, item in enumerate(value)]
    return None if all(map(operator.is_, made, value)) else made


def _list(inner: tuple[Any, ...]) -> Fit:
    each = _fit(inner[0]) if inner else None

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, list | tuple):
            raise Misfit(path, "a list", show(value))
        made = _items(value, each, path)
        return made if made is not None else value if isinstance(value, list) else list(value)

    return fit


def _set(make: Any, inner: tuple[Any, ...]) -> Fit:
    each = _fit(inner[0]) if inner else None

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, set | frozenset | list | tuple):
            raise Misfit(path, "a set", show(value))
        found = list(value)
        made = _items(found, each, path)
        if made is None and isinstance(value, set | frozenset):
            return value
        try:
            return make(found if made is None else made)
        except TypeError:
            raise Misfit(path, "a set", "a list with an item that a set cannot hold") from None

    return fit


def _tuple(inner: tuple[Any, ...]) -> Fit:
    endless = len(inner) == 2 and inner[1] is ...
    fits = [_fit(k) for k in inner if k is not ...]

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, list | tuple) or (inner and not endless and len(value) != len(inner)):
            raise Misfit(path, f"a tuple of {len(inner)}" if inner and not endless else "a tuple", show(value))
        if not inner:
            return tuple(value)
        each = fits * len(value) if endless else fits
        return tuple(item if f is None else f(item, f"{path}[{n}]") for n, (item, f) in enumerate(zip(value, each, strict=True)))

    return fit


def _dict(inner: tuple[Any, ...]) -> Fit:
    names, values = (_fit(inner[0]), _fit(inner[1])) if len(inner) == 2 else (None, None)

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise Misfit(path, "a dict", show(value))
        if names is None and values is None:
            return value
        made = {
            (k if names is None else names(k, f"a key of {path}")): (v if values is None else values(v, f"{path}.{k}")) for k, v in value.items()
        }
        same = len(made) == len(value) and all(map(operator.is_, made, value)) and all(map(operator.is_, made.values(), value.values()))
        return value if same else made

    return fit


def _fit_typed_dict(cls: Any) -> Fit:
    hints = typing.get_type_hints(cls, include_extras=True)
    kinds = {n: _fit(k) for n, k in hints.items()}
    # If annotations are strings, the class itself does not know which of them are NotRequired.
    required = {n for n in hints if get_origin(hints[n]) is typing.Required or (n in cls.__required_keys__ and get_origin(hints[n]) is not typing.NotRequired)}

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise Misfit(path, cls.__name__, show(value))
        for name in value:
            if name not in kinds:
                raise _refuse_unknown(cls, "key", f"{path}.{name}", show(value[name]))
        for name in sorted(required):
            if name not in value:
                raise Misfit(f"{path}.{name}", "there", "missing", f"{path}.{name} is missing: {cls.__name__} requires it")
        return {n: v if (f := kinds[n]) is None else f(v, f"{path}.{n}") for n, v in value.items()}

    return fit


# -- classes with fields ------------------------------------------------------------------------------


def _fields(cls: Any, named: list[tuple[str, bool]], make: Callable[[dict[str, Any]], Any], replace: Callable[..., Any]) -> Fit:
    """Fits a dataclass or a Struct: an instance whose fields fit, or a mapping of its fields."""
    compiled_fields: dict[str, Fit | None] = {}

    def kinds() -> dict[str, Fit | None]:
        if not compiled_fields:  # on first use, because a class may name itself, or a class that is declared later
            try:
                hints = typing.get_type_hints(cls, include_extras=True)
            except (NameError, TypeError):
                hints = {}
            compiled_fields.update({n: _fit(hints.get(n, Any)) for n, _ in named})
        return compiled_fields

    def fit(value: Any, path: str) -> Any:
        if isinstance(value, cls):
            changed = {}
            for name, given in named:
                each = kinds()[name]
                if each is None or not hasattr(value, name):
                    continue
                was = getattr(value, name)
                made = each(was, f"{path}.{name}")
                if made is not was and given and (type(made) is not type(was) or made != was):
                    changed[name] = made
            return replace(canon.thaw(value), **changed) if changed else value
        if not isinstance(value, Mapping):
            raise Misfit(path, cls.__name__, show(value))
        if not issubclass(cls, msgspec.Struct):
            for name in value:
                if (name, True) not in named:
                    raise _refuse_unknown(cls, "field", f"{path}.{name}", show(value[name]))
            value = {n: v if (f := kinds()[n]) is None else f(v, f"{path}.{n}") for n, v in value.items()}
        try:
            return make(canon.thaw(dict(value)))
        except (TypeError, ValueError, msgspec.ValidationError) as e:
            raise Misfit(path, cls.__name__, f"a mapping that is not a valid one: {e}") from None

    return fit


def _fit_named_tuple(cls: Any) -> Fit:
    hints = typing.get_type_hints(cls, include_extras=True)
    fits = [_fit(hints.get(name, Any)) for name in cls._fields]

    def fit(value: Any, path: str) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(fits):
            raise Misfit(path, f"{cls.__name__}: {len(fits)} items", show(value))
        return cls(*[item if f is None else f(item, f"{path}.{n}") for n, item, f in zip(cls._fields, value, fits, strict=True)])

    return fit


def _model(cls: Any) -> Fit:
    """Fits a pydantic model, by its own rules."""

    def fit(value: Any, path: str) -> Any:
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise Misfit(path, cls.__name__, show(value))
        try:
            return cls.model_validate(canon.thaw(dict(value)))
        except ValueError as e:
            raise Misfit(path, cls.__name__, f"a mapping that is not a valid one: {e}") from None

    return fit


# -- what may be written to a channel -----------------------------------------------------------------


def of_value(annotation: Any, default: Any) -> Kind | None:
    """Returns what the value of a channel may be. If its default is None, the value may be None, whatever the annotation says."""
    return compile_kind(annotation | None if default is None and isinstance(annotation, type) else annotation)


def of_write(annotation: Any, tag: str, default: Any, takes: Any = Any) -> Kind | None:
    """Returns what may be written to a channel with this reducer: an item or a list of items if the channel grows, the value itself if it
    is replaced, and for a custom reducer the type that it ``takes``."""
    match tag.partition(":")[0]:
        case "append" | "window" | "topic":
            item = _item(annotation)
            each, shape = _fit(item), _find_shape(item)
            return None if each is None else Kind(_growing(each), _EXACT.get(each), None if isinstance(shape, canon.ListOf) else shape, shape)
        case "custom":
            return compile_kind(takes)
    return of_value(annotation, default)


def _item(annotation: Any) -> Any:
    """Returns the annotation of the items of a list annotation, or Any if there is none."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _item(inner[0])
    if origin is typing.Union or origin is types.UnionType:
        return next((found for k in inner if _fit(found := _item(k)) is not None), Any)
    if inner and (origin in LISTS or (origin is tuple and inner[1:] == (...,)) or origin in SETS):
        return inner[0]
    return Any


def _growing(each: Fit) -> Fit:
    def fit(value: Any, path: str) -> Any:
        if isinstance(value, list):
            made = _items(value, each, path)
            return value if made is None else made
        return each(value, path)

    return fit


__all__ = ["Kind", "Misfit", "compile_kind", "of_value", "of_write"]
