"""What a person says about the request of a tool's call is what the waiting run goes on with (§6.5, §9.4, §11.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, Runtime
from holdfast.core import intents
from holdfast.core.commit import Settlement
from holdfast.core.errors import AttemptMayLive, Denied, IntentInFlight, IntentSettled, InvalidInput, RestrictedOption
from holdfast.core.status import Status
from holdfast.ports import ToolOutcome
from holdfast.testing import CrashingStore, Fault, SimulatedCrash
from holdfast.tools import ExitCode, FileExists, JsonPathEquals
from tests.outbox.conftest import Open, Shared
from tests.tools.test_remote import Pair, Work, graph, lose, outlast, served, sh

WHY = "I looked into the folder"
FOUND = {"stdout": "made\n"}


@pytest.fixture
def pair(open_rt: Open, tmp_path: Path) -> Pair:
    return Pair(open_rt, tmp_path / "space")


@pytest.fixture
def alone(tmp_path: Path) -> Open:
    """Runtimes over one store in memory."""
    store = Shared()
    return lambda **options: Runtime(store, **options)


async def request_of(rt: Runtime, run_id: str) -> str:
    """The id of the run's newest request."""
    return [i.intent_id for i in await rt.intents(run_id)][-1]


async def driven(rt: Runtime, run_id: str) -> Any:
    await rt.worker(until_idle=True)
    return await rt.get(run_id)


async def told(rt: Runtime, run_id: str, event_type: str) -> list[Any]:
    return [e.payload for e in await rt.events(run_id) if e.event_type == event_type]


# -- it happened ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "lost"])
async def test_it_happened_and_here_is_the_outcome(pair: Pair, state: str) -> None:
    """Nobody runs the tool, whether no runner came or the one that came is gone; the outcome is the person's, with their name on record."""
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        if state == "lost":
            await lose(pair, rt, run.run_id)
        settled = await rt.settle(await request_of(rt, run.run_id), "sent", actor="ada", reason=WHY, result=FOUND)
        assert (settled.state, settled.answer["word"]) == ("sent", {"action": "sent", "actor": "ada", "reason": WHY})
        assert [(r.actor, r.action, r.reason) for r in settled.rulings] == [("ada", "sent", WHY)]
        done = await driven(rt, run.run_id)
        assert (done.status, done.values["out"], pair.count) == (Status.COMPLETED, "made\n", 0), done.error
        assert [(e.status, e.detail) for e in await rt.store.effects(run.run_id)] == [("recorded", f"as ada ({WHY}) found")]
        assert [p["decision"]["actor"] for p in await told(rt, run.run_id, "wait.decided")] == ["ada"]
        assert [p["detail"] for p in await told(rt, run.run_id, "side_effect.recorded")] == [f"as ada ({WHY}) found"]
        assert (await rt.check(run.run_id)).ok
    async with pair.runner() as runner:
        assert await runner.dispatch(until_idle=True) == 0 and pair.count == 0, "no runner takes it any more"


async def test_without_a_result_it_went_well(alone: Open, tmp_path: Path) -> None:
    pair = Pair(alone, tmp_path / "space", sh(postconditions=[ExitCode(0), FileExists("out.txt")]))
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        await rt.settle(await request_of(rt, run.run_id), "sent", actor="ada")
        done = await driven(rt, run.run_id)
        assert (done.status, done.values["out"]) == (Status.COMPLETED, ""), "a person's word needs no further evidence"
        assert [(p["kind"], p["holds"]) for p in await told(rt, run.run_id, "postcondition.evaluated")] == [("exit_code", True)]


TOLD: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"exit_code": 3, "stderr": "no disk"}, {}, "tool_failed"),
    ({"exit_code": 3}, {"postconditions": [ExitCode(0)]}, "postcondition_failed"),
    ({"exit_code": 0, "reports": [{"kind": "file_exists", "ok": False, "detail": "there is no f"}]}, {"postconditions": [FileExists("f")]}, "postcondition_failed"),
]


