"""The application's own tables (§9.6): SQL that a node returns commits with its writes, all of it or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest

from holdfast import Context, Graph, Runtime, State, append
from tests.postgres.server import shared


class Order(State):
    amount: int = 1
    done: Annotated[list[str], append]


PUT = "INSERT INTO account (owner, amount) VALUES (%s, %s)"


def paying(*statements: tuple[str, Any], after: Callable[[], None] = lambda: None) -> Graph[Order]:
    graph: Graph[Order] = Graph("paying", Order, version="1")

    @graph.node(start=True)
    async def pay(state: Order, ctx: Context) -> dict[str, Any]:
        ctx.record("book", "paid", {"amount": state.amount})
        for text, params in statements:
            ctx.sql(text, params)
        after()
        return {"done": ["paid"]}

    @graph.node(after="pay")
    async def tell(state: Order) -> dict[str, Any]:
        return {"done": ["told"]}

    return graph


@pytest.fixture
def url() -> Iterator[str]:
    made = shared().fresh()
    with shared().admin("holdfast") as db:
        db.execute("DROP TABLE IF EXISTS public.account")
        db.execute("CREATE TABLE public.account (owner text, amount int CHECK (amount > 0), told jsonb)")
        db.execute("ALTER TABLE public.account OWNER TO holdfast")
    yield made
    with shared().admin("holdfast") as db:
        db.execute("DROP TABLE IF EXISTS public.account")


def rows() -> list[Any]:
    with psycopg.connect(shared().dsn()) as db:
        return db.execute("SELECT owner, amount, told FROM account ORDER BY owner, amount").fetchall()


async def test_it_commits_with_the_step(url: str) -> None:
    graph = paying((PUT, ["ada", 3]), ("UPDATE account SET told = %(told)s WHERE owner = %(owner)s", {"told": {"a": [1]}, "owner": "ada"}), ("-- 100%\nSELECT 1", ()))
    async with Runtime(url, skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, run.state.done) == ("completed", ["paid", "told"]), run.error
        assert rows() == [("ada", 3, {"a": [1]})]
        await rt.replay(run.run_id)
        assert len(rows()) == 1, "a replay leaves it out"
        await rt.fork(run.run_id, from_step=1)
        assert len(rows()) == 2, "a fork does it anew"
        assert await rt.check() == []


async def test_what_is_refused_takes_all_of_it_back(url: str) -> None:
    """The run fails where it stood; what its finished task has left is kept, and once the table is mended a resume goes on without it."""
    calls: list[int] = []
    graph = paying((PUT, ["ada", 3]), (PUT, ["bob", -3]), after=lambda: calls.append(1))
    other = paying((PUT, ["eve", 7]))
    async with Runtime(url, skills=[graph]) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, run.state.done, rows()) == ("failed", [], [])
        assert run.error is not None and run.error.code == "sql_failed" and "account_amount_check" in run.error.message
        assert await rt.ledger() == []
        assert await rt.check(run.run_id) == []
        with shared().admin("holdfast") as db:
            db.execute("ALTER TABLE public.account DROP CONSTRAINT account_amount_check")
        run = await rt.resume(run.run_id, acknowledge=run.stop_reason)
        assert (run.status, run.state.done, len(calls)) == ("completed", ["paid", "told"], 1), run.error
        assert rows() == [("ada", 3, None), ("bob", -3, None)] and len(await rt.ledger()) == 1
    async with Runtime(url, skills=[other]) as rt:
        assert (await rt.invoke(other, {})).status == "completed"


@pytest.mark.parametrize(
    "text", ["INSERT INTO nowhere VALUES (1)", "INSERT INTO account VALUES ('x', 1); COMMIT", "INSERT INTO account (owner) VALUES (%s)", "SELECT 1/0", "UPDATE run SET x = 1"]
)
async def test_wrong_sql_fails_its_run_alone(text: str, url: str) -> None:
    """No second statement in one text, so that nothing ends the transaction; and no name in a message makes it an error of the store."""
    graph, sound = paying((text, ())), paying((PUT, ["ada", 3]))
    async with Runtime(url) as rt:
        run = await rt.invoke(graph, {})
        assert (run.status, rows()) == ("failed", []) and run.error is not None and run.error.code == "sql_failed", run.error
    async with Runtime(url) as rt:
        assert (await rt.invoke(sound, {})).status == "completed"


@pytest.mark.parametrize(
    ("text", "params"),
    [
        (PUT, ["ada"]), (PUT, ["ada", 3, 4]), (PUT, {"owner": "ada", "amount": 3}), ("SELECT 1", ["ada"]), ("SELECT %(a)s::int", {"b": 1}),
        ("SELECT %(a)s::int", [1]), ("SELECT %s::int, %(a)s::int", [1, 2]), ("SELECT %(a)s::int, %s::int", {"a": 1}), ("SELECT 5 % 2, %s::int", [1]),
        ("SELECT %x, %s::int", [1]), ("SELECT %(a, %s::int", [1]),
    ],
)
async def test_values_that_do_not_fit_their_places_fail_their_run_alone(text: str, params: Any, url: str) -> None:
    """Values are counted before they are handed to the driver, which does not: it would end the process."""
    sound = "INSERT INTO account (owner, amount) VALUES ('bob', 1)"
    async with Runtime(url) as rt:
        for _ in range(3):  # whatever was to be prepared beside it is asked for again
            run = await rt.invoke(paying((sound, ()), (text, params)), {})
            assert (run.status, rows()) == ("failed", []) and run.error is not None and run.error.code == "sql_failed", run.error
        assert (await rt.invoke(paying((sound, ()), ("SELECT 5 %% 2", {"a": 1}), ("SELECT %(a b)s::int, %(c)t::text", {"a b": 1, "c": "d", "e": 2})), {})).status == "completed"
    assert rows() == [("bob", 1, None)]


@pytest.mark.parametrize("text", ["COMMIT", "  rollback", "/* x */ SET search_path TO x", "DROP TABLE account", "", "-- only a remark", "BEGIN; INSERT INTO account VALUES (1)"])
async def test_what_does_not_commit_with_a_step_is_refused(text: str, url: str) -> None:
    graph = paying((text, ()))
    async with Runtime(url) as rt:
        run = await rt.invoke(graph, {})
        assert run.status == "failed" and run.error is not None and run.error.type.endswith(".UsageError"), run.error


async def test_elsewhere_it_is_refused(tmp_path: Path) -> None:
    graph = paying((PUT, ["ada", 3]))
    for place in ("memory:", f"sqlite:///{tmp_path}/a.db", f"workspace:{tmp_path}/runs"):
        async with Runtime(place) as rt:
            run = await rt.invoke(graph, {})
            assert run.status == "failed" and run.error is not None and "PostgreSQL" in run.error.hint


async def test_params_are_values(url: str) -> None:
    for wrong in ("text", b"bytes", 7, None, [object()]):
        graph = paying((PUT, wrong))
        async with Runtime(url) as rt:
            run = await rt.invoke(graph, {})
            assert run.status == "failed" and run.error is not None and run.error.type.rpartition(".")[2] in ("InvalidInput", "UsageError", "Unserializable"), run.error
