"""Events that were recorded together are what they are one by one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import checkpoint as cps
from holdfast.core import codec
from holdfast.core import events as ev
from holdfast.core import run as records
from holdfast.core.checkpoint import OK
from holdfast.core.commit import Commit, Tip
from holdfast.core.lease import KEEP
from holdfast.core.recorded import Recorded
from tests.core.build import folded

BORN = folded(ev.RunStarted())
FACTS = st.lists(
    st.one_of(
        st.builds(ev.StepStarted, st.integers(0, 3), st.sampled_from(["a:1", "b:1", "a:2"])),
        st.builds(ev.StepCompleted, st.integers(0, 3), st.sampled_from(["a:1", "b:1"]), st.sampled_from([OK, "failed", "skipped"]), st.just(b""), st.integers(1, 2)),
        st.builds(ev.NoteAdded, st.text(max_size=3)),
        st.builds(ev.CheckpointSaved, st.just(b"")),
    ),
    min_size=1, max_size=20,
)


@given(FACTS, st.booleans())
def test_together_is_one_by_one(facts: list[ev.Fact], advanced: bool) -> None:
    events, run = records.record(BORN, facts, 2, 5, "ann", 7)
    assert type(events) is Recorded and events.facts == facts and events.kinds == {type(f) for f in facts}
    apart = tuple(ev.Event(3 + n, 5, fact, "ann", 7) for n, fact in enumerate(facts))
    assert events == apart
    assert run == records.fold_all(BORN, apart) == records.fold_all(BORN, iter(apart))
    one_by_one = BORN
    for event in apart:
        one_by_one = records.fold(one_by_one, event)
    assert run == one_by_one
    assert cps.boundaries(events, advanced=advanced) == cps.boundaries(apart, advanced=advanced)
    commit = Commit(run=run, events=events, after=Tip(2, b"t", 1), fence=7, at=5, actor="ann", lease=KEEP)
    commit.check()
    assert codec.seal(commit, b"t") == codec.seal(msgspec.structs.replace(commit, events=apart), b"t")


def record(facts: list[ev.Fact], **other: Any) -> tuple[ev.Event, ...]:
    return records.record(BORN, facts, **{"after": 2, "at": 5, "fence": 7} | other)[0]


@pytest.mark.parametrize("count", [1, 2, 3, 20])
@pytest.mark.parametrize("other", [{"after": 3}, {"after": 1}, {"at": 6}, {"fence": 8}, {"actor": "bob"}], ids=str)
def test_what_was_recorded_for_another_commit_is_refused(other: dict[str, Any], count: int) -> None:
    facts: list[ev.Fact] = [ev.NoteAdded(str(n)) for n in range(count)]
    commit = Commit(run=BORN, events=record(facts), after=Tip(2, b"t", 1), fence=7, at=5)
    commit.check()
    with pytest.raises(AssertionError):
        msgspec.structs.replace(commit, events=record(facts, **other)).check()


def test_one_event_among_many_that_is_not_theirs_is_refused() -> None:
    events = record([ev.NoteAdded(str(n)) for n in range(5)])
    commit = Commit(run=BORN, events=tuple(events), after=Tip(2, b"t", 1), fence=7, at=5)
    commit.check()
    for changed in ({"seq": 9}, {"at": 6}, {"actor": "bob"}, {"fence": 8}):
        put = (*events[:2], msgspec.structs.replace(events[2], **changed), *events[3:])
        with pytest.raises(AssertionError):
            msgspec.structs.replace(commit, events=put).check()


def test_other_events_in_their_place_bring_their_own_facts() -> None:
    """A store that seals secrets replaces events: what is written is what they say."""
    commit = Commit(run=BORN, events=record([ev.NoteAdded("secret")]), after=Tip(2, b"t", 1), fence=7, at=5)
    sealed = msgspec.structs.replace(commit, events=tuple(msgspec.structs.replace(e, fact=ev.NoteAdded("sealed")) for e in commit.events))
    assert b"sealed" in codec.seal(sealed).row.data and b"secret" not in codec.seal(sealed).row.data
