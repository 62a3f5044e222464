"""Records beside the log that are gone, or older than the log, together with what vouches for them (§12.1): the log speaks of them still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.cli.mending import mend, to_do
from holdfast.core import describe
from holdfast.core.errors import EffectFailed, HoldfastError, RecordDamaged
from holdfast.engine.keep.transfer import copy
from holdfast.stores import MemoryStore
from holdfast.testing.conformance import TTL
from holdfast.transports import Signal
from tests.postgres.server import shared

KINDS = ("sqlite", "postgres")
acts: list[str] = []


class Job(State):
    n: int = 0


async def charge(what: str) -> str:
    acts.append(what)
    return f"charged {what}"


async def refuse(what: str) -> str:
    acts.append(what)
    raise ValueError("no")


job = Graph("job", Job, version="1")


@job.node(start=True)
async def work(state: Job, ctx: Context) -> dict[str, int]:
    assert await ctx.effect(charge, "shared", key="invoice-17", side_effects="external_action") == "charged shared"
    await ctx.effect(charge, "own", side_effects="external_action")
    try:
        await ctx.effect(refuse, "refused", key="never", side_effects="external_action")
    except (EffectFailed, ValueError):
        pass
    ctx.send("mail", {"to": "ann"})
    ctx.send("mail", {"to": "bob"})
    ctx.record("orders", "17", {"total": 3})
    ctx.record("orders", "17", {"total": 4})
    return {"n": 1}


@job.node(after="work")
async def ask(state: Job, ctx: Context) -> None:
    await ctx.approve("go on?")


class Place:
    """A store, and what can be done to it by hand."""

    def __init__(self, kind: str, folder: Path) -> None:
        acts.clear()
        self.kind, self.path = kind, folder / "s.db"
        self.url = f"sqlite:///{self.path}" if kind == "sqlite" else shared().fresh()

    def run(self, *statements: str) -> None:
        if self.kind == "sqlite":
            with closing(apsw.Connection(str(self.path))) as db:
                for statement in statements:
                    db.execute(statement)
            return
        with shared().admin("holdfast") as db:
            db.execute(b"SET search_path = holdfast")
            for statement in statements:
                db.execute(statement.encode())

    def lose(self, kind: str, which: str = "1 = 1") -> None:
        """Records of a kind, and what vouches for them."""
        self.run(f"DELETE FROM {kind} WHERE {which}", f"DELETE FROM vouch WHERE kind = '{kind}' AND {which.replace('effect_id', 'id').replace('kind <> ', 'substr(id, 1, 6) <> ')}")

    def open(self, **more: Any) -> Runtime:
        return Runtime(self.url, skills=[job], **more)


async def told(rt: Runtime, run_id: str | None = None) -> set[str]:
    return {p.code for p in await rt.check(run_id) if p.severity == "error"}


@pytest.mark.parametrize("kind", KINDS)
async def test_effects_that_are_lost_are_named_and_made_again(kind: str, tmp_path: Path) -> None:
    """A record and its voucher are both gone: no other run acts under the key, and the log gives the record back, result included."""
    place = Place(kind, tmp_path)
    async with place.open() as rt:
        run = await rt.invoke(job, {})
        before = {e.effect_id: (e.status, e.key, e.shared, e.result, e.request_hash, e.capability) for e in await rt.store.effects(run.run_id)}
        assert await told(rt) == set()
    place.lose("effect")
    done = list(acts)
    async with place.open() as rt:
        assert await told(rt, run.run_id) == await told(rt) == {"effect_record_missing"}
        named = [p.message for p in await rt.check(run.run_id) if p.code == "effect_record_missing"]
        assert all(any(effect_id in message for message in named) for effect_id in before)
        with pytest.raises(RecordDamaged):
            await rt.invoke(job, {})
        assert acts == done, "nothing is done again under a shared key before somebody has looked"
        report = await rt.repair_run_state(run.run_id, True)
        assert report.applied, report
        assert {e.effect_id: (e.status, e.key, e.shared, e.result, e.request_hash, e.capability) for e in await rt.store.effects(run.run_id)} == before
        assert await told(rt, run.run_id) == set()
        again = await rt.invoke(job, {})
        assert acts == [*done, "own", "refused"], "the charge was found on record"
        assert (await rt.approve(again.run_id, actor="ada")).status == "completed"


@pytest.mark.parametrize("kind", KINDS)
async def test_one_of_many_is_named(kind: str, tmp_path: Path) -> None:
    place = Place(kind, tmp_path)
    async with place.open() as rt:
        run = await rt.invoke(job, {})
        other = await rt.invoke(job, {})
        lost = next(e.effect_id for e in await rt.store.effects(run.run_id) if not e.shared)
    place.lose("effect", f"effect_id = '{lost}'")
    async with place.open() as rt:
        (found,) = [p for p in await rt.check() if p.severity == "error"]
        assert (found.code, found.run_id, lost in found.message) == ("effect_record_missing", run.run_id, True)
        assert await told(rt, other.run_id) == set()


@pytest.mark.parametrize("kind", KINDS)
async def test_an_effect_that_is_older_than_the_log_is_named(kind: str, tmp_path: Path) -> None:
    """It was put back as it was while it was attempted, with what vouched for it then."""
    place = Place(kind, tmp_path)

    async def paying(what: str) -> str:
        acts.append(what)
        place.run("CREATE TABLE old_effect AS SELECT * FROM effect", "CREATE TABLE old_vouch AS SELECT * FROM vouch WHERE kind = 'effect'")
        return "paid"

    pay = Graph("pay", Job, version="1")

    @pay.node(start=True)
    async def act(state: Job, ctx: Context) -> None:
        await ctx.effect(paying, "x", key="k", side_effects="external_action")

    async with Runtime(place.url, skills=[pay]) as rt:
        run = await rt.invoke(pay, {})
    place.run("UPDATE effect SET status = (SELECT status FROM old_effect o WHERE o.effect_id = effect.effect_id), data = (SELECT data FROM old_effect o WHERE o.effect_id = effect.effect_id)")
    place.run("UPDATE vouch SET seal = (SELECT seal FROM old_vouch o WHERE o.id = vouch.id) WHERE kind = 'effect'", "DROP TABLE old_effect", "DROP TABLE old_vouch")
    async with Runtime(place.url, skills=[pay]) as rt:
        assert await told(rt, run.run_id) == await told(rt) == {"effect_record_altered"}
        assert (await rt.repair_run_state(run.run_id, True)).applied
        (effect,) = await rt.store.effects(run.run_id)
        assert effect.status == "recorded"
        assert await told(rt) == set()
        assert (await rt.invoke(pay, {})).status == "completed"
    assert acts == ["x"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("table", ["intent", "ledger", "inbox", "claim"])
async def test_what_cannot_be_made_again_is_named_until_somebody_accepts_it(kind: str, table: str, tmp_path: Path) -> None:
    """§12.1: an intent whose record is lost may have been sent or not; nobody but a person can say that it does not matter."""
    place = Place(kind, tmp_path)
    async with place.open() as rt:
        run = await rt.invoke(job, {}, key="monday")
        await rt.signal(run.run_id, "news", 1, key="first")
    place.lose(table, "kind <> 'effect'" if table == "claim" else "1 = 1")
    code = f"{table}_record_missing"
    async with place.open() as rt:
        assert await told(rt, run.run_id) == await told(rt) == {code}
        assert not (await rt.repair_run_state(run.run_id, True)).applied
        await mend(rt, rebuild=True)
        assert await told(rt) == {code}
        done, left, _ = await mend(rt, rebuild=True, acknowledge=True)
        assert [r.applied for r in done] == [True]
        assert not [p for p in left if p.severity == "error"]
        assert "state.repaired" in {e["event_type"] for e in await rt.events(run.run_id)}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_key_whose_run_was_pruned_is_not_acted_upon_again(kind: str, tmp_path: Path) -> None:
    """No log speaks of it any more; that somebody had the key does."""
    place = Place(kind, tmp_path)
    async with place.open(transports={"mail": _mail}) as rt:
        run = await rt.invoke(job, {})
        await rt.approve(run.run_id, actor="ada")
        await rt.dispatch(until_idle=True)
        assert (await rt.prune(timedelta(0))).run_ids == (run.run_id,)
        assert await told(rt) == set()
    place.lose("effect")
    done = list(acts)
    async with place.open() as rt:
        assert await told(rt) == {"effect_record_missing"}
        with pytest.raises(HoldfastError):
            await rt.invoke(job, {})
        assert acts == done


async def _mail(payload: Any, key: str) -> None:
    pass


class Answering:
    """Sends, and tells the run what it was answered. Before that it notes how the message is recorded."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def send(self, payload: Any, key: str) -> str:
        acts.append(key)
        self._place.run("CREATE TABLE old_intent AS SELECT * FROM intent", "CREATE TABLE old_vouch AS SELECT * FROM vouch WHERE kind = 'intent'")
        return "250 accepted"

    def on_response(self, intent: Any, answer: Any) -> list[Any]:
        return [Signal("answered", answer)]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_intent_that_is_older_than_the_log_is_named(kind: str, tmp_path: Path) -> None:
    """It was put back as it was before it was sent, with what vouched for it then: the log has its answer. Otherwise it would be sent again in silence."""
    place = Place(kind, tmp_path)
    asking = Graph("asking", Job, version="1")

    @asking.node(start=True)
    async def send(state: Job, ctx: Context) -> None:
        ctx.send("mail", {"n": 1})

    @asking.node(after=send)
    async def hear(state: Job, ctx: Context) -> None:
        assert await ctx.wait("answered") == "250 accepted"

    async with Runtime(place.url, skills=[asking], transports={"mail": Answering(place)}) as rt:
        run = await rt.invoke(asking, {})
        await rt.dispatch(until_idle=True)
        run = await rt.resume(run.run_id) if run.status != "completed" else run
        assert (run.status, len(acts), await told(rt)) == ("completed", 1, set())
    place.run("DELETE FROM intent", "DELETE FROM vouch WHERE kind = 'intent'", "INSERT INTO intent SELECT * FROM old_intent", "INSERT INTO vouch SELECT * FROM old_vouch")
    place.run("DROP TABLE old_intent", "DROP TABLE old_vouch")
    async with Runtime(place.url, skills=[asking]) as rt:
        (intent,) = await rt.intents(run.run_id)
        assert intent.state == "sending" and await told(rt, run.run_id) == await told(rt) == {"intent_record_altered"}
        await rt.settle(intent.intent_id, "sent", actor="ada")
        assert await told(rt) == set()


