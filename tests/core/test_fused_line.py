"""The fused line decides what the barrier and the codec would have made of the same step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from holdfast.core import canon, codec, fused
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core import superstep as ss
from holdfast.core.channels import ROOM, append, last, merge
from holdfast.core.checkpoint import Checkpoint, Task, TaskResult
from holdfast.core.commit import WHOLE_FLOOR, Commit, Tip
from holdfast.core.fused import Line
from holdfast.core.graph import Program
from holdfast.core.progress import Progress
from holdfast.core.run import Run, fold_all
from holdfast.machine import sole
from tests.core.build import RUN, World, folded, node, program, raw
from tests.core.test_superstep import graphs

FENCE, AT = (7 << 32) | 2, 5_000_000


def committed(prog: Program, run: Run, tip: Tip, cp: Checkpoint, results: dict[str, TaskResult]) -> tuple[Commit, codec.Sealed]:
    """The commit of a super-step, made the general way."""
    delta, moved = ss.barrier(prog, cp, results, inline=set(results), decoded={})
    data = codec.encode_delta(delta)
    hash = canon.chain(cp.hash, data)
    facts: list[ev.Fact] = [ev.step_ended(r.outcome)(moved.step, r.task, r.outcome, attempt=r.attempt) for r in results.values()]
    facts[-1] = msgspec.structs.replace(facts[-1], hash=hash)
    vouching = tip.seq + len(facts)
    facts += [ev.StepStarted(moved.step + 1, t.key) for t in moved.pending]
    events = tuple(ev.Event(n, AT, f, fence=2) for n, f in enumerate(facts, tip.seq + 1))
    kept = cps.boundaries(events, advanced=True)
    moved = msgspec.structs.replace(moved, seq=vouching, created_at=AT, hash=hash, boundaries=kept)
    commit = Commit(run=fold_all(run, events), events=events, after=tip, fence=FENCE, at=AT, checkpoint=moved, delta=data)
    commit.check()
    return commit, codec.seal(commit, tip.hash)


def begun(prog: Program, given_: dict[str, Any], **calls: Any) -> tuple[World, Run, Tip]:
    """A run whose first checkpoint is event 3."""
    world = World(prog, given_, **calls)
    run = folded(ev.RunStarted(), ev.CheckpointSaved(b"h", "input"))
    world.live[-1] = msgspec.structs.replace(world.head, seq=3)
    return world, run, Tip(run.version, b"t" * 16, 1, 100, 0)


@settings(deadline=None)
@given(graphs(lean=True))
def test_a_step_of_the_line_is_its_commit(made: Any) -> None:
    """Issue «Speed», 1: the row, its hash, the run's hot fields; and the run and checkpoint that are made when somebody looks."""
    prog, given_, calls = made
    world, run, tip = begun(prog, given_, **calls)
    line: Line | None = None
    for _ in range(8):
        cp = world.head
        if not cp.pending:
            break
        results = {t.key: world.turn(t) for t in cp.pending}
        try:
            commit, sealed = committed(prog, run, tip, cp, results)
        except (ss.NodeMissing, ss.TwoWriters):
            break
        if line is None and not cp.skipped and not cp.topics:
            line = Line(prog, run, tip, FENCE, cp)
            assert (line.run, line.tip, line.checkpoint) == (run, tip, cp)
        assert commit.checkpoint is not None
        task = None if line is None else line.task
        step = None
        if line is not None and task is not None:
            result = results[task.key]
            writes = cps.decode_writes(result)
            if result.goto is None and not result.sends and writes.keys() <= prog.plain[task.node]:
                step = line.decide(task, writes, result.writes, AT)
                assert (step is None) is (not commit.checkpoint.pending)
        tip = Tip(sealed.row.seq, sealed.row.hash, tip.row + 1, tip.since + len(sealed.row.data), 0)
        run = commit.run
        if step is None:
            line = None
        else:
            assert line is not None
            assert (step.seq, step.data, step.hash) == (sealed.row.seq, sealed.row.data, sealed.row.hash)
            assert (step.run_id, step.fence, step.after, step.since) == (RUN, FENCE, commit.after, tip.since)
            assert (step.version, step.step, step.head) == (run.version, run.current_step_id, run.checkpoint_head)
            line.keep(step.tip(tip.row))
            assert (line.run, line.tip, line.moved) == (run, tip, True)
            assert line.checkpoint == commit.checkpoint
            assert list(line.checkpoint.versions) == list(commit.checkpoint.versions)
        world.live.append(commit.checkpoint)


