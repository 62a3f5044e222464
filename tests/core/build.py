"""Small worlds for the core's tests: a run from facts, a graph from a line, a driver without engine or store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.core import canon, codec, starts
from holdfast.core import checkpoint as cps
from holdfast.core import events as ev
from holdfast.core import superstep as ss
from holdfast.core.channels import Channel, Reducer
from holdfast.core.checkpoint import INPUT_TASK, Checkpoint, SendTo, TaskResult
from holdfast.core.commit import Commit, Tip
from holdfast.core.graph import START, Goto, Node, Program, Send, Trigger, compile
from holdfast.core.lease import KEEP, LeaseAction, Take
from holdfast.core.run import Run, fold, fold_all
from holdfast.core.waits import Decision, Wait, WaitKind

RUN = "0123456789abcdefghjkmnpqrs"


def raw(value: Any) -> bytes:
    return bytes(canon.pack(value)[1])


def submitted(**more: Any) -> ev.RunSubmitted:
    given: dict[str, Any] = {
        "run_id": RUN,
        "skill_id": "notes",
        "skill_version": "1",
        "fingerprint": "f",
        "input": raw({}),
        "thread_id": "t",
        "session_key": "t",
    }
    return ev.RunSubmitted(**{**given, **more})


def numbered(facts: Iterable[ev.Fact | ev.Unknown], first: int = 1, at: int = 1_000_000) -> list[ev.Event]:
    """Facts in their places, one second apart."""
    return [ev.Event(first + i, at * (first + i), f) for i, f in enumerate(facts)]


def folded(*facts: ev.Fact | ev.Unknown) -> Run:
    return fold_all(None, numbered([submitted(), *facts]))


def wait(kind: WaitKind = WaitKind.APPROVAL, wait_id: str = "w1", **more: Any) -> Wait:
    given: dict[str, Any] = {"wait_id": wait_id, "kind": kind, "step": 1, "task": "ask", "available_actions": ("approve", "deny")}
    return Wait(**{**given, **more})


def decided(action: str, wait_id: str = "w1", **more: Any) -> Decision:
    return Decision(wait_id=wait_id, action=action, actor="ada", **more)


def node(name: str, *, after: Iterable[str] = (), any_of: Iterable[str] = (), on: Iterable[str] = (), start: bool = False, **more: Any) -> Node:
    triggers = []
    if start:
        triggers.append(Trigger("all", (START,)))
    if after:
        triggers.append(Trigger("all", tuple(f"done:{a}" for a in after)))
    if any_of:
        triggers.append(Trigger("any", tuple(f"done:{a}" for a in any_of)))
    triggers += [Trigger("any", (c,)) for c in on]
    return Node(**{"name": name, "call": lambda state: None, "triggers": tuple(triggers), **more})


def program(*nodes: Node, channels: Mapping[str, Reducer | Channel] | None = None, **more: Any) -> Program:
    made = {n: c if isinstance(c, Channel) else Channel(n, c) for n, c in (channels or {}).items()}
    return compile(id="g", version="1", channels=made, nodes={n.name: n for n in nodes}, **more)


Call = Callable[[Mapping[str, Any]], Any]


class World:
    """Drives a program in memory and keeps what a store would: deltas as bytes, and finished results."""

    def __init__(self, prog: Program, given: dict[str, Any] | None = None, **calls: Call) -> None:
        self.program = prog
        self.calls = calls
        self.ran: list[list[str]] = []
        self.deltas: list[bytes] = []
        self.durable: list[dict[str, TaskResult]] = []
        self.live: list[Checkpoint] = []
        start = TaskResult(INPUT_TASK, writes=raw(ss.check_input(prog, given or {})))
        delta, cp = starts.first(prog, cps.empty(RUN), start)
        self.keep(delta, cp, {INPUT_TASK: start})

    def keep(self, delta: cps.Delta, cp: Checkpoint, durable: dict[str, TaskResult]) -> None:
        data = codec.encode_delta(delta)
        parent = self.live[-1] if self.live else None
        hash = canon.chain(parent.hash if parent else b"", data)
        name = parent.checkpoint_id if parent else None
        cp = msgspec.structs.replace(cp, seq=len(self.live) + 1, hash=hash, parent=name)
        self.deltas.append(data)
        self.durable.append(durable)
        self.live.append(cp)

    @property
    def head(self) -> Checkpoint:
        return self.live[-1]

    @property
    def values(self) -> Mapping[str, Any]:
        return self.head.values

    def turn(self, task: cps.Task) -> TaskResult:
        if task.skip:
            return TaskResult(task.key, outcome=task.skip)
        spec = self.program.nodes[task.node]
        if spec.when is not None and not spec.when(self.values):
            return TaskResult(task.key, outcome="skipped: when")
        seen = {**self.values, "@payload": canon.decode(task.payload) if task.payload is not None else None}
        call: Call = self.calls.get(task.node, lambda state: None)
        back = call(seen)
        chosen = tuple(str(router(self.values)) for router in spec.routers)
        if isinstance(back, Goto):
            return TaskResult(task.key, writes=raw(dict(back.writes or {})), goto=back.targets)
        if isinstance(back, list):
            sends = tuple(SendTo(s.node, raw(s.payload)) for s in back if isinstance(s, Send))
            return TaskResult(task.key, sends=sends, chosen=chosen)
        ss.check_writes(self.program, spec, back or {})
        return TaskResult(task.key, writes=raw(back) if back else None, chosen=chosen)

    def step(self, *, shuffle: Callable[[list[cps.Task]], None] = lambda tasks: None, inline: bool = False) -> bool:
        """One super-step; False if nothing was runnable."""
        tasks = list(self.head.pending)
        if not tasks:
            return False
        shuffle(tasks)
        results = {t.key: self.turn(t) for t in tasks}
        self.ran.append([t.key for t in self.head.pending if not t.skip])
        keys = set(results) if inline else set()
        delta, cp = ss.barrier(self.program, self.head, results, inline=keys, decoded={})
        self.keep(delta, cp, {k: r for k, r in results.items() if k not in keys})
        return True

    def drive(self, limit: int = 50, **options: Any) -> World:
        while limit and self.step(**options):
            limit -= 1
        return self

    def replayed(self) -> list[Checkpoint]:
        """Every checkpoint again, from the recorded bytes alone."""
        out: list[Checkpoint] = []
        cp = cps.empty(RUN)
        for i, data in enumerate(self.deltas):
            delta = codec.decode_delta(data)
            hash = canon.chain(cp.hash, data)
            cp = cps.advance(cp, delta, self.durable[i], seq=i + 1, at=0, hash=hash)
            out.append(cp)
        return out


class Log:
    """A run's log as a store would keep it, made of commits that pass ``Commit.check``."""

    def __init__(self, *facts: ev.Fact, **more: Any) -> None:
        self.rows: list[codec.Row] = []
        self.run: Run | None = None
        self.tip: Tip | None = None
        self.checkpoint = cps.empty(RUN)
        self.commit(submitted(**more), *facts, lease=Take("me"))

    def commit(self, *facts: ev.Fact, lease: LeaseAction = KEEP, delta: cps.Delta | None = None, **more: Any) -> Log:
        """``delta``: saves a checkpoint under the last fact that has a ``hash``."""
        made = list(facts)
        checkpoint, data = None, None
        if delta is not None:
            data = codec.encode_delta(delta)
            hash = canon.chain(self.checkpoint.hash, data)
            at = max(i for i, f in enumerate(made) if hasattr(f, "hash"))
            made[at] = msgspec.structs.replace(made[at], hash=hash)
            seq = (self.tip.seq if self.tip else 0) + 1 + at
            parent = self.checkpoint.checkpoint_id if self.checkpoint.seq else None
            checkpoint = msgspec.structs.replace(self.checkpoint, seq=seq, hash=hash, parent=parent, step=delta.step)
        first = (self.tip.seq if self.tip else 0) + 1
        events = [ev.Event(first + i, first * 1_000_000, f, fence=1) for i, f in enumerate(made)]
        run = self.run
        for event in events:
            run = fold(run, event)
        assert run is not None
        commit = Commit(
            run=run, events=tuple(events), after=self.tip, fence=1, at=events[0].at, checkpoint=checkpoint,
            delta=None if data is None else bytes(data), lease=lease, **more,
        )
        commit.check()
        sealed = codec.seal(commit, self.tip.hash if self.tip else b"")
        self.rows.append(sealed.row)
        self.run = run
        self.tip = Tip(sealed.row.seq, sealed.row.hash, len(self.rows))
        if checkpoint is not None:
            self.checkpoint = checkpoint
        return self
