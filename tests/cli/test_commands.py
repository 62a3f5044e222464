"""Every command does its work, ends with its exit code, and prints JSON with all its keys (interfaces, Command line)."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import apsw
import click
import pytest
from tests.cli.conftest import Type

from holdfast.cli.main import cli

RECORD = {
    "run_id", "thread_id", "skill_id", "skill_version", "queue", "not_before", "blocked_by", "blocked_why", "no_worker_for", "wake_at", "status", "condition", "condition_class",
    "created_at", "started_at", "finished_at", "current_step_id", "checkpoint_head", "resume_from_checkpoint_id", "trace_id", "tenant_id",
    "environment", "versions", "policy_snapshot_id", "session_key", "lane", "priority", "job_id", "source_run_id", "source_checkpoint_id",
    "lineage_root", "parent_run_id", "stop_reason", "settled", "result", "error", "tags", "waits", "decisions", "active_handoff",
    "cancel_requested_at", "version", "fingerprint", "target", "schedule_id", "scheduled_at", "origin", "lease", "values",
}
ONE_RUN = RECORD | {"values", "problems", "deduplicated"}


def begun(holdfast: Type, name: str = "Ada") -> str:
    """A run of the skill, at rest."""
    return str(holdfast("run", "work.py", "--input", f'{{"name": "{name}"}}', "--json").json["run_id"])


def calls() -> list[str]:
    return Path("calls.txt").read_text("utf-8").split()


def test_run_drives_to_the_end_and_tells_the_steps(holdfast: Type) -> None:
    """Exit code 0, progress on stderr, the answer on stdout (§4.18)."""
    said = holdfast("run", "work.py:graph", "--input", '{"name": "quick"}')
    assert said.code == 0
    assert "completed · done" in said.out
    assert [w for w in ("first", "ask", "last") if w in said.err] == ["first", "ask", "last"]
    assert calls() == ["first", "last"]


def test_run_reads_its_input_from_a_file_and_from_stdin(holdfast: Type) -> None:
    Path("in.json").write_text('{"name": "quick"}', "utf-8")
    assert holdfast("run", "work.py", "--input", "@in.json").code == 0
    assert holdfast("run", "work.py", "--input", "-", given='{"name": "quick"}').code == 0


def test_run_rests_with_exit_code_4_and_says_what_to_type(holdfast: Type) -> None:
    """A wait is exit code 4; the commands that answer it are printed whole."""
    said = holdfast("run", "work.py", "--input", '{"name": "Ada"}')
    assert said.code == 4
    assert "approval: Go on?" in said.out
    assert "approve" in said.out and "deny" in said.out


def test_one_run_is_one_object_with_all_keys(holdfast: Type) -> None:
    """Commands about one run print its record (§3.1) plus values, waits, problems."""
    run_id = begun(holdfast)
    for words in (["show", run_id], ["approve", run_id, "--actor", "ada"], ["resume", run_id, "work.py"]):
        shown = holdfast(*words, "--json").json
        assert set(shown) == ONE_RUN, words
        assert shown["problems"] == []
    assert shown["status"] == "completed"
    assert shown["result"] == shown["values"] == {"name": "Ada", "done": ["first", "last"]}
    assert shown["target"] == "work.py:graph"


def test_approve_commits_and_says_who_will_drive(holdfast: Type) -> None:
    """A decision needs no code and drives nothing (§5.4); resume goes on with it."""
    run_id = begun(holdfast)
    said = holdfast("approve", run_id, "--actor", "ada")
    assert said.code == 0
    assert f"resume {run_id} work.py:graph" in said.out
    assert calls() == ["first"]
    assert holdfast("resume", run_id, "work.py").code == 0
    assert calls() == ["first", "last"]
    events = holdfast("events", run_id, "--json").json["events"]
    assert [e["payload"]["decision"]["actor"] for e in events if e["event_type"] == "wait.decided"] == ["ada"]


@pytest.mark.parametrize("verb", ["resume", "fork", "replay"])
def test_a_target_may_run_a_loop_of_its_own(holdfast: Type, folder: Path, verb: str) -> None:
    """A script that ends with ``asyncio.run(main())`` is imported before our loop runs, by every command that drives."""
    run_id = begun(holdfast)
    assert holdfast("approve", run_id, "--actor", "ada").code == 0
    with open(folder / "work.py", "a", encoding="utf-8") as file:
        file.write("import asyncio\nasyncio.run(asyncio.sleep(0))\n")
    said = holdfast(verb, run_id, "work.py")
    assert (said.code, "target_broken" in said.err) == (0 if verb == "resume" else 4, False), said.err


def test_deny_halts(holdfast: Type) -> None:
    """§5.5: a denial ends the run canceled, settled, condition halted; a later resume is refused, exit code 6."""
    run_id = begun(holdfast)
    assert holdfast("deny", run_id, "--reason", "not yet").code == 0
    shown = holdfast("show", run_id, "--json").json
    assert (shown["status"], shown["condition"], shown["settled"]) == ("canceled", "halted", True)
    refused = holdfast("resume", run_id, "work.py")
    assert refused.code == 6
    assert refused.err.startswith("settled_terminal: ")


def test_decide_takes_only_what_the_wait_offers(holdfast: Type) -> None:
    """§5.5, and the second, different decision is a conflict (§5.6)."""
    run_id = begun(holdfast)
    wait = holdfast("waits", run_id, "--json").json["waits"][0]["wait_id"]
    assert holdfast("decide", run_id, "--wait", wait, "--action", "halt").err.startswith("action_unavailable: ")
    assert holdfast("decide", run_id, "--wait", wait, "--action", "approve", "--no-resume").code == 0
    shown = holdfast("show", run_id, "--json").json
    assert (shown["condition"], shown["decisions"][0]["resume"]) == ("awaiting_gate_decision", False)
    other = holdfast("decide", run_id, "--wait", wait, "--action", "deny", "--note", "no")
    assert (other.code, other.err.split(":")[0]) == (6, "decision_conflict")


def test_cancel_at_rest_is_at_once(holdfast: Type) -> None:
    """§10.12; a second cancel is already_terminal."""
    run_id = begun(holdfast)
    shown = holdfast("cancel", run_id, "--json").json
    assert set(shown) == ONE_RUN | {"accepted"}
    assert (shown["accepted"], shown["status"], shown["condition"]) == (True, "canceled", "cancelled")
    assert holdfast("cancel", run_id).code == 6


def test_signal_is_delivered(holdfast: Type) -> None:
    """§5.11: accepted for a run at rest, and on record."""
    run_id = begun(holdfast)
    assert holdfast("signal", run_id, "news", "--payload", "[1]", "--key", "k").code == 0


def test_a_failed_run_is_exit_code_1_and_wants_to_be_acknowledged(holdfast: Type) -> None:
    """§7.3: no blind resume; the stop reason or the head is named first."""
    said = holdfast("run", "work.py", "--input", '{"name": "broken"}')
    assert said.code == 1
    assert "ValueError" in said.err and "it is broken" in said.out
    run_id = holdfast("runs", "--json").json["runs"][0]["run_id"]
    blind = holdfast("resume", run_id, "work.py")
    assert (blind.code, blind.err.split(":")[0]) == (6, "acknowledge_required")
    assert holdfast("resume", run_id, "work.py", "--acknowledge", "step_failed").code == 1
    assert calls() == ["first"], "the finished step ran again"


def test_the_same_key_is_the_same_run(holdfast: Type) -> None:
    """§3.5: found again and marked so; another input under it is a conflict."""
    one = holdfast("run", "work.py", "--input", '{"name": "quick"}', "--key", "k", "--json").json
    two = holdfast("run", "work.py", "--input", '{"name": "quick"}', "--key", "k", "--json").json
    assert (one["deduplicated"], two["deduplicated"], two["run_id"]) == (False, True, one["run_id"])
    assert calls() == ["first", "last"]
    other = holdfast("run", "work.py", "--input", '{"name": "Ada"}', "--key", "k")
    assert (other.code, other.err.split(":")[0]) == (6, "request_conflict")


def test_submit_and_worker(holdfast: Type) -> None:
    """The same, split: submit leaves it pending, a worker drives it."""
    shown = holdfast("submit", "work.py", "--input", '{"name": "quick"}', "--json")
    assert (shown.code, shown.json["status"], set(shown.json)) == (0, "pending", ONE_RUN)
    said = holdfast("worker", "work.py", "--until-idle")
    assert said.code == 0
    assert "completed" in said.out
    assert holdfast("show", shown.json["run_id"], "--json").json["status"] == "completed"


def test_doctor_names_due_runs_that_no_worker_looks_for(holdfast: Type) -> None:
    """Issue «First hour», 10: it ends with what to do."""
    assert holdfast("submit", "work.py", "--input", '{"name": "quick"}').code == 0
    said = holdfast("doctor")
    assert (said.code, said.err) == (0, "")
    assert "no worker is running" in said.out and "holdfast worker work.py:graph" in said.out


def test_a_worker_names_a_run_that_its_code_does_not_fit(holdfast: Type, folder: Path) -> None:
    """§10.11: once, with the way out; the others are driven."""
    run_id = begun(holdfast)
    assert holdfast("approve", run_id, "--actor", "ada").code == 0
    with open(folder / "work.py", "a", encoding="utf-8") as file:
        file.write('\n@graph.node(after="last")\nasync def more(state: Work):\n    return None\n')
    other = holdfast("submit", "work.py", "--input", '{"name": "quick"}', "--json").json["run_id"]
    said = holdfast("worker", "work.py", "--until-idle")
    assert said.code == 0, said.err
    assert said.out.count(f"{run_id}  ! no_worker_for: ") == 1
    assert f"{other}  work  completed" in said.out


def test_runs_are_listed_newest_first_in_pages(holdfast: Type) -> None:
    """``{"runs": […], "next_cursor": …}``, filters in the same words as everywhere."""
    ids = [begun(holdfast, name) for name in ("quick", "Ada", "Grace")]
    page = holdfast("runs", "--limit", "2", "--json").json
    assert set(page) == {"runs", "next_cursor"}
    assert [r["run_id"] for r in page["runs"]] == [ids[2], ids[1]]
    assert set(page["runs"][0]) == RECORD
    rest = holdfast("runs", "--limit", "2", "--cursor", page["next_cursor"], "--json").json
    assert ([r["run_id"] for r in rest["runs"]], rest["next_cursor"]) == ([ids[0]], None)
    assert len(holdfast("runs", "--condition", "awaiting_gate_decision", "--json").json["runs"]) == 2
    assert len(holdfast("runs", "--status", "completed", "--skill", "work", "--json").json["runs"]) == 1
    assert ids[0] in holdfast("runs").out


def paged(holdfast: Type, name: str, *words: str, by: str, limit: int = 1) -> list[str]:
    """What all pages of a list hold, each fetched with the cursor of the one before."""
    found: list[str] = []
    cursor: list[str] = []
    for _ in range(50):
        page = holdfast(name, *words, "--limit", str(limit), *cursor, "--json").json
        assert set(page) == {name, "next_cursor"}
        found += [str(item[by]) for item in page[name]]
        if page["next_cursor"] is None:
            return found
        cursor = ["--cursor", str(page["next_cursor"])]
    raise AssertionError(f"{name} has no last page")


def test_every_list_comes_in_pages_to_its_end(holdfast: Type) -> None:
    """``next_cursor`` leads through runs, waits, events and checkpoints: each once, in order (interfaces, JSON shapes)."""
    ids = [begun(holdfast, name) for name in ("quick", "Ada", "Grace")]
    assert paged(holdfast, "runs", by="run_id") == paged(holdfast, "runs", by="run_id", limit=2) == ids[::-1]
    assert paged(holdfast, "waits", by="run_id") == paged(holdfast, "waits", by="run_id", limit=2) == [ids[2], ids[1]]
    assert paged(holdfast, "waits", ids[1], by="run_id") == [ids[1]]
    every = [c["checkpoint_id"] for c in holdfast("checkpoints", ids[0], "--json").json["checkpoints"]]
    assert paged(holdfast, "checkpoints", ids[0], by="checkpoint_id") == paged(holdfast, "checkpoints", ids[0], by="checkpoint_id", limit=2) == every
    numbers = [str(e["seq"]) for e in holdfast("events", ids[0], "--json").json["events"]]
    assert paged(holdfast, "events", ids[0], by="seq", limit=3) == numbers
    assert f"checkpoints {ids[0]} --limit 1 --cursor {every[0]}" in holdfast("checkpoints", ids[0], "--limit", "1").out
    lost = holdfast("checkpoints", ids[0], "--cursor", "nobody")
    assert (lost.code, lost.err.startswith("invalid_input: 'nobody' is not a cursor of this list")) == (2, True)


def test_where_there_is_no_store_nothing_is_made(holdfast: Type) -> None:
    """Looking changes nothing, not even a folder."""
    said = holdfast("runs", "--json")
    assert (said.code, said.json) == (0, {"runs": [], "next_cursor": None})
    assert "no store" in said.err
    assert not Path(".holdfast").exists()


def test_show_is_the_operators_page(holdfast: Type) -> None:
    """Record, condition, the wait with what answers it, timeline, values."""
    run_id = begun(holdfast)
    page = holdfast("show", run_id).out
    for word in (run_id, "awaiting_gate_decision", "Go on?", f"approve {run_id}", "after ['first']", "timeline", "step.completed", "values", "target"):
        assert word in page, word


def test_events_in_order_and_from_a_number(holdfast: Type) -> None:
    """§13.1: the envelope, ``fence`` beside ``seq``, gapless from 1."""
    run_id = begun(holdfast, "quick")
    events = holdfast("events", run_id, "--json").json["events"]
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
    keys = {"event_id", "event_version", "event_type", "occurred_at", "run_id", "seq", "fence", "trace_id", "tenant_id", "actor", "payload"}
    assert all(set(e) == keys for e in events)
    assert "unreadable" not in str(events)
    later = holdfast("events", run_id, "--after", "3", "--limit", "2", "--json").json
    assert ([e["seq"] for e in later["events"]], later["next_cursor"]) == ([4, 5], 5)
    assert len(holdfast("events", run_id, "--follow").out.splitlines()) == len(events)


def test_checkpoints_state_and_diff(holdfast: Type) -> None:
    """Old checkpoints show their own values (L-14)."""
    run_id = begun(holdfast, "quick")
    found = holdfast("checkpoints", run_id, "--json").json["checkpoints"]
    assert "run_started" in found[0]["boundaries"] and "run_completed" in found[-1]["boundaries"]
    first, head = found[0]["checkpoint_id"], found[-1]["checkpoint_id"]
    assert holdfast("state", run_id, "--at", first, "--json").json["values"]["done"] == []
    now = holdfast("state", run_id, "--json").json
    assert (set(now), now["checkpoint_id"]) == ({"run_id", "checkpoint_id", "step", "values"}, head)
    changed = holdfast("diff", run_id, first.rpartition(".")[2], "head", "--json").json
    assert (set(changed), changed["changed"]) == ({"run_id", "a", "b", "added", "removed", "changed"}, {"done": {"from": [], "to": ["first", "last"]}})
    assert "+ last" in holdfast("diff", run_id, first, head).out
    assert head in holdfast("checkpoints", run_id).out and "last" in holdfast("state", run_id).out


def test_graph_of_a_skill_and_of_a_run(holdfast: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a run, what is done and what comes next."""
    picture = holdfast("graph", "work.py", "--json").json
    assert [n["name"] for n in picture["nodes"]] == ["first", "ask", "last"]
    assert ["first", "ask"] in picture["edges"] and "ask --> last" in picture["mermaid"]
    assert "○ last" in holdfast("graph", "work.py").out
    assert holdfast("graph", "work.py", "--mermaid").out.startswith("flowchart")
    run_id = begun(holdfast)
    monkeypatch.setenv("HOLDFAST_SKILLS", "work.py")
    assert holdfast("graph", run_id).code == 3, "looking at a run runs no code that the command does not name"
    states = {n["name"]: n["state"] for n in holdfast("graph", run_id, "work.py", "--json").json["nodes"]}
    assert states == {"first": "done", "ask": "next", "last": ""}


