"""Waiting for news: whoever waits hears of it, or why it cannot be looked for."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core.errors import StoreError
from holdfast.stores.changes import Changes


async def test_a_look_that_fails_is_told_to_whoever_waits() -> None:
    """X-14: the timer that looks is awaited by nobody, so that its error would be seen by nobody; the next look is made all the same."""
    answers: list[int | StoreError] = [1, StoreError("input or output failed"), 1, 2]

    def probe() -> int:
        match answers.pop(0) if len(answers) > 1 else answers[0]:
            case StoreError() as error:
                raise error
            case number:
                return number

    unseen: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: unseen.append(about))
    changes = Changes(probe)
    await changes.wait(0)
    with pytest.raises(StoreError, match="input or output"):
        await changes.wait(5)
    await changes.wait(5)
    changes.close()
    assert unseen == []
