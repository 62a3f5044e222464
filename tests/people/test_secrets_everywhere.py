"""X-25, §13.5: secrets are made up, of every kind and form, and looked for in everything that anybody is shown: each command with --json and
without, each route and page, the log with its tracebacks, and what goes wrong.

Every secret holds a word of its own, so that no quoting, escaping or cutting can hide from this test that it is shown.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import click
import pytest
from click.testing import CliRunner

from holdfast import Context, Graph, Runtime, State, append, secret
from holdfast.api.table import ROUTES
from holdfast.cli.main import cli
from tests.http.support import served
from tests.postgres.instead import OtherStore

ODD = ["'", '"', "\\", "\n", "\r\n", "\t", "%", "&", "<", ">", "\u00fc", "\u2028", "\U0001f511", " ", "$", "{", "}", "\x1b[31m", "\u202e", "/", "+", "="]
SEEDS = [pytest.param(n, marks=pytest.mark.heavy) if n else n for n in range(5)]


@dataclasses.dataclass
class Login:
    user: str
    password: str
    pins: list[int]


class Secrets:
    """Secrets of every kind, made by a seed, and the words by which they are known again."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.words: set[str] = set()
        self.text = self.made()
        self.raw = self.word().encode() + bytes(self._rng.randrange(256) for _ in range(8))
        self.number = self._rng.randrange(10**11, 10**12)
        self.real = self._rng.randrange(10**8, 10**9) + 0.625
        self.id = uuid.UUID(int=self._rng.getrandbits(128))
        self.words |= {str(self.number), str(self.real), str(self.id), self.id.hex, str(self.id.int)}
        self.login = Login(self.made(), self.made(), [self._rng.randrange(10**9, 10**10) for _ in range(2)])
        self.words |= {str(pin) for pin in self.login.pins}
        self.keyed = {self.made(): self.made(), "inner": {"deep": [self.made()]}}
        self.told = self.made()

    def word(self) -> str:
        word = "".join(self._rng.choice("bcdfghjkmnpqrstvwxz") for _ in range(14))
        self.words.add(word)
        return word

    def made(self) -> str:
        """A text with a word in it, and around it what changes its form when it is quoted."""
        odd = [self._rng.choice(ODD) for _ in range(4)]
        return f"{odd[0]}{odd[1]}{self.word()}{odd[2]}{odd[3]}"

    def values(self) -> dict[str, Any]:
        return {"text": self.text, "raw": self.raw, "number": self.number, "real": self.real, "id": self.id, "login": self.login, "keyed": self.keyed}

    def found_in(self, shown: str) -> set[str]:
        """The words that can be read there, as they are, as hex digits or in base64."""
        return {w for w in self.words if any(form in shown for form in _forms(w))}


def _forms(word: str) -> Iterator[str]:
    raw = word.encode()
    yield from (word, word.upper(), word[::-1], raw.hex(), raw.hex().upper())
    for shift in range(3):
        yield base64.b64encode(b"\0" * shift + raw)[4 if shift else 0 : -4].decode()


class Holder(State):
    host: str = ""
    text: Annotated[str, secret] = ""
    raw: Annotated[bytes, secret] = b""
    number: Annotated[int, secret] = 0
    real: Annotated[float, secret] = 0.0
    id: Annotated[uuid.UUID, secret] = uuid.UUID(int=0)
    login: Annotated[Login | None, secret] = None
    keyed: Annotated[dict[str, Any], secret] = {}  # noqa: RUF012
    told: Annotated[list[str], append, secret] = []  # noqa: RUF012
    open: Annotated[list[str], append] = []  # noqa: RUF012


def skill() -> Graph[Holder]:
    made = Graph("holder", Holder, version="1")

    def printed(state: Holder) -> list[str]:
        """As careless programs print them."""
        parts = [state.text, state.raw, state.number, state.real, state.id, state.login, dict(state.keyed)]
        return [*map(str, parts), *map(repr, parts), json.dumps(state.text), json.dumps(json.dumps(state.text)), repr(state), state.raw.hex(), f"{state.login!r:>200}"]

    @made.node(start=True)
    async def use(state: Holder, ctx: Context) -> dict[str, Any]:
        lines = printed(state)
        await ctx.step(note, lines, name="note")
        await ctx.effect(call, state.text, state.login, state.keyed, key="call")
        await ctx.effect(call, lines, show={"lines": lines})
        ctx.send("mail", {"body": lines, "token": state.text})
        ctx.record("used", "row", {"lines": lines})
        try:
            raise ValueError(f"refused: {lines}")
        except ValueError:
            ctx.log.exception("it failed with %s", lines, extra={"state": state})
            ctx.log.warning("no secret in %r", {"text": state.text, "number": state.number})
        await ctx.approve(f"Use {state.text} and {state.number}?", show={"lines": lines, "login": state.login})
        return {"open": lines}

    @made.node(after="use")
    async def wait(state: Holder, ctx: Context) -> dict[str, Any]:
        return {"told": [await ctx.wait("told")]}

    @made.node(after="wait")
    async def fail(state: Holder, ctx: Context) -> None:
        try:
            raise KeyError(state.text)
        except KeyError as e:
            raise RuntimeError(f"{state.told[0]} {state.login!r} {json.dumps(state.text)} {state.raw!r} {' '.join(printed(state))}") from e

    return made


