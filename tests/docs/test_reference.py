"""The API reference is complete: every public name, parameter and error, each with its words."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast import Context, Runtime

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


def test_what_must_be_awaited_is_shown_as_async() -> None:
    named = {(home, name) for home, name, value in PUBLIC if "." not in name and inspect.iscoroutinefunction(value)}
    assert ("holdfast.testing", "transcript") in named
    assert [name for home, name in named if f"\nasync {name}(" not in PAGES[home]] == []


@pytest.mark.parametrize("kind", [Context, Runtime])
def test_a_long_class_begins_with_a_list_of_its_members_by_what_they_are_for(kind: type) -> None:
    said = PAGES["holdfast"].partition(f"\n## {kind.__name__}\n")[2].partition("\n### ")[0]
    listed = re.findall(r"\[`(\w+)`\]\(#(\w+)\)", "\n".join(line for line in said.splitlines() if line.startswith("- ")))
    assert [anchor for name, anchor in listed if anchor != f"{kind.__name__}{name}".lower()] == []
    assert sorted(name for name, _ in listed) == sorted(member for member, *_ in MAKER.members(kind))


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


def test_no_number_of_a_clause_or_case_reaches_a_reader() -> None:
    shown = {home: re.findall(r"§[\d.]*|\b[A-Z]-\d\d\b", page) for home, page in PAGES.items()}
    assert {home: found for home, found in shown.items() if found} == {}


def test_no_number_of_a_clause_is_part_of_a_sentence() -> None:
    """A number is left out of the page, so a sentence that needs it would be shown with a hole."""
    cited = re.compile(rf"\((?:{MAKER.CLAUSE}(?:, )?)+\)")
    needed = [f"{home}.{name}" for home, name, value in PUBLIC if re.search(MAKER.CLAUSE, cited.sub("", words(value)))]
    assert needed == []


def words(value: Any) -> str:
    """The docstring that belongs to a value itself, not to its type."""
    kind = inspect.isclass(value) or inspect.isroutine(value)
    return inspect.cleandoc((value.__doc__ or "") if kind else "")


def test_a_value_is_explained_by_its_own_words() -> None:
    page = PAGES["holdfast"]
    shown = {name: page.split(f"\n## {name}\n")[1].split("\n## ")[0] for name in MAKER.names("holdfast")}
    values = [n for n in shown if n in ("START", "END", "append", "last", "merge", "override", "topic", "secret", "thread")]
    said = {name: re.sub(r"```text.*?```", "", shown[name], flags=re.S).strip() for name in values}
    assert len(values) == 9
    assert len(set(said.values())) == 9
    assert not [name for name, text in said.items() if not text or "str(object" in text or "`tag`" in text]


def test_no_class_is_shown_with_a_signature_that_is_not_its_own() -> None:
    assert [home for home, page in PAGES.items() if re.search(r"^\w+\((?:\*args, \*\*kwargs|iterable=|value, names=)", page, re.M)] == []
    assert all(f"- `{word}`" in PAGES["holdfast.testing"] for word in ("before", "after", "lost", "applied"))


def entries(value: Any) -> Iterator[tuple[str, str, str]]:
    """What the sections of a docstring list: section, what is named, and its words."""
    for section, body in re.findall(r"^(Args|Raises):\n(.*?)(?=\n\n|\Z)", words(value), re.S | re.M):
        for entry in re.split(r"\n(?= {4}\S)", body):
            name, _, text = entry.strip().partition(":")
            yield section, name, " ".join(text.split())


def test_every_parameter_that_is_explained_is_one_of_the_signature() -> None:
    wrong = []
    for home, name, value in PUBLIC:
        if value is None or not callable(value):
            continue
        known = set(inspect.signature(value).parameters) if inspect.isfunction(value) or "Args:" in words(value) else set()
        wrong += [f"{home}.{name}({n})" for section, said, _ in entries(value) if section == "Args" for n in said.split(", ") if n not in known]
    assert wrong == []


def test_each_error_is_listed_on_a_line_of_its_own() -> None:
    crowded = []
    for home, name, value in PUBLIC:
        crowded += [f"{home}.{name}: {said}" for _, said, text in entries(value) if re.search(r"\. [A-Za-z]\w+: ", text)]
    assert crowded == []


def test_every_option_of_a_new_run_is_explained() -> None:
    runtime = importlib.import_module("holdfast").Runtime
    explained = {n for section, said, _ in entries(runtime.invoke) if section == "Args" for n in said.split(", ")}
    assert set(inspect.signature(runtime.invoke).parameters) - {"self"} == explained
    others = {"submit": {"at", "delay"}, "run_stream": {"modes"}}
    for verb, own in others.items():
        function = getattr(runtime, verb)
        assert set(inspect.signature(function).parameters) - {"self"} <= explained | own
        assert own <= {n for section, said, _ in entries(function) if section == "Args" for n in said.split(", ")}
        assert "`invoke`" in MAKER.prose(function.__doc__)


def test_no_code_span_is_broken_over_two_lines() -> None:
    for home, page in PAGES.items():
        lines = re.sub(r"```.*?```", "", page, flags=re.S).splitlines()
        assert [line for line in lines if line.count("`") % 2] == [], home


def test_an_error_names_its_exit_code_once() -> None:
    page = PAGES["holdfast.core.errors"]
    assert re.findall(r"Exit code \d", page) == []


HOUSE_WORDS = (
    r"drives?|driven|drove|driving|rests?|at rest|anew|goes on|on record|beneath|whoever|heals?|midst|kin|lineages?|incarnation|dedupes?|vouch"
    r"|the ones? there|none such|is none that|gets on|as may|stands? (?:at|as|in|where)"
)


def test_the_pages_use_the_words_of_the_field() -> None:
    """Words that only the people who work on the package understand; names of the interface stand in code spans."""
    found = {home: re.findall(rf"[^.\n]*\b(?:{HOUSE_WORDS})\b[^.\n]*", re.sub(r"```.*?```|`[^`]*`|^#[^\n]*", "", page, flags=re.S | re.M)) for home, page in PAGES.items()}
    assert {home: sentences for home, sentences in found.items() if sentences} == {}


def test_every_page_begins_with_what_its_names_are_for() -> None:
    for home, page in PAGES.items():
        assert len(page.split("\n## ")[0].split(f"`{home}`", 1)[1].split()) > 8, home


def test_the_pages_are_written_as_they_are_made(tmp_path: Path) -> None:
    made = MAKER.write(tmp_path)
    index, pages = made[0].read_text("utf-8"), {p.name for p in made[1:]}
    assert set(re.findall(r"\(([\w-]+\.md)\)", index)) == pages
    assert set(PAGES.values()) <= {p.read_text("utf-8") for p in made[1:]}
