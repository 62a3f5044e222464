"""The small values: ids, leases, retries, effects, errors, and what a commit must hold."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import core
from holdfast.core import canon, effects, errors, graph, ids, lease, retry
from holdfast.core import commands as cmd
from holdfast.core import events as ev
from holdfast.core.checkpoint import Delta
from holdfast.core.commit import Behind, Commit, Tip
from holdfast.core.errors import Denied, ErrorValue, Frame, HoldfastError, Unserializable, UsageError
from holdfast.core.graph import compile
from holdfast.core.lease import Alive, Lease, Take
from tests.core.build import RUN, Log, folded, submitted


def test_run_ids_sort_by_creation_and_end_in_their_bucket() -> None:
    """§3.4."""
    made = [ids.run_id(1_700_000_000_000_000 + i * apart, (2**60 - i) % 2**60, "t", "s") for apart in (1, 100, 1_000, 999_999) for i in range(50)]
    for at in range(0, len(made), 50):
        assert made[at : at + 50] == sorted(made[at : at + 50]), "two runs of one millisecond too"
    assert {len(i) for i in made} == {26}
    assert {i[-2:] for i in made} == {ids.bucket("t", "s")}
    assert ids.stamp(1_000, 2**60 + 5) == ids.stamp(1_000, 5) != ids.stamp(1_000, 5 + 2**59), "60 bits of entropy"
    alone = ids.run_id(1, 2)
    assert alone == ids.stamp(1, 2) + ids.bucket("", ids.stamp(1, 2))
    assert len(ids.bucket("a\ud800", "b\udfff")) == 2, "whatever text a session is called by"


def test_derived_ids() -> None:
    """§13.3: functions of their parents, so the same after a crash."""
    assert ids.event_id("r", 3) == "r.e3"
    assert ids.checkpoint_seq("r", ids.checkpoint_id("r", 12)) == 12
    for other in ("q.c12", "r.c", "r.c-1", "r.cx", "r", "", "r.c٣"):
        assert ids.checkpoint_seq("r", other) is None
    assert ids.attempt_id(ids.step_id("r", 2, "a", "0.1"), 3) == "r.2.a.0.1@3"
    assert (ids.task_key("a", 0), ids.task_key("a", 2), ids.node_of("a~2")) == ("a", "a~2", "a")
    assert (ids.wait_id("r", 1, "a", ""), ids.wait_id("r", 1, "a", "0")) == ("r.1.a", "r.1.a.0")


@pytest.mark.parametrize(
    ("held", "live"),
    [
        (Lease(1), False),
        (Lease(1, "w", 11), True),
        (Lease(1, "w", 10), False),
        (Lease(1, "w"), False),
        (Lease(1, "w", 11, Alive.NO), False),
        (Lease(1, "w", 11, Alive.YES), True),
    ],
)
def test_who_holds_a_lease(held: Lease, live: bool) -> None:
    """§2.9, §10.1."""
    assert held.live(10) is live


def test_fences_and_the_last_safe_moment() -> None:
    """X-02, §10.3."""
    assert lease.counter((5 << 32) + 7) == 7
    assert lease.safe_until(100, 1_000) == 700


@given(st.text(max_size=20), st.integers(1, 2_000))
def test_backoff_is_bounded_and_repeatable(attempt: str, number: int) -> None:
    """§10.9."""
    pause = retry.backoff(attempt, number)
    assert pause == retry.backoff(attempt, number)
    assert min(retry.CEILING, retry.SECOND * 2 ** min(number - 1, 40)) * 0.5 <= pause <= retry.CEILING * 1.5
    assert retry.backoff(attempt, number, retry_after_us=10**12) == 10**12


def test_backoff_doubles_until_its_ceiling() -> None:
    """§10.9: base x 2^(n-1), times a factor that the attempt's id fixes; five minutes at most, before that factor."""
    one = retry.backoff("r.1.a@1", 1)
    assert [round(retry.backoff("r.1.a@1", n) / one, 3) for n in (2, 3, 4, 8)] == [2, 4, 8, 128]
    assert retry.backoff("r.1.a@1", 2, base_us=10) == pytest.approx(one * 2 / 100_000, abs=1)
    assert retry.backoff("r.1.a@1", 12) == retry.backoff("r.1.a@1", 1_000)
    assert retry.Retry().max_attempts == 1


