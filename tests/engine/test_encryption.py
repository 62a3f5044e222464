"""§14.5: payloads are encrypted at rest, on every store, in every place; keys are changed, lost and given wrong; what is plain is told."""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Protocol, get_args

import psycopg
import pytest
from click.testing import CliRunner

from holdfast import Context, Graph, Runtime, Send, State, append, flow, ports
from holdfast.cli.main import cli
from holdfast.core import canon, commands, payloads
from holdfast.core import events as ev
from holdfast.core.envelopes import Envelope, Header, as_text, is_sealed, wrap
from holdfast.core.errors import HoldfastError, KeyUnavailable, PayloadAltered, PlaintextRefused, UsageError
from holdfast.encryption import Encryption, KeyFile, Keys, as_line, coerce, new_key
from holdfast.ports import offers_shelves
from holdfast.shelf import Shelf
from holdfast.stores import MemoryStore, PostgresStore, SealedStore, SqliteStore, WorkspaceStore, open_url
from holdfast.stores.sealing import VERBS
from holdfast.stores.vault import Vault
from tests.postgres.instead import OtherStore
from tests.postgres.server import shared

K1, K2, K3 = b"1" * 32, b"2" * 32, b"3" * 32
FIRST, BOTH = Keys({"k1": K1}), Keys({"k1": K1, "k2": K2})
WORD = "quokkaquokka"  # what must be nowhere in the store's files


def forms() -> list[bytes]:
    """The word as text, hex digits, and base64 wherever it begins."""
    raw = WORD.encode()
    shifted = [base64.b64encode(b"\0" * n + raw)[4 if n else 0 : -4] for n in range(3)]
    return [raw, raw.hex().encode(), *shifted]


class Notes(State):
    text: str = ""
    told: Annotated[list[str], append] = []  # noqa: RUF012
    size: int = 0


def skill() -> Graph[Notes]:
    made = Graph("notes", Notes, version="1")

    @made.node(start=True)
    async def act(state: Notes, ctx: Context) -> dict[str, Any]:
        await ctx.effect(mail, f"{WORD} argument", key=f"mail-{state.size}")
        await ctx.step(write, f"{WORD} call")
        await ctx.step(long)
        ctx.send("mail", {"text": f"{WORD} intent"})
        ctx.record("notes", "row", {"n": f"{WORD} ledger"})
        return {"text": f"{state.text} {WORD} written", "told": [f"{WORD} told"]}

    @made.node(after="act")
    async def ask(state: Notes, ctx: Context) -> dict[str, Any]:
        ctx.emit(f"{WORD} chunk")  # nothing durable replaces it while the question is open: it rides with the commit that asks
        given = await ctx.ask(f"{WORD} prompt?", show={"what": f"{WORD} shown"})
        return {"told": [str(given)]}

    @made.node(after="ask")
    async def spread(state: Notes) -> list[Send]:
        return [Send("one", {"text": f"{WORD} sent {n}"}) for n in range(2)]

    @made.node
    async def one(given: dict[str, Any], ctx: Context) -> dict[str, Any]:
        return {"told": [f"{given['text']}: {await ctx.wait('news')}"]}

    return made


def failing() -> Graph[Notes]:
    made = Graph("failing", Notes, version="1")

    @made.node(start=True)
    async def fail(state: Notes, ctx: Context) -> dict[str, Any]:
        await ctx.step(write, "x")
        ctx.emit(f"{WORD} chunk of an attempt that failed")
        raise ValueError("quokkaquokka message")  # quokkaquokka in the source

    return made


async def mail(text: str) -> str:
    return f"{WORD} receipt"


async def write(text: str) -> str:
    return f"{WORD} result"


async def long() -> str:
    return f"{WORD} " * 10_000


class Gone:
    dedupes = False

    async def send(self, payload: Any, key: str) -> Any:
        assert payload == {"text": f"{WORD} intent"}
        raise RuntimeError(f"{WORD} refused")


