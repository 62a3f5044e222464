"""Values to bytes and back (§1.10, §4.2, §14.3)."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime as dt
import decimal
import enum
import hashlib
import math
import pathlib
import pickle
import re
import types
import typing
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import canon
from holdfast.core.canon import FrozenDict, FrozenList, admit, decode, encode, pack, reveal, thaw
from holdfast.core.errors import EventUnreadable, TooLarge, Unserializable, UsageError


@dataclasses.dataclass
class Point:
    x: int
    tags: list[typing.Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class Slotted:
    point: Point
    y: int = 3


@dataclasses.dataclass(frozen=True)
class Fixed:
    name: str
    items: typing.Any = ()


@dataclasses.dataclass
class Busy:
    """It has code of its own, which may thaw what it is given."""

    items: list[typing.Any]
    extra: dict[str, typing.Any] = dataclasses.field(default_factory=dict)
    seen: typing.Any = None
    count: int = dataclasses.field(default=0, init=False)

    def __post_init__(self) -> None:
        self.items = [[*x] if isinstance(x, list) else x for x in self.items]
        self.extra = dict(self.extra)
        self.seen = {1}
        self.count = len(self.items)


@dataclasses.dataclass
class Restless:
    """Not the same after a round trip."""

    n: int

    def __post_init__(self) -> None:
        self.n += 1


class Loose(msgspec.Struct):
    x: int
    items: list[typing.Any] = []

    def __post_init__(self) -> None:
        self.x = abs(self.x)


class Tight(msgspec.Struct, frozen=True):
    x: int
    items: list[typing.Any] = []


class Pair(typing.NamedTuple):
    left: typing.Any
    right: typing.Any = None


class Colour(enum.StrEnum):
    RED = "red"


class Odd(enum.Enum):
    LIST = [1]  # noqa: RUF012
    TUPLE = (1, 2)


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees


class Model:
    """What a pydantic model looks like from here."""

    def __init__(self, x: int, items: list[typing.Any], inner: Model | None = None) -> None:
        self.x, self.items, self.inner = x, items, inner

    def model_dump(self) -> dict[str, typing.Any]:
        return {"x": self.x, "items": self.items, "inner": None if self.inner is None else self.inner.model_dump()}

    @classmethod
    def model_validate(cls, given: dict[str, typing.Any]) -> Model:
        inner = given["inner"]
        return cls(given["x"], given["items"], None if inner is None else cls.model_validate(inner))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]


for _kind in (Point, Slotted, Fixed, Busy, Restless, Loose, Tight, Pair, Colour, Odd, Model):
    canon.register(_kind)
canon.register(Celsius, dump=lambda c: c.degrees, load=Celsius)

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
ATOMS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT | st.binary(max_size=8)
    | st.datetimes() | st.datetimes(timezones=st.just(dt.UTC)) | st.dates() | st.times() | st.timedeltas() | st.uuids()
    | st.decimals(allow_nan=False, allow_infinity=False) | st.sampled_from([*Colour, *Odd]) | st.just(pathlib.Path("/a/b"))
)
HASHABLE = st.integers() | TEXT | st.tuples(TEXT, st.integers())


def _nest(inner: st.SearchStrategy[typing.Any]) -> st.SearchStrategy[typing.Any]:
    lists = st.lists(inner, max_size=3)
    return (
        lists | st.dictionaries(TEXT, inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.frozensets(HASHABLE, max_size=4)
        | st.sets(HASHABLE, max_size=4) | st.builds(Point, st.integers(), lists) | st.builds(Fixed, TEXT, inner) | st.builds(Pair, inner, inner)
        | st.builds(Slotted, st.builds(Point, st.integers(), lists)) | st.builds(Loose, st.integers(), lists) | st.builds(Tight, st.integers(), lists)
        | st.builds(Busy, lists)
    )


VALUES = st.recursive(ATOMS, _nest, max_leaves=12)


@given(VALUES)
def test_what_is_admitted_is_what_comes_back(value: typing.Any) -> None:
    """§4.2: the codec's value on the first call too; and §1.10: the same bytes however it was made."""
    frozen, data = pack(value)
    assert decode(data) == frozen == admit(value)
    assert encode(frozen) == data
    assert encode(decode(data)) == data
    assert pack(frozen) == (frozen, data)
    assert type(decode(data)) is type(frozen)


