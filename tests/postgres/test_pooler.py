"""The tests' own transaction pooler."""

from __future__ import annotations

import asyncio
import gc
import shutil
import struct
import warnings
from pathlib import Path

from tests.postgres.pooler import Pooler


async def test_a_session_that_the_server_refuses_is_closed(tmp_path: Path) -> None:
    """Else it is found by the garbage collector, in the midst of another test."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        said = b"SFATAL\0C53300\0Mtoo many clients\0\0"
        writer.write(b"E" + struct.pack("!I", len(said) + 4) + said)
        await writer.drain()
        writer.close()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        async with await asyncio.start_unix_server(refuse, tmp_path / ".s.PGSQL.5432"):
            pooler = Pooler(tmp_path)
            async with await pooler.listen():
                reader, writer = await asyncio.open_unix_connection(pooler.folder / ".s.PGSQL.5432")
                writer.write(struct.pack("!II", 8, 196608))
                assert await reader.read() == b"", "the client is let go"
                writer.close()
                await writer.wait_closed()
        gc.collect()
    shutil.rmtree(pooler.folder)
    assert [str(w.message) for w in found if w.category is ResourceWarning] == []