def test_what_is_tried_again() -> None:
    """§10.9, T-88: by type, never by text; a denial is never retried (§8.1)."""
    three = retry.coerce(3)
    assert three.retries(ValueError("timed out"), 2)
    assert not three.retries(ValueError(), 3)
    assert not three.retries(Denied("no"), 1)
    assert not retry.Retry(5, on=(KeyError,)).retries(ValueError(), 1)
    assert retry.coerce(None) is retry.ONCE
    assert retry.coerce(three) is three


def test_effect_keys_and_what_is_open() -> None:
    """§6.3, §6.4."""
    assert len({effects.effect_key("t", "k", "s", "x"), effects.effect_key("t", "k", "sx", ""), effects.effect_key("tk", "", "s", "x")}) == 3
    record = effects.Effect(
        effect_id="e", run_id="r", lineage_root="r", step=1, task="a", path="", attempt=1, capability="c", effect_class=effects.EffectClass.WRITE, key="k"
    )
    assert record.open
    assert not msgspec.structs.replace(record, status=effects.EffectStatus.RECORDED).open
    assert {effects.EffectClass.WRITE, effects.EffectClass.EXTERNAL} == effects.LEDGERED


def _tree(kind: type[HoldfastError]) -> list[type[HoldfastError]]:
    return [kind, *(k for sub in kind.__subclasses__() for k in _tree(sub))]


def test_every_error_has_a_code_of_its_own() -> None:
    """Codes are API."""
    kinds = [k for k in _tree(HoldfastError) if k.__module__ == errors.__name__]
    codes = [k.code for k in kinds if k is not errors.StepRejected]  # a rejected step has the word of §5.5, which the base of refusals bears too
    assert len(set(codes)) == len(codes)
    assert {k.exit_code for k in kinds} <= {1, 2, 3, 4, 6}


def test_an_error_in_one_line() -> None:
    assert HoldfastError("a\n  b", hint="do c", code="x").line() == "x: a b (do c)"
    assert errors.StoreError("a").line() == "store_error: a"
    for ended in (errors.RunFailed(1, "m"), errors.RunWaiting(1, "m")):
        assert (ended.run, ended.message, str(ended), ended.line()) == (1, "m", "m", f"{ended.code}: m")
    assert Unserializable("a.b", "why").path == "a.b"


def test_a_failure_is_a_value_whatever_it_says() -> None:
    """§2.8, §1.10: a message may hold what no store could keep."""
    value = ErrorValue.of(ValueError("a\0b\ud800" + "x" * 9_999), "here")
    assert value.message.startswith("a\\0b\\ud800x")
    assert (value.type, value.code, value.where, len(value.message)) == ("ValueError", "step_failed", "here", 4_000)
    own = ErrorValue.of(Denied("no"))
    assert (own.type, own.code, own.message) == ("holdfast.core.errors.Denied", "denied", "no")


# -- commits ----------------------------------------------------------------------------------------


def good() -> Commit:
    log = Log().commit(ev.RunStarted())
    assert log.run is not None
    event = ev.Event(3, 5, ev.NoteAdded("x"), fence=1)
    return Commit(run=log.run, events=(event,), after=Tip(2, b"", 1), fence=1, at=5)


