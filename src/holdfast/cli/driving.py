"""Commands that make runs and drive them: run, submit, worker, resume, replay, fork."""

from __future__ import annotations

import asyncio
import datetime as dt
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import click

from holdfast import logs, machine
from holdfast.cli import output as o
from holdfast.cli import pages, targets
from holdfast.cli.progress import Progress, watch
from holdfast.cli.session import END_SECONDS, ENDING, Call, actor_option, either, handling, options, over, parse, run_argument
from holdfast.cli.times import lasting, moment
from holdfast.core import bounds
from holdfast.core.errors import (
    AcknowledgeRequired,
    FingerprintMismatch,
    HoldfastError,
    InvalidInput,
    LaneBlocked,
    NothingEligible,
    SkillUnknown,
    WorkspaceElsewhere,
)
from holdfast.core.jsons import json_of
from holdfast.core.status import TERMINAL, Condition, Status
from holdfast.core.wording import YOUR_FILE
from holdfast.engine.desk.door import OnBusy
from holdfast.handle import Run, when
from holdfast.runtime import Runtime
from holdfast.workers.worker import Report


def progress_for(call: Call, *, names: bool = False) -> Progress | None:
    """Returns the progress lines on stderr; None if the output is JSON and stderr is no terminal."""
    return Progress(names=names) if not call.as_json or sys.stderr.isatty() else None


def inputs(text: str | None) -> dict[str, Any]:
    """Returns the input of a run: a JSON object of channels to values."""
    given = parse(text, "--input")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise InvalidInput(f"--input is an object of names to values, not {type(given).__name__}", hint="""--input '{"name": "Ada"}'""")
    return given


def _making(function: Any) -> Any:
    for add in (
        click.option(
            "--on-busy", type=click.Choice([b.value for b in OnBusy]), default=OnBusy.QUEUE.value, show_default=True,
            help="If another run of its thread is active: wait for it (queue), be refused (reject), be recorded and end at once (ack), or replace the queued runs (replace).",
        ),
        click.option("--key", metavar="K", help="A request key: with the same key and input, the existing run is returned."),
        click.option("--thread", metavar="T", help="The thread (conversation) of the run; runs of one thread execute one after another. [default: a new one]"),
        click.option("--input", "given", metavar="JSON|@FILE|-", help="The input: a JSON object."),
    ):
        function = add(function)
    return function


@click.command()
@click.argument("target", required=False)
@_making
@options(drives=True)
def run(call: Call, target: str | None, given: str | None, thread: str | None, key: str | None, on_busy: str) -> int:
    """Submit a run, and execute it until it waits or ends.

    Exit code 0 if it is done, 1 if it failed, 4 if it waits, 5 if it was canceled.
    """
    data = inputs(given)
    chosen = targets.one(target, example=given is not None)
    progress = progress_for(call)

    async def begin(rt: Runtime) -> Run[Any]:
        return await rt.submit(chosen.skill, data, thread_id=thread, key=key, target=chosen.text, on_busy=on_busy)

    async def act(rt: Runtime) -> pages.RunObject:
        made = await begin(rt)
        if progress is not None and not made.deduplicated:
            click.echo(f"{chosen.skill.id} {made.run_id}", err=True)
        if made.status not in TERMINAL and not (made.deduplicated and made.condition is not Condition.QUEUED):
            try:
                await watch(rt, made.run_id, rt.resume(made.run_id), progress)
            except LaneBlocked as e:  # the run is queued, and goes on when its turn comes
                click.echo(o.inline(e.line()), err=True)
        return await pages.run_object(rt, made.run_id, deduplicated=made.deduplicated)

    return pages.finish(call, over(call, act, [chosen.skill], make=True, tried=begin))


@click.command()
@click.argument("target", required=False)
@_making
@click.option("--at", metavar="TIME", help="Start at this time: ISO 8601 with an offset, such as 2026-11-21T09:00+01:00.")
@click.option("--delay", metavar="T", help="Start after this delay: 90s, 15m, 12h, 7d.")
@options()
def submit(
    call: Call, target: str | None, given: str | None, thread: str | None, key: str | None, on_busy: str, at: str | None, delay: str | None
) -> int:
    """Submit a run for a worker to execute."""
    data = inputs(given)
    begin, after = None if at is None else moment(at), None if delay is None else lasting(delay)
    chosen = targets.one(target, example=given is not None)

    async def act(rt: Runtime) -> pages.RunObject:
        made = await rt.submit(chosen.skill, data, thread_id=thread, key=key, target=chosen.text, on_busy=on_busy, at=begin, delay=after)
        return await pages.run_object(rt, made.run_id, deduplicated=made.deduplicated)

    found = over(call, act, [chosen.skill], make=True, tried=act)
    if call.as_json:
        o.emit(found)
    else:
        pages.brief(call, found)
    return 0


