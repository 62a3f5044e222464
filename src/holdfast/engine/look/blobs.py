"""Large results read back where they are needed: a run is loaded with the references alone."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from holdfast.core import blobs
from holdfast.core.checkpoint import StepRecord
from holdfast.core.effects import Effect
from holdfast.ports import Store

T = TypeVar("T", StepRecord, Effect)


async def whole(store: Store, record: T) -> T:
    """The record with its result, also where that is kept apart.

    Raises:
        StoreCorrupt: ``blob_unreadable``: it is gone, or not what was written.
    """
    blob = blobs.referred(record.result if isinstance(record, Effect) else record.value)
    if blob is None:
        return record
    data = await store.blob(blob.digest)
    return replace(record, result=data) if isinstance(record, Effect) else replace(record, value=data)


__all__ = ["whole"]
