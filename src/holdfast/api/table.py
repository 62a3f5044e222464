"""The routes, one row each: method, path, scope, types of the input, type of the answer, handler (§16.3).

The application, the OpenAPI document and the tests of authorisation are made from this table, so no route exists without a row. A row
decides nothing: it turns a request into a verb of the runtime, under the caller's tenant, and a record into a view.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.access import Access, Scope
from holdfast.api import bodies as b
from holdfast.api.answers import Seen
from holdfast.api.problems import Stopped
from holdfast.core import describe
from holdfast.core.bounds import moment
from holdfast.core.errors import CheckpointNotFound, InvalidInput, NotFound, StoreCorrupt, UnknownStatus, UnsupportedFormat
from holdfast.core.intents import REDRIVE
from holdfast.core.run import Run
from holdfast.core.status import AT_REST, TERMINAL
from holdfast.core.tokens import hash_secret
from holdfast.core.views import iso
from holdfast.engine.look import recipients
from holdfast.engine.look.looker import Wanted, refuse_cursor, skills
from holdfast.machine import note_error
from holdfast.runtime import Runtime

LONGEST_WAIT = 60.0
POLL_SECONDS = 1.0
SETTLE_SECONDS = 10.0


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One request: the caller, the path, the query and the body. ``key``: its Idempotency-Key; ``seen``: the state of its target when it was first taken
    up under that key; ``again``: an earlier attempt left no answer, for example because its server died, and may have carried it out."""

    rt: Runtime
    access: Access
    path: Mapping[str, str]
    query: Any
    body: Any
    key: str | None = None
    seen: Seen | None = None
    again: bool = False
    trace: str | None = None
    match: str | None = None
    jobs: set[asyncio.Task[Any]]
    stopping: asyncio.Event

    @property
    def tenant(self) -> str | None:
        return self.access.tenant

    @property
    def run_id(self) -> str:
        return self.path["run_id"]

    @property
    def conditional(self) -> bool:
        """Whether the caller names the version that it has seen (§16.6)."""
        return self.match is not None and self.match.strip() != "*"

    @property
    def actor(self) -> str:
        return str(getattr(self.body, "actor", None) or self.access.actor)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request: a value of the row's type, or a mapping of the same shape."""

    value: Any
    status: int = 200
    headers: Mapping[str, str] = {}


Handler = Callable[[Call], Awaitable[Answer]]
Sees = Callable[[Call], Awaitable[Seen]]


async def see_nothing(c: Call) -> Seen:
    """Returns only the time, for a request whose target need not be looked at."""
    return Seen(at=c.rt.store.now())


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """A row. ``scope``: None if no token is needed. ``answers``: the type of the answer; None for a stream or other text. ``sees``: reads the state of a
    POST's target before the POST is carried out under a key. ``matches``: the request is about one run, whose ETag ``If-Match`` may name."""

    method: str
    path: str
    scope: Scope | None
    does: str
    handler: Handler | None
    answers: Any
    query: type[b.Body] = b.NoQuery
    body: type[b.Body] | None = None
    status: int = 200
    media: str = "application/json"
    sees: Sees = see_nothing
    matches: bool = False


# -- reading ----------------------------------------------------------------------------------------


def _etag(run: describe.RunView) -> dict[str, str]:
    return {"ETag": f'"{run.version}"'}


def _when(text: str | None, field: str) -> int | None:
    if text is None:
        return None
    hint = "ISO 8601 with an offset: 2026-11-21T08:00Z"
    try:
        at = dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is not a time", field=field, hint=hint) from None
    if at.utcoffset() is None:
        raise InvalidInput(f"{text!r} has no offset from UTC", field=field, hint=hint)
    return moment(at, field)


def _pick(shown: dict[str, Any], fields: str | None) -> dict[str, Any]:
    if fields is None:
        return shown
    names = [n.strip() for n in fields.split(",") if n.strip()]
    for name in names:
        if name not in shown:
            raise InvalidInput(f"{name!r} is not a field of this object", field="fields", hint=", ".join(shown))
    return {n: shown[n] for n in names}


def _page(items: list[Any], name: Callable[[Any], str], query: b.PageQuery) -> tuple[list[Any], str | None]:
    start = 0
    if query.cursor is not None:
        start = next((n for n, item in enumerate(items, 1) if name(item) == query.cursor), 0)
        if not start:
            raise refuse_cursor(query.cursor)
    found = items[start : start + query.limit]
    return found, name(found[-1]) if found and start + len(found) < len(items) else None


T = TypeVar("T")


