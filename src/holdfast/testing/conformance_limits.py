"""The part of the store suite about limits (§10.11). Importing this module adds its cases to ``conformance.CASES`` and ``conformance_pairs.PAIRS``."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast.core import events as ev
from holdfast.core.commit import DedupClaim
from holdfast.core.errors import Conflict, HoldfastError, LeaseLost, QueueFull
from holdfast.core.lease import RELEASE, TOUCH
from holdfast.core.limits import Backlog, Change, Held, Later, Limit, Rule
from holdfast.ports import Claim, Store, offers_looking_again
from holdfast.testing.conformance import SECOND, TTL, Harness, Script, case, refused
from holdfast.testing.conformance_pairs import ROUNDS, Pair, both, pair


async def submit(store: Store, *run_ids: str, queue: str = "default", tenant_id: str = "default", **options: Any) -> list[Script]:
    return [await Script(store, r, queue=queue, tenant_id=tenant_id, **options).submit() for r in run_ids]


async def claim_all(store: Store, owner: str, limits: dict[str, Limit] | None = None, limit: int = 100) -> list[str]:
    return [c.run_id for c in await store.claim(owner, (), None, limit=limit, limits=limits or {})]


async def resting(store: Store, run_id: str, claim: Claim) -> Script:
    loaded = await store.load(run_id)
    assert loaded is not None
    return Script.of(store, loaded, claim.fence)


# -- runs ---------------------------------------------------------------------------------------------


@case
async def case_limits_hold_runs_back(h: Harness) -> None:
    """§10.11: no more runs are driven than the limits of their queue, their tenant and their worker allow; the others stay due."""
    for owner in ("w", "v"):
        await h.store.register(owner, TTL)
    await submit(h.store, *(f"a{i}" for i in range(4)), tenant_id="a")
    await submit(h.store, *(f"b{i}" for i in range(4)), tenant_id="b")
    await submit(h.store, *(f"c{i}" for i in range(4)), tenant_id="c", queue="other")
    limits = {"queue:default": Limit(in_flight=3), "tenant:*": Limit(in_flight=2), "worker": Limit(in_flight=4)}
    first = await claim_all(h.store, "w", limits)
    assert Counter(r[0] for r in first) in (Counter(a=2, b=1, c=1), Counter(a=1, b=2, c=1), Counter(a=1, b=1, c=2)), first
    second = await claim_all(h.store, "v", limits)
    assert Counter(r[0] for r in first + second) in (Counter(a=2, b=1, c=2), Counter(a=1, b=2, c=2)), (first, second)
    assert await claim_all(h.store, "w", limits) == [] and await claim_all(h.store, "v", limits) == []
    rest = await claim_all(h.store, "v")
    assert sorted(first + second + rest) == sorted(f"{t}{i}" for t in "abc" for i in range(4)), "without limits all runs are claimed"


@case
async def case_limit_follows_who_holds_what(h: Harness) -> None:
    """§10.11: a run that ends, rests, is handed back or loses its owner holds nothing; no counter is left behind."""
    for owner in ("w", "v", "u"):
        await h.store.register(owner, TTL)
    await submit(h.store, *(f"r{i}" for i in range(8)))
    limits = {"queue:*": Limit(in_flight=2)}
    got = {c.run_id: c for c in await h.store.claim("w", (), None, limit=9, limits=limits)}
    assert sorted(got) == ["r0", "r1"] and await claim_all(h.store, "v", limits) == []
    done, waits = await resting(h.store, "r0", got["r0"]), await resting(h.store, "r1", got["r1"])
    await done.write(done.commit(ev.RunStarted()))
    await done.complete()
    assert await claim_all(h.store, "v", limits) == ["r2"]
    await waits.write(waits.commit(ev.RunStarted()))
    await waits.wait()
    assert await claim_all(h.store, "v", limits) == ["r3"], "a resting run holds nothing"
    assert await claim_all(h.store, "w", limits) == []
    h.kill("v")
    assert sorted(await claim_all(h.store, "w", limits)) == ["r2", "r3"], "what a dead owner had is free at once, and is taken over"
    await h.store.retire("w")
    assert len(await claim_all(h.store, "u", limits)) == 2
    h.clock.forward(TTL + 1)
    await h.store.register("t", TTL)
    assert len(await claim_all(h.store, "t", limits)) == 2, "and so is what an owner had whose lease ran out"


@case
async def case_limits_are_taken_together(h: Harness) -> None:
    """T-85: a run that its tenant's limit holds back takes no slot and no token of its queue."""
    await h.store.register("w", TTL)
    await submit(h.store, "a0", "a1", tenant_id="a")
    limits = {"queue:default": Limit(in_flight=2, per_second=1, burst=2), "tenant:a": Limit(in_flight=1)}
    assert await claim_all(h.store, "w", limits) == ["a0"]
    assert await claim_all(h.store, "w", limits) == []
    await submit(h.store, "b0", tenant_id="b")
    assert await claim_all(h.store, "w", limits) == ["b0"], "slot and token are there"


