"""Statements of commits and claims are planned once over PostgreSQL, and not with each use: planning takes longer than most of them (decision 83).

The server plans a statement anew with each use as long as it takes the plan for these very values for a better one than that for any. It says of each
prepared statement how often it did either, and only to the session that has prepared it: here a trigger writes that down.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from tests.postgres.server import shared

from holdfast.core import events as ev
from holdfast.core.commit import DedupClaim
from holdfast.core.effects import EffectStatus
from holdfast.core.lease import Take
from holdfast.ports import Claims, Loaded
from holdfast.stores import PostgresStore, crowds
from holdfast.testing.conformance import TTL, Script, effect, replace, signal

USES = 36  # several connections may share them, where the machine is slow
ANEW = 5  # so often the server makes a plan for the values before it thinks of one for any
NOTES = """CREATE TABLE public.plans (text text, kept bigint, anew bigint);
GRANT ALL ON public.plans TO PUBLIC;
CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO public.plans SELECT statement, generic_plans, custom_plans FROM pg_prepared_statements; RETURN NULL; END';
CREATE TRIGGER note AFTER INSERT ON holdfast.shelf FOR EACH STATEMENT EXECUTE FUNCTION public.note()"""


async def births_and_ends(store: PostgresStore, name: str) -> None:
    await (await (await Script(store, name).begin("w")).steps(1)).complete()


async def rests(store: PostgresStore, name: str) -> None:
    await (await Script(store, name).begin("w")).wait()
    await store.put(signal(name, "k", store.now()))


async def taken_as_found(store: PostgresStore, name: str) -> None:
    script = await Script(store, name).submit()
    found = await store.claim_or_load("w", (), None, limit=5)
    assert isinstance(found, Loaded) and found.run.run_id == name
    await script.write(replace(script.taking("w", ev.RunClaimed("w", 2), ev.RunStarted()), lease=Take("w", found=True)))
    await script.complete()


async def claimed(store: PostgresStore, name: str) -> None:
    await Script(store, name).submit()
    assert [c.run_id for c in await store.claim("w", (), None, limit=5)] == [name]


async def effects(store: PostgresStore, name: str) -> None:
    script = await Script(store, name).begin("w")
    await script.write(script.commit(ev.SideEffectAttempted(f"{name}.x1", name), effects=(effect(name, 1, name),)))
    done = effect(name, 1, name, EffectStatus.RECORDED)
    await script.write(script.commit(ev.SideEffectRecorded(done.effect_id, name), effects=(done,)))


async def births_under_a_key(store: PostgresStore, name: str) -> None:
    script = Script(store, name)
    await script.write(script.first(claims=(DedupClaim("request", "default", name, name, "d"),)))


@pytest.mark.parametrize("do", [births_and_ends, rests, taken_as_found, claimed, effects, births_under_a_key])
async def test_its_statements_are_planned_once(do: Callable[[PostgresStore, str], Awaitable[None]]) -> None:
    with shared().admin() as db:
        db.execute("DROP DATABASE IF EXISTS plans WITH (FORCE)")
    store = PostgresStore(f"{shared().fresh('plans')}&listen=", clock=lambda: 0.0)
    await store.open()
    try:
        await store.register("w", TTL)
        with shared().admin("plans") as db:
            db.execute(NOTES)
            for n in range(USES):
                await do(store, f"r{n:02}")
            await store.shelve("told", {"key": b""})
            found = {str(text): (int(str(kept)), int(str(anew))) for text, kept, anew in db.execute("SELECT * FROM public.plans").fetchall()}
    finally:
        await store.close()
    often = {text: counts for text, counts in found.items() if sum(counts) > ANEW + 1}
    assert len(often) >= 2, "the same connection has done all of it"
    assert {text[:300]: counts for text, counts in often.items() if counts[1] > ANEW} == {}


async def test_a_store_looks_beside_its_claims_by_the_clock_that_it_was_given() -> None:
    """A worker that waits for one run is given it as it stands, and claims it where it looks for crowds in lanes: how busy the machine is does not decide which
    statements are sent."""
    at = 0.0
    store = PostgresStore(f"{shared().fresh('plans')}&listen=", clock=lambda: at)
    await store.open()
    await store.register("w", TTL)
    for n in range(2 * crowds.CALLS):
        await taken_as_found(store, f"r{n:02}")
    at = crowds.SECONDS
    await Script(store, "later").submit()
    assert isinstance(await store.claim_or_load("w", (), None, limit=5), Claims)
    await store.close()
