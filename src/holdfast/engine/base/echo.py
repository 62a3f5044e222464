"""What a replay or a fork takes over from its source."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.core import outdated
from holdfast.core.called import Call
from holdfast.core.checkpoint import Ended, StepRecord, TaskResult
from holdfast.core.effects import Effect
from holdfast.core.intents import Intent
from holdfast.core.waits import Decision, Wait


class Held(msgspec.Struct, frozen=True):
    """What held the results of effects where a fork began: the ``results`` of tasks, and the ``records`` around the effects, as they were."""

    results: dict[str, TaskResult] = {}
    records: dict[tuple[int, str, str], StepRecord] = {}

    def is_among(self, results: Mapping[str, TaskResult], records: Mapping[tuple[int, str, str], StepRecord], place: tuple[int, str, str]) -> bool:
        """Whether any of that holds the effect at a place, and is among these, which a fork has: it was taken over, and not made anew."""
        step, task, path = place
        if task in results and results[task] == self.results.get(task):
            return True
        return any((at := (step, task, around)) in records and records[at] == self.records.get(at) for around in outdated.list_around(path))

    def join(self, later: Held) -> Held:
        """Both in one; ``later`` has the say where both have something."""
        return Held(self.results | later.results, self.records | later.records)


class Children(msgspec.Struct, frozen=True):
    """The runs that forebears have started as children: the last one at each place, and by the wait for its end."""

    by_place: dict[tuple[int, str, str], str] = {}
    by_wait: dict[str, str] = {}


class Echo(msgspec.Struct):
    """What a run with a source goes by (§7.6): the records it is answered from, by (step, task, path); what its forebears did and
    sent; and ``scope``, under which its own effects have their keys. ``forebears``: nearest first;
    ``consents``: what people approved there, if it is inherited, with the questions (§5.8). A fork in the middle of a step is answered from
    what was on record there too, as far as it calls the same with the same arguments (``exact``); ``results`` are the tasks finished there.
    ``ended``: the barriers of a replay's source that tasks waited beyond or signals came to, by their number (§5.11);
    ``reached``: how far it came. ``began``: the super-step of the checkpoint that a fork began at, and ``stood``: the effects of its
    forebears that the tasks pending there had been given, by place, and ``held`` what held their results. ``outdated``: what may have been made of something that is no more. ``scopes``: places with calls beneath. ``children``: those that its forebears started, once somebody has asked."""

    scope: str
    records: dict[tuple[int, str, str], StepRecord] = {}
    forebears: list[str] = []
    effects: list[Effect] = []
    intents: dict[str, Intent] = {}
    consents: dict[tuple[int, str, str], tuple[Wait, Decision]] = {}
    results: tuple[TaskResult, ...] = ()
    exact: bool = False
    ended: dict[int, Ended] = {}
    reached: int = -1
    began: int = -1
    stood: dict[tuple[int, str, str], str] = {}
    children: Children | None = None
    held: Held = Held()
    outdated: frozenset[tuple[int, str, str]] = frozenset()
    scopes: frozenset[tuple[int, str, str]] = frozenset()

    def answers(self, place: tuple[int, str, str], record: StepRecord, call: Call) -> bool:
        """Whether a record of the source answers a call at its place. In an exact fork the arguments are the same; calls beneath it are looked at each by itself."""
        if place in self.outdated:
            return outdated.is_same(record, call)
        if not self.exact:
            return True
        return record.digest == call.digest and call.telling and not (call.opens and record.kind == "step" and place in self.scopes)

    @property
    def last(self) -> int:
        """The last step with anything on record."""
        return max((step for step, _, _ in self.records), default=0)


__all__ = ["Children", "Echo", "Held"]