@case
async def case_rate_of_claims(h: Harness) -> None:
    """§10.11: as many runs begin in a second as the token bucket allows, by the store's clock."""
    await h.store.register("w", 100 * TTL)
    await submit(h.store, *(f"r{i}" for i in range(9)))
    limits = {"queue:default": Limit(per_second=2, burst=3)}
    assert len(await claim_all(h.store, "w", limits)) == 3
    assert await claim_all(h.store, "w", limits) == []
    h.clock.forward(SECOND // 2)
    assert len(await claim_all(h.store, "w", limits)) == 1
    h.clock.forward(10 * SECOND)
    assert len(await claim_all(h.store, "w", limits)) == 3, "the bucket never holds more than its size"
    usage = await h.store.usage()
    assert usage.held == (Held("w", "default", "default", 7),) and usage.buckets["queue:default"] > h.clock()


@case
async def case_tenants_take_turns(h: Harness) -> None:
    """§10.11, X-15: of equally urgent runs of a queue, the next one is of the tenant that holds least, however many runs of another tenant wait."""
    await h.store.register("w", TTL)
    await submit(h.store, *(f"a{i}" for i in range(9)), tenant_id="a")
    h.clock.forward(SECOND)
    await submit(h.store, *(f"b{i}" for i in range(3)), tenant_id="b")
    await submit(h.store, "c0", tenant_id="c", priority=1)
    assert await claim_all(h.store, "w", limit=1) == ["c0"], "priority goes before fairness"
    assert sorted(await claim_all(h.store, "w", limit=3)) in (["a0", "a1", "b0"], ["a0", "b0", "b1"])
    more = await claim_all(h.store, "w", limit=3)
    counts = Counter(h_.tenant for h_ in (await h.store.usage()).held for _ in range(h_.runs))
    assert counts["a"] in (3, 4) and counts["b"] in (3, 4) and counts["a"] + counts["b"] == 6 and len(more) == 3, counts


@case
async def case_claim_by_name_is_limited(h: Harness) -> None:
    """§10.11: a limit also holds back a run that is claimed by id, unless the claimer holds the run already."""
    for owner in ("w", "v"):
        await h.store.register(owner, TTL)
    await submit(h.store, "r0", "r1")
    limits = {"queue:default": Limit(in_flight=1)}
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=1, run_id="r0", limits=limits)] == ["r0"]
    assert await h.store.claim("v", (), None, limit=1, run_id="r1", limits=limits) == []
    again = await h.store.claim("w", (), None, limit=1, run_id="r0", limits=limits)
    assert [(c.run_id, c.cause) for c in again] == [("r0", "reclaimed")]
    await h.store.retire("w")
    assert len(await h.store.claim("v", (), None, limit=1, run_id="r1", limits=limits)) == 1


