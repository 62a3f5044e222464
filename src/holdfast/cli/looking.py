"""Commands that look and change nothing: runs, show, events, checkpoints, state, diff, graph."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from holdfast.cli import drawing, lineage, pages, targets
from holdfast.cli import output as o
from holdfast.cli.session import MOST, Call, options, over, page, paged
from holdfast.core import views
from holdfast.core.effects import Effect
from holdfast.core.errors import CheckpointNotFound, InvalidInput, SkillUnknown
from holdfast.core.masks import NOTHING, Mask
from holdfast.core.status import Condition, Status
from holdfast.core.views import Moment
from holdfast.demo.notes import graph as demo_graph
from holdfast.handle import CheckpointView, EventView, Run, Wait, when
from holdfast.runtime import Runtime

RUN_ID = re.compile(r"[0-9a-z]{26}")
_CONDITIONS = {**{c.value: c for c in Condition}, "canceled": Condition.CANCELLED}


@click.command()
@click.option("--status", metavar="S", help="Only runs with this status.")
@click.option("--condition", metavar="C", help="Only runs in this condition.")
@click.option("--skill", metavar="S", help="Only runs of this skill.")
@click.option("--thread", metavar="T", help="Only runs of this thread.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, metavar="N", help="How many.")
@click.option("--cursor", metavar="RUN", help="Go on after this run: the next_cursor of the page before.")
@options()
def runs(call: Call, status: str | None, condition: str | None, skill: str | None, thread: str | None, limit: int, cursor: str | None) -> int:
    """List runs, newest first."""
    if condition is not None and condition not in _CONDITIONS:
        raise InvalidInput(f"{condition!r} is not a condition", hint="one of " + ", ".join(c.value for c in Condition))
    if status is not None and status not in {"cancelled", *Status}:
        raise InvalidInput(f"{status!r} is not a status", hint="one of " + ", ".join(Status))
    wanted = None if condition is None else _CONDITIONS[condition].value

    async def act(rt: Runtime) -> tuple[list[Run[Any]], int, dict[str, Mask]]:
        found = await rt.runs(status=status, condition=wanted, skill_id=skill, thread_id=thread, limit=limit, before=cursor)
        return found, rt.store.now(), {r.run_id: await rt.masked(r.run_id) for r in found if r.record.secrets}

    found, now, masks = over(call, act)
    more = found[-1].run_id if len(found) == limit else None
    if call.as_json:
        o.emit({"runs": [masks.get(r.run_id, NOTHING).record(views.record(r.record, r.lease, now, r.blocked, r.no_worker_for)) for r in found], "next_cursor": more})
        return 0
    if not found:
        click.echo("no runs" if not (status or condition or skill or thread) else "no such runs")
        return 0
    o.table(
        ["run", "skill", "condition", "created", "took", "about"],
        [
            [
                r.run_id,
                o.inline(r.skill_id, 24),
                o.paint(r.condition.value, o.COLOURS.get(r.condition)),
                o.ago(r.created_at, when(now)),
                o.span((r.finished_at - r.started_at).total_seconds()) if r.finished_at and r.started_at else "",
                masks.get(r.run_id, NOTHING).text(_about(r)),
            ]
            for r in found
        ],
    )
    o.more(call.line("runs"), more)
    return 0


def _about(run: Run[Any]) -> str:
    """What is worth knowing of a run in a list: its question, its error, or whom it waits for."""
    for wait in run.waits:
        return o.inline(f"{wait.kind}: {wait.prompt or wait.name}", 120)
    if run.error is not None:
        return o.inline(f"{run.stop_reason}: {run.error.message}", 120)
    if run.no_worker_for is not None:
        return f"no worker for {run.no_worker_for.wanted}"
    if run.blocked_by:
        return f"behind {run.blocked_by}"
    return o.inline(run.stop_reason or "", 120)


@click.command()
@click.argument("run_id", metavar="RUN")
@options()
def show(call: Call, run_id: str) -> int:
    """Show all there is to know of a run.

    Where it stands, what it waits for and what answers it, its error, problems, timeline, effects and values.
    """

    async def act(rt: Runtime) -> tuple[dict[str, Any], list[Moment], list[Effect], int, list[str]]:
        found = await pages.run_object(rt, run_id)
        tree = lineage.tree(await lineage.family(rt, found), run_id)
        return found, await pages.story(rt, run_id), await rt.effects(run_id), rt.store.now(), tree

    found, moments, effects, now, tree = over(call, act)
    if call.as_json:
        o.emit(found)
        return 0
    pages.page(call, found, moments, effects, when(now))
    if tree:
        o.head("lineage")
        for line in tree:
            click.echo(line)
    return 0


# -- events -----------------------------------------------------------------------------------------

_QUIET = frozenset({"step", "task", "path", "step_id", "attempt_id", "hash", "run_id", "input", "fingerprint", "wait_id", "thread_id", "session_key"})
_USUAL: dict[str, Any] = {"outcome": "ok", "attempt": 1, "lane": "main", "queue": "default", "tenant_id": "default", "environment": "development"}


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--after", "--cursor", "after", type=click.IntRange(0, MOST), default=0, metavar="N", help="Only events newer than number N: the next_cursor of the page before.")
@click.option("--limit", type=click.IntRange(1, MOST), metavar="N", help="How many at most.")
@click.option("--follow", is_flag=True, help="Go on as more happens, until the run has ended; with --json, one object a line.")
@options()
def events(call: Call, run_id: str, after: int, limit: int | None, follow: bool) -> int:
    """Show what happened, in order."""

    async def act(rt: Runtime) -> list[EventView]:
        if not follow:
            return await rt.events(run_id, after, limit=limit)
        async for event in rt.events(run_id, after, follow=True, limit=limit):
            click.echo(o.as_json(_event(event)) if call.as_json else _event_line(event))
        return []

    found = over(call, act)
    if follow:
        return 0
    more = found[-1].seq if limit is not None and len(found) == limit else None
    if call.as_json:
        o.emit({"events": [_event(e) for e in found], "next_cursor": more})
        return 0
    for event in found:
        click.echo(_event_line(event))
    o.more(call.line("events", run_id), more)
    return 0


def _event(event: EventView) -> dict[str, Any]:
    return msgspec.structs.asdict(event)


def _event_line(event: EventView) -> str:
    at = o.moment(event.occurred_at)
    time = "" if at is None else at.strftime("%H:%M:%S.") + f"{at.microsecond // 1000:03d}"
    p = event.payload
    place = ".".join(str(p[k]) for k in ("task", "path") if p.get(k))
    left = f"{event.seq:>5}  {o.paint(time, dim=True)}  {event.event_type:<24} {o.inline(place, 32):<16}"
    detail = _detail(p)
    actor = f"  by {o.inline(event.actor)}" if event.actor != "system" else ""
    room = max(20, o.width() - o.columns(left) - len(actor) - 1)
    return f"{left} {o.inline(detail, room)}{actor}".rstrip()


def _detail(payload: Mapping[str, Any]) -> str:
    """The fields that say something, in one line."""
    said = []
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
@click.argument("run_id", metavar="RUN")
@paged()
@options()
def checkpoints(call: Call, run_id: str, limit: int | None, cursor: str | None) -> int:
    """List a run's checkpoints, oldest first."""

    async def act(rt: Runtime) -> tuple[list[CheckpointView], Mask]:
        return await rt.checkpoints(run_id), await rt.masked(run_id)

    every, hidden = over(call, act)
    found, more = page(every, lambda c: c.checkpoint_id, limit, cursor)
    if call.as_json:
        o.emit({"checkpoints": [hidden.record(_checkpoint(c)) for c in found], "next_cursor": more})
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
    o.more(call.line("checkpoints", run_id), more)
    return 0