def test_waits_are_an_inbox(holdfast: Type) -> None:
    run_id = begun(holdfast)
    found = holdfast("waits", "--json").json
    assert set(found) == {"waits", "next_cursor"}
    assert [(w["run_id"], w["available_actions"]) for w in found["waits"]] == [(run_id, ["approve", "deny"])]
    assert f"approve {run_id}" in holdfast("waits").out


def test_check_finds_nothing_wrong_and_says_how_much_it_looked_at(holdfast: Type) -> None:
    """§12.1: ok is no error."""
    run_id = begun(holdfast)
    assert holdfast("check", "--json").json | {"events": 0} == {"ok": True, "runs": 1, "events": 0, "left_out": 0, "run_id": None, "problems": []}
    assert holdfast("check", run_id).code == 0


def test_migrate_tells_before_and_after(holdfast: Type) -> None:
    made = holdfast("migrate", "--json").json
    assert set(made) == {"store", "before", "after", "changed"}
    assert (made["before"], made["changed"]) == (None, True)
    again = holdfast("migrate", "--json").json
    assert (again["before"], again["after"], again["changed"]) == (made["after"], made["after"], False)


def test_the_store_is_named_by_option_or_environment(holdfast: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--store`` before or after the command, else ``$HOLDFAST_STORE``; the commands to type carry it."""
    said = holdfast("run", "work.py", "--input", '{"name": "Ada"}', "--store", "sqlite:///a.db")
    assert "--store sqlite:///a.db" in said.out
    assert len(holdfast("--store", "sqlite:///a.db", "runs", "--json").json["runs"]) == 1
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:///a.db")
    assert len(holdfast("runs", "--json").json["runs"]) == 1
    assert not Path(".holdfast").exists()


def test_the_projects_skills_come_from_pyproject(holdfast: Type) -> None:
    """Without a TARGET: ``[tool.holdfast] skills``, found from a folder below too."""
    Path("pyproject.toml").write_text('[tool.holdfast]\nskills = ["work.py"]\n', "utf-8")
    assert holdfast("run", "--input", '{"name": "quick"}').code == 0
    assert holdfast("run", "work", "--input", '{"name": "quick"}').code == 0, "by the skill's id"
    Path("below").mkdir()
    os.chdir("below")
    assert holdfast("graph", "--json").json["skill_id"] == "work"


def test_new_writes_a_skill_and_its_test(holdfast: Type) -> None:
    made = holdfast("new", "hello", "--json").json
    assert (made["skill"], made["test"]) == ("hello.py", "test_hello.py")
    assert holdfast("run", "hello.py", "--input", '{"name": "World"}').code == 0
    assert holdfast("run", "hello.py", "--input", '{"name": "Ada"}').code == 4


def test_the_version(holdfast: Type) -> None:
    assert holdfast("--version").out.startswith("holdfast, version 0.")


TYPED = """
import dataclasses
import datetime
from holdfast import Context, Graph, State, register

@register
@dataclasses.dataclass(frozen=True)
class SpotOnMap:
    x: int
    y: int

class Where(State):
    at: SpotOnMap | None = None
    seen: datetime.datetime | None = None

graph = Graph("typed", Where)

def act(idempotency_key: str = "") -> int:
    return 7

@graph.node(start=True)
async def walk(state: Where, ctx: Context):
    await ctx.effect(act)
    ctx.send("webhook", {"to": "you"})
    return {"at": SpotOnMap(1, 2), "seen": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)}
