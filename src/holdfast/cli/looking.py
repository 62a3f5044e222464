"""Commands that look and change nothing: runs, show, events, checkpoints, state, diff, graph."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli import drawing, extras, lineage, pages, targets, times
from holdfast.cli import output as o
from holdfast.cli.session import MOST, RUN_ID, Call, add_paging, find_next, options, over, page, run_argument, whole_id
from holdfast.core import describe
from holdfast.core.describe import AttemptView, CheckpointView, RunView, StepView
from holdfast.core.errors import SkillUnknown
from holdfast.core.explain import Advice
from holdfast.demo.notes import graph as demo_graph
from holdfast.engine.look.looker import Wanted
from holdfast.engine.look.snapshot import Snapshot
from holdfast.handle import EventView, when
from holdfast.runtime import Runtime

WATCH_SECONDS = 2.0


@click.command()
@click.option("--status", metavar="S", help="Only runs with this status.")
@click.option("--condition", metavar="C", help="Only runs in this condition.")
@click.option("--skill", metavar="S", help="Only runs of this skill.")
@click.option("--thread", metavar="T", help="Only runs of this thread.")
@click.option("--tag", metavar="T", help="Only runs with this tag.")
@click.option("--text", metavar="S", help="Only runs whose ids, tags, questions, errors or values contain this text.")
@click.option("--since", metavar="T", help="Only runs created since then: a time, or how long ago (2h, 7d).")
@click.option("--until", metavar="T", help="Only runs created before then.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, metavar="N", help="How many.")
@click.option("--cursor", metavar="RUN", help="Continue after this run: the next_cursor of the previous page.")
@click.option("--watch", is_flag=True, help="Print the list again when it changes, until stopped; with --json, one object a line.")
@options()
def runs(
    call: Call, status: str | None, condition: str | None, skill: str | None, thread: str | None, tag: str | None, text: str | None, since: str | None,
    until: str | None, limit: int, cursor: str | None, watch: bool,
) -> int:
    """List runs, newest first."""

    async def act(rt: Runtime) -> tuple[list[RunView], str | None, int]:
        now = rt.store.now()
        wanted = Wanted(
            status=status, condition=condition, skill_id=skill, thread_id=thread, tag=tag, text=text, since=times.past(since, "--since", now),
            until=times.past(until, "--until", now), limit=limit, before=cursor,
        )
        if not watch:
            return *await rt.look.list_runs(wanted, values=call.as_json), now
        before: tuple[list[RunView], str | None] | None = None
        async for _ in changes(rt):
            found = await rt.look.list_runs(wanted, values=call.as_json)
            if found != before:
                _list(call, *found, rt.store.now(), any((status, condition, skill, thread, tag, text, since, until)), again=before is not None)
            before = found
        return [], None, now

    found, more, now = over(call, act)
    if not watch:
        _list(call, found, more, now, any((status, condition, skill, thread, tag, text, since, until)))
    return 0


def _list(call: Call, found: list[RunView], more: str | None, now: int, narrowed: bool, *, again: bool = False) -> None:
    if call.as_json:
        o.emit({"runs": [describe.plain(r) for r in found], "next_cursor": more})
        return
    if again:
        click.echo()
    if not found:
        click.echo("no such runs" if narrowed else "no runs")
        return
    o.table(
        ["run", "skill", "condition", "created", "took", "about"],
        [
            [
                r.run_id,
                o.inline(r.skill_id, 24),
                o.paint(r.condition, o.COLOURS.get(r.condition)),
                o.ago(r.created_at, when(now), brief=True),
                pages.between(r.started_at, r.finished_at),
                _about(r),
            ]
            for r in found
        ],
        below="about",
    )
    o.more(call.next_page(more))


def _about(run: RunView) -> str:
    """Returns what a list says about a run: its question, its error, or what it waits for."""
    for wait in run.waits:
        return o.inline(f"{wait.kind}: {wait.prompt or wait.name}", 120)
    if run.error is not None:
        return o.inline(f"{run.stop_reason}: {run.error.message}", 120)
    if run.no_worker_for is not None:
        return o.inline(f"no worker for {run.no_worker_for.skill_id} v{run.no_worker_for.version}", 120)
    if run.blocked_by:
        return f"after {run.blocked_by}"
    return o.inline(run.stop_reason or "", 120)


@click.command()
@run_argument()
@click.option("--full", is_flag=True, help="The whole of a long timeline, and also steps, attempts, checkpoints, effects, intents, ledger and events.")
@click.option("--watch", is_flag=True, help="Print the run again when it changes, until it ends; with --json, one object a line.")
@click.option("--html", "page_file", type=click.Path(dir_okay=False), metavar="FILE", help="Write the run's page to one file, secrets hidden.")
@options()
def show(call: Call, run_id: str, full: bool, watch: bool, page_file: str | None) -> int:
    """Show everything about a run.

    Its status, what it waits for and the commands that answer it, its error, problems, timeline, effects and values, all read at one instant.
    """

    async def look(rt: Runtime, found: Snapshot) -> pages.Beside:
        asked = not call.as_json and found.detail().condition in pages.EXPLAINED
        told: dict[str, Any] = await rt.explain(run_id) if asked else {"why": "", "next": []}
        tree = lineage.tree(await rt.look.lineage(found.run), run_id)
        return pages.Beside(tree, str(told["why"]), [Advice(call.spell(a["text"]), call.spell(a["command"])) for a in told["next"]])

    async def act(rt: Runtime) -> tuple[Snapshot, pages.Beside] | None:
        before = None
        if not watch:
            found = await rt.look.snapshot(run_id)
            return found, await look(rt, found)
        async for _ in changes(rt):
            found = await rt.look.snapshot(run_id)
            now = (found.run.version, found.lease.owner)
            if now != before:
                if before is not None and not call.as_json:
                    click.echo()
                _show(call, found, await look(rt, found), full)
            before = now
            if found.run.terminal:
                break
        return None

    if page_file is not None:
        return _page(call, run_id, page_file)
    if (told := over(call, act)) is not None:
        _show(call, *told, full)
    return 0


def _page(call: Call, run_id: str, file: str) -> int:
    """Writes a run's page as one file that needs nothing else."""
    alone = extras.ui.alone

    async def act(rt: Runtime) -> tuple[Snapshot, list[RunView]]:
        seen = await rt.look.snapshot(run_id)
        return seen, await rt.look.lineage(seen.run)

    seen, family = over(call, act)
    text = alone(seen, family, call.shown)
    Path(file).write_text(text, "utf-8")
    if call.as_json:
        o.emit({"run_id": run_id, "file": file, "bytes": len(text.encode())})
    else:
        click.echo(f"{file}  {o.size(len(text.encode()))}")
    return 0


