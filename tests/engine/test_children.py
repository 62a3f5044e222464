"""Children that begin again: what one of them has done is not done again, by whomever its parent is gone on with (§3.5, §4.14, §6.6, §7.1, §7.6)."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State, flow
from holdfast.core import events as ev
from holdfast.core.commit import DedupClaim
from holdfast.core.errors import ChildFailed, LeaseLost, RequestConflict, StoreUnavailable
from holdfast.engine.drive.conductor import Children
from holdfast.stores import MemoryStore, SqliteStore
from tests.core.build import folded
from tests.engine.support import FakeClock

acts: list[str] = []
works: dict[str, bool] = {}


@pytest.fixture(autouse=True)
def outside() -> None:
    acts.clear()
    works.clear()


def act(what: str) -> int:
    acts.append(what)
    return len(acts)


async def deliver(payload: Any, key: str) -> None:
    acts.append(f"sent {payload['to']}")


@flow("kid", version="1")
async def kid(ctx: Context, how: str = "") -> str:
    await ctx.effect(act, "charge", side_effects="external_action")
    ctx.send("mail", {"to": "bob"})
    await ctx.step(str)
    if how == "asks":
        await ctx.approve("go on?")
    if how == "fails" and not works.get("kid"):
        raise ValueError("the service is down")
    return f"{how} done"


@flow("parent", version="1")
async def parent(ctx: Context, how: str = "", caught: bool = False) -> str:
    try:
        return str(await ctx.child(kid, {"how": how}))
    except ChildFailed:
        if not caught:
            raise
        return "the child failed"


class Tally(State):
    n: int = 0


def graph_kid() -> Graph[Tally]:
    graph = Graph("counting", Tally, version="1")

    @graph.node(start=True)
    async def count(state: Tally, ctx: Context) -> dict[str, Any]:
        if not works.get("kid"):
            raise ValueError("the service is down")
        return {"n": state.n + 1}

    return graph


async def everything(rt: Runtime) -> None:
    """Drives and sends whatever there is to drive and to send."""
    await rt.worker(until_idle=True)
    await rt.dispatch(until_idle=True)


@pytest.mark.parametrize("how", ["", "asks", "fails"])
@pytest.mark.parametrize("verb", ["replay", "fork", "fork from the start", "fork of a fork"])
async def test_what_a_child_did_is_not_done_again_by_its_parents_lineage(how: str, verb: str, tmp_path: Path) -> None:
    """§6.6, §7.6, §7.8: neither its acts nor what it has sent."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[kid, parent], transports={"mail": deliver}) as rt:
        run = await rt.invoke(parent, {"how": how, "caught": True})
        await everything(rt)
        before = list(acts)
        assert before.count("charge") == 1, "it does something"
        first = (await rt.checkpoints(run.run_id))[0].checkpoint_id
        if verb == "replay":
            again = await rt.replay(run.run_id)
        elif verb == "fork from the start":
            again = await rt.fork(run.run_id, from_checkpoint=first)
        else:
            again = await rt.fork(run.run_id)
        if verb == "fork of a fork":
            again = await rt.fork(again.run_id, from_checkpoint=(await rt.checkpoints(again.run_id))[0].checkpoint_id)
        await everything(rt)
        assert acts == before
        assert (await rt.get(again.run_id)).status == run.status
        assert list(await rt.check()) == []


async def test_a_fork_with_another_input_acts_anew(tmp_path: Path) -> None:
    """§7.7: what is done with other arguments is another act."""

    @flow("other", version="1")
    async def other(ctx: Context, what: str = "a") -> int:
        return int(await ctx.effect(act, what, side_effects="external_action"))

    @flow("above", version="1")
    async def above(ctx: Context, what: str = "a") -> int:
        return int(await ctx.child(other, {"what": what}))

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[other, above]) as rt:
        run = await rt.invoke(above, {"what": "a"})
        await rt.fork(run.run_id, inputs={"what": "b"})
        await everything(rt)
        assert acts == ["a", "b"]


