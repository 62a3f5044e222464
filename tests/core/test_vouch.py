"""What vouches for the records beside the log (§12.1): altered, missing, swapped and put back from an older copy are all told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.core import codec, consistency, intents, vouch
from holdfast.core.commit import DedupClaim, LedgerRow
from holdfast.core.effects import Effect, EffectClass
from holdfast.core.errors import EventUnreadable, RecordDamaged
from holdfast.core.schedules import Schedule
from holdfast.core.tokens import Token
from tests.core.build import raw

EFFECT = Effect(
    effect_id="r.1.n#1", run_id="r", lineage_root="r", step=1, task="n", path="", attempt=1, capability="mail", effect_class=EffectClass.WRITE, key="k",
    shared=True, request_hash="h", owner="o", attempted_at=1,
)
INTENT = intents.Intent(intent_id="r!0", run_id="r", type="mail", payload=raw("hi"), key="k", digest="d")
TOKEN = Token(b"\x01", "r", "r.1.ask", "default", "ada", 1, 2)
CLAIM = DedupClaim("request", "notes", "k", "r", "d", 9)
SCHEDULE = Schedule(schedule_id="s", skill_id="notes", input=raw({}), created_at=1, every_us=60, due=5)
ROW = LedgerRow("r", "t", "k", raw(1), 5, "r.1.n", 7)

VOUCHED: dict[str, tuple[Callable[..., vouch.Voucher], tuple[Any, ...], list[tuple[Any, ...]]]] = {
    "effect": (vouch.of_effect, (EFFECT, b"1"), [(EFFECT, b"2"), (msgspec.structs.replace(EFFECT, key="j"), b"1"), (msgspec.structs.replace(EFFECT, run_id="q"), b"1")]),
    "inbox": (vouch.of_inbox, ("r", "k", 1, b"c", None), [("r", "k", 1, b"d", None), ("r", "k", 2, b"c", None), ("r", "k", 1, b"c", 3)]),
    "claim": (vouch.of_claim, (CLAIM,), [(msgspec.structs.replace(CLAIM, digest="e"),), (msgspec.structs.replace(CLAIM, run_id="q"),)]),
    "token": (vouch.of_token, (TOKEN,), [(msgspec.structs.replace(TOKEN, used_at=3),), (msgspec.structs.replace(TOKEN, actor="eve"),)]),
    "intent": (vouch.of_intent, (INTENT, b"1"), [(INTENT, b"2"), (msgspec.structs.replace(INTENT, state=intents.IntentState.SENT), b"1"), (msgspec.structs.replace(INTENT, payload=b""), b"1")]),
    "ledger": (vouch.of_ledger, (ROW,), [(msgspec.structs.replace(ROW, data=raw(2)),), (msgspec.structs.replace(ROW, at=6),)]),
    "schedule": (vouch.of_schedule, (SCHEDULE, b"1"), [(SCHEDULE, b"2"), (msgspec.structs.replace(SCHEDULE, due=6), b"1")]),
    "shelf": (vouch.of_shelf, ("s", "k", b"1"), [("s", "k", b"2")]),
    "worker": (vouch.of_worker, ("o", 1, "x"), [("o", 2, "x"), ("o", 1, None)]),
    "offer": (vouch.of_offer, ("o", b"1"), [("o", b"2")]),
    "meta": (vouch.of_meta, ({"writes": 1},), [({"writes": 2},), ({"incarnation": 1},)]),
    "pruned": (vouch.of_pruned, ("r", 1, "ada"), [("r", 2, "ada"), ("r", 1, "eve")]),
    "limit": (vouch.of_limit, ("api", b"1"), [("api", b"2")]),
    "bucket": (vouch.of_bucket, ("api", 5), [("api", 6)]),
    "call": (vouch.of_call, ("r.a", "api", "w", "r", 5), [("r.a", "api", None, "r", 5), ("r.a", "api", "w", "q", 5), ("r.a", "api", "w", "r", 6)]),
}


def test_every_kind_has_its_voucher() -> None:
    assert set(VOUCHED) == set(vouch.KINDS)


@pytest.mark.parametrize("kind", VOUCHED)
def test_another_content_is_another_record(kind: str) -> None:
    make, given, others = VOUCHED[kind]
    voucher = make(*given)
    assert voucher.kind == kind and voucher == make(*given)
    vouch.verify([voucher], [make(*given)])
    for other in others:
        altered = make(*other)._replace(id=voucher.id)
        with pytest.raises(RecordDamaged) as caught:
            vouch.verify([altered], [voucher])
        assert caught.value.code == f"{kind}_record_altered"
        told = consistency.record_problem(caught.value)
        assert (told.code, told.severity, told.message) == (caught.value.code, "error", caught.value.message)


@pytest.mark.parametrize("kind", VOUCHED)
def test_a_record_that_is_gone(kind: str) -> None:
    make, given, _ = VOUCHED[kind]
    with pytest.raises(RecordDamaged) as caught:
        vouch.verify([], [make(*given)])
    whose = {"effect": "r", "inbox": "r", "claim": "r", "token": "r", "intent": "r", "ledger": "r"}.get(kind, "")
    assert (caught.value.code, caught.value.kind, caught.value.run_id) == (f"{kind}_record_missing", kind, whose)
    assert "\x1f" not in str(caught.value)


STANDS = ("r1", 2**32 | 3, "w", 5, True, 7)


@pytest.mark.parametrize("place", range(len(STANDS)))
def test_what_a_row_says_beside_its_log_is_vouched_for_column_by_column(place: int) -> None:
    others: tuple[Any, ...] = ("r2", 2**32 | 2, None, None, False, 8)
    changed = (*STANDS[:place], others[place], *STANDS[place + 1 :])
    assert vouch.standing(*changed) != vouch.standing(*STANDS) == vouch.standing(*STANDS)  # type: ignore[arg-type]


def test_whom_a_run_was_taken_over_from_is_vouched_for_as_long_as_it_has_an_owner() -> None:
    known = [vouch.standing(*STANDS, previous, cause) for previous, cause in [(None, None), ("v", None), ("v", "expired"), ("v", "owner_dead"), ("u", "expired"), (None, "expired")]]
    assert len(set(known)) == 6 and known[0] == vouch.standing(*STANDS)
    assert vouch.standing("r", 1, None, 5, True, 7, "v", "expired") == vouch.standing("r", 1, None, 5, True, 7)


def test_nobody_and_never_are_not_the_empty_text() -> None:
    assert len({vouch.standing("r", 1, owner, due, False, 1) for owner in (None, "") for due in (None, 0)}) == 4


def test_what_a_damaged_page_gives_is_another_digest() -> None:
    assert vouch.standing("r", 1, None, None, "x", 1) != vouch.standing("r", 1, None, None, True, 1)  # type: ignore[arg-type]


def test_a_record_that_nobody_wrote() -> None:
    """A row that is swapped in from elsewhere has no voucher, and the place it came from lacks it."""
    mine, other = vouch.of_shelf("s", "a", b"1"), vouch.of_shelf("s", "b", b"1")
    found = list(vouch.damage(vouch.by_id([other]), vouch.by_id([mine])))
    assert [(e.record, e.code) for e in found] == [(mine.id, "shelf_record_missing"), (other.id, "shelf_record_altered")]
    assert mine.seal != other.seal, "the same content in another place is another record"


def test_ids_sort_as_their_numbers() -> None:
    assert vouch.ledger_id(9) < vouch.ledger_id(10) and vouch.of_ledger(ROW).id == vouch.ledger_id(7)
    assert vouch.of_token(TOKEN).under == TOKEN.hash.hex() and vouch.of_effect(EFFECT, b"").under == "k" and vouch.of_claim(CLAIM).under == "r"


@pytest.mark.parametrize("claim", [("request", "t", "k"), ("request", "t\x1fskill", "k"), ("slot", "s", "a\x1fb\x1fc")])
def test_what_a_claim_may_be_is_read_from_its_id(claim: tuple[str, str, str]) -> None:
    """A scope and a key may contain what stands between them."""
    found = vouch.list_readings(vouch.claim_id(*claim))
    assert claim in found and all(vouch.claim_id(*reading) == vouch.claim_id(*claim) for reading in found)
    assert len(found) == "\x1f".join(claim).count("\x1f") - 1


def test_records_are_kept_as_they_are() -> None:
    assert codec.decode_intent(codec.encode_intent(INTENT)) == INTENT
    assert codec.decode_schedule(codec.encode_schedule(SCHEDULE)) == SCHEDULE


@pytest.mark.parametrize("decode", [codec.decode_effect, codec.decode_schedule, codec.decode_command, codec.decode_rule])
def test_no_bytes_at_all_are_unreadable(decode: Callable[[Any], Any]) -> None:
    """A damaged page gives NULL where bytes were: a typed error, like any bytes that are none of ours."""
    with pytest.raises(EventUnreadable):
        decode(None)


def test_records_that_are_lost_together_with_their_vouchers_are_counted() -> None:
    """§12.1: by number and sum, whatever their order; the count itself is held against what is there."""

    def tally(*ids: str) -> tuple[int, int]:
        return len(ids), sum(vouch.weigh("schedule", id) for id in ids)

    whole = dict.fromkeys(vouch.COUNTED, (0, 0)) | {"schedule": tally("a", "b", "c")}

    def told(stated: dict[str, tuple[int, int]], *there: str) -> list[tuple[str, str]]:
        return [(e.code, e.record) for e in vouch.find_miscounted(stated, whole | {"schedule": tally(*there)})]

    assert told(whole, "c", "a", "b") == []
    assert told(whole, "b") == [("schedule_record_missing", "2 of 3")]
    assert told(whole, "a", "b", "d") == [("schedule_record_missing", "1 of 3")], "another is in its place"
    assert told(whole, "a", "b", "c", "d") == [("schedule_record_altered", "count of all: 3, not 4")]
    assert told({k: v for k, v in whole.items() if k != "schedule"}, "a") == [("schedule_record_missing", "count of all")]
    assert list(vouch.find_miscounted({}, dict.fromkeys(vouch.COUNTED, (0, 0)))) == [], "a store that was emptied by hand"
    assert 0 <= vouch.weigh("token", "\ud800") < 2**32 and vouch.weigh("token", "a") != vouch.weigh("limit", "a")


def test_rows_of_shelves_are_counted_with_what_they_contain() -> None:
    """§12.1: a row that was lost, or put back from an older copy, together with its voucher. A row that differs from its own voucher is told elsewhere."""
    cups = [vouch.of_shelf("cups", key, b"1") for key in "abc"]
    stated = {"cups": (3, sum(vouch.heft(v.seal) for v in cups))}

    def told(found: list[vouch.Voucher], vouchers: list[vouch.Voucher] | None = None) -> list[tuple[str, str]]:
        return [(e.code, e.record) for e in vouch.find_miscounted_shelves(stated, found, found if vouchers is None else vouchers)]

    older, plate = vouch.of_shelf("cups", "c", b"0"), vouch.of_shelf("plates", "a", b"1")
    assert told(cups[::-1]) == []
    assert told(cups[:1]) == [("shelf_record_missing", "cups\x1f2 of 3")] and told([]) == [("shelf_record_missing", "cups\x1f3 of 3")]
    assert told([*cups, plate]) == [("shelf_record_altered", "plates\x1fcount of all: 0, not 1")]
    assert told([*cups[:2], older]) == [("shelf_record_altered", "cups\x1fat least 1 of 3")]
    assert told([*cups[:2], older], cups) == [], "it differs from its voucher"
    assert told(cups[:2], cups) == [], "it is missing, and its voucher is there"
