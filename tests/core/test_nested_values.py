"""Values within values (§1.10, §4.2): the classes that the fields of a stored class name need no word of their own, and a model of pydantic comes back
as it was or is refused, whatever its fields are called and hold."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import enum
import itertools
import pickle
import types
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar

import msgspec
import pydantic
import pytest

from holdfast.core import canon
from holdfast.core.errors import EventUnreadable, Unserializable, UsageError

T = TypeVar("T")
count = itertools.count()


def made() -> Any:
    """Classes that nobody has seen before, each of which names the one before it."""
    n = next(count)
    m = types.SimpleNamespace(n=n)
    m.Colour = enum.Enum(f"Colour{n}", {"RED": 1})
    m.Leaf = dataclasses.make_dataclass(f"Leaf{n}", [("colour", m.Colour)])
    m.Tree = dataclasses.make_dataclass(f"Tree{n}", [("leaf", m.Leaf), ("more", list[m.Leaf])])
    m.Pair = NamedTuple(f"Pair{n}", [("tree", m.Tree), ("how", Literal["a", "b"])])
    m.Model = pydantic.create_model(f"Model{n}", colour=(m.Colour, ...), leaf=(m.Leaf | None, None))
    m.Mixed = msgspec.defstruct(f"Mixed{n}", [("pair", m.Pair), ("model", m.Model | None)])
    m.Page = types.new_class(f"Page{n}", (Generic[T],), {}, lambda body: body.update(__annotations__={"items": list[T]}))
    m.Page = dataclasses.dataclass(m.Page)
    m.leaf = m.Leaf(m.Colour.RED)
    m.whole = m.Mixed(m.Pair(m.Tree(m.leaf, [m.leaf]), "b"), m.Model(colour=m.Colour.RED, leaf=m.leaf))
    return m


@pytest.mark.parametrize(
    ("annotate", "give"),
    [
        (lambda m: m.Mixed, lambda m: m.whole),
        (lambda m: list[m.Mixed | None], lambda m: [m.whole]),
        (lambda m: TypedDict("Bag", {"mixed": m.Mixed}), lambda m: {"mixed": m.whole}),
        (lambda m: m.Page[m.Leaf], lambda m: m.Page([m.leaf])),
        (lambda m: NewType("Named", m.Leaf), lambda m: m.leaf),
        (lambda m: types.SimpleNamespace(__value__=m.Leaf), lambda m: m.leaf),  # as ``type Alias = Leaf`` makes it, from Python 3.12 on
        (lambda m: m.Model, lambda m: m.Model(colour=m.Colour.RED)),
    ],
)
def test_the_classes_that_fields_name_are_known(annotate: Any, give: Any) -> None:
    m = made()
    value = give(m)
    with pytest.raises(Unserializable, match="cannot be stored"):
        canon.admit(value)
    canon.register_named(annotate(m))
    frozen, data = canon.pack(value)
    assert frozen == value == canon.decode(data)


def test_they_are_known_to_a_process_that_has_stored_none_of_them() -> None:
    """Only bytes name them there, under the tags that another process has written."""
    n = next(count)

    def one(letter: str) -> Any:
        kind = enum.Enum(f"Status{n}{letter}", {"NEW": 1})
        order = dataclasses.make_dataclass(f"Order{n}{letter}", [("status", kind)])
        canon.register(order)
        return order(kind.NEW)

    written, other = canon.pack(one("a"))[1], one("b")
    assert canon.decode(written.replace(f"{n}a".encode(), f"{n}b".encode())) == other
    with pytest.raises(EventUnreadable, match=f"the type 'Status{n}c' is not registered"):
        canon.decode(written.replace(f"{n}a".encode(), f"{n}c".encode()))


def test_a_class_that_fields_name_takes_no_tag_from_another() -> None:
    """One that is registered in its own right keeps its tag, before and after; of two that only fields name, each is to be given a tag."""

    def one(module: str) -> Any:
        kind = enum.Enum("Status", {"NEW": 1})
        kind.__module__, kind.__qualname__ = module, f"Status{n}"
        return kind, dataclasses.make_dataclass(f"Order{module}{n}", [("status", kind)])

    n = next(count)
    (first, order), (second, bill), (third, _) = one("a"), one("b"), one("c")
    canon.register(order)
    assert canon.decode(canon.pack(order(first.NEW))[1]) == order(first.NEW)
    canon.register(bill)
    with pytest.raises(Unserializable) as refused:
        canon.admit(bill(second.NEW))
    assert refused.value.hint.startswith(f"the class a.Status{n} has the same name; register this one with a tag of its own")
    assert canon.decode(canon.pack(order(first.NEW))[1]) == order(first.NEW)
    with pytest.raises(UsageError, match="give this class another tag"):
        canon.register(third)
    canon.register(second, tag=f"b.Status{n}")
    assert canon.decode(canon.pack(bill(second.NEW))[1]) == bill(second.NEW)

    n = next(count)
    (first, order), (second, bill), (third, _) = one("a"), one("b"), one("c")
    canon.register(third)
    canon.register(order)
    assert canon.decode(canon.pack(third.NEW)[1]) is third.NEW
    with pytest.raises(Unserializable, match="cannot be stored"):
        canon.admit(order(first.NEW))

    n = next(count)
    (first, order), (second, bill), _ = one("a"), one("b"), one("c")
    canon.register(order)
    canon.register(bill)
    for value in (order(first.NEW), bill(second.NEW)):  # neither is guessed at
        with pytest.raises(Unserializable, match="cannot be stored"):
            canon.admit(value)


def test_a_module_that_is_loaded_anew_makes_its_classes_anew() -> None:
    def load() -> Any:
        kind = enum.Enum("Status", {"NEW": 1})
        kind.__qualname__ = f"Status{n}"
        order = dataclasses.make_dataclass("Order", [("status", kind)])
        order.__qualname__ = f"Order{n}"
        canon.register(order)
        return order(kind.NEW)

    n = next(count)
    load()
    value = load()
    assert canon.decode(canon.pack(value)[1]) == value


def test_a_type_that_cannot_be_resolved_is_refused_when_it_is_met() -> None:
    n = next(count)
    kind = enum.Enum(f"Late{n}", {"NEW": 1})
    order = dataclasses.make_dataclass(f"Order{n}", [("status", "Nowhere")])
    canon.register(order)
    with pytest.raises(Unserializable, match=f"register the class before it is used: holdfast.register\\(Late{n}\\)"):
        canon.admit(order(kind.NEW))


class Base(pydantic.BaseModel):
    a: int = 1


class Derived(Base):
    more: str = "x"


class AliasedFields(pydantic.BaseModel):
    user_id: int = pydantic.Field(alias="userId")
    other: int = pydantic.Field(default=0, validation_alias="user_id")  # whose alias is the name of another field


class Computing(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    a: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.a


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    some: set[int]
    day: dt.date


class Holder(pydantic.BaseModel):
    items: list[Base]
    client: Annotated[Any, pydantic.Field(exclude=True)] = None


class Paged(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Loose(pydantic.BaseModel):
    any: Any


class Shouting(pydantic.BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def shout(cls, value: str) -> str:
        return f"{value}!"


class Picky(pydantic.BaseModel):
    first: int = 0

    @pydantic.model_validator(mode="after")
    def check(self) -> Picky:
        if self.first > 5:
            raise ValueError("too great")
        return self


for model in (Base, AliasedFields, Computing, Strict, Holder, Paged[Base], Loose, Shouting, Picky):
    canon.register(model, tag=f"nested.{model.__qualname__}")


@pytest.mark.parametrize(
    "value",
    [
        AliasedFields(userId=1, user_id=2),
        Computing(a=2),
        Strict(some={1}, day=dt.date(2026, 1, 2)),
        Holder(items=[Base(a=2)]),
        Paged[Base](items=[Base()]),
        Loose(any=[1, {"a": {2}}, None]),
    ],
)
def test_a_model_comes_back_as_it_was(value: Any) -> None:
    frozen, data = canon.pack(value)
    read = canon.decode(data)
    assert frozen == value == read and type(copy.deepcopy(read)) is type(value)
    assert copy.deepcopy(read) == value == pickle.loads(pickle.dumps(read))


@pytest.mark.parametrize(
    ("value", "path", "said"),
    [
        (Holder(items=[Derived()]), "v.items", "the field items of a Holder would come back as something else"),
        (Loose(any=Base()), "v.any", "the field any of a Loose would come back as something else"),
        (Loose(any=[Derived()]), "v.any", "annotate the field with the class that it holds, or put plain values there"),
        (Shouting(name="a"), "v", "a Shouting changes when it is stored and read back"),
        (Picky.model_construct(first=6), "v", r"(?s)too great.*or register how it is stored: holdfast.register\(Picky, dump=…, load=…\)"),
    ],
)
def test_a_model_that_would_come_back_as_another_is_refused(value: Any, path: str, said: str) -> None:
    """pydantic dumps by annotation: of a subclass it left out what is new, and nobody was told."""
    with pytest.raises(Unserializable, match=said.replace("\n", " ")) as refused:
        canon.admit(value, "v")
    assert refused.value.path == path


def test_what_an_author_excludes_is_left_out() -> None:
    assert canon.admit(Holder(items=[], client=object())).client is None


def test_a_class_that_only_the_code_of_a_skill_names_can_be_read() -> None:
    """§14.3: the code is searched once, for a tag that is not known; an unknown class of a value to be stored is refused as before."""
    asked: Any = dataclasses.make_dataclass(f"Asked{next(count)}", [("n", int)])

    def node() -> None: ...

    looked: list[str] = []

    def find(function: Any) -> list[Any]:
        looked.append(function.__name__)
        return [list[asked]]

    def stored(tag: str) -> bytes:
        return msgspec.msgpack.encode(msgspec.msgpack.Ext(1, msgspec.msgpack.encode([tag, {"n": 1}])))

    canon.note_code(node, find)
    with pytest.raises(Unserializable):
        canon.pack(asked(1), "x")
    assert looked == []
    assert canon.decode(stored(asked.__qualname__)) == asked(1) and looked == ["node"]
    with pytest.raises(EventUnreadable, match="not registered"):
        canon.decode(stored("nobody's"))
    assert looked == ["node"]
