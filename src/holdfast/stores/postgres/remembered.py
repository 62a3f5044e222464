"""What this process knows to be durable of the runs that it drives or drove recently, so that it can report what a failover has lost (§1.9)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

import msgspec

from holdfast.core import events as ev
from holdfast.core.commit import Commit, Tip
from holdfast.core.effects import Effect, EffectStatus
from holdfast.ports import LostTail

MOST = 10_000  # runs; those written longest ago are forgotten first
OPEN = (EffectStatus.ATTEMPTED, EffectStatus.UNKNOWN)


class Known(msgspec.Struct):
    """A run as its last acknowledged commit left it, with the effects that were acknowledged here and what the log recorded of them."""

    tip: Tip
    facts: list[ev.EffectFact] = []
    effects: dict[str, Effect] = {}


class Remembered:
    """The newest acknowledged commit of each run. ``_tails``: what was lost of them, until it is recorded in the run's log."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Known] = OrderedDict()
        self._tails: dict[str, LostTail] = {}
        self.named: dict[str, str] = {}

    def commit(self, commit: Commit, tip: Tip) -> None:
        known = self.step(commit.run.run_id, tip)
        if commit.effects:
            known.facts += [e.fact for e in commit.events if isinstance(e.fact, ev.EffectFact)]
            known.effects |= {e.effect_id: e for e in commit.effects}

    def step(self, run_id: str, tip: Tip) -> Known:
        known = self._known.pop(run_id, None) or Known(tip)
        known.tip = tip
        self._known[run_id] = known
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        return known

    def tip(self, run_id: str) -> Tip | None:
        found = self._known.get(run_id)
        return None if found is None else found.tip

    def __iter__(self) -> Iterator[tuple[str, Tip]]:
        return ((run_id, known.tip) for run_id, known in self._known.items())

    def lose(self, run_id: str, left: int | None, there: Mapping[str, EffectStatus]) -> None:
        """Notes that the log of a run ends with commit ``left``, None if the run is gone; ``there`` are the effects still on record, with their
        statuses."""
        known = self._known.pop(run_id)
        effects = {i: e for i, e in known.effects.items() if i not in there or (there[i] in OPEN and e.status not in OPEN)}
        facts = tuple(f for f in known.facts if f.effect_id in effects and not (f.effect_id in there and isinstance(f, ev.SideEffectAttempted)))
        self.named[run_id] = tell_rollback(run_id, left, known.tip.row)
        self.keep(LostTail(run_id, self.named[run_id], facts, tuple(effects.values())))

    def take(self) -> LostTail | None:
        return self._tails.pop(next(iter(self._tails)), None) if self._tails else None

    def keep(self, tail: LostTail) -> None:
        self._tails[tail.run_id] = tail

    def clear(self) -> None:
        self._known.clear()
        self._tails.clear()
        self.named.clear()


def tell_rollback(run_id: str, left: int | None, known: int) -> str:
    where = f"{run_id} is gone" if left is None else f"{run_id} ends with commit {left}"
    return f"{where}, but commit {known} was acknowledged here"


__all__ = ["MOST", "Remembered", "tell_rollback"]
