"""Recorded calls of flows and nodes: what is done is not done again, and a record fits its call or says why (§4.12)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated, Any

import pytest

from holdfast import Context, Flow, Graph, Retry, Runtime, State, append, flow
from holdfast.core import events as ev
from holdfast.core.checkpoint import StepRecord
from holdfast.core.codec import open_row
from holdfast.core.errors import RunFailed, StepTimeout
from holdfast.core.status import Status
from tests.engine.support import World, says

ran: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


async def work(name: str) -> str:
    ran[name] += 1
    return name.upper()


async def one() -> int:
    ran["one"] += 1
    return 1


async def two() -> int:
    ran["two"] += 1
    return 2


def edited(before: Flow[[], Any], after: Flow[[], Any]) -> Flow[[], Any]:
    """The same skill with another body: what a deployment between crash and recovery does."""
    assert before.program.fingerprint == after.program.fingerprint, "bodies do not count (§3.2)"
    return after


# -- re-entry ---------------------------------------------------------------------------------------


async def test_recorded_results_are_returned_without_running() -> None:
    """§4.12, §5.12."""

    @flow("f")
    async def f(ctx: Context) -> list[Any]:
        first = await ctx.step(work, "a")
        moment, dice, unique = ctx.now(), ctx.random(), ctx.uuid()
        seen.append((moment, dice, unique))
        return [first, await ctx.step(work, "b"), await ctx.step(work, "c")]

    seen: list[Any] = []
    world = World()
    await world.crash(f, when=says(ev.StepCompleted, path="4"))
    run = await world.recovered(f)
    assert run.result == ["A", "B", "C"]
    assert ran == {"a": 1, "b": 1, "c": 1}
    assert len(seen) == 2 and seen[0] == seen[1], "time and dice are recorded"


async def test_the_clock_and_the_dice_are_on_record_by_name() -> None:
    """§4.12: what a resume of a run of an earlier release is held against: a call of another name there is no longer the same program."""

    @flow("f")
    async def f(ctx: Context) -> str:
        ctx.now(), ctx.random(), ctx.uuid()
        return await ctx.step(work, "a")

    world = World()
    async with world.runtime(f) as rt:
        run = await rt.invoke(f)
        found = [r for row in await world.store.rows(run.run_id) for r in open_row(row).results if isinstance(r, StepRecord)]
        assert [(r.path, r.kind, r.name) for r in sorted(found, key=lambda r: r.path)] == [
            ("0", "value", "now"), ("1", "value", "random"), ("2", "value", "uuid"), ("3", "step", "work"),
        ]


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_at_every_commit_repeats_only_what_was_not_durable(after: bool) -> None:
    @flow("f")
    async def f(ctx: Context) -> Any:
        a = await ctx.step(work, "a")
        many = await ctx.gather(ctx.step(work, "b"), ctx.gather(ctx.step(work, "c"), ctx.step(work, "d")))
        more = await ctx.map(work, ["e", "f"])
        index, first = await ctx.first_of(ctx.step(work, "g"))
        return [a, many, more, index, first]

    async with World().runtime(f) as rt:
        whole = await rt.run(f)
        commits = (await rt.runs())[0].version
    assert whole == ["A", ["B", ["C", "D"]], ["E", "F"], 0, "G"]
    for seq in range(6, commits + 1):
        ran.clear()
        world = World()
        await world.crash(f, when=lambda c, seq=seq: any(e.seq == seq for e in c.events), after=after)  # type: ignore[misc]
        if await world.ended():
            continue
        run = await world.recovered(f)
        assert run.result == whole
        assert set(ran) == set("abcdefg")
        assert sum(ran.values()) <= 7 + 3, f"a crash at event {seq} repeats at most what was in flight: {ran}"


async def test_recorded_failures_come_back_as_what_they_were() -> None:
    """§4.12: a caught failure leads the same way when the flow is entered again."""

    class Declined(Exception):
        pass

    async def charge() -> None:
        ran["charge"] += 1
        raise Declined("no money")

    @flow("f")
    async def f(ctx: Context) -> str:
        try:
            await ctx.step(charge)
        except Declined as e:
            caught.append(str(e))
        try:
            await ctx.gather(ctx.step(charge), ctx.step(work, "sibling"))
        except Declined as e:
            caught.append(str(e))
        return await ctx.step(work, "refund")

    caught: list[str] = []
    world = World()
    await world.crash(f, when=says(ev.StepCompleted, path="2"))
    run = await world.recovered(f)
    assert run.result == "REFUND"
    assert ran == {"charge": 2, "sibling": 1, "refund": 1}
    assert caught == ["no money"] * 4


@pytest.mark.parametrize("kind", [StepTimeout, TimeoutError])
async def test_a_timeout_is_typed_and_recorded(kind: type[Exception]) -> None:
    """§10.10: whoever writes ``except TimeoutError`` means it, and goes the same way when the record answers."""

    async def forever() -> None:
        ran["forever"] += 1
        await asyncio.Event().wait()

    @flow("f")
    async def f(ctx: Context) -> str:
        try:
            await ctx.step(forever, timeout=0.01)
        except kind as e:
            return await ctx.step(work, str(e))
        return "never"

    world = World()
    await world.crash(f, when=says(ev.StepCompleted, path="1"))
    assert (await world.recovered(f)).result.startswith("FOREVER TOOK LONGER THAN 0.01 S")
    assert ran["forever"] == 1 and len(ran) == 2


async def test_a_retry_of_timeouts_is_one_of_steps_that_took_too_long() -> None:
    """§10.9: ``on=`` names classes, and a step's timeout is a ``TimeoutError``."""

    async def slow_once() -> str:
        ran["slow"] += 1
        if ran["slow"] == 1:
            await asyncio.Event().wait()
        return "done"

    @flow("f")
    async def f(ctx: Context) -> str:
        return await ctx.step(slow_once, timeout=0.05, retry=Retry(max_attempts=2, base_us=1, on=(TimeoutError,)))

    async with Runtime("memory:", skills=[f]) as rt:
        run = await rt.invoke(f, {})
    assert run.result == "done" and ran["slow"] == 2


