"""What a place lets people do with runs that have acted already (§8.3)."""

from __future__ import annotations

import pytest

from holdfast.core import environments as es
from holdfast.core.effects import ReplayPolicy
from holdfast.core.environments import DEVELOPMENT, OPTIONS, PRIVILEGED, PRODUCTION, STAGING, Environment, environment
from holdfast.core.errors import RestrictedOption, UnknownOption, UsageError

# What each place lets a fork be given: as the documents promise it, not as the code has it.
HARMLESS = {"set", "inputs", "reason", "effects", "upgrade", "tags", "priority", "queue", "lane", "job_id", "trace_id", "key"}
LATER = {"at", "delay"}
RAISING = {"environment", "policy_snapshot_id", "capabilities", "inherit_approvals", "unattended", "tenant_id", "recovery"}
LISTED = Environment(name="mine", options=frozenset({"set", "capabilities"}))


def test_every_option_is_harmless_or_raises_what_a_run_may_do() -> None:
    """§7.7: there is no third kind."""
    assert OPTIONS == HARMLESS | LATER | RAISING
    assert PRIVILEGED == RAISING


@pytest.mark.parametrize(
    ("place", "allowed"),
    [
        (DEVELOPMENT, HARMLESS | LATER),
        (STAGING, HARMLESS | LATER),
        (PRODUCTION, HARMLESS),
        (LISTED, {"set", "capabilities"}),
        (Environment(name="closed", options=frozenset()), set()),
    ],
    ids=lambda p: p.name if isinstance(p, Environment) else "",
)
def test_which_options_a_fork_may_be_given(place: Environment, allowed: set[str]) -> None:
    """§7.7, §8.3: a restricted option is refused by name; raising privileges is denied unless the environment lists it."""
    place.check_options(allowed)
    for name in OPTIONS - allowed:
        with pytest.raises(RestrictedOption, match=f"^{place.name} does not allow the option '{name}' in a fork;"):
            place.check_options([*allowed, name])


@pytest.mark.parametrize("place", [DEVELOPMENT, PRODUCTION, LISTED], ids=lambda p: p.name)
def test_what_is_no_option_is_a_mistake_and_not_a_privilege(place: Environment) -> None:
    with pytest.raises(UsageError, match="a fork has no option 'sets'") as e:
        place.check_options(["sets"])
    assert not isinstance(e.value, RestrictedOption)
    assert isinstance(e.value, UnknownOption) and e.value.nearest == "set"


def test_the_three_places_and_how_strict_they_are() -> None:
    """§8.3: which replay policies, which fork options, whether force is allowed."""
    assert {p.name: (p.replay, p.allow_force, p.options is None) for p in es.KNOWN.values()} == {
        "development": (ReplayPolicy.REEXECUTE, True, True),
        "staging": (ReplayPolicy.USE_RECORDED, True, True),
        "production": (ReplayPolicy.USE_RECORDED, False, False),
    }
    assert set(es.KNOWN) == {p.name for p in es.KNOWN.values()}


def test_an_environment_by_value_by_name_and_a_name_of_ones_own() -> None:
    """§8.3: development, staging, production, or named."""
    assert environment(LISTED) is LISTED
    assert environment("production") is PRODUCTION
    assert environment("lab") == Environment(name="lab", replay=ReplayPolicy.REEXECUTE, options=None, allow_force=True, budgets={})


def test_inherited_approvals_are_an_option_where_the_place_inherits_them() -> None:
    """§5.8, §8.3."""
    trusting = Environment(name="trusting", inherit_approvals=True)
    trusting.check_options(["inherit_approvals", "tags"])
    with pytest.raises(RestrictedOption, match="'tenant_id'"):
        trusting.check_options(["inherit_approvals", "tenant_id"])
    assert not any(p.inherit_approvals for p in es.KNOWN.values())


def test_force_is_refused_where_there_is_none() -> None:
    DEVELOPMENT.check_force("anything")
    with pytest.raises(RestrictedOption, match="^the environment production does not allow forcing an effect;") as e:
        PRODUCTION.check_force("an effect")
    assert e.value.hint == "allow_force in the Environment"