MOVES: dict[str, Callable[[Runtime, str], Any]] = {
    "fork": lambda rt, run: rt.fork(run, from_step="work", key="again"),
    "replay": lambda rt, run: rt.replay(run, key="again"),
    "cancel": lambda rt, run: rt.cancel(run),
    "approve": lambda rt, run: rt.approve(run, actor="ada"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("move", MOVES)
async def test_sound_records_are_no_news(kind: str, move: str, tmp_path: Path) -> None:
    """No false alarm: not in runs that came of others, nor where a run was carried over."""
    place = Place(kind, tmp_path)
    async with place.open(transports={"mail": _mail}) as rt:
        run = await rt.invoke(job, {}, key="monday")
        await rt.signal(run.run_id, "news", 1, key="first")
        await rt.invoke(job, {})
        await MOVES[move](rt, run.run_id)
        await rt.dispatch(until_idle=True)
        assert await told(rt) == set()
        elsewhere = MemoryStore()
        await elsewhere.open()
        await copy(rt.store, elsewhere, run.run_id)
        async with Runtime(elsewhere, skills=[job]) as there:
            assert await told(there) == set()
        await rt.export(run.run_id, tmp_path / "out")
    async with Runtime(f"sqlite:///{tmp_path}/new.db", skills=[job]) as new:
        await new.import_runs(tmp_path / "out")
        assert await told(new) == set()


doubt = Graph("doubt", Job, version="1")


@doubt.node(start=True)
async def doubted(state: Job, ctx: Context) -> dict[str, int]:
    await ctx.effect(hang, "it", side_effects="external_action", timeout=0.05)
    return {"n": 1}


async def hang(what: str) -> str:
    acts.append(what)
    await asyncio.Event().wait()
    return "never"


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_about_an_effect_that_is_lost_lets_nothing_be_done_again(kind: str, tmp_path: Path) -> None:
    """§6.5: whoever said what became of it is not answered by doing it again."""
    place = Place(kind, tmp_path)
    async with Runtime(place.url, skills=[doubt]) as rt:
        run = await rt.invoke(doubt, {})
        (wait,) = run.waits
    assert (wait.kind, acts) == ("effect", ["it"])
    place.lose("effect")
    async with Runtime(place.url, skills=[doubt]) as rt:
        await rt.decide(run.run_id, "record_result", actor="ada", payload="done")
        with pytest.raises(RecordDamaged):
            await rt.resume(run.run_id)
        assert acts == ["it"]
        assert (await rt.repair_run_state(run.run_id, True)).applied
        assert (await rt.resume(run.run_id)).status == "completed"
    assert acts == ["it"]


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_are_rebuilt_before_a_loss_is_accepted(kind: str, tmp_path: Path) -> None:
    """A record beside the log looks missing as long as its run has no row. It is there again with the row, and is not given up."""
    place = Place(kind, tmp_path)
    async with place.open() as rt:
        run = await rt.invoke(job, {})
        await rt.signal(run.run_id, "later", {"n": 1}, key="k")
        await rt.issue_token((await rt.waits(run.run_id))[0].wait_id, "ann")
    place.run("DELETE FROM run")
    async with place.open() as rt:
        problems = [describe.plain(describe.problem(p)) for p in await rt.check()]
        assert {"run_row_missing", "token_record_missing"} <= {p["code"] for p in problems}
        assert (await rt.repair_run_state(run.run_id)).reason == "dry run: --apply does this"
        assert to_do(problems, 0, "")[0].startswith("run_row_missing")
        done, left, _ = await mend(rt, acknowledge=True, rebuild=True)
        assert left.ok and [a.code for r in done for a in r.actions] == ["run_row_missing"]
        acted = list(acts)
        assert (await rt.approve(run.run_id, actor="ann")).condition == "done" and acts == acted
        assert await told(rt) == set()


@pytest.mark.parametrize("kind", KINDS)
async def test_runs_of_an_owner_that_is_lost_are_taken_over_by_whoever_starts(kind: str, tmp_path: Path) -> None:
    """A claim looks for the runs of owners that are gone by the rows of these owners. Without such a row no worker ever took the run, and nothing named it."""
    place = Place(kind, tmp_path)
    async with place.open() as rt:
        run = await rt.submit(job, {})
        await rt.store.register("w", TTL)
        assert len(await rt.store.claim("w", (), None, limit=1)) == 1
    place.lose("worker")
    async with place.open() as rt:
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).condition == "awaiting_gate_decision"
        assert await told(rt) == set()
