"""What a replay or a fork takes over from its source."""

from __future__ import annotations

import msgspec

from holdfast.core.checkpoint import Ended, StepRecord, TaskResult
from holdfast.core.effects import Effect
from holdfast.core.intents import Intent
from holdfast.core.waits import Decision, Wait


class Echo(msgspec.Struct):
    """What a run with a source goes by (§7.6): the records it is answered from, by (step, task, path); what its forebears did and
    sent; and ``scope``, under which its own effects have their keys. ``forebears``: nearest first;
    ``consents``: what people approved there, if it is inherited, with the questions (§5.8). A fork in the middle of a step is answered from
    what was on record there too, as far as it calls the same with the same arguments (``exact``); ``results`` are the tasks finished there.
    ``ended``: the barriers of a replay's source that tasks waited beyond or signals came to, by their number (§5.11);
    ``reached``: how far it came. ``began``: the super-step of the checkpoint that a fork began at, and ``stood``: the effects of its
    forebears that the tasks pending there had been given, by place. ``children``: those that its forebears started, by place, once somebody has asked."""

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
    children: dict[tuple[int, str, str], str] | None = None

    @property
    def last(self) -> int:
        """The last step with anything on record."""
        return max((step for step, _, _ in self.records), default=0)


__all__ = ["Echo"]
