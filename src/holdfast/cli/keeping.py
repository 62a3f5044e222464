"""Commands that keep a store healthy: check, migrate."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli import output as o
from holdfast.cli import pages
from holdfast.cli.session import Call, options, over
from holdfast.core.consistency import Problem, ok
from holdfast.core.errors import HoldfastError
from holdfast.ports import RunFilter
from holdfast.runtime import Runtime

PAGE = 500


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@options()
def check(call: Call, run_id: str | None) -> int:
    """Name what is wrong with a run, or with all runs and the store. Writes nothing.

    Exit code 0 if there is no error (warnings may be), else 1.
    """

    async def act(rt: Runtime) -> tuple[int, list[Problem]]:
        if run_id is not None:
            return 1, await pages.problems(rt, run_id)
        found, looked = list(await rt.store.verify()), 0
        before: str | None = None
        while True:
            try:
                page = await rt.store.runs(RunFilter(before=before, limit=PAGE))
            except HoldfastError as e:
                found.append(Problem(e.code, "error", e.message, e.hint))
                break
            for run, _ in page:
                found += await pages.problems(rt, run.run_id)
            looked += len(page)
            if len(page) < PAGE:
                break
            before = page[-1][0].run_id
        return looked, found

    looked, found = over(call, act)
    good = ok(found)
    shown: list[dict[str, Any]] = [pages.problem_view(p) for p in found]
    if call.as_json:
        o.emit({"ok": good, "runs": looked, "run_id": run_id, "problems": shown})
    else:
        pages.problem_lines(shown)
        runs = "1 run" if looked == 1 else f"{looked} runs"
        click.echo(f"{o.mark('ok' if good else 'bad')} {runs} checked, {len(shown)} problem{'' if len(shown) == 1 else 's'}")
    return 0 if good else 1


@click.command()
@options()
def migrate(call: Call) -> int:
    """Bring the store's schema up to this release; make the store if there is none."""
    before = call.schema()

    async def act(rt: Runtime) -> None:
        return None

    over(call, act, make=True)
    after = call.schema()
    if call.as_json:
        o.emit({"store": call.store, "before": before, "after": after, "changed": before != after})
    elif before == after:
        click.echo(f"{call.store} has schema {after}: nothing to do")
    else:
        click.echo(f"{call.store}: schema {before} is now {after}")
    return 0


COMMANDS = (check, migrate)
