"""Limits: how many runs and calls may be in flight at once, and how many may begin per second (§10.11). Pure: decides what may begin, and when.

The number in use is counted from the current holders at each check, so there is no counter that a crash could leave wrong. The only stored
value is the bucket of a rate: the time at which it will be full again. The bucket refills as time passes, without a write.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.core import bounds
from holdfast.core.bounds import Declared
from holdfast.core.errors import InvalidInput

T = TypeVar("T")
SECOND = 1_000_000
MOST = 1_000_000
WORKER = "worker"
QUEUE, TENANT, ANY = "queue:", "tenant:", "*"
KEPT_CHANGES = 100
SOON_US = SECOND  # a call that waits longer for its turn rests instead
HEARD_US = 50_000  # the most by which the known server time may be wrong: the travel time of an answer
LONGEST_WAIT_US = 30 * SECOND


class Limit(msgspec.Struct, frozen=True, kw_only=True, metaclass=Declared):
    """At most ``in_flight`` runs or calls are under way at the same time. They begin at an average rate of at most ``per_second``, by a token
    bucket that holds ``burst`` tokens (by default as many as ``per_second``, rounded down, and at least one)."""

    in_flight: int | None = None
    per_second: float | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        if self.in_flight is not None:
            bounds.number(self.in_flight, "in_flight", 1, MOST)
        if self.per_second is not None and bounds.amount(self.per_second, "per_second") > MOST:
            raise bounds.wrong("per_second", f"at most {MOST}", self.per_second)
        if self.burst is not None:
            bounds.number(self.burst, "burst", 1, MOST)
            if self.per_second is None:
                raise InvalidInput("burst= needs per_second=: it is the burst of that rate", field="burst", hint="give per_second as well")
        if self.in_flight is None and self.per_second is None:
            raise InvalidInput("a limit must have in_flight, per_second, or both", field="in_flight", hint="Limit(in_flight=5, per_second=50)")
        if self.held * self.every > bounds.LONGEST_US:
            raise InvalidInput(f"at {self.per_second:g} per second, {self.held} would take longer than a hundred years", field="per_second", hint="Limit(per_second=0.01)")

    @property
    def every(self) -> int:
        """The microseconds until the next token; 0 without a rate."""
        return 0 if self.per_second is None else max(1, math.ceil(SECOND / self.per_second))

    @property
    def held(self) -> int:
        """The number of tokens that the bucket holds."""
        return 1 if self.per_second is None else self.burst or max(1, int(self.per_second))

    @property
    def said(self) -> str:
        """The limit as text."""
        rate = "" if self.per_second is None else f"{self.per_second:g} per second, {self.held} at once"
        return ", ".join(part for part in ("" if self.in_flight is None else f"{self.in_flight} in flight", rate) if part)


class Change(msgspec.Struct, frozen=True):
    """A change of a limit or a queue: ``action`` is set, unset, paused or unpaused. ``via``: the id of the access token (§16.2)."""

    at: int
    actor: str
    action: str
    limit: Limit | None = None
    reason: str = ""
    via: str = ""


class Rule(msgspec.Struct, frozen=True):
    """What is stored under a name: the limit that was set, whether the queue of this name is paused, and the changes, newest last."""

    name: str
    limit: Limit | None = None
    paused: bool = False
    changes: tuple[Change, ...] = ()

    def change(self, change: Change) -> Rule:
        """Returns the rule after a change."""
        changes = (*self.changes, change)[-KEPT_CHANGES:]
        match change.action:
            case "set" | "unset":
                return msgspec.structs.replace(self, limit=change.limit, changes=changes)
            case _:
                return msgspec.structs.replace(self, paused=change.action == "paused", changes=changes)


class Bounded(NamedTuple):
    """A limit as it applies to one queue, tenant or worker. ``name`` is the name of the bucket: under a limit with a star, each has a bucket of its own."""

    name: str
    limit: Limit


class Rules(msgspec.Struct, frozen=True):
    """The limits in force: those that the asking process declares, and those that are stored, which win."""

    limits: Mapping[str, Limit] = {}
    paused: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.limits or self.paused)

    def queue(self, queue: str) -> Bounded | None:
        return self._of(QUEUE, queue)

    def tenant(self, tenant: str) -> Bounded | None:
        return self._of(TENANT, tenant)

    def worker(self, owner: str) -> Bounded | None:
        limit = self.limits.get(WORKER)
        return None if limit is None else Bounded(f"{WORKER}:{owner}", limit)

    def _of(self, kind: str, name: str) -> Bounded | None:
        limit = self.limits.get(kind + name) or self.limits.get(kind + ANY)
        return None if limit is None else Bounded(kind + name, limit)

    def find(self, name: str) -> Limit | None:
        return self.limits.get(name)

    @property
    def counts_runs(self) -> bool:
        """Whether a limit bounds how many runs are in flight."""
        return any(limit.in_flight is not None and (name == WORKER or name.startswith((QUEUE, TENANT))) for name, limit in self.limits.items())

    def touches(self, queue: str, tenant: str) -> bool:
        """Whether a limit or a pause applies to runs of this queue and tenant."""
        return queue in self.paused or WORKER in self.limits or self.queue(queue) is not None or self.tenant(tenant) is not None


def in_force(declared: Mapping[str, Limit], stored: Iterable[Rule]) -> Rules:
    """Returns the limits in force: a stored limit wins over a declared one."""
    kept = list(stored)
    limits = {**declared, **{r.name: r.limit for r in kept if r.limit is not None}}
    return Rules(limits, frozenset(r.name.removeprefix(QUEUE) for r in kept if r.paused))


def admit(given: Mapping[Any, Any]) -> dict[str, Limit]:
    """Returns declared limits, after a check.

    Raises:
        InvalidInput: a name is not that of a limit, or a value is not a limit.
    """
    found: dict[str, Limit] = {}
    for key, limit in given.items():
        if not isinstance(limit, Limit):
            raise bounds.wrong(f"limits[{key!r}]", "a Limit", limit, "Limit(in_flight=5)")
        found[name(key)] = limit
    return found


def name(given: object) -> str:
    """Checks and returns the name of a limit: ``worker``, ``queue:Q``, ``tenant:T``, ``queue:*``, ``tenant:*``, or one that nodes, tools and transports use."""
    plain = bounds.text(given, "the name of a limit")
    kind, colon, rest = plain.partition(":")
    if colon and (f"{kind}:" not in (QUEUE, TENANT) or not rest):
        raise InvalidInput(f"{plain!r} names no limit", field="limits", hint="worker, queue:Q, tenant:T, queue:*, tenant:*, or a plain name such as model")
    return plain


def check_name(given: object, field: str = "limit") -> str:
    """Checks and returns the name of a limit that a node, a tool or a transport uses.

    Raises:
        InvalidInput: it is not a valid name, or it names a limit on runs.
    """
    plain = bounds.text(given, field)
    if plain == WORKER or ":" in plain:
        raise InvalidInput(f"{plain!r} cannot be the name of a call's limit", field=field, hint="use a plain name such as model (the names worker, queue:… and tenant:… limit runs, not calls)")
    return plain


# -- tokens -------------------------------------------------------------------------------------------


def next_token(limit: Limit, full_at: int, now: int) -> int:
    """Returns when a token is available: now, or later. ``full_at``: when the bucket will be full again."""
    if not limit.every:
        return now
    full_at = min(full_at, now + limit.held * limit.every)  # at most an empty bucket, even if the clock was changed
    return max(now, full_at - (limit.held - 1) * limit.every)


def take_token(limit: Limit, full_at: int, now: int) -> int:
    """Returns when the bucket will be full again after a token has been taken from it."""
    return max(now, min(full_at, now + limit.held * limit.every)) + limit.every


# -- runs ---------------------------------------------------------------------------------------------


class Due(NamedTuple):
    """A run that may be claimed; ``key`` is the store's own."""

    key: Any
    queue: str
    tenant: str
    priority: int
    due: int
    turn: int


