"""Decides what the process of a run that waits in a lane may do about the run at the lane's head (§4.16, §10.8): pure, one table.

The head is the run that holds the lane, or is the first due in it. If no live process drives the head, this process
does; if it cannot, it says why.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Blocked(msgspec.Struct, frozen=True):
    """The run that blocks the lane, and why it is not simply driven."""

    run_id: str
    why: str


class May(StrEnum):
    """What this process may do about a head: drive it; wait, because it is driving it already; or only say why it cannot."""

    DRIVE = "driven"
    AWAIT = "awaited"
    LIVE = "another's live lease"
    HOLD = "a hold"
    WAIT = "a wait"
    LIMIT = "a limit"
    NO_SKILL = "no such skill"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The head of a lane, as far as it matters here. ``live``: a live process holds it; ``here``: this process drives it; ``held``: it is
    interrupted until a named actor resumes it; ``waits``: it rests in a wait that is neither answered nor due; ``known``: this
    process has its code, in a shape that may continue it; ``crowded``: it rests until a limit that its step uses has room."""

    live: bool = False
    here: bool = False
    held: bool = False
    waits: bool = False
    known: bool = True
    crowded: bool = False


def may(head: Head) -> May:
    """Returns what this process may do about the head."""
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
