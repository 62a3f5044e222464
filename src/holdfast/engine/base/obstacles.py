"""What keeps a run from being driven: other runs in its lane (§4.16, §10.8), or that no running process can take it (§10.11)."""

from __future__ import annotations

import msgspec

from holdfast.core import lanes, offers, views
from holdfast.core.errors import FingerprintMismatch, SkillUnknown
from holdfast.core.lanes import Blocked, Head, May
from holdfast.core.lease import Lease
from holdfast.core.limits import Rules, Use
from holdfast.core.offers import NoWorker, Offer
from holdfast.core.run import Run
from holdfast.core.status import LIVE, TERMINAL, WAITING, Status
from holdfast.core.wording import target_of
from holdfast.engine.base.services import Services
from holdfast.engine.look.living import living
from holdfast.ports import RunFilter, Store, Usage


def _due(lease: Lease, now: int) -> bool:
    return lease.due is not None and lease.due <= now


class Sight:
    """What the runs of one list are judged by, at one moment. Data that several runs share is read once. If not ``fresh``, limits and workers
    are at most a second old."""

    def __init__(self, services: Services, now: int | None = None, *, fresh: bool = True) -> None:
        self._services = services
        self.now = services.store.now() if now is None else now
        self._fresh = fresh
        self._first: dict[tuple[str, str, str], list[tuple[Run, Lease]]] = {}
        self._rules: Rules | None = None
        self._usage: Usage | None = None
        self._offers: list[Offer] | None = None

    async def before(self, run: Run, lease: Lease) -> list[tuple[Run, Lease]]:
        """Returns the first run that goes before a queued one. Once the queued run is due, that is the first run of its lane, which all runs queued there share."""
        if not _due(lease, self.now):
            return await before(self._services.store, run, 1)
        place = (run.tenant_id, run.session_key, run.lane)
        if place not in self._first:
            self._first[place] = await ahead(self._services.store, *place, 1)
        return [x for x in self._first[place] if x[0].run_id != run.run_id]

    async def rules(self) -> Rules:
        if self._rules is None:
            self._rules = await self._services.bounds(fresh=self._fresh)
        return self._rules

    async def usage(self) -> Usage:
        if self._usage is None:
            self._usage = await self._services.store.usage()
        return self._usage

    async def offers(self) -> list[Offer]:
        if self._offers is None:
            self._offers = await self._services.offers(self.now, fresh=self._fresh)
        return self._offers


def has_lane(run: Run, lease: Lease) -> bool:
    """Whether a run has its lane already, as far as its row tells: it is driven; it waits and has kept the lane; or its session is its own and it has
    not begun. If it begins later, a run submitted after it to the same session may still go first; the claim checks that again."""
    if run.status is Status.PENDING:
        return run.session_key == run.run_id
    return (run.status in LIVE and lease.owner is not None) or (run.status in WAITING and run.paused_lane != "release")


async def ahead(store: Store, tenant_id: str, session_key: str, lane: str, limit: int, until: str | None = None) -> list[tuple[Run, Lease]]:
    """Returns the first runs of a lane that go before others: the holder, then those that are due, by their turns (``ports.RunFilter``)."""
    return await store.runs(RunFilter(tenant_id=tenant_id, session_key=session_key, lane=lane, ahead=True, until=until, limit=limit))


async def before(store: Store, run: Run, limit: int) -> list[tuple[Run, Lease]]:
    """Returns the first runs of its lane that go before this one. A run that has ended comes after all others, because it gets a new turn if it is resumed."""
    found = await ahead(store, run.tenant_id, run.session_key, run.lane, limit, None if run.status in TERMINAL else run.run_id)
    for n, (other, _) in enumerate(found):
        if other.run_id == run.run_id:
            return found[:n]
    return found


def put_off(run: Run, lease: Lease, now: int) -> int:
    """Returns for how many more microseconds a run pauses in the middle of a step until a limit has room (§10.11); 0 for any other run."""
    resting = run.status in LIVE and lease.owner is None and run.interrupted_at is None
    return max(0, lease.due - now) if resting and lease.due is not None else 0


def judge(services: Services, run: Run, lease: Lease) -> May:
    """Decides what this process may do about the run at the head of a lane."""
    now = services.store.now()
    return lanes.may(
        Head(
            live=lease.live(now) and (lease.owner != services.owner or run.run_id in services.driving),
            here=lease.owner == services.owner,
            held=run.interrupted_at is not None or (run.status in LIVE and run.recovery == "hold" and lease.owner is not None),
            waits=run.status in WAITING and not any(d.resume for d in run.decisions) and not (lease.due is not None and lease.due <= now),
            known=_is_known(services, run),
            crowded=put_off(run, lease, now) > 0,
        )
    )


