"""Commands for operators of a store: effects, outbox, leases, queues, limits."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Awaitable, Callable
from typing import Any

import click

from holdfast import machine
from holdfast.cli import output as o
from holdfast.cli import pages, sendings
from holdfast.cli.session import (
    MOST,
    Call,
    Project,
    Within,
    actor_option,
    add_paging,
    find_next,
    handling,
    options,
    over,
    page,
    parse,
    run_argument,
)
from holdfast.cli.targets import setting
from holdfast.core import describe
from holdfast.core.describe import EffectView, LaneView, LimitView, QueueView, WorkerView
from holdfast.core.errors import UsageError
from holdfast.core.intents import ABANDON, REDRIVE, RULINGS
from holdfast.core.limits import MOST as MOST_AT_ONCE
from holdfast.core.limits import Limit
from holdfast.engine.look.looker import refuse_cursor
from holdfast.handle import IntentView, when
from holdfast.runtime import Runtime
from holdfast.workers.toolrunner import RemoteTools


@click.command()
@run_argument()
@add_paging()
@options()
def effects(call: Call, run_id: str, limit: int | None, cursor: str | None) -> int:
    """List a run's side effects and their outcomes."""

    async def act(rt: Runtime) -> list[EffectView]:
        return (await rt.look.snapshot(run_id, check=False)).effects()

    found, more = page(over(call, act), lambda e: e.effect_id, limit, cursor)
    if call.as_json:
        o.emit({"effects": [describe.plain(e) for e in found], "next_cursor": more})
        return 0
    if not found:
        click.echo("no effects")
        return 0
    pages.effect_table(found)
    o.more(call.next_page(more))
    return 0


