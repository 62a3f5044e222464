"""What the four programs share: a draft, and a mail server that is reached by HTTP."""

from __future__ import annotations

import json
import os
import urllib.request

SERVER = os.environ.get("MAIL_SERVER", "http://127.0.0.1:0")


def draft(customer: str) -> str:
    """Writes the mail. It stands for a call of a model, which costs money: the server counts it."""
    _post("/drafts", {"customer": customer})
    return f"Dear {customer}, your refund is on its way."


def send(customer: str, text: str, *, idempotency_key: str = "") -> str:
    """Sends the mail. The first time, the server kills this process after the mail has gone out and before it answers."""
    return str(_post("/mails", {"customer": customer, "text": text, "key": idempotency_key, "pid": os.getpid()})["id"])


def was_sent(key: str) -> str | None:
    """Looks in the server's list of sent mails for a key."""
    with urllib.request.urlopen(f"{SERVER}/mails?key={key}") as answer:
        found: dict[str, str | None] = json.load(answer)
    return found["id"]


def _post(path: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(SERVER + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        found: dict[str, object] = json.load(answer)
    return found
