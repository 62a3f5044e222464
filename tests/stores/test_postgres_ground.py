"""Where claims begin over PostgreSQL, and how often that, and who holds how many runs, is looked at: no database is needed for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.limits import Held
from holdfast.stores.postgres import ground, limits
from holdfast.stores.postgres.ground import BEGINNING, NOWHERE, Ground, Look

A, B = ("a", 0, "t"), ("b", 0, "t")
AT = 1_800_000_000_000_000


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def seen(it: Ground, *found: tuple[tuple[str, int, str], int | None, int | None], seconds: float = 0.0) -> Look:
    """A look is due, and finds these lines with the oldest that is due in each at once and at a time."""
    look = it.look()
    assert look is not None
    it.see(look, [(*line, AT, at_once, at_a_time) for line, at_once, at_a_time in found], seconds)
    return look


def begins(it: Ground) -> Sequence[Any]:
    return list(zip(it.values["in_queue"], it.values["in_begins"], it.values["in_times"], strict=False))


def test_who_has_claimed_few_runs_remembers_nothing() -> None:
    it = Ground(Clock())
    it.took(ground.FEW - 1)
    assert it.look() is None and it.values == NOWHERE
    it.took(1)
    assert it.look() is not None


def test_each_line_begins_at_the_oldest_that_is_due_in_it() -> None:
    it = Ground(Clock())
    it.took(ground.FEW)
    assert seen(it, (B, AT - 5, None), (A, None, AT + 7)).whole
    assert begins(it) == [("b", AT - 5 - ground.MARGIN, AT - ground.MARGIN), ("a", AT - ground.MARGIN, AT - ground.MARGIN)]
    assert [it.begins(*line) for line in (A, B, ("c", 0, "t"))] == [AT - ground.MARGIN, AT - 5 - ground.MARGIN, BEGINNING[0]]


def test_lines_are_looked_through_whole_as_seldom_as_that_takes_long() -> None:
    clock = Clock()
    it = Ground(clock)
    it.took(ground.FEW)
    seen(it, (A, AT, None), seconds=0.1)
    assert it.look() is None
    clock.now += ground.EACH
    look = seen(it, (A, AT, None))
    assert not look.whole and list(look.values["in_begins"]) == [AT - ground.MARGIN]
    clock.now += ground.WHOLE
    assert not seen(it, (A, AT, None)).whole, "a tenth of a second is too much to be spent each second"
    clock.now += ground.PART * 0.1
    look = seen(it, (A, AT, None))
    assert look.whole and list(look.values["in_begins"]) == [BEGINNING[0]] and list(look.values["in_times"]) == [BEGINNING[1]]
    assert look.values["in_queue"] == ("a", ""), "the lines are still named: only where each begins is looked for anew"


def test_a_line_in_which_nothing_is_to_come_is_forgotten_once_little_lies_about() -> None:
    clock = Clock()
    it = Ground(clock)
    it.took(ground.FEW)
    seen(it, (B, AT, None), (A, AT, None), seconds=1.0)
    clock.now += ground.PART
    assert seen(it, (B, None, None), (A, AT, None), seconds=1.0).whole
    assert [queue for queue, _, _ in begins(it)] == ["b", "a"]
    clock.now += ground.EACH
    assert not seen(it, (B, None, None), (A, AT, None)).whole
    assert [queue for queue, _, _ in begins(it)] == ["b", "a"]
    clock.now += ground.PART
    assert seen(it, (B, None, None), (A, AT, None)).whole
    assert [queue for queue, _, _ in begins(it)] == ["a"]


def test_of_many_lines_those_are_remembered_in_which_something_is_to_come() -> None:
    it = Ground(Clock())
    it.took(ground.FEW)
    every = [((f"q{n:02}", 0, "t"), AT if n % 2 else None, None) for n in range(ground.LINES + ground.NEW_LINES, 0, -1)]
    look = seen(it, *every, seconds=1.0)
    assert look.values["found_lines"] == len(every)
    assert [queue for queue, _, _ in begins(it)] == [line[0] for line, at_once, _ in every if at_once is not None]


def test_a_count_that_took_long_counts_for_a_while_and_a_quick_one_does_not() -> None:
    clock = Clock()
    it = limits.Tally(clock)
    assert not it.holds
    it.see([Held("w", "q", "t", 3)], limits.QUICK)
    assert not it.holds
    it.see([Held("w", "q", "t", 3)], 0.1)
    it.add("v", "q", "t")
    assert it.holds and it.held == [Held("w", "q", "t", 3), Held("v", "q", "t", 1)]
    clock.now += limits.PART * 0.1
    assert not it.holds
    it.see([], 0.1)
    assert it.held == []
