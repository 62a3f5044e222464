"""The API for authors: ``State``, ``Graph``, ``flow`` and ``Tool``, on top of ``core.graph``."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast, dataclass_transform, overload

import msgspec

from holdfast.core import canon, keys
from holdfast.core.bounds import (
    ID_BYTES,
    NOTE_BYTES,
    as_given,
    check_arguments,
    constructor,
    duration,
    function,
    guess,
    lasting,
    one_of,
    show,
    text,
    texts,
    wrong,
)
from holdfast.core.channels import CUSTOM as _CUSTOM
from holdfast.core.channels import MISSING, Channel, Reducer, find_misfits, last, secret, thread, window
from holdfast.core.drawing import draw as draw
from holdfast.core.drawing import mermaid as mermaid
from holdfast.core.effects import EffectClass, Idempotency
from holdfast.core.errors import ChannelEmpty, ContractViolation, InvalidGraph, UsageError
from holdfast.core.evidence import KINDS, Postcondition
from holdfast.core.graph import (
    DEFAULT_STEP_LIMIT,
    DEFAULT_TIMEOUT_US,
    END,
    START,
    AnyOf,
    Goto,
    Node,
    Program,
    Send,
    Trigger,
    compile,
    find_unwritten,
    refuse,
)
from holdfast.core.kinds import FAST
from holdfast.core.limits import check_name
from holdfast.core.misused import NotCalled, is_function
from holdfast.core.policy import OnFail
from holdfast.core.retry import Retry, coerce

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class _Field:
    """Reads one channel of a snapshot. It is a class attribute, so that a channel may have any name."""

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
        raise ContractViolation(f"{name!r} may not be read by this node, which declares reads={sorted(state._only)}")
    raise ChannelEmpty(f"the channel {name!r} has not been written yet", hint="give it a default, or read it after the node that writes it")


def _names(frame: Any) -> dict[str, Any]:
    """Returns the local names in scope where a class is created, so that annotations of nested classes resolve."""
    names: dict[str, Any] = {}
    while frame is not None:
        names = {**frame.f_locals, **names}
        frame = frame.f_back if frame.f_code.co_name != "<module>" else None
    return names


def _hints_of(cls: type, names: dict[str, Any]) -> dict[str, Any]:
    """Returns the annotations of a state."""
    try:
        return typing.get_type_hints(cls, localns=names, include_extras=True)
    except UNRESOLVED as e:
        for name, annotation in inspect.get_annotations(cls).items():
            try:
                typing.get_type_hints(type(cls.__name__, (), {"__annotations__": {name: annotation}, "__module__": cls.__module__}), localns=names)
            except UNRESOLVED as found:
                hint = "define the name before the class, and import it when the program runs, not under `if TYPE_CHECKING:`"
                raise InvalidGraph(f"the annotation of {name!r} in the state {cls.__name__} cannot be resolved: {found}", hint=hint) from None
        raise InvalidGraph(f"the annotations of the state {cls.__name__} cannot be resolved: {e}") from None


UNRESOLVED = (NameError, AttributeError, TypeError, SyntaxError)
"""What Python raises for an annotation that is a string: the name does not exist, or the string is no type."""


def _check_default(name: str, hint: Any, default: Any, reducer: Reducer, owner: str) -> None:
    """Refuses a default that is right in other kinds of classes, such as dataclasses, but not in a State.

    Raises:
        InvalidGraph: with what to write.
    """
    if isinstance(default, Reducer):
        meant = default.tag if default.function is None else "…"
        raise InvalidGraph(f"the default of {name!r} in the state {owner} is a reducer", hint=f"it belongs in the annotation: {name}: Annotated[{_text_of(hint)}, {meant}]")
    if (home := FIELDS.get((type(default).__module__.partition(".")[0], type(default).__name__))) is not None:
        raise InvalidGraph(f"the default of {name!r} in the state {owner} is a field of {home}", hint="write the value itself, such as []: no two states share it")
    if find_misfits({name: reducer.tag}, {name: default}):
        what, kind = reducer.tag.partition(":")[0], "dict" if reducer.tag == "merge" else "list"
        raise InvalidGraph(f"the default of {name!r} in the state {owner} is {show(default)}, and its reducer {what} adds to a {kind}", hint=f"give it a {kind}, or another reducer")


FIELDS = {("dataclasses", "Field"): "a dataclass", ("msgspec", "Field"): "msgspec", ("pydantic", "FieldInfo"): "pydantic"}
"""The classes of what ``field(…)`` and the like return, by library and name, and how errors name them. The libraries need not be installed."""


def _text_of(hint: Any) -> str:
    """Returns an annotation roughly as its author wrote it."""
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")


def _refuse_unkept(name: str, kind: Any, owner: str) -> None:
    """Refuses a declaration with a dict that could never be filled.

    Raises:
        InvalidGraph: its keys are no text.
    """
    if (found := keys.find_unkept(kind)) is None:
        return
    wanted, *rest = map(_text_of, typing.get_args(found.annotation))
    value = rest[0] if rest else "int"
    raise InvalidGraph(
        f"{name}{found.path} in {owner} is declared {_text_of(found.annotation)}, and can never be filled: the keys of a stored dict are text",
        hint=f"declare dict[str, {value}] and write the keys as text, or a list of pairs: list[tuple[{wanted}, {value}]]",
    )


def _channel(name: str, hint: Any, default: Any, owner: str) -> Channel:
    reducer, carries, hidden, kind = last, False, False, hint
    marks: list[Any] = []
    if typing.get_origin(hint) is Annotated:
        kind, *marks = typing.get_args(hint)
        for mark in marks:
            if mark is thread:
                carries = True
            elif mark is secret:
                hidden = True
            elif isinstance(mark, Reducer):
                reducer = mark
            elif mark is window:
                raise InvalidGraph(f"the annotation of {name!r} in the state {owner}: window needs a number", hint=f"Annotated[{_text_of(kind)}, window(50)]")
            elif callable(mark):
                reducer = Reducer(_CUSTOM, mark)
    _refuse_unkept(name, kind, f"the state {owner}")
    canon.register_named(kind)
    for mark in marks:
        if isinstance(mark, msgspec.Meta):
            kind = Annotated[kind, mark]
    if default is not MISSING:
        _check_default(name, kind, default, reducer, owner)
        default = canon.admit(default, name)
    made = Channel(name, reducer=reducer, default=default, thread=carries, type=kind, secret=hidden)
    return msgspec.structs.replace(made, required=made.initial is MISSING and reducer.function is None and not carries)


@dataclass_transform(kw_only_default=True, frozen_default=True)
class State(Mapping[str, Any]):
    """The channels of a graph, with their types. The annotation names the reducer: ``items: Annotated[list[str], append]``.

    A field without a default must be in the input, except if its reducer starts with an empty value (``append``, ``window``, ``merge``,
    ``topic``). Instances are frozen snapshots; they can also be read like a mapping.
    """

    __channels__: ClassVar[dict[str, Channel]] = {}
    _values: Mapping[str, Any]
    _only: frozenset[str] | None
    __slots__ = ("_only", "_values")

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        frame = sys._getframe(1)
        hints = _hints_of(cls, _names(frame))
        channels = dict(cls.__channels__)
        for name in inspect.get_annotations(cls):
            if typing.get_origin(hints[name]) is ClassVar:
                continue
            channels[name] = _channel(name, hints[name], cls.__dict__.get(name, MISSING), cls.__name__)
            setattr(cls, name, _Field(name))
        cls.__channels__ = channels

    def __init__(self, **values: Any) -> None:
        unknown = [n for n in values if n not in self.__channels__]
        if unknown:
            raise UsageError(f"{type(self).__name__} has no channel {', '.join(unknown)}")
        given = {n: canon.admit(v, n) for n, v in values.items()}
        object.__setattr__(self, "_values", canon.FrozenDict({**self._defaults(), **given}))
        object.__setattr__(self, "_only", None)

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """Returns the values of its channels before anything is written."""
        return {n: c.initial for n, c in cls.__channels__.items() if c.initial is not MISSING}

    @classmethod
    def _view(cls, values: Mapping[str, Any], only: tuple[str, ...] | None = None) -> State:
        """Returns a snapshot over frozen values, without a copy (§4.2)."""
        self = _blank(cls)
        if only is None:
            _set_values(self, values)
            _set_only(self, None)
        else:
            _set_values(self, {n: values[n] for n in only if n in values})
            _set_only(self, frozenset(only))
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

    def __reduce__(self) -> Any:
        """Supports pickling and copying: the copy holds the same values."""
        return (_look_again, (type(self), dict(self._values), self._only))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self._values.items())})"


def _look_again(cls: type[State], values: dict[str, Any], only: frozenset[str] | None) -> State:
    """Returns a snapshot of values that were copied from another one."""
    return cls._view(canon.admit(values), None if only is None else tuple(only))


_blank = object.__new__
_set_values, _set_only = State.__dict__["_values"].__set__, State.__dict__["_only"].__set__  # used to create snapshots quickly; their own __setattr__ refuses to set these


class Values(State):
    """The snapshot of a flow, or of a graph declared without a State class."""


S = TypeVar("S", bound=State)
NodeRef = str | Callable[..., Any]
After = NodeRef | AnyOf | list[NodeRef] | tuple[NodeRef, ...]


_ON_FAIL = tuple(o.value for o in OnFail)
_EFFECTS = tuple(c.value for c in EffectClass)
TIMEOUT = lasting(low=1)
"""A timeout must be positive: one of zero would end every step before it began."""


class _Declared(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a node, a sub-graph or a flow."""

    start: bool = False
    after: After | None = None
    when: Callable[[Any], bool] | None = None
    on: str | list[str] | None = None
    reads: str | list[str] | None = None
    writes: str | list[str] | None = None
    retry: Retry | int | None = None
    timeout: timedelta | float | None = None
    side_effects: str = "none"
    idempotent: bool = False
    verify: Callable[..., Any] | None = None
    undo: Callable[..., Any] | None = None
    capabilities: tuple[str, ...] = ()
    delivers: bool = False
    gate: Callable[[Any], Any] | None = None
    check: Callable[[Any], Any] | None = None
    on_fail: str = "block"
    limit: str | None = None
    tool: str | Tool | None = None

    def common(self, label: str, timeout_us: int) -> dict[str, Any]:
        """The fields of the node, each held against what it may be.

        Raises:
            InvalidInput: one, by its name. InvalidGraph: a condition or a gate that is async.
        """
        for name, said in (("when", self.when), ("gate", self.gate), ("check", self.check)):
            if inspect.iscoroutinefunction(said):
                what = "a condition is a plain function of the state" if name == "when" else "a gate is a plain function of the request"
                raise InvalidGraph(f"the {name}= of {label!r} is async; {what}")
        return {
            "when": self.when,
            "retry": coerce(self.retry),
            "timeout_us": microseconds(self.timeout, timeout_us),
            "timed": self.timeout is not None,
            "side_effects": EffectClass(one_of(self.side_effects, "side_effects", _EFFECTS)),
            "idempotent": self.idempotent,
            "verify": self.verify,
            "undo": self.undo,
            "capabilities": self.capabilities,
            "gate": self.gate,
            "check": self.check,
            "on_fail": one_of(self.on_fail, "on_fail", _ON_FAIL),
            "limit": None if self.limit is None else check_name(self.limit),
        }