@pytest.mark.parametrize("resumed", ["the parent alone", "the child first"])
async def test_a_parent_that_failed_by_its_child_goes_on(resumed: str, tmp_path: Path) -> None:
    """§7.1, §4.7: a failed task has no result. The child's acts are not repeated, and one that has completed meanwhile is taken as it ended."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[kid, parent], transports={"mail": deliver}) as rt:
        run = await rt.invoke(parent, {"how": "fails"})
        assert (run.status, run.stop_reason) == ("failed", "child_failed")
        if resumed == "the child first":
            works["kid"] = True
            child = (await rt.runs(skill_id="kid"))[0]
            assert (await rt.resume(child.run_id, acknowledge=child.stop_reason)).result == "fails done"
        else:
            again = await rt.resume(run.run_id, acknowledge="child_failed")
            assert (again.status, again.stop_reason) == ("failed", "child_failed"), "its cause is still there"
            works["kid"] = True
        done = await rt.resume(run.run_id, acknowledge="child_failed")
        assert (done.status, done.result) == ("completed", "fails done")
        await everything(rt)
        assert acts == ["charge", "sent bob"]
        assert len(await rt.runs(skill_id="kid")) == (1 if resumed == "the child first" else 3)
        assert list(await rt.check()) == []


async def test_a_parent_waits_for_its_child_that_goes_on_already(tmp_path: Path) -> None:
    """A child that was resumed before its parent, and rests, is waited for: no second one begins, and its second end is told."""

    @flow("late", version="1")
    async def late(ctx: Context) -> str:
        if not works.get("kid"):
            raise ValueError("not yet")
        return str(await ctx.ask("Which?", str))

    @flow("above", version="1")
    async def above(ctx: Context) -> str:
        return str(await ctx.child(late))

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[late, above]) as rt:
        run = await rt.invoke(above)
        works["kid"] = True
        child = (await rt.runs(skill_id="late"))[0]
        assert (await rt.resume(child.run_id, acknowledge=child.stop_reason)).status == "waiting_for_human"
        waiting = await rt.resume(run.run_id, acknowledge=run.stop_reason)
        assert [w.name for w in waiting.waits] == [child.run_id]
        await rt.decide(child.run_id, "answer", payload="this")
        await everything(rt)
        assert (await rt.get(run.run_id)).result == "this"
        assert len(await rt.runs(skill_id="late")) == 1


@pytest.mark.parametrize("ended", [True, False], ids=["completed", "live"])
async def test_a_child_with_another_input_is_another_child(ended: bool, tmp_path: Path) -> None:
    """What a resumed parent asks of its child now is not answered by what it had asked before."""
    given = ["first", "second"]

    @flow("echoes", version="1")
    async def echoes(ctx: Context, what: str) -> str:
        if not works.get("kid"):
            raise ValueError("not yet")
        return what if ended or what == "second" else str(await ctx.ask("What?", str))

    @flow("above", version="1")
    async def above(ctx: Context) -> str:
        return str(await ctx.child(echoes, {"what": given[0]}))

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[echoes, above]) as rt:
        run = await rt.invoke(above)
        works["kid"] = True
        child = (await rt.runs(skill_id="echoes"))[0]
        await rt.resume(child.run_id, acknowledge=child.stop_reason)
        given.pop(0)
        assert (await rt.resume(run.run_id, acknowledge=run.stop_reason)).result == "second"


async def test_the_state_of_a_graph_that_completed_meanwhile_is_taken(tmp_path: Path) -> None:
    counting = graph_kid()

    @flow("above", version="1")
    async def above(ctx: Context) -> int:
        return int((await ctx.child(counting, {"n": 4})).n)

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[counting, above]) as rt:
        run = await rt.invoke(above)
        works["kid"] = True
        child = (await rt.runs(skill_id="counting"))[0]
        await rt.resume(child.run_id, acknowledge=child.stop_reason)
        assert (await rt.resume(run.run_id, acknowledge=run.stop_reason)).result == 5


async def test_a_failure_that_the_code_went_on_from_stays(tmp_path: Path) -> None:
    """What was caught is found again, for the code went on from it: the calls behind it are at the same places."""

    @flow("above", version="1")
    async def above(ctx: Context) -> str:
        try:
            await ctx.child(kid, {"how": "fails"})
        except ChildFailed:
            await ctx.step(act, "apologise")
        if not works.get("kid"):
            raise ValueError("something else")
        return "done"

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[kid, above], transports={"mail": deliver}) as rt:
        run = await rt.invoke(above)
        works["kid"] = True
        assert (await rt.resume(run.run_id, acknowledge=run.stop_reason)).result == "done"
        assert acts == ["charge", "apologise"] and len(await rt.runs(skill_id="kid")) == 1


async def test_a_cancelled_parent_begins_its_child_again_and_nothing_twice(tmp_path: Path) -> None:
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[kid, parent], transports={"mail": deliver}) as rt:
        run = await rt.invoke(parent, {"how": "asks"})
        await rt.cancel(run.run_id)
        await everything(rt)
        assert [r.status for r in await rt.runs(skill_id="kid")] == ["canceled"]
        await rt.resume(run.run_id)
        await everything(rt)
        assert acts == ["charge"]
        assert sorted(r.status for r in await rt.runs(skill_id="kid")) == ["canceled", "waiting_for_human"]


# -- keys -------------------------------------------------------------------------------------------


@flow("keyed", version="1")
async def keyed(ctx: Context, how: str = "") -> str:
    return str(await ctx.child(kid, {"how": how}, key="order-7"))


async def test_a_key_finds_the_run_that_completed_under_it(tmp_path: Path) -> None:
    """§3.5: whoever started it; with another input it is a conflict, which fails the step."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[kid, keyed], transports={"mail": deliver}) as rt:
        for _ in range(2):
            run = await rt.invoke(keyed)
            assert (run.status, run.result) == ("completed", " done")
        await everything(rt)
        assert acts == ["charge", "sent bob"] and len(await rt.runs(skill_id="kid")) == 1
        other = await rt.invoke(keyed, {"how": "other"})
        assert (other.status, other.stop_reason) == ("failed", "request_conflict")
        fork = await rt.fork(run.run_id)
        await everything(rt)
        assert (await rt.get(fork.run_id)).status == "completed" and acts == ["charge", "sent bob"]
        assert list(await rt.check()) == []


