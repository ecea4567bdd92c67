"""Another key for a stream while it flows: each message is under the key that REKEYED says."""
import asyncio
import unittest
from collections import deque
from dataclasses import replace
from itertools import product

import millrace
from millrace import Cipher, Iv, Refusal, RefusalCode, Rekeyed, aio
from server import CONTRACT, KEY, KEY_BYTES, MESSAGES, MS, Messages, Server, draw, draw_message

NEW_KEY = bytes(range(16, 32))
KEYRING = f"camera-7 aes-128-cbc {KEY.hex()} client-iv\ncamera-8 aes-128-cbc {NEW_KEY.hex()} client-iv\n"
NO_IV = f"no-iv aes-128-cbc {NEW_KEY.hex()}\n"


class Blocking(unittest.TestCase):
    client: millrace.Client

    @classmethod
    def setUpClass(cls) -> None:
        server = cls.enterClassContext(Server(files={"keyring": KEYRING + NO_IV}, keyring="keyring"))
        cls.client = cls.enterClassContext(millrace.connect(server.address, timeout=120))

    def rekey(self, stream: millrace.Stream, key: bytes | str) -> Rekeyed:
        """Asks until the older key is gone, which is a moment after its last packet."""
        while True:
            try:
                return stream.rekey(key)
            except Refusal as refusal:
                self.assertEqual(refusal.code, RefusalCode.BUSY)

    def test_each_cipher_and_iv(self) -> None:
        for cipher, kind in product(Cipher, Iv):
            with self.subTest(cipher=cipher, iv=kind):
                first = 2**64 - 4 if kind == Iv.COUNTER else 0
                self.check_changes(replace(MESSAGES, cipher=cipher, iv=kind, first_unit=first))

    def check_changes(self, contract: millrace.Contract) -> None:
        """Three keys, each for three messages of one or more packets."""
        iv = draw.randbytes(16)
        keys = [draw.randbytes(KEY_BYTES[contract.cipher]) for _ in range(3)]
        with self.client.open(
            contract, keys[0], iv if contract.iv in (Iv.CHAIN, Iv.CONSTANT) else None
        ) as stream:
            reference = Messages(contract, iv)
            for number in range(9):
                key = keys[number // 3]
                if number in (3, 6):
                    self.assertEqual(self.rekey(stream, key).first, (contract.first_unit + number) % 2**64)
                message = draw_message(contract, 1000)
                given = draw.randbytes(16) if contract.iv == Iv.EXPLICIT else None
                came = stream.encrypt_message(message, given)
                self.assertEqual(came.ciphertext, reference.encrypt(message, given or came.iv, key))

    def test_from_a_later_message_on(self) -> None:
        with self.client.open(MESSAGES, "camera-7") as stream:
            reference = Messages(MESSAGES, stream.state.opened.iv)
            answers = [stream.send(bytes(16), last=False)]
            self.assertEqual(stream.rekey("camera-8", stream.state.next_message + 2).first, 3)
            answers += [stream.send(b"", first=False), *(stream.send(b"") for _ in range(5))]
            parts = [self.client.wait(answer).ciphertext for answer in answers]
            for number, ciphertext in enumerate([parts[0] + parts[1], *parts[2:]]):
                key = NEW_KEY if number >= 3 else KEY
                self.assertEqual(ciphertext, reference.encrypt(b"" if number else bytes(16), key=key))

    def refused(
        self, stream: millrace.Stream, key: bytes | str, first: int | None = None
    ) -> tuple[RefusalCode, str]:
        with self.assertRaises(Refusal) as raised:
            stream.rekey(key, first)
        return raised.exception.code, str(raised.exception)

    def test_refusals(self) -> None:
        """They say why, and the key stays."""
        contract, iv = replace(MESSAGES, iv=Iv.CONSTANT), bytes(16)
        with self.client.open(contract, KEY, iv) as stream:
            stream.encrypt(b"message 0")
            refusals: list[tuple[RefusalCode, bytes | str, int | None, str]] = [
                (RefusalCode.BUSY, NEW_KEY, 0, "the message has begun"),
                (RefusalCode.KEY, bytes(32), None, "32"),
                (RefusalCode.KEY, "nobody", None, "nobody"),
                (RefusalCode.IV, "no-iv", None, "no-iv"),
            ]
            for code, key, first, reason in refusals:
                got, text = self.refused(stream, key, first)
                self.assertEqual(got, code)
                self.assertIn(reason, text)
            self.assertEqual(
                stream.encrypt(b"message 1").ciphertext, Messages(contract, iv).encrypt(b"message 1")
            )
            stream.rekey(NEW_KEY, 3)
            self.assertIn("two keys", self.refused(stream, KEY, 4)[1])
            for number in (2, 3):
                self.assertEqual(
                    stream.encrypt(b"x").ciphertext,
                    Messages(contract, iv).encrypt(b"x", key=NEW_KEY if number == 3 else KEY),
                )
            for wrong in ((b"x", 9), ("", 9), (KEY, -1), (KEY, 2**64)):
                self.assertRaises(ValueError, stream.rekey, *wrong)
        self.assertRaises(millrace.StreamClosed, stream.rekey, KEY)
        with self.client.open(CONTRACT, KEY) as stream:
            self.assertEqual(self.refused(stream, NEW_KEY)[0], RefusalCode.SPEC)


class Aio(unittest.IsolatedAsyncioTestCase):
    async def test_while_messages_flow(self) -> None:
        """Granted or refused, which key a message is under is what the answers say."""
        contract = replace(MESSAGES, iv=Iv.COUNTER, first_unit=2**64 - 20, interval_ns=MS)
        with Server() as server:
            async with await aio.connect(server.address) as client:
                async with await client.open(contract, KEY) as stream:
                    await self.check_flow(stream, [draw.randbytes(16) for _ in range(6)])

    async def check_flow(self, stream: aio.Stream, keys: list[bytes]) -> None:
        contract = stream.state.contract
        granted = {0: KEY}  # by how many messages were before
        changing = asyncio.create_task(self.change(stream, keys, granted))
        messages, waiting, came = list[bytes](), deque[asyncio.Future[millrace.Result]](), list[bytes]()
        while waiting or not changing.done():
            if not changing.done():
                messages.append(draw_message(contract, 64))
                waiting.append(stream.encrypt(messages[-1]))
            if len(waiting) >= 4 or changing.done():
                came.append((await waiting.popleft()).ciphertext)
        await changing
        self.assertEqual(len(granted), 1 + len(keys))
        reference = Messages(contract, bytes(16))
        key = KEY
        for number, (message, ciphertext) in enumerate(zip(messages, came, strict=True)):
            key = granted.get(number, key)
            self.assertEqual(ciphertext, reference.encrypt(message, key=key))

    async def change(self, stream: aio.Stream, keys: list[bytes], granted: dict[int, bytes]) -> None:
        first_unit = stream.state.contract.first_unit
        for key in keys:
            while True:
                first = (stream.state.next_message + draw.randrange(4)) % 2**64
                try:
                    self.assertEqual((await stream.rekey(key, first)).first, first)
                    break
                except Refusal as refusal:
                    self.assertEqual(refusal.code, RefusalCode.BUSY)
            granted[(first - first_unit) % 2**64] = key


if __name__ == "__main__":
    unittest.main()
