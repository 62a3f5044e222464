"""Seeded bugs: each is a mistake that an engine of this kind could well have made, put in by a small patch.

The suites must catch them, or the suites prove nothing. A mutant patches what the code calls, never what the checker uses
to judge, unless both share it (the fold): then the invariant that catches it is another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast.core import checkpoint as cps
from holdfast.core import codec, decisions, superstep
from holdfast.core import effects as fx
from holdfast.core.checkpoint import INPUT_TASK
from holdfast.core.errors import StoreError
from holdfast.engine.base.journal import Journal
from holdfast.engine.calls import effects as performing
from holdfast.engine.calls.attempt import Places
from holdfast.engine.desk import intake
from holdfast.stores import apply
from holdfast.stores.memory import Present, Seen

Patch = pytest.MonkeyPatch


class Mutant(NamedTuple):
    says: str
    plant: Callable[[Patch], None]


MUTANTS: dict[str, Mutant] = {}


def mutant(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
    MUTANTS[plant.__name__] = Mutant((plant.__doc__ or "").strip(), plant)
    return plant


# -- leases and fences -------------------------------------------------------------------------------


@mutant
def fence_and_tip_ignored(patch: Patch) -> None:
    """Whoever commits is believed (§10.2, T-75)."""
    patch.setattr(apply, "refusal", lambda *_, **__: None)


@mutant
def fence_ignored(patch: Patch) -> None:
    """Only the log's tip is compared: a late owner writes until the new one has (§10.2)."""
    real = apply.refusal

    def refusal(c: Any, found: apply.Found) -> Any:
        return real(msgspec.structs.replace(c, fence=found.fence + isinstance(c.lease, apply.Take | apply.Touch)), found)

    patch.setattr(apply, "refusal", refusal)


@mutant
def live_owner_not_respected(patch: Patch) -> None:
    """A claim takes runs whose owner is well and renews (§10.1)."""
    patch.setattr(Present, "why_lost", lambda self, owner: "expired")


@mutant
def lost_owner_not_seen(patch: Patch) -> None:
    """Nobody takes over from the dead (§10.6, L-21)."""
    patch.setattr(Present, "why_lost", lambda self, owner: None)


# -- lanes -------------------------------------------------------------------------------------------


@mutant
def lane_ignored(patch: Patch) -> None:
    """Runs of one lane go on side by side (§10.8, T-83)."""
    patch.setattr(Seen, "blocker", lambda *_: None)


@mutant
def lane_order_ignored(patch: Patch) -> None:
    """A lane is held, but whoever comes first gets it next (§10.8, T-84)."""

    patch.setattr(Seen, "blocker", lambda self, run, turn: next((r.run.run_id for r in self.lane(run) if r.holds), None))


@mutant
def waiting_lets_go_of_the_lane(patch: Patch) -> None:
    """A run that waits gives its lane away, though it was told to hold it (§10.8)."""
    real = apply.holds_after
    patch.setattr(apply, "holds_after", lambda c, held: False if c.run.status in apply.WAITING else real(c, held))


# -- what is kept ------------------------------------------------------------------------------------


@mutant
def dedup_skipped(patch: Patch) -> None:
    """A request key is not claimed (§3.5, T-73)."""
    real = intake.birth

    def birth(*args: Any, **kwargs: Any) -> Any:
        return msgspec.structs.replace(real(*args, **kwargs), claims=())

    patch.setattr("holdfast.runtime.birth", birth)


@mutant
def sibling_results_dropped(patch: Patch) -> None:
    """What parallel siblings had finished is forgotten at a takeover (§4.6, T-58, L-06)."""
    real = Journal.load.__func__  # type: ignore[attr-defined]

    def load(cls: Any, *args: Any) -> Any:
        journal = real(cls, *args)
        kept = journal.progress.results.get(INPUT_TASK)
        journal.progress.results = {} if kept is None else {INPUT_TASK: kept}
        return journal

    patch.setattr(Journal, "load", classmethod(load))


@mutant
def records_dropped(patch: Patch) -> None:
    """What ctx.step had recorded is forgotten at a takeover (§4.12, T-59)."""
    real = Journal.load.__func__  # type: ignore[attr-defined]

    def load(cls: Any, *args: Any) -> Any:
        journal = real(cls, *args)
        journal.progress.records = {k: r for k, r in journal.progress.records.items() if r.kind != "step"}
        return journal

    patch.setattr(Journal, "load", classmethod(load))


