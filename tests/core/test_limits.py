"""§10.11: who may go, and when the next token is there (core/limits.py)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import codec
from holdfast.core.errors import EventUnreadable, InvalidInput
from holdfast.core.limits import (
    Backlog,
    Change,
    Due,
    Held,
    Later,
    Limit,
    Rule,
    Rules,
    Use,
    admit,
    check_name,
    choose,
    in_force,
    may_enter,
    name,
    next_token,
    queues,
    soon,
    take_token,
    tell_when_to_come_back,
)
from holdfast.ports import Claim, Claims

SECOND = 1_000_000


@given(
    st.integers(1, 200),
    st.floats(0.1, 500),
    st.lists(st.integers(0, 400_000), max_size=300),
)
def test_no_window_of_a_second_has_more_than_the_rate_and_the_bucket(burst: int, rate: float, gaps: list[int]) -> None:
    """Must show 7: never exceeded in any 1 s window by more than the bucket, whoever asks when."""
    limit, full_at, now, times = Limit(per_second=rate, burst=burst), 0, 1_000_000, []
    for gap in gaps:
        now += gap
        if next_token(limit, full_at, now) <= now:
            full_at = take_token(limit, full_at, now)
            times.append(now)
    for n, first in enumerate(times):
        inside = sum(1 for t in times[n:] if t < first + SECOND)
        assert inside <= rate + burst + 1e-6


@given(st.integers(1, 50), st.floats(0.5, 500), st.integers(0, 100_000_000))
def test_a_bucket_left_alone_is_full_again(burst: int, rate: float, ahead: int) -> None:
    """Whatever the clock did, an empty bucket is full after burst / rate seconds."""
    limit, now = Limit(per_second=rate, burst=burst), 50_000_000
    full_at = now + ahead
    later = now + burst * limit.every
    given_out = 0
    full_at = min(full_at, now + burst * limit.every)
    while next_token(limit, full_at, later) <= later and given_out <= burst:
        full_at, given_out = take_token(limit, full_at, later), given_out + 1
    assert given_out == burst


def test_a_token_is_promised_for_the_moment_at_which_it_is_there() -> None:
    limit, now, full_at = Limit(per_second=2, burst=1), 10 * SECOND, 0
    full_at = take_token(limit, full_at, now)
    at = next_token(limit, full_at, now)
    assert at == now + SECOND // 2
    assert next_token(limit, full_at, at) == at


RUNS = st.lists(st.tuples(st.sampled_from("qr"), st.sampled_from("abc"), st.integers(-1, 1), st.integers(0, 5)), max_size=40)
HELD = st.lists(st.builds(Held, st.sampled_from(["me", "you"]), st.sampled_from("qr"), st.sampled_from("abc"), st.integers(1, 4)), max_size=6)


@given(RUNS, HELD, st.integers(0, 20), st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(1, 5))
def test_no_limit_is_exceeded_and_nothing_that_fits_is_left(
    runs: list[tuple[str, str, int, int]], held: list[Held], room: int, queue: int, tenant: int, worker: int, rate: int
) -> None:
    """§10.11, T-85: after a claim every count is within its limit, or was beyond it before; and it took all it could."""
    rules = Rules({"queue:q": Limit(in_flight=queue), "tenant:*": Limit(in_flight=tenant), "worker": Limit(in_flight=worker), "queue:r": Limit(per_second=rate)})
    due = [Due(n, *run, turn=n) for n, run in enumerate(runs)]
    use = Use(rules, "me", held, {}, SECOND)
    before = (use.queues["q"], dict(use.tenants), sum(h.runs for h in held if h.owner == "me"))
    got = choose(due, use, room)
    assert len(set(got.keys)) == len(got.keys) <= room
    mine = [due[k] for k in got.keys]
    assert use.queues["q"] <= max(queue, before[0])
    assert all(use.tenants[t] <= max(tenant, before[1].get(t, 0)) for t in "abc")
    assert before[2] + len(mine) <= max(worker, before[2])
    assert sum(1 for d in mine if d.queue == "r") <= rate
    left = [d for d in due if d.key not in got.keys]
    if len(got.keys) < room:
        assert all(use.in_the_way(d.queue, d.tenant) is not None for d in left)


@given(RUNS, st.integers(0, 20))
def test_of_equal_urgency_no_tenant_is_two_ahead_while_another_waits(runs: list[tuple[str, str, int, int]], room: int) -> None:
    """§10.11: the next run is of the tenant that holds least."""
    due = [Due(n, "q", tenant, 0, when, n) for n, (_, tenant, _, when) in enumerate(runs)]
    use = Use(Rules(), "me", [], {}, 0)
    got = choose(due, use, room)
    for waiting in {d.tenant for d in due if d.key not in got.keys}:
        assert max(use.tenants.values(), default=0) <= use.tenants[waiting] + 1
    for tenant in "abc":  # and within a tenant by age
        line = [due[k] for k in got.keys if due[k].tenant == tenant]
        assert [(d.due, d.turn) for d in line] == sorted((d.due, d.turn) for d in due if d.tenant == tenant)[: len(line)]


def test_the_more_urgent_go_first_whoever_holds_what() -> None:
    due = [Due("late", "q", "a", 0, 1, 1), Due("urgent", "q", "b", 5, 9, 9)]
    assert choose(due, Use(Rules(), "me", [Held("x", "q", "b", 9)], {}, 10), 1).keys == ("urgent",)


def test_a_full_tenant_leaves_its_queue_as_it_was() -> None:
    """T-85: partial acquisition is rolled back: queue ok, tenant full, and neither the queue's slot nor its token is gone."""
    rules = Rules({"queue:q": Limit(in_flight=2, per_second=1, burst=1), "tenant:a": Limit(in_flight=1)})
    use = Use(rules, "me", [Held("x", "q", "a", 1)], {}, SECOND)
    got = choose([Due(1, "q", "a", 0, 0, 1), Due(2, "q", "b", 0, 0, 2)], use, 5)
    assert got.keys == (2,)
    assert use.queues["q"] == 2 and set(got.buckets) == {"queue:q"}
    assert choose([Due(1, "q", "a", 0, 0, 1)], Use(rules, "me", [Held("x", "q", "a", 1)], {}, SECOND), 5).buckets == {}


