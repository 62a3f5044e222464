"""Keeping a store healthy from the command line: check, repair-state, doctor, export, import, backup, restore, prune."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.postgres.server import shared

from holdfast.stores.postgres.queries import MIGRATIONS as POSTGRES_MIGRATIONS
from holdfast.stores.sqlite.connection import MIGRATIONS

DB = Path(".holdfast/runs.db")
HISTORY = Path(__file__).resolve().parents[1] / "histories" / "0.1.0" / "store.db"


def edited(*statements: str, file: Path = DB) -> None:
    db = apsw.Connection(str(file))
    for statement in statements:
        db.execute(statement)
    db.close()


@pytest.fixture
def run_id(holdfast: Any) -> str:
    done = holdfast("run", "work.py", "--input", '{"name": "quick"}', "--json")
    assert done.code == 0, done.err
    return str(done.json["run_id"])


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_repair_state(holdfast: Any, run_id: str, folder: Path) -> None:
    """§12.3, §12.4, T-98, T-100: dry run first; then it is done; then there is nothing to do; always exit 0."""
    edited("UPDATE run SET status = 'running'")
    assert holdfast("check", run_id).code == 1
    before = DB.read_bytes()
    dry = holdfast("repair-state", run_id, "--json")
    assert (dry.code, dry.json["applied"], dry.json["dry_run"]) == (0, False, True)
    assert [a["code"] for a in dry.json["actions"]] == ["snapshot_status_drift", "terminal_event_without_terminal_snapshot"]
    assert DB.read_bytes() == before
    assert "repair-state" in holdfast("repair-state", run_id).out
    done = holdfast("repair-state", run_id, "--apply", "--actor", "ada", "--json")
    assert (done.code, done.json["applied"], done.json["status_after"]) == (0, True, "completed")
    assert json.loads(Path(done.json["backup"]).read_text())["status"] == "running"
    assert holdfast("check").code == 0
    assert holdfast("show", run_id, "--json").json["status"] == "completed"
    again = holdfast("repair-state", run_id, "--apply", "--json")
    assert (again.code, again.json["applied"], again.json["reason"]) == (0, False, "nothing to repair")
    assert set(again.json) == set(done.json)
    last = holdfast("events", run_id, "--json").json["events"][-1]
    assert (last["event_type"], last["actor"]) == ("state.repaired", "ada")


def test_repair_state_says_no(holdfast: Any, run_id: str) -> None:
    """§12.4: exit 3 for an unknown run, 2 for what this store cannot, 0 with a reason for what is diagnosis only."""
    assert holdfast("repair-state", "0" * 26).code == 3
    assert holdfast("repair-state", "").code == 2
    assert holdfast("repair-state", run_id, "--store", "sqlite:///x.db", "--workspace", "y").code == 2
    edited("UPDATE run SET status = 'sleeping'")
    done = holdfast("repair-state", run_id, "--apply", "--json")
    assert (done.code, done.json["applied"]) == (0, False)
    assert "diagnosis only" in done.json["reason"]
    assert holdfast("doctor").code == 1
    rebuilt = holdfast("doctor", "--rebuild", "--json")
    assert (rebuilt.code, [r["applied"] for r in rebuilt.json["repairs"]]) == (0, [True])


def test_export_and_import(holdfast: Any, run_id: str, folder: Path) -> None:
    """§12.5: out as files, looked at there, and in again elsewhere; the events are the same."""
    assert holdfast("export", run_id, "out").code == 0
    assert (Path("out") / run_id / "events.jsonl").is_file()
    there = holdfast("events", run_id, "--workspace", "out", "--json").json["events"]
    assert there == holdfast("events", run_id, "--json").json["events"]
    before = files(Path("out"))
    assert holdfast("check", "--workspace", "out").code == 0
    assert holdfast("show", run_id, "--workspace", "out").code == 0
    assert holdfast("repair-state", run_id, "--workspace", "out").code == 0
    assert files(Path("out")) == before
    done = holdfast("import", "out", "--store", "sqlite:///other.db", "--json")
    assert done.json == {"imported": [run_id], "present": []}
    assert holdfast("import", "out", "--store", "sqlite:///other.db", "--json").json == {"imported": [], "present": [run_id]}
    one = holdfast("import", f"out/{run_id}", "--store", "sqlite:///third.db", "--json")
    assert one.json == {"imported": [run_id], "present": []}, "the directory of one run will do"
    other = holdfast("show", run_id, "--store", "sqlite:///other.db", "--json").json
    assert other["values"] == holdfast("show", run_id, "--json").json["values"]
    assert holdfast("check", "--store", "sqlite:///other.db").code == 0
    assert holdfast("export", "0" * 26, "out").code == 3


def test_an_export_is_brought_up_to_date(holdfast: Any) -> None:
    """§12.5: exported while it waited, and again when it had ended."""
    run_id = holdfast("run", "work.py", "--input", '{"name": "slow"}', "--json").json["run_id"]
    assert holdfast("export", run_id, "out").code == 0
    assert holdfast("show", run_id, "--workspace", "out", "--json").json["status"] == "waiting_for_human"
    holdfast("approve", run_id)
    holdfast("resume", run_id, "work.py")
    assert holdfast("export", run_id, "out").code == 0
    assert holdfast("show", run_id, "--workspace", "out", "--json").json["status"] == "completed"
    assert holdfast("check", "--workspace", "out").code == 0


def test_a_workspace_drives_runs(holdfast: Any) -> None:
    """§12.5: the same commands over files."""
    done = holdfast("run", "work.py", "--input", '{"name": "slow"}', "--workspace", "ws", "--json")
    assert (done.code, done.json["status"]) == (4, "waiting_for_human")
    run_id = done.json["run_id"]
    assert holdfast("approve", run_id, "--workspace", "ws", "--actor", "ada").code == 0
    assert holdfast("resume", run_id, "work.py", "--workspace", "ws").code in (0, 6)
    assert holdfast("show", run_id, "--workspace", "ws", "--json").json["status"] == "completed"
    assert holdfast("check", "--workspace", "ws").code == 0
    log = Path("ws") / run_id / "events.jsonl"
    log.write_bytes(log.read_bytes()[:-30])
    named = holdfast("check", run_id, "--workspace", "ws", "--json").json
    assert "event_tail_partial" in [p["code"] for p in named["problems"]]
    assert holdfast("repair-state", run_id, "--workspace", "ws", "--apply", "--json").json["applied"]
    assert holdfast("check", run_id, "--workspace", "ws").code == 0


def test_backup_and_restore(holdfast: Any, run_id: str) -> None:
    """§1.9: back to what was; what came since is gone, and said to be another incarnation's."""
    assert holdfast("backup", "copy.db").code == 0
    assert holdfast("backup", "copy.db").code == 2
    later = holdfast("run", "work.py", "--input", '{"name": "quick"}', "--json").json["run_id"]
    assert holdfast("restore", "nowhere.db").code == 2
    itself = holdfast("restore", ".holdfast/runs.db")
    assert itself.code == 2 and "is the store itself" in itself.err, "nobody at work is refused for a slip"
    assert holdfast("restore", "copy.db").code == 0
    assert holdfast("show", later).code == 3
    assert holdfast("show", run_id).code == 0
    assert holdfast("check").code == 0
    assert holdfast("backup", "x.db", "--workspace", "ws").code == 2


