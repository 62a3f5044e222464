"""X-22 to X-27 on every store they concern: what one of them does about damage, imports, poison, secrets and hostile texts, all of them do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import apsw
import click
import pytest
from click.testing import CliRunner
from tests.faults import zoo
from tests.faults.test_zoo import healthy
from tests.people import test_secrets_everywhere as secrets
from tests.postgres.server import shared
from tests.upkeep import test_import as imports

from holdfast import Context, Graph, Runtime, State, append
from holdfast.authoring import Skill
from holdfast.cli.main import cli
from holdfast.core.effects import Effect
from holdfast.core.errors import HoldfastError, InvalidInput, RecordDamaged, StoreError, StoreMoved, VersionConflict
from holdfast.engine.calls import functions
from holdfast.stores import MemoryStore

GARBAGE = b"\x93\xa5\xff\xfe\xfd\xfc\xfb\xc1"


class Place:
    """A store that outlives the runtimes that use it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, folder
        urls = {"memory": "memory:", "sqlite": f"sqlite:///{folder}/runs.db", "workspace": f"workspace:{folder}/runs"}
        self.url = urls.get(kind) or shared().fresh("cases")
        self._kept = MemoryStore() if kind == "memory" else None

    def runtime(self, *skills: Skill, **options: Any) -> Runtime:
        return Runtime(self._kept or self.url, skills=skills, **options)

    def hand(self, statement: str) -> None:
        """Alters a database by hand."""
        if self.kind == "sqlite":
            with contextlib.closing(apsw.Connection(str(self.folder / "runs.db"))) as db:
                db.execute(statement.format(p="", cold="run SET doc", its_id="id", blob=f"CAST(x'{GARBAGE.hex()}' AS BLOB)"))
                assert db.total_changes(), statement
        else:
            with shared().admin("cases") as db:
                assert db.execute(statement.format(p="holdfast.", cold="holdfast.doc SET data", its_id="run", blob=f"'\\x{GARBAGE.hex()}'::bytea").encode()).rowcount, statement

    async def typed(self, *words: str) -> str:
        """What a command prints; it fails with a typed error, if it fails."""
        done = await asyncio.to_thread(CliRunner().invoke, cli, [*words, "--store", self.url], prog_name="holdfast")
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
        said = done.stdout + done.stderr
        assert "Traceback" not in said and "internal" not in said, (words, said)
        return said


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, tmp_path)


def stores(*kinds: str) -> Any:
    return pytest.mark.parametrize("place", kinds, indirect=True)


class Note(State):
    text: str = ""


def asking() -> Graph[Note]:
    made = Graph("asking", Note, version="1")

    @made.node(start=True)
    async def act(state: Note, ctx: Context) -> dict[str, Any]:
        await ctx.effect(_pay, state.text)
        ctx.record("notes", state.text, {"n": 1})
        return {"text": state.text + "!"}

    @made.node(after="act")
    async def ask(state: Note, ctx: Context) -> None:
        await ctx.approve("go on?")

    return made


async def _pay(text: str) -> str:
    return f"paid {text}"


# -- X-22 --------------------------------------------------------------------------------------------------

SPOILT = {
    "record": "UPDATE {cold} = {blob} WHERE {its_id} = (SELECT id FROM {p}run WHERE run_id = '%s')",
    "log": "UPDATE {p}log SET data = {blob} WHERE run = (SELECT id FROM {p}run WHERE run_id = '%s')",
    "effect": "UPDATE {p}effect SET data = {blob} WHERE run_id = '%s'",
    "ledger": "UPDATE {p}ledger SET data = {blob} WHERE run_id = '%s'",
    "inbox": "UPDATE {p}inbox SET command = {blob} WHERE run = (SELECT id FROM {p}run WHERE run_id = '%s')",
}
FILES = {"record": "meta.json", "log": "events.jsonl", "effect": "effects.jsonl", "ledger": "ledger.jsonl", "inbox": "inbox.jsonl"}


def spoil(place: Place, run_id: str, what: str) -> None:
    if place.kind == "workspace":
        path = place.folder / "runs" / run_id / FILES[what]
        data = bytearray(path.read_bytes())
        at = len(data) // 3
        data[at : at + len(GARBAGE)] = GARBAGE
        path.write_bytes(data)
    else:
        place.hand(SPOILT[what] % run_id)