"""


def test_a_run_is_looked_at_without_its_code(process: Type) -> None:
    """§14.3: no type of a run is imported to show it; its fields are shown."""
    Path("typed.py").write_text(TYPED, "utf-8")
    made = process("run", "typed.py", "--json")
    assert made.code == 0, made.err
    shown = process("show", made.json["run_id"], "--json")
    assert shown.code == 0, shown.err
    assert shown.json["values"] == made.json["values"] == {"at": {"x": 1, "y": 2}, "seen": "2026-01-02T00:00:00+00:00"}
    head = process("checkpoints", made.json["run_id"], "--json").json["checkpoints"][-1]
    assert head["values"]["at"] == {"x": 1, "y": 2}
    assert process("state", made.json["run_id"]).code == 0


def test_effects_outbox_and_leases(holdfast: Type) -> None:
    """Each under its own name, with a cursor, all keys always present."""
    Path("typed.py").write_text(TYPED, "utf-8")
    run_id = holdfast("run", "typed.py", "--json").json["run_id"]
    (effect,) = holdfast("effects", run_id, "--json").json["effects"]
    assert (effect["capability"], effect["status"], effect["result"]) == ("act", "recorded", 7)
    assert {"effect_id", "key", "request_hash", "response_hash", "attempted_at", "settled_at", "replay_policy", "fence"} <= set(effect)
    assert paged(holdfast, "effects", run_id, by="effect_id") == [effect["effect_id"]]
    (intent,) = holdfast("outbox", "--json").json["intents"]
    assert (intent["type"], intent["payload"], intent["run_id"]) == ("webhook", {"to": "you"}, run_id)
    assert holdfast("leases", "--json").json == {"leases": [], "next_cursor": None}
    assert "act" in holdfast("effects", run_id).out and "webhook" in holdfast("outbox").out and "no process" in holdfast("leases").out
    assert "act" in holdfast("show", run_id).out


def test_replay_is_answered_from_the_records(holdfast: Type) -> None:
    """§7.6: a new run; recorded steps are served and not run again, and the approval is asked again."""
    run_id = begun(holdfast)
    holdfast("approve", run_id)
    assert holdfast("resume", run_id, "work.py").code == 0
    before = holdfast("events", run_id, "--json").out
    said = holdfast("replay", run_id, "work.py", "--json")
    assert said.code == 4
    assert (said.json["source_run_id"], said.json["waits"][0]["prompt"]) == (run_id, "Go on?")
    assert calls() == ["first", "last"]
    assert holdfast("events", run_id, "--json").out == before
    assert holdfast("replay", run_id).err.startswith("skill_unknown: ")


def test_fork_goes_its_own_way(holdfast: Type) -> None:
    """§7.7: from a checkpoint, with another value; linked to its source."""
    run_id = begun(holdfast)
    start = holdfast("checkpoints", run_id, "--json").json["checkpoints"][0]["checkpoint_id"].rpartition(".")[2]
    said = holdfast("fork", run_id, "work.py", "--from", start, "--set", 'name="quick"', "--option", "priority=3", "--reason", "in a hurry", "--json")
    assert said.code == 0, said.err
    assert (said.json["source_run_id"], said.json["priority"], said.json["values"]["name"]) == (run_id, 3, "quick")
    assert holdfast("show", run_id, "--json").json["status"] == "waiting_for_human"


def test_an_output_that_lacks_the_signs_is_no_error(process: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    said = process("run", "work.py", "--input", '{"name": "quick"}')
    assert said.code == 0
    assert process("graph", "work.py").code == 0


def every_command(group: click.Group = cli, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """The commands by their full names, those of groups within too."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            if command.invoke_without_command and command.params:
                yield path + name, command
            yield from every_command(command, f"{path}{name} ")
        else:
            yield path + name, command


