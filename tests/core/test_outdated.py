"""What becomes of records that were made after an effect that is no more (§6.11)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core import compensation as comp
from holdfast.core import decisions, outdated
from holdfast.core import events as ev
from holdfast.core.called import Call
from holdfast.core.checkpoint import StepRecord, TaskResult
from holdfast.core.errors import ErrorValue
from holdfast.core.outdated import Outdated
from holdfast.core.progress import Progress
from holdfast.core.waits import Decision
from tests.core.build import RUN, wait

ERROR = ErrorValue(type="builtins.ValueError", message="no")


def record(path: str, kind: str = "step", digest: str = "d", error: ErrorValue | None = None) -> StepRecord:
    return StepRecord("pay", path, "f", kind=kind, digest=digest, error=error)


def test_what_came_before_it_is_what_it_was() -> None:
    records = [record("0"), record("1", "effect"), record("2"), record("3", "effect"), record("4", "value", ""), record("5", "wait", "")]
    assert outdated.find_outdated(records, "1") == Outdated(["1"], ["2", "3", "4", "5"])


@pytest.mark.parametrize(
    "later",
    [
        record("1", digest=""),
        record("1", "scope"),
        record("1", "first_of"),
        record("1", "task"),
        record("@check", "task"),
        record("1", "effect", error=ERROR),
        record("1", error=ERROR),
    ],
)
def test_what_does_not_say_what_it_was_asked_is_gone(later: StepRecord) -> None:
    assert outdated.find_outdated([record("0", "effect"), later], "0") == Outdated(["0", later.path], [])


@pytest.mark.parametrize("kind", ["feedback", "gate", "capability", "wait:used"])
def test_what_is_no_call_stays(kind: str) -> None:
    assert outdated.find_outdated([record("0", "effect"), record("1", kind)], "0") == Outdated(["0"], [])


def test_an_item_that_made_calls_is_gone_and_these_are_looked_at_each_by_itself() -> None:
    records = [record("0", "effect"), record("1/0/0/0"), record("1/0/0"), record("1/1/0")]
    assert outdated.find_outdated(records, "0") == Outdated(["0", "1/0/0"], ["1/0/0/0", "1/1/0"])


@pytest.mark.parametrize(
    ("around", "path"), [("1", "1/0/0"), ("1/0/0", "1/0/0/0"), ("@check", "0"), ("2.ask/@check", "2.ask/0"), ("1.book", "1.book/@node")]
)
def test_what_is_around_it_counts_for_it(around: str, path: str) -> None:
    """In a fork it has no record of its own."""
    assert outdated.find_outdated([record("=first"), record(around), record("3")], path) == Outdated([], [around, "3"])


@pytest.mark.parametrize(
    ("beside", "path"),
    [("1", "1"), ("10", "1/0"), ("1/1", "1/0/0"), ("1/0/0", "1"), ("@check/0", "0"), ("2.ask/@check", "1.book/0"), ("=@check", "0")],
)
def test_what_is_not_around_it(beside: str, path: str) -> None:
    assert beside not in outdated.list_around(path)


def test_where_nothing_tells_what_is_older_all_is_outdated() -> None:
    assert outdated.find_outdated([record("0"), record("1")], "5") == Outdated([], ["0", "1"])


def _inner(n: int) -> Callable[..., Any]:
    return lambda: n


def _with_default(n: int) -> Callable[..., Any]:
    def f(x: int = n) -> int:
        return x

    return f


def _with_keyword(n: int) -> Callable[..., Any]:
    def f(*, x: int = n) -> int:
        return x

    return f


def _bare() -> Callable[..., Any]:
    return lambda: 1


@pytest.mark.parametrize(
    ("fn", "same"),
    [
        (None, True),
        (record, True),
        (str.upper, True),
        ([].append, True),
        (_bare(), True),
        (functools.partial(record, "1"), False),
        (_inner(1), False),
        (_with_default(1), False),
        (_with_keyword(1), False),
    ],
)
def test_a_call_is_the_same_where_its_arguments_say_all(fn: Callable[..., Any] | None, same: bool) -> None:
    """What a function was given where it was made is not among its arguments."""
    call = Call("0", "f", "step", "d", (1,), fn=fn)
    assert outdated.is_same(record("0"), call) is same
    assert not any(outdated.is_same(record("0"), msgspec.structs.replace(call, **{field: "other"})) for field in ("name", "kind", "digest"))


@pytest.mark.parametrize(
    ("call", "telling"),
    [(Call("0", "f", "step"), True), (Call("0", "f", "step", "d", (1,)), True), (Call("=k", "f", "step", "", (1,)), False)],
)
def test_whether_a_call_says_what_it_is_given(call: Call, telling: bool) -> None:
    assert call.telling is telling


# -- in a run -----------------------------------------------------------------------------------------


def _progress() -> Progress:
    p = Progress(RUN)
    p.checkpoint = replace(p.checkpoint, step=0)
    return p


def test_an_undone_effect_has_no_record_any_more() -> None:
    """When an operator goes on: neither it, nor what it was part of, nor the task's result; failed undos took nothing back."""
    p = _progress()
    for task, path, kind, digest in [
        ("pay", "0", "effect", ""),
        ("pay", "1/0", "effect", ""),
        ("pay", "1", "scope", ""),
        ("pay", "2", "step", "d"),
        ("pay", "@check", "task", ""),
        ("ship", "0", "effect", ""),
    ]:
        p.record(StepRecord(task, path, "f", kind=kind, digest=digest))
    for task in ("pay", "ship"):
        p.results[task] = TaskResult(task)
    p.waits = (replace(wait(), task="pay", path="3"), replace(wait(), task="ship", path="3"))
    undone = [
        (1, "pay", "1/0", None, comp.GONE),
        (1, "pay", "1/0", None, "effect"),
        (1, "ship", "0", ERROR, "effect"),
        (9, "pay", "2", None, "effect"),
        (1, "pay", "2", None, "wait"),
    ]
    for step, task, path, error, kind in undone:
        place = f"{step}.{task}.{path}#1" + ("?1" if kind == "wait" else "")
        p.records[comp.TASK, place] = StepRecord(comp.TASK, place, "refund", error=error, kind=kind)
    p.records[comp.TASK, comp.END] = StepRecord(comp.TASK, comp.END, "step_failed", error=ERROR, kind="ending")
    p.forgive()
    assert set(p.records) == {("pay", "0"), ("pay", "2"), ("ship", "0")} and set(p.results) == {"ship"}
    assert p.outdated == {("pay", "2"), ("pay", "3")}


