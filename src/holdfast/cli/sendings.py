"""Shows intents to programs and people, with the commands that settle those whose outcome is unknown."""

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
from holdfast.core.intents import DOUBTFUL, MARK_SENT, REDRIVE, find_lost
from holdfast.core.lease import Alive
from holdfast.core.toolcalls import TYPE
from holdfast.handle import IntentView
from holdfast.runtime import Runtime


async def intents_of(rt: Runtime, found: Iterable[IntentView]) -> list[dict[str, Any]]:
    """Returns intents as JSON has them, with their runs' secrets hidden."""
    shown = list(found)
    hidden = {run_id: await rt.mask(run_id) for run_id in {i.run_id for i in shown}}
    return [hidden[i.run_id].record(i.record()) for i in shown]


def intent_as_wait(intent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an unknown intent in the shape of a wait, of the kind ``intent``: ``settle`` and ``redrive`` answer it."""
    asked = ws.Wait(wait_id=intent["intent_id"], kind=ws.WaitKind.EFFECT, step=0, task="", prompt="It may or may not have been sent.")
    told = {"kind": "intent", "name": intent["type"], "show": intent["payload"], "available_actions": [MARK_SENT, REDRIVE, ABANDONED]}
    return {**describe.plain(describe.wait(asked)), **told, "run_id": intent["run_id"], "requested_at": intent["created_at"]}


async def stuck(rt: Runtime, found: Iterable[IntentView]) -> set[str]:
    """Returns the requests of tool calls that no runner answers by itself: no runner is up that takes them, or the one that had the request is gone."""
    requests = [i for i in found if i.type.startswith(TYPE)]
    out = {i.intent_id for i in requests if i.no_transport_for}
    held = [there for i in requests if i.state == "sending" and (there := await rt.store.intent(i.intent_id)) is not None]
    alive = {w.owner: Alive(w.alive) for w in await rt.store.workers(counted=False)} if held else {}
    return out | {i.intent_id for i in held if find_lost(i, rt.store.now(), alive.get(i.owner or "", Alive.UNKNOWN)) is not i}


def _request(call: Call, intent: Mapping[str, Any]) -> None:
    """Prints a request of a tool call that a person has to settle, with the commands: the run goes on with the person's answer."""
    name, tool = intent["intent_id"], o.inline((intent["payload"] or {}).get("tool") or "the tool", 60)
    never = not any(a["outcome"] in DOUBTFUL or a["ended_at"] is None for a in intent["attempts"])
    what = "no tool runner answers its request" if never else "it may or may not have run. Look into its workspace, then record what you found"
    click.echo(name)
    o.prose(f"{tool}, in the workspace {o.inline(intent['type'].removeprefix(TYPE), 24)}: {what}:", first="    ", indent="    ")
    happened = Advice("It happened. The JSON becomes its outcome:", call.line("settle", name, "--as", "sent", "--result", '{"exit_code": 0}', "--reason", "WHY"))
    anew = [] if intent["state"] == "queued" else [Advice("It did not happen. Request it again:", call.line("redrive", name))]
    pages.advise([happened, *anew, Advice("Give it up; the call fails:", call.line("settle", name, "--as", "abandoned", "--reason", "WHY"))], indent="    ")


def doubtful(call: Call, intent: Mapping[str, Any]) -> None:
    """Prints an intent that a person has to settle, with the commands for it."""
    name = intent["intent_id"]
    if intent["type"].startswith(TYPE):
        return _request(call, intent)
    why = f" ({o.inline(intent['detail'], 120)})" if intent["detail"] else ""
    what = f"may or may not have been sent{why}. Ask its receiver, then record what you found:" if intent["state"] == "unknown" else f"could not be sent{why}"
    click.echo(name)
    o.prose(f"{o.inline(intent['type'], 24)} {what}", first="    ", indent="    ")
    sent = [Advice("It was sent:", call.line("settle", name, "--as", "sent", "--reason", "WHY"))] if intent["state"] == "unknown" else []
    again = "It was not sent. Send it now:" if sent else "Send it again:"
    pages.advise([*sent, Advice(again, call.line("redrive", name)), Advice("Do not send it:", call.line("settle", name, "--as", "abandoned", "--reason", "WHY"))], indent="    ")
