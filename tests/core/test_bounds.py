"""Bounds: what a value from outside may be (§3.6, §14.3)."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.core import bounds, retry
from holdfast.core.environments import Environment
from holdfast.core.errors import HoldfastError, InvalidInput, InvalidWrite, TooLarge, UnknownOption, UsageError


class Word(str):
    """Text of a class of its own."""


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


NOT_TEXT = (42, None, b"bytes", 1.5, True, ["a"], {"a": 1}, object(), ("a",), lambda: "a")
NOT_NUMBERS = ("1", 1.0, None, True, float("nan"), b"1", [1], dt.timedelta(1), 10**400)
NOT_DURATIONS = ("5", None, float("nan"), float("inf"), True, 1e300, -1, -0.5, b"5", [5], 10**400, dt.timedelta.min, dt.timedelta.max)


def refused(act: Callable[[], Any]) -> HoldfastError:
    with pytest.raises(UsageError) as caught:
        act()
    return caught.value


@pytest.mark.parametrize("value", ["a", Word("a"), "é" * 256, "x" * 512])
def test_text_becomes_plain(value: str) -> None:
    got = bounds.text(value, "key")
    assert got == value and type(got) is str


def test_an_enumeration_of_texts_counts_as_its_text() -> None:
    got = bounds.text(Colour.RED, "key")
    assert got == "red" and type(got) is str


@pytest.mark.parametrize("value", NOT_TEXT)
def test_nothing_else_is_turned_into_text(value: object) -> None:
    error = refused(lambda: bounds.text(value, "thread_id"))
    assert isinstance(error, InvalidInput) and error.field == "thread_id" and "thread_id is text" in error.message


@pytest.mark.parametrize("value", ["", "a\0b", "\udc80"])
def test_text_that_no_store_could_keep(value: str) -> None:
    error = refused(lambda: bounds.text(value, "key"))
    assert isinstance(error, InvalidInput) and error.field == "key" and str(error).endswith(error.hint) and error.hint
    assert bounds.text("", "note", empty=True) == ""


@pytest.mark.parametrize("value", ["x" * 513, "é" * 257])
def test_text_is_bounded_in_bytes(value: str) -> None:
    error = refused(lambda: bounds.text(value, "key"))
    assert isinstance(error, TooLarge)
    assert (error.field, error.size, error.limit) == ("key", len(value.encode()), 512) and "key" in str(error) and "512" in str(error)


def test_texts() -> None:
    assert bounds.texts([Word("a"), "b"], "tags") == ("a", "b") and bounds.texts((), "tags") == ()
    for value in ("ab", b"ab", 1, None):
        assert refused(lambda: bounds.texts(value, "tags")).field == "tags"  # noqa: B023
    assert refused(lambda: bounds.texts(["a", 1], "tags")).field == "tags[1]"
    many = refused(lambda: bounds.texts(["a"] * 1_001, "tags"))
    assert isinstance(many, TooLarge) and many.limit == 1_000


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_numbers(value: object) -> None:
    assert refused(lambda: bounds.number(value, "limit")).field == "limit"


def test_names_of_signals() -> None:
    """§5.11."""
    assert bounds.check_signal("order/paid?", "name") == "order/paid?"
    with pytest.raises(InvalidInput, match="colon"):
        bounds.check_signal("a:b", "name")


def test_numbers_within_bounds() -> None:
    got = bounds.number(Level.HIGH, "limit", 1, 3)
    assert got == 3 and type(got) is int
    assert "from 1 to 3" in str(refused(lambda: bounds.number(4, "limit", 1, 3)))
    for value in (0, -1, "1", None, True, float("inf"), float("nan"), 10**400):
        assert refused(lambda: bounds.amount(value, "cost")).field == "cost"  # noqa: B023
    assert bounds.amount(2, "cost") == 2.0


@pytest.mark.parametrize("value", [1, 0, "yes", None, [True]])
def test_flags(value: object) -> None:
    assert refused(lambda: bounds.flag(value, "force")).field == "force"
    assert bounds.flag(True, "force") is True


def test_one_of_names_the_nearest() -> None:
    assert bounds.one_of("hold", "paused_lane", ("hold", "release")) == "hold"
    error = refused(lambda: bounds.one_of("relaese", "paused_lane", ("hold", "release")))
    assert isinstance(error, InvalidInput) and "'release'" in str(error) and error.field == "paused_lane"
    assert "did you mean" not in str(refused(lambda: bounds.one_of("zzz", "paused_lane", ("hold", "release"))))


@pytest.mark.parametrize("value", NOT_DURATIONS)
def test_durations(value: object) -> None:
    assert refused(lambda: bounds.duration(value, "delay")).field == "delay"


def test_durations_are_microseconds() -> None:
    assert bounds.duration(1.5, "delay") == 1_500_000 == bounds.duration(dt.timedelta(seconds=1.5), "delay")
    assert "from 1 s" in str(refused(lambda: bounds.duration(0, "every", low=1_000_000)))


def test_moments() -> None:
    assert bounds.moment(dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC), "at") == 1_000_000
    for value in ("2026-01-01", 5, None, dt.date(2026, 1, 1), dt.datetime(2026, 1, 1), dt.datetime.max.replace(tzinfo=dt.UTC)):  # noqa: DTZ001
        assert refused(lambda: bounds.moment(value, "at")).field == "at"  # noqa: B023
    east = dt.timezone(dt.timedelta(hours=14))
    for value in (dt.datetime.min.replace(tzinfo=east), dt.datetime(1969, 12, 31, tzinfo=dt.UTC)):
        assert refused(lambda: bounds.moment(value, "at")).field == "at"  # noqa: B023


@pytest.mark.parametrize("value", ["https://runs.example.org", "http://127.0.0.1:8321/", "https://ops.example.org/holdfast/", "https://[::1]:8321", "https://x.org/a b"])
def test_an_address_of_pages(value: str) -> None:
    assert bounds.address(value, "base_url") == value


@pytest.mark.parametrize(
    "value",
    ["", "runs.example.org", "javascript:alert(1)", "ftp://x.org", "https://", "https:///w", "https://x.org/?a=b", "https://x.org/#f", "https://ada:pw@x.org", " https://x.org", "https://x.org/\n", "https://[", 5],
)
def test_what_no_link_can_be_made_of(value: object) -> None:
    """§3.6: a link goes out to people, who would find it broken. What stands behind the path of an address would stand in the middle of it."""
    with pytest.raises(InvalidInput) as refused:
        bounds.address(value, "base_url")
    assert refused.value.field == "base_url"


def test_bytes_are_bounded() -> None:
    assert bounds.check_size(b"ab", "payload", 2) == b"ab"
    error = refused(lambda: bounds.check_size(b"abc", "payload", 2))
    assert isinstance(error, TooLarge) and (error.field, error.size, error.limit) == ("payload", 3, 2)


@pytest.mark.parametrize("value", [None, 10**400, b"x" * 100, "y" * 100, 1.5, object(), [], True, type("x" * 100, (), {})])
def test_any_value_is_told_in_a_line(value: object) -> None:
    told = bounds.show(value)
    assert len(told) < 100 and "\n" not in told


def test_classes_functions_and_calls_are_told_by_their_names() -> None:
    async def later() -> None:
        """Never awaited."""

    forgotten = later()
    assert [bounds.show(value) for value in (dict, len, forgotten)] == ["the class dict", "the function len", "a coroutine, which was not awaited"]
    forgotten.close()


def test_an_unknown_option_is_a_type_error_too() -> None:
    error = bounds.refuse_unknown("versoin", ("version", "kind"), "Graph")
    assert isinstance(error, UnknownOption) and isinstance(error, TypeError)
    assert (error.name, error.nearest, error.code) == ("versoin", "version", "unknown_option")
    assert "versoin" in str(error) and str(error).endswith(error.hint) and "'version'" in error.hint
    assert bounds.refuse_unknown("x", (), "f").nearest == "" and bounds.refuse_unknown(7, ("a",), "f").nearest == "a"


def test_a_message_of_several_lines_ends_with_its_hint() -> None:
    assert str(UsageError("a\nb", hint="c")) == "a\nb\nc" and str(UsageError("a")) == "a"


# -- arguments --------------------------------------------------------------------------------------


@bounds.verb
def plain(run_id: str, /, *rest: int, actor: str = "operator", note: str | None = None, payload: object = ...) -> tuple[Any, ...]:
    return run_id, rest, actor, note, payload


@bounds.check_arguments(limit=bounds.whole(1, 3))
async def waiting(fn: object, limit: int = 1, *, at: dt.datetime | None = None, **amounts: float) -> tuple[Any, ...]:
    return fn, limit, at, amounts


def test_a_verb_sees_plain_values() -> None:
    assert plain(Word("r"), 1, 2, actor=Word("ada"), note=None) == ("r", (1, 2), "ada", None, ...)
    assert type(plain(Word("r"))[0]) is str
    assert refused(lambda: plain(7)).field == "run_id" == refused(lambda: plain("")).field  # type: ignore[arg-type]
    assert refused(lambda: plain("r", actor=None)).field == "actor"  # type: ignore[arg-type]
    error = refused(lambda: plain("r", actr="ada"))  # type: ignore[call-arg]
    assert isinstance(error, UnknownOption) and error.nearest == "actor" and "plain" in str(error)
    with pytest.raises(TypeError):
        plain()  # type: ignore[call-arg]


async def test_an_asynchronous_verb() -> None:
    assert await waiting(len, 2, cost=1.0) == (len, 2, None, {"cost": 1.0})
    assert await waiting(len) == (len, 1, None, {})
    for given in ({"limit": 4}, {"limit": "2"}, {"at": "now"}):
        with pytest.raises(InvalidInput):
            await waiting(len, **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await waiting(len, 9)


def test_what_arguments_may_be() -> None:
    known = bounds.KNOWN
    for name, good, bad in (
        ("from_step", 3, -1), ("from_step", "ask", b""), ("verify", len, 3), ("set", {"a": 1}, [1]), ("set", {}, {1: 2}), ("queues", ["q"], "q"),
        ("tags", ["a"], [3]), ("actor", "ada", ""), ("reason", "", 3), ("delay", 3, "3"), ("at", dt.datetime.now(dt.UTC), 3), ("topic", "", 3),
        ("feedback", "", 7), ("paused_lane", "hold", "keep"), ("migrates", ["a"], "a"),
    ):
        assert known[name](good, name) in (good, tuple(good) if isinstance(good, list) else good)
        with pytest.raises(InvalidInput):
            known[name](bad, name)


def test_named_values_are_admitted_or_refused() -> None:
    assert bounds.admit({"key": Word("k")}, {"key": bounds.text}, "submit") == {"key": "k"}
    with pytest.raises(UnknownOption):
        bounds.admit({"kye": "k"}, {"key": bounds.text}, "submit")


def test_a_budget_of_another_kind() -> None:
    with pytest.raises(UnknownOption) as caught:
        bounds.limits({"token": 3})
    assert caught.value.nearest == "tokens"
    for given in ({"cost": 0}, {"cost": "3"}, [("cost", 3)], {"cost": float("nan")}):
        with pytest.raises(InvalidInput):
            bounds.limits(given)


def test_a_run_is_never_named_by_nothing() -> None:
    for value in ("", 7, None):
        with pytest.raises(InvalidInput) as caught:
            bounds.KNOWN["run_id"](value, "run_id")
        assert caught.value.field == "run_id"


def test_a_constructor_that_dataclasses_made() -> None:
    @bounds.constructor()
    @dataclasses.dataclass(frozen=True)
    class Named:
        name: str
        verify: Callable[..., Any] | None = None

    assert Named(Word("a")).name == "a"
    with pytest.raises(UnknownOption):
        Named("a", verfy=len)  # type: ignore[call-arg]
    for given in ((3,), ("a", 4)):
        with pytest.raises(InvalidInput):
            Named(*given)  # type: ignore[arg-type]


def test_a_write_of_another_kind_names_its_field() -> None:
    assert InvalidWrite("n is a number", field="n").field == "n"


def test_what_a_verb_looks_at_itself_is_left_as_given() -> None:
    assert bounds.as_given([3], "set") == [3]


def test_values_that_authors_declare() -> None:
    assert retry.Retry(3, on=KeyError).on == (KeyError,)  # type: ignore[arg-type]
    for act in (lambda: retry.Retry(on=()), lambda: retry.Retry(on=("KeyError",)), lambda: retry.coerce("3"), lambda: Environment(name="e", budgets={"cost": 0})):  # type: ignore[arg-type]
        assert isinstance(refused(act), InvalidInput)
    assert isinstance(refused(lambda: Environment(name="e", options=frozenset({"tag"}))), UnknownOption)
    assert retry.coerce(kept := retry.Retry(2)) is kept


@pytest.mark.parametrize(
    ("prefix", "end"), [("ab", "ac"), ("a\U0010ffff", "b"), ("\ud7ff", "\ue000"), ("\U0010ffff", None), ("", None)],
)
def test_what_lies_behind_all_that_begin_so(prefix: str, end: str | None) -> None:
    """A shelf is read by a range of its keys; surrogates are no text, so the range passes over them."""
    assert bounds.behind(prefix) == end
    assert end is None or prefix + "\U0010ffff" < end


def test_a_keyword_argument_for_a_function_that_is_called_is_answered_with_partial() -> None:
    @bounds.verb
    def step(fn: object, /, *args: object, retry: int = 1) -> None:
        """Calls a function."""

    with pytest.raises(UnknownOption, match=r"functools.partial\(fn, number=…\)"):
        step(len, number=3)  # type: ignore[call-arg]


async def test_an_argument_that_is_given_twice_is_named() -> None:
    """By its place and by its name; where there are inputs, the hint says how one of that name is given."""

    class Starts:
        @bounds.verb
        async def begin(self, skill: str, inputs: object = None) -> object:
            return inputs

        @bounds.verb
        def end(self, key: str) -> str:
            return key

    with pytest.raises(UsageError, match=r"begin was given 'skill' twice: by its place, and by its name; an input with that name is given in a mapping: \{'skill': …\}"):
        await Starts().begin("a", skill="b")  # type: ignore[misc]
    with pytest.raises(UsageError, match=r"end was given 'key' twice: by its place, and by its name$"):
        Starts().end("a", key="b")  # type: ignore[misc]
    assert await Starts().begin("a", inputs=1) == 1 and Starts().end(key="b") == "b"
