"""Mistakes that a type checker must find: each line that ends in ``# wrong`` is one."""

from __future__ import annotations

from typing import Annotated, Any

from holdfast import Context, Graph, Runtime, State, append, flow


class Notes(State):
    repo: str
    commits: Annotated[list[str], append]


async def summarise(commits: list[str]) -> str:
    return ""


def length(text: str) -> int:
    return len(text)


@flow("f")
async def f(ctx: Context, n: int) -> str:
    await ctx.step(summarise, 5)  # wrong
    await ctx.step(length)  # wrong
    await ctx.step(length, "a", "b")  # wrong
    number: str = await ctx.step(length, "a")  # wrong
    await ctx.map(length, [1, 2])  # wrong
    size: str = await ctx.effect(length, "a")  # wrong
    await ctx.effect(length, "a", idempotnet=True)  # wrong
    other: int = await ctx.child(f, {"n": 1})  # wrong
    return f"{number} {size} {other}"


async def main(state: Notes) -> Any:
    state.repo = "x"  # wrong
    Notes(commits=[])  # wrong
    async with Runtime() as rt:
        await rt.run(f, "five")  # wrong
        await rt.run(f)  # wrong
        run = await rt.invoke(Graph("g", Notes))
        print(run.state.reop)  # wrong
        print(run.rsult)  # wrong
    return state
