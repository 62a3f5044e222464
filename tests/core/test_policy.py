"""What may run, who must be asked, under which snapshot (§8)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core import policy as ps
from holdfast.core.effects import EffectClass
from holdfast.core.errors import InvalidInput, UnknownOption
from holdfast.core.policy import (
    ALLOW,
    Kind,
    Policy,
    Request,
    Verdict,
    allow,
    check_offer,
    check_result,
    degrade,
    deny,
    judge,
    require_human,
    warn,
)
from holdfast.core.waits import AFTER_STEP, BEFORE_STEP
from tests.core.build import decided, folded, node

WAIVER = decided("continue_with_waiver", feedback="known")
REQUEST = Request(run=folded(), node="pay", capabilities=("money",), side_effects="write", environment="production", waivers=(WAIVER,))


def test_the_four_verdicts_and_what_they_carry() -> None:
    """§8.1: allow, deny(reason), require_human(prompt, actions), degrade(reason)."""
    assert allow() is ALLOW
    assert Verdict(Kind.ALLOW) == ALLOW
    assert deny("no budget") == Verdict(Kind.DENY, reason="no budget")
    assert degrade("no key") == Verdict(Kind.DEGRADE, reason="no key")
    assert require_human("May it?", ["approve", "deny"]) == Verdict(Kind.REQUIRE_HUMAN, "May it?", "May it?", ("approve", "deny"))
    assert require_human("May it?", reason="first time") == Verdict(Kind.REQUIRE_HUMAN, "first time", "May it?", ())
    assert warn("no key") == Verdict(Kind.WARN, reason="no key")
    assert [k.value for k in Kind] == ["allow", "deny", "require_human", "degrade", "warn"]


@pytest.mark.parametrize(
    ("answer", "meant"),
    [(None, ALLOW), (True, ALLOW), (False, deny("the gate refused")), ("too dear", deny("too dear")), ("", deny("")), (degrade("x"), degrade("x"))],
)
def test_what_a_gate_may_answer(answer: Any, meant: Verdict) -> None:
    """§8.1: a text is a reason to refuse, an empty one too."""
    assert ps.verdict(answer) == meant


@pytest.mark.parametrize("answer", [1, 0, [], ("allow",), object(), b"no", Kind.ALLOW.value.encode()])
def test_an_answer_that_nobody_knows_never_allows(answer: Any) -> None:
    """§8.1: 1 is not True here, nor is anything that merely looks like consent."""
    with pytest.raises(InvalidInput, match=f"not {type(answer).__name__}$"):
        ps.verdict(answer)


ON_FAIL = {"block": deny, "warn": warn, "degrade": degrade, "require_human": require_human}


@pytest.mark.parametrize(("on_fail", "made"), ON_FAIL.items())
def test_what_follows_where_a_gate_does_not_pass(on_fail: str, made: Any) -> None:
    """§8.2: block, warn, degrade, require_human; before the step and after it. What passes passes, and a verdict says for itself."""
    assert [o.value for o in ps.OnFail] == list(ON_FAIL)
    for answer in (None, True):
        assert ps.verdict(answer, on_fail) is ALLOW
    assert ps.verdict(False, on_fail) == made("the gate refused")
    assert ps.verdict("too dear", on_fail) == made("too dear")
    assert ps.verdict(degrade("x"), on_fail) == degrade("x")
    own = node("pay", gate=lambda r: "before", check=lambda r: f"after {r.writes}", on_fail=on_fail)
    assert judge(None, own, REQUEST) == made("before")
    assert judge(Policy(gate=lambda r: "never"), own, REQUEST) == deny("before" if on_fail == "block" else "never")
    assert check_result(own, replace(REQUEST, writes={"a": 1})) == made("after {'a': 1}")
    with pytest.raises(ValueError, match="sometimes"):
        ps.verdict(False, "sometimes")


def test_a_gate_is_asked_with_all_that_is_known() -> None:
    """§8.1, §5.5: the waivers given so far are visible to every later gate."""
    asked: list[Request] = []
    policy = Policy(gate=lambda request: asked.append(request) or "no")
    assert policy.ask(REQUEST) == deny("no")
    assert asked == [REQUEST]
    assert asked[0].waivers == (WAIVER,)
    assert Policy().ask(REQUEST) is ALLOW, "a policy without a gate has nothing against it"


ORDER = [allow(), warn("w"), degrade("d"), require_human("h"), deny("n")]


@given(st.sampled_from(ORDER), st.sampled_from(ORDER))
def test_the_stricter_of_two_verdicts_holds(own: Verdict, general: Verdict) -> None:
    """§8.1, §8.2: a node's own gate and the policy; neither can undo what the other forbids."""
    found = judge(Policy(gate=lambda r: general), node("pay", gate=lambda r: own), REQUEST)
    assert found == max(own, general, key=ORDER.index)


