"""Commands for schedules: add, list, next, pause, unpause, trigger, remove (§10.15). Workers fire them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import click

from holdfast.calendar import CALENDAR
from holdfast.cli import output as o
from holdfast.cli import pages, targets
from holdfast.cli.driving import inputs
from holdfast.cli.session import Call, actor_option, options, over
from holdfast.cli.times import lasting, moment
from holdfast.core import schedules as sch
from holdfast.core import views
from holdfast.core.errors import InvalidInput, SkillUnknown, UsageError
from holdfast.core.wording import YOUR_FILE
from holdfast.handle import Schedule, when
from holdfast.runtime import Runtime


@click.group("schedule", short_help="Run a skill on a schedule.", invoke_without_command=True)
@click.pass_context
def schedule(ctx: click.Context) -> None:
    """Run a skill on a schedule: by a cron line or an interval.

    Each slot (due time) is fired once, by one of the workers that have the skill.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _us(at: dt.datetime | None) -> int | None:
    return None if at is None else (at - when(0)) // dt.timedelta(microseconds=1)


def _local(at: dt.datetime | None, zone: str) -> dt.datetime | None:
    """Returns a time as clocks in that zone show it; in UTC if the zone is not known here."""
    if at is None:
        return None
    try:
        return at.astimezone(CALENDAR.zone(zone))
    except InvalidInput:
        return at


def _times(name: str, at: dt.datetime | None, zone: str) -> dict[str, Any]:
    local = _local(at, zone)
    return {name: views.iso(_us(at)), f"{name}_local": None if local is None else local.isoformat()}


def view(s: Schedule) -> dict[str, Any]:
    """Returns a schedule for programs, always with all keys."""
    return {
        "schedule_id": s.id,
        "skill_id": s.skill_id,
        "cron": s.cron,
        "every_seconds": None if s.every is None else s.every.total_seconds(),
        "zone": s.zone,
        "overlap": s.overlap,
        "missed": s.missed,
        "catch_up": s.catch_up,
        "grace_seconds": s.grace.total_seconds(),
        "queue": s.queue,
        "tenant_id": s.tenant_id,
        "inputs": o.show(s.inputs),
        "options": dict(s.options),
        "paused": s.paused,
        "overdue": s.overdue,
        **_times("next_at", s.next_at, s.zone),
        **_times("last_at", s.last_at, s.zone),
        "last_run": s.last_run,
        "fired": s.fired,
        "skipped_missed": s.skipped_missed,
        "skipped_overlap": s.skipped_overlap,
        "error": s.error,
        "created_at": views.iso(_us(s.created_at)),
        "changes": [{"at": views.iso(_us(c.at)), "actor": c.actor, "what": c.what} for c in s.changes],
    }


def rule(s: Schedule) -> str:
    """Returns when a schedule fires, in a few words."""
    if s.every is not None:
        return f"every {o.span(s.every.total_seconds())}"
    return f"{o.inline(s.cron)} {o.inline(s.zone)}"


def coming(s: Schedule, now: dt.datetime) -> str:
    """Returns the next slot in the schedule's zone, and how far away it is."""
    local = _local(s.next_at, s.zone)
    if local is None:
        return "–"
    return f"{local:%Y-%m-%d %H:%M:%S %Z} ({o.ago(s.next_at, now)})"


def soon(s: Schedule, now: dt.datetime) -> str:
    """Returns how far away the next slot is, for a list."""
    return "–" if s.next_at is None else o.ago(s.next_at, now)


def state(s: Schedule) -> str:
    """Returns what keeps a schedule from firing, if anything."""
    if s.paused:
        return o.paint("paused", "yellow")
    if s.error is not None:
        return o.paint(o.inline(s.error), "red")
    return o.paint("overdue: no worker has fired it", "red") if s.overdue else ""


