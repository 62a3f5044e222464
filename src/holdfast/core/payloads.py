"""The payloads in records (§14.5): the one table of the fields that contain values of programs and words of people, and the walk over them.

Fields that are not in the table are written unencrypted: ids, names, keys, tags, actors, times, statuses, counts, sizes and digests. A test
checks that every field of every stored record is in one of the two groups.

Each payload has a place, a text that stays the same when a fold copies the payload: for example, the payload of a run's end has the place
``end`` both in the event and in the run's row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from holdfast.core import blobs, commands, envelopes
from holdfast.core import events as ev
from holdfast.core.called import Called
from holdfast.core.canon import FrozenDict, decode
from holdfast.core.checkpoint import Delta, Held, IntentWrite, LedgerWrite, SendTo, StepRecord, Task, TaskResult
from holdfast.core.commit import InboxItem, LedgerRow
from holdfast.core.effects import Effect
from holdfast.core.errors import ErrorValue, Frame, HoldfastError
from holdfast.core.intents import SENDER_LOST, Delivery, Intent, Ruling
from holdfast.core.run import Buffered, Run
from holdfast.core.schedules import Schedule
from holdfast.core.waits import Decision, Wait, WaitKind

Change = Callable[[Any, str], Any]
"""A function that returns the new value of a payload, from its bytes or text and its place."""

PAYLOAD: dict[type, tuple[str, ...]] = {
    ErrorValue: ("message", "hint"),
    Frame: ("source",),
    Wait: ("prompt", "show", "schema", "default", "reads"),
    Decision: ("feedback", "note", "payload", "asked"),
    Buffered: ("payload",),
    Run: ("result",),
    # commands in an inbox
    commands.Decide: ("feedback", "note", "payload"),
    commands.Signal: ("payload",),
    commands.Cancel: ("reason",),
    commands.ChildEnded: ("result",),
    commands.LateResult: ("summary",),
    commands.Refused: ("reason",),
    # facts in the log
    ev.RunSubmitted: ("input",),
    ev.RunCompleted: ("result",),
    ev.RunCancelRequested: ("reason",),
    ev.RunForked: ("reason",),
    ev.RunInterrupted: ("cause",),
    ev.PolicyEvaluated: ("reason",),
    ev.WaitDenied: ("reason",),
    ev.WaitClosed: ("reason",),
    ev.SignalReceived: ("payload",),
    ev.SideEffectAttempted: ("detail",),
    ev.SideEffectRecorded: ("detail",),
    ev.SideEffectReused: ("detail",),
    ev.SideEffectBlocked: ("detail",),
    ev.SideEffectFailed: ("detail",),
    ev.SideEffectUnknown: ("detail",),
    ev.SideEffectAbandoned: ("detail",),
    ev.IntentEnqueued: ("detail",),
    ev.PostconditionEvaluated: ("detail",),
    ev.StateRepaired: ("detail",),
    ev.StatePatched: ("reason",),
    ev.NoteAdded: ("text",),
    Called: ("item",),
    # checkpoints
    Delta: ("values",),
    Held: ("values",),
    Task: ("payload", "feedback", "owed"),
    TaskResult: ("writes", "result", "feedback"),
    SendTo: ("payload",),
    IntentWrite: ("payload",),
    LedgerWrite: ("data",),
    StepRecord: ("value", "name"),
    # records beside the log
    Effect: ("result", "args", "detail"),
    Intent: ("payload", "detail", "answer"),
    Delivery: (),
    Ruling: ("reason",),
    LedgerRow: ("data",),
    Schedule: ("input", "error"),
}


def change_each(value: Any, place: str, change: Change) -> Any:
    """Returns the record with each of its payloads changed, or the same object if none changes."""
    if isinstance(value, tuple):
        items = tuple([change_each(v, f"{place}/{n}", change) if isinstance(v, msgspec.Struct) else v for n, v in enumerate(value)])
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    kind = type(value)
    wanted, base = PAYLOAD.get(kind, ()), _anchor(value) or place
    found: dict[str, Any] = {}
    new: Any
    for name in kind.__struct_fields__:
        old = getattr(value, name)
        if name in wanted:
            new = change(old, f"{base}.{name}") if old and _is_covered(value, name) else old
        elif isinstance(old, msgspec.Struct | tuple):
            new = change_each(old, f"{base}.{name}", change)
        elif isinstance(old, dict) and any(isinstance(v, msgspec.Struct) for v in old.values()):
            each = {k: change_each(v, f"{base}.{name}:{k}", change) for k, v in old.items()}
            new = each if any(each[k] is not v for k, v in old.items()) else old
        else:
            continue
        if new is not old:
            found[name] = new
    return msgspec.structs.replace(value, **found) if found else value


def _anchor(value: Any) -> str:
    """Returns the place of a record's payloads if it does not depend on what contains the record; otherwise an empty text."""
    match value:
        case Wait():
            return f"wait:{value.wait_id}"
        case Decision() | commands.Decide():
            return f"decision:{value.wait_id}"
        case Buffered() | ev.SignalReceived():
            return f"signal:{value.name}:{value.key}"
        case Run() | ev.RunCompleted() | ev.RunFailed():
            return "end"
        case Effect():
            return f"effect:{value.effect_id}"
        case Intent():
            return f"intent:{value.intent_id}"
        case InboxItem():
            return f"inbox:{value.key}"
        case LedgerRow():
            return f"ledger:{value.topic}:{value.key}:{value.at}"
        case Schedule():
            return f"schedule:{value.schedule_id}"
    return ""


