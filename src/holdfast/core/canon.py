"""Encodes values to canonical bytes and back (§1.10, §14.3).

Theory of operation. ``admit(value)`` walks a value once, refuses anything that no store can keep, naming the
field's path, and returns the frozen copy that decoding its bytes would give: a caller sees the same value on the
first call and after a crash (§4.2). ``encode`` turns an admitted value into msgpack,
``decode`` is its inverse. Containers refuse mutation, so all readers can share one copy.

Values of types that JSON lacks are stored as one msgpack extension that contains ``[tag, fields]``; only tags that are
registered in this process are decoded to their types. Nothing stored ever names code to import.

A mutable dataclass or Struct is decoded as its *twin*: a subclass that refuses to be changed and otherwise behaves
like the class (equality, ``isinstance``, ``dataclasses.replace``), so that a shared snapshot cannot change (§4.2).
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import datetime as dt
import decimal
import enum
import hashlib
import inspect
import itertools
import math
import pathlib
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from holdfast.core import envelopes
from holdfast.core.bounds import GROWN_BYTES
from holdfast.core.errors import EventUnreadable, KeyUnavailable, TooLarge, Unserializable, UsageError

MAX_DEPTH = 100
MAX_VALUE_BYTES = GROWN_BYTES
HASH_BYTES = 16
REFERENCE = 2  # the extension that refers to a value stored elsewhere (core.blobs)
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
    kind = type(value)
    if kind is FrozenList:
        return [x if type(x) in _NATIVE else thaw(x) for x in value]
    if kind is FrozenDict:
        return {k: v if type(v) in _NATIVE else thaw(v) for k, v in value.items()}
    if kind is tuple:
        return tuple(thaw(x) for x in value)
    if kind in _twins:
        return _thaw_twin(value, thaw)
    return value


# -- registered types -------------------------------------------------------------------------------


_twins: dict[type, type] = {}


@dataclasses.dataclass(frozen=True, slots=True)
class _Codec:
    """How a type is stored. ``exact``: by construction, loading returns what was dumped, so admission need not test it. ``own``: by functions of its author's."""

    tag: str
    cls: type
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]
    exact: bool = False
    own: bool = False


_by_type: dict[type, _Codec] = {}
_by_tag: dict[str, _Codec] = {}
_named: dict[str, list[type]] = {}
"""Classes that are named by fields of registered classes, by the tag that they would get. Such a class is registered when a value of it is first
stored or read, so that it takes no tag from a class that is registered explicitly."""
_code: weakref.WeakKeyDictionary[Any, Callable[[Any], Iterable[Any]]] = weakref.WeakKeyDictionary()
"""Functions of skills whose code may name classes, with what finds these. They are searched once, when a stored value has a tag that is not known."""


def register(cls: type, tag: str | None = None, *, dump: Callable[[Any], Any] | None = None, load: Callable[[Any], Any] | None = None) -> type:
    """Makes a type storable, and the classes of these kinds that its fields name. A dataclass, msgspec Struct, Enum, NamedTuple or pydantic
    model needs nothing else; any other type needs ``dump`` (to plain values) and ``load`` (back).

    ``tag`` is stored with each value, and the class is found by it when the value is read; by default it is the class's name (§14.3).

    Raises:
        UsageError: the tag is taken by another class, or the type needs ``dump`` and ``load``.
    """
    name = tag or cls.__qualname__
    known = _by_tag.get(name)
    if known is not None and known.cls is not cls:
        same = known.cls.__qualname__ == cls.__qualname__ and known.cls.__module__ == cls.__module__
        if not same:
            raise UsageError(f"the tag {name!r} is registered for {known.cls!r}", hint=f"give this class another tag before it is used: holdfast.register({cls.__name__}, tag=\"...\")")
        _by_type.pop(known.cls, None)
    derived = dump is None or load is None
    codec = _derive(cls, name) if dump is None or load is None else _Codec(name, cls, dump, load, own=True)
    _by_type[cls] = codec
    _by_tag[name] = codec
    for twin, original in _twins.items():
        if original is cls:
            _by_type[twin] = codec
    if derived:
        _note(_field_types(cls))
    return cls


