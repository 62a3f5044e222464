"""Draws plots and writes tables from the recorded results: ``uv run python -m bench.draw``, after a bench was run with ``--record bench/results/….json``.

The plots are SVG in ``docs/images``. The tables stand in the docs between ``<!-- bench: NAME -->`` and ``<!-- end of bench -->``; nobody writes there
by hand. Tests hold that drawing again gives the same bytes.
"""

from __future__ import annotations

import html
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.tables import GOALS_OVER_A_SERVER, aims, by_metric, counted, short

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
NAMES = {"ours": "Holdfast", "langgraph": "LangGraph", "dbos": "DBOS", "limit": "SQLite alone"}
BLOCK = re.compile(r"(<!-- bench: ([a-z-]+) -->\n)(?:(?!<!-- bench: ).)*?(<!-- end of bench -->)", re.S)

Record = Mapping[str, Any]



def lasted(seconds: float) -> str:
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"

def record(bench: str) -> Record:
    return json.loads((RESULTS / f"{bench}.json").read_text("utf-8"))  # type: ignore[no-any-return]


# -- plots ------------------------------------------------------------------------------------------


class Bar(NamedTuple):
    name: str
    value: float
    ours: bool = True


class Group(NamedTuple):
    """Bars that share a scale. ``mark`` is a value that gets a line of its own, such as a bound."""

    name: str
    unit: str
    bars: Sequence[Bar]
    mark: float | None = None


WIDTH, ROW, TOP = 760, 24, 54
LETTER = 7.2  # of a name, in pixels, as wide as common fonts have it


def bars(title: str, groups: Sequence[Group], foot: str) -> str:
    """Groups of horizontal bars as an SVG, readable on a light page and on a dark one."""
    out: list[str] = []
    left = 40 + round(LETTER * max(len(bar.name) for group in groups for bar in group.bars))
    y = TOP
    for group in groups:
        largest = max([*(bar.value for bar in group.bars), group.mark or 0])
        room = WIDTH - left - 120
        out.append(f'<text x="20" y="{y}" font-weight="bold">{html.escape(group.name)}</text>')
        y += 10
        top = y
        for bar in group.bars:
            length = max(2, round(bar.value / largest * room))
            out.append(f'<text x="{left - 10}" y="{y + 16}" text-anchor="end">{html.escape(bar.name)}</text>')
            out.append(f'<rect x="{left}" y="{y + 3}" width="{length}" height="{ROW - 6}" fill="{"#0d9488" if bar.ours else "#9ca3af"}"/>')
            out.append(f'<text x="{left + length + 8}" y="{y + 16}">{short(bar.value)} {html.escape(group.unit)}</text>')
            y += ROW
        if group.mark is not None:
            x = left + round(group.mark / largest * room)
            out.append(f'<line x1="{x}" x2="{x}" y1="{top}" y2="{y}" stroke="#dc2626" stroke-dasharray="4 3"/>')
            out.append(f'<text x="{x}" y="{y + 14}" text-anchor="middle" fill="#dc2626">bound {short(group.mark)}</text>')
            y += 14
        y += 30
    height = y + 6
    style = "font: 13px system-ui, 'DejaVu Sans', sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" style="{style}" fill="#111827">'
    paper = f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#ffffff" stroke="#d1d5db"/>'
    named = f'<title>{html.escape(title)}</title>\n<text x="20" y="28" font-size="16" font-weight="bold">{html.escape(title)}</text>'
    told = f'<text x="20" y="{height - 12}" font-size="11" fill="#4b5563">{html.escape(foot)}</text>'
    return "\n".join([head, paper, named, *out, told, "</svg>"]) + "\n"


def middle(bench: Record, who: str, metric: str) -> float:
    return statistics.median(by_metric(bench["measurements"])[who, metric].values())


def foot(bench: Record) -> str:
    machine, load = bench["machine"], bench["load"]
    busy = f"load {load['first']:.0f} to {load['last']:.0f}"
    script = bench["command"].split()[1]
    return f"{script}, {bench['date'][:10]}, {machine['cores']} cores of {machine['cpu']}, {busy}, Python {bench['versions']['python']}"


def speed() -> str:
    run = record("run")
    one = [Bar("Holdfast", middle(run, "ours", "lin"))]
    one += [Bar("LangGraph, durability=sync", middle(run, "langgraph", "lin (sync)"), False), Bar("LangGraph, its default", middle(run, "langgraph", "lin"), False)]
    one += [Bar("DBOS", middle(run, "dbos", "lin"), False)]
    many = [Bar(NAMES[who], middle(run, who, "conc"), who == "ours") for who in ("ours", "langgraph", "dbos")]
    groups = [Group("One run of 100 steps", "steps/s", one), Group("100 runs of 20 steps at once", "steps/s", many)]
    return bars("Durable steps a second, one process, SQLite", groups, foot(run))