class Graph(NotCalled, Generic[S]):
    """A skill (a program that a run executes) made of nodes that work on the channels of a ``State`` (§4).

    Args:
        id: the skill's stable name.
        state: the class of its channels.
        version: recorded with each run; change it when the meaning of the graph changes.
        kind: the kind of work; "planning" and "research" end in a person's review, unless the policy lists other kinds (§5.16).
        redo: the node that runs again after a review with feedback; by default the nodes that ran last.
        step_limit: the number of super-steps in one invocation after which the run fails with ``StepLimit``; it can be resumed (§4.9).
        migrates: the fingerprints of older versions of the graph; runs that began with them can be continued with this one (§3.2).
    """

    @check_arguments(id=text, redo=as_given, kind=text)
    def __init__(
        self,
        id: str,
        state: type[S] = Values,  # type: ignore[assignment]
        *,
        version: str = "1",
        kind: str | None = None,
        redo: NodeRef | None = None,
        step_limit: int = DEFAULT_STEP_LIMIT,
        migrates: tuple[str, ...] = (),
    ) -> None:
        if redo is not None:
            _reference(redo, "redo")
        if not (isinstance(state, type) and issubclass(state, State)):
            raise wrong("state", "a subclass of State", state, "class Notes(State): …")
        self.id = id
        self.state = state
        self.version = version
        self.kind = kind
        self.redo = redo
        self.step_limit = step_limit
        self.migrates = migrates
        self._nodes: dict[str, Node] = {}
        self._edges: list[tuple[str, str]] = []
        self._routers: dict[str, list[Callable[[Any], Any]]] = {}
        self._labels: dict[Callable[..., Any], str] = {}
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
        on: str | list[str] | None = None,
        reads: str | list[str] | None = None,
        writes: str | list[str] | None = None,
        retry: Retry | int | None = None,
        timeout: timedelta | float | None = None,
        side_effects: str = "none",
        idempotent: bool = False,
        verify: Callable[..., Any] | None = None,
        undo: Callable[..., Any] | None = None,
        capabilities: tuple[str, ...] = (),
        delivers: bool = False,
        gate: Callable[[Any], Any] | None = None,
        check: Callable[[Any], Any] | None = None,
        on_fail: str = "block",
        limit: str | None = None,
        tool: str | Tool | None = None,
    ) -> Callable[[F], F]: ...

    @check_arguments(name=as_given, after=as_given, check=function, timeout=TIMEOUT, limit=as_given, tool=as_given)
    def node(
        self,
        name: Any = None,
        *,
        start: bool = False,
        after: After | None = None,
        when: Callable[[S], bool] | None = None,
        on: str | list[str] | None = None,
        reads: str | list[str] | None = None,
        writes: str | list[str] | None = None,
        retry: Retry | int | None = None,
        timeout: timedelta | float | None = None,
        side_effects: str = "none",
        idempotent: bool = False,
        verify: Callable[..., Any] | None = None,
        undo: Callable[..., Any] | None = None,
        capabilities: tuple[str, ...] = (),
        delivers: bool = False,
        gate: Callable[[Any], Any] | None = None,
        check: Callable[[Any], Any] | None = None,
        on_fail: str = "block",
        limit: str | None = None,
        tool: str | Tool | None = None,
    ) -> Any:
        """Declares a node: bare ``@graph.node``, or with options.

        Args:
            name: the node's name; by default the name of the function.
            start: whether the node runs at the start.
            after: the node, or the list of nodes, that must have completed; ``any_of(…)`` for any of them.
            when: a function of the state; if it returns False, the node is skipped.
            on: channels; a write to one of them starts the node.
            reads, writes: the channels that the node may read and write; by default all.
            retry: the number of attempts including the first, or a ``Retry``.
            timeout: timedelta or seconds, counted from the start of the step. By default the step fails after 60 s without progress.
            side_effects: ``none``, ``read``, ``write`` or ``external_action``.
            idempotent, verify, undo: as in ``ctx.effect``, for a node with side effects.
            capabilities: names that the policy sees in its ``Request``.
            delivers: whether the node delivers the result of the run; it reports by ``ctx.report``.
            gate: asked before the step; it gets a ``Request`` and answers True, False, a reason (a string) or a ``Verdict`` (§8.2).
            check: asked after the step, like ``gate``; its ``Request`` also holds the step's writes.
            on_fail: what follows if ``gate`` or ``check`` does not answer True: ``block``, ``warn``, ``degrade`` or ``require_human``.
            limit: the name of a limit, which all nodes and calls that name it share: ``Runtime(limits=…)`` or ``holdfast limits`` says how
                many may run at the same time, or start per second (§10.11).
            tool: makes this a tool node: a plain ``def`` that yields the arguments of a tool call, gets the outcome, and returns the node's
                writes (§11.1).

        Raises:
            UnknownOption, InvalidInput: an option is wrong; the error names it.
            InvalidGraph: the declaration is impossible.
        """
        made = _Declared(
            start=start, after=after, when=when, on=on, reads=reads, writes=writes, retry=retry, timeout=timeout, side_effects=side_effects,
            idempotent=idempotent, verify=verify, undo=undo, capabilities=capabilities, delivers=delivers, gate=gate, check=check, on_fail=on_fail,
            limit=limit, tool=tool,
        )
        if name is not None and callable(name):
            self._add(name, None, made)
            return name
        label = None if name is None else text(name, "name")

        def declare(function: F) -> F:
            self._add(function, label, made)
            return function

        return declare

    def _add(self, function: Callable[..., Any], name: str | None, declared: _Declared) -> None:
        if isinstance(function, type) or not is_function(function):
            raise wrong("a node", "a function", function, _way_out(function))
        label: str = name or _label(function)
        if label == "<lambda>":
            raise InvalidGraph("a lambda has no name", hint="give one: graph.node('NAME')(lambda state: …)")
        asked = inspect.signature(function).parameters.values()
        if by_name := [p.name for p in asked if p.kind is p.KEYWORD_ONLY and p.default is p.empty]:
            raise InvalidGraph(f"the node {label!r} takes (state) or (state, ctx), and {by_name[0]!r} can only be given by its name", hint="take the * out of its signature")
        parameters = [p for p in asked if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        given = [p for i, p in enumerate(parameters) if p.default is p.empty or (i == 1 and p.name == "ctx")]
        if len(given) not in (1, 2):
            raise InvalidGraph(f"the node {label!r} takes (state) or (state, ctx), not {len(given)} arguments")
        if _is_context(given[0]):
            raise InvalidGraph(f"the node {label!r} takes (state) or (state, ctx), not ({', '.join(p.name for p in given)})")
        if given[0].name == "self" and len(given) == 2:
            raise InvalidGraph(f"the node {label!r} is a method without its object", hint=f"give the method of an object: graph.node(obj.{label}), or declare the node outside of the class")
        self._labels[function] = label
        if declared.tool is not None:
            self._put(label, _calling(function, declared.tool, label, len(given)), "state_ctx", declared)
            return
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidGraph(f"the node {label!r} uses yield; a node must return its writes", hint="ctx.emit(chunk) streams; ctx.step records")
        self._put(label, function, "state_ctx" if len(given) == 2 else "state", declared)

    def _put(self, label: str, function: Callable[..., Any], shape: Any, declared: _Declared, **more: Any) -> None:
        if label in self._nodes:
            raise InvalidGraph(f"the node {label!r} is declared twice in {self.id!r}", hint="give one of them another name: @graph.node('other')")
        if label in (START, END):
            raise InvalidGraph(f"{label!r} is a reserved name: START and END are the graph's start and end")
        triggers = []
        if declared.start:
            triggers.append(Trigger("any", (START,)))
        if declared.after is not None:
            triggers.append(self._after(declared.after))
        if declared.on is not None:
            triggers.append(Trigger("any", _names_of(declared.on, "on") or ()))
        self._nodes[label] = Node(
            name=label,
            call=function,
            shape=shape,
            asynchronous=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)),
            triggers=tuple(triggers),
            reads=_names_of(declared.reads, "reads"),
            writes=_names_of(declared.writes, "writes"),
            delivers=declared.delivers,
            # The nodes of a sub-graph have timeouts of their own; the sub-graph has one only if it is given.
            **declared.common(label, 0 if shape == "subgraph" else DEFAULT_TIMEOUT_US),
            **more,
        )
        _note_code(function)
        self._program = None

    @check_arguments()
    def edge(self, source: NodeRef, target: NodeRef) -> Graph[S]:
        """Makes ``target`` run after ``source``; START and END are allowed."""
        self._edges.append((self._name(source, "source"), self._name(target, "target")))
        self._program = None
        return self

    @check_arguments()
    def branch(self, node: NodeRef, router: Callable[[S], Any]) -> Graph[S]:
        """After ``node``, the router decides which nodes run next. It gets the state with that node's writes, and returns a name, several
        names, Sends or END."""
        if not is_function(router):
            raise wrong("router", "a function", router)
        after = self._name(node, "node")
        if inspect.iscoroutinefunction(router):
            raise InvalidGraph(f"the router of {after!r} is async; a router is a plain function of the state")
        self._routers.setdefault(after, []).append(router)
        self._program = None
        return self

    @check_arguments(after=as_given, check=function, timeout=TIMEOUT)
    def subgraph(
        self,
        name: str,
        child: Graph[Any],
        *,
        pass_in: str | list[str] | None = None,
        pass_out: str | list[str] | None = None,
        start: bool = False,
        after: After | None = None,
        when: Callable[[S], bool] | None = None,
        on: str | list[str] | None = None,
        reads: str | list[str] | None = None,
        writes: str | list[str] | None = None,
        retry: Retry | int | None = None,
        timeout: timedelta | float | None = None,
        side_effects: str = "none",
        idempotent: bool = False,
        capabilities: tuple[str, ...] = (),
        delivers: bool = False,
        gate: Callable[[Any], Any] | None = None,
        check: Callable[[Any], Any] | None = None,
        on_fail: str = "block",
    ) -> Graph[S]:
        """Runs a child graph as a node (§4.14): it gets copies of the channels ``pass_in``, and returns the channels ``pass_out`` as one
        write.

        By default both are the channels that the two states have in common. The other options are those of ``node``.

        Raises:
            UnknownOption, InvalidInput: an option is wrong; the error names it.
            InvalidGraph: the declaration is impossible.
        """
        declared = _Declared(
            start=start, after=after, when=when, on=on, reads=reads, writes=writes, retry=retry, timeout=timeout, side_effects=side_effects,
            idempotent=idempotent, capabilities=capabilities, delivers=delivers, gate=gate, check=check, on_fail=on_fail,
        )
        if not isinstance(child, Graph):
            raise InvalidGraph(f"the subgraph {name!r} is a Graph, not {type(child).__name__}", hint=_way_out(child))
        self._put(name, _never, "subgraph", declared, child=child, pass_in=_names_of(pass_in, "pass_in"), pass_out=_names_of(pass_out, "pass_out"))
        return self

    def _name(self, ref: NodeRef, field: str) -> str:
        found = _reference(ref, field)
        return found if isinstance(found, str) else self._labels.get(found) or _label(found)

    def _after(self, after: After) -> Trigger:
        if isinstance(after, AnyOf):
            return Trigger("any", tuple(START if n == START else f"done:{self._name(n, 'after')}" for n in after.nodes))
        names = after if isinstance(after, list | tuple) else [after]
        return Trigger("all", tuple(START if n == START else f"done:{self._name(n, 'after')}" for n in names))

    @property
    def program(self) -> Program:
        """The compiled graph. It is checked when it is first asked for."""
        if self._program is None:
            self._program = self._compile()
        return self._program

    def _compile(self) -> Program:
        routes = _may_route([n.call for n in self._nodes.values()])
        nodes = {name: msgspec.structs.replace(self._with_child(node), routes=routes) for name, node in self._nodes.items()}
        faults: list[str] = []
        for source, target in self._edges:
            if source == END or target == START:
                faults.append(f"the edge {source} → {target} leads {'out of END' if source == END else 'back to START'}; no edge may leave END or enter START")
            elif source != START and source not in nodes:
                faults.append(f"an edge leads from {source!r}, which is not a node{guess(source, nodes)}")
            elif target in nodes:
                trigger = Trigger("any", (START if source == START else f"done:{source}",))
                nodes[target] = msgspec.structs.replace(nodes[target], triggers=(*nodes[target].triggers, trigger))
            elif target != END:
                faults.append(f"an edge leads to {target!r}, which is not a node{guess(target, nodes)}")
        for name, routers in self._routers.items():
            if name in nodes:
                nodes[name] = msgspec.structs.replace(nodes[name], routers=tuple(routers))
            elif name == START:
                faults.append("a branch cannot start at START; attach the router to a node")
            else:
                faults.append(f"a branch starts at {name!r}, which is not a node{guess(name, nodes)}")
        alone = [n for n, node in nodes.items() if not node.triggers]
        if alone and (routes or self._routers):
            for name, node in nodes.items():
                if sends := _sends([node.call, *node.routers], alone):
                    nodes[name] = msgspec.structs.replace(node, sends=sends)
        return compile(
            known=faults,
            id=self.id,
            version=self.version,
            channels=self.state.__channels__,
            nodes=nodes,
            kind=self.kind,
            redo=None if self.redo is None else self._name(self.redo, "redo"),
            step_limit=self.step_limit,
            state=self.state,
            migrates=self.migrates,
        )

    def _with_child(self, node: Node) -> Node:
        """Returns a sub-graph's node with the child's program, and with the passed channels named."""
        child = node.child
        if not isinstance(child, Graph):
            return node
        if child._holds(self):
            raise InvalidGraph(f"the graph {self.id!r} contains itself, through {node.name!r}", hint="use a cycle of edges instead")
        shared = tuple(c for c in self.state.__channels__ if c in child.state.__channels__)
        return msgspec.structs.replace(
            node,
            child=child.program,
            pass_in=shared if node.pass_in is None else node.pass_in,
            pass_out=shared if node.pass_out is None else node.pass_out,
        )

    def _holds(self, other: Graph[Any]) -> bool:
        seen: list[Graph[Any]] = []
        todo: list[Graph[Any]] = [self]
        while todo:
            graph = todo.pop()
            if graph is other:
                return True
            if graph not in seen:
                seen.append(graph)
                todo += [n.child for n in graph._nodes.values() if isinstance(n.child, Graph)]
        return False

    def validate(self) -> None:
        """Checks the declaration again.

        Raises:
            InvalidGraph: lists every error, one per line; also for graphs that would run but are probably wrong, such as one with a channel
                that nodes declare in ``reads=`` and that nothing writes (§4.2).
        """
        self._program = None
        if faults := find_unwritten(self.program):
            raise refuse(self.id, faults)

    def mermaid(self) -> str:
        """The graph as a Mermaid diagram, in text."""
        return mermaid(self.program)

    def draw(self) -> str:
        """The graph as text, for a terminal."""
        return draw(self.program)

    def __repr__(self) -> str:
        return f"<Graph {self.id} v{self.version}: {', '.join(self._nodes)}>"


