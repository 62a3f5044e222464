"""What a party weighs: import time above a bare interpreter's, and the packages that installing its core brings."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

from common import clock, emit, percentile

PARTIES = {"ours": ("import holdfast", "holdfast"), "langgraph": ("import langgraph.graph", "langgraph"), "dbos": ("import dbos", "dbos")}


def once(code: str) -> float:
    began = clock()
    subprocess.run([sys.executable, "-c", code], check=True)
    return clock() - began


def closure(distribution: str) -> set[str]:
    """A distribution and all it needs, its extras aside."""
    found: set[str] = set()
    todo = [distribution]
    while todo:
        name = re.split(r"[^A-Za-z0-9._-]", todo.pop(), maxsplit=1)[0].lower().replace("_", "-")
        if name in found:
            continue
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # a need of another platform
        found.add(name)
        todo += [need for need in needs if "extra ==" not in need]
    return found


if __name__ == "__main__":
    statement, distribution = PARTIES[sys.argv[1]]
    once(statement)
    emit("import", percentile([once(statement) - once("pass") for _ in range(7)], 0.5) * 1e3, "ms")
    if sys.argv[1] == "ours":
        every = "import holdfast; [getattr(holdfast, name) for name in holdfast.__all__]"
        once(every)
        emit("import, and every name of it used", percentile([once(every) - once("pass") for _ in range(7)], 0.5) * 1e3, "ms")
    if packages := closure(distribution):
        emit("packages in the core install", len(packages), "")