def _page_in_order(items: Iterable[T], place: Callable[[T], tuple[str, ...]], query: b.PageQuery) -> tuple[list[T], str | None]:
    """Returns a page of rows that come and go. The cursor is a place in the order, not a row, because that row may be gone when the next page is requested."""
    found = sorted(items, key=place)
    if query.cursor is not None:
        after = _read_place(query.cursor)
        found = [item for item in found if place(item) > after]
    page = found[: query.limit]
    return page, _write_place(place(page[-1])) if page and len(found) > len(page) else None


def _write_place(place: tuple[str, ...]) -> str:
    told = base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")
    return f"{told}.{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def _read_place(cursor: str) -> tuple[str, ...]:
    told, _, check = cursor.partition(".")
    try:
        if hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:8] != check:
            raise refuse_cursor(cursor)
        return msgspec.json.decode(base64.urlsafe_b64decode(told + "=" * (-len(told) % 4)), type=tuple[str, ...])
    except ValueError:
        raise refuse_cursor(cursor) from None


async def list_runs(c: Call) -> Answer:
    q: b.RunsQuery = c.query
    wanted = Wanted(
        tenant_id=c.tenant, status=q.status, condition=q.condition, skill_id=q.skill_id, thread_id=q.thread_id, tag=q.tag, text=q.text,
        since=_when(q.since, "since"), until=_when(q.until, "until"), limit=q.limit, before=q.cursor,
    )
    found, more = await c.rt.look.list_runs(wanted, values=q.fields is None or not {"values", "result"}.isdisjoint(n.strip() for n in q.fields.split(",")))
    return Answer(value={"runs": [_pick(describe.plain(r), q.fields) for r in found], "next_cursor": more})


async def show_run(c: Call) -> Answer:
    q: b.RunQuery = c.query
    if not 0 <= q.wait <= LONGEST_WAIT:
        raise InvalidInput(f"wait is 0 to {LONGEST_WAIT:g} seconds", field="wait")
    if q.view not in (None, "legacy"):
        raise InvalidInput(f"{q.view!r} is not a view", field="view", hint="legacy")
    until = time.monotonic() + q.wait
    record, _ = await c.rt.look.find_row(c.run_id, c.tenant)
    while (left := until - time.monotonic()) > 0 and not c.stopping.is_set() and not (resting(record) and not await c.rt.store.inbox(c.run_id)):
        await c.rt.store.wait_for_change(min(left, POLL_SECONDS))
        record, _ = await c.rt.look.find_row(c.run_id, c.tenant)  # only the row: its log is read once, at the end
    run = (await c.rt.look.glance(c.run_id, c.tenant)).detail()
    shown = describe.plain(describe.legacy(run)) if q.view == "legacy" else describe.plain(run)
    return Answer(value=_pick(shown, q.fields), headers=_etag(run))


def resting(run: Run) -> bool:
    """Whether a run stays as it is until somebody or something outside acts."""
    return run.status in TERMINAL or (run.status in AT_REST and not run.decisions and bool(run.waits))


async def list_events(c: Call) -> Answer:
    q: b.EventsQuery = c.query
    found = await c.rt.look.events(c.run_id, q.after if q.cursor is None else q.cursor, q.limit + 1, c.tenant)
    return Answer(value=b.Events(events=found[: q.limit], next_cursor=found[q.limit - 1].seq if len(found) > q.limit else None))


async def list_checkpoints(c: Call) -> Answer:
    every = (await c.rt.look.snapshot(c.run_id, c.tenant, check=False)).checkpoints()
    found, more = _page(every, lambda x: str(x.checkpoint_id), c.query)
    bare = [{n: v for n, v in describe.plain(x).items() if n not in ("values", "pending_writes")} for x in found]
    return Answer(value={"checkpoints": bare, "next_cursor": more})


async def show_checkpoint(c: Call) -> Answer:
    return Answer(value=await c.rt.look.checkpoint(c.run_id, c.path["checkpoint_id"], c.tenant))


async def show_state(c: Call) -> Answer:
    found = await c.rt.look.checkpoint(c.run_id, c.query.at, c.tenant)
    return Answer(value=b.State(run_id=c.run_id, checkpoint_id=found.checkpoint_id, step=found.step, values=found.values))


async def show_diff(c: Call) -> Answer:
    return Answer(value=await c.rt.look.diff(c.run_id, c.query.a, c.query.b, c.tenant))


async def list_run_waits(c: Call) -> Answer:
    found, more = _page_in_order((await c.rt.look.glance(c.run_id, c.tenant, check=False)).waits, lambda w: (w.requested_at or "", w.wait_id), c.query)
    return Answer(value=b.Waits(waits=found, next_cursor=more))


