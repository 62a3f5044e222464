"""What an engine works with: one value handed down instead of globals."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from holdfast import workspaces
from holdfast.core import canon
from holdfast.core.checkpoint import Ended, StepRecord
from holdfast.core.environments import DEVELOPMENT, Environment
from holdfast.core.errors import Conflict, FingerprintMismatch, SkillUnknown, StoreError, WorkspaceElsewhere
from holdfast.core.graph import Program
from holdfast.core.limits import Limit, Rules, in_force
from holdfast.core.offers import Offer
from holdfast.core.policy import Policy
from holdfast.core.run import ANY, Run, shaped
from holdfast.core.wording import target_of
from holdfast.engine.base.driven import Drivers, Quarantine
from holdfast.engine.base.pool import Pool
from holdfast.engine.base.streams import Streams
from holdfast.engine.look.living import living
from holdfast.engine.look.threads import Threads
from holdfast.ports import Clock, Resolver, Store

BOUNDS_SECONDS = 1.0


class StoreClock:
    """The store's time for whatever is stored, or compared with what is (§1.9); a worker's own clock measures spans only."""

    def __init__(self, store: Store, spans: Clock) -> None:
        self.now = store.now
        self.monotonic = spans.monotonic
        self.sleep = spans.sleep


class Skills:
    """The programs this process can run, by id and version."""

    def __init__(self) -> None:
        self._by_id: dict[str, dict[str, Program]] = {}
        self._ref: str | None = None

    def add(self, program: Program) -> Program:
        versions = self._by_id.setdefault(program.id, {})
        if versions.get(program.version) is not program:
            versions[program.version] = program
            self._ref = None
        return program

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._by_id)

    def __iter__(self) -> Any:
        return (p for versions in self._by_id.values() for p in versions.values())

    @property
    def ref(self) -> str:
        """A name for what is registered here, which changes with it: programs, their versions and shapes."""
        if self._ref is None:
            self._ref = canon.fingerprint([[p.id, p.version, p.fingerprint] for p in self])
        return self._ref

    @property
    def shapes(self) -> tuple[str, ...]:
        """The fingerprints of runs that can be gone on with here, migrations included (§10.11)."""
        return tuple(dict.fromkeys(f for p in self for f in (p.fingerprint, *p.migrates)))

    def find(self, skill_id: str, version: str | None = None) -> Program:
        """The program of an id; of several versions the one asked for, else the newest registered.

        Raises:
            SkillUnknown: this process does not have it; says what it has.
        """
        versions = self._by_id.get(skill_id)
        if not versions:
            known = ", ".join(self._by_id) or "none"
            raise SkillUnknown(f"the skill {skill_id!r} is not registered here", hint=f"known: {known}; pass its TARGET (module:name) or Runtime(skills=[…])")
        if version is not None and version in versions:
            return versions[version]
        return next(reversed(versions.values()))

    def for_run(self, run: Run, *, upgrade: bool = False) -> Program:
        """The program that may go on with a run (§3.2).

        Raises:
            SkillUnknown: it is not registered here.
            FingerprintMismatch: its shape changed, no migration is declared, and no upgrade was asked for.
        """
        program = self.find(run.skill_id, run.skill_version)
        if upgrade:
            return program
        for other in (program, *reversed(self._by_id[run.skill_id].values())):
            if run.fingerprint == other.fingerprint or run.fingerprint in other.migrates:
                return other
        code = target_of(run.target)
        raise FingerprintMismatch(
            f"the graph of {run.skill_id!r} (v{program.version}) differs from the one with which the run {run.run_id} began (v{run.skill_version})",
            hint=f'to let the new code continue such runs, declare migrates=("{run.fingerprint}",) in the skill; for this run only: holdfast resume {run.run_id} {code} --upgrade, holdfast worker {code} --upgrade',
        )


class Asked(msgspec.Struct, frozen=True):
    """A call through ``ctx``: where it stands in which run, what it is, and with what. ``digest`` tells arguments apart."""

    run_id: str
    step: int
    task: str
    path: str
    kind: str
    name: str
    digest: str
    args: tuple[Any, ...]


class Sendings(Protocol):
    """Who sends the intents of runs that are driven here (§4.18)."""

    def posted(self, run_id: str) -> None:
        """A run that is driven here may have intents to send: a commit of it has some, or one from before."""

    async def delivered(self, run_id: str) -> None:
        """The run rests: what it has to be sent is sent, as far as that can be done now."""

    def leave(self, run_id: str) -> None:
        """The run is not driven here any more."""


class Recording(Protocol):
    """What answers the calls of a run in the place of the outside (``holdfast.testing.replay``)."""

    def answer(self, call: Asked) -> StepRecord | None:
        """What is on record there; None where the call may go on: it opens a scope, or a wait."""

    def ended(self, run_id: str, step: int) -> Ended | None:
        """How the barrier of this number went, where it was no plain one."""


@dataclasses.dataclass(slots=True)
class Services:
    """Store, clock, owner and registries of one runtime; ``grace``: seconds for which a cancel lets an effect in flight come to
    its end (§10.12).

    ``alive()`` is False once the lease may have been lost (§10.3), ``renew`` confirms it now, out of turn, ``confirm`` has that done
    for a thread, and ``failed()`` is the error of a renewal that does not succeed. ``lengthen`` makes leases so many times as long
    while a run is driven whose earlier owners were late; 1 ends that. ``driving``: the runs that some task of this process has claimed and drives; ``claiming`` is held from a claim's question until they are among these;
    ``stalled``: those whose driving broke off though their lease may be held here, with the time (``clock.monotonic``) from
    which they may be taken up again. ``undos``: what takes an effect back, by the effect's place, as this process was told. ``limits`` are those declared here,
    ``max_queued`` how many runs of a tenant may wait in a queue; ``leaving``: calls that have ended and whose limits are to be given back; ``unbounded``: limits that calls named and nobody declares, as was said once;
    ``sends``: the types of intents that are sent from here for everybody.
    """

    store: Store
    clock: Clock
    owner: str
    skills: Skills
    environment: str = "development"
    place: Environment = DEVELOPMENT
    tools: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    resolver: Resolver | None = None
    policy: Policy | None = None
    tool_runner: Any = None
    workspace: str | None = None
    acting: set[tuple[str, str]] = dataclasses.field(default_factory=set)
    parallel: int = 64
    max_takeovers: int = 10
    alive: Callable[[], bool] = lambda: True
    driving: set[str] = dataclasses.field(default_factory=set)
    claiming: asyncio.Lock = dataclasses.field(default_factory=asyncio.Lock)
    stalled: dict[str, float] = dataclasses.field(default_factory=dict)
    renew: Callable[[], Awaitable[bool]] | None = None
    confirm: Callable[[], bool] = lambda: True
    lengthen: Callable[[str, int], bool] = lambda run_id, times: False
    failed: Callable[[], BaseException | None] = lambda: None
    entropy: Callable[[], int] = lambda: int.from_bytes(os.urandom(16))
    grace: float = 10.0
    recording: Recording | None = None
    sendings: Sendings | None = None
    pool: Pool = dataclasses.field(default_factory=Pool)
    undos: dict[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    limits: Mapping[str, Limit] = dataclasses.field(default_factory=dict)
    max_queued: int | None = None
    leaving: set[str] = dataclasses.field(default_factory=set)
    unbounded: set[str] = dataclasses.field(default_factory=set)
    sends: tuple[str, ...] = ()
    quarantine: Quarantine = dataclasses.field(default_factory=Quarantine)
    streams: Streams = dataclasses.field(init=False)
    drivers: Drivers = dataclasses.field(init=False)
    threads: Threads = dataclasses.field(init=False)
    _bounds: tuple[float, Rules] | None = dataclasses.field(init=False)
    _offers: tuple[float, list[Offer]] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.streams = Streams(self.store, self.clock)
        self.drivers = Drivers(self.store, self.clock, lambda: self.owner)
        self.threads = Threads(self.store)
        self._bounds: tuple[float, Rules] | None = None
        self._offers: tuple[float, list[Offer]] = 0.0, []

    async def bounds(self, *, fresh: bool = False) -> Rules:
        """The limits in force, as they were at most a second ago unless ``fresh`` ones are asked for; a claim goes by what they are then."""
        now = self.clock.monotonic()
        if fresh or self._bounds is None or now - self._bounds[0] >= BOUNDS_SECONDS:
            self._bounds = (now, in_force(self.limits, await self.store.rules()))
        return self._bounds[1]

    def rebound(self) -> None:
        """A limit was changed here: what was in force a moment ago is not asked of any more."""
        self._bounds = None

    async def offers(self, *, fresh: bool = False) -> list[Offer]:
        """What the processes offer that are up; that some are, as they were at most a second ago unless ``fresh`` ones are asked for."""
        now = self.clock.monotonic()
        if fresh or not self._offers[1] or now - self._offers[0] >= BOUNDS_SECONDS:
            self._offers = (now, await living(self.store))
        return self._offers[1]

    @property
    def folder(self) -> str | None:
        """The id of the workspace here; None where no tool has worked yet, or there is none."""
        return workspaces.known(self.workspace)

    @property
    def shapes(self) -> tuple[str, ...]:
        """What runs that can be gone on with here look like to a store: those that are bound to no folder, and those bound to this one."""
        return self._here(self.skills.shapes)

    def claimed(self, *, upgrade: bool) -> tuple[str, ...]:
        """What a worker claims: those, or with ``upgrade`` what is of any shape, in the same folders."""
        return self._here((ANY,) if upgrade else self.skills.shapes)

    def _here(self, shapes: tuple[str, ...]) -> tuple[str, ...]:
        folder = self.folder
        return shapes if folder is None else (*shapes, *(shaped(f, folder) for f in shapes))

    def here(self, run: Run) -> None:
        """Refuses a run whose tools have worked in another folder.

        Raises:
            WorkspaceElsewhere: naming that workspace.
        """
        if run.workspace is not None and run.workspace != self.folder:
            raise WorkspaceElsewhere(
                f"the tools of {run.run_id} have worked in the workspace {run.workspace}, which is not here", hint="resume it where that folder is: Runtime(workspace=…)"
            )

    def begin_anew(self, owner: str) -> None:
        """The runtime was closed and is entered again, as another owner."""
        self.owner = owner
        self.pool = Pool()
        self.acting.clear()
        self.driving.clear()
        self.claiming = asyncio.Lock()
        self.stalled.clear()
        self.leaving.clear()
        self.sends = ()
        self.quarantine = Quarantine()
        self.drivers = Drivers(self.store, self.clock, lambda: self.owner)

    async def holds(self) -> bool:
        """Whether something new may begin under the lease; asks the store once before it says no.

        A machine that slept, or a loop that was busy for long, has missed renewals that it may still make up for.
        """
        if self.alive():
            return True
        return self.renew is not None and await self.renew() and self.alive()


def may_be_held_still(error: BaseException) -> bool:
    """Whether a run may still be held here after its driver ended with this error."""
    return isinstance(error, StoreError | Conflict)
