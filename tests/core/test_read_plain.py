"""What is read at once is what each row says (§4.5): values, versions, seen, parents and all that counts since the barrier."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import canon, channels, codec, progress
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core.channels import append, last, merge, topic
from holdfast.core.checkpoint import Checkpoint, Delta, Held, Source, Task, TaskResult
from holdfast.core.codec import Record, Row
from holdfast.core.errors import ChainBroken, EventUnreadable
from holdfast.core.graph import Goto
from holdfast.core.progress import Progress
from tests.core.build import RUN, Log, World, node, program, raw, wait
from tests.core.test_superstep import graphs

GIVEN = TaskResult(cps.INPUT_TASK, writes=raw({}))


def logged(world: World) -> list[Row]:
    """A run's log, of the world it was driven in: its birth, and a row for each checkpoint."""
    rows = Log(ev.RunStarted()).rows
    seq, chain, hash = rows[-1].seq, rows[-1].hash, b""
    for live, data, durable in zip(world.live, world.deltas, world.durable, strict=True):
        hash = canon.chain(hash, data)
        facts: list[ev.Fact] = []
        if live.step == 0:
            facts = [ev.CheckpointSaved(hash, "input")]
        else:
            done = [*durable.values(), *(r for r in codec.decode_delta(data).done if isinstance(r, TaskResult))]
            facts = [ev.step_ended(r.outcome)(live.step, r.task, r.outcome) for r in done]
            facts[-1] = msgspec.structs.replace(facts[-1], hash=hash)
        facts += [ev.StepStarted(live.step + 1, t.key) for t in live.pending]
        results = tuple(r for r in durable.values() if r.task != cps.INPUT_TASK)
        row = codec.encode_row(1_000_000 + live.step, 7, ev.SYSTEM, facts, data, results)
        seq, chain = seq + len(facts), canon.chain(chain, row)
        rows.append(Row(seq, row, chain))
    return rows


def step_by_step(rows: list[Row]) -> Progress:
    found = Progress(RUN)
    for row in rows:
        found.step(codec.open_row(row, found.hash))
    return found


def told(found: Progress) -> tuple[Any, ...]:
    """All that it holds, with the order of what has an order."""
    cp = found.checkpoint
    rest = {name: getattr(found, name) for name in Progress.__slots__ if name != "checkpoint"}
    return cp, rest, canon.encode(canon.FrozenDict(cp.values)), list(cp.versions), list(cp.seen), cp.writes


@settings(deadline=None)
@given(graphs(lean=True), st.randoms(use_true_random=False), st.booleans())
def test_what_is_read_at_once_is_what_each_row_says(made: Any, rng: random.Random, inline: bool) -> None:
    """Over random graphs, from any row on: a walk that is cut in two, or looks at each row, comes out the same."""
    prog, given_, calls = made
    rows = logged(World(prog, given_, **calls).drive(8, shuffle=rng.shuffle, inline=inline))
    for end in range(1, len(rows) + 1):
        expected = told(step_by_step(rows[:end]))
        assert told(Progress(RUN).walk(rows[:end])) == expected
        cut = rng.randrange(end)
        first = Progress(RUN).walk(rows[:cut])
        before = told(first)
        assert before == told(step_by_step(rows[:cut]))
        kept = first.checkpoint, canon.encode(canon.FrozenDict(first.checkpoint.values))
        assert told(first.walk(rows[cut:end])) == expected
        assert canon.encode(canon.FrozenDict(kept[0].values)) == kept[1], "a checkpoint that was given out never moves"


LOOP = program(
    node("a", start=True, any_of=["b"]), node("b", after=["a"]), channels={"n": last, "out": append, "table": merge},
)


def loop(steps: int, **calls: Any) -> list[Row]:
    """Two nodes that follow each other, for so many steps."""
    plain: dict[str, Any] = {
        "a": lambda s: {"n": s.get("n", 0) + 1, "out": [len(s["out"])]},
        "b": lambda s: {"table": {str(s["n"] % 3): s["n"]}, "out": s["n"]},
    }
    return logged(World(LOOP, **{**plain, **calls}).drive(steps, inline=True))


