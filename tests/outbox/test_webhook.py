"""The webhook against receivers that are slow, refuse, break off or lead elsewhere (§9.4): bounded, and honest about what is known."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Graph, Runtime, State
from holdfast.core.errors import MaybeSent, PermanentError, RetryAfter
from holdfast.outbox.webhook import ANSWER_CAP, is_permitted, request, retry_after
from holdfast.transports import Webhook, signature

Answering = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Receiver:
    """A real receiver on loopback that keeps what it gets and answers as it is told."""

    def __init__(self, answer: Answering) -> None:
        self.answer = answer
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        self.got.append(({"": head[0], **headers}, await reader.readexactly(int(headers["Content-Length"]))))
        with contextlib.suppress(ConnectionError):
            await self.answer(writer)
            await writer.drain()
        writer.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/in?x=1"


@contextlib.asynccontextmanager
async def receiver(answer: Answering) -> AsyncIterator[Receiver]:
    found = Receiver(answer)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()


def says(status: str, body: bytes = b"ok", **headers: str) -> Answering:
    async def answer(writer: asyncio.StreamWriter) -> None:
        more = "".join(f"{n.replace('_', '-')}: {v}\r\n" for n, v in headers.items())
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body)

    return answer


async def test_what_a_receiver_gets() -> None:
    """The body as JSON, the key as Idempotency-Key, a signature that covers the time."""
    async with receiver(says("200 OK", b'{"id": 7}')) as r:
        answer = await Webhook(secret="s3cret", allow=["127.0.0.1"]).send({"url": r.url, "body": {"a": 1}, "headers": {"X-Mine": "yes"}}, "k:1/å")
        assert answer == {"status": 200, "body": '{"id": 7}', "cut": False}
        ((headers, body),) = r.got
        assert headers[""] == "POST /in?x=1 HTTP/1.1"
        assert json.loads(body) == {"a": 1}
        assert (headers["Idempotency-Key"], headers["X-Mine"], headers["Content-Type"]) == ("k:1/%C3%A5", "yes", "application/json")
        at, mac = (part.split("=")[1] for part in headers["Holdfast-Signature"].split(","))
        assert mac == signature(b"s3cret", int(at), body)
        assert abs(int(at) - time.time()) < 60
        await Webhook(allow="127.0.0.1").send({"url": r.url, "body": "plain text", "method": "put"}, "k")
        assert r.got[1][1] == b"plain text"
        assert "Holdfast-Signature" not in r.got[1][0]


@pytest.mark.parametrize(
    "answer, error",
    [
        (says("500 Oops"), OSError),
        (says("429 Slow Down", Retry_After="7"), RetryAfter),
        (says("503 Down", Retry_After="Wed, 21 Oct 2099 07:28:00 GMT"), RetryAfter),
        (says("409 Conflict"), OSError),
        (says("404 Gone"), PermanentError),
        (says("422 No"), PermanentError),
        (says("302 Found", Location="http://169.254.169.254/latest/meta-data"), PermanentError),
    ],
    ids=["500", "429", "503", "409", "404", "422", "redirect"],
)
async def test_what_an_answer_means(answer: Answering, error: type[Exception]) -> None:
    async with receiver(answer) as r:
        with pytest.raises(error) as found:
            await Webhook(allow=["127.0.0.1"]).send({"url": r.url}, "k")
        assert type(found.value) is error
        if isinstance(found.value, RetryAfter):
            assert found.value.seconds in (7, 24 * 3600)


async def half(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")


async def nothing(writer: asyncio.StreamWriter) -> None:
    return


async def nonsense(writer: asyncio.StreamWriter) -> None:
    writer.write(b"SMTP ready\r\n\r\n")


async def headless(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"X-Long: " + b"x" * 65536)
            await writer.drain()


async def odd_chunk(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nxx")


CLOSED, INVALID = "closed the connection", "is not valid HTTP"


@pytest.mark.parametrize(("answer", "said"), [(half, CLOSED), (nothing, CLOSED), (nonsense, INVALID), (headless, INVALID), (odd_chunk, INVALID)])
async def test_half_an_answer_is_no_answer(answer: Answering, said: str) -> None:
    """It may have been taken: whoever dedupes gets it again, else a person is asked."""
    async with receiver(answer) as r:
        with pytest.raises(MaybeSent, match=said):
            await Webhook(allow=["127.0.0.1"]).send({"url": r.url}, "k")


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000000\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()


async def endless_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()


@pytest.mark.parametrize("answer", [endless, endless_chunks])
async def test_ten_gigabytes_are_cut(answer: Answering) -> None:
    async with receiver(answer) as r:
        found = await Webhook(allow=["127.0.0.1"]).send({"url": r.url}, "k")
        assert (len(found["body"]), found["cut"]) == (ANSWER_CAP, True)


async def test_addresses_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private, loopback and link-local addresses, however they are spelt, unless they are named."""
    monkeypatch.delenv("HOLDFAST_WEBHOOK_ALLOW", raising=False)
    async with receiver(says("200 OK")) as r:
        for url in (r.url, f"http://localhost:{r.port}/", f"http://0x7f000001:{r.port}/", f"http://[::ffff:127.0.0.1]:{r.port}/", "http://169.254.169.254/"):
            with pytest.raises(PermanentError, match="may not be sent to"):
                await Webhook().send({"url": url}, "k")
        assert r.got == []
        monkeypatch.setenv("HOLDFAST_WEBHOOK_ALLOW", f"example.com, 127.0.0.1:{r.port}")
        await Webhook().send({"url": r.url}, "k")
    for address in ("10.0.0.1", "192.168.1.1", "172.16.0.1", "127.0.0.1", "169.254.1.1", "0.0.0.0", "::1", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1",
                    "64:ff9b::a00:1", "2002:7f00:1::", "224.0.0.1", "100.64.0.1"):
        assert not is_permitted("host", 80, address, ()), address
        assert is_permitted("Host", 80, address, ("host",)), address
    assert is_permitted("host", 80, "10.1.2.3", ("10.0.0.0/8",))
    assert not is_permitted("host", 81, "10.1.2.3", ("host:80", "nonsense/9"))
    assert is_permitted("host", 443, "93.184.216.34", ())