# -- differences ------------------------------------------------------------------------------------


async def _differs(before: Flow[[], Any], after: Flow[[], Any], *, path: str = "1") -> str:
    world = World()
    await world.crash(before, when=says(ev.StepCompleted, path=path))
    run = await world.recovered(edited(before, after))
    assert run.status is Status.FAILED and run.stop_reason == "record_mismatch", run
    assert run.error is not None and run.error.code == "record_mismatch"
    return str(run.error.message)


async def test_reordered_steps_are_a_difference_not_swapped_results() -> None:
    """L-12: two recorded steps reordered on re-entry. A typed error, not swapped results."""

    @flow("f")
    async def before(ctx: Context) -> Any:
        return [await ctx.step(one), await ctx.step(two), await ctx.step(work, "end")]

    @flow("f")
    async def after(ctx: Context) -> Any:
        second = await ctx.step(two)
        return [await ctx.step(one), second, await ctx.step(work, "end")]

    told = await _differs(before, after)
    assert told == "call 0 of f does not match its record: the record has 0 one, 1 two, but the code now calls two"
    assert ran == {"one": 1, "two": 1}


async def test_a_renamed_step_is_a_difference() -> None:
    @flow("f")
    async def before(ctx: Context) -> Any:
        return [await ctx.step(one), await ctx.step(one)]

    @flow("f")
    async def after(ctx: Context) -> Any:
        return [await ctx.step(one), await ctx.step(two)]

    assert "the record has 0 one, 1 one, but the code now calls one, two" in await _differs(before, after)