@click.command()
@click.argument("target", nargs=-1)
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=10, show_default=True, metavar="N", help="How many runs to execute at the same time.")
@click.option("--queue", "queues", multiple=True, metavar="Q", help="A queue to work on; may be given more than once. [default: default]")
@click.option("--until-idle", is_flag=True, help="End when no run is due.")
@click.option("--upgrade", is_flag=True, help="Also take runs that began with another version of the skill's graph.")
@click.option("--log", "log_format", type=click.Choice(sorted(logs.FORMATS)), help="Log each decision to standard error, as text or as JSON lines.")
@click.option("--transports", metavar="TARGET", help="The transports that send outgoing messages: a mapping of types to transports. [default: that of pyproject.toml]")
@options(data=False, drives=True)
def worker(
    call: Call, target: tuple[str, ...], concurrency: int, queues: tuple[str, ...], until_idle: bool, upgrade: bool, log_format: str | None, transports: str | None
) -> int:
    """Execute due runs until stopped.

    It also fires the schedules of its skills and queues, and sends outgoing messages (intents).

    At the first SIGINT or SIGTERM it takes no new runs, and its runs continue until they wait or end. At the second one it releases them
    at once, so that another worker can continue them.
    """
    queues = bounds.names(queues, "queues")  # before anything is made or said
    named = targets.several(target)
    chosen = targets.skills(named)
    if named[0].text == targets.DEMO and not target:
        click.echo("no TARGET is given, and this project names no skills: this worker serves the example only", err=True)
    if log_format is not None:
        logs.show(log_format)

    async def act(rt: Runtime) -> None:
        stop = asyncio.Event()
        machine.settle()
        names = ", ".join(dict.fromkeys(s.id for s in chosen))
        click.echo(f"worker {rt.owner}: {names}, up to {o.count_of(concurrency, 'run')} at the same time", err=True)
        work = asyncio.ensure_future(
            rt.worker(queues=queues or ("default",), concurrency=concurrency, until_idle=until_idle, upgrade=upgrade, on_report=lambda report: report_rest(report, call), stop=stop)
        )

        ending, leaving = ENDING.get(), asyncio.Event()

        def release() -> None:
            ending.begin()
            work.cancel()
            leaving.set()

        async def end_idle() -> None:
            """Ends a worker that was told to end and drives no run: it waits only for the store, which may be away."""
            await stop.wait()
            while not work.done():
                await asyncio.wait({work}, timeout=END_SECONDS)
                if not rt.driving:
                    release()
                    return

        def hear(number: int) -> None:
            if stop.is_set():
                release()
                return
            again = "Ctrl-C again" if number == signal.SIGINT else "a second signal"
            click.echo(f"draining: no new runs are taken; the current ones continue until they wait or end ({again}: release them now)", err=True)
            stop.set()

        idle = asyncio.ensure_future(end_idle())
        idle.add_done_callback(machine.note_error)
        try:
            with handling(asyncio.get_running_loop(), hear):
                await either(work, leaving)
                await asyncio.wait({work}, timeout=ending.left)
        finally:
            idle.cancel()
            work.cancel()
        if not work.done():
            return  # the store does not answer: the leases expire by themselves
        if not work.cancelled():
            work.result()
        else:
            click.echo("released the runs that were in progress", err=True)

    over(call, act, chosen, make=True, transports=transports)
    return 0


def report_rest(report: Report, call: Call) -> None:
    """Prints a line for each run that came to rest, and for each schedule that could not be fired."""
    error = report.error
    name = f"schedule {o.inline(report.schedule_id)}" if report.schedule_id is not None else report.run_id or "the store"
    if isinstance(error, HoldfastError):
        click.echo(f"{name}  {o.mark('bad')} {o.inline(error.line())}")
    elif error is not None:
        click.echo(f"{name}  {o.mark('bad')} {o.inline(f'{type(error).__name__}: {error}')}")
    elif report.passed is not None:
        click.echo(f"{name}  {o.mark('warn')} {o.inline(f'no_worker_for: {report.passed.said} ({call.spell(report.passed.way_out(report.run_id))})')}")
    elif report.run is not None:
        why = f"  {o.inline(report.run.error.message, 200)}" if report.run.error is not None else ""
        click.echo(f"{report.run_id}  {o.inline(report.run.skill_id)}  {report.run.status}{why}")


