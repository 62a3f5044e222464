"""The main job on a real repository, without a terminal, killed on the way, and answered from another process."""

import gc
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.cli.conftest import Type, environment

from holdfast.demo import repository, writing

STORE = ("--store", "sqlite:///.holdfast/demo/runs.db")
SUBJECTS = ["feat: measure twice", "fix(saw): cut once", "Explain the plan", "Drop the old bench", "refactor!: new joints"]


@pytest.fixture
def repo(folder: Path) -> Path:
    """A git repository of five commits."""
    path = folder / "joinery"
    path.mkdir()
    repository.git("init", "--quiet", cwd=path)
    for number, subject in enumerate(SUBJECTS):
        (path / "plan.txt").write_text(f"{number}\n" * (number + 1), "utf-8")
        repository.git("add", ".", cwd=path)
        repository.git("-c", "user.name=Ada", "-c", "user.email=ada@example.com", "commit", "--quiet", "-m", subject, cwd=path)
    return path


def notes(folder: Path) -> str:
    (found,) = (folder / ".holdfast" / "demo").glob("release-notes-*.md")
    return found.read_text("utf-8")


def test_outside_of_a_repository_it_makes_a_sample(process: Type, folder: Path) -> None:
    """Without a terminal it answers itself as the actor ``demo`` and says so; it writes below .holdfast/demo/ only."""
    before = {p for p in folder.rglob("*") if ".holdfast" not in p.parts}
    said = process("demo")
    assert said.code == 0, said.err
    assert "as the actor `demo`" in said.out and "approve by demo" in said.out
    assert "completed · done" in said.out
    assert "## Added" in notes(folder)
    assert re.search(r"sent to http://127\.0\.0\.1:\d+/notes exactly once, with its idempotency key", said.out)
    (intent,) = process("outbox", "--json", *STORE).json["intents"]
    assert (intent["type"], intent["state"], [t["outcome"] for t in intent["attempts"]]) == ("announce", "sent", ["sent"])
    assert {p for p in folder.rglob("*") if ".holdfast" not in p.parts} == before
    assert [p.name for p in (folder / ".holdfast").iterdir()] == ["demo"]


def test_the_notes_are_made_of_the_commits(process: Type, folder: Path, repo: Path) -> None:
    """Every commit is there under its hash, in the section of its kind; git sees nothing of the demo."""
    said = process("demo", "--repo", str(repo), "--json")
    assert (said.code, said.json["status"]) == (0, "completed")
    text = notes(folder)
    assert [heading for heading in writing.ORDER if f"## {heading}" in text] == ["Breaking", "Added", "Fixed", "Removed", "Documentation"]
    for line in ("New joints", "Measure twice", "Cut once", "Explain the plan", "Drop the old bench"):
        assert f"- {line} (" in text
    hashes = repository.git("log", "--format=%h", "--abbrev=10", cwd=repo).split()
    assert all(h in text for h in hashes)
    assert repository.git("status", "--porcelain", cwd=repo) == ""


def test_standing_in_a_repository_it_reads_that_one(process: Type, repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repo)
    said = process("demo")
    assert said.code == 0
    assert "for joinery: 5 of 5 commits" in said.out
    assert repository.git("status", "--porcelain", cwd=repo) == "", "the demo's folder is kept out of git's sight"


def test_asked_from_another_process(process: Type, folder: Path) -> None:
    """``--ask`` rests with exit code 4; approve commits, resume drives on (§5.4)."""
    said = process("demo", "--ask")
    assert said.code == 4
    run_id = process("runs", "--json", *STORE).json["runs"][0]["run_id"]
    assert f"approve {run_id} {' '.join(STORE)}" in said.out
    assert not list((folder / ".holdfast" / "demo").glob("*.md"))
    assert process("approve", run_id, *STORE).code == 0
    assert process("resume", run_id, *STORE).code == 0
    assert "## Added" in notes(folder)


