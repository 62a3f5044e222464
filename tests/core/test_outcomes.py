"""The one predicate that says whether a step is a completed checkpoint (§4.11)."""

from __future__ import annotations

import pytest

from holdfast.core import events as ev
from holdfast.core.outcomes import completes


@pytest.mark.parametrize("outcome", ["ok", "OK", "  ok ", "degraded", " Degraded", "skipped", "skipped: why", "SKIPPED: x", "skippedish"])
def test_these_complete(outcome: str) -> None:
    """T-11."""
    assert completes(outcome)


@pytest.mark.parametrize(
    "outcome",
    ["okayish", "skip", "DONE", "done", None, "", " ", "ok: fine", "degraded: why", "failed", "halted: x", "rejected", "error", "incomplete", 1, True, b"ok"],
)
def test_these_do_not(outcome: object) -> None:
    """T-11: a step that ended is not a step that completed."""
    assert not completes(outcome)


def test_each_success_has_its_kind() -> None:
    """§13.2."""
    kinds = {o: ev.step_ended(o) for o in ("ok", " Skipped: why", "degraded", "OK")}
    assert kinds == {"ok": ev.StepCompleted, " Skipped: why": ev.StepSkipped, "degraded": ev.StepDegraded, "OK": ev.StepCompleted}