@click.command()
@run_argument()
@click.argument("target", required=False)
@click.option("--acknowledge", metavar="X", help="For a failed run: its stop reason or latest checkpoint, to confirm that you have seen why it failed.")
@click.option("--force", is_flag=True, help="Do not ask the policies again; nothing else is forced.")
@click.option("--upgrade", is_flag=True, help="Resume even though the skill's graph has changed since the run began.")
@click.option("--no-wait", is_flag=True, help="Fail at once instead of waiting for the lease of a process whose state is unknown.")
@actor_option
@options(drives=True)
def resume(call: Call, run_id: str, target: str | None, acknowledge: str | None, force: bool, upgrade: bool, no_wait: bool, actor: str) -> int:
    """Resume a run where it stopped.

    It works for a run that has not begun, was answered, has failed, was canceled or interrupted, or whose process has
    died.
    """
    progress = progress_for(call)
    code = targets.several((target,) if target else ())  # before the event loop runs, because a module may run one of its own

    async def act(rt: Runtime) -> pages.RunObject:
        before = await rt.get(run_id)
        rt.add(*targets.skills(code))
        if before.skill_id not in {t.skill.id for t in code}:
            tell_unknown(call, before, target)
        going = rt.resume(run_id, actor=actor, acknowledge=acknowledge, force=force, upgrade=upgrade, wait=not no_wait)
        try:
            await watch(rt, run_id, going, progress, before.version)
        except NothingEligible as e:  # the answer lists the open waits (§7.1)
            e.hint = call.spell(e.hint)
            click.echo(o.inline(e.line()), err=True)
        except WorkspaceElsewhere as e:
            e.hint = "resume it where that folder is, named by [tool.holdfast] workspace in pyproject.toml or by $HOLDFAST_WORKSPACE"
            raise
        except FingerprintMismatch as e:
            seen = {} if acknowledge or before.status is not Status.FAILED else {"acknowledge": before.stop_reason or ""}
            e.hint = f'to let the new code continue such runs, declare migrates=("{before.fingerprint}",) in the skill; for this run only: {call.retype(run_id=run_id, upgrade=True, **seen)}'
            raise
        except AcknowledgeRequired as e:
            e.hint = f"after you have fixed the cause: {call.retype(run_id=run_id, acknowledge=before.stop_reason or '')}"
            raise
        return await pages.run_object(rt, run_id)

    return pages.finish(call, over(call, act))


@click.command()
@run_argument()
@click.argument("target", required=False)
@click.option("--from", "checkpoint", metavar="CP", help="The checkpoint to begin at. [default: the start]")
@click.option("--from-step", "step", metavar="S", help="Begin before this step: its number, or its node's name.")
@click.option("--effects", metavar="POLICY", help="use_recorded_result (the default), reexecute or require_human.")
@click.option("--reason", default="", metavar="R", help="Why; kept with the run.")
@click.option("--key", metavar="K", help="A request key: with the same key, the existing run is returned.")
@actor_option
@options(drives=True)
def replay(
    call: Call, run_id: str, target: str | None, checkpoint: str | None, step: str | None, effects: str | None, reason: str, key: str | None, actor: str
) -> int:
    """Repeat a run as a new run, with its recorded results.

    The original run stays as it is.
    """

    async def make(rt: Runtime) -> Run[Any]:
        return await rt.replay(run_id, _full(run_id, checkpoint), _number(step), effects, actor=actor, reason=reason, key=key, drive=False)

    return _make_another(call, run_id, target, "replay", make)


