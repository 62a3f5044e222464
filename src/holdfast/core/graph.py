"""Programs: a declared skill as nodes, triggers, channels, and the fingerprint of its shape (§3.2).

Every way in which a node can become runnable is a ``Trigger`` over channels. ``after=`` listens to the engine's
channels ``done:<node>``, routers and ``Goto`` write ``goto:<node>``, a start node listens to ``@start``, and ``on=``
to the state channels themselves. So ``plan`` (superstep) needs only one rule.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from holdfast.core import canon, kinds
from holdfast.core.bounds import guess, show
from holdfast.core.channels import LAST, TOPIC, Channel
from holdfast.core.effects import EffectClass
from holdfast.core.errors import InvalidGraph, InvalidInput
from holdfast.core.kinds import Kind
from holdfast.core.retry import ONCE, Retry

START = "@start"
"""The place before the first nodes: ``graph.edge(START, "a")`` runs the node ``a`` at the start."""
END = "@end"
"""The end of a graph: a target for edges, routers and Goto. A path that leads to it starts no more nodes."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_\-]*\Z")
DEFAULT_TIMEOUT_US = 60_000_000
DEFAULT_STEP_LIMIT = 1_000


class Goto(msgspec.Struct, frozen=True):
    """A node's return value: write ``writes`` and continue at ``node`` (a name, several names, or END) instead of along its edges."""

    node: str | tuple[str, ...] | list[str]
    writes: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in self.node if isinstance(self.node, tuple | list) else (self.node,):
            if not isinstance(name, str):
                raise _no_name("Goto", name)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the nodes that run next, without ``END``."""
        names = (self.node,) if isinstance(self.node, str) else tuple(self.node)
        return tuple(n for n in names if n != END)


class Send(msgspec.Struct, frozen=True):
    """A node's return value, in a list: run ``node`` once with ``payload``, which it gets as ``ctx.payload``."""

    node: str
    payload: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.node, str):
            raise _no_name("Send", self.node, ", …")


def _no_name(what: str, given: Any, more: str = "") -> InvalidInput:
    """Returns the error for something other than a node's name, often the node's function."""
    meant = getattr(given, "__name__", None)
    return InvalidInput(f"{what} takes the name of a node, not {show(given)}", field="node", hint=f"{what}({meant!r}{more})" if meant else "")


class AnyOf(msgspec.Struct, frozen=True):
    nodes: tuple[str, ...]


def any_of(*nodes: str) -> AnyOf:
    """``after=any_of("a", "b")``: the node runs when any of these nodes has completed (§4.17)."""
    return AnyOf(nodes)


