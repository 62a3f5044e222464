"""Converters of named arguments (§3.6): a plain value of the wanted type, or a refusal by the field's name."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from holdfast.core import arguments
from holdfast.core.errors import InvalidInput, TooLarge, UnknownOption


def act() -> None:
    return None


TAKEN: list[tuple[Any, Any, Any]] = [
    (arguments.asked, "", ""), (arguments.people, "ada", ("ada",)), (arguments.people, ["ada", "bob"], ("ada", "bob")), (arguments.words, "log", ["log"]),
    (arguments.words, ("log", ""), ["log", ""]), (arguments.variables, {"A": ""}, {"A": ""}), (arguments.path, "a/b", "a/b"),
    (arguments.path, pathlib.PurePosixPath("a"), "a"), (arguments.KNOWN["paths"], ["a", pathlib.PurePosixPath("b")], ("a", "b")),
    (arguments.several, [1, "a"], [1, "a"]), (arguments.data, b"x", b"x"), (arguments.KNOWN["from_step"], 3, 3), (arguments.KNOWN["from_step"], "draft", "draft"),
    (arguments.function, act, act),
]  # fmt: skip

REFUSED: list[tuple[Any, Any]] = [
    (arguments.asked, 3), (arguments.people, 3), (arguments.people, [3]), (arguments.people, {"a": 1}), (arguments.words, 3), (arguments.words, b"x"), (arguments.words, {"a": 1}),
    (arguments.words, [3]), (arguments.words, ["\0"]), (arguments.variables, [1]), (arguments.variables, {"A": 1}), (arguments.variables, {1: "a"}), (arguments.path, 3),
    (arguments.path, b"a"), (arguments.path, "a\0b"), (arguments.KNOWN["paths"], "a"), (arguments.KNOWN["paths"], 3), (arguments.KNOWN["paths"], [3]), (arguments.KNOWN["paths"], {"a": 1}),
    (arguments.several, "abc"), (arguments.several, 3), (arguments.several, {"a": 1}), (arguments.data, "x"), (arguments.data, bytearray(b"x")),
]  # fmt: skip


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
        arguments.data(b"x" * (16 * 1024 * 1024 + 1), "value")
    assert caught.value.field == "value"


def test_an_option_that_a_verb_does_not_have() -> None:
    @arguments.verb
    def find(run_id: str, *, limit: int = 3) -> tuple[str, int]:
        return run_id, limit

    assert find("r", limit=2) == ("r", 2) and find("r") == ("r", 3)
    with pytest.raises(UnknownOption) as caught:
        find("r", limt=2)  # type: ignore[call-arg]
    assert (caught.value.name, caught.value.nearest) == ("limt", "limit")
    with pytest.raises(InvalidInput):
        find("r", limit=0)
