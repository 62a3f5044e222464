"""Draws the terminal picture of the README: ``uv run python docs/images/make.py`` runs ``holdfast demo --crash`` and writes the SVG."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FROM, TO = "timeline", "every step is on record"
COLUMNS, LINE, CHARACTER = 96, 19, 8.4
COLOURS = {"✓": "#3fb950", "✗": "#f85149", "↻": "#d29922", "?": "#58a6ff", "→": "#58a6ff"}
RUN_ID = re.compile(r"\b[0-9a-z]{26}\b")
OWNER = re.compile(r" from \S+: owner_dead")


def recorded() -> list[str]:
    """What the command printed, from the timeline on. Ids and process names are shortened: they differ from run to run."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "demo", "--crash"], cwd=folder, env={**os.environ, "COLUMNS": str(COLUMNS)}, capture_output=True, text=True, check=True
        )
    text = OWNER.sub(" its owner is dead", RUN_ID.sub("RUN", done.stdout))
    lines = text.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(FROM))
    last = next(n for n, line in enumerate(lines) if TO in line)
    return ["$ holdfast demo --crash", "", *(line[:COLUMNS] for line in lines[first : last + 1])]


def drawn(lines: list[str]) -> str:
    """The lines as an SVG that looks like a terminal and needs no font of its own."""
    width, height = round(COLUMNS * CHARACTER) + 40, len(lines) * LINE + 44
    rows = []
    for n, line in enumerate(lines):
        mark = next((c for c in line if c in COLOURS), "")
        colour = COLOURS.get(mark, "#e6edf3" if line.startswith("$") else "#c9d1d9")
        rows.append(f'<text x="20" y="{n * LINE + 36}" fill="{colour}" xml:space="preserve">{html.escape(line)}</text>')
    style = "font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
    box = f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" style="{style}">\n{box}\n' + "\n".join(rows) + "\n</svg>\n"


if __name__ == "__main__":
    (HERE / "demo-crash.svg").write_text(drawn(recorded()), "utf-8")
