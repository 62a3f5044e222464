"""What an ``Idempotency-Key`` promises (§16.5): one answer a key for a day, one server at a time, nothing done twice, and nothing kept for ever."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.access import Access, Scope
from holdfast.api.answers import ANSWERS, Answers, Kept, Seen, Turn, place
from holdfast.api.problems import Stopped
from holdfast.core.commit import Commit, Tip
from holdfast.core.errors import RequestConflict, StoreBusy
from holdfast.core.lease import Alive
from holdfast.encryption import Keys
from holdfast.stores import MemoryStore
from holdfast.testing import VirtualClock
from holdfast.ui import SESSIONS
from holdfast.ui.sessions import Sessions
from tests.http.scenes import Mail, notes
from tests.http.support import graph, served, token

HOUR = 3600
DAY_US = 24 * HOUR * 1_000_000
STORES = ("memory:", "sqlite:///{}/a.db")


def opened(url: str, folder: Path, clock: VirtualClock, **options: Any) -> Runtime:
    return Runtime(url.format(folder), clock=clock, skills=[graph(), letters(), brittle()], transports={"mail": Mail()}, **options)


class Letters(State):
    sent: int = 0


def letters() -> Graph[Letters]:
    """It asks twice, for two different things."""
    g = Graph("letters", Letters)

    @g.node(start=True)
    async def first(state: Letters, ctx: Context) -> dict[str, Any]:
        await ctx.approve("Send the first?")
        return {"sent": 1}

    @g.node(after="first")
    async def second(state: Letters, ctx: Context) -> dict[str, Any]:
        await ctx.approve("Send the second?")
        return {"sent": 2}

    return g


def brittle() -> Graph[Letters]:
    """It fails, whenever it is gone on with."""
    g = Graph("brittle", Letters)

    @g.node(start=True)
    async def only(state: Letters) -> dict[str, Any]:
        raise ValueError("it broke")

    return g


async def rows(rt: Runtime) -> list[tuple[str, Kept]]:
    return [(row, msgspec.msgpack.decode(data, type=Kept)) for row, data in await rt.shelf(ANSWERS).scan(limit=10_000)]


async def unanswered(rt: Runtime, clock: VirtualClock) -> None:
    """As if the server that took up these requests had died before it could say what came of them, a while ago."""
    for row, kept in await rows(rt):
        await rt.shelf(ANSWERS).put(row, msgspec.msgpack.encode(msgspec.structs.replace(kept, status=0, headers={}, body=b"", server="gone")))
    clock.advance(61)


# -- kept for a day, and no longer ------------------------------------------------------------------


@pytest.mark.parametrize("url", STORES)
async def test_an_answer_is_given_again_for_a_day_and_then_forgotten(url: str, tmp_path: Path) -> None:
    clock = VirtualClock()
    async with opened(url, tmp_path, clock) as rt, served(rt, tokens=False) as http:
        body, key = {"skill_id": "notes", "input": {"name": "Ada"}}, {"Idempotency-Key": "k"}
        run_id = (await http.post("/v1/runs", json=body)).json()["run_id"]
        path = f"/v1/runs/{run_id}/fork"
        first = await http.post(path, json={"reason": "one"}, headers=key)
        assert first.status_code == 404, "a run that has not begun has nothing to fork from"
        await rt.resume(run_id)
        first = await http.post(path, json={"reason": "one"}, headers=key)
        assert first.status_code == 202, "a refused request has left its key free"
        for hours in (0, 12, 11.99):
            clock.advance(hours * HOUR)
            again = await http.post(path, json={"reason": "one"}, headers=key)
            assert (again.content, again.headers.get("Idempotent-Replayed")) == (first.content, "true")
            other = await http.post(path, json={"reason": "two"}, headers=key)
            assert (other.status_code, other.json()["code"]) == (422, "request_conflict")
        clock.advance(0.02 * HOUR)
        cancel = f"/v1/runs/{run_id}/cancel"
        assert (await http.post(cancel, json={"reason": "a"}, headers=key)).status_code == 202, "another path is another key"
        clock.advance(24 * HOUR + 1)
        late = await http.post(cancel, json={"reason": "b"}, headers=key)
        assert (late.status_code, late.json()["code"]) == (409, "already_terminal"), "a day later it is a request of its own"


@pytest.mark.parametrize("url", STORES)
async def test_old_answers_and_ended_sessions_are_deleted(url: str, tmp_path: Path) -> None:
    """By the store's clock, a part at a time, and never what still counts."""
    clock = VirtualClock()
    async with opened(url, tmp_path, clock) as rt, served(rt) as http:
        secret = await token(rt, "admin")
        mine = {"Authorization": f"Bearer {secret}"}
        api = http.app.state.api  # type: ignore[attr-defined]
        sessions = Sessions(rt.shelf(SESSIONS), api.find, api.holds, rt.store.now)
        for day in range(3):
            assert await sessions.begin(secret) is not None
            made = await http.post("/v1/runs", json={"skill_id": "notes"}, headers={**mine, "Idempotency-Key": f"k{day}"})
            assert made.status_code == 202
            while api.jobs:
                await asyncio.wait(api.jobs)
            assert len(await rows(rt)) == min(day + 1, 2), "today's and yesterday's"
            assert len(await rt.shelf(SESSIONS).scan()) == 1
            clock.advance(24 * HOUR)
        clock.advance(24 * HOUR)
        assert (await http.get("/v1/runs", headers=mine)).status_code == 200
        while api.jobs:
            await asyncio.wait(api.jobs)
        assert await rows(rt) == [] and await rt.shelf(SESSIONS).scan() == []
        assert len(await rt.shelf("holdfast.access").scan()) == 1, "a token stays listed: decisions name it"


