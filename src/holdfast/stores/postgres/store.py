"""The PostgreSQL store: the verbs of the port, each one transaction at READ COMMITTED.

Theory of operation. Nothing here depends on an isolation level: run rows are locked in the order of their ids, unique indexes guard lanes, keys and
the log, and every commit is a compare-and-set by fence and by the hash of the row it follows (``commits.py``). All times are the database's: times
are compared inside the database, and ``now()`` is the time last heard from it plus what the clock since boot has counted since. A few connections are
shared by all verbs; renewals have one of their own, and so has the listener for notifications.

After temporary errors (a lost connection, a restart, a deadlock) the same thing is sent again until ``patience`` ends, and each verb can tell its own
earlier write from another's. A server that has become another one (a standby was promoted, a backup restored) is a new incarnation: every earlier
fence is void, and workers load again (``server.py``).

The verbs are grouped by purpose, as in ``ports``: ``claims``, ``owners``, ``reading``, ``people``, ``sending`` and ``keeping``, each based on
``server``, which they share. The verbs that write a run are here.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from holdfast.core import codec, vouch
from holdfast.core.commit import Commit, Step, Tip
from holdfast.core.effects import Effect
from holdfast.core.errors import HoldfastError, RunNotFound
from holdfast.ports import News, Seat
from holdfast.stores import apply
from holdfast.stores.postgres.claims import Claiming
from holdfast.stores.postgres.connection import Connection, first_of, place
from holdfast.stores.postgres.keeping import Keeping
from holdfast.stores.postgres.people import People
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.remembered import Remembered
from holdfast.stores.postgres.sending import Sending


class _Remembering:
    """Wraps the seat of a run, and remembers the run's newest acknowledged commit."""

    __slots__ = ("_remembered", "_run_id", "_seat", "_writable")

    def __init__(self, seat: Seat, remembered: Remembered, run_id: str, writable: Callable[[], None]) -> None:
        self._seat = seat
        self._remembered = remembered
        self._run_id = run_id
        self._writable = writable

    @property
    def waits(self) -> bool:
        return self._seat.waits

    def tell(self, tip: Tip) -> Step | None:
        self._remembered.step(self._run_id, tip)
        step = self._seat.tell(tip)
        if step is not None:
            try:
                self._writable()
            except HoldfastError as e:
                self._seat.refuse(e)
                return None
        return step

    def refuse(self, error: BaseException) -> None:
        self._seat.refuse(error)


class PostgresStore(Claiming, People, Sending, Keeping):
    """A store in one PostgreSQL database, in a schema of its own. ``now`` replaces its clock, so that tests can move time; ``patience``: for how many
    seconds a verb retries during an outage; ``clock`` returns the seconds by which it decides how long a connection keeps its plans, how long ago all
    due runs were searched for, and how long ago it was checked which way of claiming is best."""

    takes_statements = True
    has_server: bool = True

    async def commit(self, commit: Commit) -> Tip:
        committer = self._commits()
        self._writable()
        prepared = apply.prepare(commit)
        try:
            tip = await committer.commit(prepared)
        except RunNotFound as e:
            raise await self._missing(e, commit.run.run_id, *(i.run_id for i in commit.puts)) from None
        self._remembered.commit(commit, tip)
        return tip

    async def step(self, step: Step) -> Tip:
        committer = self._commits()
        self._writable()
        try:
            tip = await committer.step(step)
        except RunNotFound as e:
            raise await self._missing(e, step.run_id) from None
        self._remembered.step(step.run_id, tip)
        return tip

    @property
    def gathers(self) -> bool:
        return True  # a step waits for its answer in any case, and others may come meanwhile

    def step_at_once(self, step: Step) -> None:
        return None

    def join(self, step: Step, seat: Seat) -> None:
        committer = self._commits()
        self._writable()
        committer.join(step, _Remembering(seat, self._remembered, step.run_id, self._writable))

    async def settle_effect(self, effect: Effect, expected: str) -> bool:
        data = codec.encode_effect(effect)

        async def mine(db: Connection) -> bool:
            return await first_of(db, Q.effect_get, (effect.key, effect.effect_id)) == (data,)

        values = {
            "run": effect.run_id, "id": effect.effect_id, "key": effect.key, "status": effect.status.value, "data": data, "expected": str(expected),
            "seal": vouch.of_effect(effect, data).seal,
        }
        done = await self._change(Q.effect_settle, values, mine)
        self._news.tell(News.OTHER)
        return done


def find_schema(url: str) -> int | None:
    """Returns the schema number of the store in a database, without changing it; None if there is no store yet, or it cannot be read."""
    try:
        with psycopg.connect(place(url).conninfo, autocommit=True, connect_timeout=5, prepare_threshold=None) as db:
            there = db.execute(Q.is_there).fetchone()
            meta: dict[str, int] = dict(db.execute(Q.meta).fetchall()) if there is not None and there[1] else {}
    except (psycopg.Error, OSError):
        return None  # opening the store reports why not
    return meta.get("schema")


__all__ = ["PostgresStore", "find_schema"]
