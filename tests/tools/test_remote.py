"""Tools that a runner elsewhere carries out (§11.3): the request is a row with lease and attempt, and the record is that of a call made here."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Retry, Runtime, Send, State, Tool, flow, workspaces
from holdfast.core.errors import InvalidInput, UsageError, WorkspaceElsewhere
from holdfast.core.intents import Intent
from holdfast.core.limits import Limit
from holdfast.core.status import Status
from holdfast.encryption import Encryption, Keys
from holdfast.tools import ExitCode, FileExists, JsonPathEquals
from holdfast.transports import Happened, RemoteTools
from tests.outbox.conftest import Open, Shared

MADE = hashlib.sha256(b"made\n").hexdigest()


class Work(State):
    out: str = ""
    names: list[str] = []  # noqa: RUF012 - a state's defaults are copied


graph: Graph[Work] = Graph("work", Work, version="1")
SCRIPT = "printf 'made\\n' > out.txt; printf x >> count; cat out.txt"


@graph.node(start=True)
async def work(state: Work, ctx: Context) -> dict[str, Any]:
    outcome = await ctx.tool("sh", ["-c", SCRIPT], timeout=20)
    return {"out": outcome.stdout, "names": [a.name for a in outcome.artifacts]}


def sh(**more: Any) -> Tool:
    return Tool("sh", **({"side_effects": "write"} | more))


class Pair:
    """A worker that has no folder, and a runner that has it, over one store."""

    def __init__(self, open_rt: Open, folder: Path, *tools: Tool, skill: Any = graph) -> None:
        folder.mkdir(exist_ok=True)
        self.open, self.folder, self.tools, self.skill = open_rt, folder, tools or (sh(),), skill
        self.there = RemoteTools(folder, self.tools)

    def worker(self, **more: Any) -> Runtime:
        return self.open(skills=[self.skill], tools=self.tools, workspace=f"remote:{self.there.workspace}", **more)

    def runner(self, *tools: Tool, **more: Any) -> Runtime:
        there = RemoteTools(self.folder, tools) if tools else self.there
        return self.open(transports=there.transports, **more)

    @property
    def count(self) -> int:
        """How often the tool has run."""
        path = self.folder / "count"
        return len(path.read_text()) if path.exists() else 0


@pytest.fixture
def pair(open_rt: Open, tmp_path: Path) -> Pair:
    return Pair(open_rt, tmp_path / "space")


async def test_a_call_is_carried_out_where_the_folder_is(pair: Pair) -> None:
    """The run rests meanwhile, and has everything of the outcome afterwards."""
    async with pair.worker() as rt, pair.runner() as runner:
        run = await rt.invoke(graph, {})
        assert run.status == Status.WAITING_FOR_SIGNAL and pair.count == 0
        assert (await rt.get(run.run_id)).lease.owner is None, "it rests: nobody holds it"
        (effect,) = await rt.store.effects(run.run_id)
        assert (effect.status, effect.owner.partition("#")[0]) == ("attempted", f"tool@{pair.there.workspace}")
        assert (await rt.check(run.run_id)).ok
        (request,) = await rt.intents(run.run_id)
        assert (request.type, request.state) == (f"tool@{pair.there.workspace}", "queued")
        assert await runner.dispatch(until_idle=True) == 1
        await rt.worker(until_idle=True)
        done = await rt.get(run.run_id)
        assert (done.status, done.values["out"], pair.count) == (Status.COMPLETED, "made\n", 1), done.error
        (effect,) = await rt.store.effects(run.run_id)
        assert (effect.status, effect.owner) == ("recorded", runner.owner)
        assert (await rt.check(run.run_id)).ok


async def served(pair: Pair, rt: Runtime, run_id: str, *, skill: Any = None) -> Any:
    """The run after runners and workers have done what they can."""
    async with pair.runner() as runner:
        for _ in range(6):
            await runner.dispatch(until_idle=True)
            await rt.worker(until_idle=True)
            if (await rt.get(run_id)).status != Status.WAITING_FOR_SIGNAL:
                break
    return await rt.get(run_id)


async def begun(pair: Pair, rt: Runtime) -> None:
    """A tool that writes the file ``pid`` has done so."""
    while not (pair.folder / "pid").exists():
        await rt.store.wait_for_change(0.02)


async def lose(pair: Pair, rt: Runtime, run_id: str) -> str:
    """A runner takes the request and is heard of no more; gives its owner."""
    (taken,) = await rt.store.claim_intents("a runner that died", (f"tool@{pair.there.workspace}",), limit=1, ttl_us=1, run_id=run_id)
    outlast(rt, taken)
    return str(taken.owner)


def outlast(rt: Runtime, taken: Intent) -> None:
    """Until a lease is over by this process's account of the store's time. Over PostgreSQL it lags by as long as an answer took to come."""
    while rt.store.now() <= (taken.lease_until or 0):
        continue


async def test_files_and_large_outcomes_come_with_the_answer(open_rt: Open, tmp_path: Path) -> None:
    """§11.4: what the tool left is in the store before anything says that it is done."""
    tool = sh(postconditions=[ExitCode(0), FileExists("out.txt")], artifacts=["*.txt", "big"])
    big: Graph[Work] = Graph("big", Work, version="1")

    @big.node(start=True)
    async def make(state: Work, ctx: Context) -> dict[str, Any]:
        outcome = await ctx.tool("sh", ["-c", f"{SCRIPT}; head -c 100000 /dev/zero | tr '\\0' y"])
        return {"out": outcome.stdout, "names": [a.name for a in outcome.artifacts]}

    pair = Pair(open_rt, tmp_path / "space", tool, skill=big)
    async with pair.worker() as rt:
        run = await rt.invoke(big, {})
        async with pair.runner() as runner:
            await runner.dispatch(until_idle=True)
        assert await rt.store.blob(MADE) == b"made\n", "it is there before the run goes on"
        done = await served(pair, rt, run.run_id)
        assert (done.status, done.values["names"], len(done.values["out"])) == (Status.COMPLETED, ["out.txt"], 100_005), done.error
        kinds = [e.event_type for e in await rt.events(run.run_id)]
        assert kinds.count("postcondition.evaluated") == 2 and kinds.count("artifact.created") == 1
        assert max(n for n, k in enumerate(kinds) if k in ("postcondition.evaluated", "artifact.created")) < kinds.index("side_effect.recorded")
        assert (await rt.check(run.run_id)).ok


async def test_a_lost_call_is_unknown_and_a_person_is_asked_once(pair: Pair) -> None:
    """As for a process of its own that died: nothing is repeated, and the request itself is settled."""
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        owner = await lose(pair, rt, run.run_id)
        stands = await served(pair, rt, run.run_id)
        (wait,) = stands.waits
        assert (stands.status, wait.kind, pair.count) == (Status.WAITING_FOR_HUMAN, "effect", 0)
        assert wait.available_actions == ("record_result", "reexecute", "abandon", "halt") and wait.show["owner"] == owner
        assert [(e.status, e.owner) for e in await rt.store.effects(run.run_id)] == [("unknown", owner)]
        assert [i.state for i in await rt.intents(run.run_id)] == ["sent"], "one question about one act"
        await rt.decide(run.run_id, "reexecute", actor="ada", force=True)
        done = await served(pair, rt, run.run_id)
        assert (done.status, pair.count) == (Status.COMPLETED, 1), done.error
        assert [e.status for e in await rt.store.effects(run.run_id)] == ["abandoned", "recorded"]


@pytest.mark.parametrize(("tool", "effects"), [(sh(side_effects="read"), []), (sh(idempotency="optional"), ["recorded"])])
async def test_what_may_be_repeated_is_asked_for_again(open_rt: Open, tmp_path: Path, tool: Tool, effects: list[str]) -> None:
    pair = Pair(open_rt, tmp_path / "space", tool)
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        await lose(pair, rt, run.run_id)
        done = await served(pair, rt, run.run_id)
        assert (done.status, pair.count) == (Status.COMPLETED, 1), done.error
        assert [e.status for e in await rt.store.effects(run.run_id)] == effects
        assert len(await rt.intents(run.run_id)) == 2


@pytest.mark.parametrize(("queued", "count"), [(True, 0), (False, 0)])
async def test_a_cancelled_run_has_nothing_carried_out(pair: Pair, queued: bool, count: int) -> None:
    """Neither what no runner has begun, nor what is under way then; the ledger says which, and a resume goes by it."""
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        await rt.cancel(run.run_id)
        async with pair.runner() as runner:
            await runner.dispatch(until_idle=True)
        assert pair.count == 0
        assert [e.status for e in await rt.store.effects(run.run_id)] == ["abandoned"]
        assert [i.state for i in await rt.intents(run.run_id)] == ["dead"]
        if queued:
            await rt.resume(run.run_id)
        done = await served(pair, rt, run.run_id)
        assert (done.status, pair.count) == ((Status.COMPLETED, 1) if queued else (Status.CANCELED, 0)), done.error


async def test_a_cancel_ends_what_is_under_way(open_rt: Open, tmp_path: Path) -> None:
    slow: Graph[Work] = Graph("slow", Work, version="1")

    @slow.node(start=True)
    async def wait(state: Work, ctx: Context) -> None:
        await ctx.tool("sh", ["-c", "echo $$ > pid; exec sleep 60"], timeout=90)

    pair = Pair(open_rt, tmp_path / "space", skill=slow)
    async with pair.worker() as rt, pair.runner() as runner:
        run = await rt.invoke(slow, {})
        going = asyncio.ensure_future(runner.dispatch(until_idle=True))
        async with asyncio.timeout(60):
            await begun(pair, rt)
            await rt.cancel(run.run_id)
            await going
        assert [(e.status, e.closed) for e in await rt.store.effects(run.run_id)] == [("unknown", True)]
        assert not Path(f"/proc/{(pair.folder / 'pid').read_text().strip()}").exists()
        done = await rt.resume(run.run_id)
        assert [w.kind for w in done.waits] == ["effect"], "it may have happened: a person says"


async def test_a_runner_that_is_ended_before_its_turn_leaves_the_request_as_it_was(one_store: Open, tmp_path: Path) -> None:
    """Nothing of it was begun, so nobody has to be asked."""
    pair = Pair(one_store, tmp_path / "space")
    async with pair.worker() as rt, pair.runner() as runner:
        run = await rt.invoke(graph, {})
        async with workspaces.lock(str(pair.folder), writes=True):
            going = asyncio.ensure_future(runner.dispatch(until_idle=True))
            async with asyncio.timeout(60):
                while [i.state for i in await rt.intents(run.run_id)] != ["sending"]:
                    await rt.store.wait_for_change(0.02)
            going.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await going
        assert [i.state for i in await rt.intents(run.run_id)] == ["queued"]
        assert (await served(pair, rt, run.run_id)).status == Status.COMPLETED and pair.count == 1


async def test_one_writer_at_a_time_with_two_runners(open_rt: Open, tmp_path: Path) -> None:
    """Each call fails if another is in the folder; a tool node fans them out."""
    fan: Graph[Work] = Graph("fan", Work, version="1")
    tool = sh()

    @fan.node(start=True)
    async def plan(state: Work) -> Any:
        return [Send("each", n) for n in range(6)]

    @fan.node(tool=tool)
    def each(state: Work, ctx: Context) -> Any:
        yield ["-c", "mkdir busy || exit 9; printf x >> count; sleep 0.02; rmdir busy"]

    pair = Pair(open_rt, tmp_path / "space", tool, skill=fan)
    async with pair.worker() as rt:
        run = await rt.invoke(fan, {})
        async with pair.runner() as one, pair.runner(tool) as other:
            await asyncio.gather(one.dispatch(until_idle=True), other.dispatch(until_idle=True))
        await rt.worker(until_idle=True)
        done = await rt.get(run.run_id)
        assert (done.status, pair.count) == (Status.COMPLETED, 6), done.error


async def test_a_runner_without_the_tool_leaves_it_to_others(pair: Pair) -> None:
    async with pair.worker() as rt, pair.runner(Tool("git")) as poor:
        run = await rt.invoke(graph, {})
        await poor.dispatch(until_idle=True)
        (request,) = await rt.intents(run.run_id)
        assert (request.state, pair.count) == ("queued", 0) and "'sh' is not declared" in request.detail
        assert "'sh' is not declared" in str(await rt.check(run.run_id))
        assert "'sh' is not declared" in (await rt.explain(run.run_id))["why"]


async def test_nobody_there_is_named(pair: Pair) -> None:
    """A run whose request no runner takes says so."""
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        (request,) = await rt.intents(run.run_id)
        assert request.no_transport_for == f"tool@{pair.there.workspace}"
        told = await rt.explain(run.run_id)
        assert f"tool@{pair.there.workspace}" in str(told) and "tool-runner" in str(told), told


async def test_a_replay_echoes_and_a_fork_asks_anew(pair: Pair) -> None:
    async with pair.worker() as rt:
        run = await served(pair, rt, (await rt.invoke(graph, {})).run_id)
        again = await rt.replay(run.run_id)
        assert (again.status, again.values["out"], pair.count) == (Status.COMPLETED, "made\n", 1)
        assert await rt.intents(again.run_id) == []
        anew = await rt.replay(run.run_id, effects="reexecute")
        done = await served(pair, rt, anew.run_id)
        assert (done.status, pair.count) == (Status.COMPLETED, 2), done.error


async def test_a_fork_of_a_run_that_was_cancelled_asks_about_the_request(pair: Pair) -> None:
    """No runner has taken it, and none will: the fork does not wait for it."""
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        await rt.cancel(run.run_id)
        fork = await rt.fork(run.run_id)
        assert (fork.status, [w.kind for w in fork.waits]) == (Status.WAITING_FOR_HUMAN, ["effect"])
        await rt.decide(fork.run_id, "reexecute", actor="ada", force=True)
        done = await served(pair, rt, fork.run_id)
        assert (done.status, pair.count) == (Status.COMPLETED, 1), done.error


async def test_missing_evidence_asks_and_nothing_is_done_twice(open_rt: Open, tmp_path: Path) -> None:
    """T-96, with the tool elsewhere."""
    pair = Pair(open_rt, tmp_path / "space", sh(postconditions=[JsonPathEquals("report.json", "/ok", True)]))
    async with pair.worker() as rt:
        run = await served(pair, rt, (await rt.invoke(graph, {})).run_id)
        assert [w.kind for w in run.waits] == ["takeover"]
        done = await rt.approve(run.run_id, actor="ada")
        assert (done.status, pair.count) == (Status.COMPLETED, 1), done.error


async def test_a_run_stays_with_its_workspace(open_rt: Open, tmp_path: Path) -> None:
    """Whoever has the folder itself may go on with it; whoever has another may not."""
    pair = Pair(open_rt, tmp_path / "space")
    other = Pair(open_rt, tmp_path / "other")
    async with pair.worker() as rt:
        run = await served(pair, rt, (await rt.invoke(graph, {})).run_id)
        assert run.record.workspace == workspaces.read_id(str(pair.folder))
        held = await rt.invoke(graph, {})
        await rt.cancel(held.run_id)
    async with other.worker() as rt:
        with pytest.raises(WorkspaceElsewhere):
            await rt.resume(held.run_id)
    async with pair.open(skills=[graph], tools=pair.tools, workspace=pair.folder) as rt:
        assert (await rt.replay(run.run_id)).status == Status.COMPLETED


async def test_a_folder_of_runs_that_is_opened_again_has_what_a_runner_left(tmp_path: Path) -> None:
    """Between the answer and the run's next step nothing in the log names it yet; afterwards the artifact is named by what tells of it."""
    url, tool = f"workspace:{tmp_path}/runs", sh(artifacts=["*.txt"])
    pair = Pair(lambda **options: Runtime(url, **options), tmp_path / "space", tool)
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
    async with pair.runner() as runner:
        await runner.dispatch(until_idle=True)
    async with pair.worker() as rt:
        assert (await rt.check()).ok
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).values["names"] == ["out.txt"]
    async with pair.worker() as rt:
        assert await rt.store.blob(MADE) == b"made\n" and (await rt.check()).ok


CALLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "well": ("echo out; echo err >&2", {}, {}),
    "fails": ("echo no >&2; exit 3", {}, {}),
    "handed over": ("exit 3", {}, {"check": False}),
    "tried again": ("printf x >> n; test $(wc -c < n) -ge 3 || exit 1", {"idempotency": "optional"}, {"retry": Retry(max_attempts=3, base_us=1_000)}),
    "too slow": ("sleep 30", {}, {"timeout": 0.2}),
    "too slow, and may be repeated": ("sleep 30", {"idempotency": "optional"}, {"timeout": 0.2}),
    "outside": ("true", {}, {"cwd": ".."}),
    "no such command": ("true", {"command": ("no-such-command-here",)}, {}),
    "fed": ("cat; echo $WORD; echo ${HOLDFAST_IDEMPOTENCY_KEY:+keyed}", {}, {"input": {"a": [1, 2]}, "env": {"WORD": "w"}}),
    "holds": ("printf y > f", {"postconditions": [FileExists("f"), ExitCode(0)], "artifacts": ["f"]}, {}),
    "does not hold": ("true", {"postconditions": [FileExists("f")], "artifacts": ["*"]}, {}),
    "no evidence": ("true", {"postconditions": [JsonPathEquals("none.json", "/a", 1)]}, {}),
    "large": ("head -c 200000 /dev/zero | tr '\\0' z", {}, {}),
    "a link in its arguments": ("echo '{wait_link}'", {}, {}),
}


