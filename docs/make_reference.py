"""Writes the API reference: one page for each home of public names, from their signatures and docstrings.

    python docs/make_reference.py [FOLDER]      (by default docs/reference)
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

HOMES = {
    "holdfast": "Graphs, flows, the runtime and their results",
    "holdfast.handle": "What streams, events and lists are made of",
    "holdfast.policy": "Policies",
    "holdfast.transports": "Transports",
    "holdfast.tools": "Tools and their postconditions",
    "holdfast.shelf": "Shelves: rows of your application in the same store",
    "holdfast.named": "Stores and executors for programs that use an agreed interface",
    "holdfast.api": "The HTTP API in an application of yours",
    "holdfast.testing": "Testing",
    "holdfast.core.errors": "Errors",
}
GIVEN = ("CheckpointView", "DeliveryView", "EventView", "IntentView", "LedgerView", "RulingView", "ScheduleChange", "StreamPart")
"""What the runtime's verbs return and nobody makes: it is imported by nobody either, and so is not among the public names of ``holdfast``."""
HERE = Path(__file__).parent
CLAUSE = r"(?:§[\d.]*\d|\b[A-Z]-\d\d\b)"
"""The number of a clause, or of a case, of the specification: for those who work on the package, not for readers of the pages."""


def names(home: str) -> list[str]:
    """The public names of a module, in the order of the alphabet."""
    module = importlib.import_module(home)
    if home == "holdfast.handle":
        return sorted(GIVEN)
    if home == "holdfast.core.errors":
        return sorted(n for n, v in vars(module).items() if inspect.isclass(v) and issubclass(v, module.HoldfastError) and v.__module__ == home)
    return sorted(module.__all__)


def members(kind: type) -> Iterator[tuple[str, Any, str]]:
    """The public members that a class of ours declares: name, function, and how it is reached."""
    for name, value in vars(kind).items():
        if name.startswith("_") or name in getattr(kind, "__struct_fields__", ()):
            continue
        if isinstance(value, property):
            yield name, value.fget, "property"
        elif isinstance(value, classmethod | staticmethod):
            yield name, value.__func__, "classmethod"
        elif inspect.isfunction(value):
            yield name, value, "async" if inspect.iscoroutinefunction(value) else ""


def signature(name: str, value: Any) -> str:
    """A callable as it is called, its annotations as they stand in the source."""
    try:
        found = inspect.signature(value)
    except (ValueError, TypeError):
        return name
    own = "." in getattr(value, "__qualname__", "")
    shown = [p for p in found.parameters.values() if not (own and p.name in ("self", "cls"))]
    plain = found.replace(parameters=[p.replace(annotation=_plain(p.annotation), default=_default(p.default)) for p in shown], return_annotation=_plain(found.return_annotation))
    return f"{name}{plain}"


