"""The SQLite store: the verbs of the port, each one transaction.

Theory of operation. There are three connections at most (``file.py``): the event loop's, the writer thread's and the one for renewals. Several
processes may share the file: row ids are assigned inside the write transaction, owners are judged by their liveness files and by the clock since
boot, and wake-ups come from a poll of ``data_version``.

If opening finds that the log has gone backwards, or that the store has another incarnation than the anchor, the store can be read and ``verify``
reports it, but every write raises the named error until ``acknowledge`` (§1.9).

The verbs are grouped by purpose, as in ``ports``: ``claims``, ``leases``, ``reading``, ``people``, ``sending`` and ``keeping``, each based on
``file``, which they share. The verbs that write a run are here.
"""

from __future__ import annotations

from holdfast.core import codec
from holdfast.core.commit import Commit, Step, ThreadEnd, Tip
from holdfast.core.effects import Effect
from holdfast.ports import News, Seat
from holdfast.stores import apply
from holdfast.stores.sqlite import besides
from holdfast.stores.sqlite.claims import Claiming
from holdfast.stores.sqlite.commits import Committer, Sight
from holdfast.stores.sqlite.connection import Q, map_errors, row
from holdfast.stores.sqlite.keeping import Keeping
from holdfast.stores.sqlite.people import People
from holdfast.stores.sqlite.sending import Sending


class SqliteStore(Claiming, People, Sending, Keeping):
    """A store in one SQLite file. ``now`` replaces its clock (microseconds since 1970), so that tests can move time."""

    has_server: bool = False

    async def commit(self, commit: Commit) -> Tip:
        writer = self._write()
        return await writer.commit(apply.prepare(commit))

    async def thread_end(self, tenant_id: str, thread_id: str) -> ThreadEnd:
        with map_errors(self.path):
            return Sight(self._read(), self._now(), 0, False).thread_end(tenant_id, thread_id)

    async def step(self, step: Step) -> Tip:
        return await self._write().commit(step)

    def step_at_once(self, step: Step) -> Tip | None:
        return self._write().step_at_once(step)

    @property
    def gathers(self) -> bool:
        return self._writer is not None and self._writer.gathers

    def join(self, step: Step, seat: Seat) -> None:
        self._write().join(step, seat)

    async def settle_effect(self, effect: Effect, expected: str) -> bool:
        def work(committer: Committer) -> bool:
            with committer.writing():
                if not row(committer.db, Q.effect_stands, (effect.effect_id, str(expected)))[0]:
                    return False
                besides.vouch_for(committer.db, [besides.put_effect(committer.db, effect, codec.encode_effect(effect))])
                return True

        done = await self._write().run(work)
        self._changes.tell(News.OTHER)
        return done


__all__ = ["SqliteStore"]
