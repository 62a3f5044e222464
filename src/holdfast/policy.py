"""A policy decides which steps may run, and when a person is asked (§8): ``Runtime(policy=Policy(gate, version="1"))``. A gate is a function of a
``Request`` that answers with one of the verdicts below."""

from __future__ import annotations

from holdfast.core.policy import Policy, Request, Verdict, allow, degrade, deny, require_human, warn

__all__ = ["Policy", "Request", "Verdict", "allow", "degrade", "deny", "require_human", "warn"]
