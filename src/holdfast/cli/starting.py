"""``holdfast new``: a skill to start from, with its test."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from string import Template

import click

from holdfast.cli import output as o
from holdfast.cli.session import Call, options
from holdfast.core.errors import HoldfastError, UsageError

SKILL = Template('''"""$name: a skill to start from."""

from holdfast import Context, Graph, State


class Greeting(State):
    name: str
    text: str = ""


graph = Graph("$name", Greeting, version="1")


def compose(name: str) -> str:
    """Plain code: call a model, a database, a service here."""
    return f"Hello, {name}!"


@graph.node(start=True)
async def greet(state: Greeting, ctx: Context) -> dict[str, str]:
    text = await ctx.step(compose, state.name)  # recorded: after a crash it is not composed again
    return {"text": text}


@graph.node(after="greet")
async def ask(state: Greeting, ctx: Context) -> None:
    if state.name != "World":
        await ctx.approve("Send this greeting?", show=state.text)  # the run waits until somebody has answered
''')

TEST = Template('''"""The test of $name."""

import pytest
from $name import graph

from holdfast import RunWaiting, run


def test_it_greets_the_world() -> None:
    assert run(graph, {"name": "World"}, store="memory:").text == "Hello, World!"


def test_it_asks_before_it_greets_anybody_else() -> None:
    with pytest.raises(RunWaiting, match="Send this greeting"):
        run(graph, {"name": "Ada"}, store="memory:")
''')


@click.command()
@click.argument("name")
@options(data=True)
def new(call: Call, name: str) -> int:
    """Write a skill to start from, with its test.

    It writes NAME.py and test_NAME.py.
    """
    path = Path(name)
    word = path.name.removesuffix(".py").replace("-", "_")
    if not re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII) or keyword.iskeyword(word):
        raise UsageError(f"{name!r} cannot be a module's name", hint="letters, digits and _, such as: hello", code="bad_name")
    if word in sys.stdlib_module_names or word == "holdfast":
        raise UsageError(f"{word!r} would hide a module that Python needs", hint="choose another name", code="bad_name")
    skill, test = path.parent / f"{word}.py", path.parent / f"test_{word}.py"
    for there in (skill, test):
        if there.exists():
            raise UsageError(f"{there} exists already", hint="choose another name; nothing was written", code="file_exists")
    try:
        with skill.open("x", encoding="utf-8") as file:
            file.write(SKILL.substitute(name=word))
        with test.open("x", encoding="utf-8") as file:
            file.write(TEST.substitute(name=word))
    except OSError as e:
        raise HoldfastError(f"{skill} cannot be written: {e.strerror}", hint="choose a folder that exists and may be written to", code="not_written") from None
    steps = [call.line("run", str(skill), "--input", '{"name": "Ada"}'), f"pytest {test}"]
    if call.as_json:
        o.emit({"skill": str(skill), "test": str(test), "next": steps})
        return 0
    click.echo(f"{o.mark('ok')} {skill} and {test}")
    for line in steps:
        click.echo(f"  {o.mark('go')} {line}")
    return 0


COMMANDS = (new,)