def _show(call: Call, found: Snapshot, beside: pages.Beside, full: bool) -> None:
    run = describe.plain(found.detail())
    if call.as_json:
        o.emit({**run, **_beside(found)} if full else run)
        return
    pages.page(call, run, found, beside, full=full)
    if full:
        o.head("steps")
        _step_table(found.steps())
        o.head("attempts")
        _attempt_table(found.attempts())
        o.head("events")
        for event in found.events():
            click.echo(_event_line(describe.plain(event)))
    if beside.tree:
        o.head("lineage")
        for line in beside.tree:
            click.echo(line)


def _beside(found: Snapshot) -> dict[str, Any]:
    """Returns all that is not in the record itself."""
    parts: dict[str, list[Any]] = {
        "steps": list(found.steps()), "attempts": list(found.attempts()), "checkpoints": list(found.checkpoints()),
        "effects": list(found.effects()), "intents": list(found.intents()), "ledger": list(found.ledger()), "events": list(found.events()),
    }
    return {name: [describe.plain(x) for x in part] for name, part in parts.items()}


async def changes(rt: Runtime) -> AsyncIterator[None]:
    """Yields now, and whenever something may have changed."""
    while True:
        yield
        await rt.store.wait_for_change(WATCH_SECONDS)


@click.command()
@run_argument()
@add_paging()
@options()
def steps(call: Call, run_id: str, limit: int | None, cursor: str | None) -> int:
    """List a run's steps, and the recorded calls inside them."""
    found, more = page(over(call, lambda rt: rt.steps(run_id)), lambda s: s.step_id, limit, cursor)
    if call.as_json:
        o.emit({"steps": [describe.plain(s) for s in found], "next_cursor": more})
        return 0
    _step_table(found)
    o.more(call.next_page(more))
    return 0


def _step_table(found: list[StepView]) -> None:
    rows = [
        [
            o.inline(s.step_id.partition(".")[2]),
            ("  " if s.path else "") + o.inline(s.call, 40),
            s.outcome or "under way",
            str(s.attempts),
            o.clock(s.started_at),
            pages.between(s.started_at, s.ended_at),
            "" if s.error is None else o.inline(f"{pages.name_kind(s.error.type)}: {s.error.message}", 120),
        ]
        for s in found
    ]
    if rows:
        o.table(["step", "name", "outcome", "tries", "started", "took", "error"], rows)
    else:
        click.echo("no steps")


@click.command()
@run_argument()
@add_paging()
@options()
def attempts(call: Call, run_id: str, limit: int | None, cursor: str | None) -> int:
    """List every try at every step of a run.

    It shows by whom each try was made, when, and how it ended.
    """
    found, more = page(over(call, lambda rt: rt.attempts(run_id)), lambda a: a.attempt_id, limit, cursor)
    if call.as_json:
        o.emit({"attempts": [describe.plain(a) for a in found], "next_cursor": more})
        return 0
    _attempt_table(found)
    o.more(call.next_page(more))
    return 0


