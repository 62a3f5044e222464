"""A server in this process, a client for it, and skills to serve."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx

from holdfast import Context, Graph, Runtime, State, append
from holdfast.access import SHELF, Tokens
from holdfast.api import app


class Notes(State):
    name: str = ""
    said: Annotated[list[str], append]


def graph() -> Graph[Notes]:
    g = Graph("notes", Notes)

    @g.node(start=True)
    async def first(state: Notes, ctx: Context) -> dict[str, Any]:
        ctx.record("greetings", state.name, {"to": state.name})
        return {"said": [f"hello {state.name}"]}

    @g.node(after="first")
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        if state.name == "fail":
            raise ValueError("it broke")
        if state.name == "wait":
            await ctx.wait("go")
        elif state.name != "quick":
            await ctx.approve("Go on?", show={"draft": state.said[0]})
        return {"said": ["bye"]}

    return g


@contextlib.asynccontextmanager
async def served(rt: Runtime, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, in this process."""
    made = app(rt, **options)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=made, raise_app_exceptions=False), base_url="http://holdfast") as client:
        client.app = made  # type: ignore[attr-defined]
        yield client
        made.state.api.counting.close()


async def token(rt: Runtime, *scopes: str, tenant: str = "default") -> str:
    made = await Tokens(rt.shelf(SHELF)).create(scopes or ("admin",), now=rt.store.now(), tenant_id=tenant, actor="ada")
    return made.token


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


NOTES = graph()
"""A TARGET for servers of their own process."""