async def test_what_lies_within_other_calls_does_not_hide_the_difference() -> None:
    """A fan-out is one call at its level, however many items it has; of many calls those beside the place are named."""

    async def fan_out(ctx: Context) -> Any:
        async def item(n: int) -> Any:
            return await ctx.step(work, str(n))

        return await ctx.map(item, list(range(10)))

    @flow("f")
    async def before(ctx: Context) -> Any:
        return [[await ctx.step(one) for _ in range(9)], await fan_out(ctx), await ctx.step(two), await ctx.step(work, "end")]

    @flow("f")
    async def after(ctx: Context) -> Any:
        return [[await ctx.step(one) for _ in range(9)], await ctx.step(two), await fan_out(ctx), await ctx.step(work, "end")]

    assert await _differs(before, after, path="10") == (
        "call 9 of f does not match its record: the record has 6 one, 7 one, 8 one, 9 with calls of its own, 10 two, but the code now calls one, one, one, two"
    )


@pytest.mark.parametrize("path", ["0", "1"], ids=["one recorded", "both recorded"])
async def test_calls_of_one_function_are_told_apart_by_their_arguments(path: str) -> None:
    """L-12: the same function twice, its calls swapped."""

    @flow("f")
    async def before(ctx: Context) -> Any:
        return [await ctx.step(work, "a"), await ctx.step(work, "b"), await ctx.step(one)]

    @flow("f")
    async def after(ctx: Context) -> Any:
        b = await ctx.step(work, "b")
        return [await ctx.step(work, "a"), b, await ctx.step(one)]

    assert "with the arguments recorded at call" in await _differs(before, after, path=path)


async def test_a_scope_is_not_taken_for_a_call() -> None:
    @flow("f")
    async def before(ctx: Context) -> Any:
        return [await ctx.gather(ctx.step(one), ctx.step(two)), await ctx.step(work, "end")]

    @flow("f")
    async def after(ctx: Context) -> Any:
        return [await ctx.step(work, "end"), await ctx.gather(ctx.step(one), ctx.step(two))]

    await _differs(before, after)


async def test_other_arguments_of_plain_code_are_no_difference() -> None:
    """§5.12: plain code runs again; what it computes need not be the same."""

    @flow("f")
    async def f(ctx: Context) -> Any:
        turns.append(len(turns))
        return [await ctx.step(work, f"turn {len(turns)}"), await ctx.step(work, "end")]

    turns: list[int] = []
    world = World()
    await world.crash(f, when=says(ev.StepCompleted, path="1"))
    assert (await world.recovered(f)).result == ["TURN 1", "END"]


async def test_a_key_frees_a_call_from_its_position() -> None:
    """§4.12."""

    @flow("f")
    async def before(ctx: Context) -> Any:
        return [await ctx.step(work, "a", key="a"), await ctx.step(work, "b", key="b"), await ctx.step(one)]

    @flow("f")
    async def after(ctx: Context) -> Any:
        b = await ctx.step(work, "b", key="b")
        return [await ctx.step(work, "a", key="a"), b, await ctx.step(one)]

    world = World()
    await world.crash(before, when=says(ev.StepCompleted, path="=b"))
    assert (await world.recovered(edited(before, after))).result == ["A", "B", 1]
    assert ran == {"a": 1, "b": 1, "one": 1}


async def test_mended_code_goes_on_after_a_difference() -> None:
    @flow("f")
    async def good(ctx: Context) -> Any:
        return [await ctx.step(one), await ctx.step(two), await ctx.step(work, "end")]

    @flow("f")
    async def bad(ctx: Context) -> Any:
        return [await ctx.step(two), await ctx.step(one)]

    world = World()
    await world.crash(good, when=says(ev.StepCompleted, path="1"))
    failed = await world.recovered(edited(good, bad))
    async with world.runtime(good) as rt:
        run = await rt.resume(failed.run_id, acknowledge="record_mismatch")
    assert run.result == [1, 2, "END"]
    assert ran == {"one": 1, "two": 1, "end": 1}


# -- scopes -----------------------------------------------------------------------------------------


