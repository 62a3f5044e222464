"""The one suite over stores whose payloads are encrypted (§14.5): what goes in comes out, whatever lies beneath."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.stores.test_conformance import Memory, Postgres, Sqlite, Workspace

from holdfast.encryption import Encryption, Keys
from holdfast.stores import SealedStore
from holdfast.testing.conformance import CASES, Clock

KEYS = Keys({"k1": b"1" * 32})
AS_KEPT = {"adopt", "carry_travels_with_its_origin", "blob_travels_with_its_run", "whoever_is_late_for_a_pruned_run_is_told", "due_at_once_after_an_import"}
"""They hold what was carried here against what it was carried from, byte for byte: test_encryption.py does so for encrypted runs."""


class Sealed:
    """A harness whose store is encrypted, and otherwise that of another."""

    def __init__(self, beneath: Any) -> None:
        self.clock: Clock = beneath.clock
        self.kill = beneath.kill
        self.store: Any = SealedStore(beneath.store, Encryption(KEYS, strict=True))


HEAVY = [pytest.param(h, marks=pytest.mark.heavy, id=h.__name__.lower()) for h in (Memory, Workspace, Postgres)]


@pytest.mark.parametrize("harness", [pytest.param(Sqlite, id="sqlite"), *HEAVY])
@pytest.mark.parametrize("name", sorted(CASES.keys() - AS_KEPT))
def test_conformance(name: str, harness: Any, tmp_path: Path) -> None:
    async def run() -> None:
        h = Sealed(harness(tmp_path))
        await h.store.open()
        try:
            await CASES[name](h)
        finally:
            await h.store.close()

    asyncio.run(run())
