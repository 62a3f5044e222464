"""Where a run may be left without cutting anything short (§10.13).

Between super-steps, that is anywhere. Inside one, a node stands at a boundary when its next ctx call would begin and
none is in flight: what it did so far is on record. A plain node, and a call, are let come to their end first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Standing(Protocol):
    """The part of an attempt that is looked at here: its calls in flight, and whether it stands still."""

    calls: int
    parked: bool


class Boundaries:
    """Watches the tasks of a super-step once somebody has ``asked``; ``reached`` is called when all that run stand at a boundary."""

    def __init__(self, reached: Callable[[], None]) -> None:
        self.asked = False
        self._reached = reached
        self._tasks: dict[str, set[Standing]] = {}

    def ask(self) -> None:
        self.asked = True
        self.look()

    def begin(self, task: str) -> None:
        """A task is entered; it counts as under way until what came of it is durable."""
        self._tasks[task] = set()

    def end(self, task: str) -> None:
        self._tasks.pop(task, None)
        self.look()

    def clear(self) -> None:
        self._tasks.clear()

    def enter(self, task: str, node: Standing) -> None:
        self._tasks.setdefault(task, set()).add(node)

    def leave(self, task: str, node: Standing) -> None:
        self._tasks.get(task, set()).discard(node)

    async def stand(self, node: Standing) -> None:
        """Stands still before a call is begun, until the scope is closed."""
        node.parked = True
        self.look()
        await asyncio.Event().wait()

    def look(self) -> None:
        if self.asked and self._tasks and all(nodes and all(n.parked and not n.calls for n in nodes) for nodes in self._tasks.values()):
            self._reached()


__all__ = ["Boundaries"]
