"""Commands that answer and steer runs: waits, approve, deny, decide, signal, cancel.

They need no code of a skill: they commit, and say who will drive the run (§5.4). With a TARGET they execute the run as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import click
import msgspec

from holdfast.cli import driving, pages, sendings, targets
from holdfast.cli import output as o
from holdfast.cli.driving import progress_for
from holdfast.cli.pages import EXITS, RESTING
from holdfast.cli.progress import Progress, watch
from holdfast.cli.session import Call, Within, actor_option, add_paging, options, over, page, parse, run_argument
from holdfast.core import describe
from holdfast.core.errors import InvalidInput, LaneBlocked, NothingEligible, RunIsLive, UsageError
from holdfast.core.explain import Advice
from holdfast.core.selection import where as selected
from holdfast.core.status import TERMINAL
from holdfast.core.waits import CONSENTS, WaitKind, check_action
from holdfast.handle import Decided, when
from holdfast.runtime import MOST_DECISIONS, Runtime

WAITS = 100
LOOK_ON = 15.0
"""Seconds: a little longer than the time that an effect under way gets to end by itself (§10.12)."""
SHOWN_LINES = 8


_SAID = {"approve": "approved", "deny": "denied", "answer": "answered"}


UNCHECKED = "the question has no schema=, so nothing checks the payload, and a flow that does not read decision.payload ignores it"


def _answer(
    call: Call, run_id: str, target: str | None, act: Callable[[Runtime], Awaitable[Any]], action: str = "", wait_id: str | None = None, *, actor: str, payload: bool = False
) -> int:
    """Commits, then executes the run if ``target`` names its code; says what was answered and how the run stands. ``payload``: whether one was given."""
    code = [] if target is None else targets.several([target])  # before the event loop runs, because a module may run one of its own
    progress = progress_for(call) if code else None

    async def whole(rt: Runtime) -> tuple[list[dict[str, Any]], pages.RunObject]:
        run = await rt.get(run_id)
        rt.add(*targets.skills(code))
        if code and run.skill_id not in {t.skill.id for t in code}:
            driving.tell_unknown(call, run, target)
        before = (await pages.run_object(rt, run_id))["waits"]
        await act(rt)
        if code and (await rt.get(run_id)).status not in TERMINAL:
            await _execute(rt, run_id, actor, progress, run.version)
        return before, await pages.run_object(rt, run_id)

    before, found = over(call, whole)
    done = EXITS.get(found["status"], RESTING) if code else 0
    if call.as_json:
        o.emit(found)
        return done
    still = {w["wait_id"] for w in found["waits"]}
    answered = [w for w in before if w["available_actions"] and (w["wait_id"] == wait_id or (wait_id is None and (w["wait_id"] not in still or found["decisions"])))]
    if action and len(answered) == 1:
        asked = answered[0]
        if payload and action in CONSENTS and asked["kind"] == WaitKind.APPROVAL and not asked["editable"]:
            click.echo(f"{o.mark('part')} {UNCHECKED}", err=True)
        click.echo(f"{o.mark('ok')} {o.inline(_SAID.get(action, action))}: {o.paint(o.inline(asked['prompt'] or asked['name'] or asked['task'], 200), bold=True)}")
    pages.brief(call, found)
    return done


async def _execute(rt: Runtime, run_id: str, actor: str, progress: Progress | None, after: int) -> None:
    """Resumes an answered run here, until it waits or ends. One that cannot be resumed now stays as it is, with its answer recorded."""
    try:
        await watch(rt, run_id, rt.resume(run_id, actor=actor), progress, after)
    except (NothingEligible, RunIsLive, LaneBlocked) as e:
        click.echo(o.inline(e.line()), err=True)


def _target_argument(function: Any) -> Any:
    return click.argument("target", required=False)(function)


def _wait_option(function: Any) -> Any:
    return click.option("--wait", "wait_id", metavar="W", help="Which wait, if several are open.")(function)


@click.command()
@run_argument(required=False)
@add_paging("Without RUN it counts runs, not waits, and the default is 100.")
@options()
def waits(call: Call, run_id: str | None, limit: int | None, cursor: str | None) -> int:
    """List open waits and the commands that answer them.

    Outgoing messages (intents) whose outcome is unknown are listed too, because a person must settle them.
    """

    async def act(rt: Runtime) -> tuple[list[dict[str, Any]], str | None, Any]:
        now = when(rt.store.now())
        if cursor is None:
            unknown.extend(await sendings.intents_of(rt, await rt.intents(run_id, state="unknown")))
        if run_id is not None:
            seen = await rt.look.snapshot(run_id, check=False)
            return *page([describe.plain(w) for w in seen.waits], lambda w: str(w["wait_id"]), limit, cursor), now
        asked, more = await rt.look.waits(before=cursor, limit=limit or WAITS)
        return [describe.plain(w) for w in asked], more, now

    unknown: list[dict[str, Any]] = []
    found, more, now = over(call, act)
    if call.as_json:
        o.emit({"waits": [*found, *map(sendings.intent_as_wait, unknown)], "next_cursor": more})
        return 0
    open_of = Counter(w["run_id"] for w in found if w["available_actions"])
    for wait in found:
        click.echo(f"{wait['run_id']}  {o.paint(wait['kind'], 'yellow')}  {o.paint(o.inline(wait['prompt'] or wait['name'], 200), bold=True)}")
        who = f", for {', '.join(map(o.inline, wait['who']))}" if wait["who"] else ""
        until = pages.deadline(wait, now)
        click.echo(o.paint(f"    asked {o.ago(wait['requested_at'], now)} by {o.inline(wait['task'])}{who}{until}", dim=True))
        pages.show_subject(wait, indent="    │ ", lines=SHOWN_LINES)
        pages.advise(pages.answers(call, wait, alone=open_of[wait["run_id"]] == 1), indent="    ")
    for intent in unknown:
        sendings.doubtful(call, intent)
    if not found and not unknown:
        click.echo("nothing waits")
    o.more(call.next_page(more))
    return 0


@click.command()
@run_argument()
@_target_argument
@_wait_option
@click.option("--note", metavar="N", help="Why; kept with the decision.")
@click.option("--payload", metavar="JSON|@FILE|-", help="Edited arguments. Only a question with a schema= offers this.")
@actor_option
@options(drives=True)
def approve(call: Call, run_id: str, target: str | None, wait_id: str | None, note: str | None, payload: str | None, actor: str) -> int:
    """Approve what a run waits for.

    With a TARGET it is then executed here, and the exit code is that of resume. Without, a worker or `holdfast resume` executes it.
    """
    given = ... if payload is None else parse(payload, "--payload")
    return _answer(
        call, run_id, target, lambda rt: rt.approve(run_id, wait_id=wait_id, actor=actor, note=note, payload=given, drive=False), "approve", wait_id,
        actor=actor, payload=given is not ...,
    )


@click.command()
@run_argument()
@_target_argument
@click.option("--reason", required=True, metavar="R", help="Why; kept with the decision.")
@_wait_option
@actor_option
@options(drives=True)
def deny(call: Call, run_id: str, target: str | None, reason: str, wait_id: str | None, actor: str) -> int:
    """Deny what a run waits for.

    The run is halted, unless its node handles denials itself. With a TARGET it is then executed here, as by resume.
    """
    return _answer(call, run_id, target, lambda rt: rt.deny(run_id, reason=reason, wait_id=wait_id, actor=actor, drive=False), "deny", wait_id, actor=actor)


@click.command()
@run_argument(required=False)
@_target_argument
@_wait_option
@click.option("--action", required=True, metavar="A", help="One of the actions that the wait offers.")
@click.option("--all", "many", is_flag=True, help="Decide about all waits that match --where, each in a commit of its own.")
@click.option("--where", multiple=True, metavar="K=V,…", help="With --all: which waits, by skill, step, kind, name, thread, tag; all given keys must match.")
@click.option("--dry-run", is_flag=True, help="With --all: list the waits and decide nothing.")
@click.option("--limit", type=click.IntRange(1, MOST_DECISIONS), metavar="N", help="With --all: how many at most. [default: 1000]")
@click.option("--feedback", metavar="F", help="What should change; some actions need it.")
@click.option("--note", metavar="N", help="Why; kept with the decision.")
@click.option("--payload", metavar="JSON|@FILE|-", help="The answer, the edited arguments, or the result of the effect; record_result without it records null.")
@click.option("--no-resume", is_flag=True, help="Record the decision; nothing continues the run until somebody resumes it.")
@click.option("--force", is_flag=True, help="With reexecute: do it again even though the first attempt may still be running. It may then happen twice.")
@actor_option
@options(drives=True)
def decide(
    call: Call, run_id: str | None, target: str | None, wait_id: str | None, action: str, many: bool, where: tuple[str, ...], dry_run: bool, limit: int | None,
    feedback: str | None, note: str | None, payload: str | None, no_resume: bool, force: bool, actor: str,
) -> int:
    """Answer a wait with one of the actions that it offers.

    With a TARGET the run is then executed here, and the exit code is that of resume.

    With --all it decides about many waits. The exit code is 0 if every decision was accepted, and 6 if one was refused.
    """
    given = ... if payload is None else parse(payload, "--payload")
    if many:
        alone = {"RUN": run_id, "TARGET": target, "--wait": wait_id, "--no-resume": no_resume, "--force": force}
        if (wrong := next((name for name, value in alone.items() if value), None)) is not None:
            raise UsageError(f"--all and {wrong} cannot be combined: --all is for many waits, {wrong} for one", hint="leave out one of them")
        return _decide_all(call, Bulk(action, where, actor, feedback, note, given, limit or 1000), dry_run)
    if run_id is None or where or dry_run or limit is not None:
        raise UsageError("RUN is missing" if run_id is None else "--where, --dry-run and --limit go with --all", hint=f"{call.line('decide', '--help')} shows both forms")
    if target is not None and no_resume:
        raise UsageError("TARGET and --no-resume cannot be combined: one executes the run, the other leaves it where it is", hint="leave out one of them")
    return _answer(
        call,
        run_id,
        target,
        lambda rt: rt.decide(run_id, action, wait_id=wait_id, actor=actor, feedback=feedback, note=note, payload=given, resume=not no_resume, force=force),
        action,
        wait_id,
        actor=actor,
        payload=given is not ...,
    )


@dataclasses.dataclass(frozen=True)
class Bulk:
    """One decision about many waits."""

    action: str
    where: tuple[str, ...]
    actor: str
    feedback: str | None
    note: str | None
    payload: Any
    limit: int

    def selection(self) -> dict[str, str]:
        """The ``--where`` options as names to values.

        Raises:
            InvalidInput: an option is not of the form ``K=V``, or a name is given twice.
        """
        found: dict[str, str] = {}
        for part in (part for text in self.where for part in text.split(",")):
            name, equals, value = part.partition("=")
            if not equals or name.strip() in found:
                raise InvalidInput(f"--where: {part!r} {'repeats a key' if equals else 'is not of the form K=V'}", field="where", hint="--where skill=refund,step=ask")
            found[name.strip()] = value.strip()
        return found


def _decide_all(call: Call, bulk: Bulk, dry_run: bool) -> int:
    """Decides about many waits, or lists them, and says what became of each."""

    async def act(rt: Runtime) -> list[Decided]:
        selection = bulk.selection()
        check_action(bulk.action)
        if dry_run:
            return [Decided(run.run_id, wait.wait_id, bulk.action in wait.available_actions) for run, wait in await rt.look.waiting(selected(selection), bulk.limit)]
        return await rt.decide_all(
            bulk.action, where=selection, actor=bulk.actor, feedback=bulk.feedback, note=bulk.note, payload=bulk.payload, limit=bulk.limit
        )

    found = over(call, act)
    refused = sum(not d.ok for d in found)
    if call.as_json:
        o.emit({"decided": [msgspec.structs.asdict(d) for d in found], "dry_run": dry_run})
    elif not found:
        click.echo("no open wait matches")
    else:
        word = "would be decided" if dry_run else "decided"
        o.table(["run", "wait", "outcome"], [[d.run_id, o.inline(d.wait_id.partition(".")[2], 40), word if d.ok else d.code or "not offered"] for d in found])
        click.echo(f"{len(found) - refused} {word}, {refused} refused")
    return 6 if refused else 0


@click.command()
@run_argument()
@click.argument("name")
@_target_argument
@click.option("--payload", metavar="JSON|@FILE|-", help="What the signal carries.")
@click.option("--key", metavar="K", help="A signal with the same key is delivered only once.")
@actor_option
@options(drives=True)
def signal(call: Call, run_id: str, name: str, target: str | None, payload: str | None, key: str | None, actor: str) -> int:
    """Send a signal to a run.

    With a TARGET the run is then executed here, and the exit code is that of resume.
    """
    given = parse(payload, "--payload")
    return _answer(call, run_id, target, lambda rt: rt.signal(run_id, name, given, key=key, actor=actor), actor=actor)


@click.command()
@run_argument()
@click.option("--reason", default="", metavar="R", help="Why; kept with the request.")
@click.option("--wait", "seconds", type=Within(min=0, max=86_400), metavar="SECONDS", help=f"How long to wait for the run to end. [default: {LOOK_ON:g}; with --json 0]")
@actor_option
@options()
def cancel(call: Call, run_id: str, reason: str, seconds: float | None, actor: str) -> int:
    """Ask a run to stop.

    A run that waits is canceled at once. In a running one, the current step is cut off; a side effect that has begun gets ten
    seconds to finish, and work in an OS thread is waited for.
    """
    progress = None if call.as_json else progress_for(call)
    limit = seconds if seconds is not None else 0.0 if call.as_json else LOOK_ON

    async def act(rt: Runtime) -> pages.RunObject:
        before = await rt.get(run_id)
        await rt.cancel(run_id, actor=actor, reason=reason)
        run = await rt.get(run_id)
        driven = before.lease.owner is not None and (run.lease.owner is not None or run.status in TERMINAL)
        if limit and driven:  # a run that nobody drives is not watched; one that has ended meanwhile is still reported
            await watch(rt, run_id, _wait_for_end(rt, run_id, before.version, limit), progress, before.version)
        return await pages.run_object(rt, run_id)

    found = over(call, act)
    if call.as_json:
        o.emit({"accepted": True, **found})
        return 0
    pages.brief(call, found)
    if found["status"] not in TERMINAL:
        pages.advise([Advice("To follow it:", call.line("events", run_id, "--follow"))])
    return 0


async def _wait_for_end(rt: Runtime, run_id: str, after: int, seconds: float) -> None:
    """Waits until the run has ended, but not longer than ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            async for _ in rt.events(run_id, after, follow=True):
                pass


COMMANDS = (waits, approve, deny, decide, signal, cancel)
