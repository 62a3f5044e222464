"""Stores, and how a URL names one. Each is imported when it is first used."""

from __future__ import annotations

from holdfast.lazily import lazily

HOMES = {
    "holdfast.stores.memory": ("MemoryStore",),
    "holdfast.stores.postgres.store": ("PostgresStore", "find_schema"),
    "holdfast.stores.sealing": ("SealedStore",),
    "holdfast.stores.sqlite.connection": ("schema_number",),
    "holdfast.stores.sqlite.store": ("SqliteStore",),
    "holdfast.stores.urls": ("SUPPORTED", "open_url", "schema_version", "seal"),
    "holdfast.stores.workspace": ("WorkspaceStore",),
}
__all__ = sorted(name for names in HOMES.values() for name in names)  # noqa: PLE0605
__getattr__, __dir__ = lazily(__name__, HOMES)
