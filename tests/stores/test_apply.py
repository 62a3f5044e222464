"""What all stores decide by: when an owner is lost, and how long a ring keeps what was replaced."""

from __future__ import annotations

import pytest

from holdfast.core.chunks import LINGER_US, Batch, Emitted, Place, Turn
from holdfast.core.lease import EXPIRED, OWNER_DEAD, Alive
from holdfast.stores import apply, memory

TURN = Turn(Place(1, "a"), 1, 1, 0, "s1", "t1")


@pytest.mark.parametrize(
    ("expires_in", "alive", "lost"),
    [
        (1, Alive.UNKNOWN, None), (1, Alive.YES, None), (0, Alive.YES, EXPIRED), (-1, Alive.UNKNOWN, EXPIRED), (None, Alive.UNKNOWN, EXPIRED),
        (1, Alive.NO, OWNER_DEAD), (0, Alive.NO, OWNER_DEAD), (None, Alive.NO, OWNER_DEAD),
    ],
)
def test_an_owner_is_lost_when_its_lease_is_over_and_not_before(expires_in: int | None, alive: Alive, lost: str | None) -> None:
    """§10.3: proof of death comes first (§10.6)."""
    assert apply.why_lost(expires_in, alive) == lost


def test_what_was_replaced_stays_for_a_while_and_goes() -> None:
    """§13.6: for readers that were following it already; to the microsecond."""
    first = memory.ring_after((), Emitted("r", 1, (Batch(TURN, 1, 1, (b"a",)),)), [1], now=0)
    replaced = memory.ring_after(first, Emitted("r", 1, replaced=(TURN.key,)), [], now=10)
    assert [k.gone for k in first] == [None] and [k.gone for k in replaced] == [10]
    for now, kept in ((10 + LINGER_US - 1, 1), (10 + LINGER_US, 1), (10 + LINGER_US + 1, 0)):
        assert len(memory.ring_after(replaced, Emitted("r", 1), [], now=now)) == kept
    later = memory.ring_after(first, Emitted("r", 1, (Batch(TURN, 2, 1, (b"b", b"c")),)), [2], now=20)
    assert [k.last for k in later] == [1, 3]
    for before, kept in ((1, [1, 3]), (2, [3]), (3, [3]), (4, [])):
        assert [k.last for k in memory.ring_after(later, Emitted("r", 1, before={TURN.key: before}), [], now=20)] == kept