def _wrote(c: CheckpointView) -> list[str]:
    writes = c.metadata.get("writes") or {}
    return sorted({name for made in writes.values() if isinstance(made, Mapping) for name in made})


def _checkpoint(c: CheckpointView) -> dict[str, Any]:
    shown: dict[str, Any] = {name: o.shown(_plain(getattr(c, name))) for name in c.__struct_fields__ if name not in ("waits", "created_at")}
    shown["waits"] = [_wait(w) for w in c.waits]
    shown["created_at"] = c.created_at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return shown


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _wait(wait: Wait) -> dict[str, Any]:
    times = {n: None if (at := getattr(wait, n)) is None else at.isoformat() for n in ("deadline", "requested_at")}
    lists = {"available_actions": list(wait.available_actions), "who": list(wait.who)}
    return {**msgspec.structs.asdict(wait), **times, **lists, "show": o.shown(wait.show)}


async def _at(rt: Runtime, run_id: str, name: str | None) -> CheckpointView:
    """A checkpoint by its id, by the short ``c12`` of it, or the head.

    Raises:
        CheckpointNotFound: there is none of this name.
    """
    found = await rt.checkpoints(run_id)
    if name in (None, "head") and found:
        return found[-1]
    full = name if name is not None and "." in name else f"{run_id}.{name}"
    for c in found:
        if c.checkpoint_id == full:
            return c
    raise CheckpointNotFound(f"{run_id} has no checkpoint {name or 'yet'}", hint=f"holdfast checkpoints {run_id}")


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--at", metavar="CP", help="A checkpoint, by its id or its end (c12). [default: the head]")
@options()
def state(call: Call, run_id: str, at: str | None) -> int:
    """Show the values, now or at any checkpoint."""

    async def act(rt: Runtime) -> tuple[CheckpointView, Mask]:
        return await _at(rt, run_id, at), await rt.masked(run_id)

    found, hidden = over(call, act)
    values = hidden.value({n: o.shown(v) for n, v in found.values.items()})
    if call.as_json:
        o.emit({"run_id": run_id, "checkpoint_id": found.checkpoint_id, "step": found.step, "values": values})
        return 0
    click.echo(o.paint(f"{found.checkpoint_id}  step {found.step}", dim=True))
    for name, value in values.items():
        click.echo(f"{o.paint(o.inline(name), bold=True)}")
        o.block(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2))
    return 0


