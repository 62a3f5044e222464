"""What is written by mistake in a first hour is refused with the way out (§3.6)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.bounds import function, show
from holdfast.core.errors import InvalidInput, UsageError
from holdfast.core.misused import EnteredAsync, NotCalled, is_function


class Pay(NotCalled):
    id = "pay"


class Door(EnteredAsync):
    pass


def test_a_skill_is_no_function() -> None:
    skill: Any = Pay()
    with pytest.raises(UsageError, match="the skill 'pay' is not called like a function"):
        skill(1, key=2)
    assert is_function(len) and not is_function(skill) and not is_function(1)
    assert show(skill) == "the skill 'pay'"
    with pytest.raises(InvalidInput, match=r"ctx\.child"):
        function(skill, "fn")


def test_what_is_entered_with_async_with_alone() -> None:
    door: Any = Door()
    with pytest.raises(UsageError, match="a Door is entered with `async with`, not with `with`"), door:
        pass
    door.__exit__(None, None, None)