@pytest.mark.parametrize(("result", "options", "code"), TOLD)
async def test_a_bad_outcome_fails_the_call_as_a_runner_s_does(alone: Open, tmp_path: Path, result: Any, options: Any, code: str) -> None:
    pair = Pair(alone, tmp_path / "space", sh(**options))
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        await rt.settle(await request_of(rt, run.run_id), "sent", actor="ada", result=result)
        done = await driven(rt, run.run_id)
        assert (done.status, done.error.code if done.error else None) == (Status.FAILED, code)
        assert [e.status for e in await rt.store.effects(run.run_id)] == ["failed"]


async def test_a_person_who_saw_no_evidence_is_asked_whether_it_counts(alone: Open, tmp_path: Path) -> None:
    """§11.4: they say so by a report that is neither good nor bad."""
    pair = Pair(alone, tmp_path / "space", sh(postconditions=[JsonPathEquals("r.json", "/ok", True)]))
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        unseen = {"reports": [{"kind": "json_path_equals", "ok": None, "detail": "the disk is gone"}]}
        await rt.settle(await request_of(rt, run.run_id), "sent", actor="ada", result=unseen)
        assert [w.kind for w in (await driven(rt, run.run_id)).waits] == ["takeover"]
        assert (await rt.approve(run.run_id, actor="ada")).status == Status.COMPLETED


async def test_a_large_outcome_is_kept_apart(pair: Pair) -> None:
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        settled = await rt.settle(await request_of(rt, run.run_id), "sent", actor="ada", result=ToolOutcome(stdout="y" * 100_000))
        assert settled.answer["blob"] and not settled.answer["outcome"]
        done = await driven(rt, run.run_id)
        assert (done.status, len(done.values["out"])) == (Status.COMPLETED, 100_000), done.error
        assert (await rt.check(run.run_id)).ok


# -- it is given up ---------------------------------------------------------------------------------


async def test_given_up_the_call_fails_and_says_who_and_why(pair: Pair) -> None:
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        settled = await rt.settle(await request_of(rt, run.run_id), "abandoned", actor="ada", reason="the machine is scrapped")
        assert settled.state == "abandoned"
        done = await driven(rt, run.run_id)
        assert done.status == Status.FAILED and done.error is not None
        assert (done.error.type.rpartition(".")[2], done.error.code) == ("EffectAbandoned", "effect_abandoned")
        assert done.error.message == "tool:sh was given up by ada (the machine is scrapped)"
        assert [(e.status, e.closed) for e in await rt.store.effects(run.run_id)] == [("abandoned", True)]
        assert (await rt.check(run.run_id)).ok


async def test_a_node_may_go_on_without_it(alone: Open, tmp_path: Path) -> None:
    careful: Graph[Work] = Graph("careful", Work, version="1")

    @careful.node(start=True)
    async def work(state: Work, ctx: Context) -> dict[str, str]:
        try:
            return {"out": (await ctx.tool("sh", ["-c", "true"])).stdout}
        except Exception as e:
            return {"out": str(e)}

    pair = Pair(alone, tmp_path / "space", skill=careful)
    async with pair.worker() as rt:
        run = await rt.invoke(careful, {})
        await rt.settle(await request_of(rt, run.run_id), "abandoned", actor="ada")
        assert (await driven(rt, run.run_id)).values["out"] == "tool:sh was given up by ada"


# -- it did not happen ------------------------------------------------------------------------------


async def test_sent_again_it_is_a_new_request(pair: Pair) -> None:
    """§6.5: not while the runner before may still be at it, unless by force; the new attempt has a record of its own."""
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        owner = await lose(pair, rt, run.run_id)
        first = await request_of(rt, run.run_id)
        with pytest.raises(AttemptMayLive, match=owner):
            await rt.redrive(first, actor="ada", reason=WHY)
        assert [i.state for i in await rt.intents(run.run_id)] == ["sending"]
        again = await rt.redrive(first, actor="ada", reason=WHY, force=True)
        assert (again.state, again.detail, again.rulings[-1].forced) == ("abandoned", "its run makes a new request", True)
        waiting = await driven(rt, run.run_id)
        assert waiting.status == Status.WAITING_FOR_SIGNAL and await request_of(rt, run.run_id) != first
        done = await served(pair, rt, run.run_id)
        assert (done.status, done.values["out"], pair.count) == (Status.COMPLETED, "made\n", 1), done.error
        assert [i.state for i in await rt.intents(run.run_id)] == ["abandoned", "sent"]
        assert [(e.status, e.detail) for e in await rt.store.effects(run.run_id)] == [("abandoned", f"done again, as ada ({WHY}) decided"), ("recorded", "")]
        assert (await rt.check(run.run_id)).ok


