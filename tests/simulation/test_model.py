"""An exhaustive small model: two workers, one run, one effect, every interleaving (issue 3, "An exhaustive small model").

Each worker claims, renews, attempts, acts, settles and ends when it likes; time passes, processes die, a person looks
outside. The verbs are the memory store's own. A breadth-first search visits every state that can be reached; in each of
them the invariants hold. With the fence taken out one of them breaks, and the shortest way there is the message.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

from holdfast.core import events as ev
from holdfast.core.effects import EffectStatus
from holdfast.core.errors import Conflict
from holdfast.core.lease import RELEASE
from holdfast.core.waits import Wait, WaitKind
from holdfast.stores import apply
from holdfast.stores.memory import MemoryStore
from holdfast.testing.conformance import Script, effect

T = TypeVar("T")
TTL = 10
CLAIMS = 4
KEY = "k"
TABLES = ("_runs", "_log", "_order", "_wholes", "_inbox", "_claims", "_effects", "_intents", "_ledger", "_count")


def now(verb: Coroutine[Any, Any, T]) -> T:
    """The memory store never waits, so its verbs need no loop."""
    try:
        verb.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    raise AssertionError("a verb of the memory store waited")


class Copied(MemoryStore):
    """A store of which there may be many, each with all that another held, and whose rows are looked at without being read: there are as many as states."""

    def copied(self, now: Callable[[], int]) -> Copied:
        other = Copied(now=now)
        other.incarnation = self.incarnation
        for table in TABLES:
            setattr(other, table, copy.copy(getattr(self, table)))
        mine, its = other.present, self.present
        mine.workers, mine.until, mine.dead = dict(its.workers), dict(its.until), set(its.dead)
        return other

    @property
    def row(self) -> Any:
        """The row of the one run."""
        return self._runs["r"]


class Mind(NamedTuple):
    """What a worker believes: how far it is, and the script it goes on with."""

    phase: str = "idle"
    script: Script | None = None
    fence: int = 0


class World:
    """One state: the store, both minds, who is dead, what happened outside."""

    def __init__(self) -> None:
        self.at = [0]
        self.store = Copied(now=lambda: self.at[0])
        self.minds = {"a": Mind(), "b": Mind()}
        self.dead: frozenset[str] = frozenset()
        self.acts = 0
        self.claims: tuple[int, ...] = ()
        self.accepted: tuple[int, ...] = ()
        for owner in self.minds:
            now(self.store.register(owner, TTL))
        now(Script(self.store, "r").submit())

    def copied(self) -> World:
        other = World.__new__(World)
        other.at = list(self.at)
        other.store = self.store.copied(lambda: other.at[0])
        other.minds = {}
        for name, mind in self.minds.items():
            script = copy.copy(mind.script)
            if script is not None:
                script.store = other.store
            other.minds[name] = Mind(mind.phase, script, mind.fence)
        other.dead, other.acts, other.claims, other.accepted = self.dead, self.acts, self.claims, self.accepted
        return other

    # -- what can be seen ---------------------------------------------------------------------------

    @property
    def effects(self) -> list[Any]:
        return now(self.store.effects(key=KEY))

    def key(self) -> Any:
        """What tells one state from another; times and ids that nothing depends on are left out."""
        row = self.store.row
        live = tuple(self.store.present.why_lost(o) or "" for o in self.minds)
        minds = tuple((m.phase, m.fence, m.script is not None and m.script.tip == row.tip) for m in self.minds.values())
        return (row.status, row.owner, row.fence, live, minds, self.acts, tuple((e.status, e.owner) for e in self.effects), self.dead)

    def broken(self) -> str:
        """The first invariant that does not hold; empty if all do."""
        if self.acts > 1:
            return f"the effect happened {self.acts} times"
        if len(set(self.claims)) != len(self.claims):
            return f"a fence was given twice: {self.claims}"
        if list(self.accepted) != sorted(self.accepted):
            return f"a late owner's commit was accepted: fences {self.accepted}"
        statuses = [e.status for e in self.effects]
        if statuses.count(EffectStatus.RECORDED) > 1 or sum(e.open for e in self.effects) > 1:
            return f"the effect's records are {statuses}"
        if EffectStatus.RECORDED in statuses and not self.acts:
            return "an effect that did not happen is on record as done"
        if self.store.row.run.terminal and EffectStatus.RECORDED not in statuses:
            return "the run is done without its effect"
        return ""

    # -- what can happen ----------------------------------------------------------------------------

    def moves(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        for name in self.minds:
            if name in self.dead:
                continue
            yield f"{name} dies", lambda w, n=name: w.die(n)
            yield f"{name} renews", lambda w, n=name: now(w.store.renew(n, TTL))
            step = {"idle": World.claim, "claimed": World.attempt, "attempted": World.act, "acted": World.record, "recorded": World.finish}
            if (move := step.get(self.minds[name].phase)) is not None:
                yield f"{name}: {move.__name__}", lambda w, n=name, m=move: m(w, n)
        yield "time passes", lambda w: w.at.__setitem__(0, w.at[0] + TTL + 1)
        yield "a person looks", World.look

    def die(self, name: str) -> None:
        self.dead |= {name}
        self.store.abandon(name)
        self.minds[name] = Mind("dead")

    def claim(self, name: str) -> None:
        if len(self.claims) == CLAIMS:
            return
        claims = now(self.store.claim(name, (), None, limit=1))
        for c in claims:
            loaded = now(self.store.load(c.run_id))
            assert loaded is not None
            self.claims = (*self.claims, c.fence)
            self.minds[name] = Mind("claimed", Script.of(self.store, loaded, c.fence), c.fence)

    def _commit(self, name: str, phase: str, *facts: ev.Fact, **beside: Any) -> None:
        """A commit under the worker's fence; one that is refused teaches it that it has lost the run."""
        mind = self.minds[name]
        assert mind.script is not None
        started = () if mind.script.run is not None and mind.script.run.status != "pending" else (ev.RunStarted(),)
        try:
            now(mind.script.write(mind.script.commit(ev.RunClaimed(owner=name, fence=mind.fence & 0xFF), *started, *facts, **beside)))
        except Conflict:
            self.minds[name] = Mind()
            return
        self.accepted = (*self.accepted, mind.fence)
        self.minds[name] = Mind(phase, mind.script, mind.fence)

    def attempt(self, name: str) -> None:
        """The attempt, durable before the act; of an attempt without a result a person is asked instead."""
        before = self.effects
        if any(e.status is EffectStatus.RECORDED for e in before):
            self.minds[name] = self.minds[name]._replace(phase="recorded")
        elif any(e.open for e in before):
            unknown = [msgspec.structs.replace(e, status=EffectStatus.UNKNOWN) for e in before if e.open]
            wait = Wait("r.1.node.0", WaitKind.EFFECT, 1, "node")
            self._commit(name, "idle", ev.WaitRequested(wait), ev.RunWaitingForHuman(), effects=tuple(unknown), lease=RELEASE)
        else:
            mine = msgspec.structs.replace(effect("r", len(before) + 1, KEY), owner=name)
            self._commit(name, "attempted", ev.SideEffectAttempted(mine.effect_id, KEY), effects=(mine,))

    def act(self, name: str) -> None:
        """Nothing can stop it here: the worker may have slept since its attempt was durable."""
        self.acts += 1
        self.minds[name] = self.minds[name]._replace(phase="acted")

    def record(self, name: str) -> None:
        (mine,) = [e for e in self.effects if e.owner == name and e.open] or [None]
        if mine is None:
            self.minds[name] = Mind()
            return
        done = msgspec.structs.replace(mine, status=EffectStatus.RECORDED)
        self._commit(name, "recorded", ev.SideEffectRecorded(mine.effect_id, KEY), effects=(done,))

    def finish(self, name: str) -> None:
        self._commit(name, "idle", ev.RunCompleted(), lease=RELEASE)

    def look(self) -> None:
        """A person answers an unknown effect: what happened is recorded; what did not is done again once its process is dead."""
        row = self.store.row
        for e in [e for e in self.effects if e.status is EffectStatus.UNKNOWN]:
            if self.acts:
                now(self.store.settle_effect(msgspec.structs.replace(e, status=EffectStatus.RECORDED), "unknown"))
            elif e.owner in self.dead:
                now(self.store.settle_effect(msgspec.structs.replace(e, status=EffectStatus.ABANDONED), "unknown"))
            else:
                return
            if row.status == "waiting_for_human":
                loaded = now(self.store.load("r"))
                assert loaded is not None
                script = Script.of(self.store, loaded, loaded.lease.fence)
                now(script.write(script.touching(ev.WaitClosed("r.1.node.0"), ev.RunResumed("decision"), due=self.at[0])))


def explore(limit: int = 200_000) -> tuple[int, str]:
    """The number of states, and the shortest way to a broken one."""
    first = World()
    seen = {first.key()}
    todo: deque[tuple[World, tuple[str, ...]]] = deque([(first, ())])
    while todo:
        world, way = todo.popleft()
        for name, move in world.moves():
            after = world.copied()
            move(after)
            if broken := after.broken():
                return len(seen), "\n  ".join([broken, *way, name])
            if (key := after.key()) not in seen:
                seen.add(key)
                todo.append((after, (*way, name)))
                assert len(seen) < limit, "the model has grown beyond what can be searched"
    return len(seen), ""


def test_every_interleaving_keeps_the_invariants() -> None:
    """T-74, T-75, T-78, T-80, X-08, §6.5, §10.1, §10.2."""
    states, broken = explore()
    assert not broken, broken
    assert states > 500, f"only {states} states: the model does next to nothing"


def test_without_the_fence_an_invariant_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model would see it: the fence is what keeps a late owner out (T-75)."""
    monkeypatch.setattr(apply, "refusal", lambda *_, **__: None)
    _, broken = explore()
    assert broken.startswith(("a late owner", "the effect")), broken
