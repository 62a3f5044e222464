"""A run as one value, for export, import and copies between stores (§12.5)."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import blobs, envelopes, ids, intents, payloads
from holdfast.core import events as ev
from holdfast.core.bounds import text
from holdfast.core.codec import Row, encode_whole, open_row
from holdfast.core.commit import Commit
from holdfast.core.errors import InvalidInput, RunNotFound, UsageError, VersionConflict
from holdfast.core.lease import TOUCH, counter
from holdfast.core.run import Run, fold, fold_all
from holdfast.engine.keep.check import keeper
from holdfast.engine.look.snapshot import missing
from holdfast.engine.look.threads import Threads
from holdfast.ports import Dossier, ShelfRow, Store, as_kept, offers_sealing, offers_shelves

MOST = 1_000_000
PAGE = 500
OURS = "holdfast."
"""Shelves whose names begin like this are the runtime's own: access tokens, sessions, answers. No run takes rows of them along, and none brings any."""


async def dossier(source: Store, run_id: str, *, opened: bool = False) -> Dossier:
    """Reads everything about a run. Its record is the fold of its events, whatever the row says. Encrypted data stays encrypted unless
    ``opened``: then the dossier is only for reading, without rows of shelves, and no store accepts it.

    Raises:
        InvalidInput, RunNotFound: there is no such run.
        StoreCorrupt: its log is inconsistent; damaged data is not passed on as if it were sound.
    """
    if not run_id:
        raise InvalidInput("the run id is empty", hint="list the runs: holdfast runs")
    store = source if opened else as_kept(source)
    evidence = await keeper(store).evidence(run_id)
    if evidence is None or evidence.tip is None:
        raise await missing(store, run_id)
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
            large |= blobs.name_blobs(record.results)
            previous = row.hash
            rows.append(row)
        after = page[-1].seq
    if run is None:
        raise RunNotFound(f"{run_id} has no events")
    effects = await store.effects(run_id)
    found = await Threads(source).origin(run_id, rows)
    origin = None if found is None else encode_whole(*found)
    if origin is not None and not opened and offers_sealing(source):
        origin = await source.seal_origin(run_id, origin)
    named = large | blobs.name_blobs((), effects)
    return Dossier(
        run=run,
        rows=tuple(rows),
        origin=origin,
        inbox=tuple(await store.inbox(run_id, taken=True)),
        claims=tuple(await keeper(store).claims_of(run_id)),
        effects=tuple(effects),
        intents=tuple(await store.intents(run_id, limit=MOST)),
        ledger=tuple(await store.ledger(run_id)),
        blobs=tuple([blobs.Blob(digest, len(data), data) for digest in named for data in [await store.blob(digest)]]),
        shelved=() if opened else await _find_shelved(store, run_id),
    )


async def _find_shelved(store: Store, run_id: str) -> tuple[ShelfRow, ...]:
    """Returns the rows of shelves whose keys begin with the run's id, except those of the runtime's own shelves (§19.2)."""
    if not offers_shelves(store):
        return ()
    found: list[ShelfRow] = []
    for shelf in await store.list_shelves():
        after = ""
        while not shelf.startswith(OURS) and (page := await store.shelf_scan(shelf, run_id, after, PAGE)):
            found += [ShelfRow(shelf, key, data) for key, data in page]
            after = page[-1][0]
    return tuple(found)


async def write_out(d: Dossier, target: Store) -> None:
    """Exports a run into a workspace. The rows of shelves that an older export of it left there are replaced by those of this one.

    Raises:
        VersionConflict: a different run with that id is there.
    """
    run_id = d.run.run_id
    await keeper(target).adopt(replace(d, shelved=()))
    there = await _find_shelved(target, run_id)
    if there == d.shelved or not offers_shelves(target):
        return
    for shelf in sorted({row.shelf for row in (*there, *d.shelved)}):
        await target.unshelve(shelf, run_id)
        await target.shelve(shelf, {row.key: row.data for row in d.shelved if row.shelf == shelf})


def keys_in(d: Dossier) -> tuple[str, ...]:
    """Returns the keys with which payloads in a run's dossier are encrypted; empty if none is encrypted (§14.5)."""
    found = set(payloads.keys_of(d.run))
    for row in d.rows:
        if envelopes.MARK in row.data:
            record = open_row(row)
            parts = (*(e.fact for e in record.events if not isinstance(e.fact, ev.Unknown)), record.results, record.delta)
            found.update(*(payloads.keys_of(part) for part in parts if part is not None))
    for beside in (d.inbox, d.effects, d.intents, d.ledger):
        found.update(payloads.keys_of(beside))
    found.update(header.key_id for row in d.shelved if envelopes.is_sealed(row.data) and (header := envelopes.header_of(row.data)) is not None)
    return tuple(sorted(found))


async def copy(source: Store, target: Store, run_id: str) -> bool:
    """Copies a run to another store, its events byte for byte. Returns False if the same run is there already.

    Raises:
        VersionConflict: a different run with that id is there.
    """
    return await keeper(target).adopt(await dossier(source, run_id))