def latency() -> str:
    run = record("run")
    rows = {"noop": "A run without work", "signal: run goes on": "A signal", "approval: run goes on": "An approval"}
    groups = [Group(name, "ms", [Bar(part, middle(run, "ours", f"{metric} {part}")) for part in ("p50", "p99")]) for metric, name in rows.items()]
    return bars("From here until a worker in another process has acted", groups, foot(run))


def growth() -> str:
    grown = record("growth")
    factors = [Bar(name, factor) for name, _, factor in rows_of_growth(grown)]
    return bars("Cost when there is ten times as much", [Group("1.0 is the same cost", "times", factors, 1.3)], foot(grown))


PLOTS: Mapping[str, Callable[[], str]] = {"bench-speed.svg": speed, "bench-latency.svg": latency, "bench-growth.svg": growth}

# -- tables -----------------------------------------------------------------------------------------


def rows_of_growth(grown: Record) -> list[tuple[str, list[tuple[int, float]], float]]:
    """By row: its sizes with what each cost, and the factor for a tenfold."""
    found: dict[str, list[tuple[int, float]]] = {}
    for m in grown["measurements"]:
        found.setdefault(m["row"], []).append((m["size"], m["value"]))
    return [(name, sizes, (sizes[-1][1] / sizes[0][1]) ** 0.5) for name, sizes in found.items()]


def growth_table() -> str:
    out = ["| µs of CPU | ×1 | ×10 | ×100 | cost factor for ten times the size | |", "|---|---|---|---|---|---|"]
    for name, sizes, factor in rows_of_growth(record("growth")):
        cells = " | ".join(f"{value:,.0f} ({size:,})" for size, value in sizes)
        out.append(f"| {name} | {cells} | {factor:.2f} | {'met' if factor <= 1.3 else 'NOT MET'} |")
    return "\n".join(out)


def about(bench: str) -> str:
    """When, where and beside what a record was made, as a sentence."""
    made = record(bench)
    machine, versions = made["machine"], ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    beside = made["beside"] or "nothing else that we started"
    return (
        f"Recorded {made['date'][:16].replace('T', ' ')} UTC by `{made['command']}` in {lasted(made['seconds'])}, on {machine['cores']} cores of "
        f"{machine['cpu']} with {machine['memory_gib']} GiB. Meanwhile the machine also ran: {beside} (load {made['load']['first']} when the benchmark began, {made['load']['last']} when it ended). "
        f"Versions: {versions}."
    )


def effect() -> str:
    run = record("run")
    step, act = middle(run, "ours", "step"), middle(run, "ours", "effect")
    return f"In the benchmark recorded in [bench/results](../bench/results) a recorded step takes {short(step)} ms and an effect {short(act)} ms, {act / step:.1f} times as long."


def served() -> str:
    """What serving costs, beside LangGraph's server where it has the same; without LangGraph's column where the record has none."""
    rows = [m for m in record("serving")["measurements"] if "found" in m]
    peer = any("langgraph" in m for m in rows)
    out = ["| measured | target | ours |" + (" LangGraph's server |" if peer else "") + " |", "|---|---|---|---|" + ("---|" if peer else "")]
    for m in rows:
        cells = [m["row"], m["wanted"], m["found"], *([m.get("langgraph") or ""] if peer else []), "met" if m["holds"] else "NOT MET"]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


TABLES: Mapping[str, Callable[[], str]] = {
    "about-run": lambda: about("run"),
    "about-postgres": lambda: about("run-postgres"),
    "aims-postgres": lambda: "\n".join(aims(record("run-postgres")["measurements"], GOALS_OVER_A_SERVER)),
    "about-serving": lambda: about("serving"),
    "serving": served,
    "about-growth": lambda: about("growth"),
    "aims": lambda: "\n".join(aims(record("run")["measurements"])),
    "counted": lambda: "\n".join(counted(record("run")["measurements"])),
    "growth": growth_table,
    "effect": effect,
}


def written(page: str) -> str:
    """A page with its tables as the records have them. A block of a name that is not known is a KeyError."""
    return BLOCK.sub(lambda m: f"{m[1]}{TABLES[m[2]]()}\n{m[3]}", page)


def pages() -> list[Path]:
    """The pages that hold something recorded."""
    return [page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if BLOCK.search(page.read_text("utf-8"))]


def main() -> None:
    for name, draw in PLOTS.items():
        (ROOT / "docs" / "images" / name).write_text(draw(), "utf-8")
        sys.stdout.write(f"docs/images/{name}\n")
    for page in pages():
        page.write_text(written(page.read_text("utf-8")), "utf-8")
        sys.stdout.write(f"{page.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
