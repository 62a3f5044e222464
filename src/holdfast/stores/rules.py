"""What every store decides alike: who may write, when a run is due, whether it holds its lane.

Pure functions over plain values, so that the stores differ only in how they keep things.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import msgspec

from holdfast.core import codec
from holdfast.core.checkpoint import Delta, Source
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import Conflict, HoldfastError, LeaseLost, VersionConflict
from holdfast.core.events import WaitClosed
from holdfast.core.lease import COUNTER_BITS, Keep, Release, Take, Touch, counter
from holdfast.core.run import Run
from holdfast.core.status import WAITING, Status
from holdfast.ports import Pruned

WHOLE_FLOOR = 64 * 1024
LAST_TURN = 2**62
_NOWHERE = Tip(0, b"", 0)
OPEN_INTENTS = ("queued", "sending", "unknown")
SENDER_LOST = "sender_lost"
RECLAIMED = "reclaimed"

_delta = msgspec.msgpack.Decoder(Delta)


class Prepared(msgspec.Struct, frozen=True, gc=False):
    """A commit encoded before its transaction begins (§1.11). ``whole`` is a whole checkpoint if it is time for one; ``since`` and
    ``whole_size`` go into the tip; ``step``: it changes nothing but the log and the hot columns of a run that its owner keeps."""

    commit: Commit
    sealed: codec.Sealed
    whole: bytes | None
    since: int
    whole_size: int
    creates: tuple[Prepared, ...] = ()
    step: bool = False

    @property
    def closed(self) -> tuple[str, ...]:
        """The waits that this commit closes: what links were given out for them is revoked (§5.9, §5.14)."""
        return () if self.step else tuple(e.fact.wait_id for e in self.commit.events if isinstance(e.fact, WaitClosed))

    def tip(self, row: int) -> Tip:
        """Where the log ends once this is durable as ``row``."""
        return Tip(self.sealed.row.seq, self.sealed.row.hash, row, self.since, self.whole_size)


def prepare(commit: Commit) -> Prepared:
    """Encodes a commit and all that it creates."""
    after = commit.after
    if after is None:
        after = _NOWHERE
    sealed = codec.seal(commit, after.hash)
    since, size = len(sealed.row.data) + after.since, after.whole
    if commit.behind is not None:  # what a load goes through in the runs before counts as if it were this run's own (§4.15)
        since, size = since + commit.behind.since, size + commit.behind.whole
    whole = None
    if since > WHOLE_FLOOR and since > size and commit.checkpoint is not None and _advanced(commit):
        whole = codec.encode_whole(commit.checkpoint, sealed.row.hash)
        since, size = 0, len(whole)
    creates = tuple([prepare(c) for c in commit.creates]) if commit.creates else ()
    step = sealed.doc is None and whole is None and type(commit.lease) is Keep and commit.due is None and commit.plain
    return Prepared(commit, sealed, whole, since, size, creates, step)


def _advanced(commit: Commit) -> bool:
    """Whether the checkpoint took in all pending results: loading starts after a whole one and would miss them."""
    if commit.delta is None:
        return False
    delta = _delta.decode(commit.delta)
    return bool(delta.done) or (delta.values is not None and delta.source is not Source.PATCH)


def refusal(commit: Commit, *, fence: int, owner: str | None, live: bool, row: int) -> HoldfastError | None:
    """Why a commit may not be applied to a run in this state, or None (§10.2)."""
    run_id, lease = commit.run.run_id, commit.lease
    taking = isinstance(lease, Take | Touch)
    if fence != (commit.fence - 1 if taking else commit.fence):
        if fence >> COUNTER_BITS != commit.fence >> COUNTER_BITS:
            return LeaseLost(f"{run_id} was written under another incarnation of the store", hint="load it again")
        return LeaseLost(f"{run_id} is at fence {counter(fence)}; the commit carries {counter(commit.fence)}", hint="load it again")
    if taking and live:
        return LeaseLost(f"{run_id} is held by {owner}", hint="put a command into its inbox instead")
    if not taking and owner is None:
        return LeaseLost(f"{run_id} was given back", hint="claim it again")
    if commit.after is None or commit.after.row != row:
        return VersionConflict(f"the log of {run_id} has moved on", hint="load it again")
    return None


def first_fence(commit: Commit, incarnation: int) -> HoldfastError | None:
    """A new run begins with counter 1 under the store's incarnation; anything else is a worker of another one (X-02)."""
    if commit.fence != incarnation << COUNTER_BITS | 1:
        return LeaseLost(f"{commit.run.run_id} does not begin at fence 1 of this store's incarnation", hint="open the store again")
    return None


def owner_after(commit: Commit, owner: str | None) -> str | None:
    """Who holds the run after this commit."""
    if commit.run.terminal or isinstance(commit.lease, Release | Touch):
        return None
    return commit.lease.owner if isinstance(commit.lease, Take) else owner


def wants_lane(commit: Commit) -> bool:
    """Whether the commit begins to execute, so that the run's lane must be free for it (§10.8)."""
    executed = commit.after is None and isinstance(commit.lease, Release) and commit.run.status is not Status.PENDING
    return executed or isinstance(commit.lease, Take)


