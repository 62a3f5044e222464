"""Retries: how often, how long apart, and for which failures (§10.9)."""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.core.bounds import LONGEST_US, Declared, classes, number
from holdfast.core.errors import (
    BadReturn,
    ContractViolation,
    Denied,
    EffectAbandoned,
    NodeMissing,
    PathOutsideWorkspace,
    PermanentError,
    RecordMismatch,
    StepLimit,
    StepRejected,
    SuspensionSwallowed,
    ToolMissing,
    UndeclaredChannel,
    UsageError,
)

SECOND = 1_000_000
CEILING = 300 * SECOND
MOST_ATTEMPTS = 10_000

# The errors that another attempt cannot fix, recognized by type and never by their text.
PERMANENT: tuple[type[BaseException], ...] = (
    Denied,
    EffectAbandoned,
    PathOutsideWorkspace,
    ToolMissing,
    PermanentError,
    UndeclaredChannel,
    ContractViolation,
    BadReturn,
    UsageError,
    RecordMismatch,
    SuspensionSwallowed,
    NodeMissing,
    StepLimit,
    StepRejected,
)


class Retry(msgspec.Struct, frozen=True, metaclass=Declared):
    """``max_attempts`` is the number of attempts including the first. ``base_us`` is the first pause in microseconds; it doubles with each
    attempt, up to 5 minutes. ``on`` are the errors after which another attempt is made."""

    max_attempts: int = 1
    base_us: int = SECOND
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        number(self.max_attempts, "max_attempts", 1, MOST_ATTEMPTS)
        number(self.base_us, "base_us", 0, LONGEST_US)
        msgspec.structs.force_setattr(self, "on", classes(self.on, "on"))

    def retries(self, error: BaseException, attempt: int) -> bool:
        """Whether a failure of attempt number ``attempt`` (from 1) is tried again."""
        return attempt < self.max_attempts and isinstance(error, self.on) and not isinstance(error, PERMANENT)


ONCE = Retry()


def coerce(value: Retry | int | None, field: str = "retry") -> Retry:
    """Returns a ``Retry``; ``retry=3`` is short for three attempts.

    Raises:
        InvalidInput: the value is not a number of attempts.
    """
    if value is None:
        return ONCE
    if isinstance(value, Retry):
        return value
    return Retry(max_attempts=number(value, field, 1, MOST_ATTEMPTS))


def backoff(attempt_id: str, attempt: int, base_us: int = SECOND, retry_after_us: int | None = None) -> int:
    """Returns the microseconds until the next attempt: min(5 min, base x 2^(n-1)) x (0.5 + u).

    ``u`` in [0, 1) comes from the attempt's id, so that the pause is bounded and repeatable. A receiver's
    ``Retry-After`` is used if it is longer.
    """
    word = int.from_bytes(hashlib.sha256(attempt_id.encode()).digest()[:8], "big")
    u = word / 2**64
    return max(int(_middle(attempt, base_us) * (0.5 + u)), retry_after_us or 0)


def time_left(due: int, now: int, attempt: int, base_us: int = SECOND) -> int:
    """Returns the microseconds left of the pause after failure number ``attempt``: never more than such a pause may last, even if the
    wall clock was changed since it began (§10.3)."""
    return max(0, min(due - now, int(_middle(attempt, base_us) * 1.5)))


def _middle(attempt: int, base_us: int) -> int:
    return int(min(CEILING, base_us * 2 ** min(attempt - 1, 40)))