async def test_the_proof_of_a_death_takes_the_place_of_force(pair: Pair) -> None:
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        async with pair.open(transports={"mail": print}) as runner:  # it has the request when it ends, which is known here
            await runner.dispatch(until_idle=True)
            kind = f"tool@{pair.there.workspace}"
            (taken,) = await rt.store.claim_intents(runner.owner, (kind,), limit=1, ttl_us=60_000_000, run_id=run.run_id)
            with pytest.raises(IntentInFlight, match="is sending"):
                await rt.settle(taken.intent_id, "abandoned", actor="ada")
            with pytest.raises(IntentInFlight, match="is sending"):
                await rt.redrive(taken.intent_id, actor="ada", force=True)
        await rt.redrive(taken.intent_id, actor="ada")
        await driven(rt, run.run_id)
        done = await served(pair, rt, run.run_id)
        assert (done.status, pair.count) == (Status.COMPLETED, 1), done.error


async def test_a_request_that_nobody_has_begun_is_only_hastened(alone: Open, tmp_path: Path) -> None:
    pair = Pair(alone, tmp_path / "space")
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        assert (await rt.redrive(await request_of(rt, run.run_id), actor="ada")).state == "queued"
        done = await served(pair, rt, run.run_id)
        assert (done.status, pair.count, len(await rt.intents(run.run_id))) == (Status.COMPLETED, 1, 1), done.error


async def test_force_is_refused_where_the_environment_allows_none(alone: Open, tmp_path: Path) -> None:
    pair = Pair(alone, tmp_path / "space")
    async with pair.worker(environment="production") as rt:
        run = await rt.invoke(graph, {})
        await lose(pair, rt, run.run_id)
        with pytest.raises(RestrictedOption, match="forcing"):
            await rt.redrive(await request_of(rt, run.run_id), actor="ada", force=True)
        assert [i.state for i in await rt.intents(run.run_id)] == ["sending"]


# -- calls that only read ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "status", "requests"), [("sent", Status.COMPLETED, 1), ("abandoned", Status.FAILED, 1), ("redrive", Status.WAITING_FOR_SIGNAL, 2)]
)
async def test_a_call_that_only_reads(open_rt: Open, tmp_path: Path, word: str, status: Status, requests: int) -> None:
    """Given up it is not tried again, whatever its ``retry``."""
    reads: Graph[Work] = Graph("reads", Work, version="1")

    @reads.node(start=True)
    async def work(state: Work, ctx: Context) -> dict[str, str]:
        return {"out": (await ctx.tool("sh", ["-c", "echo out"], retry=Retry(max_attempts=3, base_us=1_000))).stdout}

    pair = Pair(open_rt, tmp_path / "space", sh(side_effects="read"), skill=reads)
    async with pair.worker() as rt:
        run = await rt.invoke(reads, {})
        await lose(pair, rt, run.run_id)
        request = await request_of(rt, run.run_id)
        if word == "redrive":
            await rt.redrive(request, actor="ada", force=True)
        else:
            await rt.settle(request, word, actor="ada", reason=WHY, **({"result": FOUND} if word == "sent" else {}))
        done = await driven(rt, run.run_id)
        assert (done.status, len(await rt.intents(run.run_id))) == (status, requests), done.error
        if word == "abandoned":
            assert done.error is not None and (done.error.code, done.error.message) == ("effect_abandoned", f"tool:sh was given up by ada ({WHY})")
        if word == "sent":
            assert done.values["out"] == "made\n"


