"""X-33, §3.6: any argument of any public verb, of any type, is refused with its name, or readable for ever.

The verbs are found by their signatures: of ``Runtime``, ``Context``, ``Shelf``, the declarations and the named ports. A new public verb, or a new
parameter of one, has no place in ``SOUND`` yet and fails the first test here until somebody says what a sound call of it is.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import inspect
import os
import pathlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Context, Graph, Limit, Retry, Runtime, State, Tool, flow, named, tools, transports
from holdfast import policy as policies
from holdfast.core.environments import Environment
from holdfast.core.errors import HoldfastError, InvalidInput, RestrictedOption, TooLarge, UnknownOption
from holdfast.engine.desk.door import Request
from holdfast.shelf import Shelf
from tests.postgres.server import shared

SECONDS = 30


class Note(State):
    text: str = ""


async def body(state: Note) -> None:
    return None


async def another(state: Note) -> None:
    return None


async def flowing(ctx: Context) -> str:
    return "done"


async def act(*args: Any) -> str:
    return "done"


async def letter(payload: Any, key: str) -> str:
    return "sent"


def note() -> Graph[Note]:
    graph = Graph("note", Note)

    @graph.node(start=True)
    async def write(state: Note, ctx: Context) -> dict[str, Any]:
        if state.text == "ask":
            await ctx.approve("Go on?")
        return {"text": state.text + "!"}

    return graph


class World:
    """A store with a run that waits, and one of everything that a verb can be about."""

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt
        self.known: dict[str, Any] = {}

    async def begin(self) -> None:
        run = await self.rt.invoke("note", {"text": "ask"}, thread_id="t")
        head = (await self.rt.get(run.run_id)).checkpoint_head
        await self.rt.schedule("note", id="nightly", every=3600)
        self.known = {
            "run_id": run.run_id, "wait_id": run.waits[0].wait_id, "checkpoint_id": head, "from_checkpoint": head, "a": head, "b": head,
            "schedule_id": "nightly", "intent_id": f"{run.run_id}!0", "effect_id": f"{run.run_id}.1#1",
        }

    async def sound(self) -> None:
        """Everything can be listed, read and checked."""
        for run in await self.rt.runs():
            assert (await self.rt.get(run.run_id)).run_id == run.run_id
            assert await self.rt.events(run.run_id)
            await self.rt.record(run.run_id)
        await self.rt.schedules()
        await self.rt.waits()
        findings = await self.rt.check()
        assert findings.ok, findings


# -- the public verbs, by their signatures -------------------------------------------------------------


class Verb(NamedTuple):
    """A public callable: where it stands, and how to get hold of it in a world (or a context)."""

    home: str
    name: str
    function: Callable[..., Any]
    bind: Callable[[Any], Callable[..., Any]]

    def __str__(self) -> str:
        return f"{self.home}.{self.name}"

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        found = inspect.signature(self.function).parameters
        return {n: p for n, p in found.items() if n != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def methods(home: type, bind: Callable[[str], Callable[[Any], Callable[..., Any]]]) -> Iterator[Verb]:
    for name, found in inspect.getmembers(home, inspect.isfunction):
        if not name.startswith("_"):
            yield Verb(home.__name__, name, found, bind(name))


def of_runtime(name: str) -> Callable[[Any], Callable[..., Any]]:
    return lambda world: getattr(world.rt, name)


def of_port(port: type, name: str) -> Callable[[Any], Callable[..., Any]]:
    def bound(world: World) -> Any:
        return getattr(port(world.rt, "note") if port is named.KernelExecutor else port(world.rt), name)

    return bound


def declared(home: str, name: str, call: Callable[..., Any]) -> Verb:
    return Verb(home, name, call, lambda _: call)


def of_graph(name: str) -> Callable[[Any], Callable[..., Any]]:
    def bound(_: World) -> Any:
        graph = Graph("g", Note)
        graph.node("body", start=True)(body)
        return getattr(graph, name)

    return bound


PORTS = [getattr(named, name) for name in named.__all__ if name != "Page"]
VERBS = [
    *methods(Runtime, of_runtime),
    *methods(Shelf, lambda name: lambda world: getattr(world.rt.shelf("s"), name)),
    *(v for port in PORTS for v in methods(port, functools.partial(of_port, port))),
]
CALLS = list(methods(Context, lambda name: lambda ctx: getattr(ctx, name)))
DECLARATIONS = [
    *methods(Graph, of_graph),
    declared("holdfast", "Graph", Graph), declared("holdfast", "flow", flow), declared("holdfast", "Tool", Tool), declared("holdfast", "Retry", Retry),
    declared("holdfast", "Runtime", Runtime), declared("holdfast", "run", holdfast.run), declared("holdfast", "window", holdfast.window),
    declared("policy", "Policy", policies.Policy), declared("policy", "Environment", Environment), declared("policy", "deny", policies.deny),
    declared("policy", "require_human", policies.require_human), declared("policy", "degrade", policies.degrade), declared("policy", "warn", policies.warn),
    declared("transports", "Webhook", transports.Webhook), declared("transports", "Subprocess", transports.Subprocess),
    *(declared("tools", name, getattr(tools, name)) for name in ("ExitCode", "FileExists", "FileHash", "JsonPathEquals", "HttpStatus", "Command")),
]

NO_VERBS = {  # of __all__: values, classes of values that the package gives out, and errors
    "Absent", "Context", "Decided", "Decision", "END", "Flow", "Goto", "Happened", "Limit", "Run", "START", "Schedule", "Send", "State", "Unknown", "Wait", "any_of", "append",
    "current", "last", "merge", "override", "register", "secret", "thread", "topic",
}

SOUND: dict[str, Any] = {
    "skill": "note", "inputs": {"text": "a"}, "action": "approve", "reason": "because", "actor": "ada", "name": "n", "payload": None, "path": "nowhere.db",
    "folder": "nowhere", "older_than": dt.timedelta(days=1), "token": "t", "outcome": "sent", "key": "k", "value": b"v", "rows": {"k": b"v"}, "prefix": "p", "where": {"skill": "note"},
    "status": "completed", "fields": {}, "run": {"skill_id": "note"}, "values": {"text": "b"}, "thread_id": "t", "snapshot": {"values": {"text": "b"}}, "statement": "UPDATE nothing SET a = 1",
    "input": {"text": "a"}, "event": "r", "text": "said", "attempt": "r", "capability": "mail", "request": 1, "result": 1,
    "prompt": "Go on?", "fn": act, "items": [1], "duration": 0.001, "type": "letter", "topic": "t", "data": 1, "signal": "go", "tool": "git", "verdict": "no",
    "source": "body", "target": "body", "node": "body", "router": act, "child": note(), "id": "g", "argv": ["true"], "n": 3, "code": 0, "sha256": "0" * 64,
    "url": "http://localhost/", "pointer": "/a", "gate": None, "store_url": "memory:", "until_idle": True, "note": "n",
    "queue": "q", "limit": Limit(in_flight=1), "cron": None, "every": 3600, "wait_id": "", "a": "", "b": "", "checkpoint_id": "",
}
"""What a sound call gives each required parameter, and each that a call could not do without."""

ANYTHING = {"payload", "result", "data", "show", "default", "schema"}
"""Parameters that take any value that can be kept: what cannot is refused in any way of ours."""

ELSEWHERE = {
    "run": "run_id", "event": "run_id", "attempt": "run_id", "key": "idempotency_key", "request": "request",
    "fields": "patch_run", "snapshot": "snapshot",
}
"""A parameter of the ports that stands for a dict, and the field of it that a value which is none is taken for."""


# -- hostile values ----------------------------------------------------------------------------------


class Thing:
    """A value of no known type."""


HOSTILE: list[Any] = [
    42, -1, 2**70, True, 1.5, float("nan"), float("inf"), b"x", Thing(), [1], {"a": 1}, {1: 2}, (1,), {1}, "", "a\0b", "\udc80", "x" * 600, "x" * 5000, "\x1b[31m",
    [""], ["a\0"], None,
]


def admits(annotation: Any, value: Any) -> bool:
    """Whether a value is of a type that the annotation names. What it cannot tell, it admits."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation)) if isinstance(annotation, type) else str(annotation)
    return any(_admits(part.strip(), value) for part in _parts(text))