def holds_after(commit: Commit, held: bool) -> bool:
    """Whether the run holds its lane after this commit: from its claim to its end, waits included unless it lets go."""
    run = commit.run
    if run.terminal or (run.status in WAITING and run.paused_lane == "release"):
        return False
    return held or wants_lane(commit)


def due_after(commit: Commit, owner: str | None, now: int, unread: bool) -> int | None:
    """When the run next needs a worker. ``unread``: its inbox holds what nobody has taken; a resting run must look at it."""
    run = commit.run
    if run.terminal:
        return None
    if commit.due is not None:
        return commit.due
    if run.interrupted_at is not None and owner is None:
        return None  # held until a named actor resumes it (§10.6)
    return now if owner is not None else due_at_rest(run, now, unread)


def due_at_rest(run: Run, now: int, unread: bool) -> int | None:
    """When a run that nobody holds next needs a worker."""
    if run.terminal:
        return None
    if run.status is Status.PENDING:
        return run.not_before if run.not_before is not None else run.created_at
    if run.status in WAITING and not unread:
        return run.wake_at
    return now


def due_rebuilt(commit: Commit, owner: str | None, due: int | None, moved: bool, now: int, unread: bool) -> int | None:
    """When a run whose row is written anew next needs a worker. What the row said stands, for a repair resumes nothing, unless the
    status ``moved``, or a wait's deadline or an answer was forgotten: those are found again from what the events tell (§5.10)."""
    run = commit.run
    forgotten = due is None and owner is None and run.status in WAITING
    if not moved and not forgotten:
        return due
    return now if forgotten and any(d.resume for d in run.decisions) else due_after(commit, owner, now, unread)


def prunable(
    members: Mapping[str, Sequence[tuple[str, int | None]]],
    links: Sequence[tuple[str, str]],
    root_of: Mapping[str, str],
    before: int,
    open_roots: Set[str],
    loans: Sequence[tuple[str, str]] = (),
) -> Pruned:
    """Which lineages may go as a whole (§6.10).

    Args:
        members: by lineage root, its runs with when each ended; None while it has not.
        links: children and their parents; a family goes together.
        root_of: the lineage of each run.
        before: runs must have ended before that time.
        open_roots: lineages with intents or effects that are not settled.
        loans: runs that carry their thread on from another one's log, and that one (§4.15).
    """
    kept: dict[str, str] = {}
    for root, runs in members.items():
        if any(ended is None for _, ended in runs):
            kept[root] = "a run has not ended"
        elif any(ended >= before for _, ended in runs if ended is not None):
            kept[root] = ""
        elif root in open_roots:
            kept[root] = "an effect or an intent is not settled"
    changed = True
    while changed:
        changed = False
        for child, parent in links:
            roots = {root_of[child], root_of.get(parent, root_of[child])}
            for root in roots - kept.keys():
                if roots & kept.keys():
                    kept[root], changed = "a parent or a child of it stays", True
        for borrower, lender in loans:
            if root_of[borrower] in kept and root_of[lender] not in kept:
                kept[root_of[lender]], changed = "a later run of its thread carries on from it", True
    old = {r for r, runs in members.items() if all(ended is not None and ended < before for _, ended in runs)}
    run_ids = tuple(sorted(run_id for root, runs in members.items() if root not in kept for run_id, _ in runs))
    return Pruned(run_ids, {root: why for root, why in kept.items() if root in old})


def overlay(run: Run, *, status: str, version: int, step: str | None, head: str | None) -> Run:
    """The run with its hot columns laid over the cold part.

    A status that differs is taken from the column, so that a hand-made edit is seen by whoever compares (T-19).
    """
    if run.status != status:
        run = msgspec.structs.replace(run, status=Status(status))
    if run.version != version or run.current_step_id != step or run.checkpoint_head != head:
        run = msgspec.structs.replace(run, version=version, current_step_id=step, checkpoint_head=head)
    return run


def lane_busy(run: Run, blocker: str) -> Conflict:
    return Conflict(
        f"the lane {run.lane!r} of session {run.session_key!r} is held or awaited by {blocker}", hint="submit it as pending", code="lane_busy"
    )


def lender_gone(run_id: str, lender: str) -> VersionConflict:
    return VersionConflict(f"{run_id} carries its thread on from {lender}, which was pruned meanwhile", hint="load it again")


def schedule_moved(schedule_id: str) -> Conflict:
    return Conflict(f"somebody else has moved the schedule {schedule_id} on, or changed it", hint="read it again", code="schedule_moved")


def claim_taken(kind: str, key: str, run_id: str) -> Conflict:
    return Conflict(f"the {kind} key {key!r} is taken by {run_id}", hint="read it with claimed()", code="claim_taken")


__all__ = [
    "LAST_TURN", "OPEN_INTENTS", "RECLAIMED", "SENDER_LOST", "WHOLE_FLOOR", "Keep", "Prepared", "claim_taken", "due_after", "due_at_rest", "due_rebuilt", "first_fence", "holds_after",
    "lane_busy", "lender_gone", "overlay", "owner_after", "prepare", "prunable", "refusal", "schedule_moved", "wants_lane",
]  # fmt: skip
