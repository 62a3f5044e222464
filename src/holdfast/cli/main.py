"""``holdfast``: the command line. Each group of commands has a module; this one collects their commands."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO, cast

import click

import holdfast
from holdfast.cli import (
    deciding,
    driving,
    explaining,
    keeping,
    leaving,
    looking,
    mending,
    operating,
    output,
    scheduling,
    serving,
    showcase,
    starting,
)
from holdfast.cli.session import DEBUG, Commands

HELP = """Durable runs: graphs and flows that survive crashes, restarts and long waits.

\b
  holdfast demo                          see it work, on this git repository
  holdfast new hello                     a skill to start from, with its test
  holdfast run hello.py --input '{"name": "Ada"}'
                                         run it, and watch its progress
  holdfast runs, show, events            list and inspect runs
  holdfast approve, resume, cancel       decide and resume

TARGET is package.module:name or path/to/file.py[:name]. The store is --store URL, else $HOLDFAST_STORE, else
.holdfast/runs.db here.

\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found,
4 waiting (for a person, a signal, a time or its turn),
5 canceled, 6 refused.
"""


@click.group(cls=Commands, help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(holdfast.__version__, prog_name="holdfast")
@click.option("--store", metavar="URL", help="The store that the command uses.")
@click.option("--debug", is_flag=True, help="On an error, show the traceback too.")
@click.pass_context
def cli(ctx: click.Context, store: str | None, debug: bool) -> None:
    ctx.meta[DEBUG] = debug


SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Begin": (*showcase.COMMANDS, *starting.COMMANDS),
    "Run and resume": driving.COMMANDS,
    "Look": (*looking.COMMANDS, *explaining.COMMANDS),
    "Decide": deciding.COMMANDS,
    "Operate": (*scheduling.COMMANDS, *operating.COMMANDS),
    "Serve": serving.COMMANDS,
    "Keep healthy": (*keeping.COMMANDS, *mending.COMMANDS),
}
for title, commands in SECTIONS.items():
    for command in commands:
        cli.add_command(command)
        cli.sections.setdefault(title, []).append(command)


def open_closed_descriptors() -> None:
    """Opens those of standard input, output and error that are closed, as the null device. Otherwise the next file that is opened gets the number, such as one
    of the event loop's or of the store's, and what a child process prints goes there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)


def main() -> None:
    """The entry point of ``holdfast`` and ``python -m holdfast``."""
    open_closed_descriptors()
    # Python has None instead of a stream whose descriptor is closed.
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: SIM115
    out, err = (stream or open(os.devnull, "w", encoding="utf-8") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (out, err):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without some sign is no reason to fail
    sys.stdout, sys.stderr = cast(TextIO, output.Answered(out)), cast(TextIO, output.Told(err))
    try:
        cli.main(args=sys.argv[1:], prog_name="holdfast")
    except SystemExit as e:
        leaving.limit_exit(e.code if isinstance(e.code, int) else 1)
        raise
    finally:
        sys.stdout, sys.stderr = out, err  # Python flushes these when it ends