@pytest.mark.parametrize("effects", ["read", "write"])
@pytest.mark.parametrize("name", CALLS)
async def test_the_record_is_that_of_a_call_made_here(tmp_path: Path, name: str, effects: str) -> None:
    """Whatever comes of it: the same values, failures, evidence and ledger, but for who has done it."""
    script, declared, given = CALLS[name]
    tool = Tool("t", **({"command": ("sh", "-c"), "side_effects": effects} | declared))
    one: Graph[Work] = Graph("one", Work, version="1")

    @one.node(start=True)
    async def call(state: Work, ctx: Context) -> dict[str, str]:
        outcome = await ctx.tool("t", [script], **given)
        return {"out": f"{outcome.exit_code} {outcome.stdout} {outcome.stderr} {outcome.reports} {outcome.artifacts} {outcome.truncated}"}

    async def record(rt: Runtime, run_id: str) -> dict[str, Any]:
        run = await rt.get(run_id)
        kept = ("side_effect.recorded", "side_effect.failed", "side_effect.unknown", "step.completed", "step.failed", "postcondition.evaluated", "artifact.created")
        tried = ("side_effect.attempted", "attempt.retried", "step.retrying")
        events = [(e.event_type, e.payload.get("name"), e.payload.get("holds"), e.payload.get("sha256")) for e in await rt.events(run_id) if e.event_type in (*kept, *tried)]
        ledger = [
            (e.status, e.key.replace(run_id, ""), e.request_hash, e.response_hash, e.error and (e.error.type, e.error.code, e.error.message), e.detail, e.closed, e.idempotent)
            for e in await rt.store.effects(run_id)
        ]
        waits = [(w.kind, w.available_actions) for w in run.waits]
        error = run.error and (run.error.type, run.error.code, run.error.message)
        return {"status": run.status, "values": run.values, "error": error, "events": events, "ledger": ledger, "waits": waits}

    space = tmp_path / "space"
    space.mkdir()
    async with Runtime("memory:", skills=[one], tools=[tool], workspace=space) as rt:
        local = await record(rt, (await rt.invoke(one, {})).run_id)
    space.rename(tmp_path / "used")
    store = Shared()
    pair = Pair(lambda **options: Runtime(store, **options), space, tool, skill=one)
    async with pair.worker() as rt:
        run_id = (await rt.invoke(one, {})).run_id
        await served(pair, rt, run_id)
        remote = await record(rt, run_id)
    assert str(remote) == str(local)


