"""X-23: an import inserts what is its own and overwrites nothing; unfinished runs are held; no path is made from an unchecked id."""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import apsw
import msgspec
import pytest
from msgspec.structs import replace

from holdfast import Context, Graph, Runtime, State, flow, thread, window
from holdfast.core import codec, ids
from holdfast.core.errors import AttemptMayLive, HoldfastError, InvalidInput, LaneBlocked, NotFound, RecordDamaged, VersionConflict
from holdfast.stores.loglines import End, line, number_lines, unline
from holdfast.transports import Function
from tests.postgres.server import shared

NASTY = ("/abs/evil", "../../evil", "..", ".", "", "a\x00b", "\u202eevil", "x" * 5000, "VICTIM", "VICTIM.x", "C:\\evil", "a\nb")


class Talk(State):
    say: str
    heard: Annotated[list[str], window(50), thread] = []  # noqa: RUF012


class Note(State):
    text: str = ""


def graph() -> Graph[Note]:
    made = Graph("note", Note, version="1")

    @made.node(start=True)
    async def act(state: Note, ctx: Context) -> dict[str, Any]:
        await ctx.effect(_pay, state.text, key="order-1" if state.text == "victim" else f"order-{state.text}")
        ctx.send("mail", {"text": state.text})
        ctx.record("notes", state.text, {"n": 1})
        return {"text": state.text + "!"}

    @made.node(after="act")
    async def ask(state: Note, ctx: Context) -> None:
        if state.text == "waits!":
            await ctx.approve("go on?")

    return made


async def _pay(text: str) -> str:
    return f"paid {text}"


async def exported(folder: Path, text: str) -> tuple[str, Path]:
    """A run of a store of its own, and the workspace that it is exported to."""
    async with Runtime(f"sqlite:///{folder}/source-{text}.db", skills=[graph()]) as rt:
        run = await rt.invoke("note", {"text": text}, thread_id=f"t-{text}")
        await rt.export(run.run_id, folder / f"out-{text}")
        return run.run_id, folder / f"out-{text}"


def resigned(run: Path, name: str, change: Any) -> None:
    """Changes the records of a file beside the log, and signs everything anew."""
    path = run / f"{name}.jsonl"
    lines = [unline(text) or {} for text in path.read_bytes().split(b"\n") if text]
    text, end = number_lines([{k: v for k, v in change(f).items() if k not in ("sum", "n", "prev")} for f in lines], End())
    path.write_bytes(text)
    ends = json.loads((run / "records.json").read_bytes())["ends"]
    (run / "records.json").write_bytes(line({"ends": {**ends, name: [end.number, end.sum]}}))


def recoded(kind: type[msgspec.Struct], **fields: Any) -> Any:
    """A change of the encoded record in a line."""

    def change(line_fields: dict[str, Any]) -> dict[str, Any]:
        record = msgspec.msgpack.decode(base64.b64decode(line_fields["data"]), type=kind)
        return {**line_fields, "data": base64.b64encode(msgspec.msgpack.encode(replace(record, **fields))).decode()}

    return change


def others(path: Path, run_id: str) -> dict[str, list[Any]]:
    """All that a store holds of other runs."""
    with contextlib.closing(apsw.Connection(str(path))) as db:
        own = db.execute("SELECT id FROM run WHERE run_id = ?", (run_id,)).get
        found: dict[str, list[Any]] = {}
        for table in ("run", "log", "effect", "intent", "ledger", "claim", "inbox", "token", "schedule"):
            names = [n for _, n, *_ in db.execute(f"PRAGMA table_info({table})")]
            rows = [dict(zip(names, r, strict=True)) for r in db.execute(f"SELECT * FROM {table}")]
            mine = "run_id" if "run_id" in names else "run"
            found[table] = [r for r in rows if r.get(mine) not in (run_id, own)]
        return found