async def test_what_the_runner_brings_afterwards_is_refused(pair: Pair) -> None:
    """Its lease was over when the person spoke, so the word of the person stands, and the run hears no other."""
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        kind = f"tool@{pair.there.workspace}"
        (taken,) = await rt.store.claim_intents("a runner that stood still", (kind,), limit=1, ttl_us=1, run_id=run.run_id)
        outlast(rt, taken)
        await rt.settle(taken.intent_id, "abandoned", actor="ada")
        late = intents.after(taken, intents.Sent(), intents.Sending(), rt.store.now())
        assert await rt.store.settle_intents([Settlement(taken, late)]) == [False]
        assert len(await rt.store.inbox(run.run_id)) == 1
        assert (await driven(rt, run.run_id)).status == Status.FAILED


# -- who may, when, and what is refused -------------------------------------------------------------


async def test_the_word_and_the_settlement_are_one_transaction(pair: Pair) -> None:
    """Before it there is neither; after it both, though whoever said it has died."""
    async with pair.worker() as rt:
        for fault, state, status in ((Fault.BEFORE, "queued", Status.WAITING_FOR_SIGNAL), (Fault.AFTER, "sent", Status.COMPLETED)):
            run = await rt.invoke(graph, {})
            request = await request_of(rt, run.run_id)
            dying = Runtime(CrashingStore(rt.store, lambda _, verb, fault=fault: fault if verb == "settle_intents" else None).as_store())
            with pytest.raises(SimulatedCrash):
                async with dying:
                    await dying.settle(request, "sent", actor="ada", result=FOUND)
            assert [i.state for i in await rt.intents(run.run_id)] == [state]
            assert len(await rt.store.inbox(run.run_id)) == (fault is Fault.AFTER)
            assert (await driven(rt, run.run_id)).status == status


async def test_a_failed_run_hears_it_when_it_is_resumed(open_rt: Open, tmp_path: Path) -> None:
    both: Graph[Work] = Graph("both", Work, version="1")
    trouble = [OSError("a sibling failed")]

    @both.node(start=True)
    async def work(state: Work, ctx: Context) -> dict[str, str]:
        return {"out": (await ctx.tool("sh", ["-c", "true"])).stdout}

    @both.node(start=True)
    async def other(state: Work, ctx: Context) -> None:
        if trouble:
            raise trouble.pop()

    pair = Pair(open_rt, tmp_path / "space", skill=both)
    async with pair.worker() as rt:
        run = await rt.invoke(both, {})
        assert run.status == Status.FAILED and run.waits
        await rt.settle(await request_of(rt, run.run_id), "sent", actor="ada", result=FOUND)
        done = await rt.resume(run.run_id, acknowledge="step_failed")
        assert (done.status, done.values["out"], pair.count) == (Status.COMPLETED, "made\n", 0), done.error


async def test_a_cancelled_run_finds_it_when_it_is_resumed(pair: Pair) -> None:
    """It waits no more, so nothing is put into it; but what is on record about its request is not asked for anew."""
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        await rt.cancel(run.run_id)
        await rt.settle(await request_of(rt, run.run_id), "sent", actor="ada", reason=WHY, result=FOUND)
        assert not await rt.store.inbox(run.run_id)
        done = await rt.resume(run.run_id)
        assert (done.status, done.values["out"], len(await rt.intents(run.run_id))) == (Status.COMPLETED, "made\n", 1), done.error


async def test_the_resolver_is_asked(alone: Open, tmp_path: Path) -> None:
    """§5.7: by the names that the answers to a question about an effect have; a refusal is on record, and nothing else."""
    asked: list[tuple[str, str, str]] = []

    def resolver(actor: str, action: str, wait: Any, run: Any) -> bool | str:
        asked.append((actor, action, wait.name.partition("#")[0]))
        return actor == "ada" or "only ada may"

    pair = Pair(alone, tmp_path / "space")
    async with pair.worker(resolver=resolver) as rt:
        run = await rt.invoke(graph, {})
        await lose(pair, rt, run.run_id)
        request, kind = await request_of(rt, run.run_id), f"tool@{pair.there.workspace}"
        for word, action in (("sent", "record_result"), ("abandoned", "abandon"), ("redrive", "reexecute")):
            with pytest.raises(Denied, match="only ada may"):
                await (rt.redrive(request, actor="eve", force=True) if word == "redrive" else rt.settle(request, word, actor="eve"))
            assert asked.pop() == ("eve", action, kind)
        assert [i.state for i in await rt.intents(run.run_id)] == ["sending"]
        assert [(p["actor"], p["action"]) for p in await told(rt, run.run_id, "wait.denied")] == [("eve", "record_result"), ("eve", "abandon"), ("eve", "reexecute")]
        await rt.settle(request, "sent", actor="ada", result=FOUND)
        assert (await driven(rt, run.run_id)).status == Status.COMPLETED


