"""Frames as they are on the wire, and back. Pure: bytes in, bytes out.

Each class is a body; its numbers have the names and places that the tables say (_tables.py). `read`
takes a whole body and raises ProtocolError, and nothing else, for one that breaks the format."""
from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from struct import Struct, error as StructError
from typing import Any, ClassVar, Mapping, NamedTuple, Self, get_type_hints

from millrace import _tables as tables
from millrace._tables import (
    Cipher,
    CloseReason,
    Direction,
    ErrorCode,
    Iv,
    KeyKind,
    Mac,
    NoticeKind,
    Padding,
    Records,
    RefusalCode,
    ResultStatus,
    ServingUnit,
    Type,
    Unit,
)
from millrace.errors import ProtocolError

_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q", 16: "16s"}
_NS_MAX = 2**63 - 1


class _Layout(NamedTuple):
    names: tuple[str, ...]
    numbers: Struct


@cache
def _layout(name: str, version: int) -> _Layout:
    spans = tables.FIXED_BYTES[name]
    bytes_ = spans[max(first for first in spans if first <= version)]
    places = [place for place in tables.FIELDS[name] if place[1] < bytes_]
    return _Layout(
        tuple(place[0] for place in places), Struct("<" + "".join(_FORMATS[place[2]] for place in places))
    )


def pack(name: str, version: int, values: Mapping[str, Any]) -> bytes:
    layout = _layout(name, version)
    try:
        return layout.numbers.pack(*(values[key] if key else 0 for key in layout.names))
    except StructError as error:
        raise ValueError(f"{name.upper()} has no room for a number: {error}") from None


def unpack(name: str, version: int, body: bytes) -> tuple[dict[str, Any], bytes]:
    """The fields of the fixed part, and what is behind it."""
    layout = _layout(name, version)
    if len(body) < layout.numbers.size:
        raise ProtocolError(
            f"{name.upper()} has a body of {len(body)} bytes, at least {layout.numbers.size} are due"
        )
    values: dict[str, Any] = {}
    for key, value in zip(layout.names, layout.numbers.unpack_from(body)):
        if (not key and value != 0) or ("_ns" in key and value > _NS_MAX):
            raise ProtocolError(f"{name.upper()} has {value} in its field {key or 'that is 0'}")
        if key:
            values[key] = value
    return values, body[layout.numbers.size :]


class Header(NamedTuple):
    body_bytes: int
    type: int
    flags: int
    id: int
    sequence: int

    @classmethod
    def read(cls, frame: bytes) -> Header:
        return cls(**unpack("header", 1, frame)[0])


def frame(type_: Type, id_: int, body: bytes = b"", *, flags: int = 0, sequence: int = 0) -> bytes:
    header = Header(len(body), type_, flags, id_, sequence)
    return pack("header", 1, header._asdict()) + body


class Body:
    """`LAST`: the highest value of a field in the versions up to one; a higher one breaks the
    format."""

    LAST: ClassVar[Mapping[str, Mapping[int, int]]] = {}
    _KINDS: ClassVar[dict[str, type[int]]]  # of fields that are no plain numbers

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls)
        cls._KINDS = {
            key: kind
            for key, kind in hints.items()
            if kind is bool or (isinstance(kind, type) and issubclass(kind, IntEnum))
        }

    @classmethod
    def read(cls, version: int, body: bytes) -> Self:
        name = cls.__name__.upper()
        values, tail = unpack(name.lower(), version, body)
        for key, limits in cls.LAST.items():
            if values[key] > min(
                (last for until, last in limits.items() if version <= until), default=values[key]
            ):
                raise ProtocolError(f"{name} has {key} {values[key]}, which version {version} does not know")
        for key, kind in cls._KINDS.items():
            if key in values:
                values[key] = _convert(name, key, kind, values[key])
        cls._read_tail(values, tail)
        if (values.get("unit") == ServingUnit.NONE) != (values.get("kind") == NoticeKind.LEAVING):
            raise ProtocolError(f"{name} names no unit, or one where there is none")
        return cls(**values)

    def write(self, version: int) -> bytes:
        return pack(type(self).__name__.lower(), version, vars(self)) + self._tail()

    @classmethod
    def _read_tail(cls, values: dict[str, Any], tail: bytes) -> None:
        """Adds what `tail` holds."""
        if tail:
            raise ProtocolError(f"{cls.__name__.upper()} is {len(tail)} bytes too long")

    def _tail(self) -> bytes:
        return b""


