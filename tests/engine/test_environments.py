"""What an environment lets people do (§8.3): each option of a fork by its name, inherited approvals, and force."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.environments import INHERIT, OPTIONS, PRODUCTION, Environment
from holdfast.core.errors import AttemptMayLive, InvalidInput, LeaseLost, RestrictedOption, UsageError
from holdfast.core.policy import Policy, require_human
from holdfast.engine.desk.door import FIELDS
from tests.engine.outside import House
from tests.engine.test_effects import Frozen, frozen, publishing


@pytest.fixture(params=["memory", "sqlite"])
async def house(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[House]:
    h = House(request.param, tmp_path)
    yield h
    await h.close()


class Post(State):
    text: str
    done: str = ""


def post() -> Graph[Post]:
    graph = Graph("post", Post)

    @graph.node(start=True)
    async def ask(state: Post, ctx: Context) -> dict[str, Any]:
        said = await ctx.approve("Publish?", show=state.text)
        return {"done": f"approved by {said.actor}"}

    return graph


async def approved(rt: Runtime, graph: Graph[Post]) -> Any:
    run = await rt.invoke(graph, {"text": "a"})
    run = await rt.approve(run.run_id, actor="ada", payload={"edited": True})
    assert run.status == "completed"
    return run


LAX = Environment(name="lax", options=OPTIONS)
GIVEN: dict[str, tuple[Any, str, Any]] = {
    "tags": (["a", "b"], "tags", ["a", "b"]),
    "priority": (7, "priority", 7),
    "queue": ("slow", "queue", "slow"),
    "lane": ("side", "lane", "side"),
    "job_id": ("job-1", "job_id", "job-1"),
    "trace_id": ("trace-1", "trace_id", "trace-1"),
    "environment": ("staging", "environment", "staging"),
    "policy_snapshot_id": ("policy-1", "policy_snapshot_id", "policy-1"),
    "capabilities": ("caps-2", "capabilities", "caps-2"),
    "tenant_id": ("acme", "tenant_id", "acme"),
}


@pytest.mark.parametrize("option", GIVEN)
async def test_an_option_has_its_effect(house: House, option: str) -> None:
    """T-48, §7.7: each that is a field of the run, by its name."""
    value, field, expected = GIVEN[option]
    graph = post()
    rt = await house.process(graph, environment=LAX)
    source = await approved(rt, graph)
    run = await rt.fork(source.run_id, drive=False, **{option: value})
    made, was = await rt.record(run.run_id), await rt.record(source.run_id)
    assert (made | made["versions"])[field] == expected != (was | was["versions"])[field]


async def test_every_option_is_tried_somewhere() -> None:
    """None is there for show: those that are no plain field have a test of their own below, or in the tests of lineages."""
    own = {"unattended", "recovery", "at", "delay", "inherit_approvals", "set", "inputs", "reason", "effects", "upgrade", "key"}
    assert set(GIVEN) | {"unattended", "recovery"} == set(FIELDS)
    assert set(GIVEN) | own == OPTIONS


@pytest.mark.parametrize("option", sorted(OPTIONS))
async def test_an_option_that_is_not_listed_is_refused_by_name(house: House, option: str) -> None:
    """T-48: also the harmless ones, where a list is given."""
    graph = post()
    rt = await house.process(graph, environment=Environment(name="closed", options=frozenset()))
    source = await approved(rt, graph)
    with pytest.raises(RestrictedOption, match=f"closed does not allow the option '{option}'"):
        await rt.fork(source.run_id, **{option: True})


async def test_what_an_option_is_given_must_fit(house: House) -> None:
    graph = post()
    rt = await house.process(graph, environment=LAX)
    source = await approved(rt, graph)
    for option, value in [("priority", "high"), ("tags", "a"), ("recovery", "never"), ("unattended", "yes")]:
        with pytest.raises(InvalidInput, match=f"^{option}"):
            await rt.fork(source.run_id, **{option: value})


async def test_recovery_and_unattended_reach_the_fork(house: House) -> None:
    graph = post()
    rt = await house.process(graph, environment=LAX)
    source = await approved(rt, graph)
    run = await rt.fork(source.run_id, drive=False, recovery="hold", unattended=True)
    assert (run.record.recovery, run.record.unattended) == ("hold", True)


@pytest.mark.parametrize("option", ["at", "delay"])
async def test_a_fork_may_be_due_later(house: House, option: str) -> None:
    """§10.15: nobody drives it before its time; then a worker does."""
    graph = post()
    rt = await house.process(graph)
    source = await approved(rt, graph)
    when = dt.datetime.fromtimestamp(house.clock.now() / 1_000_000 + 60, dt.UTC)
    run = await rt.fork(source.run_id, **({"at": when} if option == "at" else {"delay": 60}))
    assert (run.status, run.not_before) == ("pending", when)
    await rt.worker(until_idle=True)
    assert (await rt.get(run.run_id)).status == "pending"
    house.clock.forward(61)
    await rt.worker(until_idle=True)
    assert (await rt.get(run.run_id)).status == "waiting_for_human"
    assert not {"at", "delay"} & set(PRODUCTION.options or ())


# -- approvals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fork", "replay"])
async def test_approvals_are_asked_again_by_default(house: House, how: str) -> None:
    """T-49."""
    graph = post()
    rt = await house.process(graph)
    source = await approved(rt, graph)
    run = await getattr(rt, how)(source.run_id)
    assert run.status == "waiting_for_human"


@pytest.mark.parametrize("how", ["fork", "replay"])
async def test_an_environment_may_inherit_them(house: House, how: str) -> None:
    """T-49, §5.8: the environment's policy says so; the decision is on record as asked, answered and inherited, payload and all."""
    graph = post()
    rt = await house.process(graph, environment=Environment(name="trusting", inherit_approvals=True))
    source = await approved(rt, graph)
    run = await getattr(rt, how)(source.run_id)
    assert (run.status, run.state.done) == ("completed", "approved by ada")
    told = await rt.events(run.run_id)
    [asked] = [e.payload["wait"] for e in told if e.type == "wait.requested"]
    [decided] = [e.payload["decision"] for e in told if e.type == "wait.decided"]
    assert asked["wait_id"] == decided["wait_id"] == f"{run.run_id}.1.ask.0"
    assert (decided["actor"], decided["payload"], decided["note"]) == ("ada", {"edited": True}, f"inherited from {source.run_id}.1.ask.0")
    again = await getattr(rt, how)(run.run_id)
    assert again.status == "completed", "from a run that inherited it itself"


