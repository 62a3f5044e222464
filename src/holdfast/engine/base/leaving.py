"""The ways out of a node that are no failure, and what else a node may raise (§5.12, X-24)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.core.errors import StepFailure
from holdfast.engine.base import cancels


class Leaving(BaseException):
    """Leaves a node and is no failure of it: a wait, a fresh start, a halt. No code of a user has any business catching it."""

    def joined(self, others: Sequence[Leaving]) -> Leaving:
        """One way out where several branches of a node found theirs: the first, unless its kind knows better."""
        return self


def contained(error: BaseException, what: str) -> Exception:
    """What a BaseException out of a user's code counts as: a failure of its step, not the end of the process that serves others.

    Raises:
        BaseException: this very one, where it is for the house (``Leaving``), somebody at the keyboard, or a cancel from outside.
    """
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling() and cancels.asked(task):
            raise error
        while task is not None and task.cancelling():
            task.uncancel()
        return StepFailure(f"{what} let a CancelledError out that it had raised or caused itself", code="cancelled_inside")
    if isinstance(error, Leaving | KeyboardInterrupt):
        raise error
    if isinstance(error, SystemExit):
        return StepFailure(f"{what} called sys.exit({_shown(error.code)})", code="system_exit")
    if isinstance(error, BaseExceptionGroup):
        if (pressed := error.subgroup(KeyboardInterrupt)) is not None:
            raise KeyboardInterrupt from pressed
        return StepFailure(f"{what} raised {type(error).__name__} of {len(error.exceptions)}: {'; '.join(map(_named, error.exceptions))}", code="base_exception")
    return StepFailure(f"{what} raised {_named(error)}", code="base_exception")


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_shown(error)}"


def _shown(value: object) -> str:
    """Its text, whatever its ``__str__`` does."""
    try:
        return str(value) if isinstance(value, BaseException) else repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException as e:
        return f"(its text cannot be made: {type(e).__name__})"


__all__ = ["Leaving", "contained"]
