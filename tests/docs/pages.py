"""The pages for readers, and what is found in them: fenced blocks, lines of commands, code within a sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "bench" / "README.md"]
PAGES += [p for p in sorted((ROOT / "docs").rglob("*.md")) if not {"decisions", "reference"} & set(p.parts) and p.name != "index.md"]
COMMAND = re.compile(r"(?:\$ )?((?:holdfast|python3?|uv|pip|pytest|curl) .*)")


class Block(NamedTuple):
    """One fenced block: its page, its language, which of that language on that page it is, and its text."""

    page: str
    language: str
    number: int
    text: str


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def blocks() -> Iterator[Block]:
    """Every fenced block of every page."""
    for path in PAGES:
        name = str(path.relative_to(ROOT))
        counts: dict[str, int] = {}
        for found in re.finditer(r"^ *```(\w*)\n(.*?)^ *```", path.read_text("utf-8"), re.M | re.S):
            number = counts.get(found[1], 0)
            counts[found[1]] = number + 1
            yield Block(name, found[1], number, found[2])


def lines() -> Iterator[tuple[str, str]]:
    """Every command on every page: lines of shell blocks, indented lines, and code within sentences and tables."""
    for path in PAGES:
        name, text = str(path.relative_to(ROOT)), path.read_text("utf-8")
        for block in blocks():
            if block.page == name and block.language in ("sh", "console", ""):
                yield from ((name, found[1]) for line in block.text.splitlines() if (found := COMMAND.fullmatch(line.strip())))
        prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
        yield from ((name, found[1]) for line in prose.splitlines() if line.startswith("    ") and (found := COMMAND.fullmatch(line.strip())))
        for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose):
            if found := COMMAND.fullmatch(span.replace(r"\|", "|")):
                yield name, found[1]