NAMED = 100
"""How many columns a terminal must have for attempts to be listed with the names of their steps. With fewer, the ids need the room, and ``steps`` has the names."""


def _attempt_table(found: list[AttemptView]) -> None:
    rows = [
        [
            o.inline(a.attempt_id.partition(".")[2]),
            o.inline(a.call, 40),
            a.outcome or "under way",
            o.clock(a.started_at),
            pages.between(a.started_at, a.ended_at),
            o.clock(a.retry_at),
            o.inline(a.owner or ""),
            "" if a.error is None else o.inline(f"{pages.name_kind(a.error.type)}: {a.error.message}", 120),
        ]
        for a in found
    ]
    heads = ["attempt", "name", "outcome", "started", "took", "again", "by", "error"]
    left_out = ({"name"} if o.width() < NAMED else set()) | {h for n, h in enumerate(heads) if h in ("again", "error") and not any(r[n] for r in rows)}
    if rows:
        shown = [n for n, h in enumerate(heads) if h not in left_out]
        o.table([heads[n] for n in shown], [[r[n] for n in shown] for r in rows])
    else:
        click.echo("no attempts")


# -- events -----------------------------------------------------------------------------------------

_QUIET = frozenset({"step", "task", "path", "call", "step_id", "attempt_id", "hash", "run_id", "input", "fingerprint", "wait_id", "thread_id", "session_key"})
_USUAL: dict[str, Any] = {"outcome": "ok", "attempt": 1, "lane": "main", "queue": "default", "tenant_id": "default", "environment": "development"}


@click.command()
@run_argument()
@click.option("--cursor", "--after", "cursor", type=click.IntRange(0, MOST), default=0, metavar="N", help="Only events after number N: the next_cursor of the previous page.")
@click.option("--limit", type=click.IntRange(1, MOST), metavar="N", help="How many at most.")
@click.option("--follow", is_flag=True, help="Also print new events as they happen, until the run ends; with --json, one object a line.")
@options()
def events(call: Call, run_id: str, cursor: int, limit: int | None, follow: bool) -> int:
    """Show what happened, in order."""

    async def act(rt: Runtime) -> tuple[list[EventView], int | None]:
        if not follow:
            page = await rt.events(run_id, cursor, limit=limit)
            return page, await find_next(page, limit, lambda e: e.seq, lambda last: rt.events(run_id, last, limit=1))
        async for event in rt.events(run_id, cursor, follow=True, limit=limit):
            if call.as_json:
                o.emit(_event(event), whole=False)
            else:
                click.echo(_event_line(_event(event)))
        return [], None

    found, more = over(call, act)
    if follow:
        return 0
    if call.as_json:
        o.emit({"events": [_event(e) for e in found], "next_cursor": more})
        return 0
    for event in found:
        click.echo(_event_line(_event(event)))
    o.more(call.next_page(more))
    return 0


def _event(event: EventView) -> dict[str, Any]:
    return msgspec.structs.asdict(event)


def _event_line(event: Mapping[str, Any]) -> str:
    at = o.moment(event["occurred_at"])
    time = "" if at is None else at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03d}"
    p = event["payload"]
    place = ".".join(str(p[k]) for k in ("task", "path") if p.get(k))
    left = f"{event['seq']:>5}  {o.paint(time, dim=True)}  {event['event_type']:<24} {o.inline(place, 32):<16}"
    actor = f"  by {o.inline(event['actor'])}" if event["actor"] != "system" else ""
    room = o.width() - o.columns(left) - 1
    detail = o.inline(_detail(p), max(0, room - o.columns(actor)))
    return f"{left} {detail if len(detail) > 3 else ''}{o.cut(actor, max(4, room))}".rstrip()


def _detail(payload: Mapping[str, Any]) -> str:
    """Returns the fields that say something, in one line; the name of a call comes first."""
    said = [str(payload["call"])] if payload.get("call") else []
    for name, value in payload.items():
        if name in _QUIET or value in (None, "", [], {}, False) or _USUAL.get(name) == value:
            continue
        if isinstance(value, dict):
            value = value.get("prompt") or value.get("message") or value.get("action") or json.dumps(value, ensure_ascii=False, default=str)
        if name == "checkpoint_id":
            name, value = "checkpoint", str(value).rpartition(".")[2]
        said.append(f"{name}={value}")
    return "  ".join(said)


# -- checkpoints ------------------------------------------------------------------------------------


