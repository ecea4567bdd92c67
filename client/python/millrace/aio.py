"""The asyncio API: as blocking.py, but calls are awaited, and any number of them may be under way
at once."""
from __future__ import annotations

import asyncio
import ssl
from typing import TypeVar

from millrace import address as addresses
from millrace import connection as core
from millrace._tables import VERSION, VERSION_MIN
from millrace.connection import Answer, Connection, Message, OnNotice
from millrace.errors import Disconnected, MillraceError
from millrace.frames import Closed, Contract, Modified, Opened, Rekeyed, Result, Welcome

T = TypeVar("T")


async def connect(
    address: str,
    *,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    versions: tuple[int, int] = (VERSION_MIN, VERSION),
    on_notice: OnNotice | None = None,
) -> Client:
    """A client of the server at the address, which has said WELCOME. Arguments are those of
    blocking.connect; asyncio.timeout() limits how long anything waits."""
    where = addresses.Address.parse(address)
    loop = asyncio.get_running_loop()
    wire = _Wire(Connection(versions=versions, on_notice=on_notice))
    if where.transport == "unix":
        await loop.create_unix_connection(lambda: wire, where.host)
    elif where.transport == "tcp":
        await loop.create_connection(lambda: wire, where.host, where.port)
    else:
        await loop.create_connection(
            lambda: wire,
            where.host,
            where.port,
            ssl=tls or addresses.tls(),
            server_hostname=server_name or where.host,
        )
    client = Client(wire)
    try:
        await client.answer(wire.connection.welcomed)
    except BaseException:
        await client.close()
        raise
    return client


class _Wire(asyncio.Protocol):
    """Between asyncio's transport and the connection. What is written in one turn of the loop goes
    out at once."""

    transport: asyncio.Transport

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.writable = asyncio.Event()
        self.lost = asyncio.Event()
        self._flushing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.writable.set()
        self._flush()

    def data_received(self, data: bytes) -> None:
        self.connection.receive(data)
        self.flush_soon()

    def eof_received(self) -> None:
        self.connection.receive(b"")

    def connection_lost(self, error: Exception | None) -> None:
        self.connection.fail(Disconnected(f"the connection broke: {error}"))
        self.lost.set()
        self.writable.set()

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.connection.error is not None:
            self.transport.abort()
        elif output := self.connection.take_output():
            self.transport.write(output)


class Client:
    """A connection; made by `connect`. As a context manager it is closed at the end."""

    def __init__(self, wire: _Wire) -> None:
        self.connection = wire.connection
        self._wire = wire

    @property
    def welcome(self) -> Welcome:
        return self.connection.welcome

    async def open(self, contract: Contract, key: bytes | str, iv: bytes | None = None) -> Stream:
        """A stream with this contract. `key`: 16, 24 or 32 bytes, or the name of a key of the
        server. Refusal where the server can not promise it."""
        answer = self.connection.open(contract, key, iv)
        try:
            return Stream(self, await self.answer(answer))
        except BaseException:
            self.connection.abandon(answer)
            self._wire.flush_soon()
            raise

    async def query(
        self, contract: Contract, key: bytes | str | None = None, iv: bytes | None = None
    ) -> Opened:
        """What OPEN would be promised now; Refusal where it would be refused."""
        return await self.answer(self.connection.query(contract, key, iv))

    async def ping(self, payload: bytes = b"") -> bytes:
        return await self.answer(self.connection.ping(payload))

    async def drain(self) -> None:
        """Until the system takes more of what is sent: between packets, for who sends faster than
        it does."""
        await self._wire.writable.wait()

    async def close(self) -> None:
        """Ends the connection, and with it its streams: what has not come back is lost."""
        self.connection.fail(Disconnected("closed by this side"))
        self._wire.transport.abort()
        await self._wire.lost.wait()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def answer(self, answer: Answer[T]) -> asyncio.Future[T]:
        """A future of asyncio for an answer."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def finish() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(answer.result())
            except MillraceError as error:
                future.set_exception(error)

        answer.when_done = finish
        self._wire.flush_soon()
        if answer.done:
            finish()
        return future


class Stream:
    """An open stream; `state` tells where it is (connection.Stream). As a context manager it is
    closed at the end."""

    def __init__(self, client: Client, state: core.Stream) -> None:
        self.state = state
        self._client = client

    def encrypt(self, packet: bytes, *, first: bool = True, last: bool = True) -> asyncio.Future[Result]:
        """Sends a packet, or a part of a message, in the order of the calls; await the future for
        what comes back."""
        return self._client.answer(self.state.send(packet, first=first, last=last))

    async def encrypt_message(self, message: bytes, iv: bytes | None = None) -> Message:
        """A message, in as many packets as it needs. `iv`: with iv EXPLICIT."""
        answers = self.state.send_message(message, iv)
        return Message.of(await asyncio.gather(*(self._client.answer(answer) for answer in answers)))

    async def modify(self, burst_packets: int, interval_ns: int, latency_ns: int) -> Modified:
        """Another contract; after Refusal the old one goes on."""
        return await self._client.answer(self.state.modify(burst_packets, interval_ns, latency_ns))

    async def rekey(self, key: bytes | str, first: int | None = None) -> Rekeyed:
        """Another key from message number `first` on, or from the next one; after Refusal the old
        key goes on. What is sent before this returns may be under the one or the other."""
        return await self._client.answer(self.state.rekey(key, first))

    async def close(self) -> Closed:
        """Ends the stream after the packets that were sent."""
        return await self._client.answer(self.state.close())

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.state.is_open:
            await self.close()
