"""What random searches share: each plays one seed after the other, and is a command with the same options."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.engine.outside import House

Tell = Callable[[int], str]
"""Plays a seed; returns what is wrong, empty if nothing is."""


def in_a_house(play: Callable[[int, House], Awaitable[str]]) -> Tell:
    """Gives each seed an event loop, a folder and a house of its own."""

    async def alone(seed: int) -> str:
        with tempfile.TemporaryDirectory() as folder:
            house = House("memory", Path(folder))
            try:
                return await play(seed, house)
            finally:
                await house.close()

    return lambda seed: asyncio.run(alone(seed))


def search(seeds: range, until: float, tell: Tell) -> tuple[int, list[str]]:
    """Plays seeds until the time ``until`` (``time.monotonic``) has come; returns how many were played, and what is wrong."""
    done, wrong = 0, list[str]()
    for seed in seeds:
        if time.monotonic() > until:
            break
        try:
            told = tell(seed)
        except Exception as e:
            told = "".join(traceback.format_exception(e))
        done += 1
        wrong += [f"seed {seed}: {told}"] if told else []
    return done, wrong


def make_parser(module: str, about: str | None, *, seeds: int, takes: str) -> argparse.ArgumentParser:
    """Makes the options of a search. ``about``: the docstring of its module; ``takes``: the time for so many ``seeds``."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=(about or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=seeds, help=f"how many to play ({seeds}: {takes})")
    parser.add_argument("--first", type=int, default=1000, help="the first of them (1000; those before are in the default run)")
    parser.add_argument("--budget", type=float, default=10.0, metavar="MINUTES", help="after which no more is begun (10)")
    return parser


def report(options: argparse.Namespace, tell: Tell) -> int:
    """Plays the seeds that the options name, and prints what is wrong; returns 1 if anything is."""
    done, wrong = search(range(options.first, options.first + options.seeds), time.monotonic() + 60 * options.budget, tell)
    sys.stdout.write("".join(f"{told}\n" for told in wrong))
    sys.stdout.write(f"{options.seeds} seeds asked from {options.first}: {done} played, {options.seeds - done} skipped, {len(wrong)} wrong\n")
    return 1 if wrong else 0