class Held(NamedTuple):
    """How many runs an owner holds, by queue and tenant. Lost owners hold none."""

    owner: str
    queue: str
    tenant: str
    runs: int


class Chosen(NamedTuple):
    """The runs to claim, by their keys in order, the buckets after that, and when a rate will allow another run that it holds back now."""

    keys: tuple[Any, ...]
    buckets: dict[str, int]
    again: int | None = None


class Use:
    """What is in use, and what a claim may still add: it takes all limits of a run, or none (T-85). ``again``: when a rate will allow a run that is
    held back by nothing else."""

    def __init__(self, rules: Rules, owner: str, held: Iterable[Held], buckets: Mapping[str, int], now: int) -> None:
        self._rules, self._owner, self._now = rules, owner, now
        self._before = buckets
        self.buckets: dict[str, int] = {}
        self.again: int | None = None
        self.queues: Counter[str] = Counter()
        self.tenants: Counter[str] = Counter()
        self.shares: Counter[tuple[str, str]] = Counter()
        self._mine = 0
        for h in held:
            self.queues[h.queue] += h.runs
            self.tenants[h.tenant] += h.runs
            self.shares[h.queue, h.tenant] += h.runs
            self._mine += h.runs if h.owner == owner else 0

    def _ask(self, queue: str, tenant: str) -> list[tuple[Bounded, int]]:
        found = ((self._rules.worker(self._owner), self._mine), (self._rules.queue(queue), self.queues[queue]), (self._rules.tenant(tenant), self.tenants[tenant]))
        return [(b, n) for b, n in found if b is not None]

    def _full_at(self, name: str) -> int:
        return self.buckets.get(name, self._before.get(name, 0))

    def in_the_way(self, queue: str, tenant: str) -> tuple[str, int | None] | None:
        """Returns what holds back a run of this queue and tenant, and when that ends by itself; None if the run may go."""
        if queue in self._rules.paused:
            return f"the queue {queue} is paused", None
        for (name, limit), count in self._ask(queue, tenant):
            if limit.in_flight is not None and count >= limit.in_flight:
                return f"limit {name}: {count} of {limit.in_flight} in flight", None
        later = [(next_token(b.limit, self._full_at(b.name), self._now), b) for b, _ in self._ask(queue, tenant)]
        at, last = max(later, key=lambda x: x[0], default=(0, None))
        if last is not None and at > self._now:
            self.again = at if self.again is None else min(at, self.again)
            return f"limit {last.name}: {last.limit.per_second:g} per second", at
        return None

    def take(self, queue: str, tenant: str) -> None:
        """Counts one more run of this queue and tenant."""
        for (name, limit), _ in self._ask(queue, tenant):
            if limit.every:
                self.buckets[name] = take_token(limit, self._full_at(name), self._now)
        self.queues[queue] += 1
        self.tenants[tenant] += 1
        self.shares[queue, tenant] += 1
        self._mine += 1