@given(VALUES)
def test_views_and_copies_of_anything(value: typing.Any) -> None:
    """What can be stored can be shown as JSON, thawed and hashed to a name."""
    frozen, data = pack(value)
    msgspec.json.encode(reveal(data))
    assert admit(thaw(frozen)) == frozen
    assert canon.fingerprint(value) == canon.fingerprint(frozen)


def test_a_fingerprint_ignores_the_order_of_keys() -> None:
    assert canon.fingerprint({"a": 1, "b": 2}) == canon.fingerprint({"b": 2, "a": 1})
    assert canon.digest(["ab", "c"]) != canon.digest(["a", "bc"])


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": ["x", "y\0"]}, "value.a[1]"),
        ({"a": {"b": "\ud800"}}, "value.a.b"),
        ([1.0, math.nan], "value[1]"),
        ([math.inf], "value[0]"),
        ({"k\0": 1}, "value"),
        ({1: "x"}, "value"),
        ({True: "x"}, "value"),
        ({Colour.RED: "x"}, "value"),
        ([decimal.Decimal("NaN")], "value[0]"),
        (decimal.Decimal("-Infinity"), "value"),
        ({"a": object()}, "value.a"),
        ([print], "value[0]"),
        (bytearray(b"x"), "value"),
        (Fixed("x", [object()]), "value.items[0]"),
        (collections.deque([1]), "value"),
    ],
)
def test_what_no_store_could_keep_is_refused_with_its_path(value: typing.Any, path: str) -> None:
    """X-11, §1.10."""
    with pytest.raises(Unserializable) as refused:
        admit(value)
    assert refused.value.path == path


class Unregistered(enum.StrEnum):
    A = "a"


class Number(enum.IntEnum):
    A = 1


@pytest.mark.parametrize("value", [Unregistered.A, Number.A])
def test_an_unregistered_enum_is_refused_with_the_way_out(value: typing.Any) -> None:
    """It would come back as plain text or a plain number, which is another type."""
    with pytest.raises(Unserializable) as refused:
        admit(value)
    assert "register" in refused.value.hint


def test_subclasses_of_containers_are_admitted_as_what_they_hold() -> None:
    class Mine(list[int]):
        pass

    assert type(admit(collections.OrderedDict(a=1))) is FrozenDict
    assert admit(collections.defaultdict(list, a=[1])) == {"a": [1]}
    assert type(admit(Mine([1]))) is FrozenList


def test_depth_and_size_are_bounded() -> None:
    """§14.3."""
    deep: list[typing.Any] = []
    for _ in range(canon.MAX_DEPTH + 5):
        deep = [deep]
    with pytest.raises(Unserializable, match="deeper"):
        admit(deep)
    loop: list[typing.Any] = []
    loop.append(loop)
    with pytest.raises(Unserializable, match="deeper"):
        admit(loop)


def test_a_value_may_be_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canon, "MAX_VALUE_BYTES", 10)
    with pytest.raises(TooLarge):
        pack("x" * 20)


def test_wide_integers_have_no_limit() -> None:
    wide = 7**20_000
    assert decode(pack([wide, -wide])[1]) == [wide, -wide]
    assert reveal(pack(2**70)[1]) == 2**70
    assert isinstance(reveal(pack(wide)[1]), str)


def test_sets_have_one_order_of_bytes() -> None:
    """§1.10: repr of a nested set differs between processes; bytes of its items do not."""
    one = frozenset({frozenset({"a", "b", "c"}), "x"})
    other = frozenset({"x", frozenset({"c", "b", "a"})})
    assert pack(one)[1] == pack(other)[1]


