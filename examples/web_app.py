"""A web application that takes orders, with a worker beside it that does the work.

Start the application and, in another terminal, a worker over the same store:

    uvicorn examples.web_app:app
    holdfast worker examples/web_app.py:orders --store sqlite:///orders.db

    curl -X POST localhost:8000/orders -H 'Idempotency-Key: a1' -d '{"item": "lamp", "cents": 4200}'
    curl localhost:8000/orders/RUN
    curl -X POST localhost:8000/orders/RUN/approve

The application only records: it answers at once, and an order that it has confirmed is done even if every process dies right after.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import Absent, Context, Happened, HoldfastError, Runtime, UsageError, flow

URL = os.environ.get("HOLDFAST_STORE", "sqlite:///orders.db")
CHARGES = Path("charges.txt")
ASK_FROM = 10_000
"""Orders from so many cents on are approved by a person."""


def charge(item: str, cents: int, *, idempotency_key: str) -> str:
    """Charges a card. The line stands for a payment provider."""
    with CHARGES.open("a") as out:
        out.write(f"{idempotency_key} {item} {cents}\n")
    return f"charged {cents / 100:.2f}"


def was_charged(key: str, item: str, cents: int) -> Happened | Absent:
    """Asks the provider what happened, after a crash between the charge and its record."""
    known = CHARGES.exists() and any(line.startswith(key) for line in CHARGES.read_text().splitlines())
    return Happened(f"charged {cents / 100:.2f}") if known else Absent()


@flow("orders", version="1")
async def orders(ctx: Context, item: str, cents: int) -> str:
    if cents >= ASK_FROM:
        await ctx.approve(f"Sell {item}?", show={"item": item, "cents": cents})
    paid = await ctx.effect(charge, item, cents, verify=was_charged)
    return f"{item}: {paid}"


async def create(request: Request) -> JSONResponse:
    """Takes an order. The same ``Idempotency-Key`` is the same order, however often a browser sends it."""
    rt: Runtime = request.app.state.runtime
    order = await request.json()
    run = await rt.submit(orders, {"item": order.get("item"), "cents": order.get("cents")}, key=request.headers.get("idempotency-key"))
    return JSONResponse({"order": run.run_id}, status_code=202)


async def show(request: Request) -> JSONResponse:
    rt: Runtime = request.app.state.runtime
    run = await rt.get(request.path_params["run_id"])
    return JSONResponse({"order": run.run_id, "status": run.condition, "questions": [w.prompt for w in run.waits], "result": run.result})


async def approve(request: Request) -> JSONResponse:
    rt: Runtime = request.app.state.runtime
    run = await rt.approve(request.path_params["run_id"], actor="shop", drive=False)
    return JSONResponse({"order": run.run_id, "status": run.condition})


async def refused(request: Request, error: Exception) -> JSONResponse:
    """Every error of Holdfast has a code and says what to do."""
    status = 422 if isinstance(error, UsageError) else 409
    return JSONResponse({"code": getattr(error, "code", "error"), "detail": str(error)}, status_code=status)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with Runtime(URL, skills=[orders]) as rt:
        app.state.runtime = rt
        yield


app = Starlette(
    routes=[
        Route("/orders", create, methods=["POST"]),
        Route("/orders/{run_id}", show),
        Route("/orders/{run_id}/approve", approve, methods=["POST"]),
    ],
    lifespan=lifespan,
    exception_handlers={HoldfastError: refused},
)