async def _never(*_: Any) -> None:
    raise AssertionError("a subgraph is executed by the engine, not called")


def _reference(ref: Any, field: str) -> NodeRef:
    """Returns a node's name or its function."""
    if isinstance(ref, str):
        return text(ref, field)
    if not is_function(ref):
        raise wrong(field, "a node's name or its function", ref)
    return cast(NodeRef, ref)


def _names_of(names: list[str] | tuple[str, ...] | str | None, field: str) -> tuple[str, ...] | None:
    return None if names is None else texts([names] if isinstance(names, str) else names, field, ID_BYTES)


def _label(function: Callable[..., Any]) -> str:
    """Returns the name of a function, of the function that a partial wraps, or of a callable's class."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _way_out(given: object) -> str:
    """Returns what to write instead of something that is no node function."""
    if isinstance(given, Graph):
        return f"a graph in a node's place: graph.subgraph({given.id!r}, …)"
    if isinstance(given, Flow):
        return "a node executes a flow with: await ctx.child(flow, {…})"
    return f"give an object that can be called: graph.node({given.__name__}(…)), or the method of one" if isinstance(given, type) else ""


def _calling(function: Callable[..., Any], tool: str | Tool, label: str, takes: int) -> Callable[..., Any]:
    """Returns a tool node: each value that the function yields is passed to the tool; the function gets the outcome, or the failure; its return value is the node's writes."""
    if not isinstance(tool, str | Tool):
        raise wrong("tool", "the name of a tool, or a Tool", tool)
    if not inspect.isgeneratorfunction(function):
        raise InvalidGraph(f"the tool node {label!r} must yield the arguments of its tool", hint='def look(state): outcome = yield ["log", "-1"]; return {"log": outcome.stdout}')
    asks: Callable[..., Any] = function

    @functools.wraps(function)
    async def node(state: Any, ctx: Any) -> Any:
        calls = asks(state, ctx) if takes == 2 else asks(state)
        outcome, failure = None, None
        try:
            while True:
                try:
                    asked = calls.send(outcome) if failure is None else calls.throw(failure)
                except StopIteration as ended:
                    return ended.value
                options = dict(asked) if isinstance(asked, Mapping) else {"args": asked}
                outcome, failure = None, None
                try:
                    outcome = await ctx.tool(tool, options.pop("args", ()), **options)
                except Exception as e:  # the node may handle it
                    failure = e
        finally:
            calls.close()

    return node