MUTATIONS: list[typing.Callable[[typing.Any], object]] = [
    lambda v: v["list"].append(1),
    lambda v: v["list"][1].extend([1]),
    lambda v: v["list"].sort(),
    lambda v: v["list"].__setitem__(0, 1),
    lambda v: v["list"].__delitem__(0),
    lambda v: v["list"].__iadd__([1]),
    lambda v: v.update(a=1),
    lambda v: v.pop("list"),
    lambda v: v.__ior__({"a": 1}),
    lambda v: v["list"][1].insert(0, 1),
    lambda v: setattr(v["point"], "x", 1),
    lambda v: delattr(v["point"], "x"),
    lambda v: v["point"].tags.append(1),
    lambda v: setattr(v["slotted"], "y", 1),
    lambda v: setattr(v["slotted"].point, "x", 1),
    lambda v: setattr(v["fixed"], "name", 1),
    lambda v: v["fixed"].items.append(1),
    lambda v: v["busy"].items.append(1),
    lambda v: v["busy"].items[0].append(1),
    lambda v: v["busy"].extra.update(a=1),
    lambda v: v["busy"].seen.add(2),
    lambda v: setattr(v["loose"], "x", 1),
    lambda v: v["loose"].items.append(1),
    lambda v: setattr(v["tight"], "x", 1),
    lambda v: v["tight"].items.append(1),
    lambda v: v["pair"].left.append(1),
    lambda v: setattr(v["model"], "x", 1),
    lambda v: v["model"].items.append(1),
    lambda v: setattr(v["model"].inner, "x", 1),
    lambda v: v["model"].inner.items.append(1),
]


@pytest.mark.parametrize("n", range(len(MUTATIONS)))
@pytest.mark.parametrize("again", [False, True])
def test_a_snapshot_refuses_every_change(n: int, again: bool) -> None:
    """T-60, §4.2: the copy that all nodes share stays as it was, as admitted and as decoded."""
    given = {
        "list": [1, [2]], "point": Point(1, [2]), "slotted": Slotted(Point(1)), "fixed": Fixed("a", [1]), "busy": Busy([[1]]),
        "loose": Loose(1, [2]), "tight": Tight(1, [2]), "pair": Pair([1]), "model": Model(1, [2], Model(3, [4])),
    }
    value = admit(given)
    if again:
        value = decode(encode(value))
    before = encode(value)
    with pytest.raises((TypeError, AttributeError)):
        MUTATIONS[n](value)
    assert encode(value) == before
    assert given["point"] == Point(1, [2])


@pytest.mark.parametrize("value", [Point(1, [2, {"a": 3}]), Slotted(Point(1), 4), Busy([[1]]), Loose(1, [2]), Model(1, [2], Model(3, []))])
def test_a_twin_passes_for_its_class(value: typing.Any) -> None:
    """Equality both ways, isinstance, and copies that can be changed."""
    twin = admit(value)
    assert twin == value
    assert value == twin
    assert isinstance(twin, type(value))
    assert twin.__class__ is type(value)
    assert admit(twin) == twin
    assert not (twin != value or value != twin)
    assert twin != object()
    assert not twin == object()  # noqa: SIM201
    for made in (copy.copy(twin), copy.deepcopy(twin), thaw(twin)):
        assert type(made) is type(value)
        assert made == value
    name = "y" if isinstance(value, Slotted) else "items" if isinstance(value, Busy) else "x"
    mine = copy.deepcopy(twin)
    setattr(mine, name, 9)
    assert getattr(mine, name) == 9
    assert pickle.loads(pickle.dumps(twin)) == value


def test_a_changed_copy_of_a_twin_is_an_ordinary_value() -> None:
    changed = dataclasses.replace(admit(Point(1)), x=2)
    assert type(changed) is Point
    changed.tags = [1]
    assert admit(changed) == Point(2, [1])
    assert admit([thaw(admit(Point(1, [(1, [2])])))]) == [Point(1, [(1, [2])])]


def test_frozen_containers_work_like_their_kind() -> None:
    values, names = admit([1, 2]), admit({"a": 1})
    assert type(values + [3]) is list  # noqa: RUF005
    assert type(values[:1]) is list
    assert type(names | {"b": 2}) is dict
    assert copy.copy(values) == copy.deepcopy(values) == pickle.loads(pickle.dumps(values)) == [1, 2]
    assert copy.copy(names) == copy.deepcopy(names) == pickle.loads(pickle.dumps(names)) == {"a": 1}
    assert type(copy.deepcopy(admit([[1]]))[0]) is list
    assert {values: 1, names: 2}[admit([1, 2])] == 1