async def list_effects(c: Call) -> Answer:
    found, more = _page((await c.rt.look.snapshot(c.run_id, c.tenant, check=False)).effects(), lambda e: str(e.effect_id), c.query)
    return Answer(value=b.Effects(effects=found, next_cursor=more))


async def list_run_intents(c: Call) -> Answer:
    found, more = _page((await c.rt.look.snapshot(c.run_id, c.tenant, check=False)).intents(), lambda i: str(i.intent_id), c.query)
    return Answer(value=b.Intents(intents=found, next_cursor=more))


async def list_steps(c: Call) -> Answer:
    found, more = _page((await c.rt.look.snapshot(c.run_id, c.tenant, check=False)).steps(), lambda s: str(s.step_id), c.query)
    return Answer(value=b.Steps(steps=found, next_cursor=more))


async def list_attempts(c: Call) -> Answer:
    found, more = _page((await c.rt.look.snapshot(c.run_id, c.tenant, check=False)).attempts(), lambda a: str(a.attempt_id), c.query)
    return Answer(value=b.Attempts(attempts=found, next_cursor=more))


async def list_run_ledger(c: Call) -> Answer:
    return await _ledger(c, c.run_id)


async def list_ledger(c: Call) -> Answer:
    return await _ledger(c, None)


async def _ledger(c: Call, run_id: str | None) -> Answer:
    q: b.LedgerQuery = c.query
    found = await c.rt.look.ledger(run_id, c.tenant, topic=q.topic, key=q.key, after=q.cursor, limit=q.limit)
    return Answer(value=b.Ledger(ledger=found.rows, next_cursor=found.next_cursor))


async def check_run(c: Call) -> Answer:
    try:
        found = (await c.rt.look.snapshot(c.run_id, c.tenant)).detail().problems
    except (UnknownStatus, StoreCorrupt, UnsupportedFormat):  # a check must name just these errors; but the run's tenant cannot be read either
        if c.tenant is not None:
            raise
        found = [describe.problem(p) for p in await c.rt.check(c.run_id)]
    return Answer(value=b.Checked(ok=all(p.severity != "error" for p in found), run_id=c.run_id, problems=found))


async def list_waits(c: Call) -> Answer:
    q: b.PageQuery = c.query
    found, more = await c.rt.look.waits(c.tenant, before=q.cursor, limit=q.limit)
    return Answer(value=b.Waits(waits=found, next_cursor=more))


async def list_intents(c: Call) -> Answer:
    q: b.StateQuery = c.query
    found, more = await c.rt.look.list_intents(c.tenant, state=q.state, after=q.cursor, limit=q.limit)
    return Answer(value=b.Intents(intents=found, next_cursor=more))


async def thread_history(c: Call) -> Answer:
    q: b.HistoryQuery = c.query
    thread = c.path["thread_id"]
    mine = await c.rt.look.runs(Wanted(tenant_id=c.tenant, thread_id=thread, limit=1), values=False)
    if not mine:
        raise NotFound(f"no thread {thread}", hint="GET /v1/runs lists runs with their threads")
    try:
        found = [one async for one in _walk_thread(c, thread, q.cursor or q.after, q.limit + 1)]  # one more shows whether there is a next page
    except CheckpointNotFound:
        if q.cursor is None:
            raise
        raise refuse_cursor(q.cursor) from None
    page = found[: q.limit]
    return Answer(value=b.History(history=page, next_cursor=page[-1]["id"] if len(found) > q.limit else None))


async def _walk_thread(c: Call, thread: str, after: str | None, most: int) -> AsyncIterator[dict[str, Any]]:
    """Yields the checkpoints of a thread's runs under the caller's tenant, oldest first: at most ``most``, those after ``after``.

    Raises:
        CheckpointNotFound: the thread has no such checkpoint.
    """
    runs: list[str] = []
    cursor: str | None = None
    while page := await c.rt.look.runs(Wanted(tenant_id=c.tenant, thread_id=thread, limit=500, before=cursor), values=False):
        runs += [run.run_id for run in page]
        cursor = page[-1].run_id
        if len(page) < 500:
            break
    runs.reverse()
    unknown = CheckpointNotFound(f"the thread {thread!r} has no checkpoint {after}", hint="give the id of one of its checkpoints")
    if after is not None:
        of = after.rpartition(".")[0]
        if of not in runs:
            raise unknown
        runs = runs[runs.index(of) :]
    begun = after is None
    for run_id in runs:
        for x in (await c.rt.look.snapshot(run_id, c.tenant, check=False)).checkpoints():
            if begun:
                yield {"id": x.checkpoint_id, "runId": x.run_id, "values": x.values, "metadata": x.metadata, "createdAt": x.created_at, "nextTasks": x.pending_tasks}
                most -= 1
                if not most:
                    return
            elif x.checkpoint_id == after:
                begun = True
        if not begun:
            raise unknown


