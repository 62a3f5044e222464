"""The one suite over stores whose payloads are encrypted (§14.5): what goes in comes out, whatever lies beneath."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.stores.test_conformance import Memory, Postgres, Sqlite, Workspace

from holdfast.core import canon
from holdfast.core import events as ev
from holdfast.core.errors import PlaintextRefused
from holdfast.core.lease import RELEASE
from holdfast.encryption import Encryption, Keys
from holdfast.engine.keep.transfer import dossier
from holdfast.stores import MemoryStore, SealedStore
from holdfast.testing.conformance import CASES, TTL, Clock, Script, elsewhere, refused
from holdfast.testing.conformance_threads import origin_of

KEYS = Keys({"k1": b"1" * 32})


class Sealed:
    """A harness whose store is encrypted, and otherwise that of another."""

    def __init__(self, beneath: Any) -> None:
        self.clock: Clock = beneath.clock
        self.kill = beneath.kill
        self.store: Any = SealedStore(beneath.store, Encryption(KEYS, strict=True))


HEAVY = [pytest.param(h, marks=pytest.mark.heavy, id=h.__name__.lower()) for h in (Memory, Workspace, Postgres)]


@pytest.mark.parametrize("harness", [pytest.param(Sqlite, id="sqlite"), *HEAVY])
@pytest.mark.parametrize("name", sorted(CASES))
def test_conformance(name: str, harness: Any, tmp_path: Path) -> None:
    async def run() -> None:
        h = Sealed(harness(tmp_path))
        await h.store.open()
        try:
            await CASES[name](h)
        finally:
            await h.store.close()

    asyncio.run(run())


async def test_what_comes_plain_from_elsewhere_is_refused_wherever_it_stands(tmp_path: Path) -> None:
    """§14.5: under strict encryption nothing of a run is taken in plain: neither its row, nor what it carries from its thread."""
    h = Sealed(Memory(tmp_path))
    there, plain = elsewhere(h), MemoryStore(now=h.clock)
    for store in (there, plain):
        await store.register("w", TTL)
        script = await Script(store, "r1").begin("w")
        await script.write(script.commit(ev.RunCompleted(canon.encode("a secret")), lease=RELEASE))
    sealed, bare = await dossier(there, "r1"), await dossier(plain, "r1")
    for wrong in (bare, replace(sealed, run=bare.run), replace(sealed, origin=origin_of("r1"))):
        await refused(PlaintextRefused, h.store.adopt(wrong))
        assert await h.store.get("r1") is None
    assert await h.store.adopt(sealed)