@mutant
def store_error_swallowed(patch: Patch) -> None:
    """A commit that failed is taken for done (§1.12, T-51, L-04)."""
    real = Journal._write

    async def write(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            await real(self, *args, **kwargs)
        except StoreError:
            self.dead = None

    patch.setattr(Journal, "_write", write)


@mutant
def chain_not_checked(patch: Patch) -> None:
    """A row is read whether or not it matches its hash (§1.9, X-01)."""
    patch.setattr(codec, "hold_against", lambda hash, row: None)


@mutant
def checkpoint_not_chained(patch: Patch) -> None:
    """A checkpoint's hash leaves out its parent's (§4.5)."""
    real = cps.vouch
    patch.setattr(cps, "vouch", lambda parent, *rest: real(msgspec.structs.replace(parent, hash=b""), *rest))


# -- super-steps -------------------------------------------------------------------------------------


@mutant
def order_by_arrival(patch: Patch) -> None:
    """Writes are applied as the tasks finished, not in task order (§4.3, T-55)."""
    real = superstep.barrier

    def barrier(program: Any, parent: Any, results: Any, **kwargs: Any) -> Any:
        place = {key: n for n, key in enumerate(results)}
        pending = tuple(sorted(parent.pending, key=lambda t: place[t.key]))
        return real(program, msgspec.structs.replace(parent, pending=pending), results, **kwargs)

    patch.setattr(superstep, "barrier", barrier)


@mutant
def parallel_writes_overwrite(patch: Patch) -> None:
    """The last of several parallel writes wins (§4.4, T-55)."""
    real = cps.take

    def take(values: dict[str, Any], kinds: Any, writes: Any) -> None:
        real(values, kinds, list({name: write for write in writes for name in write}.values()))

    patch.setattr(cps, "take", take)


@mutant
def successors_not_united(patch: Patch) -> None:
    """Of parallel nodes only the last one's successors run (§4.4, T-56)."""
    real = cps.bump

    def bumped(done: Any, writes: Any) -> Any:
        return real(done[-1:], writes)

    patch.setattr(cps, "bump", bumped)


@mutant
def versions_seen_ignored(patch: Patch) -> None:
    """A node runs again on what it has seen (§4.3, T-57)."""
    real = superstep._ready
    patch.setattr(superstep, "_ready", lambda node, cp: real(node, msgspec.structs.replace(cp, seen={})))


# -- effects -----------------------------------------------------------------------------------------


@mutant
def unknown_effect_repeated(patch: Patch) -> None:
    """Attempted without a result is done again, and nobody is asked (§6.5, T-39, T-76)."""
    real = fx.judge

    def judge(*args: Any) -> Any:
        verdict = real(*args)
        return fx.Act(verdict.effect) if isinstance(verdict, fx.Ask) else verdict

    patch.setattr(fx, "judge", judge)


@mutant
def attempt_not_durable_before_the_act(patch: Patch) -> None:
    """The attempt is written together with the result (§6.2)."""

    async def attempt(self: Any, draft: Any) -> None:
        self.hold(draft)

    patch.setattr(Journal, "attempt", attempt)


@mutant
def recorded_effect_done_again(patch: Patch) -> None:
    """A result on record is not looked for (§6.3, T-45)."""
    real = Places.lookup

    def lookup(self: Any, call: Any) -> Any:
        found = real(self, call)
        return None if call.kind == "effect" else found

    patch.setattr(Places, "lookup", lookup)
    patch.setattr(fx, "_on_record", lambda last, asked, own: fx.Act(last))


@mutant
def effect_key_ignores_the_visit(patch: Patch) -> None:
    """A loop's visits share one key (§6.3, T-40)."""
    real = performing.effect_key
    patch.setattr(performing, "effect_key", lambda tenant, kind, scope, key: real(tenant, kind, scope, key.partition(".")[2] or key))


# -- waits and the inbox -----------------------------------------------------------------------------


@mutant
def inbox_item_not_consumed(patch: Patch) -> None:
    """A command is not marked as taken by the commit that it became (§1.6)."""
    real = apply.prepare
    patch.setattr(apply, "prepare", lambda c: real(msgspec.structs.replace(c, took=())))


@mutant
def decision_not_recorded(patch: Patch) -> None:
    """The run resumes, and the step that asked does not get the answer (§5.12, T-31)."""
    patch.setattr(decisions, "answers", lambda run: ())


@mutant
def wake_up_lost(patch: Patch) -> None:
    """What is put into the inbox of a resting run does not make it claimable (§10.16)."""
    real = apply.due_after
    patch.setattr(apply, "due_after", lambda c, owner, now, unread: None if c.run.status in apply.WAITING and isinstance(c.lease, apply.Touch) else real(c, owner, now, unread))


__all__ = ["MUTANTS", "Mutant"]