def test_the_page_of_commands_names_options_that_exist() -> None:
    """docs/cli.md: what stands in a command's section is an option of it, or of every command."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text("utf-8")
    told, commands = 0, dict(every_command())
    for part in page.split("\n### ")[1:]:
        name = re.match(r"`holdfast ([a-z][a-z -]*[a-z])", part)[1]  # type: ignore[index]
        known = {option for p in commands[name].params for option in p.opts}
        for option in re.findall(r"--[a-z][a-z-]+", part.split("\n## ")[0]):
            told += 1
            assert option in known, f"holdfast {name} has no {option}"
    assert told > 30


def test_the_help_tells_every_command_in_one_line(holdfast: Type) -> None:
    """``holdfast --help`` explains itself: all commands, under titles, none cut short."""
    said = holdfast("--help").out
    for name in cli.commands:
        assert re.search(rf"^  {name} +\S", said, re.M), name
    assert "..." not in said.partition("Begin:")[2]
    assert "Exit codes" in said


def test_the_lease_is_an_option_or_a_variable(holdfast: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--lease SECONDS``, also ``$HOLDFAST_LEASE``, for every command that drives."""
    drives = {name for name, command in cli.commands.items() if any("--lease" in p.opts for p in command.params)}
    assert {"demo", "run", "worker", "resume", "replay", "fork"} <= drives
    monkeypatch.setenv("HOLDFAST_LEASE", "5")
    assert holdfast("run", "work.py", "--input", '{"name": "quick"}').code == 0
    monkeypatch.setenv("HOLDFAST_LEASE", "soon")
    assert holdfast("run", "work.py", "--input", '{"name": "quick"}').code == 2


