"""Tasks that wait while the run goes on: which super-step ends when, what its tasks see, and that no result is lost or comes twice (§5.11)."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import canon, codec
from holdfast.core import checkpoint as cps
from holdfast.core import superstep as ss
from holdfast.core.channels import Channel, append, last, merge, topic
from holdfast.core.checkpoint import WAITING_TASK, Checkpoint, Delta, SendTo, Task, TaskResult
from holdfast.core.errors import EventUnreadable, TwoWriters, UnsupportedFormat
from holdfast.core.graph import Goto, Program, Send
from holdfast.core.progress import Progress
from tests.core.build import RUN, World, node, program, raw


class Waiting(World):
    """A world whose tasks end when they like: ``finish`` ends one, ``signal`` brings something, and the rules of §5.11 say what follows."""

    def __init__(self, prog: Program, given: dict[str, Any] | None = None, **calls: Any) -> None:
        super().__init__(prog, given, **calls)
        self.results: dict[str, TaskResult] = {}
        self.news: list[tuple[str, bytes]] = []
        self.groups: list[list[tuple[int, str]]] = []
        self.begun: dict[tuple[int, str], Any] = {}
        self._began()

    def _began(self) -> None:
        for task in self.head.pending:
            self.begun.setdefault((self.head.step_of(task.key), task.key), self.head.values)

    @property
    def open(self) -> list[Task]:
        return [t for t in self.head.pending if t.key not in self.results]

    def finish(self, key: str) -> None:
        task = next(t for t in self.open if t.key == key)
        seen = self.head.see_as(task)
        assert seen == self.begun[self.head.step_of(key), key], "it sees what its super-step began with"
        back = {"log": [[self.head.step_of(key), key]]} if task.node not in self.calls else self.calls[task.node](seen)
        self.results[key] = self._result(task, back)

    def _result(self, task: Task, back: Any) -> TaskResult:
        if task.skip:
            return TaskResult(task.key, outcome=task.skip)
        if isinstance(back, Goto):
            return TaskResult(task.key, writes=raw(dict(back.writes or {})), goto=back.targets)
        if isinstance(back, list):
            return TaskResult(task.key, sends=tuple(SendTo(s.node, raw(s.payload)) for s in back))
        return TaskResult(task.key, writes=raw(back) if back else None)

    def signal(self, name: str, value: Any) -> None:
        self.news.append((name, raw(value)))

    def turn(self, task: Task) -> TaskResult:
        raise AssertionError("tasks are finished one by one here")

    def settle(self) -> None:
        """What a driver does when no task runs: super-steps that are whole end, the oldest first; then signals wake their nodes."""
        while True:
            taken = ss.whole(self.head, self.results)
            signals = ss.write_signals(self.program, self.news)
            if not self.head.pending or (taken is None and not (signals and ss.wakes(self.program, self.head, signals, self.results))):
                return
            self.barrier(taken or (), signals)

    def barrier(self, taken: tuple[Task, ...], signals: tuple[TaskResult, ...] = ()) -> None:
        before = self.head
        delta, cp = ss.barrier(self.program, before, self.results, inline=frozenset(), decoded={}, signals=signals, taken=taken)
        self.keep(delta, cp, dict(self.results))
        self.groups.append([(before.step_of(t.key), t.key) for t in taken])
        self.results = {k: r for k, r in self.results.items() if k in {t.key for t in self.head.waiting}}
        self.news.clear()
        self._began()


def anew(cp: Checkpoint) -> Checkpoint:
    return msgspec.structs.replace(cp, created_at=0, unfinished=None)


CHANNELS: dict[str, Any] = {"log": append, "in": append, "other": last, "m": merge, "t": topic}
PROGS = [
    program(node("a", start=True), node("b", start=True), node("join", after=["a", "b"]), node("h", on=["in"]), node("h2", after=["h"]), channels=CHANNELS),
    program(node("a", start=True, on=["other"]), node("h", on=["in", "other"]), node("both", after=["a", "h"]), node("any", any_of=["a", "h"]), channels=CHANNELS),
    program(node("a", start=True), node("b", after=["a"]), node("c", after=["b"]), node("h", on=["in"], when=None), node("g", on=["m", "t"]), channels=CHANNELS),
]
SIGNALS = [("in", "x"), ("other", 1), ("m", {"k": 1}), ("m", "no dict"), ("t", 1), ("nobody", 1)]


@settings(max_examples=150, deadline=None)
@given(which=st.integers(0, len(PROGS) - 1), seed=st.integers(0, 10**6))
def test_whatever_ends_in_whatever_order(which: int, seed: int) -> None:
    """Every task is taken once, none is lost; what is loaded is what was live; a whole checkpoint says the same."""
    dice, world = random.Random(seed), Waiting(PROGS[which])
    sent = 0
    for _ in range(dice.randint(1, 25)):
        if world.open and dice.random() < 0.5:
            world.finish(dice.choice(world.open).key)
        else:
            world.signal(*(s := dice.choice(SIGNALS)))
            sent += s[0] == "in"
        if dice.random() < 0.8:
            world.settle()
    world.settle()
    while world.open:
        world.finish(dice.choice(world.open).key)
        world.settle()
    taken = [place for group in world.groups for place in group]
    assert sorted(taken) == sorted(world.begun), "each task that began has ended, in one super-step"
    assert [list(e) for e in world.values["log"]] == [list(p) for p in taken if not _skipped(world, p)], "in task order, super-step by super-step"
    assert len(world.values["in"]) + sum(n == "in" for n, _ in world.news) == sent
    assert world.head.taken == sum(bool(g) for g in world.groups)
    live = [anew(c) for c in world.live]
    assert [anew(c) for c in world.replayed()] == live
    for cp in world.live:
        found, chain = codec.decode_whole(RUN, codec.encode_whole(cp, b"chain"))
        assert (found.values, found.held, found.pending, found.idle, found.versions, found.seen) == (cp.values, cp.held, cp.pending, cp.idle, cp.versions, cp.seen)
        assert chain == b"chain"


def _skipped(world: Waiting, place: tuple[int, str]) -> bool:
    return any(t.key == place[1] and t.skip for cp in world.live for t in cp.pending if cp.step_of(t.key) == place[0])


@settings(max_examples=60, deadline=None)
@given(which=st.integers(0, len(PROGS) - 1), seed=st.integers(0, 10**6))
def test_the_order_in_which_tasks_end_changes_nothing(which: int, seed: int) -> None:
    """T-55, §4.3: between two barriers they may end in any order; the bytes are the same."""
    deltas = []
    for way in range(2):
        dice, order, world = random.Random(seed), random.Random(way), Waiting(PROGS[which])
        for _ in range(8):
            ends = [t.key for t in world.open if dice.random() < 0.5]
            if dice.random() < 0.7:
                world.signal("in", "x")
            order.shuffle(ends)
            for key in ends:
                world.finish(key)
            world.settle()
        deltas.append(world.deltas)
    assert deltas[0] == deltas[1]


@settings(max_examples=40, deadline=None)
@given(which=st.integers(0, len(PROGS) - 1), seed=st.integers(0, 10**6))
def test_without_signals_it_is_the_plain_barrier(which: int, seed: int) -> None:
    dice, plain, world = random.Random(seed), World(PROGS[which]), Waiting(PROGS[which])
    for _ in range(6):
        tasks = plain.head.pending
        for task in tasks:
            plain_log = {"log": [[plain.head.step + 1, task.key]]}
            plain.calls[task.node] = lambda seen, back=plain_log: back
        if not plain.step():
            break
        keys = [t.key for t in world.open]
        dice.shuffle(keys)
        for key in keys:
            world.finish(key)
        world.settle()
    assert world.deltas == plain.deltas
    assert WAITING_TASK not in [e for d in world.deltas for e in codec.decode_delta(d).done]


JOINED = PROGS[0]


def test_a_join_waits_for_all_of_its_group() -> None:
    world = Waiting(JOINED)
    world.finish("b")
    world.signal("in", "x")
    world.settle()
    assert [t.key for t in world.head.pending] == ["a", "b", "h"], "b is finished, and its super-step is not"
    assert [t.began for t in world.head.pending] == [1, 1, 0]
    assert (world.head.step, world.head.taken) == (1, 0)
    world.finish("h")
    world.settle()
    assert [t.key for t in world.head.pending] == ["a", "b", "h2"]
    world.finish("a")
    world.settle()
    assert [t.key for t in world.head.pending] == ["h2", "join"], "the older super-step ends; what runs beside it goes on"
    assert (world.head.step, world.head.taken) == (3, 2)
    assert [list(x) for x in world.values["log"]] == [[2, "h"], [1, "a"], [1, "b"]]


def test_a_node_that_waits_has_its_next_turn_afterwards() -> None:
    """One turn at a time: what came meanwhile is one more turn."""
    prog = program(node("h", start=True, on=["in"]), channels=CHANNELS)
    world = Waiting(prog)
    for word in "xy":
        world.signal("in", word)
        world.settle()
    assert [t.key for t in world.head.pending] == ["h"] and len(world.live) == 1, "nothing may run, so nothing is written"
    world.finish("h")
    world.settle()
    assert [t.key for t in world.head.pending] == ["h"] and world.values["in"] == ["x", "y"]
    world.finish("h")
    world.settle()
    assert world.head.pending == ()
    assert [list(x) for x in world.values["log"]] == [[1, "h"], [2, "h"]]


def test_a_node_whose_finished_turn_still_waits_to_end_has_another() -> None:
    world = Waiting(program(node("a", start=True), node("h", start=True, on=["in"]), channels=CHANNELS))
    world.finish("h")
    world.signal("in", "x")
    world.settle()
    assert [t.key for t in world.head.pending] == ["a", "h", "h~1"]
    world.signal("in", "y")
    world.settle()
    assert [t.key for t in world.head.pending] == ["a", "h", "h~1"], "that turn is under way"
    world.finish("h~1")
    world.settle()
    assert [t.key for t in world.head.pending] == ["a", "h", "h~1"] and world.head.step == 2
    world.finish("h~1")
    world.finish("a")
    world.settle()
    assert world.head.pending == () and [list(x) for x in world.values["log"]] == [[2, "h~1"], [1, "a"], [1, "h"], [3, "h~1"]]


def test_what_a_node_missed_while_it_waited_comes_after_its_turn() -> None:
    """A second super-step wakes others by the same channel; the one that waits has its turn once it can."""
    prog = program(node("a", start=True, on=["other"]), node("h", on=["other"]), channels=CHANNELS)
    world = Waiting(prog)
    world.signal("other", 1)
    world.settle()
    assert [t.key for t in world.head.pending] == ["a", "h"]
    world.finish("h")
    world.settle()
    assert [t.key for t in world.head.pending] == ["a"]
    world.finish("a")
    world.settle()
    assert [t.key for t in world.head.pending] == ["a"] and world.head.pending[0].began == 0
    world.finish("a")
    world.settle()
    assert world.head.pending == ()


def test_feedback_for_a_node_that_waits_reaches_its_next_turn() -> None:
    prog = program(node("a", start=True), node("h", on=["in"]), channels=CHANNELS)
    world = Waiting(prog)
    world.signal("in", "x")
    world.settle()
    world.results["h"] = TaskResult("h", goto=("a",), feedback=raw("shorter"))
    world.settle()
    assert [(t.key, t.owed) for t in world.head.pending] == [("a", raw("shorter"))]
    world.finish("a")
    world.settle()
    assert [(t.key, t.feedback, t.owed) for t in world.head.pending] == [("a", raw("shorter"), None)]


def test_sends_are_numbered_after_those_that_wait() -> None:
    prog = program(node("a", start=True), node("h", on=["in"]), node("w"), channels=CHANNELS)
    world = Waiting(prog, a=lambda s: [Send("w", 1), Send("w", 2)], h=lambda s: [Send("w", 3)])
    world.finish("a")
    world.settle()
    assert [t.key for t in world.head.pending] == ["w~1", "w~2"]
    world.signal("in", "x")
    world.settle()
    world.finish("h")
    world.settle()
    assert [t.key for t in world.head.pending] == ["w~1", "w~2", "w~3"]


def test_two_super_steps_may_write_one_channel() -> None:
    """Two writers of one super-step may not; those of two come one after the other."""
    prog = program(node("a", start=True), node("h", on=["in"]), channels=CHANNELS)
    world = Waiting(prog, a=lambda s: {"other": "a"}, h=lambda s: {"other": "h"})
    world.signal("in", "x")
    world.settle()
    world.finish("h")
    world.finish("a")
    world.settle()
    assert world.values["other"] == "h", "the older one first"
    same = Waiting(program(node("a", start=True), node("b", start=True), channels=CHANNELS), a=lambda s: {"other": 1}, b=lambda s: {"other": 2})
    same.finish("a")
    same.finish("b")
    with pytest.raises(TwoWriters):
        same.settle()


def test_a_patch_replaces_what_a_waiting_task_sees() -> None:
    """§5.11: only a patch does."""
    world = Waiting(PROGS[0])
    world.signal("in", "x")
    world.settle()
    a = world.head.pending[0]
    assert world.head.see_as(a)["in"] == [] and world.values["in"] == ["x"]
    patch = Delta(world.head.step, cps.Source.PATCH, values=raw({"other": "patched"}))
    moved = cps.advance(world.head, patch, {}, seq=9, at=0, hash=b"")
    assert moved.see_as(a) == {**world.head.see_as(a), "other": "patched"} and moved.values["other"] == "patched"


def test_a_release_that_does_not_know_of_waiting_tasks_stops() -> None:
    """§1.8: never a guess."""
    world = Waiting(PROGS[0])
    world.signal("in", "x")
    world.settle()
    delta = codec.decode_delta(world.deltas[-1])
    assert delta.done[-1] == WAITING_TASK
    with pytest.raises(EventUnreadable, match="is not recorded"):
        cps.advance(world.live[0], msgspec.structs.replace(delta, done=(*delta.done[:-1], "@other")), {}, seq=2, at=0, hash=b"")
    whole = msgspec.msgpack.decode(codec.encode_whole(world.head, b"")[: -canon.HASH_BYTES])
    with pytest.raises(UnsupportedFormat):
        codec.check_format(whole[0])


def test_a_task_of_a_release_before_has_not_waited() -> None:
    old = msgspec.msgpack.encode(["a", 0, None, ["@start"], "", None])
    assert msgspec.msgpack.decode(old, type=Task) == Task("a", seen=("@start",))


def test_a_whole_checkpoint_keeps_what_is_on_record_of_those_that_wait() -> None:
    world = Waiting(PROGS[0])
    world.finish("b")
    world.signal("in", "x")
    world.settle()
    live = Progress(RUN)
    live.checkpoint, live.results = world.head, dict(world.results)
    live.records["a", "0"] = cps.StepRecord("a", "0", "look", raw(1))
    live.attempts["a", ""], live.asked["a", "0"], live.records["h", "0"] = (2, 77), 3, cps.StepRecord("h", "0", "mine", raw(2))
    kept = msgspec.structs.replace(world.head, unfinished=live.find_unfinished(world.head))
    found = Progress(RUN, codec.decode_whole(RUN, codec.encode_whole(kept, b"")))
    assert found.results == {"b": world.results["b"]} and found.records == {("a", "0"): live.records["a", "0"]}, "h began with this checkpoint"
    assert (found.attempts, found.asked) == ({("a", ""): (2, 77)}, {("a", "0"): 3})
    assert found.checkpoint.step_of("a") == 1 and found.checkpoint.step_of("h") == 2


def test_what_a_replay_has_to_know_of_a_barrier() -> None:
    """Nothing of a plain one; of any other the tasks it took and what came for others."""
    world = Waiting(PROGS[0])
    assert cps.note_end(codec.decode_delta(world.deltas[0])) is None
    world.signal("in", "x")
    world.settle()
    came = cps.note_end(codec.decode_delta(world.deltas[-1]))
    assert came is not None and came.tasks == () and [cps.decode_writes(s) for s in came.signals] == [{"in": "x"}]
    world.finish("h")
    world.settle()
    assert cps.note_end(codec.decode_delta(world.deltas[-1])) == cps.Ended(("h",), ())


def test_a_barrier_forgets_what_it_took_and_keeps_what_waits() -> None:
    world = Waiting(PROGS[0])
    world.signal("in", "x")
    world.settle()
    progress = Progress(RUN)
    progress.checkpoint = world.head
    progress.records["a", "0"], progress.records["h", "0"] = cps.StepRecord("a", "0", "look", raw(1)), cps.StepRecord("h", "0", "mine", raw(2))
    progress.barrier()
    assert list(progress.records) == [("a", "0")]


def test_a_signal_that_does_not_fit_is_no_write() -> None:
    """§3.7: whoever sent it had not this code."""
    typed = program(node("a", start=True), channels={"n": Channel("n", last, type=int)})
    assert ss.write_signals(typed, [("n", raw("seven")), ("nobody", raw(1))]) == ()
    assert [cps.decode_writes(s) for s in ss.write_signals(typed, [("n", raw("seven")), ("n", raw(7))])] == [{"n": 7}]
