"""How a URL names a store. The code of a store is imported when a URL first names one of its kind."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import cast
from urllib.parse import unquote

from holdfast import stores
from holdfast.core import addresses
from holdfast.core.errors import UsageError
from holdfast.encryption import Encryption
from holdfast.ports import Store

SUPPORTED = "sqlite:///relative.db, sqlite:////absolute.db, postgresql://user@host/database, workspace:DIR, memory:"
POSTGRES = ("postgresql", "postgres")


def open_url(url: str, *, now: Callable[[], int] | None = None) -> Store:
    """Returns the store that a URL names; nothing is opened or created yet. ``now`` replaces its clock.

    Raises:
        UsageError: another scheme, or a URL without a path; the hint lists what is supported.
    """
    if url in ("memory:", "memory://"):
        return stores.MemoryStore(now=now)
    scheme, colon, rest = url.partition(":")
    if scheme == "workspace" and rest and "\0" not in rest:
        return stores.WorkspaceStore(rest, now=now)
    if scheme == "sqlite" and colon and rest.startswith("///"):
        path = unquote(rest[3:])
        if path == ":memory:":
            raise UsageError("SQLite in memory cannot be shared by its connections", hint="use memory:")
        if path and "\0" not in path and "?" not in path:
            return stores.SqliteStore(path, now=now)
    if scheme in POSTGRES and rest.startswith("//"):
        if importlib.util.find_spec("psycopg") is None:
            raise UsageError("a postgresql:// store needs psycopg", hint="pip install 'holdfast[postgres]'")
        return stores.PostgresStore(url, now=now)
    meant = _guess(url)
    raise UsageError(f"{addresses.mask(url)!r} is not the URL of a store", hint=f"{f'did you mean {meant}? ' if meant else ''}supported: {SUPPORTED}")


def _guess(url: str) -> str:
    """Returns what was most likely meant: a file with too few slashes or none, or memory written another way. Empty if there is no guess."""
    scheme, colon, rest = url.partition(":")
    if url.strip(":/") == "memory" or url in ("sqlite:", "sqlite://"):
        return "memory:"
    if scheme == "sqlite" and colon and "?" not in rest and "\0" not in rest:
        return f"sqlite:///{rest.removeprefix('//')}" if rest.strip("/") else ""
    return f"sqlite:///{url}" if not colon and url.endswith((".db", ".sqlite", ".sqlite3")) else ""


def seal(store: Store, encryption: Encryption | None) -> Store:
    """Returns the store with its payloads encrypted (§14.5); without encryption the store itself, so that nothing is paid for what is not used.

    Raises:
        UsageError: the cryptography package is not installed.
    """
    if encryption is None:
        return store
    if importlib.util.find_spec("cryptography") is None:
        raise UsageError("encryption needs the cryptography package", hint="pip install 'holdfast[crypto]'")
    return cast(Store, stores.SealedStore(store, encryption))


def schema_version(url: str) -> int | None:
    """Returns the schema number of the store that a URL names, without changing it; None if there is no store yet, or none with a schema."""
    if url.partition(":")[0] in POSTGRES and importlib.util.find_spec("psycopg") is not None:
        return stores.find_schema(url)
    path = unquote(url.removeprefix("sqlite:///"))
    return stores.schema_number(path) if url.startswith("sqlite:///") and os.path.isfile(path) else None


__all__ = ["SUPPORTED", "open_url", "schema_version", "seal"]