async def list_skills(c: Call) -> Answer:
    found, more = _page(skills(c.rt.skills), lambda s: f"{s.skill_id}@{s.skill_version}", c.query)
    return Answer(value=b.Skills(skills=found, next_cursor=more))


async def list_workers(c: Call) -> Answer:
    found, more = _page_in_order(await c.rt.look.workers(), lambda w: (w.owner,), c.query)
    return Answer(value=b.Workers(workers=found, next_cursor=more))


async def list_lanes(c: Call) -> Answer:
    found, more = _page_in_order(await c.rt.look.lanes(c.tenant, session_key=c.query.session_key), lambda lane: (lane.session_key, lane.lane, lane.holder or ""), c.query)
    return Answer(value=b.Lanes(lanes=found, next_cursor=more))


async def list_queues(c: Call) -> Answer:
    found, more = _page_in_order(await c.rt.look.queues(c.rt.declared, c.tenant), lambda q: (q.queue,), c.query)
    return Answer(value=b.Queues(queues=found, next_cursor=more))


async def list_limits(c: Call) -> Answer:
    found, more = _page_in_order(await c.rt.look.limits(c.rt.declared, c.tenant), lambda limit: (limit.name,), c.query)
    return Answer(value=b.Limits(limits=found, next_cursor=more))


async def list_schedules(c: Call) -> Answer:
    found, more = _page_in_order(await c.rt.look.schedules(c.tenant), lambda s: (s.schedule_id,), c.query)
    return Answer(value=b.Schedules(schedules=found, next_cursor=more))


async def health(c: Call) -> Answer:
    return Answer(value=b.Health(status="alive"))


# -- acting -----------------------------------------------------------------------------------------


async def see_run(c: Call) -> Seen:
    run, _ = await c.rt.look.find_row(c.run_id, c.tenant)
    human = [w.wait_id for w in run.waits if w.human]
    return Seen(at=c.rt.store.now(), version=run.version, wait_id=human[0] if len(human) == 1 else "")


async def see_intent(c: Call) -> Seen:
    return Seen(at=c.rt.store.now(), rulings=len((await c.rt.look.intent(c.path["intent_id"], c.tenant)).rulings))


async def see_thread(c: Call) -> Seen:
    """Notes the run that a signal to a thread is for; that is needed only if the caller names its version."""
    if not c.conditional:
        return await see_nothing(c)
    run = await _find_receiver(c)
    return Seen(at=c.rt.store.now(), version=run.version, run_id=run.run_id)


async def _has_told_since(c: Call, is_it: Callable[[describe.EventView], bool], run_id: str | None = None) -> bool:
    """Whether the run's log has such an event since the request was first taken up. False if there was no earlier attempt."""
    if not c.again or c.seen is None:
        return False
    after = c.seen.version
    while page := await c.rt.look.events(run_id or c.run_id, after, 500, c.tenant):
        if any(map(is_it, page)):
            return True
        after = page[-1].seq
    return False


def _is_canceled(e: describe.EventView) -> bool:
    return e.event_type in ("run.cancel_requested", "run.canceled")


def _is_resumed(e: describe.EventView) -> bool:
    return e.event_type in ("run.started", "run.resumed", "run.recovered")


async def _mine(c: Call, *, told: bool = False) -> describe.RunView:
    """Returns the run of the path, if it is in the caller's tenant and has not changed since the caller saw it (§16.6). ``told``: the request was carried
    out before, so the caller's version is compared with the version from before that.

    Raises:
        RunNotFound: there is no such run, or it is another tenant's.
        Stopped: it has changed since: 412.
    """
    run, lease = await c.rt.look.find_row(c.run_id, c.tenant)
    _check_match(c, run, told=told)
    return describe.run(run, lease, c.rt.store.now())


def _check_match(c: Call, run: Run, *, told: bool = False) -> None:
    version = c.seen.version if told and c.seen is not None else run.version
    if c.match is not None and not names_tag(c.match, f'"{version}"'):
        raise Stopped(412, "stale", f"{run.run_id} has changed since you read it: it has {run.version} events now", hint="look at it again, then decide")


def names_tag(header: str, tag: str) -> bool:
    """Whether ``If-Match`` or ``If-None-Match`` names an ETag, or any."""
    return header.strip() == "*" or tag in [named.strip().removeprefix("W/") for named in header.split(",")]