def is_stored_by_its_own_functions(cls: type) -> bool:
    """Whether a class was registered with ``dump`` and ``load``."""
    return cls in _by_type and _by_type[cls].own


def storable(cls: object) -> bool:
    """Whether ``register`` can derive how to store this class."""
    return isinstance(cls, type) and (
        dataclasses.is_dataclass(cls)
        or issubclass(cls, msgspec.Struct | enum.Enum)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
        or hasattr(cls, "model_validate")
    )


def register_named(annotation: Any) -> None:
    """Registers the storable classes in an annotation, at any depth. A class that is registered already keeps its tag. Classes that only the fields of
    these classes name are noted."""
    if storable(annotation) and annotation not in _by_type:
        register(annotation)
    _note([annotation])
    for inner in get_args(annotation):
        register_named(inner)


def note_code(function: Any, find: Callable[[Any], Iterable[Any]]) -> None:
    """Notes a function of a skill: ``find`` returns the classes that its code names, such as the ``schema=`` of a question. Values of these classes can be read in a
    process that has not executed the function."""
    _code[function] = find


def _note(annotations: Iterable[Any]) -> None:
    """Notes the storable classes in annotations and in the fields of these classes, at any depth."""
    todo, seen = list(annotations), set()
    while todo:
        found = todo.pop()
        kind = get_origin(found) or found
        todo += [*get_args(found), *(getattr(kind, inner) for inner in ("__supertype__", "__value__") if hasattr(kind, inner))]
        if not isinstance(kind, type) or kind in seen:
            continue
        seen.add(kind)
        if storable(kind):
            same = _named.setdefault(kind.__qualname__, [])
            same[:] = [c for c in same if c.__module__ != kind.__module__] + [kind]  # a module that is loaded anew has made the class anew
        if storable(kind) or is_typeddict(kind):
            todo += _field_types(kind)


def _field_types(kind: Any) -> list[Any]:
    """Returns the annotations of a class's fields; none if one of them cannot be resolved. Then values of their classes are refused, with a hint."""
    if isinstance(fields := getattr(kind, "model_fields", None), dict):
        return [field.annotation for field in fields.values()]
    try:
        return [*get_type_hints(kind).values()]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return []


def _meet(tag: str, kind: type | None = None) -> _Codec | None:
    """Registers the noted class that has this tag, if it is the only one of its name. For a value that is read (no ``kind``), the code of skills is searched too."""
    match _named.get(tag):
        case [only] if tag not in _by_tag and (kind is None or kind is only):
            register(only)
            return _by_tag[tag]
    if kind is None and _code:
        found = [named for function, find in list(_code.items()) for named in find(function)]
        _code.clear()
        _note(found)
        return _meet(tag)
    return None


def _derive(kind: type, tag: str) -> _Codec:
    cls: Any = kind
    if issubclass(cls, enum.Enum):
        return _Codec(tag, cls, lambda v: v.value, lambda v: cls(thaw(v)), exact=True)
    if dataclasses.is_dataclass(cls):
        return _dataclass(cls, tag)
    if issubclass(cls, msgspec.Struct):
        names: tuple[str, ...] = cls.__struct_fields__
        own = cls if cls.__struct_config__.frozen else _twin(cls)
        return _Codec(tag, cls, lambda v: {n: getattr(v, n) for n in names}, lambda v: _seal(own, cls(**v), names))
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return _Codec(tag, cls, list, lambda v: cls(*v))
    if hasattr(cls, "model_validate"):
        return _model(cls, tag)
    raise UsageError(f"{cls.__qualname__} needs dump= and load= to be registered")


def _dataclass(cls: Any, tag: str) -> _Codec:
    own = cls if cls.__dataclass_params__.frozen else _twin(cls)
    fields = dataclasses.fields(cls)
    if hasattr(cls, "__post_init__") or cls.__new__ is not object.__new__ or not cls.__dataclass_params__.init:
        # The class runs code of its own when an instance is made, and may need it: instances are made in the ordinary way.
        given = tuple(f.name for f in fields if f.init)
        names = tuple(f.name for f in fields)
        return _Codec(tag, cls, lambda v: {n: getattr(v, n) for n in given}, lambda v: _seal(own, cls(**v), names))
    names = tuple(f.name for f in fields)
    known = frozenset(names)

    def load(stored: Any) -> Any:
        if stored.keys() - known:
            raise EventUnreadable(f"a stored {tag} has the fields {sorted(stored.keys() - known)}, which the class lacks")
        made = object.__new__(own)
        for field in fields:
            name = field.name
            object.__setattr__(made, name, stored[name] if name in stored else _default(field, tag))
        return made

    return _Codec(tag, cls, lambda v: {n: getattr(v, n) for n in names}, load, exact=True)