def test_what_is_recorded_anew_is_not_outdated() -> None:
    """An answer is about what was asked before it; a new question is not. A barrier forgets it all, a whole checkpoint brings it back."""
    p = _progress()
    for path, kind in [("0", "step"), ("1", "wait"), ("3", "step")]:
        p.record(StepRecord("pay", path, "f", kind=kind, digest="d"))
        p.outdated.add(("pay", path))
    p.record(decisions.answer(Decision(wait_id=f"{RUN}.1.pay.2/!1", action="approve", actor="ada", decided_at=0)))
    p.outdated.add(("pay", "2"))
    p.record(StepRecord("pay", "0", "f", digest="d"))
    p.record(StepRecord("pay", "1", "f", kind="wait"))
    p.record(decisions.answer(Decision(wait_id=f"{RUN}.1.pay.4", action="approve", actor="ada", decided_at=0)))
    p.outdated |= {("pay", "4"), ("pay", "5")}
    for path in ("2", "4", "5"):
        p.hear([ev.Event(1, 0, ev.WaitRequested(replace(wait(), wait_id=f"{RUN}.1.pay.{path}", task="pay", path=path)))])
    assert p.outdated == {("pay", "1"), ("pay", "3")}
    assert list(p.records) == [("pay", "3"), ("pay", "0"), ("pay", "1"), ("pay", "4")], "in the order in which they came; an outdated answer goes where something else is asked"
    whole = p.whole()
    assert Progress(RUN, (whole, b"")).outdated == p.outdated
    assert p.find_unfinished(whole).outdated == ()
    p.barrier()
    assert not p.outdated


# -- where code went on after a failure ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("later", "failed", "on"),
    [
        ("1", "0", True),
        ("1/0/0", "0", True),
        ("=k", "0", True),
        ("1/0/1", "1/0/0", True),
        ("1/0/1/0/0", "1/0/0", True),
        ("2", "1/0/0", True),
        ("2/0/0", "1/0/0", True),
        ("1/1/0", "1/0/0", False),
        ("1/1/0/0/0", "1/0/0", False),
        ("1/0/1/0/0", "1/0/0/2/0", True),
        ("1/0/3/0/0", "1/0/2/0/0", False),
        ("0/1/0", "0", False),
        ("1.pay/0", "1.book/0", False),
        ("2.pay/0/1/0", "1.book/0", True),
        ("1.book/1/0/0", "1.book/0/0/0", True),
        ("@1/1/0/0", "@1/0/0/0", True),
        ("@1/0/0/0", "0/0/0", True),
        ("0/1/0", "@1/0/0/0", False),
    ],
)
def test_whether_the_code_went_on_after_a_failure(later: str, failed: str, on: bool) -> None:
    """In the same line of control or in one around it, or beneath a call of such a line. A branch beside it says nothing."""
    assert outdated.goes_on(record(later), failed, {"1/0/0"}) is on


def test_a_scope_that_ended_well_went_on_after_what_failed_in_it() -> None:
    assert outdated.goes_on(record("1"), "1/0/0", ()) and not outdated.goes_on(record("1", error=ERROR), "1/0/0", ())


@pytest.mark.parametrize(
    ("path", "kind", "beside"),
    [("0?1", "wait", True), ("@retry/1", "wait", True), ("@redo", "feedback", True), ("0", "wait", False), ("=a?b/0", "wait", False), ("0?1", "step", False)],
)
def test_what_is_no_call_at_its_place(path: str, kind: str, beside: bool) -> None:
    assert outdated.is_beside(record(path, kind)) is beside


def test_an_act_that_was_given_up_is_asked_about_anew_also_after_an_undo() -> None:
    """§6.11, §7.1: what it failed with is gone by the undo of an effect before it, and so is the answer that failed it."""
    p = _progress()
    p.record(StepRecord("pay", "0", "book", kind="effect"))
    given = Decision(f"{RUN}.1.pay.1?1", "abandon", "ada", asked="effect:pay")
    p.record(decisions.answer(given))
    p.record(StepRecord("pay", "1", "pay", error=ERROR, kind="effect"))
    place = "1.pay.0#1"
    p.records[comp.TASK, place] = StepRecord(comp.TASK, place, "refund", kind="effect")
    p.forgive()
    assert p.records == {}