def _may_route(functions: list[Any]) -> bool:
    """Whether a node may name its successor by Goto or Send, because its code, or a function that it calls, refers to one of them."""
    seen: set[Any] = set()
    todo = list(functions)
    while todo:
        found = todo.pop()
        if found is Goto or found is Send:
            return True
        if isinstance(found, types.ModuleType | types.BuiltinFunctionType | property) or (found not in functions and _foreign(found)):
            continue
        if not isinstance(found, types.FunctionType | types.MethodType):
            return True
        if found.__code__ not in seen:
            seen.add(found.__code__)
            todo += _resolve_names(found)
    return False


def _sends(functions: list[Any], targets: list[str]) -> tuple[str, ...]:
    """Returns which of these nodes the code of a node or of its routers sends to: the nodes that it names, or else the only one there is."""
    seen: set[Any] = set()
    named: set[Any] = set()
    todo, knows = list(functions), False
    while todo:
        found = todo.pop()
        knows = knows or found is Send
        if isinstance(found, types.FunctionType | types.MethodType) and found.__code__ not in seen and (found in functions or not _foreign(found)):
            seen.add(found.__code__)
            todo += _resolve_names(found)
            named |= _texts(found.__code__)
    if not knows:
        return ()
    return tuple(n for n in targets if n in named) or (tuple(targets) if len(targets) == 1 else ())


