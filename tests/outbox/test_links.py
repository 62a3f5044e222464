"""Links in intents: the same at every attempt, single use, revoked with their question (§5.9, T-91)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, State
from holdfast.core import canon
from holdfast.core.errors import MaybeSent, PermanentError, TokenRefused, UsageError
from holdfast.outbox import repeated
from holdfast.outbox.links import secret_of
from holdfast.outbox.transports import Row
from tests.outbox.conftest import Open


class Note(State):
    asked: str = ""


graph: Graph[Note] = Graph("asks", Note, version="1")


@graph.node(start=True)
async def send(state: Note, ctx: Context) -> None:
    ctx.send("mail", {"text": "Answer at {wait_link} please", "to": ["ada"]})


@graph.node(after="send")
async def ask(state: Note, ctx: Context) -> dict[str, Any]:
    await ctx.approve("Go?")
    return {"asked": "yes"}


class Mail:
    """Fails its first sendings, and keeps every body."""

    dedupes = True
    retry = 5

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.bodies: list[str] = []

    async def send(self, payload: Any, key: str) -> None:
        self.bodies.append(payload["text"])
        if len(self.bodies) <= self.failures:
            raise ValueError("not now")


def token(mail: Mail) -> str:
    return mail.bodies[-1].split("/w/")[1].split(" ")[0]


async def test_a_link_is_the_same_at_every_attempt_and_answers_once(open_rt: Open) -> None:
    mail = Mail(1)
    async with open_rt(skills=[graph], transports={"mail": mail}, base_url="https://runs.example.com/hold fast/") as rt:
        run = await rt.invoke(graph, {})
        assert run.status == "waiting_for_human"
        await rt.redrive((await rt.intents(run.run_id))[0].intent_id, actor="ada")
        await rt.dispatch(until_idle=True)
        assert len(mail.bodies) == 2
        assert mail.bodies[0] == mail.bodies[1]
        assert mail.bodies[0].startswith("Answer at https://runs.example.com/hold%20fast/w/")
        await rt.redeem(token(mail), "approve")
        assert (await rt.resume(run.run_id)).state.asked == "yes"
        with pytest.raises(TokenRefused):
            await rt.redeem(token(mail), "approve")


async def test_cancel_revokes_the_link(open_rt: Open) -> None:
    mail = Mail(0)
    async with open_rt(skills=[graph], transports={"mail": mail}) as rt:
        run = await rt.invoke(graph, {})
        for _ in range(2):
            if (await rt.get(run.run_id)).status != "canceled":
                await rt.cancel(run.run_id)
            with pytest.raises(TokenRefused):
                await rt.redeem(token(mail), "approve")


async def test_a_link_without_a_question_is_refused(open_rt: Open) -> None:
    lonely: Graph[Note] = Graph("lonely", Note, version="1")

    @lonely.node(start=True)
    async def only(state: Note, ctx: Context) -> None:
        ctx.send("mail", {"text": "{wait_link}"})

    mail = Mail(0)
    async with open_rt(skills=[lonely], transports={"mail": mail}) as rt:
        run = await rt.invoke(lonely, {})
        (intent,) = await rt.intents(run.run_id)
        assert (intent.state, mail.bodies) == ("dead", [])
        assert "nothing to answer" in intent.detail


class Echo:
    """A receiver that says again what it was sent, in its answer or in its refusal."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.bodies: list[str] = []
        self.dedupes = how == "verify"

    async def send(self, payload: Any, key: str) -> Any:
        self.bodies.append(payload["text"])
        match self.how:
            case "answer":
                return {"got": [payload], "raw": payload["text"].encode(), payload["text"]: 1}
            case "another kind":
                return Opaque(payload["text"])
            case "refusal":
                raise PermanentError(f"550 refused: {payload}", hint=f"see {payload['text']}")
            case "doubt":
                raise MaybeSent(f"no answer to {payload}")
        raise ValueError(f"400 for {payload!r}")

    def on_response(self, intent: Any, answer: Any) -> Any:
        return [Row("answers", intent.intent_id, str(answer))]