async def test_a_key_of_a_run_that_goes_on_elsewhere_fails_the_step(tmp_path: Path) -> None:
    """Its end would be told to its own parent alone. Nobody is left running for ever."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[kid, keyed]) as rt:
        first = await rt.invoke(keyed, {"how": "asks"})
        second = await rt.invoke(keyed, {"how": "asks"})
        assert (second.status, second.stop_reason) == ("failed", "request_conflict") and "waiting_for_human" in second.error.message  # type: ignore[union-attr]
        await rt.decide((await rt.runs(skill_id="kid"))[0].run_id, "approve")
        await everything(rt)
        assert (await rt.get(first.run_id)).result == "asks done"
        assert (await rt.resume(second.run_id, acknowledge="request_conflict")).result == "asks done"


async def test_two_calls_of_one_parent_under_one_key_have_one_child(tmp_path: Path) -> None:
    """Both are told its end."""

    @flow("many", version="1")
    async def many(ctx: Context) -> list[str]:
        async def one(n: int) -> str:
            return str(await ctx.child(kid, {"how": "asks"}, key="order-7"))

        return list(await ctx.gather(one(0), one(1)))

    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[kid, many]) as rt:
        run = await rt.invoke(many)
        assert run.status == "waiting_for_signal" and len(await rt.runs(skill_id="kid")) == 1
        await rt.decide((await rt.runs(skill_id="kid"))[0].run_id, "approve")
        await everything(rt)
        assert list((await rt.get(run.run_id)).result) == ["asks done"] * 2


@pytest.mark.parametrize("verb", ["fork", "replay", "resume"])
async def test_a_parent_with_a_keyed_child_can_be_gone_on_with(verb: str, tmp_path: Path) -> None:
    """The key of its own child, or of its source's, is no other's."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[kid, keyed], transports={"mail": deliver}) as rt:
        run = await rt.invoke(keyed, {"how": "asks"})
        await everything(rt)
        if verb == "resume":
            await rt.cancel(run.run_id)
            await everything(rt)
        again = await (rt.fork(run.run_id) if verb == "fork" else rt.replay(run.run_id) if verb == "replay" else rt.resume(run.run_id))
        await everything(rt)
        assert (await rt.get(again.run_id)).status == "waiting_for_signal"
        assert acts == ["charge"] and len(await rt.runs(skill_id="kid")) == 2


# -- driven in place --------------------------------------------------------------------------------


@flow("naps", version="1")
async def naps(ctx: Context, seconds: float = 0.0) -> str:
    if seconds:
        await ctx.sleep(seconds)
    else:
        await ctx.approve("ok?")
    return f"slept {seconds}"