@pytest.fixture
def one_store(tmp_path: Path) -> Open:
    """Runtimes over one store in memory, for what no store has a say in."""
    store = Shared()
    return lambda **options: Runtime(store, **options)


async def test_what_is_no_request_is_refused(one_store: Open, tmp_path: Path) -> None:
    """Also one that is well made: no run waits for it."""
    forged: Graph[Work] = Graph("forged", Work, version="1")
    pair = Pair(one_store, tmp_path / "space", skill=forged)
    well = {"place": "a" * 16, "tool": "sh", "argv": ["-c", SCRIPT], "step_id": "s", "attempt": 1}

    @forged.node(start=True)
    async def forge(state: Work, ctx: Context) -> None:
        for payload in ("nonsense", {}, {"tool": "sh"}, {**well, "argv": "-c"}, {**well, "timeout_us": "x"}, well):
            ctx.send(f"tool@{pair.there.workspace}", payload)

    async with pair.worker() as rt, pair.runner() as runner:
        run = await rt.invoke(forged, {})
        await runner.dispatch(until_idle=True)
        assert ([i.state for i in await rt.intents(run.run_id)], pair.count) == (["dead"] * 6, 0)


@pytest.mark.parametrize("payload", [None, "x", {"owner": 3}, {"owner": "me", "error": "x"}])
async def test_an_answer_that_nobody_can_read_is_no_outcome(one_store: Open, tmp_path: Path, payload: Any) -> None:
    pair = Pair(one_store, tmp_path / "space")
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        (wait,) = run.waits
        await rt.signal(run.run_id, wait.name, payload)
        await rt.worker(until_idle=True)
        run = await rt.get(run.run_id)
        assert [w.kind for w in run.waits] == ["effect"], run.error