async def test_an_effect_of_another_run_is_not_replaced(tmp_path: Path) -> None:
    """A forged receipt was served to the run whose effect it took the place of."""
    victim, _ = await exported(tmp_path, "victim")
    run_id, out = await exported(tmp_path, "guest")
    effect = codec.decode_effect(base64.b64decode((unline((out / run_id / "effects.jsonl").read_bytes().split(b"\n")[-2]) or {})["data"]))
    store = tmp_path / "source-victim.db"
    before = others(store, run_id)
    theirs = next(r["effect_id"] for r in before["effect"])
    for fields in ({"effect_id": theirs}, {"run_id": victim}, {"effect_id": theirs, "run_id": victim, "lineage_root": victim}, {"lineage_root": victim}):
        shutil.rmtree(tmp_path / "forged", ignore_errors=True)
        shutil.copytree(out, tmp_path / "forged")
        resigned(tmp_path / "forged" / run_id, "effects", recoded(type(effect), **fields))
        async with Runtime(f"sqlite:///{store}") as rt:
            with pytest.raises((InvalidInput, VersionConflict, RecordDamaged)):
                await rt.import_runs(tmp_path / "forged")
        assert others(store, run_id) == before


async def test_an_id_with_a_path_in_it_is_refused(tmp_path: Path) -> None:
    """No file is written or read outside the folder."""
    run_id, out = await exported(tmp_path, "guest")
    for name in ("%2Fabs%2Fevil", "%2E%2E%2Fevil", "evil%00"):
        shutil.rmtree(tmp_path / "forged", ignore_errors=True)
        shutil.copytree(out / run_id, tmp_path / "forged" / name)
        async with Runtime(f"sqlite:///{tmp_path}/target.db") as rt:
            with pytest.raises(HoldfastError):
                await rt.import_runs(tmp_path / "forged")
            assert await rt.runs() == []
    assert not any(ids.is_wellformed(n) for n in NASTY[:8] if n not in ("VICTIM",))
    assert not (tmp_path / "evil").exists()


async def test_an_unfinished_run_is_held(tmp_path: Path) -> None:
    """No worker drives it where it was taken in; a named actor may. Taken in again it changes nothing."""
    run_id, out = await exported(tmp_path, "waits")
    async with Runtime(f"sqlite:///{tmp_path}/target.db", skills=[graph()]) as rt:
        assert await rt.import_runs(out) == ([run_id], [])
        run = await rt.get(run_id)
        assert run.condition == "awaiting_gate_decision" and run.lease.due is None
        await rt.worker(until_idle=True)
        assert await rt.import_runs(out) == ([], [run_id])
        assert [p.code for p in await rt.check() if p.severity == "error"] == []
        done = await rt.approve(run_id, actor="ada")
        assert done.status == "completed"


@pytest.mark.parametrize("text", ["waits", "done"])
async def test_a_message_that_was_not_sent_is_not_sent_twice(text: str, tmp_path: Path) -> None:
    """Its own store may send it still, also where the run has ended: here a person decides. A receiver that drops repeated keys is sent it again."""
    run_id, out = await exported(tmp_path, text)
    sent: list[str] = []

    async def mail(payload: Any, key: str) -> None:
        sent.append(key)

    async with Runtime(f"sqlite:///{tmp_path}/target.db", skills=[graph()], transports={"mail": mail}) as rt:
        await rt.import_runs(out)
        await rt.dispatch(until_idle=True)
        (intent,) = await rt.intents(run_id)
        assert (sent, intent.state) == ([], "unknown") and "imported" in intent.detail
        with pytest.raises(AttemptMayLive, match="the store that it comes from"):
            await rt.redrive(intent.intent_id, actor="ada")
        await rt.redrive(intent.intent_id, actor="ada", force=True)
        await rt.dispatch(until_idle=True)
        assert sent == [intent.key]
        assert [p.code for p in await rt.check() if p.severity == "error"] == []
    async with Runtime(f"sqlite:///{tmp_path}/third.db", skills=[graph()], transports={"mail": Function(mail, dedupes=True)}) as rt:
        await rt.import_runs(out)
        await rt.dispatch(until_idle=True)
        assert sent == [intent.key] * 2