BAD: list[dict[str, Any]] = [
    {"events": ()},
    {"events": (ev.Event(4, 5, ev.NoteAdded("x"), fence=1),)},
    {"events": (ev.Event(3, 6, ev.NoteAdded("x"), fence=1),)},
    {"events": (ev.Event(3, 5, ev.NoteAdded("x"), fence=2),)},
    {"events": (ev.Event(3, 5, ev.NoteAdded("x"), actor="ada", fence=1),)},
    {"events": (ev.Event(3, 5, submitted(), fence=1),)},
    {"events": (ev.Event(3, 5, ev.CheckpointSaved(b"h"), fence=1),)},
    {"delta": b"x"},
    {"behind": Behind(("before",), 1, 2)},
    {"run": folded(ev.RunStarted(), ev.RunCompleted()), "lease": Take("w")},
    {"after": None},
    {"after": None, "events": (ev.Event(1, 5, submitted(), fence=1),)},
]


@pytest.mark.parametrize("changes", BAD)
def test_a_commit_that_cannot_be(changes: dict[str, Any]) -> None:
    """§1.6."""
    with pytest.raises(AssertionError):
        msgspec.structs.replace(good(), **changes).check()


def test_a_commit_that_can() -> None:
    """§1.6; and its checkpoint is the head, vouched for by an event (§1.8)."""
    commit = good()
    commit.check()
    assert commit.plain
    assert not msgspec.structs.replace(commit, took=("x",)).plain
    assert not msgspec.structs.replace(commit, behind=Behind(("before",), 1, 2)).plain
    log = Log().commit(ev.RunStarted(), ev.CheckpointSaved(b""), delta=Delta(step=0))
    assert log.run is not None
    event = ev.Event(4, 5, ev.CheckpointSaved(log.checkpoint.hash), fence=1)
    saved = msgspec.structs.replace(
        commit, run=msgspec.structs.replace(log.run, checkpoint_head=f"{RUN}.c4"), events=(event,), after=Tip(3, b"", 1), delta=b"x",
        checkpoint=msgspec.structs.replace(log.checkpoint, seq=4),
    )
    saved.check()
    msgspec.structs.replace(saved, behind=Behind(("before",), 1, 2)).check()
    for changes in (
        {"checkpoint": msgspec.structs.replace(log.checkpoint, seq=4, hash=b"other")},
        {"checkpoint": msgspec.structs.replace(log.checkpoint, seq=3)},
        {"events": (ev.Event(4, 5, ev.NoteAdded("x"), fence=1),)},
        {"creates": (saved,)},
    ):
        with pytest.raises(AssertionError):
            msgspec.structs.replace(saved, **changes).check()


def test_a_child_s_id_follows_from_where_it_is_made() -> None:
    """§3.4, §4.14: the same after a crash, another at every place; in the bucket of its own session, and sorted with its parent."""
    made = {ids.child_run_id(RUN, *place): place for place in [(1, "a", "0"), (2, "a", "0"), (1, "b", "0"), (1, "a", "1"), (1, "a", "0", 1)]}
    assert len(made) == 5
    assert ids.child_run_id(RUN, 1, "a", "0") in made
    for child in made:
        assert len(child) == 26 and set(child) <= set("0123456789abcdefghjkmnpqrstvwxyz")
        assert (child[:10], child[24:]) == (RUN[:10], ids.bucket("", child))
    assert len({child[10:24] for child in made}) == 5


def test_the_rounds_of_a_wait_share_its_place() -> None:
    """§5.14: each asking has an id of its own; the place it names stays the same."""
    assert [ids.wait_id(RUN, 1, "a", "0", n) for n in (0, 1, 2)] == [f"{RUN}.1.a.0", f"{RUN}.1.a.0/!1", f"{RUN}.1.a.0/!2"]
    assert {ids.wait_base(ids.wait_id(RUN, 1, "a", "0", n)) for n in range(3)} == {f"{RUN}.1.a.0"}


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (cmd.Decide("w", "approve", "ada"), "wait:w"),
        (cmd.FireTimeout("w", 5), "wait:w"),
        (cmd.Signal("go", "k", b"", "ada"), "signal:go:k"),
        (cmd.Cancel("ada"), "cancel"),
        (cmd.Cancel("ada", nonce="n"), "cancel:n"),
        (cmd.ChildEnded("kid", "completed"), "child:kid"),
        (cmd.Resume("ada", nonce="n"), "resume:n"),
        (cmd.LateResult("r.1.a@1", "x"), "late:r.1.a@1"),
        (cmd.Refused("w", "approve", "ada", nonce="n"), "refused:n"),
    ],
)
def test_what_a_command_is_known_by(command: cmd.AnyCommand, key: str) -> None:
    """§5.6, §5.10: one answer and its timeout share a key, so that one of them wins; two requests with names of their own do not."""
    assert command.key == key


