"""Numbers and places of the protocol, by tools/python-tables from the C sources: do not edit."""
from enum import IntEnum
from typing import Final

NS_PER_US: Final = 1000
NS_PER_MS: Final = 1000000
NS_PER_S: Final = 1000000000
CIPHER_COUNT: Final = 3
MAC_BYTES: Final = 16
BLOCK_BYTES: Final = 16
PATTERN_BLOCKS_MAX: Final = 15
PACKET_BYTES_MAX: Final = 1048576
BURST_MAX: Final = 65536
AT_ONCE_BYTES_MAX: Final = 65536
INTERVAL_NS_MIN: Final = 1000
INTERVAL_NS_MAX: Final = 3600000000000
LATENCY_NS_MIN: Final = 10000
LATENCY_NS_MAX: Final = 3600000000000
VERSION_MIN: Final = 1
VERSION: Final = 4
MAGIC: Final = 1129466957
HEADER_BYTES: Final = 16
CONTROL_BYTES_MAX: Final = 512
KEY_NAME_MAX: Final = 63
PING_BYTES_MAX: Final = 64
DATA_FIRST: Final = 1
DATA_LAST: Final = 2
ALLOWS_INLINE_KEY: Final = 1
ALLOWS_CLIENT_IV: Final = 2
HAS_NAMED_KEYS: Final = 4
HAS_LANES: Final = 8
RESULT_MET: Final = 1
RESULT_READER: Final = 2
RESULT_POLICED: Final = 4
RESULT_FAULT: Final = 8
RESULT_HAS_IV: Final = 16


class Cipher(IntEnum):
    AES_128_CBC = 1
    AES_192_CBC = 2
    AES_256_CBC = 3


class Padding(IntEnum):
    NONE = 0
    PKCS7 = 1
    CLEAR = 2


class Unit(IntEnum):
    STREAM = 0
    MESSAGE = 1


class Iv(IntEnum):
    CHAIN = 0
    CONSTANT = 1
    COUNTER = 2
    EXPLICIT = 3
    RANDOM = 4


class Direction(IntEnum):
    ENCRYPT = 0
    DECRYPT = 1


class Records(IntEnum):
    NONE = 0
    TS = 1


class Mac(IntEnum):
    NONE = 0
    HMAC_SHA_256_128 = 1


class Type(IntEnum):
    HELLO = 1
    WELCOME = 2
    OPEN = 3
    QUERY = 4
    OPENED = 5
    REFUSED = 6
    DATA = 7
    RESULT = 8
    CLOSE = 9
    CLOSED = 10
    ERROR = 11
    PING = 12
    PONG = 13
    MODIFY = 14
    MODIFIED = 15
    NOTICE = 16
    REKEY = 17
    REKEYED = 18
    LANE = 19
    LANED = 20


class KeyKind(IntEnum):
    NONE = 0
    INLINE = 1
    NAMED = 2


class ServingUnit(IntEnum):
    NONE = 0
    CPU = 1
    GPU = 2


class NoticeKind(IntEnum):
    DEGRADED = 1
    RESTORED = 2
    MOVED = 3
    LEAVING = 4


class RefusalCode(IntEnum):
    CAPACITY = 1
    SPEC = 2
    LIMIT = 3
    KEY = 4
    IV = 5
    DRAINING = 6
    INTERNAL = 7
    STREAM = 8
    BUSY = 9


class Constraint(IntEnum):
    NONE = 0
    DEADLINE = 1
    CPU_UTILISATION = 2
    CPU_DEMAND = 3
    IO = 4
    GPU_COPY = 5
    GPU_KERNEL = 6
    GPU_LATENCY = 7
    GPU_MEMORY = 8
    GPU_OUT = 9
    RESERVE = 10
    BACKUP = 11


class ResultStatus(IntEnum):
    OK = 0
    NOT_BLOCKS = 1
    TOO_LONG = 2
    KEY_SPENT = 3
    FAILED = 4
    BROKEN = 5
    FORGED = 6


class CloseReason(IntEnum):
    ASKED = 0
    DRAINED = 1
    FAILED = 2
    IDLE = 3


class ErrorCode(IntEnum):
    MALFORMED = 1
    OVERSIZED = 2
    UNKNOWN_TYPE = 3
    STATE = 4
    VERSION = 5
    STREAM = 6
    SEQUENCE = 7
    TIMEOUT = 8
    LIMIT = 9
    SHUTDOWN = 10


# Bytes of the fixed part of each frame, by the first version in which it is that long.
FIXED_BYTES: Final[dict[str, dict[int, int]]] = {
    "header": {1: 16},
    "result": {1: 16},
    "hello": {1: 8},
    "welcome": {1: 48},
    "open": {1: 32, 3: 48},
    "opened": {1: 48, 2: 72},
    "refused": {1: 24, 2: 32},
    "closed": {1: 40},
    "modify": {1: 24},
    "modified": {1: 56},
    "notice": {1: 16},
    "rekey": {1: 16},
    "rekeyed": {1: 24},
    "lane": {1: 4},
    "laned": {1: 4},
    "error": {1: 4},
}

