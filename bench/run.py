"""Runs our cases beside the peers', in rounds, and prints the tables: ``uv run python bench/run.py``.

Each case runs in a process of its own. Within a round everybody takes a turn at each case, in an order that changes, so
that a busy minute of the machine falls on all alike; ratios are taken within a round and never across rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
from typing import Any, NamedTuple

from common import HERE, HOME

PEERS = ("langgraph", "dbos")
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
    "workers": {"ours": ("workers",)},
    "signal": {"ours": ("signal",), "dbos": ("signal",)},
    "approval": {"ours": ("approval",)},
    "recover": {"ours": ("recover",)},
    "weight": {"ours": ("weight",), "langgraph": ("weight",), "dbos": ("weight",)},
    "park": {"ours": ("park",)},
    "counts": {"ours": (), "langgraph": (), "dbos": ()},
}
LONG = ("park",)


class Goal(NamedTuple):
    """A row of the targets: what to compare, and with what. ``over``: our metric divided by another's, within a round."""

    name: str
    metric: str
    must: float
    stretch: float | None
    over: tuple[str, str] | None = None
    at_most: bool = False


GOALS = (
    Goal("one run, against LangGraph at durability=sync", "lin", 4, 5, ("langgraph", "lin (sync)")),
    Goal("one run, against LangGraph at its default", "lin", 5, 7, ("langgraph", "lin")),
    Goal("one run, against DBOS", "lin", 7, 9, ("dbos", "lin")),
    Goal("one run, share of the raw limit", "lin", 0.65, 0.80, ("limit", "lin")),
    Goal("100 runs at once, against LangGraph", "conc", 25, 50, ("langgraph", "conc")),
    Goal("100 runs at once, against DBOS", "conc", 50, 100, ("dbos", "conc")),
    Goal("100 runs at once, steps/s", "conc-long", 19_000, 35_000),
    Goal("100 runs at once, share of the raw limit", "conc-long", 0.15, 0.35, ("limit", "conc-long")),
    Goal("fan-out of 100, against LangGraph", "fan", 12, 25, ("langgraph", "fan")),
    Goal("no-op through an idle worker, p50 ms", "noop p50", 5, 2, at_most=True),
    Goal("no-op through an idle worker, p99 ms", "noop p99", 20, None, at_most=True),
    Goal("no-op through a worker idle for 10 s, p50 ms", "noop, idle for 10 s p50", 2, 1, at_most=True),
    Goal("2 workers on one file against one, steps/s", "workers: 2 against 1, steps/s", 1.0, 1.3),
    Goal("4 workers on one file against one, steps/s", "workers: 4 against 1, steps/s", 1.0, 1.3),
    Goal("4 workers on one file against one, CPU a step", "workers: 4 against 1, CPU a step", 1.2, 1.05, at_most=True),
    Goal("signal, run goes on, p50 ms", "signal: run goes on p50", 20, 5, at_most=True),
    Goal("approval, run goes on, p50 ms", "approval: run goes on p50", 20, 5, at_most=True),
    Goal("turn 1,000 against turn 10", "turns: turn 1000 against turn 10", 1.3, 1.1, at_most=True),
    Goal("database per byte of message", "turns: database per byte of message", 6, 3.5, at_most=True),
    Goal("bytes a step beyond its delta", "delta: bytes a step beyond its writes", 250, 120, at_most=True),
    Goal("resume after 10,000 steps against 100", "resume: after 10,000 steps against 100", 1.3, 1.0, at_most=True),
    Goal("1,000,000 waiting: resident MB", "park: resident memory beside 1,000,000 runs", 32, None, at_most=True),
    Goal("1,000,000 waiting: claim of 100 due, ms", "park: claim of 100 due among 1,000,000", 1, 0.3, at_most=True),
    Goal("after kill -9: first step, ms", "recover: first step", 100, 50, at_most=True),
    Goal("after kill -9: 100 runs done, ms", "recover: 100 runs done", 500, 250, at_most=True),
    Goal("import, and every name used, ms", "import, and every name of it used", 100, 60, at_most=True),
    Goal("packages in the core install", "packages in the core install", 8, 6, at_most=True),
)  # fmt: skip


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


def slowed(us: int) -> None:
    """Has all parties sync in so many microseconds each, over a folder in memory."""
    HOME.mkdir(parents=True, exist_ok=True)
    made = HOME / "slow_sync.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(HERE / "slow_sync.c")], check=True)
    os.environ.update(LD_PRELOAD=str(made), BENCH_SYNC_US=str(us), BENCH_DATA="/dev/shm")


def script(who: str, case: str) -> str:
    if case in ("weight", "counts"):
        return f"{case}.py"
    return {"ours": "ours.py", "limit": "limit.py"}.get(who, f"{who}_cases.py")