async def lived(store: Any, keys: Any, *, strict: bool = True) -> dict[str, str]:
    """A store with something in every place, and the ids of its runs."""
    async with Runtime(store, skills=[skill(), failing()], encryption=Encryption(keys, strict=strict), transports={"mail": Gone()}) as rt:
        run = await rt.invoke("notes", {"text": f"{WORD} input"}, thread_id="t1")
        assert run.status == "waiting_for_human"
        assert run.waits[0].show == {"what": f"{WORD} shown"}
        await rt.decide(run.run_id, "answer", payload=f"{WORD} answer", note=f"{WORD} note", actor="ada")
        for key in ("s1", "s2"):  # each answers one of the two that wait
            await rt.signal(run.run_id, "news", {"x": f"{WORD} signal"}, key=key, actor="ada")
        run = await rt.resume(run.run_id)
        waiting = await rt.invoke("notes", {"text": f"{WORD} waits", "size": 1}, thread_id="t2")
        await rt.deny(waiting.run_id, reason=f"{WORD} reason", actor="ada")
        open_ = await rt.invoke("notes", {"text": f"{WORD} open", "size": 2}, thread_id="t3")
        kept = [canon.decode(c) for stored in await rt.store.chunks(open_.run_id) for c in stored.batch.chunks]
        assert f"{WORD} chunk" in kept, "chunks are among what is kept"
        failed = await rt.invoke("failing", {"text": f"{WORD} input"})
        assert failed.status == "failed" and f"{WORD} message" in failed.error.message
        pending = await rt.submit("notes", {"text": f"{WORD} later"}, delay=dt.timedelta(days=1), key="k")
        await rt.cancel(pending.run_id, actor="ada", reason=f"{WORD} cancel")
        await rt.schedule("notes", {"text": f"{WORD} schedule"}, id="s1", every=dt.timedelta(days=1))
        await rt.dispatch(until_idle=True)
        forked = await rt.fork(run.run_id, from_step="act", set={"text": f"{WORD} edit"}, reason=f"{WORD} because")
        if offers_shelves(rt.store):
            await rt.shelf("mine").put("a", f"{WORD} shelf".encode())
        return {"run": run.run_id, "denied": waiting.run_id, "open": open_.run_id, "failed": failed.run_id, "forked": forked.run_id}


def sqlite(folder: Path) -> str:
    return f"sqlite:///{folder}/runs.db"


def workspace(folder: Path) -> str:
    return f"workspace:{folder}/runs"


def postgres(folder: Path) -> str:
    return str(shared().fresh())


STORES = [sqlite, workspace, postgres]


