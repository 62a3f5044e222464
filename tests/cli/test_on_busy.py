"""A busy thread on the command line (§5.13)."""

from __future__ import annotations

from tests.cli.conftest import Type

MESSAGE = ("work.py", "--thread", "t", "--input", '{"name": "x"}', "--json")


def test_a_message_to_a_busy_thread(holdfast: Type) -> None:
    holder = holdfast("run", *MESSAGE)
    assert holder.code == 4
    queued = holdfast("run", *MESSAGE)
    assert queued.code == 4 and queued.json["condition"] == "queued" and queued.json["blocked_by"] == holder.json["run_id"]
    refused = holdfast("run", *MESSAGE, "--on-busy", "reject")
    assert refused.code == 6 and "lane_busy" in refused.err and holder.json["run_id"] in refused.err
    dropped = holdfast("run", *MESSAGE, "--on-busy", "ack")
    assert dropped.code == 5 and dropped.json["stop_reason"] == "lane_busy" and dropped.json["values"]["name"] == "x"
    newest = holdfast("submit", *MESSAGE, "--on-busy", "replace")
    assert newest.code == 0 and newest.json["blocked_by"] == holder.json["run_id"]
    assert holdfast("show", queued.json["run_id"], "--json").json["status"] == "canceled"
    assert holdfast("run", *MESSAGE, "--on-busy", "drop").code == 2
