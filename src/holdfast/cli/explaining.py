"""``explain``: what happened to a run, why it is where it is, and what would make it continue."""

from __future__ import annotations

import os
from pathlib import Path

import click

from holdfast.cli import output as o
from holdfast.cli.session import Call, options, over, run_argument
from holdfast.runtime import Runtime


@click.command()
@run_argument()
@options()
def explain(call: Call, run_id: str) -> int:
    """Explain a run: what happened, and what to do next.

    A few sentences made from the run's record, with the commands to type. The record itself is in show and events.
    """

    async def act(rt: Runtime) -> dict[str, object]:
        return await rt.explain(run_id)

    found = over(call, act)
    found = {**found, "next": [{**advice, "text": call.spell(advice["text"]), "command": call.spell(advice["command"])} for advice in _advice(found["next"])]}
    if call.as_json:
        o.emit(found)
        return 0
    here = f"{Path.cwd()}{os.sep}"
    o.head(f"{found['run_id']}")
    for line in _texts(found["happened"]):
        o.prose(line.replace(here, ""), first=f"  {o.mark('dot')} ", indent="    ")
    click.echo()
    o.prose(str(found["why"]).replace(here, ""), first="  ", indent="  ")
    click.echo()
    for advice in _advice(found["next"]):
        o.prose(advice["text"], first=f"  {o.mark('go')} ", indent="    ")
        if advice["command"]:
            click.echo(f"      {o.inline(advice['command'])}")
    return 0


def _texts(value: object) -> list[str]:
    return [str(line) for line in value] if isinstance(value, list | tuple) else []


def _advice(value: object) -> list[dict[str, str]]:
    return [dict(line) for line in value] if isinstance(value, list | tuple) else []


COMMANDS = (explain,)
