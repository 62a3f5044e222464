"""A run as one value: what export, import and copies between stores carry (§12.5)."""

from __future__ import annotations

from holdfast.core import blobs
from holdfast.core.codec import Row, encode_whole, open_row
from holdfast.core.errors import InvalidInput, RunNotFound
from holdfast.core.run import Run, fold
from holdfast.engine.keep.check import keeper
from holdfast.engine.look.threads import Threads
from holdfast.ports import Dossier, Store

MOST = 1_000_000


async def dossier(store: Store, run_id: str) -> Dossier:
    """All there is of a run. Its record is the fold of its events, whatever the row says.

    Raises:
        InvalidInput, RunNotFound: there is no such run.
        StoreCorrupt: its log does not hold together; what is damaged is not passed on as if it were whole.
    """
    if not run_id:
        raise InvalidInput("an empty run id names no run", hint="holdfast runs lists them")
    evidence = await keeper(store).evidence(run_id)
    if evidence is None or evidence.tip is None:
        raise RunNotFound(f"no run {run_id}", hint="holdfast runs lists them")
    rows: list[Row] = []
    large: dict[str, str] = {}
    run: Run | None = None
    previous, after = b"", 0
    while after < evidence.tip.seq and (page := await keeper(store).log(run_id, after)):
        for row in page:
            if row.seq > evidence.tip.seq:
                break
            record = open_row(row, previous)
            for event in record.events:
                run = fold(run, event)
            large |= blobs.named(record.results)
            previous = row.hash
            rows.append(row)
        after = page[-1].seq
    if run is None:
        raise RunNotFound(f"{run_id} has no events")
    effects = await store.effects(run_id)
    origin = await Threads(store).origin(run_id, rows)
    return Dossier(
        run=run,
        rows=tuple(rows),
        origin=None if origin is None else encode_whole(*origin),
        inbox=tuple(await store.inbox(run_id, taken=True)),
        claims=tuple(await keeper(store).claims_of(run_id)),
        effects=tuple(effects),
        intents=tuple(await store.intents(run_id, limit=MOST)),
        ledger=tuple(await store.ledger(run_id)),
        blobs=tuple([blobs.blob_of(await store.blob(digest)) for digest in large | blobs.named((), effects)]),
    )


async def copy(source: Store, target: Store, run_id: str) -> bool:
    """Carries a run over, its events byte for byte; False if it is there already, the same.

    Raises:
        VersionConflict: another run of that id is there.
    """
    return await keeper(target).adopt(await dossier(source, run_id))