def _model(cls: Any, tag: str) -> _Codec:
    """Makes the codec of a pydantic model. It stores the fields under their own names, not their aliases, and leaves out computed fields if the model
    would refuse them. It reads without ``strict``, because a set comes back as a frozenset."""
    own = _twin(cls)
    dumps, loads = _options_of(cls)
    return _Codec(tag, cls, lambda v: v.model_dump(**dumps), lambda v: _seal(own, cls.model_validate(thaw(v), **loads), None))


def _options_of(cls: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options for dumping and for validating a model; older releases of pydantic lack some of them."""
    forbids = getattr(cls, "model_config", {}).get("extra") == "forbid"
    dumped = {"warnings": False} | ({"exclude_computed_fields": True} if forbids else {})  # it warns of frozensets; what matters is checked here
    wanted = ((cls.model_dump, dumped), (cls.model_validate, {"by_name": True, "by_alias": False, "strict": False}))
    dumps, loads = ({n: v for n, v in options.items() if n in inspect.signature(function).parameters} for function, options in wanted)
    return dumps, loads


def _default(field: dataclasses.Field[Any], tag: str) -> Any:
    """Returns the default of a field that was added to its class after the value was stored."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return admit(field.default_factory(), field.name)
    raise EventUnreadable(f"a stored {tag} lacks the field {field.name!r}, which has no default")


# -- twins ------------------------------------------------------------------------------------------


def _twin(cls: Any) -> Any:
    """Returns the subclass of a mutable class whose instances refuse to be changed."""
    for known, original in _twins.items():
        if original is cls:
            return known
    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__setattr__": _refuse,
        "__delattr__": _refuse,
        # Dataclasses compare ``__class__`` and ``dataclasses.replace`` calls it: both need the original class.
        "__class__": property(lambda self: cls),
        "__copy__": lambda self: _thaw_twin(self, lambda v: v),
        "__deepcopy__": lambda self, memo: _thaw_twin(self, thaw),
        "__reduce_ex__": lambda self, protocol: _thaw_twin(self, thaw).__reduce_ex__(protocol),
    }
    if issubclass(cls, msgspec.Struct):
        # Structs compare their types in C, so the twin compares its fields. Defining __eq__ would drop __hash__.
        body["__eq__"] = _same_fields
        body["__ne__"] = lambda self, other: not self == other  # noqa: SIM201 - the base class has its own __ne__
        body["__hash__"] = cls.__hash__
        body["__post_init__"] = lambda self: None  # the original's __post_init__ has run already
    else:
        body["__slots__"] = ()  # the same layout, so that an instance can be turned into its twin
    twin: Any = type(cls)(cls.__name__, (cls,), body)
    if hasattr(cls, "__pydantic_generic_metadata__"):
        twin.__pydantic_generic_metadata__ = cls.__pydantic_generic_metadata__  # models of a generic class compare it
    _twins[twin] = cls
    return twin