def measure(who: str, case: str, arguments: tuple[str, ...], timeout: float) -> list[dict[str, Any]]:
    """The measurements of one process; a case that fails says so and costs nothing but itself."""
    more = (who,) if case in ("weight", "counts") else arguments
    command = [interpreter("core" if (who, case) == ("ours", "weight") else who), str(HERE / script(who, case)), *more]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=HERE)
    except subprocess.TimeoutExpired:
        return [{"metric": f"{case} FAILED", "value": timeout, "unit": "s", "why": "timeout"}]
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        print(f"  {who} {case}: {lines[-1]}", file=sys.stderr, flush=True)
        return [{"metric": f"{case} FAILED", "value": done.returncode, "unit": "exit", "why": lines[-1]}]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def spread(values: list[float]) -> str:
    middle = statistics.median(values)
    return short(middle) if len(values) == 1 else f"{short(middle)} [{short(min(values))}..{short(max(values))}]"


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def report(results: list[dict[str, Any]]) -> str:
    """Three tables: what was measured, what was aimed at, what a step consists of."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    units: dict[str, str] = {}
    for r in results:
        found.setdefault((r["who"], r["metric"]), {})[r["round"]] = r["value"]
        units[r["metric"]] = r["unit"]
    parties = [w for w in ("ours", "langgraph", "dbos", "limit") if any(who == w for who, _ in found)]
    plain = [m for m in units if not m.startswith("per step") and "FAILED" not in m]
    out = ["| measured: median [least..most] | unit | " + " | ".join(parties) + " |", "|---|---|" + "---|" * len(parties)]
    for metric in plain:
        cells = [spread(list(found[w, metric].values())) if (w, metric) in found else "" for w in parties]
        out.append(f"| {metric} | {units[metric]} | " + " | ".join(cells) + " |")
    out += ["", "| aimed at | must | stretch | measured: median [least..most] | |", "|---|---|---|---|---|"]
    for goal in GOALS:
        values = list(compared(goal, found))
        if values:
            middle = statistics.median(values)
            met = middle <= goal.must if goal.at_most else middle >= goal.must
            far = goal.stretch is not None and (middle <= goal.stretch if goal.at_most else middle >= goal.stretch)
            word = "stretch" if far else "met" if met else "NOT MET"
            out.append(f"| {goal.name} | {short(goal.must)} | {'' if goal.stretch is None else short(goal.stretch)} | {spread(values)} | {word} |")
    counts = [m for m in units if m.startswith("per step")]
    if counts:
        out += ["", "| counted, a step of a linear run | " + " | ".join(parties[:3]) + " |", "|---|" + "---|" * len(parties[:3])]
        for metric in counts:
            cells = [short(statistics.median(found[w, metric].values())) if (w, metric) in found else "" for w in parties[:3]]
            out.append(f"| {metric.removeprefix('per step: ')} | " + " | ".join(cells) + " |")
    for r in results:
        if "FAILED" in r["metric"]:
            out.append(f"\n{r['who']} {r['metric']} in round {r['round']}: {r.get('why')}")
    return "\n".join(out)


def compared(goal: Goal, found: dict[tuple[str, str], dict[int, float]]) -> list[float]:
    """Our figures, or their ratios to another's of the same round."""
    ours = found.get(("ours", goal.metric), {})
    if goal.over is None:
        return list(ours.values())
    other = found.get(goal.over, {})
    return [ours[n] / other[n] for n in ours if n in other]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="a pattern of cases, such as 'lin|conc'")
    parser.add_argument("--without", default="", help="a pattern of parties to leave out, such as 'dbos'")
    parser.add_argument("--long", action="store_true", help="also the case of a million waiting runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sync-us", type=int, help="over a folder in memory, with syncs that take so long each (needs cc)")
    options = parser.parse_args()
    if options.sync_us is not None:
        slowed(options.sync_us)
    dice = random.Random(options.seed)
    results: list[dict[str, Any]] = []
    kept = HOME / "last.jsonl"
    HOME.mkdir(parents=True, exist_ok=True)
    for number in range(options.rounds):
        for case, parties in CASES.items():
            if (options.only and not re.fullmatch(options.only, case)) or (case in LONG and not options.long and not options.only):
                continue
            turn = [w for w in parties if not (options.without and re.fullmatch(options.without, w))]
            dice.shuffle(turn)
            for who in turn:
                print(f"round {number + 1}: {case}, {who}", file=sys.stderr, flush=True)
                results += [{"round": number, "who": who, "case": case, **m} for m in measure(who, case, parties[who], 600)]
        kept.write_text("".join(json.dumps(r) + "\n" for r in results))
    print(report(results))
    print(f"\nEvery measurement: {kept}")


if __name__ == "__main__":
    main()
