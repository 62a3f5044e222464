"""Errors as values (§6.9): what stays of one on record, and which class it was."""

from __future__ import annotations

import pickle
import traceback

import pytest

from holdfast.core import errors, ids
from holdfast.core.errors import AlreadyTerminal, ErrorValue, LaneBlocked, RecordDamaged, Rejected, RetryAfter, StoreClosed, from_code


def test_a_refusal_on_record_is_of_its_class_again() -> None:
    again = from_code("already_terminal", "it is completed")
    assert type(again) is AlreadyTerminal and again.message == "it is completed"
    other = from_code("of_a_later_release", "no")
    assert type(other) is Rejected and (other.code, other.message) == ("of_a_later_release", "no")
    for known in ("run_failed", "run_waiting"):  # their runs are not on record
        assert type(from_code(known, "no")) is Rejected


def test_errors_carry_what_the_caller_needs() -> None:
    blocked = LaneBlocked("b waits behind a", blocked_by="a", blocked_why="live")
    assert (blocked.blocked_by, blocked.blocked_why, blocked.code) == ("a", "live", "lane_blocked")
    assert RetryAfter(2.5).seconds == 2.5 and "2.5 s" in RetryAfter(2.5).message and RetryAfter(1, "busy").message == "busy"
    assert StoreClosed().code == "store_closed" and not StoreClosed.passing and "again" in StoreClosed().hint
    gone = RecordDamaged("claim", "", "request\x1fnotes\x1fk", missing=True)
    assert (gone.code, gone.run_id) == ("claim_record_missing", "") and "'request notes k' is missing" in gone.message


def test_a_step_that_took_too_long_is_a_timeout_of_python_too() -> None:
    """§10.10: whoever writes ``except TimeoutError`` around a step means this one; it stays a failure with its own code, hint and text."""
    late = errors.StepTimeout("ask took longer than 1 s", hint="raise its timeout=")
    assert isinstance(late, TimeoutError) and isinstance(late, errors.StepFailure)
    assert (str(late), late.code, late.errno, late.args) == ("ask took longer than 1 s; raise its timeout=", "step_timeout", None, ("ask took longer than 1 s",))
    again = from_code("step_timeout", "late")
    assert type(again) is errors.StepTimeout and again.message == "late"
    for other in (pickle.loads(pickle.dumps(late)), errors.make_own(late)):
        assert type(other) is errors.StepTimeout and (str(other), vars(other), other.args) == (str(late), vars(late), late.args)
    kept = ErrorValue.of(late)
    assert (kept.type, kept.message, kept.code, kept.hint) == ("holdfast.core.errors.StepTimeout", late.message, "step_timeout", late.hint)


def test_which_errors_are_also_pythons_own() -> None:
    """Only where nobody could mean anything else; the head of the module says why no other is."""
    found = {cls.__name__: base.__name__ for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.HoldfastError)
             for base in (next(c for c in cls.__mro__ if c.__module__ == "builtins"),) if base is not Exception}
    assert found == {"StepTimeout": "TimeoutError", "UnknownOption": "TypeError", "ChannelEmpty": "AttributeError"}


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class Stopped(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_an_exception_without_a_text_is_kept_by_its_type() -> None:
    kept = ErrorValue.of(Silent(), "a")
    assert kept.type.endswith("Silent") and "cannot be made" in kept.message and "ValueError" in kept.message
    with pytest.raises(KeyboardInterrupt):
        ErrorValue.of(Stopped())
    assert ErrorValue.of(ValueError("a\0b\ud800")).message == "a\\0b\\ud800"
    odd = errors.StepFailure("x")
    odd.code = 5  # type: ignore[assignment]  # a class of the user's may say anything of itself
    assert errors.code_of(odd) == errors.HoldfastError.code and errors.code_of(ValueError()) == "step_failed"


def test_a_recorded_failure_reads_as_python_prints_it() -> None:
    assert str(ErrorValue("shop.bank.Refused", "no funds")) == "Refused: no funds"
    assert str(ErrorValue("KeyboardInterrupt", "")) == "KeyboardInterrupt"
    assert str(ErrorValue.of(Rejected("it has ended", hint="fork it"))) == "Rejected: it has ended; fork it"
    assert str(ErrorValue("ValueError", "two\nlines", hint="so")) == "ValueError: two\nlines\nso"


@pytest.mark.parametrize("name", ["a", "run-1", "é", "x" * 512])
def test_what_may_be_an_id(name: str) -> None:
    assert ids.is_wellformed(name)


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "a\\b", "a\0", "a\n", "x" * 513, "é" * 257, "\ud800"])
def test_what_may_not(name: str) -> None:
    """No path is made of an id that somebody brought."""
    assert not ids.is_wellformed(name)