# Its fields: name, offset, bytes. One without a name is 0.
FIELDS: Final[dict[str, tuple[tuple[str, int, int], ...]]] = {
    "header": (
        ("body_bytes", 0, 4),
        ("type", 4, 1),
        ("flags", 5, 1),
        ("", 6, 2),
        ("id", 8, 4),
        ("sequence", 12, 4),
    ),
    "result": (
        ("status", 0, 1),
        ("flags", 1, 1),
        ("", 2, 2),
        ("waited_us", 4, 4),
        ("latency_ns", 8, 8),
    ),
    "hello": (
        ("magic", 0, 4),
        ("version_min", 4, 2),
        ("version_max", 6, 2),
    ),
    "welcome": (
        ("version", 0, 2),
        ("flags", 2, 2),
        ("packet_bytes_max", 4, 4),
        ("burst_packets_max", 8, 4),
        ("streams_max", 12, 4),
        ("stream_buffer_bytes_max", 16, 8),
        ("bytes_per_key", 24, 8),
        ("interval_ns_min", 32, 8),
        ("latency_ns_min", 40, 8),
    ),
    "open": (
        ("packet_bytes", 0, 4),
        ("burst_packets", 4, 4),
        ("interval_ns", 8, 8),
        ("latency_ns", 16, 8),
        ("cipher", 24, 1),
        ("padding", 25, 1),
        ("key_kind", 26, 1),
        ("has_iv", 27, 1),
        ("key_bytes", 28, 2),
        ("guaranteed", 30, 2),
        ("unit", 32, 1),
        ("iv", 33, 1),
        ("crypt_blocks", 34, 1),
        ("skip_blocks", 35, 1),
        ("mac", 36, 1),
        ("direction", 37, 1),
        ("records", 38, 1),
        ("message_packets", 39, 1),
        ("first_unit", 40, 8),
    ),
    "opened": (
        ("stream", 0, 4),
        ("unit", 4, 1),
        ("", 5, 1),
        ("unit_index", 6, 2),
        ("bound_ns", 8, 8),
        ("decided_ns", 16, 8),
        ("queue_packets", 24, 4),
        ("", 28, 4),
        ("iv", 32, 16),
        ("in_force_ns", 48, 8),
        ("backup_unit", 56, 1),
        ("", 57, 1),
        ("backup_unit_index", 58, 2),
        ("backup_reserved_ppb", 60, 4),
        ("backup_bound_ns", 64, 8),
    ),
    "refused": (
        ("code", 0, 2),
        ("constraint", 2, 2),
        ("", 4, 4),
        ("offer_interval_ns", 8, 8),
        ("offer_latency_ns", 16, 8),
        ("decided_ns", 24, 8),
    ),
    "closed": (
        ("reason", 0, 4),
        ("", 4, 4),
        ("packets", 8, 8),
        ("bytes", 16, 8),
        ("met", 24, 8),
        ("missed", 32, 8),
    ),
    "modify": (
        ("stream", 0, 4),
        ("burst_packets", 4, 4),
        ("interval_ns", 8, 8),
        ("latency_ns", 16, 8),
    ),
    "modified": (
        ("stream", 0, 4),
        ("unit", 4, 1),
        ("", 5, 1),
        ("unit_index", 6, 2),
        ("bound_ns", 8, 8),
        ("decided_ns", 16, 8),
        ("in_force_ns", 24, 8),
        ("first", 32, 4),
        ("queue_packets", 36, 4),
        ("backup_unit", 40, 1),
        ("", 41, 1),
        ("backup_unit_index", 42, 2),
        ("backup_reserved_ppb", 44, 4),
        ("backup_bound_ns", 48, 8),
    ),
    "notice": (
        ("kind", 0, 2),
        ("unit", 2, 1),
        ("", 3, 1),
        ("unit_index", 4, 2),
        ("", 6, 2),
        ("bound_ns", 8, 8),
    ),
    "rekey": (
        ("stream", 0, 4),
        ("key_kind", 4, 1),
        ("", 5, 1),
        ("key_bytes", 6, 2),
        ("first", 8, 8),
    ),
    "rekeyed": (
        ("stream", 0, 4),
        ("", 4, 4),
        ("first", 8, 8),
        ("in_force_ns", 16, 8),
    ),
    "lane": (
        ("ring_bytes", 0, 4),
    ),
    "laned": (
        ("ring_bytes", 0, 4),
    ),
    "error": (
        ("code", 0, 2),
        ("fatal", 2, 2),
    ),
}
