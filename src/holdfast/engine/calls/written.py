"""Intents that a node returns as plain values, in the channel ``intents``, as ``ctx.send`` would have made them (§9.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core import bounds, canon
from holdfast.core.checkpoint import IntentWrite
from holdfast.core.errors import BadReturn
from holdfast.core.superstep import INTENTS


def read_intents(written: Any) -> list[IntentWrite]:
    """A mapping for each, or one alone: a type, and a payload of its own or else the rest of it.

    Raises:
        BadReturn, UnknownOption, InvalidInput, TooLarge: it is none.
    """
    items = written if isinstance(written, list | tuple) else [written]
    out = []
    for item in items:
        if not isinstance(item, Mapping) or not isinstance(item.get("type"), str):
            raise BadReturn("an intent is a mapping with a type and a payload")
        rest = {k: v for k, v in item.items() if k not in ("type", "payload", "key", "order")}
        if rest and "payload" in item:
            raise bounds.refuse_unknown(next(iter(rest)), ("type", "payload", "key", "order"), "an intent with a payload")
        payload = item.get("payload", rest or None)
        key, order = (bounds.text("" if item.get(name) is None else item[name], f"{INTENTS}.{name}", empty=True) for name in ("key", "order"))
        out.append(IntentWrite(bounds.text(item["type"], f"{INTENTS}.type"), canon.pack(payload, "intent")[1], key, order))
    return out


__all__ = ["read_intents"]
