"""What was read is kept up to a size, and what was used longest ago goes first."""

from __future__ import annotations

from holdfast.core.recent import Recent


def test_what_was_used_longest_ago_is_forgotten() -> None:
    recent: Recent[str, int] = Recent(10)
    recent.keep("a", 1, 5)
    recent.keep("b", 2, 5)
    assert recent.get("a") == 1
    recent.keep("c", 3, 1)
    assert [recent.get(key) for key in "abc"] == [1, None, 3]


def test_a_value_kept_again_counts_once() -> None:
    recent: Recent[str, int] = Recent(10)
    recent.keep("c", 3, 1)
    recent.keep("a", 1, 5)
    recent.keep("a", 2, 9)
    assert [recent.get(key) for key in "ac"] == [2, 3]
    recent.keep("a", 3, 10)
    assert [recent.get(key) for key in "ac"] == [3, None]


def test_a_value_larger_than_all_is_not_kept_and_leaves_nothing_behind() -> None:
    recent: Recent[str, int] = Recent(10)
    recent.keep("a", 1, 5)
    recent.keep("b", 2, 11)
    assert [recent.get(key) for key in "ab"] == [None, None]
    recent.keep("c", 3, 10)
    assert recent.get("c") == 3


def test_what_is_dropped_makes_room() -> None:
    recent: Recent[tuple[str, str], int] = Recent(10)
    for name in "abcde":
        recent.keep(("t" if name in "ab" else "u", name), 1, 2)
    recent.drop_where(lambda key: key[0] == "t")
    recent.drop(("u", "c"))
    recent.drop(("u", "never kept"))
    recent.keep(("u", "f"), 1, 6)
    assert [recent.get(key) for key in (("t", "a"), ("t", "b"), ("u", "c"), ("u", "d"), ("u", "e"), ("u", "f"))] == [None, None, None, 1, 1, 1]


def test_what_is_there_is_told_the_one_that_goes_next_first() -> None:
    recent: Recent[str, int] = Recent(10)
    for key in "abc":
        recent.keep(key, 1, 4)
    recent.get("b")
    assert list(recent) == ["c", "b"]