def test_every_command_takes_a_store_and_explains_itself() -> None:
    """Every command takes ``--store URL`` (or ``--workspace DIR``), and says in its help what it does."""
    for name, command in every_command():
        options = {option for p in command.params for option in p.opts}
        assert {"--store", "--workspace", "--debug"} <= options, name
        assert "--json" in options or name in ("worker", "serve", "mcp"), name
        assert command.help and command.get_short_help_str(200).endswith("."), name
        assert all(p.help for p in command.params if isinstance(p, click.Option)), name


def test_a_problem_is_named_in_check_and_on_the_page(holdfast: Type) -> None:
    """§12.1: a row that is not the fold of its events; check ends with 1 and repairs nothing."""
    run_id = begun(holdfast, "quick")
    with apsw.Connection(".holdfast/runs.db") as db:
        db.execute("UPDATE run SET status = 'failed'")
    found = holdfast("check", "--json")
    assert (found.code, found.json["ok"]) == (1, False)
    codes = {p["code"] for p in found.json["problems"]}
    assert codes & {"snapshot_status_drift", "terminal_snapshot_without_event", "snapshot_field_drift"}, codes
    assert next(iter(codes)) in holdfast("show", run_id).out
    assert holdfast("check").code == 1


def test_repair_state_says_what_it_would_do_and_then_does_it(holdfast: Type) -> None:
    """§12.3, §12.4: a dry run writes nothing; applied twice, the second time there is nothing to do; exit code 0 each time."""
    run_id = begun(holdfast)
    with apsw.Connection(".holdfast/runs.db") as db:
        db.execute("UPDATE run SET status = 'waiting_for_signal'")
    dry = holdfast("repair-state", run_id, "--json")
    keys = {"run_id", "dry_run", "applied", "needs_operator_decision", "refused", "reason", "problems", "actions", "backup", "status_before", "status_after"}
    assert (dry.code, set(dry.json)) == (0, keys)
    assert (dry.json["dry_run"], dry.json["applied"], len(dry.json["actions"])) == (True, False, 1)
    assert holdfast("check", run_id).code == 1
    assert holdfast("repair-state", run_id, "--apply").code == 0
    assert holdfast("check", run_id).code == 0
    again = holdfast("repair-state", run_id, "--apply", "--json").json
    assert (again["applied"], again["reason"]) == (False, "nothing to repair")


