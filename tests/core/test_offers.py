"""Whether a living worker can take a due run (§10.11), and what stands in an owner's name and in a worker's offer."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core import codec, describe
from holdfast.core.errors import EventUnreadable
from holdfast.core.lease import Alive, Lease, OwnerId
from holdfast.core.offers import NoWorker, Offer, Shape, find_sent, lacking
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
)
def test_who_can_take_it(offers: list[Offer], offered: tuple[str, ...] | None) -> None:
    found = lacking(RUN, DUE, offers, now=10)
    assert found == (None if offered is None else NoWorker("notes", "1", "f", offered))
    if found is not None:
        assert ("the running workers have g" in found.said) is bool(offered) and ("none of the running workers has the skill" in found.said) is not bool(offered)
        assert ('migrates=("f",)' in found.way_out("r")) is ("resume r YOUR_FILE.py --upgrade" in found.way_out("r")) is bool(offered) and "resume r" in found.way_out("r")
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


def test_a_run_bound_to_a_folder_is_lacking_by_its_folder() -> None:
    """§11.2, §10.11: a worker with the shape in another folder does not do; the way out is a worker there, and no upgrade."""
    bound = msgspec.structs.replace(RUN, workspace="/srv/a")
    here, there = Shape("notes", "1", "f", workspace="/srv/a"), Shape("notes", "1", "f", workspace="/srv/b")
    assert lacking(bound, DUE, [Offer((), (here,))], now=10) is None
    assert lacking(RUN, DUE, [Offer((), (here,))], now=10) is None
    found = lacking(bound, DUE, [Offer((), (there,))], now=10)
    assert found == NoWorker("notes", "1", "f", ("f",), "/srv/a")
    assert found is not None and "in the workspace /srv/a" in found.said and "start a worker with that folder" in found.way_out("r") and "upgrade" not in found.way_out("r")
    changed = lacking(bound, DUE, [Offer((), (OTHER,))], now=10)
    assert changed is not None and "resume r YOUR_FILE.py --upgrade" in changed.way_out("r")


def test_what_somebody_sends() -> None:
    here, there, silent = ["mail"], Offer((), (), sends=frozenset({"sms"})), Offer((), ())
    assert find_sent(here, []) == {"mail"} and find_sent(here, [there]) == {"mail", "sms"}
    assert silent.sends is None and find_sent(here, [there, silent]) is None, "one that does not tell may send anything"
