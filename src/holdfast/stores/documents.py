"""Records as JSON with their field names, for people, and back: the content of ``meta.json`` (§12.5)."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast.core import views
from holdfast.core.errors import ErrorValue, EventUnreadable, Frame, UnknownStatus
from holdfast.core.run import Buffered, Later, Run, Versions
from holdfast.core.schedules import Schedule
from holdfast.core.status import Status
from holdfast.core.waits import Decision, Wait

_TIMES = frozenset(
    {
        "created_at", "started_at", "finished_at", "not_before", "slot", "cancel_requested_at", "interrupted_at", "deadline", "requested_at",
        "decided_at",
    }
)
_INNER: dict[type[msgspec.Struct], dict[str, type[msgspec.Struct]]] = {
    Run: {
        "versions": Versions, "error": ErrorValue, "waits": Wait, "decisions": Decision, "waivers": Decision, "rearm": Wait, "signals": Buffered, "later": Later,
    },
    ErrorValue: {"frames": Frame},
}
_schedules = msgspec.json.Decoder(list[Schedule])
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def document(struct: msgspec.Struct) -> dict[str, Any]:
    """Returns a record with its field names, for people and for ``revive``."""
    return {name: _plain(name, getattr(struct, name)) for name in struct.__struct_fields__}


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return document(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, tuple):
        return [_plain("", v) for v in value]
    return views.iso(value) if name in _TIMES and isinstance(value, int) else value


def revive(kind: type[msgspec.Struct], fields: Any) -> Any:
    """Returns the record with these fields, checked by type.

    Raises:
        EventUnreadable: it is not such a record.
        UnknownStatus: its status is none of the eight (§2.6).
    """
    try:
        if kind is Run and fields["status"] not in set(Status):
            raise UnknownStatus(f"{fields['run_id']} is stored with the status {fields['status']!r}, which this release does not know")
        return msgspec.convert(_positions(kind, fields), kind)
    except (msgspec.ValidationError, KeyError, TypeError, ValueError, OverflowError) as e:
        raise EventUnreadable(f"meta.json cannot be read: {e}") from e


def _positions(kind: type[msgspec.Struct], fields: Any) -> list[Any]:
    out = []
    for field in msgspec.structs.fields(kind):
        name = field.name
        if name not in fields and not field.required:
            # The file of an earlier release does not know the field: it gets the value that its events imply, the default.
            out.append(msgspec.to_builtins(field.default if field.default is not msgspec.NODEFAULT else field.default_factory()))
            continue
        value = fields[name]
        inner = _INNER.get(kind, {}).get(name)
        if inner is not None and value is not None:
            value = [_positions(inner, v) for v in value] if isinstance(value, list) else _positions(inner, value)
        elif name in _TIMES and isinstance(value, str):
            value = (dt.datetime.fromisoformat(value) - _EPOCH) // dt.timedelta(microseconds=1)
        out.append(value)
    return out


def agenda(schedules: Iterable[Schedule]) -> bytes:
    """Returns schedules as the text of a file."""
    return msgspec.json.format(msgspec.json.encode(list(schedules)), indent=2) + b"\n"


def read_schedules(text: bytes) -> dict[str, Schedule]:
    """Returns the schedules of such a text, by id.

    Raises:
        EventUnreadable: it is damaged.
    """
    try:
        return {s.schedule_id: s for s in _schedules.decode(text)}
    except (msgspec.MsgspecError, UnicodeError) as e:
        raise EventUnreadable(f"schedules.json cannot be read: {e}", hint="restore it from a backup, or remove it and schedule it again") from e


__all__ = ["agenda", "document", "read_schedules", "revive"]
