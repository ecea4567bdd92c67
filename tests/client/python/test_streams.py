"""The blocking API against a server of the build: what comes back is what openssl makes of it."""
import hmac
import unittest
from dataclasses import replace
from itertools import product

import millrace
from millrace import (
    Cipher,
    Contract,
    Direction,
    Iv,
    Mac,
    NotEncrypted,
    Padding,
    RefusalCode,
    ResultStatus,
    Unit,
)
from server import (
    CONTRACT,
    KEY,
    KEY_BYTES,
    MESSAGES,
    MS,
    Messages,
    Server,
    draw,
    draw_message,
    expected,
    openssl_cbc,
)


def code(contract: Contract, number: int, iv: bytes, ciphertext: bytes) -> bytes:
    """Of a message, by docs/protocol.md."""
    extracted = hmac.digest(bytes(32), KEY, "sha256")
    key = hmac.digest(extracted, b"millrace mac\x01", "sha256")
    return hmac.digest(key, contract.mac_id + number.to_bytes(8, "big") + iv + ciphertext, "sha256")[:16]


class Streams(unittest.TestCase):
    server: Server
    client: millrace.Client

    @classmethod
    def setUpClass(cls) -> None:
        keyring = f"camera aes-128-cbc {KEY.hex()} client-iv\n"
        cls.server = cls.enterClassContext(Server(files={"keyring": keyring}, keyring="keyring"))
        cls.client = cls.enterClassContext(millrace.connect(cls.server.address, timeout=120))

    def test_one_chain(self) -> None:
        """Each cipher and padding, packets one by one and many at once, with and without an IV."""
        for cipher, padding, given in product(Cipher, (Padding.NONE, Padding.PKCS7), (True, False)):
            contract = replace(CONTRACT, cipher=cipher, padding=padding)
            key, iv = draw.randbytes(KEY_BYTES[cipher]), draw.randbytes(16) if given else None
            packets = [draw_message(contract, contract.packet_bytes) or b"x" for _ in range(6)]
            with self.subTest(cipher=cipher, padding=padding), self.client.open(contract, key, iv) as stream:
                chain = stream.state.opened.iv
                self.assertEqual(chain, iv or chain)
                results = [stream.encrypt(packet) for packet in packets[:2]]
                results += stream.encrypt_all(packets[2:])
                for sequence, (packet, result) in enumerate(zip(packets, results, strict=True)):
                    self.assertEqual(result.ciphertext, expected(contract, key, chain, packet))
                    self.assertEqual(result.sequence, sequence)
                    chain = result.ciphertext[-16:]
                self.assertEqual((stream.state.answered, stream.state.chain), (len(packets), chain))
                closed = stream.close()
                self.assertEqual((closed.reason, closed.packets), (millrace.CloseReason.ASKED, len(packets)))
                self.assertEqual(closed.bytes, sum(len(result.ciphertext) for result in results))

    def test_more_than_the_server_holds(self) -> None:
        contract = replace(CONTRACT, interval_ns=MS // 10, burst_packets=4, padding=Padding.NONE)
        packets = [draw.randbytes(1408) for _ in range(2000)]
        with self.client.open(contract, KEY) as stream:
            self.assertLess(stream.state.queue_packets, len(packets))
            ciphertext = b"".join(result.ciphertext for result in stream.encrypt_all(packets))
            self.assertEqual(ciphertext, openssl_cbc(b"".join(packets), stream.state.opened.iv))

    def test_messages(self) -> None:
        """Each IV and padding; messages of one packet and of many."""
        for kind, padding in product(Iv, Padding):
            contract = replace(
                MESSAGES, iv=kind, padding=padding, first_unit=2**64 - 2 if kind == Iv.COUNTER else 0
            )
            with self.subTest(iv=kind, padding=padding):
                self.check_messages(contract)

    def test_messages_with_a_pattern(self) -> None:
        """Each IV but a chained one, whose last encrypted block the reference does not know."""
        for kind, (crypt, skip) in product(set(Iv) - {Iv.CHAIN}, ((1, 9), (5, 5), (15, 1))):
            with self.subTest(iv=kind, crypt=crypt, skip=skip):
                self.check_messages(
                    replace(
                        MESSAGES, iv=kind, padding=Padding.CLEAR, crypt_blocks=crypt, skip_blocks=skip
                    )
                )

    def test_messages_with_a_mac(self) -> None:
        """What one stream encrypts another decrypts, and nothing that is changed."""
        for kind, padding in product((Iv.CONSTANT, Iv.COUNTER, Iv.EXPLICIT), (Padding.NONE, Padding.CLEAR)):
            with self.subTest(iv=kind, padding=padding):
                self.check_mac(
                    replace(
                        MESSAGES,
                        iv=kind,
                        padding=padding,
                        packet_bytes=512,
                        first_unit=draw.randrange(2**64),
                        mac=Mac.HMAC_SHA_256_128,
                        mac_id=draw.randbytes(16),
                    )
                )

    def check_mac(self, contract: Contract) -> None:
        constant = draw.randbytes(16) if contract.iv == Iv.CONSTANT else None
        back = replace(contract, direction=Direction.DECRYPT)
        reference = Messages(contract, constant or b"")
        with self.client.open(contract, KEY, constant) as encrypts, self.client.open(
            back, KEY, constant
        ) as decrypts:
            for number in range(contract.first_unit, contract.first_unit + 6):
                message = draw_message(contract, 400)
                given = draw.randbytes(16) if contract.iv == Iv.EXPLICIT else None
                iv = constant or given or (number % 2**64).to_bytes(16, "big")
                ciphertext = encrypts.encrypt_message(message, given).ciphertext
                self.assertEqual(ciphertext[:-16], reference.encrypt(message, given))
                self.assertEqual(ciphertext[-16:], code(contract, number % 2**64, iv, ciphertext[:-16]))
                if number % 2:
                    self.assertEqual(decrypts.encrypt_message(ciphertext, given).ciphertext, message)
                    continue
                changed = bytearray(ciphertext)
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
                with self.assertRaises(NotEncrypted) as raised:
                    decrypts.encrypt_message(bytes(changed), given)
                self.assertEqual(raised.exception.result.status, ResultStatus.FORGED)
                self.assertEqual(raised.exception.result.ciphertext, b"")
            self.assertRaises(ValueError, decrypts.encrypt_message, bytes(513), bytes(16) if given else None)

    def check_messages(self, contract: Contract) -> None:
        constant = draw.randbytes(16)
        has_iv = contract.iv in (Iv.CHAIN, Iv.CONSTANT)
        with self.client.open(contract, KEY, constant if has_iv else None) as stream:
            reference = Messages(contract, constant)
            for longest in (15, 300, 320, 2000, 2000, 40):
                message = draw_message(contract, max(longest, 16))
                given = draw.randbytes(16) if contract.iv == Iv.EXPLICIT else None
                came = stream.encrypt_message(message, given)
                self.assertEqual(came.iv is not None, contract.iv == Iv.RANDOM)
                self.assertEqual(came.ciphertext, reference.encrypt(message, given or came.iv))

    def test_parts_of_a_message(self) -> None:
        iv, message = draw.randbytes(16), draw.randbytes(100)
        with self.client.open(replace(MESSAGES, iv=Iv.CONSTANT), KEY, iv) as stream:
            self.assertRaises(ValueError, stream.send, b"", first=False)
            answers = [
                stream.send(message[:16], last=False),
                stream.send(message[16:96], first=False, last=False),
                stream.send(message[96:], first=False),
            ]
            ciphertext = b"".join(self.client.wait(answer).ciphertext for answer in answers)
            self.assertEqual(ciphertext, openssl_cbc(message, iv, pad=True))
            self.client.wait(stream.send(message[:16], last=False))
            self.assertRaises(ValueError, stream.send, b"")

    def test_messages_that_do_not_fit(self) -> None:
        with self.client.open(replace(MESSAGES, packet_bytes=15), KEY) as stream:
            self.assertEqual(len(stream.encrypt_message(bytes(15)).ciphertext), 16)
            self.assertRaises(ValueError, stream.encrypt_message, bytes(16))
            self.assertRaises(ValueError, stream.encrypt_message, bytes(15), bytes(16))
        with self.client.open(replace(MESSAGES, iv=Iv.EXPLICIT), KEY) as stream:
            self.assertRaises(ValueError, stream.encrypt_message, bytes(15))
            self.assertRaises(ValueError, stream.encrypt_message, bytes(15), bytes(15))
        iv = draw.randbytes(16)
        whole = replace(MESSAGES, iv=Iv.CONSTANT, message_packets=1)
        with self.client.open(whole, KEY, iv) as stream:
            self.assertRaises(ValueError, stream.encrypt_message, bytes(whole.packet_bytes + 1))
            for first, last in ((True, False), (False, True), (False, False)):
                self.assertRaises(ValueError, stream.send, bytes(16), first=first, last=last)
            for message in (bytes(16), draw.randbytes(whole.packet_bytes)):
                self.assertEqual(stream.encrypt_message(message).ciphertext, openssl_cbc(message, iv, pad=True))
        with self.client.open(CONTRACT, KEY) as stream:
            self.assertRaises(ValueError, stream.encrypt_message, bytes(15))
            self.assertRaises(ValueError, stream.send, bytes(self.client.welcome.packet_bytes_max + 1))

    def test_packets_that_are_not_encrypted(self) -> None:
        with self.client.open(replace(CONTRACT, padding=Padding.NONE), KEY) as stream:
            for packet, status in ((b"x", ResultStatus.NOT_BLOCKS), (bytes(1424), ResultStatus.TOO_LONG)):
                with self.assertRaises(NotEncrypted) as raised:
                    stream.encrypt(packet)
                self.assertEqual(raised.exception.result.status, status)
            self.assertEqual(
                stream.encrypt(bytes(16)).ciphertext, openssl_cbc(bytes(16), stream.state.opened.iv)
            )
        with self.client.open(MESSAGES, KEY) as stream:
            answers = [stream.send(b"x", last=False), stream.send(b"x", first=False)]
            for answer, status in zip(answers, (ResultStatus.NOT_BLOCKS, ResultStatus.BROKEN)):
                with self.assertRaises(NotEncrypted) as raised:
                    self.client.wait(answer)
                self.assertEqual(raised.exception.result.status, status)
            self.assertEqual(len(stream.encrypt(b"x").ciphertext), 16)

    def test_going_on_elsewhere(self) -> None:
        packets = [draw.randbytes(64) for _ in range(6)]
        contract = replace(CONTRACT, padding=Padding.NONE)
        with millrace.connect(self.server.address, timeout=120) as first:
            stream = first.open(contract, "camera")
            iv = stream.state.opened.iv
            came = [result.ciphertext for result in stream.encrypt_all(packets[:3])]
        with self.client.open(contract, "camera", stream.state.chain) as other:
            came += [result.ciphertext for result in other.encrypt_all(packets[stream.state.answered :])]
        self.assertEqual(b"".join(came), openssl_cbc(b"".join(packets), iv))

    def test_query(self) -> None:
        opened = self.client.query(CONTRACT)
        self.assertEqual(opened.stream, 0)
        self.assertLessEqual(opened.bound_ns, CONTRACT.latency_ns)
        self.assertEqual(opened.unit, millrace.ServingUnit.CPU)

    def refusal(
        self, contract: Contract, key: bytes | str = KEY, iv: bytes | None = None
    ) -> millrace.Refusal:
        with self.assertRaises(millrace.Refusal) as raised:
            self.client.open(contract, key, iv)
        return raised.exception

    def test_refusals(self) -> None:
        odd = replace(CONTRACT, padding=Padding.NONE, packet_bytes=17)
        self.assertEqual(self.refusal(odd).code, RefusalCode.SPEC)
        self.assertEqual(self.refusal(replace(CONTRACT, packet_bytes=2**20)).code, RefusalCode.LIMIT)
        self.assertEqual(self.refusal(CONTRACT, "nobody").code, RefusalCode.KEY)
        self.assertEqual(self.refusal(CONTRACT, bytes(32)).code, RefusalCode.KEY)
        self.assertEqual(self.refusal(replace(MESSAGES, iv=Iv.CONSTANT)).code, RefusalCode.SPEC)
        short = self.refusal(replace(CONTRACT, packet_bytes=65536, latency_ns=10_000))
        self.assertEqual((short.code, short.constraint), (RefusalCode.CAPACITY, millrace.Constraint.DEADLINE))
        self.assertGreater(short.offer_latency_ns, 10_000)
        self.assertIn(short.text, str(short))
        self.client.query(replace(CONTRACT, packet_bytes=65536, latency_ns=short.offer_latency_ns), KEY)

    def test_values_that_have_no_place(self) -> None:
        for key in (b"", b"x", bytes(17), "", "x" * 64, "a\0b"):
            self.assertRaises(ValueError, self.client.open, CONTRACT, key)
        self.assertRaises(ValueError, self.client.open, CONTRACT, KEY, bytes(15))
        for number in (-1, 2**64):
            self.assertRaises(ValueError, self.client.open, replace(CONTRACT, interval_ns=number), KEY)
        self.assertRaises(ValueError, self.client.ping, bytes(65))
        for address in ("", "unix:", "tcp:1", "tcp:host:", "udp:host:1", "tls:host:x"):
            self.assertRaises(ValueError, millrace.connect, address)
        self.assertEqual(self.client.ping(b"still here"), b"still here")

    def test_modify(self) -> None:
        with self.client.open(CONTRACT, KEY) as stream:
            stream.encrypt(b"x")
            modified = stream.modify(128, 10 * MS, 500 * MS)
            self.assertEqual((modified.stream, modified.first), (stream.state.id, 1))
            self.assertLessEqual(modified.bound_ns, 500 * MS)
            self.assertEqual(stream.state.queue_packets, modified.queue_packets)
            with self.assertRaises(millrace.Refusal) as raised:
                stream.modify(128, 10 * MS, 10_000)
            self.assertEqual(raised.exception.code, RefusalCode.CAPACITY)
            stream.encrypt(b"x")
        self.assertRaises(millrace.StreamClosed, stream.modify, 1, 10 * MS, 500 * MS)
        self.assertRaises(millrace.StreamClosed, stream.encrypt, b"x")

    def test_older_versions(self) -> None:
        for version in (1, 2):
            with millrace.connect(self.server.address, timeout=120, versions=(1, version)) as client:
                self.assertEqual(client.welcome.version, version)
                self.assertRaises(millrace.Unsupported, client.open, MESSAGES, KEY)
                self.assertRaises(millrace.Refusal, client.open, CONTRACT, "nobody")
                with client.open(CONTRACT, KEY) as stream:
                    iv = stream.state.opened.iv
                    self.assertEqual(stream.encrypt(b"x").ciphertext, openssl_cbc(b"x", iv, pad=True))
                    self.assertRaises(millrace.Unsupported, stream.rekey, KEY)
                    if version == 1:
                        self.assertRaises(millrace.Unsupported, stream.modify, 1, MS, MS)
                        guaranteed = replace(CONTRACT, guaranteed=True)
                        self.assertRaises(millrace.Unsupported, client.open, guaranteed, KEY)
                    else:
                        stream.modify(1, 20 * MS, 900 * MS)

    def test_versions_that_nobody_speaks(self) -> None:
        with self.assertRaises(millrace.Disconnected) as raised:
            millrace.connect(self.server.address, timeout=120, versions=(4711, 4711))
        assert raised.exception.error is not None
        self.assertEqual(raised.exception.error.code, millrace.ErrorCode.VERSION)


class Strict(unittest.TestCase):
    def test_no_iv_of_clients(self) -> None:
        with Server(client_iv="false") as server, millrace.connect(server.address, timeout=120) as client:
            self.assertFalse(client.welcome.allows_client_iv)
            with self.assertRaises(millrace.Refusal) as raised:
                client.open(CONTRACT, KEY, bytes(16))
            self.assertEqual(raised.exception.code, RefusalCode.IV)

    def test_nobody_there(self) -> None:
        self.assertRaises(OSError, millrace.connect, "unix:/nowhere/socket")


if __name__ == "__main__":
    unittest.main()
