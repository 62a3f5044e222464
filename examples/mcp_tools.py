"""A tool of an MCP server as an effect of a run: called once, after an approval, and asked about where its answer was lost.

    python -m examples.mcp_tools
"""

from __future__ import annotations

import asyncio

from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from holdfast import Context, Runtime, flow
from holdfast.integrations.mcp import mcp_tool

PAID: list[int] = []
bank = MCPServer("bank")


@bank.tool(annotations=ToolAnnotations(read_only_hint=True))
async def balance() -> str:
    """What is left: a recorded step, for the tool says that it only reads."""
    return "100.00"


@bank.tool()
async def pay(cents: int) -> str:
    """Pays: an effect, for the tool says nothing of what a second call would do."""
    PAID.append(cents)
    return f"paid {cents}"


@flow("mcp-refund", version="1")
async def refund(ctx: Context, cents: int) -> str:
    left = await mcp_tool(bank, "balance")
    await ctx.approve("Pay back?", show={"cents": cents, "left": left[0]["text"]})
    return str((await mcp_tool(bank, "pay", {"cents": cents}))[0]["text"])


async def main(url: str = "sqlite:///refund.db") -> str:
    async with Runtime(url, skills=[refund]) as rt:
        run = await rt.invoke(refund, {"cents": 4200})
        run = await rt.approve(run.run_id, actor="ada")
        return str(run.result)


if __name__ == "__main__":
    print(asyncio.run(main()))
