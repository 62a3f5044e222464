"""State is what its annotations say (§3.7)."""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import datetime as dt
import decimal
import enum
import pathlib
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, Protocol, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Graph, State, append, merge, override, window
from holdfast.core import canon, kinds, superstep
from holdfast.core.channels import MISSING, Reducer
from holdfast.core.errors import InvalidInput, InvalidWrite, Unserializable
from holdfast.core.kinds import Misfit, compile_kind

Name = NewType("Name", str)
T = typing.TypeVar("T")


class Colour(enum.Enum):
    RED = "red"
    ONE = 1


class Word(str):
    """Text of a class of its own."""


class Place(Protocol):
    here: int


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Line:
    to: int
    tags: list[str] = dataclasses.field(default_factory=list)
    share: float = 1.0
    after: Optional[Line] = None  # noqa: UP045 - resolved late, by its own name
    size: int = dataclasses.field(default=0, init=False)


class Shape(msgspec.Struct):
    sides: int
    name: str = ""


class Entry(TypedDict):
    key: str
    at: NotRequired[dt.date]


class Lost:
    hidden: Nowhere  # type: ignore[name-defined]  # noqa: F821


@dataclasses.dataclass
class Unresolved:
    x: Nowhere  # type: ignore[name-defined]  # noqa: F821


class Model:
    """What pydantic's models look like from here."""

    def __init__(self, n: int) -> None:
        self.n = n

    @classmethod
    def model_validate(cls, given: dict[str, Any]) -> Model:
        if not isinstance(given.get("n"), int):
            raise ValueError("n is an int")
        return cls(given["n"])


Small = Annotated[int, msgspec.Meta(ge=0, le=9)]
DAY, NOON = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
ID = uuid.UUID(int=7)

FITS: list[tuple[Any, Any, Any]] = [
    (int, 3, 3), (int, Colour.ONE.value, 1), (float, 3, 3.0), (float, 2.5, 2.5), (str, "a", "a"), (str, Word("a"), "a"), (bool, True, True), (bytes, b"x", b"x"),
    (None, None, None), (int | None, None, None), (int | str, "a", "a"), (float | int, 3, 3), (str | dt.date, "2026-01-02", "2026-01-02"), (dt.date | None, "2026-01-02", DAY),
    (Literal["a", 1], "a", "a"), (Literal["a", 1], 1, 1), (dt.date, DAY, DAY), (dt.date, "2026-01-02", DAY), (dt.datetime, "2026-01-02T12:00:00Z", NOON),
    (uuid.UUID, str(ID), ID), (uuid.UUID, ID, ID), (decimal.Decimal, "1.50", decimal.Decimal("1.50")), (dt.timedelta, "PT5S", dt.timedelta(seconds=5)),
    (Colour, "red", Colour.RED), (Colour, 1, Colour.ONE), (Colour, Colour.RED, Colour.RED), (pathlib.Path, "a/b", pathlib.Path("a/b")), (pathlib.Path, pathlib.Path("a"), pathlib.Path("a")),
    (list[int], [1, 2], [1, 2]), (list[float], [1, 2.5], [1.0, 2.5]), (list[int], (1, 2), [1, 2]), (abc.Sequence[str], ["a"], ["a"]), (list, ["a", 1], ["a", 1]),
    (set[str], ["a", "a"], {"a"}), (set[str], {"a"}, {"a"}), (frozenset[float], [1], frozenset({1.0})), (set, [1], {1}),
    (tuple[int, ...], [1, 2], (1, 2)), (tuple[int, str], [1, "a"], (1, "a")), (tuple, [1, "a"], (1, "a")), (tuple[Any, ...], [1], (1,)),
    (dict[str, int], {"a": 1}, {"a": 1}), (dict[str, float], {"a": 1}, {"a": 1.0}), (dict, {"a": "b"}, {"a": "b"}), (abc.Mapping[str, Any], {"a": 1}, {"a": 1}), (dict[Any, Any], {"a": 1}, {"a": 1}),
    (Entry, {"key": "a"}, {"key": "a"}), (Entry, {"key": "a", "at": "2026-01-02"}, {"key": "a", "at": DAY}),
    (Line, {"to": 1, "tags": ["a"]}, Line(1, ["a"])), (Line, Line(1), Line(1)), (Line, Line(1, share=1), Line(1, share=1.0)), (Line, {"to": 1, "after": {"to": 2}}, Line(1, after=Line(2))),
    (Shape, {"sides": 3}, Shape(3)), (Shape, Shape(4), Shape(4)), (Point, [1, 2], Point(1, 2.0)), (Point, Point(1), Point(1)),
    (Small, 3, 3), (Annotated[str, "a note"], "a", "a"), (Annotated[list[int], msgspec.Meta(max_length=2)], [1], [1]), (Annotated[Any, msgspec.Meta(title="x")], 5, 5),
    (Name, "a", "a"), (Unresolved, {"x": object}, Unresolved(object)), (type[int], int, int), (typing.Final[int], 3, 3), (Annotated[Line, msgspec.Meta(title="x")], Line(1), Line(1)),
]

