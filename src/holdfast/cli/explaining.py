"""``explain``: what happened to a run, why it stands where it stands, and what would move it."""

from __future__ import annotations

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
    if call.as_json:
        o.emit(found)
        return 0
    o.head(f"{found['run_id']}")
    for line in _texts(found["happened"]):
        click.echo(f"  {o.mark('dot')} {o.inline(line)}")
    click.echo()
    o.block(str(found["why"]), indent="  ")
    click.echo()
    for advice in _advice(found["next"]):
        click.echo(f"  {o.mark('go')} {o.inline(advice['text'])}")
        if advice["command"]:
            click.echo(f"      {o.inline(advice['command'])}")
    return 0


def _texts(value: object) -> list[str]:
    return [str(line) for line in value] if isinstance(value, list | tuple) else []


def _advice(value: object) -> list[dict[str, str]]:
    return [dict(line) for line in value] if isinstance(value, list | tuple) else []


COMMANDS = (explain,)
