"""What is aimed at, and tables of what was measured. Nothing here measures: ``run.py`` prints these tables, ``draw.py`` writes them into the docs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

Found = dict[tuple[str, str], dict[int, float]]
"""By party and metric: the value of each round."""


class Goal(NamedTuple):
    """A row of the targets: what to compare, and with what. ``over``: our metric divided by another's, within a round. ``steps_of``: our milliseconds, as so
    many steps of that party's single run in the same round: a time depends on the machine, and this does not."""

    name: str
    metric: str
    must: float
    stretch: float | None
    over: tuple[str, str] | None = None
    at_most: bool = False
    steps_of: str | None = None


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
)

RATIOS_OVER_A_SERVER = (
    Goal("one run, against LangGraph at its default", "lin", 3, 4, ("langgraph", "lin")),
    Goal("one run, against DBOS", "lin", 4.5, 6, ("dbos", "lin")),
    Goal("one run, against Absurd", "lin", 1.7, 2.2, ("absurd", "lin")),
    Goal("100 runs at once, against LangGraph", "conc", 25, 50, ("langgraph", "conc")),
    Goal("100 runs at once, against DBOS", "conc", 30, 60, ("dbos", "conc")),
    Goal("100 runs at once, against Absurd", "conc", 15, 30, ("absurd", "conc")),
    Goal("fan-out of 100, against LangGraph", "fan", 12, 25, ("langgraph", "fan")),
    Goal("2 workers against one, steps/s", "workers: 2 against 1, steps/s", 1.0, 1.3),
    Goal("4 workers against one, steps/s", "workers: 4 against 1, steps/s", 1.0, 1.3),
)
TIMES_OVER_A_SERVER = (
    Goal("no-op through an idle worker, p50 ms", "noop p50", 5, 2, at_most=True),
    Goal("no-op through an idle worker, p99 ms", "noop p99", 20, None, at_most=True),
    Goal("no-op by polling alone, p99 ms", "noop, polling alone p99", 60, None, at_most=True),
    Goal("1,000,000 waiting: claim of 100 due, ms", "park: claim of 100 due among 1,000,000", 3, 1, at_most=True),
)
THEIR_STEPS = 657
"""Steps a second of LangGraph's single run over PostgreSQL, on the machine for which the times were set: 5 ms are 3.29 of its steps."""


def in_steps(goal: Goal) -> Goal:
    """A time of the targets as so many of LangGraph's steps."""
    stretch = None if goal.stretch is None else goal.stretch * THEIR_STEPS / 1000
    return goal._replace(name=goal.name.removesuffix(" ms").removesuffix(",") + ", in steps of LangGraph", must=goal.must * THEIR_STEPS / 1000, stretch=stretch, steps_of="langgraph")


GOALS_OVER_A_SERVER = (*RATIOS_OVER_A_SERVER, *TIMES_OVER_A_SERVER, *map(in_steps, TIMES_OVER_A_SERVER))
"""The same for PostgreSQL."""


def by_metric(results: Iterable[dict[str, Any]]) -> Found:
    found: Found = {}
    for r in results:
        found.setdefault((r["who"], r["metric"]), {})[r["round"]] = r["value"]
    return found


def spread(values: list[float]) -> str:
    middle = statistics.median(values)
    return short(middle) if len(values) == 1 else f"{short(middle)} [{short(min(values))}..{short(max(values))}]"


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def report(results: list[dict[str, Any]], goals: Iterable[Goal] = GOALS) -> str:
    """Three tables: what was measured, what was aimed at, what a step consists of."""
    failed = [f"{r['who']} {r['metric']} in round {r['round']}: {r.get('why')}" for r in results if "FAILED" in r["metric"]]
    return "\n\n".join(part for part in ["\n".join(measured(results)), "\n".join(aims(results, goals)), "\n".join(counted(results)), *failed] if part)


def parties(found: Found) -> list[str]:
    return [w for w in ("ours", "langgraph", "dbos", "absurd", "limit") if any(who == w for who, _ in found)]


def measured(results: list[dict[str, Any]]) -> list[str]:
    found = by_metric(results)
    units = {r["metric"]: r["unit"] for r in results if not r["metric"].startswith("per step") and "FAILED" not in r["metric"]}
    all_of_them = parties(found)
    out = ["| measured: median [least..most] | unit | " + " | ".join(all_of_them) + " |", "|---|---|" + "---|" * len(all_of_them)]
    for metric, unit in units.items():
        cells = [spread(list(found[w, metric].values())) if (w, metric) in found else "" for w in all_of_them]
        out.append(f"| {metric} | {unit} | " + " | ".join(cells) + " |")
    return out


def aims(results: list[dict[str, Any]], goals: Iterable[Goal] = GOALS) -> list[str]:
    """A row for each goal that something was measured for."""
    found = by_metric(results)
    out = ["| aimed at | must | stretch | measured: median [least..most] | |", "|---|---|---|---|---|"]
    for goal in goals:
        if values := compared(goal, found):
            stretch = "" if goal.stretch is None else short(goal.stretch)
            out.append(f"| {goal.name} | {short(goal.must)} | {stretch} | {spread(values)} | {verdict(goal, statistics.median(values))} |")
    return out


def verdict(goal: Goal, value: float) -> str:
    met = value <= goal.must if goal.at_most else value >= goal.must
    far = goal.stretch is not None and (value <= goal.stretch if goal.at_most else value >= goal.stretch)
    return "stretch" if far else "met" if met else "NOT MET"


def counted(results: list[dict[str, Any]]) -> list[str]:
    """What a step of a linear run consists of; nothing where it was not counted."""
    found = by_metric(results)
    metrics = {r["metric"]: None for r in results if r["metric"].startswith("per step")}
    if not metrics:
        return []
    some = [w for w in parties(found) if w != "limit"]
    out = ["| counted, a step of a linear run | " + " | ".join(some) + " |", "|---|" + "---|" * len(some)]
    for metric in metrics:
        cells = [short(statistics.median(found[w, metric].values())) if (w, metric) in found else "" for w in some]
        out.append(f"| {metric.removeprefix('per step: ')} | " + " | ".join(cells) + " |")
    return out


def compared(goal: Goal, found: Found) -> list[float]:
    """Our figures, or their ratios to another's of the same round."""
    ours = found.get(("ours", goal.metric), {})
    if goal.steps_of is not None:
        steps = found.get((goal.steps_of, "lin"), {})
        return [ours[n] * steps[n] / 1000 for n in ours if n in steps]
    if goal.over is None:
        return list(ours.values())
    other = found.get(goal.over, {})
    return [ours[n] / other[n] for n in ours if n in other]
