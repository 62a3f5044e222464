"""Programs: what a skill is once it is declared: nodes, triggers, channels, and the fingerprint of its shape (§3.2).

Every way in which a node can become runnable is one ``Trigger`` over channels. ``after=`` listens to the engine's
channels ``done:<node>``, routers and ``Goto`` write ``goto:<node>``, a start node listens to ``@start``, ``on=``
to the state channels themselves. ``plan`` (superstep) then needs one rule for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from holdfast.core import canon
from holdfast.core.channels import Channel
from holdfast.core.effects import EffectClass
from holdfast.core.errors import InvalidGraph
from holdfast.core.retry import ONCE, Retry

START = "@start"
END = "@end"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*\Z")
DEFAULT_TIMEOUT_US = 60_000_000
DEFAULT_STEP_LIMIT = 1_000


class Goto(msgspec.Struct, frozen=True):
    """A node's return value: write ``writes`` and go to ``node`` (one name, several, or END) in place of its edges."""

    node: str | tuple[str, ...] | list[str]
    writes: Mapping[str, Any] | None = None

    @property
    def targets(self) -> tuple[str, ...]:
        names = (self.node,) if isinstance(self.node, str) else tuple(self.node)
        return tuple(n for n in names if n != END)


class Send(msgspec.Struct, frozen=True):
    """A node's return value, in a list: run ``node`` once with ``payload`` (it arrives as ``ctx.payload``)."""

    node: str
    payload: Any = None


class AnyOf(msgspec.Struct, frozen=True):
    nodes: tuple[str, ...]


def any_of(*nodes: str) -> AnyOf:
    """``after=any_of("a", "b")``: run when any of them has completed (§4.17)."""
    return AnyOf(nodes)


class Trigger(msgspec.Struct, frozen=True):
    """``all``: every channel is newer than the node has seen; ``any``: one is."""

    mode: Literal["all", "any"]
    channels: tuple[str, ...]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A declared node. ``call`` takes (state), (state, ctx) or, for a flow, (ctx, **inputs): ``shape`` says which."""

    name: str
    call: Callable[..., Any]
    shape: Literal["state", "state_ctx", "flow", "subgraph"] = "state"
    asynchronous: bool = True
    triggers: tuple[Trigger, ...] = ()
    when: Callable[[Any], bool] | None = None
    routers: tuple[Callable[[Any], Any], ...] = ()
    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] | None = None
    retry: Retry = ONCE
    timeout_us: int = DEFAULT_TIMEOUT_US
    side_effects: EffectClass = EffectClass.NONE
    capabilities: tuple[str, ...] = ()
    delivers: bool = False
    gate: Any = None
    child: Any = None
    pass_in: tuple[str, ...] | None = None
    pass_out: tuple[str, ...] | None = None


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A skill as the engine runs it. ``listeners``: channel to the nodes it may wake, in declaration order."""

    id: str
    version: str
    channels: Mapping[str, Channel]
    nodes: Mapping[str, Node]
    listeners: Mapping[str, tuple[str, ...]]
    order: Mapping[str, int]
    fingerprint: str
    flow: bool = False
    kind: str | None = None
    step_limit: int = DEFAULT_STEP_LIMIT
    state: Any = None
    migrates: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    joins: frozenset[str] = frozenset()


def compile(
    *,
    id: str,
    version: str,
    channels: Mapping[str, Channel],
    nodes: Mapping[str, Node],
    flow: bool = False,
    signature: str = "",
    **options: Any,
) -> Program:
    """Checks the declaration and gives the program.

    Raises:
        InvalidGraph: with every fault found, one a line, in words a newcomer understands.
    """
    faults = _faults(channels, nodes) if not flow else []
    if faults:
        raise InvalidGraph(f"the graph {id!r} cannot run: " + "; ".join(faults), hint="fix the declaration; graph.validate() repeats this check")
    listeners: dict[str, list[str]] = {}
    for node in nodes.values():
        for trigger in node.triggers:
            for channel in trigger.channels:
                names = listeners.setdefault(channel, [])
                if node.name not in names:
                    names.append(node.name)
        listeners.setdefault(f"goto:{node.name}", []).append(node.name)
    shape: Any
    if flow:
        shape = ["flow", id, version, signature]
    else:
        shape = {
            "channels": {c.name: [c.reducer.tag, c.thread] for c in channels.values()},
            "nodes": {n.name: [[t.mode, list(t.channels)] for t in n.triggers] + [bool(n.routers), n.shape] for n in nodes.values()},
        }
    return Program(
        id=id,
        version=version,
        channels=channels,
        nodes=nodes,
        listeners={c: tuple(n) for c, n in listeners.items()},
        order={n: i for i, n in enumerate(nodes)},
        fingerprint=canon.fingerprint(shape),
        flow=flow,
        **options,
    )


def _faults(channels: Mapping[str, Channel], nodes: Mapping[str, Node]) -> list[str]:
    if not nodes:
        return ["it has no nodes (decorate a function with @graph.node)"]
    faults = []
    starts = [n for n in nodes.values() if any(START in t.channels for t in n.triggers)]
    data_driven = [n for n in nodes.values() if any(c in channels for t in n.triggers for c in t.channels)]
    if not starts and not data_driven:
        faults.append("no node starts it (give one start=True, or on=[a channel of the input])")
    for node in nodes.values():
        if not NAME.match(node.name):
            faults.append(f"the node name {node.name!r} may hold letters, digits, _ and - only")
        for trigger in node.triggers:
            for channel in trigger.channels:
                kind, _, name = channel.partition(":")
                if kind == "done" and name not in nodes:
                    faults.append(f"{node.name} comes after {name!r}, which is not a node")
                elif not _ and channel != START and channel not in channels:
                    faults.append(f"{node.name} listens to {channel!r}, which is not a channel of the state")
        for name in (*(node.reads or ()), *(node.writes or ())):
            if name not in channels:
                faults.append(f"{node.name} declares the channel {name!r}, which the state does not have")
    wired = {t for n in nodes.values() for t in (n.name,) if n.triggers}
    routed = any(n.routers for n in nodes.values())
    loose = [n for n in nodes if n not in wired]
    if loose and not routed and len(loose) == len(nodes):
        faults.append("no node is wired to anything")
    return faults
