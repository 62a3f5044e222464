"""What LangGraph's own suites are run with: our saver in the place of theirs. This file is copied beside them, into an environment of their own.

As a plugin of pytest (``-p langgraph_guest``) it keeps the tests that ask for a checkpointer, and gives them ours. As a script it runs
the conformance suite that is installed, and prints one line of JSON for each round.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from holdfast.integrations.langgraph import HoldfastSaver

ASKED = {"sync_checkpointer", "async_checkpointer"}
DURABILITY = os.environ.get("HOLDFAST_DURABILITY", "strict")
STRICT_MSGPACK = os.environ.get("LANGGRAPH_STRICT_MSGPACK", "false") == "true"


def saver(folder: str) -> HoldfastSaver:
    """A saver on a store of its own; under strict MessagePack it revives no type that is not allowed by name."""
    url = {"sqlite": f"sqlite:///{folder}/runs.db", "workspace": f"workspace:{folder}/space", "memory": "memory:"}[os.environ.get("HOLDFAST_STORE", "sqlite")]
    return HoldfastSaver.from_url(url, durability=DURABILITY, serde=JsonPlusSerializer(allowed_msgpack_modules=None) if STRICT_MSGPACK else None)


@pytest.fixture
def sync_checkpointer() -> Iterator[HoldfastSaver]:
    with tempfile.TemporaryDirectory() as folder, saver(folder) as found:
        yield found


@pytest.fixture
async def async_checkpointer() -> AsyncIterator[HoldfastSaver]:
    with tempfile.TemporaryDirectory() as folder:
        async with saver(folder) as found:
            yield found


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    left_out = [item for item in items if not ASKED & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


async def conformance() -> dict[str, Any]:
    @checkpointer_test(name="HoldfastSaver")
    async def ours() -> AsyncIterator[HoldfastSaver]:
        with tempfile.TemporaryDirectory() as folder:
            async with saver(folder) as found:
                yield found

    results = (await validate(ours)).results
    return {
        "version": importlib.metadata.version("langgraph-checkpoint-conformance"),
        "capabilities": len(results),
        "detected": sum(r.detected for r in results.values()),
        "passed": sum(r.tests_passed for r in results.values()),
        "failed": [str(f) for r in results.values() for f in r.failures],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(conformance())))