@pytest.mark.parametrize("what", SPOILT)
@stores("sqlite", "workspace", "postgres")
async def test_one_record_that_is_no_text_harms_one_run(place: Place, what: str) -> None:
    """X-22: lists, the checker, the doctor and workers go on with the rest; the checker names it."""
    async with place.runtime(asking()) as rt:
        ids = [(await rt.invoke("asking", {"text": name})).run_id for name in ("one", "two", "three")]
        await rt.signal(ids[1], "early", 1)
    first, bad, third = ids
    spoil(place, bad, what)
    async with place.runtime(asking()) as rt:
        assert {first, third} <= {r.run_id for r in await rt.runs()}
        problems = await rt.check()
        assert {p.run_id for p in problems if p.severity == "error"} - {None} == {bad}
    for words in (("runs",), ("check",), ("doctor",), ("waits",), ("show", first)):
        await place.typed(*words)
    async with place.runtime(asking()) as rt:
        for run_id in (first, third):
            assert (await rt.approve(run_id, actor="ada")).status == "completed"
        await rt.submit("asking", {"text": "four"})
        await rt.worker(until_idle=True)
        assert len([w for w in await rt.waits() if w.run_id not in ids]) == 1


@stores("sqlite", "workspace", "postgres")
async def test_a_store_that_does_not_know_itself_can_be_read_and_set_right(place: Place) -> None:
    """X-22: the row, or the file, that says which store it is is gone."""
    async with place.runtime(asking()) as rt:
        run_id = (await rt.invoke("asking", {"text": "one"})).run_id
    if place.kind == "workspace":
        (place.folder / "runs" / "workspace.json").unlink()
    else:
        place.hand("DELETE FROM {p}meta")
    for words in (("runs",), ("check",), ("doctor",)):
        await place.typed(*words)
    await place.typed("doctor", "--rebuild", "--acknowledge")
    async with place.runtime(asking()) as rt:
        assert [r.run_id for r in await rt.runs()] == [run_id]
        assert (await rt.approve(run_id, actor="ada")).status == "completed"
        assert [p for p in await rt.check() if p.severity == "error"] == []


# -- X-23 --------------------------------------------------------------------------------------------------


async def told(rt: Runtime) -> dict[str, Any]:
    """All that a store says of its runs."""
    out: dict[str, Any] = {}
    for run in await rt.runs():
        i = run.run_id
        events, effects = [(e.seq, e.type) for e in await rt.events(i)], [repr(e) for e in await rt.effects(i)]
        rest = [repr(e) for e in [*await rt.ledger(i), *await rt.intents(i)]]
        out[i] = (str(run.status), run.version, dict(run.values), events, effects, rest)
    return out


@stores("memory", "sqlite", "workspace", "postgres")
async def test_an_import_changes_nothing_of_others(place: Place, tmp_path: Path) -> None:
    """X-23: another run's effect id, an id with a path in it, an unfinished run that also lives here: refused, or held."""
    victim, _ = await imports.exported(tmp_path, "victim")
    run_id, out = await imports.exported(tmp_path, "guest")
    waiting, waits = await imports.exported(tmp_path, "waits")
    async with place.runtime(imports.graph()) as rt:
        await rt.import_runs(tmp_path / "out-victim")
        here, before = (await rt.effects(victim))[0], await told(rt)
        forged = tmp_path / "forged"
        for fields in ({"effect_id": here.effect_id}, {"run_id": victim}, {"effect_id": here.effect_id, "run_id": victim, "lineage_root": victim}):
            shutil.rmtree(forged, ignore_errors=True)
            shutil.copytree(out, forged)
            imports.resigned(forged / run_id, "effects", imports.recoded(Effect, **fields))
            with pytest.raises((InvalidInput, VersionConflict, RecordDamaged)):
                await rt.import_runs(forged)
            assert await told(rt) == before
        for name in ("%2Fabs%2Fevil", "%2E%2E%2Fevil", "evil%00"):
            shutil.rmtree(forged, ignore_errors=True)
            shutil.copytree(out / run_id, forged / name)
            with pytest.raises(HoldfastError):
                await rt.import_runs(forged)
            assert await told(rt) == before
        assert await rt.import_runs(waits) == ([waiting], [])
        await rt.worker(until_idle=True)
        held = await told(rt)
        assert held[waiting][0] == "waiting_for_human" and await rt.import_runs(waits) == ([], [waiting]) and await told(rt) == held
        assert (await rt.approve(waiting, actor="ada")).status == "completed"
        gone_on = await told(rt)
        assert await rt.import_runs(waits) == ([], [waiting]) and await told(rt) == gone_on
        assert {k: v for k, v in gone_on.items() if k != waiting} == before
        assert [p for p in await rt.check() if p.severity == "error"] == []
    assert not (tmp_path / "evil").exists() and not os.path.exists("/abs/evil")


