"""Checks an answer against a JSON Schema; supports the part of JSON Schema that type annotations produce (§5.2).

A wait stores the schema of its answer, so that a process without the author's types can refuse an answer and name the
path of the fault. The step that asked converts the answer to its type again when it continues.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.core.errors import InvalidAnswer

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list, tuple),
    "object": (dict,),
}
_LIMITS: dict[str, Callable[[Any, Any], bool]] = {
    "minimum": lambda v, n: v >= n,
    "maximum": lambda v, n: v <= n,
    "exclusiveMinimum": lambda v, n: v > n,
    "exclusiveMaximum": lambda v, n: v < n,
    "minLength": lambda v, n: len(v) >= n,
    "maxLength": lambda v, n: len(v) <= n,
    "minItems": lambda v, n: len(v) >= n,
    "maxItems": lambda v, n: len(v) <= n,
    "pattern": lambda v, p: re.search(p, v) is not None,
}


def check(schema: Any, answer: Any) -> None:
    """Checks a plain answer against a schema.

    Raises:
        InvalidAnswer: names the paths of the first values that do not fit.
    """
    found = list(_faults(schema, answer, "answer", schema))
    if found:
        raise InvalidAnswer("; ".join(found[:5]), hint="the question stays open; answer again")


def _faults(schema: Any, value: Any, path: str, root: Any) -> Iterator[str]:
    if schema is False:
        yield f"{path}: not asked for"
    if not isinstance(schema, Mapping):
        return
    if "$ref" in schema:
        yield from _faults(_resolve(root, str(schema["$ref"])), value, path, root)
        return
    for name in ("anyOf", "oneOf"):
        choices = schema.get(name)
        if choices and not any(not list(_faults(c, value, path, root)) for c in choices):
            yield f"{path}: {_short(value)} matches none of {' | '.join(_what(c) for c in choices)}"
            return
    kinds = schema.get("type")
    if kinds is not None and not any(_is(value, k) for k in (kinds if isinstance(kinds, list) else [kinds])):
        yield f"{path}: {_short(value)} is not {_what(schema)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {_short(value)} is not one of {', '.join(map(_short, schema['enum']))}"
    if "const" in schema and value != schema["const"]:
        yield f"{path}: {_short(value)} is not {_short(schema['const'])}"
    for name, holds in _LIMITS.items():
        if name in schema and _measurable(name, value) and not holds(value, schema[name]):
            yield f"{path}: {_short(value)} violates {name} {schema[name]!r}"
    if isinstance(value, dict):
        yield from _members(schema, value, path, root)
    elif isinstance(value, list | tuple):
        yield from _items(schema, value, path, root)


def _members(schema: Mapping[str, Any], value: dict[str, Any], path: str, root: Any) -> Iterator[str]:
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}: missing"
    for name, each in value.items():
        yield from _faults(known.get(name, others), each, f"{path}.{name}", root)


def _items(schema: Mapping[str, Any], value: Any, path: str, root: Any) -> Iterator[str]:
    first, others = schema.get("prefixItems", ()), schema.get("items")
    for i, each in enumerate(value):
        yield from _faults(first[i] if i < len(first) else others, each, f"{path}[{i}]", root)


def _resolve(root: Any, ref: str) -> Any:
    found = root
    for part in ref.removeprefix("#/").split("/"):
        found = found.get(part, {}) if isinstance(found, Mapping) else {}
    return found


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _measurable(name: str, value: Any) -> bool:
    if name == "pattern" or name.endswith("Length"):
        return isinstance(value, str)
    if name.endswith("Items"):
        return isinstance(value, list | tuple)
    return isinstance(value, int | float) and not isinstance(value, bool)


def _what(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "nothing"
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    kind = schema.get("type")
    return " or ".join(kind) if isinstance(kind, list) else str(kind or schema.get("const") or schema.get("enum") or "another shape")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