def _convert(frame_name: str, key: str, kind: type[int], value: int) -> int:
    try:
        if kind is bool and value > 1:
            raise ValueError
        return kind(value)
    except ValueError:
        raise ProtocolError(f"{frame_name} has {key} {value}, which there is not") from None


class TextBody(Body):
    """Ends with a text for people. It may come to a terminal: control characters become question
    marks."""

    text: str

    @classmethod
    def _read_tail(cls, values: dict[str, Any], tail: bytes) -> None:
        text = tail.decode("utf-8", "replace")
        values["text"] = "".join(
            "?" if ord(character) < 32 or ord(character) == 127 else character for character in text
        )

    def _tail(self) -> bytes:
        return self.text.encode()


@dataclass(frozen=True)
class Hello(Body):
    version_min: int
    version_max: int
    magic: int = tables.MAGIC


@dataclass(frozen=True)
class Welcome(Body):
    """What the server is and allows."""

    version: int
    flags: int
    packet_bytes_max: int
    burst_packets_max: int
    streams_max: int
    stream_buffer_bytes_max: int
    bytes_per_key: int
    interval_ns_min: int
    latency_ns_min: int

    @property
    def allows_inline_key(self) -> bool:
        return bool(self.flags & tables.ALLOWS_INLINE_KEY)

    @property
    def allows_client_iv(self) -> bool:
        return bool(self.flags & tables.ALLOWS_CLIENT_IV)

    @property
    def has_named_keys(self) -> bool:
        return bool(self.flags & tables.HAS_NAMED_KEYS)


@dataclass(frozen=True)
class Contract:
    """What a stream is to be: packets of at most `packet_bytes`, one every `interval_ns` in the
    long run and `burst_packets` at once, each back within `latency_ns` (nanoseconds).

    With unit MESSAGE each message has an IV, which comes from where `iv` says, and `first_unit` is
    the number of the first one with COUNTER. With a pattern `crypt_blocks` blocks of each are
    encrypted, `skip_blocks` pass, and so on. With records TS a packet is a message that consists of
    transport-stream packets. With `message_packets` 1 a message has one packet, with 0 any number:
    a server with GPUs can do more where it is 1.

    With a MAC the ciphertext of each message ends with its code, of `mac_id`, its number, which
    begins with `first_unit`, its IV and its ciphertext. Decrypting, each packet is a message with
    its code behind it, and one that is not genuine is answered with status FORGED."""

    packet_bytes: int
    burst_packets: int
    interval_ns: int
    latency_ns: int
    cipher: Cipher = Cipher.AES_128_CBC
    padding: Padding = Padding.PKCS7
    guaranteed: bool = False
    unit: Unit = Unit.STREAM
    iv: Iv = Iv.CHAIN
    first_unit: int = 0
    crypt_blocks: int = 0
    skip_blocks: int = 0
    direction: Direction = Direction.ENCRYPT
    records: Records = Records.NONE
    mac: Mac = Mac.NONE
    mac_id: bytes = bytes(tables.MAC_BYTES)
    message_packets: int = 0


def _key(key: bytes | str | None) -> tuple[KeyKind, bytes]:
    if key is None:
        return KeyKind.NONE, b""
    if isinstance(key, bytes):
        if len(key) not in (16, 24, 32):
            raise ValueError(f"a key has 16, 24 or 32 bytes, not {len(key)}")
        return KeyKind.INLINE, key
    name = key.encode()
    if not 1 <= len(name) <= tables.KEY_NAME_MAX or b"\0" in name:
        raise ValueError(f"the name of a key has 1 to {tables.KEY_NAME_MAX} bytes, none of them 0")
    return KeyKind.NAMED, name


@dataclass(frozen=True)
class Open:
    """Body of OPEN and QUERY. `key`: the key itself, or the name of one in the server's keyring, or
    None (QUERY)."""

    contract: Contract
    key: bytes | str | None = field(default=None, repr=False)
    iv: bytes | None = None

    def write(self, version: int) -> bytes:
        kind, key = _key(self.key)
        if self.iv is not None and len(self.iv) != tables.BLOCK_BYTES:
            raise ValueError(f"an IV has {tables.BLOCK_BYTES} bytes, not {len(self.iv)}")
        if len(self.contract.mac_id) != tables.MAC_BYTES:
            raise ValueError(f"a mac_id has {tables.MAC_BYTES} bytes, not {len(self.contract.mac_id)}")
        mac_id = self.contract.mac_id if self.contract.mac != Mac.NONE else b""
        values = vars(self.contract) | {
            "key_kind": kind,
            "has_iv": self.iv is not None,
            "key_bytes": len(key),
        }
        return pack("open", version, values) + (self.iv or b"") + mac_id + key


