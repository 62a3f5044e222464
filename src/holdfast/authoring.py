"""What people write: ``State``, ``Graph``, ``flow``, ``Tool``: sugar over ``core.graph``."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast, dataclass_transform, overload

import msgspec

from holdfast.core import canon
from holdfast.core.channels import CUSTOM as _CUSTOM
from holdfast.core.channels import MISSING, Channel, Reducer, last, thread
from holdfast.core.effects import EffectClass, Idempotency
from holdfast.core.errors import ChannelEmpty, ContractViolation, InvalidGraph, UsageError
from holdfast.core.graph import DEFAULT_STEP_LIMIT, DEFAULT_TIMEOUT_US, END, START, AnyOf, Node, Program, Trigger, compile
from holdfast.core.retry import Retry, coerce

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class _Field:
    """Reads one channel of a snapshot; a class attribute, so that a channel may bear any name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, state: State | None, owner: type) -> Any:
        if state is None:
            return self
        value = state._values.get(self.name, MISSING)
        if value is MISSING:
            return _absent(state, self.name)
        return value

    def __set__(self, state: State, value: Any) -> None:
        raise TypeError(f"a snapshot is read-only; return {{{self.name!r}: ...}} as a write instead")


def _absent(state: State, name: str) -> Any:
    if state._only is not None and name not in state._only:
        raise ContractViolation(f"{name!r} is outside this node's contract reads={sorted(state._only)}")
    raise ChannelEmpty(f"the channel {name!r} has not been written yet", hint="give it a default, or read it after the node that writes it")


def _names(frame: Any) -> dict[str, Any]:
    """The local names in scope where a class is made, so that annotations of nested classes resolve."""
    names: dict[str, Any] = {}
    while frame is not None:
        names = {**frame.f_locals, **names}
        frame = frame.f_back if frame.f_code.co_name != "<module>" else None
    return names


def _channel(name: str, hint: Any, default: Any) -> Channel:
    reducer, carries, kind = last, False, hint
    if typing.get_origin(hint) is Annotated:
        kind, *marks = typing.get_args(hint)
        for mark in marks:
            if mark is thread:
                carries = True
            elif isinstance(mark, Reducer):
                reducer = mark
            elif callable(mark):
                reducer = Reducer(_CUSTOM, mark)
    _register(kind)
    if default is not MISSING:
        default = canon.admit(default, name)
    made = Channel(name, reducer=reducer, default=default, thread=carries, type=kind)
    return msgspec.structs.replace(made, required=made.initial is MISSING and reducer.function is None and not carries)


def _register(kind: Any) -> None:
    """Registers the storable classes an annotation names, however deep."""
    if canon.storable(kind):
        canon.register(kind)
    for inner in typing.get_args(kind):
        _register(inner)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class State(Mapping[str, Any]):
    """Channels of a graph, typed; the annotation names the reducer: ``items: Annotated[list[str], append]``.

    Fields without a default must be in the input, but for those whose reducer starts empty. Instances are frozen
    snapshots; they also read like a mapping.
    """

    __channels__: ClassVar[dict[str, Channel]] = {}
    _values: Mapping[str, Any]
    _only: frozenset[str] | None
    __slots__ = ("_only", "_values")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        frame = sys._getframe(1)
        hints = typing.get_type_hints(cls, localns=_names(frame), include_extras=True)
        channels = dict(cls.__channels__)
        for name in inspect.get_annotations(cls):
            if typing.get_origin(hints[name]) is ClassVar:
                continue
            channels[name] = _channel(name, hints[name], cls.__dict__.get(name, MISSING))
            setattr(cls, name, _Field(name))
        cls.__channels__ = channels

    def __init__(self, **values: Any) -> None:
        unknown = [n for n in values if n not in self.__channels__]
        if unknown:
            raise UsageError(f"{type(self).__name__} has no channel {', '.join(unknown)}")
        given = {n: canon.admit(v, n) for n, v in values.items()}
        initial = {n: c.initial for n, c in self.__channels__.items() if c.initial is not MISSING}
        object.__setattr__(self, "_values", canon.FrozenDict({**initial, **given}))
        object.__setattr__(self, "_only", None)

    @classmethod
    def _view(cls, values: Mapping[str, Any], only: tuple[str, ...] | None = None) -> State:
        """A snapshot over frozen values, copied nowhere (§4.2)."""
        self = object.__new__(cls)
        if only is not None:
            values = {n: values[n] for n in only if n in values}
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_only", None if only is None else frozenset(only))
        return self

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(f"a snapshot is read-only; return {{{name!r}: ...}} as a write instead")

    def __getitem__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            if name in type(self).__channels__:
                return _absent(self, name)
            raise

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, State):
            return dict(self._values) == dict(other._values)
        return isinstance(other, Mapping) and dict(self._values) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._values.items())})"


