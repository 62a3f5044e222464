"""Runs a child graph in place of a node (§4.14).

Theory of operation. The child has checkpoints of its own, which are kept in memory only: they are a pure function of the child's input and of its finished tasks.
Each finished task is a recorded call of the parent's task, at the place ``<super-step>.<task>`` beneath the parent's path, and so is everything that the task did
through ``ctx``. If the parent's task runs again after a crash or a wait, the child replays those records and runs only what has none. The parent sees nothing of the
child before it returns one merged write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core import starts, superstep
from holdfast.core.checkpoint import Checkpoint, IntentWrite, LedgerWrite, StepRecord, Task, TaskResult
from holdfast.core.errors import StepLimit
from holdfast.core.graph import Node, Program
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.calls.attempt import Suspend
from holdfast.engine.calls.scopes import all_end

Done = tuple[TaskResult, Mapping[str, Any]]
One = Callable[[Task, Mapping[str, Any], str], Awaitable[Done]]

_GROWING = frozenset({"append", "window", "topic"})
_result = msgspec.msgpack.Decoder(TaskResult)


class Ended(msgspec.Struct):
    """The result of a child. ``wrote``: its own writes to each channel, in order; ``given``: the channels that it was passed."""

    given: frozenset[str]
    values: Mapping[str, Any] = {}
    wrote: dict[str, list[Any]] = {}
    intents: list[IntentWrite] = []
    ledger: list[LedgerWrite] = []

    def merge(self, parent: Program, node: Node) -> dict[str, Any]:
        """Returns the one write that goes through the parent's reducers: what the child added to a channel that grows, otherwise its last value."""
        out: dict[str, Any] = {}
        for name in node.pass_out or ():
            into, own = _reducer(parent, name), _reducer(node.child, name)
            wrote = self.wrote.get(name)
            if into in _GROWING and own in _GROWING:
                if wrote:
                    out[name] = [x for w in wrote for x in (w if isinstance(w, list) else [w])]
            elif into == own == "merge":
                if wrote:
                    out[name] = {k: v for w in wrote for k, v in w.items()}
            elif name in self.values and (wrote or name not in self.given):
                out[name] = self.values[name]
        return out


def _reducer(program: Program, name: str) -> str:
    return program.channels[name].reducer.tag.partition(":")[0]


class Subflow:
    """One attempt at a child graph. ``one`` executes a task of it, with the values of its channels and at its path."""

    def __init__(self, journal: Journal, node: Node, key: str, path: str, parallel: int, one: One) -> None:
        self._journal = journal
        self._node = node
        self._program: Program = node.child
        self._key = key
        self._prefix = f"{path}/" if path else ""
        self._room = asyncio.Semaphore(parallel)
        self._one = one

    async def drive(self, values: Mapping[str, Any], payload: Any) -> Ended:
        """Runs the child to its end. If the payload of a ``Send`` is a mapping, it is input in addition to the copied channels.

        Raises:
            Suspend: some of its tasks rest in waits.
            StepLimit: it made more super-steps in one attempt than its limit allows (§4.9).
        """
        program = self._program
        given = {n: values[n] for n in self._node.pass_in or () if n in values}
        if isinstance(payload, Mapping):
            given |= payload
        start = TaskResult(cps.INPUT_TASK, writes=superstep.pack_input(program, given)[1])
        _, cp = starts.first(program, cps.empty(self._journal.run.run_id), start)
        ended = Ended(given=frozenset(given), wrote={n: [v] for n, v in cp.values.items() if n not in given and v})
        rounds = 0
        while cp.pending:
            done = {t.key: found for t in cp.pending if (found := self._find_done(cp, t)) is not None}
            todo = [t for t in cp.pending if t.key not in done]
            if todo:
                if rounds >= program.step_limit:
                    raise StepLimit(f"the sub-flow {self._node.name} went round {rounds} times; its limit is {program.step_limit}")
                rounds += 1
                done |= await self._round(cp, todo)
            results = {key: result for key, (result, _) in done.items()}
            tasks = cp.pending
            _, cp = superstep.barrier(program, cp, results, inline=frozenset(), decoded={k: w for k, (_, w) in done.items()})
            for task in tasks:
                ended.intents += results[task.key].intents
                ended.ledger += results[task.key].ledger
                for name, value in cp.writes[task.key].items():
                    ended.wrote.setdefault(name, []).append(value)
        ended.values = cp.values
        return ended

    def _path(self, cp: Checkpoint, task: Task) -> str:
        return f"{self._prefix}{cp.step + 1}.{task.key}"

    def _find_done(self, cp: Checkpoint, task: Task) -> Done | None:
        record = self._journal.record(self._key, self._path(cp, task))
        if record is None or record.kind != "task" or record.value is None:
            return None
        result = _result.decode(record.value)
        return result, cps.decode_writes(result)

    async def _round(self, cp: Checkpoint, todo: list[Task]) -> dict[str, Done]:
        """Runs one super-step. Each result is durable at once; the first other outcome in task order decides how the super-step ends."""
        if len(todo) == 1:
            return {todo[0].key: await self._turn(cp, todo[0])}
        stop = False

        async def turn(task: Task) -> Done | None:
            nonlocal stop
            async with self._room:
                if stop:
                    return None
                try:
                    return await self._turn(cp, task)
                except Exception:
                    stop = True
                    raise

        running = [asyncio.create_task(turn(t)) for t in todo]
        await all_end(running)
        waits: dict[str, Any] = {}
        failed: BaseException | None = None
        for each in running:
            error = each.exception()
            if isinstance(error, Suspend):
                waits |= {w.wait_id: w for w in error.waits}
            else:
                failed = failed or error
        if failed is not None:
            raise failed
        if waits:
            raise Suspend(tuple(waits.values()))
        return {t.key: done for t, each in zip(todo, running, strict=True) if (done := each.result()) is not None}

    async def _turn(self, cp: Checkpoint, task: Task) -> Done:
        path = self._path(cp, task)
        result, writes = await self._one(task, cp.values, path)
        if not task.skip:
            fact = ev.step_ended(result.outcome)(self._journal.progress.checkpoint.step_of(self._key), self._key, result.outcome, attempt=result.attempt, path=path)
            record = StepRecord(self._key, path, task.key, value=msgspec.msgpack.encode(result), attempt=result.attempt, kind="task")
            await self._journal.save(Draft(facts=[fact], results=[record]))
        return result, writes


__all__ = ["Ended", "Subflow"]
