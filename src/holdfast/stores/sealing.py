"""A store in front of another one that encrypts payloads on their way in and decrypts them on their way out (§14.5).

It works on the values of the port, so it can stand in front of every store alike; values that it does not know are passed on unchanged. The store
beneath sees ids, statuses, times and digests as before: it folds, claims, vouches and hash-chains over what it stores, and needs no key for that.

A payload whose key is missing stays sealed in listings and other views, and decoding it raises ``KeyUnavailable``; loading a run to drive it is
refused at once. Under strict encryption, a payload that is not encrypted is refused wherever it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from msgspec.structs import replace

from holdfast.core import blobs, canon, codec, envelopes
from holdfast.core.blobs import Blob
from holdfast.core.checkpoint import Checkpoint
from holdfast.core.chunks import Batch, Emitted, Stored
from holdfast.core.codec import Record, Row
from holdfast.core.commit import Commit, InboxItem, LedgerRow, Settlement, Tip
from holdfast.core.effects import Effect
from holdfast.core.errors import EventUnreadable, HoldfastError, KeyUnavailable, PlaintextRefused
from holdfast.core.events import Event, Unknown, WaitDecided, WaitTimedOut
from holdfast.core.intents import Intent
from holdfast.core.lease import Lease
from holdfast.core.payloads import change_each, may_be_plain
from holdfast.core.run import Run
from holdfast.core.schedules import Move, Schedule
from holdfast.core.waits import WaitKind
from holdfast.encryption import Encryption
from holdfast.ports import Dossier, Evidence, Head, Loaded, RunFilter, Store, offers_counting, offers_heads
from holdfast.stores.vault import Vault

VALUES = ""
"""The one channel of a sealed checkpoint: all values in one envelope. No program can have a channel of this name."""
_TENANTS = 100_000


class Passes(Enum):
    """What becomes of a verb or attribute of the store beneath that this store does not implement itself."""

    CLEAR = "it carries no payload: it is the store's own beneath"
    REFUSED = "it would carry payloads past the encryption: an encrypted store has none"


VERBS: Mapping[str, Passes] = {
    **dict.fromkeys(
        (
            "abandon", "acknowledge", "backlog", "backup", "claim", "claims_of", "close", "drop_payloads", "drop_schedule", "enter", "find_claim",
            "find_marked", "find_pruned", "folder", "has_server", "health", "incarnation", "intent_counts", "issue_token", "leave", "list_carries", "list_shelves", "look_again", "now",
            "offer", "open", "outlive", "owner_alive", "path", "patience", "place", "prune", "put_rule", "register", "reindex", "release", "renew", "renew_intents",
            "restore", "retire", "rules", "run_ids", "suspect", "takes_statements", "tally", "thread_end", "token", "unshelve", "url", "usage", "verify",
            "vouch_anew", "wait_for_change", "workers",
        ),
        Passes.CLEAR,
    ),
    "claim_or_load": Passes.REFUSED,  # claimed runs are loaded by ``load``
    "load_if_ended": Passes.REFUSED,  # runs are decrypted by ``load``
    "step": Passes.REFUSED,  # without it a plain step comes as a commit
    **dict.fromkeys(("gathers", "join", "step_at_once"), Passes.REFUSED),  # for the same reason
    "note": Passes.REFUSED,  # a file for people in a run's directory
    **dict.fromkeys(("keep_tail", "take_tail"), Passes.REFUSED),  # lost effects as they are stored: callers ask the store beneath for them
    **dict.fromkeys(("rings", "unmake"), Passes.CLEAR),
}
"""All that stores offer, apart from what ``SealedStore`` implements itself. A test compares it with the ports and with every store, so a new verb
must be added here with what becomes of it; until then an encrypted store does not have that verb."""
T = TypeVar("T")



class _Later(Mapping[str, Any]):
    """A checkpoint's values, encrypted only when they are read, because most checkpoints are never written whole."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make

    def __getitem__(self, name: str) -> bytes:
        if name != VALUES:
            raise KeyError(name)
        return self._make()

    def __iter__(self) -> Iterator[str]:
        return iter((VALUES,))

    def __len__(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Payloads:
    """The payloads of one run: sealed on their way in, opened on their way out.

    ``run_id`` is empty for payloads of no run; ``tenant_id`` is None if it is unknown, and then nothing can be sealed. ``must``: a payload whose key
    is missing is an error; otherwise it stays sealed. ``plain``: the places that are not encrypted. ``opened``: nothing that is written is still sealed,
    so that a text that looks so was given by somebody, and is sealed like any other.
    """

    vault: Vault
    tenant_id: str | None
    run_id: str
    strict: bool
    must: bool = False
    plain: frozenset[str] = frozenset()
    opened: bool = False

    # -- in -----------------------------------------------------------------------------------------

    def seal(self, value: T, place: str = "") -> T:
        sealed: T = change_each(value, place, self._seal)
        return sealed

    def _seal(self, value: bytes | str, place: str) -> bytes | str:
        if place in self.plain or (not self.opened and self._mine(value, place)):
            return value
        made = self.data(value.encode() if isinstance(value, str) else value, place)
        return envelopes.as_text(made) if isinstance(value, str) else made

    def data(self, value: bytes, place: str) -> bytes:
        assert self.tenant_id is not None, "what is written has a tenant"
        return self.vault.seal(value, self.tenant_id, self.run_id, place)

    def _mine(self, value: bytes | str, place: str) -> bool:
        """Whether a value is already sealed for this very place: it could not be opened, and is written back unchanged."""
        header = envelopes.header_of(value) if envelopes.is_sealed(value) else None
        return header is not None and (header.run_id, header.place) == (self.run_id, place)

    def checkpoint(self, cp: Checkpoint) -> Checkpoint:
        """Returns the checkpoint as a store may keep it whole."""
        place = f"checkpoint:{cp.seq}"
        values = _Later(lambda: self.data(canon.encode(canon.FrozenDict(cp.values)), f"{place}.values"))
        held = {step: {VALUES: self.data(canon.encode(canon.FrozenDict(seen)), f"{place}.held:{step}")} for step, seen in cp.held.items()}
        unfinished = None if cp.unfinished is None else self.seal(cp.unfinished, f"{place}.unfinished")
        return replace(
            cp, values=values, pending=self.seal(cp.pending, place), waits=self.seal(cp.waits, place), writes={}, held=held, unfinished=unfinished
        )

    # -- out ----------------------------------------------------------------------------------------

    def open(self, value: T, place: str = "") -> T:
        opened: T = change_each(value, place, self._open)
        return opened

    def _open(self, value: Any, place: str) -> Any:
        if not envelopes.is_sealed(value):
            return self._as_it_is(value, place)
        try:
            data = self.vault.open(value, self.tenant_id, self.run_id, place)
        except KeyUnavailable:
            if self.must:
                raise
            return value
        except EventUnreadable:
            if isinstance(value, str) and not self.strict:
                return value  # a text from before the encryption that only looks sealed
            raise
        return data.decode() if isinstance(value, str) else data

    def _as_it_is(self, value: Any, place: str) -> Any:
        if self.strict and not may_be_plain(value, place):
            raise self.refuse(place)
        return value

    def refuse(self, place: str) -> PlaintextRefused:
        whose = f" of {self.run_id}" if self.run_id else ""
        return PlaintextRefused(f"{place}{whose} is not encrypted, and the encryption is strict", hint="read it once with strict=False, or find out which process wrote it")

    def whole(self, cp: Checkpoint) -> Checkpoint:
        """Opens a whole checkpoint as it is stored. If its key is missing it is refused, because it is useless without its values."""
        place = f"checkpoint:{cp.seq}"
        kept = cp.values.get(VALUES)
        if kept is None:
            if self.strict and cp.values:
                raise self.refuse(f"{place}.values")
            values = cp.values
        else:
            values = canon.decode(self.vault.open(kept, self.tenant_id, self.run_id, f"{place}.values"))
        held = {
            step: canon.decode(self.vault.open(seen[VALUES], self.tenant_id, self.run_id, f"{place}.held:{step}")) if VALUES in seen else seen
            for step, seen in cp.held.items()
        }
        unfinished = None if cp.unfinished is None else self.open(cp.unfinished, f"{place}.unfinished")
        return replace(cp, values=values, pending=self.open(cp.pending, place), waits=self.open(cp.waits, place), held=held, unfinished=unfinished)

    def batch(self, batch: Batch, change: Callable[[Any, str], Any]) -> Batch:
        """Seals or opens chunks, each by its number in its turn."""
        changed = tuple([change(c, f"chunk:{batch.turn.key}:{n}") for n, c in enumerate(batch.chunks, batch.first)])
        return replace(batch, chunks=changed)

    def seal_batch(self, batch: Batch) -> Batch:
        return self.batch(batch, self._seal)

    def open_batch(self, batch: Batch) -> Batch:
        return self.batch(batch, self._open)

    def record(self, record: Record) -> Record:
        place = f"log:{record.seq}"
        events = tuple([self.event(e) for e in record.events])
        delta = None if record.delta is None else self.open(record.delta, f"{place}.delta")
        data = record.delta_bytes if delta is record.delta else codec.encode_delta(delta)  # type: ignore[arg-type]
        return replace(record, events=events, delta=delta, delta_bytes=data, results=self.open(record.results, place))

    def event(self, event: Event) -> Event:
        return event if isinstance(event.fact, Unknown) else replace(event, fact=self.open(event.fact, f"event:{event.seq}"))

    def row(self, row: Row) -> Row:
        return Row(row.seq, row.data, row.hash, self)


class SealedStore:
    """A store whose payloads are encrypted before they reach the store beneath. Verbs that carry no payload are passed on to that store."""

    def __init__(self, store: Store, encryption: Encryption) -> None:
        self.as_kept = store
        self.encryption = encryption
        self._vault = Vault(encryption.keys)
        self._tenants: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        if VERBS.get(name) is not Passes.CLEAR:  # a new verb may carry a payload: this store does not have it until ``VERBS`` says so
            raise AttributeError(f"an encrypted store has no {name!r}", name=name, obj=self)
        return getattr(self.as_kept, name)

    def _of(
        self, run_id: str, tenant_id: str | None = None, *, must: bool = False, plain: frozenset[str] = frozenset(), opened: bool = False
    ) -> Payloads:
        known = self._tenants.get(run_id) if tenant_id is None else tenant_id
        return Payloads(self._vault, known, run_id, self.encryption.strict, must, plain, opened)

    def _note(self, run_id: str, tenant_id: str) -> None:
        if len(self._tenants) >= _TENANTS:
            self._tenants.clear()
        self._tenants[run_id] = tenant_id

    async def _tenant(self, run_id: str) -> str | None:
        """Returns a run's tenant, which never changes."""
        if run_id not in self._tenants and (found := await self.as_kept.get(run_id)) is not None:
            self._note(run_id, found[0].tenant_id)
        return self._tenants.get(run_id)

    # -- runs and their logs ------------------------------------------------------------------------

    async def commit(self, commit: Commit) -> Tip:
        return await self.as_kept.commit(await self._seal(commit))

    async def _seal(self, c: Commit, *, opened: bool = True) -> Commit:
        """Returns the commit as it is stored. ``opened``: its run was loaded with all its keys, as every run is that is driven or decided about."""
        run = c.run
        self._note(run.run_id, run.tenant_id)
        of = self._of(run.run_id, run.tenant_id, plain=await self._amounts(c), opened=opened)
        seq = c.events[-1].seq
        place = f"log:{seq}"
        delta = None if c.delta is None else codec.encode_delta(of.seal(codec.decode_delta(c.delta), f"{place}.delta"))
        return replace(
            c,
            run=of.seal(run),
            events=tuple([e if isinstance(e.fact, Unknown) else replace(e, fact=of.seal(e.fact, f"event:{e.seq}")) for e in c.events]),
            checkpoint=None if c.checkpoint is None else of.checkpoint(c.checkpoint),
            stands=None if c.stands is None else of.checkpoint(c.stands),
            delta=delta,
            results=of.seal(c.results, place),
            effects=tuple([self._effect(e) for e in c.effects]),
            puts=tuple([self._of(i.run_id, self._tenants.get(i.run_id, run.tenant_id), opened=True).seal(i) for i in c.puts]),
            creates=tuple([await self._seal(child) for child in c.creates]),
            intents=tuple([self._intent(i) for i in c.intents]),
            ledger=tuple([of.seal(r) for r in c.ledger]),
            blobs=tuple([self._blob(b, run.tenant_id) for b in c.blobs]),
            moves=tuple([Move(await self._before(m.before), self._schedule(m.after)) for m in c.moves]),
            emitted=None if c.emitted is None else replace(c.emitted, batches=tuple([of.seal_batch(b) for b in c.emitted.batches])),
        )

    async def _amounts(self, c: Commit) -> frozenset[str]:
        """Returns the places of answers that extend budgets: amounts, which every fold must read, with or without a key."""
        decided = {e.fact.decision.wait_id for e in c.events if isinstance(e.fact, WaitDecided | WaitTimedOut)}
        found = await self.as_kept.get(c.run.run_id) if decided and c.run.budgets else None
        waits = () if found is None else found[0].waits
        return frozenset(f"decision:{w.wait_id}.payload" for w in waits if w.wait_id in decided and w.kind is WaitKind.BUDGET)

    def _run(self, run: Run, *, must: bool = False) -> Run:
        self._note(run.run_id, run.tenant_id)
        return self._of(run.run_id, run.tenant_id, must=must).open(run)

    async def load(self, run_id: str) -> Loaded | None:
        found = await self.as_kept.load(run_id)
        if found is None:
            return None
        run = self._run(found.run, must=True)
        of = self._of(run_id, run.tenant_id, must=True)
        whole = None if found.whole is None else (of.whole(found.whole[0]), found.whole[1])
        return replace(
            found, run=run, whole=whole, rows=tuple([of.row(r) for r in found.rows]), inbox=tuple([of.open(i) for i in found.inbox]),
            emitted=tuple([of.open_batch(b) for b in found.emitted]),
        )

    async def heads(self, run_ids: Sequence[str]) -> dict[str, Head]:
        """Returns no heads if the store beneath cannot load many at once."""
        out: dict[str, Head] = {}
        for run_id, head in (await self.as_kept.heads(run_ids) if offers_heads(self.as_kept) else {}).items():
            of = self._of(run_id, await self._tenant(run_id), must=True)
            with suppress(HoldfastError):  # loading this run alone reports what is wrong with it
                whole = None if head.whole is None else (of.whole(head.whole[0]), head.whole[1])
                out[run_id] = Head(whole, tuple([of.row(r) for r in head.rows]))
        return out

    async def get(self, run_id: str) -> tuple[Run, Lease] | None:
        found = await self.as_kept.get(run_id)
        return None if found is None else (self._run(found[0]), found[1])

    async def runs(self, query: RunFilter) -> list[tuple[Run, Lease]]:
        out = []
        for run, lease in await self.as_kept.runs(query):
            try:
                out.append((self._run(run), lease))
            except HoldfastError:
                pass  # an unreadable run does not hide the others; the checker names it (§3.6)
        return out

    async def rows(self, run_id: str, after: int = 0, limit: int | None = None) -> list[Row]:
        await self._tenant(run_id)
        return [self._of(run_id).row(r) for r in await self.as_kept.rows(run_id, after, limit)]

    async def emit(self, emitted: Sequence[Emitted]) -> None:
        out = []
        for e in emitted:
            tenant = await self._tenant(e.run_id)
            out.append(e if tenant is None else replace(e, batches=tuple([self._of(e.run_id, tenant).seal_batch(b) for b in e.batches])))
        await self.as_kept.emit(out)

    async def chunks(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Stored]:
        await self._tenant(run_id)
        return [replace(s, batch=self._of(run_id).open_batch(s.batch)) for s in await self.as_kept.chunks(run_id, after, limit)]

    # -- commands -----------------------------------------------------------------------------------

    async def put(self, item: InboxItem) -> InboxItem:
        return self._item(await self.as_kept.put(await self._put(item)))

    async def redeem_token(self, hash: bytes, item: InboxItem) -> InboxItem:
        return self._item(await self.as_kept.redeem_token(hash, await self._put(item)))

    async def inbox(self, run_id: str, *, taken: bool = False) -> list[InboxItem]:
        await self._tenant(run_id)
        return [self._item(i) for i in await self.as_kept.inbox(run_id, taken=taken)]

    async def _put(self, item: InboxItem) -> InboxItem:
        found = await self.as_kept.get(item.run_id)
        if found is None:
            return item  # the store beneath reports that there is no such run
        run = self._run(found[0], must=True)  # a caller that cannot read a run must not write to it
        return self._of(run.run_id, run.tenant_id, opened=True).seal(item)

    def _item(self, item: InboxItem) -> InboxItem:
        return self._of(item.run_id).open(item)

    # -- what lies beside the logs ------------------------------------------------------------------

    def _effect(self, effect: Effect) -> Effect:
        return self._of(effect.run_id, effect.tenant_id).seal(effect)

    async def effects(self, run_id: str | None = None, *, key: str | None = None, lineage_root: str | None = None) -> list[Effect]:
        found = await self.as_kept.effects(run_id, key=key, lineage_root=lineage_root)
        return [self._of(e.run_id, e.tenant_id).open(e) for e in found]

    async def newest_effects(self, tenant_id: str | None = None, *, statuses: Sequence[str] = (), limit: int = 100) -> list[Effect]:
        assert offers_counting(self.as_kept)
        found = await self.as_kept.newest_effects(tenant_id, statuses=statuses, limit=limit)
        return [self._of(e.run_id, e.tenant_id).open(e) for e in found]

    async def open_effects(self, owner: str) -> list[Effect]:
        return [self._of(e.run_id, e.tenant_id).open(e) for e in await self.as_kept.open_effects(owner)]

    async def settle_effect(self, effect: Effect, expected: str) -> bool:
        return await self.as_kept.settle_effect(self._effect(effect), expected)

    def _intent(self, intent: Intent) -> Intent:
        return self._of(intent.run_id, intent.tenant_id).seal(intent)

    def _clear(self, intent: Intent) -> Intent:
        return self._of(intent.run_id, intent.tenant_id).open(intent)

    async def intents(
        self,
        run_id: str | None = None,
        *,
        state: str | None = None,
        type: str | None = None,
        tenant_id: str | None = None,
        after: str | None = None,
        limit: int = 500,
    ) -> list[Intent]:
        found = await self.as_kept.intents(run_id, state=state, type=type, tenant_id=tenant_id, after=after, limit=limit)
        return [self._clear(i) for i in found]

    async def intent(self, intent_id: str) -> Intent | None:
        found = await self.as_kept.intent(intent_id)
        return None if found is None else self._clear(found)

    async def claim_intents(self, owner: str, types: Sequence[str], **wanted: Any) -> list[Intent]:
        return [self._clear(i) for i in await self.as_kept.claim_intents(owner, types, **wanted)]

    async def settle_intents(self, settlements: Sequence[Settlement]) -> list[bool]:
        return await self.as_kept.settle_intents([await self._settlement(s) for s in settlements])

    async def _settlement(self, s: Settlement) -> Settlement:
        of = self._of(s.before.run_id, s.before.tenant_id)
        return replace(
            s,
            before=self._intent(s.before),
            after=self._intent(s.after),
            ledger=tuple([of.seal(r) for r in s.ledger]),
            puts=tuple([await self._put(i) for i in s.puts]),
            intents=tuple([self._intent(i) for i in s.intents]),
            blobs=tuple([self._blob(b, s.before.tenant_id) for b in s.blobs]),
        )

    async def ledger(
        self,
        run_id: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        tenant_id: str | None = None,
        after: int | None = None,
        limit: int | None = None,
    ) -> list[LedgerRow]:
        found = await self.as_kept.ledger(run_id, topic=topic, key=key, tenant_id=tenant_id, after=after, limit=limit)
        return [self._of(r.run_id).open(r) for r in found]

    def _blob(self, blob: Blob, tenant_id: str) -> Blob:
        if blob.data is None or blobs.envelope_of(blob.data) is not None:
            return blob
        return replace(blob, data=blobs.seal(self._of("", tenant_id).data(blob.data, blobs.place(blob.digest))))

    async def blob(self, digest: str) -> bytes:
        kept = await self.as_kept.blob(digest)
        envelope, place = blobs.envelope_of(kept), blobs.place(digest)
        if envelope is not None:
            return blobs.read_back(digest, self._vault.open(envelope, None, "", place))
        if self.encryption.strict:
            raise self._of("").refuse(place)
        return kept

    # -- schedules ----------------------------------------------------------------------------------

    def _schedule(self, schedule: Schedule) -> Schedule:
        return self._of("", schedule.tenant_id).seal(schedule)

    def _open(self, schedule: Schedule) -> Schedule:
        return self._of("", schedule.tenant_id).open(schedule)

    async def _before(self, before: Schedule) -> Schedule:
        """Returns the stored schedule if it is the one that the caller has seen, because the store beneath compares sealed values."""
        kept = await self.as_kept.schedule(before.schedule_id)
        return kept if kept is not None and self._open(kept) == before else self._schedule(before)

    async def put_schedule(self, schedule: Schedule, before: Schedule | None) -> bool:
        return await self.as_kept.put_schedule(self._schedule(schedule), None if before is None else await self._before(before))

    async def schedule(self, schedule_id: str) -> Schedule | None:
        found = await self.as_kept.schedule(schedule_id)
        return None if found is None else self._open(found)

    async def schedules(self, due: int | None = None) -> list[Schedule]:
        return [self._open(s) for s in await self.as_kept.schedules(due)]

    # -- shelves ------------------------------------------------------------------------------------

    def _shelf(self, shelf: str, key: str, data: bytes) -> bytes:
        return self._of("", "").data(data, envelopes.place_of(shelf, key))

    def _take(self, shelf: str, key: str, data: bytes) -> bytes:
        place = envelopes.place_of(shelf, key)
        if envelopes.is_sealed(data):
            return self._vault.open(data, "", "", place)
        if self.encryption.strict:
            raise self._of("").refuse(place)
        return data

    async def shelve(self, shelf: str, rows: Mapping[str, bytes], once: Collection[str] = ()) -> list[str]:
        return await self.as_kept.shelve(shelf, {k: self._shelf(shelf, k, v) for k, v in rows.items()}, once)  # type: ignore[attr-defined,no-any-return]

    async def shelve_new(self, shelf: str, key: str, data: bytes) -> bytes | None:
        there = await self.as_kept.shelve_new(shelf, key, self._shelf(shelf, key, data))  # type: ignore[attr-defined]
        return None if there is None else self._take(shelf, key, there)

    async def find_shelved(self, shelf: str, key: str) -> bytes | None:
        there = await self.as_kept.find_shelved(shelf, key)  # type: ignore[attr-defined]
        return None if there is None else self._take(shelf, key, there)

    async def shelf_scan(self, shelf: str, prefix: str = "", after: str = "", limit: int = 100) -> list[tuple[str, bytes]]:
        return [(k, self._take(shelf, k, v)) for k, v in await self.as_kept.shelf_scan(shelf, prefix, after, limit)]  # type: ignore[attr-defined]

    # -- the keeper's -------------------------------------------------------------------------------

    async def evidence(self, run_id: str) -> Evidence | None:
        found: Evidence | None = await self.as_kept.evidence(run_id)  # type: ignore[attr-defined]
        if found is None or not isinstance(found.run, Run):
            return found
        try:
            return replace(found, run=self._run(found.run))
        except HoldfastError as e:
            return replace(found, run=e)

    async def log(self, run_id: str, after: int = 0, limit: int = 1000) -> list[Row]:
        await self._tenant(run_id)
        return [self._of(run_id).row(r) for r in await self.as_kept.log(run_id, after, limit)]  # type: ignore[attr-defined]

    async def whole(self, run_id: str, after: int = 0) -> tuple[int, Checkpoint | HoldfastError] | None:
        found: tuple[int, Checkpoint | HoldfastError] | None = await self.as_kept.whole(run_id, after)  # type: ignore[attr-defined]
        if found is None or isinstance(found[1], HoldfastError):
            return found
        try:
            return found[0], self._of(run_id).whole(found[1])
        except KeyUnavailable:
            return found  # its hash can be told without the key, its values cannot
        except HoldfastError as e:
            return found[0], e

    async def rebuild(self, evidence: Evidence, commits: Sequence[Commit]) -> str:
        sealed: list[Commit] = []
        for commit in commits:
            made = await self._seal(commit, opened=False)
            if sealed and made.after is not None and sealed[-1].after is not None:  # it follows the sealed form of the one before
                made = replace(made, after=replace(made.after, hash=codec.seal(sealed[-1], sealed[-1].after.hash).row.hash))
            sealed.append(made)
        backup: str = await self.as_kept.rebuild(evidence, sealed)  # type: ignore[attr-defined]
        return backup

    async def adopt(self, dossier: Dossier) -> bool:
        """Adopts a run as it comes, encrypted or not: its log is stored byte for byte. Under strict encryption, only an encrypted run is accepted."""
        if self.encryption.strict:
            of = self._of(dossier.run.run_id, dossier.run.tenant_id)
            for row in dossier.rows:
                of.record(codec.open_row(row))
            for record in (dossier.run, *dossier.inbox, *dossier.effects, *dossier.intents, *dossier.ledger):
                of.open(record)
            if dossier.origin is not None and VALUES not in codec.decode_whole(dossier.run.run_id, dossier.origin)[0].values:
                raise of.refuse("checkpoint:0.values")
            for blob in dossier.blobs:
                if blob.data is not None and blobs.envelope_of(blob.data) is None:
                    raise of.refuse(blobs.place(blob.digest))
            for kept in dossier.shelved:
                self._take(kept.shelf, kept.key, kept.data)
        taken: bool = await self.as_kept.adopt(dossier)  # type: ignore[attr-defined]
        return taken

    async def keep_origin(self, run_id: str, origin: bytes) -> None:
        await self.as_kept.keep_origin(run_id, await self.seal_origin(run_id, origin))  # type: ignore[attr-defined]

    async def seal_origin(self, run_id: str, origin: bytes) -> bytes:
        """Returns the sealed form of what a run carries from its thread."""
        checkpoint, chain = codec.decode_whole(run_id, origin)
        return codec.encode_whole(self._of(run_id, await self._tenant(run_id) or "").checkpoint(checkpoint), chain)


__all__ = ["VERBS", "Passes", "Payloads", "SealedStore"]