class Values(State):
    """The snapshot of a flow, or of a graph declared without a State class."""


S = TypeVar("S", bound=State)
NodeRef = str | Callable[..., Any]
After = NodeRef | AnyOf | list[NodeRef] | tuple[NodeRef, ...]


class Graph(Generic[S]):
    """A skill drawn as nodes over the channels of a ``State`` (§4).

    Args:
        id: the skill's stable name.
        state: its channels.
        version: what a run records; change it when the meaning changes.
        kind: the kind of work; policies may ask for a review of some kinds (§5.16).
        step_limit: super-steps in one invocation before the run fails, resumable (§4.9).
        migrates: fingerprints of older shapes whose runs this one may go on with (§3.2).
    """

    def __init__(
        self,
        id: str,
        state: type[S] = Values,  # type: ignore[assignment]
        *,
        version: str = "1",
        kind: str | None = None,
        step_limit: int = DEFAULT_STEP_LIMIT,
        migrates: tuple[str, ...] = (),
    ) -> None:
        self.id = id
        self.state = state
        self.version = version
        self.kind = kind
        self.step_limit = step_limit
        self.migrates = migrates
        self._nodes: dict[str, Node] = {}
        self._edges: list[tuple[str, str]] = []
        self._routers: dict[str, list[Callable[[Any], Any]]] = {}
        self._program: Program | None = None

    @overload
    def node(self, name: F, /) -> F: ...

    @overload
    def node(
        self,
        name: str | None = None,
        *,
        start: bool = False,
        after: After | None = None,
        when: Callable[[S], bool] | None = None,
        on: list[str] | None = None,
        reads: list[str] | None = None,
        writes: list[str] | None = None,
        retry: Retry | int | None = None,
        timeout: timedelta | float | None = None,
        side_effects: str = "none",
        capabilities: tuple[str, ...] = (),
        delivers: bool = False,
        gate: Any = None,
    ) -> Callable[[F], F]: ...

    def node(self, name: Any = None, **options: Any) -> Any:
        """Declares a node: bare ``@graph.node``, or with options; see interfaces in the docs."""
        if callable(name):
            self._add(name, None, {})
            return name

        def declare(function: F) -> F:
            self._add(function, name, options)
            return function

        return declare

    def _add(self, function: Callable[..., Any], name: str | None, options: dict[str, Any]) -> None:
        label: str = name or str(getattr(function, "__name__", "node"))
        parameters = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
        if len(parameters) not in (1, 2):
            raise InvalidGraph(f"the node {label!r} takes (state) or (state, ctx), not {len(parameters)} arguments")
        self._put(label, function, "state_ctx" if len(parameters) == 2 else "state", options)

    def _put(self, label: str, function: Callable[..., Any], shape: Any, options: dict[str, Any], **more: Any) -> None:
        if label in self._nodes:
            raise InvalidGraph(f"the node {label!r} is declared twice in {self.id!r}")
        triggers = []
        if options.get("start"):
            triggers.append(Trigger("any", (START,)))
        if (after := options.get("after")) is not None:
            triggers.append(_after(after))
        if (on := options.get("on")) is not None:
            triggers.append(Trigger("any", tuple(on)))
        self._nodes[label] = Node(
            name=label,
            call=function,
            shape=shape,
            asynchronous=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)),
            triggers=tuple(triggers),
            when=options.get("when"),
            reads=None if options.get("reads") is None else tuple(options["reads"]),
            writes=None if options.get("writes") is None else tuple(options["writes"]),
            retry=coerce(options.get("retry")),
            timeout_us=microseconds(options.get("timeout"), DEFAULT_TIMEOUT_US),
            side_effects=EffectClass(options.get("side_effects", "none")),
            capabilities=tuple(options.get("capabilities", ())),
            delivers=bool(options.get("delivers", False)),
            gate=options.get("gate"),
            **more,
        )
        self._program = None

    def edge(self, source: NodeRef, target: NodeRef) -> Graph[S]:
        """``target`` runs after ``source``; START and END are allowed."""
        self._edges.append((_name(source), _name(target)))
        self._program = None
        return self

    def branch(self, node: NodeRef, router: Callable[[S], Any]) -> Graph[S]:
        """After ``node`` the router, given the state with that node's writes, names who is next: a name, several, Sends or END."""
        self._routers.setdefault(_name(node), []).append(router)
        self._program = None
        return self

    def subgraph(
        self, name: str, child: Graph[Any], *, pass_in: list[str] | None = None, pass_out: list[str] | None = None, **options: Any
    ) -> Graph[S]:
        """Runs a child graph in a node's place (§4.14): it gets copies of ``pass_in`` and returns ``pass_out`` as one write."""
        self._put(name, _never, "subgraph", options, child=child, pass_in=_names_of(pass_in), pass_out=_names_of(pass_out))
        return self

    @property
    def program(self) -> Program:
        if self._program is None:
            self._program = self._compile()
        return self._program

    def _compile(self) -> Program:
        nodes = dict(self._nodes)
        for name in [*(s for s, _ in self._edges), *self._routers]:
            if name not in nodes and name != START:
                raise InvalidGraph(f"the graph {self.id!r} has an edge from {name!r}, which is not a node", hint="nodes: " + ", ".join(nodes))
        incoming: dict[str, list[str]] = {}
        for source, target in self._edges:
            if target == END:
                continue
            if target not in nodes:
                raise InvalidGraph(f"the graph {self.id!r} has an edge to {target!r}, which is not a node", hint="nodes: " + ", ".join(nodes))
            incoming.setdefault(target, []).append(START if source == START else f"done:{source}")
        for target, channels in incoming.items():
            more = tuple(Trigger("any", (c,)) for c in channels)
            nodes[target] = msgspec.structs.replace(nodes[target], triggers=nodes[target].triggers + more)
        for name, routers in self._routers.items():
            nodes[name] = msgspec.structs.replace(nodes[name], routers=tuple(routers))
        return compile(
            id=self.id,
            version=self.version,
            channels=self.state.__channels__,
            nodes=nodes,
            kind=self.kind,
            step_limit=self.step_limit,
            state=self.state,
            migrates=self.migrates,
        )

    def validate(self) -> None:
        """Raises InvalidGraph with every fault found; returns if the graph can run."""
        self._program = None
        _ = self.program

    def mermaid(self) -> str:
        """The graph as Mermaid text."""
        return mermaid(self.program)

    def __repr__(self) -> str:
        return f"<Graph {self.id} v{self.version}: {', '.join(self._nodes)}>"


