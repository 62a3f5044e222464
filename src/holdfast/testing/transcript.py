"""A run as text: what happened, under which fence, and its state at the end.

Ids and times are replaced by what they mean (R1, +2.5s), so that the text is the same each time and a change of
behaviour shows as a readable difference. Golden transcripts and the story of a failing seed use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.called import Called
from holdfast.core.codec import open_row
from holdfast.core.errors import HoldfastError
from holdfast.core.progress import Progress
from holdfast.engine.look.threads import Threads
from holdfast.ports import RunFilter, Store


async def transcript(store: Store, run_ids: Iterable[str] | None = None, *, since: int | None = None) -> str:
    """The logs of the runs as text, oldest run first; by default of all runs of the store.

    Args:
        since: the moment from which times are counted, in microseconds since 1970; by default the time of the first event.
    """
    if run_ids is None:
        run_ids = [run.run_id for run, _ in reversed(await store.runs(RunFilter(limit=1000)))]
    ids = list(run_ids)
    parts = ["\n".join([*await _log(store, run_id, since), *await ending(store, run_id)]) for run_id in ids]
    return shorten("\n\n".join(parts), ids) + "\n"


def shorten(text: str, run_ids: Iterable[str]) -> str:
    """Returns the text with short names in place of ids that are new each time."""
    for number, run_id in enumerate(dict.fromkeys(run_ids), 1):
        text = text.replace(run_id, f"R{number}")
    return text


async def ending(store: Store, run_id: str) -> list[str]:
    """Returns, as lines of text, a run's status, its values and the status of its effects."""
    found = await store.get(run_id)
    if found is None:
        return []
    run, progress, damage = found[0], Progress(run_id), []
    try:
        rows = await store.rows(run_id)
        progress = Progress(run_id, await Threads(store).origin(run_id, rows))
        progress.walk(rows)
    except HoldfastError as e:
        damage = [f"  cannot be continued: {e.message}"]
    reason = f" ({run.stop_reason})" if run.stop_reason else ""
    effects = [f"    effect {e.effect_id} {e.capability}: {e.status}" for e in await store.effects(run_id)]
    return [*damage, f"  = {run.status}{reason}  {dict(progress.checkpoint.values)!r}", *effects]


async def _log(store: Store, run_id: str, since: int | None) -> list[str]:
    found = await store.get(run_id)
    if found is None:
        return [f"{run_id}: not in the store"]
    run, _ = found
    lines = [f"{run_id}  {run.skill_id}  lane {run.lane}"]
    try:
        for row in await store.rows(run_id):
            record = open_row(row)
            since = record.at if since is None else since
            at = f"+{(record.at - since) / 1_000_000:.3f}s"
            lines.append(f"  {at:>10}  fence {record.fence}")
            lines += [f"{'':>14}{e.seq:>3} {line(e.fact)}" for e in record.events]
    except HoldfastError as e:
        lines.append(f"  unreadable from here on: {e.message}")
    return lines


def line(fact: ev.Fact | ev.Unknown) -> str:
    """Returns an event as text: its name and the fields that say something."""
    if isinstance(fact, ev.Unknown):
        return f"unknown kind {fact.tag}"
    match fact:
        case ev.WaitRequested(wait=wait):
            return f"{fact.wire} {wait.kind} {wait.prompt or wait.name!r}"
        case ev.WaitDecided(decision=d) | ev.WaitTimedOut(decision=d):
            return f"{fact.wire} {d.action} by {d.actor}"
        case ev.RunSubmitted():
            return f"{fact.wire} {canon.decode(fact.input)!r}"
    words = [_word(n, getattr(fact, n), default) for n, default in _fields(fact)]
    return " ".join([fact.wire, *(w for w in words if w)])


def _fields(fact: ev.Fact) -> list[tuple[str, Any]]:
    names = fact.__struct_fields__
    defaults = fact.__struct_defaults__
    return list(zip(names, (*(msgspec.NODEFAULT for _ in range(len(names) - len(defaults))), *defaults), strict=True))


def _word(name: str, value: Any, default: Any) -> str:
    if value == default or name in ("hash", "due", "key"):
        return ""
    if isinstance(value, bytes):
        return f"{name}={_decode(value)}"
    if isinstance(value, Called):
        return f"{name}={str(value)!r}"
    if isinstance(value, msgspec.Struct):
        return f"{name}={getattr(value, 'message', type(value).__name__)!r}"
    return str(value) if default is msgspec.NODEFAULT else f"{name}={value}"


def _decode(value: bytes) -> str:
    try:
        return repr(canon.decode(value))
    except HoldfastError:
        return value.hex()


__all__ = ["ending", "line", "shorten", "transcript"]
