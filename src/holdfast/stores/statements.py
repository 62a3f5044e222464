"""Named SQL: a file of statements, each after a line ``-- name: …``."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def name_statements(text: str) -> SimpleNamespace:
    """Returns the statements of such a text, without their comments, as attributes."""
    parts = _NAME.split(text)
    found = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        assert name not in found, f"two statements are named {name}"
        lines = [line for line in body.splitlines() if line.strip() and not line.lstrip().startswith("--")]
        found[name] = "\n".join(lines).strip().removesuffix(";")
    return SimpleNamespace(**found)


def read_migrations(folder: Path) -> list[str]:
    """Returns the migrations of a folder, in their order."""
    names = sorted(f.name for f in folder.iterdir() if f.name.endswith(".sql"))
    assert names == [f"{i:04}.sql" for i in range(1, len(names) + 1)], "migrations are numbered without a gap"
    return [folder.joinpath(n).read_text("utf-8") for n in names]
