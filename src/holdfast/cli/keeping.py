"""Commands that keep a store healthy: check, migrate, export, import, prune."""

from __future__ import annotations

import pathlib

import click

from holdfast.cli import output as o
from holdfast.cli import pages
from holdfast.cli.session import Call, actor_option, options, over, run_argument, there
from holdfast.cli.times import lasting
from holdfast.core import describe
from holdfast.core.errors import HoldfastError
from holdfast.core.jsons import json_of
from holdfast.ports import Pruned, RunFilter
from holdfast.runtime import Runtime


@click.command()
@run_argument(required=False)
@options()
def check(call: Call, run_id: str | None) -> int:
    """Report what is wrong with a run, or with all runs.

    It checks the store too, and writes nothing.

    Exit code 0 if there are no errors (warnings are allowed), else 1.
    """

    if run_id is None:
        there(call)
    found = over(call, lambda rt: rt.check(run_id), long="checking")
    shown = [describe.plain(describe.problem(p)) for p in found]
    if call.as_json:
        o.emit({"ok": found.ok, "runs": found.runs, "events": found.events, "left_out": found.left_out, "run_id": run_id, "problems": shown})
        return 0 if found.ok else 1
    pages.problem_lines(call, shown)
    if found.left_out:
        click.echo(f"  and {found.left_out} more")
    total = len(found) + found.left_out
    runs, problems = ("1 run" if found.runs == 1 else f"{found.runs} runs"), ("1 problem" if total == 1 else f"{total} problems")
    click.echo(f"{o.mark(pages.mark_of(shown))} {runs} and {found.events} events checked, {problems}")
    return 0 if found.ok else 1


@click.command()
@options()
def migrate(call: Call) -> int:
    """Bring the store's schema up to this release.

    It creates the store if there is none.
    """
    before = call.schema()

    async def act(rt: Runtime) -> None:
        return None

    over(call, act, make=True, long="migrating")
    after = call.schema()
    if call.as_json:
        o.emit({"store": call.shown, "before": before, "after": after, "changed": before != after})
    elif after is None:
        click.echo(f"{call.shown} has no schema of its own: nothing to do")
    elif before == after:
        click.echo(f"{call.shown} has schema {after}: nothing to do")
    elif before is None:
        click.echo(f"{call.shown} is created with schema {after}")
    else:
        click.echo(f"{call.shown}: schema {before} is now {after}")
    return 0


@click.command()
@run_argument()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False))
@options()
def export(call: Call, run_id: str, folder: str) -> int:
    """Write a run into DIR, as files that people can read.

    DIR is a workspace: every command takes it with --workspace DIR.
    """
    written = over(call, lambda rt: rt.export(run_id, folder), long="exporting")
    told = pathlib.Path(written, "encrypted.json")
    keys = json_of(told.read_text("utf-8"))["keys"] if told.is_file() else []
    if call.as_json:
        o.emit({"run_id": run_id, "directory": written, "encrypted_under": keys})
    else:
        under = f"; payloads are encrypted under {', '.join(keys)}" if keys else ""
        click.echo(f"{o.mark('ok')} {written}{under}")
    return 0


@click.command("import")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False))
@options()
def import_(call: Call, folder: str) -> int:
    """Import the runs that `export` wrote.

    Their events stay the same byte for byte. Runs that the store already holds are not changed.
    """

    async def find(rt: Runtime) -> None:
        """Refuses a folder from which no run at all can be imported."""
        try:
            await rt.import_runs(folder)
        except HoldfastError:
            if not await rt.store.runs(RunFilter(limit=1)):
                raise

    taken, there = over(call, lambda rt: rt.import_runs(folder), make=True, long="importing", tried=find)
    if call.as_json:
        o.emit({"imported": taken, "present": there})
    else:
        for run_id in taken:
            click.echo(f"{o.mark('ok')} {run_id}")
        for run_id in there:
            click.echo(f"{o.mark('skip')} {run_id} is here already")
        if not taken and not there:
            click.echo(f"no runs in {folder}")
    return 0


@click.command()
@click.option("--older-than", "age", metavar="T", required=True, help="How long ago they ended: 90s, 15m, 12h, 30d, 4w.")
@click.option("--dry-run", is_flag=True, help="Only show which runs would be deleted.")
@actor_option
@options()
def prune(call: Call, age: str, dry_run: bool, actor: str) -> int:
    """Delete old runs with their replays, forks and children.

    A lineage is a run with its replays, forks and children. It is deleted, with all its records, only if all its runs ended longer
    ago than --older-than.

    Effects with keys that other runs share stay recorded. Anyone who asks for a deleted run is told when it was deleted, and by whom.
    """
    length = lasting(age)
    there(call)
    done: Pruned = over(call, lambda rt: rt.prune(length, dry=dry_run, actor=actor), long="pruning")
    if call.as_json:
        o.emit({"dry_run": dry_run, "pruned": list(done.run_ids), "kept": done.kept})
        return 0
    for root, why in done.kept.items():
        click.echo(f"{o.mark('skip')} {root} is kept: {why}")
    word = "would be deleted" if dry_run else "deleted"
    click.echo(f"{o.mark('ok')} {len(done.run_ids)} run{'' if len(done.run_ids) == 1 else 's'} {word}")
    return 0


COMMANDS = (check, migrate, export, import_, prune)