async def test_an_unfinished_run_that_lives_here_is_not_touched(tmp_path: Path) -> None:
    """Harden 7: the same run in two stores: what is here goes on, and the import says that it is here."""
    run_id, out = await exported(tmp_path, "waits")
    async with Runtime(f"sqlite:///{tmp_path}/source-waits.db", skills=[graph()]) as rt:
        assert await rt.import_runs(out) == ([], [run_id])
        assert (await rt.approve(run_id, actor="ada")).status == "completed"
        later = tmp_path / "later"
        await rt.export(run_id, later)
    async with Runtime(f"sqlite:///{tmp_path}/other.db", skills=[graph()]) as rt:
        await rt.import_runs(out)
        with pytest.raises(VersionConflict):
            await rt.import_runs(later)


async def test_a_folder_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    async with Runtime("memory:") as rt:
        for name in ("nowhere", "file", "file/in it"):
            with pytest.raises(NotFound, match="there is no folder"):
                await rt.import_runs(tmp_path / name)


async def test_a_folder_without_a_run_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("no run")
    (tmp_path / "empty").mkdir()
    async with Runtime("memory:") as rt:
        for name in ("other", "empty"):
            with pytest.raises(NotFound, match="there is no run in the folder"):
                await rt.import_runs(tmp_path / name)
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["letter.txt"], "nothing is written there"


paid: list[int] = []


async def _charge(cents: int) -> int:
    paid.append(cents)
    return cents


@flow("charges")
async def charges(ctx: Context) -> int:
    await ctx.approve("go on?")
    return await ctx.effect(_charge, 5)


async def test_a_replay_without_its_source_does_nothing_again(tmp_path: Path) -> None:
    """§6.6: what its source did is on record where the source is. Elsewhere the replay did it again."""
    paid.clear()
    async with Runtime(f"sqlite:///{tmp_path}/source.db", skills=[charges]) as rt:
        run = await rt.approve((await rt.invoke(charges)).run_id, actor="ada")
        replay = await rt.replay(run.run_id, actor="ada")
        assert (run.status, replay.status) == ("completed", "waiting_for_human")
        await rt.export(run.run_id, tmp_path / "first")
        await rt.export(replay.run_id, tmp_path / "second")
    async with Runtime(f"sqlite:///{tmp_path}/target.db", skills=[charges]) as rt:
        await rt.import_runs(tmp_path / "second")
        failed = await rt.approve(replay.run_id, actor="ada")
        assert (failed.status, failed.error and failed.error.code, paid) == ("failed", "source_missing", [5])
        await rt.import_runs(tmp_path / "first")
        done = await rt.resume(replay.run_id, actor="ada", acknowledge=failed.stop_reason)
        assert (done.status, done.result, paid) == ("completed", 5, [5])


@flow("tells")
async def tells(ctx: Context) -> None:
    await ctx.approve("go on?")
    ctx.send("mail", {"to": "ada"})


async def test_a_replay_without_its_source_sends_nothing_again(tmp_path: Path) -> None:
    """§7.8: the source has sent the message; elsewhere the replay enqueued it once more."""
    async with Runtime(f"sqlite:///{tmp_path}/source.db", skills=[tells]) as rt:
        run = await rt.approve((await rt.invoke(tells)).run_id, actor="ada")
        replay = await rt.replay(run.run_id, actor="ada")
        await rt.export(run.run_id, tmp_path / "first")
        await rt.export(replay.run_id, tmp_path / "second")
    async with Runtime(f"sqlite:///{tmp_path}/target.db", skills=[tells]) as rt:
        await rt.import_runs(tmp_path / "second")
        failed = await rt.approve(replay.run_id, actor="ada")
        assert (failed.status, failed.error and failed.error.code, await rt.intents(replay.run_id)) == ("failed", "source_missing", [])
        await rt.import_runs(tmp_path / "first")
        done = await rt.resume(replay.run_id, actor="ada", acknowledge=failed.stop_reason)
        assert (done.status, await rt.intents(replay.run_id)) == ("completed", [])