def mermaid(program: Program) -> str:
    """Any program as a Mermaid flowchart."""
    lines = ["flowchart TD"]
    for node in program.nodes.values():
        lines.append(f"    {node.name}[{node.name}]")
        for trigger in node.triggers:
            for channel in trigger.channels:
                kind, _, source = channel.partition(":")
                if channel == START:
                    lines.append(f"    start((start)) --> {node.name}")
                elif kind == "done":
                    lines.append(f"    {source} --> {node.name}")
                else:
                    lines.append(f"    {channel}[/{channel}/] -.-> {node.name}")
        if node.routers:
            lines.append(f"    {node.name} -.-> route_{node.name}{{?}}")
    return "\n".join(lines)


async def _never(*_: Any) -> None:
    raise AssertionError("a sub-graph is driven by the engine, not called")


def _names_of(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _name(ref: NodeRef) -> str:
    return ref if isinstance(ref, str) else str(getattr(ref, "__name__", ref))


def _after(after: After) -> Trigger:
    if isinstance(after, AnyOf):
        return Trigger("any", tuple(f"done:{_name(n)}" for n in after.nodes))
    names = after if isinstance(after, list | tuple) else [after]
    return Trigger("all", tuple(START if n == START else f"done:{_name(n)}" for n in names))


def microseconds(value: timedelta | float | int | None, default: int) -> int:
    """A duration given as timedelta or seconds, in microseconds."""
    if value is None:
        return default
    return int((value.total_seconds() if isinstance(value, timedelta) else value) * 1_000_000)


class Flow(Generic[P, R]):
    """A skill written as one ``async def fn(ctx, …)`` (§4.12): a graph of one node whose calls through ctx are recorded."""

    def __init__(self, function: Callable[..., Awaitable[R]], id: str, version: str, options: dict[str, Any]) -> None:
        if not inspect.iscoroutinefunction(function):
            raise InvalidGraph(f"the flow {id!r} must be an async def")
        self.function = function
        self.id = id
        self.version = version
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        if not parameters:
            raise InvalidGraph(f"the flow {id!r} takes ctx as its first argument")
        self.signature = signature.replace(parameters=parameters[1:])
        channels = {}
        for p in parameters[1:]:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise InvalidGraph(f"the flow {id!r} names its inputs; *args and **kwargs cannot be recorded")
            default = MISSING if p.default is p.empty else canon.admit(p.default, p.name)
            channels[p.name] = Channel(p.name, default=default, required=p.default is p.empty)
        for hint in _hints(function).values():
            _register(hint)
        node = Node(
            name=id if id.isidentifier() else "flow",
            call=function,
            shape="flow",
            triggers=(Trigger("any", (START,)),),
            retry=coerce(options.get("retry")),
            timeout_us=microseconds(options.get("timeout"), 0),
        )
        self.program = compile(
            id=id,
            version=version,
            channels=channels,
            nodes={node.name: node},
            flow=True,
            signature=str(self.signature),
            state=Values,
            inputs=tuple(channels),
            migrates=options.get("migrates", ()),
        )
        self.__name__ = getattr(function, "__name__", id)
        self.__doc__ = function.__doc__

    def bind(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The inputs by name, as the signature takes them."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as e:
            raise UsageError(f"{self.id}: {e}", hint=f"its inputs are {self.signature}") from None
        return dict(bound.arguments)

    def __repr__(self) -> str:
        return f"<Flow {self.id} v{self.version}{self.signature}>"


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError:
        return {}  # annotations of local names; they only spare the author a register() call


def flow(id: str, *, version: str = "1", **options: Any) -> Callable[[Callable[Concatenate[Any, P], Awaitable[R]]], Flow[P, R]]:
    """``@flow("id", version="1")`` makes an ``async def fn(ctx, …)`` a skill."""

    def declare(function: Callable[Concatenate[Any, P], Awaitable[R]]) -> Flow[P, R]:
        return cast("Flow[P, R]", Flow(function, id, version, options))

    return declare


Skill = Graph[Any] | Flow[..., Any]


@dataclasses.dataclass(frozen=True)
class Tool:
    """A declared tool (§6.1): its effect class and idempotency are said once, here.

    ``Tool("git", side_effects="read")``. ``command`` defaults to the name; ``timeout`` is in seconds or a timedelta;
    ``env`` names the variables it may see beside the usual ones.
    """

    name: str
    side_effects: str = "external_action"
    idempotency: str = "not_supported"
    command: tuple[str, ...] = ()
    timeout: timedelta | float = 60.0
    env: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        EffectClass(self.side_effects)
        Idempotency(self.idempotency)
        if not self.command:
            object.__setattr__(self, "command", (self.name,))
