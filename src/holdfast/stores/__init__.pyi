from holdfast.stores.memory import MemoryStore
from holdfast.stores.postgres.store import PostgresStore, find_schema
from holdfast.stores.sealing import SealedStore
from holdfast.stores.sqlite.connection import schema_number
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.urls import SUPPORTED, open_url, schema_version, seal
from holdfast.stores.workspace import WorkspaceStore

HOMES: dict[str, tuple[str, ...]]

__all__ = ["SUPPORTED", "MemoryStore", "PostgresStore", "SealedStore", "SqliteStore", "WorkspaceStore", "find_schema", "open_url", "schema_number", "schema_version", "seal"]