class Trigger(msgspec.Struct, frozen=True):
    """A condition on channels under which a node runs. ``all``: every channel is newer than the node has seen; ``any``: one is."""

    mode: Literal["all", "any"]
    channels: tuple[str, ...]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A declared node. ``call`` takes (state), (state, ctx) or, for a flow, (ctx, **inputs): ``shape`` says which.

    ``gate`` is asked before the step and ``check`` after it; ``on_fail`` says what happens if one does not pass (§8.2).
    ``child`` is a sub-graph's Program; ``routes`` is False if the code clearly never returns Goto or Send;
    ``sends`` are the nodes that run only for its ``Send``s: if it sends an empty list, they are done at once.
    ``gated``: a policy decides about it, because it declares capabilities, effects or a gate of its own (§8.1); this is determined once, here.
    ``limit`` names the limit that it uses while it runs (§10.11). ``timed``: its timeout is its own and counts from its start, else from its last progress (§10.10).
    """

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
    timed: bool = False
    side_effects: EffectClass = EffectClass.NONE
    capabilities: tuple[str, ...] = ()
    idempotent: bool = False
    verify: Callable[..., Any] | None = None
    undo: Callable[..., Any] | None = None
    delivers: bool = False
    gate: Any = None
    check: Any = None
    on_fail: str = "block"
    child: Any = None
    pass_in: tuple[str, ...] | None = None
    pass_out: tuple[str, ...] | None = None
    routes: bool = True
    sends: tuple[str, ...] = ()
    limit: str | None = None
    gated: bool = False

    def __post_init__(self) -> None:
        gated = bool(self.capabilities) or self.side_effects is not EffectClass.NONE or self.gate is not None
        msgspec.structs.force_setattr(self, "gated", gated)

    @property
    def light(self) -> bool:
        """Whether the node is one async function that is called once in this event loop, without a gate, check, condition, router or limit."""
        asked = self.when is not None or self.gated or self.check is not None or bool(self.routers)
        return self.shape in ("state", "state_ctx") and self.limit is None and self.asynchronous and not asked

    @property
    def plain(self) -> bool:
        """Whether the node is light and takes only the state."""
        return self.shape == "state" and self.light


class Straight(msgspec.Struct, frozen=True):
    """The only node that follows another, if it listens only to that node's end: its name, and the channels ``done:`` and ``goto:``
    that may wake it."""

    node: str
    done: str
    goto: str


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A skill as the engine runs it. ``listeners``: by channel, the nodes that it may wake, in declaration order;
    ``lasting``: the channels whose writes replace their values; ``reducing``: by channel, the tag of another built-in reducer; ``plain``: the channels of these two that each plain node may write (``core/fused``);
    ``light``: the channels that each light node may write, with any reducer;
    ``quick``: for each light node, by channel, the shape of values that fit without conversion, and ``lists`` that of the items of a list;
    ``given``: the same two mappings for the channels of an input;
    ``straight``: by node, the only node that follows it; ``heard``: the channels of the state that nodes listen to;
    ``carried``: the channels that a thread carries from one run to the next, ``secrets`` those whose values are hidden (§13.5), ``required`` those that an input must have;
    ``capabilities``: a fingerprint of its nodes' capabilities; ``writes`` and ``values``: what may be written to a channel, and what
    its value may be (§3.7); ``ways``: the ways between nodes that the fused line has cached (``core/fused``);
    ``starts``: the first checkpoints of its runs that ``core/starts`` has cached."""

    id: str
    version: str
    channels: Mapping[str, Channel]
    nodes: Mapping[str, Node]
    listeners: Mapping[str, tuple[str, ...]]
    order: Mapping[str, int]
    fingerprint: str
    flow: bool = False
    kind: str | None = None
    redo: str | None = None
    step_limit: int = DEFAULT_STEP_LIMIT
    state: Any = None
    migrates: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    lasting: frozenset[str] = frozenset()
    plain: Mapping[str, frozenset[str]] = {}
    reducing: Mapping[str, str] = {}
    light: Mapping[str, frozenset[str]] = {}
    quick: Mapping[str, Mapping[str, canon.Shape]] = {}
    lists: Mapping[str, Mapping[str, canon.Shape]] = {}
    given: tuple[Mapping[str, canon.Shape], Mapping[str, canon.Shape]] = ({}, {})
    straight: Mapping[str, Straight] = {}
    heard: frozenset[str] = frozenset()
    carried: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    capabilities: str | None = None
    writes: Mapping[str, Kind] = {}
    values: Mapping[str, Kind] = {}
    ways: dict[Any, Any] = msgspec.field(default_factory=dict)
    starts: dict[Any, Any] = msgspec.field(default_factory=dict)