@case
async def case_rules_are_kept(h: Harness) -> None:
    """§10.11: a stored rule wins over a declared limit, says who changed it, and is changed by compare-and-set."""
    await h.store.register("w", TTL)
    await submit(h.store, *(f"r{i}" for i in range(5)))
    assert await h.store.rules() == []
    set_, paused = Change(1, "ada", "set", Limit(in_flight=2), "too fast"), Change(2, "bob", "paused")
    rule = Rule("queue:default").change(set_)
    assert await h.store.put_rule(rule, None)
    assert not await h.store.put_rule(rule.change(paused), None), "somebody else was first"
    assert await h.store.rules() == [rule]
    assert len(await claim_all(h.store, "w", {"queue:default": Limit(in_flight=4)})) == 2
    assert await h.store.put_rule(rule.change(paused), rule)
    shut = rule.change(paused)
    assert await h.store.put_rule(other := Rule("model").change(Change(3, "ada", "set", Limit(per_second=0.5))), None)
    assert await h.store.rules() == [other, shut]
    open_again = shut.change(Change(4, "ada", "unpaused")).change(Change(5, "ada", "unset"))
    assert await claim_all(h.store, "w") == [], "a paused queue gives nothing"
    assert await h.store.claim("w", (), None, limit=1, run_id="r4") == []
    assert await h.store.put_rule(open_again, shut)
    assert len(await claim_all(h.store, "w")) == 3


@case
async def case_a_queue_is_bounded(h: Harness) -> None:
    """§10.11: ``max_queued`` runs of a tenant may wait in a queue; one more is refused, and nothing of it is stored. A known request is no new run."""
    await h.store.register("w", TTL)
    claim = DedupClaim("request", "default\x1fskill", "k", "r0", "d", None)
    await Script(h.store, "r0").submit(max_queued=2, claims=(claim,))
    await Script(h.store, "r1", not_before=h.clock() + SECOND).submit(max_queued=2)
    full = await refused(QueueFull, h.store.commit(Script(h.store, "r2").first(max_queued=2)), "queue_full")
    assert isinstance(full, QueueFull) and full.retry_after > 0
    assert await h.store.get("r2") is None
    known = Script(h.store, "r3").first(max_queued=2, claims=(DedupClaim("request", "default\x1fskill", "k", "r3", "d", None),))
    await refused(Conflict, h.store.commit(known), "claim_taken")
    await Script(h.store, "r4", queue="other").submit(max_queued=2)
    await Script(h.store, "r5", tenant_id="b").submit(max_queued=2)
    assert await claim_all(h.store, "w", limit=1) == ["r0"]
    await Script(h.store, "r6").submit(max_queued=2)
    await Script(h.store, "r7").submit()


@case
async def case_backlog(h: Harness) -> None:
    """§10.11: due runs that nobody has taken are counted by queue, tenant and shape, with the number of them that wait behind another run of their lane."""
    await h.store.register("w", TTL)
    assert await h.store.backlog() == []
    since = h.clock()
    await submit(h.store, "r0", "r1", session_key="s")
    h.clock.forward(SECOND)
    await submit(h.store, "r2", queue="q", tenant_id="t", skill_id="other", fingerprint="g")
    await submit(h.store, "later", not_before=h.clock() + 60 * SECOND)
    assert await h.store.backlog() == [
        Backlog("default", "default", "skill", "f", 2, 1, since), Backlog("q", "t", "other", "g", 1, 0, since + SECOND),
    ]
    await claim_all(h.store, "w")
    assert await h.store.backlog() == [Backlog("default", "default", "skill", "f", 1, 1, since)]


# -- calls --------------------------------------------------------------------------------------------