def test_what_is_not_plain_is_left_alone() -> None:
    prog = program(
        node("a", start=True), node("b", after=["a"]), node("asked", after=["b"], when=lambda s: True), node("narrow", after=["asked"], writes=("x",)), node("end", after=["narrow"]),
        channels={"x": last, "y": last, "l": append},
    )
    assert prog.plain == {"a": {"x", "y", "l"}, "b": {"x", "y", "l"}, "narrow": {"x"}, "end": {"x", "y", "l"}}
    world, run, tip = begun(prog, {})
    for pending in (
        (), (Task("a"), Task("b")), (Task("asked"),), (Task("a", index=1),), (Task("a", payload=raw(1)),), (Task("a", skip="skipped: all"),), (Task("a", feedback=raw("no")),),
    ):
        cp = msgspec.structs.replace(world.head, pending=pending)
        assert Line(prog, run, tip, FENCE, cp).task is None

    both = program(node("a", start=True), node("b", after=["a", "c"]), node("c", on=["x"]), channels={"x": last})
    world, run, tip = begun(both, {})
    line = Line(both, run, tip, FENCE, world.head)
    assert line.task is not None
    assert line.decide(line.task, {}, None, AT) is None, "nothing comes after it, for c has not ended"


@pytest.mark.parametrize(("since", "whole", "due"), [(0, 0, False), (WHOLE_FLOOR, 0, True), (WHOLE_FLOOR, WHOLE_FLOOR * 2, False)])
def test_a_whole_checkpoint_is_saved_by_the_general_way(since: int, whole: int, due: bool) -> None:
    prog = program(node("a", start=True), node("b", after=["a"]), channels={"x": last})
    world, run, _ = begun(prog, {})
    line = Line(prog, run, Tip(3, b"t" * 16, 1, since, whole), FENCE, world.head)
    assert line.task is not None
    assert (line.decide(line.task, {"x": 1}, raw({"x": 1}), AT) is None) is due
    assert not line.moved, "nothing has changed by it"
    assert line.checkpoint is world.head


def test_what_names_a_follower_goes_by_the_plan() -> None:
    """A node that was named before, or that listens to what was written, is not known to be the only one that follows."""
    prog = program(node("a", start=True), node("b", after=["a"]), node("c", on=["x"]), channels={"x": last, "y": last})
    world, run, tip = begun(prog, {})
    line = Line(prog, run, tip, FENCE, world.head)
    assert line.task is not None
    step = line.decide(line.task, {"x": 1}, raw({"x": 1}), AT)
    assert step is not None
    line.keep(step.tip(2))
    assert [t.node for t in line.pending] == ["b", "c"]
    named = msgspec.structs.replace(world.head, versions={**world.head.versions, "goto:b": 0}, seen={"b": {"goto:b": 0}})
    line = Line(prog, run, tip, FENCE, named)
    assert line.task is not None
    step = line.decide(line.task, {"y": 1}, raw({"y": 1}), AT)
    assert step is not None
    line.keep(step.tip(2))
    assert line.pending == (Task("b", seen=("done:a",)),)


def test_a_task_that_consumes_nothing_has_seen_nothing() -> None:
    prog = program(node("a", start=True), node("b", after=["a"]), channels={"x": last})
    world, run, tip = begun(prog, {})
    line = Line(prog, run, tip, FENCE, msgspec.structs.replace(world.head, pending=(Task("a"),)))
    assert line.task is not None
    step = line.decide(line.task, {}, None, AT)
    assert step is not None
    line.keep(step.tip(2))
    assert line.checkpoint.seen == {}
    assert line.task is not None and line.task.node == "b"
    assert line.checkpoint.writes == {"a": {}}


def test_two_steps_name_each_others_checkpoints() -> None:
    prog = program(node("a", start=True), node("b", after=["a"]), node("c", after=["b"]), channels={"x": last})
    world, run, tip = begun(prog, {})
    line = Line(prog, run, tip, FENCE, world.head)
    for n, parent in ((2, f"{RUN}.c3"), (3, f"{RUN}.c4")):
        task = line.task
        assert task is not None
        step = line.decide(task, {"x": n}, raw({"x": n}), AT)
        assert step is not None
        line.keep(step.tip(n))
        assert line.checkpoint.parent == parent