def compile(
    *,
    id: str,
    version: str,
    channels: Mapping[str, Channel],
    nodes: Mapping[str, Node],
    flow: bool = False,
    signature: str = "",
    known: Iterable[str] = (),
    redo: str | None = None,
    **options: Any,
) -> Program:
    """Checks the declaration and returns the program. ``known`` are faults that the caller has found already.

    Raises:
        InvalidGraph: lists every fault, one per line, in words that a newcomer understands.
    """
    faults = [*known, *_faults(channels, nodes)] if not flow else []
    if redo is not None and redo not in nodes:
        faults.append(f"redo names {redo!r}, which is not a node{guess(redo, nodes)}")
    if faults:
        raise refuse(id, faults)
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
            "nodes": {n.name: _shape(n) for n in nodes.values()},
        }
    lasting = frozenset(c.name for c in channels.values() if c.reducer.tag == LAST)
    reducing = {c.name: c.reducer.tag for c in channels.values() if c.reducer.function is None and c.reducer.tag not in (LAST, TOPIC)}
    known_of = lasting.union(reducing)
    heard = frozenset(channels).intersection(listeners)
    light = {} if flow else {n.name: frozenset(channels if n.writes is None else n.writes).intersection(channels) for n in nodes.values() if n.light}
    plain = {name: known_of & may for name, may in light.items() if nodes[name].plain}
    writes = {c.name: k for c in channels.values() if (k := kinds.of_write(c.type, c.reducer.tag, c.default, _takes(c.reducer.function))) is not None}
    fits = {name: _fits(writes.get(name), reducing.get(name, LAST)) for name in known_of if name.isidentifier()}  # these names may be keys without a check
    quick, lists = {name: one for name, (one, _) in fits.items()}, {name: each for name, (_, each) in fits.items()}
    return Program(
        id=id,
        version=version,
        channels=channels,
        nodes=nodes,
        listeners={c: tuple(n) for c, n in listeners.items()},
        order={n: i for i, n in enumerate(nodes)},
        fingerprint=canon.fingerprint(shape),
        lasting=lasting,
        plain=plain,
        reducing=reducing,
        light=light,
        quick={name: _within(may, quick) for name, may in light.items()},
        lists={name: _within(may, lists) for name, may in light.items()},
        given=({}, {}) if flow else (quick, lists),
        straight={n: s for n in nodes if (s := _straight(n, nodes, listeners)) is not None},
        heard=heard,
        carried=tuple([c.name for c in channels.values() if c.thread]),
        secrets=tuple([c.name for c in channels.values() if c.secret]),
        required=tuple([c.name for c in channels.values() if c.required]),
        capabilities=canon.fingerprint(asked) if (asked := [[n.name, list(n.capabilities)] for n in nodes.values() if n.capabilities]) else None,
        writes=writes,
        values={c.name: k for c in channels.values() if (k := kinds.of_value(c.type, c.default)) is not None},
        flow=flow,
        redo=redo,
        **options,
    )


def _straight(name: str, nodes: Mapping[str, Node], listeners: Mapping[str, list[str]]) -> Straight | None:
    done = f"done:{name}"
    after = listeners.get(done, ())
    if len(after) != 1 or [t.channels for t in nodes[after[0]].triggers] != [(done,)]:
        return None
    return Straight(after[0], done, f"goto:{after[0]}")


def _within(may: frozenset[str], found: Mapping[str, canon.Shape]) -> Mapping[str, canon.Shape]:
    return found if found.keys() <= may else {c: found[c] for c in may if c in found}


def _fits(kind: Kind | None, tag: str) -> tuple[canon.Shape, canon.Shape]:
    """Returns the shape of values, other than lists, that fit a channel without conversion, and the shape of list items that do."""
    if tag == "merge":
        shape = canon.DictOf(object) if kind is None else kind.shape
        return shape if isinstance(shape, canon.DictOf) else None, None
    return (object, object) if kind is None else (kind.shape, kind.each)


def _takes(reducer: Callable[[Any, Any], Any] | None) -> Any:
    """Returns the annotation of the written value in a custom reducer, or ``Any`` if it has none."""
    try:
        hints = typing.get_type_hints(reducer) if reducer is not None else {}
        names = list(inspect.signature(reducer).parameters) if hints and reducer is not None else []
    except (NameError, TypeError, ValueError):
        return Any
    return hints.get(names[1], Any) if len(names) > 1 else Any


def _shape(node: Node) -> list[Any]:
    """Returns the parts of a node that belong to the program's shape; a child's shape does, its code does not."""
    shape: list[Any] = [[t.mode, list(t.channels)] for t in node.triggers] + [bool(node.routers), node.shape]
    if isinstance(node.child, Program):
        shape += [node.child.fingerprint, list(node.pass_in or ()), list(node.pass_out or ())]
    return shape


# -- faults, in words a newcomer understands --------------------------------------------------------


def refuse(id: str, faults: list[str]) -> InvalidGraph:
    """Returns the error that lists all faults, one per line."""
    return InvalidGraph(f"the graph {id!r} cannot run:\n" + "\n".join(f"  - {f}" for f in faults), hint="graph.validate() repeats this check")


