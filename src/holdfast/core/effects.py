"""Effect records and what to do about one: reuse, act or ask (§6)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.core.errors import ErrorValue


class EffectClass(StrEnum):
    NONE = "none"
    READ = "read"
    WRITE = "write"
    EXTERNAL = "external_action"


LEDGERED = frozenset({EffectClass.WRITE, EffectClass.EXTERNAL})


class Idempotency(StrEnum):
    REQUIRED = "required"
    OPTIONAL = "optional"
    NOT_SUPPORTED = "not_supported"


class EffectStatus(StrEnum):
    ATTEMPTED = "attempted"
    RECORDED = "recorded"
    REUSED = "reused"
    BLOCKED = "blocked"
    FAILED = "failed"
    UNKNOWN = "unknown"
    ABANDONED = "abandoned"


class ReplayPolicy(StrEnum):
    """Ordered from lax to strict; an environment may only make it stricter (§6.6)."""

    REEXECUTE = "reexecute"
    USE_RECORDED = "use_recorded_result"
    REQUIRE_HUMAN = "require_human"


class Effect(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One attempt at an effect (§6.4). Times are microseconds since 1970; ``result`` is encoded.

    ``key`` is the full key with its scope; at most one record of a key is open (attempted or unknown) at a time.
    """

    effect_id: str
    run_id: str
    lineage_root: str
    step: int
    task: str
    path: str
    attempt: int
    capability: str
    effect_class: EffectClass
    key: str
    shared: bool = False
    request_hash: str = ""
    response_hash: str = ""
    status: EffectStatus = EffectStatus.ATTEMPTED
    replay_policy: ReplayPolicy = ReplayPolicy.USE_RECORDED
    idempotent: bool = False
    verifiable: bool = False
    result: bytes | None = None
    error: ErrorValue | None = None
    owner: str = ""
    fence: int = 0
    attempted_at: int = 0
    settled_at: int | None = None
    tenant_id: str = "default"
    source_effect_id: str | None = None

    @property
    def open(self) -> bool:
        """Whether nobody may act under this key until it is settled."""
        return self.status in (EffectStatus.ATTEMPTED, EffectStatus.UNKNOWN)


def effect_key(tenant: str, kind: str, scope: str, key: str) -> str:
    """The full key (§6.3); ``scope`` is the lineage root for a key of the run's own, any name for a shared one."""
    return f"{tenant}\x1f{kind}\x1f{scope}\x1f{key}"