async def test_the_same_word_again_changes_nothing_and_another_is_refused(pair: Pair) -> None:
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        request = await request_of(rt, run.run_id)
        first = await rt.settle(request, "sent", actor="ada", result=FOUND)
        assert await rt.settle(request, "sent", actor="ada", result=FOUND) == first
        assert await rt.settle(request, "sent", actor="ada") == first, "without a result it says no other"
        with pytest.raises(IntentSettled, match="with another result"):
            await rt.settle(request, "sent", actor="ada", result={"stdout": "other"})
        with pytest.raises(IntentSettled):
            await rt.settle(request, "abandoned", actor="ada")
        with pytest.raises(IntentSettled):
            await rt.redrive(request, actor="ada")
        assert len(await rt.store.inbox(run.run_id)) == 1


async def test_a_runner_s_answer_is_not_replaced(alone: Open, tmp_path: Path) -> None:
    pair = Pair(alone, tmp_path / "space")
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        async with pair.runner() as runner:
            await runner.dispatch(until_idle=True)
        with pytest.raises(IntentSettled, match="with another result"):
            await rt.settle(await request_of(rt, run.run_id), "sent", actor="ada", result={"stdout": "other"})
        assert (await driven(rt, run.run_id)).values["out"] == "made\n"


@pytest.mark.parametrize(
    ("outcome", "result", "said"),
    [
        ("sent", "done", "result is the outcome of a tool's call, not"),
        ("sent", {"code": 0}, "an outcome has no 'code'"),
        ("sent", {"exit_code": "zero"}, r"result: Expected `int`"),
        ("sent", {"artifacts": [{"name": "a", "size": 1, "sha256": "0"}]}, "files cannot be told"),
        ("sent", ToolOutcome(exit_code="x"), "result: Expected `int`"),  # type: ignore[arg-type]
        ("abandoned", {"exit_code": 0}, "a result is that of a tool's call that happened"),
    ],
)
async def test_what_is_no_outcome_is_refused(alone: Open, tmp_path: Path, outcome: str, result: Any, said: str) -> None:
    pair = Pair(alone, tmp_path / "space")
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        with pytest.raises(InvalidInput, match=said):
            await rt.settle(await request_of(rt, run.run_id), outcome, actor="ada", result=result)
        assert [i.state for i in await rt.intents(run.run_id)] == ["queued"] and not await rt.store.inbox(run.run_id)


async def test_other_messages_have_no_result(alone: Open) -> None:
    mails: Graph[Work] = Graph("mails", Work, version="1")

    @mails.node(start=True)
    async def notify(state: Work, ctx: Context) -> None:
        ctx.send("mail", {"to": "ada"})

    async with alone(skills=[mails]) as rt:
        run = await rt.invoke(mails, {})
        with pytest.raises(InvalidInput, match="a result is that of a tool's call"):
            await rt.settle(await request_of(rt, run.run_id), "sent", actor="ada", result={})
        await rt.settle(await request_of(rt, run.run_id), "sent", actor="ada")
        assert [i.state for i in await rt.intents(run.run_id)] == ["sent"] and not await rt.store.inbox(run.run_id)


async def test_a_message_of_that_type_that_nobody_waits_for_is_settled_as_any_other(alone: Open) -> None:
    odd: Graph[Work] = Graph("odd", Work, version="1")

    @odd.node(start=True)
    async def notify(state: Work, ctx: Context) -> None:
        ctx.send("tool@0123456789abcdef", {"is": "no request"})

    async with alone(skills=[odd]) as rt:
        run = await rt.invoke(odd, {})
        assert (await rt.settle(await request_of(rt, run.run_id), "abandoned", actor="ada")).state == "abandoned"
        assert not await rt.store.inbox(run.run_id)