def _is_known(services: Services, run: Run) -> bool:
    try:
        services.skills.for_run(run)
        services.here(run)
    except (SkillUnknown, FingerprintMismatch):
        return False
    return True


def tell(what: May, run: Run, lease: Lease) -> Blocked:
    """Says why a head is not driven."""
    match what:
        case May.LIVE | May.AWAIT | May.DRIVE:
            detail = f"{lease.owner} executes it, and its lease lasts until {views.iso(lease.expires_at)}" if lease.owner is not None else f"it is {run.status}, and goes first"
            return Blocked(run.run_id, f"{May.LIVE}: {detail}" if lease.owner is not None else detail)
        case May.LIMIT:
            return Blocked(run.run_id, f"{what}: it pauses until {views.iso(lease.due)}, or until there is room")
        case May.HOLD:
            return Blocked(run.run_id, f"{what}: it is interrupted until somebody resumes it (holdfast resume {run.run_id} {target_of(run.target)})")
        case May.WAIT:
            asked = "; ".join(w.prompt or w.name or str(w.kind) for w in run.waits) or "decided, and not resumed"
            return Blocked(run.run_id, f"{what}: it is {run.status} ({asked})")
    return Blocked(run.run_id, f"{what}: {run.skill_id} v{run.skill_version} ({run.fingerprint}) is not registered here")


_STANDS = {
    May.LIVE: "a process executes it",
    May.AWAIT: "a process executes it",
    May.HOLD: "it is interrupted until a person resumes it",
    May.LIMIT: "it pauses until a limit has room",
}


async def find_before(services: Services, run: Run, lease: Lease) -> Blocked | None:
    """Returns the run of its lane for which a run at rest has to wait, and that run's state, without what it asks, which may be secret. For an ended run, returns
    only a run because of which a resume is refused: a run that is due and has the same code is driven first by the resume itself."""
    if lease.live(services.store.now()) or has_lane(run, lease) or not (found := await before(services.store, run, 1)):
        return None
    head, held = found[0]
    what = judge(services, head, held)
    drivable = what in (May.DRIVE, May.NO_SKILL)  # whether this process has the code does not say whether the one that resumes has it
    if drivable and run.status is not Status.PENDING and (head.skill_id, head.fingerprint) == (run.skill_id, run.fingerprint):
        return None
    return Blocked(head.run_id, _STANDS.get(what, "it is due and goes first" if drivable else f"it is {head.status}"))


async def find_blocker(services: Services, run: Run, lease: Lease, sight: Sight, *, first: bool = False) -> Blocked | None:
    """Returns what a pending run waits for now; None if nothing is in its way. ``first``: there is no other run in its session."""
    if run.status is not Status.PENDING or lease.owner is not None:
        return None
    if not first and (others := await sight.before(run, lease)):
        return tell(judge(services, *others[0]), *others[0])
    later = not _due(lease, sight.now) and run.begins_at is not None and run.begins_at > sight.now
    if later or (held := await find_limit(services, run, sight)) is None:
        return None
    return Blocked("", held.why)


class Held(msgspec.Struct, frozen=True):
    """A limit or a pause that holds a run back; ``until``: until when, if that is known; ``mine``: whether this process drives runs that count towards it."""

    why: str
    until: int | None
    mine: bool


async def find_limit(services: Services, run: Run, sight: Sight | None = None) -> Held | None:
    """Returns the limit in force that holds back a run which could otherwise be driven (§10.11)."""
    sight = sight or Sight(services)
    rules = await sight.rules()
    if not rules.touches(run.queue, run.tenant_id):
        return None
    usage = await sight.usage()
    found = Use(rules, services.owner, usage.held, usage.buckets, sight.now).in_the_way(run.queue, run.tenant_id)
    if found is None:
        return None
    others = any(h.owner == services.owner and (h.queue == run.queue or h.tenant == run.tenant_id) for h in usage.held)
    return Held(*found, mine=others and run.queue not in rules.paused)


async def lacking(store: Store, run: Run, lease: Lease, sight: Sight | None = None) -> NoWorker | None:
    """Returns why no living worker of its queue takes a due run (§10.11); None if one can, or if no worker is up."""
    if run.status in TERMINAL or lease.due is None:
        return None
    now = store.now() if sight is None else sight.now
    if lease.due > now or (lease.owner is not None and lease.live(now)):
        return None
    return offers.lacking(run, lease, await living(store, now) if sight is None else await sight.offers(), now)


__all__ = ["Sight", "ahead", "before", "find_before", "find_blocker", "find_limit", "has_lane", "judge", "lacking", "put_off", "tell"]