def choose(waiting: Iterable[Due], use: Use, room: int) -> Chosen:
    """Chooses runs to claim: the most urgent first; among equally urgent ones that of the tenant with the fewest runs in its queue; then the oldest (§10.11)."""
    lines: dict[tuple[int, str, str], deque[Due]] = {}
    for run in sorted(waiting, key=lambda r: (-r.priority, r.due, r.turn)):
        lines.setdefault((-run.priority, run.queue, run.tenant), deque()).append(run)

    def place(line: tuple[int, str, str]) -> tuple[int, int, int, int]:
        head = lines[line][0]
        return (line[0], use.shares[line[1], line[2]], head.due, head.turn)

    heap = [(place(line), line) for line in lines]
    heapq.heapify(heap)
    keys: list[Any] = []
    while heap and len(keys) < room:
        rank, line = heapq.heappop(heap)
        if rank != (now := place(line)):  # its tenant has been given a run since it was ranked
            heapq.heappush(heap, (now, line))
            continue
        _, queue, tenant = line
        if use.in_the_way(queue, tenant) is not None:
            continue  # a full limit stays full during this claim
        use.take(queue, tenant)
        keys.append(lines[line].popleft().key)
        if lines[line]:
            heapq.heappush(heap, (place(line), line))
    return Chosen(tuple(keys), use.buckets, use.again)


# -- calls --------------------------------------------------------------------------------------------


class Later(msgspec.Struct, frozen=True):
    """A call may not begin yet: why, and when to ask again."""

    why: str
    at: int
    name: str = ""