def test_a_type_that_changes_on_the_way_is_refused() -> None:
    """§4.2: what does not round-trip is registered or refused."""
    with pytest.raises(Unserializable, match="changes"):
        admit(Restless(1))


def test_a_type_with_its_own_dump_and_load() -> None:
    assert admit({"t": Celsius(3.5)})["t"].degrees == 3.5
    assert decode(pack([Celsius(1.0)])[1])[0].degrees == 1.0

    class Broken:
        pass

    canon.register(Broken, dump=lambda v: 1, load=lambda v: 1 / 0)
    with pytest.raises(Unserializable, match="round-trip"):
        admit(Broken())

    class Box:
        def __init__(self, inner: typing.Any) -> None:
            self.inner = inner

    canon.register(Box, "Box", dump=lambda v: [v.inner], load=lambda v: Box(Celsius(v[0].degrees)))
    assert admit(Box(Celsius(1.0))).inner.degrees == 1.0


def test_tags_are_unique_and_a_reloaded_class_replaces_itself() -> None:
    """§14.3."""

    def make() -> type:
        @dataclasses.dataclass
        class Local:
            a: int

        return canon.register(Local)

    old, new = make(), make()
    assert admit(new(1)) == new(1)
    with pytest.raises(Unserializable):
        admit(old(1))
    assert canon.register(new) is new
    twin = type(admit(new(2)))
    assert canon.register(new) is new
    assert type(admit(new(2))) is twin, "a class has one twin"
    assert admit(admit(new(2))) == new(2)
    with pytest.raises(UsageError):
        canon.register(Celsius, "Point", dump=str, load=str)
    with pytest.raises(UsageError):
        canon.register(complex)


def test_what_can_be_registered_by_itself() -> None:
    assert all(canon.storable(k) for k in (Point, Loose, Colour, Pair, Model))
    assert not any(canon.storable(k) for k in (complex, tuple, 3, Celsius))


def test_a_class_may_gain_fields_with_defaults() -> None:
    """§1.8: what was stored before the class grew is read; what does not fit is a typed error."""

    def grown(*fields: typing.Any) -> type:
        made = dataclasses.make_dataclass("Grown", fields)
        made.__module__ = __name__
        return canon.register(made, "Grown")

    data = pack(grown(("a", int))(1))[1]
    grown(("a", int), ("b", int, 2), ("c", list, dataclasses.field(default_factory=list)))
    value = decode(data)
    assert (value.a, value.b, value.c) == (1, 2, [])
    with pytest.raises(TypeError):
        value.c.append(1)
    grown(("a", int), ("b", int))
    with pytest.raises(EventUnreadable, match="lacks the field"):
        decode(data)
    grown(("z", int, 1))
    with pytest.raises(EventUnreadable, match="which the class lacks"):
        decode(data)


def _ext(code: int, payload: object) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(payload)))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xc1", b"\x91", b"\xdd\xff\xff\xff\xff", _ext(1, ["os.system", ["x"]]), _ext(1, ["Point", 3]), _ext(1, [3, 4]), _ext(1, 7),
        _ext(2, ["tuple", []]), _ext(1, ["datetime", "nonsense"]), _ext(1, ["Odd", 99]), _ext(1, ["Colour", [1]]), _ext(1, ["timedelta", [1, 2, 3, 4, 5, 6, 7, 8]]),
        b"\x91" * 100_000, _ext(1, ["uuid", 3]), _ext(1, ["decimal", "x"]), _ext(1, ["tuple", 5]), _ext(1, ["Loose", {"no": 1}]),
    ],
)
def test_hostile_bytes_are_one_typed_error(data: bytes) -> None:
    """L-18, §14.3: nothing is called, nothing is imported."""
    with pytest.raises(EventUnreadable):
        decode(data)


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_a_typed_error(data: bytes) -> None:
    """L-18."""
    for read in (decode, reveal):
        try:
            read(data)
        except EventUnreadable:
            pass


