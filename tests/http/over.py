"""People and effects over HTTP: ``python -m tests.http.over [--store memory|sqlite|workspace|postgres]`` (about three minutes a store; ``--budget MINUTES`` ends it).

The tests of people and of effects, as they stand, with the verbs that decide carried over HTTP: what they ask of ``Runtime.decide``, ``approve``, ``deny``,
``cancel`` and ``signal`` becomes a request to the API of that very runtime, and a problem becomes the error again, by its code. After each the run
is held in the same words by Python, HTTP and its page. ``--store`` puts every store of theirs in another kind: on PostgreSQL also
those of a file.
"""

from __future__ import annotations

import argparse
import functools
import html
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast import Runtime
from holdfast.api import app
from holdfast.core.errors import from_code

STORE = "HOLDFAST_OVER_STORE"
INSIDE: ContextVar[bool] = ContextVar("INSIDE", default=False)
SENT: Counter[str] = Counter()
TRIES = 5


class NotJson(Exception):
    """What is given has no form in JSON: it stays in Python."""


def plain(value: Any) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(value)) if msgspec.json.decode(msgspec.json.encode(value)) == value else _not()
    except (TypeError, ValueError, msgspec.MsgspecError, OverflowError) as e:
        raise NotJson from e


def _not() -> Any:
    raise NotJson


@asynccontextmanager
async def client(rt: Runtime) -> AsyncIterator[httpx.AsyncClient]:
    inside = INSIDE.set(True)
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app(rt, tokens=False)), base_url="http://holdfast") as http:
            yield http
    finally:
        INSIDE.reset(inside)


async def said(rt: Runtime, run_id: str, verb: str, body: dict[str, Any], *, of: str = "runs") -> str:
    """Sends a verb, and raises what its problem says; gives the run that it reached."""
    async with client(rt) as http:
        answer = await http.post(f"/v1/{of}/{run_id}/{verb}", content=msgspec.json.encode(body), headers={"Content-Type": "application/json"})
        SENT[verb] += 1
        assert answer.status_code < 500, answer.text
        if answer.status_code >= 400:
            told = answer.json()
            raise from_code(told["code"], told["detail"])
        run_id = answer.json()["run_id"]
        for _ in range(TRIES):
            shown = (await http.get(f"/v1/runs/{run_id}")).json()
            page = (await http.get(f"/runs/{run_id}")).text
            if (await http.get(f"/v1/runs/{run_id}")).json() != shown:
                continue  # somebody else acted in between: these were two moments
            assert shown["run_id"] == run_id and html.escape(shown["condition"]) in page and html.escape(shown["status"]) in page
            SENT["words"] += 1
            break
        return run_id