@flow("charges-first")
async def charges_first(ctx: Context) -> int:
    got = await ctx.effect(_charge, 5)
    ctx.send("mail", {"to": "ada"})
    await ctx.approve("go on?")
    return got


async def test_a_fork_without_its_source_does_nothing_again(tmp_path: Path) -> None:
    """§6.6, §7.7: a fork takes over what its source did at the same place with the same arguments; elsewhere it did it again. Who wants that says so."""
    paid.clear()
    async with Runtime(f"sqlite:///{tmp_path}/source.db", skills=[charges_first]) as rt:
        run = await rt.invoke(charges_first)
        here, there = [await rt.fork(run.run_id, actor="ada", drive=False) for _ in range(2)]
        assert (await rt.resume(here.run_id, actor="ada")).status == "waiting_for_human" and paid == [5], "where its source is, it goes on from that"
        await rt.export(run.run_id, tmp_path / "first")
        await rt.export(there.run_id, tmp_path / "second")
    async with Runtime(f"sqlite:///{tmp_path}/target.db", skills=[charges_first]) as rt:
        await rt.import_runs(tmp_path / "second")
        failed = await rt.resume(there.run_id, actor="ada")
        assert (failed.status, failed.error and failed.error.code, paid) == ("failed", "source_missing", [5])
        again = await rt.fork(there.run_id, actor="ada", effects="reexecute")
        assert (again.status, paid) == ("waiting_for_human", [5, 5])
        await rt.import_runs(tmp_path / "first")
        done = await rt.resume(there.run_id, actor="ada", acknowledge=failed.stop_reason)
        assert (done.status, paid) == ("waiting_for_human", [5, 5])


class Way(State):
    way: str = "begin"


def ways() -> Graph[Way]:
    made = Graph("ways", Way, version="1")

    @made.node(start=True)
    async def first(state: Way, ctx: Context) -> None:
        if state.way == "sleep":
            await ctx.sleep(60)
        if state.way == "ask":
            await ctx.approve("go on?")
        if state.way == "signal":
            await ctx.wait("go")

    @made.node(after="first")
    async def then(state: Way, ctx: Context) -> None:
        await ctx.approve("again?")

    return made


@pytest.mark.parametrize(
    ("way", "condition"), [("begin", "interrupted"), ("sleep", "awaiting_signal"), ("ask", "awaiting_gate_decision"), ("signal", "awaiting_signal"), ("answered", "interrupted")]
)
async def test_what_nobody_will_move_is_said_so(way: str, condition: str, tmp_path: Path) -> None:
    """§2.9: a run that is held is neither due nor asleep: each surface says that a person has to resume it, and how."""
    async with Runtime("memory:", skills=[ways()]) as rt:
        run = await (rt.submit if way == "begin" else partial(rt.invoke, detach=True))("ways", {"way": "ask" if way == "answered" else way})
        if way == "answered":
            await rt.decide(run.run_id, "approve", actor="ada")
        await rt.export(run.run_id, tmp_path / "out")
    async with Runtime("memory:", skills=[ways()]) as rt:
        await rt.import_runs(tmp_path / "out")
        await rt.worker(until_idle=True)
        seen, told = await rt.get(run.run_id), await rt.explain(run.run_id)
        assert seen.condition == condition
        assert [r.run_id for r in await rt.runs(condition=condition)] == [run.run_id] and await rt.runs(condition="queued") == []
        assert "No worker continues it until a person resumes it" in told["why"]
        assert any(a["command"].startswith(f"holdfast resume {run.run_id}") for a in told["next"])


async def test_a_run_that_a_person_has_begun_is_held_no_more(tmp_path: Path) -> None:
    async with Runtime("memory:", skills=[ways()]) as rt:
        run = await rt.submit("ways", {})
        await rt.export(run.run_id, tmp_path / "out")
    async with Runtime("memory:", skills=[ways()]) as rt:
        await rt.import_runs(tmp_path / "out")
        assert (await rt.resume(run.run_id, actor="ada")).status == "waiting_for_human"
        await rt.decide(run.run_id, "approve", actor="ada")
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).status == "completed" and await rt.check() == []
        assert "run.recovered" in [e["event_type"] for e in await rt.events(run.run_id)]


