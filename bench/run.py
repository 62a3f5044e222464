"""Runs our cases beside the peers', in rounds, and prints the tables: ``uv run python bench/run.py``.

Each case runs in a process of its own. Within a round everybody takes a turn at each case, in an order that changes, so
that a busy minute of the machine falls on all alike; ratios are taken within a round and never across rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from common import HERE, HOME
from record import Recorder
from tables import GOALS, GOALS_OVER_A_SERVER, report

PEERS = ("langgraph", "dbos", "absurd")
DISTRIBUTIONS = {"absurd": "absurd-sdk"}
"""Where a peer's package is called otherwise than it is."""
CASES: dict[str, dict[str, tuple[str, ...]]] = {  # case -> who -> the arguments of that party's script
    "sync": {"limit": ("sync",)},
    "lin": {"limit": ("lin",), "ours": ("lin",), "langgraph": ("lin",), "dbos": ("lin",)},
    "lin-sync": {"langgraph": ("lin-sync",)},
    "conc": {"ours": ("conc",), "langgraph": ("conc",), "dbos": ("conc",)},
    "conc-long": {"limit": ("conc-long",), "ours": ("conc-long",)},
    "fan": {"ours": ("fan",), "langgraph": ("fan",), "dbos": ("fan",)},
    "wf": {"ours": ("wf",), "dbos": ("wf",)},
    "effect": {"ours": ("effect",)},
    "turns": {"ours": ("turns",), "langgraph": ("turns",)},
    "delta": {"ours": ("delta",)},
    "resume": {"ours": ("resume",)},
    "noop": {"ours": ("noop",), "dbos": ("noop",)},
    "noop-rested": {"ours": ("noop-rested",)},
    "cold": {"ours": ("cold",)},
    "workers": {"ours": ("workers",)},
    "signal": {"ours": ("signal",), "dbos": ("signal",)},
    "approval": {"ours": ("approval",)},
    "recover": {"ours": ("recover",)},
    "weight": {"ours": ("weight",), "langgraph": ("weight",), "dbos": ("weight",)},
    "park": {"ours": ("park",)},
    "counts": {"ours": (), "langgraph": (), "dbos": ()},
}
OVER_A_SERVER: dict[str, dict[str, tuple[str, ...]]] = {  # the same over PostgreSQL, where Absurd is a party too
    "sync": {"limit": ("sync",)},
    "lin": {"limit": ("lin",), "ours": ("lin",), "langgraph": ("lin",), "dbos": ("lin",), "absurd": ("lin",)},
    "conc": {"ours": ("conc",), "langgraph": ("conc",), "dbos": ("conc",), "absurd": ("conc",)},
    "conc-long": {"limit": ("conc-long",), "ours": ("conc-long",)},
    "fan": {"ours": ("fan",), "langgraph": ("fan",), "dbos": ("fan",)},
    "noop": {"ours": ("noop",), "dbos": ("noop",), "absurd": ("noop",)},
    "noop-polling": {"ours": ("noop-polling",)},
    "workers": {"ours": ("workers",)},
    "park": {"ours": ("park",)},
}
LONG = ("park", "cold")
AS_INSTALLED = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "on", "shared_buffers": "128MB", "max_wal_size": "1GB", "max_connections": "100"}
"""PostgreSQL's own defaults, where the tests' server has others."""


def interpreter(who: str) -> str:
    """The Python of a party; a peer's environment is made when it is first needed."""
    if who in ("ours", "limit"):
        return sys.executable
    if who == "core" and not (HOME / who / "bin" / "python").exists():
        # Weighed in an environment of its own: the one we run in also holds what developers need.
        subprocess.run(["uv", "venv", "-q", str(HOME / who)], check=True)
        subprocess.run(["uv", "pip", "install", "-q", "--python", str(HOME / who / "bin" / "python"), "-e", str(HERE.parent)], check=True)
    given = os.environ.get(f"BENCH_{who.upper()}")  # an environment of one's own
    home = pathlib.Path(given) if given else HOME / who
    python = home / "bin" / "python"
    if not python.exists():
        print(f"installing {who} into {home}", file=sys.stderr, flush=True)
        subprocess.run(["uv", "venv", "-q", str(home)], check=True)
        subprocess.run(["uv", "pip", "install", "-q", "--python", str(python), "-r", str(HERE / "requirements" / f"{who}.txt")], check=True)
    return str(python)