async def test_an_outcome_that_is_none_fails_the_call(one_store: Open, tmp_path: Path) -> None:
    pair = Pair(one_store, tmp_path / "space")
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        await rt.signal(run.run_id, run.waits[0].name, {"owner": "me", "outcome": b"\xa1x"})
        await rt.worker(until_idle=True)
        run = await rt.get(run.run_id)
        assert run.status == Status.FAILED and run.error is not None and "not the outcome of a tool" in run.error.message


async def test_verify_says_whether_a_lost_call_happened(one_store: Open, tmp_path: Path) -> None:
    """As for a local call: it is asked where its code is, and only a proven death makes its no count."""
    asked: list[str] = []
    looked: Graph[Work] = Graph("looked", Work, version="1")

    async def look(key: str, *args: Any) -> Any:
        asked.append(key)
        return Happened({"exit_code": 0})

    @looked.node(start=True)
    async def act(state: Work, ctx: Context) -> dict[str, str]:
        return {"out": str(await ctx.tool("sh", ["-c", SCRIPT], verify=look))}

    pair = Pair(one_store, tmp_path / "space", skill=looked)
    async with pair.worker() as rt:
        run = await rt.invoke(looked, {})
        await lose(pair, rt, run.run_id)
        done = await served(pair, rt, run.run_id)
        assert (done.status, pair.count, len(asked)) == (Status.COMPLETED, 0, 1), done.error