def counted(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many rows are taken one by one."""
    taken = []
    real = Progress.step

    def step(self: Progress, record: Record) -> None:
        taken.append(record.seq)
        real(self, record)

    monkeypatch.setattr(Progress, "step", step)
    Progress(RUN).walk(rows)
    monkeypatch.undo()
    return len(taken)


def test_plain_steps_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The birth and the first checkpoint are taken one by one, whatever follows; so where a node says who is next."""
    assert counted(loop(3), monkeypatch) == counted(loop(40), monkeypatch) == 2
    assert counted(loop(40, b=lambda s: Goto("a", {"n": s["n"] + 1})), monkeypatch) == 2
    assert told(Progress(RUN).walk(loop(40))) == told(step_by_step(loop(40)))
    assert Progress(RUN).walk(loop(40)).checkpoint.values["n"] == 20


def test_what_grows_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue «Speed», 4: a list that each step adds to is copied for the first step that is read, and grows in place then."""
    copies = []
    real = channels.reduce

    def reduce(tag: str, old: Any, new: Any) -> Any:
        copies.append(tag)
        return real(tag, old, new)

    rows = loop(60)
    monkeypatch.setattr(channels, "reduce", reduce)
    found = Progress(RUN).walk(rows)
    assert len(found.checkpoint.values["out"]) == 60
    assert sorted(copies) == ["append", "merge"]


def test_what_waits_goes_on_waiting() -> None:
    """§4.8: a wait that was opened before the steps is open after them."""
    rows = loop(0)
    asking = codec.encode_row(2_000_000, 7, ev.SYSTEM, [ev.WaitRequested(wait(wait_id="w"))], None)
    rows.append(Row(rows[-1].seq + 1, asking, canon.chain(rows[-1].hash, asking)))
    seq, chain = rows[-1].seq, rows[-1].hash
    for row in loop(6)[2:]:
        seq, chain = seq + 2, canon.chain(chain, row.data)
        rows.append(Row(seq, row.data, chain))
    found = Progress(RUN).walk(rows)
    assert [w.wait_id for w in found.checkpoint.waits] == ["w"]
    assert told(found) == told(step_by_step(rows))


def again(rows: list[Row], at: int, change: Callable[[Any], Any], *, vouch: bool = True) -> list[Row]:
    """The log with one row's delta changed; ``vouch``: the row says so itself, as if it had been written so."""
    hash = step_by_step(rows[:at]).checkpoint.hash
    raw_row = msgspec.msgpack.decode(rows[at].data)
    delta = codec.encode_delta(change(codec.decode_delta(raw_row[5])))
    raw_row[5] = delta
    if vouch:
        raw_row[4][0][4] = canon.chain(hash, delta)
    return rewritten(rows, at, msgspec.msgpack.encode(raw_row))


def rewritten(rows: list[Row], at: int, data: bytes) -> list[Row]:
    """The log up to this row, which has these bytes."""
    return [*rows[:at], Row(rows[at].seq, data, canon.chain(rows[at - 1].hash, data))]


def replaced(**fields: Any) -> Callable[[Delta], Delta]:
    return lambda delta: msgspec.structs.replace(delta, **fields)


def result(**fields: Any) -> Callable[[Delta], Delta]:
    def change(delta: Delta) -> Delta:
        (done,) = delta.done
        assert isinstance(done, TaskResult)
        return msgspec.structs.replace(delta, done=(msgspec.structs.replace(done, **fields),))

    return change


@pytest.mark.parametrize(
    "change",
    [
        replaced(step=9),
        replaced(source=Source.PATCH),
        replaced(values=raw({"n": 5})),
        replaced(base=cps.Base(held=(Held(1, raw({})),)), values=raw({"n": 5})),
        replaced(pending=None),
        replaced(kinds={"out": "topic"}),
        replaced(done=(TaskResult("@signal~s", writes=raw({})), TaskResult("a", writes=raw({"n": 5})))),
        result(task="b"),
        result(outcome="degraded"),
        result(unsent=("b",)),
    ],
)
def test_what_is_not_plain_is_taken_by_itself(change: Callable[[Delta], Delta], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = again(loop(6), 6, change)
    assert counted(rows, monkeypatch) == 3
    assert told(Progress(RUN).walk(rows)) == told(step_by_step(rows))


def test_a_row_that_says_more_is_taken_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts of another kind or number, a call within a task, an outcome other than ok, and a format that is older."""
    changes: tuple[Callable[[Any], object], ...] = (
        lambda raw_row: raw_row[4].append([20, 9, "b"]),
        lambda raw_row: raw_row[4][0].__setitem__(6, "p"),
        lambda raw_row: raw_row[4][0].__setitem__(3, "odd"),
        lambda raw_row: raw_row.__setitem__(0, 103),
    )
    for change in changes:
        rows = loop(6)
        raw_row = msgspec.msgpack.decode(rows[6].data)
        change(raw_row)
        rows = rewritten(rows, 6, msgspec.msgpack.encode(raw_row))
        assert counted(rows, monkeypatch) == 3
        assert told(Progress(RUN).walk(rows)) == told(step_by_step(rows))


def test_what_the_run_takes_over_needs_the_log_it_came_from() -> None:
    rows = again(loop(6), 6, replaced(carries=(cps.Carry("before", 7, b"h", ("lost",)),)))
    with pytest.raises(Exception, match="lost of .* came from before"):
        Progress(RUN).walk(rows)


def test_what_is_wrong_is_named_as_ever() -> None:
    """§1.8: a checkpoint that nothing vouches for, a row out of the chain, writes that cannot be decoded."""
    rows = loop(6)
    with pytest.raises(ChainBroken, match=f"event {rows[6].seq} is not recorded by any event"):
        Progress(RUN).walk(again(rows, 6, replaced(kinds={"n": "last"}), vouch=False))
    with pytest.raises(ChainBroken, match=f"event {rows[6].seq} does not match its hash"):
        Progress(RUN).walk([*rows[:6], msgspec.structs.replace(rows[6], data=rows[5].data)])
    with pytest.raises(EventUnreadable, match="cannot be decoded"):
        Progress(RUN).walk(again(rows, 6, result(writes=b"\xc1")))
    with pytest.raises(EventUnreadable, match="the writes of a are not a mapping"):
        Progress(RUN).walk(again(rows, 6, result(writes=raw([1]))))
    unreadable = msgspec.msgpack.decode(rows[6].data)
    unreadable[5] = b"\xc1"
    with pytest.raises(EventUnreadable):
        Progress(RUN).walk(rewritten(rows, 6, msgspec.msgpack.encode(unreadable)))


def test_what_is_encrypted_is_opened_first() -> None:
    """§14.5: rows with an opener are given to it one by one."""
    opened = []

    class Opener:
        def record(self, record: Record) -> Record:
            opened.append(record.seq)
            return record

    rows = [msgspec.structs.replace(row, opener=Opener()) for row in loop(6)]
    assert Progress(RUN).walk(rows).checkpoint == step_by_step(loop(6)).checkpoint
    assert opened == [row.seq for row in rows]


@pytest.mark.parametrize(
    "more",
    [
        {"topics": ("t",)}, {"skipped": frozenset({"b"})}, {"held": {1: {}}}, {"step": -1}, {"pending": ()}, {"pending": (Task("a"), Task("b"))},
        {"pending": (Task("a", 1),)}, {"pending": (Task("a", began=1),)}, {"pending": (Task("@waiting"),)},
    ],
)
def test_from_where_nothing_is_read_at_once(more: dict[str, Any]) -> None:
    rows = loop(6)
    before = Progress(RUN).walk(rows[:4]).checkpoint
    assert progress.read_plain(before, rows, [row.hash for row in rows], 4, ()) is not None
    assert progress.read_plain(msgspec.structs.replace(before, **more), rows, [row.hash for row in rows], 4, ()) is None


def test_it_ends_where_several_tasks_are_next() -> None:
    """A row after which something else than one plain task is next is the last; what forks says more than that, and is not read at once."""
    rows = again(loop(6), 6, replaced(pending=(Task("a", 1),)))
    before: Checkpoint = Progress(RUN).walk(rows[:4]).checkpoint
    more = [*rows, *loop(6)[7:]]
    found = progress.read_plain(before, more, [row.hash for row in more], 4, ())
    assert found is not None and (found.rows, found.checkpoint.pending) == (3, (Task("a", 1),))
    prog = program(node("a", start=True), node("b", after=["a"]), node("c", after=["b"]), node("d", after=["b"]), node("e", after=["c", "d"]), channels={"n": last, "t": topic})
    rows = logged(World(prog, a=lambda s: {"n": 1}).drive(6, inline=True))
    found = progress.read_plain(Progress(RUN).walk(rows[:2]).checkpoint, rows, [row.hash for row in rows], 2, ())
    assert found is not None and found.rows == 1
    assert told(Progress(RUN).walk(rows)) == told(step_by_step(rows))


def test_who_is_next_may_be_chosen_or_named_or_have_seen_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for change in (result(chosen=("b", "a")), result(goto=("b",)), replaced(pending=(Task("b"),))):
        rows = again(loop(6), 6, change)
        rows = again([*rows, loop(6)[7]], 7, replaced())
        assert counted(rows, monkeypatch) == 2
        assert told(Progress(RUN).walk(rows)) == told(step_by_step(rows))
