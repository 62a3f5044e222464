"""The review at the end of some kinds of work: the question, and the nodes that are done again (§5.16)."""

from __future__ import annotations

from holdfast.core import canon, ids
from holdfast.core.checkpoint import NONE_SEEN, REVIEW_TASK, Checkpoint
from holdfast.core.graph import Node, Program
from holdfast.core.run import Run
from holdfast.core.waits import ACTIONS, DEFAULT_DEADLINE_US, Wait, WaitKind

PLACE = "0"
AT = (REVIEW_TASK, PLACE)
"""The place where the answer to a review is recorded: its task and path."""


def wait(program: Program, run: Run, checkpoint: Checkpoint, *, round: int, now: int, snapshot: str | None, verdict: str = "") -> Wait:
    """Returns the question to a person whether the work may count as done. Its digest covers the checkpoint that is reviewed."""
    prompt = f"Is the {program.kind} of {program.id} good?" if program.kind else f"Is {program.id} done?"
    step = checkpoint.step + 1
    return Wait(
        wait_id=ids.wait_id(run.run_id, step, REVIEW_TASK, PLACE, round),
        kind=WaitKind.REVIEW,
        step=step,
        task=REVIEW_TASK,
        path=PLACE,
        prompt=prompt,
        available_actions=ACTIONS[WaitKind.REVIEW],
        deadline=now + DEFAULT_DEADLINE_US,
        requested_at=now,
        digest=canon.digest([ids.step_id(run.run_id, step, REVIEW_TASK), prompt, checkpoint.hash.hex(), snapshot or ""]),
        policy_snapshot_id=snapshot,
        round=round,
        redo=",".join(redone(program, checkpoint)),
        verdict=verdict,
    )


def redone(program: Program, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Returns the nodes that ``retry_feedback`` does again: the one that the graph names, or else those whose work is reviewed.

    These are the nodes that ran last. A delivering node is replaced by the nodes that it comes after, which made the product.
    """
    if program.redo is not None:
        return (program.redo,)
    last = [n for n in program.nodes.values() if n.name in {t.node for t in checkpoint.pending} or _ran_last(n, checkpoint)]
    found: dict[str, None] = {}
    for node in last or list(program.nodes.values())[:1]:
        found.update(dict.fromkeys(_makers(node, program) if node.delivers else (node.name,)))
    return tuple(found)


def _ran_last(node: Node, cp: Checkpoint) -> bool:
    """Whether a node ran in the super-step of this checkpoint: its ``done`` channel has this step, or it saw a write of the step before."""
    if node.name in cp.skipped:
        return False
    return cp.versions.get(f"done:{node.name}", -1) == cp.step or max(cp.seen.get(node.name, NONE_SEEN).values(), default=-2) == cp.step - 1


def _makers(node: Node, program: Program) -> tuple[str, ...]:
    """Returns the nodes that a delivering node comes after; the node itself, if none is declared."""
    names = [c[5:] for t in node.triggers for c in t.channels if c.startswith("done:")]
    return tuple(n for n in names if not program.nodes[n].delivers) or (node.name,)


__all__ = ["AT", "redone", "wait"]
