"""Commands for those who operate a store: effects, outbox, leases."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast.cli import output as o
from holdfast.cli import pages
from holdfast.cli.session import Call, options, over, page, paged
from holdfast.core import canon, views
from holdfast.core.effects import Effect
from holdfast.core.intents import Intent
from holdfast.core.masks import Mask
from holdfast.handle import when
from holdfast.ports import Worker
from holdfast.runtime import Runtime


@click.command()
@click.argument("run_id", metavar="RUN")
@paged()
@options()
def effects(call: Call, run_id: str, limit: int | None, cursor: str | None) -> int:
    """List what a run did outside, and how it ended."""

    async def act(rt: Runtime) -> tuple[list[Effect], Mask]:
        return await rt.effects(run_id), await rt.masked(run_id)

    every, hidden = over(call, act)
    found, more = page(every, lambda e: e.effect_id, limit, cursor)
    if call.as_json:
        o.emit({"effects": [hidden.record(pages.effect_view(e)) for e in found], "next_cursor": more})
        return 0
    if not found:
        click.echo("no effects")
        return 0
    pages.effect_table(found)
    o.more(call.line("effects", run_id), more)
    return 0


@click.command()
@click.option("--state", metavar="S", help="Only intents in this state: queued, sending, sent, unknown, dead.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, metavar="N", help="How many at most.")
@options()
def outbox(call: Call, state: str | None, limit: int) -> int:
    """List what is to be sent, or was."""

    async def act(rt: Runtime) -> tuple[list[Intent], dict[str, Mask]]:
        found = await rt.store.intents(state=state, limit=limit)
        return found, {run_id: await rt.masked(run_id) for run_id in {i.run_id for i in found}}

    found, masks = over(call, act)
    if call.as_json:
        o.emit({"intents": [masks[i.run_id].record(_intent(i)) for i in found], "next_cursor": None})
        return 0
    if not found:
        click.echo("the outbox is empty" if state is None else f"no intents are {o.inline(state)}")
        return 0
    o.table(
        ["intent", "type", "state", "attempts", "created", "key"],
        [[i.intent_id, o.inline(i.type, 24), i.state, str(i.attempts), o.clock(views.iso(i.created_at)), o.inline(i.key)] for i in found],
    )
    return 0


def _intent(intent: Intent) -> dict[str, Any]:
    shown = msgspec.structs.asdict(intent)
    times = {n: views.iso(shown[n]) for n in ("created_at", "due", "lease_until", "settled_at")}
    return {**shown, **times, "payload": canon.reveal(intent.payload)}


@click.command()
@options()
def leases(call: Call) -> int:
    """List the processes that hold leases."""

    async def act(rt: Runtime) -> tuple[list[Worker], int]:
        return await rt.store.workers(), rt.store.now()

    found, now = over(call, act)
    if call.as_json:
        times = ("started_at", "expires_at")
        o.emit({"leases": [{**msgspec.structs.asdict(w), **{n: views.iso(getattr(w, n)) for n in times}} for w in found], "next_cursor": None})
        return 0
    if not found:
        click.echo("no process holds a lease")
        return 0
    alive = {"true": o.paint("alive", "green"), "false": o.paint("dead", "red")}
    o.table(
        ["owner", "process", "runs", "started", "expires"],
        [[o.inline(w.owner), alive.get(w.alive, "unknown"), str(w.runs), o.ago(when(w.started_at), when(now)), o.ago(when(w.expires_at), when(now))] for w in found],
    )
    return 0


COMMANDS = (effects, outbox, leases)