async def _code(f: Flow[[], Any]) -> str:
    async with Runtime("memory:", skills=[f]) as rt:
        with pytest.raises(RunFailed) as caught:
            await rt.run(f)
    return str(caught.value.run.error.code)  # type: ignore[attr-defined]


async def test_two_calls_of_one_scope_at_once_are_refused() -> None:
    """§4.12: concurrent_scope."""

    @flow("f")
    async def f(ctx: Context) -> Any:
        return await asyncio.gather(ctx.step(work, "a"), ctx.step(work, "b"))

    assert await _code(f) == "concurrent_scope"


async def test_a_call_that_outlives_its_node_writes_nothing() -> None:
    """What a node leaves running may not write into the records of the next step."""

    async def slow() -> None:
        await asyncio.sleep(0)

    left: list[asyncio.Task[None]] = []

    @flow("f")
    async def f(ctx: Context) -> Any:
        left.append(asyncio.create_task(ctx.step(slow)))
        await asyncio.sleep(0)

    assert await _code(f) == "concurrent_scope"
    assert isinstance((await asyncio.gather(*left, return_exceptions=True))[0], BaseException)


async def test_failures_in_gather_keep_the_records_of_their_siblings() -> None:
    """L-06: only the failed one runs again."""
    broken = {"c"}

    async def may(name: str) -> str:
        ran[name] += 1
        await asyncio.sleep(0)
        if name in broken:
            raise ValueError(name)
        return name

    @flow("f")
    async def f(ctx: Context) -> list[str]:
        return await ctx.gather(*(ctx.step(may, n) for n in "abcde"))

    async with World().runtime(f) as rt:
        with pytest.raises(RunFailed) as caught:
            await rt.run(f)
        broken.clear()
        run = await rt.resume(caught.value.run.run_id, acknowledge="step_failed")  # type: ignore[attr-defined]
    assert run.result == list("abcde")
    assert ran == {"a": 1, "b": 1, "c": 2, "d": 1, "e": 1}


async def test_map_begins_nothing_after_a_failure_and_goes_on_where_it_was() -> None:
    broken = {3}

    async def may(n: int) -> int:
        ran[str(n)] += 1
        if n in broken:
            raise ValueError(n)
        return n

    @flow("f")
    async def f(ctx: Context) -> list[int]:
        return await ctx.map(may, range(100), concurrency=2)

    async with World().runtime(f) as rt:
        failed = await rt.invoke(f)
        assert failed.status is Status.FAILED
        assert len(ran) < 10
        broken.clear()
        run = await rt.resume(failed.run_id, acknowledge="step_failed")
    assert run.result == list(range(100))
    assert max(ran.values()) == 2 and ran["3"] == 2


async def test_waits_inside_gather_are_asked_at_once_and_keep_their_places() -> None:
    """§5.2: a wait is committed when its task reaches it; finished siblings stay finished."""

    @flow("f")
    async def f(ctx: Context) -> Any:
        async def branch(name: str) -> Any:
            await ctx.step(work, name)
            decision = await ctx.approve(f"Publish {name}?")
            return [name, decision.actor, await ctx.step(work, f"{name} after")]

        return await ctx.gather(branch("a"), branch("b"))

    async with World().runtime(f) as rt:
        run = await rt.invoke(f)
        assert [w.prompt for w in run.waits] == ["Publish a?", "Publish b?"]
        second = await rt.approve(run.run_id, wait_id=run.waits[1].wait_id, actor="ada")
        assert second.status is Status.WAITING_FOR_HUMAN and len(second.waits) == 1
        done = await rt.approve(run.run_id, actor="bob")
    assert done.result == [["a", "bob", "A AFTER"], ["b", "ada", "B AFTER"]]
    assert set(ran.values()) == {1}


async def test_the_first_of_several_is_recorded_and_the_others_waits_are_closed() -> None:
    @flow("f")
    async def f(ctx: Context) -> Any:
        index, value = await ctx.first_of(ctx.approve("Really?"), ctx.step(work, "quick"))
        return [index, value, await ctx.step(work, "after")]

    world = World()
    await world.crash(f, when=says(ev.StepCompleted, path="1"))
    run = await world.recovered(f)
    assert run.result == [1, "QUICK", "AFTER"]
    assert run.waits == ()
    assert ran == {"quick": 1, "after": 1}


