"""The memory store's tables with indexes are dicts that never lose a row in between."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from holdfast.stores.memory import Indexed

ACTS = st.lists(st.tuples(st.sampled_from(["set", "default", "pop"]), st.integers(0, 9), st.integers(0, 3)), max_size=60)


@given(ACTS)
def test_an_index_says_what_a_scan_says(acts: list[tuple[str, int, int]]) -> None:
    """Whatever is set, put back and taken away, in the dict's own order; and a copy goes its own way."""
    table = Indexed[int, tuple[int, int]](half=lambda row: row[0] % 2, third=lambda row: row[0] % 3)
    plain: dict[int, tuple[int, int]] = {}
    for act, key, value in acts:
        row = (key, value)
        if act == "set":
            table[key] = plain[key] = row
        elif act == "default":
            assert table.setdefault(key, row) == plain.setdefault(key, row)
        else:
            assert table.pop(key, None) == plain.pop(key, None)
    other = copy.copy(table)
    assert list(table.items()) == list(other.items()) == list(plain.items())
    other[99] = (99, 0)
    for n in range(3):
        assert table.of("half", n) == [row for row in plain.values() if row[0] % 2 == n]
        assert table.of("third", n) == [row for row in plain.values() if row[0] % 3 == n]
    assert other.of("third", 0)[-1] == (99, 0)


def test_reading_one_key_looks_at_its_own_rows_only() -> None:
    """Cost does not grow with what others have in the store."""
    looked: list[int] = []

    class Watched(Indexed[int, int]):
        def __getitem__(self, key: int) -> int:
            looked.append(key)
            return super().__getitem__(key)

    table = Watched(itself=lambda row: row)
    for n in range(1000):
        table[n] = n
    assert (table.of("itself", 7), looked) == ([7], [7])
    assert (table.of("itself", 1000), looked) == ([], [7])