def test_backup_and_restore(holdfast: Type) -> None:
    """A copy of the store comes back, under a new incarnation; what was there meanwhile is gone."""
    run_id = begun(holdfast)
    assert holdfast("backup", "copy.db", "--json").json["file"] == "copy.db"
    assert holdfast("backup", "copy.db").code == 2, "a backup overwrites nothing"
    later = begun(holdfast)
    assert holdfast("restore", "copy.db", "--json").json == {"file": "copy.db", "runs": 1}
    assert holdfast("show", run_id).code == 0 and holdfast("show", later).code == 3
    holdfast("approve", run_id)
    assert holdfast("resume", run_id, "work.py").code == 0


def test_an_old_copy_put_back_is_named_until_it_is_acknowledged(holdfast: Type) -> None:
    """X-01: readable, named by every write and by check, until an operator says so."""
    run_id = begun(holdfast)
    assert holdfast("backup", "copy.db").code == 0
    begun(holdfast)
    for name in ("runs.db-wal", "runs.db-shm"):
        Path(".holdfast", name).unlink(missing_ok=True)
    Path("copy.db").replace(".holdfast/runs.db")
    said = holdfast("approve", run_id)
    assert (said.code, said.err.split(":")[0]) == (1, "log_rolled_back")
    assert "doctor --acknowledge" in said.err
    assert holdfast("doctor").code == 1
    done = holdfast("doctor", "--acknowledge", "--json")
    assert (done.code, set(done.json)) == (0, {"ok", "runs", "acknowledged", "repairs", "problems", "due_without_worker", "to_do"})
    assert holdfast("approve", run_id).code == 0


def test_resuming_what_waits_for_a_timer_lists_the_wait(holdfast: Type) -> None:
    """§7.1: nothing eligible: no event, the answer lists the open waits, exit code 4."""
    Path("nap.py").write_text(
        "from holdfast import Context, Graph, State\nclass S(State):\n    n: int = 0\ngraph = Graph('nap', S)\n"
        "@graph.node(start=True)\nasync def nap(state, ctx: Context):\n    await ctx.sleep(3600)\n",
        "utf-8",
    )
    run_id = holdfast("submit", "nap.py", "--json").json["run_id"]
    assert holdfast("worker", "nap.py", "--until-idle").code == 0
    before = holdfast("show", run_id, "--json").json
    said = holdfast("resume", run_id, "nap.py", "--json")
    assert (said.code, said.err.split(":")[0]) == (4, "nothing_eligible")
    assert [w["kind"] for w in said.json["waits"]] == ["timer"]
    assert said.json["version"] == before["version"]