async def test_a_server_tidies_from_its_start(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with opened(STORES[1], tmp_path, clock) as rt, served(rt, tokens=False) as http:
        assert (await http.post("/v1/runs", json={"skill_id": "notes"}, headers={"Idempotency-Key": "k"})).status_code == 202
        clock.advance(48 * HOUR)
        application = http.app  # type: ignore[attr-defined]
        async with application.router.lifespan_context(application), asyncio.timeout(60):
            await asyncio.sleep(0)  # it begins
            await rested(rt, http)
            assert await rows(rt) == []


async def test_a_day_is_deleted_in_many_parts(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with opened(STORES[1], tmp_path, clock) as rt:
        answers = answering(rt, "here")
        day = f"t{rt.store.now() // DAY_US:06}"
        old = {f"{day}/{place('default', 'POST', '/v1/runs', str(n))}/000000": b"" for n in range(3000)}
        await rt.shelf(ANSWERS).put_many(old)
        assert await answers.sweep() == 0
        clock.advance(24 * HOUR)
        assert await answers.sweep() == 0, "yesterday's still count"
        clock.advance(24 * HOUR)
        parts = []
        while gone := await answers.sweep():
            parts.append(gone)
        assert sum(parts) == 3000 and max(parts) < 60


# -- one server at a time ---------------------------------------------------------------------------


def answering(rt: Runtime, server: str, alive: Alive = Alive.UNKNOWN) -> Answers:
    async def lives(_: str) -> Alive:
        return alive

    return Answers(rt.shelf(ANSWERS), rt.store.now, server, lives)


class Failing(MemoryStore):
    """It makes the next commit, and cannot say so. It is shared by the servers of one process."""

    failing = False

    async def commit(self, commit: Commit) -> Tip:
        tip = await super().commit(commit)
        if self.failing:
            self.failing = False
            raise StoreBusy("no answer")
        return tip

    async def close(self) -> None:
        """Nothing: the other goes on with it."""


async def nothing() -> Seen:
    return Seen()


@pytest.mark.parametrize("url", STORES)
async def test_one_of_many_servers_carries_it_out(url: str, tmp_path: Path) -> None:
    clock = VirtualClock()
    async with opened(url, tmp_path, clock) as rt:
        servers = [answering(rt, f"s{n}") for n in range(8)]
        for when in range(3):
            found = await asyncio.gather(*(s.begin("p", b"body", nothing) for s in servers), return_exceptions=True)
            turns = [f for f in found if isinstance(f, Turn)]
            assert len(turns) == 1 and turns[0].again is (when > 0)
            assert all(isinstance(f, Stopped) and (f.status, f.code) == (409, "in_progress") for f in found if f is not turns[0])
            clock.advance(59)
            busy = [s for n, s in enumerate(servers) if f"s{n}" != turns[0].kept.server]
            assert isinstance((await asyncio.gather(busy[0].begin("p", b"body", nothing), return_exceptions=True))[0], Stopped)
            clock.advance(1)  # silent for a minute: the next one may
        with pytest.raises(RequestConflict):
            await servers[0].begin("p", b"another", nothing)
        await servers[0].end(turns[0], 202, {}, b"done")
        for server in servers:
            told = await server.begin("p", b"body", nothing)
            assert isinstance(told, Kept) and (told.status, told.body) == (202, b"done")


async def test_a_server_proven_dead_is_not_waited_for(tmp_path: Path) -> None:
    async with opened(STORES[1], tmp_path, VirtualClock()) as rt:
        assert isinstance(await answering(rt, "killed").begin("p", b"", nothing), Turn)
        with pytest.raises(Stopped):
            await answering(rt, "other", Alive.YES).begin("p", b"", nothing)
        turn = await answering(rt, "other", Alive.NO).begin("p", b"", nothing)
        assert isinstance(turn, Turn) and turn.again
        await answering(rt, "other").give_back(turn)
        mine = await answering(rt, "killed").begin("p", b"", nothing)
        assert isinstance(mine, Turn) and mine.again, "what this server left unanswered it takes up at once"


async def test_a_request_that_fails_again_and_again_leaves_one_row(tmp_path: Path) -> None:
    async with opened(STORES[0], tmp_path, VirtualClock()) as rt:
        async def first() -> Seen:
            return Seen(version=7)

        for n in range(30):
            answers = answering(rt, f"s{n % 3}")
            turn = await answers.begin("p", b"", nothing if n else first)
            assert isinstance(turn, Turn) and turn.again is (n > 0) and turn.kept.seen == Seen(version=7) and len(await rows(rt)) == 1
            await (answers.let_go(turn) if n % 2 else answers.give_back(turn) if n else answers.let_go(turn))
        with pytest.raises(RequestConflict):
            await answering(rt, "s").begin("p", b"another", nothing)


async def test_what_a_failing_store_leaves_open_is_taken_up_by_another_server(tmp_path: Path) -> None:
    """The answer was 503: nobody knows what was done, and nobody is at it any more."""
    store = Failing()
    clock = VirtualClock()
    async with Runtime(store, skills=[graph()], clock=clock) as rt, Runtime(store, skills=[graph()], clock=clock) as other:
        async with served(rt, tokens=False) as http, served(other, tokens=False) as beside:
            body, key = {"skill_id": "notes"}, {"Idempotency-Key": "k"}
            store.failing = True
            told = await http.post("/v1/runs", json=body, headers=key)
            assert told.status_code == 503
            done = await beside.post("/v1/runs", json=body, headers=key)
            assert done.status_code in (200, 202) and len(await rt.runs()) == 1
            again = await http.post("/v1/runs", json=body, headers=key)
            assert again.content == done.content and again.headers["Idempotent-Replayed"] == "true"


async def test_midnight_is_no_gap(tmp_path: Path) -> None:
    """A reservation that is written as the day ends is found from the next day on."""
    clock = VirtualClock(start_us=20_000 * DAY_US - 2_000_000)
    async with opened(STORES[0], tmp_path, clock) as rt:

        async def slow() -> Seen:
            clock.advance(3)
            return Seen()

        turn = await answering(rt, "a").begin("p", b"", slow)
        assert isinstance(turn, Turn) and turn.row.startswith("t020000/"), "written as the new day's"
        clock.advance(24 * HOUR - 60)
        with pytest.raises(RequestConflict):
            await answering(rt, "b").begin("p", b"other", nothing)
        await answering(rt, "a").end(turn, 200, {}, b"x")
        clock.advance(50)
        assert isinstance(await answering(rt, "b").begin("p", b"", nothing), Kept)
        clock.advance(60)
        assert isinstance(await answering(rt, "b").begin("p", b"", nothing), Turn)


async def test_a_request_that_another_server_is_at_is_refused_over_http(tmp_path: Path) -> None:
    async with opened(STORES[0], tmp_path, clock := VirtualClock()) as rt, served(rt, tokens=False) as http:
        held = await answering(rt, "elsewhere").begin(place("*", "POST", "/v1/runs", "k"), b'{"skill_id": "notes"}', nothing)
        assert isinstance(held, Turn)
        asked = {"content": b'{"skill_id": "notes"}', "headers": {"Idempotency-Key": "k", "Content-Type": "application/json"}}
        told = await http.post("/v1/runs", **asked)  # type: ignore[arg-type]
        assert (told.status_code, told.json()["code"]) == (409, "in_progress") and await rt.runs() == []
        clock.advance(61)
        told = await http.post("/v1/runs", **asked)  # type: ignore[arg-type]
        assert told.status_code == 202 and len(await rt.runs()) == 1


# -- nothing is done twice --------------------------------------------------------------------------


class Case:
    """A POST: where, with what, and what comes between its two times; ``facts`` is what may happen once."""

    def __init__(self, path: str, body: dict[str, Any], between: Callable[[], Awaitable[Any]] | None = None, run_id: str = "", intent: str = "", schedule: str = "") -> None:
        self.path, self.body, self.between = path, body, between
        self.run_id, self.intent, self.schedule = run_id, intent, schedule

    async def facts(self, rt: Runtime) -> object:
        found: list[object] = [len(await rt.runs(limit=500))]
        if self.run_id:
            found += [(e.seq, e.type) for e in await rt.events(self.run_id, limit=500)]
        if self.intent:
            found.append((await rt.look.intent(self.intent)).rulings)
        if self.schedule:
            found.append((await rt.look.schedule(self.schedule)).changes)
        return found


async def asking(rt: Runtime, name: str = "Ada") -> str:
    return str((await rt.invoke(rt.skills[0].id, {"name": name})).run_id)


async def submit(rt: Runtime) -> Case:
    return Case("/v1/runs", {"skill_id": "notes", "input": {"name": "Ada"}})


async def fork(rt: Runtime) -> Case:
    run_id = await asking(rt)
    return Case(f"/v1/runs/{run_id}/fork", {"set": {"name": "Bob"}, "reason": "x"}, run_id=run_id)


async def replay(rt: Runtime) -> Case:
    run_id = await asking(rt, "quick")
    return Case(f"/v1/runs/{run_id}/replay", {}, run_id=run_id)


async def approve(rt: Runtime) -> Case:
    """Between, the run goes on and asks its second question."""
    run_id = (await rt.invoke("letters")).run_id
    return Case(f"/v1/runs/{run_id}/approve", {}, lambda: rt.resume(run_id), run_id)


async def approve_at_once(rt: Runtime) -> Case:
    run_id = (await rt.invoke("letters")).run_id
    return Case(f"/v1/runs/{run_id}/approve", {"note": "fine"}, None, run_id)


async def deny(rt: Runtime) -> Case:
    run_id = (await rt.invoke("letters")).run_id
    return Case(f"/v1/runs/{run_id}/deny", {"reason": "no"}, None, run_id)


async def decide(rt: Runtime) -> Case:
    run_id = (await rt.invoke("letters")).run_id
    return Case(f"/v1/runs/{run_id}/decide", {"action": "approve"}, lambda: rt.resume(run_id), run_id)


async def signal(rt: Runtime) -> Case:
    run_id = await asking(rt, "wait")
    return Case(f"/v1/runs/{run_id}/signal", {"name": "go"}, lambda: rt.resume(run_id), run_id)


async def signal_thread(rt: Runtime) -> Case:
    """Between, the run ends and another begins on its thread."""
    run = await rt.invoke("notes", {"name": "wait"}, thread_id="t")

    async def next_one() -> None:
        await rt.resume(run.run_id)
        await rt.invoke("notes", {"name": "wait"}, thread_id="t")

    return Case("/v1/threads/t/signal", {"name": "go"}, next_one, run.run_id)


async def cancel(rt: Runtime) -> Case:
    """Between, somebody takes the cancel back."""
    run_id = (await rt.invoke("letters")).run_id

    async def back() -> None:
        there = await rt.get(run_id)
        await rt.resume(run_id, acknowledge=there.checkpoint_head)

    return Case(f"/v1/runs/{run_id}/cancel", {"reason": "x"}, back, run_id)


async def cancel_at_once(rt: Runtime) -> Case:
    run_id = await asking(rt)
    return Case(f"/v1/runs/{run_id}/cancel", {}, None, run_id)


async def cancel_queued(rt: Runtime) -> Case:
    run_id = (await rt.submit("notes")).run_id
    return Case(f"/v1/runs/{run_id}/cancel", {}, None, run_id)


async def resume(rt: Runtime) -> Case:
    """It goes on, and fails once more, for the same reason."""
    run = await rt.invoke("brittle")
    assert run.status == "failed" and run.stop_reason
    return Case(f"/v1/runs/{run.run_id}/resume", {"acknowledge": run.stop_reason}, None, run.run_id)


async def resume_queued(rt: Runtime) -> Case:
    run_id = (await rt.submit("notes", {"name": "quick"})).run_id
    return Case(f"/v1/runs/{run_id}/resume", {}, None, run_id)


async def resume_answered(rt: Runtime) -> Case:
    run_id = (await rt.invoke("letters")).run_id
    await rt.approve(run_id, drive=False)
    return Case(f"/v1/runs/{run_id}/resume", {}, None, run_id)


async def repair(rt: Runtime) -> Case:
    run_id = await asking(rt)
    return Case(f"/v1/runs/{run_id}/repair", {"apply": True}, None, run_id)


async def stuck(rt: Runtime) -> tuple[str, str]:
    if all(s.id != "release-notes" for s in rt.skills):
        rt.add(notes())
    run = await rt.invoke("release-notes", {"repo": "mail", "to": "nobody"})
    await rt.dispatch(until_idle=True)
    (intent,) = await rt.intents(run.run_id)
    assert intent.state == "dead"
    return run.run_id, intent.intent_id


async def redrive(rt: Runtime) -> Case:
    """Between, it is sent, in vain, and is dead again."""
    run_id, intent = await stuck(rt)
    return Case(f"/v1/intents/{intent}/redrive", {"reason": "again"}, lambda: rt.dispatch(until_idle=True), run_id, intent)


async def settle(rt: Runtime) -> Case:
    run_id, intent = await stuck(rt)
    return Case(f"/v1/intents/{intent}/settle", {"as": "abandoned"}, None, run_id, intent)


async def scheduled(rt: Runtime, id: str = "often") -> str:
    return str((await rt.schedule("notes", {"name": "quick"}, id=id, every=dt.timedelta(days=1))).id)


async def pause(rt: Runtime) -> Case:
    """Between, somebody unpauses it."""
    made = await scheduled(rt)
    return Case(f"/v1/schedules/{made}/pause", {}, lambda: rt.unpause_schedule(made), schedule=made)


async def unpause(rt: Runtime) -> Case:
    made = await scheduled(rt)
    await rt.pause_schedule(made)
    return Case(f"/v1/schedules/{made}/unpause", {}, lambda: rt.pause_schedule(made), schedule=made)


async def trigger(rt: Runtime) -> Case:
    made = await scheduled(rt)
    return Case(f"/v1/schedules/{made}/trigger", {}, schedule=made)


async def answer_link(rt: Runtime) -> Case:
    """A link answers once; its answer can be asked for again."""
    run = await rt.invoke("letters")
    secret = await rt.issue_token(run.waits[0].wait_id, "grace")
    return Case(f"/v1/waits/{secret}", {"action": "approve"}, None, run.run_id)


CASES = (
    submit, fork, replay, approve, approve_at_once, deny, decide, signal, signal_thread, cancel, cancel_at_once, cancel_queued, resume, resume_queued,
    resume_answered, repair, redrive, settle, pause, unpause, trigger, answer_link,
)


def takes_match(path: str) -> bool:
    """Whether a request is about one run, whose version its caller may name."""
    return path.startswith(("/v1/runs/", "/v1/threads/", "/v1/intents/", "/v1/waits/"))


async def rested(rt: Runtime, http: httpx.AsyncClient) -> None:
    """Until nothing goes on behind an answer."""
    api = http.app.state.api  # type: ignore[attr-defined]
    while api.jobs:
        await asyncio.wait(set(api.jobs), timeout=60)


@pytest.mark.parametrize("url", STORES, ids=["memory", "sqlite"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
async def test_what_a_dead_server_did_is_not_done_again(case: Callable[[Runtime], Awaitable[Case]], url: str, tmp_path: Path) -> None:
    """The same request, to another server, with the precondition that the caller stated at first (§16.6), and after others have moved on."""
    clock = VirtualClock()
    async with opened(url, tmp_path, clock) as rt, served(rt, tokens=False) as http:
        made = await case(rt)
        headers = {"Idempotency-Key": "k"}
        if takes_match(made.path):
            headers["If-Match"] = f'"{(await rt.look.glance(made.run_id)).record.version}"'
        first = await http.post(made.path, json=made.body, headers=headers)
        assert first.status_code in (200, 202), first.text
        await rested(rt, http)
        if made.between is not None:
            await made.between()
        await unanswered(rt, clock)
        before = await made.facts(rt)
        second = await http.post(made.path, json=made.body, headers=headers)
        assert second.status_code in (200, 202), second.text
        assert "Idempotent-Replayed" not in second.headers
        await rested(rt, http)
        assert await made.facts(rt) == before
        third = await http.post(made.path, json=made.body, headers=headers)
        assert third.content == second.content and third.headers["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.__name__)
async def test_what_a_dead_server_did_not_do_is_done(case: Callable[[Runtime], Awaitable[Case]], tmp_path: Path) -> None:
    """It died between the reservation and the act: the next server acts. A precondition that does not hold is refused, and leaves the key free."""
    clock = VirtualClock()
    async with opened(STORES[0], tmp_path, clock) as rt, served(rt, tokens=False) as http:
        made = await case(rt)
        seen = Seen(rt.store.now())
        if made.run_id:
            run = await rt.get(made.run_id)
            seen = Seen(rt.store.now(), (await rt.look.glance(made.run_id)).record.version, run.waits[0].wait_id if run.waits else "")
        if takes_match(made.path):
            stale = await http.post(made.path, json=made.body, headers={"Idempotency-Key": "k", "If-Match": '"0"'})
            assert (stale.status_code, stale.json()["code"]) == (412, "stale") and not await rows(rt)
        body = msgspec.json.encode(made.body)
        assert isinstance(await answering(rt, "gone").begin(place("*", "POST", made.path, "k"), body, lambda: given(seen)), Turn)
        clock.advance(61)
        before = await made.facts(rt)
        done = await http.post(made.path, content=body, headers={"Idempotency-Key": "k", "Content-Type": "application/json"})
        await rested(rt, http)
        assert done.status_code in (200, 202), done.text
        assert await made.facts(rt) != before or made.path.endswith("/repair"), "a run that is well needs no repair"


async def given(seen: Seen) -> Seen:
    return seen


async def test_a_key_is_of_one_path() -> None:
    """§16.5: two schedules of one skill, its runs and their forks under one and the same key."""
    async with Runtime("memory:", skills=[graph()]) as rt, served(rt, tokens=False) as http:
        key = {"Idempotency-Key": "k"}
        ids = [await scheduled(rt, f"s{n}") for n in range(2)]
        made = [await http.post(f"/v1/schedules/{i}/trigger", json={}, headers=key) for i in ids]
        made.append(await http.post("/v1/runs", json={"skill_id": "notes", "input": {"name": "quick"}}, headers=key))
        found = {m.json()["run_id"] for m in made}
        assert [m.status_code for m in made] == [202, 202, 202] and len(found) == 3
        assert [(await rt.look.glance(m.json()["run_id"])).record.schedule_id for m in made] == [*ids, None]


async def test_a_key_is_of_one_tenant() -> None:
    tokens = {t: Access(id=t, digest=b"", tenant_id=t, scopes=(Scope.ADMIN,)) for t in ("one", "two")}
    async with Runtime("memory:", skills=[graph()]) as rt, served(rt, tokens=tokens) as http:
        made = [
            await http.post("/v1/runs", json={"skill_id": "notes", "input": {"name": t}}, headers={"Authorization": f"Bearer {t}", "Idempotency-Key": "k"}) for t in tokens
        ]
        assert [m.status_code for m in made] == [202, 202] and len(await rt.runs()) == 2


@pytest.mark.parametrize("encryption", [None, Keys({"k2": b"2" * 32}), Keys({"k1": b"2" * 32})], ids=["none", "lost", "wrong"])
async def test_a_server_without_the_key_says_so(encryption: Keys | None, tmp_path: Path) -> None:
    """§16.4: tokens and kept answers are encrypted where payloads are. A server that cannot read them is not at fault by any input: it is 503, with the key's id."""
    clock, idempotent = VirtualClock(), {"Idempotency-Key": "k"}
    async with opened(STORES[1], tmp_path, clock, encryption=Keys({"k1": b"1" * 32})) as rt, served(rt, tokens=False) as http:
        secret = await token(rt, "admin")
        first = await http.post("/v1/runs", json={"skill_id": "notes"}, headers=idempotent)
        kept = await http.post(f"/v1/runs/{first.json()['run_id']}/cancel", json={}, headers=idempotent)
        assert kept.status_code == 202
    async with opened(STORES[1], tmp_path, clock, encryption=encryption) as rt:
        async with served(rt) as http:
            refused = [await http.get(path, headers={"Authorization": f"Bearer {secret}"}) for path in ("/v1/runs", "/v1/workers", "/metrics")]
        async with served(rt, tokens=False) as http:
            refused.append(await http.post(f"/v1/runs/{first.json()['run_id']}/cancel", json={}, headers=idempotent))
            assert (await http.get("/v1/runs")).status_code == 200, "all else goes on"
        for answer in refused:
            assert (answer.status_code, answer.json()["code"]) == (503, "key_unavailable") and "'k1'" in answer.json()["detail"]
            assert "Retry-After" in answer.headers