@click.command()
@run_argument(required=False)
@click.option("--state", metavar="S", help="Only intents in this state: queued, sending, sent, unknown, dead, abandoned.")
@click.option("--type", "type_", metavar="T", help="Only intents of this type.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, metavar="N", help="How many at most.")
@click.option("--cursor", metavar="INTENT", help="Continue after this intent: the next_cursor of the previous page.")
@options()
def outbox(call: Call, run_id: str | None, state: str | None, type_: str | None, limit: int, cursor: str | None) -> int:
    """List outgoing messages (intents) and their states.

    If it is unknown whether a message was sent, or no tool runner can answer a request, the commands that settle it are shown.
    """

    async def act(rt: Runtime) -> tuple[list[dict[str, Any]], str | None, dt.datetime]:
        if cursor is not None:
            named = await rt.store.intent(cursor)
            if named is None or run_id not in (None, named.run_id):
                raise refuse_cursor(cursor)
        kept = await rt.intents(run_id, state=state, type=type_, after=cursor, limit=limit)
        more = await find_next(kept, limit, lambda i: i.intent_id, lambda last: rt.intents(run_id, state=state, type=type_, after=last, limit=1))
        stuck.update(await sendings.stuck(rt, kept))
        return await sendings.intents_of(rt, kept), more, when(rt.store.now())

    stuck: set[str] = set()
    found, more, now = over(call, act)
    if call.as_json:
        o.emit({"intents": found, "next_cursor": more})
        return 0
    if not found:
        click.echo("the outbox is empty" if state is None else f"no intents are {o.inline(state)}")
        return 0
    o.table(
        ["intent", "type", "state", "tries", "age", "key"],
        [[i["intent_id"], o.inline(i["type"], 24), _state(i), str(len(i["attempts"])), o.ago(i["created_at"], now), o.inline(i["key"])] for i in found],
    )
    for intent in found:
        if intent["state"] in ("unknown", "dead") or intent["intent_id"] in stuck:
            sendings.doubtful(call, intent)
        elif _lacking(intent):
            click.echo(f"{intent['intent_id']}  {o.paint(o.inline(intent['type'], 24), 'yellow')} waits: {o.inline(intent['detail'], 240)}")
    o.more(call.next_page(more))
    return 0


def _state(intent: dict[str, Any]) -> str:
    if _lacking(intent):
        return f"{intent['state']} (not configured)"
    return f"{intent['state']} (no transport)" if intent["no_transport_for"] else str(intent["state"])


def _lacking(intent: dict[str, Any]) -> bool:
    """Whether the last sender lacked a configuration for sending the intent, which is no failed attempt."""
    last = intent["attempts"][-1] if intent["attempts"] and intent["state"] == "queued" else None
    return last is not None and last["outcome"] == "late" and last["error"] is not None


@click.command()
@click.option("--until-idle", is_flag=True, help="End when no message is due.")
@click.option("--transports", metavar="TARGET", help="A mapping of types to transports. [default: that of pyproject.toml]")
@options(drives=True)
def dispatch(call: Call, until_idle: bool, transports: str | None) -> int:
    """Send outgoing messages until stopped.

    Messages of a type without a transport here are left to other processes. After the first SIGINT or SIGTERM it finishes the
    messages that are being sent.
    """

    async def act(rt: Runtime) -> int:
        stop = asyncio.Event()
        machine.settle()
        click.echo(f"dispatcher {rt.owner}: {', '.join(map(o.inline, rt.transports))}", err=True)
        with handling(asyncio.get_running_loop(), lambda _: stop.set()):
            return await rt.dispatch(stop=stop, until_idle=until_idle)

    count = over(call, act, make=True, transports=transports)
    if call.as_json:
        o.emit({"settled": count})
    else:
        click.echo(f"tried to send {o.count_of(count, 'message')}. To see the results:\n    {call.line('outbox')}", err=True)
    return 0


@click.command("tool-runner")
@click.option("--workspace", "folder", required=True, metavar="PATH", help="The folder in which the tools run.")
@click.option("--tools", metavar="TARGET", help="The tools that may be called: a list of them. [default: those of pyproject.toml]")
@click.option("--until-idle", is_flag=True, help="End when no call is due.")
@options(drives=True, folder=False)
def tool_runner(call: Call, folder: str, tools: str | None, until_idle: bool) -> int:
    """Run the tool calls of a workspace until stopped.

    It takes the calls of runs that are executed elsewhere with Runtime(workspace="remote:ID"), where ID is that of this folder. It runs only
    the tools that it is given by --tools. After the first SIGINT or SIGTERM it finishes the calls that are running; a second one ends them.
    """
    found = setting("tools", tools)
    if found is None or found in ([], ()):
        raise UsageError("there are no tools to run", hint="--tools TARGET names a list of them, or [tool.holdfast] tools in pyproject.toml")
    there = RemoteTools(folder, found)

    async def act(rt: Runtime) -> int:
        stop = asyncio.Event()
        machine.settle()
        click.echo(f"tool runner {rt.owner}: workspace {there.workspace}, {o.inline(', '.join(there.names), 240)}", err=True)
        work = asyncio.ensure_future(rt.dispatch(stop=stop, until_idle=until_idle))

        def hear(number: int) -> None:
            if stop.is_set():
                work.cancel()
            stop.set()

        with handling(asyncio.get_running_loop(), hear):
            await asyncio.wait({work})
        return 0 if work.cancelled() else work.result()

    count = over(call, act, make=True, transports=Project(transports=there.transports, limits=setting("limits")))
    if call.as_json:
        o.emit({"workspace": there.workspace, "settled": count})
    else:
        click.echo(f"answered {o.count_of(count, 'request')}", err=True)
    return 0


@click.command()
@click.argument("intent_id", metavar="INTENT")
@click.option("--force", is_flag=True, help="Send it even if its last sender may still be alive; the message may then be sent twice.")
@click.option("--reason", default="", metavar="R", help="Why; kept with the intent.")
@actor_option
@options()
def redrive(call: Call, intent_id: str, force: bool, reason: str, actor: str) -> int:
    """Send an outgoing message (intent) again.

    If it is the request of a tool call that a tool runner has begun, the run makes a new request when a worker or resume executes it.
    """
    return _rule(call, lambda rt: rt.redrive(intent_id, actor=actor, reason=reason, force=force))


@click.command()
@click.argument("intent_id", metavar="INTENT")
@click.option("--as", "outcome", type=click.Choice(RULINGS), required=True, help="The outcome: it was sent after all, or it is given up.")
@click.option("--result", metavar="JSON|@FILE|-", help="The outcome of a tool call that happened, such as {\"exit_code\": 0, \"stdout\": \"done\"}.")
@click.option("--reason", default="", metavar="R", help="Why; kept with the intent.")
@actor_option
@options()
def settle(call: Call, intent_id: str, outcome: str, result: str | None, reason: str, actor: str) -> int:
    """Record an outgoing message (intent) as sent, or give it up.

    If it is the request of a tool call, the run continues with that when a worker or resume executes it: with the outcome, or with a failure.
    """
    given = ... if result is None else parse(result, "--result")
    return _rule(call, lambda rt: rt.settle(intent_id, outcome, actor=actor, reason=reason, result=given))


def _rule(call: Call, rule: Callable[[Runtime], Awaitable[IntentView]]) -> int:
    async def act(rt: Runtime) -> dict[str, Any]:
        return (await sendings.intents_of(rt, [await rule(rt)]))[0]

    found = over(call, act)
    if call.as_json:
        o.emit(found)
    else:
        anew = f": {found['detail']}" if found["rulings"][-1]["action"] == REDRIVE and found["state"] == ABANDON else ""
        click.echo(f"{found['intent_id']}  {found['state']}{anew}")
    return 0


@click.command()
@run_argument(required=False)
@click.option("--topic", metavar="T", help="Only rows of this topic.")
@click.option("--key", metavar="K", help="Only rows under this key.")
@click.option("--cursor", "--after", "cursor", type=click.IntRange(0, MOST), metavar="N", help="Continue after this row: the next_cursor of the previous page.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, metavar="N", help="How many at most.")
@options()
def ledger(call: Call, run_id: str | None, topic: str | None, key: str | None, cursor: int | None, limit: int) -> int:
    """List the rows that nodes wrote with ctx.record."""

    async def act(rt: Runtime) -> tuple[list[dict[str, Any]], int | None]:
        rows = await rt.ledger(run_id, topic=topic, key=key, after=cursor, limit=limit)
        masks = {r: await rt.mask(r) for r in {row.run_id for row in rows}}
        more = await find_next(rows, limit, lambda r: r.number, lambda last: rt.ledger(run_id, topic=topic, key=key, after=last, limit=1))
        return [masks[r.run_id].record(r.record()) for r in rows], more

    found, more = over(call, act)
    if call.as_json:
        o.emit({"ledger": found, "next_cursor": more})
        return 0
    if not found:
        click.echo("the ledger is empty" if (run_id, topic, key, cursor) == (None,) * 4 else "the ledger has no rows that match")
        return 0
    o.table(
        ["row", "run", "topic", "key", "created", "data"],
        [[str(r["number"]), r["run_id"], o.inline(r["topic"]), o.inline(r["key"]), o.clock(r["created_at"]), o.inline(json.dumps(r["data"], default=str), 60)] for r in found],
    )
    o.more(call.next_page(more))
    return 0


def _processes(call: Call, name: str) -> int:
    async def act(rt: Runtime) -> tuple[list[WorkerView], int]:
        return await rt.workers(), rt.store.now()

    found, now = over(call, act)
    if call.as_json:
        o.emit({name: [describe.plain(w) for w in found], "next_cursor": None})
        return 0
    if not found:
        click.echo("no worker is running, and no process holds a lease")
        return 0
    alive = {"true": o.paint("alive", "green"), "false": o.paint("dead", "red")}
    o.table(
        ["owner", "process", "runs", "started", "expires", "serves"],
        [[o.inline(w.owner), alive.get(w.alive, "unknown"), str(w.runs), o.ago(w.started_at, when(now)), o.ago(w.expires_at, when(now)), _name_served(w)] for w in found],
    )
    return 0


def _name_served(worker: WorkerView) -> str:
    """Returns the skills that a worker serves, each with its version and the beginning of its shape."""
    return o.inline(" ".join(dict.fromkeys(f"{s.skill_id}@{s.version} ({s.fingerprint[:8]})" for s in worker.serves)) + (" --upgrade" if worker.upgrade else ""), 120)


@click.command()
@options()
def leases(call: Call) -> int:
    """List the processes that hold leases."""
    return _processes(call, "leases")


@click.command()
@options()
def workers(call: Call) -> int:
    """List the running processes, and the runs they execute."""
    return _processes(call, "workers")


@click.command()
@click.option("--session", "session_key", metavar="S", help="Only lanes of this session.")
@options()
def lanes(call: Call, session_key: str | None) -> int:
    """List the lanes in use, with the runs that wait for them."""

    async def act(rt: Runtime) -> tuple[list[LaneView], int]:
        return await rt.look.lanes(session_key=session_key), rt.store.now()

    found, now = over(call, act)
    if call.as_json:
        o.emit({"lanes": [describe.plain(x) for x in found], "next_cursor": None})
        return 0
    if not found:
        click.echo("no run holds a lane")
        return 0
    o.table(
        ["session", "lane", "held by", "since", "lease", "queued"],
        [
            [o.inline(x.session_key, 40), o.inline(x.lane, 24), x.holder, o.ago(x.since, when(now)), o.ago(x.expires_at, when(now)), o.inline(" ".join(x.queued))]
            for x in found
        ],
    )
    return 0


@click.group(invoke_without_command=True)
@options()
def queues(call: Call) -> int:
    """List the queues, and what blocks their runs.

    It shows due runs, running runs and paused queues. `pause` and `unpause` stop and start a queue.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return 0

    async def act(rt: Runtime) -> tuple[list[QueueView], int]:
        return await rt.queues(), rt.store.now()

    found, now = over(call, act)
    if call.as_json:
        o.emit({"queues": [describe.plain(q) for q in found], "next_cursor": None})
        return 0
    if not found:
        click.echo("no run is due or running, and no queue is paused")
        return 0
    o.table(
        ["queue", "due", "oldest", "running", "paused", "blocked by"],
        [
            [
                o.inline(q.queue, 40), str(q.depth), o.ago(q.oldest_at, when(now)), str(q.in_flight), "paused" if q.paused else "",
                ", ".join(f"{reason}: {count}" for reason, count in q.blocked.items()),
            ]
            for q in found
        ],
    )
    return 0


def _turn(call: Call, act: Callable[[Runtime], Awaitable[QueueView]], *, make: bool) -> int:
    found = over(call, act, make=make, tried=act)
    if call.as_json:
        o.emit(describe.plain(found))
    else:
        click.echo(f"{o.inline(found.queue)}  {'paused' if found.paused else 'not paused'}, {found.depth} due, {found.in_flight} running")
    return 0


@queues.command("pause")
@click.argument("queue", metavar="Q")
@click.option("--reason", default="", metavar="R", help="Why; kept with the change.")
@actor_option
@options()
def pause_queue(call: Call, queue: str, reason: str, actor: str) -> int:
    """Pause a queue: none of its runs are started.

    Running ones continue until they wait or end.
    """
    return _turn(call, lambda rt: rt.pause_queue(queue, actor=actor, reason=reason), make=True)


@queues.command("unpause")
@click.argument("queue", metavar="Q")
@click.option("--reason", default="", metavar="R", help="Why; kept with the change.")
@actor_option
@options()
def unpause_queue(call: Call, queue: str, reason: str, actor: str) -> int:
    """Unpause a queue: its runs are started again."""
    return _turn(call, lambda rt: rt.unpause_queue(queue, actor=actor, reason=reason), make=False)


@click.group(invoke_without_command=True)
@options()
def limits(call: Call) -> int:
    """List the limits in force, and how much is in use.

    `set` stores a limit, which overrides the declared one; `unset` removes it.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return 0

    async def act(rt: Runtime) -> list[LimitView]:
        return await rt.limits()

    found = over(call, act)
    if call.as_json:
        o.emit({"limits": [describe.plain(x) for x in found], "next_cursor": None})
        return 0
    if not found:
        click.echo("no limit is set or declared")
        return 0
    o.table(
        ["limit", "in flight", "in use", "per second", "burst", "from", "changed by"],
        [
            [
                o.inline(x.name, 40), _or_none(x.in_flight), str(x.in_use), _or_none(x.per_second), _or_none(x.burst), "stored" if x.stored else "" if x.in_flight is x.per_second is None else "declared",
                o.inline(x.changes[-1].actor, 24) if x.changes else "",
            ]
            for x in found
        ],
    )
    return 0


def _or_none(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


@limits.command("set")
@click.argument("name", metavar="NAME")
@click.option("--in-flight", type=click.IntRange(1, MOST_AT_ONCE), metavar="N", help="How many at once.")
@click.option("--per-second", type=Within(0, MOST_AT_ONCE, min_open=True), metavar="R", help="How many may begin in a second.")
@click.option("--burst", type=click.IntRange(1, MOST_AT_ONCE), metavar="B", help="Burst: how many of these may begin at the same moment. [default: as many as in a second]")
@click.option("--reason", default="", metavar="R", help="Why; kept with the change.")
@actor_option
@options()
def set_limit(call: Call, name: str, in_flight: int | None, per_second: float | None, burst: int | None, reason: str, actor: str) -> int:
    """Store a limit.

    NAME is worker, queue:Q, tenant:T (* = each one), or a name that nodes, tools and transports use.
    """
    if in_flight is None and per_second is None:
        raise UsageError("no limit is given", hint="--in-flight N, --per-second R, or both")
    limit = Limit(in_flight=in_flight, per_second=per_second, burst=burst)
    return _set_bound(call, lambda rt: rt.set_limit(name, limit, actor=actor, reason=reason))


@limits.command("unset")
@click.argument("name", metavar="NAME")
@click.option("--reason", default="", metavar="R", help="Why; kept with the change.")
@actor_option
@options()
def unset_limit(call: Call, name: str, reason: str, actor: str) -> int:
    """Remove a stored limit; the declared one applies again."""
    return _set_bound(call, lambda rt: rt.unset_limit(name, actor=actor, reason=reason))


def _set_bound(call: Call, act: Callable[[Runtime], Awaitable[LimitView]]) -> int:
    found = over(call, act, make=True, tried=act)
    if call.as_json:
        o.emit(describe.plain(found))
    else:
        said = [f"{_or_none(found.in_flight)} in flight" if found.in_flight else "", f"{_or_none(found.per_second)} per second" if found.per_second else ""]
        click.echo(f"{o.inline(found.name)}  {', '.join(filter(None, said)) or 'no limit'}")
    return 0


COMMANDS = (effects, outbox, dispatch, tool_runner, redrive, settle, ledger, leases, workers, lanes, queues, limits)
