"""What the outside is shown: shapes are API (§2.10, §3.1, §13.1)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core import describe
from holdfast.core import events as ev
from holdfast.core import schedules as sch
from holdfast.core.channels import append, last
from holdfast.core.commit import LedgerRow
from holdfast.core.consistency import problem
from holdfast.core.describe import plain
from holdfast.core.effects import Effect, EffectClass
from holdfast.core.errors import ErrorValue, Frame
from holdfast.core.intents import Delivery, Ended, Intent, Ruling
from holdfast.core.lease import Alive, Lease
from holdfast.core.masks import HIDDEN, mask
from holdfast.core.offers import Offer, Shape
from holdfast.core.run import Run
from holdfast.core.schedules import Schedule
from holdfast.core.status import Status
from holdfast.core.waits import Decision, Wait, WaitKind
from tests.core.build import RUN, World, decided, folded, node, program, raw, submitted, wait

NOW = 100_000_000
HELD = Lease(fence=(7 << 32) + 3, owner="w", expires_at=NOW + 1, owner_alive=Alive.YES)
FREE = Lease(fence=1)
BOOM = ErrorValue("ValueError", "boom", where="a")


def record(run: Run, lease: Lease | None, now: int) -> dict[str, Any]:
    return plain(describe.run(run, lease, now))


def at(status: Status, **more: Any) -> Run:
    return msgspec.structs.replace(folded(), status=status, **more)


def test_the_legacy_view() -> None:
    """§2.10: canceled shows as failed there, and only there."""
    assert plain(describe.legacy(describe.run(at(Status.COMPLETED, result=raw([1])), None, NOW))) == {"status": "completed", "result": [1], "error": None}
    assert plain(describe.legacy(describe.run(at(Status.COMPLETED), None, NOW))) == {"status": "completed", "result": None, "error": None}
    assert plain(describe.legacy(describe.run(at(Status.FAILED, error=BOOM), None, NOW))) == {"status": "failed", "result": None, "error": "boom"}
    assert plain(describe.legacy(describe.run(at(Status.CANCELED, stop_reason="denied"), None, NOW))) == {"status": "failed", "result": None, "error": "denied"}
    for status in (Status.PENDING, Status.RUNNING, Status.WAITING_FOR_HUMAN, Status.WAITING_FOR_SIGNAL, Status.REPLAYING):
        assert plain(describe.legacy(describe.run(at(status), None, NOW))) == {"status": "running", "result": None, "error": None}


SPEC = ["run_id", "thread_id", "skill_id", "skill_version", "queue", "not_before", "blocked_by", "wake_at", "status", "condition", "created_at", "started_at", "finished_at", "current_step_id", "checkpoint_head", "resume_from_checkpoint_id", "trace_id", "tenant_id", "environment", "versions", "policy_snapshot_id", "session_key", "lane", "priority", "job_id", "source_run_id", "source_checkpoint_id", "lineage_root", "parent_run_id", "stop_reason", "settled", "result", "error", "tags", "waits", "active_handoff", "cancel_requested_at", "version"]
BESIDE = ["condition_class", "decisions", "fingerprint", "target", "schedule_id", "scheduled_at", "origin", "blocked_why", "no_worker_for", "lease", "values"]


def test_the_record_has_every_field_of_the_specification() -> None:
    """§3.1: all keys, always."""
    shown = record(folded(), None, NOW)
    assert set(shown) == {*SPEC, *BESIDE}
    assert set(shown["versions"]) == {"capabilities", "bindings", "registry_ref"}
    msgspec.json.encode(shown)


def test_a_record_in_full() -> None:
    """§3.1: times in ISO-8601, encoded values decoded, the lease beside it (§13.3)."""
    run = folded(ev.RunStarted(), ev.WaitRequested(wait(deadline=7_000_000)), ev.WaitDecided(decided("answer", "w0", payload=raw({"x": b"\xff"}))))
    run = msgspec.structs.replace(run, result=raw({"a": (1, 2)}), error=BOOM, tags=("x",), decisions=(decided("answer", "w0", payload=raw({"x": b"\xff"})),), schedule_id="nightly", slot=5_000_000)
    shown = record(run, HELD, NOW)
    assert shown["created_at"] == "1970-01-01T00:00:01.000000Z"
    assert shown["wake_at"] == "1970-01-01T00:00:07.000000Z"
    assert shown["finished_at"] is None
    assert (shown["schedule_id"], shown["scheduled_at"]) == ("nightly", "1970-01-01T00:00:05.000000Z")
    assert (shown["status"], shown["condition"], shown["condition_class"]) == ("running", "running", "live")
    assert shown["result"] == {"a": [1, 2]}
    assert shown["error"] == {"type": "ValueError", "message": "boom", "code": "step_failed", "hint": "", "where": "a", "frames": []}
    assert shown["decisions"][0]["payload"] == {"x": "ff"}
    assert shown["lease"] == {"owner": "w", "expires_at": "1970-01-01T00:01:40.000001Z", "owner_alive": "true", "fence": 3}
    assert shown["waits"][0]["deadline"] == "1970-01-01T00:00:07.000000Z"
    assert record(run, None, NOW)["lease"] == {"owner": None, "expires_at": None, "owner_alive": "unknown", "fence": 0}
    msgspec.json.encode(shown)


def test_a_wait_shows_its_fields_and_its_effect() -> None:
    """§5.2; and of kind effect: key, arguments' digest and times."""
    asked = wait(WaitKind.EFFECT, show=raw({"q": 1}), schema=raw({"type": "object"}), default=raw(None), effect_id="e")
    bare = plain(describe.wait(asked))
    assert set(Wait.__struct_fields__) <= set(bare)
    assert (bare["show"], bare["schema"], bare["default"], bare["kind"], bare["key"]) == ({"q": 1}, {"type": "object"}, None, "effect", None)
    effect = Effect(
        effect_id="e", run_id=RUN, lineage_root=RUN, step=1, task="a", path="", attempt=1, capability="c", effect_class=EffectClass.WRITE,
        key="k", request_hash="d", attempted_at=1,
    )
    full = plain(describe.wait(asked, effect))
    assert set(full) == set(bare)
    assert (full["key"], full["request_hash"], full["attempted_at"], full["settled_at"]) == ("k", "d", "1970-01-01T00:00:00.000001Z", None)