class Opaque:
    """What no store can keep is kept by what it calls itself."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"<{self.text}>"


@pytest.mark.parametrize("how", ["answer", "another kind", "refusal", "doubt", "failure"])
async def test_what_a_receiver_repeats_of_a_link_is_not_kept(open_rt: Open, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """§5.9, §14.4: the store holds a hash alone; whoever may look at messages could answer with what an error says."""
    mail = Echo(how)
    async with open_rt(skills=[graph], transports={"mail": mail}, base_url="https://runs.example.com/") as rt:
        run = await rt.invoke(graph, {})
        secret = mail.bodies[-1].split("/w/")[1].split(" ")[0]
        (intent,) = await rt.intents(run.run_id)
        kept = [str(intent), str(await rt.ledger(run.run_id)), str(await rt.store.intents(run.run_id)), caplog.text]
        assert not any(secret in text for text in kept), kept
        assert "{wait_link}" in "".join(kept[:2]), "it is said where it stood"
        assert (await rt.redeem(secret, "approve")).run_id == run.run_id


def taken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret of a store is not to be had: it is not set, or others can read its file."""
    if url.startswith("sqlite:///"):
        file = Path(url.removeprefix("sqlite:///") + "-secret")
    elif url.startswith("workspace:"):
        file = Path(url.removeprefix("workspace:")) / ".secret"
    else:
        monkeypatch.delenv("HOLDFAST_SECRET")
        return
    file.parent.mkdir(exist_ok=True)
    file.write_text("x" * 32)
    file.chmod(0o644)


def given(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is to be had again."""
    if url.startswith("sqlite:///"):
        os.chmod(url.removeprefix("sqlite:///") + "-secret", 0o600)
    elif url.startswith("workspace:"):
        (Path(url.removeprefix("workspace:")) / ".secret").chmod(0o600)
    else:
        monkeypatch.setenv("HOLDFAST_SECRET", "x" * 32)


@pytest.mark.parametrize("open_rt", ["sqlite", "workspace", "postgresql"], indirect=True)
async def test_what_cannot_be_sent_without_the_secret_waits_for_it(open_rt: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """§5.9: a configuration, no failed attempt: it stays queued, also beyond the attempts that may fail, and what is missing is told."""
    mail = Mail(0)
    mail.retry = 2
    async with open_rt(skills=[graph], transports={"mail": mail}) as rt:
        taken(rt.store.url, monkeypatch)
        run = await rt.invoke(graph, {})
        for _ in range(3):
            (intent,) = await rt.intents(run.run_id)
            assert (intent.state, mail.bodies) == ("queued", [])
            assert [a.outcome for a in intent.attempts] == ["late"]
            (problem,) = await rt.check(run.run_id)
            assert (problem.code, problem.severity) == ("not_configured", "warning")
            assert "1 queued message of type 'mail'" in problem.message and "secret" in problem.message and problem.repair_hint in intent.detail
            await rt.redrive(intent.intent_id, actor="ada")
            await rt.dispatch(until_idle=True)
        given(rt.store.url, monkeypatch)
        await rt.redrive(intent.intent_id, actor="ada")
        await rt.dispatch(until_idle=True)
        (intent,) = await rt.intents(run.run_id)
        assert (intent.state, len(mail.bodies), intent.attempts[-1].outcome) == ("sent", 1, "sent")
        assert list(await rt.check(run.run_id)) == []


def test_the_secret_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = secret_of(f"sqlite:///{tmp_path}/a.db")
    assert first == secret_of(f"sqlite:///{tmp_path}/a.db") != secret_of(f"sqlite:///{tmp_path}/b.db")
    assert os.stat(tmp_path / "a.db-secret").st_mode & 0o777 == 0o600
    os.chmod(tmp_path / "a.db-secret", 0o644)
    with pytest.raises(UsageError, match="read by others"):
        secret_of(f"sqlite:///{tmp_path}/a.db")
    monkeypatch.delenv("HOLDFAST_SECRET", raising=False)
    with pytest.raises(UsageError, match="HOLDFAST_SECRET"):
        secret_of("postgresql://host/db")
    monkeypatch.setenv("HOLDFAST_SECRET", "0123456789abcdef")
    assert secret_of("postgresql://host/db") == b"0123456789abcdef"


class Odd:
    """What no store can hold, and that describes itself with a character that PostgreSQL refuses."""

    def __repr__(self) -> str:
        return "odd\0one"


def test_what_cannot_be_kept_is_described() -> None:
    assert canon.decode(repeated.pack(Odd())) == "odd\ufffdone"
