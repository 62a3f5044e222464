"""Replay and fork on the command line (§7.6, §7.7); must show 3 of the effects."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Type

SKILL = '''
from holdfast import Context, Graph, State


class Notes(State):
    topic: str
    draft: str = ""
    receipt: str = ""


graph = Graph("notes", Notes)


def called(word: str) -> str:
    with open("calls.txt", "a") as file:
        file.write(word + "\\n")
    return word


@graph.node(start=True)
async def write(state: Notes, ctx: Context):
    return {"draft": await ctx.step(called, "model about " + state.topic)}


@graph.node(after="write")
async def publish(state: Notes, ctx: Context):
    return {"receipt": await ctx.effect(called, "published " + state.draft)}
'''


def calls() -> list[str]:
    return Path("calls.txt").read_text("utf-8").splitlines()


def begun(holdfast: Type) -> str:
    Path("notes.py").write_text(SKILL, "utf-8")
    said = holdfast("run", "notes.py", "--input", '{"topic": "owls"}', "--json")
    assert said.code == 0, said.err
    assert calls() == ["model about owls", "published model about owls"]
    return str(said.json["run_id"])


def test_replay_calls_nothing_outside(holdfast: Type) -> None:
    source = begun(holdfast)
    said = holdfast("replay", source, "notes.py", "--json")
    assert said.code == 0, said.err
    assert (said.json["status"], said.json["source_run_id"], said.json["values"]["receipt"]) == ("completed", source, "published model about owls")
    assert len(calls()) == 2
    effects = holdfast("effects", said.json["run_id"], "--json").json["effects"]
    assert [e["status"] for e in effects] == ["reused"]


def test_fork_publishes_another_text_under_a_new_run(holdfast: Type) -> None:
    source = begun(holdfast)
    said = holdfast("fork", source, "notes.py", "--set", "draft=mine", "--reason", "better", "--actor", "ada", "--json")
    assert said.code == 0, said.err
    assert calls()[2:] == ["published mine"] and said.json["run_id"] != source
    [patched] = [e for e in holdfast("events", said.json["run_id"], "--json").json["events"] if e["event_type"] == "state.patched"]
    assert (patched["actor"], patched["payload"]["reason"]) == ("ada", "better")


def test_show_draws_the_lineage(holdfast: Type) -> None:
    source = begun(holdfast)
    fork = holdfast("fork", source, "notes.py", "--set", 'draft="mine"', "--json").json["run_id"]
    replay = holdfast("replay", fork, "notes.py", "--json").json["run_id"]
    lines = holdfast("show", fork).out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip() == "lineage")
    assert source in lines[at + 1] and "done" in lines[at + 1]
    assert f"└─ {fork}" in lines[at + 2] and "fork of c" in lines[at + 2] and "← this run" in lines[at + 2]
    assert f"   └─ {replay}" in lines[at + 3] and "replay of c" in lines[at + 3]


def test_wrong_words_are_named(holdfast: Type) -> None:
    source = begun(holdfast)
    assert holdfast("replay", source, "notes.py", "--effects", "sometimes").code == 2
    assert holdfast("fork", source, "notes.py", "--set", "nonsense").code == 2
    assert holdfast("fork", source, "notes.py", "--set", "nothing=1").code == 2
    said = holdfast("fork", source, "notes.py", "--option", "capabilities=all")
    assert said.code == 6 and "restricted_option" in said.err and "capabilities" in said.err
    assert holdfast("replay", "nobody").code == 3
    assert holdfast("replay", source, "notes.py", "--from", "c999").code == 3