def _parts(text: str) -> list[str]:
    depth, found, part = 0, [], ""
    for letter_ in text:
        depth += letter_ in "[("
        depth -= letter_ in "])"
        if letter_ == "|" and not depth:
            found.append(part)
            part = ""
        else:
            part += letter_
    return [*found, part]


def _admits(part: str, value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match part.partition("[")[0].replace("dt.", "").replace("datetime.", "").replace("collections.abc.", "").replace("typing.", ""):
        case "str" | "NodeRef":
            return isinstance(value, str)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "float":
            return number
        case "bool":
            return isinstance(value, bool)
        case "bytes":
            return isinstance(value, bytes)
        case "None":
            return value is None
        case "Mapping" | "dict":
            return isinstance(value, Mapping)
        case "Sequence" if part == "Sequence[Any]":
            return isinstance(value, list | tuple)
        case "Iterable" | "Sequence" | "list" | "tuple" | "frozenset":
            return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping) and all(isinstance(v, str) for v in value)
        case "timedelta" | "Duration":
            return number or (part == "Duration" and value is None)
        case "ReplayPolicy":
            return isinstance(value, str)
        case "PathLike" | "os.PathLike":
            return isinstance(value, os.PathLike)
        case "datetime" | "Callable" | "State" | "Event" | "asyncio.Event" | "type" | "Retry" | "Store" | "Clock":
            return False
    return True