def test_a_decision_shows_every_field() -> None:
    assert set(plain(describe.decision(decided("approve")))) >= set(Decision.__struct_fields__) - {"asked"}


def test_damage_in_one_value_does_not_hide_the_record() -> None:
    """L-18."""
    shown = record(at(Status.COMPLETED, result=b"\xc1", created_at=2**70), FREE, NOW)
    assert "unreadable" in shown["result"]
    assert shown["created_at"] == f"{2**70}us"


def test_an_envelope() -> None:
    """§13.1, with the stable ids that a fact implies (§13.3)."""
    run = folded()
    event = ev.Event(5, 1_000_001, ev.StepCompleted(2, "b~1", hash=b"\x01\x02", attempt=3), actor="ada", fence=(9 << 32) + 4)
    assert plain(describe.event(run, event)) == {
        "event_id": f"{RUN}.e5", "event_version": 1, "event_type": "step.completed", "occurred_at": "1970-01-01T00:00:01.000001Z",
        "run_id": RUN, "seq": 5, "fence": 4, "trace_id": None, "tenant_id": "default", "actor": "ada",
        "payload": {
            "step": 2, "task": "b~1", "outcome": "ok", "hash": "0102", "attempt": 3, "path": "", "step_id": f"{RUN}.2.b~1",
            "attempt_id": f"{RUN}.2.b~1@3", "checkpoint_id": f"{RUN}.c5",
        },
    }


@pytest.mark.parametrize(
    ("fact", "expected"),
    [
        (ev.StepStarted(1, "a"), {"step": 1, "task": "a", "step_id": f"{RUN}.1.a"}),
        (ev.StepCompleted(1, "a"), {"hash": "", "checkpoint_id": None}),
        (ev.CheckpointSaved(b"\x01"), {"hash": "01", "checkpoint_id": f"{RUN}.c1", "source": "loop"}),
        (ev.SignalReceived("go", "k", raw({"x": b"\xff"})), {"name": "go", "key": "k", "payload": {"x": "ff"}}),
        (ev.RunFailed("x", BOOM), {"stop_reason": "x", "error": {"type": "ValueError", "message": "boom", "code": "step_failed", "hint": "", "where": "a", "frames": []}}),
        (ev.StepRetryScheduled(1, "a", 2, 3, BOOM), {"due": "1970-01-01T00:00:00.000003Z", "attempt_id": f"{RUN}.1.a@2"}),
        (ev.CapabilitySelected("a", "search"), {"task": "a", "capability": "search"}),
        (ev.RunPatched(tags=("a",)), {"tags": ["a"], "priority": None, "trace_id": None}),
        (ev.Unknown(99, [1, b"\x01"]), {"tag": 99, "fields": [1, "01"]}),
        (ev.RunCompleted(), {"result": None}),
        (submitted(not_before=1), {"not_before": "1970-01-01T00:00:00.000001Z", "input": {}}),
    ],
)
def test_payloads(fact: ev.Fact, expected: dict[str, Any]) -> None:
    """§13.1: the fact's fields, decoded; bytes as hexadecimal."""
    shown = describe.payload(RUN, ev.Event(1, 0, fact))
    assert {k: shown[k] for k in expected} == expected
    msgspec.json.encode(shown)