@click.command()
@run_argument()
@add_paging()
@options()
def checkpoints(call: Call, run_id: str, limit: int | None, cursor: str | None) -> int:
    """List a run's checkpoints, oldest first."""

    async def act(rt: Runtime) -> list[CheckpointView]:
        return (await rt.look.snapshot(run_id, check=False)).checkpoints()

    found, more = page(over(call, act), lambda c: c.checkpoint_id, limit, cursor)
    if call.as_json:
        o.emit({"checkpoints": [describe.plain(c) for c in found], "next_cursor": more})
        return 0
    o.table(
        ["checkpoint", "step", "source", "boundaries", "next", "wrote"],
        [
            [
                c.checkpoint_id,
                str(c.step),
                o.inline(c.metadata["source"]),
                " ".join(c.boundaries),
                o.inline(" ".join(c.pending_tasks), 40),
                o.inline(" ".join(_wrote(c)), 60),
            ]
            for c in found
        ],
    )
    o.more(call.next_page(more))
    return 0


def _wrote(c: CheckpointView) -> list[str]:
    writes = c.metadata.get("writes") or {}
    return sorted({name for made in writes.values() if isinstance(made, Mapping) for name in made})


@click.command()
@run_argument()
@click.option("--at", metavar="CP", help="A checkpoint: its id, or the end of its id (c12). [default: the latest]")
@options()
def state(call: Call, run_id: str, at: str | None) -> int:
    """Show the values, now or at any checkpoint."""
    found = over(call, lambda rt: rt.look.checkpoint(run_id, at))
    if call.as_json:
        o.emit({"run_id": run_id, "checkpoint_id": found.checkpoint_id, "step": found.step, "values": found.values})
        return 0
    click.echo(o.paint(f"{found.checkpoint_id}  step {found.step}", dim=True))
    for name, value in found.values.items():
        click.echo(f"{o.paint(o.inline(name), bold=True)}")
        o.block(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2))
    return 0


@click.command()
@run_argument()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@options()
def diff(call: Call, run_id: str, a: str, b: str) -> int:
    """Show what changed between two checkpoints."""
    found = describe.plain(over(call, lambda rt: rt.look.diff(run_id, a, b)))
    if call.as_json:
        o.emit(found)
        return 0
    for name, value in found["removed"].items():
        _tell_change(name, "removed", [value], [])
    for name, value in found["added"].items():
        _tell_change(name, "added", [], [value])
    for name, change in found["changed"].items():
        was, now = change["from"], change["to"]
        if isinstance(was, list) and isinstance(now, list) and now[: len(was)] == was:
            _tell_change(name, "extended", [], now[len(was) :])
        else:
            _tell_change(name, "changed", [was], [now])
    if not (found["added"] or found["removed"] or found["changed"]):
        click.echo("nothing changed")
    return 0


def _tell_change(name: str, how: str, gone: list[Any], come: list[Any]) -> None:
    click.echo(f"{o.paint(o.inline(name), bold=True)}  {how}")
    limit = max(20, o.width() - 4)
    for sign, colour, items in (("-", "red", gone), ("+", "green", come)):
        for item in items:
            text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            for line in o.clean(text).splitlines() or [""]:
                click.echo(f"  {o.paint(sign, colour)} {o.inline(line, limit)}")


# -- graphs -----------------------------------------------------------------------------------------


@click.command()
@click.argument("target", metavar="TARGET|RUN", required=False)
@click.argument("code", metavar="[TARGET]", required=False)
@click.option("--mermaid", is_flag=True, help="Print Mermaid text.")
@options()
def graph(call: Call, target: str | None, code: str | None, mermaid: bool) -> int:
    """Draw a skill, or where a run stands in it."""
    done: Snapshot | None = None
    target = target and whole_id(call, target)
    if target is not None and RUN_ID.fullmatch(target):
        done = over(call, lambda rt: rt.look.snapshot(target, check=False))
        found = done.run
        # Looking runs no code of the current folder: only what the command itself names, or what comes with holdfast (§14.3).
        known = targets.several((code,)) if code else [targets.Target(demo_graph, targets.DEMO)]
        program = next((t.skill.program for t in known if t.skill.id == found.skill_id), None)
        if program is None:
            raise SkillUnknown(
                f"the skill {found.skill_id!r} of {target} is not the one named here" if code else f"the code of {found.skill_id!r} is imported only if you name it",
                hint=f"name its code: {call.line('graph', target, found.target or 'TARGET')}",
            )
    else:
        program = targets.one(target).skill.program
    picture = describe.plain(describe.skill(program, None if done is None else done.walk.progress.checkpoint))
    if call.as_json:
        o.emit(picture)
    elif mermaid:
        click.echo(picture["mermaid"])
    else:
        drawing.draw(program, picture)
    return 0


COMMANDS = (runs, show, events, steps, attempts, checkpoints, state, diff, graph)