def _same_fields(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return all(getattr(self, n) == getattr(other, n) for n in self.__struct_fields__)


def _seal(own: type, made: Any, names: tuple[str, ...] | None) -> Any:
    """Freezes containers that the constructor of ``made`` may have thawed, and turns ``made`` into its twin."""
    for name in tuple(vars(made)) if names is None else names:
        value = getattr(made, name)
        if (frozen := _soft_freeze(value)) is not value:
            _force(made, name, frozen)
    if type(made) is own:
        return made
    if isinstance(made, msgspec.Struct):
        return _copy_fields(made, own, lambda v: v)
    object.__setattr__(made, "__class__", own)
    return made


def _force(made: Any, name: str, value: Any) -> None:
    if isinstance(made, msgspec.Struct):
        msgspec.structs.force_setattr(made, name, value)
    else:
        object.__setattr__(made, name, value)


def _soft_freeze(value: Any) -> Any:
    """Freezes containers, whatever they contain."""
    kind = type(value)
    if kind is list:
        return FrozenList([_soft_freeze(x) for x in value])
    if kind is dict:
        return FrozenDict({k: _soft_freeze(v) for k, v in value.items()})
    if kind is set:
        return frozenset(value)
    return _seal(_twin(kind), value, None) if hasattr(kind, "model_validate") and kind not in _twins else value


def _thaw_twin(twin: Any, each: Callable[[Any], Any]) -> Any:
    """Returns a mutable instance of a twin's original class with the same contents."""
    return _copy_fields(twin, _twins[type(twin)], each)


def _copy_fields(value: Any, cls: Any, each: Callable[[Any], Any]) -> Any:
    """Returns another instance, of ``cls``, with each field copied, whether it is in slots or in ``__dict__``."""
    if issubclass(cls, msgspec.Struct):
        names = [*cls.__struct_fields__]
        made = cls(**{n: getattr(value, n) for n in names})
    elif hasattr(cls, "model_validate"):
        dumps, loads = _options_of(cls)
        return cls.model_validate(thaw(value.model_dump(**dumps)), **loads)
    else:
        names = [f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []
        made = cls.__new__(cls)
    for name in dict.fromkeys([*names, *getattr(value, "__dict__", ())]):
        _force(made, name, each(getattr(value, name)))
    return made


def _builtin(cls: type, tag: str, dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> None:
    _by_type[cls] = _by_tag[tag] = _Codec(tag, cls, dump, load, exact=True)


def _finite(value: decimal.Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"{value} is not a finite number")
    return str(value)


_builtin(tuple, "tuple", list, tuple)
# The order of a set's items differs between processes; the order of their bytes does not.
_builtin(frozenset, "set", lambda v: sorted(v, key=lambda x: encode(admit(x))), frozenset)
_by_type[set] = _by_type[frozenset]
_builtin(dt.datetime, "datetime", lambda v: v.isoformat(), dt.datetime.fromisoformat)
_builtin(dt.date, "date", lambda v: v.isoformat(), dt.date.fromisoformat)
_builtin(dt.time, "time", lambda v: v.isoformat(), dt.time.fromisoformat)
_builtin(dt.timedelta, "timedelta", lambda v: [v.days, v.seconds, v.microseconds], lambda v: dt.timedelta(*v))
_builtin(decimal.Decimal, "decimal", _finite, decimal.Decimal)
_builtin(uuid.UUID, "uuid", lambda v: v.hex, uuid.UUID)
_builtin(pathlib.PosixPath, "path", str, pathlib.Path)
# Only integers wider than 64 bits are stored this way; Python limits the length of decimal text, but not of hexadecimal.
_builtin(int, "int", hex, lambda v: int(v, 16))


# -- admit ------------------------------------------------------------------------------------------

_ATOMS = frozenset({bool, type(None), bytes})
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


class _Walk:
    """One admission. ``boxed``: something in the value may need the extension when it is encoded."""

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
            self.boxed = True  # it was admitted before, so its contents are not checked again
            return value
        if kind is list:
            return FrozenList([self.admit(x, f"{path}[{i}]", depth + 1) for i, x in enumerate(value)])
        if kind is dict:
            return self.mapping(value, path, depth)
        return self._check_typed(kind, value, path, depth)

    def mapping(self, value: dict[Any, Any], path: str, depth: int) -> FrozenDict:
        """Admits a dict. Plain text and numbers, which most writes consist of, are handled inline, without a call or a path for each."""
        out = {}
        for key, item in value.items():
            if type(key) is not str or not key.isascii() or "\0" in key:
                _key(key, path)
            kind = type(item)
            if (kind is str and item.isascii() and "\0" not in item) or (kind is int and _INT_MIN <= item <= _INT_MAX):
                out[key] = item
            else:
                out[key] = self.admit(item, f"{path}.{key}", depth + 1)
        return FrozenDict(out)

    def _check_typed(self, kind: type, value: Any, path: str, depth: int) -> Any:
        self.boxed = True
        codec = _by_type.get(kind) or _meet(kind.__qualname__, kind)
        if codec is None and isinstance(value, dict):
            return self.admit(dict(value), path, depth)  # OrderedDict, defaultdict and the like: only their contents are kept
        if codec is None and isinstance(value, list):
            return self.admit(list(value), path, depth)
        if codec is None:
            raise Unserializable(path, f"a {kind.__module__}.{kind.__qualname__} cannot be stored", hint=_suggest(kind, value))
        try:
            fields = self.admit(codec.dump(value), path, depth + 1)
            loaded = codec.load(fields)
            if not codec.exact and not _same(codec.dump(loaded), fields):
                raise Unserializable(path, f"a {kind.__qualname__} changes when it is stored and read back")
            if not codec.exact and (field := _find_changed(value, loaded)):
                hint = "annotate the field with the class that it holds, or put plain values there"
                raise Unserializable(f"{path}.{field}", f"the field {field} of a {kind.__qualname__} would come back as something else", hint=hint)
            return loaded
        except Unserializable:
            raise
        except Exception as e:  # a user's constructor may raise anything; the error names the field
            hint = f"make its constructor accept the fields that it dumps, or register how it is stored: holdfast.register({kind.__qualname__}, dump=…, load=…)"
            raise Unserializable(path, f"a {kind.__qualname__} does not round-trip: {e}", hint=hint) from e


def _suggest(kind: type, value: Any) -> str:
    """Returns a hint on what to do with a value whose class is not registered."""
    name = kind.__qualname__
    if hasattr(kind, "__await__"):
        return "it was not awaited: write await in front of the call"
    if storable(kind):
        other = next((c for c in _named.get(name, ()) if c is not kind), None)
        if other is not None:
            return f'the class {other.__module__}.{name} has the same name; register this one with a tag of its own before it is used: holdfast.register({name}, tag="…")'
        return f"register the class before it is used: holdfast.register({name})"
    for plain in (str, int, float, bytes):
        if isinstance(value, (bytearray, memoryview) if plain is bytes else plain):
            return f"convert it: {plain.__name__}(…)"
    if isinstance(value, BaseException):
        return "store its text: str(…)"
    if callable(value):
        return "store a name, and look it up when you need it"
    if isinstance(value, Mapping):
        return "convert it to a dict: dict(…)"
    if isinstance(value, Iterable):
        return "convert it to a list: list(…)"
    if hasattr(kind, "__aiter__"):
        return "return a list: [x async for x in …]; ctx.emit(x) streams each value meanwhile"
    if kind.__module__ == "builtins" or not (hasattr(value, "__dict__") or hasattr(kind, "__slots__")):  # made in C: it has no attributes to store
        return "store plain values from which you can make it again"
    return f"store plain values, or register the class with two functions: holdfast.register({name}, dump=…, load=…)"


def _find_changed(value: Any, loaded: Any) -> str | None:
    """Returns the name of a field of a pydantic model that would come back as another value; None if there is none. pydantic dumps a field by its
    annotation: it drops what a subclass adds, and turns a model in an ``Any`` field into a dict. A field with ``exclude=True`` may be lost."""
    fields = getattr(type(value), "model_fields", None)
    if not isinstance(fields, dict):
        return None
    return next((n for n, field in fields.items() if not field.exclude and not _alike(getattr(loaded, n), getattr(value, n))), None)


def _alike(one: Any, other: Any) -> bool:
    """Does what ``_same`` does, also for values of classes that are not registered."""
    try:
        return _same(one, admit(other))
    except (Unserializable, KeyError):
        return False


def _same(again: Any, fields: Any) -> bool:
    """Whether two dumps of a value are the same. Their bytes are compared only if ``==`` is false, as it is for a class without ``__eq__``."""
    return bool(again == fields) or encode(admit(again)) == encode(fields)


def _check_text(text: str, path: str) -> None:
    if "\0" in text:
        raise Unserializable(path, "text holds U+0000, which databases refuse", hint="strip it, or pass bytes")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Unserializable(path, "text holds a lone surrogate", hint="decode with errors='replace', or pass bytes") from None


def _key(key: Any, path: str) -> None:
    if type(key) is not str:
        raise Unserializable(path, f"the key {key!r} is not a string", hint="use string keys")
    _check_text(key, path)


def admit(value: Any, path: str = "value") -> Any:
    """Returns the frozen copy of ``value`` that its stored form decodes to.

    Raises:
        Unserializable: with the path of the field that no store can keep (§1.10).
    """
    return _Walk().admit(value, path, 0)


def pack(value: Any, path: str = "value") -> tuple[Any, bytes]:
    """Admits and encodes a value: returns the frozen copy, and the bytes that decode to it."""
    walk = _Walk()
    frozen = walk.mapping(value, path, 0) if type(value) is dict else walk.admit(value, path, 0)
    data = encode(frozen) if walk.boxed else _encoder.encode(frozen)
    if len(data) > MAX_VALUE_BYTES:
        raise TooLarge(path, len(data), MAX_VALUE_BYTES, hint="keep the bulk in a file and store its name")
    return frozen, data


def encode_each(values: Sequence[Any], path: str) -> list[bytes]:
    """Returns the bytes of each value; ``path`` is the name in an error.

    Raises:
        Unserializable, TooLarge: for the first value that cannot be stored.
    """
    if {*map(type, values)} == {int} and min(values) >= _INT_MIN and max(values) <= _INT_MAX:  # common in fan-outs
        return [*map(_encoder.encode, values)]
    return [pack(value, path)[1] for value in values]


class ListOf(msgspec.Struct, frozen=True, gc=False):
    """The shape of lists whose items have the shape ``each``."""

    each: Shape


class DictOf(msgspec.Struct, frozen=True, gc=False):
    """The shape of dicts with string keys whose values have the shape ``each``."""

    each: Shape


Shape: TypeAlias = type | ListOf | DictOf | None
"""What a value must be to be stored without conversion: exactly of this class; ``object``: any plain value, and containers of these. None: it must be checked."""


def pack_plain(value: dict[Any, Any], shapes: Mapping[str, Shape], lists: Mapping[str, Shape]) -> tuple[FrozenDict, bytes] | None:
    """Does ``pack`` for a dict of plain values, and of lists and dicts of these. ``shapes`` has the shape of each key's value, ``lists`` that of the items of each list.
    Returns None if a value needs the full check."""
    frozen: FrozenDict | None = None
    for key, item in value.items():
        kind, asked = type(item), shapes.get(key) if type(key) is str else None
        if kind is str:
            if "\0" in item or (asked is not str and asked is not object):
                return None
        elif kind is int:
            if asked is not int and asked is not object:
                return None
        elif kind is list or kind is dict:
            made = _freeze_fields(item, asked, 0) if kind is dict else _freeze_items(item, lists.get(key), 0) if type(key) is str else None
            if made is None:
                return None
            if frozen is None:
                frozen = FrozenDict(value)
            dict.__setitem__(frozen, key, made)
        elif (kind is not asked and asked is not object) or (kind not in _ATOMS and not (kind is float and math.isfinite(item))):
            return None
    try:
        data = _encoder.encode(value)
    except (UnicodeEncodeError, OverflowError):
        return None  # a lone surrogate, or a number of more than eight bytes: the full check handles these
    return None if len(data) > MAX_VALUE_BYTES else (FrozenDict(value) if frozen is None else frozen, data)


def _freeze_items(items: list[Any], each: Shape, depth: int) -> FrozenList | None:
    """Returns the frozen copy of a list whose items have this shape, or None if an item needs the full check."""
    if each is None or depth > MAX_DEPTH:
        return None
    made = []
    for item in items:
        kind = type(item)
        if kind is dict:
            item = _freeze_fields(item, each, depth + 1)
            if item is None:
                return None
        elif kind is list:
            item = _freeze_items(item, _within(each, ListOf), depth + 1)
            if item is None:
                return None
        elif kind is int and (each is int or each is object):
            pass
        elif not _is_plain(kind, item, each):
            return None
        made.append(item)
    return FrozenList(made)


def _freeze_fields(value: dict[Any, Any], shape: Shape, depth: int) -> FrozenDict | None:
    """Returns the frozen copy of a dict of this shape, or None if a value in it needs the full check."""
    each = _within(shape, DictOf)
    if each is None or depth > MAX_DEPTH:
        return None
    frozen: FrozenDict | None = None
    for key, item in value.items():
        if type(key) is not str or "\0" in key:
            return None
        kind = type(item)
        if kind is str and (each is object or each is str):
            if "\0" in item:
                return None
        elif kind is list or kind is dict:
            made = _freeze_items(item, _within(each, ListOf), depth + 1) if kind is list else _freeze_fields(item, each, depth + 1)
            if made is None:
                return None
            if frozen is None:
                frozen = FrozenDict(value)
            dict.__setitem__(frozen, key, made)
        elif not _is_plain(kind, item, each):
            return None
    return FrozenDict(value) if frozen is None else frozen


def _within(shape: Shape, container: type[ListOf | DictOf]) -> Shape:
    """Returns the shape of the contents of such a container, or None if ``shape`` does not allow this kind of container."""
    return object if shape is object else shape.each if type(shape) is container else None


def _is_plain(kind: type, item: Any, asked: Shape) -> bool:
    """Whether a value of class ``kind`` is a plain value of the class ``asked``."""
    if kind is not asked and asked is not object:
        return False
    if kind is str:
        return "\0" not in item
    return kind is int or kind in _ATOMS or (kind is float and math.isfinite(item))


# -- bytes ------------------------------------------------------------------------------------------

_encoder = msgspec.msgpack.Encoder()
_sorted = msgspec.msgpack.Encoder(order="sorted")
_NATIVE: frozenset[type] = frozenset({str, bool, type(None), bytes, float})


_LEAVES: frozenset[type] = _NATIVE | {int}
_MAPPINGS: frozenset[Any] = frozenset((dict, FrozenDict))


def _box(value: Any, leaves: frozenset[type] = _LEAVES) -> Any:
    """Returns a value that msgpack can encode. Values of the types ``leaves``, and containers of nothing else, are returned unchanged."""
    kind = type(value)
    if kind in leaves:
        return value
    if kind is FrozenDict or kind is dict:
        if leaves.issuperset(map(type, value.values())):
            return value
        return {k: v if type(v) in leaves else _box(v, leaves) for k, v in value.items()}
    if kind is FrozenList or kind is list:
        kinds = {*map(type, value)}
        if kinds <= leaves or (kinds <= _MAPPINGS and leaves.issuperset(map(type, itertools.chain.from_iterable(map(dict.values, value))))):
            return value  # the second case: for example the messages of a conversation
        return [x if type(x) in leaves else _box(x, leaves) for x in value]
    if kind is int and _INT_MIN <= value <= _INT_MAX:
        return value
    codec = _by_type[kind]
    return msgspec.msgpack.Ext(_EXT, _encoder.encode([codec.tag, _box(codec.dump(value), leaves)]))


def _encode(encoder: msgspec.msgpack.Encoder, admitted: Any) -> bytes:
    try:
        return encoder.encode(_box(admitted))
    except OverflowError:  # a number has more than eight bytes: now each number is checked
        return encoder.encode(_box(admitted, _NATIVE))


def encode(admitted: Any) -> bytes:
    """Returns the bytes of an admitted value. The order of keys is kept, so equal bytes mean equal values."""
    return _encode(_encoder, admitted)


_looking: contextvars.ContextVar[bool] = contextvars.ContextVar("holdfast_looking", default=False)


@contextlib.contextmanager
def looking() -> Iterator[None]:
    """Inside this context, a value of a type that is not registered in this process is decoded as its fields.

    It serves to show a run in a process without the run's code (§14.3), never to drive one.
    """
    token = _looking.set(True)
    try:
        yield
    finally:
        _looking.reset(token)


def _ext_hook(code: int, data: memoryview) -> Any:
    if code == REFERENCE:
        raise EventUnreadable(f"a reference to {bytes(data[:32]).hex()} was found where its value was expected")
    if code == envelopes.CODE:
        raise envelopes.unavailable(envelopes.open_envelope(bytes(data)).header)
    if code != _EXT:
        raise EventUnreadable(f"extension {code} is not known")
    tag, fields = _decoder.decode(data)
    codec = _by_tag.get(tag) or _meet(tag) if isinstance(tag, str) else None
    if codec is None and isinstance(tag, str) and _looking.get():
        return freeze(plain(fields))
    if codec is None:
        raise EventUnreadable(f"the type {tag!r} is not registered", hint="import the module that registers it")
    return codec.load(freeze(fields))


_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_ext_hook)
_CONTAINERS = frozenset({list, dict})


def freeze(value: Any) -> Any:
    """Freezes the lists and dicts in a decoded value, without checks."""
    kind = type(value)
    if kind is dict:
        if _CONTAINERS.isdisjoint(map(type, value.values())):
            return FrozenDict(value)
        return FrozenDict({k: freeze(v) if type(v) in _CONTAINERS else v for k, v in value.items()})
    if kind is list:
        kinds = {*map(type, value)}
        if _CONTAINERS.isdisjoint(kinds):
            return FrozenList(value)
        if kinds == {dict} and _CONTAINERS.isdisjoint(map(type, itertools.chain.from_iterable(map(dict.values, value)))):
            return FrozenList(map(FrozenDict, value))  # for example the messages of a conversation
        return FrozenList([freeze(x) if type(x) in _CONTAINERS else x for x in value])
    return value


def decode(data: bytes | memoryview) -> Any:
    """Decodes stored bytes to a frozen value.

    Raises:
        EventUnreadable: damaged bytes or an unregistered type; nothing else is called (§14.3).
    """
    try:
        value = _decoder.decode(data)
        return freeze(value) if type(value) in _CONTAINERS else value
    except (EventUnreadable, KeyUnavailable):
        raise
    except Exception as e:  # a hostile payload may raise anything; the caller gets one typed error
        raise EventUnreadable(f"stored bytes cannot be decoded: {e}") from e


# -- views ------------------------------------------------------------------------------------------


def reveal(data: bytes | memoryview) -> Any:
    """Decodes stored bytes to values that JSON can represent. No registered type is loaded, so any process can show any run (§14.3).

    Registered types show their fields, dates and numbers their text, bytes their hex digits.

    Raises:
        EventUnreadable: damaged bytes.
    """
    try:
        return plain(_untyped.decode(data))
    except EventUnreadable:
        raise
    except Exception as e:  # as in decode: hostile bytes give one typed error
        raise EventUnreadable(f"stored bytes cannot be decoded: {e}") from e


def plain(value: Any) -> Any:
    """Returns the JSON form of a decoded, untyped value."""
    if isinstance(value, msgspec.msgpack.Ext):
        return _plain_ext(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {k if isinstance(k, str) else str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(x) for x in value]
    return value


def _plain_ext(ext: msgspec.msgpack.Ext) -> Any:
    data = bytes(ext.data)
    if ext.code == REFERENCE and len(data) == 40:
        return {"blob": data[:32].hex(), "size": int.from_bytes(data[32:], "big")}
    if ext.code == envelopes.CODE:
        return envelopes.show(envelopes.open_envelope(data).header)
    if ext.code != _EXT:
        raise EventUnreadable(f"extension {ext.code} is not known")
    tag, fields = _untyped.decode(data)
    if tag == "timedelta":
        return dt.timedelta(*fields).total_seconds()
    if tag == "int":
        return int(fields, 16) if len(fields) < 1_000 else fields  # longer ones have no decimal text
    return plain(fields)


_untyped: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()


# -- hashes -----------------------------------------------------------------------------------------


def chain(previous: bytes, data: bytes) -> bytes:
    """Returns H(previous, data): SHA-256 cut to 128 bits."""
    return hashlib.sha256(previous + data).digest()[:HASH_BYTES]


def chain_each(previous: bytes, parts: Iterable[bytes]) -> list[bytes]:
    """Returns the chain hash after each part, in order."""
    return [previous := chain(previous, data) for data in parts]


def fingerprint(value: Any, blind: str = "") -> str:
    """Returns a hash of a value that does not depend on the order of its keys; 32 hex digits.

    ``blind``: a run's id that is masked in the value, so that the same request with the id of a replay has the same hash (§6.3).
    """
    data = _encode(_sorted, admit(value))
    if blind:
        data = data.replace(blind.encode(), bytes(len(blind)))
    return hashlib.sha256(data).hexdigest()[:32]


def digest(parts: Iterable[str]) -> str:
    """Returns a short stable name for a list of strings; 32 hex digits."""
    h = hashlib.sha256()
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        h.update(len(raw).to_bytes(4, "big"))
        h.update(raw)
    return h.hexdigest()[:32]
