"""Intents as programs and people are shown them, with the commands that answer those that nobody knows about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from holdfast.cli import output as o
from holdfast.cli import pages
from holdfast.cli.session import Call
from holdfast.core import describe
from holdfast.core import waits as ws
from holdfast.core.explain import Advice
from holdfast.core.intents import ABANDON as ABANDONED
from holdfast.core.intents import MARK_SENT, REDRIVE
from holdfast.handle import IntentView
from holdfast.runtime import Runtime


async def intents_of(rt: Runtime, found: Iterable[IntentView]) -> list[dict[str, Any]]:
    """Intents as JSON has them, their runs' secrets hidden."""
    shown = list(found)
    hidden = {run_id: await rt.masked(run_id) for run_id in {i.run_id for i in shown}}
    return [hidden[i.run_id].record(i.record()) for i in shown]


def intent_as_wait(intent: Mapping[str, Any]) -> dict[str, Any]:
    """An unknown intent in the shape of a wait, of the kind ``intent``: ``settle`` and ``redrive`` answer it."""
    asked = ws.Wait(wait_id=intent["intent_id"], kind=ws.WaitKind.EFFECT, step=0, task="", prompt="It may or may not have been sent.")
    told = {"kind": "intent", "name": intent["type"], "show": intent["payload"], "available_actions": [MARK_SENT, REDRIVE, ABANDONED]}
    return {**describe.plain(describe.wait(asked)), **told, "run_id": intent["run_id"], "requested_at": intent["created_at"]}


def doubtful(call: Call, intent: Mapping[str, Any]) -> None:
    """An intent that a person has to say something about, with the commands that do."""
    name = intent["intent_id"]
    why = f" ({o.inline(intent['detail'], 120)})" if intent["detail"] else ""
    what = f"may or may not have been sent{why}. Ask its receiver, then record what you found:" if intent["state"] == "unknown" else f"could not be sent{why}"
    click.echo(name)
    o.prose(f"{o.inline(intent['type'], 24)} {what}", first="    ", indent="    ")
    sent = [Advice("It was sent:", call.line("settle", name, "--as", "sent", "--reason", "WHY"))] if intent["state"] == "unknown" else []
    again = "It was not sent. Send it now:" if sent else "Send it again:"
    pages.advise([*sent, Advice(again, call.line("redrive", name)), Advice("Do not send it:", call.line("settle", name, "--as", "abandoned", "--reason", "WHY"))], indent="    ")
