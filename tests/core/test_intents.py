"""What becomes of an intent (§9.3, §9.4): one pure function, over every order of outcomes."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import canon, intents
from holdfast.core.errors import ErrorValue, IntentInFlight, IntentSettled, InvalidInput
from holdfast.core.intents import Ask, Doubtful, Ended, Failed, Intent, IntentState, Late, LookUp, Refused, Send, Sending, Sent
from holdfast.core.lease import Alive
from holdfast.core.retry import CEILING, SECOND

PAYLOAD = canon.encode("hello")
ERROR = ErrorValue("E", "no")
FRESH = Intent(intent_id="i", run_id="r", type="mail", payload=PAYLOAD, key="k", digest=intents.digest("mail", PAYLOAD))
PLAIN, DEDUPES, VERIFIES = Sending(), Sending(dedupes=True), Sending(verifies=True)


def claim(intent: Intent, now: int = 0, *, lost: bool = False, dead: bool = False) -> Intent:
    return intents.start_sending(intent, "d", now, now + 30 * SECOND, lost=lost, dead=dead)


def test_sent_is_settled_with_the_digest_of_its_answer() -> None:
    done = intents.after(claim(FRESH), Sent(canon.encode("ok")), PLAIN, 5)
    assert (done.state, done.settled_at, done.owner, done.answer) == ("sent", 5, None, canon.encode("ok"))
    assert done.tries[0].answer and done.tries[0].ended_at == 5
    large = intents.after(claim(FRESH), Sent(b"x" * 100_000), PLAIN, 5)
    assert large.answer == b"" and large.tries[0].answer


def test_a_failure_comes_again_later_and_at_last_is_dead() -> None:
    intent, now, pauses = FRESH, 0, []
    for n in range(1, 11):
        intent = intents.after(claim(intent, now), Failed(ERROR), PLAIN, now)
        assert intent.attempts == n
        if n < 10:
            assert intent.state == "queued"
            pauses.append(intent.due - now)
            now = intent.due
    assert (intent.state, intent.detail) == ("dead", "no")
    assert all(0.5 * SECOND * 2**n <= pause <= 1.5 * SECOND * 2**n for n, pause in enumerate(pauses[:8]))
    assert max(pauses) <= 1.5 * CEILING
    other = intents.after(claim(Intent(intent_id="j", run_id="r", type="mail", payload=PAYLOAD, key="k")), Failed(ERROR), PLAIN, 0)
    assert other.due != pauses[0], "the jitter is the intent's own"


def test_retry_after_is_honoured_where_it_is_longer() -> None:
    assert intents.after(claim(FRESH), Failed(ERROR, 60 * SECOND), PLAIN, 0).due == 60 * SECOND
    assert intents.after(claim(FRESH), Failed(ERROR, 1), PLAIN, 0).due >= SECOND / 2


def test_an_attempt_ends_no_earlier_than_it_began() -> None:
    """A server's time, as a process behind it takes it, may be some hundred microseconds behind the one of the claim."""
    later = intents.after(claim(FRESH, 1_000), Failed(ERROR, 60 * SECOND), PLAIN, 700)
    assert (later.due, later.tries[0].ended_at) == (60 * SECOND + 1_000, 1_000)
    assert intents.after(claim(FRESH, 1_000), Sent(), PLAIN, 700).settled_at == 1_000
    assert intents.ask(claim(FRESH, 1_000), "why", 700).tries[0].ended_at == 1_000


@pytest.mark.parametrize(("now", "alive", "closed"), [(30 * SECOND, Alive.UNKNOWN, False), (30 * SECOND, Alive.YES, False), (7, Alive.NO, True), (30 * SECOND, Alive.NO, True)])
def test_a_person_may_speak_about_what_its_sender_has_left(now: int, alive: Alive, closed: bool) -> None:
    """Once its lease is over, or it is proven dead: of the attempt nobody knows, so sending again is subject to what may still be at it (§6.5)."""
    found = intents.find_lost(claim(FRESH), now, alive)
    assert (found.state, found.owner, found.lease_until, found.detail) == ("unknown", None, None, "sender_lost")
    assert [(t.outcome, t.closed, t.ended_at) for t in found.tries] == [(Ended.LOST, closed, now)]
    assert (intents.may_live(found, {}) is None) is closed
    assert intents.rule(found, "sent", actor="ada", reason="", now=now).state == "sent"
    assert intents.redrive(found, actor="ada", reason="", forced=True, now=now).doubts == ()