def field_of(error: HoldfastError) -> str:
    return str(getattr(error, "field", "")).split("[")[0].split(".")[0]


def open_to(verb: Verb, name: str, value: Any) -> bool:
    """Whether a sound answer to this value may be another than a refusal by its name."""
    if (name in ANYTHING and verb.home != "Shelf") or (str(verb), name) in ANY_VALUE:
        return True
    return admits(verb.parameters[name].annotation, value)


async def outcome(call: Callable[[], Any]) -> BaseException | None:
    """What a call raises; None if it comes back."""
    try:
        async with asyncio.timeout(SECONDS):
            found = call()
            if isinstance(found, AsyncIterator) and not isinstance(found, Awaitable):
                await anext(found)
            elif inspect.isawaitable(found):
                await found
    except TimeoutError as e:
        raise AssertionError("it hangs") from e
    except Exception as e:
        return e
    return None


def judge(verb: Verb, name: str, value: Any, error: BaseException | None) -> str | None:
    """What is wrong with this answer to a hostile value; None if nothing is."""
    about = f"{verb}({name}={value!r:.40})"
    if error is None:
        return None if open_to(verb, name, value) else f"{about} was taken"
    if not isinstance(error, HoldfastError):
        return f"{about} raised {type(error).__name__}: {error}"
    if open_to(verb, name, value) or (isinstance(error, RestrictedOption) and name in str(error)):
        return None  # what a place does not allow it refuses first, by its name
    if not isinstance(error, InvalidInput | TooLarge):
        return f"{about} is refused by {type(error).__name__} ({error.code}): {error}"
    if field_of(error) not in (name, ELSEWHERE.get(name) if verb.home in NAMED else name) or field_of(error) not in str(error):
        return f"{about} is refused without its name: {error} (field {error.field!r})"
    return None


