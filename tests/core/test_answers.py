"""Does an answer fit what was asked for? A table of both sides, and a judge that knows: the types themselves (§5.2)."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import answers
from holdfast.core.errors import InvalidAnswer

CHILD = {"$ref": "#/$defs/Tree", "$defs": {"Tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}}}
NUMBERED = {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}

FITS: list[tuple[Any, Any]] = [
    (True, object()),
    (None, 1),
    ({}, {"anything": [1]}),
    ({"title": "what people see"}, 3),
    ({"type": "string"}, ""),
    ({"type": "integer"}, -3),
    ({"type": "integer"}, 3.0),
    ({"type": "number"}, 3),
    ({"type": "number"}, 3.5),
    ({"type": "boolean"}, False),
    ({"type": "null"}, None),
    ({"type": "array"}, [1, "a"]),
    ({"type": "array"}, (1, "a")),
    ({"type": "object"}, {"a": 1}),
    ({"type": ["string", "null"]}, None),
    ({"type": ["string", "null"]}, "x"),
    ({"type": "of-a-draft-to-come"}, object()),
    ({"enum": ["a", 1]}, 1),
    ({"const": None}, None),
    ({"minimum": 3}, 3),
    ({"maximum": 3}, 3),
    ({"exclusiveMinimum": 3}, 3.1),
    ({"exclusiveMaximum": 3}, 2.9),
    ({"minLength": 2, "maxLength": 2}, "ab"),
    ({"minItems": 1, "maxItems": 1}, ["a"]),
    ({"minItems": 1, "maxItems": 1}, ("a",)),
    ({"pattern": "b"}, "abc"),
    # A limit says nothing of what it does not measure.
    ({"minimum": 3}, "a"),
    ({"minimum": 3}, False),
    ({"minLength": 3}, [1]),
    ({"minItems": 3}, "a"),
    ({"pattern": "b"}, 7),
    ({"properties": {"a": {"type": "string"}}}, {}),
    ({"properties": {"a": {"type": "string"}}}, {"b": 1}),
    ({"properties": {"a": {"type": "string"}}}, "no object"),
    ({"properties": {"a": {"type": "string"}}, "additionalProperties": False}, {"a": "x"}),
    ({"additionalProperties": {"type": "integer"}}, {"a": 1, "b": 2}),
    ({"additionalProperties": True}, {"a": 1}),
    ({"type": "array", "items": {"type": "integer"}}, [1, 2]),
    (NUMBERED, ["a", 1, object()]),
    ({**NUMBERED, "items": False}, ["a", 1]),
    ({**NUMBERED, "items": {"type": "null"}}, ["a", 1, None]),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
    ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "x"),
    ({"anyOf": []}, 1),
    ({"anyOf": [{"type": "string"}, {"type": "integer"}], "minimum": 3}, 3),
    (CHILD, {"kids": [{"kids": []}]}),
    ({"$ref": "#/$defs/Nowhere"}, object()),
    ({"$ref": "#/type/deeper", "type": "string"}, object()),
]

MISFITS: list[tuple[Any, Any, str]] = [
    ({"type": "string"}, 3, "answer: 3 is not string"),
    ({"type": "integer"}, 3.5, "answer: 3.5 is not integer"),
    ({"type": "integer"}, True, "answer: True is not integer"),
    ({"type": "number"}, True, "answer: True is not number"),
    ({"type": "number"}, "3", "answer: '3' is not number"),
    ({"type": "boolean"}, 0, "answer: 0 is not boolean"),
    ({"type": "null"}, 0, "answer: 0 is not null"),
    ({"type": "array"}, "ab", "answer: 'ab' is not array"),
    ({"type": "object"}, ["a"], "answer: ['a'] is not object"),
    ({"type": ["string", "null"]}, 3, "answer: 3 is not string or null"),
    ({"enum": ["a", 1]}, "b", "answer: 'b' is not one of 'a', 1"),
    ({"const": None}, 0, "answer: 0 is not None"),
    ({"minimum": 3}, 2, "answer: 2 violates minimum 3"),
    ({"maximum": 3}, 4, "answer: 4 violates maximum 3"),
    ({"exclusiveMinimum": 3}, 3, "answer: 3 violates exclusiveMinimum 3"),
    ({"exclusiveMaximum": 3}, 3, "answer: 3 violates exclusiveMaximum 3"),
    ({"minLength": 3}, "ab", "answer: 'ab' violates minLength 3"),
    ({"maxLength": 1}, "ab", "answer: 'ab' violates maxLength 1"),
    ({"minItems": 2}, [1], "answer: [1] violates minItems 2"),
    ({"maxItems": 0}, (1,), "answer: (1,) violates maxItems 0"),
    ({"pattern": "^b"}, "ab", "answer: 'ab' violates pattern '^b'"),
    ({"required": ["a", "b"]}, {"b": 1}, "answer.a: missing"),
    ({"properties": {"a": {"type": "string"}}}, {"a": 1}, "answer.a: 1 is not string"),
    ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1, "b": 2}, "answer.b: not asked for"),
    ({"properties": {"a": {}}, "additionalProperties": {"type": "string"}}, {"a": 1, "b": 2}, "answer.b: 2 is not string"),
    ({"items": {"type": "integer"}}, [1, "b"], "answer[1]: 'b' is not integer"),
    (NUMBERED, [1, "b"], "answer[0]: 1 is not string; answer[1]: 'b' is not integer"),
    ({**NUMBERED, "items": False}, ["a", 1, 2], "answer[2]: not asked for"),
    ({**NUMBERED, "items": {"type": "null"}}, ["a", 1, 2], "answer[2]: 2 is not null"),
    (CHILD, {"kids": [{}, {"kids": [3]}]}, "answer.kids[1].kids[0]: 3 is not object"),
    ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Tree"}], "$defs": CHILD["$defs"]}, 3, "answer: 3 matches none of string | Tree"),
    ({"oneOf": [False, {"type": "null"}]}, 3, "answer: 3 matches none of nothing | null"),
    (False, 3, "answer: not asked for"),
    ({"properties": {"a": False}}, {"a": 1}, "answer.a: not asked for"),
    ({"items": False}, [1], "answer[0]: not asked for"),
    # What a choice is called, whatever it says of itself.
    (
        {"anyOf": [{"const": "a"}, {"enum": [7]}, {"type": ["null", "array"]}, {"minimum": 9}]}, 3,
        "answer: 3 matches none of a | [7] | null or array | another shape",
    ),
    # What is wrong at all is told once, not what follows from it.
    ({"type": "string", "enum": ["a"]}, 3, "answer: 3 is not string"),
    ({"anyOf": [{"type": "string"}], "enum": ["a"]}, 3, "answer: 3 matches none of string"),
    ({"$ref": "#/$defs/T", "$defs": {"T": {"type": "string"}}, "enum": []}, 3, "answer: 3 is not string"),
    # Several things may be wrong; the first five are named.
    ({"enum": ["a"], "const": "b", "maxLength": 0}, "cc", "answer: 'cc' is not one of 'a'; answer: 'cc' is not 'b'; answer: 'cc' violates maxLength 0"),
    ({"required": list("abcdefg")}, {}, "; ".join(f"answer.{n}: missing" for n in "abcde")),
    # A long answer is not repeated at length.
    ({"type": "null"}, "x" * 58, "answer: " + repr("x" * 58) + " is not null"),
    ({"type": "null"}, "x" * 59, "answer: '" + "x" * 56 + "... is not null"),
]


@pytest.mark.parametrize(("schema", "answer"), FITS)
def test_these_fit(schema: Any, answer: Any) -> None:
    """§5.2: what the schema does not speak of is free."""
    answers.check(schema, answer)


@pytest.mark.parametrize(("schema", "answer", "says"), MISFITS)
def test_these_do_not_and_it_says_where(schema: Any, answer: Any, says: str) -> None:
    """§5.2: refused with the path of what is wrong, and the question stays open."""
    with pytest.raises(InvalidAnswer) as e:
        answers.check(schema, answer)
    assert (e.value.message, e.value.code, e.value.hint) == (says, "invalid_answer", "the question stays open; answer again")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    x: int
    y: list[str] = []


class Tree(msgspec.Struct):
    leaf: Strict | None
    kids: list[Tree] = []


class Told(TypedDict):
    name: str
    when: int | None


KINDS: list[Any] = [
    str, int, float, bool, None, Any, int | None, str | bool, list[int], dict[str, float], tuple[int, str], tuple[int, ...], Literal["a", 1],
    Colour, Strict, Tree, Told, list[Tree], Annotated[int, msgspec.Meta(ge=0, lt=2)], Annotated[float, msgspec.Meta(gt=0, le=2)],
    Annotated[str, msgspec.Meta(min_length=1, max_length=2, pattern="^a")], Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)],
]
WORDS = st.sampled_from(["", "a", "ab", "abc", "red", "b"])
# No float that is whole: to JSON Schema 1.0 is an integer, to the library that judges here it is not.
ATOMS = st.none() | st.booleans() | st.integers(-1, 3) | st.sampled_from([-0.5, 0.5, 2.5]) | WORDS
KEYS = st.sampled_from(["x", "y", "leaf", "kids", "name", "when", "other"])
JSON = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_an_answer_fits_a_types_schema_exactly_when_the_type_takes_it(kind: Any, data: st.DataObject) -> None:
    """§5.2: refused early, by a process that has never seen the type, is what the step would refuse, and nothing else."""
    value = data.draw(st.one_of(JSON, _close(kind)))
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        with pytest.raises(InvalidAnswer):
            answers.check(msgspec.json.schema(kind), value)
    else:
        answers.check(msgspec.json.schema(kind), value)


def _close(kind: Any) -> st.SearchStrategy[Any]:
    """Values that a structure nearly takes: right names, any contents."""
    strict = st.fixed_dictionaries({"x": ATOMS}, optional={"y": st.lists(ATOMS, max_size=2), "other": ATOMS})
    tree = st.recursive(
        st.fixed_dictionaries({"leaf": st.none() | strict}),
        lambda inner: st.fixed_dictionaries({"leaf": st.none() | strict}, optional={"kids": st.lists(inner, max_size=2)}),
        max_leaves=3,
    )
    told = st.fixed_dictionaries({"name": WORDS}, optional={"when": ATOMS})
    known: dict[Any, st.SearchStrategy[Any]] = {Strict: strict, Tree: tree, Told: told, list[Tree]: st.lists(tree, max_size=2)}
    return known.get(kind, st.lists(st.integers(0, 3) | WORDS, max_size=3))
