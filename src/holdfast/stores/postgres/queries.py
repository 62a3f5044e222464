"""The statements of the PostgreSQL store, by their names, and the columns of those for many rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.core.lease import AT_ONCE
from holdfast.stores.postgres.arrays import Blobs, Columns, Numbers, Texts
from holdfast.stores.statements import name_statements, read_migrations

_HERE = Path(__file__).parent

# The store's clock is the database's: the wall clock at the statement. A clock that a test moves replaces it.
_NOW = "coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)"
_AT_ONCE = f"({AT_ONCE} + {_NOW})"
# No lease expires earlier than one TTL after the database has started, so that an outage does not cause a wave of takeovers.
_EXPIRY = (
    "greatest(w.expires_at, CASE WHEN %(now)s::bigint IS NULL THEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint + w.ttl ELSE 0 END)"
)
# Records beside the log are read with their vouchers. A record that was moved to another place in its order is read as altered.
_VOUCHED = "LEFT JOIN holdfast.vouch v ON v.run = {0}.run_id AND v.kind = '{1}' AND v.id = {2}"
# The runs of lineages. A root is not in the index of lineages: it is found by its own id.
_OF_ROOTS = (
    "({0}.lineage_root = ANY(%(roots)s::text[]) AND {0}.lineage_root <> {0}.run_id OR {0}.run_id = ANY(%(roots)s::text[]) AND {0}.lineage_root = {0}.run_id)"
)
_FILLED = {
    **{f"{{{of}_of_roots}}": _OF_ROOTS.format(of) for of in "mrs"},
    "{born}": "r.run_id, {doc}, r.status, t.version, t.step, t.head, r.fence, r.due, t.seq, t.hash, t.n, t.since, t.whole, t.data",
    "{doc}": "(SELECT d.data FROM holdfast.doc d WHERE d.bucket = r.bucket AND d.run = r.id)",
    "{at_once}": _AT_ONCE,
    "{now}": _NOW,
    "{expiry}": _EXPIRY,
    "{effect}": "e.effect_id, e.run_id, e.lineage_root, e.key, CASE WHEN e.placed = e.id THEN e.status END, e.data, v.seal",
    "{effects}": "holdfast.effect e " + _VOUCHED.format("e", "effect", "e.effect_id"),
    "{intent}": "i.data, i.tenant_id, i.state, i.due, i.owner, i.lease_until, i.settled_at, i.type, i.run_id, i.intent_id, i.target, i.order_key, "
    "i.created_at, CASE WHEN i.placed = i.id THEN i.attempts END, i.carries, v.seal",
    "{intents}": "holdfast.intent i " + _VOUCHED.format("i", "intent", "i.intent_id"),
    "{token}": "t.hash, t.run_id, t.wait_id, t.tenant_id, t.actor, t.created_at, t.expires_at, t.used_at, t.revoked_at, v.seal",
    "{tokens}": "holdfast.token t " + _VOUCHED.format("t", "token", "encode(t.hash, 'hex')"),
}


def _fill(text: str) -> str:
    """Replaces placeholders in statements. Parts that several statements share are in the file too, under names of their own."""
    parts = {f"{{{name}}}": part for name, part in vars(name_statements(text)).items() if name.startswith("part_")}
    for name, meant in (parts | _FILLED).items():
        text = text.replace(name, meant)
    return text


Q: Any = name_statements(_fill(_HERE.joinpath("queries.sql").read_text("utf-8")))
MIGRATIONS = read_migrations(_HERE / "migrations")
# Commits that write nothing but their log row and their run's row, by the names that their statements give to the columns.
_HOT: Mapping[str, Any] = {"seq": Numbers, "since": Numbers, "whole": Numbers, "version": Numbers, "step": Texts, "head": Texts, "hash": Blobs, "data": Blobs}
BIRTHS = Columns(Q.births, {
    "bucket": Numbers, "run": Texts, "fence": Numbers, "owner": Texts, "due": Numbers, "holds": Numbers, "status": Texts, "tenant": Texts, "skill": Texts,
    "fingerprint": Texts, "thread": Texts, "session": Texts, "lane": Texts, "queue": Texts, "priority": Numbers, "parent": Texts, "root": Texts, "ended": Numbers,
    "doc": Blobs, **_HOT,
})
MOVES = Columns(Q.moves, {
    "bucket": Numbers, "run": Texts, "fence": Numbers, "keeps": Numbers, "due": Numbers, "due_unread": Numbers, "holds": Numbers, "holds_anew": Numbers, "status": Texts,
    "priority": Numbers, "fingerprint": Texts, "ended": Numbers, "doc": Blobs, "n": Numbers, "after": Blobs, **_HOT,
})
TAKES = Columns(Q.takes, {
    "bucket": Numbers, "run": Texts, "fence": Numbers, "owner": Texts, "due": Numbers, "status": Texts, "priority": Numbers, "fingerprint": Texts, "doc": Blobs,
    "n": Numbers, "after": Blobs, **_HOT,
})
# Statements that each worker asks over each of its connections.
OFTEN = (
    Q.planned_once, Q.claim, Q.claim_single, Q.claimers, Q.lone, Q.named, Q.step, Q.steps, Q.lock_rows, Q.lock_runs,
    *(columns.for_one for columns in (BIRTHS, MOVES, TAKES)), BIRTHS.for_many, MOVES.for_many,
)

__all__ = ["BIRTHS", "MIGRATIONS", "MOVES", "OFTEN", "TAKES", "Q"]