async def test_what_first_of_has_no_use_for_is_not_carried_out(one_store: Open, tmp_path: Path) -> None:
    """The run goes on, and does not wait for it any more."""
    either: Graph[Work] = Graph("either", Work, version="1")

    @either.node(start=True)
    async def act(state: Work, ctx: Context) -> dict[str, str]:
        which, _ = await ctx.first_of(ctx.wait("enough"), ctx.tool("sh", ["-c", SCRIPT]))
        return {"out": str(which)}

    pair = Pair(one_store, tmp_path / "space", skill=either)
    async with pair.worker() as rt:
        run = await rt.invoke(either, {})
        await rt.signal(run.run_id, "enough")
        await rt.worker(until_idle=True)
        done = await served(pair, rt, run.run_id)
        assert (done.status, done.values["out"], pair.count) == (Status.COMPLETED, "0", 0), done.error
        assert [e.status for e in await rt.store.effects(run.run_id)] == ["abandoned"]


async def test_branches_ask_at_the_same_time(one_store: Open, tmp_path: Path) -> None:
    """Concurrent calls rest together."""
    both: Graph[Work] = Graph("both", Work, version="1")

    @both.node(start=True)
    async def act(state: Work, ctx: Context) -> dict[str, str]:
        async def call(name: str) -> str:
            return (await ctx.tool("sh", ["-c", f"printf x >> count; printf {name}"], key=name)).stdout

        return {"out": "".join(await ctx.gather(call("a"), call("b")))}

    pair = Pair(one_store, tmp_path / "space", skill=both)
    async with pair.worker() as rt:
        run = await rt.invoke(both, {})
        assert len(await rt.intents(run.run_id)) == 2
        done = await served(pair, rt, run.run_id)
        assert (done.status, done.values["out"], pair.count) == (Status.COMPLETED, "ab", 2), done.error