async def test_the_first_of_several_may_fail_and_fails_the_same_way_again() -> None:
    async def fails() -> None:
        ran["fails"] += 1
        raise KeyError("x")

    @flow("f")
    async def f(ctx: Context) -> Any:
        try:
            await ctx.first_of(ctx.approve("Really?"), ctx.step(fails))
        except KeyError:
            return await ctx.step(work, "after")

    world = World()
    await world.crash(f, when=says(ev.StepCompleted, path="1"))
    assert (await world.recovered(f)).result == "AFTER"
    assert ran == {"fails": 1, "after": 1}


async def test_a_failure_beside_a_wait_can_be_caught() -> None:
    """The wait of a scope that failed is closed; it is no suspension that the node swallowed."""

    async def fails() -> None:
        raise ValueError("no")

    @flow("f")
    async def f(ctx: Context) -> str:
        try:
            await ctx.gather(ctx.approve("Really?"), ctx.step(fails))
        except ValueError:
            return await ctx.step(work, "plan b")
        return "never"

    async with World().runtime(f) as rt:
        run = await rt.invoke(f)
    assert run.result == "PLAN B" and run.waits == ()


# -- retries ----------------------------------------------------------------------------------------


async def test_three_means_three_across_crashes() -> None:
    """L-17, §10.9: the retry budget of a step survives restarts."""

    async def fails() -> None:
        ran["fails"] += 1
        raise ConnectionError("down")

    @flow("f")
    async def f(ctx: Context) -> None:
        await ctx.step(fails, retry=3)

    world = World()
    rid = await world.crash(f, when=says(ev.StepRetryScheduled, attempt=1))
    await world.crash(f, when=says(ev.StepRetryScheduled, attempt=2), resume=rid)
    run = await world.recovered(f)
    assert run.status is Status.FAILED and run.error is not None and run.error.type == "ConnectionError"
    assert ran["fails"] == 3


async def test_three_means_three_beside_others() -> None:
    """L-17: in a step of several tasks, the last failure and the run's end are one commit: no crash leaves the one without the
    other, and what the others finished is not run again."""

    class Several(State):
        out: Annotated[list[str], append]

    g = Graph("g", Several)

    @g.node(start=True)
    async def fine(state: Several) -> dict[str, Any]:
        ran["fine"] += 1
        return {"out": ["fine"]}

    @g.node(start=True, retry=Retry(3))
    async def down(state: Several) -> dict[str, Any]:
        ran["down"] += 1
        raise ConnectionError("down")

    world = World()
    rid = await world.crash(g, when=says(ev.StepFailed))
    async with world.runtime(g) as rt:
        await rt.recover()
        run = await rt.get(rid)
    assert (run.status, run.error and run.error.type) == (Status.FAILED, "ConnectionError")
    assert ran == {"fine": 1, "down": 3}
    rows = [[e.type for e in open_row(row).events] for row in await world.store.rows(rid)]
    assert [row for row in rows if "step.failed" in row] == [["attempt.started", "step.failed", "run.failed", "checkpoint.saved"]]


async def test_a_node_s_retry_tries_its_failed_calls_again_and_keeps_the_others() -> None:
    class S(State):
        out: str = ""

    g = Graph("g", S)

    async def flaky() -> str:
        ran["flaky"] += 1
        if ran["flaky"] < 3:
            raise ConnectionError("down")
        return "up"

    @g.node(start=True, retry=Retry(3))
    async def node(state: S, ctx: Context) -> dict[str, Any]:
        await ctx.step(work, "before")
        return {"out": await ctx.step(flaky)}

    async with World().runtime(g) as rt:
        run = await rt.invoke(g, {})
    assert run.state.out == "up"
    assert ran == {"before": 1, "flaky": 3}