def test_a_run_behind_a_waiting_one_is_given_back_queued(holdfast: Type) -> None:
    """§5.13: nothing hangs; it is not done, so the exit code is not 0, and it names what it waits for."""
    first = holdfast("run", "work.py", "--input", '{"name": "Ada"}', "--thread", "t", "--json").json["run_id"]
    said = holdfast("run", "work.py", "--input", '{"name": "quick"}', "--thread", "t", "--json")
    assert (said.code, said.json["status"], said.json["condition"], said.json["blocked_by"]) == (4, "pending", "queued", first)
    assert f"after {first}" in holdfast("runs").out
    holdfast("approve", first)
    assert holdfast("worker", "work.py", "--until-idle").code == 0
    assert [r["status"] for r in holdfast("runs", "--json").json["runs"]] == ["completed", "completed"]


def test_a_workspace_is_a_store(holdfast: Type) -> None:
    """``--workspace DIR`` in the place of ``--store URL``: looking makes no folder, driving one with a directory per run."""
    assert holdfast("runs", "--workspace", "w", "--json").json["runs"] == []
    made = holdfast("run", "work.py", "--input", '{"name": "Ada"}', "--workspace", "w", "--json")
    run_id = made.json["run_id"]
    assert made.code == 4 and Path("w", run_id).is_dir()
    assert holdfast("approve", run_id, "--workspace", "w").code == 0
    assert holdfast("resume", run_id, "work.py", "--store", "workspace:w").code == 0
    assert holdfast("check", "--workspace", "w").code == 0
    states = {n["name"]: n["state"] for n in holdfast("graph", run_id, "work.py", "--workspace", "w", "--json").json["nodes"]}
    assert set(states.values()) == {"done"}
    assert holdfast("migrate", "--workspace", "w").code == 0
    assert "copy its folder" in holdfast("backup", "x", "--workspace", "w").err


TRIP = """
from holdfast import Context, flow


def book(what: str) -> str:
    return f"receipt {what}"


def cancel(receipt: str) -> None:
    if "hotel" in receipt:
        raise ConnectionError("the hotel does not answer")
    with open("calls.txt", "a") as file:
        file.write(receipt.replace(" ", "-") + "\\n")


@flow("trip")
async def trip(ctx: Context) -> None:
    await ctx.effect(book, "flight", undo=cancel)
    await ctx.effect(book, "hotel", undo=cancel)
    await ctx.approve("Go?")
"""


def test_a_cancel_is_carried_out_by_whoever_has_the_code(holdfast: Type, process: Type) -> None:
    """§6.11: ``cancel`` needs no code and says who will take back; ``effects`` and ``show`` say what was, and what was not."""
    Path("trip.py").write_text(TRIP, "utf-8")
    run_id = process("run", "trip.py", "--json").json["run_id"]
    asked = process("cancel", run_id, "--json").json
    assert (asked["accepted"], asked["status"], asked["condition"], asked["waits"]) == (True, "running", "queued", [])
    assert f"resume {run_id}" in process("show", run_id).out
    said = process("resume", run_id, "trip.py", "--json")
    assert (said.code, said.json["status"], calls()) == (5, "canceled", ["receipt-flight"])
    for words in (["effects", run_id], ["show", run_id]):
        out = holdfast(*words).out
        assert "recorded, undone" in out and "recorded, not undone" in out and "cancel, undoes book" in out, out
    flight, hotel, *undos = holdfast("effects", run_id, "--json").json["effects"]
    assert (flight["args"], flight["undone"], hotel["undone"]) == (["flight"], undos[1]["effect_id"], "")
    assert [(u["status"], u["source_effect_id"]) for u in undos] == [("failed", hotel["effect_id"]), ("recorded", flight["effect_id"])]


def test_an_undo_without_an_outcome_is_told_as_that(holdfast: Type, process: Type) -> None:
    """§6.5: neither "undone" nor "not undone", after the run was canceled over the question."""
    Path("trip.py").write_text(TRIP.replace('raise ConnectionError("the hotel does not answer")', "__import__('os')._exit(9)"), "utf-8")
    run_id = process("run", "trip.py", "--json").json["run_id"]
    process("cancel", run_id)
    assert process("resume", run_id, "trip.py").code == 9
    assert process("resume", run_id, "trip.py", "--json").json["waits"][0]["kind"] == "effect"
    process("cancel", run_id)
    for words in (["effects", run_id], ["show", run_id]):
        assert "recorded, undo unknown" in holdfast(*words).out
    assert holdfast("resume", run_id, "trip.py", "--json").code == 4, "in one step: what was taken back is done again"


LEGS = """
from holdfast import Context, Graph, State


class Trip(State):
    who: str


legs = Graph("legs", Trip)


def book(what: str) -> str:
    return what


def cancel(receipt: str) -> None:
    pass


@legs.node(start=True)
async def hotel(state: Trip, ctx: Context) -> None:
    await ctx.effect(book, "hotel", undo=cancel)


@legs.node(after="hotel")
async def car(state: Trip, ctx: Context) -> None:
    raise LookupError("no car")
"""