@case
async def case_calls_hold_limits(h: Harness) -> None:
    """§10.11, T-85: a call holds all its limits or none, from its beginning until it or its owner ends."""
    for owner in ("w", "v"):
        await h.store.register(owner, TTL)
    await submit(h.store, "r0", "r1", "r2")
    model, gpu = {"model": Limit(in_flight=2, per_second=1, burst=2)}, {"gpu": Limit(in_flight=1)}
    assert await h.store.enter("w", "r0", "r0.a", {**model, **gpu}) is None
    assert await h.store.enter("w", "r0", "r0.a", {**model, **gpu}) is None, "once"
    held = await h.store.enter("v", "r1", "r1.a", {**model, **gpu})
    assert isinstance(held, Later) and held.name == "gpu" and held.at > h.clock()
    assert (await h.store.usage()).calls == {"model": 1, "gpu": 1}
    assert await h.store.enter("v", "r1", "r1.a", dict(model)) is None, "the slot and the token of the other limit are there"
    rate = await h.store.enter("v", "r2", "r2.a", {"model": Limit(per_second=1, burst=2)})
    assert isinstance(rate, Later) and rate.at == h.clock() + SECOND
    await h.store.leave("v", ["r0.a"])
    assert (await h.store.usage()).calls == {"model": 2, "gpu": 1}, "nobody ends what another holds"
    await h.store.leave("w", ["r0.a"])
    assert (await h.store.usage()).calls == {"model": 1}
    h.kill("v")
    assert (await h.store.usage()).calls.get("model", 0) == 0, "a dead owner holds nothing"
    assert await h.store.enter("w", "r0", "r0.b", {"free": None}) is None, "the users of a limit are known even if nobody has set it"
    assert (await h.store.usage()).calls["free"] == 1
    await h.store.put_rule(Rule("free").change(Change(1, "ada", "set", Limit(in_flight=1))), None)
    assert isinstance(await h.store.enter("w", "r1", "r1.b", {"free": None}), Later)
    await h.store.retire("w")
    assert (await h.store.usage()).calls == {}
    await refused(LeaseLost, h.store.enter("w", "r0", "r0.c", dict(gpu)))


@case
async def case_a_resting_run_is_woken_by_who_leaves(h: Harness) -> None:
    """§10.11: a run that rests until a slot is free is due at once when a call leaves; the run that has waited longest goes first."""
    await h.store.register("w", 100 * TTL)
    gpu = {"gpu": Limit(in_flight=1)}
    assert await h.store.enter("w", "none", "x", dict(gpu)) is None
    far = h.clock() + 60 * SECOND
    for run_id in ("r0", "r1"):
        script = await Script(h.store, run_id).begin("w")
        assert isinstance(await h.store.enter("w", run_id, f"{run_id}.a", dict(gpu), resting=True), Later)
        await script.write(script.commit(ev.RunHandedBack("w"), due=far, lease=RELEASE))
        h.clock.forward(1)
    assert await claim_all(h.store, "w") == []
    await h.store.leave("w", ["x"])
    assert await claim_all(h.store, "w") == ["r0"]
    assert await h.store.enter("w", "r0", "r0.a", dict(gpu)) is None
    await h.store.leave("w", ["r0.a"])
    assert await claim_all(h.store, "w") == ["r1"]


@case
async def case_a_run_at_rest_looks_again_for_room(h: Harness) -> None:
    """§10.11: a slot freed between a call's last request and its run's rest wakes nobody. So the run looks again: if there is room it is due at once, but holds no slot yet."""
    looker: object = h.store
    if not offers_looking_again(looker):
        return
    await h.store.register("w", 100 * TTL)
    gpu, far = {"gpu": Limit(in_flight=1)}, h.clock() + 60 * SECOND
    assert await h.store.enter("w", "none", "x", dict(gpu)) is None
    script = await Script(h.store, "r0").begin("w")
    assert isinstance(await h.store.enter("w", "r0", "r0.a", dict(gpu), resting=True), Later)
    assert not await looker.look_again("r0", dict(gpu)), "it is driven"
    await script.write(script.commit(ev.RunHandedBack("w"), due=far, lease=RELEASE))
    assert not await looker.look_again("r0", dict(gpu)) and await claim_all(h.store, "w") == [], "it is full"
    await h.store.leave("w", ["x"])  # wakes it
    script = await resting(h.store, "r0", (await h.store.claim("w", (), None, limit=1, limits={}))[0])
    assert await h.store.enter("w", "none", "x", dict(gpu)) is None
    await h.store.leave("w", ["x"])  # nobody is woken, because the run is driven
    await script.write(script.commit(ev.RunHandedBack("w"), due=far, lease=RELEASE))
    assert await claim_all(h.store, "w") == []
    assert await looker.look_again("r0", dict(gpu)) and (await h.store.usage()).calls == {}
    assert not await looker.look_again("r0", dict(gpu)) and not await looker.look_again("nobody", dict(gpu)), "it is due already"
    script = await resting(h.store, "r0", (await h.store.claim("w", (), None, limit=1, limits={}))[0])
    assert await h.store.enter("w", "none", "x", dict(gpu)) is None
    await script.write(script.commit(ev.RunHandedBack("w"), due=far, lease=RELEASE))
    assert not await looker.look_again("r0", dict(gpu))
    await h.store.put_rule(Rule("gpu").change(Change(1, "ada", "set", Limit(in_flight=2))), None)
    assert await looker.look_again("r0", dict(gpu)), "a stored limit wins"
    assert await claim_all(h.store, "w") == ["r0"]


