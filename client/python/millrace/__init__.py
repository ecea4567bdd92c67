"""Client of a Millrace server (docs/python.md, docs/protocol.md): `connect` for the blocking API,
`aio.connect` for the one of asyncio. Both drive connection.Connection, which does no I/O and may be
driven otherwise."""
from millrace import aio
from millrace._tables import (
    VERSION,
    Cipher,
    CloseReason,
    Constraint,
    Direction,
    ErrorCode,
    Iv,
    NoticeKind,
    Padding,
    Records,
    RefusalCode,
    ResultStatus,
    ServingUnit,
    Unit,
)
from millrace.address import tls
from millrace.blocking import Client, Stream, connect
from millrace.connection import Answer, Connection, Message
from millrace.errors import (
    Disconnected,
    MillraceError,
    NotEncrypted,
    ProtocolError,
    Refusal,
    StreamClosed,
    Unsupported,
)
from millrace.frames import Closed, Contract, Modified, Notice, Opened, Rekeyed, Result, Welcome

__all__ = [
    "Answer",
    "Cipher",
    "Client",
    "CloseReason",
    "Closed",
    "Connection",
    "Constraint",
    "Contract",
    "Direction",
    "Disconnected",
    "ErrorCode",
    "Iv",
    "Message",
    "MillraceError",
    "Modified",
    "NotEncrypted",
    "Notice",
    "NoticeKind",
    "Opened",
    "Padding",
    "ProtocolError",
    "Records",
    "Refusal",
    "RefusalCode",
    "Rekeyed",
    "Result",
    "ResultStatus",
    "ServingUnit",
    "Stream",
    "StreamClosed",
    "Unit",
    "Unsupported",
    "VERSION",
    "Welcome",
    "aio",
    "connect",
    "tls",
]
