"""Listings of runs: their statements, and the indexes by which runs are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.status import TERMINAL
from holdfast.ports import RunFilter
from holdfast.stores.postgres.queries import Q

_FILTERS = {
    "tenant_id": "r.tenant_id = %(tenant_id)s",
    "skill_id": "r.skill_id = %(skill_id)s",
    "thread_id": "r.thread_id = %(thread_id)s",
    "session_key": "r.session_key = %(session_key)s",
    "lane": "r.lane = %(lane)s",
    "parent_run_id": "r.parent_run_id = %(parent_run_id)s",
    "lineage_root": "r.lineage_root = %(lineage_root)s",
    "owner": "r.owner = %(owner)s",
    "before": "r.run_id < %(before)s",
}
_OPEN = "r.status NOT IN ('completed', 'failed', 'canceled')"  # the same expression as in an index


def listings(query: RunFilter) -> tuple[list[str], dict[str, Any]]:
    """Returns the statements whose rows are a page of a listing, one after the other, and their values except ``limit``, ``seen`` and
    ``now``."""
    values = {field: getattr(query, field) for field in _FILTERS if getattr(query, field) is not None}
    where = [_FILTERS[field] for field in values]
    if query.statuses is not None:
        where.append("r.status = ANY(%(statuses)s::text[])")
        values["statuses"] = [str(s) for s in query.statuses]
        if not TERMINAL.intersection(query.statuses):
            where.append(_OPEN)
    parts = [(where, "r.turn DESC" if query.by_turn else "r.run_id DESC")]
    if query.ahead:  # at most one run holds a lane, so the first page of due runs comes after it
        values["until"], parts = query.until, [([*where, "r.holds"], "r.turn"), ([*where, Q.runs_due], "r.turn")]
    texts = [_listing(_ways(query), terms, order) for terms, order in parts]
    return texts, values


def _ways(query: RunFilter) -> tuple[str, ...]:
    """Returns the conditions that split a listing if several indexes are needed: each part uses its own."""
    if query.thread_id is not None:  # the run that gives a thread its name is not in the index of threads
        return "r.thread_id <> r.run_id", "r.thread_id = r.run_id AND r.run_id = %(thread_id)s"
    if query.lineage_root is not None:  # nor is the root in the index of lineages
        return "r.lineage_root <> r.run_id", "r.lineage_root = r.run_id AND r.run_id = %(lineage_root)s"
    if query.statuses is None or query.owner is not None:
        return ()
    if query.session_key is not None:
        return () if TERMINAL.intersection(query.statuses) else ("r.holds", "NOT r.holds")
    if query.parent_run_id is not None:
        return ()
    if TERMINAL.issuperset(query.statuses):  # a run that has ended has no owner
        return ("r.owner IS NULL",)
    return "r.owner IS NULL", "r.owner IS NOT NULL"  # a run with an owner is not in the index of statuses, but in that of owners


def _listing(ways: Sequence[str], terms: Sequence[str], order: str) -> str:
    """Returns the statement for a page of runs. Each part returns as many as may be on the page, in their order, so that no index is read
    further than that."""
    if not ways:
        where = f" WHERE {' AND '.join(terms)}" if terms else ""
        return f"{Q.runs.replace('{those}', 'holdfast.run r')}{where} ORDER BY {order} LIMIT %(limit)s OFFSET %(seen)s"
    each = "(SELECT * FROM holdfast.run r WHERE {0} ORDER BY {1} LIMIT %(limit)s::bigint + %(seen)s::bigint)"
    found = " UNION ALL ".join(each.format(" AND ".join([way, *terms]), order) for way in ways)
    return f"{Q.runs.replace('{those}', f'({found}) r')} ORDER BY {order} LIMIT %(limit)s OFFSET %(seen)s"


__all__ = ["listings"]