async def note(lines: list[str]) -> list[str]:
    return list(lines)


async def call(*parts: Any) -> Any:
    return list(parts)


class Refuses:
    dedupes = False

    async def send(self, payload: Any, key: str) -> Any:
        raise RuntimeError(f"refused {payload!r}")


async def lived(url: str, made: Secrets) -> tuple[str, str, str]:
    """A run that failed, one that waits, and one that was cancelled."""
    async with Runtime(url, skills=[skill()], transports={"mail": Refuses()}) as rt:
        run = await rt.invoke("holder", {"host": "h1", **made.values()}, thread_id="t1")
        assert run.status == "waiting_for_human", run.error
        await rt.decide(run.run_id, "approve", payload={"token": made.text, "pins": made.login.pins}, note=f"with {made.text!r}", actor="ada")
        await rt.signal(run.run_id, "told", made.told, key="s1")
        run = await rt.resume(run.run_id)
        assert run.status == "failed"
        asks = await rt.invoke("holder", {"host": "h2", **made.values()}, thread_id="t2")
        ended = await rt.invoke("holder", {"host": "h3", **made.values()}, thread_id="t3")
        await rt.cancel(ended.run_id, reason=f"because of {made.text}", actor="ada")
        await rt.dispatch(until_idle=True)
        return run.run_id, asks.run_id, ended.run_id


APART = {"demo", "new", "run", "submit", "worker", "dispatch", "serve", "mcp", "tool-runner", "import", "restore", "migrate", "prune", "backup"}
"""They print nothing of a run that is there, or only of one that they drive."""
MORE = {
    "diff": ["{first}", "head"], "state": [], "settle": None, "redrive": None, "signal": None, "approve": None, "deny": None, "decide": None, "resume": None,
    "cancel": None, "replay": None, "fork": None, "token": None, "schedule": None, "limits": None, "queues": None, "export": None, "repair-state": [],
}
"""What a command is given beside the run; None: it acts, which has a test of its own below."""


def commands(run_id: str, first: str) -> Iterator[list[str]]:
    """Every command that looks, as it is typed."""
    for name, command in sorted(cli.commands.items()):
        if name in APART or MORE.get(name, []) is None or isinstance(command, click.Group):
            continue
        takes_run = any(isinstance(p, click.Argument) and p.name in ("run_id", "run", "target") for p in command.params)
        more = [word.format(first=first) for word in MORE.get(name) or []]
        yield [name, *([run_id] if takes_run else []), *more]
        for option in ("--full", "--html", "--mermaid"):
            if any(option in p.opts for p in command.params):
                yield [name, *([run_id] if takes_run else []), *more, option]


def typed(*words: str) -> str:
    done = CliRunner().invoke(cli, list(words), prog_name="holdfast")
    assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
    return done.stdout + done.stderr


@pytest.mark.parametrize("seed", SEEDS)
def test_no_command_and_no_log_shows_one(
    seed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, other_store: OtherStore
) -> None:
    monkeypatch.chdir(tmp_path)
    url, made = other_store(f"sqlite:///{tmp_path}/runs.db"), Secrets(seed)
    with caplog.at_level(logging.DEBUG, logger="holdfast"):
        ids = asyncio.run(lived(url, made))
    logged = "\n".join(logging.Formatter("%(name)s %(message)s").format(r) for r in caplog.records if r.name.startswith("holdfast"))
    shown: dict[str, str] = {"the log": logged}
    for run_id in ids:
        first = json.loads(typed("checkpoints", run_id, "--store", url, "--json"))["checkpoints"][0]["checkpoint_id"]
        for words in commands(run_id, first):
            for more in ((), ("--json",)):
                shown[" ".join([*words, *more])] = typed(*words, "--store", url, *more)
    asks = ids[1]
    acts = [
        ["approve", asks, "--wait", made.text], ["decide", asks, "--action", made.text], ["deny", ids[0], "--reason", "no"], ["resume", ids[0]], ["resume", asks],
        ["cancel", ids[2]], ["signal", ids[2], "told", "--payload", "1"], ["fork", ids[0], "--set", "number=\"x\""],
    ]
    typed_in = {made.text}
    for words in acts:
        for more in ((), ("--json",)):
            said = typed(*words, "--store", url, *more)
            shown[" ".join([words[0], *more])] = said if not typed_in & set(words) else ""
    for html in [*tmp_path.rglob("*.html")]:
        shown[html.name] = html.read_text("utf-8")
    assert len(shown) > 60
    leaks = {where: found for where, text in shown.items() if (found := made.found_in(text))}
    assert not leaks, {where: [(w, _around(shown[where], w)) for w in sorted(found)[:3]] for where, found in list(leaks.items())[:6]}


