"""A run's row as it is, sound or not: what a checker examines, and what a repair backs up before it writes (§12.1)."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping
from typing import Any

from holdfast.core import codec, vouch
from holdfast.core import events as ev
from holdfast.core.codec import Row
from holdfast.core.consistency import Problem, problem
from holdfast.core.errors import HoldfastError, LogRolledBack, StoreCorrupt, UnknownStatus
from holdfast.core.run import Run
from holdfast.core.status import LIVE, Status

COPIED = ("tenant_id", "skill_id", "fingerprint", "thread_id", "session_key", "lane", "queue", "priority", "parent_run_id", "lineage_root")

STANDING = ("fence", "owner", "due", "holds", "turn")
"""Columns that no event determines; a checksum in the row vouches for them."""


def stands(raw: Mapping[str, Any]) -> bool:
    """Whether a row's columns that are not in its log are what was written."""
    before = {n: raw[n] for n in ("previous", "cause") if n in raw}
    return bool(raw["seal"] == plain(vouch.standing(raw["run_id"], *[raw[n] for n in STANDING], **before)))


def copy_of(run: Run, column: str) -> Any:
    """Returns the value of a column that repeats a part of the run."""
    return run.shape if column == "fingerprint" else getattr(run, column)


def plain(value: Any) -> Any:
    """Returns a column's value, writable as JSON."""
    return {"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value


def behind_its_log(run_id: str) -> StoreCorrupt:
    """Returns the error for a run whose row is older than the end of its log: the row is out of date, and commits based on it would begin a second
    history."""
    about = f"the row of {run_id} does not fit its log: all of it, or a part, is older than the newest commit there"
    return StoreCorrupt(about, hint=f"holdfast repair-state {run_id} --apply rewrites the row from the log", code="snapshot_field_drift")


def beyond_its_log(run_id: str, ends: int, written: int) -> LogRolledBack:
    """Returns the error for a run whose row was written with a commit that its log no longer has (§1.9)."""
    about = f"the log of {run_id} ends with event {ends}, but its row was written with event {written}: the end of the log was lost"
    return LogRolledBack(about, hint="restore a backup; until then nothing is written to this run")


def misfit(record: Run, status: Status, ends: int) -> StoreCorrupt | None:
    """Returns why a run's record, beside a column with this status, cannot belong to a log with so many events; None if it can. Plain steps leave the
    record as it is, and are made only while the run is driven."""
    if record.version > ends:
        return beyond_its_log(record.run_id, ends, record.version)
    if record.status is not status or (record.version < ends and status not in LIVE):
        return behind_its_log(record.run_id)
    return None


def changes_record(row: Row) -> bool:
    """Whether a commit changes more of a run's record than plain steps do. A commit that cannot be read is reported when the log is read."""
    try:
        codec.plain_decoders()[0](row.data)
    except codec.UNDECODABLE:
        with contextlib.suppress(HoldfastError):
            return not ev.HOT.issuperset(type(event.fact) for event in codec.open_row(row).events)
    return False


def doc_of(raw: Mapping[str, Any]) -> bytes:
    """Returns the encoded part of a raw row."""
    doc = raw["doc"]
    return base64.b64decode(doc["base64"]) if isinstance(doc, dict) else str(doc).encode()


def as_loaded(raw: Mapping[str, Any]) -> Run | HoldfastError:
    """Returns the run of a raw row, or why it cannot be read."""
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
    """Returns where the columns differ from the encoded part of the row."""
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
        hint = "holdfast repair-state RUN --apply rewrites it from the events"
        found.append(problem("snapshot_field_drift", f"the row counts {raw['seq']} events, its log ends with {last_seq}", hint, run_id))
    return found


def end_problems(raw: Mapping[str, Any], run: Run | HoldfastError) -> list[Problem]:
    """Returns where the column by which prunes find old runs differs from the encoded part."""
    if not isinstance(run, Run) or raw["ended"] == end_of(codec.decode_run(doc_of(raw))):  # a status that differs is reported as such
        return []
    hint = "holdfast repair-state RUN --apply rewrites it from the events"
    return [problem("snapshot_field_drift", "the column 'ended' differs from the row that it indexes", hint, raw["run_id"])]


def end_of(run: Run) -> int | None:
    """Returns when a run ended; None if it has not."""
    return run.finished_at if run.terminal else None


__all__ = ["COPIED", "STANDING", "as_loaded", "behind_its_log", "beyond_its_log", "changes_record", "doc_of", "end_of", "end_problems", "misfit", "plain", "row_problems", "stands"]
