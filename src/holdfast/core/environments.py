"""Environments: what people may do, in one deployment, with runs that have carried out effects already (§8.3).

An environment may only make a replay policy stricter. A fork option that it does not list is refused by name; options that
extend what a run may do are refused unless it lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.core.bounds import ID_BYTES, Declared, flag, limits, refuse_unknown, text, texts
from holdfast.core.effects import ReplayPolicy, as_policy
from holdfast.core.errors import RestrictedOption

# The options that a replay or fork may be given besides its source. There are no others.
OPTIONS = frozenset(
    {"set", "inputs", "reason", "effects", "upgrade", "tags", "priority", "queue", "lane", "job_id", "trace_id", "key", "at", "delay",
     "environment", "policy_snapshot_id", "capabilities", "inherit_approvals", "unattended", "tenant_id", "recovery"}
)
PRIVILEGED = frozenset({"environment", "policy_snapshot_id", "capabilities", "inherit_approvals", "unattended", "tenant_id", "recovery"})
INHERIT = "inherit_approvals"


class Environment(msgspec.Struct, frozen=True, kw_only=True, metaclass=Declared):
    """``replay``: the laxest policy it allows; ``options``: what a fork may be given, None for all that are not privileged;
    ``inherit_approvals``: whether a replay or fork is answered by what people approved in its source (§5.8); ``allow_force``:
    whether a policy may be waived and an effect done again that may happen twice; ``budgets``: the most that any run may be
    given (§8.5)."""

    name: str
    replay: ReplayPolicy = ReplayPolicy.REEXECUTE
    options: frozenset[str] | None = None
    allow_force: bool = True
    budgets: Mapping[str, float] = {}
    inherit_approvals: bool = False

    def __post_init__(self) -> None:
        text(self.name, "name")
        flag(self.allow_force, "allow_force")
        flag(self.inherit_approvals, "inherit_approvals")
        msgspec.structs.force_setattr(self, "replay", as_policy(self.replay, "replay"))
        for option in () if self.options is None else texts(self.options, "options", ID_BYTES):
            if option not in OPTIONS:
                raise refuse_unknown(option, OPTIONS, "a fork")
        limits(self.budgets, "budgets")

    def check_options(self, names: Iterable[str]) -> None:
        """Refuses options that this environment does not allow, by name (§7.7).

        Raises:
            RestrictedOption: the environment does not allow an option.
            UnknownOption: an option does not exist.
        """
        for name in names:
            if name not in OPTIONS:
                raise refuse_unknown(name, OPTIONS, "a fork")
            listed = (self.options is not None and name in self.options) or (name == INHERIT and self.inherit_approvals)
            if not listed and (name in PRIVILEGED or self.options is not None):
                raise RestrictedOption(f"{self.name} does not allow the option {name!r} in a fork", hint="allow it in the Environment, or leave it out")

    def check_force(self, what: str) -> None:
        """Refuses an act that needs force if this environment does not allow force.

        Raises:
            RestrictedOption: the environment does not allow it.
        """
        if not self.allow_force:
            raise RestrictedOption(f"the environment {self.name} does not allow forcing {what}", hint="allow_force in the Environment")


DEVELOPMENT = Environment(name="development")
STAGING = Environment(name="staging", replay=ReplayPolicy.USE_RECORDED)
PRODUCTION = Environment(
    name="production",
    replay=ReplayPolicy.USE_RECORDED,
    options=frozenset({"set", "inputs", "reason", "effects", "upgrade", "tags", "priority", "queue", "lane", "job_id", "trace_id", "key"}),
    allow_force=False,
)
KNOWN = {e.name: e for e in (DEVELOPMENT, STAGING, PRODUCTION)}


def environment(value: Environment | str) -> Environment:
    """Returns an environment, given itself or its name; an unknown name gives one as lax as development."""
    if isinstance(value, Environment):
        return value
    return KNOWN.get(text(value, "environment")) or Environment(name=text(value, "environment"))