@pytest.fixture(params=["memory", "sqlite", "workspace", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind."""
    made = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/target.db", "workspace": f"workspace:{tmp_path}/target"}
    return made[request.param] if request.param in made else shared().fresh()


async def test_an_older_run_of_a_thread_does_not_come_after_the_newer_ones(target: str, tmp_path: Path) -> None:
    """§4.15: the thread carried on from the run that was imported last, and forgot what had been said since."""
    talk: Graph[Talk] = Graph("talk", Talk)

    @talk.node(start=True)
    def hear(state: Talk) -> dict[str, Any]:
        return {"heard": [state.say]}

    async with Runtime(f"sqlite:///{tmp_path}/source.db", skills=[talk]) as rt:
        for word in ("a", "b", "c"):
            run = await rt.invoke(talk, {"say": word}, thread_id="t")
            await rt.export(run.run_id, tmp_path / word)
    async with Runtime(target, skills=[talk]) as rt:
        await rt.import_runs(tmp_path / "c")
        await rt.import_runs(tmp_path / "b")
        run = await rt.invoke(talk, {"say": "d"}, thread_id="t")
        assert (await rt.state(run.run_id)).heard == ["a", "b", "c", "d"]  # type: ignore[attr-defined]
        await rt.import_runs(tmp_path / "a")
        run = await rt.invoke(talk, {"say": "e"}, thread_id="t")
        assert (await rt.state(run.run_id)).heard == ["a", "b", "c", "d", "e"]  # type: ignore[attr-defined]
        assert [p.code for p in await rt.check() if p.severity == "error"] == []


async def test_a_run_that_waits_holds_its_lane_where_it_is_taken_in(target: str, tmp_path: Path) -> None:
    """§10.8: whoever stood behind it stays behind it, and so does what is submitted there later."""
    async with Runtime("memory:", skills=[ways()]) as rt:
        first = await rt.invoke("ways", {"way": "ask"}, thread_id="t")
        second = await rt.submit("ways", {}, thread_id="t")
        for run in (first, second):
            await rt.export(run.run_id, tmp_path / "out")
    async with Runtime(target, skills=[ways()]) as rt:
        await rt.import_runs(tmp_path / "out")
        third = await rt.submit("ways", {}, thread_id="t")
        with pytest.raises(LaneBlocked):
            await rt.resume(second.run_id, actor="ada")
        await rt.worker(until_idle=True)
        assert [(await rt.get(r.run_id)).started_at for r in (second, third)] == [None, None]
        assert [(lane.holder, lane.queued) for lane in await rt.lanes()] == [(first.run_id, [second.run_id, third.run_id])]
        for _ in range(2):
            await rt.approve(first.run_id, actor="ada")
        assert (await rt.get(first.run_id)).status == "completed"
        assert (await rt.resume(second.run_id, actor="ada")).status == "waiting_for_human"
        assert await rt.check() == []


async def test_a_lane_that_is_held_keeps_its_holder_when_another_run_is_taken_in(target: str, tmp_path: Path) -> None:
    """§10.8: two runs have begun in one lane, each in its own store; here the one that was here first holds it until its end."""
    async with Runtime("memory:", skills=[ways()]) as rt:
        other = await rt.invoke("ways", {"way": "ask"}, thread_id="t")
        await rt.export(other.run_id, tmp_path / "out")
    async with Runtime(target, skills=[ways()]) as rt:
        here = await rt.invoke("ways", {"way": "ask"}, thread_id="t")
        await rt.import_runs(tmp_path / "out")
        await rt.decide(other.run_id, "approve", actor="ada")
        with pytest.raises(LaneBlocked):
            await rt.resume(other.run_id, actor="ada")
        await rt.cancel(here.run_id)
        assert (await rt.resume(other.run_id, actor="ada")).status == "waiting_for_human"
        assert await rt.check() == []
