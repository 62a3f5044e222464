"""Changes that a named person makes to a run at rest: its state, its tags, a note (§7.7, §14.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.core import bounds, canon, decisions, superstep
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core.checkpoint import Delta, Source
from holdfast.core.effects import Effect
from holdfast.core.errors import Conflict, HoldfastError, InvalidInput, NotDecidable, RunIsLive, SettledTerminal, UndecidedWait
from holdfast.core.lease import TOUCH
from holdfast.core.run import Run
from holdfast.core.status import TERMINAL, WAITING, Status, move
from holdfast.core.wording import target_of
from holdfast.engine.base.failures import record
from holdfast.engine.base.journal import Draft, Journal
from holdfast.engine.base.reader import Reader
from holdfast.engine.base.services import Skills
from holdfast.engine.drive.commands import PATIENCE, Desk
from holdfast.ports import Store


class StateEditor:
    """Writes to runs that no process executes; each change is an event with its actor."""

    def __init__(self, store: Store, skills: Skills, reader: Reader, desk: Desk) -> None:
        self._skills = skills
        self._store = store
        self._reader = reader
        self._desk = desk

    async def state(self, run_id: str, values: Mapping[str, Any], *, actor: str, reason: str) -> None:
        """Gives channels other values, in a checkpoint that ``state.patched`` vouches for.

        Raises:
            InvalidInput: the run has no such channel.
            SettledTerminal: the run has ended for good; fork it.
            RunIsLive: a process executes the run now.
        """
        loaded = await self._reader.load(run_id)
        run, now = loaded.run, self._store.now()
        if run.status is Status.COMPLETED or run.settled:
            raise SettledTerminal(f"the run is {run.status} for good", hint=f"holdfast fork {run_id} {target_of(run.target)} --set CHANNEL=JSON")
        if loaded.lease.live(now):
            raise RunIsLive(f"{run_id} is executed by {loaded.lease.owner}", hint="wait until nobody executes the run")
        journal = Journal.load(self._store, loaded, loaded.lease.fence + 1)
        parent = journal.progress.checkpoint
        program = self._skills.find(run.skill_id, run.skill_version) if run.skill_id in self._skills.ids else None
        unknown = [n for n in values if n not in parent.values and (program is None or n not in program.channels)]
        if unknown or parent.seq == 0:
            raise InvalidInput(f"{run_id} has no channel {', '.join(unknown)}" if unknown else f"{run_id} has not started")
        given = dict(values) if program is None else superstep.check_values(program, values, "values", program.values)
        data = bounds.check_size(canon.encode(canon.admit(given, "values")), "values")
        delta = Delta(step=parent.step, source=Source.PATCH, values=data)
        checkpoint = cps.advance(parent, delta, journal.progress.results, seq=0, at=0, hash=b"")
        await journal.checkpoint(Draft(facts=[ev.StatePatched(tuple(values), reason)]), delta, checkpoint, lease=TOUCH, due=loaded.lease.due, actor=actor)

    async def status(self, run_id: str, wanted: Status, *, actor: str, reason: str) -> None:
        """Moves a run at rest along one of the twelve edges (§2.2). It never passes an undecided wait.

        Raises:
            IllegalTransition: the table has no such edge.
            UndecidedWait: a person has not answered yet (§7.2).
        """
        source = {Status.FAILED: Source.FAILURE, Status.CANCELED: Source.CANCEL}.get(wanted, Source.WAIT)
        await self._put(run_id, lambda run: Draft(facts=list(_moves(run, wanted, actor, reason))), actor, source if wanted in TERMINAL | WAITING else None)

    async def note(self, run_id: str, text: str, *, actor: str) -> None:
        await self._put(run_id, lambda _: Draft(facts=[ev.NoteAdded(text)]), actor)

    async def run(self, run_id: str, *, actor: str, tags: tuple[str, ...] | None, priority: int | None, trace_id: str | None) -> None:
        await self._put(run_id, lambda _: Draft(facts=[ev.RunPatched(tags, priority, trace_id)]), actor)

    async def effect(self, run_id: str, effect: Effect, fact: ev.Fact, *, actor: str) -> None:
        await self._put(run_id, lambda _: Draft(facts=[fact], effects=[effect]), actor)

    async def _put(self, run_id: str, become: Callable[[Run], Draft], actor: str, source: Source | None = None) -> None:
        """Writes one commit, decided on the run as it is once its inbox is empty."""
        for _ in range(PATIENCE):
            await self._desk.settle(run_id)
            loaded = await self._reader.load(run_id)
            draft = become(loaded.run)
            if loaded.lease.live(self._store.now()):
                raise RunIsLive(f"{run_id} is executed by {loaded.lease.owner}", hint="wait until nobody executes the run")
            if await self._desk.at_rest(loaded, draft, actor=actor, source=source, due=loaded.lease.due):
                return
        raise Conflict(f"others keep writing {run_id}", hint="try again")


def _moves(run: Run, wanted: Status, actor: str, reason: str) -> Iterable[ev.Fact]:
    """Returns the facts of one edge of the table.

    Raises:
        IllegalTransition, UndecidedWait, NotDecidable: the move is not possible.
    """
    move(run.status, wanted)
    if wanted is Status.RUNNING and any(w.human for w in run.waits):
        raise UndecidedWait(f"{run.run_id} waits for a person", hint=f"holdfast waits {run.run_id} shows the commands that answer it")
    if wanted in WAITING and not any(w.human is (wanted is Status.WAITING_FOR_HUMAN) for w in run.waits):
        raise NotDecidable(f"the status of {run.run_id} cannot become {wanted}: it has no open wait of that kind", hint="a node opens one: ctx.approve, ctx.wait")
    match wanted:
        case Status.RUNNING:
            return [ev.RunStarted() if run.status is Status.PENDING else ev.RunResumed(cause="operator", checkpoint_id=run.checkpoint_head)]
        case Status.COMPLETED:
            return decisions.mark_run_done(run)
        case Status.FAILED:
            error = HoldfastError(reason or f"{actor} said so", code="marked_failed")
            return decisions.mark_run_failed(run, "marked_failed", record(error))
        case Status.CANCELED:
            return [*decisions.close_waits(run, "canceled"), ev.RunCanceled(stop_reason=reason or "canceled")]
        case Status.REPLAYING:
            return [ev.RunReplaying()]
        case Status.WAITING_FOR_HUMAN:
            return [ev.RunWaitingForHuman()]
        case _:
            return [ev.RunWaitingForSignal()]


__all__ = ["StateEditor"]
