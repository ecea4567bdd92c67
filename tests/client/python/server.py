"""A server of the build for tests, in a folder of its own, and what it ought to encrypt, from the
openssl command."""
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from millrace import Cipher, Contract, Iv, Padding, Unit

BUILD = Path(os.environ["MILLRACE_BINARY_DIR"])
SOURCE = Path(__file__).resolve().parents[3]
KEY = bytes(range(16))
MS = 1_000_000
# Admission is another test's: this is granted wherever there is anything free.
CONTRACT = Contract(packet_bytes=1408, burst_packets=64, interval_ns=20 * MS, latency_ns=1000 * MS)
MESSAGES = replace(CONTRACT, unit=Unit.MESSAGE, packet_bytes=320)
KEY_BYTES = {Cipher.AES_128_CBC: 16, Cipher.AES_192_CBC: 24, Cipher.AES_256_CBC: 32}

seed = int(os.environ.get("MILLRACE_SEED") or random.SystemRandom().randrange(2**32))
print(f"MILLRACE_SEED={seed}", flush=True)
draw = random.Random(seed)


DEFAULTS = {
    "profile": "cpu-only",
    "gpus": "none",
    "threads": "{io: 1, workers: 1, realtime: off, pin: false}",
    "client_iv": "true",
    "overload": "{tighten: false}",  # or what else the machine does would decide on admission
}


class Server:
    """Runs while its `with` does, and must end well. `listeners` are lines of YAML beside that of
    the Unix socket, `files` are written into its folder, settings are top-level keys."""

    def __init__(self, listeners: str = "", files: dict[str, str] = {}, **settings: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="millrace-")
        self.folder = Path(self._folder.name)
        self.address = f"unix:{self.folder}/socket"
        self._killed = False
        keys = "\n".join(f"{key}: {value}" for key, value in (DEFAULTS | settings).items())
        config = f"listeners:\n{listeners}\n  - address: {self.address}\n{keys}\n"
        for name, text in (files | {"millraced.yaml": config}).items():
            (self.folder / name).touch(mode=0o600)
            (self.folder / name).write_text(text)

    def __enter__(self) -> "Server":
        self._log = (self.folder / "log").open("w+")
        self._process = subprocess.Popen(
            [BUILD / "server/millraced", self.folder / "millraced.yaml"],
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
        )
        while not self._listens():  # on that listener last
            if self._process.poll() is not None:
                raise AssertionError(f"the server did not start:\n{self.log()}")
            time.sleep(0.01)
        return self

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(f"{self.folder}/socket") == 0

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def terminate(self) -> None:
        """As an operator ends it; it delivers what it has accepted."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._killed = True
        self._process.kill()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._process.terminate()
        status = self._process.wait()
        log = self.log()
        self._log.close()
        self._folder.cleanup()
        if kind is not None:
            print(log)
        elif status != 0 and not self._killed:
            raise AssertionError(f"the server ended with status {status}:\n{log}")


def openssl_cbc(plaintext: bytes, iv: bytes, key: bytes = KEY, pad: bool = False) -> bytes:
    """What AES-CBC makes of it."""
    command = ["openssl", "enc", f"-aes-{len(key) * 8}-cbc", "-K", key.hex(), "-iv", iv.hex()]
    return subprocess.run(
        command + ([] if pad else ["-nopad"]), input=plaintext, capture_output=True, check=True
    ).stdout


def expected(contract: Contract, key: bytes, iv: bytes, message: bytes) -> bytes:
    """What becomes of a message, or of a packet of a stream without messages."""
    if contract.padding != Padding.CLEAR:
        return openssl_cbc(message, iv, key, pad=contract.padding == Padding.PKCS7)
    blocks = [message[at : at + 16] for at in range(0, len(message) // 16 * 16, 16)]
    cycle = contract.crypt_blocks + contract.skip_blocks
    chosen = [at for at in range(len(blocks)) if cycle == 0 or at % cycle < contract.crypt_blocks]
    chain = openssl_cbc(b"".join(blocks[at] for at in chosen), iv, key) if chosen else b""
    for number, at in enumerate(chosen):
        blocks[at] = chain[number * 16 : number * 16 + 16]
    return b"".join(blocks) + message[len(blocks) * 16 :]


class Messages:
    """What becomes of a stream's messages, one after another. `iv`: that of OPEN, if it has one."""

    def __init__(self, contract: Contract, iv: bytes) -> None:
        self._contract, self._constant, self._chain = contract, iv, iv
        self._number = contract.first_unit

    def encrypt(self, message: bytes, iv: bytes | None = None, key: bytes = KEY) -> bytes:
        """`iv`: the one that the client has given, or the server drawn."""
        ivs = {
            Iv.CHAIN: self._chain,
            Iv.CONSTANT: self._constant,
            Iv.COUNTER: self._number.to_bytes(16, "big"),
        }
        ciphertext = expected(self._contract, key, iv or ivs[self._contract.iv], message)
        self._number = (self._number + 1) % 2**64
        whole = len(ciphertext) // 16 * 16
        self._chain = ciphertext[whole - 16 : whole] if whole else self._chain
        return ciphertext


def draw_message(contract: Contract, longest: int) -> bytes:
    blocks = contract.padding == Padding.NONE
    return draw.randbytes(draw.randint(1, longest // 16) * 16 if blocks else draw.randint(0, longest))