def _faults(channels: Mapping[str, Channel], nodes: Mapping[str, Node]) -> list[str]:
    if not nodes:
        return ["it has no nodes (decorate a function with @graph.node)"]
    faults = []
    starts = [n for n in nodes.values() if any(START in t.channels for t in n.triggers)]
    data_driven = [n for n in nodes.values() if any(c in channels for t in n.triggers for c in t.channels)]
    if not starts and not data_driven:
        faults.append("no node starts it (give one start=True, or on=[a channel of the input])")
    for node in nodes.values():
        faults += _of_node(node, channels, nodes)
    loose = [n for n in nodes.values() if not n.triggers]
    if len(loose) == len(nodes):
        faults.append("no node is wired to anything")
    return faults or _find_unreached(nodes)


def _of_node(node: Node, channels: Mapping[str, Channel], nodes: Mapping[str, Node]) -> list[str]:
    faults = []
    if not NAME.match(node.name):
        faults.append(f"the node name {node.name!r} may hold letters, digits, _ and - only")
    for trigger in node.triggers:
        if not trigger.channels:
            faults.append(f"{node.name} can never run: its after= or on= is an empty list")
        for channel in trigger.channels:
            kind, colon, name = channel.partition(":")
            if kind == "done" and name == END:
                faults.append(f"{node.name} comes after END, but no node can")
            elif kind == "done" and name not in nodes:
                faults.append(f"{node.name} comes after {name!r}, which is not a node{guess(name, nodes)}")
            elif not colon and channel != START and channel not in channels:
                faults.append(f"{node.name} listens to {channel!r}, which is not a channel of the state{guess(channel, channels)}")
    for name in dict.fromkeys((*(node.reads or ()), *(node.writes or ()))):
        if name not in channels:
            faults.append(f"{node.name} declares the channel {name!r}, which the state does not have{guess(name, channels)}")
    if isinstance(node.child, Program):
        faults += _of_child(node, node.child, channels)
    return faults


def _of_child(node: Node, child: Program, channels: Mapping[str, Channel]) -> list[str]:
    faults = []
    for way, names in (("pass_in", node.pass_in), ("pass_out", node.pass_out)):
        for name in names or ():
            for whose, has in (("the state", channels), (f"the state of {child.id}", child.channels)):
                if name not in has:
                    faults.append(f"{node.name} has {name!r} in {way}, which {whose} does not have{guess(name, has)}")
    missing = [c.name for c in child.channels.values() if c.required and c.name not in (node.pass_in or ())]
    if missing:
        faults.append(f"{node.name} does not pass in {', '.join(missing)}, which {child.id} needs")
    return faults


def _find_unreached(nodes: Mapping[str, Node]) -> list[str]:
    """Returns a fault for each node that nothing leads to. If a node or a router may choose any node as the next, returns none."""
    if any(n.routers or n.routes for n in nodes.values()):
        return []
    reached: set[str] = set()
    listeners: dict[str, list[Node]] = {}
    for node in nodes.values():
        for trigger in node.triggers:
            for channel in trigger.channels:
                listeners.setdefault(channel, []).append(node)
    news = [c for c in listeners if not c.startswith("done:")]
    while news:
        for node in listeners.get(news.pop(), ()):
            if node.name not in reached and any(_fires(t, reached) for t in node.triggers):
                reached.add(node.name)
                news.append(f"done:{node.name}")
    return [f"{n} is never reached: nothing leads to it (give it after=…, on=… or start=True)" for n in nodes if n not in reached]


def _fires(trigger: Trigger, reached: set[str]) -> bool:
    there = [not c.startswith("done:") or c[5:] in reached for c in trigger.channels]
    return all(there) if trigger.mode == "all" else any(there)


def find_unwritten(program: Program) -> list[str]:
    """Returns the channels that contracts read and that neither a node nor a required input writes (§4.2); none unless all nodes declare ``writes=``."""
    nodes = program.nodes.values()
    if any(n.writes is None and n.shape != "subgraph" for n in nodes):
        return []
    written = {c for n in nodes for c in (*(n.writes or ()), *(n.pass_out or ()))}
    readers = {c: n.name for n in reversed(list(nodes)) for c in n.reads or ()}
    return [
        f"{reader} reads {name!r}, which nothing writes: no node's writes= names it, and the input need not have it"
        for name, reader in readers.items()
        if name not in written and not program.channels[name].required
    ]
