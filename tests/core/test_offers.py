"""Whether a living worker can take a due run (§10.11), and what stands in an owner's name and in a worker's offer."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core import codec, describe
from holdfast.core.errors import EventUnreadable
from holdfast.core.lease import Alive, Lease, OwnerId
from holdfast.core.offers import NoWorker, Offer, Shape, lacking
from tests.core.build import folded

RUN = folded()
DUE = Lease(1, due=5)
MINE, OTHER = Shape("notes", "1", "f"), Shape("notes", "2", "g")


@pytest.mark.parametrize(
    ("offers", "offered"),
    [
        ([], None), ([Offer(("elsewhere",), (OTHER,))], None), ([Offer((), (MINE,))], None), ([Offer(("default",), (OTHER,)), Offer((), (MINE,))], None),
        ([Offer((), (OTHER,), upgrade=True)], None), ([Offer((), (OTHER, OTHER))], ("g",)), ([Offer(("default",), (Shape("mail", "1", "f"),), upgrade=True)], ()),
    ],
)  # fmt: skip
def test_who_can_take_it(offers: list[Offer], offered: tuple[str, ...] | None) -> None:
    found = lacking(RUN, DUE, offers, now=10)
    assert found == (None if offered is None else NoWorker("notes", "1", "f", offered))
    if found is not None:
        assert ("they offer g" in found.said) is bool(offered) and ("none has that skill" in found.said) is not bool(offered)
        assert 'migrates=("f",)' in found.way_out("r") and "resume r --upgrade" in found.way_out("r")
        view = describe.no_worker_of(found)
        assert (view.skill_id, view.version, view.wanted, tuple(view.offered), view.workspace) == ("notes", "1", "f", offered, None)


@pytest.mark.parametrize("lease", [Lease(1), Lease(1, due=11), Lease(1, "o", 11, due=5), Lease(1, "o", 11, Alive.UNKNOWN, 5)])
def test_only_a_due_run_that_nobody_drives_lacks_one(lease: Lease) -> None:
    assert lacking(RUN, lease, [Offer((), (OTHER,))], now=10) is None


def test_a_dead_owner_drives_nothing() -> None:
    assert lacking(RUN, Lease(1, "o", 11, Alive.NO, 5), [Offer((), (OTHER,))], now=10) is not None


def test_an_offer_is_kept_as_it_is() -> None:
    offer = Offer(("a", "b"), (MINE, OTHER), True)
    assert codec.decode_offer(codec.encode_offer(offer)) == offer
    with pytest.raises(EventUnreadable):
        codec.decode_offer(msgspec.msgpack.encode(["a"]))


def test_an_owners_name_has_five_parts() -> None:
    owner = OwnerId("my-host-1", "boot.4026", 42, "77", "n")
    assert owner.name == "my-host-1-boot.4026-42-77-n" and OwnerId.parse(owner.name) == owner
    for other in ("worker", "a-b-c-d", "host-boot-x-1-n", "host-boot-²-1-n"):
        assert OwnerId.parse(other) is None