REFUSED: list[tuple[Any, Any, str]] = [
    (int, "1", "v"), (int, True, "v"), (int, 1.0, "v"), (float, "1", "v"), (float, True, "v"), (float, 10**400, "v"), (str, 1, "v"), (str, b"a", "v"), (bool, 1, "v"), (bytes, "eA==", "v"),
    (None, 0, "v"), (int | None, "a", "v"), (Literal["a", 1], True, "v"), (dt.date, NOON, "v"), (dt.date, "yesterday", "v"), (dt.datetime, 5, "v"), (uuid.UUID, "7", "v"),
    (Colour, "blue", "v"), (Colour, True, "v"), (pathlib.Path, 3, "v"), (list[int], "12", "v"), (list[int], [1, "2"], "v[1]"), (list[list[int]], [[1], ["a"]], "v[1][0]"),
    (set[str], "ab", "v"), (set, [[1]], "v"), (tuple[int, str], [1], "v"), (tuple[int, ...], "a", "v"), (dict[str, int], [1], "v"), (dict[str, int], {"a": "b"}, "v.a"),
    (dict[str, int], {1: 1}, "a key of v"), (Entry, {"at": "2026-01-02"}, "v.key"), (Entry, {"key": "a", "more": 1}, "v.more"), (Entry, 3, "v"),
    (Line, {"to": "a"}, "v.to"), (Line, {"too": 1}, "v.too"), (Line, {"to": 1, "size": 3}, "v.size"), (Line, {}, "v"), (Line, 5, "v"), (Line, Line("a"), "v.to"), (Line, Line(1, tags=[1]), "v.tags[0]"),  # type: ignore[arg-type, list-item]
    (Shape, {"sides": "3"}, "v"), (Shape, "three", "v"), (Shape, Shape("x"), "v.sides"), (Point, [1], "v"), (Point, ["a", 1], "v.x"),  # type: ignore[arg-type]
    (Small, 10, "v"), (Annotated[list[int], msgspec.Meta(max_length=2)], [1, 2, 3], "v"), (Model, {"n": "a"}, "v"), (Model, 3, "v"), (Lost, 3, "v"),
]


@pytest.mark.parametrize(("kind", "given", "wanted"), FITS)
def test_what_fits_or_is_spelt(kind: Any, given: Any, wanted: Any) -> None:
    found = compile_kind(kind)
    made = given if found is None else found.fit(given, "v")
    assert made == wanted and type(made) is type(wanted)


@pytest.mark.parametrize(("kind", "given", "path"), REFUSED)
def test_what_does_not_fit(kind: Any, given: Any, path: str) -> None:
    found = compile_kind(kind)
    assert found is not None
    with pytest.raises(Misfit) as caught:
        found.fit(given, "v")
    error = caught.value
    assert error.path == path and error.wanted and error.given and path in str(error)


