"""Effects through crashes, freezes, people and other runs (§6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from holdfast import Absent, Context, Graph, Happened, Retry, Runtime, State, Unknown, flow, window
from holdfast.core import wording
from holdfast.core.commands import Decide
from holdfast.core.commit import InboxItem
from holdfast.core.errors import AttemptMayLive, LeaseLost, StoreUnavailable
from holdfast.stores.sqlite import writer
from tests.engine.outside import Crash, House, World


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


def publishing(world: World, **options: Any) -> Any:
    @flow("publish")
    async def publish(ctx: Context, text: str) -> str:
        receipt: str = await ctx.effect(world.upload, text, **options)
        return receipt

    return publish


async def crashed(house: House, skill: Any, inputs: dict[str, Any]) -> str:
    """Drives a run in a process that dies at the effect; gives the run's id."""
    rt = await house.process(skill)
    with pytest.raises(Crash):
        await rt.invoke(skill, inputs)
    house.kill(rt)
    run = (await rt.runs())[0]
    return str(run.run_id)


async def kinds(rt: Runtime, run_id: str) -> list[str]:
    return [e.type for e in await rt.events(run_id)]


async def statuses(rt: Runtime, run_id: str) -> list[str]:
    return [e.status.value for e in await rt.effects(run_id)]


# -- the gap ------------------------------------------------------------------------------------------


async def test_a_crash_in_the_gap_asks_a_person(house: House) -> None:
    """T-39, T-76, L-21: attempted without a result; the run rests in a wait of kind effect and nothing is repeated."""
    world = World(crash_at=1)
    skill = publishing(world)
    run_id = await crashed(house, skill, {"text": "a"})
    assert world.done == ["a"], "the uncrashed world did the work"
    rt = await house.process(skill)
    run = await rt.resume(run_id)
    assert (run.status, run.condition) == ("waiting_for_human", "awaiting_gate_decision")
    [wait] = run.waits
    assert wait.kind == "effect" and wait.available_actions == ("record_result", "reexecute", "abandon", "halt")
    assert wait.show["effect"] == "upload" and wait.show["closed"] is True
    assert await statuses(rt, run_id) == ["unknown"]
    assert "side_effect.unknown" in await kinds(rt, run_id) and "side_effect.reused" not in await kinds(rt, run_id)
    assert world.done == ["a"]


async def test_a_recorded_result_settles_it(house: House) -> None:
    """T-96: what a person says happened is the result; the effect is not done again."""
    world = World(crash_at=1)
    skill = publishing(world)
    run_id = await crashed(house, skill, {"text": "a"})
    rt = await house.process(skill)
    await rt.resume(run_id)
    await rt.decide(run_id, "record_result", payload="by hand", actor="ada")
    run = await rt.resume(run_id)
    assert (run.status, run.result, world.done) == ("completed", "by hand", ["a"])
    assert await statuses(rt, run_id) == ["recorded"]


async def test_a_result_that_is_not_given_is_null_and_that_is_said(house: House) -> None:
    """§6.5: whoever decides is told what is recorded where nothing is given, wherever the action is offered."""
    skill = publishing(World(crash_at=1))
    run_id = await crashed(house, skill, {"text": "a"})
    rt = await house.process(skill)
    [wait] = (await rt.resume(run_id)).waits
    assert "null if you give none" in wording.describe_action(wait.kind, "record_result").does
    await rt.decide(run_id, "record_result", actor="ada")
    assert (await rt.resume(run_id)).result is None
    assert await statuses(rt, run_id) == ["recorded"]


async def test_reexecute_closes_the_old_attempt_and_opens_another(house: House) -> None:
    """§6.5: its process is proven dead, so acting again is a person's to decide."""
    world = World(crash_at=1)
    skill = publishing(world)
    run_id = await crashed(house, skill, {"text": "a"})
    rt = await house.process(skill)
    await rt.resume(run_id)
    await rt.decide(run_id, "reexecute", actor="ada")
    run = await rt.resume(run_id)
    assert (run.status, run.result, world.done) == ("completed", "receipt 2", ["a", "a"])
    assert await statuses(rt, run_id) == ["abandoned", "recorded"]