# -- X-24 --------------------------------------------------------------------------------------------------

ODD = (
    "base_exception_at_once", "system_exit_later", "cancelled_error_at_once", "stop_iteration_in_a_thread", "mute_at_once", "shouting_at_once", "group_at_once",
    "base_group_later", "recursion", "generator", "asynchronous_generator", "cancels_itself", "swallows_its_cancel", "hangs_in_a_thread", "hostile_text_at_once",
    "huge_text_at_once", "a_reducer_that_raises", "an_effect_that_exits", "forks_and_the_child_goes_on", "returns_a_lock",
)


@stores("memory", "sqlite", "workspace", "postgres")
async def test_poison_ends_and_its_neighbours_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-24: twenty kinds at once beside ten healthy runs, and the worker lives; what they leave is sound."""
    monkeypatch.setattr(functions, "CLEANUP_SECONDS", 0.05)
    zoo.RELEASE.clear()
    kinds, good = [zoo.KINDS[name] for name in ODD], healthy()
    graphs = [kind.make() for kind in kinds]
    async with asyncio.timeout(60), place.runtime(good, *graphs) as rt:
        odd = [await rt.submit(graph, {}) for graph in graphs]
        well = [await rt.submit(good, {}) for _ in range(10)]
        await rt.worker(until_idle=True)
        assert [(await rt.get(r.run_id)).values["n"] for r in well] == [2] * 10
        for kind, run in zip(kinds, odd, strict=True):
            end = await rt.get(run.run_id)
            assert end.status == kind.ends and end.stop_reason != "takeover_limit", (kind.name, end.status, end.error)
        assert [p for p in await rt.check() if p.severity == "error"] == []
        zoo.RELEASE.set()


# -- X-25 --------------------------------------------------------------------------------------------------


@stores("sqlite", "workspace", "postgres")
async def test_no_command_shows_a_secret(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-25: what is shown of a run that failed with its secrets in its error, from every store."""
    monkeypatch.chdir(place.folder)
    made = secrets.Secrets(7)
    failed, asks, _ = await secrets.lived(place.url, made)
    shown = {}
    for run_id in (failed, asks):
        for name in ("show", "events", "effects", "explain", "steps", "attempts", "checkpoints", "ledger", "intents", "state"):
            if name in cli.commands:
                for more in ((), ("--json",)):
                    shown[" ".join((name, run_id, *more))] = await place.typed(name, run_id, *more)
    for name in ("runs", "waits", "check", "doctor"):
        shown[name] = await place.typed(name)
    assert len(shown) > 20
    assert not {where: found for where, text in shown.items() if (found := made.found_in(text))}


# -- X-26 --------------------------------------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202egnp.exe\u2066\u2069\x7f\u2028\x08\x1b]8;;http://x\x1b\\\n--forged line--"


class Hostile(State):
    text: str = ""
    found: Annotated[list[str], append]


def hostile() -> Graph[Hostile]:
    made = Graph("hostile", Hostile, version="1")

    @made.node(start=True)
    async def act(state: Hostile, ctx: Context) -> dict[str, Any]:
        await ctx.step(_same, EVIL, name="say")
        await ctx.effect(_same, EVIL, key="k", show={EVIL: EVIL})
        ctx.record("notes", "row", {EVIL: EVIL})
        ctx.send("mail", {"to": EVIL})
        await ctx.approve(EVIL, show={EVIL: [EVIL]})
        return {"found": [EVIL]}

    @made.node(after="act")
    async def fail(state: Hostile) -> None:
        raise ValueError(EVIL)

    return made


