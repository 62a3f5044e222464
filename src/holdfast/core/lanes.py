"""What may be done about the run at the head of a lane by whoever stands behind it (§4.16, §10.8): pure, and one table.

The head is whoever holds the lane, or is due in it first. Whatever nobody alive drives is driven; what cannot be is said, in words.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Blocked(msgspec.Struct, frozen=True):
    """The run that stands in the way, and why it is not simply driven."""

    run_id: str
    why: str


class May(StrEnum):
    """What this process may do about a head: drive it; await its own driving of it; or only say why not."""

    DRIVE = "driven"
    AWAIT = "awaited"
    LIVE = "another's live lease"
    HOLD = "a hold"
    WAIT = "a wait"
    LIMIT = "a limit"
    NO_SKILL = "no such skill"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a lane, as far as it matters here. ``live``: somebody alive holds it; ``here``: this process drives it; ``held``: it is
    interrupted until a named actor resumes it; ``waits``: it rests in a wait that nobody has answered and that is not due; ``known``: this
    process has its code, in a shape that may go on with it; ``crowded``: it rests until a limit that its step uses has room."""

    live: bool = False
    here: bool = False
    held: bool = False
    waits: bool = False
    known: bool = True
    crowded: bool = False


def may(head: Head) -> May:
    """What may be done about it."""
    if head.live:
        return May.AWAIT if head.here else May.LIVE
    if head.held:
        return May.HOLD
    if head.waits:
        return May.WAIT
    if head.crowded:
        return May.LIMIT
    return May.DRIVE if head.known else May.NO_SKILL


__all__ = ["Blocked", "Head", "May", "may"]