def test_whoever_is_not_there_says_nothing() -> None:
    assert judge(None, node("pay"), REQUEST) is ALLOW
    assert judge(None, node("pay", gate=lambda r: f"not {r.node}"), REQUEST) == deny("not pay")
    assert judge(Policy(gate=lambda r: r.environment), node("pay"), REQUEST) == deny("production")
    with pytest.raises(InvalidInput):
        judge(None, node("pay", gate=lambda r: 1), REQUEST)


def test_of_two_equal_verdicts_the_nodes_own_is_told() -> None:
    assert judge(Policy(gate=lambda r: "general"), node("pay", gate=lambda r: "own"), REQUEST).reason == "own"


@pytest.mark.parametrize(
    ("declared", "asked"),
    [
        ({}, False),
        ({"capabilities": ("money",)}, True),
        ({"side_effects": EffectClass.READ}, True),
        ({"side_effects": EffectClass.WRITE}, True),
        ({"side_effects": EffectClass.EXTERNAL}, True),
        ({"gate": lambda r: True}, True),
    ],
)
def test_which_steps_are_asked_about(declared: dict[str, Any], asked: bool) -> None:
    """§8.1: those that declare capabilities, effects or a gate of their own."""
    assert node("pay", **declared).gated is asked


def test_whether_anybody_is_there_to_be_asked() -> None:
    """§7.5: a gated step has its own gate, or the policy's."""
    mail, own, plain = node("mail", capabilities=("mail",)), node("own", gate=lambda r: True), node("plain")
    policy, idle = Policy(gate=gate), Policy()
    assert [ps.asks(None, n) for n in (mail, own, plain)] == [False, True, False]
    assert [ps.asks(idle, n) for n in (mail, own, plain)] == [False, True, False]
    assert [ps.asks(policy, n) for n in (mail, own, plain)] == [True, True, False]


def gate(request: Request) -> bool:
    return True


def other_gate(request: Request) -> bool:
    return True


def test_a_snapshot_names_what_decides() -> None:
    """§5.8, §8.2: the same after a restart, another as soon as anything changes that an approval could depend on."""
    base = Policy(gate=gate)
    assert base.snapshot_id == Policy(gate=gate).snapshot_id
    assert base.snapshot_id.startswith("policy-") and len(base.snapshot_id) == len("policy-") + 12
    different = [
        base,
        Policy(),
        Policy(gate=other_gate),
        Policy(gate=functools.partial(gate)),
        Policy(gate=gate, version="2"),
        Policy(gate=gate, reviews=("planning",)),
        Policy(gate=gate, reviews=()),
        Policy(gate=gate, allow_force=False),
    ]
    assert len({p.snapshot_id for p in different}) == len(different)
    # A callable without a name of its own goes by its type: an address in it would differ in every process.
    assert Policy(gate=functools.partial(gate)).snapshot_id == Policy(gate=functools.partial(other_gate)).snapshot_id
    assert (base.version, base.reviews, base.allow_force) == ("1", ("planning", "research"), True)


def test_a_policy_from_what_a_caller_gives() -> None:
    """A policy, a function of a request, or nothing; a function may carry a version."""
    given = Policy(version="7")
    assert ps.coerce(given) is given
    assert ps.coerce(None) is None
    assert ps.coerce(gate) == Policy(gate=gate, version="1")

    def versioned(request: Request) -> bool:
        return True

    versioned.version = 3  # type: ignore[attr-defined]
    assert ps.coerce(versioned) == Policy(gate=versioned, version="3")
    with pytest.raises(InvalidInput, match="of type str$"):
        ps.coerce("strict")


@pytest.mark.parametrize(("actions", "error"), [(3, InvalidInput), (b"x", InvalidInput), ({"approve": 1}, InvalidInput), ([3], InvalidInput), (["aprove"], UnknownOption), (["answer"], InvalidInput)])
def test_what_a_verdict_offers_has_a_meaning_at_its_gate(actions: Any, error: type[Exception]) -> None:
    """§5.5: an action that nobody knows, and one without a meaning there, is refused by name, whoever made the verdict."""
    with pytest.raises(error):
        require_human("ok?", actions)
    made = Verdict(Kind.REQUIRE_HUMAN, prompt="ok?", actions=("retry_feedback",))
    check_offer(made, AFTER_STEP)
    with pytest.raises(InvalidInput, match="before its step"):
        check_offer(made, BEFORE_STEP)
    check_offer(Verdict(Kind.ALLOW), BEFORE_STEP)
    assert require_human("ok?", "approve").actions == ("approve",) and require_human("ok?").actions == ()
