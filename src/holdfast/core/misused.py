"""Common mistakes of new users that would otherwise raise a Python error without a hint (§3.6).

A type checker does not see these methods, so it reports the same mistakes.
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
    """Does nothing; it must exist because Python looks for ``__exit__`` before it calls ``__enter__``."""


class NotCalled:
    """Base of skills: the runtime executes a skill, and a direct call is refused."""

    id: str
    __call__: None = _refuse_call  # type: ignore[assignment]


class EnteredAsync:
    """Base of classes that can be entered only with ``async with``."""

    __enter__: None = _refuse_with  # type: ignore[assignment]
    __exit__: None = _leave  # type: ignore[assignment]


def is_function(value: object) -> TypeGuard[Callable[..., Any]]:
    """Whether a value can be called and is not a skill."""
    return callable(value) and not isinstance(value, NotCalled)


__all__ = ["EnteredAsync", "NotCalled", "is_function"]
