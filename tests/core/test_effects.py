"""What to do about one call of an effect, as a table (§6.2, §6.5, §6.6)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core import effects as fx
from holdfast.core.effects import Absent, Effect, EffectClass, EffectStatus, ReplayPolicy, Unknown
from holdfast.core.errors import InvalidInput
from holdfast.core.lease import Alive

EFFECT = Effect(
    effect_id="run.1.pay.0#1",
    run_id="run",
    lineage_root="run",
    step=1,
    task="pay",
    path="0",
    attempt=1,
    capability="pay",
    effect_class=EffectClass.EXTERNAL,
    key="k",
    request_hash="h",
    fence=1,
    owner="w1",
)
ASKED = fx.Asked(request="h", run_id="run", place=(1, "pay", "0"), fence=2)


def effect(status: str, **changes: Any) -> Effect:
    return replace(EFFECT, status=EffectStatus(status), **changes)


CASES: list[tuple[str, list[Effect], dict[str, Any], Alive, str]] = [
    ("nothing on record", [], {}, Alive.UNKNOWN, "Act"),
    ("recorded here", [effect("recorded")], {}, Alive.UNKNOWN, "Reuse"),
    ("recorded by the source of a replay", [effect("recorded", run_id="old")], {}, Alive.UNKNOWN, "Reuse"),
    ("T-42 a replay that does it again", [effect("recorded", run_id="old")], {"policy": "reexecute"}, Alive.UNKNOWN, "Act"),
    ("T-43 a replay that asks", [effect("recorded", run_id="old")], {"policy": "require_human"}, Alive.UNKNOWN, "Ask"),
    ("a policy is no reason to repeat what this very call did", [effect("recorded")], {"policy": "reexecute"}, Alive.UNKNOWN, "Reuse"),
    ("T-41 other arguments", [effect("recorded")], {"request": "other"}, Alive.UNKNOWN, "Mismatch"),
    ("T-41 other arguments after a failure", [effect("failed")], {"request": "other"}, Alive.UNKNOWN, "Mismatch"),
    ("T-39 in the gap, dead owner", [effect("attempted")], {}, Alive.NO, "Ask"),
    ("T-39 in the gap, nothing known of the owner", [effect("attempted")], {}, Alive.UNKNOWN, "Ask"),
    ("X-04 in the gap, the owner frozen", [effect("attempted")], {}, Alive.YES, "Ask"),
    ("T-39 in the gap, keyed", [effect("attempted")], {"idempotent": True}, Alive.UNKNOWN, "Act same"),
    ("keyed, although the owner lives", [effect("unknown")], {"idempotent": True}, Alive.YES, "Act same"),
    ("T-45 under way in another run", [effect("attempted", run_id="other")], {}, Alive.YES, "InProgress"),
    ("T-45 keyed, and under way in another run", [effect("attempted", run_id="other")], {"idempotent": True}, Alive.YES, "InProgress"),
    ("under way in this very claim", [effect("attempted", path="1")], {"fence": 1}, Alive.YES, "InProgress"),
    ("another run's, its owner dead", [effect("attempted", run_id="other")], {}, Alive.NO, "Ask"),
    ("verifiable, closed", [effect("unknown", closed=True)], {"verifiable": True}, Alive.UNKNOWN, "Verify closed"),
    ("verifiable, proven dead", [effect("unknown")], {"verifiable": True}, Alive.NO, "Verify closed"),
    ("X-05 verifiable, the owner frozen", [effect("unknown")], {"verifiable": True}, Alive.YES, "Verify"),
    ("failed", [effect("failed")], {}, Alive.UNKNOWN, "Act"),
    ("abandoned", [effect("abandoned")], {"lineage_root": "run"}, Alive.UNKNOWN, "Act"),
    ("abandoned by decision", [effect("abandoned", detail=fx.BY_DECISION)], {"lineage_root": "run"}, Alive.UNKNOWN, "Ask"),
    ("abandoned by decision in another lineage", [effect("abandoned", detail=fx.BY_DECISION)], {"lineage_root": "other"}, Alive.UNKNOWN, "Act"),
    ("other arguments at a place of its own", [effect("recorded")], {"request": "other", "placed": True, "name": "pay"}, Alive.UNKNOWN, "Ask"),
    ("another effect at a place of its own", [effect("recorded")], {"request": "other", "placed": True, "name": "tell"}, Alive.UNKNOWN, "Beside"),
    ("another request where nothing had begun", [effect("abandoned")], {"request": "other", "placed": True, "name": "pay"}, Alive.UNKNOWN, "Beside"),
    ("another request where a person abandoned", [effect("abandoned", detail=fx.BY_DECISION)], {"request": "other", "placed": True, "name": "pay"}, Alive.UNKNOWN, "Ask"),
    ("another effect where a person abandoned one", [effect("abandoned", detail=fx.BY_DECISION)], {"request": "other", "placed": True, "name": "tell"}, Alive.UNKNOWN, "Beside"),
    ("another effect where one had failed", [effect("failed")], {"request": "other", "placed": True, "name": "tell"}, Alive.UNKNOWN, "Beside"),
    ("other arguments at a place, in the gap", [effect("attempted")], {"request": "other", "placed": True, "name": "pay"}, Alive.UNKNOWN, "Ask"),
    ("other arguments at a place, idempotent and verifiable", [effect("unknown")], {"request": "other", "placed": True, "name": "pay", "idempotent": True, "verifiable": True}, Alive.NO, "Ask"),
    ("another effect at a place, in the gap", [effect("unknown")], {"request": "other", "placed": True, "name": "tell"}, Alive.UNKNOWN, "Ask"),
    ("other arguments at a place, under way in this very claim", [effect("attempted")], {"request": "other", "placed": True, "name": "pay", "fence": 1}, Alive.YES, "InProgress"),
    ("other arguments under a key that others have, in the gap", [effect("attempted")], {"request": "other", "name": "pay"}, Alive.UNKNOWN, "Mismatch"),
    ("other arguments of another run, in the gap", [effect("attempted", run_id="old")], {"request": "other", "placed": True, "name": "pay"}, Alive.UNKNOWN, "Mismatch"),
    ("other arguments at a place, after a failure", [effect("failed")], {"request": "other", "placed": True, "name": "pay"}, Alive.UNKNOWN, "Beside"),
    ("other arguments at a place, after it was left behind", [effect("abandoned")], {"request": "other", "placed": True, "name": "pay"}, Alive.UNKNOWN, "Beside"),
    ("other arguments at a place of another run", [effect("recorded", run_id="old")], {"request": "other", "placed": True, "name": "pay"}, Alive.UNKNOWN, "Mismatch"),
    ("a reuse is no attempt", [effect("recorded", run_id="old"), effect("reused")], {}, Alive.UNKNOWN, "Reuse"),
    ("blocked is no attempt", [effect("blocked")], {}, Alive.UNKNOWN, "Act"),
    ("§6.11 recorded and taken back", [effect("recorded", undone="u")], {}, Alive.UNKNOWN, "Act"),
    ("the newest counts", [effect("failed"), effect("recorded")], {}, Alive.UNKNOWN, "Reuse"),
]


def word(verdict: fx.Verdict) -> str:
    match verdict:
        case fx.Act(same=True):
            return "Act same"
        case fx.Verify(closed=True):
            return "Verify closed"
    return type(verdict).__name__


@pytest.mark.parametrize(("what", "records", "changes", "alive", "expected"), CASES, ids=[c[0] for c in CASES])
def test_the_verdict(what: str, records: list[Effect], changes: dict[str, Any], alive: Alive, expected: str) -> None:
    if "policy" in changes:
        changes = changes | {"policy": ReplayPolicy(changes["policy"])}
    assert word(fx.judge(records, replace(ASKED, **changes), alive)) == expected


@pytest.mark.parametrize(("alive", "closed"), [(Alive.NO, True), (Alive.YES, False), (Alive.UNKNOWN, False)])
@pytest.mark.parametrize(("name", "reason"), [("pay", fx.ARGUMENTS_CHANGED), ("tell", fx.CALL_CHANGED)])
def test_the_question_about_an_attempt_with_another_request(name: str, reason: str, alive: Alive, closed: bool) -> None:
    """Decision 127: whether the same effect or another one is called now, and whether the attempt may still come through."""
    verdict = fx.judge([effect("unknown")], replace(ASKED, request="other", placed=True, name=name), alive)
    assert verdict == fx.Ask(effect("unknown"), reason, closed)


def test_a_key_beside_has_successors_too() -> None:
    """§6.11: what was carried out beside another request, and undone, is done again under a key of its own."""
    gone = [effect("recorded", undone="u")]
    assert fx.successor("t:effect:r:1.a.0:2~0f", gone) == "t:effect:r:1.a.0:2~0f:2"
    assert fx.successor("t:effect:r:1.a.0~0f", gone) == "t:effect:r:1.a.0~0f:2" and fx.successor("t:effect:r:1.a.0:2~0f:2", gone) == "t:effect:r:1.a.0:2~0f:3"


@pytest.mark.parametrize(
    ("answer", "closed", "expected"),
    [(Absent(), True, "Act"), (Absent(), False, "Ask"), (Unknown(), True, "Ask"), (Unknown(), False, "Ask"), ("nonsense", True, "Ask")],
)
def test_absent_is_believed_only_of_a_closed_attempt(answer: object, closed: bool, expected: str) -> None:
    """X-05: a frozen owner may still act after the hook has looked."""
    assert word(fx.verify(effect("unknown"), answer, closed)) == expected


@pytest.mark.parametrize(
    ("answer", "given"), [(True, "a bool"), (None, "a NoneType"), ({"happened": 1}, "a dict"), (Absent, "the class Absent"), (Unknown, "the class Unknown")]
)
def test_what_a_verify_may_not_say_counts_as_not_knowing(answer: object, given: str) -> None:
    """X-05: whoever is asked then reads what it said."""
    said = fx.read_answer(answer, "verify of pay")
    assert said == Unknown(f"verify of pay returned {given}; it must return Happened(result), Absent() or Unknown()")
    verdict = fx.verify(effect("unknown"), said, True)
    assert isinstance(verdict, fx.Ask) and verdict.why == said.why


@pytest.mark.parametrize("answer", [Absent(), Unknown(), Unknown("the bank does not answer"), fx.Happened("r1")])
def test_what_a_verify_says_is_taken_as_it_is(answer: object) -> None:
    assert fx.read_answer(answer, "verify of pay") == answer


def test_an_attempt_without_result_is_never_a_result() -> None:
    """T-39, over every open status, declaration and policy: nothing is ever reused."""
    for status in ("attempted", "unknown"):
        for idempotent in (True, False):
            for verifiable in (True, False):
                for policy in ReplayPolicy:
                    for alive in Alive:
                        asked = replace(ASKED, idempotent=idempotent, verifiable=verifiable, policy=policy)
                        assert word(fx.judge([effect(status)], asked, alive)) != "Reuse"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ((None, None), "use_recorded_result"),
        (("reexecute", None), "reexecute"),
        (("reexecute", "use_recorded_result"), "use_recorded_result"),
        (("require_human", "reexecute"), "require_human"),
        (("use_recorded_result", "require_human"), "require_human"),
        (("reexecute", "require_human", "use_recorded_result"), "require_human"),
    ],
)
def test_the_strictest_policy_holds(said: tuple[str | None, ...], expected: str) -> None:
    """§6.6: an environment can only make it stricter."""
    assert fx.strictest(*said) == expected


def test_a_key_is_unambiguous_and_fit_for_a_header() -> None:
    """§6.3: it is handed to outside services."""
    assert fx.effect_key("t", "effect", "a:b", "c") != fx.effect_key("t", "effect", "a", "b:c")
    key = fx.effect_key("t", "effect", "upload", "bestellung \u00e4\n7")
    assert key.isascii() and key.isprintable() and " " not in key


def test_a_policy_by_its_word() -> None:
    """§6.6: a word that is none says which there are."""
    for policy in ReplayPolicy:
        assert fx.as_policy(policy.value, "effects") is fx.as_policy(policy, "effects") is policy
    with pytest.raises(InvalidInput, match="^effects='reuse' is not known;") as e:
        fx.as_policy("reuse", "effects")
    assert e.value.field == "effects"
    assert e.value.hint == "one of reexecute, use_recorded_result, require_human"


def act(effect_id: str, run_id: str, status: fx.EffectStatus, *, source: str | None = None, detail: str = "") -> fx.Effect:
    return fx.Effect(
        effect_id=effect_id, run_id=run_id, lineage_root="r", step=1, task="n", path="", attempt=1, capability="mail", effect_class=fx.EffectClass.WRITE,
        key="k", shared=False, request_hash="h", owner="o", attempted_at=1, status=status, source_effect_id=source, detail=detail,
    )


def test_one_answer_about_an_act_holds_for_its_lineage() -> None:
    """Mend 24: that of the run in which it was answered, before those that heard of it; given up by decision, if nobody has a result."""
    unknown = act("a", "r", fx.EffectStatus.UNKNOWN)
    heard = act("b", "s", fx.EffectStatus.RECORDED, source="a", detail=f"{fx.ELSEWHERE} r")
    told = act("a", "r", fx.EffectStatus.RECORDED)
    given_up = act("a", "r", fx.EffectStatus.ABANDONED, detail=fx.BY_DECISION)
    late = act("a", "r", fx.EffectStatus.ABANDONED, detail="it was late")
    assert fx.origin(heard) == fx.origin(told) == "a" and fx.origin(act("b", "s", fx.EffectStatus.UNKNOWN)) == "b"
    assert fx.find_settlement([unknown], "a") is None and fx.find_settlement([late], "a") is None and fx.find_settlement([told], "other") is None
    assert fx.find_settlement([told, heard], "a") is told and fx.find_settlement([heard, told], "a") is told and fx.find_settlement([heard], "a") is heard
    assert fx.find_settlement([given_up, unknown], "a") is given_up and fx.find_settlement([given_up, told], "a") is told
    assert fx.find_settlement([replace(told, undone="u")], "a") is None and fx.find_settlement([replace(heard, undone="u"), told], "a") is told, "it does not stand any more"
    assert fx.count_repeats([late, late, given_up], "a", "r") == 2 and fx.count_repeats([late], "a", "s") == 0 and fx.count_repeats([late], "b", "r") == 0


def test_whose_word_it_is() -> None:
    assert (fx.attribute("ada", ""), fx.attribute("ada", "I looked")) == ("ada", "ada (I looked)")