# -- restart ----------------------------------------------------------------------------------------


async def test_a_long_flow_begins_afresh_under_the_same_lineage() -> None:
    """§4.12: ``ctx.restart``: other inputs, an empty record, the same run."""

    @flow("f")
    async def f(ctx: Context, left: int, note: str = "none") -> str:
        assert left >= 0
        await ctx.step(work, f"turn {left}")
        if left:
            ctx.restart(left=left - 1)
        return note

    async with World().runtime(f) as rt:
        run = await rt.invoke(f, {"left": 3, "note": "given"})
        seen = await rt.checkpoints(run.run_id)
    assert run.result == "none", "what is not given again takes its default"
    assert ran == {f"turn {n}": 1 for n in range(4)}
    assert run.lineage_root == run.run_id
    assert [c.values["left"] for c in seen if c.step < 4] == [3, 2, 1, 0]


async def test_a_crash_after_a_restart_goes_on_in_the_new_turn() -> None:
    @flow("f")
    async def f(ctx: Context, left: int) -> int:
        await ctx.step(work, "a")
        await ctx.step(work, "b")
        if left:
            ctx.restart(left=left - 1)
        return left

    world = World()
    await world.crash(f, {"left": 1}, when=says(ev.StepCompleted, step=2, path="0"))
    run = await world.recovered(f)
    assert run.result == 0
    assert ran == {"a": 2, "b": 2}


async def test_a_restart_is_typed() -> None:
    @flow("f")
    async def wrong(ctx: Context, left: int) -> None:
        ctx.restart(lef=1)

    @flow("g")
    async def swallowed(ctx: Context) -> None:
        try:
            ctx.restart()
        except BaseException as e:
            ran[type(e).__name__] += 1

    async with Runtime("memory:", skills=[wrong, swallowed]) as rt:
        run = await rt.invoke(wrong, {"left": 1})
        assert run.stop_reason == "invalid_input" and run.error is not None and "lef" in run.error.message
        assert (await rt.invoke(swallowed)).stop_reason == "suspension_swallowed"


async def test_a_restart_is_for_flows() -> None:
    g = Graph("g")

    @g.node(start=True)
    async def node(state: State, ctx: Context) -> None:
        ctx.restart()

    async with Runtime("memory:", skills=[g]) as rt:
        assert (await rt.invoke(g)).stop_reason == "restart_outside_flow"


async def test_a_crash_in_a_tool_does_not_ask_the_model_again() -> None:
    """T-59: the model's counter stays 1 after a kill during the tool."""
    g = Graph("agent")

    @g.node(start=True)
    async def turn(state: State, ctx: Context) -> None:
        plan = await ctx.step(work, "model")
        await ctx.step(work, f"tool for {plan}")

    world = World()
    await world.crash(g, when=says(ev.StepCompleted, path="1"), after=False)
    assert (await world.recovered(g)).status is Status.COMPLETED
    assert ran == {"model": 1, "tool for MODEL": 2}


async def test_the_effect_of_an_error_handler_happens_once() -> None:
    """L-15: an error handler and a failing sibling, then resume."""
    broken = {"flaky", "sibling"}

    async def may(name: str) -> str:
        ran[name] += 1
        if name in broken:
            raise ConnectionError(name)
        return name

    @flow("f")
    async def f(ctx: Context) -> Any:
        async def handled() -> str:
            try:
                return await ctx.step(may, "flaky")
            except ConnectionError:
                await ctx.effect(work, "handler")
                return await ctx.step(work, "after")

        return await ctx.gather(handled(), ctx.step(may, "sibling"))

    async with World().runtime(f) as rt:
        failed = await rt.invoke(f)
        assert failed.status is Status.FAILED
        broken.clear()
        run = await rt.resume(failed.run_id, acknowledge="step_failed")
    assert run.result == ["AFTER", "sibling"], "what was handled stays handled"
    assert ran == {"flaky": 1, "handler": 1, "after": 1, "sibling": 2}