def carried(verb: str, original: Callable[..., Awaitable[Any]], body: Callable[..., dict[str, Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(original)
    async def over(self: Runtime, run_id: Any, *args: Any, **given: Any) -> Any:
        if INSIDE.get() or given.get("via") is not None or not isinstance(run_id, str) or not run_id.isalnum():
            return await original(self, run_id, *args, **given)
        try:
            sent = plain(body(*args, **given))
        except (NotJson, TypeError):
            SENT["in Python"] += 1
            return await original(self, run_id, *args, **given)
        if verb == "signal" and await self.store.get(run_id) is None:
            run_id = await said(self, run_id, verb, sent, of="threads")
        else:
            await said(self, run_id, verb, sent)
        return await self.get(run_id)

    return over


def _decide(action: str, **given: Any) -> dict[str, Any]:
    return {"action": action, **_given(given)}


def _given(given: dict[str, Any]) -> dict[str, Any]:
    found = {n: v for n, v in given.items() if v is not None and v is not ...}
    if "payload" in given and given["payload"] is None:
        found["payload"] = None
    return found


def _signal(name: str, payload: Any = None, **given: Any) -> dict[str, Any]:
    return {"name": name, "payload": payload, **_given(given)}


def elsewhere(url: Any) -> Any:
    """A store of another kind in the place of one that only this process has."""
    kind = os.environ.get(STORE, "")
    if not kind or not isinstance(url, str) or url.startswith(("workspace:", "postgres")):
        return url
    if url.startswith("memory"):
        place = Path(tempfile.mkdtemp(prefix="over-", dir=os.environ["HOLDFAST_OVER_FOLDER"]))
    else:
        place = Path(url.removeprefix("sqlite:///") + ".over")
    match kind:
        case "sqlite":
            return f"sqlite:///{place / 'runs.db'}" if url.startswith("memory") else url
        case "workspace":
            return f"workspace:{place}"
    return url


@pytest.fixture(autouse=True)
def over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    verbs: dict[str, Callable[..., dict[str, Any]]] = {"decide": _decide, "signal": _signal, "cancel": lambda **given: _given(given)}
    for verb, body in verbs.items():
        monkeypatch.setattr(Runtime, verb, carried(verb, getattr(Runtime, verb), body))
    if os.environ.get(STORE):
        begin = Runtime.__init__
        monkeypatch.setattr(Runtime, "__init__", lambda self, store=None, *a, **k: begin(self, elsewhere(store), *a, **k))


def pytest_sessionfinish(session: pytest.Session) -> None:
    print(f"\nover HTTP: {dict(SENT)}")


COUNTS = "costs_what_the_first_did"  # it counts what a verb costs: no place for the looks beside it
ONE_LIFE = "called_the_same_everywhere and memory"  # it has every store itself; a file does not outlive its first runtime
FILES = [
    "secrets_are_hidden_from_those_who_look",  # the shell beside it reads the SQLite file
    "no_command_and_no_log_shows_one",
    "schema_has_no_registry_of_waits",  # it reads the tables
    "wiped_answer_is_found_again",
]
ELSEWHERE = {
    "memory": [COUNTS],
    "sqlite": [COUNTS, ONE_LIFE],
    "postgres": [COUNTS, *FILES, ONE_LIFE],
    "workspace": [
        COUNTS,
        *FILES,
        ONE_LIFE,
        "called_the_same_everywhere and sqlite",  # the shell beside it reads that file too
        "two_processes_over_one_file",  # a workspace has one writer
        "cancel_reaches_a_step_in_another_process",
        "early_answer_goes_on_beside_running_siblings",
    ],
}
"""Tests that are left out of a round, and why."""
CASES = ["tests/http/test_scenarios.py", "tests/http/test_words.py", "tests/people", "tests/engine/test_effects.py", "tests/engine/test_compensation.py", "tests/engine/test_one_question.py", "tests/engine/test_lineage.py"]


def main() -> int:
    words = argparse.ArgumentParser(prog="python -m tests.http.over", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--store", choices=["memory", "sqlite", "workspace", "postgres"], default="sqlite")
    words.add_argument("--budget", type=float, default=20, metavar="MINUTES")
    words.add_argument("cases", nargs="*", default=CASES)
    given = words.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        kind = {STORE: given.store} if given.store in ("sqlite", "workspace") else {}
        other = ["--store", "postgres"] if given.store == "postgres" else []
        cases = " and ".join(f"not ({name})" for name in ELSEWHERE[given.store])
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-s", "-p", "tests.http.over", "--tb=short", "-k", cases, *other, *given.cases]
        asked = subprocess.Popen(command, env={**os.environ, **kind, "HOLDFAST_OVER_FOLDER": folder})
        try:
            ended = asked.wait(given.budget * 60)
        except subprocess.TimeoutExpired:
            asked.send_signal(signal.SIGINT)  # it says what it has found so far
            ended = asked.wait()
            print(f"the budget of {given.budget:g} minutes is over: the rest was skipped")
    print(f"{given.store}: {time.monotonic() - began:.0f} s")
    return ended


if __name__ == "__main__":
    sys.exit(main())
