"""Converters of named arguments (§3.6): a plain value of the wanted type, or a refusal by the field's name."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from holdfast.core import bounds
from holdfast.core.errors import InvalidInput, TooLarge, UnknownOption


def act() -> None:
    return None


TAKEN: list[tuple[Any, Any, Any]] = [
    (bounds.asked, "", ""), (bounds.people, "ada", ("ada",)), (bounds.people, ["ada", "bob"], ("ada", "bob")), (bounds.words, "log", ["log"]),
    (bounds.words, ("log", ""), ["log", ""]), (bounds.variables, {"A": ""}, {"A": ""}), (bounds.path, "a/b", "a/b"),
    (bounds.path, pathlib.PurePosixPath("a"), "a"), (bounds.KNOWN["paths"], ["a", pathlib.PurePosixPath("b")], ("a", "b")),
    (bounds.several, [1, "a"], [1, "a"]), (bounds.data, b"x", b"x"), (bounds.KNOWN["from_step"], 3, 3), (bounds.KNOWN["from_step"], "draft", "draft"),
    (bounds.function, act, act),
]

REFUSED: list[tuple[Any, Any]] = [
    (bounds.asked, 3), (bounds.people, 3), (bounds.people, [3]), (bounds.people, {"a": 1}), (bounds.words, 3), (bounds.words, b"x"), (bounds.words, {"a": 1}),
    (bounds.words, [3]), (bounds.words, ["\0"]), (bounds.variables, [1]), (bounds.variables, {"A": 1}), (bounds.variables, {1: "a"}), (bounds.variables, {"A=B": "a"}), (bounds.variables, {"": "a"}), (bounds.path, 3),
    (bounds.path, b"a"), (bounds.path, "a\0b"), (bounds.KNOWN["paths"], "a"), (bounds.KNOWN["paths"], 3), (bounds.KNOWN["paths"], [3]), (bounds.KNOWN["paths"], {"a": 1}),
    (bounds.several, "abc"), (bounds.several, 3), (bounds.several, {"a": 1}), (bounds.data, "x"), (bounds.data, bytearray(b"x")),
]


@pytest.mark.parametrize(("convert", "given", "plain"), TAKEN)
def test_a_value_that_fits(convert: Any, given: Any, plain: Any) -> None:
    assert convert(given, "field") == plain


@pytest.mark.parametrize(("convert", "given"), REFUSED)
def test_a_value_that_does_not(convert: Any, given: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        convert(given, "field")
    assert "field" in caught.value.field and "field" in str(caught.value)


def test_bytes_are_bounded() -> None:
    with pytest.raises(TooLarge) as caught:
        bounds.data(b"x" * (16 * 1024 * 1024 + 1), "value")
    assert caught.value.field == "value"


def test_an_option_that_a_verb_does_not_have() -> None:
    @bounds.verb
    def find(run_id: str, *, limit: int = 3) -> tuple[str, int]:
        return run_id, limit

    assert find("r", limit=2) == ("r", 2) and find("r") == ("r", 3)
    with pytest.raises(UnknownOption) as caught:
        find("r", limt=2)  # type: ignore[call-arg]
    assert (caught.value.name, caught.value.nearest) == ("limt", "limit")
    with pytest.raises(InvalidInput):
        find("r", limit=0)