@given(VALUES, st.integers(0, 400), st.integers(0, 255))
def test_a_flipped_byte_decodes_or_is_a_typed_error(value: typing.Any, at: int, byte: int) -> None:
    """L-18."""
    data = bytearray(pack(value)[1])
    data[at % len(data)] = byte
    for read in (decode, reveal):
        try:
            read(bytes(data))
        except EventUnreadable:
            pass


def test_a_value_is_shown_without_its_types() -> None:
    """§14.3: a run can be looked at without its code."""
    value = {"p": Point(1, [b"\xff"]), "t": (1, {2}), "d": dt.timedelta(seconds=2), "u": uuid.UUID(int=1), "c": Colour.RED, "w": dt.date(2026, 1, 2)}
    assert reveal(pack(value)[1]) == {
        "p": {"x": 1, "tags": ["ff"]}, "t": [1, [2]], "d": 2.0, "u": uuid.UUID(int=1).hex, "c": "red", "w": "2026-01-02",
    }
    assert canon.plain({1: (b"a",)}) == {"1": ["61"]}
    with pytest.raises(EventUnreadable):
        reveal(_ext(2, 1))


def test_a_thawed_value_is_plain() -> None:
    assert type(thaw(admit({"a": [1]}))["a"]) is list


def test_looking_shows_a_value_whose_class_is_not_here() -> None:
    """§14.3, L-18: whoever only looks sees the fields of an unknown type; who drives never does, and no longer than he says."""
    data = _ext(1, ["notes.Draft", {"title": "x", "tags": ["a"]}])
    with pytest.raises(EventUnreadable, match="the type 'notes.Draft' is not registered"):
        decode(data)
    with canon.looking():
        seen = decode(data)
        assert seen == {"title": "x", "tags": ["a"]} and type(seen) is FrozenDict
        assert decode(pack(Point(1))[1]) == Point(1), "a type that is known is still itself"
        with pytest.raises(EventUnreadable, match="the type 3 is not registered"):
            decode(_ext(1, [3, {}]))
        with canon.looking():
            pass
        assert decode(data) == seen
    with pytest.raises(EventUnreadable, match="not registered"):
        decode(data)
    with pytest.raises(KeyError), canon.looking():
        raise KeyError
    with pytest.raises(EventUnreadable):
        decode(data)


def test_a_fingerprint_takes_one_run_id_for_any_other() -> None:
    """§6.3: a replay that names itself in a request asks for the same thing; what else differs still counts."""

    def request(run: str, n: int = 1) -> list[typing.Any]:
        return ["send", {"run": f"{run}/x", "n": n}]

    one, two = "0" * 26, "1" * 26
    assert canon.fingerprint(request(one)) != canon.fingerprint(request(two))
    assert canon.fingerprint(request(one), one) == canon.fingerprint(request(two), two)
    assert canon.fingerprint(request(one, 2), one) != canon.fingerprint(request(one), one)
    assert canon.fingerprint(request(one), two) == canon.fingerprint(request(one))
    assert len(canon.fingerprint(request(one), one)) == 32


WIRE: list[tuple[typing.Any, str, typing.Any]] = [
    ((1, "a"), "tuple", [1, "a"]),
    ({2, 1}, "set", [1, 2]),
    (frozenset({"b", "a"}), "set", ["a", "b"]),
    (dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC), "datetime", "2026-01-02T03:04:05.000006+00:00"),
    (dt.date(2026, 1, 2), "date", "2026-01-02"),
    (dt.time(3, 4), "time", "03:04:00"),
    (dt.timedelta(1, 2, 3), "timedelta", [1, 2, 3]),
    (decimal.Decimal("1.50"), "decimal", "1.50"),
    (uuid.UUID(int=1), "uuid", "0" * 31 + "1"),
    (pathlib.Path("/a"), "path", "/a"),
    (2**64, "int", "0x10000000000000000"),
    (-(2**63) - 1, "int", "-0x8000000000000001"),
]


@pytest.mark.parametrize(("value", "tag", "fields"), WIRE)
def test_how_values_lie_in_a_store(value: typing.Any, tag: str, fields: typing.Any) -> None:
    """§1.8, §1.10: bytes of an older release mean what they meant; these words never change."""
    data = pack(value)[1]
    assert bytes(data) == _ext(1, [tag, fields])
    assert decode(_ext(1, [tag, fields])) == value