def test_progress_says_whether_anything_is_on_record_since_the_barrier() -> None:
    progress = Progress(RUN)
    assert not progress.busy
    progress.again("a", "", 1, 0)
    assert progress.busy


def test_a_channel_grows_at_the_cost_of_what_is_added() -> None:
    """Issue «Speed», 4: a list on the line is extended where it stands, whatever its length, unless somebody holds it."""
    prog = program(node("a", start=True), node("b", after=["a"]), node("c", after=["b"]), node("d", after=["c"]), channels={"l": append})
    world, run, tip = begun(prog, {"l": list(range(1000))})
    line = Line(prog, run, tip, FENCE, world.head, sole)
    places, held = [], None
    for n in (2, 3, 4):
        task = line.task
        assert task is not None
        step = line.decide(task, canon.admit({"l": [n]}, ""), raw({"l": [n]}), AT)
        assert step is not None
        line.keep(step.tip(n))
        if n == 3:
            held = line.values
        places.append(id(line.values["l"]))
    assert places[0] == places[1] != places[2]
    assert held is not None
    assert (len(held["l"]), len(line.values["l"]), len(world.head.values["l"])) == (1002, 1003, 1000)


def test_the_general_way_says_what_may_not_be_merged_and_how_much_there_may_be() -> None:
    prog = program(node("a", start=True), node("b", after=["a"]), channels={"m": merge})
    world, run, tip = begun(prog, {})
    for at, writes in ((tip, {"m": 1}), (msgspec.structs.replace(tip, whole=ROOM), {"m": {"k": 1}})):
        line = Line(prog, run, at, FENCE, world.head)
        task = line.task
        assert task is not None
        assert line.decide(task, writes, raw(writes), AT) is None
        assert line.decide(task, writes, raw(writes), AT, ends=True) is None


def test_the_end_of_a_run_is_its_commit() -> None:
    """What the last plain step decides is what the barrier and the codec make of it, with what it grew."""
    prog = program(node("a", start=True), channels={"l": append, "x": last})
    world, run, tip = begun(prog, {"l": [1]})
    line = Line(prog, run, tip, FENCE, world.head)
    task = line.task
    assert task is not None
    writes = {"l": [2], "x": 5}
    assert line.decide(task, canon.admit(writes, ""), raw(writes), AT) is None, "somebody is asked about its end"
    commit = line.decide(task, canon.admit(writes, ""), raw(writes), AT, ends=True)
    assert isinstance(commit, Commit) and commit.delta is not None
    delta, moved = ss.barrier(prog, world.head, {"a": TaskResult("a", writes=raw(writes))}, inline={"a"}, decoded={})
    assert commit.delta == codec.encode_delta(delta)
    assert [type(e.fact) for e in commit.events] == [ev.StepCompleted, ev.RunCompleted]
    hash = canon.chain(world.head.hash, commit.delta)
    kept = cps.boundaries(commit.events, advanced=True)
    assert commit.checkpoint == msgspec.structs.replace(moved, seq=tip.seq + 1, created_at=AT, hash=hash, boundaries=kept)
    assert commit.run == fold_all(run, commit.events) and commit.run.terminal
    commit.check()


def test_a_plain_channel_beside_one_that_grows() -> None:
    prog = program(node("a", start=True), node("b", after=["a"]), channels={"l": append, "x": last})
    world, run, tip = begun(prog, {"l": [1]})
    line = Line(prog, run, tip, FENCE, world.head, sole)
    writes = {"l": [2], "x": "new"}
    assert line.task is not None
    step = line.decide(line.task, canon.admit(writes, ""), raw(writes), AT)
    assert step is not None
    line.keep(step.tip(2))
    assert dict(line.values) == {"l": [1, 2], "x": "new"}


def test_few_ways_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """§11.2: a node may write any of many channels together; what is known of each such way is not kept for good."""
    monkeypatch.setattr(fused, "MOST_WAYS", 3)
    channels: dict[str, Any] = dict.fromkeys("lmnopq", append)
    prog = program(node("a", start=True), node("b", after=["a"]), channels=channels)
    world, run, tip = begun(prog, {})
    line = Line(prog, run, tip, FENCE, world.head)
    assert line.task is not None
    rows = []
    for _ in range(2):
        for name in channels:
            step = line.decide(line.task, {name: [1]}, raw({name: [1]}), AT)
            assert step is not None
            rows.append(step.data)
        assert len(prog.ways) == 3
    assert rows[:6] == rows[6:] and len({*rows}) == 6