class _Text:
    """A default as it is printed in a signature."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _default(value: Any) -> Any:
    if value is inspect.Parameter.empty or isinstance(value, str | int | float | bool | None | tuple):
        return value
    return _Text("…") if value is ... else _Text(getattr(value, "__name__", None) or re.sub(r" at 0x[0-9a-f]+|<|>", "", repr(value)))


def _plain(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    return _Text(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def prose(text: str | None) -> str:
    """A docstring as Markdown: lists for what its sections name, no numbers of clauses."""
    text = re.sub(rf"\s*\((?:{CLAUSE}(?:, )?)+\)", "", inspect.cleandoc(text or "")).replace("``", "`")
    text = re.sub(r"^(Args|Raises|Returns|Yields):$", r"\n*\1*\n", text, flags=re.M)
    text = re.sub(r"^    (`?[\w.*, ]+`?): ", r"- `\1`: ", text, flags=re.M)
    return re.sub(r"^ {4,}", "  ", text, flags=re.M).strip()


def explained(home: str, name: str) -> str:
    """The words of a public name: those of its class or function, or for a plain value those that follow it in its source."""
    value = getattr(importlib.import_module(home), name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return value.__doc__ or ""
    for source in (home, *getattr(importlib.import_module(home), "HOMES", ())):
        body = ast.parse(inspect.getsource(importlib.import_module(source))).body
        for statement, after in itertools.pairwise(body):
            named = isinstance(statement, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in statement.targets)
            if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                return after.value.value
    return ""


def called(kind: type) -> bool:
    """Whether a class of ours is made by calling it with arguments of its own."""
    return not (issubclass(kind, msgspec.Struct | BaseException | enum.Enum) or getattr(kind, "_is_protocol", False)) and "__init__" in vars(kind)


def fields(kind: type) -> Iterator[str]:
    """The fields of a typed value, with their defaults; the values of an enumeration."""
    if issubclass(kind, enum.Enum):
        yield from (f"- `{member.value}`" for member in kind)
    if not issubclass(kind, msgspec.Struct):
        yield from (f"- `{name}`: `{text}`" for name, text in vars(kind).get("__annotations__", {}).items() if isinstance(text, str) and not name.startswith("_"))
        return
    for field in msgspec.structs.fields(kind):
        default = "" if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT else " (optional)"
        yield f"- `{field.name}`: `{inspect.formatannotation(field.type).replace('typing.', '')}`{default}"


def groups(kind: type, shown: Iterable[str]) -> Iterator[str]:
    """The members of a long class by the headings in its source (``# -- name ---``), each with a link to its place on the page."""
    parts = re.split(r"^    # -- (.+?) -+$", inspect.getsource(kind), flags=re.M)
    known = list(shown)
    if len(parts) > 1:
        parts[2] = parts[0] + parts[2]
    for title, source in zip(parts[1::2], parts[2::2], strict=True):
        found = [name for name in dict.fromkeys(re.findall(r"^    (?:async )?def (\w+)", source, re.M)) if name in known]
        if found:
            yield f"- {title}: " + " · ".join(f"[`{name}`](#{kind.__name__.lower()}{name.lower()})" for name in found)


def page(home: str) -> str:
    """The page of one module."""
    module = importlib.import_module(home)
    out = [f"# {HOMES[home]}", "", f"`{home}`", "", prose(module.__doc__), ""]
    for name in names(home):
        value = getattr(module, name)
        kind = inspect.isclass(value)
        out += [f"## {name}", ""]
        if called(value) if kind else callable(value):
            out += ["```text", f"{'async ' if inspect.iscoroutinefunction(value) else ''}{signature(name, value)}", "```", ""]
        out += [prose(explained(home, name)), ""]
        if kind:
            if issubclass(value, BaseException) and getattr(value, "code", ""):
                out += [f"Code `{value.code}`, exit code {value.exit_code}.", ""]
            out += [*fields(value), ""]
            out += [*groups(value, [member for member, *_ in members(value)]), ""]
            for member, function, how in members(value):
                head = f"{member}: {function.__annotations__['return']}" if how == "property" else signature(member, function)
                out += [f"### {name}.{member}", "", "```text", f"{how} {head}".strip(), "```", "", prose(function.__doc__), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip() + "\n"


def installed(home: str) -> bool:
    """Whether a module can be imported here: some need an extra of the package."""
    try:
        importlib.import_module(home)
    except ModuleNotFoundError as e:
        if (e.name or "").startswith("holdfast"):
            raise
        return False
    return True


def write(folder: Path) -> list[Path]:
    """Writes all pages and their index; the page of a module whose extra is not installed is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    homes = {home: title for home, title in HOMES.items() if installed(home)}
    for home in homes:
        made.append(folder / f"{home.removeprefix('holdfast.').replace('.', '-')}.md")
        made[-1].write_text(page(home), "utf-8")
    index = folder / "index.md"
    lines = [f"- [{title}]({file.name}): `{home}`" for (home, title), file in zip(homes.items(), made, strict=True)]
    index.write_text("# API reference\n\n" + "\n".join(lines) + "\n", "utf-8")
    return [index, *made]


if __name__ == "__main__":
    for file in write(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "reference"):
        sys.stdout.write(f"{file}\n")
