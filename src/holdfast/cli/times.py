"""Times and lengths of time as people type them."""

from __future__ import annotations

import datetime as dt
import re

from holdfast.calendar import CALENDAR
from holdfast.core.errors import InvalidInput
from holdfast.handle import when

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def lasting(text: str) -> dt.timedelta:
    """Returns a length of time from text as people type it.

    Raises:
        InvalidInput: the text is no length of time.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([smhdw])", text.strip())
    if found is None:
        raise InvalidInput(f"{text!r} is not a length of time", hint="a number and one of s, m, h, d, w: 30d")
    try:
        return dt.timedelta(seconds=float(found[1]) * _UNITS[found[2]])
    except OverflowError:
        raise InvalidInput(f"{text} is too long", hint="30d") from None


def moment(text: str, zone: str | None = None) -> dt.datetime:
    """Returns a time from text as people type it; without an offset it is in ``zone``, if that is given.

    Raises:
        InvalidInput: the text is no time, or has neither an offset nor a zone.
    """
    hint = "ISO 8601 with an offset: 2026-11-21T09:00+01:00, 2026-11-21T08:00Z"
    try:
        at = dt.datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(f"{text!r} is not a time", hint=hint) from None
    if at.tzinfo is None and zone is not None:
        return at.replace(tzinfo=CALENDAR.zone(zone))
    if at.tzinfo is None:
        raise InvalidInput(f"{text!r} has no time zone", hint=hint)
    return at


def past(text: str | None, what: str, now: int) -> int | None:
    """Returns a time in microseconds since 1970, from a time or from how long before ``now`` (in the same unit) it was: ``2h``, ``7d``.

    Raises:
        InvalidInput: the text is neither.
    """
    if text is None:
        return None
    if re.fullmatch(r"[\d.]+[smhdw]", text.strip()):
        return _us(when(now) - lasting(text))
    try:
        return _us(moment(text))
    except InvalidInput as e:
        raise InvalidInput(f"{what}: {e.message}", hint="2h, 7d, or ISO 8601 with an offset: 2026-11-21T08:00Z") from None


def _us(at: dt.datetime) -> int:
    return (at - when(0)) // dt.timedelta(microseconds=1)