async def test_requests_are_of_their_tenant_and_hold_the_limit_of_their_tool(one_store: Open, tmp_path: Path) -> None:
    """The runner holds the limit while it acts; who waits for the answer holds nothing."""
    tool = sh(limit="disk")
    pair = Pair(one_store, tmp_path / "space", tool)
    async with pair.worker() as rt, pair.runner(tool, limits={"disk": Limit(in_flight=1)}) as runner:
        runs = [await rt.invoke(graph, {}, tenant_id=tenant) for tenant in ("a", "b")]
        assert not (await rt.store.usage()).calls
        assert [(await rt.intents(run.run_id))[0].tenant_id for run in runs] == ["a", "b"]
        await runner.dispatch(until_idle=True)
        await rt.worker(until_idle=True)
        assert ([(await rt.get(run.run_id)).status for run in runs], pair.count) == ([Status.COMPLETED] * 2, 2)


async def test_a_shared_key_is_carried_out_once(one_store: Open, tmp_path: Path) -> None:
    """§6.8: while the request of another run is open nobody else asks; afterwards its result is given again."""
    shared: Graph[Work] = Graph("shared", Work, version="1")

    @shared.node(start=True)
    async def act(state: Work, ctx: Context) -> dict[str, str]:
        return {"out": (await ctx.tool("sh", ["-c", SCRIPT], key="one", timeout=60)).stdout}

    pair = Pair(one_store, tmp_path / "space", skill=shared)
    async with pair.worker() as rt, pair.runner() as runner:
        first = await rt.invoke(shared, {})
        second = asyncio.ensure_future(rt.invoke(shared, {}))
        await runner.dispatch(until_idle=True)
        await rt.worker(until_idle=True)
        done = await asyncio.wait_for(second, 20)
        assert ((await rt.get(first.run_id)).status, done.status, pair.count) == (Status.COMPLETED, Status.COMPLETED, 1), done.error


