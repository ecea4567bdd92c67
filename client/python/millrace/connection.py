"""The client's side of a connection without any I/O: bytes go in and come out, answers are found.

A driver (blocking.py, aio.py) gives `receive` whatever the server has sent, sends what
`take_output` returns after every call, and ends when `error` is set. Every request returns an
Answer, which is done once the server has answered, or the connection is over. Not for several
threads at once."""
from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Callable, Generic, NamedTuple, Sequence, TypeVar

from millrace import _tables as tables
from millrace._tables import Direction, Iv, Mac, NoticeKind, Padding, Records, ResultStatus, Type, Unit
from millrace.errors import (
    Disconnected,
    MillraceError,
    NotEncrypted,
    ProtocolError,
    Refusal,
    StreamClosed,
    Unsupported,
)
from millrace.frames import (
    Closed,
    Contract,
    Error,
    Header,
    Hello,
    Modified,
    Modify,
    Notice,
    Open,
    Opened,
    Refused,
    Rekey,
    Rekeyed,
    Result,
    Welcome,
    frame,
)

T = TypeVar("T")
OnNotice = Callable[[int, Notice], None]
REQUESTS_MAX = 1024  # unanswered at once
BLOCK = tables.BLOCK_BYTES


class Answer(Generic[T]):
    """What the server says to a request: a value or an error. `when_done` is called once, when it
    is there."""

    def __init__(self) -> None:
        self.done = False
        self.abandoned = False  # see Connection.abandon
        self.when_done: Callable[[], None] | None = None
        self._value: T | None = None
        self._error: MillraceError | None = None

    def finish(self, value: T | None, error: MillraceError | None = None) -> None:
        self._value, self._error, self.done = value, error, True
        if self.when_done is not None:
            self.when_done()

    def result(self) -> T:
        """Of an answer that is done."""
        if self._error is not None:
            raise self._error
        assert self.done
        return self._value  # type: ignore[return-value]


@dataclass(frozen=True)
class Message:
    """A message that came back, put together; `iv` where the server has drawn one."""

    ciphertext: bytes
    iv: bytes | None
    results: tuple[Result, ...]

    @classmethod
    def of(cls, results: Sequence[Result]) -> Message:
        return cls(b"".join(result.ciphertext for result in results), results[0].iv, tuple(results))


class _Request(NamedTuple):
    type: Type
    answer: Answer[Any]
    subject: Any  # OPEN: the contract; MODIFY, REKEY: the stream; PING: what it brings


