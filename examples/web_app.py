"""A web application that takes orders, with a worker beside it that does the work.

Start the application and, in another terminal, a worker over the same store:

    uvicorn examples.web_app:app
    holdfast worker examples/web_app.py:orders --store sqlite:///orders.db

    curl -X POST localhost:8000/orders -H 'Idempotency-Key: a1' -d '{"item": "lamp", "cents": 4200}'
    curl localhost:8000/orders/RUN
    curl -X POST localhost:8000/orders/RUN/approve -d '{"wait_id": "WAIT"}'
    curl -N localhost:8000/orders/RUN/events

The application only records: it answers at once, and an order that it has confirmed is done even if every process dies right after.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from holdfast import Absent, Conflict, Context, Happened, HoldfastError, Rejected, Runtime, StoreError, UsageError, flow
from holdfast.core.errors import NotFound, QueueFull, RequestConflict

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
    ctx.emit(f"The card is charged for {item}.")
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
    questions = [{"wait_id": w.wait_id, "prompt": w.prompt, "show": w.show} for w in run.waits]
    return JSONResponse({"order": run.run_id, "status": run.condition, "questions": questions, "result": run.result})


async def approve(request: Request) -> JSONResponse:
    """Records the answer to one question. The worker continues the run; the same request again changes nothing."""
    rt: Runtime = request.app.state.runtime
    wait_id = str((await request.json()).get("wait_id"))
    run = await rt.approve(request.path_params["run_id"], wait_id=wait_id, actor="shop", drive=False)
    return JSONResponse({"order": run.run_id, "status": run.condition})


async def follow(request: Request) -> StreamingResponse:
    """A run's stream for an ``EventSource``: when it reconnects, it sends the last id, and gets each later part once."""
    rt: Runtime = request.app.state.runtime
    run = await rt.get(request.path_params["run_id"])
    parts = rt.stream(run.run_id, after=request.headers.get("last-event-id"), modes=["events", "custom"])

    async def frames() -> AsyncIterator[str]:
        async for part in parts:
            kind = "superseded" if part.superseded else part.mode
            data = part.data.type if part.mode == "events" else part.data
            yield f"id: {part.cursor}\nevent: {kind}\ndata: {json.dumps({'step': part.step_id, 'data': data})}\n\n"
        yield "event: end\ndata: {}\n\n"

    return StreamingResponse(frames(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


STATUSES = {NotFound: 404, QueueFull: 429, UsageError: 422, RequestConflict: 422, Rejected: 409, Conflict: 409, StoreError: 503}


async def refused(request: Request, error: Exception) -> JSONResponse:
    """The class of an error says who must act. Its ``hint`` is left out: it names commands of a shell."""
    status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 500)
    return JSONResponse({"code": getattr(error, "code", "error"), "detail": getattr(error, "message", "")}, status_code=status)


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
        Route("/orders/{run_id}/events", follow),
    ],
    lifespan=lifespan,
    exception_handlers={HoldfastError: refused},
)