@pytest.mark.parametrize("kind", [Any, object, T, "Later", Place, int | Any, Literal["a"].__class__ and Any])
def test_what_says_nothing_takes_everything(kind: Any) -> None:
    assert compile_kind(kind) is None


def test_a_model_by_its_own_rules() -> None:
    found = compile_kind(Model)
    assert found is not None
    there = Model(3)
    assert found.fit(there, "v") is there and found.fit({"n": 4}, "v").n == 4


def test_what_fits_as_it_is_is_not_copied() -> None:
    """What nodes see is shared (§4.2): holding it against its annotation must not cost a copy."""
    frozen = canon.admit({"a": [1, 2], "b": {"c": 1}})
    for kind, value in ((list[int], frozen["a"]), (dict[str, int], frozen["b"]), (dict[str, Any], frozen)):
        found = compile_kind(kind)
        assert found is not None and found.fit(value, "v") is value


def test_which_classes_need_no_look() -> None:
    assert [k is not None and k.exact for k in map(compile_kind, (int, str, float, bool, bytes, list[int], dt.date))] == [int, str, float, bool, bytes, None, None]


def write(annotation: Any, tag: str, value: Any, default: Any = 0, takes: Any = Any) -> Any:
    found = kinds.of_write(annotation, tag, default, takes)
    return value if found is None else found.fit(value, "v")


@pytest.mark.parametrize("tag", ["append", "topic", "window:3"])
def test_a_channel_that_grows_takes_items(tag: str) -> None:
    assert write(list[float], tag, 1) == 1.0 and write(list[float], tag, [1, 2.5]) == [1.0, 2.5]
    assert write(list, tag, "a") == "a" and write(Any, tag, 3) == 3 and write(list[int] | None, tag, 3) == 3
    assert write(Annotated[list[str], msgspec.Meta(max_length=3)], tag, ["a"]) == ["a"] and write(tuple[str, ...], tag, "a") == "a"
    assert write(list[int], tag, value := canon.admit([1])) is value
    for value in ("a", ["a"], [1, None]):
        with pytest.raises(Misfit):
            write(list[int], tag, value)


def test_the_other_reducers() -> None:
    assert write(dict[str, int], "merge", {"a": 1}) == {"a": 1} and write(int, "custom", "anything") == "anything"
    assert write(str, "last", None, default=None) is None and kinds.of_value(str, None) is not None
    for annotation, tag, value, takes in ((dict[str, int], "merge", {"a": "b"}, Any), (int, "custom", "a", int), (str, "last", None, Any), (int, "override", "a", Any)):
        with pytest.raises(Misfit):
            write(annotation, tag, value, takes=takes)


# -- where they stand in a round ----------------------------------------------------------------------


def summed(old: int, new: int) -> int:
    return old + new


def shouted(old: str, new: str) -> Any:
    return [old, new]


def lost(old: Nowhere, new: Nowhere) -> Any:  # type: ignore[name-defined]  # noqa: F821
    return new


def alone(*both: int) -> Any:
    return sum(both)


class Everything(State):
    n: int = 0
    text: str = ""
    share: float = 0.0
    total: Annotated[int, summed] = 0
    loud: Annotated[str, shouted] = ""
    odd: Annotated[int, lost] = 0
    both: Annotated[int, alone] = 0
    plain: Any = None
    due: dt.date | None = None
    facts: Annotated[Any, merge]


async def body(state: Everything) -> None:
    return None


def program() -> Any:
    graph = Graph("everything", Everything)
    graph.node("body", start=True)(body)
    return graph.program


def test_a_reducer_says_what_it_takes_or_nothing() -> None:
    found = program()
    assert found.writes.keys() >= {"n", "text", "share", "total", "loud"} and not found.writes.keys() & {"odd", "both", "plain", "facts"}
    assert "odd" in found.values