def test_sent_back_from_another_process(process: Type, folder: Path) -> None:
    """T-28, §5.5: the words reach the redone draft; a new question is asked under a new id; every step by a process of its own."""
    assert process("demo", "--ask").code == 4
    run_id = process("runs", "--json", *STORE).json["runs"][0]["run_id"]
    (wait,) = process("waits", "--json", *STORE).json["waits"]
    typed = next(line.strip() for line in process("waits", *STORE).out.splitlines() if "retry_feedback" in line)
    assert typed == f"python -m holdfast decide {run_id} --action retry_feedback --feedback TEXT {' '.join(STORE)}"
    sent = process("decide", run_id, "--wait", wait["wait_id"], "--action", "retry_feedback", "--feedback", "shorter, please", "--actor", "ada", *STORE)
    assert sent.code == 0, sent.err
    again = process("resume", run_id, *STORE)
    assert again.code == 4, again.err
    (asked,) = process("waits", "--json", *STORE).json["waits"]
    assert asked["wait_id"] != wait["wait_id"] and asked["show"] != wait["show"]
    assert "> Reworked as asked: shorter, please" in asked["show"] and len(asked["show"]) < len(wait["show"]) and "more" in asked["show"]
    assert not list((folder / ".holdfast" / "demo").glob("*.md"))
    late = process("decide", run_id, "--wait", wait["wait_id"], "--action", "approve", *STORE)
    assert late.code == 6, "the first question is answered; its answer does not count for the second"
    assert process("approve", run_id, "--actor", "grace", *STORE).code == 0
    assert process("resume", run_id, *STORE).code == 0
    assert notes(folder) == asked["show"]
    steps = [e["payload"]["task"] for e in process("events", run_id, "--json", *STORE).json["events"] if e["event_type"] == "step.completed" and not e["payload"]["path"]]
    assert steps.count("draft") == 2 and steps.count("collect") == steps.count("publish") == 1


def test_an_approval_offers_no_way_back_unless_its_node_does(process: Type) -> None:
    """§5.5: only what the wait publishes is taken."""
    assert process("run", "work.py", "--input", '{"name": "Ada"}').code == 4
    run_id = process("runs", "--json").json["runs"][0]["run_id"]
    said = process("decide", run_id, "--action", "retry_feedback", "--feedback", "shorter")
    assert said.code == 6 and "it offers approve, deny" in said.err


@pytest.mark.parametrize("points", [1, 2, 5, 8, 12, 14, 15, 16, 17, 18, 19, 20, 22, 60])
def test_killed_at_a_boundary_it_goes_on(holdfast: Type, folder: Path, monkeypatch: pytest.MonkeyPatch, points: int) -> None:
    """A child is killed with SIGKILL before or after one of its commits; every step is on record once, the file is written once."""
    monkeypatch.setattr("holdfast.cli.showcase.random.randint", lambda low, high: points)
    said = holdfast("demo", "--crash", "--yes")
    assert said.code == 0, said.err
    assert ("SIGKILL" in said.out) == (points < 60)
    assert "TWICE" not in said.out
    assert "completed · done" in said.out
    assert "## Added" in notes(folder)
    run_id = holdfast("runs", "--json", *STORE).json["runs"][0]["run_id"]
    assert holdfast("check", run_id, *STORE).code == 0
    steps = [e["payload"]["task"] for e in holdfast("events", run_id, "--json", *STORE).json["events"] if e["event_type"] == "step.completed" and not e["payload"]["path"]]
    assert steps == ["collect", "group", "draft", "ask", "publish", "record"]


