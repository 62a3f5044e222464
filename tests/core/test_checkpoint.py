"""What a checkpoint stands for, and what vouches for it (§1.8, §4.5, §4.10)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import checkpoint
from holdfast.core import events as ev
from holdfast.core.checkpoint import Boundary, Source, Task, TaskResult
from holdfast.core.errors import ErrorValue
from tests.core.build import numbered

BOOM = ErrorValue("ValueError", "boom", where="a")


@pytest.mark.parametrize(
    ("facts", "advanced", "expected"),
    [
        ((ev.RunStarted(), ev.StepStarted(1, "a"), ev.CheckpointSaved(b"h", "input")), False, (Boundary.RUN_STARTED,)),
        ((ev.StepCompleted(1, "a", hash=b"h"), ev.StepStarted(2, "b")), True, (Boundary.STEP_COMPLETED,)),
        ((ev.StepSkipped(1, "a", "skipped"), ev.StepDegraded(1, "b", "degraded", hash=b"h")), True, (Boundary.STEP_COMPLETED,)),
        ((ev.StepCompleted(1, "a", hash=b"h"), ev.RunCompleted()), True, (Boundary.STEP_COMPLETED, Boundary.RUN_COMPLETED)),
        ((ev.StepCompleted(1, "a"), ev.CheckpointSaved(b"h", "wait"), ev.RunWaitingForHuman()), False, (Boundary.WAITING_FOR_HUMAN,)),
        ((ev.CheckpointSaved(b"h", "wait"), ev.RunWaitingForSignal()), False, (Boundary.WAITING_FOR_SIGNAL,)),
        ((ev.CheckpointSaved(b"h", "loop"),), True, (Boundary.STEP_COMPLETED,)),
        ((ev.StepCompleted(1, "a", path="0", outcome="halted: no"), ev.CheckpointSaved(b"h", "loop")), True, (Boundary.STEP_COMPLETED,)),
        ((ev.StepCompleted(1, "a"),), False, ()),
        ((ev.StepCompleted(1, "b"), ev.StepCompleted(1, "a", outcome="halted: no", hash=b"h")), True, ()),
        ((ev.StepCompleted(1, "a", hash=b"h"), ev.RunFailed("x", BOOM)), False, (Boundary.RUN_FAILED,)),
        ((ev.RunStarted(), *[ev.StepStarted(1, "a")] * 9, ev.CheckpointSaved(b"h", "input")), False, (Boundary.RUN_STARTED,)),
        ((ev.StepFailed(1, "a", BOOM), ev.RunFailed("x", BOOM), ev.CheckpointSaved(b"h", "failure")), False, (Boundary.RUN_FAILED,)),
        ((ev.RunCanceled("canceled"), ev.CheckpointSaved(b"h", "cancel")), False, (Boundary.RUN_CANCELED,)),
    ],
)
def test_boundaries(facts: tuple[ev.Fact, ...], advanced: bool, expected: tuple[Boundary, ...]) -> None:
    """§4.5, §4.10; T-12: a halted step is no completed checkpoint."""
    assert checkpoint.boundaries(numbered(facts), advanced=advanced) == expected


def test_what_vouches_for_a_checkpoint() -> None:
    """The number and the hash come from the one event that names it; a delta that was changed is vouched for by none."""
    parent = checkpoint.empty("r")
    number, hash = 2, checkpoint.canon.chain(b"", b"delta")
    events = numbered((ev.RunStarted(), ev.CheckpointSaved(hash, "input")))
    assert checkpoint.find_voucher(parent, events, b"delta") == (number, hash)
    assert checkpoint.find_voucher(parent, events, b"other") is None and checkpoint.find_voucher(parent, events[:1], b"delta") is None


@pytest.mark.parametrize(
    ("facts", "source", "place"),
    [
        ([ev.StepCompleted(1, "a"), ev.StepCompleted(1, "b"), ev.StepStarted(2, "c")], Source.LOOP, 1),
        ([ev.StepCompleted(1, "a"), ev.StepCompleted(1, "b", path="0")], Source.LOOP, 0),
        ([ev.StatePatched(("n",), "ada")], Source.PATCH, 0),
        ([ev.RunStarted()], Source.INPUT, 1),
    ],
)
def test_the_last_fact_that_can_vouches_for_a_checkpoint(facts: list[ev.Fact], source: Source, place: int) -> None:
    """§13.2: the last step that was completed, or the patch; else a fact of its own. What vouches is what is found again."""
    parent = checkpoint.empty("r")
    hash, found = checkpoint.vouch(parent, facts, b"delta", source)
    assert (hash, found) == (checkpoint.canon.chain(b"", b"delta"), place)
    assert checkpoint.find_voucher(parent, numbered(facts), b"delta") == (place + 1, hash)


def test_the_facts_of_tasks_that_have_ended() -> None:
    """Of a super-step's number, or of that in which a task began that waited; of what others told of before there are none."""
    parent = msgspec.structs.replace(checkpoint.empty("r"), step=3, pending=(Task("late", began=2), Task("a")))
    results = ["told", TaskResult("@signal~1"), TaskResult("a"), TaskResult("b~1", "degraded", attempt=2), TaskResult("b~2", "degraded"), TaskResult("late", "skipped: when")]
    assert checkpoint.list_ends(parent, results) == [
        ev.StepCompleted(4, "a"), ev.StepDegraded(4, "b~1", "degraded", attempt=2), ev.StepDegraded(4, "b~2", "degraded"), ev.StepSkipped(4, "late", "skipped: when"),
    ]
    held = msgspec.structs.replace(parent, held={2: {}})
    assert checkpoint.list_ends(held, [TaskResult("late"), TaskResult("a")]) == [ev.StepCompleted(2, "late"), ev.StepCompleted(4, "a")]


@given(
    st.lists(st.builds(TaskResult, task=st.integers(1, 99).map(lambda n: f"b~{n}"), outcome=st.sampled_from(["ok"] * 20 + ["degraded"]), attempt=st.integers(1, 3)), max_size=14),
    st.integers(0, 2), st.booleans(),
)
def test_many_ends_are_told_at_once_as_one_by_one(results: list[TaskResult], signals: int, named: bool) -> None:
    """§4.6: each task that ends has its fact; signals have none, nor have tasks that others told of before."""
    done: list[TaskResult | str] = [*results, *[TaskResult(f"{checkpoint.SIGNAL}{n}") for n in range(signals)], *(["c"] if named else [])]
    parent = msgspec.structs.replace(checkpoint.empty("r"), step=4)
    assert checkpoint.list_ends(parent, done) == [fact for r in results for fact in checkpoint.list_ends(parent, [r])]


@given(st.lists(st.sampled_from([ev.StepStarted(5, "a"), ev.StepCompleted(4, "b"), ev.StepCompleted(4, "b", path="x"), ev.NoteAdded("n"), ev.StepFailed(4, "c", ErrorValue("E", "m"))]), max_size=12))
def test_the_last_step_that_ended_vouches(facts: list[Any]) -> None:
    """§13.2: else ``checkpoint.saved`` does."""
    told = list(facts)
    hash, place = checkpoint.vouch(checkpoint.empty("r"), told, b"delta", Source.LOOP)
    ended = [i for i, f in enumerate(facts) if isinstance(f, ev.StepEnded) and not f.path]
    last = ended[-1] if ended else None
    assert place == (len(facts) if last is None else last) and [i for i, f in enumerate(told) if getattr(f, "hash", b"") == hash] == [place]
