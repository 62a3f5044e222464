"""What a run's commit puts into the inboxes of its parent and its children (§4.14), in that same commit."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core import canon
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.commit import InboxItem
from holdfast.core.run import Run
from holdfast.core.status import Status
from holdfast.core.waits import WaitKind


def messages(before: Run | None, after: Run, facts: Iterable[ev.Fact], checkpoint: Checkpoint, at: int) -> list[InboxItem]:
    """Returns the result for a waiting parent if the run ends, and a cancel for each child whose wait was closed, if that wait cascades."""
    out: list[InboxItem] = []
    if after.terminal and after.parent_wait_id is not None and after.parent_run_id is not None and not (before is not None and before.terminal):
        result = None
        if after.status is Status.COMPLETED:
            result = after.result if after.result is not None else canon.encode(canon.FrozenDict(checkpoint.values))
        again = "" if after.resume_from_checkpoint_id is None else str(after.version)
        ended = cmd.ChildEnded(after.run_id, after.status.value, result, after.error, again)
        out.append(InboxItem(run_id=after.parent_run_id, key=ended.key, command=ended, put_at=at))
    if before is None or not before.waits:
        return out
    children = {w.wait_id: w.name for w in before.waits if w.kind is WaitKind.CHILD and w.cascade}
    if children:
        for fact in facts:
            if isinstance(fact, ev.WaitClosed) and fact.wait_id in children:
                stop = cmd.Cancel(actor=ev.SYSTEM, reason=f"{after.run_id} {fact.reason}", nonce="parent")
                out.append(InboxItem(run_id=children[fact.wait_id], key=stop.key, command=stop, put_at=at))
    return out
