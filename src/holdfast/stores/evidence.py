"""A run's row as it stands, sound or not: what a checker looks at, and a repair keeps before it writes (§12.1)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from holdfast.core import codec, vouch
from holdfast.core.consistency import Problem, problem
from holdfast.core.errors import HoldfastError, UnknownStatus
from holdfast.core.run import Run
from holdfast.core.status import Status

COPIED = ("tenant_id", "skill_id", "fingerprint", "thread_id", "session_key", "lane", "queue", "priority", "parent_run_id", "lineage_root")

STANDING = ("fence", "owner", "due", "holds", "turn")
"""What no event tells: columns that the row itself vouches for."""


def stands(raw: Mapping[str, Any]) -> bool:
    """Whether what a row says beside its log is what was written."""
    before = {n: raw[n] for n in ("previous", "cause") if n in raw}
    return bool(raw["seal"] == plain(vouch.standing(raw["run_id"], *[raw[n] for n in STANDING], **before)))


def copy_of(run: Run, column: str) -> Any:
    """What stands in a column that repeats a part of the run."""
    return run.shape if column == "fingerprint" else getattr(run, column)


def plain(value: Any) -> Any:
    """A column's value, writable as JSON."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def doc_of(raw: Mapping[str, Any]) -> bytes:
    """The encoded part of a raw row."""
    doc = raw["doc"]
    return base64.b64decode(doc["base64"]) if isinstance(doc, dict) else str(doc).encode()


def as_loaded(raw: Mapping[str, Any]) -> Run | HoldfastError:
    """The run of a raw row, or why it cannot be read."""
    try:
        status = Status(raw["status"])
    except ValueError:
        return UnknownStatus(f"{raw['run_id']} is stored with the status {raw['status']!r}, which this release does not know")
    try:
        run = codec.decode_run(doc_of(raw))
    except HoldfastError as e:
        return e
    return codec.overlay(run, status=status.value, version=raw["version"], step=raw["step"], head=raw["head"])


def row_problems(raw: Mapping[str, Any], run: Run | HoldfastError, last_seq: int | None) -> list[Problem]:
    """What the columns beside the encoded part say otherwise than it does."""
    run_id = raw["run_id"]
    found = []
    if isinstance(run, Run):
        differ = [n for n in COPIED if raw[n] != copy_of(run, n)] + (["run_id"] if run.run_id != run_id else [])
        if differ:
            hint = "holdfast repair-state RUN --apply rewrites it from the events"
            found.append(problem("snapshot_field_drift", f"the columns {', '.join(differ)} differ from the row they index", hint, run_id))
        if codec.decode_run(doc_of(raw)).status != raw["status"]:
            hint = "holdfast repair-state RUN --apply rewrites it from the events"
            found.append(problem("snapshot_status_drift", f"the column says {raw['status']} and the row's own record does not", hint, run_id))
    if not stands(raw):
        about = f"the fields of the row that are not in the log ({', '.join(STANDING)}) are damaged: their checksum does not match"
        found.append(problem("snapshot_field_drift", about, "holdfast repair-state RUN --apply rewrites it from the events", run_id))
    if last_seq is None:
        found.append(problem("event_seq_gap", "the newest commit that the row names is not in the log", "restore a backup", run_id))
    elif last_seq != raw["seq"]:
        found.append(problem("snapshot_field_drift", f"the row counts {raw['seq']} events, its log ends with {last_seq}", "look at the log first; restore a backup if it matters", run_id))
    return found


def end_problems(raw: Mapping[str, Any], run: Run | HoldfastError) -> list[Problem]:
    """What the column by which prunes find old runs says otherwise than the encoded part."""
    if not isinstance(run, Run) or raw["ended"] == end_of(codec.decode_run(doc_of(raw))):  # a status that differs is told of as such
        return []
    hint = "holdfast repair-state RUN --apply rewrites it from the events"
    return [problem("snapshot_field_drift", "the column 'ended' differs from the row that it indexes", hint, raw["run_id"])]


def end_of(run: Run) -> int | None:
    """When a run ended; None while it has not."""
    return run.finished_at if run.terminal else None


__all__ = ["COPIED", "STANDING", "as_loaded", "doc_of", "end_of", "end_problems", "plain", "row_problems", "stands"]