class Model(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint that answers with what it was asked."""

    asked: list[dict[str, object]] = []  # noqa: RUF012
    status = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Model.asked.append({"path": self.path, "auth": self.headers.get("Authorization"), **body})
        data = json.dumps({"choices": [{"message": {"content": "# Notes by a model"}}]}).encode()
        self.send_response(Model.status)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Model]]:
    server = HTTPServer(("127.0.0.1", 0), Model)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Model.asked, Model.status = [], 200
    monkeypatch.setenv("HOLDFAST_LLM_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("HOLDFAST_LLM_KEY", "a-secret-key")
    monkeypatch.setenv("HOLDFAST_LLM_MODEL", "small")
    yield Model
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_drafts_if_one_is_named(holdfast: Type, folder: Path, model: type[Model]) -> None:
    """Asked once, with the commits; the key is sent and kept nowhere."""
    said = holdfast("demo", "--yes")
    assert said.code == 0
    assert "draft by small" in said.out
    assert notes(folder) == "# Notes by a model\n"
    (asked,) = model.asked
    assert (asked["path"], asked["auth"], asked["model"]) == ("/v1/chat/completions", "Bearer a-secret-key", "small")
    assert "tide tables" in json.dumps(asked["messages"])
    assert b"a-secret-key" not in b"".join(p.read_bytes() for p in (folder / ".holdfast").rglob("*") if p.is_file())


def test_a_model_that_refuses_leaves_the_notes_to_the_rules(holdfast: Type, folder: Path, model: type[Model]) -> None:
    """The step is degraded and says so; the run goes on (§4.11)."""
    model.status = 403
    said = holdfast("demo", "--yes")
    assert said.code == 0
    assert "step.degraded" in said.out and "draft by rules" in said.out
    assert len(model.asked) == 1
    assert "## Added" in notes(folder)
    gc.collect()  # a connection left open is an error of this test, not of a later one


def test_a_repository_without_commits_is_named(holdfast: Type, folder: Path) -> None:
    (folder / "empty").mkdir()
    subprocess.run(["git", "init", "--quiet", "empty"], check=True)
    said = holdfast("demo", "--repo", "empty")
    assert (said.code, said.err.split(":")[0]) == (2, "no_commits")


def test_the_file_is_written_whole_and_once(folder: Path) -> None:
    """Writing the same text again changes nothing, so that the effect may be executed again under its key."""
    first = repository.write_once(str(folder / "a.md"), "text\n")
    stamp = (folder / "a.md").stat().st_mtime_ns
    assert repository.write_once(str(folder / "a.md"), "text\n") == first
    assert (folder / "a.md").stat().st_mtime_ns == stamp
    assert [p.name for p in folder.iterdir() if p.name.startswith(".notes")] == []


@pytest.mark.parametrize(
    ("subject", "section"),
    [
        ("feat(x): y", "Added"), ("Fix the door", "Fixed"), ("feat!: new door", "Breaking"), ("Make it faster", "Faster"), ("Walk through the house", "Documentation"),
        ("Read files as lines", "Changed"), ("bump click", "Tests and tooling"), ("Drop it", "Removed"), ("prefix: Fix it", "Fixed"), ("", "Changed"),
    ],
)
def test_a_subject_finds_its_section(subject: str, section: str) -> None:
    assert writing.section(subject)[0] == section


@pytest.mark.parametrize(("answer", "code", "word"), [("y", 0, "completed · done"), ("n", 5, "canceled · halted"), ("l", 4, "Answer from any shell")])
def test_on_a_terminal_it_asks(folder: Path, answer: str, code: int, word: str) -> None:
    """A person says yes, no, or later; later rests with exit code 4, no ends the run halted (§5.5)."""
    near, far = pty.openpty()
    child = subprocess.Popen([sys.executable, "-m", "holdfast", "demo"], stdin=far, stdout=far, stderr=far, env=environment() | {"TERM": "xterm", "COLUMNS": "120"})
    os.close(far)
    said = b""
    asked = False
    while True:
        try:
            part = os.read(near, 65536)
        except OSError:  # the other end is closed: the process has ended
            break
        if not part:
            break
        said += part
        if b"Publish these notes? yes, no, again, or later" in said and not asked:
            asked = True
            os.write(near, f"{answer}\n".encode())
    os.close(near)
    assert child.wait(timeout=30) == code
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    assert asked and word in text
    assert "\x1b[" in said.decode(), "a terminal is shown colours"