def may_enter(needs: Sequence[tuple[str, Limit | None, int]], buckets: Mapping[str, int], now: int, since: int | None = None) -> dict[str, int] | Later:
    """Returns the buckets after a call that uses these limits begins, or, if it may not begin, when to ask again. A call takes all its limits, or none (T-85).

    Args:
        needs: for each limit its name, the limit (None: none is set) and how many calls hold it.
        buckets: when each bucket will be full again.
        now: the store's time.
        since: since when the call has waited; a call that has waited long asks less often.
    """
    later: Later | None = None
    for name, limit, count in needs:
        if limit is None:
            continue
        at, why = next_token(limit, buckets.get(name, 0), now), f"limit {name}: {limit.per_second or 0:g} per second"
        if limit.in_flight is not None and count >= limit.in_flight:
            waited = 0 if since is None else now - since
            at, why = now + min(LONGEST_WAIT_US, max(SECOND, waited // 4)), f"limit {name}: {count} of {limit.in_flight} in flight"
        if at > now and (later is None or at > later.at):
            later = Later(why, at, name)
    if later is not None:
        return later
    return {name: take_token(limit, buckets.get(name, 0), now) for name, limit, _ in needs if limit is not None and limit.every}


def soon(later: Later, waited: float, now: int) -> bool:
    """Whether a call waits in place for its turn: the turn comes within a second, and the call has not waited for a second yet.

    Args:
        waited: seconds since it first asked, by the worker's clock, which is used only to measure spans (§1.9).
        now: the store's time.
    """
    return waited * SECOND < SOON_US and later.at - now <= SOON_US + HEARD_US


# -- submitting ---------------------------------------------------------------------------------------


def tell_when_to_come_back(rules: Rules, queue: str, tenant: str) -> float:
    """Returns after how many seconds a submit to a full queue may be tried again: one, or more if a rate lets less than one run begin per second."""
    rates = [b.limit.per_second for b in (rules.queue(queue), rules.tenant(tenant)) if b is not None and b.limit.per_second is not None]
    return max([1.0, *(1 / r for r in rates)])


# -- the state of queues ------------------------------------------------------------------------------


class Backlog(NamedTuple):
    """Due runs of one queue, tenant and shape that are not claimed; ``laned``: how many of them wait behind another run of their lane."""

    queue: str
    tenant: str
    skill_id: str
    fingerprint: str
    due: int
    laned: int
    oldest: int


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue: how many due runs are not claimed, since when the oldest is due, how many runs are driven, and how many are blocked by what."""

    queue: str
    depth: int
    oldest_at: int | None
    in_flight: int
    paused: bool
    blocked: dict[str, int]


def queues(backlog: Sequence[Backlog], held: Sequence[Held], rules: Rules, buckets: Mapping[str, int], now: int, takers: Callable[[Backlog], bool]) -> list[QueueState]:
    """Returns every queue that has due or driven runs, or is paused. ``takers``: whether a living worker takes such a run."""
    use = Use(rules, "", held, buckets, now)
    names = {b.queue for b in backlog} | set(use.queues) | rules.paused
    out = []
    for queue in sorted(names):
        mine = [b for b in backlog if b.queue == queue]
        blocked: Counter[str] = Counter()
        for b in mine:
            if queue in rules.paused:
                blocked["paused"] += b.due
                continue
            if not takers(b):
                blocked["no_worker_for"] += b.due
                continue
            if b.laned:
                blocked["lane"] += b.laned
            if use.in_the_way(queue, b.tenant) is not None and b.due > b.laned:
                blocked["limit"] += b.due - b.laned
        out.append(
            QueueState(
                queue=queue, depth=sum(b.due for b in mine), oldest_at=min((b.oldest for b in mine), default=None), in_flight=use.queues[queue],
                paused=queue in rules.paused, blocked=dict(sorted(blocked.items())),
            )
        )
    return out


__all__ = [
    "Backlog",
    "Bounded",
    "Change",
    "Chosen",
    "Due",
    "Held",
    "Later",
    "Limit",
    "QueueState",
    "Rule",
    "Rules",
    "Use",
    "admit",
    "check_name",
    "choose",
    "in_force",
    "may_enter",
    "name",
    "next_token",
    "queues",
    "soon",
    "take_token",
    "tell_when_to_come_back",
]