def test_a_call_enters_all_its_limits_or_none() -> None:
    """T-85 for named limits."""
    now, model, gpu = 10 * SECOND, Limit(per_second=1, burst=1), Limit(in_flight=1)
    refused = may_enter([("model", model, 0), ("gpu", gpu, 1)], {}, now)
    assert isinstance(refused, Later) and refused.at == now + SECOND and "gpu: 1 of 1" in refused.why
    assert may_enter([("model", model, 0), ("gpu", gpu, 0)], {}, now) == {"model": now + SECOND}
    again = may_enter([("model", model, 0), ("free", None, 7)], {"model": now + SECOND}, now)
    assert again == Later("limit model: 1 per second", now + SECOND, "model")


def test_who_has_waited_long_asks_less_often() -> None:
    gpu, now = Limit(in_flight=1), 100 * SECOND
    first, later = may_enter([("gpu", gpu, 1)], {}, now, since=now), may_enter([("gpu", gpu, 1)], {}, now, since=now - 40 * SECOND)
    assert isinstance(first, Later) and first.at == now + SECOND
    assert isinstance(later, Later) and later.at == now + 10 * SECOND


def test_the_stored_limit_wins() -> None:
    rules = in_force({"model": Limit(in_flight=1), "gpu": Limit(in_flight=3)}, [Rule("model", Limit(in_flight=9)), Rule("queue:q", None, paused=True)])
    assert rules.find("model") == Limit(in_flight=9) and rules.find("gpu") == Limit(in_flight=3)
    assert rules.paused == {"q"} and rules.touches("q", "t") and not rules.touches("r", "t")
    assert Use(rules, "me", [], {}, 0).in_the_way("q", "t") == ("the queue q is paused", None)
    assert bool(rules) and not Rules()


def test_only_a_limit_of_what_is_in_flight_has_runs_counted() -> None:
    fast = Limit(per_second=5)
    assert not Rules().counts_runs and not Rules({"worker": fast, "queue:q": fast, "model": Limit(in_flight=1)}).counts_runs
    for counted in ("worker", "queue:q", "queue:*", "tenant:t"):
        assert Rules({"model": fast, counted: Limit(in_flight=1)}).counts_runs, counted


def test_a_star_holds_for_each_and_a_name_for_itself() -> None:
    rules = Rules({"queue:*": Limit(in_flight=1), "queue:big": Limit(in_flight=5)})
    held = [Held("x", "a", "t", 1), Held("x", "big", "t", 1)]
    use = Use(rules, "me", held, {}, 0)
    assert use.in_the_way("a", "t") == ("limit queue:a: 1 of 1 in flight", None)
    assert use.in_the_way("b", "t") is None and use.in_the_way("big", "t") is None


def test_changes_are_kept_with_who_made_them() -> None:
    rule = Rule("queue:q").change(Change(1, "ada", "set", Limit(in_flight=2), "too fast")).change(Change(2, "bob", "paused"))
    assert rule.limit == Limit(in_flight=2) and rule.paused
    rule = rule.change(Change(3, "ada", "unset")).change(Change(4, "ada", "unpaused"))
    assert rule.limit is None and not rule.paused and [c.actor for c in rule.changes] == ["ada", "bob", "ada", "ada"]


