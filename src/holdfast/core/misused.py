"""What is written by mistake in a first hour, and would end in an error of Python that names no way out (§3.6).

For a type checker the methods are not there, so it refuses the same mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

from holdfast.core.errors import UsageError


def _refuse_call(skill: Any, *_: Any, **__: Any) -> None:
    raise UsageError(
        f"the skill {skill.id!r} is not called like a function",
        hint="await rt.run(skill, …) executes it; within a run: await ctx.child(skill, {…}). To test its code alone: await my_flow.function(ctx, …), or its node",
    )


def _refuse_with(value: Any) -> None:
    kind = type(value).__name__
    raise UsageError(f"a {kind} is entered with `async with`, not with `with`", hint=f"async with {kind}(…) as rt: …, in an async def that asyncio.run(…) executes")


def _leave(value: Any, *_: Any) -> None:
    """Python looks for it before it enters."""


class NotCalled:
    """A skill: the runtime executes it, and nobody calls it."""

    id: str
    __call__: None = _refuse_call  # type: ignore[assignment]


class EnteredAsync:
    """What is entered with ``async with`` alone."""

    __enter__: None = _refuse_with  # type: ignore[assignment]
    __exit__: None = _leave  # type: ignore[assignment]


def is_function(value: object) -> TypeGuard[Callable[..., Any]]:
    """Whether it can be called, and is meant to be."""
    return callable(value) and not isinstance(value, NotCalled)


__all__ = ["EnteredAsync", "NotCalled", "is_function"]
