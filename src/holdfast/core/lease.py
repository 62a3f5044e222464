"""Leases and fences (§10): who may write a run, and until when.

A fence is one integer: the store's incarnation in the high bits, a counter in the low 32. A commit under any
other fence than the current one is refused, so a restored or replaced store also fences off its old workers.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

COUNTER_BITS = 32
COUNTER = (1 << COUNTER_BITS) - 1
DEFAULT_TTL_US = 30_000_000
SAFE_PART = 0.6
AT_ONCE = -(2**62)
# Why a run may be claimed that another had: it was one's own, its owner's lease has run out, its owner is proven dead.
RECLAIMED, EXPIRED, OWNER_DEAD = "reclaimed", "expired", "owner_dead"


class Alive(StrEnum):
    """Whether the owner's process lives: ``no`` only by proof (§2.9)."""

    YES = "true"
    NO = "false"
    UNKNOWN = "unknown"


class OwnerId(msgspec.Struct, frozen=True):
    """What an owner's name tells of its process (§10.1): ``boot`` is that of the machine, with the process namespace behind a dot."""

    host: str
    boot: str
    pid: int
    started: str
    nonce: str

    @property
    def name(self) -> str:
        return f"{self.host}-{self.boot}-{self.pid}-{self.started}-{self.nonce}"

    @classmethod
    def parse(cls, name: str) -> OwnerId | None:
        """The parts of a name that the house has given; None for any other."""
        parts = name.rsplit("-", 4)
        if len(parts) != 5 or not parts[2].isdecimal():
            return None
        return cls(parts[0], parts[1], int(parts[2]), parts[3], parts[4])


class Lease(msgspec.Struct, frozen=True):
    """The operational columns of a run: no part of the fold (§1.4). ``due``: when it next needs a worker, below zero for at once."""

    fence: int
    owner: str | None = None
    expires_at: int | None = None
    owner_alive: Alive = Alive.UNKNOWN
    due: int | None = None

    def live(self, now: int) -> bool:
        """Whether somebody holds it: not expired, and not proven dead."""
        return self.owner is not None and self.owner_alive is not Alive.NO and self.expires_at is not None and self.expires_at > now


class Take(msgspec.Struct, frozen=True):
    """The commit takes the run for ``owner``: fence n becomes n + 1. ``found``: the run was there and due, and the commit stands in the place of its claim,
    so that nothing may be in its inbox, and no limit stored."""

    owner: str
    found: bool = False


class Keep(msgspec.Struct, frozen=True):
    """The holder writes on."""


class Release(msgspec.Struct, frozen=True):
    """The holder writes its last and gives the lease back in the same commit (§10.5)."""


class Touch(msgspec.Struct, frozen=True):
    """Written at rest by whoever came: takes fence n + 1 and gives it back at once."""


LeaseAction = Take | Keep | Release | Touch
KEEP = Keep()
RELEASE = Release()
TOUCH = Touch()


def counter(fence: int) -> int:
    """The part of a fence that people see beside an event."""
    return fence & COUNTER


def at_once(now: int) -> int:
    """What says that something is due at once, since ``now``.

    It lies below zero, so that it is due under any clock: one that was ahead when this was written delays nothing once it is right (§10.3).
    """
    return AT_ONCE + now


def due_time(due: int) -> int:
    """The time that people are shown for it: when it falls due, or since when it has been."""
    return due - AT_ONCE if due < 0 else due


def due_since(due: int, now: int) -> int:
    """Since when something has been due: whoever waits longest goes first. What a clock ahead has stamped goes before all others."""
    return 0 if due < 0 and due_time(due) > now else due_time(due)


def safe_until(renewed_at: int, ttl_us: int) -> int:
    """The last moment at which a holder may begin an effect (§10.3)."""
    return renewed_at + int(ttl_us * SAFE_PART)