@pytest.mark.parametrize("value", [2**64 - 1, -(2**63), True, None, "a", b"a", 1.5, [1], {"a": 1}])
def test_what_every_reader_of_the_format_knows_is_stored_as_it_is(value: typing.Any) -> None:
    """§1.10: no word of ours around it."""
    assert bytes(pack(value)[1]) == msgspec.msgpack.encode(value)


def test_hashes_that_stores_hold_never_change() -> None:
    """§1.8, §1.9, §6.3: chains, request fingerprints and digests of an older release are those of this one."""
    assert canon.chain(b"", b"row").hex() == hashlib.sha256(b"row").hexdigest()[:32]
    assert canon.chain(b"before", b"row").hex() == hashlib.sha256(b"beforerow").hexdigest()[:32]
    assert canon.fingerprint({"b": [1], "a": 2}) == hashlib.sha256(msgspec.msgpack.encode({"a": 2, "b": [1]})).hexdigest()[:32]
    assert canon.fingerprint("run/x", "run") == hashlib.sha256(b"\xa5\0\0\0/x").hexdigest()[:32]
    assert canon.digest(["a", "bc"]) == hashlib.sha256(b"\0\0\0\1a\0\0\0\2bc").hexdigest()[:32]
    assert canon.digest(["ab", "c"]) != canon.digest(["a", "bc"])


def test_how_deep_and_how_large_a_value_may_be() -> None:
    """§1.10: the last that fits, and the first that does not."""

    def nested(depth: int) -> typing.Any:
        value: typing.Any = 1
        for _ in range(depth):
            value = [value]
        return value

    assert admit(nested(canon.MAX_DEPTH + 1))
    with pytest.raises(Unserializable, match=f"nested deeper than {canon.MAX_DEPTH}"):
        admit(nested(canon.MAX_DEPTH + 2))
    assert (canon.MAX_DEPTH, canon.MAX_VALUE_BYTES, canon.HASH_BYTES) == (100, 64 * 1024 * 1024, 16)


def test_a_class_with_a_tag_of_its_own_is_named_by_an_annotation() -> None:
    """§14.3: two modules may have a class of one name; the way out that the refusal names works, wherever the class is used then."""

    def make() -> type:
        @dataclasses.dataclass
        class Local:
            a: int

        return Local

    first, second = make(), make()
    second.__module__ = "elsewhere"
    canon.register_named(list[first])  # type: ignore[valid-type]
    with pytest.raises(UsageError, match="give this class another tag before it is used"):
        canon.register_named(dict[str, second])  # type: ignore[valid-type]
    canon.register(second, tag="elsewhere.Local")
    canon.register_named(dict[str, second | None])  # type: ignore[operator]
    assert [type(canon.decode(canon.pack(c(1))[1])).__module__ for c in (first, second)] == [__name__, "elsewhere"]


class Named(str):
    """A text of a class of its own."""


ODD = ["", "text", "é", "a\0b", "\ud800", Named("a"), 5, -(2**63), 2**64 - 1, 2**64, True, None, b"raw", 1.5, math.inf, math.nan, [1], {"k": 1}, dt.date(2026, 1, 2), FrozenList([1])]


@pytest.mark.parametrize("value", [True, None, b"raw", 1.5, "text", 5])
def test_each_kind_of_plain_value_is_packed_in_one_pass(value: typing.Any) -> None:
    assert canon.pack_plain({"a": value, "b": value}, {"a": object, "b": type(value)}, {}) == pack({"a": value, "b": value})
    assert canon.pack_plain({"a": [value], "b": [value, value], "c": []}, {}, {"a": object, "b": type(value), "c": int}) == pack({"a": [value], "b": [value, value], "c": []})


@pytest.mark.parametrize("value", ["\ud800", "a\0b", 2**64, -(2**63) - 1, math.inf, dt.date(2026, 1, 2)])
def test_what_is_seldom_is_left_to_the_long_way(value: typing.Any) -> None:
    assert canon.pack_plain({"a": value}, {"a": object}, {}) is None
    assert canon.pack_plain({"a": {"k": value}}, {"a": object}, {}) is None and canon.pack_plain({"a": [{"k": [value]}]}, {}, {"a": object}) is None
    assert canon.pack_plain({"a": [value]}, {}, {"a": object}) is None and canon.pack_plain({"a": [1, value]}, {}, {"a": int}) is None


