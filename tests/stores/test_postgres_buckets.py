"""What one commit writes, by the place where it lies: the figures of «Several primaries» in docs/howto/deploy.md.

The partitioned profile tells the places apart: a run's bucket, the hash of a key, the hash of a run's id, and tables that are not spread. Of each
transaction the rows that it wrote are found by their ``xmin``.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.postgres.server import shared

from holdfast import Context, Graph, Runtime, State, flow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "deploy.md"
PARTS = 8


class Line(State):
    n: int = 0


def line() -> Graph[Line]:
    graph = Graph("line", Line, version="1")
    for i in range(4):

        async def node(state: Line) -> dict[str, int]:
            return {"n": state.n + 1}

        graph.node(f"s{i}", start=i == 0, after=None if i == 0 else f"s{i - 1}")(node)
    return graph


async def act(text: str) -> str:
    return text


@flow("acts", version="1")
async def acts(ctx: Context) -> str:
    return await ctx.effect(act, "done", key="one")


@flow("waits", version="1")
async def waits(ctx: Context) -> str:
    await ctx.wait("go")
    return "done"


@flow("parent", version="1")
async def parent(ctx: Context) -> str:
    return str(await ctx.child("waits"))


def written() -> dict[int, set[str]]:
    """By transaction: the tables that it wrote, with the number of the part where they have parts."""
    found: dict[int, set[str]] = {}
    with shared().admin("spread") as db:
        tables = [str(t) for (t,) in db.execute("SELECT oid::regclass FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r'").fetchall()]
        for table in tables:
            for (transaction,) in db.execute(f"SELECT DISTINCT xmin::text::bigint FROM {table}".encode()).fetchall():
                found.setdefault(int(str(transaction)), set()).add(table.removeprefix("holdfast."))
    return found


def places(tables: set[str]) -> tuple[set[str], set[str]]:
    """The buckets' parts that a transaction wrote, and everything else that it wrote, by its table."""
    buckets = {t.rpartition("_")[2] for t in tables if re.fullmatch(r"(run|doc|log|whole|inbox)_\d+", t)}
    return buckets, {re.sub(r"_\d+$", "", t) for t in tables if not re.fullmatch(r"(run|doc|log|whole|inbox)_\d+", t)}


def parts(*run_ids: str) -> set[str]:
    """The parts in which runs lie."""
    with shared().admin("spread") as db:
        return {str(part) for (part,) in db.execute("SELECT tableoid::regclass FROM holdfast.run WHERE run_id = ANY(%s)", (list(run_ids),)).fetchall()}


async def test_what_one_commit_writes_lies_in_one_bucket_but_for_what_the_page_names() -> None:
    url = shared().fresh("spread") + f"&partitions={PARTS}"
    seen: set[int] = set()
    found: dict[str, list[tuple[int, set[str]]]] = {}

    def note(name: str) -> None:
        new = {transaction: tables for transaction, tables in written().items() if transaction not in seen}
        seen.update(new)
        found[name] = [(len(buckets), others) for buckets, others in map(places, new.values())]

    async with Runtime(url, skills=[line(), acts, waits, parent]) as rt:
        await rt.invoke(line(), {})
        note("registration and first run")
        await rt.invoke(line(), {})
        note("steps")
        await rt.submit(waits, {}, key="once")
        note("birth under a key")
        run = await rt.invoke(waits, {})
        note("rest")
        await rt.signal(run.run_id, "go")
        note("signal")
        await rt.invoke(acts, {})
        note("effect")
        child = await rt.invoke(parent, {})
        note("child")
        (kid,) = [r for r in await rt.runs() if r.record.parent_run_id == child.run_id]

    own = parts(child.run_id, kid.run_id)
    assert found["steps"] and all(n == 1 and others <= {"vouch"} for n, others in found["steps"])
    assert [others for _, others in found["birth under a key"]] == [{"claim", "vouch"}]
    assert any("effect" in others for _, others in found["effect"])
    assert all(n <= 1 and others <= {"vouch"} for name in ("rest", "signal") for n, others in found[name])
    assert all(n <= 1 and others <= {"vouch", "effect", "claim"} for n, others in found["effect"])
    assert sum("claim" in others for _, others in found["effect"]) == 1, "a shared key is claimed by its first attempt"
    assert max(n for n, _ in found["child"]) == len(own), "a child is born in a commit of its parent"
    section = PAGE.read_text("utf-8").split("### Several primaries")[1].split("\n## ")[0]
    assert all(word in section for word in ("request key", "`effect`", "child run", f"partitions={PARTS}"))