async def test_a_fork_may_ask_for_it_where_that_is_listed(house: House) -> None:
    """T-48: by name; and ask anew where they are inherited."""
    graph = post()
    rt = await house.process(graph, environment=Environment(name="mine", options=frozenset({INHERIT})))
    source = await approved(rt, graph)
    assert (await rt.fork(source.run_id)).status == "waiting_for_human"
    assert (await rt.fork(source.run_id, inherit_approvals=True)).status == "completed"
    other = await house.process(graph, environment=Environment(name="trusting", inherit_approvals=True))
    assert (await other.fork(source.run_id, inherit_approvals=False)).status == "waiting_for_human"
    with pytest.raises(RestrictedOption, match="production does not allow the option 'inherit_approvals'"):
        await (await house.process(graph, environment="production")).fork(source.run_id, inherit_approvals=True)


async def test_what_was_shown_otherwise_is_asked_again(house: House) -> None:
    """§5.8: a decision covers what was shown."""
    graph = post()
    rt = await house.process(graph, environment=Environment(name="trusting", inherit_approvals=True))
    source = await approved(rt, graph)
    run = await rt.fork(source.run_id, inputs={"text": "b"})
    assert (run.status, run.waits[0].show) == ("waiting_for_human", "b")


async def test_another_policy_asks_again(house: House) -> None:
    """§5.8: a consent binds to its policy snapshot; also one that a policy itself had asked for."""
    graph: Graph[Post] = Graph("gated", Post)

    @graph.node(start=True, capabilities=("publish",))
    async def publish(state: Post) -> dict[str, Any]:
        return {"done": "yes"}

    place = Environment(name="trusting", inherit_approvals=True)
    one, two = (Policy(gate=lambda r: require_human("Publish?"), version=v) for v in ("1", "2"))
    rt = await house.process(graph, environment=place, policy=one)
    source = await rt.approve((await rt.invoke(graph, {"text": "a"})).run_id)
    assert source.status == "completed"
    assert (await rt.fork(source.run_id, from_step="publish")).status == "completed"
    other = await house.process(graph, environment=place, policy=two)
    assert (await other.fork(source.run_id, from_step="publish")).status == "waiting_for_human"


async def test_a_denial_is_nothing_to_inherit(house: House) -> None:
    graph = post()
    rt = await house.process(graph, environment=Environment(name="trusting", inherit_approvals=True))
    run = await rt.invoke(graph, {"text": "a"})
    run = await rt.deny(run.run_id, reason="no")
    assert (await rt.fork(run.run_id)).status == "waiting_for_human"


# -- force --------------------------------------------------------------------------------------------


async def test_force_is_on_record(house: House) -> None:
    """§6.5, X-04: refused in a sentence that says what may happen; forced, the decision says so."""
    world = Frozen()
    skill = publishing(world)
    _, drive, run_id = await frozen(house, skill, world)
    rt = await house.process(skill)
    await rt.resume(run_id)
    with pytest.raises(AttemptMayLive, match="could happen twice") as refused:
        await rt.decide(run_id, "reexecute", actor="ada")
    assert "--force" in refused.value.hint
    with pytest.raises(AttemptMayLive):
        await rt.decide(run_id, "reexecute", payload={"force": True}, actor="ada")
    await rt.decide(run_id, "reexecute", force=True, actor="ada")
    [decided] = [e for e in await rt.events(run_id) if e.type == "wait.decided"]
    assert decided.payload["decision"]["forced"] is True and decided.actor == "ada"
    run = await rt.resume(run_id)
    assert (run.status, world.done) == ("completed", ["a"])
    world.thaw.set()
    with pytest.raises(LeaseLost):
        await drive
    assert world.done == ["a", "a"], "what the force was warned of"


async def test_an_environment_without_force(house: House) -> None:
    """§8.3: neither for an effect that may happen twice nor for a policy; the way that needs no force stays open."""
    world = Frozen()
    skill = publishing(world)
    _, drive, run_id = await frozen(house, skill, world)
    rt = await house.process(skill, environment="production")
    await rt.resume(run_id)
    with pytest.raises(RestrictedOption, match="the environment production does not allow forcing an effect that may happen twice"):
        await rt.decide(run_id, "reexecute", force=True, actor="ada")
    await rt.decide(run_id, "abandon", actor="ada", resume=False)
    with pytest.raises(RestrictedOption, match="forcing a run past its policy"):
        await rt.resume(run_id, force=True)
    run = await rt.resume(run_id)
    assert (run.status, run.stop_reason) == ("failed", "effect_abandoned")
    world.thaw.set()
    with pytest.raises(LeaseLost):
        await drive


async def test_there_is_nothing_to_force_in_an_approval(house: House) -> None:
    graph = post()
    rt = await house.process(graph)
    run = await rt.invoke(graph, {"text": "a"})
    with pytest.raises(UsageError, match="nothing to force in approve"):
        await rt.decide(run.run_id, "approve", force=True)
    assert (await rt.get(run.run_id)).status == "waiting_for_human"
