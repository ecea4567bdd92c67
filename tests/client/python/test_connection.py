"""Frames and the connection without a server: the examples of docs/protocol.md byte for byte, and
servers that send nonsense."""
import re
import socket
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

from millrace import (
    Cipher,
    Client,
    Connection,
    Contract,
    Direction,
    Disconnected,
    Iv,
    Mac,
    Padding,
    ProtocolError,
    Records,
    Refusal,
    ServingUnit,
    Unit,
    Unsupported,
)
from millrace._tables import NoticeKind, RefusalCode, Type
from millrace.frames import (
    Body,
    Closed,
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
from server import draw

PAGE = Path(__file__).resolve().parents[3] / "docs/protocol.md"
MS = 1_000_000
CAMERA = Contract(1408, 2, 20 * MS, 20 * MS, Cipher.AES_128_CBC, Padding.NONE, guaranteed=True)
WELCOME = Welcome(2, 3, 65536, 1024, 4096, 4 << 20, 1 << 40, 1000, 10_000)
GPU, CPU = ServingUnit.GPU, ServingUnit.CPU
OPENED = Opened(1, GPU, 0, 15 * MS, 200_000, 10, bytes(range(16)), 8 * MS, CPU, 1, 20_000_000, 19 * MS)
MESSAGES = replace(
    CAMERA, padding=Padding.PKCS7, guaranteed=False, unit=Unit.MESSAGE, iv=Iv.COUNTER, first_unit=5
)
PATTERN = replace(
    MESSAGES, padding=Padding.CLEAR, iv=Iv.CONSTANT, first_unit=0, crypt_blocks=1, skip_blocks=9
)
RECORDS = replace(
    PATTERN, packet_bytes=1316, crypt_blocks=0, skip_blocks=0, direction=Direction.DECRYPT, records=Records.TS
)
AUTHENTIC = replace(MESSAGES, mac=Mac.HMAC_SHA_256_128, mac_id=bytes(range(0xF0, 0x100)))
# Of each example: version, type, id, body.
EXAMPLES: list[tuple[int, Type, int, Any]] = [
    (2, Type.HELLO, 0, Hello(1, 2)),
    (2, Type.WELCOME, 0, WELCOME),
    (2, Type.OPEN, 7, Open(CAMERA, "camera-7")),
    (2, Type.OPENED, 7, OPENED),
    (2, Type.MODIFY, 8, Modify(1, 2, 10 * MS, 20 * MS)),
    (2, Type.MODIFIED, 8, Modified(1, GPU, 0, 15 * MS, 100_000, 7 * MS, 5, 11, CPU, 1, 40_000_000, 19 * MS)),
    (2, Type.MODIFY, 9, Modify(2, 2, 10 * MS, 20 * MS)),
    (2, Type.REFUSED, 9, Refused(RefusalCode.CAPACITY, 6, 16 * MS, 0, "the kernel is full", 90_000)),
    (2, Type.NOTICE, 2, Notice(NoticeKind.DEGRADED, CPU, 0, 0, "GPU 0 is lost")),
    (3, Type.OPEN, 10, Open(MESSAGES, "camera-7")),
    (3, Type.REKEY, 11, Rekey(3, 6, "camera-8")),
    (3, Type.REKEYED, 11, Rekeyed(3, 6, 500_000)),
    (3, Type.OPEN, 12, Open(PATTERN, "camera-7", bytes(range(16)))),
    (3, Type.OPEN, 13, Open(RECORDS, "camera-7", b"DVBTMCPTAESCISSA")),
    (3, Type.OPEN, 14, Open(AUTHENTIC, "camera-7")),
    (4, Type.NOTICE, 0, Notice(NoticeKind.LEAVING, ServingUnit.NONE, 0, 0, "going away")),
]


def examples() -> list[bytes]:
    blocks = re.findall(r"^```hex\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [bytes.fromhex(line.split("#")[0]) for block in blocks for line in block.splitlines()]


class Frames(unittest.TestCase):
    def test_examples(self) -> None:
        for expected, (version, type_, id_, body) in zip(examples(), EXAMPLES, strict=True):
            with self.subTest(type_):
                self.assertEqual(frame(type_, id_, body.write(version)), expected)
                self.assertEqual(Header.read(expected[:16]), (len(expected) - 16, type_, 0, id_, 0))
                if isinstance(body, Body):
                    self.assertEqual(body.read(version, expected[16:]), body)


def welcomed(version: int = 2) -> Connection:
    connection = Connection(versions=(1, 3))
    connection.receive(frame(Type.WELCOME, 0, Welcome(version, 3, 65536, 9, 9, 9, 9, 9, 9).write(1)))
    return connection


def with_stream(version: int = 2) -> Connection:
    connection = welcomed(version)
    connection.open(CAMERA if version < 3 else MESSAGES, bytes(16))
    connection.receive(frame(Type.OPENED, 1, OPENED.write(version)))
    connection.streams[1].send(bytes(16))
    return connection


RESULT = bytes(16) + bytes(16)
REFUSED = Refused(RefusalCode.KEY, 0, 0, 0, "no").write(2)
MALFORMED = {
    "a client's type": frame(Type.DATA, 1),
    "no type": b"HTTP/1.1 400 Bad Request",
    "a second WELCOME": frame(Type.WELCOME, 0, WELCOME.write(1)),
    "flags": frame(Type.PONG, 1, flags=1),
    "a sequence": frame(Type.CLOSED, 1, bytes(40), sequence=1),
    "too long": frame(Type.NOTICE, 1, bytes(513)),
    "too short": frame(Type.CLOSED, 1, bytes(39)),
    "longer than it is": frame(Type.CLOSED, 1, bytes(41)),
    "a reason that there is not": frame(Type.CLOSED, 1, b"\x04" + bytes(39)),
    "a zero that is none": frame(Type.CLOSED, 1, bytes(4) + b"\x01" + bytes(35)),
    "another request": frame(Type.REFUSED, 4711, REFUSED),
    "another stream": frame(Type.CLOSED, 2, bytes(40)),
    "another sequence": frame(Type.RESULT, 1, RESULT, sequence=1),
    "a packet that was not sent": frame(Type.RESULT, 1, RESULT) * 2,
    "no whole blocks": frame(Type.RESULT, 1, RESULT[:-1]),
    "no ciphertext": frame(Type.RESULT, 1, RESULT[:16]),
    "an IV in version 2": frame(Type.RESULT, 1, b"\0\x10" + RESULT[2:] + RESULT),
    "no unit": frame(Type.NOTICE, 1, b"\x01" + bytes(15)),
    "leaving before version 4": frame(Type.NOTICE, 0, b"\x04" + bytes(15)),
}


class Contracts(unittest.TestCase):
    def test_the_longest_result(self) -> None:
        """Padding, an IV and a code around a packet that is as long as can be."""
        connection = welcomed(3)
        longest = replace(
            MESSAGES, packet_bytes=65536, iv=Iv.RANDOM, first_unit=0, mac=Mac.HMAC_SHA_256_128
        )
        opening = connection.open(longest, bytes(16))
        connection.receive(frame(Type.OPENED, 1, OPENED.write(3)))
        answer = opening.result().send(bytes(65536))
        body = b"\0\x10" + bytes(14) + bytes(16 + 65536 + 16 + 16)
        connection.receive(frame(Type.RESULT, 1, body))
        self.assertEqual(len(answer.result().ciphertext), 65536 + 16 + 16)

    def test_decryption_needs_version_3(self) -> None:
        plain = replace(CAMERA, guaranteed=False)
        for contract in (
            replace(plain, direction=Direction.DECRYPT),
            replace(plain, mac=Mac.HMAC_SHA_256_128),
        ):
            with self.assertRaisesRegex(Unsupported, "needs version 3, the server speaks 2"):
                welcomed(2).open(contract, bytes(16))

    def test_messages_of_one_packet(self) -> None:
        checked = replace(MESSAGES, padding=Padding.NONE, direction=Direction.DECRYPT, mac=Mac.HMAC_SHA_256_128)
        for contract in (replace(MESSAGES, message_packets=1), RECORDS, checked):
            connection = welcomed(3)
            opening = connection.open(contract, bytes(16), iv=bytes(16) if contract is RECORDS else None)
            connection.receive(frame(Type.OPENED, 1, OPENED.write(3)))
            with self.assertRaisesRegex(ValueError, "each message is one packet"):
                opening.result().send(bytes(188), last=False)


class Malformed(unittest.TestCase):
    def test_each(self) -> None:
        for name, data in MALFORMED.items():
            with self.subTest(name):
                connection = with_stream()
                answer = connection.ping()
                connection.receive(data)
                self.assertIsInstance(connection.error, ProtocolError)
                self.assertRaises(ProtocolError, answer.result)
                self.assertRaises(Disconnected, connection.ping)

    def test_before_welcome(self) -> None:
        for data in (
            frame(Type.PONG, 1),
            frame(Type.WELCOME, 0, Welcome(5, 0, 1, 1, 1, 1, 1, 1, 1).write(1)),
        ):
            connection = Connection()
            connection.receive(data)
            self.assertIsInstance(connection.error, ProtocolError)

    def test_random_bytes(self) -> None:
        """Frames with a few bytes changed, cut anywhere: an error of the package, or none."""
        frames = [
            *MALFORMED.values(),
            *examples(),
            frame(Type.RESULT, 1, RESULT),
            frame(Type.CLOSED, 1, bytes(40)),
            frame(Type.ERROR, 0, b"\x0a\0\1\0bye"),
        ]
        for _ in range(20_000):
            data = bytearray(b"".join(draw.choices(frames, k=3)))
            for _ in range(draw.randrange(4)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            connection, cut = with_stream(draw.choice((2, 3))), draw.randrange(len(data))
            answer = connection.ping()
            for part in (data[:cut], data[cut:], b""):
                connection.receive(bytes(part))
            assert connection.error is not None and answer.done

    def test_answers_to_rekey(self) -> None:
        answers: list[tuple[str, type[Exception], Type, int, Body]] = [
            ("another stream", ProtocolError, Type.REKEYED, 2, Rekeyed(2, 6, 1)),
            ("another request", ProtocolError, Type.REKEYED, 1, Rekeyed(1, 6, 1)),
            ("another answer", ProtocolError, Type.OPENED, 2, replace(OPENED, stream=2)),
            (
                "the cipher fails",
                Refusal,
                Type.REFUSED,
                2,
                Refused(RefusalCode.INTERNAL, 0, 0, 0, "the cipher fails"),
            ),
        ]
        for text, kind, type_, id_, body in answers:
            with self.subTest(text):
                connection = with_stream(3)
                answer = connection.streams[1].rekey(bytes(16))
                connection.receive(frame(type_, id_, body.write(3)))
                self.assertEqual(connection.error is None, kind is Refusal)
                self.assertRaisesRegex(kind, text if kind is Refusal else "", answer.result)

    def test_the_end(self) -> None:
        connection = with_stream()
        connection.receive(frame(Type.ERROR, 0, b"\x0a\0\1\0stopping"))
        assert isinstance(connection.error, Disconnected) and connection.error.error is not None
        self.assertEqual(connection.error.error.text, "stopping")


class Late(unittest.TestCase):
    def test_a_stream_that_comes_too_late(self) -> None:
        here, there = socket.socketpair()
        here.setblocking(False)
        with there, Client(here, welcomed(), timeout=0) as client:
            self.assertRaises(TimeoutError, client.open, CAMERA, bytes(16))
            there.sendall(frame(Type.OPENED, 1, OPENED.write(2)) + frame(Type.PONG, 2))
            client.timeout = None
            client.ping()
            self.assertFalse(client.connection.streams[1].is_open)


if __name__ == "__main__":
    unittest.main()
