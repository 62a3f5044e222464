"""What the commands tell of the outbox: what waits, what nobody sends, and what became of each attempt (§9.3, §12.2)."""

from pathlib import Path

from tests.cli.conftest import Type

SENDS = '''
from holdfast import Context, Graph, State

graph = Graph("sends", State, version="1")


@graph.node(start=True)
async def notify(state: State, ctx: Context):
    ctx.send("mail", {"url": "https://h.example/x"})


def post(payload, key):
    if not __import__("os").path.exists("up"):
        raise OSError("the line is busy")
    return "ok"


sends = {"mail": post}
'''


def test_what_nobody_sends_is_told(holdfast: Type, folder: Path) -> None:
    (folder / "sends.py").write_text(SENDS)
    run = holdfast("run", "sends.py:graph", "--json").json
    (intent,) = holdfast("outbox", "--json").json["intents"]
    assert intent["no_transport_for"] == "mail"
    assert "queued (no transport)" in holdfast("outbox").out
    found = holdfast("check", "--json")
    assert found.code == 0 and [(p["code"], p["severity"], p["run_id"]) for p in found.json["problems"]] == [("no_transport_for", "warning", run["run_id"])]
    said = holdfast("doctor", "--json")
    assert said.code == 0 and [p["code"] for p in said.json["problems"]] == ["no_transport_for"]
    assert "1 outgoing message queued, the oldest " in (out := holdfast("doctor").out) and "no running process sends mail:\n" in out


def test_attempts_stand_in_the_timeline(holdfast: Type, folder: Path) -> None:
    (folder / "sends.py").write_text(SENDS)
    run = holdfast("run", "sends.py:graph", "--json").json["run_id"]
    holdfast("dispatch", "--transports", "sends.py:sends", "--until-idle")
    (folder / "up").touch()
    (intent,) = holdfast("outbox", "--json").json["intents"]
    assert intent["attempts"][0]["outcome"] == "failed"
    assert holdfast("redrive", intent["intent_id"], "--reason", "the line is free", "--actor", "ada").code == 0
    holdfast("dispatch", "--transports", "sends.py:sends", "--until-idle")
    shown = [line for line in holdfast("show", run).out.splitlines() if " intent." in line and "enqueued" not in line]
    assert ["failed" in shown[0], "ada" in shown[1], "attempt 2" in shown[2]] == [True] * 3 and len(shown) == 3
    assert "mail to h.example" in shown[0] and "the line is busy" in shown[0]
    doctor = holdfast("doctor")
    assert "queued" not in doctor.out and doctor.code == 0


ASKS = '''
from holdfast import Context, Graph, State

graph = Graph("asks", State, version="1")


@graph.node(start=True)
async def notify(state: State, ctx: Context):
    ctx.send("mail", {"text": "Answer at {wait_link}"})


@graph.node(after="notify")
async def ask(state: State, ctx: Context):
    await ctx.approve("Go on?")


sends = {"mail": lambda payload, key: "ok"}
'''


def test_what_waits_for_a_secret_is_told(holdfast: Type, folder: Path) -> None:
    """§5.9: `outbox`, `check` and `doctor` say what is missing and what to do."""
    (folder / "asks.py").write_text(ASKS)
    run = holdfast("run", "asks.py:graph", "--store", "sqlite:///s.db", "--json").json
    secret = folder / "s.db-secret"
    secret.write_text("x" * 32)
    secret.chmod(0o644)
    assert holdfast("dispatch", "--until-idle", "--transports", "asks.py:sends", "--store", "sqlite:///s.db").code == 0
    told = holdfast("outbox", "--store", "sqlite:///s.db").out
    assert "queued (not configured)" in told and "waits: " in told and "can be read by others; chmod 600" in told
    (problem,) = [p for p in holdfast("check", "--store", "sqlite:///s.db", "--json").json["problems"] if p["code"] == "not_configured"]
    assert (problem["severity"], problem["run_id"]) == ("warning", run["run_id"]) and "can be read by others" in problem["message"]
    doctor = holdfast("doctor", "--store", "sqlite:///s.db")
    assert doctor.code == 0 and "can be read by others" in doctor.out and "chmod 600" in doctor.out.partition("what to do")[2]