ONE_OR_MANY = st.one_of(st.sampled_from(ODD), st.lists(st.sampled_from(ODD), max_size=3))


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), ONE_OR_MANY, min_size=1), st.booleans())
def test_plain_values_are_packed_in_one_pass_as_in_two(value: dict[str, typing.Any], named: bool) -> None:
    """Issue «Speed»: what is packed in short is what would have been packed at length; what would have been refused is left to that."""
    kinds: dict[str, type | None] = {"a": object, "b": int, "c": None}
    given_ = {Named(k): v for k, v in value.items()} if named else value
    short = canon.pack_plain(given_, kinds, kinds)
    held = [(k, v) for k, vs in value.items() for v in (vs if type(vs) is list else [vs])]
    fits = not named and "c" not in value and all(k != "b" or type(v) is int for k, v in held)
    plain = all(type(v) in (str, int, bool, type(None), bytes, float) for _, v in held)
    try:
        whole = pack(value)
    except Unserializable:
        whole = None
    assert (short is not None) <= fits
    if short is not None:
        assert whole is not None and short == whole and type(short[0]) is FrozenDict
        assert [type(v) for v in short[0].values()] == [type(v) for v in whole[0].values()]
    elif fits and plain and whole is not None:
        assert any(type(v) is int and v >= 2**64 for _, v in held), "only what is seldom goes the long way"


LEAVES = st.one_of(st.sampled_from(ODD), st.integers(-3, 3), st.text(max_size=2))
NESTED = st.recursive(LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["k", "é", "a\0b", "\ud800"]), inner, max_size=2)), max_leaves=8)
SHAPES = st.recursive(
    st.sampled_from([object, str, int, bool, float, bytes, None]), lambda inner: st.one_of(st.builds(canon.ListOf, inner), st.builds(canon.DictOf, inner)), max_leaves=3
)


def has_shape(value: typing.Any, shape: canon.Shape) -> bool:
    """What a shape says, told in another way."""
    if type(value) in (list, dict):
        asked = canon.ListOf if type(value) is list else canon.DictOf
        each = object if shape is object else shape.each if isinstance(shape, asked) else None
        return each is not None and all(has_shape(v, each) for v in (value if type(value) is list else value.values()))
    small = type(value) is not int or value < 2**64
    return small and type(value) in (str, int, bool, type(None), bytes, float) and shape in (object, type(value))


@given(NESTED, SHAPES)
def test_what_is_nested_is_packed_in_one_pass_as_in_two(value: typing.Any, shape: canon.Shape) -> None:
    """Issue «Speed»: the messages of a conversation are lists of dicts."""
    lists = {"a": object if shape is object else shape.each if isinstance(shape, canon.ListOf) else None}
    short = canon.pack_plain({"a": value}, {"a": shape}, lists)
    try:
        whole = pack({"a": value})
    except Unserializable:
        whole = None
    if short is None:
        assert whole is None or not has_shape(value, shape)
    else:
        assert whole is not None and short == whole and kinds_in(short[0]) == kinds_in(whole[0]) and has_shape(value, shape)


def kinds_in(value: typing.Any) -> typing.Any:
    """The classes of all that a value holds."""
    if isinstance(value, list):
        return [type(value), *map(kinds_in, value)]
    return [type(value), {k: kinds_in(v) for k, v in value.items()}] if isinstance(value, dict) else type(value)


def test_containers_beside_each_other_are_packed_in_one_pass() -> None:
    value = {"a": {"k": [1], "l": {"m": "x"}, "n": True}, "b": [1], "c": "y"}
    short = canon.pack_plain(value, {"a": canon.DictOf(object), "b": None, "c": str}, {"b": int})
    assert short is not None and short == pack(value) and kinds_in(short[0]) == kinds_in(pack(value)[0])


