"""§3.7: state is what its annotations say, whatever they say: every JSON-able annotation against values made for it and values made for others.

What fits is what ``msgspec.convert(strict=True)`` takes, with what it makes of it; nothing else is taken, and the field is named. In one place
we are stricter: a number does not become a decimal, for its digits may not be those that were written.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core import canon, superstep
from holdfast.core.errors import HoldfastError, InvalidInput, TooLarge
from holdfast.named import CheckpointStore
from holdfast.stores.memory import MemoryStore


class Hue(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclasses.dataclass(frozen=True)
class Spot:
    x: int
    y: float = 0.0


class Piece(msgspec.Struct, frozen=True):
    name: str
    tags: list[str] = []


class Address(TypedDict):
    street: str
    number: int


whole = st.integers(-(2**53), 2**53)
real = st.floats(allow_nan=False, allow_infinity=False, width=32)
text = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=5)
day = st.dates().map(dt.date.isoformat)
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, whole), "float": (float, real | whole), "str": (str, text), "bool": (bool, st.booleans()), "None": (None, st.none()),
    "optional": (Optional[int], whole | st.none()), "union": (int | str, whole | text), "literal": (Literal["a", 3], st.sampled_from(["a", 3])),  # noqa: UP045
    "list": (list[int], st.lists(whole, max_size=3)), "nested": (list[dict[str, int | None]], st.lists(st.dictionaries(text, whole | st.none(), max_size=2), max_size=2)),
    "dict": (dict[str, float], st.dictionaries(text, real, max_size=3)), "tuple": (tuple[int, str], st.tuples(whole, text).map(list)),
    "typed dict": (Address, st.fixed_dictionaries({"street": text, "number": whole})), "dataclass": (Spot, st.fixed_dictionaries({"x": whole}, optional={"y": real})),
    "struct": (Piece, st.fixed_dictionaries({"name": text}, optional={"tags": st.lists(text, max_size=2)})), "enum": (Hue, st.sampled_from(["red", "blue"])),
    "int enum": (Level, st.sampled_from([1, 2])), "date": (dt.date, day), "datetime": (dt.datetime, st.datetimes(timezones=st.just(dt.UTC)).map(dt.datetime.isoformat)),
    "uuid": (uuid.UUID, st.uuids().map(str)), "decimal": (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str)),
    "bounded": (Annotated[int, msgspec.Meta(ge=0, le=9)], st.integers(0, 9)), "pattern": (Annotated[str, msgspec.Meta(max_length=2)], st.text("ab", max_size=2)),
}
ANY = st.one_of(*(values for _, values in KINDS.values()), st.binary(max_size=3).map(list), st.just([[]]), st.just({"x": "1"}), st.just({"name": 3}))


def graph_of(annotation: Any) -> Graph[Any]:
    made: type[State] = type(State)("Made", (State,), {"__annotations__": {"field": annotation}, "__module__": __name__})
    graph = Graph("typed", made)

    @graph.node(start=True)
    async def nothing(state: Any) -> None:
        return None

    return graph


PROGRAMS = {name: graph_of(annotation).program for name, (annotation, _) in KINDS.items()}


def held(kind: str, value: Any) -> None:
    """Our answer is that of ``msgspec.convert``, and it names the field."""
    annotation, _ = KINDS[kind]
    try:
        wanted = msgspec.convert(value, annotation, strict=True)
        if kind == "decimal" and not isinstance(value, str):
            raise msgspec.ValidationError("a number is no decimal: 1.1 is not 1.1")
    except msgspec.ValidationError:
        with pytest.raises(InvalidInput) as caught:
            superstep.check_input(PROGRAMS[kind], {"field": value})
        assert "field" in caught.value.field and "field" in str(caught.value), caught.value
        return
    found = superstep.check_input(PROGRAMS[kind], {"field": value})["field"]
    assert canon.fingerprint(found) == canon.fingerprint(canon.admit(wanted)), (kind, value, found)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_value_made_for_it(kind: str, data: st.DataObject) -> None:
    held(kind, data.draw(KINDS[kind][1]))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_value_made_for_another(kind: str, data: st.DataObject) -> None:
    held(kind, data.draw(ANY))


WRONG: dict[str, Any] = {
    "int": "1", "float": "1", "str": 1, "bool": 1, "None": 0, "optional": "x", "union": 1.5, "literal": "b", "list": ["x"], "nested": [{"a": "x"}], "dict": {"a": "x"},
    "tuple": [1], "typed dict": {"street": "x"}, "dataclass": {"y": 1}, "struct": {"name": 1}, "enum": "green", "int enum": 3, "date": "soon", "datetime": 5, "uuid": "x",
    "decimal": "x", "bounded": 10, "pattern": "aaa",
}


@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_refused_wherever_it_enters(kind: str) -> None:
    """Input, a node's write, a fork's edit, a flow's argument: nothing of it is kept, and a write fails its step by ``invalid_write``."""
    annotation, _ = KINDS[kind]
    wrong = WRONG[kind]
    made: type[State] = type(State)("Made", (State,), {"__annotations__": {"field": Optional[annotation]}, "__module__": __name__, "field": None})  # noqa: UP045
    graph = Graph("typed", made)

    @graph.node(start=True)
    async def writes(state: Any) -> dict[str, Any]:
        return {"field": wrong}

    async def take(ctx: Context, field: Any) -> None:
        return None

    take.__annotations__["field"] = annotation
    taking = flow("taking")(take)
    async with Runtime("memory:", skills=[graph, taking]) as rt:
        for act in (lambda: rt.submit(graph, {"field": wrong}), lambda: rt.run(taking, wrong)):
            with pytest.raises(InvalidInput) as caught:
                await act()
            assert "field" in caught.value.field
        assert await rt.runs() == []
        run = await rt.invoke(graph, {})
        assert run.status == "failed" and run.error is not None and run.error.code == "invalid_write" and "field" in run.error.message
        with pytest.raises(InvalidInput):
            await rt.fork(run.run_id, set={"field": wrong}, drive=False)
        assert len(await rt.runs()) == 1 and (await rt.check()).ok


def test_every_kind_has_a_wrong_value() -> None:
    assert set(WRONG) == set(KINDS)


async def test_a_patch_that_cannot_be_kept_is_refused_by_its_field() -> None:
    """§14.3, §3.6: too large, and of no type that is kept, where this process has not the skill as well."""
    store = MemoryStore()
    graph = graph_of(Any)
    async with Runtime(store, skills=[graph]) as rt:
        run = await rt.invoke(graph, {"field": 1})
        assert run.status == "completed"
        waits = Graph("waits", type(State)("Held", (State,), {"__annotations__": {"field": Any}, "__module__": __name__, "field": 1}))

        @waits.node(start=True)
        async def ask(state: Any, ctx: Context) -> None:
            await ctx.approve("Go on?")

        held_run = await rt.invoke(waits, {})
    async with Runtime(store) as rt:
        patch = {"run_id": held_run.run_id, "actor": "ada"}
        for value, error in (("x" * (16 * 1024 * 1024 + 1), TooLarge), (object(), HoldfastError)):
            with pytest.raises(error) as caught:
                await CheckpointStore(rt).save_checkpoint(patch, {"field": value})
            assert str(caught.value).startswith("values") or "values." in str(caught.value) or getattr(caught.value, "field", "") == "values"
        assert (await rt.check()).ok