@pytest.mark.parametrize("alive", [Alive.YES, Alive.UNKNOWN])
def test_nobody_may_speak_about_what_is_being_sent(alive: Alive) -> None:
    assert intents.find_lost(claim(FRESH), 30 * SECOND - 1, alive) == claim(FRESH)
    assert intents.find_lost(FRESH, 30 * SECOND, alive) is FRESH


def test_refused_for_good_is_dead_at_once() -> None:
    assert intents.after(claim(FRESH), Refused(ERROR), DEDUPES, 0).state == "dead"


def test_too_late_counts_as_nothing() -> None:
    intent = FRESH
    for _ in range(30):
        intent = intents.after(claim(intent), Late("the lease may have been lost"), Sending(max_attempts=1), 7)
    assert (intent.state, intent.due_at, intent.settled_at) == ("queued", 7, None)


@pytest.mark.parametrize("how, move", [(PLAIN, Ask), (DEDUPES, Send), (VERIFIES, LookUp)])
def test_a_lost_sender(how: Sending, move: type) -> None:
    """§9.4: sent again under the same key, looked up, or asked about."""
    again = claim(claim(FRESH), lost=True, dead=True)
    found = intents.next_move(again, how)
    assert isinstance(found, move)
    if isinstance(found, LookUp):
        assert found.closed
        assert not intents.next_move(claim(claim(FRESH), lost=True), how).closed
        assert intents.next_move(intents.note_absent(again), how) == Send()


@pytest.mark.parametrize(("how", "move"), [(PLAIN, Ask), (DEDUPES, Send), (VERIFIES, LookUp)])
@pytest.mark.parametrize("there", [FRESH, claim(FRESH)], ids=["queued", "being sent"])
def test_what_comes_from_another_store_may_be_sent_there(there: Intent, how: Sending, move: type) -> None:
    here = intents.take_in(there, 5)
    assert (here.state, here.owner, here.lease_until) == ("queued", None, None)
    assert intents.may_live(here, {"d": Alive.NO}) is not None
    assert isinstance(intents.next_move(claim(here, 9), how), move)
    again = intents.redrive(here, actor="ada", reason="", forced=True, now=9)
    assert intents.next_move(claim(again, 9), how) == Send()


def test_what_is_settled_in_another_store_is_so_here() -> None:
    for there in (intents.after(claim(FRESH), Sent(), PLAIN, 5), intents.after(claim(FRESH), Refused(ERROR), PLAIN, 5), intents.ask(claim(FRESH), "why", 5)):
        assert intents.take_in(there, 9) == there


def test_a_doubt_outlives_an_attempt_that_was_never_begun() -> None:
    again = claim(claim(FRESH), lost=True)
    put_off = intents.after(again, Late("draining"), PLAIN, 0)
    assert isinstance(intents.next_move(claim(put_off), PLAIN), Ask)


def test_a_doubtful_end() -> None:
    assert intents.after(claim(FRESH), Doubtful(ERROR), PLAIN, 0).state == "unknown"
    assert intents.after(claim(FRESH), Doubtful(ERROR), VERIFIES, 0).state == "unknown"
    assert intents.after(claim(FRESH), Doubtful(ERROR), DEDUPES, 0).state == "queued"


def test_what_kills_its_senders_is_asked_about() -> None:
    intent = claim(FRESH)
    for _ in range(DEDUPES.max_losses):
        assert intents.next_move(intent, DEDUPES) == Send()
        intent = claim(intent, lost=True, dead=True)
    assert isinstance(intents.next_move(intent, DEDUPES), Ask)


