"""Who cancelled a task: the house, somebody outside, or the step that runs in it (X-24).

asyncio has one cancel for all of them. A step that cancels its own task, or lets a CancelledError out that nobody asked for,
has failed; only a cancel from outside ends the run's driving, and with it the worker. So the house marks the tasks that it
cancels itself, and knows which tasks it has made: such a task, cancelled by nobody who may, was cancelled by its step.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

_told: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
_serving: weakref.WeakKeyDictionary[asyncio.Task[Any], weakref.ref[asyncio.Task[Any]]] = weakref.WeakKeyDictionary()


def cancel(task: asyncio.Task[Any]) -> None:
    """Cancels a task in the name of the house."""
    _told.add(task)
    task.cancel()


def uncancel(task: asyncio.Task[Any]) -> int:
    """Takes one's own cancel back; gives how many others are left."""
    _told.discard(task)
    return task.uncancel()


def told(task: asyncio.Task[Any]) -> bool:
    """Whether the house has cancelled it."""
    return task in _told


def serve(task: asyncio.Task[Any]) -> None:
    """The task was made by the house and works for the current one: whoever ends that one ends this one too."""
    current = asyncio.current_task()
    if current is not None:
        _serving[task] = weakref.ref(current)


def asked(task: asyncio.Task[Any]) -> bool:
    """Whether a cancel of this task was asked for by somebody who may: the house, or who cancels whom it works for.

    A task that the house has not made is its maker's to cancel.
    """
    if task in _told:
        return True
    found = _serving.get(task)
    if found is None:
        return task.cancelling() > 0
    root = found()
    return root is None or root.done() or asked(root)


__all__ = ["asked", "cancel", "serve", "told", "uncancel"]