def contents(url: str, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Everything that is kept: each file, or each row of each table."""
    for place, _, names in os.walk(folder):
        for name in names:
            yield name, Path(place, name).read_bytes()
    if url.startswith("postgres"):
        plain = url.split("&partitions")[0]
        with psycopg.connect(plain.partition("?")[0] if "schema=" in plain else plain) as db:
            tables = db.execute("SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')").fetchall()
            assert tables
            for schema, table in tables:
                for (text,) in db.execute(f'SELECT t::text FROM "{schema}"."{table}" t').fetchall():
                    yield table, text.encode()


def waiting() -> Any:
    @flow("waiting")
    async def made(ctx: Context) -> Any:
        return await ctx.wait("go")

    return made


@pytest.mark.parametrize("at", STORES, ids=lambda s: s.__name__)
async def test_no_payload_is_kept_in_clear(at: Callable[[Path], str], tmp_path: Path, other_store: OtherStore) -> None:
    """Something is written into every place there is; none of it is in any file, or any row."""
    url = other_store(at(tmp_path))
    ids = await lived(url, FIRST)
    async with Runtime(url, skills=[skill(), failing()], encryption=Encryption(FIRST, strict=True)) as rt:
        assert (await rt.get(ids["run"])).values["text"].startswith(f"{WORD} input")
        assert [p.code for p in await rt.check() if p.severity == "error"] == []
        await rt.export(ids["run"], tmp_path / "exported")
        if url.startswith("sqlite"):
            await rt.backup(tmp_path / "copy.db")
    seen = list(contents(url, tmp_path))
    assert len(seen) > 3
    found = {(name, form) for name, data in seen for form in forms() if form in data}
    assert found == set()
    assert any(b"HFsealed" in data or b"HFsealed".hex().encode() in data or base64.b64encode(b"HFsealed")[:8] in data for _, data in seen), "it was looked for where it would be"


@pytest.mark.parametrize("at", STORES, ids=lambda s: s.__name__)
async def test_the_same_runs_without_encryption_show_the_word(at: Callable[[Path], str], tmp_path: Path, other_store: OtherStore) -> None:
    """The test above can fail."""
    url = other_store(at(tmp_path))
    async with Runtime(url, skills=[skill()]) as rt:
        await rt.invoke("notes", {"text": f"{WORD} input"})
    assert any(form in data for _, data in contents(url, tmp_path) for form in forms())


@pytest.mark.parametrize("at", STORES, ids=lambda s: s.__name__)
async def test_a_new_key_writes_and_the_old_one_reads(at: Callable[[Path], str], tmp_path: Path) -> None:
    """Rotation: a run that began under one key goes on under the next; without the first it cannot be read, and the error says which."""
    url = at(tmp_path)
    ids = await lived(url, FIRST)
    async with Runtime(url, skills=[skill(), failing()], encryption=Encryption(BOTH, strict=True)) as rt:
        run = await rt.decide(ids["open"], "answer", payload="fine", actor="bob")
        await rt.signal(ids["open"], "news", 1)
        await rt.signal(ids["open"], "news", 2)
        run = await rt.resume(ids["open"])
        assert run.status == "completed"
        again = await rt.replay(ids["run"])
        assert again.values["text"] == (await rt.get(ids["run"])).values["text"]
        fresh = await rt.invoke("notes", {"text": "new", "size": 9}, thread_id="t9")
        assert [p.code for p in await rt.check() if p.severity == "error"] == []
    async with Runtime(url, skills=[skill()], encryption=Keys({"k2": K2})) as rt:
        assert (await rt.get(fresh.run_id)).values["text"].startswith("new")
        with pytest.raises(KeyUnavailable) as caught:
            await rt.state(ids["run"])
        assert (caught.value.key_id, caught.value.run_id, caught.value.code) == ("k1", ids["run"], "key_unavailable")
        assert "HOLDFAST_KEYS" in caught.value.hint
        assert {r.run_id for r in await rt.runs()} >= {*ids.values(), fresh.run_id}, "a list goes on with the rest"


@pytest.mark.parametrize("what", ["effect", "caught", "child"])
@pytest.mark.parametrize("at", STORES, ids=lambda s: s.__name__)
async def test_a_step_that_needs_what_another_run_has_encrypted_is_no_failure(at: Callable[[Path], str], what: str, tmp_path: Path) -> None:
    """§14.5, §1.12: a process that lacks a key refuses the run, which goes on once somebody who has the key resumes it. Its step has not failed,
    nothing is undone, and nothing is recorded that could not be read later."""
    done: list[str] = []

    def act(word: str) -> str:
        done.append(word)
        return word

    @flow("gives")
    async def gives(ctx: Context) -> str:
        return await ctx.effect(act, WORD, key="shared", side_effects="external_action")

    @flow("takes")
    async def takes(ctx: Context, what: str) -> str:
        await ctx.effect(act, "before", side_effects="external_action", undo=act)
        if what == "child":
            return await ctx.child(gives, {}, key="kept")
        try:
            return await ctx.effect(act, WORD, key="shared", side_effects="external_action")
        except Exception:
            if what == "caught":
                return "something else"
            raise

    url, skills = at(tmp_path), [gives, takes]
    async with Runtime(url, skills=skills, encryption=FIRST) as rt:
        await rt.submit(gives, {}, key="kept")
        await rt.worker(until_idle=True)
    async with Runtime(url, skills=skills, encryption=Keys({"k2": K2})) as rt:
        run = await rt.submit(takes, {"what": what})
        await rt.worker(until_idle=True)
        assert (await rt.get(run.run_id)).condition == "interrupted"
    async with Runtime(url, skills=skills, encryption=BOTH) as rt:
        run = await rt.resume(run.run_id, actor="ada")
        assert (run.status, run.result) == ("completed", WORD)
        assert done == [WORD, "before"]
        assert [p.code for p in await rt.check()] == []


@pytest.mark.parametrize("keys", [Keys({"k1": K3}), Keys({"k3": K3}), None], ids=["wrong", "lost", "none"])
@pytest.mark.parametrize("at", [sqlite, workspace], ids=lambda s: s.__name__)
async def test_a_wrong_or_lost_key_is_one_error_and_the_chain_is_checked_without_it(at: Callable[[Path], str], keys: Any, tmp_path: Path) -> None:
    url = at(tmp_path)
    ids = await lived(url, FIRST)
    async with Runtime(url, skills=[skill(), failing()], encryption=keys) as rt:
        doings: list[Callable[[], Awaitable[Any]]] = [
            lambda: rt.state(ids["run"]), lambda: rt.resume(ids["open"]), lambda: rt.replay(ids["run"]), lambda: rt.fork(ids["run"]),
            lambda: rt.decide(ids["open"], "answer", payload=1, actor="ada"), lambda: rt.resume(ids["failed"], acknowledge="step_failed"),
        ]
        told = []
        for doing in doings:
            with pytest.raises(HoldfastError) as caught:
                await doing()
            told.append(caught.value.code)
        assert set(told) <= {"key_unavailable", "undecided_wait"} and told.count("key_unavailable") >= 4, "some are refused for what they are"
        problems = await rt.check()
        assert [p for p in problems if p.severity == "error"] == []
        sealed = [p for p in problems if p.code == "payload_sealed"]
        assert {p.run_id for p in sealed} >= set(ids.values()) and all("k1" in p.message for p in sealed)
    async with Runtime(url, skills=[skill(), failing()], encryption=FIRST) as rt:
        assert (await rt.get(ids["open"])).status == "waiting_for_human", "nothing was lost by trying"
        assert await rt.check() == [p for p in await rt.check() if p.severity != "error"]


@pytest.mark.parametrize("at", STORES, ids=lambda s: s.__name__)
async def test_a_store_that_was_plain_goes_on_encrypted(at: Callable[[Path], str], tmp_path: Path) -> None:
    """What was written before is read as it is; what is new is encrypted; strict encryption refuses the old."""
    url = at(tmp_path)
    async with Runtime(url, skills=[skill()]) as rt:
        old = await rt.invoke("notes", {"text": "old"}, thread_id="t1")
    async with Runtime(url, skills=[skill()], encryption=FIRST) as rt:
        await rt.decide(old.run_id, "answer", payload=f"{WORD} answer", actor="ada")
        await rt.signal(old.run_id, "news", f"{WORD} signal")
        await rt.signal(old.run_id, "news", f"{WORD} signal")
        assert (await rt.resume(old.run_id)).status == "completed"
        fresh = await rt.invoke("notes", {"text": "new", "size": 1}, thread_id="t2")
        assert [p.code for p in await rt.check() if p.severity == "error"] == []
    async with Runtime(url, skills=[skill()], encryption=Encryption(FIRST, strict=True)) as rt:
        with pytest.raises(PlaintextRefused) as caught:
            await rt.state(old.run_id)
        assert old.run_id in str(caught.value)
        assert (await rt.get(fresh.run_id)).values["text"].startswith("new")


@pytest.mark.parametrize("at", [sqlite, workspace], ids=lambda s: s.__name__)
async def test_what_is_carried_away_stays_encrypted(at: Callable[[Path], str], tmp_path: Path) -> None:
    """An export holds ciphertext under the same keys, and comes in elsewhere; strict encryption takes nothing in that is plain."""
    url = at(tmp_path)
    ids = await lived(url, FIRST)
    away, other = tmp_path / "away", f"sqlite:///{tmp_path}/other.db"
    async with Runtime(url, encryption=Encryption(FIRST, strict=True)) as rt:
        for run_id in ids.values():
            await rt.export(run_id, away)
        said = await rt.state(ids["run"])
        events = [dict(e.payload) for e in await rt.events(ids["run"])]
    assert not any(form in path.read_bytes() for path in away.rglob("*") if path.is_file() for form in forms())
    for run_id in ids.values():
        assert json.loads((away / run_id / "encrypted.json").read_text())["keys"] == ["k1"], "an export says what it holds"
    async with Runtime(other, skills=[skill(), failing()], encryption=Encryption(FIRST, strict=True)) as rt:
        taken, _ = await rt.import_runs(away)
        assert set(taken) == set(ids.values())
        assert await rt.state(ids["run"]) == said
        assert [dict(e.payload) for e in await rt.events(ids["run"])] == events
        assert (await rt.import_runs(away))[0] == [], "again, it is there already"
        assert [p.code for p in await rt.check() if p.severity == "error"] == []
        await rt.decide(ids["open"], "answer", payload="fine", actor="bob")
        await rt.signal(ids["open"], "news", 1)
        await rt.signal(ids["open"], "news", 2)
        assert (await rt.resume(ids["open"])).status == "completed"
    async with Runtime("memory:", skills=[skill()]) as rt:
        plain = await rt.invoke("notes", {"text": "plain"})
        await rt.export(plain.run_id, tmp_path / "plain")
        assert not list((tmp_path / "plain").rglob("encrypted.json"))
    async with Runtime(other, encryption=Encryption(FIRST, strict=True)) as rt:
        with pytest.raises(PlaintextRefused):
            await rt.import_runs(tmp_path / "plain")


@pytest.mark.one_store("a backup is a copy of a SQLite file")
async def test_a_backup_is_restored_encrypted(tmp_path: Path) -> None:
    url = sqlite(tmp_path)
    ids = await lived(url, FIRST)
    async with Runtime(url, encryption=FIRST) as rt:
        await rt.backup(tmp_path / "copy.db")
        said = await rt.state(ids["run"])
        await rt.restore(tmp_path / "copy.db")
        assert await rt.state(ids["run"]) == said
        assert [p.code for p in await rt.check() if p.severity == "error"] == []


async def test_nothing_is_opened_in_another_place(tmp_path: Path) -> None:
    """The cipher's tag covers tenant, run, place, key and version: an envelope that was moved, or changed, is named."""
    vault = Vault(FIRST)
    made = vault.seal(b"said", "default", "r1", "end.result")
    assert vault.open(made, "default", "r1", "end.result") == b"said"
    for tenant, run, place in (("other", "r1", "end.result"), ("default", "r2", "end.result"), ("default", "r1", "event:1.input")):
        with pytest.raises(PayloadAltered):
            vault.open(made, tenant, run, place)
    for at in range(len(made)):
        damaged = bytes([*made[:at], made[at] ^ 1, *made[at + 1 :]])
        with pytest.raises(HoldfastError):
            vault.open(damaged, "default", "r1", "end.result")
    forged = made.replace(b"r1", b"r2")
    with pytest.raises(PayloadAltered):
        vault.open(forged, "default", "r2", "end.result")


async def test_words_that_look_encrypted_are_only_words(tmp_path: Path) -> None:
    url = sqlite(tmp_path)
    for keys in (None, FIRST):
        async with Runtime(url, skills=[skill()], encryption=keys) as rt:
            run = await rt.invoke("notes", {"text": "HFsealed:x"}, thread_id=f"t{keys}")
            await rt.decide(run.run_id, "answer", payload="HFsealed:AAAA", note="HFsealed:AAAA", actor="ada")
            assert (await rt.get(run.run_id)).values["text"].startswith("HFsealed:x")
    async with Runtime(url, skills=[skill()], encryption=FIRST) as rt:
        assert [p.code for p in await rt.check() if p.severity == "error"] == []
        for run in await rt.runs():
            assert (await rt.resume(run.run_id)).status == "waiting_for_signal"


@pytest.mark.parametrize("strict", [False, True])
async def test_words_that_are_an_envelope_of_their_own_place_are_only_words(strict: bool, tmp_path: Path) -> None:
    """Whoever may answer knows the run and the question. With a note in the form of what is stored there, under a key that nobody has, the run could
    not be loaded any more."""
    async with Runtime(sqlite(tmp_path), skills=[skill()], encryption=Encryption(FIRST, strict=strict)) as rt:
        run = await rt.invoke("notes", {"text": "x"})
        (wait,) = run.waits
        header = Header(1, "no-such-key", b"1234", "default", run.run_id, f"decision:{wait.wait_id}.note")
        note = as_text(wrap(Envelope(header, bytes(12), bytes(32))))
        await rt.decide(run.run_id, "answer", payload="yes", note=note, actor="mallory")
        assert (await rt.resume(run.run_id)).status == "waiting_for_signal"
        decided = [e for e in await rt.events(run.run_id) if e.event_type == "wait.decided"]
        assert len(decided) == 1 and "error" not in {p.severity for p in await rt.check()}


def test_every_field_of_every_record_is_payload_or_is_said_to_be_clear() -> None:
    """A field that is new is put into one of the two (docs/encryption.md)."""
    kinds = {*payloads.PAYLOAD, *ev.KINDS.values(), *get_args(commands.AnyCommand)}
    for kind, fields in payloads.PAYLOAD.items():
        assert set(fields) <= set(kind.__struct_fields__), kind
    named = {(kind, name) for kind in kinds for name in kind.__struct_fields__}
    assert {f"{k.__name__}.{n}" for k, n in named if n not in CLEAR and n not in payloads.PAYLOAD.get(k, ())} == set()
    # A field of bytes is payload, or a digest.
    kept = {f"{k.__name__}.{n}" for k, n in named if "bytes" in str(k.__annotations__.get(n, "")) and n not in payloads.PAYLOAD.get(k, ())}
    assert {name.partition(".")[2] for name in kept} <= {"hash"}


CLEAR = frozenset(
    """
    absent acknowledge acknowledged action active_handoff active_since active_us actor after amounts answer approvals at at_rest attempt
    attempt_id attempted_at attempts authoritative available_actions base began began_at binding bindings blob blocked_by budget budgets by call
    came cut later begun cancel_requested_at capabilities capability carries cascade catch_up cause changes channels checkpoint_head checkpoint_id child_run_id
    chosen closed code covers created_at cron current_step_id deadline decided_at decision decisions digest done due effect_class effect_id
    effects ended_at environment error every_us evidence extensions fence file fingerprint finished_at fired force forced frames function
    goto grace_us hash holds idempotent index inherits intent_id intent_type intents interrupted_at job_id key kind kinds lane last_run
    last_slot late lease_until ledger limit line lineage_root missed name node nonce not_before number on_deny on_parent_end on_timeout options
    order_key origin outcome overlap owner parent_run_id parent_wait_id path paused paused_lane pending policy policy_snapshot_id precedes
    previous_owner priority queue queued rearm rearms reason recovery redo refused registry_ref replay_effects replay_policy request_hash
    request_key requested_at response_hash resume returned resume_from_checkpoint_id round rulings run_id schedule_id secrets seen seen_handoffs
    sends session_key settled settled_at sha256 shared signal_key signals size skill_id skill_version skip skipped_missed skipped_overlap
    slot snapshot_id source source_checkpoint_id source_effect_id source_run_id spent started_at state statement status step step_id stop_reason
    subject tags takeovers target task tenant_id thread_id topic trace_id tries type unattended undo undone unsent upgraded used verdict
    verifiable version versions via wait wait_id waits waived waivers where who why workspace zone
    """.split()  # noqa: SIM905
)
"""Ids, names, keys, tags, actors, codes, places, times, statuses, counts, digests, and records that are looked into."""


@pytest.mark.parametrize("text", ["", "k1", "k1 xx", "k1 " + base64.b64encode(b"short").decode(), "k 1 " + base64.b64encode(K1).decode(), "#only a remark"])
def test_a_file_of_keys_that_holds_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(UsageError):
        KeyFile(path)


def test_a_file_of_keys_is_read_again_when_a_key_is_added(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# mine\n" + as_line("k1", K1))
    keys = KeyFile(path)
    assert (keys.newest(), keys.key("k1"), keys.key("k2")) == ("k1", K1, None)
    path.write_text(as_line("k1", K1) + as_line("k2", K2))
    assert (keys.newest(), keys.key("k1"), keys.key("k2")) == ("k2", K1, K2)
    path.unlink()
    assert keys.newest() == "k2"
    assert "1" * 8 not in repr(keys) and len(new_key()) == 32


@pytest.mark.parametrize("given", [1, "k1", b"x" * 32, {}, {"k1": "x"}, {"k1": b"short"}, {"k 1": K1}, Encryption(None)])  # type: ignore[arg-type]
def test_what_is_no_encryption(given: Any) -> None:
    with pytest.raises(UsageError):
        Runtime("memory:", encryption=given)


def test_the_command_line_takes_keys_from_the_environment(tmp_path: Path, other_store: OtherStore) -> None:
    """$HOLDFAST_KEYS names the file; without it what is encrypted is named, and looking goes on."""
    (tmp_path / "keys").write_text(as_line("k1", K1))
    env = {**os.environ, "HOLDFAST_STORE": other_store(sqlite(tmp_path)), "HOLDFAST_KEYS": str(tmp_path / "keys"), "HOLDFAST_KEYS_STRICT": "1"}

    def holdfast(*words: str, **changed: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "holdfast", *words], cwd=tmp_path, env={**env, **changed}, capture_output=True, text=True, timeout=60)

    (tmp_path / "greet.py").write_text(
        "from holdfast import flow\n\n@flow('greet', version='1')\nasync def greet(ctx, name: str) -> str:\n    return f'hello {name}'\n"
    )
    done = holdfast("run", "greet.py:greet", "--input", f'{{"name": "{WORD}"}}', "--json")
    assert done.returncode == 0, done.stderr
    assert not any(form in data for _, data in contents(env["HOLDFAST_STORE"], tmp_path) for form in forms() if not data.startswith(b"from"))
    assert WORD in holdfast("show", "last", "--json").stdout or WORD in holdfast("runs", "--json").stdout
    told = holdfast("runs", "--json", HOLDFAST_KEYS="", HOLDFAST_KEYS_STRICT="")
    assert told.returncode == 0 and WORD not in told.stdout
    assert holdfast("runs", HOLDFAST_KEYS=str(tmp_path / "nowhere")).returncode == 2


ON, OFF = ("1", "true", "True", "TRUE", "yes", "YES", "on", "On", " 1 "), ("", "0", "false", "False", "no", "NO", "off", "OFF")


@pytest.mark.parametrize("word", [*ON, *OFF])
def test_strict_is_on_or_off_however_it_is_spelled(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text(as_line("k1", K1))
    monkeypatch.setenv("HOLDFAST_KEYS", str(tmp_path / "keys"))
    monkeypatch.setenv("HOLDFAST_KEYS_STRICT", word)
    made = coerce(None)
    assert made is not None and made.strict is (word in ON)


@pytest.mark.parametrize("keys", [None, "", "there"])
@pytest.mark.parametrize("word", ["zz", "2", "-1", "ture", "strict", "enabled", "1,0"])
def test_a_word_that_is_neither_on_nor_off_is_refused(word: str, keys: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").write_text(as_line("k1", K1))
    monkeypatch.setenv("HOLDFAST_KEYS_STRICT", word)
    monkeypatch.delenv("HOLDFAST_KEYS", raising=False)
    if keys is not None:
        monkeypatch.setenv("HOLDFAST_KEYS", keys and str(tmp_path / keys))
    with pytest.raises(UsageError, match="HOLDFAST_KEYS_STRICT") as refused:
        coerce(None)
    assert repr(word) in refused.value.message


@pytest.mark.parametrize("keys", [None, "", "  "])
@pytest.mark.parametrize("word", ON)
def test_strict_without_keys_is_refused_before_anything_is_written(word: str, keys: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked that nothing be kept in clear: what has no keys would keep everything so."""
    monkeypatch.setenv("HOLDFAST_KEYS_STRICT", word)
    monkeypatch.delenv("HOLDFAST_KEYS", raising=False)
    if keys is not None:
        monkeypatch.setenv("HOLDFAST_KEYS", keys)
    for make in (lambda: Runtime(sqlite(tmp_path)), lambda: Shelf.open(sqlite(tmp_path), "mine")):
        with pytest.raises(UsageError, match="HOLDFAST_KEYS") as refused:
            make()
        assert refused.value.exit_code == 2 and refused.value.hint
    assert Runtime(sqlite(tmp_path), encryption=FIRST) and not list(tmp_path.iterdir())


async def test_a_shelf_that_is_opened_alone_goes_by_the_same_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$HOLDFAST_KEYS holds for a store that is opened for a shelf alone, too: its rows are those that ``rt.shelf`` gives."""
    (tmp_path / "keys").write_text(as_line("k1", K1))
    monkeypatch.setenv("HOLDFAST_KEYS", str(tmp_path / "keys"))
    url = sqlite(tmp_path)
    async with Shelf.open(url, "mine") as shelf:
        await shelf.put("a", WORD.encode())
    assert not any(form in data for _, data in contents(url, tmp_path) for form in forms())
    async with Runtime(url) as rt:
        assert await rt.shelf("mine").get("a") == WORD.encode()


@pytest.mark.parametrize("at", STORES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("encryption", [None, Keys({"k3": K3}), Keys({"k1": K3})], ids=["none", "lost", "wrong"])
async def test_a_row_of_a_shelf_is_never_handed_out_encrypted(encryption: Any, at: Callable[[Path], str], tmp_path: Path) -> None:
    """Without the key, or with no keys at all, reading it is one error, and never bytes that look like data."""
    url = at(tmp_path)
    async with Runtime(url, encryption=FIRST) as rt:
        await rt.shelf("mine").put_many({"a": b"", "b": b"two", "c": b"x" * 70_000})
    async with Runtime(url, encryption=encryption) as rt:
        shelf = rt.shelf("mine")
        for key in ("a", "b", "c"):
            with pytest.raises(KeyUnavailable) as refused:
                await shelf.get(key)
            assert (refused.value.key_id, refused.value.place) == ("k1", f"shelf:mine:{key}")
            with pytest.raises(KeyUnavailable):
                await shelf.add(key, b"other")
            with pytest.raises(KeyUnavailable):
                await shelf.scan(key)
        assert await shelf.add("d", b"new") is None and await shelf.get("d") == b"new" and await shelf.scan("d") == [("d", b"new")]


async def test_a_row_that_only_looks_encrypted_is_handed_out_as_it_is(tmp_path: Path) -> None:
    """A copy of an encrypted row is somebody's own bytes anywhere else."""
    async with Runtime(sqlite(tmp_path), encryption=FIRST) as rt:
        await rt.shelf("mine").put("a", b"one")
    async with Runtime(sqlite(tmp_path)) as rt:
        kept = await rt.store.find_shelved("mine", "a")  # type: ignore[attr-defined]
        assert is_sealed(kept)
        await rt.shelf("copies").put("a", kept)
        assert await rt.shelf("copies").get("a") == kept and await rt.shelf("copies").scan() == [("a", kept)]
    async with Runtime(sqlite(tmp_path), encryption=FIRST) as rt:
        await rt.shelf("sealed").put("a", kept)
        assert await rt.shelf("sealed").get("a") == kept


async def test_without_keys_a_signal_under_a_key_and_a_prune_name_the_key(tmp_path: Path) -> None:
    """Where a signal for a thread goes is kept on a shelf, too."""
    made = waiting()
    async with Runtime(sqlite(tmp_path), skills=[made], encryption=FIRST) as rt:
        run = await rt.invoke(made, {}, thread_id="talk")
        await rt.signal("talk", "other", key="s1")
    async with Runtime(sqlite(tmp_path)) as rt:
        with pytest.raises(KeyUnavailable):
            await rt.signal("talk", "other", key="s1")
        await rt.prune(dt.timedelta(0))
    async with Runtime(sqlite(tmp_path), skills=[made], encryption=FIRST) as rt:
        assert (await rt.signal("talk", "other", key="s1")).run_id == run.run_id


SHOWN = (
    "runs", "waits", "show {}", "show {} --full", "explain {}", "events {}", "steps {}", "attempts {}", "effects {}", "checkpoints {}", "outbox", "ledger", "doctor",
)


@pytest.mark.one_store("its commands use the store of the folder")
@pytest.mark.parametrize("lost", [False, True], ids=["no keys", "another key"])
@pytest.mark.parametrize("form", ["", " --json"], ids=["text", "json"])
def test_where_a_text_is_encrypted_its_key_is_shown(form: str, lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """§14.5: whoever looks without the key is told which one is wanted, in words and not in ciphertext."""
    (tmp_path / "keys").write_text(as_line("k1", K1))
    (tmp_path / "other").write_text(as_line("k3", K3))
    (tmp_path / "told.py").write_text(TOLD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_KEYS", str(tmp_path / "keys"))
    monkeypatch.delenv("HOLDFAST_KEYS_STRICT", raising=False)
    for name, code in (("asks", 4), ("breaks", 1), ("twice", 4)):
        assert CliRunner().invoke(cli, ["run", f"told.py:{name}"]).exit_code == code
    assert CliRunner().invoke(cli, ["deny", "last", "--reason", f"{WORD} denied"]).exit_code == 0
    runs = [run["run_id"] for run in json.loads(CliRunner().invoke(cli, ["runs", "--json"]).stdout)["runs"]]
    monkeypatch.setenv("HOLDFAST_KEYS", str(tmp_path / "other") if lost else "")
    told = []
    for words in SHOWN:
        for run_id in runs if "{}" in words else runs[:1]:
            done = CliRunner().invoke(cli, (words.format(run_id) + form).split())
            assert "HFsealed" not in done.output and WORD not in done.output, words
            told.append(done.output)
    assert sum("encrypted under k1" in text for text in told) > 10
    assert "approval: encrypted under k1" in told[0] if not form else json.loads(told[1])["waits"][0]["prompt"] == "encrypted under k1"


TOLD = f"""
from holdfast import Context, flow


def fail() -> None:
    raise ValueError("{WORD} failure")


@flow("asks", version="1")
async def asks(ctx: Context) -> None:
    ctx.log.warning("{WORD} note")
    await ctx.approve("{WORD} first?", show="{WORD} shown")


@flow("breaks", version="1")
async def breaks(ctx: Context) -> None:
    ctx.send("nope", {{"text": "{WORD}"}}, key="1")
    ctx.record("rows", "one", {{"text": "{WORD}"}})
    await ctx.map(str, ["{WORD} item"])
    await ctx.step(fail)


@flow("twice", version="1")
async def twice(ctx: Context) -> None:
    await ctx.approve("{WORD} again?")
"""


async def test_shelves_and_stores_by_hand(tmp_path: Path) -> None:
    """``SealedStore`` stands before any store; a shelf's rows are encrypted with the key of their name."""
    store: Any = SealedStore(SqliteStore(tmp_path / "s.db"), Encryption(FIRST, strict=True))
    await store.open()
    shelf = Shelf(store, "mine")
    await shelf.put_many({"a": b"1" * 40, "b": b"two"})
    assert await shelf.add("a", b"other") == b"1" * 40 and await shelf.add("c", b"3") is None
    assert await shelf.scan() == [("a", b"1" * 40), ("b", b"two"), ("c", b"3")]
    kept = await store.as_kept.find_shelved("mine", "a")
    assert is_sealed(kept)
    await store.as_kept.shelve("mine", {"b": kept})
    with pytest.raises(PayloadAltered):
        await shelf.get("b")
    await store.as_kept.shelve("mine", {"b": b"plain"})
    with pytest.raises(PlaintextRefused):
        await shelf.get("b")
    await store.close()
    assert isinstance(open_url(workspace(tmp_path)), WorkspaceStore)


OTHERS = {"Rested", "Executor", "Saver", "Clock", "Transport", "ToolRunner", "Resolver", "Sealing", "Seat"}
"""The ports that no store stands behind, and the encrypted store's own."""


def shown() -> dict[str, set[str]]:
    """All that the ports of stores, and the stores themselves, show, by who shows it."""
    kinds = {n: c for n, c in vars(ports).items() if isinstance(c, type) and c.__module__ == ports.__name__ and Protocol in c.__bases__}
    assert kinds.keys() >= OTHERS
    stores = (MemoryStore, SqliteStore, WorkspaceStore, PostgresStore)
    classes = {n: c for n, c in kinds.items() if n not in OTHERS} | {c.__name__: c for c in stores}
    return {n: {v for v in dir(c) if not v.startswith("_")} for n, c in classes.items()}


def test_every_verb_of_a_store_is_sealed_or_carries_nothing() -> None:
    """§14.5: a port or a verb that is new, of any store, is listed with what becomes of it, or this fails; and it passes nothing by meanwhile."""
    mine = vars(SealedStore).keys()
    unsaid = {n: sorted(verbs - VERBS.keys() - mine) for n, verbs in shown().items() if verbs - VERBS.keys() - mine}
    assert not unsaid
    assert not VERBS.keys() & mine
    assert not ports.offers_steps(SealedStore(SqliteStore("x.db"), Encryption(FIRST)))


@pytest.mark.parametrize("name", ["step", "join", "note", "a_verb_of_tomorrow"])
def test_a_verb_that_may_carry_payloads_is_not_there(name: str) -> None:
    class Tomorrow(MemoryStore):
        async def a_verb_of_tomorrow(self, payload: bytes) -> None: ...

        async def note(self, payload: bytes) -> None: ...

        def join(self, payload: bytes) -> None: ...

    assert hasattr(Tomorrow(), name)
    assert not hasattr(SealedStore(Tomorrow(), Encryption(FIRST)), name)


@pytest.mark.parametrize("store", [SqliteStore("x.db"), PostgresStore("postgresql:///x")])
def test_an_encrypted_store_is_mended_like_any(store: Any) -> None:
    """Indexes and vouchers carry no payload: ``doctor --rebuild`` does with an encrypted store what it does with another."""
    sealed = SealedStore(store, Encryption(FIRST))
    assert (ports.offers_reindexing(sealed), ports.offers_vouching(sealed)) == (ports.offers_reindexing(store), ports.offers_vouching(store))
    assert ports.offers_vouching(sealed)
