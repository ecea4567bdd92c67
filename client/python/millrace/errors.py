"""What can go wrong, each in a class of its own. What the system says (OSError, ssl.SSLError) and
TimeoutError come through as they are."""
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millrace.frames import Closed, Error, Refused, Result


class MillraceError(Exception):
    """The base of all of them."""


class ProtocolError(MillraceError):
    """The server has sent what the protocol does not allow. The connection is over."""


class Unsupported(MillraceError):
    """Asked for something that the version in force does not have."""


class Refusal(MillraceError):
    """The server has refused an OPEN, QUERY, MODIFY or REKEY: `code`, `constraint`, what it would accept
    (`offer_interval_ns`, `offer_latency_ns`, 0: no offer) and why (`text`). Nothing has changed."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"refused ({refused.code.name}): {refused.text}")
        self.code = refused.code
        self.constraint = refused.constraint
        self.offer_interval_ns = refused.offer_interval_ns
        self.offer_latency_ns = refused.offer_latency_ns
        self.decided_ns = refused.decided_ns
        self.text = refused.text


class NotEncrypted(MillraceError):
    """A packet came back without being encrypted; `result.status` says why. Its stream goes on,
    unless the status is FAILED."""

    def __init__(self, result: Result) -> None:
        super().__init__(f"packet {result.sequence} was not encrypted: {result.status.name}")
        self.result = result


class StreamClosed(MillraceError):
    """The stream is closed, or being closed; `closed` is the server's account of it, if it has
    come."""

    def __init__(self, stream: int, closed: Closed | None) -> None:
        super().__init__(f"stream {stream} is closed" + (f" ({closed.reason.name})" if closed else ""))
        self.closed = closed


class Disconnected(MillraceError):
    """The connection is over; `error` holds the server's last words, if it said any."""

    def __init__(self, text: str, error: Error | None = None) -> None:
        super().__init__(text)
        self.error = error
