"""Values to canonical bytes and back (§1.10, §14.3).

Theory of operation. ``admit(value)`` walks a value once, refuses with the field's path what no store
could keep, and returns the frozen copy that decoding its bytes would give: what a caller sees on the
first call is what it sees after a crash (§4.2). ``encode`` turns an admitted value into msgpack,
``decode`` is its inverse. Containers refuse mutation, so one copy can be shared by all readers.

Types beyond JSON's travel as one msgpack extension holding ``[tag, fields]``; only tags registered in
this process are revived. Nothing stored ever names code to import.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import hashlib
import math
import pathlib
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import msgspec

from holdfast.core.errors import EventUnreadable, TooLarge, Unserializable, UsageError

MAX_DEPTH = 100
MAX_VALUE_BYTES = 64 * 1024 * 1024
HASH_BYTES = 16
_EXT = 1


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError("this value is a read-only snapshot; copy it (list(x), dict(x)) and return the change as a write")


class FrozenList(list[Any]):
    """A list that refuses mutation; ``x + [y]`` and slices give plain lists."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: Any) -> list[Any]:
        return [thaw(x) for x in self]

    def __reduce__(self) -> Any:
        return (list, (list(self),))


class FrozenDict(dict[str, Any]):
    """A dict that refuses mutation; ``x | {...}`` gives a plain dict."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    pop = popitem = clear = update = setdefault = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __copy__(self) -> dict[str, Any]:
        return dict(self)

    def __deepcopy__(self, memo: Any) -> dict[str, Any]:
        return {k: thaw(v) for k, v in self.items()}

    def __reduce__(self) -> Any:
        return (dict, (dict(self),))


EMPTY_DICT = FrozenDict()
EMPTY_LIST = FrozenList()


def thaw(value: Any) -> Any:
    """A plain, mutable copy of a frozen value."""
    if isinstance(value, FrozenList):
        return [thaw(x) for x in value]
    if isinstance(value, FrozenDict):
        return {k: thaw(v) for k, v in value.items()}
    return value


# -- registered types -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Codec:
    tag: str
    cls: type
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


_by_type: dict[type, _Codec] = {}
_by_tag: dict[str, _Codec] = {}


def register(cls: type, tag: str | None = None, *, dump: Callable[[Any], Any] | None = None, load: Callable[[Any], Any] | None = None) -> type:
    """Makes a type storable: a dataclass, msgspec Struct, Enum, NamedTuple or pydantic model by itself,
    anything else with ``dump`` (to plain values) and ``load`` (back).

    The tag (default: the class's name) is what is stored; the class is found by it when read (§14.3).

    Raises:
        UsageError: the tag is taken by another class, or the type needs ``dump`` and ``load``.
    """
    name = tag or cls.__qualname__
    if dump is None or load is None:
        dump, load = _derive(cls)
    known = _by_tag.get(name)
    if known is not None and known.cls is not cls:
        same = known.cls.__qualname__ == cls.__qualname__ and known.cls.__module__ == cls.__module__
        if not same:
            raise UsageError(f"the tag {name!r} is registered for {known.cls!r}", hint="give register(cls, tag=...) another tag")
        _by_type.pop(known.cls, None)
    codec = _Codec(name, cls, dump, load)
    _by_type[cls] = codec
    _by_tag[name] = codec
    return cls


def storable(cls: object) -> bool:
    """Whether ``register`` can derive how to keep this class."""
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, msgspec.Struct | enum.Enum)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        or hasattr(cls, "model_validate")
    )


def _derive(kind: type) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    cls: Any = kind
    if issubclass(cls, enum.Enum):
        return (lambda v: v.value), (lambda v: cls(v))
    if dataclasses.is_dataclass(cls):
        names = [f.name for f in dataclasses.fields(cls) if f.init]
        return (lambda v: {n: getattr(v, n) for n in names}), (lambda v: cls(**v))
    if issubclass(cls, msgspec.Struct):
        return (lambda v: {n: getattr(v, n) for n in v.__struct_fields__}), (lambda v: cls(**v))
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return (lambda v: list(v)), (lambda v: cls(*v))
    if hasattr(cls, "model_validate"):
        return (lambda v: v.model_dump()), (lambda v: cls.model_validate(thaw(v)))
    raise UsageError(f"{cls.__qualname__} needs dump= and load= to be registered")


def _builtin(cls: type, tag: str, dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> None:
    register(cls, tag, dump=dump, load=load)


_builtin(tuple, "tuple", list, tuple)
_builtin(frozenset, "set", lambda v: sorted(v, key=repr), frozenset)
_by_type[set] = _by_type[frozenset]
_builtin(dt.datetime, "datetime", lambda v: v.isoformat(), dt.datetime.fromisoformat)
_builtin(dt.date, "date", lambda v: v.isoformat(), dt.date.fromisoformat)
_builtin(dt.time, "time", lambda v: v.isoformat(), dt.time.fromisoformat)
_builtin(dt.timedelta, "timedelta", lambda v: [v.days, v.seconds, v.microseconds], lambda v: dt.timedelta(*v))
_builtin(decimal.Decimal, "decimal", str, decimal.Decimal)
_builtin(uuid.UUID, "uuid", lambda v: v.hex, uuid.UUID)
_builtin(pathlib.PosixPath, "path", str, pathlib.Path)
_builtin(int, "int", str, int)  # only integers wider than 64 bits travel this way


# -- admit ------------------------------------------------------------------------------------------

_ATOMS = frozenset({bool, type(None), bytes})
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


class _Walk:
    """One admission; ``boxed`` says that something in it needs the extension when encoded."""

    __slots__ = ("boxed",)

    def __init__(self) -> None:
        self.boxed = False

    def admit(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            if not value.isascii() or "\0" in value:
                _check_text(value, path)
            return value
        if kind is int:
            if not _INT_MIN <= value <= _INT_MAX:
                self.boxed = True
            return value
        if kind in _ATOMS:
            return value
        if kind is float:
            if not math.isfinite(value):
                raise Unserializable(path, f"{value!r} is not a finite number", hint="store None or a string instead")
            return value
        if depth > MAX_DEPTH:
            raise Unserializable(path, f"nested deeper than {MAX_DEPTH}", hint="flatten it, or look for a cycle")
        if kind is FrozenList or kind is FrozenDict:
            self.boxed = True  # it was admitted before; what it holds is not looked at again
            return value
        if kind is list:
            return FrozenList([self.admit(x, f"{path}[{i}]", depth + 1) for i, x in enumerate(value)])
        if kind is dict:
            return FrozenDict({_key(k, path): self.admit(v, f"{path}.{k}", depth + 1) for k, v in value.items()})
        return self._typed(kind, value, path, depth)

    def _typed(self, kind: type, value: Any, path: str, depth: int) -> Any:
        self.boxed = True
        codec = _by_type.get(kind)
        if codec is None:
            hint = f"return plain values, or holdfast.register({kind.__qualname__})"
            raise Unserializable(path, f"a {kind.__module__}.{kind.__qualname__} cannot be stored", hint=hint)
        try:
            return codec.load(self.admit(codec.dump(value), path, depth + 1))
        except Unserializable:
            raise
        except Exception as e:  # a user's constructor may raise anything; naming the field is what helps
            raise Unserializable(path, f"a {kind.__qualname__} does not round-trip: {e}") from e


def _check_text(text: str, path: str) -> None:
    if "\0" in text:
        raise Unserializable(path, "text holds U+0000, which databases refuse", hint="strip it, or pass bytes")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Unserializable(path, "text holds a lone surrogate", hint="decode with errors='replace', or pass bytes") from None


def _key(key: Any, path: str) -> str:
    if type(key) is not str:
        raise Unserializable(path, f"the key {key!r} is not a string", hint="use string keys")
    _check_text(key, path)
    return key


def admit(value: Any, path: str = "value") -> Any:
    """The frozen copy of ``value`` that its stored form decodes to.

    Raises:
        Unserializable: with the path of the field that no store could keep (§1.10).
    """
    return _Walk().admit(value, path, 0)


def pack(value: Any, path: str = "value") -> tuple[Any, bytes]:
    """``admit`` and ``encode`` in one: the frozen copy, and the bytes that decode to it."""
    walk = _Walk()
    frozen = walk.admit(value, path, 0)
    data = _encoder.encode(_box(frozen) if walk.boxed else frozen)
    if len(data) > MAX_VALUE_BYTES:
        raise TooLarge(f"{path}: {len(data)} bytes, the limit is {MAX_VALUE_BYTES}", hint="keep the bulk in a file and store its name")
    return frozen, data


# -- bytes ------------------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()
_sorted = msgspec.msgpack.Encoder(order="sorted")
_NATIVE = frozenset({str, bool, type(None), bytes, float})


def _box(value: Any) -> Any:
    kind = type(value)
    if kind in _NATIVE:
        return value
    if kind is FrozenList or kind is list:
        return [_box(x) for x in value]
    if kind is FrozenDict or kind is dict:
        return {k: _box(v) for k, v in value.items()}
    if kind is int and _INT_MIN <= value <= _INT_MAX:
        return value
    codec = _by_type[kind]
    return msgspec.msgpack.Ext(_EXT, _encoder.encode([codec.tag, _box(admit(codec.dump(value)))]))


def encode(admitted: Any) -> bytes:
    """Bytes of an admitted value; key order is kept, so equal bytes mean equal values."""
    return _encoder.encode(_box(admitted))


def _ext_hook(code: int, data: memoryview) -> Any:
    if code != _EXT:
        raise EventUnreadable(f"extension {code} is not known")
    tag, fields = _decoder.decode(data)
    codec = _by_tag.get(tag) if isinstance(tag, str) else None
    if codec is None:
        raise EventUnreadable(f"the type {tag!r} is not registered", hint="import the module that registers it")
    return codec.load(freeze(fields))


_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_ext_hook)
_CONTAINERS = frozenset({list, dict})


def freeze(value: Any) -> Any:
    """Freezes what a decoder gave: lists and dicts only, no checks."""
    kind = type(value)
    if kind is list:
        return FrozenList([freeze(x) if type(x) in _CONTAINERS else x for x in value])
    if kind is dict:
        return FrozenDict({k: freeze(v) if type(v) in _CONTAINERS else v for k, v in value.items()})
    return value


def decode(data: bytes | memoryview | bytes) -> Any:
    """The frozen value of stored bytes.

    Raises:
        EventUnreadable: damaged bytes or an unregistered type; nothing else is called (§14.3).
    """
    try:
        return freeze(_decoder.decode(data))
    except EventUnreadable:
        raise
    except Exception as e:  # whatever a hostile payload provokes is one typed error
        raise EventUnreadable(f"stored bytes cannot be decoded: {e}") from e


# -- hashes -----------------------------------------------------------------------------------------


def chain(previous: bytes, data: bytes | bytes) -> bytes:
    """H(previous, data): SHA-256 cut to 128 bits."""
    h = hashlib.sha256(previous)
    h.update(data)
    return h.digest()[:HASH_BYTES]


def fingerprint(value: Any) -> str:
    """A hash of a value that does not depend on the order of its keys; 32 hex digits."""
    return hashlib.sha256(_sorted.encode(_box(admit(value)))).hexdigest()[:32]


def digest(parts: Iterable[str]) -> str:
    """A short stable name for several strings together; 32 hex digits."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        h.update(len(raw).to_bytes(4, "big"))
        h.update(raw)
    return h.hexdigest()[:32]
