"""Leases and fences (§10): who may write a run, and until when.

A fence is one integer: the store's incarnation in the high bits, a counter in the low 32. A commit under any fence
but the current one is refused, so a restored or replaced store also refuses the commits of its old workers.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

COUNTER_BITS = 32
COUNTER = (1 << COUNTER_BITS) - 1
DEFAULT_TTL_US = 30_000_000
SAFE_PART = 0.6
AT_ONCE = -(2**62)
# Why a run that has an owner may be claimed: the owner is the claimer itself, its lease has expired, or it is proven dead.
RECLAIMED, EXPIRED, OWNER_DEAD = "reclaimed", "expired", "owner_dead"


class Alive(StrEnum):
    """Whether the owner's process lives; ``NO`` only if there is proof (§2.9)."""

    YES = "true"
    NO = "false"
    UNKNOWN = "unknown"


class OwnerId(msgspec.Struct, frozen=True):
    """The parts of an owner's name, which identify its process (§10.1). ``boot`` is the machine's boot id, with the process namespace after a dot."""

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
        """Returns the parts of a name that the runtime has given, or None for any other name."""
        parts = name.rsplit("-", 4)
        if len(parts) != 5 or not parts[2].isdecimal():
            return None
        return cls(parts[0], parts[1], int(parts[2]), parts[3], parts[4])


class Lease(msgspec.Struct, frozen=True):
    """The operational columns of a run, which are not part of the fold (§1.4). ``due``: when it next needs a worker; negative: at once."""

    fence: int
    owner: str | None = None
    expires_at: int | None = None
    owner_alive: Alive = Alive.UNKNOWN
    due: int | None = None

    def live(self, now: int) -> bool:
        """Whether a live owner holds it: the lease has not expired, and the owner is not proven dead."""
        return self.owner is not None and self.owner_alive is not Alive.NO and self.expires_at is not None and self.expires_at > now


class Take(msgspec.Struct, frozen=True):
    """The commit takes the run for ``owner``: fence n becomes n + 1. ``found``: the run existed and was due, and the commit replaces its claim, so it is
    valid only if the run's inbox is empty and no limit is stored."""

    owner: str
    found: bool = False


class Keep(msgspec.Struct, frozen=True):
    """The holder keeps the lease."""


class Release(msgspec.Struct, frozen=True):
    """The holder writes its last commit and releases the lease with it (§10.5)."""


class Touch(msgspec.Struct, frozen=True):
    """A commit to a run at rest, from any process: it takes fence n + 1 and releases it at once."""


LeaseAction = Take | Keep | Release | Touch
KEEP = Keep()
RELEASE = Release()
TOUCH = Touch()


def counter(fence: int) -> int:
    """Returns the part of a fence that is shown beside an event."""
    return fence & COUNTER


def at_once(now: int) -> int:
    """Returns the due time of something that is due at once, since ``now``.

    It is negative, so that it is due under any clock: if the clock was ahead when this was written, nothing is delayed once it is right (§10.3).
    """
    return AT_ONCE + now


def due_time(due: int) -> int:
    """Returns the time to show for a due time: when it falls due, or since when it has been due."""
    return due - AT_ONCE if due < 0 else due


def due_since(due: int, now: int) -> int:
    """Returns since when something has been due; the longest wait goes first. A time in the future, from a clock that was ahead, counts as the earliest."""
    return 0 if due < 0 and due_time(due) > now else due_time(due)


def safe_until(renewed_at: int, ttl_us: int) -> int:
    """Returns the last moment at which a holder may begin an effect (§10.3)."""
    return renewed_at + int(ttl_us * SAFE_PART)
