"""What may run, and who must be asked (§8): ``Runtime(policy=Policy(gate, version="1"))``; a gate answers with one of these verdicts."""

from __future__ import annotations

from holdfast.core.policy import Policy, Request, Verdict, allow, degrade, deny, require_human, warn

__all__ = ["Policy", "Request", "Verdict", "allow", "degrade", "deny", "require_human", "warn"]