def test_a_bucket_for_every_id() -> None:
    """One that we made names its bucket by its tail; any other text has one too, and always the same."""
    for run in ("of another kind", "x" * 26, "\ud800"):
        assert 0 <= ids.bucket_number(run) < ids.BUCKETS and ids.bucket_number(run) == ids.bucket_number(run)


def test_a_full_queue_says_when_to_come_back() -> None:
    """§10.11: a time to try again, in the error and in its way out, unless that says something better."""
    full = errors.QueueFull("default is full", retry_after=2.5)
    assert (full.retry_after, full.hint, full.code) == (2.5, "try again in 2.5 s", "queue_full")
    assert errors.QueueFull("full", hint="ask the operator").hint == "ask the operator"


def test_the_same_error_for_several_callers_is_one_for_each() -> None:
    """Of one object that many raise, each would print the frames of all: of a hundred runs that were stopped, a hundred pages each."""
    first = RecordDamaged("claim", "r1", "k")
    try:
        raise first from OSError(28, "no space")
    except RecordDamaged:
        pass
    for error in (first, errors.QueueFull("full", retry_after=2), errors.Unserializable("a.b", "a set"), OSError(28, "no space", "runs.db"), KeyError("x"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "odd")):
        own = errors.make_own(error)
        assert own is not error and type(own) is type(error) and (str(own), own.args, vars(own)) == (str(error), error.args, vars(error))
        assert (own.__cause__, own.__suppress_context__, own.__traceback__) == (error.__cause__, error.__suppress_context__, error.__traceback__)
    told = []
    for _ in range(5):
        try:
            raise errors.make_own(first)
        except RecordDamaged as e:
            told.append(len(traceback.extract_tb(e.__traceback__)))
    assert len({*told}) == 1


def test_request_keys_are_unique_in_their_scope() -> None:
    """§3.5: a tenant's runs of one skill."""
    assert len({ids.request_scope(tenant, of) for tenant in ("a", "b") for of in ("pay", "fork:r1")}) == 4


@pytest.mark.parametrize("letter", ["a", "é", "\U0001f600", "\ud800"])
@pytest.mark.parametrize("room", [0, 27, 400])
def test_a_name_is_shortened_only_where_it_leaves_no_room(letter: str, room: int) -> None:
    """What is put behind it still makes an id, and two long names stay two."""
    size = len(letter.encode("utf-8", "surrogatepass"))
    fits = letter * ((ids.LONGEST - room) // size)
    assert ids.shorten(fits, room) == fits
    long = fits + letter
    short = ids.shorten(long, room)
    assert len(short.encode("utf-8", "surrogatepass")) + room <= ids.LONGEST
    assert ids.shorten(long, room) == ids.shorten(short, room) == short != ids.shorten(long + letter, room)


@pytest.mark.parametrize("beside", ["t", "of ann", "t~0123456789abcdefghjkmnpqrs"])
def test_a_name_of_a_runs_own_comes_apart_again(beside: str) -> None:
    run = ids.run_id(10**15, 7, "default", beside=beside)
    assert ids.split_own(f"{beside}~{run}") == (beside, run)


@pytest.mark.parametrize("name", ["", "t", "t~", "t~r1", "~0123456789abcdefghjkmnpqrs", "0123456789abcdefghjkmnpqrs", "t~0123456789abcdefghjkmnpqrs~", "t~0123456789ABCDEFGHJKMNPQRS"])
def test_what_a_user_has_called_so_does_not_come_apart(name: str) -> None:
    assert ids.split_own(name) is None


def test_the_text_of_a_group_names_what_is_in_it() -> None:
    inner = ExceptionGroup("inner", [ValueError("b"), KeyError("c"), OSError("d")])
    value = ErrorValue.of(ExceptionGroup("outer", [ValueError("a"), inner]))
    assert value.message == "outer (2 sub-exceptions): ValueError: a; ValueError: b; KeyError: 'c'; and 1 more"
    assert ErrorValue.of(ExceptionGroup("one", [ValueError("a")])).message == "one (1 sub-exception): ValueError: a"