def _around(text: str, word: str) -> str:
    at = next((text.find(form) for form in _forms(word) if form in text), 0)
    return text[max(0, at - 60) : at + 60]


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_route_and_no_page_shows_one(seed: int, tmp_path: Path) -> None:
    made = Secrets(seed)
    url = f"sqlite:///{tmp_path}/runs.db"
    ids = await lived(url, made)
    async with Runtime(url, skills=[skill()]) as rt:
        checkpoint = (await rt.checkpoints(ids[0]))[0].checkpoint_id
        pages = ["/", "/runs", *(f"/runs/{i}" for i in ids), "/waits", "/effects", "/schedules", "/workers", "/health"]
        wanted = {"id": ids, "run_id": ids, "thread": ["t1"], "thread_id": ["t1"], "checkpoint": [checkpoint], "checkpoint_id": [checkpoint], "cp": [checkpoint]}
        paths = [*pages]
        for route in ROUTES:
            if route.method != "GET" or "stream" in route.path:
                continue
            path = f"/v1{route.path}" if not route.path.startswith(("/v1", "/metrics")) else route.path
            names = [part.strip("{}").partition(":")[0] for part in path.split("/") if part.startswith("{")]
            for run_id in ids if names else [""]:
                filled = path
                for name in names:
                    given = run_id if name in ("id", "run_id") and "/runs/" in path else next(iter(wanted.get(name, [run_id])))
                    filled = filled.replace("{" + name + "}", given)
                paths.append(filled + (f"?a={checkpoint}&b={checkpoint}" if filled.endswith("/diff") else ""))
        leaks, good = {}, 0
        async with served(rt, tokens=False) as client:
            for path in dict.fromkeys(paths):
                answer = await client.get(path)
                good += answer.status_code == 200
                assert answer.status_code < 500, (path, answer.text)
                if found := made.found_in(answer.text):
                    leaks[path] = [(w, _around(answer.text, w)) for w in sorted(found)[:3]]
            for run_id in ids:
                answer = await client.post(f"/v1/runs/{run_id}/resume", json={"actor": "ada"})
                assert not made.found_in(answer.text), answer.text
        assert good > 25, good
        assert not leaks, dict(list(leaks.items())[:6])


async def test_a_search_does_not_tell_what_is_hidden() -> None:
    """§13.5: otherwise whoever sees dots could try out letter by letter what stands behind them. What is shown is found, and so are other runs that say the same openly."""

    class Account(State):
        key: Annotated[str, secret] = ""
        address: str = ""

    g = Graph("search", Account)

    @g.node(start=True)
    async def call(state: Account) -> dict[str, Any]:
        return {"address": f"https://example.org/?key={state.key}&page=1"}

    @g.node(after="call")
    async def ask(state: Account, ctx: Context) -> None:
        await ctx.approve(f"Call with {state.key}?")
        raise ValueError(f"refused {state.key}")

    async with Runtime("memory:", skills=[g]) as rt, served(rt, tokens=False) as http:

        async def found(text: str) -> set[str]:
            return {r["run_id"] for r in (await http.get("/v1/runs", params={"text": text})).json()["runs"]}

        run = await rt.invoke(g, {"key": "zq-Wombat-77"})
        assert await found("Call with") == {run.run_id}
        for ends in (False, True):
            for hidden in ("zq-wombat-77", "Wombat", "with zq", "key=z", "zq-", "77&page"):
                assert await found(hidden) == set(), (ends, hidden)
            assert await found("example.org/?key=") == {run.run_id} == await found("&page=1")
            page = await http.get("/runs", params={"q": "Wombat"})
            assert page.status_code == 200 and run.run_id not in page.text
            if not ends:
                await rt.approve(run.run_id, actor="ada")
        assert await found("refused") == {run.run_id}
        openly = await rt.invoke(g, {"address": "", "key": ""}, tags=["Wombat"])
        assert await found("wombat") == {openly.run_id}