@click.command()
@run_argument()
@click.argument("target", required=False)
@click.option("--from", "checkpoint", metavar="CP", help="The checkpoint to begin at. [default: with --set, where the run last wrote those channels; else its last checkpoint with work left]")
@click.option("--from-step", "step", metavar="S", help="Begin before this step: its number, or its node's name.")
@click.option("--input", "given", metavar="JSON|@FILE|-", help="Another input; the fork then begins at the start.")
@click.option("--set", "edits", multiple=True, metavar="CH=JSON", help="A channel's new value; may be given more than once.")
@click.option("--option", "more", multiple=True, metavar="K=V", help="Another option of the new run: tags, priority, queue, lane, …")
@click.option("--effects", metavar="POLICY", help="use_recorded_result (the default), reexecute or require_human.")
@click.option("--reason", default="", metavar="R", help="Why; kept with the run.")
@click.option("--key", metavar="K", help="A request key: with the same key, the existing run is returned.")
@actor_option
@options(drives=True)
def fork(
    call: Call,
    run_id: str,
    target: str | None,
    checkpoint: str | None,
    step: str | None,
    given: str | None,
    edits: tuple[str, ...],
    more: tuple[str, ...],
    effects: str | None,
    reason: str,
    key: str | None,
    actor: str,
) -> int:
    """Start a new run from a checkpoint of a run.

    The original run stays as it is.
    """
    values = {n: _value(n, v) for n, v in (_pair(e, "--set CH=JSON") for e in edits)}
    other = inputs(given) if given is not None else None
    extra: dict[str, Any] = {n: _when(v) if n == "at" else _json_or_text(v) for n, v in (_pair(e, "--option K=V") for e in more)}

    async def make(rt: Runtime) -> Run[Any]:
        place = _full(run_id, checkpoint), _number(step)
        return await rt.fork(
            run_id, *place, set=values or None, inputs=other, effects=effects, reason=reason, actor=actor, key=key, drive=False, **extra
        )

    return _make_another(call, run_id, target, "fork", make)


def _when(text: str) -> dt.datetime:
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"at={text} is not a time", hint="at=2026-01-31T09:00:00+00:00") from None


def _make_another(call: Call, run_id: str, target: str | None, verb: str, make: Callable[[Runtime], Awaitable[Run[Any]]]) -> int:
    """Makes a run out of another and drives it until it rests."""
    progress = progress_for(call)
    code = targets.several((target,) if target else ())

    async def act(rt: Runtime) -> pages.RunObject:
        source = await rt.get(run_id)
        rt.add(*targets.skills(code))
        if source.skill_id not in {t.skill.id for t in code}:
            tell_unknown(call, source, target)
        made = await make(rt)
        if progress is not None and not made.deduplicated:
            click.echo(f"{made.skill_id} {made.run_id}, a {verb} of {run_id}", err=True)
        later = made.not_before is not None and made.not_before > when(rt.store.now())
        if made.status not in TERMINAL and not made.waits and not later:
            await watch(rt, made.run_id, rt.resume(made.run_id, actor="system"), progress)
        return await pages.run_object(rt, made.run_id, deduplicated=made.deduplicated)

    return pages.finish(call, over(call, act))


def _full(run_id: str, checkpoint: str | None) -> str | None:
    """Returns a checkpoint's id, which may be given by its end alone (c12)."""
    return None if checkpoint is None else checkpoint if "." in checkpoint else f"{run_id}.{checkpoint}"


def _number(step: str | None) -> int | str | None:
    return int(step) if step is not None and step.isascii() and step.isdigit() else step


def _pair(text: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidInput(f"{form} is expected, not {text!r}", hint="such as: --set draft='\"Better\"'")
    return name, value


def _value(name: str, text: str) -> Any:
    """Returns a channel's new value: JSON, or text if it does not begin like JSON."""
    return parse(text, f"--set {name}") if text[:1] in ("{", "[", '"', "@") or text == "-" else _json_or_text(text)


def _json_or_text(text: str) -> Any:
    try:
        return json_of(text)
    except ValueError as e:
        if "twice" in str(e):
            raise InvalidInput(f"{text!r}: {e}", field="option") from None
        return text


def tell_unknown(call: Call, run: Run[Any], named: str | None) -> None:
    """Raises SkillUnknown for a run whose code is not here. Its hint is the command with the TARGET that the run was started with; nothing is imported (§14.3)."""
    where = f"in {named}" if named else "among this project's skills"
    best = run.target if run.target and run.target != named else YOUR_FILE
    raise SkillUnknown(f"the skill {run.skill_id!r} of {run.run_id} is not {where}", hint=f"name the file that holds it: {call.retype(run_id=run.run_id, target=best)}")


COMMANDS = (run, submit, worker, resume, replay, fork)