async def take_in(source: Store, target: Store, run_id: str) -> bool:
    """Imports a run from outside. Returns False if the same run is here already.

    Nothing here is overwritten. An unfinished run is held: it may continue where it comes from, and no effect may happen in two
    places, so it stays interrupted until a named actor resumes it (§10.6). A message that was not sent yet may still be sent there, so it is in doubt here (§9.4).

    Raises:
        InvalidInput: an id in it is not valid, or belongs to another run.
        VersionConflict: a different run with that id is here, or a different record with the id of one of its records, or another value under the
            key of one of its rows of shelves.
        UsageError: it has rows of shelves, and this store has no shelves.
    """
    found = replace(await dossier(source, run_id), held=True)
    if found.run.run_id != run_id:
        raise InvalidInput(f"the directory {run_id!r} holds a run that names itself {found.run.run_id!r}", hint="export it again")
    if (why := foreign(found)) is not None:
        raise InvalidInput(f"{run_id} cannot be imported: {why}", hint="export it again, from the store where it ran")
    if found.shelved and not offers_shelves(target):
        raise UsageError(f"{run_id} has rows of shelves, and {target.url} does not support shelves", hint="import it into a store of another kind")
    await _check_unused(target, found)
    found = replace(found, intents=tuple([intents.take_in(i, target.now()) for i in found.intents]))
    if not await keeper(target).adopt(found):
        return False
    if not found.run.terminal and found.run.interrupted_at is None:
        await _hold(target, run_id)
    return True


def foreign(d: Dossier) -> str | None:
    """Says what in a dossier is not a valid id, cannot be stored, or belongs to another run; None if all belongs to the run."""
    run_id = d.run.run_id
    named = [("run", run_id), ("lineage root", d.run.lineage_root)]
    named += [("parent or source run", n) for n in (d.run.parent_run_id, d.run.source_run_id) if n is not None]
    for what, name in named:
        if not ids.is_wellformed(name):
            return f"{name!r} is not a valid id of a {what}"
    for effect in d.effects:
        if effect.run_id != run_id or effect.lineage_root != d.run.lineage_root or not effect.effect_id.startswith(f"{run_id}."):
            return f"the effect {effect.effect_id!r} belongs to another run"
    for intent in d.intents:
        if intent.run_id != run_id or not ids.is_wellformed(intent.intent_id) or intent.tenant_id != d.run.tenant_id:
            return f"the intent {intent.intent_id!r} belongs to another run"
    for record in (*d.effects, *d.intents, *d.inbox, *d.claims, *d.ledger):
        for name in record.__struct_fields__:
            value = getattr(record, name)
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                return f"{name} of a {type(record).__name__} is a number that a store cannot hold"
            if isinstance(value, str) and ("\0" in value or (not value.isascii() and value != value.encode("utf-8", "replace").decode())):
                return f"{name} of a {type(record).__name__} is a text that a store cannot hold"
    for row in d.shelved:
        if row.shelf.startswith(OURS):
            return f"it has a row of the shelf {row.shelf!r}, which is the runtime's own"
        if not row.key.startswith(run_id):
            return f"the row {row.key!r} of the shelf {row.shelf!r} does not begin with its id"
        text(row.shelf, "the name of a shelf")
        text(row.key, "the key of a row")
    others = [*((c.run_id, "claim") for c in d.claims), *((i.run_id, "inbox item") for i in d.inbox), *((r.run_id, "ledger row") for r in d.ledger)]
    return next((f"a {what} belongs to the run {owner!r}" for owner, what in others if owner != run_id), None)


async def _check_unused(target: Store, d: Dossier) -> None:
    """Refuses records whose ids are here already with other content: records that are here are not changed."""
    if await target.get(d.run.run_id) is not None:
        return  # the same run or a different one: ``adopt`` decides
    for effect in d.effects:
        for there in await as_kept(target).effects(key=effect.key):
            if there.effect_id == effect.effect_id and there != effect:
                raise VersionConflict(f"the effect {effect.effect_id} is here already, with different content", hint="compare both; nothing was changed")
    for intent in d.intents:
        if await target.intent(intent.intent_id) is not None:
            raise VersionConflict(f"the intent {intent.intent_id} is here already", hint="compare both; nothing was changed")


async def _hold(target: Store, run_id: str) -> None:
    """Marks an unfinished run that was imported as interrupted, with an event in its log."""
    loaded = await target.load(run_id)
    assert loaded is not None, "it was imported a moment ago"
    at, fence = target.now(), loaded.lease.fence + 1
    event = ev.Event(loaded.tip.seq + 1, at, ev.RunInterrupted("it was imported unfinished, and the original may still continue in its own store"), "import", counter(fence))
    run = fold_all(loaded.run, (event,))
    await target.commit(Commit(run=run, events=(event,), after=loaded.tip, fence=fence, at=at, actor="import", lease=TOUCH))


__all__ = ["copy", "dossier", "foreign", "keys_in", "take_in", "write_out"]