def _note_code(function: Any) -> None:
    """Notes a function of a skill for reading stored values of the classes that its code names."""
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, types.FunctionType | types.MethodType):
        function = getattr(type(function), "__call__", None)
    function = inspect.unwrap(getattr(function, "__func__", function))
    if isinstance(function, types.FunctionType):
        canon.note_code(function, _find_types)


def _find_types(function: Any) -> list[Any]:
    """Returns the classes, and the annotations made of them, that a function's code names, or a function that it calls."""
    seen: set[Any] = set()
    todo, named = [function], []
    while todo:
        found = todo.pop()
        if isinstance(found, types.FunctionType | types.MethodType):
            if found.__code__ not in seen and (found is function or not _foreign(found)):
                seen.add(found.__code__)
                todo += _resolve_names(found)
        elif isinstance(found, type) or typing.get_args(found):
            named.append(found)
    return named


def _texts(code: types.CodeType) -> set[str]:
    """Returns the string constants in a function's code."""
    found = {c for c in code.co_consts if isinstance(c, str)}
    return found.union(*(_texts(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _foreign(value: Any) -> bool:
    """Whether a value is data, or code that cannot know of Goto: the standard library's, or this package's own."""
    kind = value if isinstance(value, type) else type(value)
    if isinstance(value, types.FunctionType):
        return (value.__module__ or "").partition(".")[0] in _INNOCENT
    return kind.__module__.partition(".")[0] in _INNOCENT and not isinstance(value, functools.partial | types.MethodType)


_UNKNOWN: Any = type("Unknown", (), {"__module__": "elsewhere"})()
_INNOCENT = frozenset(sys.stdlib_module_names) | {"holdfast"}


def _resolve_names(function: Any) -> list[Any]:
    """Returns the values of the global names, free variables and module attributes in a function's code."""
    names: list[str] = []
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        names += [*code.co_names, *code.co_freevars]
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            return [_UNKNOWN]  # a name that is bound later may refer to anything
    found = [scope[n] for n in names if n in scope]
    modules = [m for m in found if isinstance(m, types.ModuleType) and m.__name__.partition(".")[0] not in sys.stdlib_module_names]
    return found + [getattr(m, n) for m in modules for n in names if hasattr(m, n)]


def microseconds(value: timedelta | float | int | None, default: int, field: str = "timeout") -> int:
    """A duration given as timedelta or seconds, in microseconds.

    Raises:
        InvalidInput: it is none.
    """
    return default if value is None else duration(value, field)


class Flow(NotCalled, Generic[P, R]):
    """A skill written as one ``async def fn(ctx, …)`` (§4.12). It is a graph of one node, whose calls through ctx are recorded."""

    def __init__(
        self, function: Callable[..., Awaitable[R]], id: str, version: str, declared: _Declared, migrates: tuple[str, ...] = (), frame: Any = None
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise _no_flow(id, function)
        self.function = function
        self.id = id
        self.version = version
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        if not parameters:
            raise InvalidGraph(f"the flow {id!r} takes ctx as its first argument")
        _check_context(id, _label(function), parameters)
        self.signature = signature.replace(parameters=parameters[1:])
        channels, hints = {}, _hints(function, frame)
        for p in parameters[1:]:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise InvalidGraph(f"the flow {id!r} must name its inputs; *args and **kwargs cannot be recorded")
            if p.kind is p.POSITIONAL_ONLY:
                raise InvalidGraph(f"the flow {id!r} takes its inputs by name, and {p.name!r} can only be given by its place", hint="take the / out of its signature")
            default = MISSING if p.default is p.empty else canon.admit(p.default, p.name)
            hidden = secret in typing.get_args(hints.get(p.name))
            kind = hints.get(p.name, Any)
            _refuse_unkept(p.name, kind, f"the flow {id!r}")
            channels[p.name] = Channel(p.name, default=default, required=p.default is p.empty, type=kind, secret=hidden)
        for hint in hints.values():
            canon.register_named(hint)
        _note_code(function)
        node = Node(
            name=id if id.isidentifier() else "flow",
            call=function,
            shape="flow",
            triggers=(Trigger("any", (START,)),),
            delivers=False,
            **declared.common(id, 0),
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
            migrates=migrates,
        )
        self.__name__ = getattr(function, "__name__", id)
        self.__doc__ = function.__doc__

    def bind(self, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The inputs by name, for these arguments of the flow's function."""
        if not kwargs and len(args) == 1 and self._are_inputs(args[0]):
            raise UsageError(f"{self.id}: rt.run takes the inputs of a flow as arguments, and was given a mapping of them", hint=f"rt.run({_label(self.function)}, **inputs)")
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as e:
            raise UsageError(f"{self.id}: {e}", hint=f"its inputs are {self.signature}") from None
        return dict(bound.arguments)

    def _are_inputs(self, given: Any) -> bool:
        """Whether a dict holds the flow's inputs by name, and cannot itself be the first input, because that is text or a number."""
        names = self.signature.parameters.keys()
        return isinstance(given, dict) and bool(given) and given.keys() <= names and self.program.channels[next(iter(names))].type in FAST

    def __repr__(self) -> str:
        return f"<Flow {self.id} v{self.version}{self.signature}>"


def _no_flow(id: str, given: Any) -> InvalidGraph:
    """Returns the error for something that is no async function, with the reason if it can be found."""
    if inspect.isasyncgenfunction(given):
        return InvalidGraph(f"the flow {id!r} uses yield, and a flow must return its result", hint="ctx.emit(chunk) streams")
    told, hint = f"the flow {id!r} must be an async def", ""
    if isinstance(given, staticmethod):
        told, hint = f"{told}, not a staticmethod", "write @staticmethod above @flow"
    elif inspect.iscoroutinefunction(inspect.unwrap(given)):
        told, hint = f"{told}, and its decorator has made it a plain function", "write @flow beneath that decorator, or make the decorator async"
    elif not inspect.isroutine(given) and inspect.iscoroutinefunction(getattr(given, "__call__", None)):
        told, hint = f"{told}, not an object", f"give its method: flow({id!r})(obj.__call__)"
    return InvalidGraph(told, hint=hint)


PLAIN = frozenset({"str", "int", "float", "bool", "bytes", "list", "dict", "tuple", "set"})


def _is_context(parameter: inspect.Parameter) -> bool:
    """Whether a parameter is meant for the context, by its name or its annotation."""
    return parameter.name == "ctx" or _kind(parameter) == "Context"


def _kind(parameter: inspect.Parameter) -> str:
    """Returns the name of the class with which a parameter is annotated; the annotation may be a string."""
    said = parameter.annotation
    return str(getattr(said, "__name__", said)).strip("'\"").partition("[")[0].rpartition(".")[2]


def _check_context(id: str, name: str, parameters: list[inspect.Parameter]) -> None:
    """Refuses a flow whose first parameter is not meant for ctx; otherwise the context would be passed as one of its inputs, or the run be refused because one is missing."""
    first, *rest = parameters
    late = next((p for p in rest if _is_context(p)), None)
    if _is_context(first) or (late is None and _kind(first) not in PLAIN):
        return
    others = [p.name for p in parameters if p is not late]
    meant = f"async def {name}({', '.join(['ctx' if late is None else late.name, *others])})"
    raise InvalidGraph(f"the flow {id!r} takes ctx as its first argument, not {first.name!r}", hint="declare the flow outside of the class" if first.name == "self" else meant)


def _hints(function: Callable[..., Any], frame: Any) -> dict[str, Any]:
    """Returns the annotations of a function that is declared in ``frame``."""
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:
        pass
    try:
        return typing.get_type_hints(function, localns=_names(frame), include_extras=True)
    except NameError as e:
        if "secret" in str(function.__annotations__):  # a secret must not be shown because a name does not resolve
            raise InvalidGraph(f"an annotation of {_label(function)!r} cannot be resolved: {e}", hint="define the name before the flow") from None
        return {}  # annotations whose names are defined later; they are optional


@check_arguments(id=as_given, check=function, timeout=TIMEOUT, limit=as_given)
def flow(
    id: str,
    *,
    version: str = "1",
    retry: Retry | int | None = None,
    timeout: timedelta | float | None = None,
    side_effects: str = "none",
    idempotent: bool = False,
    verify: Callable[..., Any] | None = None,
    undo: Callable[..., Any] | None = None,
    capabilities: tuple[str, ...] = (),
    gate: Callable[[Any], Any] | None = None,
    check: Callable[[Any], Any] | None = None,
    on_fail: str = "block",
    limit: str | None = None,
    migrates: tuple[str, ...] = (),
) -> Callable[[Callable[Concatenate[Any, P], Awaitable[R]]], Flow[P, R]]:
    """``@flow("id", version="1")`` makes an ``async def fn(ctx, …)`` a skill. The options are those of ``Graph.node`` (§4.12).

    Args:
        migrates: the fingerprints of older versions of the flow; runs that began with them can be continued with this one (§3.2).

    Raises:
        UnknownOption, InvalidInput: an option is wrong; the error names it.
        InvalidGraph: the declaration is impossible.
    """
    if callable(id):
        raise wrong("id", "text", id, f"@flow({_label(id)!r}, version='1')")
    id = text(id, "id", empty=True)
    declared = _Declared(
        retry=retry, timeout=timeout, side_effects=side_effects, idempotent=idempotent, verify=verify, undo=undo, capabilities=capabilities,
        gate=gate, check=check, on_fail=on_fail, limit=limit,
    )

    def declare(function: Callable[Concatenate[Any, P], Awaitable[R]]) -> Flow[P, R]:
        return cast("Flow[P, R]", Flow(function, id, version, declared, migrates, sys._getframe(1)))

    return declare


Skill = Graph[Any] | Flow[..., Any]


@constructor(timeout=TIMEOUT, limit=as_given)
@dataclasses.dataclass(frozen=True)
class Tool:
    """A declared tool (§6.1). Its side effects and its idempotency are declared here, once for all calls.

    For example: ``Tool("git", side_effects="read")``.

    Args:
        name: the tool's name.
        side_effects: ``none``, ``read``, ``write`` or ``external_action``.
        idempotency: ``required`` or ``optional`` if the tool ignores a repeated key, which it gets in ``$HOLDFAST_IDEMPOTENCY_KEY``;
            otherwise ``not_supported``.
        command: the command and its first arguments; by default the name.
        timeout: timedelta or seconds.
        env: the environment variables that the tool may see, besides ``PATH``, ``HOME``, ``LANG``, ``LC_ALL``, ``LC_CTYPE``, ``TZ``,
            ``TMPDIR`` and ``USER``.
        postconditions: must hold after each call. If they contain an ``ExitCode``, it alone decides about the exit code.
        artifacts: patterns of files that are kept (§11.4).
        limit: the name of the limit that each call counts against (§10.11).
    """

    name: str
    side_effects: str = "external_action"
    idempotency: str = "not_supported"
    command: tuple[str, ...] = ()
    timeout: timedelta | float = 60.0
    env: tuple[str, ...] = ()
    postconditions: tuple[Postcondition, ...] = ()
    artifacts: tuple[str, ...] = ()
    limit: str | None = None

    def __post_init__(self) -> None:
        conditions = tuple(self.postconditions) if isinstance(self.postconditions, list | tuple) else (self.postconditions,)
        for condition in conditions:
            if not isinstance(condition, KINDS):
                raise wrong("postconditions", "ExitCode, FileExists, FileHash, JsonPathEquals, HttpStatus or Command", condition)
        object.__setattr__(self, "postconditions", conditions)
        if self.limit is not None:
            check_name(self.limit)
        object.__setattr__(self, "artifacts", texts(self.artifacts, "artifacts", NOTE_BYTES))
        one_of(self.side_effects, "side_effects", _EFFECTS)
        one_of(self.idempotency, "idempotency", tuple(i.value for i in Idempotency))
        object.__setattr__(self, "command", texts(self.command, "command", NOTE_BYTES) or (self.name,))
        object.__setattr__(self, "env", texts(self.env, "env", ID_BYTES))
