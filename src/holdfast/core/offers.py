"""What workers offer to do, and whether no worker can take a due run (§10.11). Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from holdfast.core.lease import Lease
from holdfast.core.limits import Limit
from holdfast.core.run import Run
from holdfast.core.status import TERMINAL
from holdfast.core.wording import target_of


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """A shape in which a worker has a skill, or which it can continue by a declared migration."""

    skill_id: str
    version: str
    fingerprint: str
    workspace: str | None = None


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """What a process works on. No ``queues``: all queues. ``upgrade``: it takes any shape of its skills;
    ``limits``: those that it declares; ``sends``: the types of intents that it sends, None if its release does not
    record that; without ``works`` it claims no runs."""

    queues: tuple[str, ...]
    shapes: tuple[Shape, ...]
    upgrade: bool = False
    limits: dict[str, Limit] = {}
    sends: tuple[str, ...] | None = None
    works: bool = True

    def takes(self, run: Run) -> bool:
        return self.has(run.skill_id, run.shape)

    def has(self, skill_id: str, shape: str) -> bool:
        """Whether it takes runs of this skill and shape; the shape includes the folder if a run is bound to one."""
        fingerprint, _, workspace = shape.partition("@")
        return any(s.skill_id == skill_id and (self.upgrade or s.fingerprint == fingerprint) and workspace in ("", s.workspace) for s in self.shapes)


class NoWorker(msgspec.Struct, frozen=True):
    """A due run that no living worker of its queue can take: the shape that it needs, and the shapes of its skill that are offered."""

    skill_id: str
    version: str
    wanted: str
    offered: tuple[str, ...] = ()
    workspace: str | None = None
    target: str | None = None

    @property
    def said(self) -> str:
        where = "" if self.workspace is None else f" in the workspace {self.workspace}"
        if not self.offered:
            return f"none of the running workers has the skill {self.skill_id!r}{where}"
        return f"the run began with the graph {self.wanted} of {self.skill_id!r} (v{self.version}){where}, and the running workers have {', '.join(self.offered)}"

    def way_out(self, run_id: str) -> str:
        code = target_of(self.target)
        if self.workspace is not None and self.wanted in self.offered:
            return "it can continue only in the folder in which its tools have worked: start a worker with that folder (Runtime(workspace=…))"
        if not self.offered:
            return f"start a worker that has it: holdfast worker {code}, or resume it here: holdfast resume {run_id} {code}"
        return f'to let the new code continue such runs, declare migrates=("{self.wanted}",) in the skill; or start: holdfast worker {code} --upgrade, or: holdfast resume {run_id} {code} --upgrade'


def lacking(run: Run, lease: Lease, living: Iterable[Offer], now: int) -> NoWorker | None:
    """Returns why no worker takes a due run; None if a worker can take it, if no worker of its queue is running, or if it is not due."""
    if run.status in TERMINAL or lease.due is None or lease.due > now or (lease.owner is not None and lease.live(now)):
        return None
    mine = [o for o in living if o.works and (not o.queues or run.queue in o.queues)]
    if not mine or any(o.takes(run) for o in mine):
        return None
    offered = dict.fromkeys(s.fingerprint for o in mine for s in o.shapes if s.skill_id == run.skill_id)
    return NoWorker(run.skill_id, run.skill_version, run.fingerprint, tuple(offered), run.workspace, run.target)


def find_sent(here: Iterable[str], living: Iterable[Offer]) -> frozenset[str] | None:
    """Returns the types of intents that this process or a living one sends; None if one of them does not record that."""
    every = [o.sends for o in living]
    return None if None in every else frozenset(here).union(*(types for types in every if types is not None))


__all__ = ["NoWorker", "Offer", "Shape", "find_sent", "lacking"]