def test_a_person_has_it_sent_again() -> None:
    unknown = intents.ask(claim(claim(FRESH), lost=True), "sender_lost", 3)
    assert (unknown.state, unknown.settled_at) == ("unknown", None)
    assert intents.may_live(unknown, {"d": Alive.YES}) is not None
    assert intents.may_live(unknown, {}) is not None
    assert intents.may_live(unknown, {"d": Alive.NO}) is None
    again = intents.redrive(unknown, actor="ada", reason="looked", forced=True, now=9)
    assert (again.state, again.due_at, again.rulings[0].actor, again.rulings[0].forced) == ("queued", 9, "ada", True)
    assert intents.next_move(claim(again), PLAIN) == Send(), "what was said about an attempt settles the doubt"
    fresh = intents.after(claim(again), Failed(ERROR), Sending(max_attempts=2), 9)
    assert fresh.state == "queued", "its attempts are counted anew"


def test_a_person_says_how_it_stands() -> None:
    unknown = intents.ask(claim(claim(FRESH), lost=True), "sender_lost", 3)
    sent = intents.rule(unknown, "sent", actor="ada", reason="seen", now=9)
    assert (sent.state, sent.settled_at, sent.rulings[0].reason) == ("sent", 9, "seen")
    assert intents.rule(sent, "sent", actor="bob", reason="", now=10) is sent
    with pytest.raises(IntentSettled):
        intents.rule(sent, "abandoned", actor="bob", reason="", now=10)
    with pytest.raises(IntentSettled):
        intents.redrive(sent, actor="bob", reason="", forced=True, now=10)
    with pytest.raises(IntentInFlight):
        intents.rule(claim(FRESH), "sent", actor="bob", reason="", now=10)
    with pytest.raises(IntentInFlight):
        intents.redrive(claim(FRESH), actor="bob", reason="", forced=True, now=10)
    with pytest.raises(InvalidInput):
        intents.rule(unknown, "delivered", actor="bob", reason="", now=10)


def test_whom_a_payload_goes_to() -> None:
    assert intents.target({"url": "https://u:p@Example.com:8080/x"}) == "example.com:8080"
    for nothing in ({}, {"url": 3}, "text", {"url": "http://[::1"}, None):
        assert intents.target(nothing) == ""


def test_the_first_releases_intents_are_read() -> None:
    """Of an intent that was being sent and kept no attempts, the end is in doubt all the same."""
    old = Intent(intent_id="i", run_id="r", type="mail", payload=PAYLOAD, key="k", state=IntentState.SENDING, owner="d", attempts=1)
    assert isinstance(intents.next_move(claim(old, lost=True), PLAIN), Ask)
    assert intents.same(old, "mail", PAYLOAD)


OUTCOMES = st.sampled_from([Sent(), Failed(ERROR), Refused(ERROR), Doubtful(ERROR), Late("late"), "lost"])


@given(st.lists(OUTCOMES, max_size=15), st.booleans())
def test_without_a_person_no_second_sending_follows_a_doubt(outcomes: Sequence[object], dead: bool) -> None:
    """Whatever happens: a transport that neither dedupes nor verifies is never given an intent that may have been sent."""
    intent, begun, maybe = FRESH, 0, 0
    for outcome in outcomes:
        if intent.state not in ("queued", "sending"):
            break
        intent = claim(intent, lost=intent.state == "sending", dead=dead)
        if not isinstance(intents.next_move(intent, PLAIN), Send):
            intent = intents.ask(intent, "sender_lost", 0)
            break
        begun += 1
        if outcome == "lost":
            maybe += 1
            continue
        assert isinstance(outcome, Sent | Failed | Refused | Doubtful | Late)
        maybe += isinstance(outcome, Sent | Doubtful)
        intent = intents.after(intent, outcome, PLAIN, 0)
        assert (intent.settled_at is None) == intent.open
    assert maybe <= 1
    numbers = [t.number for t in intent.tries]
    assert numbers == sorted(set(numbers))
    assert sum(t.outcome == "late" for t in intent.tries) <= 1, "what was never begun is not kept for ever"