@dataclass(frozen=True)
class Opened(Body):
    """What a stream is promised, or would be (QUERY: `stream` is 0). What is `backup_...` is the
    reservation for the loss of its GPU."""

    stream: int
    unit: ServingUnit
    unit_index: int
    bound_ns: int
    decided_ns: int
    queue_packets: int
    iv: bytes
    in_force_ns: int = 0
    backup_unit: ServingUnit = ServingUnit.NONE
    backup_unit_index: int = 0
    backup_reserved_ppb: int = 0
    backup_bound_ns: int = 0


@dataclass(frozen=True)
class Refused(TextBody):
    LAST = {"code": {1: RefusalCode.INTERNAL}}

    code: RefusalCode
    constraint: int  # a Constraint; later servers may send others
    offer_interval_ns: int
    offer_latency_ns: int
    text: str
    decided_ns: int = 0


@dataclass(frozen=True)
class Result(Body):
    """A packet that came back; `iv` is there on the first one of a message with iv RANDOM."""

    LAST = {"status": {2: ResultStatus.FAILED}, "flags": {1: 7, 2: 15, 3: 31}}

    status: ResultStatus
    flags: int
    waited_us: int
    latency_ns: int
    ciphertext: bytes
    iv: bytes | None = None
    sequence: int = 0

    @property
    def met(self) -> bool:
        """The deadline was met."""
        return bool(self.flags & tables.RESULT_MET)

    @classmethod
    def _read_tail(cls, values: dict[str, Any], tail: bytes) -> None:
        iv_bytes = tables.BLOCK_BYTES if values["flags"] & tables.RESULT_HAS_IV else 0
        if len(tail) < iv_bytes or (values["status"] != ResultStatus.OK and tail):
            raise ProtocolError(f"RESULT of status {values['status']} has {len(tail)} bytes of ciphertext")
        values["iv"] = tail[:iv_bytes] or None
        values["ciphertext"] = tail[iv_bytes:]

    def _tail(self) -> bytes:
        return (self.iv or b"") + self.ciphertext


@dataclass(frozen=True)
class Closed(Body):
    """The server's account of a stream: what it encrypted, in packets and bytes of ciphertext, and
    how many deadlines it met and missed."""

    LAST = {"reason": {1: CloseReason.FAILED}}

    reason: CloseReason
    packets: int
    bytes: int
    met: int
    missed: int


@dataclass(frozen=True)
class Error(TextBody):
    code: ErrorCode
    fatal: bool
    text: str


@dataclass(frozen=True)
class Modify(Body):
    stream: int
    burst_packets: int
    interval_ns: int
    latency_ns: int


@dataclass(frozen=True)
class Modified(Body):
    """The new contract, in force from packet `first` on."""

    stream: int
    unit: ServingUnit
    unit_index: int
    bound_ns: int
    decided_ns: int
    in_force_ns: int
    first: int
    queue_packets: int
    backup_unit: ServingUnit
    backup_unit_index: int
    backup_reserved_ppb: int
    backup_bound_ns: int


@dataclass(frozen=True)
class Rekey:
    """Body of REKEY. `key`: as in Open, but there must be one."""

    stream: int
    first: int
    key: bytes | str = field(repr=False)

    def write(self, version: int) -> bytes:
        kind, key = _key(self.key)
        return pack("rekey", version, vars(self) | {"key_kind": kind, "key_bytes": len(key)}) + key


@dataclass(frozen=True)
class Rekeyed(Body):
    """The new key, which message number `first` and all later ones are encrypted under. The key was
    in force `in_force_ns` after the server had the request."""

    stream: int
    first: int
    in_force_ns: int


@dataclass(frozen=True)
class Notice(TextBody):
    """What has happened to a stream: its GPU is lost, its promise holds again, another unit serves
    it. Or, of the connection (stream 0): the server is leaving, and all streams are to be opened at
    another one."""

    kind: NoticeKind
    unit: ServingUnit
    unit_index: int
    bound_ns: int
    text: str
