"""What a replay or a fork takes over from its source run."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.core import outdated
from holdfast.core.called import Call
from holdfast.core.checkpoint import Ended, StepRecord, TaskResult
from holdfast.core.effects import Effect
from holdfast.core.errors import StepFailure
from holdfast.core.intents import Intent
from holdfast.core.waits import Decision, Wait


class Held(msgspec.Struct, frozen=True):
    """What contained the results of effects when a fork began: the ``results`` of tasks, and the ``records`` of the scopes and steps around the effects."""

    results: dict[str, TaskResult] = {}
    records: dict[tuple[int, str, str], StepRecord] = {}

    def is_among(self, results: Mapping[str, TaskResult], records: Mapping[tuple[int, str, str], StepRecord], place: tuple[int, str, str]) -> bool:
        """Whether one of these contains the effect at a place and equals the one that the fork has (``results``, ``records``): then the fork has taken the
        effect over and not computed it again."""
        step, task, path = place
        if task in results and results[task] == self.results.get(task):
            return True
        return any((at := (step, task, around)) in records and records[at] == self.records.get(at) for around in outdated.list_around(path))

    def join(self, later: Held) -> Held:
        """Returns both merged. Where both have an entry, that of ``later`` is used."""
        return Held(self.results | later.results, self.records | later.records)


class Children(msgspec.Struct, frozen=True):
    """The runs that the ancestors have started as children: ``by_place``, the last one at each place; ``by_wait``, by the wait for their end."""

    by_place: dict[tuple[int, str, str], str] = {}
    by_wait: dict[str, str] = {}


class Echo(msgspec.Struct):
    """What a replay or a fork reads of its source and of its other ancestors (§7.6). Places are (step, task, path).

    ``scope``: the scope of the run's own effect keys. ``records``: the records that answer its calls.
    ``forebears``: the ids of its ancestors, nearest first; ``lost``: the next ancestor, if it is not in this store; ``effects`` and ``intents``: what they did and sent.
    ``consents``: what people approved there, with the questions, if that is inherited (§5.8).
    ``exact``: the run is a fork in the middle of a step: a record there answers a call only if the arguments are the same; ``results``: the tasks
    that had finished there.
    ``ended``: by number, the barriers of a replay's source beyond which tasks waited, or at which signals arrived (§5.11); ``reached``: the last
    super-step of the source. ``began``: the super-step of the checkpoint from which a fork began; ``stood``: by place, the effects of the ancestors
    that the tasks pending there had been given; ``held``: what contained their results.
    ``outdated``: the places of records that may depend on something that no longer exists. ``scopes``: the places that have calls beneath them.
    ``children``: the children of the ancestors; None until they are first asked for.
    """

    scope: str
    records: dict[tuple[int, str, str], StepRecord] = {}
    forebears: list[str] = []
    lost: str | None = None
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
        """Whether a record of the source answers a call at its place. In an exact fork the arguments must be the same, and a step with calls beneath it is not
        answered as a whole: each of those calls is decided separately."""
        if place in self.outdated:
            return outdated.is_same(record, call)
        if not self.exact:
            return True
        return record.digest == call.digest and call.telling and not (call.opens and record.kind == "step" and place in self.scopes)

    def expect_source(self, run_id: str, what: str) -> None:
        """Checks that all ancestors are in this store, before ``run_id`` does something that one of them may have done already.

        Raises:
            StepFailure: an ancestor is missing, so this store cannot tell whether ``what`` was done.
        """
        if self.lost is not None:
            raise StepFailure(
                f"the run {self.lost}, whose results this run takes over, is not in this store; so it is unknown whether that run did this already: {what}",
                code="source_missing", hint=f"import the run {self.lost}, then resume this one; holdfast fork {run_id} --effects reexecute does everything again",
            )

    @property
    def last(self) -> int:
        """The last super-step that has a record."""
        return max((step for step, _, _ in self.records), default=0)


__all__ = ["Children", "Echo", "Held"]
