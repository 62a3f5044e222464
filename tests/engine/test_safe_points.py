"""Where a run may be left (§10.13): all its nodes stand at a call, none is in the middle of one, and somebody has asked."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.engine.base.services import SafePoints


class Node:
    def __init__(self) -> None:
        self.calls = 0
        self.parked = False


class Watched(SafePoints):
    def __init__(self) -> None:
        self.reached = 0
        super().__init__(self.count)

    def count(self) -> None:
        self.reached += 1


async def stands(watched: SafePoints, node: Node) -> asyncio.Task[None]:
    """A node that wants to begin its next call."""
    task = asyncio.ensure_future(watched.stand(node))
    await asyncio.sleep(0)
    return task


@pytest.fixture
def watched() -> Watched:
    return Watched()


async def test_a_node_at_its_next_call_is_a_boundary_once_asked(watched: Watched) -> None:
    node = Node()
    watched.begin("a")
    watched.enter("a", node)
    watched.ask()
    assert watched.reached == 0, "it is in its own code"
    standing = await stands(watched, node)
    assert watched.reached == 1 and not standing.done(), "it goes no further"
    standing.cancel()


async def test_nothing_is_reached_before_it_is_asked(watched: Watched) -> None:
    node = Node()
    watched.begin("a")
    watched.enter("a", node)
    standing = await stands(watched, node)
    assert watched.reached == 0
    watched.ask()
    assert watched.reached == 1
    standing.cancel()


async def test_a_call_in_flight_is_no_boundary(watched: Watched) -> None:
    """One branch of a gather stands at its next call while another is in the middle of one: that one is let come to its end."""
    node = Node()
    watched.begin("a")
    watched.enter("a", node)
    watched.ask()
    node.calls = 1
    standing = await stands(watched, node)
    assert watched.reached == 0
    node.calls = 0
    watched.look()
    assert watched.reached == 1
    standing.cancel()


async def test_every_node_that_runs_must_stand(watched: Watched) -> None:
    first, second = Node(), Node()
    for name, node in (("a", first), ("b", second)):
        watched.begin(name)
        watched.enter(name, node)
    watched.ask()
    one = await stands(watched, first)
    assert watched.reached == 0
    watched.leave("b", second)
    watched.look()
    assert watched.reached == 0, "a task that is under way without a node is a plain one, and is let come to its end"
    watched.end("b")
    assert watched.reached == 1
    one.cancel()


async def test_where_nothing_runs_nothing_is_reached(watched: Watched) -> None:
    watched.ask()
    watched.begin("a")
    watched.end("a")
    assert watched.reached == 0
    watched.begin("a")
    watched.clear()
    watched.look()
    assert watched.reached == 0