@click.command()
@click.argument("run_id", metavar="RUN")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@options()
def diff(call: Call, run_id: str, a: str, b: str) -> int:
    """Show what changed between two checkpoints."""

    async def act(rt: Runtime) -> dict[str, Any]:
        ends = [(await _at(rt, run_id, name)).checkpoint_id for name in (a, b)]
        found, hidden = await rt.diff(run_id, *ends), await rt.masked(run_id)
        for kind in ("added", "removed"):
            found[kind] = hidden.value({n: o.shown(v) for n, v in found[kind].items()})
        for n, change in found["changed"].items():  # that it changed may be known
            found["changed"][n] = {end: hidden.value({n: o.shown(v)})[n] for end, v in change.items()}
        return found

    found = over(call, act)
    if call.as_json:
        o.emit(found)
        return 0
    for name, value in found["removed"].items():
        _changed(name, "removed", [value], [])
    for name, value in found["added"].items():
        _changed(name, "added", [], [value])
    for name, change in found["changed"].items():
        was, now = change["from"], change["to"]
        if isinstance(was, list) and isinstance(now, list) and now[: len(was)] == was:
            _changed(name, "extended", [], now[len(was) :])
        else:
            _changed(name, "changed", [was], [now])
    if not (found["added"] or found["removed"] or found["changed"]):
        click.echo("nothing changed")
    return 0


def _changed(name: str, how: str, gone: list[Any], come: list[Any]) -> None:
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
    done: CheckpointView | None = None
    if target is not None and _looks_like_a_run(target):
        found, done = over(call, lambda rt: _drawn(rt, target))
        # Looking runs no code of the current folder: only what the command itself names, or what comes with holdfast (§14.3).
        known = targets.several((code,)) if code else [targets.Target(demo_graph, targets.DEMO)]
        program = next((t.skill.program for t in known if t.skill.id == found.skill_id), None)
        if program is None:
            raise SkillUnknown(
                f"the skill {found.skill_id!r} of {target} is not the one named here" if code else f"the code of {found.skill_id!r} is not read unasked",
                hint=f"name its code: {call.line('graph', target, found.target or 'TARGET')}",
            )
    else:
        program = targets.one(target).skill.program
    picture = drawing.describe(program, done)
    if call.as_json:
        o.emit(picture)
    elif mermaid:
        click.echo(picture["mermaid"])
    else:
        drawing.draw(program, picture)
    return 0


def _looks_like_a_run(text: str) -> bool:
    return RUN_ID.fullmatch(text) is not None


async def _drawn(rt: Runtime, run_id: str) -> tuple[Run[Any], CheckpointView | None]:
    run = await rt.get(run_id)
    found = await rt.checkpoints(run_id)
    return run, found[-1] if found else None


COMMANDS = (runs, show, events, checkpoints, state, diff, graph)
