"""Dicts whose keys no store can keep are found in what is declared (§1.10, §3.7)."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import types
import uuid
from collections.abc import Callable, Mapping, MutableMapping
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from holdfast.core import canon
from holdfast.core.keys import find_unkept

T = TypeVar("T")
Name, Number = NewType("Name", str), NewType("Number", int)


class Colour(enum.StrEnum):
    RED = "red"


class Short(str): ...


@dataclasses.dataclass
class Data:
    held: dict[int, str]


@dataclasses.dataclass
class Empty:
    """Its values can be stored for as long as nobody fills them."""

    held: dict[int, str] = dataclasses.field(default_factory=dict)
    other: dict[int, str] | None = None


class Struct(msgspec.Struct):
    deep: list[Data]


class Lazy(msgspec.Struct):
    held: dict[int, str] = {}


class Model(pydantic.BaseModel):
    held: dict[int, str]


class Careful(pydantic.BaseModel):
    """Its serializer makes text of the keys."""

    held: dict[int, str]

    @pydantic.field_serializer("held")
    def text(self, held: dict[int, str]) -> dict[str, str]:
        return {str(k): v for k, v in held.items()}


class Marked(pydantic.BaseModel):
    held: Annotated[dict[int, str], pydantic.PlainSerializer(lambda held: {str(k): v for k, v in held.items()})]


class Typed(TypedDict):
    held: dict[int, str]


class Perhaps(TypedDict):
    held: NotRequired[dict[int, str]]


class Pair(NamedTuple):
    held: dict[int, str]
    other: dict[int, str] | None = None


class Box(Generic[T]):
    held: dict[int, T]


class Tree(msgspec.Struct):
    below: list[Tree]
    held: dict[str, Tree]


class Unresolved(msgspec.Struct):
    held: Nobody  # type: ignore[name-defined]  # noqa: F821


@dataclasses.dataclass
class Own:
    held: dict[int, str]


canon.register(Own, dump=lambda v: [[k, x] for k, x in v.held.items()], load=lambda v: Own(dict(v)))


@pytest.mark.parametrize(
    ("annotation", "path"),
    [
        (dict[int, str], ""), (dict[bool, str], ""), (dict[float, str], ""), (dict[bytes, str], ""), (dict[None, str], ""), (dict[tuple[int, int], str], ""),
        (dict[uuid.UUID, str], ""), (dict[dt.date, str], ""), (dict[dt.datetime, str], ""), (dict[Colour, int], ""), (dict[Short, int], ""), (dict[Number, int], ""),
        (dict[Literal[1, 2], int], ""), (dict[int | None, str], ""), (dict[int | float, str], ""), (dict[Annotated[int, "x"], str], ""),
        (dict[Data, str], ""), (dict[Struct, str], ""), (Mapping[int, str], ""), (MutableMapping[int, str], ""), (collections.Counter[int], ""),
        (dict[int, str] | None, ""), (Annotated[dict[int, str], "x"], ""), (list[dict[int, str]], ""), (dict[str, dict[int, str]], ""), (tuple[str, dict[int, str]], ""),
        (types.SimpleNamespace(__value__=dict[int, str]), ""),  # as ``type Alias = …`` makes it, from Python 3.12 on
        (Data, ".held"), (list[Data | None], ".held"), (Struct, ".deep.held"), (Model, ".held"), (Typed, ".held"), (Pair, ".held"),
    ],
    ids=str,
)
def test_it_can_never_be_filled(annotation: Any, path: str) -> None:
    found = find_unkept(annotation)
    assert found is not None and found.path == path


@pytest.mark.parametrize(
    "annotation",
    [
        Any, object, int, dict, dict[str, int], dict[Any, int], dict[object, int], dict[T, int], dict[Name, int], dict[Literal["a", 1], int], dict[str | int, int],  # type: ignore[valid-type]
        dict[Annotated[str, "x"], int], Mapping[str, int], list[int], tuple[int, ...], Literal["a"], Callable[[int], str], "dict[int, str]", None,
        Empty, Lazy, Careful, Marked, Perhaps, Box[int], Tree, Unresolved, Own, list[Own],
    ],
    ids=str,
)
def test_it_is_given_the_benefit_of_the_doubt(annotation: Any) -> None:
    """Also what is filled only in some values, and what is stored by functions of its author's."""
    assert find_unkept(annotation) is None


def test_what_is_refused_cannot_be_stored_and_what_is_not_can() -> None:
    for kind in (Data, Model, Careful, Marked):
        canon.register(kind, f"keys.{kind.__name__}")
    for value, kept in (
        ({1: "a"}, False), ({Colour.RED: 1}, False), ({Short("a"): 1}, False), ({b"a": 1}, False), (Data({1: "a"}), False), (Model(held={1: "a"}), False),
        (Own({1: "a"}), True), ({"a": 1}, True), (Data({}), True),
    ):
        if kept:
            assert canon.decode(canon.pack(value, "x")[1]) == value
        else:
            with pytest.raises(canon.Unserializable, match="not a string"):
                canon.pack(value, "x")
