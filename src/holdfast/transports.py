"""Transports send outgoing messages (intents) to their receivers (§9.1): ``Runtime(transports={"mail": send_mail, "hook": Webhook(secret="…")})``.

A transport is a function ``(payload, key)``, or an object with ``send(payload, key)``. This module has the built-in transports, and what a
transport may raise and return. ``docs/outbox.md`` explains more.
"""

from __future__ import annotations

from holdfast.core.effects import Absent, Happened, Unknown
from holdfast.core.errors import MaybeSent, PermanentError, RetryAfter
from holdfast.core.retry import Retry
from holdfast.outbox.transports import Function, Further, Row, Signal, Subprocess
from holdfast.outbox.webhook import Webhook, signature
from holdfast.ports import Transport
from holdfast.workers.toolrunner import RemoteTools

__all__ = [
    "Absent", "Function", "Further", "Happened", "MaybeSent", "PermanentError", "RemoteTools", "Retry", "RetryAfter", "Row", "Signal", "Subprocess", "Transport", "Unknown", "Webhook",
    "signature",
]
