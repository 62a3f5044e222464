"""What a tool's evidence says (§11.4), the same by three ways: Python, shell, HTTP. It does not hold; nothing tells; a person says that it counts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Type
from tests.http.support import served

from holdfast import Runtime
from holdfast.cli.targets import one

SKILL = '''
import sys

from holdfast import Graph, State, Tool
from holdfast.tools import Command, FileExists, JsonPathEquals

CASES = {"fails": FileExists("nowhere.txt"), "unseen": JsonPathEquals("report.json", "/ok", True), "holds": Command((sys.executable, "-c", ""))}


class Work(State):
    said: str = ""


def made(case):
    graph = Graph(case, Work, version="1")

    @graph.node(start=True, tool=Tool("python", command=(sys.executable,), side_effects="write", postconditions=[CASES[case]]))
    def build(state):
        outcome = yield ["-c", "open('count', 'a').write('x'); print('built')"]
        return {"said": outcome.stdout.strip()}

    return graph


fails, unseen, holds = map(made, CASES)
lost = Graph("lost", Work, version="1")
slow = Tool("slow", command=(sys.executable,), side_effects="write", timeout=0.2, postconditions=[CASES["unseen"]])


@lost.node(start=True, tool=slow)
def wait(state):
    outcome = yield ["-c", "__import__('time').sleep(60)"]
    return {"said": outcome.stdout}
'''


class Python:
    def __init__(self, holdfast: Type) -> None:
        self.rt = Runtime("memory:", skills=[one(f"work.py:{case}").skill for case in ("fails", "unseen", "holds", "lost")])

    async def begin(self, case: str) -> Any:
        return await self._shown((await self.rt.invoke(case, {})).run_id)

    async def say(self, run_id: str, action: str) -> Any:
        await (self.rt.approve(run_id, actor="ada") if action == "approve" else self.rt.deny(run_id, actor="ada", reason="no"))
        return await self._shown(run_id)

    async def told(self, run_id: str, result: Any) -> Any:
        await self.rt.decide(run_id, "record_result", payload=result, actor="ada")
        await self.rt.worker(until_idle=True)
        return await self._shown(run_id)

    async def _shown(self, run_id: str) -> Any:
        return await self.rt.record(run_id)

    async def events(self, run_id: str) -> Any:
        return [(e.type, e.payload) for e in await self.rt.events(run_id)]


class Http(Python):
    async def begin(self, case: str) -> Any:
        async with served(self.rt, tokens=False) as http:
            run_id = (await http.post("/v1/runs", json={"skill_id": case, "input": {}})).json()["run_id"]
            await self.rt.worker(until_idle=True)
            return (await http.get(f"/v1/runs/{run_id}")).json()

    async def say(self, run_id: str, action: str) -> Any:
        async with served(self.rt, tokens=False) as http:
            (wait,) = (await http.get(f"/v1/runs/{run_id}/waits")).json()["waits"]
            said = await http.post(f"/v1/runs/{run_id}/decide", json={"wait_id": wait["wait_id"], "action": action, "actor": "ada"})
            assert said.status_code in (200, 202), said.text
            await self.rt.worker(until_idle=True)
            return (await http.get(f"/v1/runs/{run_id}")).json()

    async def told(self, run_id: str, result: Any) -> Any:
        async with served(self.rt, tokens=False) as http:
            said = await http.post(f"/v1/runs/{run_id}/decide", json={"action": "record_result", "payload": result, "actor": "ada"})
            assert said.status_code in (200, 202), said.text
            await self.rt.worker(until_idle=True)
            return (await http.get(f"/v1/runs/{run_id}")).json()

    async def events(self, run_id: str) -> Any:
        async with served(self.rt, tokens=False) as http:
            return [(e["event_type"], e["payload"]) for e in (await http.get(f"/v1/runs/{run_id}/events?limit=500")).json()["events"]]


class Shell:
    def __init__(self, holdfast: Type) -> None:
        self.holdfast = holdfast
        self.rt = Runtime("memory:")

    async def typed(self, *words: str) -> Any:
        said = await asyncio.to_thread(self.holdfast, *words, "--json")
        return said.json if words[0] != "worker" else None

    async def begin(self, case: str) -> Any:
        return await self.typed("run", f"work.py:{case}")

    async def say(self, run_id: str, action: str) -> Any:
        (wait,) = (await self.typed("waits"))["waits"]
        await self.typed(action, run_id, "--wait", wait["wait_id"], "--actor", "ada", *(["--reason", "no"] if action == "deny" else []))
        if action == "approve":
            await self.typed("resume", run_id, "work.py:unseen")
        return await self.typed("show", run_id)

    async def told(self, run_id: str, result: Any) -> Any:
        await self.typed("decide", run_id, "--action", "record_result", "--payload", json.dumps(result), "--actor", "ada")
        await self.typed("resume", run_id, "work.py:lost")
        return await self.typed("show", run_id)

    async def events(self, run_id: str) -> Any:
        return [(e["event_type"], e["payload"]) for e in (await self.typed("events", run_id))["events"]]


@pytest.mark.parametrize("way", [Python, Shell, Http])
async def test_evidence_by_three_ways(way: Any, holdfast: Type, folder: Path) -> None:
    (folder / "work.py").write_text(SKILL)
    at = way(holdfast)
    async with at.rt:
        run = await at.begin("holds")
        assert (run["status"], run["values"]["said"]) == ("completed", "built")

        run = await at.begin("fails")
        assert (run["status"], run["error"]["code"]) == ("failed", "postcondition_failed") and "nowhere.txt" in run["error"]["message"]
        (told,) = [p for kind, p in await at.events(run["run_id"]) if kind == "postcondition.evaluated"]
        assert (told["kind"], told["holds"]) == ("file_exists", False)

        for action, status, condition in (("approve", "completed", "done"), ("deny", "canceled", "halted")):
            run = await at.begin("unseen")
            (wait,) = run["waits"]
            assert (run["condition"], wait["kind"], wait["available_actions"]) == ("awaiting_gate_decision", "takeover", ["approve", "deny"])
            assert wait["show"]["missing"][0]["kind"] == "json_path_equals"
            run = await at.say(run["run_id"], action)
            assert (run["status"], run["condition"]) == (status, condition)
            assert run["values"]["said"] == ("built" if action == "approve" else "")
    assert (folder / "count").read_text() == "xxxx", "each call has acted once"


@pytest.mark.parametrize("way", [Python, Shell, Http])
async def test_what_a_person_says_of_a_lost_call_is_its_outcome(way: Any, holdfast: Type, folder: Path) -> None:
    """§6.5, §11.4: as JSON, by its fields, for a node that reads an outcome; it is judged as any other, and needs no further evidence. What is none is asked for again."""
    (folder / "work.py").write_text(SKILL)
    at = way(holdfast)
    async with at.rt:
        for result, status, said in (({"stdout": "by hand"}, "completed", "by hand"), (None, "completed", ""), ({"exit_code": 3, "stderr": "no disk"}, "failed", "")):
            run = await at.begin("lost")
            (wait,) = run["waits"]
            assert (wait["kind"], "record_result" in wait["available_actions"]) == ("effect", True)
            run = await at.told(run["run_id"], result)
            assert (run["status"], run["values"]["said"]) == (status, said), run["error"]
        assert "no disk" in run["error"]["message"]

        run = await at.begin("lost")
        for wrong, why in (("it ran", "not 'it ran' of type str"), ({"code": 0}, "an outcome has no 'code'")):
            run = await at.told(run["run_id"], wrong)
            (wait,) = run["waits"]
            assert wait["kind"] == "effect" and why in wait["verdict"]
        assert (await at.told(run["run_id"], {"stdout": "at last"}))["values"]["said"] == "at last"
