"""How a step ended, and the one predicate that says whether it completed (§4.11)."""

from __future__ import annotations

OK = "ok"
DEGRADED = "degraded"
SKIPPED = "skipped"
FAILED = "failed"


def completes(outcome: object) -> bool:
    """Whether a step with this outcome is a completed checkpoint.

    ``ok``, ``degraded`` or anything that begins with ``skipped``, trimmed and lower-cased; every other word,
    ``""`` and ``None`` is not. The fold, the checkpoint writer, the resume and the summaries all call this.
    """
    if outcome == OK:
        return True
    if not isinstance(outcome, str):
        return False
    word = outcome.strip().lower()
    return word in (OK, DEGRADED) or word.startswith(SKIPPED)