@given(st.lists(LEAVES, max_size=4))
def test_many_values_are_encoded_as_each_alone(values: list[typing.Any]) -> None:
    """Issue «Speed»: what a fan-out sends to a node is encoded together."""
    try:
        one_by_one = [pack(v, "Send('b')")[1] for v in values]
    except Unserializable as e:
        with pytest.raises(Unserializable, match=re.escape(str(e))):
            canon.encode_each(values, "Send('b')")
    else:
        assert canon.encode_each(values, "Send('b')") == one_by_one


def test_a_number_of_more_than_eight_bytes_lies_anywhere() -> None:
    """Numbers are looked at one by one only where one is too long, whatever else is there."""
    for odd in (2**64, -(2**63) - 1):
        for value in (odd, [odd], [1, {"a": [odd, 2]}], {"x": dt.date(2026, 1, 2), "y": [odd]}, (odd, 1)):
            assert decode(encode(admit(value))) == admit(value)
            assert encode(admit(value)) == pack(value)[1]
        assert canon.fingerprint({"b": odd, "a": 1}) == canon.fingerprint({"a": 1, "b": odd}) != canon.fingerprint({"a": 1, "b": odd + 1})


def test_numbers_are_encoded_together_at_their_bounds() -> None:
    for values in ([1, 2], [-(2**63), 2**64 - 1], [1, 2**64], [-(2**63) - 1, 0]):
        assert canon.encode_each(values, "x") == [pack(v)[1] for v in values]


def test_a_value_that_holds_itself_is_refused_by_name() -> None:
    """§1.10: the short way leaves it to the long one, whose words a user meets."""
    items: list[typing.Any] = []
    items.append({"k": items})
    assert canon.pack_plain({"a": items}, {}, {"a": object}) is None
    with pytest.raises(Unserializable, match="nested deeper"):
        pack({"a": items})


class Text(str):
    """Text of a class of its own."""


class Celsiuses:
    """Numbers, and nothing that could be derived."""

    def __iter__(self) -> typing.Iterator[float]:
        return iter([1.0])


class Opaque:
    """Nothing that anybody could store without help."""


class Unregistered(enum.Enum):
    RED = "red"


async def _stream() -> typing.AsyncIterator[int]:
    yield 1


async def _later() -> None:
    """Never awaited."""


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        (Unregistered.RED, "register the class before it is used: holdfast.register(Unregistered)"),
        (Opaque(), "store plain values, or register the class with two functions: holdfast.register(Opaque, dump=…, load=…)"),
        (Text("x"), "convert it: str(…)"),
        (bytearray(b"x"), "convert it: bytes(…)"),
        (memoryview(b"x"), "convert it: bytes(…)"),
        (types.MappingProxyType({}), "convert it to a dict: dict(…)"),
        (_stream(), "return a list: [x async for x in …]; ctx.emit(x) streams each value meanwhile"),
        (range(3), "convert it to a list: list(…)"),
        ({}.keys(), "convert it to a list: list(…)"),
        ((x for x in [1]), "convert it to a list: list(…)"),
        (Celsiuses(), "convert it to a list: list(…)"),
        (ValueError("x"), "store its text: str(…)"),
        (print, "store a name, and look it up when you need it"),
        (Opaque, "store a name, and look it up when you need it"),
        (re.match("a", "a"), "store plain values from which you can make it again"),
        (1j, "store plain values from which you can make it again"),
    ],
)
def test_the_hint_for_what_cannot_be_stored_can_be_followed(value: typing.Any, way_out: str) -> None:
    """``holdfast.register`` is offered only where it works."""
    with pytest.raises(Unserializable) as caught:
        admit(value)
    assert caught.value.hint == way_out


def test_the_hint_for_what_was_not_awaited() -> None:
    forgotten = _later()
    with pytest.raises(Unserializable, match="write await in front of the call"):
        admit(forgotten)
    forgotten.close()


def test_a_hint_that_is_followed_helps() -> None:
    class Colour(enum.Enum):
        RED = "red"

    class Closed:
        pass

    canon.register(Colour)
    canon.register(Closed, dump=lambda value: None, load=lambda stored: Closed())
    assert admit(Colour.RED) is Colour.RED and isinstance(admit(Closed()), Closed)
