"""The part of the store suite about a wall clock that was wrong (§10.3, X-20): what is due at once is due under any clock. Importing this
module adds its cases to ``conformance.CASES``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from holdfast.core import events as ev
from holdfast.core.intents import Intent
from holdfast.core.lease import AT_ONCE, RELEASE, at_once
from holdfast.engine.keep.transfer import copy
from holdfast.testing.conformance import SECOND, TTL, Harness, Script, case, elsewhere, signal

HOUR = 3600 * SECOND
LONG = 100 * HOUR


async def _submit(h: Harness, name: str) -> None:
    await Script(h.store, name).submit()


async def _answer(h: Harness, name: str) -> None:
    """Lets the run rest, then puts an item into its inbox."""
    await (await Script(h.store, name).begin("other")).wait()
    await h.store.put(signal(name, "k", h.store.now()))


async def _answer_early(h: Harness, name: str) -> None:
    """Does what ``_answer`` does, with a run whose wait has a deadline far away."""
    await (await Script(h.store, name).begin("other")).wait(deadline=h.store.now() + 10 * HOUR)
    await h.store.put(signal(name, "k", h.store.now()))


async def _tell_by_a_child(h: Harness, name: str) -> None:
    """Puts the item with another run's commit."""
    await (await Script(h.store, name).begin("other")).wait()
    child = await Script(h.store, f"{name}-child", queue="children").begin("other")
    await child.complete(puts=(signal(name, "k", h.store.now()),))


async def _bear_by_a_parent(h: Harness, name: str) -> None:
    parent = await Script(h.store, f"{name}-parent", queue="parents").begin("other")
    await parent.complete(creates=(Script(h.store, name).first(),))


async def _hand_back(h: Harness, name: str) -> None:
    script = await Script(h.store, name).begin("other")
    await script.write(script.commit(ev.RunHandedBack("other"), lease=RELEASE))


async def _resume_at_rest(h: Harness, name: str) -> None:
    """Makes the resting run due by a commit from outside."""
    script = await (await Script(h.store, name).begin("other")).wait()
    await script.write(script.touching(ev.NoteAdded("go on"), due=AT_ONCE))


async def _resume_after_its_end(h: Harness, name: str) -> None:
    script = await Script(h.store, name).begin("other")
    await script.write(script.commit(ev.RunCanceled("asked"), lease=RELEASE))
    await script.write(script.touching(ev.RunResumed(cause="operator")))


async def _retire(h: Harness, name: str) -> None:
    """Ends the run's worker, which hands back every run that it holds."""
    await h.store.register(f"{name}-worker", LONG)
    await Script(h.store, name).begin(f"{name}-worker")
    await h.store.retire(f"{name}-worker")


WAYS: tuple[Callable[[Harness, str], Awaitable[None]], ...] = (
    _submit, _answer, _answer_early, _tell_by_a_child, _bear_by_a_parent, _hand_back, _resume_at_rest, _resume_after_its_end, _retire,
)


@case
async def case_due_at_once_under_any_clock(h: Harness) -> None:
    """X-20, §10.3: a run that was made due at once, in any way, under a clock that was ahead or behind, is claimed when the clock is right again."""
    for worker in ("w", "other"):
        await h.store.register(worker, LONG)
    for wrong in (HOUR, -HOUR, 26 * HOUR):
        for number, way in enumerate(WAYS):
            h.clock.forward(wrong)
            name = f"r{wrong // HOUR}.{number}"
            await way(h, name)
            h.clock.forward(-wrong)
            assert [c.run_id for c in await h.store.claim("w", ("default",), None, limit=5)] == [name], way.__name__
    assert await h.store.verify() == []


@case
async def case_due_at_once_in_a_lane(h: Harness) -> None:
    """X-20, §10.8: the runs of one lane go in the order in which they came, whatever the clock showed, also when they are claimed by id."""
    for worker in ("w", "other"):
        await h.store.register(worker, LONG)
    for number, jump in enumerate((HOUR, -2 * HOUR, HOUR, 0)):
        h.clock.forward(jump)
        await Script(h.store, f"r{number}", session_key="lane").submit()
    for number in range(4):
        for later in range(number + 1, 4):
            assert await h.store.claim("w", (), None, limit=1, run_id=f"r{later}") == []
        (claim,) = await h.store.claim("w", (), None, limit=5)
        assert claim.run_id == f"r{number}"
        loaded = await h.store.load(claim.run_id)
        assert loaded is not None
        script = Script.of(h.store, loaded, claim.fence)
        await script.write(script.commit(ev.RunClaimed("w", 2), ev.RunStarted(), ev.RunCompleted(), lease=RELEASE))


@case
async def case_whoever_waits_longest_goes_first(h: Harness) -> None:
    """§10.11: timers and runs due at once are claimed by how long they have been due, so that neither starves. A run that was made due
    while the clock was ahead goes before both, and an urgent run goes before all."""
    await h.store.register("w", LONG)
    await h.store.register("other", LONG)
    for name in ("timer1", "timer3"):
        await (await Script(h.store, name).begin("other")).wait(deadline=h.store.now() + int(name[-1]) * SECOND)
    await Script(h.store, "at0").submit()
    h.clock.forward(2 * SECOND)
    await Script(h.store, "at2").submit()
    h.clock.forward(2 * SECOND)
    await Script(h.store, "at4").submit()
    h.clock.forward(HOUR)
    await Script(h.store, "ahead").submit()
    await Script(h.store, "urgent", priority=1).submit()
    h.clock.forward(-HOUR)
    h.clock.forward(SECOND)
    order = [c.run_id for _ in range(8) for c in await h.store.claim("w", (), None, limit=1)]
    assert order == ["urgent", "ahead", "at0", "timer1", "at2", "timer3", "at4"]


@case
async def case_a_time_that_was_asked_for(h: Harness) -> None:
    """§10.15: a run that is to begin at a certain time begins then, and not earlier."""
    await h.store.register("w", LONG)
    await Script(h.store, "later", not_before=h.store.now() + HOUR).submit()
    assert await h.store.claim("w", (), None, limit=1) == []
    h.clock.forward(HOUR)
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=1)] == ["later"]


@case
async def case_due_at_once_after_an_import(h: Harness) -> None:
    """X-20, §12.5: a run that is copied from another store is due at once under any clock."""
    await h.store.register("w", LONG)
    there = elsewhere(h)
    await Script(there, "r1").submit()
    h.clock.forward(HOUR)
    assert await copy(there, h.store, "r1")
    h.clock.forward(-HOUR)
    assert [c.run_id for c in await h.store.claim("w", (), None, limit=1)] == ["r1"]


@case
async def case_intents_under_any_clock(h: Harness) -> None:
    """X-20, §9.1: an intent is due at once, whatever the clock showed when its step committed."""
    await h.store.register("w", LONG)
    for number, wrong in enumerate((HOUR, -HOUR)):
        h.clock.forward(wrong)
        script = await Script(h.store, f"r{number}").begin("w")
        made = Intent(
            intent_id=f"i{number}", run_id=f"r{number}", type="mail", payload=b"1", key=f"i{number}", created_at=h.store.now(), due=at_once(h.store.now())
        )
        await script.write(script.commit(ev.NoteAdded("sends"), intents=(made,)))
        h.clock.forward(-wrong)
        assert [i.intent_id for i in await h.store.claim_intents("w", ("mail",), limit=5, ttl_us=TTL)] == [f"i{number}"]


__all__ = ["WAYS"]