async def test_payloads_are_sealed_and_the_answer_is_read(tmp_path: Path) -> None:
    """With encryption neither the request nor what came of it lies there in the clear."""
    keys = Keys({"k1": b"1" * 32})
    url, tool = f"sqlite:///{tmp_path}/a.db", sh(artifacts=["*.txt"])
    pair = Pair(lambda **options: Runtime(url, encryption=Encryption(keys), **options), tmp_path / "space", tool)
    async with pair.worker() as rt:
        run = await rt.invoke(graph, {})
        assert (await served(pair, rt, run.run_id)).values["out"] == "made\n"
        assert await rt.store.blob(MADE) == b"made\n"
    kept = b"".join(p.read_bytes() for p in tmp_path.glob("a.db*") if p.is_file())
    assert b"printf" not in kept and b"made" not in kept


def test_what_names_no_workspace_is_refused(tmp_path: Path) -> None:
    for wrong in ("remote:", "remote:xyz", "remote:../etc"):
        with pytest.raises(UsageError, match="does not name a workspace"):
            workspaces.read_id(wrong)
    with pytest.raises(UsageError, match="not a folder"):
        RemoteTools(tmp_path / "none", [])
    with pytest.raises(InvalidInput, match="tools"):
        RemoteTools(tmp_path, ["sh"])  # type: ignore[list-item]


@pytest.mark.parametrize("early", [False, True], ids=["asked before", "answered before"])
async def test_a_request_made_of_what_was_undone_answers_no_other_call(early: bool, open_rt: Open, tmp_path: Path) -> None:
    """§6.3, §6.11: the booking that the tool was told of is undone, and another one is made. What comes of the request for the first one is not given to the call about the
    second: a person says whether that is done too, and its own answer is taken. If no runner has begun it, it is taken back."""
    booked: list[str] = []

    async def book() -> str:
        booked.append(f"R{len(booked) + 1}")
        return booked[-1]

    async def cancel(receipt: str) -> None: ...

    async def fail_once() -> None:
        if len(booked) == 1:
            raise ConnectionError("lost")

    @flow("trip")
    async def trip(ctx: Context) -> Any:
        receipt = await ctx.effect(book, undo=cancel)

        async def tell() -> Any:
            return (await ctx.tool("sh", ["-c", f"echo {receipt}"])).stdout

        async def go() -> None:
            await ctx.wait("go")
            await ctx.step(fail_once)

        told, _ = await ctx.gather(tell(), go())
        return [receipt, told.strip()]

    pair = Pair(open_rt, tmp_path / "space", skill=trip)
    async with pair.worker() as rt, pair.runner() as runner:
        run = await rt.invoke(trip)
        if early:
            await runner.dispatch(until_idle=True)
        await rt.signal(run.run_id, "go")
        await rt.worker(until_idle=True)
        run = await rt.get(run.run_id)
        assert (run.status, run.stop_reason) == (Status.FAILED, "step_failed"), run.waits
        await rt.resume(run.run_id, acknowledge="step_failed")
        await rt.signal(run.run_id, "go", key="again")
        run = await served(pair, rt, run.run_id)
        if early:
            assert [(w.kind, w.show["now"]["arguments"] != w.show["arguments"]) for w in run.waits] == [("gate", True)], run.result
            await rt.decide(run.run_id, "reexecute", actor="ada")
            run = await served(pair, rt, run.run_id)
        assert (run.status, run.result) == (Status.COMPLETED, ["R2", "R2"]), run.waits
        assert sorted(i.state for i in await rt.intents(run.run_id)) == (["sent", "sent"] if early else ["abandoned", "sent"])
        assert (await rt.check(run.run_id)).ok