def test_waits_and_decisions_inside_events_are_views() -> None:
    shown = describe.payload(RUN, ev.Event(1, 0, ev.WaitRequested(wait(show=raw(1)))))
    assert shown["wait"] == plain(describe.wait(wait(show=raw(1))))
    assert describe.payload(RUN, ev.Event(1, 0, ev.WaitDecided(decided("deny"))))["decision"] == plain(describe.decision(decided("deny")))


def test_ids_are_implied_only_where_all_they_are_made_of_is_there() -> None:
    """§13.3: a task without its step names no turn of it."""
    assert set(describe.payload(RUN, ev.Event(1, 0, ev.CapabilitySelected("a", "search")))) == {"task", "capability"}


def test_an_effect_an_intent_and_a_ledger_row_show_every_field_of_their_records() -> None:
    """§6.4, §9: what is stored is shown, whoever adds to it."""
    effect = Effect(
        effect_id="e", run_id=RUN, lineage_root=RUN, step=1, task="a", path="", attempt=1, capability="c", effect_class=EffectClass.WRITE,
        key="k", result=raw({"a": b"\x01"}), error=BOOM, attempted_at=1,
    )
    shown = plain(describe.effect(effect))
    assert set(shown) == set(Effect.__struct_fields__)
    assert (shown["effect_class"], shown["status"], shown["result"], shown["error"]["message"], shown["settled_at"]) == ("write", "attempted", {"a": "01"}, "boom", None)
    tried = Delivery(1, "w", 1, 2, Ended.FAILED, ErrorValue("E", "no", frames=(Frame("f.py", 3, "go", "go()"),)))
    open_ = Intent(
        intent_id="i", run_id=RUN, type="webhook", payload=raw([1]), key="k", due=5, tries=(tried, Delivery(2, "w", 3)), rulings=(Ruling(4, "ada", "why", "redrive", 1),)
    )
    intent = plain(describe.intent(open_, no_transport=True))
    assert (intent["payload"], intent["due"], intent["no_transport_for"], intent["order"]) == ([1], "1970-01-01T00:00:00.000005Z", "webhook", "")
    assert [(a["outcome"], a["error"] and a["error"]["frames"][0]["line"]) for a in intent["attempts"]] == [("failed", 3), (None, None)]
    assert intent["rulings"][0]["actor"] == "ada"
    dropped = plain(describe.intent(msgspec.structs.replace(open_, payload=b"")))
    assert (dropped["payload"], dropped["no_transport_for"]) == (None, None)
    row = plain(describe.ledger(LedgerRow(RUN, "t", "k", raw(1), 7, "s", 3)))
    assert row == {"number": 3, "run_id": RUN, "step_id": "s", "topic": "t", "key": "k", "data": 1, "created_at": "1970-01-01T00:00:00.000007Z"}


def test_a_run_with_its_values_shows_them_and_a_graphs_result() -> None:
    shown = plain(describe.run(at(Status.COMPLETED), FREE, NOW, channels={"a": 1}))
    assert (shown["values"], shown["result"]) == ({"a": 1}, {"a": 1})
    assert plain(describe.run(at(Status.RUNNING), FREE, NOW, channels={"a": 1}))["result"] is None


def test_what_is_masked_stays_a_typed_value() -> None:
    """§13.5: once, and in every field."""
    hidden = mask(["word"], [{"word": "hunter2!"}])
    seen = describe.hide(describe.run(at(Status.COMPLETED, tags=("hunter2!",)), FREE, NOW, channels={"word": "hunter2!", "b": ["say hunter2!"]}), hidden)
    assert isinstance(seen, describe.RunView)
    assert (seen.values, seen.tags) == ({"word": HIDDEN, "b": [f"say {HIDDEN}"]}, [HIDDEN])
    assert describe.hide(seen, mask([], [])) is seen