class Stream:
    """An open stream."""

    def __init__(self, connection: Connection, contract: Contract, opened: Opened) -> None:
        self.id = opened.stream
        self.contract = contract
        self.opened = opened
        self.sent = 0  # sequence of the next packet
        self.answered = 0  # of the first one without a RESULT
        self.chain = opened.iv  # the last block that came back (with a pattern maybe a clear one), or the IV in force
        self.queue_packets = opened.queue_packets  # that the server holds before it stops reading
        self.closed: Closed | None = None
        self.next_message = contract.first_unit  # number of the message that begins next
        self._connection = connection
        self._waiting: deque[Answer[Result]] = deque()
        self._inside = False  # a message has begun
        self._closing: Answer[Closed] | None = None

    def send(self, packet: bytes, *, first: bool = True, last: bool = True) -> Answer[Result]:
        """One packet. Of a stream with messages `first` and `last` say whether it begins and ends
        one; with iv EXPLICIT the IV is ahead of what is in the first."""
        self._check_open()
        if len(packet) > self._connection.welcome.packet_bytes_max:
            raise ValueError(f"{len(packet)} bytes are longer than the server's longest packet")
        flags = 0
        if self.contract.unit == Unit.MESSAGE:
            if self._has_whole_ones and not (first and last):
                raise ValueError("each message is one packet, by message_packets, records or the MAC of the contract")
            if first == self._inside:
                raise ValueError("a message begins where the one before has ended, and nowhere else")
            flags = (tables.DATA_FIRST if first else 0) | (tables.DATA_LAST if last else 0)
            self._inside = not last
            self.next_message = (self.next_message + first) % 2**64
        answer: Answer[Result] = Answer()
        self._waiting.append(answer)
        self._connection.write(frame(Type.DATA, self.id, packet, flags=flags, sequence=self.sent))
        self.sent = (self.sent + 1) % 2**32
        return answer

    def send_message(self, message: bytes, iv: bytes | None = None) -> list[Answer[Result]]:
        """A whole message, cut into packets as they fit. `iv` is due with iv EXPLICIT, and only
        there."""
        explicit = self.contract.iv == Iv.EXPLICIT
        if (
            self.contract.unit != Unit.MESSAGE
            or explicit != (iv is not None)
            or len(iv or bytes(BLOCK)) != BLOCK
        ):
            raise ValueError(
                f"a stream with messages, and an IV of {BLOCK} bytes where each has its own, are due"
            )
        data, longest = (iv or b"") + message, self.contract.packet_bytes
        if len(data) <= longest:
            return [self.send(data)]
        if self._has_whole_ones:
            raise ValueError(f"a message of {len(data)} bytes is longer than a packet, which it must fit into")
        step = longest // BLOCK * BLOCK
        if step <= (BLOCK if explicit else 0):
            raise ValueError(f"a message of {len(message)} bytes does not fit into packets of {longest}")
        starts = range(0, len(data), step)
        return [self.send(data[at : at + step], first=at == 0, last=at == starts[-1]) for at in starts]

    def modify(self, burst_packets: int, interval_ns: int, latency_ns: int) -> Answer[Modified]:
        self._check_open()
        self._connection.require(2, "MODIFY")
        body = Modify(self.id, burst_packets, interval_ns, latency_ns)
        return self._connection.request(Type.MODIFY, body.write(2), self)

    def rekey(self, key: bytes | str, first: int | None = None) -> Answer[Rekeyed]:
        """Another key from message number `first` on, which is `next_message` where it is None. The
        message may be sent at once, but which key it is under tells the answer alone: after Refusal
        the old one goes on."""
        self._check_open()
        self._connection.require(3, "REKEY")
        body = Rekey(self.id, self.next_message if first is None else first, key)
        return self._connection.request(Type.REKEY, body.write(3), self)

    def close(self) -> Answer[Closed]:
        """After the packets that were sent."""
        self._check_open()
        self._connection.write(frame(Type.CLOSE, self.id))
        self._closing = Answer()
        return self._closing

    @property
    def is_open(self) -> bool:
        return self.closed is None and self._closing is None and self._connection.error is None

    def _check_open(self) -> None:
        self._connection.check()
        if not self.is_open:
            raise StreamClosed(self.id, self.closed)

    def take_result(self, sequence: int, result: Result) -> None:
        if not self._waiting or sequence != self.answered:
            raise ProtocolError(
                f"RESULT {sequence} of stream {self.id}, of which {self.answered} is expected next"
            )
        if not self._can_have(result):
            raise ProtocolError(
                f"RESULT {sequence} of stream {self.id} has {len(result.ciphertext)} bytes of ciphertext "
                f"and flags {result.flags}, which it can not have"
            )
        self.answered = (self.answered + 1) % 2**32
        whole = len(result.ciphertext) // BLOCK * BLOCK
        if whole and self.contract.direction == Direction.ENCRYPT:
            self.chain = result.ciphertext[whole - BLOCK : whole]
        encrypted = result.status == ResultStatus.OK
        self._waiting.popleft().finish(result, None if encrypted else NotEncrypted(result))

    def _can_have(self, result: Result) -> bool:
        if len(result.ciphertext) > self.contract.packet_bytes + BLOCK + self._tag_bytes:
            return False
        if self.contract.unit == Unit.MESSAGE:
            has_rest = self.contract.padding == Padding.CLEAR
            return (has_rest or len(result.ciphertext) % BLOCK == 0) and (
                result.iv is None or self.contract.iv == Iv.RANDOM
            )
        encrypted = result.status == ResultStatus.OK
        return (
            result.iv is None and len(result.ciphertext) % BLOCK == 0 and bool(result.ciphertext) == encrypted
        )

    @property
    def _has_whole_ones(self) -> bool:
        checks = self.contract.mac != Mac.NONE and self.contract.direction == Direction.DECRYPT
        return self.contract.message_packets == 1 or self.contract.records != Records.NONE or checks

    @property
    def _tag_bytes(self) -> int:
        adds = self.contract.mac != Mac.NONE and self.contract.direction == Direction.ENCRYPT
        return tables.MAC_BYTES if adds else 0

    def take_closed(self, closed: Closed) -> None:
        self.closed = closed
        self.fail(StreamClosed(self.id, closed))
        if self._closing is not None:
            self._closing.finish(closed)

    def fail(self, error: MillraceError) -> None:
        """Answers that no longer come."""
        while self._waiting:
            self._waiting.popleft().finish(None, error)
        if self._closing is not None and self.closed is None:
            self._closing.finish(None, error)


