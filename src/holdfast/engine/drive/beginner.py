"""Begins the tasks of a super-step, each by a plain call (§4.3): most nodes of a fan-out end before they first wait, and then need no asyncio task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from types import CoroutineType
from typing import Any

from holdfast import machine
from holdfast.authoring import State
from holdfast.core import canon
from holdfast.core.channels import ROOM
from holdfast.core.checkpoint import Task, TaskResult
from holdfast.core.commit import Tip
from holdfast.core.graph import Node, Program
from holdfast.core.outcomes import OK
from holdfast.core.superstep import check_writes
from holdfast.engine.base.failures import contain
from holdfast.engine.base.journal import Journal
from holdfast.engine.base.loopwatch import settle, struck
from holdfast.engine.base.services import Services
from holdfast.engine.calls.context import Context, Hand, face
from holdfast.engine.calls.functions import First, await_any, await_in_time
from holdfast.engine.drive.executor import HEAVY, NOTHING, Ahead, Finished, execute, pack, see


class Beginner:
    """Begins the tasks of one super-step. It runs the first part of each task at once, up to where the task first waits. If the task ends there, ``begin`` returns
    its result, and the engine has created no coroutine for it. Otherwise ``begin`` returns a coroutine that continues the task on the general path (as in ``fused``)."""

    __slots__ = ("_forks", "_journal", "_lists", "_loop", "_may", "_name", "_node", "_own", "_program", "_quick", "_services", "_state", "_tip", "_values")
    # These are the same for all tasks of one node until the run's next commit:
    _own: bool
    """Whether this class begins tasks of the node; otherwise ``execute`` does."""
    _node: Node
    _state: State
    _quick: Mapping[str, canon.Shape]
    _lists: Mapping[str, canon.Shape]
    _may: frozenset[str]

    def __init__(self, services: Services, journal: Journal, program: Program) -> None:
        self._services = services
        self._journal = journal
        self._program = program
        self._loop = asyncio.get_running_loop()
        self._forks = machine.forks()
        self._name = ""
        self._tip: Tip | None = None
        self._values: Mapping[str, Any] = NOTHING

    def _look(self, name: str) -> None:
        """Caches what the tasks of this node have in common, before the first of them begins."""
        journal, program = self._journal, self._program
        self._tip = tip = journal.tip
        light = name in program.light and not journal.run.budgets
        self._own = light and (tip is None or tip.since + tip.whole <= ROOM)
        if light and (name != self._name or journal.progress.checkpoint.values is not self._values):
            self._values = journal.progress.checkpoint.values
            self._node = node = program.nodes[name]
            self._state = see(program, node, self._values)
            self._quick, self._lists, self._may = program.quick[name], program.lists[name], program.light[name]
        self._name = name

    def begin(self, key: str, task: Task, me: asyncio.Task[Any]) -> Finished | Coroutine[Any, Any, Finished]:
        """Begins a task; returns its result, or a coroutine for the rest of it. ``me``: the current asyncio task, in which that coroutine must run."""
        journal, program, forks = self._journal, self._program, self._forks
        if task.node != self._name or journal.tip is not self._tip:
            self._look(task.node)
        if not self._own or task.skip or task.began or journal.progress.attempts:
            return execute(self._services, journal, program, task)
        node, snapshot = self._node, self._state
        hand = Hand(self._services, journal, program, self._loop)
        hand.take(node, task, snapshot)
        began, cancelling = self._loop.time(), me.cancelling()
        face.set(hand)  # the caller runs this in a copied context and discards the copy
        value: Any = None
        try:
            try:
                work = node.call(snapshot) if node.shape == "state" else node.call(snapshot, Context(hand=hand))
                if type(work) is not CoroutineType:
                    work = await_any(work)
                waiting = work.send(None)
            finally:
                if struck:
                    settle()
                here = machine.forks()  # must be the first call after the node (see ``fused``)
        except StopIteration as end:
            value = end.value
        except BaseException as e:
            machine.end_child(forks, node.name)
            return self._go_on(task, hand, node, First(began, cancelling, forks, error=e))
        else:
            machine.end_child(forks, node.name)
            return self._go_on(task, hand, node, First(began, cancelling, forks, work=work, waiting=waiting))
        if here == forks and me.cancelling() == cancelling and not hand.asked and (value is None or type(value) is dict):
            found: tuple[Mapping[str, Any], bytes | None] | None = (NOTHING, None)
            if value:
                found = canon.pack_plain(value, self._quick, self._lists) or pack_looked_at(program, node, value, self._may)
            if found is not None and (found[1] is None or len(found[1]) <= HEAVY):
                hand.ended = True
                return Finished(TaskResult(key, OK, found[1]), found[0])
        machine.end_child(forks, node.name)
        return self._go_on(task, hand, node, First(began, cancelling, forks, value=value))

    def _go_on(self, task: Task, hand: Hand, node: Node, first: First) -> Coroutine[Any, Any, Finished]:
        return execute(self._services, self._journal, self._program, task, ahead=Ahead(await_in_time(first, hand.time(), node.name), hand))


def pack_looked_at(program: Program, node: Node, value: dict[str, Any], may: frozenset[str]) -> tuple[Mapping[str, Any], bytes] | None:
    """Validates and packs writes of a light node that are more than plain values; returns them as its annotations define them, with their bytes. Returns None if
    the general path is to report what is wrong with them. ``may``: the channels that the node is known to be free to write."""
    try:
        if value.keys() <= may:
            check_writes(program, node, value)
            return pack(program, node, value)
    except BaseException as e:
        contain(e, node.name)
    return None


__all__ = ["Beginner", "pack_looked_at"]