def test_every_command_says_what_it_is_known_by() -> None:
    assert set(cmd.Command.__subclasses__()) == set(cmd.AnyCommand.__args__)  # type: ignore[attr-defined]
    with pytest.raises(NotImplementedError):
        _ = cmd.Command().key


def test_no_value_of_the_core_can_be_changed() -> None:
    """§1.1, §4.2: whoever holds one may keep it. A change is another value."""
    values = [
        value
        for module in pkgutil.iter_modules(core.__path__)
        for value in vars(importlib.import_module(f"{core.__name__}.{module.name}")).values()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__.startswith(core.__name__)
    ]
    assert len(set(values)) > 60
    assert [v.__qualname__ for v in values if not v.__struct_config__.frozen] == []


def test_names_that_stores_and_outside_services_hold_never_change() -> None:
    """§1.8, §3.2, §6.3: what an older release wrote down, or told a receiver that dedupes, is what this one makes."""
    assert ids.child_run_id(RUN, 1, "a", "0") == "0123456789gey06xxkszehejfs"
    assert ids.run_id(1_700_000_000_000_123, 2**59 + 5, "t", "s") == "01hf7yat003vg0000000000522"
    assert effects.effect_key("t", "effect", "a:b", "c/d é") == "t:effect:a%3Ab:c/d%20%C3%A9"
    flow = compile(id="f", version="1", channels={}, nodes={}, flow=True, signature="(ctx, name)")
    assert flow.fingerprint == canon.fingerprint(["flow", "f", "1", "(ctx, name)"])
    assert (graph.DEFAULT_TIMEOUT_US, graph.DEFAULT_STEP_LIMIT) == (60_000_000, 1_000)


def test_a_failure_keeps_text_that_no_store_could_and_says_where_there_is_none() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert ErrorValue.of(ValueError("a\0b\ud800")).message == "a\\0b\\ud800"
    assert "cannot be made" in ErrorValue.of(Mute()).message
    assert ErrorValue.of(UsageError("no", hint="do so"), frames=(Frame("f.py", 1, "f"),)) == ErrorValue(
        "holdfast.core.errors.UsageError", "no", "usage", "", "do so", (Frame("f.py", 1, "f"),)
    )


@given(st.integers(0, 2**62), st.integers(0, 2**70), st.text(max_size=20), st.text(max_size=20), st.text(max_size=20))
def test_a_bucket_is_a_function_of_the_lane(at: int, entropy: int, tenant: str, session: str, task: str) -> None:
    """§10.8: a run, all who join its session, what is forked from it, and a child with what follows up on that lie where their lane does."""
    at %= 2**49
    alone = ids.run_id(at, entropy, tenant)
    joined = ids.run_id(at + 1, entropy + 1, tenant, alone)
    assert ids.bucket_number(joined) == ids.bucket_number(alone)
    child = ids.child_run_id(alone, 1, task, "0", tenant=tenant)
    assert ids.run_id(at, entropy, tenant, child)[-2:] == child[-2:]
    if session:
        fork = ids.run_id(at, entropy, tenant, beside=session)
        assert ids.run_id(at, entropy, tenant, f"{session}~{fork}")[-2:] == fork[-2:]
        named = ids.child_run_id(alone, 1, task, "0", tenant=tenant, session=session)
        assert ids.run_id(at, entropy, tenant, session)[-2:] == named[-2:]