@pytest.mark.parametrize(
    "payload",
    [None, {}, {"url": 3}, {"url": "ftp://a/"}, {"url": "http://u:p@a/"}, {"url": "http://"}, {"url": "http://a:99999/"}, {"url": "http://a/", "method": "TRACE"},
     {"url": "http://a/", "headers": {"A": "b\r\nC: d"}}, {"url": "http://a/", "headers": {"Host": "b"}}, {"url": "http://a/", "bdy": 1},
     {"url": "http://a/", "body": "x" * (17 * 1024 * 1024)}],
)
def test_requests_that_cannot_be_made(payload: Any) -> None:
    with pytest.raises(PermanentError):
        request(payload, "k", None, 0)


def test_retry_after() -> None:
    assert retry_after("12", 0) == 12
    assert retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 0) == 60
    for text in ("", "soon", "²", "-5"):
        assert retry_after(text, 0) is None


class Note(State):
    url: str = ""
    slow: str = ""


async def test_a_receiver_that_hangs_hinders_nobody_else(tmp_path: Path) -> None:
    """Its intents wait their turn; those for others are sent meanwhile."""
    graph: Graph[Note] = Graph("many", Note, version="1")

    @graph.node(start=True)
    async def send(state: Note, ctx: Context) -> None:
        for n in range(40):
            ctx.send("webhook", {"url": state.slow, "body": n})
        for n in range(20):
            ctx.send("webhook", {"url": state.url, "body": n})

    release = asyncio.Event()

    async def hangs(writer: asyncio.StreamWriter) -> None:
        await release.wait()

    async with receiver(says("200 OK")) as quick, receiver(hangs) as slow:
        hook = Webhook(allow=["127.0.0.1"], timeout=30)
        async with Runtime(f"sqlite:///{tmp_path}/a.db", transports={"other": lambda p, k: None}, skills=[graph]) as rt:
            await rt.submit(graph, {"url": quick.url, "slow": slow.url})
            await rt.worker(until_idle=True, dispatch=False)
        async with Runtime(f"sqlite:///{tmp_path}/a.db", transports={"webhook": hook}) as rt:
            stop = asyncio.Event()
            sending = asyncio.ensure_future(rt.dispatch(stop=stop))
            async with asyncio.timeout(60):
                while len(quick.got) < 20:
                    await rt.store.wait_for_change(0.05)
            assert len(slow.got) <= 16
            release.set()
            stop.set()
            await sending


