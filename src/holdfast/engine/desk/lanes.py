"""What happens to a new run whose lane is busy (§5.13).

A lane is busy while a run in it has not ended, whether it runs, waits or is queued. This is checked before the commit: two runs submitted at
the same moment may both find the lane free, and then one queues behind the other, whatever they asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.commit import InboxItem
from holdfast.core.errors import LaneBusy, LaneOfAncestor
from holdfast.core.run import Run
from holdfast.core.status import Status
from holdfast.engine.base import obstacles
from holdfast.engine.base.journal import Draft
from holdfast.engine.desk.door import OnBusy
from holdfast.engine.desk.intake import Birth
from holdfast.ports import Store

MANY = 10_000
DROPPED = "lane_busy"
"""The stop reason of a run that was acknowledged and not executed."""


async def ahead(store: Store, born: Birth) -> list[Run]:
    """Returns the first run of its lane for which this one would wait; if it replaces queued runs, all of them, by their turns. Empty if the session is
    the run's own."""
    fact = born.fact
    if fact.session_key == fact.run_id:
        return []
    found = await obstacles.ahead(store, fact.tenant_id, fact.session_key, fact.lane, MANY if born.on_busy is OnBusy.REPLACE else 1)
    return [run for run, _ in found if run.run_id != fact.run_id]


async def refuse_own(store: Store, parent: Run, options: Mapping[str, Any]) -> None:
    """Refuses a child in a lane that an unfinished ancestor holds: each would wait for the other for ever (§4.16).

    Raises:
        LaneOfAncestor: it names that run and says what to do.
    """
    session = options.get("session_key") or options.get("thread_id")
    if session is None:
        return  # a session of its own
    lane = options.get("lane") or "main"
    above: Run | None = parent
    while above is not None:
        if (above.session_key, above.lane) == (session, lane) and not above.terminal and above.paused_lane != "release":
            raise LaneOfAncestor(
                f"the child would wait for its ancestor {above.run_id}, which holds the lane {lane!r} of {session!r} until the child has ended",
                hint="leave out thread_id= and session_key=, or give it a lane= of its own",
            )
        found = None if above.parent_run_id is None else await store.get(above.parent_run_id)
        above = None if found is None else found[0]


def admit(born: Birth, before: list[Run], reason: str) -> Draft:
    """Makes the first commit of a run that does not begin at once: it is queued, or acknowledged and ended, or it replaces queued runs.

    Raises:
        LaneBusy: the caller asked to be refused in this case.
    """
    draft = born.draft()
    if not before:
        draft.facts.append(ev.RunQueued(reason))
        return draft
    holder = before[0]
    match born.on_busy:
        case OnBusy.REJECT:
            raise LaneBusy(
                f"{holder.run_id} ({holder.status}) has the lane {holder.lane!r} of {holder.session_key!r}", hint="wait for it, cancel it, or queue the new run after it"
            )
        case OnBusy.ACK:
            draft.facts += [ev.RunQueued("acknowledged, and not run", blocked_by=holder.run_id), ev.RunCanceled(DROPPED, settled=True, at_rest=True)]
            return draft
        case OnBusy.REPLACE:
            queued = [r for r in before if r.status is Status.PENDING]
            draft.puts += [_replace(born, run) for run in queued]
            left = [r for r in before if r.status is not Status.PENDING]
            draft.facts.append(ev.RunQueued(f"in place of {len(queued)} queued" if queued else reason, blocked_by=left[0].run_id if left else None))
            return draft
    draft.facts.append(ev.RunQueued(reason, blocked_by=holder.run_id))
    return draft


def _replace(born: Birth, run: Run) -> InboxItem:
    """Cancels a queued run, if it has not begun by then."""
    command = cmd.Cancel(actor=ev.SYSTEM, reason=f"replaced by {born.run_id}", nonce=born.run_id, queued=True)
    return InboxItem(run_id=run.run_id, key=command.key, command=command, put_at=born.at)


__all__ = ["DROPPED", "admit", "ahead", "refuse_own"]
