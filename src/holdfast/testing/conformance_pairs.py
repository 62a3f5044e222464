"""The part of the store suite that needs two stores over one database: what must hold when both write at once (§10.14).

``PAIRS`` lists the cases by name. Each does the same thing in many rounds, with the two sides started in turn, and asserts what must
hold whichever came first. A store that lacks one lock or one guard fails here, and hardly anywhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from holdfast.core import events as ev
from holdfast.core.commit import DedupClaim, Tip
from holdfast.core.errors import Conflict, HoldfastError, LeaseLost, RunNotFound, StoreCorrupt, VersionConflict
from holdfast.core.lease import Take
from holdfast.engine.keep.check import keeper
from holdfast.ports import Store
from holdfast.testing.conformance import SECOND, TTL, Clock, Script, signal
from holdfast.testing.conformance_blobs import bulk, recording
from holdfast.testing.conformance_threads import carrying

ROUNDS = 12


class Pair(Protocol):
    """Two stores over one empty database, and their clock."""

    clock: Clock
    one: Store
    other: Store


PAIRS: dict[str, Callable[[Pair], Awaitable[None]]] = {}


def pair(function: Callable[[Pair], Awaitable[None]]) -> Callable[[Pair], Awaitable[None]]:
    PAIRS[function.__name__.removeprefix("pair_")] = function
    return function


async def both(turn: int, first: Awaitable[Any], second: Awaitable[Any]) -> tuple[Any, Any]:
    """Awaits both at once; in odd turns the second starts first. Returns for each its result, or the HoldfastError that it raised."""
    found: list[Any] = [*await asyncio.gather(*((second, first) if turn % 2 else (first, second)), return_exceptions=True)]
    for outcome in found:
        if isinstance(outcome, BaseException) and not isinstance(outcome, HoldfastError):
            raise outcome
    return (found[1], found[0]) if turn % 2 else (found[0], found[1])


@pair
async def pair_rest_and_put(p: Pair) -> None:
    """§10.16: a command put while its run comes to rest makes the run claimable, whichever was first: no wake-up is lost."""
    await p.one.register("w", TTL)
    for i in range(3 * ROUNDS):
        script = await Script(p.one, f"r{i}").begin("w")
        _, kept = await both(i, script.wait(), p.other.put(signal(f"r{i}", "k", p.other.now())))
        assert not isinstance(kept, HoldfastError), kept
        assert [c.run_id for c in await p.other.claim("w", (), None, limit=1)] == [f"r{i}"], "the wake-up was lost"


@pair
async def pair_end_and_put(p: Pair) -> None:
    """§10.12: of a run's end and a command at once, one is first: the run takes the command before it ends, or the command is too late."""
    await p.one.register("w", TTL)
    for i in range(ROUNDS):
        script = await Script(p.one, f"r{i}").begin("w")
        ended, _ = await both(i, script.complete(), p.other.put(signal(f"r{i}", "k", p.other.now())))
        found = await p.other.get(f"r{i}")
        assert found is not None and found[0].terminal is not isinstance(ended, HoldfastError)
        if isinstance(ended, HoldfastError):
            await script.complete(took=("signal:go:k",))


@pair
async def pair_prune_and_carry(p: Pair) -> None:
    """§6.10, §4.15: either another run carries on from a run, or the run is pruned; never both."""
    await p.one.register("w", 100 * TTL)
    for i in range(ROUNDS):
        predecessor = await (await Script(p.one, f"a{i}").begin("w")).complete()
        successor = await Script(p.other, f"b{i}").begin("w")
        p.clock.forward(SECOND)
        pruned, carried = await both(i, keeper(p.one).prune(p.one.now()), successor.write(carrying(successor, predecessor)))
        there = await p.one.get(predecessor.run_id) is not None
        assert there is isinstance(carried, Tip), (pruned, carried)
        assert there or isinstance(carried, VersionConflict)