BLOCKED = 40  # more than any pool of the loop's own has threads


async def test_names_that_are_looked_up_for_ever_hinder_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer for some hosts: neither the others nor what else needs a thread waits for it."""
    release, real, asked = threading.Event(), socket.getaddrinfo, list[str]()
    loop, blocked = asyncio.get_running_loop(), asyncio.Event()

    def looked_up(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        asked.append(host)
        if len(asked) == BLOCKED:
            loop.call_soon_threadsafe(blocked.set)
        if host.startswith("hangs"):
            release.wait(60)
        return real("127.0.0.1", port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    hook = Webhook(allow=["127.0.0.1"], timeout=30)
    async with receiver(says("200 OK")) as quick:
        stuck = [asyncio.ensure_future(hook.send({"url": f"http://hangs{n}.example:{quick.port}/"}, "k")) for n in range(BLOCKED) for _ in range(2)]
        try:
            async with asyncio.timeout(60):
                await blocked.wait()
                answers = [await hook.send({"url": f"http://{host}:{quick.port}/in"}, "k") for host in ("quick.example", "127.0.0.1")]
                await asyncio.to_thread(lambda: None)
            assert [a["status"] for a in answers] == [200, 200] and len(quick.got) == 2
            assert asked == [f"hangs{n}.example" for n in range(BLOCKED)] + ["quick.example"], "each name once, an address never"
        finally:
            release.set()
        assert [(await s)["status"] for s in stuck] == [200] * (2 * BLOCKED), "who asked for the same name has the same answer"


async def test_a_name_that_is_not_known_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out is for those that asked meanwhile; a loop that has ended leaves nothing behind."""
    asked: list[str] = []

    def unknown(host: str, *args: Any, **options: Any) -> Any:
        asked.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    hook = Webhook()
    for _ in range(2):
        with pytest.raises(OSError, match="Temporary failure"):
            await hook.send({"url": "http://unknown.example/"}, "k")
    assert asked == ["unknown.example"] * 2


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()


async def test_who_is_not_reached_in_time_has_not_got_it() -> None:
    """Before the connection stands nothing is sent, so nobody has to be asked whether it was."""
    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"  # it takes the connection, and never answers the handshake
    try:
        with pytest.raises(OSError, match="127.0.0.1 was not reached within 0.18 s") as found:
            await Webhook(allow=["127.0.0.1"], timeout=0.2).send({"url": url}, "k")
        assert type(found.value) is OSError
        graph: Graph[Note] = Graph("unreached", Note, version="1")

        @graph.node(start=True)
        async def send(state: Note, ctx: Context) -> None:
            ctx.send("webhook", {"url": state.url})

        async with Runtime("memory:", transports={"webhook": Webhook(allow=["127.0.0.1"], timeout=0.2, dedupes=False)}) as rt:
            run = await rt.invoke(graph, {"url": url})
            (intent,) = await rt.intents(run.run_id)
            assert (intent.state, [a.outcome for a in intent.attempts]) == ("queued", ["failed"])
    finally:
        server.close()