def _say(call: Call, s: Schedule, now: dt.datetime, word: str = "") -> int:
    """Prints one schedule after a command."""
    if call.as_json:
        o.emit(view(s))
        return 0
    click.echo(f"{o.mark('ok')} {o.inline(s.id)}{word}: {o.inline(s.skill_id)}, {rule(s)}")
    o.fields([("next", coming(s, now) if s.next_at is not None else ""), ("state", state(s))])
    return 0


@schedule.command()
@click.argument("target", required=False)
@click.option("--cron", metavar="LINE", help="Five fields: minute hour day month weekday, such as '0 9 * * MON-FRI'; or @daily.")
@click.option("--every", metavar="T", help="Or an interval: 30s, 15m, 12h, 7d.")
@click.option("--zone", metavar="Z", help="The time zone of the cron line, such as Europe/Berlin. [default: UTC]")
@click.option("--id", "schedule_id", metavar="NAME", help="The schedule's name; a schedule of this name is changed. [default: made from the skill, the rule and the input]")
@click.option("--input", "given", metavar="JSON|@FILE|-", help="The input of each run: a JSON object.")
@click.option("--overlap", type=click.Choice(["skip", "allow"]), default="skip", show_default=True, help="What to do with a slot when the previous run has not ended.")
@click.option("--missed", type=click.Choice(["skip", "catch-up"]), default="skip", show_default=True, help="What to do with slots that passed while no worker was running.")
@click.option("--catch-up", type=click.IntRange(1, sch.MAX_CATCH_UP), default=1, show_default=True, metavar="N", help="How many missed slots to run afterwards.")
@click.option("--grace", default="60s", show_default=True, metavar="T", help="How late a slot may begin without being missed.")
@click.option("--queue", metavar="Q", help="The queue of its runs.")
@click.option("--thread", metavar="T", help="The thread (conversation) of its runs, which then execute one after another.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="A tag of its runs; may be given more than once.")
@actor_option
@options()
def add(
    call: Call, target: str | None, cron: str | None, every: str | None, zone: str | None, schedule_id: str | None, given: str | None, overlap: str,
    missed: str, catch_up: int, grace: str, queue: str | None, thread: str | None, tags: tuple[str, ...], actor: str,
) -> int:
    """Add a schedule, or change the one of that name.

    When the clocks change, a cron line that names hours still fires once for each slot: a skipped time fires right after the
    change, a repeated time only the first time. A line for every hour fires by elapsed time.
    """
    if catch_up > 1 and missed != "catch-up":
        raise UsageError("--catch-up says how many missed slots are run afterwards, and --missed skip runs none", hint="add --missed catch-up, or leave out --catch-up")
    data, length, late = inputs(given), None if every is None else lasting(every), lasting(grace)
    chosen = targets.one(target, example=False)

    async def act(rt: Runtime) -> tuple[Schedule, dt.datetime]:
        made = await rt.schedule(
            chosen.skill, data, id=schedule_id, cron=cron, every=length, zone=zone, overlap=overlap, missed=missed, catch_up=catch_up, grace=late,
            actor=actor, queue=queue, thread_id=thread, tags=tags or None, target=chosen.text,
        )
        return made, when(rt.store.now())

    made, now = over(call, act, [chosen.skill], make=True, tried=act)
    if catch_up > 1 and missed == "catch-up" and overlap == "skip":
        click.echo(f"{o.mark('part')} {ONE_ONLY}", err=True)
    _say(call, made, now)
    if not call.as_json:
        click.echo(f"  {o.mark('go')} {call.line('worker', chosen.text)}  # starts its runs")
    return 0


ONE_ONLY = "with --overlap skip only the oldest of the missed slots gets a run: the others come while that run has not ended (--overlap allow runs them all)"


@schedule.command("list")
@options()
def list_(call: Call) -> int:
    """List schedules, the soonest first."""

    async def act(rt: Runtime) -> tuple[list[Schedule], dt.datetime]:
        return await rt.schedules(), when(rt.store.now())

    found, now = over(call, act)
    if call.as_json:
        o.emit({"schedules": [view(s) for s in found], "next_cursor": None})
        return 0
    if not found:
        click.echo("no schedules")
        return 0
    o.table(
        ["schedule", "skill", "when", "next", "last run", "fired", "missed", "overlap", "state"],
        [
            [
                o.inline(s.id), o.inline(s.skill_id), rule(s), soon(s, now), s.last_run or "–", str(s.fired), str(s.skipped_missed),
                str(s.skipped_overlap), state(s),
            ]
            for s in found
        ],
    )
    return 0


@schedule.command("next")
@click.argument("line", metavar="CRON")
@click.option("--zone", default="UTC", show_default=True, metavar="Z", help="Its time zone, such as Europe/Berlin.")
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, metavar="N", help="How many.")
@click.option("--after", metavar="TIME", help="Begin there: ISO 8601. [default: now]")
@options()
def next_(call: Call, line: str, zone: str, count: int, after: str | None) -> int:
    """Show the next slots of a cron line, before anything is scheduled."""
    begin = dt.datetime.now(dt.UTC) if after is None else moment(after, zone)
    s = sch.Schedule(schedule_id="preview", skill_id="", input=b"", cron=line, zone=zone, created_at=_us(begin) or 0)
    sch.check(s, CALENDAR)
    found = [when(at) for at in sch.preview(s, s.created_at, count, CALENDAR)]
    if call.as_json:
        o.emit({"cron": line, "zone": zone, "slots": [_times("at", at, zone) for at in found]})
        return 0
    for at in found:
        local = _local(at, zone)
        click.echo(f"{local:%a %Y-%m-%d %H:%M:%S %Z}  {o.paint(f'{o.clock(at)}  {o.ago(at, begin)}', dim=True)}")
    return 0


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@actor_option
@options()
def pause(call: Call, schedule_id: str, actor: str) -> int:
    """Pause a schedule until it is unpaused."""

    async def act(rt: Runtime) -> tuple[Schedule, dt.datetime]:
        return await rt.pause_schedule(schedule_id, actor=actor), when(rt.store.now())

    return _say(call, *over(call, act))


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@actor_option
@options()
def unpause(call: Call, schedule_id: str, actor: str) -> int:
    """Unpause a schedule; it fires again from its next slot.

    Slots that passed while it was paused are not run.
    """

    async def act(rt: Runtime) -> tuple[Schedule, dt.datetime]:
        return await rt.unpause_schedule(schedule_id, actor=actor), when(rt.store.now())

    return _say(call, *over(call, act))


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@click.argument("target", required=False)
@click.option("--key", metavar="K", help="A request key: with the same key, the existing run is returned.")
@options()
def trigger(call: Call, schedule_id: str, target: str | None, key: str | None) -> int:
    """Submit a run of a schedule now, in addition to its slots."""
    chosen = targets.skills(targets.several([target] if target is not None else []))

    async def act(rt: Runtime) -> pages.RunObject:
        known = next((s for s in await rt.schedules() if s.id == schedule_id), None)
        if known is not None and known.skill_id not in {s.id for s in chosen}:
            where = f"in {target}" if target else "among this project's skills"
            best = known.options.get("target") or YOUR_FILE
            raise SkillUnknown(f"the skill {known.skill_id!r} of the schedule {schedule_id} is not {where}", hint=f"name the file that holds it: {call.retype(schedule_id=schedule_id, target=best)}")
        made = await rt.trigger(schedule_id, key=key)
        return await pages.run_object(rt, made.run_id, deduplicated=made.deduplicated)

    found = over(call, act, chosen)
    if call.as_json:
        o.emit(found)
    else:
        pages.brief(call, found)
    return 0


@schedule.command()
@click.argument("schedule_id", metavar="ID")
@options()
def remove(call: Call, schedule_id: str) -> int:
    """Remove a schedule. Its runs stay."""
    over(call, lambda rt: rt.unschedule(schedule_id))
    if call.as_json:
        o.emit({"removed": schedule_id})
    else:
        click.echo(f"{o.mark('ok')} {o.inline(schedule_id)} is removed; its runs stay")
    return 0


COMMANDS = (schedule,)