DAMAGE = {
    "truncated": lambda data: data[: len(data) // 2],
    "header": lambda data: b"\xff" * 100 + data[100:],
    "pages": lambda data: data[:4096] + b"\xee" * (len(data) - 4096),
    "empty": lambda data: b"",
    "another file": lambda data: b"name,amount\nAda,3\n" * 400,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_backup_takes_the_place_of_a_damaged_store(holdfast: Any, run_id: str, how: str) -> None:
    """What a backup is for: the damaged files are kept beside it, and a damaged store is never copied over a good backup."""
    assert holdfast("backup", "copy.db").code == 0
    for beside in ("-wal", "-shm"):
        Path(f"{DB}{beside}").unlink(missing_ok=True)
    DB.write_bytes(DAMAGE[how](DB.read_bytes()))
    there = DB.read_bytes()
    refused = holdfast("backup", "later.db")
    assert (refused.code != 0, Path("later.db").exists()) == (True, False)
    again = holdfast("restore", "copy.db")
    assert again.code == 0, again.err
    assert holdfast("show", run_id).code == 0
    assert holdfast("check").code == 0
    kept = [p for p in DB.parent.iterdir() if p.name.startswith(f"{DB.name}.damaged-")]
    assert [p.read_bytes() for p in kept if not p.name.endswith(("-wal", "-shm", "-anchor"))] in ([there], []), kept
    assert holdfast("restore", "copy.db").code == 0, "and again, where nothing is damaged"


def test_a_damaged_backup_is_put_nowhere(holdfast: Any, run_id: str) -> None:
    """Neither in the place of a sound store nor of a damaged one."""
    assert holdfast("backup", "copy.db").code == 0
    good = Path("copy.db").read_bytes()
    Path("copy.db").write_bytes(good[:4096] + b"\xee" * 8192 + good[12288:])
    before = DB.read_bytes()
    assert holdfast("restore", "copy.db").code == 1
    assert DB.read_bytes() == before
    assert holdfast("show", run_id).code == 0
    DB.write_bytes(before[: len(before) // 2])
    assert holdfast("restore", "copy.db").code == 1
    assert len(DB.read_bytes()) == len(before) // 2


def test_doctor_acknowledges_a_loss(holdfast: Any, run_id: str) -> None:
    """X-01: the log has gone backwards: named, nothing can be written until an operator accepts it."""
    copy = DB.read_bytes()
    holdfast("run", "work.py", "--input", '{"name": "quick"}')
    for name in ("-wal", "-shm"):
        Path(f"{DB}{name}").unlink(missing_ok=True)
    DB.write_bytes(copy)
    assert holdfast("check", "--json").json["problems"][0]["code"] == "log_rolled_back"
    refused = holdfast("run", "work.py", "--input", '{"name": "quick"}')
    assert (refused.code, "log_rolled_back" in refused.err) == (1, True)
    assert holdfast("doctor").code == 1
    assert holdfast("doctor", "--acknowledge").code == 0
    assert holdfast("run", "work.py", "--input", '{"name": "quick"}').code == 0


def test_prune(holdfast: Any, run_id: str) -> None:
    """§6.10: what ended long ago goes whole; what rests stays; the log still cannot go backwards unseen."""
    waiting = holdfast("run", "work.py", "--input", '{"name": "slow"}', "--json").json["run_id"]
    assert holdfast("prune", "--older-than", "1h", "--json").json == {"dry_run": False, "pruned": [], "kept": {}}
    assert holdfast("prune", "--older-than", "0s", "--dry-run", "--json").json["pruned"] == [run_id]
    assert holdfast("show", run_id).code == 0
    assert holdfast("prune", "--older-than", "0s").code == 0
    assert holdfast("show", run_id).code == 3
    assert holdfast("show", waiting).code == 0
    assert holdfast("check").code == 0
    assert holdfast("prune", "--older-than", "soon").code == 2
    holdfast("cancel", waiting)
    assert holdfast("prune", "--older-than", "0s", "--json").json["pruned"] == [waiting]
    assert holdfast("check").code == 0
    assert holdfast("run", "work.py", "--input", '{"name": "quick"}').code == 0
    assert holdfast("check").code == 0


LEDGERED = """
from pathlib import Path

from holdfast import Context, Graph, State


class Job(State):
    receipt: str = ""


graph = Graph("job", Job)


def upload(text: str) -> str:
    with open("uploads.txt", "a") as file:
        file.write(text + "\\n")
    return f"receipt of {text}"


@graph.node(start=True)
async def send(state: Job, ctx: Context):
    return {"receipt": await ctx.effect(upload, "a", key="order-42")}


@graph.node(after="send")
async def file(state: Job):
    if not Path("open").exists():
        raise RuntimeError("the archive is shut")
"""


def test_prune_then_resume_a_failed_run(process: Any, folder: Path) -> None:
    """X-06, §6.10: each command a process of its own. Kept, it goes on from its records; pruned, it is gone, and its key still answers."""
    (folder / "job.py").write_text(LEDGERED, "utf-8")
    failed = process("run", "job.py", "--json")
    run_id = failed.json["run_id"]
    assert (failed.code, failed.json["status"]) == (1, "failed")
    assert process("prune", "--older-than", "1h", "--json").json["pruned"] == []
    (folder / "open").touch()
    resumed = process("resume", run_id, "job.py", "--acknowledge", failed.json["stop_reason"], "--json")
    assert (resumed.code, resumed.json["values"]["receipt"]) == (0, "receipt of a")
    assert process("prune", "--older-than", "0s", "--json").json["pruned"] == [run_id]
    assert process("resume", run_id, "job.py").code == 3
    (folder / "open").unlink()
    later = process("run", "job.py", "--json")
    assert process("prune", "--older-than", "0s", "--json").json["pruned"] == [later.json["run_id"]]
    (folder / "open").touch()
    last = process("run", "job.py", "--json")
    assert (last.code, last.json["values"]["receipt"]) == (0, "receipt of a")
    assert (folder / "uploads.txt").read_text() == "a\n", "uploaded once, by the first of three runs"
    assert [e["status"] for e in process("effects", last.json["run_id"], "--json").json["effects"]] == ["reused"]
    assert process("check").code == 0


def test_migrate_brings_a_past_release_up_to_date(holdfast: Any, folder: Path) -> None:
    """§1.8: says what it did; then there is nothing to do; the runs are all there."""
    latest = len(MIGRATIONS)
    shutil.copy(HISTORY, folder / "old.db")
    first = holdfast("migrate", "--store", "sqlite:///old.db", "--json")
    assert (first.code, first.json) == (0, {"store": "sqlite:///old.db", "before": 1, "after": latest, "changed": True})
    again = holdfast("migrate", "--store", "sqlite:///old.db")
    assert (again.code, again.out) == (0, f"sqlite:///old.db has schema {latest}: nothing to do\n")
    assert len(holdfast("runs", "--store", "sqlite:///old.db", "--json").json["runs"]) == 7
    shutil.copy(HISTORY, folder / "other.db")
    assert holdfast("migrate", "--store", "sqlite:///other.db").out == f"sqlite:///other.db: schema 1 is now {latest}\n"
    edited(f"PRAGMA user_version = {latest + 1}", file=folder / "other.db")
    refused = holdfast("migrate", "--store", "sqlite:///other.db")
    assert (refused.code, refused.err.split(":")[0]) == (1, "unsupported_format")
    assert f"has schema {latest + 1}, this release knows {latest}" in refused.err


def test_migrate_tells_the_schema_of_a_database(holdfast: Any) -> None:
    url = shared().fresh("migrated")
    with shared().admin("migrated") as db:
        db.execute("DROP SCHEMA IF EXISTS holdfast CASCADE")
    made, again = holdfast("migrate", "--store", url), holdfast("migrate", "--store", url)
    latest = len(POSTGRES_MIGRATIONS)
    assert (made.code, made.out) == (0, f"{url} is created with schema {latest}\n")
    assert (again.code, again.out) == (0, f"{url} has schema {latest}: nothing to do\n")


REFUSED = {
    "restore nowhere.db": 2, "restore work.py": 1, "restore empty": 2, "restore nothing.db": 1, "restore half.db": 1, "import empty": 3, "import nowhere": 2, "import work.py": 2,
    "import broken": 1, "restore copy.db --workspace ws": 2, "restore nowhere.db --workspace ws": 2, "token create --scopes nope": 2, "token create --scopes ,": 2,
    "token create --scopes view --tenant=": 2, "schedule add work.py --cron x": 2, "schedule add work.py --every 1h --id=": 2, "schedule add work.py --every 1h --zone No/Where": 2,
    "limits set x --in-flight 1 --actor=": 2, "run work.py": 2, "run work.py --input 5": 2, "run work.py --key=": 2, "submit work.py": 2, "submit work.py --thread=": 2,
    "worker work.py --queue=": 2, f"worker work.py --queue a --queue {'x' * 600}": 2, "worker work.py --transports work.py:graph": 2, "queues pause --actor= x": 2,
    "mcp work.py --scopes nope": 2, "mcp work.py --scopes ,": 2, "mcp work.py --actor=": 2, f"mcp work.py --actor {'x' * 5000}": 2, "mcp work.py --token-file nowhere.txt": 2,
    "mcp work.py --token-file work.py": 6, "tool-runner --workspace . --tools work.py:note": 2, "tool-runner --workspace . --tools work.py:none": 2,
    "dispatch --transports work.py:graph": 2, "serve work.py --public-url x": 2, "serve work.py --port 0 --token-file nowhere.txt": 2,
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_refused_makes_no_store(words: str, holdfast: Any, run_id: str, folder: Path) -> None:
    """A command that would make the store, and cannot do what it is asked, leaves nothing behind."""
    assert holdfast("backup", "copy.db").code == 0
    Path("nothing.db").write_bytes(b"")
    Path("half.db").write_bytes(Path("copy.db").read_bytes()[:9000])
    Path("empty").mkdir()
    holdfast("export", run_id, "broken")
    events = Path("broken", run_id, "events.jsonl")
    events.write_text(events.read_text("utf-8").replace("work", "play"), "utf-8")
    Path("work.py").write_text(Path("work.py").read_text("utf-8") + "\n\nnone = []\n", "utf-8")
    shutil.rmtree(DB.parent)
    before = files(folder)
    done = holdfast(*words.split())
    assert done.code == REFUSED[words], done.err
    assert len(done.err.splitlines()) == 1 and not DB.parent.exists() and not Path("ws").exists()
    assert {path: data for path, data in files(folder).items() if not path.endswith(("-shm", "-wal"))} == before


def test_what_is_not_refused_makes_the_store_and_is_done_once(holdfast: Any, run_id: str) -> None:
    assert holdfast("backup", "copy.db").code == 0 and holdfast("export", run_id, "out").code == 0
    for words in (["restore", "copy.db"], ["import", "out"], ["submit", "work.py", "--input", '{"name": "Ada"}'], ["run", "work.py", "--input", '{"name": "quick"}']):
        shutil.rmtree(DB.parent)
        assert holdfast(*words).code == 0
        assert len(holdfast("runs", "--json").json["runs"]) == 1
    shutil.rmtree(DB.parent)
    assert holdfast("queues", "pause", "default").code == 0
    assert [q["paused"] for q in holdfast("queues", "--json").json["queues"]] == [True], "what it says it did is kept"
    shutil.rmtree(DB.parent)
    assert holdfast("token", "create", "--scopes", "view").code == 0
    assert len(holdfast("token", "list", "--json").json["tokens"]) == 1