def test_what_an_intent_shares_with_others() -> None:
    """Its order, and the receiver it waits for, as far as that can be told; without its payload it is the same act still."""
    intent = intents.replace(FRESH, order_key="o", target="example.org", tenant_id="t")
    assert intent.order == ("t", "mail", "o") and intent.lane == ("mail", "t", "example.org")
    sent = intents.after(claim(FRESH), Sent(canon.encode("ok")), PLAIN, 5)
    bare = intents.drop_payload(sent)
    assert (bare.payload, bare.answer, bare.state, bare.tries) == (b"", b"", "sent", sent.tries)
    assert intents.same(bare, "mail", PAYLOAD) and not intents.same(bare, "mail", canon.encode("other"))
    first_release = Intent(intent_id="i", run_id="r", type="mail", payload=PAYLOAD, key="k")
    assert intents.same(first_release, "mail", PAYLOAD) and not intents.same(first_release, "fax", PAYLOAD)
    claimed = claim(FRESH)
    assert intents.stands(claimed, claimed) and not intents.stands(claimed, FRESH)
    assert FRESH.open and not sent.open


def test_what_an_intent_carried_is_dropped_once_it_is_settled() -> None:
    sent = intents.after(claim(FRESH), Sent(canon.encode("ok")), PLAIN, 5)
    assert intents.is_spent(sent, 6) and not intents.is_spent(sent, 5)
    assert not intents.is_spent(intents.drop_payload(sent), 6)
    assert not intents.is_spent(FRESH, 6)


def test_a_dropped_payload_is_not_sent_again() -> None:
    dead = intents.drop_payload(intents.after(claim(FRESH), Refused(ERROR), PLAIN, 0))
    with pytest.raises(InvalidInput, match="dropped"):
        intents.redrive(dead, actor="ada", reason="again", forced=False, now=1)


@pytest.mark.parametrize(
    ("owner", "held", "doubt", "wanted"),
    [("d", (), True, True), ("d", ("i",), True, False), ("d", (), False, False), ("other", (), True, False), ("d", ("j",), True, True)],
)
def test_whose_answer_was_lost_takes_it_up_again(owner: str, held: tuple[str, ...], doubt: bool, wanted: bool) -> None:
    """Only what a claim of its own took, and what it does not have in hand; only where an answer may have been lost."""
    assert intents.answer_lost(claim(FRESH), owner, held, doubt=doubt) is wanted
    assert not intents.answer_lost(FRESH, owner, held, doubt=doubt), "nobody has it"


def test_a_claim_whose_answer_was_lost_began_nothing() -> None:
    """It counts as a try that came too late, and no person is asked; of many such in a row one stays on record."""
    first = claim(FRESH, 1)
    again = intents.start_sending(first, "d", 5, 50, answer_lost=True)
    assert [(t.outcome, t.ended_at, t.closed) for t in again.tries] == [(Ended.LATE, 5, True), (None, None, False)]
    assert (again.state, again.owner, again.lease_until, again.detail) == ("sending", "d", 50, first.detail)
    third = intents.start_sending(again, "d", 9, 90, answer_lost=True)
    assert [(t.outcome, t.ended_at) for t in third.tries] == [(Ended.LATE, 9), (None, None)]
    assert intents.after(third, Sent(canon.encode("ok")), PLAIN, 10).state == "sent"


@pytest.mark.parametrize(("left", "too_long"), [(10, False), (10 + intents.CLOCKS_US, False), (11 + intents.CLOCKS_US, True)])
def test_a_lease_that_has_more_left_than_it_was_given(left: int, too_long: bool) -> None:
    held = intents.start_sending(FRESH, "d", 5, 15)
    assert intents.is_held_too_long(held, left) is too_long
    assert not intents.is_held_too_long(FRESH, left), "nobody sends it"
