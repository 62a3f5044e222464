"""What the house weighs: its largest class, module and function, what reaches for private members, `Any`, and one run's walk through its modules.

    python bench/house.py [FOLDER]      # of this package, or of another's source
    python bench/house.py --hops        # and which modules call each other most on that walk
"""

from __future__ import annotations

import ast
import asyncio
import sys
from collections import Counter
from collections.abc import Coroutine
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Absent, Context, Happened, Runtime, flow

DOCUMENTED = frozenset({"_asdict", "_current_frames", "_exit", "_fields", "_getframe", "_make", "_replace"})
"""Names of the standard library that begin with an underscore and are public all the same."""
ROOT = Path(__file__).resolve().parents[1] / "src" / "holdfast"


class Weight(msgspec.Struct, frozen=True):
    """Sizes in lines, each with whose it is. ``private``: attributes with an underscore that are reached for on anything but oneself."""

    lines: int
    largest: dict[str, tuple[int, str]]
    private: int
    any_in_1000: float


def weighed(root: Path, room: str = "") -> Weight:
    """``room``: the folder in which ``Any`` is counted."""
    largest = {"module": (0, ""), "class": (0, ""), "function": (0, "")}
    lines = private = inside = found = 0
    for path in sorted(root.rglob("*.py")):
        text, name = path.read_text("utf-8"), str(path.relative_to(root))
        count = text.count("\n")
        lines += count
        largest["module"] = max(largest["module"], (count, name))
        nodes = list(ast.walk(ast.parse(text)))
        for node in nodes:
            kind = "class" if isinstance(node, ast.ClassDef) else "function" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
            if kind:
                largest[kind] = max(largest[kind], ((node.end_lineno or 0) - node.lineno + 1, f"{name}:{node.name}"))  # type: ignore[attr-defined]
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in DOCUMENTED:
                private += not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
        if name.startswith(room):
            inside += count
            found += sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
    return Weight(lines, largest, private, round(1000 * found / max(1, inside), 1))


class Walk:
    """The modules of the package that calls enter one after the other, while this is the profiler."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = f"{root}/"
        self.entered: list[str] = []

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(self._root):
            module = name[len(self._root) :].removesuffix(".py")
            if not self.entered or self.entered[-1] != module:
                self.entered.append(module)

    @property
    def modules(self) -> set[str]:
        return set(self.entered)

    @property
    def returns(self) -> int:
        """How often a module is entered that has been left before."""
        return len(self.entered) - len(self.modules)

    async def over(self, work: Coroutine[Any, Any, Any]) -> Any:
        sys.setprofile(self)
        try:
            return await work
        finally:
            sys.setprofile(None)


def pay(n: int, *, idempotency_key: str) -> int:
    return n + 1


def was_paid(key: str, n: int) -> Happened | Absent:
    return Absent()


@flow("order", version="1")
async def order(ctx: Context, n: int) -> int:
    """One effect and one question."""
    paid = await ctx.effect(pay, n, verify=was_paid)
    await ctx.approve("Send it?")
    return paid


async def walked(url: str = "memory:") -> dict[str, Walk]:
    """A flow with one effect and one approval: submitted, driven to its question, approved and driven to its end."""
    found = {name: Walk() for name in ("submit", "drive", "approve")}
    async with Runtime(url, skills=[order]) as rt:
        await rt.invoke(order, {"n": 1})
        run = await found["submit"].over(rt.submit(order, {"n": 2}))
        await found["drive"].over(rt.resume(run.run_id))
        run = await found["approve"].over(rt.approve(run.run_id, actor="ann"))
        assert run.terminal
    return found


def hops(walk: Walk) -> list[tuple[int, str, str]]:
    """How often one module is entered from another, the most frequent first."""
    found = Counter(pairwise(walk.entered))
    return [(count, *pair) for pair, count in found.most_common()]


if __name__ == "__main__":
    if "--help" in sys.argv:
        print(__doc__)
        sys.exit(0)
    given = [arg for arg in sys.argv[1:] if arg != "--hops"]
    weight = weighed(Path(given[0]), "") if given else weighed(ROOT, "engine")
    print(f"{weight.lines} lines, {weight.private} private accesses, Any {weight.any_in_1000} in 1,000 lines")
    for kind, (count, name) in weight.largest.items():
        print(f"largest {kind}: {count} {name}")
    if not given:
        walks = asyncio.run(walked())
        for phase, walk in walks.items():
            print(f"{phase}: {len(walk.modules)} modules, {len(walk.entered)} hops, {walk.returns} returns")
            for count, left, entered in hops(walk)[:20] if "--hops" in sys.argv else ():
                print(f"    {count:3} {left} -> {entered}")
        print(f"modules in all: {len(set().union(*(w.modules for w in walks.values())))}")
