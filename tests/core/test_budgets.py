"""Budgets: looked at before each step, spent only once (§8.5)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core.bounds import BUDGETS, limits
from holdfast.core.budgets import Exceeded, find_exceeded, is_extended, place, show
from holdfast.core.errors import InvalidInput, UnknownOption
from holdfast.core.run import Run, fold_all
from holdfast.core.waits import WaitKind
from tests.core.build import decided, numbered, raw, submitted, wait

SECOND = 1_000_000


def run(*facts: ev.Fact, **limits: float) -> Run:
    return fold_all(None, numbered([submitted(budgets=limits), *facts]))


@pytest.mark.parametrize(
    ("limits", "spent", "step", "over"),
    [
        ({}, {"cost": 99.0}, 99, None),
        # Steps: this many may run. Before the step after the last of them it is spent.
        ({"steps": 3}, {}, 2, None),
        ({"steps": 3}, {}, 3, ("steps", 3.0, 3.0)),
        ({"steps": 3}, {}, 4, ("steps", 4.0, 3.0)),
        # What is counted in amounts may be used up to the last penny.
        ({"cost": 2.5}, {}, 99, None),
        ({"cost": 2.5}, {"cost": 2.5}, 0, None),
        ({"cost": 2.5}, {"cost": 2.6}, 0, ("cost", 2.6, 2.5)),
        ({"cost": 2.5}, {"tokens": 9.0}, 0, None),
        # The first that is spent is told.
        ({"cost": 1, "tokens": 1, "steps": 1}, {"tokens": 2.0}, 1, ("tokens", 2.0, 1.0)),
    ],
)
def test_which_budget_is_spent(limits: dict[str, float], spent: dict[str, float], step: int, over: tuple[str, float, float] | None) -> None:
    """§8.5."""
    found = find_exceeded(replace(run(**limits), spent=spent), step, 0)
    assert (None if found is None else (found.name, found.used, found.limit)) == over


def test_seconds_count_work_and_not_waits() -> None:
    """§8.5: wall time without waits. Three seconds at work, an hour of waiting, and at work again for as long as now says."""
    asked = wait()
    worked = run(ev.RunStarted(), ev.WaitRequested(asked), seconds=3)
    assert worked.active_since == 2 * SECOND
    assert find_exceeded(worked, 9, 5 * SECOND) is None
    assert find_exceeded(worked, 9, 5 * SECOND + 1) == Exceeded("seconds", 3.000001, 3.0, 3.0)
    rests = fold_all(worked, [ev.Event(4, 5 * SECOND, ev.RunWaitingForHuman())])
    assert (rests.active_us, rests.active_since) == (3 * SECOND, None)
    assert find_exceeded(rests, 9, 3_600 * SECOND) is None, "nobody works, so nothing is spent"
    again = fold_all(rests, [ev.Event(5, 3_600 * SECOND, ev.RunResumed("decision"))])
    assert find_exceeded(again, 9, 3_601 * SECOND) == Exceeded("seconds", 4.0, 3.0, 3.0)


def budget_wait(name: str = "cost", extend: float | None = 2.5) -> Any:
    return wait(WaitKind.BUDGET, name=name, default=None if extend is None else raw(extend))


@pytest.mark.parametrize(
    ("asked", "decision", "limit"),
    [
        (budget_wait(), decided("approve"), 5.0),
        (budget_wait(), decided("approve", payload=raw({"extend": 10})), 12.5),
        (budget_wait(), decided("approve", payload=raw({"extend": 0.5})), 3.0),
        (budget_wait(), decided("approve", payload=raw({"extend": "much"})), 5.0),
        (budget_wait(), decided("approve", payload=raw("fine")), 5.0),
        (budget_wait(extend=None), decided("approve"), 2.5),
        (budget_wait(), decided("deny"), 2.5),
        (budget_wait(name="tokens"), decided("approve"), 2.5),
        (wait(WaitKind.APPROVAL, name="cost", default=raw(2.5)), decided("approve"), 2.5),
        (budget_wait(), decided("approve", "w9"), 2.5),
    ],
)
def test_an_approval_extends_by_a_stated_amount(asked: Any, decision: Any, limit: float) -> None:
    """§8.5: by what it names, else by what the wait says; nothing but the approval of this very wait does."""
    before = run(ev.RunStarted(), ev.WaitRequested(asked), ev.RunWaitingForHuman(), cost=2.5)
    assert fold_all(before, numbered([ev.WaitDecided(decision)], 5)).budgets == {"cost": limit}


def test_a_budget_is_extended_once_and_the_next_time_asks_again() -> None:
    """§8.5: by as much as it was given at first, however far it has been extended since."""
    over = replace(run(ev.RunStarted(), cost=2.5), spent={"cost": 3.0})
    found = find_exceeded(over, 1, 0)
    assert found == Exceeded("cost", 3.0, 2.5, 2.5)
    extended = fold_all(over, numbered([ev.WaitRequested(budget_wait()), ev.RunWaitingForHuman(), ev.WaitDecided(decided("approve"))], 3))
    assert find_exceeded(extended, 1, 0) is None
    late = fold_all(extended, numbered([ev.WaitDecided(decided("approve"))], 6))
    assert late.budgets == {"cost": 5.0}, "the wait is closed: the same answer again extends nothing"
    assert find_exceeded(replace(late, spent={"cost": 5.1}), 1, 0) == Exceeded("cost", 5.1, 5.0, 2.5)


@pytest.mark.parametrize(
    ("asked", "extended"),
    [
        (wait(WaitKind.BUDGET, name="cost", path=place("0", "cost", 2.5)), False),
        (wait(WaitKind.BUDGET, name="cost", path=place("0", "cost", 1)), True),
        (wait(WaitKind.BUDGET, name="tokens", path=place("0", "tokens", 1)), False),
        (wait(WaitKind.APPROVAL, name="cost", path="0"), False),
    ],
)
def test_a_step_may_look_again_once_its_budget_has_been_extended(asked: Any, extended: bool) -> None:
    """§8.5: whichever of several steps was answered. What is no budget of the run is never extended."""
    assert is_extended(run(cost=2.5), asked) is extended


def test_a_question_about_a_large_budget_is_told_from_that_about_a_slightly_larger_one() -> None:
    """A place with the limit cut to six digits was that of the question before, so its answer counted for the next one, and no step looked again."""
    asked = wait(WaitKind.BUDGET, name="tokens", path=place("0", "tokens", 10_000_000))
    assert is_extended(run(tokens=10_000_005), asked) and not is_extended(run(tokens=10_000_000), asked)
    assert (place("0", "cost", 2.5), place("0", "cost", 1000.0)) == ("0?cost=2.5", "0?cost=1000"), "as runs in flight have it"


def test_what_a_person_sees() -> None:
    assert show(Exceeded("cost", 3.0, 2.5, 1.0)) == {"budget": "cost", "used": 3.0, "limit": 2.5, "extend": 1.0}


@given(st.dictionaries(st.sampled_from(BUDGETS), st.integers(1, 9) | st.floats(0.1, 9), max_size=3))
def test_limits_are_positive_numbers_by_name(given: dict[str, float]) -> None:
    found = limits(given)
    assert found == given
    assert all(type(v) is float for v in found.values())


@pytest.mark.parametrize(
    "given",
    [None, 3, [("cost", 1)], {"cost": 0}, {"cost": -1}, {"cost": float("nan")}, {"cost": "1"}, {"cost": True}, {"cost": None}, {1: 1}, {"a": 1, "b": 0}],
)
def test_anything_else_is_refused(given: object) -> None:
    """A limit that could never hold, or that nobody meant, is told at once and not at the first step."""
    with pytest.raises((InvalidInput, UnknownOption)):
        limits(given)
