"""Makes views of steps and attempts for people, from the events of a run (§10.9). Pure.

A plain step has two events, its start and its end; a step that failed, was retried, was taken over or had effects has more.
Here they are combined: one ``StepView`` for each step, one ``AttemptView`` for each attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from holdfast.core import events as ev
from holdfast.core import ids
from holdfast.core.describe import AttemptView, StepView, error
from holdfast.core.errors import ErrorValue
from holdfast.core.lease import Lease
from holdfast.core.run import Run
from holdfast.core.views import NO_NAMES, Place, iso, name_call

LOST = "lost"
"""The outcome of an attempt whose owner's lease expired before the attempt's end was recorded."""
INCOMPLETE = "incomplete"


class _Try(msgspec.Struct, frozen=True):
    began: int | None
    owner: str | None
    ended: int | None = None
    outcome: str | None = None
    error: ErrorValue | None = None
    again: int | None = None


class Turns:
    """Reads events in order; then ``steps`` and ``attempts`` return the views."""

    def __init__(self, run: Run, lease: Lease | None = None) -> None:
        self._run = run
        self._lease = lease
        self._owner: str | None = None
        self._turns: dict[Place, list[_Try]] = {}
        self._calls: dict[Place, str] = {}

    def feed(self, events: Iterable[ev.Event]) -> Turns:
        for event in events:
            self._note(event)
        return self

    def _note(self, event: ev.Event) -> None:
        at, fact = event.at, event.fact
        match fact:
            case ev.StepEnded() | ev.StepFailed() | ev.StepRetryScheduled() | ev.AttemptStarted() if told := name_call(fact):
                self._calls[fact.step, fact.task, fact.path] = told
        match fact:
            case ev.RunClaimed(owner=owner):
                self._owner = owner
            case ev.StepStarted(step=step, task=task):
                self._begin((step, task, ""), at)
            case ev.SideEffectAttempted(step=step, task=task, path=path) if path:
                self._begin((step, task, path), at)
            case ev.AttemptStarted(step=step, task=task, path=path, owner=owner):
                self._begin((step, task, path), at, owner)
            case ev.StepEnded(step=step, task=task, path=path, outcome=outcome):
                self._end((step, task, path), at, outcome)
            case ev.StepFailed(step=step, task=task, path=path, outcome=outcome, error=failure):
                self._end((step, task, path), at, outcome, failure)
            case ev.StepRetryScheduled(step=step, task=task, path=path, due=due, error=failure):
                self._end((step, task, path), at, "failed", failure, due)
            case ev.AttemptLeaseExpired(owner=owner):
                for tries in self._turns.values():
                    if tries[-1].outcome is None:
                        tries[-1] = replace(tries[-1], ended=at, outcome=LOST, owner=owner)
            case ev.AttemptTakenOver(owner=owner):
                self._owner = owner
                for tries in self._turns.values():
                    if tries[-1].outcome == LOST:
                        tries.append(_Try(at, owner))
            case _:
                pass

    def _begin(self, place: Place, at: int, owner: str | None = None) -> None:
        tries = self._turns.setdefault(place, [])
        if not tries or tries[-1].outcome is not None:
            due = tries[-1].again if tries else None
            tries.append(_Try(at if due is None else min(due, at), owner or self._owner))  # it began before this event was written

    def _end(self, place: Place, at: int, outcome: str, failure: ErrorValue | None = None, again: int | None = None) -> None:
        tries = self._turns.setdefault(place, [])
        if not tries or tries[-1].outcome is not None:  # a recorded call has only an event for its end
            tries.append(_Try(None, self._owner))
        tries[-1] = replace(tries[-1], ended=at, outcome=outcome, error=failure, again=again)

    def _tell(self, last: _Try) -> tuple[str | None, int | None]:
        """Returns how and when a step ended: not yet, if it is tried again; ``incomplete``, if its run ended before it."""
        if last.outcome is None or last.again is not None:
            return (INCOMPLETE, self._run.finished_at) if self._run.terminal else (None, None)
        return last.outcome, last.ended

    def _call(self, place: Place, names: Mapping[Place, str]) -> str:
        """Returns a name that distinguishes this step: a call's name with its item, or a sent task's with its payload (``names``)."""
        return self._calls.get(place) or names.get(place) or place[2].rpartition("/")[2] or place[1]

    def steps(self, names: Mapping[Place, str]) -> list[StepView]:
        """Returns all steps in the order of their first events. ``names``: the names of recorded calls and sent tasks."""
        out = []
        for place, tries in self._turns.items():
            step, task, path = place
            outcome, ended = self._tell(tries[-1])
            out.append(
                StepView(
                    step_id=ids.step_id(self._run.run_id, step, task, path),
                    name=names.get(place, path.rpartition("/")[2]) if path else task,
                    call=self._call(place, names),
                    path=path,
                    outcome=outcome,
                    attempts=len(tries),
                    started_at=iso(tries[0].began),
                    ended_at=iso(ended),
                    error=error(tries[-1].error),
                )
            )
        return out

    def attempts(self, names: Mapping[Place, str] = NO_NAMES) -> list[AttemptView]:
        """Returns all attempts, step by step. For an attempt under way, the lease is its owner's."""
        return [
            self._attempt(ids.step_id(self._run.run_id, *place), self._call(place, names), number, tried)
            for place, tries in self._turns.items()
            for number, tried in enumerate(tries, 1)
        ]

    def _attempt(self, step_id: str, call: str, number: int, tried: _Try) -> AttemptView:
        open_here = tried.outcome is None
        outcome, ended = self._tell(tried) if open_here else (tried.outcome, tried.ended)
        held = self._lease if outcome is None and self._lease is not None and self._lease.owner == tried.owner else None
        return AttemptView(
            attempt_id=ids.attempt_id(step_id, number),
            step_id=step_id,
            call=call,
            number=number,
            owner=tried.owner,
            lease_expires_at=None if held is None else iso(held.expires_at),
            started_at=iso(tried.began),
            ended_at=iso(ended),
            outcome=outcome,
            error=error(tried.error),
            retry_at=iso(tried.again),
        )


__all__ = ["Place", "Turns"]