# -- two stores over one database ---------------------------------------------------------------------


@pair
async def pair_claims_within_a_limit(p: Pair) -> None:
    """§10.11, T-85: when two claim at once, no limit is exceeded, and every run that fits is taken."""
    await p.one.register("w", 1_000 * TTL)
    await p.other.register("v", 1_000 * TTL)
    limits = {"queue:default": Limit(in_flight=3), "tenant:*": Limit(in_flight=2)}
    for i in range(ROUNDS):
        for n in range(6):
            await Script(p.one, f"r{i}.{n}", tenant_id="ab"[n % 2]).submit()
        a, b = await both(i, p.one.claim("w", (), None, limit=9, limits=limits), p.other.claim("v", (), None, limit=9, limits=limits))
        more = await p.one.claim("w", (), None, limit=9, limits=limits)
        got = [*a, *b, *more]
        assert len(got) == 3 and len({c.run_id for c in got}) == 3, got
        held = Counter(h.tenant for h in (await p.one.usage()).held for _ in range(h.runs))
        assert max(held.values()) <= 2, held
        for store, claims in ((p.one, [*a, *more]), (p.other, b)):
            for claim in claims:
                script = await resting(store, claim.run_id, claim)
                await script.write(script.commit(ev.RunStarted()))
                await script.complete()
        rest = await p.one.claim("w", (), None, limit=9)
        for claim in rest:
            script = await resting(p.one, claim.run_id, claim)
            await script.write(script.commit(ev.RunStarted()))
            await script.complete()


@pair
async def pair_calls_within_a_limit(p: Pair) -> None:
    """§10.11: of two calls that ask for the last slot at once, one begins."""
    await p.one.register("w", 1_000 * TTL)
    await p.other.register("v", 1_000 * TTL)
    needs: dict[str, Limit | None] = {"gpu": Limit(in_flight=1)}
    for i in range(ROUNDS):
        a, b = await both(i, p.one.enter("w", "r", f"w{i}", needs), p.other.enter("v", "r", f"v{i}", needs))
        assert sorted([a is None, b is None]) == [False, True], (a, b)
        await p.one.leave("w", [f"w{i}"])
        await p.other.leave("v", [f"v{i}"])
        assert (await p.one.usage()).calls == {}


@pair
async def pair_births_into_a_bounded_queue(p: Pair) -> None:
    """§10.11: of two submits for the last place in a queue one is refused."""
    for i in range(ROUNDS):
        queue = f"q{i}"
        await Script(p.one, f"r{i}", queue=queue).submit()
        made = [p.one.commit(Script(p.one, f"a{i}", queue=queue).first(lease=TOUCH, max_queued=2)), p.other.commit(Script(p.other, f"b{i}", queue=queue).first(lease=TOUCH, max_queued=2))]
        outcomes = await both(i, *made)
        assert sorted(isinstance(o, HoldfastError) for o in outcomes) == [False, True], outcomes
        assert any(isinstance(o, QueueFull) for o in outcomes)


__all__ = ["claim_all", "submit"]