async def test_abandon_gives_the_node_a_failure(house: House) -> None:
    world = World(crash_at=1)
    skill = publishing(world)
    run_id = await crashed(house, skill, {"text": "a"})
    rt = await house.process(skill)
    await rt.resume(run_id)
    await rt.decide(run_id, "abandon", actor="ada")
    run = await rt.resume(run_id)
    assert (run.status, run.stop_reason, world.done) == ("failed", "effect_abandoned", ["a"])
    assert await statuses(rt, run_id) == ["abandoned"]


async def test_halt_ends_the_run_and_keeps_the_unknown(house: House) -> None:
    """§10.12: an unknown effect of an ended run stays unknown and is listed."""
    world = World(crash_at=1)
    skill = publishing(world)
    run_id = await crashed(house, skill, {"text": "a"})
    rt = await house.process(skill)
    await rt.resume(run_id)
    run = await rt.decide(run_id, "halt", actor="ada")
    assert (run.status, run.condition) == ("canceled", "halted")
    assert await statuses(rt, run_id) == ["unknown"]


async def test_an_idempotent_effect_goes_again_under_the_same_key(house: House) -> None:
    """T-39, §6.5: the receiver dedupes by the key, so nobody is asked."""
    world = World(crash_at=1)

    @flow("pay")
    async def pay(ctx: Context, amount: int) -> int:
        return int(await ctx.effect(world.charge, amount, idempotent=True))

    run_id = await crashed(house, pay, {"amount": 7})
    rt = await house.process(pay)
    run = await rt.resume(run_id)
    assert (run.status, run.result) == ("completed", 7)
    assert len(world.done) == 1 and world.keys[0] == world.keys[1], "one charge, one key, two requests"
    assert await statuses(rt, run_id) == ["recorded"]


@pytest.mark.parametrize(
    ("answer", "status", "done"),
    [
        (Happened("seen"), "completed", ["a"]),
        (Absent(), "completed", ["a", "a"]),
        (Unknown(), "waiting_for_human", ["a"]),
        (ValueError("down"), "waiting_for_human", ["a"]),
        ("nonsense", "waiting_for_human", ["a"]),
    ],
)
async def test_verify_settles_the_gap(house: House, answer: Any, status: str, done: list[str]) -> None:
    """§6.5, X-05: happened is the result, absent goes again for the owner is dead, all else asks."""
    world = World(crash_at=1)
    asked: list[Any] = []

    async def uploaded(key: str, text: str) -> Any:
        asked.append((key, text))
        if isinstance(answer, Exception):
            raise answer
        return answer

    skill = publishing(world, verify=uploaded)
    run_id = await crashed(house, skill, {"text": "a"})
    rt = await house.process(skill)
    run = await rt.resume(run_id)
    assert (run.status, world.done) == (status, done)
    assert len(asked) == 1 and asked[0][1] == "a"
    if isinstance(answer, Happened):
        assert run.result == "seen"