async def _show(c: Call, run_id: str, *, deduplicated: bool = False, status: int = 202) -> Answer:
    run = (await c.rt.look.glance(run_id, check=False)).detail(deduplicated=deduplicated)
    return Answer(value=run, status=status, headers={**_etag(run), "Location": f"/v1/runs/{run_id}"})


_OPTIONS = frozenset(
    {"session_key", "queue", "priority", "job_id", "trace_id", "tags", "target", "paused_lane", "recovery", "unattended", "budgets", "on_busy", "at", "delay", "lane"}
)


def _options(given: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    for name in given:
        if name not in known:
            raise InvalidInput(f"{name!r} is not an option here", field=f"options.{name}", hint=", ".join(sorted(known)))
    found = dict(given)
    if isinstance(found.get("at"), str):
        found["at"] = dt.datetime.fromtimestamp((_when(found["at"], "options.at") or 0) / 1_000_000, dt.UTC)
    return found


async def submit_run(c: Call) -> Answer:
    body: b.Submit = c.body
    options = _options(body.options, _OPTIONS)
    if body.lane is not None:
        options["lane"] = body.lane
    if c.trace is not None:
        options.setdefault("trace_id", c.trace)
    run = await c.rt.submit(body.skill_id, body.input, thread_id=body.thread_id, key=c.key, tenant_id=c.tenant or "default", **options)
    return await _show(c, run.run_id, deduplicated=run.deduplicated, status=200 if run.deduplicated else 202)


async def _wait(c: Call, given: str | None) -> str | None:
    """Returns the wait that a decision is about: the one that the caller names, or the one that was open when the request was first taken up."""
    wait_id = given or (c.seen.wait_id or None if c.seen is not None else None)
    run, _ = await c.rt.look.find_row(c.run_id, c.tenant)
    await _mine(c, told=c.again and wait_id is not None and all(w.wait_id != wait_id for w in run.waits))
    return wait_id


async def approve(c: Call) -> Answer:
    body: b.Approve = c.body
    wait_id = await _wait(c, body.wait_id)
    await c.rt.approve(c.run_id, wait_id=wait_id, actor=c.actor, note=body.note or body.reason, payload=_payload(body.payload), drive=False)
    return await _show(c, c.run_id)


async def deny(c: Call) -> Answer:
    body: b.Deny = c.body
    wait_id = await _wait(c, body.wait_id)
    await c.rt.deny(c.run_id, reason=body.reason or body.note or "", wait_id=wait_id, actor=c.actor, drive=False)
    return await _show(c, c.run_id)


async def decide(c: Call) -> Answer:
    body: b.Decide = c.body
    wait_id = await _wait(c, body.wait_id)
    await c.rt.decide(
        c.run_id, body.action, wait_id=wait_id, actor=c.actor, feedback=body.feedback, note=body.note or body.reason, payload=_payload(body.payload),
        resume=body.resume, force=body.force,
    )
    return await _show(c, c.run_id)


def _payload(given: Any) -> Any:
    return ... if given is msgspec.UNSET else given


async def answer_link(c: Call) -> Answer:
    body: b.Answer = c.body
    used = await c.rt.store.token(hash_secret(c.path["token"])) if c.again else None
    if used is not None and used.used_at is not None:  # by this request before, or by another decision: then this one is refused here too
        run = await c.rt.decide(used.run_id, body.action, wait_id=used.wait_id, actor=used.actor, feedback=body.feedback, note=body.note, payload=_payload(body.payload))
    else:
        if c.conditional:
            wait = await c.rt.look.find_linked(c.path["token"])
            _check_match(c, (await c.rt.look.find_row(wait.run_id))[0])
        run = await c.rt.redeem(c.path["token"], body.action, feedback=body.feedback, note=body.note, payload=_payload(body.payload))
    return Answer(value={"run_id": run.run_id, "status": str(run.status), "condition": run.condition.value}, status=202)


async def signal_run(c: Call) -> Answer:
    await _mine(c, told=await _has_told_since(c, _find_sent(c)))
    return await _signal(c, c.run_id)


def _find_sent(c: Call) -> Callable[[describe.EventView], bool]:
    """Returns a predicate that is true for the event of this request's signal."""
    body: b.Signal = c.body
    sent = (body.name, body.key or c.key)
    return lambda e: e.event_type == "signal.received" and (e.payload.get("name"), e.payload.get("key")) == sent


async def signal_thread(c: Call) -> Answer:
    if c.conditional:
        seen = c.seen.run_id if c.again and c.seen is not None else ""
        run = (await c.rt.look.find_row(seen, c.tenant))[0] if seen else await _find_receiver(c)
        _check_match(c, run, told=await _has_told_since(c, _find_sent(c), run.run_id))
    return await _signal(c, c.path["thread_id"])


async def _find_receiver(c: Call) -> Run:
    """Returns the run that a signal to this thread is for, if no signal was sent under its key before."""
    target = c.path["thread_id"]
    live = await recipients.newest_live(c.rt.store, target, c.tenant) if await c.rt.store.get(target) is None else None
    return live or (await c.rt.look.find_row(target, c.tenant))[0]


async def _signal(c: Call, target: str) -> Answer:
    body: b.Signal = c.body
    run = await c.rt.signal(target, body.name, body.payload, key=body.key or c.key, actor=c.actor, tenant_id=c.tenant)
    return await _show(c, run.run_id)


async def cancel_run(c: Call) -> Answer:
    body: b.Cancel = c.body
    told = await _has_told_since(c, _is_canceled)
    await _mine(c, told=told)
    if not told:
        await c.rt.cancel(c.run_id, actor=c.actor, reason=body.reason)
    seen = await c.rt.look.glance(c.run_id, check=False)
    return Answer(value={"accepted": True, **describe.plain(seen.detail())}, status=202, headers=_etag(seen.record))


async def resume_run(c: Call) -> Answer:
    """Answers when the run continues, or refuses. After the answer, the server itself drives the run until it rests."""
    body: b.Resume = c.body
    told = await _has_told_since(c, _is_resumed)
    before = await _mine(c, told=told)
    if told and before.condition != "interrupted":
        return await _show(c, c.run_id)  # an earlier attempt at this request has resumed it
    await await_start(c.rt, c.run_id, c.jobs, actor=c.actor, acknowledge=body.acknowledge, force=body.force, upgrade=body.upgrade)
    return await _show(c, c.run_id)


async def await_start(
    rt: Runtime, run_id: str, jobs: set[asyncio.Task[Any]], *, actor: str, acknowledge: str | None = None, force: bool = False, upgrade: bool = False
) -> None:
    """Resumes a run and returns when it continues; after that, it is driven in the background until it rests.

    Raises:
        HoldfastError: the run cannot be resumed; the error says why.
    """
    before, _ = await rt.look.find_row(run_id)
    job = asyncio.ensure_future(rt.resume(run_id, actor=actor, acknowledge=acknowledge, force=force, wait=False, upgrade=upgrade))
    jobs.add(job)
    job.add_done_callback(jobs.discard)
    until = time.monotonic() + SETTLE_SECONDS
    while not job.done() and time.monotonic() < until:
        await asyncio.wait({job}, timeout=0.02)
        run, _ = await rt.look.find_row(run_id)
        if run.version != before.version:
            break
    if job.done():
        job.result()
    else:
        job.add_done_callback(note_error)  # the answer is given by then: how the drive ends is told by the run itself


async def replay_run(c: Call) -> Answer:
    body: b.Replay = c.body
    await _mine(c)
    made = await c.rt.replay(
        c.run_id, body.from_checkpoint, body.from_step, body.effects, actor=c.actor, reason=body.reason, key=c.key, upgrade=body.upgrade, drive=False
    )
    return await _show(c, made.run_id, deduplicated=made.deduplicated)


_FORK = frozenset({"effects", "upgrade", "at", "delay", "inherit_approvals", "tags", "priority", "queue", "lane", "job_id", "trace_id"})


async def fork_run(c: Call) -> Answer:
    body: b.Fork = c.body
    await _mine(c)
    options = _options(body.options, _FORK)
    made = await c.rt.fork(
        c.run_id, body.from_checkpoint, body.from_step, set=body.set, inputs=body.inputs, reason=body.reason, actor=c.actor, key=c.key, drive=False, **options
    )
    return await _show(c, made.run_id, deduplicated=made.deduplicated)


async def repair_run(c: Call) -> Answer:
    body: b.Repair = c.body
    await _mine(c)
    done = await c.rt.repair_run_state(c.run_id, body.apply, actor=c.actor)
    found = [describe.problem(p) for p in done.problems]
    value = b.Repaired(run_id=c.run_id, dry_run=done.dry_run, applied=done.applied, refused=done.refused or "", reason=done.reason, problems=found)
    return Answer(value=value)


async def redrive_intent(c: Call) -> Answer:
    body: b.Redrive = c.body
    before = await c.rt.look.intent(c.path["intent_id"], c.tenant)
    since = before.rulings[c.seen.rulings :] if c.again and c.seen is not None else []
    if not any(r.action == REDRIVE for r in since):
        await _check_sender(c, before)
        await c.rt.redrive(before.intent_id, actor=c.actor, reason=body.reason, force=body.force)
    return Answer(value=await c.rt.look.intent(before.intent_id), status=202)


async def settle_intent(c: Call) -> Answer:
    body: b.Settle = c.body
    before = await c.rt.look.intent(c.path["intent_id"], c.tenant)
    if not (c.again and c.seen is not None and before.rulings[c.seen.rulings :]):
        await _check_sender(c, before)
    await c.rt.settle(before.intent_id, body.outcome, actor=c.actor, reason=body.reason, result=_payload(body.result))
    return Answer(value=await c.rt.look.intent(before.intent_id))


async def _check_sender(c: Call, intent: describe.IntentView) -> None:
    """Compares ``If-Match`` with the run of an intent."""
    if c.conditional:
        _check_match(c, (await c.rt.look.find_row(intent.run_id))[0])


async def pause_schedule(c: Call) -> Answer:
    if not await _has_changed_since(c, "paused"):
        await c.rt.pause_schedule(c.path["schedule_id"], actor=c.actor)
    return Answer(value=await c.rt.look.schedule(c.path["schedule_id"], c.tenant))


async def unpause_schedule(c: Call) -> Answer:
    if not await _has_changed_since(c, "unpaused"):
        await c.rt.unpause_schedule(c.path["schedule_id"], actor=c.actor)
    return Answer(value=await c.rt.look.schedule(c.path["schedule_id"], c.tenant))


async def _has_changed_since(c: Call, what: str) -> bool:
    """Whether a schedule has had this change since the request was first taken up. False if there was no earlier attempt."""
    found = await c.rt.look.schedule(c.path["schedule_id"], c.tenant)
    since = iso(c.seen.at) if c.again and c.seen is not None else None
    return since is not None and any(change.what == what and (change.at or "") >= since for change in found.changes)


async def trigger_schedule(c: Call) -> Answer:
    await c.rt.look.schedule(c.path["schedule_id"], c.tenant)
    made = await c.rt.trigger(c.path["schedule_id"], key=_make_own_key(c))
    return await _show(c, made.run_id, deduplicated=made.deduplicated)


def _make_own_key(c: Call) -> str | None:
    """Returns a request key that is valid for this path only: other schedules of the skill, and its other runs, have other keys (§16.5)."""
    return None if c.key is None else "trigger:" + hashlib.sha256(f"{c.path['schedule_id']}\x1f{c.key}".encode()).hexdigest()[:32]


# -- the table --------------------------------------------------------------------------------------

V, S, D, F = Scope.VIEW, Scope.SUBMIT, Scope.DECIDE, Scope.FORK
RUN, R = "/v1/runs/{run_id}", describe.RunDetail


def _get(path: str, does: str, handler: Handler | None, answers: Any, query: type[b.Body] = b.NoQuery, scope: Scope | None = V, media: str = "application/json") -> Route:
    return Route(method="GET", path=path, scope=scope, does=does, handler=handler, answers=answers, query=query, media=media)


def _post(path: str, scope: Scope | None, does: str, handler: Handler, body: type[b.Body], answers: Any = R, status: int = 202, sees: Sees | None = None, matches: bool = False) -> Route:
    looks, of_run = sees or (see_run if path.startswith(RUN) else see_nothing), matches or path.startswith(RUN)
    return Route(method="POST", path=path, scope=scope, does=does, handler=handler, answers=answers, body=body, status=status, sees=looks, matches=of_run)


ROUTES: tuple[Route, ...] = (
    _post("/v1/runs", S, "Create a run", submit_run, b.Submit),
    _get("/v1/runs", "List runs, newest first", list_runs, b.Runs, b.RunsQuery),
    _get(RUN, "Show a run; with wait=, answer when it waits or has ended", show_run, R, b.RunQuery),
    _get(RUN + "/events", "List what happened", list_events, b.Events, b.EventsQuery),
    _get(RUN + "/stream", "Follow what happens", None, None, b.StreamQuery, media="text/event-stream"),
    _get(RUN + "/checkpoints", "List checkpoints", list_checkpoints, b.Checkpoints, b.PageQuery),
    _get(RUN + "/checkpoints/{checkpoint_id}", "Show a checkpoint with its values", show_checkpoint, describe.CheckpointView),
    _get(RUN + "/state", "Show the values, now or at a checkpoint", show_state, b.State, b.AtQuery),
    _get(RUN + "/diff", "Show what changed between two checkpoints", show_diff, describe.DiffView, b.DiffQuery),
    _get(RUN + "/waits", "List a run's open waits", list_run_waits, b.Waits, b.PageQuery),
    _get(RUN + "/effects", "List a run's side effects", list_effects, b.Effects, b.PageQuery),
    _get(RUN + "/intents", "List a run's outgoing messages (intents)", list_run_intents, b.Intents, b.PageQuery),
    _get(RUN + "/steps", "List steps and recorded calls", list_steps, b.Steps, b.PageQuery),
    _get(RUN + "/attempts", "List every try at every step", list_attempts, b.Attempts, b.PageQuery),
    _get(RUN + "/ledger", "List the rows that a run's steps kept", list_run_ledger, b.Ledger, b.LedgerQuery),
    _get(RUN + "/check", "Name what is wrong with a run", check_run, b.Checked),
    _post(RUN + "/resume", D, "Resume a run", resume_run, b.Resume),
    _post(RUN + "/approve", D, "Approve what it waits for", approve, b.Approve),
    _post(RUN + "/deny", D, "Deny what it waits for", deny, b.Deny),
    _post(RUN + "/decide", D, "Take one of the actions that a wait offers", decide, b.Decide),
    _post(RUN + "/signal", D, "Send a signal to a run", signal_run, b.Signal),
    _post(RUN + "/cancel", Scope.CANCEL, "Ask a run to stop", cancel_run, b.Cancel, dict[str, Any]),
    _post(RUN + "/replay", F, "Replay a run from its records", replay_run, b.Replay),
    _post(RUN + "/fork", F, "Fork a run from a checkpoint", fork_run, b.Fork),
    _post(RUN + "/repair", Scope.REPAIR, "Repair a run's row as far as that is safe", repair_run, b.Repair, b.Repaired, 200),
    _get("/v1/waits", "List open waits of all runs", list_waits, b.Waits, b.PageQuery),
    _post("/v1/waits/{token}", None, "Answer the wait that a link is for", answer_link, b.Answer, dict[str, Any], matches=True),
    _get("/v1/threads/{thread_id}/history", "List a thread's checkpoints", thread_history, b.History, b.HistoryQuery),
    _post("/v1/threads/{thread_id}/signal", D, "Send a signal to the newest run of a thread that has begun and not ended", signal_thread, b.Signal, sees=see_thread, matches=True),
    _get("/v1/ledger", "List ledger rows of all runs", list_ledger, b.Ledger, b.LedgerQuery),
    _get("/v1/intents", "List outgoing messages (intents), sent or not", list_intents, b.Intents, b.StateQuery),
    _post("/v1/intents/{intent_id}/redrive", D, "Send an outgoing message (intent) again", redrive_intent, b.Redrive, describe.IntentView, sees=see_intent, matches=True),
    _post("/v1/intents/{intent_id}/settle", D, "Record an outgoing message (intent) as sent, or give it up", settle_intent, b.Settle, describe.IntentView, 200, sees=see_intent, matches=True),
    _get("/v1/skills", "List the skills registered here", list_skills, b.Skills, b.PageQuery),
    _get("/v1/workers", "List the processes that hold leases", list_workers, b.Workers, b.PageQuery),
    _get("/v1/lanes", "List the lanes that are in use, and the runs that wait for them", list_lanes, b.Lanes, b.LanesQuery),
    _get("/v1/queues", "List the queues, and what blocks their runs", list_queues, b.Queues, b.PageQuery),
    _get("/v1/limits", "List the limits in force", list_limits, b.Limits, b.PageQuery),
    _get("/v1/schedules", "List schedules", list_schedules, b.Schedules, b.PageQuery),
    _post("/v1/schedules/{schedule_id}/pause", Scope.ADMIN, "Pause a schedule until it is unpaused", pause_schedule, b.Empty, describe.ScheduleView, 200),
    _post("/v1/schedules/{schedule_id}/unpause", Scope.ADMIN, "Unpause a schedule", unpause_schedule, b.Empty, describe.ScheduleView, 200),
    _post("/v1/schedules/{schedule_id}/trigger", S, "Submit a run as a schedule would", trigger_schedule, b.Empty),
    _get("/v1/stream", "Follow many runs", None, None, b.FollowQuery, media="text/event-stream"),
    _get("/v1/ready", "Whether requests can be served", None, b.Health),
    _get("/v1/health", "Whether the server is alive", health, b.Health, scope=None),
    _get("/v1/openapi.json", "This document", None, dict[str, Any], scope=None),
    _get("/metrics", "Figures for Prometheus", None, None, media="text/plain"),
)


__all__ = ["ROUTES", "Answer", "Call", "Route", "await_start", "names_tag", "resting"]