def version_of(who: str) -> str:
    """Of a peer, as it is installed in its environment."""
    asked = f"import importlib.metadata; print(importlib.metadata.version({DISTRIBUTIONS.get(who, who)!r}))"
    return subprocess.run([interpreter(who), "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


def slowed(us: int) -> None:
    """Has all parties sync in so many microseconds each, over a folder in memory."""
    HOME.mkdir(parents=True, exist_ok=True)
    made = HOME / "slow_sync.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(HERE / "slow_sync.c")], check=True)
    os.environ.update(LD_PRELOAD=str(made), BENCH_SYNC_US=str(us), BENCH_DATA="/dev/shm")


Place = Callable[[], contextlib.AbstractContextManager[dict[str, str]]]
"""Gives a party what it needs to find an empty store: the variables of its environment."""


@contextlib.contextmanager
def over(store: str) -> Iterator[Place]:
    """Where the cases run: each makes a file of its own, or is given an empty database of one server that all share."""
    if store == "sqlite":
        yield lambda: contextlib.nullcontext({})
        return
    sys.path.insert(0, str(HERE.parent))
    from tests.postgres.server import Server  # its binaries are of a package that only this needs

    server = Server(settings=AS_INSTALLED).create()

    @contextlib.contextmanager
    def empty() -> Iterator[dict[str, str]]:
        with server.admin() as db:
            db.execute("DROP DATABASE IF EXISTS bench WITH (FORCE)")
            db.execute("CREATE DATABASE bench OWNER holdfast")
            db.execute("CHECKPOINT")
        yield {"BENCH_DATABASE": f"postgresql:///bench?host={server.folder}&user=holdfast"}

    try:
        yield empty
    finally:
        server.remove()


def script(who: str, case: str) -> str:
    if case in ("weight", "counts"):
        return f"{case}.py"
    return {"ours": "ours.py", "limit": "limit.py"}.get(who, f"{who}_cases.py")


def measure(who: str, case: str, arguments: tuple[str, ...], timeout: float, place: Place) -> list[dict[str, Any]]:
    """The measurements of one process; a case that fails says so and costs nothing but itself."""
    more = (who,) if case in ("weight", "counts") else arguments
    command = [interpreter("core" if (who, case) == ("ours", "weight") else who), str(HERE / script(who, case)), *more]
    try:
        with place() as told:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=HERE, env={**os.environ, **told})
    except subprocess.TimeoutExpired:
        return [{"metric": f"{case} FAILED", "value": timeout, "unit": "s", "why": "timeout"}]
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        print(f"  {who} {case}: {lines[-1]}", file=sys.stderr, flush=True)
        return [{"metric": f"{case} FAILED", "value": done.returncode, "unit": "exit", "why": lines[-1]}]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite", help="over which database everybody runs (sqlite)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="a pattern of cases, such as 'lin|conc'")
    parser.add_argument("--without", default="", help="a pattern of parties to leave out, such as 'dbos'")
    parser.add_argument("--long", action="store_true", help="also the case of a million waiting runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync-us", type=int, help="over a folder in memory, with syncs that take so long each (needs cc)")
    Recorder.options(parser)
    options = parser.parse_args()
    recorder = Recorder.of(options)
    if options.sync_us is not None:
        slowed(options.sync_us)
    dice = random.Random(options.seed)
    results: list[dict[str, Any]] = []
    kept = HOME / "last.jsonl"
    HOME.mkdir(parents=True, exist_ok=True)
    with over(options.store) as place:
        for number in range(options.rounds):
            for case, parties in (CASES if options.store == "sqlite" else OVER_A_SERVER).items():
                if (options.only and not re.fullmatch(options.only, case)) or (case in LONG and not options.long and not options.only):
                    continue
                turn = [w for w in parties if not (options.without and re.fullmatch(options.without, w))]
                dice.shuffle(turn)
                for who in turn:
                    print(f"round {number + 1}: {case}, {who}", file=sys.stderr, flush=True)
                    results += [{"round": number, "who": who, "case": case, **m} for m in measure(who, case, parties[who], 600, place)]
            kept.write_text("".join(json.dumps(r) + "\n" for r in results))
            recorder.write(results, **{who: version_of(who) for who in PEERS if any(r["who"] == who for r in results)})
    print(report(results, GOALS if options.store == "sqlite" else GOALS_OVER_A_SERVER))
    print(f"\nEvery measurement: {kept}")


if __name__ == "__main__":
    main()