@pair
async def pair_prune_and_blob(p: Pair) -> None:
    """§6.10: if a commit that names a large result succeeds while another store prunes, the large result is there."""
    await p.one.register("w", 100 * TTL)
    for i in range(ROUNDS):
        blob = bulk(f"{i} ")
        first = await Script(p.one, f"a{i}").begin("w")
        await first.write(recording(first, blob))
        await first.complete()
        second = await Script(p.other, f"b{i}").begin("w")
        p.clock.forward(SECOND)
        _, named = await both(i, keeper(p.one).prune(p.one.now()), second.write(recording(second, blob, kept=bool(i % 3))))
        assert isinstance(named, Tip | StoreCorrupt), named
        if isinstance(named, Tip):
            assert await p.one.blob(blob.digest) == blob.data


@pair
async def pair_puts_crosswise(p: Pair) -> None:
    """§1.6: a parent and its child that put into each other's inbox at once both succeed."""
    await p.one.register("w", TTL)
    for i in range(2 * ROUNDS):
        parent, child = await Script(p.one, f"p{i}").begin("w"), await Script(p.other, f"c{i}").begin("w")
        up, down = signal(f"p{i}", "up", p.one.now()), signal(f"c{i}", "down", p.one.now())
        for outcome in await both(i, parent.write(parent.commit(ev.NoteAdded("x"), puts=(down,))), child.write(child.commit(ev.NoteAdded("x"), puts=(up,)))):
            assert isinstance(outcome, Tip), outcome
        assert len(await p.one.inbox(f"p{i}")) == len(await p.one.inbox(f"c{i}")) == 1


@pair
async def pair_take_and_claim(p: Pair) -> None:
    """§10.8, T-83: two runs of one lane are never held at once, whether they are claimed or taken by the commit that submits them."""
    await p.one.register("w", TTL)
    await p.other.register("v", TTL)
    for i in range(2 * ROUNDS):
        await Script(p.one, f"a{i}", session_key=f"s{i}").submit()
        born = Script(p.one, f"b{i}", session_key=f"s{i}")
        taken, claims = await both(i, p.one.commit(born.first(ev.RunStarted(), lease=Take("w"))), p.other.claim("v", (), None, limit=5))
        assert not isinstance(claims, HoldfastError), claims
        assert len(claims) + isinstance(taken, Tip) == 1, (taken, claims)