def _is_covered(value: Any, name: str) -> bool:
    """Whether a field is a payload in this record. A value that a fold or a store must read is not, and neither is a reference to a blob."""
    match value:
        case Wait():
            return name != "default" or value.kind is not WaitKind.BUDGET
        case Decision():
            return name != "asked" or not value.key
        case StepRecord():
            return value.kind.startswith("wait") if name == "name" else blobs.reference_in(value.value) is None
        case Effect():
            return name != "result" or blobs.reference_in(value.result) is None
    return True


def may_be_plain(value: bytes | str, place: str) -> bool:
    """Whether a payload may be unencrypted even under strict encryption: a text written by a store, or the amount of a budget's extension."""
    if isinstance(value, str):
        return value == SENDER_LOST and place.startswith("intent:")
    if not (place.startswith("decision:") and place.endswith(".payload")):
        return False
    try:
        said = decode(value)
    except HoldfastError:
        return False
    return isinstance(said, int | float) or (isinstance(said, FrozenDict) and set(said) == {"extend"} and isinstance(said["extend"], int | float))


def has_sealed(value: Any) -> bool:
    """Whether a record contains a payload that is still sealed."""
    return bool(keys_of(value))


def keys_of(value: Any) -> Collection[str]:
    """Returns the keys under which payloads of a record are sealed."""
    return {h.key_id for h in _headers(value)}


def hold_open(value: Any) -> None:
    """Refuses a record with a payload that could not be opened.

    Raises:
        KeyUnavailable: for the first such payload.
    """
    for header in _headers(value):
        raise envelopes.unavailable(header)


def _headers(value: Any) -> list[envelopes.Header]:
    found: list[envelopes.Header] = []

    def note(data: Any, place: str) -> Any:
        if envelopes.is_sealed(data) and (header := envelopes.header_of(data)) is not None:
            found.append(header)
        return data

    change_each(value, "", note)
    return found


def blank(value: Any) -> Any:
    """Returns the record with all sealed payloads emptied, so that the rest can be compared without their keys."""
    return change_each(value, "", lambda data, place: (b"" if isinstance(data, bytes) else "") if envelopes.is_sealed(data) else data)


__all__ = ["PAYLOAD", "Change", "blank", "change_each", "has_sealed", "hold_open", "keys_of", "may_be_plain"]