def test_the_way_on_after_earlier_steps_were_undone_is_a_fork(holdfast: Type) -> None:
    """§6.11, §7.3: the page offers what will be accepted, and the refusal of a resume names it too."""
    Path("legs.py").write_text(LEGS, "utf-8")
    ended = holdfast("run", "legs.py", "--input", '{"who": "Ada"}')
    [run_id] = set(re.findall(r"[0-9a-z]{26}", ended.out))
    pages = [ended.out, holdfast("show", run_id).out, holdfast("explain", run_id).out]
    assert all(f"fork {run_id} legs.py:legs\n" in page and f"resume {run_id}" not in page for page in pages)
    refused = holdfast("resume", run_id, "legs.py")
    assert (refused.code, refused.err.split(":")[0]) == (6, "effects_undone"), "nobody is sent to acknowledge it first"
    refused = holdfast("resume", run_id, "legs.py", "--acknowledge", "step_failed")
    assert (refused.code, refused.err.split(":")[0]) == (6, "effects_undone") and f"fork {run_id}" in refused.err


KILLED = """
import os
import signal

from holdfast import Context, flow


def book(what: str) -> str:
    return f"receipt {what}"


def cancel(receipt: str) -> None:
    with open("calls.txt", "a") as file:
        file.write(receipt.replace(" ", "-") + "\\n")
    if "hotel" in receipt:
        os.kill(os.getpid(), signal.SIGKILL)


@flow("trip")
async def trip(ctx: Context) -> None:
    await ctx.effect(book, "flight", undo=cancel)
    await ctx.effect(book, "hotel", undo=cancel)
    raise RuntimeError("sold out")
"""


def test_a_process_killed_in_an_undo(process: Type) -> None:
    """§6.11, T-39: kill -9 between its attempt and its result. Another process asks about that one, does the rest, repeats nothing."""
    Path("trip.py").write_text(KILLED, "utf-8")
    assert process("run", "trip.py", "--json").code == -9
    run_id = process("runs", "--json").json["runs"][0]["run_id"]
    said = process("resume", run_id, "trip.py", "--json")
    assert (said.code, said.json["status"], calls()) == (4, "waiting_for_human", ["receipt-hotel"])
    [wait] = said.json["waits"]
    assert wait["kind"] == "effect" and wait["show"]["effect"] == "cancel" and wait["key"].endswith(":undo")
    assert process("decide", run_id, "--action", "record_result", "--payload", "null").code == 0
    said = process("resume", run_id, "trip.py", "--json")
    assert (said.code, said.json["error"]["message"], calls()) == (1, "sold out", ["receipt-hotel", "receipt-flight"])
    effects = process("effects", run_id, "--json").json["effects"]
    assert [bool(e["undone"]) for e in effects if e["undo"]] == [True, True]


def test_force_is_for_doing_an_effect_again(holdfast: Type) -> None:
    """§6.5: anywhere else it is a mistake, and says what it is for."""
    run_id = begun(holdfast)
    said = holdfast("decide", run_id, "--action", "approve", "--force")
    assert said.code == 2 and "reexecute" in said.err and "may happen twice" in said.err
    assert holdfast("show", run_id, "--json").json["status"] == "waiting_for_human"


def test_a_fork_at_a_time(holdfast: Type) -> None:
    """§7.7: an option by name; what is no time is said so."""
    run_id = holdfast("run", "work.py", "--input", '{"name": "quick"}', "--json").json["run_id"]
    made = holdfast("fork", run_id, "work.py", "--option", "at=2999-01-01T00:00:00+00:00", "--option", "tags=[\"late\"]", "--json").json
    assert (made["status"], made["not_before"], made["tags"]) == ("pending", "2999-01-01T00:00:00.000000Z", ["late"])
    assert holdfast("fork", run_id, "work.py", "--option", "at=soon").code == 2


def test_decide_all_decides_about_what_where_names(holdfast: Type) -> None:
    """``--dry-run`` decides nothing; exit code 0 if all were taken, 6 if one was refused; wrong words are refused by name."""
    runs = [begun(holdfast) for _ in range(2)]
    dry = holdfast("decide", "--all", "--where", "skill=work,step=ask", "--action", "approve", "--dry-run", "--json")
    assert dry.code == 0 and dry.json["dry_run"] is True
    assert [d["run_id"] for d in dry.json["decided"]] == runs
    assert holdfast("decide", "--all", "--where", "skill=work", "--action", "continue", "--json").code == 6
    assert len(holdfast("waits", "--json").json["waits"]) == 2
    said = holdfast("decide", "--all", "--where", "skill=work", "--where", "step=ask", "--action", "approve", "--actor", "ada")
    assert said.code == 0 and "2 decided, 0 refused" in said.out
    assert holdfast("show", runs[0], "--json").json["decisions"][0]["actor"] == "ada"
    for words, word in (
        (["--all", "--action", "approve"], "where"),
        (["--all", "--where", "skil=work", "--action", "approve"], "skil"),
        (["--all", "--where", "work", "--action", "approve"], "K=V"),
        (["--all", "--where", "skill=a,skill=b", "--action", "approve"], "repeats a key"),
        (["--all", runs[0], "--where", "skill=a", "--action", "approve"], "RUN"),
        (["--where", "skill=a", "--action", "approve"], "RUN"),
        ([runs[0], "--dry-run", "--action", "approve"], "--dry-run"),
    ):
        said = holdfast("decide", *words)
        assert said.code == 2 and word in said.err, words