@pair
async def pair_claims(p: Pair) -> None:
    """T-74: of two claimers, one gets each run, and no lane is taken twice."""
    await p.one.register("w", TTL)
    await p.other.register("v", TTL)
    for i in range(ROUNDS):
        names = {f"r{i}.{k}" for k in range(8)}
        for name in names:
            await Script(p.one, name, session_key=f"s{i}.{int(name[-1]) // 2}").submit()
        a, b = await both(i, p.one.claim("w", (), None, limit=8), p.other.claim("v", (), None, limit=8))
        got = [c.run_id for c in (*a, *b)]
        assert len(got) == len(set(got)) and len({n[-1] for n in got}) == len(got)
        lanes = [int(n[-1]) // 2 for n in got]
        assert len(lanes) == len(set(lanes)), "a lane was taken twice"
        await p.one.retire("w")
        await p.other.retire("v")
        await p.one.register("w", TTL)
        await p.other.register("v", TTL)
        for name in names:
            loaded = await p.one.load(name)
            assert loaded is not None
            script = Script.of(p.one, loaded, loaded.lease.fence)
            await script.write(script.touching(ev.RunCanceled("canceled", at_rest=True)))


@pair
async def pair_retire_and_commit(p: Pair) -> None:
    """§10.4: a commit at the moment when its owner retires is either stored whole or refused with LeaseLost."""
    for i in range(2 * ROUNDS):
        await p.one.register(f"w{i}", TTL)
        script = await (await Script(p.one, f"r{i}").begin(f"w{i}")).steps(1)
        before = len(await p.one.rows(f"r{i}"))
        written, gone = await both(i, p.one.commit(script.step()), p.other.retire(f"w{i}"))
        assert not isinstance(gone, HoldfastError), gone
        loaded = await p.other.load(f"r{i}")
        assert loaded is not None and loaded.lease.owner is None and loaded.lease.fence == script.fence + 1
        assert len(loaded.rows) == before + isinstance(written, Tip)
        assert isinstance(written, Tip | LeaseLost), written


@pair
async def pair_register(p: Pair) -> None:
    """X-08: an owner's name is taken once."""
    for i in range(ROUNDS):
        outcomes = await both(i, p.one.register(f"w{i}", TTL), p.other.register(f"w{i}", TTL))
        assert sorted(isinstance(o, Conflict) for o in outcomes) == [False, True], outcomes


@pair
async def pair_keys(p: Pair) -> None:
    """§3.5, T-73: a request key is taken once, with its run."""
    for i in range(ROUNDS):
        commits = [Script(s, f"{n}{i}").first(claims=(DedupClaim("request", "s", f"k{i}", f"{n}{i}", "d"),)) for n, s in (("a", p.one), ("b", p.other))]
        outcomes = await both(i, p.one.commit(commits[0]), p.other.commit(commits[1]))
        assert sorted(isinstance(o, Tip) for o in outcomes) == [False, True], outcomes
        assert any(isinstance(o, Conflict) and o.code == "claim_taken" for o in outcomes), outcomes
        taken = await p.one.find_claim("request", "s", f"k{i}")
        there = [n for n in "ab" if await p.one.get(f"{n}{i}") is not None]
        assert taken is not None and [taken.run_id] == [f"{n}{i}" for n in there]


@pair
async def pair_one_tip(p: Pair) -> None:
    """§10.14: of two commits that follow the same row, one is written."""
    await p.one.register("w", TTL)
    for i in range(ROUNDS):
        here = await (await Script(p.one, f"r{i}").begin("w")).steps(1)
        outcomes = await both(i, p.one.commit(here.step(50)), p.other.commit(here.step(60)))
        assert sorted(isinstance(o, Tip) for o in outcomes) == [False, True], outcomes
        assert any(isinstance(o, VersionConflict) for o in outcomes)
    assert await p.one.verify() == []


@pair
async def pair_take_over_and_step(p: Pair) -> None:
    """§10.2, T-75: a run is taken over once its owner's lease has expired; a late write of that owner comes before the takeover, or is refused."""
    for i in range(ROUNDS):
        await p.one.register(f"w{i}", TTL)
        await p.other.register(f"v{i}", 100 * TTL)
        script = await (await Script(p.one, f"r{i}").begin(f"w{i}")).steps(1)
        p.clock.forward(TTL + 1)
        written, claims = await both(i, p.one.commit(script.step()), p.other.claim(f"v{i}", (), None, limit=1))
        claims = claims or await p.other.claim(f"v{i}", (), None, limit=1)  # a claim may once skip a row that is just being written
        assert [c.run_id for c in claims] == [f"r{i}"]
        assert isinstance(written, Tip | LeaseLost)
        loaded = await p.other.load(f"r{i}")
        assert loaded is not None and len(loaded.rows) == 2 + isinstance(written, Tip)
        going = Script.of(p.other, loaded, claims[0].fence)
        await going.complete()


@pair
async def pair_put_and_prune(p: Pair) -> None:
    """§6.10: a command put into a run that is being pruned is removed with the run, or refused because the run is gone."""
    await p.one.register("w", 100 * TTL)
    for i in range(ROUNDS):
        await (await Script(p.one, f"r{i}").begin("w")).complete()
        p.clock.forward(SECOND)
        _, kept = await both(i, keeper(p.one).prune(p.one.now()), p.other.put(signal(f"r{i}", "k", p.other.now())))
        assert await p.one.get(f"r{i}") is None
        assert not isinstance(kept, HoldfastError) or isinstance(kept, RunNotFound), kept
        assert await p.one.inbox(f"r{i}") == []


__all__ = ["PAIRS", "Pair", "both"]
