"""Draws what the commands print as pictures, to be looked at: ``python -m tests.cli.pictures FOLDER`` writes an SVG for each kind and width.

With Chromium on the path each SVG becomes a PNG too. Colours are those that a terminal would show.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cli import test_screens as screens

CHARACTER, LINE = 8.4, 18
COLOURS = {"31": "#f85149", "32": "#3fb950", "33": "#d29922", "34": "#58a6ff", "35": "#bc8cff", "36": "#39c5cf", "2": "#8b949e"}
SGR = re.compile(r"\x1b\[([0-9;]*)m")


def line(text: str, y: int) -> str:
    """One line of a terminal, its colours as spans."""
    parts, style = [], ""
    for n, piece in enumerate(SGR.split(text)):
        if n % 2:
            codes = piece.split(";")
            colour = next((COLOURS[c] for c in codes if c in COLOURS), "")
            style = f' fill="{colour}"' if colour else ""
            style += ' font-weight="bold"' if "1" in codes else ""
        elif piece:
            parts.append(f"<tspan{style}>{html.escape(piece)}</tspan>")
    return f'<text x="16" y="{y}" fill="#e6edf3" xml:space="preserve">{"".join(parts)}</text>'


def drawn(text: str, columns: int) -> str:
    """A terminal of so many columns; a mark stands where it ends."""
    lines = text.splitlines()
    longest = max([columns, *(len(SGR.sub("", each)) for each in lines)])
    width, height = round(longest * CHARACTER) + 32, len(lines) * LINE + 32
    edge = round(columns * CHARACTER) + 16
    rows = "\n".join(line(each, n * LINE + 28) for n, each in enumerate(lines))
    box = f'<rect width="{width}" height="{height}" fill="#0d1117"/><line x1="{edge}" x2="{edge}" y1="0" y2="{height}" stroke="#30363d"/>'
    style = "font: 14px 'DejaVu Sans Mono', monospace"
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" style="{style}">{box}\n{rows}\n</svg>\n'


def pictures(folder: Path) -> list[Path]:
    """Writes all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for room in (80, 140):
        for kind, uses in (("good", tuple(screens.GOOD.values())), ("does", screens.DOES), ("wrong", tuple(screens.WRONG.values()))):
            with screens.folder(uses if kind == "does" else ()) as names:
                said = [screens.done(words, room, names, plain=False) if kind == "does" else screens.typed(screens.filled(words, names), room, plain=False) for words in uses]
            for n in range(0, len(said), 12):
                made.append(folder / f"{kind}-{room}-{n // 12}.svg")
                made[-1].write_text(drawn("\n".join(said[n : n + 12]), room), "utf-8")
    return made


def main() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    for svg in pictures(Path(sys.argv[1]).resolve()):
        size = re.search(r'width="(\d+)" height="(\d+)"', svg.read_text("utf-8"))
        if browser is not None and size is not None:
            window = [f"--screenshot={svg.with_suffix('.png')}", f"--window-size={size[1]},{size[2]}", f"file://{svg}"]
            subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *window], capture_output=True, timeout=120, check=True)
        sys.stdout.write(f"{svg}\n")


if __name__ == "__main__":
    main()