def test_what_a_node_writes() -> None:
    found = program()
    node = found.nodes["body"]
    writes = canon.admit({"n": 1, "text": "a", "plain": 3})
    assert superstep.fit_writes(found, node, writes) is writes
    assert superstep.fit_writes(found, node, canon.admit({"share": 1, "n": 2})) == {"share": 1.0, "n": 2}
    with pytest.raises(InvalidWrite) as caught:
        superstep.fit_writes(found, node, canon.admit({"n": "1"}))
    assert caught.value.field == "n" and "int" in str(caught.value)


def test_what_comes_from_outside() -> None:
    found = program()
    assert superstep.check_input(found, {"share": 2})["share"] == 2.0
    for wrong, field in (({"n": "1"}, "n"), ({"facts": 3}, "input.facts")):
        with pytest.raises(InvalidInput) as caught:
            superstep.check_input(found, wrong)
        assert caught.value.field == field


def test_what_a_reducer_makes() -> None:
    found = program()
    for name, old in (("loud", "a"), ("loud", MISSING)):
        value = "b" if old == "a" else 3
        with pytest.raises(InvalidWrite):
            superstep.reduce_write(name, found.channels[name].reducer, old, value, found.values[name])
    assert superstep.reduce_write("total", found.channels["total"].reducer, 1, 2, found.values["total"]) == 3
    assert superstep.reduce_write("facts", found.channels["facts"].reducer, MISSING, {"a": 1}) == {"a": 1}
    assert superstep.reduce_write("share", Reducer("custom", lambda old, new: 3), 1.0, 2, found.values["share"]) == 3.0


def test_a_write_that_is_spelt_and_stays_what_it_was() -> None:
    found = program()
    writes = canon.admit({"due": dt.date(2026, 1, 2), "text": "a"})
    assert superstep.fit_writes(found, found.nodes["body"], writes) is writes
    odd = compile_kind(Bare)
    assert odd is not None and odd.fit(Bare(), "v")


@dataclasses.dataclass
class Bare:
    """Its field is never set."""

    x: int = dataclasses.field(init=False)


TAKEN: list[Any] = [Any, int, float, str, bool, bytes, list, dict, list[int], list[str | None], list[dict[str, Any]], dict[str, Any], dict[str, int], dict[str, str], dict[str, list[float]], list[list[str]], Line, int | None]
PLAIN = st.one_of(st.integers(-1, 2**64), st.text("aé\0\ud800", max_size=2), st.floats(), st.booleans(), st.none(), st.binary(max_size=1), st.just(Word("w")))
VALUES = st.recursive(PLAIN, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["k", "to", "é"]), inner, max_size=2)), max_leaves=5)


@given(st.sampled_from(TAKEN), st.sampled_from([None, append, merge, window(2), override]), VALUES, st.booleans())
def test_an_input_that_is_taken_as_it_is_would_be_taken_so_at_length(annotation: Any, reducer: Any, value: Any, named: bool) -> None:
    """Issue «Speed»: the short way of an input takes nothing that the long one refuses or converts."""
    if reducer is append or type(reducer) is type(window(2)):
        annotation = list[annotation]
    namespace = {"__annotations__": {"x": annotation if reducer is None else Annotated[annotation, reducer]}, "__module__": __name__}
    graph: Graph[Any] = Graph("g", type("Some", (State,), namespace), version="1")

    @graph.node(start=True)
    async def only(state: Any) -> None: ...

    program, given_ = graph.program, {"x" if named else "y": value}
    try:
        found, data = superstep.check_input(program, given_), b""
        data = canon.encode(found)
    except (InvalidInput, Unserializable) as e:
        with pytest.raises(type(e)):
            superstep.pack_input(program, given_)
    else:
        packed = superstep.pack_input(program, given_)
        assert packed == (found, data) and repr(packed) == repr((found, data)) and show_kinds(packed[0]) == show_kinds(found)


def show_kinds(value: Any) -> Any:
    if isinstance(value, list):
        return [type(value), *map(show_kinds, value)]
    return [type(value), {k: show_kinds(v) for k, v in value.items()}] if isinstance(value, dict) else type(value)
