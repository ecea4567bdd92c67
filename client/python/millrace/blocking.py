"""The blocking API: each call waits for its answer. A client is for one thread at a time."""
from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from typing import Iterable, Iterator, TypeVar

from millrace import address as addresses
from millrace import connection as core
from millrace._tables import VERSION, VERSION_MIN
from millrace.connection import Answer, Connection, Message, OnNotice
from millrace.errors import Disconnected
from millrace.frames import Closed, Contract, Modified, Opened, Rekeyed, Result, Welcome

T = TypeVar("T")
READ_BYTES = 1 << 16
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def connect(
    address: str,
    *,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    timeout: float | None = None,
    versions: tuple[int, int] = (VERSION_MIN, VERSION),
    on_notice: OnNotice | None = None,
) -> Client:
    """A client of the server at the address, which has said WELCOME.

    tls: for tls: addresses (address.tls; default: the system's trust, no certificate); server_name:
    to verify, default the host of the address. timeout: seconds, for this and every later call that
    waits; None: for ever. on_notice: called with a stream's id and a Notice while some call
    waits."""
    where = addresses.Address.parse(address)
    if where.transport == "unix":
        wire = socket.socket(socket.AF_UNIX)
    else:
        wire = socket.create_connection((where.host, where.port), timeout)
    try:
        if where.transport == "unix":
            wire.settimeout(timeout)
            wire.connect(where.host)
        else:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if where.transport == "tls":
            wire = (tls or addresses.tls()).wrap_socket(wire, server_hostname=server_name or where.host)
        wire.setblocking(False)
        client = Client(wire, Connection(versions=versions, on_notice=on_notice), timeout)
        client.wait(client.connection.welcomed)
    except BaseException:
        wire.close()
        raise
    return client


class Client:
    """A connection; made by `connect`. As a context manager it is closed at the end."""

    def __init__(self, wire: socket.socket, connection: Connection, timeout: float | None) -> None:
        self.connection = connection
        self.timeout = timeout
        self._wire = wire
        self._unsent = bytearray()

    @property
    def welcome(self) -> Welcome:
        return self.connection.welcome

    def open(self, contract: Contract, key: bytes | str, iv: bytes | None = None) -> Stream:
        """A stream with this contract. `key`: 16, 24 or 32 bytes, or the name of a key of the
        server. Refusal where the server can not promise it."""
        answer = self.connection.open(contract, key, iv)
        try:
            return Stream(self, self.wait(answer))
        except BaseException:
            self.connection.abandon(answer)
            raise

    def query(self, contract: Contract, key: bytes | str | None = None, iv: bytes | None = None) -> Opened:
        """What OPEN would be promised now; Refusal where it would be refused."""
        return self.wait(self.connection.query(contract, key, iv))

    def ping(self, payload: bytes = b"") -> bytes:
        return self.wait(self.connection.ping(payload))

    def close(self) -> None:
        """Ends the connection, and with it its streams: what has not come back is lost."""
        self.connection.fail(Disconnected("closed by this side"))
        self._wire.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, answer: Answer[T]) -> T:
        """The answer, once it is there. TimeoutError: not in time."""
        end = None if self.timeout is None else time.monotonic() + self.timeout
        self.write()
        while not answer.done:
            if not self._read() and not self._sleep(end):
                raise TimeoutError("the server did not answer in time")
            self.write()
        return answer.result()

    def write(self) -> None:
        """Sends as much as goes without waiting."""
        self._unsent += self.connection.take_output()
        try:
            while self._unsent:
                del self._unsent[: self._wire.send(self._unsent)]
        except WOULD_BLOCK:
            pass
        except OSError:  # what the server has said before it went away is still to be read
            self._unsent.clear()

    def _read(self) -> bool:
        """Whether anything has come, if only the end."""
        try:
            self.connection.receive(self._wire.recv(READ_BYTES))
        except WOULD_BLOCK:
            return False
        except OSError as error:
            self.connection.fail(Disconnected(f"the connection broke: {error}"))
        return True

    def _sleep(self, end: float | None) -> bool:
        """Until there is something to do; whether that was before the end."""
        left = None if end is None else end - time.monotonic()
        if left is not None and left <= 0:
            return False
        poll = select.poll()
        poll.register(self._wire, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        return bool(poll.poll(None if left is None else left * 1000 + 1))


class Stream:
    """An open stream; `state` tells where it is (connection.Stream). As a context manager it is
    closed at the end."""

    def __init__(self, client: Client, state: core.Stream) -> None:
        self.state = state
        self._client = client

    def send(self, packet: bytes, *, first: bool = True, last: bool = True) -> Answer[Result]:
        """Sends a packet, or a part of a message, without waiting; give the answer to Client.wait.
        Whoever sends on and on must wait for answers, too."""
        answer = self.state.send(packet, first=first, last=last)
        self._client.write()
        return answer

    def encrypt(self, packet: bytes) -> Result:
        """One packet, there and back."""
        return self._client.wait(self.state.send(packet))

    def encrypt_all(self, packets: Iterable[bytes]) -> Iterator[Result]:
        """Packets one after another, as many under way as the server holds for the stream."""
        waiting: deque[Answer[Result]] = deque()
        for packet in packets:
            waiting.append(self.send(packet))
            if len(waiting) >= self.state.queue_packets:
                yield self._client.wait(waiting.popleft())
        while waiting:
            yield self._client.wait(waiting.popleft())

    def encrypt_message(self, message: bytes, iv: bytes | None = None) -> Message:
        """A message, in as many packets as it needs. `iv`: with iv EXPLICIT."""
        return Message.of([self._client.wait(answer) for answer in self.state.send_message(message, iv)])

    def modify(self, burst_packets: int, interval_ns: int, latency_ns: int) -> Modified:
        """Another contract; after Refusal the old one goes on."""
        return self._client.wait(self.state.modify(burst_packets, interval_ns, latency_ns))

    def rekey(self, key: bytes | str, first: int | None = None) -> Rekeyed:
        """Another key from message number `first` on, or from the next one; after Refusal the old
        key goes on."""
        return self._client.wait(self.state.rekey(key, first))

    def close(self) -> Closed:
        """Ends the stream after the packets that were sent."""
        return self._client.wait(self.state.close())

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        if self.state.is_open:
            self.close()
