"""Signals beyond those that a run's record holds, and whole checkpoints that are saved with one (§5.11, §4.5); and JSON from outside."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core import codec, decisions, describe
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.checkpoint import StepRecord, Tried
from holdfast.core.commit import SIGNAL_EXTRA_BYTES, Commit, Tip, whole_due
from holdfast.core.errors import ErrorValue, TooManySignals
from holdfast.core.jsons import json_of
from holdfast.core.progress import Progress
from holdfast.core.run import AT_HAND, Buffered, Later, Run, fold_all
from holdfast.core.waits import WaitKind
from tests.core.build import RUN, decided, folded, numbered, raw, wait
from tests.core.test_progress import begun, finished

BOOM = ErrorValue("ValueError", "boom")


def heard(run: Run, name: str, count: int, first: int = 0) -> Run:
    return fold_all(run, numbered([ev.SignalReceived(name, f"k{n}", raw(n)) for n in range(first, first + count)], run.version + 1))


def test_the_record_holds_the_oldest_of_each_name_and_counts_the_rest() -> None:
    run = heard(heard(folded(ev.RunStarted()), "go", AT_HAND + 3), "stop", 2)
    assert len(run.signals) == AT_HAND + 2 and run.unasked == AT_HAND + 5
    assert run.later == (Later("go", 3, 2 + AT_HAND),)
    assert not run.at_hand("go") and run.at_hand("stop") and run.at_hand("other")
    more = heard(heard(run, "stop", AT_HAND, 2), "go", 1, AT_HAND + 3)
    assert [(x.name, x.count) for x in more.later] == [("stop", 2), ("go", 4)]


def test_they_are_asked_for_in_their_order() -> None:
    """One of the record goes from it; one of the log moves the place from which the next is looked for; the last one forgets it."""
    run = heard(heard(folded(ev.RunStarted()), "go", AT_HAND + 2), "stop", AT_HAND + 1)
    one = fold_all(run, numbered([ev.WaitDecided(decided("signal", asked="signal:go", key="k0"))], run.version + 1))
    assert one.signals[0].key == "k1" and one.later == run.later
    assert not one.at_hand("go"), "what comes now comes after those in the log"
    first, second = 3 + AT_HAND, 4 + AT_HAND
    two = fold_all(one, numbered([ev.WaitDecided(decided("signal", asked="signal:go", key=f"k{AT_HAND}", came=first))], one.version + 1))
    assert {x.name: (x.count, x.after) for x in two.later}["go"] == (1, first)
    three = fold_all(two, numbered([ev.WaitDecided(decided("signal", asked="signal:go", key=f"k{AT_HAND + 1}", came=second))], two.version + 1))
    assert [x.name for x in three.later] == ["stop"]


def test_signals_of_too_many_names_are_refused() -> None:
    run = msgspec.structs.replace(folded(ev.RunStarted()), signals=tuple(Buffered(f"n{n}", "k", raw(n)) for n in range(decisions.MAX_AT_HAND)))
    with pytest.raises(TooManySignals, match="names"):
        decisions.decide(run, cmd.Signal("one-more", raw(0), "k", "ada"), 1)
    full = msgspec.structs.replace(run, later=(Later("n1", 5, 9),))
    assert len(decisions.decide(full, cmd.Signal("n1", raw(0), "k", "ada"), 1)) == 1, "the log has room"


def test_a_decision_by_a_signal_says_where_it_came() -> None:
    given = decisions.answer_by_signal(wait(WaitKind.SIGNAL, name="go"), "k", raw(1), "ada", 5, 77)
    assert (given.key, given.came) == ("k", 77)


def test_a_run_can_be_loaded_from_what_was_saved_with_a_signal() -> None:
    """All that is on record since the barrier is there again, but for the signals: where those are is told."""
    log, _ = begun()
    log.commit(ev.NoteAdded("two are done"), results=(finished("a", out=[1]), StepRecord("b", "0", "call", raw(1))))
    asked = wait(task="b", path="1", wait_id="w1")
    log.commit(ev.WaitRequested(asked), ev.StepRetryScheduled(1, "b", 1, 99, BOOM, "2"), ev.StepFailed(1, "b", BOOM, attempt=1), ev.AttemptTakenOver("o", 1), ev.RunHandedBack("o", cut=True))
    log.commit(ev.SignalReceived("n", "k1", raw(5)))
    log.commit(ev.SignalReceived("other", "k2", raw(6)))
    live = Progress(RUN).walk(log.rows)
    assert live.older is None and not live.leaves_out(["n"]) and live.takeovers == 1 and live.cuts == 1
    whole = codec.decode_whole(RUN, codec.encode_whole(live.whole(), live.hash))
    again = Progress(RUN, whole)
    for name in ("attempts", "asked", "questions", "failed", "takeovers", "late", "cuts", "results", "records", "waits", "seq", "hash"):
        assert getattr(again, name) == getattr(live, name), name
    assert again.news == [] and again.older == (live.seq - 1, live.seq) and again.busy
    assert again.leaves_out(["n"]) and again.leaves_out(["other", "x"]) and not again.leaves_out(["x"])
    again.catch_up(list(live.news))
    assert again.news == live.news and again.older is None
    kept = whole[0]
    assert kept.upto == live.seq > kept.seq and kept.unfinished is not None and kept.unfinished.names == ("n", "other")
    assert kept.unfinished.asked == (Tried("b", "1", 1),)
    log.commit(ev.SignalReceived("n", "k3", raw(7)))
    further = Progress(RUN, whole).walk(log.rows[-1:])
    assert ([f.key for f in further.news] == ["k3"] and further.older == again.older) or further.older is not None
    assert further.whole().unfinished.heard == kept.unfinished.heard, "the oldest of them stays the first"  # type: ignore[union-attr]


def test_before_it_is_in_the_log_a_commit_can_be_told() -> None:
    log, _ = begun()
    progress = Progress(RUN).walk(log.rows)
    progress.tell([ev.Event(progress.seq + 1, 1, ev.SignalReceived("n", "k", raw(1)))], b"h")
    assert (progress.whole().upto, progress.hash, len(progress.news)) == (progress.seq, b"h", 1)


def test_one_that_was_only_claimed_has_killed_nobody() -> None:
    log, _ = begun()
    log.commit(ev.AttemptTakenOver("o", 1))
    log.commit(ev.AttemptTakenOver("o", 1, begun=False))
    found = Progress(RUN).walk(log.rows)
    assert found.takeovers == 1 and found.fence == codec.open_row(log.rows[-1]).fence


def test_a_commit_counts_its_signals() -> None:
    run = folded(ev.RunStarted())
    told: dict[str, Any] = {"run": run, "events": (ev.Event(3, 1, ev.SignalReceived("n", "k", raw(1))),), "after": Tip(2, b"", 2), "fence": 1, "at": 1}
    assert Commit(**told, took=("signal:n:k",)).signals == 1 and Commit(**told).signals == 0
    assert whole_due(33 * SIGNAL_EXTRA_BYTES, 0) and not whole_due(31 * SIGNAL_EXTRA_BYTES, 0)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', b'[{"a": {"b": 1, "b": 1}}]', "NaN", '{"a": -Infinity}', "{", ""])
def test_json_that_says_two_things_says_nothing(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"twice|not a JSON number|Expecting"):
        json_of(text)
    assert json_of('{"a": [1, {"b": 1}]}') == {"a": [1, {"b": 1}]}




def test_a_signal_that_is_given_back_stands_before_all_others() -> None:
    """It is older than those of its name, wherever it was taken from; what comes after it keeps its order."""
    run = heard(heard(folded(ev.RunStarted()), "go", AT_HAND + 2), "stop", 1)
    taken = fold_all(run, numbered([ev.WaitDecided(decided("signal", asked="signal:go", key="k0"))], run.version + 1))
    given = fold_all(taken, numbered([ev.WaitClosed("w", "another came first", ev.SignalReceived("go", "k0", raw(0), "ada"))], taken.version + 1))
    assert given.signals[0] == Buffered("go", "k0", raw(0), "ada") and given.unasked == run.unasked and given.later == run.later
    assert [s.key for s in given.signals if s.name == "go"] == [f"k{n}" for n in range(AT_HAND)]
    again = fold_all(given, numbered([ev.WaitDecided(decided("signal", asked="signal:go", key="k0"))], given.version + 1))
    assert (again.signals, again.later) == (taken.signals, taken.later)


@pytest.mark.parametrize("returned", [None, ev.SignalReceived("go", "k", raw(1), "ada")])
def test_an_answer_that_is_given_back_answers_its_wait_no_more(returned: ev.SignalReceived | None) -> None:
    """Whoever asks there again asks anew; live code and loading agree."""
    log, _ = begun()
    place = "1/0/0/0/0"
    asked = wait(WaitKind.SIGNAL, task="b", path=place, wait_id=f"{RUN}.1.b.{place}", name="go")
    given = decided("signal", asked.wait_id, asked="signal:go", key="k")
    log.commit(ev.WaitRequested(asked), ev.WaitDecided(given), results=(decisions.answer(given), StepRecord("b", "1/0/0", "item", raw(1)), StepRecord("b", "1/1/0", "item", raw(2))))
    log.commit(ev.WaitClosed(asked.wait_id, "another call of the same scope failed", returned), results=(StepRecord("b", "1", "map", error=BOOM, kind="scope"),))
    live = Progress(RUN).walk(log.rows)
    made = {"1/0/0", place} if returned is None else set()
    assert {path for task, path in live.records if task == "b" and path[0] == "1"} == {"1", "1/1/0", *made}
    assert live.asked[("b", place)] == 1, "the next asking has another id"


def test_an_event_tells_what_was_given_back() -> None:
    told = describe.payload(RUN, ev.Event(1, 0, ev.WaitClosed("w", "done", ev.SignalReceived("go", "k", raw([1]), "ada"))))
    assert told == {"wait_id": "w", "reason": "done", "returned": {"name": "go", "key": "k", "payload": [1], "actor": "ada", "via": ""}}
    assert describe.payload(RUN, ev.Event(1, 0, ev.WaitClosed("w", "done"))) == {"wait_id": "w", "reason": "done"}