@flow("two", version="1")
async def two(ctx: Context) -> Any:
    return await ctx.gather(ctx.child(naps), ctx.child(naps, {"seconds": 60}))


@flow("first", version="1")
async def first(ctx: Context) -> Any:
    return await ctx.first_of(ctx.child(naps), ctx.sleep(60))


@flow("bounded", version="1")
async def bounded(ctx: Context, seconds: float = 0.0) -> Any:
    return await ctx.child(naps, {"seconds": seconds}, timeout=60, on_timeout="deliver")


@pytest.mark.parametrize(
    ("skill", "given", "ends"),
    [(two, {}, "waiting_for_signal"), (first, {}, "completed"), (bounded, {}, "completed"), (bounded, {"seconds": 3600}, "completed")],
)
async def test_a_parent_that_is_due_goes_on_beside_its_children(skill: Any, given: dict[str, Any], ends: str, tmp_path: Path) -> None:
    """§4.16, §4.18: ``invoke`` waits for none of its children longer than the parent does."""
    async with Runtime(f"sqlite:///{tmp_path}/runs.db", skills=[naps, skill], clock=FakeClock()) as rt:
        run = await asyncio.wait_for(rt.invoke(skill, given), 20)
        assert (run.status, run.result if skill is bounded else None) == (ends, None)


class Blind(SqliteStore):
    """A store in which nobody finds a key, as where another takes it a moment after one has looked."""

    async def find_claim(self, kind: str, scope: str, key: str) -> DedupClaim | None:
        return None


async def test_a_key_that_another_takes_in_that_moment_fails_the_step(tmp_path: Path) -> None:
    """Nothing is written then, and the run of the one that was late goes on."""

    @flow("late", version="1")
    async def late(ctx: Context) -> str:
        try:
            return str(await ctx.child(kid, {"how": ""}, key="order-7"))
        except RequestConflict as e:
            return e.code

    async with Runtime(Blind(tmp_path / "runs.db"), skills=[kid, late], transports={"mail": deliver}) as rt:
        assert [(await rt.invoke(late)).result for _ in range(2)] == [" done", "request_conflict"]
        assert acts.count("charge") == 1 and list(await rt.check()) == []


class Nobody:
    """Drivers that drive nothing."""

    def drain_one(self, run_id: str) -> bool:
        return False


@pytest.mark.parametrize(("error", "told"), [(ValueError("a mistake"), True), (LeaseLost("it has another owner"), False)], ids=["a mistake", "of the run"])
async def test_what_ends_the_driving_of_a_child_that_nobody_waits_for(error: Exception, told: bool) -> None:
    """A mistake is not lost; what is wrong with the child's own run is told by whoever looks at that."""

    async def drive(run_id: str, *, stop: asyncio.Event) -> None:
        raise error

    children = Children(Nobody(), drive)  # type: ignore[arg-type]
    children.drive(folded(ev.RunStarted()))
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="a mistake") if told else contextlib.nullcontext():
        await children.rest()


class Away(MemoryStore):
    """A store that once does not answer a verb, when told to."""

    fails = ""

    async def get(self, run_id: str) -> Any:
        self._look("get")
        return await super().get(run_id)

    async def find_claim(self, kind: str, scope: str, key: str) -> Any:
        self._look("find_claim")
        return await super().find_claim(kind, scope, key)

    def _look(self, verb: str) -> None:
        if self.fails == verb:
            self.fails = ""
            raise StoreUnavailable("no answer")


@pytest.mark.parametrize("verb", ["get", "find_claim"])
async def test_a_store_that_is_away_for_a_moment_fails_no_step_that_looks_for_a_child(verb: str) -> None:
    """§1.12: what the store does to a call is no outcome of the step: the run is left as it is, and goes on."""
    store = Away()

    @flow("small")
    async def small(ctx: Context) -> str:
        return "done"

    @flow("large")
    async def large(ctx: Context) -> str:
        store.fails = "" if entered else verb
        entered.append(verb)
        return await ctx.child(small, {}, key="kept")

    entered: list[str] = []
    async with Runtime(store, skills=[small, large]) as rt:
        await rt.submit(small, {}, key="kept")
        await rt.worker(until_idle=True)
        with pytest.raises(StoreUnavailable):
            await rt.invoke(large, {})
        (left,) = await rt.runs(skill_id="large")
        assert left.status == "running"
        assert (await rt.resume(left.run_id)).result == "done"
