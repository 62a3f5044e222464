"""The state machine (§2)."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.core import status
from holdfast.core.errors import IllegalTransition, UnknownStatus
from holdfast.core.status import CLASSES, RESUMABLE, TERMINAL, TRANSITIONS, Condition, Status

EDGES = {
    ("pending", "running"),
    ("running", "waiting_for_human"),
    ("running", "waiting_for_signal"),
    ("running", "replaying"),
    ("running", "completed"),
    ("running", "failed"),
    ("running", "canceled"),
    ("waiting_for_human", "running"),
    ("waiting_for_signal", "running"),
    ("replaying", "running"),
    ("replaying", "failed"),
    ("replaying", "canceled"),
}


@pytest.mark.parametrize(("current", "wanted"), list(product(Status, Status)))
def test_of_64_pairs_exactly_twelve_pass(current: Status, wanted: Status) -> None:
    """T-01, §2.2."""
    if (current.value, wanted.value) in EDGES:
        assert status.move(current, wanted) is wanted
        return
    with pytest.raises(IllegalTransition) as refused:
        status.move(current, wanted)
    assert current.value in refused.value.message
    assert wanted.value in refused.value.message


def test_eight_values_are_stored_and_spelt_so() -> None:
    """§2.1: three of them are ends."""
    stored = ["pending", "running", "waiting_for_human", "waiting_for_signal", "replaying", "completed", "failed", "canceled"]
    assert [s.value for s in Status] == stored
    assert [s for s in Status if s in TERMINAL] == stored[5:]
    assert [status.parse(word) for word in stored] == list(Status)


def test_the_table_has_twelve_edges() -> None:
    """§2.2."""
    assert len(TRANSITIONS) == 12


def test_resumable_statuses_have_no_edge() -> None:
    """T-02, §2.3: no status setter reaches them."""
    assert {Status.FAILED, Status.CANCELED} == RESUMABLE
    assert not any(current in TERMINAL for current, _ in TRANSITIONS)


@pytest.mark.parametrize("current", [Status.PENDING, Status.WAITING_FOR_HUMAN, Status.WAITING_FOR_SIGNAL])
def test_a_run_at_rest_is_canceled_through_running(current: Status) -> None:
    """T-01, §2.4."""
    assert status.path(current, Status.CANCELED) == (Status.RUNNING, Status.CANCELED)


def test_a_replay_ends_through_running() -> None:
    """T-03, §2.5."""
    assert status.path(Status.REPLAYING, Status.COMPLETED) == (Status.RUNNING, Status.COMPLETED)
    assert status.path(Status.REPLAYING, Status.WAITING_FOR_HUMAN) == (Status.RUNNING, Status.WAITING_FOR_HUMAN)
    assert status.path(Status.REPLAYING, Status.FAILED) == (Status.FAILED,)


def test_an_ended_run_has_no_path() -> None:
    """T-02, §2.3."""
    with pytest.raises(IllegalTransition):
        status.path(Status.COMPLETED, Status.RUNNING)


def test_both_spellings_of_canceled_are_read() -> None:
    """§2.11."""
    assert status.parse("cancelled") is status.parse("canceled") is Status.CANCELED


@pytest.mark.parametrize("word", ["", "done", "Running", "paused", None, 3, []])
def test_an_unknown_status_is_an_error(word: object) -> None:
    """T-52, §2.6: never coerced."""
    with pytest.raises(UnknownStatus):
        status.parse(word)  # type: ignore[arg-type]


def test_every_condition_has_a_class() -> None:
    """§2.9."""
    assert set(CLASSES) == set(Condition)
