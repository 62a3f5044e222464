"""Commands that keep a store healthy: check, migrate."""

from __future__ import annotations

import click

from holdfast.cli import output as o
from holdfast.cli import pages
from holdfast.cli.session import Call, options, over
from holdfast.runtime import Runtime


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@options()
def check(call: Call, run_id: str | None) -> int:
    """Name what is wrong with a run, or with all.

    It looks at the store too, and writes nothing.

    Exit code 0 if there is no error (warnings may be), else 1.
    """

    found = over(call, lambda rt: rt.check(run_id))
    shown = [pages.problem_view(p) for p in found]
    if call.as_json:
        o.emit({"ok": found.ok, "runs": found.runs, "events": found.events, "left_out": found.left_out, "run_id": run_id, "problems": shown})
        return 0 if found.ok else 1
    pages.problem_lines(shown)
    if found.left_out:
        click.echo(f"  and {found.left_out} more")
    total = len(found) + found.left_out
    runs, problems = ("1 run" if found.runs == 1 else f"{found.runs} runs"), ("1 problem" if total == 1 else f"{total} problems")
    click.echo(f"{o.mark('ok' if found.ok else 'bad')} {runs} and {found.events} events checked, {problems}")
    return 0 if found.ok else 1


@click.command()
@options()
def migrate(call: Call) -> int:
    """Bring the store's schema up to this release.

    Makes the store if there is none.
    """
    before = call.schema()

    async def act(rt: Runtime) -> None:
        return None

    over(call, act, make=True)
    after = call.schema()
    if call.as_json:
        o.emit({"store": call.store, "before": before, "after": after, "changed": before != after})
    elif after is None:
        click.echo(f"{call.store} has no schema of its own: nothing to do")
    elif before == after:
        click.echo(f"{call.store} has schema {after}: nothing to do")
    else:
        click.echo(f"{call.store}: schema {before} is now {after}")
    return 0


COMMANDS = (check, migrate)
