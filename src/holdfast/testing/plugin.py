"""The pytest plugin: crashes at every store write, virtual time, stubbed steps.

It comes with the package; nothing needs to be configured. docs/testing.md has an example of each fixture.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from holdfast.authoring import Skill
from holdfast.engine.calls import effects, steps
from holdfast.engine.calls.functions import Patience, call
from holdfast.handle import Run
from holdfast.testing.clock import VirtualClock
from holdfast.testing.crash import Fault
from holdfast.testing.replay import Replayed, assert_replays
from holdfast.testing.world import Disturbed, Script, World, approve_known, crash_everywhere


class Crashes:
    """The value of the fixture ``holdfast_crashes``: runs a skill with a crash at each of its store writes."""

    def __call__(
        self,
        skill: Skill,
        inputs: Mapping[str, Any] | None = None,
        *,
        script: Script = approve_known,
        faults: Iterable[Fault] = (Fault.BEFORE, Fault.AFTER),
        fresh: Callable[[World], object] | None = None,
    ) -> tuple[Run[Any], list[Disturbed]]:
        """Gives the undisturbed run and one ``Disturbed`` for each crash. See ``crash_everywhere``. By default every question is
        approved, and a question about an effect whose outcome nobody knows fails the test."""
        return crash_everywhere(skill, inputs, script=script, faults=faults, fresh=fresh)


class Stubs:
    """Answers in place of functions called through ``ctx.step`` and ``ctx.effect``, by the function's name.

    ``calls`` lists what was called, with its arguments, stubbed or not.
    """

    def __init__(self) -> None:
        self._answers: dict[str, Any] = {}
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def step(self, name: str, answer: Any) -> None:
        """``answer`` is a value, an exception to raise, or a function of the same arguments."""
        self._answers[name] = answer

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], limit: int | Patience, what: str) -> Any:
        self.calls.append((what, args))
        if what not in self._answers:
            return await call(function, args, limit, what)
        answer = self._answers[what]
        if isinstance(answer, BaseException):
            raise answer
        return await call(answer, args, limit, what) if callable(answer) else answer


@pytest.fixture
def holdfast_crashes() -> Crashes:
    """Runs a skill with a crash before and after every store write."""
    return Crashes()


class Replays:
    """The value of the fixture ``holdfast_replay``: compares a recorded run with the present code."""

    def __call__(self, skill: Skill, recorded: str | os.PathLike[str], run_id: str | None = None, **options: Any) -> Replayed:
        """Fails the test with the differences, if there are any. See ``assert_replays``."""
        return asyncio.run(assert_replays(skill, recorded, run_id, **options))


@pytest.fixture
def holdfast_replay() -> Replays:
    """Compares a recorded run with the present code, and calls nothing outside."""
    return Replays()


@pytest.fixture
def holdfast_world() -> World:
    """Hosts over one store in virtual time, to be killed, frozen and started again."""
    return World()


@pytest.fixture
def holdfast_clock() -> VirtualClock:
    """A clock for ``Runtime(clock=…)`` in an ordinary test: it moves when ``advance`` says so."""
    return VirtualClock()


@pytest.fixture
def holdfast_stubs(monkeypatch: pytest.MonkeyPatch) -> Stubs:
    """Stubbed steps: ``holdfast_stubs.step("summarise", "short")``."""
    stubs = Stubs()
    monkeypatch.setattr(steps, "call", stubs.call)
    monkeypatch.setattr(effects, "call", stubs.call)
    return stubs


__all__ = ["Crashes", "Replays", "Stubs", "holdfast_clock", "holdfast_crashes", "holdfast_replay", "holdfast_stubs", "holdfast_world"]
