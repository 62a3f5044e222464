"""``queues`` and ``limits``: what is in force, what stands in the way, and who changed it (§10.11)."""

from tests.cli.conftest import Type

QUEUE = {"queue", "depth", "oldest_at", "in_flight", "paused", "blocked"}
LIMIT = {"name", "in_flight", "per_second", "burst", "stored", "in_use", "changes"}


def test_a_queue_is_paused_and_goes_on(holdfast: Type) -> None:
    """A paused queue gives nothing to workers, and says so; every change names its actor."""
    assert holdfast("queues", "--json").json["queues"] == []
    holdfast("submit", "work.py", "--input", '{"name": "quick"}')
    assert holdfast("queues", "pause", "default", "--actor", "ada", "--reason", "upgrade").code == 0
    holdfast("worker", "work.py", "--until-idle")
    (queue,) = holdfast("queues", "--json").json["queues"]
    assert queue.keys() == QUEUE and (queue["depth"], queue["paused"], queue["blocked"]) == (1, True, {"paused": 1})
    assert "paused: 1" in holdfast("queues").out
    assert holdfast("queues", "unpause", "default", "--actor", "bob", "--json").json["paused"] is False
    holdfast("worker", "work.py", "--until-idle")
    assert holdfast("queues", "--json").json["queues"] == []
    (kept,) = holdfast("limits", "--json").json["limits"]
    assert [(c["actor"], c["action"], c["reason"]) for c in kept["changes"]] == [("ada", "paused", "upgrade"), ("bob", "unpaused", "")]


def test_a_limit_is_set_and_unset(holdfast: Type) -> None:
    said = holdfast("limits", "set", "model", "--in-flight", "5", "--per-second", "50", "--burst", "10", "--actor", "ada")
    assert said.code == 0 and "5 in flight, 50 per second" in said.out
    (limit,) = holdfast("limits", "--json").json["limits"]
    assert limit.keys() == LIMIT and (limit["in_flight"], limit["per_second"], limit["burst"], limit["stored"], limit["in_use"]) == (5, 50, 10, True, 0)
    assert "stored" in holdfast("limits").out
    assert holdfast("limits", "unset", "model", "--actor", "bob").code == 0
    for wrong in (["set", "model"], ["set", "lane:x", "--in-flight", "1"], ["set", "model", "--burst", "3"], ["set", "model", "--per-second", "-1"]):
        assert holdfast("limits", *wrong, "--actor", "ada").code == 2