def arguments(verb: Verb, known: Mapping[str, Any], name: str, value: Any) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call that is sound but for one."""
    placed: list[Any] = []
    options: dict[str, Any] = {}
    for other, parameter in verb.parameters.items():
        if other == name:
            said = value
        elif other in known and parameter.default is parameter.empty:
            said = known[other]
        elif parameter.default is parameter.empty or other == "until_idle":
            said = SOUND[other]
        else:
            continue
        if parameter.kind is parameter.POSITIONAL_ONLY:
            placed.append(said)
        else:
            options[other] = said
    if (str(verb), name) in BESIDE:
        options |= BESIDE[str(verb), name]
    if str(verb) in WITH:
        options = {**options, **{n: v for n, v in WITH[str(verb)].items() if n != name}}
    return placed, options


NAMED = {port.__name__ for port in PORTS}
ANY_VALUE = {("Context.emit", "value"), ("Context.map", "items"), ("Context.tool", "input"), ("JsonPathEquals", "value"), ("tools.JsonPathEquals", "value"), ("SideEffectLedger.record_attempt", "request")}
"""Parameters of these names that take any value, where others of the same name do not."""

BESIDE: dict[tuple[str, str], dict[str, Any]] = {}
"""What a call has to say besides, so that a value of this parameter is looked at at all."""

WITH: dict[str, dict[str, Any]] = {"Runtime.schedule": {"every": 3600}, "SideEffectLedger.record_attempt": {"key": "k", "capability": "mail"}, "Runtime.kernel_invoke": {"request": Request()}, "holdfast.run": {"skill": note(), "store": "memory:"}}


def every_place() -> Iterator[tuple[Verb, str]]:
    for verb in (*VERBS, *CALLS, *DECLARATIONS):
        for name in verb.parameters:
            yield verb, name


# -- the tests ---------------------------------------------------------------------------------------


def test_every_public_verb_has_its_place_here() -> None:
    covered = {v.name for v in DECLARATIONS if v.home == "holdfast"}
    errors = {n for n in holdfast.__all__ if isinstance(getattr(holdfast, n), type) and issubclass(getattr(holdfast, n), Exception)}
    assert set(holdfast.__all__) == covered | NO_VERBS | errors, "a new public name: a verb of DECLARATIONS, or one of NO_VERBS?"
    lacking = [
        f"{verb}: {name}" for verb, name in every_place() if verb.parameters[name].default is inspect.Parameter.empty and name not in SOUND and name not in
        ("run_id", "checkpoint_id", "schedule_id", "intent_id", "effect_id", "wait_id", "from_checkpoint")
    ]
    assert not lacking, f"say in SOUND what a sound call gives: {lacking}"
    open_ended = {str(v) for v in (*VERBS, *CALLS, *DECLARATIONS) if any(p.kind is p.VAR_KEYWORD for p in inspect.signature(v.function).parameters.values())}
    assert open_ended == {"Runtime.run", "RunStore.create_run", "Context.restart", "Context.spend"}, "options are spelt out (§3.6)"


@pytest.mark.parametrize("verb", VERBS, ids=str)
async def test_a_hostile_argument_of_a_verb(verb: Verb, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    async with Runtime("memory:", skills=[note()], transports={"letter": letter}) as rt:
        world = World(rt)
        await world.begin()
        before = (await rt.get(world.known["run_id"])).version
        for name in verb.parameters:
            for value in HOSTILE:
                if name == "follow" and value is True:
                    continue  # it would follow for ever
                if (verb.name, name, value) == ("stream", "after", 42):
                    continue  # it waits for what comes after the 42nd event
                placed, options = arguments(verb, world.known, name, value)
                error = await outcome(lambda p=placed, o=options: verb.bind(world)(*p, **o))
                wrong.append(judge(verb, name, value, error))
                if error is None:
                    await world.sound()
        if verb.name in ("get", "runs", "state", "events", "check"):
            assert (await rt.get(world.known["run_id"])).version == before, "looking wrote something"
        await world.sound()
    assert not any(wrong), "\n".join(w for w in wrong if w)


@pytest.mark.parametrize("verb", CALLS, ids=str)
async def test_a_hostile_argument_of_a_call_through_ctx(verb: Verb) -> None:
    wrong: list[str | None] = []

    def make(name: str, value: Any) -> Graph[Note]:
        graph = Graph("calls", Note)

        @graph.node(start=True)
        async def call(state: Note, ctx: Context) -> None:
            placed, options = arguments(verb, {}, name, value)
            wrong.append(judge(verb, name, value, await outcome(lambda: getattr(ctx, verb.name)(*placed, **options))))

        return graph

    url = shared().fresh("arguments") if verb.name == "sql" else "memory:"  # no other store takes the application's SQL
    async with Runtime(url, tools=[Tool("git")], transports={"letter": letter}) as rt:
        for name in verb.parameters:
            for value in HOSTILE:
                if (verb.name, value) != ("sleep", 42):  # it would
                    await rt.invoke(make(name, value), {})
        await World(rt).sound()
    assert not any(wrong), "\n".join(w for w in wrong if w)


@pytest.mark.parametrize("verb", DECLARATIONS, ids=str)
def test_a_hostile_argument_of_a_declaration(verb: Verb, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name in verb.parameters:
        for value in HOSTILE:
            placed, options = arguments(verb, {}, name, value)
            try:
                made = verb.bind(None)(*placed, **options)
                if verb.name in ("node", "flow") and callable(made) and not isinstance(made, Graph) and name != "name":
                    made(flowing if verb.name == "flow" else another)
                error = None
            except Exception as e:
                error = e
            wrong.append(judge(verb, name, value, error))
    assert not any(wrong), "\n".join(w for w in wrong if w)


# -- names that nobody knows, and values that nobody has listed ----------------------------------------


def misspelt(verb: Verb) -> Iterator[tuple[str, str]]:
    """Near misses of each option's name, with the option: a letter lost, doubled, or two swapped."""
    known = set(verb.parameters)
    named_only = [n for n, p in verb.parameters.items() if p.kind is not p.POSITIONAL_ONLY]
    for name in named_only:
        for near in (name[:-1], name + name[-1], name[1::-1] + name[2:]):
            if len(name) > 3 and near not in known:
                yield near, name


