"""Values whose classes only ``ctx.ask(schema=…)`` names are read in a process that has not asked (§5.11, §14.3)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

MODELS = """
    import dataclasses, typing
    import msgspec

    @dataclasses.dataclass
    class Line:
        sku: str

    class Deep(msgspec.Struct):
        lines: list[Line]

    @dataclasses.dataclass
    class Order:
        deep: Deep
"""

ASKED = """
    import asyncio, functools, sys
    import models
    from models import Order
    from holdfast import Context, Graph, Runtime, State, flow

    class Held(State):
        got: object = None

    async def helped(ctx: Context) -> object:
        return await ctx.ask("order?", schema=models.Order)

    @flow("named")
    async def named(ctx: Context) -> object:
        return await ctx.ask("order?", schema=Order)

    @flow("several")
    async def several(ctx: Context) -> object:
        return (await ctx.ask("orders?", schema=list[Order]))[0]

    @flow("helper")
    async def helper(ctx: Context) -> object:
        return await helped(ctx)

    async def ask(shown, state, ctx):
        return {"got": await ctx.ask("order?", schema=Order)}

    partial = Graph("partial", Held)
    partial.node("ask", start=True)(functools.partial(ask, "x"))

    class Asks:
        async def __call__(self, state: Held, ctx: Context) -> dict:
            return {"got": await ctx.ask("order?", schema=Order)}

    called = Graph("called", Held)
    called.node("ask", start=True)(Asks())

    SKILLS = [named, several, helper, partial, called]

    async def main(step: str) -> None:
        async with Runtime("sqlite:///asked.db", skills=SKILLS) as rt:
            if step == "ask":
                for skill in SKILLS:
                    run = await rt.invoke(skill)
                    order = {"deep": {"lines": [{"sku": "a"}]}}
                    await rt.decide(run.run_id, "answer", payload=[order] if skill is several else order)
                    await rt.resume(run.run_id)
            for run in await rt.runs():
                run = await rt.get(run.run_id)
                got = run.result if run.skill_id in ("named", "several", "helper") else run.state.got
                assert got.deep.lines[0] == models.Line("a"), got
                print(run.skill_id, run.status)

    asyncio.run(main(sys.argv[1]))
"""


def test_an_answer_is_read_where_nobody_has_asked(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(textwrap.dedent(MODELS), "utf-8")
    (tmp_path / "asked.py").write_text(textwrap.dedent(ASKED), "utf-8")
    for step in ("ask", "look"):
        done = subprocess.run([sys.executable, "asked.py", step], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split("\n")[:-1]) == [f"{s} completed" for s in ("called", "helper", "named", "partial", "several")]