@pytest.mark.parametrize(
    "make", [
        lambda: Limit(), lambda: Limit(in_flight=0), lambda: Limit(per_second=0), lambda: Limit(per_second=2e6), lambda: Limit(burst=3), lambda: Limit(in_flight=1, burst=2),
        lambda: Limit(per_second=1e-12), lambda: Limit(per_second=1e-4, burst=10**6), lambda: Limit(in_flight=True), lambda: Limit(per_second=1, burst=0), lambda: admit({"model": 3}), lambda: admit({"": Limit(in_flight=1)}),
        lambda: admit({"lane:x": Limit(in_flight=1)}), lambda: name("queue:"), lambda: check_name("worker"), lambda: check_name("queue:q"), lambda: admit({7: Limit(in_flight=1)}),
    ],
)
def test_what_is_no_limit_is_refused(make: object) -> None:
    with pytest.raises(InvalidInput):
        make()  # type: ignore[operator]


def test_what_is_one() -> None:
    assert admit({"queue:*": Limit(in_flight=1), "model": Limit(per_second=0.5)}).keys() == {"queue:*", "model"}
    assert check_name("model") == "model"
    assert Limit(in_flight=5, per_second=50).said == "5 in flight, 50 per second, 50 at once" and Limit(in_flight=5).said == "5 in flight"
    assert Limit(in_flight=5).held == 1


def test_when_to_come_back() -> None:
    assert tell_when_to_come_back(Rules(), "q", "t") == 1.0
    assert tell_when_to_come_back(Rules({"queue:q": Limit(per_second=0.1), "tenant:*": Limit(in_flight=1)}), "q", "t") == 10.0


def test_a_rate_that_holds_runs_back_says_when_the_first_of_them_may_go() -> None:
    soon, late = Limit(per_second=1, burst=1), Limit(per_second=0.25, burst=1)
    use = Use(in_force({"queue:a": soon, "queue:b": late}, []), "me", [], {"queue:a": SECOND, "queue:b": 4 * SECOND}, 0)
    for queue, at, again in (("b", 4 * SECOND, 4 * SECOND), ("a", SECOND, SECOND), ("b", 4 * SECOND, SECOND)):
        held = use.in_the_way(queue, "t")
        assert held is not None and held[1] == at and use.again == again, (queue, held)


def test_a_queue_says_what_stands_in_the_way() -> None:
    backlog = [
        Backlog("q", "full", "s", "known", 5, 2, 30), Backlog("q", "free", "s", "known", 1, 0, 10), Backlog("q", "free", "s", "gone", 4, 0, 20),
        Backlog("shut", "t", "s", "known", 3, 0, 5), Backlog("open", "t", "s", "known", 1, 1, 5),
    ]
    rules = Rules({"tenant:full": Limit(in_flight=1)}, frozenset({"shut", "empty"}))
    found = queues(backlog, [Held("x", "q", "full", 1)], rules, {}, 100, lambda b: b.fingerprint == "known")
    assert [(f.queue, f.depth, f.oldest_at, f.in_flight, f.paused, f.blocked) for f in found] == [
        ("empty", 0, None, 0, True, {}),
        ("open", 1, 5, 0, False, {"lane": 1}),
        ("q", 10, 10, 1, False, {"lane": 2, "limit": 3, "no_worker_for": 4}),
        ("shut", 3, 5, 0, True, {"paused": 3}),
    ]


@given(st.lists(st.tuples(st.sampled_from(["set", "unset", "paused", "unpaused"]), st.integers(1, 9)), max_size=8))
def test_a_rule_is_kept_as_it_is(acts: list[tuple[str, int]]) -> None:
    rule = Rule("queue:mail")
    for n, (action, most) in enumerate(acts):
        rule = rule.change(Change(n, "ada", action, Limit(in_flight=most) if action == "set" else None))
    assert codec.decode_rule(codec.encode_rule(rule)) == rule


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b'{"name": 7}', b'{"name": "a", "limit": {"in_flight": -1}}', b'{"name": "a", "changes": [{}]}'])
def test_a_damaged_rule_is_one_error_with_a_way_out(data: bytes) -> None:
    """What is on disk is hostile until it is decoded; also a limit that nobody could have set."""
    with pytest.raises(EventUnreadable, match="limit cannot be read") as caught:
        codec.decode_rule(data)
    assert "limits set" in caught.value.hint


@pytest.mark.parametrize(
    ("at", "waited", "waits"),
    [(1_000_000, 0.0, True), (1_000_000, 0.99, True), (1_000_000, 1.0, False), (1_050_000, 0.0, True), (1_050_001, 0.0, False), (-5, 0.5, True), (-5, 1.0, False)],
)
def test_what_comes_within_a_second_is_waited_for(at: int, waited: float, waits: bool) -> None:
    """A little more, for the store's time is known by the way of an answer."""
    assert soon(Later("crowded", 7_000_000 + at), waited, 7_000_000) is waits


def test_what_is_given_is_a_list_that_says_when_more_goes() -> None:
    assert Claims() == [] and Claims().again is None
    some = Claims([Claim("r1", 1)]).until(7)
    some += [Claim("r2", 1)]
    assert some == [Claim("r1", 1), Claim("r2", 1)] and some.again == 7 and Claims().again is None
