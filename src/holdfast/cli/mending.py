"""Commands for a store that went wrong: repair-state, doctor, backup, restore."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import click
import msgspec

from holdfast.cli import output as o
from holdfast.cli import pages
from holdfast.cli.session import Call, actor_option, options, over, run_argument, there
from holdfast.core import describe
from holdfast.core.errors import Conflict, StoreCorrupt, UnsupportedFormat, UsageError
from holdfast.core.run import Run
from holdfast.core.status import Status
from holdfast.engine.keep.check import Checker, Findings
from holdfast.engine.keep.repair import Repair
from holdfast.ports import RunFilter, Store, offers_health, offers_reindexing, offers_vouching
from holdfast.runtime import Runtime
from holdfast.stores import open_url
from holdfast.stores.sqlite.keeping import check_file, set_aside


class File(Protocol):
    """A store that is a file of its own."""

    async def backup(self, path: str) -> None: ...
    async def restore(self, path: str) -> None: ...


def _file(store: Store, what: str) -> File:
    """Returns the store as a file.

    Raises:
        UsageError: the store is no file; its own tools do this.
    """
    if not hasattr(store, what):
        hint = "copy its folder while nothing writes to it" if store.url.startswith("workspace:") else "use the database's own tools"
        raise UsageError(f"{store.url} is not a file: holdfast {what} works on SQLite files only", hint=hint)
    return cast(File, store)


@click.command("repair-state")
@run_argument()
@click.option("--apply", is_flag=True, help="Write the repair. Without this it only shows what it would do.")
@actor_option
@options()
def repair_state(call: Call, run_id: str, apply: bool, actor: str) -> int:
    """Repair a run's row as far as that is safe.

    It never resumes a run and never invents a decision.

    The exit code is 1 only if a write failed. It is 0 in all other cases: also after a dry run, if there was nothing to do, and if
    the repair was refused (the report says why).
    """

    async def act(rt: Runtime) -> Repair:
        try:
            return await rt.repair_run_state(run_id, apply, actor=actor)
        except Conflict as e:  # somebody changed the run between the check and the write: a refusal like any other
            return Repair(run_id=run_id, dry_run=not apply, refused=e.code, reason=e.message)

    report = over(call, act)
    if call.as_json:
        o.emit(_report(report))
        return 0
    _tell(call, report)
    return 0


def _report(report: Repair) -> dict[str, Any]:
    actions = [msgspec.structs.asdict(a) for a in report.actions]
    return {**msgspec.structs.asdict(report), "problems": [describe.plain(describe.problem(p)) for p in report.problems], "actions": actions}


def _tell(call: Call, report: Repair) -> None:
    pages.problem_lines(call, [describe.plain(describe.problem(p)) for p in report.problems])
    for action in report.actions:
        click.echo(f"  {o.mark('ok' if report.applied else 'go')} {action.code}: {o.inline(action.does)}")
    word = "repaired" if report.applied else f"refused ({report.refused})" if report.refused else "nothing written"
    click.echo(f"{report.run_id}  {o.paint(word, bold=True)}: {o.inline(report.reason)}")
    if report.backup:
        click.echo(f"  the row as it was: {o.inline(report.backup)}")


_ROWLESS, _OF_RECORDS = "run_row_missing", "_record_"
_OF_INDEXES = ("index_damaged", StoreCorrupt.code)


async def mend(rt: Runtime, *, acknowledge: bool = False, rebuild: bool = False, actor: str = "operator") -> tuple[list[Repair], Findings, list[Run]]:
    """Does the work of ``doctor``. Returns the repairs, what is wrong at the end, and the runs that are due while no worker is running."""
    if acknowledge:
        await rt.acknowledge()
    done = []
    if rebuild:
        found = await rt.check()
        if any(p.code in _OF_INDEXES for p in found) and offers_reindexing(rt.store):
            with contextlib.suppress(StoreCorrupt):  # the pages of a table are damaged: the check below reports it
                await rt.store.reindex()
            found = await rt.check()
        if rowless := [p.run_id for p in found if p.code == _ROWLESS and p.run_id is not None]:  # what seems to be lost of these is there again with their rows
            done += [await rt.repair_run_state(run_id, True, actor=actor, rebuild=True, accept=acknowledge) for run_id in rowless]
            found = await rt.check()
        if acknowledge and any(_OF_RECORDS in p.code for p in found) and offers_vouching(rt.store):
            await rt.store.vouch_anew()
            found = await rt.check()
        for run_id in dict.fromkeys(p.run_id for p in found if p.run_id is not None):
            done.append(await rt.repair_run_state(run_id, True, actor=actor, rebuild=True, accept=acknowledge))
    left = await rt.check()
    if offers_health(rt.store):
        left.note(await rt.store.health())
    return done, left, await Checker(rt.store).idle()


@click.command()
@click.option("--acknowledge", is_flag=True, help="Accept the log as it is. Processes that opened the store before are refused from then on.")
@click.option("--rebuild", is_flag=True, help="Rebuild rows that differ from their events, and rebuild damaged indexes from their tables.")
@actor_option
@options()
def doctor(call: Call, acknowledge: bool, rebuild: bool, actor: str) -> int:
    """Check the store, repair it if asked to, and say what to do.

    It repairs only with --acknowledge or --rebuild. With both it also accepts that records outside the log are
    lost or altered: no check reports them from then on.

    Exit code 0 if there are no errors at the end (warnings are allowed), else 1.
    """

    there(call)

    async def act(rt: Runtime) -> tuple[tuple[list[Repair], Findings, list[Run]], describe.QueuedView | None, int]:
        found = await mend(rt, acknowledge=acknowledge, rebuild=rebuild, actor=actor)
        try:
            return found, await rt.look.count_queued(), len(await rt.store.runs(RunFilter(statuses=(Status.FAILED,), limit=MOST_FAILED)))
        except StoreCorrupt:  # the problems tell what is wrong
            return found, None, 0

    (done, left, due), outbox, failed = over(call, act, long="examining")
    shown = [describe.plain(describe.problem(p)) for p in left]
    idle = len(due)
    start = call.line("worker", *dict.fromkeys(word for run in due for word in call.code(run.target)))
    if call.as_json:
        o.emit({"ok": left.ok, "runs": left.runs, "acknowledged": acknowledge, "repairs": [_report(r) for r in done], "problems": shown, "due_without_worker": idle, "to_do": [call.spell(step) for step in to_do(shown, idle, start)]})
        return 0 if left.ok else 1
    if acknowledge:
        click.echo(f"{o.mark('ok')} acknowledged: the store accepts writes again; processes that opened it before are refused")
    for report in done:
        _tell(call, report)
    pages.problem_lines(call, shown)
    if idle:
        click.echo(f"{o.mark('warn')} no worker is running, and {o.count_of(idle, 'run')} {'is' if idle == 1 else 'are'} due")
    if outbox is not None and outbox.queued:
        _tell_queued(call, outbox)
    found = o.count_of(len(shown), "problem") if shown else "the store is intact" if failed else "nothing is wrong"
    click.echo(f"{o.mark(pages.mark_of(shown))} {found} ({o.count_of(left.runs, 'run')})")
    if failed:
        more = " at least" if failed == MOST_FAILED else ""
        click.echo(f"{o.mark('warn')} {o.count_of(failed, 'run')} failed{more}: {call.line('runs', '--condition', 'failed')}")
    if steps := to_do(shown, idle, start):
        o.head("what to do, in this order")
        for number, step in enumerate(steps, 1):
            o.prose(call.spell(step.removesuffix(start)).rstrip(), first=f"  {number}. ", indent="     ")
            if step.endswith(start):
                click.echo(f"     {o.inline(start)}")
    return 0 if left.ok else 1


MOST_STEPS = 20
MOST_FAILED = 500


def to_do(problems: Sequence[Mapping[str, Any]], idle: int, start: str) -> list[str]:
    """Returns what to do about the problems, the most urgent first: missing rows of runs, because their other records then seem to be missing too; errors of the
    whole store, errors of single runs, warnings. Last come the due runs, which the command ``start`` drives."""
    order = sorted(problems, key=lambda p: (p["severity"] != "error", p["code"] != _ROWLESS, p["run_id"] is not None))
    steps: dict[tuple[str, str], list[str]] = {}
    for p in order:
        steps.setdefault((p["code"], p["repair_hint"] or p["message"]), []).append(p["run_id"] or "")
    said = []
    for (code, hint), runs in steps.items():
        named = [r for r in runs if r]
        about = f" (run {named[0]}{f' and {len(named) - 1} more' if len(named) > 1 else ''})" if named else ""
        said.append(f"{code}{about}: {hint}")
    if idle:
        said.append(f"{o.count_of(idle, 'run')} {'is' if idle == 1 else 'are'} due and no worker is running. Start one: {start}")
    return [*said[:MOST_STEPS], *([f"Then run holdfast doctor again: {len(said) - MOST_STEPS} more"] if len(said) > MOST_STEPS else [])]


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@options()
def backup(call: Call, file: Path) -> int:
    """Copy the store to FILE while it is in use."""
    _file(open_url(call.store), "backup")
    there(call)
    over(call, lambda rt: _file(rt.store, "backup").backup(str(file)), long="copying")
    if call.as_json:
        o.emit({"file": str(file), "bytes": file.stat().st_size})
    else:
        click.echo(f"{o.mark('ok')} {file}, {o.size(file.stat().st_size)}")
    return 0


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@options()
def restore(call: Call, file: Path) -> int:
    """Replace the store with a backup.

    Processes that opened the old store are refused from then on. The files of a damaged store are kept beside it under another name.
    """
    kept: str | None = None
    _file(open_url(call.store), "restore")
    if call.missing is not None:  # a file that cannot be restored must not make a store
        check_file(str(file))

    async def act(rt: Runtime) -> int:
        await _file(rt.store, "restore").restore(str(file))
        return (await rt.check()).runs

    try:
        runs = over(call, act, make=True, long="restoring")
    except (StoreCorrupt, UnsupportedFormat):
        if call.file is None:
            raise
        kept = set_aside(str(call.file), str(file))
        runs = over(call, act, make=True, long="restoring")
    if call.as_json:
        o.emit({"file": str(file), "runs": runs, **({"kept": kept} if kept else {})})
    else:
        click.echo(f"{o.mark('ok')} restored from {file}: {o.count_of(runs, 'run')}")
    if kept is not None and not call.as_json:
        click.echo(f"the damaged store is kept as {kept}")
    return 0


def _tell_queued(call: Call, outbox: describe.QueuedView) -> None:
    """Prints what waits to be sent, and the command that lists it."""
    lacking = f"; no running process sends {', '.join(o.inline(t, 40) for t in outbox.no_transport_for)}" if outbox.no_transport_for else ""
    since = o.ago(outbox.oldest_at, dt.datetime.now(dt.UTC))
    click.echo(f"{o.mark('warn' if lacking else 'dot')} {o.count_of(outbox.queued, 'outgoing message')} queued, the oldest {since}{lacking}:")
    click.echo(f"    {call.line('outbox', '--state', 'queued')}")


COMMANDS = (repair_state, doctor, backup, restore)