class Connection:
    def __init__(
        self,
        *,
        versions: tuple[int, int] = (tables.VERSION_MIN, tables.VERSION),
        on_notice: OnNotice | None = None,
    ) -> None:
        self.error: MillraceError | None = None  # set: the connection is over
        self.welcomed: Answer[Welcome] = Answer()
        self.streams: dict[int, Stream] = {}
        self._versions = versions
        self._tell = on_notice
        self._requests: dict[int, _Request] = {}
        self._next_request = 1
        self._input = bytearray()
        self._output = bytearray(frame(Type.HELLO, 0, Hello(*versions).write(1)))

    @property
    def welcome(self) -> Welcome:
        return self.welcomed.result()

    # ---- what a client asks for ----

    def open(self, contract: Contract, key: bytes | str, iv: bytes | None = None) -> Answer[Stream]:
        return self._ask(Type.OPEN, contract, Open(contract, key, iv))

    def abandon(self, opening: Answer[Stream]) -> None:
        """Nobody waits for this answer any more: a stream that it brings, or has brought, is closed
        again."""
        opening.abandoned = True
        stream = opening._value
        if stream is not None and stream.is_open:
            stream.close()

    def query(
        self, contract: Contract, key: bytes | str | None = None, iv: bytes | None = None
    ) -> Answer[Opened]:
        """Whether OPEN would be granted now, which commits nothing."""
        return self._ask(Type.QUERY, contract, Open(contract, key, iv))

    def ping(self, payload: bytes = b"") -> Answer[bytes]:
        if len(payload) > tables.PING_BYTES_MAX:
            raise ValueError(f"a PING brings at most {tables.PING_BYTES_MAX} bytes")
        return self.request(Type.PING, payload, payload)

    def _ask(self, type_: Type, contract: Contract, body: Open) -> Answer[Any]:
        self.check()
        if contract.unit == Unit.MESSAGE or contract.padding == Padding.CLEAR or contract.mac != Mac.NONE:
            self.require(3, "messages")
        if contract.direction == Direction.DECRYPT:
            self.require(3, "decryption")
        if contract.guaranteed:
            self.require(2, "a guaranteed stream")
        return self.request(type_, body.write(self.welcome.version), contract)

    def request(self, type_: Type, body: bytes, subject: Any) -> Answer[Any]:
        self.check()
        if len(self._requests) >= REQUESTS_MAX:
            raise MillraceError(f"{REQUESTS_MAX} requests are unanswered: wait for answers first")
        while self._next_request in self._requests:
            self._next_request = (self._next_request + 1) % 2**32
        answer: Answer[Any] = Answer()
        self._requests[self._next_request] = _Request(type_, answer, subject)
        self.write(frame(type_, self._next_request, body))
        self._next_request = (self._next_request + 1) % 2**32
        return answer

    def require(self, version: int, what: str) -> None:
        if self.welcome.version < version:
            raise Unsupported(f"{what} needs version {version}, the server speaks {self.welcome.version}")

    def check(self) -> None:
        if self.error is not None:
            raise Disconnected(f"the connection is over: {self.error}") from self.error

    def write(self, data: bytes) -> None:
        self._output += data

    def take_output(self) -> bytes:
        """What is to be sent."""
        data = bytes(self._output)
        self._output.clear()
        return data

    # ---- what the server sends ----

    def receive(self, data: bytes) -> None:
        """Takes what has come; nothing: the server has closed its end. Never raises: see
        `error`."""
        if self.error is not None:
            return
        try:
            if not data:
                raise Disconnected(
                    "the server closed the connection" + (" within a frame" if self._input else "")
                )
            self._input += data
            self._take_frames()
        except MillraceError as error:
            self.fail(error)

    def fail(self, error: MillraceError) -> None:
        """Ends the connection: whatever is waited for fails with this error."""
        if self.error is not None:
            return
        self.error = error
        self._output.clear()
        for request in list(self._requests.values()):
            request.answer.finish(None, error)
        self._requests.clear()
        for stream in list(self.streams.values()):
            stream.fail(error)
        if not self.welcomed.done:
            self.welcomed.finish(None, error)

    def _take_frames(self) -> None:
        at = 0
        try:
            while len(self._input) - at >= tables.HEADER_BYTES:
                header = Header.read(bytes(self._input[at : at + tables.HEADER_BYTES]))
                self._check_header(header)
                body_at = at + tables.HEADER_BYTES
                if len(self._input) - body_at < header.body_bytes:
                    break
                at = body_at + header.body_bytes
                _HANDLERS[header.type](self, header, bytes(self._input[body_at:at]))
        finally:
            del self._input[:at]

    @property
    def _version(self) -> int:
        """Before WELCOME any will do: ERROR, the one frame that may come, is the same in all."""
        return self.welcome.version if self.welcomed.done else self._versions[0]

    def _check_header(self, header: Header) -> None:
        """Judges a frame before its body is waited for."""
        if header.type not in _HANDLERS or self._version < _SINCE.get(header.type, 1):
            raise ProtocolError(
                f"a frame of type {header.type}, which no server sends (is this a Millrace server, and are "
                "both sides tls: or both not?)"
            )
        is_first = header.type == Type.WELCOME
        if (header.type != Type.ERROR or self.welcomed.done) and is_first == self.welcomed.done:
            raise ProtocolError(
                "a second WELCOME" if is_first else f"a frame of type {header.type} before WELCOME"
            )
        if header.flags or (is_first and header.id) or (header.type != Type.RESULT and header.sequence):
            raise ProtocolError(f"a frame of type {header.type} with a header field that must be 0")
        longest = tables.CONTROL_BYTES_MAX
        if header.type == Type.RESULT:
            around = 2 * BLOCK + tables.MAC_BYTES  # the padding, an IV, a code
            longest = tables.FIXED_BYTES["result"][1] + self.welcome.packet_bytes_max + around
        if header.body_bytes > longest:
            raise ProtocolError(f"a frame of type {header.type} with {header.body_bytes} bytes")

    def _on_welcome(self, _: Header, body: bytes) -> None:
        welcome = Welcome.read(1, body)
        if not self._versions[0] <= welcome.version <= self._versions[1]:
            raise ProtocolError(f"the server chose version {welcome.version}, which was not offered")
        if not 1 <= welcome.packet_bytes_max <= tables.PACKET_BYTES_MAX:
            raise ProtocolError(f"WELCOME has packet_bytes_max {welcome.packet_bytes_max}")
        self.welcomed.finish(welcome)

    def _on_error(self, _: Header, body: bytes) -> None:
        error = Error.read(1, body)
        if error.fatal:
            raise Disconnected(f"the server ended the connection ({error.code.name}): {error.text}", error)
        # Else it is about what crossed a CLOSED on the wire, and whoever waited for that has been told.

    def _request(self, header: Header, *types: Type) -> _Request:
        request = self._requests.get(header.id)
        if request is None or request.type not in types:
            raise ProtocolError(f"an answer to request {header.id}, which was not made")
        return request

    def _settle(self, header: Header, value: Any, error: MillraceError | None = None) -> None:
        self._requests.pop(header.id).answer.finish(value, error)

    def _on_opened(self, header: Header, body: bytes) -> None:
        opened = Opened.read(self._version, body)
        request = self._request(header, Type.OPEN, Type.QUERY)
        is_open = request.type == Type.OPEN
        if is_open != bool(opened.stream) or opened.stream in self.streams:
            raise ProtocolError(f"OPENED has stream id {opened.stream}, which is taken or no stream's")
        if not is_open:
            self._settle(header, opened)
            return
        stream = self.streams[opened.stream] = Stream(self, request.subject, opened)
        self._settle(header, stream)
        if request.answer.abandoned:
            stream.close()

    def _on_refused(self, header: Header, body: bytes) -> None:
        refused = Refused.read(self._version, body)
        self._request(header, Type.OPEN, Type.QUERY, Type.MODIFY, Type.REKEY)
        self._settle(header, None, Refusal(refused))

    def _on_modified(self, header: Header, body: bytes) -> None:
        modified = Modified.read(self._version, body)
        self._changed(header, Type.MODIFY, modified.stream).queue_packets = modified.queue_packets
        self._settle(header, modified)

    def _on_rekeyed(self, header: Header, body: bytes) -> None:
        rekeyed = Rekeyed.read(self._version, body)
        self._changed(header, Type.REKEY, rekeyed.stream)
        self._settle(header, rekeyed)

    def _changed(self, header: Header, asked: Type, stream_id: int) -> Stream:
        """The open stream that a request is about, which must be the one that the answer names."""
        stream: Stream = self._request(header, asked).subject
        if stream_id != stream.id or stream.closed is not None:
            raise ProtocolError(
                f"the answer to a {asked.name} of stream {stream.id} is about stream {stream_id}"
            )
        return stream

    def _on_pong(self, header: Header, body: bytes) -> None:
        if body != self._request(header, Type.PING).subject:
            raise ProtocolError("a PONG brings something else than its PING")
        self._settle(header, body)

    def _stream(self, header: Header) -> Stream:
        if header.id not in self.streams:
            raise ProtocolError(f"a frame of type {header.type} for stream {header.id}, which is not open")
        return self.streams[header.id]

    def _on_result(self, header: Header, body: bytes) -> None:
        result = Result.read(self._version, body)
        self._stream(header).take_result(header.sequence, replace(result, sequence=header.sequence))

    def _on_closed(self, header: Header, body: bytes) -> None:
        closed = Closed.read(self._version, body)
        self._stream(header)
        self.streams.pop(header.id).take_closed(closed)

    def _on_notice(self, header: Header, body: bytes) -> None:
        notice = Notice.read(self._version, body)
        if notice.kind != NoticeKind.LEAVING:
            self._stream(header)
        elif header.id or notice.unit_index or notice.bound_ns or self._version < 4:
            raise ProtocolError("a notice that the server is leaving, which can not be here")
        if self._tell is not None:
            self._tell(header.id, notice)


_SINCE: dict[int, int] = {Type.MODIFIED: 2, Type.NOTICE: 2, Type.REKEYED: 3}  # versions
_HANDLERS: dict[int, Callable[[Connection, Header, bytes], None]] = {
    Type.WELCOME: Connection._on_welcome,
    Type.OPENED: Connection._on_opened,
    Type.REFUSED: Connection._on_refused,
    Type.RESULT: Connection._on_result,
    Type.CLOSED: Connection._on_closed,
    Type.ERROR: Connection._on_error,
    Type.PONG: Connection._on_pong,
    Type.MODIFIED: Connection._on_modified,
    Type.NOTICE: Connection._on_notice,
    Type.REKEYED: Connection._on_rekeyed,
}
