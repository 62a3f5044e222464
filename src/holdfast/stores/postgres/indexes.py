"""The indexes of this release's schema. Without a unique index there may be duplicates (§10.14)."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.consistency import Problem, problem

INDEXES = frozenset(
    ["blob_pkey", "blob_use_blob", "blob_use_pkey", "bucket_pkey", "call_line", "call_owner", "call_pkey", "call_run", "carry_pkey", "carry_run", "chunk_gone", "chunk_pkey", "chunk_run", "claim_pkey", "claim_run", "doc_pkey", "effect_id", "effect_lineage", "effect_open", "effect_pkey", "effect_run", "effect_unsettled", "inbox_pkey", "inbox_untaken", "intent_id", "intent_order", "intent_pkey", "intent_queued", "intent_run", "intent_sending", "intent_settled", "intent_stuck", "ledger_pkey", "ledger_run", "ledger_topic", "log_pkey", "meta_pkey", "offer_pkey", "pruned_pkey", "roll_pkey", "rule_pkey", "run_behind", "run_due", "run_ended", "run_lane_holder", "run_lane_queue", "run_lineage", "run_owner", "run_parent", "run_pkey", "run_session_open", "run_status", "run_thread", "run_thread_turn", "schedule_due", "schedule_pkey", "shelf_pkey", "shelf_roll_pkey", "token_pkey", "token_run", "vouch_pkey", "vouch_under", "vouch_untaken", "whole_pkey", "worker_owner"]
)


def find_lost(there: Iterable[str], invalid: Iterable[str]) -> list[Problem]:
    """Returns the problems with indexes. ``there``: the indexes that a database has; of these, ``invalid`` ones are not used, such as those of an
    interrupted build."""
    kept, broken = set(there), set(invalid)
    out = [problem("index_damaged", f"the index holdfast.{name} is invalid", f"make it anew: REINDEX INDEX holdfast.{name}") for name in sorted(INDEXES & broken)]
    way_out = "stop the workers, then restore a backup (with the database's own tools), or make the index as a new database of this release has it"
    return out + [problem("index_damaged", f"the index holdfast.{name} is missing", way_out) for name in sorted(INDEXES - kept)]


__all__ = ["INDEXES", "find_lost"]
