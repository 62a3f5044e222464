"""A support agent: a conversation in a thread, a tool, an approval, and a refund that happens once.

Run it, answer it, kill it anywhere and run it again:

    holdfast run examples/support_agent.py --thread ada --input '{"message": "My order 17 arrived broken."}'
    holdfast waits
    holdfast approve RUN && holdfast resume RUN examples/support_agent.py

The model here is a few rules, so that the example works offline. Put a call of yours in its place.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from holdfast import Absent, Context, Graph, Happened, State, thread, window

LEDGER = Path("refunds.txt")
ORDERS = {"17": 4200, "18": 990}


class Plan(msgspec.Struct, frozen=True):
    """What the model wants to do: answer, or refund an order first. The amount is in cents."""

    say: str
    order: str = ""
    refund: int = 0


class Desk(State):
    message: str
    plan: Plan = Plan("")
    reply: str = ""
    talk: Annotated[list[str], window(20), thread]  # the last twenty lines, carried from run to run of the thread


agent = Graph("support-agent", Desk, version="1")


def ask_model(talk: list[str], message: str) -> Plan:
    """Decides what to do. A real one would call a model with the conversation so far."""
    order = next((word.strip(".,!?") for word in message.split() if word.strip(".,!?") in ORDERS), "")
    if order and "broken" in message:
        return Plan(f"I am sorry. I have refunded order {order}.", order, ORDERS[order])
    return Plan(f"Thank you. We have spoken {len(talk) // 2} times before. What can I do for you?")


def pay_back(order: str, cents: int, *, idempotency_key: str) -> str:
    """Pays money back. The line stands for a payment provider; the key is what makes a second call harmless there."""
    with LEDGER.open("a") as out:
        out.write(f"{idempotency_key} {order} {cents}\n")
    return f"refund of {cents / 100:.2f} for order {order}"


def was_paid_back(key: str, order: str, cents: int) -> Happened | Absent:
    """Asks the provider what happened, after a crash between the payment and its record."""
    paid = LEDGER.exists() and any(line.startswith(key) for line in LEDGER.read_text().splitlines())
    return Happened(f"refund of {cents / 100:.2f} for order {order}") if paid else Absent()


@agent.node(start=True)
async def think(state: Desk, ctx: Context) -> dict[str, Plan]:
    return {"plan": await ctx.step(ask_model, list(state.talk), state.message)}


@agent.node(after="think")
async def act(state: Desk, ctx: Context) -> dict[str, str]:
    plan = state.plan
    if plan.refund:
        shown = {"order": plan.order, "cents": plan.refund}
        decision = await ctx.approve(f"Refund order {plan.order}?", show=shown, timeout=timedelta(days=2), on_deny="deliver")
        if not decision.approved:
            return {"reply": "A colleague will come back to you about the refund."}
        await ctx.effect(pay_back, plan.order, plan.refund, verify=was_paid_back)
    return {"reply": plan.say}


@agent.node(after="act")
def remember(state: Desk) -> dict[str, list[str]]:
    return {"talk": [f"customer: {state.message}", f"agent: {state.reply}"]}
