"""The review that ends some kinds of work: what it covers, and who does what again (§5.16)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import canon, reviews, superstep
from holdfast.core.checkpoint import TaskResult, note_end
from holdfast.core.errors import InvalidGraph
from holdfast.core.graph import Goto
from holdfast.core.waits import WaitKind
from tests.core.build import World, folded, node, program, raw, submitted

NOW = 5_000_000


def line(**more: Any) -> World:
    """gather, plan, then publish, which delivers."""
    prog = program(node("gather", start=True), node("plan", after=["gather"]), node("publish", after=["plan"], delivers=True), kind="planning", **more)
    return World(prog)


def asked(world: World, **more: Any) -> Any:
    given: dict[str, Any] = {"round": 0, "now": NOW, "snapshot": "p1"}
    return reviews.wait(world.program, folded(), world.head, **{**given, **more})


def test_a_review_covers_the_checkpoint_it_is_about() -> None:
    """§5.8: step, question, checkpoint and policy are in its digest; each asking has an id of its own."""
    world = line().drive()
    one = asked(world)
    assert one.kind is WaitKind.REVIEW and one.available_actions == ("approve", "continue", "retry_feedback", "halt")
    assert one.wait_id == f"{submitted().run_id}.{world.head.step + 1}.@review.0" and one.step == world.head.step + 1
    assert (one.task, one.path) == reviews.AT and one.prompt == "Is the planning of g good?"
    assert one.deadline == NOW + 7 * 24 * 3600 * 1_000_000 and one.requested_at == NOW and one.verdict == ""
    assert one.redo == "plan" and one.policy_snapshot_id == "p1"
    again = asked(world, round=1, verdict="rejected")
    assert again.wait_id == f"{one.wait_id}/!1" and again.round == 1 and again.verdict == "rejected"
    world.live[-1] = replace(world.head, hash=b"other")
    assert len({one.digest, asked(world).digest, asked(world, snapshot="p2").digest, asked(world, snapshot=None).digest}) == 4
    step = f"{submitted().run_id}.{world.head.step + 1}.@review"
    assert asked(world, snapshot=None).digest == canon.digest([step, one.prompt, world.head.hash.hex(), ""])
    kindless = World(program(node("a", start=True))).drive()
    assert asked(kindless).prompt == "Is g done?"


def test_the_makers_of_what_is_delivered_do_it_again() -> None:
    """§5.5: publishing is not what a reviewer wants changed."""
    world = line().drive()
    assert reviews.redone(world.program, world.head) == ("plan",)


def test_without_a_delivery_the_last_do_it_again() -> None:
    prog = program(node("a", start=True), node("b", after=["a"]), node("c", after=["a"]), kind="planning")
    world = World(prog).drive()
    assert reviews.redone(prog, world.head) == ("b", "c") and asked(world).redo == "b,c"


def test_a_node_that_named_its_successor_ran_too() -> None:
    """A Goto leaves no end of its own as news; what the node took tells that it ran."""
    prog = program(node("a", start=True), node("b", after=["a"]))
    assert reviews.redone(prog, World(prog, b=lambda s: Goto("@end")).drive().head) == ("b",)


def test_what_was_skipped_did_not_run() -> None:
    prog = program(node("a", start=True), node("b", after=["a"], when=lambda s: False), node("c", after=["a"]))
    assert reviews.redone(prog, World(prog).drive().head) == ("c",)


def test_a_delivery_that_was_rejected_is_still_pending() -> None:
    world = line()
    world.step()
    world.step()
    assert [t.node for t in world.head.pending] == ["publish"]
    assert reviews.redone(world.program, world.head) == ("plan",)


def test_a_delivery_by_data_has_no_maker_but_itself() -> None:
    prog = program(node("out", on=["text"], delivers=True), channels={"text": superstep.last})
    assert reviews.redone(prog, World(prog, {"text": "x"}).drive().head) == ("out",)


def test_who_delivers_makes_nothing() -> None:
    """Neither another that delivers, nor whatever else it listens to, is who made the product."""
    prog = program(node("announce", start=True, delivers=True), node("publish", after=["announce"], delivers=True))
    assert reviews.redone(prog, World(prog).drive().head) == ("publish",)
    prog = program(node("t", start=True), node("out", start=True, after=["t"], delivers=True))
    assert reviews.redone(prog, World(prog).drive().head) == ("t",)
    prog = program(node("x", start=True), node("out", start=True, after=["x"], delivers=True), node("t", after=["x"], when=lambda s: False))
    assert reviews.redone(prog, World(prog).drive().head) == ("x",)


def test_where_nothing_ran_the_first_node_begins() -> None:
    prog = program(node("a", on=["text"]), node("b", after=["a"]), channels={"text": superstep.last})
    assert reviews.redone(prog, World(prog).head) == ("a",)


def test_a_graph_may_say_who_does_it_again() -> None:
    world = line(redo="gather").drive()
    assert reviews.redone(world.program, world.head) == ("gather",)
    with pytest.raises(InvalidGraph, match="redo names 'gathr', which is not a node .did you mean 'gather'"):
        line(redo="gathr")


def test_one_more_round_is_a_barrier_without_tasks() -> None:
    """T-28: the feedback reaches the task that is redone, what comes after it follows by its edges."""
    seen: list[Any] = []
    world = line().drive()
    delta, moved = superstep.again(world.program, world.head, ("plan",), "shorter")
    assert [(t.node, t.feedback) for t in moved.pending] == [("plan", raw("shorter"))] and moved.step == world.head.step + 1
    assert delta.pending == moved.pending and [r.goto for r in delta.done if isinstance(r, TaskResult)] == [("plan",)]
    world.keep(delta, moved, {})
    world.drive()
    assert world.ran == [["gather"], ["plan"], ["publish"], ["plan"], ["publish"]] and seen == []
    assert world.replayed() == world.live, "what is loaded is what was live"


def test_another_round_forgets_what_was_pending() -> None:
    """A rejected delivery comes again by its edge, not twice."""
    world = line()
    world.step()
    world.step()
    delta, moved = superstep.again(world.program, world.head, ("plan",), "shorter")
    assert [t.node for t in moved.pending] == ["plan"]
    world.keep(delta, moved, {})
    world.drive()
    assert world.ran[2:] == [["plan"], ["publish"]]


@pytest.mark.parametrize(
    ("outcomes", "delivery"),
    [
        ({}, None),
        ({"plan": "ok"}, None),
        ({"plan": "skipped: no_change"}, None),
        ({"publish": "ok"}, "delivered"),
        ({"publish": "degraded"}, "delivered"),
        ({"publish": "skipped: no_change"}, "no_change"),
        ({"publish": "skipped: when"}, None),
        ({"publish": "skipped: no_change", "other": "ok"}, "delivered"),
        ({"publish": "skipped: no_change", "other": "skipped: no_change"}, "no_change"),
        ({"@review": "ok"}, None),
    ],
)
def test_what_came_of_the_product(outcomes: dict[str, str], delivery: str | None) -> None:
    """§5.16: only nodes that deliver count; one that delivered outweighs those without change."""
    prog = program(node("plan", start=True), node("publish", after=["plan"], delivers=True), node("other", after=["plan"], delivers=True))
    assert superstep.delivery(prog, [TaskResult(t, outcome=o) for t, o in outcomes.items()]) == delivery


def test_what_is_left_to_skip_is_left() -> None:
    prog = program(node("a", start=True, when=lambda s: False), node("b", after=["a"]))
    world = World(prog)
    results = {"a": TaskResult("a", outcome="skipped: no_change")}
    delta, moved = superstep.barrier(prog, world.head, results, inline={"a"}, decoded={})
    assert [t.skip for t in moved.pending] == ["skipped: every node that it comes after was skipped"]
    delta, moved = superstep.settle(delta, moved)
    assert delta.pending == () and moved.pending == ()


def test_the_last_barrier_takes_what_has_finished_and_leaves_the_rest_pending() -> None:
    """§4.6, §5.11: an approval after a rejected delivery; and feedback that names another node takes it too."""
    prog = program(
        node("plan", start=True), node("publish", after=["plan"], delivers=True), node("audit", after=["plan"]), node("ask", after=["plan"]), channels={"text": superstep.last}, redo="plan"
    )
    world = World(prog)
    world.step()
    results = {"audit": TaskResult("audit", writes=raw({}))}
    signals = superstep.write_signals(prog, [("text", raw("x"))])
    delta, moved = superstep.close(prog, world.head, results, signals)
    assert [t.node for t in moved.pending] == ["publish", "ask"] and moved.values["text"] == "x" and moved.step == world.head.step + 1
    assert (ended := note_end(delta)) is not None and (ended.tasks, ended.reviewed, len(ended.signals)) == (("audit",), True, 1)
    delta, moved = superstep.again(prog, world.head, ("plan",), "shorter", results, signals)
    assert [(t.node, t.began) for t in moved.pending] == [("ask", world.head.step + 1), ("plan", 0)] and moved.values["text"] == "x"
    assert (ended := note_end(delta)) is not None and (ended.tasks, ended.reviewed) == (("audit",), True)