def held(verb: Verb, near: str, name: str, error: BaseException | None) -> str | None:
    match error:
        case UnknownOption() if error.name == near and error.nearest in verb.parameters and near in str(error) and error.nearest in str(error):
            return None if error.nearest == name or len(verb.parameters) > 1 else f"{verb}({near}=) means {name}, not {error.nearest}"
    return f"{verb}({near}=) gives {error!r}, which is no UnknownOption that names it and the nearest"


@pytest.mark.parametrize("verb", VERBS, ids=str)
async def test_an_option_that_a_verb_does_not_have(verb: Verb) -> None:
    """Mend 11: what Python would call an unexpected keyword names what was meant; nothing is written."""
    async with Runtime("memory:", skills=[note()]) as rt:
        world = World(rt)
        await world.begin()
        before = (await rt.get(world.known["run_id"])).version
        wrong = []
        for near, name in misspelt(verb):
            placed, options = arguments(verb, world.known, "", None)
            if verb.name == "run":
                continue  # its options are the inputs of a flow, or those of invoke, which are held there
            error = await outcome(lambda p=placed, o={**options, near: 1}: verb.bind(world)(*p, **o))
            wrong.append(held(verb, near, name, error))
        assert not any(wrong), "\n".join(w for w in wrong if w)
        assert (await rt.get(world.known["run_id"])).version == before and len(await rt.runs()) == 1


@pytest.mark.parametrize("verb", CALLS, ids=str)
async def test_an_option_that_a_call_through_ctx_does_not_have(verb: Verb) -> None:
    wrong: list[str | None] = []
    graph = Graph("calls", Note)

    @graph.node(start=True)
    async def call(state: Note, ctx: Context) -> None:
        for near, name in misspelt(verb):
            placed, options = arguments(verb, {}, "", None)
            wrong.append(held(verb, near, name, await outcome(lambda p=placed, o={**options, near: 1}: getattr(ctx, verb.name)(*p, **o))))

    async with Runtime("memory:", tools=[Tool("git")]) as rt:
        run = await rt.invoke(graph, {})
        assert run.status == "completed" or verb.name in ("spend", "restart"), run.error
    assert not any(wrong), "\n".join(w for w in wrong if w)


@pytest.mark.parametrize("verb", DECLARATIONS, ids=str)
def test_an_option_that_a_declaration_does_not_have(verb: Verb) -> None:
    wrong = []
    for near, name in misspelt(verb):
        placed, options = arguments(verb, {}, "", None)
        try:
            verb.bind(None)(*placed, **{**options, near: 1})
            error = None
        except Exception as e:
            error = e
        wrong.append(held(verb, near, name, error))
    assert not any(wrong), "\n".join(w for w in wrong if w)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.text(alphabet="\0\udc80\ud800\x1b\u202e\x85x", max_size=8), st.binary(max_size=8),
    st.sampled_from(["x" * 513, "é" * 300, "x" * 4097]), st.timedeltas(), st.datetimes(),
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.one_of(st.text(max_size=5), st.integers()), inner, max_size=3), max_leaves=4)
RUNS = [v for v in VERBS if v.name not in ("run", "dispatch", "worker") and v.parameters]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([(v, n) for v in RUNS for n in v.parameters]), values)
def test_any_value_at_all(place: tuple[Verb, str], value: Any) -> None:
    """Whatever is taken can be listed, read and checked afterwards; whatever is not is refused by an error of ours."""
    verb, name = place
    if name == "follow":
        return

    async def tried() -> None:
        async with Runtime("memory:", skills=[note()], transports={"letter": letter}) as rt:
            world = World(rt)
            await world.begin()
            placed, options = arguments(verb, world.known, name, value)
            assert (wrong := judge(verb, name, value, await outcome(lambda: verb.bind(world)(*placed, **options)))) is None, wrong
            await world.sound()

    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            asyncio.run(tried())
        finally:
            os.chdir(here)