async def _same(text: str) -> str:
    return text


def obeyed(said: str) -> set[str]:
    return {c for c in said if c not in "\n\t" and (unicodedata.category(c)[0] == "C" or c in "\u2028\u2029")}


def looking() -> Iterator[tuple[str, bool]]:
    """Every command that looks, and whether it takes a run."""
    for name, command in sorted(cli.commands.items()):
        if name in secrets.APART or secrets.MORE.get(name, []) is None or isinstance(command, click.Group) or name in ("diff", "completion"):
            continue
        runs = [p for p in command.params if isinstance(p, click.Argument) and p.name in ("run_id", "run", "target")]
        if runs:
            yield name, True
        if not any(p.required for p in runs):
            yield name, False


@stores("sqlite", "workspace", "postgres")
async def test_a_terminal_obeys_nothing_of_a_run(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """X-26: tables, blocks, JSON, errors, hints and what a decision answers; a line feed makes no line of its own in a table."""
    monkeypatch.chdir(place.folder)
    async with place.runtime(hostile()) as rt:
        failed = await rt.invoke("hostile", {"text": EVIL}, tags=(EVIL,))
        await rt.approve(failed.run_id, actor="ada", note=EVIL)
        asks = await rt.invoke("hostile", {"text": EVIL})
        ended = await rt.invoke("hostile", {"text": EVIL})
        await rt.cancel(ended.run_id, reason=EVIL, actor="ada")
    shown = {}
    for name, takes_run in looking():
        for run_id in (failed.run_id, asks.run_id) if takes_run else ("",):
            for more in ((), ("--json",)):
                words = (name, *((run_id,) if run_id else ()), *more)
                shown[" ".join(words)] = await place.typed(*words)
    acts = (("approve", asks.run_id, "--wait", EVIL), ("decide", asks.run_id, "--action", EVIL), ("signal", failed.run_id, EVIL), ("resume", failed.run_id), ("show", EVIL))
    for act in acts:
        shown[" ".join(act[:2])] = await place.typed(*act)
    assert len(shown) > 30
    assert not {where: obeyed(said) for where, said in shown.items() if obeyed(said)}
    for where in ("runs", "waits"):
        assert where in shown, sorted(shown)
        assert not [line for line in shown[where].splitlines() if line.startswith("--forged")], shown[where]


# -- X-27 --------------------------------------------------------------------------------------------------


def _remove(folder: Path) -> None:
    shutil.rmtree(folder)


def _move(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def _replace(folder: Path) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    _move(folder)
    folder.with_name("copy").rename(folder)


@pytest.mark.parametrize("how", [_remove, _move, _replace], ids=["removed", "moved", "replaced"])
@stores("workspace")
async def test_a_folder_that_goes_is_noticed(place: Place, how: Callable[[Path], None]) -> None:
    """X-27: nothing is acknowledged into a folder that nobody will find again."""
    async with place.runtime(asking()) as rt:
        run_id = (await rt.invoke("asking", {"text": "one"})).run_id
        how(place.folder / "runs")
        with pytest.raises(StoreMoved):
            await rt.invoke("asking", {"text": "two"})
        with pytest.raises(StoreError):
            await rt.approve(run_id, actor="ada")


@stores("postgres")
async def test_another_database_in_the_place_of_a_store_is_noticed(place: Place) -> None:
    """X-27: a process that goes on after its store was made anew acknowledges nothing into the other one."""
    async with place.runtime(asking()) as rt:
        run_id = (await rt.invoke("asking", {"text": "one"})).run_id
        with shared().admin("cases") as db:
            db.execute("DROP SCHEMA holdfast CASCADE")
        async with place.runtime(asking()) as other:
            there = (await other.invoke("asking", {"text": "other"})).run_id
            for act in (lambda: rt.invoke("asking", {"text": "two"}), lambda: rt.submit("asking", {"text": "three"}), lambda: rt.approve(run_id, actor="ada")):
                with pytest.raises(HoldfastError) as caught:
                    await act()
                assert caught.value.code != "internal"
            assert [r.run_id for r in await other.runs()] == [there]
            assert [p for p in await other.check() if p.severity == "error"] == []

