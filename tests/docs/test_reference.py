"""The API reference is complete: every public name, parameter and error, each with its words."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = maker()
PAGES = {home: MAKER.page(home) for home in MAKER.HOMES}


def public() -> list[tuple[str, str, Any]]:
    """Every public function and member: home, name and what it is."""
    found = []
    for home in MAKER.HOMES:
        module = importlib.import_module(home)
        for name in MAKER.names(home):
            value = getattr(module, name)
            found.append((home, name, value))
            if inspect.isclass(value):
                found += [(home, f"{name}.{member}", function) for member, function, _ in MAKER.members(value)]
    return found


PUBLIC = public()


def test_every_public_name_is_on_its_page_with_words() -> None:
    assert len(PUBLIC) > 250
    bare = [f"{home}.{name}" for home, name, value in PUBLIC if callable(value) and not (value.__doc__ or "").strip()]
    assert bare == []
    missing = [f"{home}.{name}" for home, name, _ in PUBLIC if not re.search(rf"^##+ {re.escape(name)}$", PAGES[home], re.M)]
    assert missing == []


def test_every_parameter_is_typed_and_named_in_its_signature() -> None:
    wrong = []
    for home, name, value in PUBLIC:
        if not inspect.isfunction(value):
            continue
        for p in inspect.signature(value).parameters.values():
            if p.name in ("self", "cls"):
                continue
            if p.annotation is inspect.Parameter.empty or p.name not in PAGES[home]:
                wrong.append(f"{home}.{name}({p.name})")
    assert wrong == []


def test_every_error_says_its_code_and_what_it_means() -> None:
    page = PAGES["holdfast.core.errors"]
    errors = importlib.import_module("holdfast.core.errors")
    for name in MAKER.names("holdfast.core.errors"):
        kind = getattr(errors, name)
        assert kind.__dict__.get("__doc__"), name
        assert f"Code `{kind.code}`, exit code {kind.exit_code}." in page, name


def test_what_a_docstring_says_is_raised_is_an_error_of_ours_or_of_python() -> None:
    import builtins

    errors = importlib.import_module("holdfast.core.errors")
    outcomes = importlib.import_module("holdfast")
    unknown = []
    for home, name, value in PUBLIC:
        section = re.search(r"Raises:\n(.*?)(?:\n\n|\Z)", inspect.cleandoc(value.__doc__ or "") if callable(value) else "", re.S)
        for word in re.findall(r"(?:^|\. |, )\s*([A-Z]\w+)(?=[:,])", section[1] if section else "", re.M):
            if not any(hasattr(place, word) for place in (errors, builtins, outcomes)) and not re.search(rf"class {word}\b", _sources()):
                unknown.append(f"{home}.{name}: {word}")
    assert unknown == []


def _sources() -> str:
    return "\n".join(p.read_text("utf-8") for p in (ROOT / "src" / "holdfast").rglob("*.py"))


def test_no_number_of_a_clause_reaches_a_reader() -> None:
    assert [home for home, page in PAGES.items() if "§" in page] == []


@pytest.mark.parametrize("home", list(MAKER.HOMES))
def test_the_pages_are_written_as_they_are_made(home: str, tmp_path: Path) -> None:
    made = MAKER.write(tmp_path)
    index, pages = made[0].read_text("utf-8"), {p.name for p in made[1:]}
    assert set(re.findall(r"\(([\w-]+\.md)\)", index)) == pages
    assert PAGES[home] in {p.read_text("utf-8") for p in made[1:]}
