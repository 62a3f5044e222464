"""Branches of a scope, and the signals that they take (§5.11).

A branch that is given up returns the signals that it has not used. Code has used a signal once it has made another call after it; until then the signal can answer
the next wait of its name. So each branch knows the lines of control around it, and how many calls each had made when a signal was given.

If signals came before several branches asked for them, they answer in one commit, in the order in which they came. So a crash does not change which came first.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.core import decisions
from holdfast.core import events as ev
from holdfast.core.toolcalls import place_of
from holdfast.core.waits import SIGNAL
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.calls.attempt import Attempt, Scope

T = TypeVar("T")
Given = dict[str, tuple[tuple[Scope, int], ...]]
"""The signals that code was given, by the places of their waits: how many calls each line of control around the code had made by then."""


async def wait_to_end(writing: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Awaits a commit. If the caller is canceled meanwhile, it still waits until the commit is durable or refused, because the code that canceled it must see what it wrote.

    A second cancel is not delayed: the commit continues without its caller.
    """
    task = asyncio.ensure_future(writing)
    task.add_done_callback(_hear)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _hear(task: asyncio.Future[Any]) -> None:
    """Retrieves the commit's error if its caller was canceled; the next commit will meet the same error."""
    if not task.cancelled():
        task.exception()


class Early:
    """The signals that branches of one attempt have found and that answer together."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._found: list[tuple[tuple[int, int], Draft]] = []
        self._writing: asyncio.Task[None] | None = None

    async def answer(self, came: tuple[int, int], draft: Draft) -> None:
        """Makes an answer durable, together with those that other branches find in this turn of the event loop. ``came`` gives their order: signals of the run's record are
        the oldest."""
        self._found.append((came, draft))
        if self._writing is None:
            self._writing = asyncio.ensure_future(self._write())
        await wait_to_end(self._writing)

    async def _write(self) -> None:
        await asyncio.sleep(0)  # lets the other branches reach their first calls
        found, self._found, self._writing = sorted(self._found, key=lambda f: f[0]), [], None
        both = Draft()
        for _, draft in found:
            both.merge(draft)
        await self._journal.save(both)


class Branch(msgspec.Struct, frozen=True, gc=False):
    """The branch in which code runs. ``lines``: the lines of control around it, from the outermost on."""

    mark: object
    lines: tuple[Scope, ...]
    given: Given
    early: Early

    def give(self, path: str, line: Scope) -> None:
        """Notes that the code which waits at a place has been given a signal."""
        self.given[path] = tuple([(scope, scope.made) for scope in (*self.lines, line)])


_here: contextvars.ContextVar[Branch | None] = contextvars.ContextVar("holdfast_branch", default=None)


def find_branch(attempt: Attempt) -> Branch | None:
    """Returns the branch of this attempt in which the code runs, or None."""
    found = _here.get()
    return found if found is not None and found.mark is attempt.places.mark else None


def make_branch(attempt: Attempt) -> Branch:
    """Returns what the branches of a scope that is opened here have in common."""
    around, line = find_branch(attempt), attempt.places.scope()
    if around is None:
        return Branch(attempt.places.mark, (line,), {}, Early(attempt.journal))
    return msgspec.structs.replace(around, lines=(*around.lines, line))


def enter(branch: Branch) -> None:
    """Marks the code of this task as running in a branch from here on."""
    _here.set(branch)


def find_unused(attempt: Attempt, path: str, given: Given, used: Iterable[str], reason: str) -> list[ev.WaitClosed]:
    """Returns the facts that give back the signals beneath a place that no code has used: the newest first, because each is put before those that wait.

    ``used``: the branches whose outcome is the scope's; the signals that they were given count as used.
    """
    found = []
    for (task, at), record in attempt.journal.progress.records.items():
        if task != attempt.key or record.kind != "wait" or not at.startswith(f"{path}/") or any(at.startswith(f"{branch}/") for branch in used):
            continue
        answer = decisions.read_answer(record)
        name = answer.asked.partition(":")[2]
        if answer.action != SIGNAL or answer.payload is None or place_of(name) is not None or _went_on(path, given.get(at, ())):
            continue
        found.append(ev.WaitClosed(answer.wait_id, reason, ev.SignalReceived(name, answer.key, answer.payload, answer.actor)))
    return found[::-1]


def _went_on(path: str, made: Iterable[tuple[Scope, int]]) -> bool:
    """Whether a line of control beneath a place has made another call since."""
    return any(scope.made > count for scope, count in made if scope.prefix.startswith(f"{path}/"))


__all__ = ["Branch", "Early", "Given", "enter", "find_branch", "find_unused", "make_branch", "wait_to_end"]