async def test_a_hook_that_hangs_is_unknown(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-05: asked for a bounded time only."""
    monkeypatch.setattr("holdfast.engine.calls.effects.VERIFY_TIMEOUT_US", 10_000)
    world = World(crash_at=1)

    async def hangs(key: str, text: str) -> Any:
        await asyncio.Event().wait()

    skill = publishing(world, verify=hangs)
    run_id = await crashed(house, skill, {"text": "a"})
    rt = await house.process(skill)
    run = await rt.resume(run_id)
    assert (run.status, world.done) == ("waiting_for_human", ["a"])


# -- frozen owners ------------------------------------------------------------------------------------


class Frozen(World):
    """Its process is stopped exactly at the act, and acts once thawed."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()
        self.thaw = asyncio.Event()

    async def upload(self, text: str) -> str:
        if not self.reached.is_set():
            self.reached.set()
            await self.thaw.wait()
        return await super().upload(text)


async def frozen(house: House, skill: Any, world: Frozen) -> tuple[Runtime, asyncio.Task[Any], str]:
    rt = await house.process(skill)
    drive = asyncio.ensure_future(rt.invoke(skill, {"text": "a"}))
    await world.reached.wait()
    run_id = (await rt.runs())[0].run_id
    house.stop(rt)
    return rt, drive, run_id


async def test_an_owner_frozen_at_its_effect_changes_nothing(house: House) -> None:
    """X-12, T-75: thawed after its lease it acts, but nothing it writes counts; the act is on record as attempted."""
    world = Frozen()
    skill = publishing(world)
    _, drive, run_id = await frozen(house, skill, world)
    rt = await house.process(skill)
    run = await rt.resume(run_id)
    assert run.status == "waiting_for_human" and run.waits[0].show["closed"] is False
    world.thaw.set()
    with pytest.raises(LeaseLost):
        await drive
    assert world.done == ["a"]
    assert await statuses(rt, run_id) == ["unknown"]
    late = [i for i in await rt.store.inbox(run_id, taken=True) if i.key.startswith("late:")]
    assert len(late) == 1 and "receipt 1" in late[0].command.summary, "§10.2: evidence only"
    [effect] = await rt.effects(run_id)
    assert effect.closed, "the act has ended, so a person may decide to do it again"


async def test_an_impatient_reexecute_is_refused_while_the_owner_may_live(house: House) -> None:
    """X-04: a frozen owner, a person who answers reexecute, a thaw: one effect, or a refusal that says why."""
    world = Frozen()
    skill = publishing(world)
    _, drive, run_id = await frozen(house, skill, world)
    rt = await house.process(skill)
    await rt.resume(run_id)
    with pytest.raises(AttemptMayLive, match="could happen twice"):
        await rt.decide(run_id, "reexecute", actor="ada")
    link = await rt.issue_token((await rt.get(run_id)).waits[0].wait_id, actor="ada", ttl=3600)
    with pytest.raises(AttemptMayLive):
        await rt.redeem(link, "reexecute")  # by a link no more than by name
    assert world.done == []
    world.thaw.set()
    with pytest.raises(LeaseLost):
        await drive
    assert world.done == ["a"], "one effect"
    await rt.decide(run_id, "record_result", payload="receipt 1", actor="ada")
    run = await rt.resume(run_id)
    assert (run.status, run.result, world.done) == ("completed", "receipt 1", ["a"])


async def test_an_answer_that_slipped_in_is_asked_again(house: House) -> None:
    """X-04, §5.8: a reexecute given while the owner may live does not become valid by waiting."""
    world = Frozen()
    skill = publishing(world)
    _, drive, run_id = await frozen(house, skill, world)
    rt = await house.process(skill)
    run = await rt.resume(run_id)
    command = Decide(wait_id=run.waits[0].wait_id, action="reexecute", actor="ada")
    await rt.store.put(InboxItem(run_id=run_id, key=command.key, command=command, put_at=house.clock.now()))
    await rt.worker(until_idle=True)
    [wait] = (await rt.get(run_id)).waits
    assert wait.show["reason"] == "attempt_may_live" and "may still be alive" in wait.prompt
    world.thaw.set()
    with pytest.raises(LeaseLost):
        await drive
    await rt.decide(run_id, "record_result", payload="receipt 1", actor="ada")
    run = await rt.resume(run_id)
    assert (run.status, run.result, world.done) == ("completed", "receipt 1", ["a"])


async def test_force_says_what_may_happen(house: House) -> None:
    """§6.5: acting again over an attempt that may live takes an explicit force."""
    world = Frozen()
    skill = publishing(world)
    _, drive, run_id = await frozen(house, skill, world)
    rt = await house.process(skill)
    await rt.resume(run_id)
    await rt.decide(run_id, "reexecute", force=True, actor="ada")
    run = await rt.resume(run_id)
    assert (run.status, world.done) == ("completed", ["a"])
    world.thaw.set()
    with pytest.raises(LeaseLost):
        await drive
    assert world.done == ["a", "a"], "what the force was warned of"


async def test_absent_is_not_believed_of_a_frozen_owner(house: House) -> None:
    """X-05: verify says absent while the owner is frozen; it may act yet."""
    world = Frozen()

    async def absent(key: str, text: str) -> Any:
        return Absent()

    skill = publishing(world, verify=absent)
    _, drive, run_id = await frozen(house, skill, world)
    rt = await house.process(skill)
    run = await rt.resume(run_id)
    assert run.status == "waiting_for_human" and world.done == []
    world.thaw.set()
    with pytest.raises(LeaseLost):
        await drive
    assert world.done == ["a"]


async def test_an_owner_that_is_late_closes_its_own_attempt(house: House) -> None:
    """§6.5, §10.3: past 60 % of the lease nothing is begun; the attempt is abandoned on its own row."""
    world = World()
    skill = publishing(world)
    rt = await house.process(skill)
    attempt = rt.store.commit

    async def slow(commit: Any) -> Any:
        tip = await attempt(commit)
        if commit.effects:
            house.clock.forward(29)  # the machine slept between the attempt and the act
        return tip

    async def unreachable(owner: str, ttl_us: int) -> int:
        raise StoreUnavailable("nobody answers")

    rt.store.commit = slow  # type: ignore[method-assign]
    renew, rt.store.renew = rt.store.renew, unreachable  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        await rt.invoke(skill, {"text": "a"})
    rt.store.renew = renew  # type: ignore[method-assign]
    run_id = (await rt.runs())[0].run_id
    assert (world.done, await statuses(rt, run_id)) == ([], ["abandoned"])
    rt.store.commit = attempt  # type: ignore[method-assign]
    house.stop(rt)
    other = await house.process(skill)
    run = await other.resume(run_id)
    assert (run.status, world.done) == ("completed", ["a"]), "nobody had acted, so nobody is asked"
    assert await statuses(other, run_id) == ["abandoned", "recorded"]


def paying(world: World) -> Any:
    @flow("pay")
    async def pay(ctx: Context, amount: int) -> int:
        return int(await ctx.effect(world.charge, amount, idempotent=True))

    return pay


async def test_a_late_owner_that_attempts_again_leaves_the_attempt_before_unknown(house: House) -> None:
    """§6.5: what it did not begin says nothing of the attempt that it was to follow."""
    world = World(crash_at=1)
    skill = paying(world)
    run_id = await crashed(house, skill, {"amount": 7})
    rt = await house.process(skill)
    attempt = rt.store.commit

    async def slow(commit: Any) -> Any:
        tip = await attempt(commit)
        if any(e.status == "attempted" for e in commit.effects):
            house.clock.forward(29)
        return tip

    async def unreachable(owner: str, ttl_us: int) -> int:
        raise StoreUnavailable("nobody answers")

    rt.store.commit = slow  # type: ignore[method-assign]
    renew, rt.store.renew = rt.store.renew, unreachable  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        await rt.resume(run_id)
    rt.store.renew, rt.store.commit = renew, attempt  # type: ignore[method-assign]
    assert (len(world.keys), await statuses(rt, run_id)) == (1, ["unknown"])
    house.stop(rt)
    other = await house.process(skill)
    run = await other.resume(run_id)
    assert (run.status, len(world.done), await statuses(other, run_id)) == ("completed", 1, ["recorded"])
    assert await other.check(run_id) == []


async def test_a_cancel_before_another_attempt_begins_leaves_the_first_unknown(house: House) -> None:
    """§10.12: it is listed, for the receiver may have had it."""
    world = World(crash_at=1)
    skill = paying(world)
    run_id = await crashed(house, skill, {"amount": 7})
    rt = await house.process(skill)
    attempt, put, cancels, told = rt.store.commit, rt.store.put, [], asyncio.Event()

    async def meanwhile(commit: Any) -> Any:
        tip = await attempt(commit)
        if any(e.status == "attempted" for e in commit.effects) and not cancels:
            cancels.append(asyncio.ensure_future(rt.cancel(run_id)))
            await told.wait()
        return tip

    async def tell(item: Any) -> Any:
        there = await put(item)
        told.set()
        return there

    rt.store.commit, rt.store.put = meanwhile, tell  # type: ignore[method-assign]
    run = await rt.resume(run_id)
    await asyncio.gather(*cancels)
    assert (run.status, len(world.keys), await statuses(rt, run_id)) == ("canceled", 1, ["unknown"])


async def test_a_node_that_waits_when_it_is_attempted_again_is_not_known_not_to_have_acted(house: House) -> None:
    world = World(crash_at=1)
    graph, asks = Graph("careful", Page), []

    @graph.node(start=True, side_effects="external_action", idempotent=True)
    async def publish(state: Page, ctx: Context) -> dict[str, Any]:
        if asks:
            await ctx.approve("Sure?")
        return {"receipt": await world.upload(state.text)}

    run_id = await crashed(house, graph, {"text": "a"})
    asks.append(True)
    rt = await house.process(graph)
    run = await rt.resume(run_id)
    assert (run.status, await statuses(rt, run_id)) == ("waiting_for_human", ["unknown"])
    run = await rt.approve(run_id)
    assert (run.status, world.done, await statuses(rt, run_id)) == ("completed", ["a", "a"], ["recorded"])


# -- keys ---------------------------------------------------------------------------------------------


async def test_a_shared_key_executes_once_across_runs(house: House) -> None:
    """T-45: the second run reuses what the first recorded."""
    world = World()
    skill = publishing(world, key="order-7")
    rt = await house.process(skill)
    first = await rt.invoke(skill, {"text": "a"})
    second = await rt.invoke(skill, {"text": "a"})
    assert first.result == second.result == "receipt 1" and world.done == ["a"]
    [reused] = await rt.effects(second.run_id)
    assert reused.status == "reused" and reused.source_effect_id == (await rt.effects(first.run_id))[0].effect_id
    assert "side_effect.reused" in await kinds(rt, second.run_id)


async def test_a_person_settles_the_effect_of_another_run(house: House) -> None:
    """§6.5, §6.8: asked in the run that waits for the key, whose own log tells what was recorded and where; its owner reuses it."""
    world = World(crash_at=1)
    skill = publishing(world, key="order-7")
    first = await crashed(house, skill, {"text": "a"})
    rt = await house.process(skill)
    second = await rt.invoke(skill, {"text": "a"})
    [wait] = second.waits
    [effect] = await rt.effects(first)
    assert (wait.kind, wait.show["key"]) == ("effect", effect.key)
    await rt.decide(second.run_id, "record_result", payload="by hand", actor="ada")
    second = await rt.resume(second.run_id)
    assert (second.status, second.result) == ("completed", "by hand")
    told = [e for e in await rt.events(second.run_id) if e.type.startswith("side_effect.")]
    assert [e.type for e in told] == ["side_effect.recorded", "side_effect.reused"]
    assert told[0].payload["effect_id"] == effect.effect_id and first in told[0].payload["detail"]
    run = await rt.resume(first)
    assert (run.status, run.result, world.done) == ("completed", "by hand", ["a"])
    assert (await statuses(rt, first), await statuses(rt, second.run_id)) == (["recorded"], ["reused"])


@pytest.mark.parametrize("said", ["record_result", "abandon"])
async def test_two_people_settle_it_in_two_runs(house: House, said: str) -> None:
    """T-97: the first word stands; the other is told, and nothing is done twice."""
    world = World(crash_at=1)
    skill = publishing(world, key="order-7")
    first = await crashed(house, skill, {"text": "a"})
    rt = await house.process(skill)
    second = await rt.invoke(skill, {"text": "a"})
    await rt.resume(first)
    await rt.decide(second.run_id, said, payload="mine", actor="ada")
    await rt.decide(first, "record_result", payload="theirs", actor="bob")
    settle = rt.store.settle_effect

    async def late(effect: Any, expected: str) -> bool:
        rt.store.settle_effect = settle  # type: ignore[method-assign]
        assert (await rt.resume(first)).result == "theirs"
        return await settle(effect, expected)

    rt.store.settle_effect = late  # type: ignore[method-assign]
    run = await rt.resume(second.run_id)
    assert (run.status, run.stop_reason) == ("failed", "effect_conflict") and "as recorded" in run.error.message
    run = await rt.resume(second.run_id, acknowledge=run.stop_reason)
    assert (run.status, run.result, world.done) == ("completed", "theirs", ["a"])


async def test_a_second_caller_waits_for_the_first(house: House) -> None:
    """T-45, §6.8: in another process, while the first is still at it."""
    world = Frozen()
    skill = publishing(world, key="order-7")
    one, two = await house.process(skill), await house.process(skill)
    first = asyncio.ensure_future(one.invoke(skill, {"text": "a"}))
    await world.reached.wait()
    second = asyncio.ensure_future(two.invoke(skill, {"text": "a"}))
    for _ in range(100):
        if len(await one.runs()) == 2:
            break
        await one.store.wait_for_change(1)
    assert world.done == []
    world.thaw.set()
    assert (await first).result == (await second).result == "receipt 1"
    assert world.done == ["a"]


async def test_a_second_caller_is_told_in_time(house: House) -> None:
    """§6.8: it waits no longer than its own timeout."""
    world = Frozen()
    skill, impatient = publishing(world, key="order-7"), publishing(world, key="order-7", timeout=5)
    one, two = await house.process(skill), await house.process(impatient)
    first = asyncio.ensure_future(one.invoke(skill, {"text": "a"}))
    await world.reached.wait()

    async def passes(timeout: float, about: object = None) -> None:
        await house.clock.sleep(1)

    two.store.wait_for_change = passes  # type: ignore[method-assign]
    run = await two.invoke(impatient, {"text": "a"})
    assert (run.status, run.stop_reason) == ("failed", "effect_in_progress")
    world.thaw.set()
    await first
    assert world.done == ["a"]


async def test_the_same_key_with_another_request_is_a_conflict(house: House) -> None:
    """T-41: a typed error, not a stale result."""
    world = World()
    skill = publishing(world, key="order-7")
    rt = await house.process(skill)
    await rt.invoke(skill, {"text": "a"})
    run = await rt.invoke(skill, {"text": "b"})
    assert (run.status, run.stop_reason, world.done) == ("failed", "effect_conflict", ["a"])


@pytest.mark.parametrize("slow", [float("inf"), -1.0])
async def test_gathered_calls_under_one_key_execute_once(house: House, slow: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """T-45 within one run, with commits made at once and in the writer's thread."""
    monkeypatch.setattr(writer, "SLOW", slow)
    world = World()

    @flow("twice")
    async def twice(ctx: Context) -> list[str]:
        return await ctx.gather(ctx.effect(world.upload, "a", key="k"), ctx.effect(world.upload, "a", key="k"))

    rt = await house.process(twice)
    run = await rt.invoke(twice, {})
    assert (run.status, list(run.result), world.done) == ("completed", ["receipt 1", "receipt 1"], ["a"])


async def test_each_class_goes_where_it_must(house: House) -> None:
    """T-44: read and none skip the ledger, write and external_action never do."""
    world = World()

    @flow("classes")
    async def classes(ctx: Context, side_effects: str) -> str:
        done: str = await ctx.effect(world.upload, "a", side_effects=side_effects)
        return done

    rt = await house.process(classes)
    for side_effects, rows in {"none": 0, "read": 0, "write": 1, "external_action": 1}.items():
        run = await rt.invoke(classes, {"side_effects": side_effects})
        assert run.status == "completed" and len(await rt.effects(run.run_id)) == rows


# -- failures -----------------------------------------------------------------------------------------


class Flaky(World):
    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def upload(self, text: str) -> str:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("refused")
        return await super().upload(text)


async def test_a_failure_is_a_result(house: House) -> None:
    """§6.9: it is on record, a node may catch it, and a crash does not do it again."""
    world = Flaky(1)

    @flow("careful")
    async def careful(ctx: Context) -> str:
        try:
            return str(await ctx.effect(world.upload, "a"))
        except ConnectionError as e:
            await ctx.approve("Go on?")
            return f"no: {e}"

    rt = await house.process(careful)
    run = await rt.invoke(careful, {})
    assert run.status == "waiting_for_human"
    run = await rt.approve(run.run_id)
    assert (run.result, world.done, await statuses(rt, run.run_id)) == ("no: refused", [], ["failed"])


async def test_only_an_idempotent_effect_is_retried_by_itself(house: House) -> None:
    """§10.9: a retry on any other opens a wait of kind retry."""
    safe, unsafe = Flaky(2), Flaky(1)
    first = publishing(safe, idempotent=True, retry=Retry(3))
    rt = await house.process(first)
    run = await rt.invoke(first, {"text": "a"})
    assert (run.status, safe.done, await statuses(rt, run.run_id)) == ("completed", ["a"], ["failed", "failed", "recorded"])
    second = publishing(unsafe, retry=Retry(2))
    rt.add(second)
    run = await rt.invoke(second, {"text": "a"})
    assert run.status == "waiting_for_human" and run.waits[0].kind == "retry" and unsafe.done == []
    run = await rt.approve(run.run_id)
    assert (run.status, unsafe.done) == ("completed", ["a"])


async def test_a_timeout_is_no_failure_but_an_unknown(house: House) -> None:
    """§6.5, §10.10: it may have happened."""
    world = Frozen()
    skill = publishing(world, timeout=0.01)
    rt = await house.process(skill)
    run = await rt.invoke(skill, {"text": "a"})
    assert run.status == "waiting_for_human" and run.waits[0].kind == "effect"
    assert await statuses(rt, run.run_id) == ["unknown"]


async def test_a_resumed_failure_never_repeats_a_recorded_effect(house: House) -> None:
    """X-06: the effect is done, what follows fails, a person resumes."""
    world, broken = World(), [True]

    @flow("late trouble")
    async def trouble(ctx: Context) -> str:
        receipt: str = await ctx.effect(world.upload, "a")
        if broken[0]:
            raise RuntimeError("later")
        return receipt

    rt = await house.process(trouble)
    run = await rt.invoke(trouble, {})
    assert run.status == "failed"
    broken[0] = False
    run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
    assert (run.status, run.result, world.done) == ("completed", "receipt 1", ["a"])


async def test_an_effect_before_two_waits_happens_once(house: House) -> None:
    """L-07."""
    world = World()

    @flow("two waits")
    async def two_waits(ctx: Context) -> str:
        receipt: str = await ctx.effect(world.upload, "a")
        await ctx.approve("one?")
        await ctx.approve("two?")
        return receipt

    rt = await house.process(two_waits)
    run = await rt.invoke(two_waits, {})
    run = await rt.approve(run.run_id)
    run = await rt.approve(run.run_id)
    assert (run.status, run.result, world.done) == ("completed", "receipt 1", ["a"])


async def test_the_key_differs_per_loop_visit_and_survives_a_crash(house: House) -> None:
    """T-40: the visit is part of the key, the attempt and the run's process are not."""
    world = World(crash_at=2)

    @flow("loop")
    async def loop(ctx: Context) -> int:
        total = 0
        for amount in (5, 5, 5):
            total += await ctx.effect(world.charge, amount, idempotent=True)
        return total

    run_id = await crashed(house, loop, {})
    rt = await house.process(loop)
    run = await rt.resume(run_id)
    assert (run.result, len(world.done)) == (15, 3)
    assert len(set(world.keys)) == 3 and len(world.keys) == 4


# -- nodes, the ledger, the log -------------------------------------------------------------------------


class Page(State):
    text: str
    receipt: str = ""


def declared(world: World, **options: Any) -> Graph[Page]:
    graph = Graph("declared", Page)

    @graph.node(start=True, side_effects="external_action", **options)
    async def publish(state: Page, ctx: Context) -> dict[str, Any]:
        return {"receipt": await world.upload(state.text)}

    return graph


async def test_a_node_that_declares_an_effect_is_one(house: House) -> None:
    """§6.1, T-44: on record before it runs, reused by a replay, and the source stays."""
    world = World()
    graph = declared(world)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {"text": "a"})
    assert (run.status, run.state.receipt, await statuses(rt, run.run_id)) == ("completed", "receipt 1", ["recorded"])
    told = await kinds(rt, run.run_id)
    assert told.index("side_effect.attempted") < told.index("side_effect.recorded") < told.index("run.completed")
    again = await rt.replay(run.run_id)
    assert (again.status, again.state.receipt, world.done) == ("completed", "receipt 1", ["a"])


async def test_a_crash_in_a_declared_node_asks(house: House) -> None:
    """T-76: taken over, it is not executed again."""
    world = World(crash_at=1)
    graph = declared(world)
    run_id = await crashed(house, graph, {"text": "a"})
    rt = await house.process(graph)
    run = await rt.resume(run_id)
    assert run.status == "waiting_for_human" and run.waits[0].kind == "effect" and world.done == ["a"]
    await rt.decide(run_id, "record_result", payload={"receipt": "by hand"}, actor="ada")
    run = await rt.resume(run_id)
    assert (run.status, run.state.receipt, world.done) == ("completed", "by hand", ["a"])


async def test_an_idempotent_node_goes_again(house: House) -> None:
    world = World(crash_at=1)
    graph = declared(world, idempotent=True)
    run_id = await crashed(house, graph, {"text": "a"})
    rt = await house.process(graph)
    run = await rt.resume(run_id)
    assert (run.status, world.done) == ("completed", ["a", "a"])


async def test_a_declared_node_may_wait_in_the_middle(house: House) -> None:
    world = World()
    graph = Graph("careful", Page)

    @graph.node(start=True, side_effects="external_action")
    async def publish(state: Page, ctx: Context) -> dict[str, Any]:
        await ctx.approve("Sure?")
        return {"receipt": await world.upload(state.text)}

    rt = await house.process(graph)
    run = await rt.invoke(graph, {"text": "a"})
    assert run.status == "waiting_for_human" and await statuses(rt, run.run_id) == ["blocked"]
    run = await rt.approve(run.run_id)
    assert (run.status, world.done, await statuses(rt, run.run_id)) == ("completed", ["a"], ["blocked", "recorded"])


@pytest.mark.parametrize("redo", ["node", "draft", None])
async def test_a_declared_node_that_is_sent_back_settles_each_attempt(house: House, redo: str | None) -> None:
    """§5.5, §6.4: a write whose node hands off and is done again: what rested is blocked, one attempt is recorded, none is left open."""
    world = World()
    graph = Graph("sent back", Page)

    @graph.node(start=True)
    async def draft(state: Page, ctx: Context) -> dict[str, Any]:
        return {"text": f"{state.text} {ctx.feedback or ''}".strip()}

    @graph.node(after="draft", side_effects="write")
    async def publish(state: Page, ctx: Context) -> dict[str, Any]:
        await ctx.handoff("Good?", redo=redo)
        return {"receipt": await world.upload(f"{state.text} / {ctx.feedback}")}

    rt = await house.process(graph)
    run = await rt.invoke(graph, {"text": "a"})
    house.kill(rt)
    rt = await house.process(graph)
    await rt.decide(run.run_id, "retry_feedback", feedback="more", actor="ada")
    run = await rt.resume(run.run_id)
    if redo is not None:
        await rt.decide(run.run_id, "continue", actor="ada")
        run = await rt.resume(run.run_id)
    assert (run.status, world.done) == ("completed", [{"node": "a / more", "draft": "a more / None", None: "a / None"}[redo]])
    effects = await rt.effects(run.run_id)
    assert [e.status.value for e in effects] == ["blocked"] * (1 if redo is None else 3) + ["recorded"]
    assert not any(e.open for e in effects) and all(e.settled_at is not None for e in effects)
    assert await rt.check(run.run_id) == []


class Log(State):
    n: int = 0
    recent: Annotated[list[int], window(50)]


def logging(rows: int, turns: int) -> Graph[Log]:
    graph = Graph("log", Log)

    @graph.node(start=True)
    async def turn(state: Log, ctx: Context) -> dict[str, Any]:
        for i in range(rows):
            ctx.record("log", f"{state.n}.{i}", {"n": state.n})
        return {"n": state.n + 1, "recent": [state.n]}

    graph.branch("turn", lambda s: "turn" if s.n < turns else None)
    return graph


@pytest.mark.parametrize("applied", [False, True])
async def test_ledger_rows_commit_with_the_checkpoint(house: House, applied: bool) -> None:
    """T-63: a crash at the commit of a step with three rows leaves three or none."""
    graph = logging(rows=3, turns=1)
    rt = await house.process(graph)
    commit = rt.store.commit

    async def crash(c: Any) -> Any:
        if not c.ledger:
            return await commit(c)
        if applied:
            await commit(c)
        raise Crash

    rt.store.commit = crash  # type: ignore[method-assign]
    with pytest.raises(Crash):
        await rt.invoke(graph, {})
    run_id = (await rt.runs())[0].run_id
    assert len(await rt.store.ledger(run_id)) == (3 if applied else 0)
    rt.store.commit = commit  # type: ignore[method-assign]
    house.kill(rt)
    other = await house.process(graph)
    await other.worker(until_idle=True)
    assert (await other.get(run_id)).status == "completed"
    assert [r.key for r in await other.store.ledger(run_id)] == ["0.0", "0.1", "0.2"]


async def test_a_bounded_channel_loses_nothing_in_the_ledger(house: House) -> None:
    """T-64: 200 messages, a window of 50, 200 rows."""
    graph = logging(rows=1, turns=200)
    rt = await house.process(graph)
    run = await rt.invoke(graph, {})
    assert list(run.state.recent) == list(range(150, 200))
    assert len(await rt.store.ledger(run.run_id)) == 200
