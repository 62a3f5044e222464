"""A claim where a single line has anything to come takes what any claim takes, and leaves every other case to it (`claim_single`)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from tests.postgres.server import shared

from holdfast.core.limits import Limit, Rule
from holdfast.stores import PostgresStore
from holdfast.stores.postgres import claims, ground
from holdfast.stores.postgres.connection import Connection
from holdfast.stores.postgres.queries import Q
from holdfast.stores.postgres.wire import Rows, Statement
from holdfast.testing.conformance import TTL, Script

START = 1_800_000_000_000_000
HOUR = 3_600_000_000
NOTHING = (None, 0, None, None, 0, 0, 0)
LINES: list[dict[str, Any]] = [{}, {"priority": 5}, {"priority": -1}, {"queue": "a"}, {"queue": "z"}, {"tenant_id": "a"}, {"tenant_id": "z"}]


class World:
    """Runs in some lines and lanes, in any state in which a claim may meet them."""

    def __init__(self, store: PostgresStore, dice: random.Random) -> None:
        self.store, self.dice, self.at = store, dice, START
        self.lines, self.limited, self.gone = dice.sample(LINES, dice.choice((0, 1, 1, 1, 1, 2, 3))), dice.random() < 0.15, dice.random() < 0.15

    async def make(self) -> None:
        await self.store.register("w", 10 * HOUR)
        await self.store.register("dead", HOUR)
        for n in range(self.dice.randrange(1, 9)) if self.lines else ():
            line, session = self.dice.choice(self.lines), self.dice.choice((f"r{n}", f"r{n}", "shared"))
            script, self.at = Script(self.store, f"r{n}", session_key=session, **line), self.at + self.dice.randrange(1000)
            kind = self.dice.choice(("due", "due", "rests", "overdue"))
            if kind == "due" or session == "shared":
                await script.submit()
            else:
                await (await script.begin("w")).wait(deadline=self.at + (1 if kind == "overdue" else 20 * HOUR))
        if self.gone:
            await Script(self.store, "orphan", **(self.lines or LINES)[0]).begin("dead")
        if self.limited:
            await self.store.put_rule(Rule("queue:other", Limit(in_flight=1)), None)
        self.at += 2 * HOUR
        if not self.gone:
            await self.store.retire("dead")


def asked_from(lines: Sequence[ground.Line]) -> dict[str, Any]:
    """What a statement is asked with that begins at these lines, as lists that psycopg takes."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in ground.ask_from(lines).items()}


@pytest.mark.parametrize("seed", range(60))
async def test_it_takes_the_same(seed: int) -> None:
    dice = random.Random(seed)
    store = PostgresStore(shared().fresh(), now=lambda: world.at)
    world = World(store, dice)
    await store.open()
    await world.make()
    await store.close()
    with shared().admin("holdfast") as db:
        # What the store had under way when it was closed holds its locks until the server has noticed, and a claim passes over what is locked.
        db.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'")
        coming = db.execute("SELECT DISTINCT queue, priority, tenant_id FROM holdfast.run WHERE due IS NOT NULL AND owner IS NULL AND NOT behind").fetchall()
        known = [ground.Line(str(q), int(str(p)), str(t), *dice.choice((ground.BEGINNING, (START - HOUR, START - HOUR)))) for q, p, t in coming[:1]]
        several = len(coming) > 1 or world.gone or world.limited
        for lines in ([], known):
            values = {
                **asked_from(lines), "owner": "w", "now": world.at, "dead": [], "simple": True, "limit": dice.choice((1, 3, 100)),
                "queues": dice.choice((None, ["default"])), "skills": dice.choice((None, None, [], ["skill"])), "shapes": None,
            }
            found = []
            for text in (Q.claim, Q.claim_single):
                db.execute("BEGIN")
                found.append(db.execute(text, values).fetchall())
                db.execute("ROLLBACK")
            assert (found[1] == [NOTHING]) is several
            if not several:
                assert found[1] == found[0]


async def test_whoever_finds_more_asks_again_and_does_not_count_on_it_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that counts on a single line takes nothing where there are two: the other statement follows, and goes first for a second."""
    sent: list[str] = []
    names = {Q.claim: "any", Q.claim_single: "single"}

    async def noted(db: Connection, asked: Sequence[Statement]) -> list[Rows]:
        sent.extend(names[text] for text, _ in asked if text in names)
        return await db.ask(*asked)

    now = 0.0
    monkeypatch.setattr(claims, "many", noted)
    store = PostgresStore(shared().fresh(), clock=lambda: now)
    await store.open()
    await store.register("w", TTL)
    asked = []
    lines: list[dict[str, Any]] = [{}, {}, {"priority": 1}, {}, {"priority": 1}]
    for n, line in enumerate(lines):
        await Script(store, f"r{n}a", **line).submit()
        await Script(store, f"r{n}b").submit()
        assert {c.run_id for c in await store.claim("w", (), None, limit=10)} == {f"r{n}a", f"r{n}b"}
        asked.append(" ".join(sent))
        sent.clear()
    now = ground.WHOLE
    assert await store.claim("w", (), None, limit=10) == []
    await store.close()
    assert asked == ["single", "single", "single any", "any", "any"] and sent == ["single"]


async def test_nothing_to_come_is_no_reason_to_ask_again() -> None:
    store = PostgresStore(shared().fresh())
    await store.open()
    await store.register("w", TTL)
    await store.close()
    with shared().admin("holdfast") as db:
        nobody = {"owner": "w", "now": None, "dead": [], "simple": True, "limit": 5, "queues": None, "skills": None, "shapes": None}
        assert db.execute(Q.claim_single, {**asked_from([]), **nobody}).fetchall() == []