def test_what_cannot_be_shown_says_so() -> None:
    assert set(describe.value(object())) == {"unreadable"}
    assert describe.values({"a": (1, 2)}) == {"a": [1, 2]}


def test_a_checkpoint_and_what_changed_between_two() -> None:
    """§4.5 and ``diff``: what was added, removed and changed, each under its channel."""
    world = World(
        program(node("a", start=True), node("b", after=["a"]), channels={"said": append, "draft": last, "gone": last}), {"gone": 1},
        a=lambda s: {"said": ["x"], "draft": "one"}, b=lambda s: {"said": ["y"], "draft": "two"},
    ).drive()
    views = [describe.checkpoint(cp, kept) for cp, kept in zip(world.live, world.durable, strict=True)]
    first, *_, head = [plain(v) for v in views]
    assert head["values"] == {"said": ["x", "y"], "draft": "two", "gone": 1} and head["metadata"]["source"] == "loop" and head["hash"] == world.head.hash.hex()
    assert first["pending_tasks"] == ["a"] and head["pending_tasks"] == []
    changed = plain(describe.diff(views[0], views[-1]))
    assert changed["added"] == {"draft": "two"} and changed["changed"]["said"]["to"] == ["x", "y"] and (changed["a"], changed["b"]) == (first["checkpoint_id"], head["checkpoint_id"])
    assert plain(describe.diff(views[-1], views[0]))["removed"] == {"draft": "two"}


def test_a_skill_and_where_a_run_stands_in_it() -> None:
    world = World(program(node("late", after=["a"]), node("a", start=True), node("loop", after=["loop"]), channels={"said": append}), {}, a=lambda s: {"said": ["x"]})
    at_start = plain(describe.skill(world.program, world.head))
    assert [n["name"] for n in at_start["nodes"]] == ["a", "late", "loop"], "in the order in which they can first run"
    assert {n["name"]: n["state"] for n in at_start["nodes"]} == {"a": "next", "late": "", "loop": ""}
    assert at_start["edges"] == [["@start", "a"], ["a", "late"], ["loop", "loop"]] and at_start["channels"][0]["name"] == "said"
    assert {n["state"] for n in plain(describe.skill(world.program))["nodes"]} == {""}
    world.drive(1)
    assert {n["name"]: n["state"] for n in plain(describe.skill(world.program, world.head))["nodes"]} == {"a": "done", "late": "next", "loop": ""}


def test_a_schedule_and_problems() -> None:
    schedule = Schedule(schedule_id="s", skill_id="notes", input=raw({"a": 1}), created_at=1, every_us=60_000_000, due=5, changes=(sch.Change(1, "ada", "created"),))
    shown = plain(describe.schedule(schedule, NOW, next_local="soon"))
    assert (shown["every_seconds"], shown["cron"], shown["inputs"], shown["overdue"], shown["next_at_local"]) == (60.0, None, {"a": 1}, True, "soon")
    assert shown["changes"] == [{"at": "1970-01-01T00:00:00.000001Z", "actor": "ada", "via": None, "what": "created"}]
    found = problem("event_seq_gap", "2 is missing", "restore a backup", "r")
    detail = plain(describe.detail(describe.run(folded(), None, NOW), [found], deduplicated=True))
    assert detail["deduplicated"] is True and detail["problems"] == [
        {"code": "event_seq_gap", "severity": "error", "message": "2 is missing", "repair_hint": "restore a backup", "run_id": "r"}
    ]


NOTES, MAIL = Shape("notes", "1", "f"), Shape("mail", "2", "g", workspace="0123456789abcdef")


@pytest.mark.parametrize(
    ("offer", "served"),
    [
        (None, []), (Offer((), ()), []), (Offer((), (NOTES,), works=False), []), (Offer(("default",), (NOTES, MAIL)), [NOTES, MAIL]),
        (Offer((), (MAIL, NOTES, MAIL), upgrade=True), [MAIL, NOTES]),
    ],
)
def test_a_worker_shows_each_skill_that_it_serves_once(offer: Offer | None, served: list[Shape]) -> None:
    shown = describe.list_served(offer)
    assert [(s.skill_id, s.version, s.fingerprint, s.workspace) for s in shown] == [(s.skill_id, s.version, s.fingerprint, s.workspace) for s in served]
