"""The asyncio API, TCP, TLS and servers that stop, against a server of the build."""
import asyncio
import socket
import ssl
import subprocess
import unittest
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import millrace
from millrace import CloseReason, Iv, Padding, Unit, aio
from millrace import connection as core
from server import CONTRACT, KEY, MS, Server, draw, openssl_cbc


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def encrypt_stream(client: aio.Client, count: int) -> None:
    packets = [draw.randbytes(160) for _ in range(count)]
    contract = replace(CONTRACT, padding=Padding.NONE, burst_packets=8, interval_ns=MS)
    async with await client.open(contract, KEY) as stream:
        results = await asyncio.gather(*(stream.encrypt(packet) for packet in packets))
        ciphertext = b"".join(result.ciphertext for result in results)
        assert ciphertext == openssl_cbc(b"".join(packets), stream.state.opened.iv)


class Aio(unittest.IsolatedAsyncioTestCase):
    async def test_many_streams_at_once(self) -> None:
        with Server() as server:
            async with await aio.connect(server.address) as client:
                async with asyncio.TaskGroup() as group:
                    for _ in range(20):
                        group.create_task(encrypt_stream(client, 30))
                self.assertEqual(await client.ping(b"x"), b"x")
                messages = replace(CONTRACT, unit=Unit.MESSAGE, iv=Iv.RANDOM, packet_bytes=64)
                async with await client.open(messages, KEY) as stream:
                    message = await stream.encrypt_message(bytes(500))
                    assert message.iv is not None
                    self.assertEqual(message.ciphertext, openssl_cbc(bytes(500), message.iv, pad=True))
                    await stream.modify(8, CONTRACT.interval_ns, CONTRACT.latency_ns)
                with self.assertRaises(millrace.Refusal):
                    await client.query(replace(CONTRACT, packet_bytes=65536, latency_ns=10_000))

    async def test_a_cancelled_open_leaves_no_stream(self) -> None:
        """Cancelled before the answer comes, and in the turn of the loop in which it comes."""
        with Server() as server:
            async with await aio.connect(server.address) as client:
                for when in ("at once", "ahead of the answer", "behind the answer"):
                    with self.subTest(when):
                        await self.cancel_open(client, when)

    async def cancel_open(self, client: aio.Client, when: str) -> None:
        connection, came = client.connection, list[core.Stream]()
        receive = connection.receive

        def receive_and_cancel(data: bytes) -> None:
            if when == "ahead of the answer":
                task.cancel()
            client.answer(core.Answer[None]())  # so that output goes ahead of what the task does next
            receive(data)
            came.extend(connection.streams.values())
            if when == "behind the answer":
                task.cancel()

        with patch.object(connection, "receive", receive_and_cancel):
            task = asyncio.create_task(client.open(CONTRACT, KEY))
            await asyncio.sleep(0)
            if when == "at once":
                task.cancel()
            self.assertIsInstance(
                (await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError
            )
            while not came:  # a PONG may overtake OPENED
                await client.ping()
        self.assertFalse(came[0].is_open)
        while connection.streams:  # CLOSED comes although nothing else is asked for
            await asyncio.sleep(0)

    async def test_a_server_that_stops(self) -> None:
        with Server() as server:
            async with await aio.connect(server.address) as client:
                stream = await client.open(replace(CONTRACT, interval_ns=10**9, burst_packets=1), KEY)
                await stream.encrypt(b"first")
                waiting = stream.encrypt(b"second")
                server.terminate()
                outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
                self.assertIsInstance(outcome, (millrace.Result, millrace.MillraceError))
                with self.assertRaises(millrace.MillraceError):
                    while True:
                        await client.ping()
                if stream.state.closed is not None:
                    self.assertEqual(stream.state.closed.reason, CloseReason.DRAINED)

    async def test_a_server_that_dies(self) -> None:
        with Server() as server:
            async with await aio.connect(server.address) as client:
                stream = await client.open(replace(CONTRACT, interval_ns=10**12, burst_packets=1), KEY)
                waiting = [stream.encrypt(b"x") for _ in range(5)]
                await waiting[0]
                server.kill()
                for outcome in await asyncio.gather(*waiting[1:], return_exceptions=True):
                    self.assertIsInstance(outcome, millrace.Disconnected)


class Blocking(unittest.TestCase):
    def test_a_server_that_dies(self) -> None:
        with Server() as server, millrace.connect(server.address, timeout=60) as client:
            stream = client.open(replace(CONTRACT, interval_ns=10**12, burst_packets=1), KEY)
            stream.encrypt(b"x")
            server.kill()
            self.assertRaises(millrace.Disconnected, stream.encrypt, b"x")

    def test_tcp(self) -> None:
        port = free_port()
        with Server(listeners=f"  - address: tcp:127.0.0.1:{port}") as server:
            with millrace.connect(f"tcp:127.0.0.1:{port}", timeout=60) as client:
                self.assertFalse(client.welcome.allows_inline_key)
                self.assertRaises(millrace.Refusal, client.open, CONTRACT, KEY)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """An authority, and what it has signed: server (127.0.0.1) and client."""
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(folder, "req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    for name in ("server", "client"):
        openssl(
            folder, "req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.pem")


class Tls(unittest.IsolatedAsyncioTestCase):
    async def test_certificates(self) -> None:
        port = free_port()
        files = "certificate: server.pem\n    key: server.key\n    client_ca: ca.pem"
        made = Server(listeners=f"  - address: tls:127.0.0.1:{port}\n    {files}")
        make_certificates(made.folder)
        with made as server:
            address, folder = f"tls:127.0.0.1:{port}", server.folder
            known = millrace.tls(*(str(folder / name) for name in ("ca.pem", "client.pem", "client.key")))
            with millrace.connect(address, tls=known, timeout=60) as client, client.open(
                CONTRACT, KEY
            ) as stream:
                packets = [bytes(1408)] * 500
                came = b"".join(result.ciphertext[:1408] for result in stream.encrypt_all(packets[:1]))
                self.assertEqual(came, openssl_cbc(packets[0], stream.state.opened.iv))
            async with await aio.connect(address, tls=known) as other:
                await encrypt_stream(other, 30)
            unknown = millrace.tls(str(folder / "ca.pem"))
            self.assertRaises(millrace.Disconnected, millrace.connect, address, tls=unknown, timeout=60)
            self.assertRaises(ssl.SSLError, millrace.connect, address, timeout=60)


if __name__ == "__main__":
    unittest.main()
